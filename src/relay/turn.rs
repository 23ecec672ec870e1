//! One turn, from an admitted request to a recorded answer: resolve, order, then attempt after attempt until somebody
//! serves, nobody is left, or the client is gone.
//!
//! Locks on live state are taken between I/O only, and never while another lock is held.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::attempt::{self, Attempted, Ending, Target};
use super::booking::Booking;
use super::gateway::Gateway;
use super::outlet::Outlet;
use super::record;
use super::route_info::RouteInfo;
use crate::base::clock::{self, Now};
use crate::base::text::Redactor;
use crate::catalog::load::Snapshot;
use crate::catalog::names::{How, Kind, Resolution};
use crate::catalog::provider::{Caps, Provider};
use crate::catalog::settings::Strategy;
use crate::context::tokens;
use crate::quota::Spent;
use crate::route::failover::{Attempt, Dead, DeadEnd, Failover, Hop, Manner, Next, Report};
use crate::route::outcome::{End, Outcome, Signal, classify};
use crate::route::plan::{Ask, Order};
use crate::route::speed::Answer;
use crate::route::terminal;
use crate::route::verdict::Policy;
use crate::upstream::adapt;
use crate::upstream::cut::Cut;
use crate::upstream::watch::Watch;
use crate::wire::body::Body;
use crate::wire::chat::ChatFacts;
use crate::wire::embeddings::EmbeddingFacts;
use crate::wire::error::ApiError;
use crate::wire::exchange::Headers;
use crate::wire::usage::Usage;

/// An admitted request.
pub struct Request {
    /// The `x-request-id` of its answer.
    pub id: String,
    /// The name of the client's key.
    pub client: Option<Arc<str>>,
    pub body: Body,
    pub operation: Operation,
    pub controls: Controls,
    pub arrived: Now,
}

/// What is asked for, and what routing has to know of it.
pub enum Operation {
    Chat(Box<ChatFacts>),
    Embeddings(Box<EmbeddingFacts>),
}

impl Operation {
    fn asked(&self) -> (&str, &[String]) {
        match self {
            Operation::Chat(facts) => (&facts.model, &facts.models),
            Operation::Embeddings(facts) => (&facts.model, &facts.models),
        }
    }

    fn ask(&self) -> Ask {
        match self {
            Operation::Chat(facts) => {
                let mut caps = Caps::default();
                for (needed, cap) in
                    [(facts.tools, Caps::TOOLS), (facts.json, Caps::JSON), (facts.images > 0, Caps::VISION)]
                {
                    caps = if needed { caps.with(cap) } else { caps };
                }
                let answer = if facts.stream { Answer::Stream } else { Answer::Whole };
                let prompt_tokens = tokens::estimate(&facts.tally);
                Ask { kind: Kind::Chat, caps, prompt_tokens, max_output: facts.max_output, answer }
            }
            Operation::Embeddings(facts) => Ask {
                kind: Kind::Embed,
                caps: Caps::default(),
                prompt_tokens: tokens::estimate(&facts.tally),
                max_output: Some(0),
                answer: Answer::Whole,
            },
        }
    }
}

/// What the request's headers want of routing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Controls {
    pub strategy: Option<Strategy>,
    /// Only lowers what is configured.
    pub max_attempts: Option<u32>,
    /// How long the request may be held when everybody is blocked.
    pub wait_ms: u64,
}

/// A turn in progress, as those see it who carry its answer.
pub struct Turn {
    operation: Operation,
    pub arrived: Now,
    pub prompt_tokens: u64,
    outlet: RefCell<Outlet>,
    /// What the headers say; the time is added when they leave.
    info: RefCell<RouteInfo>,
    hold_ends: Instant,
    keep_alive: Duration,
    first_token: Cell<Option<Now>>,
}

impl Turn {
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// Whether the client wants a stream.
    pub fn streams(&self) -> bool {
        matches!(&self.operation, Operation::Chat(facts) if facts.stream)
    }

    pub fn include_usage(&self) -> bool {
        matches!(&self.operation, Operation::Chat(facts) if facts.include_usage)
    }

    /// Choices asked for.
    pub fn choices(&self) -> u32 {
        match &self.operation {
            Operation::Chat(facts) => facts.n,
            Operation::Embeddings(_) => 1,
        }
    }

    pub fn client_left(&self) -> bool {
        self.outlet.borrow().gone()
    }

    /// When anything of the answer's content first left.
    pub fn first_token(&self) -> Option<Now> {
        self.first_token.get()
    }

    /// Whether part of the answer has left.
    pub fn committed(&self) -> bool {
        self.outlet.borrow().committed()
    }

    /// Lets `watch` send keep-alives while the client waits: from the end of the hold on, until the commit and between
    /// the events after it.
    pub fn keep_alive_by(self: &Rc<Turn>, watch: &Watch) {
        let turn = Rc::clone(self);
        watch.on_pulse(Box::new(move || {
            let waiting = !turn.committed();
            let mut info = turn.info_now();
            if waiting {
                // Somebody else may yet serve.
                (info.provider, info.model) = (None, None);
            }
            turn.outlet.borrow_mut().keep_alive(&info);
            Some(clock::instant() + turn.keep_alive)
        }));
        watch.set_pulse(Some(self.hold_ends.max(clock::instant())));
    }

    /// Something was sent: the next keep-alive is a whole period away.
    pub fn set_pulse(&self, watch: &Watch) {
        watch.set_pulse(Some(clock::instant() + self.keep_alive));
    }

    /// Sends events of the answer: from now on nobody else may give one.
    pub fn commit(&self, frames: &[u8]) {
        if self.first_token.get().is_none() {
            self.first_token.set(Some(clock::now()));
        }
        self.outlet.borrow_mut().commit(&self.info_now(), frames);
    }

    /// Sends the last events of the answer.
    pub fn finish(&self, frames: &[u8]) {
        self.outlet.borrow_mut().finish(&self.info_now(), frames);
    }

    pub fn send_whole(&self, body: Vec<u8>, usage_estimated: bool) {
        let info = RouteInfo { usage_estimated, ..self.info_now() };
        self.outlet.borrow_mut().whole(&info, body);
    }

    fn info_now(&self) -> RouteInfo {
        let elapsed_ms = clock::now().mono_ms.saturating_sub(self.arrived.mono_ms);
        RouteInfo { elapsed_ms, ..self.info.borrow().clone() }
    }
}

/// Serves `request` into `outlet`. `cut` ends upstream calls when the client leaves.
pub fn run(gateway: &Gateway, request: Request, outlet: Outlet, cut: &Arc<Cut>) {
    let snapshot = gateway.snapshot();
    let Request { id, client, body, operation, controls, arrived } = request;
    let ask = operation.ask();
    let (model, models) = operation.asked();
    let requested = if models.is_empty() { model.to_owned() } else { models.join(", ") };
    let asked: &[String] = if models.is_empty() { &[model.to_owned()] } else { models };
    let resolution = snapshot.names.resolve(&snapshot.catalog, &snapshot.settings, asked, ask.kind);
    let stream = &snapshot.settings.stream;
    let turn = Rc::new(Turn {
        operation,
        arrived,
        prompt_tokens: ask.prompt_tokens,
        outlet: RefCell::new(outlet),
        info: RefCell::new(RouteInfo { resolution: resolution.route.clone(), ..RouteInfo::default() }),
        hold_ends: clock::instant() + Duration::from_millis(stream.hold_ms),
        keep_alive: Duration::from_millis(stream.keep_alive_ms),
        first_token: Cell::new(None),
    });
    let snapshot = &*snapshot;
    let (turn, body) = (&turn, &body);
    Story { gateway, snapshot, turn, id, client, body, ask, resolution, requested, cut }.tell(&controls);
}

/// What came of a turn.
pub struct Told {
    pub served: Option<Served>,
    /// The status that the client saw; 499 when it left first.
    pub status: u16,
    /// `error.code` of what the client was told instead of an answer.
    pub error: Option<String>,
    pub usage: Option<Usage>,
}

/// With whom the last attempt was made.
#[derive(Clone, Copy)]
pub struct Served {
    pub at: crate::catalog::ModelIx,
    pub key: usize,
}

/// Everything that the attempts of one turn share.
struct Story<'a> {
    gateway: &'a Gateway,
    snapshot: &'a Snapshot,
    turn: &'a Rc<Turn>,
    id: String,
    client: Option<Arc<str>>,
    body: &'a Body,
    ask: Ask,
    resolution: Resolution,
    requested: String,
    cut: &'a Arc<Cut>,
}

/// How a turn goes on after an attempt.
enum Step {
    GoOn,
    Ended,
}

/// A status of nginx's that says that the client closed the connection before it was answered.
const CLIENT_CLOSED: u16 = 499;

impl Story<'_> {
    fn tell(&self, controls: &Controls) {
        if terminal::is_unmatched(&self.resolution) {
            let error = terminal::unmatched(&self.resolution, &self.requested);
            return self.refuse(&error, None, None, None);
        }
        let mut failover = self.failover(controls);
        let wait_ends = clock::instant() + Duration::from_millis(controls.wait_ms);
        // A client may have left while its request waited for a worker.
        while !self.cut.is_cut() {
            let next = failover.next(&self.snapshot.catalog, &mut self.gateway.live.lock(), clock::now());
            match next {
                Next::Try(attempt) => match self.attempt(&mut failover, attempt) {
                    Step::Ended => return,
                    Step::GoOn => {}
                },
                Next::GiveUp(dead) if dead.end == DeadEnd::Blocked && self.wait_for(&dead, wait_ends) => {}
                Next::GiveUp(_) if self.cut.is_cut() => {}
                Next::GiveUp(dead) => return self.give_up(&failover, &dead),
            }
        }
        self.keep_left(&failover, None, None);
    }

    fn asked(&self) -> terminal::Asked<'_> {
        let (catalog, redactor) = (&self.snapshot.catalog, &self.snapshot.redactor);
        terminal::Asked { catalog, resolution: &self.resolution, model: &self.requested, redactor }
    }

    fn failover(&self, controls: &Controls) -> Failover {
        let (catalog, settings) = (&self.snapshot.catalog, &self.snapshot.settings);
        let mut policy = Policy::new(settings);
        if let Some(own) = controls.max_attempts {
            policy.max_attempts = policy.max_attempts.min(own);
        }
        let manner = Manner {
            route: &self.resolution.route,
            strategy: controls.strategy.or(self.resolution.strategy).unwrap_or(settings.strategy),
            keep_order: self.resolution.keep_order,
            pinned: self.resolution.how == How::Pin,
        };
        let mut live = self.gateway.live.lock();
        let order: Arc<Order> =
            live.orders.get(self.snapshot.id, catalog, &self.resolution, self.ask.needed());
        Failover::new(order, self.ask, policy, &manner, &mut live, clock::now())
    }

    /// Makes one attempt.
    fn attempt(&self, failover: &mut Failover, attempt: Attempt) -> Step {
        let catalog = &self.snapshot.catalog;
        let (provider, model) = (catalog.provider(attempt.at), catalog.model(attempt.at));
        let served = Served { at: attempt.at, key: attempt.key };
        {
            let mut info = self.turn.info.borrow_mut();
            (info.provider, info.model) = (Some(Arc::clone(&provider.id)), Some(Arc::clone(&model.id)));
            info.attempts = attempt.number;
        }
        let adapted = match self.turn.operation() {
            Operation::Chat(facts) => adapt::adapt(self.body, facts, provider, model, &attempt.drops),
            Operation::Embeddings(facts) => {
                adapt::adapt_embeddings(self.body, facts, provider, model, &attempt.drops)
            }
        };
        let adapted = match adapted {
            Ok(adapted) => adapted,
            Err(error) => {
                self.gateway.live.lock().ledger.release(attempt.reservation);
                self.refuse(&error, Some(failover), None, None);
                return Step::Ended;
            }
        };
        let target = Target {
            provider,
            model,
            key: &provider.keys[attempt.key],
            first_byte: self.first_byte(provider.timeouts.first_byte_ms),
            budget_ends: clock::instant()
                + Duration::from_millis(attempt.deadline_ms.saturating_sub(clock::now().mono_ms)),
        };
        let keep = |failover: &Failover, usage| {
            let told = Told { served: Some(served), status: 200, error: None, usage: Some(usage) };
            self.keep(Some(failover), told);
        };
        let mut booking = Booking {
            gateway: self.gateway,
            catalog,
            failover,
            attempt: Some(attempt),
            cut: self.cut,
            keep: &keep,
            headers: Headers::default(),
        };
        let attempted =
            attempt::make(self.turn, &self.gateway.client, &target, &adapted, self.cut, &mut booking);
        let Booking { failover, attempt, headers, .. } = booking;
        match attempt {
            // It has served, and everything is booked.
            None => Step::Ended,
            Some(attempt) => self.after_failure(failover, attempt, &attempted, &headers),
        }
    }

    /// Reports an attempt that did not serve; the turn goes on unless its answer has begun or its client is gone.
    fn after_failure(
        &self,
        failover: &mut Failover,
        attempt: Attempt,
        attempted: &Attempted,
        headers: &Headers,
    ) -> Step {
        let catalog = &self.snapshot.catalog;
        let served = Some(Served { at: attempt.at, key: attempt.key });
        let outcome = self.judge(catalog.provider(attempt.at), attempted, headers);
        let usage = attempted.usage;
        let (prompt_tokens, output_tokens) =
            usage.map_or((self.ask.prompt_tokens, 0), |usage| (usage.prompt, usage.completion));
        let spent = Spent { prompt_tokens, output_tokens, ..Spent::default() };
        let client_left = matches!(outcome, Outcome::ClientLeft { .. });
        let has_field = |name: &str| self.body.given(name).is_some();
        let report = Report { attempt, outcome, spent, has_field: &has_field };
        failover.report(catalog, &mut self.gateway.live.lock(), report, clock::now());
        if client_left {
            self.keep_left(failover, served, usage);
            return Step::Ended;
        }
        self.note_hop(failover);
        if self.turn.first_token().is_some() {
            // Part of an answer has left: nobody else may continue it.
            let error = broken_off(failover.hops().last());
            self.refuse(&error, Some(failover), served, usage);
            return Step::Ended;
        }
        Step::GoOn
    }

    fn first_byte(&self, provider_ms: u64) -> Duration {
        let settings = &self.snapshot.settings;
        // A provider that is known to be slow says so in its file, and keeps its own time.
        let own = provider_ms != settings.timeout_ms;
        let stream_ms = settings.stream_timeout_ms.filter(|_| self.turn.streams() && !own);
        Duration::from_millis(stream_ms.unwrap_or(provider_ms))
    }

    fn judge(&self, provider: &Provider, attempted: &Attempted, headers: &Headers) -> Outcome {
        let left = self.turn.client_left() || self.cut.is_cut();
        let end = match &attempted.ending {
            Ending::Served => End::Served { headers },
            Ending::ClientLeft => End::ClientLeft { reached: true },
            Ending::Fault(fault) if left => End::ClientLeft { reached: fault.request_sent },
            _ if left => End::ClientLeft { reached: true },
            Ending::Fault(fault) => End::Fault(fault),
            Ending::Status { status, body } => End::Status { status: *status, headers, body },
            Ending::ErrorInAnswer(body) => End::ErrorInAnswer { headers, body },
            Ending::NoAnswer(what) => End::NoAnswer(*what),
        };
        let now = clock::now();
        let clock_behind = now.wall_ms / 1000 < clock::built_s();
        let signal = Signal { provider, prompt_tokens: self.ask.prompt_tokens, clock_behind, end };
        classify(&signal, now)
    }

    /// Adds the last failed hop to the trail, and to the log.
    fn note_hop(&self, failover: &Failover) {
        let Some(hop) = failover.hops().last() else { return };
        let (provider, model) = (self.snapshot.catalog.provider(hop.at), self.snapshot.catalog.model(hop.at));
        self.turn.info.borrow_mut().trail.push(format!("{}:{}", model.reference, hop.failure.cause));
        log::warn!(
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
        let last = failover.hops().last().map(|hop| Served { at: hop.at, key: hop.key });
        let error = terminal::answer(dead, failover, &self.asked());
        self.turn.info.borrow_mut().attempts = failover.calls();
        self.refuse(&error, Some(failover), last, None);
    }

    fn keep(&self, failover: Option<&Failover>, told: Told) {
        let facts = record::Facts {
            id: &self.id,
            client: self.client.as_ref(),
            requested: &self.requested,
            resolution: &self.resolution.route,
            failover,
            told,
        };
        record::keep(self.gateway, self.snapshot, self.turn, facts);
    }

    /// Keeps a turn whose client is gone.
    fn keep_left(&self, failover: &Failover, served: Option<Served>, usage: Option<Usage>) {
        let error = Some("client_closed".into());
        self.keep(Some(failover), Told { served, status: CLIENT_CLOSED, error, usage });
    }

    /// Keeps the turn, and tells the client why it gets no answer, or no whole one.
    fn refuse(
        &self,
        error: &ApiError,
        failover: Option<&Failover>,
        last: Option<Served>,
        usage: Option<Usage>,
    ) {
        let mut info = self.turn.info_now();
        if !self.turn.committed() {
            // Nobody served; who was tried stands in the body.
            (info.provider, info.model) = (None, None);
        }
        self.keep(
            failover,
            Told { served: last, status: error.status, error: Some(error.code.clone()), usage },
        );
        self.turn.outlet.borrow_mut().refuse(&info, &self.redacted(error));
    }

    /// Nothing that leaves the process holds a provider's key.
    fn redacted(&self, error: &ApiError) -> ApiError {
        let redactor = &self.snapshot.redactor;
        let mut error = error.clone();
        error.message = redactor.redact(&error.message).into_owned();
        error.freeway.values_mut().for_each(|value| redact_value(redactor, value));
        error
    }

    /// Holds the request until a candidate frees up, if that is soon enough and the client is patient. False when it
    /// is not, and when the client has left.
    fn wait_for(&self, dead: &Dead, wait_ends: Instant) -> bool {
        let Some(retry_in_ms) = dead.blocked.iter().filter_map(|blocked| blocked.retry_in_ms).min() else {
            return false;
        };
        let ends = clock::instant() + Duration::from_millis(retry_in_ms) + WAIT_MARGIN;
        if ends > wait_ends {
            return false;
        }
        let Some(_held) = self.gateway.hold_one() else { return false };
        while !self.cut.is_cut() {
            let left = ends.saturating_duration_since(clock::instant());
            if left.is_zero() {
                return true;
            }
            self.cut.wait(left);
        }
        false
    }
}

/// Benches and windows end a moment after the time that was read.
const WAIT_MARGIN: Duration = Duration::from_millis(20);

/// What ends a stream whose upstream died after the commit.
fn broken_off(hop: Option<&Hop>) -> ApiError {
    let what = hop.map_or("its upstream failed", |hop| hop.failure.message.as_str());
    ApiError::new(502, "upstream_error", format!("the answer broke off: {what}"))
}

fn redact_value(redactor: &Redactor, value: &mut Value) {
    match value {
        Value::String(text) => *text = redactor.redact(text).into_owned(),
        Value::Array(list) => list.iter_mut().for_each(|value| redact_value(redactor, value)),
        Value::Object(members) => members.values_mut().for_each(|value| redact_value(redactor, value)),
        _ => {}
    }
}
