//! Conversations that are made to fit: rung by rung as the upstream sees it, and who is asked to write the notes.
use crate::harness::*;

/// What the model that writes notes says.
const NOTES: &str = "They agreed on the blue one, order 4711.";
/// How summaries begin in a system message.
const HEADING: &str = "Notes on the earlier part of this conversation";

/// A text of about so many tokens.
fn words(tokens: usize, word: &str) -> String {
    word.repeat(tokens * 4 / word.len())
}

fn says(role: &str, tokens: usize, word: &str) -> Value {
    json!({"role": role, "content": words(tokens, word)})
}

fn call(id: &str) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}]})
}

fn result(id: &str, content: impl Into<Value>) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": content.into()})
}

/// A system message, so many turns, and a question.
fn talk(turns: usize, tokens: usize) -> Vec<Value> {
    let mut talk = vec![json!({"role": "system", "content": "Be kind."})];
    for turn in 0..turns {
        talk.push(says("user", tokens, &format!("question {turn} ")));
        talk.push(says("assistant", tokens, &format!("answer {turn} ")));
    }
    talk.push(json!({"role": "user", "content": "and now?"}));
    talk
}

fn ask(gateway: &Gateway, model: &str, messages: &[Value]) -> Answer {
    gateway.chat_with(model, json!({"messages": messages}))
}

/// A provider whose model `m` has a window of so many tokens.
fn with_window(mock: &MockUpstream, tokens: u64) -> Provider {
    provider(mock).model_with("m", json!({"context": tokens}))
}

/// A small model `alpha/m` of 8,192 tokens that answers so, and `notes/n`, which writes summaries.
fn small_and_notes(steps: impl IntoIterator<Item = Step>) -> (MockUpstream, MockUpstream, Gateway) {
    let (alpha, notes) = (mock_that("alpha", steps), mock_that("notes", [Step::say(NOTES).times(1_000)]));
    let gateway = Gateway::builder()
        .provider(with_window(&alpha, 8_192))
        .provider(provider(&notes).model("n"))
        .settings(json!({"context": {"compactModel": "notes/n", "autoCompactAt": 1.0}}))
        .start();
    (alpha, notes, gateway)
}

/// The messages of the latest chat that an upstream got.
fn got(mock: &MockUpstream) -> Vec<Value> {
    let call = chats(mock).pop().expect("it was called");
    call.json()["messages"].as_array().expect("a list").clone()
}

/// `x-freeway-context`, taken apart.
#[track_caller]
fn context(answer: &Answer) -> Vec<(String, String)> {
    let header = answer.header("x-freeway-context").unwrap_or_else(|| panic!("no context in {answer}"));
    let pair = |word: &str| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    header.split(' ').map(|word| pair(word).unwrap_or_else(|| panic!("{header}"))).collect()
}

#[track_caller]
fn said(answer: &Answer, name: &str) -> String {
    context(answer).into_iter().find(|(known, _)| known == name).map(|(_, value)| value).unwrap_or_default()
}

/// Tokens before and after.
#[track_caller]
fn tokens(answer: &Answer) -> (u64, u64) {
    let tokens = said(answer, "tokens");
    let (before, after) = tokens.split_once("->").expect("two numbers");
    (before.parse().expect("a number"), after.parse().expect("a number"))
}

#[test]
fn what_fits_passes_byte_for_byte_and_says_so() {
    let (alpha, gateway) = gateway_over([]);
    let messages =
        r#"[ {"role":"system" , "content":"caf\u00e9"},{"role":"user","content":"hi","x":1.0e2} ]"#;
    let request = Request::post("/v1/chat/completions", &json!({}))
        .body(format!(r#"{{"model":"m","messages":{messages}}}"#));
    let answer = gateway.send(&request).ok();
    assert_eq!(answer.header("x-freeway-context"), Some("refit=passthrough tokens=10->10 kept=2"));
    assert!(
        chats(&alpha)[0].request.body.windows(messages.len()).any(|window| window == messages.as_bytes())
    );
    let streamed = gateway.stream("m").well_formed_stream();
    assert_eq!(said(&streamed, "refit"), "passthrough");
    assert_eq!(gateway.last_turn(2)["refit"], Value::Null);
    assert_eq!(
        ask(&gateway, "m", &talk(2, 10)).ok().header("x-freeway-context").map(|h| h.contains("kept=6")),
        Some(true)
    );
    let refused = gateway.chat("nobody/knows");
    assert_eq!(refused.header("x-freeway-context"), None);
}

#[test]
fn a_gateway_that_does_not_refit_says_nothing_of_it() {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .provider(with_window(&alpha, 8_192))
        .settings(json!({"context": {"enabled": false}}))
        .start();
    assert_eq!(gateway.chat("m").ok().header("x-freeway-context"), None);
    ask(&gateway, "m", &talk(20, 300)).error(413, "context_length_exceeded");
    assert_eq!(chats(&alpha).len(), 1);
}

#[test]
fn stale_tool_results_are_cleared_first() {
    let (alpha, notes, gateway) = small_and_notes([]);
    let talk = [
        json!({"role": "user", "content": "look around"}),
        call("a"),
        result("a", words(4_000, "old ")),
        call("b"),
        result("b", words(4_000, "newer ")),
        json!({"role": "assistant", "content": "done"}),
        json!({"role": "user", "content": "and now?"}),
    ];
    let answer = ask(&gateway, "m", &talk).ok();
    assert_eq!(
        (said(&answer, "refit"), said(&answer, "kept"), said(&answer, "dropped")),
        ("drop-tool-noise".into(), "7".into(), String::new())
    );
    let got = got(&alpha);
    assert_eq!(got[2], result("a", "[tool result cleared to save room]"));
    assert_eq!((&got[..2], &got[3..]), (&talk[..2], &talk[3..]));
    assert!(chats(&notes).is_empty());
    assert_eq!(gateway.last_turn(1)["refit"], "drop-tool-noise");
}

#[test]
fn w15_turns_go_whole_when_nobody_can_write_notes() {
    let alpha = mock("alpha");
    // `fast`, which writes summaries unless told otherwise, is nobody here.
    let gateway = Gateway::over([with_window(&alpha, 8_192)]);
    let talk = talk(20, 400);
    let answer = ask(&gateway, "m", &talk).ok();
    assert_eq!((said(&answer, "refit"), said(&answer, "summaries")), ("window".into(), String::new()));
    let got = got(&alpha);
    assert_eq!(said(&answer, "kept"), got.len().to_string());
    assert_eq!(said(&answer, "dropped"), (talk.len() - got.len()).to_string());
    assert_eq!(got[..2], talk[..2], "the system message and the first turn stay");
    assert_eq!(got[2..], talk[talk.len() + 2 - got.len()..], "then the last ones, none of them changed");
    assert!(tokens(&answer).1 <= 7_168);
    assert_eq!((chats(&alpha).len(), gateway.turns().len()), (1, 1), "nothing else was tried");
}

#[test]
fn w14_the_newest_message_survives_a_huge_first_one() {
    let alpha = mock("alpha");
    let gateway = Gateway::over([with_window(&alpha, 8_192)]);
    let talk =
        [says("user", 5_000, "first "), says("assistant", 100, "yes "), says("user", 4_000, "newest ")];
    let answer = ask(&gateway, "m", &talk).ok();
    assert_eq!(
        (said(&answer, "refit"), said(&answer, "kept"), said(&answer, "dropped")),
        ("window".into(), "1".into(), "2".into())
    );
    assert_eq!(got(&alpha), talk[2..]);
}

#[test]
fn ctx_06_running_results_are_cut_between_characters_and_marked() {
    let (alpha, notes, gateway) = small_and_notes([]);
    let long = "a".repeat(2_047) + &"\u{1f600}e\u{301}\r\n".repeat(8_000);
    let talk = [json!({"role": "user", "content": "look"}), call("a"), result("a", long)];
    let answer = ask(&gateway, "m", &talk).ok();
    assert_eq!((said(&answer, "refit"), said(&answer, "kept")), ("hard-truncate".into(), "3".into()));
    let got = got(&alpha);
    assert_eq!(got[..2], talk[..2]);
    let cut = got[2]["content"].as_str().expect("a text");
    assert!(cut.ends_with("[the rest was cut off to save room]") && !cut.contains('\u{fffd}'));
    let (_, after) = tokens(&answer);
    assert!((6_900..=7_168).contains(&after), "{after}");
    assert!(chats(&notes).is_empty());
}

#[test]
fn a_long_conversation_goes_on_at_a_small_model_with_one_summary() {
    let (big, small, notes) = (mock("big"), mock("small"), mock_that("notes", [Step::say(NOTES).times(100)]));
    let gateway = Gateway::builder()
        .provider(provider(&big).model_with("large", json!({"context": 128_000})))
        .provider(provider(&small).model_with("m", json!({"context": 8_192})))
        .provider(provider(&notes).model_with("n", json!({"alias": ["fast"]})))
        .start();
    // 60 messages, 41,200 tokens.
    let mut talk = talk(29, 698);
    talk.extend([says("assistant", 537, "sure "), json!({"role": "user", "content": "and now?"})]);
    let first = ask(&gateway, "big/large", &talk[..59]).ok();
    assert_eq!(said(&first, "refit"), "passthrough");
    let second = ask(&gateway, "small/m", &talk).ok().served_by("small");
    let (before, after) = tokens(&second);
    assert!((41_150..41_300).contains(&before) && (3_000..=7_168).contains(&after), "{before}->{after}");
    assert_eq!((said(&second, "refit"), said(&second, "summaries")), ("compact".into(), "1".into()));
    let got_once = got(&small);
    assert_eq!(got_once[0]["role"], "system");
    let system = got_once[0]["content"].as_str().expect("a text");
    assert!(
        system.starts_with("Be kind.\n\n") && system.contains(HEADING) && system.ends_with(NOTES),
        "{system}"
    );
    assert_eq!(
        (&got_once[1], got_once.last()),
        (&talk[1], talk.last()),
        "the first turn and the newest stay"
    );
    assert!(got_once[1..].iter().all(|message| message["role"] != "system"), "ctx_03");
    assert_eq!((gateway.last_turn(3)["refit"].clone(), chats(&notes).len()), (json!("compact"), 1));
    // The notes were asked for like this.
    let request = chats(&notes)[0].json().clone();
    assert_eq!(
        (&request["temperature"], &request["stream"], &request["model"]),
        (&json!(0), &json!(false), &json!("n"))
    );
    assert!(request["max_tokens"].as_u64().is_some_and(|most| (128..=1_024).contains(&most)));
    let transcript = request["messages"][1]["content"].as_str().expect("a text");
    assert!(transcript.contains("question 0") && transcript.contains("assistant: answer 20"));
    assert!(transcript.len() < 24_000, "{} characters", transcript.len());
    // Asked again, nothing is paid again; and the turn after it has use for the same notes.
    let again = ask(&gateway, "small/m", &talk).ok();
    assert_eq!((got(&small), chats(&notes).len()), (got_once, 1));
    assert_eq!(said(&again, "summaries"), "1");
    talk.extend([says("assistant", 50, "well "), json!({"role": "user", "content": "and then?"})]);
    let next = ask(&gateway, "small/m", &talk).ok();
    assert_eq!((said(&next, "refit"), chats(&notes).len()), ("compact".into(), 1));
    assert_eq!(got(&small).last(), talk.last());
}

#[test]
fn summaries_outlive_a_restart() {
    let (alpha, notes, mut gateway) = small_and_notes([]);
    let talk = talk(20, 400);
    assert_eq!(said(&ask(&gateway, "m", &talk).ok(), "refit"), "compact");
    gateway.restart();
    assert_eq!(said(&ask(&gateway, "m", &talk).ok(), "refit"), "compact");
    assert_eq!((chats(&alpha).len(), chats(&notes).len()), (2, 1));
}

#[test]
fn a_useless_summary_is_thrown_away_and_not_asked_for_again() {
    for useless in [String::new(), words(30_000, "and so on ")] {
        let (alpha, notes) = (mock("alpha"), mock_that("notes", [Step::say(useless).times(10)]));
        let gateway = Gateway::builder()
            .provider(with_window(&alpha, 8_192))
            .provider(provider(&notes).model("n"))
            .settings(json!({"context": {"compactModel": "notes/n"}}))
            .start();
        let answer = ask(&gateway, "m", &talk(20, 400)).ok();
        assert_eq!((said(&answer, "refit"), said(&answer, "summaries")), ("window".into(), String::new()));
        assert_eq!(got(&alpha)[0]["content"], "Be kind.");
    }
}

/// Small local models have nobody with a wide window who could write for them.
#[test]
fn a_summary_is_asked_for_in_what_its_writer_can_read() {
    let alpha = mock("alpha");
    alpha.script([Step::say(NOTES), Step::ok()]);
    let gateway = Gateway::builder()
        .provider(with_window(&alpha, 2_000))
        .settings(json!({"context": {"compactModel": "alpha/m", "reserveOutputTokens": 200}}))
        .start();
    let answer = ask(&gateway, "m", &talk(30, 120)).ok();
    assert_eq!(said(&answer, "refit"), "compact", "{answer}");
    assert!(got(&alpha)[0]["content"].as_str().is_some_and(|system| system.ends_with(NOTES)));
    let asked = chats(&alpha)[0].json().clone();
    let transcript = asked["messages"][1]["content"].as_str().expect("a text").len();
    let answer = asked["max_tokens"].as_u64().expect("a limit") as usize;
    assert!((3_000..4 * (2_000 - answer)).contains(&transcript), "{transcript} beside {answer} tokens");
}

#[test]
fn w16_a_summary_is_made_with_failover_and_metered_and_its_failure_fails_nobody() {
    let (alpha, broken, notes) = (
        mock("alpha"),
        mock_that("broken", [Step::status(500).times(100)]),
        mock_that("notes", [Step::say(NOTES)]),
    );
    let limits = json!({"rpm": 100, "tpm": 1_000_000});
    let gateway = Gateway::builder()
        .provider(with_window(&alpha, 8_192))
        .provider(provider(&broken).priority(1).model_with("n", json!({"alias": ["fast"]})))
        .provider(provider(&notes).priority(2).limits(limits).model_with("n", json!({"alias": ["fast"]})))
        .start();
    let answer = ask(&gateway, "alpha/m", &talk(20, 400)).ok();
    assert_eq!((said(&answer, "refit"), chats(&broken).len(), chats(&notes).len()), ("compact".into(), 1, 1));
    let bars = gateway.provider_view("notes")["bars"].clone();
    assert!(
        bars.as_array().is_some_and(|bars| bars.iter().all(|bar| bar["used"].as_f64() > Some(0.0))),
        "{bars}"
    );
    let turn =
        gateway.turns().into_iter().find(|turn| turn["requestedModel"] == "fast").expect("it is in the log");
    assert_eq!((&turn["providerId"], &turn["status"]), (&json!("notes"), &json!(200)));
    // Nobody is left who could write notes.
    notes.script([Step::status(500).times(100)]);
    let other = ask(&gateway, "alpha/m", &talk(21, 401)).ok();
    assert_eq!(said(&other, "refit"), "window");
}

#[test]
fn two_that_need_the_same_summary_at_once_share_one() {
    let (alpha, notes) = (mock("alpha"), mock_that("notes", [Step::say(NOTES).delay_ms(500).times(10)]));
    let gateway = Gateway::builder()
        .provider(with_window(&alpha, 8_192))
        .provider(provider(&notes).model("n"))
        .settings(json!({"context": {"compactModel": "notes/n"}, "cache": {"mode": "off"}}))
        .start();
    let talk = talk(20, 400);
    let rungs = at_once(6, |_| said(&ask(&gateway, "m", &talk).ok(), "refit"));
    assert_eq!((rungs, chats(&notes).len()), (vec!["compact".to_owned(); 6], 1));
}

#[test]
fn a_summary_is_made_ahead_of_need() {
    let (alpha, notes) = (mock("alpha"), mock_that("notes", [Step::say(NOTES).times(10)]));
    let gateway = Gateway::builder()
        .provider(with_window(&alpha, 8_192))
        .provider(provider(&notes).model("n"))
        .settings(json!({"context": {"compactModel": "notes/n", "autoCompactAt": 0.8}}))
        .start();
    let mut talk = talk(8, 400);
    assert_eq!(said(&ask(&gateway, "m", &talk).ok(), "refit"), "passthrough");
    eventually("the notes are written", || gateway.turns().len() == 2);
    assert_eq!(chats(&notes).len(), 1);
    talk.extend([says("assistant", 500, "well "), says("user", 300, "and then? ")]);
    let next = ask(&gateway, "m", &talk).ok();
    assert_eq!((said(&next, "refit"), chats(&notes).len()), ("compact".into(), 1));
    assert!(got(&alpha)[0]["content"].as_str().is_some_and(|text| text.ends_with(NOTES)));
}

#[test]
fn a_session_shows_what_its_summaries_stand_for() {
    let (_alpha, notes, mut gateway) = small_and_notes([]);
    let asked = gateway.chat_with("m", json!({"session": "s", "messages": talk(20, 400)})).ok();
    assert_eq!((said(&asked, "refit"), chats(&notes).len()), ("compact".into(), 1));
    let shown = |gateway: &Gateway| gateway.get("/api/sessions/s").ok().at("/summaries");
    let summaries = shown(&gateway);
    let one = summaries.as_array().and_then(|all| all.first()).expect("a summary");
    assert_eq!(
        (&one["content"], &one["model"], &one["fromSeq"]),
        (&json!(NOTES), &json!("notes/n"), &json!(1))
    );
    assert!(one["toSeq"].as_u64().is_some_and(|to| (10..40).contains(&to) && to % 2 == 0), "{one}");
    assert!(one["createdAt"].as_u64().is_some_and(|ms| ms > 1_600_000_000_000) && one["id"].is_string());
    gateway.stop();
    gateway.start_again();
    assert_eq!(shown(&gateway), summaries);
}

#[test]
fn w17_a_wider_model_is_asked_before_anybody_is_refused() {
    let (alpha, beta) = (mock("alpha"), mock("beta"));
    let gateway =
        Gateway::over([with_window(&alpha, 8_192).priority(1), with_window(&beta, 200_000).priority(2)]);
    let huge = [json!({"role": "system", "content": "Be kind."}), says("user", 20_000, "huge ")];
    ask(&gateway, "m", &huge).ok().served_by("beta").after_attempts(1);
    let beyond = [says("user", 250_000, "huge ")];
    let refused = ask(&gateway, "m", &beyond).error(413, "context_length_exceeded").about("messages");
    let needed = refused.at("/freeway/required").as_u64().expect("a number");
    let available = refused.at("/freeway/available").as_u64().expect("a number");
    assert!((250_000..250_100).contains(&needed) && (198_900..199_100).contains(&available), "{refused}");
    assert_eq!((chats(&alpha).len(), chats(&beta).len()), (0, 1));
    // A model whose window nobody knows is no small one.
    let gamma = mock("gamma");
    let gateway = Gateway::over([provider(&gamma).model_with("m", json!({"context": null}))]);
    let answer = ask(&gateway, "m", &talk(40, 1_000)).ok();
    assert_eq!(said(&answer, "refit"), "passthrough");
}

#[test]
fn prefer_fit_asks_first_who_loses_nothing() {
    for (prefer, first, rung) in [(true, "beta", "passthrough"), (false, "alpha", "window")] {
        let (alpha, beta) = (mock("alpha"), mock("beta"));
        let gateway = Gateway::builder()
            .provider(with_window(&alpha, 8_192).priority(1))
            .provider(with_window(&beta, 64_000).priority(2))
            .settings(json!({"context": {"preferFit": prefer}}))
            .start();
        let answer = ask(&gateway, "auto", &talk(20, 400)).ok().served_by(first);
        assert_eq!(said(&answer, "refit"), rung);
        ask(&gateway, "auto", &talk(2, 400)).ok().served_by("alpha");
        // Whoever only has to clear noise loses nothing.
        let noisy = [
            json!({"role": "user", "content": "look"}),
            call("a"),
            result("a", words(9_000, "old ")),
            json!({"role": "user", "content": "and now?"}),
        ];
        let answer = ask(&gateway, "auto", &noisy).ok().served_by("alpha");
        assert_eq!(said(&answer, "refit"), "drop-tool-noise");
    }
    // When the wide one is gone, the small one serves.
    let (alpha, beta) = (mock("alpha"), mock_that("beta", [Step::status(503).times(10)]));
    let gateway =
        Gateway::over([with_window(&alpha, 8_192).priority(1), with_window(&beta, 64_000).priority(2)]);
    let answer = ask(&gateway, "m", &talk(20, 400)).ok().served_by("alpha").after_attempts(2);
    assert_eq!(said(&answer, "refit"), "window");
}

#[test]
fn ctx_02_a_call_without_a_result_is_mended_before_it_is_sent() {
    let (alpha, gateway) = gateway_over([]);
    let talk = [
        json!({"role": "user", "content": "look"}),
        call("a"),
        json!({"role": "user", "content": "continue"}),
    ];
    ask(&gateway, "m", &talk).ok();
    let got = got(&alpha);
    assert_eq!((&got[..2], &got[3]), (&talk[..2], &talk[2]));
    assert_eq!(got[2], result("a", "[no result: this call was not finished]"));
    gateway.wait_for_log("mended");
}

#[test]
fn ctx_04_too_long_says_an_upstream_and_gets_less_or_a_larger_model_does() {
    let bodies = [
        (400, json!({"error": {"message": "Prompt exceeds max length", "code": "1261"}})),
        (
            400,
            json!({"error": {"message": "This model's maximum context length is 4096 tokens. However, you requested 8000 tokens.", "type": "invalid_request_error"}}),
        ),
        (
            400,
            json!({"error": {"message": "Please reduce the length of the messages or completion.", "code": "context_length_exceeded"}}),
        ),
        (
            413,
            json!({"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}),
        ),
        (400, json!({"error": {"message": "prompt is too long: 9000 tokens > 8000 maximum"}})),
        (
            400,
            json!({"error": {"message": "the request exceeds the available context size", "type": "exceed_context_size_error", "n_ctx": 4096}}),
        ),
    ];
    for (status, body) in &bodies {
        // Alone, it is asked again for less.
        let (alpha, gateway) = gateway_over([Step::json(*status, body), Step::ok()]);
        let talk = talk(20, 200);
        let answer = ask(&gateway, "m", &talk).ok().after_attempts(2);
        assert_eq!(said(&answer, "refit"), "window", "{body}");
        let sizes: Vec<usize> = chats(&alpha).iter().map(|call| call.request.body.len()).collect();
        assert!(sizes[1] * 10 < sizes[0] * 8, "{sizes:?}");
        assert_eq!(got(&alpha).last(), talk.last());
        ask(&gateway, "m", &[says("user", 10, "short ")]).ok().after_attempts(1);
        // With a larger one beside it, that is asked, whole.
        let (alpha, beta) = (mock_that("alpha", [Step::json(*status, body)]), mock("beta"));
        let gateway =
            Gateway::over([with_window(&alpha, 32_000).priority(1), with_window(&beta, 64_000).priority(2)]);
        let answer = ask(&gateway, "m", &talk).ok().served_by("beta").after_attempts(2);
        assert_eq!((said(&answer, "refit"), chats(&alpha).len()), ("passthrough".into(), 1));
    }
    // However often it says so, it is not asked for ever.
    let (alpha, gateway) = gateway_over([Step::json(bodies[0].0, &bodies[0].1).times(100)]);
    ask(&gateway, "m", &talk(20, 200)).error(413, "context_length_exceeded");
    assert!(chats(&alpha).len() <= 3, "{} calls", chats(&alpha).len());
}

#[test]
fn ctx_05_old_images_make_way_when_a_body_is_too_large() {
    let nginx = Step { status: 413, ..Step::html(413) };
    let (alpha, gateway) = gateway_over([nginx, Step::ok()]);
    let image = |bytes: usize| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}", "A".repeat(bytes))}});
    let mut talk = vec![
        json!({"role": "user", "content": [{"type": "text", "text": "what is this?"}, image(2_000_000)]}),
        json!({"role": "assistant", "content": "a cat"}),
    ];
    for turn in 0..3 {
        talk.extend([says("user", 20, &format!("turn {turn} ")), says("assistant", 20, "so so ")]);
    }
    talk.push(json!({"role": "user", "content": [{"type": "text", "text": "and this?"}, image(400)]}));
    let answer = ask(&gateway, "m", &talk).ok().after_attempts(2);
    assert!(tokens(&answer).0 < 3_000, "base64 is no text: {}", context(&answer)[1].1);
    assert_eq!(said(&answer, "refit"), "drop-tool-noise");
    let got = got(&alpha);
    assert_eq!(got[0]["content"][1], json!({"type": "text", "text": "[image left out to save room]"}));
    assert_eq!(got[1..], talk[1..]);
}

#[test]
fn c12_what_a_model_counts_is_learned_and_kept() {
    let usage = json!({"prompt_tokens": 9_000, "completion_tokens": 5, "total_tokens": 9_005});
    let (alpha, _notes, mut gateway) =
        small_and_notes([Step { usage_values: Some(usage), ..Step::ok() }, Step::ok().times(10)]);
    // About 4,600 tokens by our count, which fit; the model counts twice as many.
    let talk = talk(11, 205);
    let first = ask(&gateway, "m", &talk).ok();
    assert_eq!(said(&first, "refit"), "passthrough");
    let (before, after) = tokens(&ask(&gateway, "m", &talk).ok());
    assert!(before > 4_500 && after <= 3_700, "{before}->{after}");
    gateway.restart();
    let (_, after) = tokens(&ask(&gateway, "m", &talk).ok());
    assert!(after <= 5_200, "it is remembered: {after}");
    assert_eq!(chats(&alpha).len(), 3);
}

#[test]
fn a_large_max_tokens_refuses_nobody() {
    let (alpha, _notes, gateway) = small_and_notes([]);
    let cap = |max_tokens: u64, tokens: usize| {
        let fields = json!({"max_tokens": max_tokens, "messages": [says("user", tokens, "word ")]});
        let answer = gateway.chat_with("m", fields).ok();
        assert_eq!(said(&answer, "refit"), "passthrough");
        chats(&alpha).pop().expect("it was called").json()["max_tokens"].as_u64().expect("a number")
    };
    assert_eq!(cap(500, 100), 500);
    let room = cap(100_000, 6_000);
    assert!((2_100..2_192).contains(&room), "what the window leaves: {room}");
}

#[test]
fn b12_tools_take_their_part_of_the_window() {
    let (alpha, _notes, gateway) = small_and_notes([]);
    let mut tool = weather_tool();
    tool["function"]["description"] = words(4_000, "a long story ").into();
    let talk = talk(10, 200);
    let fields = json!({"messages": talk, "tools": [tool]});
    let answer = gateway.chat_with("m", fields).ok();
    let (before, after) = tokens(&answer);
    assert!(before > 7_900 && after <= 7_168, "{before}->{after}");
    assert_eq!(said(&answer, "refit"), "compact");
    assert!(got(&alpha).len() < talk.len());
}
