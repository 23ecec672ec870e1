//! The head of a request: found in the bytes that have come so far, checked strictly, kept as one text with spans.
//! Pure: no socket, no clock.
//!
//! Invariant: what [`check_head`] accepts means one thing only. Whatever two parsers could read differently (a
//! repeated length, a folded line, a bare line feed) is refused, so that nothing can be smuggled behind a request.
use std::ops::Range;

use super::host::bare;
use crate::wire::error::ApiError;

/// Longest head that is accepted, request line and the empty line included.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Longest request target.
const TARGET_BYTES_MAX: usize = 8 * 1024;
/// Longest method word; the longest registered one has 17 letters.
const METHOD_BYTES_MAX: usize = 32;
/// Most header lines.
const FIELDS_MAX: usize = 128;

/// A request that is turned away before anybody looks at what it asks for. The connection ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    /// `error.code`; empty where our documentation names none, which becomes `null`.
    pub code: &'static str,
    pub message: &'static str,
}

impl Refusal {
    /// A refusal with its status, code and message.
    pub const fn new(status: u16, code: &'static str, message: &'static str) -> Refusal {
        Refusal { status, code, message }
    }

    /// A request whose form is wrong.
    pub const fn bad(message: &'static str) -> Refusal {
        Refusal::new(400, "invalid_body", message)
    }

    /// A body above the limit that the route allows.
    pub const fn too_large() -> Refusal {
        Refusal::new(413, "payload_too_large", "the request body is larger than this server accepts")
    }

    /// No memory, no worker's place or no connection is free just now.
    pub const fn overloaded(message: &'static str) -> Refusal {
        Refusal::new(503, "overloaded", message)
    }

    /// The error that the client is told.
    pub fn to_error(self) -> ApiError {
        let error = ApiError::new(self.status, self.code, self.message);
        if self.status == 503 { error.retry_after(1000) } else { error }
    }
}

/// How the body of a request is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// That many bytes, zero when the head names none.
    Known(u64),
    Chunked,
}

/// The versions that are spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Http10,
    Http11,
}

/// A checked request head.
#[derive(Clone, Debug)]
pub struct Head {
    text: Box<str>,
    method: Range<usize>,
    target: Range<usize>,
    fields: Vec<(Range<usize>, Range<usize>)>,
    pub version: Version,
    pub length: Length,
    /// The connection may serve another request after this one.
    pub keep_alive: bool,
    /// The client waits for `100 Continue` before it sends its body.
    pub expects_continue: bool,
    /// tiny_http accepts this head and sees the same body in it.
    pub plain: bool,
    /// Bytes on the wire, the empty line included.
    pub wire_bytes: usize,
}

impl Head {
    /// The method as sent.
    pub fn method(&self) -> &str {
        self.slice(&self.method)
    }

    /// Path and query as sent; of an absolute target (`http://host/path`) what follows the host.
    pub fn target(&self) -> &str {
        self.slice(&self.target)
    }

    /// The target up to the question mark, still percent-encoded.
    pub fn path(&self) -> &str {
        let target = self.target();
        target.split_once('?').map_or(target, |(path, _)| path)
    }

    /// What follows the question mark; empty without one.
    pub fn query(&self) -> &str {
        self.target().split_once('?').map_or("", |(_, query)| query)
    }

    /// The first header called `name` (in any case), trimmed. Bytes that are not UTF-8 appear as U+FFFD.
    pub fn header<'h>(&'h self, name: &str) -> Option<&'h str> {
        // The length rules nearly all others out before any text is looked at.
        let called =
            |known: &Range<usize>| known.len() == name.len() && self.slice(known).eq_ignore_ascii_case(name);
        self.fields.iter().find(|(known, _)| called(known)).map(|(_, value)| self.slice(value))
    }

    /// All headers as (name as sent, value), in order of arrival.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (self.slice(name), self.slice(value)))
    }

    fn slice(&self, span: &Range<usize>) -> &str {
        self.text.get(span.clone()).unwrap_or_default()
    }
}

/// What the bytes that have come so far hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// A head of that many bytes.
    Complete(usize),
    /// The beginning of one.
    Partial,
    /// Something that can never become a head.
    Refused(Refusal),
}

/// Looks for the end of the head in `bytes`, of which the first `scanned` are known to hold none.
///
/// Refuses early what would otherwise be waited for until the deadline: TLS, bare line feeds, endless lines.
pub fn scan_head(bytes: &[u8], scanned: usize) -> Scan {
    match bytes.first() {
        Some(0x16) => return Scan::Refused(Refusal::bad("this port speaks plain HTTP, not TLS")),
        Some(&first) if BYTES[usize::from(first)] & TOKEN == 0 => {
            return Scan::Refused(Refusal::bad("this is not an HTTP request"));
        }
        _ => {}
    }
    for at in memchr::memchr_iter(b'\n', bytes.get(scanned..).unwrap_or_default()) {
        let end = scanned + at + 1;
        let Some(line_end) = bytes.get(..end).and_then(|line| line.strip_suffix(b"\r\n")) else {
            return Scan::Refused(Refusal::bad("a line of the request head does not end with CR LF"));
        };
        if line_end.ends_with(b"\r\n") {
            return if end > HEAD_BYTES_MAX { too_long() } else { Scan::Complete(end) };
        }
    }
    if bytes.len() > TARGET_BYTES_MAX + 64 && memchr::memchr(b'\n', bytes).is_none() {
        return Scan::Refused(Refusal::new(414, "", "the request target is longer than 8 KiB"));
    }
    if bytes.len() >= HEAD_BYTES_MAX { too_long() } else { Scan::Partial }
}

fn too_long() -> Scan {
    Scan::Refused(Refusal::new(431, "", "the request head is larger than 64 KiB"))
}

/// Checks a complete head, `bytes` ending with its empty line.
///
/// # Errors
/// 400 for what is malformed or ambiguous, 414 and 431 for what is too long, 417 for an unknown expectation, 501 for
/// a transfer coding other than `chunked`, 505 for another version than 1.0 and 1.1.
pub fn check_head(bytes: &[u8]) -> Result<Head, Refusal> {
    // The copy is the head's own text. Header values may hold Latin-1, which older clients send: it is let through as
    // replacement characters, since no header that we act on holds it.
    let text: Box<str> = match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => String::from_utf8_lossy(bytes).into(),
    };
    let ascii = text.is_ascii();
    let mut lines = Lines { text: &text, at: 0 };
    let line = lines.next().ok_or(Refusal::bad("the request head is empty"))?;
    let (method, target, version) = check_request_line(&text, line)?;
    let mut rules = Rules::default();
    let mut fields = Vec::with_capacity(16);
    for line in lines {
        if line.is_empty() {
            break;
        }
        if fields.len() == FIELDS_MAX {
            return Err(Refusal::new(431, "", "the request has more than 128 header lines"));
        }
        let (name, value, odd) = check_field(&text, line)?;
        rules.odd |= odd;
        rules.see(&text[name.clone()], &text[value.clone()])?;
        fields.push((name, value));
    }
    let length = rules.check(version)?;
    check_authority(&text[method.end + 1..target.start], &text, &fields)?;
    Ok(Head {
        version,
        length,
        keep_alive: !rules.close && (version == Version::Http11 || rules.keep_alive),
        // A client of HTTP/1.0 cannot understand the interim answer.
        expects_continue: rules.expects_continue && version == Version::Http11 && length != Length::Known(0),
        plain: ascii && !rules.odd && !rules.expects_continue && length != Length::Chunked,
        wire_bytes: bytes.len(),
        method,
        target,
        fields,
        text,
    })
}

/// The lines of a head as spans of its text, without their line ends.
struct Lines<'t> {
    text: &'t str,
    at: usize,
}

impl Iterator for Lines<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let rest = self.text.get(self.at..)?;
        let end = memchr::memchr(b'\n', rest.as_bytes())?;
        let line = self.at..self.at + end.saturating_sub(1);
        self.at += end + 1;
        Some(line)
    }
}

type RequestLine = (Range<usize>, Range<usize>, Version);

fn check_request_line(text: &str, line: Range<usize>) -> Result<RequestLine, Refusal> {
    let words = &text[line.clone()];
    let mut spaces = memchr::memchr_iter(b' ', words.as_bytes());
    let (Some(first), Some(second), None) = (spaces.next(), spaces.next(), spaces.next()) else {
        return Err(Refusal::bad("the request line is not `METHOD target HTTP/1.1`"));
    };
    let version = match &words[second + 1..] {
        "HTTP/1.1" => Version::Http11,
        "HTTP/1.0" => Version::Http10,
        other if other.starts_with("HTTP/") => {
            return Err(Refusal::new(505, "", "only HTTP/1.1 and HTTP/1.0 are spoken here"));
        }
        _ => return Err(Refusal::bad("the request line does not end with an HTTP version")),
    };
    let method = line.start..line.start + first;
    if method.is_empty() || method.len() > METHOD_BYTES_MAX || !may_stand(&text[method.clone()], TOKEN) {
        return Err(Refusal::bad("the method is not a word"));
    }
    let target = line.start + first + 1..line.start + second;
    if target.len() > TARGET_BYTES_MAX {
        return Err(Refusal::new(414, "", "the request target is longer than 8 KiB"));
    }
    if target.is_empty() || !may_stand(&text[target.clone()], GRAPHIC) {
        return Err(Refusal::bad("the request target holds characters that must be percent-encoded"));
    }
    Ok((method, origin_form(text, target)?, version))
}

/// The part of a target that begins with the path. Clients that take us for a proxy send the whole URL.
fn origin_form(text: &str, target: Range<usize>) -> Result<Range<usize>, Refusal> {
    let whole = &text[target.clone()];
    if whole.starts_with('/') || whole == "*" {
        return Ok(target);
    }
    let scheme = ["http://", "https://"]
        .into_iter()
        .find(|scheme| whole.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let path = scheme.and_then(|scheme| whole[scheme.len()..].find('/').map(|at| scheme.len() + at));
    path.map(|at| target.start + at..target.end)
        .ok_or(Refusal::bad("the request target is neither a path nor a URL with a path"))
}

/// A URL counts for more than the `Host` header (RFC 9112, 3.2.2), which is what we go by: so they must name one host.
/// `before` is what stands before the path, nothing in most requests.
fn check_authority(before: &str, text: &str, fields: &[Field]) -> Result<(), Refusal> {
    let Some((_, authority)) = before.split_once("://") else { return Ok(()) };
    let host = fields.iter().find(|(name, _)| text[name.clone()].eq_ignore_ascii_case("host"));
    match host {
        Some((_, host)) if !bare(&text[host.clone()]).eq_ignore_ascii_case(bare(authority)) => {
            Err(Refusal::bad("the URL of the request line and the `Host` header name different hosts"))
        }
        _ => Ok(()),
    }
}

type Field = (Range<usize>, Range<usize>);

/// A header line: its name and value, and whether tiny_http would refuse it or treat it in a way of its own.
fn check_field(text: &str, line: Range<usize>) -> Result<(Range<usize>, Range<usize>, bool), Refusal> {
    let words = &text[line.clone()];
    if words.starts_with([' ', '\t']) {
        return Err(Refusal::bad("a header line is folded"));
    }
    let Some(colon) = memchr::memchr(b':', words.as_bytes()) else {
        return Err(Refusal::bad("a header line has no colon"));
    };
    let name = line.start..line.start + colon;
    let name_places = places(&text[name.clone()]);
    if name.is_empty() || name_places & TOKEN == 0 {
        return Err(Refusal::bad("a header name holds a space or a character that names may not have"));
    }
    let blank = [' ', '\t'];
    let start = line.end - words[colon + 1..].trim_start_matches(blank).len();
    let end = start + text[start..line.end].trim_end_matches(blank).len();
    let value_places = places(&text[start..end]);
    if value_places & VALUE == 0 {
        return Err(Refusal::bad("a header value holds a control character"));
    }
    Ok((name, start..end, name_places & PLAIN_NAME == 0 || value_places & PLAIN_VALUE == 0))
}

/// What the framing headers said.
#[derive(Default)]
struct Rules {
    length: Option<u64>,
    chunked: bool,
    hosts: usize,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    /// tiny_http would refuse this head, or treat it in a way of its own.
    odd: bool,
}

impl Rules {
    fn see(&mut self, name: &str, value: &str) -> Result<(), Refusal> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name.len() {
            4 if is("host") => self.see_host(value),
            6 if is("expect") => self.see_expect(value),
            10 if is("connection") => {
                self.see_connection(value);
                Ok(())
            }
            14 if is("content-length") => self.see_length(value),
            17 if is("transfer-encoding") => self.see_coding(value),
            _ => Ok(()),
        }
    }

    fn see_host(&mut self, value: &str) -> Result<(), Refusal> {
        self.hosts += 1;
        if !may_stand(value, HOST) {
            return Err(Refusal::bad("the Host header is not a host name with an optional port"));
        }
        Ok(())
    }

    fn see_expect(&mut self, value: &str) -> Result<(), Refusal> {
        if !value.eq_ignore_ascii_case("100-continue") {
            return Err(Refusal::new(417, "", "only `Expect: 100-continue` is understood"));
        }
        self.expects_continue = true;
        Ok(())
    }

    fn see_connection(&mut self, value: &str) {
        for word in value.split(',').map(str::trim) {
            self.close |= word.eq_ignore_ascii_case("close");
            self.keep_alive |= word.eq_ignore_ascii_case("keep-alive");
        }
        // At the mere letters tiny_http hands out the raw stream in place of the body.
        self.odd |= value.to_ascii_lowercase().contains("upgrade");
    }

    fn see_length(&mut self, value: &str) -> Result<(), Refusal> {
        if self.length.is_some() {
            return Err(Refusal::bad("the request has two Content-Length headers"));
        }
        if value.is_empty() || !value.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Refusal::bad("Content-Length is not a number"));
        }
        // More digits than a u64 holds are a number all the same, above every limit.
        self.length = Some(value.parse().unwrap_or(u64::MAX));
        Ok(())
    }

    fn see_coding(&mut self, value: &str) -> Result<(), Refusal> {
        if self.chunked {
            return Err(Refusal::bad("the request has two Transfer-Encoding headers"));
        }
        if !value.eq_ignore_ascii_case("chunked") {
            return Err(Refusal::new(501, "", "the only transfer coding understood is `chunked`"));
        }
        self.chunked = true;
        Ok(())
    }

    fn check(&self, version: Version) -> Result<Length, Refusal> {
        if self.hosts > 1 || (self.hosts == 0 && version == Version::Http11) {
            return Err(Refusal::bad("the request must have exactly one Host header"));
        }
        match (self.length, self.chunked) {
            (Some(_), true) => Err(Refusal::bad("the request has both Content-Length and Transfer-Encoding")),
            (None, true) if version == Version::Http10 => {
                Err(Refusal::bad("HTTP/1.0 knows no Transfer-Encoding"))
            }
            (None, true) => Ok(Length::Chunked),
            (length, false) => Ok(Length::Known(length.unwrap_or(0))),
        }
    }
}

/// Stands in a method or a header name (RFC 9110, 5.6.2).
const TOKEN: u8 = 1;
/// Stands in a header name that tiny_http knows as such.
const PLAIN_NAME: u8 = 2;
/// Stands in a request target.
const GRAPHIC: u8 = 4;
/// Stands in a host name, its port included.
const HOST: u8 = 8;
/// Stands in a header value.
const VALUE: u8 = 16;
/// Stands in a header value that tiny_http takes.
const PLAIN_VALUE: u8 = 32;

/// Where each byte may stand, as the sum of the above.
static BYTES: [u8; 256] = {
    const fn place(place: u8, is: bool) -> u8 {
        if is { place } else { 0 }
    }
    let mut bytes = [0; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        let (alnum, graphic) = (byte.is_ascii_alphanumeric(), byte.is_ascii_graphic());
        let is_sign =
            matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~');
        bytes[at] = place(TOKEN, alnum || is_sign)
            | place(PLAIN_NAME, alnum || byte == b'-' || byte == b'_')
            | place(GRAPHIC, graphic)
            | place(HOST, graphic && !matches!(byte, b'/' | b'?' | b'#' | b'@' | b'\\'))
            | place(VALUE, byte == b'\t' || !byte.is_ascii_control())
            | place(PLAIN_VALUE, !byte.is_ascii_control());
        at += 1;
    }
    bytes
};

/// Where a text may stand: where all its bytes may.
fn places(text: &str) -> u8 {
    text.bytes().fold(u8::MAX, |all, byte| all & BYTES[usize::from(byte)])
}

fn may_stand(text: &str, place: u8) -> bool {
    places(text) & place != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Head, Refusal> {
        check_head(text.as_bytes())
    }

    /// Status of the refusal, or 0 for an accepted head.
    fn check(lines: &[&str], expected: u16) {
        let text = format!("{}\r\n\r\n", lines.join("\r\n"));
        assert_eq!(head(&text).map_or_else(|refusal| refusal.status, |_| 0), expected, "{text:?}");
    }

    #[test]
    fn every_byte_has_its_places() {
        for byte in 0..=u8::MAX {
            let is = |place| BYTES[usize::from(byte)] & place != 0;
            let alnum = byte.is_ascii_alphanumeric();
            assert_eq!(is(TOKEN), alnum || b"!#$%&'*+-.^_`|~".contains(&byte), "{byte}");
            assert_eq!(is(PLAIN_NAME), alnum || b"-_".contains(&byte), "{byte}");
            assert_eq!(is(GRAPHIC), (0x21..=0x7e).contains(&byte), "{byte}");
            assert_eq!(is(HOST), is(GRAPHIC) && !b"/?#@\\".contains(&byte), "{byte}");
            assert_eq!(is(VALUE), byte == b'\t' || (byte >= 0x20 && byte != 0x7f), "{byte}");
            assert_eq!(is(PLAIN_VALUE), is(VALUE) && byte != b'\t', "{byte}");
        }
    }

    #[test]
    fn request_lines() {
        let line = |line: &str, expected| check(&[line, "Host: g"], expected);
        line("GET / HTTP/1.1", 0);
        line("GET /v1/models/acme%2Fbig?x=1 HTTP/1.0", 0);
        line("OPTIONS * HTTP/1.1", 0);
        line("PURGE /x HTTP/1.1", 0);
        line("PRI * HTTP/2.0", 505);
        line("GET / HTTP/2.0", 505);
        line("GET / HTTP/3.0", 505);
        line("GET / HTTP/1.2", 505);
        line("GET / HTTP/0.9", 505);
        line("GET / http/1.1", 400);
        line("GET /", 400);
        line("GET  / HTTP/1.1", 400);
        line("GET / HTTP/1.1 ", 400);
        line("GET /\t HTTP/1.1", 400);
        line("G(T / HTTP/1.1", 400);
        line("GET nowhere HTTP/1.1", 400);
        line("GET /caf\u{e9} HTTP/1.1", 400);
        line("CONNECT g:80 HTTP/1.1", 400);
        line(&format!("GET /{} HTTP/1.1", "x".repeat(9000)), 414);
        line(&format!("{} / HTTP/1.1", "X".repeat(33)), 400);
    }

    #[test]
    fn only_one_meaning_of_the_length() {
        let framed = |lines: &[&str], expected| {
            let mut all = vec!["POST / HTTP/1.1", "Host: g"];
            all.extend(lines);
            check(&all, expected);
        };
        framed(&["Content-Length: 30"], 0);
        framed(&["content-length:30"], 0);
        framed(&["Content-Length: 30", "Content-Length: 30"], 400);
        framed(&["Content-Length: 30", "content-length: 31"], 400);
        framed(&["Content-Length: 30, 30"], 400);
        framed(&["Content-Length: abc"], 400);
        framed(&["Content-Length: 0x10"], 400);
        framed(&["Content-Length: +5"], 400);
        framed(&["Content-Length: -5"], 400);
        framed(&["Content-Length:"], 400);
        framed(&["Content-Length: 5\t6"], 400);
        framed(&["Transfer-Encoding: chunked"], 0);
        framed(&["transfer-encoding: CHUNKED"], 0);
        framed(&["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], 400);
        framed(&["Transfer-Encoding: chunked", "Content-Length: 3"], 400);
        framed(&["Content-Length: 3", "Transfer-Encoding: chunked"], 400);
        framed(&["Transfer-Encoding: gzip, chunked"], 501);
        framed(&["Transfer-Encoding: identity"], 501);
        framed(&["Transfer-Encoding: xchunked"], 501);
        framed(&["Transfer-Encoding : chunked"], 400);
        framed(&["X: a", " folded"], 400);
        framed(&["X: a\0b"], 400);
        framed(&["no colon"], 400);
        framed(&[": nameless"], 400);
        framed(&["Expect: 100-Continue", "Content-Length: 3"], 0);
        framed(&["Expect: a-miracle"], 417);
        check(&["POST / HTTP/1.0", "Transfer-Encoding: chunked"], 400);
    }

    #[test]
    fn exactly_one_host() {
        check(&["GET / HTTP/1.1"], 400);
        check(&["GET / HTTP/1.1", "Host: a", "Host: a"], 400);
        check(&["GET / HTTP/1.0"], 0);
        check(&["GET / HTTP/1.1", "Host: a b"], 400);
        check(&["GET / HTTP/1.1", "Host: user@a"], 400);
        check(&["GET / HTTP/1.1", "Host: [::1]:8787"], 0);
        check(&["GET / HTTP/1.1", "Host:"], 0);
    }

    #[test]
    fn header_lines_are_bounded() {
        let lines = |count: usize| {
            let mut all = vec!["GET / HTTP/1.0".to_owned()];
            all.extend((0..count).map(|i| format!("x-{i}: 1")));
            all.join("\r\n") + "\r\n\r\n"
        };
        assert!(head(&lines(FIELDS_MAX)).is_ok());
        assert_eq!(head(&lines(FIELDS_MAX + 1)).map(|_| ()).unwrap_err().status, 431);
    }

    #[test]
    fn lengths_beyond_any_number_are_large() {
        let length = |digits: &str| {
            head(&format!("POST / HTTP/1.0\r\nContent-Length: {digits}\r\n\r\n")).map(|h| h.length)
        };
        assert_eq!(length("18446744073709551615"), Ok(Length::Known(u64::MAX)));
        assert_eq!(length("99999999999999999999999"), Ok(Length::Known(u64::MAX)));
        assert_eq!(length("007"), Ok(Length::Known(7)));
    }

    #[test]
    fn parts_are_found() {
        let head = head(
            "POST http://g:1/v1/chat?api-version=x&y HTTP/1.1\r\nHost: g\r\nX-Two:\t a b \r\nx-two: c\r\nEmpty:\r\n\r\n",
        )
        .expect("a sane head");
        assert_eq!((head.method(), head.path(), head.query()), ("POST", "/v1/chat", "api-version=x&y"));
        assert_eq!(
            (head.header("x-tWo"), head.header("empty"), head.header("none")),
            (Some("a b"), Some(""), None)
        );
        assert_eq!(head.fields().filter(|(name, _)| name.eq_ignore_ascii_case("x-two")).count(), 2);
        assert_eq!(head.length, Length::Known(0));
    }

    #[test]
    fn a_url_and_its_host_header_name_one_host() {
        let check = |authority: &str, host: &str, fine: bool| {
            let found = head(&format!("GET http://{authority}/v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(found.is_ok(), fine, "{authority} {host}");
        };
        check("g", "g", true);
        check("G:80", "g:8787", true);
        check("[::1]:80", "[::1]", true);
        check("evil.example", "localhost", false);
        check("localhost@evil.example", "localhost", false);
        check("localhost:8787@evil.example", "evil.example", false);
        check("", "localhost", false);
        assert!(head("GET http://g/v1/models HTTP/1.0\r\n\r\n").is_ok());
    }

    #[test]
    fn connections_are_kept_by_the_rules_of_each_version() {
        let keeps = |version: &str, field: &str| {
            head(&format!("GET / HTTP/{version}\r\nHost: g\r\n{field}\r\n\r\n")).expect("sane").keep_alive
        };
        assert!(keeps("1.1", "x: y"));
        assert!(keeps("1.1", "Connection: keep-alive"));
        assert!(!keeps("1.1", "Connection: Close"));
        assert!(!keeps("1.1", "Connection: keep-alive, close"));
        assert!(!keeps("1.0", "x: y"));
        assert!(keeps("1.0", "Connection: Keep-Alive"));
    }

    #[test]
    fn what_tiny_http_reads_otherwise_is_marked() {
        let plain = |field: &str| {
            head(&format!("POST / HTTP/1.1\r\nHost: g\r\n{field}\r\n\r\n")).expect("sane").plain
        };
        assert!(plain("X-Key_1: value with \"anything\" printable; q=1"));
        assert!(!plain("X.Dotted: 1"));
        assert!(!plain("X: tab\there"));
        assert!(!plain("X: caf\u{e9}"));
        assert!(!plain("Expect: 100-continue"));
        assert!(!plain("Transfer-Encoding: chunked"));
        assert!(!plain("Connection: Upgrade, HTTP2-Settings"));
        assert!(!plain("Connection: x-upgraded"));
    }

    #[test]
    fn latin_1_values_pass() {
        let head = check_head(b"GET / HTTP/1.1\r\nHost: g\r\nX-Title: caf\xe9\r\n\r\n").expect("sane");
        assert_eq!((head.header("x-title"), head.plain), (Some("caf\u{fffd}"), false));
        assert_eq!(head.wire_bytes, 42);
    }

    #[test]
    fn heads_are_found_as_they_come() {
        let text = b"GET / HTTP/1.1\r\nHost: g\r\n\r\nrest";
        for cut in 1..text.len() - 4 {
            let first = scan_head(&text[..cut], 0);
            assert_eq!(first, Scan::Partial, "{cut}");
            assert_eq!(scan_head(text, cut), Scan::Complete(27), "{cut}");
        }
    }

    #[test]
    fn what_can_never_be_a_head_is_refused_at_once() {
        let refused = |bytes: &[u8]| match scan_head(bytes, 0) {
            Scan::Refused(refusal) => refusal.status,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(b"\x16\x03\x01\x02\x00\x01"), 400);
        assert_eq!(refused(b"\0"), 400);
        assert_eq!(refused(b" GET / HTTP/1.1\r\n"), 400);
        assert_eq!(refused(b"GET / HTTP/1.1\nHost: g\n\n"), 400);
        assert_eq!(refused(&[b'x'; 9000]), 414);
        let endless = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'y'; HEAD_BYTES_MAX]].concat();
        assert_eq!(refused(&endless), 431);
    }
}
