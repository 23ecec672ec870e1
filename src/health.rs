//! Passes over all provider keys: each is asked one small question, and what it says counts for routing and shows in the
//! views. On demand, soon after the start, and every few hours; one pass at a time.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::base::clock;
use crate::catalog::load::Snapshot;
use crate::catalog::provider::{Auth, Key, Model, Provider};
use crate::quota::{Cause, Claims, Scope, Spent, Term, Want};
use crate::relay::gateway::Gateway;
use crate::route::health::{Found, KeyHealth};
use crate::route::verdict::Policy;
use crate::upstream::examine::{Examined, Lab};

/// Providers asked at once; the keys of one are asked one after the other.
const PROVIDERS_AT_ONCE: usize = 4;
/// A pass that takes longer leaves the rest for the next one.
const PASS_MAX: Duration = Duration::from_secs(120);
/// What was found out about a key so long ago is as good as an answer of now.
const FRESH_MS: u64 = 5 * 60_000;
/// What a question to a model costs, as the counters are told.
const QUESTION_TOKENS: u64 = 8;
const ANSWER_TOKENS: u64 = 4;

/// The keys that are worth a question: of providers that are switched on and configured, real ones.
pub fn keys(snapshot: &Snapshot) -> impl Iterator<Item = (&Provider, &Key)> {
    let providers = snapshot.catalog.providers.iter();
    let asked =
        providers.filter(|provider| provider.enabled && provider.configured() && provider.auth != Auth::None);
    asked.flat_map(|provider| provider.keys.iter().map(move |key| (provider, key)))
}

/// Makes a pass, unless one is under way; false then.
pub fn pass(gateway: &Gateway) -> bool {
    if gateway.checking.swap(true, Ordering::AcqRel) {
        return false;
    }
    let passed = catch_unwind(AssertUnwindSafe(|| ask_all(gateway)));
    gateway.checked_at_ms.store(clock::now().wall_ms, Ordering::Release);
    gateway.checking.store(false, Ordering::Release);
    gateway.turns.changed("health");
    if passed.is_err() {
        log::error!("the pass over all keys failed; it is tried again");
    }
    true
}

/// Makes a pass on a thread of its own.
pub fn start(gateway: &Arc<Gateway>) {
    let gateway = Arc::clone(gateway);
    let run = move || {
        pass(&gateway);
    };
    if std::thread::Builder::new().name("health".into()).spawn(run).is_err() {
        log::warn!("no thread for a pass over all keys; it is tried again");
    }
}

fn ask_all(gateway: &Gateway) {
    let snapshot = gateway.snapshot();
    let mut providers: Vec<&Provider> = keys(&snapshot).map(|(provider, _)| provider).collect();
    providers.dedup_by_key(|provider| provider.slot);
    let ends = clock::instant() + PASS_MAX;
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(provider) = providers.get(next.fetch_add(1, Ordering::Relaxed)) {
            ask_keys(gateway, &snapshot, provider, ends);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..PROVIDERS_AT_ONCE.min(providers.len()) {
            scope.spawn(work);
        }
        work();
    });
}

fn ask_keys(gateway: &Gateway, snapshot: &Snapshot, provider: &Provider, ends: Instant) {
    for key in &provider.keys {
        if clock::instant() >= ends {
            return;
        }
        // Who is over a limit is known not to be refused, and is not to be asked more.
        let now = clock::now();
        let bench = gateway
            .live
            .lock()
            .benches
            .blocking(&[Scope::Key(key.slot), Scope::Account(key.account)], now)
            .copied();
        if bench.is_some_and(|bench| [Cause::RateLimit, Cause::Quota, Cause::Credit].contains(&bench.cause)) {
            continue;
        }
        let known = gateway.examined.lock().remove(&key.slot);
        if let Some(found) = known.filter(|known| now.wall_ms.abs_diff(known.wall_ms) <= FRESH_MS) {
            note(gateway, snapshot, provider, key, &found);
            continue;
        }
        let lab = Lab { client: &gateway.client, redactor: &snapshot.redactor, provider, key };
        // Some show their list to everybody: to a key that a model refused it proves nothing.
        let refused = bench.is_some_and(|bench| [Cause::Auth, Cause::Forbidden].contains(&bench.cause));
        let model = provider.models.iter().find(|model| model.enabled);
        let found = if refused && model.is_some() { lab.ask_model() } else { lab.ask() };
        if let Some(model) = model.filter(|_| refused || provider.models_endpoint.is_none()) {
            meter(gateway, provider, key, model);
        }
        note(gateway, snapshot, provider, key, &found);
    }
}

/// Counts a question to a model as the request that it is.
pub fn meter(gateway: &Gateway, provider: &Provider, key: &Key, model: &Model) {
    let now = clock::now();
    let claims = Claims::of_call(provider, key, model);
    let mut live = gateway.live.lock();
    let want = Want::of_call(&live.ledger, provider, model, QUESTION_TOKENS, Some(ANSWER_TOKENS), 1);
    let reservation = live.ledger.reserve_anyway(&claims, &want, now);
    let spent = Spent { prompt_tokens: QUESTION_TOKENS, output_tokens: ANSWER_TOKENS, ..Spent::default() };
    live.ledger.settle(reservation, spent, now);
}

/// Puts what an examination found to use: a refused key is benched, one that is let in again plays again.
pub fn note(gateway: &Gateway, snapshot: &Snapshot, provider: &Provider, key: &Key, found: &Examined) {
    let now = clock::now();
    // What happened since then is younger, and counts.
    let began_ms = found.began_ms;
    let scope = Scope::Key(key.slot);
    let mut live = gateway.live.lock();
    match found.health {
        KeyHealth::Invalid => {
            let steps = Policy::new(&snapshot.settings).steps(Cause::Auth);
            live.benches.put(scope, Cause::Auth, Term::Growing(steps), began_ms, now);
        }
        KeyHealth::Healthy => live.benches.succeeded(&[scope], began_ms, now),
        _ => {}
    }
    let result = Found {
        verdict: found.health,
        took_ms: found.took_ms,
        reachable: found.reachable,
        detail: found.errors.first().cloned(),
    };
    live.checked(key.slot, result, now);
    drop(live);
    if found.health.is_actionable() {
        log::warn!(
            "{}: key {} is {}: {}",
            provider.id,
            key.masked,
            found.health.name(),
            found.errors.join("; ")
        );
    }
}
