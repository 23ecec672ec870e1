//! Client keys: made, listed, confined to what they may do, and revoked while the gateway runs.
use std::os::unix::fs::PermissionsExt;

use crate::harness::*;

const ADMIN: &str = "admin-secret-1";

/// A gateway that has an admin key and the client key `fw-first`.
fn owned(alpha: &MockUpstream) -> Gateway {
    let file = provider(alpha).model("m").model("other");
    Gateway::builder().provider(file).env("FREEWAY_ADMIN_KEY", ADMIN).client_key("fw-first").start()
}

fn terminal_of(gateway: &Gateway) -> Terminal {
    let mut terminal = Terminal::new();
    terminal.env("FREEWAY_ROOT", &gateway.folder().display().to_string());
    terminal
}

fn ask(gateway: &Gateway, key: &str) -> Answer {
    gateway.send(&Request::chat(&hello("m")).key(key))
}

fn as_owner(gateway: &Gateway, request: Request) -> Answer {
    gateway.send(&request.key(ADMIN))
}

#[test]
fn a_key_made_in_the_page_counts_at_once_and_is_shown_once() {
    let alpha = mock("alpha");
    let gateway = owned(&alpha);
    let made = as_owner(&gateway, Request::post("/api/clients", &json!({"name": "phone"})));
    assert_eq!(made.status(), 201, "{made}");
    let key = made.at("/key").as_str().expect("a key").to_owned();
    assert_eq!(made.at("/client/name"), "phone");
    assert!(key.starts_with("fw-") && key.len() == 51, "{key}");
    ask(&gateway, &key).ok();
    assert_eq!(gateway.last_turn_of(ADMIN)["client"], "phone");
    let list = as_owner(&gateway, Request::get("/api/clients")).ok().never_says(&key).at("/clients");
    assert_eq!((&list[0]["source"], &list[0]["revocable"]), (&json!("env"), &json!(false)), "{list}");
    assert_eq!((&list[1]["source"], &list[1]["revocable"]), (&json!("clients"), &json!(true)), "{list}");
    let file = gateway.folder().join("data/clients.json");
    let text = std::fs::read_to_string(&file).expect("the file");
    assert!(!text.contains(&key[3..]), "only its hash is kept: {text}");
    let mode = std::fs::metadata(&file).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let gone = as_owner(&gateway, Request::new("DELETE", "/api/clients/phone")).ok();
    assert_eq!(gone.at("/id"), list[1]["id"]);
    ask(&gateway, &key).error(401, "invalid_api_key");
    as_owner(&gateway, Request::new("DELETE", "/api/clients/phone")).error(404, "not_found");
    assert!(!gateway.log().contains(&key));
}

#[test]
fn clients_are_the_owners_affair() {
    let alpha = mock("alpha");
    let gateway = owned(&alpha);
    gateway.get("/api/clients").error(403, "admin_required");
    gateway.post("/api/clients", &json!({"name": "mine"})).error(403, "admin_required");
    gateway.send(&Request::new("DELETE", "/api/clients/key-1").key("fw-first")).error(403, "admin_required");
    let refused = as_owner(&gateway, Request::new("DELETE", "/api/clients/key-1")).error(400, "invalid_body");
    assert!(refused.text().contains("FREEWAY_KEYS"), "{refused}");
}

#[test]
fn what_is_wrong_with_a_new_client_is_told() {
    let alpha = mock("alpha");
    let gateway = owned(&alpha);
    let make = |body: Value| as_owner(&gateway, Request::post("/api/clients", &body));
    make(json!({})).error(400, "invalid_body").about("name");
    make(json!({"name": " "})).error(400, "invalid_body").about("name");
    make(json!({"name": "a", "models": "m"})).error(400, "invalid_body").about("models");
    make(json!({"name": "a", "limits": {"rpm": -1}})).error(400, "invalid_body").about("limits");
    make(json!({"name": "a", "strategy": "odd"})).error(400, "invalid_body").about("strategy");
    make(json!({"name": "a", "model": "m"})).error(400, "invalid_body").about("model");
    assert_eq!(make(json!({"name": "a"})).status(), 201);
    let taken = make(json!({"name": "a"})).error(400, "invalid_body").about("name");
    assert!(taken.text().contains("taken"), "{taken}");
}

#[test]
fn a_running_gateway_takes_up_what_the_terminal_changed() {
    let alpha = mock("alpha");
    let gateway = owned(&alpha);
    let terminal = terminal_of(&gateway);
    let (code, made) = terminal.json("clients new desk --json");
    let key = made["key"].as_str().expect("a key");
    assert_eq!(code, Some(0), "{made}");
    eventually("the new key counts", || ask(&gateway, key).status() == 200);
    assert_eq!(terminal.run("clients revoke desk").code, Some(0));
    gateway.signal("HUP");
    // So many tries of a key that is wrong by now may be answered as guesses.
    eventually("the key opens nothing", || [401, 429].contains(&ask(&gateway, key).status()));
}

#[test]
fn a_client_is_confined_to_its_models() {
    let alpha = mock("alpha");
    let file = provider(&alpha).model("m").model("other").model_with("vec", json!({"caps": ["embed"]}));
    let gateway = Gateway::builder()
        .provider(file)
        .settings(json!({
            "aliases": {"fast": "alpha/m"},
            "keys": [
                {"name": "one", "key": "fw-one", "models": ["fast"]},
                {"name": "all-of-alpha", "key": "fw-alpha", "models": ["alpha/*", "auto"]},
            ],
        }))
        .start();
    let ask = |key: &str, body: Value| gateway.send(&Request::chat(&body).key(key));
    let answer = ask("fw-one", hello("fast")).ok();
    assert_eq!(answer.header("x-freeway-model"), Some("m"));
    for refused in [
        hello("alpha/m"),
        hello("m"),
        hello("auto"),
        hello(""),
        hello_with("fast", json!({"models": ["fast", "m"]})),
    ] {
        let answer = ask("fw-one", refused.clone()).error(404, "model_not_found");
        assert_eq!(answer.at("/freeway/suggestions"), json!(["fast"]), "{refused}: {answer}");
        assert!(
            answer.header("x-freeway-route").is_some_and(|route| route.starts_with("unmatched:")),
            "{answer}"
        );
    }
    ask("fw-alpha", hello("alpha/other")).ok();
    ask("fw-alpha", hello("")).ok();
    ask("fw-alpha", hello("default")).ok();
    ask("fw-alpha", hello("fast")).error(404, "model_not_found");
    let vectors = json!({"model": "alpha/vec", "input": "x"});
    gateway.send(&Request::post("/v1/embeddings", &vectors).key("fw-one")).error(404, "model_not_found");
    gateway.send(&Request::post("/v1/embeddings", &vectors).key("fw-alpha")).ok();
    let ids = |key: &str| -> Vec<String> {
        let data = gateway.send(&Request::get("/v1/models").key(key)).ok().at("/data");
        let ids = data.as_array().expect("a list").iter();
        ids.map(|entry| entry["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(ids("fw-one"), ["fast"]);
    assert_eq!(ids("fw-alpha"), ["alpha/m", "alpha/other", "alpha/vec", "auto"]);
    gateway.send(&Request::get("/v1/models/alpha/m").key("fw-one")).error(404, "model_not_found");
    gateway.send(&Request::get("/v1/models/fast").key("fw-one")).ok();
    assert_eq!(chats(&alpha).len(), 4);
}

#[test]
fn a_client_has_an_order_of_its_own() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let gateway = Gateway::builder()
        .provider(provider(&alpha).priority(1))
        .provider(provider(&beta).priority(2))
        .settings(json!({"keys": ["fw-plain", {"key": "fw-turns", "strategy": "round-robin"}]}))
        .start();
    let served = |key: &str| {
        let answers = (0..4).map(|_| gateway.send(&Request::chat(&hello("auto")).key(key)).ok());
        answers.filter(|answer| answer.header("x-freeway-provider") == Some("beta")).count()
    };
    assert_eq!(served("fw-plain"), 0);
    assert_eq!(served("fw-turns"), 2);
    let named = Request::chat(&hello("auto:priority")).key("fw-turns");
    assert_eq!(gateway.send(&named).ok().header("x-freeway-provider"), Some("alpha"));
}

#[test]
fn a_client_may_be_kept_off_the_cache() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .settings(json!({"keys": ["fw-plain", {"key": "fw-fresh", "cache": false}]}))
        .start();
    let same = |key: &str| {
        let asked =
            Request::chat(&hello_with("m", json!({"temperature": 0}))).header("x-freeway-cache", "on");
        gateway.send(&asked.key(key)).ok()
    };
    same("fw-plain");
    assert_eq!(same("fw-plain").header("x-freeway-cache"), Some("exact"));
    assert_eq!(same("fw-fresh").header("x-freeway-cache"), None);
    assert_eq!(same("fw-fresh").header("x-freeway-cache"), None);
    assert_eq!(chats(&alpha).len(), 3);
}

#[test]
fn every_kind_of_client_key_lets_others_in() {
    let hash = "f3c27a2bd6a8d5cb7bb8a2ae0e34dc6d5b2bc3a3b3a0e7d9b1e9c0f1a2b3c4d5";
    let open = || Gateway::builder().env("FREEWAY_HOST", "0.0.0.0");
    drop(open().env("FREEWAY_KEYS", "fw-a").start());
    drop(open().settings(json!({"keys": [{"name": "phone", "sha256": hash}]})).start());
    let file = json!({"clients": [{"name": "phone", "sha256": hash}]}).to_string();
    drop(open().folder("data").file("data/clients.json", &file).start());
    assert_eq!(open().refusal().code, Some(78));
    assert_eq!(
        open().env("FREEWAY_ADMIN_KEY", "admin").refusal().code,
        Some(78),
        "an admin key is no client key"
    );
}

#[test]
fn the_last_key_of_an_open_gateway_stays() {
    let made = Terminal::new();
    let (_, only) = made.json("clients new only --json");
    let gateway = Gateway::builder()
        .env("FREEWAY_HOST", "0.0.0.0")
        .env("FREEWAY_ADMIN_KEY", ADMIN)
        .folder("data")
        .file("data/clients.json", made.read("data/clients.json"))
        .start();
    let refused = as_owner(&gateway, Request::new("DELETE", "/api/clients/only")).error(400, "invalid_body");
    assert!(refused.text().contains("make another one first"), "{refused}");
    as_owner(&gateway, Request::post("/api/clients", &json!({"name": "second"})));
    let id = only["client"]["id"].as_str().expect("an id");
    as_owner(&gateway, Request::new("DELETE", &format!("/api/clients/{id}"))).ok();
}

#[test]
fn a_damaged_file_of_keys_lets_nobody_in() {
    let alpha = mock("alpha");
    let mut gateway = Gateway::over([provider(&alpha)]);
    let key = gateway
        .post("/api/clients", &json!({"name": "phone"}))
        .at("/key")
        .as_str()
        .expect("a key")
        .to_owned();
    let closed = |gateway: &Gateway| {
        gateway.chat("m").error(401, "invalid_api_key");
        ask(gateway, &key).ok();
    };
    closed(&gateway);
    let path = gateway.folder().join("data/clients.json");
    let whole = std::fs::read_to_string(&path).expect("the file");
    for bad in [&whole[..whole.len() / 2], "", r#"{"clients": {}}"#] {
        gateway.write("data/clients.json", bad);
        let told = gateway.send(&Request::new("POST", "/api/reload").key(&key)).ok();
        assert!(told.at("/issues").to_string().contains("the last good keys go on"), "{told}");
        closed(&gateway);
    }
    gateway.stop();
    // Nobody remembers the keys: it does not start with an open door.
    let terminal = terminal_of(&gateway);
    let ran = terminal.run("serve --port 0");
    assert_eq!(ran.code, Some(78), "{ran:?}");
    assert!(ran.err.contains("clients.json has a fault"), "{ran:?}");
    terminal.run("clients list").failed("clients.json");
    gateway.write("data/clients.json", &whole);
    gateway.start_again();
    closed(&gateway);
}

#[test]
fn a_key_that_is_revoked_while_the_configuration_is_bad_is_gone() {
    let alpha = mock("alpha");
    let gateway = owned(&alpha);
    let terminal = terminal_of(&gateway);
    let made = terminal.run("clients new phone --json").ok();
    let key = made["key"].as_str().expect("a key");
    ask(&gateway, key).ok();
    gateway.write("freeway.config.json", r#"{"maxAttempts": "many"}"#);
    as_owner(&gateway, Request::new("POST", "/api/reload")).ok();
    ask(&gateway, key).ok();
    terminal.run("clients revoke phone --json").ok();
    ask(&gateway, key).error(401, "invalid_api_key");
}

#[test]
fn changes_of_the_terminal_and_of_the_page_at_once_are_all_kept() {
    const EACH: usize = 8;
    let alpha = mock("alpha");
    let gateway = owned(&alpha);
    let terminal = terminal_of(&gateway);
    std::thread::scope(|scope| {
        for n in 0..EACH {
            let (gateway, terminal) = (&gateway, &terminal);
            scope.spawn(move || terminal.run(&format!("clients new t{n} --json")).ok());
            scope.spawn(move || {
                let made =
                    as_owner(gateway, Request::post("/api/clients", &json!({"name": format!("p{n}")})));
                assert_eq!(made.status(), 201, "{made}");
            });
            let (one, file) = (format!("alpha-of-the-page-{n}"), format!("{n}.env"));
            gateway.write(&file, format!("ALPHA_API_KEY=alpha-of-a-file-{n}\n"));
            scope.spawn(move || {
                as_owner(gateway, Request::post("/api/providers/alpha/key", &json!({"key": one}))).ok();
            });
            let file = gateway.folder().join(file).display().to_string();
            scope.spawn(move || terminal.run(&format!("keys import {file} --json")).ok());
        }
    });
    as_owner(&gateway, Request::new("POST", "/api/reload")).ok();
    let count = |path: &str, list: &str, source: &str| {
        let all = as_owner(&gateway, Request::get(path)).ok().at(list);
        all.as_array().expect("a list").iter().filter(|one| one["source"] == source).count()
    };
    assert_eq!(count("/api/clients", "/clients", "clients"), 2 * EACH);
    assert_eq!(count("/api/keys", "/keys", "vault"), 2 * EACH);
}
