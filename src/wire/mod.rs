//! The shapes on the wire: request bodies, chat and embedding messages, event streams, error envelopes. Pure: bytes
//! in, values out.
pub mod answer;
pub mod body;
pub mod calls;
pub mod chat;
pub mod choice;
pub mod chunk;
pub mod completion;
pub mod embeddings;
pub mod error;
pub mod exchange;
pub mod fold;
pub mod head;
pub mod json;
pub mod messages;
pub mod patch;
pub mod sse;
pub mod tally;
pub mod usage;
pub mod whole_calls;
