//! Upstreams that send too much, too little, or to somewhere else: our memory, and the client's answer, must not
//! depend on their manners.
use crate::harness::*;

/// The most memory that the program may ever hold, whatever an upstream sends.
const RSS_KIB_MAX: u64 = 64 * 1024;

const MIB: usize = 1 << 20;

/// The request must be served by the second provider, after one call to the first, whose connection is closed.
fn check_passed_over(step: Step) {
    for streamed in [false, true] {
        let (alpha, beta, gateway) = two_with_first([step.clone()]);
        let answer = gateway.chat_with("m", json!({"stream": streamed})).ok().served_by("beta");
        assert_eq!(answer.content(), "[beta] hi", "{answer}");
        assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1), "streamed: {streamed}");
        eventually("its connection is closed", || alpha.open_connections() == 0);
        expect_small(&gateway);
    }
}

#[track_caller]
fn expect_small(gateway: &Gateway) {
    let peak = gateway.peak_rss_kib();
    assert!(peak < RSS_KIB_MAX, "{peak} KiB were resident");
}

/// A whole 200 with this head and body.
fn raw_answer(head: &str, acts: impl IntoIterator<Item = Act>) -> Step {
    let head = Act::write(format!("HTTP/1.1 200 OK\r\n{head}\r\n"));
    Step::raw(std::iter::once(head).chain(acts))
}

fn endless(bytes: impl AsRef<[u8]>) -> Act {
    Act::Repeat { bytes: bytes.as_ref().to_vec(), times: u64::MAX, pause_ms: 0 }
}

#[test]
fn a_json_answer_of_40_mib_is_not_kept() {
    let whole = json!({"choices": [{"index": 0, "message": {"role": "assistant",
        "content": "x".repeat(40 * MIB)}, "finish_reason": "stop"}]});
    check_passed_over(Step::json(200, &whole));
    let block = vec![b'x'; 64 * 1024];
    let start = Act::write(r#"{"choices":[{"index":0,"message":{"role":"assistant","content":""#);
    check_passed_over(raw_answer("content-type: application/json\r\n", [start, endless(block)]));
}

#[test]
fn an_error_body_without_end_is_read_no_further_than_needed() {
    let head = "HTTP/1.1 503 Busy\r\ncontent-type: text/html\r\n\r\n<html>";
    check_passed_over(Step::raw([Act::write(head), endless([b'x'; 64 * 1024])]));
}

#[test]
fn an_event_of_5_mib_is_not_kept() {
    let long = event(&delta(&"x".repeat(5 * MIB)));
    let (alpha, beta, gateway) = two_with_first([Step::writes([Act::write(&long)])]);
    gateway.stream("m").well_formed_stream().served_by("beta");
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
    expect_small(&gateway);
    // Behind the first word nobody else may go on.
    let (alpha, beta, gateway) =
        two_with_first([Step::writes([Act::write(event(&delta("one"))), Act::write(&long)])]);
    let answer = gateway.stream("m");
    answer.broken_stream();
    assert_eq!((answer.content().as_str(), chats(&beta).len()), ("one", 0));
    eventually("its connection is closed", || alpha.open_connections() == 0);
    expect_small(&gateway);
}

#[test]
fn an_event_below_the_bound_is_passed_on_whole() {
    let text = "x".repeat(3 * MIB);
    let (_alpha, gateway) = gateway_over([Step::events([delta(&text), finish("stop")])]);
    assert!(gateway.stream("m").well_formed_stream().content() == text);
    expect_small(&gateway);
}

#[test]
fn a_line_without_end_is_not_kept() {
    for start in ["data: ", ": ", ""] {
        let acts = [Act::write(start), endless([b'x'; 64 * 1024])];
        check_passed_over(Step::writes(acts));
    }
}

#[test]
fn a_packed_answer_is_bounded_by_what_comes_out_of_it() {
    let head = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
    let text =
        gzip_bomb(r#"{"choices":[{"index":0,"message":{"role":"assistant","content":""#, b'x', 256 * MIB);
    check_passed_over(raw_answer(head, [Act::write(&text), Act::Close]));
    let blank = gzip_bomb("{", b' ', 256 * MIB);
    check_passed_over(raw_answer(head, [Act::write(&blank), Act::Close]));
    let head = "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
    let event = gzip_bomb("data: ", b'x', 256 * MIB);
    check_passed_over(raw_answer(head, [Act::write(&event), Act::Close]));
}

#[test]
fn heads_without_end_are_bounded() {
    let line = b"x-line: 0123456789012345678901234567890123456789\r\n".repeat(64);
    check_passed_over(Step::raw([Act::write("HTTP/1.1 200 OK\r\n"), endless(&line)]));
    check_passed_over(Step::raw([Act::write("HTTP/1.1 200 OK\r\nx-long: "), endless([b'y'; 4096])]));
    check_passed_over(Step::raw([endless([b'y'; 4096])]));
    check_passed_over(Step::raw([endless("HTTP/1.1 100 Continue\r\n\r\n".repeat(64))]));
}

#[test]
fn chunk_framing_without_end_is_bounded() {
    let head = "content-type: application/json\r\ntransfer-encoding: chunked\r\n";
    check_passed_over(raw_answer(head, [endless([b'0'; 4096])]));
    check_passed_over(raw_answer(head, [Act::write("1;"), endless([b'x'; 4096])]));
    check_passed_over(raw_answer(head, [Act::write("zz\r\n"), Act::Hold]));
    check_passed_over(raw_answer(head, [Act::write("0\r\n"), endless("x-trailer: 1\r\n".repeat(64))]));
}

#[test]
fn a_pooled_connection_that_died_is_replaced_in_silence() {
    // It closes without a word after each answer, or after a moment.
    for options in [
        MockOptions { keep_alive_requests: Some(1), ..MockOptions::default() },
        MockOptions { keep_alive_ms: Some(50), ..MockOptions::default() },
    ] {
        let alpha = mock_with(MockOptions { name: "alpha".into(), ..options });
        let beta = mock("beta");
        let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
        for _ in 0..4 {
            gateway.chat("m").ok().served_by("alpha").after_attempts(1);
            gateway.stream("m").well_formed_stream().served_by("alpha").after_attempts(1);
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        assert_eq!((chats(&alpha).len(), chats(&beta).len()), (8, 0));
    }
}

#[test]
fn a_connection_that_dies_under_its_second_request_is_replaced_once() {
    let (alpha, beta, gateway) = two_with_first([Step::ok(), Step::close(), Step::ok()]);
    gateway.chat("m").ok().served_by("alpha");
    gateway.chat("m").ok().served_by("alpha").after_attempts(1);
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (3, 0));
    // Twice is no accident, and on a fresh connection once is enough.
    let (alpha, beta, gateway) = two_with_first([Step::ok(), Step::close().times(2), Step::ok()]);
    gateway.chat("m").ok().served_by("alpha");
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (3, 1));
}

#[test]
fn after_the_first_byte_nothing_is_repeated_in_silence() {
    let (alpha, beta, gateway) = two_with_first([Step::ok(), Step::half_status_line(), Step::ok()]);
    gateway.chat("m").ok().served_by("alpha");
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (2, 1));
}

#[test]
fn a4_a_redirect_is_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let stranger = mock("stranger");
        let there = format!("{}/chat/completions", stranger.url());
        let (alpha, beta, gateway) = two_with_first([Step::redirect(status, &there)]);
        gateway.chat("m").ok().served_by("beta");
        assert_eq!((chats(&alpha).len(), chats(&beta).len(), stranger.calls().len()), (1, 1, 0), "{status}");
    }
}
