//! The mutable state that decisions look at: who has used what, who sits on the bench, who is fast, what was learned.
//! It sits behind one lock that is held for microseconds and never across I/O.
use std::cell::RefCell;
use std::collections::HashMap;

use super::health::Checks;
use super::lessons::Lessons;
use super::network::Network;
use super::plan::Orders;
use super::scoreboard::Scoreboard;
use super::speed::Speeds;
use super::sticky::Sticky;
use super::told::Told;
use crate::base::clock::Now;
use crate::catalog::provider::Slot;
use crate::context::ratios::Ratios;
use crate::quota::forecast::Burns;
use crate::quota::{Benches, Ledger, SlotHash};

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Live {
    pub ledger: Ledger,
    pub benches: Benches,
    pub network: Network,
    pub speeds: Speeds,
    pub lessons: Lessons,
    /// What upstreams say to be left of their limits.
    pub(super) told: Told,
    pub ratios: Ratios,
    pub scoreboard: Scoreboard,
    /// What conversations were served by last.
    pub sticky: Sticky,
    pub checks: Checks,
    /// How fast quotas are used up, for forecasts.
    pub burns: Burns,
    /// Orders of models, remembered per resolution.
    pub orders: Orders,
    pub(super) lately: Lately,
    pub(super) fills: Fills,
    rounds: Rounds,
}

impl Live {
    /// Nothing has happened yet.
    pub fn new() -> Live {
        Live::default()
    }

    /// Where the search for a key of this provider begins.
    pub(super) fn first_key(&self, provider: Slot) -> usize {
        self.rounds.keys.get(&provider).copied().unwrap_or(0)
    }

    /// A key was chosen: the next search begins behind it.
    pub(super) fn key_used(&mut self, provider: Slot, key: usize) {
        if self.rounds.keys.len() < ROUNDS_MAX || self.rounds.keys.contains_key(&provider) {
            self.rounds.keys.insert(provider, key + 1);
        }
    }

    /// The place that [`Live::take_round`] would give next.
    pub(super) fn next_round(&self, route: &str) -> usize {
        self.rounds.routes.get(route).map_or(0, |place| place.wrapping_add(1))
    }

    /// A new request's place in the round of its resolution.
    pub(super) fn take_round(&mut self, route: &str) -> usize {
        if self.rounds.routes.len() >= ROUNDS_MAX && !self.rounds.routes.contains_key(route) {
            self.rounds.routes.clear();
        }
        let next = self.next_round(route);
        match self.rounds.routes.get_mut(route) {
            Some(place) => *place = next,
            None => {
                self.rounds.routes.insert(route.into(), next);
            }
        }
        next
    }
}

/// Rounds that are remembered.
const ROUNDS_MAX: usize = 1_024;

/// Whose turn it is: among the keys of a provider, and among the models of a resolution. One round each, so that
/// requests of one kind do not turn the wheel of another.
#[derive(Clone, Debug, Default)]
struct Rounds {
    keys: HashMap<Slot, usize, SlotHash>,
    routes: HashMap<Box<str>, usize>,
}

/// How full the limits of each provider are, remembered while none of its calls begins or ends. In a cell, because it is
/// only a memory of what can be worked out anew.
#[derive(Clone, Debug, Default)]
pub(super) struct Fills(RefCell<HashMap<Slot, (f64, u64), SlotHash>>);

/// Windows run out on their own: a remembered fill is good for so long.
const FILL_FRESH_MS: u64 = 1_000;

impl Fills {
    /// The fill that is remembered, or the one that `work_out` finds.
    pub fn get(&self, provider: Slot, now: Now, work_out: impl Fn() -> f64) -> f64 {
        let mut known = self.0.borrow_mut();
        if known.len() >= ROUNDS_MAX {
            known.clear();
        }
        let fresh = |at_ms: u64| now.mono_ms.saturating_sub(at_ms) <= FILL_FRESH_MS;
        match known.get(&provider) {
            Some((fill, at_ms)) if fresh(*at_ms) => *fill,
            _ => {
                let fill = work_out();
                known.insert(provider, (fill, now.mono_ms));
                fill
            }
        }
    }

    /// A call of this provider began or ended.
    pub fn forget(&mut self, provider: Slot) {
        self.0.get_mut().remove(&provider);
    }
}

/// How the last attempts at the models of each provider ended, so that a model that fails alone is told from a provider
/// that is down.
#[derive(Clone, Debug, Default)]
pub(super) struct Lately(HashMap<Slot, Vec<Ended>, SlotHash>);

#[derive(Clone, Copy, Debug)]
struct Ended {
    model: Slot,
    well: bool,
    at_ms: u64,
}

/// Ends older than this say nothing.
const LATELY_MS: u64 = 60_000;
/// Models of one provider that are remembered.
const MODELS_MAX: usize = 8;

impl Lately {
    /// An attempt at a model ended well, or in a way that may be the provider's fault.
    pub fn ended(&mut self, provider: Slot, model: Slot, well: bool, now: Now) {
        if self.0.len() >= ROUNDS_MAX && !self.0.contains_key(&provider) {
            return;
        }
        let all = self.0.entry(provider).or_default();
        all.retain(|ended| ended.model != model && now.mono_ms.saturating_sub(ended.at_ms) <= LATELY_MS);
        if all.len() >= MODELS_MAX {
            all.remove(0);
        }
        all.push(Ended { model, well, at_ms: now.mono_ms });
    }

    /// Whether lately another model of the provider answered and none other failed.
    pub fn only_it_fails(&self, provider: Slot, model: Slot, now: Now) -> bool {
        let others = || {
            let all = self.0.get(&provider).into_iter().flatten();
            all.filter(|e| e.model != model && now.mono_ms.saturating_sub(e.at_ms) <= LATELY_MS)
        };
        others().next().is_some() && others().all(|ended| ended.well)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_fails_alone_is_told_from_a_provider_that_is_down() {
        let (p, m, n, o) = (Slot(1), Slot(2), Slot(3), Slot(4));
        let now = Now::at(3_600_000, 0);
        let mut lately = Lately::default();
        assert!(!lately.only_it_fails(p, m, now), "nothing is known");
        lately.ended(p, m, true, now);
        assert!(!lately.only_it_fails(p, m, now), "only its own success is known");
        lately.ended(p, n, true, now);
        assert!(lately.only_it_fails(p, m, now));
        lately.ended(p, o, false, now);
        assert!(!lately.only_it_fails(p, m, now), "two that fail are not one");
        lately.ended(p, o, true, now);
        assert!(lately.only_it_fails(p, m, now.plus_ms(LATELY_MS)));
        assert!(!lately.only_it_fails(p, m, now.plus_ms(LATELY_MS + 1)));
    }

    #[test]
    fn each_resolution_has_its_own_round() {
        let mut live = Live::new();
        assert_eq!([live.take_round("a"), live.take_round("b"), live.take_round("a")], [0, 0, 1]);
    }
}
