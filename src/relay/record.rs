//! What is kept of finished turns: the last few hundred in memory for the log, each also handed to the store as a row.
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

use super::feed::{News, Readers, Watcher};
use super::gateway::Gateway;
use super::story::With;
use super::tally::{Tallies, Tally};
use super::turn::{Operation, Turn};
use crate::base::clock;
use crate::base::redact::Redactor;
use crate::catalog::load::Snapshot;
use crate::catalog::provider::{Billing, Model, PaidEquivalent, Provider};
use crate::context::refit::Rung;
use crate::route::failover::{Failover, Hop};
use crate::store::{Row, RowCache, RowKind, RowOutcome, RowRefit, Store};
use crate::wire::usage::Usage;

/// Turns kept in memory.
const TURNS_MAX: usize = 500;

/// One finished turn, for people.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnRecord {
    /// The request id that the client saw.
    pub id: Option<Arc<str>>,
    /// Counts the turns of this run from 1, in the order in which they ended; `None` for a turn of an earlier run.
    pub seq: Option<u64>,
    /// When it was admitted, in milliseconds since 1970.
    pub at: u64,
    /// `chat` or `embeddings`.
    pub operation: &'static str,
    pub client: Option<Arc<str>>,
    pub requested_model: Arc<str>,
    pub resolution: Arc<str>,
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
    /// `exact` or `semantic` when the answer came from a cache.
    pub cache: Option<RowCache>,
    /// The rung at which the conversation was reshaped, when it was.
    pub refit: Option<RowRefit>,
    /// The same as `x-freeway-context` had it; of a turn of an earlier run only the rung is known.
    pub context: Option<String>,
    pub error: Option<String>,
    /// The words of the newest question and of its answer, while the owner lets them be kept. Never on disk; shown by
    /// [`TurnRecord::view`].
    #[serde(skip)]
    pub preview: Option<Preview>,
}

/// The beginnings of what was said.
#[derive(Clone, Debug, Serialize)]
pub struct Preview {
    pub prompt: String,
    pub response: String,
}

/// One upstream call that did not serve.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptRecord {
    pub provider_id: Arc<str>,
    pub model_id: Arc<str>,
    pub status: Option<u16>,
    /// What a row does not keep is `None` for a turn of an earlier run.
    pub key_id: Option<Arc<str>>,
    pub ms: Option<u64>,
    pub error: Option<String>,
}

/// What a finished turn adds to what the [`Turn`] itself knows.
pub struct Facts<'a> {
    pub id: &'a str,
    pub client: Option<&'a Arc<str>>,
    pub requested: &'a Arc<str>,
    pub resolution: &'a Arc<str>,
    /// What the client sees; 499 when it left first.
    pub status: u16,
    /// `error.code` of what the client is told instead of an answer.
    pub error: Option<&'a str>,
    pub failover: Option<&'a Failover>,
    /// With whom the last attempt was made.
    pub with: Option<With>,
    pub usage: Usage,
    pub cache: Option<RowCache>,
    pub refit: Option<RowRefit>,
}

/// Keeps a finished turn: counted, in the log, as a row, and as a line for who watches.
pub fn keep(gateway: &Gateway, snapshot: &Snapshot, turn: &Turn, facts: &Facts<'_>) {
    let now = clock::now();
    let served = facts.with.map(|with| {
        let provider = snapshot.catalog.provider(with.at);
        (provider, snapshot.catalog.model(with.at), with.key.map(|key| &provider.keys[key]))
    });
    let hops = facts.failover.map_or(&[][..], |failover| failover.hops());
    let record = TurnRecord {
        id: Some(facts.id.into()),
        seq: None,
        at: turn.arrived.wall_ms,
        operation: match turn.operation() {
            Operation::Chat(_) => "chat",
            Operation::Embeddings(_) => "embeddings",
        },
        client: facts.client.cloned(),
        requested_model: Arc::clone(facts.requested),
        resolution: Arc::clone(facts.resolution),
        provider_id: served.map(|(provider, ..)| Arc::clone(&provider.id)),
        model_id: served.map(|(_, model, _)| Arc::clone(&model.id)),
        key_id: served.and_then(|(.., key)| Some(Arc::clone(&key?.id))),
        attempts: hops.iter().map(|hop| attempt_record(snapshot, hop)).collect(),
        status: facts.status,
        ms: now.mono_ms.saturating_sub(turn.arrived.mono_ms),
        first_token_ms: turn.first_token().map(|at| at.mono_ms.saturating_sub(turn.arrived.mono_ms)),
        tokens_in: facts.usage.prompt,
        tokens_out: facts.usage.completion,
        estimated: facts.usage.estimated,
        stream: turn.streams(),
        cache: facts.cache,
        refit: facts.refit,
        context: facts.refit.and_then(|_| turn.context_told()),
        error: facts.error.map(str::to_owned),
        preview: turn.take_preview().map(|(prompt, response)| Preview { prompt, response }),
    };
    let calls = facts.failover.map_or(0, |failover| failover.calls());
    gateway.counts.count(record.status == 200 && record.error.is_none());
    let by = served.map(|(provider, model, _)| (provider, model));
    gateway.store.row(row(&record, by, calls, now.wall_ms));
    log::debug!(
        "{} {} {} -> {} {} in {} ms",
        facts.id,
        record.operation,
        record.requested_model,
        served.map_or("nobody", |(_, model, _)| &model.reference),
        record.status,
        record.ms,
    );
    gateway.turns.push(record);
}

/// The rung as a row has it; a conversation that fitted as it came has none.
pub fn refit(rung: Rung) -> Option<RowRefit> {
    match rung {
        Rung::Passthrough => None,
        Rung::DropToolNoise => Some(RowRefit::DropToolNoise),
        Rung::Window => Some(RowRefit::Window),
        Rung::Compact => Some(RowRefit::Compact),
        Rung::HardTruncate => Some(RowRefit::HardTruncate),
    }
}

fn attempt_record(snapshot: &Snapshot, hop: &Hop) -> AttemptRecord {
    let provider = snapshot.catalog.provider(hop.at);
    AttemptRecord {
        provider_id: Arc::clone(&provider.id),
        model_id: Arc::clone(&snapshot.catalog.model(hop.at).id),
        key_id: Some(Arc::clone(&provider.keys[hop.key].id)),
        status: hop.failure.status,
        ms: Some(hop.took_ms),
        error: Some(snapshot.redactor.redact(&hop.failure.message).into_owned()),
    }
}

/// A turn as it is shown.
#[derive(Debug, Serialize)]
pub struct TurnView<'r> {
    #[serde(flatten)]
    turn: &'r TurnRecord,
    preview: Option<Preview>,
}

impl TurnRecord {
    /// What is shown of it: no live credential of a provider, even where a person typed it.
    pub fn view(&self, redactor: &Redactor) -> TurnView<'_> {
        let redact = |text: &str| redactor.redact(text).into_owned();
        let preview = self
            .preview
            .as_ref()
            .map(|said| Preview { prompt: redact(&said.prompt), response: redact(&said.response) });
        TurnView { turn: self, preview }
    }

    /// A turn of an earlier run, as far as its row tells.
    fn of_row(row: Row) -> TurnRecord {
        let model = row.model.as_deref().unwrap_or_default();
        let with = model.split_once('/').map(|(provider, model)| (provider.into(), model.into()));
        let (provider_id, model_id) = with.unzip();
        TurnRecord {
            id: row.id,
            seq: None,
            at: row.ended_ms.saturating_sub(row.latency_ms),
            operation: row.kind.name(),
            client: row.client,
            requested_model: row.requested.map_or_else(|| model.into(), Arc::from),
            resolution: row.route,
            provider_id,
            model_id,
            key_id: row.key,
            attempts: row.trail.split(", ").filter_map(AttemptRecord::of_hop).collect(),
            status: row.status,
            ms: row.latency_ms,
            first_token_ms: row.first_ms,
            tokens_in: row.prompt_tokens,
            tokens_out: row.output_tokens,
            estimated: row.estimated,
            stream: row.stream,
            cache: row.cache,
            refit: row.refit,
            context: row.refit.map(|rung| format!("refit={}", rung.name())),
            error: row.error,
            preview: None,
        }
    }
}

impl AttemptRecord {
    /// Reads `provider/model:status` or `provider/model`, as [`row`] writes them.
    fn of_hop(hop: &str) -> Option<AttemptRecord> {
        let (reference, status) = match hop.rsplit_once(':') {
            Some((reference, status)) if status.parse::<u16>().is_ok() => (reference, status.parse().ok()),
            _ => (hop, None),
        };
        let (provider, model) = reference.split_once('/')?;
        let (provider_id, model_id) = (provider.into(), model.into());
        Some(AttemptRecord { provider_id, model_id, status, key_id: None, ms: None, error: None })
    }
}

fn row(record: &TurnRecord, by: Option<(&Provider, &Model)>, calls: u32, ended_ms: u64) -> Row {
    let hop = |hop: &AttemptRecord| match hop.status {
        Some(status) => format!("{}/{}:{status}", hop.provider_id, hop.model_id),
        None => format!("{}/{}", hop.provider_id, hop.model_id),
    };
    let model = by.map(|(_, model)| Arc::clone(&model.reference));
    let named = model.as_deref() == Some(&record.requested_model);
    let outcome = match (record.status, &record.error) {
        (499, _) => RowOutcome::Canceled,
        (200, None) => RowOutcome::Success,
        _ => RowOutcome::Error,
    };
    let saved = by
        .filter(|_| outcome == RowOutcome::Success)
        .map(|(provider, model)| saved_nano_usd(provider, model, record.tokens_in, record.tokens_out));
    Row {
        ended_ms,
        id: record.id.clone(),
        kind: if record.operation == "chat" { RowKind::Chat } else { RowKind::Embeddings },
        outcome,
        status: record.status,
        stream: record.stream,
        requested: (!named).then(|| record.requested_model.to_string()),
        route: Arc::clone(&record.resolution),
        model,
        key: record.key_id.clone(),
        client: record.client.clone(),
        prompt_tokens: record.tokens_in,
        output_tokens: record.tokens_out,
        estimated: record.estimated,
        saved_nano_usd: saved.unwrap_or(0),
        latency_ms: record.ms,
        first_ms: record.first_token_ms,
        attempts: calls,
        cache: record.cache,
        refit: record.refit,
        error: record
            .error
            .clone()
            .map(|code| if code.is_empty() { upstream_code(record.status) } else { code }),
        trail: record.attempts.iter().map(hop).collect::<Vec<_>>().join(", "),
    }
}

/// What stands for the code of an upstream's refusal that was passed on and has none.
fn upstream_code(status: u16) -> String {
    format!("upstream_{status}")
}

/// What an answer would have cost elsewhere. One that is paid for here saved nothing.
fn saved_nano_usd(provider: &Provider, model: &Model, tokens_in: u64, tokens_out: u64) -> u64 {
    if provider.billing == Billing::Paid {
        return 0;
    }
    let PaidEquivalent { in_per_m, out_per_m } = model.paid_equivalent.unwrap_or(PaidEquivalent::USUAL);
    // A dollar per million tokens is a thousand billionths for each.
    ((tokens_in as f64 * in_per_m + tokens_out as f64 * out_per_m) * 1_000.0).round() as u64
}

/// The last turns, and who watches them.
#[derive(Debug)]
pub struct TurnLog {
    ring: Mutex<Ring>,
    /// Wall clock when this run began; what the store has from before is of earlier runs.
    begun_ms: u64,
}

#[derive(Debug, Default)]
struct Ring {
    /// Newest last.
    turns: VecDeque<Arc<TurnRecord>>,
    last_seq: u64,
    readers: Readers,
    tallies: Tallies,
}

/// One who watches the log. Its place is free again when it is dropped.
#[derive(Debug)]
pub struct Watch<'l> {
    log: &'l TurnLog,
    pub watcher: Watcher,
    /// The turns that it asked for from before, oldest first. Nothing lies between them and the news.
    pub backlog: Vec<Arc<TurnRecord>>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.log.ring.lock().readers.leave(self.watcher.id);
    }
}

/// What a reader wants from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// So many of the newest.
    Newest(usize),
    /// What ended after the turn of this number.
    Seq(u64),
}

impl TurnLog {
    /// An empty log of a run that began at `begun_ms` (milliseconds since 1970).
    pub fn new(begun_ms: u64) -> TurnLog {
        TurnLog { ring: Mutex::default(), begun_ms }
    }

    /// What tells the numbers of this run from those of others.
    pub fn run(&self) -> u64 {
        self.begun_ms
    }

    /// Keeps a turn, tells it to who watches, and forgets the oldest when there are too many.
    pub fn push(&self, mut record: TurnRecord) {
        let mut ring = self.ring.lock();
        ring.last_seq += 1;
        record.seq = Some(ring.last_seq);
        ring.tallies.count(&record);
        let record = Arc::new(record);
        ring.readers.tell(|| News::Turn(Arc::clone(&record)));
        let oldest = if ring.turns.len() == TURNS_MAX { ring.turns.pop_front() } else { None };
        ring.turns.push_back(record);
        drop(ring);
        // Taken apart only now, so that nobody waits for it.
        drop(oldest);
    }

    /// Tells who watches that something else has changed.
    pub fn changed(&self, what: &'static str) {
        self.ring.lock().readers.tell(|| News::Changed(what));
    }

    /// Begins to watch; `None` when too many do, or the gateway stops.
    pub fn watch(&self, since: Since) -> Option<Watch<'_>> {
        let mut ring = self.ring.lock();
        let watcher = ring.readers.join()?;
        let count = match since {
            Since::Newest(count) => count,
            Since::Seq(seq) => usize::try_from(ring.last_seq.saturating_sub(seq)).unwrap_or(usize::MAX),
        };
        let skipped = ring.turns.len().saturating_sub(count);
        let backlog = ring.turns.iter().skip(skipped).map(Arc::clone).collect();
        Some(Watch { log: self, watcher, backlog })
    }

    /// Counts of all turns since the start, by provider and model.
    pub fn tallies(&self) -> Vec<(Arc<str>, Arc<str>, Tally)> {
        self.ring.lock().tallies.list()
    }

    /// How many watch.
    pub fn watched_by(&self) -> usize {
        self.ring.lock().readers.count()
    }

    /// Ends all watching: the gateway stops.
    pub fn close(&self) {
        self.ring.lock().readers.close();
    }

    /// The newest `count` turns, newest first; those of earlier runs are read from the store.
    pub fn newest(&self, count: usize, store: &Store) -> Vec<Arc<TurnRecord>> {
        let mut newest: Vec<_> = self.ring.lock().turns.iter().rev().take(count).map(Arc::clone).collect();
        if newest.len() < count.min(TURNS_MAX) {
            let rows = store.recent(count).into_iter().filter(|row| row.ended_ms < self.begun_ms);
            let older = rows.map(|row| Arc::new(TurnRecord::of_row(row)));
            newest.extend(older.take(count - newest.len()));
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_of_a_trail_are_read_back() {
        let check = |hop: &str, expected: Option<(&str, &str, Option<u16>)>| {
            let found = AttemptRecord::of_hop(hop);
            let found = found.as_ref().map(|hop| (&*hop.provider_id, &*hop.model_id, hop.status));
            assert_eq!(found, expected, "{hop}");
        };
        check("groq/some-model:429", Some(("groq", "some-model", Some(429))));
        check("openrouter/acme/big-2:free:503", Some(("openrouter", "acme/big-2:free", Some(503))));
        check("openrouter/acme/big-2:free", Some(("openrouter", "acme/big-2:free", None)));
        check("", None);
        check("cut-off-in-the-mid", None);
    }
}
