//! Live state as entries of the database, and back.
use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Extent, StateChanges};
use crate::base::clock::Now;
use crate::catalog::slots::Slots;
use crate::quota::saved::{BenchesState, LedgerState};
use crate::quota::{Benches, Ledger};

/// Kinds of entries: what stands before the name of a scope or model.
const METER: &str = "meter:";
const OUTPUT: &str = "output:";
const BENCH: &str = "bench:";

/// What has to be saved, taken from live state under its lock, to be written as text after that.
#[derive(Debug, Default)]
pub struct Taken {
    ledger: LedgerState,
    benches: BenchesState,
}

/// Takes what changed since the last time, or everything.
pub fn take(ledger: &mut Ledger, benches: &mut Benches, slots: &Slots, extent: Extent, now: Now) -> Taken {
    let changes =
        Taken { ledger: ledger.take_changes(slots, now), benches: benches.take_changes(slots, now) };
    match extent {
        Extent::Changes => changes,
        Extent::Everything => {
            Taken { ledger: ledger.export(slots, now), benches: benches.export(slots, now) }
        }
    }
}

impl Taken {
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
        changes
    }
}

fn text(value: &impl Serialize) -> Option<String> {
    serde_json::to_string(value).ok()
}

/// Puts saved state in place, into a ledger and benches that are new. Every entry stands for itself, and one that is
/// damaged costs no other. Returns the keys of entries that are of no more use: run out, or not understood.
pub fn restore(
    saved: &BTreeMap<String, String>,
    ledger: &mut Ledger,
    benches: &mut Benches,
    slots: &mut Slots,
    now: Now,
) -> Vec<String> {
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
