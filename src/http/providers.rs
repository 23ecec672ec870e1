//! The owner's view of providers, their keys and quotas, and of who sits on the bench.
use serde_json::{Value, json};

use super::answer::Answer;
use super::conn::Admission;
use super::routes::Visit;
use super::views;
use crate::base::clock::{self, Now};
use crate::catalog::load::Snapshot;
use crate::catalog::provider::{Auth, Key, LimitsScope, LimitsSource, Metric, Model, Provider, WindowKind};
use crate::catalog::slots::Slots;
use crate::quota::{Bench, Claim, Scope};
use crate::route::live::Live;

/// `GET /api/providers`.
pub fn list(visit: &Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let now = clock::now();
    let live = visit.gateway.live.lock();
    let providers: Vec<Value> =
        snapshot.catalog.providers.iter().map(|provider| one(provider, &live, now)).collect();
    drop(live);
    let body = json!({"providers": providers, "issues": views::issues(&snapshot.issues)});
    visit.answer(Answer::json(200, body.to_string().into_bytes()))
}

fn one(provider: &Provider, live: &Live, now: Now) -> Value {
    let bench = live.benches.blocking(&[Scope::Provider(provider.slot)], now);
    let account = provider.keys.first().map(|key| Scope::Account(key.account));
    let bars = match (provider.limits_scope, account) {
        (LimitsScope::Account, Some(scope)) => bars(provider, scope, live, now),
        _ => Vec::new(),
    };
    json!({
        "id": provider.id,
        "label": provider.label,
        "docs": provider.docs,
        "console": provider.console,
        "signup": provider.signup,
        "notes": provider.notes,
        "terms": provider.terms.as_ref().map(|terms| json!({"verdict": terms.verdict, "note": terms.note})),
        "enabled": provider.enabled,
        "configured": provider.configured(),
        "configError": provider.config_error(),
        "priority": provider.priority,
        "baseUrl": provider.base_url,
        "limitsSource": limits_source(provider.limits_source),
        "verifiedOn": provider.verified_on,
        "envKeys": provider.env_keys,
        "authType": auth_type(&provider.auth),
        "cooldownMsRemaining": bench.map_or(0, |bench| bench.remaining_ms(now)),
        "lastError": bench.map(|bench| bench.cause.name()),
        "bars": bars,
        "keys": provider.keys.iter().map(|key| key_view(provider, key, live, now)).collect::<Vec<_>>(),
        "models": provider.models.iter().map(|model| model_view(model, live, now)).collect::<Vec<_>>(),
    })
}

fn auth_type(auth: &Auth) -> &'static str {
    match auth {
        Auth::Bearer { .. } => "bearer",
        Auth::Header { .. } => "header",
        Auth::Query { .. } => "query",
        Auth::None => "none",
    }
}

fn limits_source(source: LimitsSource) -> &'static str {
    match source {
        LimitsSource::Docs => "docs",
        LimitsSource::Observed => "observed",
        LimitsSource::Unverified => "unverified",
    }
}

fn key_view(provider: &Provider, key: &Key, live: &Live, now: Now) -> Value {
    let bench = live.benches.blocking(&[Scope::Key(key.slot), Scope::Account(key.account)], now);
    let bars = match provider.limits_scope {
        LimitsScope::Key => bars(provider, Scope::Key(key.slot), live, now),
        // Of a model or an account: shown there.
        LimitsScope::Model | LimitsScope::Account => Vec::new(),
    };
    json!({
        "id": key.id,
        "masked": key.masked,
        "source": key.source,
        "status": bench.map_or("ok", |bench| bench.cause.name()),
        "cooldownMsRemaining": bench.map_or(0, |bench| bench.remaining_ms(now)),
        "lastError": bench.map(|bench| bench.cause.name()),
        "bars": bars,
    })
}

fn model_view(model: &Model, live: &Live, now: Now) -> Value {
    let bench = live.benches.blocking(&[Scope::Model(model.slot)], now);
    json!({
        "id": model.id,
        "ref": model.reference,
        "label": model.label,
        "alias": model.aliases,
        "caps": model.caps.names().collect::<Vec<_>>(),
        "context": model.context,
        "enabled": model.enabled,
        "offReason": model.off_reason(),
        "cooldownMsRemaining": bench.map_or(0, |bench| bench.remaining_ms(now)),
    })
}

/// How full each limit is.
fn bars(provider: &Provider, scope: Scope, live: &Live, now: Now) -> Vec<Value> {
    let claim = Claim { scope, limits: &provider.limits, zone: provider.reset_zone };
    let bar = |(metric, limit): (&Metric, &crate::catalog::provider::Limit)| {
        let used = live.ledger.used(&claim, *metric, now);
        json!({
            "key": metric.name(),
            "used": used,
            "limit": limit.amount,
            "pct": (used / limit.amount * 1000.0).round() / 10.0,
            "window": match limit.window {
                WindowKind::Rolling => "rolling",
                WindowKind::Calendar => "calendar",
            },
        })
    };
    provider.limits.max.iter().map(bar).collect()
}

/// `GET /api/benches`: who is not called for a while, and why.
pub fn benches(visit: &Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let now = clock::now();
    let all = visit.gateway.live.lock().benches.list(now);
    let benches: Vec<Value> = visit
        .gateway
        .with_slots(|slots| all.iter().map(|bench| bench_view(bench, slots, &snapshot, now)).collect());
    visit.answer(Answer::json(200, json!({"benches": benches}).to_string().into_bytes()))
}

fn bench_view(bench: &Bench, slots: &Slots, snapshot: &Snapshot, now: Now) -> Value {
    // Names of slots begin with their kind, which the scope says already.
    let name = |slot| slots.name(slot).split_once('/').map_or("", |(_, name)| name).to_owned();
    let masked = |slot| {
        let mut keys = snapshot.catalog.providers.iter().flat_map(|provider| &provider.keys);
        keys.find(|key| key.slot == slot).map(|key| key.masked.clone())
    };
    let (scope, who, model, key) = match bench.scope {
        Scope::Provider(slot) => ("provider", name(slot), None, None),
        Scope::Account(slot) => ("account", name(slot), None, None),
        Scope::AccountModel(slot, model) => ("account and model", name(slot), Some(name(model)), None),
        Scope::Key(slot) => ("key", name(slot), None, masked(slot)),
        Scope::KeyModel(slot, model) => ("key and model", name(slot), Some(name(model)), masked(slot)),
        Scope::Model(slot) => ("model", name(slot), Some(name(slot)), None),
    };
    json!({
        "id": bench.id,
        "scope": scope,
        "name": who,
        "model": model,
        "key": key,
        "cause": bench.cause.name(),
        "strikes": bench.strikes,
        "remainingMs": bench.remaining_ms(now),
    })
}
