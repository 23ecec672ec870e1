//! The owner's view of providers, their keys and quotas, and of who sits on the bench.
use serde_json::{Value, json};

use super::answer::Answer;
use super::conn::Admission;
use super::routes::Visit;
use super::views;
use crate::base::clock::{self, Now};
use crate::base::text::Redactor;
use crate::catalog::load::Snapshot;
use crate::catalog::overrides::Overrides;
use crate::catalog::provider::{
    Auth, Key, Limit, Limits, LimitsScope, Metric, Model, Provider, ResetZone, Slot,
};
use crate::catalog::slots::Slots;
use crate::quota::{Bench, Cause, Claim, Rule, Scope};
use crate::route::live::Live;
use crate::route::plan::key_scopes;
use crate::upstream::probe::KeyHealth;

/// What the views of one answer share.
struct Look<'a> {
    live: &'a Live,
    overrides: &'a Overrides,
    redactor: &'a Redactor,
    now: Now,
}

/// `GET /api/providers`.
pub fn list(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let live = visit.gateway.live.lock();
    let look =
        Look { live: &live, overrides: &snapshot.overrides, redactor: &snapshot.redactor, now: clock::now() };
    let providers: Vec<Value> =
        snapshot.catalog.providers.iter().map(|provider| look.provider(provider)).collect();
    drop(live);
    let body = json!({"providers": providers, "issues": views::issues(&snapshot.issues)});
    visit.answer(Answer::json(200, body.to_string().into_bytes()))
}

impl Look<'_> {
    fn provider(&self, provider: &Provider) -> Value {
        let cooldown_ms = self.cooldown_ms(&[Scope::Provider(provider.slot)]);
        // The stand-in for the key of a keyless provider is nobody's credential.
        let keys = provider.keys.iter().filter(|_| provider.auth != Auth::None);
        let mut view = json!({
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
            "limitsSource": provider.limits_source.name(),
            "verifiedOn": provider.verified_on,
            "envKeys": provider.env_keys,
            "authType": provider.auth.name(),
            "cooldownMsRemaining": cooldown_ms,
            "bars": self.bars(&provider.limits, &self.limited_scopes(provider), provider.reset_zone),
            "keys": keys.map(|key| self.key(provider, key)).collect::<Vec<_>>(),
            "models": provider.models.iter().map(|model| self.model(provider, model)).collect::<Vec<_>>(),
        });
        view["override"] = self.overrides.entry("providers", &provider.id);
        self.add_score(&mut view, provider.slot);
        view
    }

    fn key(&self, provider: &Provider, key: &Key) -> Value {
        let bench = self.bench_of(provider, key);
        let scopes: &[Scope] = match provider.limits_scope {
            LimitsScope::Key => &[Scope::Key(key.slot)],
            // Of a model or of the whole account: shown there.
            LimitsScope::Model | LimitsScope::Account => &[],
        };
        let mut view = json!({
            "id": key.id,
            "masked": key.masked,
            "source": key.source,
            "status": self.health(provider, key, bench.as_ref()).name(),
            "cooldownMsRemaining": bench.map_or(0, |bench| bench.remaining_ms(self.now)),
            "bars": self.bars(&provider.limits, scopes, provider.reset_zone),
        });
        self.add_score(&mut view, key.slot);
        view
    }

    /// What keeps the key from its soonest model; `None` while it may call any.
    fn bench_of(&self, provider: &Provider, key: &Key) -> Option<Bench> {
        let of = |scopes: &[Scope]| self.live.benches.blocking(scopes, self.now).copied();
        let mut soonest = of(&[Scope::Key(key.slot), Scope::Account(key.account)]);
        for (place, model) in provider.models.iter().filter(|model| model.enabled).enumerate() {
            let bench = of(&key_scopes(key, model.slot))?;
            if place == 0 || soonest.is_some_and(|known| bench.until_ms < known.until_ms) {
                soonest = Some(bench);
            }
        }
        soonest
    }

    fn health(&self, provider: &Provider, key: &Key, bench: Option<&Bench>) -> KeyHealth {
        match bench.map(|bench| bench.cause) {
            _ if !provider.enabled => KeyHealth::Disabled,
            Some(Cause::Auth) => KeyHealth::Invalid,
            Some(Cause::Forbidden) => KeyHealth::Forbidden,
            Some(_) => KeyHealth::Limited,
            None if self.cooldown_ms(&[Scope::Provider(provider.slot)]) > 0 => KeyHealth::Unreachable,
            None if self.live.scoreboard.of(key.slot).last_served() == Some(true) => KeyHealth::Healthy,
            None => KeyHealth::Unknown,
        }
    }

    fn model(&self, provider: &Provider, model: &Model) -> Value {
        json!({
            "id": model.id,
            "ref": model.reference,
            "label": model.label,
            "alias": model.aliases,
            "caps": model.caps.names().collect::<Vec<_>>(),
            "context": model.context,
            "enabled": model.enabled,
            "offReason": model.off_reason(),
            "source": model.source.name(),
            "cooldownMsRemaining": self.cooldown_ms(&[Scope::Model(model.slot)]),
            "bars": self.model_bars(provider, model),
        })
    }

    fn cooldown_ms(&self, scopes: &[Scope]) -> u64 {
        self.live.benches.blocking(scopes, self.now).map_or(0, |bench| bench.remaining_ms(self.now))
    }

    fn add_score(&self, view: &mut Value, slot: Slot) {
        let score = self.live.scoreboard.of(slot);
        view["ok"] = score.ok.into();
        view["fail"] = score.failed.into();
        view["latencyMs"] = (score.latency_ms.unwrap_or(0.0).round() as u64).into();
        view["lastError"] = score.last_error.map(|error| self.redactor.redact(&error).into_owned()).into();
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

    fn model_bars(&self, provider: &Provider, model: &Model) -> Vec<Value> {
        let scopes = distinct(provider.keys.iter().map(|key| match provider.limits_scope {
            LimitsScope::Account => Scope::AccountModel(key.account, model.slot),
            LimitsScope::Key | LimitsScope::Model => Scope::KeyModel(key.slot, model.slot),
        }));
        let mut bars = self.bars(&model.limits, &scopes, provider.reset_zone);
        if provider.limits_scope == LimitsScope::Model {
            bars.extend(self.bars(&provider.limits, &scopes, provider.reset_zone));
        }
        bars
    }

    /// How full each limit is, over all scopes that have it for themselves.
    fn bars(&self, limits: &Limits, scopes: &[Scope], zone: ResetZone) -> Vec<Value> {
        let bar = |(metric, limit): (&Metric, &Limit)| {
            let rule = Rule::of(*metric, *limit);
            let used: f64 = scopes
                .iter()
                .map(|scope| self.live.ledger.used(&Claim { scope: *scope, limits, zone }, *metric, self.now))
                .sum();
            let limit = limit.amount * scopes.len() as f64;
            json!({
                "key": metric.name(),
                "used": used,
                "limit": limit,
                "pct": (used / limit * 1000.0).round() / 10.0,
                "window": rule.window_name(zone),
                "resetsAt": rule.resets_at_ms(zone, self.now.wall_ms),
            })
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

/// `GET /api/benches`: who is not called for a while, and why.
pub fn benches(visit: Visit<'_>) -> Admission {
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
