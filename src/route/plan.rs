//! Which models may serve a request, in what order, and why the others may not. Read top down, this is the decision:
//!
//! 1. **Order** (once per resolution and capabilities, cached): of the resolved models those stay that are of the right
//!    kind, have every capability asked for, are switched on and configured; in natural order, last resorts at the end.
//! 2. **Ranking** (once per look): the natural order as it is (`priority`), turned (`round-robin`), or by a score
//!    (`least-used`, `fastest`) with ties in natural order.
//! 3. **View** (lazily, from the front): the first model that is not ruled out by this request, large enough, not on a
//!    bench, and that has a key with room; among its keys the one with the most room, in turn when they are equal.
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::fit::{Fit, TooLong};
use super::live::Live;
use super::speed::Answer;
use super::told::{self, Shortage};
use crate::base::clock::Now;
use crate::catalog::names::{Kind, Resolution};
use crate::catalog::provider::{Caps, Key, LimitsScope, Metric, Model, Provider, Slot};
use crate::catalog::settings::Strategy;
use crate::catalog::{Catalog, ModelIx};
use crate::context::budget::Shrink;
use crate::quota::{Bench, Claims, Room, Scope, Want};

/// What a request needs of whoever serves it.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub kind: Kind,
    /// Beyond the kind itself.
    pub caps: Caps,
    /// The prompt as we estimate it.
    pub prompt_tokens: u64,
    /// As much of it as has to fit into a window at once: all of a chat, the longest input of embeddings.
    pub window_tokens: u64,
    /// How much smaller it can be made; `None` when it has to be taken as it is.
    pub shrink: Option<Shrink>,
    /// The client's own limit on the answer.
    pub max_output: Option<u64>,
    /// How many answers it wants to choose from (`n`).
    pub choices: u32,
    pub answer: Answer,
}

impl Ask {
    /// Every capability that a model must have.
    pub fn needed(&self) -> Caps {
        self.caps.with(self.kind.cap())
    }
}

/// A model that may be called, with what a ranking needs of it close at hand.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub at: ModelIx,
    pub(super) slot: Slot,
    /// Whether it has limits that other models of its provider do not share.
    own_limits: bool,
}

/// The part of a plan that only configuration decides.
#[derive(Debug, Default)]
pub struct Order {
    /// Models that may be called, in natural order.
    pub ready: Vec<Ready>,
    /// How many of them are no last resort; those come first.
    first_choice: usize,
    /// Their places, ascending, by provider.
    by_provider: Vec<Vec<u32>>,
    /// The others, with the reason.
    pub off: Vec<(ModelIx, Obstacle)>,
}

impl Order {
    /// Divides the models of a resolution into those that may be called and the others.
    pub fn new(catalog: &Catalog, resolution: &Resolution, needed: Caps) -> Order {
        let mut order = Order::default();
        for at in &resolution.models {
            match standing_obstacle(catalog, *at, needed) {
                Some(obstacle) => order.off.push((*at, obstacle)),
                None => order.ready.push(ready(catalog, *at)),
            }
        }
        // An explicit order is the client's or the owner's own; elsewhere last resorts stand at the end already, and a
        // stable sort that finds nothing to do is cheap.
        let is_last = |ready: &Ready| !resolution.keep_order && catalog.provider(ready.at).last_resort;
        order.ready.sort_by_key(is_last);
        order.first_choice = order.ready.iter().position(is_last).unwrap_or(order.ready.len());
        order.by_provider.resize_with(catalog.providers.len(), Vec::new);
        for (place, ready) in (0..).zip(&order.ready) {
            order.by_provider[usize::from(ready.at.provider)].push(place);
        }
        order
    }
}

fn ready(catalog: &Catalog, at: ModelIx) -> Ready {
    let (provider, model) = (catalog.provider(at), catalog.model(at));
    let own_limits = !model.limits.max.is_empty() || provider.limits_scope == LimitsScope::Model;
    Ready { at, slot: model.slot, own_limits }
}

/// What keeps a model from serving until somebody changes the configuration or the request.
fn standing_obstacle(catalog: &Catalog, at: ModelIx, needed: Caps) -> Option<Obstacle> {
    let (provider, model) = (catalog.provider(at), catalog.model(at));
    let of_provider = if provider.quirks.token_inputs { Caps::TOKEN_INPUTS } else { Caps::default() };
    let missing = needed.missing_from(model.caps.with(of_provider));
    if missing != Caps::default() {
        Some(Obstacle::LacksCaps(missing))
    } else if !provider.enabled {
        Some(Obstacle::ProviderOff)
    } else if !provider.configured() {
        Some(Obstacle::NotConfigured)
    } else if model.off_reason().is_some() {
        Some(Obstacle::ModelOff)
    } else {
        None
    }
}

/// Orders in the cache at once; when it is full it starts anew.
const ORDERS_MAX: usize = 64;

/// Orders that were made before, for one snapshot.
#[derive(Clone, Debug, Default)]
pub struct Orders {
    snapshot: u64,
    by_route: HashMap<String, Vec<(Caps, Arc<Order>)>>,
}

impl Orders {
    /// The order of a resolution, made now or remembered. `snapshot` tells catalogs apart. Explicit lists are not
    /// remembered: their route does not name their members, and they are short.
    pub fn get(
        &mut self,
        snapshot: u64,
        catalog: &Catalog,
        resolution: &Resolution,
        needed: Caps,
    ) -> Arc<Order> {
        if resolution.how == crate::catalog::names::How::List {
            return Arc::new(Order::new(catalog, resolution, needed));
        }
        if self.snapshot != snapshot {
            self.by_route.clear();
            self.snapshot = snapshot;
        }
        let known = self.by_route.get(&resolution.route);
        if let Some((_, order)) = known.and_then(|all| all.iter().find(|(caps, _)| *caps == needed)) {
            return Arc::clone(order);
        }
        if self.by_route.values().map(Vec::len).sum::<usize>() >= ORDERS_MAX {
            self.by_route.clear();
        }
        let order = Arc::new(Order::new(catalog, resolution, needed));
        self.by_route.entry(resolution.route.clone()).or_default().push((needed, Arc::clone(&order)));
        order
    }
}

/// Why a model cannot serve now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Obstacle {
    LacksCaps(Caps),
    /// It gives fewer answers at once than are asked for, as was found out lately.
    FewerChoices,
    ProviderOff,
    NotConfigured,
    ModelOff,
    /// The prompt is larger than the context.
    TooLong {
        window: u64,
        /// What it leaves for a prompt, beside an answer.
        room: u64,
    },
    /// The request is larger than a limit.
    NeverFits {
        metric: Option<Metric>,
        limit: f64,
    },
    Benched(Bench),
    Full {
        metric: Metric,
        used: f64,
        limit: f64,
        retry_in_ms: Option<u64>,
    },
    /// What the provider says to be left of a limit is in use by calls since.
    Short(Shortage),
    /// The box has no network.
    Offline,
    /// It failed in this very request.
    Tried,
}

/// What kind of thing would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Time,
    Size,
    Config,
    Capability,
    /// The model does not exist there, as its provider said lately.
    Missing,
    Network,
}

/// A model that may not be called now.
#[derive(Clone, Copy, Debug)]
pub struct Blocked {
    pub at: ModelIx,
    /// Of its keys the one that is free soonest, counted from zero, when keys are what is missing.
    pub key: Option<usize>,
    pub obstacle: Obstacle,
    /// Until that ends, as far as known.
    pub retry_in_ms: Option<u64>,
}

impl Blocked {
    pub(super) fn new(at: ModelIx, key: Option<usize>, obstacle: Obstacle, now: Now) -> Blocked {
        let retry_in_ms = match obstacle {
            Obstacle::Benched(bench) => Some(bench.remaining_ms(now)),
            Obstacle::Full { retry_in_ms, .. } => retry_in_ms,
            Obstacle::Short(short) => Some(short.retry_in_ms),
            Obstacle::Offline => Some(super::network::RETRY_MS),
            _ => None,
        };
        Blocked { at, key, obstacle, retry_in_ms }
    }

    /// What would help.
    pub fn why(&self) -> Why {
        match self.obstacle {
            Obstacle::LacksCaps(_) | Obstacle::FewerChoices => Why::Capability,
            Obstacle::ProviderOff | Obstacle::NotConfigured | Obstacle::ModelOff => Why::Config,
            Obstacle::TooLong { .. } | Obstacle::NeverFits { .. } => Why::Size,
            Obstacle::Benched(bench) if bench.cause == crate::quota::Cause::ModelMissing => Why::Missing,
            Obstacle::Benched(_) | Obstacle::Full { .. } | Obstacle::Short(_) | Obstacle::Tried => Why::Time,
            Obstacle::Offline => Why::Network,
        }
    }
}

/// Positions in [`Order::ready`], best first.
pub(super) enum Ranking<'a> {
    /// The natural order, begun at `start` and turned around among the first choices.
    Turned { start: usize, first_choice: usize, len: usize, next: usize },
    /// By score. The models of a provider queue, of whom only the first competes, with a score that none of them
    /// is below. One that comes out is scored exactly, and waits on if that is more: so next to no models are looked at.
    Scored {
        order: &'a Order,
        queues: Vec<Queue<'a>>,
        heap: BinaryHeap<Reverse<Entry>>,
        exact: Box<dyn Fn(usize) -> f64 + 'a>,
    },
}

/// The models of one provider that have not come out.
pub(super) struct Queue<'a> {
    rest: std::slice::Iter<'a, u32>,
    /// No score of theirs is below it.
    floor: f64,
}

impl Queue<'_> {
    /// The next of them steps forward.
    fn head(&mut self, order: &Order) -> Option<Reverse<Entry>> {
        let place = *self.rest.next()? as usize;
        Some(Reverse(Entry::new(place, place >= order.first_choice, self.floor, true)))
    }
}

/// A place with its score, packed so that numbers order as the entries do: last resorts last, then by score (the bits
/// of numbers that are not negative order as the numbers do, and their sign bit is free), then in natural order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry(u128);

impl Entry {
    const LAST_RESORT: u128 = 1 << 127;
    /// The score is that of its queue.
    const QUEUED: u128 = 1;

    fn new(place: usize, last_resort: bool, score: f64, queued: bool) -> Entry {
        let last_resort = if last_resort { Entry::LAST_RESORT } else { 0 };
        let score = u128::from(score.max(0.0).to_bits()) << 63;
        Entry(last_resort | score | (place as u128) << 1 | u128::from(queued))
    }

    const fn place(self) -> usize {
        (self.0 as u32 >> 1) as usize
    }

    fn exactly(self, score: f64) -> Entry {
        Entry::new(self.place(), self.0 & Entry::LAST_RESORT != 0, score, false)
    }
}

impl Iterator for Ranking<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        match self {
            Ranking::Turned { start, first_choice, len, next } => {
                let place = *next;
                *next += 1;
                match place {
                    _ if place < *first_choice => Some((*start + place) % *first_choice),
                    _ => (place < *len).then_some(place),
                }
            }
            Ranking::Scored { order, queues, heap, exact } => loop {
                let Reverse(entry) = heap.pop()?;
                let place = entry.place();
                if entry.0 & Entry::QUEUED == 0 {
                    return Some(place);
                }
                let queue = &mut queues[usize::from(order.ready[place].at.provider)];
                heap.extend(queue.head(order));
                let score = exact(place);
                if score <= queue.floor {
                    return Some(place);
                }
                heap.push(Reverse(entry.exactly(score)));
            },
        }
    }
}

/// Everything that a decision looks at.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub catalog: &'a Catalog,
    pub live: &'a Live,
    pub ask: &'a Ask,
    /// What this request must not use any more.
    pub out: &'a [Scope],
    /// What was too long for whom in this request.
    pub too_long: &'a [TooLong],
    pub now: Now,
}

impl View<'_> {
    /// Ranks an order. `round` is this request's place in the round.
    pub fn ranking<'r>(&'r self, order: &'r Order, strategy: Strategy, round: usize) -> Ranking<'r> {
        let len = order.ready.len();
        let turned = |start| Ranking::Turned { start, first_choice: order.first_choice, len, next: 0 };
        match strategy {
            Strategy::Priority => turned(0),
            Strategy::RoundRobin => turned(round % order.first_choice.max(1)),
            Strategy::LeastUsed => {
                let floor = |provider: &Provider| self.provider_fill(provider);
                let exact = |ready: &Ready| match ready.own_limits {
                    true => self.fill(ready.at),
                    false => self.provider_fill(self.catalog.provider(ready.at)),
                };
                self.scored(order, floor, exact)
            }
            Strategy::Fastest => {
                let (answer, now) = (self.ask.answer, self.now);
                let speed =
                    move |provider: &Provider| self.live.speeds.of_provider(provider.slot, answer, now);
                let floor = move |provider: &Provider| speed(provider).floor(answer, now);
                let exact = move |ready: &Ready| {
                    speed(self.catalog.provider(ready.at)).of_model(ready.slot, answer, now)
                };
                self.scored(order, floor, exact)
            }
        }
    }

    /// Ranks by the score that `exact` gives; none of a provider's models is below its `floor`. Providers that cannot be
    /// called as a whole are left out.
    fn scored<'r>(
        &'r self,
        order: &'r Order,
        floor: impl Fn(&Provider) -> f64,
        exact: impl Fn(&Ready) -> f64 + 'r,
    ) -> Ranking<'r> {
        let queue = |(provider, places): (&Provider, &'r Vec<u32>)| {
            let usable = !places.is_empty() && self.provider_obstacle(provider).is_none();
            let (rest, floor) = if usable { (places.iter(), floor(provider)) } else { ([].iter(), 0.0) };
            Queue { rest, floor }
        };
        let mut queues: Vec<Queue<'r>> =
            self.catalog.providers.iter().zip(&order.by_provider).map(queue).collect();
        let heap = queues.iter_mut().filter_map(|queue| queue.head(order)).collect();
        Ranking::Scored { order, queues, heap, exact: Box::new(move |place| exact(&order.ready[place])) }
    }

    /// The used fraction of the limits that a provider's models share, from memory while nothing has changed.
    fn provider_fill(&self, provider: &Provider) -> f64 {
        let work_out = || match provider.limits_scope {
            LimitsScope::Model => 0.0,
            LimitsScope::Key | LimitsScope::Account => self.least_fill(provider, None),
        };
        if provider.limits.max.is_empty() {
            0.0
        } else {
            self.live.fills.get(provider.slot, self.now, work_out)
        }
    }

    /// The used fraction of a model's limits, with the key that has most left; 1 when no key can be used.
    pub fn fill(&self, at: ModelIx) -> f64 {
        self.least_fill(self.catalog.provider(at), Some(self.catalog.model(at)))
    }

    /// The used fraction of the limits of the key that has most left; 1 when no key can be used. Without a model, only
    /// the provider's own limits count.
    fn least_fill(&self, provider: &Provider, model: Option<&Model>) -> f64 {
        let usable = |key: &&Key| {
            self.live
                .benches
                .blocking(&[Scope::Key(key.slot), Scope::Account(key.account)], self.now)
                .is_none()
        };
        let fill = |key: &Key| {
            let claims = Claims::of_call(provider, key, model.or(provider.models.first())?);
            let counted = if model.is_some() { &claims[..] } else { &claims[..1] };
            Some(self.live.ledger.fill(counted, self.now))
        };
        provider.keys.iter().filter(usable).filter_map(fill).min_by(f64::total_cmp).unwrap_or(1.0)
    }

    /// What keeps every model of a provider from being called.
    fn provider_obstacle(&self, provider: &Provider) -> Option<Obstacle> {
        let scope = Scope::Provider(provider.slot);
        if let Some(bench) = self.live.benches.blocking(&[scope], self.now) {
            return Some(Obstacle::Benched(*bench));
        }
        if self.out.contains(&scope) {
            return Some(Obstacle::Tried);
        }
        (!provider.local && !self.live.network.admits(self.now)).then_some(Obstacle::Offline)
    }

    /// The best place of a ranking that can be called now, among those that are allowed.
    pub fn first(
        &self,
        order: &Order,
        ranking: Ranking<'_>,
        allowed: impl Fn(&ModelIx) -> bool,
    ) -> Option<(ModelIx, usize)> {
        // Models of one provider often stand together: what keeps all of them is found out once.
        let mut closed = None;
        // The best that may find it too long, though it looks short enough.
        let mut doubtful = None;
        // The best that would lose part of the conversation.
        let mut lossy = None;
        for at in ranking.filter_map(|place| Some(&order.ready.get(place)?.at)).filter(|at| allowed(at)) {
            if closed == Some(at.provider) {
                continue;
            }
            let kept_back = match self.whole_first().then(|| self.fit(*at)) {
                Some(Fit::Lossy) => Some(&mut lossy),
                _ if self.in_doubt(*at) => Some(&mut doubtful),
                _ => None,
            };
            if kept_back.as_ref().is_some_and(|known| known.is_some()) {
                continue;
            }
            if self.provider_obstacle(self.catalog.provider(*at)).is_some() {
                closed = Some(at.provider);
            } else if let Ok(key) = self.key_for(*at) {
                match kept_back {
                    Some(known) => *known = Some((*at, key)),
                    None => return Some((*at, key)),
                }
            }
        }
        doubtful.or(lossy)
    }

    /// The key to call a model with, or why it cannot be called.
    pub fn key_for(&self, at: ModelIx) -> Result<usize, Blocked> {
        let (provider, model) = (self.catalog.provider(at), self.catalog.model(at));
        let blocked = |obstacle| Blocked::new(at, None, obstacle, self.now);
        let want = self.want(at);
        if let Some(obstacle) = self.model_obstacle(at) {
            // Nobody should wait for a bench to end and be told then that no key ever takes this.
            let mut keys = provider.keys.iter().map(|key| self.never_fits(at, key, &want));
            let never = keys.next().flatten().filter(|_| keys.all(|never| never.is_some()));
            return Err(blocked(never.unwrap_or(obstacle)));
        }
        let count = provider.keys.len();
        let first = self.live.first_key(provider.slot) % count.max(1);
        let mut best: Option<(f64, usize)> = None;
        let mut soonest: Option<Blocked> = None;
        for key in (first..count).chain(0..first) {
            match self.key_obstacle(at, key, &want) {
                Some(obstacle) => {
                    let candidate = Blocked::new(at, Some(key), obstacle, self.now);
                    if soonest.is_none_or(|known| is_sooner(&candidate, &known)) {
                        soonest = Some(candidate);
                    }
                }
                None if count == 1 => return Ok(key),
                None => {
                    let claims = Claims::of_call(provider, &provider.keys[key], model);
                    let fill = self.live.ledger.fill(&claims, self.now);
                    if best.is_none_or(|(least, _)| fill < least) {
                        best = Some((fill, key));
                    }
                }
            }
        }
        best.map(|(_, key)| key).ok_or_else(|| soonest.unwrap_or_else(|| blocked(Obstacle::NotConfigured)))
    }

    fn model_obstacle(&self, at: ModelIx) -> Option<Obstacle> {
        let (provider, model) = (self.catalog.provider(at), self.catalog.model(at));
        // What no time mends comes first: nobody should wait for a bench to end and then be told this.
        if self.ask.choices > 1 && self.live.lessons.choices(model.slot, self.now) < self.ask.choices {
            return Some(Obstacle::FewerChoices);
        }
        if let Fit::TooSmall { window, room } = self.fit(at) {
            return Some(Obstacle::TooLong { window, room });
        }
        if let Some(obstacle) = self.provider_obstacle(provider) {
            return Some(obstacle);
        }
        let scope = Scope::Model(model.slot);
        if let Some(bench) = self.live.benches.blocking(&[scope], self.now) {
            return Some(Obstacle::Benched(*bench));
        }
        self.out.contains(&scope).then_some(Obstacle::Tried)
    }

    /// Why one key cannot be used; whether it may is asked of `want` and every scope that the key stands in.
    pub fn key_obstacle(&self, at: ModelIx, key: usize, want: &Want) -> Option<Obstacle> {
        let (provider, model) = (self.catalog.provider(at), self.catalog.model(at));
        let key = &provider.keys[key];
        let room = self.room(at, key, want);
        if matches!(room, Some(Obstacle::NeverFits { .. })) {
            return room;
        }
        let scopes = key_scopes(key, model.slot);
        if let Some(bench) = self.live.benches.blocking(&scopes, self.now) {
            return Some(Obstacle::Benched(*bench));
        }
        if scopes.iter().any(|scope| self.out.contains(scope)) {
            return Some(Obstacle::Tried);
        }
        room
    }

    /// Which limit leaves no room for the request.
    fn room(&self, at: ModelIx, key: &Key, want: &Want) -> Option<Obstacle> {
        let (provider, model) = (self.catalog.provider(at), self.catalog.model(at));
        let learned = self.live.lessons.limit(key.account, model.slot, self.now);
        if let Some(limit) = learned.filter(|limit| self.sent_tokens(at) > *limit) {
            return Some(Obstacle::NeverFits { metric: None, limit: limit as f64 });
        }
        match self.live.ledger.room(&Claims::of_call(provider, key, model), want, self.now) {
            Room::Free => {
                let short = self.live.told.shortage(told::of(key, model.slot), want, self.now);
                short.map(Obstacle::Short)
            }
            Room::Full { metric, used, limit, retry_in_ms } => {
                Some(Obstacle::Full { metric, used, limit, retry_in_ms })
            }
            Room::Never { metric, limit } => Some(Obstacle::NeverFits { metric: Some(metric), limit }),
        }
    }

    fn never_fits(&self, at: ModelIx, key: &Key, want: &Want) -> Option<Obstacle> {
        self.room(at, key, want).filter(|room| matches!(room, Obstacle::NeverFits { .. }))
    }
}

/// Of two blocked keys of one model, the one that is worth telling: what time mends, and that soonest.
fn is_sooner(a: &Blocked, b: &Blocked) -> bool {
    let rank = |blocked: &Blocked| {
        let by_time = blocked.why() == Why::Time && blocked.obstacle != Obstacle::Tried;
        (!by_time, blocked.retry_in_ms.unwrap_or(u64::MAX))
    };
    rank(a) < rank(b)
}

/// Every scope that a key stands in when it calls a model.
pub fn key_scopes(key: &Key, model: Slot) -> [Scope; 4] {
    [
        Scope::Key(key.slot),
        Scope::KeyModel(key.slot, model),
        Scope::Account(key.account),
        Scope::AccountModel(key.account, model),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::base::rng::Rng;
    use crate::catalog::fixture;
    use crate::catalog::names::How;
    use crate::catalog::slots::Slots;
    use crate::quota::{Cause, Term};

    const NOW: Now = Now::at(10 * 3_600_000, 1_796_104_800_000);
    const ASK: Ask = Ask {
        kind: Kind::Chat,
        caps: Caps(0),
        prompt_tokens: 100,
        window_tokens: 100,
        shrink: None,
        max_output: None,
        choices: 1,
        answer: Answer::Whole,
    };

    fn file(id: &str, models: &[&str], more: Value) -> Value {
        let models: Vec<Value> = models.iter().map(|id| json!({"id": id})).collect();
        let mut file = json!({"id": id, "models": models});
        let members = file.as_object_mut().expect("an object");
        members.extend(more.as_object().expect("an object").clone());
        file
    }

    /// A catalog whose providers have so many keys each, none of them sharing an account.
    fn catalog(files: &[(Value, usize)]) -> Catalog {
        let mut slots = Slots::default();
        let mut providers = Vec::new();
        for (file, keys) in files {
            let mut provider = fixture::provider(file.clone(), &mut slots);
            let first = provider.keys.pop().expect("a key");
            for n in 0..*keys {
                let slot = slots.intern(&format!("key/{}:{n}", provider.id));
                let account = slots.intern(&format!("account/{}:{n}", provider.id));
                provider.keys.push(Key { slot, account, ..first.clone() });
            }
            providers.push(provider);
        }
        Catalog { providers }
    }

    fn resolution(catalog: &Catalog, how: How) -> Resolution {
        let models = catalog.all().collect();
        Resolution {
            route: "auto".into(),
            models,
            how,
            strategy: None,
            keep_order: false,
            suggestions: Vec::new(),
        }
    }

    /// Who would be called, best first, without calling anybody.
    fn ranked(catalog: &Catalog, live: &Live, strategy: Strategy, turn: usize) -> Vec<String> {
        let order = Order::new(catalog, &resolution(catalog, How::Auto), ASK.needed());
        let view = View { catalog, live, ask: &ASK, out: &[], too_long: &[], now: NOW };
        let name = |place: usize| catalog.model(order.ready[place].at).reference.to_string();
        view.ranking(&order, strategy, turn).map(name).collect()
    }

    fn choose(catalog: &Catalog, live: &mut Live, at: ModelIx) -> Result<usize, Blocked> {
        let key = View { catalog, live, ask: &ASK, out: &[], too_long: &[], now: NOW }.key_for(at)?;
        let provider = catalog.provider(at);
        let want = Want::of_call(&live.ledger, provider, catalog.model(at), ASK.prompt_tokens, None, 1);
        let claims = Claims::of_call(provider, &provider.keys[key], catalog.model(at));
        let reservation = live.ledger.reserve_anyway(&claims, &want, NOW);
        live.ledger.settle(reservation, crate::quota::Spent::default(), NOW);
        live.key_used(provider.slot, key);
        live.fills.forget(provider.slot);
        Ok(key)
    }

    const FIRST: ModelIx = ModelIx { provider: 0, model: 0 };

    #[test]
    fn last_resorts_come_last_whatever_the_strategy() {
        let catalog = catalog(&[
            (file("last", &["m"], json!({"lastResort": true})), 1),
            (file("a", &["m"], json!({})), 1),
            (file("b", &["m"], json!({})), 1),
        ]);
        let live = Live::new();
        for strategy in [Strategy::Priority, Strategy::RoundRobin, Strategy::LeastUsed, Strategy::Fastest] {
            for turn in 0..4 {
                let order = ranked(&catalog, &live, strategy, turn);
                assert_eq!(order.last().map(String::as_str), Some("last/m"), "{strategy:?}");
                assert_eq!(order.len(), 3);
            }
        }
    }

    #[test]
    fn round_robin_gives_each_its_turn() {
        let catalog = catalog(&[(file("a", &["m", "n"], json!({})), 1), (file("b", &["m"], json!({})), 1)]);
        let live = Live::new();
        let first = |turn| ranked(&catalog, &live, Strategy::RoundRobin, turn).swap_remove(0);
        assert_eq!([first(0), first(1), first(2), first(3)], ["a/m", "a/n", "b/m", "a/m"]);
    }

    #[test]
    fn c9_least_used_compares_fractions_and_not_counts() {
        let small = json!({"limits": {"rpm": 4}});
        let large = json!({"limits": {"rpm": 100}});
        let catalog = catalog(&[(file("small", &["m"], small), 1), (file("large", &["m"], large), 1)]);
        let mut live = Live::new();
        assert_eq!(
            ranked(&catalog, &live, Strategy::LeastUsed, 0),
            ["small/m", "large/m"],
            "ties in natural order"
        );
        choose(&catalog, &mut live, FIRST).expect("room");
        for _ in 0..10 {
            assert_eq!(ranked(&catalog, &live, Strategy::LeastUsed, 0), ["large/m", "small/m"]);
            choose(&catalog, &mut live, ModelIx { provider: 1, model: 0 }).expect("room");
        }
    }

    #[test]
    fn least_used_knows_limits_of_single_models() {
        let mut own = file("a", &["m", "n"], json!({}));
        own["models"][0]["limits"] = json!({"rpm": 2});
        let catalog = catalog(&[(own, 1)]);
        let mut live = Live::new();
        choose(&catalog, &mut live, FIRST).expect("room");
        assert_eq!(ranked(&catalog, &live, Strategy::LeastUsed, 0), ["a/n", "a/m"]);
    }

    #[test]
    fn fastest_tries_the_untried_once_and_then_the_quick() {
        let catalog = catalog(&[
            (file("slow", &["m"], json!({})), 1),
            (file("quick", &["m"], json!({})), 1),
            (file("new", &["m"], json!({})), 1),
        ]);
        let mut live = Live::new();
        let slot = |n: usize| (catalog.providers[n].slot, catalog.providers[n].models[0].slot);
        live.speeds.answered(slot(0).0, slot(0).1, Answer::Whole, 900, NOW);
        live.speeds.answered(slot(1).0, slot(1).1, Answer::Whole, 100, NOW);
        assert_eq!(ranked(&catalog, &live, Strategy::Fastest, 0), ["new/m", "quick/m", "slow/m"]);
        live.speeds.trying(slot(2).0, NOW);
        assert_eq!(ranked(&catalog, &live, Strategy::Fastest, 0), ["quick/m", "slow/m", "new/m"]);
    }

    #[test]
    fn queues_change_no_ranking() {
        for seed in 0..200 {
            let mut rng = Rng::seeded(seed);
            let files: Vec<(Value, usize)> = (0..1 + rng.below(5))
                .map(|provider| {
                    let more = json!({"limits": {"rpm": 3 + rng.below(9)}, "lastResort": rng.below(4) == 0});
                    let names: Vec<String> = (0..1 + rng.below(6)).map(|model| format!("m{model}")).collect();
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    let mut file = file(&format!("p{provider}"), &names, more);
                    for model in file["models"].as_array_mut().expect("a list") {
                        if rng.below(3) == 0 {
                            model["limits"] = json!({"rpm": 1 + rng.below(4)});
                        }
                    }
                    (file, 1 + rng.below(2))
                })
                .collect();
            let (catalog, mut live) = (catalog(&files), Live::new());
            let mut resolution = resolution(&catalog, How::Auto);
            // Models of all providers in turn, as names and profiles have them.
            resolution.models.sort_by_key(|at| (at.model, at.provider));
            for _ in 0..rng.below(12) {
                let at = resolution.models[rng.below(resolution.models.len())];
                let _full = choose(&catalog, &mut live, at);
                let (provider, model) = (catalog.provider(at).slot, catalog.model(at).slot);
                live.speeds.answered(provider, model, Answer::Whole, rng.below(1_000) as u64, NOW);
            }
            let order = Order::new(&catalog, &resolution, ASK.needed());
            let view = View { catalog: &catalog, live: &live, ask: &ASK, out: &[], too_long: &[], now: NOW };
            for strategy in [Strategy::LeastUsed, Strategy::Fastest] {
                let score = |ready: &Ready| {
                    let speed = live.speeds.of_provider(catalog.provider(ready.at).slot, ASK.answer, NOW);
                    match strategy {
                        Strategy::LeastUsed => view.fill(ready.at),
                        _ => speed.of_model(ready.slot, ASK.answer, NOW),
                    }
                };
                let mut sorted: Vec<usize> = (0..order.ready.len()).collect();
                sorted.sort_by(|a, b| {
                    let is_last = |place: usize| place >= order.first_choice;
                    let scores = score(&order.ready[*a]).total_cmp(&score(&order.ready[*b]));
                    is_last(*a).cmp(&is_last(*b)).then(scores)
                });
                assert_eq!(
                    view.ranking(&order, strategy, 0).collect::<Vec<_>>(),
                    sorted,
                    "{strategy:?}, seed {seed}: {files:?}"
                );
            }
        }
    }

    #[test]
    fn w5_keys_take_rounds_whatever_the_number_of_models() {
        let catalog = catalog(&[(file("a", &["m", "n"], json!({})), 2)]);
        let mut live = Live::new();
        let keys: Vec<_> = (0..4).map(|_| choose(&catalog, &mut live, FIRST).expect("a key")).collect();
        assert_eq!(keys, [0, 1, 0, 1]);
    }

    #[test]
    fn w4_each_key_brings_its_own_quota_and_the_fullest_rests() {
        let catalog = catalog(&[(file("a", &["m"], json!({"limits": {"rpm": 2}})), 3)]);
        let mut live = Live::new();
        let mut used = [0; 3];
        for _ in 0..6 {
            used[choose(&catalog, &mut live, FIRST).expect("room")] += 1;
        }
        assert_eq!(used, [2, 2, 2]);
        let blocked = choose(&catalog, &mut live, FIRST).expect_err("six calls are the pool");
        assert_eq!(blocked.why(), Why::Time);
        assert!(blocked.retry_in_ms.is_some_and(|ms| (59_000..=62_000).contains(&ms)), "{blocked:?}");
    }

    #[test]
    fn w2_keyless_providers_serve() {
        let keyless = file("ollama", &["m"], json!({"auth": {"type": "none"}}));
        let catalog = fixture::catalog(&[keyless]);
        assert_eq!(choose(&catalog, &mut Live::new(), FIRST).expect("it serves"), 0);
    }

    #[test]
    fn every_standing_obstacle_has_its_kind() {
        let check = |more: Value, model: Value, why: Why| {
            let mut given = file("a", &["m"], more);
            given["models"][0]
                .as_object_mut()
                .expect("an object")
                .extend(model.as_object().expect("an object").clone());
            let catalog = fixture::catalog(&[given]);
            let order = Order::new(&catalog, &resolution(&catalog, How::Auto), ASK.needed());
            assert!(order.ready.is_empty());
            assert_eq!(Blocked::new(FIRST, None, order.off[0].1, NOW).why(), why);
        };
        check(json!({"enabled": false}), json!({}), Why::Config);
        check(json!({"auth": {"type": "bearer", "envKeys": ["UNSET"]}}), json!({}), Why::Config);
        check(json!({"baseUrl": "https://${UNSET}.test"}), json!({}), Why::Config);
        check(json!({}), json!({"enabled": false}), Why::Config);
        check(json!({"billing": "paid"}), json!({}), Why::Config);
        check(json!({}), json!({"caps": ["embed"]}), Why::Capability);
    }

    #[test]
    fn a_limit_below_the_request_passes_by_without_a_wait() {
        let catalog = catalog(&[(file("a", &["m"], json!({"limits": {"tpm": 50}})), 1)]);
        let blocked = choose(&catalog, &mut Live::new(), FIRST).expect_err("too small");
        assert_eq!((blocked.why(), blocked.retry_in_ms), (Why::Size, None));
    }

    #[test]
    fn of_several_blocked_keys_the_soonest_is_told() {
        let catalog = catalog(&[(file("a", &["m"], json!({})), 3)]);
        let mut live = Live::new();
        for (key, ms) in [(0, 90_000), (1, 30_000), (2, 60_000)] {
            let scope = Scope::Key(catalog.providers[0].keys[key].slot);
            live.benches.put(scope, Cause::RateLimit, Term::Named { ms }, NOW.mono_ms, NOW);
        }
        let blocked = choose(&catalog, &mut live, FIRST).expect_err("all rest");
        assert_eq!((blocked.key, blocked.retry_in_ms), (Some(1), Some(30_000)));
    }

    #[test]
    fn orders_are_remembered_for_one_snapshot() {
        let catalog = catalog(&[(file("a", &["m"], json!({})), 1)]);
        let mut orders = Orders::default();
        let auto = resolution(&catalog, How::Auto);
        let first = orders.get(1, &catalog, &auto, ASK.needed());
        assert!(Arc::ptr_eq(&first, &orders.get(1, &catalog, &auto, ASK.needed())));
        assert!(!Arc::ptr_eq(&first, &orders.get(1, &catalog, &auto, Caps::CHAT.with(Caps::TOOLS))));
        assert!(!Arc::ptr_eq(&first, &orders.get(2, &catalog, &auto, ASK.needed())));
        let list = resolution(&catalog, How::List);
        let listed = orders.get(2, &catalog, &list, ASK.needed());
        assert!(!Arc::ptr_eq(&listed, &orders.get(2, &catalog, &list, ASK.needed())));
    }
}
