//! Changes to a JSON text, noted while it is read and made in one copy. Everything that no change names stays byte for
//! byte; without changes nothing is rebuilt.
use std::ops::Range;

use super::json;

/// The changes. Kept and cleared between texts, so that noting one allocates nothing.
#[derive(Debug, Default)]
pub struct Patch {
    cuts: Vec<Cut>,
    /// The new bytes of all cuts, one after another.
    pool: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Cut {
    from: usize,
    to: usize,
    pool_from: usize,
    pool_to: usize,
}

impl Patch {
    /// Forgets all changes.
    pub fn clear(&mut self) {
        self.cuts.clear();
        self.pool.clear();
    }

    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.cuts.is_empty()
    }

    /// Bytes of all changes so far.
    pub fn len(&self) -> usize {
        self.pool.len()
    }

    /// Puts `bytes` in the place of `span`; an empty span inserts.
    pub fn replace(&mut self, span: Range<usize>, bytes: &[u8]) {
        self.replace_with(span, |pool| pool.extend_from_slice(bytes));
    }

    /// As [`Patch::replace`], with bytes that `write` appends.
    pub fn replace_with(&mut self, span: Range<usize>, write: impl FnOnce(&mut Vec<u8>)) {
        let pool_from = self.pool.len();
        write(&mut self.pool);
        self.cuts.push(Cut { from: span.start, to: span.end, pool_from, pool_to: self.pool.len() });
    }

    /// Appends `source` with the changes made. They may have been noted in any order, but must not overlap.
    pub fn apply(&mut self, source: &[u8], out: &mut Vec<u8>) {
        // The sort is stable: insertions at one place stay in the order they were noted in.
        self.cuts.sort_by_key(|cut| cut.from);
        let mut at = 0;
        for cut in &self.cuts {
            out.extend_from_slice(&source[at..cut.from.max(at)]);
            out.extend_from_slice(&self.pool[cut.pool_from..cut.pool_to]);
            at = cut.to.max(at);
        }
        out.extend_from_slice(&source[at..]);
    }
}

/// Follows the members of one object while they are read, so that some can be removed with their commas and others be
/// added at the end.
#[derive(Debug)]
pub struct Track {
    /// End of the last member that needs a comma after it.
    tail: usize,
    /// Whether any member stays.
    kept: bool,
    /// Start of removed members at the front; they go up to the next name.
    gap: Option<usize>,
}

impl Track {
    /// To be made when the object was just entered; `at` is the place after its bracket.
    pub fn new(at: usize) -> Track {
        Track { tail: at, kept: false, gap: None }
    }

    /// A member begins at `name_at`; to be told of each.
    pub fn begin(&mut self, name_at: usize, patch: &mut Patch) {
        if let Some(from) = self.gap.take() {
            patch.replace(from..name_at, b"");
        }
    }

    /// The member that ends at `end` stays.
    pub fn keep(&mut self, end: usize) {
        self.kept = true;
        self.tail = end;
    }

    /// The member from `name_at` to `end` goes.
    pub fn remove(&mut self, name_at: usize, end: usize, patch: &mut Patch) {
        if self.kept {
            patch.replace(self.tail..end, b"");
            self.tail = end;
        } else {
            self.gap = Some(name_at);
        }
    }

    /// The object's bracket stands at `close`. No member may begin after this, but members may be added.
    pub fn close(&mut self, close: usize, patch: &mut Patch) {
        if let Some(from) = self.gap.take() {
            patch.replace(from..close, b"");
            self.tail = close;
        }
    }

    /// Adds a member at the end, after [`Track::close`].
    pub fn add(&mut self, name: &str, value: &[u8], patch: &mut Patch) {
        let comma = std::mem::replace(&mut self.kept, true);
        patch.replace_with(self.tail..self.tail, |pool| {
            if comma {
                pool.push(b',');
            }
            json::quote(name, pool);
            pool.push(b':');
            pool.extend_from_slice(value);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::Cursor;

    /// Removes the members named `x`, adds `added`, and gives the result.
    fn edit(text: &str, added: &[&str]) -> String {
        let (mut patch, mut cursor) = (Patch::default(), Cursor::new(text.as_bytes()));
        assert_eq!(cursor.open(b'{'), Ok(true));
        let mut track = Track::new(cursor.at());
        while let Some(name) = cursor.member().expect("valid JSON") {
            let name_at = cursor.name_at();
            track.begin(name_at, &mut patch);
            cursor.skip().expect("valid JSON");
            match name {
                b"x" => track.remove(name_at, cursor.at(), &mut patch),
                _ => track.keep(cursor.at()),
            }
        }
        track.close(cursor.at() - 1, &mut patch);
        for name in added {
            track.add(name, b"0", &mut patch);
        }
        let mut out = Vec::new();
        patch.apply(text.as_bytes(), &mut out);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn members_go_with_their_commas_and_come_with_theirs() {
        let check =
            |text: &str, added: &[&str], expected: &str| assert_eq!(edit(text, added), expected, "{text}");
        check(r#"{"a":1}"#, &[], r#"{"a":1}"#);
        check(r#"{"x":1}"#, &[], r#"{}"#);
        check(r#"{ "x":1 , "x":2 }"#, &["n"], r#"{ "n":0}"#);
        check(r#"{"x":1,"a":2}"#, &[], r#"{"a":2}"#);
        check(r#"{"x":1, "x":2, "a":3 }"#, &["n", "m"], r#"{"a":3,"n":0,"m":0 }"#);
        check(r#"{"a":1,"x":2,"b":3}"#, &[], r#"{"a":1,"b":3}"#);
        check(r#"{"a":1, "x":2 , "x":3}"#, &["n"], r#"{"a":1,"n":0}"#);
        check(r#"{"a":1,"x":2,"b":3,"x":4 }"#, &["n"], r#"{"a":1,"b":3,"n":0 }"#);
        check("{}", &["n", "m"], r#"{"n":0,"m":0}"#);
    }

    #[test]
    fn changes_may_be_noted_in_any_order() {
        let mut patch = Patch::default();
        patch.replace(4..5, b"E");
        patch.replace(0..1, b"");
        patch.replace(2..2, b"<");
        patch.replace(2..2, b">");
        let mut out = Vec::new();
        patch.apply(b"abcde", &mut out);
        assert_eq!(out, b"b<>cdE");
    }
}
