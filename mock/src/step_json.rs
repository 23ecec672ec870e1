//! Steps as JSON, for the control plane. A name or value that means nothing is refused by name: a script with a typing
//! error would otherwise test nothing.
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::step::{Act, End, FOREVER, Framing, Gzip, Newline, Step, ToolCall, ToolStyle, Usage};

/// Reads one step. The error says which field is wrong and what it may be.
pub fn step(value: &Value) -> Result<Step, String> {
    let fields = value.as_object().ok_or("a step is an object")?;
    let mut step = Step::default();
    for (name, value) in fields {
        set(&mut step, name, value).map_err(|problem| format!("{name}: {problem}"))?;
    }
    Ok(step)
}

/// Reads a step or a list of steps.
pub fn steps(value: &Value) -> Result<Vec<Step>, String> {
    match value {
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(index, one)| step(one).map_err(|problem| format!("[{index}].{problem}")))
            .collect(),
        one => step(one).map(|step| vec![step]),
    }
}

fn set(step: &mut Step, name: &str, value: &Value) -> Result<(), String> {
    match name {
        "path" => step.path = Some(text(value)?),
        "model" => step.model = Some(text(value)?),
        "key" => step.key = Some(text(value)?),
        "repeat" => step.repeat = repeat(value)?,
        "status" => step.status = status(value)?,
        "headers" => step.headers = headers(value)?,
        "delayMs" => step.delay_ms = number(value)?,
        "headDripMs" => step.head_drip_ms = number(value)?,
        "bodyDelayMs" => step.body_delay_ms = number(value)?,
        "content" => step.content = Some(text(value)?),
        "reasoning" => step.reasoning = Some(text(value)?),
        "reasoningField" => step.reasoning_field = text(value)?,
        "toolCalls" => step.tool_calls = Some(tool_calls(value)?),
        "toolStyle" => {
            step.tool_style = word(value, &[("parts", ToolStyle::Parts), ("whole", ToolStyle::Whole)])?
        }
        "finish" => step.finish = Some(value.as_str().unwrap_or("null").into()),
        "choices" => step.choices = Some(size(value)?),
        "usage" => step.usage = usage(value)?,
        "dropUsage" => step.usage = if flag(value)? { Usage::None } else { step.usage },
        "usageValues" => step.usage_values = Some(value.clone()),
        "vectors" => step.vectors = vectors(value)?,
        "body" => step.body = Some(body(value)),
        "stream" => step.stream = Some(flag(value)?),
        "events" => step.events = Some(list(value)?.iter().map(payload).collect()),
        "done" => step.done = flag(value)?,
        "newline" => step.newline = newline(value)?,
        "pieceChars" => step.piece_chars = size(value)?.max(1),
        "comments" => step.comments = size(value)?,
        "errorFrame" => step.error_frame = Some(value.clone()),
        "errorAt" => step.error_at = size(value)?,
        "writes" => step.writes = Some(acts(value)?),
        "raw" => step.raw = Some(acts(value)?),
        "gzip" => step.gzip = gzip(value)?,
        "splitAt" => step.split_at = list(value)?.iter().map(size).collect::<Result<_, _>>()?,
        "splitEvery" => step.split_every = size(value)?,
        "dripMs" => step.drip_ms = number(value)?,
        "cutAt" => step.cut_at = Some(size(value)?),
        "end" => step.end = end(value)?,
        "framing" => step.framing = Some(framing(value)?),
        "hang" => step.hang = flag(value)?,
        _ => return Err("no such field of a step".into()),
    }
    Ok(())
}

fn text(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| "must be a string".into())
}

fn flag(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "must be true or false".into())
}

fn number(value: &Value) -> Result<u64, String> {
    value.as_u64().ok_or_else(|| "must be a whole number from 0 on".into())
}

fn size(value: &Value) -> Result<usize, String> {
    number(value).and_then(|number| usize::try_from(number).map_err(|_| "is too large".into()))
}

fn list(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or_else(|| "must be a list".into())
}

fn word<T: Copy>(value: &Value, known: &[(&str, T)]) -> Result<T, String> {
    let found = value.as_str().and_then(|text| known.iter().find(|(word, _)| *word == text));
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        format!("must be one of {}", words.join(", "))
    })
}

fn status(value: &Value) -> Result<u16, String> {
    number(value)
        .ok()
        .and_then(|status| u16::try_from(status).ok())
        .filter(|status| (100..=999).contains(status))
        .ok_or_else(|| "must be a number from 100 to 999".into())
}

fn repeat(value: &Value) -> Result<u32, String> {
    if value == "forever" {
        return Ok(FOREVER);
    }
    let times = number(value).map_err(|_| "must be a number from 1 on, or \"forever\"")?;
    u32::try_from(times)
        .ok()
        .filter(|times| *times > 0)
        .ok_or_else(|| "must be a number from 1 on, or \"forever\"".into())
}

/// A header with a list of values is sent once for each.
fn headers(value: &Value) -> Result<Vec<(String, String)>, String> {
    let fields: &Map<String, Value> = value.as_object().ok_or("must be an object")?;
    let mut headers = Vec::new();
    for (name, value) in fields {
        match value {
            Value::Array(values) => headers.extend(values.iter().map(|value| (name.clone(), payload(value)))),
            value => headers.push((name.clone(), payload(value))),
        }
    }
    Ok(headers)
}

/// Strings stand for themselves, everything else for its JSON text.
fn payload(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// An object from text to a list of numbers.
fn vectors(value: &Value) -> Result<BTreeMap<String, Vec<f32>>, String> {
    let number = |number: &Value| number.as_f64().map(|number| number as f32).ok_or("must be numbers");
    let vector =
        |value: &Value| list(value)?.iter().map(number).collect::<Result<_, _>>().map_err(String::from);
    let fields = value.as_object().ok_or("must be an object")?;
    fields.iter().map(|(text, value)| Ok((text.clone(), vector(value)?))).collect()
}

fn body(value: &Value) -> Vec<u8> {
    payload(value).into_bytes()
}

fn tool_calls(value: &Value) -> Result<Vec<ToolCall>, String> {
    let read = |(index, call): (usize, &Value)| {
        let name = call.get("name").and_then(Value::as_str).ok_or("each needs a name")?;
        let id = call
            .get("id")
            .and_then(Value::as_str)
            .map_or_else(|| format!("call_mock_{}", index + 1), str::to_owned);
        let arguments = call.get("arguments").map_or_else(|| "{}".into(), payload);
        Ok(ToolCall { id, name: name.into(), arguments })
    };
    list(value)?.iter().enumerate().map(read).collect()
}

fn usage(value: &Value) -> Result<Usage, String> {
    word(
        value,
        &[
            ("asked", Usage::Asked),
            ("last", Usage::Last),
            ("every", Usage::Every),
            ("finish", Usage::Finish),
            ("x_groq", Usage::XGroq),
            ("floats", Usage::Floats),
            ("none", Usage::None),
        ],
    )
}

fn newline(value: &Value) -> Result<Newline, String> {
    word(value, &[("lf", Newline::Lf), ("crlf", Newline::CrLf), ("cr", Newline::Cr)])
}

fn end(value: &Value) -> Result<End, String> {
    word(value, &[("clean", End::Clean), ("close", End::Close), ("reset", End::Reset), ("hold", End::Hold)])
}

fn framing(value: &Value) -> Result<Framing, String> {
    word(value, &[("chunked", Framing::Chunked), ("length", Framing::Length), ("close", Framing::Close)])
}

fn gzip(value: &Value) -> Result<Gzip, String> {
    match value {
        Value::Bool(true) => Ok(Gzip::Whole),
        Value::Bool(false) => Ok(Gzip::No),
        value => word(value, &[("whole", Gzip::Whole), ("truncated", Gzip::Truncated), ("no", Gzip::No)]),
    }
}

fn acts(value: &Value) -> Result<Vec<Act>, String> {
    list(value)?.iter().map(act).collect()
}

/// `"text"`, `{"text"|"hex": .., "times": n, "pauseMs": n}`, `{"pauseMs": n}` or `{"end": "close"|"reset"|"hold"}`.
fn act(value: &Value) -> Result<Act, String> {
    if let Some(text) = value.as_str() {
        return Ok(Act::write(text));
    }
    let fields = value.as_object().ok_or("each is a string or an object")?;
    if let Some(unknown) =
        fields.keys().find(|name| !["text", "hex", "times", "pauseMs", "end"].contains(&name.as_str()))
    {
        return Err(format!("{unknown}: no such field of a write"));
    }
    let pause_ms = fields.get("pauseMs").map_or(Ok(0), number)?;
    let bytes = match (fields.get("text"), fields.get("hex"), fields.get("end")) {
        (Some(value), None, None) => text(value)?.into_bytes(),
        (None, Some(value), None) => unhex(&text(value)?)?,
        (None, None, Some(value)) => {
            return word(value, &[("close", &Act::Close), ("reset", &Act::Reset), ("hold", &Act::Hold)])
                .cloned();
        }
        (None, None, None) => return Ok(Act::Pause(pause_ms)),
        _ => return Err("only one of text, hex, end".into()),
    };
    Ok(match (fields.get("times"), pause_ms) {
        (None, 0) => Act::Write(bytes),
        (times, pause_ms) => Act::Repeat { bytes, times: times.map_or(Ok(1), number)?, pause_ms },
    })
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|one| !one.is_whitespace())
        .map(|one| {
            one.to_digit(16).and_then(|digit| u8::try_from(digit).ok()).ok_or("hex: not a hexadecimal digit")
        })
        .collect::<Result<_, _>>()?;
    if digits.len() % 2 != 0 {
        return Err("hex: an odd number of digits".into());
    }
    Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_of_the_contract_is_known() {
        let read =
            step(&json!({"status": 429, "headers": {"retry-after": 2, "x": ["a", "b"]}, "body": {"a": 1},
            "delayMs": 5, "dropUsage": true, "hang": false, "content": "hi", "repeat": "forever"}))
            .expect("a good step");
        assert_eq!((read.status, read.delay_ms, read.usage, read.repeat), (429, 5, Usage::None, FOREVER));
        assert_eq!(read.headers.len(), 3);
        let vectors = step(&json!({"vectors": {"a": [1, 0.5]}})).expect("a good step").vectors;
        assert_eq!(vectors.get("a"), Some(&vec![1.0, 0.5]));
        assert_eq!(read.body.as_deref(), Some(br#"{"a":1}"#.as_slice()));
    }

    #[test]
    fn writes_can_say_everything() {
        let read = step(
            &json!({"raw": ["HTTP", {"hex": "0d 0a"}, {"pauseMs": 7}, {"text": "x", "times": 3, "pauseMs": 2},
            {"end": "reset"}]}),
        )
        .expect("a good step");
        let expected = [
            Act::write("HTTP"),
            Act::write("\r\n"),
            Act::Pause(7),
            Act::Repeat { bytes: b"x".to_vec(), times: 3, pause_ms: 2 },
            Act::Reset,
        ];
        assert_eq!(read.raw.as_deref(), Some(expected.as_slice()));
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        let problem = |value: Value| steps(&value).expect_err("a bad step");
        assert_eq!(problem(json!({"statsu": 429})), "statsu: no such field of a step");
        assert_eq!(problem(json!([{}, {"status": "429"}])), "[1].status: must be a number from 100 to 999");
        assert_eq!(problem(json!({"end": "bang"})), "end: must be one of clean, close, reset, hold");
        assert_eq!(problem(json!({"raw": [{"txt": "x"}]})), "raw: txt: no such field of a write");
        assert_eq!(problem(json!({"raw": [{"hex": "abc"}]})), "raw: hex: an odd number of digits");
        assert_eq!(problem(json!({"vectors": {"a": [1, "b"]}})), "vectors: must be numbers");
        assert_eq!(problem(json!({"repeat": 0})), "repeat: must be a number from 1 on, or \"forever\"");
    }
}
