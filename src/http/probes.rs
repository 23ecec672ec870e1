//! Questions to providers that the owner asks: one provider probed, or all keys checked. They are upstream calls, so
//! they take a worker's place.
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::answer::{Answer, Responder};
use super::change::{SMALL_BYTES_MAX, flag, only, spoken_change};
use super::conn::{Admission, Next};
use super::overrides::{decoded, known_provider};
use super::routes::Visit;
use crate::base::clock;
use crate::catalog::load::Snapshot;
use crate::catalog::provider::{Key, Provider};
use crate::health;
use crate::relay::gateway::Gateway;
use crate::upstream::examine::{Extent, Lab};
use crate::wire::error::ApiError;

/// What a deep probe may ask of models.
const VALIDATION: Extent = Extent { models_max: 25, at_once: 3, time: Duration::from_secs(60) };
/// A probe that takes longer leaves the other keys of the pool out, and says so.
const PROBE_MAX: Duration = Duration::from_secs(90);

/// `POST /api/providers/{id}/probe {validate?}`: every key of a provider, one after the other.
pub fn probe(visit: Visit<'_>) -> Admission {
    let gateway = Arc::clone(visit.gateway);
    let id = decoded(visit.rest);
    spoken_change(visit, move |members| {
        only(&members, &["validate"])?;
        let validate = flag(&members, "validate")?.unwrap_or(false);
        let (id, snapshot) = (id?, gateway.snapshot());
        known_provider(&snapshot, &id)?;
        let provider = snapshot.catalog.providers.iter().find(|provider| *provider.id == *id);
        if let Some(problem) = provider.and_then(|provider| provider.config_error()) {
            return Err(ApiError::new(400, "not_configured", format!("{id}: {problem}")));
        }
        Ok(Next::Work(Box::new(move |responder| {
            let results = probe_keys(&gateway, &snapshot, &id, validate, &responder);
            let body = json!({"id": id, "validated": validate, "results": results});
            answer(responder, &body);
        })))
    })
}

fn probe_keys(
    gateway: &Gateway,
    snapshot: &Snapshot,
    id: &str,
    validate: bool,
    responder: &Responder,
) -> Vec<Value> {
    let ends = clock::instant() + PROBE_MAX;
    let provider = snapshot.catalog.providers.iter().find(|provider| *provider.id == *id);
    let mut results = Vec::new();
    for (provider, key) in
        provider.iter().flat_map(|provider| provider.keys.iter().map(move |key| (*provider, key)))
    {
        let lab = Lab { client: &gateway.client, redactor: &snapshot.redactor, provider, key };
        if responder.is_abandoned() {
            break;
        }
        if clock::instant() >= ends {
            let mut left_out = lab.nothing_yet();
            left_out.errors.push("not asked: the probe took too long already; ask again".into());
            results.push(left_out.to_json());
            continue;
        }
        let mut found = lab.ask();
        if validate {
            lab.try_models(&mut found, VALIDATION);
        }
        let asked = found.models.iter().filter(|tried| tried.was_asked());
        for model in asked.filter_map(|tried| provider.models.iter().find(|model| *model.id == *tried.id)) {
            health::meter(gateway, provider, key, model);
        }
        health::note(gateway, snapshot, provider, key, &found);
        results.push(found.to_json());
    }
    gateway.turns.changed("health");
    results
}

fn answer(responder: Responder, body: &Value) {
    // A client that has left does not miss it.
    drop(responder.whole(&Answer::json(200, body.to_string().into_bytes())));
}

/// `POST /api/keyhealth`: checks all keys now, whatever the body says. While a pass is under way, what is known already
/// is told.
pub fn check_keys(visit: Visit<'_>) -> Admission {
    let gateway = Arc::clone(visit.gateway);
    let check = move |responder: Responder| {
        if responder.is_abandoned() {
            return;
        }
        health::pass(&gateway);
        let report = KeyReport::of(&gateway);
        answer(responder, &json!(report));
    };
    Admission::Body(visit.terms(SMALL_BYTES_MAX), Box::new(|_| Next::Work(Box::new(check))))
}

/// What is known of every key that is worth a question.
#[derive(Debug, Serialize)]
pub struct KeyReport {
    /// When the last pass ended, in milliseconds since 1970; `None` before the first.
    at: Option<u64>,
    running: bool,
    keys: Vec<KeyRow>,
    /// Those that the owner has something to do about.
    pub actionable: Vec<KeyRow>,
}

/// One key of the report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyRow {
    pub provider_id: String,
    key_id: String,
    pub masked: String,
    pub verdict: &'static str,
    checked_at: Option<u64>,
    ms: Option<u64>,
    reachable: Option<bool>,
    pub detail: Option<String>,
    #[serde(skip)]
    actionable: bool,
}

impl KeyReport {
    /// The report of now.
    pub fn of(gateway: &Gateway) -> KeyReport {
        let (snapshot, now) = (gateway.snapshot(), clock::now());
        let live = gateway.live.lock();
        let row = |(provider, key): (&Provider, &Key)| {
            let bench = live.bench_of_key(provider, key, now);
            let verdict = live.health_of_key(provider, key, bench.as_ref(), now);
            let check = live.checks.of(key.slot);
            KeyRow {
                provider_id: provider.id.to_string(),
                key_id: key.id.to_string(),
                masked: key.masked.clone(),
                verdict: verdict.name(),
                checked_at: check.map(|check| check.at_wall_ms),
                ms: check.map(|check| check.took_ms),
                reachable: check.and_then(|check| check.reachable),
                detail: check.and_then(|check| check.detail.clone()),
                actionable: verdict.is_actionable(),
            }
        };
        let keys: Vec<KeyRow> = health::keys(&snapshot).map(row).collect();
        drop(live);
        let actionable = keys.iter().filter(|row| row.actionable).cloned().collect();
        let (at, running) = gateway.last_check();
        KeyReport { at, running, keys, actionable }
    }
}
