//! A request body, kept as the bytes that came, with an index of its top-level fields. Changes are splices: numbers,
//! escapes, order and unknown fields reach the upstream untouched except where an edit says otherwise.
use std::borrow::Cow;
use std::ops::Range;

use super::error::ApiError;
use super::json::{self, Cursor, Flaw};

/// Most top-level fields of a body. Real ones have some thirty; without a bound the search for duplicates would be
/// quadratic in the body's size.
const FIELDS_MAX: usize = 1_024;

/// A whole, valid JSON object.
#[derive(Clone, Debug)]
pub struct Body {
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

#[derive(Clone, Debug)]
struct Field {
    /// The name with its quotes.
    key: Range<usize>,
    value: Range<usize>,
    /// The name, when it is written with escapes.
    decoded: Option<Box<str>>,
}

impl Body {
    /// Checks `bytes` and finds the top-level fields, in one pass over the grammar.
    ///
    /// Half a surrogate pair becomes U+FFFD, a byte order mark is dropped. Errors are 400: `invalid_body` for an empty
    /// body or one that is no object, `invalid_json` (with the offset) for broken JSON, text that is not UTF-8,
    /// nesting deeper than 128, a top-level field that comes twice.
    pub fn parse(mut bytes: Vec<u8>) -> Result<Body, ApiError> {
        if bytes.starts_with(b"\xef\xbb\xbf") {
            bytes.drain(..3);
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err(ApiError::new(400, "invalid_body", "the request body is empty; send a JSON object"));
        }
        if let Err(e) = std::str::from_utf8(&bytes) {
            return Err(Flaw { at: e.valid_up_to(), what: "not UTF-8" }.into());
        }
        let (fields, lone_surrogate) = index(&bytes)?;
        if lone_surrogate {
            json::mend_surrogates(&mut bytes);
        }
        Ok(Body { bytes, fields })
    }

    /// The whole body.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of a field's value; an explicit `null` is `Some(b"null")`.
    pub fn raw(&self, name: &str) -> Option<&[u8]> {
        self.field(name).map(|field| &self.bytes[field.value.clone()])
    }

    /// The bytes of a field's value, where `null` counts as absent.
    pub fn given(&self, name: &str) -> Option<&[u8]> {
        self.raw(name).filter(|raw| *raw != b"null")
    }

    /// The text of a field that is a string.
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        self.raw(name).and_then(json::text)
    }

    /// The names of all top-level fields, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| self.name(field))
    }

    /// The names of all top-level fields with the bytes of their values, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|field| (self.name(field), &self.bytes[field.value.clone()]))
    }

    /// The body with `edits` made, everything else byte for byte, as one text.
    pub fn spliced(&self, edits: &Edits<'_>) -> Vec<u8> {
        self.in_pieces(edits).into_bytes()
    }

    /// The same without a copy of what is long: large bodies are in memory once, not once more for each upstream.
    pub fn in_pieces(&self, edits: &Edits<'_>) -> Spliced<'_> {
        let mut members: Vec<Member<'_>> = (0..self.fields.len()).map(|at| self.member(at)).collect();
        for edit in &edits.0 {
            edit.make(&mut members);
        }
        let end = self.bytes.iter().rposition(|&b| b == b'}').expect("a parsed body is an object");
        let (lead, tail) = match (self.fields.first(), self.fields.last()) {
            (Some(first), Some(last)) => (&self.bytes[..first.key.start], &self.bytes[last.value.end..]),
            _ => self.bytes.split_at(end),
        };
        let long = |span: &Range<usize>| span.len() >= LENT_BYTES_MIN;
        let lent_bytes: usize = members
            .iter()
            .filter_map(|member| member.came.as_ref())
            .filter(|span| long(span))
            .map(Range::len)
            .sum();
        let mut pieces = Vec::with_capacity(1);
        let mut out = Vec::with_capacity(self.bytes.len() - lent_bytes + 256);
        out.extend_from_slice(lead);
        let mut written = false;
        for member in members.iter().filter(|member| member.kept) {
            if written {
                out.extend_from_slice(member.separator);
            }
            written = true;
            match &member.name {
                Name::Written { with_colon, .. } => out.extend_from_slice(with_colon),
                Name::Ours(name) => {
                    json::quote(name, &mut out);
                    out.push(b':');
                }
            }
            match member.came.clone().filter(long) {
                Some(span) => {
                    pieces.push(Cow::Owned(std::mem::take(&mut out)));
                    pieces.push(Cow::Borrowed(&self.bytes[span]));
                }
                None => out.extend_from_slice(&member.value),
            }
        }
        out.extend_from_slice(tail);
        pieces.push(Cow::Owned(out));
        Spliced(pieces)
    }

    fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| match &field.decoded {
            Some(decoded) => **decoded == *name,
            // By bytes: many fields are looked up many times.
            None => self.bytes[field.key.start + 1..field.key.end - 1] == *name.as_bytes(),
        })
    }

    fn name<'a>(&'a self, field: &'a Field) -> &'a str {
        match &field.decoded {
            Some(name) => name,
            None => std::str::from_utf8(&self.bytes[field.key.start + 1..field.key.end - 1])
                .expect("a parsed body is UTF-8"),
        }
    }

    fn member(&self, at: usize) -> Member<'_> {
        let field = &self.fields[at];
        // What stands between this field and the one before it: a comma and perhaps white space.
        let separator = match at.checked_sub(1).map(|before| self.fields[before].value.end) {
            Some(end) => &self.bytes[end..field.key.start],
            None => b",",
        };
        let with_colon = &self.bytes[field.key.start..field.value.start];
        Member {
            name: Name::Written { name: self.name(field), with_colon },
            separator,
            value: Cow::Borrowed(&self.bytes[field.value.clone()]),
            came: Some(field.value.clone()),
            kept: true,
        }
    }
}

impl From<Flaw> for ApiError {
    fn from(flaw: Flaw) -> ApiError {
        let message = format!("the request body is not valid JSON: {} at byte {}", flaw.what, flaw.at);
        ApiError::new(400, "invalid_json", message)
    }
}

/// The top-level fields, and whether a lone surrogate stands anywhere.
fn index(bytes: &[u8]) -> Result<(Vec<Field>, bool), ApiError> {
    let mut cursor = Cursor::new(bytes);
    if !cursor.open(b'{')? {
        cursor.skip().and_then(|_| cursor.end())?;
        return Err(ApiError::new(400, "invalid_body", "the request body must be a JSON object"));
    }
    let mut fields: Vec<Field> = Vec::with_capacity(16);
    while let Some(name) = cursor.member()? {
        let key = cursor.name_at()..cursor.name_at() + name.len() + 2;
        let value = cursor.skip()?;
        let decoded = match memchr::memchr(b'\\', name) {
            Some(_) => json::unescape(name).map(|text| text.into_owned().into_boxed_str()),
            None => None,
        };
        let plain = decoded.as_deref().map_or(name, str::as_bytes);
        let same = |field: &Field| match &field.decoded {
            Some(known) => known.as_bytes() == plain,
            None => &bytes[field.key.start + 1..field.key.end - 1] == plain,
        };
        if fields.iter().any(same) {
            let name = String::from_utf8_lossy(plain);
            let message = format!("the field `{}` comes twice", crate::base::text::truncate(&name, 64));
            return Err(ApiError::bad_field("invalid_json", name.clone(), message));
        }
        if fields.len() == FIELDS_MAX {
            let message = format!("the request body has more than {FIELDS_MAX} fields");
            return Err(ApiError::new(400, "invalid_body", message));
        }
        fields.push(Field { key, value: cursor.at() - value.len()..cursor.at(), decoded });
    }
    cursor.end()?;
    Ok((fields, cursor.saw_lone_surrogate()))
}

/// Changes to top-level fields, made in the order given.
#[derive(Debug)]
pub struct Edits<'a>(Vec<Edit<'a>>);

/// As many as a common request needs.
const EDITS_USUAL: usize = 8;

impl Default for Edits<'_> {
    fn default() -> Self {
        Edits(Vec::with_capacity(EDITS_USUAL))
    }
}

#[derive(Debug)]
enum Edit<'a> {
    Set(Cow<'a, str>, Cow<'a, [u8]>),
    Add(Cow<'a, str>, Cow<'a, [u8]>),
    Remove(Cow<'a, str>),
    Rename(Cow<'a, str>, Cow<'a, str>),
}

impl<'a> Edits<'a> {
    /// Gives a field another value (raw JSON) where it stands, or adds it at the end.
    pub fn set(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, [u8]>>) {
        self.0.push(Edit::Set(name.into(), value.into()));
    }

    /// Gives a field a value if it is absent or `null` by then.
    pub fn add(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, [u8]>>) {
        self.0.push(Edit::Add(name.into(), value.into()));
    }

    /// Takes a field out.
    pub fn remove(&mut self, name: impl Into<Cow<'a, str>>) {
        self.0.push(Edit::Remove(name.into()));
    }

    /// Gives a field another name where it stands. A field that has that name already stays, and `from` goes.
    pub fn rename(&mut self, from: impl Into<Cow<'a, str>>, to: impl Into<Cow<'a, str>>) {
        self.0.push(Edit::Rename(from.into(), to.into()));
    }

    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Values from this length on are lent rather than copied. Below it one copy is cheaper than two pieces.
const LENT_BYTES_MIN: usize = 64 * 1024;

/// A body after its edits, to be sent piece by piece.
#[derive(Debug)]
pub struct Spliced<'b>(Vec<Cow<'b, [u8]>>);

impl Spliced<'_> {
    /// What the body consists of, in order.
    pub fn pieces(&self) -> Vec<&[u8]> {
        self.0.iter().map(Cow::as_ref).collect()
    }

    /// All of it as one text.
    pub fn into_bytes(self) -> Vec<u8> {
        match <[Cow<'_, [u8]>; 1]>::try_from(self.0) {
            Ok([whole]) => whole.into_owned(),
            Err(pieces) => pieces.concat(),
        }
    }
}

/// A field on its way out.
struct Member<'a> {
    name: Name<'a>,
    /// Written before it unless it comes first.
    separator: &'a [u8],
    value: Cow<'a, [u8]>,
    /// Where the value stands in the body, unless it is ours.
    came: Option<Range<usize>>,
    kept: bool,
}

enum Name<'a> {
    /// As it came, up to the value.
    Written {
        name: &'a str,
        with_colon: &'a [u8],
    },
    Ours(&'a str),
}

impl Name<'_> {
    fn as_str(&self) -> &str {
        match self {
            Name::Written { name, .. } | Name::Ours(name) => name,
        }
    }
}

impl Edit<'_> {
    fn make<'e>(&'e self, members: &mut Vec<Member<'e>>) {
        let find = |members: &[Member<'_>], name: &str| {
            members.iter().position(|member| member.kept && member.name.as_str() == name)
        };
        match self {
            Edit::Set(name, value) | Edit::Add(name, value) => match find(members, name) {
                Some(at) if matches!(self, Edit::Set(..)) || &*members[at].value == b"null" => {
                    members[at].value = Cow::Borrowed(value);
                    members[at].came = None;
                }
                Some(_) => {}
                None => members.push(Member {
                    name: Name::Ours(name),
                    separator: b",",
                    value: Cow::Borrowed(value),
                    came: None,
                    kept: true,
                }),
            },
            Edit::Remove(name) => {
                if let Some(at) = find(members, name) {
                    members[at].kept = false;
                }
            }
            Edit::Rename(from, to) => {
                let taken = find(members, to).is_some();
                if let Some(at) = find(members, from).filter(|_| from != to) {
                    members[at].kept = !taken;
                    members[at].name = Name::Ours(to);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Body {
        Body::parse(text.as_bytes().to_vec()).expect("a good body")
    }

    fn refused(bytes: &[u8]) -> (String, String, Option<String>) {
        let e = Body::parse(bytes.to_vec()).expect_err("a bad body");
        assert_eq!(e.status, 400);
        (e.code, e.message, e.param)
    }

    #[test]
    fn long_values_are_lent_unless_an_edit_replaces_them() {
        let long = "x".repeat(LENT_BYTES_MIN);
        let text = format!(r#"{{"a":"{long}","model":"m","b":"{long}","c":1}}"#);
        let body = parse(&text);
        let mut edits = Edits::default();
        edits.set("model", b"2".as_slice());
        edits.set("b", b"3".as_slice());
        let spliced = body.in_pieces(&edits);
        let lent = body.raw("a").expect("it is there");
        assert_eq!(spliced.pieces().len(), 3);
        assert!(std::ptr::eq(spliced.pieces()[1], lent));
        assert_eq!(spliced.into_bytes(), format!(r#"{{"a":"{long}","model":2,"b":3,"c":1}}"#).into_bytes());
        let edits = Edits::default();
        assert_eq!((body.in_pieces(&edits).pieces().len(), body.spliced(&edits) == body.bytes()), (5, true));
    }

    #[test]
    fn fields_are_found_as_they_are_written() {
        let body =
            parse(r#" { "model" : "m\u0041" , "x":{"y":[1, 2]},"n":null,"se\u0065d":9007199254740993 } "#);
        assert_eq!(body.raw("model"), Some(br#""m\u0041""#.as_slice()));
        assert_eq!(body.text("model").as_deref(), Some("mA"));
        assert_eq!(body.raw("x"), Some(br#"{"y":[1, 2]}"#.as_slice()));
        assert_eq!((body.raw("n"), body.given("n"), body.raw("y")), (Some(b"null".as_slice()), None, None));
        assert_eq!(body.raw("seed"), Some(b"9007199254740993".as_slice()));
        assert_eq!(body.names().collect::<Vec<_>>(), ["model", "x", "n", "seed"]);
    }

    #[test]
    fn what_is_no_json_object_is_refused_and_says_where() {
        let check = |bytes: &[u8], code: &str, part: &str| {
            let (found, message, _) = refused(bytes);
            assert_eq!(found, code, "{message}");
            assert!(message.contains(part), "{message}");
        };
        check(b"", "invalid_body", "empty");
        check(b" \r\n", "invalid_body", "empty");
        check(b"[]", "invalid_body", "object");
        check(b"\"x\"", "invalid_body", "object");
        check(b"[1", "invalid_json", "byte 2");
        check(b"{\"a\":1,}", "invalid_json", "byte 7");
        check(b"{\"a\":1}}", "invalid_json", "after the value at byte 7");
        check(b"{\"a\":\"\xff\"}", "invalid_json", "not UTF-8 at byte 6");
        check(b"{\"a\":\"\xed\xa0\x80\"}", "invalid_json", "not UTF-8 at byte 6");
        check(b"\x1f\x8b\x08", "invalid_json", "not UTF-8 at byte 1");
    }

    #[test]
    fn req_15_a_field_that_comes_twice_is_refused() {
        let check = |text: &str| {
            let (code, _, param) = refused(text.as_bytes());
            assert_eq!((code.as_str(), param.as_deref()), ("invalid_json", Some("model")), "{text}");
        };
        check(r#"{"model":"allowed","model":"denied"}"#);
        check(r#"{"model":"allowed","mod\u0065l":"denied"}"#);
        check(r#"{"m\u006fdel":"allowed","x":1,"mod\u0065l":"denied"}"#);
        let many: Vec<String> = (0..2_000).map(|i| format!("\"k{i}\":0")).collect();
        assert_eq!(refused(format!("{{{}}}", many.join(",")).as_bytes()).0, "invalid_body");
    }

    #[test]
    fn req_16_deep_nesting_is_refused_and_moderate_nesting_is_not() {
        let body = |depth: usize| format!("{{\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(refused(body(10_000).as_bytes()).0, "invalid_json");
        assert_eq!(refused(body(128).as_bytes()).0, "invalid_json");
        parse(&body(127));
        parse(&body(60));
    }

    #[test]
    fn lone_surrogates_become_the_replacement_character() {
        let body = parse(r#"{"a":"\ud83d","b":"\ud83d\ude00"}"#);
        assert_eq!(body.bytes(), br#"{"a":"\ufffd","b":"\ud83d\ude00"}"#);
    }

    #[test]
    fn a_byte_order_mark_is_dropped() {
        assert_eq!(parse("\u{feff}{\"a\":1}").bytes(), b"{\"a\":1}");
    }

    #[test]
    fn b13_edits_leave_every_other_byte() {
        let text =
            "\n{ \"model\" : \"a\",\n  \"seed\": 9007199254740993, \"session\":\"s\" ,\"x\":[1.0e2] }\n";
        let check = |make: &dyn Fn(&mut Edits<'static>), expected: &str| {
            let mut edits = Edits::default();
            make(&mut edits);
            let out = parse(text).spliced(&edits);
            assert_eq!(String::from_utf8(out.clone()).expect("UTF-8"), expected);
            Body::parse(out).expect("still a good body");
        };
        check(&|_| (), text);
        check(
            &|e| e.set("model", b"\"longer\"".as_slice()),
            "\n{ \"model\" : \"longer\",\n  \"seed\": 9007199254740993, \"session\":\"s\" ,\"x\":[1.0e2] }\n",
        );
        check(
            &|e| e.remove("session"),
            "\n{ \"model\" : \"a\",\n  \"seed\": 9007199254740993 ,\"x\":[1.0e2] }\n",
        );
        check(
            &|e| {
                e.remove("model");
                e.remove("x");
                e.set("stream", b"false".as_slice());
            },
            "\n{ \"seed\": 9007199254740993, \"session\":\"s\",\"stream\":false }\n",
        );
        check(
            &|e| e.rename("seed", "random_seed"),
            "\n{ \"model\" : \"a\",\n  \"random_seed\":9007199254740993, \"session\":\"s\" ,\"x\":[1.0e2] }\n",
        );
        check(
            &|e| {
                for name in ["model", "seed", "session", "x"] {
                    e.remove(name);
                }
            },
            "\n{  }\n",
        );
    }

    #[test]
    fn edits_are_made_in_order() {
        let check = |text: &str, make: &dyn Fn(&mut Edits<'static>), expected: &str| {
            let mut edits = Edits::default();
            make(&mut edits);
            assert_eq!(String::from_utf8(parse(text).spliced(&edits)).expect("UTF-8"), expected, "{text}");
        };
        let rename_then_set = |e: &mut Edits<'static>| {
            e.rename("a", "b");
            e.set("b", b"2".as_slice());
        };
        check(r#"{"a":1}"#, &rename_then_set, r#"{"b":2}"#);
        check(r#"{"b":1,"a":3}"#, &|e| e.rename("a", "b"), r#"{"b":1}"#);
        check(r#"{"a":1}"#, &|e| e.rename("a", "a"), r#"{"a":1}"#);
        check(r#"{}"#, &|e| e.set("a", b"1".as_slice()), r#"{"a":1}"#);
        check(
            r#"{"a":1}"#,
            &|e| {
                e.remove("a");
                e.set("a", b"2".as_slice());
            },
            r#"{"a":2}"#,
        );
        let add = |e: &mut Edits<'static>| e.add("a", b"9".as_slice());
        check(r#"{"a":1}"#, &add, r#"{"a":1}"#);
        check(r#"{"a":null}"#, &add, r#"{"a":9}"#);
        check(r#"{"b":1}"#, &add, r#"{"b":1,"a":9}"#);
        check(r#"{"\u0061":1,"c":2}"#, &|e| e.remove("a"), r#"{"c":2}"#);
    }
}
