//! What is settled about a request before it needs a worker's place: what its model string means, and whether its answer
//! is in memory. Nothing bounds how many do so at once, so nothing here may wait for an upstream or for the disk.
use std::sync::Arc;

use super::alike::{self, Meaning};
use super::answers::{self, Hit};
use super::cached;
use super::flight::{Boarding, Landing, Lead, Member};
use super::gateway::Gateway;
use super::hydrate::{self, Session};
use super::outlet::Outlet;
use super::story;
use super::turn::{Operation, Request};
use crate::cache::key::Key;
use crate::catalog::load::Snapshot;
use crate::catalog::names::{Kind, Resolution};
use crate::context::pairs;
use crate::route::plan::Ask;
use crate::route::sticky::StickyKey;
use crate::route::terminal;
use crate::upstream::cut::Cut;
use crate::wire::body::{Body, Edits};
use crate::wire::chat::ChatFacts;
use crate::wire::error::ApiError;

/// A request that is understood.
pub struct Prepared {
    pub request: Request,
    /// The one that the request uses from now to its end.
    pub snapshot: Arc<Snapshot>,
    pub ask: Ask,
    pub resolution: Resolution,
    /// The model string, or the list, as it was asked for.
    pub requested: Arc<str>,
    /// `x-freeway-route`.
    pub route: Arc<str>,
    /// The id of the stored conversation that the request names.
    pub session_id: Option<Arc<str>>,
    pub session: Option<Session>,
    /// Under which the conversation sticks to a model, be it stored here or not.
    pub sticks: Option<StickyKey>,
    /// Why it is not served at all.
    pub refusal: Option<ApiError>,
    /// Under which key its answer is to be kept, if it may be.
    pub key: Option<Key>,
    /// The question by its meaning, for one that found no answer to the like.
    pub meaning: Option<Meaning>,
}

/// How a request goes on.
pub enum Course {
    /// It cannot be served, and nobody has to be asked to know that.
    Refuse(Prepared),
    /// Its answer is in memory.
    Replay(Prepared, Box<Hit>),
    /// Somebody has to be called; for others as well when it leads a flight.
    Call(Prepared, Option<Lead>),
    /// An identical request is being served.
    Follow(Prepared, Member),
}

impl Course {
    /// Whether it waits for an upstream, and so needs a worker's place.
    pub fn needs_worker(&self) -> bool {
        matches!(self, Course::Call(..))
    }

    /// What ends its calls. `own` is cut when the client leaves, which ends none that others wait for.
    pub fn ended_by(&self, own: &Arc<Cut>) -> Arc<Cut> {
        match self {
            Course::Call(_, Some(lead)) => lead.leave_with(own),
            _ => Arc::clone(own),
        }
    }

    /// Goes to the request's end. `own` is what [`Course::ended_by`] was told of.
    pub fn run(self, gateway: &Arc<Gateway>, outlet: Outlet, own: &Arc<Cut>) {
        match self {
            Course::Refuse(prepared) => story::tell(gateway, prepared, None, outlet, own),
            Course::Call(mut prepared, lead) => {
                let cut = lead.as_ref().map_or(own, Lead::cut);
                let Some(hit) = alike::look(gateway, &mut prepared, cut) else {
                    return story::tell(gateway, prepared, lead, outlet, own);
                };
                if let Some(lead) = lead {
                    lead.land(Landing::Answer(hit.shared()));
                }
                cached::serve(gateway, prepared, &hit, outlet);
            }
            Course::Replay(prepared, hit) => cached::serve(gateway, prepared, &hit, outlet),
            Course::Follow(prepared, member) => cached::follow(gateway, prepared, member, outlet, own),
        }
    }
}

/// Settles what needs no upstream.
pub fn settle(gateway: &Arc<Gateway>, request: Request) -> Course {
    let mut prepared = prepare(gateway, request);
    if prepared.refusal.is_some() || terminal::is_unmatched(&prepared.resolution) {
        return Course::Refuse(prepared);
    }
    prepared.key = answers::key_of(&prepared);
    let Some(key) = prepared.key else { return Course::Call(prepared, None) };
    if let Some(hit) = look(gateway, &prepared, &key) {
        return Course::Replay(prepared, Box::new(hit));
    }
    match answers::board(gateway, &prepared, key) {
        Boarding::Follow(member) => Course::Follow(prepared, member),
        // The last flight may have landed since the look.
        Boarding::Lead(lead) => match look(gateway, &prepared, &key) {
            Some(hit) => {
                lead.land(Landing::Answer(hit.shared()));
                Course::Replay(prepared, Box::new(hit))
            }
            None => {
                gateway.answers.missed();
                Course::Call(prepared, Some(lead))
            }
        },
        Boarding::Alone => {
            gateway.answers.missed();
            Course::Call(prepared, None)
        }
    }
}

/// The answer in memory, unless a fresh one is wanted.
fn look(gateway: &Gateway, prepared: &Prepared, key: &Key) -> Option<Hit> {
    if prepared.request.controls.cache.anew { None } else { answers::find(gateway, prepared, key) }
}

/// A request whose tool calls and results are whole pairs: upstreams refuse torn ones for ever.
fn mended(mut request: Request) -> Request {
    let Operation::Chat(facts) = &request.operation else { return request };
    let raw = request.body.raw("messages").filter(|_| facts.shape.torn);
    if let Some(messages) = raw.and_then(|raw| pairs::mended(raw).ok().flatten()) {
        let mut edits = Edits::default();
        edits.set("messages", messages);
        let body = Body::parse(request.body.spliced(&edits));
        // What was good before is good with its pairs mended.
        if let Ok((body, facts)) =
            body.and_then(|body| ChatFacts::read(&body, usize::MAX).map(|facts| (body, facts)))
        {
            log::info!("{}: a tool call had no result behind it, or a result no call; mended", request.id);
            (request.body, request.operation) = (body, Operation::Chat(Box::new(facts)));
        }
    }
    request
}

/// Finds out what `request` means.
pub(super) fn prepare(gateway: &Arc<Gateway>, mut request: Request) -> Prepared {
    let snapshot = gateway.snapshot();
    let (session_id, hydrated) = hydrate::hydrate(gateway, &mut request, &snapshot.settings).unzip();
    let (session, refusal) = match hydrated {
        Some(Ok(session)) => (Some(session), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let request = mended(request);
    let ask = request.operation.ask(&snapshot.settings.context);
    let (model, models) = request.operation.asked();
    let (names, catalog, settings) = (&snapshot.names, &snapshot.catalog, &snapshot.settings);
    let (requested, resolution) = if let Some(refused) = refused(&request) {
        let usable = request.client_key.as_ref().map_or_else(Vec::new, |key| key.rules.models.clone());
        (refused.into(), Resolution::unmatched(refused, usable))
    } else if models.is_empty() {
        (model.into(), names.resolve(catalog, settings, model, ask.kind))
    } else {
        (models.join(", ").into(), names.resolve_list(catalog, settings, models, ask.kind))
    };
    let (requested, route) = kept(&snapshot, requested, &resolution);
    let sticks = session.as_ref().map(Session::sticks).or(request.sticks);
    Prepared {
        request,
        snapshot,
        ask,
        resolution,
        requested,
        route,
        session_id,
        session,
        sticks: sticks.filter(|_| ask.kind == Kind::Chat),
        refusal,
        key: None,
        meaning: None,
    }
}

/// The model string and the route as they are told and kept. What means nothing may be a key that was pasted into the
/// wrong field.
fn kept(snapshot: &Snapshot, requested: Arc<str>, resolution: &Resolution) -> (Arc<str>, Arc<str>) {
    let redactor = &snapshot.redactor;
    match terminal::is_unmatched(resolution) {
        true => (redactor.redact(&requested).into(), redactor.redact(&resolution.route).into()),
        false => (requested, resolution.route.as_str().into()),
    }
}

/// A model string that the client's key may not use: for it, there is no such model.
fn refused(request: &Request) -> Option<&str> {
    let rules = &request.client_key.as_ref()?.rules;
    let (model, models) = request.operation.asked();
    let mut asked = models.iter().map(String::as_str).chain(models.is_empty().then_some(model));
    asked.find(|model| !rules.allow(model))
}
