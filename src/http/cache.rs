//! The owner's view of the answers that are kept.
use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::Answer;
use super::conn::Admission;
use super::routes::Visit;
use crate::cache::exact::Entry;
use crate::cache::key::Key;
use crate::catalog::settings::CacheMode;
use crate::relay::alike::Questions;
use crate::relay::answers::{self, Answers};
use crate::store::shelf::Body;

/// Answers that the view lists.
const RECENT_MAX: usize = 25;

/// `GET /api/cache`.
pub fn view(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let settings = &snapshot.settings.cache;
    let answers = &visit.gateway.answers;
    answers.unpack(visit.gateway);
    let (open, members) = answers.flights.load();
    let body = json!({
        "enabled": settings.mode != CacheMode::Off,
        "mode": settings.mode.name(),
        "scope": settings.scope.name(),
        "ttlMs": settings.ttl_ms,
        "maxEntries": settings.max_entries,
        "maxBytes": settings.max_bytes,
        "maxEntryBytes": settings.max_entry_bytes,
        "exact": exact(answers),
        "flights": {"open": open, "members": members},
        "semantic": snapshot.settings.semantic.enabled.then(|| semantic(&answers.questions)),
        "threshold": snapshot.settings.semantic.enabled.then_some(snapshot.settings.semantic.threshold),
        "recent": recent(answers, settings.ttl_ms),
    });
    visit.answer(Answer::json(200, body.to_string().into_bytes()))
}

fn exact(answers: &Answers) -> Value {
    let exact = answers.exact.lock();
    let counts = &exact.counts;
    json!({
        "entries": exact.len(),
        "bytes": exact.bytes(),
        "hits": counts.hits,
        "misses": counts.misses,
        "joined": counts.joined,
        "stored": counts.stored,
        "evicted": counts.evicted,
        "tokensSaved": counts.tokens_saved,
        "hitRate": counts.hit_rate(),
    })
}

fn semantic(questions: &Questions) -> Value {
    let figures = questions.figures();
    let all = figures.hits + figures.misses;
    json!({
        "entries": figures.entries,
        "hits": figures.hits,
        "misses": figures.misses,
        "hitRate": if all == 0 { 0.0 } else { figures.hits as f64 / all as f64 },
        "dims": figures.dimensions,
        "bytes": figures.bytes,
    })
}

/// The answers that were used last.
fn recent(answers: &Answers, ttl_ms: u64) -> Vec<Value> {
    let exact = answers.exact.lock();
    let latest: Vec<_> =
        exact.latest().take(RECENT_MAX).map(|(place, entry)| (place.key, entry.clone())).collect();
    drop(exact);
    let view = |(key, Entry { facts, bytes, hits, hit_ms, .. }): (Key, Entry<Arc<Body>>)| {
        json!({
            "key": key.short(),
            "providerId": facts.who.provider,
            "modelId": facts.who.model,
            "kind": if facts.embeddings { "embeddings" } else { "chat" },
            "tokensIn": facts.prompt_tokens,
            "tokensOut": facts.output_tokens,
            "bytes": bytes,
            "createdAt": facts.made_ms,
            "expiresAt": facts.made_ms.saturating_add(ttl_ms),
            "lastHitAt": hit_ms,
            "hits": hits,
        })
    };
    latest.into_iter().map(view).collect()
}

/// `DELETE /api/cache`: forgets all answers, and what was counted of them.
pub fn clear(visit: Visit<'_>) -> Admission {
    let removed = answers::clear(visit.gateway);
    visit.answer(Answer::json(200, json!({"ok": true, "removed": removed}).to_string().into_bytes()))
}
