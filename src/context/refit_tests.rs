//! The ladder, rung by rung, and what it promises of any conversation.
use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::conversation::{Conversation, Role};
use super::pairs;
use super::refit::{Compaction, Fitted, Known, Room, Rung, Step, ahead, finish, refit};
use super::summary::{self, Key, Need};
use crate::base::rng::Rng;

const NOTES: &str = "They spoke of many things.";

fn room(target: u64) -> Room {
    Room { target, hard: target, max_turns: 12, writer: u64::MAX }
}

fn raw(messages: &[Value]) -> Vec<u8> {
    Value::from(messages.to_vec()).to_string().into_bytes()
}

fn says(role: &str, tokens: usize, word: &str) -> Value {
    json!({"role": role, "content": word.repeat(tokens * 4 / word.len())})
}

fn call(id: &str) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]})
}

fn result(id: &str, tokens: usize) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "r".repeat(tokens * 4)})
}

/// What is left of a conversation, every summary being `notes`.
fn fitted(messages: &[Value], room: &Room, notes: Option<&str>) -> (Fitted, Vec<Value>) {
    let raw = raw(messages);
    let talk = Conversation::read(&raw).expect("valid");
    let compaction = if notes.is_some() { Compaction::On } else { Compaction::Off };
    let step = match refit(&talk, room, compaction, |_| None) {
        Step::NeedsSummary(need) => finish(&talk, room, &need, notes),
        step => step,
    };
    let Step::Fitted(fitted) = step else { panic!("{step:?}") };
    let left: Value = serde_json::from_slice(&fitted.messages).expect("valid JSON");
    let left = left.as_array().expect("a list").clone();
    (fitted, left)
}

/// A system message and so many turns of so many tokens each, a question last.
fn long_talk(turns: usize, tokens: usize) -> Vec<Value> {
    let mut talk = vec![json!({"role": "system", "content": "Be kind."})];
    for turn in 0..turns {
        talk.push(says("user", tokens, &format!("question {turn} ")));
        talk.push(says("assistant", tokens, &format!("answer {turn} ")));
    }
    talk.push(json!({"role": "user", "content": "and now?"}));
    talk
}

#[test]
fn what_fits_is_left_alone() {
    let talk = long_talk(2, 100);
    let (fitted, left) = fitted(&talk, &room(1_000), Some(NOTES));
    assert_eq!((fitted.rung, fitted.kept, fitted.dropped, fitted.summaries), (Rung::Passthrough, 6, 0, 0));
    assert_eq!(left, talk);
}

#[test]
fn stale_results_and_old_images_go_first_the_oldest_first() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let talk = [
        json!({"role": "user", "content": [{"type": "text", "text": "look"}, image]}),
        call("a"),
        result("a", 500),
        call("b"),
        result("b", 500),
        json!({"role": "assistant", "content": "done"}),
        json!({"role": "user", "content": [{"type": "text", "text": "and this?"}, image]}),
    ];
    let (fitted_all, left) = fitted(&talk, &room(1_700), Some(NOTES));
    assert_eq!((fitted_all.rung, fitted_all.kept, fitted_all.dropped), (Rung::DropToolNoise, 7, 0));
    assert_eq!(left[0]["content"][1], json!({"type": "text", "text": "[image left out to save room]"}));
    assert_eq!(left[2]["content"], "[tool result cleared to save room]");
    assert_eq!((&left[4], &left[6]), (&talk[4], &talk[6]), "no more than need be; the newest images stay");
    assert_eq!(fitted(&talk, &room(2_100), Some(NOTES)).1[2], talk[2], "the image alone is enough");
}

#[test]
fn w14_the_newest_message_stays_when_the_first_is_huge() {
    let talk =
        [says("user", 5_000, "first "), says("assistant", 100, "yes "), says("user", 4_000, "newest ")];
    let (fitted, left) = fitted(&talk, &room(7_168), None);
    assert_eq!((fitted.rung, fitted.kept, fitted.dropped), (Rung::Window, 1, 2));
    assert_eq!(left, talk[2..], "without the user's turn before it, an answer cannot come first");
}

#[test]
fn w15_whole_turns_go_and_that_is_called_a_window() {
    let talk = long_talk(20, 200);
    let (fitted, left) = fitted(&talk, &room(3_000), None);
    assert_eq!((fitted.rung, fitted.kept + fitted.dropped), (Rung::Window, 42));
    assert!(fitted.tokens <= 3_000);
    assert_eq!((&left[0], &left[1]), (&talk[0], &talk[1]), "the system message and the first turn stay");
    let tail = left.len() - 2;
    assert!(tail <= 12);
    assert_eq!(left[2..], talk[talk.len() - tail..]);
    let short = fitted_with_turns(&talk, 3);
    assert_eq!(short, [&talk[..2], &talk[talk.len() - 3..]].concat(), "no more turns than are set");
}

fn fitted_with_turns(talk: &[Value], max_turns: usize) -> Vec<Value> {
    fitted(talk, &Room { max_turns, ..room(3_000) }, None).1
}

#[test]
fn ctx_03_notes_stand_in_the_first_system_message() {
    let talk = long_talk(20, 200);
    let (compact, left) = fitted(&talk, &room(3_000), Some(NOTES));
    assert_eq!((compact.rung, compact.summaries), (Rung::Compact, 1));
    let system = left[0]["content"].as_str().expect("a text");
    assert!(system.starts_with("Be kind.\n\n") && system.ends_with(NOTES), "{system}");
    assert!(left[1..].iter().all(|message| message["role"] != "system"));
    assert_eq!((&left[1], left.last()), (&talk[1], talk.last()));
    // The same with a system message in parts, and with none.
    let mut parts = talk.clone();
    parts[0]["content"] = json!([{"type": "text", "text": "Be kind."}]);
    let (_, left) = fitted(&parts, &room(3_000), Some(NOTES));
    assert_eq!(left[0]["content"][0]["text"], "Be kind.");
    assert!(left[0]["content"][1]["text"].as_str().is_some_and(|text| text.ends_with(NOTES)));
    let (_, left) = fitted(&talk[1..], &room(3_000), Some(NOTES));
    assert_eq!((&left[0]["role"], &left[1]["role"]), (&json!("system"), &json!("user")));
}

#[test]
fn c13_later_system_messages_stay_where_they_stand() {
    let mut talk = long_talk(20, 200);
    let at = talk.len() - 3;
    talk.insert(at, json!({"role": "developer", "content": "Now be brief."}));
    talk.insert(4, json!({"role": "system", "content": "They are tired."}));
    let (_, left) = fitted(&talk, &room(3_000), Some(NOTES));
    let roles: Vec<&str> = left.iter().filter_map(|message| message["role"].as_str()).collect();
    assert_eq!(&roles[..3], ["system", "user", "system"]);
    assert_eq!(left[left.len() - 4]["content"], "Now be brief.");
}

#[test]
fn running_calls_stay_and_their_results_are_cut_when_nothing_else_helps() {
    let talk = [
        json!({"role": "system", "content": "Be kind."}),
        says("user", 600, "question "),
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}),
        result("a", 5_000),
        result("b", 200),
    ];
    let (fitted, left) = fitted(&talk, &room(2_000), Some(NOTES));
    assert_eq!((fitted.rung, fitted.kept, fitted.dropped), (Rung::HardTruncate, 5, 0));
    assert!(fitted.tokens <= 2_000 && fitted.tokens > 1_900, "{}", fitted.tokens);
    assert_eq!((&left[..3], &left[4]), (&talk[..3], &talk[4]), "only the longest is cut");
    let cut = left[3]["content"].as_str().expect("a text");
    assert!(cut.ends_with("[the rest was cut off to save room]"), "{cut}");
}

#[test]
fn what_cannot_be_cut_is_too_large_and_says_by_how_much() {
    let talk = [json!({"role": "system", "content": "Be kind."}), says("user", 900, "question ")];
    let raw = raw(&talk);
    let talk = Conversation::read(&raw).expect("valid");
    let step = refit(&talk, &room(500), Compaction::On, |_| None);
    let Step::TooLarge { needed } = step else { panic!("{step:?}") };
    assert!((900..930).contains(&needed), "{needed}");
    // More than the target, but not more than there is.
    let roomy = Room { hard: 1_000, ..room(500) };
    let step = refit(&talk, &roomy, Compaction::On, |_| None);
    let Step::Fitted(fitted) = step else { panic!("{step:?}") };
    assert_eq!(fitted.rung, Rung::Passthrough);
}

#[test]
fn a_useless_summary_is_left_out() {
    let talk = long_talk(20, 200);
    let long = "blah ".repeat(20_000);
    for useless in ["", " \n", &long] {
        let (fitted, left) = fitted(&talk, &room(3_000), Some(useless));
        assert_eq!((fitted.rung, fitted.summaries), (Rung::Window, 0), "{} characters", useless.len());
        assert_eq!(left[0], talk[0]);
    }
}

/// Summaries as a store would keep them.
#[derive(Default)]
struct Paid(Vec<(Key, Arc<str>)>);

impl Paid {
    fn find(&self, keys: &[Key]) -> Known {
        let place =
            |key: &Key| self.0.iter().find(|(known, _)| known == key).map(|(_, text)| Arc::clone(text));
        keys.iter().enumerate().rev().find_map(|(at, key)| Some((at + 1, place(key)?)))
    }

    /// Makes a conversation fit, and tells whether a summary had to be paid for.
    fn fit(&mut self, talk: &[Value], room: &Room) -> (Fitted, Option<Need>) {
        let raw = raw(talk);
        let talk = Conversation::read(&raw).expect("valid");
        match refit(&talk, room, Compaction::On, |keys| self.find(keys)) {
            Step::Fitted(fitted) => (fitted, None),
            Step::NeedsSummary(need) => {
                self.0.push((need.key, NOTES.into()));
                let Step::Fitted(fitted) = finish(&talk, room, &need, Some(NOTES)) else {
                    panic!("it fitted")
                };
                (fitted, Some(need))
            }
            step => panic!("{step:?}"),
        }
    }
}

#[test]
fn w16_a_summary_is_paid_once_serves_the_next_turns_and_is_extended() {
    let mut talk = long_talk(40, 200);
    let mut paid = Paid::default();
    let (first, need) = paid.fit(&talk, &room(6_000));
    assert!(first.rung == Rung::Compact && need.is_some_and(|need| !need.transcript.contains(NOTES)));
    let (again, need) = paid.fit(&talk, &room(6_000));
    assert_eq!((&again.messages, need), (&first.messages, None));
    let mut needs = Vec::new();
    for turn in 0..12 {
        talk.push(says("assistant", 200, &format!("later answer {turn} ")));
        talk.push(says("user", 200, &format!("later question {turn} ")));
        let (fitted, need) = paid.fit(&talk, &room(6_000));
        assert_eq!(fitted.rung, Rung::Compact, "turn {turn}");
        needs.extend(need);
    }
    assert!((1..=6).contains(&needs.len()), "{} of 12 turns were paid for", needs.len());
    assert!(needs.iter().all(|need| need.transcript.contains(NOTES)), "what was noted is not read again");
    // Another window has use for the same summary.
    let (other, need) = paid.fit(&talk, &room(5_500));
    assert_eq!((other.rung, need), (Rung::Compact, None));
}

#[test]
fn a_summary_made_ahead_is_the_one_that_the_next_turn_wants() {
    let mut talk = long_talk(7, 200);
    let room = room(3_500);
    let wanted = |talk: &[Value], full: u64| {
        let raw = raw(talk);
        ahead(&Conversation::read(&raw).expect("valid"), &room, full, |_| None)
    };
    assert_eq!(wanted(&talk, 3_200), None, "there is room yet");
    let need = wanted(&talk, 2_800).expect("it is nearly full");
    let mut paid = Paid(vec![(need.key, NOTES.into())]);
    talk.push(says("assistant", 500, "a long answer "));
    talk.push(says("user", 400, "a long question "));
    let (fitted, need) = paid.fit(&talk, &room);
    assert_eq!((fitted.rung, need), (Rung::Compact, None));
}

/// A conversation of any shape; its pairs may be torn.
fn any_talk(rng: &mut Rng) -> Vec<Value> {
    let mut talk = Vec::new();
    let mut calls = 0;
    if rng.below(3) > 0 {
        talk.push(json!({"role": "system", "content": any_text(rng)}));
    }
    for _ in 0..rng.below(60) {
        match rng.below(10) {
            0..3 => talk.push(json!({"role": "user", "content": any_text(rng)})),
            3 => {
                let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,".to_owned() + &"A".repeat(999)}});
                talk.push(json!({"role": "user", "content": [{"type": "text", "text": any_text(rng)}, image]}));
            }
            4..6 => talk.push(json!({"role": "assistant", "content": any_text(rng)})),
            6 => talk.push(json!({"role": if rng.below(2) == 0 { "system" } else { "developer" }, "content": any_text(rng)})),
            _ => {
                let ids: Vec<String> = (0..=rng.below(4)).map(|at| format!("call_{}", calls + at)).collect();
                calls += 5;
                let made: Vec<Value> = ids
                    .iter()
                    .map(|id| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": json!({"q": any_text(rng)}).to_string()}}))
                    .collect();
                talk.push(json!({"role": "assistant", "content": null, "tool_calls": made}));
                for id in ids {
                    if rng.below(8) == 0 {
                        continue;
                    }
                    talk.push(json!({"role": "tool", "tool_call_id": id, "content": any_text(rng)}));
                }
            }
        }
    }
    if rng.below(3) > 0 {
        talk.push(json!({"role": "user", "content": any_text(rng)}));
    }
    talk
}

fn any_text(rng: &mut Rng) -> String {
    const WORDS: [&str; 10] = [
        "word ",
        "\"quoted\"\n",
        "Größe ",
        "привет ",
        "漢字かな",
        "ไทย",
        "😀",
        "👩\u{200d}👩",
        "e\u{301}",
        "\\n\t\u{1}",
    ];
    let (base, power) = (rng.below(10), rng.below(8));
    let length = 1 + rng.below(1 << power);
    (0..length).map(|_| WORDS[if rng.below(4) == 0 { rng.below(10) } else { base }]).collect()
}

/// No call without its results, no result without its call, results right behind their calls.
fn assert_paired(raw: &[u8], what: &str) {
    assert!(pairs::mended(raw) == Ok(None), "{what}");
    let mut open: HashSet<String> = HashSet::new();
    for message in &Conversation::read(raw).expect("valid JSON").messages {
        match message.role {
            Role::Tool => assert!(open.remove(message.answers.as_deref().unwrap_or_default()), "{what}"),
            _ => assert!(open.is_empty(), "{what}: {open:?} have no results"),
        }
        open.extend(message.calls.iter().flatten().map(|id| id.to_string()));
    }
    assert!(open.is_empty(), "{what}");
}

/// The raw bytes of the system messages without what a summary added, and of the newest message of the user.
fn pinned(raw: &[u8], notes: &str) -> (Vec<String>, Option<String>) {
    let talk = Conversation::read(raw).expect("valid JSON");
    let text = |raw: &[u8]| String::from_utf8(raw.to_vec()).expect("UTF-8");
    let mark = String::from_utf8(crate::wire::json::quoted(&summary::section(notes.trim()))).expect("UTF-8");
    let mark = mark.trim_matches('"').to_owned();
    let system = talk.messages.iter().filter(|message| message.role == Role::System);
    let system = system.map(|message| text(message.raw).replace(&format!("\\n\\n{mark}"), ""));
    let own = format!("{{\"role\":\"system\",\"content\":\"{mark}\"}}");
    let newest = talk.messages.iter().rfind(|message| message.role == Role::User);
    (system.filter(|system| *system != own).collect(), newest.map(|message| text(message.raw)))
}

#[test]
fn any_conversation_keeps_what_must_stay_fits_and_fits_the_same_again() {
    let mut reached = HashSet::new();
    let long = NOTES.repeat(2_000);
    for seed in 0..400 {
        let mut rng = Rng::seeded(seed);
        let talk = any_talk(&mut rng);
        let torn = raw(&talk);
        let whole = pairs::mended(&torn).expect("valid JSON").unwrap_or(torn);
        assert_paired(&whole, &format!("seed {seed}, before"));
        let talk = Conversation::read(&whole).expect("valid JSON");
        let total = talk.weight().div_ceil(1_000);
        let target = 1 + rng.below((total + total / 4 + 10) as usize) as u64;
        let room = Room {
            target,
            hard: target + rng.below(200) as u64,
            max_turns: 1 + rng.below(14),
            writer: 100 + rng.below(9_000) as u64,
        };
        let compaction = if rng.below(3) == 0 { Compaction::Off } else { Compaction::On };
        let written = [Some(NOTES), None, Some(""), Some(&*long)][rng.below(4)];
        let what = format!("seed {seed}, {room:?}, {compaction:?}");
        let run = || match refit(&talk, &room, compaction, |_| None) {
            Step::NeedsSummary(need) => finish(&talk, &room, &need, written),
            step => step,
        };
        let step = run();
        assert!(step == run(), "{what}: the same again");
        match step {
            Step::Fitted(fitted) => {
                let left = Conversation::read(&fitted.messages).expect("valid JSON");
                assert!(std::str::from_utf8(&fitted.messages).is_ok_and(|text| !text.contains('\u{fffd}')));
                assert_eq!(left.weight().div_ceil(1_000).max(fitted.tokens), fitted.tokens, "{what}");
                assert!(fitted.tokens <= room.target.max(room.hard), "{what}: {} tokens", fitted.tokens);
                assert_paired(&fitted.messages, &what);
                let notes = written.unwrap_or(NOTES);
                assert!(pinned(&fitted.messages, notes) == pinned(&whole, notes), "{what}");
                assert_eq!(fitted.kept + fitted.dropped, talk.messages.len(), "{what}");
                assert_eq!(fitted.rung == Rung::Passthrough, fitted.messages == whole, "{what}");
                assert_eq!(fitted.rung == Rung::Compact, fitted.summaries == 1, "{what}");
                assert!(fitted.dropped == 0 || fitted.rung >= Rung::Window, "{what}");
                let first = left.messages.iter().find(|message| message.role != Role::System);
                let has_user = left.messages.iter().any(|message| message.role == Role::User);
                if fitted.dropped > 0 && has_user {
                    assert_eq!(first.map(|message| message.role), Some(Role::User), "{what}");
                }
                reached.insert(fitted.rung);
            }
            Step::TooLarge { needed } => assert!(needed > room.target, "{what}: {needed}"),
            Step::NeedsSummary(_) => panic!("{what}: it was given one"),
        }
    }
    assert_eq!(reached.len(), 5, "every rung is reached: {reached:?}");
}
