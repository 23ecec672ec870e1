//! The choices of a streamed chat answer: each chunk's choices are read once, what clients rely on is put right, and
//! what matters of them is remembered.
use std::ops::Range;

use super::answer::text_of_parts;
use super::calls::{Calls, Passed};
use super::json::{self, Cursor, Flaw};
use super::patch::{Patch, Track};
use super::tally::Tally;
use super::usage::UsageTap;

/// Most choices of one stream.
const CHOICES_MAX: u64 = 128;

/// What was seen of all choices so far.
#[derive(Debug)]
pub struct Choices {
    pub list: Vec<Choice>,
    /// All output.
    pub output: Tally,
    /// Whether it is an answer: output, or a finish that explains why there is none (`length`, `content_filter`).
    pub answer: bool,
    /// Part of the ids of tool calls that came without one.
    salt: Box<str>,
}

/// What was seen of one choice so far.
#[derive(Debug, Default)]
pub struct Choice {
    pub index: u64,
    pub calls: Calls,
    /// A `function_call`, the older spelling of a call.
    pub older_call: bool,
    pub finish: Option<String>,
}

/// What was found in one chunk.
#[derive(Default)]
pub struct Found {
    /// Any choice at all.
    pub any: bool,
    /// Output, or a choice that had not finished before this chunk.
    pub news: bool,
    pub output: bool,
    /// Tool call entries that are all held back.
    pub held: bool,
    /// A whole `message` instead of a delta.
    pub whole: bool,
    /// A finish reason that says the upstream failed.
    pub failed: bool,
    pub finished: Vec<Finish>,
    /// Where the text stands, a JSON string, and how many pieces of output there are.
    text: Range<usize>,
    pieces: usize,
}

impl Found {
    /// Where the text stands in a chunk that holds one text and nothing else of interest.
    pub fn only_text(&self) -> Option<Range<usize>> {
        let only = self.pieces == 1 && !self.text.is_empty() && self.finished.is_empty() && !self.held;
        only.then(|| self.text.clone())
    }
}

/// A finish reason found in a chunk, and where it stands.
pub struct Finish {
    /// Position in [`Choices::list`].
    pub choice: usize,
    pub span: Range<usize>,
    /// Whether the upstream used another word than OpenAI's.
    pub reworded: bool,
}

impl Choices {
    /// `id` is the stream's own, for the ids of calls that have none.
    pub fn new(id: &str) -> Choices {
        let salt = id.get(id.len().saturating_sub(12)..).unwrap_or(id);
        Choices { list: Vec::with_capacity(1), output: Tally::default(), answer: false, salt: salt.into() }
    }

    /// How many choices have finished.
    pub fn finished(&self) -> usize {
        self.list.iter().filter(|choice| choice.finish.is_some()).count()
    }

    /// Appends the tool call entries that a choice still owes the client; false when there are none.
    pub fn flush_calls(&mut self, at: usize, out: &mut Vec<u8>) -> bool {
        let flushed = self.list[at].calls.flush(&self.salt, out);
        self.answer |= flushed;
        flushed
    }

    /// The position of a choice, made if it is new.
    fn at(&mut self, index: u64) -> usize {
        match self.list.iter().position(|choice| choice.index == index) {
            Some(at) => at,
            None => {
                self.list.push(Choice { index, ..Choice::default() });
                self.list.len() - 1
            }
        }
    }
}

/// Reads the choices of one chunk, noting changes.
pub struct Reading<'s> {
    pub choices: &'s mut Choices,
    pub patch: &'s mut Patch,
    pub usage: &'s mut UsageTap,
    pub found: Found,
}

impl Reading<'_> {
    /// Reads the list of choices; the cursor stands after its bracket.
    pub fn read(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Flaw> {
        let mut position = 0;
        while cursor.item()? {
            // The index is needed before the delta, and may stand after it.
            let mut ahead = cursor.clone();
            let raw = ahead.skip()?;
            let index = json::member(raw, "index").and_then(json::whole).filter(|index| *index < CHOICES_MAX);
            if position < CHOICES_MAX && cursor.open(b'{')? {
                self.found.any = true;
                self.read_choice(cursor, index, position)?;
            } else {
                *cursor = ahead;
            }
            position += 1;
        }
        Ok(())
    }

    fn read_choice(
        &mut self,
        cursor: &mut Cursor<'_>,
        index: Option<u64>,
        position: u64,
    ) -> Result<(), Flaw> {
        let at = self.choices.at(index.unwrap_or(position));
        let mut track = Track::new(cursor.at());
        let (mut has_index, mut has_delta, mut finish) = (false, false, None);
        let output_before = std::mem::take(&mut self.found.output);
        while let Some(name) = cursor.member()? {
            let name_at = cursor.name_at();
            track.begin(name_at, self.patch);
            match name {
                b"delta" | b"message" if !has_delta && (name == b"delta" || cursor.peek() == Some(b'{')) => {
                    has_delta = true;
                    if name == b"message" {
                        self.found.whole = true;
                        self.patch.replace(name_at..name_at + name.len() + 2, b"\"delta\"");
                    }
                    self.read_delta(cursor, at)?;
                }
                b"delta" | b"message" => {
                    cursor.skip()?;
                    track.remove(name_at, cursor.at(), self.patch);
                    continue;
                }
                b"index" => {
                    let raw = cursor.skip()?;
                    has_index = true;
                    if index.is_none() {
                        let span = cursor.at() - raw.len()..cursor.at();
                        self.patch.replace(span, position.to_string().as_bytes());
                    }
                }
                b"finish_reason" => {
                    let raw = cursor.skip()?;
                    finish = Some((raw, cursor.at() - raw.len()..cursor.at()));
                }
                b"usage" => {
                    let raw = cursor.skip()?;
                    self.usage.read(raw);
                    track.remove(name_at, cursor.at(), self.patch);
                    continue;
                }
                _ => {
                    cursor.skip()?;
                }
            }
            track.keep(cursor.at());
        }
        track.close(cursor.at() - 1, self.patch);
        if !has_index {
            track.add("index", position.to_string().as_bytes(), self.patch);
        }
        if !has_delta {
            track.add("delta", b"{}", self.patch);
        }
        match finish {
            Some((raw, span)) => self.read_finish(at, raw, span),
            None => track.add("finish_reason", b"null", self.patch),
        }
        let finished_here = self.found.finished.iter().any(|finish| finish.choice == at);
        self.found.news |= self.found.output || finished_here || self.choices.list[at].finish.is_none();
        self.found.output |= output_before;
        Ok(())
    }

    fn read_finish(&mut self, at: usize, raw: &[u8], span: Range<usize>) {
        if raw == b"null" {
            return;
        }
        let reason = json::text(raw).unwrap_or_default();
        let reason = finish_word(&reason);
        if reason.is_empty() || self.choices.list[at].finish.is_some() {
            self.patch.replace(span, b"null");
            return;
        }
        if matches!(reason, "error" | "insufficient_system_resource") {
            self.found.failed = true;
            return;
        }
        let reworded = raw.get(1..raw.len() - 1) != Some(reason.as_bytes());
        self.choices.answer |= matches!(reason, "length" | "content_filter");
        self.choices.list[at].finish = Some(reason.to_owned());
        self.found.finished.push(Finish { choice: at, span, reworded });
    }

    fn read_delta(&mut self, cursor: &mut Cursor<'_>, at: usize) -> Result<(), Flaw> {
        if !cursor.open(b'{')? {
            let raw = cursor.skip()?;
            self.patch.replace(cursor.at() - raw.len()..cursor.at(), b"{}");
            return Ok(());
        }
        let mut track = Track::new(cursor.at());
        let mut thinking = String::new();
        while let Some(name) = cursor.member()? {
            let name_at = cursor.name_at();
            track.begin(name_at, self.patch);
            let raw = cursor.skip()?;
            let span = cursor.at() - raw.len()..cursor.at();
            match name {
                b"content" if raw.starts_with(b"[") => {
                    let parts = text_of_parts(raw);
                    self.found.pieces += 1;
                    self.found.output |= !parts.text.is_empty() || !parts.thinking.is_empty();
                    self.choices.output.text(&parts.text);
                    self.choices.output.text(&parts.thinking);
                    self.patch.replace_with(span, |pool| json::quote(&parts.text, pool));
                    thinking = parts.thinking;
                }
                b"content" | b"reasoning_content" | b"reasoning" | b"refusal" if raw.starts_with(b"\"") => {
                    if raw.len() > 2 {
                        self.found.output = true;
                        self.found.pieces += 1;
                        self.found.text = span;
                    }
                    self.choices.output.json(raw);
                }
                b"tool_calls" if raw.starts_with(b"[") && !json::is_blank(Some(raw)) => {
                    self.found.pieces += 1;
                    let Choices { list, output, salt, .. } = &mut *self.choices;
                    match list[at].calls.read(raw, span, salt, self.patch, output)? {
                        Passed::Some => self.found.output = true,
                        Passed::Nothing => self.found.held = true,
                    }
                }
                b"function_call" | b"audio" | b"reasoning_details" => {
                    self.found.pieces += 1;
                    let some = !json::is_blank(Some(raw));
                    self.found.output |= some;
                    if name == b"function_call" {
                        self.choices.list[at].older_call |= some;
                        self.choices.output.json(raw);
                    }
                }
                _ => {}
            }
            track.keep(cursor.at());
        }
        track.close(cursor.at() - 1, self.patch);
        if !thinking.is_empty() {
            track.add("reasoning_content", &json::quoted(&thinking), self.patch);
        }
        Ok(())
    }
}

/// A finish reason in OpenAI's words, where the upstream's own word is known to mean the same.
pub fn finish_word(reason: &str) -> &str {
    match reason {
        "STOP" | "eos" | "eos_token" | "end_turn" | "stop_sequence" | "complete" | "COMPLETE" => "stop",
        "MAX_TOKENS" | "max_tokens" | "model_length" => "length",
        "tool_use" | "tool_call" | "TOOL_CALL" => "tool_calls",
        "SAFETY" | "RECITATION" | "PROHIBITED_CONTENT" | "BLOCKLIST" => "content_filter",
        other => other,
    }
}
