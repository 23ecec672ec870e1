//! Counters over one window: rolling ones on the monotonic clock, calendar ones on the wall clock. Amounts are whole
//! numbers (requests, tokens, millionths of a credit), so that adding and taking back is exact.
use std::collections::VecDeque;

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
    pub fn new(span_ms: u64) -> Rolling {
        Rolling { span_ms: span_ms.max(SLOTS_SHORT), sum: 0, slots: VecDeque::new() }
    }

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
    count: u64,
    /// What was used while the wall clock could not be believed. It belongs to the period in which that ends.
    undated: u64,
}

impl Calendar {
    pub fn new(period: Period, zone: ResetZone) -> Calendar {
        Calendar { period, zone, label: None, count: 0, undated: 0 }
    }

    /// `wall_ms` is `None` while the clock cannot be believed, here as in all that follows.
    pub fn add(&mut self, amount: u64, wall_ms: Option<u64>) {
        self.settle_label(wall_ms);
        let place = if wall_ms.is_some() { &mut self.count } else { &mut self.undated };
        *place = place.saturating_add(amount.min(AMOUNT_MAX));
    }

    /// Takes back what was added at `at_wall_ms`, if it still counts. When in doubt it goes on counting.
    pub fn take_back(&mut self, amount: u64, at_wall_ms: Option<u64>) {
        match (at_wall_ms, self.label) {
            (None, _) => self.undated = self.undated.saturating_sub(amount),
            (Some(at), Some(label)) if self.period.index(self.zone, at) >= label => {
                self.count = self.count.saturating_sub(amount);
            }
            _ => {}
        }
    }

    /// A later period begins at zero. An earlier one means that the label was wrong: what was counted stays, and is
    /// freed at the right border now.
    fn settle_label(&mut self, wall_ms: Option<u64>) {
        let Some(wall_ms) = wall_ms else { return };
        let here = self.period.index(self.zone, wall_ms);
        if self.label.is_none_or(|label| here > label) {
            self.count = 0;
        }
        self.label = Some(here);
        self.count = self.count.saturating_add(self.undated);
        self.undated = 0;
    }

    pub fn used(&self, wall_ms: Option<u64>) -> u64 {
        let begun_anew = match (wall_ms, self.label) {
            (Some(wall_ms), Some(label)) => self.period.index(self.zone, wall_ms) > label,
            _ => false,
        };
        if begun_anew { self.undated } else { self.count.saturating_add(self.undated) }
    }

    /// How long until the counter begins anew; a whole period while the clock cannot be believed.
    pub fn wait_ms(&self, wall_ms: Option<u64>) -> u64 {
        wall_ms.map_or(self.period.longest_ms(), |wall_ms| self.period.rest_ms(self.zone, wall_ms))
    }

    /// The label and all that is counted under it, for saving.
    pub fn saved(&self) -> (Option<i64>, u64) {
        (self.label, self.count.saturating_add(self.undated))
    }

    pub fn restore(&mut self, label: Option<i64>, count: u64) {
        let count = count.min(AMOUNT_MAX);
        self.label = label;
        (self.count, self.undated) = if label.is_some() { (count, 0) } else { (0, count) };
    }
}
