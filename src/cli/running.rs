//! The gateway that runs: where it listens by these settings, and a question to its API.
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

use super::Failure;
use crate::base::text::Secret;
use crate::catalog::settings::Settings;
use crate::service::reachable;

/// How long an answer may take. All questions are such as readers answer by themselves.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const ANSWER_MAX: u64 = 32 << 20;

/// What a gateway answered.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// `Null` for what is no JSON.
    pub body: Value,
}

impl Reply {
    /// What an error says, and for who lacks the right, what to do.
    pub fn error(&self) -> String {
        if matches!(self.status, 401 | 403) {
            return "it wants its admin key; set FREEWAY_ADMIN_KEY here as it is set there".into();
        }
        let message = self.body["error"]["message"].as_str();
        message.map_or_else(|| format!("answered {}", self.status), str::to_owned)
    }
}

/// Where the gateway of these settings can be reached from this machine.
pub fn address(settings: &Settings, port: Option<u16>) -> Result<SocketAddr, Failure> {
    let host = settings.host.as_str();
    let mut found = (host, port.unwrap_or(settings.port))
        .to_socket_addrs()
        .map_err(|error| Failure::Failed(format!("host {host}: {error}")))?;
    let found = found.next().ok_or_else(|| Failure::Failed(format!("host {host} has no address")))?;
    Ok(SocketAddr::new(reachable(found.ip()), found.port()))
}

/// Gets `path` from the gateway at `address`.
pub fn get(address: SocketAddr, path: &str, admin_key: Option<&Secret>) -> io::Result<Reply> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    exchange(stream, "GET", path, admin_key, PATIENCE)
}

/// Sends a request without a body over a connection to a gateway, and reads the answer.
pub fn exchange(
    mut stream: TcpStream,
    method: &str,
    path: &str,
    key: Option<&Secret>,
    patience: Duration,
) -> io::Result<Reply> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let host = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), stream.peer_addr()?.port());
    let key = key.map(|key| format!("authorization: Bearer {}\r\n", key.expose())).unwrap_or_default();
    let kind = if method == "GET" { "" } else { "content-type: application/json\r\ncontent-length: 0\r\n" };
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{key}{kind}connection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    parse(&answer).ok_or_else(|| io::Error::other("what listens there does not speak HTTP"))
}

/// Our own answers of JSON are neither chunked nor compressed.
fn parse(answer: &[u8]) -> Option<Reply> {
    let end = memchr::memmem::find(answer, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Reply { status, body: serde_json::from_slice(&answer[end + 4..]).unwrap_or_default() })
}

/// Whether what listens at `address` is a gateway, and since how many seconds.
pub fn uptime_s(address: SocketAddr) -> Option<u64> {
    let reply = get(address, "/healthz", None).ok().filter(|reply| reply.status == 200)?;
    reply.body["version"].as_str()?;
    reply.body["uptimeSec"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood_and_others_are_not() {
        let reply = parse(b"HTTP/1.1 404 Not Found\r\nx: y\r\n\r\n{\"error\":{\"message\":\"no\"}}")
            .expect("it is HTTP");
        assert_eq!((reply.status, reply.error().as_str()), (404, "no"));
        let html = parse(b"HTTP/1.1 502 Bad\r\n\r\n<html>").expect("it is HTTP");
        assert_eq!(html.error(), "answered 502");
        for other in [&b"SSH-2.0-x\r\n\r\n"[..], b"HTTP/1.1 200 OK\r\n", b"", b"HTTP/1.1 many\r\n\r\n"] {
            assert!(parse(other).is_none());
        }
    }
}
