//! End-to-end tests.

/// Routing against made-up worlds, over virtual days.
mod sim;
