//! Whether two texts that an embedding calls alike may share an answer. An embedding hardly sees a digit, a `not`, a
//! name or which of two comes first; this looks at the words, which `text` has read.
//!
//! 1. What is quoted, what follows a colon or stands on further lines, and mathematical signs are the same.
//! 2. So are, in number and order: names and identifiers, numbers, and the other classes of the lexicon (negations,
//!    units, dates, languages, tasks).
//! 3. They ask the same kind of question: what, how, when, where, who, why, whether.
//! 4. Neither means the opposite of a word of the other, or swaps `from` and `to`.
//! 5. In the same frame of grammar stand the same words. In another frame the words may be rearranged, and one that
//!    only one of them has asks for a better likeness.
//!
//! A text that is not English, as far as can be told, is alike only when all its words are the same. Pure.
use std::collections::BTreeMap;

use super::lexicon::{CLASSES, Lexicon, TURNING};
use super::text::{Kind, Text, Word, stem};

/// What the words say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// They may well need different answers.
    Other,
    /// One says a little more than the other, or something in other words.
    Near,
    Same,
}

/// Words in common from which on a text is so long that an embedding no longer sees a single one of them.
const LONG_WORDS: usize = 8;

/// Compares two texts.
pub fn likeness(a: &Text, b: &Text) -> Likeness {
    if a.quoted != b.quoted || a.payload != b.payload || a.signs != b.signs {
        return Likeness::Other;
    }
    let plain = |text: &Text| text.words.iter().map(|word| word.plain.clone()).collect::<Vec<_>>();
    if plain(a) == plain(b) {
        return Likeness::Same;
    }
    let of_class = |text: &Text, class| -> Vec<String> {
        let words = text.words.iter().filter(|word| word.kind == Kind::Strict(class));
        words.map(|word| word.meaning.clone()).collect()
    };
    let agree = a.english
        && b.english
        && a.asks == b.asks
        && CLASSES.iter().all(|class| of_class(a, *class) == of_class(b, *class))
        && names_agree(a, b)
        && !opposed(a, b)
        && !turned_around(a, b);
    if agree { by_content(a, b) } else { Likeness::Other }
}

/// Whether every name of either stands in the other, and all in the same order.
fn names_agree(a: &Text, b: &Text) -> bool {
    let is_name = |plain: &str| a.words.iter().chain(&b.words).any(|word| word.name && word.plain == plain);
    let names = |text: &Text| -> Vec<String> {
        let names = text.words.iter().filter(|word| is_name(&word.plain));
        names.map(|word| word.plain.clone()).collect()
    };
    names(a) == names(b)
}

/// Whether one holds a word in whose place the other holds the opposite.
fn opposed(a: &Text, b: &Text) -> bool {
    let (of_a, of_b) = (sides(a), sides(b));
    of_a.iter().any(|(group, words)| of_b.get(group).is_some_and(|others| words != others))
}

/// The words that exclude others, by group.
fn sides(text: &Text) -> BTreeMap<usize, Vec<String>> {
    let exclusive = &Lexicon::get().exclusive;
    let mut found: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for word in &text.words {
        let forms = [word.plain.clone(), stem(&word.plain)];
        let known = forms.iter().find_map(|form| exclusive.get_key_value(form.as_str()));
        for group in known.map(|(_, groups)| groups).into_iter().flatten() {
            let words = found.entry(*group).or_default();
            let form = known.map_or("", |(form, _)| form);
            if let Err(at) = words.binary_search_by(|known| known.as_str().cmp(form)) {
                words.insert(at, form.to_owned());
            }
        }
    }
    found
}

/// Prepositions that give the word behind them its part.
const DIRECTIONS: [&str; 6] = ["from", "to", "into", "than", "by", "against"];

/// Whether a word stands behind `from` in one and behind `to` in the other.
fn turned_around(a: &Text, b: &Text) -> bool {
    let (of_a, of_b) = (directions(a), directions(b));
    of_a.iter().any(|(word, direction)| of_b.get(word).is_some_and(|other| other != direction))
}

/// The preposition before each word that has one.
fn directions(text: &Text) -> BTreeMap<&str, &'static str> {
    let mut found = BTreeMap::new();
    let mut direction = None;
    for word in &text.words {
        match DIRECTIONS.iter().find(|known| **known == word.plain) {
            Some(known) => direction = Some(if *known == "into" { "to" } else { known }),
            None if word.kind == Kind::Function => {}
            None => {
                if let Some(direction) = direction.take() {
                    found.insert(word.meaning.as_str(), direction);
                }
            }
        }
    }
    found
}

/// Compares what is left when all that had to be equal is.
fn by_content(a: &Text, b: &Text) -> Likeness {
    let frame = |text: &Text| -> Vec<String> {
        let grammar = text.words.iter().filter(|word| word.kind == Kind::Function);
        grammar.map(|word| word.plain.clone()).collect()
    };
    let (of_a, of_b) = (meanings(a), meanings(b));
    if of_a == of_b {
        return Likeness::Same;
    }
    if frame(a) == frame(b) {
        return Likeness::Other;
    }
    let (only_a, only_b) = (beyond(&of_a, &of_b), beyond(&of_b, &of_a));
    let (more, common) = (only_a.len() + only_b.len(), of_a.len() - only_a.len());
    let turned = |x: &str, y: &str| {
        let prefix = x.strip_suffix(y).or_else(|| y.strip_suffix(x));
        prefix.is_some_and(|prefix| TURNING.contains(&prefix))
    };
    if more == 0 {
        Likeness::Same
    } else if common >= LONG_WORDS
        || more > common
        || only_a.iter().any(|x| only_b.iter().any(|y| turned(x, y)))
    {
        Likeness::Other
    } else {
        Likeness::Near
    }
}

/// What the words that carry meaning stand for.
fn meanings(text: &Text) -> Vec<&str> {
    let carries = |word: &&Word| !matches!(word.kind, Kind::Function | Kind::Filler);
    text.words.iter().filter(carries).map(|word| word.meaning.as_str()).collect()
}

/// What `list` holds beyond what `other` holds, as often as it is missing there.
fn beyond<'l>(list: &[&'l str], other: &[&str]) -> Vec<&'l str> {
    let mut rest = other.to_vec();
    let mut missing = Vec::new();
    for word in list {
        match rest.iter().position(|known| known == word) {
            Some(at) => drop(rest.swap_remove(at)),
            None => missing.push(*word),
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(a: &str, b: &str, expected: Likeness) {
        let (a, b) = (Text::read(a), Text::read(b));
        assert_eq!(likeness(&a, &b), expected, "{a:?}\n{b:?}");
        assert_eq!(likeness(&b, &a), expected, "the other way around: {a:?}\n{b:?}");
    }

    #[test]
    fn words_that_carry_no_meaning_may_differ() {
        for (a, b) in [
            ("What is the capital of France?", "what's the capital city of france"),
            ("What is the capital of France?", "Please tell me what the capital of France is."),
            ("How do I reset my password?", "How can I reset my password"),
            ("How to reset my password", "What is the best way to reset my password?"),
            ("Is it safe to eat raw eggs?", "Is eating raw eggs safe?"),
            ("What is 17*23?", "what's 17 * 23"),
            ("How far is 5 km?", "How far are five kilometres?"),
            (
                "In Python, how can I turn a string into an integer?",
                "How do I convert a string to an integer in python?",
            ),
        ] {
            check(a, b, Likeness::Same);
        }
    }

    #[test]
    fn numbers_in_every_form_must_be_equal() {
        for (a, b) in [
            ("What is 17*23?", "What is 17*24?"),
            ("What is 17*23?", "What is 17+23?"),
            ("What is 8 - 3?", "What is 8 + 3?"),
            ("How do I cook for two people?", "How can I cook for three people?"),
            ("How do I cook for twenty-two?", "How can I cook for twenty-three?"),
            ("Who was the first king?", "Who was the second king?"),
            ("What is 2.5 squared?", "What is 25 squared?"),
            ("What is half of it?", "What is a third of it?"),
            ("What is the value of 1,009?", "What is the value of 1009.5?"),
            ("What happened in 1999?", "What happened in 1998?"),
            ("Which bus leaves at 3 am?", "Which bus leaves at 3 pm?"),
            ("What is 5%?", "What is 5?"),
            ("What is ٣?", "What is ٤?"),
            ("What does it say on page ½?", "What does it say on page ¼?"),
        ] {
            check(a, b, Likeness::Other);
        }
        check("What are two hundred and five minus 1,000?", "What are 205 minus 1000?", Likeness::Same);
        check("Which one is better?", "Which is better?", Likeness::Same);
        check("Who was the 1st king?", "Who was the first king?", Likeness::Same);
    }

    #[test]
    fn negations_and_opposites_must_be_equal() {
        for (a, b) in [
            ("How do I enable X?", "How can I disable X?"),
            ("Why does my code compile?", "Why doesn't my code compile?"),
            ("What can I eat with gout?", "What can't I eat with gout?"),
            ("Is it legal to do this?", "Is doing this illegal?"),
            ("How do I turn on the light?", "How can I turn the light off?"),
            ("What should I eat before the race?", "After the race, what should I eat?"),
            ("What is the most expensive flight?", "Which flight is the least expensive?"),
            ("What are the advantages of that?", "What disadvantages does that have?"),
            ("Should I do it with salt?", "Should I do it without salt?"),
            ("Should I always do it?", "Should I never do it?"),
            ("How do I lock the door?", "How can I unlock the door?"),
        ] {
            check(a, b, Likeness::Other);
        }
    }

    #[test]
    fn names_must_be_equal_in_order() {
        for (a, b) in [
            ("Where is Paris?", "Where is London?"),
            ("Paris: what is the weather?", "London: what is the weather?"),
            ("How do I get from Berlin to Munich?", "How can I get to Berlin from Munich?"),
            ("Is python faster than rust?", "Is rust faster than python?"),
            ("Can a wolf beat a bear?", "Can a bear beat a wolf?"),
            ("What does read_line do?", "What does read_lines do?"),
            ("What is ABC-1?", "What is ABC-2?"),
            ("How do I use C?", "How do I use C++?"),
            ("How do I use C#?", "How do I use C++?"),
            ("What is in /etc/hosts?", "What is in /etc/passwd?"),
            ("What is on Monday?", "What is on Tuesday?"),
            ("what is usually open in may", "what is usually open in march"),
            ("What is Müller's first name?", "What is Möller's first name?"),
            ("What is Adams's job?", "What is Adam's job?"),
            ("How large is Mexico?", "How large is Mexico City?"),
        ] {
            check(a, b, Likeness::Other);
        }
    }

    #[test]
    fn what_is_quoted_or_to_be_worked_on_must_be_equal() {
        for (a, b) in [
            ("What does \"break the ice\" mean?", "What does \"break a leg\" mean?"),
            ("What does 'ci' do?", "What does 'co' do?"),
            ("What do “ci” and “co” do?", "What do “co” and “ci” do?"),
            ("What does `a b` do?", "What does `a  b c` do?"),
            ("Translate this: see you", "Translate this: see them"),
            ("Explain this\n\nfn a() {}", "Explain this\n\nfn b() {}"),
        ] {
            check(a, b, Likeness::Other);
        }
        check(
            "Translate 'good morning' to French.",
            "Please translate 'good morning' into French.",
            Likeness::Same,
        );
    }

    #[test]
    fn questions_and_tasks_must_be_of_one_kind() {
        for (a, b) in [
            ("When did the Titanic sink?", "Why did the Titanic sink?"),
            ("Who invented the telephone?", "When was the telephone invented?"),
            ("Do cats purr?", "Why do cats purr?"),
            ("Summarise this story.", "Translate this story."),
            ("Write a poem about it.", "Write a story about it."),
            ("What is photosynthesis?", "How does photosynthesis work?"),
        ] {
            check(a, b, Likeness::Other);
        }
        check("In what year did the Titanic sink?", "When did the Titanic sink?", Likeness::Same);
        check("What is the reason cats purr?", "Why do cats purr?", Likeness::Same);
        check("How long does it take?", "How much time does it take?", Likeness::Same);
    }

    #[test]
    fn one_word_more_asks_for_a_better_likeness_and_another_word_in_its_place_is_another_text() {
        check("How do I fry rice?", "How do I fry brown rice?", Likeness::Other);
        check("How do I fry rice?", "What is the best way to fry brown rice?", Likeness::Near);
        check(
            "What are symptoms of flu in adults?",
            "What are symptoms of flu in children?",
            Likeness::Other,
        );
        check("Who wrote Hamlet?", "Who is the author of Hamlet?", Likeness::Other);
        let long = |word: &str| {
            format!(
                "My landlord raised the rent for my {word} and sent a short notice by letter, what should a careful tenant do about the money"
            )
        };
        check(&long("flat"), &format!("{} here?", long("shop")), Likeness::Other);
    }

    #[test]
    fn other_languages_are_compared_word_by_word() {
        check("Wie aktiviere ich X?", "Wie deaktiviere ich X?", Likeness::Other);
        check(
            "Was ist die Hauptstadt von Frankreich?",
            "was ist die Hauptstadt von Frankreich",
            Likeness::Same,
        );
        check("Was ist die Hauptstadt?", "Die Hauptstadt was ist?", Likeness::Other);
        check("What is the capital of France?", "Quelle est la capitale de la France ?", Likeness::Other);
        check("フランスの首都は?", "ドイツの首都は?", Likeness::Other);
        check("", "", Likeness::Same);
    }
}
