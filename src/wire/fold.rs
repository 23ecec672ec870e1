//! The two crossings between streams and whole answers: upstreams stream to clients that did not ask for it, and answer
//! whole to clients that did. Neither is common, so both are built on the common path.
use serde_json::{Map, Value, json};

use super::chunk::{ChunkShaper, End, ShapeOptions};
use super::usage::Usage;

/// Makes a stream of a whole answer: role and content, finish, usage if asked for, `[DONE]`. `body` is one that
/// [`super::completion::check`] has passed.
pub fn unfold(body: &[u8], options: ShapeOptions, estimate: Usage, out: &mut Vec<u8>) -> End {
    let mut shaper = ChunkShaper::new(options);
    shaper.data(body, out);
    shaper.end(estimate, out)
}

/// Makes a whole answer of the frames of a complete stream, as a [`ChunkShaper`] appended them. Usage is there if the
/// shaper was told to include it.
pub fn fold(frames: &[u8]) -> Vec<u8> {
    let mut answer = Map::new();
    let mut choices: Vec<Value> = Vec::new();
    for payload in frames.split(|b| *b == b'\n').filter_map(|line| line.strip_prefix(b"data: ")) {
        let Ok(Value::Object(chunk)) = serde_json::from_slice(payload) else { continue };
        for (name, value) in chunk {
            match value {
                Value::Array(list) if name == "choices" => {
                    list.into_iter().for_each(|choice| merge_choice(&mut choices, choice))
                }
                Value::Null => {}
                value => {
                    answer.insert(name, value);
                }
            }
        }
    }
    answer.insert("object".into(), "chat.completion".into());
    choices.sort_by_key(|choice| choice["index"].as_u64());
    choices.iter_mut().for_each(complete_choice);
    answer.insert("choices".into(), choices.into());
    Value::Object(answer).to_string().into_bytes()
}

fn merge_choice(choices: &mut Vec<Value>, piece: Value) {
    let index = piece["index"].clone();
    let at = choices.iter().position(|choice| choice["index"] == index).unwrap_or_else(|| {
        choices.push(
            json!({"index": index, "message": {"role": "assistant", "content": null}, "finish_reason": null}),
        );
        choices.len() - 1
    });
    let Value::Object(piece) = piece else { return };
    for (name, value) in piece {
        match name.as_str() {
            "delta" => merge_members(&mut choices[at]["message"], value),
            "index" => {}
            _ => merge(&mut choices[at][name.as_str()], value),
        }
    }
}

fn merge_members(target: &mut Value, piece: Value) {
    let Value::Object(piece) = piece else { return };
    for (name, value) in piece {
        match (name.as_str(), value) {
            ("role", _) => {}
            // Names of what something is are told once, not in pieces.
            ("id" | "type" | "index" | "format", value) => {
                if !value.is_null() {
                    target[name] = value;
                }
            }
            ("tool_calls", Value::Array(calls)) => {
                calls.into_iter().for_each(|call| merge_call(target, call))
            }
            (_, value) => merge(&mut target[name], value),
        }
    }
}

fn merge_call(message: &mut Value, call: Value) {
    if !message["tool_calls"].is_array() {
        message["tool_calls"] = json!([]);
    }
    let Some(calls) = message["tool_calls"].as_array_mut() else { return };
    let at = calls.iter().position(|known| known["index"] == call["index"]).unwrap_or_else(|| {
        calls.push(json!({}));
        calls.len() - 1
    });
    merge_members(&mut calls[at], call);
}

/// Adds a piece to what is there: texts and lists grow, objects member by member, anything else is replaced.
fn merge(target: &mut Value, piece: Value) {
    match (target, piece) {
        (_, Value::Null) => {}
        (Value::String(text), Value::String(more)) => text.push_str(&more),
        (Value::Array(list), Value::Array(more)) => list.extend(more),
        (target @ Value::Object(_), piece @ Value::Object(_)) => merge_members(target, piece),
        (target, piece) => *target = piece,
    }
}

/// Whole answers number no calls.
fn complete_choice(choice: &mut Value) {
    let calls = choice.pointer_mut("/message/tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten().filter_map(Value::as_object_mut) {
        call.remove("index");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::completion;
    use crate::wire::head::Fallback;

    fn options(include_usage: bool) -> ShapeOptions {
        ShapeOptions {
            include_usage,
            fallback_id: "chatcmpl-1".into(),
            created_s: 7,
            model: "m".into(),
            n: 1,
        }
    }

    /// The frames of a stream of these payloads.
    fn frames(payloads: &[&str]) -> Vec<u8> {
        let (mut shaper, mut out) = (ChunkShaper::new(options(true)), Vec::new());
        for payload in payloads {
            shaper.data(payload.as_bytes(), &mut out);
        }
        assert_eq!(shaper.end(Usage::estimate(3, 2), &mut out), End::Complete);
        out
    }

    fn folded(payloads: &[&str]) -> Value {
        let whole = fold(&frames(payloads));
        let fallback = Fallback { id: String::new(), created_s: 0, model: String::new() };
        let checked = completion::check(&whole, fallback).expect("a fold is a good answer");
        assert_eq!(checked.body, whole, "and in order");
        serde_json::from_slice(&whole).expect("valid JSON")
    }

    #[test]
    fn sse_15_a_stream_becomes_one_answer() {
        assert_eq!(
            folded(&[
                r#"{"id":"c","system_fingerprint":"fp","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"h"}}]}"#,
                r#"{"id":"c","choices":[{"index":0,"delta":{"content":"he","reasoning":"m"},"logprobs":{"content":[{"token":"he"}]}}]}"#,
                r#"{"id":"c","choices":[{"index":0,"delta":{"content":"llo"},"logprobs":{"content":[{"token":"llo"}]}}]}"#,
                r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
                "[DONE]",
            ]),
            json!({"id": "c", "object": "chat.completion", "created": 7, "model": "m", "system_fingerprint": "fp",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello", "reasoning": "hm"},
                    "logprobs": {"content": [{"token": "he"}, {"token": "llo"}]}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})
        );
    }

    #[test]
    fn calls_and_choices_are_put_together() {
        let value = folded(&[
            r#"{"choices":[{"index":1,"delta":{"content":"b"},"finish_reason":"stop"},{"index":0,"delta":{"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\""},"extra_content":{"s":"x"}}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":":1}"}},{"index":1,"id":"c2","function":{"name":"g"}}]}}]}"#,
            "[DONE]",
        ]);
        let message = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}, "extra_content": {"s": "x"}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]});
        assert_eq!(
            value["choices"][0],
            json!({"index": 0, "message": message, "finish_reason": "tool_calls"})
        );
        assert_eq!(value["choices"][1]["message"]["content"], "b");
    }

    #[test]
    fn sse_14_an_answer_becomes_a_stream() {
        let body = r#"{"id":"c1","object":"chat.completion","created":5,"model":"u","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
        let run = |include_usage| {
            let mut out = Vec::new();
            assert_eq!(
                unfold(body.as_bytes(), options(include_usage), Usage::default(), &mut out),
                End::Complete
            );
            String::from_utf8(out).expect("UTF-8")
        };
        let head = r#"data: {"id":"c1","object":"chat.completion.chunk","created":5,"model":"u","choices":["#;
        let content = format!(
            r#"{head}{{"index":0,"delta":{{"role":"assistant","content":"hi"}},"finish_reason":null}}]}}"#
        );
        let finish = format!(r#"{head}{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}"#);
        let usage =
            format!(r#"{head}],"usage":{{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}}}"#);
        assert_eq!(run(false), format!("{content}\n\n{finish}\n\ndata: [DONE]\n\n"));
        assert_eq!(run(true), format!("{content}\n\n{finish}\n\n{usage}\n\ndata: [DONE]\n\n"));
    }

    #[test]
    fn there_and_back_changes_nothing() {
        let body = r#"{"choices":[{"finish_reason":"tool_calls","index":0,"message":{"content":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"f"},"id":"c1","type":"function"}]}}],"created":5,"id":"c1","model":"u","object":"chat.completion","usage":{"completion_tokens":1,"prompt_tokens":1,"total_tokens":2}}"#;
        let mut out = Vec::new();
        unfold(body.as_bytes(), options(true), Usage::default(), &mut out);
        assert_eq!(String::from_utf8(fold(&out)).expect("UTF-8"), body);
    }
}
