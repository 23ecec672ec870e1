//! What a text is made of, as far as it decides its number of tokens. `context::tokens` turns a tally into tokens.
use std::ops::{AddAssign, Sub};

use super::json;

/// Counts of characters by how tokenizers treat them, and of things that are no text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// One byte in UTF-8: English, code, JSON.
    pub ascii: u64,
    /// Two bytes: accented Latin, Cyrillic, Greek, Hebrew, Arabic.
    pub narrow: u64,
    /// Three bytes: Chinese, Japanese, Korean, the scripts of India and South-East Asia, typographic signs.
    pub wide: u64,
    /// Four bytes: emoji and rare characters.
    pub astral: u64,
    /// Images, sounds and files, whatever their size.
    pub images: u64,
    pub messages: u64,
    /// Tokens that were given as such.
    pub tokens: u64,
}

impl Tally {
    /// Counts plain text.
    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Counts a JSON value: a string as the text between its quotes, where an escape is the character it stands for;
    /// anything else (a tool's schema) as the text that it is.
    pub fn json(&mut self, raw: &[u8]) {
        let mut rest = match raw {
            [b'"', inner @ .., b'"'] => inner,
            _ => raw,
        };
        while let Some(backslash) = memchr::memchr(b'\\', rest) {
            self.bytes(&rest[..backslash]);
            rest = &rest[backslash..];
            let length = match rest.get(1) {
                // D800 to DBFF begin a pair, which is one character in two escapes.
                Some(b'u') => match rest.get(2..8) {
                    Some([b'd' | b'D', b'8'..=b'9' | b'a'..=b'b' | b'A'..=b'B', _, _, b'\\', b'u']) => 12,
                    _ => 6,
                },
                _ => 2,
            };
            let (escape, after) = rest.split_at(length.min(rest.len()));
            match json::unescape(escape) {
                Some(text) => self.bytes(text.as_bytes()),
                None => self.ascii += 1,
            }
            rest = after;
        }
        self.bytes(rest);
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Tally::default()
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if bytes.is_ascii() {
            self.ascii += bytes.len() as u64;
            return;
        }
        for b in bytes {
            match b {
                0..=0x7f => self.ascii += 1,
                0x80..=0xbf => {}
                0xc0..=0xdf => self.narrow += 1,
                0xe0..=0xef => self.wide += 1,
                0xf0..=0xff => self.astral += 1,
            }
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.ascii += other.ascii;
        self.narrow += other.narrow;
        self.wide += other.wide;
        self.astral += other.astral;
        self.images += other.images;
        self.messages += other.messages;
        self.tokens += other.tokens;
    }
}

impl Sub for Tally {
    type Output = Tally;

    /// What was counted since `earlier`, which is an older state of the same tally.
    fn sub(self, earlier: Tally) -> Tally {
        Tally {
            ascii: self.ascii - earlier.ascii,
            narrow: self.narrow - earlier.narrow,
            wide: self.wide - earlier.wide,
            astral: self.astral - earlier.astral,
            images: self.images - earlier.images,
            messages: self.messages - earlier.messages,
            tokens: self.tokens - earlier.tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_counted_by_their_width_escaped_or_not() {
        let check = |inner: &str, ascii, narrow, wide, astral| {
            let mut tally = Tally::default();
            tally.json(format!("\"{inner}\"").as_bytes());
            assert_eq!(tally, Tally { ascii, narrow, wide, astral, ..Tally::default() }, "{inner}");
        };
        check("hello", 5, 0, 0, 0);
        check(r#"a\nb\"\\"#, 5, 0, 0, 0);
        check("aéж漢😀", 1, 2, 1, 1);
        check(r"a\u00e9\u0436\u6f22\ud83d\ude00", 1, 2, 1, 1);
        check(r"\ud842\udfb7", 0, 0, 0, 1);
        check(r"\ud83dx", 1, 0, 1, 0);
        check("", 0, 0, 0, 0);
        check("\\", 1, 0, 0, 0);
    }
}
