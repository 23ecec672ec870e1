//! End-to-end tests.
mod tidy;
