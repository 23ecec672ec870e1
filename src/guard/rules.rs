//! What the scan looks for in a text: credentials, personal data, and attempts to talk a model out of its instructions.
//!
//! Every rule looks a bounded way ahead from one byte, so a text costs time in proportion to its length, whatever is in
//! it. That is why these are functions rather than patterns.

/// What kind of thing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    Secret,
    /// Personal data.
    Pii,
    Injection,
}

/// How bad it is that it was found; only the highest is ever a reason to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Low,
    Medium,
    High,
}

/// One rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    pub name: &'static str,
    pub category: Category,
    pub severity: Severity,
}

impl Category {
    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Category::Secret => "secret",
            Category::Pii => "pii",
            Category::Injection => "injection",
        }
    }
}

impl Severity {
    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Low => "low",
            Severity::Medium => "medium",
            Severity::High => "high",
        }
    }
}

const fn secret(name: &'static str, severity: Severity) -> Rule {
    Rule { name, category: Category::Secret, severity }
}

const fn pii(name: &'static str, severity: Severity) -> Rule {
    Rule { name, category: Category::Pii, severity }
}

const fn injection(name: &'static str, severity: Severity) -> Rule {
    Rule { name, category: Category::Injection, severity }
}

/// A credential that shows what it is by how it begins.
struct Token {
    rule: Rule,
    /// What it may begin with.
    starts: &'static [&'static str],
    is_part: fn(u8) -> bool,
    /// Characters after the start, at least.
    min: usize,
}

/// Tokens in the order in which they are tried: the narrower start comes first.
static TOKENS: [Token; 9] = [
    Token {
        rule: secret("anthropic-key", Severity::High),
        starts: &["sk-ant-"],
        is_part: is_key_byte,
        min: 20,
    },
    Token { rule: secret("openai-key", Severity::High), starts: &["sk-"], is_part: is_key_byte, min: 20 },
    Token { rule: secret("groq-key", Severity::High), starts: &["gsk_"], is_part: is_alnum, min: 20 },
    Token { rule: secret("google-key", Severity::High), starts: &["AIza"], is_part: is_key_byte, min: 30 },
    Token {
        rule: secret("github-token", Severity::High),
        starts: &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        is_part: is_alnum,
        min: 30,
    },
    Token { rule: secret("huggingface-token", Severity::High), starts: &["hf_"], is_part: is_alnum, min: 30 },
    Token {
        rule: secret("aws-access-key", Severity::High),
        starts: &["AKIA", "ASIA"],
        is_part: is_upper_alnum,
        min: 16,
    },
    Token {
        rule: secret("slack-token", Severity::High),
        starts: &["xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-"],
        is_part: is_key_byte,
        min: 10,
    },
    Token { rule: JWT, starts: &["eyJ"], is_part: is_key_byte, min: JWT_PART_MIN - 3 },
];

const JWT: Rule = secret("jwt", Severity::Medium);
static PRIVATE_KEY: Rule = secret("private-key-block", Severity::High);
static BEARER: Rule = secret("bearer-header", Severity::Medium);
static EMAIL: Rule = pii("email", Severity::Low);
static CARD: Rule = pii("credit-card", Severity::High);
static SSN: Rule = pii("us-ssn", Severity::High);
static IBAN: Rule = pii("iban", Severity::Medium);
static ROLE_MARKER: Rule = injection("role-marker", Severity::Medium);

/// How the block of a private key begins, and a header line that carries a token.
const BEGIN: &str = "-----BEGIN ";
const AUTHORIZATION: &str = "authorization";
/// Characters of each part of a JWT, at least.
const JWT_PART_MIN: usize = 10;
/// Longest credential that is followed to its end; what is longer is as bad.
const TOKEN_BYTES_MAX: usize = 4_096;

/// A phrase of words, with space between them; an empty alternative may be missing.
struct Phrase {
    rule: Rule,
    words: &'static [&'static [&'static str]],
    /// With which letters it may begin, which rules it out for most words of a text.
    letters: u32,
}

const fn phrase_of(rule: Rule, words: &'static [&'static [&'static str]]) -> Phrase {
    let (first, mut letters, mut at) = (words[0], 0, 0);
    while at < first.len() {
        letters |= letter(first[at].as_bytes()[0]);
        at += 1;
    }
    Phrase { rule, words, letters }
}

/// A bit for each letter of the alphabet, in whatever case.
const fn letter(byte: u8) -> u32 {
    1 << (byte.to_ascii_lowercase() - b'a')
}

static PHRASES: [Phrase; 4] = [
    phrase_of(
        injection("ignore-instructions", Severity::Medium),
        &[
            &["ignore"],
            &["all", ""],
            &["of", ""],
            &["the", "your", "my", ""],
            &["previous", "prior", "above", "earlier"],
            &["instructions", "instruction", "prompts", "prompt", "rules"],
        ],
    ),
    phrase_of(
        injection("disregard-instructions", Severity::Medium),
        &[
            &["disregard"],
            &["all", ""],
            &["of", ""],
            &["the", "your", "my", ""],
            &["previous", "prior", "above"],
            &["*"],
        ],
    ),
    phrase_of(
        injection("reveal-system-prompt", Severity::Medium),
        &[
            &["reveal", "print", "repeat", "show", "output"],
            &["me", "out", ""],
            &["your", "the"],
            &["system", "initial", ""],
            &["prompt", "instructions", "rules"],
        ],
    ),
    phrase_of(
        injection("developer-mode", Severity::Low),
        &[&["developer", "dan", "jailbreak", "god"], &["mode"]],
    ),
];

/// Starts of a line that pass for a turn of the conversation.
const ROLE_MARKERS: [&str; 6] =
    ["<|im_start|>", "<|system|>", "[INST]", "### system:", "### assistant:", "<|start_header_id|>"];
/// Spaces before such a marker, or between two words of a phrase, at most.
const SPACES_MAX: usize = 16;

/// The next byte from `at` on at which anything could begin, or the end of the text. Most of a text is the inside of
/// words, which is passed over quickly.
pub fn next_start(text: &[u8], mut at: usize) -> usize {
    let mut inside = at > 0 && is_word_byte(text[at - 1]);
    while let Some(byte) = text.get(at) {
        match CLASSES[usize::from(*byte)] {
            Class::Mark => return at,
            Class::Word if !inside => return at,
            Class::Word => {}
            Class::Space => inside = false,
        }
        at += 1;
    }
    at
}

/// What a byte means for where something can begin.
#[derive(Clone, Copy)]
enum Class {
    /// Part of a word: only its first byte begins anything.
    Word,
    /// Begins something wherever it stands.
    Mark,
    Space,
}

/// The class of every byte.
static CLASSES: [Class; 256] = {
    let mut classes = [Class::Space; 256];
    let mut byte = 0;
    while byte < 256 {
        if is_word_byte(byte as u8) {
            classes[byte] = Class::Word;
        } else if matches!(byte as u8, b'-' | b'<' | b'[' | b'#' | b'@') {
            classes[byte] = Class::Mark;
        }
        byte += 1;
    }
    classes
};

/// For each byte, with which bytes it can begin anything, by their lowest five bits: so a letter counts in both cases.
/// Most words of a text are ruled out by it.
static SECONDS: [u32; 256] = {
    let mut seconds = [0; 256];
    let mut at = 0;
    while at < 26 {
        // An IBAN begins with any two capitals.
        seconds[b'A' as usize + at] = u32::MAX;
        at += 1;
    }
    at = 0;
    while at < 10 {
        seconds[b'0' as usize + at] = u32::MAX;
        at += 1;
    }
    at = 0;
    while at < TOKENS.len() {
        note_all(&mut seconds, TOKENS[at].starts);
        at += 1;
    }
    at = 0;
    while at < PHRASES.len() {
        note_all(&mut seconds, PHRASES[at].words[0]);
        at += 1;
    }
    note_all(&mut seconds, &ROLE_MARKERS);
    note_all(&mut seconds, &[BEGIN, AUTHORIZATION]);
    seconds
};

const fn note_all(seconds: &mut [u32; 256], starts: &[&str]) {
    let mut at = 0;
    while at < starts.len() {
        let start = starts[at].as_bytes();
        seconds[start[0] as usize] |= second(start[1]);
        at += 1;
    }
}

const fn second(byte: u8) -> u32 {
    1 << (byte & 31)
}

/// What is at `at`, where no word is going on, if anything: the rule and where the match ends.
#[inline]
pub fn look(text: &[u8], at: usize) -> Option<(&'static Rule, usize)> {
    let (byte, next) = (*text.get(at)?, *text.get(at + 1)?);
    if SECONDS[usize::from(byte)] & second(next) == 0 { None } else { begun(text, at) }
}

fn begun(text: &[u8], at: usize) -> Option<(&'static Rule, usize)> {
    match *text.get(at)? {
        b'-' => private_key(text, at),
        b'0'..=b'9' => number(text, at),
        b'<' | b'[' | b'#' => role_marker(text, at),
        b'a'..=b'z' | b'A'..=b'Z' => word(text, at),
        _ => None,
    }
}

/// What begins with the word at `at`.
fn word(text: &[u8], at: usize) -> Option<(&'static Rule, usize)> {
    match text.get(at)? {
        b's' | b'g' | b'A' | b'h' | b'x' | b'e' => {
            if let Some(found) = token(text, at) {
                return Some(found);
            }
        }
        _ => {}
    }
    if let Some(found) = phrase(text, at) {
        return Some(found);
    }
    if let Some(end) = bearer(text, at) {
        return Some((&BEARER, end));
    }
    iban(text, at).map(|end| (&IBAN, end))
}

fn token(text: &[u8], at: usize) -> Option<(&'static Rule, usize)> {
    TOKENS.iter().find_map(|token| {
        // All that a token may begin with has the same first byte, so most are ruled out by one look.
        if token.starts[0].as_bytes()[0] != text[at] {
            return None;
        }
        let start = token.starts.iter().find(|start| text[at..].starts_with(start.as_bytes()))?;
        let from = at + start.len();
        let length = run(text, from, token.is_part);
        if length < token.min {
            return None;
        }
        let end = from + length;
        if token.rule == JWT { Some((&token.rule, jwt_rest(text, end)?)) } else { Some((&token.rule, end)) }
    })
}

/// The second and third part of a JWT whose first part ends at `at`.
fn jwt_rest(text: &[u8], at: usize) -> Option<usize> {
    let second = text.get(at..)?.strip_prefix(b".eyJ")?;
    let length = run(second, 0, is_key_byte);
    let third = at + 4 + length;
    if length + 3 < JWT_PART_MIN || text.get(third) != Some(&b'.') {
        return None;
    }
    let length = run(text, third + 1, is_key_byte);
    (length >= JWT_PART_MIN).then_some(third + 1 + length)
}

fn private_key(text: &[u8], at: usize) -> Option<(&'static Rule, usize)> {
    let rest = text[at..].strip_prefix(BEGIN.as_bytes())?;
    ["", "RSA ", "EC ", "DSA ", "OPENSSH ", "PGP ", "ENCRYPTED "].iter().find_map(|kind| {
        let rest = rest.strip_prefix(kind.as_bytes())?;
        let end = ["PRIVATE KEY-----", "PRIVATE KEY BLOCK-----"]
            .iter()
            .find(|end| rest.starts_with(end.as_bytes()))?;
        Some((&PRIVATE_KEY, text.len() - rest.len() + end.len()))
    })
}

/// A header line that carries a token.
fn bearer(text: &[u8], at: usize) -> Option<usize> {
    let after = at + matched(text, at, AUTHORIZATION)?;
    let after = after + spaces(text, after);
    if text.get(after) != Some(&b':') {
        return None;
    }
    let scheme = after + 1 + spaces(text, after + 1);
    let token = scheme + matched(text, scheme, "bearer")?;
    let gap = spaces(text, token);
    let length = run(text, token + gap, |byte| is_key_byte(byte) || b".~+/=".contains(&byte));
    (gap > 0 && length >= 20).then_some(token + gap + length)
}

/// A card number, or a social security number of the United States.
fn number(text: &[u8], at: usize) -> Option<(&'static Rule, usize)> {
    if let Some(end) = ssn(text, at) {
        return Some((&SSN, end));
    }
    card(text, at).map(|end| (&CARD, end))
}

fn ssn(text: &[u8], at: usize) -> Option<usize> {
    let digits = text.get(at..at + 11)?;
    let fits = digits.iter().enumerate().all(|(i, byte)| match i {
        3 | 6 => *byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    let area = &digits[..3];
    let given = area != b"000" && area != b"666" && area[0] != b'9';
    let given = given && &digits[4..6] != b"00" && &digits[7..] != b"0000";
    (fits && given && !continues(text, at + 11)).then_some(at + 11)
}

/// 13 to 19 digits, single spaces or dashes between them, whose last is right by Luhn's rule.
fn card(text: &[u8], at: usize) -> Option<usize> {
    let mut digits = [0u8; 19];
    let (mut count, mut end) = (0, at);
    while let Some(byte) = text.get(end) {
        match byte {
            b'0'..=b'9' if count < digits.len() => {
                digits[count] = byte - b'0';
                count += 1;
            }
            b'0'..=b'9' => return None,
            b' ' | b'-' if text.get(end + 1).is_some_and(u8::is_ascii_digit) => {}
            _ => break,
        }
        end += 1;
    }
    let digits = &digits[..count];
    let sum: u32 = digits.iter().rev().enumerate().map(|(i, digit)| luhn(i, u32::from(*digit))).sum();
    // A row of one digit passes Luhn's rule when it is zeros, and is no card.
    let fits = count >= 13 && sum % 10 == 0 && digits.iter().any(|digit| *digit != digits[0]);
    (fits && !continues(text, end)).then_some(end)
}

fn luhn(place: usize, digit: u32) -> u32 {
    match place % 2 {
        0 => digit,
        _ if digit > 4 => digit * 2 - 9,
        _ => digit * 2,
    }
}

/// Two letters, two digits, and 11 to 30 more capitals and digits, as one word.
fn iban(text: &[u8], at: usize) -> Option<usize> {
    let head = text.get(at..at + 4)?;
    let fits = head[..2].iter().all(u8::is_ascii_uppercase) && head[2..].iter().all(u8::is_ascii_digit);
    let length = if fits { run(text, at + 4, is_upper_alnum) } else { 0 };
    let end = at + 4 + length;
    ((11..=30).contains(&length) && !continues(text, end)).then_some(end)
}

fn role_marker(text: &[u8], at: usize) -> Option<(&'static Rule, usize)> {
    let length = ROLE_MARKERS.iter().find_map(|marker| matched(text, at, marker))?;
    let mut start = at;
    while start > 0 && at - start < SPACES_MAX && matches!(text[start - 1], b' ' | b'\t') {
        start -= 1;
    }
    let begins = start == 0 || matches!(text[start - 1], b'\n' | b'\r');
    begins.then_some((&ROLE_MARKER, at + length))
}

fn phrase(text: &[u8], at: usize) -> Option<(&'static Rule, usize)> {
    let letter = letter(text[at]);
    let mut possible = PHRASES.iter().filter(|phrase| phrase.letters & letter != 0);
    possible.find_map(|phrase| Some((&phrase.rule, phrase_end(text, at, phrase.words)?)))
}

/// Where the phrase ends that begins at `at`.
fn phrase_end(text: &[u8], at: usize, words: &[&[&str]]) -> Option<usize> {
    let mut end = at;
    for (i, alternatives) in words.iter().enumerate() {
        let gap = if i == 0 { 0 } else { spaces(text, end) };
        let from = end + gap;
        let found = alternatives.iter().find_map(|word| match *word {
            "" => Some(None),
            _ if i > 0 && gap == 0 => None,
            "*" => Some(Some(run(text, from, is_word_byte))).filter(|length| *length > Some(0)),
            word => matched(text, from, word).filter(|length| !continues(text, from + length)).map(Some),
        })?;
        end = found.map_or(end, |length| from + length);
    }
    Some(end)
}

/// An address whose `@` is at `at`: where it begins and ends.
pub fn email(text: &[u8], at: usize) -> Option<(&'static Rule, usize, usize)> {
    let is_local = |byte: u8| byte.is_ascii_alphanumeric() || b"._%+-".contains(&byte);
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let start = text[..at].iter().rev().take(LOCAL_BYTES_MAX).take_while(|byte| is_local(**byte)).count();
    let host = text[at + 1..].iter().take(HOST_BYTES_MAX).take_while(|byte| is_host(**byte)).count();
    let name = text[at + 1..at + 1 + host].trim_ascii_end();
    let name = name.strip_suffix(b".").unwrap_or(name);
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    let top = &name[dot + 1..];
    let fits = start > 0 && dot > 0 && top.len() >= 2 && top.iter().all(u8::is_ascii_alphabetic);
    fits.then_some((&EMAIL, at - start, at + 1 + name.len()))
}

/// Bytes of each side of an address, as RFC 5321 (4.5.3.1) limits them.
const LOCAL_BYTES_MAX: usize = 64;
const HOST_BYTES_MAX: usize = 255;

/// Bytes from `at` on that are `is_part`, as far as they are followed.
fn run(text: &[u8], at: usize, is_part: impl Fn(u8) -> bool) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    rest.iter().take(TOKEN_BYTES_MAX).take_while(|byte| is_part(**byte)).count()
}

/// Space between two words.
fn spaces(text: &[u8], at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    rest.iter().take(SPACES_MAX).take_while(|byte| byte.is_ascii_whitespace()).count()
}

/// The length of `word` if it stands at `at`, in whatever case.
fn matched(text: &[u8], at: usize, word: &str) -> Option<usize> {
    text.get(at..at + word.len())?.eq_ignore_ascii_case(word.as_bytes()).then_some(word.len())
}

/// Whether a word goes on at `at`.
fn continues(text: &[u8], at: usize) -> bool {
    text.get(at).is_some_and(|byte| is_word_byte(*byte))
}

const fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_alnum(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn is_upper_alnum(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

/// What keys are made of.
fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_bytes_rule_out_nothing_that_is_there() {
        let mut texts: Vec<String> = ["4111 1111 1111 1111", "078-05-1120", "DE89370400440532013000"]
            .into_iter()
            .chain(["-----BEGIN PRIVATE KEY-----", "Authorization: Bearer abcdefghijklmnopqrstuvwxyz"])
            .chain(ROLE_MARKERS)
            .map(str::to_owned)
            .collect();
        for start in TOKENS.iter().filter(|token| token.rule != JWT).flat_map(|token| token.starts) {
            texts.push(format!("{start}{}", "Z9".repeat(20)));
        }
        texts.push("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM".to_owned());
        for phrase in &PHRASES {
            let rest: Vec<&str> = phrase.words[1..].iter().map(|words| words[0]).collect();
            texts.extend(phrase.words[0].iter().map(|word| format!("{word} {}", rest.join(" "))));
        }
        let mut found = 0;
        for text in texts.iter().flat_map(|text| [text.clone(), text.to_lowercase(), text.to_uppercase()]) {
            assert_eq!(look(text.as_bytes(), 0), begun(text.as_bytes(), 0), "{text}");
            found += usize::from(look(text.as_bytes(), 0).is_some());
        }
        assert!(found >= texts.len(), "{found}");
    }
}
