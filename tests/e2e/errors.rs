//! What clients are told when nothing else can be done: the status says whether to come back, the body says why.
use crate::harness::*;

#[test]
fn b11_a_limit_everywhere_is_429_with_a_time() {
    let (alpha, gateway) = gateway_over([Step::status(429).header("retry-after", 40)]);
    let tried = gateway.chat("m").error(429, "all_attempts_failed").after_attempts(1);
    assert!((1.0..=40.0).contains(&tried.number("retry-after")), "{tried}");
    let blocked = gateway.chat("m").error(429, "all_providers_blocked").after_attempts(0);
    assert!((1.0..=40.0).contains(&blocked.number("retry-after")), "{blocked}");
    assert_eq!(blocked.at("/freeway/nextEligible/provider"), "alpha");
    assert!(blocked.at("/freeway/blocked/0/reason").is_string());
    assert_eq!(chats(&alpha).len(), 1);
}

#[test]
fn quo_09_waiting_times_are_whole_seconds_rounded_up() {
    let (_alpha, gateway) = gateway_over([Step::status(429).header("retry-after", "41.2")]);
    let wait = gateway.chat("m").error(429, "all_attempts_failed").header("retry-after").map(str::to_owned);
    assert!(matches!(wait.as_deref(), Some("42" | "41")), "{wait:?}");
}

#[test]
fn b11_a_timeout_is_504() {
    let alpha = mock_that("alpha", [Step::hang()]);
    let gateway = Gateway::over([provider(&alpha).set("timeouts", json!({"firstByteMs": 300}))]);
    gateway.chat("m").error(504, "all_attempts_failed");
}

#[test]
fn b11_a_broken_upstream_is_502() {
    let (_alpha, gateway) = gateway_over([Step::status(500)]);
    let answer = gateway.chat("m").error(502, "all_attempts_failed");
    assert_eq!(answer.at("/freeway/attempts/0/provider"), "alpha");
    assert_eq!(answer.at("/freeway/attempts/0/status"), json!(500));
}

#[test]
fn b11_what_no_model_can_do_is_400() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).model_with("m", json!({"caps": ["chat"]}))]);
    let answer =
        gateway.chat_with("auto", json!({"tools": [weather_tool()]})).error(400, "capability_unavailable");
    assert!(!answer.at("/error/message").to_string().contains("ask for `auto`"), "{answer}");
    let image = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]);
    let seen = gateway.chat_with("auto", json!({"messages": [{"role": "user", "content": image}]}));
    seen.error(400, "capability_unavailable");
    assert!(chats(&alpha).is_empty());
}

#[test]
fn b11_what_is_not_configured_is_503_and_names_the_variable() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).keys([])]);
    let answer = gateway.chat("alpha/m").error(503, "no_provider_configured");
    assert!(answer.text().contains("ALPHA_API_KEY"), "{answer}");
}

#[test]
fn b11_what_is_switched_off_is_503() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).set("enabled", json!(false))]);
    let answer = gateway.chat("alpha/m").error(503, "no_provider_configured");
    assert_eq!(answer.header("retry-after"), None, "time does not mend it: {answer}");
}

#[test]
fn b11_what_never_fits_is_413_even_while_its_provider_rests() {
    let alpha = mock_that("alpha", [Step::status(500)]);
    for file in [
        provider(&alpha).model_with("m", json!({"context": 2_000})),
        provider(&alpha).limits(json!({"tpm": 2_000})),
    ] {
        let gateway = Gateway::over([file]);
        gateway.chat("m").error(502, "all_attempts_failed");
        let long = json!([{"role": "user", "content": "word ".repeat(10_000)}]);
        gateway.chat_with("m", json!({"messages": long})).error(413, "context_length_exceeded");
    }
}

#[test]
fn b11_a_timeout_after_a_limit_is_told_by_the_last() {
    let (alpha, beta) = (mock_that("alpha", [Step::status(429)]), mock_that("beta", [Step::hang()]));
    let slow = provider(&beta).priority(2).set("timeouts", json!({"firstByteMs": 300}));
    let gateway = Gateway::over([provider(&alpha).priority(1), slow]);
    let answer = gateway.chat("m").error(504, "all_attempts_failed").after_attempts(2);
    assert_eq!(answer.at("/freeway/attempts").as_array().map(Vec::len), Some(2));
}

#[test]
fn b12_the_original_error_is_kept_beside_ours() {
    let odd = json!({"detail": [{"type": "missing", "loc": ["body", "messages"], "msg": "odd words"}]});
    let (_alpha, gateway) = gateway_over([Step::json(422, &odd)]);
    let answer = gateway.chat("m");
    assert_eq!(answer.status(), 422, "{answer}");
    for member in ["message", "type", "param", "code"] {
        assert!(answer.json()["error"].get(member).is_some(), "error.{member} is missing in {answer}");
    }
    let kept = answer.at("/freeway/upstream").to_string();
    assert!(kept.contains("loc") && kept.contains("odd words"), "{answer}");
    let large =
        Step::json(400, &json!({"error": {"message": "too many pixels", "noise": "x".repeat(60_000)}}));
    let (_alpha, gateway) = gateway_over([large]);
    assert!(gateway.chat("m").body.len() < 8_000, "at most 4 KiB of it");
}

#[test]
fn b13_bytes_that_are_no_utf_8_are_400_and_not_replaced() {
    let (alpha, gateway) = gateway_over([]);
    let body = b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}";
    gateway.send(&Request::new("POST", "/v1/chat/completions").body(body)).error(400, "invalid_json");
    assert!(alpha.calls().is_empty());
}

#[test]
fn b11_what_fits_nowhere_is_413() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).model_with("m", json!({"context": 1_000}))]);
    let long = json!([{"role": "user", "content": "word ".repeat(10_000)}]);
    let answer = gateway.chat_with("m", json!({"messages": long})).error(413, "context_length_exceeded");
    assert_eq!(answer.at("/freeway/code"), "context_too_large");
    let widest = (answer.at("/freeway/provider"), answer.at("/freeway/model"));
    assert_eq!(widest, (json!("alpha"), json!("m")), "whose room is told");
    assert!(chats(&alpha).is_empty());
}

#[test]
fn b11_more_tokens_than_a_minute_holds_is_413_and_not_a_wait() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).limits(json!({"tpm": 1_000}))]);
    let long = json!([{"role": "user", "content": "word ".repeat(10_000)}]);
    gateway.chat_with("m", json!({"messages": long})).error(413, "context_length_exceeded");
}

#[test]
fn err_03_a_page_under_200_is_a_502_in_json() {
    for page in ["<!doctype", "<html><body>hello</body></html>", "hello", ""] {
        let step = Step { body: Some(page.into()), ..Step::ok() };
        for step in [step.clone(), Step { stream: Some(false), ..step.header("content-type", "text/html") }] {
            let (_alpha, gateway) = gateway_over([step.clone()]);
            gateway.chat("m").error(502, "all_attempts_failed").never_says("<");
            let (_alpha, gateway) = gateway_over([step]);
            gateway.stream("m").error(502, "all_attempts_failed").never_says("<");
        }
    }
}

#[test]
fn err_07_one_refusal_by_all_is_the_clients() {
    let refusal = json!({"error": {"message": "temperature must be 1 for this model", "type": "invalid_request_error",
        "param": "temperature"}});
    let step = || Step::json(400, &refusal);
    let (alpha, beta) = (mock_that("alpha", [step()]), mock_that("beta", [step()]));
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    for fields in [json!({}), json!({"temperature": 0.5}), json!({"temperature": 0.5, "stream": true})] {
        let answer = gateway.chat_with("m", fields).about("temperature");
        assert_eq!(answer.status(), 400, "{answer}");
        assert!(answer.at("/error/message").to_string().contains("temperature must be 1"), "{answer}");
        assert_eq!(answer.at("/error/type"), "invalid_request_error");
    }
}

#[test]
fn err_07_only_outages_are_502_and_only_limits_are_429() {
    let refusal = Step::json(400, &json!({"error": {"message": "no", "type": "invalid_request_error"}}));
    for (first, status) in [(Step::status(500), 400), (Step::status(429), 400), (Step::status(401), 400)] {
        let (alpha, beta) = (mock_that("alpha", [first.clone()]), mock_that("beta", [refusal.clone()]));
        let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
        assert_eq!(gateway.chat("m").status(), status, "after {}", first.status);
        assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
    }
}

#[test]
fn b12_err_04_errors_in_odd_shapes_become_the_usual_one() {
    let odd = [
        json!([{"error": {"code": 400, "message": "odd words", "status": "INVALID_ARGUMENT"}}]),
        json!({"detail": "odd words"}),
        json!({"detail": [{"type": "missing", "loc": ["body", "messages"], "msg": "odd words"}]}),
        json!({"object": "error", "message": "odd words", "type": "invalid_request_error"}),
        json!({"title": "odd words", "status": 400, "type": "about:blank"}),
    ];
    for body in odd {
        let (_alpha, gateway) = gateway_over([Step::json(400, &body)]);
        let answer = gateway.chat("m");
        assert_eq!(answer.status(), 400, "{answer}");
        assert!(answer.at("/error/message").to_string().contains("odd words"), "for {body}: {answer}");
        assert!(answer.json()["error"].get("param").is_some(), "{answer}");
    }
}

#[test]
fn err_04_an_unknown_field_told_in_an_array_is_left_out() {
    let refusal = json!([{"error": {"code": 400, "status": "INVALID_ARGUMENT",
        "message": "Invalid JSON payload received. Unknown name \"logit_bias\": Cannot find field.",
        "details": [{"@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{"description": "Unknown name \"logit_bias\""}]}]}}]);
    let (alpha, gateway) = gateway_over([Step::json(400, &refusal), Step::ok()]);
    gateway.chat_with("m", json!({"logit_bias": {"1": 1}, "temperature": 0.5})).ok();
    let sent: Vec<bool> = chats(&alpha).iter().map(|call| call.json().get("logit_bias").is_some()).collect();
    assert_eq!(sent, [true, false]);
    assert_eq!(chats(&alpha)[1].json()["temperature"], json!(0.5), "nothing else is left out");
}

#[test]
fn err_04_the_delay_told_in_an_array_is_kept() {
    let limit = json!([{"error": {"code": 429, "message": "You exceeded your current quota.",
        "status": "RESOURCE_EXHAUSTED", "details": [
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17s"}]}}]);
    // The inner status counts where the outer one is of no use.
    for status in [429, 200] {
        let (alpha, gateway) = gateway_over([Step::json(status, &limit)]);
        let answer = gateway.chat("m").error(429, "all_attempts_failed");
        assert!((10.0..=18.0).contains(&answer.number("retry-after")), "{answer}");
        let blocked = gateway.chat("m").error(429, "all_providers_blocked");
        assert!((10.0..=18.0).contains(&blocked.number("retry-after")), "{blocked}");
        assert_eq!(chats(&alpha).len(), 1);
    }
}

/// Cloudflare's envelope of a failure.
fn envelope(code: u32, message: &str) -> Value {
    json!({"result": null, "success": false, "messages": [], "errors": [{"code": code, "message": message}]})
}

#[test]
fn err_05_a_route_that_does_not_exist_is_the_operators_to_mend() {
    let id = "0123456789abcdef0123456789abcdef";
    let body = envelope(7003, &format!("no route for /client/v4/accounts/{id}/ai/v1/chat/completions"));
    for status in [404, 400, 200] {
        let (alpha, gateway) = gateway_over([Step::json(status, &body)]);
        let answer = gateway.chat("m").never_says(id);
        assert!(answer.status() >= 400 && answer.json()["error"].is_object(), "{answer}");
        assert!(answer.json().get("success").is_none(), "not in its own shape: {answer}");
        gateway.wait_for_log("no route for /client/v4/accounts/…/ai/v1/chat/completions");
        assert!(!gateway.log().contains(id), "the log shows the account");
        let (first, beta) = (mock_that("alpha", [Step::json(status, &body)]), mock("beta"));
        let gateway = Gateway::over([provider(&first).priority(1), provider(&beta).priority(2)]);
        gateway.chat("m").ok().served_by("beta").after_attempts(2);
        gateway.chat("m").ok().served_by("beta").after_attempts(1);
        assert_eq!((chats(&alpha).len(), chats(&first).len()), (1, 1), "it is skipped from now on");
    }
}

#[test]
fn err_05_a_daily_allocation_that_is_used_up_is_a_limit() {
    let body = envelope(4006, "you have used up your daily free allocation of 10,000 neurons");
    for status in [429, 400, 200] {
        let (_alpha, gateway) = gateway_over([Step::json(status, &body)]);
        let answer = gateway.chat("m").error(429, "all_attempts_failed");
        assert!(answer.number("retry-after") > 0.0, "{answer}");
        gateway.chat("m").error(429, "all_providers_blocked");
    }
}

#[test]
fn err_06_whatever_an_error_looks_like_the_client_gets_json() {
    let page = Step { body: Some(vec![b'x'; 10_000_000]), ..Step::status(503) };
    let markup = Step::html(503);
    let markup = Step { body: Some("<html><body>busy</body></html>".repeat(300_000).into()), ..markup };
    let empty = Step { body: Some(Vec::new()), ..Step::status(503) };
    for step in [Step::html(503), page, markup, empty, Step::status(503).gzip(Gzip::Truncated)] {
        let (_alpha, gateway) = gateway_over([step]);
        let answer = gateway.chat("m").never_says("<html");
        assert!([502, 503].contains(&answer.status()) && answer.body.len() < 4_000, "{answer}");
        answer.clone().error(answer.status(), "all_attempts_failed");
    }
}

#[test]
fn err_06_a_page_keeps_its_waiting_time() {
    let (alpha, gateway) = gateway_over([Step::html(503).header("retry-after", 2), Step::ok()]);
    let answer = gateway.chat("m");
    assert!([502, 503].contains(&answer.status()), "{answer}");
    let blocked = gateway.chat("m");
    assert!(blocked.status() >= 429 && (1.0..=2.0).contains(&blocked.number("retry-after")), "{blocked}");
    assert_eq!(chats(&alpha).len(), 1, "it is left alone");
    eventually("it is asked again after 2 s", || gateway.chat("m").status() == 200);
    let calls = chats(&alpha);
    assert!(calls[1].at - calls[0].at >= std::time::Duration::from_millis(1_900), "too early");
}

#[test]
fn bad_bodies_are_told_what_is_wrong() {
    let (alpha, gateway) = gateway_over([]);
    let ask = |body: &str| gateway.send(&Request::new("POST", "/v1/chat/completions").body(body));
    ask("").error(400, "invalid_body");
    ask("[]").error(400, "invalid_body");
    ask("{\"model\":").error(400, "invalid_json");
    ask("{\"a\":1}{}").error(400, "invalid_json");
    ask(r#"{"model":"m"}"#).error(400, "missing_messages").about("messages");
    ask(r#"{"model":"m","messages":[]}"#).error(400, "missing_messages");
    for (part, param) in [
        (r#"{"type":"text","text":5}"#, "messages[0].content[1].text"),
        (r#"{"type":"text"}"#, "messages[0].content[1].text"),
        (r#"{"text":5}"#, "messages[0].content[1]"),
    ] {
        let message = format!(r#"{{"role":"user","content":[{{"type":"text","text":"a"}},{part}]}}"#);
        let body = format!(r#"{{"model":"m","session":"s","messages":[{message}]}}"#);
        ask(&body).error(400, "invalid_body").about(param);
    }
    assert!(alpha.calls().is_empty());
}

#[test]
fn a7_odd_messages_and_deep_nesting_are_400() {
    let (alpha, gateway) = gateway_over([]);
    for messages in [json!([null]), json!(["x"]), json!([{}]), json!([[]]), json!("x")] {
        for session in [Value::Null, json!("s1")] {
            let answer = gateway.chat_with("m", json!({"messages": messages, "session": session}));
            assert_eq!(answer.status(), 400, "{messages}: {answer}");
        }
    }
    let inputs = format!(r#"{{"model":"m","input":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(gateway.send(&Request::new("POST", "/v1/embeddings").body(inputs)).status(), 400);
    let deep = format!(r#"{{"model":"m","messages":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let answer = gateway.send(&Request::new("POST", "/v1/chat/completions").body(deep));
    assert_eq!(answer.status(), 400);
    assert!(alpha.calls().is_empty());
}

#[test]
fn a7_odd_hosts_and_paths_are_no_500() {
    let (_alpha, gateway) = gateway_over([]);
    for path in ["/%E0%A4%A", "/v1/%E0%A4%A", "/v1/models/%E0%A4%A", "/%", "/api/%ff", "/v1/models/%00"] {
        let answer = gateway.get(path);
        assert!([400, 404].contains(&answer.status()), "{path}: {answer}");
        assert!(answer.json()["error"].is_object(), "{path}: {answer}");
    }
    for host in ["[", "::", "a b", "localhost:notaport", "%00", "http://x"] {
        let answer = gateway.send(&Request::get("/v1/models").header("host", host));
        assert!([200, 400, 403, 421].contains(&answer.status()), "{host:?}: {answer}");
    }
}

#[test]
fn tool_13_a_forced_tool_call_without_tools_is_400() {
    let (alpha, gateway) = gateway_over([]);
    let answer = gateway.chat_with("m", json!({"tool_choice": "required"})).about("tool_choice");
    assert_eq!((answer.status(), chats(&alpha).len()), (400, 0));
    let older = gateway.chat_with("m", json!({"function_call": {"name": "f"}})).about("function_call");
    assert_eq!((older.status(), chats(&alpha).len()), (400, 0));
}

#[test]
fn tool_15_a_tool_result_without_a_call_is_400() {
    let (alpha, gateway) = gateway_over([]);
    let messages =
        json!([{"role": "user", "content": "u"}, {"role": "tool", "tool_call_id": "nope", "content": "x"}]);
    let answer = gateway.chat_with("m", json!({"messages": messages}));
    assert_eq!((answer.status(), chats(&alpha).len()), (400, 0));
    assert!(answer.at("/error/param").to_string().contains("messages[1]"), "{answer}");
}

#[test]
fn req_13_an_output_limit_that_is_no_number_is_400() {
    let (alpha, gateway) = gateway_over([]);
    for odd in [json!(6000.5), json!("256"), json!(-1)] {
        let answer = gateway.chat_with("m", json!({"max_tokens": odd})).about("max_tokens");
        assert_eq!(answer.status(), 400, "{odd}");
    }
    assert!(chats(&alpha).is_empty());
}

#[test]
fn http_05_slips_in_the_address() {
    let (_alpha, gateway) = gateway_over([]);
    for path in [
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/v1/chat/completions",
        "/v1/chat/completions?api-version=x",
    ] {
        gateway.post(path, &hello("m")).ok();
    }
    for path in ["/v1/nope", "/v1/images/generations", "/nope"] {
        gateway.post(path, &hello("m")).error(404, "not_found");
    }
}

#[test]
fn http_08_a_wrong_method_is_told_the_right_one() {
    let (_alpha, gateway) = gateway_over([]);
    let answer = gateway.get("/v1/chat/completions").error(405, "method_not_allowed");
    assert!(answer.header("allow").is_some_and(|methods| methods.contains("POST")), "{answer}");
}

#[test]
fn http_07_a_body_over_the_limit_is_413_and_one_below_is_served() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).model_with("m", json!({"context": 100_000_000}))]);
    let padded =
        |bytes: usize| Request::chat(&hello_with("m", json!({"metadata": {"pad": "x".repeat(bytes)}})));
    gateway.send(&padded(6_000_000)).ok();
    let refused =
        gateway.send(&Request::new("POST", "/v1/chat/completions").header("content-length", "9000000"));
    refused.error(413, "payload_too_large");
}

#[test]
fn http_02_other_encodings_are_415() {
    let (_alpha, gateway) = gateway_over([]);
    let body = hello("m").to_string();
    let request = |encoding: &str| {
        Request::new("POST", "/v1/chat/completions").body(&body).header("content-encoding", encoding)
    };
    assert_eq!(gateway.send(&request("foo")).status(), 415);
    assert_eq!(gateway.send(&request("gzip")).status(), 400, "it says gzip and is none");
    gateway.send(&request("identity")).ok();
}

#[test]
fn http_02_gzipped_and_chunked_bodies_are_read() {
    use std::io::Write;
    let (_alpha, gateway) = gateway_over([]);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(hello("m").to_string().as_bytes()).expect("a Vec takes every write");
    let zipped = encoder.finish().expect("a Vec takes every write");
    gateway
        .send(&Request::new("POST", "/v1/chat/completions").body(zipped).header("content-encoding", "gzip"))
        .ok();
    let body = hello("m").to_string();
    let (first, second) = body.split_at(10);
    let chunked = format!("{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", first.len(), second.len());
    gateway
        .send(
            &Request::new("POST", "/v1/chat/completions")
                .body(chunked)
                .header("transfer-encoding", "chunked"),
        )
        .ok();
}

#[test]
fn http_04_a_browser_may_ask_first() {
    let alpha = mock("alpha");
    let settings = json!({"corsOrigins": ["https://notes.example"]});
    let gateway =
        Gateway::builder().provider(provider(&alpha)).client_key("fw-right").settings(settings).start();
    let preflight = Request::new("OPTIONS", "/v1/chat/completions")
        .header("origin", "https://notes.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type,x-stainless-os");
    let answer = gateway.send(&preflight);
    assert_eq!(
        (answer.status(), answer.header("access-control-allow-origin")),
        (204, Some("https://notes.example"))
    );
    let allowed = answer.header("access-control-allow-headers").unwrap_or_default().to_ascii_lowercase();
    assert!(allowed.contains("x-stainless-os"), "{allowed}");
    let refused = gateway.send(&Request::chat(&hello("m")).header("origin", "https://notes.example"));
    assert_eq!(
        (refused.status(), refused.header("access-control-allow-origin")),
        (401, Some("https://notes.example"))
    );
}

#[test]
fn sigterm_waits_for_an_answer_in_flight() {
    let (alpha, gateway) = gateway_over([Step::ok().delay_ms(1_000)]);
    let mut wire = gateway.wire();
    wire.send(Request::chat(&hello("m")).bytes());
    eventually("the upstream has the call", || chats(&alpha).len() == 1);
    gateway.signal("TERM");
    wire.answer().ok();
    gateway.gone();
}
