//! Benches: who is left alone and for how long, what lifts a bench, and that a restart does not.
use std::time::Duration;

use crate::harness::*;

/// The benches of a gateway, as the owner sees them.
fn benches(gateway: &Gateway) -> Vec<Value> {
    gateway.get("/api/benches").ok().at("/benches").as_array().cloned().expect("a list")
}

/// The keys of all chats so far, in order.
fn keys_called(mock: &MockUpstream) -> Vec<String> {
    chats(mock).into_iter().map(|call| call.key.expect("a bearer key")).collect()
}

#[test]
fn c4_a_restart_keeps_the_bench_of_a_refused_key_and_of_nobody_else() {
    let alpha = mock("alpha");
    alpha.set_keys([("dead-key", vec![Step::status(401)])]);
    let mut gateway = Gateway::over([provider(&alpha).keys(["dead-key", "good-key"])]);
    gateway.chat("m").ok().after_attempts(2);
    let before = benches(&gateway);
    assert_eq!((before.len(), &before[0]["cause"]), (1, &json!("auth")), "{before:?}");
    gateway.restart();
    let after = benches(&gateway);
    assert_eq!(
        (after.len(), &after[0]["id"], &after[0]["scope"]),
        (1, &before[0]["id"], &before[0]["scope"])
    );
    let left = |benches: &[Value]| benches[0]["remainingMs"].as_u64().expect("a number");
    assert!((800_000..=left(&before)).contains(&left(&after)), "{before:?} then {after:?}");
    for _ in 0..3 {
        gateway.chat("m").ok().after_attempts(1);
    }
    assert_eq!(keys_called(&alpha), ["dead-key", "good-key", "good-key", "good-key", "good-key"]);
}

#[test]
fn c4_a_restart_keeps_every_kind_of_bench() {
    let missing = json!({"error": {"message": "The model `gone` does not exist", "code": "model_not_found"}});
    let alpha = mock("alpha");
    alpha.set_by_model([
        ("limited", vec![Step::status(429).header("retry-after", 3_000)]),
        ("gone", vec![Step::json(404, &missing)]),
        ("mine", vec![Step::status(403)]),
    ]);
    let mut gateway =
        Gateway::over([provider(&alpha).model("limited").model("gone").model("mine").model("fine")]);
    for model in ["alpha/limited", "alpha/gone", "alpha/mine"] {
        assert!(gateway.chat(model).status() >= 400, "{model}");
    }
    assert_eq!(benches(&gateway).len(), 3);
    gateway.restart();
    let mut causes: Vec<String> = benches(&gateway).iter().map(|bench| bench["cause"].to_string()).collect();
    causes.sort();
    assert_eq!(causes, ["\"forbidden\"", "\"modelMissing\"", "\"rateLimit\""]);
    for model in ["alpha/limited", "alpha/gone", "alpha/mine"] {
        gateway.chat(model).after_attempts(0);
    }
    gateway.chat("alpha/fine").ok();
    assert_eq!(chats(&alpha).len(), 4, "three failures before the restart, one answer after it");
}

#[test]
fn c4_a_kill_keeps_a_bench_that_is_older_than_ten_seconds() {
    let alpha = mock_that("alpha", [Step::status(401)]);
    let mut gateway = Gateway::over([provider(&alpha)]);
    gateway.chat("m");
    // The state is saved every ten seconds.
    std::thread::sleep(Duration::from_secs(12));
    gateway.kill();
    gateway.start_again();
    gateway.chat("m").after_attempts(0);
    assert_eq!(chats(&alpha).len(), 1, "the dead key was called again");
}

#[test]
fn a_bench_that_the_owner_lifted_does_not_come_back_after_a_kill() {
    let alpha = mock_that("alpha", [Step::status(401)]);
    let mut gateway = Gateway::over([provider(&alpha)]);
    gateway.chat("m");
    gateway.restart();
    assert_eq!(benches(&gateway).len(), 1);
    gateway.send(&Request::new("DELETE", "/api/benches")).ok();
    // Far less than the ten seconds after which state is saved anyway.
    std::thread::sleep(Duration::from_secs(1));
    gateway.kill();
    gateway.start_again();
    assert_eq!(benches(&gateway), [] as [Value; 0]);
    gateway.chat("m").after_attempts(1);
}

#[test]
fn c3_keys_in_another_order_keep_usage_and_benches_over_a_restart() {
    let alpha = mock("alpha");
    alpha.set_keys([("dead-key", vec![Step::status(401)])]);
    let mut gateway =
        Gateway::over([provider(&alpha).keys(["dead-key", "used-key"]).limits(json!({"rpd": 1}))]);
    gateway.chat("m").ok().after_attempts(2);
    gateway.set_env("ALPHA_API_KEY", "fresh-key,used-key,dead-key");
    gateway.restart();
    gateway.chat("m").ok().after_attempts(1);
    gateway.chat("m").error(429, "all_providers_blocked");
    assert_eq!(keys_called(&alpha), ["dead-key", "used-key", "fresh-key"]);
}

#[test]
fn a_key_that_was_taken_out_is_not_listed_until_it_comes_back() {
    let alpha = mock("alpha");
    alpha.set_keys([("dead-key", vec![Step::status(401)])]);
    let mut gateway = Gateway::over([provider(&alpha).keys(["dead-key", "good-key"])]);
    gateway.chat("m").ok().after_attempts(2);
    let before = benches(&gateway);
    assert!(before.len() == 1 && before[0]["key"].is_string(), "{before:?}");
    gateway.set_env("ALPHA_API_KEY", "good-key");
    gateway.restart();
    assert_eq!(benches(&gateway), Vec::<Value>::new());
    gateway.set_env("ALPHA_API_KEY", "good-key,dead-key");
    gateway.restart();
    assert_eq!(benches(&gateway)[0]["id"], before[0]["id"]);
}

#[test]
fn c5_a_slow_success_does_not_lift_a_bench_that_began_meanwhile() {
    let alpha = mock_that(
        "alpha",
        [Step::ok().delay_ms(900), Step::status(429).header("retry-after", 60), Step::ok()],
    );
    let gateway = Gateway::over([provider(&alpha)]);
    let mut slow = gateway.wire();
    slow.send(Request::chat(&hello("m")).bytes());
    eventually("the slow call is under way", || chats(&alpha).len() == 1);
    gateway.chat("m").error(429, "all_attempts_failed");
    slow.answer().ok();
    gateway.chat("m").error(429, "all_providers_blocked").after_attempts(0);
    assert_eq!((chats(&alpha).len(), benches(&gateway).len()), (2, 1));
}

#[test]
fn c5_a_success_of_one_key_leaves_the_bench_of_the_other() {
    let alpha = mock("alpha");
    alpha.set_keys([("k1", vec![Step::status(429).header("retry-after", 60)])]);
    let gateway = Gateway::over([provider(&alpha).keys(["k1", "k2"])]);
    for _ in 0..4 {
        gateway.chat("m").ok();
    }
    assert_eq!(keys_called(&alpha).iter().filter(|key| *key == "k1").count(), 1);
    assert_eq!(benches(&gateway).len(), 1);
}

#[test]
fn w8_a_limit_of_one_model_leaves_the_others_of_that_key() {
    let alpha = mock("alpha");
    alpha.set_by_model([("a", vec![Step::status(429).header("retry-after", 60)])]);
    let gateway = Gateway::over([provider(&alpha).model("a").model("b")]);
    gateway.chat("alpha/a").error(429, "all_attempts_failed");
    gateway.chat("alpha/b").ok();
    gateway.chat("alpha/a").error(429, "all_providers_blocked");
}

#[test]
fn w8_no_answer_benches_for_longer_than_a_week() {
    const WEEK_S: f64 = 7.0 * 86_400.0;
    for wait in ["999999999", "99999999999999999999", "1e30", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        let (_alpha, gateway) = gateway_over([Step::status(429).header("retry-after", wait)]);
        let answer = gateway.chat("m").error(429, "all_attempts_failed");
        assert!((1.0..=WEEK_S).contains(&answer.number("retry-after")), "{wait}: {answer}");
        let left = benches(&gateway)[0]["remainingMs"].as_f64().expect("a number");
        assert!(left <= WEEK_S * 1000.0, "{wait}: {left} ms");
    }
}

/// A request that waits for the end of a bench is served when the bench is lifted, not when it would have ended.
#[test]
fn who_waits_is_served_as_soon_as_the_bench_is_lifted() {
    let refusal = Step::error(429, "slow down").header("retry-after", 60);
    let (_alpha, gateway) = gateway_over([refusal, Step::ok().times(9)]);
    gateway.chat("m").error(429, "all_attempts_failed");
    let wait = Request::chat(&hello("m")).header("x-freeway-wait", "90");
    std::thread::scope(|scope| {
        let held = scope.spawn(|| gateway.send(&wait).ok());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!held.is_finished(), "it waits");
        gateway.send(&Request::new("DELETE", "/api/benches")).ok();
        let answer = held.join().expect("served");
        assert!(answer.took() < Duration::from_secs(20), "{:?}", answer.took());
    });
}
