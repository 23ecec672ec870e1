//! The shapes on the wire: request bodies, chat and embedding messages, event streams, error envelopes. Pure: bytes
//! in, values out.
//!
//! JSON is read by one strict cursor ([`json`]) and changed by patches ([`patch`]), never rebuilt: what nobody here
//! knows passes through byte for byte. Requests come in through [`body`], [`chat`] and [`embeddings`]; answers go out
//! through [`sse`] and [`chunk`], or [`completion`].

// What errors and exchanges are.
pub mod error;
pub mod exchange;

// JSON text and changes to it.
pub mod json;
pub mod mould;
pub mod patch;

// Requests.
pub mod body;
pub mod chat;
pub mod embeddings;
pub mod extent;
pub mod messages;
pub mod tally;

// Answers: what every kind shares, then streams, then whole ones.
pub mod answer;
pub mod head;
pub mod preview;
pub mod usage;

pub mod calls;
pub mod choice;
pub mod chunk;
pub mod sse;

pub mod completion;
pub mod fold;
pub mod whole_calls;

pub mod vector;

// What upstreams say when they do not answer.
pub mod upstream_error;

#[cfg(test)]
pub mod hostile;
