//! Summaries, written by a model that our own routing finds: with failover, reserved, metered, in the log like any other
//! turn. What is written is kept; two turns that need the same summary at once pay for one.
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::gateway::Gateway;
use super::intake;
use super::outlet::{Outlet, Sink};
use super::route_info::RouteInfo;
use super::story;
use super::turn::{Controls, Haste, Operation, Request};
use crate::base::clock;
use crate::base::text::{fresh_id, truncate};
use crate::catalog::client_key::Principal;
use crate::catalog::load::Snapshot;
use crate::context::refit::Known;
use crate::context::summaries::{Saved, Summaries};
use crate::context::summary::{Key, Need};
use crate::route::terminal;
use crate::upstream::cut::Cut;
use crate::wire::body::Body;
use crate::wire::chat::ChatFacts;
use crate::wire::error::ApiError;
use crate::wire::json::{self, Cursor};

/// How often one who waits for somebody else's summary looks whether its own client is still there.
const LOOK: Duration = Duration::from_millis(100);
/// Messages of a request for a summary.
const MESSAGES: usize = 2;

/// For whom a summary is made.
pub struct Asker<'a> {
    pub gateway: &'a Arc<Gateway>,
    pub snapshot: &'a Snapshot,
    /// The request's id, its client, and what owns what it leaves behind.
    pub id: &'a str,
    pub client: Option<&'a Arc<str>>,
    pub principal: Option<Principal>,
    /// The session that the conversation belongs to, by its tag.
    pub session: Option<Arc<str>>,
}

/// Summaries that turned out to be of no use and are not asked for again, and for how long.
const USELESS_MAX: usize = 64;
const USELESS: Duration = Duration::from_secs(600);

/// All summaries, and those that are being written.
#[derive(Default)]
pub struct Notes {
    kept: Mutex<Summaries>,
    useless: Mutex<VecDeque<(Key, Instant)>>,
    flights: Mutex<HashMap<Key, Arc<Flight>>>,
    /// Whether one is being written that nobody waits for.
    ahead: AtomicBool,
}

/// One summary that is being written.
#[derive(Default)]
struct Flight {
    done: Mutex<bool>,
    landed: Condvar,
}

impl Notes {
    /// See [`Summaries::longest`].
    pub fn longest(&self, keys: &[Key]) -> Known {
        self.kept.lock().longest(keys)
    }

    /// Forgets the summaries of a session, when it is deleted or replaced.
    pub fn forget(&self, session: &str) {
        self.kept.lock().forget(session);
    }

    /// Forgets the summaries of all sessions but these. Those of no session stay.
    pub fn forget_others(&self, sessions: &HashSet<Arc<str>>) {
        self.kept.lock().forget_others(sessions);
    }

    /// The summaries of a session.
    pub fn of(&self, session: &str) -> Vec<(Key, Saved)> {
        self.kept.lock().of(session)
    }

    /// How many summaries a session has.
    pub fn count(&self, session: &str) -> usize {
        self.kept.lock().count(session)
    }

    /// What has to be saved, see [`Summaries::take_changes`].
    pub fn take_changes(&self) -> BTreeMap<String, Option<Saved>> {
        self.kept.lock().take_changes()
    }

    /// Everything that there is to be saved.
    pub fn export(&self) -> BTreeMap<String, Option<Saved>> {
        let mut kept = self.kept.lock();
        kept.take_changes();
        kept.export()
    }

    /// Takes a saved summary in; false when there is no use for it.
    pub fn restore(&self, name: &str, saved: Saved) -> bool {
        self.kept.lock().restore(name, saved)
    }

    /// What was written for a key is empty, or longer than what it is made of.
    fn useless(&self, key: Key) {
        let mut useless = self.useless.lock();
        if useless.len() == USELESS_MAX {
            useless.pop_front();
        }
        useless.push_back((key, clock::instant()));
    }

    fn is_useless(&self, key: &Key) -> bool {
        let fresh = |at: &Instant| clock::instant().saturating_duration_since(*at) < USELESS;
        self.useless.lock().iter().any(|(known, at)| known == key && fresh(at))
    }

    /// The flight of a summary, and whether the caller is to fly it.
    fn board(&self, key: Key) -> (Arc<Flight>, Seat) {
        let mut flights = self.flights.lock();
        match flights.get(&key) {
            Some(flight) => (Arc::clone(flight), Seat::Passenger),
            None => {
                let flight = Arc::<Flight>::default();
                flights.insert(key, Arc::clone(&flight));
                (flight, Seat::Pilot)
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seat {
    Pilot,
    Passenger,
}

impl Flight {
    /// Waits until it has landed, the time is up, or our own client has left.
    fn wait(&self, ends: Instant, cut: &Cut) {
        while clock::instant() < ends && !cut.is_cut() {
            let mut done = self.done.lock();
            if !*done {
                self.landed.wait_for(&mut done, LOOK);
            }
            if *done {
                return;
            }
        }
    }
}

/// Lands a flight however its pilot ends.
struct Landing<'n> {
    notes: &'n Notes,
    key: Key,
    flight: Arc<Flight>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.notes.flights.lock().remove(&self.key);
        *self.flight.done.lock() = true;
        self.flight.landed.notify_all();
    }
}

/// The summary that is needed, written now or by somebody else meanwhile; `None` when it did not come within `wait`, or
/// is of no use.
pub fn written(
    asker: &Asker<'_>,
    need: &Need,
    haste: Haste,
    wait: Duration,
    cut: &Arc<Cut>,
) -> Option<Arc<str>> {
    let notes = &asker.gateway.notes;
    let ends = clock::instant() + wait;
    let fly = |flight| {
        let _landing = Landing { notes, key: need.key, flight };
        // It may have landed between our look and now.
        let known = notes.kept.lock().get(&need.key);
        known.or_else(|| write(asker, need, haste, ends.saturating_duration_since(clock::instant()), cut))
    };
    match notes.board(need.key) {
        (flight, Seat::Pilot) => return fly(flight),
        (flight, Seat::Passenger) => flight.wait(ends, cut),
    }
    let landed = notes.kept.lock().get(&need.key);
    landed.or_else(|| match notes.board(need.key) {
        // Whoever flew it failed, perhaps only because its client left.
        (flight, Seat::Pilot) if !cut.is_cut() => fly(flight),
        (flight, Seat::Pilot) => {
            drop(Landing { notes, key: need.key, flight });
            None
        }
        (_, Seat::Passenger) => None,
    })
}

/// Has a summary written that nobody waits for, unless one is being written already.
pub fn write_ahead(asker: &Asker<'_>, need: Need, wait: Duration) {
    let gateway = Arc::clone(asker.gateway);
    if gateway.notes.ahead.swap(true, Ordering::AcqRel) {
        return;
    }
    let (id, client) = (asker.id.to_owned(), asker.client.cloned());
    let (principal, session) = (asker.principal, asker.session.clone());
    let run = move || {
        let _free = Freed(&gateway.notes.ahead);
        let snapshot = gateway.snapshot();
        let asker = Asker {
            gateway: &gateway,
            snapshot: &snapshot,
            id: &id,
            client: client.as_ref(),
            principal,
            session,
        };
        written(&asker, &need, Haste::None, wait, &Cut::new());
    };
    // Without a thread there is no summary ahead, and the next turn asks for one itself.
    if thread::Builder::new().name("notes".into()).spawn(run).is_err() {
        asker.gateway.notes.ahead.store(false, Ordering::Release);
    }
}

/// Gives the place of the one summary ahead back, however its thread ends.
struct Freed<'f>(&'f AtomicBool);

impl Drop for Freed<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Asks for a summary, and keeps it if it is of use.
fn write(asker: &Asker<'_>, need: &Need, haste: Haste, wait: Duration, cut: &Arc<Cut>) -> Option<Arc<str>> {
    if asker.gateway.notes.is_useless(&need.key) {
        return None;
    }
    let model = &asker.snapshot.settings.context.compact_model;
    let body = Body::parse(need.body(model)).ok()?;
    let facts = ChatFacts::read(&body, MESSAGES).ok()?;
    let budget_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let request = Request {
        id: format!("{}-{}", truncate(asker.id, 64), fresh_id("notes-")),
        client: asker.client.cloned(),
        principal: asker.principal,
        sticks: None,
        // The owner chose the model, not the client.
        client_key: None,
        body,
        operation: Operation::Chat(Box::new(facts)),
        controls: Controls { budget_ms: Some(budget_ms), haste, ..Controls::default() },
        arrived: clock::now(),
        // Its turn was admitted, and pays in tokens when it ends.
        admitted: None,
    };
    let mut prepared = intake::prepare(asker.gateway, request);
    if terminal::is_unmatched(&prepared.resolution) {
        return None;
    }
    // It is taken whole or not at all.
    prepared.ask.shrink = None;
    let answer = Rc::new(RefCell::new(None));
    story::tell(asker.gateway, prepared, None, Outlet::new(Box::new(Answer(Rc::clone(&answer)))), cut);
    let (model, answer) = answer.take()?;
    let text = content(&answer)?;
    let Some(text) = need.accepted(&text) else {
        asker.gateway.notes.useless(need.key);
        log::info!("a summary for {} is of no use: {} characters", asker.id, text.chars().count());
        return None;
    };
    let text: Arc<str> = text.into();
    let (session, created_ms) = (asker.session.clone(), clock::now().wall_ms);
    let saved = Saved { text: Arc::clone(&text), session, model, created_ms };
    asker.gateway.notes.kept.lock().keep(need.key, saved);
    Some(text)
}

/// What the first choice of a whole answer says.
fn content(answer: &[u8]) -> Option<String> {
    let mut cursor = Cursor::new(json::member(answer, "choices")?);
    if !cursor.open(b'[').ok()? || !cursor.item().ok()? {
        return None;
    }
    let message = json::member(cursor.skip().ok()?, "message")?;
    json::member(message, "content").and_then(json::text).map(|text| text.into_owned())
}

/// Takes the whole answer, and who gave it; no client sees it.
struct Answer(Rc<RefCell<Option<Answered>>>);

type Answered = (Option<Arc<str>>, Vec<u8>);

impl Sink for Answer {
    fn whole(&mut self, route: &RouteInfo, body: Vec<u8>) -> io::Result<()> {
        let model = route.provider.as_deref().zip(route.model.as_deref());
        let model = model.map(|(provider, model)| format!("{provider}/{model}").into());
        *self.0.borrow_mut() = Some((model, body));
        Ok(())
    }

    fn begin(&mut self, _: &RouteInfo) -> io::Result<()> {
        Ok(())
    }

    fn frames(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn end(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn refuse(&mut self, _: &RouteInfo, error: &ApiError) -> io::Result<()> {
        log::info!("no summary: {}", error.message);
        Ok(())
    }
}
