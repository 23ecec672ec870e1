//! What is looked at before a request is served: its text, and how much its caller has had already. Decisions only.
pub mod limiter;
pub mod rules;
pub mod scan;
