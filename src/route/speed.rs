//! How fast models answer: one moving average for streams (time to the first delta) and one for whole answers, since
//! the two cannot be compared.
use std::collections::HashMap;

use crate::base::clock::Now;
use crate::catalog::provider::Slot;
use crate::quota::SlotHash;

/// Weight of the newest sample.
const ALPHA: f64 = 0.2;
/// What a failure counts as at least, so that failing fast does not pass for being fast.
const FAILURE_MS: f64 = 10_000.0;
/// An average that old says nothing any more: the provider counts as untried, and is tried once again.
const FRESH_MS: u64 = 3_600_000;
/// Providers, and models of one provider, that are remembered.
const ENTRIES_MAX: usize = 1_024;

/// What kind of answer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Stream,
    Whole,
}

#[derive(Clone, Copy, Debug, Default)]
struct Average {
    ms: Option<f64>,
    at_ms: u64,
}

impl Average {
    fn fresh(self, now: Now) -> Option<f64> {
        self.ms.filter(|_| now.mono_ms.saturating_sub(self.at_ms) <= FRESH_MS)
    }

    fn add(&mut self, sample_ms: f64, now: Now) {
        let before = self.fresh(now);
        self.ms = Some(before.map_or(sample_ms, |before| before + ALPHA * (sample_ms - before)));
        self.at_ms = now.mono_ms;
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    stream: Average,
    whole: Average,
    /// An attempt is under way that is the first one; until it ends nobody else needs to try.
    trying_since_ms: Option<u64>,
}

impl Pace {
    fn of(&mut self, answer: Answer) -> &mut Average {
        match answer {
            Answer::Stream => &mut self.stream,
            Answer::Whole => &mut self.whole,
        }
    }

    /// The average of the kind that is asked for; the other kind is better than nothing.
    fn known(&self, answer: Answer, now: Now) -> Option<f64> {
        let (stream, whole) = (self.stream.fresh(now), self.whole.fresh(now));
        let being_tried = self.trying_since_ms.is_some_and(|at| now.mono_ms.saturating_sub(at) <= FRESH_MS);
        let known = if answer == Answer::Stream { stream.or(whole) } else { whole.or(stream) };
        known.or(being_tried.then_some(FAILURE_MS))
    }
}

#[derive(Clone, Debug, Default)]
struct ProviderPace {
    all: Pace,
    models: HashMap<Slot, Pace, SlotHash>,
}

/// The averages of all providers and models.
#[derive(Clone, Debug, Default)]
pub struct Speeds(HashMap<Slot, ProviderPace, SlotHash>);

/// What is known of one provider, for looking at many of its models.
#[derive(Clone, Copy, Debug)]
pub struct ProviderSpeed<'a> {
    pace: Option<&'a ProviderPace>,
    /// Milliseconds of its models that have no average of their own; zero when it is untried.
    common_ms: f64,
}

impl ProviderSpeed<'_> {
    /// Milliseconds that an answer of this model will probably take; zero when the whole provider is untried.
    pub fn of_model(self, model: Slot, answer: Answer, now: Now) -> f64 {
        let own = self.pace.and_then(|pace| pace.models.get(&model)).and_then(|pace| pace.known(answer, now));
        own.unwrap_or(self.common_ms)
    }

    /// What none of its models is below.
    pub fn floor(self, answer: Answer, now: Now) -> f64 {
        let own = self.pace.into_iter().flat_map(|pace| pace.models.values());
        own.filter_map(|pace| pace.known(answer, now)).fold(self.common_ms, f64::min)
    }
}

impl Speeds {
    /// What is known of a provider.
    pub fn of_provider(&self, provider: Slot, answer: Answer, now: Now) -> ProviderSpeed<'_> {
        let pace = self.0.get(&provider);
        let common_ms = pace.and_then(|pace| pace.all.known(answer, now)).unwrap_or(0.0);
        ProviderSpeed { pace, common_ms }
    }

    /// The fresh averages of a provider, or of one of its models: to the first delta of a stream, and to a whole answer.
    pub fn averages(&self, provider: Slot, model: Option<Slot>, now: Now) -> (Option<f64>, Option<f64>) {
        let known = self.0.get(&provider);
        let pace = known.and_then(|pace| model.map_or(Some(&pace.all), |model| pace.models.get(&model)));
        pace.map_or((None, None), |pace| (pace.stream.fresh(now), pace.whole.fresh(now)))
    }

    /// An attempt begins.
    pub fn trying(&mut self, provider: Slot, now: Now) {
        if let Some(pace) = self.entry(provider) {
            pace.all.trying_since_ms = Some(now.mono_ms);
        }
    }

    /// An attempt brought its first delta, or its whole answer.
    pub fn answered(&mut self, provider: Slot, model: Slot, answer: Answer, took_ms: u64, now: Now) {
        self.add(provider, model, answer, took_ms as f64, now);
    }

    /// An attempt ended without telling anything about speed.
    pub fn undecided(&mut self, provider: Slot) {
        if let Some(pace) = self.0.get_mut(&provider) {
            pace.all.trying_since_ms = None;
        }
    }

    /// An attempt failed through no fault of the request.
    pub fn failed(&mut self, provider: Slot, model: Slot, answer: Answer, took_ms: u64, now: Now) {
        self.add(provider, model, answer, FAILURE_MS.max(took_ms as f64), now);
    }

    fn add(&mut self, provider: Slot, model: Slot, answer: Answer, sample_ms: f64, now: Now) {
        let Some(pace) = self.entry(provider) else { return };
        pace.all.of(answer).add(sample_ms, now);
        pace.all.trying_since_ms = None;
        if pace.models.len() < ENTRIES_MAX || pace.models.contains_key(&model) {
            pace.models.entry(model).or_default().of(answer).add(sample_ms, now);
        }
    }

    fn entry(&mut self, provider: Slot) -> Option<&mut ProviderPace> {
        let room = self.0.len() < ENTRIES_MAX || self.0.contains_key(&provider);
        room.then(|| self.0.entry(provider).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Slot = Slot(1);
    const M: Slot = Slot(10);
    const N: Slot = Slot(11);

    fn at(ms: u64) -> Now {
        Now::at(3_600_000 + ms, 0)
    }

    fn known(speeds: &Speeds, model: Slot, answer: Answer, now: Now) -> f64 {
        speeds.of_provider(P, answer, now).of_model(model, answer, now)
    }

    #[test]
    fn averages_move_and_kinds_stay_apart() {
        let mut speeds = Speeds::default();
        assert_eq!(known(&speeds, M, Answer::Whole, at(0)), 0.0);
        speeds.answered(P, M, Answer::Whole, 1_000, at(0));
        speeds.answered(P, M, Answer::Whole, 2_000, at(1));
        speeds.answered(P, M, Answer::Stream, 100, at(2));
        assert_eq!(known(&speeds, M, Answer::Whole, at(3)), 1_200.0);
        assert_eq!(known(&speeds, M, Answer::Stream, at(3)), 100.0);
        assert_eq!(speeds.averages(P, None, at(3)), (Some(100.0), Some(1_200.0)));
        assert_eq!(speeds.averages(P, Some(N), at(3)), (None, None));
        assert_eq!(
            known(&speeds, N, Answer::Whole, at(3)),
            1_200.0,
            "a model without its own takes its provider's"
        );
    }

    #[test]
    fn c9_failing_fast_is_not_being_fast() {
        let mut speeds = Speeds::default();
        speeds.failed(P, M, Answer::Whole, 3, at(0));
        assert_eq!(known(&speeds, M, Answer::Whole, at(1)), FAILURE_MS);
    }

    #[test]
    fn the_untried_are_tried_once_and_again_after_an_hour() {
        let mut speeds = Speeds::default();
        speeds.trying(P, at(0));
        assert_eq!(known(&speeds, M, Answer::Stream, at(1)), FAILURE_MS, "somebody is finding out");
        speeds.answered(P, M, Answer::Stream, 200, at(200));
        assert_eq!(known(&speeds, N, Answer::Stream, at(300)), 200.0);
        assert_eq!(known(&speeds, N, Answer::Stream, at(300 + FRESH_MS)), 0.0);
    }
}
