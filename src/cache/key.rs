//! Under which key an answer is kept: a SHA-256 over everything in the request that could change the answer.
//!
//! The whole body counts but for a short list of fields, so that a field nobody has thought of makes a miss and never a
//! wrong answer. What JSON allows to be written in several ways counts in one: members in any order, white space, escapes,
//! `1` and `1.0`. Numbers are compared by their digits, not as floating point, so that no two that differ are taken for
//! one. Pure.
use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

use crate::base::text::hex;
use crate::catalog::client_key::Principal;
use crate::wire::body::Body;
use crate::wire::json::{self, Cursor, Flaw};

/// Top-level fields that do not change what a model says: who answers, in which form, and on whose behalf.
const IGNORED: [&str; 10] = [
    "model",
    "stream",
    "stream_options",
    "user",
    "metadata",
    "session",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "service_tier",
];

/// To be counted up whenever the same request would get another key, or what is kept under it another meaning.
const VERSION: &[u8] = b"3";

/// Ends a text or a number. UTF-8 never has this byte.
const END: &[u8] = b"\xff";
/// Ends an object, where the name of a further member could stand. UTF-8 never has this byte either.
const CLOSE: &[u8] = b"\xfe";

/// What requests with the same answer have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub [u8; SHA256_OUTPUT_LEN]);

impl Hash for Key {
    /// It is a digest already: eight of its bytes tell two keys apart as well as all.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0[..8]);
    }
}

impl Key {
    /// Its first twelve hexadecimal digits, for people.
    pub fn short(&self) -> String {
        hex(&self.0[..6])
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

/// What a key is made of beside the body.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// Which surface answers, such as `chat`.
    pub surface: &'a str,
    /// Whose answers these are; `None` when all clients share them.
    pub principal: Option<Owner>,
    /// Further top-level fields that do not count.
    pub ignore: &'a [String],
}

/// Who asks, where each client key has answers of its own: that key, or nobody in particular.
pub type Owner = Option<Principal>;

/// The key of a request. One pass over the body, whose size is all that its time depends on.
pub fn of(body: &Body, scope: &Scope<'_>) -> Key {
    let mut hash = Context::new(&SHA256);
    hash.update(VERSION);
    hash.update(scope.surface.as_bytes());
    hash.update(END);
    match scope.principal {
        None => hash.update(b"-"),
        Some(None) => hash.update(b"nobody"),
        Some(Some(principal)) => hash.update(principal.to_string().as_bytes()),
    }
    hash.update(END);
    let counts = |name: &str| !IGNORED.contains(&name) && !scope.ignore.iter().any(|other| other == name);
    // `null` is how some clients write a field that they do not mean to send.
    let mut fields: Vec<_> = body.fields().filter(|(name, raw)| *raw != b"null" && counts(name)).collect();
    fields.sort_unstable();
    let mut walk = Walk { hashes: vec![hash], open: Vec::new() };
    for (name, raw) in fields {
        walk.hash().update(name.as_bytes());
        walk.hash().update(END);
        // A parsed body has no flaw. Should there be one, what was read up to it is hashed.
        let _ = walk.read(&mut Cursor::new(raw));
    }
    finish(walk.hashes.swap_remove(0))
}

/// A member of an object, whose members have to be put in order: so it can be done without a copy of what is in them.
struct Member<'a> {
    name: Cow<'a, [u8]>,
    value: Value<'a>,
}

enum Value<'a> {
    /// As written.
    Scalar(&'a [u8]),
    /// Of a list or an object.
    Digest(Key),
}

/// Whether a list or an object begins here.
fn is_container(first: Option<&u8>) -> bool {
    matches!(first, Some(b'{' | b'['))
}

fn finish(hash: Context) -> Key {
    Key(hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

/// A walk through the values of a body, without recursion, so that no depth can exhaust the stack.
struct Walk<'a> {
    /// That of the whole body, then that of each member that is open; scalar members have none.
    hashes: Vec<Context>,
    /// The containers around the place that is read, outermost first.
    open: Vec<Container<'a>>,
}

enum Container<'a> {
    List,
    Object {
        members: Vec<Member<'a>>,
        /// The name of the member that is read.
        name: Option<Cow<'a, [u8]>>,
    },
}

impl<'a> Walk<'a> {
    fn read(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Flaw> {
        loop {
            if cursor.open(b'{')? {
                self.open.push(Container::Object { members: Vec::new(), name: None });
            } else if cursor.open(b'[')? {
                self.hash().update(b"[");
                self.open.push(Container::List);
            } else {
                scalar(cursor.skip()?, self.hash());
            }
            if !self.next(cursor)? {
                return Ok(());
            }
        }
    }

    /// Closes what ends here; false when that was all.
    fn next(&mut self, cursor: &mut Cursor<'a>) -> Result<bool, Flaw> {
        while let Some(container) = self.open.last_mut() {
            let Container::Object { members, name } = container else {
                if cursor.item()? {
                    return Ok(true);
                }
                self.open.pop();
                self.hash().update(b"]");
                continue;
            };
            if let Some(name) = name.take() {
                let value = self.hashes.pop().map_or(Key([0; SHA256_OUTPUT_LEN]), finish);
                members.push(Member { name, value: Value::Digest(value) });
            }
            if let Some(written) = cursor.member()? {
                let written = json::resolved(written);
                if is_container(cursor.peek().as_ref()) {
                    *name = Some(written);
                    self.hashes.push(Context::new(&SHA256));
                    return Ok(true);
                }
                members.push(Member { name: written, value: Value::Scalar(cursor.skip()?) });
                continue;
            }
            let members = std::mem::take(members);
            self.open.pop();
            seal(self.hash(), members);
        }
        Ok(false)
    }

    fn hash(&mut self) -> &mut Context {
        self.hashes.last_mut().expect("that of the whole body is never taken away")
    }
}

fn seal(hash: &mut Context, mut members: Vec<Member<'_>>) {
    // Stable: members of one name, which JSON allows, keep their order.
    members.sort_by(|a, b| a.name.cmp(&b.name));
    hash.update(b"{");
    for member in &members {
        hash.update(&member.name);
        hash.update(END);
        match &member.value {
            Value::Scalar(raw) => scalar(raw, hash),
            // No scalar begins like that.
            Value::Digest(key) => {
                hash.update(b"=");
                hash.update(&key.0);
            }
        }
    }
    hash.update(CLOSE);
}

fn scalar(raw: &[u8], hash: &mut Context) {
    match raw {
        [b'"', inner @ .., b'"'] => {
            hash.update(b"\"");
            let text = std::str::from_utf8(inner).unwrap_or_default();
            // Escapes were checked when the body was parsed.
            let _ = json::decode(text, |piece| hash.update(piece.as_bytes()));
            hash.update(END);
        }
        [b'-' | b'0'..=b'9', ..] => number(raw, hash),
        // `true`, `false`, `null`.
        word => hash.update(word),
    }
}

/// Feeds a number as its significant digits and an exponent, which are the same for all spellings of one number.
fn number(raw: &[u8], hash: &mut Context) {
    hash.update(b"#");
    let text = std::str::from_utf8(raw).unwrap_or_default();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let Ok(exponent) = exponent.parse::<i64>() else {
        // No honest number is like that.
        hash.update(raw);
        hash.update(END);
        return;
    };
    let (sign, digits) = match mantissa.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", mantissa),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let (mut whole, mut fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let mut exponent = exponent.saturating_sub(fraction.len() as i64);
    if fraction.is_empty() {
        let significant = whole.trim_end_matches('0');
        exponent = exponent.saturating_add((whole.len() - significant.len()) as i64);
        whole = significant;
    } else if whole.is_empty() {
        fraction = fraction.trim_start_matches('0');
    }
    if whole.is_empty() && fraction.is_empty() {
        hash.update(b"0");
    } else {
        for piece in [sign, whole, fraction, "e"] {
            hash.update(piece.as_bytes());
        }
        hash.update(&exponent.to_le_bytes());
    }
    hash.update(END);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: Scope<'static> = Scope { surface: "chat", principal: None, ignore: &[] };

    fn key_in(text: &str, scope: &Scope<'_>) -> Key {
        of(&Body::parse(text.as_bytes().to_vec()).expect(text), scope)
    }

    fn key(text: &str) -> Key {
        key_in(text, &CHAT)
    }

    const BASE: &str = r#"{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAB"}}]}],"tools":[{"type":"function","function":{"name":"f","description":"does f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}],"temperature":0}"#;

    /// [`BASE`] with one more field.
    fn with(field: &str) -> String {
        format!("{},{field}}}", &BASE[..BASE.len() - 1])
    }

    #[test]
    fn w19_every_field_that_could_matter_does() {
        let mut seen = vec![key(BASE)];
        for field in [
            r#""n":2"#,
            r#""max_tokens":5"#,
            r#""max_completion_tokens":5"#,
            r#""max_completion_tokens":6"#,
            r#""logit_bias":{"50256":-100}"#,
            r#""logprobs":true"#,
            r#""top_logprobs":2"#,
            r#""reasoning_effort":"low""#,
            r#""dimensions":256"#,
            r#""encoding_format":"base64""#,
            r#""functions":[{"name":"f"}]"#,
            r#""function_call":"auto""#,
            r#""parallel_tool_calls":false"#,
            r#""modalities":["text"]"#,
            r#""min_p":0.1"#,
            r#""seed":1"#,
            r#""seed":9007199254740992"#,
            r#""seed":9007199254740993"#,
            r#""stop":"x""#,
            r#""stop":["x"]"#,
            r#""top_p":0.5"#,
            r#""top_k":5"#,
            r#""response_format":{"type":"json_object"}"#,
            r#""tool_choice":"none""#,
            r#""presence_penalty":1"#,
            r#""frequency_penalty":1"#,
            r#""frequency_penalty":-1"#,
            r#""a_field_of_tomorrow":0"#,
        ] {
            let found = key(&with(field));
            assert!(!seen.contains(&found), "{field}");
            seen.push(found);
        }
    }

    #[test]
    fn cache_05_every_difference_within_the_fields_counts() {
        let mut seen = vec![key(BASE)];
        for (from, to) in [
            ("be brief", "be long"),
            (r#""role":"system""#, r#""role":"developer""#),
            ("does f", "does  f"),
            ("AAAB", "AAAC"),
            (r#""temperature":0"#, r#""temperature":0.1"#),
            (r#""text":"hi""#, r#""text":"hi ""#),
            (r#"{"type":"text","text":"hi"},"#, ""),
            (r#""type":"string""#, r#""type":["string"]"#),
            (r#""a":{"type":"string"}"#, r#""a":{"type":"string","default":null}"#),
        ] {
            assert!(BASE.contains(from), "{from}");
            let found = key(&BASE.replace(from, to));
            assert!(!seen.contains(&found), "{from}");
            seen.push(found);
        }
    }

    #[test]
    fn what_does_not_change_an_answer_does_not_count() {
        for field in [
            r#""stream":true"#,
            r#""stream_options":{"include_usage":true}"#,
            r#""user":"u""#,
            r#""metadata":{"a":"b"}"#,
            r#""session":"s""#,
            r#""store":true"#,
            r#""safety_identifier":"x""#,
            r#""prompt_cache_key":"x""#,
            r#""service_tier":"flex""#,
            r#""stop":null"#,
        ] {
            assert_eq!(key(&with(field)), key(BASE), "{field}");
        }
        assert_eq!(key(&BASE.replace(r#""model":"m""#, r#""model":"auto""#)), key(BASE));
        let ignore = ["trace".to_owned()];
        let scope = Scope { ignore: &ignore, ..CHAT };
        assert_eq!(key_in(&with(r#""trace":7"#), &scope), key(BASE));
        assert_ne!(key(&with(r#""trace":7"#)), key(BASE));
    }

    #[test]
    fn one_value_in_several_spellings_is_one_value() {
        let same = |a: &str, b: &str| assert_eq!(key(a), key(b), "{a} and {b}");
        let differs = |a: &str, b: &str| assert_ne!(key(a), key(b), "{a} and {b}");
        same(r#"{"a":1,"b":{"c":2,"d":[3]}}"#, " { \"b\" : { \"d\":[ 3 ] , \"c\":2 } ,\n\"a\":1 }");
        same(r#"{"a":"é\n/😀"}"#, r#"{"a":"\u00e9\u000a\/\ud83d\ude00"}"#);
        same(r#"{"x":{"a":1}}"#, r#"{"x":{"\u0061":1}}"#);
        for spelling in ["1.0", "1e0", "10e-1", "0.1E+1", "1.000"] {
            same(r#"{"t":1}"#, &format!("{{\"t\":{spelling}}}"));
        }
        same(r#"{"t":0}"#, r#"{"t":-0.0e5}"#);
        same(r#"{"t":1200}"#, r#"{"t":1.2e3}"#);
        same(r#"{"t":0.00120}"#, r#"{"t":12e-4}"#);
        differs(r#"{"t":1}"#, r#"{"t":-1}"#);
        differs(r#"{"t":1}"#, r#"{"t":10}"#);
        differs(r#"{"t":0.1}"#, r#"{"t":0.10000000000000001}"#);
        differs(r#"{"t":1e99999999999999999999}"#, r#"{"t":1e99999999999999999998}"#);
        differs(r#"{"t":1}"#, r#"{"t":"1"}"#);
        differs(r#"{"t":"null"}"#, r#"{"t":[null]}"#);
        differs(r#"{"t":[["a"],"b"]}"#, r#"{"t":[["a","b"]]}"#);
        differs(r#"{"t":["ab","c"]}"#, r#"{"t":["a","bc"]}"#);
        differs(r#"{"t":{"a":{"b":1}}}"#, r#"{"t":{"a":{},"b":1}}"#);
        differs(r#"{"t":{"a":null}}"#, r#"{"t":{}}"#);
        differs(r#"{"t":[true]}"#, r#"{"t":[false]}"#);
    }

    #[test]
    fn surfaces_and_owners_have_keys_of_their_own() {
        let owner = |byte: u8| Scope { principal: Some(Some(Principal::of(&[byte; 32]))), ..CHAT };
        let nobody = Scope { principal: Some(None), ..CHAT };
        let keys = [
            key(BASE),
            key_in(BASE, &Scope { surface: "embeddings", ..CHAT }),
            key_in(BASE, &owner(1)),
            key_in(BASE, &owner(2)),
            key_in(BASE, &nobody),
        ];
        let distinct: std::collections::BTreeSet<Key> = keys.into_iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn no_name_can_pass_for_the_end_of_what_it_stands_in() {
        for (a, b) in [
            (r#"{"tools":[{},{"a":1}]}"#, r#"{"tools":[{"}{a":1}]}"#),
            (r#"{"m":[{}],"x":1,"}]z":2}"#, r#"{"m":[{"}]x":1}],"z":2}"#),
        ] {
            assert_ne!(key(a), key(b), "{a} and {b}");
        }
    }

    #[test]
    fn the_deepest_body_that_is_taken_has_a_key() {
        let deep = |inner: &str| format!("{{\"x\":{}{inner}{}}}", "{\"a\":".repeat(127), "}".repeat(127));
        assert_ne!(key(&deep("1")), key(&deep("2")));
    }
}
