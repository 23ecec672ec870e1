//! Provider keys that are pasted, imported and exported: that they count at once, are sealed, outlive a restart, and are
//! lost by nothing but being removed.
use std::os::unix::fs::PermissionsExt;

use crate::harness::*;

const KEY: &str = "pasted-key-0123456789";

/// A gateway over a provider that has no key yet.
fn keyless(alpha: &MockUpstream) -> Gateway {
    Gateway::over([provider(alpha).keys([])])
}

fn paste(gateway: &Gateway, key: &str) -> Answer {
    gateway.post("/api/providers/alpha/key", &json!({"key": key}))
}

fn forget(gateway: &Gateway, which: Value) -> Answer {
    gateway.send(&Request::new("DELETE", "/api/providers/alpha/key").body(which.to_string()))
}

fn sealed(gateway: &Gateway) -> String {
    std::fs::read_to_string(gateway.folder().join("data/keys.json")).expect("the sealed file")
}

#[test]
fn a5_a_pasted_key_counts_at_once_and_after_a_restart() {
    let alpha = mock("alpha");
    let mut gateway = keyless(&alpha);
    gateway.chat("m").error(503, "no_provider_configured");
    let pasted = paste(&gateway, KEY).ok().never_says(KEY);
    assert_eq!((pasted.at("/configured"), pasted.at("/known")), (json!(true), json!(false)));
    assert_eq!(pasted.at("/masked"), "past…6789");
    gateway.chat("m").ok();
    assert_eq!(chats(&alpha)[0].key.as_deref(), Some(KEY));
    let file = gateway.folder().join("data/keys.json");
    let mode = std::fs::metadata(&file).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!sealed(&gateway).contains(KEY) && !sealed(&gateway).contains("0123456789"));
    gateway.restart();
    gateway.chat("m").ok();
    let view = gateway.provider_view("alpha");
    assert_eq!(
        (&view["keys"][0]["source"], view["keys"].as_array().map(Vec::len)),
        (&json!("vault"), Some(1))
    );
    assert_eq!(paste(&gateway, KEY).ok().at("/known"), json!(true));
    let list = gateway.get("/api/keys").ok().never_says(KEY);
    assert_eq!(list.at("/keys/0/keyId"), pasted.at("/keyId"));
    assert_eq!(list.at("/vault/ok"), json!(true));
    assert!(!gateway.log().contains(KEY));
}

#[test]
fn keys_of_variables_come_first() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).keys(["from-variable"])]);
    paste(&gateway, KEY).ok();
    let keys = gateway.provider_view("alpha")["keys"].clone();
    assert_eq!(
        (&keys[0]["source"], &keys[1]["source"]),
        (&json!("ALPHA_API_KEY"), &json!("vault")),
        "{keys}"
    );
    // The same key from both is one.
    paste(&gateway, "from-variable").ok();
    assert_eq!(gateway.provider_view("alpha")["keys"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a5_keys_are_removed_one_by_one() {
    let alpha = mock("alpha");
    let gateway = keyless(&alpha);
    let (first, second) = ("same-a111111111-same", "same-b222222222-same");
    let id = paste(&gateway, first).ok().at("/keyId");
    paste(&gateway, second).ok();
    let refused = forget(&gateway, json!({"masked": "same…same"})).error(400, "vault_error");
    assert!(refused.text().contains("keyId"), "{refused}");
    assert_eq!(forget(&gateway, json!({"keyId": id})).ok().at("/removed"), json!(1));
    gateway.chat("m").ok();
    assert_eq!(chats(&alpha)[0].key.as_deref(), Some(second));
    let view = gateway.provider_view("alpha")["keys"][0].clone();
    assert_eq!(view["masked"], "same…same");
    assert_eq!(forget(&gateway, json!({"masked": "same…same"})).ok().at("/configured"), json!(false));
    assert_eq!(forget(&gateway, json!({})).ok().at("/ok"), json!(false));
    paste(&gateway, first).ok();
    paste(&gateway, second).ok();
    assert_eq!(forget(&gateway, json!({})).ok().at("/removed"), json!(2));
    gateway.chat("m").error(503, "no_provider_configured");
}

#[test]
fn a5_what_is_no_key_is_refused_and_not_repeated() {
    let alpha = mock("alpha");
    let gateway = keyless(&alpha);
    for bad in ["secret key", "secret\nkey", "secret,key", "secret-schl\u{fc}ssel", &"secret".repeat(1_000)] {
        paste(&gateway, bad).error(400, "vault_error").never_says(bad);
    }
    for body in [json!({}), json!({"key": 5}), json!({"key": KEY, "keys": [KEY]})] {
        gateway.post("/api/providers/alpha/key", &body).error(400, "invalid_body").never_says(KEY);
    }
    paste(&gateway, "").error(400, "vault_error");
    gateway.post("/api/providers/nobody/key", &json!({"key": KEY})).error(404, "not_found").never_says(KEY);
    assert!(!gateway.log().contains("secret"));
}

#[test]
fn all_pasted_keys_go_only_when_it_is_said() {
    let alpha = mock("alpha");
    let gateway = keyless(&alpha);
    paste(&gateway, KEY).ok();
    gateway.send(&Request::new("DELETE", "/api/providers/alpha/key")).error(400, "invalid_body");
    gateway.chat("m").ok();
    assert_eq!(forget(&gateway, json!({})).ok().at("/removed"), 1);
    let padded = format!("{}{}", " ".repeat(16 * 1024), json!({"key": KEY}));
    let large = Request::new("POST", "/api/providers/alpha/key").body(padded);
    gateway.send(&large).error(413, "payload_too_large").never_says(KEY);
}

#[test]
fn a5_a_changed_file_is_told_and_loses_nothing() {
    let alpha = mock("alpha");
    let mut gateway = keyless(&alpha);
    paste(&gateway, KEY).ok();
    let good = sealed(&gateway);
    let change = |gateway: &Gateway, text: &str| gateway.write("data/keys.json", text);
    change(&gateway, &good.replace("\"provider\": \"alpha\"", "\"provider\": \"beta\""));
    gateway.reload();
    gateway.chat("m").error(503, "no_provider_configured");
    let told = gateway.get("/api/keys").ok();
    assert_eq!((told.at("/vault/ok"), told.at("/vault/unreadable")), (json!(false), json!(1)));
    change(&gateway, &good);
    gateway.reload();
    gateway.chat("m").ok();
    // Under another secret nothing opens, and nothing is thrown away.
    gateway.stop();
    let secret = std::fs::read(gateway.folder().join("data/box.key")).expect("the secret");
    gateway.write("data/box.key", [7; 32]);
    gateway.start_again();
    gateway.chat("m").error(503, "no_provider_configured");
    gateway.wait_for_log("keys.json: 1 pasted keys cannot be opened");
    paste(&gateway, "another-key-0123").ok();
    gateway.stop();
    gateway.write("data/box.key", secret);
    gateway.start_again();
    assert_eq!(gateway.get("/api/keys").ok().at("/keys/0/masked"), "past…6789");
    change(&gateway, "{ broken");
    for _ in 0..2 {
        let told = gateway.reload();
        assert!(told.at("/issues").to_string().contains("the last good keys go on"), "{told}");
        gateway.chat("m").ok();
    }
    paste(&gateway, KEY).error(400, "vault_error");
    assert_eq!(sealed(&gateway), "{ broken");
}

#[test]
fn a_passphrase_seals_in_place_of_the_boxs_secret() {
    let alpha = mock("alpha");
    let mut gateway = keyless(&alpha);
    paste(&gateway, KEY).ok();
    gateway.set_env("FREEWAY_SECRET", "correct horse battery staple");
    gateway.restart();
    gateway.chat("m").ok();
    assert!(sealed(&gateway).contains("\"by\": \"passphrase\""), "{}", sealed(&gateway));
    assert_eq!(gateway.get("/api/keys").ok().at("/vault/sealedBy"), "passphrase");
    gateway.restart();
    gateway.chat("m").ok();
    gateway.set_env("FREEWAY_SECRET", "another passphrase");
    gateway.restart();
    gateway.chat("m").error(503, "no_provider_configured");
    assert!(!gateway.log().contains("correct horse"), "{}", gateway.log());
}

#[test]
fn fl_40_a_whole_env_file_is_shown_and_chosen_from() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let gateway = Gateway::over([provider(&alpha).keys(["known-key-1"]), provider(&beta).keys([])]);
    let text = "\u{feff}ALPHA_API_KEY=\"known-key-1\" # mine\r\nBETA_KEY='beta-key-0001'\r\nBETA_API_KEY_2=beta-key-0002,beta-key-0001\r\n\
                WHO_KNOWS=some-text-1\r\nBETA_TOKEN=your_key_here\r\n";
    let ask = |more: Value| {
        let mut body = json!({"text": text});
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        gateway.post("/api/keys/import", &body)
    };
    let preview = ask(json!({"preview": true})).ok().never_says("beta-key-0001").never_says("known-key-1");
    let states: Vec<Value> = preview
        .at("/entries")
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| entry["state"].clone())
        .collect();
    assert_eq!(states, ["known", "new", "new", "duplicate", "unknown", "invalid"], "{preview}");
    assert_eq!((preview.at("/format"), preview.at("/counts/new")), (json!("env"), json!(2)));
    assert_eq!(preview.at("/entries/1/provider"), "beta");
    gateway.chat("beta/m").error(503, "no_provider_configured");
    let added =
        ask(json!({"select": [1, 3, 4, 5], "providers": {"4": "beta"}})).ok().never_says("beta-key-0001");
    assert_eq!(added.at("/added").as_array().map(Vec::len), Some(2), "{added}");
    assert_eq!(added.at("/skipped").as_array().map(Vec::len), Some(2), "{added}");
    gateway.chat("beta/m").ok();
    assert_eq!(chats(&beta)[0].key.as_deref(), Some("beta-key-0001"));
    ask(json!({"select": ["x"]})).error(400, "invalid_body").about("select");
    ask(json!({"format": "xml"})).error(400, "invalid_body").about("format");
    ask(json!({"select": [1], "providers": {"1": 5}})).error(400, "invalid_body").about("providers");
    gateway.post("/api/keys/import", &json!({})).error(400, "invalid_body").about("text");
}

#[test]
fn fl_40_what_is_exported_is_read_again() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).keys(["variable-key-1"])]);
    gateway.post("/api/providers/alpha/key", &json!({"key": KEY, "label": "=mine"})).ok();
    let other = keyless(&alpha);
    for format in ["json", "env", "csv"] {
        let export = gateway.get(&format!("/api/keys/export?format={format}")).ok();
        let text = export.text();
        assert!(text.contains("variable-key-1") && text.contains(KEY), "{export}");
        assert!(export.header("content-disposition").is_some_and(|value| value.contains(format)), "{export}");
        let read = other.post("/api/keys/import", &json!({"text": text})).ok();
        assert_eq!((read.at("/format"), read.at("/counts/new")), (json!(format), json!(2)), "{read}");
    }
    // A slip would give away more than was meant.
    for slip in ["format=xml", "healthy=maybe", "helthy=true"] {
        gateway.get(&format!("/api/keys/export?{slip}")).error(400, "invalid_body");
    }
    let at = gateway.get("/api/keys/export").ok().at("/exportedAt");
    let at = at.as_str().expect("an instant");
    assert!(at.len() == 20 && at.contains('-') && at.ends_with('Z'), "{at}");
    gateway.wait_for_log("exported in plain text");
    let env = gateway.get("/api/keys/export?format=env").text();
    assert!(env.contains("ALPHA_API_KEY=variable-key-1\nALPHA_API_KEY_2="), "{env}");
    assert!(gateway.get("/api/keys/export?format=csv").text().contains("'=mine"));
    alpha.set_keys([("variable-key-1", vec![Step::status(401)])]);
    gateway.chat("m").ok();
    let healthy = gateway.get("/api/keys/export?healthy=true").ok();
    assert!(healthy.text().contains(KEY) && !healthy.text().contains("variable-key-1"), "{healthy}");
}

#[test]
fn provider_keys_are_the_owners_affair() {
    let alpha = mock("alpha");
    let builder = Gateway::builder().provider(provider(&alpha)).client_key("fw-right");
    let gateway = builder.env("FREEWAY_ADMIN_KEY", "admin-secret").start();
    for path in ["/api/keys", "/api/keys/export"] {
        gateway.get(path).error(403, "admin_required");
        gateway.send(&Request::get(path).key("admin-secret")).ok();
    }
    paste(&gateway, KEY).error(403, "admin_required");
    let body = Request::new("DELETE", "/api/providers/alpha/key").key("fw-right");
    gateway.send(&body).error(403, "admin_required");
    gateway.post("/api/keys/import", &json!({"text": "ALPHA_API_KEY=x-1"})).error(403, "admin_required");
}

#[test]
fn a_running_gateway_takes_up_what_the_terminal_imported() {
    let alpha = mock("alpha");
    let gateway = keyless(&alpha);
    let mut terminal = Terminal::new();
    terminal.env("FREEWAY_ROOT", &gateway.folder().display().to_string());
    terminal.write("old.env", &format!("ALPHA_API_KEY={KEY}\n"));
    let (code, added) = terminal.json("keys import old.env --json");
    assert_eq!((code, added["added"].as_array().map(Vec::len)), (Some(0), Some(1)), "{added}");
    eventually("the gateway has the key", || gateway.chat("m").status() == 200);
    let (_, listed) = Terminal::new().json("keys list --json");
    assert_eq!(listed["vault"]["problem"], Value::Null, "nothing is wrong before the first start");
    let (_, listed) = terminal.json("keys list --json");
    assert_eq!(listed["keys"][0]["source"], "vault", "{listed}");
}

/// The keys of every provider, as an export tells them.
fn exported(terminal: &Terminal) -> Vec<(String, String)> {
    let (code, all) = terminal.json("keys export");
    assert_eq!(code, Some(0), "{all}");
    let of = |key: &Value, name: &str| key[name].as_str().expect("a text").to_owned();
    let keys = all["keys"].as_array().expect("a list").iter();
    let mut keys: Vec<_> = keys.map(|key| (of(key, "provider"), of(key, "key"))).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn fl_40_the_terminal_exports_what_it_imports_in_every_format() {
    let folder = || {
        let terminal = Terminal::new();
        terminal.write("providers/_bundled.json", "{}");
        terminal.write(
            "providers/acme.json",
            r#"{"id": "acme", "baseUrl": "https://acme.example/v1", "auth": {"envKeys": ["ACME_TOKEN"]}, "models": [{"id": "m"}]}"#,
        );
        terminal
    };
    let first = folder();
    first.write(
        "old.env",
        "\u{feff}GEMINI_API_KEY=\"AIzaone0123456789\" # mine\r\nGOOGLE_AI_API_KEY=AIzatwo0123456789\r\n\
         ACME_TOKEN='acme-#$\"quoted'\r\nexport GROQ_API_KEY_2=gsk_a0123456789,gsk_b0123456789\r\n",
    );
    let (code, preview) = first.json("keys import old.env --preview --json");
    assert_eq!((code, &preview["counts"]["new"]), (Some(0), &json!(5)), "{preview}");
    assert!(exported(&first).is_empty(), "a preview changes nothing");
    first.json("keys import old.env --json");
    let all = exported(&first);
    assert_eq!(all.len(), 5, "{all:?}");
    assert!(all.contains(&("acme".into(), "acme-#$\"quoted".into())), "{all:?}");
    for format in ["env", "json", "csv"] {
        let text = first.run(&format!("keys export --format {format}")).out;
        let second = folder();
        second.write("keys.txt", &text);
        let (code, read) = second.json("keys import keys.txt --json");
        assert_eq!((code, &read["format"], &read["faults"]), (Some(0), &json!(format), &json!([])), "{read}");
        assert_eq!(exported(&second), all, "{format}");
        let (_, again) = second.json("keys import keys.txt --preview --json");
        assert_eq!((&again["counts"]["known"], &again["counts"]["new"]), (&json!(5), &json!(0)), "{again}");
        // Half a file is half the keys at most, told, and never something else.
        let half = folder();
        half.write("keys.txt", &text[..text.len() / 2]);
        half.run("keys import keys.txt --json");
        let kept = exported(&half);
        assert!(
            kept.len() < all.len() && kept.iter().all(|key| all.contains(key) || format != "json"),
            "{kept:?}"
        );
    }
    let (_, names) = first.json("keys export --format env --json");
    let text = names["text"].as_str().expect("a text").to_owned();
    let names: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len(), "each name once: {names:?}");
    assert!(text.contains("ACME_BASE_URL=https://acme.example/v1\n"), "{text}");
}
