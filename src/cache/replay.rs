//! A kept answer given again: with an id and a time of its own, and in the form that is asked for now, whatever form it
//! came in. Pure.
use serde_json::{Map, Value};

use crate::wire::json::{self, Cursor, Flaw};

/// What is different each time.
#[derive(Clone, Debug)]
pub struct Fresh {
    pub id: String,
    /// Seconds since 1970.
    pub created_s: u64,
}

/// The whole answer. Vectors have neither an id nor a time, and are given as they are.
pub fn whole(body: &[u8], fresh: &Fresh) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 64);
    // A kept answer has no flaw. Should there be one, what comes after it stays as it is.
    let mut copied = 0;
    let _ = renew_head(body, fresh, &mut out, &mut copied);
    out.extend_from_slice(&body[copied..]);
    out
}

/// Writes the body up to and with the last member that is different each time; `copied` is how much of it that was.
fn renew_head(body: &[u8], fresh: &Fresh, out: &mut Vec<u8>, copied: &mut usize) -> Result<(), Flaw> {
    let mut cursor = Cursor::new(body);
    if !cursor.open(b'{')? {
        return Ok(());
    }
    while let Some(name) = cursor.member()? {
        let raw = cursor.skip()?;
        if matches!(name, b"id" | b"created") {
            out.extend_from_slice(&body[*copied..cursor.at() - raw.len()]);
            match name {
                b"id" => json::quote(&fresh.id, out),
                _ => out.extend_from_slice(fresh.created_s.to_string().as_bytes()),
            }
            *copied = cursor.at();
        }
    }
    Ok(())
}

/// Characters in one frame of text.
const FRAME_CHARS: usize = 24;
/// Frames are passed on when they have come to this many bytes: one write for many of them.
const PASS_BYTES: usize = 32 * 1024;

/// The chat answer as a stream, up to and with `[DONE]`. Frames go to `pass` as they come to a good size; the last ones
/// are returned. `None` for a body that is no chat answer.
pub fn stream(
    body: &[u8],
    fresh: &Fresh,
    include_usage: bool,
    pass: &mut dyn FnMut(&[u8]),
) -> Option<Vec<u8>> {
    let Ok(Value::Object(mut answer)) = serde_json::from_slice(body) else { return None };
    let Some(Value::Array(choices)) = answer.remove("choices") else { return None };
    let usage = answer.remove("usage").filter(|usage| include_usage && usage.is_object());
    let mut writer = Writer { head: head(answer, fresh), out: Vec::new(), pass };
    for choice in choices {
        let Value::Object(choice) = choice else { continue };
        writer.choice(choice);
    }
    let Writer { head, mut out, .. } = writer;
    if let Some(usage) = usage {
        out.extend_from_slice(&head);
        out.extend_from_slice(format!("],\"usage\":{usage}}}\n\n").as_bytes());
    }
    out.extend_from_slice(b"data: [DONE]\n\n");
    Some(out)
}

/// What every frame begins with, up to the list of choices.
fn head(mut answer: Map<String, Value>, fresh: &Fresh) -> Vec<u8> {
    answer.insert("id".into(), fresh.id.as_str().into());
    answer.insert("object".into(), "chat.completion.chunk".into());
    answer.insert("created".into(), fresh.created_s.into());
    let mut head = b"data: ".to_vec();
    head.extend_from_slice(Value::Object(answer).to_string().as_bytes());
    // It holds members, so the closing brace can make room for one more.
    head.pop();
    head.extend_from_slice(b",\"choices\":[");
    head
}

struct Writer<'p> {
    head: Vec<u8>,
    out: Vec<u8>,
    pass: &'p mut dyn FnMut(&[u8]),
}

impl Writer<'_> {
    fn choice(&mut self, mut choice: Map<String, Value>) {
        let index = choice.remove("index").unwrap_or(Value::from(0));
        let finish = choice.remove("finish_reason").unwrap_or_else(|| "stop".into());
        let mut message = match choice.remove("message") {
            Some(Value::Object(message)) => message,
            _ => Map::new(),
        };
        let content = message.remove("content").unwrap_or_default();
        let blank: Value = if content.is_string() { "".into() } else { Value::Null };
        let role = message.remove("role").unwrap_or_else(|| "assistant".into());
        let calls = message.remove("tool_calls");
        self.delta(&index, &format!("{{\"role\":{role},\"content\":{blank}}}"), "");
        // Whatever else is text is reasoning or a refusal, and all but the latter comes before the answer.
        let refusal = message.remove("refusal");
        for (name, value) in message {
            self.member(&index, &name, value, "");
        }
        let logprobs = choice.remove("logprobs").filter(|logprobs| !logprobs.is_null());
        let logprobs = logprobs.map(|logprobs| format!(",\"logprobs\":{logprobs}")).unwrap_or_default();
        self.member(&index, "content", content, &logprobs);
        self.member(&index, "refusal", refusal.unwrap_or_default(), "");
        if let Some(Value::Array(calls)) = calls {
            for (at, mut call) in calls.into_iter().enumerate() {
                call["index"] = at.into();
                self.delta(&index, &format!("{{\"tool_calls\":[{call}]}}"), "");
            }
        }
        self.frame(&format!("{{\"index\":{index},\"delta\":{{}},\"finish_reason\":{finish}"));
        // What an upstream adds to a choice goes with its end.
        for (name, value) in choice {
            self.out.push(b',');
            json::quote(&name, &mut self.out);
            self.out.extend_from_slice(format!(":{value}").as_bytes());
        }
        self.out.extend_from_slice(b"}]}\n\n");
    }

    /// One member of a message: a text in frames, anything else whole, nothing for `null`. `beside` goes with the first
    /// frame.
    fn member(&mut self, index: &Value, name: &str, value: Value, beside: &str) {
        match value {
            Value::Null => {}
            Value::String(text) => {
                let mut beside = beside;
                for piece in pieces(&text) {
                    let mut delta = vec![b'{'];
                    json::quote(name, &mut delta);
                    delta.push(b':');
                    json::quote(piece, &mut delta);
                    delta.push(b'}');
                    self.delta(index, &String::from_utf8_lossy(&delta), std::mem::take(&mut beside));
                }
            }
            value => self.delta(index, &format!("{{{}:{value}}}", Value::from(name)), beside),
        }
    }

    fn delta(&mut self, index: &Value, delta: &str, beside: &str) {
        self.frame(&format!("{{\"index\":{index},\"delta\":{delta}{beside},\"finish_reason\":null}}]}}\n\n"));
    }

    fn frame(&mut self, rest: &str) {
        if self.out.len() >= PASS_BYTES {
            (self.pass)(&self.out);
            self.out.clear();
        }
        self.out.extend_from_slice(&self.head);
        self.out.extend_from_slice(rest.as_bytes());
    }
}

/// Cuts a text into frames, between characters, and not within what is seen as one character if that can be helped.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(cut(rest));
        rest = after;
        Some(piece)
    })
}

/// Where the first frame of a text ends.
fn cut(text: &str) -> usize {
    let mut ends = [0; FRAME_CHARS];
    let mut chars = text.char_indices();
    for end in &mut ends {
        match chars.next() {
            Some((at, c)) => *end = at + c.len_utf8(),
            None => return text.len(),
        }
    }
    let whole = |end: &&usize| {
        let (before, after) = text.split_at(**end);
        !after.chars().next().is_some_and(joins) && !before.ends_with(JOINER)
    };
    ends.iter().rev().find(whole).copied().unwrap_or(ends[FRAME_CHARS - 1])
}

/// Zero width joiner: what stands on both its sides is seen as one.
const JOINER: char = '\u{200d}';

/// Whether a character belongs to the one before it: accents, variation selectors, skin tones, keycaps.
fn joins(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | JOINER | '\u{20d0}'..='\u{20ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{1f3fb}'..='\u{1f3ff}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::fold::fold;

    fn fresh() -> Fresh {
        Fresh { id: "chatcmpl-new".into(), created_s: 99 }
    }

    fn answer(choices: Value) -> Value {
        json!({"id": "old", "object": "chat.completion", "created": 1, "model": "u", "system_fingerprint": "fp",
            "choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})
    }

    /// All frames of a replay.
    fn frames(answer: &Value, include_usage: bool) -> Vec<u8> {
        let mut all = Vec::new();
        let last = stream(answer.to_string().as_bytes(), &fresh(), include_usage, &mut |frames| {
            all.extend_from_slice(frames);
        });
        all.extend(last.expect("it is a chat answer"));
        all
    }

    fn chunks(frames: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(frames).expect("UTF-8");
        let (chunks, end) = text.split_at(text.len() - "data: [DONE]\n\n".len());
        assert_eq!(end, "data: [DONE]\n\n");
        let payload =
            |frame: &str| serde_json::from_str(frame.strip_prefix("data: ").expect("data")).expect(frame);
        chunks.split_terminator("\n\n").map(payload).collect()
    }

    #[test]
    fn a_whole_answer_gets_an_id_and_a_time_of_its_own_and_keeps_every_other_byte() {
        let body = r#"{ "id" : "old","x":9007199254740993,"created":1 ,"choices":[{"id":"a","created":2}]}"#;
        let given = String::from_utf8(whole(body.as_bytes(), &fresh())).expect("UTF-8");
        assert_eq!(
            given,
            r#"{ "id" : "chatcmpl-new","x":9007199254740993,"created":99 ,"choices":[{"id":"a","created":2}]}"#
        );
        let vectors = br#"{"object":"list","data":[{"embedding":[0.10,1e-7]}]}"#;
        assert_eq!(whole(vectors, &fresh()), vectors);
    }

    /// The whole of a stream, by the code that puts real streams together.
    fn refolded(answer: &Value) -> Value {
        serde_json::from_slice(&fold(&frames(answer, true))).expect("JSON")
    }

    #[test]
    fn b4_cache_04_a_stream_says_all_that_the_answer_says() {
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":\"é\"}"}});
        for choices in [
            json!([{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]),
            json!([{"index": 0, "message": {"role": "assistant", "content": "x".repeat(1_000), "reasoning_content": "hm ".repeat(50)}, "finish_reason": "stop"}]),
            json!([{"index": 0, "message": {"role": "assistant", "content": null, "tool_calls": [call, call]}, "finish_reason": "tool_calls"}]),
            json!([{"index": 0, "message": {"role": "assistant", "content": null, "refusal": "I will not do that, sorry"}, "finish_reason": "stop"},
                {"index": 1, "message": {"role": "assistant", "content": "b"}, "logprobs": {"content": [{"token": "b"}]}, "finish_reason": "stop"}]),
            json!([{"index": 0, "message": {"role": "assistant", "content": "x", "annotations": [{"type": "url_citation"}]}, "finish_reason": "stop", "extra": 7}]),
        ] {
            let mut expected = answer(choices);
            (expected["id"], expected["created"]) = ("chatcmpl-new".into(), 99.into());
            assert_eq!(refolded(&expected), expected);
        }
    }

    #[test]
    fn text_comes_in_frames_of_24_characters_and_usage_only_for_who_asked() {
        let long = answer(
            json!([{"index": 0, "message": {"role": "assistant", "content": "abcdefgh".repeat(7)}, "finish_reason": "stop"}]),
        );
        let all = chunks(&frames(&long, false));
        let contents: Vec<usize> = all
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::len))
            .collect();
        assert_eq!(contents, [0, 24, 24, 8]);
        assert_eq!(all[0]["choices"][0]["delta"]["role"], "assistant");
        assert!(all.iter().all(|chunk| chunk["id"] == "chatcmpl-new" && chunk.get("usage").is_none()));
        assert!(all.iter().all(|chunk| chunk["model"] == "u" && chunk["object"] == "chat.completion.chunk"));
        let with_usage = chunks(&frames(&long, true));
        let last = with_usage.last().expect("there are chunks");
        assert_eq!((&last["choices"], &last["usage"]["total_tokens"]), (&json!([]), &json!(5)));
    }

    #[test]
    fn b4_frames_end_between_characters() {
        let check = |text: String| {
            let cut: Vec<&str> = pieces(&text).collect();
            assert_eq!(cut.concat(), text);
            assert!(cut.iter().all(|piece| piece.chars().count() <= FRAME_CHARS), "{cut:?}");
            assert!(cut.iter().all(|piece| !piece.chars().next().is_some_and(joins)), "{cut:?}");
            cut.len()
        };
        assert_eq!(check(String::new()), 0);
        assert_eq!(check("a".repeat(24)), 1);
        assert_eq!(check("😀".repeat(25)), 2);
        for before in 0..30 {
            check(format!("{}👩\u{200d}👩\u{200d}👧\u{fe0f} e\u{301}👍🏽x", "é".repeat(before)));
        }
        let endless = "\u{301}".repeat(60);
        assert_eq!(pieces(&endless).map(|piece| piece.chars().count()).collect::<Vec<_>>(), [24, 24, 12]);
    }

    #[test]
    fn many_frames_leave_in_few_writes() {
        let long = answer(
            json!([{"index": 0, "message": {"role": "assistant", "content": "x".repeat(200_000)}, "finish_reason": "stop"}]),
        );
        let (mut writes, mut largest) = (0, 0);
        let last = stream(long.to_string().as_bytes(), &fresh(), false, &mut |frames| {
            writes += 1;
            largest = largest.max(frames.len());
        });
        assert!(
            last.is_some() && (2..60).contains(&writes) && largest < 2 * PASS_BYTES,
            "{writes} {largest}"
        );
    }

    #[test]
    fn what_is_no_chat_answer_is_no_stream() {
        for body in ["", "[]", "{}", r#"{"data":[]}"#, "{\"choices\":"] {
            assert_eq!(stream(body.as_bytes(), &fresh(), true, &mut |_| ()), None, "{body}");
        }
    }
}
