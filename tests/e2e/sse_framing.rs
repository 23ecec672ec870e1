//! Event streams: what the upstream may do to one, and what the client sees of it.
use std::time::Instant;

use crate::harness::*;

/// A stream that asks for usage.
fn with_usage(gateway: &Gateway) -> Answer {
    gateway.stream_with("m", json!({"stream_options": {"include_usage": true}})).well_formed_stream()
}

/// What a client gets of a stream made of exactly these writes.
fn relayed(writes: &[&str]) -> Answer {
    let acts = writes.iter().flat_map(|bytes| [Act::write(bytes), Act::Pause(20)]);
    let (alpha, gateway) = gateway_over([Step::writes(acts)]);
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!(chats(&alpha).len(), 1, "one upstream call only");
    answer
}

fn t(text: &str) -> String {
    event(&delta(text))
}

fn fin() -> String {
    event(&finish("stop"))
}

const DONE: &str = "data: [DONE]\n\n";

#[test]
fn a_stream_says_who_gives_it_and_is_not_to_be_kept() {
    let (alpha, gateway) = gateway_over([Step::say("hello world")]);
    let answer = gateway.stream("auto").well_formed_stream().served_by("alpha").after_attempts(1);
    assert_eq!(answer.content(), "hello world");
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    assert!(answer.header("cache-control").is_some_and(|value| value.contains("no-")));
    assert_eq!(chats(&alpha)[0].json()["stream"], json!(true));
}

#[test]
fn http_14_each_event_is_passed_on_as_it_comes() {
    let (alpha, gateway) = gateway_over([Step::writes([Act::write(t("a")), Act::Hold])]);
    let mut live = gateway.open_stream("m");
    assert_eq!(live.first_text(), "a");
    assert!(chats(&alpha)[0].answered_after.is_none(), "the upstream has not finished");
    live.leave();
    expect_cut(&alpha, Instant::now());
}

#[test]
fn sse_01_empty_choices_are_no_end() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;
    let (_alpha, gateway) =
        gateway_over([Step::events([r#"{"choices":[]}"#, &delta("ok"), &finish("stop"), usage])]);
    let answer = with_usage(&gateway);
    assert_eq!(answer.content(), "ok");
    assert_eq!(answer.usage().map(|usage| usage["prompt_tokens"].clone()), Some(json!(3)));
}

#[test]
fn sse_02_a_preview_of_usage_is_not_the_last_word() {
    let usage = |count: u32| {
        json!({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": count}}).to_string()
    };
    let events = [usage(7), delta("a"), delta("b"), finish("stop"), usage(311)];
    let (_alpha, gateway) = gateway_over([Step::events(events)]);
    let answer = with_usage(&gateway);
    assert_eq!(answer.content(), "ab");
    assert_eq!(answer.usage().map(|usage| usage["completion_tokens"].clone()), Some(json!(311)));
}

#[test]
fn sse_03_comments_stay_comments() {
    let answer = relayed(&[": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n", &t("hi"), &fin(), DONE]);
    assert_eq!(answer.content(), "hi");
}

#[test]
fn sse_04_comments_do_not_hold_off_the_idle_limit() {
    let comments = Act::Repeat { bytes: b": ka\n\n".to_vec(), times: 10_000, pause_ms: 20 };
    let alpha = mock_that("alpha", [Step::writes([Act::write(t("par")), comments])]);
    let gateway = Gateway::over([provider(&alpha).set("timeouts", json!({"idleMs": 500}))]);
    gateway.stream("m").broken_stream();
    eventually("the upstream is closed", || chats(&alpha)[0].left_after.is_some());
}

#[test]
fn sse_05_crlf_framing_is_relayed_as_it_comes() {
    let (_alpha, gateway) =
        gateway_over([Step::writes([Act::write(t("hi").replace('\n', "\r\n")), Act::Hold])]);
    let mut live = gateway.open_stream("m");
    assert_eq!(live.first_text(), "hi", "without waiting for the end");
    let whole: String = [t("hi"), fin(), DONE.into()].concat().replace('\n', "\r\n");
    let answer = relayed(&[&whole]);
    assert!(answer.content() == "hi" && !answer.text().contains('\r'));
}

#[test]
fn sse_06_bare_cr_and_a_split_pair() {
    assert_eq!(relayed(&[&[t("x"), fin(), DONE.into()].concat().replace('\n', "\r")]).content(), "x");
    let pieces =
        ["data: {\"choices\":[{\"index\":0,\"delta\":\r", "\ndata: {\"content\":\"x\"}}]}\r", "\n\r", "\n"];
    let answer = relayed(&[pieces[0], pieces[1], pieces[2], pieces[3], &fin(), DONE]);
    assert_eq!(answer.content(), "x");
}

#[test]
fn sse_07_the_space_after_the_colon_is_optional() {
    let bytes: String = [t("hi"), fin(), DONE.into()].concat().replace("data: ", "data:");
    assert_eq!(relayed(&[&bytes]).content(), "hi");
}

#[test]
fn sse_08_lines_of_one_event_belong_together() {
    let event = "data: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"hi\"},\ndata: \"finish_reason\":\"stop\"}]}\n\n";
    let answer = relayed(&[event, DONE]);
    assert_eq!((answer.content().as_str(), answer.finish_reason().as_deref()), ("hi", Some("stop")));
}

#[test]
fn sse_09_events_parted_by_one_newline_are_two() {
    let fused = format!("data: {}\ndata: {}\n\n", delta("a"), delta("b"));
    assert_eq!(relayed(&[&fused, &fin(), DONE]).content(), "ab");
}

#[test]
fn sse_11_a_byte_order_mark_at_the_start_is_ignored() {
    let first = t("first");
    let acts = [Act::write(b"\xef\xbb"), Act::Pause(20), Act::write([b"\xbf", first.as_bytes()].concat())];
    let rest = Act::write([t("second"), fin(), DONE.into()].concat());
    let (_alpha, gateway) = gateway_over([Step::writes(acts.into_iter().chain([rest]))]);
    assert_eq!(gateway.stream("m").well_formed_stream().content(), "firstsecond");
}

#[test]
fn sse_12_events_without_data_are_no_answer() {
    let odd = format!("data:\n {}\n\n", delta("hi")).repeat(5);
    let (alpha, beta, gateway) = two_with_first([Step::writes([Act::write(odd)])]);
    let answer = gateway.stream("m").well_formed_stream();
    assert!(!answer.content().is_empty(), "never an empty 200");
    assert_eq!((chats(&alpha).len(), chats(&beta).len() <= 1), (1, true));
}

#[test]
fn sse_13_a_stream_under_another_name_is_a_stream() {
    for kind in ["application/json", "text/plain"] {
        let (_alpha, gateway) = gateway_over([Step::say("hi there").header("content-type", kind)]);
        assert_eq!(gateway.stream("m").well_formed_stream().content(), "hi there", "{kind}");
    }
}

#[test]
fn sse_14_one_whole_answer_becomes_a_stream() {
    let (_alpha, gateway) = gateway_over([Step { stream: Some(false), ..Step::say("hi there") }]);
    let answer = with_usage(&gateway);
    assert_eq!((answer.content().as_str(), answer.finish_reason().as_deref()), ("hi there", Some("stop")));
    assert!(answer.usage().is_some());
}

#[test]
fn sse_14_one_whole_error_is_failed_over() {
    let busy = json!({"error": {"message": "busy", "code": 503}});
    let (_alpha, _beta, gateway) = two_with_first([Step::json(200, &busy)]);
    gateway.stream("m").well_formed_stream().served_by("beta");
}

#[test]
fn sse_16_a_stream_ends_although_its_upstream_does_not_end_it() {
    let (alpha, gateway) = gateway_over([Step::say("hi").without_done().end(End::Hold)]);
    gateway.stream("m").well_formed_stream();
    eventually("the upstream is closed", || chats(&alpha)[0].left_after.is_some());
    let twice = Step::events([delta("hi"), finish("stop"), "[DONE]".into()]);
    let (_alpha, gateway) = gateway_over([twice]);
    gateway.stream("m").well_formed_stream();
}

#[test]
fn sse_18_a_missing_finish_reason_is_made_up_for() {
    let answer = relayed(&[&t("done text"), DONE]);
    assert_eq!(answer.finish_reason().as_deref(), Some("stop"));
}

#[test]
fn sse_19_an_empty_finish_reason_is_none() {
    let events = [
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":""}]}"#.to_owned(),
        finish("tool_calls"),
    ];
    let (_alpha, gateway) = gateway_over([Step::events(events)]);
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!(answer.finish_reason().as_deref(), Some("tool_calls"));
}

#[test]
fn sse_22_usage_on_the_finish_chunk_is_found_and_put_where_it_belongs() {
    let (_alpha, gateway) = gateway_over([Step::say("hi").usage(Usage::Finish)]);
    let answer = with_usage(&gateway);
    let telling: Vec<Value> =
        answer.chunks().into_iter().filter(|chunk| chunk["usage"].is_object()).collect();
    assert_eq!((telling.len(), &telling[0]["choices"]), (1, &json!([])));
}

#[test]
fn sse_23_running_totals_are_not_added_up() {
    let totals = |text: &str, count: u32| json!({"choices": [{"index": 0, "delta": {"content": text}}], "usage": {"prompt_tokens": 20, "completion_tokens": count}});
    let events = [totals("a", 12), totals("b", 40), totals("c", 90)].map(|value| value.to_string());
    let (_alpha, gateway) = gateway_over([Step::events(events.into_iter().chain([finish("stop")]))]);
    let usage = with_usage(&gateway).usage().expect("it was asked for");
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(20), &json!(90)));
}

#[test]
fn sse_24_usage_that_the_client_did_not_ask_for_stays_here() {
    let (alpha, gateway) = gateway_over([]);
    let answer = gateway.stream("m").well_formed_stream();
    assert!(answer.chunks().iter().all(|chunk| chunk.get("usage").is_none_or(Value::is_null)), "{answer}");
    assert_eq!(
        chats(&alpha)[0].json()["stream_options"]["include_usage"],
        json!(true),
        "b6: we ask for it ourselves"
    );
}

#[test]
fn sse_24_usage_that_the_client_asked_for_comes_once() {
    let (_alpha, gateway) = gateway_over([Step::say("hi").usage(Usage::Every)]);
    let answer = with_usage(&gateway);
    let telling = answer.chunks().into_iter().filter(|chunk| chunk["usage"].is_object()).count();
    assert_eq!(telling, 1, "{answer}");
}

#[test]
fn sse_25_a_refused_stream_option_is_left_out_and_remembered() {
    let refusal = json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"],
        "msg": "Extra inputs are not permitted"}]});
    let (alpha, gateway) = gateway_over([Step::json(422, &refusal), Step::say("hi").usage(Usage::None)]);
    assert!(with_usage(&gateway).usage().is_some(), "it is estimated");
    with_usage(&gateway);
    let options: Vec<bool> =
        chats(&alpha).iter().map(|call| call.json().get("stream_options").is_some()).collect();
    assert_eq!(options, [true, false, false]);
}

#[test]
fn sse_27_an_error_after_some_text_is_one_error_event() {
    let fine = r#"{"error":null,"choices":[{"index":0,"delta":{"content":"ok so far"}}]}"#;
    let acts = [Act::write(event(fine)), Act::write("data: error: engine died\n\n"), Act::Close];
    let (alpha, beta, gateway) = two_with_first([Step::writes(acts)]);
    let answer = gateway.stream("m");
    let error = answer.broken_stream();
    assert!(
        error["message"].is_string() && error["type"].is_string() && error.get("code").is_some(),
        "{error}"
    );
    assert_eq!((answer.content().as_str(), chats(&alpha).len(), chats(&beta).len()), ("ok so far", 1, 0));
}

#[test]
fn sse_28_half_an_event_is_never_passed_on() {
    let half = r#"data: {"choices":[{"index":0,"delta":{"content":"par"#;
    let acts = [Act::write(t("one")), Act::write(half), Act::Pause(50), Act::Reset];
    let (_alpha, gateway) = gateway_over([Step::writes(acts)]);
    let answer = gateway.stream("m");
    answer.broken_stream();
    assert_eq!(answer.content(), "one");
}

#[test]
fn sse_29_one_bad_event_in_the_middle_is_skipped() {
    let bad = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"\n\n";
    assert_eq!(relayed(&[&t("a"), bad, &t("c"), &fin(), DONE]).content(), "ac");
}

#[test]
fn sse_30_events_with_empty_data_are_dropped() {
    assert_eq!(relayed(&["event: ping\ndata: \n\n", &t("hi"), &fin(), DONE]).content(), "hi");
}

#[test]
fn sse_31_long_silence_is_filled_with_comments_and_a_late_failure_is_told_in_band() {
    let alpha = mock_that("alpha", [Step::status(429).delay_ms(1_500)]);
    let builder = Gateway::builder().provider(provider(&alpha));
    let gateway = builder.settings(json!({"stream": {"holdMs": 300, "keepAliveMs": 200}})).start();
    let answer = gateway.stream("m");
    answer.broken_stream();
    let comments = answer.events().iter().filter(|event| matches!(event.kind, EventKind::Comment(_))).count();
    assert!(comments > 0, "no comment in {answer}");
}

#[test]
fn sse_31_a_failure_before_the_hold_time_keeps_its_status() {
    let (_alpha, gateway) = gateway_over([Step::status(429).delay_ms(100)]);
    gateway.stream("m").error(429, "all_attempts_failed");
}

#[test]
fn behind_keep_alive_comments_failover_goes_on() {
    let (alpha, beta) = (mock_that("alpha", [Step::status(503).delay_ms(1_000)]), mock("beta"));
    let builder =
        Gateway::builder().provider(provider(&alpha).priority(1)).provider(provider(&beta).priority(2));
    let gateway = builder.settings(json!({"stream": {"holdMs": 200, "keepAliveMs": 200}})).start();
    assert_eq!(gateway.stream("m").well_formed_stream().content(), "[beta] hi");
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
}

#[test]
fn sse_32_reasoning_is_output() {
    let reasoning = || json!({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}).to_string();
    let events = std::iter::repeat_with(reasoning).take(40).chain([delta("42"), finish("stop")]);
    let (alpha, gateway) = gateway_over([Step::events(events), Step::ok()]);
    let answer = gateway.stream("m").well_formed_stream();
    let thoughts = answer
        .chunks()
        .iter()
        .filter(|chunk| chunk["choices"][0]["delta"]["reasoning_content"] == "hm")
        .count();
    assert_eq!((answer.content().as_str(), thoughts), ("42", 40));
    gateway.chat("m").ok();
    assert_eq!(chats(&alpha).len(), 2, "nobody was benched");
}

#[test]
fn sse_33_reasoning_keeps_its_name() {
    let step =
        Step { reasoning: Some("because".into()), reasoning_field: "reasoning".into(), ..Step::say("42") };
    let (_alpha, gateway) = gateway_over([step]);
    let answer = gateway.stream("m").well_formed_stream();
    let thought: String = answer
        .chunks()
        .iter()
        .filter_map(|chunk| chunk.pointer("/choices/0/delta/reasoning")?.as_str().map(String::from))
        .collect();
    assert_eq!((thought.as_str(), answer.content().as_str()), ("because", "42"));
}

#[test]
fn b1_characters_cut_by_the_network_stay_whole() {
    let step =
        Step { split_every: 1, drip_ms: 1, ..Step::events([delta("naïve 🙂 模"), finish("stop")]) };
    let (_alpha, gateway) = gateway_over([step]);
    assert_eq!(gateway.stream("m").well_formed_stream().content(), "naïve 🙂 模");
}

#[test]
fn b2_an_end_without_a_finish_is_no_success() {
    let (_alpha, gateway) = gateway_over([Step::events([delta("half a")]).without_done()]);
    gateway.stream("m").broken_stream();
}

#[test]
fn b3_a_stream_that_dies_ends_with_an_error_event() {
    for end in [Act::Close, Act::Reset] {
        let (_alpha, gateway) =
            gateway_over([Step::writes([Act::write(t("The sum i")), Act::Pause(50), end.clone()])]);
        let answer = gateway.stream("m");
        answer.broken_stream();
        assert_eq!((answer.content().as_str(), answer.whole), ("The sum i", true), "{end:?}");
    }
}

#[test]
fn http_03_a_gzipped_stream_is_passed_on_as_it_comes() {
    let step = Step::writes([Act::write(t("a")), Act::Hold]).gzip(Gzip::Whole);
    let (_alpha, gateway) = gateway_over([step]);
    let mut live = gateway.open_stream("m");
    assert_eq!((live.first_text().as_str(), live.head.header("content-encoding")), ("a", None));
}

#[test]
fn a_slow_drip_is_not_taken_for_a_dead_stream() {
    let alpha = mock_that("alpha", [Step { piece_chars: 1, ..Step::say("a long story") }.drip_ms(100)]);
    let gateway = Gateway::over([
        provider(&alpha).set("timeouts", json!({"firstByteMs": 5_000, "idleMs": 5_000, "totalMs": 500}))
    ]);
    assert_eq!(gateway.stream("m").well_formed_stream().content(), "a long story");
}

#[test]
fn tool_calls_are_streamed_whole_or_in_parts() {
    for style in [ToolStyle::Whole, ToolStyle::Parts] {
        let step =
            Step { tool_style: style, ..Step::call_tool("weather", &json!({"city": "Oslo", "days": 3})) };
        let (_alpha, gateway) = gateway_over([step]);
        let answer = gateway.stream_with("m", json!({"tools": [weather_tool()]})).well_formed_stream();
        let deltas = answer.chunks();
        let calls = deltas.iter().filter_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0"));
        let arguments: String = calls.filter_map(|call| call["function"]["arguments"].as_str()).collect();
        assert_eq!(arguments, r#"{"city":"Oslo","days":3}"#, "{style:?}");
        assert_eq!(answer.finish_reason().as_deref(), Some("tool_calls"));
    }
}
