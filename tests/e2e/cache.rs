//! Answers from memory: which requests get one, what it looks like, and what a client can ask of it.
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
    assert!(
        answer.number("x-freeway-ms") < 1_000.0 && answer.header("x-freeway-route").is_some(),
        "{answer}"
    );
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
