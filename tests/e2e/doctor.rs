//! What the terminal says of a gateway: what is amiss, whom a request would ask, and what to write into a provider's file.
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use crate::harness::*;

/// A terminal in the folder of a gateway, with its port as everybody would know it.
fn beside(gateway: &Gateway) -> Terminal {
    let mut terminal = Terminal::new();
    terminal.env("FREEWAY_ROOT", &gateway.folder().display().to_string());
    terminal.env("FREEWAY_PORT", &gateway.addr().port().to_string());
    terminal
}

fn refs(found: &Value, list: &str) -> Vec<String> {
    let all = found[list].as_array().unwrap_or_else(|| panic!("no {list} in {found}"));
    all.iter().map(|one| one["ref"].as_str().expect("a reference").to_owned()).collect()
}

fn codes(found: &Value) -> Vec<&str> {
    let all = found["findings"].as_array().unwrap_or_else(|| panic!("no findings in {found}"));
    all.iter().filter_map(|finding| finding["code"].as_str()).collect()
}

/// The demo, ended when dropped.
struct Demo {
    child: Child,
    address: String,
}

impl Demo {
    fn start(terminal: &Terminal) -> Demo {
        let mut child = Command::new(env!("CARGO_BIN_EXE_freeway"))
            .args(["serve", "--demo", "--port", "0"])
            .current_dir(terminal.path())
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the built program starts");
        let lines = BufReader::new(child.stdout.take().expect("piped above")).lines().map_while(Result::ok);
        let mut said =
            lines.filter_map(|line| Some(line.strip_prefix("freeway listening on http://")?.to_owned()));
        let address = said.next().expect("it says where it listens");
        Demo { child, address }
    }

    fn port(&self) -> &str {
        self.address.rsplit(':').next().expect("a port")
    }

    fn chat(&self, model: &str) -> Answer {
        Wire::connect(self.address.parse().expect("an address")).ask(&Request::chat(&hello(model)))
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        drop((self.child.kill(), self.child.wait()));
    }
}

#[test]
fn on_the_demo_the_next_request_does_what_was_said() {
    let terminal = Terminal::new();
    let demo = Demo::start(&terminal);
    let route = |line: &str| terminal.json(&format!("doctor route {line} --json --port {}", demo.port()));
    let (code, told) = route("auto");
    assert_eq!((code, &told["ok"], &told["strategy"]), (Some(0), &json!(true), &json!("priority")), "{told}");
    let first = told["candidates"][0].clone();
    for member in ["place", "score", "used", "key", "priority", "fits"] {
        assert!(first.get(member).is_some_and(|value| !value.is_null()), "{member}: {first}");
    }
    assert!(told["source"].as_str().is_some_and(|source| source.contains(&demo.address)), "{told}");
    let answer = demo.chat("auto").ok();
    assert_eq!(answer.header("x-freeway-provider"), first["provider"].as_str(), "{answer}");
    assert_eq!(answer.header("x-freeway-model"), first["model"].as_str(), "{answer}");
    // The demo's shaky model fails at the first provider, which is on the bench then.
    let (_, told) = route("shaky");
    assert_eq!(refs(&told, "candidates"), ["alpha/alpha-shaky", "beta/beta-shaky"]);
    demo.chat("shaky").ok().after_attempts(2);
    let (_, told) = route("shaky");
    assert_eq!(
        (refs(&told, "candidates"), refs(&told, "blocked")),
        (vec!["beta/beta-shaky".to_owned()], vec!["alpha/alpha-shaky".to_owned()]),
        "{told}"
    );
    let blocked = &told["blocked"][0];
    assert!(blocked["retryAfterMs"].as_u64().is_some_and(|ms| ms > 0), "{blocked}");
    assert!(blocked["reason"].as_str().is_some_and(|reason| reason.contains("cooling down")), "{blocked}");
    demo.chat("shaky").ok().after_attempts(1);
    let ran = terminal.run(&format!("doctor route shaky --port {}", demo.port()));
    let line =
        |text: &str| ran.out.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{ran:?}"));
    assert!(
        line("beta/beta-shaky").contains("score") && line("alpha/alpha-shaky").contains("cooling down"),
        "{ran:?}"
    );
}

#[test]
fn what_a_request_needs_decides_who_is_told() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let text = json!({"caps": ["chat"], "context": 4_000});
    let gateway = Gateway::over([
        provider(&alpha).priority(1).model_with("text", text),
        provider(&beta).priority(2).keys(["k1", "k2"]).model("all").embed_model("vectors"),
    ]);
    let terminal = beside(&gateway);
    let told = |line: &str| terminal.json(&format!("doctor route {line} --json")).1;
    assert_eq!(refs(&told("auto"), "candidates"), ["alpha/text", "beta/all"]);
    assert_eq!(refs(&told("auto --tools"), "candidates"), ["beta/all"]);
    assert_eq!(refs(&told("--needs vision,json"), "candidates"), ["beta/all"]);
    assert_eq!(refs(&told("auto --needs embed"), "candidates"), ["beta/vectors"]);
    let long = told("auto --tokens 20000");
    assert_eq!(refs(&long, "candidates"), ["beta/all", "alpha/text"]);
    assert_eq!(
        (&long["candidates"][0]["fits"], &long["candidates"][1]["fits"]),
        (&json!("whole"), &json!("shortened"))
    );
    let turned = told("auto --strategy round-robin");
    assert_eq!((&turned["strategy"], refs(&turned, "candidates").len()), (&json!("round-robin"), 2));
    let (code, none) = terminal.json("doctor route nothing-like-that --json");
    assert_eq!((code, &none["ok"]), (Some(1), &json!(false)), "{none}");
    assert!(alpha.calls().is_empty() && beta.calls().is_empty(), "a look asks nobody");
    // The same over the API, which refuses slips by name.
    assert_eq!(gateway.get("/api/route?model=auto").ok().at("/candidates/0/ref"), "alpha/text");
    gateway.get("/api/route?model=none-such").error(404, "model_not_found");
    gateway.get("/api/route?strategy=best").error(400, "invalid_body").about("strategy");
    gateway.get("/api/route?needs=wings").error(400, "invalid_body").about("needs");
}

#[test]
fn the_saved_state_speaks_for_a_gateway_that_does_not_run() {
    let alpha = mock_that("alpha", [Step::error(401, "no such key")]);
    let beta = mock("beta");
    let mut gateway =
        Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2).limits(json!({"rpd": 1}))]);
    gateway.chat("auto").ok();
    let mut terminal = beside(&gateway);
    for provider in ["ALPHA", "BETA"] {
        terminal.env(&format!("{provider}_API_KEY"), &format!("{}-key", provider.to_lowercase()));
    }
    let check = |terminal: &Terminal, source: &str| {
        let (code, told) = terminal.json("doctor route auto --json");
        assert_eq!((code, refs(&told, "blocked").len()), (Some(1), 2), "{told}");
        assert!(told["source"].as_str().is_some_and(|from| from.contains(source)), "{told}");
        let reasons = told["blocked"].to_string();
        assert!(reasons.contains("key was refused") && reasons.contains("rpd limit reached"), "{told}");
    };
    check(&terminal, "asked the gateway");
    let (code, found) = terminal.json("doctor --json");
    assert!(code == Some(1) && found.to_string().contains("is invalid"), "{found}");
    gateway.stop();
    check(&terminal, "saved state");
    let (code, found) = terminal.json("doctor --json");
    assert!(code == Some(1) && codes(&found).contains(&"key_refused"), "{found}");
    gateway.start_again();
    // It listens elsewhere now, which its folder tells.
    check(&terminal, &format!("asked the gateway at http://{}", gateway.addr()));
    let found = terminal.json("doctor --json").1;
    assert_eq!(found["gateway"]["sameFolder"], json!(true), "{found}");
    // A kill leaves state beside the database.
    gateway.kill();
    check(&terminal, "saved state");
}

#[test]
fn the_folder_opens_the_owners_routes_and_else_the_admin_key_does() {
    let alpha = mock("alpha");
    let builder = Gateway::builder().provider(provider(&alpha)).client_key("fw-right-and-long-enough");
    let gateway = builder.env("FREEWAY_ADMIN_KEY", "admin-secret-0123456789").start();
    let inside = beside(&gateway);
    let (code, told) = inside.json("doctor route auto --json");
    assert_eq!((code, refs(&told, "candidates")), (Some(0), vec!["alpha/m".to_owned()]), "{told}");
    // From another folder it is a stranger.
    let mut outside = Terminal::new();
    let port = format!("--port {}", gateway.addr().port());
    let ran = outside.run(&format!("doctor route auto {port}"));
    assert!(ran.code == Some(1) && ran.err.contains("FREEWAY_ADMIN_KEY"), "{ran:?}");
    let (_, found) = outside.json(&format!("doctor {port} --json"));
    assert_eq!(found["gateway"]["sameFolder"], json!(false), "{found}");
    assert!(codes(&found).contains(&"not_told"), "{found}");
    outside.env("FREEWAY_ADMIN_KEY", "admin-secret-0123456789");
    let (code, told) = outside.json(&format!("doctor route auto {port} --json"));
    assert_eq!((code, refs(&told, "candidates")), (Some(0), vec!["alpha/m".to_owned()]), "{told}");
    let ran = outside.run(&format!("doctor {port}"));
    assert!(!ran.out.contains("admin-secret") && !ran.out.contains("wants its admin key"), "{ran:?}");
}

#[test]
fn each_thing_that_is_amiss_is_told_with_what_to_do() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let mut terminal = Terminal::new();
    terminal.provider(&provider(&alpha));
    terminal.provider(&provider(&beta).keys([]));
    let path = terminal.path().to_owned();
    let mode = |file: &str, mode| {
        std::fs::set_permissions(path.join(file), std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    let found = |terminal: &Terminal| terminal.json("doctor --json");
    let (code, first) = found(&terminal);
    let errors = |found: &Value| found["counts"]["error"].as_u64();
    assert_eq!((code, &first["ok"], &first["gateway"]), (Some(0), &json!(true), &Value::Null), "{first}");
    assert!(codes(&first).contains(&"no_key"), "{first}");
    terminal.write(".env", "FREEWAY_KEYS=short\nFREEWAY_ADMIN_KEY=short\n");
    mode(".env", 0o644);
    terminal.write("freeway.config.json", r#"{"guard": {"scan": {"mode": "off"}}, "allowPaid": true}"#);
    let (code, weak) = found(&terminal);
    for code in ["open_to_others", "weak_key", "same_key", "scan_off", "paid"] {
        assert!(codes(&weak).contains(&code), "{code}: {weak}");
    }
    assert_eq!((code, errors(&weak)), (Some(1), Some(1)), "{weak}");
    for finding in weak["findings"].as_array().expect("a list") {
        for member in ["severity", "code", "where", "what", "do"] {
            assert!(finding[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {finding}");
        }
    }
    assert!(!weak.to_string().contains("short\""), "no key is told: {weak}");
    mode(".env", 0o600);
    terminal.write(".env", "FREEWAY_HOST=0.0.0.0\n");
    let (code, open) = found(&terminal);
    assert!(code == Some(1) && codes(&open).contains(&"open_to_all"), "{open}");
    assert!(!codes(&open).contains(&"open_to_others"), "{open}");
    terminal.write(".env", "PORT=eighty\n");
    let (code, bad) = found(&terminal);
    assert!(code == Some(1) && codes(&bad).contains(&"file"), "{bad}");
    terminal.write(".env", "");
    terminal.write("providers/alpha.json", "{");
    let ran = terminal.run("doctor");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.out.contains("error    alpha.json: ") && ran.out.contains("no provider has a key"),
        "{ran:?}"
    );
    assert!(ran.out.lines().any(|line| line.trim_start().starts_with("-> ")), "{ran:?}");
}

#[test]
fn a_live_look_asks_each_key_once_and_names_who_is_not_there() {
    let alpha = mock("alpha");
    alpha.set_models(["other"]);
    alpha.set_keys([("dead-key-0001", vec![Step::error(401, "no such key: dead-key-0001")])]);
    let closed = ClosedPort::take().expect("a free port");
    let mut terminal = Terminal::new();
    let listed = provider(&alpha).set("modelsEndpoint", json!("/models"));
    terminal.provider(&listed.keys(["good-key-0001", "dead-key-0001"]));
    terminal.provider(&Provider::at("gone", &closed.url()));
    assert_eq!(terminal.json("doctor --json").0, Some(0), "without --live nobody is asked");
    assert!(alpha.calls().is_empty());
    let (code, found) = terminal.json("doctor --live --json");
    assert!(code == Some(1) && codes(&found).contains(&"unreachable"), "{found}");
    assert!(
        codes(&found).contains(&"key_refused") && !found.to_string().contains("dead-key-0001"),
        "{found}"
    );
    assert_eq!((alpha.calls_to("/models").len(), chats(&alpha).len()), (2, 0));
    let severity = |found: &Value, code: &str| {
        let mut all = found["findings"].as_array().expect("a list").iter();
        all.find(|finding| finding["code"] == code).map(|finding| finding["severity"].clone())
    };
    assert_eq!(severity(&found, "unreachable"), Some(json!("warning")), "others are there: {found}");
    let mut alone = Terminal::new();
    alone.provider(&Provider::at("gone", &closed.url()));
    let (code, found) = alone.json("doctor --live --json");
    assert_eq!((code, severity(&found, "unreachable")), (Some(1), Some(json!("error"))), "{found}");
    // What a refresh found out is remembered, and compared.
    terminal.json("provider refresh alpha --json");
    let (_, found) = terminal.json("doctor --json");
    assert!(codes(&found).contains(&"stale_model"), "{found}");
}

/// The report of a check with what differs between two runs made alike.
fn report(text: &str, mock: &MockUpstream, folder: &std::path::Path) -> String {
    let text = text.replace(&mock.url(), "URL").replace(&folder.display().to_string(), "FOLDER");
    let mut parts = text.split("ms)");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.truncate(out.trim_end_matches(|c: char| c.is_ascii_digit()).len());
        out += "Nms)";
        out += part;
    }
    out
}

#[test]
fn verify_prints_the_report_step_by_step() {
    let alpha = mock("alpha");
    alpha.set_models(["m", "new-code", "text-embed"]);
    let told = [("x-ratelimit-limit-requests-minute", "60"), ("x-ratelimit-limit-tokens-minute", "40000")];
    let told = told.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    alpha.script([Step { headers: told, ..Step::ok() }.times(FOREVER)]);
    let mut terminal = Terminal::new();
    let file =
        provider(&alpha).set("modelsEndpoint", json!("/models")).limits(json!({"rpm": null, "tpm": 30_000}));
    terminal.provider(&file.keys(["alpha-key-0123456789"]));
    let run = |line: &str| {
        let ran = terminal.run(line);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
        report(&ran.out, &alpha, terminal.path())
    };
    let expected = "\
1. file
  ✓ providers/alpha.json parses
2. environment
  ✓ baseUrl resolves to URL
  ✓ 1 key in the pool: alph…6789 (ALPHA_API_KEY)
3. live probe
  ✓ auth accepted (Nms)
  ✓ discovery found 3 models via /models → data[].id
4. limits
  ✓ observed from response headers: rpm=60, tpm=40000
  + rpm: file says null, provider reports 60 — consider recording it
  ! limits.tpm: the file says 30000, the provider tells 40000
5. suggested edits
  + \"limits\": { \"rpm\": 60, \"tpm\": 40000 }
  + \"limitsSource\": \"observed\"
  + \"models\": [{ \"id\": \"new-code\", \"context\": null, \"caps\": [\"chat\", \"code\"] }, { \"id\": \"text-embed\", \"context\": null, \"caps\": [\"embed\"] }]

PASS — 0 problems, 1 warning
";
    assert_eq!(run("provider verify alpha"), expected);
    let applied = run("provider verify alpha --validate --apply");
    assert!(applied.contains("  ✓ 3 of 3 models answered\n"), "{applied}");
    assert!(applied.contains("6. applied\n  ✓ wrote FOLDER/providers/alpha.json\n"), "{applied}");
    let again = run("provider verify alpha --validate --apply");
    assert!(
        again.contains("5. suggested edits\n  ✓ none\n6. applied\n  ✓ nothing had to be changed\n"),
        "{again}"
    );
    assert!(again.ends_with("\nPASS — 0 problems, 0 warnings\n"), "{again}");
}

#[test]
fn d_a_limit_of_the_moment_deletes_nothing_and_every_key_is_asked() {
    let alpha = mock("alpha");
    alpha.set_models(["m", "busy", "slow"]);
    alpha.set_by_model([
        ("busy", vec![Step::status(429).times(FOREVER)]),
        ("slow", vec![Step::status(503).times(FOREVER)]),
        ("gone", vec![Step::error(404, "no such model").times(FOREVER)]),
    ]);
    alpha.set_keys([("dead-key-0001", vec![Step::error(401, "no such key")])]);
    let mut terminal = Terminal::new();
    let file = provider(&alpha).set("modelsEndpoint", json!("/models")).keys([
        "good-key-0001",
        "dead-key-0001",
        "good-key-0002",
    ]);
    terminal.provider(&file.model("m").model("busy").model("slow").model("gone"));
    let (code, found) = terminal.json("provider verify alpha --validate --apply --json");
    assert_eq!((code, &found["verdict"]), (Some(1), &json!("FAIL")), "a key of the pool is dead: {found}");
    assert_eq!(found["suggestion"], json!({"removeModels": ["gone"]}), "{found}");
    let file: Value = serde_json::from_str(&terminal.read("providers/alpha.json")).expect("JSON");
    let left: Vec<&str> =
        file["models"].as_array().expect("a list").iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(left, ["m", "busy", "slow"]);
    let asked =
        |key: &str| alpha.calls_to("/models").iter().filter(|call| call.key.as_deref() == Some(key)).count();
    assert_eq!([asked("good-key-0001"), asked("dead-key-0001"), asked("good-key-0002")], [1, 1, 1]);
    let chats_of = |key: &str| chats(&alpha).iter().filter(|call| call.key.as_deref() == Some(key)).count();
    assert_eq!(chats_of("dead-key-0001"), 0, "a refused key is asked no more");
    assert_eq!(chats_of("good-key-0002"), 4, "a second opinion on three, and one that it ought to get");
}

#[test]
fn a_gateway_that_goes_on_in_spite_of_a_bad_file_is_found() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha)]);
    gateway.write("freeway.config.json", "{\"maxAttempts\": \"many\"}");
    let terminal = beside(&gateway);
    let (code, found) = terminal.json("doctor --json");
    assert_eq!(
        (code, &found["gateway"]["address"]),
        (Some(1), &json!(gateway.addr().to_string())),
        "{found}"
    );
    let (code, route) = terminal.json("doctor route m --json");
    assert_eq!((code, refs(&route, "candidates")), (Some(0), vec!["alpha/m".to_owned()]), "{route}");
}
