//! From one candidate to the next, by case and fault. The blame table itself is walked in `blame`.
use crate::harness::*;

/// The first provider answers so, the second serves; the first got one call, and so did the second.
fn fails_over(steps: impl IntoIterator<Item = Step>) -> (MockUpstream, MockUpstream, Gateway) {
    let (alpha, beta, gateway) = two_with_first(steps);
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
    (alpha, beta, gateway)
}

/// The same, and afterwards the first provider is left alone for a while.
fn fails_over_and_benches(steps: impl IntoIterator<Item = Step>) {
    let (alpha, beta, gateway) = fails_over(steps);
    gateway.chat("m").ok().served_by("beta").after_attempts(1);
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 2));
}

#[test]
fn w1_auto_leaves_a_rate_limited_provider() {
    let (alpha, beta) = (mock_that("alpha", [Step::status(429)]), mock("beta"));
    let first = provider(&alpha).priority(1).model("m1").model("m2").model("m3");
    let gateway = Gateway::over([first, provider(&beta).priority(2)]);
    gateway.chat("auto").ok().served_by("beta");
    // One key: at most one more model of the same provider may be tried, since some limit by model.
    assert!(chats(&alpha).len() <= 2, "{} calls to a limited key", chats(&alpha).len());
}

#[test]
fn w1_a_trail_tells_what_failed() {
    let (_alpha, _beta, gateway) = two_with_first([Step::status(429)]);
    let answer = gateway.chat("m").ok();
    assert!(answer.header("x-freeway-trail").is_some_and(|trail| trail.starts_with("alpha/m:")), "{answer}");
}

#[test]
fn a4_a_redirect_is_not_followed() {
    let elsewhere = mock("elsewhere");
    fails_over([Step::redirect(307, &format!("{}/chat/completions", elsewhere.url()))]);
    assert!(elsewhere.calls().is_empty(), "neither body nor key went there");
}

#[test]
fn fo_02_streams_fail_over_like_whole_answers() {
    for step in [Step::status(503), Step::status(529), Step::close(), Step::html(200)] {
        let (alpha, beta, gateway) = two_with_first([step]);
        assert_eq!(gateway.stream("m").well_formed_stream().served_by("beta").content(), "[beta] hi");
        assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
    }
}

#[test]
fn fo_02_a_stream_is_failed_over_as_one_clean_stream() {
    let begun = [
        Act::write(event(r#"{"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#)),
        Act::Pause(50),
        Act::Reset,
    ];
    for step in [Step::writes(begun), Step::say("hello").cut(5, End::Close), Step::half_status_line()] {
        let (_alpha, _beta, gateway) = two_with_first([step]);
        let answer = gateway.stream("m").well_formed_stream().served_by("beta").after_attempts(2);
        assert_eq!(answer.content(), "[beta] hi");
        assert!(answer.chunks().iter().all(|chunk| chunk["model"] == "m"), "{answer}");
    }
}

#[test]
fn fo_01_nothing_is_begun_anew_after_the_first_delta() {
    let acts = [Act::write(event(&delta("The sum i"))), Act::Pause(50), Act::Reset];
    let (_alpha, beta, gateway) = two_with_first([Step::writes(acts)]);
    let answer = gateway.stream("m");
    answer.broken_stream();
    assert_eq!((answer.content().as_str(), chats(&beta).len()), ("The sum i", 0));
}

#[test]
fn fo_03_a_missing_model_everywhere_is_404() {
    let missing = json!({"error": {"message": "The model `m` does not exist", "code": "model_not_found"}});
    let step = || Step::json(404, &missing);
    let (alpha, beta) = (mock_that("alpha", [step()]), mock_that("beta", [step()]));
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    gateway.chat("m").error(404, "model_not_found").after_attempts(2);
    let (_alpha, gateway) = gateway_over([step()]);
    gateway.stream("m").error(404, "model_not_found");
}

#[test]
fn fo_03_a_missing_model_leaves_the_others_of_its_provider() {
    let missing = json!({"error": {"message": "The model `m` does not exist", "code": "model_not_found"}});
    let alpha = mock_that("alpha", [Step::json(404, &missing).for_model("m").times(FOREVER), Step::ok()]);
    let beta = mock("beta");
    let gateway =
        Gateway::over([provider(&alpha).priority(1).model("m").model("other"), provider(&beta).priority(2)]);
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
    gateway.chat("other").ok().served_by("alpha").after_attempts(1);
    gateway.chat("m").ok().served_by("beta").after_attempts(1);
}

#[test]
fn fo_04_bad_requests_never_count_against_a_provider() {
    let refusal = json!({"error": {"message": "image has too many pixels", "type": "invalid_request_error"}});
    let (alpha, beta, gateway) = two_with_first([Step::json(400, &refusal).times(20), Step::ok()]);
    for _ in 0..20 {
        assert_eq!(gateway.chat("m").status(), 400);
    }
    gateway.chat("m").ok().served_by("alpha");
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (21, 0));
}

#[test]
fn fo_05_a_parameter_that_is_refused_is_left_out_once_and_for_all() {
    let refusal = json!({"error": {"message": "unsupported parameters: store", "param": "store"}});
    let (alpha, gateway) = gateway_over([Step::json(400, &refusal), Step::ok()]);
    let ask = || gateway.chat_with("m", json!({"store": false, "temperature": 0.5})).ok();
    ask();
    ask();
    let sent: Vec<bool> = chats(&alpha).iter().map(|call| call.json().get("store").is_some()).collect();
    assert_eq!(sent, [true, false, false]);
    assert_eq!(chats(&alpha)[2].json()["temperature"], json!(0.5));
}

#[test]
fn fo_05_what_a_provider_is_known_to_refuse_never_reaches_it() {
    let alpha = mock("alpha");
    let strict = provider(&alpha).set("dropParams", json!(["store", "metadata", "service_tier"]));
    let fields = json!({"store": false, "metadata": {}, "service_tier": "auto", "temperature": 0.5});
    Gateway::over([strict]).chat_with("m", fields).ok().after_attempts(1);
    let sent = chats(&alpha)[0].json().clone();
    for field in ["store", "metadata", "service_tier"] {
        assert!(sent.get(field).is_none(), "{sent}");
    }
    assert_eq!(sent["temperature"], json!(0.5));
}

#[test]
fn fo_05_several_parameters_that_are_refused_one_by_one() {
    let refusal = |field: &str| {
        let message = format!("unsupported parameters: {field}");
        Step::json(400, &json!({"error": {"message": message, "param": field}}))
    };
    let (alpha, gateway) = gateway_over([refusal("store"), refusal("metadata"), Step::ok()]);
    gateway.chat_with("m", json!({"store": false, "metadata": {}, "service_tier": "auto"})).ok();
    let last = chats(&alpha).pop().expect("it was called").json().clone();
    assert!(last.get("store").is_none() && last.get("metadata").is_none(), "{last}");
    assert_eq!((chats(&alpha).len(), &last["service_tier"]), (3, &json!("auto")));
}

#[test]
fn fo_08_an_empty_answer_is_no_answer() {
    let usage = Some(json!({"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}));
    for content in [Some(String::new()), None] {
        let body = json!({"choices": [{"index": 0, "finish_reason": "stop",
            "message": {"role": "assistant", "content": content}}], "usage": usage});
        fails_over([Step::json(200, &body)]);
    }
    let (_alpha, _beta, gateway) =
        two_with_first([Step { content: Some(String::new()), usage_values: usage, ..Step::ok() }]);
    gateway.stream("m").well_formed_stream().served_by("beta").after_attempts(2);
}

#[test]
fn fo_08_another_provider_is_asked_once() {
    let empty = || Step { content: Some(String::new()), ..Step::ok() };
    let mocks = ["a", "b", "c"].map(|name| mock_that(name, [empty()]));
    let gateway = Gateway::over([
        provider(&mocks[0]).priority(1),
        provider(&mocks[1]).priority(2),
        provider(&mocks[2]).priority(3),
    ]);
    gateway.chat("m").error(502, "all_attempts_failed").after_attempts(2);
    assert_eq!(mocks.each_ref().map(|mock| chats(mock).len()), [1, 1, 0]);
}

#[test]
fn fo_08_what_explains_an_empty_text_is_an_answer() {
    let whole = |message: Value, finish: &str| {
        let body = json!({"choices": [{"index": 0, "finish_reason": finish, "message": message}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}});
        Step::json(200, &body)
    };
    for step in [
        whole(json!({"role": "assistant", "content": null, "refusal": "I will not"}), "stop"),
        whole(json!({"role": "assistant", "content": ""}), "content_filter"),
        whole(json!({"role": "assistant", "content": ""}), "length"),
    ] {
        let (alpha, beta, gateway) = two_with_first([step.clone(), step, Step::ok()]);
        gateway.chat("m").ok().served_by("alpha").after_attempts(1);
        gateway.stream("m").well_formed_stream().served_by("alpha").after_attempts(1);
        gateway.chat("m").ok().served_by("alpha").after_attempts(1);
        assert_eq!((chats(&alpha).len(), chats(&beta).len()), (3, 0));
    }
}

#[test]
fn fo_08_a_tool_call_without_text_is_an_answer() {
    let (_alpha, beta, gateway) = two_with_first([Step::call_tool("weather", &json!({"city": "Oslo"}))]);
    gateway.chat_with("m", json!({"tools": [weather_tool()]})).ok().served_by("alpha");
    assert!(chats(&beta).is_empty());
}

#[test]
fn err_02_no_choices_is_no_answer_and_costs_all_the_same() {
    let body = json!({"id": "x", "object": "chat.completion", "choices": [],
        "usage": {"prompt_tokens": 5_000, "completion_tokens": 0, "total_tokens": 5_000}});
    let (alpha, beta) = (mock_that("alpha", [Step::json(200, &body), Step::ok()]), mock("beta"));
    let limits = json!({"tpd": 1_000_000});
    let gateway = Gateway::over([provider(&alpha).priority(1).limits(limits), provider(&beta).priority(2)]);
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
    let providers = gateway.get("/api/providers").ok().at("/providers");
    let first = providers.as_array().and_then(|all| all.iter().find(|one| one["id"] == "alpha")).cloned();
    let bars = first.expect("it is listed").to_string();
    assert!(bars.contains("5000"), "the prompt is metered: {bars}");
}

#[test]
fn w10_a_page_under_200_is_no_answer() {
    fails_over([Step::html(200)]);
}

#[test]
fn w10_cut_json_is_no_answer() {
    fails_over([Step::say("hello").cut(40, End::Close)]);
    fails_over([Step::say("hello").cut(40, End::Reset)]);
    // Complete for HTTP, but not for JSON.
    fails_over([Step::say("hello").cut(40, End::Clean)]);
}

#[test]
fn w10_an_error_under_200_is_no_answer() {
    fails_over([Step::json(200, &json!({"error": {"message": "overloaded", "code": 503}}))]);
    fails_over([Step::json(
        200,
        &json!({"result": null, "success": false, "errors": [{"code": 7003, "message": "no route"}]}),
    )]);
}

#[test]
fn w10_a_stalled_body_is_no_answer() {
    let (alpha, beta) = (mock_that("alpha", [Step::say("hello").cut(40, End::Hold)]), mock("beta"));
    let slow = provider(&alpha).priority(1).set("timeouts", json!({"totalMs": 300, "idleMs": 300}));
    let gateway = Gateway::over([slow, provider(&beta).priority(2)]);
    gateway.chat("m").ok().served_by("beta");
}

#[test]
fn w10_alone_a_stalled_body_is_a_504_and_never_an_empty_200() {
    let alpha = mock_that("alpha", [Step::say("hello").cut(40, End::Hold)]);
    let gateway = Gateway::over([provider(&alpha).set("timeouts", json!({"totalMs": 300, "idleMs": 300}))]);
    gateway.chat("m").error(504, "all_attempts_failed");
}

#[test]
fn w11_a_stalled_error_body_does_not_hold_up_the_request() {
    let (alpha, beta) = (mock_that("alpha", [Step::status(503).cut(10, End::Hold)]), mock("beta"));
    let slow = provider(&alpha).priority(1).set("timeouts", json!({"firstByteMs": 300, "totalMs": 300}));
    let gateway = Gateway::over([slow, provider(&beta).priority(2)]);
    gateway.chat("m").ok().served_by("beta");
}

#[test]
fn err_06_pages_empty_bodies_and_broken_gzip_are_failed_over() {
    fails_over([Step::html(503).header("retry-after", 2)]);
    fails_over([Step { body: Some(Vec::new()), ..Step::status(503) }]);
    fails_over([Step::status(503).gzip(Gzip::Truncated)]);
    fails_over([Step { body: Some(vec![b'x'; 10_000_000]), ..Step::status(503) }]);
    fails_over([Step::say("hello").gzip(Gzip::Truncated)]);
}

#[test]
fn err_06_a_page_reaches_the_client_as_json_without_markup() {
    let (_alpha, gateway) = gateway_over([Step::html(503)]);
    gateway.chat("m").error(502, "all_attempts_failed").never_says("<html").never_says("<h1");
}

#[test]
fn b2_an_error_as_the_first_event_is_failed_over() {
    let error = json!({"error": {"message": "overloaded", "code": 503}});
    let (alpha, beta, gateway) = two_with_first([Step { error_frame: Some(error), ..Step::ok() }]);
    gateway.stream("m").well_formed_stream().served_by("beta");
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
}

#[test]
fn a_client_that_has_its_answer_finds_it_settled() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).limits(json!({"concurrency": 1}))]);
    // The next request is on its way as soon as the last byte is there: no slot may still be taken then.
    let mut wire = gateway.wire();
    for round in 0..200 {
        let request = hello_with("m", json!({"stream": round % 2 == 0}));
        wire.ask(&Request::chat(&request)).ok().after_attempts(1);
    }
}

#[test]
fn w17_a_larger_window_serves_what_the_first_cannot_hold() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let small = provider(&alpha).priority(1).model_with("m", json!({"context": 8_000}));
    let large = provider(&beta).priority(2).model_with("m", json!({"context": 200_000}));
    let gateway = Gateway::over([small, large]);
    let long = "word ".repeat(20_000);
    gateway.chat_with("m", json!({"messages": [{"role": "user", "content": long}]})).ok().served_by("beta");
    assert!(chats(&alpha).is_empty());
}

#[test]
fn w17_an_upstream_that_says_too_long_is_passed_over() {
    let long = json!({"error": {"message": "This model's maximum context length is 10 tokens", "code": "context_length_exceeded"}});
    let (alpha, beta) = (mock_that("alpha", [Step::json(400, &long), Step::ok()]), mock("beta"));
    let small = provider(&alpha).priority(1).model_with("m", json!({"context": 100_000}));
    let large = provider(&beta).priority(2).model_with("m", json!({"context": 200_000}));
    let gateway = Gateway::over([small, large]);
    gateway.chat("m").ok().served_by("beta");
}

/// A proxy that minds the bytes of a body says nothing of the windows behind other addresses.
#[test]
fn w17_ctx_05_a_refused_body_is_taken_elsewhere() {
    let (alpha, beta) = (mock_that("alpha", [Step::html(413)]), mock("beta"));
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
    gateway.chat("alpha/m").error(413, "context_length_exceeded").after_attempts(1);
}

#[test]
fn quo_11_one_keys_limit_is_not_the_others() {
    let alpha = mock("alpha");
    alpha.set_keys([("k1", vec![Step::status(429).header("retry-after", 60)])]);
    let gateway = Gateway::over([provider(&alpha).keys(["k1", "k2", "k3", "k4"])]);
    for _ in 0..4 {
        gateway.chat("m").ok();
    }
    let first = chats(&alpha).iter().filter(|call| call.key.as_deref() == Some("k1")).count();
    assert!(first <= 1, "a benched key was called again");
}

#[test]
fn quo_02_odd_waiting_times_are_no_crash_and_no_sleep() {
    for value in ["Tue, 01 Dec 1970 00:00:30 GMT", "1.5", "0", "999999999", "soon", "-3"] {
        fails_over([Step::status(429).header("retry-after", value)]);
    }
}

#[test]
fn quo_10_a_plan_limit_is_not_tried_again() {
    let limit = json!({"error": "you have reached your weekly usage limit (ref: 0000)"});
    fails_over_and_benches([Step::json(429, &limit)]);
    fails_over_and_benches([Step::json(402, &json!({"detail": "Check your subscription"}))]);
}

#[test]
fn at_most_three_pairs_are_tried() {
    let mocks: Vec<MockUpstream> =
        ["a", "b", "c", "d", "e"].map(|name| mock_that(name, [Step::status(500)])).into();
    let gateway =
        mocks.iter().fold(Gateway::builder(), |builder, mock| builder.provider(provider(mock))).start();
    gateway.chat("m").error(502, "all_attempts_failed").after_attempts(3);
    assert_eq!(mocks.iter().map(|mock| chats(mock).len()).sum::<usize>(), 3);
}
