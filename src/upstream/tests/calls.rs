//! The ordinary exchange, and what upstreams do to it.
use std::sync::mpsc;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::upstream::client::{ANSWER_BYTES_MAX, ERROR_BYTES_MAX};
use crate::wire::exchange::{FaultKind, Phase};

/// A server that answers `{}` and hands out the requests that it saw.
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

fn gzipped(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn gzip_answer(status: &str, packed: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", packed.len());
    [head.as_bytes(), packed].concat()
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
fn keys_are_presented_as_the_provider_wants() {
    let (server, seen) = recording();
    let client = client();
    let check = |auth: Auth, secret: &str, expected: &[&str]| {
        let mut provider = provider(&server.url());
        provider.auth = auth;
        provider.keys[0].secret = Secret::new(secret);
        let asked = Asked { method: Method::Get, path: "/models", ..Asked::new(&client, &provider) };
        asked.text().unwrap();
        let request = seen.recv_timeout(PATIENCE).unwrap();
        let told: Vec<&str> =
            request.lines().filter(|line| line.contains("models") || line.contains("k/1")).collect();
        assert_eq!(told, expected);
    };
    let target = "GET /v1/models HTTP/1.1";
    check(Auth::Bearer { prefix: "Token ".into() }, "k/1", &[target, "authorization: Token k/1"]);
    check(
        Auth::Header { name: "X-Api-Key".into(), prefix: String::new() },
        "k/1",
        &[target, "x-api-key: k/1"],
    );
    check(Auth::Query { param: "key".into() }, "k/1", &["GET /v1/models?key=k%2F1 HTTP/1.1"]);
    check(Auth::None, "k/1", &[target]);
    check(Auth::Bearer { prefix: "Bearer ".into() }, "", &[target]);
    check(Auth::Query { param: "key".into() }, "", &[target]);
}

#[test]
fn what_cannot_be_sent_is_a_fault_without_the_key() {
    let client = client();
    let check = |change: &dyn Fn(&mut Provider)| {
        let mut provider = provider("http://127.0.0.1:1");
        change(&mut provider);
        let fault = fault_of(ask(&client, &provider));
        assert_eq!((fault.kind, fault.request_sent), (FaultKind::Protocol, false));
    };
    check(&|provider| provider.base_url = String::new());
    check(&|provider| provider.base_url = "ftp://127.0.0.1".into());
    check(&|provider| provider.base_url = "http://up.test:99999".into());
    check(&|provider| provider.keys[0].secret = Secret::new(format!("{SECRET}\n")));
    check(&|provider| provider.headers = vec![("bad name".into(), SECRET.into())]);
    check(&|provider| provider.headers = vec![("x".into(), format!("{SECRET}\r\nx: y"))]);
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

#[test]
fn connections_are_used_again_unless_the_upstream_says_no() {
    let keeping = Server::saying(ok("{}"));
    let closing = Server::saying("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}");
    let client = client();
    for _ in 0..3 {
        assert_eq!(ask(&client, &provider(&keeping.url())).unwrap(), "{}");
        assert_eq!(ask(&client, &provider(&closing.url())).unwrap(), "{}");
    }
    assert_eq!((keeping.connections(), closing.connections()), (1, 3));
    assert_eq!(client.idle_connections(), 1);
}

#[test]
fn an_answer_that_is_dropped_unread_takes_its_connection_with_it() {
    let server = Server::saying(ok(&"x".repeat(200_000)));
    let (client, provider) = (client(), provider(&server.url()));
    drop(Asked::new(&client, &provider).send().unwrap());
    assert_eq!(client.idle_connections(), 0);
    assert_eq!(ask(&client, &provider).unwrap().len(), 200_000);
    assert_eq!(server.connections(), 2);
}

#[test]
fn net_01_a_closed_idle_connection_is_replaced_silently() {
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(ok("{}").as_bytes()).unwrap();
    });
    let (client, provider) = (client(), provider(&server.url()));
    for _ in 0..3 {
        assert_eq!(ask(&client, &provider).unwrap(), "{}");
        thread::sleep(Duration::from_millis(30));
    }
    assert_eq!(server.connections(), 3);
    assert_eq!(client.idle_connections(), 1);
    client.close_idle();
    assert_eq!(client.idle_connections(), 0);
}

#[test]
fn net_01_a_connection_that_closes_under_the_second_request_is_replaced_once() {
    // The first connection reads the second request and closes: only then can the client notice.
    let server = Server::start(|number, mut stream| {
        read_request(&mut stream);
        stream.write_all(ok("{}").as_bytes()).unwrap();
        if read_request(&mut stream).is_some() && number > 0 {
            stream.write_all(ok("{}").as_bytes()).unwrap();
        }
    });
    let (client, provider) = (client(), provider(&server.url()));
    assert_eq!(ask(&client, &provider).unwrap(), "{}");
    assert_eq!(ask(&client, &provider).unwrap(), "{}");
    assert_eq!(server.connections(), 2);
}

#[test]
fn net_01_nothing_is_repeated_after_the_first_byte_of_an_answer() {
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(ok("{}").as_bytes()).unwrap();
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 2").unwrap();
    });
    let (client, provider) = (client(), provider(&server.url()));
    assert_eq!(ask(&client, &provider).unwrap(), "{}");
    let fault = fault_of(ask(&client, &provider));
    assert_eq!((fault.kind, fault.phase, fault.request_sent), (FaultKind::Closed, Phase::FirstByte, true));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_new_connection_that_closes_without_an_answer_is_not_tried_again() {
    let server = Server::start(|_, mut stream| drop(read_request(&mut stream)));
    let fault = fault_of(ask(&client(), &provider(&server.url())));
    assert_eq!((fault.kind, fault.phase, fault.request_sent), (FaultKind::Closed, Phase::FirstByte, true));
    assert_eq!(server.connections(), 1);
}

#[test]
fn bytes_that_nobody_asked_for_are_no_answer_to_the_next_request() {
    let (tell, told) = mpsc::channel();
    let server = Server::start(move |_, mut stream| {
        read_request(&mut stream);
        stream.write_all(ok("{}").as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(30));
        stream.write_all(ok("\"stray\"").as_bytes()).unwrap();
        tell.send(()).unwrap();
        wait_for_leave(&mut stream);
    });
    let (client, provider) = (client(), provider(&server.url()));
    for _ in 0..2 {
        assert_eq!(ask(&client, &provider).unwrap(), "{}");
        told.recv_timeout(PATIENCE).unwrap();
    }
    assert_eq!(server.connections(), 2);
}

#[test]
fn a4_a_redirect_is_an_answer_and_is_not_followed() {
    let elsewhere = Server::saying(ok("{}"));
    for status in [301, 302, 307, 308] {
        let server = Server::saying(format!(
            "HTTP/1.1 {status} Moved\r\nLocation: http://{}/\r\nContent-Length: 0\r\n\r\n",
            elsewhere.address
        ));
        let (client, provider) = (client(), provider(&server.url()));
        let mut reply = Asked::new(&client, &provider).send().unwrap();
        assert_eq!((reply.status, reply.body.read_all(10).unwrap().len()), (status, 0));
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[test]
fn statuses_and_headers_are_handed_on_as_they_are() {
    let server = Server::saying(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
         HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nX-Twice: a\r\nx-twice: b\r\nX-Odd: caf\u{e9}\r\nContent-Length: 4\r\n\r\nbusy",
    );
    let (client, provider) = (client(), provider(&server.url()));
    for _ in 0..2 {
        let mut reply = Asked::new(&client, &provider).send().unwrap();
        assert_eq!((reply.status, reply.headers.get("retry-after")), (429, Some("7")));
        assert_eq!(
            (reply.headers.get("x-twice"), reply.headers.get("x-odd")),
            (Some("a"), Some("caf\u{e9}"))
        );
        assert_eq!(reply.body.read_some(ERROR_BYTES_MAX), b"busy");
    }
    assert_eq!(server.connections(), 1);
}

#[test]
fn heads_and_chunk_sizes_may_be_long_but_not_endless() {
    let long = format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\nContent-Length: 2\r\n\r\n{{}}", "x".repeat(40_000));
    let (client, server) = (client(), Server::saying(long));
    assert_eq!(ask(&client, &provider(&server.url())).unwrap(), "{}");
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"X-More: 0123456789\r\n").is_ok() {}
    });
    let fault = fault_of(ask(&client, &provider(&server.url())));
    assert!(matches!(fault.kind, FaultKind::TooLarge | FaultKind::Protocol), "{fault:?}");
    assert_eq!(fault.phase, Phase::FirstByte);
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while stream.write_all(b"1111111111111111").is_ok() {}
    });
    let fault = fault_of(ask(&client, &provider(&server.url())));
    assert_eq!((fault.kind, fault.phase), (FaultKind::TooLarge, Phase::Stream));
}

#[test]
fn answers_that_are_no_http_are_protocol_faults() {
    for answer in
        ["SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}", "\u{16}\u{3}\u{1}\0\0"]
    {
        let server = Server::start(move |_, mut stream| {
            read_request(&mut stream);
            stream.write_all(answer.as_bytes()).unwrap();
            wait_for_leave(&mut stream);
        });
        assert_eq!(
            fault_of(ask(&client(), &provider(&server.url()))).kind,
            FaultKind::Protocol,
            "{answer:?}"
        );
    }
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n";
    let fault = fault_of(ask(&client(), &provider(&Server::saying(chunked).url())));
    assert_eq!((fault.kind, fault.phase), (FaultKind::Protocol, Phase::Stream));
}

#[test]
fn a_body_cut_short_is_a_fault_and_one_that_ends_with_its_connection_is_not() {
    let check = |answer: &'static str, expected: Option<&str>| {
        let server = Server::start(move |_, mut stream| {
            read_request(&mut stream);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let client = client();
        let outcome = ask(&client, &provider(&server.url()));
        match expected {
            Some(text) => assert_eq!(outcome.unwrap(), text),
            None => {
                let fault = fault_of(outcome);
                assert_eq!((fault.kind, fault.phase), (FaultKind::Closed, Phase::Stream), "{answer:?}");
            }
        }
        assert_eq!(client.idle_connections(), 0);
    };
    check("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}", None);
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", None);
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{}", None);
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n4", None);
    check("HTTP/1.1 200 OK\r\n\r\n{}", Some("{}"));
    check("HTTP/1.0 200 OK\r\n\r\n{}", Some("{}"));
}

#[test]
fn a_reset_is_no_end_of_a_body_that_ends_with_its_connection() {
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"half\":").unwrap();
        thread::sleep(Duration::from_millis(30));
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    });
    assert_eq!(fault_of(ask(&client(), &provider(&server.url()))).kind, FaultKind::Closed);
}

#[test]
fn an_early_answer_to_a_body_that_is_not_read_arrives() {
    let server = Server::start(|_, mut stream| {
        let mut some = [0; 1024];
        let _ = stream.read(&mut some).unwrap();
        stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig").unwrap();
        stream.shutdown(std::net::Shutdown::Read).unwrap();
        thread::sleep(Duration::from_millis(300));
    });
    let (client, provider) = (client(), provider(&server.url()));
    let body = vec![b'x'; 20_000_000];
    let asked = Asked { body: &body, ..Asked::new(&client, &provider) };
    let mut reply = asked.send().unwrap();
    assert_eq!((reply.status, reply.body.read_some(100)), (413, b"big".to_vec()));
    assert_eq!(client.idle_connections(), 0);
}

#[test]
fn events_come_out_as_they_come_in() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let server = Server::start(move |_, mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        for _ in 0..3 {
            stream.write_all(b"9\r\ndata: 1\n\n\r\n").unwrap();
            wait.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        }
        stream.write_all(b"0\r\n\r\n").unwrap();
        wait_for_leave(&mut stream);
    });
    let (client, provider) = (client(), provider(&server.url()));
    let asked = Asked { accept: Accept::EventStream, ..Asked::new(&client, &provider) };
    let mut reply = asked.send().unwrap();
    assert_eq!(asked.watch.phase(), Phase::FirstByte);
    let mut piece = [0; 100];
    for _ in 0..3 {
        let read = reply.body.read(&mut piece).unwrap();
        assert_eq!(&piece[..read], b"data: 1\n\n");
        go.send(()).unwrap();
    }
    assert_eq!(reply.body.read(&mut piece).unwrap(), 0);
    assert_eq!(reply.body.read(&mut piece).unwrap(), 0);
    assert_eq!(client.idle_connections(), 1);
}

#[test]
fn http_03_gzip_is_decoded_whatever_the_status() {
    let client = client();
    for status in ["200 OK", "429 Slow"] {
        let server = Server::saying(gzip_answer(status, &gzipped(b"{\"a\":1}")));
        for _ in 0..2 {
            assert_eq!(ask(&client, &provider(&server.url())).unwrap(), "{\"a\":1}");
        }
        assert_eq!(server.connections(), 1);
    }
}

#[test]
fn http_03_a_gzipped_stream_does_not_wait_for_its_end() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let server = Server::start(move |_, mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n").unwrap();
        let mut encoder = GzEncoder::new(stream, Compression::default());
        for _ in 0..3 {
            encoder.write_all(b"data: 1\n\n").unwrap();
            encoder.flush().unwrap();
            wait.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        }
        encoder.finish().unwrap();
    });
    let (client, provider) = (client(), provider(&server.url()));
    let mut reply = Asked { accept: Accept::EventStream, ..Asked::new(&client, &provider) }.send().unwrap();
    // Room for less than an event: what is left must come without more input.
    let mut piece = [0; 5];
    for _ in 0..3 {
        let first = reply.body.read(&mut piece).unwrap();
        assert_eq!(&piece[..first], b"data:");
        let second = reply.body.read(&mut piece).unwrap();
        assert_eq!(&piece[..second], b" 1\n\n");
        go.send(()).unwrap();
    }
    assert_eq!(reply.body.read(&mut piece).unwrap(), 0);
}

#[test]
fn another_compression_leaves_the_status_readable() {
    let server =
        Server::saying("HTTP/1.1 503 Busy\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n\u{1}\u{2}");
    let (client, provider) = (client(), provider(&server.url()));
    let mut reply = Asked::new(&client, &provider).send().unwrap();
    assert_eq!(reply.status, 503);
    assert!(reply.body.read_some(100).is_empty());
    assert_eq!(fault_of(reply.body.read_all(100)).kind, FaultKind::Protocol);
}

#[test]
fn err_06_odd_error_pages_are_read_as_far_as_they_go() {
    let check = |answer: Vec<u8>, expected: &[u8]| {
        let server = Server::start(move |_, mut stream| {
            read_request(&mut stream);
            let _ = stream.write_all(&answer);
        });
        let (client, provider) = (client(), provider(&server.url()));
        let mut reply = Asked::new(&client, &provider).send().unwrap();
        assert_eq!(reply.status, 503);
        assert!(reply.body.read_some(ERROR_BYTES_MAX) == expected);
    };
    let page = vec![b'<'; 10_000_000];
    check(
        [b"HTTP/1.1 503 Busy\r\nContent-Length: 10000000\r\n\r\n", &page[..]].concat(),
        &page[..ERROR_BYTES_MAX],
    );
    check(gzip_answer("503 Busy", &gzipped(&page)), &page[..ERROR_BYTES_MAX]);
    check(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_vec(), b"");
    check(b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nbus".to_vec(), b"bus");
    let packed = gzipped(b"busy");
    check(gzip_answer("503 Busy", &packed[..packed.len() - 4]), b"busy");
    check(gzip_answer("503 Busy", b"<html>"), b"");
    let mut whole = gzip_answer("503 Busy", &packed);
    whole.truncate(whole.len() - 4);
    check(whole, b"busy");
}

#[test]
fn a_truncated_gzip_answer_is_a_fault() {
    let packed = gzipped(b"{\"a\":1}");
    let server = Server::saying(gzip_answer("200 OK", &packed[..packed.len() - 4]));
    assert_eq!(fault_of(ask(&client(), &provider(&server.url()))).kind, FaultKind::Closed);
}

#[test]
fn answers_are_bounded_after_decoding() {
    let server = Server::saying(gzip_answer("200 OK", &gzipped(&vec![0; ANSWER_BYTES_MAX + 1])));
    let (client, provider) = (client(), provider(&server.url()));
    let read = |max_bytes: usize| Asked::new(&client, &provider).send().unwrap().body.read_all(max_bytes);
    assert_eq!(read(ANSWER_BYTES_MAX + 1).unwrap().len(), ANSWER_BYTES_MAX + 1);
    assert_eq!(fault_of(read(ANSWER_BYTES_MAX)).kind, FaultKind::TooLarge);
}

#[test]
fn many_threads_share_one_client() {
    let server = Server::saying(ok("{}"));
    let (client, url) = (client(), server.url());
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(ask(&client, &provider(&url)).unwrap(), "{}");
                }
            });
        }
    });
    assert!(server.connections() <= 16);
    assert_eq!(client.idle_connections(), server.connections());
}
