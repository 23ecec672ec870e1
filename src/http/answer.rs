//! Answers: whole ones, and streams. Each is written in as few system calls as there are moments: head and body of a
//! whole answer in one, each frame of a stream in one, the head together with the first frame.
use std::borrow::Cow;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;
use std::time::SystemTime;

use super::exchange::{Exchange, Terms};
use super::ferry;
use super::head::{Head, Refusal, Version};
use super::line::Line;
use super::workers::Place;
use crate::relay::flow::Flow;
use crate::upstream::cut::Cut;
use crate::wire::error::ApiError;

/// Response headers: names in lower case, values that the door has made safe for a header.
pub type Fields = Vec<(&'static str, Cow<'static, str>)>;

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// All headers but those of the framing (`content-length`, `connection`, `date`), which are added when written.
    pub headers: Fields,
    pub body: Cow<'static, [u8]>,
}

impl Answer {
    /// An answer without a body.
    pub fn empty(status: u16) -> Answer {
        Answer { status, headers: Vec::new(), body: Cow::Borrowed(b"") }
    }

    /// A JSON answer.
    pub fn json(status: u16, body: impl Into<Cow<'static, [u8]>>) -> Answer {
        Answer::of_type(status, JSON, body)
    }

    /// An answer of the given `content-type`.
    pub fn of_type(status: u16, content_type: &'static str, body: impl Into<Cow<'static, [u8]>>) -> Answer {
        Answer { status, headers: vec![("content-type", content_type.into())], body: body.into() }
    }

    /// An error in OpenAI's envelope.
    pub fn error(error: &ApiError) -> Answer {
        Answer::error_as(error, error.body())
    }

    /// An error whose envelope has been written as `body`, with the headers that belong to the error.
    pub fn error_as(error: &ApiError, body: Vec<u8>) -> Answer {
        let mut answer = Answer::json(error.status, body);
        if let Some(seconds) = error.retry_after_s() {
            answer.headers.push(("retry-after", seconds.to_string().into()));
        }
        answer.headers.extend(error.headers.iter().map(|(name, value)| (*name, value.clone().into())));
        answer
    }

    /// This answer with one more header.
    pub fn header(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Answer {
        Answer::error(&refusal.to_error())
    }
}

const JSON: &str = "application/json; charset=utf-8";

/// What the request means for the form of its answer.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    pub version: Version,
    /// The answer to `HEAD` is that to `GET` without the body.
    pub head_only: bool,
    /// The connection serves another request after this answer.
    pub keep: bool,
}

impl Framing {
    /// The form that this head asks for.
    pub fn of(head: &Head) -> Framing {
        Framing { version: head.version, head_only: head.method() == "HEAD", keep: head.keep_alive }
    }

    /// For requests that could not be read.
    pub const LAST: Framing = Framing { version: Version::Http11, head_only: false, keep: false };
}

/// How the body of an answer is delimited.
enum Extent {
    /// That many bytes.
    Length(usize),
    Chunked,
    /// By the end of the connection, for clients of HTTP/1.0.
    UntilClose,
}

/// Writes a whole answer on `line`, with `common` headers beside its own.
pub fn write_answer(line: &Line, framing: Framing, answer: &Answer, common: &Fields) -> io::Result<()> {
    let extent = Extent::Length(answer.body.len());
    let head = head_bytes(framing, answer.status, &[common, &answer.headers], extent);
    let body: &[u8] = if framing.head_only || is_bodiless(answer.status) { b"" } else { &answer.body };
    line.write(&mut [IoSlice::new(&head), IoSlice::new(body)])
}

/// A whole answer as bytes, for a connection that has no line.
pub fn answer_bytes(framing: Framing, answer: &Answer) -> Vec<u8> {
    let mut bytes = head_bytes(framing, answer.status, &[&answer.headers], Extent::Length(answer.body.len()));
    bytes.extend_from_slice(&answer.body);
    bytes
}

/// Statuses whose answers have neither a body nor a length (RFC 9110, 6.4.1).
fn is_bodiless(status: u16) -> bool {
    status < 200 || status == 204 || status == 304
}

fn head_bytes(framing: Framing, status: u16, fields: &[&Fields], extent: Extent) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let reason = tiny_http::StatusCode(status).default_reason_phrase();
    let date = httpdate::HttpDate::from(SystemTime::now());
    // Writing into memory cannot fail.
    let _ = write!(out, "HTTP/1.1 {status} {reason}\r\ndate: {date}\r\n");
    for (name, value) in fields.iter().copied().flatten() {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        // The last guard against a value that would end the line and begin another header.
        let is_safe = |b: u8| b == b'\t' || (0x20..0x7f).contains(&b);
        match value.bytes().all(is_safe) {
            true => out.extend_from_slice(value.as_bytes()),
            false => out.extend(value.bytes().map(|b| if is_safe(b) { b } else { b'?' })),
        }
        out.extend_from_slice(b"\r\n");
    }
    let _ = match extent {
        _ if is_bodiless(status) => Ok(()),
        Extent::Length(bytes) => write!(out, "content-length: {bytes}\r\n"),
        Extent::Chunked => write!(out, "transfer-encoding: chunked\r\n"),
        Extent::UntilClose => Ok(()),
    };
    if !framing.keep {
        out.extend_from_slice(b"connection: close\r\n");
    } else if framing.version == Version::Http10 {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// The right to answer one request, once. Dropped without an answer, it sends our 500.
#[derive(Debug)]
pub struct Responder {
    exchange: Exchange,
    terms: Terms,
    answered: bool,
}

impl Responder {
    pub(super) fn new(exchange: Exchange, terms: Terms) -> Responder {
        Responder { exchange, terms, answered: false }
    }

    /// Ends the upstream call of this request when the client leaves.
    pub fn cut(&self) -> &Arc<Cut> {
        self.exchange.cut()
    }

    /// Whether the client has left.
    pub fn is_abandoned(&self) -> bool {
        self.exchange.cut().is_cut()
    }

    /// Holds the worker's place on which the request is served, until its answer leaves.
    pub(super) fn hold(&mut self, place: Place) {
        self.exchange.hold(place);
    }

    /// Answers.
    ///
    /// # Errors
    /// When the client has left or did not read in time; the connection is closed then.
    pub fn whole(mut self, answer: &Answer) -> io::Result<()> {
        self.send(answer)
    }

    /// Answers with an error, in the envelope of the route.
    ///
    /// # Errors
    /// As [`Responder::whole`].
    pub fn error(mut self, error: &ApiError) -> io::Result<()> {
        self.send(&self.terms.error_answer(error))
    }

    /// Begins a stream. Nothing is sent before its first frame.
    pub fn stream(mut self, status: u16, headers: Fields) -> Stream {
        self.answered = true;
        let mut framing = self.exchange.framing();
        let chunked = framing.version == Version::Http11;
        framing.keep &= chunked;
        self.exchange.set_framing(framing);
        let extent = if chunked { Extent::Chunked } else { Extent::UntilClose };
        let events = headers.iter().any(|(name, value)| {
            *name == "content-type"
                && value.get(..EVENTS.len()).is_some_and(|start| start.eq_ignore_ascii_case(EVENTS))
        });
        let head = head_bytes(framing, status, &[&self.terms.headers, &headers], extent);
        let exchange = self.exchange.take();
        let terms = std::mem::take(&mut self.terms);
        Stream { exchange, terms, head, chunked, events, ended: false }
    }

    fn send(&mut self, answer: &Answer) -> io::Result<()> {
        self.answered = true;
        self.exchange.complete();
        let result = write_answer(self.exchange.line(), self.exchange.framing(), answer, &self.terms.headers);
        self.exchange.judge(result)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if self.is_abandoned() {
            // A client that has only stopped sending would take the answer to its next request for the one to this.
            self.exchange.fail();
        } else {
            // A client that cannot be told is gone.
            let _ = self.send(&self.terms.error_answer(&internal_error()));
        }
    }
}

const EVENTS: &str = "text/event-stream";

/// What a client is told when our own code has failed.
pub fn internal_error() -> ApiError {
    ApiError::new(500, "", "the gateway failed while serving this request; its log tells more")
}

/// A stream being answered. Dropped before its end, it sends an error event and closes the connection.
#[derive(Debug)]
pub struct Stream {
    exchange: Exchange,
    terms: Terms,
    /// The head until it has been sent.
    head: Vec<u8>,
    chunked: bool,
    /// The stream is one of server-sent events.
    events: bool,
    ended: bool,
}

impl Stream {
    /// Sends one frame, all of it, now.
    ///
    /// # Errors
    /// When the client has left or did not read in time. The stream is over then, and its upstream call is cut.
    pub fn frame(&mut self, data: &[u8]) -> io::Result<()> {
        self.send(data, b"")
    }

    /// Sends what comes of `flow` for as long as it flows by itself, then gives it back.
    ///
    /// # Errors
    /// As [`Stream::frame`].
    pub fn let_flow(&mut self, flow: Box<Flow>) -> (Box<Flow>, io::Result<()>) {
        if !self.head.is_empty() || self.exchange.has_failed() || self.exchange.framing().head_only {
            return (flow, Ok(()));
        }
        let channel = Channel { line: Arc::clone(self.exchange.line()), chunked: self.chunked };
        let (flow, unsent) = ferry::carry(flow, channel);
        // What the client had no room for is waited for here, where a slow one holds up nobody else.
        let sent = unsent.and_then(|rest| self.exchange.line().write(&mut [IoSlice::new(&rest)]));
        (flow, self.exchange.judge(sent))
    }

    /// Ends the stream properly, with `data` as its last frame if there is any.
    ///
    /// # Errors
    /// As [`Stream::frame`].
    pub fn end(mut self, data: &[u8]) -> io::Result<()> {
        self.exchange.complete();
        let result = self.send(data, LAST_CHUNK);
        self.ended = true;
        result
    }

    /// Ends the upstream call of this request when the client leaves.
    pub fn cut(&self) -> &Arc<Cut> {
        self.exchange.cut()
    }

    /// Whether the client has left.
    pub fn is_abandoned(&self) -> bool {
        self.exchange.has_failed() || self.exchange.cut().is_cut()
    }

    fn send(&mut self, data: &[u8], last: &[u8]) -> io::Result<()> {
        if self.exchange.has_failed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut size = [0; SIZE_LINE_BYTES];
        let framed = self.chunked && !self.exchange.framing().head_only;
        let (before, after, last): (&[u8], &[u8], &[u8]) = match framed {
            true if data.is_empty() => (b"", b"", last),
            true => (size_line(&mut size, data.len()), b"\r\n", last),
            false => (b"", b"", b""),
        };
        let data = if self.exchange.framing().head_only { b"" } else { data };
        let result = self.exchange.line().write(&mut [
            IoSlice::new(&self.head),
            IoSlice::new(before),
            IoSlice::new(data),
            IoSlice::new(after),
            IoSlice::new(last),
        ]);
        self.head = Vec::new();
        self.exchange.judge(result)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if self.events && !self.exchange.has_failed() && !self.exchange.cut().is_cut() {
            let body = self.terms.error_body(&internal_error());
            // The client is told in both ways that the answer is not whole: by this event, and by the missing end.
            let _ = self.send(&[b"data: ", body.as_slice(), b"\n\n"].concat(), b"");
        }
        self.exchange.fail();
    }
}

/// Where the frames of a stream go that flows by itself.
pub struct Channel {
    line: Arc<Line>,
    chunked: bool,
}

impl Channel {
    /// Sends one frame as far as there is room for it; gives the rest, as it has to follow.
    pub fn send_now(&self, frame: &[u8]) -> io::Result<Vec<u8>> {
        let mut size = [0; SIZE_LINE_BYTES];
        let (before, after): (&[u8], &[u8]) = match self.chunked {
            true => (size_line(&mut size, frame.len()), b"\r\n"),
            false => (b"", b""),
        };
        let parts = [before, frame, after];
        let sent = self.line.write_now(&parts.map(IoSlice::new))?;
        let whole = before.len() + frame.len() + after.len();
        Ok(if sent == whole { Vec::new() } else { parts.concat().split_off(sent) })
    }
}

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// Sixteen hexadecimal digits and a line end.
const SIZE_LINE_BYTES: usize = 18;

/// The line that announces a chunk of `bytes`.
fn size_line(place: &mut [u8; SIZE_LINE_BYTES], bytes: usize) -> &[u8] {
    let mut rest: &mut [u8] = place;
    let room = rest.len();
    let _ = write!(rest, "{bytes:x}\r\n");
    let used = room - rest.len();
    &place[..used]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(framing: Framing, status: u16, fields: Fields, extent: Extent) -> String {
        let text = String::from_utf8(head_bytes(framing, status, &[&fields], extent)).unwrap();
        let (before, rest) = text.split_once("date: ").unwrap();
        format!("{before}{}", rest.split_once("\r\n").unwrap().1)
    }

    const HTTP11: Framing = Framing { version: Version::Http11, head_only: false, keep: true };

    #[test]
    fn heads_say_how_the_body_ends_and_whether_the_connection_goes_on() {
        let old = Framing { version: Version::Http10, ..HTTP11 };
        let last = Framing { keep: false, ..HTTP11 };
        let none = Vec::new;
        assert_eq!(
            head(HTTP11, 200, none(), Extent::Length(3)),
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"
        );
        assert_eq!(
            head(HTTP11, 200, none(), Extent::Chunked),
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        assert_eq!(
            head(old, 200, none(), Extent::Length(0)),
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n"
        );
        assert_eq!(
            head(last, 204, none(), Extent::Length(0)),
            "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"
        );
    }

    #[test]
    fn a_value_cannot_begin_another_header() {
        let fields = vec![("x-freeway-route", "a\r\nset-cookie: b\0é".into())];
        assert_eq!(
            head(HTTP11, 304, fields, Extent::Length(0)),
            "HTTP/1.1 304 Not Modified\r\nx-freeway-route: a??set-cookie: b???\r\n\r\n"
        );
    }

    #[test]
    fn chunk_sizes_are_hexadecimal() {
        let mut place = [0; SIZE_LINE_BYTES];
        assert_eq!(size_line(&mut place, 1), b"1\r\n");
        assert_eq!(size_line(&mut place, 0x4000), b"4000\r\n");
        assert_eq!(size_line(&mut place, usize::MAX).len(), SIZE_LINE_BYTES);
    }

    #[test]
    fn errors_carry_their_headers() {
        let answer = Answer::error(
            &ApiError::new(405, "method_not_allowed", "m").header("allow", "GET").retry_after(1),
        );
        let value = |name: &str| answer.headers.iter().find(|(n, _)| *n == name).map(|(_, v)| &**v);
        assert_eq!(
            (value("allow"), value("retry-after"), value("content-type")),
            (Some("GET"), Some("1"), Some(JSON))
        );
    }
}
