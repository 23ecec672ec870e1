//! Provider keys stay inside: whatever an upstream, a file or a log does with them.
use crate::harness::*;

const KEY: &str = "sk-alpha/0123456789+abcdef==";
const KEY_ESCAPED: &str = "sk-alpha%2F0123456789%2Babcdef%3D%3D";

/// A gateway over one provider with the key above, whose upstream answers so.
fn holding(step: Step) -> (MockUpstream, Gateway) {
    let alpha = mock_that("alpha", [step]);
    let gateway = Gateway::builder()
        .provider(provider(&alpha).keys([KEY]))
        .settings(json!({"log": {"level": "debug"}}))
        .start();
    (alpha, gateway)
}

/// Fails if the key stands in an answer, in any view, or in the log.
#[track_caller]
fn expect_kept(gateway: &Gateway, answer: &Answer) {
    for secret in [KEY, KEY_ESCAPED, "0123456789+abcdef"] {
        answer.clone().never_says(secret);
        for view in ["/api/providers", "/api/logs", "/api/benches", "/api/stats", "/v1/models"] {
            gateway.get(view).ok().never_says(secret);
        }
        assert!(!gateway.log().contains(secret), "{secret} is in the log");
    }
}

#[test]
fn a3_an_echoed_key_is_masked_whatever_the_status() {
    let echo = format!("the key '{KEY}' (Bearer {KEY}, ?key={KEY_ESCAPED}) is not welcome");
    for status in [400, 401, 403, 404, 413, 422, 429, 500, 503] {
        let (_alpha, gateway) = holding(Step::error(status, &echo));
        let answer = gateway.chat("m");
        assert!(answer.status() >= 400, "{answer}");
        expect_kept(&gateway, &answer);
    }
}

#[test]
fn a3_an_echoed_key_is_masked_in_odd_bodies_too() {
    for step in [
        Step { body: Some(format!("<html><p>{KEY}</p></html>").into_bytes()), ..Step::html(400) },
        Step::json(400, &json!([{"error": {"code": 400, "message": format!("key {KEY}")}}])),
        Step::json(400, &json!({"detail": [{"msg": format!("header Bearer {KEY}"), "input": KEY}]})),
        Step::json(200, &json!({"error": {"message": format!("bad {KEY}")}})),
        Step::json(400, &json!({"error": {"message": "odd", "code": KEY, "param": KEY, "type": KEY}})),
    ] {
        let (_alpha, gateway) = holding(step);
        let answer = gateway.chat("m");
        assert!(answer.status() >= 400, "{answer}");
        expect_kept(&gateway, &answer);
    }
}

#[test]
fn a3_a_key_that_could_be_an_error_code_is_masked_too() {
    let word = "alphakey0123456789abcdef";
    let error = json!({"error": {"message": "odd", "code": word, "param": word, "type": word}});
    let alpha = mock_that("alpha", [Step::json(400, &error)]);
    let gateway = Gateway::over([provider(&alpha).keys([word])]);
    gateway.chat("m").never_says(word);
    gateway.get("/api/logs").ok().never_says(word);
}

#[test]
fn a3_an_echoed_key_is_masked_in_a_stream() {
    let error = json!({"error": {"message": format!("the key {KEY} died"), "code": 500}}).to_string();
    let (_alpha, gateway) = holding(Step::events([delta("half"), error]));
    let answer = gateway.stream("m");
    answer.broken_stream();
    expect_kept(&gateway, &answer);
}

#[test]
fn a3_a_key_that_no_header_can_carry_is_left_out_and_not_told() {
    let alpha = mock("alpha");
    for bad in ["secret\tkey-with-tab", "secret-schl\u{fc}ssel", "secret key with spaces"] {
        let gateway = Gateway::over([provider(&alpha).keys([bad])]);
        let answer = gateway.chat("m").error(503, "no_provider_configured");
        for text in [answer.text(), gateway.get("/api/providers").ok().text(), gateway.log()] {
            assert!(!text.contains("secret"), "{bad:?} is told in {text}");
        }
        let issues = gateway.get("/api/providers").ok().at("/issues").to_string();
        assert!(issues.contains("ALPHA_API_KEY"), "but the variable is named: {issues}");
    }
    let gateway = Gateway::over([provider(&alpha).keys(["bad\tkey", "good-key"])]);
    gateway.chat("m").ok();
    assert_eq!(chats(&alpha)[0].key.as_deref(), Some("good-key"));
}

#[test]
fn a4_a_redirect_takes_neither_key_nor_body_along() {
    for status in [301, 302, 303, 307, 308] {
        let elsewhere = mock("elsewhere");
        let alpha =
            mock_that("alpha", [Step::redirect(status, &format!("{}/chat/completions", elsewhere.url()))]);
        let auth = json!({"type": "header", "header": "x-api-key", "envKeys": ["ALPHA_API_KEY"]});
        let gateway = Gateway::over([provider(&alpha).set("auth", auth)]);
        gateway.chat("m").error(502, "all_attempts_failed");
        assert!(elsewhere.calls().is_empty(), "{status} was followed");
    }
}

/// Fails if `secret` stands in any view, in the log, or in any file but `.env` and the provider's own.
#[track_caller]
fn expect_nowhere(gateway: &mut Gateway, secret: &str) {
    for view in [
        "/api/providers",
        "/api/logs",
        "/api/benches",
        "/api/stats",
        "/api/keys",
        "/api/clients",
        "/api/session",
        "/v1/models",
        "/readyz",
        "/metrics",
    ] {
        let answer = gateway.get(view);
        assert!(!answer.to_string().contains(secret), "{secret} is in {view}: {answer}");
    }
    assert!(!gateway.log().contains(secret), "{secret} is in the log");
    // What is to be written is written at the end.
    gateway.stop();
    for entry in std::fs::read_dir(gateway.folder().join("data")).expect("the data folder") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "{secret} is in {}", path.display());
    }
    gateway.start_again();
}

#[test]
fn sec_03_a_pasted_key_is_nowhere_in_any_spelling() {
    const PASTED: &str = "pa/sted+key==0123456789abcdef";
    let spellings = [
        PASTED,
        "pa%2Fsted%2Bkey%3D%3D0123456789abcdef",
        "pa\\/sted+key==0123456789abcdef",
        "pa\\u002fsted\\u002Bkey==0123456789abcdef",
        "pa&#x2F;sted&#43;key==0123456789abcdef",
    ];
    for spelling in spellings {
        let text = format!("the key {spelling} of {spelling} is bad");
        for step in [
            Step::error(400, &text),
            Step::error(401, &text),
            Step::error(503, &text),
            Step { body: Some(text.clone().into_bytes()), ..Step::html(502) },
            Step::json(400, &json!({"error": {"message": "odd", spelling: [text.clone()]}})),
            Step::events([delta("half"), json!({"error": {"message": text.clone()}}).to_string()]),
        ] {
            let alpha = mock_that("alpha", [step]);
            let settings = json!({"log": {"level": "debug"}});
            let gateway = Gateway::builder().provider(provider(&alpha).keys([])).settings(settings).start();
            gateway.post("/api/providers/alpha/key", &json!({"key": PASTED})).ok();
            for answer in [gateway.chat("m"), gateway.stream("m")] {
                for part in [PASTED, spelling, "0123456789abcdef"] {
                    assert!(!answer.to_string().contains(part), "{part} is in {answer}");
                }
            }
            for view in ["/api/providers", "/api/logs"] {
                gateway.get(view).ok().never_says("0123456789abcdef");
            }
            assert!(!gateway.log().contains("0123456789abcdef"), "{}", gateway.log());
        }
    }
}

#[test]
fn sec_03_neither_rows_nor_files_hold_a_key() {
    let echo = format!("no such key: {KEY}");
    let alpha = mock_that("alpha", [Step::error(401, &echo).times(1), Step::error(400, &echo)]);
    let settings = json!({"log": {"level": "debug"}, "cache": {"mode": "aggressive"}});
    let gateway = Gateway::builder().provider(provider(&alpha).keys([KEY])).settings(settings).start();
    let mut gateway = gateway;
    gateway.post("/api/providers/alpha/key", &json!({"key": "another-key-0123456789"})).ok();
    for _ in 0..3 {
        gateway.chat("m");
    }
    // A key that went into the wrong field means no model, and is not kept either.
    gateway.chat(KEY).error(404, "model_not_found");
    gateway.chat("another-key-0123456789").error(404, "model_not_found");
    gateway.post("/api/providers/alpha/key", &json!({"key": format!("{KEY} ")})).ok();
    gateway
        .post(
            "/api/keys/import",
            &json!({"text": format!("ALPHA_API_KEY={KEY}\nnoise {KEY}"), "preview": true}),
        )
        .ok()
        .never_says(KEY);
    expect_nowhere(&mut gateway, KEY);
    expect_nowhere(&mut gateway, "another-key-0123456789");
}

#[test]
fn sec_03_clients_are_told_of_no_inner_host_and_no_foreign_key() {
    let told = "Incorrect API key provided: sk-test-QWERTY0987654321 (key hash \
                9f00aa11bb22cc33dd44ee55ff66007711882299338844995500aa66bb77cc88); backend 10.1.2.3:8443 and \
                http://worker-7:9417/v1?key=AIzaTEST0123456789 said no; see https://docs.acme.example/keys";
    let asks: [fn(&Gateway) -> Answer; 2] = [|gateway| gateway.chat("m"), |gateway| gateway.stream("m")];
    for status in [400, 401, 429, 500] {
        for ask in asks {
            // Each has a gateway of its own: what was refused is not asked again for a while.
            let (_alpha, gateway) = gateway_over([Step::error(status, told)]);
            let answer = ask(&gateway);
            // Not the head: four digits may well stand in the id of a request.
            let text = answer.text();
            for hidden in
                ["QWERTY0987", "9f00aa11bb22cc33", "10.1.2.3", "8443", "worker-7", "9417", "AIzaTEST"]
            {
                assert!(!text.contains(hidden), "{hidden} is in {answer}");
            }
            assert!(
                text.contains("Incorrect API key") && text.contains("docs.acme.example/keys"),
                "{answer}"
            );
        }
    }
    let closed = ClosedPort::take().expect("a free port");
    let port = closed.addr().port().to_string();
    let gateway = Gateway::over([Provider::at("alpha", &closed.url())]);
    let answer = gateway.chat("m").error(502, "all_attempts_failed");
    assert!(!answer.to_string().contains(&port), "{answer}");
}
