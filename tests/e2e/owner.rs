//! The owner's views under `/api`: that they tell what happened, count each thing once, and are for the owner only.
use std::time::Duration;

use crate::harness::*;

/// Asks the owner's view with a `Host` and further headers.
fn asked_as(gateway: &Gateway, host: &str, headers: &[(&str, &str)]) -> Answer {
    let request = Request::get("/api/providers").header("host", host);
    gateway.send(&headers.iter().fold(request, |request, (name, value)| request.header(name, value)))
}

#[test]
fn providers_and_keys_tell_how_they_do() {
    let alpha = mock("alpha");
    alpha.set_keys([("dead-key-1", vec![Step::error(401, "no such key: dead-key-1")])]);
    let gateway = Gateway::over([provider(&alpha).keys(["dead-key-1", "good-key-2"])]);
    let fresh = gateway.provider_view("alpha");
    assert_eq!(
        (&fresh["ok"], &fresh["fail"], &fresh["latencyMs"], &fresh["lastError"]),
        (&json!(0), &json!(0), &json!(0), &Value::Null)
    );
    assert_eq!(fresh["keys"][0]["status"], "unknown");
    alpha.script([Step::ok().delay_ms(50)]);
    gateway.chat("m").ok();
    gateway.chat("m").ok();
    let view = gateway.provider_view("alpha");
    assert_eq!((&view["ok"], &view["fail"]), (&json!(2), &json!(1)), "{view}");
    assert!(view["latencyMs"].as_u64().is_some_and(|ms| (50..10_000).contains(&ms)), "{view}");
    let (dead, good) = (&view["keys"][0], &view["keys"][1]);
    assert_eq!(
        (&dead["ok"], &dead["fail"], &dead["status"]),
        (&json!(0), &json!(1), &json!("invalid")),
        "{dead}"
    );
    assert!(dead["cooldownMsRemaining"].as_u64().is_some_and(|ms| ms > 800_000), "{dead}");
    assert!(dead["lastError"].as_str().is_some_and(|text| text.contains("no such key")), "{dead}");
    assert_eq!(
        (&good["ok"], &good["fail"], &good["status"], &good["lastError"]),
        (&json!(2), &json!(0), &json!("healthy"), &Value::Null)
    );
    gateway.get("/api/providers").ok().never_says("dead-key-1").never_says("good-key-2");
}

#[test]
fn the_verdict_on_a_key_is_one_of_seven_words() {
    let limited = Step::status(429).header("retry-after", 60);
    for (step, verdict) in [
        (Step::ok(), "healthy"),
        (limited, "limited"),
        (Step::status(402), "limited"),
        (Step::status(401), "invalid"),
        (Step::status(403), "forbidden"),
        (Step::status(500), "unreachable"),
        (Step::close(), "unreachable"),
    ] {
        let (_alpha, gateway) = gateway_over([step]);
        gateway.chat("m");
        let view = gateway.provider_view("alpha");
        assert_eq!(view["keys"][0]["status"], verdict, "{view}");
    }
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).set("enabled", json!(false))]);
    assert_eq!(gateway.provider_view("alpha")["keys"][0]["status"], "disabled");
}

#[test]
fn what_the_client_did_wrong_counts_against_nobody() {
    let refusal = json!({"error": {"message": "image has too many pixels", "type": "invalid_request_error"}});
    let (_alpha, gateway) = gateway_over([Step::json(400, &refusal)]);
    assert_eq!(gateway.chat("m").status(), 400);
    let view = gateway.provider_view("alpha");
    assert_eq!(
        (&view["fail"], &view["keys"][0]["fail"], &view["lastError"]),
        (&json!(0), &json!(0), &Value::Null)
    );
}

#[test]
fn w4_the_bar_of_a_provider_adds_up_its_keys() {
    let alpha = mock("alpha");
    alpha.set_keys([("k3", vec![Step::status(401)])]);
    let file =
        provider(&alpha).keys(["k1", "k2", "k3"]).limits(json!({"rpm": 10, "rpd": 100, "concurrency": 4}));
    let gateway = Gateway::over([file]);
    for _ in 0..4 {
        gateway.chat("m").ok();
    }
    let view = gateway.provider_view("alpha");
    let bar = |bars: &Value, key: &str| -> Value {
        let bars = bars.as_array().expect("a list");
        bars.iter().find(|bar| bar["key"] == key).cloned().unwrap_or_else(|| panic!("no {key} in {bars:?}"))
    };
    let minute = bar(&view["bars"], "rpm");
    assert_eq!(
        (&minute["used"], &minute["limit"], &minute["pct"]),
        (&json!(4), &json!(20), &json!(20)),
        "{minute}"
    );
    assert_eq!((&minute["window"], &minute["resetsAt"]), (&json!("last 60s"), &Value::Null));
    let day = bar(&view["bars"], "rpd");
    assert_eq!(day["window"], "today (UTC)");
    let now_ms =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
    let resets_in_ms = u128::from(day["resetsAt"].as_u64().expect("a time")) - now_ms;
    assert!(
        resets_in_ms <= 86_400_000 && day["resetsAt"].as_u64().is_some_and(|at| at % 86_400_000 == 0),
        "{day}"
    );
    assert_eq!(bar(&view["keys"][0]["bars"], "rpm")["limit"], json!(10));
    assert_eq!(bar(&view["bars"], "concurrency")["used"], json!(0));
}

#[test]
fn limits_of_models_stand_with_the_models() {
    let alpha = mock("alpha");
    let file = provider(&alpha)
        .set("limitsScope", json!("model"))
        .limits(json!({"rpm": 5}))
        .model("a")
        .model_with("b", json!({"limits": {"rpd": 9}}));
    let gateway = Gateway::over([file]);
    gateway.chat("alpha/b").ok();
    let view = gateway.provider_view("alpha");
    assert_eq!((&view["bars"], &view["keys"][0]["bars"]), (&json!([]), &json!([])), "{view}");
    let used = |model: usize| -> Vec<(String, f64)> {
        let bars = view["models"][model]["bars"].as_array().expect("a list");
        bars.iter()
            .map(|bar| (bar["key"].as_str().expect("a name").into(), bar["used"].as_f64().expect("a number")))
            .collect()
    };
    assert_eq!(used(0), [("rpm".to_owned(), 0.0)]);
    assert_eq!(used(1), [("rpd".to_owned(), 1.0), ("rpm".to_owned(), 1.0)]);
}

#[test]
fn w2_a_keyless_provider_has_no_keys_to_show() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).keyless().limits(json!({"rpm": 5}))]);
    gateway.chat("m").ok();
    let view = gateway.provider_view("alpha");
    assert_eq!(
        (&view["configured"], &view["authType"], &view["keys"]),
        (&json!(true), &json!("none"), &json!([]))
    );
    assert_eq!((&view["ok"], &view["bars"][0]["used"]), (&json!(1), &json!(1)), "{view}");
    assert_eq!(gateway.get("/api/stats").ok().at("/providers/usable"), json!(1));
}

#[test]
fn c8_only_real_providers_are_counted() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let settings = json!({"strategy": "round-robin"});
    let builder = Gateway::builder().provider(provider(&alpha)).provider(provider(&beta)).settings(settings);
    let mut gateway = builder.start();
    for _ in 0..4 {
        gateway.chat("auto").ok();
    }
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (2, 2), "in turn");
    let expect_two = |gateway: &Gateway| {
        let stats = gateway.get("/api/stats").ok();
        assert_eq!(stats.at("/requests/providers"), json!(2), "{stats}");
        assert_eq!(stats.at("/providers"), json!({"total": 2, "enabled": 2, "configured": 2, "usable": 2}));
        let ids: Vec<Value> = gateway
            .get("/api/providers")
            .ok()
            .at("/providers")
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| one["id"].clone())
            .collect();
        assert_eq!(ids, ["alpha", "beta"]);
    };
    expect_two(&gateway);
    gateway.restart();
    expect_two(&gateway);
}

#[test]
fn c8_each_request_counts_once_whatever_became_of_it() {
    let (alpha, beta) = (mock_that("alpha", [Step::status(500)]), mock("beta"));
    let small = provider(&beta).priority(2).model_with("m", json!({"context": 2_000}));
    let gateway =
        Gateway::over([provider(&alpha).priority(1).model_with("m", json!({"context": 2_000})), small]);
    gateway.chat("m").ok().after_attempts(2);
    gateway.chat("nothing-of-the-kind").error(404, "model_not_found");
    let long = json!([{"role": "user", "content": "word ".repeat(10_000)}]);
    gateway.chat_with("m", json!({"messages": long})).error(413, "context_length_exceeded");
    gateway.stream("m").well_formed_stream();
    let stats = gateway.get("/api/stats").ok();
    assert_eq!(stats.at("/requests"), json!({"requests": 4, "ok": 2, "fail": 2, "providers": 2}), "{stats}");
}

#[test]
fn a_turn_is_logged_as_it_went() {
    let (_alpha, _beta, gateway) = two_with_first([Step::error(500, "engine on fire")]);
    let answer = gateway.chat("m").ok();
    let turn = gateway.last_turn(1);
    assert_eq!(turn["id"].as_str(), answer.header("x-request-id"));
    for (member, expected) in [
        ("requestedModel", json!("m")),
        ("resolution", json!("model:m")),
        ("providerId", json!("beta")),
        ("modelId", json!("m")),
        ("status", json!(200)),
        ("stream", json!(false)),
        ("error", Value::Null),
        ("cache", Value::Null),
        ("refit", Value::Null),
    ] {
        assert_eq!(turn[member], expected, "{member} of {turn}");
    }
    let attempts = turn["attempts"].as_array().expect("a list");
    assert_eq!(
        (attempts.len(), &attempts[0]["providerId"], &attempts[0]["status"]),
        (1, &json!("alpha"), &json!(500))
    );
    assert!(attempts[0]["error"].as_str().is_some_and(|text| text.contains("engine on fire")), "{turn}");
    assert_eq!(turn["tokensIn"], answer.at("/usage/prompt_tokens"));
    assert_eq!(turn["tokensOut"], answer.at("/usage/completion_tokens"));
    gateway.chat("nothing-of-the-kind");
    let turn = gateway.last_turn(2);
    assert_eq!(
        (&turn["status"], &turn["error"], &turn["providerId"]),
        (&json!(404), &json!("model_not_found"), &Value::Null)
    );
    assert_eq!(gateway.get("/api/logs?limit=1").ok().at("/logs").as_array().map(Vec::len), Some(1));
    gateway.get("/api/logs?limit=99999").ok();
    for odd in ["limit=0", "limit=-1", "limit=x", "limit=99999999999999999999", "limt=5"] {
        gateway.get(&format!("/api/logs?{odd}")).error(400, "invalid_body");
    }
}

#[test]
fn b2_b3_a_stream_that_broke_is_logged_as_failed_and_its_tokens_count() {
    let half =
        Step::writes([Act::write(event(&delta(&"half a story ".repeat(20)))), Act::Pause(50), Act::Reset]);
    let alpha = mock_that("alpha", [half, Step::events([delta("half")]).without_done()]);
    let gateway = Gateway::over([provider(&alpha).limits(json!({"tpm": 100_000}))]);
    gateway.stream("m").broken_stream();
    let turn = gateway.last_turn(1);
    assert_eq!((&turn["status"], &turn["error"]), (&json!(502), &json!("all_attempts_failed")), "{turn}");
    assert!(turn["tokensOut"].as_u64().is_some_and(|tokens| tokens > 20), "{turn}");
    let view = gateway.provider_view("alpha");
    assert_eq!((&view["ok"], &view["fail"]), (&json!(0), &json!(1)), "{view}");
    assert!(view["bars"][0]["used"].as_f64().is_some_and(|used| used > 20.0), "{view}");
    assert_eq!(gateway.get("/api/stats").ok().at("/requests/fail"), json!(1));
}

#[test]
fn w6_a_client_that_left_is_logged_as_499_with_what_it_used() {
    let story = Step::say("a long story ".repeat(50)).drip_ms(20);
    let alpha = mock_that("alpha", [story, Step::ok()]);
    let gateway = Gateway::over([provider(&alpha).limits(json!({"tpm": 100_000, "rpm": 100}))]);
    let mut live = gateway.open_stream("m");
    for _ in 0..5 {
        live.first_text();
    }
    live.leave();
    let turn = gateway.last_turn(1);
    assert_eq!(turn["status"], json!(499), "{turn}");
    assert!(turn["tokensOut"].as_u64().is_some_and(|tokens| tokens > 0), "{turn}");
    let view = gateway.provider_view("alpha");
    let used = |key: &str| {
        view["bars"].as_array().and_then(|bars| bars.iter().find(|bar| bar["key"] == key)?["used"].as_f64())
    };
    assert_eq!(used("rpm"), Some(1.0), "{view}");
    assert!(used("tpm").is_some_and(|used| used > 0.0), "{view}");
    assert_eq!((&view["fail"], &view["cooldownMsRemaining"]), (&json!(0), &json!(0)));
    gateway.chat("m").ok().after_attempts(1);
}

#[test]
fn c4_the_log_outlives_a_restart() {
    let (_alpha, _beta, mut gateway) = two_with_first([Step::status(500), Step::ok()]);
    gateway.chat("m").ok();
    gateway.chat("nothing-of-the-kind");
    gateway.restart();
    gateway.chat("beta/m").ok();
    let logs = gateway.get("/api/logs").ok().at("/logs");
    let told: Vec<_> = logs
        .as_array()
        .expect("a list")
        .iter()
        .map(|turn| (&turn["requestedModel"], &turn["status"]))
        .collect();
    let expected = [("beta/m", 200), ("nothing-of-the-kind", 404), ("m", 200)]
        .map(|(model, status)| (json!(model), json!(status)));
    assert_eq!(told, expected.iter().map(|(model, status)| (model, status)).collect::<Vec<_>>(), "{logs}");
    assert_eq!((&logs[2]["providerId"], &logs[2]["modelId"]), (&json!("beta"), &json!("m")), "{logs}");
    assert_eq!(
        (&logs[2]["attempts"][0]["providerId"], &logs[2]["attempts"][0]["status"]),
        (&json!("alpha"), &json!(500))
    );
    assert_eq!(gateway.get("/api/logs?limit=2").ok().at("/logs").as_array().map(Vec::len), Some(2));
}

#[test]
fn benches_can_be_lifted_one_by_one_or_all_at_once() {
    let alpha = mock_that("alpha", [Step::status(401), Step::ok()]);
    let gateway = Gateway::over([provider(&alpha)]);
    gateway.chat("m");
    let bench = gateway.get("/api/benches").ok().at("/benches/0");
    let delete = |path: &str| gateway.send(&Request::new("DELETE", path));
    delete("/api/benches/999999").error(404, "not_found");
    delete("/api/benches/x").error(404, "not_found");
    assert_eq!(delete(&format!("/api/benches/{}", bench["id"])).ok().at("/lifted"), json!(1));
    gateway.chat("m").ok();
    assert_eq!(delete("/api/benches").ok().at("/lifted"), json!(0));
}

#[test]
fn the_views_are_for_the_owner_only() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha)]);
    asked_as(&gateway, "localhost", &[]).ok();
    for (host, headers) in [
        ("gateway.example", &[][..]),
        ("localhost", &[("x-forwarded-for", "10.0.0.9")]),
        ("localhost", &[("forwarded", "for=10.0.0.9")]),
    ] {
        let refused = asked_as(&gateway, host, headers);
        assert!([403, 421].contains(&refused.status()), "{host} {headers:?}: {refused}");
    }
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .env("FREEWAY_ADMIN_KEY", "admin-secret")
        .client_key("fw-app")
        .start();
    for path in ["/api/providers", "/api/logs", "/api/stats", "/api/benches"] {
        gateway.get(path).error(403, "admin_required");
        gateway.send(&Request::get(path)).error(401, "invalid_api_key");
        gateway.send(&Request::get(path).key("admin-secret")).ok();
    }
    gateway.send(&Request::new("POST", "/api/reload").key("fw-app")).error(403, "admin_required");
    gateway.send(&Request::chat(&hello("m")).key("admin-secret")).ok();
}

#[test]
fn views_answer_while_every_worker_is_busy() {
    let alpha = mock_that("alpha", [Step::ok().delay_ms(2_000)]);
    let settings = json!({"server": {"workers": 1, "queue": 0}});
    let gateway = Gateway::builder().provider(provider(&alpha)).settings(settings).start();
    let mut busy = gateway.wire();
    busy.send(Request::chat(&hello("m")).bytes());
    eventually("the only worker is busy", || chats(&alpha).len() == 1);
    let view = gateway.get("/api/providers").ok();
    assert!(view.took() < Duration::from_secs(2), "{view}");
    assert_eq!(view.at("/providers/0/ok"), json!(0), "the call is still under way");
    gateway.chat("m").error(503, "overloaded");
    busy.answer().ok();
}

#[test]
fn a_provider_card_has_all_that_the_owner_needs() {
    let alpha = mock("alpha");
    let file = provider(&alpha)
        .set("signup", json!("https://alpha.example/keys"))
        .set("billing", json!("mixed"))
        .set("terms", json!({"verdict": "caution", "note": "read them"}))
        .limits(json!({"rpm": 10}));
    let bare = json!({"id": "bare", "baseUrl": "https://bare.example/${BARE_ACCOUNT}", "auth": {"envKeys": ["BARE_KEY", "BARE_TOKEN"]}});
    let gateway = Gateway::builder().provider(file).file("providers/bare.json", bare.to_string()).start();
    gateway.chat("m").ok();
    gateway.stream("m").well_formed_stream();
    let view = gateway.provider_view("alpha");
    for (member, expected) in [
        ("health", json!("healthy")),
        ("billing", json!("mixed")),
        ("keyless", json!(false)),
        ("usable", json!(true)),
        ("reason", Value::Null),
        ("variables", json!([])),
        ("successPct", json!(100.0)),
        ("modelCount", json!(1)),
        ("modelsDiscovered", json!(0)),
        ("override", Value::Null),
        ("signup", json!("https://alpha.example/keys")),
        ("terms", json!({"verdict": "caution", "note": "read them"})),
    ] {
        assert_eq!(view[member], expected, "{member} of {view}");
    }
    assert!(view["firstTokenMs"].is_u64() && view["wholeMs"].is_u64(), "{view}");
    assert_eq!(
        (&view["models"][0]["ref"], &view["models"][0]["source"]),
        (&json!("alpha/m"), &json!("declared"))
    );
    assert_eq!((&view["keys"][0]["index"], &view["keys"][0]["checkedAt"]), (&json!(0), &Value::Null));
    let bare = gateway.provider_view("bare");
    assert_eq!((&bare["usable"], &bare["reason"]), (&json!(false), &json!("missing_variables")), "{bare}");
    assert_eq!((&bare["variables"], &bare["health"]), (&json!(["BARE_ACCOUNT"]), &json!("unknown")));
    let short = gateway.get("/api/providers?models=0").ok();
    assert!(short.at("/providers/0").get("models").is_none(), "{short}");
    assert_eq!(short.at("/providers/0/modelCount"), json!(1));
}

#[test]
fn models_are_listed_in_pages_and_found() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let many = (0..130).fold(provider(&alpha).priority(1), |file, n| file.model(&format!("model-{n:03}")));
    let other =
        provider(&beta).priority(2).model_with("special", json!({"label": "Grand One", "caps": ["embed"]}));
    let gateway = Gateway::builder().provider(many).provider(other).start();
    let ids = |path: &str| -> (u64, Vec<String>) {
        let page = gateway.get(path).ok();
        assert_eq!(page.at("/total"), json!(131), "{page}");
        let models = page.at("/models");
        let ids = models
            .as_array()
            .expect("a list")
            .iter()
            .map(|model| model["ref"].as_str().expect("a name").to_owned());
        (page.at("/matched").as_u64().expect("a number"), ids.collect())
    };
    let (matched, first) = ids("/api/models");
    assert_eq!((matched, first.len(), first[0].as_str()), (131, 100, "alpha/model-000"));
    assert_eq!(ids("/api/models?limit=50&offset=120").1.len(), 11);
    assert_eq!(ids("/api/models?limit=99999&enabled=true").1.len(), 131);
    assert_eq!(ids("/api/models?q=grand%20beta"), (1, vec!["beta/special".to_owned()]));
    assert_eq!(ids("/api/models?cap=embed&provider=alpha").0, 0);
    assert_eq!(ids("/api/models?offset=4294967295"), (131, Vec::new()));
    for odd in ["limit=0", "limit=x", "offset=99999999999999999999", "enabled=maybe", "cap=fly", "capp=chat"]
    {
        gateway.get(&format!("/api/models?{odd}")).error(400, "invalid_body");
    }
}

#[test]
fn the_catalog_names_what_stands_for_several() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let file = |mock: &MockUpstream| provider(mock).model_with("same-8b", json!({"alias": ["fast"]}));
    let settings = json!({"aliases": {"quick": "alpha/same-8b"}, "profiles": {"work": {"models": ["beta/*"], "strategy": "fastest"}}, "activeProfile": "work"});
    let gateway = Gateway::builder().provider(file(&alpha)).provider(file(&beta)).settings(settings).start();
    let catalog = gateway.get("/api/catalog").ok().json();
    assert_eq!(
        catalog["unified"],
        json!([{"name": "same-8b", "label": "same-8b", "members": ["alpha/same-8b", "beta/same-8b"], "merged": false}])
    );
    assert_eq!(
        catalog["profiles"],
        json!([{"name": "work", "models": ["beta/*"], "strategy": "fastest", "active": true, "source": "file"}])
    );
    assert_eq!(
        catalog["aliases"],
        json!([
            {"name": "quick", "target": "alpha/same-8b", "resolvesTo": ["alpha/same-8b"], "source": "file"},
            {"name": "fast", "target": null, "resolvesTo": ["alpha/same-8b", "beta/same-8b"], "source": "provider"},
        ])
    );
    assert_eq!(catalog["activeProfile"], "work");
    assert!(catalog["caps"].as_array().is_some_and(|caps| caps.contains(&json!("vision"))));
}
