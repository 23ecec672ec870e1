//! One key of a provider, examined: is it let in, which models are there, do they answer. For `freeway provider verify`,
//! the probe of the page, and the passes over all keys.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value, json};

use super::client::Client;
use super::probe::{self, Answer};
use crate::base::clock;
use crate::base::redact::Redactor;
use crate::base::text::truncate;
use crate::catalog::discovery::DiscoveredModel;
use crate::catalog::provider::{Caps, Key, Metric, Model, ModelSource, Provider};
use crate::route::health::KeyHealth;
use crate::route::outcome::{Circumstances, End, Outcome, Signal, classify};
use crate::wire::upstream_error;

/// As much of an upstream's error as is shown.
const ERROR_SHOWN_BYTES: usize = 200;

/// What an examination may ask of models.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub models_max: usize,
    /// Models asked at once.
    pub at_once: usize,
}

/// What was found out with one key.
#[derive(Clone, Debug)]
pub struct Examined {
    pub provider_id: String,
    pub key_id: String,
    pub masked: String,
    pub source: String,
    pub wall_ms: u64,
    pub took_ms: u64,
    pub health: KeyHealth,
    /// Whether the provider answered at all; `None` when nobody was asked.
    pub reachable: Option<bool>,
    pub discovered: Vec<DiscoveredModel>,
    pub models: Vec<Tried>,
    pub observed: BTreeMap<Metric, f64>,
    /// Redacted.
    pub errors: Vec<String>,
}

/// What was found out of one model.
#[derive(Clone, Debug)]
pub struct Tried {
    pub id: String,
    pub status: &'static str,
    pub took_ms: Option<u64>,
    pub error: Option<String>,
    /// Whether the provider's own list has it.
    pub discovered: bool,
}

/// The status of a model that was not asked.
const UNDISCOVERED: &str = "undiscovered";

/// With what a key is examined.
#[derive(Clone, Copy)]
pub struct Lab<'a> {
    pub client: &'a Client,
    pub redactor: &'a Redactor,
    pub provider: &'a Provider,
    pub key: &'a Key,
}

impl Lab<'_> {
    /// Asks for the model list; where there is none, asks the first model, so that the key is tried all the same. One
    /// request.
    pub fn ask(&self) -> Examined {
        let mut found = self.nothing_yet();
        let listed = probe::list(self.client, self.provider, self.key);
        let is_list = listed.is_some();
        let first = || self.provider.models.iter().find(|model| model.enabled);
        let answered = listed
            .or_else(|| first().map(|model| probe::try_model(self.client, self.provider, model, self.key)));
        match answered {
            None => found.errors.push("nothing to ask: no model list and no models".into()),
            Some(Err(fault)) => {
                found.reachable = Some(false);
                found.health = KeyHealth::Unreachable;
                found.errors.push(self.redactor.redact(&fault.message).into_owned());
            }
            Some(Ok(answer)) => {
                found.reachable = Some(true);
                found.took_ms = answer.took_ms;
                found.health = self.health(&answer);
                found.observed = probe::observed_limits(&answer.headers).into_iter().collect();
                if found.health != KeyHealth::Healthy {
                    found.errors.push(format!("{}: {}", answer.status, self.error_text(&answer.body)));
                } else if is_list {
                    match probe::models_of(self.provider, &answer) {
                        Ok(models) => found.discovered = models,
                        Err(error) => found.errors.push(error),
                    }
                }
            }
        }
        let listed = |id: &str| found.discovered.iter().any(|model| model.id == id);
        let declared = self.provider.models.iter().filter(|model| model.source == ModelSource::Declared);
        found.models = declared
            .map(|model| Tried {
                id: model.id.to_string(),
                status: UNDISCOVERED,
                took_ms: None,
                error: None,
                discovered: listed(&model.id),
            })
            .collect();
        found
    }

    /// The report of a key that was not asked.
    pub fn nothing_yet(&self) -> Examined {
        Examined {
            provider_id: self.provider.id.to_string(),
            key_id: self.key.id.to_string(),
            masked: self.key.masked.clone(),
            source: self.key.source.clone(),
            wall_ms: clock::now().wall_ms,
            took_ms: 0,
            health: KeyHealth::Unknown,
            reachable: None,
            discovered: Vec::new(),
            models: Vec::new(),
            observed: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    /// Judged as an attempt is, so that a provider's own way of refusing a key is understood here, too.
    fn health(&self, answer: &Answer) -> KeyHealth {
        if (200..300).contains(&answer.status) {
            return KeyHealth::Healthy;
        }
        let end = End::Status { status: answer.status, headers: &answer.headers, body: &answer.body };
        let signal = Signal {
            provider: self.provider,
            prompt_tokens: 0,
            circumstances: Circumstances::default(),
            end,
        };
        match classify(&signal, clock::now()) {
            Outcome::Failed(failure) => KeyHealth::of_class(failure.class),
            Outcome::Served { .. } | Outcome::ClientLeft { .. } => KeyHealth::Unknown,
        }
    }

    /// What an upstream says when it refuses, on one line.
    fn error_text(&self, body: &[u8]) -> String {
        let message = upstream_error::read(body).message;
        truncate(&self.redactor.redact(&message), ERROR_SHOWN_BYTES).to_owned()
    }

    /// Asks every declared model, and the discovered ones behind them, a few at a time; nobody when the key is of no
    /// use.
    pub fn try_models(&self, found: &mut Examined, extent: Extent) {
        let usable = [KeyHealth::Healthy, KeyHealth::Limited, KeyHealth::Unknown].contains(&found.health);
        if !usable {
            return;
        }
        let mut models: Vec<Model> = self.provider.models.clone();
        if let Some(pattern) = models.first().cloned() {
            let known = |id: &str| self.provider.models.iter().any(|model| *model.id == *id);
            let new = found.discovered.iter().filter(|model| !known(&model.id));
            models.extend(new.map(|model| as_model(model, &pattern)));
        }
        models.truncate(extent.models_max);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done: Vec<(usize, Tried)> = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(model) = models.get(i) else { return done };
                let listed = found.discovered.iter().any(|known| known.id == *model.id);
                done.push((i, self.try_one(model, listed)));
            }
        };
        let mut all: Vec<(usize, Tried)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..extent.at_once).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
        });
        all.sort_by_key(|(i, _)| *i);
        found.models = all.into_iter().map(|(_, tried)| tried).collect();
    }

    fn try_one(&self, model: &Model, discovered: bool) -> Tried {
        let id = model.id.to_string();
        match probe::try_model(self.client, self.provider, model, self.key) {
            Err(fault) => {
                let error = Some(self.redactor.redact(&fault.message).into_owned());
                Tried { id, status: "error", took_ms: None, error, discovered }
            }
            Ok(answer) => {
                let status = match answer.status {
                    200..=299 => "ok",
                    400 | 422 => "exists",
                    404 | 410 => "unknown-model",
                    401 | 403 => "forbidden",
                    429 => "rate-limited",
                    _ => "error",
                };
                let error =
                    (status != "ok").then(|| format!("{}: {}", answer.status, self.error_text(&answer.body)));
                Tried { id, status, took_ms: Some(answer.took_ms), error, discovered }
            }
        }
    }
}

/// A discovered model in the form that a probe takes; only its id and its kind matter.
fn as_model(found: &DiscoveredModel, pattern: &Model) -> Model {
    let caps = found.caps.iter().filter_map(|name| Caps::by_name(name)).fold(Caps::default(), Caps::with);
    Model { id: found.id.as_str().into(), caps, source: ModelSource::Discovered, ..pattern.clone() }
}

impl Tried {
    /// Whether it was asked.
    pub fn was_asked(&self) -> bool {
        self.status != UNDISCOVERED
    }
}

impl Examined {
    /// As the API and `verify --json` have it.
    pub fn to_json(&self) -> Value {
        let model = |model: &Tried| {
            json!({
                "id": model.id, "status": model.status, "ms": model.took_ms, "error": model.error,
                "discovered": model.discovered,
            })
        };
        let observed: Map<String, Value> =
            self.observed.iter().map(|(metric, amount)| (metric.name().to_owned(), json!(amount))).collect();
        json!({
            "providerId": self.provider_id,
            "keyId": self.key_id,
            "keyMasked": self.masked,
            "at": self.wall_ms,
            "ms": self.took_ms,
            "auth": self.health.name(),
            "discovered": self.discovered.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(),
            "models": self.models.iter().map(model).collect::<Vec<_>>(),
            "observedLimits": observed,
            "errors": self.errors,
        })
    }
}
