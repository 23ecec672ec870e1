//! Counts of finished requests since the start, for `/metrics`: per model and status, with a histogram of times.
use std::collections::BTreeMap;
use std::sync::Arc;

use super::record::TurnRecord;

/// Models that have counts of their own; what comes after them is counted as `other`.
const MODELS_MAX: usize = 500;
/// Upper ends of the histogram's buckets, in milliseconds.
pub const BUCKETS_MS: [u64; 10] = [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000];

/// Counts of everything that has ended.
#[derive(Debug, Default)]
pub struct Tallies {
    models: BTreeMap<(Arc<str>, Arc<str>), Tally>,
}

/// Counts of one model; of nobody where nobody served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests by the status that the client saw.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests that were answered from a cache.
    pub cached: u64,
    /// Failed hops on the way to an answer; they belong to the model that failed.
    pub failed_attempts: u64,
    pub tokens_in: u64,
    pub tokens_out: u64,
    /// Requests that took up to so long, each bucket without those before it; the last is without end.
    pub took: [u64; BUCKETS_MS.len() + 1],
    pub took_ms: u64,
}

impl Tallies {
    /// Counts a finished turn.
    pub fn count(&mut self, turn: &TurnRecord) {
        for hop in &turn.attempts {
            self.of(&hop.provider_id, &hop.model_id).failed_attempts += 1;
        }
        let nobody = || ("".into(), "".into());
        let (provider, model) = turn.provider_id.clone().zip(turn.model_id.clone()).unwrap_or_else(nobody);
        let tally = self.of(&provider, &model);
        *tally.statuses.entry(turn.status).or_default() += 1;
        tally.cached += u64::from(turn.cache.is_some());
        tally.tokens_in += turn.tokens_in;
        tally.tokens_out += turn.tokens_out;
        tally.took[BUCKETS_MS.partition_point(|end_ms| *end_ms < turn.ms)] += 1;
        tally.took_ms += turn.ms;
    }

    fn of(&mut self, provider: &Arc<str>, model: &Arc<str>) -> &mut Tally {
        let mut key = (Arc::clone(provider), Arc::clone(model));
        if self.models.len() >= MODELS_MAX && !self.models.contains_key(&key) {
            key = ("other".into(), "other".into());
        }
        self.models.entry(key).or_default()
    }

    /// All counts, by provider and model; both are empty for what nobody served.
    pub fn list(&self) -> Vec<(Arc<str>, Arc<str>, Tally)> {
        let copy = |((provider, model), tally): (&(Arc<str>, Arc<str>), &Tally)| {
            (Arc::clone(provider), Arc::clone(model), tally.clone())
        };
        self.models.iter().map(copy).collect()
    }
}
