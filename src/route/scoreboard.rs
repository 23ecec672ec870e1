//! How often each provider and key served and failed since the start, how fast, and what went wrong last: for people to
//! look at. Nothing is decided by it.
use std::collections::HashMap;

use crate::base::text::truncate;
use crate::catalog::provider::Slot;
use crate::quota::SlotHash;

/// Providers and keys that are remembered.
const SCORES_MAX: usize = 4_096;
/// As much of an error as is kept.
const ERROR_BYTES_MAX: usize = 300;
/// Weight of the newest time.
const ALPHA: f64 = 0.2;

/// The score of one provider or key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Attempts that served.
    pub ok: u64,
    /// Attempts that failed by its own fault.
    pub failed: u64,
    /// Moving average of the time to the first delta of a stream, or to a whole answer.
    pub latency_ms: Option<f64>,
    /// The last failure, until something served again; may hold credentials, so redact it.
    pub last_error: Option<String>,
}

/// All scores.
#[derive(Clone, Debug, Default)]
pub struct Scoreboard(HashMap<Slot, Score, SlotHash>);

impl Scoreboard {
    /// The score of a provider or key; zeros for one that was never called.
    pub fn of(&self, slot: Slot) -> Score {
        self.0.get(&slot).cloned().unwrap_or_default()
    }

    /// An answer began after so long.
    pub fn answered(&mut self, slots: [Slot; 2], took_ms: u64) {
        self.each(slots, |score| {
            let sample = took_ms as f64;
            score.latency_ms =
                Some(score.latency_ms.map_or(sample, |before| before + ALPHA * (sample - before)));
        });
    }

    /// An attempt served.
    pub fn served(&mut self, slots: [Slot; 2]) {
        self.each(slots, |score| {
            score.ok += 1;
            score.last_error = None;
        });
    }

    /// An attempt failed by the fault of those whose score it is.
    pub fn failed(&mut self, slots: [Slot; 2], error: &str) {
        self.each(slots, |score| {
            score.failed += 1;
            score.last_error = Some(truncate(error, ERROR_BYTES_MAX).to_owned());
        });
    }

    fn each(&mut self, slots: [Slot; 2], change: impl Fn(&mut Score)) {
        for slot in slots {
            if self.0.len() < SCORES_MAX || self.0.contains_key(&slot) {
                change(self.0.entry(slot).or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Slot; 2] = [Slot(1), Slot(2)];

    #[test]
    fn provider_and_key_are_scored_together() {
        let mut board = Scoreboard::default();
        board.failed(BOTH, "500: down");
        let score = board.of(Slot(2));
        assert_eq!((score.ok, score.failed, score.last_error.as_deref()), (0, 1, Some("500: down")));
        board.answered(BOTH, 100);
        board.answered(BOTH, 200);
        board.served([Slot(1), Slot(3)]);
        let score = board.of(Slot(1));
        assert_eq!((score.ok, score.failed, score.latency_ms, score.last_error), (1, 1, Some(120.0), None));
        assert_eq!(board.of(Slot(2)).ok, 0, "another key served");
    }

    #[test]
    fn memory_is_bounded() {
        let mut board = Scoreboard::default();
        for slot in 0..10_000 {
            board.failed([Slot(slot), Slot(slot)], &"x".repeat(1_000));
        }
        assert_eq!(board.0.len(), SCORES_MAX);
        assert!(board.of(Slot(0)).last_error.is_some_and(|error| error.len() <= ERROR_BYTES_MAX));
    }
}
