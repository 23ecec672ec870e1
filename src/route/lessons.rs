//! What upstreams taught us about their models in the errors of a single request: windows and limits smaller than we
//! believed, fields that they refuse. Every lesson is dated and forgotten after a day.
use std::collections::HashMap;

use super::words::Stated;
use crate::base::clock::Now;
use crate::catalog::provider::Slot;
use crate::quota::SlotHash;

/// A lesson holds for so long.
const LESSON_MS: u64 = 24 * 3_600_000;
/// Models with lessons; the oldest lesson gives way.
const LESSONS_MAX: usize = 1_024;
/// Refused fields of one model.
const FIELDS_MAX: usize = 16;
/// An upstream's count of a request is trusted to be at most so many times ours.
const RATIO_MAX: f64 = 4.0;

/// What is known of one model, or of one model under one account.
#[derive(Clone, Debug, Default)]
struct Lesson {
    /// The largest prompt that will do, in our own count.
    prompt_max: Option<u64>,
    /// The most answers that one call gives.
    choices_max: Option<u32>,
    refused: Vec<String>,
    at_ms: u64,
}

impl Lesson {
    fn fresh(&self, now: Now) -> bool {
        now.mono_ms.saturating_sub(self.at_ms) <= LESSON_MS
    }
}

/// All lessons: of a model as such, and of its limit under one account.
#[derive(Clone, Debug, Default)]
pub struct Lessons {
    models: HashMap<Slot, Lesson, SlotHash>,
    accounts: HashMap<(Slot, Slot), Lesson, SlotHash>,
}

impl Lessons {
    /// The largest prompt that this model's window takes, where one was refused.
    pub fn window(&self, model: Slot, now: Now) -> Option<u64> {
        self.models.get(&model).filter(|lesson| lesson.fresh(now))?.prompt_max
    }

    /// The largest prompt that the account's limit for this model takes, where one was refused.
    pub fn limit(&self, account: Slot, model: Slot, now: Now) -> Option<u64> {
        self.accounts.get(&(account, model)).filter(|lesson| lesson.fresh(now))?.prompt_max
    }

    /// The most answers that one call of this model gives, as far as known.
    pub fn choices(&self, model: Slot, now: Now) -> u32 {
        let lesson = self.models.get(&model).filter(|lesson| lesson.fresh(now));
        lesson.and_then(|lesson| lesson.choices_max).unwrap_or(u32::MAX)
    }

    /// Fields that this model refused.
    pub fn refused(&self, model: Slot, now: Now) -> &[String] {
        self.models.get(&model).filter(|lesson| lesson.fresh(now)).map_or(&[], |lesson| &lesson.refused)
    }

    /// A model said how much context it has, on a request of `tokens` in our count, output included.
    pub fn learn_window(&mut self, model: Slot, stated: Stated, tokens: u64, now: Now) {
        entry(&mut self.models, model, now).prompt_max = Some(in_our_count(stated, tokens));
    }

    /// A model gave fewer answers than it was asked for, or refused to give so many.
    pub fn learn_choices(&mut self, model: Slot, asked: u32, now: Now) {
        let most = self.choices(model, now).min(asked.saturating_sub(1)).max(1);
        entry(&mut self.models, model, now).choices_max = Some(most);
    }

    /// An account's limit turned out to be smaller than a request of `tokens` in our count.
    pub fn learn_limit(&mut self, account: Slot, model: Slot, stated: Stated, tokens: u64, now: Now) {
        entry(&mut self.accounts, (account, model), now).prompt_max = Some(in_our_count(stated, tokens));
    }

    /// A model does not take these fields.
    pub fn learn_refused(&mut self, model: Slot, fields: &[String], now: Now) {
        let lesson = entry(&mut self.models, model, now);
        for field in fields {
            if !lesson.refused.contains(field) && lesson.refused.len() < FIELDS_MAX {
                lesson.refused.push(field.clone());
            }
        }
    }
}

/// A stated limit, where our estimate of the same request was smaller than the upstream's count of it.
fn in_our_count(stated: Stated, tokens: u64) -> u64 {
    let asked = stated.asked.unwrap_or(tokens).max(1);
    let ratio = (tokens as f64 / asked as f64).clamp(1.0 / RATIO_MAX, 1.0);
    (stated.limit as f64 * ratio) as u64
}

fn entry<K: Copy + Eq + std::hash::Hash>(
    lessons: &mut HashMap<K, Lesson, SlotHash>,
    key: K,
    now: Now,
) -> &mut Lesson {
    if lessons.len() >= LESSONS_MAX && !lessons.contains_key(&key) {
        let oldest = lessons.iter().min_by_key(|(_, lesson)| lesson.at_ms).map(|(key, _)| *key);
        oldest.map(|oldest| lessons.remove(&oldest));
    }
    let lesson = lessons.entry(key).or_default();
    if !lesson.fresh(now) {
        *lesson = Lesson::default();
    }
    lesson.at_ms = now.mono_ms;
    lesson
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: Slot = Slot(7);
    const NOW: Now = Now::at(3_600_000, 0);

    #[test]
    fn stated_limits_are_kept_in_our_own_count() {
        let check = |limit, asked, tokens, expected| {
            assert_eq!(in_our_count(Stated { limit, asked }, tokens), expected);
        };
        check(8_192, Some(9_000), 9_000, 8_192);
        check(8_000, Some(10_000), 5_000, 4_000);
        check(8_000, Some(9_000), 20_000, 8_000);
        check(8_000, None, 5_000, 8_000);
        check(8_000, Some(u64::MAX), 5_000, 2_000);
    }

    #[test]
    fn lessons_are_forgotten_after_a_day() {
        let mut lessons = Lessons::default();
        lessons.learn_window(M, Stated { limit: 8_192, asked: None }, 9_000, NOW);
        lessons.learn_refused(M, &["store".into(), "seed".into()], NOW);
        lessons.learn_refused(M, &["seed".into()], NOW);
        lessons.learn_limit(Slot(1), M, Stated { limit: 6_000, asked: Some(9_000) }, 9_000, NOW);
        assert_eq!(lessons.window(M, NOW), Some(8_192));
        assert_eq!(lessons.refused(M, NOW), ["store", "seed"]);
        assert_eq!((lessons.limit(Slot(1), M, NOW), lessons.limit(Slot(2), M, NOW)), (Some(6_000), None));
        lessons.learn_choices(M, 4, NOW);
        lessons.learn_choices(M, 9, NOW);
        assert_eq!((lessons.choices(M, NOW), lessons.choices(Slot(8), NOW)), (3, u32::MAX));
        let later = NOW.plus_ms(LESSON_MS + 1);
        assert_eq!(lessons.choices(M, later), u32::MAX);
        assert_eq!((lessons.window(M, later), lessons.refused(M, later).len()), (None, 0));
    }

    #[test]
    fn their_number_is_bounded() {
        let mut lessons = Lessons::default();
        for slot in 0..2 * LESSONS_MAX as u32 {
            let fields: Vec<String> = (0..40).map(|n| format!("f{n}")).collect();
            lessons.learn_refused(Slot(slot), &fields, NOW.plus_ms(u64::from(slot)));
        }
        assert_eq!(lessons.models.len(), LESSONS_MAX);
        assert_eq!(lessons.refused(Slot(2 * LESSONS_MAX as u32 - 1), NOW).len(), FIELDS_MAX);
        assert!(lessons.refused(Slot(0), NOW).is_empty());
    }
}
