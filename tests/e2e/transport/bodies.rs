//! Bodies that are announced and never come, packed, endless, slow, or not wanted.
use std::io::Write;

use super::*;

/// The largest body by default.
const BODY_BYTES_MAX: usize = 8 << 20;

#[test]
fn giant_lengths_whose_body_never_comes_cost_nothing() {
    Siege::new().run(|siege| {
        for length in
            ["8388609", "9999999999", "9223372036854775807", "18446744073709551616", &"9".repeat(60)]
        {
            let mut wire = siege.wire();
            wire.send(chat_head(&format!("content-length: {length}\r\n")));
            let answer = expect_refusal(&mut wire, 413);
            assert_eq!(answer.at("/error/code"), "payload_too_large");
        }
        // As large as may be: nothing is set aside for what is only announced.
        let announced: Vec<Wire> = (0..100)
            .map(|_| {
                let mut wire = siege.wire();
                wire.send(chat_head(&format!("content-length: {BODY_BYTES_MAX}\r\n")) + "{");
                wire
            })
            .collect();
        siege.gateway.post("/v1/chat/completions", &large_chat(1 << 20)).ok();
        drop(announced);
        assert_eq!(siege.calls(), 1);
    });
}

#[test]
fn requests_that_are_dropped_unread_harm_nobody() {
    Siege::made(|builder| builder.client_key("fw-right"))
        .asking(Request::chat(&hello("fine")).key("fw-right"))
        .run(|siege| {
            for length in ["5000000", "9223372036854775807"] {
                for leave in [Wire::reset, drop] {
                    let mut wire = siege.wire();
                    wire.send(chat_head(&format!(
                        "content-length: {length}\r\nauthorization: Bearer wrong\r\n"
                    )));
                    leave(wire);
                    let mut wire = siege.wire();
                    wire.send(chat_head(&format!(
                        "content-length: {length}\r\nauthorization: Bearer fw-right\r\n"
                    )));
                    leave(wire);
                }
            }
            assert_eq!(siege.calls(), 0);
        });
}

/// A request whose body is refused unread, while the client goes on sending it.
fn check_early(siege: &Siege, head: &str, status: u16) {
    let mut wire = siege.wire();
    wire.send(head);
    let answer = wire.answer_while(|hand| {
        thread::sleep(Duration::from_millis(1));
        hand.write_all(&[b'x'; 8 * 1024])
    });
    expect_last(&answer, status);
}

#[test]
fn answers_that_need_no_body_come_before_it() {
    Siege::made(|builder| builder.client_key("fw-right")).asking(Request::chat(&hello("fine")).key("fw-right")).run(
        |siege| {
            let head = |line: &str, key: &str, length: usize| {
                format!(
                    "{line} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
                )
            };
            let large = BODY_BYTES_MAX - 1;
            check_early(siege, &head("POST /v1/chat/completions", "wrong", large), 401);
            check_early(siege, &head("POST /v1/nope", "wrong", large), 401);
            check_early(siege, &head("POST /v1/nope", "fw-right", large), 404);
            check_early(siege, &head("PUT /v1/chat/completions", "fw-right", large), 405);
            check_early(siege, &head("GET /v1/chat/completions", "fw-right", large), 405);
            check_early(siege, &head("POST /v1/chat/completions", "fw-right", BODY_BYTES_MAX + 1), 413);
            check_early(siege, &head("POST /v1/chat/completions", "fw-right", usize::MAX), 413);
            assert_eq!(siege.calls(), 0);
        },
    );
}

#[test]
fn http_07_a_body_at_the_limit_works_and_one_byte_more_is_told() {
    Siege::new().run(|siege| {
        let sized = |bytes: usize| large_chat(bytes - large_chat(0).to_string().len());
        siege.gateway.post("/v1/chat/completions", &sized(BODY_BYTES_MAX)).ok();
        for bytes in [BODY_BYTES_MAX + 1, BODY_BYTES_MAX + (BODY_BYTES_MAX >> 1)] {
            // Most clients send all of it before they read a word, and some never read once a write has failed.
            let mut wire = siege.wire();
            wire.send(Request::chat(&sized(bytes)).bytes());
            let answer = wire.answer();
            expect_last(&answer, 413);
            assert_eq!(answer.at("/error/code"), "payload_too_large");
        }
    });
}

#[test]
fn http_13_a_slow_body_meets_a_total_deadline() {
    Siege::with(json!({"bodyMs": 700})).run(|siege| {
        let framings =
            ["content-length: 500\r\n", "content-length: 500000\r\n", "transfer-encoding: chunked\r\n"];
        at_once(framings.len() * 4, |number| {
            let mut wire = siege.wire();
            wire.send(chat_head(framings[number % framings.len()]));
            let answer = wire.answer_while(|hand| {
                thread::sleep(Duration::from_millis(50));
                hand.write_all(b"0")
            });
            expect_last(&answer, 408);
        });
        assert_eq!(siege.calls(), 0);
    });
}

#[test]
fn chunked_bodies_work_with_extensions_and_trailers() {
    Siege::new().run(|siege| {
        let body = hello("m").to_string();
        let (first, second) = body.split_at(10);
        let chunked = format!(
            "{}a;name=\"value\"\r\n{first}\r\n{:X}\r\n{second}\r\n0\r\nx-trailer: 1\r\ncontent-length: 5\r\n\r\n",
            chat_head("transfer-encoding: chunked\r\n"),
            second.len(),
        );
        let mut wire = siege.wire();
        for _ in 0..3 {
            wire.send(&chunked);
            wire.answer().ok();
        }
        // Byte by byte, with another request right behind it.
        for byte in chunked.bytes() {
            wire.send([byte]);
        }
        wire.send(whole_chat());
        wire.answer().ok();
        wire.answer().ok();
        assert_eq!(siege.calls(), 5);
        assert!(chats(&siege.alpha).iter().all(|call| call.json()["messages"] == hello("m")["messages"]));
    });
}

#[test]
fn broken_chunks_are_refused_and_hide_no_request() {
    Siege::new().run(|siege| {
        for (body, status) in [
            ("zz\r\n", 400),
            ("0x5\r\nhello\r\n0\r\n\r\n", 400),
            ("-5\r\n", 400),
            ("5\nhello\n0\n\n", 400),
            ("5\r\nhello!\r\n0\r\n\r\n", 400),
            ("5;\x01\r\nhello\r\n0\r\n\r\n", 400),
            ("0\r\n\rX", 400),
            ("800001\r\n", 413),
            ("ffffffffffffffff\r\n", 413),
            ("fffffffffffffffffffffffffffff\r\n", 413),
        ] {
            let mut wire = siege.wire();
            let head = chat_head("transfer-encoding: chunked\r\n");
            wire.send([head.as_bytes(), body.as_bytes(), &whole_chat()].concat());
            let answer = wire.answer();
            assert_eq!((answer.status(), answer.whole), (status, true), "{body:?} {answer}");
            let more = wire.until_close();
            assert!(more.is_empty(), "behind {body:?}: {}", lossy(&more));
        }
        assert_eq!(siege.calls(), 0);
    });
}

#[test]
fn endless_chunk_framing_is_bounded() {
    Siege::new().run(|siege| {
        let block = [b'0'; 16 * 1024];
        let trailers = b"x-trailer: 0123456789012345678901234567890123456789\r\n".repeat(256);
        let padded = [b"1;".as_slice(), &[b'x'; 200], b"\r\n \r\n"].concat().repeat(64);
        for (start, piece) in
            [("", block.as_slice()), ("1;", &block), ("1;\"", &block), ("0\r\n", &trailers), ("", &padded)]
        {
            let mut wire = siege.wire();
            wire.send(chat_head("transfer-encoding: chunked\r\n") + start);
            let answer = wire.answer_while(|hand| {
                thread::sleep(Duration::from_millis(5));
                hand.write_all(piece)
            });
            expect_last(&answer, 400);
        }
        // One whose data never ends is over when it exceeds the limit.
        let mut wire = siege.wire();
        wire.send(chat_head("transfer-encoding: chunked\r\n"));
        let chunk = [b"4000\r\n".as_slice(), &[b' '; 0x4000], b"\r\n"].concat();
        let answer = wire.answer_while(|hand| hand.write_all(&chunk));
        expect_last(&answer, 413);
        assert_eq!(siege.calls(), 0);
    });
}

#[test]
fn http_02_packed_bodies_are_unpacked() {
    Siege::new().run(|siege| {
        let body = hello("m");
        let packed = Request::chat(&json!({})).body(gzip(body.to_string().as_bytes()));
        let mut wire = siege.wire();
        for coding in ["gzip", "GZIP", "x-gzip"] {
            wire.ask(&packed.clone().header("content-encoding", coding)).ok();
        }
        wire.ask(&Request::chat(&body).header("content-encoding", "identity")).ok();
        assert_eq!(siege.calls(), 4);
        for call in chats(&siege.alpha) {
            assert_eq!(
                (&call.json()["messages"], call.header("content-encoding")),
                (&body["messages"], None)
            );
        }
    });
}

#[test]
fn http_02_bombs_lies_and_unknown_codings_are_refused() {
    Siege::new().run(|siege| {
        let bomb = gzip_bomb("{", b' ', 1 << 30);
        let twice = gzip(&gzip(hello("m").to_string().as_bytes()));
        let cut = gzip(hello("m").to_string().as_bytes());
        let plain = hello("m").to_string().into_bytes();
        let binary = b"\x28\xb5\x2f\xfd\x04\x00secret-bytes".to_vec();
        for (coding, body, status) in [
            ("gzip", &bomb, 413),
            ("gzip", &twice, 400),
            ("gzip", &plain, 400),
            ("gzip", &binary, 400),
            ("gzip", &gzip(b"").repeat(300_000), 400),
            ("gzip", &cut[..cut.len() - 6].to_vec(), 400),
            ("zstd", &binary, 415),
            ("br", &binary, 415),
            ("deflate", &plain, 415),
            ("foo", &plain, 415),
            ("gzip, gzip", &twice, 415),
        ] {
            let mut wire = siege.wire();
            wire.send(Request::chat(&json!({})).body(body).header("content-encoding", coding).bytes());
            let answer = wire.answer().never_says("secret-bytes");
            assert_eq!((answer.status(), answer.whole), (status, true), "{coding} {answer}");
            assert!(answer.at("/error/message").is_string());
        }
        // Many bombs at once share one budget.
        at_once(16, |_| {
            let mut wire = siege.wire();
            wire.send(Request::chat(&json!({})).body(&bomb).header("content-encoding", "gzip").bytes());
            let status = wire.answer().status();
            assert!(status == 413 || status == 503, "{status}");
        });
        assert_eq!(siege.calls(), 0);
    });
}

/// A list of so many of these.
fn many(piece: &str, times: usize) -> String {
    vec![piece; times].join(",")
}

#[test]
fn bodies_that_weigh_more_once_they_are_read_stay_within_bounds() {
    let user = |content: &str| format!(r#"{{"role":"user","content":{content}}}"#);
    let call = r#"{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}"#;
    let ids =
        |n: usize| (0..n).map(|i| call.replace("\"c\"", &format!("\"c{i}\""))).collect::<Vec<_>>().join(",");
    let calls = |list: String| format!(r#"{{"role":"assistant","content":null,"tool_calls":[{list}]}}"#);
    let hi = user("\"hi\"");
    let body = |messages: &str, rest: &str| format!(r#"{{"model":"m","messages":[{messages}]{rest}}}"#);
    let parameters: Vec<String> = (0..400_000).map(|i| format!("\"p{i}\":1")).collect();
    let parameters = parameters.join(",");
    let tool = r#"{"type":"function","function":{"name":"f","parameters":{}}}"#;
    let bodies = [
        body(&format!("{hi},{}", calls(ids(60_000))), ""),
        body(&user(&format!("[{}]", many(r#"{"type":"text","text":"a"}"#, 200_000))), ""),
        body(
            &user(&format!("[{}]", many(r#"{"type":"image_url","image_url":{"url":"data:a"}}"#, 120_000))),
            "",
        ),
        body(&many(&hi, 200_000), ""),
        body(&format!(r#"{{"role":"user","content":"hi",{parameters}}}"#), ""),
        body(&hi, &format!(r#","tools":[{}]"#, many(tool, 90_000))),
        body(&hi, &format!(",{parameters}")),
        body(&hi, &format!(r#","deep":{}"#, "[".repeat(7 << 20))),
        body(&user(&format!("\"{}\"", "\\ud83d".repeat(1_200_000))), ""),
    ];
    Siege::new().upstream([Step::ok().delay_ms(200).times(FOREVER)]).run(|siege| {
        for body in &bodies {
            let request = Request::chat(&json!({})).body(body).bytes();
            at_once(4, |_| {
                let mut wire = siege.wire();
                drop(wire.try_send(&request));
                if let Some(head) = wire.try_head() {
                    assert!([200, 400, 413, 503].contains(&head.status), "{}: {}", &body[..80], head.status);
                }
            });
            let peak = siege.gateway.peak_rss_kib();
            assert!(peak < RSS_KIB_MAX, "{peak} KiB after {}", &body[..80]);
        }
    });
}

#[test]
fn lying_lengths_do_no_harm() {
    Siege::new().run(|siege| {
        let body = hello("m").to_string();
        // Too short: what follows is read as the next request, which it is not.
        let mut wire = siege.wire();
        wire.send(chat_head(&format!("content-length: {}\r\n", body.len() - 5)) + &body);
        let answer = wire.answer();
        assert_eq!((answer.status(), answer.at("/error/code")), (400, json!("invalid_json")));
        let rest = wire.until_close();
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 400 "), "{}", lossy(&rest));
        // Too long, and the client gives up.
        let mut wire = siege.wire();
        wire.send(chat_head(&format!("content-length: {}\r\n", body.len() + 5)) + &body);
        wire.half_close();
        wire.expect_closed();
        assert_eq!(siege.calls(), 0);
    });
}
