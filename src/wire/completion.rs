//! A whole JSON answer to a chat request: is it an answer at all, and if so, in the form our clients can rely on. What
//! is in order stays byte for byte.
use super::answer::{NoAnswer, Why, flawed, gives_reason, object_text, text_of_parts};
use super::choice::finish_word;
use super::head::{self, Fallback, Head, Present};
use super::json::{self, Cursor, Flaw};
use super::patch::{Patch, Track};
use super::tally::Tally;
use super::usage::{Usage, UsageTap};
use super::whole_calls;

/// A good answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the client gets.
    pub body: Vec<u8>,
    /// As the upstream counted; `None` when it did not.
    pub usage: Option<Usage>,
    /// All output, for an estimate.
    pub output: Tally,
    /// Of the first choice.
    pub finish_reason: String,
    /// How many choices it has.
    pub choices: usize,
}

/// Judges the body of a 200 and puts it right: `id`, `object`, `created`, `model` are there and of the right type, each
/// choice has index, message and finish reason, tool calls have ids and textual arguments, counts are whole numbers.
pub fn check(body: &[u8], fallback: Fallback) -> Result<Completion, NoAnswer> {
    let text = object_text(body)?;
    let mut patch = Patch::default();
    let mut reading = Reading::default();
    reading.read(&text, fallback, &mut patch).map_err(|flaw| flawed(flaw, &text))?;
    let usage = reading.usage.usage();
    let no = |why: Why| Err(NoAnswer { why, usage });
    if reading.failed || (reading.choices == 0 && gives_reason(&text)) {
        return no(Why::Error(text.into_owned()));
    }
    if reading.choices == 0 {
        return no(Why::NoChoices);
    }
    if !reading.answer {
        return no(Why::Empty);
    }
    let mut out = Vec::with_capacity(text.len() + 128);
    patch.apply(&text, &mut out);
    Ok(Completion {
        body: out,
        usage,
        output: reading.output,
        finish_reason: reading.finish_reason,
        choices: reading.choices,
    })
}

#[derive(Default)]
struct Reading {
    usage: UsageTap,
    output: Tally,
    choices: usize,
    finish_reason: String,
    /// Something was said, or the finish reason explains why not.
    answer: bool,
    failed: bool,
    salt: String,
}

/// What was found in one message.
#[derive(Default)]
struct Message {
    output: bool,
    calls: bool,
    /// A `function_call`.
    older_call: bool,
}

impl Reading {
    fn read(&mut self, text: &[u8], fallback: Fallback, patch: &mut Patch) -> Result<(), Flaw> {
        let id = fallback.id.as_str();
        self.salt = id.get(id.len().saturating_sub(12)..).unwrap_or(id).to_owned();
        let (mut head, mut present) = (Head::new(head::COMPLETION, fallback), Present::default());
        let mut cursor = Cursor::new(text);
        cursor.open(b'{')?;
        let mut top = Track::new(cursor.at());
        let mut given_usage = None;
        while let Some(name) = cursor.member()? {
            let name_at = cursor.name_at();
            top.begin(name_at, patch);
            if name == b"choices" && cursor.open(b'[')? {
                self.read_choices(&mut cursor, patch)?;
                top.keep(cursor.at());
                continue;
            }
            let raw = cursor.skip()?;
            let span = cursor.at() - raw.len()..cursor.at();
            match name {
                b"usage" => {
                    self.usage.read(raw);
                    given_usage = Some((raw, span));
                }
                b"error" => {
                    self.failed |= !json::is_blank(Some(raw)) && raw != b"false";
                    top.remove(name_at, cursor.at(), patch);
                    continue;
                }
                b"x_groq" => self.usage.read(json::member(raw, "usage").unwrap_or_default()),
                _ => head.read(name, raw, span, &mut present, patch),
            }
            top.keep(cursor.at());
        }
        let end = cursor.at() - 1;
        cursor.end()?;
        top.close(end, patch);
        head.complete(&present, &mut top, patch);
        let Some(usage) = self.usage.usage() else { return Ok(()) };
        match given_usage {
            Some((raw, _)) if is_clean(raw, usage)? => {}
            Some((_, span)) => patch.replace_with(span, |pool| self.usage.write(usage, pool)),
            None => {
                let mut object = Vec::new();
                self.usage.write(usage, &mut object);
                top.add("usage", &object, patch);
            }
        }
        Ok(())
    }

    fn read_choices(&mut self, cursor: &mut Cursor<'_>, patch: &mut Patch) -> Result<(), Flaw> {
        while cursor.item()? {
            if cursor.open(b'{')? {
                self.read_choice(cursor, patch)?;
                self.choices += 1;
            } else {
                cursor.skip()?;
            }
        }
        Ok(())
    }

    fn read_choice(&mut self, cursor: &mut Cursor<'_>, patch: &mut Patch) -> Result<(), Flaw> {
        let mut track = Track::new(cursor.at());
        let (mut has_index, mut finish, mut message) = (false, None, None);
        while let Some(name) = cursor.member()? {
            let name_at = cursor.name_at();
            track.begin(name_at, patch);
            if matches!(name, b"message" | b"delta") && message.is_none() && cursor.peek() == Some(b'{') {
                if name == b"delta" {
                    patch.replace(name_at..name_at + 7, b"\"message\"");
                }
                message = Some(self.read_message(cursor, patch)?);
                track.keep(cursor.at());
                continue;
            }
            let raw = cursor.skip()?;
            let span = cursor.at() - raw.len()..cursor.at();
            match name {
                b"message" | b"delta" => {
                    track.remove(name_at, cursor.at(), patch);
                    continue;
                }
                b"usage" => {
                    self.usage.read(raw);
                    track.remove(name_at, cursor.at(), patch);
                    continue;
                }
                b"index" => {
                    has_index = true;
                    if json::whole(raw).is_none() {
                        patch.replace(span, self.choices.to_string().as_bytes());
                    }
                }
                b"finish_reason" => finish = Some((raw, span)),
                _ => {}
            }
            track.keep(cursor.at());
        }
        track.close(cursor.at() - 1, patch);
        if !has_index {
            track.add("index", self.choices.to_string().as_bytes(), patch);
        }
        if message.is_none() {
            track.add("message", br#"{"role":"assistant","content":null}"#, patch);
        }
        let message = message.unwrap_or_default();
        let given = finish.as_ref().and_then(|(raw, _)| json::text(raw)).unwrap_or_default();
        let reason = match finish_word(&given) {
            "" if message.calls => "tool_calls",
            "" if message.older_call => "function_call",
            "" => "stop",
            word => word,
        };
        let quoted = json::quoted(reason);
        match finish {
            Some((raw, _)) if raw == quoted => {}
            Some((_, span)) => patch.replace(span, &quoted),
            None => track.add("finish_reason", &quoted, patch),
        }
        self.answer |= message.output || matches!(reason, "length" | "content_filter");
        self.failed |= matches!(reason, "error" | "insufficient_system_resource");
        if self.choices == 0 {
            self.finish_reason = reason.to_owned();
        }
        Ok(())
    }

    fn read_message(&mut self, cursor: &mut Cursor<'_>, patch: &mut Patch) -> Result<Message, Flaw> {
        cursor.open(b'{')?;
        let mut track = Track::new(cursor.at());
        let mut message = Message::default();
        let (mut has_role, mut has_content, mut thinking) = (false, false, String::new());
        while let Some(name) = cursor.member()? {
            let name_at = cursor.name_at();
            track.begin(name_at, patch);
            let raw = cursor.skip()?;
            let span = cursor.at() - raw.len()..cursor.at();
            match name {
                b"role" => {
                    has_role = true;
                    if raw != b"\"assistant\"" {
                        patch.replace(span, b"\"assistant\"");
                    }
                }
                b"content" if raw.starts_with(b"[") => {
                    has_content = true;
                    let parts = text_of_parts(raw);
                    message.output |= !parts.text.is_empty() || !parts.thinking.is_empty();
                    self.output.text(&parts.text);
                    self.output.text(&parts.thinking);
                    patch.replace_with(span, |pool| json::quote(&parts.text, pool));
                    thinking = parts.thinking;
                }
                b"content" | b"reasoning_content" | b"reasoning" | b"refusal" => {
                    has_content |= name == b"content";
                    if raw.starts_with(b"\"") {
                        message.output |= raw.len() > 2;
                        self.output.json(raw);
                    }
                }
                b"tool_calls" if !raw.starts_with(b"[") || json::is_blank(Some(raw)) => {
                    track.remove(name_at, cursor.at(), patch);
                    continue;
                }
                b"tool_calls" => {
                    (message.output, message.calls) = (true, true);
                    self.output.json(raw);
                    self.tidy_calls(raw, span.start, patch)?;
                }
                b"function_call" if !json::is_blank(Some(raw)) => {
                    (message.output, message.older_call) = (true, true);
                    self.output.json(raw);
                    whole_calls::tidy_older(raw, span.start, patch)?;
                }
                b"audio" | b"reasoning_details" => {
                    message.output |= !json::is_blank(Some(raw));
                }
                _ => {}
            }
            track.keep(cursor.at());
        }
        track.close(cursor.at() - 1, patch);
        if !has_role {
            track.add("role", b"\"assistant\"", patch);
        }
        if !has_content {
            track.add("content", b"null", patch);
        }
        if !thinking.is_empty() {
            track.add("reasoning_content", &json::quoted(&thinking), patch);
        }
        Ok(message)
    }

    fn tidy_calls(&self, raw: &[u8], base: usize, patch: &mut Patch) -> Result<(), Flaw> {
        let mut made = 0;
        let mut id_rule = |given: Option<&[u8]>| {
            given.is_none().then(|| {
                made += 1;
                json::quoted(&format!("call_{}_{}_{}", self.salt, self.choices, made - 1))
            })
        };
        whole_calls::tidy(raw, base, &mut id_rule, &[], patch)
    }
}

/// Whether a usage object says what `usage` says, in whole numbers.
fn is_clean(raw: &[u8], usage: Usage) -> Result<bool, Flaw> {
    let mut cursor = Cursor::new(raw);
    if !cursor.open(b'{')? {
        return Ok(false);
    }
    let (mut prompt, mut completion, mut total) = (None, None, None);
    while let Some(name) = cursor.member()? {
        let value = cursor.skip()?;
        let plain = || json::whole(value).filter(|_| value.iter().all(u8::is_ascii_digit));
        match name {
            b"prompt_tokens" => prompt = plain(),
            b"completion_tokens" => completion = plain(),
            b"total_tokens" => total = plain(),
            _ => {}
        }
    }
    Ok((prompt, completion, total) == (Some(usage.prompt), Some(usage.completion), Some(usage.total)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fallback() -> Fallback {
        Fallback { id: "chatcmpl-0123456789ab".into(), created_s: 7, model: "m".into() }
    }

    fn good(body: &str) -> (Completion, Value) {
        let completion = check(body.as_bytes(), fallback()).expect(body);
        let value = serde_json::from_slice(&completion.body).expect("valid JSON");
        (completion, value)
    }

    fn no(body: &str) -> NoAnswer {
        check(body.as_bytes(), fallback()).expect_err(body)
    }

    /// An answer with one choice.
    fn choice(choice: &str) -> String {
        format!(r#"{{"id":"x","object":"chat.completion","created":1,"model":"u","choices":[{choice}]}}"#)
    }

    #[test]
    fn an_answer_in_order_is_copied_byte_for_byte() {
        let body = r#"{ "id":"x","object":"chat.completion","created":1744105600,"model":"u","x":9007199254740993,"choices":[{"index":0,"message":{"role":"assistant","content":"h\u00e9 1.0","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10,"completion_tokens_details":{"reasoning_tokens":0}} }"#;
        let (completion, _) = good(body);
        assert_eq!(String::from_utf8(completion.body).expect("UTF-8"), body);
        assert_eq!(completion.usage, Some(Usage { prompt: 9, completion: 1, total: 10, estimated: false }));
        assert_eq!(
            (completion.finish_reason.as_str(), completion.choices, completion.output.ascii),
            ("stop", 1, 5)
        );
    }

    #[test]
    fn w10_err_03_what_is_no_answer_is_told_apart() {
        for (body, why) in [
            ("<!doctype", Why::Html),
            ("", Why::Truncated),
            (r#"{"id":"x","choices":[{"index":0,"message":{"content":"par"#, Why::Truncated),
            (r#"{"a":tr"#, Why::Truncated),
            (r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]"#, Why::Truncated),
            (r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]} more"#, Why::NotJson),
            (r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop",}]}"#, Why::NotJson),
            ("ok", Why::NotJson),
            ("{}", Why::NoChoices),
            (r#"{"choices":{}}"#, Why::NoChoices),
            (r#"{"choices":[null]}"#, Why::NoChoices),
        ] {
            assert_eq!(no(body), NoAnswer { why, usage: None }, "{body}");
        }
        for body in [
            r#"{"error":{"message":"HTTP 429: slow down","code":429}}"#,
            r#"[{"error":{"code":400,"message":"x"}}]"#,
            r#"{"detail":"x"}"#,
            r#"{"choices":[{"message":{"content":"x"},"finish_reason":"error"}]}"#,
            r#"{"error":{"message":"x"},"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}"#,
        ] {
            assert_eq!(no(body).why, Why::Error(body.as_bytes().to_vec()), "{body}");
        }
    }

    #[test]
    fn err_02_no_choices_are_no_answer_but_counted() {
        let answer = no(
            r#"{"id":"x","object":"chat.completion","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":0,"total_tokens":5}}"#,
        );
        assert_eq!(answer.why, Why::NoChoices);
        assert_eq!(answer.usage.map(|usage| usage.prompt), Some(5));
    }

    #[test]
    fn req_14_odd_types_are_put_right() {
        let (completion, value) = good(
            r#"{"created":1744105600.37,"id":null,"choices":[{"message":{"content":"hi"}}],"error":null,"usage":{"prompt_tokens":1.0,"completion_tokens":1,"total_tokens":2,"x":{"cached_tokens":0}}}"#,
        );
        assert_eq!(
            value,
            json!({"created": 1744105600, "id": "chatcmpl-0123456789ab", "object": "chat.completion", "model": "m",
                "choices": [{"message": {"content": "hi", "role": "assistant"}, "index": 0, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "x": {"cached_tokens": 0}}})
        );
        assert_eq!(completion.usage.map(|usage| usage.total), Some(2));
    }

    #[test]
    fn b17_usage_is_found_elsewhere() {
        let (_, value) = good(
            r#"{"choices":[{"message":{"content":"hi"}}],"x_groq":{"usage":{"prompt_tokens":3,"completion_tokens":1}}}"#,
        );
        assert_eq!(value["usage"], json!({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}));
        let (completion, value) = good(&choice(r#"{"message":{"content":"hi"}}"#));
        assert_eq!((completion.usage, value.get("usage")), (None, None));
    }

    #[test]
    fn fo_07_an_empty_answer_that_is_explained_passes() {
        for reason in ["length", "content_filter"] {
            let body = format!(
                r#"{{"id":"x","object":"chat.completion","created":1,"model":"u","choices":[{{"index":0,"message":{{"role":"assistant","content":""}},"finish_reason":"{reason}"}}],"usage":{{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10,"completion_tokens_details":{{"reasoning_tokens":1}}}}}}"#
            );
            assert_eq!(good(&body).0.body, body.as_bytes());
        }
    }

    #[test]
    fn fo_08_an_empty_answer_that_is_not_explained_is_none() {
        for message in [
            r#"{"role":"assistant","content":""}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[],"refusal":null}"#,
            r#"{"role":"assistant","content":[]}"#,
            "{}",
            "null",
        ] {
            let body = choice(&format!(r#"{{"index":0,"message":{message},"finish_reason":"stop"}}"#));
            assert_eq!(no(&body).why, Why::Empty, "{body}");
        }
        for message in [
            r#"{"role":"assistant","content":null,"refusal":"no"}"#,
            r#"{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}"#,
            r#"{"role":"assistant","content":"","reasoning_content":"hm"}"#,
        ] {
            good(&choice(&format!(r#"{{"index":0,"message":{message},"finish_reason":"stop"}}"#)));
        }
    }

    #[test]
    fn tool_03_04_calls_in_the_older_spelling_are_put_right() {
        let told = |arguments: &str, finish: &str| {
            let body = choice(&format!(
                r#"{{"index":0,"message":{{"role":"assistant","content":null,"function_call":{{"name":"f"{arguments}}}}}{finish}}}"#
            ));
            let (completion, value) = good(&body);
            (value["choices"][0]["message"]["function_call"]["arguments"].clone(), completion.finish_reason)
        };
        let finish = r#","finish_reason":"function_call""#;
        for (arguments, expected) in [
            (r#","arguments":{"id":9007199254740993}"#, r#"{"id":9007199254740993}"#),
            (r#","arguments":"""#, "{}"),
            ("", "{}"),
            (r#","arguments":"{\"a\":1}""#, r#"{"a":1}"#),
        ] {
            assert_eq!(told(arguments, finish), (json!(expected), "function_call".to_owned()), "{arguments}");
        }
        assert_eq!(told(r#","arguments":"{}""#, "").1, "function_call");
    }

    #[test]
    fn tool_03_04_calls_are_put_right() {
        let body = |arguments: &str| {
            choice(&format!(
                r#"{{"index":0,"message":{{"role":"assistant","content":null,"tool_calls":[{{"id":"c1","type":"function","function":{{"name":"write","arguments":{arguments}}}}}]}},"finish_reason":"tool_calls"}}"#
            ))
        };
        let arguments = |body: &str| {
            let (_, value) = good(body);
            value["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].clone()
        };
        assert_eq!(
            arguments(&body(r#"{"path":"a.txt","id":9007199254740993}"#)),
            r#"{"path":"a.txt","id":9007199254740993}"#
        );
        assert_eq!(arguments(&body(r#""""#)), "{}");
        let bare =
            choice(r#"{"message":{"tool_calls":[{"function":{"name":"f"}},{"function":{"name":"g"}}]}}"#);
        let (completion, value) = good(&bare);
        let calls = &value["choices"][0]["message"]["tool_calls"];
        assert_eq!(completion.finish_reason, "tool_calls");
        assert_eq!(
            (&calls[0]["type"], &calls[0]["id"]),
            (&json!("function"), &json!("call_0123456789ab_0_0"))
        );
        assert_eq!(calls[1]["id"], "call_0123456789ab_0_1");
    }

    #[test]
    fn content_is_text_and_finish_words_are_openais() {
        let (_, value) = good(&choice(
            r#"{"index":0,"message":{"role":"model","content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"42"}]},"finish_reason":"end_turn"}"#,
        ));
        assert_eq!(
            value["choices"][0],
            json!({"index": 0, "message": {"role": "assistant", "content": "42", "reasoning_content": "hm"}, "finish_reason": "stop"})
        );
        let (completion, _) = good(&choice(
            r#"{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"},{"index":1,"message":{"role":"assistant","content":"b"},"finish_reason":"length"}"#,
        ));
        assert_eq!(completion.choices, 2);
    }
}
