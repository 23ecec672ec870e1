//! The model list, and what model strings mean.
use crate::harness::*;

fn ids(answer: &Answer) -> Vec<String> {
    let data = answer.at("/data");
    let ids =
        data.as_array().expect("a list").iter().map(|model| model["id"].as_str().expect("an id").to_owned());
    ids.collect()
}

/// One provider with odd ids and an alias.
fn with_odd_ids() -> (MockUpstream, Gateway) {
    let alpha = mock("alpha");
    let odd = provider(&alpha)
        .model("acme/big-2:free")
        .model("模")
        .model_with("small", json!({"alias": ["quick"]}));
    let gateway = Gateway::over([odd]);
    (alpha, gateway)
}

#[test]
fn http_15_the_list_has_what_interfaces_need() {
    let (_alpha, gateway) = with_odd_ids();
    let answer = gateway.get("/v1/models").ok();
    assert_eq!(answer.at("/object"), "list");
    for model in answer.at("/data").as_array().expect("a list") {
        assert_eq!(model["object"], "model", "{model}");
        assert!(model["created"].is_u64() && model["owned_by"].is_string(), "{model}");
    }
    let mut ids = ids(&answer);
    for id in ["alpha/acme/big-2:free", "alpha/small", "quick", "auto"] {
        assert!(ids.iter().any(|known| known == id), "{id} is not in {ids:?}");
    }
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), all, "no duplicates");
}

#[test]
fn http_15_a_cooling_provider_stays_in_the_list() {
    let (_alpha, gateway) = gateway_over([Step::status(500)]);
    let before = ids(&gateway.get("/v1/models").ok());
    gateway.chat("m");
    assert_eq!(ids(&gateway.get("/v1/models").ok()), before);
}

#[test]
fn http_09_every_listed_id_can_be_fetched() {
    let (_alpha, gateway) = with_odd_ids();
    for id in ids(&gateway.get("/v1/models").ok()) {
        let encoded: String = id.bytes().map(|byte| format!("%{byte:02X}")).collect();
        assert_eq!(gateway.get(&format!("/v1/models/{encoded}")).ok().at("/id"), id.as_str());
        if id.is_ascii() {
            assert_eq!(gateway.get(&format!("/v1/models/{id}")).ok().at("/id"), id.as_str());
        }
    }
}

#[test]
fn http_09_what_is_not_there_is_404_and_what_is_no_path_is_400() {
    let (_alpha, gateway) = with_odd_ids();
    gateway.get("/v1/models/no-such").error(404, "model_not_found");
    // What a request would find is no entry, but may be what was meant.
    for near in ["smal1", "alpha/smal"] {
        let answer = gateway.get(&format!("/v1/models/{near}")).error(404, "model_not_found");
        assert_eq!(answer.at("/freeway/suggestions/0"), "alpha/small", "{near}: {answer}");
    }
    assert_eq!(gateway.get("/v1/models/%ZZ").status(), 400);
    assert_eq!(gateway.get("/v1/models/..%2f").status(), 404);
}

#[test]
fn http_08_head_is_get_without_a_body() {
    let (_alpha, gateway) = gateway_over([]);
    let length = gateway.get("/v1/models").ok().body.len().to_string();
    let mut wire = gateway.wire();
    let head = wire.ask(&Request::new("HEAD", "/v1/models"));
    assert_eq!((head.status(), head.header("content-length")), (200, Some(length.as_str())));
    wire.ask(&Request::new("HEAD", "/healthz")).ok();
    wire.ask(&Request::get("/v1/models")).ok();
}

#[test]
fn model_strings_mean_what_they_say() {
    let (alpha, gateway) = with_odd_ids();
    let routes = [
        ("auto", "auto"),
        ("", "auto"),
        ("Any", "auto"),
        ("alpha/small", "pin:alpha/small"),
        ("alpha/*", "pin:alpha/*"),
        ("quick", "alias:quick"),
        ("acme/big-2:free", "model:acme/big-2:free"),
        ("big-2", "fuzzy:big-2"),
    ];
    for (model, route) in routes {
        assert_eq!(gateway.chat(model).ok().header("x-freeway-route"), Some(route), "for {model:?}");
    }
    let last = chats(&alpha).last().map(|call| call.json()["model"].clone());
    assert_eq!(last, Some(json!("acme/big-2:free")));
}

#[test]
fn no_model_at_all_is_auto() {
    let (_alpha, gateway) = gateway_over([]);
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(gateway.post("/v1/chat/completions", &body).ok().header("x-freeway-route"), Some("auto"));
}

#[test]
fn a_name_that_means_nothing_is_404_with_suggestions() {
    let (alpha, gateway) = with_odd_ids();
    let answer = gateway.chat("smal1").error(404, "model_not_found").after_attempts(0);
    let suggestions = answer.at("/freeway/suggestions");
    assert!(suggestions.as_array().is_some_and(|all| all.contains(&json!("alpha/small"))), "{suggestions}");
    gateway.chat_with("m", json!({"models": ["smal1"]})).error(404, "model_not_found").about("models");
    assert!(alpha.calls().is_empty());
}

#[test]
fn a7_names_of_the_language_are_no_models() {
    let (_alpha, gateway) = gateway_over([]);
    for name in ["constructor", "__proto__", "toString"] {
        gateway.chat(name).error(404, "model_not_found");
    }
}

#[test]
fn a7_aliases_that_run_in_circles_are_a_configuration_error() {
    let exit = Gateway::builder().settings(json!({"aliases": {"x": "y", "y": "x"}})).refusal();
    assert_eq!(exit.code, Some(78), "{exit:?}");
    assert!(exit.log.contains("aliases"), "{exit:?}");
}

#[test]
fn a8_a_setting_of_the_wrong_type_refuses_and_says_where() {
    for (settings, path) in [
        (json!({"guard": {"maxBodyBytes": "8mb"}}), "guard.maxBodyBytes"),
        (json!({"strategy": "prioritty"}), "strategy"),
        (json!({"maxAttempts": -1}), "maxAttempts"),
        (json!({"guard": {"scan": {"mode": "blok"}}}), "guard.scan.mode"),
        (json!({"guard": {"perKey": {"rpm": "60"}}}), "guard.perKey.rpm"),
        (json!({"guard": [1]}), "guard"),
        (json!({"adminKey": ""}), "adminKey"),
        (json!({"adminKey": 7}), "adminKey"),
        (json!({"keys": ["fine", 7]}), "keys[1]"),
        (json!({"port": 70_000}), "port"),
        (json!({"port": 8_787.5}), "port"),
        (json!({"timeoutMs": "60s"}), "timeoutMs"),
        (json!({"cache": {"semantic": {"threshold": 2}}}), "cache.semantic.threshold"),
        (json!({"server": {"workers": 0}}), "server.workers"),
        (json!({"aliases": {"x": 3}}), "aliases.x"),
    ] {
        let exit = Gateway::builder().settings(settings).refusal();
        assert_eq!(exit.code, Some(78), "{exit:?}");
        assert!(exit.log.contains(path), "{path} is not named in {exit:?}");
    }
}

#[test]
fn a8_a_variable_of_the_wrong_type_refuses_and_says_which() {
    for (name, value) in
        [("FREEWAY_STRATEGY", "quickest"), ("FREEWAY_LOG", "loud"), ("FREEWAY_KEYS", "fine,with space")]
    {
        let exit = Gateway::builder().env(name, value).refusal();
        assert!(exit.code == Some(78) && exit.log.contains(name), "{name}: {exit:?}");
    }
    let exit = Gateway::builder().env("FREEWAY_PORT", "eighty").refusal();
    assert!(exit.code == Some(78) && exit.log.contains("FREEWAY_PORT"), "{exit:?}");
}

#[test]
fn a8_an_unknown_setting_warns_and_says_what_was_meant() {
    let alpha = mock("alpha");
    let settings = json!({"stratgy": "fastest", "guard": {"maxMesages": 3}, "//": "a comment"});
    let gateway = Gateway::builder().provider(provider(&alpha)).settings(settings).start();
    gateway.chat("m").ok();
    let issues = gateway.get("/api/providers").ok().at("/issues");
    assert_eq!(issues.as_array().map(Vec::len), Some(2), "{issues}");
    for hint in ["strategy", "guard.maxMessages"] {
        assert!(issues.to_string().contains(hint), "{hint} is not in {issues}");
    }
}

#[test]
fn b18_a_provider_without_a_model_is_nothing() {
    let (alpha, gateway) = gateway_over([]);
    for name in ["alpha/", "alpha/ ", "/", "-"] {
        gateway.chat(name).error(404, "model_not_found");
    }
    assert!(alpha.calls().is_empty());
}

#[test]
fn b18_vectors_of_a_chat_model_are_refused() {
    let (alpha, gateway) = gateway_over([]);
    assert_eq!(gateway.embed("alpha/m", json!("x")).status(), 400);
    assert!(alpha.calls().is_empty());
}

#[test]
fn b18_chat_with_an_embedding_model_is_refused() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).model("m").embed_model("e")]);
    assert_eq!(gateway.chat("alpha/e").status(), 400);
    assert!(chats(&alpha).is_empty());
}

#[test]
fn a_list_of_models_is_tried_in_its_order() {
    let (alpha, beta) = (mock("alpha"), mock_that("beta", [Step::status(500)]));
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    gateway
        .chat_with("auto", json!({"models": ["beta/m", "alpha/m"]}))
        .ok()
        .served_by("alpha")
        .after_attempts(2);
    assert_eq!(chats(&beta).len(), 1);
}

#[test]
fn a_pin_never_leaves_its_provider() {
    let (_alpha, beta, gateway) = two_with_first([Step::status(500)]);
    gateway.chat("alpha/m").error(502, "all_attempts_failed");
    assert!(chats(&beta).is_empty());
}

#[test]
fn discovered_models_are_served() {
    let alpha = mock("alpha");
    alpha.set_models(["found-chat"]);
    let gateway = Gateway::over([provider(&alpha).set("modelsEndpoint", json!("/models"))]);
    eventually("discovery finds the model", || {
        ids(&gateway.get("/v1/models").ok()).iter().any(|id| id == "alpha/found-chat")
    });
    gateway.chat("alpha/found-chat").ok();
}
