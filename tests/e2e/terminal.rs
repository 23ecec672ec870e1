//! The last answer of a request that nobody served: one test for each row of its table, with everything that clients
//! and people read there; and the headers by which a request says how long it tries and waits.
use std::time::Duration;

use crate::harness::*;

/// What every last answer carries.
#[track_caller]
fn terminal(answer: Answer, status: u16, code: &str, attempts: u32) -> Answer {
    let answer = answer.error(status, code).after_attempts(attempts);
    let kind = match status {
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    assert_eq!(answer.at("/error/type"), kind, "{answer}");
    for header in ["x-freeway-route", "x-freeway-ms", "x-request-id"] {
        assert!(answer.header(header).is_some(), "no {header} in {answer}");
    }
    assert_eq!(answer.header("cache-control"), Some("no-store, no-transform"), "{answer}");
    for header in ["x-freeway-provider", "x-freeway-model"] {
        assert_eq!(answer.header(header), None, "nobody served: {answer}");
    }
    assert!(
        answer.at("/freeway/requested").is_string() && answer.at("/freeway/resolution").is_string(),
        "{answer}"
    );
    answer.never_says("alpha-key").never_says("127.0.0.1")
}

/// Whether the answer tells to come back, in the header and in the body alike.
#[track_caller]
fn expect_wait(answer: &Answer, seconds: std::ops::RangeInclusive<u64>, model: &str) {
    let told = answer.number("retry-after") as u64;
    assert!(seconds.contains(&told), "{told} s in {answer}");
    let ms = answer.at("/freeway/retryAfterMs").as_u64().expect("a number");
    assert_eq!(ms.div_ceil(1_000).max(1), told, "{answer}");
    let next = answer.at("/freeway/nextEligible");
    assert_eq!(
        format!("{}/{}", next["provider"].as_str().unwrap_or("?"), next["model"].as_str().unwrap_or("?")),
        model
    );
    assert_eq!((&next["inMs"], &answer.at("/freeway/next_eligible_model")), (&json!(ms), &json!(model)));
}

#[track_caller]
fn expect_no_wait(answer: &Answer) {
    assert_eq!(answer.header("retry-after"), None, "{answer}");
    let freeway = &answer.json()["freeway"];
    assert!(
        freeway.get("nextEligible").is_none() && freeway.get("next_eligible_model").is_none(),
        "{answer}"
    );
    assert!(freeway.get("retryAfterMs").is_none_or(Value::is_null), "{answer}");
}

/// The blocked models of an answer, each with the beginning of its reason.
fn blocked(answer: &Answer) -> Vec<(String, String)> {
    let list = answer.at("/freeway/blocked");
    let one = |blocked: &Value| {
        let text = |name: &str| blocked[name].as_str().unwrap_or("?").to_owned();
        (format!("{}/{}", text("provider"), text("model")), text("reason"))
    };
    list.as_array().expect("a list").iter().map(one).collect()
}

#[track_caller]
fn expect_blocked(answer: &Answer, expected: &[(&str, &str)]) {
    let found = blocked(answer);
    let fits = found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|((who, why), (model, reason))| who == model && why.contains(reason));
    assert!(fits, "{found:#?}\nis not {expected:#?}");
}

/// What stops a limited provider: its only request of the day is spent.
fn spent(mock: &MockUpstream, gateway: &Gateway) {
    gateway.chat(&format!("{}/m", mock.name())).ok();
}

fn long() -> Value {
    json!({"messages": [{"role": "user", "content": "word ".repeat(4_000)}]})
}

// Something time-bound: 429 `all_providers_blocked`.

#[test]
fn row_time_is_429_with_the_soonest() {
    let alpha = mock_that("alpha", [Step::status(429).header("retry-after", 200)]);
    let beta = mock_that("beta", [Step::status(503).header("retry-after", 90)]);
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    gateway.chat("m").error(502, "all_attempts_failed");
    let answer = terminal(gateway.chat("m"), 429, "all_providers_blocked", 0);
    expect_wait(&answer, 60..=90, "beta/m");
    assert!(answer.json()["freeway"].get("attempts").is_none(), "{answer}");
    expect_blocked(&answer, &[("alpha/m", "rate limit"), ("beta/m", "provider cooling down")]);
    for entry in answer.at("/freeway/blocked").as_array().expect("a list") {
        assert!(entry["retryAfterMs"].is_u64(), "{entry}");
    }
    let message = answer.at("/error/message").to_string();
    assert!(message.contains("beta/m") && message.contains("`m`"), "{message}");
}

#[test]
fn row_time_is_the_same_for_streams_and_vectors() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).model("m").embed_model("e").limits(json!({"rpm": 1}))]);
    spent(&alpha, &gateway);
    let answer = terminal(gateway.stream("m"), 429, "all_providers_blocked", 0);
    expect_wait(&answer, 1..=62, "alpha/m");
    let answer = terminal(gateway.embed("e", json!("hi")), 429, "all_providers_blocked", 0);
    expect_wait(&answer, 1..=62, "alpha/e");
}

#[test]
fn row_time_comes_before_all_that_time_does_not_mend() {
    let (alpha, beta, gamma) = (mock("alpha"), mock("beta"), mock("gamma"));
    let gateway = Gateway::over([
        provider(&alpha).priority(1).limits(json!({"rpd": 1})),
        provider(&beta).priority(2).model_with("m", json!({"context": 1_000})),
        provider(&gamma).priority(3).keys([]),
    ]);
    spent(&alpha, &gateway);
    let answer = terminal(gateway.chat_with("m", long()), 429, "all_providers_blocked", 0);
    expect_wait(&answer, 1..=86_400, "alpha/m");
    expect_blocked(
        &answer,
        &[
            ("alpha/m", "rpd limit reached (1/1)"),
            ("beta/m", "context window 1.0K <"),
            ("gamma/m", "GAMMA_API_KEY"),
        ],
    );
}

#[test]
fn row_time_tells_which_key_is_free_first() {
    let alpha = mock("alpha");
    alpha.set_keys([
        ("first-key-1", vec![Step::status(429).header("retry-after", 300)]),
        ("first-key-2", vec![Step::status(429).header("retry-after", 100)]),
    ]);
    let gateway = Gateway::over([provider(&alpha).keys(["first-key-1", "first-key-2"])]);
    gateway.chat("m").error(429, "all_attempts_failed").after_attempts(2);
    let answer = terminal(gateway.chat("m"), 429, "all_providers_blocked", 0);
    expect_wait(&answer, 70..=100, "alpha/m");
    expect_blocked(&answer, &[("alpha/m", "all 2 keys are out; soonest is key 2")]);
    answer.never_says("first-key").never_says("firs…");
}

// Else too large for every candidate: 413.

#[test]
fn row_size_is_413_with_the_numbers() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let gateway = Gateway::over([
        provider(&alpha).priority(1).model_with("m", json!({"context": 1_000})),
        provider(&beta).priority(2).limits(json!({"tpm": 2_000})),
    ]);
    let answer =
        terminal(gateway.chat_with("m", long()), 413, "context_length_exceeded", 0).about("messages");
    expect_no_wait(&answer);
    assert_eq!(
        (answer.at("/freeway/code"), answer.at("/freeway/available")),
        (json!("context_too_large"), json!(2_000))
    );
    assert!(answer.at("/freeway/required").as_u64() > Some(3_000), "{answer}");
    expect_blocked(&answer, &[("alpha/m", "context window"), ("beta/m", "above the tpm limit of 2.0K")]);
    assert!(chats(&alpha).is_empty() && chats(&beta).is_empty());
}

#[test]
fn row_size_comes_before_configuration() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let gateway = Gateway::over([
        provider(&alpha).model_with("m", json!({"context": 1_000})),
        provider(&beta).keys([]),
    ]);
    terminal(gateway.chat_with("m", long()), 413, "context_length_exceeded", 0);
}

// Else configuration: 503, with what to set.

#[test]
fn row_configuration_is_503_and_says_what_to_set() {
    let (alpha, beta, gamma) = (mock("alpha"), mock("beta"), mock("gamma"));
    let gateway = Gateway::over([
        provider(&alpha).priority(1).keys([]),
        provider(&beta).priority(2).set("enabled", json!(false)),
        provider(&gamma).priority(3).model_with("m", json!({"enabled": false})),
    ]);
    let answer = terminal(gateway.chat("m"), 503, "no_provider_configured", 0);
    expect_no_wait(&answer);
    assert!(
        answer.at("/error/message").as_str().is_some_and(|text| text.contains("ALPHA_API_KEY")),
        "{answer}"
    );
    expect_blocked(
        &answer,
        &[("alpha/m", "ALPHA_API_KEY"), ("beta/m", "provider disabled"), ("gamma/m", "model disabled")],
    );
}

#[test]
fn row_configuration_without_any_provider_says_how_to_add_one() {
    let gateway = Gateway::builder().start();
    let answer = terminal(gateway.chat("auto"), 503, "no_provider_configured", 0);
    expect_no_wait(&answer);
    assert!(answer.at("/error/message").as_str().is_some_and(|text| text.contains("freeway provider new")));
}

// Else no model can do it: 400.

#[test]
fn row_capability_is_400_and_names_the_field() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).model_with("m", json!({"caps": ["chat"]}))]);
    let check = |fields: Value, param: &str, lacks: &str| {
        let answer = terminal(gateway.chat_with("m", fields), 400, "capability_unavailable", 0).about(param);
        expect_no_wait(&answer);
        assert!(answer.at("/error/message").as_str().is_some_and(|text| text.contains(lacks)), "{answer}");
        expect_blocked(&answer, &[("alpha/m", "missing capability")]);
    };
    check(json!({"tools": [weather_tool()]}), "tools", "tools");
    check(json!({"response_format": {"type": "json_object"}}), "response_format", "json");
    let picture = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]);
    check(json!({"messages": [{"role": "user", "content": picture}]}), "messages", "vision");
    let answer = gateway.embed("auto", json!("hi"));
    terminal(answer, 400, "capability_unavailable", 0).about("model");
    assert!(alpha.calls().is_empty());
}

// A model string that means nothing: 404 with suggestions.

#[test]
fn row_unknown_model_is_404_with_suggestions() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).model("llama-3.3-70b").model("qwen-2.5")]);
    let answer = terminal(gateway.chat("lamma-3.3-71"), 404, "model_not_found", 0).about("model");
    expect_no_wait(&answer);
    assert_eq!(answer.at("/freeway/requested"), "lamma-3.3-71");
    assert_eq!(answer.at("/freeway/suggestions/0"), "alpha/llama-3.3-70b");
    let message = answer.at("/error/message").to_string();
    assert!(message.contains("did you mean `alpha/llama-3.3-70b`"), "{message}");
    assert!(alpha.calls().is_empty());
}

// Tried and failed: the last cause decides.

/// Three providers that answer so, in turn; the answer after all of them.
fn tried(steps: [Step; 3]) -> (Vec<MockUpstream>, Answer) {
    let names = ["alpha", "beta", "gamma"];
    let mocks: Vec<_> = names.into_iter().zip(steps).map(|(name, step)| mock_that(name, [step])).collect();
    let ranked = mocks.iter().zip(1..).map(|(mock, priority)| {
        provider(mock).priority(priority).set("timeouts", json!({"firstByteMs": 1_000}))
    });
    let gateway = ranked.fold(Gateway::builder(), Builder::provider).start();
    let answer = gateway.chat("m");
    (mocks, answer)
}

#[test]
fn row_failed_tells_every_attempt() {
    let (mocks, answer) =
        tried([Step::status(401), Step::error(500, "the engine is on fire"), Step::html(200)]);
    let answer = terminal(answer, 502, "all_attempts_failed", 3);
    assert_eq!(answer.header("x-freeway-trail"), Some("alpha/m:401, beta/m:500, gamma/m:html"));
    let attempts = answer.at("/freeway/attempts");
    let attempts: Vec<_> = attempts
        .as_array()
        .expect("a list")
        .iter()
        .map(|attempt| {
            assert!(
                attempt["ms"].is_u64() && attempt["key"] == 1 && attempt["error"].is_string(),
                "{attempt}"
            );
            (
                attempt["provider"].as_str().unwrap_or("?"),
                attempt["model"].as_str().unwrap_or("?"),
                attempt["status"].as_u64(),
                attempt["cause"].as_str().unwrap_or("?"),
            )
        })
        .collect();
    assert_eq!(
        attempts,
        [
            ("alpha", "m", Some(401), "401"),
            ("beta", "m", Some(500), "500"),
            ("gamma", "m", Some(200), "html")
        ]
    );
    assert!(answer.text().contains("the engine is on fire"), "{answer}");
    let message = answer.at("/error/message").to_string();
    assert!(message.contains("3 of 3") && message.contains("gamma/m"), "{message}");
    assert!(mocks.iter().all(|mock| chats(mock).len() == 1));
}

#[test]
fn row_failed_by_a_limit_last_is_429_and_says_when() {
    let (_mocks, answer) =
        tried([Step::status(500), Step::html(200), Step::status(429).header("retry-after", 3)]);
    let answer = terminal(answer, 429, "all_attempts_failed", 3);
    expect_wait(&answer, 1..=5, answer.at("/freeway/next_eligible_model").as_str().expect("a text"));
}

#[test]
fn row_failed_by_a_timeout_last_is_504() {
    let (_mocks, answer) = tried([Step::status(429), Step::status(500), Step::hang()]);
    terminal(answer, 504, "all_attempts_failed", 3);
    let (_mocks, answer) = tried([Step::status(429), Step::status(500), Step::status(504)]);
    terminal(answer, 504, "all_attempts_failed", 3);
}

#[test]
fn row_failed_by_anything_else_last_is_502() {
    let (_mocks, answer) = tried([Step::status(429), Step::hang(), Step::status(401)]);
    let answer = terminal(answer, 502, "all_attempts_failed", 3);
    // Never 401: it is not the client's key.
    assert_eq!(answer.header("www-authenticate"), None);
}

#[test]
fn row_failed_before_the_first_delta_is_a_status_for_streams_too() {
    let (_alpha, gateway) = gateway_over([Step::status(500)]);
    terminal(gateway.stream("m"), 502, "all_attempts_failed", 1);
}

#[test]
fn row_failed_behind_keep_alives_is_the_last_event() {
    let alpha = mock_that("alpha", [Step::hang()]);
    let gateway = Gateway::builder()
        .settings(json!({"stream": {"holdMs": 50, "keepAliveMs": 100}}))
        .provider(provider(&alpha).set("timeouts", json!({"firstByteMs": 500})))
        .start();
    let answer = gateway.stream("m");
    let error = answer.broken_stream();
    assert_eq!((&error["code"], &error["type"]), (&json!("all_attempts_failed"), &json!("api_error")));
    assert_eq!(answer.header("x-freeway-provider"), None, "nobody has served yet: {answer}");
}

// The gateway's own pool is full: 503 `overloaded`.

#[test]
fn row_overloaded_is_503_and_come_back_soon() {
    let alpha = mock_that("alpha", [Step::hang()]);
    let gateway = Gateway::builder()
        .settings(json!({"server": {"workers": 1, "queue": 0}}))
        .provider(provider(&alpha))
        .start();
    let mut busy = gateway.wire();
    busy.send(Request::chat(&hello("m")).bytes());
    eventually("the only worker is busy", || chats(&alpha).len() == 1);
    let answer = gateway.chat("m").error(503, "overloaded");
    assert_eq!((answer.header("retry-after"), answer.at("/error/type")), (Some("1"), json!("api_error")));
    assert!(answer.header("x-request-id").is_some(), "{answer}");
    // What needs no upstream is answered all the same.
    gateway.get("/healthz").ok();
    gateway.get("/v1/models").ok();
    assert_eq!(chats(&alpha).len(), 1);
}

// What is listed has an end.

#[test]
fn long_lists_are_cut_and_say_so() {
    let alpha = mock("alpha");
    let many =
        (0..60).fold(provider(&alpha).limits(json!({"rpm": 1})), |many, n| many.model(&format!("m-{n:02}")));
    let gateway = Gateway::over([many]);
    gateway.chat("auto").ok();
    let answer = terminal(gateway.chat("auto"), 429, "all_providers_blocked", 0);
    assert_eq!((blocked(&answer).len(), answer.at("/freeway/blockedMore")), (50, json!(10)));
}

// How long a request tries: `x-freeway-max-attempts`.

#[test]
fn a_request_may_try_fewer_models_but_not_more() {
    let check = |header: &str, expected: u32| {
        let mocks: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| mock_that(name, [Step::status(500)])).into();
        let gateway =
            mocks.iter().fold(Gateway::builder(), |builder, mock| builder.provider(provider(mock))).start();
        let request = Request::chat(&hello("auto")).header("x-freeway-max-attempts", header);
        terminal(gateway.send(&request), 502, "all_attempts_failed", expected);
        assert_eq!(mocks.iter().map(|mock| chats(mock).len()).sum::<usize>(), expected as usize);
    };
    check("1", 1);
    check("2", 2);
    check("3", 3);
    check("20", 3);
}

#[test]
fn odd_controls_are_told() {
    let (alpha, gateway) = gateway_over([Step::ok()]);
    for (name, value) in [
        ("x-freeway-max-attempts", "0"),
        ("x-freeway-max-attempts", "many"),
        ("x-freeway-max-attempts", "-1"),
        ("x-freeway-wait", "soon"),
        ("x-freeway-wait", "-1"),
        ("x-freeway-wait", "NaN"),
        ("x-freeway-wait", "1e9"),
    ] {
        gateway.send(&Request::chat(&hello("m")).header(name, value)).error(400, "invalid_body").about(name);
    }
    assert!(chats(&alpha).is_empty());
}

// How long a request waits: `x-freeway-wait`.

fn waiting(seconds: &str) -> Request {
    Request::chat(&hello("m")).header("x-freeway-wait", seconds)
}

#[test]
fn a_patient_request_is_held_and_served() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).limits(json!({"rps": 1}))]);
    gateway.chat("m").ok();
    gateway.chat("m").error(429, "all_providers_blocked");
    gateway.send(&waiting("10")).ok().served_by("alpha").after_attempts(1);
    assert_eq!(chats(&alpha).len(), 2);
}

#[test]
fn a_patient_request_waits_for_a_bench_and_for_a_place() {
    let alpha = mock_that("alpha", [Step::status(429).header("retry-after", 1), Step::ok()]);
    let gateway = Gateway::over([provider(&alpha)]);
    gateway.chat("m").error(429, "all_attempts_failed");
    gateway.send(&waiting("10")).ok().served_by("alpha");
    // The one that meets the limit itself is no worse off than the next.
    let limit = || Step::status(429).header("retry-after", 1);
    let alpha = mock_that("alpha", [limit(), limit(), Step::ok()]);
    let answer = Gateway::over([provider(&alpha)]).send(&waiting("10")).ok().after_attempts(3);
    assert_eq!(answer.header("x-freeway-trail"), Some("alpha/m:429, alpha/m:429"));
    let alpha = mock_that("alpha", [Step::status(429).header("retry-after", 30)]);
    Gateway::over([provider(&alpha)])
        .send(&waiting("10"))
        .error(429, "all_attempts_failed")
        .after_attempts(1);
    let alpha = mock_that("alpha", [Step::ok().delay_ms(300).times(FOREVER)]);
    let gateway = Gateway::over([provider(&alpha).limits(json!({"concurrency": 1}))]);
    for answer in at_once(4, |_| gateway.send(&waiting("20"))) {
        answer.ok().after_attempts(1);
    }
}

#[test]
fn a_request_is_not_held_in_vain() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let gateway = Gateway::builder()
        .settings(json!({"failover": {"budgetMs": 5_000}}))
        .provider(provider(&alpha).limits(json!({"rpm": 1})))
        .provider(provider(&beta).keys([]).model("only-beta"))
        .start();
    gateway.chat("m").ok();
    let at_once = |answer: Answer| {
        assert!(answer.took() < Duration::from_secs(4), "it was held: {answer}");
        answer
    };
    // Too short, longer than the budget, and where time mends nothing.
    terminal(at_once(gateway.send(&waiting("2"))), 429, "all_providers_blocked", 0);
    terminal(at_once(gateway.send(&waiting("200"))), 429, "all_providers_blocked", 0);
    let config = Request::chat(&hello("only-beta")).header("x-freeway-wait", "4");
    terminal(at_once(gateway.send(&config)), 503, "no_provider_configured", 0);
}

#[test]
fn not_everybody_can_be_held_at_once() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).limits(json!({"rps": 4}))]);
    at_once(4, |_| gateway.chat("m").ok());
    let answers = at_once(40, |_| gateway.send(&waiting("60")));
    let refused = answers.iter().filter(|answer| answer.status() == 429).count();
    assert!((16..=24).contains(&refused), "{refused} of 40 were not held");
    assert!(answers.iter().all(|answer| [200, 429].contains(&answer.status())));
}

#[test]
fn row_configuration_is_503_for_a_profile_whose_models_are_gone() {
    let alpha = mock("alpha");
    let settings = json!({"profiles": {"mine": ["beta/m"]}, "activeProfile": "mine"});
    let gateway = Gateway::builder().provider(provider(&alpha)).settings(settings).start();
    let refused = gateway.chat("auto").error(503, "no_provider_configured");
    assert!(refused.text().contains("freeway doctor"), "{refused}");
    gateway.chat("m").ok();
}
