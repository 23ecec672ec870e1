//! The tool calls of one streamed choice, put into the one form that clients can add up: each call opens once, with
//! index, id, type and name, and is followed by pieces of its arguments.
use std::ops::Range;

use super::json::{self, Cursor, Flaw};
use super::patch::Patch;
use super::tally::Tally;

/// Most calls of one choice that are followed. Entries beyond are passed on as they came.
const CALLS_MAX: usize = 256;

/// What was seen of the calls of one choice so far.
#[derive(Debug, Default)]
pub struct Calls {
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    /// As the client knows it.
    index: u64,
    /// As the upstream numbers it: some begin every call anew with 0.
    theirs: u64,
    /// As raw JSON; empty while unknown.
    id: Vec<u8>,
    /// What the client knows of the name.
    name: String,
    opened: bool,
    /// All arguments so far are empty or white space.
    blank: bool,
    /// The arguments so far end as an object does.
    closed: bool,
    /// What came before the name: arguments as the inside of a JSON string, and further members, each with a comma.
    held: Vec<u8>,
    held_members: Vec<u8>,
}

/// One entry of `tool_calls`, as raw JSON without `null`s.
#[derive(Debug, Default)]
struct Entry<'a> {
    index: Option<u64>,
    id: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
    arguments: Option<&'a [u8]>,
    /// Members of ours and of `function` that nobody here knows, each with a comma before it.
    extras: Vec<u8>,
    function_extras: Vec<u8>,
    has_function: bool,
}

/// What became of a list of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Something of it is sent to the client.
    Some,
    /// Everything is held back until the names are known.
    Nothing,
}

impl Calls {
    /// Whether any call was seen.
    pub fn any(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Reads a `tool_calls` list that stands at `span` of the chunk, and notes in `patch` what has to change.
    /// `salt` makes ids for calls that have none.
    pub fn read(
        &mut self,
        raw: &[u8],
        span: Range<usize>,
        salt: &str,
        patch: &mut Patch,
        tally: &mut Tally,
    ) -> Result<Passed, Flaw> {
        let mut out = vec![b'['];
        let mut changed = false;
        let mut cursor = Cursor::new(raw);
        cursor.open(b'[')?;
        while cursor.item()? {
            let entry_raw = cursor.skip()?;
            let Some(entry) = Entry::read(entry_raw)? else {
                changed = true;
                continue;
            };
            for counted in [entry.name, entry.arguments] {
                tally.json(counted.unwrap_or_default());
            }
            let before = out.len();
            if before > 1 {
                out.push(b',');
            }
            let start = out.len();
            match self.place(&entry) {
                Some(at) => changed |= self.take(at, &entry, entry_raw, salt, &mut out),
                None => out.extend_from_slice(entry_raw),
            }
            if out.len() == start {
                out.truncate(before);
            }
        }
        let passed = if out.len() > 1 { Passed::Some } else { Passed::Nothing };
        out.push(b']');
        if changed {
            patch.replace(span, &out);
        }
        Ok(passed)
    }

    /// The call that an entry belongs to, made if it is new; `None` when there are too many.
    fn place(&mut self, entry: &Entry<'_>) -> Option<usize> {
        let found = match (entry.index, entry.id) {
            (Some(index), _) => {
                let last = self.calls.iter().rposition(|call| call.theirs == index);
                last.filter(|at| !self.calls[*at].is_followed_by(entry))
            }
            (None, Some(id)) => self.calls.iter().position(|call| call.id == id),
            // Neither index nor id: a name begins a call, anything else goes on with the last one.
            (None, None) if entry.name.is_some() => None,
            (None, None) => self.calls.len().checked_sub(1),
        };
        if found.is_some() || self.calls.len() == CALLS_MAX {
            return found;
        }
        let next = self.calls.iter().map(|call| call.index.saturating_add(1)).max().unwrap_or(0);
        let free = |index: &u64| self.calls.iter().all(|call| call.index != *index);
        let index = entry.index.filter(free).unwrap_or(next);
        self.calls.push(Call {
            index,
            theirs: entry.index.unwrap_or(index),
            id: Vec::new(),
            name: String::new(),
            opened: false,
            blank: true,
            closed: false,
            held: Vec::new(),
            held_members: Vec::new(),
        });
        Some(self.calls.len() - 1)
    }

    /// Appends what the client gets of an entry, perhaps nothing; true when that is not what the upstream sent.
    fn take(&mut self, at: usize, entry: &Entry<'_>, raw: &[u8], salt: &str, out: &mut Vec<u8>) -> bool {
        let call = &mut self.calls[at];
        let arguments = entry.arguments_text();
        if let Some(last) = arguments.trim_ascii_end().last() {
            call.blank = false;
            call.closed = *last == b'}';
        }
        let known_id = call.id.as_slice() == entry.id.unwrap_or_default();
        if let Some(id) = entry.id.filter(|_| call.id.is_empty()) {
            call.id = id.to_vec();
        }
        let name = entry.name.and_then(json::text).filter(|name| !name.is_empty());
        if !call.opened {
            let Some(name) = name else {
                call.held.extend_from_slice(&arguments);
                call.held_members.extend_from_slice(&entry.extras);
                return true;
            };
            call.name = name.into_owned();
            call.opened = true;
            let plain = entry.index == Some(call.index)
                && entry.id.is_some()
                && entry.kind.is_some()
                && call.held.is_empty()
                && call.held_members.is_empty()
                && entry.arguments.is_none_or(|raw| raw.starts_with(b"\""));
            if plain {
                out.extend_from_slice(raw);
            } else {
                call.held.extend_from_slice(&arguments);
                call.held_members.extend_from_slice(&entry.extras);
                call.open(&entry.function_extras, salt, out);
            }
            return !plain;
        }
        // A name that repeats what is known would be added to it by the client; a further piece belongs there.
        let further_name = name.filter(|name| *name != call.name);
        let repeats = (entry.id.is_some() && known_id) || (entry.name.is_some() && further_name.is_none());
        let plain = entry.index == Some(call.index)
            && !repeats
            && entry.arguments.is_none_or(|raw| raw.starts_with(b"\""));
        if let Some(name) = &further_name {
            call.name.push_str(name);
        }
        if plain {
            out.extend_from_slice(raw);
            return false;
        }
        call.go_on(entry, further_name.as_deref(), &arguments, out);
        true
    }

    /// What must reach the client before the choice ends: calls still held, and `{}` where no arguments ever came.
    /// Appends entries of a `tool_calls` list; false when there are none.
    pub fn flush(&mut self, salt: &str, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for call in &mut self.calls {
            if call.opened && !call.blank {
                continue;
            }
            if out.len() > start {
                out.push(b',');
            }
            if call.opened {
                let entry = format!("{{\"index\":{},\"function\":{{\"arguments\":\"{{}}\"}}}}", call.index);
                out.extend_from_slice(entry.as_bytes());
            } else {
                if call.blank {
                    call.held = b"{}".to_vec();
                }
                call.opened = true;
                call.open(b"", salt, out);
            }
            call.blank = false;
        }
        out.len() > start
    }
}

impl Call {
    /// Whether an entry under the same number begins another call: it has a name, and arguments of its own rather than
    /// more of these. Gemini numbers all calls 0, with an id for each or without.
    fn is_followed_by(&self, entry: &Entry<'_>) -> bool {
        let named = entry.name.is_some_and(|name| name.len() > 2);
        let arguments = entry.arguments_text();
        let begins = arguments.trim_ascii_start().first();
        let apart = match entry.id {
            Some(id) => !self.id.is_empty() && id != self.id && (self.blank || self.closed),
            None => self.closed && begins.is_some(),
        };
        self.opened && named && apart && begins.is_none_or(|first| *first == b'{')
    }

    /// The opening delta, with everything held so far.
    fn open(&mut self, function_extras: &[u8], salt: &str, out: &mut Vec<u8>) {
        if self.id.is_empty() {
            self.id = json::quoted(&format!("call_{salt}_{}", self.index));
        }
        out.extend_from_slice(format!("{{\"index\":{},\"id\":", self.index).as_bytes());
        out.extend_from_slice(&self.id);
        out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
        json::quote(&self.name, out);
        out.extend_from_slice(b",\"arguments\":\"");
        out.append(&mut self.held);
        out.push(b'"');
        out.extend_from_slice(function_extras);
        out.push(b'}');
        out.append(&mut self.held_members);
        out.push(b'}');
    }

    /// A later delta: nothing that the client knows already.
    fn go_on(&self, entry: &Entry<'_>, further_name: Option<&str>, arguments: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{{\"index\":{}", self.index).as_bytes());
        if let Some(id) = entry.id.filter(|id| *id != self.id) {
            out.extend_from_slice(b",\"id\":");
            out.extend_from_slice(id);
        }
        if entry.has_function {
            out.extend_from_slice(b",\"function\":{");
            if let Some(name) = further_name {
                out.extend_from_slice(b"\"name\":");
                json::quote(name, out);
                out.push(b',');
            }
            out.extend_from_slice(b"\"arguments\":\"");
            out.extend_from_slice(arguments);
            out.push(b'"');
            out.extend_from_slice(&entry.function_extras);
            out.push(b'}');
        }
        out.extend_from_slice(&entry.extras);
        out.push(b'}');
    }
}

impl<'a> Entry<'a> {
    /// `None` when `raw` is no object.
    fn read(raw: &'a [u8]) -> Result<Option<Entry<'a>>, Flaw> {
        let mut entry = Entry::default();
        let mut cursor = Cursor::new(raw);
        if !cursor.open(b'{')? {
            return Ok(None);
        }
        while let Some(name) = cursor.member()? {
            let name_at = cursor.name_at();
            if name == b"function" && cursor.open(b'{')? {
                entry.has_function = true;
                entry.read_function(raw, &mut cursor)?;
                continue;
            }
            let value = cursor.skip()?;
            match name {
                b"index" => entry.index = json::whole(value),
                b"id" => entry.id = Some(value).filter(|id| id.starts_with(b"\"") && id.len() > 2),
                b"type" => entry.kind = Some(value).filter(|kind| kind.starts_with(b"\"")),
                b"function" => {}
                _ => push_member(&mut entry.extras, &raw[name_at..cursor.at()]),
            }
        }
        Ok(Some(entry))
    }

    fn read_function(&mut self, raw: &'a [u8], cursor: &mut Cursor<'a>) -> Result<(), Flaw> {
        while let Some(name) = cursor.member()? {
            let name_at = cursor.name_at();
            let value = cursor.skip()?;
            match name {
                b"name" => self.name = Some(value).filter(|name| name.starts_with(b"\"")),
                b"arguments" => self.arguments = Some(value).filter(|value| *value != b"null"),
                _ => push_member(&mut self.function_extras, &raw[name_at..cursor.at()]),
            }
        }
        Ok(())
    }

    /// The arguments as the inside of a JSON string. Some upstreams send the object itself; its digits stay as they
    /// are.
    fn arguments_text(&self) -> std::borrow::Cow<'a, [u8]> {
        match self.arguments {
            None => (b"" as &[u8]).into(),
            Some([b'"', inner @ .., b'"']) => inner.into(),
            Some(other) => arguments_as_text(other).into(),
        }
    }
}

/// The text of a JSON value as the inside of a JSON string.
fn arguments_as_text(value: &[u8]) -> Vec<u8> {
    let text = json::quoted(&String::from_utf8_lossy(value));
    text[1..text.len() - 1].to_vec()
}

fn push_member(list: &mut Vec<u8>, member: &[u8]) {
    list.push(b',');
    list.extend_from_slice(member);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists as the client gets them, and what is flushed at the end.
    fn pass(lists: &[&str]) -> (Vec<String>, String) {
        let (mut calls, mut tally) = (Calls::default(), Tally::default());
        let passed = lists.iter().map(|list| {
            let mut patch = Patch::default();
            calls.read(list.as_bytes(), 0..list.len(), "s", &mut patch, &mut tally).expect("valid JSON");
            let mut out = Vec::new();
            patch.apply(list.as_bytes(), &mut out);
            String::from_utf8(out).expect("UTF-8")
        });
        let passed = passed.collect();
        let mut rest = Vec::new();
        calls.flush("s", &mut rest);
        (passed, String::from_utf8(rest).expect("UTF-8"))
    }

    fn check(lists: &[&str], expected: &[&str], flushed: &str) {
        let (passed, rest) = pass(lists);
        assert_eq!(passed, expected, "{lists:?}");
        assert_eq!(rest, flushed, "{lists:?}");
    }

    #[test]
    fn what_is_well_formed_stays_byte_for_byte() {
        let lists = [
            r#"[ {"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}} ]"#,
            r#"[{"index":0,"function":{"arguments":"{\"a\""}}]"#,
            r#"[{"index":0, "function":{"arguments":":1}"},"x":1}]"#,
            r#"[{"index":1,"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]"#,
        ];
        check(&lists, &lists, "");
    }

    #[test]
    fn tool_01_entries_without_an_index_get_one() {
        check(
            &[
                r#"[{"id":"c1","type":"function","function":{"name":"get","arguments":"{\"a\":1}"}}]"#,
                r#"[{"id":"c2","type":"function","function":{"name":"get","arguments":"{"}}]"#,
                r#"[{"function":{"arguments":"}"}}]"#,
                r#"[{"id":"c1","function":{"arguments":" "}}]"#,
            ],
            &[
                r#"[{"index":0,"id":"c1","type":"function","function":{"name":"get","arguments":"{\"a\":1}"}}]"#,
                r#"[{"index":1,"id":"c2","type":"function","function":{"name":"get","arguments":"{"}}]"#,
                r#"[{"index":1,"function":{"arguments":"}"}}]"#,
                r#"[{"index":0,"function":{"arguments":" "}}]"#,
            ],
            "",
        );
        // Two whole calls in one list, without ids: each name begins one.
        check(
            &[
                r#"[{"id":"","function":{"name":"f","arguments":"{}"}},{"function":{"name":"f","arguments":"{}"}}]"#,
            ],
            &[concat!(
                r#"[{"index":0,"id":"call_s_0","type":"function","function":{"name":"f","arguments":"{}"}},"#,
                r#"{"index":1,"id":"call_s_1","type":"function","function":{"name":"f","arguments":"{}"}}]"#
            )],
            "",
        );
    }

    #[test]
    fn tool_01_calls_that_are_all_numbered_0_are_told_apart() {
        let call = |index: u8, id: &str, arguments: &str| {
            let id = if id.is_empty() { String::new() } else { format!(r#""id":"{id}","#) };
            format!(
                r#"[{{"index":{index},{id}"type":"function","function":{{"name":"f","arguments":"{arguments}"}}}}]"#
            )
        };
        let check = |lists: &[String], expected: &[String], flushed: &str| {
            let texts = |list: &[String]| list.iter().map(String::from).collect::<Vec<_>>();
            let (passed, rest) = pass(&lists.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!((passed, rest.as_str()), (texts(expected), flushed), "{lists:?}");
        };
        // Gemini, with an id for each call; what follows without one belongs to the last.
        let more = r#"[{"index":0,"function":{"arguments":"}"}}]"#.to_owned();
        check(
            &[call(0, "a", "{}"), call(0, "b", "{"), more.clone(), call(0, "c", ""), call(3, "d", "{}")],
            &[
                call(0, "a", "{}"),
                call(1, "b", "{"),
                more.replace(r#""index":0"#, r#""index":1"#),
                call(2, "c", ""),
                call(3, "d", "{}"),
            ],
            r#"{"index":2,"function":{"arguments":"{}"}}"#,
        );
        // Without ids.
        check(
            &[call(0, "", r#"{\"n\":1}"#), call(0, "", r#"{\"n\":2}"#)],
            &[call(0, "call_s_0", r#"{\"n\":1}"#), call(1, "call_s_1", r#"{\"n\":2}"#)],
            "",
        );
        // The same call told again, and one whose id changes in its midst.
        check(
            &[call(0, "a", r#"{\"n\":"#), call(0, "b", "1}")],
            &[call(0, "a", r#"{\"n\":"#), r#"[{"index":0,"id":"b","function":{"arguments":"1}"}}]"#.into()],
            "",
        );
    }

    #[test]
    fn tool_03_arguments_that_are_an_object_become_text() {
        check(
            &[
                r#"[{"index":0,"id":"c","type":"function","function":{"name":"w","arguments":{"id":9007199254740993,"s":"a\"b"}}}]"#,
            ],
            &[
                r#"[{"index":0,"id":"c","type":"function","function":{"name":"w","arguments":"{\"id\":9007199254740993,\"s\":\"a\\\"b\"}"}}]"#,
            ],
            "",
        );
    }

    #[test]
    fn tool_04_arguments_that_never_came_are_an_empty_object() {
        let open = r#"[{"index":0,"id":"c1","type":"function","function":{"name":"now","arguments":""}}]"#;
        check(&[open], &[open], r#"{"index":0,"function":{"arguments":"{}"}}"#);
        let without = r#"[{"index":0,"id":"c1","type":"function","function":{"name":"now"}}]"#;
        check(&[without], &[without], r#"{"index":0,"function":{"arguments":"{}"}}"#);
    }

    #[test]
    fn tool_06_names_are_not_repeated_but_may_come_in_pieces() {
        check(
            &[
                r#"[{"index":0,"id":"c1","type":"function","function":{"name":"read_file","arguments":"{\"p\":"}}]"#,
                r#"[{"index":0,"id":"c1","type":"function","function":{"name":"read_file","arguments":"1}"}}]"#,
            ],
            &[
                r#"[{"index":0,"id":"c1","type":"function","function":{"name":"read_file","arguments":"{\"p\":"}}]"#,
                r#"[{"index":0,"function":{"arguments":"1}"}}]"#,
            ],
            "",
        );
        let pieces = [
            r#"[{"index":0,"id":"c1","type":"function","function":{"name":"read_","arguments":""}}]"#,
            r#"[{"index":0,"function":{"name":"file","arguments":"{}"}}]"#,
        ];
        check(&pieces, &pieces, "");
    }

    #[test]
    fn tool_07_a_call_is_held_until_its_name_is_known() {
        check(
            &[
                r#"[{"index":0,"id":"c1","function":{"arguments":"{\"a\":"}}]"#,
                r#"[{"index":0,"function":{"arguments":"1"}}]"#,
                r#"[{"index":0,"function":{"name":"f","arguments":"}"}}]"#,
            ],
            &[
                "[]",
                "[]",
                r#"[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]"#,
            ],
            "",
        );
        check(
            &[r#"[{"index":2,"id":"c1","function":{"arguments":"{}"}}]"#],
            &["[]"],
            r#"{"index":2,"id":"c1","type":"function","function":{"name":"","arguments":"{}"}}"#,
        );
    }

    #[test]
    fn tool_08_unknown_members_survive() {
        let list = r#"[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{}"},"extra_content":{"google":{"thought_signature":"c2ln"}}}]"#;
        check(&[list], &[list], "");
        check(&[&list.replace("\"index\":0,", "")], &[list], "");
    }

    #[test]
    fn calls_are_bounded() {
        let lists: Vec<String> = (0..400)
            .map(|i| format!(r#"[{{"index":{i},"id":"c{i}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}]"#))
            .collect();
        let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
        check(&lists, &lists, "");
    }
}
