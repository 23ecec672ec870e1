//! Request heads that are wrong, ambiguous, endless or slow, and connections without any.
use std::io::Write;

use super::*;

#[test]
fn http_2_request_lines_and_prefaces_leak_nothing() {
    Siege::new().run(|siege| {
        let (threads, descriptors) = (siege.gateway.threads(), siege.gateway.descriptors());
        for round in 0..200 {
            let mut wire = siege.wire();
            wire.send(match round % 2 {
                0 => "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                _ => "GET /v1/models HTTP/2.0\r\nhost: localhost\r\n\r\n",
            });
            expect_refusal(&mut wire, 505);
        }
        eventually("their threads are gone", || siege.gateway.threads() <= threads + 4);
        eventually("their sockets are gone", || siege.gateway.descriptors() <= descriptors + LEFT_OVER_MAX);
    });
}

/// Sends a head that two parsers could read differently, with a request hidden behind it.
fn check_smuggling(siege: &Siege, head: &str, behind: &str, status: u16) {
    let mut wire = siege.wire();
    wire.send([head.as_bytes(), behind.as_bytes(), &whole_chat()].concat());
    let answer = wire.answer();
    assert_eq!((answer.status(), answer.header("connection")), (status, Some("close")), "{head:?} {answer}");
    assert!(answer.at("/error/message").is_string(), "{head:?}");
    let more = wire.until_close();
    assert!(more.is_empty(), "a second answer to {head:?}: {}", lossy(&more));
    assert_eq!(siege.calls(), 0, "a hidden request was served behind {head:?}");
}

#[test]
fn http_07_ambiguous_lengths_smuggle_nothing() {
    Siege::new().run(|siege| {
        let check = |fields: &str, status| check_smuggling(siege, &chat_head(fields), "0\r\n\r\n", status);
        check("content-length: 5\r\nContent-Length: 300\r\n", 400);
        check("content-length: 5\r\ncontent-length: 5\r\n", 400);
        check("content-length: 30, 30\r\n", 400);
        check("content-length: 5,5\r\n", 400);
        check("content-length: abc\r\n", 400);
        check("content-length: 0x10\r\n", 400);
        check("content-length: +5\r\n", 400);
        check("content-length: -5\r\n", 400);
        check("content-length: 5 5\r\n", 400);
        check("content-length:\r\n", 400);
        check("content-length: 5\r\ntransfer-encoding: chunked\r\n", 400);
        check("transfer-encoding: chunked\r\ncontent-length: 5\r\n", 400);
        check("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", 400);
        check("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", 400);
        check("transfer-encoding: chunked, chunked\r\n", 501);
        check("transfer-encoding: gzip, chunked\r\n", 501);
        check("transfer-encoding: xchunked\r\n", 501);
        check("transfer-encoding: \x0bchunked\r\n", 400);
    });
}

#[test]
fn malformed_header_lines_smuggle_nothing() {
    Siege::new().run(|siege| {
        let check = |fields: &str| check_smuggling(siege, &chat_head(fields), "", 400);
        check("content-length : 0\r\n");
        check("transfer-encoding : chunked\r\n");
        check("content-length\t: 0\r\n");
        check(" content-length: 0\r\n");
        check("x-folded: a\r\n content-length: 0\r\n");
        check("x-folded: a\r\n\tb\r\ncontent-length: 0\r\n");
        check("host: other\r\ncontent-length: 0\r\n");
        check("x-cut: a\0b\r\ncontent-length: 0\r\n");
        check("x-cut: a\rcontent-length: 0\r\n");
        check("no colon\r\ncontent-length: 0\r\n");
        check(": nameless\r\ncontent-length: 0\r\n");
        let whole = |head: &str, status| check_smuggling(siege, head, "", status);
        whole("POST /v1/models HTTP/1.1\ncontent-length: 0\nhost: localhost\n\n", 400);
        whole("POST /v1/models HTTP/1.1\r\nhost: localhost\ncontent-length: 0\r\n\r\n", 400);
        whole("POST /v1/models HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\n", 400);
        whole("GET /v1/models HTTP/1.1\r\n\r\n", 400);
        whole("GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n", 400);
        whole("CONNECT evil.example:443 HTTP/1.1\r\nhost: localhost\r\n\r\n", 400);
        whole("GET  /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n", 400);
        whole("GET /v1/mod els HTTP/1.1\r\nhost: localhost\r\n\r\n", 400);
        whole("GET /v1/models\r\n\r\n", 400);
        whole("POST /v1/models HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n", 400);
        whole("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nexpect: a-miracle\r\n\r\n", 417);
        whole("GET /v1/models HTTP/9.9\r\nhost: localhost\r\n\r\n", 505);
    });
}

#[test]
fn what_is_no_http_is_told_so_at_once() {
    Siege::new().run(|siege| {
        for bytes in [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(), b"\0\0\0\0", b"{\"model\":"]
        {
            let mut wire = siege.wire();
            wire.send(bytes);
            expect_refusal(&mut wire, 400);
        }
    });
}

/// Sends `piece` for as long as the server takes it, after `start`.
fn flood(siege: &Siege, start: &str, piece: &[u8]) {
    /// Far more than the server may take.
    const FLOOD_BYTES: usize = 64 << 20;
    let mut wire = siege.wire();
    wire.send(start);
    let sent = (0..FLOOD_BYTES / piece.len()).take_while(|_| wire.try_send(piece).is_ok()).count();
    assert!(sent < FLOOD_BYTES / piece.len(), "all of an endless {start:?} was taken");
}

#[test]
fn endless_heads_are_bounded() {
    Siege::new().run(|siege| {
        let block = [b'y'; 16 * 1024];
        let lines = b"x-line: 0123456789012345678901234567890123456789\r\n".repeat(256);
        for (start, piece, status) in [
            ("", block.as_slice(), 414),
            ("GET /", &block, 414),
            ("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-long: ", &block, 431),
            ("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n", &lines, 431),
        ] {
            flood(siege, start, piece);
            let mut wire = siege.wire();
            wire.send(start);
            let answer = wire.answer_while(|hand| {
                thread::sleep(Duration::from_millis(5));
                hand.write_all(piece)
            });
            expect_last(&answer, status);
        }
    });
}

#[test]
fn a_head_with_too_many_lines_is_refused_and_a_long_one_is_not() {
    Siege::new().run(|siege| {
        let head = |lines: usize, length: usize| {
            let line = format!("x-line: {}\r\n", "y".repeat(length));
            format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{}\r\n", line.repeat(lines))
        };
        let mut wire = siege.wire();
        for _ in 0..3 {
            wire.send(head(60, 990));
            wire.answer().ok();
        }
        wire.send(head(200, 5));
        expect_refusal(&mut wire, 431);
    });
}

#[test]
fn http_13_a_slow_head_meets_a_total_deadline() {
    Siege::with(json!({"headMs": 700})).run(|siege| {
        let dripping = |_| {
            let mut wire = siege.wire();
            wire.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-slow: ");
            // A deadline that each byte moves would never come.
            let answer = wire.answer_while(|hand| {
                thread::sleep(Duration::from_millis(50));
                hand.write_all(b"y")
            });
            expect_last(&answer, 408);
        };
        at_once(20, dripping);
    });
}

#[test]
fn http_13_slow_and_idle_connections_pin_nobody() {
    Siege::new().run(|siege| {
        let slow: Vec<Wire> = (0..250)
            .map(|number| {
                let mut wire = siege.wire();
                wire.send(if number < 200 { "GET /v1/models HTTP/1.1\r\nx: " } else { "" });
                wire
            })
            .collect();
        eventually("all are connected", || siege.gateway.descriptors() >= 2 * slow.len());
        siege.gateway.chat("m").ok();
        siege.gateway.stream("m").well_formed_stream();
    });
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    Siege::with(json!({"idleMs": 300})).run(|siege| {
        let mut fresh = siege.wire();
        let mut used = siege.wire();
        used.ask(&Request::get("/v1/models")).ok();
        let mut served = siege.wire();
        served.ask(&Request::chat(&hello("m"))).ok();
        for wire in [&mut fresh, &mut used, &mut served] {
            wire.expect_closed();
        }
    });
}
