//! Probes and passes over provider keys: what they ask, what they tell, and what follows.
use std::time::Duration;

use crate::harness::*;

/// A provider whose model list is asked for, with these keys.
fn listed<const N: usize>(mock: &MockUpstream, keys: [&str; N]) -> Provider {
    provider(mock).set("modelsEndpoint", json!("/models")).keys(keys)
}

/// A gateway that fetches no model lists by itself, so that every call counted is one of the pass.
fn quiet(file: Provider) -> Gateway {
    Gateway::builder().provider(file).settings(json!({"discovery": {"enabled": false}})).start()
}

fn lists(mock: &MockUpstream) -> Vec<Option<String>> {
    mock.calls_to("/models").into_iter().map(|call| call.key).collect()
}

#[test]
fn a_probe_asks_with_every_key_of_the_pool() {
    let alpha = mock("alpha");
    alpha.set_models(["m", "new-code"]);
    alpha.set_keys([("dead-key-0001", vec![Step::error(401, "no such key: dead-key-0001")])]);
    let gateway = quiet(listed(&alpha, ["good-key-0001", "dead-key-0001"]));
    let answer = gateway.post("/api/providers/alpha/probe", &json!({})).ok().never_says("dead-key-0001");
    assert_eq!((answer.at("/id"), answer.at("/validated")), (json!("alpha"), json!(false)));
    let results = answer.at("/results");
    let auth: Vec<&Value> =
        results.as_array().expect("a list").iter().map(|result| &result["auth"]).collect();
    assert_eq!(auth, [&json!("healthy"), &json!("invalid")], "{answer}");
    for member in
        ["providerId", "keyId", "keyMasked", "at", "ms", "discovered", "models", "observedLimits", "errors"]
    {
        assert!(results[0].get(member).is_some(), "{member} is missing in {answer}");
    }
    assert_eq!(results[0]["discovered"], json!(["m", "new-code"]));
    assert_eq!(
        results[0]["models"][0],
        json!({"id": "m", "status": "undiscovered", "ms": null, "error": null, "discovered": true})
    );
    assert_eq!(lists(&alpha), [Some("good-key-0001".to_owned()), Some("dead-key-0001".to_owned())]);
    let view = gateway.provider_view("alpha");
    assert_eq!(
        (&view["keys"][0]["status"], &view["keys"][1]["status"]),
        (&json!("healthy"), &json!("invalid")),
        "{view}"
    );
    assert!(view["keys"][0]["checkedAt"].is_u64(), "{view}");
    for _ in 0..3 {
        gateway.chat("m").ok().after_attempts(1);
    }
    assert!(
        chats(&alpha).iter().all(|call| call.key.as_deref() == Some("good-key-0001")),
        "the refused key is not used"
    );
}

#[test]
fn a_deep_probe_asks_the_models_and_counts_as_requests() {
    let alpha = mock("alpha");
    alpha.set_models(["m"]);
    alpha.set_by_model([("gone", vec![Step::status(404)]), ("busy", vec![Step::status(429)])]);
    let file =
        listed(&alpha, ["good-key-0001"]).limits(json!({"rpd": 50})).model("m").model("gone").model("busy");
    let gateway = quiet(file);
    let answer = gateway.post("/api/providers/alpha/probe", &json!({"validate": true})).ok();
    let models = answer.at("/results/0/models");
    let told: Vec<(&str, &str)> = models
        .as_array()
        .expect("a list")
        .iter()
        .map(|model| (model["id"].as_str().expect("an id"), model["status"].as_str().expect("a status")))
        .collect();
    assert_eq!(told, [("m", "ok"), ("gone", "unknown-model"), ("busy", "rate-limited")]);
    assert_eq!(chats(&alpha).len(), 3);
    assert_eq!(gateway.provider_view("alpha")["bars"][0]["used"], json!(3));
}

#[test]
fn a_probe_needs_a_provider_that_can_be_asked() {
    let alpha = mock("alpha");
    let bare = json!({"id": "bare", "baseUrl": "https://bare.example", "auth": {"envKeys": ["BARE_KEY"]}});
    let gateway =
        Gateway::builder().provider(provider(&alpha)).file("providers/bare.json", bare.to_string()).start();
    let refused = gateway.post("/api/providers/bare/probe", &json!({})).error(400, "not_configured");
    assert!(refused.at("/error/message").as_str().is_some_and(|text| text.contains("BARE_KEY")), "{refused}");
    gateway.post("/api/providers/alfa/probe", &json!({})).error(404, "not_found");
    gateway
        .post("/api/providers/alpha/probe", &json!({"validate": 1}))
        .error(400, "invalid_body")
        .about("validate");
    gateway
        .post("/api/providers/alpha/probe", &json!({"deep": true}))
        .error(400, "invalid_body")
        .about("deep");
    gateway.send(&Request::new("POST", "/api/providers/alpha/probe")).error(400, "invalid_body");
    gateway.get("/api/providers/alpha/probe").error(405, "method_not_allowed");
    assert!(alpha.calls().is_empty());
}

#[test]
fn a_pass_costs_one_cheap_request_per_key_and_feeds_routing() {
    let alpha = mock("alpha");
    alpha.set_keys([("dead-key-0001", vec![Step::status(401)])]);
    let gateway = quiet(listed(&alpha, ["dead-key-0001", "good-key-0001", "good-key-0002"]));
    let report = gateway.post("/api/keyhealth", &json!({})).ok();
    let keys = report.at("/keys");
    let verdicts: Vec<&Value> = keys.as_array().expect("a list").iter().map(|key| &key["verdict"]).collect();
    assert_eq!(verdicts, [&json!("invalid"), &json!("healthy"), &json!("healthy")], "{report}");
    assert_eq!((lists(&alpha).len(), chats(&alpha).len()), (3, 0), "one model list per key");
    assert_eq!(report.at("/actionable").as_array().map(Vec::len), Some(1));
    assert_eq!((&keys[0]["reachable"], &keys[0]["providerId"]), (&json!(true), &json!("alpha")));
    assert!(
        report.at("/at").is_u64() && keys[0]["checkedAt"].is_u64() && keys[0]["detail"].is_string(),
        "{report}"
    );
    gateway.chat("m").ok().after_attempts(1);
    alpha.set_keys([("dead-key-0001", vec![Step::ok()])]);
    let report = gateway.post("/api/keyhealth", &json!({})).ok();
    assert_eq!(
        report.at("/keys/0/verdict"),
        json!("healthy"),
        "a key that is let in again plays again: {report}"
    );
    assert_eq!(gateway.get("/api/benches").ok().at("/benches"), json!([]));
}

#[test]
fn fl_33_a_list_that_everybody_may_see_redeems_no_refused_key() {
    let alpha = mock("alpha");
    let refusal = Step::error(401, "no such key").for_path("/chat/completions");
    alpha.set_keys([(
        "dead-key-0001",
        vec![Step::ok().for_path("/models").times(FOREVER), refusal.times(FOREVER)],
    )]);
    let gateway = quiet(listed(&alpha, ["dead-key-0001", "good-key-0001"]));
    gateway.chat("m").ok().after_attempts(2);
    let before = alpha.calls().len();
    let report = gateway.post("/api/keyhealth", &json!({})).ok();
    assert_eq!(
        (report.at("/keys/0/verdict"), report.at("/keys/1/verdict")),
        (json!("invalid"), json!("healthy")),
        "{report}"
    );
    let asked: Vec<Option<String>> = alpha.calls().into_iter().skip(before).map(|call| call.key).collect();
    assert_eq!(asked.len(), 2, "one small request a key: {asked:?}");
    for _ in 0..3 {
        gateway.chat("m").ok().after_attempts(1);
    }
    assert!(
        chats(&alpha).iter().rev().take(3).all(|call| call.key.as_deref() == Some("good-key-0001")),
        "nobody uses it"
    );
}

#[test]
fn passes_one_after_the_other_cost_one_request_a_key_each() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let builder =
        Gateway::builder().provider(listed(&alpha, ["a-key-0001", "a-key-0002"])).provider(provider(&beta));
    let gateway = builder.settings(json!({"discovery": {"enabled": false}})).start();
    for pass in 1..=3 {
        gateway.post("/api/keyhealth", &json!({})).ok();
        assert_eq!((alpha.calls().len(), beta.calls().len()), (2 * pass, pass), "after {pass}");
    }
    assert_eq!(chats(&alpha).len(), 0, "a list is cheaper than an answer");
    let answered = chats(&beta).iter().all(|call| call.json()["max_tokens"].as_u64().is_some_and(|n| n <= 4));
    assert!(answered, "where there is no list, a few tokens are asked for");
}

#[test]
fn d_a_key_without_a_model_list_is_tried_with_one_small_request() {
    let (alpha, gateway) = gateway_over([Step::ok()]);
    let report = gateway.post("/api/keyhealth", &json!({})).ok();
    assert_eq!(report.at("/keys/0/verdict"), json!("healthy"), "{report}");
    let calls = chats(&alpha);
    assert_eq!(calls.len(), 1);
    assert!(calls[0].request.body.len() < 200, "{:?}", lossy(&calls[0].request.body));
}

#[test]
fn a_key_over_its_limit_is_not_asked_more() {
    let (alpha, gateway) = gateway_over([Step::status(402)]);
    gateway.chat("m");
    let before = alpha.calls().len();
    let report = gateway.post("/api/keyhealth", &json!({})).ok();
    assert_eq!((report.at("/keys/0/verdict"), alpha.calls().len()), (json!("limited"), before), "{report}");
}

#[test]
fn two_passes_at_once_are_one() {
    let alpha = mock_that("alpha", [Step::ok().delay_ms(1_500)]);
    let gateway = quiet(provider(&alpha));
    let mut first = gateway.wire();
    first.send(Request::post("/api/keyhealth", &json!({})).bytes());
    eventually("the first pass is under way", || chats(&alpha).len() == 1);
    let second = gateway.send(&Request::new("POST", "/api/keyhealth").body("whatever")).ok();
    assert_eq!(second.at("/running"), json!(true), "{second}");
    assert!(second.took() < Duration::from_millis(1_400), "it waited for the first");
    assert_eq!(first.answer().ok().at("/keys/0/verdict"), json!("healthy"));
    assert_eq!(chats(&alpha).len(), 1);
}

#[test]
fn disabled_unconfigured_and_keyless_providers_are_left_alone() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let off = provider(&alpha).set("enabled", json!(false));
    let gateway = Gateway::builder().provider(off).provider(provider(&beta).keyless()).start();
    let report = gateway.post("/api/keyhealth", &json!({})).ok();
    assert_eq!(report.at("/keys"), json!([]));
    assert!(alpha.calls().is_empty() && beta.calls().is_empty());
}

/// Decisions 4: what a boot costs the keys. One provider lists its models, where the first key is refused; the other has
/// no list.
#[test]
fn a_boot_costs_one_cheap_request_per_key_and_what_it_finds_counts() {
    let (alpha, beta, clock) = (mock("alpha"), mock("beta"), Clock::shifted_by(0));
    alpha.set_keys([("dead-key-0001", vec![Step::status(401)])]);
    let keys = ["dead-key-0001", "good-key-0001", "good-key-0002"];
    let gateway =
        clock.of(Gateway::builder().provider(listed(&alpha, keys)).provider(provider(&beta))).start();
    eventually("the models are listed", || lists(&alpha).len() == 2);
    assert!(chats(&beta).is_empty(), "nothing that costs within the first minute");
    clock.pass(61);
    let checked = || gateway.get("/api/alerts").ok().at("/keyHealth");
    eventually("the warm-up", || checked()["at"].is_u64());
    let verdicts: Vec<Value> =
        checked()["keys"].as_array().expect("a list").iter().map(|key| key["verdict"].clone()).collect();
    assert_eq!(verdicts, ["invalid", "healthy", "healthy", "healthy"]);
    let mut asked: Vec<String> = lists(&alpha).into_iter().flatten().collect();
    asked.sort();
    assert_eq!(asked, keys, "each of them once, by the list or by the warm-up");
    assert_eq!(
        (chats(&alpha).len(), chats(&beta).len()),
        (0, 1),
        "where there is no list, one small request"
    );
    gateway.chat("alpha/m").ok().after_attempts(1);
    // And the list is not fetched again while it is fresh.
    clock.pass(3 * 3_600);
    gateway.post("/api/reload", &json!({})).ok();
    gateway.chat("alpha/m").ok();
    assert_eq!(lists(&alpha).len(), 3);
}
