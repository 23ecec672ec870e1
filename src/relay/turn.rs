//! A request, and the turn that it becomes: what those see of it who carry its answer.
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admitted::Admitted;
use super::flow::Flow;
use super::outlet::Outlet;
use super::route_info::RouteInfo;
use crate::base::clock::{self, Now};
use crate::cache::rule::Wish;
use crate::catalog::client_key::{ClientKey, Principal};
use crate::catalog::names::Kind;
use crate::catalog::provider::Caps;
use crate::catalog::settings::{ContextSettings, LogSettings, Strategy, StreamSettings};
use crate::context::budget::Shrink;
use crate::context::refit::Rung;
use crate::context::tokens;
use crate::route::plan::Ask;
use crate::route::speed::Answer;
use crate::route::sticky::StickyKey;
use crate::upstream::cut::Cut;
use crate::upstream::watch::Watch;
use crate::wire::body::Body;
use crate::wire::chat::ChatFacts;
use crate::wire::embeddings::EmbeddingFacts;
use crate::wire::error::ApiError;
use crate::wire::fold::fold;
use crate::wire::preview::{self, Clip};

/// An admitted request.
pub struct Request {
    /// The `x-request-id` of its answer.
    pub id: String,
    /// The name of the client's key.
    pub client: Option<Arc<str>>,
    /// Who owns what it leaves behind; `None` when no key was presented.
    pub principal: Option<Principal>,
    /// The client's key, for the rules that come with it; `None` for the owner, and when no key was asked for.
    pub client_key: Option<Arc<ClientKey>>,
    pub body: Body,
    pub operation: Operation,
    pub controls: Controls,
    /// The conversation that its headers name, which is not stored but sticks to a model.
    pub sticks: Option<StickyKey>,
    pub arrived: Now,
    /// Its place among the requests of its caller, where these are limited.
    pub admitted: Option<Admitted>,
}

/// What is asked for, and what routing has to know of it.
pub enum Operation {
    Chat(Box<ChatFacts>),
    Embeddings(Box<EmbeddingFacts>),
}

impl Operation {
    /// The model string, and the explicit list if there is one.
    pub fn asked(&self) -> (&str, &[String]) {
        match self {
            Operation::Chat(facts) => (&facts.model, &facts.models),
            Operation::Embeddings(facts) => (&facts.model, &facts.models),
        }
    }

    /// The prompt in tokens of our count.
    pub fn prompt_tokens(&self) -> u64 {
        match self {
            Operation::Chat(facts) => tokens::estimate(&facts.tally),
            Operation::Embeddings(facts) => tokens::estimate(&facts.tally),
        }
    }

    /// What routing has to look for.
    pub fn ask(&self, context: &ContextSettings) -> Ask {
        match self {
            Operation::Chat(facts) => {
                let mut caps = Caps::default();
                for (needed, cap) in
                    [(facts.tools, Caps::TOOLS), (facts.json, Caps::JSON), (facts.images > 0, Caps::VISION)]
                {
                    caps = if needed { caps.with(cap) } else { caps };
                }
                let answer = if facts.stream { Answer::Stream } else { Answer::Whole };
                let shrink = context.enabled.then(|| Shrink {
                    lean_tokens: tokens::estimate(&facts.extent.lean),
                    core_tokens: tokens::estimate(&facts.extent.core),
                    reserve_output: context.reserve_output,
                    prefer_fit: context.prefer_fit,
                });
                Ask {
                    kind: Kind::Chat,
                    caps,
                    prompt_tokens: self.prompt_tokens(),
                    window_tokens: self.prompt_tokens(),
                    shrink,
                    max_output: facts.max_output,
                    choices: facts.n,
                    answer,
                }
            }
            // Ids cannot be turned into text without the vocabulary that they were made with.
            Operation::Embeddings(facts) => Ask {
                kind: Kind::Embed,
                caps: if facts.token_ids { Caps::TOKEN_INPUTS } else { Caps::default() },
                prompt_tokens: self.prompt_tokens(),
                window_tokens: tokens::estimate(&facts.longest),
                shrink: None,
                max_output: Some(0),
                choices: 1,
                answer: Answer::Whole,
            },
        }
    }
}

/// What the request's headers want of routing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Controls {
    pub strategy: Option<Strategy>,
    /// For a request whose headers and model string name none: that of the client's key.
    pub usual_strategy: Option<Strategy>,
    /// Only lowers what is configured.
    pub max_attempts: Option<u32>,
    /// How long the request may be held when everybody is blocked.
    pub wait_ms: u64,
    pub cache: Wish,
    /// Less than the configured time for the whole turn.
    pub budget_ms: Option<u64>,
    pub haste: Haste,
}

/// How badly an answer is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Haste {
    #[default]
    Usual,
    /// It may save a call, and is not worth the last of anybody's quota.
    Little,
    /// It may be useful one day: only who has plenty of quota left is asked.
    None,
}

/// A turn in progress, as those see it who carry its answer.
pub struct Turn {
    operation: Operation,
    pub arrived: Now,
    /// What is sent, as the model would count it.
    prompt_tokens: Cell<u64>,
    outlet: RefCell<Outlet>,
    /// What the headers say; the time is added when they leave.
    info: RefCell<RouteInfo>,
    hold_ends: Instant,
    keep_alive: Duration,
    first_token: Cell<Option<Now>>,
    heard: RefCell<Heard>,
    /// The `usage` object of a stream, all details included, whether the client asked for it or not.
    usage: RefCell<Option<Vec<u8>>>,
    /// What ends the call that this turn makes for others as well.
    shared: RefCell<Option<Arc<Cut>>>,
    /// The answer is not what the model would say again: part of it was lost on the way.
    spoiled: Cell<bool>,
}

/// What is kept of an answer while it leaves.
#[derive(Default)]
pub struct Heard {
    /// What was asked and is being said, when a preview of it is kept.
    preview: Option<(String, Clip)>,
    /// The frames that have left, when somebody wants the answer whole.
    kept: Option<Vec<u8>>,
}

impl Heard {
    /// More frames of a stream leave.
    pub fn frames(&mut self, frames: &[u8]) {
        self.last(&Last::Frames(frames));
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(frames);
        }
    }

    /// The last part of the answer is about to leave.
    fn last(&mut self, last: &Last<'_>) {
        if let Some((_, said)) = &mut self.preview {
            match last {
                Last::Whole(body) => said.push_whole(body),
                Last::Frames(frames) => said.push_frames(frames),
            }
        }
    }
}

/// The last of an answer, on its way to the client.
pub enum Last<'a> {
    /// A whole JSON answer.
    Whole(&'a [u8]),
    /// The last events of a stream.
    Frames(&'a [u8]),
}

impl Turn {
    pub fn new(
        operation: Operation,
        arrived: Now,
        outlet: Outlet,
        resolution: Arc<str>,
        stream: &StreamSettings,
    ) -> Turn {
        Turn {
            prompt_tokens: Cell::new(0),
            operation,
            arrived,
            outlet: RefCell::new(outlet),
            info: RefCell::new(RouteInfo { resolution, ..RouteInfo::default() }),
            hold_ends: clock::instant() + Duration::from_millis(stream.hold_ms),
            keep_alive: Duration::from_millis(stream.keep_alive_ms),
            first_token: Cell::new(None),
            heard: RefCell::default(),
            usage: RefCell::new(None),
            shared: RefCell::new(None),
            spoiled: Cell::new(false),
        }
    }

    /// Keeps the beginnings of the newest question in `body` and of its answer, if the owner lets them be kept.
    pub fn keep_preview(&self, body: &Body, log: &LogSettings) {
        let question = match &self.operation {
            Operation::Chat(facts) => facts.question,
            Operation::Embeddings(_) => None,
        };
        if log.previews {
            self.heard.borrow_mut().preview = Some((preview::prompt(body, question), Clip::default()));
        }
    }

    /// Listens to the last part of the answer, which is about to leave.
    pub fn hear(&self, last: &Last<'_>) {
        self.heard.borrow_mut().last(last);
    }

    /// What was asked and said.
    pub fn take_preview(&self) -> Option<(String, String)> {
        let (prompt, said) = self.heard.borrow_mut().preview.take()?;
        Some((prompt, said.finish()))
    }

    /// From now on, what is streamed is kept as well, so that the answer can be had whole.
    pub fn keep_answer(&self) {
        self.heard.borrow_mut().kept = Some(Vec::new());
    }

    /// The whole answer, given its last part; `None` for a stream that was not kept. Usage stands in it only if the
    /// client asked for it.
    pub fn whole_answer<'a>(&self, last: &Last<'a>) -> Option<Cow<'a, [u8]>> {
        match last {
            Last::Whole(body) => Some(Cow::Borrowed(body)),
            Last::Frames(frames) => {
                let heard = self.heard.borrow();
                Some(Cow::Owned(fold(&[heard.kept.as_ref()?.as_slice(), frames].concat())))
            }
        }
    }

    /// Whether somebody wants the answer whole.
    pub fn keeps_answer(&self) -> bool {
        self.heard.borrow().kept.is_some()
    }

    /// Notes the `usage` object of a stream.
    pub fn note_usage(&self, usage: Vec<u8>) {
        *self.usage.borrow_mut() = Some(usage);
    }

    /// The `usage` object of a stream, if it was noted.
    pub fn usage(&self) -> Option<Vec<u8>> {
        self.usage.borrow().clone()
    }

    /// Says that the answer is good for this client only, and must not be given to others later.
    pub fn spoil(&self) {
        self.spoiled.set(true);
    }

    pub fn is_spoiled(&self) -> bool {
        self.spoiled.get()
    }

    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// Tokens of the prompt, as the model that is asked would count them.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens.get()
    }

    /// A prompt of so many tokens is about to be sent.
    pub fn set_prompt_tokens(&self, tokens: u64) {
        self.prompt_tokens.set(tokens);
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

    /// At which rung the conversation is sent.
    pub fn rung(&self) -> Option<Rung> {
        self.info.borrow().context.map(|context| context.rung)
    }

    /// What the headers say of how the conversation is sent.
    pub fn context_told(&self) -> Option<String> {
        self.info.borrow().context.map(|context| context.to_string())
    }

    /// Whether nobody waits for the answer any more.
    pub fn client_left(&self) -> bool {
        match &*self.shared.borrow() {
            Some(cut) => cut.is_cut(),
            None => self.outlet.borrow().gone(),
        }
    }

    /// Others wait for the answer as well: from now on `cut` tells whether all are gone.
    pub fn share(&self, cut: &Arc<Cut>) {
        *self.shared.borrow_mut() = Some(Arc::clone(cut));
    }

    /// When anything of the answer's content first left.
    pub fn first_token(&self) -> Option<Now> {
        self.first_token.get()
    }

    /// Whether part of the answer has left, so that nobody else may give one.
    pub fn committed(&self) -> bool {
        self.first_token.get().is_some()
    }

    /// Changes what the headers will say.
    pub fn note(&self, change: impl FnOnce(&mut RouteInfo)) {
        change(&mut self.info.borrow_mut());
    }

    /// Lets `watch` send keep-alives while the client waits: from the end of the hold on, until the commit and between
    /// the events after it.
    pub fn keep_alive_by(self: &Rc<Turn>, watch: &Watch) {
        let turn = Rc::clone(self);
        watch.on_pulse(Box::new(move || Some(turn.keep_alive())));
        watch.set_pulse(Some(self.first_keep_alive()));
    }

    /// When a client that waits for its stream is to hear of us first.
    pub fn first_keep_alive(&self) -> Instant {
        self.hold_ends.max(clock::instant())
    }

    /// Sends a keep-alive; when the next one is due.
    pub fn keep_alive(&self) -> Instant {
        // Headers that leave before the commit cannot say who will serve.
        let nobody_yet = || RouteInfo { provider: None, model: None, context: None, ..self.info_now() };
        self.outlet.borrow_mut().keep_alive(nobody_yet);
        clock::instant() + self.keep_alive
    }

    /// Longest silence towards the client.
    pub fn keep_alive_every(&self) -> Duration {
        self.keep_alive
    }

    /// Something was sent: the next keep-alive is a whole period away.
    pub fn set_pulse(&self, watch: &Watch) {
        watch.set_pulse(Some(clock::instant() + self.keep_alive));
    }

    /// Sends events of the answer: from now on nobody else may give one.
    pub fn commit(&self, frames: &[u8]) {
        self.mark_first_token();
        self.heard.borrow_mut().frames(frames);
        self.outlet.borrow_mut().commit(|| self.info_now(), frames);
    }

    /// Whether the stream can flow by itself: its answer has begun to leave, and the client is there.
    pub fn can_flow(&self) -> bool {
        self.outlet.borrow().is_flowing()
    }

    /// Lets a stream flow by itself until it needs this turn again.
    pub fn let_flow(&self, mut flow: Box<Flow>) -> Box<Flow> {
        flow.heard = self.heard.take();
        let mut flow = self.outlet.borrow_mut().let_flow(flow);
        self.heard.replace(std::mem::take(&mut flow.heard));
        flow
    }

    /// Sends the last events of the answer.
    pub fn finish(&self, frames: &[u8]) {
        self.mark_first_token();
        self.outlet.borrow_mut().finish(|| self.info_now(), frames);
    }

    fn mark_first_token(&self) {
        if self.first_token.get().is_none() {
            self.first_token.set(Some(clock::now()));
        }
    }

    pub fn send_whole(&self, body: Vec<u8>, usage_estimated: bool) {
        let info = RouteInfo { usage_estimated, ..self.info_now() };
        self.outlet.borrow_mut().whole(&info, body);
    }

    /// Tells the client why it gets no answer, or no whole one.
    pub fn refuse(&self, error: &ApiError) {
        let mut info = self.info_now();
        if !self.committed() {
            // Nobody served; who was tried stands in the body.
            (info.provider, info.model, info.context) = (None, None, None);
        }
        self.outlet.borrow_mut().refuse(&info, error);
    }

    fn info_now(&self) -> RouteInfo {
        let elapsed_ms = clock::now().mono_ms.saturating_sub(self.arrived.mono_ms);
        RouteInfo { elapsed_ms, ..self.info.borrow().clone() }
    }
}
