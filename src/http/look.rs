//! How the owner's views look at live state: how full each limit is, who waits, how fast and how well things went.
use serde::{Serialize, Serializer};

use crate::base::clock::Now;
use crate::catalog::load::Snapshot;
use crate::catalog::provider::{Key, Limit, Limits, LimitsScope, Metric, Model, Provider, ResetZone, Slot};
use crate::quota::{Cause, Claim, Rule, Scope};
use crate::route::live::Live;

/// One look, under the lock of live state.
pub struct Look<'a> {
    pub live: &'a Live,
    pub snapshot: &'a Snapshot,
    pub now: Now,
}

/// How full one limit is.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bar {
    pub key: &'static str,
    #[serde(serialize_with = "plain")]
    pub used: f64,
    #[serde(serialize_with = "plain")]
    pub limit: f64,
    /// Per cent, with one decimal.
    #[serde(serialize_with = "plain")]
    pub pct: f64,
    pub window: String,
    /// Milliseconds since 1970; `None` for windows that slide.
    pub resets_at: Option<u64>,
    #[serde(skip)]
    pub metric: Metric,
    /// Length of a window that slides, in milliseconds.
    #[serde(skip)]
    pub rolling_ms: Option<u64>,
}

/// How a provider or a key did since the start.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoreView {
    ok: u64,
    fail: u64,
    success_pct: Option<f64>,
    latency_ms: u64,
    last_error: Option<String>,
}

/// Writes a number as people do: a whole one without a fraction, so that typed clients can read it as such.
pub fn plain<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match number.fract() == 0.0 && number.abs() <= EXACT_MAX {
        true => serializer.serialize_i64(*number as i64),
        false => serializer.serialize_f64(*number),
    }
}

/// Up to here every whole number is exact.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Per cent with one decimal.
pub fn percent(part: f64, whole: f64) -> f64 {
    (part / whole * 1000.0).round() / 10.0
}

impl Look<'_> {
    pub fn cooldown_ms(&self, scope: Scope) -> u64 {
        self.live.benches.blocking(&[scope], self.now).map_or(0, |bench| bench.remaining_ms(self.now))
    }

    pub fn score(&self, slot: Slot) -> ScoreView {
        let score = self.live.scoreboard.of(slot);
        let (ok, all) = (score.ok as f64, (score.ok + score.failed) as f64);
        let redact = |error: String| self.snapshot.redactor.redact(&error).into_owned();
        ScoreView {
            ok: score.ok,
            fail: score.failed,
            success_pct: (all > 0.0).then(|| percent(ok, all)),
            latency_ms: score.latency_ms.unwrap_or(0.0).round() as u64,
            last_error: score.last_error.map(redact),
        }
    }

    /// Averages to the first token of a stream, and to a whole answer; in whole milliseconds.
    pub fn speed(&self, provider: Slot, model: Option<Slot>) -> (Option<u64>, Option<u64>) {
        let (stream, whole) = self.live.speeds.averages(provider, model, self.now);
        let rounded = |ms: Option<f64>| ms.map(|ms| ms.round() as u64);
        (rounded(stream), rounded(whole))
    }

    /// The limits of a provider as a whole.
    pub fn provider_bars(&self, provider: &Provider) -> Vec<Bar> {
        self.bars(&provider.limits, &self.limited_scopes(provider), provider.reset_zone)
    }

    /// The limits that one key has for itself; those of a model or of the whole account are shown there.
    pub fn key_bars(&self, provider: &Provider, key: &Key) -> Vec<Bar> {
        match provider.limits_scope {
            LimitsScope::Key => self.bars(&provider.limits, &[Scope::Key(key.slot)], provider.reset_zone),
            LimitsScope::Model | LimitsScope::Account => Vec::new(),
        }
    }

    /// Limits that are a model's own.
    pub fn model_bars(&self, provider: &Provider, model: &Model) -> Vec<Bar> {
        let of_each_model = provider.limits_scope == LimitsScope::Model && !provider.limits.max.is_empty();
        if model.limits.max.is_empty() && !of_each_model {
            return Vec::new();
        }
        let scopes = distinct(provider.keys.iter().map(|key| match provider.limits_scope {
            LimitsScope::Account => Scope::AccountModel(key.account, model.slot),
            LimitsScope::Key | LimitsScope::Model => Scope::KeyModel(key.slot, model.slot),
        }));
        let mut bars = self.bars(&model.limits, &scopes, provider.reset_zone);
        if of_each_model {
            bars.extend(self.bars(&provider.limits, &scopes, provider.reset_zone));
        }
        bars
    }

    /// Whose limits a provider's own are, added up: its keys, without those that are refused, or its accounts.
    fn limited_scopes(&self, provider: &Provider) -> Vec<Scope> {
        let refused = |key: &&Key| {
            let bench = self.live.benches.blocking(&[Scope::Key(key.slot)], self.now);
            bench.is_some_and(|bench| matches!(bench.cause, Cause::Auth | Cause::Forbidden))
        };
        match provider.limits_scope {
            LimitsScope::Key => {
                provider.keys.iter().filter(|key| !refused(key)).map(|key| Scope::Key(key.slot)).collect()
            }
            LimitsScope::Account => distinct(provider.keys.iter().map(|key| Scope::Account(key.account))),
            // Shown with each model.
            LimitsScope::Model => Vec::new(),
        }
    }

    /// How full each limit is, over all scopes that have it for themselves.
    fn bars(&self, limits: &Limits, scopes: &[Scope], zone: ResetZone) -> Vec<Bar> {
        let bar = |(metric, limit): (&Metric, &Limit)| {
            let rule = Rule::of(*metric, *limit);
            let used: f64 = scopes
                .iter()
                .map(|scope| self.live.ledger.used(&Claim { scope: *scope, limits, zone }, *metric, self.now))
                .sum();
            let limit = limit.amount * scopes.len() as f64;
            Bar {
                key: metric.name(),
                used,
                limit,
                pct: percent(used, limit),
                window: rule.window_name(zone),
                resets_at: rule.resets_at_ms(zone, self.now.wall_ms),
                metric: *metric,
                rolling_ms: rule.rolling_ms(),
            }
        };
        limits.max.iter().filter(|_| !scopes.is_empty()).map(bar).collect()
    }
}

fn distinct(scopes: impl Iterator<Item = Scope>) -> Vec<Scope> {
    let mut all: Vec<Scope> = scopes.collect();
    all.sort_unstable();
    all.dedup();
    all
}
