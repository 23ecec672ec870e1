//! Live state as entries of the database, and back.
use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Extent, StateChanges};
use crate::base::clock::Now;
use crate::catalog::slots::Slots;
use crate::context::ratios::{Ratio, Ratios};
use crate::context::summaries::Saved;
use crate::quota::saved::{BenchesState, LedgerState};
use crate::quota::{Benches, Ledger};

/// Kinds of entries: what stands before the name of a scope or model.
const METER: &str = "meter:";
const OUTPUT: &str = "output:";
const BENCH: &str = "bench:";
const RATIO: &str = "ratio:";
pub const SUMMARY: &str = "summary:";

/// What has to be saved, taken from live state under its lock, to be written as text after that.
#[derive(Debug, Default)]
pub struct Taken {
    ledger: LedgerState,
    benches: BenchesState,
    ratios: BTreeMap<String, Ratio>,
    summaries: BTreeMap<String, Option<Saved>>,
}

/// What outlives a restart of what lives in memory.
pub struct Kept<'l> {
    pub ledger: &'l mut Ledger,
    pub benches: &'l mut Benches,
    pub ratios: &'l mut Ratios,
}

/// Takes what changed since the last time, or everything.
pub fn take(kept: Kept<'_>, slots: &Slots, extent: Extent, now: Now) -> Taken {
    let Kept { ledger, benches, ratios } = kept;
    let changes = Taken {
        ledger: ledger.take_changes(slots, now),
        benches: benches.take_changes(slots, now),
        ratios: ratios.take_changes(slots),
        summaries: BTreeMap::new(),
    };
    match extent {
        Extent::Changes => changes,
        Extent::Everything => Taken {
            ledger: ledger.export(slots, now),
            benches: benches.export(slots, now),
            ratios: ratios.export(slots),
            summaries: changes.summaries,
        },
    }
}

impl Taken {
    /// With these summaries, which do not live under the same lock; `None` for one that is gone.
    pub fn with_summaries(self, summaries: BTreeMap<String, Option<Saved>>) -> Taken {
        Taken { summaries, ..self }
    }

    /// The entries to be written.
    pub fn into_changes(self) -> StateChanges {
        let mut changes = StateChanges::new();
        for (name, meter) in self.ledger.meters {
            changes.insert(format!("{METER}{name}"), text(&meter));
        }
        for (name, outputs) in self.ledger.outputs {
            changes.insert(format!("{OUTPUT}{name}"), text(&outputs));
        }
        for (name, benches) in self.benches {
            let text = if benches.is_empty() { None } else { text(&benches) };
            changes.insert(format!("{BENCH}{name}"), text);
        }
        for (name, ratio) in self.ratios {
            changes.insert(format!("{RATIO}{name}"), text(&ratio));
        }
        for (name, summary) in self.summaries {
            changes.insert(format!("{SUMMARY}{name}"), summary.as_ref().and_then(text));
        }
        changes
    }
}

fn text(value: &impl Serialize) -> Option<String> {
    serde_json::to_string(value).ok()
}

/// Puts saved state in place, where everything is new. `summary` takes in one summary, and says whether it is of use. Every entry stands for itself, and one that is
/// damaged costs no other. Returns the keys of entries that are of no more use: run out, or not understood.
pub fn restore(
    saved: &BTreeMap<String, String>,
    kept: Kept<'_>,
    summary: impl Fn(&str, Saved) -> bool,
    slots: &mut Slots,
    now: Now,
) -> Vec<String> {
    let Kept { ledger, benches, ratios } = kept;
    let mut useless = Vec::new();
    let mut ledger_state = LedgerState::default();
    let mut benches_state = BenchesState::new();
    for (key, value) in saved {
        let understood = if let Some(name) = key.strip_prefix(METER) {
            parse(value).map(|meter| ledger_state.meters.insert(name.to_owned(), meter)).is_some()
        } else if let Some(name) = key.strip_prefix(OUTPUT) {
            parse(value).map(|outputs| ledger_state.outputs.insert(name.to_owned(), outputs)).is_some()
        } else if let Some(name) = key.strip_prefix(BENCH) {
            parse(value).map(|list| benches_state.insert(name.to_owned(), list)).is_some()
        } else if let Some(name) = key.strip_prefix(RATIO) {
            parse(value).is_some_and(|ratio| ratios.restore(name, ratio, slots))
        } else if let Some(name) = key.strip_prefix(SUMMARY) {
            parse(value).is_some_and(|saved| summary(name, saved))
        } else {
            // Entries of another part, or of a later version.
            true
        };
        if !understood {
            useless.push(key.clone());
        }
    }
    let dropped = ledger.restore(&ledger_state, slots, now);
    useless.extend(dropped.meters.iter().map(|name| format!("{METER}{name}")));
    useless.extend(dropped.outputs.iter().map(|name| format!("{OUTPUT}{name}")));
    let dropped = benches.restore(&benches_state, slots, now);
    useless.extend(dropped.iter().map(|name| format!("{BENCH}{name}")));
    useless
}

fn parse<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept<'l>(ledger: &'l mut Ledger, benches: &'l mut Benches, ratios: &'l mut Ratios) -> Kept<'l> {
        Kept { ledger, benches, ratios }
    }
    use crate::catalog::provider::{Limit, Limits, Metric, ResetZone, WindowKind};
    use crate::quota::{Cause, Claim, Claims, Scope, Spent, Term, Want};
    use crate::store::Store;

    const NOW: Now = Now::at(3_600_000, 1_796_000_000_000);

    fn limits() -> Limits {
        let limit = Limit { amount: 5.0, window: WindowKind::Calendar };
        Limits { max: [(Metric::Rpd, limit)].into(), credits_per_request: None }
    }

    fn claim(scope: Scope, limits: &Limits) -> Claim<'_> {
        Claim { scope, limits, zone: ResetZone::Fixed(0) }
    }

    /// Three keys in this order, used once, twice, three times; the last one is refused by its provider.
    fn used(slots: &mut Slots, limits: &Limits) -> (Ledger, Benches) {
        let (mut ledger, mut benches) = (Ledger::new(), Benches::new());
        for (number, name) in ["key/acme:one", "key/acme:two", "key/acme:three"].into_iter().enumerate() {
            let scope = Scope::Key(slots.intern(name));
            for _ in 0..=number {
                let claims = Claims::from([claim(scope, limits)]);
                let reservation = ledger.reserve(&claims, &Want::default(), NOW).expect("there is room");
                ledger.settle(reservation, Spent::default(), NOW);
            }
        }
        let refused = Scope::Key(slots.intern("key/acme:three"));
        benches.put(refused, Cause::Auth, Term::Named { ms: 900_000 }, NOW.mono_ms, NOW);
        ledger.record_output(slots.intern("model/acme/big"), 4_321);
        (ledger, benches)
    }

    /// Through a real file: a restart keeps the bench of an invalid key, and another order of keys keeps their usage.
    #[test]
    fn a_restart_keeps_benches_and_a_new_order_of_keys_keeps_usage() {
        let folder = tempfile::tempdir().expect("a folder");
        let limits = limits();
        let mut slots = Slots::default();
        let (mut ledger, mut benches) = used(&mut slots, &limits);
        let opened = Store::open(folder.path()).expect("nobody else has it");
        opened.store.save_from(Box::new(move |extent| {
            take(kept(&mut ledger, &mut benches, &mut Ratios::default()), &slots, extent, NOW).into_changes()
        }));
        opened.store.close();

        let opened = Store::open(folder.path()).expect("nobody else has it");
        let mut slots = Slots::default();
        let (three, one) = (slots.intern("key/acme:three"), slots.intern("key/acme:one"));
        let (mut ledger, mut benches) = (Ledger::new(), Benches::new());
        let later = Now::at(5, NOW.wall_ms + 60_000);
        let useless = restore(
            &opened.state,
            kept(&mut ledger, &mut benches, &mut Ratios::default()),
            |_, _| true,
            &mut slots,
            later,
        );
        assert_eq!(useless, Vec::<String>::new());
        let used = |slot| ledger.used(&claim(Scope::Key(slot), &limits), Metric::Rpd, later);
        assert_eq!((used(one), used(three)), (1.0, 3.0));
        assert_eq!(benches.blocking(&[Scope::Key(one)], later), None);
        let bench = benches.blocking(&[Scope::Key(three)], later).expect("still refused");
        assert_eq!((bench.cause, bench.remaining_ms(later)), (Cause::Auth, 840_000));
        assert_eq!(ledger.expected_output(slots.intern("model/acme/big")), 4_321);
    }

    #[test]
    fn every_entry_stands_for_itself() {
        let limits = limits();
        let mut slots = Slots::default();
        let (mut ledger, mut benches) = used(&mut slots, &limits);
        let changes =
            take(kept(&mut ledger, &mut benches, &mut Ratios::default()), &slots, Extent::Changes, NOW)
                .into_changes();
        let mut saved: BTreeMap<String, String> =
            changes.into_iter().filter_map(|(key, value)| value.map(|value| (key, value))).collect();
        let damaged = [
            ("meter:key/acme:one", r#"{"at":1,"counters":[["rpd","#),
            ("meter:key/acme:gone", "[]"),
            ("meter:nonsense", r#"{"at":1,"counters":[]}"#),
            ("output:model/acme/big", r#"["long"]"#),
            ("bench:key/acme:gone", r#"[{"id":7}]"#),
        ];
        for (key, value) in damaged {
            saved.insert(key.into(), value.into());
        }
        saved.insert("latency:model/acme/big".into(), "of another part".into());
        let mut restored = Ledger::new();
        let mut useless = restore(
            &saved,
            kept(&mut restored, &mut Benches::new(), &mut Ratios::default()),
            |_, _| true,
            &mut slots,
            NOW,
        );
        useless.sort_unstable();
        let mut expected: Vec<String> = damaged.iter().map(|(key, _)| (*key).to_owned()).collect();
        expected.sort_unstable();
        assert_eq!(useless, expected);
        let three = Scope::Key(slots.intern("key/acme:three"));
        assert_eq!(restored.used(&claim(three, &limits), Metric::Rpd, NOW), 3.0);
    }

    #[test]
    fn a_lifted_bench_is_removed_from_the_file() {
        let mut slots = Slots::default();
        let (mut ledger, mut benches) = used(&mut slots, &limits());
        let mut taken = |benches: &mut Benches, extent| {
            take(kept(&mut ledger, benches, &mut Ratios::default()), &slots, extent, NOW).into_changes()
        };
        assert!(taken(&mut benches, Extent::Changes)["bench:key/acme:three"].is_some());
        benches.lift_all(NOW);
        assert_eq!(taken(&mut benches, Extent::Changes), [("bench:key/acme:three".to_owned(), None)].into());
        assert_eq!(taken(&mut benches, Extent::Changes), StateChanges::new());
        assert_eq!(taken(&mut benches, Extent::Everything).len(), 4);
    }
}
