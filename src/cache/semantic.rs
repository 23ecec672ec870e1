//! Questions that were answered before, found again by what they mean. No answer is kept here: an entry points to one of
//! the exact cache, and goes when that goes.
//!
//! What a question is compared with: entries made by the same embedder, of the same scope (everything of the request but
//! the newest user turn), no older than answers may be, at least as close as the threshold, and whose words say the same
//! (`likeness`). Pure.
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;

use super::key::Key;
use super::likeness::{Likeness, likeness};
use super::slab::Slab;
use super::text::Text;

/// Lengths, in bytes, of the texts that are compared. Longer ones say too much for one vector, and many embedders read
/// only their beginning.
pub const TEXT_BYTES: RangeInclusive<usize> = 2..=1_000;

/// Close entries of which the words are compared.
const CANDIDATES_MAX: usize = 16;
/// How long a miss is remembered.
const MISS_MS: u64 = 60_000;
/// Misses that are remembered.
const MISSES_MAX: usize = 1_024;

/// What a vector was made with. Those of different embedders cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embedder {
    /// The model, whoever provides it.
    pub model: String,
    pub dimensions: usize,
}

/// A question that was answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Of the answer in the exact cache.
    pub key: Key,
    /// The digest of everything but the text.
    pub scope: Key,
    pub text: Box<str>,
    /// Wall clock of the answer, in milliseconds since 1970.
    pub made_ms: u64,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    pub embedder: &'a str,
    pub scope: &'a Key,
    pub text: &'a str,
    /// Of length one.
    pub vector: &'a [f32],
    pub threshold: f64,
    /// Answers that were made before are too old.
    pub made_after_ms: u64,
}

/// An answer that fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Match {
    pub key: Key,
    pub score: f32,
}

#[derive(Debug)]
struct Entry<H> {
    question: Question,
    /// Counts up; the oldest goes first.
    number: u64,
    /// Let go of when the question goes.
    _held: H,
}

/// All questions of one embedder. `H` is whatever is to last as long as a question.
#[derive(Debug)]
pub struct Semantic<H> {
    embedder: Option<Embedder>,
    slab: Slab,
    /// By row of the slab.
    entries: Vec<Entry<H>>,
    rows: HashMap<Key, usize>,
    /// Keys by age.
    order: BTreeMap<u64, Key>,
    next: u64,
}

/// What keeping a question came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Whether it is kept.
    pub kept: bool,
    /// Whether all others went, because they were made with another embedder.
    pub cleared: bool,
    /// The one that made room.
    pub evicted: Option<Key>,
}

impl<H> Default for Semantic<H> {
    fn default() -> Semantic<H> {
        Semantic {
            embedder: None,
            slab: Slab::default(),
            entries: Vec::new(),
            rows: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<H> Semantic<H> {
    /// The answers that fit, best first. The caller takes the first that still exists.
    pub fn find(&self, query: &Query<'_>) -> Vec<Match> {
        let same_embedder = |embedder: &Embedder| embedder.model == query.embedder;
        if !self.embedder.as_ref().is_some_and(same_embedder) {
            return Vec::new();
        }
        let found =
            self.slab.closest(group(query.scope), query.vector, query.threshold as f32, CANDIDATES_MAX);
        if found.is_empty() {
            return Vec::new();
        }
        let text = Text::read(query.text);
        // What says more or less than the other must be twice as close.
        let near = 1.0 - (1.0 - query.threshold) / 2.0;
        let fits = |question: &Question, score: f32| {
            question.scope == *query.scope
                && question.made_ms > query.made_after_ms
                && match likeness(&text, &Text::read(&question.text)) {
                    Likeness::Same => true,
                    Likeness::Near => f64::from(score) >= near,
                    Likeness::Other => false,
                }
        };
        let matches = found.iter().filter_map(|close| {
            let question = &self.entries.get(close.row)?.question;
            fits(question, close.score).then_some(Match { key: question.key, score: close.score.min(1.0) })
        });
        matches.collect()
    }

    /// Keeps a question with its vector (of length one), at most `most` in all.
    pub fn keep(
        &mut self,
        embedder: &str,
        question: Question,
        vector: &[f32],
        held: H,
        most: usize,
    ) -> Changes {
        let mut changes = Changes::default();
        let embedder = Embedder { model: embedder.to_owned(), dimensions: vector.len() };
        if self.embedder.as_ref() != Some(&embedder) {
            changes.cleared = !self.entries.is_empty();
            *self = Semantic {
                slab: Slab::new(vector.len()),
                embedder: Some(embedder),
                next: self.next,
                ..Semantic::default()
            };
        }
        self.forget(&question.key);
        // More than one goes only when the bound was lowered; those are found again by the next that come.
        while self.entries.len() >= most.max(1) {
            let Some((_, key)) = self.order.first_key_value() else { break };
            let key = *key;
            self.forget(&key);
            changes.evicted = Some(key);
        }
        changes.kept = self.slab.push(group(&question.scope), vector);
        if changes.kept {
            self.next += 1;
            self.order.insert(self.next, question.key);
            self.rows.insert(question.key, self.entries.len());
            self.entries.push(Entry { question, number: self.next, _held: held });
        }
        changes
    }

    /// Forgets the question of an answer; true when there was one.
    pub fn forget(&mut self, key: &Key) -> bool {
        let Some(row) = self.rows.remove(key) else { return false };
        self.slab.swap_remove(row);
        let entry = self.entries.swap_remove(row);
        self.order.remove(&entry.number);
        if let Some(moved) = self.entries.get(row) {
            self.rows.insert(moved.question.key, row);
        }
        true
    }

    /// Forgets all of them; how many they were.
    pub fn clear(&mut self) -> usize {
        let count = self.entries.len();
        *self = Semantic { next: self.next, ..Semantic::default() };
        count
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What the vectors were made with.
    pub fn embedder(&self) -> Option<&Embedder> {
        self.embedder.as_ref()
    }

    /// The memory that vectors take.
    pub fn bytes(&self) -> usize {
        self.slab.bytes()
    }
}

/// Enough of a scope to pass over the rows of others.
fn group(scope: &Key) -> u64 {
    scope.0.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Questions that were looked for lately and not found, so that one that is asked again is not paid for again.
#[derive(Debug, Default)]
pub struct Misses {
    known: HashSet<Key>,
    /// Oldest first.
    order: VecDeque<(u64, Key)>,
}

impl Misses {
    /// Whether it was missed within the last minute. `mono_ms` is a monotonic clock.
    pub fn holds(&mut self, question: &Key, mono_ms: u64) -> bool {
        while let Some((at_ms, key)) = self.order.front() {
            if mono_ms.saturating_sub(*at_ms) < MISS_MS && self.order.len() <= MISSES_MAX {
                break;
            }
            self.known.remove(key);
            self.order.pop_front();
        }
        self.known.contains(question)
    }

    /// Remembers a miss.
    pub fn add(&mut self, question: Key, mono_ms: u64) {
        if !self.holds(&question, mono_ms) && self.known.insert(question) {
            self.order.push_back((mono_ms, question));
        }
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        *self = Misses::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::slab::unit;

    const SCOPE: Key = Key([1; 32]);

    fn key(number: u8) -> Key {
        Key([number; 32])
    }

    /// A vector at an angle, in degrees.
    fn at(degrees: f32) -> Vec<f32> {
        unit(&[degrees.to_radians().cos(), degrees.to_radians().sin(), 0.0]).expect("it says something")
    }

    fn question(number: u8, text: &str) -> Question {
        Question { key: key(number), scope: SCOPE, text: text.into(), made_ms: 1_000 }
    }

    fn keep(semantic: &mut Semantic<()>, number: u8, text: &str, degrees: f32) -> Changes {
        semantic.keep("e", question(number, text), &at(degrees), (), 3)
    }

    fn find(semantic: &Semantic<()>, text: &str, degrees: f32) -> Vec<u8> {
        let vector = at(degrees);
        let query =
            Query { embedder: "e", scope: &SCOPE, text, vector: &vector, threshold: 0.92, made_after_ms: 0 };
        semantic.find(&query).iter().map(|found| found.key.0[0]).collect()
    }

    #[test]
    fn the_closest_whose_words_agree_comes_first_and_the_next_is_there_when_it_is_gone() {
        let mut semantic = Semantic::<()>::default();
        keep(&mut semantic, 1, "What is the capital of France?", 10.0);
        keep(&mut semantic, 2, "What's the capital of France", 5.0);
        keep(&mut semantic, 3, "What is the capital of Spain?", 0.0);
        let asked = "Tell me what the capital of France is";
        assert_eq!(find(&semantic, asked, 0.0), [2, 1]);
        assert!(semantic.forget(&key(2)) && !semantic.forget(&key(2)));
        assert_eq!(find(&semantic, asked, 0.0), [1]);
        assert_eq!(find(&semantic, asked, 50.0), [0; 0], "not close enough");
    }

    #[test]
    fn what_says_more_must_be_closer() {
        let mut semantic = Semantic::<()>::default();
        keep(&mut semantic, 1, "How do I fry rice?", 0.0);
        let asked = "What is the best way to fry brown rice?";
        assert_eq!(find(&semantic, asked, 20.0), [0; 0], "a cosine of 0.94");
        assert_eq!(find(&semantic, asked, 10.0), [1], "a cosine of 0.985");
    }

    #[test]
    fn w18_another_scope_embedder_width_or_age_is_never_found() {
        let mut semantic = Semantic::<()>::default();
        keep(&mut semantic, 1, "Go on", 0.0);
        let vector = at(0.0);
        let query = Query {
            embedder: "e",
            scope: &SCOPE,
            text: "go on",
            vector: &vector,
            threshold: 0.92,
            made_after_ms: 999,
        };
        assert_eq!(semantic.find(&query).len(), 1);
        let mut near_scope = SCOPE;
        near_scope.0[31] = 0;
        for other in [
            Query { embedder: "f", ..query },
            Query { scope: &key(2), ..query },
            Query { scope: &near_scope, ..query },
            Query { vector: &[1.0, 0.0], ..query },
            Query { made_after_ms: 1_000, ..query },
        ] {
            assert_eq!(semantic.find(&other), [], "{other:?}");
        }
    }

    #[test]
    fn w18_another_embedder_or_width_starts_anew() {
        let mut semantic = Semantic::<()>::default();
        keep(&mut semantic, 1, "a", 0.0);
        let changes = semantic.keep("f", question(2, "b"), &at(0.0), (), 3);
        assert_eq!((changes.cleared, semantic.len()), (true, 1));
        let changes = semantic.keep("f", question(3, "b"), &[0.6, 0.8], (), 3);
        assert_eq!((changes.cleared, semantic.len()), (true, 1));
        assert_eq!(semantic.embedder().map(|e| (e.model.as_str(), e.dimensions)), Some(("f", 2)));
        assert_eq!((semantic.clear(), semantic.len(), semantic.embedder()), (1, 0, None));
    }

    #[test]
    fn the_oldest_makes_room_and_a_question_is_kept_once() {
        let mut semantic = Semantic::<()>::default();
        for number in 1..=3 {
            assert_eq!(
                keep(&mut semantic, number, "Go on", 0.0),
                Changes { kept: true, ..Changes::default() }
            );
        }
        keep(&mut semantic, 1, "Go on", 0.0);
        assert_eq!(semantic.len(), 3);
        assert_eq!(keep(&mut semantic, 4, "Go on", 0.0).evicted, Some(key(2)), "1 was asked again after it");
        let mut found = find(&semantic, "go on", 0.0);
        found.sort_unstable();
        assert_eq!(found, [1, 3, 4]);
        for number in 1..=200 {
            keep(&mut semantic, number, "Go on", 0.0);
            if number % 3 == 0 {
                semantic.forget(&key(number));
            }
        }
        let mut left: Vec<u8> = semantic.entries.iter().map(|entry| entry.question.key.0[0]).collect();
        left.sort_unstable();
        assert_eq!(left, [197, 199, 200]);
        assert!(left.iter().all(|number| semantic.rows.contains_key(&key(*number))));
        assert_eq!((semantic.rows.len(), semantic.order.len(), semantic.slab.len()), (3, 3, 3));
    }

    #[test]
    fn misses_are_remembered_for_a_minute_and_bounded() {
        let mut misses = Misses::default();
        misses.add(key(1), 0);
        misses.add(key(1), 30_000);
        assert!(misses.holds(&key(1), 59_999) && !misses.holds(&key(2), 59_999));
        assert!(!misses.holds(&key(1), 60_000), "counted from the first");
        for number in 0..3_000_u32 {
            let mut many = key(0);
            many.0[..4].copy_from_slice(&number.to_le_bytes());
            misses.add(many, 60_000);
        }
        assert!(misses.known.len() <= MISSES_MAX + 1 && misses.known.len() == misses.order.len());
        misses.clear();
        assert!(misses.known.is_empty());
    }
}
