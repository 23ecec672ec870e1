//! Limits of providers: reserved before a call, settled after it, counted per key, model or account, and kept over
//! restarts.
use std::time::Duration;

use crate::harness::*;

/// A chat of about `tokens` prompt tokens by our count.
fn long(tokens: usize) -> Value {
    json!({"messages": [{"role": "user", "content": "word ".repeat(tokens)}]})
}

/// An answer that states this usage.
fn using(prompt: u64, completion: u64) -> Step {
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion});
    Step { usage_values: Some(usage), ..Step::ok() }.times(FOREVER)
}

/// A gateway over one provider `alpha` with these limits, whose upstream answers so.
fn limited(limits: Value, step: Step) -> (MockUpstream, Gateway) {
    let alpha = mock_that("alpha", [step]);
    let gateway = Gateway::over([provider(&alpha).limits(limits)]);
    (alpha, gateway)
}

/// 32 clients at once, of whom exactly one is served by exactly one call; the others are told when to come back.
#[track_caller]
fn one_of_32(limits: Value, fields: Value) {
    let (alpha, gateway) = limited(limits, using(400, 5).delay_ms(100));
    let answers = at_once(32, |_| gateway.chat_with("m", fields.clone()));
    assert_eq!(chats(&alpha).len(), 1, "upstream calls");
    let (served, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status() == 200);
    assert_eq!((served.len(), refused.len()), (1, 31));
    for answer in refused {
        let answer = answer.error(429, "all_providers_blocked").after_attempts(0);
        assert!(answer.number("retry-after") >= 1.0, "{answer}");
    }
}

#[test]
fn w9_32_clients_and_one_request_left_in_the_minute() {
    one_of_32(json!({"rpm": 1}), json!({}));
}

#[test]
fn w9_32_clients_and_one_request_left_in_the_day() {
    one_of_32(json!({"rpd": 1}), json!({}));
}

#[test]
fn w9_32_clients_and_room_for_one_prompt_in_the_minute() {
    one_of_32(json!({"tpm": 700}), long(400));
}

#[test]
fn w9_32_streams_and_one_request_left() {
    let (alpha, gateway) = limited(json!({"rpm": 1}), Step::ok().delay_ms(100));
    let answers = at_once(32, |_| gateway.stream("m"));
    let served = answers.iter().filter(|answer| answer.status() == 200).count();
    assert_eq!((served, chats(&alpha).len()), (1, 1));
}

#[test]
fn w9_32_clients_and_one_request_left_spill_over_to_the_next_provider() {
    let (alpha, beta) = (mock_that("alpha", [Step::ok().delay_ms(100)]), mock("beta"));
    let gateway =
        Gateway::over([provider(&alpha).priority(1).limits(json!({"rpm": 1})), provider(&beta).priority(2)]);
    for answer in at_once(32, |_| gateway.chat("m")) {
        answer.ok().after_attempts(1);
    }
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 31));
}

#[test]
fn w4_each_key_of_a_pool_adds_its_own_quota() {
    let alpha = mock("alpha");
    let keys = ["alpha-one", "alpha-two", "alpha-three"];
    let gateway = Gateway::over([provider(&alpha).keys(keys).limits(json!({"rpm": 2}))]);
    let served =
        at_once(10, |_| gateway.chat("m").status()).into_iter().filter(|status| *status == 200).count();
    assert_eq!(served, 6);
    for key in keys {
        assert_eq!(chats(&alpha).iter().filter(|call| call.key.as_deref() == Some(key)).count(), 2, "{key}");
    }
}

#[test]
fn w4_keys_of_one_account_share_its_quota() {
    let alpha = mock("alpha");
    let shared = provider(&alpha).keys(["alpha-one", "alpha-two", "alpha-three"]).limits(json!({"rpm": 2}));
    let gateway = Gateway::over([shared.set("limitsScope", json!("account"))]);
    let served =
        at_once(10, |_| gateway.chat("m").status()).into_iter().filter(|status| *status == 200).count();
    assert_eq!((served, chats(&alpha).len()), (2, 2));
    assert_eq!(gateway.used_at("/providers/0/bars", "rpm"), 2.0);
}

#[test]
fn w4_groups_of_keys_are_accounts() {
    let alpha = mock("alpha");
    let auth = json!({"type": "bearer", "envKeys": ["HOME_ONE", "HOME_TWO", "WORK"], "accounts": {"home": ["HOME_ONE", "HOME_TWO"]}});
    let grouped =
        provider(&alpha).set("auth", auth).set("limitsScope", json!("account")).limits(json!({"rpm": 2}));
    let gateway = Gateway::builder()
        .provider(grouped)
        .env("HOME_ONE", "alpha-one")
        .env("HOME_TWO", "alpha-two")
        .env("WORK", "alpha-work")
        .start();
    let served =
        at_once(10, |_| gateway.chat("m").status()).into_iter().filter(|status| *status == 200).count();
    assert_eq!(served, 4);
    let at_work = chats(&alpha).iter().filter(|call| call.key.as_deref() == Some("alpha-work")).count();
    assert_eq!(at_work, 2);
}

#[test]
fn a_models_own_limit_binds_that_model_only() {
    let alpha = mock("alpha");
    let two = provider(&alpha).model_with("m", json!({"limits": {"rpd": 1}})).model("n");
    let gateway = Gateway::over([two]);
    gateway.chat("alpha/m").ok();
    gateway.chat("alpha/m").error(429, "all_providers_blocked");
    gateway.chat("alpha/n").ok();
    gateway.chat("alpha/n").ok();
    gateway.chat("auto").ok();
    assert_eq!(chats(&alpha).len(), 4);
}

#[test]
fn limits_of_each_model_are_counted_for_each_model() {
    let alpha = mock("alpha");
    let each =
        provider(&alpha).model("m").model("n").limits(json!({"rpm": 1})).set("limitsScope", json!("model"));
    let gateway = Gateway::over([each]);
    gateway.chat("alpha/m").ok();
    gateway.chat("alpha/m").error(429, "all_providers_blocked");
    gateway.chat("auto").ok();
    gateway.chat("auto").error(429, "all_providers_blocked");
    assert_eq!(chats(&alpha).len(), 2);
}

#[test]
fn counters_survive_a_restart() {
    let (alpha, mut gateway) = limited(json!({"rpm": 1, "tpd": 100_000}), using(70, 30));
    gateway.chat("m").ok();
    gateway.restart();
    assert_eq!((gateway.used("rpm"), gateway.used("tpd")), (1.0, 100.0));
    gateway.chat("m").error(429, "all_providers_blocked");
    assert_eq!(chats(&alpha).len(), 1);
}

#[test]
fn counters_survive_a_kill_within_ten_seconds() {
    let (alpha, mut gateway) = limited(json!({"rpd": 1}), Step::ok());
    gateway.chat("m").ok();
    // The promise is about time, so that time has to pass; the rest is for a slow disk.
    std::thread::sleep(Duration::from_secs(10 + 3));
    gateway.kill();
    gateway.start_again();
    gateway.chat("m").error(429, "all_providers_blocked");
    assert_eq!(chats(&alpha).len(), 1);
}

#[test]
fn a_kill_right_after_traffic_leaves_a_sound_state() {
    let (_alpha, mut gateway) = limited(json!({"rpm": 10_000}), Step::ok());
    for _ in 0..3 {
        at_once(8, |_| gateway.chat("m").ok());
        gateway.kill();
        gateway.start_again();
    }
    gateway.chat("m").ok();
    let ready = gateway.get("/readyz").ok();
    assert_eq!(ready.at("/reasons"), json!([]));
}

#[test]
fn a_call_holds_what_it_may_use_and_settles_what_it_used() {
    let (alpha, gateway) = limited(json!({"rpm": 10, "tpm": 10_000}), using(100, 50).delay_ms(600));
    std::thread::scope(|scope| {
        scope.spawn(|| gateway.chat("m").ok());
        eventually("the call is on its way", || chats(&alpha).len() == 1);
        // 512 for the answer, a few for "hi".
        let held = gateway.used("tpm");
        assert!((513.0..600.0).contains(&held), "{held}");
        assert_eq!(gateway.used("rpm"), 1.0);
    });
    assert_eq!((gateway.used("rpm"), gateway.used("tpm")), (1.0, 150.0));
}

/// Each of several choices may be as long as one alone.
#[test]
fn a_call_for_several_choices_holds_what_all_of_them_may_use() {
    let (alpha, gateway) = limited(json!({"tpm": 10_000}), using(100, 150).delay_ms(600));
    std::thread::scope(|scope| {
        scope.spawn(|| gateway.chat_with("m", json!({"n": 3})).ok());
        eventually("the call is on its way", || chats(&alpha).len() == 1);
        let held = gateway.used("tpm");
        assert!((3.0 * 512.0..3.0 * 512.0 + 100.0).contains(&held), "{held}");
    });
    assert_eq!(gateway.used("tpm"), 250.0);
}

#[test]
fn streams_settle_what_they_used() {
    let check = |step: Step, tokens: std::ops::RangeInclusive<f64>| {
        let (_alpha, gateway) = limited(json!({"tpm": 10_000}), step);
        gateway.stream("m").well_formed_stream();
        let spent = gateway.used("tpm");
        assert!(tokens.contains(&spent), "{spent}");
    };
    for usage in [Usage::Asked, Usage::Last, Usage::Finish, Usage::XGroq] {
        check(using(100, 50).usage(usage), 150.0..=150.0);
    }
    // Nobody says: we estimate what came.
    check(Step::say("word ".repeat(200)).usage(Usage::None), 150.0..=300.0);
}

#[test]
fn b17_odd_usage_never_gives_anything_back() {
    for usage in [
        json!({"prompt_tokens": -500, "completion_tokens": -500, "total_tokens": -1_000}),
        json!({"prompt_tokens": "many"}),
        json!(null),
    ] {
        let odd = Step { usage_values: Some(usage), ..Step::say("word ".repeat(40)) };
        let (_alpha, gateway) = limited(json!({"tpm": 10_000}), odd.times(FOREVER));
        let mut before = 0.0;
        for _ in 0..3 {
            gateway.chat("m").ok();
            let now = gateway.used("tpm");
            assert!(now > before, "{now} after {before}");
            before = now;
        }
    }
}

#[test]
fn b17_a_prompt_that_was_not_counted_counts_all_the_same() {
    for usage in [
        json!({"prompt_tokens": -500, "completion_tokens": 5}),
        json!({"completion_tokens": 5}),
        json!({"prompt_tokens": 1e300, "completion_tokens": 5, "total_tokens": 1e300}),
    ] {
        let odd = Step { usage_values: Some(usage.clone()), ..Step::ok() };
        let (_alpha, gateway) = limited(json!({"tpm": 10_000}), odd.times(FOREVER));
        let answer = gateway.chat_with("m", long(400)).ok();
        assert_eq!(answer.header("x-freeway-usage"), Some("estimated"), "{usage}: {answer}");
        assert!(gateway.used("tpm") > 400.0, "{usage}: {}", gateway.used("tpm"));
        let whole = gateway.used("tpm");
        let mut body = long(400);
        body["stream"] = true.into();
        gateway.chat_with("m", body).ok();
        assert!(gateway.used("tpm") > whole + 400.0, "{usage}, streamed: {}", gateway.used("tpm"));
    }
}

#[test]
fn refused_calls_count_as_requests_and_give_their_tokens_back() {
    let error = |code: Value| json!({"error": {"message": "no", "code": code}});
    let frame = |code: Value| Step { error_frame: Some(error(code)), ..Step::ok() };
    let whole = [400, 401, 429, 500].map(Step::status).into_iter().map(|step| (step, false));
    let under_200 =
        [(Step::json(200, &error(json!(429))), false), (Step::json(200, &error(json!(null))), false)];
    let streamed = [(Step::status(503), true), (frame(json!(503)), true), (frame(json!(null)), true)];
    for (step, stream) in whole.chain(under_200).chain(streamed) {
        let (_alpha, gateway) = limited(json!({"rpm": 10, "tpm": 10_000}), step);
        let mut body = long(500);
        body["stream"] = stream.into();
        assert_ne!(gateway.chat_with("m", body).status(), 200);
        assert_eq!((gateway.used("rpm"), gateway.used("tpm")), (1.0, 0.0), "{}", gateway.log());
    }
}

#[test]
fn a_call_that_reached_nobody_counts_nothing() {
    let closed = ClosedPort::take().expect("a free port");
    let gateway =
        Gateway::over([Provider::at("alpha", &closed.url()).limits(json!({"rpm": 10, "tpm": 10_000}))]);
    gateway.chat("m").error(502, "all_attempts_failed").after_attempts(1);
    assert_eq!((gateway.used("rpm"), gateway.used("tpm")), (0.0, 0.0));
}

#[test]
fn a_prompt_that_timed_out_is_counted() {
    let alpha = mock_that("alpha", [Step::hang()]);
    let gateway = Gateway::over([provider(&alpha)
        .set("timeouts", json!({"firstByteMs": 300}))
        .limits(json!({"rpm": 10, "tpm": 10_000}))]);
    gateway.chat_with("m", long(500)).error(504, "all_attempts_failed");
    assert_eq!(gateway.used("rpm"), 1.0);
    assert!(gateway.used("tpm") >= 400.0, "the upstream may have read it");
}

#[test]
fn what_can_never_fit_is_413_without_a_wait_and_passes_on() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let small = || provider(&alpha).priority(1).limits(json!({"tpm": 300}));
    let gateway = Gateway::over([small()]);
    let answer = gateway.chat_with("m", long(1_000)).error(413, "context_length_exceeded").after_attempts(0);
    assert_eq!(
        (answer.header("retry-after"), answer.at("/freeway/code")),
        (None, json!("context_too_large"))
    );
    let gateway = Gateway::over([small(), provider(&beta).priority(2)]);
    gateway.chat_with("m", long(1_000)).ok().served_by("beta").after_attempts(1);
    gateway.chat("m").ok().served_by("alpha");
    assert_eq!(chats(&alpha).len(), 1);
}

#[test]
fn a_large_output_limit_alone_never_refuses() {
    let (alpha, gateway) = limited(json!({"tpm": 600}), using(5, 5));
    for max_tokens in [600, 100_000, 4_000_000] {
        gateway.chat_with("m", json!({"max_tokens": max_tokens})).ok();
    }
    assert_eq!(chats(&alpha).len(), 3);
}

#[test]
fn where_the_upstream_charges_the_output_limit_it_has_to_fit() {
    let alpha = mock_that("alpha", [using(5, 5)]);
    let gateway =
        Gateway::over([provider(&alpha).limits(json!({"tpm": 1_000})).set("countsMaxTokens", json!(true))]);
    gateway.chat_with("m", json!({"max_tokens": 5_000})).error(413, "context_length_exceeded");
    gateway.chat_with("m", json!({"max_tokens": 600})).ok();
    // All 600 are gone, whatever the answer's length.
    gateway.chat_with("m", json!({"max_tokens": 600})).error(429, "all_providers_blocked");
    assert_eq!(chats(&alpha).len(), 1);
}

#[test]
fn an_answer_longer_than_expected_blocks_the_next_call() {
    let (alpha, gateway) = limited(json!({"tpm": 2_000}), using(10, 5_000));
    gateway.chat("m").ok();
    gateway.chat("m").error(429, "all_providers_blocked");
    assert_eq!((chats(&alpha).len(), gateway.used("tpm")), (1, 5_010.0));
}

#[test]
fn credits_are_counted_by_request() {
    let (alpha, gateway) = limited(json!({"creditsPerDay": 30, "creditsPerRequest": 15}), Step::ok());
    gateway.chat("m").ok();
    gateway.chat("m").ok();
    gateway.chat("m").error(429, "all_providers_blocked");
    assert_eq!(chats(&alpha).len(), 2);
}

#[test]
fn no_more_calls_at_once_than_a_provider_takes() {
    let (alpha, gateway) = limited(json!({"concurrency": 2}), Step::ok().delay_ms(500).times(FOREVER));
    let answers = at_once(8, |_| gateway.chat("m"));
    let (served, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status() == 200);
    assert_eq!((served.len(), chats(&alpha).len()), (2, 2));
    for answer in refused {
        assert_eq!(answer.error(429, "all_providers_blocked").header("retry-after"), Some("1"));
    }
    gateway.chat("m").ok();
}

#[test]
fn a_full_limit_says_when_it_frees_up() {
    let check = |limits: Value, most: f64| {
        let (_alpha, gateway) = limited(limits, Step::ok());
        gateway.chat("m").ok();
        let answer = gateway.chat("m").error(429, "all_providers_blocked");
        let wait = answer.number("retry-after");
        assert!((1.0..=most).contains(&wait), "{answer}");
        assert_eq!(answer.at("/freeway/nextEligible/model"), "m");
        let reason = answer.at("/freeway/blocked/0/reason");
        assert!(reason.as_str().is_some_and(|reason| reason.contains("limit reached (1/1)")), "{reason}");
    };
    // A minute of ours is one slot longer than the upstream's, whose clock we do not see.
    check(json!({"rpm": 1}), 62.0);
    check(json!({"rph": 1}), 3_700.0);
    check(json!({"rpd": 1}), 86_400.0);
}

#[test]
fn a_window_that_has_passed_is_free_again() {
    let (alpha, gateway) = limited(json!({"rps": 1}), Step::ok());
    gateway.chat("m").ok();
    gateway.chat("m").error(429, "all_providers_blocked");
    eventually("the second has passed", || gateway.chat("m").status() == 200);
    assert_eq!(chats(&alpha).len(), 2);
}

#[test]
fn embeddings_are_counted_without_an_output() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).embed_model("e").limits(json!({"rpm": 2, "tpm": 100}))]);
    gateway.embed("alpha/e", json!("hi")).ok();
    assert_eq!(gateway.used("rpm"), 1.0);
    assert!(gateway.used("tpm") < 50.0);
}

#[test]
fn a_reload_keeps_what_was_counted() {
    let (alpha, gateway) = limited(json!({"rpm": 1}), Step::ok());
    gateway.chat("m").ok();
    gateway.post("/api/reload", &json!({})).ok();
    gateway.chat("m").error(429, "all_providers_blocked");
    assert_eq!(chats(&alpha).len(), 1);
}

/// An answer that says what is left of a limit.
fn leaving(name: &str, left: u64) -> Step {
    Step::ok()
        .header(&format!("x-ratelimit-remaining-{name}"), left)
        .header(&format!("x-ratelimit-reset-{name}"), "30s")
        .delay_ms(300)
        .times(FOREVER)
}

/// Other programs may use the same key: what the upstream counts wins over what we do.
#[test]
fn c6_no_more_calls_are_made_at_once_than_the_upstream_says_are_left() {
    let (alpha, gateway) = limited(json!({}), leaving("requests", 2));
    gateway.chat("m").ok();
    let answers = at_once(8, |_| gateway.chat("m"));
    let (served, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status() == 200);
    assert_eq!((served.len(), chats(&alpha).len()), (2, 3));
    for answer in refused {
        let answer = answer.error(429, "all_providers_blocked").after_attempts(0);
        assert!((20.0..=31.0).contains(&answer.number("retry-after")), "{answer}");
    }
    // The younger answers say that two are left again.
    gateway.chat("m").ok();
}

#[test]
fn c6_a_prompt_larger_than_what_is_left_goes_elsewhere() {
    let (alpha, beta) = (mock_that("alpha", [leaving("tokens", 200)]), mock("beta"));
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    gateway.chat("m").ok().served_by("alpha");
    gateway.chat_with("m", long(500)).ok().served_by("beta").after_attempts(1);
    gateway.chat("m").ok().served_by("alpha");
}
