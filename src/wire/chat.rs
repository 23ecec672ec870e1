//! What the gateway must know of a chat request: what it asks for, what a model needs to serve it, how large it is,
//! and whether it makes sense at all. Nothing is changed here; what has to be changed for an upstream is
//! `upstream::adapt`'s work.
use std::borrow::Cow;

use super::body::Body;
use super::error::ApiError;
use super::extent::Extent;
use super::json::{self, Cursor};
use super::messages::Messages;
use super::tally::Tally;

/// Longest model string. Names are compared with every name there is, so they must not be unbounded.
pub const MODEL_MAX: usize = 512;
/// Most entries of `models`.
pub const MODELS_MAX: usize = 64;
/// Longest session id.
const SESSION_MAX: usize = 256;
/// Most stop strings: what every OpenAI-compatible provider takes. A list that is cut in silence would change what the
/// model says, so a longer one is refused.
const STOPS_MAX: usize = 4;
/// Most answers to one request, as OpenAI has it.
const N_MAX: u64 = 128;

/// What routing, quota and adaptation need to know of a chat body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatFacts {
    /// As the client wrote it; `auto` when it named none.
    pub model: String,
    /// `models`: an explicit list; empty when absent.
    pub models: Vec<String>,
    pub stream: bool,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
    /// The conversation that the client names in the body.
    pub session: Option<SessionField>,
    /// Whether tools are declared.
    pub tools: bool,
    /// Whether JSON output is asked for.
    pub json: bool,
    /// Image parts in all messages.
    pub images: usize,
    /// Answers asked for; at least 1.
    pub n: u32,
    /// The cap on output tokens; `max_completion_tokens` wins over `max_tokens`.
    pub max_output: Option<u64>,
    /// Everything that becomes prompt tokens.
    pub tally: Tally,
    /// How much less it could be.
    pub extent: Extent,
    pub messages: usize,
    /// Where the newest user message's content stands in `messages`, for the preview.
    pub question: Option<(usize, usize)>,
    /// Whether a tool call or a tool result stands in the messages.
    pub has_tool_turns: bool,
    /// Whether the messages hold an assistant turn, and so are a history.
    pub has_assistant: bool,
    pub shape: Shape,
}

/// What stands in the messages that some upstream may want to be different. While all that matters to an upstream is
/// false, its messages are sent as they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// A `developer` message.
    pub developer: bool,
    /// Content given as a list of parts.
    pub parts: bool,
    pub tool_calls: bool,
    /// Tool calls beside `content: null`.
    pub calls_with_null: bool,
    /// Tool calls beside an empty or absent content.
    pub calls_with_blank: bool,
    /// Members beyond role, content, name, tool_calls and tool_call_id.
    pub extras: bool,
    /// Something that every upstream wants mended: a tool call without id or type, arguments that are no text, a
    /// result without content, a part without type, an empty `tool_calls`.
    pub untidy: bool,
    /// A tool call may lack its result, or a result may not stand behind its call.
    pub torn: bool,
}

/// The `session` of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionField {
    /// Trimmed, not empty.
    pub id: String,
    /// What the client says that its messages are; `None` leaves it to what stands in them.
    pub mode: Option<SessionMode>,
}

/// What becomes of a stored conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionMode {
    /// The messages are new ones.
    Append,
    /// The messages are all there are.
    Replace,
}

impl ChatFacts {
    /// Reads and checks a body. Every error is a 400 with `param`; `missing_messages` and `too_many_messages` for the
    /// list as a whole, `invalid_body` for the rest.
    pub fn read(body: &Body, max_messages: usize) -> Result<ChatFacts, ApiError> {
        let tools = list(body, "tools")?.is_some_and(|raw| !json::is_blank(Some(raw)));
        let functions = list(body, "functions")?.is_some_and(|raw| !json::is_blank(Some(raw)));
        for name in ["tool_choice", "function_call"] {
            check_choice(body, name, tools || functions)?;
        }
        check_stop(body)?;
        let mut facts = ChatFacts {
            model: read_model(body)?,
            models: read_models(body)?,
            stream: flag(body, "stream")?,
            include_usage: read_include_usage(body)?,
            session: read_session(body)?,
            tools: tools || functions,
            json: read_json_mode(body)?,
            images: 0,
            n: read_n(body)?,
            max_output: read_max_output(body)?,
            tally: Tally::default(),
            extent: Extent::default(),
            messages: 0,
            question: None,
            has_tool_turns: false,
            has_assistant: false,
            shape: Shape::default(),
        };
        for name in ["tools", "functions", "response_format"] {
            facts.tally.json(body.given(name).unwrap_or_default());
        }
        Messages::new(&mut facts, max_messages).read(body)?;
        Ok(facts)
    }
}

pub(super) fn bad(param: impl Into<String>, message: impl Into<String>) -> ApiError {
    ApiError::bad_field("invalid_body", param, message)
}

/// A field that must be a list of objects.
fn list<'a>(body: &'a Body, name: &str) -> Result<Option<&'a [u8]>, ApiError> {
    let Some(raw) = body.given(name) else { return Ok(None) };
    let mut cursor = Cursor::new(raw);
    if !cursor.open(b'[')? {
        return Err(bad(name, format!("`{name}` must be a list")));
    }
    let mut at = 0;
    while cursor.item()? {
        if !cursor.skip()?.starts_with(b"{") {
            return Err(bad(format!("{name}[{at}]"), format!("`{name}[{at}]` must be an object")));
        }
        at += 1;
    }
    Ok(Some(raw))
}

fn flag(body: &Body, name: &str) -> Result<bool, ApiError> {
    match body.given(name) {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => Err(bad(name, format!("`{name}` must be true or false"))),
    }
}

/// The `model` of a chat or embeddings body: `auto` unless it is a text, as the original has it.
pub fn read_model(body: &Body) -> Result<String, ApiError> {
    let model = body.text("model").unwrap_or(Cow::Borrowed("auto"));
    if model.len() > MODEL_MAX {
        return Err(bad("model", format!("`model` is longer than {MODEL_MAX} bytes")));
    }
    Ok(model.into_owned())
}

/// The explicit list of models, empty when there is none.
pub fn read_models(body: &Body) -> Result<Vec<String>, ApiError> {
    let mut models = Vec::new();
    let Some(raw) = body.given("models") else { return Ok(models) };
    let mut cursor = Cursor::new(raw);
    if !cursor.open(b'[')? {
        return Err(bad("models", "`models` must be a list of model names"));
    }
    while cursor.item()? {
        let at = models.len();
        match json::text(cursor.skip()?) {
            Some(name) if name.len() <= MODEL_MAX && at < MODELS_MAX => models.push(name.into_owned()),
            Some(_) => return Err(bad("models", "`models` is too long")),
            None => return Err(bad(format!("models[{at}]"), format!("`models[{at}]` must be a text"))),
        }
    }
    Ok(models)
}

fn read_include_usage(body: &Body) -> Result<bool, ApiError> {
    let Some(raw) = body.given("stream_options") else { return Ok(false) };
    if !raw.starts_with(b"{") {
        return Err(bad("stream_options", "`stream_options` must be an object"));
    }
    match json::member(raw, "include_usage") {
        None | Some(b"null" | b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => {
            Err(bad("stream_options.include_usage", "`stream_options.include_usage` must be true or false"))
        }
    }
}

/// `session` is an id, or an object with an id and perhaps a mode.
fn read_session(body: &Body) -> Result<Option<SessionField>, ApiError> {
    let Some(raw) = body.given("session") else { return Ok(None) };
    let (id, mode) = if raw.starts_with(b"{") {
        let given = |name| json::member(raw, name).filter(|raw| *raw != b"null");
        let id = given("id").and_then(json::text);
        (id.ok_or_else(|| bad("session.id", "`session.id` must be a text"))?, given("mode"))
    } else {
        let shape = "`session` must be a text or an object with an `id`";
        (json::text(raw).ok_or_else(|| bad("session", shape))?, None)
    };
    let mode = match mode.map(|raw| json::text(raw).unwrap_or_default()).as_deref() {
        None => None,
        Some("append") => Some(SessionMode::Append),
        Some("replace") => Some(SessionMode::Replace),
        Some(_) => return Err(bad("session.mode", "`session.mode` must be append or replace")),
    };
    let id = id.trim();
    if id.len() > SESSION_MAX {
        return Err(bad("session", format!("`session` is longer than {SESSION_MAX} bytes")));
    }
    Ok((!id.is_empty()).then(|| SessionField { id: id.to_owned(), mode }))
}

fn read_json_mode(body: &Body) -> Result<bool, ApiError> {
    let Some(raw) = body.given("response_format") else { return Ok(false) };
    if !raw.starts_with(b"{") {
        return Err(bad("response_format", "`response_format` must be an object"));
    }
    let kind = json::member(raw, "type").and_then(json::text);
    Ok(matches!(kind.as_deref(), Some("json_object" | "json_schema")))
}

fn read_n(body: &Body) -> Result<u32, ApiError> {
    match body.given("n").map(json::whole) {
        None => Ok(1),
        Some(Some(n @ 1..=N_MAX)) => Ok(n as u32),
        Some(_) => Err(bad("n", format!("`n` must be a whole number from 1 to {N_MAX}"))),
    }
}

/// The output cap. Whole numbers in any spelling are taken; 0 means no cap, as some agents send it.
fn read_max_output(body: &Body) -> Result<Option<u64>, ApiError> {
    let mut cap = None;
    for name in ["max_tokens", "max_completion_tokens"] {
        let Some(raw) = body.given(name) else { continue };
        match json::whole(raw) {
            Some(0) => {}
            Some(tokens) => cap = Some(tokens),
            None => return Err(bad(name, format!("`{name}` must be a whole number that is not negative"))),
        }
    }
    Ok(cap)
}

/// A choice that demands a call makes no sense without tools, and would come back as plain text.
fn check_choice(body: &Body, name: &str, tools: bool) -> Result<(), ApiError> {
    let Some(raw) = body.given(name) else { return Ok(()) };
    let demands = match json::text(raw) {
        Some(word) => !matches!(&*word, "auto" | "none"),
        None if raw.starts_with(b"{") => true,
        None => return Err(bad(name, format!("`{name}` must be a text or an object"))),
    };
    if demands && !tools {
        return Err(bad(name, format!("`{name}` asks for a tool call, but no tools are given")));
    }
    Ok(())
}

fn check_stop(body: &Body) -> Result<(), ApiError> {
    let Some(raw) = body.given("stop") else { return Ok(()) };
    let mut cursor = Cursor::new(raw);
    if !cursor.open(b'[')? {
        let text = raw.starts_with(b"\"");
        return if text { Ok(()) } else { Err(bad("stop", "`stop` must be a text or a list of texts")) };
    }
    let mut stops = 0;
    while cursor.item()? {
        if !cursor.skip()?.starts_with(b"\"") {
            return Err(bad("stop", "`stop` must be a text or a list of texts"));
        }
        stops += 1;
    }
    if stops > STOPS_MAX {
        return Err(bad("stop", format!("`stop` may hold at most {STOPS_MAX} texts, not {stops}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ChatFacts, ApiError> {
        ChatFacts::read(&Body::parse(text.as_bytes().to_vec()).expect("valid JSON"), 500)
    }

    /// A body with `fields` beside one short message.
    fn with(fields: &str) -> Result<ChatFacts, ApiError> {
        read(&format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{fields}}}"#))
    }

    fn refused(fields: &str) -> (u16, String, String) {
        let e = with(fields).expect_err(fields);
        (e.status, e.code, e.param.unwrap_or_default())
    }

    #[test]
    fn what_is_absent_or_null_has_its_default() {
        let expected = ChatFacts {
            model: "auto".into(),
            models: Vec::new(),
            stream: false,
            include_usage: false,
            session: None,
            tools: false,
            json: false,
            images: 0,
            n: 1,
            max_output: None,
            tally: Tally { ascii: 2, messages: 1, ..Tally::default() },
            extent: Extent {
                lean: Tally { ascii: 2, messages: 1, ..Tally::default() },
                core: Tally { ascii: 2, messages: 1, ..Tally::default() },
            },
            messages: 1,
            question: Some((26, 30)),
            has_tool_turns: false,
            has_assistant: false,
            shape: Shape::default(),
        };
        assert_eq!(with("").expect("fine"), expected);
        let nulls = r#","model":null,"models":null,"stream":null,"stream_options":null,"session":null,"tools":null,
            "functions":null,"tool_choice":null,"response_format":null,"n":null,"max_tokens":null,"stop":null"#;
        assert_eq!(with(nulls).expect("fine"), expected);
    }

    #[test]
    fn fields_are_read() {
        let facts = with(
            r#","model":"m\u0041","models":["a","b"],"stream":true,"stream_options":{"include_usage":true},
            "session":" s ","tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required",
            "response_format":{"type":"json_schema"},"n":2.0,"stop":["a","b"]"#,
        )
        .expect("fine");
        assert_eq!((facts.model.as_str(), facts.n), ("mA", 2));
        assert_eq!(facts.models, ["a", "b"]);
        assert_eq!(facts.session, Some(SessionField { id: "s".into(), mode: None }));
        assert!(facts.stream && facts.include_usage && facts.tools && facts.json);
        assert!(facts.tally.ascii > 60);
        assert_eq!(
            with(r#","session":"  ","model":7"#).map(|f| (f.session, f.model)).ok(),
            Some((None, "auto".into()))
        );
    }

    #[test]
    fn a_session_is_an_id_or_an_object_with_one() {
        let check = |session: &str, id: &str, mode: Option<SessionMode>| {
            let found = with(&format!(r#","session":{session}"#)).expect(session).session;
            assert_eq!(found, Some(SessionField { id: id.into(), mode }), "{session}");
        };
        check(r#""a""#, "a", None);
        check(r#"{"id":" a/b "}"#, "a/b", None);
        check(r#"{"id":"a","mode":null,"more":1}"#, "a", None);
        check(r#"{"id":"a","mode":"append"}"#, "a", Some(SessionMode::Append));
        check(r#"{"mode":"replace","id":"a"}"#, "a", Some(SessionMode::Replace));
        check(&format!("\"{}\"", "x".repeat(SESSION_MAX)), &"x".repeat(SESSION_MAX), None);
        for none in [r#""""#, r#"" ""#, r#"{"id":""}"#, "null"] {
            assert_eq!(with(&format!(r#","session":{none}"#)).expect(none).session, None, "{none}");
        }
        let refused = |session: &str, param: &str| {
            let error = with(&format!(r#","session":{session}"#)).expect_err(session);
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{session}");
        };
        refused("7", "session");
        refused(r#"["a"]"#, "session");
        refused("true", "session");
        refused("{}", "session.id");
        refused(r#"{"id":7}"#, "session.id");
        refused(r#"{"id":"a","mode":"prepend"}"#, "session.mode");
        refused(r#"{"id":"a","mode":1}"#, "session.mode");
        refused(&format!("\"{}\"", "x".repeat(SESSION_MAX + 1)), "session");
    }

    #[test]
    fn req_06_the_newer_cap_wins() {
        let check = |fields: &str, cap: Option<u64>| assert_eq!(with(fields).expect(fields).max_output, cap);
        check(r#","max_tokens":64,"max_completion_tokens":32"#, Some(32));
        check(r#","max_completion_tokens":32,"max_tokens":64"#, Some(32));
        check(r#","max_tokens":64,"max_completion_tokens":null"#, Some(64));
        check(r#","max_tokens":0"#, None);
    }

    #[test]
    fn req_13_caps_are_whole_numbers() {
        let check = |cap: &str, expected: u64| {
            assert_eq!(with(&format!(r#","max_tokens":{cap}"#)).expect(cap).max_output, Some(expected));
        };
        check("1e3", 1000);
        check("256.0", 256);
        check("18446744073709551615", u64::MAX);
        for cap in ["6000.5", "\"256\"", "-1", "1e400", "[]", "true", "99999999999999999999"] {
            let expected = (400, "invalid_body".to_owned(), "max_tokens".to_owned());
            assert_eq!(refused(&format!(r#","max_tokens":{cap}"#)), expected, "{cap}");
        }
        assert_eq!(refused(r#","max_completion_tokens":-1"#).2, "max_completion_tokens");
    }

    #[test]
    fn tool_13_a_demanded_call_needs_tools() {
        let named = r#","tool_choice":{"type":"function","function":{"name":"f"}}"#;
        for choice in [r#","tool_choice":"required""#, r#","tools":[],"tool_choice":"any""#, named] {
            assert_eq!(refused(choice).2, "tool_choice", "{choice}");
        }
        for choice in [r#","tool_choice":"auto""#, r#","tools":[],"tool_choice":"none""#] {
            with(choice).expect(choice);
        }
    }

    #[test]
    fn tool_13_the_older_spelling_needs_functions() {
        assert_eq!(refused(r#","function_call":{"name":"f"}"#).2, "function_call");
        assert_eq!(refused(r#","functions":[],"function_call":{"name":"f"}"#).2, "function_call");
        assert_eq!(refused(r#","function_call":5"#).2, "function_call");
        for choice in [
            r#","function_call":"none""#,
            r#","function_call":null"#,
            r#","functions":[{"name":"f"}],"function_call":{"name":"f"}"#,
        ] {
            with(choice).expect(choice);
        }
    }

    #[test]
    fn req_08_too_many_stops_are_refused() {
        let stops = |n: usize| format!(r#","stop":[{}]"#, vec!["\"x\""; n].join(","));
        with(&stops(4)).expect("four stops");
        with(r#","stop":"x""#).expect("one stop");
        assert_eq!(refused(&stops(12)).2, "stop");
    }

    #[test]
    fn wrong_types_name_their_field() {
        for (fields, param) in [
            (r#","stream":"true""#, "stream"),
            (r#","stream_options":true"#, "stream_options"),
            (r#","stream_options":{"include_usage":1}"#, "stream_options.include_usage"),
            (r#","models":"a""#, "models"),
            (r#","models":["a",1]"#, "models[1]"),
            (r#","tools":{}"#, "tools"),
            (r#","tools":[null]"#, "tools[0]"),
            (r#","session":7"#, "session"),
            (r#","response_format":"json""#, "response_format"),
            (r#","n":0"#, "n"),
            (r#","n":1.5"#, "n"),
            (r#","n":1000"#, "n"),
            (r#","stop":1"#, "stop"),
            (r#","tool_choice":1"#, "tool_choice"),
        ] {
            assert_eq!(refused(fields), (400, "invalid_body".into(), param.into()), "{fields}");
        }
        assert_eq!(refused(&format!(r#","model":"{}""#, "x".repeat(600))).2, "model");
    }
}
