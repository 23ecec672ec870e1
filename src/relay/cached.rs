//! Answers from memory: found for a request before anybody is called, given again, and kept when a new one was served.
//!
//! A look takes microseconds, so the reader's thread does it. What is kept lies behind one lock, which is never held
//! across anything that waits.
use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;

use super::gateway::Gateway;
use super::intake::Prepared;
use super::outlet::Outlet;
use super::record::{self, Facts};
use super::story::With;
use super::turn::{Operation, Turn};
use crate::base::clock;
use crate::base::text::fresh_id;
use crate::cache::exact::{self, Bounds, Entry, Exact, Place, Who};
use crate::cache::key::{self, Key, Scope};
use crate::cache::replay::{self, Fresh};
use crate::cache::rule;
use crate::catalog::settings::{CacheScope, CacheSettings};
use crate::catalog::{Catalog, ModelIx};
use crate::store::RowCache;
use crate::wire::error::ApiError;
use crate::wire::json;
use crate::wire::usage::{Usage, UsageTap};

/// The bytes of an answer.
pub type Content = Arc<[u8]>;

/// All answers that are kept.
#[derive(Debug, Default)]
pub struct Answers {
    pub exact: Mutex<Exact<Content>>,
}

/// An answer that was found for a request.
pub struct Hit {
    place: Place,
    entry: Entry<Content>,
    /// Who gave it, in the snapshot of the request.
    at: ModelIx,
    pub tier: RowCache,
}

/// What may be kept, by the settings.
pub fn bounds(settings: &CacheSettings) -> Bounds {
    Bounds { entries: settings.max_entries, bytes: settings.max_bytes, ttl_ms: settings.ttl_ms }
}

/// The key under which the answer to a request may be looked up and kept; `None` when it may not. Costs next to nothing
/// then.
pub fn key_of(prepared: &Prepared) -> Option<Key> {
    let (request, settings) = (&prepared.request, &prepared.snapshot.settings.cache);
    if !rule::is_cacheable(settings.mode, request.controls.cache, &request.body) {
        return None;
    }
    let scope = Scope {
        surface: match request.operation {
            Operation::Chat(_) => "chat",
            Operation::Embeddings(_) => "embeddings",
        },
        principal: (settings.scope == CacheScope::Key).then_some(request.principal),
        ignore: &settings.ignore,
    };
    Some(key::of(&request.body, &scope))
}

impl Answers {
    /// The answer that is kept under `key`, if it came from a model that the request could be served by now.
    pub fn find(&self, prepared: &Prepared, key: &Key) -> Option<Hit> {
        let Prepared { snapshot, resolution, .. } = prepared;
        let at = |who: &Who| at_of(&snapshot.catalog, &resolution.models, who);
        let bounds = bounds(&snapshot.settings.cache);
        let found = self.exact.lock().find(key, |who| at(who).is_some(), &bounds, clock::now().wall_ms);
        let (place, entry) = found?;
        let at = at(&entry.facts.who)?;
        Some(Hit { place, entry, at, tier: RowCache::Exact })
    }

    /// Keeps an answer that is about to be served, if it is worth keeping.
    pub fn keep(&self, settings: &CacheSettings, key: Key, facts: exact::Facts, body: &[u8]) {
        if body.len() > settings.max_entry_bytes || !(facts.embeddings || rule::is_keepable(body)) {
            return;
        }
        let kept = self.exact.lock().keep(key, facts, body.into(), body.len() as u64, &bounds(settings));
        // Taken apart only now, so that nobody waits for it.
        drop(kept);
    }
}

/// Which of `models` is `who`.
fn at_of(catalog: &Catalog, models: &[ModelIx], who: &Who) -> Option<ModelIx> {
    let is_who =
        |at: &&ModelIx| catalog.provider(**at).id == who.provider && catalog.model(**at).id == who.model;
    models.iter().find(is_who).copied()
}

/// An answer as it is kept: always with its usage, since the next who gets it may ask for it. `object` is what an
/// upstream said of it.
pub fn with_usage(body: &[u8], object: Option<Vec<u8>>, usage: Usage) -> Cow<'_, [u8]> {
    let end = body.iter().rposition(|byte| *byte == b'}');
    let (None, Some(end)) = (json::member(body, "usage").filter(|raw| *raw != b"null"), end) else {
        return Cow::Borrowed(body);
    };
    let object = object.unwrap_or_else(|| {
        let mut object = Vec::new();
        UsageTap::default().write(usage, &mut object);
        object
    });
    Cow::Owned([&body[..end], b",\"usage\":", &object, &body[end..]].concat())
}

/// Serves a kept answer. Nobody is called and nothing is metered.
pub fn serve(gateway: &Gateway, prepared: Prepared, hit: &Hit, outlet: Outlet) {
    let Prepared { request, snapshot, requested, route, .. } = prepared;
    let turn =
        Turn::new(request.operation, request.arrived, outlet, Arc::clone(&route), &snapshot.settings.stream);
    let facts = &hit.entry.facts;
    turn.note(|info| {
        info.provider = Some(Arc::clone(&facts.who.provider));
        info.model = Some(Arc::clone(&facts.who.model));
        info.cache = Some(hit.tier);
    });
    let now = clock::now();
    gateway.answers.exact.lock().hit(&hit.place, now.wall_ms);
    let usage =
        Usage { estimated: facts.estimated, ..Usage::estimate(facts.prompt_tokens, facts.output_tokens) };
    let record = || {
        let facts = Facts {
            id: &request.id,
            client: request.client.as_ref(),
            requested: &requested,
            resolution: &route,
            status: 200,
            error: None,
            failover: None,
            with: Some(With { at: hit.at, key: None }),
            usage,
            cache: Some(hit.tier),
            refit: None,
        };
        record::keep(gateway, &snapshot, &turn, &facts);
    };
    let fresh = Fresh { id: fresh_id("chatcmpl-"), created_s: now.wall_ms / 1000 };
    let body = &hit.entry.body;
    if !turn.streams() {
        record();
        turn.send_whole(replay::whole(body, &fresh), facts.estimated);
    } else if let Some(last) =
        replay::stream(body, &fresh, turn.include_usage(), &mut |frames| turn.commit(frames))
    {
        record();
        turn.finish(&last);
    } else {
        turn.refuse(&ApiError::new(500, "", "a kept answer could not be read"));
    }
}
