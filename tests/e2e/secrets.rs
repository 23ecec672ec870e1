//! Provider keys stay inside: whatever an upstream, a file or a log does with them.
use crate::harness::*;

const KEY: &str = "sk-alpha/0123456789+abcdef==";
const KEY_ESCAPED: &str = "sk-alpha%2F0123456789%2Babcdef%3D%3D";

/// A gateway over one provider with the key above, whose upstream answers so.
fn holding(step: Step) -> (MockUpstream, Gateway) {
    let alpha = mock_that("alpha", [step]);
    let gateway = Gateway::builder()
        .provider(provider(&alpha).keys([KEY]))
        .settings(json!({"log": {"level": "debug"}}))
        .start();
    (alpha, gateway)
}

/// Fails if the key stands in an answer, in any view, or in the log.
#[track_caller]
fn expect_kept(gateway: &Gateway, answer: &Answer) {
    for secret in [KEY, KEY_ESCAPED, "0123456789+abcdef"] {
        answer.clone().never_says(secret);
        for view in ["/api/providers", "/api/logs", "/api/benches", "/api/stats", "/v1/models"] {
            gateway.get(view).ok().never_says(secret);
        }
        assert!(!gateway.log().contains(secret), "{secret} is in the log");
    }
}

#[test]
fn a3_an_echoed_key_is_masked_whatever_the_status() {
    let echo = format!("the key '{KEY}' (Bearer {KEY}, ?key={KEY_ESCAPED}) is not welcome");
    for status in [400, 401, 403, 404, 413, 422, 429, 500, 503] {
        let (_alpha, gateway) = holding(Step::error(status, &echo));
        let answer = gateway.chat("m");
        assert!(answer.status() >= 400, "{answer}");
        expect_kept(&gateway, &answer);
    }
}

#[test]
fn a3_an_echoed_key_is_masked_in_odd_bodies_too() {
    for step in [
        Step { body: Some(format!("<html><p>{KEY}</p></html>").into_bytes()), ..Step::html(400) },
        Step::json(400, &json!([{"error": {"code": 400, "message": format!("key {KEY}")}}])),
        Step::json(400, &json!({"detail": [{"msg": format!("header Bearer {KEY}"), "input": KEY}]})),
        Step::json(200, &json!({"error": {"message": format!("bad {KEY}")}})),
        Step::json(400, &json!({"error": {"message": "odd", "code": KEY, "param": KEY, "type": KEY}})),
    ] {
        let (_alpha, gateway) = holding(step);
        let answer = gateway.chat("m");
        assert!(answer.status() >= 400, "{answer}");
        expect_kept(&gateway, &answer);
    }
}

#[test]
fn a3_a_key_that_could_be_an_error_code_is_masked_too() {
    let word = "alphakey0123456789abcdef";
    let error = json!({"error": {"message": "odd", "code": word, "param": word, "type": word}});
    let alpha = mock_that("alpha", [Step::json(400, &error)]);
    let gateway = Gateway::over([provider(&alpha).keys([word])]);
    gateway.chat("m").never_says(word);
    gateway.get("/api/logs").ok().never_says(word);
}

#[test]
fn a3_an_echoed_key_is_masked_in_a_stream() {
    let error = json!({"error": {"message": format!("the key {KEY} died"), "code": 500}}).to_string();
    let (_alpha, gateway) = holding(Step::events([delta("half"), error]));
    let answer = gateway.stream("m");
    answer.broken_stream();
    expect_kept(&gateway, &answer);
}

#[test]
fn a3_a_key_that_no_header_can_carry_is_left_out_and_not_told() {
    let alpha = mock("alpha");
    for bad in ["secret\tkey-with-tab", "secret-schl\u{fc}ssel", "secret key with spaces"] {
        let gateway = Gateway::over([provider(&alpha).keys([bad])]);
        let answer = gateway.chat("m").error(503, "no_provider_configured");
        for text in [answer.text(), gateway.get("/api/providers").ok().text(), gateway.log()] {
            assert!(!text.contains("secret"), "{bad:?} is told in {text}");
        }
        let issues = gateway.get("/api/providers").ok().at("/issues").to_string();
        assert!(issues.contains("ALPHA_API_KEY"), "but the variable is named: {issues}");
    }
    let gateway = Gateway::over([provider(&alpha).keys(["bad\tkey", "good-key"])]);
    gateway.chat("m").ok();
    assert_eq!(chats(&alpha)[0].key.as_deref(), Some("good-key"));
}

#[test]
fn a4_a_redirect_takes_neither_key_nor_body_along() {
    for status in [301, 302, 303, 307, 308] {
        let elsewhere = mock("elsewhere");
        let alpha =
            mock_that("alpha", [Step::redirect(status, &format!("{}/chat/completions", elsewhere.url()))]);
        let auth = json!({"type": "header", "header": "x-api-key", "envKeys": ["ALPHA_API_KEY"]});
        let gateway = Gateway::over([provider(&alpha).set("auth", auth)]);
        gateway.chat("m").error(502, "all_attempts_failed");
        assert!(elsewhere.calls().is_empty(), "{status} was followed");
    }
}
