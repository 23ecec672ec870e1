//! Token counts: asked for, found wherever they stand, checked, and estimated where they are missing.
use crate::harness::*;

/// A gateway over one provider with a token limit, so that what is counted can be read.
fn counting(step: Step) -> (MockUpstream, Gateway) {
    let alpha = mock_that("alpha", [step]);
    let gateway = Gateway::over([provider(&alpha).limits(json!({"tpm": 1_000_000}))]);
    (alpha, gateway)
}

/// What the owner sees of the only turn: prompt tokens, output tokens, whether they are estimates, and what the ledger
/// counted.
fn counted(gateway: &Gateway) -> (u64, u64, bool, f64) {
    let turn = gateway.last_turn(1);
    let number = |member: &str| turn[member].as_u64().unwrap_or_else(|| panic!("no {member} in {turn}"));
    let bar = gateway.provider_view("alpha")["bars"][0].clone();
    let used = bar["used"].as_f64().unwrap_or_else(|| panic!("no bar: {bar}"));
    (number("tokensIn"), number("tokensOut"), turn["estimated"] == true, used)
}

/// The same of one stream.
fn counted_of_stream(step: Step) -> (u64, u64, bool, f64) {
    let (_alpha, gateway) = counting(step);
    gateway.stream("m").well_formed_stream();
    counted(&gateway)
}

#[test]
fn b6_usage_is_asked_for_unless_the_provider_opts_out() {
    for (asks, file) in [(true, json!(true)), (false, json!(false))] {
        let alpha = mock_that("alpha", [Step::ok().usage(Usage::Asked)]);
        let gateway = Gateway::over([provider(&alpha).set("streamUsage", file)]);
        gateway.stream("m").well_formed_stream();
        let options = chats(&alpha)[0].json().get("stream_options").cloned();
        assert_eq!(options.is_some_and(|options| options["include_usage"] == true), asks);
        assert_eq!(gateway.last_turn(1)["estimated"], json!(!asks));
    }
}

#[test]
fn b6_guessed_usage_is_marked() {
    let (_alpha, gateway) =
        gateway_over([Step { usage: Usage::None, ..Step::say("four words of answer") }, Step::ok()]);
    let guessed = gateway.chat("m").ok();
    assert_eq!(guessed.header("x-freeway-usage"), Some("estimated"));
    let tokens = gateway.last_turn(1)["tokensOut"].as_u64();
    assert!(tokens.is_some_and(|tokens| (2..=10).contains(&tokens)), "{tokens:?}");
    assert_eq!(gateway.chat("m").ok().header("x-freeway-usage"), None, "the upstream said it");
}

#[test]
fn b17_usage_is_found_in_the_groq_form() {
    let values = json!({"prompt_tokens": 321, "completion_tokens": 45, "total_tokens": 366});
    let groq = Step { usage: Usage::XGroq, usage_values: Some(values), ..Step::ok() };
    assert_eq!(counted_of_stream(groq.clone()), (321, 45, false, 366.0));
    let (_alpha, gateway) = counting(groq);
    gateway.chat("m").ok();
    assert_eq!(counted(&gateway), (321, 45, false, 366.0));
}

#[test]
fn b17_thoughts_and_tool_arguments_are_output_when_it_is_guessed() {
    let words = "a long train of thought ".repeat(40);
    let thinking = Step { reasoning: Some(words.clone()), usage: Usage::None, ..Step::say("42") };
    let (_, output, estimated, _) = counted_of_stream(thinking);
    assert!(estimated && output > 100, "{output} tokens of thought");
    let calling = Step { usage: Usage::None, ..Step::call_tool("weather", &json!({"city": words})) };
    let (_alpha, gateway) = counting(calling);
    gateway.stream_with("m", json!({"tools": [weather_tool()]})).well_formed_stream();
    let (prompt, output, estimated, used) = counted(&gateway);
    assert!(estimated && output > 100, "{output} tokens of arguments");
    assert_eq!(used, (prompt + output) as f64);
}

#[test]
fn b17_half_a_usage_keeps_what_was_said_before() {
    let whole =
        json!({"choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": 9, "total_tokens": 79}});
    let half = json!({"choices": [], "usage": {"total_tokens": 80}});
    let step = Step::events([delta("a"), finish("stop"), whole.to_string(), half.to_string()]);
    let (prompt, output, _, _) = counted_of_stream(step);
    assert_eq!(prompt, 70);
    assert!((9..=10).contains(&output), "{output}");
}

#[test]
fn b17_numbers_that_cannot_be_counts_are_not_believed() {
    for odd in [
        json!({"prompt_tokens": -500, "completion_tokens": -5, "total_tokens": -505}),
        json!({"prompt_tokens": "many", "completion_tokens": [], "total_tokens": {}}),
        json!({"prompt_tokens": null, "completion_tokens": null}),
        json!({}),
        json!(-7),
    ] {
        let (_alpha, gateway) = counting(Step { usage_values: Some(odd.clone()), ..Step::say("some words") });
        gateway.chat("m").ok();
        let (prompt, output, estimated, used) = counted(&gateway);
        assert!(
            prompt > 0 && output > 0 && estimated && used >= 2.0,
            "{odd}: {prompt} {output} {estimated} {used}"
        );
    }
}

#[test]
fn b13_numbers_of_a_stream_reach_the_client_digit_by_digit() {
    let chunk = r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","seed":9007199254740993,"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}"#;
    let (_alpha, gateway) = gateway_over([Step::events([chunk, &finish("stop")])]);
    assert!(gateway.stream("m").well_formed_stream().text().contains("9007199254740993"));
}
