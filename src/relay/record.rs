//! What is kept of finished turns: the last few hundred in memory for the log, each also handed to the store as a row.
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

/// Turns kept in memory.
const TURNS_MAX: usize = 500;

/// One finished turn, for people.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnRecord {
    /// The request id that the client saw.
    pub id: String,
    /// When it was admitted, in milliseconds since 1970.
    pub at: u64,
    /// `chat` or `embeddings`.
    pub operation: &'static str,
    pub client: Option<Arc<str>>,
    pub requested_model: String,
    pub resolution: String,
    pub provider_id: Option<Arc<str>>,
    pub model_id: Option<Arc<str>>,
    pub key_id: Option<Arc<str>>,
    /// Failed attempts, in order.
    pub attempts: Vec<AttemptRecord>,
    /// The status that the client saw; 499 when it left first.
    pub status: u16,
    pub ms: u64,
    /// To the first byte of the answer's content, when there was one.
    pub first_token_ms: Option<u64>,
    pub tokens_in: u64,
    pub tokens_out: u64,
    /// Whether the token counts were guessed.
    pub estimated: bool,
    pub stream: bool,
    pub error: Option<String>,
}

/// One upstream call that did not serve.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptRecord {
    pub provider_id: Arc<str>,
    pub model_id: Arc<str>,
    pub key_id: Arc<str>,
    pub status: Option<u16>,
    pub ms: u64,
    pub error: String,
}

/// The last turns, newest last.
#[derive(Debug, Default)]
pub struct TurnLog(Mutex<VecDeque<Arc<TurnRecord>>>);

impl TurnLog {
    pub fn push(&self, record: TurnRecord) {
        let mut turns = self.0.lock();
        if turns.len() == TURNS_MAX {
            turns.pop_front();
        }
        turns.push_back(Arc::new(record));
    }

    /// The newest `count` turns, newest first.
    pub fn newest(&self, count: usize) -> Vec<Arc<TurnRecord>> {
        self.0.lock().iter().rev().take(count).map(Arc::clone).collect()
    }
}
