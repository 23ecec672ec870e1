//! Who is not called for a while: listed, and lifted.
use serde::Serialize;
use serde_json::json;

use super::answer::Answer;
use super::conn::Admission;
use super::routes::Visit;
use crate::base::clock::{self, Now};
use crate::catalog::load::Snapshot;
use crate::catalog::slots::Slots;
use crate::quota::{Bench, Scope};
use crate::wire::error::ApiError;

/// One bench, for the owner.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BenchView {
    pub id: u64,
    pub scope: &'static str,
    /// Whose it is: a provider, account, key or model by its own name.
    pub name: String,
    pub model: Option<String>,
    /// Masked.
    pub key: Option<String>,
    pub cause: &'static str,
    pub strikes: u32,
    pub remaining_ms: u64,
    /// The provider that it keeps from serving, wholly or in part.
    pub provider_id: String,
}

/// Every bench that holds now, those that end first at the front.
pub fn all(visit: &Visit<'_>, snapshot: &Snapshot, now: Now) -> Vec<BenchView> {
    let all = visit.gateway.live.lock().benches.list(now);
    visit
        .gateway
        .with_slots(|slots| all.iter().filter_map(|bench| bench_view(bench, slots, snapshot, now)).collect())
}

/// `GET /api/benches`: who is not called for a while, and why.
pub fn list(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let benches = all(&visit, &snapshot, clock::now());
    visit.answer(Answer::json(200, json!({"benches": benches}).to_string().into_bytes()))
}

/// `None` when it is about a key or a provider that was taken out: nobody would call that. If it comes back, so does the
/// bench.
fn bench_view(bench: &Bench, slots: &Slots, snapshot: &Snapshot, now: Now) -> Option<BenchView> {
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
        Scope::Key(slot) => ("key", name(slot), None, Some(masked(slot)?)),
        Scope::KeyModel(slot, model) => ("key and model", name(slot), Some(name(model)), Some(masked(slot)?)),
        Scope::Model(slot) => ("model", name(slot), Some(name(slot)), None),
    };
    // Ids of providers hold neither slashes nor colons; whatever is theirs has one of these behind the id.
    let provider_id = who.split(['/', ':']).next().unwrap_or_default().to_owned();
    snapshot.catalog.providers.iter().find(|provider| *provider.id == *provider_id)?;
    Some(BenchView {
        id: bench.id,
        scope,
        name: who,
        model,
        key,
        cause: bench.cause.name(),
        strikes: bench.strikes,
        remaining_ms: bench.remaining_ms(now),
        provider_id,
    })
}

/// `DELETE /api/benches` and `/api/benches/{id}`: lets everybody, or one, play again at once.
pub fn lift(visit: Visit<'_>) -> Admission {
    let lifted = {
        let benches = &mut visit.gateway.live.lock().benches;
        match visit.rest {
            "" => Some(benches.lift_all(clock::now())),
            id => id.parse().is_ok_and(|id| benches.lift(id)).then_some(1),
        }
    };
    if let Some(lifted) = lifted {
        // A bench that comes back after a restart would not be lifted.
        visit.gateway.store.save_soon();
        visit.gateway.turns.changed("benches");
        let body = json!({"ok": true, "lifted": lifted});
        return visit.answer(Answer::json(200, body.to_string().into_bytes()));
    }
    let message = "there is no bench of this id; GET /api/benches lists all of them";
    visit.answer(Answer::error(&ApiError::new(404, "not_found", message)))
}
