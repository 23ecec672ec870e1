//! The answers that are kept: found for a request before anybody is called, and taken in when a new one was served.
//!
//! What is known of them lies in memory behind one lock, which is never held across anything that waits; the bytes lie
//! on the shelf. What earlier runs left there is taken back when it is first asked for, so that a start costs nothing.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::alike::Questions;
use super::flight::{Boarding, Flights, Route, Shared};
use super::gateway::Gateway;
use super::intake::Prepared;
use super::turn::Operation;
use crate::base::clock;
use crate::cache::exact::{Bounds, Exact, Facts, Place, Who};
use crate::cache::key::{self, Key, Scope};
use crate::cache::rule;
use crate::catalog::settings::{CacheScope, CacheSettings, Settings};
use crate::catalog::{Catalog, ModelIx};
use crate::store::RowCache;
use crate::store::shelf::{Body, Item, Kind};

/// How long a look waits for what earlier runs left. It takes milliseconds unless the disk is busy.
const UNPACK_WAIT: Duration = Duration::from_secs(2);

/// All answers that are kept, and those that are being waited for.
#[derive(Debug, Default)]
pub struct Answers {
    pub exact: Mutex<Exact<Arc<Body>>>,
    pub flights: Arc<Flights>,
    /// What was asked for some of them, to be found by its meaning.
    pub questions: Questions,
    /// What earlier runs left was asked for.
    asked: AtomicBool,
    /// It is here.
    unpacked: Mutex<bool>,
    arrived: Condvar,
}

/// An answer that was found for a request.
pub struct Hit {
    pub place: Place,
    pub facts: Facts,
    /// Who gave it, in the snapshot of the request.
    pub at: ModelIx,
    pub body: Arc<[u8]>,
    /// Which tier found it.
    pub tier: RowCache,
    /// How alike the question is that it answered, when that was another.
    pub score: Option<f32>,
}

impl Hit {
    /// The same as the answer to a question that was asked in other words.
    pub fn alike(self, score: f32) -> Hit {
        Hit { tier: RowCache::Semantic, score: Some(score), ..self }
    }

    /// The same for others who wait for it.
    pub fn shared(&self) -> Shared {
        let (tier, score) = (self.tier, self.score);
        Shared { facts: self.facts.clone(), at: self.at, body: Arc::clone(&self.body), tier, score }
    }
}

/// The key under which the answer to a request may be looked up and kept; `None` when it may not. Costs next to nothing
/// then.
pub fn key_of(prepared: &Prepared) -> Option<Key> {
    let (request, settings) = (&prepared.request, &prepared.snapshot.settings.cache);
    if !rule::is_cacheable(settings.mode, request.controls.cache, &request.body) {
        return None;
    }
    let surface = match request.operation {
        Operation::Chat(_) => "chat",
        Operation::Embeddings(_) => "embeddings",
    };
    Some(key::of(&request.body, &scope_of(prepared, surface)))
}

/// What the keys of a request are made of beside its body.
pub fn scope_of<'p>(prepared: &'p Prepared, surface: &'p str) -> Scope<'p> {
    let settings = &prepared.snapshot.settings.cache;
    let principal = (settings.scope == CacheScope::Key).then_some(prepared.request.principal);
    Scope { surface, principal, ignore: &settings.ignore }
}

/// The answer that is kept under `key`, if it came from a model that the request could be served by now. Reads the disk,
/// where the system does not have the bytes in memory.
pub fn find(gateway: &Gateway, prepared: &Prepared, key: &Key) -> Option<Hit> {
    let Prepared { snapshot, resolution, .. } = prepared;
    let answers = &gateway.answers;
    answers.unpack(gateway);
    let at = |who: &Who| at_of(&snapshot.catalog, &resolution.models, who);
    let bounds = bounds(&snapshot.settings.cache);
    let found = answers.exact.lock().find(key, |who| at(who).is_some(), &bounds, clock::now().wall_ms);
    let (place, entry) = found?;
    let at = at(&entry.facts.who)?;
    let Some(body) = entry.body.read() else {
        answers.exact.lock().remove(&place);
        return None;
    };
    Some(Hit { place, facts: entry.facts, at, body, tier: RowCache::Exact, score: None })
}

/// Keeps an answer that is about to be served, if it is worth keeping. False when it is not kept.
pub fn keep(gateway: &Gateway, settings: &CacheSettings, key: Key, facts: Facts, body: &Arc<[u8]>) -> bool {
    if body.len() > settings.max_entry_bytes || !(facts.embeddings || rule::is_keepable(body)) {
        return false;
    }
    let item = Item {
        kind: Kind::Answer,
        key: key.0,
        facts: Saved::text_of(&facts),
        body: Body::new(Arc::clone(body)),
    };
    let mut exact = gateway.answers.exact.lock();
    let facts = Facts { who: exact.share((*facts.who).clone()), ..facts };
    let kept = exact.keep(key, facts, Arc::clone(&item.body), body.len() as u64, &bounds(settings));
    drop(exact);
    gateway.store.shelve(item);
    gateway.answers.questions.forget(&gateway.answers, kept.gone.iter().map(|(place, _)| place.key));
    // What made room is taken apart only now, so that nobody waits for it.
    kept.place.is_some()
}

/// A seat on the flight of identical requests, for one that found no answer.
pub fn board(gateway: &Gateway, prepared: &Prepared, key: Key) -> Boarding {
    let route = Route {
        key,
        requested: Arc::clone(&prepared.requested),
        controls: prepared.request.controls,
        snapshot: prepared.snapshot.id,
    };
    gateway.answers.flights.board(route, &prepared.resolution.models)
}

/// Forgets all answers, on the disk as well; how many those were.
pub fn clear(gateway: &Gateway) -> usize {
    // What is still to come back would come after this.
    gateway.answers.unpack(gateway);
    let mut exact = gateway.answers.exact.lock();
    let all = std::mem::take(&mut *exact);
    drop(exact);
    gateway.answers.questions.clear();
    gateway.store.clear_shelf();
    all.len()
}

impl Answers {
    /// Makes sure that what earlier runs left is here, unless the disk is too busy to tell.
    pub fn unpack(self: &Arc<Answers>, gateway: &Gateway) {
        if *self.unpacked.lock() {
            return;
        }
        if !self.asked.swap(true, Ordering::AcqRel) {
            let (answers, snapshot) = (Arc::clone(self), gateway.snapshot());
            let unpack = move |items| answers.take_back(items, &snapshot.settings);
            let asked = gateway.store.unpack_shelf(Box::new(unpack));
            self.asked.store(asked, Ordering::Release);
        }
        let mut unpacked = self.unpacked.lock();
        if !*unpacked {
            self.arrived.wait_for(&mut unpacked, UNPACK_WAIT);
        }
    }

    fn take_back(&self, items: Vec<Item>, settings: &Settings) {
        let (wall_ms, bounds) = (clock::now().wall_ms, &bounds(&settings.cache));
        let (items, vectors): (Vec<_>, Vec<_>) =
            items.into_iter().partition(|item| item.kind == Kind::Answer);
        let mut exact = self.exact.lock();
        for item in items {
            let Ok(saved) = serde_json::from_slice::<Saved>(&item.facts) else { continue };
            let who = exact.share(Who { provider: saved.provider.into(), model: saved.model.into() });
            let facts = Facts {
                who,
                embeddings: saved.embeddings,
                prompt_tokens: saved.prompt_tokens,
                output_tokens: saved.output_tokens,
                estimated: saved.estimated,
                made_ms: saved.made_ms,
            };
            let bytes = item.body.size() as u64;
            exact.restore(Key(item.key), facts, item.body, bytes, bounds, wall_ms);
        }
        drop(exact);
        self.questions.take_back(self, vectors, &settings.semantic);
        *self.unpacked.lock() = true;
        self.arrived.notify_all();
    }

    /// Counts a request for which somebody has to be called.
    pub fn missed(&self) {
        self.exact.lock().counts.misses += 1;
    }
}

/// What may be kept, by the settings.
fn bounds(settings: &CacheSettings) -> Bounds {
    Bounds { entries: settings.max_entries, bytes: settings.max_bytes, ttl_ms: settings.ttl_ms }
}

/// Which of `models` is `who`.
fn at_of(catalog: &Catalog, models: &[ModelIx], who: &Who) -> Option<ModelIx> {
    let is_who =
        |at: &&ModelIx| catalog.provider(**at).id == who.provider && catalog.model(**at).id == who.model;
    models.iter().find(is_who).copied()
}

/// The facts of an answer as they lie on the shelf.
#[derive(Serialize, Deserialize)]
struct Saved<'a> {
    #[serde(rename = "p", borrow)]
    provider: std::borrow::Cow<'a, str>,
    #[serde(rename = "m", borrow)]
    model: std::borrow::Cow<'a, str>,
    #[serde(rename = "i")]
    prompt_tokens: u64,
    #[serde(rename = "o")]
    output_tokens: u64,
    #[serde(rename = "t")]
    made_ms: u64,
    #[serde(rename = "g", default, skip_serializing_if = "is_false")]
    estimated: bool,
    #[serde(rename = "v", default, skip_serializing_if = "is_false")]
    embeddings: bool,
}

impl Saved<'_> {
    fn text_of(facts: &Facts) -> Vec<u8> {
        let saved = Saved {
            provider: (&*facts.who.provider).into(),
            model: (&*facts.who.model).into(),
            prompt_tokens: facts.prompt_tokens,
            output_tokens: facts.output_tokens,
            made_ms: facts.made_ms,
            estimated: facts.estimated,
            embeddings: facts.embeddings,
        };
        serde_json::to_vec(&saved).expect("plain data is JSON")
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}
