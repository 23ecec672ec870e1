//! The messages of a chat request: one pass that checks them and notes what routing, quota and adaptation need to know.
//! Nothing is copied, nothing is changed.
use std::borrow::Cow;
use std::collections::HashSet;

use super::body::Body;
use super::chat::{ChatFacts, bad};
use super::error::ApiError;
use super::extent::{Growing, Speaker};
use super::json::{self, Cursor};

/// Tool calls of one request. Each is remembered until it is answered, and takes several times as much memory as it has
/// bytes; a conversation of agents has some hundreds.
const CALLS_MAX: usize = 4_096;

/// Reads the messages one after another, remembering which tool calls still may be answered.
pub(super) struct Messages<'a, 'f> {
    facts: &'f mut ChatFacts,
    /// The whole list.
    list: &'a [u8],
    max: usize,
    /// Of all messages so far.
    calls: usize,
    call_ids: HashSet<Cow<'a, str>>,
    /// Calls without an id that no result without an id was paired with yet.
    nameless_calls: usize,
    /// Calls of the last message that had some, which wait for their results.
    open: Open<'a>,
    extent: Growing,
}

/// Calls that wait for results right behind them.
#[derive(Default)]
struct Open<'a> {
    ids: HashSet<Cow<'a, str>>,
    nameless: usize,
}

impl Open<'_> {
    /// Whether a result was the one of a call.
    fn answered(&mut self, id: &str) -> bool {
        if id.is_empty() {
            let waits = self.nameless > 0;
            self.nameless = self.nameless.saturating_sub(1);
            return waits;
        }
        self.ids.remove(id)
    }

    fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.nameless == 0
    }
}

/// The members of a message that matter, as raw JSON without `null`s.
#[derive(Default)]
struct Message<'a> {
    role: Option<&'a [u8]>,
    content: Option<&'a [u8]>,
    content_is_null: bool,
    tool_calls: Option<&'a [u8]>,
    has_tool_calls_member: bool,
    tool_call_id: Option<&'a [u8]>,
    /// `function_call`, `refusal` or `audio`: an assistant turn that needs no content.
    speaks_otherwise: bool,
}

impl<'a, 'f> Messages<'a, 'f> {
    pub(super) fn new(facts: &'f mut ChatFacts, max: usize) -> Self {
        Messages {
            facts,
            list: b"",
            max,
            calls: 0,
            call_ids: HashSet::new(),
            nameless_calls: 0,
            open: Open::default(),
            extent: Growing::default(),
        }
    }

    pub(super) fn read(&mut self, body: &'a Body) -> Result<(), ApiError> {
        let missing = || {
            ApiError::bad_field(
                "missing_messages",
                "messages",
                "`messages` must be a list with at least one message",
            )
        };
        let fields = self.facts.tally;
        self.list = body.given("messages").ok_or_else(missing)?;
        let mut cursor = Cursor::new(self.list);
        if !cursor.open(b'[')? {
            return Err(missing());
        }
        while cursor.item()? {
            let at = self.facts.messages;
            if at == self.max {
                let message = format!("more than {} messages", self.max);
                return Err(ApiError::bad_field("too_many_messages", "messages", message));
            }
            if !cursor.open(b'{')? {
                return Err(bad(format!("messages[{at}]"), format!("`messages[{at}]` must be an object")));
            }
            let before = self.facts.tally;
            let message = self.members(&mut cursor)?;
            let speaker = self.check(at, &message)?;
            self.facts.messages += 1;
            self.facts.tally.messages += 1;
            self.extent.add(speaker, self.facts.tally - before);
        }
        self.facts.shape.torn |= !self.open.is_empty();
        self.facts.extent = self.extent.end(fields);
        if self.facts.messages == 0 { Err(missing()) } else { Ok(()) }
    }

    fn members(&mut self, cursor: &mut Cursor<'a>) -> Result<Message<'a>, ApiError> {
        let mut message = Message::default();
        while let Some(written) = cursor.member()? {
            let raw = cursor.skip()?;
            let value = Some(raw).filter(|raw| *raw != b"null");
            match &*json::resolved(written) {
                b"role" => message.role = value,
                b"content" => {
                    message.content = value;
                    message.content_is_null = value.is_none();
                }
                b"tool_calls" => {
                    message.tool_calls = value;
                    message.has_tool_calls_member = true;
                }
                b"tool_call_id" => message.tool_call_id = value,
                // A provider's file may want it away.
                b"name" => self.facts.shape.extras = true,
                other => {
                    self.facts.shape.extras = true;
                    let speaks = matches!(other, b"function_call" | b"refusal" | b"audio");
                    message.speaks_otherwise |= speaks && value.is_some();
                    if other.starts_with(b"reasoning") || other == b"function_call" {
                        self.facts.tally.json(raw);
                    }
                }
            }
        }
        Ok(message)
    }

    fn check(&mut self, at: usize, message: &Message<'a>) -> Result<Speaker, ApiError> {
        let role = message.role.and_then(json::text);
        let role = role.as_deref();
        let result = role == Some("tool") || (role == Some("function") && message.tool_call_id.is_some());
        if !result && !self.open.is_empty() {
            self.facts.shape.torn = true;
            self.open = Open::default();
        }
        match role {
            Some("system" | "developer") => {
                self.facts.shape.developer |= role == Some("developer");
                self.content(at, message, Blank::Refused)?;
                Ok(Speaker::System)
            }
            Some("user") => {
                self.facts.question = message.content.map(|raw| place_in(self.list, raw));
                self.content(at, message, Blank::Refused)?;
                Ok(Speaker::User)
            }
            Some("assistant") => {
                self.facts.has_assistant = true;
                self.assistant(at, message)?;
                Ok(Speaker::Assistant)
            }
            Some("tool" | "function") => {
                // A result that calls itself `function` but carries an id is a tool result by another name.
                self.facts.shape.untidy |= result && role == Some("function");
                match result {
                    true => self.tool_result(at, message)?,
                    // An old-style result belongs to a `function_call`.
                    false => self.content(at, message, Blank::Mended)?,
                }
                Ok(Speaker::Result)
            }
            Some(_) => {
                let known = "system, developer, user, assistant, tool or function";
                Err(bad(format!("messages[{at}].role"), format!("`messages[{at}].role` must be {known}")))
            }
            None => Err(bad(format!("messages[{at}].role"), format!("`messages[{at}]` has no role"))),
        }
    }

    fn content(&mut self, at: usize, message: &Message<'a>, blank: Blank) -> Result<(), ApiError> {
        let param = || format!("messages[{at}].content");
        match message.content {
            Some(raw @ [b'"', ..]) => self.facts.tally.json(raw),
            Some(raw @ [b'[', ..]) if blank == Blank::Refused && json::is_blank(Some(raw)) => {
                return Err(bad(param(), format!("`messages[{at}].content` is an empty list")));
            }
            Some(raw @ [b'[', ..]) => {
                self.facts.shape.parts = true;
                self.facts.shape.untidy |= json::is_blank(Some(raw));
                self.parts(at, raw)?;
            }
            Some(_) => {
                return Err(bad(
                    param(),
                    format!("`messages[{at}].content` must be a text or a list of parts"),
                ));
            }
            None if blank == Blank::Refused => {
                return Err(bad(param(), format!("`messages[{at}]` has no content")));
            }
            None => self.facts.shape.untidy |= blank == Blank::Mended,
        }
        Ok(())
    }

    fn parts(&mut self, at: usize, raw: &'a [u8]) -> Result<(), ApiError> {
        let mut cursor = Cursor::new(raw);
        cursor.open(b'[')?;
        let mut part = 0;
        while cursor.item()? {
            if let Some(b'"') = cursor.peek() {
                self.facts.shape.untidy = true;
                self.facts.tally.json(cursor.skip()?);
            } else if cursor.open(b'{')? {
                self.part(&mut cursor, &|| format!("messages[{at}].content[{part}]"))?;
            } else {
                let place = format!("messages[{at}].content[{part}]");
                return Err(bad(place.as_str(), format!("`{place}` must be an object")));
            }
            part += 1;
        }
        Ok(())
    }

    /// Reads what is left of a part that stands at `place`.
    fn part(&mut self, cursor: &mut Cursor<'a>, place: &dyn Fn() -> String) -> Result<(), ApiError> {
        let (mut kind, mut text) = (None, None);
        while let Some(written) = cursor.member()? {
            let raw = cursor.skip()?;
            if json::is_named(written, "type") {
                kind = json::text(raw);
            } else if json::is_named(written, "text") {
                text = Some(("text", raw));
            } else if json::is_named(written, "refusal") {
                text = Some(("refusal", raw));
            }
        }
        let written = text.map(|(_, raw)| raw).filter(|raw| raw.starts_with(b"\""));
        match kind.as_deref() {
            Some("image_url" | "image" | "input_image") => {
                self.facts.images += 1;
                self.facts.tally.images += 1;
            }
            Some(kind @ ("text" | "refusal" | "input_text" | "output_text")) => {
                let Some(written) = written else {
                    // It would go on to an upstream that refuses it, and into the stored conversation.
                    let usual = if kind == "refusal" { "refusal" } else { "text" };
                    let at = format!("{}.{}", place(), text.map_or(usual, |(name, _)| name));
                    return Err(bad(at.as_str(), format!("`{at}` must be a text")));
                };
                self.facts.tally.json(written);
            }
            // Sounds, films, files: their size in bytes says nothing about tokens.
            Some(_) => self.facts.tally.images += 1,
            None => match written {
                Some(written) => {
                    self.facts.shape.untidy = true;
                    self.facts.tally.json(written);
                }
                None => return Err(bad(place(), format!("`{}` has no `type`", place()))),
            },
        }
        Ok(())
    }

    fn assistant(&mut self, at: usize, message: &Message<'a>) -> Result<(), ApiError> {
        let calls = message.tool_calls.filter(|raw| !json::is_blank(Some(raw)));
        self.facts.shape.untidy |= message.has_tool_calls_member && calls.is_none();
        let Some(calls) = calls else {
            let blank = if message.speaks_otherwise { Blank::Fine } else { Blank::Mended };
            return self.content(at, message, blank);
        };
        let shape = &mut self.facts.shape;
        shape.tool_calls = true;
        shape.calls_with_null |= message.content_is_null;
        shape.calls_with_blank |= !message.content_is_null && json::is_blank(message.content);
        self.facts.has_tool_turns = true;
        self.content(at, message, Blank::Fine)?;
        let mut cursor = Cursor::new(calls);
        let param = |call: usize| format!("messages[{at}].tool_calls[{call}]");
        if !cursor.open(b'[')? {
            let place = format!("messages[{at}].tool_calls");
            return Err(bad(place.as_str(), format!("`{place}` must be a list")));
        }
        let mut call = 0;
        while cursor.item()? {
            if !cursor.open(b'{')? {
                return Err(bad(param(call), format!("`{}` must be an object", param(call))));
            }
            self.calls += 1;
            if self.calls > CALLS_MAX {
                return Err(bad("messages", format!("more than {CALLS_MAX} tool calls")));
            }
            if !self.tool_call(&mut cursor)? {
                return Err(bad(param(call), format!("`{}` names no function", param(call))));
            }
            call += 1;
        }
        Ok(())
    }

    /// Reads one tool call; false when it is none.
    fn tool_call(&mut self, cursor: &mut Cursor<'a>) -> Result<bool, ApiError> {
        let (mut id, mut kind, mut function) = (None, None, None);
        while let Some(written) = cursor.member()? {
            let raw = cursor.skip()?;
            match &*json::resolved(written) {
                b"id" => id = json::text(raw).filter(|id| !id.is_empty()),
                b"type" => kind = json::text(raw),
                b"function" => function = Some(raw),
                _ => {}
            }
        }
        match id {
            Some(id) => {
                self.open.ids.insert(id.clone());
                self.call_ids.insert(id);
            }
            None => {
                self.nameless_calls += 1;
                self.open.nameless += 1;
                self.facts.shape.untidy = true;
            }
        }
        self.facts.shape.untidy |= kind.is_none();
        let Some(function) = function.filter(|raw| raw.starts_with(b"{")) else {
            // Calls of other kinds (`custom`) are passed on as they are.
            return Ok(kind.is_some_and(|kind| kind != "function"));
        };
        self.facts.tally.json(function);
        let arguments = json::member(function, "arguments").and_then(json::text);
        self.facts.shape.untidy |= arguments.is_none_or(|text| text.trim().is_empty());
        Ok(json::member(function, "name").and_then(json::text).is_some_and(|name| !name.is_empty()))
    }

    /// A result must answer an earlier call, or anybody could slip trusted text in. Results without an id are paired
    /// with calls without an id, in order.
    fn tool_result(&mut self, at: usize, message: &Message<'a>) -> Result<(), ApiError> {
        self.facts.has_tool_turns = true;
        let id = message.tool_call_id.map(|raw| json::text(raw).unwrap_or_default()).unwrap_or_default();
        let answers = if id.is_empty() {
            self.facts.shape.untidy = true;
            let paired = self.nameless_calls > 0;
            self.nameless_calls = self.nameless_calls.saturating_sub(1);
            paired
        } else {
            self.call_ids.contains(&id)
        };
        // The call may stand in the stored part of a conversation, with which all is read again.
        if !answers && self.facts.session.is_none() {
            let message = if id.is_empty() {
                format!("`messages[{at}]` is a tool result without a tool_call_id")
            } else {
                format!("`messages[{at}].tool_call_id` matches no earlier tool call")
            };
            return Err(bad(format!("messages[{at}].tool_call_id"), message));
        }
        self.facts.shape.torn |= !self.open.answered(&id);
        self.content(at, message, Blank::Mended)
    }
}

/// What an absent content means in a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blank {
    Refused,
    /// It is sent as an empty text.
    Mended,
    Fine,
}

/// From where to where `part` stands in the text that it is a part of.
fn place_in(whole: &[u8], part: &[u8]) -> (usize, usize) {
    let from = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize);
    (from, from + part.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::chat::Shape;

    fn read(messages: &str) -> Result<ChatFacts, ApiError> {
        let body = Body::parse(format!(r#"{{"messages":{messages}}}"#).into_bytes()).expect("valid JSON");
        ChatFacts::read(&body, 500)
    }

    fn refused(messages: &str) -> (u16, String, String) {
        let e = read(messages).expect_err(messages);
        (e.status, e.code, e.param.unwrap_or_default())
    }

    fn shape(messages: &str) -> Shape {
        read(messages).expect(messages).shape
    }

    #[test]
    fn tool_calls_are_bounded_over_all_messages() {
        let call = r#"{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}"#;
        let message = |calls: usize| {
            format!(r#"{{"role":"assistant","content":null,"tool_calls":[{}]}}"#, vec![call; calls].join(","))
        };
        let read = |calls: usize| {
            let text = format!(r#"{{"messages":[{},{}]}}"#, message(calls), message(1));
            let body = Body::parse(text.into_bytes()).expect("it is JSON");
            ChatFacts::read(&body, 500).map(|_| ()).map_err(|error| error.message)
        };
        assert_eq!(read(CALLS_MAX - 1), Ok(()));
        assert!(read(CALLS_MAX).is_err_and(|message| message.contains("4096 tool calls")));
    }

    const CALL: &str = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;

    #[test]
    fn ctx_02_torn_pairs_are_noticed() {
        let user = r#"{"role":"user","content":"x"}"#;
        let calls = r#"{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;
        let result = |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"x"}}"#);
        let (a, b) = (result("a"), result("b"));
        let check = |torn: bool, messages: &[&str]| {
            assert_eq!(shape(&format!("[{}]", messages.join(","))).torn, torn, "{messages:?}");
        };
        check(false, &[user, calls, &a, &b, user]);
        check(false, &[user, calls, &b, &a]);
        check(true, &[user, calls, &a, user]);
        check(true, &[user, calls]);
        check(true, &[user, calls, &a, user, &b]);
    }

    #[test]
    fn req_10_a_list_without_messages_is_refused() {
        for messages in ["[]", "\"hi\"", "null", "{}", "7"] {
            assert_eq!(refused(messages), (400, "missing_messages".into(), "messages".into()), "{messages}");
        }
        let body = Body::parse(b"{}".to_vec()).expect("valid JSON");
        assert_eq!(ChatFacts::read(&body, 500).map_err(|e| e.code), Err("missing_messages".into()));
        let three =
            r#"[{"role":"user","content":"a"},{"role":"user","content":"a"},{"role":"user","content":"a"}]"#;
        let body = Body::parse(format!(r#"{{"messages":{three}}}"#).into_bytes()).expect("valid JSON");
        assert_eq!(ChatFacts::read(&body, 2).map_err(|e| e.code), Err("too_many_messages".into()));
        ChatFacts::read(&body, 3).expect("three are allowed");
    }

    #[test]
    fn a7_what_is_no_message_is_refused() {
        for (messages, param) in [
            ("[null]", "messages[0]"),
            ("[\"x\"]", "messages[0]"),
            (r#"[{"role":"user","content":"a"},7]"#, "messages[1]"),
            ("[{}]", "messages[0].role"),
            (r#"[{"role":null,"content":"a"}]"#, "messages[0].role"),
            (r#"[{"role":"wizard","content":"a"}]"#, "messages[0].role"),
            (r#"[{"role":"user"}]"#, "messages[0].content"),
            (r#"[{"role":"user","content":null}]"#, "messages[0].content"),
            (r#"[{"role":"user","content":[]}]"#, "messages[0].content"),
            (r#"[{"role":"user","content":5}]"#, "messages[0].content"),
            (r#"[{"role":"user","content":{"text":"a"}}]"#, "messages[0].content"),
            (r#"[{"role":"user","content":[{"type":"text","text":"a"},null]}]"#, "messages[0].content[1]"),
            (r#"[{"role":"user","content":[{"image":"x"}]}]"#, "messages[0].content[0]"),
            (
                r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":5}]}]"#,
                "messages[0].content[1].text",
            ),
            (r#"[{"role":"user","content":[{"type":"text","text":null}]}]"#, "messages[0].content[0].text"),
            (r#"[{"role":"user","content":[{"type":"text"}]}]"#, "messages[0].content[0].text"),
            (
                r#"[{"role":"assistant","content":[{"type":"refusal","refusal":{}}]}]"#,
                "messages[0].content[0].refusal",
            ),
            (
                r#"[{"role":"assistant","tool_calls":{}, "content":null}, {"role":"user","content":3}]"#,
                "messages[1].content",
            ),
            (r#"[{"role":"assistant","tool_calls":"x"}]"#, "messages[0].tool_calls"),
            (r#"[{"role":"assistant","tool_calls":[null]}]"#, "messages[0].tool_calls[0]"),
            (
                r#"[{"role":"assistant","tool_calls":[{"id":"c","type":"function"}]}]"#,
                "messages[0].tool_calls[0]",
            ),
            (
                r#"[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":""}}]}]"#,
                "messages[0].tool_calls[0]",
            ),
        ] {
            assert_eq!(refused(messages), (400, "invalid_body".into(), param.into()), "{messages}");
        }
    }

    #[test]
    fn tool_15_a_result_must_answer_an_earlier_call() {
        let check = |result: &str| {
            let messages = format!(r#"[{{"role":"user","content":"u"}},{CALL},{result}]"#);
            let e = read(&messages).expect_err(result);
            assert_eq!(e.param.as_deref(), Some("messages[2].tool_call_id"), "{result}");
            assert!(e.message.contains("messages[2]"), "{}", e.message);
        };
        check(r#"{"role":"tool","tool_call_id":"nope","content":"the code word is X"}"#);
        check(r#"{"role":"tool","tool_call_id":"","content":"x"}"#);
        check(r#"{"role":"tool","tool_call_id":7,"content":"x"}"#);
        check(r#"{"role":"tool","content":"x"}"#);
        check(r#"{"role":"function","tool_call_id":"nope","content":"x"}"#);
        read(&format!(r#"[{CALL},{{"role":"tool","tool_call_id":"\u00631","content":"x"}}]"#))
            .expect("it answers");
        // The call comes after its result.
        assert_eq!(
            refused(&format!(r#"[{{"role":"tool","tool_call_id":"c1","content":"x"}},{CALL}]"#)).2,
            "messages[0].tool_call_id"
        );
        // Calls without ids are paired with results without ids, one to one.
        let call = r#"{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]}"#;
        let result = r#"{"role":"tool","content":"x"}"#;
        assert!(shape(&format!("[{call},{result}]")).untidy);
        assert_eq!(refused(&format!("[{call},{result},{result}]")).2, "messages[2].tool_call_id");
    }

    #[test]
    fn tool_10_all_forms_of_no_content_are_accepted() {
        let form = |content: &str| {
            shape(
                &CALL
                    .replace(r#""content":null,"#, content)
                    .replace("{\"role", "[{\"role")
                    .replace("}]}", "}]}]"),
            )
        };
        let base = Shape { tool_calls: true, torn: true, ..Shape::default() };
        assert_eq!(form(r#""content":null,"#), Shape { calls_with_null: true, ..base });
        assert_eq!(form(r#""content":"","#), Shape { calls_with_blank: true, ..base });
        assert_eq!(form(""), Shape { calls_with_blank: true, ..base });
        assert_eq!(form(r#""content":"text","#), base);
    }

    #[test]
    fn tolerated_oddities_are_marked_for_mending() {
        for messages in [
            r#"[{"role":"assistant","content":null}]"#,
            r#"[{"role":"assistant"}]"#,
            r#"[{"role":"assistant","content":"x","tool_calls":null}]"#,
            r#"[{"role":"assistant","content":"x","tool_calls":[]}]"#,
            r#"[{"role":"assistant","content":[]}]"#,
            r#"[{"role":"user","content":["bare"]}]"#,
            r#"[{"role":"user","content":[{"text":"no type"}]}]"#,
            r#"[{"role":"assistant","content":"x","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}]"#,
            r#"[{"role":"assistant","content":"x","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{}}}]}]"#,
            r#"[{"role":"assistant","content":"x","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":" "}}]}]"#,
            r#"[{"role":"assistant","content":"x","tool_calls":[{"id":"c","type":"function","function":{"name":"f"}}]}]"#,
            r#"[{"role":"assistant","content":"x","tool_calls":[{"id":"","type":"function","function":{"name":"f","arguments":"{}"}}]}]"#,
            &format!(r#"[{CALL},{{"role":"tool","tool_call_id":"c1","content":null}}]"#),
            &format!(r#"[{CALL},{{"role":"function","tool_call_id":"c1","content":"x"}}]"#),
        ] {
            assert!(shape(messages).untidy, "{messages}");
        }
        let tidy = format!(
            r#"[{{"role":"system","content":"s"}},{{"role":"user","content":[{{"type":"text","text":"t"}}]}},{CALL},
            {{"role":"tool","tool_call_id":"c1","content":"x"}},{{"role":"assistant","content":"y","refusal":null}}]"#
        );
        let expected =
            Shape { parts: true, tool_calls: true, calls_with_null: true, extras: true, ..Shape::default() };
        assert_eq!(shape(&tidy), expected);
        assert!(!shape(r#"[{"role":"assistant","content":null,"refusal":"no"}]"#).untidy);
        assert!(shape(r#"[{"role":"developer","content":"d"}]"#).developer);
    }

    #[test]
    fn images_are_counted_and_their_bytes_are_not_text() {
        let image = format!(
            r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{}"}}}}"#,
            "A".repeat(9_000)
        );
        let facts = read(&format!(
            r#"[{{"role":"user","content":[{{"type":"text","text":"what?"}},{image},{image}]}}]"#
        ))
        .expect("fine");
        assert_eq!((facts.images, facts.tally.images, facts.tally.ascii), (2, 2, 5));
        let sound = r#"[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA"}}]}]"#;
        let facts = read(sound).expect("fine");
        assert_eq!((facts.images, facts.tally.images), (0, 1));
    }

    #[test]
    fn req_02_the_tally_counts_text_not_json() {
        let tally = |messages: &str| read(messages).expect(messages).tally;
        assert_eq!(
            tally(
                r#"[{"role":"user","content":[{"type":"text","text":"Hel"},{"type":"text","text":"lo"}]}]"#
            ),
            tally(r#"[{"role":"user","content":"Hello"}]"#)
        );
    }
}
