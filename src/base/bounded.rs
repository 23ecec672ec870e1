//! Containers that cannot outgrow their bound.
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// A map that forgets its least recently used entry once `capacity` is reached.
///
/// Eviction scans all entries: meant for a few hundred of them, where the scan costs less than a linked list does.
#[derive(Debug)]
pub struct LruMap<K, V> {
    capacity: usize,
    tick: u64,
    entries: HashMap<K, (u64, V)>,
}

impl<K: Hash + Eq + Clone, V> LruMap<K, V> {
    /// A map of at most `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        LruMap { capacity: capacity.max(1), tick: 0, entries: HashMap::new() }
    }

    /// The value under `key`, which counts as used now.
    pub fn get<Q>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.tick += 1;
        let tick = self.tick;
        self.entries.get_mut(key).map(|(used, value)| {
            *used = tick;
            &*value
        })
    }

    /// Stores `value`, pushing out the entry unused for longest when full.
    pub fn insert(&mut self, key: K, value: V) {
        self.tick += 1;
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(key, (self.tick, value));
    }

    /// Forgets one entry.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entries.remove(key).map(|(_, value)| value)
    }

    /// How many entries it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_entry_goes_first() {
        let mut map = LruMap::new(2);
        map.insert("a", 1);
        map.insert("b", 2);
        assert_eq!(map.get("a"), Some(&1));
        map.insert("c", 3);
        assert_eq!(
            (map.get("a").copied(), map.get("b").copied(), map.get("c").copied()),
            (Some(1), None, Some(3))
        );
        assert_eq!(map.len(), 2);
    }
}
