//! The newest user turn of a conversation as a question, and everything else as what it is asked in. Pure.
use std::borrow::Cow;

use ring::digest::{Context, SHA256};

use super::key::{self, Key, Scope};
use super::semantic::TEXT_BYTES;
use crate::wire::body::{Body, Edits};
use crate::wire::json::{self, Cursor, Flaw};

/// A question that may be compared with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The digest of everything but the text: system messages, tools, parameters, the whole history.
    pub scope: Key,
    pub text: Box<str>,
}

impl Asked {
    /// One name for scope and text together.
    pub fn digest(&self) -> Key {
        let mut hash = Context::new(&SHA256);
        hash.update(&self.scope.0);
        hash.update(self.text.as_bytes());
        Key(hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// The question that a chat body ends with. `None` when that is no user's turn, or when the turn holds anything but
/// text, too little of it, or too much.
pub fn asked(body: &Body, scope: &Scope<'_>) -> Option<Asked> {
    let (text, rest) = parted(body.raw("messages")?).ok()??;
    let text = text.trim();
    if !TEXT_BYTES.contains(&text.len()) {
        return None;
    }
    let mut edits = Edits::default();
    edits.set("messages", rest);
    let without = Body::parse(body.spliced(&edits)).ok()?;
    Some(Asked { scope: key::of(&without, scope), text: text.into() })
}

/// The text of the newest message, and all messages without it.
fn parted(messages: &[u8]) -> Result<Option<(String, Vec<u8>)>, Flaw> {
    let mut cursor = Cursor::new(messages);
    let mut last = None;
    if cursor.open(b'[')? {
        while cursor.item()? {
            let message = cursor.skip()?;
            last = Some((cursor.at() - message.len(), message));
        }
    }
    let Some((at, message)) = last else { return Ok(None) };
    let mut rest = messages[..at].to_vec();
    let Some(text) = question(message, &mut rest)? else { return Ok(None) };
    rest.push(b']');
    Ok(Some((text, rest)))
}

/// The text of a user's message; `rest` gets the message without it.
fn question(message: &[u8], rest: &mut Vec<u8>) -> Result<Option<String>, Flaw> {
    let mut cursor = Cursor::new(message);
    if !cursor.open(b'{')? {
        return Ok(None);
    }
    let (mut text, mut is_user) = (None, false);
    let mut separator = b'{';
    while let Some(name) = cursor.member()? {
        let value = cursor.skip()?;
        if json::is_named(name, "content") {
            text = texts(value)?;
            continue;
        }
        is_user |= json::is_named(name, "role") && json::text(value).as_deref() == Some("user");
        rest.push(separator);
        rest.push(b'"');
        rest.extend_from_slice(name);
        rest.extend_from_slice(b"\":");
        rest.extend_from_slice(value);
        separator = b',';
    }
    rest.push(b'}');
    Ok(text.filter(|_| is_user))
}

/// A text, or the texts of parts that are nothing else, with a space between them.
fn texts(content: &[u8]) -> Result<Option<String>, Flaw> {
    if let Some(text) = json::text(content) {
        return Ok(Some(text.into_owned()));
    }
    let mut cursor = Cursor::new(content);
    let mut parts: Vec<Cow<'_, str>> = Vec::new();
    if !cursor.open(b'[')? {
        return Ok(None);
    }
    while cursor.item()? {
        let part = cursor.skip()?;
        let kind = json::member(part, "type").and_then(json::text);
        match json::member(part, "text").and_then(json::text).filter(|_| kind.as_deref() == Some("text")) {
            Some(text) => parts.push(text),
            None => return Ok(None),
        }
    }
    Ok(Some(parts.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope<'static> = Scope { surface: "question", principal: None, ignore: &[] };

    fn of(text: &str) -> Option<Asked> {
        asked(&Body::parse(text.as_bytes().to_vec()).expect(text), &SCOPE)
    }

    fn with(messages: &str) -> Option<Asked> {
        of(&format!("{{\"model\":\"m\",\"temperature\":0,\"messages\":[{messages}]}}"))
    }

    fn scope(text: &str) -> Key {
        of(text).expect(text).scope
    }

    #[test]
    fn the_newest_user_turn_is_the_question() {
        let text = |messages: &str| with(messages).map(|asked| asked.text.into_string());
        let check = |messages: &str, expected: Option<&str>| {
            assert_eq!(text(messages).as_deref(), expected, "{messages}")
        };
        check(r#"{"role":"user","content":" What is \u0041? "}"#, Some("What is A?"));
        check(r#"{"content":"b","role":"user"}"#, None);
        check(r#"{"content":"bc","role":"user"}"#, Some("bc"));
        check(
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
            Some("a b"),
        );
        check(
            r#"{"role":"user","content":"old"},{"role":"assistant","content":"x"},{"role":"user","content":"new"}"#,
            Some("new"),
        );
        check("", None);
        check(r#"{"role":"user","content":""}"#, None);
        check(r#"{"role":"user","content":null}"#, None);
        check(r#"{"role":"system","content":"be brief"}"#, None);
        check(r#"{"role":"user","content":"hello"},{"role":"assistant","content":"x"}"#, None);
        check(r#"{"role":"user","content":"hello"},{"role":"tool","tool_call_id":"c","content":"x"}"#, None);
        check(
            r#"{"role":"user","content":[{"type":"text","text":"what is this"},{"type":"image_url","image_url":{"url":"u"}}]}"#,
            None,
        );
        check(&format!(r#"{{"role":"user","content":"{}"}}"#, "x ".repeat(600)), None);
    }

    #[test]
    fn w18_everything_but_the_text_is_the_scope() {
        const BASE: &str = r#"{"model":"m","temperature":0,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"about B"},{"role":"assistant","content":"B is b"},{"role":"user","content":"and in Paris?"}],"tools":[{"type":"function","function":{"name":"f"}}]}"#;
        let base = scope(BASE);
        assert_eq!(scope(&BASE.replace("and in Paris?", "what about Paris?")), base);
        assert_eq!(scope(&BASE.replace(r#""model":"m""#, r#""model":"auto","stream":true"#)), base);
        for (from, to) in [
            ("be brief", "be long"),
            ("about B", "about A"),
            ("B is b", "B is c"),
            (r#"{"role":"system","content":"be brief"},"#, ""),
            (r#"{"role":"user","content":"about B"},{"role":"assistant","content":"B is b"},"#, ""),
            (r#""name":"f""#, r#""name":"g""#),
            (r#""temperature":0"#, r#""temperature":0.1"#),
            (r#""temperature":0"#, r#""temperature":0,"max_tokens":5"#),
            (r#""temperature":0"#, r#""temperature":0,"response_format":{"type":"json_object"}"#),
            (r#"{"role":"user","content":"and"#, r#"{"role":"user","name":"ann","content":"and"#),
        ] {
            assert!(BASE.contains(from), "{from}");
            assert_ne!(scope(&BASE.replacen(from, to, 1)), base, "{from}");
        }
        let owned = |byte: u8| {
            let principal = Some(Some(crate::catalog::client_key::Principal::of(&[byte; 32])));
            asked(&Body::parse(BASE.as_bytes().to_vec()).expect("JSON"), &Scope { principal, ..SCOPE })
        };
        assert_ne!(owned(1), owned(2));
    }

    #[test]
    fn a_question_is_told_from_others_by_scope_and_text() {
        let digest = |scope: u8, text: &str| Asked { scope: Key([scope; 32]), text: text.into() }.digest();
        assert_eq!(digest(1, "ab"), digest(1, "ab"));
        assert_ne!(digest(1, "ab"), digest(2, "ab"));
        assert_ne!(digest(1, "ab"), digest(1, "ac"));
    }
}
