//! How long an upstream is waited for, phase by phase, and that all of it ends within the budget of the request.
use std::time::{Duration, Instant};

use crate::harness::*;

/// Two providers; the first has these timeouts and its upstream answers so.
fn two_with_slow_first(step: Step, timeouts: Value) -> (MockUpstream, MockUpstream, Gateway) {
    let (alpha, beta) = (mock_that("alpha", [step]), mock("beta"));
    let slow = provider(&alpha).priority(1).set("timeouts", timeouts);
    let gateway = Gateway::over([slow, provider(&beta).priority(2)]);
    (alpha, beta, gateway)
}

#[test]
fn b8_a_stream_that_never_starts_is_failed_over() {
    let comments = Act::Repeat { bytes: b": wait\n\n".to_vec(), times: 10_000, pause_ms: 20 };
    for step in [Step::hang(), Step::writes([Act::Hold]), Step::writes([comments])] {
        let (alpha, _beta, gateway) = two_with_slow_first(step, json!({"firstByteMs": 400}));
        let asked_at = Instant::now();
        gateway.stream("m").well_formed_stream().served_by("beta");
        assert!(asked_at.elapsed() < Duration::from_secs(10), "took {:?}", asked_at.elapsed());
        eventually("the dead call is closed", || chats(&alpha)[0].left_after.is_some());
    }
}

#[test]
fn b8_the_stream_timeout_of_the_settings_counts() {
    let (alpha, beta) = (mock_that("alpha", [Step::hang()]), mock("beta"));
    let builder =
        Gateway::builder().provider(provider(&alpha).priority(1)).provider(provider(&beta).priority(2));
    let gateway = builder.settings(json!({"streamTimeoutMs": 400})).start();
    gateway.stream("m").well_formed_stream().served_by("beta");
}

#[test]
fn b8_a_healthy_stream_may_take_longer_than_every_wait_between_its_events() {
    let story = Step { piece_chars: 1, ..Step::say("a story of thirty characters..") }.drip_ms(60);
    let (_alpha, beta, gateway) =
        two_with_slow_first(story, json!({"firstByteMs": 600, "idleMs": 600, "totalMs": 600}));
    let answer = gateway.stream("m").well_formed_stream().served_by("alpha");
    assert_eq!(answer.content(), "a story of thirty characters..");
    assert!(answer.took() > Duration::from_millis(1_200), "it took {:?}", answer.took());
    assert!(chats(&beta).is_empty());
}

#[test]
fn b8_a_head_that_drips_is_no_first_byte_for_ever() {
    let (_alpha, _beta, gateway) =
        two_with_slow_first(Step { head_drip_ms: 100, ..Step::ok() }, json!({"firstByteMs": 400}));
    gateway.chat("m").ok().served_by("beta");
}

#[test]
fn b8_all_attempts_end_within_the_budget() {
    let mocks: Vec<MockUpstream> = ["a", "b", "c"].map(|name| mock_that(name, [Step::hang()])).into();
    let builder = mocks.iter().fold(Gateway::builder(), |builder, mock| builder.provider(provider(mock)));
    let gateway = builder.settings(json!({"failover": {"budgetMs": 1_000}})).start();
    for stream in [false, true] {
        let asked_at = Instant::now();
        gateway.chat_with("m", json!({"stream": stream})).error(504, "all_attempts_failed");
        assert!(asked_at.elapsed() < Duration::from_secs(10), "took {:?}", asked_at.elapsed());
    }
    // The budget ended their time, so none of them is to blame.
    assert_eq!(gateway.get("/api/benches").ok().at("/benches"), json!([]));
}

#[test]
fn w11_alone_a_stalled_error_keeps_its_status_and_ends() {
    let alpha = mock_that("alpha", [Step::error(503, "down for repairs").cut(10, End::Hold)]);
    let gateway = Gateway::over([provider(&alpha)]);
    let asked_at = Instant::now();
    let answer = gateway.chat("m").error(502, "all_attempts_failed");
    assert_eq!(answer.at("/freeway/attempts/0/status"), json!(503));
    assert!(asked_at.elapsed() < Duration::from_secs(20), "took {:?}", asked_at.elapsed());
}

#[test]
fn w10_embeddings_that_stall_or_are_no_json_are_failed_over() {
    for step in [Step::ok().cut(20, End::Hold), Step::html(200), Step::ok().cut(20, End::Clean)] {
        let (alpha, beta) = (mock_that("alpha", [step]), mock("beta"));
        let slow = provider(&alpha).priority(1).embed_model("e").set("timeouts", json!({"totalMs": 400}));
        let gateway = Gateway::over([slow, provider(&beta).priority(2).embed_model("e")]);
        gateway.embed("e", json!("one")).ok().served_by("beta");
    }
}
