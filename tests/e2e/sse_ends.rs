//! How event streams end, well or not, and what fills their silences.
use std::time::Duration;

use crate::harness::*;

/// A stream that should not wait for anything takes less than this, however busy the machine is.
const PROMPT: Duration = Duration::from_secs(10);

/// A gateway over one provider with these timeouts, whose upstream answers so.
fn timed(step: Step, timeouts: Value) -> (MockUpstream, Gateway) {
    let alpha = mock_that("alpha", [step]);
    let gateway = Gateway::over([provider(&alpha).set("timeouts", timeouts)]);
    (alpha, gateway)
}

/// The same comment or event every 50 ms, for longer than anything here may take.
fn endless(bytes: &str) -> Act {
    Act::Repeat { bytes: bytes.into(), times: 20 * PROMPT.as_secs() + 100, pause_ms: 50 }
}

/// Two providers, alpha before beta, and a client that waits for `hold_ms` before it gets comments.
fn held(first: Step, hold_ms: u64) -> (MockUpstream, MockUpstream, Gateway) {
    let (alpha, beta) = (mock_that("alpha", [first]), mock("beta"));
    let builder =
        Gateway::builder().provider(provider(&alpha).priority(1)).provider(provider(&beta).priority(2));
    let gateway = builder.settings(json!({"stream": {"holdMs": hold_ms, "keepAliveMs": 200}})).start();
    (alpha, beta, gateway)
}

#[test]
fn sse_04_signs_of_life_do_not_hold_off_the_idle_limit() {
    for sign in [": ka\n\n", "event: ping\ndata: \n\n", ":\n"] {
        let (alpha, gateway) =
            timed(Step::writes([Act::write(t("par")), endless(sign)]), json!({"idleMs": 700}));
        let answer = gateway.stream("m");
        answer.broken_stream();
        assert_eq!(answer.content(), "par");
        let stalled = answer.events().last().expect("the error").at - answer.texts()[0].1;
        assert!((Duration::from_millis(400)..PROMPT).contains(&stalled), "{sign:?}: after {stalled:?}");
        eventually("the upstream is closed", || chats(&alpha)[0].left_after.is_some());
        eventually("the attempt is in the log", || !gateway.turns().is_empty());
        let turn = &gateway.turns()[0];
        assert!(turn["error"].is_string() && turn["attempts"][0]["providerId"] == "alpha", "{turn}");
    }
}

#[test]
fn sse_04_events_restart_the_idle_limit() {
    let text = Act::Repeat { bytes: t("x").into(), times: 12, pause_ms: 150 };
    let (_alpha, gateway) =
        timed(Step::writes([text, Act::write(fin() + DONE)]), json!({"idleMs": 1_200, "firstByteMs": 1_200}));
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!(answer.content(), "x".repeat(12));
    assert!(answer.took() > Duration::from_millis(1_500), "longer in all than the limit");
}

#[test]
fn sse_04_comments_do_not_hold_off_the_wait_for_the_first_event() {
    let (alpha, beta) = (mock_that("alpha", [Step::writes([endless(": ka\n\n")])]), mock("beta"));
    let slow = provider(&alpha).priority(1).set("timeouts", json!({"firstByteMs": 500}));
    let gateway = Gateway::over([slow, provider(&beta).priority(2)]);
    gateway.stream("m").well_formed_stream().served_by("beta").after_attempts(2);
    eventually("the upstream is closed", || chats(&alpha)[0].left_after.is_some());
}

#[test]
fn a_slow_drip_is_not_taken_for_a_dead_stream() {
    let step = Step { piece_chars: 1, ..Step::say("a long story") }.drip_ms(100);
    let (_alpha, gateway) = timed(step, json!({"firstByteMs": 5_000, "idleMs": 5_000, "totalMs": 500}));
    assert_eq!(gateway.stream("m").well_formed_stream().content(), "a long story");
}

#[test]
fn sse_14_one_whole_answer_becomes_a_stream() {
    for kind in ["application/json", "text/event-stream"] {
        let whole = Step { stream: Some(false), ..Step::say("hi there") }.header("content-type", kind);
        let (_alpha, gateway) = gateway_over([whole.clone(), whole]);
        let asked = with_usage(&gateway);
        assert!(asked.usage().is_some(), "{asked}");
        let answer = gateway.stream("m").well_formed_stream().served_by("alpha");
        assert_eq!(answer.usage(), None, "nobody asked: {answer}");
        for answer in [asked, answer] {
            assert_eq!(answer.chunks()[0]["choices"][0]["delta"]["role"], "assistant", "{answer}");
            assert_eq!(
                (answer.content().as_str(), answer.finish_reason().as_deref()),
                ("hi there", Some("stop"))
            );
        }
    }
}

#[test]
fn sse_14_a_whole_tool_call_becomes_a_stream() {
    let whole = Step { stream: Some(false), ..Step::call_tool("weather", &json!({"city": "Oslo"})) };
    let (_alpha, gateway) = gateway_over([whole]);
    let answer = gateway.stream_with("m", json!({"tools": [weather_tool()]})).well_formed_stream();
    let chunks = answer.chunks();
    let call = chunks.iter().find_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0"));
    let call = call.unwrap_or_else(|| panic!("no call in {answer}"));
    assert_eq!((&call["index"], &call["function"]["arguments"]), (&json!(0), &json!(r#"{"city":"Oslo"}"#)));
    assert_eq!(answer.finish_reason().as_deref(), Some("tool_calls"));
}

#[test]
fn sse_14_one_whole_error_is_a_failed_attempt_with_its_own_status() {
    let busy = json!({"error": {"message": "busy", "code": 503}});
    let (_alpha, _beta, gateway) = two_with_first([Step::json(200, &busy)]);
    gateway.stream("m").well_formed_stream().served_by("beta").after_attempts(2);
    let limit = json!({"error": {"message": "slow down", "code": 429}});
    for kind in ["application/json", "text/event-stream"] {
        let (_alpha, gateway) = gateway_over([Step::json(200, &limit).header("content-type", kind)]);
        let answer = gateway.stream("m").error(429, "all_attempts_failed");
        assert!(answer.number("retry-after") > 0.0);
    }
}

#[test]
fn sse_16_a_stream_ends_although_its_upstream_does_not_end_it() {
    let (alpha, gateway) = gateway_over([paused([t("hi"), fin()], 0)]);
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!((answer.content().as_str(), answer.finish_reason().as_deref()), ("hi", Some("stop")));
    assert!(answer.took() < PROMPT, "it took {:?}", answer.took());
    eventually("the upstream is closed", || chats(&alpha)[0].left_after.is_some());
}

#[test]
fn sse_16_usage_that_comes_a_little_later_is_waited_for() {
    let usage =
        event(r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":77,"total_tokens":80}}"#);
    let (_alpha, gateway) = gateway_over([paused([t("hi"), fin(), usage], 300)]);
    let answer = with_usage(&gateway);
    assert_eq!(answer.usage().map(|usage| usage["completion_tokens"].clone()), Some(json!(77)));
    gateway.metered(3, 77);
}

#[test]
fn sse_16_events_after_the_finish_do_not_put_off_the_end() {
    let idle = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;
    let (_alpha, gateway) =
        gateway_over([Step::writes([Act::write(t("hi") + &fin()), endless(&event(idle))])]);
    let answer = gateway.stream("m").well_formed_stream();
    assert!(answer.took() < PROMPT, "it took {:?}", answer.took());
}

#[test]
fn sse_16_two_ends_become_one() {
    for writes in [[fin() + DONE, DONE.into()], [fin(), DONE.repeat(2)], [fin() + DONE, t("late") + DONE]] {
        let answer = relayed([&t("hi")].into_iter().chain(&writes));
        assert_eq!(answer.content(), "hi", "{writes:?}");
    }
}

#[test]
fn sse_18_a_missing_finish_reason_is_made_up_for() {
    let answer = relayed([&t("done text"), DONE]);
    assert_eq!((answer.content().as_str(), answer.finish_reason().as_deref()), ("done text", Some("stop")));
    let last = answer.chunks().pop().expect("the finish");
    assert_eq!(last["choices"], json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]), "{answer}");
    let null = r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}"#;
    assert_eq!(relayed([&event(null), DONE]).finish_reason().as_deref(), Some("stop"));
}

#[test]
fn sse_18_a_missing_finish_reason_after_a_tool_call_is_tool_calls() {
    let call = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}"#;
    assert_eq!(relayed([&event(call), DONE]).finish_reason().as_deref(), Some("tool_calls"));
}

#[test]
fn sse_27_an_error_after_some_text_is_one_error_event() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}"#;
    let fine = r#"{"error":null,"choices":[{"index":0,"delta":{"content":"ok so far"}}]}"#;
    for error in [
        "data: error: engine died\n\n",
        "data: {\"error\":{\"message\":\"engine died\",\"code\":500}}\n\n",
        "data: {\"error\":\"engine died\"}\n\n",
        "event: error\ndata: engine died\n\n",
    ] {
        let acts = [Act::write(event(fine) + &event(usage)), Act::write(error), Act::Close];
        let (alpha, beta, gateway) = two_with_first([Step::writes(acts)]);
        let answer = gateway.stream("m");
        let told = answer.broken_stream();
        assert!(told["message"].as_str().is_some_and(|message| message.contains("engine died")), "{told}");
        assert!(told["type"].is_string() && told.get("code").is_some(), "{told}");
        assert_eq!((answer.content().as_str(), answer.whole), ("ok so far", true), "{error:?}");
        assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 0), "begun anew after {error:?}");
        eventually("the turn is in the log", || !gateway.turns().is_empty());
        let turn = &gateway.turns()[0];
        assert!(turn["error"].is_string(), "{turn}");
        assert_eq!((&turn["tokensIn"], &turn["tokensOut"]), (&json!(5), &json!(3)), "{turn}");
    }
}

/// The same as when the connection is reset there.
#[test]
fn sse_27_an_error_after_the_last_finish_does_not_undo_the_answer() {
    let error = event(r#"{"error":{"message":"bye","code":500}}"#);
    for end in [vec![t("a"), fin() + &error], vec![t("a") + &fin(), error.clone()]] {
        let answer = relayed(end);
        assert_eq!(answer.content(), "a");
        assert_eq!(answer.finish_reason().as_deref(), Some("stop"));
    }
}

#[test]
fn sse_27_no_error_is_no_error() {
    let fine = r#"{"error":null,"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}"#;
    let answer = relayed([&event(fine), DONE]);
    assert_eq!(answer.content(), "a");
    assert!(answer.chunks().iter().all(|chunk| chunk.get("error").is_none()), "{answer}");
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
fn sse_31_a_failure_before_the_hold_time_keeps_its_status() {
    let (_alpha, gateway) = gateway_over([Step::status(429).delay_ms(100)]);
    gateway.stream("m").error(429, "all_attempts_failed");
}

#[test]
fn sse_31_long_silence_is_filled_with_comments_and_a_late_failure_is_told_in_band() {
    let alpha = mock_that("alpha", [Step::status(429).delay_ms(2_000)]);
    let builder = Gateway::builder().provider(provider(&alpha));
    let gateway = builder.settings(json!({"stream": {"holdMs": 300, "keepAliveMs": 200}})).start();
    let mut live = gateway.open_stream("m");
    assert!(chats(&alpha)[0].answered_after.is_none(), "the head came before the upstream said anything");
    for _ in 0..3 {
        let comment = live.event().expect("a comment");
        assert!(matches!(comment.kind, EventKind::Comment(_)), "never a data ping: {comment:?}");
    }
    assert!(chats(&alpha)[0].answered_after.is_none(), "and so did the comments");
    let answer = live.finish();
    answer.broken_stream();
    assert_eq!(answer.chunks().len(), 1, "nothing but comments and the error: {answer}");
}

#[test]
fn sse_31_nothing_leaves_within_the_hold_time() {
    let (_alpha, _beta, gateway) = held(Step::say("late").delay_ms(600), 20_000);
    let answer = gateway.stream("m").well_formed_stream().served_by("alpha");
    assert_eq!(answer.comments(), 0, "{answer}");
}

#[test]
fn sse_31_behind_keep_alive_comments_failover_goes_on() {
    let (alpha, beta, gateway) = held(Step::status(503).delay_ms(1_000), 200);
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!(answer.content(), "[beta] hi");
    assert!(answer.comments() > 0, "{answer}");
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
}

#[test]
fn sse_31_silence_between_two_events_is_filled_too() {
    let (_alpha, _beta, gateway) = held(paused([t("a"), t("b") + &fin() + DONE], 1_000), 200);
    let answer = gateway.stream("m").well_formed_stream();
    assert!(answer.content() == "ab" && answer.comments() > 0, "{answer}");
}
