//! The semantic cache at work: a question that nobody asked in these words is embedded by a call of our own, compared
//! with those that were answered, and, once it has its answer, kept among them.
//!
//! The call is one like any other: routed, failed over (between providers of one and the same model), reserved, metered
//! and in the log. It is made on a worker's place, only for requests whose answer may be kept and is not, and never when the
//! embedder has little quota left. Whatever goes wrong with it is a miss.
use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answers::{self, Answers, Hit};
use super::gateway::Gateway;
use super::intake::{self, Prepared};
use super::outlet::{Outlet, Sink};
use super::route_info::RouteInfo;
use super::story;
use super::turn::{Controls, Haste, Operation, Request};
use crate::base::clock;
use crate::base::text::{fresh_id, truncate};
use crate::cache::key::Key;
use crate::cache::question::{self, Asked};
use crate::cache::semantic::{Misses, Query, Question, Semantic};
use crate::cache::slab;
use crate::catalog::settings::{SemanticSettings, Settings};
use crate::catalog::unified;
use crate::route::terminal;
use crate::store::shelf::{Body, Item, Kind};
use crate::upstream::cut::Cut;
use crate::wire::body;
use crate::wire::embeddings::EmbeddingFacts;
use crate::wire::error::ApiError;
use crate::wire::json::{self, Cursor};

/// The longest that a look-up may take: the request itself still has to be served.
const LOOK_MS: u64 = 10_000;
/// After a look-up that took that long, the next is made only then: a slow embedder would slow every request down.
const REST_MS: u64 = 60_000;

/// A question with its vector, to be kept when it has its answer.
#[derive(Debug)]
pub struct Meaning {
    asked: Asked,
    embedder: String,
    /// Of length one.
    vector: Vec<f32>,
}

/// All questions that were answered.
#[derive(Debug, Default)]
pub struct Questions {
    /// Each with its vector on the shelf.
    kept: RwLock<Semantic<Arc<Body>>>,
    misses: Mutex<Misses>,
    /// Monotonic: no look-up before.
    rests_until_ms: AtomicU64,
    hits: AtomicU64,
    missed: AtomicU64,
}

/// How the semantic cache does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub entries: usize,
    pub hits: u64,
    pub misses: u64,
    /// Numbers of a vector; 0 while there is none.
    pub dimensions: usize,
    /// Memory that the vectors take.
    pub bytes: usize,
}

impl Questions {
    /// Forgets the questions of answers that are no longer kept.
    pub fn forget(&self, answers: &Answers, gone: impl Iterator<Item = Key>) {
        if self.kept.read().is_empty() {
            return;
        }
        // Another model may have answered the same question.
        let gone: Vec<Key> = gone.filter(|key| !answers.exact.lock().holds(key)).collect();
        let mut kept = self.kept.write();
        for key in &gone {
            kept.forget(key);
        }
    }

    /// Takes back what an earlier run left on the shelf of questions whose answers are still there.
    pub fn take_back(&self, answers: &Answers, items: Vec<Item>, settings: &SemanticSettings) {
        if !settings.enabled {
            return;
        }
        for Item { key, facts, body, .. } in items {
            let key = Key(key);
            let vector = body.read().and_then(|bytes| slab::unpacked(&bytes));
            let (Some(vector), Ok(saved)) = (vector, serde_json::from_slice::<Saved>(&facts)) else {
                continue;
            };
            if answers.exact.lock().holds(&key) {
                let question = Question {
                    key,
                    scope: Key(saved.scope),
                    text: saved.text.into(),
                    made_ms: saved.made_ms,
                };
                self.kept.write().keep(&saved.embedder, question, &vector, body, settings.max_entries);
            }
        }
    }

    /// Forgets everything; how many questions that were.
    pub fn clear(&self) -> usize {
        self.misses.lock().clear();
        self.hits.store(0, Ordering::Relaxed);
        self.missed.store(0, Ordering::Relaxed);
        self.kept.write().clear()
    }

    pub fn figures(&self) -> Figures {
        let kept = self.kept.read();
        Figures {
            entries: kept.len(),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.missed.load(Ordering::Relaxed),
            dimensions: kept.embedder().map_or(0, |embedder| embedder.dimensions),
            bytes: kept.bytes(),
        }
    }
}

/// Keeps the question of an answer that is kept under `key`, here and on the disk.
pub fn keep(gateway: &Gateway, settings: &Settings, key: Key, meaning: Meaning, made_ms: u64) {
    let Meaning { asked, embedder, vector } = meaning;
    let saved = Saved {
        embedder: embedder.as_str().into(),
        scope: asked.scope.0,
        text: (&*asked.text).into(),
        made_ms,
    };
    let facts = serde_json::to_vec(&saved).expect("plain data is JSON");
    let body = Body::new(slab::packed(&vector).into());
    let question = Question { key, scope: asked.scope, text: asked.text.clone(), made_ms };
    let item = Item { kind: Kind::Vector, key: key.0, facts, body: Arc::clone(&body) };
    let most = settings.semantic.max_entries;
    let changes = gateway.answers.questions.kept.write().keep(&embedder, question, &vector, body, most);
    if changes.cleared {
        log::info!("the semantic cache begins anew: vectors are now made by {embedder}");
    }
    gateway.store.shelve(item);
}

/// What is known of a vector, as it lies on the shelf.
#[derive(Serialize, Deserialize)]
struct Saved<'a> {
    #[serde(rename = "e", borrow)]
    embedder: Cow<'a, str>,
    #[serde(rename = "s")]
    scope: [u8; 32],
    #[serde(rename = "q", borrow)]
    text: Cow<'a, str>,
    #[serde(rename = "t")]
    made_ms: u64,
}

/// Looks for an answer to the same question in other words. When there is none, `prepared` gets what is needed to keep
/// the question later. Waits for an upstream.
pub fn look(gateway: &Arc<Gateway>, prepared: &mut Prepared, cut: &Arc<Cut>) -> Option<Hit> {
    let settings = &prepared.snapshot.settings;
    let request = &prepared.request;
    let looks = settings.semantic.enabled
        && prepared.key.is_some()
        && !request.controls.cache.anew
        && matches!(request.operation, Operation::Chat(_));
    if !looks {
        return None;
    }
    let questions = &gateway.answers.questions;
    let asked = question::asked(&request.body, &answers::scope_of(prepared, "question"))?;
    let (memo, now) = (asked.digest(), clock::now());
    let rests = now.mono_ms < questions.rests_until_ms.load(Ordering::Relaxed);
    if rests || questions.misses.lock().holds(&memo, now.mono_ms) {
        return None;
    }
    let Some((embedder, vector)) = embedded(gateway, prepared, &asked.text, cut) else {
        let ended_ms = clock::now().mono_ms;
        if ended_ms.saturating_sub(now.mono_ms) >= LOOK_MS {
            log::warn!("the semantic cache rests for {} s: its look-up took too long", REST_MS / 1_000);
            questions.rests_until_ms.store(ended_ms + REST_MS, Ordering::Relaxed);
        }
        return None;
    };
    let query = Query {
        embedder: &embedder,
        scope: &asked.scope,
        text: &asked.text,
        vector: &vector,
        threshold: settings.semantic.threshold,
        made_after_ms: now.wall_ms.saturating_sub(settings.cache.ttl_ms),
    };
    let found = questions.kept.read().find(&query);
    let hit = found
        .iter()
        .find_map(|found| answers::find(gateway, prepared, &found.key).map(|hit| hit.alike(found.score)));
    // What was too old went when it was looked at.
    questions.forget(&gateway.answers, found.iter().map(|found| found.key));
    match &hit {
        Some(_) => questions.hits.fetch_add(1, Ordering::Relaxed),
        None => {
            questions.misses.lock().add(memo, now.mono_ms);
            prepared.meaning = Some(Meaning { asked, embedder, vector });
            questions.missed.fetch_add(1, Ordering::Relaxed)
        }
    };
    hit
}

/// By which model a text was embedded, and its vector, of length one. `None` when nobody could be asked, or it failed.
fn embedded(
    gateway: &Arc<Gateway>,
    prepared: &Prepared,
    text: &str,
    cut: &Arc<Cut>,
) -> Option<(String, Vec<f32>)> {
    let model = &prepared.snapshot.settings.semantic.model;
    let call = intake::prepare(gateway, embedding_request(&prepared.request, model, text)?);
    if terminal::is_unmatched(&call.resolution) {
        log::debug!("no look-up in the semantic cache: cache.semantic.model {model:?} is unknown");
        return None;
    }
    let embedder = unified::weights_name(call.snapshot.catalog.model(*call.resolution.models.first()?));
    let told = Rc::new(RefCell::new(None));
    story::tell(gateway, call, None, Outlet::new(Box::new(Ear(Rc::clone(&told)))), cut);
    let vector = vector_of(&told.take()?);
    if vector.is_none() {
        log::warn!("no look-up in the semantic cache: {embedder} gave a vector that says nothing");
    }
    Some((embedder, vector?))
}

fn embedding_request(for_whom: &Request, model: &str, text: &str) -> Option<Request> {
    let body = body::Body::parse(json!({"model": model, "input": text}).to_string().into_bytes()).ok()?;
    let facts = EmbeddingFacts::read(&body).ok()?;
    Some(Request {
        id: format!("{}-{}", truncate(&for_whom.id, 64), fresh_id("question-")),
        client: for_whom.client.clone(),
        principal: for_whom.principal,
        sticks: None,
        // Which models a key may use is said of what it asks for.
        client_key: None,
        body,
        operation: Operation::Embeddings(Box::new(facts)),
        controls: Controls { budget_ms: Some(LOOK_MS), haste: Haste::Little, ..Controls::default() },
        arrived: clock::now(),
        admitted: None,
    })
}

/// The first vector of an answer, brought to length one.
fn vector_of(answer: &[u8]) -> Option<Vec<f32>> {
    let mut data = Cursor::new(json::member(answer, "data")?);
    if !data.open(b'[').ok()? || !data.item().ok()? {
        return None;
    }
    let mut numbers = Cursor::new(json::member(data.skip().ok()?, "embedding")?);
    let mut vector = Vec::new();
    if !numbers.open(b'[').ok()? {
        return None;
    }
    while numbers.item().ok()? && vector.len() <= slab::DIMENSIONS_MAX {
        vector.push(json::number(numbers.skip().ok()?)? as f32);
    }
    slab::unit(&vector)
}

/// Takes the answer to a call of our own; no client sees it.
struct Ear(Rc<RefCell<Option<Vec<u8>>>>);

impl Sink for Ear {
    fn whole(&mut self, _: &RouteInfo, body: Vec<u8>) -> io::Result<()> {
        *self.0.borrow_mut() = Some(body);
        Ok(())
    }

    fn begin(&mut self, _: &RouteInfo) -> io::Result<()> {
        Err(io::Error::other("vectors are not streamed"))
    }

    fn frames(&mut self, _: &[u8]) -> io::Result<()> {
        Err(io::Error::other("vectors are not streamed"))
    }

    fn end(&mut self, _: &[u8]) -> io::Result<()> {
        Err(io::Error::other("vectors are not streamed"))
    }

    fn refuse(&mut self, _: &RouteInfo, error: &ApiError) -> io::Result<()> {
        log::debug!("no look-up in the semantic cache: {}", error.message);
        Ok(())
    }
}
