//! A strict cursor over JSON text, and the few conversions that are needed beside it. It reads every byte once,
//! builds no tree and copies nothing, so that numbers, escapes and unknown members can be passed on as they came.
//! It must not know what the JSON is about.
use std::borrow::Cow;

/// Deepest nesting that is read. Deeper text is refused, whatever it is part of.
pub const DEPTH_MAX: usize = 128;

/// Why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Offset of the offending byte.
    pub at: usize,
    pub what: &'static str,
}

/// Reads JSON text from front to back.
///
/// Containers are entered with [`Cursor::open`] and walked with [`Cursor::member`] or [`Cursor::item`]; every value
/// that is not entered is read with [`Cursor::skip`], which gives its bytes. The text must be valid UTF-8: the cursor
/// looks at the grammar only.
#[derive(Clone)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    /// No value of the container just opened was read yet.
    fresh: bool,
    lone_surrogate: bool,
    name_at: usize,
}

impl<'a> Cursor<'a> {
    /// Begins at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0, depth: 0, fresh: false, lone_surrogate: false, name_at: 0 }
    }

    /// Where the next byte is read from.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Where the opening quote of the name stands that [`Cursor::member`] gave last.
    pub fn name_at(&self) -> usize {
        self.name_at
    }

    /// Whether a `\u` escape read so far is half of a surrogate pair without its other half.
    pub fn saw_lone_surrogate(&self) -> bool {
        self.lone_surrogate
    }

    /// The first byte of the next value, after white space.
    pub fn peek(&mut self) -> Option<u8> {
        self.space();
        self.bytes.get(self.at).copied()
    }

    /// Enters an object or array that begins here with `bracket`; false when the value is something else.
    pub fn open(&mut self, bracket: u8) -> Result<bool, Flaw> {
        if self.peek() != Some(bracket) {
            return Ok(false);
        }
        if self.depth == DEPTH_MAX {
            return Err(self.flaw("nested too deeply"));
        }
        self.at += 1;
        self.depth += 1;
        self.fresh = true;
        Ok(true)
    }

    /// The name of the next member of the object entered last, as written between its quotes; `None` at the end of
    /// the object, which is left thereby. The value comes next and must be read.
    pub fn member(&mut self) -> Result<Option<&'a [u8]>, Flaw> {
        if !self.advance(b'}', "expected `,` or `}`")? {
            return Ok(None);
        }
        self.name_at = self.at;
        self.name().map(Some)
    }

    /// Whether the array entered last has a further item, which must be read then; the end of the array is passed.
    pub fn item(&mut self) -> Result<bool, Flaw> {
        self.advance(b']', "expected `,` or `]`")
    }

    /// Reads one whole value and gives its bytes.
    pub fn skip(&mut self) -> Result<&'a [u8], Flaw> {
        let start = {
            self.space();
            self.at
        };
        self.value()?;
        self.fresh = false;
        Ok(&self.bytes[start..self.at])
    }

    /// Makes sure that nothing but white space is left.
    pub fn end(&mut self) -> Result<(), Flaw> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.flaw("unexpected text after the value")),
        }
    }

    /// Passes a comma or the closing bracket; true when a further element must follow.
    fn advance(&mut self, close: u8, expected: &'static str) -> Result<bool, Flaw> {
        let next = self.peek();
        if next == Some(close) {
            self.at += 1;
            self.depth = self.depth.saturating_sub(1);
            self.fresh = false;
            return Ok(false);
        }
        if !self.fresh {
            if next != Some(b',') {
                return Err(self.flaw(expected));
            }
            self.at += 1;
            self.space();
        }
        self.fresh = false;
        Ok(true)
    }

    fn flaw(&self, what: &'static str) -> Flaw {
        let what = if self.at >= self.bytes.len() { "unexpected end" } else { what };
        Flaw { at: self.at, what }
    }

    #[inline]
    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// A member name with its colon.
    fn name(&mut self) -> Result<&'a [u8], Flaw> {
        if self.bytes.get(self.at) != Some(&b'"') {
            return Err(self.flaw("expected a member name in double quotes"));
        }
        let start = self.at + 1;
        self.string()?;
        let name = &self.bytes[start..self.at - 1];
        if self.peek() != Some(b':') {
            return Err(self.flaw("expected `:`"));
        }
        self.at += 1;
        Ok(name)
    }

    /// One value, nested ones without recursion, so that no input can exhaust the stack.
    fn value(&mut self) -> Result<(), Flaw> {
        // One bit for each level opened here: whether it is an object.
        let mut objects: u128 = 0;
        let mut levels = 0usize;
        loop {
            let opened = match self.peek() {
                Some(b @ (b'{' | b'[')) => Some(b),
                Some(_) => {
                    self.scalar()?;
                    None
                }
                None => return Err(self.flaw("expected a value")),
            };
            if let Some(bracket) = opened {
                if self.depth + levels == DEPTH_MAX {
                    return Err(self.flaw("nested too deeply"));
                }
                self.at += 1;
                levels += 1;
                objects = objects << 1 | u128::from(bracket == b'{');
                let close = if bracket == b'{' { b'}' } else { b']' };
                if self.peek() != Some(close) {
                    if bracket == b'{' {
                        self.name()?;
                    }
                    continue;
                }
                self.at += 1;
                levels -= 1;
                objects >>= 1;
            }
            // A value is complete: close what ends here, or go on to the next element.
            loop {
                if levels == 0 {
                    return Ok(());
                }
                let object = objects & 1 == 1;
                match (self.peek(), object) {
                    (Some(b','), _) => {
                        self.at += 1;
                        if object {
                            self.space();
                            self.name()?;
                        }
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        levels -= 1;
                        objects >>= 1;
                    }
                    (_, true) => return Err(self.flaw("expected `,` or `}`")),
                    (_, false) => return Err(self.flaw("expected `,` or `]`")),
                }
            }
        }
    }

    fn scalar(&mut self) -> Result<(), Flaw> {
        match self.bytes.get(self.at) {
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            _ => Err(self.flaw("expected a value")),
        }
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), Flaw> {
        let rest = &self.bytes[self.at..];
        if !rest.starts_with(word) {
            if word.starts_with(rest) {
                self.at = self.bytes.len();
            }
            return Err(self.flaw("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Flaw> {
        if self.bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        match self.bytes.get(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.flaw("expected a digit")),
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.bytes.get(self.at) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Result<(), Flaw> {
        let start = self.at;
        self.digits();
        if self.at == start { Err(self.flaw("expected a digit")) } else { Ok(()) }
    }

    /// A string with both its quotes.
    fn string(&mut self) -> Result<(), Flaw> {
        self.at += 1;
        loop {
            self.at = plain_run(self.bytes, self.at);
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(self.flaw("raw control character in a string")),
                None => return Err(self.flaw("unterminated string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Flaw> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') => match unicode_escape(&self.bytes[self.at..]) {
                Some(escape) => {
                    self.lone_surrogate |= escape.lone;
                    self.at += escape.length;
                }
                None => {
                    if self.bytes.len() < self.at + 6 {
                        self.at = self.bytes.len();
                    }
                    return Err(self.flaw("bad \\u escape"));
                }
            },
            Some(_) => return Err(self.flaw("bad escape")),
            None => {
                self.at = self.bytes.len();
                return Err(self.flaw("bad escape"));
            }
        }
        Ok(())
    }
}

/// The end of the run of string bytes from `at` on that need no attention: no quote, backslash or control character.
#[inline]
fn plain_run(bytes: &[u8], at: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // Sets the high bit of each byte below `limit`; bits above the first such byte may be wrong, which is why only the
    // lowest is looked at.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGHS;
    let mut rest = bytes.get(at..).unwrap_or_default();
    while let Some((eight, after)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*eight);
        // With this bit flipped the quote stands right behind the control characters.
        let found = below(word ^ (ONES * 0x02), 0x21) | below(word ^ (ONES * u64::from(b'\\')), 1);
        if found != 0 {
            return bytes.len() - rest.len() + (found.trailing_zeros() / 8) as usize;
        }
        rest = after;
    }
    let plain = rest.iter().take_while(|&&b| b >= 0x20 && b != b'"' && b != b'\\').count();
    bytes.len() - rest.len() + plain
}

/// A `\u` escape, or the two that make a surrogate pair.
struct UnicodeEscape {
    character: char,
    /// 6, or 12 for a pair.
    length: usize,
    /// Half a pair: `character` is U+FFFD then.
    lone: bool,
}

/// Reads the escape at the front of `bytes`, which begin with `\u`.
fn unicode_escape(bytes: &[u8]) -> Option<UnicodeEscape> {
    let first = hex4(bytes.get(2..6)?)?;
    if !(0xd800..0xe000).contains(&first) {
        return Some(UnicodeEscape { character: char::from_u32(first)?, length: 6, lone: false });
    }
    let second = match bytes.get(6..12) {
        Some([b'\\', b'u', digits @ ..]) if first < 0xdc00 => hex4(digits),
        _ => None,
    };
    match second {
        Some(low @ 0xdc00..0xe000) => {
            let character = char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (low - 0xdc00))?;
            Some(UnicodeEscape { character, length: 12, lone: false })
        }
        _ => Some(UnicodeEscape { character: char::REPLACEMENT_CHARACTER, length: 6, lone: true }),
    }
}

fn hex4(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, &b| Some(value * 16 + char::from(b).to_digit(16)?))
}

/// Writes U+FFFD over every lone surrogate escape in valid JSON text; both are six bytes long.
pub fn mend_surrogates(json: &mut [u8]) {
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', &json[at..]) {
        at += found;
        match unicode_escape(&json[at..]).filter(|_| json.get(at + 1) == Some(&b'u')) {
            Some(escape) => {
                if escape.lone {
                    json[at + 2..at + 6].copy_from_slice(b"fffd");
                }
                at += escape.length;
            }
            None => at = (at + 2).min(json.len()),
        }
    }
}

/// Whether `bytes` are one JSON value and nothing else.
pub fn is_json(bytes: &[u8]) -> bool {
    let mut cursor = Cursor::new(bytes);
    std::str::from_utf8(bytes).is_ok() && cursor.skip().and_then(|_| cursor.end()).is_ok()
}

/// Whether `inside` may stand between the quotes of a JSON string as it is, without lone surrogates. Of UTF-8 nothing is
/// said.
pub fn is_sound_inside(inside: &[u8]) -> bool {
    let mut cursor = Cursor::new(inside);
    loop {
        cursor.at = plain_run(inside, cursor.at);
        match inside.get(cursor.at) {
            None => return !cursor.lone_surrogate,
            Some(b'\\') if cursor.escape().is_ok() => {}
            Some(_) => return false,
        }
    }
}

/// The text of a JSON string given with its quotes; `None` when the value is no string. A lone surrogate becomes
/// U+FFFD.
pub fn text(raw: &[u8]) -> Option<Cow<'_, str>> {
    match raw {
        [b'"', inner @ .., b'"'] => unescape(inner),
        _ => None,
    }
}

/// Resolves the escapes of what stands between the quotes of a JSON string.
pub fn unescape(inner: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(inner).ok()?;
    if memchr::memchr(b'\\', inner).is_none() {
        return Some(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len());
    decode(text, |piece| out.push_str(piece))?;
    Some(Cow::Owned(out))
}

/// The same as bytes, for a text that was checked before. What cannot be resolved stays as it is.
pub fn resolved(inner: &[u8]) -> Cow<'_, [u8]> {
    match memchr::memchr(b'\\', inner).and_then(|_| unescape(inner)) {
        Some(text) => Cow::Owned(text.into_owned().into_bytes()),
        None => Cow::Borrowed(inner),
    }
}

/// Gives the text of a JSON string piece by piece, given what stands between its quotes; `None` at an escape that is
/// none. A lone surrogate becomes U+FFFD.
pub fn decode(inner: &str, mut take: impl FnMut(&str)) -> Option<()> {
    let mut rest = inner;
    while let Some(backslash) = memchr::memchr(b'\\', rest.as_bytes()) {
        take(&rest[..backslash]);
        rest = &rest[backslash..];
        let (character, length) = match rest.as_bytes().get(1)? {
            b'u' => unicode_escape(rest.as_bytes()).map(|escape| (escape.character, escape.length))?,
            b'b' => ('\u{8}', 2),
            b'f' => ('\u{c}', 2),
            b'n' => ('\n', 2),
            b'r' => ('\r', 2),
            b't' => ('\t', 2),
            &b @ (b'"' | b'\\' | b'/') => (char::from(b), 2),
            _ => return None,
        };
        take(character.encode_utf8(&mut [0; 4]));
        rest = rest.get(length..)?;
    }
    take(rest);
    Some(())
}

/// Whether a member name, as [`Cursor::member`] gives it, spells `name`, with or without escapes.
pub fn is_named(written: &[u8], name: &str) -> bool {
    written == name.as_bytes()
        || (memchr::memchr(b'\\', written).is_some() && unescape(written).is_some_and(|text| text == name))
}

/// Appends `text` as a JSON string.
pub fn quote(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        let end = plain_run(bytes, at);
        out.extend_from_slice(&bytes[at..end]);
        let Some(&special) = bytes.get(end) else { break };
        match special {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', special]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(control >> 4)]);
                out.push(HEX[usize::from(control & 15)]);
            }
        }
        at = end + 1;
    }
    out.push(b'"');
}

/// `text` as a JSON string.
pub fn quoted(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    quote(text, &mut out);
    out
}

/// The largest whole number that a double holds without doubt; what is written with a point or exponent beyond it is
/// not taken for a whole number.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// A number without a fraction, in any spelling (`1000`, `1e3`, `256.0`), and not negative.
pub fn whole(raw: &[u8]) -> Option<u64> {
    if raw.first().is_some_and(u8::is_ascii_digit) && raw.iter().all(u8::is_ascii_digit) {
        return std::str::from_utf8(raw).ok()?.parse().ok();
    }
    let number = number(raw)?;
    (number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number)).then_some(number as u64)
}

/// A number as upstreams count: fractions are dropped; `None` for what cannot be a count.
pub fn count(raw: &[u8]) -> Option<u64> {
    whole(raw).or_else(|| number(raw).filter(|n| (0.0..=EXACT_MAX).contains(n)).map(|n| n as u64))
}

/// A finite number.
pub fn number(raw: &[u8]) -> Option<f64> {
    if !raw.first().is_some_and(|&b| b == b'-' || b.is_ascii_digit()) {
        return None;
    }
    std::str::from_utf8(raw).ok()?.parse::<f64>().ok().filter(|n| n.is_finite())
}

/// The value of the member `name` of an object, the last one if there are several; `None` also when `raw` is no
/// object.
pub fn member<'a>(raw: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut found = None;
    let mut cursor = Cursor::new(raw);
    if !cursor.open(b'{').ok()? {
        return None;
    }
    while let Some(key) = cursor.member().ok()? {
        let value = cursor.skip().ok()?;
        if is_named(key, name) {
            found = Some(value);
        }
    }
    found
}

/// Whether a value says nothing: absent, `null`, an empty string, list or object.
pub fn is_blank(raw: Option<&[u8]>) -> bool {
    match raw {
        None | Some(b"null" | b"\"\"") => true,
        Some([b'[', inner @ .., b']'] | [b'{', inner @ .., b'}']) => {
            inner.iter().all(u8::is_ascii_whitespace)
        }
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flaw(text: &str) -> Option<(usize, &'static str)> {
        let mut cursor = Cursor::new(text.as_bytes());
        cursor.skip().and_then(|_| cursor.end()).err().map(|flaw| (flaw.at, flaw.what))
    }

    #[test]
    fn the_grammar_is_that_of_rfc_8259() {
        for good in [
            "0",
            "-0",
            "1.5e-3",
            "1E+2",
            "true",
            "null",
            "\"\"",
            "[]",
            "{}",
            " [ 1 , [ ] , {\"a\" : [ { } ] } ] ",
            "\"\\u00e9\\n\\/\"",
            "\"\u{7f}é😀\"",
            "{\"a\":1,\"a\":2}",
            "123456789012345678901234567890",
        ] {
            assert_eq!(flaw(good), None, "{good}");
            assert!(serde_json::from_str::<serde::de::IgnoredAny>(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            " ",
            "01",
            "1.",
            ".5",
            "-",
            "1e",
            "+1",
            "tru",
            "nul",
            "NaN",
            "Infinity",
            "'a'",
            "\"a",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12G4\"",
            "\"a\nb\"",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{1:1}",
            "[1}",
            "{\"a\":1]",
            "[",
            "{",
            "{\"a\":1",
            "1 2",
            "[]]",
            "{}{}",
            "// x\n1",
            "\u{feff}1",
            "\"\t\"",
        ] {
            assert!(flaw(bad).is_some(), "{bad}");
            assert!(serde_json::from_str::<serde::de::IgnoredAny>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn flaws_say_where() {
        assert_eq!(flaw("{\"a\":1 \"b\":2}"), Some((7, "expected `,` or `}`")));
        assert_eq!(flaw("[1,2"), Some((4, "unexpected end")));
        assert_eq!(flaw("{} x"), Some((3, "unexpected text after the value")));
        // Whatever is cut off is said to end too early, at its end.
        let whole = r#"{"a":[true,false,null,-1.5e+3,"x\n\u00e9"],"b":{}}"#;
        for cut in 0..whole.len() {
            assert_eq!(flaw(&whole[..cut]).map(|(at, _)| at), Some(cut), "{}", &whole[..cut]);
        }
    }

    #[test]
    fn req_16_depth_is_bounded_without_recursion() {
        let nested = |open: &str, close: &str, n: usize| format!("{}1{}", open.repeat(n), close.repeat(n));
        assert_eq!(flaw(&nested("[", "]", 128)), None);
        assert_eq!(flaw(&nested("[", "]", 129)), Some((128, "nested too deeply")));
        assert_eq!(flaw(&nested("{\"a\":", "}", 128)), None);
        assert_eq!(flaw(&nested("{\"a\":", "}", 129)).map(|f| f.1), Some("nested too deeply"));
        assert_eq!(flaw(&"[".repeat(1_000_000)).map(|f| f.1), Some("nested too deeply"));
    }

    #[test]
    fn containers_are_walked() {
        let mut c = Cursor::new(br#" { "a" : [1, {"b":2} ,"x"], "c":null } "#);
        assert_eq!(c.open(b'['), Ok(false));
        assert_eq!(c.open(b'{'), Ok(true));
        assert_eq!(c.member(), Ok(Some(b"a".as_slice())));
        assert_eq!(c.open(b'['), Ok(true));
        let mut items = Vec::new();
        while c.item().expect("a list") {
            items.push(c.skip().expect("a value"));
        }
        assert_eq!(items, [b"1".as_slice(), br#"{"b":2}"#, br#""x""#]);
        assert_eq!(c.member(), Ok(Some(b"c".as_slice())));
        assert_eq!(c.skip(), Ok(b"null".as_slice()));
        assert_eq!((c.member(), c.end()), (Ok(None), Ok(())));
        for bad in ["{\"a\":[1,]}", "{\"a\":1,}", "{,\"a\":1}", "{\"a\":[,1]}"] {
            assert!(walk(bad).is_err(), "{bad}");
        }
    }

    /// Enters every container instead of skipping it.
    fn walk(text: &str) -> Result<(), Flaw> {
        fn value(c: &mut Cursor<'_>) -> Result<(), Flaw> {
            if c.open(b'{')? {
                while c.member()?.is_some() {
                    value(c)?;
                }
            } else if c.open(b'[')? {
                while c.item()? {
                    value(c)?;
                }
            } else {
                c.skip()?;
            }
            Ok(())
        }
        let mut c = Cursor::new(text.as_bytes());
        value(&mut c)?;
        c.end()
    }

    #[test]
    fn walking_and_skipping_agree() {
        for text in
            ["[[],{}]", "{\"a\":{},\"b\":[[]]}", "[1,{\"a\":[2,3],\"b\":{\"c\":4}},5]", "[{}, {}]", "[[] []]"]
        {
            assert_eq!(walk(text).is_ok(), flaw(text).is_none(), "{text}");
        }
    }

    #[test]
    fn strings_are_decoded() {
        let check = |raw: &str, expected: Option<&str>| {
            assert_eq!(text(raw.as_bytes()).as_deref(), expected, "{raw}")
        };
        check(r#""plain é""#, Some("plain é"));
        check(r#""a\"b\\c\/d\b\f\n\r\t""#, Some("a\"b\\c/d\u{8}\u{c}\n\r\t"));
        check(r#""\u00e9\ud83d\ude00""#, Some("é😀"));
        check(r#""\ud83d!""#, Some("\u{fffd}!"));
        check(r#""\ude00\ud83d\u0041""#, Some("\u{fffd}\u{fffd}A"));
        check("1", None);
        check("\"", None);
    }

    #[test]
    fn escapes_are_resolved_and_what_holds_none_is_lent() {
        let check = |inner: &str, expected: &str, lent: bool| {
            let found = resolved(inner.as_bytes());
            assert_eq!((&*found, matches!(found, Cow::Borrowed(_))), (expected.as_bytes(), lent), "{inner}");
        };
        check("role", "role", true);
        check("", "", true);
        check(r"r\u006fle\n", "role\n", false);
        check(r"r\x", r"r\x", true);
    }

    #[test]
    fn quoting_round_trips() {
        let nasty: String = (0u8..128).map(char::from).chain("é😀\u{2028}".chars()).collect();
        let json = quoted(&nasty);
        assert_eq!(serde_json::from_slice::<String>(&json).expect("valid JSON"), nasty);
        assert_eq!(text(&json).as_deref(), Some(nasty.as_str()));
    }

    #[test]
    fn lone_surrogates_are_mended_in_place() {
        let mut json = br#"["\ud83d\ude00","\ud83dx\\ud83d","\ude00","\ud83d\ud83d\ude00"]"#.to_vec();
        let mut cursor = Cursor::new(&json);
        cursor.skip().expect("the grammar allows them");
        assert!(cursor.saw_lone_surrogate());
        mend_surrogates(&mut json);
        assert_eq!(
            String::from_utf8(json).expect("ASCII"),
            r#"["\ud83d\ude00","\ufffdx\\ud83d","\ufffd","\ufffd\ud83d\ude00"]"#
        );
    }

    #[test]
    fn numbers_by_their_use() {
        let check = |raw: &str, as_whole: Option<u64>, as_count: Option<u64>| {
            assert_eq!((whole(raw.as_bytes()), count(raw.as_bytes())), (as_whole, as_count), "{raw}");
        };
        check("1000", Some(1000), Some(1000));
        check("1e3", Some(1000), Some(1000));
        check("256.0", Some(256), Some(256));
        check("6000.5", None, Some(6000));
        check("18446744073709551615", Some(u64::MAX), Some(u64::MAX));
        for nothing in ["-1", "1e400", "\"256\"", "null", "-0.5", "1e17", "true"] {
            check(nothing, None, None);
        }
    }

    #[test]
    fn every_run_ends_at_the_first_special_byte() {
        for special in [b'"', b'\\', 0, 0x1f] {
            for at in 0..20 {
                let mut bytes = [0xffu8, b'!', b'#', b'[', b']', 0x7f, 0x80, b' '].repeat(3);
                bytes[at] = special;
                for from in 0..=at {
                    assert_eq!(plain_run(&bytes, from), at, "{special} at {at}, from {from}");
                }
            }
        }
    }
}
