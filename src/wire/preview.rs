//! The beginnings of what was asked and answered, for the log's previews. Pure.
use std::ops::Range;

use super::body::Body;
use super::json::{self, Cursor, Flaw};
use super::mould::Mould;

/// Characters that are kept of a text.
const CHARS_MAX: usize = 1_500;

/// A text that keeps its beginning and counts the rest.
#[derive(Clone, Debug, Default)]
pub struct Clip {
    text: String,
    chars: usize,
    /// Of the last streamed chunk that said something.
    mould: Mould,
}

impl Clip {
    /// Adds to the text.
    pub fn push(&mut self, more: &str) {
        let room = CHARS_MAX.saturating_sub(self.chars);
        // No text has more characters than bytes.
        let end = match more.len() <= room {
            true => more.len(),
            false => more.char_indices().nth(room).map_or(more.len(), |(at, _)| at),
        };
        self.text.push_str(&more[..end]);
        self.chars += more.chars().count();
    }

    /// Adds the text of a JSON string, piece by piece: it may be as long as a whole body. Anything else adds nothing.
    fn push_json(&mut self, raw: &[u8]) {
        if let [b'"', inner @ .., b'"'] = raw {
            // What cannot be read was refused before.
            let _ = std::str::from_utf8(inner).map(|inner| json::decode(inner, |piece| self.push(piece)));
        }
    }

    /// What is shown: the beginning, and how much more there was.
    pub fn finish(mut self) -> String {
        let more = self.chars.saturating_sub(CHARS_MAX);
        if more > 0 {
            self.text += &format!("… {more} more characters");
        }
        self.text
    }

    /// Adds what the first choice says in frames that a client gets.
    pub fn push_frames(&mut self, frames: &[u8]) {
        let mut rest = frames;
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            let Some(payload) = line.strip_prefix(b"data: ") else { continue };
            if let Some(string) = self.mould.string(payload) {
                self.push_json(string);
                continue;
            }
            if let Ok(Some(span)) = content(payload, b"delta") {
                self.push_json(&payload[span.clone()]);
                self.mould.take(payload, span);
            }
        }
    }

    /// Reads the next frame as if none had come before that looks like it.
    #[cfg(test)]
    pub(super) fn forget_form(&mut self) {
        self.mould.clear();
    }

    /// Adds what the first choice says in a whole answer.
    pub fn push_whole(&mut self, answer: &[u8]) {
        if let Ok(Some(span)) = content(answer, b"message") {
            self.push_json(&answer[span]);
        }
    }
}

/// Where the content of the choice of index 0 stands in its `part`, if that choice comes first and its content is a text.
/// Many streamed chunks pass through here, so nothing is read twice, nor anything behind that choice.
fn content(payload: &[u8], part: &[u8]) -> Result<Option<Range<usize>>, Flaw> {
    let mut cursor = Cursor::new(payload);
    if !cursor.open(b'{')? {
        return Ok(None);
    }
    loop {
        match cursor.member()? {
            None => return Ok(None),
            Some(b"choices") => break,
            Some(_) => cursor.skip()?,
        };
    }
    if !cursor.open(b'[')? || !cursor.item()? || !cursor.open(b'{')? {
        return Ok(None);
    }
    let mut content = None;
    while let Some(name) = cursor.member()? {
        if name == part && cursor.open(b'{')? {
            while let Some(name) = cursor.member()? {
                let raw = cursor.skip()?;
                if name == b"content" {
                    content = raw.starts_with(b"\"").then(|| cursor.at() - raw.len()..cursor.at());
                }
            }
        } else if cursor.skip()? != b"0" && name == b"index" {
            return Ok(None);
        }
    }
    Ok(content)
}

/// The beginning of what is asked: `question` is the place of the newest user message's content in `messages`.
pub fn prompt(body: &Body, question: Option<(usize, usize)>) -> String {
    let mut clip = Clip::default();
    let messages = body.given("messages").unwrap_or_default();
    match question.and_then(|(from, to)| messages.get(from..to)).or(body.given("input")) {
        Some(raw @ [b'[', ..]) => push_parts(&mut clip, raw),
        Some(raw) => clip.push_json(raw),
        None => {}
    }
    clip.finish()
}

/// The texts of a list: of parts that have one, or of a list of texts.
fn push_parts(clip: &mut Clip, list: &[u8]) {
    let mut cursor = Cursor::new(list);
    if !cursor.open(b'[').is_ok_and(|opened| opened) {
        return;
    }
    let mut first = true;
    while cursor.item().is_ok_and(|more| more) && clip.chars <= CHARS_MAX {
        let Ok(part) = cursor.skip() else { return };
        let raw = if part.starts_with(b"{") { json::member(part, "text") } else { Some(part) };
        if let Some(text @ [b'"', ..]) = raw {
            clip.push(if first { "" } else { "\n" });
            clip.push_json(text);
            first = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters_and_say_how_much_is_missing() {
        let mut clip = Clip::default();
        (0..3).for_each(|_| clip.push(&"é".repeat(700)));
        let text = clip.finish();
        assert!(text.starts_with("éé") && text.ends_with("é… 600 more characters"), "{text}");
        assert_eq!(text.chars().filter(|c| *c == 'é').count(), CHARS_MAX);
        let mut clip = Clip::default();
        clip.push(&"a".repeat(CHARS_MAX));
        assert_eq!(clip.finish().len(), CHARS_MAX);
    }

    #[test]
    fn answers_are_heard_streamed_or_whole() {
        let mut clip = Clip::default();
        clip.push_frames(b"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"He\"}}]}\n\ndata: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"other\"}}]}\n\n");
        clip.push_frames(b": ping\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"llo\\n\"}}]}\n\ndata: {\"choices\":[]}\n\ndata: [DONE]\n\n");
        assert_eq!(clip.finish(), "Hello\n");
        let mut clip = Clip::default();
        clip.push_whole(br#"{"choices":[{"message":{"role":"assistant","content":"Hi"},"index":0}]}"#);
        clip.push_whole(br#"{"choices":[{"message":{"content":null,"tool_calls":[]}}]}"#);
        clip.push_whole(b"nonsense");
        assert_eq!(clip.finish(), "Hi");
    }

    #[test]
    fn the_question_is_found_in_every_shape() {
        let check = |body: &str, content: &str, expected: &str| {
            let body = Body::parse(body.as_bytes().to_vec()).expect("a body");
            let messages = body.given("messages").unwrap_or_default();
            let at = memchr::memmem::find(messages, content.as_bytes()).filter(|_| !content.is_empty());
            assert_eq!(prompt(&body, at.map(|at| (at, at + content.len()))), expected);
        };
        check(r#"{"messages":[{"role":"user","content":"a\nb"}]}"#, r#""a\nb""#, "a\nb");
        let parts = r#"[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"here"}]"#;
        check(&format!(r#"{{"messages":[{{"content":{parts}}}]}}"#), parts, "look\nhere");
        check(r#"{"input":["one","two"]}"#, "", "one\ntwo");
        check(r#"{"input":[[1,2]]}"#, "", "");
        check(r#"{"messages":[]}"#, "", "");
    }
}
