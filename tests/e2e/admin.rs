//! What the owner is told beside the log and the provider cards: settings, alerts, forecasts, previews.
use crate::harness::*;

fn setting(gateway: &Gateway, name: &str) -> Value {
    let all = gateway.get("/api/settings").ok().at("/settings");
    let found = all.as_array().and_then(|all| all.iter().find(|setting| setting["name"] == name)).cloned();
    found.unwrap_or_else(|| panic!("no setting {name} in {all}"))
}

#[test]
fn every_setting_says_where_its_value_came_from() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .settings(json!({"maxAttempts": 5, "aliases": {"a": "alpha/m"}, "strategy": "fastest"}))
        .file(".env", "FREEWAY_STRATEGY=round-robin\nFREEWAY_ADMIN_KEY=the-admin-key\n")
        .env("FREEWAY_LOG", "debug")
        .client_key("fw-the-client-key")
        .start();
    let get = |path: &str| gateway.send(&Request::get(path).key("the-admin-key")).ok();
    let all = get("/api/settings").never_says("the-admin-key").never_says("fw-the-client-key");
    let of = |name: &str| -> Value {
        let settings = all.at("/settings");
        let found =
            settings.as_array().and_then(|all| all.iter().find(|setting| setting["name"] == name)).cloned();
        found.unwrap_or_else(|| panic!("no setting {name}"))
    };
    let check = |name: &str, value: Value, source: &str, variable: Value| {
        let found = of(name);
        assert_eq!(
            (&found["value"], &found["source"], &found["variable"]),
            (&value, &json!(source), &variable),
            "{found}"
        );
    };
    check("maxAttempts", json!(5), "file", Value::Null);
    check("strategy", json!("round-robin"), ".env", json!("FREEWAY_STRATEGY"));
    check("log.level", json!("debug"), "environment", json!("FREEWAY_LOG"));
    check("server.queue", json!(128), "default", Value::Null);
    check("adminKey", Value::Null, ".env", json!("FREEWAY_ADMIN_KEY"));
    check("keys", json!(1), "environment", json!("FREEWAY_KEYS"));
    assert_eq!((&of("adminKey")["hidden"], &of("adminKey")["set"]), (&json!(true), &json!(true)));
    assert_eq!(
        (&of("maxAttempts")["min"], &of("maxAttempts")["max"], &of("maxAttempts")["type"]),
        (&json!(1), &json!(20), &json!("whole"))
    );
    assert!(of("strategy")["words"].as_array().is_some_and(|words| words.contains(&json!("fastest"))));
    assert!(all.at("/restart").as_array().is_some_and(|names| names.contains(&json!("port"))), "{all}");
    assert!(all.at("/paths/data").as_str().is_some_and(|path| path.ends_with("data")), "{all}");
}

#[test]
fn overridden_names_show_as_overrides_among_the_settings() {
    let (_alpha, gateway) = gateway_over([Step::ok()]);
    let body = json!({"target": "alpha/m"});
    gateway.send(&Request::new("PUT", "/api/overrides/aliases/quick").body(body.to_string())).ok();
    let aliases = setting(&gateway, "aliases");
    assert_eq!((&aliases["value"], &aliases["source"]), (&json!({"quick": "alpha/m"}), &json!("override")));
    assert_eq!(setting(&gateway, "profiles")["source"], "default");
}

#[test]
fn previews_show_what_was_said_and_stay_in_memory() {
    let alpha = mock("alpha");
    alpha.script([Step::say("a tale of a fox"), Step::say("é".repeat(2_000)), Step::say("streamed words")]);
    let mut gateway = Gateway::over([provider(&alpha).keys(["alpha-live-key-0001"])]);
    let ask = |gateway: &Gateway, question: &str| {
        let messages = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "old"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": [{"type": "text", "text": question}]}]);
        gateway.chat_with("m", json!({"messages": messages})).ok();
    };
    ask(&gateway, "tell me of alpha-live-key-0001");
    let preview = gateway.last_turn(1)["preview"].clone();
    assert_eq!(preview["response"], "a tale of a fox");
    assert!(
        preview["prompt"]
            .as_str()
            .is_some_and(|text| text.starts_with("tell me of ") && !text.contains("live-key")),
        "{preview}"
    );
    ask(&gateway, &"q".repeat(1_501));
    let preview = gateway.last_turn(2)["preview"].clone();
    assert!(
        preview["prompt"].as_str().is_some_and(|text| text.ends_with("q… 1 more characters")),
        "{preview}"
    );
    assert!(
        preview["response"].as_str().is_some_and(|text| text.ends_with("é… 500 more characters")),
        "{preview}"
    );
    gateway.stream("m").well_formed_stream();
    assert_eq!(gateway.last_turn(3)["preview"], json!({"prompt": "hi", "response": "streamed words"}));
    gateway.restart();
    let logs = gateway.get("/api/logs").ok();
    assert_eq!(logs.at("/logs/0/preview"), Value::Null, "{logs}");
    for file in std::fs::read_dir(gateway.folder().join("data")).expect("the folder").flatten() {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        assert!(!lossy(&bytes).contains("a tale of a fox"), "{:?} holds what was said", file.path());
    }
}

#[test]
fn previews_can_be_switched_off() {
    let alpha = mock("alpha");
    let settings = json!({"log": {"previews": false}});
    let gateway = Gateway::builder().provider(provider(&alpha)).settings(settings).start();
    gateway.chat("m").ok();
    assert_eq!(gateway.last_turn(1)["preview"], Value::Null);
}

#[test]
fn c11_alerts_tell_when_a_quota_runs_dry_worst_first() {
    let (alpha, beta, gamma) = (mock("alpha"), mock("beta"), mock("gamma"));
    let gateway = Gateway::over([
        provider(&alpha).priority(1).limits(json!({"rpd": 10, "concurrency": 3})),
        provider(&beta).priority(2).limits(json!({"rpmo": 4})),
        provider(&gamma).priority(3).limits(json!({"rpm": 1_000})),
    ]);
    let calm = gateway.get("/api/alerts").ok();
    assert_eq!(calm.at("/alerts"), json!([]), "{calm}");
    for model in ["alpha/m", "beta/m", "gamma/m"] {
        for _ in 0..if model == "alpha/m" { 9 } else { 4 } {
            gateway.chat(model).ok();
        }
    }
    let alerts = gateway.get("/api/alerts").ok();
    let told: Vec<(Value, Value)> = alerts
        .at("/alerts")
        .as_array()
        .expect("a list")
        .iter()
        .map(|alert| (alert["level"].clone(), alert["providerId"].clone()))
        .collect();
    assert_eq!(told, [(json!("exhausted"), json!("beta")), (json!("critical"), json!("alpha"))], "{alerts}");
    let alpha_forecast = alerts.at("/forecasts/0");
    assert_eq!(
        (&alpha_forecast["providerId"], &alpha_forecast["level"]),
        (&json!("alpha"), &json!("critical"))
    );
    let line = &alpha_forecast["forecasts"][0];
    assert_eq!(
        (&line["key"], &line["used"], &line["limit"], &line["pct"]),
        (&json!("rpd"), &json!(9), &json!(10), &json!(90))
    );
    assert!(line["burnPerHour"].as_f64().is_some_and(|burn| (50.0..60.0).contains(&burn)), "{line}");
    assert_eq!(
        alpha_forecast["forecasts"].as_array().map(Vec::len),
        Some(1),
        "calls in flight are not used up"
    );
    let quiet = alerts.at("/forecasts/2");
    assert_eq!((&quiet["level"], &quiet["headline"]), (&json!("ok"), &Value::Null), "{quiet}");
    assert_eq!((alerts.at("/calibration"), alerts.at("/keyHealth/at")), (json!([]), Value::Null));
}

#[test]
fn refused_keys_and_bad_files_are_alerts() {
    let (_alpha, gateway) = gateway_over([Step::error(401, "no such key")]);
    gateway.chat("m");
    gateway.write("providers/broken.json", "{");
    gateway.reload();
    let alerts = gateway.get("/api/alerts").ok().never_says("alpha-key");
    let of = |source: &str| -> Vec<Value> {
        let all = alerts.at("/alerts");
        all.as_array().expect("a list").iter().filter(|alert| alert["source"] == source).cloned().collect()
    };
    assert_eq!((of("key-health").len(), of("registry").len()), (1, 1), "{alerts}");
    assert!(
        of("key-health")[0]["message"].as_str().is_some_and(|text| text.contains("is invalid")),
        "{alerts}"
    );
    assert_eq!(
        (&of("registry")[0]["level"], &of("key-health")[0]["providerId"]),
        (&json!("critical"), &json!("alpha"))
    );
    assert_eq!(alerts.at("/keyHealth/keys/0/verdict"), json!("invalid"));
}

#[test]
fn stats_tell_what_the_page_begins_with() {
    let (_alpha, gateway) = gateway_over([Step::ok()]);
    gateway.chat("m").ok();
    let stats = gateway.get("/api/stats").ok();
    assert_eq!(
        (stats.at("/ready"), stats.at("/reasons"), stats.at("/activeProfile")),
        (json!(true), json!([]), Value::Null)
    );
    assert_eq!(stats.at("/models"), json!({"total": 1, "enabled": 1, "discovered": 0}));
    assert_eq!(stats.at("/streams"), json!({"open": 0, "max": 16}));
    assert_eq!(stats.at("/listen/host"), json!("127.0.0.1"));
    assert!(stats.at("/version").is_string() && stats.at("/rows/dropped") == json!(0), "{stats}");
}

#[test]
fn a_large_catalog_is_answered_whole() {
    let mocks: Vec<MockUpstream> = (0..2).map(|n| mock(&format!("p{n}"))).collect();
    let builder = (0..40).fold(Gateway::builder(), |builder, n| {
        let file = Provider::at(&format!("prov-{n:02}"), &mocks[n % 2].url())
            .limits(json!({"rpm": 30, "rpd": 1_000}));
        let file = file.keys(["key-one-0001", "key-two-0002", "key-three-03"]);
        builder.provider((0..38).fold(file, |file, m| {
            file.model_with(&format!("model-{m}"), json!({"label": format!("Model {m}")}))
        }))
    });
    let gateway = builder.start();
    let mut fastest = [std::time::Duration::MAX; 2];
    for (path, fastest) in ["/api/providers", "/api/providers?models=0"].into_iter().zip(&mut fastest) {
        for _ in 0..10 {
            let answer = gateway.get(path).ok();
            assert_eq!(answer.at("/providers").as_array().map(Vec::len), Some(40));
            *fastest = answer.took().min(*fastest);
        }
    }
    println!("40 providers, 1520 models: {fastest:?} with and without models");
    assert_eq!(
        gateway.get("/api/models?limit=500&offset=1500").ok().at("/models").as_array().map(Vec::len),
        Some(20)
    );
}
