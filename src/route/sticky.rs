//! Which model a conversation goes on with. The models of one conversation should not change from turn to turn: each
//! reads what another wrote, and providers keep what they read before at hand.
use std::collections::HashMap;

use crate::base::clock::Now;
use crate::catalog::provider::Slot;

/// Conversations that stick at once.
const STUCK_MAX: usize = 1_000;

/// A conversation, by a hash over its owner and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StickyKey(pub u64);

/// What each conversation was served by last.
#[derive(Clone, Debug, Default)]
pub struct Sticky(HashMap<StickyKey, Stuck>);

#[derive(Clone, Copy, Debug)]
struct Stuck {
    model: Slot,
    /// Monotonic.
    used_ms: u64,
}

impl Sticky {
    /// The model of a conversation that was used within the last `sticky_ms`.
    pub fn model(&self, key: StickyKey, sticky_ms: u64, now: Now) -> Option<Slot> {
        let stuck = self.0.get(&key)?;
        (now.mono_ms.saturating_sub(stuck.used_ms) < sticky_ms).then_some(stuck.model)
    }

    /// A model has served a turn.
    pub fn served(&mut self, key: StickyKey, model: Slot, now: Now) {
        if self.0.len() >= STUCK_MAX && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(_, stuck)| stuck.used_ms).map(|(key, _)| *key);
            oldest.map(|key| self.0.remove(&key));
        }
        self.0.insert(key, Stuck { model, used_ms: now.mono_ms });
    }

    /// The conversation is deleted.
    pub fn forget(&mut self, key: StickyKey) {
        self.0.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now::at(3_600_000, 0);

    #[test]
    fn a_model_stays_while_the_conversation_is_used() {
        let (key, model) = (StickyKey(1), Slot(7));
        let mut sticky = Sticky::default();
        assert_eq!(sticky.model(key, 1_000, NOW), None);
        sticky.served(key, model, NOW);
        assert_eq!(sticky.model(key, 1_000, NOW.plus_ms(999)), Some(model));
        assert_eq!(sticky.model(key, 1_000, NOW.plus_ms(1_000)), None);
        assert_eq!(sticky.model(key, 0, NOW), None, "it is switched off");
        assert_eq!(sticky.model(StickyKey(2), 1_000, NOW), None);
        sticky.served(key, Slot(8), NOW.plus_ms(999));
        assert_eq!(sticky.model(key, 1_000, NOW.plus_ms(1_500)), Some(Slot(8)));
        sticky.forget(key);
        assert_eq!(sticky.model(key, 1_000, NOW.plus_ms(1_500)), None);
    }

    #[test]
    fn their_number_is_bounded_and_the_oldest_go() {
        let mut sticky = Sticky::default();
        for n in 0..=STUCK_MAX as u64 {
            sticky.served(StickyKey(n), Slot(1), NOW.plus_ms(n));
        }
        assert_eq!(sticky.0.len(), STUCK_MAX);
        let later = NOW.plus_ms(STUCK_MAX as u64);
        assert_eq!(
            (sticky.model(StickyKey(0), 60_000, later), sticky.model(StickyKey(1), 60_000, later)),
            (None, Some(Slot(1)))
        );
    }
}
