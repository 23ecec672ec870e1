//! Providers that are odd, each in its own way, and added by one file: checked by `provider verify`, served by the
//! gateway, and what their upstream received. The members are those of `docs/ADDING-A-PROVIDER.md`, which is held to
//! the format, too.
use std::fs;

use crate::harness::*;

const KEY: &str = "odd-key-0123456789";

/// A gateway that knows one odd provider, and a terminal over the same file.
struct Odd {
    mock: MockUpstream,
    gateway: Gateway,
    terminal: Terminal,
}

impl Odd {
    /// `members` are those of the file that make it odd, as somebody writes them.
    fn new(mock: MockUpstream, members: &str) -> Odd {
        let file = format!(
            "{{\n  // One file, no code.\n  \"id\": \"odd\",\n  \"baseUrl\": \"{}\",\n  {members},\n}}\n",
            mock.url()
        );
        let mut terminal = Terminal::new();
        terminal.write("providers/odd.json", &file);
        terminal.env("ODD_API_KEY", KEY);
        let builder = Gateway::builder().file("providers/odd.json", file).env("ODD_API_KEY", KEY);
        Odd { mock, gateway: builder.start(), terminal }
    }

    /// With a bearer key, one model and no list, beside what makes it odd.
    fn usual(mock: MockUpstream, members: &str) -> Odd {
        let usual = "\"auth\": { \"envKeys\": [\"ODD_API_KEY\"] }, \"modelsEndpoint\": null,\n  \
                     \"models\": [{ \"id\": \"m\", \"caps\": [\"chat\", \"tools\", \"json\"] }]";
        Odd::new(mock, &format!("{usual},\n  {members}"))
    }

    /// The check of somebody who adds it.
    fn verified(&self) {
        let (code, found) = self.terminal.json("provider verify odd --validate --json");
        let outcome = (code, &found["verdict"], &found["warnings"]);
        assert_eq!(outcome, (Some(0), &json!("PASS"), &json!([])), "{found}");
        assert!(!found.to_string().contains(KEY), "{found}");
    }

    /// The last chat that its upstream got.
    fn last(&self) -> Call {
        chats(&self.mock).pop().expect("a chat")
    }
}

#[test]
fn a_key_in_a_header_of_its_own() {
    let odd = Odd::new(
        mock("odd"),
        r#""auth": {"type": "header", "header": "x-odd-key", "envKeys": ["ODD_API_KEY"]}, "models": [{"id": "mock-small"}]"#,
    );
    odd.verified();
    odd.gateway.chat("odd/mock-small").ok().never_says(KEY);
    for call in odd.mock.calls() {
        assert_eq!(
            (call.header("x-odd-key"), call.header("authorization")),
            (Some(KEY), None),
            "{}",
            call.path()
        );
    }
    // A word before the key.
    let odd = Odd::new(
        mock("odd"),
        r#""auth": {"type": "header", "header": "authorization", "prefix": "Token ", "envKeys": ["ODD_API_KEY"]}, "modelsEndpoint": null, "models": [{"id": "m"}]"#,
    );
    odd.verified();
    odd.gateway.chat("m").ok();
    assert_eq!(odd.last().header("authorization"), Some(format!("Token {KEY}").as_str()));
}

#[test]
fn a_key_in_the_address() {
    let odd = Odd::new(
        mock("odd"),
        r#""auth": {"type": "query", "query": "key", "envKeys": ["ODD_API_KEY"]}, "models": [{"id": "mock-small"}]"#,
    );
    odd.verified();
    odd.gateway.chat("odd/mock-small").ok();
    for call in odd.mock.calls() {
        let sent = (call.request.query.as_str(), call.header("authorization"));
        assert_eq!(sent, (format!("key={KEY}").as_str(), None), "{}", call.path());
    }
    assert!(!odd.gateway.log().contains(KEY));
}

#[test]
fn a_bare_array_for_a_catalog() {
    let odd = mock("odd");
    let list = json!([{"id": "found-chat", "context_window": 4_096}, {"id": "found-embed"}]);
    odd.script([Step::json(200, &list).for_path("/models").times(FOREVER)]);
    let odd = Odd::new(odd, r#""auth": {"envKeys": ["ODD_API_KEY"]}, "modelsPath": "[].id", "models": []"#);
    let served = || odd.gateway.chat("odd/found-chat").status() == 200;
    eventually("what the list names is served", served);
    assert_eq!(odd.last().json()["model"], "found-chat");
    let listed = odd.gateway.get("/v1/models/odd/found-chat").ok();
    assert_eq!(listed.at("/freeway/context"), json!(4_096), "{listed}");
    odd.gateway.embed("odd/found-embed", json!("hi")).ok();
    odd.verified();
    // Somebody who left the path out is told it, and has it written.
    odd.terminal.write(
        "providers/odd.json",
        &odd.terminal.read("providers/odd.json").replace("\"modelsPath\": \"[].id\", ", ""),
    );
    assert_eq!(odd.terminal.run("provider verify odd --apply").code, Some(1));
    assert!(odd.terminal.read("providers/odd.json").contains("// One file, no code."));
    odd.verified();
}

#[test]
fn an_output_limit_and_other_fields_by_another_name() {
    let odd = Odd::usual(
        mock("odd"),
        r#""maxTokensField": "max_new_tokens", "renameParams": {"seed": "random_seed"}, "forceParams": {"safe_prompt": false}, "defaultParams": {"temperature": 0.7}"#,
    );
    odd.verified();
    assert!(odd.last().json().get("max_new_tokens").is_some(), "the check itself asks so, too");
    for (sent, cap) in [("max_tokens", 7), ("max_completion_tokens", 8)] {
        odd.gateway.chat_with("m", json!({sent: cap, "seed": 5})).ok();
        let got = odd.last().json().clone();
        assert_eq!((&got["max_new_tokens"], &got["random_seed"]), (&json!(cap), &json!(5)), "{got}");
        assert_eq!((&got["safe_prompt"], &got["temperature"]), (&json!(false), &json!(0.7)), "{got}");
        for gone in ["max_tokens", "max_completion_tokens", "seed"] {
            assert!(got.get(gone).is_none(), "{gone}: {got}");
        }
    }
    odd.gateway.chat_with("m", json!({"temperature": 0.1})).ok();
    assert_eq!(odd.last().json()["temperature"], json!(0.1), "a default is no order");
}

#[test]
fn a_parameter_that_is_forbidden() {
    let odd = Odd::usual(
        mock("odd"),
        r#""dropParams": ["logit_bias", "user"], "streamUsage": false, "dropMessageFields": ["name"]"#,
    );
    odd.verified();
    let body = json!({
        "logit_bias": {"1": 2}, "user": "me", "top_p": 0.5,
        "messages": [{"role": "user", "name": "me", "content": "hi"}],
    });
    odd.gateway.chat_with("m", body.clone()).ok().after_attempts(1);
    let got = odd.last().json().clone();
    assert_eq!((got.get("logit_bias"), got.get("user"), &got["top_p"]), (None, None, &json!(0.5)), "{got}");
    assert_eq!(got["messages"], json!([{"role": "user", "content": "hi"}]));
    odd.gateway.stream_with("m", body).ok().well_formed_stream();
    assert!(odd.last().json().get("stream_options").is_none(), "{}", odd.last().json());
}

#[test]
fn a_strict_one_that_refuses_what_it_does_not_know() {
    let refusal = json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "verbosity"],
        "msg": "Extra inputs are not permitted", "input": "low"}]});
    // The check asks twice.
    let steps = [Step::ok().times(2), Step::json(422, &refusal), Step::ok().times(FOREVER)];
    let odd = Odd::usual(mock_that("odd", steps), r#""dropParams": ["store"]"#);
    odd.verified();
    let body = json!({"store": true, "verbosity": "low"});
    odd.gateway.chat_with("m", body.clone()).ok().after_attempts(2);
    let sent: Vec<Value> = chats(&odd.mock)[1..].iter().map(|call| call.json().clone()).collect();
    assert!(sent.iter().all(|body| body.get("store").is_none()), "the file knows this one: {sent:?}");
    assert_eq!((sent[1].get("verbosity").is_some(), sent[2].get("verbosity")), (true, None), "{sent:?}");
    // And this one was learned.
    odd.gateway.chat_with("m", body).ok().after_attempts(1);
    assert!(odd.last().json().get("verbosity").is_none(), "{}", odd.last().json());
}

#[test]
fn other_paths_and_an_account_in_the_address() {
    let completion = json!({"id": "1", "object": "chat.completion", "choices": [{"index": 0,
        "message": {"role": "assistant", "content": "generated"}, "finish_reason": "stop"}]});
    let vectors =
        json!({"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [1.0, 0.0]}]});
    let list = json!({"result": {"models": [{"name": "gen-chat"}, {"name": "gen-embed"}]}});
    let alpha = mock_that(
        "odd",
        [
            Step::json(200, &list).for_path("/catalog").times(FOREVER),
            Step::json(200, &vectors).for_path("/vectors").times(FOREVER),
            Step::json(200, &completion).times(FOREVER),
        ],
    );
    let base = format!("http://{}/accounts/${{ODD_ACCOUNT}}", alpha.addr());
    let file = json!({
        "id": "odd", "baseUrl": base, "auth": {"envKeys": ["ODD_API_KEY"]}, "headers": {"x-team": "${ODD_TEAM}"},
        "paths": {"chat": "/generate", "embeddings": "/vectors", "models": "/catalog"},
        "modelsPath": "result.models[].name",
        "models": [{"id": "gen-chat"}, {"id": "gen-embed", "caps": ["embed"]}],
    });
    let mut terminal = Terminal::new();
    terminal.write("providers/odd.json", &file.to_string());
    let mut builder = Gateway::builder().file("providers/odd.json", file.to_string());
    for (name, value) in [("ODD_API_KEY", KEY), ("ODD_ACCOUNT", "acc-17"), ("ODD_TEAM", "home")] {
        terminal.env(name, value);
        builder = builder.env(name, value);
    }
    let odd = Odd { mock: alpha, gateway: builder.start(), terminal };
    odd.verified();
    assert_eq!(odd.gateway.chat("gen-chat").ok().content(), "generated");
    odd.gateway.embed("gen-embed", json!("hi")).ok();
    let mut paths: Vec<String> = odd.mock.calls().iter().map(|call| call.path().to_owned()).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths, ["/accounts/acc-17/catalog", "/accounts/acc-17/generate", "/accounts/acc-17/vectors"]);
    assert!(odd.mock.calls().iter().all(|call| call.header("x-team") == Some("home")));
}

#[test]
fn errors_of_its_own() {
    let own = json!({"success": false, "result": null,
        "errors": [{"code": 3040, "message": "AiError: out of neurons until midnight"}]});
    let odd = mock("odd");
    odd.set_by_model([("empty", vec![Step::json(400, &own).times(FOREVER)])]);
    let members = r#""errorWords": {"out of neurons": "dailyQuota"},
  "auth": { "envKeys": ["ODD_API_KEY"] }, "modelsEndpoint": null, "models": [{"id": "m"}, {"id": "empty"}]"#;
    let odd = Odd::new(odd, members);
    let told = odd.gateway.chat("odd/empty").error(429, "all_attempts_failed");
    assert!(told.text().contains("out of neurons"), "{told}");
    let bench = odd.gateway.get("/api/benches").ok().at("/benches/0");
    assert_eq!(bench["cause"], "quota", "{bench}");
    // Until then it rests, and is not asked.
    let calls = chats(&odd.mock).len();
    odd.gateway.chat("odd/empty").error(429, "all_providers_blocked");
    assert_eq!(chats(&odd.mock).len(), calls);
    let (code, found) = odd.terminal.json("provider verify odd --validate --json");
    let status = |id: &str| {
        let models = found["probe"]["models"].as_array().expect("a list").iter();
        models.filter(|model| model["id"] == id).map(|model| model["status"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        (code, status("m"), status("empty")),
        (Some(0), vec![json!("ok")], vec![json!("rate-limited")]),
        "{found}"
    );
}

/// The guide that says how a provider is added.
fn guide() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/ADDING-A-PROVIDER.md");
    fs::read_to_string(path).expect("the guide is there")
}

#[test]
fn every_way_out_in_the_guide_is_taken() {
    let guide = guide();
    let rows = guide.lines().filter(|line| line.starts_with("| ") && line.contains("`\""));
    let mut tried = 0;
    for row in rows {
        for snippet in row.split('`').skip(1).step_by(2).filter(|snippet| snippet.starts_with('"')) {
            // Others are values, which stand beside their member.
            if !snippet.contains("\": ") || snippet.contains("...") {
                continue;
            }
            let mut file: Value = serde_json::from_str(&format!("{{{snippet}}}"))
                .unwrap_or_else(|error| panic!("{snippet}: {error}"));
            let members = file.as_object_mut().expect("an object");
            members.insert("id".into(), json!("acme"));
            members.entry("baseUrl").or_insert_with(|| json!("https://api.acme.example/v1"));
            members.entry("auth").or_insert_with(|| json!({"type": "none"}));
            let terminal = Terminal::new();
            terminal.write("providers/acme.json", &file.to_string());
            let (_, found) = terminal.json("config check --json");
            assert_eq!(found["issues"], json!([]), "{snippet}: {found}");
            tried += 1;
        }
    }
    assert!(tried > 25, "only {tried} examples were found");
}

#[test]
fn every_field_of_the_format_stands_in_the_guide() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/providers/_schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(path).expect("the schema")).expect("JSON");
    let guide = guide();
    // What only describes a provider, or has one value.
    let told_elsewhere = ["$schema", "label", "docs", "console", "adapter", "notes"];
    let fields = schema["properties"].as_object().expect("its members").keys();
    let missing: Vec<&String> = fields
        .filter(|name| !told_elsewhere.contains(&name.as_str()) && !guide.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "the guide does not speak of {missing:?}");
}
