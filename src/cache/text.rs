//! Reads a question word by word, for the semantic cache: what is grammar, what carries meaning, what must
//! not differ at all. Pure.
use super::lexicon::{COUNTING, Class, Lexicon};

/// A text, read once.
#[derive(Debug, Default)]
pub struct Text {
    pub(super) words: Vec<Word>,
    /// What stands between quotation marks.
    pub(super) quoted: Vec<String>,
    /// What is to be worked on: everything behind a colon or the first line.
    pub(super) payload: String,
    /// Mathematical signs.
    pub(super) signs: String,
    pub(super) asks: Asks,
    /// Whether a word was met that hardly any other language has.
    pub(super) english: bool,
}

#[derive(Debug)]
pub(super) struct Word {
    /// In lower case, without a possessive ending.
    pub plain: String,
    /// What it stands for: its stem, or the first word of its group.
    pub meaning: String,
    pub kind: Kind,
    /// Whether it must stand in the other text letter by letter.
    pub name: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A word of grammar.
    Function,
    /// A word that could be left out.
    Filler,
    Content,
    /// A word that must be met in the other text, too.
    Strict(Class),
}

/// What kind of answer is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Asks {
    /// A thing; also whatever is told to be done.
    #[default]
    What,
    How,
    When,
    Where,
    Who,
    Why,
    Whether,
}

impl Text {
    /// Reads a text.
    pub fn read(text: &str) -> Text {
        let straight: String = text.trim().chars().map(straightened).collect();
        let (head, payload) = parted(&straight);
        let mut read =
            Text { payload: payload.split_whitespace().collect::<Vec<_>>().join(" "), ..Text::default() };
        let head = read.take_quoted(head);
        read.signs = signs(&head);
        let mut starts = true;
        for token in head.split_whitespace() {
            // A comma between digits belongs to a number.
            let list = !token.contains(|c: char| c.is_ascii_digit());
            for part in token.split(|c: char| ";()[]{}*=<>×÷^±√".contains(c) || (list && c == ',')) {
                read.take(part, starts);
                starts = false;
            }
            starts = token.ends_with(['.', '?', '!']);
        }
        read.join_numbers();
        let lexicon = Lexicon::get();
        let asks_whether = read.words.first().is_some_and(|word| AUXILIARIES.contains(&word.plain.as_str()));
        read.english =
            asks_whether || read.words.iter().any(|word| lexicon.english.contains(word.plain.as_str()));
        read.asks = read.find_asks();
        read
    }

    /// Keeps what is quoted, and returns the rest.
    fn take_quoted(&mut self, head: &str) -> String {
        let mut rest = String::with_capacity(head.len());
        let mut before = ' ';
        let mut left = head;
        while let Some(mark) = left.chars().next() {
            let inner = &left[mark.len_utf8()..];
            // An apostrophe opens a quotation only at the beginning of a word, and closes it only at the end of one.
            let opens = matches!(mark, '"' | '`') || (mark == '\'' && !before.is_alphanumeric());
            let closes = |at: usize| {
                let after = inner[at + mark.len_utf8()..].chars().next();
                mark != '\'' || after.is_none_or(|after| !after.is_alphanumeric())
            };
            let end = inner.match_indices(mark).map(|(at, _)| at).find(|at| *at > 0 && closes(*at));
            match end.filter(|_| opens) {
                Some(end) => {
                    self.quoted.push(inner[..end].trim().to_owned());
                    left = &inner[end + mark.len_utf8()..];
                    rest.push(' ');
                    before = ' ';
                }
                None => {
                    rest.push(mark);
                    before = mark;
                    left = inner;
                }
            }
        }
        rest
    }

    /// Takes one token without white space.
    fn take(&mut self, token: &str, starts: bool) {
        let inner = token.trim_matches(|c: char| {
            !c.is_alphanumeric() && !KEPT_BEFORE.contains(c) && !KEPT_AFTER.contains(c)
        });
        let inner =
            inner.trim_start_matches(['+', '-', '.', '!']).trim_end_matches(['-', '.', '?', '!', ':', '/']);
        if !inner.contains(char::is_alphanumeric) {
            return;
        }
        let lettered = |part: &str| part.chars().all(char::is_alphabetic);
        let compound =
            inner.split(['-', '/']).all(|part| lettered(part.trim_end_matches("'s")) && !part.is_empty());
        for (at, part) in inner.split(|c: char| compound && "-/".contains(c)).enumerate() {
            self.take_word(part, starts && at == 0);
        }
    }

    fn take_word(&mut self, written: &str, starts: bool) {
        let lower = written.to_lowercase();
        if self.take_number(&lower) {
            return;
        }
        let (base, ending) = contraction(&lower);
        if let Some(ending) = ending {
            self.push(base, &written[..base.len().min(written.len())], starts);
            return self.push(ending, ending, false);
        }
        self.push(base, written, starts);
    }

    /// A token that begins with a digit, or with a sign of money and a digit.
    fn take_number(&mut self, lower: &str) -> bool {
        let money = lower.chars().next().filter(|c| "$€£¥".contains(*c));
        let rest = &lower[money.map_or(0, char::len_utf8)..];
        let inner = |c: char| c.is_ascii_digit() || ".,:/-".contains(c);
        let end = rest.find(|c| !inner(c)).unwrap_or(rest.len());
        let end = rest[..end].trim_end_matches(['.', ',', ':', '/', '-']).len();
        let (digits, suffix) = rest.split_at(end);
        if !digits.starts_with(|c: char| c.is_ascii_digit()) {
            return false;
        }
        let unit = |text: &str| match Lexicon::get().strict.get(text) {
            Some((Class::Unit, unit)) => Some(*unit),
            _ => None,
        };
        let number = match suffix {
            "st" | "nd" | "rd" | "th" => format!("{digits}."),
            _ => plain_number(digits),
        };
        let of_suffix = unit(suffix);
        if !matches!(suffix, "" | "st" | "nd" | "rd" | "th") && of_suffix.is_none() {
            // Such as `4x4` or `2fa`.
            return false;
        }
        self.word(number.clone(), number, Kind::Strict(Class::Number));
        let sign = money.map(String::from);
        for unit in sign.as_deref().and_then(unit).into_iter().chain(of_suffix) {
            self.word(unit.to_owned(), unit.to_owned(), Kind::Strict(Class::Unit));
        }
        true
    }

    fn word(&mut self, plain: String, meaning: String, kind: Kind) {
        self.words.push(Word { plain, meaning, kind, name: false });
    }

    /// Takes a word in lower case, as it was written.
    fn push(&mut self, lower: &str, written: &str, starts: bool) {
        let lexicon = Lexicon::get();
        let stemmed = stem(lower);
        let kind = self.kind(lower, written, starts);
        let meaning = match (kind, lexicon.strict.get(lower)) {
            (Kind::Strict(Class::Number), _) => ordinal(lower),
            (Kind::Strict(_), Some((_, first))) => (*first).to_owned(),
            _ => {
                let same = &lexicon.same;
                let first = same.get(lower).or_else(|| same.get(stemmed.as_str()));
                first.map_or(stemmed, |first| stem(first))
            }
        };
        let known = lexicon.same.contains_key(lower) || lexicon.english.contains(lower);
        let carries = matches!(kind, Kind::Content);
        let capital = written.starts_with(char::is_uppercase) && !(starts && known);
        let name = (carries && capital) || (kind != Kind::Function && is_identifier(written));
        self.words.push(Word { plain: lower.to_owned(), meaning, kind, name });
    }

    fn kind(&self, lower: &str, written: &str, starts: bool) -> Kind {
        let lexicon = Lexicon::get();
        let before = self.words.last();
        let plain_before = before.map_or("", |word| word.plain.as_str());
        let after_number = before.is_some_and(|word| word.kind == Kind::Strict(Class::Number));
        if lower == "one" && PRONOUN_BEFORE.contains(&plain_before) {
            return Kind::Filler;
        }
        if lexicon.numbers.contains_key(lower) || COUNTING.contains(&lower) {
            return Kind::Strict(Class::Number);
        }
        let capital = written.starts_with(char::is_uppercase);
        if matches!(lower, "may" | "march") && ((capital && !starts) || MONTH_BEFORE.contains(&plain_before))
        {
            return Kind::Strict(Class::Date);
        }
        match lexicon.strict.get(lower) {
            // Short names of units, and of languages, are often something else.
            Some((Class::Unit, _)) if lower.len() <= 3 && !after_number => {}
            Some((Class::Language, _))
                if lower.len() <= 2 && !capital && lower.chars().all(char::is_alphabetic) => {}
            Some((class, _)) => return Kind::Strict(*class),
            None => {}
        }
        if lexicon.function.contains(lower) {
            Kind::Function
        } else if lexicon.filler.contains(lower) && (starts || !capital) {
            // But for Mexico City.
            Kind::Filler
        } else {
            Kind::Content
        }
    }

    /// Makes one number of `two hundred and five`.
    fn join_numbers(&mut self) {
        let mut joined: Vec<Word> = Vec::with_capacity(self.words.len());
        let mut words = std::mem::take(&mut self.words).into_iter().peekable();
        while let Some(word) = words.next() {
            let Some(mut next) = value(&word) else {
                joined.push(word);
                continue;
            };
            let (mut total, mut group) = (0_u64, 0_u64);
            loop {
                match next {
                    100 => group = group.max(1).saturating_mul(100),
                    1_000.. => {
                        total = total.saturating_add(group.max(1).saturating_mul(next));
                        group = 0;
                    }
                    _ => group = group.saturating_add(next),
                }
                // After `twenty` come units, after `hundred` anything below, and a magnitude after all of them.
                let last = next.min(100);
                if last == 100 && words.peek().is_some_and(|word| word.plain == "and") {
                    words.next();
                }
                let goes_on = |value: &u64| *value >= 100 || (last >= 20 && *value < last);
                match words.peek().and_then(value).filter(goes_on) {
                    Some(value) => next = value,
                    None => break,
                }
                words.next();
            }
            let number = total.saturating_add(group).to_string();
            joined.push(Word { plain: number.clone(), meaning: number, ..word });
        }
        self.words = joined;
    }

    /// Finds out what kind of answer is asked for, and takes the words that only say so for grammar.
    fn find_asks(&mut self) -> Asks {
        let plain: Vec<&str> = self.words.iter().map(|word| word.plain.as_str()).collect();
        let follows = |at: usize| plain.get(at + 1).copied().unwrap_or_default();
        let asked = plain.iter().enumerate().find_map(|(at, word)| {
            Some(match *word {
                "what" | "which" if matches!(follows(at), "year" | "date" | "day") => {
                    (Asks::When, Some(at + 1), "")
                }
                "what" | "which" => (Asks::What, None, ""),
                "how" => match MEASURES.iter().find(|(measure, _)| *measure == follows(at)) {
                    Some((_, meaning)) => (Asks::What, Some(at + 1), *meaning),
                    None if follows(at) == "come" => (Asks::Why, Some(at + 1), ""),
                    None => (Asks::How, None, ""),
                },
                "when" => (Asks::When, None, ""),
                "where" => (Asks::Where, None, ""),
                "who" | "whom" | "whose" => (Asks::Who, None, ""),
                "why" => (Asks::Why, None, ""),
                _ => return None,
            })
        });
        let begins = |words: &[&str]| plain.first().is_some_and(|first| words.contains(first));
        let request = begins(&["can", "could", "would", "will"]) && plain.get(1) == Some(&"you");
        let (asks, measure, meaning) = match asked {
            None if begins(&AUXILIARIES) && !request => return Asks::Whether,
            None => (Asks::What, None, ""),
            Some(asked) => asked,
        };
        let holds = |words: &[&str]| plain.iter().position(|word| words.contains(word));
        let (asks, measure) = match (asks, holds(&["reason", "reasons"]), holds(&["way", "ways", "steps"])) {
            (Asks::What, Some(at), _) => (Asks::Why, Some(at)),
            (Asks::What, None, Some(at)) => (Asks::How, Some(at)),
            _ => (asks, measure),
        };
        // `Explain how` asks no more than `how`.
        let explains = asked.and_then(|_| holds(&["explain", "describe", "know"]));
        if let Some(word) = explains.and_then(|at| self.words.get_mut(at)) {
            word.kind = Kind::Function;
        }
        if let Some(word) = measure.and_then(|at| self.words.get_mut(at)) {
            word.kind = if meaning.is_empty() { Kind::Function } else { Kind::Content };
            word.meaning = stem(meaning);
        }
        asks
    }
}

/// Signs that may begin a word, and such as may end one.
const KEPT_BEFORE: &str = "#$€£¥/@";
const KEPT_AFTER: &str = "#+%°";

/// Words after which `one` is no number.
const PRONOUN_BEFORE: [&str; 9] = ["which", "the", "this", "that", "any", "every", "each", "another", "no"];
/// Words after which `may` and `march` are months.
const MONTH_BEFORE: [&str; 9] = ["in", "of", "since", "until", "last", "next", "during", "early", "late"];

/// `how long` asks for a time, and so on.
const MEASURES: [(&str, &str); 12] = [
    ("long", "time"),
    ("far", "distance"),
    ("old", "age"),
    ("tall", "height"),
    ("high", "height"),
    ("big", "size"),
    ("large", "size"),
    ("often", "frequency"),
    ("fast", "speed"),
    ("heavy", "weight"),
    ("much", ""),
    ("many", ""),
];

const AUXILIARIES: [&str; 20] = [
    "is", "are", "was", "were", "am", "do", "does", "did", "can", "could", "should", "would", "will",
    "shall", "may", "must", "has", "have", "had", "might",
];

/// A quotation mark of books as that of keyboards.
fn straightened(c: char) -> char {
    match c {
        '“' | '”' | '„' | '«' | '»' => '"',
        '‘' | '’' | '‚' => '\'',
        '−' | '–' => '-',
        c => c,
    }
}

/// What is asked, and what it is asked about.
fn parted(text: &str) -> (&str, &str) {
    let line = text.find('\n').map(|at| (at, 1));
    let colon = text.match_indices(':').find(|(at, _)| text[at + 1..].starts_with(char::is_whitespace));
    let colon = colon.map(|(at, _)| (at, 1));
    match [line, colon].into_iter().flatten().min() {
        Some((at, length)) => (&text[..at], &text[at + length..]),
        None => (text, ""),
    }
}

/// The signs of mathematics; a dash and a slash are ones between numbers only.
fn signs(head: &str) -> String {
    let mut signs = String::new();
    let chars: Vec<char> = head.chars().filter(|c| !c.is_whitespace()).collect();
    for (at, c) in chars.iter().enumerate() {
        let digit = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(char::is_ascii_digit);
        let between = digit(at.checked_sub(1)) && digit(Some(at + 1));
        match c {
            '*' | '×' => signs.push('*'),
            '^' | '=' | '<' | '>' | '±' | '÷' | '√' | '~' | '|' => signs.push(*c),
            '+' | '-' | '/' if between => signs.push(*c),
            _ => {}
        }
    }
    signs
}

/// A number as one writes it: no commas between thousands, no zeros at the end of a fraction.
fn plain_number(digits: &str) -> String {
    let groups: Vec<&str> = digits.split(',').collect();
    let whole = groups.last().is_some_and(|last| last.split('.').next().is_some_and(|last| last.len() == 3));
    let thousands =
        groups.len() > 1 && whole && groups[1..groups.len() - 1].iter().all(|group| group.len() == 3);
    let number = if thousands { groups.concat() } else { digits.to_owned() };
    match number.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|digit| digit.is_ascii_digit()) => {
            let fraction = fraction.trim_end_matches('0');
            if fraction.is_empty() { whole.to_owned() } else { format!("{whole}.{fraction}") }
        }
        _ => number,
    }
}

/// The value of a number in words.
fn value(word: &Word) -> Option<u64> {
    let is_number = word.kind == Kind::Strict(Class::Number);
    Lexicon::get().numbers.get(word.plain.as_str()).copied().filter(|_| is_number)
}

/// `first` as `1.`, which is also what `1st` is.
fn ordinal(word: &str) -> String {
    let small = COUNTING.iter().take(12).position(|known| *known == word);
    small.map_or_else(|| word.to_owned(), |at| format!("{}.", at + 1))
}

/// A word without what was drawn together with it.
fn contraction(lower: &str) -> (&str, Option<&'static str>) {
    match lower {
        "can't" => return ("can", Some("not")),
        "won't" => return ("will", Some("not")),
        "cannot" => return ("can", Some("not")),
        "let's" => return ("let", Some("us")),
        _ => {}
    }
    if let Some(base) = lower.strip_suffix("n't") {
        return (base, Some("not"));
    }
    for (ending, word) in [("'re", "are"), ("'ve", "have"), ("'ll", "will"), ("'d", "would"), ("'m", "am")] {
        if let Some(base) = lower.strip_suffix(ending) {
            return (base, Some(word));
        }
    }
    match lower.strip_suffix("'s") {
        Some(base) if IS_AFTER.contains(&base) => (base, Some("is")),
        Some(base) => (base, None),
        None => (lower.strip_suffix('\'').unwrap_or(lower), None),
    }
}

/// Words after which `'s` is a verb.
const IS_AFTER: [&str; 12] =
    ["what", "who", "where", "when", "how", "why", "it", "that", "there", "here", "he", "she"];

/// Whether a word is written as names of things are: `read_line`, `FAT32`, `C++`, `iPhone`, `Müller`.
fn is_identifier(written: &str) -> bool {
    let inner_capital = written.chars().skip(1).any(char::is_uppercase);
    let other = |c: char| !c.is_ascii_alphabetic() && c != '\'';
    inner_capital || written.contains(other)
}

/// A word without its most common endings.
pub(super) fn stem(word: &str) -> String {
    if !word.is_ascii() || word.len() < 4 || word.ends_with("ss") || word == "news" {
        return word.to_owned();
    }
    let long_enough = |base: &str| base.len() >= 3 && base.contains(['a', 'e', 'i', 'o', 'u', 'y']);
    let base = word.strip_suffix("ly").filter(|base| base.len() >= 4).unwrap_or(word);
    let stemmed = if let Some(base) = base.strip_suffix("ies").filter(|base| base.len() >= 2) {
        format!("{base}y")
    } else if let Some(base) =
        ["ing", "ed"].iter().find_map(|end| base.strip_suffix(end)).filter(|b| long_enough(b))
    {
        base.to_owned()
    } else if base.ends_with("es")
        && ["sses", "xes", "zes", "ches", "shes"].iter().any(|end| base.ends_with(end))
    {
        base[..base.len() - 2].to_owned()
    } else if base.ends_with('s') && !base.ends_with("us") && !base.ends_with("is") && !base.ends_with("ss") {
        base[..base.len() - 1].to_owned()
    } else {
        base.to_owned()
    };
    let bytes = stemmed.as_bytes();
    let doubled = bytes.len() > 3 && bytes[bytes.len() - 1] == bytes[bytes.len() - 2];
    if doubled && stemmed != base && !stemmed.ends_with(['l', 's', 'z']) {
        return stemmed[..stemmed.len() - 1].to_owned();
    }
    let shorter = stemmed.strip_suffix('e').filter(|base| base.len() >= 3);
    shorter.map_or_else(|| stemmed.clone(), str::to_owned)
}
