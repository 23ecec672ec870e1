//! The ledger: what each scope has used of its limits, and what calls in flight may still use.
//!
//! A call reserves before it is sent and settles when it ends, so that any number of calls at once cannot spend more
//! than there is. Requests and prompt tokens count from the reservation on, since an upstream counts them when they
//! arrive. Expected output and credits are *held* while the call is in flight, and count from its end on: whenever
//! within the call the upstream counts them, a window of ours never forgets them earlier.
use std::cell::Cell;
use std::collections::HashMap;

use super::wall::Wall;
use super::window::{AMOUNT_MAX, Calendar, Rolling};
use super::zone::Period;
use super::{CLAIMS_MAX, Claim, Claims, Scope, SlotHash};
use crate::base::clock::Now;
use crate::catalog::provider::{Limit, Metric, Model, Provider, ResetZone, Slot, WindowKind};

/// Scopes with counters at once. A busy one takes about 2 KiB, an idle one 300 bytes.
const METERS_MAX: usize = 16_384;

/// Counters of one scope: every metric in both kinds of window. Older ones go when limits change again and again.
pub(super) const COUNTERS_MAX: usize = 2 * Metric::ALL.len();

/// Models whose output lengths are remembered, and how many outputs of each.
const OUTPUT_MODELS_MAX: usize = 2_048;
pub(super) const OUTPUTS_KEPT: usize = 20;
/// Expected output of a model that has answered fewer than [`OUTPUTS_TRUSTED`] times, unless it has shown longer ones.
const OUTPUT_AT_FIRST: u64 = 512;
const OUTPUTS_TRUSTED: usize = 8;

/// Credits are counted in millionths, so that sums stay exact.
const CREDIT: f64 = 1_000_000.0;

/// What one call will probably use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Want {
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// All credits that the call will probably cost.
    pub credits: f64,
    /// The part of `credits` that the prompt costs for certain.
    pub prompt_credits: f64,
    /// The upstream charges `output_tokens` whatever the answer's length (`countsMaxTokens`): all of it has to fit,
    /// and none of it comes back.
    pub output_is_charged: bool,
}

impl Want {
    /// What a call of `model` will probably use. `max_output` is the client's own limit.
    pub fn of_call(
        ledger: &Ledger,
        provider: &Provider,
        model: &Model,
        prompt_tokens: u64,
        max_output: Option<u64>,
    ) -> Want {
        let cap = max_output.into_iter().chain(model.max_output).min();
        let expected = ledger.expected_output(model.slot);
        let output_tokens = match cap {
            Some(cap) if provider.counts_max_tokens && max_output.is_some() => cap,
            Some(cap) => cap.min(expected),
            None => expected,
        };
        Want {
            prompt_tokens,
            output_tokens,
            credits: credits(provider, model, prompt_tokens, output_tokens),
            prompt_credits: credits(provider, model, prompt_tokens, 0),
            output_is_charged: provider.counts_max_tokens && max_output.is_some(),
        }
    }
}

/// What a call costs in the provider's own units: by the model's rates if it has any, else the flat price of a
/// request, else nothing.
pub fn credits(provider: &Provider, model: &Model, prompt_tokens: u64, output_tokens: u64) -> f64 {
    match model.credits {
        Some(rates) if rates.per_m_tok_in.is_some() || rates.per_m_tok_out.is_some() => {
            (prompt_tokens as f64 * rates.per_m_tok_in.unwrap_or(0.0)
                + output_tokens as f64 * rates.per_m_tok_out.unwrap_or(0.0))
                / 1e6
        }
        _ => model.limits.credits_per_request.or(provider.limits.credits_per_request).unwrap_or(0.0),
    }
}

/// What a call used in the end. Nothing (the default) for one that the upstream refused.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub credits: f64,
}

/// Whether a call fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Room {
    Free,
    /// Not now. `retry_in_ms` is how long until enough has run out; `None` when that depends on a call in flight.
    Full {
        metric: Metric,
        used: f64,
        limit: f64,
        retry_in_ms: Option<u64>,
    },
    /// Not ever: the limit is smaller than this one call.
    Never {
        metric: Metric,
        limit: f64,
    },
}

/// A call's claim on its scopes. It must come back by [`Ledger::settle`] or [`Ledger::release`], else it is held for
/// as long as the process runs.
#[must_use = "a reservation is settled or released"]
#[derive(Debug)]
pub struct Reservation {
    scopes: [Option<Scope>; CLAIMS_MAX],
    want: Amounts,
    output_is_charged: bool,
    mono_ms: u64,
    /// `None` when the wall clock could not be believed then.
    wall_ms: Option<u64>,
}

/// All counters.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(super) meters: HashMap<Scope, Meter, SlotHash>,
    pub(super) outputs: HashMap<Slot, Outputs, SlotHash>,
    /// In a cell, so that a reader who finds everything full still notices that the clock goes on.
    pub(super) wall: Cell<Wall>,
    /// Grows with every change.
    pub(super) version: u64,
}

/// The counters of one scope, one per limit that it was ever held against.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    in_flight: u32,
    held: Held,
    pub(super) counters: Vec<Counter>,
    /// The ledger's version at the last change.
    pub(super) version: u64,
}

/// What calls in flight may still use.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    output_tokens: u64,
    credit_parts: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Counter {
    pub(super) metric: Metric,
    pub(super) window: Window,
}

#[derive(Clone, Debug)]
pub(super) enum Window {
    Rolling(Rolling),
    Calendar(Calendar),
}

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Requests,
    Tokens,
    Credits,
    InFlight,
}

/// A [`Want`] in whole numbers.
#[derive(Clone, Copy, Debug)]
struct Amounts {
    prompt_tokens: u64,
    output_tokens: u64,
    credit_parts: u64,
    prompt_credit_parts: u64,
}

/// Recent output lengths of one model, oldest overwritten first.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs {
    pub(super) lengths: Vec<u32>,
    next: usize,
    expected: u64,
    pub(super) version: u64,
}

/// Both clocks as the counters need them.
#[derive(Clone, Copy, Debug)]
struct Time {
    mono_ms: u64,
    wall_ms: Option<u64>,
}

/// A limit, ready to be compared.
#[derive(Clone, Copy, Debug)]
struct Rule {
    metric: Metric,
    unit: Unit,
    span: Span,
    max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    Rolling { span_ms: u64 },
    Calendar(Period),
}

/// The longest rolling window.
pub(super) const SPAN_MAX_MS: u64 = 366 * 24 * 3_600_000;

/// What a metric counts, and over which period.
pub(super) const fn measure(metric: Metric) -> (Unit, Period) {
    match metric {
        Metric::Rps => (Unit::Requests, Period::Second),
        Metric::Rpm => (Unit::Requests, Period::Minute),
        Metric::Rph => (Unit::Requests, Period::Hour),
        Metric::Rpd => (Unit::Requests, Period::Day),
        Metric::Rpmo => (Unit::Requests, Period::Month),
        Metric::Tpm => (Unit::Tokens, Period::Minute),
        Metric::Tph => (Unit::Tokens, Period::Hour),
        Metric::Tpd => (Unit::Tokens, Period::Day),
        Metric::Tpmo => (Unit::Tokens, Period::Month),
        Metric::CreditsPerDay => (Unit::Credits, Period::Day),
        Metric::Concurrency => (Unit::InFlight, Period::Second),
    }
}

impl Rule {
    fn of(metric: Metric, limit: Limit) -> Rule {
        let (unit, period) = measure(metric);
        let whole = if unit == Unit::Credits { limit.amount * CREDIT } else { limit.amount };
        let span = match limit.window {
            WindowKind::Calendar => Span::Calendar(period),
            // Half a request a second is one request in two seconds.
            WindowKind::Rolling if unit == Unit::Requests && limit.amount > 0.0 && limit.amount < 1.0 => {
                let span_ms = (period.longest_ms() as f64 / limit.amount).ceil() as u64;
                return Rule {
                    metric,
                    unit,
                    span: Span::Rolling { span_ms: span_ms.min(SPAN_MAX_MS) },
                    max: 1,
                };
            }
            WindowKind::Rolling => Span::Rolling { span_ms: period.longest_ms() },
        };
        // The cast takes NaN and negative numbers to zero, and cuts above the largest.
        Rule { metric, unit, span, max: whole as u64 }
    }

    /// An amount in the unit that limits are written in.
    fn shown(&self, amount: u64) -> f64 {
        shown(self.unit, amount)
    }

    fn is(&self, counter: &Counter) -> bool {
        counter.metric == self.metric
            && match (&counter.window, self.span) {
                (Window::Rolling(window), Span::Rolling { span_ms }) => window.span_ms() == span_ms,
                (Window::Calendar(_), Span::Calendar(_)) => true,
                _ => false,
            }
    }
}

pub(super) fn shown(unit: Unit, amount: u64) -> f64 {
    if unit == Unit::Credits { amount as f64 / CREDIT } else { amount as f64 }
}

fn credit_parts(credits: f64) -> u64 {
    // The cast takes NaN and negative numbers to zero: nothing is ever refunded that way.
    ((credits * CREDIT).ceil() as u64).min(AMOUNT_MAX)
}

impl Amounts {
    fn of(want: &Want) -> Amounts {
        let credit_parts_all = credit_parts(want.credits);
        Amounts {
            prompt_tokens: want.prompt_tokens.min(AMOUNT_MAX),
            output_tokens: want.output_tokens.min(AMOUNT_MAX),
            credit_parts: credit_parts_all,
            prompt_credit_parts: credit_parts(want.prompt_credits).min(credit_parts_all),
        }
    }

    /// All that is wanted of a unit, and the part of it that is certain.
    fn of_unit(&self, unit: Unit, output_is_charged: bool) -> (u64, u64) {
        match unit {
            Unit::Requests | Unit::InFlight => (1, 1),
            Unit::Tokens if output_is_charged => {
                (self.prompt_tokens + self.output_tokens, self.prompt_tokens + self.output_tokens)
            }
            Unit::Tokens => (self.prompt_tokens + self.output_tokens, self.prompt_tokens),
            Unit::Credits if output_is_charged => (self.credit_parts, self.credit_parts),
            Unit::Credits => (self.credit_parts, self.prompt_credit_parts),
        }
    }
}

impl Window {
    fn of(span: Span, zone: ResetZone) -> Window {
        match span {
            Span::Rolling { span_ms } => Window::Rolling(Rolling::new(span_ms)),
            Span::Calendar(period) => Window::Calendar(Calendar::new(period, zone)),
        }
    }

    fn used(&self, time: Time) -> u64 {
        match self {
            Window::Rolling(window) => window.used(time.mono_ms),
            Window::Calendar(window) => window.used(time.wall_ms),
        }
    }

    fn add(&mut self, amount: u64, time: Time) {
        match self {
            Window::Rolling(window) => window.add(amount, time.mono_ms),
            Window::Calendar(window) => window.add(amount, time.wall_ms),
        }
    }

    fn take_back(&mut self, amount: u64, at: Time) {
        match self {
            Window::Rolling(window) => window.take_back(amount, at.mono_ms),
            Window::Calendar(window) => window.take_back(amount, at.wall_ms),
        }
    }

    /// How long until `amount` has run out of what is used.
    fn wait_ms(&self, amount: u64, time: Time) -> Option<u64> {
        match self {
            Window::Rolling(window) => window.wait_ms(amount, time.mono_ms),
            Window::Calendar(window) => {
                (amount <= window.used(time.wall_ms)).then(|| window.wait_ms(time.wall_ms))
            }
        }
    }
}

impl Meter {
    fn held_of(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Requests => 0,
            Unit::Tokens => self.held.output_tokens,
            Unit::Credits => self.held.credit_parts,
            Unit::InFlight => u64::from(self.in_flight),
        }
    }

    fn counter(&self, rule: &Rule) -> Option<&Window> {
        self.counters.iter().find(|counter| rule.is(counter)).map(|counter| &counter.window)
    }

    /// Makes the counter of a rule if it is missing, and moves a calendar one to the provider's present zone.
    fn prepare(&mut self, rule: &Rule, zone: ResetZone) {
        if rule.unit == Unit::InFlight {
            return;
        }
        match self.counters.iter_mut().find(|counter| rule.is(counter)) {
            Some(Counter { window: Window::Calendar(window), .. }) => window.zone = zone,
            Some(_) => {}
            None => {
                if self.counters.len() >= COUNTERS_MAX {
                    self.counters.remove(0);
                }
                self.counters.push(Counter { metric: rule.metric, window: Window::of(rule.span, zone) });
            }
        }
    }

    fn add(&mut self, unit: Unit, amount: u64, time: Time) {
        for counter in self.counters.iter_mut().filter(|counter| measure(counter.metric).0 == unit) {
            counter.window.add(amount, time);
        }
    }

    fn take_back(&mut self, unit: Unit, amount: u64, at: Time) {
        for counter in self.counters.iter_mut().filter(|counter| measure(counter.metric).0 == unit) {
            counter.window.take_back(amount, at);
        }
    }

    fn idle(&self, time: Time) -> bool {
        self.in_flight == 0 && self.counters.iter().all(|counter| counter.window.used(time) == 0)
    }

    /// Whether `amounts` fit under one rule.
    fn room(&self, rule: &Rule, amounts: &Amounts, output_is_charged: bool, time: Time) -> Room {
        let (all, certain) = amounts.of_unit(rule.unit, output_is_charged);
        let limit = rule.shown(rule.max);
        if certain > rule.max {
            return Room::Never { metric: rule.metric, limit };
        }
        let held = self.held_of(rule.unit);
        let window = self.counter(rule);
        let alone = self.in_flight == 0;
        let needed = if alone { all.min(certain) } else { all };
        // Most windows are far from full, and their sum is known without a look at the single slots.
        if let Some(Window::Rolling(rolling)) = window {
            if rolling.used_at_most() + held + needed <= rule.max {
                return Room::Free;
            }
        }
        let counted = window.map_or(0, |window| window.used(time));
        let used = counted + held;
        if used + needed <= rule.max {
            return Room::Free;
        }
        // What is larger than the limit as a whole fits once nothing else is in flight and the certain part does.
        let aim = if all <= rule.max { needed } else { certain };
        let excess = (used + aim).saturating_sub(rule.max);
        let retry_in_ms =
            if excess == 0 { None } else { window.and_then(|window| window.wait_ms(excess, time)) };
        Room::Full { metric: rule.metric, used: rule.shown(used), limit, retry_in_ms }
    }
}

impl Ledger {
    pub fn new() -> Ledger {
        Ledger::default()
    }

    fn time(&self, now: Now) -> Time {
        let mut wall = self.wall.get();
        let wall_ms = wall.read(now);
        self.wall.set(wall);
        Time { mono_ms: now.mono_ms, wall_ms }
    }

    /// Whether a call fits under all its claims: every limit takes all that is wanted, or the certain part of it
    /// while nothing else is in flight in that scope, so that a large `max_tokens` alone never refuses. Else the
    /// limit with the longest wait.
    pub fn room(&self, claims: &[Claim<'_>], want: &Want, now: Now) -> Room {
        let time = self.time(now);
        let amounts = Amounts::of(want);
        let nothing = Meter::default();
        let mut worst = Room::Free;
        for claim in claims.iter().filter(|claim| !claim.limits.max.is_empty()) {
            let meter = self.meters.get(&claim.scope).unwrap_or(&nothing);
            for (metric, limit) in &claim.limits.max {
                let room = meter.room(&Rule::of(*metric, *limit), &amounts, want.output_is_charged, time);
                if severity(&room) > severity(&worst) {
                    worst = room;
                }
            }
        }
        worst
    }

    /// Counts one request and the prompt, and holds the expected output, in every scope of `claims`. Fails with the
    /// reason when there is no room, and then nothing has changed.
    pub fn reserve(&mut self, claims: &Claims<'_>, want: &Want, now: Now) -> Result<Reservation, Room> {
        match self.room(claims, want, now) {
            Room::Free => Ok(self.reserve_anyway(claims, want, now)),
            full => Err(full),
        }
    }

    /// The same without asking for room, for a call that is made in any case.
    pub fn reserve_anyway(&mut self, claims: &Claims<'_>, want: &Want, now: Now) -> Reservation {
        let time = self.time(now);
        let amounts = Amounts::of(want);
        self.make_room_for_meters(time);
        self.version += 1;
        let mut scopes = [None; CLAIMS_MAX];
        for (place, claim) in claims.iter().enumerate().filter(|(_, claim)| !claim.limits.max.is_empty()) {
            let meter = self.meters.entry(claim.scope).or_default();
            for (metric, limit) in &claim.limits.max {
                meter.prepare(&Rule::of(*metric, *limit), claim.zone);
            }
            // Two claims may share a scope: the provider's and the model's limits where both are per key and model.
            if !scopes.contains(&Some(claim.scope)) {
                scopes[place] = Some(claim.scope);
            }
        }
        for scope in scopes.iter().flatten() {
            if let Some(meter) = self.meters.get_mut(scope) {
                meter.version = self.version;
                meter.in_flight += 1;
                meter.add(Unit::Requests, 1, time);
                meter.add(Unit::Tokens, amounts.prompt_tokens, time);
                meter.held.output_tokens += amounts.output_tokens;
                meter.held.credit_parts += amounts.credit_parts;
            }
        }
        Reservation {
            scopes,
            want: amounts,
            output_is_charged: want.output_is_charged,
            mono_ms: time.mono_ms,
            wall_ms: time.wall_ms,
        }
    }

    /// Raises what is held for a call to `output_tokens` in all, when its answer turns out longer than expected. The
    /// call goes on even above the limit; the next one waits.
    pub fn top_up(&mut self, reservation: &mut Reservation, output_tokens: u64) {
        let output_tokens = output_tokens.min(AMOUNT_MAX);
        let more = output_tokens.saturating_sub(reservation.want.output_tokens);
        if more == 0 {
            return;
        }
        reservation.want.output_tokens = output_tokens;
        for scope in reservation.scopes.iter().flatten() {
            if let Some(meter) = self.meters.get_mut(scope) {
                meter.held.output_tokens += more;
            }
        }
    }

    /// Ends a call that reached the upstream: the request stays counted, the tokens become what they really were.
    pub fn settle(&mut self, reservation: Reservation, spent: Spent, now: Now) {
        let time = self.time(now);
        let charged = if reservation.output_is_charged { reservation.want.output_tokens } else { 0 };
        let output_tokens = spent.output_tokens.min(AMOUNT_MAX).max(charged);
        let prompt_tokens = spent.prompt_tokens.min(AMOUNT_MAX);
        let credit_parts = credit_parts(spent.credits);
        self.end(&reservation, |meter| {
            meter.take_back(
                Unit::Tokens,
                reservation.want.prompt_tokens.saturating_sub(prompt_tokens),
                reservation.begun(),
            );
            let more_prompt = prompt_tokens.saturating_sub(reservation.want.prompt_tokens);
            meter.add(Unit::Tokens, output_tokens + more_prompt, time);
            meter.add(Unit::Credits, credit_parts, time);
        });
    }

    /// Ends a call of which no byte reached the upstream: nothing of it counts.
    pub fn release(&mut self, reservation: Reservation) {
        self.end(&reservation, |meter| {
            meter.take_back(Unit::Requests, 1, reservation.begun());
            meter.take_back(Unit::Tokens, reservation.want.prompt_tokens, reservation.begun());
        });
    }

    fn end(&mut self, reservation: &Reservation, count: impl Fn(&mut Meter)) {
        self.version += 1;
        for scope in reservation.scopes.iter().flatten() {
            // A meter with a call in flight is never dropped, so it is there.
            if let Some(meter) = self.meters.get_mut(scope) {
                meter.version = self.version;
                meter.in_flight = meter.in_flight.saturating_sub(1);
                meter.held.output_tokens =
                    meter.held.output_tokens.saturating_sub(reservation.want.output_tokens);
                meter.held.credit_parts =
                    meter.held.credit_parts.saturating_sub(reservation.want.credit_parts);
                count(meter);
            }
        }
    }

    /// What a scope has used of one of its limits, calls in flight included; in the unit of the limit.
    pub fn used(&self, claim: &Claim<'_>, metric: Metric, now: Now) -> f64 {
        let (Some(limit), Some(meter)) = (claim.limits.max.get(&metric), self.meters.get(&claim.scope))
        else {
            return 0.0;
        };
        let rule = Rule::of(metric, *limit);
        let counted = meter.counter(&rule).map_or(0, |window| window.used(self.time(now)));
        rule.shown(counted + meter.held_of(rule.unit))
    }

    /// The largest used fraction among all limits of the claims: 0 is untouched, 1 is full, more is overdrawn.
    pub fn fill(&self, claims: &[Claim<'_>], now: Now) -> f64 {
        let time = self.time(now);
        let mut largest: f64 = 0.0;
        for claim in claims {
            let Some(meter) = self.meters.get(&claim.scope) else { continue };
            for (metric, limit) in &claim.limits.max {
                let rule = Rule::of(*metric, *limit);
                let counted = meter.counter(&rule).map_or(0, |window| window.used(time));
                largest = largest.max((counted + meter.held_of(rule.unit)) as f64 / rule.max.max(1) as f64);
            }
        }
        largest
    }

    /// Calls in flight in a scope that has limits.
    pub fn in_flight(&self, scope: Scope) -> u32 {
        self.meters.get(&scope).map_or(0, |meter| meter.in_flight)
    }

    /// How long an answer of this model will probably be: the 90th percentile of its recent ones, 512 at first.
    pub fn expected_output(&self, model: Slot) -> u64 {
        self.outputs.get(&model).map_or(OUTPUT_AT_FIRST, |outputs| outputs.expected)
    }

    /// Remembers the length of an answer.
    pub fn record_output(&mut self, model: Slot, output_tokens: u64) {
        if self.outputs.len() >= OUTPUT_MODELS_MAX && !self.outputs.contains_key(&model) {
            return;
        }
        self.version += 1;
        let outputs = self.outputs.entry(model).or_default();
        outputs.version = self.version;
        outputs.push(u32::try_from(output_tokens).unwrap_or(u32::MAX));
    }

    /// Grows with every change that is worth saving.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// When the table is full, drops the meters that hold nothing, and if that is not enough those unchanged for
    /// longest; a sixteenth at once, so that it happens seldom.
    fn make_room_for_meters(&mut self, time: Time) {
        if self.meters.len() + CLAIMS_MAX <= METERS_MAX {
            return;
        }
        self.meters.retain(|_, meter| !meter.idle(time));
        let excess = (self.meters.len() + METERS_MAX / 16).saturating_sub(METERS_MAX);
        let mut idle: Vec<(u64, Scope)> = self
            .meters
            .iter()
            .filter(|(_, meter)| meter.in_flight == 0)
            .map(|(scope, meter)| (meter.version, *scope))
            .collect();
        idle.sort_unstable();
        for (_, scope) in idle.into_iter().take(excess) {
            self.meters.remove(&scope);
        }
    }
}

impl Reservation {
    /// What is held for the answer.
    pub fn output_tokens(&self) -> u64 {
        self.want.output_tokens
    }

    fn begun(&self) -> Time {
        Time { mono_ms: self.mono_ms, wall_ms: self.wall_ms }
    }
}

impl Outputs {
    pub(super) fn push(&mut self, length: u32) {
        if self.lengths.len() < OUTPUTS_KEPT {
            self.lengths.push(length);
        } else {
            self.lengths[self.next % OUTPUTS_KEPT] = length;
            self.next += 1;
        }
        let mut sorted = self.lengths.clone();
        sorted.sort_unstable();
        // Nearest rank: of 20 the 18th.
        let rank = (sorted.len() * 9).div_ceil(10);
        let percentile = u64::from(sorted[rank - 1]);
        let floor = if sorted.len() < OUTPUTS_TRUSTED { OUTPUT_AT_FIRST } else { 1 };
        self.expected = percentile.max(floor);
    }
}

/// Orders rooms: the longest wait is the one to report, since all limits have to give way.
fn severity(room: &Room) -> (u8, u64) {
    match room {
        Room::Free => (0, 0),
        Room::Full { retry_in_ms, .. } => (1, retry_in_ms.unwrap_or(0)),
        Room::Never { .. } => (2, 0),
    }
}
