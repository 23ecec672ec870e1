//! The shapes on the wire: request bodies, chat and embedding messages, event streams, error envelopes. Pure: bytes
//! in, values out.
pub mod error;
pub mod exchange;
pub mod upstream_error;
