//! The blame table, row by row: each test counts the calls that upstreams got, looks at who sits on the bench and for
//! how long, and sends another request to see that this holds.
use std::ops::RangeInclusive;

use crate::harness::*;

/// Providers that the gateway takes for remote ones: their names do not exist, and all calls to them go through an
/// HTTP proxy, which is this mock. Each is told by its key.
struct Internet {
    net: MockUpstream,
    gateway: Gateway,
}

fn remote(id: &str) -> Provider {
    Provider::at(id, &format!("http://{id}.test/v1"))
}

impl Internet {
    /// Starts a gateway over these providers; the keys answer so, all others well.
    fn new<const K: usize>(
        providers: impl IntoIterator<Item = Provider>,
        keys: [(&str, Vec<Step>); K],
    ) -> Internet {
        Internet::with(json!({}), providers, keys)
    }

    fn with<const K: usize>(
        settings: Value,
        providers: impl IntoIterator<Item = Provider>,
        keys: [(&str, Vec<Step>); K],
    ) -> Internet {
        let net = mock("net");
        net.set_keys(keys);
        let builder =
            Gateway::builder().settings(settings).env("HTTP_PROXY", &format!("http://{}", net.addr()));
        let gateway = providers.into_iter().fold(builder, Builder::provider).start();
        Internet { net, gateway }
    }

    /// `alpha` before `beta`, both with one key and the model `m`; alpha answers so.
    fn two(steps: impl IntoIterator<Item = Step>) -> Internet {
        let steps: Vec<Step> = steps.into_iter().collect();
        Internet::new([remote("alpha").priority(1), remote("beta").priority(2)], [("alpha-key", steps)])
    }

    /// The same with two keys for alpha, of which the first answers so.
    fn two_keys(steps: impl IntoIterator<Item = Step>) -> Internet {
        let steps: Vec<Step> = steps.into_iter().collect();
        let alpha = remote("alpha").priority(1).keys(["alpha-one", "alpha-two"]);
        Internet::new([alpha, remote("beta").priority(2)], [("alpha-one", steps)])
    }

    /// The calls so far, each as `key:model`, in order.
    fn calls(&self) -> Vec<String> {
        let call = |call: &Call| {
            let model = call.json()["model"].as_str().unwrap_or_default().to_owned();
            format!("{}:{model}", call.key.as_deref().unwrap_or_default())
        };
        chats(&self.net).iter().map(call).collect()
    }

    /// The same since the last look.
    #[track_caller]
    fn expect_calls(&self, expected: &[&str]) {
        assert_eq!(self.calls(), expected);
    }

    #[track_caller]
    fn expect_benches(&self, expected: &[(&str, &str, u64)]) {
        expect_benches(&self.gateway, expected);
    }
}

/// Who sits on the bench, why, and for how many seconds still.
fn benches(gateway: &Gateway) -> Vec<(String, String, u64)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = gateway.get("/api/benches").ok().at("/benches");
    let one = |bench: &Value| {
        let who = match bench["scope"].as_str() {
            Some("key") => format!("key {}", text(&bench["key"])),
            Some("key and model") => format!("{} with key {}", text(&bench["model"]), text(&bench["key"])),
            Some("account and model") => format!("{} with account", text(&bench["model"])),
            Some("account") => "account".to_owned(),
            _ => text(&bench["name"]),
        };
        let seconds = bench["remainingMs"].as_u64().expect("a number").div_ceil(1_000);
        (who, text(&bench["cause"]), seconds)
    };
    let mut all: Vec<_> = list.as_array().expect("a list").iter().map(one).collect();
    all.sort();
    all
}

/// Who, why, and how many seconds were given; a slow machine may have used up some of them.
#[track_caller]
fn expect_benches(gateway: &Gateway, expected: &[(&str, &str, u64)]) {
    let found = benches(gateway);
    let who: Vec<_> = found.iter().map(|(who, why, _)| (who.as_str(), why.as_str())).collect();
    let wanted: Vec<_> = expected.iter().map(|(who, why, _)| (*who, *why)).collect();
    assert_eq!(who, wanted, "{found:?}");
    for ((who, _, left), (_, _, given)) in found.iter().zip(expected) {
        assert!(about(*given).contains(left), "{who}: {left} s left of {given} s");
    }
}

fn about(seconds: u64) -> RangeInclusive<u64> {
    seconds.saturating_sub(20).max(seconds / 4).max(1)..=seconds
}

const MINUTE: u64 = 60;
const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

fn error(status: u16, code: &str, message: &str) -> Step {
    Step::json(status, &json!({"error": {"message": message, "code": code}}))
}

// 401, bad-key 400: the key; next key; 15 min, doubling to 6 h.

#[test]
fn row_401_the_key_is_benched_and_the_next_one_serves() {
    let world = Internet::two_keys([Step::status(401)]);
    world.gateway.chat("auto").ok().served_by("alpha").after_attempts(2);
    world.expect_calls(&["alpha-one:m", "alpha-two:m"]);
    world.expect_benches(&[("key al…ne", "auth", 15 * MINUTE)]);
    world.gateway.chat("auto").ok().served_by("alpha").after_attempts(1);
    world.expect_calls(&["alpha-one:m", "alpha-two:m", "alpha-two:m"]);
    // A success never lifts somebody else's bench.
    world.expect_benches(&[("key al…ne", "auth", 15 * MINUTE)]);
}

#[test]
fn row_401_dead_keys_do_not_eat_the_attempts() {
    let keys = ["dead-one", "dead-two", "dead-three", "dead-four", "alpha-five"];
    let dead = |key| (key, vec![Step::status(401)]);
    let world = Internet::new(
        [remote("alpha").keys(keys)],
        [dead(keys[0]), dead(keys[1]), dead(keys[2]), dead(keys[3])],
    );
    let one = Request::chat(&hello("m")).header("x-freeway-max-attempts", "1");
    world.gateway.send(&one).ok().served_by("alpha").after_attempts(5);
    assert_eq!(benches(&world.gateway).len(), 4);
}

#[test]
fn row_401_a_bad_key_told_as_400_is_the_keys_fault() {
    let google = json!([{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.",
        "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]}}]);
    let world = Internet::two([Step::json(400, &google)]);
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(2);
    world.expect_benches(&[("key al…ey", "auth", 15 * MINUTE)]);
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(1);
}

// 402, out of credit: the key; next key; until its reset, else 24 h.

#[test]
fn row_402_out_of_credit_is_a_day_or_until_the_reset() {
    let check = |step: Step, seconds| {
        let world = Internet::two_keys([step]);
        world.gateway.chat("auto").ok().served_by("alpha").after_attempts(2);
        world.expect_calls(&["alpha-one:m", "alpha-two:m"]);
        world.expect_benches(&[("key al…ne", "credit", seconds)]);
        world.gateway.chat("auto").ok().served_by("alpha").after_attempts(1);
    };
    check(Step::status(402), DAY);
    check(Step::status(402).header("retry-after", 600), 600);
    check(error(429, "insufficient_quota", "You exceeded your current quota, please check your plan."), DAY);
    check(error(400, "credit", "Your credit balance is too low"), DAY);
}

// 403: key and model; next key, then the next model; 1 h; the whole key if two models.

#[test]
fn row_403_benches_the_key_for_this_model_only() {
    let world = Internet::two_keys([Step::status(403).for_model("m"), Step::ok()]);
    world.gateway.chat("auto").ok().served_by("alpha").after_attempts(2);
    world.expect_calls(&["alpha-one:m", "alpha-two:m"]);
    world.expect_benches(&[("alpha/m with key al…ne", "forbidden", HOUR)]);
}

#[test]
fn row_403_the_next_model_follows_when_no_key_is_left_and_two_models_bench_the_key() {
    let alpha = remote("alpha").priority(1).model("m").model("n").model("o");
    let world = Internet::new([alpha, remote("beta").priority(2)], [("alpha-key", vec![Step::status(403)])]);
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(3);
    world.expect_calls(&["alpha-key:m", "alpha-key:n", "beta-key:m"]);
    world.expect_benches(&[
        ("alpha/m with key al…ey", "forbidden", HOUR),
        ("alpha/n with key al…ey", "forbidden", HOUR),
        ("key al…ey", "forbidden", HOUR),
    ]);
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(1);
}

// 429, 413 "tokens per minute": key and model (the account if the answer says so); next key, next model; as long as the
// answer says, else 60 s doubling to 8 min.

#[test]
fn row_429_next_key_then_one_more_model_then_another_provider() {
    let alpha = remote("alpha").priority(1).keys(["alpha-one", "alpha-two"]).model("m").model("n").model("o");
    let limited = || vec![Step::status(429)];
    let world = Internet::new(
        [alpha, remote("beta").priority(2)],
        [("alpha-one", limited()), ("alpha-two", limited())],
    );
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(5);
    world.expect_calls(&["alpha-one:m", "alpha-two:m", "alpha-one:n", "alpha-two:n", "beta-key:m"]);
    world.expect_benches(&[
        ("alpha/m with key al…ne", "rateLimit", MINUTE),
        ("alpha/m with key al…wo", "rateLimit", MINUTE),
        ("alpha/n with key al…ne", "rateLimit", MINUTE),
        ("alpha/n with key al…wo", "rateLimit", MINUTE),
    ]);
    // What is benched is not called; the third model still may be.
    world.gateway.chat("alpha/m").error(429, "all_providers_blocked").after_attempts(0);
    assert_eq!(world.calls().len(), 5);
}

#[test]
fn row_429_lasts_as_long_as_the_answer_says() {
    let check = |step: Step, seconds| {
        let world = Internet::two([step]);
        world.gateway.chat("auto").ok().served_by("beta").after_attempts(2);
        world.expect_benches(&[("alpha/m with key al…ey", "rateLimit", seconds)]);
        world.gateway.chat("auto").ok().served_by("beta").after_attempts(1);
        world.expect_calls(&["alpha-key:m", "beta-key:m", "beta-key:m"]);
    };
    check(Step::status(429), MINUTE);
    check(Step::status(429).header("retry-after", 200), 200);
    check(Step::status(429).header("retry-after-ms", 90_000), 90);
    check(
        Step::status(429)
            .header("x-ratelimit-reset-requests", "2m30s")
            .header("x-ratelimit-remaining-requests", 0),
        150,
    );
    check(error(429, "rate_limit_exceeded", "Rate limit reached. Please try again in 3m20s."), 200);
    let google = json!([{"error": {"code": 429, "message": "Quota exceeded.", "status": "RESOURCE_EXHAUSTED",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "134s"}]}}]);
    check(Step::json(429, &google), 134);
    // Nobody is believed who asks for more than a week.
    check(Step::status(429).header("retry-after", 99_999_999), 7 * DAY);
}

#[test]
fn row_429_grows_from_strike_to_strike_and_is_capped() {
    let world = Internet::with(
        json!({"failover": {"bench": {"rateLimit": {"firstMs": 400, "capMs": 1_600}}}}),
        [remote("alpha")],
        [("alpha-key", vec![Step::status(429)])],
    );
    for (strike, most_ms) in [400, 800, 1_600, 1_600].into_iter().enumerate() {
        world.gateway.chat("m").error(429, "all_attempts_failed").after_attempts(1);
        let bench = world.gateway.get("/api/benches").ok().at("/benches/0");
        let left = bench["remainingMs"].as_u64().expect("a number");
        assert!(left <= most_ms && left > most_ms / 4, "strike {strike}: {bench}");
        assert_eq!(bench["strikes"], strike + 1, "{bench}");
        eventually("the bench is over", || benches(&world.gateway).is_empty());
    }
}

#[test]
fn row_429_a_daily_quota_lasts_until_its_reset() {
    let quota = json!([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota exceeded.", "details": [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure",
         "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "21s"}]}}]);
    let world = Internet::two([Step::json(429, &quota)]);
    world.gateway.chat("auto").ok().served_by("beta");
    let all = benches(&world.gateway);
    assert_eq!((all.len(), all[0].0.as_str(), all[0].1.as_str()), (1, "alpha/m with key al…ey", "quota"));
    // Until midnight in UTC; shortly after one, ten minutes for clocks that differ.
    let now_s =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let rest = DAY - now_s % DAY;
    let left = all[0].2;
    assert!(
        (rest - 20..=rest + 60).contains(&left) || (rest > DAY - 15 * MINUTE && left <= 10 * MINUTE),
        "{left} of {rest}"
    );
}

#[test]
fn row_429_that_speaks_of_the_account_benches_the_account() {
    let whole = error(
        429,
        "rate_limit_exceeded",
        "Your account has reached its rate limit across all models. Try again in 100 seconds.",
    );
    let alpha = remote("alpha")
        .priority(1)
        .keys(["alpha-one", "alpha-two"])
        .model("m")
        .model("n")
        .set("limitsScope", json!("account"));
    let world = Internet::new(
        [alpha, remote("beta").priority(2)],
        [("alpha-one", vec![whole.clone()]), ("alpha-two", vec![whole])],
    );
    let answer = world.gateway.chat("auto").ok().served_by("beta");
    world.expect_calls(&["alpha-one:m", "beta-key:m"]);
    answer.after_attempts(2);
    world.expect_benches(&[("account", "rateLimit", 100)]);
    world.gateway.chat("alpha/n").error(429, "all_providers_blocked").after_attempts(0);
}

#[test]
fn row_429_a_token_rate_told_as_413_is_a_rate_limit() {
    let tpm = error(
        413,
        "rate_limit_exceeded",
        "Request too large on tokens per minute (TPM): Limit 6000, Used 5990, Requested 30. Try again in 55s.",
    );
    let world = Internet::two([tpm]);
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(2);
    world.expect_benches(&[("alpha/m with key al…ey", "rateLimit", 55)]);
}

#[test]
fn row_429_three_models_of_a_key_bench_the_key() {
    let alpha = remote("alpha").model("m").model("n").model("o");
    let world = Internet::new([alpha], [("alpha-key", vec![Step::status(429).header("retry-after", 100)])]);
    for model in ["alpha/m", "alpha/n", "alpha/o"] {
        world.gateway.chat(model).error(429, "all_attempts_failed").after_attempts(1);
    }
    let keys: Vec<_> =
        benches(&world.gateway).into_iter().filter(|(who, ..)| who.starts_with("key")).collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
}

// 404, 410, "no such model": the model; next model; pinned: returned; 1 h doubling to 24 h.

#[test]
fn row_404_benches_the_model_and_goes_on() {
    let missing = error(404, "model_not_found", "The model `m` does not exist");
    for step in [
        missing,
        Step::status(410),
        error(400, "model_decommissioned", "The model `m` has been decommissioned"),
    ] {
        let alpha = remote("alpha").priority(1).model("m").model("n");
        let world = Internet::new([alpha], [("alpha-key", vec![step.for_model("m"), Step::ok()])]);
        world.gateway.chat("auto").ok().served_by("alpha").after_attempts(2);
        world.expect_calls(&["alpha-key:m", "alpha-key:n"]);
        world.expect_benches(&[("alpha/m", "modelMissing", HOUR)]);
        world.gateway.chat("auto").ok().after_attempts(1);
        world.expect_calls(&["alpha-key:m", "alpha-key:n", "alpha-key:n"]);
    }
}

#[test]
fn row_404_pinned_it_is_returned() {
    let world = Internet::two([error(404, "model_not_found", "The model `m` does not exist")]);
    let answer = world.gateway.chat("alpha/m").error(404, "model_not_found").after_attempts(1);
    assert!(
        answer.at("/error/message").as_str().is_some_and(|text| text.contains("does not exist")),
        "{answer}"
    );
    world.expect_calls(&["alpha-key:m"]);
    world.expect_benches(&[("alpha/m", "modelMissing", HOUR)]);
}

// 413, context too long: request x model; a larger window; no bench; the window is learned.

#[test]
fn row_413_goes_to_a_larger_window_benches_nobody_and_is_learned() {
    let check = |step: Step, server: &str, again: u32| {
        let world = Internet::new(
            [
                remote("alpha").priority(1).model_with("m", json!({"context": 100_000})),
                remote("beta").priority(2).model_with("m", json!({"context": 50_000})),
                remote("gamma").priority(3).model_with("m", json!({"context": 200_000})),
            ],
            [("alpha-key", vec![step.times(again), Step::ok()])],
        );
        let long = json!({"messages": [{"role": "user", "content": "word ".repeat(5_000)}]});
        world.gateway.chat_with("m", long.clone()).ok().served_by(server).after_attempts(2);
        world.expect_benches(&[]);
        world.gateway.chat_with("m", long).ok().served_by(server).after_attempts(again);
        // A short one fits as before.
        world.gateway.chat("m").ok().served_by("alpha").after_attempts(1);
    };
    let stated =
        "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.";
    check(error(400, "context_length_exceeded", stated), "beta", 1);
    check(error(413, "too_large", "The context window is 4096 tokens, you sent 5000."), "beta", 1);
    // Without a number nothing can be learned but that a window of that size is too small for this request.
    check(error(413, "request_too_large", "Request too large"), "gamma", 2);
}

#[test]
fn row_413_a_limit_below_the_request_benches_nobody_and_ends_as_413() {
    let small = error(
        413,
        "rate_limit_exceeded",
        "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000, please reduce your message size and try again.",
    );
    let world = Internet::new([remote("alpha")], [("alpha-key", vec![small])]);
    let long = || json!({"messages": [{"role": "user", "content": "word ".repeat(9_000)}]});
    world.gateway.chat_with("m", long()).error(413, "context_length_exceeded").after_attempts(1);
    world.expect_benches(&[]);
    world.gateway.chat_with("m", long()).error(413, "context_length_exceeded").after_attempts(0);
    world.expect_calls(&["alpha-key:m"]);
}

// 5xx, 3xx, 408, connect, TLS, DNS, timeout, a body cut short: the provider; next provider; 30 s doubling to 10 min.

#[test]
fn row_5xx_benches_the_provider_and_goes_to_the_next() {
    let cut = || Step::say("hello").cut(30, End::Close);
    let statuses = [500, 502, 503, 504, 408, 307, 409, 425].map(Step::status);
    for step in statuses.into_iter().chain([cut(), Step::close(), Step::half_status_line()]) {
        let alpha = remote("alpha").priority(1).model("m").model("n");
        let world = Internet::new([alpha, remote("beta").priority(2)], [("alpha-key", vec![step])]);
        world.gateway.chat("auto").ok().served_by("beta").after_attempts(2);
        world.expect_calls(&["alpha-key:m", "beta-key:m"]);
        world.expect_benches(&[("alpha", "unavailable", 30)]);
        world.gateway.chat("auto").ok().served_by("beta").after_attempts(1);
        world.expect_calls(&["alpha-key:m", "beta-key:m", "beta-key:m"]);
    }
}

#[test]
fn row_5xx_a_timeout_benches_the_provider() {
    let alpha = remote("alpha").priority(1).set("timeouts", json!({"firstByteMs": 300}));
    let world = Internet::new([alpha, remote("beta").priority(2)], [("alpha-key", vec![Step::hang()])]);
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(2);
    world.expect_benches(&[("alpha", "unavailable", 30)]);
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(1);
}

#[test]
fn row_5xx_a_stated_wait_wins_over_the_first_step() {
    let world = Internet::two([Step::status(503).header("retry-after", 120)]);
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(2);
    world.expect_benches(&[("alpha", "unavailable", 120)]);
}

#[test]
fn row_5xx_local_providers_are_back_after_five_seconds() {
    let (alpha, _beta, gateway) = two_with_first([Step::status(500)]);
    gateway.chat("m").ok().served_by("beta").after_attempts(2);
    expect_benches(&gateway, &[("alpha", "unavailable", 5)]);
    gateway.chat("m").ok().served_by("beta").after_attempts(1);
    assert_eq!(chats(&alpha).len(), 1);
}

#[test]
fn row_5xx_overloaded_and_loading_are_the_models_own() {
    for step in [
        Step::status(529),
        Step::json(503, &json!({"error": "Model m is currently loading", "estimated_time": 20.0})),
    ] {
        let alpha = remote("alpha").priority(1).model("m").model("n");
        let world = Internet::new(
            [alpha, remote("beta").priority(2)],
            [("alpha-key", vec![step.for_model("m"), Step::ok()])],
        );
        world.gateway.chat("auto").ok().served_by("alpha").after_attempts(2);
        world.expect_calls(&["alpha-key:m", "alpha-key:n"]);
        let all = benches(&world.gateway);
        assert_eq!(
            (all.len(), all[0].0.as_str(), all[0].1.as_str()),
            (1, "alpha/m", "unavailable"),
            "{all:?}"
        );
        assert!((5..=30).contains(&all[0].2), "{all:?}");
    }
}

#[test]
fn row_5xx_a_model_that_fails_alone_is_benched_alone() {
    let alpha = remote("alpha").priority(1).model("m").model("n");
    let world = Internet::new(
        [alpha, remote("beta").priority(2)],
        [("alpha-key", vec![Step::status(500).for_model("m"), Step::ok()])],
    );
    world.gateway.chat("alpha/n").ok();
    world.gateway.chat("auto").ok().served_by("alpha").after_attempts(2);
    world.expect_calls(&["alpha-key:n", "alpha-key:m", "alpha-key:n"]);
    world.expect_benches(&[("alpha/m", "unavailable", 30)]);
}

#[test]
fn row_5xx_doubles_while_it_lasts_and_a_success_makes_it_shorter_again() {
    let steps = json!({"failover": {"bench": {"unavailable": {"firstMs": 400, "capMs": 5_000}}}});
    let script = vec![Step::status(500).times(3), Step::ok(), Step::status(500)];
    let world = Internet::with(steps, [remote("alpha")], [("alpha-key", script)]);
    let strikes = |expected: u64| {
        world.gateway.chat("m").error(502, "all_attempts_failed");
        let bench = world.gateway.get("/api/benches").ok().at("/benches/0");
        assert_eq!(bench["strikes"], expected, "{bench}");
        eventually("the bench is over", || benches(&world.gateway).is_empty());
    };
    strikes(1);
    strikes(2);
    strikes(3);
    world.gateway.chat("m").ok();
    strikes(2);
}

// Connect or DNS failures at three remote hosts within 10 s: the box's network; 503 `offline`; no bench; the first
// success ends it.

#[test]
fn row_offline_three_hosts_are_our_own_network_and_the_first_success_ends_it() {
    let nowhere =
        |id: &str, priority| Provider::at(id, &format!("http://{id}.invalid/v1")).priority(priority);
    let net = mock("net");
    // Names under `.invalid` are looked up, and fail; `delta` goes through the proxy.
    let gateway = Gateway::builder()
        .env("HTTP_PROXY", &format!("http://{}", net.addr()))
        .env("NO_PROXY", ".invalid")
        .provider(nowhere("alpha", 1))
        .provider(nowhere("beta", 2))
        .provider(nowhere("gamma", 3))
        .provider(remote("delta").priority(4).model("d"))
        .start();
    let answer = gateway.chat("m").error(503, "offline").after_attempts(3);
    assert_eq!(answer.header("retry-after"), Some("5"), "{answer}");
    expect_benches(&gateway, &[]);
    let ready = gateway.get("/readyz");
    assert_eq!((ready.status(), ready.at("/reasons").to_string().contains("offline")), (503, true));
    assert!(chats(&net).is_empty());
    // One call in two seconds may find out whether that has ended.
    eventually("a remote provider is asked again", || gateway.chat("d").status() == 200);
    assert_eq!(gateway.get("/readyz").status(), 200);
    gateway.chat("d").ok().after_attempts(1);
    expect_benches(&gateway, &[]);
}

#[test]
fn row_offline_two_hosts_are_two_broken_providers() {
    let nowhere = |id: &str| Provider::at(id, &format!("http://{id}.invalid/v1"));
    let gateway = Gateway::over([nowhere("alpha"), nowhere("beta")]);
    gateway.chat("m").error(502, "all_attempts_failed").after_attempts(2);
    expect_benches(&gateway, &[("alpha", "unavailable", 30), ("beta", "unavailable", 30)]);
}

// 200 that is no answer: the model; next model, once for empty; by strikes.

#[test]
fn row_no_answer_goes_to_the_next_model_and_benches_on_the_third_strike() {
    let cut_json = || Step::say("hello").cut(40, End::Clean);
    for step in [
        Step::html(200),
        cut_json(),
        Step { choices: Some(0), ..Step::ok() },
        Step::json(200, &json!({"error": {"message": "oops"}})),
    ] {
        let alpha = remote("alpha").priority(1).model("m").model("n");
        let world =
            Internet::new([alpha], [("alpha-key", vec![step.for_model("m").times(FOREVER), Step::ok()])]);
        for _ in 0..2 {
            world.gateway.chat("auto").ok().after_attempts(2);
            world.expect_benches(&[]);
        }
        world.gateway.chat("auto").ok().after_attempts(2);
        world.expect_benches(&[("alpha/m", "noAnswer", 30)]);
        world.gateway.chat("auto").ok().after_attempts(1);
        assert_eq!(world.calls().iter().filter(|call| *call == "alpha-key:m").count(), 3);
    }
}

#[test]
fn row_no_answer_an_error_under_200_with_a_code_is_judged_as_that_status() {
    let check = |body: Value, who: &str, why: &str, seconds| {
        let world = Internet::two([Step::json(200, &body)]);
        world.gateway.chat("auto").ok().served_by("beta").after_attempts(2);
        world.expect_benches(&[(who, why, seconds)]);
        world.gateway.chat("auto").ok().served_by("beta").after_attempts(1);
    };
    check(
        json!({"error": {"code": 429, "message": "Rate limit exceeded"}}),
        "alpha/m with key al…ey",
        "rateLimit",
        60,
    );
    check(json!({"error": {"code": 401, "message": "User not found."}}), "key al…ey", "auth", 15 * MINUTE);
    check(json!({"error": {"code": 502, "message": "Provider returned error"}}), "alpha", "unavailable", 30);
}

#[test]
fn row_no_answer_an_error_as_the_first_event_is_judged_the_same() {
    let frame = json!({"error": {"code": 429, "message": "Rate limit exceeded"}});
    let world = Internet::two([Step { error_frame: Some(frame), ..Step::ok() }]);
    world.gateway.stream("auto").well_formed_stream().served_by("beta");
    world.expect_calls(&["alpha-key:m", "beta-key:m"]);
    world.expect_benches(&[("alpha/m with key al…ey", "rateLimit", MINUTE)]);
}

#[test]
fn row_no_answer_empty_is_tried_once_more_and_no_oftener() {
    let empty = || Step { content: Some(String::new()), ..Step::ok() };
    let world = Internet::new(
        [remote("alpha").priority(1), remote("beta").priority(2), remote("gamma").priority(3)],
        [("alpha-key", vec![empty()]), ("beta-key", vec![empty()])],
    );
    world.gateway.chat("auto").error(502, "all_attempts_failed").after_attempts(2);
    world.expect_calls(&["alpha-key:m", "beta-key:m"]);
    world.expect_benches(&[]);
}

#[test]
fn row_no_answer_empty_for_a_reason_is_an_answer() {
    let finished =
        |reason: &str| Step { content: Some(String::new()), finish: Some(reason.into()), ..Step::ok() };
    let refusal = json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": null, "refusal": "I cannot help with that."}}]});
    for step in [
        finished("length"),
        finished("content_filter"),
        Step::json(200, &refusal),
        Step::call_tool("weather", &json!({"city": "Oslo"})),
    ] {
        let world = Internet::two([step]);
        world
            .gateway
            .chat_with("auto", json!({"tools": [weather_tool()]}))
            .ok()
            .served_by("alpha")
            .after_attempts(1);
        world.expect_calls(&["alpha-key:m"]);
    }
}

// 400, 422 otherwise: the request; returned at once; a parameter that may go is dropped, once, and remembered.

#[test]
fn row_400_is_returned_at_once_and_benches_nobody() {
    for status in [400, 422] {
        let refusal = json!({"error": {"message": "messages[0] is odd", "type": "invalid_request_error", "param": "messages", "code": "odd_message"}});
        let world = Internet::two([Step::json(status, &refusal), Step::ok()]);
        let answer =
            world.gateway.chat("auto").error(status, "odd_message").about("messages").after_attempts(1);
        assert_eq!(answer.at("/error/message"), "messages[0] is odd");
        assert_eq!(answer.at("/freeway/upstream/status"), status);
        assert_eq!(answer.at("/freeway/upstream/body"), refusal);
        world.expect_calls(&["alpha-key:m"]);
        world.expect_benches(&[]);
        world.gateway.chat("auto").ok().served_by("alpha").after_attempts(1);
    }
}

#[test]
fn row_400_a_parameter_that_may_go_is_dropped_once_and_remembered() {
    let fastapi = json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "logit_bias"], "msg": "Extra inputs are not permitted"}]});
    for step in [Step::json(422, &fastapi), error(400, "unsupported", "Unsupported parameter: 'logit_bias'")]
    {
        let world = Internet::two([step, Step::ok()]);
        let ask =
            || world.gateway.chat_with("auto", json!({"logit_bias": {}, "top_k": 7})).ok().served_by("alpha");
        ask().after_attempts(2);
        ask().after_attempts(1);
        let sent: Vec<_> = chats(&world.net)
            .iter()
            .map(|call| (call.json().get("logit_bias").is_some(), call.json()["top_k"].clone()))
            .collect();
        assert_eq!(sent, [(true, json!(7)), (false, json!(7)), (false, json!(7))]);
        world.expect_benches(&[]);
    }
}

#[test]
fn row_400_what_must_not_go_is_never_dropped() {
    for field in ["messages", "tools", "response_format", "max_tokens", "max_completion_tokens"] {
        let refusal =
            json!({"error": {"message": format!("Unsupported parameter: '{field}'"), "param": field}});
        let world = Internet::two([Step::json(400, &refusal), Step::ok()]);
        let fields =
            json!({"tools": [weather_tool()], "response_format": {"type": "json_object"}, "max_tokens": 5});
        let answer = world.gateway.chat_with("auto", fields);
        assert_eq!(answer.status(), 400, "{answer}");
        world.expect_calls(&["alpha-key:m"]);
        world.expect_benches(&[]);
    }
}

#[test]
fn row_400_a_parameter_that_is_refused_again_and_again_ends() {
    let refusal = json!({"error": {"message": "Unsupported parameter: 'seed'", "param": "seed"}});
    let world = Internet::two([Step::json(400, &refusal)]);
    let answer = world.gateway.chat_with("auto", json!({"seed": 1}));
    assert_eq!(answer.status(), 400, "{answer}");
    world.expect_calls(&["alpha-key:m", "alpha-key:m"]);
}

// Refused by content policy: the request; returned; no bench.

#[test]
fn row_policy_is_returned_and_benches_nobody() {
    let check = |step: Step, status: u16| {
        let world = Internet::two([step, Step::ok()]);
        let answer = world.gateway.chat("auto");
        assert_eq!((answer.status(), answer.header("x-freeway-attempts")), (status, Some("1")), "{answer}");
        world.expect_calls(&["alpha-key:m"]);
        world.expect_benches(&[]);
        world.gateway.chat("auto").ok().served_by("alpha");
    };
    check(error(400, "content_policy_violation", "Your request was rejected by our safety system."), 400);
    check(error(403, "content_filter", "The prompt was flagged by moderation."), 403);
}

// What holds for all rows.

#[test]
fn benches_are_listed_and_lifted_one_or_all() {
    let world = Internet::new(
        [remote("alpha").priority(1), remote("beta").priority(2), remote("gamma").priority(3)],
        [
            ("alpha-key", vec![Step::status(401), Step::ok()]),
            ("beta-key", vec![Step::status(500), Step::ok()]),
        ],
    );
    world.gateway.chat("auto").ok().served_by("gamma").after_attempts(3);
    let list = world.gateway.get("/api/benches").ok().at("/benches");
    let beta = list
        .as_array()
        .expect("a list")
        .iter()
        .find(|bench| bench["name"] == "beta")
        .expect("beta is benched");
    let lift = |path: &str| world.gateway.send(&Request::new("DELETE", path));
    assert_eq!(lift(&format!("/api/benches/{}", beta["id"])).ok().at("/lifted"), 1);
    world.expect_benches(&[("key al…ey", "auth", 15 * MINUTE)]);
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(1);
    assert_eq!(lift("/api/benches/999999").status(), 404);
    assert_eq!(lift("/api/benches").ok().at("/lifted"), 1);
    world.expect_benches(&[]);
    world.gateway.chat("auto").ok().served_by("alpha").after_attempts(1);
}

#[test]
fn benches_are_kept_over_a_restart() {
    let mut world = Internet::two([Step::status(403)]);
    world.gateway.chat("auto").ok().served_by("beta");
    world.gateway.restart();
    world.expect_benches(&[("alpha/m with key al…ey", "forbidden", HOUR)]);
    world.gateway.chat("auto").ok().served_by("beta").after_attempts(1);
}

#[test]
fn a_refused_connection_counts_as_an_attempt() {
    let closed = ClosedPort::take().expect("a free port");
    let beta = mock("beta");
    let gateway =
        Gateway::over([Provider::at("alpha", &closed.url()).priority(1), provider(&beta).priority(2)]);
    let answer = gateway.chat("m").ok().served_by("beta").after_attempts(2);
    assert_eq!(answer.header("x-freeway-trail"), Some("alpha/m:refused"));
    expect_benches(&gateway, &[("alpha", "unavailable", 5)]);
}

#[test]
fn never_more_than_twenty_calls() {
    let keys: Vec<String> = (0..30).map(|n| format!("dead-key-{n:02}")).collect();
    let net = mock_that("alpha", [Step::status(401)]);
    let gateway =
        Gateway::builder().provider(provider(&net).keys([])).env("ALPHA_API_KEY", &keys.join(",")).start();
    gateway.chat("m").error(502, "all_attempts_failed").after_attempts(20);
    assert_eq!(chats(&net).len(), 20);
}

#[test]
fn no_attempt_begins_after_the_budget() {
    let slow = || vec![Step::status(500).delay_ms(700)];
    let world = Internet::with(
        json!({"failover": {"budgetMs": 1_000}}),
        [remote("alpha").priority(1), remote("beta").priority(2), remote("gamma").priority(3)],
        [("alpha-key", slow()), ("beta-key", slow()), ("gamma-key", slow())],
    );
    let answer = world.gateway.chat("auto");
    assert!([502, 504].contains(&answer.status()), "{answer}");
    world.expect_calls(&["alpha-key:m", "beta-key:m"]);
    // Beta was not given its time, so that it is not to blame.
    world.expect_benches(&[("alpha", "unavailable", 30)]);
}
