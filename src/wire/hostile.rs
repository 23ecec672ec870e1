//! Tests only: whatever comes in, what goes out is well-formed. Good inputs are damaged at random, from a seed that a
//! failure prints.
use serde_json::Value;

use super::body::Body;
use super::chat::ChatFacts;
use super::chunk::{ChunkShaper, End, ShapeOptions, Step};
use super::completion;
use super::embeddings::{self, EmbeddingFacts};
use super::fold;
use super::head::Fallback;
use super::preview::Clip;
use super::sse::{Decoder, SseItem};
use super::usage::Usage;
use crate::base::rng::Rng;

const ROUNDS: u64 = 4_000;

/// Fragments that damage is done with, beside bytes of the input itself.
const FRAGMENTS: [&str; 24] = [
    "\n",
    "\r",
    "\n\n",
    "\r\n",
    "data: ",
    ": c\n",
    "[DONE]",
    "{}",
    "[]",
    "null",
    "\"\"",
    ",",
    "\"index\":1,",
    "\"id\":\"z\",",
    "\"delta\":{\"content\":\"y\"},",
    "\"message\":{\"content\":\"w\"},",
    "\"finish_reason\":\"stop\",",
    "\"error\":null,",
    "\"usage\":{\"prompt_tokens\":3},",
    "\\ud83d",
    "\u{fffd}",
    "é",
    "{\"a\":[",
    "1e400",
];

/// `good` with up to three random damages.
pub fn damaged(good: &str, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = good.as_bytes().to_vec();
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(bytes.len() + 1);
        let end = (at + rng.below(12)).min(bytes.len());
        match rng.below(5) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            2 => bytes.truncate(at),
            3 if at < bytes.len() => bytes[at] = rng.below(256) as u8,
            _ => drop(bytes.splice(at..at, FRAGMENTS[rng.below(FRAGMENTS.len())].bytes())),
        }
    }
    bytes
}

fn stream() -> String {
    let chunks = [
        r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"é"}],"reasoning":"h"}},{"index":1,"delta":{"content":"b"}}]}"#,
        r#"{"id":"","created":1.5,"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"arguments":"{"}},{"id":"c2","type":"function","function":{"name":"g","arguments":{"a":1}}}]}}],"usage":{"prompt_tokens":1}}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"}"}}]},"finish_reason":"tool_use"}]}"#,
        r#"{"choices":[{"index":1,"delta":{},"finish_reason":"stop","usage":{"completion_tokens":5}}]}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#,
        "[DONE]",
    ];
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect()
}

/// The bytes that leave, the end, and whether the upstream said it failed.
fn shape(pieces: &[&[u8]]) -> (Vec<u8>, End, bool) {
    let options = ShapeOptions {
        include_usage: true,
        fallback_id: "chatcmpl-1".into(),
        created_s: 7,
        model: "m".into(),
        n: 2,
    };
    let (mut decoder, mut shaper, mut out) = (Decoder::new(), ChunkShaper::new(options), Vec::new());
    let mut failed = false;
    for at in 0..=pieces.len() {
        match pieces.get(at) {
            Some(piece) => decoder.push(piece),
            None => decoder.finish(),
        }
        while let Some(item) = decoder.next() {
            failed |= match item {
                SseItem::Data(data) => matches!(shaper.data(data, &mut out), Step::Failed(_)),
                SseItem::Error(_) => true,
                SseItem::Comment | SseItem::TooLong => false,
            };
        }
    }
    let end = shaper.end(Usage::estimate(1, 1), &mut out);
    (out, end, failed)
}

fn check_frames(out: &[u8], end: End) -> Result<(), String> {
    let out = std::str::from_utf8(out).map_err(|e| e.to_string())?;
    let frames: Vec<&str> = out.split("\n\n").filter(|frame| !frame.is_empty()).collect();
    let done = frames.iter().filter(|frame| **frame == "data: [DONE]").count();
    if done != usize::from(end == End::Complete) || (done == 1 && frames.last() != Some(&"data: [DONE]")) {
        return Err(format!("{done} ends, {end:?}"));
    }
    let mut id = None;
    for frame in frames.iter().filter(|frame| **frame != "data: [DONE]") {
        let payload = frame.strip_prefix("data: ").filter(|payload| !payload.contains(['\n', '\r']));
        let payload = payload.ok_or_else(|| format!("no frame: {frame}"))?;
        serde_json::from_str::<serde::de::IgnoredAny>(payload).map_err(|e| format!("{e}: {payload}"))?;
        // A number that no double holds is valid JSON all the same.
        let Ok(chunk) = serde_json::from_str::<Value>(payload) else { continue };
        if id.get_or_insert(chunk["id"].clone()) != &chunk["id"] {
            return Err(format!("another id: {payload}"));
        }
        let choices = chunk["choices"].as_array().ok_or_else(|| format!("no choices: {payload}"))?;
        if choices.iter().any(|choice| choice.is_object() && !choice["delta"].is_object()) {
            return Err(format!("no delta: {payload}"));
        }
    }
    Ok(())
}

#[test]
fn damaged_streams_give_whole_frames_however_they_are_cut() {
    let good = stream();
    for seed in 0..ROUNDS {
        let mut rng = Rng::seeded(seed);
        let bytes = damaged(&good, &mut rng);
        let shaped = shape(&[&bytes]);
        let text = String::from_utf8_lossy(&bytes);
        check_frames(&shaped.0, shaped.1).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        let (mut pieces, mut rest) = (Vec::new(), bytes.as_slice());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + rng.below(rest.len().min(40)));
            pieces.push(piece);
            rest = after;
        }
        assert_eq!(shape(&pieces), shaped, "seed {seed}: {text}");
        let whole = fold::fold(&shaped.0);
        serde_json::from_slice::<Value>(&whole).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
    }
}

/// Chunks around a text, which stands where the letter is; a stream has three of them.
const FORMS: [&str; 20] = [
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"T"},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"T"},"logprobs":null,"finish_reason":null}],"x_groq":{"id":"r","usage":{"total_tokens":9}}}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":"T"},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"","reasoning":"T"},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"T","reasoning":"T"},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"T","content":"T"},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"delta":{"content":"T"},"index":1,"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"T"},"finish_reason":null},{"index":1,"delta":{"content":"T"},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":1,"delta":{},"finish_reason":null},{"index":0,"delta":{"refusal":"T"},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"T"},"finish_reason":null}],"usage":null}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"T"},"finish_reason":"stop"}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"T","tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"T"}}]},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"finish_reason":null}]}"#,
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"T","choices":[{"index":0,"delta":{"content":"T"},"finish_reason":null}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"T"}]}}]}"#,
    r#"{"choices":[{"index":0,"message":{"content":"T"},"finish_reason":"end_turn"}]}"#,
    r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":12}}"#,
    "{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\n\"choices\":[{\"index\":0,\"delta\":{\"content\":\"T\"},\"finish_reason\":null}]}",
    "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"T\"}}]}\n{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"T\"}}]}",
    "T",
];

/// Texts as they stand between quotes, good ones and some that end their string or are none.
const TEXTS: [&str; 22] = [
    "a",
    " word",
    "",
    "",
    "\\n",
    "\\\"",
    "\\\\",
    "\\u00e9",
    "\\ud83d\\ude00",
    "é",
    "\u{1f600}",
    "\u{fffd}",
    "\\ud83d",
    "\\ude00x",
    "\\q",
    "\\",
    "\\u12",
    "\"",
    "\u{1}",
    "\n",
    "x\",\"content\":\"y",
    "x\"},\"finish_reason\":\"length\",\"z\":{\"y\":\"",
];

/// A chunk of a stream in which most look like the one before.
fn chunk(form: &str, rng: &mut Rng) -> Vec<u8> {
    let text = match rng.below(12) {
        0 => "long ".repeat(rng.below(2_000)),
        1..=5 => TEXTS[rng.below(TEXTS.len())].to_owned(),
        _ => (0..rng.below(6)).map(|_| TEXTS[rng.below(12)]).collect(),
    };
    let chunk = form.replace("\"T\"", &format!("\"{text}\""));
    if rng.below(12) == 0 { damaged(&chunk, rng) } else { chunk.into_bytes() }
}

#[test]
fn a_chunk_says_the_same_whatever_the_one_before_looked_like() {
    for seed in 0..ROUNDS / 2 {
        let mut rng = Rng::seeded(seed);
        let options = ShapeOptions {
            include_usage: true,
            fallback_id: "chatcmpl-1".into(),
            created_s: 7,
            model: "m".into(),
            n: 1 + rng.below(2) as u32,
        };
        let (mut quick, mut slow) = (ChunkShaper::new(options.clone()), ChunkShaper::new(options));
        let (mut quick_clip, mut slow_clip) = (Clip::default(), Clip::default());
        let forms = [0; 3].map(|_: u8| FORMS[rng.below(FORMS.len())]);
        let (mut out, mut expected, mut form) = (Vec::new(), Vec::new(), forms[0]);
        for _ in 0..12 {
            if rng.below(4) == 0 {
                form = forms[rng.below(forms.len())];
            }
            let chunk = chunk(form, &mut rng);
            slow.forget_form();
            let step = (quick.data(&chunk, &mut out), quick.output(), quick.usage(), quick.is_answer());
            let due = (slow.data(&chunk, &mut expected), slow.output(), slow.usage(), slow.is_answer());
            let text = String::from_utf8_lossy(&chunk);
            assert_eq!(step, due, "seed {seed}: {text}");
            assert_eq!((quick.malformed(), &out), (slow.malformed(), &expected), "seed {seed}: {text}");
            quick_clip.push_frames(&out);
            slow_clip.forget_form();
            slow_clip.push_frames(&out);
            (out, expected) = (Vec::new(), Vec::new());
        }
        let ends = [&mut quick, &mut slow].map(|shaper| {
            let mut out = Vec::new();
            (shaper.end(Usage::estimate(1, 1), &mut out), out)
        });
        assert_eq!(ends[0], ends[1], "seed {seed}");
        assert_eq!(quick_clip.finish(), slow_clip.finish(), "seed {seed}");
    }
}

#[test]
fn damaged_answers_are_refused_or_put_right() {
    let good = r#"{"id":"x","created":1.5,"choices":[{"message":{"content":[{"type":"text","text":"é"}],"tool_calls":[{"function":{"name":"f","arguments":{"a":1}}},{"id":"c","type":"function","function":{"name":"g","arguments":""}}]},"finish_reason":"end_turn"},{"index":1,"message":{"role":"assistant","content":"b","tool_calls":null},"finish_reason":"stop","usage":{}}],"usage":{"prompt_tokens":1.0},"error":null}"#;
    let vectors = r#"{"data":[{"embedding":[0.5,-1e-3]},{"object":"embedding","embedding":[1,2],"index":1}],"usage":{"prompt_tokens":3}}"#;
    let fallback = || Fallback { id: "chatcmpl-1".into(), created_s: 7, model: "m".into() };
    let asked = Body::parse(br#"{"input":["a","b"],"encoding_format":"base64"}"#.to_vec()).expect("JSON");
    let asked = EmbeddingFacts::read(&asked).expect("a good request");
    for seed in 0..ROUNDS {
        let mut rng = Rng::seeded(seed);
        let bytes = damaged(good, &mut rng);
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(answer) = completion::check(&bytes, fallback()) {
            let whole = text.trim_start_matches('\u{feff}').trim_ascii();
            serde_json::from_str::<serde::de::IgnoredAny>(whole)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}, and accepted\n{text}"));
            serde_json::from_slice::<serde::de::IgnoredAny>(&answer.body)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            let again =
                completion::check(&answer.body, fallback()).unwrap_or_else(|_| panic!("seed {seed}: {text}"));
            assert_eq!(again.choices, answer.choices, "seed {seed}: {text}");
        }
        let bytes = damaged(vectors, &mut rng);
        if let Ok(answer) = embeddings::check(&bytes, &asked, "m") {
            serde_json::from_slice::<serde::de::IgnoredAny>(&answer.body)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", String::from_utf8_lossy(&bytes)));
        }
    }
}

#[test]
fn damaged_bodies_are_judged_as_json_is() {
    let good = r#"{"model":"m\u00e9","stream":true,"max_tokens":1e3,"tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":[{"type":"text","text":"é\ud83d\ude00"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"x"}]}"#;
    for seed in 0..ROUNDS {
        let bytes = damaged(good, &mut Rng::seeded(seed));
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let theirs =
            serde_json::from_slice::<std::collections::BTreeMap<String, serde::de::IgnoredAny>>(&bytes);
        let utf8 = std::str::from_utf8(&bytes).is_ok();
        match Body::parse(bytes) {
            Ok(body) => {
                // Half a surrogate pair is mended by us and refused by them.
                assert!((theirs.is_ok() || text.contains("\\ud83d")) && utf8, "seed {seed}: {text}");
                assert_eq!(body.spliced(&Default::default()), body.bytes(), "seed {seed}: {text}");
                // Whatever comes of it, it comes without a panic.
                let _ = ChatFacts::read(&body, 500);
            }
            Err(e) => {
                assert!(e.param.is_some() || !utf8 || theirs.is_err(), "seed {seed}: {}\n{text}", e.message)
            }
        }
    }
}
