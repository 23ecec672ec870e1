//! The shapes on the wire: request bodies, chat and embedding messages, event streams, error envelopes. Pure: bytes
//! in, values out.
pub mod body;
pub mod chat;
pub mod error;
pub mod exchange;
pub mod json;
pub mod messages;
pub mod patch;
pub mod sse;
pub mod tally;
pub mod usage;
