//! Answers from memory: found for a request before anybody is called, given again, and kept when a new one was served.
//!
//! A look takes microseconds, so the reader's thread does it. What is kept lies behind one lock, which is never held
//! across anything that waits.
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::flight::{Boarding, Flights, Landing, Member, Route, Shared};
use super::gateway::Gateway;
use super::hydrate::Session;
use super::intake::Prepared;
use super::outlet::Outlet;
use super::record::{self, Facts};
use super::story::{CLIENT_CLOSED, CLIENT_CLOSED_CODE, With};
use super::turn::{Last, Operation, Request, Turn};
use crate::base::clock;
use crate::base::text::fresh_id;
use crate::cache::exact::{self, Bounds, Entry, Exact, Place, Who};
use crate::cache::key::{self, Key, Scope};
use crate::cache::replay::{self, Fresh};
use crate::cache::rule;
use crate::catalog::load::Snapshot;
use crate::catalog::settings::{CacheScope, CacheSettings};
use crate::catalog::{Catalog, ModelIx};
use crate::store::RowCache;
use crate::upstream::cut::Cut;
use crate::wire::error::ApiError;
use crate::wire::json;
use crate::wire::usage::{Usage, UsageTap};

/// The bytes of an answer.
pub type Content = Arc<[u8]>;

/// All answers that are kept, and those that are being waited for.
#[derive(Debug, Default)]
pub struct Answers {
    pub exact: Mutex<Exact<Content>>,
    pub flights: Arc<Flights>,
}

/// An answer that was found for a request.
pub struct Hit {
    place: Place,
    entry: Entry<Content>,
    /// Who gave it, in the snapshot of the request.
    at: ModelIx,
    pub tier: RowCache,
}

impl Hit {
    /// The same for others who wait for it.
    pub fn shared(&self) -> Shared {
        Shared { facts: self.entry.facts.clone(), at: self.at, body: Arc::clone(&self.entry.body) }
    }
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

    /// Forgets all answers; how many those were.
    pub fn clear(&self) -> usize {
        self.exact.lock().clear()
    }

    /// Counts a request for which somebody has to be called.
    pub fn missed(&self) {
        self.exact.lock().counts.misses += 1;
    }

    /// A seat on the flight of identical requests, for one that found no answer.
    pub fn board(&self, prepared: &Prepared, key: Key) -> Boarding {
        let route = Route {
            key,
            requested: Arc::clone(&prepared.requested),
            controls: prepared.request.controls,
            snapshot: prepared.snapshot.id,
        };
        self.flights.board(route, &prepared.resolution.models)
    }

    /// Keeps an answer that is about to be served, if it is worth keeping.
    pub fn keep(&self, settings: &CacheSettings, key: Key, facts: exact::Facts, body: &Content) {
        if body.len() > settings.max_entry_bytes || !(facts.embeddings || rule::is_keepable(body)) {
            return;
        }
        let (content, bytes) = (Arc::clone(body), body.len() as u64);
        let kept = self.exact.lock().keep(key, facts, content, bytes, &bounds(settings));
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
    gateway.answers.exact.lock().hit(&hit.place, clock::now().wall_ms);
    let Entry { facts, body, .. } = &hit.entry;
    Replay::new(gateway, prepared, outlet).answer(facts, hit.at, body, hit.tier);
}

/// How often a waiting member looks whether its client is still there: nobody else does.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Waits for what an identical request gets, and gives the same. On the reader's thread. `cut` ends the wait when the
/// gateway stops.
pub fn follow(gateway: &Gateway, prepared: Prepared, member: Member, outlet: Outlet, cut: &Cut) {
    // The leader ends within its own budget. Only a stream that has begun may take longer, and that is worth no more
    // than this.
    let patience_ms = prepared.snapshot.settings.failover.budget_ms.saturating_mul(2);
    let replay = Replay::new(gateway, prepared, outlet);
    let turn = &replay.turn;
    let ends = clock::instant() + Duration::from_millis(patience_ms);
    let mut pulse = turn.first_keep_alive();
    loop {
        let until_pulse =
            if turn.streams() { pulse.saturating_duration_since(clock::instant()) } else { LOOK_EVERY };
        match member.wait(LOOK_EVERY.min(until_pulse)) {
            Some(Landing::Answer(Shared { facts, at, body })) => {
                gateway.answers.exact.lock().joined(&facts);
                return replay.answer(&facts, at, &body, RowCache::Exact);
            }
            Some(Landing::Error(error)) => return replay.refuse(&error),
            None if cut.is_cut() || turn.has_left() => {
                return replay.record(CLIENT_CLOSED, Some(CLIENT_CLOSED_CODE), None, None);
            }
            None if ends <= clock::instant() => {
                let message = "an identical request that this one waited for took too long; try again";
                return replay.refuse(&ApiError::new(504, "all_attempts_failed", message));
            }
            None if turn.streams() && pulse <= clock::instant() => {
                // The headers leave with it.
                turn.note(|info| info.cache = Some(RowCache::Exact));
                pulse = turn.keep_alive();
            }
            None => {}
        }
    }
}

/// A turn that is answered without a call of its own.
struct Replay<'g> {
    gateway: &'g Gateway,
    snapshot: Arc<Snapshot>,
    turn: Turn,
    id: String,
    client: Option<Arc<str>>,
    requested: Arc<str>,
    route: Arc<str>,
    session: Option<Session>,
}

impl Replay<'_> {
    fn new(gateway: &Gateway, prepared: Prepared, outlet: Outlet) -> Replay<'_> {
        let Prepared { request, snapshot, requested, route, session_id, session, .. } = prepared;
        let Request { id, client, body, operation, arrived, .. } = request;
        let turn = Turn::new(operation, arrived, outlet, Arc::clone(&route), &snapshot.settings.stream);
        turn.keep_preview(&body, &snapshot.settings.log);
        turn.note(|info| info.session = session_id);
        Replay { gateway, snapshot, turn, id, client, requested, route, session }
    }

    /// Gives an answer that `at` gave before, in the form that is asked for now.
    fn answer(&self, facts: &exact::Facts, at: ModelIx, body: &[u8], tier: RowCache) {
        let turn = &self.turn;
        turn.note(|info| {
            info.provider = Some(Arc::clone(&facts.who.provider));
            info.model = Some(Arc::clone(&facts.who.model));
            info.cache = Some(tier);
        });
        if let Some(session) = &self.session {
            session.keep(body);
        }
        let fresh = Fresh { id: fresh_id("chatcmpl-"), created_s: clock::now().wall_ms / 1000 };
        if !turn.streams() {
            let body = replay::whole(body, &fresh);
            turn.hear(&Last::Whole(&body));
            self.record(200, None, Some((facts, at)), Some(tier));
            turn.send_whole(body, facts.estimated);
        } else if let Some(last) =
            replay::stream(body, &fresh, turn.include_usage(), &mut |frames| turn.commit(frames))
        {
            turn.hear(&Last::Frames(&last));
            self.record(200, None, Some((facts, at)), Some(tier));
            turn.finish(&last);
        } else {
            self.refuse(&ApiError::new(
                500,
                "",
                "a kept answer could not be read; DELETE /api/cache forgets all",
            ));
        }
    }

    fn refuse(&self, error: &ApiError) {
        self.record(error.status, Some(&error.code), None, None);
        self.turn.refuse(error);
    }

    fn record(
        &self,
        status: u16,
        error: Option<&str>,
        answer: Option<(&exact::Facts, ModelIx)>,
        cache: Option<RowCache>,
    ) {
        let usage = answer.map(|(facts, _)| {
            let usage = Usage::estimate(facts.prompt_tokens, facts.output_tokens);
            Usage { estimated: facts.estimated, ..usage }
        });
        let facts = Facts {
            id: &self.id,
            client: self.client.as_ref(),
            requested: &self.requested,
            resolution: &self.route,
            status,
            error,
            failover: None,
            with: answer.map(|(_, at)| With { at, key: None }),
            usage: usage.unwrap_or_default(),
            cache,
            refit: None,
        };
        record::keep(self.gateway, &self.snapshot, &self.turn, &facts);
    }
}
