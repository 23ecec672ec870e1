//! Provider files, variables and model lists, and what becomes of them while the gateway runs.
use std::fs;

use crate::harness::*;

/// The texts of the issues that a reload tells.
fn issues(reloaded: &Answer) -> String {
    reloaded.at("/issues").to_string()
}

/// A provider that reads its upstream's model list.
fn discovering(mock: &MockUpstream) -> Provider {
    provider(mock).set("modelsEndpoint", json!("/models"))
}

/// Waits until the model list has this id.
fn wait_for_model(gateway: &Gateway, id: &str) {
    eventually(&format!("{id} is listed"), || gateway.get(&format!("/v1/models/{id}")).status() == 200);
}

#[test]
fn d_a_file_that_turns_bad_keeps_its_last_good_version() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha)]);
    for bad in ["{ \"id\": \"alpha\", ", "", r#"{"id": "alpha"}"#, r#"{"id": "alpha", "baseUrl": 7}"#] {
        gateway.write("providers/alpha.json", bad);
        let reloaded = gateway.reload();
        assert_eq!((reloaded.at("/ok"), reloaded.at("/usable")), (json!(false), json!(1)), "{reloaded}");
        assert!(issues(&reloaded).contains("alpha.json"), "{reloaded}");
        gateway.chat("m").ok().served_by("alpha");
    }
    gateway.write_provider(&provider(&alpha).model("n"));
    assert_eq!(issues(&gateway.reload()), "[]");
    gateway.chat("n").ok();
    gateway.chat("m").error(404, "model_not_found");
}

#[test]
fn d_a_folder_that_vanishes_keeps_its_last_good_set() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha)]);
    fs::remove_dir_all(gateway.folder().join("providers")).expect("the folder was there");
    let reloaded = gateway.reload();
    assert_eq!(reloaded.at("/providers"), json!(1), "{reloaded}");
    assert!(issues(&reloaded).contains("last good files"), "{reloaded}");
    gateway.chat("auto").ok().served_by("alpha");
}

#[test]
fn d_a_key_appended_to_the_env_file_counts_after_a_reload() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).keys([])]);
    gateway.chat("m").error(503, "no_provider_configured");
    gateway.write(".env", "ALPHA_API_KEY=\"fresh-key-1\" # mine\n");
    assert_eq!(gateway.reload().at("/usable"), json!(1));
    gateway.chat("m").ok();
    assert_eq!(chats(&alpha)[0].key.as_deref(), Some("fresh-key-1"));
}

#[test]
fn d_a_changed_file_is_noticed_without_being_told() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let gateway = Gateway::over([provider(&alpha)]);
    gateway.write_provider(&provider(&beta).keyless());
    eventually("the new file is read", || gateway.chat("beta/m").status() == 200);
    gateway.write(".env", "ALPHA_API_KEY=never-used\nFREEWAY_STRATEGY=fastest\n");
    eventually("the changed .env is read", || gateway.get("/api/stats").ok().at("/strategy") == "fastest");
    gateway.chat("alpha/m").ok();
    assert_eq!(chats(&alpha)[0].key.as_deref(), Some("alpha-key"), "a real variable wins");
}

#[test]
fn d_a_hangup_signal_reads_everything_again() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let mut gateway = Gateway::over([provider(&alpha)]);
    gateway.write_provider(&provider(&beta).keyless());
    gateway.signal("HUP");
    gateway.wait_for_log("told to by a signal");
    gateway.chat("beta/m").ok();
    assert!(gateway.is_running());
}

#[test]
fn d_places_may_be_named_in_the_env_file() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let (_, text) = provider(&beta).keyless().file();
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .folder("elsewhere")
        .file("elsewhere/beta.json", text)
        .file("other.json", r#"{"strategy": "least-used"}"#)
        .file(".env", "FREEWAY_PROVIDERS=elsewhere\nFREEWAY_DATA=kept\nFREEWAY_CONFIG=other.json\n")
        .start();
    gateway.chat("auto").ok().served_by("beta");
    assert_eq!(gateway.get("/api/stats").ok().at("/strategy"), "least-used");
    assert!(gateway.folder().join("kept").is_dir() && !gateway.folder().join("data").exists());
    gateway.write(".env", "FREEWAY_DATA=kept\n");
    gateway.reload();
    gateway.chat("auto").ok().served_by("alpha");
}

#[test]
fn an_id_is_taken_once_and_files_with_an_underscore_are_none() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let (_, second) = provider(&beta).set("id", json!("alpha")).keyless().file();
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .file("providers/zz.json", second)
        .file("providers/_schema.json", r#"{"$schema": "https://json-schema.org/draft/2020-12/schema"}"#)
        .file(
            "providers/_off.json",
            r#"{"id": "off", "baseUrl": "http://127.0.0.1:1", "auth": {"type": "none"}}"#,
        )
        .file("providers/notes.txt", "no provider")
        .start();
    let view = gateway.get("/api/providers").ok();
    assert_eq!(view.at("/providers").as_array().map(Vec::len), Some(1), "{view}");
    let issues = view.at("/issues");
    assert_eq!(issues.as_array().map(Vec::len), Some(1), "{issues}");
    assert_eq!((&issues[0]["file"], &issues[0]["level"]), (&json!("zz.json"), &json!("error")));
    assert!(
        issues[0]["message"].as_str().is_some_and(|text| text.contains("taken by alpha.json")),
        "{issues}"
    );
    gateway.chat("alpha/m").ok();
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 0));
}

#[test]
fn a_bad_file_at_the_start_costs_only_itself() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .file("providers/broken.json", "{ \"id\": ")
        .file(
            "providers/odd.json",
            r#"{"id": "odd", "baseUrl": "ftp://x", "auth": {"type": "basic"}, "models": [{"caps": 3}]}"#,
        )
        .start();
    gateway.chat("auto").ok().served_by("alpha");
    let issues = gateway.get("/api/providers").ok().at("/issues").to_string();
    for field in ["broken.json", "baseUrl", "auth.type", "models[0].id"] {
        assert!(issues.contains(field), "{field} is not in {issues}");
    }
    assert_eq!(gateway.get("/readyz").ok().at("/reasons"), json!(["configuration_issue"]));
}

#[test]
fn a_bad_configuration_is_passed_over_while_it_runs() {
    let alpha = mock("alpha");
    let gateway =
        Gateway::builder().provider(provider(&alpha)).settings(json!({"strategy": "fastest"})).start();
    gateway.write("freeway.config.json", r#"{"strategy": "round-robin", "maxAttempts": "many"}"#);
    let reloaded = gateway.reload();
    assert!(issues(&reloaded).contains("maxAttempts"), "{reloaded}");
    assert_eq!(gateway.get("/api/stats").ok().at("/strategy"), "fastest");
    gateway.chat("m").ok();
}

#[test]
fn a_request_under_way_keeps_what_it_began_with() {
    let alpha = mock_that("alpha", [Step::ok().delay_ms(700)]);
    let gateway = Gateway::over([provider(&alpha)]);
    let mut wire = gateway.wire();
    wire.send(Request::chat(&hello("m")).bytes());
    eventually("the upstream has the call", || chats(&alpha).len() == 1);
    fs::remove_file(gateway.folder().join("providers/alpha.json")).expect("it was there");
    assert_eq!(gateway.reload().at("/providers"), json!(0));
    wire.answer().ok().served_by("alpha");
    gateway.chat("m").error(404, "model_not_found");
}

#[test]
fn c3_a_reload_with_keys_in_another_order_keeps_usage_and_benches() {
    let alpha = mock("alpha");
    alpha.set_keys([("dead-key", vec![Step::status(401)])]);
    let gateway = Gateway::builder()
        .provider(provider(&alpha).keys([]).limits(json!({"rpd": 1})))
        .file(".env", "ALPHA_API_KEY=dead-key,used-key\n")
        .start();
    gateway.chat("m").ok();
    assert_eq!(chats(&alpha).len(), 2);
    gateway.write(".env", "ALPHA_API_KEY=used-key,fresh-key,dead-key\n");
    gateway.reload();
    gateway.chat("m").ok();
    gateway.chat("m").error(429, "all_providers_blocked");
    let keys: Vec<_> = chats(&alpha).into_iter().filter_map(|call| call.key).collect();
    assert_eq!(keys, ["dead-key", "used-key", "fresh-key"], "each was called once");
}

#[test]
fn c3_a_key_that_goes_takes_its_usage_with_it() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .provider(provider(&alpha).keys([]).limits(json!({"rpd": 1})))
        .file(".env", "ALPHA_API_KEY=first-key\n")
        .start();
    gateway.chat("m").ok();
    gateway.chat("m").error(429, "all_providers_blocked");
    gateway.write(".env", "ALPHA_API_KEY=second-key\n");
    gateway.reload();
    gateway.chat("m").ok();
}

#[test]
fn w3_a_provider_without_models_serves_auto_from_its_list() {
    let alpha = mock("alpha");
    alpha.set_models(["found-chat-8b", "found-embed-3", "whisper-large"]);
    let gateway = Gateway::builder()
        .provider(discovering(&alpha).without_models())
        .settings(json!({"cooldownSeconds": 1}))
        .start();
    wait_for_model(&gateway, "alpha/found-chat-8b");
    let chat = gateway.chat("auto").ok();
    assert_eq!(chat.header("x-freeway-model"), Some("found-chat-8b"));
    assert_eq!(gateway.embed("auto", json!("x")).ok().header("x-freeway-model"), Some("found-embed-3"));
    let models = gateway.provider_view("alpha")["models"].clone();
    assert!(
        models.as_array().is_some_and(|all| all.iter().all(|model| model["source"] == "discovered")),
        "{models}"
    );
    assert_eq!(gateway.chat("alpha/whisper-large").status(), 404, "what only hears is no chat model");
}

#[test]
fn w3_what_is_declared_comes_before_what_is_found() {
    let alpha = mock("alpha");
    alpha.set_models(["aaa-found", "declared"]);
    let gateway = Gateway::over([discovering(&alpha).model("declared")]);
    wait_for_model(&gateway, "alpha/aaa-found");
    assert_eq!(gateway.chat("auto").ok().header("x-freeway-model"), Some("declared"));
    let models = gateway.provider_view("alpha")["models"].clone();
    let sources: Vec<_> =
        models.as_array().expect("a list").iter().map(|model| model["source"].as_str()).collect();
    assert_eq!(sources, [Some("declared"), Some("discovered")], "each once: {models}");
}

#[test]
fn w3_found_models_outlive_a_restart_without_the_list() {
    let mut alpha = mock("alpha");
    alpha.set_models(["found-chat"]);
    let mut gateway = Gateway::over([discovering(&alpha).without_models()]);
    wait_for_model(&gateway, "alpha/found-chat");
    gateway.stop();
    alpha.stop();
    gateway.start_again();
    assert_eq!(gateway.get("/v1/models/alpha/found-chat").status(), 200, "at once, from the disk");
}

#[test]
fn w3_model_lists_are_fetched_again_when_told() {
    let alpha = mock("alpha");
    alpha.set_models(["first"]);
    let gateway = Gateway::over([discovering(&alpha).without_models()]);
    wait_for_model(&gateway, "alpha/first");
    for (path, id) in [("/api/refresh", "second"), ("/_refresh", "third")] {
        alpha.set_models([id]);
        let answer = gateway.send(&Request::new("POST", path)).ok();
        assert_eq!((answer.at("/ok"), answer.at("/done")), (json!(true), json!(true)), "{answer}");
        assert_eq!(
            answer.at("/providers"),
            json!([{"id": "alpha", "models": 1, "discovered": 1, "error": null}])
        );
        gateway.chat(id).ok();
    }
}

#[test]
fn w3_a_list_that_cannot_be_fetched_is_told() {
    let beta = mock_that("beta", [Step::status(401).for_path("/models").times(FOREVER), Step::ok()]);
    let alpha = mock("alpha");
    alpha.set_models(["found"]);
    let gateway = Gateway::over([discovering(&alpha).without_models(), discovering(&beta).model("m")]);
    wait_for_model(&gateway, "alpha/found");
    let told = gateway.send(&Request::new("POST", "/api/refresh")).ok();
    assert_eq!((told.at("/ok"), told.at("/done")), (json!(false), json!(true)), "{told}");
    assert_eq!((told.at("/providers/0/error"), told.at("/providers/1/id")), (json!(null), json!("beta")));
    let why = told.at("/providers/1/error");
    assert!(why.as_str().is_some_and(|why| why.contains("401")), "{told}");
    beta.script([Step::ok()]);
    let told = gateway.send(&Request::new("POST", "/api/refresh")).ok();
    assert_eq!((told.at("/ok"), told.at("/providers/1/error")), (json!(true), json!(null)), "{told}");
}

#[test]
fn an_empty_folder_of_provider_files_is_told() {
    let gateway = Gateway::builder().file("providers/_notes.json", "{}").start();
    let told = gateway.get("/api/alerts").ok();
    assert!(told.text().contains("holds no provider file"), "{told}");
    gateway.write("providers/_bundled.json", "");
    gateway.reload();
    let told = gateway.get("/api/alerts").ok();
    assert!(!told.text().contains("holds no provider file"), "{told}");
}

#[test]
fn w3_a_list_is_fetched_as_soon_as_its_provider_gets_a_key() {
    let alpha = mock("alpha");
    alpha.set_models(["found-chat"]);
    let gateway = Gateway::over([discovering(&alpha).without_models().keys([])]);
    gateway.write(".env", "ALPHA_API_KEY=fresh-key\n");
    gateway.reload();
    wait_for_model(&gateway, "alpha/found-chat");
}

#[test]
fn w3_lists_of_every_shape_are_read() {
    for (path, list) in [
        ("[].id", json!([{"id": "found-chat"}, {"id": 7}, {}])),
        ("models[].name", json!({"models": [{"name": "found-chat"}, {"name": ""}]})),
        ("result[].name", json!({"result": [{"name": "found-chat"}]})),
    ] {
        let alpha =
            mock_that("alpha", [Step::json(200, &list).for_path("/models").times(FOREVER), Step::ok()]);
        let file = discovering(&alpha).without_models().set("modelsPath", json!(path));
        let gateway = Gateway::over([file]);
        wait_for_model(&gateway, "alpha/found-chat");
        assert_eq!(gateway.provider_view("alpha")["models"].as_array().map(Vec::len), Some(1), "{path}");
    }
}

#[test]
fn an_env_file_that_cannot_be_read_opens_nothing() {
    let alpha = mock("alpha");
    let mut gateway = Gateway::builder()
        .provider(provider(&alpha))
        .file(".env", "FREEWAY_KEYS=fw-of-the-file\nFREEWAY_ADMIN_KEY=fw-admin-of-the-file\n")
        .start();
    let owner = |request: Request| request.key("fw-admin-of-the-file");
    gateway.chat("m").error(401, "invalid_api_key");
    // As an editor of another encoding leaves it.
    gateway.write(".env", b"# f\xfcr alle\nFREEWAY_KEYS=fw-of-the-file\n");
    let told = gateway.send(&owner(Request::new("POST", "/api/reload"))).ok();
    assert!(issues(&told).contains("the last good variables go on"), "{told}");
    assert_eq!(told.at("/ok"), json!(false), "a file was refused: {told}");
    gateway.chat("m").error(401, "invalid_api_key");
    gateway.send(&Request::chat(&hello("m")).key("fw-of-the-file")).ok();
    gateway.get("/api/stats").error(401, "invalid_api_key");
    gateway.stop();
    let mut terminal = Terminal::new();
    terminal.env("FREEWAY_ROOT", &gateway.folder().display().to_string());
    let ran = terminal.run("serve --port 0");
    assert_eq!(ran.code, Some(78), "{ran:?}");
    assert!(ran.err.contains(".env: cannot be read: is not UTF-8"), "{ran:?}");
}
