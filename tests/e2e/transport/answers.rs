//! The forms of answers: `HEAD`, `OPTIONS`, HTTP/1.0, `100 Continue`, streams, pipelines.
use super::*;

#[test]
fn http_08_head_is_get_without_a_body_and_keeps_the_connection_in_step() {
    Siege::new().run(|siege| {
        let mut wire = siege.wire();
        for path in ["/healthz", "/readyz", "/v1/models", "/v1/models/m", "/v1/models/nope", "/"] {
            let whole = wire.ask(&Request::get(path));
            let head = wire.ask(&Request::new("HEAD", path));
            assert_eq!(head.status(), whole.status(), "{path}");
            assert!(head.body.is_empty() && !whole.body.is_empty(), "{path}");
            assert_eq!(head.header("content-length").is_some(), whole.header("content-length").is_some());
        }
        let answer = wire.ask(&Request::new("HEAD", "/v1/chat/completions"));
        assert_eq!((answer.status(), answer.body.is_empty()), (405, true));
        wire.ask(&Request::chat(&hello("m"))).ok();
    });
}

#[test]
fn options_is_answered_for_every_path() {
    Siege::new().run(|siege| {
        let mut wire = siege.wire();
        for path in ["/v1/chat/completions", "/v1/nope", "*"] {
            let answer = wire.ask(&Request::new("OPTIONS", path));
            assert_eq!((answer.status(), answer.body.len()), (204, 0), "{path} {answer}");
        }
        wire.ask(&Request::chat(&hello("m"))).ok();
    });
}

/// A chat of HTTP/1.0, with these further header lines.
fn old_chat(body: &Value, fields: &str) -> String {
    let body = body.to_string();
    format!("POST /v1/chat/completions HTTP/1.0\r\n{fields}content-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn http_14_an_http_1_0_client_gets_its_stream_without_chunk_marks() {
    Siege::new().run(|siege| {
        let mut wire = siege.wire();
        wire.send(old_chat(&hello_with("m", json!({"stream": true})), "connection: keep-alive\r\n"));
        let answer = wire.answer().well_formed_stream();
        assert_eq!(answer.header("transfer-encoding"), None, "{answer}");
        assert_eq!(answer.header("connection"), Some("close"), "its end is that of the connection: {answer}");
        assert!(!answer.content().is_empty());
    });
}

#[test]
fn an_http_1_0_client_gets_whole_answers_and_may_keep_its_connection() {
    Siege::new().run(|siege| {
        let mut wire = siege.wire();
        for _ in 0..2 {
            wire.send(old_chat(&hello("m"), "connection: keep-alive\r\n"));
            let answer = wire.answer().ok();
            assert_eq!(answer.header("connection"), Some("keep-alive"), "{answer}");
        }
        wire.send(old_chat(&hello("m"), ""));
        wire.answer().ok();
        wire.expect_closed();
        let mut wire = siege.wire();
        wire.send("GET /v1/models HTTP/1.0\r\n\r\n");
        wire.answer().ok();
        wire.expect_closed();
    });
}

#[test]
fn http_14_events_are_flushed_one_by_one() {
    let event = |text: &str| Act::write(event(&delta(text)));
    let acts = [event("a"), Act::Pause(400), event("b"), Act::Hold];
    Siege::new().upstream([Step::writes(acts)]).run(|siege| {
        let mut live = siege.gateway.open_stream("m");
        assert_eq!(live.head.header("x-accel-buffering"), Some("no"));
        assert_eq!(live.head.header("transfer-encoding"), Some("chunked"));
        assert!(live.head.header("cache-control").is_some_and(|value| value.contains("no-")));
        assert_eq!((live.first_text().as_str(), live.first_text().as_str()), ("a", "b"));
    });
}

/// The head of a chat whose body waits for the interim answer.
fn expecting(path: &str, key: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\nexpect: 100-continue\r\n\r\n"
    )
}

#[test]
fn http_01_a_client_that_expects_100_gets_it_or_the_final_answer() {
    let siege = Siege::made(|builder| builder.client_key("fw-right"));
    siege.asking(Request::chat(&hello("fine")).key("fw-right")).run(|siege| {
        for (path, key, length, status) in [
            ("/v1/chat/completions", "wrong", 5_000_000, 401),
            ("/v1/nope", "fw-right", 5_000_000, 404),
            ("/v1/models", "fw-right", 5_000_000, 405),
            ("/v1/chat/completions", "fw-right", 50_000_000, 413),
        ] {
            let mut wire = siege.wire();
            wire.send(expecting(path, key, length));
            let head = wire.head();
            assert_eq!((head.status, head.header("connection")), (status, Some("close")), "{path} {head:?}");
        }
        let body = hello("m").to_string();
        let mut wire = siege.wire();
        for _ in 0..2 {
            wire.send(expecting("/v1/chat/completions", "fw-right", body.len()));
            assert_eq!(wire.head().status, 100);
            wire.send(&body);
            wire.answer().ok();
            // One that does not wait for it gets none.
            wire.send(expecting("/v1/chat/completions", "fw-right", body.len()) + &body);
            assert_eq!(wire.head().status, 200);
            while wire.piece().is_some() {}
        }
        assert_eq!(siege.calls(), 4);
    });
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let say = |text: &str| Step::say(text).delay_ms(100);
    Siege::new().upstream([say("first"), say("second"), say("third")]).run(|siege| {
        let mut wire = siege.wire();
        let chat = whole_chat();
        let streamed = Request::chat(&hello_with("m", json!({"stream": true}))).bytes();
        wire.send([chat, streamed, Request::get("/healthz").bytes(), whole_chat()].concat());
        assert_eq!(wire.answer().ok().content(), "first");
        assert_eq!(wire.answer().well_formed_stream().content(), "second");
        assert_eq!(wire.answer().ok().at("/ok"), true);
        assert_eq!(wire.answer().ok().content(), "third");
        // A request that is sent while the one before it is being served waits, or is never begun.
        wire.send(whole_chat());
        thread::sleep(Duration::from_millis(30));
        wire.send(Request::get("/healthz").bytes());
        wire.answer().ok();
        if let Some(head) = wire.try_head() {
            assert_eq!(head.status, 200);
        }
        assert_eq!(siege.calls(), 4);
    });
}

#[test]
fn a_flood_of_pipelined_requests_is_served_one_at_a_time() {
    Siege::new().run(|siege| {
        let mut wire = siege.wire();
        let burst = Request::get("/v1/models").bytes().repeat(50);
        let mut answers = 0;
        drop(wire.try_send(&burst));
        while answers < 50 {
            let answer = wire.answer().ok();
            answers += 1;
            if answer.header("connection") == Some("close") {
                break;
            }
        }
        assert!(answers > 0);
    });
}
