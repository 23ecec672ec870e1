//! The form of answers and streams, and what a panic leaves behind.
use super::*;

#[test]
fn http_08_head_is_get_without_a_body_and_the_connection_stays_in_step() {
    let house = House::new();
    let mut client = house.client();
    client.send(NOW);
    let (_, body) = client.answer();
    client.send("HEAD /now HTTP/1.1\r\nHost: g\r\n\r\n");
    assert_eq!(client.answer_to("HEAD"), (200, String::new()));
    assert_eq!(client.header("content-length"), Some(body.len().to_string().as_str()));
    client.send("HEAD /stream HTTP/1.1\r\nHost: g\r\n\r\n");
    assert_eq!(client.answer_to("HEAD"), (200, String::new()));
    client.send("GET /none HTTP/1.1\r\nHost: g\r\n\r\n");
    assert_eq!((client.answer().0, client.header("content-length")), (204, None));
    client.send(NOW);
    assert_eq!(client.answer(), (200, body));
}

#[test]
fn http_14_streams_are_chunked_and_each_frame_is_a_chunk() {
    let house = House::new();
    let mut client = house.client();
    client.send(post("/stream", ""));
    let end =
        client.read_until(|bytes| bytes.windows(5).position(|five| five == b"0\r\n\r\n").map(|at| at + 5));
    let text = String::from_utf8(client.rest.drain(..end).collect()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("transfer-encoding: chunked") && head.contains("x-request-id: r1"), "{head}");
    assert_eq!(body, "9\r\ndata: 1\n\n\r\nb\r\ndata: two\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    client.send(NOW);
    assert_eq!(client.answer().0, 200);
}

#[test]
fn http_14_an_http_1_0_client_gets_a_stream_without_chunk_marks() {
    let house = House::new();
    let mut client = house.client();
    client.send("POST /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let text = client.until_close();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("connection: close") && !head.contains("chunked"), "{head}");
    assert_eq!(body, "data: 1\n\ndata: two\n\ndata: [DONE]\n\n");
    drop(client);
    house.expect_nobody();
}

#[test]
fn connections_are_kept_and_closed_as_the_client_asks() {
    let house = House::new();
    for path in ["/now", "/echo", "/work", "/here"] {
        let ask = |version: &str, field: &str| {
            let mut client = house.client();
            client
                .send(format!("POST {path} HTTP/{version}\r\nHost: g\r\n{field}Content-Length: 2\r\n\r\nhi"));
            assert_eq!(client.answer().0, 200);
            client
        };
        for (version, field) in [("1.1", "Connection: close\r\n"), ("1.0", "")] {
            let mut client = ask(version, field);
            assert_eq!(client.header("connection"), Some("close"));
            client.expect_close();
        }
        let mut client = ask("1.0", "Connection: keep-alive\r\n");
        assert_eq!(client.header("connection"), Some("keep-alive"));
        client.send("GET /now HTTP/1.0\r\n\r\n");
        assert_eq!(client.answer().0, 200);
        client.expect_close();
    }
    house.expect_nobody();
}

#[test]
fn a_panic_gives_our_500_and_harms_nobody_else() {
    let house = House::new();
    let mut client = house.client();
    for path in ["/panic/door", "/panic/then", "/panic/work", "/panic/here", "/forget"] {
        client.send(post(path, "abc"));
        let (status, body) = client.answer();
        assert_eq!(status, 500, "{path}");
        assert_eq!(expect_error(&body)["error"]["type"], "api_error");
    }
    client.send(NOW);
    assert_eq!(client.answer().0, 200);
    eventually("no worker is lost", || house.figures().workers.busy == 0);
    assert_eq!(house.figures().panics, 4);
}

#[test]
fn a_panic_after_the_commit_gives_an_error_event_and_a_close() {
    let house = House::new();
    let mut client = house.client();
    client.send(post("/panic/stream", ""));
    let text = client.until_close();
    let events: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events[0], "1");
    assert_eq!(expect_error(events[1])["error"]["type"], "api_error");
    assert_eq!(events.len(), 2);
    assert!(!text.ends_with("0\r\n\r\n"), "the stream must not look complete");
    drop(client);
    house.expect_nobody();
}

#[test]
fn a_full_pool_refuses_and_recovers() {
    let house = House::with(|settings| (settings.workers, settings.queue) = (1, 1));
    let mut busy = house.client();
    busy.send(post("/hold", "busy"));
    house.expect_news("began");
    let mut queued = house.client();
    queued.send(post("/work", "queued"));
    eventually("one waits", || house.figures().workers.queued == 1);
    let mut client = house.client();
    client.send(post("/work", "refused"));
    let (status, body) = client.answer();
    assert_eq!((status, &expect_error(&body)["error"]["code"]), (503, &"overloaded".into()));
    assert_eq!((client.header("retry-after"), client.header("x-request-id")), (Some("1"), Some("r1")));
    // The readers themselves are not starved.
    client.send(post("/here", "served"));
    assert_eq!(client.answer(), (200, "6".into()));
    house.release.send(()).unwrap();
    assert_eq!(busy.answer(), (200, "busy".into()));
    assert_eq!(queued.answer(), (200, "6".into()));
    client.send(post("/work", "now"));
    assert_eq!(client.answer(), (200, "3".into()));
}

#[test]
fn a_client_that_does_not_read_is_given_up() {
    let house = House::with(|settings| settings.write_ms = 200);
    let mut client = house.client();
    client.send(post("/flood", ""));
    house.expect_news("write failed");
    house.expect_nobody();
}
