//! What every judgement of an upstream's answer begins with: is it JSON, and does it say that the upstream failed? A
//! status of 200 proves neither.
use std::borrow::Cow;

use super::json::{self, Cursor, Flaw};
use super::usage::Usage;

/// A 200 that is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAnswer {
    pub why: Why,
    /// The upstream may have counted tokens all the same.
    pub usage: Option<Usage>,
}

/// What came instead of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// A page for people.
    Html,
    /// Something else that is not JSON, or JSON that is no object.
    NotJson,
    /// JSON that stops in the middle, or nothing at all.
    Truncated,
    /// An error; the body as it came.
    Error(Vec<u8>),
    /// No choices, or no vectors.
    NoChoices,
    /// An answer that would become too long in the form that the client asked for.
    TooLong,
    /// Choices that say nothing, and no finish reason that would explain it; fewer vectors than inputs.
    Empty,
}

impl From<Why> for NoAnswer {
    fn from(why: Why) -> NoAnswer {
        NoAnswer { why, usage: None }
    }
}

/// The text of a body that begins as a JSON object, in UTF-8 without lone surrogates; broken characters become U+FFFD. Its
/// grammar is left to whoever reads it.
pub fn object_text(body: &[u8]) -> Result<Cow<'_, [u8]>, Why> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii();
    let mut text = match std::str::from_utf8(body) {
        Ok(_) => Cow::Borrowed(body),
        Err(_) => Cow::Owned(String::from_utf8_lossy(body).into_owned().into_bytes()),
    };
    match text.first() {
        None => return Err(Why::Truncated),
        Some(b'<') => return Err(Why::Html),
        Some(b'{') => {}
        Some(b'[') => {
            check_grammar(&text)?;
            return Err(if says_error(&text) { Why::Error(text.into_owned()) } else { Why::NotJson });
        }
        Some(_) => return Err(Why::NotJson),
    }
    // All surrogates begin like this, halves and pairs.
    if [b"\\ud", b"\\uD"].iter().any(|start| memchr::memmem::find(&text, *start).is_some()) {
        json::mend_surrogates(text.to_mut());
    }
    Ok(text)
}

/// The same, for who relies on its grammar.
pub fn json_object(body: &[u8]) -> Result<Cow<'_, [u8]>, Why> {
    let text = object_text(body)?;
    check_grammar(&text)?;
    Ok(text)
}

fn check_grammar(text: &[u8]) -> Result<(), Why> {
    let mut cursor = Cursor::new(text);
    cursor.skip().and_then(|_| cursor.end()).map_err(|flaw| flawed(flaw, text))
}

/// What a flaw in the grammar of `text` means.
pub fn flawed(flaw: Flaw, text: &[u8]) -> Why {
    if flaw.at >= text.len() { Why::Truncated } else { Why::NotJson }
}

/// Whether a JSON value that carries no answer says that the upstream failed: an error object or text, a list of them
/// (Google), a failed envelope (Cloudflare), `detail` (FastAPI).
pub fn says_error(raw: &[u8]) -> bool {
    let mut cursor = Cursor::new(raw);
    match cursor.peek() {
        Some(b'{') => object_says_error(&mut cursor).unwrap_or(false),
        Some(b'[') => {
            let mut first = || -> Result<Option<&[u8]>, Flaw> {
                cursor.open(b'[')?;
                if cursor.item()? { cursor.skip().map(Some) } else { Ok(None) }
            };
            matches!(first(), Ok(Some(item)) if item.starts_with(b"{") && says_error(item))
        }
        _ => false,
    }
}

fn object_says_error(cursor: &mut Cursor<'_>) -> Result<bool, Flaw> {
    cursor.open(b'{')?;
    // A message alone may be mere news ("queued"); with a code beside it, it is a complaint.
    let (mut says, mut message, mut code) = (false, false, false);
    while let Some(name) = cursor.member()? {
        let raw = cursor.skip()?;
        match name {
            b"error" | b"errors" | b"detail" => says |= !json::is_blank(Some(raw)) && raw != b"false",
            b"object" | b"type" if raw == b"\"error\"" => says = true,
            b"success" => says |= raw == b"false",
            b"message" | b"msg" | b"error_message" => message |= raw.starts_with(b"\"") && raw.len() > 2,
            b"code" | b"status" | b"status_code" | b"statusCode" | b"type" => {
                code |= !json::is_blank(Some(raw))
            }
            _ => {}
        }
    }
    Ok(says || (message && code))
}

/// Whether a whole body without an answer gives a reason: it says that it is an error, or holds a message.
pub fn gives_reason(raw: &[u8]) -> bool {
    says_error(raw)
        || ["message", "msg"].iter().any(|name| json::member(raw, name).and_then(json::text).is_some())
}

/// The text of a list of content parts, thoughts apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PartsText {
    pub text: String,
    pub thinking: String,
}

/// Joins the parts of a content list: text as text, `thinking` parts (Mistral) as thoughts.
pub fn text_of_parts(raw: &[u8]) -> PartsText {
    let mut parts = PartsText::default();
    // Broken text was refused before; what could be read of it until then is kept.
    let _ = collect_parts(raw, &mut parts);
    parts
}

fn collect_parts(raw: &[u8], parts: &mut PartsText) -> Result<(), Flaw> {
    let mut cursor = Cursor::new(raw);
    if !cursor.open(b'[')? {
        return Ok(());
    }
    while cursor.item()? {
        let part = cursor.skip()?;
        if let Some(text) = json::text(part) {
            parts.text.push_str(&text);
        } else if let Some(thinking) = json::member(part, "thinking") {
            match json::text(thinking) {
                Some(text) => parts.thinking.push_str(&text),
                None => parts.thinking.push_str(&text_of_parts(thinking).text),
            }
        } else if let Some(text) = json::member(part, "text").and_then(json::text) {
            parts.text.push_str(&text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w10_a_body_that_is_no_json_object_is_no_answer() {
        let check = |body: &[u8], expected: Why| {
            assert_eq!(object_text(body), Err(expected), "{}", String::from_utf8_lossy(body));
        };
        check(b"<!doctype", Why::Html);
        check(b"  \r\n<html>busy</html>", Why::Html);
        check(b"", Why::Truncated);
        check(b" \n", Why::Truncated);
        check(b"busy", Why::NotJson);
        check(b"[1,2]", Why::NotJson);
        check(b"[{\"error\":{\"code\":400}}", Why::Truncated);
        check(b"null", Why::NotJson);
        check("[".repeat(100_000).as_bytes(), Why::NotJson);
        check(b"[{\"error\":{\"code\":400}}]", Why::Error(b"[{\"error\":{\"code\":400}}]".to_vec()));
        let good = |body: &[u8], expected: &str| {
            assert_eq!(object_text(body).map(|text| text.into_owned()), Ok(expected.as_bytes().to_vec()));
        };
        good(b"\xef\xbb\xbf {\"a\":1}\n", "{\"a\":1}");
        good(b"{\"a\":\"\xff\\ud800\"}", "{\"a\":\"\u{fffd}\\ufffd\"}");
        good(br#"{"a":"\ud83e\udd8a"}"#, r#"{"a":"\ud83e\udd8a"}"#);
    }

    #[test]
    fn errors_are_known_in_every_dress() {
        for error in [
            r#"{"error":{"message":"x"}}"#,
            r#"{"error":"x"}"#,
            r#"{"error":true}"#,
            r#"[{"error":{"code":503}}]"#,
            r#"{"object":"error","message":"x"}"#,
            r#"{"detail":[{"loc":["body"]}]}"#,
            r#"{"message":"x","code":1261}"#,
            r#"{"result":null,"success":false,"errors":[],"messages":[]}"#,
            r#"{"type":"error"}"#,
        ] {
            assert!(says_error(error.as_bytes()), "{error}");
        }
        for none in [
            "{}",
            "[]",
            "[1]",
            "7",
            r#"{"error":null}"#,
            r#"{"error":{}}"#,
            r#"{"error":""}"#,
            r#"{"error":false}"#,
            r#"{"message":{"role":"assistant"}}"#,
            r#"{"success":true,"errors":[]}"#,
            r#"{"message":"queued"}"#,
            r#"{"usage":{}}"#,
        ] {
            assert!(!says_error(none.as_bytes()), "{none}");
        }
        assert!(gives_reason(br#"{"message":"x"}"#) && !gives_reason(b"{}"));
    }

    #[test]
    fn parts_are_joined_and_thoughts_kept_apart() {
        let check = |raw: &str, text: &str, thinking: &str| {
            let expected = PartsText { text: text.into(), thinking: thinking.into() };
            assert_eq!(text_of_parts(raw.as_bytes()), expected, "{raw}");
        };
        check(r#"["a",{"type":"text","text":"\u00e9"},{"text":"c"}]"#, "aéc", "");
        check(
            r#"[{"type":"thinking","thinking":[{"type":"text","text":"h"},"m"]},{"type":"text","text":"x"}]"#,
            "x",
            "hm",
        );
        check(r#"[{"type":"thinking","thinking":"hm"},{"type":"image_url"},7]"#, "", "hm");
    }
}
