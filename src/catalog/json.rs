//! Files written by people: JSON in which `//` and `/* */` comments and trailing commas are allowed, and in which a
//! key that stands twice is an error instead of a silent loss. Pure.
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads such a file. The error says the line and the column, both from 1.
pub fn parse(text: &str) -> Result<Value, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let plain = strip(text)?;
    match serde_json::from_str::<Unique>(&plain) {
        Ok(Unique(value)) => Ok(value),
        Err(error) => {
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or(&what);
            Err(format!("line {}, column {}: {what}", error.line(), error.column()))
        }
    }
}

/// Blanks comments and trailing commas, so that every other byte keeps its line and column.
fn strip(text: &str) -> Result<String, String> {
    let mut out = without_comments(text)?.into_bytes();
    // Where the last two bytes that are no space stand.
    let mut last: [Option<usize>; 2] = [None, None];
    let mut i = 0;
    while i < out.len() {
        match out[i] {
            b'"' => {
                last = [Some(i), last[0]];
                i = string_end(&out, i);
                continue;
            }
            b']' | b'}' => {
                if let [Some(comma), Some(before)] = last {
                    if out[comma] == b',' && !b"[{,:".contains(&out[before]) {
                        out[comma] = b' ';
                    }
                }
                last = [Some(i), last[0]];
            }
            b if !b.is_ascii_whitespace() => last = [Some(i), last[0]],
            _ => {}
        }
        i += 1;
    }
    // Only ASCII commas became spaces.
    Ok(String::from_utf8(out).expect("blanking commas keeps UTF-8 valid"))
}

/// Blanks comments, so that every other byte keeps its line and column.
pub(super) fn without_comments(text: &str) -> Result<String, String> {
    let mut out = text.as_bytes().to_vec();
    let mut i = 0;
    while i < out.len() {
        match (out[i], out.get(i + 1)) {
            (b'"', _) => i = string_end(&out, i),
            (b'/', Some(b'/')) => {
                while i < out.len() && out[i] != b'\n' {
                    out[i] = b' ';
                    i += 1;
                }
            }
            (b'/', Some(b'*')) => {
                let Some(length) = memchr::memmem::find(&out[i + 2..], b"*/") else {
                    let line = 1 + out[..i].iter().filter(|b| **b == b'\n').count();
                    return Err(format!("line {line}: the comment that begins here has no `*/`"));
                };
                let end = i + 2 + length + 2;
                out[i..end].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
                i = end;
            }
            _ => i += 1,
        }
    }
    // Only whole comments became spaces.
    Ok(String::from_utf8(out).expect("blanking whole comments keeps UTF-8 valid"))
}

/// The index after the string that begins at `start`.
pub(super) fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut i = start + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'"' => return i + 1,
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
    bytes.len()
}

/// A value without repeated keys.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Unique(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let Unique(value) = map.next_value()?;
            // Keys that begin with two slashes are comments of an older kind, and those may repeat.
            if !name.starts_with("//") && members.contains_key(&name) {
                return Err(A::Error::custom(format!("`{name}` stands twice; keep one of them")));
            }
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn comments_and_trailing_commas_are_allowed() {
        let check = |text: &str, expected: Value| assert_eq!(parse(text), Ok(expected), "{text}");
        check("\u{feff}{\"a\": 1, // one\n \"b\": [1, 2, /* , */ ], }", json!({"a": 1, "b": [1, 2]}));
        check(r#"{"url": "https://x/*y*/,]", "q": "\",}"}"#, json!({"url": "https://x/*y*/,]", "q": "\",}"}));
        check("/* é */ [\"é\",]", json!(["é"]));
        check(
            r#"{"n": 9007199254740993, "f": 1.5, "no": null}"#,
            json!({"n": 9_007_199_254_740_993u64, "f": 1.5, "no": null}),
        );
    }

    #[test]
    fn faults_say_where() {
        let check = |text: &str, expected: &str| {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("{\n  \"a\": 1\n  \"b\": 2\n}", "line 3, column 3");
        check("[,]", "line 1, column 2");
        check("[1,,]", "line 1");
        check("{\n/* open", "line 2");
        check("{\"a\": 1, \"a\": 2}", "`a` stands twice");
        check("", "EOF");
        check(&"[".repeat(100_000), "recursion limit");
    }
}
