//! Ledger and benches in the form in which they outlive a restart: by names instead of slots, by ages instead of
//! monotonic instants. Nothing of what is read back is trusted: it may be old, cut, edited, or from another clock.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Scope;
use super::bench::{BENCH_MAX_MS, Bench, Benches, Cause};
use super::ledger::{Ledger, OUTPUTS_KEPT};
use super::meter::{COUNTERS_MAX, Counter, Meter, SPAN_MAX_MS, Window, measure};
use super::wall::Time;
use super::window::{Calendar, Rolling};
use super::zone::EARLIEST_WALL_MS;
use crate::base::clock::Now;
use crate::catalog::provider::{Metric, ResetZone};
use crate::catalog::slots::Slots;

/// Between the two names of a scope that is a pair.
const PAIR: &str = " > ";

/// Names longer than this are not ours.
const NAME_BYTES_MAX: usize = 1_024;

/// Ids of benches stay below this, so that they survive any JSON reader.
const BENCH_ID_MAX: u64 = 1 << 53;

/// All counters by the names of their scopes, and recent output lengths by model name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LedgerState {
    pub meters: BTreeMap<String, MeterState>,
    pub outputs: BTreeMap<String, Vec<u32>>,
}

/// Names in a [`LedgerState`] that need not be kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Useless {
    pub meters: Vec<String>,
    pub outputs: Vec<String>,
}

/// The counters of one scope.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeterState {
    /// Wall clock when this was written, in milliseconds: what `slots` are relative to.
    pub at: u64,
    pub counters: Vec<CounterState>,
}

/// One counter, as an array without names: it is written every few seconds, and to a memory card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CounterState {
    /// Metric, span in milliseconds, slots of (age in milliseconds, amount).
    Rolling(String, u64, Vec<(u64, u64)>),
    /// Metric, zone, number of the day, month, ... in it (none while the wall clock could not be believed), amount.
    Calendar(String, ZoneState, Option<i64>, u64),
}

/// A [`ResetZone`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ZoneState {
    MinutesEast(i32),
    Named(String),
}

/// One bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchState {
    pub id: u64,
    pub cause: String,
    /// Wall clock when this was written, in milliseconds.
    pub at: u64,
    /// Milliseconds that the bench still had to last then.
    pub left: u64,
    pub strikes: u32,
    /// Milliseconds in which a strike is forgotten.
    pub quiet: u64,
}

/// Benches by the names of their scopes; an empty list means that a scope has none any more.
pub type BenchesState = BTreeMap<String, Vec<BenchState>>;

impl Scope {
    /// The name under which this scope is kept: `key/groq:1f3a`, `key/groq:1f3a > model/groq/some-model`.
    pub fn name(self, slots: &Slots) -> String {
        match self {
            Scope::Provider(slot) | Scope::Account(slot) | Scope::Key(slot) | Scope::Model(slot) => {
                slots.name(slot).to_string()
            }
            Scope::AccountModel(first, second) | Scope::KeyModel(first, second) => {
                format!("{}{PAIR}{}", slots.name(first), slots.name(second))
            }
        }
    }

    /// The scope of a name; none when it is not one of ours.
    pub fn by_name(name: &str, slots: &mut Slots) -> Option<Scope> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let (first, second) = match name.split_once(PAIR) {
            Some((first, second)) if second.starts_with("model/") => (first, Some(second)),
            _ => (name, None),
        };
        let (kind, rest) = first.split_once('/')?;
        if rest.is_empty() {
            return None;
        }
        match (kind, second) {
            ("provider", None) => Some(Scope::Provider(slots.intern(first))),
            ("account", None) => Some(Scope::Account(slots.intern(first))),
            ("key", None) => Some(Scope::Key(slots.intern(first))),
            ("model", None) => Some(Scope::Model(slots.intern(first))),
            ("account", Some(model)) => Some(Scope::AccountModel(slots.intern(first), slots.intern(model))),
            ("key", Some(model)) => Some(Scope::KeyModel(slots.intern(first), slots.intern(model))),
            _ => None,
        }
    }
}

/// What the wall clock says has passed since `at`; nothing when either reading is from an unset clock.
fn elapsed_ms(at: u64, now: Now) -> u64 {
    if at < EARLIEST_WALL_MS || now.wall_ms < EARLIEST_WALL_MS { 0 } else { now.wall_ms.saturating_sub(at) }
}

impl Ledger {
    /// Everything that is counted. What calls in flight hold is written as used: if the process dies they will never
    /// settle, but the upstream has counted them.
    pub fn export(&self, slots: &Slots, now: Now) -> LedgerState {
        self.export_since(0, slots, now)
    }

    /// What changed since this was last called.
    pub fn take_changes(&mut self, slots: &Slots, now: Now) -> LedgerState {
        if self.version() == self.saved_version {
            return LedgerState::default();
        }
        let changes = self.export_since(self.saved_version, slots, now);
        self.saved_version = self.version();
        changes
    }

    fn export_since(&self, version: u64, slots: &Slots, now: Now) -> LedgerState {
        let time = self.time(now);
        let meters = self.meters.iter().filter(|(_, meter)| meter.version > version);
        let outputs = self.outputs.iter().filter(|(_, outputs)| outputs.version > version);
        LedgerState {
            meters: meters.map(|(scope, meter)| (scope.name(slots), meter.state(now, time))).collect(),
            outputs: outputs
                .map(|(model, outputs)| (slots.name(*model).to_string(), outputs.lengths.clone()))
                .collect(),
        }
    }

    /// Takes in saved counters, into a ledger that has counted nothing yet. Tells which are of no more use: run out,
    /// or not understood.
    pub fn restore(&mut self, state: &LedgerState, slots: &mut Slots, now: Now) -> Useless {
        let mut useless = Useless::default();
        let mut wall = self.wall.get();
        for (name, saved) in &state.meters {
            wall.saved_at(saved.at);
            let meter = Meter::restored(saved, now);
            match Scope::by_name(name, slots) {
                Some(scope) if !meter.counters.is_empty() => self.restore_meter(scope, meter, now),
                _ => useless.meters.push(name.clone()),
            }
        }
        self.wall.set(wall);
        for (name, lengths) in &state.outputs {
            match Scope::by_name(name, slots) {
                Some(Scope::Model(model)) if !lengths.is_empty() => {
                    for length in lengths.iter().take(OUTPUTS_KEPT) {
                        self.record_output(model, u64::from(*length));
                    }
                }
                _ => useless.outputs.push(name.clone()),
            }
        }
        self.saved_version = self.version();
        useless
    }
}

impl Meter {
    fn state(&self, now: Now, time: Time) -> MeterState {
        let counters = self.counters.iter().map(|counter| {
            let held = self.held_of(measure(counter.metric).0);
            let metric = counter.metric.name().to_owned();
            match &counter.window {
                Window::Rolling(window) => {
                    let mut slots: Vec<(u64, u64)> = window.ages(now.mono_ms).collect();
                    if held > 0 {
                        slots.push((0, held));
                    }
                    CounterState::Rolling(metric, window.span_ms(), slots)
                }
                Window::Calendar(window) => {
                    let (period, used) = window.saved(time);
                    let used = used.saturating_add(held);
                    CounterState::Calendar(metric, ZoneState::of(window.zone), period, used)
                }
            }
        });
        MeterState { at: now.wall_ms, counters: counters.collect() }
    }

    fn restored(saved: &MeterState, now: Now) -> Meter {
        let counters = saved.counters.iter().take(COUNTERS_MAX);
        Meter {
            counters: counters.filter_map(|counter| counter.restored(saved.at, now)).collect(),
            ..Meter::default()
        }
    }
}

impl CounterState {
    /// None when it makes no sense, or has nothing left to say.
    fn restored(&self, at: u64, now: Now) -> Option<Counter> {
        let (CounterState::Rolling(metric, ..) | CounterState::Calendar(metric, ..)) = self;
        let metric = Metric::ALL.into_iter().find(|known| known.name() == metric)?;
        if metric == Metric::Concurrency {
            return None;
        }
        let window = match self {
            CounterState::Rolling(_, span, slots) => {
                let shortest_ms = measure(metric).1.longest_ms();
                if !(shortest_ms..=SPAN_MAX_MS).contains(span) {
                    return None;
                }
                let mut window = Rolling::new(*span);
                let passed_ms = elapsed_ms(at, now);
                for (age, amount) in slots.iter().take(Rolling::SLOTS_SAVED_MAX) {
                    window.restore(age.saturating_add(passed_ms), *amount, now.mono_ms);
                }
                (window.used(now.mono_ms) > 0).then_some(Window::Rolling(window))?
            }
            CounterState::Calendar(_, zone, period, used) => {
                let mut window = Calendar::new(measure(metric).1, zone.resolved()?);
                let wall_ms = Some(now.wall_ms).filter(|wall_ms| *wall_ms >= EARLIEST_WALL_MS);
                let time = Time { mono_ms: now.mono_ms, wall_ms, stepped: Now::default() };
                window.restore(*period, *used, time);
                (window.used(time) > 0).then_some(Window::Calendar(window))?
            }
        };
        Some(Counter { metric, born: 0, window })
    }
}

impl ZoneState {
    fn of(zone: ResetZone) -> ZoneState {
        match zone {
            ResetZone::Fixed(minutes) => ZoneState::MinutesEast(minutes),
            ResetZone::UsPacific => ZoneState::Named("pacific".into()),
        }
    }

    fn resolved(&self) -> Option<ResetZone> {
        match self {
            ZoneState::MinutesEast(minutes) if (-24 * 60..=24 * 60).contains(minutes) => {
                Some(ResetZone::Fixed(*minutes))
            }
            ZoneState::Named(name) if name == "pacific" => Some(ResetZone::UsPacific),
            _ => None,
        }
    }
}

impl Benches {
    /// Every bench and every strike that is not forgotten.
    pub fn export(&self, slots: &Slots, now: Now) -> BenchesState {
        self.by_scope.keys().map(|scope| (scope.name(slots), self.state_of(*scope, now))).collect()
    }

    /// The scopes that changed since this was last called, with what they have now.
    pub fn take_changes(&mut self, slots: &Slots, now: Now) -> BenchesState {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|scope| (scope.name(slots), self.state_of(scope, now))).collect()
    }

    fn state_of(&self, scope: Scope, now: Now) -> Vec<BenchState> {
        let benches = self.by_scope.get(&scope).into_iter().flatten();
        benches.map(|bench| bench.state(now)).collect()
    }

    /// Takes in saved benches. What passed in between is subtracted; nothing gets longer than it was, or than
    /// [`BENCH_MAX_MS`]. Returns the names of scopes that need not be kept.
    pub fn restore(&mut self, state: &BenchesState, slots: &mut Slots, now: Now) -> Vec<String> {
        let mut useless = Vec::new();
        for (name, saved) in state {
            let benches: Vec<&BenchState> = saved.iter().take(Cause::ALL.len()).collect();
            let scope = if benches.is_empty() { None } else { Scope::by_name(name, slots) };
            let restored: Vec<Bench> = scope
                .into_iter()
                .flat_map(|scope| benches.iter().filter_map(move |bench| bench.restored(scope, now)))
                .collect();
            if restored.is_empty() {
                useless.push(name.clone());
            }
            restored.into_iter().for_each(|bench| self.restore_one(bench, now));
        }
        self.changed.clear();
        useless
    }
}

impl Bench {
    fn state(&self, now: Now) -> BenchState {
        BenchState {
            id: self.id,
            cause: self.cause.name().to_owned(),
            at: now.wall_ms,
            left: self.remaining_ms(now),
            strikes: self.strikes_left(now),
            quiet: self.quiet_ms,
        }
    }
}

impl BenchState {
    fn restored(&self, scope: Scope, now: Now) -> Option<Bench> {
        let passed_ms = elapsed_ms(self.at, now);
        let left_ms = self.left.min(BENCH_MAX_MS);
        let remaining_ms = left_ms.saturating_sub(passed_ms);
        let quiet_ms = self.quiet.clamp(1, BENCH_MAX_MS);
        let forgotten = u32::try_from(passed_ms.saturating_sub(left_ms) / quiet_ms).unwrap_or(u32::MAX);
        let bench = Bench {
            id: self.id,
            scope,
            cause: Cause::by_name(&self.cause)?,
            begun_ms: now.mono_ms,
            until_ms: now.mono_ms + remaining_ms,
            strikes: self.strikes.min(super::bench::STRIKES_MAX).saturating_sub(forgotten),
            quiet_ms,
        };
        let known = (1..BENCH_ID_MAX).contains(&self.id);
        (known && (remaining_ms > 0 || bench.strikes > 0)).then_some(bench)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bench::Term;
    use super::super::ledger::{Spent, Want};
    use super::super::{Claim, Claims};
    use super::*;
    use crate::base::rng::Rng;
    use crate::catalog::provider::{Limit, Limits, WindowKind};
    use crate::catalog::settings::BenchSteps;

    const HOUR: u64 = 3_600_000;
    const NOW: Now = Now::at(HOUR, EARLIEST_WALL_MS + 300 * 24 * HOUR + 12 * HOUR);

    fn limits(max: &[(Metric, f64, WindowKind)]) -> Limits {
        let max =
            max.iter().map(|(metric, amount, window)| (*metric, Limit { amount: *amount, window: *window }));
        Limits { max: max.collect(), credits_per_request: None }
    }

    /// A fresh interner in which the one key of a test gets the slot that it had.
    fn one_key() -> Slots {
        let mut slots = Slots::default();
        slots.intern("key/acme:0a1b");
        slots
    }

    fn all_limits() -> Limits {
        use WindowKind::{Calendar, Rolling};
        limits(&[
            (Metric::Rps, 1e6, Rolling),
            (Metric::Rpm, 1e6, Rolling),
            (Metric::Rpd, 1e6, Calendar),
            (Metric::Tpm, 1e9, Rolling),
            (Metric::Tpd, 1e9, Rolling),
            (Metric::Tpmo, 1e9, Calendar),
            (Metric::CreditsPerDay, 1e6, Calendar),
            (Metric::Concurrency, 1e6, Rolling),
        ])
    }

    /// A ledger with random use in two scopes, some of it in flight.
    fn used_ledger(seed: u64, slots: &mut Slots, limits: &Limits) -> (Ledger, Now) {
        let mut rng = Rng::seeded(seed);
        let (key, model) = (slots.intern("key/acme:0a1b"), slots.intern("model/acme/big/one"));
        let zone = ResetZone::UsPacific;
        let claims = Claims::from([
            Claim { scope: Scope::Key(key), limits, zone },
            Claim { scope: Scope::KeyModel(key, model), limits, zone },
        ]);
        let mut ledger = Ledger::new();
        let mut now = NOW;
        for _ in 0..200 {
            let want = Want { prompt_tokens: rng.below(900) as u64, credits: rng.unit(), ..Want::default() };
            let reservation = ledger.reserve(&claims, &want, now).expect("the limits are wide");
            now = now.plus_ms(rng.below(3_000) as u64);
            if rng.below(10) > 0 {
                let output_tokens = rng.below(900) as u64;
                ledger.settle(reservation, Spent { prompt_tokens: 10, output_tokens, credits: 0.25 }, now);
                ledger.record_output(model, output_tokens);
            } else if rng.below(2) == 0 {
                ledger.release(reservation);
            } else {
                // In flight when the process dies.
                let _ = reservation;
            }
        }
        (ledger, now)
    }

    #[test]
    fn restoring_what_was_exported_gives_the_same_counters() {
        let limits = all_limits();
        for seed in 0..50 {
            let mut slots = Slots::default();
            let (ledger, now) = used_ledger(seed, &mut slots, &limits);
            let state = ledger.export(&slots, now);
            let text = serde_json::to_string(&state).expect("state is plain");
            let parsed: LedgerState = serde_json::from_str(&text).expect("our own JSON parses");
            assert_eq!(parsed, state);
            // Another process: other slots, another monotonic clock, the same wall time.
            let mut others = Slots::default();
            for i in 0..seed {
                others.intern(&format!("provider/p{i}"));
            }
            let then = Now::at(now.mono_ms * 3 + 777, now.wall_ms);
            let mut restored = Ledger::new();
            assert_eq!(restored.restore(&parsed, &mut others, then), Useless::default());
            for name in state.meters.keys() {
                let old = Scope::by_name(name, &mut slots).expect("a name of ours");
                let new = Scope::by_name(name, &mut others).expect("a name of ours");
                for metric in Metric::ALL {
                    let used = |ledger: &Ledger, scope, now| {
                        ledger.used(
                            &Claim { scope, limits: &limits, zone: ResetZone::UsPacific },
                            metric,
                            now,
                        )
                    };
                    let (before, after) = (used(&ledger, old, now), used(&restored, new, then));
                    let expected = if metric == Metric::Concurrency { 0.0 } else { before };
                    assert_eq!(after, expected, "seed {seed} {name} {metric:?}");
                }
            }
            let model = |slots: &mut Slots| slots.intern("model/acme/big/one");
            assert_eq!(
                restored.expected_output(model(&mut others)),
                ledger.expected_output(model(&mut slots)),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn only_what_changed_is_saved_again() {
        let limits = all_limits();
        let mut slots = Slots::default();
        let (mut ledger, now) = used_ledger(1, &mut slots, &limits);
        assert_eq!(ledger.take_changes(&slots, now).meters.len(), 2);
        assert_eq!(ledger.take_changes(&slots, now), LedgerState::default());
        let other = slots.intern("key/acme:ffff");
        let claims =
            Claims::from([Claim { scope: Scope::Key(other), limits: &limits, zone: ResetZone::UsPacific }]);
        let reservation = ledger.reserve(&claims, &Want::default(), now).expect("there is room");
        assert_eq!(Vec::from_iter(ledger.take_changes(&slots, now).meters.into_keys()), ["key/acme:ffff"]);
        ledger.release(reservation);
        assert_eq!(ledger.take_changes(&slots, now).meters.len(), 1);
    }

    #[test]
    fn rolling_counters_go_on_running_out_while_the_process_is_down() {
        let limits =
            limits(&[(Metric::Rpm, 5.0, WindowKind::Rolling), (Metric::Rpd, 5.0, WindowKind::Calendar)]);
        let mut slots = Slots::default();
        let scope = Scope::Key(slots.intern("key/acme:0a1b"));
        let claim = Claim { scope, limits: &limits, zone: ResetZone::Fixed(0) };
        let mut ledger = Ledger::new();
        let reservation =
            ledger.reserve(&Claims::from([claim]), &Want::default(), NOW).expect("there is room");
        ledger.settle(reservation, Spent::default(), NOW);
        let state = ledger.export(&slots, NOW);
        let after = |down_ms: u64, back_ms: u64| {
            let then = Now::at(HOUR, NOW.wall_ms + down_ms - back_ms);
            let mut restored = Ledger::new();
            restored.restore(&state, &mut one_key(), then);
            (restored.used(&claim, Metric::Rpm, then), restored.used(&claim, Metric::Rpd, then))
        };
        assert_eq!(after(0, 0), (1.0, 1.0));
        assert_eq!(after(59_000, 0), (1.0, 1.0));
        assert_eq!(after(63_000, 0), (0.0, 1.0));
        assert_eq!(after(13 * HOUR, 0), (0.0, 0.0));
        // The clock stands in the past after the start: nothing has run out as far as anybody knows.
        assert_eq!(after(0, 40 * HOUR), (1.0, 1.0));
        assert_eq!(after(0, NOW.wall_ms), (1.0, 1.0));
    }

    #[test]
    fn counters_follow_names_and_not_positions() {
        let limits = limits(&[(Metric::Rpd, 5.0, WindowKind::Calendar)]);
        let mut slots = Slots::default();
        let names = ["key/acme:first", "key/acme:second", "key/acme:third"];
        let mut ledger = Ledger::new();
        for (uses, name) in names.iter().enumerate() {
            let claim =
                Claim { scope: Scope::Key(slots.intern(name)), limits: &limits, zone: ResetZone::Fixed(0) };
            for _ in 0..uses + 1 {
                let reservation =
                    ledger.reserve(&Claims::from([claim]), &Want::default(), NOW).expect("room");
                ledger.settle(reservation, Spent::default(), NOW);
            }
        }
        let state = ledger.export(&slots, NOW);
        // The second key is gone, the others are listed the other way round.
        let mut reordered = Slots::default();
        let (third, first) = (reordered.intern(names[2]), reordered.intern(names[0]));
        let mut restored = Ledger::new();
        restored.restore(&state, &mut reordered, NOW);
        let used = |slot| {
            let claim = Claim { scope: Scope::Key(slot), limits: &limits, zone: ResetZone::Fixed(0) };
            restored.used(&claim, Metric::Rpd, NOW)
        };
        assert_eq!((used(first), used(third)), (1.0, 3.0));
    }

    #[test]
    fn saved_counters_of_odd_shape_are_dropped_one_by_one() {
        let check = |counters: &str, kept: usize| {
            let text = format!(r#"{{"at":{},"counters":{counters}}}"#, NOW.wall_ms);
            match serde_json::from_str::<MeterState>(&text) {
                Ok(state) => assert_eq!(Meter::restored(&state, NOW).counters.len(), kept, "{counters}"),
                Err(_) => assert_eq!(kept, 0, "{counters}"),
            }
        };
        check(r#"[["rpm",60000,[[0,3]]]]"#, 1);
        check(r#"[["rpm",60000,[["a",3]]]]"#, 0);
        check(r#"[["rpm",60000,[[0,-3]]]]"#, 0);
        check(r#"[["rpm",60000,"0,3"]]"#, 0);
        check(r#"[["rpm",1,[[0,3]]]]"#, 0);
        check(r#"[["rpm",60000,[[99999999,3]]]]"#, 0);
        check(r#"[["rpm",60000,[[18446744073709551615,18446744073709551615]]]]"#, 0);
        check(r#"[["rpm",60000,[[0,18446744073709551615]]]]"#, 1);
        check(r#"[["magic",60000,[[0,3]]]]"#, 0);
        check(r#"[["concurrency",0,1,3]]"#, 0);
        check(r#"[["rpd","mars",null,3]]"#, 0);
        check(r#"[["rpd",999999,null,3]]"#, 0);
        check(r#"[["rpd","pacific",null,3]]"#, 1);
        check(r#"[["rpd",0,9223372036854775807,3],["rpm",2,[]]]"#, 1);
        check("null", 0);
        for name in ["", "/", "key/", "elsewhere/x", "model", "provider/a > model/b", "key/a:b > key/c:d"] {
            let scope = Scope::by_name(name, &mut Slots::default());
            assert!(!matches!(scope, Some(Scope::KeyModel(..))), "{name}");
        }
        assert!(Scope::by_name(&"key/x".repeat(1_000), &mut Slots::default()).is_none());
    }

    #[test]
    fn scopes_and_names_are_inverse() {
        let mut slots = Slots::default();
        let mut slot = |name: &str| slots.intern(name);
        let scopes = [
            Scope::Provider(slot("provider/acme")),
            Scope::Account(slot("account/acme:team > one")),
            Scope::AccountModel(slot("account/acme:team"), slot("model/acme/a > b")),
            Scope::Key(slot("key/acme:0a1b")),
            Scope::KeyModel(slot("key/acme:0a1b"), slot("model/acme/org/big:free")),
            Scope::Model(slot("model/acme/org/big:free")),
        ];
        for scope in scopes {
            let name = scope.name(&slots);
            assert_eq!(Scope::by_name(&name, &mut slots), Some(scope), "{name}");
        }
    }

    fn steps(first_ms: u64, cap_ms: u64) -> Term {
        Term::Growing(BenchSteps { first_ms, cap_ms })
    }

    #[test]
    fn benches_keep_their_rest_over_a_restart_and_never_grow() {
        let mut slots = Slots::default();
        let key = Scope::Key(slots.intern("key/acme:0a1b"));
        let mut benches = Benches::new();
        let put = benches.put(key, Cause::Auth, steps(15 * 60_000, 6 * HOUR), NOW.mono_ms, NOW);
        let saved = benches.export(&slots, NOW.plus_ms(60_000));
        let after = |wall_ms: u64| {
            let then = Now::at(77, wall_ms);
            let mut restored = Benches::new();
            restored.restore(&saved, &mut one_key(), then);
            restored.list(then).first().map(|bench| (bench.id, bench.remaining_ms(then)))
        };
        let saved_at = NOW.wall_ms + 60_000;
        assert_eq!(after(saved_at), Some((put.id, 14 * 60_000)));
        assert_eq!(after(saved_at + 4 * 60_000), Some((put.id, 10 * 60_000)));
        assert_eq!(after(saved_at + 14 * 60_000), None);
        assert_eq!(
            after(saved_at - 50 * HOUR),
            Some((put.id, 14 * 60_000)),
            "a clock in the past adds nothing"
        );
        assert_eq!(after(0), Some((put.id, 14 * 60_000)), "an unset clock neither");
    }

    #[test]
    fn strikes_survive_a_restart_and_are_forgotten_meanwhile() {
        let mut slots = Slots::default();
        let key = Scope::Key(slots.intern("key/acme:0a1b"));
        let mut benches = Benches::new();
        let mut now = NOW;
        for _ in 0..3 {
            benches.put(key, Cause::RateLimit, steps(60_000, 480_000), now.mono_ms, now);
            now = now.plus_ms(240_000);
        }
        let saved = benches.export(&slots, now);
        let strikes_after = |ms: u64| {
            let then = Now::at(HOUR, now.wall_ms + ms);
            let mut restored = Benches::new();
            restored.restore(&saved, &mut one_key(), then);
            restored.strikes(key, Cause::RateLimit, then)
        };
        assert_eq!((strikes_after(0), strikes_after(480_000), strikes_after(10 * HOUR)), (3, 2, 0));
    }

    #[test]
    fn saved_benches_of_odd_shape_are_clamped_or_dropped() {
        let check = |bench: &str, remaining: Option<u64>| {
            let text = format!(r#"{{"key/acme:0a1b":[{bench}]}}"#);
            let restored = serde_json::from_str::<BenchesState>(&text).ok().and_then(|state| {
                let mut benches = Benches::new();
                benches.restore(&state, &mut Slots::default(), NOW);
                benches.list(NOW).first().map(|bench| bench.remaining_ms(NOW))
            });
            assert_eq!(restored, remaining, "{bench}");
        };
        let at = NOW.wall_ms;
        check(
            &format!(r#"{{"id":1,"cause":"auth","at":{at},"left":5000,"strikes":1,"quiet":9}}"#),
            Some(5_000),
        );
        check(
            &format!(
                r#"{{"id":1,"cause":"auth","at":{at},"left":18446744073709551615,"strikes":4294967295,"quiet":0}}"#
            ),
            Some(BENCH_MAX_MS),
        );
        check(&format!(r#"{{"id":1,"cause":"bored","at":{at},"left":5000,"strikes":1,"quiet":9}}"#), None);
        check(
            &format!(
                r#"{{"id":18446744073709551615,"cause":"auth","at":{at},"left":5,"strikes":1,"quiet":9}}"#
            ),
            None,
        );
        check(&format!(r#"{{"id":1,"cause":"auth","at":{at},"left":-1,"strikes":1,"quiet":9}}"#), None);
        check(r#"{"id":1}"#, None);
    }

    #[test]
    fn lifted_benches_are_told_to_the_store() {
        let mut slots = Slots::default();
        let key = Scope::Key(slots.intern("key/acme:0a1b"));
        let mut benches = Benches::new();
        let bench = benches.put(key, Cause::Auth, steps(60_000, 60_000), NOW.mono_ms, NOW);
        assert_eq!(benches.take_changes(&slots, NOW)["key/acme:0a1b"].len(), 1);
        assert!(benches.take_changes(&slots, NOW).is_empty());
        assert!(benches.lift(bench.id));
        assert_eq!(benches.take_changes(&slots, NOW)["key/acme:0a1b"], []);
    }
}
