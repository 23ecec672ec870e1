//! The keys of clients, and the key pools of providers.
use std::collections::BTreeMap;

use crate::harness::*;

/// How many chats each key of an upstream got.
fn chats_by_key(mock: &MockUpstream) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in chats(mock) {
        *counts.entry(call.key.expect("a bearer key")).or_default() += 1;
    }
    counts
}

/// A gateway that asks its clients for the key `fw-right`.
fn guarded() -> (MockUpstream, Gateway) {
    let alpha = mock("alpha");
    let gateway = Gateway::builder().provider(provider(&alpha)).client_key("fw-right").start();
    (alpha, gateway)
}

#[test]
fn without_a_key_nobody_is_served() {
    let (alpha, gateway) = guarded();
    let answer = gateway.send(&Request::chat(&hello("m"))).error(401, "invalid_api_key");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    gateway.send(&Request::chat(&hello("m")).key("fw-wrong")).error(401, "invalid_api_key");
    gateway.send(&Request::get("/v1/models")).error(401, "invalid_api_key");
    gateway.send(&Request::get("/v1/nope")).error(401, "invalid_api_key");
    assert!(alpha.calls().is_empty());
}

#[test]
fn health_is_open_to_all() {
    let (_alpha, gateway) = guarded();
    assert_eq!(gateway.send(&Request::get("/healthz")).ok().at("/ok"), json!(true));
    assert_eq!(gateway.send(&Request::get("/readyz")).ok().at("/ready"), json!(true));
    gateway.send(&Request::get("/sdk/freeway.js")).error(404, "not_found");
}

#[test]
fn http_10_keys_are_read_where_clients_put_them() {
    let (_alpha, gateway) = guarded();
    let ask =
        |name: &str, value: &str| gateway.send(&Request::chat(&hello("m")).header(name, value)).status();
    assert_eq!(ask("authorization", "Bearer fw-right"), 200);
    assert_eq!(ask("authorization", "bearer fw-right"), 200);
    assert_eq!(ask("x-api-key", "fw-right"), 200);
    assert_eq!(ask("api-key", "fw-right"), 200);
    assert_eq!(ask("authorization", "Bearer "), 401);
}

#[test]
fn http_10_two_keys_that_differ_are_refused() {
    let (_alpha, gateway) = guarded();
    let both =
        |second: &str| gateway.send(&Request::chat(&hello("m")).key("fw-right").header("x-api-key", second));
    both("fw-other").error(401, "invalid_api_key");
    both("fw-right").ok();
}

#[test]
fn http_10_without_client_keys_any_key_will_do() {
    let (_alpha, gateway) = gateway_over([]);
    gateway.send(&Request::chat(&hello("m")).key("whatever")).ok();
}

#[test]
fn http_01_a_wrong_key_is_told_before_the_body() {
    let (_alpha, gateway) = guarded();
    let mut wire = gateway.wire();
    wire.send(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer fw-wrong\r\n\
         content-length: 5000000\r\nexpect: 100-continue\r\n\r\n",
    );
    let head = wire.head();
    assert_eq!(head.status, 401, "and no 100 before it");
}

#[test]
fn open_to_the_network_without_keys_it_refuses_to_start() {
    let exit = Gateway::builder().env("FREEWAY_HOST", "0.0.0.0").refusal();
    assert_eq!(exit.code, Some(78), "{exit:?}");
    assert!(exit.log.contains("FREEWAY_KEYS"), "{exit:?}");
}

#[test]
fn w4_a_pool_of_keys_adds_up() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).keys(["k1", "k2", "k3"]).limits(json!({"rpm": 2}))]);
    for _ in 0..6 {
        gateway.chat("m").ok();
    }
    gateway.chat("m").error(429, "all_providers_blocked");
    assert_eq!(chats_by_key(&alpha), BTreeMap::from(["k1", "k2", "k3"].map(|key| (key.into(), 2))));
}

#[test]
fn w5_keys_take_turns_whatever_the_number_of_models() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).keys(["k1", "k2"]).model("m1").model("m2")]);
    for _ in 0..4 {
        gateway.chat("auto").ok();
    }
    assert_eq!(chats_by_key(&alpha), BTreeMap::from(["k1", "k2"].map(|key| (key.into(), 2))));
}

#[test]
fn a3_a_key_that_the_upstream_echoes_is_masked() {
    let echo = Step::error(401, "Incorrect API key provided: sk-alpha-0123456789abcdef.");
    let alpha = mock_that("alpha", [echo]);
    let gateway = Gateway::over([provider(&alpha).keys(["sk-alpha-0123456789abcdef"])]);
    let answer = gateway.chat("m").never_says("sk-alpha-0123456789abcdef");
    assert!([502, 503].contains(&answer.status()), "not the client's 401: {answer}");
    assert!(!gateway.log().contains("sk-alpha-0123456789abcdef"), "not in the log either");
}

#[test]
fn a3_a_key_in_the_address_is_never_told() {
    let closed = ClosedPort::take().expect("a free port");
    let auth = json!({"type": "query", "query": "key", "envKeys": ["ALPHA_API_KEY"]});
    let alpha = Provider::at("alpha", &closed.url()).set("auth", auth).keys(["secret-in-the-url"]);
    Gateway::over([alpha]).chat("m").error(502, "all_attempts_failed").never_says("secret-in-the-url");
}

#[test]
fn keys_are_presented_as_the_file_says() {
    let ask = |auth: Value| {
        let alpha = mock("alpha");
        Gateway::over([provider(&alpha).set("auth", auth).keys(["k1"])]).chat("m").ok();
        chats(&alpha).remove(0)
    };
    let header = ask(json!({"type": "header", "header": "X-Custom", "envKeys": ["ALPHA_API_KEY"]}));
    assert_eq!((header.header("x-custom"), header.header("authorization")), (Some("k1"), None));
    let query = ask(json!({"type": "query", "query": "key", "envKeys": ["ALPHA_API_KEY"]}));
    assert_eq!((query.request.query.as_str(), query.header("authorization")), ("key=k1", None));
    let prefix = ask(json!({"type": "bearer", "prefix": "Token ", "envKeys": ["ALPHA_API_KEY"]}));
    assert_eq!(prefix.header("authorization"), Some("Token k1"));
}

#[test]
fn quo_12_a_key_that_may_not_use_one_model_serves_the_other() {
    let alpha = mock("alpha");
    alpha.set_by_model([("a", vec![Step::error(403, "model not allowed for this key")])]);
    let gateway = Gateway::over([provider(&alpha).model("a").model("b")]);
    assert!(gateway.chat("alpha/a").status() >= 400);
    gateway.chat("alpha/b").ok();
}

#[test]
fn quo_12_keys_that_all_fail_are_not_the_clients_401() {
    let (alpha, gateway) = {
        let alpha = mock_that("alpha", [Step::status(401)]);
        let gateway = Gateway::over([provider(&alpha).keys(["k1", "k2"])]);
        (alpha, gateway)
    };
    let answer = gateway.chat("m");
    assert!([502, 503].contains(&answer.status()), "{answer}");
    assert_eq!(chats_by_key(&alpha).len(), 2, "both were tried");
}

#[test]
fn quo_13_a_bad_key_told_as_400_is_a_bad_key() {
    let refusal = json!([{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.",
        "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]}}]);
    let alpha = mock("alpha");
    alpha.set_keys([("k1", vec![Step::json(400, &refusal)])]);
    let gateway = Gateway::over([provider(&alpha).keys(["k1", "k2"])]);
    for _ in 0..3 {
        gateway.chat("m").ok();
    }
    assert!(chats_by_key(&alpha).get("k1").copied().unwrap_or_default() <= 1);
}

#[test]
fn a_counter_survives_a_restart() {
    let alpha = mock("alpha");
    let mut gateway = Gateway::over([provider(&alpha).limits(json!({"rpd": 2}))]);
    gateway.chat("m").ok();
    gateway.restart();
    gateway.chat("m").ok();
    gateway.chat("m").error(429, "all_providers_blocked");
}

#[test]
fn numbered_variables_belong_to_the_pool() {
    let alpha = mock("alpha");
    let builder = Gateway::builder().provider(provider(&alpha).keys(["k1"])).env("ALPHA_API_KEY_2", "k2,k1");
    let gateway = builder.start();
    for _ in 0..4 {
        gateway.chat("m").ok();
    }
    assert_eq!(chats_by_key(&alpha).len(), 2, "k1 counts once");
}
