//! Answers from memory: which requests get one, what it looks like, and what a client can ask of it.
use std::time::Duration;

use crate::harness::*;

/// A question whose answer may be kept.
fn question(fields: Value) -> Value {
    let mut body = hello_with("auto", json!({"temperature": 0}));
    for (name, value) in fields.as_object().expect("fields are an object") {
        body[name] = value.clone();
    }
    body
}

fn ask(gateway: &Gateway, fields: Value) -> Answer {
    gateway.post("/v1/chat/completions", &question(fields)).ok()
}

fn ask_with(gateway: &Gateway, fields: Value, header: (&str, &str)) -> Answer {
    gateway.send(&Request::chat(&question(fields)).header(header.0, header.1))
}

/// Fails unless the answer came from memory, with all that its headers say then.
#[track_caller]
fn hit(answer: Answer) -> Answer {
    assert_eq!(answer.header("x-freeway-cache"), Some("exact"), "{answer}");
    assert!(answer.number("x-freeway-ms") >= 0.0 && answer.header("x-freeway-route").is_some(), "{answer}");
    answer.ok().after_attempts(0)
}

#[track_caller]
fn miss(answer: Answer) -> Answer {
    assert_eq!(answer.header("x-freeway-cache"), None, "{answer}");
    answer.ok()
}

#[test]
fn the_same_question_is_asked_once_even_when_nobody_could_answer_any_more() {
    let (alpha, gateway) = gateway_over([Step::say("forty-two"), Step::error(500, "down")]);
    let first = miss(ask(&gateway, json!({})));
    let second = hit(ask(&gateway, json!({}))).served_by("alpha");
    assert_eq!((second.content(), second.header("x-freeway-model")), ("forty-two".into(), Some("m")));
    assert_eq!(second.usage(), first.usage());
    assert_ne!(second.at("/id"), first.at("/id"), "an id of its own");
    assert!(second.at("/created").as_u64() >= first.at("/created").as_u64());
    gateway.chat_with("auto", json!({"temperature": 1})).error(502, "all_attempts_failed");
    hit(ask(&gateway, json!({})));
    assert_eq!(chats(&alpha).len(), 2);
}

#[test]
fn c8_a_hit_is_a_turn_of_its_own_and_costs_no_quota() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).limits(json!({"rpm": 10}))]);
    ask(&gateway, json!({}));
    hit(ask(&gateway, json!({"stream": true})));
    let turn = gateway.last_turn(2);
    assert_eq!(
        (&turn["cache"], &turn["attempts"], &turn["status"]),
        (&json!("exact"), &json!([]), &json!(200))
    );
    assert_eq!(
        (&turn["providerId"], &turn["modelId"], &turn["keyId"]),
        (&json!("alpha"), &json!("m"), &Value::Null)
    );
    assert!(turn["tokensIn"].as_u64() > Some(0) && turn["stream"] == true);
    assert_eq!(gateway.turns()[1]["cache"], Value::Null);
    assert_eq!(gateway.used("rpm"), 1.0);
    let stats = gateway.get("/api/stats").ok();
    assert_eq!((stats.at("/requests/ok"), stats.at("/requests/fail")), (json!(2), json!(0)));
}

#[test]
fn safe_keeps_what_can_be_expected_to_be_the_same_twice() {
    let (alpha, gateway) = gateway_over([Step::ok()]);
    let check = |fields: Value, kept: bool| {
        let before = chats(&alpha).len();
        for _ in 0..2 {
            gateway.chat_with("auto", fields.clone()).ok();
        }
        assert_eq!(chats(&alpha).len() - before, if kept { 1 } else { 2 }, "{fields}");
    };
    check(json!({}), false);
    check(json!({"temperature": 0.9}), false);
    check(json!({"temperature": 0.2}), true);
    check(json!({"temperature": 0.9, "seed": 7}), true);
    check(json!({"temperature": 0.1, "tools": [weather_tool()]}), true);
}

#[test]
fn cache_05_w19_every_difference_misses_and_spelling_does_not_matter() {
    let (alpha, gateway) = gateway_over([Step::ok()]);
    let base = json!({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "tools": [weather_tool()]});
    miss(ask(&gateway, base.clone()));
    for field in [
        json!({"n": 2}),
        json!({"max_tokens": 5}),
        json!({"max_completion_tokens": 5}),
        json!({"seed": 1}),
        json!({"stop": "x"}),
        json!({"temperature": 0.1}),
        json!({"response_format": {"type": "json_object"}}),
        json!({"messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]}),
        json!({"logprobs": true}),
        json!({"reasoning_effort": "low"}),
        json!({"unheard_of": 1}),
    ] {
        let mut fields = base.clone();
        fields.as_object_mut().expect("fields").extend(field.as_object().expect("a field").clone());
        miss(ask(&gateway, fields));
    }
    let calls = chats(&alpha).len();
    let mut same = base.clone();
    same.as_object_mut().expect("fields").extend(
        json!({"user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "temperature": 0.0})
            .as_object().expect("fields").clone(),
    );
    hit(ask(&gateway, same));
    let spelled = question(base).to_string().replace("\"hi\"", "\"\\u0068i\"").replace(':', " : ");
    hit(gateway.send(&Request::new("POST", "/v1/chat/completions").body(spelled)));
    assert_eq!(chats(&alpha).len(), calls);
}

#[test]
fn acceptance_15_embeddings_differ_by_their_dimensions() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([provider(&alpha).embed_model("e")]);
    let ask = |fields: Value, header: Option<(&str, &str)>| {
        let mut body = json!({"model": "e", "input": "hi"});
        body.as_object_mut().expect("fields").extend(fields.as_object().expect("fields").clone());
        let request = Request::post("/v1/embeddings", &body);
        gateway.send(&header.map_or(request.clone(), |(name, value)| request.header(name, value)))
    };
    let on = Some(("x-freeway-cache", "on"));
    miss(ask(json!({"dimensions": 8}), None));
    miss(ask(json!({"dimensions": 8}), on));
    let first = miss(ask(json!({"dimensions": 16}), on));
    let again = hit(ask(json!({"dimensions": 16}), on));
    assert_eq!(again.body, first.body);
    hit(ask(json!({"dimensions": 8}), on));
    miss(ask(json!({"dimensions": 8, "encoding_format": "base64"}), on));
}

#[test]
fn a_client_says_what_it_wants_of_the_cache() {
    let (alpha, gateway) =
        gateway_over([Step::say("one"), Step::say("two"), Step::say("three"), Step::say("four")]);
    let hot = json!({"temperature": 1});
    let with = |value: &str| ask_with(&gateway, hot.clone(), ("x-freeway-cache", value));
    assert_eq!(miss(with("on")).content(), "one");
    assert_eq!(hit(with("ON")).content(), "one");
    assert_eq!(miss(with("off")).content(), "two");
    assert_eq!(hit(with("on")).content(), "one", "off keeps nothing");
    assert_eq!(miss(with("refresh")).content(), "three");
    assert_eq!(hit(with("on")).content(), "three", "refresh keeps what it got");
    with("maybe").error(400, "invalid_body").about("x-freeway-cache");
    with("").ok();
    let calls = chats(&alpha).len();
    miss(ask(&gateway, json!({})));
    hit(ask(&gateway, json!({})));
    for value in ["no-store", "no-cache", "max-age=0, no-store"] {
        miss(ask_with(&gateway, json!({}), ("cache-control", value)));
    }
    hit(ask_with(&gateway, json!({}), ("cache-control", "max-age=0")));
    assert_eq!(chats(&alpha).len(), calls + 4);
}

#[test]
fn where_the_cache_is_off_nobody_gets_an_answer_from_it() {
    let alpha = mock("alpha");
    let gateway =
        Gateway::builder().settings(json!({"cache": {"mode": "off"}})).provider(provider(&alpha)).start();
    for _ in 0..2 {
        miss(ask_with(&gateway, json!({}), ("x-freeway-cache", "on")));
    }
}

#[test]
fn aggressive_keeps_everything_that_is_whole() {
    let alpha = mock_that("alpha", [Step::ok()]);
    let gateway = Gateway::builder()
        .settings(json!({"cache": {"mode": "aggressive"}}))
        .provider(provider(&alpha))
        .start();
    miss(gateway.stream("auto"));
    assert_eq!(hit(gateway.stream("auto")).content(), hit(gateway.chat("auto")).content());
}

#[test]
fn auto_and_a_pin_share_what_the_same_model_said_and_no_other_model_s_answer() {
    let (alpha, beta) =
        (mock_that("alpha", [Step::say("of alpha")]), mock_that("beta", [Step::say("of beta")]));
    let gateway = Gateway::over([provider(&alpha).priority(1), provider(&beta).priority(2)]);
    let ask = |model: &str| ask(&gateway, json!({"model": model}));
    miss(ask("auto")).served_by("alpha");
    hit(ask("alpha/m")).served_by("alpha");
    assert_eq!(miss(ask("beta/m")).served_by("beta").content(), "of beta");
    assert_eq!(hit(ask("alpha/m")).content(), "of alpha", "each keeps its own");
    assert_eq!(hit(ask("beta/m")).content(), "of beta");
    gateway.write_provider(&provider(&alpha).model("other"));
    gateway.reload();
    miss(ask("alpha/other")).served_by("alpha");
    hit(ask("auto"));
}

#[test]
fn clients_share_answers_unless_each_has_its_own() {
    for (scope, shared) in [("shared", true), ("key", false)] {
        let alpha = mock("alpha");
        let gateway = Gateway::builder()
            .settings(json!({"cache": {"scope": scope}, "keys": ["key-one", "key-two"]}))
            .provider(provider(&alpha))
            .start();
        let ask = |key: &str| gateway.send(&Request::chat(&question(json!({}))).key(key)).ok();
        miss(ask("key-one"));
        hit(ask("key-one"));
        assert_eq!(ask("key-two").header("x-freeway-cache").is_some(), shared, "{scope}");
    }
}

#[test]
fn a_client_key_may_be_kept_out_of_it() {
    let alpha = mock("alpha");
    let keys =
        json!([{"name": "plain", "key": "key-one"}, {"name": "private", "key": "key-two", "cache": false}]);
    let gateway = Gateway::builder().settings(json!({"keys": keys})).provider(provider(&alpha)).start();
    let ask = |key: &str| {
        gateway.send(&Request::chat(&question(json!({}))).key(key).header("x-freeway-cache", "on"))
    };
    miss(ask("key-two"));
    miss(ask("key-one"));
    miss(ask("key-two"));
    hit(ask("key-one"));
}

#[test]
fn b4_cache_04_an_answer_is_given_again_in_either_form_with_all_it_said() {
    let said = json!({"role": "assistant", "content": "x".repeat(23) + "😀 wave 👋🏽 and e\u{301}", "reasoning_content": "let me think about that for a while"});
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14, "prompt_tokens_details": {"cached_tokens": 2}});
    let whole = json!({"id": "up", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": said, "finish_reason": "stop"}], "usage": usage});
    let streamed: Vec<Value> = [
        json!({"role": "assistant", "content": ""}),
        json!({"reasoning_content": "let me think about that "}),
        json!({"reasoning_content": "for a while"}),
        json!({"content": "x".repeat(23)}),
        json!({"content": "😀 wave 👋🏽 and e\u{301}"}),
    ]
    .into_iter()
    .map(|delta| json!({"id": "up", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]}))
    .chain([
        json!({"id": "up", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        json!({"id": "up", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage}),
    ])
    .collect();
    let mut events: Vec<String> = streamed.iter().map(Value::to_string).collect();
    events.push("[DONE]".into());
    for first_streams in [false, true] {
        let step = if first_streams { Step::events(events.clone()) } else { Step::json(200, &whole) };
        let (alpha, gateway) = gateway_over([step]);
        miss(ask(&gateway, json!({"stream": first_streams})));
        let again = hit(ask(&gateway, json!({})));
        assert_eq!(again.at("/choices/0/message"), said);
        assert_eq!((again.finish_reason(), again.usage()), (Some("stop".into()), Some(usage.clone())));
        let plain = hit(ask(&gateway, json!({"stream": true}))).well_formed_stream();
        assert_eq!((plain.content(), plain.usage()), (said["content"].as_str().expect("text").into(), None));
        let reasoning: String = plain
            .chunks()
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["reasoning_content"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(reasoning, said["reasoning_content"]);
        let counted = hit(ask(&gateway, json!({"stream": true, "stream_options": {"include_usage": true}})));
        assert_eq!(counted.well_formed_stream().usage(), Some(usage.clone()));
        assert_eq!(chats(&alpha).len(), 1);
    }
}

#[test]
fn acceptance_22_tool_calls_and_all_choices_are_given_again() {
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Köln\"}"}});
    let whole = json!({"id": "up", "object": "chat.completion", "created": 1, "model": "m", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": null, "tool_calls": [call]}, "finish_reason": "tool_calls"},
        {"index": 1, "message": {"role": "assistant", "content": "or not"}, "finish_reason": "stop"}]});
    let (_alpha, gateway) = gateway_over([Step::json(200, &whole)]);
    let fields = json!({"tools": [weather_tool()], "n": 2});
    miss(ask(&gateway, fields.clone()));
    let again = hit(ask(&gateway, fields.clone()));
    assert_eq!(again.at("/choices"), whole["choices"]);
    let mut streaming = fields;
    streaming["stream"] = true.into();
    let chunks = hit(ask(&gateway, streaming)).chunks();
    let choices = |index: u64| {
        chunks.iter().map(|chunk| chunk["choices"][0].clone()).filter(move |choice| choice["index"] == index)
    };
    let calls: Vec<Value> =
        choices(0).filter_map(|choice| choice["delta"].get("tool_calls").cloned()).collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(
        (&calls[0][0]["id"], &calls[0][0]["function"], &calls[0][0]["index"]),
        (&call["id"], &call["function"], &json!(0))
    );
    let finishes: Vec<Value> = [0, 1]
        .into_iter()
        .flat_map(choices)
        .map(|choice| choice["finish_reason"].clone())
        .filter(|finish| !finish.is_null())
        .collect();
    assert_eq!(finishes, ["tool_calls", "stop"]);
    assert_eq!(
        choices(1)
            .filter_map(|choice| choice["delta"]["content"].as_str().map(str::to_owned))
            .collect::<String>(),
        "or not"
    );
}

#[test]
fn w10_b2_acceptance_21_what_is_not_a_whole_good_answer_is_not_kept() {
    let chunk = |delta: &str| delta_event(delta);
    let checks: Vec<(&str, Step, bool)> = vec![
        ("cut off by length", Step::json(200, &answer_with("half an ans", "length")), false),
        ("filtered", Step::json(200, &answer_with("x", "content_filter")), false),
        ("an error under 200", Step::json(200, &json!({"error": {"message": "no"}})), false),
        ("no page", Step::html(200), false),
        (
            "an error in the stream",
            Step::events([chunk("a"), json!({"error": {"message": "no"}}).to_string()]),
            true,
        ),
        ("a stream without an end", Step::events([chunk("a")]).without_done(), true),
        (
            "an event that cannot be read",
            Step::events([chunk("a"), "{broken".into(), chunk("b"), finish("stop"), "[DONE]".into()]),
            true,
        ),
    ];
    for (what, step, stream) in checks {
        let (alpha, gateway) = gateway_over([step, Step::say("good")]);
        let fields = json!({"stream": stream});
        gateway.post("/v1/chat/completions", &question(fields.clone()));
        gateway.send(&Request::new("DELETE", "/api/benches")).ok();
        assert_eq!(miss(ask(&gateway, fields)).content(), "good", "{what}");
        assert_eq!(chats(&alpha).len(), 2, "{what}");
    }
}

fn delta_event(content: &str) -> String {
    json!({"choices": [{"index": 0, "delta": {"content": content}}]}).to_string()
}

fn answer_with(content: &str, finish: &str) -> Value {
    json!({"id": "up", "object": "chat.completion", "created": 1, "model": "m", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}]})
}

#[test]
fn acceptance_20_a_character_that_came_in_two_pieces_is_whole_in_memory() {
    let event = event(&delta_event("sch\u{f6}n 😀"));
    let bytes = event.as_bytes();
    let at = bytes.iter().position(|byte| *byte > 0x7f).expect("it has such") + 1;
    let end = event.find("😀").expect("it has one") + 2;
    let pieces = [&bytes[..at], &bytes[at..end], &bytes[end..]].map(Act::write);
    let rest = Act::write(super_event("stop") + "data: [DONE]\n\n");
    let step = Step::writes([
        pieces[0].clone(),
        Act::Pause(20),
        pieces[1].clone(),
        Act::Pause(20),
        pieces[2].clone(),
        rest,
    ]);
    let (_alpha, gateway) = gateway_over([step]);
    assert_eq!(miss(ask(&gateway, json!({"stream": true}))).content(), "schön 😀");
    assert_eq!(hit(ask(&gateway, json!({}))).content(), "schön 😀");
}

fn super_event(finish: &str) -> String {
    event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}).to_string())
}

#[test]
fn an_answer_is_good_for_a_time_and_there_is_room_for_so_many() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .settings(json!({"cache": {"ttlMs": 300, "maxEntryBytes": 1024}}))
        .provider(provider(&alpha))
        .start();
    miss(ask(&gateway, json!({})));
    eventually("it is too old", || ask(&gateway, json!({})).header("x-freeway-cache").is_none());
    alpha.script([Step::say("long ".repeat(500))]);
    for _ in 0..2 {
        miss(ask(&gateway, json!({"seed": 1})));
    }
    let few =
        Gateway::builder().settings(json!({"cache": {"maxEntries": 2}})).provider(provider(&alpha)).start();
    for seed in [1, 2, 1, 3] {
        ask(&few, json!({"seed": seed}));
    }
    hit(ask(&few, json!({"seed": 1})));
    miss(ask(&few, json!({"seed": 2})));
}

#[test]
fn cache_06_no_cache_between_us_and_a_client_keeps_anything() {
    let (_alpha, gateway) = gateway_over([Step::ok()]);
    for answer in [
        ask(&gateway, json!({})),
        ask(&gateway, json!({})),
        ask(&gateway, json!({"stream": true})),
        gateway.get("/v1/models"),
        gateway.get("/api/stats"),
    ] {
        assert!(answer.header("cache-control").is_some_and(|value| value.contains("no-store")), "{answer}");
        assert!(answer.header("vary").is_some_and(|value| value.contains("authorization")), "{answer}");
    }
}

/// A gateway with two workers and no queue over an upstream that answers so.
fn small_over(steps: impl IntoIterator<Item = Step>) -> (MockUpstream, Gateway) {
    let alpha = mock_that("alpha", steps);
    let gateway = Gateway::builder()
        .settings(json!({"server": {"workers": 2, "queue": 0}, "stream": {"holdMs": 50, "keepAliveMs": 100}}))
        .provider(provider(&alpha))
        .start();
    (alpha, gateway)
}

/// The owner's view of the cache.
fn cache_view(gateway: &Gateway) -> Value {
    gateway.get("/api/cache").ok().json()
}

fn members(gateway: &Gateway) -> u64 {
    cache_view(gateway)["flights"]["members"].as_u64().expect("a number")
}

/// An answer that is given when the test says so is not to be had; one that takes this long is.
const SLOW_MS: u64 = 700;

#[test]
fn identical_requests_at_once_make_one_call_and_hold_one_worker() {
    let (alpha, gateway) = small_over([Step::say("shared").delay_ms(SLOW_MS)]);
    let answers = at_once(50, |index| ask(&gateway, json!({"stream": index % 2 == 0})));
    assert!(answers.iter().all(|answer| answer.content() == "shared"));
    assert_eq!(chats(&alpha).len(), 1);
    let called: Vec<&Answer> =
        answers.iter().filter(|answer| answer.header("x-freeway-cache").is_none()).collect();
    assert_eq!(called.len(), 1, "one of them was served by the call");
    let others = answers.iter().filter(|answer| answer.header("x-freeway-cache").is_some());
    for answer in others {
        let answer = hit(answer.clone());
        // Headers that left with a keep-alive could not say who would serve.
        assert!(answer.is_stream() || answer.header("x-freeway-provider") == Some("alpha"), "{answer}");
    }
    let ids: std::collections::BTreeSet<String> = answers
        .iter()
        .map(|answer| {
            if answer.is_stream() {
                answer.chunks()[0]["id"].to_string()
            } else {
                answer.at("/id").to_string()
            }
        })
        .collect();
    assert_eq!(ids.len(), 50, "each has an id of its own");
    let view = cache_view(&gateway);
    let exact = &view["exact"];
    assert_eq!((&exact["misses"], &exact["stored"], &exact["entries"]), (&json!(1), &json!(1), &json!(1)));
    assert_eq!(
        exact["joined"].as_u64().zip(exact["hits"].as_u64()).map(|(joined, hits)| joined + hits),
        Some(49)
    );
    assert_eq!(view["flights"], json!({"open": 0, "members": 0}));
    assert_eq!(gateway.turns().iter().filter(|turn| turn["cache"] == "exact").count(), 49);
}

#[test]
fn an_answer_that_is_not_worth_keeping_is_shared_all_the_same() {
    let (alpha, gateway) = small_over([Step::json(200, &answer_with("half", "length")).delay_ms(SLOW_MS)]);
    let answers = at_once(8, |_| ask(&gateway, json!({})));
    assert!(answers.iter().all(|answer| answer.finish_reason().as_deref() == Some("length")));
    assert_eq!((chats(&alpha).len(), cache_view(&gateway)["exact"]["entries"].clone()), (1, json!(0)));
}

#[test]
fn a_call_that_fails_fails_for_all_at_once() {
    let busy = Step::error(429, "slow down").header("retry-after", 7).delay_ms(SLOW_MS);
    let (alpha, gateway) = small_over([busy]);
    let answers = at_once(50, |index| {
        gateway.post("/v1/chat/completions", &question(json!({"stream": index % 2 == 0})))
    });
    assert_eq!(chats(&alpha).len(), 1, "nobody tried again on their own");
    for answer in answers {
        if answer.is_stream() {
            // Its headers had left: the error is its last event.
            assert_eq!(
                answer.chunks().last().expect("an event")["error"]["code"],
                "all_attempts_failed",
                "{answer}"
            );
            assert!(!answer.text().contains("[DONE]"), "{answer}");
        } else {
            let answer = answer.error(429, "all_attempts_failed");
            assert!((1.0..=7.0).contains(&answer.number("retry-after")), "{answer}");
        }
    }
    assert_eq!(cache_view(&gateway)["exact"]["entries"], 0);
}

#[test]
fn members_that_leave_change_nothing_for_the_others() {
    let (alpha, gateway) = small_over([Step::say("still here").delay_ms(1_500)]);
    // The leader, a member that waits for a whole answer, and one that waits for a stream.
    let wires: Vec<Wire> = [false, false, true]
        .into_iter()
        .enumerate()
        .map(|(before, stream)| {
            let mut wire = gateway.wire();
            wire.send(Request::chat(&question(json!({"stream": stream}))).bytes());
            eventually("it is on board", || members(&gateway) == before as u64 + 1);
            wire
        })
        .collect();
    std::thread::scope(|scope| {
        let stays = scope.spawn(|| ask(&gateway, json!({})));
        eventually("one more is on board", || members(&gateway) == 4);
        drop(wires);
        eventually("the others have left", || members(&gateway) == 1);
        let answer = hit(stays.join().expect("it is answered"));
        assert_eq!(answer.content(), "still here");
    });
    assert_eq!((chats(&alpha).len(), chats(&alpha)[0].left_after), (1, None));
    eventually("all are in the log", || gateway.turns().len() == 4);
    let gone = gateway.turns().iter().filter(|turn| turn["status"] == 499).count();
    assert_eq!(gone, 3, "three left, the leader among them");
    hit(ask(&gateway, json!({})));
}

#[test]
fn the_call_ends_when_the_last_member_has_left() {
    let (alpha, gateway) = small_over([Step::hang()]);
    let mut wires: Vec<Wire> = (0..3)
        .map(|before| {
            let mut wire = gateway.wire();
            wire.send(Request::chat(&question(json!({}))).bytes());
            eventually("it is on board", || members(&gateway) == before + 1);
            wire
        })
        .collect();
    let last = wires.pop();
    drop(wires);
    eventually("two have left", || members(&gateway) == 1);
    assert_eq!(chats(&alpha)[0].left_after, None, "somebody still waits");
    let left_at = std::time::Instant::now();
    drop(last);
    expect_cut(&alpha, left_at);
    eventually("nobody is on board", || members(&gateway) == 0);
}

#[test]
fn a_stream_s_leader_that_leaves_in_its_midst_does_not_take_it_from_the_others() {
    let first = Act::write(event(&delta_event("begun ")));
    let rest = Act::write(event(&delta_event("and ended")) + &super_event("stop") + "data: [DONE]\n\n");
    let (alpha, gateway) = small_over([Step::writes([first, Act::Pause(1_200), rest])]);
    let mut leader = gateway.open(&Request::chat(&question(json!({"stream": true}))));
    assert_eq!(leader.first_text(), "begun ");
    std::thread::scope(|scope| {
        let member = scope.spawn(|| ask(&gateway, json!({"stream": true})));
        eventually("it is on board", || members(&gateway) == 2);
        leader.leave();
        eventually("the leader has left", || members(&gateway) == 1);
        let answer = hit(member.join().expect("it is answered")).well_formed_stream();
        assert_eq!(answer.content(), "begun and ended");
        assert!(answer.text().contains(": keep-alive"), "it heard of us meanwhile: {answer}");
    });
    assert_eq!((chats(&alpha).len(), chats(&alpha)[0].left_after), (1, None));
}

#[test]
fn a_leader_that_finds_no_worker_tells_the_others() {
    let (_alpha, gateway) = small_over([Step::hang()]);
    let busy: Vec<Wire> = (0..2)
        .map(|seed| {
            let mut wire = gateway.wire();
            wire.send(Request::chat(&question(json!({"seed": seed}))).bytes());
            wire
        })
        .collect();
    eventually("both workers are busy", || members(&gateway) == 2);
    for answer in at_once(6, |_| gateway.post("/v1/chat/completions", &question(json!({"seed": 9})))) {
        assert_eq!(answer.error(503, "overloaded").header("retry-after"), Some("1"));
    }
    drop(busy);
}

#[test]
fn a_leader_that_leaves_the_queue_does_not_jump_it_for_the_others() {
    let alpha = mock_that("alpha", [Step::hang(), Step::say("in its turn")]);
    let gateway = Gateway::builder()
        .settings(json!({"server": {"workers": 1, "queue": 4}}))
        .provider(provider(&alpha))
        .start();
    let mut busy = gateway.wire();
    busy.send(Request::chat(&question(json!({"seed": 1}))).bytes());
    eventually("the only worker is busy", || chats(&alpha).len() == 1);
    let mut leader = gateway.wire();
    leader.send(Request::chat(&question(json!({}))).bytes());
    eventually("it is queued", || members(&gateway) == 2);
    std::thread::scope(|scope| {
        let member = scope.spawn(|| ask(&gateway, json!({})));
        eventually("one more waits for the same", || members(&gateway) == 3);
        drop(leader);
        eventually("the leader has left", || members(&gateway) == 2);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(chats(&alpha).len(), 1, "there is one worker, and it is busy");
        drop(busy);
        assert_eq!(hit(member.join().expect("it is answered")).content(), "in its turn");
    });
    assert_eq!(chats(&alpha).len(), 2);
}

#[test]
fn a_fresh_answer_is_shared_and_kept_as_well() {
    let (alpha, gateway) = small_over([Step::say("old"), Step::say("new").delay_ms(SLOW_MS)]);
    ask(&gateway, json!({}));
    let answers = at_once(5, |_| ask_with(&gateway, json!({}), ("x-freeway-cache", "refresh")).ok());
    assert!(answers.iter().all(|answer| answer.content() == "new"));
    assert_eq!(hit(ask(&gateway, json!({}))).content(), "new");
    assert_eq!(chats(&alpha).len(), 2);
}

#[test]
fn the_owner_sees_what_is_kept_and_can_forget_it() {
    let (alpha, gateway) = gateway_over([Step::say("kept")]);
    ask(&gateway, json!({}));
    hit(ask(&gateway, json!({})));
    let view = cache_view(&gateway);
    assert_eq!(
        (&view["enabled"], &view["mode"], &view["scope"]),
        (&json!(true), &json!("safe"), &json!("shared"))
    );
    let exact = &view["exact"];
    assert_eq!(
        (&exact["entries"], &exact["hits"], &exact["misses"], &exact["hitRate"]),
        (&json!(1), &json!(1), &json!(1), &json!(0.5))
    );
    assert!(exact["bytes"].as_u64() > Some(50) && exact["tokensSaved"].as_u64() > Some(0), "{view}");
    let recent = &view["recent"][0];
    assert_eq!(
        (&recent["providerId"], &recent["modelId"], &recent["kind"], &recent["hits"]),
        (&json!("alpha"), &json!("m"), &json!("chat"), &json!(1))
    );
    assert_eq!(recent["key"].as_str().map(str::len), Some(12));
    assert_eq!(recent["expiresAt"].as_u64(), recent["createdAt"].as_u64().map(|at| at + 86_400_000));
    let forgotten = gateway.send(&Request::new("DELETE", "/api/cache")).ok();
    assert_eq!(forgotten.json(), json!({"ok": true, "removed": 1}));
    let view = cache_view(&gateway);
    assert_eq!(
        (&view["exact"]["entries"], &view["exact"]["hits"], &view["recent"]),
        (&json!(0), &json!(0), &json!([]))
    );
    miss(ask(&gateway, json!({})));
    assert_eq!(chats(&alpha).len(), 2);
    let off =
        Gateway::builder().settings(json!({"cache": {"mode": "off"}})).provider(provider(&alpha)).start();
    assert_eq!(cache_view(&off)["enabled"], false);
}

/// The file that answers lie in.
const FILE: &str = "data/answers.log";

#[test]
fn answers_outlive_a_restart_and_the_upstream() {
    let mut alpha = mock_that(
        "alpha",
        [Step::say("old"), Step::say("new"), Step::call_tool("weather", &json!({"city": "Köln"}))],
    );
    let mut gateway = Gateway::over([provider(&alpha)]);
    ask(&gateway, json!({}));
    ask_with(&gateway, json!({}), ("x-freeway-cache", "refresh")).ok();
    let call = ask(&gateway, json!({"tools": [weather_tool()], "stream": true}));
    assert_eq!(call.finish_reason().as_deref(), Some("tool_calls"));
    alpha.stop();
    gateway.restart();
    let view = cache_view(&gateway);
    assert_eq!((&view["exact"]["entries"], &view["exact"]["hits"]), (&json!(2), &json!(0)));
    let again = hit(ask(&gateway, json!({}))).served_by("alpha");
    assert_eq!(again.content(), "new", "the later one of two");
    assert!(again.usage().is_some());
    let again = hit(ask(&gateway, json!({"tools": [weather_tool()]})));
    assert_eq!(again.at("/choices/0/message/tool_calls/0/function/name"), "weather");
    gateway.restart();
    hit(ask(&gateway, json!({"stream": true})));
}

#[test]
fn what_was_forgotten_or_damaged_does_not_come_back() {
    let (alpha, mut gateway) = gateway_over([Step::ok()]);
    for seed in 0..3 {
        ask(&gateway, json!({"seed": seed}));
    }
    gateway.stop();
    let path = gateway.folder().join(FILE);
    let mut bytes = std::fs::read(&path).expect("the file is there");
    // The second answer's text, found by its length among three of the same shape.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    gateway.start_again();
    hit(ask(&gateway, json!({"seed": 0})));
    miss(ask(&gateway, json!({"seed": 1})));
    hit(ask(&gateway, json!({"seed": 2})));
    gateway.send(&Request::new("DELETE", "/api/cache")).ok();
    gateway.restart();
    assert_eq!(cache_view(&gateway)["exact"]["entries"], 0);
    miss(ask(&gateway, json!({"seed": 0})));
    assert_eq!(chats(&alpha).len(), 5);
    gateway.stop();
    std::fs::write(&path, "nonsense").expect("written");
    gateway.start_again();
    miss(ask(&gateway, json!({"seed": 0})));
    gateway.restart();
    hit(ask(&gateway, json!({"seed": 0})));
}

#[test]
fn bounds_hold_for_what_comes_back_as_well() {
    let (_alpha, mut gateway) = gateway_over([Step::ok()]);
    for seed in 0..10 {
        ask(&gateway, json!({"seed": seed}));
    }
    gateway.stop();
    gateway.write("freeway.config.json", json!({"cache": {"maxEntries": 3}}).to_string());
    gateway.start_again();
    assert_eq!(cache_view(&gateway)["exact"]["entries"], 3);
    hit(ask(&gateway, json!({"seed": 9})));
    miss(ask(&gateway, json!({"seed": 0})));
}

#[test]
fn a_data_folder_that_takes_nothing_costs_no_answer() {
    let (_alpha, gateway) = gateway_over([Step::say("x".repeat(600_000))]);
    // A folder in the file's place: nothing can be written there.
    std::fs::create_dir(gateway.folder().join(FILE)).expect("made");
    for seed in 0..4 {
        ask(&gateway, json!({"seed": seed}));
    }
    gateway.wait_for_log("answers.log: answers could not be written");
    for seed in 0..4 {
        hit(ask(&gateway, json!({"seed": seed})));
    }
}
