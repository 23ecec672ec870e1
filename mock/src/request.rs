//! Reads requests off a connection, strictly enough for a test upstream: what is not HTTP/1.x ends the connection.
use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

/// The longest head that is read.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The longest body that is read.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One request, whole.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Without the query.
    pub path: String,
    pub query: String,
    /// In order of arrival, names as they were sent.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The body, where it is JSON.
    pub json: Option<Value>,
    /// Whether the client would send another one on this connection.
    pub keep_alive: bool,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The credential: a bearer token, or what stands in `x-api-key`, `api-key`, `x-goog-api-key` or the query.
    pub fn key(&self) -> Option<String> {
        if let Some(value) = self.header("authorization") {
            return Some(value.strip_prefix("Bearer ").unwrap_or(value).trim().to_owned());
        }
        let header = ["x-api-key", "api-key", "x-goog-api-key"].iter().find_map(|name| self.header(name));
        let pairs = || self.query.split('&').filter_map(|pair| pair.split_once('='));
        let query =
            || pairs().find(|(name, _)| ["key", "api_key", "apikey"].contains(name)).map(|(_, value)| value);
        header.or_else(query).map(str::to_owned)
    }

    /// The `model` of the body.
    pub fn model(&self) -> Option<&str> {
        self.json.as_ref()?.get("model")?.as_str()
    }

    /// A member of the JSON body; `null` counts as absent.
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.json.as_ref()?.get(name).filter(|value| !value.is_null())
    }
}

pub(crate) fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// Reads the next request. `unread` carries bytes that came with the one before. `None` is a client that has no more.
pub(crate) fn read(stream: &mut TcpStream, unread: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let head_end = loop {
        if let Some(at) = find(unread, b"\r\n\r\n") {
            break at;
        }
        if unread.len() > HEAD_BYTES_MAX {
            return Err(bad("head too long"));
        }
        if fill(stream, unread)? == 0 {
            return Ok(None);
        }
    };
    let head: Vec<u8> = unread.drain(..head_end + 4).collect();
    let mut request = parse_head(&head[..head_end])?;
    if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    request.body = if request.header("transfer-encoding").is_some() {
        read_chunked(stream, unread)?
    } else {
        let length = request.header("content-length").map_or(Ok(0), |value| value.trim().parse::<usize>());
        take(stream, unread, length.map_err(|_| bad("content-length"))?)?
    };
    request.json = serde_json::from_slice(&request.body).ok();
    Ok(Some(request))
}

fn parse_head(head: &[u8]) -> io::Result<Request> {
    let text = std::str::from_utf8(head).map_err(|_| bad("head is not text"))?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Err(bad("request line"));
    };
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned())))
        .collect::<Option<_>>()
        .ok_or_else(|| bad("header line"))?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let connection = header(&headers, "connection").unwrap_or_default().to_ascii_lowercase();
    Ok(Request {
        method: method.into(),
        path: path.into(),
        query: query.into(),
        keep_alive: if version == "HTTP/1.0" { connection == "keep-alive" } else { connection != "close" },
        headers,
        body: Vec::new(),
        json: None,
    })
}

fn read_chunked(stream: &mut TcpStream, unread: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = take_line(stream, unread)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let length = usize::from_str_radix(digits, 16).map_err(|_| bad("chunk size"))?;
        if length == 0 {
            while !take_line(stream, unread)?.is_empty() {}
            return Ok(body);
        }
        if body.len() + length > BODY_BYTES_MAX {
            return Err(bad("body too long"));
        }
        body.extend(take(stream, unread, length)?);
        take_line(stream, unread)?;
    }
}

fn take_line(stream: &mut TcpStream, unread: &mut Vec<u8>) -> io::Result<String> {
    let end = loop {
        if let Some(at) = find(unread, b"\r\n") {
            break at;
        }
        if unread.len() > HEAD_BYTES_MAX {
            return Err(bad("line too long"));
        }
        if fill(stream, unread)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let line: Vec<u8> = unread.drain(..end + 2).take(end).collect();
    String::from_utf8(line).map_err(|_| bad("line is not text"))
}

fn take(stream: &mut TcpStream, unread: &mut Vec<u8>, length: usize) -> io::Result<Vec<u8>> {
    if length > BODY_BYTES_MAX {
        return Err(bad("body too long"));
    }
    while unread.len() < length {
        if fill(stream, unread)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(unread.drain(..length).collect())
}

fn fill(stream: &mut TcpStream, unread: &mut Vec<u8>) -> io::Result<usize> {
    let mut buffer = [0; 16 * 1024];
    let count = stream.read(&mut buffer)?;
    unread.extend_from_slice(&buffer[..count]);
    Ok(count)
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
