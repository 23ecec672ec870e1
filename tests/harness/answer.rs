//! What came back, and the questions that tests ask of it. Every question that fails shows the whole answer.
use std::time::{Duration, Instant};

use serde_json::Value;

use super::wire::{Head, find, lossy};

/// Where a piece of the body ends, and when it came.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub end: usize,
    pub at: Instant,
}

/// One whole answer, or as much of it as came.
#[derive(Clone, Debug)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
    pub pieces: Vec<Piece>,
    /// When the request was sent.
    pub asked_at: Instant,
    /// Whether its framing was complete.
    pub whole: bool,
}

/// One event of a stream.
#[derive(Clone, Debug)]
pub struct Event {
    pub kind: EventKind,
    pub at: Instant,
}

#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// A payload that is JSON.
    Json(Value),
    /// `[DONE]`.
    Done,
    /// A comment line.
    Comment(String),
}

impl Event {
    /// Reads one block of lines, as strictly as the most naive SDK: one `data: ` line with JSON or `[DONE]`, or
    /// comments.
    pub fn parse(block: &[u8], at: Instant) -> Event {
        let text =
            std::str::from_utf8(block).unwrap_or_else(|_| panic!("an event is UTF-8: {:?}", lossy(block)));
        let kind = if let Some(payload) = text.strip_prefix("data: ") {
            match payload {
                "[DONE]" => EventKind::Done,
                json => EventKind::Json(
                    serde_json::from_str(json)
                        .unwrap_or_else(|error| panic!("a payload that is no JSON ({error}): {text:?}")),
                ),
            }
        } else if text.starts_with(':') && !text.contains('\n') {
            EventKind::Comment(text.into())
        } else {
            panic!("neither `data: ` nor a comment: {text:?}")
        };
        Event { kind, at }
    }

    pub fn json(&self) -> Option<&Value> {
        match &self.kind {
            EventKind::Json(value) => Some(value),
            _ => None,
        }
    }

    /// The text of choice 0 in this event.
    pub fn text(&self) -> String {
        self.json()
            .and_then(|json| json.pointer("/choices/0/delta/content")?.as_str())
            .unwrap_or_default()
            .to_owned()
    }
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// A header that must be there and be a number.
    pub fn number(&self, name: &str) -> f64 {
        self.header(name)
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no number under {name} in {self}"))
    }

    pub fn text(&self) -> String {
        lossy(&self.body)
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("a body that is no JSON ({error}): {self}"))
    }

    /// A part of the JSON body, by pointer (`/choices/0/message`).
    pub fn at(&self, pointer: &str) -> Value {
        self.json().pointer(pointer).cloned().unwrap_or_else(|| panic!("nothing at {pointer} in {self}"))
    }

    pub fn took(&self) -> Duration {
        self.pieces.last().map_or(Duration::ZERO, |piece| piece.at - self.asked_at)
    }

    /// All events of the stream, comments too, each with the moment at which its last byte had come.
    pub fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut from = 0;
        while let Some(length) = find(&self.body[from..], b"\n\n") {
            let end = from + length + 2;
            let at =
                self.pieces.iter().find(|piece| piece.end >= end).map_or(self.asked_at, |piece| piece.at);
            events.push(Event::parse(&self.body[from..from + length], at));
            from = end;
        }
        assert!(from == self.body.len(), "half an event at the end of {self}");
        events
    }

    /// The JSON payloads of the stream.
    pub fn chunks(&self) -> Vec<Value> {
        self.events().iter().filter_map(|event| event.json().cloned()).collect()
    }

    /// What the model said in choice 0, streamed or not.
    pub fn content(&self) -> String {
        if self.is_stream() {
            return self.events().iter().map(Event::text).collect();
        }
        self.at("/choices/0/message/content").as_str().unwrap_or_default().to_owned()
    }

    /// The finish reason of choice 0, streamed or not.
    pub fn finish_reason(&self) -> Option<String> {
        let chunks = if self.is_stream() { self.chunks() } else { vec![self.json()] };
        let reasons = chunks.iter().filter_map(|chunk| chunk.pointer("/choices/0/finish_reason")?.as_str());
        let reasons: Vec<&str> = reasons.collect();
        assert!(reasons.len() <= 1, "more than one finish reason in {self}");
        reasons.first().map(|reason| (*reason).to_owned())
    }

    /// The usage that the client was told, streamed or not.
    pub fn usage(&self) -> Option<Value> {
        let chunks = if self.is_stream() { self.chunks() } else { vec![self.json()] };
        chunks.iter().rev().find_map(|chunk| chunk.get("usage").filter(|usage| !usage.is_null()).cloned())
    }

    pub fn is_stream(&self) -> bool {
        self.header("content-type").is_some_and(|value| value.starts_with("text/event-stream"))
    }

    /// Fails unless this is a 200 with a whole body.
    #[track_caller]
    pub fn ok(self) -> Answer {
        assert!(self.status() == 200 && self.whole, "not a whole 200: {self}");
        self
    }

    /// Fails unless this provider answered.
    #[track_caller]
    pub fn served_by(self, provider: &str) -> Answer {
        assert_eq!(self.header("x-freeway-provider"), Some(provider), "{self}");
        self
    }

    /// Fails unless so many upstream calls were made.
    #[track_caller]
    pub fn after_attempts(self, attempts: u32) -> Answer {
        assert_eq!(self.header("x-freeway-attempts"), Some(attempts.to_string().as_str()), "{self}");
        self
    }

    /// Fails unless this is an error of ours with this status and code (`""` is none), in the whole OpenAI shape.
    #[track_caller]
    pub fn error(self, status: u16, code: &str) -> Answer {
        assert_eq!(self.status(), status, "{self}");
        assert!(
            self.header("content-type").is_some_and(|kind| kind.starts_with("application/json")),
            "{self}"
        );
        let json = self.json();
        let error = json
            .get("error")
            .and_then(Value::as_object)
            .unwrap_or_else(|| panic!("no error object in {self}"));
        for member in ["message", "type", "param", "code"] {
            assert!(error.contains_key(member), "error.{member} is missing in {self}");
        }
        assert_eq!(error["code"].as_str().unwrap_or_default(), code, "{self}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{self}");
        self
    }

    /// Fails unless the error names this field of the request.
    #[track_caller]
    pub fn about(self, param: &str) -> Answer {
        assert_eq!(self.at("/error/param"), param, "{self}");
        self
    }

    /// Fails unless this is a stream that ended well: every chunk complete in shape, one finish reason, one `[DONE]`,
    /// and nothing after it.
    #[track_caller]
    pub fn well_formed_stream(self) -> Answer {
        assert!(self.is_stream(), "not a stream: {self}");
        let answer = self.ok();
        let events = answer.events();
        let done = events.iter().filter(|event| event.kind == EventKind::Done).count();
        assert_eq!(done, 1, "[DONE] in {answer}");
        assert_eq!(
            events.last().map(|event| &event.kind),
            Some(&EventKind::Done),
            "after [DONE] in {answer}"
        );
        let chunks = answer.chunks();
        let ids: Vec<&Value> = chunks.iter().map(|chunk| &chunk["id"]).collect();
        for chunk in &chunks {
            assert!(chunk.get("error").is_none(), "an error in {answer}");
            for (member, fits) in [
                ("id", chunk["id"].is_string() && chunk["id"] == *ids[0]),
                ("object", chunk["object"] == "chat.completion.chunk"),
                ("created", chunk["created"].is_u64()),
                ("model", chunk["model"].is_string()),
                ("choices", chunk["choices"].is_array()),
            ] {
                assert!(fits, "{member} of a chunk is wrong in {answer}");
            }
            for choice in chunk["choices"].as_array().into_iter().flatten() {
                let whole = choice["index"].is_u64()
                    && choice["delta"].is_object()
                    && choice.get("finish_reason").is_some();
                assert!(whole, "a choice lacks index, delta or finish_reason: {choice}");
            }
        }
        assert!(answer.finish_reason().is_some(), "no finish reason in {answer}");
        answer
    }

    /// Fails unless this is a stream that broke after its beginning: one error event at the end, no `[DONE]`, no
    /// finish reason. Gives the error.
    #[track_caller]
    pub fn broken_stream(&self) -> Value {
        assert!(self.status() == 200 && self.is_stream(), "not a stream: {self}");
        let events = self.events();
        assert!(events.iter().all(|event| event.kind != EventKind::Done), "[DONE] in {self}");
        assert_eq!(self.finish_reason(), None, "{self}");
        let errors: Vec<Value> =
            self.chunks().iter().filter_map(|chunk| chunk.get("error").cloned()).collect();
        assert_eq!(errors.len(), 1, "error events in {self}");
        let last = events.last().and_then(Event::json).is_some_and(|last| last.get("error").is_some());
        assert!(last, "something follows the error in {self}");
        errors.into_iter().next().expect("counted above")
    }

    /// Fails if this text stands anywhere in the answer, head or body.
    #[track_caller]
    pub fn never_says(self, secret: &str) -> Answer {
        let in_head = self.head.headers.iter().any(|(_, value)| value.contains(secret));
        assert!(!in_head && !self.text().contains(secret), "{secret:?} leaked in {self}");
        self
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        /// The most of a body that a failure shows.
        const SHOWN_CHARS: usize = 8_000;
        writeln!(f, "\n  {} {}", self.head.version, self.head.status)?;
        for (name, value) in &self.head.headers {
            writeln!(f, "  {name}: {value}")?;
        }
        let body: String = self.text().chars().take(SHOWN_CHARS).collect();
        writeln!(
            f,
            "\n{body}\n  ({} bytes, {})",
            self.body.len(),
            if self.whole { "whole" } else { "broken off" }
        )
    }
}
