//! The commands of the terminal, as somebody types them.
use std::os::unix::fs::PermissionsExt;

use crate::harness::*;

/// A folder with one provider, `alpha`, whose upstream is this.
fn with(mock: &MockUpstream) -> Terminal {
    let mut terminal = Terminal::new();
    terminal.provider(&provider(mock).set("modelsEndpoint", json!("/models")).keys(["alpha-secret-key"]));
    terminal
}

fn problems(found: &Value) -> String {
    found["problems"].to_string()
}

/// A command line, and its exit status in a folder with one provider that has a key and no gateway.
const LINES: [(&str, i32); 47] = [
    ("version", 0),
    ("help", 0),
    ("init", 0),
    ("clients new phone", 0),
    ("clients list", 0),
    ("clients revoke phone", 0),
    ("clients revoke phone", 1),
    ("clients new", 2),
    ("clients", 2),
    ("keys list", 0),
    ("keys import old.env --preview", 0),
    ("keys import old.env", 0),
    ("keys import none.env", 1),
    ("keys import", 2),
    ("keys export", 0),
    ("keys export --format env", 0),
    ("keys export --format csv", 0),
    ("keys export --format xml", 2),
    ("config check", 0),
    ("config settings", 0),
    ("config example", 0),
    ("config chekc", 2),
    ("provider list", 0),
    ("provider list acme", 2),
    ("doctor --live", 0),
    ("provider new fresh", 0),
    ("provider new fresh", 1),
    ("provider new Fresh", 2),
    ("provider verify alpha", 0),
    ("provider verify alpha --validate --apply", 0),
    ("provider verify nobody", 1),
    ("provider verify", 2),
    ("provider refresh alpha", 0),
    ("provider refresh nobody", 1),
    ("doctor", 0),
    ("doctor what", 2),
    ("doctor route", 0),
    ("doctor route nothing-like-it", 1),
    ("doctor route --strategy best", 2),
    ("health", 1),
    ("systemd", 0),
    ("backup", 1),
    ("backup --init", 0),
    ("backup now", 2),
    ("restore", 2),
    ("restore --latest", 1),
    ("restore nowhere.backup --force", 1),
];

/// Commands that the help lists.
fn commands(terminal: &Terminal) -> Vec<String> {
    let (_, told) = terminal.json("help --json");
    let names = told["commands"].as_array().expect("a list").iter();
    names.map(|command| command["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn every_command_has_help_with_examples_and_tells_errors_as_json() {
    let terminal = Terminal::new();
    let all = commands(&terminal);
    assert!(all.len() >= 10 && all.iter().any(|name| name == "doctor"), "{all:?}");
    for line in all.iter().map(|name| format!("{name} --help")).chain(["--help".into()]) {
        let ran = terminal.run(&line);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{line}: {ran:?}");
        for part in ["usage: freeway", "examples:\n  "] {
            assert!(ran.out.contains(part), "{part}: {line}: {}", ran.out);
        }
        assert!(ran.out.contains("--json"), "{line} speaks JSON: {}", ran.out);
        assert!(ran.out.lines().all(|line| line.chars().count() <= 120), "{line}: {}", ran.out);
    }
    for name in &all {
        let ran = terminal.run(&format!("{name} --no-such-option"));
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{name}: {ran:?}");
        assert!(ran.err.contains("--no-such-option") && ran.err.contains("usage:"), "{name}: {ran:?}");
        let (code, told) = terminal.json(&format!("{name} --no-such-option --json"));
        assert_eq!((code, &told["ok"]), (Some(2), &json!(false)), "{name}: {told}");
        assert!(
            told["error"].as_str().is_some_and(|text| text.contains("--no-such-option")),
            "{name}: {told}"
        );
    }
    let odd = ["", "sevre", "sevre --help", "version 2", "serve --port high", "serve --root no/such/folder"];
    for line in odd {
        let ran = terminal.run(line);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{line}: {ran:?}");
        assert!(!ran.err.is_empty(), "{line}");
    }
    assert!(terminal.run("sevre").err.contains("did you mean `serve`?"));
}

#[test]
fn every_command_line_has_its_status_and_says_the_same_as_json() {
    let alpha = mock("alpha");
    alpha.set_models(["m"]);
    let folder = || {
        let mut terminal = with(&alpha);
        terminal.write("old.env", "ALPHA_API_KEY=another-key-0123\n");
        // Nobody listens there.
        terminal.env("FREEWAY_PORT", "9");
        terminal
    };
    let (plain, json) = (folder(), folder());
    for (line, code) in LINES {
        let ran = plain.run(line);
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        let told = (!ran.out.is_empty(), !ran.err.is_empty());
        assert!(if code == 2 { told == (false, true) } else { told.0 || told.1 }, "{line}: {ran:?}");
        let (found, value) = json.json(&format!("{line} --json"));
        assert_eq!(found, Some(code), "{line} --json: {value}");
        assert!(value.is_object(), "{line} --json: {value}");
        if code == 2 {
            assert!(value["ok"] == false && value["error"].is_string(), "{line} --json: {value}");
        }
        if !line.starts_with("keys export") {
            for secret in ["alpha-secret-key", "another-key-0123"] {
                let said = [ran.out.as_str(), ran.err.as_str(), &value.to_string()].concat();
                assert!(!said.contains(secret), "{line}: {said}");
            }
        }
    }
    let actions = |name: &str| LINES.iter().any(|(line, _)| line.split(' ').next() == Some(name));
    // What serves is tried everywhere else.
    let untried: Vec<String> =
        commands(&plain).into_iter().filter(|name| !actions(name) && name != "serve").collect();
    assert!(untried.is_empty(), "{untried:?} have no line in the table");
}

#[test]
fn serve_says_as_json_where_it_listens_or_why_not() {
    let terminal = Terminal::new();
    terminal.write("freeway.config.json", r#"{"host": "0.0.0.0"}"#);
    let (code, told) = terminal.json("serve --json --port 0");
    assert_eq!((code, &told["ok"]), (Some(78), &json!(false)), "{told}");
    assert!(told["error"].as_str().is_some_and(|text| text.contains("FREEWAY_KEYS")), "{told}");
}

#[test]
fn d_json_is_printed_whatever_goes_wrong() {
    let mut terminal = Terminal::new();
    terminal.write("providers/bad.json", "{ \"id\": ");
    terminal.write(
        "providers/nokey.json",
        r#"{"id": "nokey", "baseUrl": "https://x.example/v1", "auth": {"envKeys": ["NO_KEY"]}}"#,
    );
    let lines: [(&str, i32); 14] = [
        ("--json --json", 2),
        ("--json provider list", 0),
        ("version --json", 0),
        ("provider list --json", 0),
        ("provider verify nope --json", 1),
        ("provider verify bad --json", 1),
        ("provider verify nokey --json", 1),
        ("--json provider", 2),
        ("provider --json", 2),
        ("provider verify --json", 2),
        ("provider refresh nope --json", 1),
        ("provider new Bad --json", 2),
        ("config check --json", 1),
        ("sevre --json", 2),
    ];
    for (line, code) in lines {
        let (found, _) = terminal.json(line);
        assert_eq!(found, Some(code), "{line}");
    }
    terminal.env("PORT", "eighty");
    for line in
        ["provider verify nokey --json", "provider list --json", "provider refresh --json", "init --json"]
    {
        let (code, found) = terminal.json(line);
        assert_eq!(code, Some(1), "{line}: {found}");
        assert!(found.to_string().contains("PORT: must be a whole number"), "{line}: {found}");
    }
}

#[test]
fn d_a_new_provider_is_written_from_words_in_any_order() {
    for line in [
        "provider new acme --url https://api.acme.example/v1 --env ACME_TOKEN --auth header --header X-Token",
        "provider --url https://api.acme.example/v1 --env ACME_TOKEN new --auth header --header X-Token acme",
        "provider new --json --header=X-Token --auth=header --env=ACME_TOKEN --url=https://api.acme.example/v1 acme",
    ] {
        let mut terminal = Terminal::new();
        let ran = terminal.run(line);
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
        let file: Value = serde_json::from_str(&terminal.read("providers/acme.json")).expect("JSON");
        assert_eq!(file["baseUrl"], "https://api.acme.example/v1", "{line}");
        let auth = json!({"type": "header", "header": "X-Token", "envKeys": ["ACME_TOKEN"]});
        assert_eq!(file["auth"], auth, "{line}");
        terminal.env("ACME_TOKEN", "test-token-1");
        let (_, listed) = terminal.json("provider list --json");
        let acme = listed["providers"].as_array().expect("a list").iter().find(|one| one["id"] == "acme");
        assert_eq!(
            (acme.map(|one| &one["configured"]), &listed["issues"]),
            (Some(&json!(true)), &json!([])),
            "{line}"
        );
    }
}

#[test]
fn d_a_new_provider_that_could_not_work_is_refused() {
    let terminal = Terminal::new();
    for (line, why) in [
        ("provider new acme --auth basic", "--auth must be one of"),
        ("provider new acme --url acme.example", "--url must begin with"),
        ("provider new acme --url ftp://acme.example", "--url must begin with"),
        ("provider new acme --url http://", "--url"),
        ("provider new acme --env sk-secret", "--env must be the name of a variable"),
        ("provider new ../acme", "is no id"),
        ("provider new --url", "missing argument"),
    ] {
        let ran = terminal.run(line);
        assert!(ran.code == Some(2) && ran.err.contains(why), "{line}: {ran:?}");
        assert!(!terminal.path().join("providers").exists(), "{line}");
    }
    terminal.write("providers/acme.json", "mine");
    assert_eq!(terminal.run("provider new acme").code, Some(1));
    assert_eq!(terminal.read("providers/acme.json"), "mine");
    assert_eq!(terminal.run("provider new --force acme").code, Some(0));
    assert_ne!(terminal.read("providers/acme.json"), "mine");
}

#[test]
fn verify_passes_what_is_sound_whatever_the_order_of_words() {
    let alpha = mock("alpha");
    alpha.set_models(["m", "n"]);
    let terminal = with(&alpha);
    for line in
        ["provider verify alpha --json", "provider --json verify alpha", "provider verify --json alpha"]
    {
        let (code, found) = terminal.json(line);
        assert_eq!(
            (code, &found["id"], &found["verdict"]),
            (Some(0), &json!("alpha"), &json!("PASS")),
            "{found}"
        );
        assert_eq!(found["problems"], json!([]));
        assert_eq!(found["probe"]["discovered"], json!(["m", "n"]));
    }
    let ran = terminal.run("provider verify alpha --validate");
    assert!(ran.code == Some(0) && ran.out.contains("PASS"), "{ran:?}");
    let asked: Vec<Value> = chats(&alpha).iter().map(|call| call.json()["model"].clone()).collect();
    assert!(asked.contains(&json!("m")) && asked.contains(&json!("n")), "{asked:?}");
    assert!(!ran.out.contains("alpha-secret-key") && !ran.err.contains("alpha-secret-key"));
}

#[test]
fn d_verify_tries_every_key_of_a_pool() {
    let alpha = mock("alpha");
    alpha.set_keys([
        ("dead-key-2", vec![Step::error(401, "no such key dead-key-2")]),
        ("busy-key-3", vec![Step::status(429)]),
    ]);
    let mut terminal = Terminal::new();
    let keys = ["good-key-1", "dead-key-2", "busy-key-3"];
    terminal.provider(&provider(&alpha).set("modelsEndpoint", json!("/models")).keys(keys));
    let (code, found) = terminal.json("provider verify alpha --json");
    let auth: Vec<&str> = found["probes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|probe| probe["auth"].as_str())
        .collect();
    assert_eq!((code, auth), (Some(1), vec!["healthy", "invalid", "limited"]), "{found}");
    assert_eq!(found["problems"].as_array().map(Vec::len), Some(1), "each problem once: {found}");
    assert!(problems(&found).contains("invalid"), "{found}");
    assert!(!found.to_string().contains("dead-key-2"), "{found}");
}

#[test]
fn d_a_bad_moment_changes_neither_file_nor_verdict() {
    let alpha = mock_that("alpha", [Step::status(429).times(FOREVER)]);
    let terminal = with(&alpha);
    let before = terminal.read("providers/alpha.json");
    let (code, found) = terminal.json("provider verify alpha --validate --json");
    assert_eq!(
        (code, &found["verdict"], &found["probe"]["auth"]),
        (Some(0), &json!("PASS"), &json!("limited")),
        "{found}"
    );
    assert_eq!(found["probe"]["models"][0]["status"], "rate-limited", "{found}");
    alpha.script([Step::status(500).times(FOREVER)]);
    terminal.json("provider verify alpha --validate --json");
    assert_eq!(terminal.read("providers/alpha.json"), before);
}

#[test]
fn d_a_list_that_stalls_does_not_hold_verify_up() {
    let list = json!({"data": [{"id": "m"}]});
    let alpha = mock_that("alpha", [Step::json(200, &list).cut(8, End::Hold)]);
    let mut terminal = Terminal::new();
    let slow =
        provider(&alpha).set("modelsEndpoint", json!("/models")).set("timeouts", json!({"firstByteMs": 400}));
    terminal.provider(&slow);
    let (code, found) = terminal.json("provider verify alpha --json");
    assert_eq!((code, &found["probe"]["auth"]), (Some(1), &json!("unreachable")), "{found}");
}

#[test]
fn verify_says_what_nobody_would_find_out() {
    let alpha = mock("alpha");
    alpha.set_models(["other"]);
    let (_, found) = with(&alpha).json("provider verify alpha --json");
    assert!(found["warnings"].to_string().contains("`m` is not in the provider's list"), "{found}");
    assert_eq!(found["suggestion"]["models"][0]["id"], "other", "{found}");
    let terminal = Terminal::new();
    let (_, file) = provider(&alpha).keyless().set("limts", json!({"rpm": 3})).file();
    terminal.write("providers/alpha.json", &file);
    let (_, found) = terminal.json("provider verify alpha --json");
    assert!(
        found["warnings"].to_string().contains("limits"),
        "an unknown field is told with a hint: {found}"
    );
}

#[test]
fn lists_that_refresh_fetched_reach_a_running_gateway() {
    let alpha = mock_that("alpha", [Step::status(503).for_path("/models").times(1), Step::ok()]);
    alpha.set_models(["found-chat"]);
    let file = provider(&alpha).set("modelsEndpoint", json!("/models")).without_models();
    let gateway = Gateway::over([file.clone()]);
    gateway.wait_for_log("could not be fetched");
    assert_eq!(gateway.chat("alpha/found-chat").status(), 404);
    let mut terminal = Terminal::new();
    terminal.env("FREEWAY_ROOT", &gateway.folder().display().to_string());
    terminal.env("ALPHA_API_KEY", "alpha-key");
    let (code, found) = terminal.json("provider refresh --json");
    assert_eq!((code, &found["providers"][0]["models"]), (Some(0), &json!(1)), "{found}");
    eventually("the gateway looks at the disk", || gateway.chat("alpha/found-chat").status() == 200);
}

#[test]
fn what_a_command_changed_counts_for_the_next_one() {
    let acme = mock("acme");
    acme.set_models(["acme-70b"]);
    let gateway = Gateway::builder().folder("backups").file(".env", "ACME_API_KEY=acme-secret-key\n").start();
    let ran = |line: &str| {
        let ran = gateway.command(line);
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
        ran
    };
    ran(&format!("provider new acme --url {}", acme.url()));
    ran("provider verify acme --validate --apply");
    ran("doctor route acme/acme-70b");
    gateway.chat("acme/acme-70b").ok().served_by("acme");
    let target = gateway.folder().join("backups");
    gateway
        .write(".env", format!("ACME_API_KEY=acme-secret-key\nFREEWAY_BACKUP_TARGET={}\n", target.display()));
    ran("backup --init");
    ran("backup");
    let made = ran("clients new phone --json").ok();
    gateway.chat("acme/acme-70b").error(401, "invalid_api_key");
    gateway.send(&Request::chat(&hello("acme/acme-70b")).key(made["key"].as_str().expect("a key"))).ok();
    ran("clients revoke phone");
    gateway.chat("acme/acme-70b").ok();
    gateway.write("freeway.config.json", r#"{"server": {"workers": 7}}"#);
    gateway.wait_for_log("server.* changed: it counts from the next start");
    assert!(ran("init --lan").out.contains("then restart the gateway"));
    gateway.chat("acme/acme-70b").error(401, "invalid_api_key");
}

#[test]
fn a_first_start_as_the_readme_tells_it() {
    let alpha = mock("alpha");
    let mut terminal = with(&alpha);
    let (code, made) = terminal.json("init --json");
    let key = made["key"].as_str().expect("a key").to_owned();
    assert_eq!((code, &made["baseUrl"]), (Some(0), &json!("http://127.0.0.1:8787/v1")), "{made}");
    for file in [".env", "data/clients.json"] {
        let mode = std::fs::metadata(terminal.path().join(file)).expect(file).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let (_, again) = terminal.json("--json init");
    assert_eq!(again["key"], Value::Null, "a second run changes nothing");
    terminal.env("ALPHA_API_KEY", "alpha-secret-key");
    let (code, checked) = terminal.json("config check --json");
    assert_eq!(
        (code, &checked["ok"], &checked["providers"]["ready"]),
        (Some(0), &json!(true), &json!(1)),
        "{checked}"
    );
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .folder("data")
        .file("data/clients.json", terminal.read("data/clients.json"))
        .start();
    gateway.send(&Request::chat(&hello("m"))).error(401, "invalid_api_key");
    gateway.send(&Request::chat(&hello("m")).key(&key)).ok();
}

#[test]
fn a_lan_start_listens_for_others_with_keys() {
    let terminal = Terminal::new();
    let (_, made) = terminal.json("init --lan --json");
    assert!(made["key"].is_string() && made["adminKey"].is_string(), "{made}");
    assert!(terminal.read(".env").contains("FREEWAY_HOST=0.0.0.0\n"));
    assert_eq!(terminal.json("config check --json").0, Some(0));
}

#[test]
fn config_check_tells_names_that_could_never_be_asked_for() {
    let terminal = Terminal::new();
    terminal.write("freeway.config.json", r#"{"aliases": {"auto": "p/m"}, "profiles": {"Any": ["p/m"]}}"#);
    let found = terminal.run("config check");
    assert_eq!(found.code, Some(0), "{found:?}");
    for name in ["aliases.auto: not used", "profiles.Any: not used"] {
        assert!(found.out.contains(name), "{found:?}");
    }
}

#[test]
fn config_check_finds_what_serve_would_refuse() {
    for (config, place) in [
        (r#"{"guard": {"maxBodyBytes": "8mb"}}"#, "guard.maxBodyBytes"),
        (r#"{"aliases": {"x": "y", "y": "x"}}"#, "aliases"),
        (r#"{"host": "0.0.0.0"}"#, "FREEWAY_KEYS"),
        ("{", "line 1"),
    ] {
        let terminal = Terminal::new();
        terminal.write("freeway.config.json", config);
        let (code, found) = terminal.json("config check --json");
        assert_eq!((code, &found["ok"]), (Some(1), &json!(false)), "{config}: {found}");
        assert!(found.to_string().contains(place), "{config}: {found}");
        let served = terminal.run("serve --port 0");
        assert!(served.code == Some(78) && served.err.contains(place), "{config}: {served:?}");
    }
    let terminal = Terminal::new();
    terminal.write("freeway.config.json", r#"{"stratgy": "fastest"} // a slip"#);
    let (code, found) = terminal.json("config check --json");
    assert_eq!(code, Some(0), "an unknown key only warns: {found}");
    assert!(found["issues"].to_string().contains("strategy"), "and says what was meant: {found}");
}

#[test]
fn c10_one_process_owns_a_data_folder() {
    let (_alpha, gateway) = gateway_over([]);
    let mut terminal = Terminal::new();
    terminal.env("FREEWAY_ROOT", &gateway.folder().display().to_string());
    let ran = terminal.run("serve --port 0");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    gateway.chat("m").ok();
}

#[test]
fn the_command_line_wins_over_every_variable() {
    let terminal = Terminal::new();
    terminal.write(".env", "HOST=0.0.0.0\nPORT=1\n");
    let other = SilentPort::take().expect("a free port");
    let port = other.addr().port();
    let ran = terminal.run(&format!("serve --host 127.0.0.1 --port {port}"));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{ran:?}");
}

#[test]
fn a_new_provider_never_takes_the_place_of_another() {
    let terminal = Terminal::new();
    // Its file would have a made-up address, no models, and the name of a good one.
    terminal.run("provider new groq").failed("groq is built in");
    assert!(!terminal.path().join("providers").exists());
    terminal.run("provider new groq --force --json").ok();
    terminal.write(
        "providers/mine.json",
        r#"{"id": "acme", "baseUrl": "https://acme.example/v1", "auth": {"type": "none"}}"#,
    );
    for line in ["provider new acme", "provider new acme --force"] {
        terminal.run(line).failed("mine.json already");
    }
    terminal.run("config check --json").ok();
}
