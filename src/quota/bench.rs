//! The bench: who is not to be called for a while, and why. One bench per scope and cause, growing when the same
//! thing goes wrong again, so that an upstream that stays down is asked less and less.
use std::collections::HashMap;

use super::{Scope, SlotHash};
use crate::base::clock::Now;
use crate::catalog::settings::BenchSteps;

/// Benches and remembered strikes at once; the one that is over for longest, or ends soonest, gives way.
pub const BENCHES_MAX: usize = 4_096;

/// No bench is longer, whatever an upstream asks for.
pub const BENCH_MAX_MS: u64 = 7 * 24 * 3_600_000;

/// Strikes above this change nothing any more.
const STRIKES_MAX: u32 = 32;

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
    /// As long as the upstream said; at most [`BENCH_MAX_MS`].
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
    pub fn active(&self, now: Now) -> bool {
        now.mono_ms < self.until_ms
    }

    /// Zero when it is over.
    pub fn remaining_ms(&self, now: Now) -> u64 {
        self.until_ms.saturating_sub(now.mono_ms)
    }

    /// Strikes that are not forgotten yet.
    fn strikes_left(&self, now: Now) -> u32 {
        let quiet = now.mono_ms.saturating_sub(self.until_ms) / self.quiet_ms.max(1);
        self.strikes.saturating_sub(u32::try_from(quiet).unwrap_or(u32::MAX))
    }
}

/// All benches, those included that are over but whose strikes are not forgotten.
#[derive(Clone, Debug, Default)]
pub struct Benches {
    pub(super) by_scope: HashMap<Scope, Vec<Bench>, SlotHash>,
    pub(super) count: usize,
    pub(super) last_id: u64,
    /// Grows with every change.
    pub(super) version: u64,
}

impl Benches {
    pub fn new() -> Benches {
        Benches::default()
    }

    /// Benches `scope`, because of an attempt that began at `attempt_began_ms` (monotonic), and tells how long.
    ///
    /// A bench that began after that attempt knew of the trouble already: calls that fail together are one strike. A
    /// bench is never shortened.
    pub fn put(&mut self, scope: Scope, cause: Cause, term: Term, attempt_began_ms: u64, now: Now) -> Bench {
        self.version += 1;
        let known = self.by_scope.get(&scope).and_then(|all| all.iter().find(|bench| bench.cause == cause));
        let known = known.copied();
        if known.is_none() {
            self.make_room(now);
        }
        let same_trouble = known.is_some_and(|bench| attempt_began_ms < bench.begun_ms && bench.active(now));
        let strikes = match known {
            Some(bench) if same_trouble => bench.strikes,
            Some(bench) => (bench.strikes_left(now) + 1).min(STRIKES_MAX),
            None => 1,
        };
        let (length_ms, quiet_ms) = match term {
            Term::Growing(steps) => (grown_ms(steps, strikes), steps.cap_ms.max(steps.first_ms)),
            Term::Named { ms } => (ms, ms.max(MINUTE_MS)),
        };
        let length_ms = length_ms.clamp(1, BENCH_MAX_MS);
        // What goes on keeps its id; what begins anew after it was over is another bench.
        let going_on = known.filter(|bench| bench.active(now));
        let id = match going_on {
            Some(bench) => bench.id,
            None => self.fresh_id(),
        };
        let bench = Bench {
            id,
            scope,
            cause,
            begun_ms: if same_trouble { going_on.map_or(now.mono_ms, |b| b.begun_ms) } else { now.mono_ms },
            until_ms: (now.mono_ms + length_ms).max(going_on.map_or(0, |bench| bench.until_ms)),
            strikes,
            quiet_ms: quiet_ms.min(BENCH_MAX_MS),
        };
        self.store(bench);
        bench
    }

    pub(super) fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Puts a bench in the place of its predecessor.
    pub(super) fn store(&mut self, bench: Bench) {
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

    /// Counts a strike without benching, unless `strikes_max` are reached: then it benches by `steps`, growing from
    /// there on. Tells the bench if there is one.
    pub fn strike(
        &mut self,
        scope: Scope,
        cause: Cause,
        steps: BenchSteps,
        strikes_max: u32,
        attempt_began_ms: u64,
        now: Now,
    ) -> Option<Bench> {
        let strikes = self.strikes(scope, cause, now) + 1;
        if strikes >= strikes_max.max(1) {
            let shift = strikes - strikes_max.max(1);
            let first_ms = grown_ms(steps, shift + 1);
            let term = Term::Growing(BenchSteps { first_ms, cap_ms: first_ms });
            let bench = self.put(scope, cause, term, attempt_began_ms, now);
            return Some(bench);
        }
        self.version += 1;
        self.make_room(now);
        let id = self.fresh_id();
        let quiet_ms = steps.cap_ms.max(steps.first_ms);
        let now_ms = now.mono_ms;
        self.store(Bench { id, scope, cause, begun_ms: now_ms, until_ms: now_ms, strikes, quiet_ms });
        None
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
            for bench in all.iter_mut().filter(|bench| bench.begun_ms <= attempt_began_ms) {
                bench.strikes = bench.strikes_left(now) / 2;
                bench.until_ms = bench.until_ms.min(now.mono_ms);
                self.version += 1;
            }
            all.retain(|bench| bench.strikes > 0 || bench.active(now));
            self.count -= before - all.len();
            if all.is_empty() {
                self.by_scope.remove(scope);
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

    /// Grows with every change that is worth saving.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn forget(&mut self, gone: impl Fn(&Bench) -> bool) -> usize {
        let before = self.count;
        self.by_scope.retain(|_, all| {
            all.retain(|bench| !gone(bench));
            !all.is_empty()
        });
        self.count = self.by_scope.values().map(Vec::len).sum();
        self.version += u64::from(self.count != before);
        before - self.count
    }

    pub(super) fn make_room(&mut self, now: Now) {
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

/// The length of the `strikes`th bench in a row.
fn grown_ms(steps: BenchSteps, strikes: u32) -> u64 {
    let doublings = strikes.saturating_sub(1).min(STRIKES_MAX);
    steps.first_ms.saturating_mul(1 << doublings).min(steps.cap_ms.max(steps.first_ms))
}
