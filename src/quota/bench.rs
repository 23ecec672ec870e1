//! The bench: who is not to be called for a while, and why. One bench per scope and cause, growing when the same
//! thing goes wrong again, so that an upstream that stays down is asked less and less.
use std::collections::{HashMap, HashSet};

use super::{Scope, SlotHash};
use crate::base::clock::Now;
use crate::catalog::settings::BenchSteps;

/// Benches and remembered strikes at once; the one that is over for longest, or ends soonest, gives way.
pub const BENCHES_MAX: usize = 4_096;

/// No bench is longer, whatever an upstream asks for.
pub const BENCH_MAX_MS: u64 = 7 * 24 * 3_600_000;

/// Strikes above this change nothing any more.
pub(super) const STRIKES_MAX: u32 = 32;

/// What went wrong. Strikes of one cause do not lengthen the bench of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The key is refused.
    Auth,
    /// The account is out of credit.
    Credit,
    /// The key may not use the model.
    Forbidden,
    /// Too many requests or tokens for now.
    RateLimit,
    /// A daily, weekly or monthly quota is used up.
    Quota,
    /// The model does not exist (any more).
    ModelMissing,
    /// The provider or model does not answer as it should: server errors, time-outs, broken connections.
    Unavailable,
    /// Answers that are none.
    NoAnswer,
}

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

impl Cause {
    /// Every cause.
    pub const ALL: [Cause; 8] = [
        Cause::Auth,
        Cause::Credit,
        Cause::Forbidden,
        Cause::RateLimit,
        Cause::Quota,
        Cause::ModelMissing,
        Cause::Unavailable,
        Cause::NoAnswer,
    ];

    /// Its name in settings (`failover.bench.<name>`), in the API and in stored state.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Auth => "auth",
            Cause::Credit => "credit",
            Cause::Forbidden => "forbidden",
            Cause::RateLimit => "rateLimit",
            Cause::Quota => "quota",
            Cause::ModelMissing => "modelMissing",
            Cause::Unavailable => "unavailable",
            Cause::NoAnswer => "noAnswer",
        }
    }

    /// The cause of a name.
    pub fn by_name(name: &str) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| cause.name() == name)
    }

    /// First step and cap where the settings say nothing (the blame table of failover).
    pub const fn steps(self) -> BenchSteps {
        let (first_ms, cap_ms) = match self {
            Cause::Auth => (15 * MINUTE_MS, 6 * HOUR_MS),
            Cause::Credit => (24 * HOUR_MS, 24 * HOUR_MS),
            Cause::Forbidden => (HOUR_MS, HOUR_MS),
            Cause::RateLimit => (MINUTE_MS, 8 * MINUTE_MS),
            Cause::Quota => (24 * HOUR_MS, 24 * HOUR_MS),
            Cause::ModelMissing => (HOUR_MS, 24 * HOUR_MS),
            Cause::Unavailable | Cause::NoAnswer => (MINUTE_MS / 2, 10 * MINUTE_MS),
        };
        BenchSteps { first_ms, cap_ms }
    }
}

/// Steps for a provider on this machine or network: it is usually back soon, and asking costs nothing.
pub const LOCAL_STEPS: BenchSteps = BenchSteps { first_ms: 5_000, cap_ms: 5_000 };

/// How long a bench lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// The first step, doubled with each strike up to the cap.
    Growing(BenchSteps),
    /// The same, but the first `free_strikes` only count and bench nobody.
    Patient { steps: BenchSteps, free_strikes: u32 },
    /// As long as the upstream said; at most [`BENCH_MAX_MS`]. Adds no strike.
    Named { ms: u64 },
}

/// One bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bench {
    /// Stays the same while the bench is lengthened, and over a restart.
    pub id: u64,
    pub scope: Scope,
    pub cause: Cause,
    /// Monotonic. In a process that was restarted since, the time of the restart.
    pub begun_ms: u64,
    /// Monotonic.
    pub until_ms: u64,
    /// How often the cause struck lately.
    pub strikes: u32,
    /// A strike is forgotten for every such time that passes quietly after the bench.
    pub(super) quiet_ms: u64,
}

impl Bench {
    /// Whether it holds now.
    pub fn active(&self, now: Now) -> bool {
        now.mono_ms < self.until_ms
    }

    /// Zero when it is over.
    pub fn remaining_ms(&self, now: Now) -> u64 {
        self.until_ms.saturating_sub(now.mono_ms)
    }

    /// Strikes that are not forgotten yet.
    pub(super) fn strikes_left(&self, now: Now) -> u32 {
        let quiet = now.mono_ms.saturating_sub(self.until_ms) / self.quiet_ms.max(1);
        self.strikes.saturating_sub(u32::try_from(quiet).unwrap_or(u32::MAX))
    }
}

/// All benches, those included that are over but whose strikes are not forgotten.
#[derive(Clone, Debug, Default)]
pub struct Benches {
    pub(super) by_scope: HashMap<Scope, Vec<Bench>, SlotHash>,
    count: usize,
    last_id: u64,
    /// Scopes whose benches differ from what was saved.
    pub(super) changed: HashSet<Scope, SlotHash>,
}

impl Benches {
    /// Nobody is benched.
    pub fn new() -> Benches {
        Benches::default()
    }

    /// Benches `scope`, because of an attempt that began at `attempt_began_ms` (monotonic), and tells for how long;
    /// not at all (an inactive bench) while a patient term has free strikes left.
    ///
    /// A bench that began after that attempt knew of the trouble already: calls that fail together are one strike. A
    /// bench is never shortened.
    pub fn put(&mut self, scope: Scope, cause: Cause, term: Term, attempt_began_ms: u64, now: Now) -> Bench {
        self.touch(scope);
        let known =
            self.by_scope.get(&scope).and_then(|all| all.iter().find(|bench| bench.cause == cause)).copied();
        if known.is_none() {
            self.make_room(now);
        }
        let going_on = known.filter(|bench| bench.active(now));
        let same_trouble = going_on.filter(|bench| attempt_began_ms < bench.begun_ms);
        let strikes_before = known.map_or(0, |bench| bench.strikes_left(now));
        let strikes = match term {
            Term::Named { .. } => strikes_before.max(1),
            _ if same_trouble.is_some() => strikes_before.max(1),
            _ => (strikes_before + 1).min(STRIKES_MAX),
        };
        let length_ms = term.length_ms(strikes).min(BENCH_MAX_MS);
        let bench = Bench {
            // What goes on keeps its id; what begins after it was over is another bench.
            id: going_on.map_or_else(|| self.fresh_id(), |bench| bench.id),
            scope,
            cause,
            begun_ms: same_trouble.map_or(now.mono_ms, |bench| bench.begun_ms),
            until_ms: (now.mono_ms + length_ms).max(going_on.map_or(0, |bench| bench.until_ms)),
            strikes,
            quiet_ms: term.quiet_ms(cause).clamp(1, BENCH_MAX_MS),
        };
        self.store(bench);
        bench
    }

    /// Whether nobody is benched and nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.by_scope.is_empty()
    }

    /// Notes that a scope has to be saved.
    fn touch(&mut self, scope: Scope) {
        self.changed.insert(scope);
    }

    fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Takes in a bench from before a restart; its id is not given to another.
    pub(super) fn restore_one(&mut self, bench: Bench, now: Now) {
        self.make_room(now);
        self.last_id = self.last_id.max(bench.id);
        self.store(bench);
    }

    /// Puts a bench in the place of its predecessor.
    fn store(&mut self, bench: Bench) {
        let all = self.by_scope.entry(bench.scope).or_default();
        match all.iter_mut().find(|known| known.cause == bench.cause) {
            Some(known) => *known = bench,
            None => {
                all.push(bench);
                self.count += 1;
            }
        }
    }

    /// The bench that keeps a call with these scopes waiting for longest, if any does.
    pub fn blocking(&self, scopes: &[Scope], now: Now) -> Option<&Bench> {
        if self.by_scope.is_empty() {
            return None;
        }
        scopes
            .iter()
            .filter_map(|scope| self.by_scope.get(scope))
            .flatten()
            .filter(|bench| bench.active(now))
            .max_by_key(|bench| bench.until_ms)
    }

    /// How often `cause` struck this scope lately, for causes that are benched only after several strikes.
    pub fn strikes(&self, scope: Scope, cause: Cause, now: Now) -> u32 {
        let known = self.by_scope.get(&scope).and_then(|all| all.iter().find(|bench| bench.cause == cause));
        known.map_or(0, |bench| bench.strikes_left(now))
    }

    /// A call with exactly these scopes succeeded that began at `attempt_began_ms` (monotonic): their benches that
    /// began before it are lifted, and half of their strikes forgotten. A bench that began after the call did knows
    /// better and stays, and so does every other scope's.
    pub fn succeeded(&mut self, scopes: &[Scope], attempt_began_ms: u64, now: Now) {
        if self.by_scope.is_empty() {
            return;
        }
        for scope in scopes {
            let Some(all) = self.by_scope.get_mut(scope) else { continue };
            let before = all.len();
            let mut helped = false;
            for bench in all.iter_mut().filter(|bench| bench.begun_ms <= attempt_began_ms) {
                bench.strikes = bench.strikes_left(now) / 2;
                bench.until_ms = bench.until_ms.min(now.mono_ms);
                helped = true;
            }
            all.retain(|bench| bench.strikes > 0 || bench.active(now));
            self.count -= before - all.len();
            if all.is_empty() {
                self.by_scope.remove(scope);
            }
            if helped {
                self.touch(*scope);
            }
        }
    }

    /// The benches that hold now, those that end first at the front.
    pub fn list(&self, now: Now) -> Vec<Bench> {
        let mut active: Vec<Bench> =
            self.by_scope.values().flatten().filter(|bench| bench.active(now)).copied().collect();
        active.sort_unstable_by_key(|bench| (bench.until_ms, bench.id));
        active
    }

    /// Lifts one bench and forgets its strikes; false when there is none of that id.
    pub fn lift(&mut self, id: u64) -> bool {
        self.forget(|bench| bench.id == id) > 0
    }

    /// Lifts every bench and forgets all strikes; tells how many held.
    pub fn lift_all(&mut self, now: Now) -> usize {
        let active = self.list(now).len();
        self.forget(|_| true);
        active
    }

    fn forget(&mut self, gone: impl Fn(&Bench) -> bool) -> usize {
        let before = self.count;
        let changed = &mut self.changed;
        self.by_scope.retain(|scope, all| {
            let length = all.len();
            all.retain(|bench| !gone(bench));
            if all.len() != length {
                changed.insert(*scope);
            }
            !all.is_empty()
        });
        self.count = self.by_scope.values().map(Vec::len).sum();
        before - self.count
    }

    fn make_room(&mut self, now: Now) {
        if self.count < BENCHES_MAX {
            return;
        }
        self.forget(|bench| !bench.active(now) && bench.strikes_left(now) == 0);
        if self.count >= BENCHES_MAX {
            let mut ends: Vec<u64> = self.by_scope.values().flatten().map(|bench| bench.until_ms).collect();
            let (_, last_to_go, _) = ends.select_nth_unstable(BENCHES_MAX / 16);
            let last_to_go = *last_to_go;
            self.forget(|bench| bench.until_ms <= last_to_go);
        }
    }
}

impl Term {
    fn length_ms(self, strikes: u32) -> u64 {
        match self {
            Term::Growing(steps) => grown_ms(steps, strikes),
            Term::Patient { free_strikes, .. } if strikes <= free_strikes => 0,
            Term::Patient { steps, free_strikes } => grown_ms(steps, strikes - free_strikes),
            Term::Named { ms } => ms.max(1),
        }
    }

    /// How long it takes to forget a strike.
    fn quiet_ms(self, cause: Cause) -> u64 {
        let steps = match self {
            Term::Growing(steps) | Term::Patient { steps, .. } => steps,
            Term::Named { .. } => cause.steps(),
        };
        steps.cap_ms.max(steps.first_ms)
    }
}

/// The length of the `strikes`th bench in a row.
fn grown_ms(steps: BenchSteps, strikes: u32) -> u64 {
    let doublings = strikes.saturating_sub(1).min(STRIKES_MAX);
    steps.first_ms.saturating_mul(1 << doublings).min(steps.cap_ms.max(steps.first_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;
    use crate::catalog::provider::Slot;

    const NOW: Now = Now::at(3_600_000, 1_800_000_000_000);
    const KEY: Scope = Scope::Key(Slot(1));
    const MODEL: Scope = Scope::Model(Slot(2));
    const GROWING: Term = Term::Growing(BenchSteps { first_ms: 60_000, cap_ms: 480_000 });

    fn put(benches: &mut Benches, scope: Scope, cause: Cause, term: Term, now: Now) -> u64 {
        benches.put(scope, cause, term, now.mono_ms, now).remaining_ms(now)
    }

    #[test]
    fn benches_double_up_to_the_cap() {
        let mut benches = Benches::new();
        let mut now = NOW;
        let mut lengths = Vec::new();
        for _ in 0..6 {
            let length_ms = put(&mut benches, KEY, Cause::RateLimit, GROWING, now);
            lengths.push(length_ms / 1_000);
            now = now.plus_ms(length_ms);
            assert_eq!(benches.blocking(&[KEY], now), None, "over at its end");
        }
        assert_eq!(lengths, [60, 120, 240, 480, 480, 480]);
    }

    #[test]
    fn quiet_time_and_success_forget_strikes() {
        let mut benches = Benches::new();
        let mut now = NOW;
        for _ in 0..5 {
            now = now.plus_ms(put(&mut benches, KEY, Cause::RateLimit, GROWING, now));
        }
        assert_eq!(benches.strikes(KEY, Cause::RateLimit, now), 5);
        assert_eq!(benches.strikes(KEY, Cause::RateLimit, now.plus_ms(960_000)), 3);
        assert_eq!(benches.strikes(KEY, Cause::RateLimit, now.plus_ms(86_400_000)), 0);
        benches.succeeded(&[KEY], now.mono_ms, now.plus_ms(10));
        assert_eq!(benches.strikes(KEY, Cause::RateLimit, now), 2);
        benches.succeeded(&[KEY], now.mono_ms, now);
        benches.succeeded(&[KEY], now.mono_ms, now);
        assert_eq!((benches.strikes(KEY, Cause::RateLimit, now), benches.count), (0, 0));
    }

    #[test]
    fn a_slow_success_does_not_lift_a_bench_that_began_meanwhile() {
        let mut benches = Benches::new();
        let began_ms = NOW.mono_ms;
        let later = NOW.plus_ms(5_000);
        put(&mut benches, KEY, Cause::Auth, GROWING, later);
        benches.succeeded(&[KEY], began_ms, later.plus_ms(1_000));
        assert!(benches.blocking(&[KEY], later.plus_ms(1_000)).is_some());
        // A probe that began after the bench and went well lifts it.
        benches.succeeded(&[KEY], later.mono_ms + 1, later.plus_ms(2_000));
        assert!(benches.blocking(&[KEY], later.plus_ms(2_000)).is_none());
    }

    #[test]
    fn a_success_lifts_no_other_scope() {
        let mut benches = Benches::new();
        put(&mut benches, KEY, Cause::Auth, GROWING, NOW);
        benches.succeeded(&[MODEL, Scope::KeyModel(Slot(1), Slot(2))], NOW.mono_ms + 9, NOW.plus_ms(9));
        assert!(benches.blocking(&[KEY], NOW.plus_ms(9)).is_some());
    }

    #[test]
    fn calls_that_fail_together_are_one_strike() {
        let mut benches = Benches::new();
        let began_ms = NOW.mono_ms;
        for after_ms in 10..20 {
            benches.put(KEY, Cause::Unavailable, GROWING, began_ms, NOW.plus_ms(after_ms));
        }
        let now = NOW.plus_ms(20);
        assert_eq!(benches.strikes(KEY, Cause::Unavailable, now), 1);
        assert!(benches.blocking(&[KEY], now).expect("benched").remaining_ms(now) <= 60_000);
        assert_eq!(benches.list(now).len(), 1);
    }

    #[test]
    fn a_named_time_is_kept_up_to_the_cap_and_adds_no_strike() {
        let mut benches = Benches::new();
        assert_eq!(put(&mut benches, KEY, Cause::RateLimit, Term::Named { ms: 8_660 }, NOW), 8_660);
        let huge = Term::Named { ms: 999_999_999_000 };
        assert_eq!(put(&mut benches, KEY, Cause::RateLimit, huge, NOW), BENCH_MAX_MS);
        assert_eq!(
            put(&mut benches, KEY, Cause::RateLimit, Term::Named { ms: 5 }, NOW),
            BENCH_MAX_MS,
            "never shorter"
        );
        assert_eq!(benches.strikes(KEY, Cause::RateLimit, NOW), 1);
        assert_eq!(put(&mut benches, MODEL, Cause::RateLimit, Term::Named { ms: 0 }, NOW), 1);
    }

    #[test]
    fn patience_counts_before_it_benches() {
        let steps = BenchSteps { first_ms: 30_000, cap_ms: 600_000 };
        let patient = Term::Patient { steps, free_strikes: 2 };
        let mut benches = Benches::new();
        let mut now = NOW;
        let mut lengths = Vec::new();
        for _ in 0..5 {
            lengths.push(put(&mut benches, MODEL, Cause::NoAnswer, patient, now) / 1_000);
            now = now.plus_ms(120_000);
        }
        assert_eq!(lengths, [0, 0, 30, 60, 120]);
    }

    #[test]
    fn causes_are_apart_and_the_longest_blocks() {
        let mut benches = Benches::new();
        put(&mut benches, KEY, Cause::RateLimit, Term::Named { ms: 1_000 }, NOW);
        put(&mut benches, KEY, Cause::Auth, Term::Named { ms: 9_000 }, NOW);
        put(&mut benches, MODEL, Cause::ModelMissing, Term::Named { ms: 5_000 }, NOW);
        let blocking = |now| benches.blocking(&[KEY, MODEL], now).map(|bench| bench.cause);
        assert_eq!(blocking(NOW), Some(Cause::Auth));
        assert_eq!(blocking(NOW.plus_ms(9_000)), None);
        assert_eq!(benches.strikes(KEY, Cause::Quota, NOW), 0);
    }

    #[test]
    fn benches_are_listed_and_lifted_by_id() {
        let mut benches = Benches::new();
        let long = benches.put(KEY, Cause::Auth, Term::Named { ms: 9_000 }, NOW.mono_ms, NOW);
        let short = benches.put(MODEL, Cause::ModelMissing, Term::Named { ms: 5_000 }, NOW.mono_ms, NOW);
        assert_eq!(Vec::from_iter(benches.list(NOW).iter().map(|bench| bench.id)), [short.id, long.id]);
        assert!(benches.lift(short.id));
        assert!(!benches.lift(short.id));
        assert_eq!(benches.list(NOW), [long]);
        assert_eq!(benches.lift_all(NOW), 1);
        assert_eq!((benches.list(NOW).len(), benches.count), (0, 0));
        let again = benches.put(KEY, Cause::Auth, Term::Named { ms: 9_000 }, NOW.mono_ms, NOW);
        assert!(again.id > long.id, "an id is never used twice");
    }

    #[test]
    fn their_number_is_bounded_and_the_longest_stay() {
        let mut benches = Benches::new();
        let last = Scope::Key(Slot(u32::MAX));
        put(&mut benches, last, Cause::Auth, Term::Named { ms: BENCH_MAX_MS }, NOW);
        for number in 0..3 * BENCHES_MAX as u32 {
            let term = Term::Named { ms: 60_000 + u64::from(number) };
            put(&mut benches, Scope::Key(Slot(number)), Cause::Auth, term, NOW);
            assert!(benches.count <= BENCHES_MAX);
        }
        assert!(benches.blocking(&[last], NOW).is_some());
    }

    /// Whatever happens in whatever order, the bookkeeping holds together.
    #[test]
    fn any_order_of_events_keeps_the_invariants() {
        for seed in 0..40 {
            let mut rng = Rng::seeded(seed);
            let mut benches = Benches::new();
            let mut now = NOW;
            for _ in 0..2_000 {
                now = now.plus_ms(rng.below(30_000) as u64);
                let scope = Scope::Key(Slot(rng.below(4) as u32));
                let cause = Cause::ALL[rng.below(Cause::ALL.len())];
                let began_ms = now.mono_ms - rng.below(60_000) as u64;
                match rng.below(4) {
                    0 | 1 => {
                        let term = match rng.below(3) {
                            0 => Term::Named { ms: rng.below(1 << 40) as u64 },
                            1 => Term::Patient { steps: cause.steps(), free_strikes: 1 },
                            _ => Term::Growing(cause.steps()),
                        };
                        let before = benches.blocking(&[scope], now).map_or(0, |bench| bench.until_ms);
                        let bench = benches.put(scope, cause, term, began_ms, now);
                        assert!(bench.remaining_ms(now) <= BENCH_MAX_MS, "seed {seed}");
                        let after = benches.blocking(&[scope], now).map_or(0, |bench| bench.until_ms);
                        assert!(after >= before, "shortened, seed {seed}");
                    }
                    2 => {
                        let held: Vec<Bench> = benches.list(now);
                        benches.succeeded(&[scope], began_ms, now);
                        let left = benches.list(now);
                        for bench in held.iter().filter(|b| b.scope != scope || b.begun_ms > began_ms) {
                            assert!(left.contains(bench), "lifted too much, seed {seed}");
                        }
                    }
                    _ => {
                        let id = benches.list(now).first().map_or(0, |bench| bench.id);
                        assert_eq!(benches.lift(id), id > 0, "seed {seed}");
                    }
                }
                let stored: usize = benches.by_scope.values().map(Vec::len).sum();
                assert_eq!(stored, benches.count, "seed {seed}");
                assert!(benches.by_scope.values().all(|all| !all.is_empty()), "seed {seed}");
                let mut ids: Vec<u64> = benches.by_scope.values().flatten().map(|bench| bench.id).collect();
                ids.sort_unstable();
                ids.dedup();
                assert_eq!(ids.len(), stored, "ids are unique, seed {seed}");
            }
        }
    }
}
