//! The semantic cache over the vectors of a real model: what is served of questions that mean the same, and that nothing
//! is served of those that only look alike. `pairs.tsv` has the questions, `vectors.bin` their vectors, made once by
//! `live.py --make`; `live.py` does the same with the running gateway and the running model.
use freeway::cache::key::Key;
use freeway::cache::semantic::{Query, Question, Semantic};
use freeway::cache::slab::{dot, unit};
use freeway::catalog::settings::Settings;

const DIMENSIONS: usize = 384;
const PAIRS: &str = include_str!("pairs.tsv");
const VECTORS: &[u8] = include_bytes!("vectors.bin");
const SCOPE: Key = Key([1; 32]);

struct Pair {
    /// Whether one answer fits both questions.
    same: bool,
    kind: &'static str,
    texts: [&'static str; 2],
    vectors: [Vec<f32>; 2],
}

fn pairs() -> Vec<Pair> {
    let numbers: Vec<f32> =
        VECTORS.chunks(2).map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]]))).collect();
    let mut vectors = numbers.chunks(DIMENSIONS).map(|vector| unit(vector).expect("it says something"));
    let mut vector = || vectors.next().expect("two vectors for each line; run live.py --make after a change");
    let read = |line: &'static str| {
        let parts: Vec<&str> = line.split('\t').collect();
        let [says, kind, first, second] = parts[..] else { panic!("four parts, not {line:?}") };
        Pair { same: says == "same", kind, texts: [first, second], vectors: [vector(), vector()] }
    };
    let pairs: Vec<Pair> = PAIRS.lines().map(read).collect();
    assert!(vectors.next().is_none(), "vectors without a line; run live.py --make");
    pairs
}

/// What is looked for when `pair`'s second question is asked.
fn query(pair: &Pair, threshold: f64) -> Query<'_> {
    Query {
        embedder: "all-minilm-l6-v2",
        scope: &SCOPE,
        text: pair.texts[1],
        vector: &pair.vectors[1],
        threshold,
        made_after_ms: 0,
    }
}

/// A cache that has answered the first question of `pair`.
fn having_answered(pair: &Pair, key: Key) -> Semantic<()> {
    let mut semantic = Semantic::<()>::default();
    let question = Question { key, scope: SCOPE, text: pair.texts[0].into(), made_ms: 1 };
    assert!(semantic.keep("all-minilm-l6-v2", question, &pair.vectors[0], (), 9).kept);
    semantic
}

fn served(pair: &Pair, threshold: f64) -> bool {
    !having_answered(pair, Key([0; 32])).find(&query(pair, threshold)).is_empty()
}

fn default_threshold() -> f64 {
    Settings::default().semantic.threshold
}

#[test]
fn near_misses_are_never_served_and_the_hit_rate_is_told() {
    let (pairs, threshold) = (pairs(), default_threshold());
    let (same, other): (Vec<&Pair>, Vec<&Pair>) = pairs.iter().partition(|pair| pair.same);
    assert!(same.len() >= 40 && other.len() >= 40);
    let cosine = |pair: &Pair| f64::from(dot(&pair.vectors[0], &pair.vectors[1]));
    let alike = |pairs: &[&Pair]| pairs.iter().filter(|pair| cosine(pair) >= threshold).count();
    let hits: Vec<&&Pair> = same.iter().filter(|pair| served(pair, threshold)).collect();
    println!(
        "at {threshold}: {} of {} paraphrases are close enough, {} are served",
        alike(&same),
        same.len(),
        hits.len()
    );
    println!(
        "at {threshold}: {} of {} near misses are close enough, none may be served",
        alike(&other),
        other.len()
    );
    for pair in same.iter().filter(|pair| !served(pair, threshold)) {
        println!("  not served ({:.3}): {} | {}", cosine(pair), pair.texts[0], pair.texts[1]);
    }
    assert!(alike(&other) >= 20, "the words are put to the test only where the vectors are close");
    let wrong: Vec<_> = other.iter().filter(|pair| served(pair, threshold)).map(|pair| pair.texts).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(hits.len() * 2 >= same.len(), "a cache that serves nothing is right, but of no use");
}

#[test]
fn the_words_alone_tell_near_misses_apart() {
    // However coarse an embedder is: with a threshold that all pairs reach, only the words are left to judge.
    let pairs = pairs();
    let wrong: Vec<_> = pairs
        .iter()
        .filter(|pair| !pair.same && served(pair, 0.4))
        .map(|pair| (pair.kind, pair.texts))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_question_is_answered_with_that_of_another_pair() {
    let (pairs, threshold) = (pairs(), default_threshold());
    let mut semantic = Semantic::<()>::default();
    for (number, pair) in pairs.iter().enumerate().filter(|(_, pair)| pair.same) {
        let mut key = Key([0; 32]);
        key.0[0] = u8::try_from(number).expect("few pairs");
        let question = Question { key, scope: SCOPE, text: pair.texts[0].into(), made_ms: 1 };
        semantic.keep("all-minilm-l6-v2", question, &pair.vectors[0], (), 1_000);
    }
    for (number, pair) in pairs.iter().enumerate().filter(|(_, pair)| pair.same) {
        for found in semantic.find(&query(pair, threshold)) {
            let answered = pairs[usize::from(found.key.0[0])].texts[0];
            assert_eq!(usize::from(found.key.0[0]), number, "{} got the answer to {answered}", pair.texts[1]);
        }
    }
}

#[test]
fn w18_another_scope_or_embedder_is_never_served() {
    for pair in pairs().iter().filter(|pair| pair.same) {
        let semantic = having_answered(pair, Key([0; 32]));
        let query = query(pair, 0.0);
        assert!(semantic.find(&Query { scope: &Key([2; 32]), ..query }).is_empty(), "{:?}", pair.texts);
        assert!(
            semantic.find(&Query { embedder: "bge-small-en-v1.5", ..query }).is_empty(),
            "{:?}",
            pair.texts
        );
    }
}
