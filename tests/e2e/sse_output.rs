//! What counts as output of a stream, and what each of its chunks carries.
use std::time::Instant;

use crate::harness::*;

/// A chunk with this delta in choice 0.
fn chunk(delta: Value) -> String {
    json!({"choices": [{"index": 0, "delta": delta}]}).to_string()
}

/// Every value of a member of the deltas of choice 0.
fn deltas(answer: &Answer, member: &str) -> Vec<Value> {
    let pointer = format!("/choices/0/delta/{member}");
    answer.chunks().iter().filter_map(|chunk| chunk.pointer(&pointer).cloned()).collect()
}

#[test]
fn a_stream_says_who_gives_it_and_is_not_to_be_kept() {
    let (alpha, gateway) = gateway_over([Step::say("hello world")]);
    let answer = gateway.stream("auto").well_formed_stream().served_by("alpha").after_attempts(1);
    assert_eq!(answer.content(), "hello world");
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    assert!(answer.header("cache-control").is_some_and(|value| value.contains("no-")));
    assert_eq!(chats(&alpha)[0].json()["stream"], json!(true));
}

#[test]
fn a_client_that_leaves_between_two_events_takes_the_upstream_call_with_it() {
    let (alpha, gateway) = gateway_over([paused([t("a")], 0)]);
    let mut live = gateway.open_stream("m");
    assert_eq!(live.first_text(), "a");
    assert!(chats(&alpha)[0].answered_after.is_none(), "the upstream has not finished");
    live.leave();
    expect_cut(&alpha, Instant::now());
}

#[test]
fn sse_01_empty_choices_are_no_first_token() {
    for acts in [vec![Act::Reset], vec![Act::Close], vec![Act::write(DONE)]] {
        let empty = Act::write("data: {\"choices\":[]}\n\n");
        let (alpha, beta, gateway) =
            two_with_first([Step::writes([empty, Act::Pause(50)].into_iter().chain(acts))]);
        gateway.stream("m").well_formed_stream().served_by("beta").after_attempts(2);
        assert_eq!((chats(&alpha).len(), chats(&beta).len()), (1, 1));
    }
}

#[test]
fn sse_03_comments_stay_comments_and_commit_nothing() {
    let comments = ": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n";
    let answer = relayed([comments, &t("hi"), &fin(), DONE]);
    assert_eq!(answer.content(), "hi");
    let acts = [Act::write(comments), Act::Pause(50), Act::Reset];
    let (_alpha, _beta, gateway) = two_with_first([Step::writes(acts)]);
    gateway.stream("m").well_formed_stream().served_by("beta").after_attempts(2);
}

#[test]
fn a_role_alone_commits_nothing() {
    let acts = [Act::write(event(&chunk(json!({"role": "assistant", "content": ""})))), Act::Reset];
    let (_alpha, _beta, gateway) = two_with_first([Step::writes(acts)]);
    let answer = gateway.stream("m").well_formed_stream().served_by("beta");
    assert_eq!(deltas(&answer, "role").len(), 1, "the role of the first has not leaked: {answer}");
}

#[test]
fn sse_19_an_empty_finish_reason_is_none() {
    let text = r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":""}]}"#;
    let (_alpha, gateway) = gateway_over([Step::events([text, &finish("tool_calls")])]);
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!(answer.finish_reason().as_deref(), Some("tool_calls"));
    assert_eq!(answer.chunks()[0]["choices"][0]["finish_reason"], Value::Null, "{answer}");
    assert_eq!(answer.content(), "x");
}

#[test]
fn sse_20_every_chunk_is_whole() {
    let sparse = [
        r#"{"choices":[{"delta":{"content":"a"}}]}"#,
        r#"{"id":null,"object":"","created":null,"model":null,"choices":[{"index":0,"delta":{"content":"b"}}]}"#,
        r#"{"id":"c1","choices":[{"index":0,"delta":{"content":"c"},"logprobs":null}]}"#,
        r#"{"id":"c2","object":"chat.completion","created":1.5,"choices":[{"index":0,"finish_reason":"stop"}]}"#,
    ];
    let (_alpha, gateway) = gateway_over([Step::events(sparse)]);
    // What a chunk has to carry is checked for each.
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!((answer.content().as_str(), answer.chunks().len()), ("abc", 4));
}

#[test]
fn sse_20_an_upstream_that_changes_its_id_does_not_change_ours() {
    let named = |id: &str, text: &str| {
        json!({"id": id, "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]})
        .to_string()
    };
    let (_alpha, gateway) = gateway_over([Step::events([named("x", "a"), named("y", "b"), finish("stop")])]);
    assert_eq!(gateway.stream("m").well_formed_stream().content(), "ab");
}

#[test]
fn sse_32_reasoning_is_output() {
    let events = std::iter::repeat_with(|| chunk(json!({"reasoning_content": "hm"}))).take(40);
    let (alpha, gateway) =
        gateway_over([Step::events(events.chain([delta("42"), finish("stop")])), Step::ok()]);
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!((answer.content().as_str(), deltas(&answer, "reasoning_content").len()), ("42", 40));
    assert_eq!(chats(&alpha).len(), 1);
    gateway.chat("m").ok();
    assert_eq!(chats(&alpha).len(), 2, "nobody was benched");
}

#[test]
fn sse_32_fo_01_every_kind_of_output_is_a_first_token() {
    let call =
        json!([{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}]);
    for (member, value) in [
        ("content", json!("hm")),
        ("reasoning_content", json!("hm")),
        ("reasoning", json!("hm")),
        ("reasoning_details", json!([{"type": "reasoning.text", "text": "hm"}])),
        ("refusal", json!("no")),
        ("tool_calls", call),
    ] {
        let first = chunk(json!({member: value.clone()}));
        let acts = [Act::write(event(&first)), Act::Pause(50), Act::Reset];
        let (_alpha, beta, gateway) = two_with_first([Step::writes(acts)]);
        let answer = gateway.stream_with("m", json!({"tools": [weather_tool()]}));
        answer.broken_stream();
        assert_eq!(deltas(&answer, member).len(), 1, "{member} was not passed on: {answer}");
        assert!(beta.calls().is_empty(), "begun anew after {member}");
    }
}

#[test]
fn sse_32_reasoning_is_passed_on_as_it_comes() {
    let first = event(&chunk(json!({"reasoning": "hm"})));
    let (_alpha, gateway) = gateway_over([paused([first], 0)]);
    let mut live = gateway.open_stream("m");
    let chunk = live.event().expect("it has come");
    let thought = chunk.json().and_then(|json| json.pointer("/choices/0/delta/reasoning").cloned());
    assert_eq!(thought, Some(json!("hm")), "while the upstream says nothing more");
}

#[test]
fn sse_33_reasoning_keeps_its_name() {
    for name in ["reasoning", "reasoning_content"] {
        let step =
            Step { reasoning: Some("because".into()), reasoning_field: name.into(), ..Step::say("42") };
        let (_alpha, gateway) = gateway_over([step.clone(), step]);
        let answer = gateway.stream("m").well_formed_stream();
        let thought: String = deltas(&answer, name).iter().filter_map(Value::as_str).collect();
        assert_eq!((thought.as_str(), answer.content().as_str()), ("because", "42"), "{name}");
        let whole = gateway.chat("m").ok();
        assert_eq!(
            (whole.at(&format!("/choices/0/message/{name}")), whole.content()),
            (json!("because"), "42".into())
        );
    }
}

/// Gemini numbers all calls 0; a client would add their arguments up to one call.
#[test]
fn tool_01_calls_that_are_all_numbered_0_are_told_apart() {
    let call = |id: &str, arguments: &str| {
        let function = json!({"name": "weather", "arguments": arguments});
        let call = json!([{"index": 0, "id": id, "type": "function", "function": function}]);
        event(&chunk(json!({"tool_calls": call})))
    };
    let step = || {
        let calls = [call("a", "{\"n\":1}"), call("b", "{\"n\":2}")];
        Step::writes(calls.into_iter().chain([event(&finish("tool_calls")), DONE.into()]).map(Act::write))
    };
    let (_alpha, gateway) = gateway_over([step(), step()]);
    let streamed = gateway.stream_with("m", json!({"tools": [weather_tool()]})).well_formed_stream();
    let calls = deltas(&streamed, "tool_calls");
    let numbers: Vec<&Value> = calls.iter().map(|call| &call[0]["index"]).collect();
    assert_eq!(numbers, [&json!(0), &json!(1)], "{streamed}");
    let whole = gateway.chat_with("m", json!({"tools": [weather_tool()]})).ok();
    let arguments = |at: usize| whole.at(&format!("/choices/0/message/tool_calls/{at}/function/arguments"));
    assert_eq!((arguments(0), arguments(1)), (json!("{\"n\":1}"), json!("{\"n\":2}")), "{whole}");
}

#[test]
fn tool_calls_are_streamed_whole_or_in_parts() {
    for style in [ToolStyle::Whole, ToolStyle::Parts] {
        let step =
            Step { tool_style: style, ..Step::call_tool("weather", &json!({"city": "Oslo", "days": 3})) };
        let (_alpha, gateway) = gateway_over([step]);
        let answer = gateway.stream_with("m", json!({"tools": [weather_tool()]})).well_formed_stream();
        let calls = deltas(&answer, "tool_calls");
        let arguments: String =
            calls.iter().filter_map(|call| call[0]["function"]["arguments"].as_str()).collect();
        assert_eq!(arguments, r#"{"city":"Oslo","days":3}"#, "{style:?}");
        assert_eq!(answer.finish_reason().as_deref(), Some("tool_calls"));
    }
}
