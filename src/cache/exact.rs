//! Answers by their keys: how long they are good, which go when there are too many, and what they have saved.
//!
//! An entry knows who answered, and is found only by requests that the same model could answer now. So up to
//! [`VARIANTS_MAX`] models have an answer each under one key. Where the bytes of an answer lie is not known here: `B` is
//! whatever the keeper makes of it. Pure.
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::key::Key;

/// Models that can each have an answer to the same request.
pub const VARIANTS_MAX: u8 = 4;

/// Models whose names are shared. With more of them some names are there twice, which costs a little memory.
const WHOS_MAX: usize = 1_024;

/// How much may be kept.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub entries: usize,
    /// Bytes of all answers.
    pub bytes: u64,
    pub ttl_ms: u64,
}

/// Who answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    pub provider: Arc<str>,
    /// The upstream's id of the model.
    pub model: Arc<str>,
}

/// What is known of an answer beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub who: Arc<Who>,
    /// Vectors rather than a conversation.
    pub embeddings: bool,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// The token counts were guessed.
    pub estimated: bool,
    /// Wall clock when it was given, in milliseconds since 1970.
    pub made_ms: u64,
}

/// One of the answers under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub key: Key,
    variant: u8,
}

/// A kept answer.
#[derive(Clone, Debug)]
pub struct Entry<B> {
    pub facts: Facts,
    pub body: B,
    /// Of the body.
    pub bytes: u64,
    pub hits: u64,
    /// Wall clock of the last hit.
    pub hit_ms: Option<u64>,
    /// When it was last used, as a count of uses: times that are equal have no order.
    used: u64,
}

/// What was counted since the start, or since everything was forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    /// Requests that shared the call of another.
    pub joined: u64,
    pub stored: u64,
    /// Answers that made room for others.
    pub evicted: u64,
    /// Tokens of all hits and shared calls.
    pub tokens_saved: u64,
}

impl Counts {
    /// The part of the requests that cost nothing.
    pub fn hit_rate(&self) -> f64 {
        let free = self.hits + self.joined;
        let all = free + self.misses;
        if all == 0 { 0.0 } else { free as f64 / all as f64 }
    }
}

/// All kept answers.
#[derive(Debug)]
pub struct Exact<B> {
    entries: HashMap<Place, Entry<B>>,
    /// Places by their last use, oldest first.
    order: BTreeMap<u64, Place>,
    uses: u64,
    bytes: u64,
    /// Those who answered, once each.
    whos: Vec<Arc<Who>>,
    pub counts: Counts,
}

impl<B> Default for Exact<B> {
    fn default() -> Exact<B> {
        Exact {
            entries: HashMap::new(),
            order: BTreeMap::new(),
            uses: 0,
            bytes: 0,
            whos: Vec::new(),
            counts: Counts::default(),
        }
    }
}

impl<B: Clone> Exact<B> {
    /// Nothing is kept yet.
    pub fn new() -> Exact<B> {
        Exact::default()
    }

    /// The answer under `key` by a model that `fits`, the latest if there are several. Counts as used, but not as a hit:
    /// [`Exact::hit`] does when it has been served. One that is too old is forgotten, together with all others that are.
    pub fn find(
        &mut self,
        key: &Key,
        fits: impl Fn(&Who) -> bool,
        bounds: &Bounds,
        wall_ms: u64,
    ) -> Option<(Place, Entry<B>)> {
        let places = Exact::<B>::places(key);
        let found = places.filter_map(|place| {
            let entry = self.entries.get(&place).filter(|entry| fits(&entry.facts.who))?;
            Some((entry.facts.made_ms, place))
        });
        let (_, place) = found.max_by_key(|(made_ms, _)| *made_ms)?;
        let entry = self.entries.get_mut(&place)?;
        if is_old(&entry.facts, bounds, wall_ms) {
            self.forget_old(bounds, wall_ms);
            return None;
        }
        self.order.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.order.insert(entry.used, place);
        Some((place, entry.clone()))
    }

    /// Whether there is any answer under `key`.
    pub fn holds(&self, key: &Key) -> bool {
        Exact::<B>::places(key).any(|place| self.entries.contains_key(&place))
    }

    /// Counts a request that shared the answer of another.
    pub fn joined(&mut self, facts: &Facts) {
        self.counts.joined += 1;
        self.counts.tokens_saved += facts.prompt_tokens + facts.output_tokens;
    }

    /// Counts a hit, and what it saved.
    pub fn hit(&mut self, place: &Place, wall_ms: u64) {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.hits += 1;
            entry.hit_ms = Some(wall_ms);
            self.counts.hits += 1;
            self.counts.tokens_saved += entry.facts.prompt_tokens + entry.facts.output_tokens;
        }
    }

    /// `who`, shared by all answers that they gave.
    pub fn share(&mut self, who: Who) -> Arc<Who> {
        if let Some(known) = self.whos.iter().find(|known| ***known == who) {
            return Arc::clone(known);
        }
        if self.whos.len() >= WHOS_MAX {
            self.whos.clear();
        }
        let who = Arc::new(who);
        self.whos.push(Arc::clone(&who));
        who
    }

    /// Keeps an answer, in the place of an older one by the same model if there is one. What makes room for it is told.
    pub fn keep(&mut self, key: Key, facts: Facts, body: B, bytes: u64, bounds: &Bounds) -> Kept<B> {
        if bytes > bounds.bytes || bounds.entries == 0 {
            return Kept { place: None, gone: Vec::new() };
        }
        self.counts.stored += 1;
        self.put(key, facts, body, bytes, bounds)
    }

    /// Takes back an answer of an earlier run, older ones first.
    pub fn restore(&mut self, key: Key, facts: Facts, body: B, bytes: u64, bounds: &Bounds, wall_ms: u64) {
        if bytes <= bounds.bytes && !is_old(&facts, bounds, wall_ms) {
            let evicted = self.counts.evicted;
            drop(self.put(key, facts, body, bytes, bounds));
            self.counts.evicted = evicted;
        }
    }

    fn put(&mut self, key: Key, facts: Facts, body: B, bytes: u64, bounds: &Bounds) -> Kept<B> {
        let place = self.place_for(&key, &facts.who);
        let mut gone: Vec<_> = self.remove(&place).map(|entry| (place, entry)).into_iter().collect();
        self.uses += 1;
        let entry = Entry { facts, body, bytes, hits: 0, hit_ms: None, used: self.uses };
        self.order.insert(entry.used, place);
        self.entries.insert(place, entry);
        self.bytes += bytes;
        self.make_room(bounds, &mut gone);
        Kept { place: Some(place), gone }
    }

    /// Forgets one answer.
    pub fn remove(&mut self, place: &Place) -> Option<Entry<B>> {
        let entry = self.entries.remove(place)?;
        self.order.remove(&entry.used);
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Forgets everything, the counts too; how many answers that were.
    pub fn clear(&mut self) -> usize {
        let count = self.entries.len();
        *self = Exact { uses: self.uses, ..Exact::default() };
        count
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all answers.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All answers, the one that was used last first.
    pub fn latest(&self) -> impl Iterator<Item = (&Place, &Entry<B>)> {
        self.order.values().rev().filter_map(|place| self.entries.get_key_value(place))
    }

    fn places(key: &Key) -> impl Iterator<Item = Place> + use<B> {
        let key = *key;
        (0..VARIANTS_MAX).map(move |variant| Place { key, variant })
    }

    /// Where an answer by `who` goes: over its own older one, to a free place, or over the one that was used least
    /// recently.
    fn place_for(&self, key: &Key, who: &Who) -> Place {
        let rank = |place: &Place| match self.entries.get(place) {
            Some(entry) if *entry.facts.who == *who => (0, 0),
            None => (1, 0),
            Some(entry) => (2, entry.used),
        };
        Exact::<B>::places(key).min_by_key(rank).unwrap_or(Place { key: *key, variant: 0 })
    }

    fn make_room(&mut self, bounds: &Bounds, gone: &mut Vec<(Place, Entry<B>)>) {
        while self.entries.len() > bounds.entries || self.bytes > bounds.bytes {
            let Some((_, place)) = self.order.first_key_value() else { break };
            let place = *place;
            gone.extend(self.remove(&place).map(|entry| (place, entry)));
            self.counts.evicted += 1;
        }
    }

    fn forget_old(&mut self, bounds: &Bounds, wall_ms: u64) {
        let old = |entry: &Entry<B>| is_old(&entry.facts, bounds, wall_ms);
        let places: Vec<Place> =
            self.entries.iter().filter(|(_, entry)| old(entry)).map(|(place, _)| *place).collect();
        places.iter().for_each(|place| drop(self.remove(place)));
    }
}

/// What keeping an answer came to.
#[derive(Debug)]
pub struct Kept<B> {
    /// Where it is; `None` when it is larger than all that may be kept.
    pub place: Option<Place>,
    /// What is no longer kept, the answer that it replaces included.
    pub gone: Vec<(Place, Entry<B>)>,
}

/// A clock that was set back makes nothing old.
fn is_old(facts: &Facts, bounds: &Bounds, wall_ms: u64) -> bool {
    wall_ms.saturating_sub(facts.made_ms) >= bounds.ttl_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { entries: 3, bytes: 100, ttl_ms: 1_000 };

    fn key(number: u8) -> Key {
        Key([number; 32])
    }

    fn facts(model: &str, made_ms: u64) -> Facts {
        let who = Arc::new(Who { provider: "acme".into(), model: model.into() });
        Facts { who, embeddings: false, prompt_tokens: 7, output_tokens: 3, estimated: false, made_ms }
    }

    fn keep(exact: &mut Exact<&'static str>, number: u8, body: &'static str, made_ms: u64) -> usize {
        exact.keep(key(number), facts("m", made_ms), body, body.len() as u64, &BOUNDS).gone.len()
    }

    fn find(exact: &mut Exact<&'static str>, number: u8, wall_ms: u64) -> Option<&'static str> {
        exact.find(&key(number), |_| true, &BOUNDS, wall_ms).map(|(_, entry)| entry.body)
    }

    #[test]
    fn the_least_recently_used_goes_first_even_within_one_millisecond() {
        let mut exact = Exact::new();
        for number in 1..=3 {
            assert_eq!(keep(&mut exact, number, "x", 5), 0);
        }
        assert_eq!(find(&mut exact, 1, 5), Some("x"));
        assert_eq!(keep(&mut exact, 4, "x", 5), 1);
        assert_eq!(keep(&mut exact, 5, "x", 5), 1);
        let left: Vec<bool> = (1..=5).map(|number| exact.holds(&key(number))).collect();
        assert_eq!(left, [true, false, false, true, true]);
        assert_eq!((exact.len(), exact.counts.evicted, exact.counts.stored), (3, 2, 5));
    }

    #[test]
    fn bytes_are_bounded_as_well() {
        let mut exact = Exact::new();
        let body = |bytes: usize| -> &'static str { &"0123456789".repeat(12).leak()[..bytes] };
        keep(&mut exact, 1, body(60), 0);
        keep(&mut exact, 2, body(30), 0);
        assert_eq!(exact.bytes(), 90);
        assert_eq!(keep(&mut exact, 3, body(50), 0), 1, "the oldest went");
        assert_eq!((exact.bytes(), exact.holds(&key(1))), (80, false));
        assert_eq!(keep(&mut exact, 4, body(101), 0), 0);
        assert!(!exact.holds(&key(4)), "larger than everything");
        assert_eq!(exact.bytes(), 80);
        assert_eq!(keep(&mut exact, 3, body(10), 0), 1, "replaced");
        assert_eq!((exact.bytes(), exact.len()), (40, 2));
    }

    #[test]
    fn an_answer_is_good_for_a_time() {
        let mut exact = Exact::new();
        keep(&mut exact, 1, "a", 10_000);
        keep(&mut exact, 2, "b", 10_100);
        keep(&mut exact, 3, "c", 10_900);
        assert_eq!(find(&mut exact, 1, 10_999), Some("a"));
        assert_eq!(find(&mut exact, 1, 9_000), Some("a"), "the clock was set back");
        assert_eq!(find(&mut exact, 1, 11_100), None);
        assert_eq!((exact.len(), exact.bytes()), (1, 1), "all that are old went with it");
        assert_eq!(find(&mut exact, 3, 11_100), Some("c"));
        assert_eq!(exact.counts.evicted, 0);
    }

    #[test]
    fn only_a_model_that_fits_answers_and_each_has_its_own_answer() {
        let mut exact = Exact::new();
        let mut put = |model: &str, made_ms: u64, body: &'static str| {
            exact.keep(key(1), facts(model, made_ms), body, 1, &Bounds { entries: 9, ..BOUNDS });
        };
        put("a", 1, "of a");
        put("b", 2, "of b");
        put("a", 3, "of a again");
        let find = |exact: &mut Exact<&'static str>, models: &[&str]| {
            let fits = |who: &Who| models.contains(&&*who.model);
            exact.find(&key(1), fits, &BOUNDS, 4).map(|(_, entry)| entry.body)
        };
        assert_eq!(find(&mut exact, &["a"]), Some("of a again"));
        assert_eq!(find(&mut exact, &["b"]), Some("of b"));
        assert_eq!(find(&mut exact, &["a", "b"]), Some("of a again"), "the latest");
        assert_eq!(find(&mut exact, &["c"]), None);
        for model in ["c", "d", "e"] {
            exact.keep(key(1), facts(model, 5), "x", 1, &Bounds { entries: 9, ..BOUNDS });
        }
        assert_eq!(exact.len(), usize::from(VARIANTS_MAX));
        assert_eq!(find(&mut exact, &["b"]), None, "used least recently");
    }

    #[test]
    fn what_was_saved_is_counted_and_forgotten_with_everything() {
        let mut exact = Exact::new();
        keep(&mut exact, 1, "a", 0);
        exact.counts.misses += 1;
        assert_eq!(exact.counts.hit_rate(), 0.0);
        let (place, _) = exact.find(&key(1), |_| true, &BOUNDS, 1).expect("it is there");
        exact.hit(&place, 77);
        exact.hit(&place, 78);
        let entry = exact.latest().next().expect("it is there").1;
        assert_eq!((entry.hits, entry.hit_ms), (2, Some(78)));
        assert_eq!((exact.counts.hits, exact.counts.tokens_saved), (2, 20));
        assert!((exact.counts.hit_rate() - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!((exact.clear(), exact.len(), exact.bytes()), (1, 0, 0));
        assert_eq!(exact.counts, Counts::default());
        assert!(exact.is_empty() && exact.latest().next().is_none());
    }
}
