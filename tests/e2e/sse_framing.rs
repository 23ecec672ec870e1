//! How event streams are cut into lines, events and packets: whatever an upstream does there, the client gets one
//! `data: ` line an event, as soon as the event is whole.
use std::time::Duration;

use crate::harness::*;

/// Pauses between events, and how much of a pause must be left of it at the client if nothing waits for what follows.
const PAUSE_MS: u64 = 400;
const APART: Duration = Duration::from_millis(150);

/// Fails unless each of three events reaches the client before the next one is sent; `bend` gives the stream its form.
#[track_caller]
fn comes_as_it_is_sent(bend: impl Fn(String) -> String) {
    let writes = [t("a"), t("b"), t("c"), fin() + DONE].map(bend);
    let (alpha, gateway) = gateway_over([paused(writes, PAUSE_MS)]);
    let answer = gateway.stream("m").well_formed_stream();
    answer.came_apart(&["a", "b", "c"], APART);
    assert!(!answer.text().contains('\r'), "{answer}");
    assert_eq!(chats(&alpha).len(), 1, "one upstream call only");
}

#[test]
fn http_14_each_event_is_passed_on_as_it_comes() {
    comes_as_it_is_sent(|bytes| bytes);
}

#[test]
fn sse_05_crlf_framing_is_passed_on_as_it_comes() {
    comes_as_it_is_sent(|bytes| bytes.replace('\n', "\r\n"));
}

#[test]
fn sse_05_a_stream_in_crlf_is_metered() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;
    let step = Step::events([delta("hi").as_str(), &finish("stop"), usage]).newline(Newline::CrLf);
    let (_alpha, gateway) = gateway_over([step]);
    assert_eq!(gateway.stream("m").well_formed_stream().content(), "hi");
    gateway.metered(3, 1);
}

#[test]
fn sse_06_bare_cr_is_passed_on_as_it_comes() {
    comes_as_it_is_sent(|bytes| bytes.replace('\n', "\r"));
}

#[test]
fn sse_06_bare_cr_needs_no_end_of_the_connection() {
    let writes = [t("x").replace('\n', "\r") + &DONE.replace('\n', "\r")];
    let (_alpha, gateway) = gateway_over([paused(writes, 0)]);
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!((answer.content().as_str(), answer.texts().len()), ("x", 1));
    assert!(answer.took() < Duration::from_secs(10), "it took {:?}", answer.took());
}

#[test]
fn sse_06_a_pair_cut_in_two_is_one_line_end() {
    let writes =
        ["data: {\"choices\":[{\"index\":0,\"delta\":\r", "\ndata: {\"content\":\"x\"}}]}\r", "\n\r", "\n"];
    let answer = relayed(writes.into_iter().chain([fin().as_str(), DONE]));
    assert_eq!((answer.content().as_str(), answer.texts().len()), ("x", 1));
    // The pair after the last line of an event, too: no event of its own, and the next one is whole.
    let halves = [t("a").replace('\n', "\r\n"), t("b").replace('\n', "\r\n")].map(|event| {
        let cut = event.len() - 1;
        [event[..cut].to_owned(), event[cut..].to_owned()]
    });
    let answer = relayed(halves.concat().into_iter().chain([fin(), DONE.into()]));
    assert_eq!((answer.content().as_str(), answer.texts().len()), ("ab", 2));
}

#[test]
fn sse_07_the_space_after_the_colon_is_optional() {
    let bytes: String = [t("hi"), fin(), DONE.into()].concat();
    assert_eq!(relayed([bytes.replace("data: ", "data:")]).content(), "hi");
    assert_eq!(relayed([bytes.replace("data: {", "data:  {")]).content(), "hi", "a second space is data");
}

#[test]
fn sse_07_a_named_error_event_without_the_space_is_an_error() {
    let error = "event:error\ndata:{\"message\":\"engine died\"}\n\n";
    let (alpha, beta, gateway) = two_with_first([Step::writes([Act::write(error)])]);
    gateway.stream("m").well_formed_stream().served_by("beta");
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
    let (_alpha, gateway) = gateway_over([Step::writes([Act::write(t("a")), Act::write(error)])]);
    let answer = gateway.stream("m");
    answer.broken_stream();
    assert_eq!(answer.content(), "a");
}

#[test]
fn sse_08_lines_of_one_event_belong_together() {
    let event = "data: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"hi\"},\ndata: \"finish_reason\":\"stop\"}]}\n\n";
    for newline in ["\n", "\r\n", "\r"] {
        let answer = relayed([event.replace('\n', newline).as_str(), DONE]);
        assert_eq!((answer.content().as_str(), answer.finish_reason().as_deref()), ("hi", Some("stop")));
        assert_eq!(answer.chunks().len(), 1, "one event stays one: {answer}");
    }
}

#[test]
fn sse_09_events_parted_by_one_newline_are_two() {
    let fused = format!("data: {}\ndata: {}\n\n", delta("a"), delta("b"));
    let answer = relayed([fused, fin(), DONE.into()]);
    assert_eq!((answer.content().as_str(), answer.texts().len()), ("ab", 2));
    let all = format!("data: {}\ndata: {}\ndata: [DONE]\n\n", delta("a"), finish("stop"));
    assert_eq!(relayed([all]).content(), "a");
}

#[test]
fn sse_11_a_byte_order_mark_at_the_start_is_ignored() {
    let rest = [t("first"), t("second"), fin(), DONE.into()].concat();
    let whole = [b"\xef\xbb\xbf", rest.as_bytes()].concat();
    for cut in 0..4 {
        assert_eq!(relayed([&whole[..cut], &whole[cut..]]).content(), "firstsecond", "cut at {cut}");
    }
}

#[test]
fn sse_11_a_later_byte_order_mark_is_data() {
    assert_eq!(relayed([t("a\u{feff}b"), fin(), DONE.into()]).content(), "a\u{feff}b");
}

#[test]
fn sse_12_events_without_data_are_no_answer() {
    let odd = format!("data:\n {}\n\n", delta("hi")).repeat(5);
    let (alpha, beta, gateway) = two_with_first([Step::writes([Act::write(odd)])]);
    let answer = gateway.stream("m").well_formed_stream().served_by("beta");
    assert_eq!(answer.content(), "[beta] hi");
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
}

#[test]
fn sse_13_a_stream_under_another_name_is_a_stream() {
    for kind in ["application/json", "text/plain", "application/octet-stream", ""] {
        let (_alpha, gateway) = gateway_over([Step::say("hi there").header("content-type", kind)]);
        assert_eq!(gateway.stream("m").well_formed_stream().content(), "hi there", "{kind}");
    }
}

#[test]
fn sse_28_half_an_event_is_never_passed_on() {
    let whole = t("pär");
    let within_character = whole.find('ä').expect("it stands there") + 1;
    for cut in [3, within_character, whole.len() - 3, whole.len() - 2] {
        for end in [Act::Reset, Act::Close] {
            let half = &whole.as_bytes()[..cut];
            let acts = [Act::write(t("one")), Act::write(half), Act::Pause(50), end];
            let (_alpha, gateway) = gateway_over([Step::writes(acts)]);
            let answer = gateway.stream("m");
            answer.broken_stream();
            assert_eq!(answer.content(), "one", "cut at {cut}");
        }
    }
}

#[test]
fn sse_29_one_bad_event_in_the_middle_is_skipped_and_told() {
    let bad = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"\n\n";
    let acts = [Act::write([&t("a"), bad, &t("c"), bad, &fin(), DONE].concat())];
    let (_alpha, gateway) = gateway_over([Step::writes(acts)]);
    assert_eq!(gateway.stream("m").well_formed_stream().content(), "ac");
    gateway.wait_for_log("2 events of alpha/m could not be read");
}

#[test]
fn sse_29_nothing_but_bad_events_is_no_answer() {
    let bad = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"\n\n".repeat(3);
    for end in ["", DONE] {
        let (_alpha, _beta, gateway) = two_with_first([Step::writes([Act::write(bad.clone() + end)])]);
        gateway.stream("m").well_formed_stream().served_by("beta").after_attempts(2);
    }
}

#[test]
fn sse_30_events_with_empty_data_are_dropped() {
    for ping in ["event: ping\ndata: \n\n", "data:\n\n", "data\n\n", "event: ping\n\n"] {
        assert_eq!(relayed([ping, &t("a"), ping, &t("b"), &fin(), ping, DONE]).content(), "ab", "{ping:?}");
    }
}

#[test]
fn b1_characters_cut_by_the_network_stay_whole() {
    let step =
        Step { split_every: 1, drip_ms: 1, ..Step::events([delta("naïve 🙂 模"), finish("stop")]) };
    let (_alpha, gateway) = gateway_over([step]);
    assert_eq!(gateway.stream("m").well_formed_stream().content(), "naïve 🙂 模");
}

#[test]
fn http_03_a_gzipped_stream_is_passed_on_as_it_comes() {
    let step = paused([t("a"), t("b"), fin() + DONE], PAUSE_MS).gzip(Gzip::Whole);
    let (_alpha, gateway) = gateway_over([step]);
    let answer = gateway.stream("m").well_formed_stream();
    answer.came_apart(&["a", "b"], APART);
    assert_eq!(answer.header("content-encoding"), None);
}
