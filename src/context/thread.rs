//! A conversation: its messages as the raw JSON that they came in, one behind the other, and what has to be known of
//! each. What a request adds to it, and which part of it is sent, is decided here.
//!
//! A list that holds an assistant message is a complete history and takes the place of what is stored; anything else,
//! tool results among it, is the new part and is appended, however much it looks like what is there already.
use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

use super::tokens;
use crate::wire::chat::SessionMode;
use crate::wire::json::{self, Cursor, Flaw};
use crate::wire::tally::Tally;

/// What stands in the place of a tool result that never came.
const NO_RESULT: &str = "no result: the call was interrupted";

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

fn no_result(id: Option<&str>) -> Vec<u8> {
    let mut result = b"{\"role\":\"tool\",".to_vec();
    if let Some(id) = id {
        result.extend_from_slice(b"\"tool_call_id\":");
        json::quote(id, &mut result);
        result.push(b',');
    }
    result.extend_from_slice(b"\"content\":");
    json::quote(NO_RESULT, &mut result);
    result.push(b'}');
    result
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
