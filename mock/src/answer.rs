//! Turns a step and a request into acts on the socket. Pure: the socket itself is `server`'s.
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::openai::{self, Said};
use crate::request::{Request, header};
use crate::step::{Act, End, Framing, Gzip, Step};

/// All that happens in answer to one request.
pub(crate) struct Answer {
    pub(crate) acts: Vec<Act>,
    /// For the record; `None` where the bytes are the script's own.
    pub(crate) status: Option<u16>,
    /// Whether the connection serves another request afterwards.
    pub(crate) keep: bool,
}

/// Who answers.
pub(crate) struct Speaker<'a> {
    pub(crate) name: &'a str,
    pub(crate) models: &'a [String],
    /// The number of the call.
    pub(crate) number: u64,
}

/// A body before it is framed.
struct Body {
    acts: Vec<Act>,
    content_type: &'static str,
    status: u16,
}

pub(crate) fn make(speaker: &Speaker<'_>, step: &Step, request: &Request) -> Answer {
    if step.hang {
        return Answer { acts: vec![Act::Hold], status: None, keep: false };
    }
    if let Some(raw) = &step.raw {
        return Answer { keep: !raw.iter().any(Act::ends), acts: raw.clone(), status: None };
    }
    let mut body = body(speaker, step, request);
    shape(&mut body.acts, step);
    frame(step, request, body)
}

/// A small whole JSON answer, for the control plane.
pub(crate) fn plain(status: u16, body: &serde_json::Value) -> Answer {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        reason(status),
        body.len()
    );
    Answer { acts: vec![Act::Write((head + &body).into_bytes())], status: Some(status), keep: true }
}

fn body(speaker: &Speaker<'_>, step: &Step, request: &Request) -> Body {
    let whole = |bytes: Vec<u8>, content_type| Body {
        acts: vec![Act::Write(bytes)],
        content_type,
        status: step.status,
    };
    let asked = request.field("stream").and_then(serde_json::Value::as_bool).unwrap_or(false);
    let stream = step.stream.unwrap_or(asked);
    let sse = |acts| Body { acts, content_type: "text/event-stream; charset=utf-8", status: step.status };
    if let Some(writes) = &step.writes {
        let json = step.stream == Some(false);
        return Body {
            content_type: if json { "application/json" } else { "text/event-stream" },
            ..sse(writes.clone())
        };
    }
    if let Some(bytes) = &step.body {
        let json = matches!(bytes.iter().find(|byte| !byte.is_ascii_whitespace()), Some(b'{' | b'['));
        return whole(bytes.clone(), if json { "application/json" } else { "text/plain; charset=utf-8" });
    }
    if let Some(events) = &step.events {
        return sse(events_to_writes(step, events));
    }
    if step.status >= 300 {
        return whole(openai::error(speaker.name, step.status).to_string().into_bytes(), "application/json");
    }
    let value = match (request.method.as_str(), operation(&request.path)) {
        ("POST", Operation::Chat) => {
            let said = Said::new(speaker.name, speaker.number, step, request);
            if stream {
                return sse(events_to_writes(step, &said.chunks(step, request)));
            }
            Some(said.completion(step))
        }
        ("POST", Operation::Embeddings) => match openai::embeddings(step, request) {
            Some(value) => Some(value),
            None => {
                return Body {
                    status: 400,
                    ..whole(openai::error(speaker.name, 400).to_string().into(), "application/json")
                };
            }
        },
        ("GET", Operation::Models) => Some(openai::models(speaker.name, speaker.models)),
        _ => None,
    };
    match value {
        Some(value) => whole(value.to_string().into_bytes(), "application/json"),
        None => Body {
            status: 404,
            ..whole(openai::error(speaker.name, 404).to_string().into(), "application/json")
        },
    }
}

enum Operation {
    Chat,
    Embeddings,
    Models,
    Unknown,
}

/// By the end of the path, so that any base path will do.
fn operation(path: &str) -> Operation {
    let ends = |ending: &str| path.ends_with(ending);
    if ends("/chat/completions") {
        Operation::Chat
    } else if ends("/embeddings") {
        Operation::Embeddings
    } else if ends("/models") {
        Operation::Models
    } else {
        Operation::Unknown
    }
}

/// Comments, the events, the error event or `[DONE]`, one write each.
fn events_to_writes(step: &Step, payloads: &[String]) -> Vec<Act> {
    let newline = step.newline.as_str();
    let event = |payload: &str| Act::write(format!("data: {payload}{newline}{newline}"));
    let comments = (0..step.comments).map(|_| Act::write(format!(": keep-alive{newline}{newline}")));
    let shown = if step.error_frame.is_some() { step.error_at.min(payloads.len()) } else { payloads.len() };
    let last = match &step.error_frame {
        Some(error) => Some(event(&error.to_string())),
        None => step.done.then(|| event("[DONE]")),
    };
    comments.chain(payloads[..shown].iter().map(|payload| event(payload))).chain(last).collect()
}

/// Compresses, splits, drips and cuts the writes of a body, as the step asks.
fn shape(acts: &mut Vec<Act>, step: &Step) {
    let touched =
        step.gzip != Gzip::No || step.cut_at.is_some() || step.split_every > 0 || !step.split_at.is_empty();
    if touched {
        *acts = expanded(std::mem::take(acts));
    }
    if step.gzip != Gzip::No {
        *acts = zipped(std::mem::take(acts), step.gzip);
    }
    if step.split_every > 0 || !step.split_at.is_empty() {
        *acts = split(std::mem::take(acts), step);
    }
    if let Some(limit) = step.cut_at {
        *acts = cut(std::mem::take(acts), limit);
    }
    if step.drip_ms > 0 {
        let count = acts.len();
        let dripped = std::mem::take(acts).into_iter().enumerate().flat_map(|(at, act)| {
            let pause = (at + 1 < count).then_some(Act::Pause(step.drip_ms));
            std::iter::once(act).chain(pause)
        });
        *acts = dripped.collect();
    }
}

/// Repetitions written out.
fn expanded(acts: Vec<Act>) -> Vec<Act> {
    let mut flat = Vec::with_capacity(acts.len());
    for act in acts {
        match act {
            Act::Repeat { bytes, times, pause_ms } => {
                for _ in 0..times {
                    flat.push(Act::Write(bytes.clone()));
                    if pause_ms > 0 {
                        flat.push(Act::Pause(pause_ms));
                    }
                }
            }
            act => flat.push(act),
        }
    }
    flat
}

fn zipped(acts: Vec<Act>, gzip: Gzip) -> Vec<Act> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let mut out = Vec::with_capacity(acts.len() + 1);
    for act in acts {
        match act {
            Act::Write(bytes) => {
                encoder.write_all(&bytes).expect("a Vec takes every write");
                encoder.flush().expect("a Vec takes every write");
                out.push(Act::Write(std::mem::take(encoder.get_mut())));
            }
            act => out.push(act),
        }
    }
    let trailer = encoder.finish().expect("a Vec takes every write");
    match gzip {
        // A stream loses its trailer; a body of one write loses half of that as well.
        Gzip::Truncated => {
            if let [Act::Write(only)] = out.as_mut_slice() {
                only.truncate(only.len() / 2);
            }
        }
        _ => match out.last_mut() {
            Some(Act::Write(last)) => last.extend(trailer),
            _ => out.push(Act::Write(trailer)),
        },
    }
    out
}

fn split(acts: Vec<Act>, step: &Step) -> Vec<Act> {
    let mut out = Vec::new();
    let mut offset = 0;
    for act in acts {
        let Act::Write(bytes) = act else {
            out.push(act);
            continue;
        };
        let mut piece = Vec::new();
        for byte in bytes {
            let full = step.split_every > 0 && piece.len() == step.split_every;
            if !piece.is_empty() && (full || step.split_at.contains(&offset)) {
                out.push(Act::Write(std::mem::take(&mut piece)));
            }
            piece.push(byte);
            offset += 1;
        }
        out.push(Act::Write(piece));
    }
    out
}

fn cut(acts: Vec<Act>, limit: usize) -> Vec<Act> {
    let mut left = limit;
    let mut out = Vec::new();
    for act in acts {
        match act {
            Act::Write(mut bytes) => {
                bytes.truncate(left);
                left -= bytes.len();
                out.push(Act::Write(bytes));
            }
            act => out.push(act),
        }
        if left == 0 {
            break;
        }
    }
    out
}

/// Writes the head and frames the body.
fn frame(step: &Step, request: &Request, body: Body) -> Answer {
    let has = |name| header(&step.headers, name).is_some();
    let streamed = body.content_type.starts_with("text/event-stream");
    let framing = step.framing.unwrap_or(if streamed { Framing::Chunked } else { Framing::Length });
    let says_close =
        header(&step.headers, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let keep = step.end == End::Clean
        && framing != Framing::Close
        && request.keep_alive
        && !says_close
        && !body.acts.iter().any(Act::ends);

    let mut head = format!("HTTP/1.1 {} {}\r\n", body.status, reason(body.status));
    if !has("content-type") {
        head += &format!("content-type: {}\r\n", body.content_type);
    }
    if step.gzip != Gzip::No && !has("content-encoding") {
        head += "content-encoding: gzip\r\n";
    }
    let framed = has("content-length") || has("transfer-encoding");
    match framing {
        Framing::Length if !framed => {
            head += &format!("content-length: {}\r\n", announced_length(step, &body))
        }
        Framing::Chunked if !framed => head += "transfer-encoding: chunked\r\n",
        _ => {}
    }
    if !keep && !has("connection") && step.end == End::Clean {
        head += "connection: close\r\n";
    }
    for (name, value) in &step.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";

    let mut acts = head_acts(head.into_bytes(), step);
    let chunked = framing == Framing::Chunked && !has("content-length");
    let small = acts.len() == 1 && body.acts.len() == 1 && !streamed;
    acts.extend(body.acts.into_iter().map(|act| if chunked { chunk(act) } else { act }));
    if chunked && step.end == End::Clean {
        acts.push(Act::write("0\r\n\r\n"));
    }
    if small {
        join_first_writes(&mut acts);
    }
    match step.end {
        End::Clean if keep => {}
        End::Clean | End::Close => acts.push(Act::Close),
        End::Reset => acts.push(Act::Reset),
        End::Hold => acts.push(Act::Hold),
    }
    Answer { acts, status: Some(body.status), keep }
}

/// A body that is cut short still announces its whole length.
fn announced_length(step: &Step, body: &Body) -> usize {
    let written: usize = body
        .acts
        .iter()
        .map(|act| match act {
            Act::Write(bytes) => bytes.len(),
            Act::Repeat { bytes, times, .. } => bytes.len() * *times as usize,
            _ => 0,
        })
        .sum();
    if step.end == End::Clean { written } else { written + CUT_SHORT_BYTES }
}

/// How much more than it sends a body announces whose end is not clean.
const CUT_SHORT_BYTES: usize = 64;

fn head_acts(head: Vec<u8>, step: &Step) -> Vec<Act> {
    let mut acts = if step.head_drip_ms == 0 {
        vec![Act::Write(head)]
    } else {
        head.into_iter().flat_map(|byte| [Act::Write(vec![byte]), Act::Pause(step.head_drip_ms)]).collect()
    };
    if step.body_delay_ms > 0 {
        acts.push(Act::Pause(step.body_delay_ms));
    }
    acts
}

fn chunk(act: Act) -> Act {
    let framed = |bytes: &[u8]| {
        let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
        framed.extend_from_slice(bytes);
        framed.extend_from_slice(b"\r\n");
        framed
    };
    match act {
        // A chunk of length zero would end the body.
        Act::Write(bytes) if bytes.is_empty() => Act::Write(bytes),
        Act::Write(bytes) => Act::Write(framed(&bytes)),
        Act::Repeat { bytes, times, pause_ms } => Act::Repeat { bytes: framed(&bytes), times, pause_ms },
        act => act,
    }
}

/// Head and body of a whole answer go in one write, as most servers do it.
fn join_first_writes(acts: &mut Vec<Act>) {
    while let [Act::Write(_), Act::Write(_), ..] = acts.as_slice() {
        if let Act::Write(second) = acts.remove(1) {
            if let Some(Act::Write(first)) = acts.first_mut() {
                first.extend(second);
            }
        }
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        301 => "Moved Permanently",
        302 => "Found",
        307 => "Temporary Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        408 => "Request Timeout",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Mock",
    }
}
