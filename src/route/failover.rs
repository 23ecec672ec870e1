//! The failover machine of one request, fed by its driver: `next` chooses and reserves, `report` judges what became of
//! it. Of the blame table, the column of this request stands in [`Failover::go_on`], the benches in [`super::verdict`].
//!
//! What it promises, whatever upstreams do: at most [`CALLS_MAX`] upstream calls, at most `max_attempts` different
//! models, none begun after the budget; nobody is called who sits on a bench or has no room; every reservation that
//! comes back is settled.
use std::sync::Arc;

use super::fit::TooLong;
use super::live::Live;
use super::manner::Manner;
use super::outcome::{Class, Failure, Outcome};
use super::outlook::Candidate;
use super::plan::{Ask, Blocked, Obstacle, Order, View};
use super::told::{self, Place};
use super::verdict::{Call, Policy};
use crate::base::clock::Now;
use crate::catalog::provider::Slot;
use crate::catalog::settings::Strategy;
use crate::catalog::{Catalog, ModelIx};
use crate::context::budget::Budget;
use crate::quota::{Claims, Reservation, Scope, Spent};

/// Upstream calls for one request, those with another key or fewer fields included.
pub const CALLS_MAX: u32 = 20;
/// Models of one provider that may say 429 to one request before another provider is asked.
const LIMITED_MODELS_MAX: usize = 2;
/// Empty answers before a request gives up.
const EMPTY_MAX: u32 = 2;
/// Times that one model is sent less of one request.
const SHRINKS_MAX: usize = 2;
/// Times that fields are left out for one model.
const DROPS_MAX: u32 = 3;

/// One upstream call that is to be made now.
#[derive(Debug)]
#[must_use = "an attempt holds a reservation until it is reported"]
pub struct Attempt {
    pub at: ModelIx,
    /// Place in the provider's key pool.
    pub key: usize,
    /// Counts upstream calls of the request from 1.
    pub number: u32,
    pub began: Now,
    /// Monotonic: the end of the request's budget, which holds until the commit.
    pub deadline_ms: u64,
    /// Fields to leave out of the body.
    pub drops: Vec<String>,
    /// What the prompt has to fit into; `None` when it fits as it is.
    pub budget: Option<Budget>,
    /// The model's tokens for one of ours.
    pub ratio: f64,
    /// The prompt as it is sent, in tokens of our count. Whoever makes it smaller says so here.
    pub prompt_tokens: u64,
    /// For streams that turn out longer than expected, see `Ledger::top_up`.
    pub reservation: Reservation,
    /// Among the calls of its key and model.
    place: Place,
    committed: bool,
}

/// An attempt that ended.
pub struct Report<'a> {
    pub attempt: Attempt,
    pub outcome: Outcome,
    /// What the upstream said that it used, or our estimate of it; credits are counted here.
    pub spent: Spent,
    /// Whether the request has a top-level field of that name.
    pub has_field: &'a dyn Fn(&str) -> bool,
    /// What the upstream counted of the prompt, where it said so.
    pub counted_prompt: Option<u64>,
}

/// A failed attempt, for the trail, the log and the last answer.
#[derive(Clone, Debug)]
pub struct Hop {
    pub at: ModelIx,
    pub key: usize,
    pub took_ms: u64,
    pub failure: Failure,
}

/// What to do now.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "made once an attempt; a box would cost an allocation each time"
)]
pub enum Next {
    Try(Attempt),
    GiveUp(Dead),
}

/// Why there is no answer.
#[derive(Debug)]
pub struct Dead {
    pub end: DeadEnd,
    /// Every resolved model that cannot be called now, this request's own failures among them where a bench came of
    /// it. Empty when the end says it all.
    pub blocked: Vec<Blocked>,
}

/// What kind of end it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadEnd {
    ClientLeft,
    /// The last hop's error is the client's to see.
    Returned,
    /// Nobody could be asked.
    Blocked,
    /// Somebody was asked, nobody answered.
    Failed,
    /// The box has no network.
    Offline,
}

/// The machine.
#[derive(Debug)]
pub struct Failover {
    order: Arc<Order>,
    ask: Ask,
    policy: Policy,
    strategy: Strategy,
    /// One exact model was asked for: when it does not exist, the client has to know.
    pinned: bool,
    fill_max: f64,
    /// Place in the round of the resolution.
    round: usize,
    began: Now,
    calls: u32,
    /// Models tried, each once.
    tried: Vec<ModelIx>,
    /// What this request uses no more.
    out: Vec<Scope>,
    /// Models that said 429 to it.
    limited: Vec<ModelIx>,
    /// The model whose next key comes first.
    same: Option<ModelIx>,
    /// The very same call again, with fewer fields.
    again: Option<(ModelIx, usize)>,
    drops: Vec<(ModelIx, String)>,
    too_long: Vec<TooLong>,
    empty: u32,
    /// It has found out that there is no network, and asks nobody else who is far away.
    cut_off: bool,
    end: Option<DeadEnd>,
    hops: Vec<Hop>,
}

impl Attempt {
    /// Takes back an attempt for which nobody was called.
    pub fn withdraw(self, catalog: &Catalog, live: &mut Live) {
        let key = &catalog.provider(self.at).keys[self.key];
        live.told.undo(told::of(key, catalog.model(self.at).slot), self.place);
        live.ledger.release(self.reservation);
    }
}

impl Failover {
    /// A machine for one request, which begins now.
    pub fn new(
        order: Arc<Order>,
        ask: Ask,
        policy: Policy,
        manner: &Manner<'_>,
        live: &mut Live,
        now: Now,
    ) -> Failover {
        let turns = manner.strategy() == Strategy::RoundRobin;
        let round = if turns { live.take_round(manner.route) } else { 0 };
        Failover::in_round(order, ask, policy, manner, round, now)
    }

    /// The machine that the next request of this kind would be given, for a look ahead: no round is turned for it.
    pub(super) fn foreseen(
        order: Arc<Order>,
        ask: Ask,
        policy: Policy,
        manner: &Manner<'_>,
        live: &Live,
        now: Now,
    ) -> Failover {
        Failover::in_round(order, ask, policy, manner, live.next_round(manner.route), now)
    }

    fn in_round(
        order: Arc<Order>,
        ask: Ask,
        policy: Policy,
        manner: &Manner<'_>,
        round: usize,
        now: Now,
    ) -> Failover {
        Failover {
            order,
            ask,
            policy,
            strategy: manner.strategy(),
            pinned: manner.pinned,
            fill_max: manner.fill_max,
            round,
            began: now,
            calls: 0,
            tried: Vec::new(),
            out: Vec::new(),
            limited: Vec::new(),
            same: None,
            again: None,
            drops: Vec::new(),
            too_long: Vec::new(),
            empty: 0,
            cut_off: false,
            end: None,
            hops: Vec::new(),
        }
    }

    /// Begins with this model, if it is among those that may be called; whatever the strategy says.
    pub fn begin_with(&mut self, model: Slot) {
        self.same = self.order.ready.iter().find(|ready| ready.slot == model).map(|ready| ready.at);
    }

    /// Failed attempts so far, in order.
    pub fn hops(&self) -> &[Hop] {
        &self.hops
    }

    /// Upstream calls so far, for `x-freeway-attempts`.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// Monotonic: no attempt begins after this.
    pub fn deadline_ms(&self) -> u64 {
        self.began.mono_ms.saturating_add(self.policy.budget_ms)
    }

    /// Chooses whom to call and reserves the quota for it, in one step. May be asked again after `GiveUp`, for a request
    /// that is allowed to wait.
    pub fn next(&mut self, catalog: &Catalog, live: &mut Live, now: Now) -> Next {
        if self.end.is_none() && self.calls < CALLS_MAX && now.mono_ms < self.deadline_ms() {
            if let Some((at, key)) = self.choose(catalog, live, now) {
                return Next::Try(self.begin(catalog, live, at, key, now));
            }
        }
        let dead = self.dead(catalog, live, now);
        if self.only(Class::is_limit) {
            // Asked again it has waited, and may go back to those whose limits it met.
            self.out.clear();
            self.limited.clear();
        }
        Next::GiveUp(dead)
    }

    /// Whether time alone may bring an answer after all.
    pub fn is_worth_waiting(&self, dead: &Dead) -> bool {
        let met_limits = self.calls < CALLS_MAX && self.only(Class::is_limit);
        dead.end == DeadEnd::Blocked || (dead.end == DeadEnd::Failed && met_limits)
    }

    fn view<'a>(&'a self, catalog: &'a Catalog, live: &'a Live, out: &'a [Scope], now: Now) -> View<'a> {
        View { catalog, live, ask: &self.ask, out, too_long: &self.too_long, now }
    }

    fn choose(&mut self, catalog: &Catalog, live: &Live, now: Now) -> Option<(ModelIx, usize)> {
        let (again, same) = (self.again.take(), self.same.take());
        let view = self.view(catalog, live, &self.out, now);
        if let Some((at, key)) = again {
            if view.key_obstacle(at, key, &view.want(at)).is_none() {
                return Some((at, key));
            }
        }
        if let Some(found) = same.and_then(|at| Some((at, view.key_for(at).ok()?))) {
            return Some(found);
        }
        let more_models = self.tried.len() < self.policy.max_attempts as usize;
        let allowed = |at: &ModelIx| {
            let limited = self.limited.iter().filter(|known| known.provider == at.provider).count();
            let plenty = self.fill_max >= 1.0 || view.fill(*at) <= self.fill_max;
            let in_reach = !self.cut_off || catalog.provider(*at).local;
            in_reach && limited < LIMITED_MODELS_MAX && plenty && (more_models || self.tried.contains(at))
        };
        view.first(&self.order, view.ranking(&self.order, self.strategy, self.round), allowed)
    }

    fn begin(&mut self, catalog: &Catalog, live: &mut Live, at: ModelIx, key: usize, now: Now) -> Attempt {
        let (provider, model) = (catalog.provider(at), catalog.model(at));
        let view = self.view(catalog, live, &[], now);
        let (want, ratio) = (view.want(at), live.ratios.of(model.slot));
        let prompt_tokens = self.ask.prompt_tokens;
        let budget =
            view.budget(at).filter(|budget| self.ask.shrink.is_some() && prompt_tokens > budget.target);
        let claims = Claims::of_call(provider, &provider.keys[key], model);
        let reservation = live.ledger.reserve_anyway(&claims, &want, now);
        let place = live.told.begin(told::of(&provider.keys[key], model.slot), &want, now);
        live.key_used(provider.slot, key);
        live.fills.forget(provider.slot);
        live.speeds.trying(provider.slot, now);
        if !provider.local {
            live.network.calling(now);
        }
        self.calls += 1;
        if !self.tried.contains(&at) {
            self.tried.push(at);
        }
        let mut drops = live.lessons.refused(model.slot, now).to_vec();
        for (_, field) in self.drops.iter().filter(|(model, _)| *model == at) {
            if !drops.contains(field) {
                drops.push(field.clone());
            }
        }
        Attempt {
            at,
            key,
            number: self.calls,
            began: now,
            deadline_ms: self.deadline_ms(),
            drops,
            budget,
            ratio,
            prompt_tokens,
            reservation,
            place,
            committed: false,
        }
    }

    /// The first delta of a stream is there.
    pub fn committed(&self, catalog: &Catalog, live: &mut Live, attempt: &mut Attempt, now: Now) {
        let (provider, model) = (catalog.provider(attempt.at), catalog.model(attempt.at));
        let took_ms = now.mono_ms.saturating_sub(attempt.began.mono_ms);
        live.speeds.answered(provider.slot, model.slot, self.ask.answer, took_ms, now);
        live.scoreboard.answered([provider.slot, provider.keys[attempt.key].slot], took_ms);
        if !provider.local {
            live.network.reached();
        }
        attempt.committed = true;
    }

    /// Takes an attempt back: settles its reservation, benches whom the outcome blames, and decides how this request
    /// goes on, which the following `next` tells.
    pub fn report(&mut self, catalog: &Catalog, live: &mut Live, report: Report<'_>, now: Now) {
        let Report { attempt, outcome, spent, has_field, counted_prompt } = report;
        let sent = attempt.prompt_tokens;
        let (at, key) = (attempt.at, attempt.key);
        let (provider, model) = (catalog.provider(at), catalog.model(at));
        // A call that nobody needs must not close the door to those that somebody does.
        let alone = self.fill_max < 1.0 || live.lately.only_it_fails(provider.slot, model.slot, now);
        let answer = self.ask.answer;
        live.fills.forget(provider.slot);
        let call =
            Call { provider, model, key: &provider.keys[key], answer, alone, began: attempt.began, now };
        match outcome {
            Outcome::Served { exhausted_ms, left } => {
                call.settle(live, attempt.reservation, spent);
                if !attempt.committed {
                    live.speeds.answered(provider.slot, model.slot, answer, call.took_ms(), now);
                    live.scoreboard.answered(call.scored(), call.took_ms());
                }
                let choices = u64::from(self.ask.choices.max(1));
                live.ledger.record_output(model.slot, spent.output_tokens.div_ceil(choices));
                if let Some(counted) = counted_prompt {
                    live.ratios.learn(model.slot, sent, counted, now);
                }
                live.told.hear(told::of(call.key, model.slot), attempt.place, &left, now);
                call.reward(live, exhausted_ms);
                self.keep_drops(live, &call, at);
            }
            Outcome::ClientLeft { reached } => {
                match reached {
                    true => call.settle(live, attempt.reservation, spent),
                    false => call.take_back(live, attempt.reservation, attempt.place),
                }
                live.speeds.undecided(provider.slot);
                self.end = Some(DeadEnd::ClientLeft);
            }
            Outcome::Failed(mut failure) => {
                if failure.class == Class::BadRequest && failure.about_choices && self.ask.choices > 1 {
                    failure.class = Class::FewerChoices;
                }
                let refused = failure.refused() && !attempt.committed;
                match failure.reached {
                    true => {
                        call.settle(live, attempt.reservation, if refused { Spent::default() } else { spent })
                    }
                    false => call.take_back(live, attempt.reservation, attempt.place),
                }
                let tokens = sent.saturating_add(self.ask.max_output.unwrap_or(0));
                call.learn(live, &failure, tokens, self.ask.choices);
                // When our own budget ended before the provider's time was up, that is nobody's fault.
                let timed_out = failure.timed_out && failure.status.is_none();
                let cut_short = call.took_ms() < provider.timeouts.first_byte_ms;
                if timed_out && cut_short && now.mono_ms >= attempt.deadline_ms {
                    live.speeds.undecided(provider.slot);
                } else {
                    call.punish(live, &failure, &self.policy);
                }
                if failure.class == Class::TooLong {
                    let at_once = sent.min(self.ask.window_tokens);
                    self.found_too_long(catalog, live, &call, at, at_once);
                }
                self.go_on(live, &call, at, key, &failure, has_field);
                self.hops.push(Hop { at, key, took_ms: call.took_ms(), failure: *failure });
            }
        }
    }

    /// A model said that the request is too long: larger windows come next, then it may be sent less.
    fn found_too_long(&mut self, catalog: &Catalog, live: &Live, call: &Call<'_>, at: ModelIx, sent: u64) {
        let found = self.view(catalog, live, &[], call.now).refused_as_too_long(at, sent);
        let times = self.too_long.iter().filter(|one| one.at == at).count();
        if self.ask.shrink.is_none() || times >= SHRINKS_MAX {
            self.out.push(Scope::Model(call.model.slot));
        }
        self.too_long.push(found);
    }

    /// What has to stay of the conversation turned out to need so many tokens, more than the attempt's model has room
    /// for: nobody was called.
    pub fn needs_more(&mut self, catalog: &Catalog, live: &mut Live, attempt: Attempt, core_tokens: u64) {
        let (model, room) = (attempt.at, attempt.budget.map_or(0, |budget| budget.hard));
        attempt.withdraw(catalog, live);
        live.speeds.undecided(catalog.provider(model).slot);
        self.calls -= 1;
        self.tried.retain(|at| *at != model || self.hops.iter().any(|hop| hop.at == *at));
        if let Some(shrink) = &mut self.ask.shrink {
            // More than the model has room for, so that it is not asked again.
            shrink.core_tokens = core_tokens.max(room.saturating_add(1));
        }
    }

    /// A model that took the request without some fields need not be sent them again.
    fn keep_drops(&self, live: &mut Live, call: &Call<'_>, at: ModelIx) {
        let fields: Vec<String> =
            self.drops.iter().filter(|(model, _)| *model == at).map(|(_, field)| field.clone()).collect();
        if !fields.is_empty() {
            live.lessons.learn_refused(call.model.slot, &fields, call.now);
        }
    }

    /// The "this request" column of the blame table.
    fn go_on(
        &mut self,
        live: &mut Live,
        call: &Call<'_>,
        at: ModelIx,
        key: usize,
        failure: &Failure,
        has_field: &dyn Fn(&str) -> bool,
    ) {
        let (key_slot, model) = (call.key.slot, call.model.slot);
        match failure.class {
            Class::BadKey => {
                self.out.push(Scope::Key(key_slot));
                self.same = Some(at);
            }
            Class::NoCredit => {
                self.out.push(call.account());
                self.same = Some(at);
            }
            Class::Forbidden => {
                self.out.push(Scope::KeyModel(key_slot, model));
                self.same = Some(at);
            }
            Class::RateLimited | Class::QuotaSpent => {
                self.out.push(if failure.account_wide { call.account() } else { call.model_quota() });
                self.same = Some(at);
                if !self.limited.contains(&at) {
                    self.limited.push(at);
                }
            }
            Class::ModelMissing if self.pinned => self.end = Some(DeadEnd::Returned),
            Class::ModelMissing
            | Class::ModelDown
            | Class::NoAnswer
            | Class::LimitTooSmall
            | Class::FewerChoices => {
                self.out.push(Scope::Model(model));
            }
            // What is left of it was settled in `found_too_long`.
            Class::TooLong => {}
            Class::EmptyAnswer => {
                self.out.push(Scope::Model(model));
                self.empty += 1;
                if self.empty >= EMPTY_MAX {
                    self.end = Some(DeadEnd::Failed);
                }
            }
            Class::ProviderDown if call.alone => self.out.push(Scope::Model(model)),
            Class::ProviderDown | Class::Clock | Class::Exhausted => {
                self.out.push(Scope::Provider(call.provider.slot));
            }
            Class::Unreachable | Class::NoNetwork => {
                self.out.push(Scope::Provider(call.provider.slot));
                self.cut_off |= !call.provider.local && live.network.offline();
            }
            Class::BadRequest => self.drop_fields(live, call, at, key, failure, has_field),
            Class::Policy => self.end = Some(DeadEnd::Returned),
        }
    }

    /// A request that is refused goes back to the client, unless it can do without what is refused.
    fn drop_fields(
        &mut self,
        live: &mut Live,
        call: &Call<'_>,
        at: ModelIx,
        key: usize,
        failure: &Failure,
        has_field: &dyn Fn(&str) -> bool,
    ) {
        let dropped = |field: &String| self.drops.iter().any(|(model, known)| *model == at && known == field);
        let known = live.lessons.refused(call.model.slot, call.now);
        let fresh: Vec<String> = failure
            .refused_fields
            .iter()
            .filter(|field| has_field(field) && !dropped(field) && !known.contains(field))
            .cloned()
            .collect();
        let rounds =
            self.hops.iter().filter(|hop| hop.at == at && hop.failure.class == Class::BadRequest).count();
        if fresh.is_empty() || rounds as u32 >= DROPS_MAX {
            self.end = Some(DeadEnd::Returned);
            return;
        }
        // Now it is something else that is refused, so what was left out before was left out rightly.
        self.keep_drops(live, call, at);
        self.drops.extend(fresh.into_iter().map(|field| (at, field)));
        self.again = Some((at, key));
    }

    /// Everybody who could be asked now, in order, and the others.
    pub(super) fn foresee(&self, catalog: &Catalog, live: &Live, now: Now) -> (Vec<Candidate>, Vec<Blocked>) {
        let view = self.view(catalog, live, &self.out, now);
        let ranking = view.ranking(&self.order, self.strategy, self.round);
        (view.all(&self.order, ranking), self.blocked(&view, now))
    }

    /// The strategy that decides.
    pub(super) fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Everybody who cannot be called, by what is looked at.
    fn blocked(&self, view: &View<'_>, now: Now) -> Vec<Blocked> {
        let ready = self.order.ready.iter().filter_map(|ready| view.key_for(ready.at).err());
        let off = self.order.off.iter().map(|(at, obstacle)| Blocked::new(*at, None, *obstacle, now));
        ready.chain(off).collect()
    }

    /// What is left to say.
    fn dead(&self, catalog: &Catalog, live: &Live, now: Now) -> Dead {
        if let Some(end @ (DeadEnd::ClientLeft | DeadEnd::Returned)) = self.end {
            return Dead { end, blocked: Vec::new() };
        }
        // What this request ruled out for itself is no reason for the next one to wait.
        // Where no window is known, or none that explains it, the upstream's own words say it better.
        let told = |one: &&TooLong| one.window.is_some() && !one.doubtful;
        let too_long: Vec<TooLong> = self.too_long.iter().filter(told).copied().collect();
        let view = View { too_long: &too_long, ..self.view(catalog, live, &[], now) };
        let blocked = self.blocked(&view, now);
        let network = blocked.iter().any(|blocked| blocked.obstacle == Obstacle::Offline) || self.cut_off;
        let end = match self.end {
            _ if network && live.network.offline() => DeadEnd::Offline,
            Some(end) => end,
            None if self.calls == 0 => DeadEnd::Blocked,
            None => DeadEnd::Failed,
        };
        Dead { end, blocked }
    }

    /// Whether every failure so far was of one class.
    pub(super) fn only(&self, class: impl Fn(Class) -> bool) -> bool {
        !self.hops.is_empty() && self.hops.iter().all(|hop| class(hop.failure.class))
    }

    /// What a prompt of this request may take of a model's window.
    pub fn budget(&self, catalog: &Catalog, live: &Live, at: ModelIx, now: Now) -> Option<Budget> {
        self.view(catalog, live, &[], now).budget(at)
    }

    pub(super) fn ask(&self) -> &Ask {
        &self.ask
    }
}
