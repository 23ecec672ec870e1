//! What the owner changes beside the files: that it counts at once, shows, survives, and never touches a provider file.
use crate::harness::*;

fn put(gateway: &Gateway, path: &str, body: &Value) -> Answer {
    gateway.send(&Request::new("PUT", path).body(body.to_string()))
}

fn patch(gateway: &Gateway, path: &str, body: &Value) -> Answer {
    gateway.send(&Request::new("PATCH", path).body(body.to_string()))
}

fn delete(gateway: &Gateway, path: &str) -> Answer {
    gateway.send(&Request::new("DELETE", path))
}

/// Two providers with the model `m`, `alpha` before `beta`.
fn two() -> (MockUpstream, MockUpstream, Gateway) {
    two_with_first([Step::ok()])
}

fn files(gateway: &Gateway) -> Vec<String> {
    ["alpha", "beta"]
        .map(|id| {
            std::fs::read_to_string(gateway.folder().join(format!("providers/{id}.json"))).expect("the file")
        })
        .to_vec()
}

#[test]
fn c4_a_switched_off_provider_stays_off_over_a_reload_and_a_restart() {
    let (alpha, _beta, mut gateway) = two();
    let before = files(&gateway);
    let off = json!({"enabled": false});
    let answer = gateway.post("/api/providers/alpha/enabled", &off).ok();
    assert_eq!(answer.json(), json!({"ok": true, "id": "alpha", "enabled": false}));
    gateway.chat("m").ok().served_by("beta");
    let view = gateway.provider_view("alpha");
    assert_eq!((&view["enabled"], &view["override"]), (&json!(false), &off), "{view}");
    gateway.reload();
    gateway.chat("m").ok().served_by("beta");
    gateway.restart();
    gateway.chat("m").ok().served_by("beta");
    assert!(chats(&alpha).is_empty());
    gateway.post("/api/providers/alpha/enabled", &json!({"enabled": true})).ok();
    gateway.chat("m").ok().served_by("alpha");
    assert_eq!(files(&gateway), before, "provider files are the owner's");
}

#[test]
fn switching_needs_a_sound_body_and_a_provider() {
    let (_alpha, _beta, gateway) = two();
    let post = |id: &str, body: Value| gateway.post(&format!("/api/providers/{id}/enabled"), &body);
    post("alfa", json!({"enabled": false})).error(404, "not_found");
    post("alpha", json!({})).error(400, "invalid_body").about("enabled");
    post("alpha", json!({"enabled": "no"})).error(400, "invalid_body").about("enabled");
    post("alpha", json!({"enabled": true, "on": 1})).error(400, "invalid_body").about("on");
    post("alpha", json!([])).error(400, "invalid_body");
    post("%zz", json!({"enabled": false})).error(400, "");
    let broken = Request::new("POST", "/api/providers/alpha/enabled").body("{\"enabled\":");
    gateway.send(&broken).error(400, "invalid_json");
    let large = Request::new("POST", "/api/providers/alpha/enabled").body(" ".repeat(70_000));
    gateway.send(&large).error(413, "payload_too_large");
    gateway.get("/api/providers/alpha/enabled").error(405, "method_not_allowed");
    assert!(!gateway.folder().join("data/overrides.json").exists(), "nothing was written");
    assert_eq!(gateway.provider_view("alpha")["enabled"], json!(true));
}

#[test]
fn orders_capabilities_limits_and_models_are_overridden() {
    let (_alpha, _beta, gateway) = two();
    put(&gateway, "/api/overrides/providers/beta", &json!({"priority": 0, "limits": {"rpm": 2}})).ok();
    gateway.chat("m").ok().served_by("beta");
    gateway.chat("m").ok().served_by("beta");
    gateway.chat("m").ok().served_by("alpha");
    assert_eq!(gateway.provider_view("beta")["bars"][0]["limit"], json!(2));
    put(&gateway, "/api/overrides/models/alpha/m", &json!({"caps": ["chat"], "context": 4_000})).ok();
    let view = gateway.provider_view("alpha");
    assert_eq!(
        (&view["models"][0]["caps"], &view["models"][0]["context"]),
        (&json!(["chat"]), &json!(4_000))
    );
    gateway.chat_with("alpha/m", json!({"tools": [weather_tool()]})).error(400, "capability_unavailable");
    patch(&gateway, "/api/overrides/models/alpha/m", &json!({"caps": null, "enabled": false})).ok();
    gateway.chat("alpha/m").error(503, "no_provider_configured");
    assert_eq!(
        gateway.get("/api/overrides/models/alpha/m").ok().at("/override"),
        json!({"context": 4_000, "enabled": false})
    );
    delete(&gateway, "/api/overrides/models/alpha/m").ok();
    gateway.chat_with("alpha/m", json!({"tools": [weather_tool()]})).ok();
    delete(&gateway, "/api/overrides/models/alpha/m").error(404, "not_found");
}

#[test]
fn profiles_aliases_merges_and_splits_are_names_at_once() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let gateway = Gateway::over([
        provider(&alpha).priority(1).model_with("one-7b", json!({})).model_with("same-8b", json!({})),
        provider(&beta).priority(2).model_with("uno", json!({})).model_with("same-8b", json!({})),
    ]);
    put(&gateway, "/api/overrides/profiles/work", &json!({"models": ["beta/uno"]})).ok();
    gateway.chat("work").ok().served_by("beta");
    gateway.chat("auto").ok().served_by("alpha");
    put(&gateway, "/api/overrides/activeProfile", &json!({"name": "work"})).ok();
    gateway.chat("auto").ok().served_by("beta");
    delete(&gateway, "/api/overrides/activeProfile").ok();
    gateway.chat("auto").ok().served_by("alpha");
    put(&gateway, "/api/overrides/aliases/quick", &json!({"target": "beta/uno"})).ok();
    assert_eq!(gateway.chat("quick").ok().header("x-freeway-model"), Some("uno"));
    put(&gateway, "/api/overrides/merges/one", &json!({"members": ["alpha/one-7b", "beta/uno"]})).ok();
    assert_eq!(gateway.chat("one").ok().header("x-freeway-route"), Some("unified:one"));
    let names = || -> Vec<String> {
        let all = gateway.get("/v1/models").ok().at("/data");
        let all = all.as_array().expect("a list").iter();
        all.filter_map(|entry| entry["id"].as_str().filter(|id| !id.contains('/')).map(str::to_owned))
            .collect()
    };
    assert!(names().contains(&"same-8b".to_owned()), "{:?}", names());
    put(&gateway, "/api/overrides/splits/beta/same-8b", &json!({})).ok();
    let after = names();
    assert!(!after.contains(&"same-8b".to_owned()) && after.contains(&"one".to_owned()), "{after:?}");
}

#[test]
fn the_whole_document_is_read_replaced_patched_and_cleared() {
    let (_alpha, _beta, gateway) = two();
    let whole = json!({"providers": {"alpha": {"enabled": false}}, "aliases": {"quick": "beta/m"}});
    assert_eq!(put(&gateway, "/api/overrides", &whole).ok().at("/overrides"), whole);
    let change = json!({"providers": {"alpha": null}, "activeProfile": null, "profiles": {}});
    let patched = patch(&gateway, "/api/overrides", &change).ok();
    assert_eq!(patched.at("/overrides"), json!({"aliases": {"quick": "beta/m"}}), "{patched}");
    let slips = [
        (json!({"provider": {}}), "provider"),
        (json!({"models": {"alpha/m": {"context": 0}}}), "models.alpha/m.context"),
        (json!({"aliases": {"a": "b", "b": "a"}}), "aliases"),
        (json!({"activeProfile": "nope"}), "activeProfile"),
    ];
    for (slip, place) in slips {
        put(&gateway, "/api/overrides", &slip).error(400, "invalid_body").about(place);
    }
    assert_eq!(
        gateway.get("/api/overrides").ok().at("/overrides"),
        patched.at("/overrides"),
        "a slip changes nothing"
    );
    let unmet = put(&gateway, "/api/overrides", &json!({"models": {"alpha/gone": {"enabled": false}}})).ok();
    assert!(
        unmet.at("/issues/0/message").as_str().is_some_and(|text| text.contains("no such model")),
        "{unmet}"
    );
    assert_eq!(delete(&gateway, "/api/overrides").ok().at("/overrides"), json!({}));
    put(&gateway, "/api/overrides/models/alpha/gone", &json!({"enabled": false})).error(404, "not_found");
    put(&gateway, "/api/overrides/nonsense/x", &json!({})).error(404, "not_found");
}

#[test]
fn a_bad_file_keeps_the_last_good_overrides_and_is_told() {
    use std::os::unix::fs::PermissionsExt;
    let (_alpha, _beta, mut gateway) = two();
    gateway.post("/api/providers/alpha/enabled", &json!({"enabled": false})).ok();
    let path = gateway.folder().join("data/overrides.json");
    assert_eq!(std::fs::metadata(&path).expect("it exists").permissions().mode() & 0o777, 0o600);
    gateway.write("data/overrides.json", "{\"providers\": {\"alpha\": {\"enabled\": \"yes\"}}}");
    let issues = gateway.reload().at("/issues");
    let told = |issues: &Value| {
        let all = issues.as_array().expect("a list").iter();
        all.filter(|issue| issue["file"] == "overrides.json" && issue["level"] == "error").count()
    };
    assert_eq!(told(&issues), 1, "{issues}");
    gateway.chat("m").ok().served_by("beta");
    gateway.restart();
    assert_eq!(told(&gateway.get("/api/providers").ok().at("/issues")), 1);
    gateway.chat("m").ok().served_by("alpha");
}

#[test]
fn what_was_written_by_hand_is_neither_lost_nor_written_over() {
    let (_alpha, _beta, mut gateway) = two();
    let path = gateway.folder().join("data/overrides.json");
    let off = json!({"enabled": false});
    gateway.post("/api/providers/alpha/enabled", &off).ok();
    // Not yet read by anybody when the page changes something else.
    gateway.write("data/overrides.json", r#"{"providers": {"alpha": {"enabled": false, "priority": 7}}}"#);
    let kept = put(&gateway, "/api/overrides/aliases/mine", &json!({"target": "beta/m"})).ok();
    assert_eq!(kept.at("/overrides/providers/alpha/priority"), json!(7));
    // One with a slip is left as it is, before a restart and behind it.
    let slip = r#"{"providers": {"alpha": {"enabled": false}}"#;
    gateway.write("data/overrides.json", slip);
    for _ in 0..2 {
        let refused = gateway.post("/api/providers/beta/enabled", &off);
        assert_eq!(refused.status(), 500, "{refused}");
        assert!(refused.text().contains("mend it or move it away"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), slip);
        gateway.restart();
    }
    std::fs::remove_file(&path).expect("it was there");
    gateway.post("/api/providers/beta/enabled", &off).ok();
    gateway.chat("m").ok().served_by("alpha");
}
