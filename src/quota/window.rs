//! Counters over one window: rolling ones on the monotonic clock, calendar ones on the wall clock. Amounts are whole
//! numbers (requests, tokens, millionths of a credit), so that adding and taking back is exact.
use std::collections::VecDeque;

use super::wall::Time;
use super::zone::Period;
use crate::catalog::provider::ResetZone;

/// Amounts above this are cut: no real call comes near, and sums stay far from overflow.
pub const AMOUNT_MAX: u64 = 1 << 40;

/// Slots of windows up to [`SHORT_SPAN_MS`], and of longer ones. More slots forget more exactly and take more memory.
const SLOTS_SHORT: u64 = 10;
const SLOTS_LONG: u64 = 60;
const SHORT_SPAN_MS: u64 = 10_000;

/// What was used within the last `span_ms`.
///
/// Time is cut into slots of one sixtieth of the span, and only slots that hold something take memory. A slot counts
/// until its *last* instant is a whole span old, so the window is up to one slot longer than asked for, and never
/// shorter: an upstream that counts to the millisecond is never surprised.
#[derive(Clone, Debug)]
pub struct Rolling {
    span_ms: u64,
    /// Total of `slots`, those included that have run out since the last change.
    sum: u64,
    /// (slot number, amount), oldest first. Numbers of slots before the monotonic origin are negative.
    slots: VecDeque<(i64, u64)>,
}

impl Rolling {
    /// More slots than this were never saved: all that count, the one in progress, and what is in flight.
    pub const SLOTS_SAVED_MAX: usize = SLOTS_LONG as usize + 2;

    /// An empty window of this length.
    pub fn new(span_ms: u64) -> Rolling {
        Rolling { span_ms: span_ms.max(SLOTS_SHORT), sum: 0, slots: VecDeque::new() }
    }

    /// An empty window that is never longer than `span_ms`, a minute or more, and up to two slots shorter: for limits of our own making,
    /// where whoever waits the whole span must be let in.
    pub fn within(span_ms: u64) -> Rolling {
        let slots = if span_ms <= SHORT_SPAN_MS { SLOTS_SHORT } else { SLOTS_LONG };
        Rolling::new(span_ms / (slots + 1) * slots)
    }

    /// The length that was asked for.
    pub fn span_ms(&self) -> u64 {
        self.span_ms
    }

    fn slot_count(&self) -> u64 {
        if self.span_ms <= SHORT_SPAN_MS { SLOTS_SHORT } else { SLOTS_LONG }
    }

    /// The length of a slot.
    pub fn slot_ms(&self) -> u64 {
        self.span_ms.div_ceil(self.slot_count())
    }

    fn slot_of(&self, mono_ms: i64) -> i64 {
        mono_ms.div_euclid(self.slot_ms() as i64)
    }

    /// The oldest slot that still counts.
    fn oldest(&self, mono_ms: u64) -> i64 {
        self.slot_of(mono_ms as i64) - self.slot_count() as i64
    }

    /// Counts what happens now.
    pub fn add(&mut self, amount: u64, mono_ms: u64) {
        self.add_at(amount, mono_ms as i64, mono_ms);
    }

    /// Adds what happened at `at_ms`, which may lie before the monotonic origin, in any order.
    fn add_at(&mut self, amount: u64, at_ms: i64, mono_ms: u64) {
        self.forget(mono_ms);
        let slot = self.slot_of(at_ms);
        if amount == 0 || slot < self.oldest(mono_ms) {
            return;
        }
        let amount = amount.min(AMOUNT_MAX);
        self.sum = self.sum.saturating_add(amount);
        let place = self.slots.partition_point(|(known, _)| *known < slot);
        match self.slots.get_mut(place) {
            Some((known, held)) if *known == slot => *held = held.saturating_add(amount),
            _ => self.slots.insert(place, (slot, amount)),
        }
    }

    /// Takes back what was added at `at_ms`, as far as it still counts.
    pub fn take_back(&mut self, amount: u64, at_ms: u64) {
        let slot = self.slot_of(at_ms as i64);
        let place = self.slots.partition_point(|(known, _)| *known < slot);
        if let Some((known, held)) = self.slots.get_mut(place) {
            if *known == slot {
                let taken = amount.min(*held);
                *held -= taken;
                self.sum -= taken;
                if *held == 0 {
                    self.slots.remove(place);
                }
            }
        }
    }

    /// Drops the slots that have run out.
    fn forget(&mut self, mono_ms: u64) {
        let oldest = self.oldest(mono_ms);
        while let Some((slot, amount)) = self.slots.front().copied() {
            if slot >= oldest {
                break;
            }
            self.sum -= amount;
            self.slots.pop_front();
        }
    }

    /// What counts now.
    pub fn used(&self, mono_ms: u64) -> u64 {
        let oldest = self.oldest(mono_ms);
        let gone: u64 = self.slots.iter().take_while(|(slot, _)| *slot < oldest).map(|(_, held)| held).sum();
        self.sum - gone
    }

    /// At least what is used, without looking at every slot.
    pub fn used_at_most(&self) -> u64 {
        self.sum
    }

    /// How long until `amount` of what is used now has run out; `None` when there is not that much.
    pub fn wait_ms(&self, amount: u64, mono_ms: u64) -> Option<u64> {
        let oldest = self.oldest(mono_ms);
        let mut freed = 0;
        for (slot, held) in self.slots.iter().filter(|(slot, _)| *slot >= oldest) {
            freed += held;
            if freed >= amount {
                let end_ms = (slot + self.slot_count() as i64 + 1) * self.slot_ms() as i64;
                return Some((end_ms - mono_ms as i64).max(1) as u64);
            }
        }
        None
    }

    /// (age of the slot's beginning in milliseconds, amount), oldest first.
    pub fn ages(&self, mono_ms: u64) -> impl Iterator<Item = (u64, u64)> {
        let (oldest, slot_ms) = (self.oldest(mono_ms), self.slot_ms() as i64);
        self.slots
            .iter()
            .filter(move |(slot, _)| *slot >= oldest)
            .map(move |(slot, amount)| ((mono_ms as i64 - slot * slot_ms).max(0) as u64, *amount))
    }

    /// Takes in one of [`Rolling::ages`], `age_ms` old by now. The slot borders of two processes differ, so it goes
    /// where its newest part belongs.
    pub fn restore(&mut self, age_ms: u64, amount: u64, mono_ms: u64) {
        let newest_ms = mono_ms as i64 - age_ms.min(i64::MAX as u64 / 2) as i64 + self.slot_ms() as i64 - 1;
        self.add_at(amount, newest_ms.min(mono_ms as i64), mono_ms);
    }
}

/// What was used since the last calendar border in the provider's zone.
#[derive(Clone, Debug)]
pub struct Calendar {
    pub period: Period,
    pub zone: ResetZone,
    /// The period that `count` belongs to; `None` until the wall clock was believed once.
    label: Option<i64>,
    /// Monotonic time of the last count under the label; zero when that was before a restart.
    labelled_ms: u64,
    count: u64,
    /// What was used while the wall clock could not be believed, and when that was last (monotonic). It gets its date
    /// as soon as the clock is believed again.
    undated: u64,
    undated_ms: u64,
}

impl Calendar {
    /// A counter at zero.
    pub fn new(period: Period, zone: ResetZone) -> Calendar {
        Calendar { period, zone, label: None, labelled_ms: 0, count: 0, undated: 0, undated_ms: 0 }
    }

    /// Counts what happens now.
    pub fn add(&mut self, amount: u64, time: Time) {
        let amount = amount.min(AMOUNT_MAX);
        match time.wall_ms {
            Some(wall_ms) => {
                self.count = self.used(time).saturating_add(amount);
                self.undated = 0;
                self.label = Some(self.period.index(self.zone, wall_ms));
                self.labelled_ms = time.mono_ms;
            }
            None => {
                self.undated = self.undated.saturating_add(amount);
                self.undated_ms = time.mono_ms;
            }
        }
    }

    /// Takes back what was added at `at`, if it still counts. When in doubt it goes on counting.
    pub fn take_back(&mut self, amount: u64, at: Time) {
        match (at.wall_ms, self.label) {
            (None, _) => self.undated = self.undated.saturating_sub(amount),
            (Some(wall_ms), Some(label)) if self.period.index(self.zone, wall_ms) >= label => {
                self.count = self.count.saturating_sub(amount);
            }
            _ => {}
        }
    }

    /// What counts now.
    pub fn used(&self, time: Time) -> u64 {
        let Some(wall_ms) = time.wall_ms else { return self.count.saturating_add(self.undated) };
        let here = self.period.index(self.zone, wall_ms);
        let dated = match self.label {
            Some(label) if self.label_at(label, wall_ms, time) >= here => self.count,
            _ => 0,
        };
        // Now that the clock is right, what was used without a date has one.
        let undated = if self.index_at(self.undated_ms, wall_ms, time) >= here { self.undated } else { 0 };
        dated.saturating_add(undated)
    }

    /// The label, corrected when the clock turned out to have been wrong since it was set. The monotonic clock knows
    /// how long ago that was, so it knows the right date; only for what was counted before a restart it does not, and
    /// then a date after the step is taken for the date of the step.
    fn label_at(&self, label: i64, wall_ms: u64, time: Time) -> i64 {
        if self.labelled_ms >= time.stepped.mono_ms {
            label
        } else if self.labelled_ms == 0 {
            label.min(self.period.index(self.zone, time.stepped.wall_ms))
        } else {
            self.index_at(self.labelled_ms, wall_ms, time)
        }
    }

    /// The period of a past monotonic instant, by the clock of now.
    fn index_at(&self, mono_ms: u64, wall_ms: u64, time: Time) -> i64 {
        self.period.index(self.zone, wall_ms.saturating_sub(time.mono_ms.saturating_sub(mono_ms)))
    }

    /// How long until the counter begins anew; a whole period while the clock cannot be believed.
    pub fn wait_ms(&self, time: Time) -> u64 {
        time.wall_ms.map_or(self.period.longest_ms(), |wall_ms| self.period.rest_ms(self.zone, wall_ms))
    }

    /// The label and all that is counted under it, for saving.
    pub fn saved(&self, time: Time) -> (Option<i64>, u64) {
        match time.wall_ms {
            Some(wall_ms) => (Some(self.period.index(self.zone, wall_ms)), self.used(time)),
            None => (self.label, self.used(time)),
        }
    }

    /// Takes in what was [`saved`](Calendar::saved). Without a label it counts as of now.
    pub fn restore(&mut self, label: Option<i64>, used: u64, time: Time) {
        let used = used.min(AMOUNT_MAX);
        self.label = label;
        self.labelled_ms = 0;
        (self.count, self.undated) = if label.is_some() { (used, 0) } else { (0, used) };
        self.undated_ms = time.mono_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Now;
    use crate::base::rng::Rng;
    use crate::quota::zone::Period;

    const MINUTE: u64 = 60_000;
    const DAY: u64 = 24 * 60 * MINUTE;
    const UTC: ResetZone = ResetZone::Fixed(0);

    #[test]
    fn c2_a_slot_counts_until_its_last_instant_is_a_whole_span_old() {
        let mut window = Rolling::new(MINUTE);
        window.add(1, 3_600_999);
        assert_eq!(window.used(3_600_999 + 59_001), 1, "an event at .999 must not go after 59.001 s");
        assert_eq!(window.used(3_600_999 + 60_000), 1);
        assert_eq!(window.used(3_661_000), 0);
        assert_eq!(window.wait_ms(1, 3_600_999), Some(60_001));
        assert_eq!(window.wait_ms(2, 3_600_999), None);
    }

    #[test]
    fn c2_the_wait_is_for_enough_room_and_not_for_the_oldest_event() {
        let mut window = Rolling::new(MINUTE);
        (0..10).for_each(|i| window.add(1, 3_600_000 + i * 5_000));
        let now_ms = 3_600_000 + 50_000;
        assert_eq!(window.wait_ms(1, now_ms), Some(11_000));
        assert_eq!(window.wait_ms(4, now_ms), Some(26_000));
        assert_eq!(window.wait_ms(10, now_ms), Some(56_000));
    }

    /// Against a list of single events: never less than the last `span` holds, never more than one slot longer holds,
    /// and the wait is exact.
    #[test]
    fn rolling_windows_never_count_too_little() {
        for (seed, span_ms) in (0..40).zip([1_000, MINUTE, 60 * MINUTE, DAY, 31 * DAY].into_iter().cycle()) {
            let mut rng = Rng::seeded(seed);
            let mut window = Rolling::new(span_ms);
            let mut events: Vec<(u64, u64)> = Vec::new();
            let mut now_ms = 3_600_000;
            for _ in 0..2_000 {
                now_ms += rng.below(span_ms as usize / 20) as u64 * rng.below(2) as u64;
                match rng.below(3) {
                    0 if !events.is_empty() => {
                        let place = rng.below(events.len());
                        let (at, amount) = events.swap_remove(place);
                        window.take_back(amount, at);
                    }
                    _ => {
                        let amount = rng.below(50) as u64;
                        window.add(amount, now_ms);
                        events.push((now_ms, amount));
                    }
                }
                let within = |ms: u64| -> u64 {
                    events.iter().filter(|(at, _)| at + ms > now_ms).map(|(_, amount)| amount).sum()
                };
                let used = window.used(now_ms);
                assert!(used >= within(span_ms), "seed {seed} at {now_ms}: {used}");
                assert!(used <= within(span_ms + window.slot_ms() + 60), "seed {seed} at {now_ms}: {used}");
                if used > 0 {
                    let amount = 1 + rng.below(used as usize) as u64;
                    let wait_ms = window.wait_ms(amount, now_ms).expect("that much is used");
                    assert!(window.used(now_ms + wait_ms) <= used - amount, "seed {seed}");
                    assert!(window.used(now_ms + wait_ms - 1) > used - amount, "seed {seed}");
                }
                assert!(window.slots.len() <= 61, "memory is bounded");
            }
        }
    }

    /// `None` for a clock that cannot be believed; monotonic time goes on with it from noon of the first day.
    fn time(after_noon_ms: u64, wall_ms: Option<u64>) -> Time {
        Time { mono_ms: 3_600_000 + after_noon_ms, wall_ms, stepped: Now::default() }
    }

    const NOON: u64 = super::super::zone::EARLIEST_WALL_MS + DAY / 2;

    fn believed(after_noon_ms: u64) -> Time {
        time(after_noon_ms, Some(NOON + after_noon_ms))
    }

    #[test]
    fn calendar_windows_begin_anew_at_the_border() {
        let mut window = Calendar::new(Period::Day, UTC);
        window.add(5, believed(0));
        assert_eq!(window.used(believed(DAY / 2 - 1)), 5);
        assert_eq!(window.used(believed(DAY / 2)), 0);
        assert_eq!(window.wait_ms(believed(0)), DAY / 2);
        window.add(2, believed(DAY));
        window.take_back(5, believed(0));
        assert_eq!(window.used(believed(DAY)), 2, "what belongs to yesterday gives nothing back today");
        window.take_back(1, believed(DAY));
        assert_eq!(window.used(believed(DAY)), 1);
    }

    #[test]
    fn what_is_used_under_an_unset_clock_is_dated_later() {
        let mut window = Calendar::new(Period::Day, UTC);
        window.add(5, believed(0));
        window.add(3, time(1_000, None));
        assert_eq!(window.used(time(1_000, None)), 8);
        assert_eq!(window.used(believed(2_000)), 8);
        assert_eq!(window.used(believed(DAY)), 0, "all of it was yesterday");
        // The clock comes back and says that two days have passed: the five are over, the three were just now.
        let ahead = |ms: u64| time(ms, Some(NOON + 2 * DAY + ms));
        assert_eq!(window.used(ahead(2_000)), 3);
        window.add(1, ahead(2_000));
        assert_eq!(window.used(ahead(2_000)), 4);
    }

    #[test]
    fn a_wrong_date_is_corrected_and_the_count_stays() {
        for wrong in [NOON + 40 * DAY, NOON - 40 * DAY] {
            let mut window = Calendar::new(Period::Day, UTC);
            window.add(4, time(0, Some(wrong)));
            corrected(window);
        }
        let mut restored = Calendar::new(Period::Day, UTC);
        restored.restore(Some(Period::Day.index(UTC, NOON + 40 * DAY)), 4, time(0, Some(NOON)));
        corrected(restored);
    }

    /// Four were counted at noon under another date; a second later the clock is right.
    fn corrected(mut window: Calendar) {
        let stepped = Now::at(3_600_000 + 1_000, NOON + 1_000);
        let after = |ms: u64| Time { stepped, ..believed(ms) };
        assert_eq!(window.used(after(1_000)), 4);
        assert_eq!(window.used(after(DAY / 2)), 0, "the right midnight frees it");
        window.add(1, after(2_000));
        assert_eq!((window.used(after(3_000)), window.used(after(DAY / 2))), (5, 0));
    }
}
