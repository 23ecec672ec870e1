//! The story of one turn, from a prepared request to a recorded answer: attempt after attempt until somebody serves,
//! nobody is left, or the client is gone. The one attempt loop, for all surfaces.
//!
//! Locks on live state are taken between I/O only, and never while another lock is held.
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::admitted::Admitted;
use super::alike::{self, Meaning};
use super::answers;
use super::attempt::{self, Attempted, Ending, Target};
use super::books::Books;
use super::cached;
use super::fitting::{Fitter, Fitting};
use super::flight::{Landing, Lead, Shared};
use super::gateway::Gateway;
use super::hydrate::Session;
use super::intake::Prepared;
use super::notes::Asker;
use super::outlet::Outlet;
use super::record;
use super::turn::{Controls, Haste, Last, Operation, Request, Turn};
use crate::base::clock;
use crate::base::redact::Redactor;
use crate::cache::exact::{Facts, Who};
use crate::cache::key::Key;
use crate::catalog::ModelIx;
use crate::catalog::client_key::Principal;
use crate::catalog::load::Snapshot;
use crate::catalog::names::{How, Resolution};
use crate::catalog::provider::{Model, Provider, Slot};
use crate::context::handoff;
use crate::quota::Spent;
use crate::route::failover::{Attempt, Dead, DeadEnd, Failover, Hop, Next};
use crate::route::manner::Manner;
use crate::route::outcome::{Circumstances, Class, End, Outcome, Signal, classify};
use crate::route::plan::{Ask, Blocked, Obstacle, Order};
use crate::route::sticky::StickyKey;
use crate::route::terminal;
use crate::route::verdict::Policy;
use crate::store::RowCache;
use crate::upstream::adapt::{self, Amended};
use crate::upstream::cut::Cut;
use crate::upstream::way_out;
use crate::wire::body::{Body, Spliced};
use crate::wire::error::ApiError;
use crate::wire::exchange::Headers;
use crate::wire::usage::Usage;

/// Serves a request into `outlet`, and tells those who wait for the same of it. `own` is cut when its client leaves,
/// which ends upstream calls unless others wait.
pub fn tell(
    gateway: &Arc<Gateway>,
    prepared: Prepared,
    mut lead: Option<Lead>,
    outlet: Outlet,
    own: &Arc<Cut>,
) {
    let Prepared {
        request, snapshot, ask, resolution, requested, route, session, key, sticks, meaning, ..
    } = prepared;
    let Request { id, client, principal, body, operation, controls, arrived, admitted, .. } = request;
    let turn = Turn::new(operation, arrived, outlet, Arc::clone(&route), &snapshot.settings.stream);
    turn.note(|info| info.session = prepared.session_id);
    if session.is_some() {
        turn.keep_answer();
    }
    turn.keep_preview(&body, &snapshot.settings.log);
    let cut = match &mut lead {
        Some(lead) => {
            lead.take_off();
            turn.share(lead.cut());
            Arc::clone(lead.cut())
        }
        None => Arc::clone(own),
    };
    let story = Story {
        gateway,
        snapshot: &snapshot,
        turn: &Rc::new(turn),
        id,
        client,
        admitted: Cell::new(admitted),
        principal,
        body: &body,
        ask,
        resolution,
        requested,
        route,
        key,
        meaning: Cell::new(meaning),
        lead,
        cut: &cut,
        own,
        session,
        sticks,
        stuck: Cell::new(None),
    };
    match prepared.refusal {
        Some(error) => story.refuse(&error, None, None, None),
        None => story.tell(&controls),
    }
}

/// Everything that the attempts of one turn share.
struct Story<'a> {
    gateway: &'a Arc<Gateway>,
    snapshot: &'a Snapshot,
    turn: &'a Rc<Turn>,
    id: String,
    client: Option<Arc<str>>,
    /// Given back when the story ends.
    admitted: Cell<Option<Admitted>>,
    principal: Option<Principal>,
    body: &'a Body,
    ask: Ask,
    resolution: Resolution,
    requested: Arc<str>,
    /// `x-freeway-route`.
    route: Arc<str>,
    /// Under which key the answer is kept, if it may be.
    key: Option<Key>,
    /// The question by its meaning, if it is to be found by that.
    meaning: Cell<Option<Meaning>>,
    /// Of those who wait for the same.
    lead: Option<Lead>,
    /// Ends upstream calls.
    cut: &'a Arc<Cut>,
    /// Tells that the client of this turn has left, though others may still be there.
    own: &'a Cut,
    session: Option<Session>,
    /// Under which the conversation sticks to a model.
    sticks: Option<StickyKey>,
    /// The model that it stuck to when the turn began.
    stuck: Cell<Option<Slot>>,
}

/// With whom an attempt was made.
#[derive(Clone, Copy)]
pub struct With {
    pub at: ModelIx,
    /// Place in the provider's key pool; `None` for an answer from memory.
    pub key: Option<usize>,
}

/// The status, known from nginx, of a request whose client closed the connection before it was answered.
pub const CLIENT_CLOSED: u16 = 499;
/// Its `error.code`, for the log; no client sees it.
pub const CLIENT_CLOSED_CODE: &str = "client_closed_request";

impl Story<'_> {
    fn tell(&self, controls: &Controls) {
        if terminal::is_unmatched(&self.resolution) {
            let error = terminal::unmatched(&self.resolution, &self.requested);
            return self.refuse(&error, None, None, None);
        }
        if self.key.is_some() {
            self.turn.keep_answer();
        }
        let mut failover = self.failover(controls);
        let wait_ms = controls.wait_ms.min(self.snapshot.settings.failover.budget_ms);
        let wait_ends = clock::instant() + Duration::from_millis(wait_ms);
        // A client may have left while its request waited for a place.
        while !self.cut.is_cut() {
            let next = failover.next(&self.snapshot.catalog, &mut self.gateway.live.lock(), clock::now());
            let dead = match next {
                Next::Try(attempt) => match self.attempt(&mut failover, attempt) {
                    Told::More => continue,
                    Told::All => return,
                },
                Next::GiveUp(dead) => dead,
            };
            if !failover.is_worth_waiting(&dead) || !self.wait_for(&dead, wait_ends) {
                if controls.haste == Haste::Little && failover.calls() == 0 {
                    // Nobody was asked and nobody misses it: no line in the log either.
                    return self.turn.refuse(&terminal::answer(&dead, &failover, &self.asked()));
                }
                return self.give_up(&failover, &dead);
            }
        }
        self.record(CLIENT_CLOSED, Some(CLIENT_CLOSED_CODE), Some(&failover), None, None);
    }

    fn asked(&self) -> terminal::Asked<'_> {
        let (catalog, redactor) = (&self.snapshot.catalog, &self.snapshot.redactor);
        terminal::Asked { catalog, resolution: &self.resolution, model: &self.requested, redactor }
    }

    fn failover(&self, controls: &Controls) -> Failover {
        let (catalog, settings) = (&self.snapshot.catalog, &self.snapshot.settings);
        let mut policy = Policy::new(settings);
        policy.budget_ms = controls.budget_ms.map_or(policy.budget_ms, |own| policy.budget_ms.min(own));
        if let Some(own) = controls.max_attempts {
            policy.max_attempts = policy.max_attempts.min(own);
        }
        let usual = controls.usual_strategy.unwrap_or(settings.strategy);
        let fill_max = match controls.haste {
            Haste::Usual => 1.0,
            Haste::Little => LITTLE_FILL,
            Haste::None => PLENTY_FILL,
        };
        let manner = Manner { fill_max, ..Manner::of(&self.resolution, usual, controls.strategy) };
        let mut live = self.gateway.live.lock();
        let order: Arc<Order> =
            live.orders.get(self.snapshot.id, catalog, &self.resolution, self.ask.needed());
        let mut failover = Failover::new(order, self.ask, policy, &manner, &mut live, clock::now());
        let stuck = self.sticks.and_then(|key| live.sticky.model(key, settings.sticky_ms, clock::now()));
        // An exact model and an explicit list are the client's own choice.
        if let Some(model) = stuck.filter(|_| !matches!(self.resolution.how, How::Pin | How::List)) {
            self.stuck.set(Some(model));
            failover.begin_with(model);
        }
        failover
    }

    /// Adds a note for a model that goes on with what another one began.
    fn hand_off(&self, model: &Model, fitting: &mut Fitting) {
        let before = self.stuck.get().filter(|slot| *slot != model.slot && self.snapshot.settings.handoff);
        let (Some(before), Operation::Chat(facts)) = (before, self.turn.operation()) else { return };
        let messages = fitting.messages.as_deref().or_else(|| self.body.raw("messages"));
        if let Some(messages) = messages.filter(|_| facts.has_assistant) {
            let known = self.snapshot.catalog.model_of(before);
            let note = handoff::note(known.map_or("which is gone", |known| &known.reference));
            // The list was read before, so it is one.
            fitting.messages = handoff::noted(messages, &note).ok();
        }
    }

    /// Makes one attempt.
    fn attempt(&self, failover: &mut Failover, mut attempt: Attempt) -> Told {
        let catalog = &self.snapshot.catalog;
        let (provider, model) = (catalog.provider(attempt.at), catalog.model(attempt.at));
        let with = With { at: attempt.at, key: Some(attempt.key) };
        self.turn.note(|info| {
            (info.provider, info.model) = (Some(Arc::clone(&provider.id)), Some(Arc::clone(&model.id)));
            info.attempts = attempt.number;
        });
        let fitter = self.fitter();
        let mut fitting = match fitter.fit(&mut attempt, model) {
            Ok(fitting) => fitting,
            Err(needed) => {
                failover.needs_more(catalog, &mut self.gateway.live.lock(), attempt, needed);
                return Told::More;
            }
        };
        self.hand_off(model, &mut fitting);
        let drops = std::mem::take(&mut attempt.drops);
        let adapted = match self.adapted(provider, model, &fitting, &drops) {
            Ok(adapted) => adapted,
            Err(error) => {
                attempt.withdraw(catalog, &mut self.gateway.live.lock());
                self.refuse(&error, Some(failover), None, None);
                return Told::All;
            }
        };
        let target = self.target(&attempt);
        let served = |failover: &Failover, usage, last: &Last<'_>| self.served(failover, with, usage, last);
        let mut books = Books {
            gateway: self.gateway,
            catalog,
            failover,
            cut: self.cut,
            attempt: Some(attempt),
            has_field: &|name| self.body.given(name).is_some(),
            on_served: &served,
        };
        let attempted =
            attempt::make(self.turn, &self.gateway.client, &target, &adapted.pieces(), self.cut, &mut books);
        let outcome = self.judge(&target, &attempted);
        if matches!(attempted.ending, Ending::Served) {
            drop(books);
            fitter.look_ahead(model, || {
                failover.budget(catalog, &self.gateway.live.lock(), with.at, clock::now())
            });
            return Told::All;
        }
        let left = outcome.client_left();
        books.close(outcome, self.spent(&attempted), None);
        drop(books);
        if let Some(reached) = left {
            // What is counted stands in the log, too.
            let unsaid = reached.then(|| Usage::estimate(self.turn.prompt_tokens(), 0));
            let (error, usage) = (Some(CLIENT_CLOSED_CODE), attempted.usage.or(unsaid));
            self.record(CLIENT_CLOSED, error, Some(failover), Some(with), usage);
            return Told::All;
        }
        self.note_hop(failover);
        if self.turn.committed() {
            let error = broken_off(failover.hops().last());
            self.refuse(&error, Some(failover), Some(with), attempted.usage);
            return Told::All;
        }
        Told::More
    }

    /// Keeps what is to be kept of a turn whose answer is whole and about to leave.
    fn served(&self, failover: &Failover, with: With, usage: Usage, last: &Last<'_>) {
        if let Some(answer) = self.turn.whole_answer(last) {
            if let Some(session) = self.session.as_ref().filter(|_| !self.own.is_cut()) {
                session.keep(&answer);
            }
            self.keep_answer(with.at, usage, &answer);
        }
        self.turn.hear(last);
        if let Some(key) = self.sticks {
            let model = self.snapshot.catalog.model(with.at).slot;
            self.gateway.live.lock().sticky.served(key, model, clock::now());
        }
        self.record_served(failover, with, usage);
    }

    /// Keeps the answer that is about to leave, and gives it to those who wait for the same.
    fn keep_answer(&self, at: ModelIx, usage: Usage, answer: &[u8]) {
        let Some(key) = self.key else { return };
        let catalog = &self.snapshot.catalog;
        let who =
            Who { provider: Arc::clone(&catalog.provider(at).id), model: Arc::clone(&catalog.model(at).id) };
        let facts = Facts {
            who: Arc::new(who),
            embeddings: matches!(self.turn.operation(), Operation::Embeddings(_)),
            prompt_tokens: usage.prompt,
            output_tokens: usage.completion,
            estimated: usage.estimated,
            made_ms: clock::now().wall_ms,
        };
        let body: Arc<[u8]> = cached::with_usage(answer, self.turn.usage(), usage).into();
        if !self.turn.is_spoiled() {
            self.keep(key, facts.clone(), &body);
        }
        if let Some(lead) = &self.lead {
            let tier = RowCache::Exact;
            lead.land(Landing::Answer(Shared { facts, at, body, tier, score: None }));
        }
    }

    fn keep(&self, key: Key, facts: Facts, body: &Arc<[u8]>) {
        let (settings, made_ms) = (&self.snapshot.settings, facts.made_ms);
        if answers::keep(self.gateway, &settings.cache, key, facts, body) {
            if let Some(meaning) = self.meaning.take() {
                alike::keep(self.gateway, settings, key, meaning, made_ms);
            }
        }
    }

    /// The body for one model.
    fn adapted<'b>(
        &'b self,
        provider: &Provider,
        model: &Model,
        fitting: &'b Fitting,
        drops: &'b [String],
    ) -> Result<Spliced<'b>, ApiError> {
        let (messages, answer_room) = (fitting.messages.as_deref(), fitting.answer_room);
        match self.turn.operation() {
            Operation::Chat(facts) => {
                let amended = Amended { messages, answer_room, drops };
                adapt::adapt(self.body, facts, provider, model, amended)
            }
            Operation::Embeddings(_) => Ok(adapt::adapt_embeddings(self.body, provider, model, drops)),
        }
    }

    fn target(&self, attempt: &Attempt) -> Target<'_> {
        let provider = self.snapshot.catalog.provider(attempt.at);
        let budget_ms = attempt.deadline_ms.saturating_sub(clock::now().mono_ms);
        Target {
            provider,
            model: self.snapshot.catalog.model(attempt.at),
            key: &provider.keys[attempt.key],
            first_byte: self.first_byte(provider.timeouts.first_byte_ms),
            budget_ends: clock::instant() + Duration::from_millis(budget_ms),
        }
    }

    fn fitter(&self) -> Fitter<'_> {
        Fitter {
            asker: Asker {
                gateway: self.gateway,
                snapshot: self.snapshot,
                id: &self.id,
                client: self.client.as_ref(),
                principal: self.principal,
                session: self.session.as_ref().map(Session::tag),
            },
            turn: self.turn,
            body: self.body,
            prompt_tokens: self.ask.prompt_tokens,
            cut: self.cut,
        }
    }

    fn first_byte(&self, provider_ms: u64) -> Duration {
        let settings = &self.snapshot.settings;
        // A provider that is known to be slow says so in its file, and keeps its own time.
        let own = provider_ms != settings.timeout_ms;
        let stream_ms = settings.stream_timeout_ms.filter(|_| self.turn.streams() && !own);
        Duration::from_millis(stream_ms.unwrap_or(provider_ms))
    }

    fn judge(&self, target: &Target<'_>, attempted: &Attempted) -> Outcome {
        let headers = &attempted.headers;
        let left = self.turn.client_left() || self.cut.is_cut();
        let end = match &attempted.ending {
            Ending::Served => End::Served { headers },
            Ending::Fault(fault) if left => End::ClientLeft { reached: fault.request_sent },
            Ending::ClientLeft => End::ClientLeft { reached: true },
            _ if left => End::ClientLeft { reached: true },
            Ending::Fault(fault) => End::Fault(fault),
            Ending::Status { status, body } => End::Status { status: *status, headers, body },
            Ending::ErrorInAnswer(body) => End::ErrorInAnswer { headers, body },
            Ending::NoAnswer(what) => End::NoAnswer(*what),
        };
        let now = clock::now();
        let circumstances = Circumstances {
            clock_behind: now.wall_ms / 1000 < clock::built_s(),
            cut_off: matches!(end, End::Fault(_)) && !target.provider.local && !way_out::exists(),
        };
        let prompt_tokens = self.turn.prompt_tokens();
        let signal = Signal { provider: target.provider, prompt_tokens, circumstances, end };
        classify(&signal, now)
    }

    /// What a call that was not served may have used: what the upstream said, else the prompt, which it may have read.
    fn spent(&self, attempted: &Attempted) -> Spent {
        let usage = attempted.usage.unwrap_or_else(|| Usage::estimate(self.turn.prompt_tokens(), 0));
        Spent { prompt_tokens: usage.prompt, output_tokens: usage.completion, ..Spent::default() }
    }

    /// Adds the last failed hop to the trail, and to the log.
    fn note_hop(&self, failover: &Failover) {
        let Some(hop) = failover.hops().last() else { return };
        let (provider, model) = (self.snapshot.catalog.provider(hop.at), self.snapshot.catalog.model(hop.at));
        self.turn.note(|info| info.trail.push(format!("{}:{}", model.reference, hop.failure.cause)));
        // A box that is offline for a night would fill its log with what an alert says once.
        let offline = hop.failure.class == Class::NoNetwork;
        let level = if offline { log::Level::Debug } else { log::Level::Warn };
        log::log!(
            level,
            "{} did not serve ({}, blame: {}) with key {} after {} ms: {}",
            model.reference,
            hop.failure.cause,
            hop.failure.class.blame(),
            provider.keys[hop.key].masked,
            hop.took_ms,
            self.snapshot.redactor.redact(&hop.failure.message),
        );
    }

    fn give_up(&self, failover: &Failover, dead: &Dead) {
        let last = failover.hops().last().map(|hop| With { at: hop.at, key: Some(hop.key) });
        if dead.end == DeadEnd::ClientLeft || self.cut.is_cut() {
            return self.record(CLIENT_CLOSED, Some(CLIENT_CLOSED_CODE), Some(failover), last, None);
        }
        let error = terminal::answer(dead, failover, &self.asked());
        self.turn.note(|info| info.attempts = failover.calls());
        self.refuse(&error, Some(failover), last, None);
    }

    /// Records the turn, then tells the client why it gets no answer, or no whole one.
    fn refuse(
        &self,
        error: &ApiError,
        failover: Option<&Failover>,
        last: Option<With>,
        usage: Option<Usage>,
    ) {
        let error = redacted(error, &self.snapshot.redactor);
        self.record(error.status, Some(&error.code), failover, last, usage);
        if let Some(lead) = &self.lead {
            lead.land(Landing::Error(Box::new(error.clone())));
        }
        self.turn.refuse(&error);
    }

    /// Records an answer that is about to leave. Others may still be there for it when this turn's client is not.
    fn record_served(&self, failover: &Failover, with: With, usage: Usage) {
        let (status, error) =
            if self.own.is_cut() { (CLIENT_CLOSED, Some(CLIENT_CLOSED_CODE)) } else { (200, None) };
        self.record(status, error, Some(failover), Some(with), Some(usage));
    }

    fn record(
        &self,
        status: u16,
        error: Option<&str>,
        failover: Option<&Failover>,
        with: Option<With>,
        usage: Option<Usage>,
    ) {
        // Before the last byte leaves: whoever has a whole answer may ask again at once.
        if let Some(admitted) = self.admitted.take() {
            admitted.leave(usage.map_or(0, |usage| usage.total));
        }
        let facts = record::Facts {
            id: &self.id,
            client: self.client.as_ref(),
            requested: &self.requested,
            resolution: &self.route,
            status,
            error,
            failover,
            with,
            usage: usage.unwrap_or_default(),
            cache: None,
            refit: self.turn.rung().and_then(record::refit),
        };
        record::keep(self.gateway, self.snapshot, self.turn, &facts);
    }

    /// Holds the request until a candidate frees up, if that is soon enough for this client, or for a while after which
    /// to look whether one did earlier. False when it is not, and when the client has left.
    fn wait_for(&self, dead: &Dead, wait_ends: Instant) -> bool {
        let Some(retry_in_ms) = dead.blocked.iter().filter_map(look_again_ms).min() else { return false };
        let frees_in = Duration::from_millis(retry_in_ms) + WAIT_MARGIN;
        if clock::instant() + frees_in > wait_ends {
            return false;
        }
        let Some(_held) = self.gateway.hold_one() else { return false };
        // Who wakes too early only looks once more.
        !self.cut.wait(frees_in.min(LOOK_EARLIER))
    }
}

/// Whether a turn has come to its end.
enum Told {
    More,
    All,
}

/// What is wanted little is asked only of who has used no more than this fraction of each limit.
const LITTLE_FILL: f64 = 0.9;
/// Whoever has used no more than this fraction of each limit has plenty.
const PLENTY_FILL: f64 = 0.75;

/// Benches and windows end a moment after the time that was read.
const WAIT_MARGIN: Duration = Duration::from_millis(20);

/// A held request looks this often whether a candidate frees up earlier than was foretold: the owner may lift a bench,
/// and a call that ends gives back what it did not use.
const LOOK_EARLIER: Duration = Duration::from_secs(1);

/// When a held request looks again for a place that an ending call gives back, which nobody can foretell.
const BUSY_LOOK_MS: u64 = 100;

/// How long until it is worth a look whether a model is free.
fn look_again_ms(blocked: &Blocked) -> Option<u64> {
    match blocked.obstacle {
        Obstacle::Full { retry_in_ms: None, .. } => Some(BUSY_LOOK_MS),
        _ => blocked.retry_in_ms,
    }
}

/// How an answer with these headers leaves the key and the model that served it.
pub fn served(headers: &Headers, target: &Target<'_>, prompt_tokens: u64) -> Outcome {
    let signal = Signal {
        provider: target.provider,
        prompt_tokens,
        circumstances: Circumstances::default(),
        end: End::Served { headers },
    };
    classify(&signal, clock::now())
}

/// What ends a stream whose upstream died after the commit.
fn broken_off(hop: Option<&Hop>) -> ApiError {
    let what = hop.map_or("its upstream failed", |hop| hop.failure.message.as_str());
    ApiError::new(502, "all_attempts_failed", format!("the answer broke off: {what}"))
}

/// Nothing that leaves the process holds a provider's key, and no client is told of inner hosts.
fn redacted(error: &ApiError, redactor: &Redactor) -> ApiError {
    let mut error = error.clone();
    let clean = |text: &str| redactor.redact_for_client(text).into_owned();
    error.message = clean(&error.message);
    // Upstreams name the code and the field, so these may hold anything too.
    error.code = clean(&error.code);
    error.param = error.param.map(|param| clean(&param));
    error.freeway.values_mut().for_each(|value| redact_value(redactor, value));
    error
}

fn redact_value(redactor: &Redactor, value: &mut Value) {
    match value {
        Value::String(text) => *text = redactor.redact_for_client(text).into_owned(),
        Value::Array(list) => list.iter_mut().for_each(|value| redact_value(redactor, value)),
        Value::Object(members) => {
            // Names of members come from upstreams as well.
            for (name, mut value) in std::mem::take(members) {
                redact_value(redactor, &mut value);
                members.insert(redactor.redact_for_client(&name).into_owned(), value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
