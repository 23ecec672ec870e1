//! What it costs to make a long conversation fit: `cargo run --release --example refit_cost`.
//!
//! 2,000 messages with tool calls, of about 230 KiB together, go to a window of 8,192 tokens: they are read, cleared of
//! noise, cut to a window, and looked up among the summaries; then the same with a summary to be put in.
use std::hint::black_box;
use std::time::Instant;

use freeway::context::conversation::Conversation;
use freeway::context::refit::{Compaction, Room, Step, finish, refit};

const MESSAGES: usize = 2_000;
const ROUNDS: u32 = 50;

fn conversation() -> Vec<u8> {
    let mut messages = vec![r#"{"role":"system","content":"You are a patient assistant."}"#.to_owned()];
    while messages.len() < MESSAGES - 1 {
        let n = messages.len();
        messages.push(format!(
            r#"{{"role":"user","content":"Question {n}: {}\nNa\u00efve?"}}"#,
            "what about this? ".repeat(6)
        ));
        messages.push(format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"call_{n}","type":"function","function":{{"name":"look","arguments":"{{\"n\":{n}}}"}}}}]}}"#
        ));
        messages.push(format!(
            r#"{{"role":"tool","tool_call_id":"call_{n}","content":"{}"}}"#,
            "a line of output\\n".repeat(12)
        ));
        messages
            .push(format!(r#"{{"role":"assistant","content":"Answer {n}: {}"}}"#, "it is so. ".repeat(10)));
    }
    messages.push(r#"{"role":"user","content":"And now?"}"#.to_owned());
    format!("[{}]", messages.join(",")).into_bytes()
}

fn milliseconds(what: impl Fn()) -> f64 {
    let began = Instant::now();
    (0..ROUNDS).for_each(|_| what());
    began.elapsed().as_secs_f64() * 1e3 / f64::from(ROUNDS)
}

fn main() {
    let raw = conversation();
    let room = Room { target: 7_168, hard: 7_168, max_turns: 12, writer: 8_192 };
    let windowed = milliseconds(|| {
        let talk = Conversation::read(black_box(&raw)).expect("valid JSON");
        black_box(refit(&talk, &room, Compaction::Off, |_| None));
    });
    let compacted = milliseconds(|| {
        let talk = Conversation::read(black_box(&raw)).expect("valid JSON");
        let Step::NeedsSummary(need) = refit(&talk, &room, Compaction::On, |_| None) else {
            panic!("it needs a summary")
        };
        black_box(finish(&talk, &room, &need, Some("They spoke of many things.")));
    });
    println!("{} messages, {} KiB", MESSAGES, raw.len() / 1_024);
    println!("window_ms {windowed:.3}");
    println!("refit_ms {compacted:.3}");
}
