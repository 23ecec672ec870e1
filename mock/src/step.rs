//! What a script can ask for: one [`Step`] describes how requests are answered, down to single writes.
//!
//! A step starts as "a well-behaved answer" and each field bends one thing. The same fields can be set from Rust (they
//! are public, with short constructors for the common ones) and as JSON through the control plane (`step_json`).
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

/// `Step::repeat` that never runs out.
pub const FOREVER: u32 = u32::MAX;

/// One thing that happens on the socket, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// One write call, flushed at once.
    Write(Vec<u8>),
    /// The same bytes again and again, each in a write of its own, with a pause after each.
    Repeat { bytes: Vec<u8>, times: u64, pause_ms: u64 },
    /// Nothing, for a while. A client that leaves meanwhile is noticed.
    Pause(u64),
    /// An orderly close (FIN).
    Close,
    /// A close that resets the connection (RST).
    Reset,
    /// Nothing more, with the socket open, until the client leaves.
    Hold,
}

impl Act {
    pub fn write(bytes: impl AsRef<[u8]>) -> Act {
        Act::Write(bytes.as_ref().to_vec())
    }

    /// Whether nothing can follow.
    pub(crate) fn ends(&self) -> bool {
        matches!(self, Act::Close | Act::Reset | Act::Hold)
    }
}

/// How a body ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// As its framing demands; the connection stays for the next request.
    #[default]
    Clean,
    /// Closed before the framing is complete: no last chunk, too few bytes.
    Close,
    /// The same with a reset.
    Reset,
    /// No further byte, and the socket stays open.
    Hold,
}

/// How the length of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// `Transfer-Encoding: chunked`, one chunk a write.
    Chunked,
    /// `Content-Length`.
    Length,
    /// Neither: the body ends with the connection.
    Close,
}

/// The line ends of an event stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Newline {
    #[default]
    Lf,
    CrLf,
    Cr,
}

impl Newline {
    pub fn as_str(self) -> &'static str {
        match self {
            Newline::Lf => "\n",
            Newline::CrLf => "\r\n",
            Newline::Cr => "\r",
        }
    }
}

/// Whether the body is compressed. The client's `Accept-Encoding` is never asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gzip {
    #[default]
    No,
    /// A whole gzip body; a stream is flushed at each write, so that it can be read as it comes.
    Whole,
    /// Half of it (a stream lacks its end), although the HTTP framing is complete.
    Truncated,
}

/// Where token counts stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Usage {
    /// In a JSON answer, and in a stream on one last chunk, asked for or not.
    #[default]
    Last,
    /// In a JSON answer always, in a stream on one last chunk when `stream_options.include_usage` asks for it.
    Asked,
    /// A running total on every chunk, and on the last.
    Every,
    /// On the chunk that carries the finish reason.
    Finish,
    /// Inside `x_groq` on the finish chunk (in JSON: at the top).
    XGroq,
    /// On one last chunk, as floats.
    Floats,
    None,
}

/// How a stream tells tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolStyle {
    /// An opening delta with id and name, then the arguments in pieces.
    #[default]
    Parts,
    /// One delta a call.
    Whole,
}

/// A tool call that the model makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// The JSON text of the arguments.
    pub arguments: String,
}

/// How one or more requests are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    // Which requests it is for. A step that does not match is left for those that do.
    /// Ending of the request path, such as `/embeddings`.
    pub path: Option<String>,
    /// The `model` of the request body.
    pub model: Option<String>,
    /// The credential of the request.
    pub key: Option<String>,
    /// How many requests it answers before the next step has its turn. The last step stays for ever.
    pub repeat: u32,

    // The head.
    pub status: u16,
    /// Sent as they are; one that the mock would write itself (`content-type`, `content-length`, ...) replaces it.
    pub headers: Vec<(String, String)>,
    /// Before the first byte.
    pub delay_ms: u64,
    /// After each byte of the head.
    pub head_drip_ms: u64,
    /// Between head and body.
    pub body_delay_ms: u64,

    // What the model says.
    pub content: Option<String>,
    pub reasoning: Option<String>,
    /// The member that carries the reasoning.
    pub reasoning_field: String,
    /// `Some(vec![])` forbids the tool call that the mock makes by itself when a request carries tools.
    pub tool_calls: Option<Vec<ToolCall>>,
    pub tool_style: ToolStyle,
    /// `finish_reason`; by default `stop` or `tool_calls`. The text `null` stands for none at all.
    pub finish: Option<String>,
    /// How many choices; by default what the request asks for.
    pub choices: Option<usize>,
    pub usage: Usage,
    /// Replaces the numbers that the mock would count.
    pub usage_values: Option<Value>,
    /// The vectors of these texts; others have one that the mock makes of their characters.
    pub vectors: BTreeMap<String, Vec<f32>>,
    /// Replaces the whole body.
    pub body: Option<Vec<u8>>,

    // The event stream.
    /// Whether to stream, whatever the request asks for.
    pub stream: Option<bool>,
    /// Payloads that replace the whole stream; each becomes one event. `[DONE]` is added unless `done` is off.
    pub events: Option<Vec<String>>,
    pub done: bool,
    pub newline: Newline,
    /// Characters in a content delta.
    pub piece_chars: usize,
    /// Comment lines before the first event.
    pub comments: usize,
    /// An error payload that is sent as an event and ends the stream.
    pub error_frame: Option<Value>,
    /// How many events go before it.
    pub error_at: usize,

    // The bytes.
    /// Replaces the body, write by write.
    pub writes: Option<Vec<Act>>,
    /// Replaces the whole answer, status line included.
    pub raw: Option<Vec<Act>>,
    pub gzip: Gzip,
    /// Byte offsets of the body at which a write ends and the next begins.
    pub split_at: Vec<usize>,
    /// The longest write of the body, in bytes; 0 leaves it alone.
    pub split_every: usize,
    /// After each write of the body but the last.
    pub drip_ms: u64,
    /// Bytes of the body after which `end` happens.
    pub cut_at: Option<usize>,
    pub end: End,
    /// By default `Chunked` for streams and `Length` for the rest.
    pub framing: Option<Framing>,
    /// Take the request and never answer.
    pub hang: bool,
}

impl Default for Step {
    fn default() -> Step {
        Step {
            path: None,
            model: None,
            key: None,
            repeat: 1,
            status: 200,
            headers: Vec::new(),
            delay_ms: 0,
            head_drip_ms: 0,
            body_delay_ms: 0,
            content: None,
            reasoning: None,
            reasoning_field: "reasoning_content".into(),
            tool_calls: None,
            tool_style: ToolStyle::default(),
            finish: None,
            choices: None,
            usage: Usage::default(),
            usage_values: None,
            vectors: BTreeMap::new(),
            body: None,
            stream: None,
            events: None,
            done: true,
            newline: Newline::default(),
            piece_chars: 7,
            comments: 0,
            error_frame: None,
            error_at: 0,
            writes: None,
            raw: None,
            gzip: Gzip::default(),
            split_at: Vec::new(),
            split_every: 0,
            drip_ms: 0,
            cut_at: None,
            end: End::default(),
            framing: None,
            hang: false,
        }
    }
}

/// Short ways to the common steps.
impl Step {
    /// A well-behaved answer, to bend or to let one request pass.
    pub fn ok() -> Step {
        Step::default()
    }

    /// An answer with this status; from 400 on with an OpenAI error body.
    pub fn status(status: u16) -> Step {
        Step { status, ..Step::default() }
    }

    /// A model that says this.
    pub fn say(content: impl Into<String>) -> Step {
        Step { content: Some(content.into()), ..Step::default() }
    }

    /// This JSON body, whatever is asked.
    pub fn json(status: u16, body: &Value) -> Step {
        Step { status, body: Some(body.to_string().into_bytes()), stream: Some(false), ..Step::default() }
    }

    /// An embedder that gives these texts these vectors.
    pub fn vectors<'t>(vectors: impl IntoIterator<Item = (&'t str, Vec<f32>)>) -> Step {
        let vectors = vectors.into_iter().map(|(text, vector)| (text.to_owned(), vector)).collect();
        Step { vectors, ..Step::default() }
    }

    /// An error in OpenAI's shape.
    pub fn error(status: u16, message: &str) -> Step {
        Step::json(status, &json!({"error": {"message": message, "type": "mock_error", "code": null}}))
    }

    /// A page where JSON should be.
    pub fn html(status: u16) -> Step {
        let body = b"<!doctype html>\n<html><body><h1>busy</h1></body></html>\n".to_vec();
        Step { status, body: Some(body), stream: Some(false), ..Step::default() }
            .header("content-type", "text/html; charset=utf-8")
    }

    /// A stream of exactly these payloads, then `[DONE]`.
    pub fn events<T: ToString>(payloads: impl IntoIterator<Item = T>) -> Step {
        Step {
            events: Some(payloads.into_iter().map(|payload| payload.to_string()).collect()),
            ..Step::default()
        }
    }

    /// An event stream made of exactly these writes.
    pub fn writes(acts: impl IntoIterator<Item = Act>) -> Step {
        Step { writes: Some(acts.into_iter().collect()), ..Step::default() }
    }

    /// Exactly these acts, status line and all.
    pub fn raw(acts: impl IntoIterator<Item = Act>) -> Step {
        Step { raw: Some(acts.into_iter().collect()), ..Step::default() }
    }

    /// The request is taken and never answered.
    pub fn hang() -> Step {
        Step { hang: true, ..Step::default() }
    }

    /// The connection closes at the moment the request arrives, without a byte of answer.
    pub fn close() -> Step {
        Step::raw([Act::Close])
    }

    /// Half a status line, then a close.
    pub fn half_status_line() -> Step {
        Step::raw([Act::write("HTTP/1.1 20"), Act::Close])
    }

    /// A redirect to `location`.
    pub fn redirect(status: u16, location: &str) -> Step {
        Step::status(status).header("location", location)
    }

    /// A model that calls one tool.
    pub fn call_tool(name: &str, arguments: &Value) -> Step {
        let call = ToolCall { id: "call_mock_1".into(), name: name.into(), arguments: arguments.to_string() };
        Step { tool_calls: Some(vec![call]), ..Step::default() }
    }

    pub fn header(mut self, name: &str, value: impl ToString) -> Step {
        self.headers.push((name.into(), value.to_string()));
        self
    }

    pub fn times(mut self, requests: u32) -> Step {
        self.repeat = requests;
        self
    }

    pub fn for_path(mut self, ending: &str) -> Step {
        self.path = Some(ending.into());
        self
    }

    pub fn for_model(mut self, model: &str) -> Step {
        self.model = Some(model.into());
        self
    }

    pub fn for_key(mut self, key: &str) -> Step {
        self.key = Some(key.into());
        self
    }

    pub fn delay_ms(mut self, ms: u64) -> Step {
        self.delay_ms = ms;
        self
    }

    pub fn drip_ms(mut self, ms: u64) -> Step {
        self.drip_ms = ms;
        self
    }

    /// After `bytes` bytes of the body, `end` happens.
    pub fn cut(mut self, bytes: usize, end: End) -> Step {
        self.cut_at = Some(bytes);
        self.end = end;
        self
    }

    /// The body comes whole, and then `end` happens instead of its proper end.
    pub fn end(mut self, end: End) -> Step {
        self.end = end;
        self
    }

    pub fn framing(mut self, framing: Framing) -> Step {
        self.framing = Some(framing);
        self
    }

    pub fn gzip(mut self, gzip: Gzip) -> Step {
        self.gzip = gzip;
        self
    }

    pub fn newline(mut self, newline: Newline) -> Step {
        self.newline = newline;
        self
    }

    pub fn usage(mut self, usage: Usage) -> Step {
        self.usage = usage;
        self
    }

    pub fn without_done(mut self) -> Step {
        self.done = false;
        self
    }
}

/// The payload of a content delta, for [`Step::events`] and [`Step::writes`].
pub fn delta(content: &str) -> String {
    json!({"choices": [{"index": 0, "delta": {"content": content}}]}).to_string()
}

/// The payload of a chunk that only finishes choice 0.
pub fn finish(reason: &str) -> String {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string()
}

/// One whole event: `data: <payload>` and a blank line.
pub fn event(payload: &str) -> String {
    let mut text = String::with_capacity(payload.len() + 8);
    write!(text, "data: {payload}\n\n").expect("a String takes every write");
    text
}
