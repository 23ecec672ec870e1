//! The OpenAI surface: requests in, turns made of them, answers out.
use std::io;
use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::{Answer, Fields, Responder, Stream};
use super::conn::{Admission, Next, Work};
use super::head::Head;
use super::routes::Visit;
use super::{limits, path, rights};
use crate::base::clock;
use crate::base::text::truncate;
use crate::cache::rule::Wish;
use crate::catalog::client_key::ClientKey;
use crate::catalog::listing::{Listed, listing};
use crate::catalog::load::Snapshot;
use crate::catalog::names::{Kind, Resolution, SUGGESTIONS_MAX};
use crate::catalog::settings::Strategy;
use crate::relay::admitted::Admitted;
use crate::relay::flow::Flow;
use crate::relay::gateway::Gateway;
use crate::relay::intake::{self, Course};
use crate::relay::outlet::{Outlet, Sink};
use crate::relay::route_info::RouteInfo;
use crate::relay::sessions;
use crate::relay::turn::{Controls, Operation, Request};
use crate::route::terminal;
use crate::upstream::cut::Cut;
use crate::wire::body::Body;
use crate::wire::chat::ChatFacts;
use crate::wire::embeddings::EmbeddingFacts;
use crate::wire::error::ApiError;

/// `POST /v1/chat/completions`.
pub fn chat(visit: Visit<'_>) -> Admission {
    inference(visit, |body, max_messages| {
        ChatFacts::read(body, max_messages).map(|facts| Operation::Chat(Box::new(facts)))
    })
}

/// `POST /v1/embeddings`.
pub fn embeddings(visit: Visit<'_>) -> Admission {
    inference(visit, |body, _| EmbeddingFacts::read(body).map(|facts| Operation::Embeddings(Box::new(facts))))
}

/// Reads the body, settles what needs no upstream, and leaves the rest to a worker's place.
fn inference(visit: Visit<'_>, read: fn(&Body, usize) -> Result<Operation, ApiError>) -> Admission {
    let key = visit.caller.client().cloned();
    let controls = match controls(visit.head, key.as_deref()) {
        Ok(controls) => controls,
        Err(error) => return visit.answer(Answer::error(&error)),
    };
    let snapshot = visit.gateway.snapshot();
    let settings = &snapshot.settings;
    let (max_bytes, max_messages, guard) =
        (settings.server.body_bytes, settings.max_messages, settings.guard);
    let address = rights::address(visit.head, visit.peer, settings);
    let callers = limits::callers(&visit.caller, address, &guard);
    let gateway = Arc::clone(visit.gateway);
    // What cannot be admitted anyway is not read first.
    if !callers.is_empty()
        && let Err(refused) = gateway.limiter.lock().look(&callers, 0, clock::now())
    {
        return visit.answer(Answer::error(&limits::refusal(&refused)));
    }
    let (id, client, principal) = (visit.request_id.clone(), visit.caller.name(), visit.caller.principal());
    let sticks = stuck_name(visit.head).map(|name| sessions::sticks(principal, name));
    let terms = visit.terms(max_bytes);
    let then = move |bytes: Vec<u8>| {
        let arrived = clock::now();
        let made =
            Body::parse(bytes).and_then(|body| read(&body, max_messages).map(|operation| (body, operation)));
        let (body, operation) = match made {
            Ok(made) => made,
            Err(error) => return Next::Answer(Answer::error(&error)),
        };
        let admitted =
            limits::look_through(&gateway, &guard, body.bytes(), &id, client.as_ref()).and_then(|()| {
                let tokens = operation.prompt_tokens();
                Admitted::enter(&gateway, &callers, tokens).map_err(|refused| limits::refusal(&refused))
            });
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(error) => return Next::Answer(Answer::error(&error)),
        };
        let request = Request {
            id,
            client,
            principal,
            client_key: key.clone(),
            body,
            operation,
            controls,
            sticks,
            arrived,
            admitted,
        };
        let course = intake::settle(&gateway, request);
        let needs_worker = course.needs_worker();
        let errand = Errand { gateway, course };
        if needs_worker {
            Next::Work(Box::new(errand))
        } else {
            Next::Here(Box::new(|responder| errand.go(responder)))
        }
    };
    Admission::Body(terms, Box::new(then))
}

/// A request that is settled as far as it can be without an upstream.
struct Errand {
    gateway: Arc<Gateway>,
    course: Course,
}

impl Errand {
    fn go(self, responder: Responder) {
        let cut = Arc::clone(responder.cut());
        self.course.run(&self.gateway, Outlet::new(Box::new(Surface::new(responder))), &cut);
    }
}

impl Work for Errand {
    fn ended_by(&self, own: &Arc<Cut>) -> Arc<Cut> {
        self.course.ended_by(own)
    }

    fn run(self: Box<Self>, responder: Responder) {
        self.go(responder);
    }
}

/// Headers by which apps name a conversation that they keep themselves.
const STICKY_HEADERS: [&str; 4] =
    ["x-session-id", "session-id", "x-claude-code-session-id", "x-codex-session-id"];

/// The conversation that the headers name.
fn stuck_name(head: &Head) -> Option<&str> {
    STICKY_HEADERS.iter().find_map(|name| head.header(name).filter(|value| !value.is_empty()))
}

/// Longest that a request may ask to be held, in seconds.
const WAIT_S_MAX: f64 = 300.0;

/// The request controls in the headers, and those that come with the client's key.
fn controls(head: &Head, key: Option<&ClientKey>) -> Result<Controls, ApiError> {
    let value = |name| head.header(name).filter(|value| !value.is_empty());
    let bad = |name: &str, value: &str, expected: &str| {
        Err(ApiError::bad_field(
            "invalid_body",
            name,
            format!("{name}: {} is no {expected}", truncate(value, 64)),
        ))
    };
    let usual_strategy = key.and_then(|key| key.rules.strategy);
    let mut controls = Controls { usual_strategy, ..Controls::default() };
    if let Some(name) = value("x-freeway-strategy") {
        match Strategy::by_name(name) {
            Some(strategy) => controls.strategy = Some(strategy),
            None => {
                let known: Vec<&str> = Strategy::NAMES.iter().map(|(name, _)| *name).collect();
                return bad("x-freeway-strategy", name, &format!("strategy; known are {}", known.join(", ")));
            }
        }
    }
    if let Some(count) = value("x-freeway-max-attempts") {
        match count.parse::<u32>() {
            Ok(count) if count > 0 => controls.max_attempts = Some(count),
            _ => return bad("x-freeway-max-attempts", count, "positive whole number"),
        }
    }
    if let Some(seconds) = value("x-freeway-wait") {
        match seconds.parse::<f64>() {
            Ok(wait) if (0.0..=WAIT_S_MAX).contains(&wait) => controls.wait_ms = (wait * 1000.0) as u64,
            _ => return bad("x-freeway-wait", seconds, "number of seconds from 0 to 300"),
        }
    }
    if let Some(word) = value("x-freeway-cache") {
        match Wish::of_word(word) {
            Some(wish) => controls.cache = wish,
            None => {
                return bad("x-freeway-cache", word, &format!("word for the cache; it is {}", Wish::WORDS));
            }
        }
    }
    for (_, directives) in head.fields().filter(|(name, _)| name.eq_ignore_ascii_case("cache-control")) {
        controls.cache = controls.cache.with_directives(directives);
    }
    // What the owner has said of a key is more than what its app wants.
    controls.cache.private |= key.is_some_and(|key| key.rules.cache == Some(false));
    Ok(controls)
}

/// `GET /v1/models`; `?available=1` leaves out what nobody can serve.
pub fn models(visit: Visit<'_>) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let available = path::query_value(visit.head.query(), "available")
        .is_some_and(|value| value != "0" && value != "false");
    let created_s = created_s();
    let data: Vec<Value> = listed(&visit, &snapshot)
        .iter()
        .filter(|entry| !available || entry.unavailable_reason.is_none())
        .map(|entry| entry.to_json(created_s))
        .collect();
    visit.answer(Answer::json(200, json!({"object": "list", "data": data}).to_string().into_bytes()))
}

/// `GET /v1/models/{id}`; ids may hold slashes, raw or escaped.
pub fn model(visit: Visit<'_>) -> Admission {
    let Ok(id) = path::decoded(visit.rest) else {
        let error = ApiError::bad_field("", "model", "the model id in the path holds a broken %-escape");
        return visit.answer(Answer::error(&error));
    };
    let snapshot = visit.gateway.snapshot();
    let entries = listed(&visit, &snapshot);
    visit.answer(match entries.iter().find(|entry| entry.id == *id) {
        Some(entry) => Answer::json(200, entry.to_json(created_s()).to_string().into_bytes()),
        None => Answer::error(&no_entry(&snapshot, &entries, &id)),
    })
}

/// An id that is not listed, with those of `entries` that may be meant.
fn no_entry(snapshot: &Snapshot, entries: &[Listed], id: &str) -> ApiError {
    let found = snapshot.names.resolve(&snapshot.catalog, &snapshot.settings, id, Kind::Chat);
    let holding = found.models.iter().map(|at| snapshot.catalog.model(*at).reference.to_string());
    let near = found.suggestions.into_iter().chain(holding);
    let usable = near.filter(|near| entries.iter().any(|entry| entry.id == *near));
    let none = Resolution::unmatched(id, usable.take(SUGGESTIONS_MAX).collect());
    terminal::unmatched(&none, truncate(id, 200))
}

/// The entries that the caller may use.
fn listed(visit: &Visit<'_>, snapshot: &Snapshot) -> Vec<Listed> {
    let mut entries = listing(&snapshot.catalog, &snapshot.names, &snapshot.settings);
    if let Some(key) = visit.caller.client() {
        entries.retain(|entry| key.rules.allow(&entry.id));
    }
    entries
}

/// When the models were "created": the time of the answer, since nothing better is known.
fn created_s() -> u64 {
    clock::now().wall_ms / 1000
}

/// One client's side of a turn, in OpenAI's shapes.
struct Surface {
    /// Taken by the first thing that is sent.
    responder: Option<Responder>,
    stream: Option<Stream>,
}

impl Surface {
    fn new(responder: Responder) -> Surface {
        Surface { responder: Some(responder), stream: None }
    }
}

/// What an intermediary must do with a stream: nothing.
const STREAM_HEADERS: [(&str, &str); 2] =
    [("content-type", "text/event-stream; charset=utf-8"), ("x-accel-buffering", "no")];

impl Sink for Surface {
    fn whole(&mut self, route: &RouteInfo, body: Vec<u8>) -> io::Result<()> {
        let mut answer = Answer::json(200, body);
        answer.headers.extend(route.headers());
        self.answer(&answer)
    }

    fn begin(&mut self, route: &RouteInfo) -> io::Result<()> {
        let responder = self.responder.take().ok_or_else(answered)?;
        let mut headers: Fields = STREAM_HEADERS.map(|(name, value)| (name, value.into())).to_vec();
        headers.extend(route.headers());
        self.stream = Some(responder.stream(200, headers));
        Ok(())
    }

    fn frames(&mut self, frames: &[u8]) -> io::Result<()> {
        self.stream.as_mut().ok_or_else(answered)?.frame(frames)
    }

    fn let_flow(&mut self, flow: Box<Flow>) -> (Box<Flow>, io::Result<()>) {
        match &mut self.stream {
            Some(stream) => stream.let_flow(flow),
            None => (flow, Err(answered())),
        }
    }

    fn end(&mut self, frames: &[u8]) -> io::Result<()> {
        self.stream.take().ok_or_else(answered)?.end(frames)
    }

    fn refuse(&mut self, route: &RouteInfo, error: &ApiError) -> io::Result<()> {
        let Some(stream) = self.stream.take() else {
            let mut answer = Answer::error(error);
            answer.headers.extend(route.headers());
            return self.answer(&answer);
        };
        // No `[DONE]` and no finish reason: a client must be able to tell this from a whole answer.
        let mut event = b"data: ".to_vec();
        event.extend_from_slice(&error.body());
        event.extend_from_slice(b"\n\n");
        stream.end(&event)
    }
}

impl Surface {
    fn answer(&mut self, answer: &Answer) -> io::Result<()> {
        self.responder.take().ok_or_else(answered)?.whole(answer)
    }
}

fn answered() -> io::Error {
    io::Error::other("this request has its answer already")
}
