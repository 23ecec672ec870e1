//! `GET /api/providers`: each provider with its keys, quotas and models, as the owner sees it.
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::Answer;
use super::benches::{self, BenchView};
use super::conn::Admission;
use super::look::{self, Bar, Look, ScoreView};
use super::models::{ModelView, model_view};
use super::path;
use super::routes::Visit;
use super::views;
use crate::base::clock;
use crate::catalog::provider::{Auth, Key, ModelSource, Provider};
use crate::quota::Scope;
use crate::relay::gateway::Gateway;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProviderView<'a> {
    id: &'a str,
    label: &'a str,
    docs: Option<&'a str>,
    console: Option<&'a str>,
    signup: Option<&'a str>,
    notes: Option<&'a str>,
    /// What its terms say about use through a gateway.
    terms: Option<Value>,
    billing: &'static str,
    last_resort: bool,
    local: bool,
    keyless: bool,
    enabled: bool,
    configured: bool,
    /// Whether requests can go there as things are configured.
    usable: bool,
    config_error: Option<String>,
    /// Why it is not usable, as a word.
    reason: Option<&'static str>,
    /// What has to be set to configure it: all of the missing ones, or one of those for a key.
    variables: &'a [String],
    missing_vars: &'a [String],
    env_keys: &'a [String],
    auth_type: &'static str,
    #[serde(serialize_with = "look::plain")]
    priority: f64,
    base_url: &'a str,
    limits_source: &'static str,
    verified_on: Option<&'a str>,
    health: &'static str,
    #[serde(flatten)]
    score: ScoreView,
    first_token_ms: Option<u64>,
    whole_ms: Option<u64>,
    cooldown_ms_remaining: u64,
    bars: Vec<Bar>,
    keys: Vec<KeyView<'a>>,
    model_count: usize,
    models_enabled: usize,
    models_discovered: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<ModelView<'a>>>,
    benches: Vec<BenchView>,
    #[serde(rename = "override")]
    overridden: Value,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KeyView<'a> {
    id: &'a str,
    /// Its place in the pool.
    index: usize,
    masked: &'a str,
    /// The variable that it came from, or another place.
    source: &'a str,
    status: &'static str,
    #[serde(flatten)]
    score: ScoreView,
    checked_at: Option<u64>,
    check_ms: Option<u64>,
    check_detail: Option<String>,
    cooldown_ms_remaining: u64,
    bars: Vec<Bar>,
}

/// `GET /api/providers`; `?models=0` leaves the models out.
pub fn list(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let with_models = path::query_value(visit.head.query(), "models").is_none_or(|value| value != "0");
    let now = clock::now();
    let mut benches = benches::all(&visit, &snapshot, now);
    let mut providers: Vec<ProviderView<'_>> = Vec::with_capacity(snapshot.catalog.providers.len());
    for provider in &snapshot.catalog.providers {
        // The lock is taken anew for each, so that requests come in between.
        let live = visit.gateway.live.lock();
        let look = Look { live: &live, snapshot: &snapshot, now };
        let mut view = provider_view(&look, provider, with_models);
        drop(live);
        let (own, others) = benches.into_iter().partition(|bench| bench.provider_id == *provider.id);
        (view.benches, benches) = (own, others);
        providers.push(view);
    }
    let body = json!({"issues": views::issues(&snapshot.issues)}).to_string();
    // Models are many, and need no detour over generic values.
    let providers = serde_json::to_string(&providers).expect("views are plain data");
    let body = format!("{{\"providers\":{providers},{}", body.trim_start_matches('{'));
    visit.answer(Answer::json(200, body.into_bytes()))
}

/// How much of their limits the providers that can be used have used up.
pub fn quota(gateway: &Gateway) -> Vec<Value> {
    let snapshot = gateway.snapshot();
    let now = clock::now();
    let usable =
        snapshot.catalog.providers.iter().filter(|provider| provider.enabled && provider.configured());
    let view = |provider: &Provider| {
        // The lock is taken anew for each, so that requests come in between.
        let look = Look { live: &gateway.live.lock(), snapshot: &snapshot, now };
        json!({"id": provider.id, "label": provider.label, "bars": look.provider_bars(provider)})
    };
    usable.map(view).collect()
}

fn provider_view<'a>(look: &Look<'_>, provider: &'a Provider, with_models: bool) -> ProviderView<'a> {
    let (first_token_ms, whole_ms) = look.speed(provider.slot, None);
    let models = &provider.models;
    let reason = unusable_because(provider);
    // The stand-in for the key of a keyless provider is nobody's credential.
    let keys = provider.keys.iter().enumerate().filter(|_| provider.auth != Auth::None);
    ProviderView {
        id: &provider.id,
        label: &provider.label,
        docs: provider.docs.as_deref(),
        console: provider.console.as_deref(),
        signup: provider.signup.as_deref(),
        notes: provider.notes.as_deref(),
        terms: provider.terms.as_ref().map(|terms| json!({"verdict": terms.verdict, "note": terms.note})),
        billing: provider.billing.name(),
        last_resort: provider.last_resort,
        local: provider.local,
        keyless: provider.auth == Auth::None,
        enabled: provider.enabled,
        configured: provider.configured(),
        usable: reason.is_none(),
        config_error: provider.config_error(),
        reason,
        variables: if !provider.missing_vars.is_empty() {
            &provider.missing_vars
        } else if provider.keys.is_empty() {
            &provider.env_keys
        } else {
            &[]
        },
        missing_vars: &provider.missing_vars,
        env_keys: &provider.env_keys,
        auth_type: provider.auth.name(),
        priority: provider.priority,
        base_url: &provider.base_url,
        limits_source: provider.limits_source.name(),
        verified_on: provider.verified_on.as_deref(),
        health: look.live.health_of_provider(provider, look.now).name(),
        score: look.score(provider.slot),
        first_token_ms,
        whole_ms,
        cooldown_ms_remaining: look.cooldown_ms(Scope::Provider(provider.slot)),
        bars: look.provider_bars(provider),
        keys: keys.map(|(index, key)| key_view(look, provider, index, key)).collect(),
        model_count: models.len(),
        models_enabled: models.iter().filter(|model| model.enabled).count(),
        models_discovered: models.iter().filter(|model| model.source == ModelSource::Discovered).count(),
        models: with_models.then(|| models.iter().map(|model| model_view(look, provider, model)).collect()),
        benches: Vec::new(),
        overridden: look.snapshot.overrides.entry("providers", &provider.id),
    }
}

/// Why no request can go to a provider as things are configured, as a word.
pub fn unusable_because(provider: &Provider) -> Option<&'static str> {
    if !provider.enabled {
        Some("disabled")
    } else if !provider.missing_vars.is_empty() {
        Some("missing_variables")
    } else if provider.keys.is_empty() {
        Some("no_key")
    } else if provider.models.is_empty() {
        Some("no_models")
    } else {
        None
    }
}

fn key_view<'a>(look: &Look<'_>, provider: &Provider, index: usize, key: &'a Key) -> KeyView<'a> {
    let bench = look.live.bench_of_key(provider, key, look.now);
    let check = look.live.checks.of(key.slot);
    KeyView {
        id: &key.id,
        index,
        masked: &key.masked,
        source: &key.source,
        status: look.live.health_of_key(provider, key, bench.as_ref(), look.now).name(),
        score: look.score(key.slot),
        checked_at: check.map(|check| check.at_wall_ms),
        check_ms: check.map(|check| check.took_ms),
        check_detail: check.and_then(|check| check.detail.clone()),
        cooldown_ms_remaining: bench.map_or(0, |bench| bench.remaining_ms(look.now)),
        bars: look.key_bars(provider, key),
    }
}
