//! The form of a stream's last chunk: everything around its text. Nearly all chunks differ from the one before in their
//! text only, and of one that does nothing else has to be read again.
use std::ops::Range;

use super::json;

/// Larger chunks leave no mould: they are rare, and reading them again costs little beside carrying them.
const BYTES_MAX: usize = 4 * 1024;

/// What stands before and behind the text, its quotes included; empty when nothing is known.
#[derive(Clone, Debug, Default)]
pub struct Mould {
    before: Vec<u8>,
    behind: Vec<u8>,
}

impl Mould {
    /// Forgets the form.
    pub fn clear(&mut self) {
        self.before.clear();
    }

    /// Takes the form of `chunk`, whose text is the JSON string at `string`, quotes included.
    pub fn take(&mut self, chunk: &[u8], string: Range<usize>) {
        self.clear();
        let sides = (chunk.get(..string.start + 1), chunk.get(string.end.saturating_sub(1)..));
        if let (Some(before), Some(behind)) = sides
            && chunk.len() <= BYTES_MAX
        {
            self.before.extend_from_slice(before);
            self.behind.clear();
            self.behind.extend_from_slice(behind);
        }
    }

    /// The text of `chunk` as a JSON string with its quotes, if all around it is as it was. It is valid, and not empty.
    pub fn string<'c>(&self, chunk: &'c [u8]) -> Option<&'c [u8]> {
        let rest = chunk.strip_prefix(self.before.as_slice()).filter(|_| !self.before.is_empty())?;
        let text = rest.strip_suffix(self.behind.as_slice())?;
        let sound = !text.is_empty() && json::is_sound_inside(text) && std::str::from_utf8(text).is_ok();
        sound.then(|| &chunk[self.before.len() - 1..self.before.len() + text.len() + 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_of_the_same_form_gives_its_text() {
        let mut mould = Mould::default();
        assert_eq!(mould.string(br#"{"a":"x"}"#), None, "nothing is known");
        mould.take(br#"{"a":"x","b":1}"#, 5..8);
        let text =
            |chunk: &'static str| mould.string(chunk.as_bytes()).map(|raw| std::str::from_utf8(raw).unwrap());
        assert_eq!(text(r#"{"a":"longer","b":1}"#), Some(r#""longer""#));
        assert_eq!(text(r#"{"a":"\n \u00e9 é","b":1}"#), Some(r#""\n \u00e9 é""#));
        for other in [
            r#"{"a":"","b":1}"#,
            r#"{"a":"x","b":2}"#,
            r#"{"A":"x","b":1}"#,
            r#"{"a":"x","a":"y","b":1}"#,
            r#"{"a":"x\","b":1}"#,
            r#"{"a":"\q","b":1}"#,
            r#"{"a":"\ud800","b":1}"#,
            "{\"a\":\"\u{1}\",\"b\":1}",
            r#"{"a":","b":1}"#,
            r#"{"a":"#,
        ] {
            assert_eq!(text(other), None, "{other}");
        }
        assert_eq!(mould.string(b"{\"a\":\"\xff\",\"b\":1}"), None);
        mould.take(br#"["x"]"#, 1..4);
        assert_eq!(mould.string(br#"["y"]"#), Some(br#""y""#.as_slice()), "the last form counts");
        mould.take(&[&br#"["x"]"#[..], &[b' '; BYTES_MAX]].concat(), 1..4);
        assert_eq!(mould.string(br#"["y"]"#), None, "nothing is kept of a large one");
    }
}
