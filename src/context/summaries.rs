//! Summaries that were paid for, so that they are not paid for again. Bounded; those not used for longest give way.
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::refit::Known;
use super::summary::Key;

/// Summaries kept, and the bytes of all of them.
const SUMMARIES_MAX: usize = 512;
const BYTES_MAX: usize = 1 << 20;
/// A text above this is not kept. No summary is asked for that is nearly as long.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// One summary.
#[derive(Clone, Debug)]
struct Kept {
    saved: Saved,
    /// When it was last used, as a running number.
    used: u64,
}

/// One summary as it is saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub text: Arc<str>,
    /// The conversation that it lives and dies with, where it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Arc<str>>,
    /// Who wrote it, by its reference, and when (milliseconds since 1970). Older versions did not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    #[serde(default)]
    pub created_ms: u64,
}

/// All summaries.
#[derive(Debug, Default)]
pub struct Summaries {
    kept: HashMap<Key, Kept>,
    bytes: usize,
    uses: u64,
    unsaved: BTreeSet<Key>,
}

impl Summaries {
    /// The summary of the longest of some beginnings, given by their keys from the shortest on.
    pub fn longest(&mut self, keys: &[Key]) -> Known {
        if self.kept.is_empty() {
            return None;
        }
        self.uses += 1;
        let uses = self.uses;
        keys.iter().enumerate().rev().find_map(|(at, key)| {
            let kept = self.kept.get_mut(key)?;
            kept.used = uses;
            Some((at + 1, Arc::clone(&kept.saved.text)))
        })
    }

    /// One summary.
    pub fn get(&self, key: &Key) -> Option<Arc<str>> {
        self.kept.get(key).map(|kept| Arc::clone(&kept.saved.text))
    }

    /// Keeps a summary.
    pub fn keep(&mut self, key: Key, saved: Saved) {
        if saved.text.len() > TEXT_BYTES_MAX {
            return;
        }
        self.remove(&key);
        self.uses += 1;
        self.bytes += saved.text.len();
        self.kept.insert(key, Kept { saved, used: self.uses });
        self.unsaved.insert(key);
        while self.kept.len() > SUMMARIES_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key) else {
                return;
            };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(kept) = self.kept.remove(key) {
            self.bytes -= kept.saved.text.len();
            self.unsaved.insert(*key);
        }
    }

    /// Forgets the summaries of a session.
    pub fn forget(&mut self, session: &str) {
        self.forget_where(|owner| owner == session);
    }

    /// Forgets the summaries of all sessions but these. Those of no session stay.
    pub fn forget_others(&mut self, sessions: &HashSet<Arc<str>>) {
        self.forget_where(|owner| !sessions.contains(owner));
    }

    fn forget_where(&mut self, goes: impl Fn(&str) -> bool) {
        let gone = self.kept.iter().filter(|(_, kept)| kept.saved.session.as_deref().is_some_and(&goes));
        let keys: Vec<Key> = gone.map(|(key, _)| *key).collect();
        keys.iter().for_each(|key| self.remove(key));
    }

    /// The summaries of a session, the oldest first.
    pub fn of(&self, session: &str) -> Vec<(Key, Saved)> {
        let of_session = |(_, kept): &(&Key, &Kept)| kept.saved.session.as_deref() == Some(session);
        let mut kept: Vec<(&Key, &Kept)> = self.kept.iter().filter(of_session).collect();
        kept.sort_by_key(|(_, kept)| kept.used);
        kept.into_iter().map(|(key, kept)| (*key, kept.saved.clone())).collect()
    }

    /// How many a session has.
    pub fn count(&self, session: &str) -> usize {
        self.kept.values().filter(|kept| kept.saved.session.as_deref() == Some(session)).count()
    }

    /// What changed since this was last called, by the names of keys; `None` for what is gone.
    pub fn take_changes(&mut self) -> BTreeMap<String, Option<Saved>> {
        let changed = std::mem::take(&mut self.unsaved).into_iter();
        changed.map(|key| (key.name(), self.kept.get(&key).map(|kept| kept.saved.clone()))).collect()
    }

    /// Everything.
    pub fn export(&self) -> BTreeMap<String, Option<Saved>> {
        self.kept.iter().map(|(key, kept)| (key.name(), Some(kept.saved.clone()))).collect()
    }

    /// Takes a saved summary in; false when there is no use for it.
    pub fn restore(&mut self, name: &str, saved: Saved) -> bool {
        let room = self.kept.len() < SUMMARIES_MAX && self.bytes + saved.text.len() <= BYTES_MAX;
        match Key::by_name(name).filter(|_| room && saved.text.len() <= TEXT_BYTES_MAX) {
            Some(key) => {
                self.keep(key, saved);
                self.unsaved.remove(&key);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::conversation::Message;
    use crate::context::summary::Keys;

    fn key(number: usize) -> Key {
        let mut keys = Keys::new();
        keys.add(&Message::read(format!("{{\"n\":{number}}}").as_bytes()).expect("valid"));
        keys.key()
    }

    fn saved(text: &str, session: Option<Arc<str>>) -> Saved {
        Saved { text: text.into(), session, ..Saved::default() }
    }

    #[test]
    fn the_longest_beginning_wins_and_sessions_are_forgotten() {
        let mut summaries = Summaries::default();
        assert_eq!(summaries.longest(&[key(1)]), None);
        summaries.keep(key(1), saved("one", Some("s".into())));
        summaries.keep(key(2), saved("two", None));
        assert_eq!(summaries.longest(&[key(1), key(2), key(3)]), Some((2, "two".into())));
        assert_eq!(summaries.longest(&[key(1), key(3)]), Some((1, "one".into())));
        assert_eq!(summaries.count("s"), 1);
        summaries.forget_others(&HashSet::from(["s".into()]));
        assert_eq!(summaries.count("s"), 1);
        summaries.forget("s");
        assert_eq!((summaries.get(&key(1)), summaries.get(&key(2))), (None, Some("two".into())));
        let changes = summaries.take_changes();
        assert_eq!(changes[&key(1).name()], None);
        assert_eq!(changes[&key(2).name()], Some(saved("two", None)));
        assert!(summaries.take_changes().is_empty());
    }

    #[test]
    fn they_are_bounded_and_outlive_the_process() {
        let mut summaries = Summaries::default();
        summaries.keep(key(0), saved(&"x".repeat(TEXT_BYTES_MAX + 1), None));
        assert_eq!(summaries.get(&key(0)), None);
        for number in 0..SUMMARIES_MAX + 10 {
            summaries.keep(key(number), saved("short", None));
            summaries.longest(&[key(0)]);
        }
        assert_eq!(summaries.kept.len(), SUMMARIES_MAX);
        assert!(summaries.get(&key(0)).is_some() && summaries.get(&key(1)).is_none(), "what is used stays");
        for number in 0..100 {
            summaries.keep(key(number), saved(&"x".repeat(TEXT_BYTES_MAX), None));
        }
        assert!(summaries.bytes <= BYTES_MAX);
        let mut again = Summaries::default();
        for (name, saved) in summaries.export() {
            assert!(again.restore(&name, saved.expect("it is there")));
        }
        assert_eq!((again.kept.len(), again.bytes), (summaries.kept.len(), summaries.bytes));
        assert!(again.take_changes().is_empty());
        assert!(!again.restore("nonsense", saved("x", None)));
    }
}
