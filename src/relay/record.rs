//! What is kept of finished turns: the last few hundred in memory for the log, each also handed to the store as a row.
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

use super::gateway::Gateway;
use super::turn::{Operation, Told, Turn};
use crate::base::clock;
use crate::catalog::load::Snapshot;
use crate::route::failover::{Failover, Hop};
use crate::store::{Row, RowKind, RowOutcome};

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

/// What a finished turn adds to what the [`Turn`] itself knows.
pub struct Facts<'a> {
    pub id: &'a str,
    pub client: Option<&'a Arc<str>>,
    pub requested: &'a str,
    pub resolution: &'a str,
    pub failover: Option<&'a Failover>,
    pub told: Told,
}

/// Keeps a finished turn: counted, in the log, as a row, and as a line for who watches.
pub fn keep(gateway: &Gateway, snapshot: &Snapshot, turn: &Turn, facts: Facts<'_>) {
    let Facts { id, client, requested, resolution, failover, told } = facts;
    let now = clock::now();
    let served = told.served.map(|served| {
        let provider = snapshot.catalog.provider(served.at);
        (provider, snapshot.catalog.model(served.at), &provider.keys[served.key])
    });
    let hops = failover.map_or(&[][..], Failover::hops);
    let usage = told.usage.unwrap_or_default();
    let record = TurnRecord {
        id: id.to_owned(),
        at: turn.arrived.wall_ms,
        operation: match turn.operation() {
            Operation::Chat(_) => "chat",
            Operation::Embeddings(_) => "embeddings",
        },
        client: client.cloned(),
        requested_model: requested.to_owned(),
        resolution: resolution.to_owned(),
        provider_id: served.map(|(provider, ..)| Arc::clone(&provider.id)),
        model_id: served.map(|(_, model, _)| Arc::clone(&model.id)),
        key_id: served.map(|(.., key)| Arc::clone(&key.id)),
        attempts: hops.iter().map(|hop| attempt_record(snapshot, hop)).collect(),
        status: told.status,
        ms: now.mono_ms.saturating_sub(turn.arrived.mono_ms),
        first_token_ms: turn.first_token().map(|at| at.mono_ms.saturating_sub(turn.arrived.mono_ms)),
        tokens_in: usage.prompt,
        tokens_out: usage.completion,
        estimated: usage.estimated,
        stream: turn.streams(),
        error: told.error,
    };
    let calls = failover.map_or(0, Failover::calls);
    gateway.counts.count(record.status == 200 && record.error.is_none());
    gateway.store.row(row(
        &record,
        served.map(|(_, model, _)| Arc::clone(&model.reference)),
        calls,
        now.wall_ms,
    ));
    log::debug!(
        "{} {} {} -> {} {} in {} ms",
        record.id,
        record.operation,
        record.requested_model,
        served.map_or("nobody", |(_, model, _)| &model.reference),
        record.status,
        record.ms,
    );
    gateway.turns.push(record);
}

fn attempt_record(snapshot: &Snapshot, hop: &Hop) -> AttemptRecord {
    let provider = snapshot.catalog.provider(hop.at);
    AttemptRecord {
        provider_id: Arc::clone(&provider.id),
        model_id: Arc::clone(&snapshot.catalog.model(hop.at).id),
        key_id: Arc::clone(&provider.keys[hop.key].id),
        status: hop.failure.status,
        ms: hop.took_ms,
        error: snapshot.redactor.redact(&hop.failure.message).into_owned(),
    }
}

fn row(record: &TurnRecord, model: Option<Arc<str>>, calls: u32, ended_ms: u64) -> Row {
    let hop = |hop: &AttemptRecord| match hop.status {
        Some(status) => format!("{}/{}:{status}", hop.provider_id, hop.model_id),
        None => format!("{}/{}", hop.provider_id, hop.model_id),
    };
    let named = model.as_deref() == Some(&record.requested_model);
    Row {
        ended_ms,
        kind: if record.operation == "chat" { RowKind::Chat } else { RowKind::Embeddings },
        outcome: match (record.status, &record.error) {
            (499, _) => RowOutcome::Canceled,
            (200, None) => RowOutcome::Success,
            _ => RowOutcome::Error,
        },
        status: record.status,
        stream: record.stream,
        requested: (!named).then(|| record.requested_model.clone()),
        route: record.resolution.as_str().into(),
        model,
        key: record.key_id.clone(),
        client: record.client.clone(),
        prompt_tokens: record.tokens_in,
        output_tokens: record.tokens_out,
        estimated: record.estimated,
        latency_ms: record.ms,
        first_ms: record.first_token_ms,
        attempts: calls,
        error: record.error.clone(),
        trail: record.attempts.iter().map(hop).collect::<Vec<_>>().join(", "),
    }
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
