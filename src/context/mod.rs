//! How much a request holds, and how it fits a model. Pure: no clock, no network, no disk.
pub mod handoff;
pub mod thread;
pub mod tokens;
