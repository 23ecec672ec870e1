//! How many of its own tokens a model counts for one of ours, learned from what upstreams report.
use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::base::clock::Now;
use crate::catalog::provider::Slot;
use crate::catalog::slots::Slots;
use crate::quota::SlotHash;

/// Models whose ratio is known; the one that was not asked for longest gives way.
const MODELS_MAX: usize = 1_024;
/// Prompts below this say more about an upstream's own preamble than about how it counts.
const PROMPT_TOKENS_MIN: u64 = 200;
/// A sample outside of this is a mistake, ours or the upstream's.
const RATIO_MIN: f64 = 0.4;
/// The most that a model may count for one of our tokens.
pub const RATIO_MAX: f64 = 3.0;
/// The weight that a new sample has at least.
const WEIGHT_MIN: f64 = 0.05;

/// The ratio of one model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub factor: f64,
    pub samples: u32,
    /// When the last sample came, in milliseconds since 1970.
    pub updated_ms: u64,
}

/// The ratios of all models.
#[derive(Clone, Debug, Default)]
pub struct Ratios {
    models: HashMap<Slot, Ratio, SlotHash>,
    /// Which changed since they were last saved.
    unsaved: Vec<Slot>,
}

impl Ratios {
    /// What a model counts for one of our tokens; 1 while nothing is known.
    pub fn of(&self, model: Slot) -> f64 {
        self.models.get(&model).map_or(1.0, |ratio| ratio.factor)
    }

    /// A model counted `real` tokens where we counted `ours`.
    pub fn learn(&mut self, model: Slot, ours: u64, real: u64, now: Now) {
        let sample = real as f64 / ours.max(1) as f64;
        if ours < PROMPT_TOKENS_MIN || !(RATIO_MIN..=RATIO_MAX).contains(&sample) {
            return;
        }
        if self.models.len() >= MODELS_MAX && !self.models.contains_key(&model) {
            let oldest = self.models.iter().min_by_key(|(_, ratio)| ratio.updated_ms).map(|(slot, _)| *slot);
            oldest.map(|oldest| self.models.remove(&oldest));
        }
        let ratio = self.models.entry(model).or_insert(Ratio { factor: sample, samples: 0, updated_ms: 0 });
        let weight = WEIGHT_MIN.max(1.0 / f64::from(ratio.samples.saturating_add(1)));
        ratio.factor += (sample - ratio.factor) * weight;
        ratio.samples = ratio.samples.saturating_add(1);
        ratio.updated_ms = now.wall_ms;
        if !self.unsaved.contains(&model) {
            self.unsaved.push(model);
        }
    }

    /// Everything that is known, by the names of models.
    pub fn export(&self, slots: &Slots) -> BTreeMap<String, Ratio> {
        self.models.iter().map(|(model, ratio)| (slots.name(*model).to_string(), *ratio)).collect()
    }

    /// What changed since this was last called.
    pub fn take_changes(&mut self, slots: &Slots) -> BTreeMap<String, Ratio> {
        let changed = std::mem::take(&mut self.unsaved).into_iter();
        changed.filter_map(|model| Some((slots.name(model).to_string(), *self.models.get(&model)?))).collect()
    }

    /// Takes a saved ratio in; false when it makes no sense.
    pub fn restore(&mut self, name: &str, saved: Ratio, slots: &mut Slots) -> bool {
        let sane = (RATIO_MIN..=RATIO_MAX).contains(&saved.factor) && saved.samples > 0;
        if sane && name.starts_with("model/") && self.models.len() < MODELS_MAX {
            self.models.insert(slots.intern(name), saved);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now::at(5, 1_796_104_800_000);

    #[test]
    fn c12_a_ratio_follows_what_upstreams_report_and_no_nonsense() {
        let mut slots = Slots::default();
        let model = slots.intern("model/groq/m");
        let mut ratios = Ratios::default();
        assert_eq!(ratios.of(model), 1.0);
        for (ours, real) in [(100, 150), (1_000, 90_000), (1_000, 10), (0, 1)] {
            ratios.learn(model, ours, real, NOW);
            assert_eq!(ratios.of(model), 1.0, "{real} for {ours}");
        }
        ratios.learn(model, 1_000, 1_500, NOW);
        assert_eq!(ratios.of(model), 1.5, "the first sample counts whole");
        ratios.learn(model, 1_000, 500, NOW);
        assert_eq!(ratios.of(model), 1.0);
        (0..100).for_each(|_| ratios.learn(model, 1_000, 2_000, NOW));
        assert!((ratios.of(model) - 2.0).abs() < 0.01);
        let saved = ratios.take_changes(&slots);
        assert_eq!(ratios.take_changes(&slots), BTreeMap::new(), "nothing is saved twice");
        let mut again = Ratios::default();
        assert!(saved.iter().all(|(name, ratio)| again.restore(name, *ratio, &mut slots)));
        assert_eq!(again.of(model), ratios.of(model));
        let wild = Ratio { factor: f64::NAN, samples: 1, updated_ms: 0 };
        assert!(!again.restore("model/groq/x", wild, &mut slots));
        assert!(!again.restore("key/x", Ratio { factor: 1.0, ..wild }, &mut slots));
    }
}
