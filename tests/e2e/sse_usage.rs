//! Token counts of streams: metered once, told once, and only to who asked.
use crate::harness::*;

/// A chunk with this usage and no choices.
fn counts(usage: Value) -> String {
    json!({"choices": [], "usage": usage}).to_string()
}

/// A chunk with this usage and some text.
fn text_with(text: &str, usage: Value) -> String {
    json!({"choices": [{"index": 0, "delta": {"content": text}}], "usage": usage}).to_string()
}

/// The usage of a stream that asked for it, from the one chunk that may carry it.
#[track_caller]
fn told(answer: &Answer) -> Value {
    let chunks = answer.chunks();
    let telling: Vec<&Value> = chunks.iter().filter(|chunk| chunk["usage"].is_object()).collect();
    assert_eq!(telling.len(), 1, "usage comes once: {answer}");
    assert_eq!(telling[0]["choices"], json!([]), "{answer}");
    assert_eq!(chunks.last(), Some(telling[0]), "usage comes last: {answer}");
    telling[0]["usage"].clone()
}

#[test]
fn sse_01_empty_choices_are_no_end() {
    let usage = counts(json!({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}));
    let (_alpha, gateway) = gateway_over([Step::events([
        r#"{"choices":[]}"#,
        &delta("ok"),
        r#"{"choices":[]}"#,
        &finish("stop"),
        &usage,
    ])]);
    let answer = with_usage(&gateway);
    assert_eq!((answer.content().as_str(), told(&answer)["prompt_tokens"].clone()), ("ok", json!(3)));
    gateway.metered(3, 1);
}

#[test]
fn sse_02_a_preview_of_usage_is_not_the_last_word() {
    let usage = |count: u32| counts(json!({"prompt_tokens": 8, "completion_tokens": count}));
    let events = [usage(7), delta("a"), delta("b"), finish("stop"), usage(311)];
    let (_alpha, gateway) = gateway_over([Step::events(events)]);
    let answer = with_usage(&gateway);
    assert_eq!((answer.content().as_str(), told(&answer)["completion_tokens"].clone()), ("ab", json!(311)));
    gateway.metered(8, 311);
    assert_eq!(gateway.turns().len(), 1, "recorded once");
}

#[test]
fn sse_22_usage_on_the_finish_chunk_is_found_and_put_where_it_belongs() {
    let usage = json!({"prompt_tokens": 40, "completion_tokens": 130, "total_tokens": 170,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 120}});
    let on_chunk = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage});
    let in_choice = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage}]});
    for last in [on_chunk, in_choice] {
        let (_alpha, gateway) = gateway_over([Step::events([delta("hi"), last.to_string()])]);
        let answer = with_usage(&gateway);
        assert_eq!(told(&answer), usage, "as the upstream told it, for {last}");
        gateway.metered(40, 130);
    }
}

#[test]
fn sse_23_running_totals_are_not_added_up() {
    let totals =
        |text: &str, count: u32| text_with(text, json!({"prompt_tokens": 20, "completion_tokens": count}));
    // Later ones that leave a number out do not make it zero.
    let last = counts(json!({"completion_tokens": 90}));
    let events = [totals("a", 12), totals("b", 40), totals("c", 90), finish("stop"), last];
    let (_alpha, gateway) = gateway_over([Step::events(events)]);
    let answer = with_usage(&gateway);
    let usage = told(&answer);
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(20), &json!(90)));
    assert_eq!(usage["total_tokens"], json!(110), "what is missing is added");
    gateway.metered(20, 90);
}

#[test]
fn sse_24_usage_that_the_client_did_not_ask_for_stays_here() {
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3});
    for form in [Usage::Last, Usage::Every, Usage::Finish, Usage::XGroq] {
        let step = Step { usage_values: Some(usage.clone()), ..Step::say("hi") };
        let (alpha, gateway) = gateway_over([step.clone().usage(form), step.usage(form)]);
        for options in [json!({}), json!({"stream_options": {"include_usage": false}})] {
            let answer = gateway.stream_with("m", options).well_formed_stream();
            assert!(answer.chunks().iter().all(|chunk| chunk.get("usage").is_none()), "{form:?}: {answer}");
            assert!(answer.chunks().iter().all(|chunk| chunk["choices"] != json!([])), "{form:?}: {answer}");
            gateway.metered(1, 2);
        }
        let asked = |call: &Call| call.json()["stream_options"]["include_usage"].clone();
        assert!(chats(&alpha).iter().all(|call| asked(call) == json!(true)), "b6: we ask for it ourselves");
    }
}

#[test]
fn sse_24_usage_that_the_client_asked_for_comes_once() {
    for form in [Usage::Last, Usage::Every, Usage::Finish, Usage::XGroq, Usage::Floats, Usage::None] {
        let (_alpha, gateway) = gateway_over([Step::say("hi").usage(form)]);
        let usage = told(&with_usage(&gateway));
        assert!(usage["completion_tokens"].as_u64() > Some(0), "{form:?}: {usage}");
    }
}

#[test]
fn sse_24_other_stream_options_of_the_client_pass_on() {
    let (alpha, gateway) = gateway_over([]);
    for options in
        [json!({"include_obfuscation": false}), json!({"include_obfuscation": false, "include_usage": true})]
    {
        gateway.stream_with("m", json!({"stream_options": options})).well_formed_stream();
    }
    for call in chats(&alpha) {
        assert_eq!(
            call.json()["stream_options"],
            json!({"include_obfuscation": false, "include_usage": true})
        );
    }
}

#[test]
fn sse_25_a_refused_stream_option_is_left_out_and_remembered() {
    let refusal = json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"],
        "msg": "Extra inputs are not permitted"}]});
    let (alpha, gateway) = gateway_over([Step::json(422, &refusal), Step::say("hi").usage(Usage::None)]);
    let usage = told(&with_usage(&gateway));
    assert!(
        usage["prompt_tokens"].as_u64() > Some(0) && usage["completion_tokens"].as_u64() > Some(0),
        "{usage}"
    );
    with_usage(&gateway);
    let options: Vec<bool> =
        chats(&alpha).iter().map(|call| call.json().get("stream_options").is_some()).collect();
    assert_eq!(options, [true, false, false]);
}

#[test]
fn sse_25_a_provider_that_is_known_to_refuse_it_is_not_asked() {
    let alpha = mock_that("alpha", [Step::say("hi").usage(Usage::None)]);
    let gateway = Gateway::over([provider(&alpha).set("streamUsage", json!(false))]);
    told(&with_usage(&gateway));
    assert_eq!(chats(&alpha)[0].json().get("stream_options"), None);
}
