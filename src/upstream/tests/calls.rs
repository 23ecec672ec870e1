//! The ordinary exchange, and what upstreams do to it.
use std::sync::mpsc;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::upstream::client::{ANSWER_BYTES_MAX, ERROR_BYTES_MAX};
use crate::wire::exchange::{FaultKind, Phase};

/// A server that answers `ok` and hands out the requests that it saw.
fn recording() -> (Server, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let server = Server::start(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            tell.send(request).unwrap();
            stream.write_all(ok("{}").as_bytes()).unwrap();
        }
    });
    (server, told)
}

#[test]
fn a_request_says_what_the_provider_wants_and_nothing_else() {
    let (server, seen) = recording();
    let mut provider = provider(&server.url());
    provider.headers = vec![
        ("User-Agent".into(), "special".into()),
        ("X-Extra".into(), "1".into()),
        ("Content-Length".into(), "7".into()),
    ];
    assert_eq!(ask(&client(), &provider).unwrap(), "{}");
    let request = seen.recv_timeout(PATIENCE).unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let mut lines: Vec<String> = head.lines().map(str::to_owned).collect();
    assert_eq!(lines.remove(0), "POST /v1/chat/completions HTTP/1.1");
    lines.sort();
    assert_eq!(
        lines,
        [
            "accept-encoding: identity",
            "accept: application/json",
            &format!("authorization: Bearer {SECRET}"),
            "content-length: 13",
            "content-type: application/json",
            &format!("host: {}", server.address),
            "user-agent: special",
            "x-extra: 1",
        ]
    );
    assert_eq!(body, "{\"model\":\"m\"}");
}

#[test]
fn a_body_of_any_size_arrives_whole() {
    let (server, seen) = recording();
    let (client, provider) = (client(), provider(&server.url()));
    for size in [0, 1, 15_000, 16_000, 16_384, 40_000, 3_000_000] {
        let body = "x".repeat(size);
        let asked = Asked { body: body.as_bytes(), ..Asked::new(&client, &provider) };
        assert_eq!(asked.text().unwrap(), "{}");
        let request = seen.recv_timeout(PATIENCE).unwrap();
        assert!(request.split_once("\r\n\r\n").unwrap().1 == body, "{size}");
    }
    assert_eq!(server.connections(), 1);
}
