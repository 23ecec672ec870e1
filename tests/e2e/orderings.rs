//! Who comes first: the four orderings, and how a request names one.
use crate::harness::*;

/// Asks so many times for `auto`, and gives the first letters of who served.
fn served(gateway: &Gateway, times: usize) -> String {
    served_by(gateway, times, &Request::chat(&hello("auto")))
}

fn served_by(gateway: &Gateway, times: usize, request: &Request) -> String {
    let letter = |_| {
        let answer = gateway.send(request).ok();
        answer.header("x-freeway-provider").and_then(|id| id.chars().next()).expect("a provider served")
    };
    (0..times).map(letter).collect()
}

/// Three providers, named in the order in which they should not be tried, and their upstreams.
fn three(settings: Value) -> ([MockUpstream; 3], Gateway) {
    let mocks = ["alpha", "beta", "gamma"].map(mock);
    let [alpha, beta, gamma] = &mocks;
    let gateway = Gateway::builder()
        .settings(settings)
        .provider(provider(alpha).priority(3))
        .provider(provider(beta).priority(1))
        .provider(provider(gamma).priority(2))
        .start();
    (mocks, gateway)
}

/// Who was tried for this request, in order, when nobody has the model.
fn tried(gateway: &Gateway, request: &Request) -> Vec<String> {
    gateway.send(&Request::new("DELETE", "/api/benches")).ok();
    let answer = gateway.send(request).error(404, "model_not_found");
    let attempts = answer.at("/freeway/attempts");
    let reference = |attempt: &Value| {
        format!(
            "{}/{}",
            attempt["provider"].as_str().unwrap_or("?"),
            attempt["model"].as_str().unwrap_or("?")
        )
    };
    attempts.as_array().expect("a list").iter().map(reference).collect()
}

/// Two providers with two models each, none of which exists upstream.
fn nobody_has_it(settings: Value) -> (MockUpstream, MockUpstream, Gateway) {
    let missing =
        || Step::json(404, &json!({"error": {"message": "no such model", "code": "model_not_found"}}));
    let (alpha, beta) = (mock_that("alpha", [missing()]), mock_that("beta", [missing()]));
    let mut all = json!({"maxAttempts": 20});
    for (name, value) in settings.as_object().expect("settings are an object") {
        all[name] = value.clone();
    }
    let gateway = Gateway::builder()
        .settings(all)
        .provider(
            provider(&alpha)
                .priority(2)
                .model_with("m", json!({"priority": 1}))
                .model_with("a", json!({"priority": 2}))
                .model_with("z", json!({"priority": 1})),
        )
        .provider(provider(&beta).priority(1).model("x").model("b"))
        .start();
    (alpha, beta, gateway)
}

#[test]
fn priority_is_the_providers_then_the_models_then_the_name() {
    let (_alpha, _beta, gateway) = nobody_has_it(json!({}));
    let order = tried(&gateway, &Request::chat(&hello("auto")));
    assert_eq!(order, ["beta/b", "beta/x", "alpha/m", "alpha/z", "alpha/a"]);
}

#[test]
fn priority_always_begins_with_the_first() {
    let (_mocks, gateway) = three(json!({}));
    assert_eq!(served(&gateway, 5), "bbbbb");
}

#[test]
fn round_robin_takes_turns() {
    let (_mocks, gateway) = three(json!({"strategy": "round-robin"}));
    assert_eq!(served(&gateway, 7), "bgabgab");
}

#[test]
fn round_robin_passes_over_who_cannot_serve() {
    let (mocks, gateway) = three(json!({"strategy": "round-robin"}));
    mocks[2].script([Step::status(429).header("retry-after", 100)]);
    assert_eq!(served(&gateway, 6), "baabaa");
    assert_eq!(chats(&mocks[2]).len(), 1);
}

#[test]
fn round_robin_turns_for_each_name_by_itself() {
    let (_mocks, gateway) = three(json!({"strategy": "round-robin"}));
    let exact = Request::chat(&hello("m"));
    assert_eq!(served(&gateway, 1), "b");
    assert_eq!(served_by(&gateway, 2, &exact), "bg");
    assert_eq!(served(&gateway, 2), "ga");
}

#[test]
fn least_used_follows_the_fraction_that_is_left() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let gateway = Gateway::builder()
        .settings(json!({"strategy": "least-used"}))
        .provider(provider(&alpha).priority(1).limits(json!({"rpd": 10})))
        .provider(provider(&beta).priority(2).limits(json!({"rpd": 40})))
        .start();
    served(&gateway, 25);
    // A fifth each of 10 and 40 would be 25 in all, as 5 and 20.
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (5, 20));
    served(&gateway, 25);
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (10, 40));
    gateway.chat("auto").error(429, "all_providers_blocked");
}

#[test]
fn fastest_tries_each_once_and_then_stays_with_the_quickest() {
    let (mocks, gateway) = three(json!({"strategy": "fastest"}));
    for (mock, delay_ms) in mocks.iter().zip([20, 400, 300]) {
        mock.script([Step::ok().delay_ms(delay_ms).times(FOREVER)]);
    }
    assert_eq!(served(&gateway, 6), "bgaaaa");
}

#[test]
fn fastest_goes_by_the_first_token_of_streams() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    // Alpha begins at once and talks for long; beta thinks, and then says all at once.
    alpha.script([Step::say("word ".repeat(8)).drip_ms(100).times(FOREVER)]);
    beta.script([Step::ok().delay_ms(400).times(FOREVER)]);
    let gateway = Gateway::builder()
        .settings(json!({"strategy": "fastest"}))
        .provider(provider(&alpha).priority(1))
        .provider(provider(&beta).priority(2))
        .start();
    let serve =
        || gateway.stream("auto").well_formed_stream().header("x-freeway-provider").map(str::to_owned);
    let servers: Vec<_> = (0..4).filter_map(|_| serve()).collect();
    assert_eq!(servers, ["alpha", "beta", "alpha", "alpha"]);
}

#[test]
fn fastest_does_not_mistake_failing_fast_for_being_fast() {
    let (mocks, gateway) = three(json!({"strategy": "fastest"}));
    let html = Step::html(200).times(FOREVER);
    mocks[1].script([html]);
    for mock in [&mocks[0], &mocks[2]] {
        mock.script([Step::ok().delay_ms(150).times(FOREVER)]);
    }
    let servers = served(&gateway, 6);
    assert!(!servers.contains('b'), "{servers}");
    assert_eq!(chats(&mocks[1]).len(), 1, "it is not tried again before the others");
}

#[test]
fn a_request_may_name_its_ordering() {
    let (_mocks, gateway) = three(json!({}));
    let by_header = Request::chat(&hello("auto")).header("x-freeway-strategy", "round-robin");
    assert_eq!(served_by(&gateway, 3, &by_header), "bga");
    assert_eq!(served_by(&gateway, 3, &Request::chat(&hello("auto:round-robin"))), "bga");
    assert_eq!(served(&gateway, 2), "bb");
    let answer = gateway.chat("auto:fastest").ok();
    assert_eq!(answer.header("x-freeway-route"), Some("auto:fastest"));
}

#[test]
fn an_ordering_that_does_not_exist_is_told() {
    let (mocks, gateway) = three(json!({}));
    let odd = Request::chat(&hello("auto")).header("x-freeway-strategy", "cheapest");
    let answer = gateway.send(&odd).error(400, "invalid_body").about("x-freeway-strategy");
    assert!(answer.text().contains("round-robin"), "{answer}");
    gateway.chat("auto:cheapest").error(404, "model_not_found");
    assert!(mocks.iter().all(|mock| chats(mock).is_empty()));
}

#[test]
fn a_list_keeps_its_order_whatever_the_strategy() {
    let (_alpha, _beta, gateway) = nobody_has_it(json!({"strategy": "round-robin"}));
    let list = json!(["alpha/z", "beta/x", "alpha/m"]);
    for strategy in ["round-robin", "fastest", "least-used", "priority"] {
        let request = Request::chat(&hello_with("auto", json!({"models": list})))
            .header("x-freeway-strategy", strategy);
        assert_eq!(tried(&gateway, &request), ["alpha/z", "beta/x", "alpha/m"], "{strategy}");
        assert_eq!(tried(&gateway, &request), ["alpha/z", "beta/x", "alpha/m"], "{strategy}");
    }
}

#[test]
fn a_list_serves_from_its_first_that_can() {
    let (mocks, gateway) = three(json!({}));
    let list = json!({"models": ["gamma/m", "alpha/m"]});
    gateway.chat_with("ignored", list.clone()).ok().served_by("gamma").after_attempts(1);
    mocks[2].script([Step::status(500)]);
    gateway.chat_with("ignored", list).ok().served_by("alpha").after_attempts(2);
    assert!(chats(&mocks[1]).is_empty(), "who is not listed is not asked");
}

#[test]
fn a_profile_is_an_order_with_a_strategy() {
    let profiles = json!({"mine": ["alpha/a", "beta/b"], "fair": {"models": ["alpha/a", "beta/b"], "strategy": "round-robin"}});
    let (_alpha, _beta, gateway) = nobody_has_it(json!({"profiles": profiles}));
    let ask = |model: &str| tried(&gateway, &Request::chat(&hello(model)));
    assert_eq!(ask("mine"), ["alpha/a", "beta/b"]);
    assert_eq!(ask("auto:mine"), ["alpha/a", "beta/b"]);
    assert_eq!(ask("fair"), ["alpha/a", "beta/b"]);
    assert_eq!(ask("fair"), ["beta/b", "alpha/a"]);
}

#[test]
fn an_active_profile_is_auto() {
    let (_alpha, _beta, gateway) =
        nobody_has_it(json!({"profiles": {"mine": ["alpha/a", "beta/b"]}, "activeProfile": "mine"}));
    assert_eq!(tried(&gateway, &Request::chat(&hello("auto"))), ["alpha/a", "beta/b"]);
}

#[test]
fn the_last_resort_is_last_and_only_for_auto() {
    for strategy in ["priority", "round-robin", "least-used", "fastest"] {
        let (alpha, last) = (mock("alpha"), mock("last"));
        let gateway = Gateway::builder()
            .settings(json!({"strategy": strategy}))
            .provider(provider(&alpha).priority(9).limits(json!({"rpd": 5})))
            .provider(provider(&last).priority(1).set("lastResort", json!(true)))
            .start();
        assert_eq!(served(&gateway, 4), "aaaa", "{strategy}");
        gateway.chat("m").ok().served_by("alpha");
        // Alpha's day is over.
        assert_eq!(served(&gateway, 2), "ll", "{strategy}");
        gateway.chat("m").error(429, "all_providers_blocked");
        gateway.chat("last/m").ok().served_by("last");
        assert_eq!(chats(&alpha).len(), 5);
    }
}

#[test]
fn keys_take_turns_and_the_emptiest_goes_first() {
    let alpha = mock("alpha");
    let gateway =
        Gateway::over([provider(&alpha).keys(["alpha-one", "alpha-two"]).limits(json!({"rpd": 10}))]);
    served(&gateway, 6);
    let by_key = |key: &str| chats(&alpha).iter().filter(|call| call.key.as_deref() == Some(key)).count();
    assert_eq!((by_key("alpha-one"), by_key("alpha-two")), (3, 3));
}
