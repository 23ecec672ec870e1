//! A conversation as it came: its messages as raw JSON, what each is, how much it weighs, and which of them stand or
//! fall together. Nothing is copied but what is written with escapes.
use std::borrow::Cow;
use std::ops::Range;

use super::tokens;
use crate::wire::json::{self, Cursor, Flaw};
use crate::wire::tally::Tally;

/// A conversation.
#[derive(Debug)]
pub struct Conversation<'a> {
    pub messages: Vec<Message<'a>>,
}

/// One message.
#[derive(Debug)]
pub struct Message<'a> {
    /// All of it.
    pub raw: &'a [u8],
    pub role: Role,
    /// In thousandths of a token, as `context::tokens` counts.
    pub weight: u64,
    /// Where the value of `content` stands in `raw`.
    pub content: Option<Range<usize>>,
    pub images: u64,
    /// The ids of its tool calls; a call without one is `None`.
    pub calls: Vec<Option<Cow<'a, str>>>,
    /// The id of the call that it answers.
    pub answers: Option<Cow<'a, str>>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `system` or `developer`.
    System,
    User,
    Assistant,
    /// The result of a tool call.
    Tool,
    /// The result of a `function_call`, of the time before tools: it has no id.
    Function,
}

impl Role {
    /// Whether it is the result of a call.
    pub fn is_result(self) -> bool {
        matches!(self, Role::Tool | Role::Function)
    }

    /// Its name in a transcript.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool | Role::Function => "tool",
        }
    }
}

impl<'a> Conversation<'a> {
    /// Reads the value of `messages`.
    pub fn read(raw: &'a [u8]) -> Result<Conversation<'a>, Flaw> {
        let mut messages = Vec::new();
        let mut cursor = Cursor::new(raw);
        cursor.open(b'[')?;
        while cursor.item()? {
            messages.push(Message::read(cursor.skip()?)?);
        }
        Ok(Conversation { messages })
    }

    /// What all messages weigh.
    pub fn weight(&self) -> u64 {
        self.messages.iter().map(|message| message.weight).sum()
    }

    /// The messages that stand or fall together, in order: one message, or calls with their results. Results must stand
    /// right behind their calls, which `context::pairs` sees to.
    pub fn groups(&self) -> Vec<Range<usize>> {
        let mut groups: Vec<Range<usize>> = Vec::with_capacity(self.messages.len());
        for (at, message) in self.messages.iter().enumerate() {
            match groups.last_mut() {
                Some(group) if message.role.is_result() => group.end = at + 1,
                _ => groups.push(at..at + 1),
            }
        }
        groups
    }
}

impl<'a> Message<'a> {
    /// Reads one message. What it weighs is counted as `wire::messages` counts it.
    pub fn read(raw: &'a [u8]) -> Result<Message<'a>, Flaw> {
        let mut message = Message {
            raw,
            role: Role::User,
            weight: 0,
            content: None,
            images: 0,
            calls: Vec::new(),
            answers: None,
        };
        let mut tally = Tally { messages: 1, ..Tally::default() };
        let mut cursor = Cursor::new(raw);
        cursor.open(b'{')?;
        while let Some(written) = cursor.member()? {
            let value = cursor.skip()?;
            let span = cursor.at() - value.len()..cursor.at();
            match &*json::unescape(written).unwrap_or_default() {
                "role" => message.role = role(value),
                "content" => {
                    message.content = Some(span);
                    content(value, &mut tally)?;
                }
                "tool_calls" => calls(value, &mut message.calls, &mut tally)?,
                "tool_call_id" => message.answers = json::text(value).filter(|id| !id.is_empty()),
                other if other.starts_with("reasoning") || other == "function_call" => tally.json(value),
                _ => {}
            }
        }
        if message.role == Role::Function && message.answers.is_some() {
            message.role = Role::Tool;
        }
        message.images = tally.images;
        message.weight = tokens::weight(&tally);
        Ok(message)
    }

    /// The raw value of `content`.
    pub fn content(&self) -> Option<&'a [u8]> {
        self.content.clone().map(|span| &self.raw[span])
    }

    /// Its tool calls.
    pub fn called(&self) -> Vec<Called<'a>> {
        let mut called = Vec::with_capacity(self.calls.len());
        let Some(raw) = json::member(self.raw, "tool_calls").filter(|_| !self.calls.is_empty()) else {
            return called;
        };
        let mut cursor = Cursor::new(raw);
        if cursor.open(b'[') == Ok(true) {
            while let Ok(true) = cursor.item() {
                let Ok(call) = cursor.skip() else { break };
                let function = json::member(call, "function").unwrap_or_default();
                let text = |name| json::member(function, name).and_then(json::text).unwrap_or_default();
                called.push(Called { name: text("name"), arguments: text("arguments") });
            }
        }
        called
    }

    /// What its content says, pictures as a word.
    pub fn text(&self) -> Cow<'a, str> {
        let Some(raw) = self.content() else { return Cow::Borrowed("") };
        if let Some(text) = json::text(raw) {
            return text;
        }
        let mut texts: Vec<Cow<'a, str>> = Vec::new();
        let mut cursor = Cursor::new(raw);
        if cursor.open(b'[') == Ok(true) {
            while let Ok(true) = cursor.item() {
                let Ok(part) = cursor.skip() else { break };
                let words = json::text(part).or_else(|| json::member(part, "text").and_then(json::text));
                texts.push(words.unwrap_or(Cow::Borrowed("[image]")));
            }
        }
        Cow::Owned(texts.join("\n"))
    }
}

/// A tool call, for people.
pub struct Called<'a> {
    pub name: Cow<'a, str>,
    pub arguments: Cow<'a, str>,
}

fn role(value: &[u8]) -> Role {
    match json::text(value).as_deref() {
        Some("system" | "developer") => Role::System,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        Some("function") => Role::Function,
        _ => Role::User,
    }
}

fn content(raw: &[u8], tally: &mut Tally) -> Result<(), Flaw> {
    if raw.starts_with(b"\"") {
        tally.json(raw);
        return Ok(());
    }
    let mut cursor = Cursor::new(raw);
    if !cursor.open(b'[')? {
        return Ok(());
    }
    while cursor.item()? {
        let part = cursor.skip()?;
        if is_text(part) {
            let words = ["text", "refusal"].into_iter().find_map(|name| json::member(part, name));
            tally.json(words.unwrap_or(if part.starts_with(b"\"") { part } else { b"" }));
        } else {
            tally.images += 1;
        }
    }
    Ok(())
}

/// Whether a content part is text; everything else counts as an image.
pub fn is_text(part: &[u8]) -> bool {
    let kind = json::member(part, "type").and_then(json::text);
    kind.is_none_or(|kind| matches!(&*kind, "text" | "refusal" | "input_text" | "output_text"))
}

fn calls<'a>(raw: &'a [u8], ids: &mut Vec<Option<Cow<'a, str>>>, tally: &mut Tally) -> Result<(), Flaw> {
    let mut cursor = Cursor::new(raw);
    if !cursor.open(b'[')? {
        return Ok(());
    }
    while cursor.item()? {
        let call = cursor.skip()?;
        ids.push(json::member(call, "id").and_then(json::text).filter(|id| !id.is_empty()));
        tally.json(json::member(call, "function").unwrap_or_default());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::body::Body;
    use crate::wire::chat::ChatFacts;

    const TALK: &str = r#"[{"role":"developer","content":"Be brief."},
        {"role":"user","content":[{"type":"text","text":"Wäre das 漢字 😀?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]},
        {"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"type":"function","function":{"name":"g","arguments":"{\"x\":1}"}}],"reasoning_content":"hm"},
        {"role":"tool","tool_call_id":"a","content":"one\ntwo"},
        {"role":"tool","content":"three"},
        {"role":"function","name":"old","content":"four"},
        {"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}]"#;

    #[test]
    fn messages_are_what_they_are_and_weigh_what_the_whole_request_does() {
        let talk = Conversation::read(TALK.as_bytes()).expect("valid");
        let roles: Vec<Role> = talk.messages.iter().map(|message| message.role).collect();
        use Role::*;
        assert_eq!(roles, [System, User, Assistant, Tool, Tool, Function, Assistant]);
        assert_eq!(talk.groups(), [0..1, 1..2, 2..6, 6..7]);
        assert_eq!(talk.messages[1].images, 1);
        assert_eq!(talk.messages[1].text(), "Wäre das 漢字 😀?\n[image]");
        assert_eq!(talk.messages[3].text(), "one\ntwo");
        assert_eq!(talk.messages[3].answers.as_deref(), Some("a"));
        let ids: Vec<Option<&str>> = talk.messages[2].calls.iter().map(Option::as_deref).collect();
        assert_eq!(ids, [Some("a"), None]);
        let body = Body::parse(format!(r#"{{"messages":{TALK}}}"#).into_bytes()).expect("valid");
        let facts = ChatFacts::read(&body, 100).expect("valid");
        assert_eq!(talk.weight(), tokens::weight(&facts.tally));
    }
}
