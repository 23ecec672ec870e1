//! A conversation: its messages as the raw JSON that they came in, one behind the other, and what has to be known of
//! each. What a request adds to it, and which part of it is sent, is decided here.
//!
//! A list that holds an assistant message is a complete history and takes the place of what is stored; anything else,
//! tool results among it, is the new part and is appended, however much it looks like what is there already.
use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

use super::pairs::no_result;
use super::tokens;
use crate::wire::chat::SessionMode;
use crate::wire::json::{self, Cursor, Flaw};
use crate::wire::tally::Tally;

/// What a message is, as far as a conversation is held together by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    System,
    User,
    Assistant,
    /// An assistant message that calls tools, whose results must follow.
    Calls,
    Result,
}

/// What is known of a stored message beside its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Where it ends in the text; the next one begins behind a comma.
    end: usize,
    /// By our own count.
    pub tokens: u32,
    pub kind: Kind,
    /// When it came, in milliseconds since 1970.
    pub created_ms: u64,
}

/// Messages in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Separated by commas, so that the inside of a JSON list can be cut out of it anywhere.
    text: Vec<u8>,
    marks: Vec<Mark>,
}

impl Thread {
    /// The messages of a JSON list that [`crate::wire::chat`] has checked, all of one time.
    ///
    /// # Errors
    /// What is no list of objects.
    pub fn read(list: &[u8], created_ms: u64) -> Result<Thread, Flaw> {
        let mut thread = Thread::default();
        thread.text.reserve(list.len());
        each_item(list, |message| thread.push(message, created_ms))?;
        Ok(thread)
    }

    /// The same with the time of each message.
    ///
    /// # Errors
    /// What is no list.
    pub fn read_at(list: &[u8], created_ms: &[u64]) -> Result<Thread, Flaw> {
        let mut thread = Thread::read(list, 0)?;
        thread.marks.iter_mut().zip(created_ms).for_each(|(mark, at)| mark.created_ms = *at);
        Ok(thread)
    }

    /// Appends one message.
    pub fn push(&mut self, raw: &[u8], created_ms: u64) {
        let (kind, tokens) = weigh(raw);
        self.append(raw, Mark { end: 0, tokens, kind, created_ms });
    }

    /// Appends those messages of another thread.
    pub fn extend(&mut self, other: &Thread, range: Range<usize>) {
        self.text.reserve(other.bytes());
        range.for_each(|at| self.append(other.message(at), other.marks[at]));
    }

    fn append(&mut self, raw: &[u8], mark: Mark) {
        if !self.marks.is_empty() {
            self.text.push(b',');
        }
        self.text.extend_from_slice(raw);
        self.marks.push(Mark { end: self.text.len(), ..mark });
    }

    /// Keeps the first `count` messages.
    pub fn truncate(&mut self, count: usize) {
        self.marks.truncate(count);
        self.text.truncate(self.marks.last().map_or(0, |mark| mark.end));
    }

    /// Messages.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Length of the text.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// What it takes in memory.
    pub fn memory(&self) -> usize {
        self.text.capacity() + self.marks.capacity() * size_of::<Mark>()
    }

    /// Gives back memory that was reserved and is not used.
    pub fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.marks.shrink_to_fit();
    }

    /// The estimated tokens of all messages.
    pub fn tokens(&self) -> u64 {
        self.marks.iter().map(|mark| u64::from(mark.tokens)).sum()
    }

    /// What is known of each message.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// One message, as it came.
    pub fn message(&self, at: usize) -> &[u8] {
        &self.text[self.start(at)..self.marks[at].end]
    }

    /// Messages, separated by commas.
    pub fn text(&self, range: Range<usize>) -> &[u8] {
        if range.is_empty() {
            &[]
        } else {
            &self.text[self.start(range.start)..self.marks[range.end - 1].end]
        }
    }

    fn start(&self, at: usize) -> usize {
        if at == 0 { 0 } else { self.marks[at - 1].end + 1 }
    }

    /// How many messages both begin with.
    pub fn common_prefix(&self, other: &Thread) -> usize {
        let same = |at: &usize| self.message(*at) == other.message(*at);
        (0..self.len().min(other.len())).take_while(same).count()
    }

    /// The system messages in front.
    fn lead(&self) -> usize {
        self.marks.iter().take_while(|mark| mark.kind == Kind::System).count()
    }

    /// The system message of the last block of them that reads like `raw`.
    fn has_system(&self, raw: &[u8]) -> bool {
        let system = |mark: &Mark| mark.kind == Kind::System;
        let Some(last) = self.marks.iter().rposition(system) else { return false };
        let first = self.marks[..last].iter().rposition(|mark| !system(mark)).map_or(0, |before| before + 1);
        (first..=last).any(|at| same_json(self.message(at), raw))
    }
}

/// Whether two texts say the same in JSON.
fn same_json(a: &[u8], b: &[u8]) -> bool {
    let parsed = |raw: &[u8]| serde_json::from_slice::<Value>(raw).ok();
    a == b || parsed(a).is_some_and(|value| Some(value) == parsed(b))
}

/// What a conversation becomes by a request: the first so many stored messages, and then those of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whether the request adds to the conversation, or says what all of it is.
    pub mode: SessionMode,
    pub keep: usize,
    pub fresh: Thread,
}

/// What `incoming` makes of what is stored. Without a mode a complete history replaces and anything else is appended. A
/// call that nobody answered gets an answer that says so, because providers refuse a conversation with a hole in it for
/// ever.
pub fn change(stored: &Thread, incoming: Thread, mode: Option<SessionMode>) -> Change {
    let complete = incoming.marks.iter().any(|mark| matches!(mark.kind, Kind::Assistant | Kind::Calls));
    let mode = mode.unwrap_or(if complete { SessionMode::Replace } else { SessionMode::Append });
    match mode {
        SessionMode::Replace => {
            let whole = mended(Open::default(), &incoming, |_| true);
            let keep = stored.common_prefix(&whole);
            let mut fresh = Thread::default();
            fresh.extend(&whole, keep..whole.len());
            Change { mode, keep, fresh }
        }
        SessionMode::Append => {
            let open = Open::at_end_of(stored);
            let is_new = |at: usize| {
                incoming.marks[at].kind != Kind::System || !stored.has_system(incoming.message(at))
            };
            Change { mode, keep: stored.len(), fresh: mended(open, &incoming, is_new) }
        }
    }
}

/// The messages that `takes` lets through, with a result for each call that has none.
fn mended(mut open: Open, incoming: &Thread, takes: impl Fn(usize) -> bool) -> Thread {
    let mut mended = Thread::default();
    for at in (0..incoming.len()).filter(|at| takes(*at)) {
        let (raw, mark) = (incoming.message(at), incoming.marks[at]);
        if mark.kind == Kind::Result {
            open.answered(raw);
        } else {
            for id in open.0.drain(..) {
                mended.push(&no_result(id.as_deref()), mark.created_ms);
            }
        }
        if mark.kind == Kind::Calls {
            open = Open::of(raw);
        }
        mended.append(raw, mark);
    }
    mended
}

/// The ids of calls that wait for their results; `None` for a call without one.
#[derive(Default)]
struct Open(Vec<Option<String>>);

impl Open {
    /// The calls of one message.
    fn of(raw: &[u8]) -> Open {
        let mut ids = Vec::new();
        let _ = each_item(json::member(raw, "tool_calls").unwrap_or_default(), |call| {
            let id = json::member(call, "id").and_then(json::text).filter(|id| !id.is_empty());
            ids.push(id.map(Cow::into_owned));
        });
        Open(ids)
    }

    fn at_end_of(stored: &Thread) -> Open {
        let results = stored.marks.iter().rev().take_while(|mark| mark.kind == Kind::Result).count();
        let Some(calls) = (stored.len() - results).checked_sub(1) else { return Open::default() };
        if stored.marks[calls].kind != Kind::Calls {
            return Open::default();
        }
        let mut open = Open::of(stored.message(calls));
        (calls + 1..stored.len()).for_each(|at| open.answered(stored.message(at)));
        open
    }

    fn answered(&mut self, result: &[u8]) {
        let id = json::member(result, "tool_call_id").and_then(json::text).filter(|id| !id.is_empty());
        if let Some(at) = self.0.iter().position(|open| open.as_deref() == id.as_deref()) {
            self.0.remove(at);
        }
    }
}

/// How much of a conversation is sent at most.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub messages: usize,
    pub bytes: usize,
}

/// Which of the kept messages are sent together with the fresh ones, which are sent in any case: all of them if they
/// are few enough; else the system messages in front and the newest turns that find room, each from its user message on,
/// so that no call is parted from its results.
pub fn sent(stored: &Thread, change: &Change, bound: Bound) -> [Range<usize>; 2] {
    let (keep, fresh) = (change.keep, &change.fresh);
    let lead = stored.lead().min(keep);
    let fits = |from: usize| {
        let bytes = stored.text(0..lead).len() + stored.text(from..keep).len() + fresh.bytes() + 2;
        lead + (keep - from) + fresh.len() <= bound.messages && bytes <= bound.bytes
    };
    if fits(lead) {
        return [0..keep, keep..keep];
    }
    let begins_with_results = fresh.marks.first().is_some_and(|mark| mark.kind == Kind::Result);
    let last_calls = stored.marks[lead..keep].iter().rposition(|mark| mark.kind == Kind::Calls);
    // Results without their call would be refused.
    let latest = if begins_with_results { last_calls.map_or(keep, |at| lead + at) } else { keep };
    let from = (lead..latest).find(|at| stored.marks[*at].kind == Kind::User && fits(*at)).unwrap_or(latest);
    [0..lead, from..keep]
}

/// A thread that is longer than `bound` without its oldest turns, so that it has room to grow again, and how many
/// messages stand where they stood.
pub fn shortened(thread: &Thread, bound: Bound) -> Option<(Thread, usize)> {
    if thread.len() <= bound.messages && thread.bytes() <= bound.bytes {
        return None;
    }
    let all = Change { mode: SessionMode::Append, keep: thread.len(), fresh: Thread::default() };
    let roomy = Bound { messages: bound.messages / 4 * 3, bytes: bound.bytes / 4 * 3 };
    let [lead, newest] = sent(thread, &all, roomy);
    let same = lead.end;
    let mut shorter = Thread::default();
    shorter.extend(thread, lead);
    shorter.extend(thread, newest);
    Some((shorter, same))
}

/// The JSON list of what is sent.
pub fn list(stored: &Thread, ranges: &[Range<usize>], fresh: &Thread) -> Vec<u8> {
    let texts = ranges.iter().map(|range| stored.text(range.clone())).chain([fresh.text(0..fresh.len())]);
    let mut list = Vec::with_capacity(stored.bytes() + fresh.bytes() + 4);
    list.push(b'[');
    for text in texts.filter(|text| !text.is_empty()) {
        if list.len() > 1 {
            list.push(b',');
        }
        list.extend_from_slice(text);
    }
    list.push(b']');
    list
}

/// The assistant's message of choice 0 of a whole answer, as it is stored; `None` when it says nothing.
///
/// Members that say nothing go, as clients leave them out too when they send a history back. Reasoning is kept only
/// beside tool calls, where some providers want it back.
pub fn spoken(answer: &[u8]) -> Option<Vec<u8>> {
    let mut message = None;
    each_item(json::member(answer, "choices")?, |choice| {
        let first = json::member(choice, "index").is_none_or(|index| index == b"0");
        if first && message.is_none() {
            message = json::member(choice, "message");
        }
    })
    .ok()?;
    let message = message?;
    let given = |name: &str| json::member(message, name).filter(|raw| !json::is_blank(Some(raw)));
    let calls = ["tool_calls", "function_call"].iter().any(|name| given(name).is_some());
    let speaks = calls || ["content", "refusal", "audio"].iter().any(|name| given(name).is_some());
    if !speaks {
        return None;
    }
    let mut cursor = Cursor::new(message);
    cursor.open(b'{').ok()?;
    let mut stored = b"{\"role\":\"assistant\"".to_vec();
    while let Some(name) = cursor.member().ok()? {
        let raw = cursor.skip().ok()?;
        let kept = match name {
            b"role" => false,
            b"content" => true,
            _ => !json::is_blank(Some(raw)) && (calls || !name.starts_with(b"reasoning")),
        };
        if kept {
            stored.extend_from_slice(b",\"");
            stored.extend_from_slice(name);
            stored.extend_from_slice(b"\":");
            stored.extend_from_slice(raw);
        }
    }
    stored.push(b'}');
    Some(stored)
}

/// What a message is and how much it weighs.
fn weigh(raw: &[u8]) -> (Kind, u32) {
    let mut tally = Tally { messages: 1, ..Tally::default() };
    let (mut kind, mut calls) = (Kind::User, false);
    // Whatever cannot be read has been refused before.
    let _ = each_member(raw, |name, value| match name {
        b"role" => {
            kind = match json::text(value).as_deref() {
                Some("system" | "developer") => Kind::System,
                Some("assistant") => Kind::Assistant,
                Some("tool" | "function") => Kind::Result,
                _ => Kind::User,
            }
        }
        b"content" if value.starts_with(b"[") => {
            let _ = each_item(value, |part| weigh_part(part, &mut tally));
        }
        b"content" if value.starts_with(b"\"") => tally.json(value),
        b"tool_calls" if !json::is_blank(Some(value)) => {
            calls = true;
            tally.json(value);
        }
        b"function_call" if !json::is_blank(Some(value)) => tally.json(value),
        name if name.starts_with(b"reasoning") && value.starts_with(b"\"") => tally.json(value),
        _ => {}
    });
    if calls && kind == Kind::Assistant {
        kind = Kind::Calls;
    }
    (kind, u32::try_from(tokens::estimate(&tally)).unwrap_or(u32::MAX))
}

fn weigh_part(part: &[u8], tally: &mut Tally) {
    match json::member(part, "text").or_else(|| json::member(part, "refusal")) {
        Some(text) => tally.json(text),
        None if part.starts_with(b"\"") => tally.json(part),
        None => tally.images += 1,
    }
}

fn each_item<'a>(list: &'a [u8], mut see: impl FnMut(&'a [u8])) -> Result<(), Flaw> {
    let mut cursor = Cursor::new(list);
    if cursor.open(b'[')? {
        while cursor.item()? {
            see(cursor.skip()?);
        }
    }
    Ok(())
}

fn each_member<'a>(object: &'a [u8], mut see: impl FnMut(&'a [u8], &'a [u8])) -> Result<(), Flaw> {
    let mut cursor = Cursor::new(object);
    if cursor.open(b'{')? {
        while let Some(name) = cursor.member()? {
            see(name, cursor.skip()?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;
    use crate::context::pairs::NO_RESULT;

    const SYSTEM: &str = r#"{"role":"system","content":"be brief"}"#;
    const CALLS: &str = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]}"#;

    fn user(text: &str) -> String {
        format!(r#"{{"role":"user","content":"{text}"}}"#)
    }

    fn said(text: &str) -> String {
        format!(r#"{{"role":"assistant","content":"{text}"}}"#)
    }

    fn result(id: &str) -> String {
        format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"r"}}"#)
    }

    fn missing(id: &str) -> String {
        format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"{NO_RESULT}"}}"#)
    }

    fn thread(messages: &[String]) -> Thread {
        Thread::read(format!("[{}]", messages.join(" ,\n")).as_bytes(), 5).expect("a list of messages")
    }

    fn texts(thread: &Thread) -> Vec<String> {
        (0..thread.len()).map(|at| String::from_utf8(thread.message(at).to_vec()).expect("UTF-8")).collect()
    }

    /// All that a conversation is after the change.
    fn whole(stored: &Thread, change: &Change) -> Vec<String> {
        let mut all = texts(stored);
        all.truncate(change.keep);
        all.extend(texts(&change.fresh));
        all
    }

    #[test]
    fn messages_stay_as_they_came() {
        let odd = r#"{ "content" : "h\u0069 😀", "role":"user", "zz":[1e2, 9007199254740993] }"#;
        let mut thread = thread(&[SYSTEM.into(), odd.into()]);
        assert_eq!(texts(&thread), [SYSTEM, odd]);
        assert_eq!(
            list(&thread, &[0..1, 1..2], &Thread::default()),
            format!("[{SYSTEM},{odd}]").into_bytes()
        );
        thread.push(said("x").as_bytes(), 7);
        assert_eq!((thread.len(), thread.marks()[2].created_ms, thread.marks()[1].created_ms), (3, 7, 5));
        thread.truncate(1);
        assert_eq!((texts(&thread), thread.bytes()), (vec![SYSTEM.to_owned()], SYSTEM.len()));
        thread.truncate(0);
        assert_eq!((thread.len(), thread.bytes(), thread.text(0..0)), (0, 0, b"".as_slice()));
    }

    #[test]
    fn kinds_and_weights() {
        let check = |message: &str, kind: Kind, tokens: u32| {
            assert_eq!(weigh(message.as_bytes()), (kind, tokens), "{message}");
        };
        check(SYSTEM, Kind::System, 4 + 2);
        check(r#"{"role":"developer","content":"be brief"}"#, Kind::System, 6);
        check(&user("12345678"), Kind::User, 6);
        check(
            r#"{"role":"user","content":[{"type":"text","text":"1234"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}"#,
            Kind::User,
            1_005,
        );
        check(&said(""), Kind::Assistant, 4);
        check(r#"{"role":"assistant","content":"x","tool_calls":[]}"#, Kind::Assistant, 5);
        assert_eq!(weigh(CALLS.as_bytes()).0, Kind::Calls);
        check(&result("a"), Kind::Result, 5);
        check(r#"{"role":"function","name":"f","content":"r"}"#, Kind::Result, 5);
    }

    #[test]
    fn what_is_new_is_appended_and_a_history_replaces() {
        let stored = thread(&[SYSTEM.into(), user("a"), said("b")]);
        let check = |incoming: &[String], mode: Option<SessionMode>, keep: usize, expected: &[String]| {
            let change = change(&stored, thread(incoming), mode);
            assert_eq!(change.keep, keep, "{incoming:?}");
            assert_eq!(whole(&stored, &change), expected, "{incoming:?}");
        };
        let all = |more: &[String]| [vec![SYSTEM.to_owned(), user("a"), said("b")], more.to_vec()].concat();
        // Whatever it looks like.
        check(&[user("a")], None, 3, &all(&[user("a")]));
        check(&[user("c"), user("d")], None, 3, &all(&[user("c"), user("d")]));
        // A system message is stored once, and another one is new.
        check(&[SYSTEM.into(), user("c")], None, 3, &all(&[user("c")]));
        let spaced = r#"{"content" : "be brief", "role": "system"}"#;
        check(&[spaced.into(), user("c")], None, 3, &all(&[user("c")]));
        let other = r#"{"role":"system","content":"be long"}"#.to_owned();
        check(&[other.clone(), user("c")], None, 3, &all(&[other.clone(), user("c")]));
        // An assistant message makes it a history; what stands as it stood is kept.
        let longer = all(&[user("c")]);
        check(&longer, None, 3, &longer);
        let edited = [SYSTEM.to_owned(), user("a2"), said("b"), user("c")];
        check(&edited, None, 1, &edited);
        check(&[user("x"), said("y"), user("z")], None, 0, &[user("x"), said("y"), user("z")]);
        check(&[SYSTEM.into(), user("a")], Some(SessionMode::Replace), 2, &[SYSTEM.into(), user("a")]);
        check(
            &[user("c"), said("d"), user("e")],
            Some(SessionMode::Append),
            3,
            &all(&[user("c"), said("d"), user("e")]),
        );
    }

    #[test]
    fn tool_results_alone_are_the_new_part() {
        let stored = thread(&[user("q"), CALLS.into()]);
        let change = change(&stored, thread(&[result("b"), result("a")]), None);
        assert_eq!(
            (change.mode, change.keep, texts(&change.fresh)),
            (SessionMode::Append, 2, vec![result("b"), result("a")])
        );
    }

    #[test]
    fn ctx_02_a_call_without_a_result_gets_one() {
        let check = |stored: &[String], incoming: &[String], expected: &[String]| {
            let stored = thread(stored);
            assert_eq!(whole(&stored, &change(&stored, thread(incoming), None)), expected, "{incoming:?}");
        };
        let calls = CALLS.to_owned();
        let open = [user("q"), calls.clone()];
        check(
            &open,
            &[user("go on")],
            &[user("q"), calls.clone(), missing("a"), missing("b"), user("go on")],
        );
        check(
            &open,
            &[result("a"), user("go on")],
            &[user("q"), calls.clone(), result("a"), missing("b"), user("go on")],
        );
        let half = [user("q"), calls.clone(), result("b")];
        check(&half, &[user("go on")], &[user("q"), calls.clone(), result("b"), missing("a"), user("go on")]);
        check(&half, &[result("a")], &[user("q"), calls.clone(), result("b"), result("a")]);
        // In a history that the client sends, too; its end may still be answered.
        let history = [user("q"), calls.clone(), user("go on"), calls.clone()];
        check(
            &[],
            &history,
            &[user("q"), calls.clone(), missing("a"), missing("b"), user("go on"), calls.clone()],
        );
        let nameless = r#"{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}"#.to_owned();
        let no_id = format!(r#"{{"role":"tool","content":"{NO_RESULT}"}}"#);
        check(&[user("q"), nameless.clone()], &[user("go on")], &[user("q"), nameless, no_id, user("go on")]);
    }

    #[test]
    fn c10_what_is_sent_is_bounded_and_begins_with_a_turn() {
        let stored = thread(&[
            SYSTEM.into(),
            user("a"),
            CALLS.into(),
            result("a"),
            result("b"),
            said("x"),
            user("c"),
            said("y"),
        ]);
        let check = |fresh: &[String], messages: usize, from: usize| {
            let change = Change { mode: SessionMode::Append, keep: stored.len(), fresh: thread(fresh) };
            let bound = Bound { messages, bytes: 100_000 };
            let [lead, newest] = sent(&stored, &change, bound);
            assert_eq!((lead.end, newest), if from == 0 { (8, 8..8) } else { (1, from..8) }, "{messages}");
        };
        let next = [user("n")];
        check(&next, 9, 0);
        check(&next, 8, 6);
        check(&next, 4, 6);
        check(&next, 3, 8);
        // The request itself is never cut, nor are results parted from their call.
        check(&next, 1, 8);
        check(&[result("a")], 2, 2);
        let change = Change { mode: SessionMode::Append, keep: stored.len(), fresh: thread(&next) };
        let bytes = SYSTEM.len() + user("c").len() + said("y").len() + user("n").len() + 3;
        assert_eq!(sent(&stored, &change, Bound { messages: 99, bytes })[1], 6..8);
        assert_eq!(sent(&stored, &change, Bound { messages: 99, bytes: bytes - 1 })[1], 8..8);
    }

    #[test]
    fn a_conversation_that_is_too_long_loses_its_oldest_turns() {
        let mut long = thread(&[SYSTEM.into()]);
        (0..50).for_each(|n| long.extend(&thread(&[user(&n.to_string()), said("x")]), 0..2));
        let bound = Bound { messages: 40, bytes: 100_000 };
        let (shorter, same) = shortened(&long, bound).expect("it is too long");
        assert_eq!((shorter.len(), same, shortened(&shorter, bound)), (29, 1, None));
        assert_eq!(texts(&shorter)[..2], [SYSTEM.to_owned(), user("36")]);
        assert_eq!(texts(&shorter)[27..], [user("49"), said("x")]);
    }

    #[test]
    fn w13_the_answer_is_stored_as_it_was_given() {
        let check = |message: &str, expected: Option<&str>| {
            let answer = format!(
                r#"{{"choices":[{{"index":1,"message":{{"role":"assistant","content":"other"}}}},{{"index":0,"message":{message}}}]}}"#
            );
            assert_eq!(
                spoken(answer.as_bytes()).map(|raw| String::from_utf8_lossy(&raw).into_owned()).as_deref(),
                expected
            );
        };
        check(
            r#"{"role":"assistant","content":"h\u0069","refusal":null,"annotations":[]}"#,
            Some(r#"{"role":"assistant","content":"h\u0069"}"#),
        );
        check(
            r#"{"content":null,"tool_calls":[{"id":"a"}],"reasoning_content":"why"}"#,
            Some(
                r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a"}],"reasoning_content":"why"}"#,
            ),
        );
        check(
            r#"{"content":"x","reasoning_content":"why","reasoning":"w"}"#,
            Some(r#"{"role":"assistant","content":"x"}"#),
        );
        check(
            r#"{"content":null,"refusal":"I will not"}"#,
            Some(r#"{"role":"assistant","content":null,"refusal":"I will not"}"#),
        );
        check(r#"{"content":""}"#, None);
        check(r#"{"content":null,"tool_calls":[]}"#, None);
        check("null", None);
        assert_eq!(spoken(b"{}"), None);
        assert_eq!(spoken(br#"{"choices":[]}"#), None);
        assert_eq!(spoken(b"not json"), None);
    }

    /// Any sequence of deltas gives the same conversation as the list of all that was said, sent as a history.
    #[test]
    fn any_way_of_sending_a_conversation_gives_the_same_one() {
        for seed in 0..300 {
            let mut rng = Rng::seeded(seed);
            let mut stored = Thread::default();
            let mut all: Vec<String> = Vec::new();
            for turn in 0..12 {
                let words = ["continue", "yes", "漢字 😀", "x", "\\u00e9\\n"];
                let mut new = vec![user(words[rng.below(5)])];
                if rng.below(4) == 0 {
                    new.insert(0, SYSTEM.into());
                }
                let calls = rng.below(3) == 0;
                let answer = if calls { CALLS.to_owned() } else { said(words[rng.below(5)]) };
                let known_system = all.contains(&SYSTEM.to_owned());
                let said_now = new.iter().filter(|message| !(known_system && *message == SYSTEM)).cloned();
                let expected: Vec<String> = all.iter().cloned().chain(said_now).collect();
                let incoming = if rng.below(2) == 0 { new } else { expected.clone() };
                let mode = all.is_empty().then_some(SessionMode::Replace);
                let change = change(&stored, thread(&incoming), mode);
                assert_eq!(whole(&stored, &change), expected, "seed {seed} turn {turn}");
                stored.truncate(change.keep);
                stored.extend(&change.fresh, 0..change.fresh.len());
                stored.push(answer.as_bytes(), 6);
                all = expected;
                all.push(answer);
                if calls {
                    let results = [result("a"), result("b")];
                    let change = super::change(&stored, thread(&results), None);
                    stored.extend(&change.fresh, 0..change.fresh.len());
                    stored.push(said("done").as_bytes(), 7);
                    all.extend(results);
                    all.push(said("done"));
                }
                assert_eq!(texts(&stored), all, "seed {seed} turn {turn}");
            }
        }
    }
}
