//! One key of a provider, examined: is it let in, which models are there, do they answer. For `freeway provider verify`,
//! the probe of the page, and the passes over all keys.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::client::Client;
use super::probe::{self, Answer};
use crate::base::clock;
use crate::base::redact::Redactor;
use crate::base::text::truncate;
use crate::catalog::discovery::{self, DiscoveredModel};
use crate::catalog::provider::{Key, Metric, Model, ModelSource, Provider, Standing};
use crate::route::health::KeyHealth;
use crate::route::outcome::{Circumstances, Class, End, Outcome, Signal, classify};
use crate::wire::exchange::Fault;
use crate::wire::upstream_error;

/// As much of an upstream's error as is shown.
const ERROR_SHOWN_BYTES: usize = 200;

/// What an examination may ask of models.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub models_max: usize,
    /// Models asked at once.
    pub at_once: usize,
    /// Models whose turn comes later are not asked.
    pub time: Duration,
}

/// What was found out with one key.
#[derive(Clone, Debug)]
pub struct Examined {
    pub provider_id: String,
    pub key_id: String,
    pub masked: String,
    pub source: String,
    pub wall_ms: u64,
    /// When it began, on the monotonic clock.
    pub began_ms: u64,
    pub took_ms: u64,
    pub health: KeyHealth,
    /// Whether the provider answered at all; `None` when nobody was asked.
    pub reachable: Option<bool>,
    pub discovered: Vec<DiscoveredModel>,
    /// What the model list was answered with, when it was asked for.
    pub list_status: Option<u16>,
    /// Where the ids of a list stand that its file does not understand.
    pub list_path: Option<&'static str>,
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
    /// Limits that the answer's headers tell.
    pub observed: Vec<(Metric, f64)>,
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
        let listed = probe::list(self.client, self.provider, self.key);
        let is_list = listed.is_some();
        self.judged(listed.or_else(|| self.ask_first_model()), is_list)
    }

    /// Asks the first model, and not for the list, which some providers show to everybody. One request.
    pub fn ask_model(&self) -> Examined {
        self.judged(self.ask_first_model(), false)
    }

    fn ask_first_model(&self) -> Option<Result<Answer, Fault>> {
        let first = self.provider.models.iter().find(|model| model.enabled)?;
        Some(probe::try_model(self.client, self.provider, first, self.key))
    }

    fn judged(&self, answered: Option<Result<Answer, Fault>>, is_list: bool) -> Examined {
        let mut found = self.nothing_yet();
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
                found.list_status = is_list.then_some(answer.status);
                if found.health != KeyHealth::Healthy {
                    found.errors.push(format!("{}: {}", answer.status, self.error_text(&answer.body)));
                } else if is_list {
                    match probe::models_of(self.provider, &answer) {
                        Ok(models) => found.discovered = models,
                        Err(error) => {
                            found.list_path = discovery::path_of(&answer.body);
                            found.errors.push(error);
                        }
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
                observed: Vec::new(),
            })
            .collect();
        found
    }

    /// The report of a key that was not asked.
    pub fn nothing_yet(&self) -> Examined {
        let now = clock::now();
        Examined {
            provider_id: self.provider.id.to_string(),
            key_id: self.key.id.to_string(),
            masked: self.key.masked.clone(),
            source: self.key.source.clone(),
            wall_ms: now.wall_ms,
            began_ms: now.mono_ms,
            took_ms: 0,
            health: KeyHealth::Unknown,
            reachable: None,
            discovered: Vec::new(),
            list_status: None,
            list_path: None,
            models: Vec::new(),
            observed: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    fn health(&self, answer: &Answer) -> KeyHealth {
        if (200..300).contains(&answer.status) {
            return KeyHealth::Healthy;
        }
        self.class(answer).map_or(KeyHealth::Unknown, KeyHealth::of_class)
    }

    /// Judged as an attempt is, so that a provider's own way of refusing is understood here, too.
    fn class(&self, answer: &Answer) -> Option<Class> {
        let end = End::Status { status: answer.status, headers: &answer.headers, body: &answer.body };
        let signal = Signal {
            provider: self.provider,
            prompt_tokens: 0,
            circumstances: Circumstances::default(),
            end,
        };
        match classify(&signal, clock::now()) {
            Outcome::Failed(failure) => Some(failure.class),
            Outcome::Served { .. } | Outcome::ClientLeft { .. } => None,
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
        let models = self.askable(found);
        self.try_all(&models, found, extent);
    }

    /// Models that may be asked: the declared ones, and behind them the discovered ones that cost nothing.
    pub fn askable(&self, found: &Examined) -> Vec<Model> {
        let known = |id: &str| self.provider.models.iter().any(|model| *model.id == *id);
        let new = found.discovered.iter().filter(|model| !known(&model.id));
        let new = new.map(|model| discovery::model(self.provider, model, self.provider.slot));
        let asked = |model: &Model| model.source == ModelSource::Declared || model.standing == Standing::Free;
        self.provider.models.iter().cloned().chain(new).filter(asked).collect()
    }

    /// Asks these models, a few at a time.
    pub fn try_all(&self, models: &[Model], found: &mut Examined, extent: Extent) {
        let usable = [KeyHealth::Healthy, KeyHealth::Limited, KeyHealth::Unknown].contains(&found.health);
        if !usable || models.is_empty() {
            return;
        }
        let models = &models[..models.len().min(extent.models_max)];
        let (next, ends) = (AtomicUsize::new(0), clock::instant() + extent.time);
        let work = || {
            let mut done: Vec<(usize, Tried)> = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(model) = models.get(i).filter(|_| clock::instant() < ends) else { return done };
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
                Tried { id, status: "error", took_ms: None, error, discovered, observed: Vec::new() }
            }
            Ok(answer) => {
                let served = (200..300).contains(&answer.status);
                let status = match self.class(&answer).filter(|_| !served) {
                    None => "ok",
                    Some(Class::ModelMissing) => "unknown-model",
                    Some(Class::BadKey | Class::Forbidden) => "forbidden",
                    Some(Class::RateLimited | Class::QuotaSpent) => "rate-limited",
                    // It would serve a better question.
                    Some(Class::BadRequest | Class::Policy | Class::TooLong) => "exists",
                    Some(_) => "error",
                };
                let observed = probe::observed_limits(&answer.headers);
                let error =
                    (status != "ok").then(|| format!("{}: {}", answer.status, self.error_text(&answer.body)));
                Tried { id, status, took_ms: Some(answer.took_ms), error, discovered, observed }
            }
        }
    }
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
