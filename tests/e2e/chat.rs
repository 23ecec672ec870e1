//! Whole answers, and what reaches the upstream of a request.
use std::time::Instant;

use crate::harness::*;

#[test]
fn an_answer_says_who_gave_it() {
    let (_alpha, gateway) = gateway_over([Step::say("hello")]);
    let answer = gateway.chat("auto").ok().served_by("alpha").after_attempts(1);
    assert_eq!(answer.content(), "hello");
    assert_eq!(answer.header("x-freeway-model"), Some("m"));
    assert_eq!(answer.header("x-freeway-route"), Some("auto"));
    assert!(answer.number("x-freeway-ms") >= 0.0);
    assert!(answer.header("x-request-id").is_some_and(|id| !id.is_empty()));
    assert!(answer.header("cache-control").is_some_and(|value| value.contains("no-store")));
}

#[test]
fn a_request_id_of_the_client_is_kept() {
    let (_alpha, gateway) = gateway_over([]);
    let ask = |id: &str| gateway.send(&Request::chat(&hello("m")).header("x-request-id", id)).ok();
    assert_eq!(ask("abc-123").header("x-request-id"), Some("abc-123"));
    let odd = ask("two words <script>");
    assert_ne!(odd.header("x-request-id"), Some("two words <script>"));
}

#[test]
fn b15_ids_never_come_twice_and_the_time_of_an_answer_includes_its_body() {
    let slow = Step { body_delay_ms: 300, ..Step::ok() };
    let (_alpha, mut gateway) = gateway_over([slow, Step::ok()]);
    assert!(gateway.chat("m").ok().number("x-freeway-ms") >= 300.0, "the body came later than the head");
    let mut ids = Vec::new();
    for _ in 0..3 {
        for _ in 0..3 {
            ids.push(gateway.chat("m").ok().header("x-request-id").expect("an id").to_owned());
        }
        gateway.restart();
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 9, "{ids:?}");
}

#[test]
fn w2_a_keyless_provider_serves() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).keyless()]);
    gateway.chat("auto").ok().served_by("alpha");
    assert_eq!(chats(&alpha)[0].header("authorization"), None);
}

#[test]
fn the_upstream_gets_its_own_model_id_and_its_own_key() {
    let alpha = mock("alpha");
    let gateway =
        Gateway::builder().provider(provider(&alpha).keys(["alpha-secret"])).client_key("fw-mine").start();
    gateway.chat("auto").ok();
    let call = &chats(&alpha)[0];
    assert_eq!((call.path(), call.json()["model"].as_str()), ("/v1/chat/completions", Some("m")));
    assert_eq!(call.header("authorization"), Some("Bearer alpha-secret"));
    assert!(
        call.request.headers.iter().all(|(_, value)| !value.contains("fw-mine")),
        "the client's key stays here"
    );
}

#[test]
fn b13_numbers_reach_the_upstream_digit_by_digit() {
    let (alpha, gateway) = gateway_over([]);
    let body = r#"{"messages":[{"content":"h\u0069","role":"user"}],"seed":9007199254740993,"top_p":0.10,"model":"m","zz":[1e2]}"#;
    gateway.send(&Request::new("POST", "/v1/chat/completions").body(body)).ok();
    let sent = lossy(&chats(&alpha)[0].request.body);
    for part in [
        r#""seed":9007199254740993"#,
        r#""top_p":0.10"#,
        r#""zz":[1e2]"#,
        r#"{"content":"h\u0069","role":"user"}"#,
    ] {
        assert!(sent.contains(part), "{part} is not in {sent}");
    }
}

#[test]
fn b13_numbers_reach_the_client_digit_by_digit() {
    let body = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","big":9007199254740993,"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
    let (_alpha, gateway) = gateway_over([Step { body: Some(body.into()), ..Step::ok() }]);
    assert!(gateway.chat("m").ok().text().contains("9007199254740993"));
}

#[test]
fn our_own_extensions_stay_here() {
    let (alpha, gateway) = gateway_over([]);
    gateway.chat_with("m", json!({"session": "s1", "models": ["m"], "user": "u"})).ok();
    let sent = chats(&alpha)[0].json().clone();
    assert!(sent.get("session").is_none() && sent.get("models").is_none(), "{sent}");
    assert_eq!(sent["user"], "u");
}

#[test]
fn sse_15_an_answer_that_streams_unasked_becomes_one_whole() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#;
    let step = Step::events([&delta("he"), &delta("llo"), &finish("stop"), usage]);
    for (step, fields) in [
        (step.clone(), json!({})),
        (step.clone().newline(Newline::CrLf), json!({"stream": false})),
        (step.header("content-type", "application/json"), json!({"stream": null})),
    ] {
        let (alpha, gateway) = gateway_over([step]);
        let answer = gateway.chat_with("m", fields).ok();
        assert_eq!((answer.content().as_str(), answer.finish_reason().as_deref()), ("hello", Some("stop")));
        assert_eq!(answer.at("/object"), "chat.completion");
        assert!(answer.at("/id").is_string() && answer.at("/created").is_u64(), "{answer}");
        assert_eq!(answer.at("/usage/total_tokens"), json!(5));
        gateway.metered(3, 2);
        assert_eq!(chats(&alpha)[0].json()["stream"], json!(false), "what is wanted is said outright");
    }
}

#[test]
fn sse_15_a_stream_that_breaks_off_unasked_is_no_whole_answer() {
    let (_alpha, _beta, gateway) = two_with_first([Step::events([delta("he")]).without_done()]);
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
}

#[test]
fn a_tool_round_trip() {
    let (alpha, gateway) = gateway_over([]);
    let call = gateway.chat_with("m", json!({"tools": [weather_tool()]})).ok();
    assert_eq!(call.finish_reason().as_deref(), Some("tool_calls"));
    assert_eq!(call.at("/choices/0/message/tool_calls/0/function/name"), "weather");
    let id = call.at("/choices/0/message/tool_calls/0/id");
    let messages = json!([{"role": "user", "content": "?"}, call.at("/choices/0/message"),
        {"role": "tool", "tool_call_id": id, "content": "sunny"}]);
    let answer = gateway.chat_with("m", json!({"tools": [weather_tool()], "messages": messages})).ok();
    assert!(answer.content().ends_with("sunny"));
    assert_eq!(chats(&alpha)[1].json()["messages"][2]["tool_call_id"], id);
}

#[test]
fn several_choices_come_through() {
    let (_alpha, gateway) = gateway_over([]);
    let answer = gateway.chat_with("m", json!({"n": 3})).ok();
    assert_eq!(answer.at("/choices").as_array().map(Vec::len), Some(3));
}

#[test]
fn err_03_a_good_answer_under_another_2xx_is_served_and_metered() {
    for status in [201, 202] {
        let usage = Some(json!({"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}));
        let step = Step { status, usage_values: usage, ..Step::say("made") };
        let (_alpha, gateway) = gateway_over([step.clone(), step.usage(Usage::Last)]);
        assert_eq!(gateway.chat("m").ok().after_attempts(1).content(), "made");
        gateway.metered(11, 7);
        assert_eq!(gateway.stream("m").well_formed_stream().after_attempts(1).content(), "made");
        gateway.metered(11, 7);
    }
}

#[test]
fn fo_07_an_answer_cut_by_its_length_is_an_answer() {
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6,
        "completion_tokens_details": {"reasoning_tokens": 1}});
    let cut = Step {
        content: Some(String::new()),
        finish: Some("length".into()),
        usage_values: Some(usage.clone()),
        ..Step::ok()
    };
    let (alpha, beta, gateway) = two_with_first([cut.clone(), cut.usage(Usage::Last), Step::ok()]);
    let asked = json!({"max_tokens": 1, "stream_options": {"include_usage": true}});
    let whole = gateway.chat_with("m", json!({"max_tokens": 1})).ok();
    let stream = gateway.stream_with("m", asked).well_formed_stream();
    for answer in [whole, stream] {
        let answer = answer.served_by("alpha").after_attempts(1);
        assert_eq!((answer.content().as_str(), answer.finish_reason().as_deref()), ("", Some("length")));
        assert_eq!(answer.usage(), Some(usage.clone()), "{answer}");
        gateway.metered(5, 1);
    }
    gateway.chat("m").ok().served_by("alpha").after_attempts(1);
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (3, 0));
}

#[test]
fn http_03_gzip_that_nobody_asked_for_is_unpacked() {
    let (_alpha, gateway) = gateway_over([Step::say("hello").gzip(Gzip::Whole)]);
    let answer = gateway.chat("m").ok();
    assert_eq!((answer.content().as_str(), answer.header("content-encoding")), ("hello", None));
}

#[test]
fn one_connection_serves_many_requests() {
    let (alpha, gateway) = gateway_over([]);
    let mut wire = gateway.wire();
    for _ in 0..5 {
        wire.ask(&Request::chat(&hello("m"))).ok();
    }
    let connections: Vec<u64> = chats(&alpha).iter().map(|call| call.connection).collect();
    assert!(
        connections.windows(2).all(|pair| pair[0] == pair[1]),
        "upstream connections are kept too: {connections:?}"
    );
}

#[test]
fn many_clients_at_once_are_all_served() {
    let (alpha, gateway) = gateway_over([Step::ok().delay_ms(20)]);
    let answers = at_once(32, |_| gateway.chat("m"));
    assert!(answers.into_iter().all(|answer| answer.ok().header("x-freeway-attempts") == Some("1")));
    assert_eq!(chats(&alpha).len(), 32);
}

#[test]
fn http_12_a_client_that_leaves_takes_the_upstream_call_with_it() {
    let (alpha, gateway) = gateway_over([Step::hang(), Step::ok()]);
    let mut wire = gateway.wire();
    wire.send(Request::chat(&hello("m")).bytes());
    eventually("the upstream has the call", || chats(&alpha).len() == 1);
    drop(wire);
    expect_cut(&alpha, Instant::now());
    gateway.chat("m").ok().served_by("alpha").after_attempts(1);
}

#[test]
fn half_a_connection_counts_as_leaving() {
    let (alpha, gateway) = gateway_over([Step::hang()]);
    let mut wire = gateway.wire();
    wire.send(Request::chat(&hello("m")).bytes());
    eventually("the upstream has the call", || chats(&alpha).len() == 1);
    wire.half_close();
    expect_cut(&alpha, Instant::now());
}

#[test]
fn http_06_base_urls_and_paths_are_joined_by_one_rule() {
    let alpha = mock("alpha");
    let root = format!("http://{}", alpha.addr());
    let base_to_path = [
        ("/api/v1", "/api/v1/chat/completions"),
        ("/api/v1/", "/api/v1/chat/completions"),
        ("", "/chat/completions"),
        ("/v1beta/openai/", "/v1beta/openai/chat/completions"),
        ("/av1", "/av1/chat/completions"),
    ];
    for (base, path) in base_to_path {
        alpha.reset();
        Gateway::over([Provider::at("alpha", &format!("{root}{base}"))]).chat("m").ok();
        assert_eq!(chats(&alpha)[0].path(), path, "for {base:?}");
    }
}

/// REQ-09: fewer choices than were asked for are no answer under 200, and nobody's fault.
#[test]
fn req_09_fewer_choices_than_were_asked_for_are_no_answer() {
    let one =
        json!([{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]);
    let two = json!([one[0], {"index": 1, "message": {"role": "assistant", "content": "b"}, "finish_reason": "stop"}]);
    let answer = |choices: &Value| Step::json(200, &json!({"id": "x", "choices": choices})).times(9);
    let (alpha, beta) = (mock_that("alpha", [answer(&one)]), mock_that("beta", [answer(&two)]));
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    let both = gateway.chat_with("m", json!({"n": 2})).ok().served_by("beta").after_attempts(2);
    assert_eq!(both.at("/choices/1/message/content"), json!("b"));
    // It is remembered, for streams as well.
    gateway.stream_with("m", json!({"n": 2})).ok().served_by("beta").after_attempts(1);
    gateway.chat("m").ok().served_by("alpha").after_attempts(1);
    let refused = gateway.chat_with("alpha/m", json!({"n": 2})).about("n").after_attempts(0);
    refused.error(400, "capability_unavailable");
    assert_eq!(gateway.get("/api/benches").ok().at("/benches"), json!([]));
}

/// REQ-09: neither are they in a stream, whose frames are held until every choice has shown itself.
#[test]
fn req_09_a_stream_of_fewer_choices_is_taken_elsewhere() {
    let delta = |index: u32, text: &str| {
        let choice = json!({"index": index, "delta": {"content": text}, "finish_reason": null});
        format!("data: {}\n\n", json!({"id": "x", "choices": [choice]}))
    };
    let finish = |index: u32| {
        let choice = json!({"index": index, "delta": {}, "finish_reason": "stop"});
        format!("data: {}\n\n", json!({"id": "x", "choices": [choice]}))
    };
    let script = |events: &[String]| Step::writes([Act::write(events.concat())]).times(9);
    let one = script(&[delta(0, "lone"), finish(0), DONE.into()]);
    // One after the other, which is in order as well.
    let two = script(&[delta(0, "a"), finish(0), delta(1, "b"), finish(1), DONE.into()]);
    let (alpha, beta) = (mock_that("alpha", [one]), mock_that("beta", [two]));
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    let answer = gateway.stream_with("m", json!({"n": 2})).ok().served_by("beta").after_attempts(2);
    assert!(!answer.text().contains("lone") && answer.text().contains("[DONE]"), "{answer}");
    gateway.stream_with("m", json!({"n": 2})).ok().served_by("beta").after_attempts(1);
    gateway.stream("alpha/m").ok().served_by("alpha");
    gateway.stream_with("alpha/m", json!({"n": 2})).error(400, "capability_unavailable").about("n");
    assert_eq!(gateway.get("/api/benches").ok().at("/benches"), json!([]));
}

/// TOOL-03, TOOL-04: the older spelling of a call has text for arguments as well.
#[test]
fn tool_03_arguments_of_an_older_call_become_text() {
    for (arguments, expected) in
        [(json!({"id": 9_007_199_254_740_993_u64}), r#"{"id":9007199254740993}"#), (json!(""), "{}")]
    {
        let call = json!({"name": "f", "arguments": arguments});
        let message = json!({"role": "assistant", "content": null, "function_call": call});
        let choices = json!([{"index": 0, "message": message, "finish_reason": "function_call"}]);
        let (_alpha, gateway) = gateway_over([Step::json(200, &json!({"id": "x", "choices": choices}))]);
        let answer = gateway.chat_with("m", json!({"functions": [{"name": "f"}]})).ok();
        assert_eq!(answer.at("/choices/0/message/function_call/arguments"), json!(expected));
    }
}
