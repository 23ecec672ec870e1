//! `/api/analytics`, `/api/requests` and `/api/usage`: that they tell the traffic as it was, whatever happened to the
//! process since, and within the bounds that the owner set.
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::Connection;

use crate::harness::*;

const HOUR_MS: u64 = 3_600_000;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

/// An answer of so many tokens.
fn tokens(prompt: u64, output: u64) -> Step {
    let values =
        json!({"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output});
    Step { usage_values: Some(values), ..Step::say("words") }
}

/// The sum of a member over a list.
fn sum(list: &Value, member: &str) -> u64 {
    let list = list.as_array().unwrap_or_else(|| panic!("a list, not {list}"));
    list.iter().map(|one| one[member].as_u64().unwrap_or_else(|| panic!("no {member} in {one}"))).sum()
}

/// Some members of an object, for comparison.
#[track_caller]
fn has(found: &Value, expected: Value) {
    for (member, value) in expected.as_object().expect("an object") {
        assert_eq!(&found[member], value, "{member} in {found}");
    }
}

/// The entry of a list with this id.
#[track_caller]
fn of(list: &Value, id: impl Into<Value>) -> Value {
    let id = id.into();
    let found = list.as_array().and_then(|list| list.iter().find(|one| one["id"] == id)).cloned();
    found.unwrap_or_else(|| panic!("no {id} in {list}"))
}

#[test]
fn numbers_are_those_of_the_traffic() {
    let alpha = mock_that("alpha", [tokens(100, 10), tokens(200, 20), Step::status(400)]);
    let beta = mock_that("beta", [tokens(300, 30)]);
    let price = json!({"paidEquivalent": {"inPerM": 10, "outPerM": 100}});
    let gateway = Gateway::builder()
        .provider(provider(&alpha).priority(1).model_with("m", price))
        .provider(provider(&beta).priority(2).model("b").embed_model("e"))
        .settings(json!({"keys": [
            {"name": "laptop", "key": "key-of-the-laptop"}, {"name": "my phone", "key": "key-of-the-phone"},
        ]}))
        .start();
    let by = |key: &str, body: &Value| gateway.send(&Request::chat(body).key(key));
    by("key-of-the-laptop", &hello("alpha/m")).ok();
    gateway
        .open(&Request::chat(&hello_with("alpha/m", json!({"stream": true}))).key("key-of-the-phone"))
        .finish()
        .well_formed_stream();
    by("key-of-the-laptop", &hello("beta/b")).ok();
    let vectors = json!({"model": "beta/e", "input": "hello"});
    let vectors = gateway.send(&Request::post("/v1/embeddings", &vectors).key("key-of-the-phone")).ok();
    let embedded = vectors.at("/usage/prompt_tokens").as_u64().expect("the mock counts");
    assert_eq!(by("key-of-the-laptop", &hello("alpha/m")).status(), 400);
    by("key-of-the-laptop", &hello("no-such-model")).error(404, "model_not_found");
    let get = |path: &str| gateway.send(&Request::get(path).key("key-of-the-laptop"));
    let all = get("/api/analytics?range=24h").ok().json();
    has(
        &all["summary"],
        json!({
            "requests": 6, "ok": 4, "failed": 2, "canceled": 0, "cached": 0, "streamed": 1, "attempts": 5,
            "tokensIn": 600 + embedded, "tokensOut": 60, "successRate": 4.0 / 6.0, "freeShare": 0.0,
        }),
    );
    // 300 and 30 tokens at 10 and 100 dollars a million, the others at 0.20 and 0.80.
    let saved_nano_usd = 300 * 10_000 + 30 * 100_000 + (300 + embedded) * 200 + 30 * 800;
    assert_eq!(all["summary"]["savedUsd"], saved_nano_usd as f64 / 1e9);
    assert!(all["summary"]["latencyMs"]["p50"].is_u64() && all["summary"]["firstTokenMs"]["p95"].is_u64());
    let timeline = &all["timeline"];
    assert_eq!((timeline.as_array().map(Vec::len), sum(timeline, "requests")), (Some(24), 6));
    assert!(timeline[23]["at"].as_u64().is_some_and(|at| at % HOUR_MS == 0 && at <= now_ms()));
    has(&of(&all["byProvider"], "alpha"), json!({"requests": 3, "ok": 2, "tokensIn": 300, "streamed": 1}));
    has(
        &of(&all["byProvider"], "beta"),
        json!({"requests": 2, "ok": 2, "tokensIn": 300 + embedded, "failed": 0}),
    );
    has(&of(&all["byProvider"], Value::Null), json!({"requests": 1, "failed": 1, "attempts": 0}));
    has(&of(&all["byModel"], "beta/e"), json!({"requests": 1, "provider": "beta", "model": "e"}));
    has(&of(&all["byClient"], "my phone"), json!({"requests": 2, "tokensOut": 20}));
    has(&of(&all["byKind"], "embeddings"), json!({"requests": 1, "tokensIn": embedded}));
    has(&all["counts"], json!({"providers": 3, "models": 4, "keys": 3, "clients": 2}));
    assert_eq!(sum(&all["byKey"], "requests"), 6);
    let errors = json!([
        {"code": "model_not_found", "requests": 1, "share": 0.5},
        {"code": "upstream_400", "requests": 1, "share": 0.5},
    ]);
    assert_eq!(all["errors"], errors);
    let filtered = get("/api/analytics?range=7d&client=my+phone&provider=alpha").ok().json();
    has(&filtered["summary"], json!({"requests": 1, "tokensIn": 200, "streamed": 1}));
    assert_eq!(filtered["timeline"].as_array().map(Vec::len), Some(168));
    let nobody = get("/api/analytics?provider=").ok().json();
    has(&nobody["summary"], json!({"requests": 1, "failed": 1}));
    let usage = get("/api/usage").ok().json();
    assert_eq!(usage["window"], "last 6 requests");
    has(
        &usage["totals"],
        json!({"requests": 6, "ok": 4, "failed": 2, "streamed": 1, "tokensIn": 600 + embedded, "tokensOut": 60}),
    );
    assert_eq!(usage["byProvider"][0]["id"], "beta", "most tokens first");
    let sums = json!({"requests": 6, "ok": 4, "tokensIn": 600 + embedded});
    has(&of(&usage["byModel"], "m"), json!({"provider": "alpha", "requests": 3, "tokensIn": 300}));
    has(&usage["sinceStart"], sums.clone());
    has(&usage["allTime"], sums);
    assert_eq!(of(&usage["quota"], "alpha")["label"], "alpha");
}

#[test]
fn a_request_is_listed_as_it_was() {
    let alpha = mock_that("alpha", [Step::status(500).times(2)]);
    let beta = mock_that("beta", [tokens(12, 34)]);
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    let request = Request::chat(&hello("m")).header("x-request-id", "my-own-id");
    gateway.send(&request).ok();
    let fresh = gateway.chat("beta/m").ok();
    let listed = gateway.get("/api/requests").ok().json();
    assert_eq!(listed["next"], Value::Null);
    has(
        &listed["requests"][1],
        json!({
            "id": "my-own-id", "kind": "chat", "outcome": "success", "status": 200, "stream": false,
            "client": null, "requestedModel": "m", "providerId": "beta", "modelId": "m",
            "attempts": 2, "tokensIn": 12, "tokensOut": 34, "estimated": false, "cache": null, "refit": null,
            "error": null, "trail": ["alpha/m:500"],
        }),
    );
    assert_eq!(listed["requests"][0]["id"].as_str(), fresh.header("x-request-id"));
    let listed_before = listed;
    let mut gateway = gateway;
    gateway.restart();
    assert_eq!(gateway.get("/api/requests").ok().json(), listed_before, "the disk has all of it");
    assert_eq!(gateway.turns()[1]["id"], "my-own-id", "and so has the log");
}

#[test]
fn pages_follow_each_other() {
    let (_alpha, gateway) = gateway_over([Step::ok().times(99)]);
    for number in 0..23 {
        gateway.send(&Request::chat(&hello("m")).header("x-request-id", &format!("r{number}"))).ok();
    }
    let (mut seen, mut path) = (Vec::new(), "/api/requests?limit=5".to_owned());
    for _ in 0..10 {
        let page = gateway.get(&path).ok().json();
        let ids = page["requests"].as_array().expect("a list").iter();
        seen.extend(ids.map(|one| one["id"].as_str().expect("an id").to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/requests?limit=5&before={next}");
        // What comes meanwhile does not shift the pages.
        gateway.chat("m").ok();
    }
    let expected: Vec<String> = (0..23).rev().map(|number| format!("r{number}")).collect();
    assert_eq!(seen, expected);
    let failed = gateway.get("/api/requests?outcome=error&kind=chat&cache=none").ok().json();
    assert_eq!(failed, json!({"requests": [], "next": null}));
}

#[test]
fn wrong_parameters_are_named() {
    let (_alpha, gateway) = gateway_over([]);
    for (path, param) in [
        ("/api/analytics?range=8d", "range"),
        ("/api/analytics?tzOffset=900", "tzOffset"),
        ("/api/analytics?modell=x", "modell"),
        ("/api/analytics?client=%zz", "client"),
        ("/api/requests?limit=0", "limit"),
        ("/api/requests?limit=501", "limit"),
        ("/api/requests?before=yesterday", "before"),
        ("/api/requests?outcome=fine", "outcome"),
        ("/api/requests?from=-1", "from"),
        ("/api/usage?range=24h", "range"),
    ] {
        gateway.get(path).error(400, "invalid_body").about(param);
    }
    gateway.get("/api/analytics?range=&tzOffset=-210&model=").ok();
}

/// What is compared before and after something that must not change it.
fn story(gateway: &Gateway) -> Value {
    let mut analytics = gateway.get("/api/analytics?range=7d").ok().json();
    analytics.as_object_mut().expect("an object").remove("to");
    let mut all_time = gateway.get("/api/usage").ok().at("/allTime");
    all_time.as_object_mut().expect("an object").remove("since");
    json!([analytics, all_time])
}

#[test]
fn c4_sums_survive_restarts_and_kills() {
    let (_alpha, mut gateway) = gateway_over([Step::status(500), tokens(10, 1).times(999)]);
    gateway.chat("m").error(502, "all_attempts_failed");
    gateway.send(&Request::new("DELETE", "/api/benches")).ok();
    (0..5).for_each(|_| drop(gateway.chat("m").ok()));
    let before = story(&gateway);
    gateway.restart();
    assert_eq!(story(&gateway), before);
    has(&gateway.get("/api/usage").ok().at("/sinceStart"), json!({"requests": 0, "tokensIn": 0}));
    gateway.kill();
    gateway.start_again();
    assert_eq!(story(&gateway), before, "a kill takes nothing of what was written, and doubles nothing");
    // A batch goes to the disk at once, so a kill cannot take it.
    at_once(8, |_| (0..64).for_each(|_| drop(gateway.chat("m").ok())));
    let told = || gateway.get("/api/analytics").ok().at("/summary/requests").as_u64().expect("a number");
    assert_eq!(told(), 6 + 512);
    eventually("the batch is written", || committed_bytes(&gateway) > 30_000);
    gateway.kill();
    gateway.start_again();
    let left = gateway.get("/api/analytics").ok().at("/summary/requests").as_u64().expect("a number");
    assert!((506..=518).contains(&left), "{left}");
}

/// Adds rows as an earlier run would have left them: one every ten minutes from so many days ago on.
fn add_old_rows(gateway: &Gateway, days: u64) -> u64 {
    let db = Connection::open(gateway.folder().join("data/freeway.db")).expect("nobody else has it");
    db.execute_batch("BEGIN; INSERT OR IGNORE INTO name (text) VALUES ('auto'), ('old/model'), ('old:0a')")
        .expect("written");
    let first_ms = now_ms() - days * 24 * HOUR_MS;
    let rows = days * 24 * 6;
    for number in 0..rows {
        let id = (first_ms + number * HOUR_MS / 6) * 64;
        db.execute(
            "INSERT INTO request SELECT ?1, 0, 0, 200, 0, a.id, m.id, k.id, NULL, 100, 10, ?2, NULL, 1, NULL, NULL, NULL,
                    NULL, 2000 FROM name a, name m, name k
             WHERE a.text = 'auto' AND m.text = 'old/model' AND k.text = 'old:0a'",
            rusqlite::params![id as i64, (number % 1_000) as i64],
        )
        .expect("written");
    }
    db.execute_batch("COMMIT").expect("written");
    rows
}

#[test]
fn old_rows_go_and_their_sums_stay() {
    let (_alpha, mut gateway) = gateway_over([tokens(10, 1).times(9)]);
    gateway.chat("m").ok();
    gateway.stop();
    let rows = add_old_rows(&gateway, 40);
    gateway.start_again();
    let summary = |range: &str| gateway.get(&format!("/api/analytics?range={range}")).ok().at("/summary");
    let before = ["24h", "7d", "30d", "90d"].map(&summary);
    has(&before[3], json!({"requests": rows + 1, "tokensIn": 100 * rows + 10}));
    let count = || {
        let mut count = 0;
        let mut path = "/api/requests?limit=500".to_owned();
        loop {
            let page = gateway.get(&path).ok().json();
            count += page["requests"].as_array().expect("a list").len();
            match page["next"].as_str() {
                Some(next) => path = format!("/api/requests?limit=500&before={next}"),
                None => return count,
            }
        }
    };
    assert_eq!(count() as u64, rows + 1);
    gateway.write("freeway.config.json", r#"{"history": {"days": 2}}"#);
    gateway.reload();
    eventually("old rows are gone", || count() < 300);
    assert!((285..=290).contains(&count()), "{}", count());
    assert_eq!(["24h", "7d", "30d", "90d"].map(&summary), before, "sums do not change with it");
    has(&gateway.get("/api/usage").ok().at("/allTime"), json!({"requests": rows + 1}));
    drop(gateway.chat("m").ok());
    let mut gateway = gateway;
    gateway.restart();
    has(&gateway.get("/api/analytics?range=90d").ok().at("/summary"), json!({"requests": rows + 2}));
}

#[test]
fn the_database_says_the_same() {
    let (_alpha, mut gateway) =
        gateway_over([tokens(10, 1).times(3), Step::status(400), tokens(20, 2).times(9)]);
    (0..3).for_each(|_| drop(gateway.chat("m").ok()));
    gateway.chat("m");
    gateway.stream("m").well_formed_stream();
    let told = gateway.get("/api/analytics?range=30d&tzOffset=330").ok().json();
    gateway.stop();
    let db = Connection::open(gateway.folder().join("data/freeway.db")).expect("nobody else has it");
    let number = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number");
    has(
        &told["summary"],
        json!({
            "requests": number("SELECT count(*) FROM request"),
            "ok": number("SELECT count(*) FROM request WHERE outcome = 0"),
            "tokensIn": number("SELECT sum(prompt_tokens) FROM request"),
            "tokensOut": number("SELECT sum(output_tokens) FROM request"),
            "savedUsd": number("SELECT sum(saved_nano_usd) FROM request") as f64 / 1e9,
        }),
    );
    let average = number("SELECT CAST(round(avg(latency_ms)) AS INTEGER) FROM request WHERE outcome = 0");
    assert_eq!(told["summary"]["latencyMs"]["avg"], average);
    assert_eq!(told["timeline"][29]["requests"], 5);
}

/// Several views at once wait for each other, and none is refused that a page would ask for.
#[test]
fn views_stand_in_line() {
    let (_alpha, gateway) = gateway_over([Step::ok().times(9)]);
    gateway.chat("m").ok();
    let statuses = at_once(12, |number| {
        let path = ["/api/usage", "/api/analytics?range=90d", "/api/requests"][number % 3];
        gateway.get(path).status()
    });
    let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
    statuses.into_iter().for_each(|status| *counts.entry(status).or_default() += 1);
    assert_eq!(counts, BTreeMap::from([(200, 12)]));
    assert!(gateway.chat("m").ok().took() < Duration::from_secs(20));
}
