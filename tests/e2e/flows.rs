//! Streams in the midst of their answers, which one thread carries for all: none gets another's words, none holds up
//! another, and each is looked after in time.
use std::time::Duration;

use crate::harness::*;

const DONE: &str = "data: [DONE]\n\n";

fn text(words: &str) -> String {
    event(&delta(words))
}

fn end() -> Act {
    Act::write(event(&finish("stop")) + DONE)
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_it_and_holds_up_nobody() {
    // Large chunks of few words, so that the turn is not needed for the counting.
    let (padding, times) = ("x".repeat(8_000), 1_500);
    let chunk = delta("word ").replacen('{', &format!(r#"{{"padding":"{padding}","#), 1);
    let flood = Act::Repeat { bytes: event(&chunk).into(), times, pause_ms: 0 };
    let (alpha, beta) = (mock_that("alpha", [Step::writes([flood, end()])]), mock("beta"));
    // More than the answer's own copy for the cache would be worth.
    let settings = json!({"cache": {"mode": "off"}});
    let gateway =
        Gateway::builder().settings(settings).provider(provider(&alpha)).provider(provider(&beta)).start();
    let mut slow = gateway.open_stream("alpha/m");
    assert_eq!(slow.first_text(), "word ");
    // Long enough for all room on the way to fill.
    std::thread::sleep(Duration::from_millis(700));
    for _ in 0..5 {
        gateway.stream("beta/m").well_formed_stream();
    }
    assert!(chats(&alpha)[0].left_after.is_none(), "it is still being served");
    let answer = slow.finish().well_formed_stream();
    assert_eq!(answer.content(), "word ".repeat(times as usize));
    assert_eq!(answer.text().matches(&padding).count(), times as usize);
}

#[test]
fn streams_side_by_side_stay_apart() {
    let story = |number: usize| format!("story {number}: {}", format!("{number} ").repeat(60));
    let framings = [Framing::Chunked, Framing::Length, Framing::Close];
    let alpha = mock("alpha");
    let models: Vec<String> = (0..24).map(|number| format!("m{number}")).collect();
    alpha.set_models(models.clone());
    alpha.set_by_model(models.iter().enumerate().map(|(number, model)| {
        let step = Step { piece_chars: 1 + number % 5, ..Step::say(story(number)) };
        (model.clone(), vec![step.drip_ms(1 + number as u64 % 3).framing(framings[number % 3]).times(9)])
    }));
    let upstream = models.iter().fold(provider(&alpha), |upstream, model| upstream.model(model));
    let gateway = Gateway::over([upstream]);
    for _ in 0..2 {
        let answers = at_once(models.len(), |number| {
            gateway.stream_with(&models[number], json!({"temperature": 1.5})).well_formed_stream()
        });
        for (number, answer) in answers.iter().enumerate() {
            assert_eq!(answer.content(), story(number));
        }
    }
    assert_eq!(chats(&alpha).len(), 2 * models.len());
}

#[test]
fn a_silence_in_the_midst_of_an_answer_is_filled_and_the_answer_goes_on() {
    let acts = [
        Act::write(text("once ")),
        Act::Pause(150),
        Act::write(text("upon ")),
        Act::Pause(900),
        Act::write(text("a time")),
        end(),
    ];
    let alpha = mock_that("alpha", [Step::writes(acts)]);
    let settings = json!({"stream": {"keepAliveMs": 200}});
    let gateway = Gateway::builder().settings(settings).provider(provider(&alpha)).start();
    let answer = gateway.stream("m").well_formed_stream();
    assert_eq!(answer.content(), "once upon a time");
    let comments = answer.events().iter().filter(|event| matches!(event.kind, EventKind::Comment(_))).count();
    assert!((3..=5).contains(&comments), "{comments} keep-alives: {answer}");
}

#[test]
fn a_long_answer_is_counted_while_it_comes() {
    let piece = Act::Repeat { bytes: text("some words of it ").into(), times: 300, pause_ms: 1 };
    let alpha = mock_that("alpha", [Step::writes([piece, Act::Hold])]);
    let limited = provider(&alpha).limits(json!({"tpm": 1_000_000}));
    let gateway = Gateway::over([limited]);
    let live = gateway.open(&Request::chat(&hello_with("m", json!({"stream": true, "max_tokens": 10}))));
    // Reserved were ten tokens of output; what is counted follows the answer in steps.
    eventually("most of the answer is counted", || gateway.used("tpm") > 900.0);
    drop(live);
}

#[test]
fn a_preview_and_a_session_hold_what_was_said_on_the_way() {
    let pieces: Vec<String> = (0..40).map(|number| format!("{number} ")).collect();
    let writes = pieces.iter().flat_map(|piece| [Act::write(text(piece)), Act::Pause(5)]).chain([end()]);
    let alpha = mock_that("alpha", [Step::writes(writes)]);
    let settings = json!({"log": {"previews": true}});
    let gateway = Gateway::builder().settings(settings).provider(provider(&alpha)).start();
    let said = pieces.concat();
    let answer = gateway.stream_with("m", json!({"session": "tale"})).well_formed_stream();
    assert_eq!(answer.content(), said);
    let session = gateway.get("/api/sessions/tale").ok().json();
    let last = session["messages"].as_array().and_then(|messages| messages.last().cloned());
    assert_eq!(last.expect("a thread")["content"], json!(said));
    eventually("the log has the preview", || gateway.last_turn(1)["preview"]["response"] == json!(said));
}

#[test]
fn an_upstream_that_breaks_off_in_the_midst_is_told_at_once() {
    for last in [Act::Close, Act::Reset] {
        let acts =
            [Act::write(text("once ")), Act::Pause(100), Act::write(text("upon ")), Act::Pause(100), last];
        let (_alpha, gateway) = gateway_over([Step::writes(acts)]);
        let broken = gateway.stream_with("m", json!({"temperature": 1.5}));
        assert_eq!(broken.broken_stream()["type"], json!("api_error"));
        assert_eq!(broken.content(), "once upon ");
        let took = broken.took();
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}

#[test]
fn an_event_that_is_counted_gives_the_next_its_time_as_well() {
    let long = text(&"word ".repeat(400));
    let acts = [
        Act::write(text("once ")),
        Act::Pause(300),
        Act::write(long),
        Act::Pause(300),
        Act::write(text("end")),
        end(),
    ];
    let alpha = mock_that("alpha", [Step::writes(acts)]);
    let gateway = Gateway::over([provider(&alpha).set("timeouts", json!({"idleMs": 450}))]);
    let answer = gateway.stream("m").well_formed_stream();
    assert!(answer.content().ends_with("word end"), "{answer}");
}
