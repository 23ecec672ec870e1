//! The ledger: what each scope has used of its limits, and what calls in flight may still use.
//!
//! A call reserves before it is sent and settles when it ends, so that any number of calls at once cannot spend more
//! than there is. Requests and prompt tokens count from the reservation on, since an upstream counts them when they
//! arrive. Expected output and credits are *held* while the call is in flight, and count from its end on: whenever
//! within the call the upstream counts them, a window of ours never forgets them earlier.
use std::cell::Cell;
use std::collections::HashMap;

pub use super::meter::Room;
use super::meter::{Amounts, Meter, Rule, Unit, credit_parts};
use super::wall::{Time, Wall};
use super::window::AMOUNT_MAX;
use super::{CLAIMS_MAX, Claim, Claims, Scope, SlotHash};
use crate::base::clock::Now;
use crate::catalog::provider::{Metric, Model, Provider, Slot};

/// Scopes with counters at once. With four limits an idle one takes 400 bytes, a busy one about 2 KiB.
const METERS_MAX: usize = 16_384;

/// Models whose output lengths are remembered, and how many outputs of each.
const OUTPUT_MODELS_MAX: usize = 2_048;
pub(super) const OUTPUTS_KEPT: usize = 20;
/// Expected output of a model that has answered fewer than [`OUTPUTS_TRUSTED`] times, unless it has shown longer ones.
const OUTPUT_AT_FIRST: u64 = 512;
const OUTPUTS_TRUSTED: usize = 8;

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
    /// What a call of `model` for so many `choices` will probably use. `max_output` is the client's own limit on each of
    /// them; zero for an embedding, which has no output.
    pub fn of_call(
        ledger: &Ledger,
        provider: &Provider,
        model: &Model,
        prompt_tokens: u64,
        max_output: Option<u64>,
        choices: u32,
    ) -> Want {
        let cap = max_output.into_iter().chain(model.max_output).min();
        let expected = ledger.expected_output(model.slot);
        let output_tokens = match cap {
            Some(cap) if provider.counts_max_tokens && max_output.is_some() => cap,
            Some(cap) => cap.min(expected),
            None => expected,
        };
        let output_tokens = output_tokens.saturating_mul(u64::from(choices));
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

/// A call's claim on its scopes. It must come back by [`Ledger::settle`] or [`Ledger::release`], else it is held for
/// as long as the process runs.
#[must_use = "a reservation is settled or released"]
#[derive(Debug)]
pub struct Reservation {
    scopes: [Option<Scope>; CLAIMS_MAX],
    want: Amounts,
    output_is_charged: bool,
    begun: Time,
    /// The ledger's version then.
    version: u64,
}

/// All counters.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(super) meters: HashMap<Scope, Meter, SlotHash>,
    pub(super) outputs: HashMap<Slot, Outputs, SlotHash>,
    /// In a cell, so that a reader who finds everything full still notices that the clock goes on.
    pub(super) wall: Cell<Wall>,
    /// Grows with every change.
    version: u64,
    /// The version that was saved last.
    pub(super) saved_version: u64,
}

/// Recent output lengths of one model, oldest overwritten first.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs {
    pub(super) lengths: Vec<u32>,
    next: usize,
    expected: u64,
    /// What was expected when this was last marked for saving, and the ledger's version then.
    marked: u64,
    pub(super) version: u64,
}

impl Ledger {
    /// A ledger that has counted nothing.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Tells a date that has passed for certain: a wall clock that shows less is not believed.
    pub fn not_before(&mut self, wall_ms: u64) {
        self.wall.get_mut().not_before(wall_ms);
    }

    pub(super) fn time(&self, now: Now) -> Time {
        let mut wall = self.wall.get();
        let time = wall.read(now);
        self.wall.set(wall);
        time
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
                meter.prepare(&Rule::of(*metric, *limit), claim.zone, self.version);
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
            begun: time,
            version: self.version,
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
            let less_prompt = reservation.want.prompt_tokens.saturating_sub(prompt_tokens);
            meter.take_back(Unit::Tokens, less_prompt, reservation.begun, reservation.version);
            let more_prompt = prompt_tokens.saturating_sub(reservation.want.prompt_tokens);
            meter.add(Unit::Tokens, output_tokens + more_prompt, time);
            meter.add(Unit::Credits, credit_parts, time);
        });
    }

    /// Ends a call of which no byte reached the upstream: nothing of it counts.
    pub fn release(&mut self, reservation: Reservation) {
        self.end(&reservation, |meter| {
            meter.take_back(Unit::Requests, 1, reservation.begun, reservation.version);
            meter.take_back(
                Unit::Tokens,
                reservation.want.prompt_tokens,
                reservation.begun,
                reservation.version,
            );
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
        outputs.push(u32::try_from(output_tokens).unwrap_or(u32::MAX));
        // Each answer shifts the list a little; only what changes the expectation by an eighth is worth a write.
        if outputs.expected.abs_diff(outputs.marked) * 8 > outputs.marked {
            outputs.marked = outputs.expected;
            outputs.version = self.version;
        }
    }

    /// Grows with every change that is worth saving.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Puts saved counters in place.
    pub(super) fn restore_meter(&mut self, scope: Scope, mut meter: Meter, now: Now) {
        self.make_room_for_meters(self.time(now));
        self.version += 1;
        meter.version = self.version;
        self.meters.insert(scope, meter);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;
    use crate::catalog::provider::{Limit, Limits, ResetZone, WindowKind};
    use crate::quota::meter::measure;
    use crate::quota::zone::EARLIEST_WALL_MS;
    use crate::quota::zone::Period;

    const HOUR: u64 = 3_600_000;
    const MINUTE: u64 = 60_000;
    const DAY: u64 = 24 * HOUR;
    /// Noon, some day.
    const NOW: Now = Now::at(HOUR, EARLIEST_WALL_MS + 300 * DAY + 12 * HOUR);
    const UTC: ResetZone = ResetZone::Fixed(0);
    const KEY: Scope = Scope::Key(Slot(1));

    fn limits(max: &[(Metric, f64)]) -> Limits {
        let window = |metric| match measure(metric).1 {
            Period::Day | Period::Month => WindowKind::Calendar,
            _ => WindowKind::Rolling,
        };
        let max =
            max.iter().map(|(metric, amount)| (*metric, Limit { amount: *amount, window: window(*metric) }));
        Limits { max: max.collect(), credits_per_request: None }
    }

    fn claim(scope: Scope, limits: &Limits) -> Claims<'_> {
        Claims::from([Claim { scope, limits, zone: UTC }])
    }

    fn tokens(prompt_tokens: u64, output_tokens: u64) -> Want {
        Want { prompt_tokens, output_tokens, ..Want::default() }
    }

    fn spent(prompt_tokens: u64, output_tokens: u64) -> Spent {
        Spent { prompt_tokens, output_tokens, credits: 0.0 }
    }

    #[test]
    fn ten_calls_at_once_under_one_a_minute_make_one() {
        let limits = limits(&[(Metric::Rpm, 1.0)]);
        let mut ledger = Ledger::new();
        let made: Vec<Reservation> = (0..10)
            .filter_map(|_| ledger.reserve(&claim(KEY, &limits), &Want::default(), NOW).ok())
            .collect();
        assert_eq!(made.len(), 1);
        for reservation in made {
            ledger.settle(reservation, Spent::default(), NOW);
        }
        assert!(ledger.reserve(&claim(KEY, &limits), &Want::default(), NOW.plus_ms(59_999)).is_err());
        assert!(ledger.reserve(&claim(KEY, &limits), &Want::default(), NOW.plus_ms(61_000)).is_ok());
    }

    #[test]
    fn three_keys_of_two_a_minute_give_six_calls() {
        let limits = limits(&[(Metric::Rpm, 2.0)]);
        let mut ledger = Ledger::new();
        let mut served = 0;
        for _ in 0..10 {
            for key in 0..3 {
                if let Ok(reservation) =
                    ledger.reserve(&claim(Scope::Key(Slot(key)), &limits), &Want::default(), NOW)
                {
                    ledger.settle(reservation, spent(3, 4), NOW);
                    served += 1;
                }
            }
        }
        assert_eq!(served, 6);
    }

    #[test]
    fn a_large_output_alone_never_refuses() {
        let limits = limits(&[(Metric::Tpm, 1_000.0)]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        let large = tokens(100, 50_000);
        let first = ledger.reserve(&claims, &large, NOW).expect("the prompt fits, and nothing is in flight");
        assert_eq!(
            ledger.room(&claims, &tokens(1, 1), NOW),
            Room::Full { metric: Metric::Tpm, used: 50_100.0, limit: 1_000.0, retry_in_ms: None }
        );
        ledger.settle(first, spent(100, 200), NOW);
        assert_eq!(ledger.used(&claims[0], Metric::Tpm, NOW), 300.0);
        assert_eq!(ledger.room(&claims, &large, NOW), Room::Free);
        assert_eq!(
            ledger.room(&claims, &tokens(1_001, 0), NOW),
            Room::Never { metric: Metric::Tpm, limit: 1_000.0 }
        );
        let charged = Want { output_is_charged: true, ..large };
        assert_eq!(ledger.room(&claims, &charged, NOW), Room::Never { metric: Metric::Tpm, limit: 1_000.0 });
    }

    #[test]
    fn an_upstream_that_charges_the_whole_maximum_gives_nothing_back() {
        let limits = limits(&[(Metric::Tpm, 1_000.0)]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        let want = Want { output_is_charged: true, ..tokens(100, 600) };
        let first = ledger.reserve(&claims, &want, NOW).expect("there is room");
        ledger.settle(first, spent(100, 20), NOW);
        assert_eq!(ledger.used(&claims[0], Metric::Tpm, NOW), 700.0);
    }

    #[test]
    fn refused_calls_give_tokens_back_and_unsent_ones_the_request_too() {
        let limits = limits(&[(Metric::Rpd, 9.0), (Metric::Tpd, 1_000.0)]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        let used = |ledger: &Ledger, now| {
            (ledger.used(&claims[0], Metric::Rpd, now), ledger.used(&claims[0], Metric::Tpd, now))
        };
        let refused = ledger.reserve(&claims, &tokens(70, 30), NOW).expect("there is room");
        assert_eq!(used(&ledger, NOW), (1.0, 100.0));
        ledger.settle(refused, Spent::default(), NOW);
        assert_eq!(used(&ledger, NOW), (1.0, 0.0));
        let unsent = ledger.reserve(&claims, &tokens(70, 30), NOW).expect("there is room");
        ledger.release(unsent);
        assert_eq!(used(&ledger, NOW), (1.0, 0.0));
        assert_eq!(ledger.in_flight(KEY), 0);
    }

    #[test]
    fn streams_top_up_and_the_overshoot_blocks_the_next_call() {
        let limits = limits(&[(Metric::Tpm, 1_000.0)]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        let mut stream = ledger.reserve(&claims, &tokens(100, 512), NOW).expect("there is room");
        ledger.top_up(&mut stream, 400);
        assert_eq!(ledger.used(&claims[0], Metric::Tpm, NOW), 612.0, "less than held changes nothing");
        ledger.top_up(&mut stream, 5_000);
        assert_eq!(ledger.used(&claims[0], Metric::Tpm, NOW), 5_100.0);
        assert!(ledger.reserve(&claims, &tokens(1, 0), NOW).is_err());
        ledger.settle(stream, spent(100, 5_200), NOW);
        assert!(ledger.reserve(&claims, &tokens(1, 0), NOW.plus_ms(59_000)).is_err());
        assert!(ledger.reserve(&claims, &tokens(1, 0), NOW.plus_ms(62_000)).is_ok());
    }

    #[test]
    fn the_longest_wait_is_told_and_what_never_fits_comes_before_it() {
        let limits =
            limits(&[(Metric::Rps, 1.0), (Metric::Rpm, 2.0), (Metric::Rpd, 2.0), (Metric::Concurrency, 1.0)]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        let first = ledger.reserve(&claims, &Want::default(), NOW).expect("there is room");
        let told = |ledger: &Ledger, now| match ledger.room(&claims, &Want::default(), now) {
            Room::Full { metric, retry_in_ms, .. } => Some((metric, retry_in_ms)),
            _ => None,
        };
        assert_eq!(told(&ledger, NOW), Some((Metric::Rps, Some(1_100))));
        assert_eq!(told(&ledger, NOW.plus_ms(1_100)), Some((Metric::Concurrency, None)));
        ledger.settle(first, Spent::default(), NOW.plus_ms(1_100));
        let second = ledger.reserve(&claims, &Want::default(), NOW.plus_ms(1_100)).expect("there is room");
        ledger.settle(second, Spent::default(), NOW.plus_ms(1_200));
        assert_eq!(told(&ledger, NOW.plus_ms(2_200)), Some((Metric::Rpd, Some(12 * HOUR - 2_200))));
        assert_eq!(told(&ledger, NOW.plus_ms(12 * HOUR)), None);
        let none = self::limits(&[(Metric::Rpd, 0.0), (Metric::Rps, 1.0)]);
        assert_eq!(
            ledger.room(&claim(KEY, &none), &Want::default(), NOW),
            Room::Never { metric: Metric::Rpd, limit: 0.0 }
        );
    }

    #[test]
    fn half_a_request_a_second_is_one_in_two_seconds() {
        let limits = limits(&[(Metric::Rps, 0.5)]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        assert!(ledger.reserve(&claims, &Want::default(), NOW).is_ok());
        assert!(ledger.reserve(&claims, &Want::default(), NOW.plus_ms(1_900)).is_err());
        assert!(ledger.reserve(&claims, &Want::default(), NOW.plus_ms(2_300)).is_ok());
    }

    #[test]
    fn two_claims_on_one_scope_count_once() {
        let (wide, narrow) =
            (limits(&[(Metric::Rpm, 5.0)]), limits(&[(Metric::Rpm, 2.0), (Metric::Tpm, 100.0)]));
        let scope = Scope::KeyModel(Slot(1), Slot(2));
        let claims = Claims::from([
            Claim { scope, limits: &wide, zone: UTC },
            Claim { scope, limits: &narrow, zone: UTC },
        ]);
        let mut ledger = Ledger::new();
        let first = ledger.reserve(&claims, &tokens(5, 5), NOW).expect("there is room");
        assert_eq!((ledger.in_flight(scope), ledger.used(&claims[0], Metric::Rpm, NOW)), (1, 1.0));
        ledger.settle(first, spent(5, 7), NOW);
        assert_eq!(ledger.used(&claims[1], Metric::Tpm, NOW), 12.0);
        assert!(ledger.reserve(&claims, &tokens(5, 5), NOW).is_ok());
        assert!(ledger.reserve(&claims, &tokens(5, 5), NOW).is_err());
    }

    #[test]
    fn a_limit_that_comes_while_a_call_is_in_flight_gives_it_nothing_back() {
        let (before, after) =
            (limits(&[(Metric::Rpm, 9.0)]), limits(&[(Metric::Rpm, 9.0), (Metric::Rpd, 9.0)]));
        let mut ledger = Ledger::new();
        let old = ledger.reserve(&claim(KEY, &before), &Want::default(), NOW).expect("there is room");
        let new = ledger.reserve(&claim(KEY, &after), &Want::default(), NOW).expect("there is room");
        ledger.release(old);
        assert_eq!(ledger.used(&claim(KEY, &after)[0], Metric::Rpd, NOW), 1.0);
        ledger.release(new);
        assert_eq!(ledger.used(&claim(KEY, &after)[0], Metric::Rpd, NOW), 0.0);
    }

    #[test]
    fn credits_are_exact_and_odd_numbers_refund_nothing() {
        let limits = limits(&[(Metric::CreditsPerDay, 10.0)]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        for _ in 0..30 {
            let want = Want { credits: 0.1, ..Want::default() };
            let reservation = ledger.reserve(&claims, &want, NOW).expect("there is room");
            ledger.settle(reservation, Spent { credits: 0.1, ..Spent::default() }, NOW);
        }
        assert_eq!(ledger.used(&claims[0], Metric::CreditsPerDay, NOW), 3.0);
        for odd in [-5.0, f64::NAN, f64::NEG_INFINITY] {
            let want = Want { credits: odd, prompt_credits: odd, ..Want::default() };
            let reservation = ledger.reserve(&claims, &want, NOW).expect("there is room");
            ledger.settle(reservation, Spent { credits: odd, ..Spent::default() }, NOW);
            assert_eq!(ledger.used(&claims[0], Metric::CreditsPerDay, NOW), 3.0, "{odd}");
        }
        let huge = Spent { prompt_tokens: u64::MAX, output_tokens: u64::MAX, credits: f64::INFINITY };
        for _ in 0..3 {
            let reservation = ledger.reserve_anyway(&claims, &tokens(u64::MAX, u64::MAX), NOW);
            ledger.settle(reservation, huge, NOW);
        }
        assert!(ledger.reserve(&claims, &Want { credits: 0.1, ..Want::default() }, NOW).is_err());
        assert!(ledger.reserve(&claims, &Want { credits: 0.1, ..Want::default() }, NOW.plus_ms(DAY)).is_ok());
    }

    #[test]
    fn fill_is_a_fraction_of_the_tightest_limit() {
        let limits = limits(&[(Metric::Rpm, 4.0), (Metric::Rpd, 1_000.0)]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        assert_eq!(ledger.fill(&claims, NOW), 0.0);
        let one = ledger.reserve(&claims, &Want::default(), NOW).expect("there is room");
        assert_eq!(ledger.fill(&claims, NOW), 0.25);
        ledger.settle(one, Spent::default(), NOW);
        assert_eq!(ledger.fill(&claims, NOW.plus_ms(2 * MINUTE)), 0.001);
    }

    #[test]
    fn expected_output_is_the_90th_percentile() {
        let mut ledger = Ledger::new();
        let model = Slot(9);
        assert_eq!(ledger.expected_output(model), 512);
        (0..7).for_each(|_| ledger.record_output(model, 30));
        assert_eq!(ledger.expected_output(model), 512, "seven are too few");
        ledger.record_output(model, 30);
        assert_eq!(ledger.expected_output(model), 30);
        (0..20).for_each(|length| ledger.record_output(model, 100 * (length + 1)));
        assert_eq!(ledger.expected_output(model), 1_800);
        ledger.record_output(Slot(10), 4_000);
        assert_eq!(ledger.expected_output(Slot(10)), 4_000, "a longer one counts at once");
    }

    #[test]
    fn the_number_of_scopes_is_bounded_and_calls_in_flight_are_never_forgotten() {
        let limits = limits(&[(Metric::Rpm, 1.0)]);
        let mut ledger = Ledger::new();
        let scope = |number| Scope::Key(Slot(number));
        let held = ledger.reserve(&claim(scope(0), &limits), &Want::default(), NOW).expect("there is room");
        for number in 1..(METERS_MAX as u32 * 2) {
            let reservation =
                ledger.reserve(&claim(scope(number), &limits), &Want::default(), NOW).expect("room");
            ledger.settle(reservation, Spent::default(), NOW);
        }
        assert!(ledger.meters.len() <= METERS_MAX);
        assert_eq!(ledger.in_flight(scope(0)), 1);
        ledger.release(held);
        let last = scope(METERS_MAX as u32 * 2 - 1);
        assert!(ledger.reserve(&claim(last, &limits), &Want::default(), NOW).is_err(), "recent use is kept");
    }

    /// One call as the upstream sees it. It may count the output whenever it likes while the call lasts.
    struct Call {
        reservation: Option<Reservation>,
        begun_ms: u64,
        ended_ms: u64,
        prompt: u64,
        output: u64,
    }

    /// Any interleaving of reserve, top up, settle, refuse and release, against an upstream that counts each call at
    /// the worst moment.
    fn never_overspends(seed: u64, output_is_charged: bool) {
        let mut rng = Rng::seeded(seed);
        let (rps, rpm) = (1 + rng.below(3) as u64, 2 + rng.below(9) as u64);
        let (tpm, concurrency) = (500 + rng.below(3_000) as u64, 1 + rng.below(5));
        let limits = limits(&[
            (Metric::Rps, rps as f64),
            (Metric::Rpm, rpm as f64),
            (Metric::Tpm, tpm as f64),
            (Metric::Concurrency, concurrency as f64),
        ]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        let mut calls: Vec<Call> = Vec::new();
        let mut now = NOW;
        for _ in 0..3_000 {
            now = now.plus_ms(rng.below(1_500) as u64 * rng.below(2) as u64);
            let open: Vec<usize> = (0..calls.len()).filter(|i| calls[*i].reservation.is_some()).collect();
            if rng.below(2) == 0 || open.is_empty() {
                let want = Want { output_is_charged, ..tokens(rng.below(300) as u64, rng.below(400) as u64) };
                if let Ok(reservation) = ledger.reserve(&claims, &want, now) {
                    let (prompt, output) = (want.prompt_tokens, want.output_tokens);
                    let begun_ms = now.mono_ms;
                    calls.push(Call {
                        reservation: Some(reservation),
                        begun_ms,
                        ended_ms: u64::MAX,
                        prompt,
                        output,
                    });
                }
            } else {
                let place = open[rng.below(open.len())];
                let call = &mut calls[place];
                let reservation = call.reservation.take().expect("only open calls were listed");
                call.ended_ms = now.mono_ms;
                match rng.below(8) {
                    0 => {
                        ledger.release(reservation);
                        calls.swap_remove(place);
                    }
                    1 => {
                        (call.prompt, call.output) = (0, 0);
                        if output_is_charged {
                            call.output = reservation.output_tokens();
                        }
                        ledger.settle(reservation, Spent::default(), now);
                    }
                    _ => {
                        call.prompt = rng.below(call.prompt as usize + 1) as u64;
                        if !output_is_charged {
                            call.output = rng.below(call.output as usize + 1) as u64;
                        }
                        ledger.settle(reservation, spent(call.prompt, call.output), now);
                    }
                }
            }
            let since = |ms: u64| (now.mono_ms + 1).saturating_sub(ms);
            let begun_since = |ms: u64| calls.iter().filter(move |call| call.begun_ms >= ms);
            assert!(begun_since(since(1_000)).count() as u64 <= rps, "rps, seed {seed}");
            assert!(begun_since(since(MINUTE)).count() as u64 <= rpm, "rpm, seed {seed}");
            let open = calls.iter().filter(|call| call.reservation.is_some()).count();
            assert!(open <= concurrency, "concurrency, seed {seed}");
            assert_eq!(ledger.in_flight(KEY) as usize, open, "seed {seed}");
            let prompts: u64 = begun_since(since(MINUTE)).map(|call| call.prompt).sum();
            let outputs =
                || calls.iter().filter(|call| call.ended_ms >= since(MINUTE)).map(|call| call.output);
            // A call alone in flight may be larger than the room that is left: then it alone overshoots.
            let allowed = if output_is_charged { tpm } else { tpm + outputs().max().unwrap_or(0) };
            assert!(prompts + outputs().sum::<u64>() <= allowed, "tpm, seed {seed}");
            let used = ledger.used(&claims[0], Metric::Tpm, now);
            assert!(used >= (prompts + outputs().sum::<u64>()) as f64, "under-counted, seed {seed}");
        }
        for reservation in calls.into_iter().filter_map(|call| call.reservation) {
            ledger.release(reservation);
        }
        let quiet = now.plus_ms(2 * MINUTE);
        assert_eq!(ledger.used(&claims[0], Metric::Tpm, quiet), 0.0, "nothing stays behind, seed {seed}");
        assert_eq!(ledger.meters[&KEY].held.output_tokens, 0, "seed {seed}");
    }

    #[test]
    fn no_interleaving_overspends() {
        for seed in 0..60 {
            never_overspends(seed, seed % 2 == 0);
        }
    }

    /// The true time goes on steadily; the wall clock makes excursions of minutes to other days and back, and stands
    /// in 1970 at times. The upstream counts days by the true time.
    #[test]
    fn c1_clock_steps_neither_free_nor_freeze_a_day() {
        for seed in 0..60 {
            let mut rng = Rng::seeded(seed);
            let limits = limits(&[(Metric::Rpd, 40.0)]);
            let claims = claim(KEY, &limits);
            let mut ledger = Ledger::new();
            let mut truth = NOW;
            assert_eq!(
                ledger.room(&claims, &Want::default(), truth),
                Room::Free,
                "the first reading is right"
            );
            let (mut shift_ms, mut back_at) = (0i64, 0u64);
            let mut today = Period::Day.index(UTC, truth.wall_ms);
            // Calls of this day, and those of an excursion that began before it and lasted into it.
            let (mut made, mut doubtful, mut astray) = (0u64, 0u64, 0u64);
            for _ in 0..4_000 {
                truth = truth.plus_ms(rng.below(4 * MINUTE as usize) as u64);
                let day = Period::Day.index(UTC, truth.wall_ms);
                if day != today {
                    (today, made, doubtful) = (day, 0, astray);
                }
                // An excursion ends before ten minutes are over.
                if shift_ms != 0 && truth.mono_ms >= back_at {
                    (shift_ms, astray) = (0, 0);
                } else if shift_ms == 0 && rng.below(12) == 0 {
                    back_at = truth.mono_ms + 9 * MINUTE;
                    shift_ms = match rng.below(3) {
                        0 => -(truth.wall_ms as i64),
                        1 => HOUR as i64 + rng.below(90 * DAY as usize) as i64,
                        _ => -(HOUR as i64) - rng.below(90 * DAY as usize) as i64,
                    };
                }
                let now = Now::at(truth.mono_ms, (truth.wall_ms as i64 + shift_ms).max(0) as u64);
                if let Ok(reservation) = ledger.reserve(&claims, &Want::default(), now) {
                    ledger.settle(reservation, Spent::default(), now);
                    made += 1;
                    astray += u64::from(shift_ms != 0);
                    assert!(made <= 40, "overspent, seed {seed}");
                } else if shift_ms == 0 {
                    assert!(made + doubtful >= 40, "frozen at {made} + {doubtful}, seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_clock_that_was_behind_at_the_start_frees_nothing_when_it_is_set() {
        let limits = limits(&[(Metric::Rpd, 2.0)]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        let behind = Now::at(NOW.mono_ms, NOW.wall_ms - 20 * HOUR);
        for _ in 0..2 {
            let reservation = ledger.reserve(&claims, &Want::default(), behind).expect("there is room");
            ledger.settle(reservation, Spent::default(), behind);
        }
        for passed_ms in [MINUTE, 12 * MINUTE, 11 * HOUR] {
            assert!(
                ledger.reserve(&claims, &Want::default(), NOW.plus_ms(passed_ms)).is_err(),
                "{passed_ms}"
            );
        }
        assert!(ledger.reserve(&claims, &Want::default(), NOW.plus_ms(12 * HOUR)).is_ok());
    }

    #[test]
    fn c1_a_clock_set_back_over_midnight_keeps_the_day() {
        let limits = limits(&[(Metric::Rpd, 2.0)]);
        let claims = claim(KEY, &limits);
        let mut ledger = Ledger::new();
        let morning = NOW.plus_ms(13 * HOUR);
        for _ in 0..2 {
            let reservation = ledger.reserve(&claims, &Want::default(), morning).expect("there is room");
            ledger.settle(reservation, Spent::default(), morning);
        }
        // Two hours back is yesterday. The step is first doubted, then believed; the count stays in either case.
        for passed_ms in [1_000, 5 * MINUTE, 11 * MINUTE, 30 * MINUTE] {
            let now = Now::at(morning.mono_ms + passed_ms, morning.wall_ms + passed_ms - 2 * HOUR);
            assert!(ledger.reserve(&claims, &Want::default(), now).is_err(), "{passed_ms}");
        }
        let midnight = Now::at(morning.mono_ms + HOUR, morning.wall_ms - HOUR);
        assert!(
            ledger.reserve(&claims, &Want::default(), midnight).is_ok(),
            "and the next midnight frees it"
        );
    }
}
