//! What upstreams tell of their limits in good answers: how much is left, and until when. Their own count wins over ours,
//! which knows nothing of other programs that use the same key.
//!
//! An answer has seen its own call and those before it. What began later it has not, so that the room is what was left
//! less the calls since; only the answer to a younger call says anything new.
use std::collections::HashMap;

use super::waits::Left;
use crate::base::clock::Now;
use crate::catalog::provider::{Key, Slot};
use crate::quota::{Scope, SlotHash, Want};

/// Scopes with something told at once; the one heard of longest ago gives way.
const SCOPES_MAX: usize = 2_048;
/// Limits of one scope.
const LIMITS_MAX: usize = 8;

/// A call's place among those of its scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    calls: u64,
    tokens: u64,
    /// Tokens of this call alone.
    own_tokens: u64,
}

/// Whom an upstream speaks of: the account of a key, and one model.
pub fn of(key: &Key, model: Slot) -> Scope {
    Scope::AccountModel(key.account, model)
}

/// All that was told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    scopes: HashMap<Scope, Heard, SlotHash>,
}

#[derive(Clone, Debug, Default)]
struct Heard {
    /// Everything begun so far.
    begun: Place,
    limits: Vec<Limit>,
    at_ms: u64,
}

/// What was left of one limit.
#[derive(Clone, Debug)]
struct Limit {
    name: Box<str>,
    tokens: bool,
    left: f64,
    until_ms: u64,
    /// The place of the call whose answer told it.
    told_to: Place,
}

/// A limit that leaves no room for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Of tokens, not of requests.
    pub tokens: bool,
    pub retry_in_ms: u64,
}

impl Told {
    /// A call begins.
    pub fn begin(&mut self, scope: Scope, want: &Want, now: Now) -> Place {
        if self.scopes.len() >= SCOPES_MAX && !self.scopes.contains_key(&scope) {
            let oldest = self.scopes.iter().min_by_key(|(_, heard)| heard.at_ms).map(|(scope, _)| *scope);
            oldest.map(|oldest| self.scopes.remove(&oldest));
        }
        let heard = self.scopes.entry(scope).or_default();
        heard.at_ms = now.mono_ms;
        heard.begun.calls += 1;
        let tokens = want.prompt_tokens.saturating_add(want.output_tokens);
        heard.begun.tokens = heard.begun.tokens.saturating_add(tokens);
        Place { own_tokens: tokens, ..heard.begun }
    }

    /// A call ends of which nothing reached the upstream.
    pub fn undo(&mut self, scope: Scope, place: Place) {
        if let Some(heard) = self.scopes.get_mut(&scope) {
            heard.begun.calls = heard.begun.calls.saturating_sub(1);
            heard.begun.tokens = heard.begun.tokens.saturating_sub(place.own_tokens);
        }
    }

    /// A good answer to the call at `place` tells what is left.
    pub fn hear(&mut self, scope: Scope, place: Place, told: &[Left], now: Now) {
        // A scope that gave way meanwhile counts anew, and older places mean nothing in it.
        let Some(heard) = self.scopes.get_mut(&scope).filter(|heard| heard.begun.calls >= place.calls) else {
            return;
        };
        heard.limits.retain(|limit| limit.until_ms > now.mono_ms);
        for left in told {
            let known = heard.limits.iter().position(|limit| *limit.name == *left.name);
            if known.is_some_and(|at| heard.limits[at].told_to.calls > place.calls) {
                continue;
            }
            let until_ms = now.mono_ms.saturating_add(left.reset_ms);
            let limit = Limit {
                name: left.name.clone(),
                tokens: left.tokens,
                left: left.amount,
                until_ms,
                told_to: place,
            };
            match known {
                Some(at) => heard.limits[at] = limit,
                None if heard.limits.len() < LIMITS_MAX => heard.limits.push(limit),
                None => {}
            }
        }
    }

    /// What leaves no room for a call; of several the one that lasts longest. The prompt alone has to fit, so that a
    /// large `max_tokens` refuses nobody.
    pub fn shortage(&self, scope: Scope, want: &Want, now: Now) -> Option<Shortage> {
        let heard = self.scopes.get(&scope)?;
        let full = |limit: &&Limit| {
            let Place { calls, tokens, .. } = heard.begun;
            let (since, wanted) = match limit.tokens {
                true => (tokens.saturating_sub(limit.told_to.tokens), want.prompt_tokens),
                false => (calls.saturating_sub(limit.told_to.calls), 1),
            };
            limit.until_ms > now.mono_ms && since as f64 + wanted as f64 > limit.left
        };
        let longest = heard.limits.iter().filter(full).max_by_key(|limit| limit.until_ms)?;
        Some(Shortage { tokens: longest.tokens, retry_in_ms: longest.until_ms - now.mono_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope = Scope::Key(Slot(1));
    const NOW: Now = Now::at(3_600_000, 0);

    fn left(name: &str, tokens: bool, amount: f64, reset_ms: u64) -> Left {
        Left { name: name.into(), tokens, amount, reset_ms }
    }

    fn want(prompt_tokens: u64) -> Want {
        Want { prompt_tokens, output_tokens: 50, ..Want::default() }
    }

    #[test]
    fn room_is_what_was_left_less_the_calls_since() {
        let mut told = Told::default();
        let first = told.begin(SCOPE, &want(10), NOW);
        assert_eq!(told.shortage(SCOPE, &want(10), NOW), None, "nothing was told yet");
        told.hear(SCOPE, first, &[left("r", false, 2.0, 30_000)], NOW);
        for _ in 0..2 {
            assert_eq!(told.shortage(SCOPE, &want(10), NOW), None);
            told.begin(SCOPE, &want(10), NOW);
        }
        let short = Shortage { tokens: false, retry_in_ms: 29_000 };
        assert_eq!(told.shortage(SCOPE, &want(10), NOW.plus_ms(1_000)), Some(short));
        assert_eq!(told.shortage(Scope::Key(Slot(2)), &want(10), NOW), None, "others have their own");
        assert_eq!(told.shortage(SCOPE, &want(10), NOW.plus_ms(30_000)), None, "it was reset");
    }

    #[test]
    fn what_never_left_is_given_back() {
        let mut told = Told::default();
        let first = told.begin(SCOPE, &want(10), NOW);
        told.hear(SCOPE, first, &[left("r", false, 1.0, 9_000), left("t", true, 100.0, 9_000)], NOW);
        let second = told.begin(SCOPE, &want(90), NOW);
        assert!(told.shortage(SCOPE, &want(10), NOW).is_some());
        told.undo(SCOPE, second);
        assert_eq!(told.shortage(SCOPE, &want(100), NOW), None);
    }

    #[test]
    fn only_a_younger_answer_says_anything_new() {
        let mut told = Told::default();
        let (old, young) = (told.begin(SCOPE, &want(1), NOW), told.begin(SCOPE, &want(1), NOW));
        told.hear(SCOPE, young, &[left("r", false, 1.0, 9_000)], NOW);
        told.hear(SCOPE, old, &[left("r", false, 9.0, 9_000)], NOW);
        told.begin(SCOPE, &want(1), NOW);
        assert!(told.shortage(SCOPE, &want(1), NOW).is_some(), "an older answer knows less");
    }

    #[test]
    fn tokens_count_by_the_prompt_and_what_began_since() {
        let mut told = Told::default();
        let first = told.begin(SCOPE, &want(100), NOW);
        told.hear(SCOPE, first, &[left("t", true, 1_000.0, 9_000)], NOW);
        assert_eq!(told.shortage(SCOPE, &want(1_000), NOW), None);
        assert_eq!(
            told.shortage(SCOPE, &want(1_001), NOW),
            Some(Shortage { tokens: true, retry_in_ms: 9_000 })
        );
        told.begin(SCOPE, &want(450), NOW);
        assert_eq!(
            (told.shortage(SCOPE, &want(500), NOW), told.shortage(SCOPE, &want(501), NOW).is_some()),
            (None, true)
        );
    }

    #[test]
    fn its_size_is_bounded() {
        let mut told = Told::default();
        for slot in 0..2 * SCOPES_MAX as u32 {
            let scope = Scope::Key(Slot(slot));
            let now = NOW.plus_ms(u64::from(slot));
            let place = told.begin(scope, &want(1), now);
            let many: Vec<Left> = (0..50).map(|n| left(&format!("n{n}"), false, 1.0, 9_000)).collect();
            told.hear(scope, place, &many, now);
        }
        assert_eq!(told.scopes.len(), SCOPES_MAX);
        assert!(told.scopes.values().all(|heard| heard.limits.len() == LIMITS_MAX));
    }
}
