//! What a well-behaved OpenAI server says: completions, chunks, vectors, model lists, errors. Everything is a function
//! of the request, so that the same request always gets the same answer.
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::request::Request;
use crate::step::{Step, ToolCall, ToolStyle, Usage};

/// Characters of the prompt that the answer repeats.
const ECHO_CHARS: usize = 120;
/// Characters that count as one token.
const CHARS_PER_TOKEN: usize = 4;
/// Length of a vector unless the request asks for another.
const DIMENSIONS: usize = 8;
/// The deepest schema for which an example is made.
const SCHEMA_DEPTH_MAX: usize = 8;

/// One answer of the model, before it is put on the wire.
pub(crate) struct Said {
    id: String,
    created: u64,
    model: String,
    content: String,
    reasoning: Option<String>,
    tool_calls: Vec<ToolCall>,
    finish: Value,
    choices: usize,
    usage: Value,
}

impl Said {
    /// What `step` makes the model called `name` say to `request`; `number` makes the id unique.
    pub(crate) fn new(name: &str, number: u64, step: &Step, request: &Request) -> Said {
        let prompt = prompt(request);
        let tool_calls = step.tool_calls.clone().unwrap_or_else(|| own_tool_call(request, number));
        let content = match &step.content {
            Some(content) => content.clone(),
            None if !tool_calls.is_empty() => String::new(),
            None => own_content(name, &prompt, request),
        };
        let finish = match step.finish.as_deref() {
            Some("null") => Value::Null,
            Some(reason) => reason.into(),
            None if tool_calls.is_empty() => "stop".into(),
            None => "tool_calls".into(),
        };
        let asked = request.field("n").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let choices = step.choices.or(asked).unwrap_or(1);
        let said_chars = content.chars().count()
            + step.reasoning.as_ref().map_or(0, |text| text.chars().count())
            + tool_calls.iter().map(|call| call.arguments.chars().count()).sum::<usize>();
        let counted = usage(tokens(prompt.chars().count()), tokens(said_chars) * choices as u64, step.usage);
        Said {
            id: format!("chatcmpl-{name}-{number}"),
            created: unix_s(),
            model: request.model().unwrap_or("mock-small").into(),
            content,
            reasoning: step.reasoning.clone(),
            tool_calls,
            finish,
            choices,
            usage: step.usage_values.clone().unwrap_or(counted),
        }
    }

    /// The body of a `chat.completion`.
    pub(crate) fn completion(&self, step: &Step) -> Value {
        let calls: Vec<Value> = self.tool_calls.iter().map(|call| tool_call(call, &call.arguments)).collect();
        let choices: Vec<Value> = (0..self.choices)
            .map(|index| {
                let mut message = json!({"role": "assistant", "content": self.content_of(index)});
                if let Some(reasoning) = &self.reasoning {
                    message[step.reasoning_field.as_str()] = reasoning.as_str().into();
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.clone().into();
                    if self.content.is_empty() {
                        message["content"] = Value::Null;
                    }
                }
                json!({"index": index, "message": message, "logprobs": null, "finish_reason": self.finish})
            })
            .collect();
        let mut body = self.envelope("chat.completion", choices);
        match step.usage {
            Usage::None => {}
            Usage::XGroq => body["x_groq"] = json!({"usage": self.usage}),
            _ => body["usage"] = self.usage.clone(),
        }
        body
    }

    /// The payloads of the `chat.completion.chunk` events, without `[DONE]`.
    pub(crate) fn chunks(&self, step: &Step, request: &Request) -> Vec<String> {
        let mut deltas: Vec<(usize, Value, Value)> = Vec::new();
        for index in 0..self.choices {
            self.choice_deltas(index, step, &mut deltas);
        }
        let said = deltas.len() as u64;
        let mut chunks = Vec::with_capacity(deltas.len() + 1);
        for (number, (index, delta, finish)) in deltas.into_iter().enumerate() {
            let finished = !finish.is_null();
            let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": finish});
            let mut chunk = self.envelope("chat.completion.chunk", vec![choice]);
            match step.usage {
                Usage::Every => chunk["usage"] = self.running_usage(number as u64 + 1, said),
                Usage::Finish if finished => chunk["usage"] = self.usage.clone(),
                Usage::XGroq if finished => chunk["x_groq"] = json!({"id": self.id, "usage": self.usage}),
                _ => {}
            }
            chunks.push(chunk.to_string());
        }
        let options = request.field("stream_options").and_then(|options| options.get("include_usage"));
        let asked = options.and_then(Value::as_bool).unwrap_or(false);
        if matches!(step.usage, Usage::Last | Usage::Floats | Usage::Every)
            || (step.usage == Usage::Asked && asked)
        {
            let mut chunk = self.envelope("chat.completion.chunk", Vec::new());
            chunk["usage"] = self.usage.clone();
            chunks.push(chunk.to_string());
        }
        chunks
    }

    fn choice_deltas(&self, index: usize, step: &Step, deltas: &mut Vec<(usize, Value, Value)>) {
        let mut push = |delta: Value| deltas.push((index, delta, Value::Null));
        push(json!({"role": "assistant", "content": ""}));
        for piece in self.reasoning.as_deref().map(|text| pieces(text, step.piece_chars)).unwrap_or_default()
        {
            let mut delta = Map::new();
            delta.insert(step.reasoning_field.clone(), piece.into());
            push(Value::Object(delta));
        }
        for piece in pieces(&self.content_of(index), step.piece_chars) {
            push(json!({"content": piece}));
        }
        for (at, call) in self.tool_calls.iter().enumerate() {
            let (opening, rest) = match step.tool_style {
                ToolStyle::Whole => (call.arguments.as_str(), Vec::new()),
                ToolStyle::Parts => ("", pieces(&call.arguments, step.piece_chars)),
            };
            let mut first = tool_call(call, opening);
            first["index"] = at.into();
            push(json!({"tool_calls": [first]}));
            for piece in rest {
                push(json!({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}));
            }
        }
        if !self.finish.is_null() {
            deltas.push((index, json!({}), self.finish.clone()));
        }
    }

    /// The completion tokens grow in step with the chunks; the last chunk has them all.
    fn running_usage(&self, chunk: u64, chunks: u64) -> Value {
        let mut usage = self.usage.clone();
        let count = |name: &str| self.usage.get(name).and_then(Value::as_u64).unwrap_or(0);
        let completion = count("completion_tokens") * chunk / chunks.max(1);
        usage["completion_tokens"] = completion.into();
        usage["total_tokens"] = (count("prompt_tokens") + completion).into();
        usage
    }

    fn content_of(&self, index: usize) -> String {
        if index == 0 { self.content.clone() } else { format!("{} #{index}", self.content) }
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }
}

/// The body of an embeddings answer, or `None` when the input makes no sense.
pub(crate) fn embeddings(step: &Step, request: &Request) -> Option<Value> {
    let dimensions =
        request.field("dimensions").and_then(Value::as_u64).map_or(DIMENSIONS, |wanted| wanted as usize);
    let base64 = request.field("encoding_format").and_then(Value::as_str) == Some("base64");
    let input = request.field("input")?;
    let inputs: Vec<String> = match input {
        Value::Array(items) if items.iter().all(Value::is_number) => vec![input.to_string()],
        Value::Array(items) => items.iter().map(text_of).collect(),
        one => vec![text_of(one)],
    };
    let data: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let vector = step.vectors.get(text).cloned().unwrap_or_else(|| vector(text, dimensions));
            let embedding = if base64 { Value::from(encode_base64(&vector)) } else { Value::from(vector) };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let prompt_tokens = tokens(inputs.iter().map(|text| text.chars().count()).sum());
    Some(json!({
        "object": "list",
        "data": data,
        "model": request.model().unwrap_or("mock-embed"),
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    }))
}

/// The body of `GET /models`.
pub(crate) fn models(name: &str, ids: &[String]) -> Value {
    let data: Vec<Value> = ids
        .iter()
        .map(|id| json!({"id": id, "object": "model", "created": 1_700_000_000, "owned_by": name}))
        .collect();
    json!({"object": "list", "data": data})
}

/// The body that goes with a bad status.
pub(crate) fn error(name: &str, status: u16) -> Value {
    let kind = match status {
        429 => "rate_limit_exceeded",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    json!({"error": {"message": format!("[{name}] mock error {status}"), "type": kind, "param": null, "code": status}})
}

fn usage(prompt: u64, completion: u64, form: Usage) -> Value {
    let total = prompt + completion;
    if form == Usage::Floats {
        return json!({"prompt_tokens": prompt as f64, "completion_tokens": completion as f64, "total_tokens": total as f64});
    }
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total})
}

fn tokens(chars: usize) -> u64 {
    chars.div_ceil(CHARS_PER_TOKEN) as u64
}

/// All text of all messages, a line each.
fn prompt(request: &Request) -> String {
    let messages = request.field("messages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<String> =
        messages.iter().filter_map(|message| message.get("content")).map(text_of).collect();
    texts.join("\n")
}

/// A string itself, the text parts of a list of parts, the JSON of anything else.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(parts) if parts.iter().all(Value::is_object) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
            texts.join("\n")
        }
        other => other.to_string(),
    }
}

/// `[name] <end of the prompt>`, or an example that fits when the request wants JSON.
fn own_content(name: &str, prompt: &str, request: &Request) -> String {
    let format = request.field("response_format");
    match format.and_then(|format| format.get("type")).and_then(Value::as_str) {
        Some("json_object") => json!({"answer": format!("[{name}]")}).to_string(),
        Some("json_schema") => {
            let schema =
                format.and_then(|format| format.pointer("/json_schema/schema")).unwrap_or(&Value::Null);
            example(schema, "answer", 0).to_string()
        }
        _ => {
            let skipped = prompt.chars().count().saturating_sub(ECHO_CHARS);
            format!("[{name}] {}", prompt.chars().skip(skipped).collect::<String>())
        }
    }
}

/// A request with tools gets a call of the first one (or of the one it names), unless a tool has just answered.
fn own_tool_call(request: &Request, number: u64) -> Vec<ToolCall> {
    let tools = request.field("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let last = request.field("messages").and_then(Value::as_array).and_then(|messages| messages.last());
    let answered = last.and_then(|message| message.get("role")).and_then(Value::as_str) == Some("tool");
    let choice = request.field("tool_choice");
    if answered || choice.and_then(Value::as_str) == Some("none") {
        return Vec::new();
    }
    let wanted = choice.and_then(|choice| choice.pointer("/function/name"));
    let functions = || tools.iter().filter_map(|tool| tool.get("function"));
    let function = functions()
        .find(|function| wanted.is_some() && function.get("name") == wanted)
        .or(functions().next());
    let Some(function) = function else { return Vec::new() };
    let arguments = example(function.get("parameters").unwrap_or(&Value::Null), "value", 0);
    let arguments = if arguments.is_object() { arguments } else { json!({}) };
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    vec![ToolCall { id: format!("call_mock_{number}"), name, arguments: arguments.to_string() }]
}

fn tool_call(call: &ToolCall, arguments: &str) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
}

/// A value that fits a JSON schema, as far as types, enums, properties and items go.
fn example(schema: &Value, name: &str, depth: usize) -> Value {
    if let Some(first) = schema.get("enum").and_then(Value::as_array).and_then(|values| values.first()) {
        return first.clone();
    }
    let kind = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str),
        kind => kind.and_then(Value::as_str),
    };
    match kind {
        Some("integer") => json!(1),
        Some("number") => json!(1.5),
        Some("boolean") => json!(true),
        Some("null") => Value::Null,
        Some("array") if depth < SCHEMA_DEPTH_MAX => {
            json!([example(schema.get("items").unwrap_or(&Value::Null), name, depth + 1)])
        }
        Some("object") if depth < SCHEMA_DEPTH_MAX => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let members = properties.into_iter().flatten();
            Value::Object(
                members.map(|(name, schema)| (name.clone(), example(schema, name, depth + 1))).collect(),
            )
        }
        _ => name.into(),
    }
}

/// Cuts a text into pieces of so many characters.
fn pieces(text: &str, chars: usize) -> Vec<String> {
    let all: Vec<char> = text.chars().collect();
    all.chunks(chars.max(1)).map(|piece| piece.iter().collect()).collect()
}

/// A unit vector made of the character codes.
fn vector(text: &str, dimensions: usize) -> Vec<f32> {
    let mut sums = vec![0.0_f64; dimensions.max(1)];
    let length = sums.len();
    for (at, one) in text.chars().enumerate() {
        sums[at % length] += f64::from(u32::from(one));
    }
    let norm = sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    sums.into_iter().map(|sum| (sum / norm) as f32).collect()
}

/// Little-endian floats as base64, which OpenAI's own clients ask for.
fn encode_base64(vector: &[f32]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for at in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads() {
        let encoded = |values: &[f32]| encode_base64(values);
        assert_eq!(encoded(&[1.0]), "AACAPw==");
        assert_eq!(encoded(&[1.0, 0.5]), "AACAPwAAAD8=");
        assert_eq!(encoded(&[1.0, 0.5, 0.25]), "AACAPwAAAD8AAIA+");
    }

    #[test]
    fn vectors_are_of_unit_length_and_tell_texts_apart() {
        let one = vector("hello", 8);
        assert!((one.iter().map(|value| value * value).sum::<f32>() - 1.0).abs() < 1e-5);
        assert_ne!(one, vector("world", 8));
        assert_eq!(vector("", 3), [0.0, 0.0, 0.0]);
    }

    #[test]
    fn examples_follow_the_schema() {
        let schema = json!({"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]},
            "tags": {"type": "array", "items": {"type": "string"}}}});
        let expected = json!({"city": "city", "days": 1, "unit": "C", "tags": ["tags"]});
        assert_eq!(example(&schema, "x", 0), expected);
    }

    #[test]
    fn pieces_are_cut_between_characters() {
        assert_eq!(pieces("naïve🙂!", 3), ["naï", "ve🙂", "!"]);
    }
}
