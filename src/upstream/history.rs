//! The messages of a request, as one upstream takes them. Only what has to differ is changed, at its place in the
//! bytes; most requests need no change at all.
use std::ops::Range;

use crate::catalog::provider::{Quirks, ToolIds};
use crate::wire::chat::Shape;
use crate::wire::json::{self, Cursor, Flaw};
use crate::wire::patch::{Patch, Track};
use crate::wire::whole_calls;

use super::tools::CallIds;

/// Members that no quirk may remove.
const ESSENTIAL: [&str; 4] = ["role", "content", "tool_calls", "tool_call_id"];

/// The messages to send, when they differ from `raw`, which [`crate::wire::chat`] has checked.
pub fn adapted(raw: &[u8], shape: &Shape, quirks: &Quirks) -> Result<Option<Vec<u8>>, Flaw> {
    if !needs_change(shape, quirks) {
        return Ok(None);
    }
    let mut history = History { raw, quirks, ids: CallIds::new(quirks.tool_ids), patch: Patch::default() };
    let mut cursor = Cursor::new(raw);
    cursor.open(b'[')?;
    while cursor.item()? {
        if cursor.open(b'{')? {
            history.message(&mut cursor)?;
        } else {
            cursor.skip()?;
        }
    }
    if history.patch.is_empty() {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(raw.len() + 256);
    history.patch.apply(raw, &mut out);
    Ok(Some(out))
}

fn needs_change(shape: &Shape, quirks: &Quirks) -> bool {
    let content_beside_calls = if quirks.null_content_refused {
        shape.calls_with_null || shape.calls_with_blank
    } else {
        shape.calls_with_blank
    };
    shape.untidy
        || content_beside_calls
        || (shape.developer && !quirks.developer_role)
        || (shape.parts && quirks.flatten_content)
        || (shape.tool_calls && quirks.tool_ids != ToolIds::Any)
        || ((shape.extras || shape.tool_calls) && !quirks.drop_message_fields.is_empty())
}

struct History<'a> {
    raw: &'a [u8],
    quirks: &'a Quirks,
    ids: CallIds,
    patch: Patch,
}

/// One member of a message.
struct Member<'a> {
    name: std::borrow::Cow<'a, str>,
    name_at: usize,
    value: Range<usize>,
}

impl<'a> History<'a> {
    fn message(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Flaw> {
        let mut track = Track::new(cursor.at());
        let mut members = Vec::with_capacity(8);
        while let Some(name) = cursor.member()? {
            let name_at = cursor.name_at();
            let value = cursor.skip()?;
            let name = json::unescape(name).unwrap_or_default();
            members.push(Member { name, name_at, value: cursor.at() - value.len()..cursor.at() });
        }
        let close = cursor.at() - 1;
        let message = Message::of(self.raw, &members);
        for member in &members {
            track.begin(member.name_at, &mut self.patch);
            let end = member.value.end;
            if self.goes(member) {
                track.remove(member.name_at, end, &mut self.patch);
                continue;
            }
            match &*member.name {
                "role" => self.role(&message, member),
                "content" => self.content(&message, member)?,
                "tool_calls" => self.calls(member)?,
                "tool_call_id" if message.is_result() => self.result_id(&message, member),
                _ => {}
            }
            track.keep(end);
        }
        track.close(close, &mut self.patch);
        let has = |name: &str| members.iter().any(|member| member.name == name);
        if !has("content") {
            if let Some(content) = self.blank_content(&message) {
                track.add("content", content, &mut self.patch);
            }
        }
        if message.is_result() && !has("tool_call_id") {
            let id = json::quoted(&self.ids.result(None));
            track.add("tool_call_id", &id, &mut self.patch);
        }
        Ok(())
    }

    fn value(&self, member: &Member<'_>) -> &'a [u8] {
        &self.raw[member.value.clone()]
    }

    /// Whether a member is left out.
    fn goes(&self, member: &Member<'_>) -> bool {
        let name = &*member.name;
        let blank_calls = name == "tool_calls" && json::is_blank(Some(self.value(member)));
        let dropped = self.quirks.drop_message_fields.iter().any(|dropped| dropped == name);
        blank_calls || (dropped && !ESSENTIAL.contains(&name))
    }

    fn role(&mut self, message: &Message, member: &Member<'_>) {
        let role = match message.role {
            Role::Developer if !self.quirks.developer_role => "system",
            Role::NamedResult => "tool",
            _ => return,
        };
        self.patch.replace_with(member.value.clone(), |pool| json::quote(role, pool));
    }

    fn content(&mut self, message: &Message, member: &Member<'_>) -> Result<(), Flaw> {
        let raw = self.value(member);
        if json::is_blank(Some(raw)) {
            if let Some(content) = self.blank_content(message).filter(|content| *content != raw) {
                self.patch.replace(member.value.clone(), content);
            }
            return Ok(());
        }
        if !raw.starts_with(b"[") {
            return Ok(());
        }
        if self.quirks.flatten_content {
            if let Some(text) = joined_text(raw)? {
                self.patch.replace_with(member.value.clone(), |pool| json::quote(&text, pool));
                return Ok(());
            }
        }
        tidy_parts(raw, member.value.start, &mut self.patch)
    }

    /// What is sent where there is no content; `None` when nothing has to be said.
    fn blank_content(&self, message: &Message) -> Option<&'static [u8]> {
        match message.role {
            Role::Assistant if message.has_calls && !self.quirks.null_content_refused => Some(b"null"),
            Role::Assistant if message.speaks_otherwise => None,
            Role::Assistant | Role::Result | Role::NamedResult | Role::OldResult => Some(b"\"\""),
            Role::Developer | Role::Other => None,
        }
    }

    fn calls(&mut self, member: &Member<'_>) -> Result<(), Flaw> {
        let raw = self.value(member);
        let ids = &mut self.ids;
        let mut id_rule = |given: Option<&[u8]>| {
            let written = given.and_then(json::text);
            let sent = ids.call(written.as_deref());
            (written.as_deref() != Some(&*sent)).then(|| json::quoted(&sent))
        };
        let dropped = &self.quirks.drop_message_fields;
        whole_calls::tidy(raw, member.value.start, &mut id_rule, dropped, &mut self.patch)
    }

    fn result_id(&mut self, message: &Message, member: &Member<'_>) {
        debug_assert!(message.is_result());
        let written = json::text(self.value(member));
        let sent = self.ids.result(written.as_deref());
        if written.as_deref() != Some(&*sent) {
            self.patch.replace(member.value.clone(), &json::quoted(&sent));
        }
    }
}

/// What a message is.
struct Message {
    role: Role,
    has_calls: bool,
    /// `function_call`, `refusal` or `audio` take the place of content.
    speaks_otherwise: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Developer,
    Assistant,
    Result,
    /// A result that calls itself `function` but answers by id.
    NamedResult,
    /// A result of the time before tools, which has a name and no id.
    OldResult,
    Other,
}

impl Message {
    fn of(raw: &[u8], members: &[Member<'_>]) -> Message {
        let given = |name: &str| {
            let member = members.iter().rev().find(|member| member.name == name);
            member.map(|member| &raw[member.value.clone()]).filter(|value| *value != b"null")
        };
        let role = match given("role").and_then(json::text).as_deref() {
            Some("developer") => Role::Developer,
            Some("assistant") => Role::Assistant,
            Some("tool") => Role::Result,
            Some("function") if given("tool_call_id").is_some() => Role::NamedResult,
            Some("function") => Role::OldResult,
            _ => Role::Other,
        };
        let speaks = ["function_call", "refusal", "audio"];
        Message {
            role,
            has_calls: !json::is_blank(given("tool_calls")),
            speaks_otherwise: speaks.iter().any(|name| given(name).is_some()),
        }
    }

    fn is_result(&self) -> bool {
        matches!(self.role, Role::Result | Role::NamedResult)
    }
}

/// The text of a list of parts, joined without anything between; `None` when a part is no text, since a picture must
/// not be lost in silence.
fn joined_text(raw: &[u8]) -> Result<Option<String>, Flaw> {
    let mut text = String::new();
    let mut cursor = Cursor::new(raw);
    cursor.open(b'[')?;
    while cursor.item()? {
        let part = cursor.skip()?;
        let kind = json::member(part, "type").and_then(json::text);
        let is_text = kind.is_none_or(|kind| matches!(&*kind, "text" | "input_text" | "output_text"));
        let words = json::text(part).or_else(|| json::member(part, "text").and_then(json::text));
        match words.filter(|_| is_text) {
            Some(words) => text.push_str(&words),
            None => return Ok(None),
        }
    }
    Ok(Some(text))
}

/// Makes text parts of bare texts, and names the type of parts that only hold text.
fn tidy_parts(raw: &[u8], base: usize, patch: &mut Patch) -> Result<(), Flaw> {
    let mut cursor = Cursor::new(raw);
    cursor.open(b'[')?;
    while cursor.item()? {
        let part = cursor.skip()?;
        let start = base + cursor.at() - part.len();
        if part.starts_with(b"\"") {
            patch.replace(start..start, b"{\"type\":\"text\",\"text\":");
            patch.replace(start + part.len()..start + part.len(), b"}");
        } else if json::member(part, "type").is_none_or(|kind| kind == b"null")
            && json::member(part, "text").is_some()
        {
            // A later member of the same name wins, so an explicit null in front does no harm.
            let end = start + part.len() - 1;
            patch.replace(end..end, b",\"type\":\"text\"");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::body::Body;
    use crate::wire::chat::ChatFacts;

    /// What is sent of these messages.
    fn sent(messages: &str, quirks: &Quirks) -> String {
        let body = Body::parse(format!(r#"{{"messages":{messages}}}"#).into_bytes()).expect("valid JSON");
        let facts = ChatFacts::read(&body, 500).expect(messages);
        let raw = body.raw("messages").expect("messages");
        let out = adapted(raw, &facts.shape, quirks).expect("valid JSON").unwrap_or_else(|| raw.to_vec());
        let out = String::from_utf8(out).expect("UTF-8");
        let again = Body::parse(format!(r#"{{"messages":{out}}}"#).into_bytes()).expect("still valid JSON");
        assert!(!ChatFacts::read(&again, 500).expect("still good").shape.untidy, "{out}");
        out
    }

    fn check(messages: &str, quirks: &Quirks, expected: &str) {
        assert_eq!(sent(messages, quirks), expected, "{messages}");
    }

    /// An upstream that takes everything OpenAI takes.
    fn plain() -> Quirks {
        Quirks { developer_role: true, ..Quirks::default() }
    }

    fn call(id: &str, content: &str) -> String {
        format!(
            r#"{{"role":"assistant",{content}"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}]}}"#
        )
    }

    #[test]
    fn tidy_messages_are_sent_as_they_came() {
        let messages = format!(
            r#"[ {{"role":"developer","content":"d"}},{{"role":"user","content":[{{"type":"text","text":"\u00e9"}}],"seed":9007199254740993}}, {},{{"role":"tool","tool_call_id":"c1","content":"x"}} ]"#,
            call("c1", r#""content":null,"#)
        );
        check(&messages, &plain(), &messages);
    }

    #[test]
    fn req_01_the_developer_becomes_the_system() {
        let messages = r#"[{"role":"system","content":"S"},{"content":"D","role" : "developer"},{"role":"user","content":"hi"}]"#;
        check(messages, &plain(), messages);
        check(messages, &Quirks::default(), &messages.replace("developer", "system"));
    }

    #[test]
    fn req_02_03_texts_are_joined_and_pictures_are_not_lost() {
        let flat = Quirks { flatten_content: true, ..plain() };
        let messages = r#"[{"role":"user","content":[{"type":"text","text":"Hel"},{"type":"text","text":"l\"o"}]},{"role":"assistant","content":[{"type":"text","text":"x"}]},{"role":"user","content":"again"}]"#;
        check(messages, &plain(), messages);
        check(
            messages,
            &flat,
            r#"[{"role":"user","content":"Hell\"o"},{"role":"assistant","content":"x"},{"role":"user","content":"again"}]"#,
        );
        let image = r#"[{"role":"user","content":[{"type":"text","text":"what is this?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}]"#;
        check(image, &flat, image);
    }

    #[test]
    fn req_05_members_that_an_upstream_refuses_go() {
        let strict = Quirks {
            drop_message_fields: ["reasoning_content", "metadata", "extra_content", "role"]
                .map(String::from)
                .to_vec(),
            ..plain()
        };
        let messages = r#"[{"role":"user","content":"a"},{"reasoning_content":"r","role":"assistant","content":"c","metadata":{"x":true}}]"#;
        check(messages, &plain(), messages);
        check(messages, &strict, r#"[{"role":"user","content":"a"},{"role":"assistant","content":"c"}]"#);
        // TOOL-08: a signature goes to who made it, and to nobody who refuses it.
        let signed = r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"},"extra_content":{"google":{"thought_signature":"c2ln"}}}]}]"#;
        check(signed, &plain(), signed);
        check(
            signed,
            &strict,
            &signed.replace(r#","extra_content":{"google":{"thought_signature":"c2ln"}}"#, ""),
        );
    }

    #[test]
    fn tool_09_ids_are_mapped_for_calls_and_results_alike() {
        let short = Quirks { tool_ids: ToolIds::Alnum9, ..plain() };
        let messages = format!(
            r#"[{},{{"role":"tool","tool_call_id":"call_000000001a","content":"x"}},{},{{"role":"tool","tool_call_id":"aB3dE6gH9","content":"y"}}]"#,
            call("call_000000001a", r#""content":null,"#),
            call("aB3dE6gH9", r#""content":null,"#)
        );
        check(&messages, &plain(), &messages);
        let out = sent(&messages, &short);
        let mut ids = CallIds::new(ToolIds::Alnum9);
        assert_eq!(out, messages.replace("call_000000001a", &ids.call(Some("call_000000001a"))));
    }

    #[test]
    fn tool_10_missing_content_takes_the_form_the_upstream_wants() {
        let refuses = Quirks { null_content_refused: true, ..plain() };
        for content in [r#""content":null,"#, r#""content":"","#, r#""content":[],"#] {
            let messages = format!("[{}]", call("c1", content));
            check(&messages, &plain(), &format!("[{}]", call("c1", r#""content":null,"#)));
            check(&messages, &refuses, &format!("[{}]", call("c1", r#""content":"","#)));
        }
        let absent = format!("[{}]", call("c1", ""));
        check(&absent, &plain(), &absent.replace("]}]", r#"],"content":null}]"#));
        check(&absent, &refuses, &absent.replace("]}]", r#"],"content":""}]"#));
    }

    #[test]
    fn tool_03_04_arguments_of_the_history_become_text() {
        let with =
            |arguments: &str| format!("[{}]", call("c1", r#""content":null,"#).replace(r#""{}""#, arguments));
        check(&with(r#"{"id":9007199254740993}"#), &plain(), &with(r#""{\"id\":9007199254740993}""#));
        check(&with("\"\""), &plain(), &with("\"{}\""));
        check(&with("\" \""), &plain(), &with("\"{}\""));
    }

    #[test]
    fn oddities_of_agents_are_mended() {
        check(
            r#"[{"role":"assistant","content":"x","tool_calls":null},{"role":"assistant","tool_calls":[],"content":"y"}]"#,
            &plain(),
            r#"[{"role":"assistant","content":"x"},{"role":"assistant","content":"y"}]"#,
        );
        check(
            r#"[{"role":"assistant","content":null},{"role":"assistant"},{"role":"assistant","content":null,"refusal":"no"}]"#,
            &plain(),
            r#"[{"role":"assistant","content":""},{"role":"assistant","content":""},{"role":"assistant","content":null,"refusal":"no"}]"#,
        );
        check(
            r#"[{"role":"user","content":["bare",{"text":"no type"},{"type":"text","text":"t"}]}]"#,
            &plain(),
            r#"[{"role":"user","content":[{"type":"text","text":"bare"},{"text":"no type","type":"text"},{"type":"text","text":"t"}]}]"#,
        );
        check(
            r#"[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]},{"role":"tool","content":null}]"#,
            &plain(),
            r#"[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"},"id":"call_auto_1","type":"function"}]},{"role":"tool","content":"","tool_call_id":"call_auto_1"}]"#,
        );
        check(
            &format!(
                r#"[{},{{"role":"function","tool_call_id":"c1","content":"x"}}]"#,
                call("c1", r#""content":null,"#)
            ),
            &plain(),
            &format!(
                r#"[{},{{"role":"tool","tool_call_id":"c1","content":"x"}}]"#,
                call("c1", r#""content":null,"#)
            ),
        );
        let old = r#"[{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":"x"}]"#;
        check(old, &plain(), old);
    }

    #[test]
    fn req_12_digits_never_change() {
        let messages = r#"[{"role":"developer","content":"x","n":98765432109876543210,"f":1.0e-7}]"#;
        check(messages, &Quirks::default(), &messages.replace("developer", "system"));
    }
}
