//! The one place where a provider's quirks become edits of a request body. Everything that no quirk names reaches the
//! upstream byte for byte.
use serde_json::Value;

use crate::catalog::provider::{Model, Provider, Quirks};
use crate::wire::body::{Body, Edits, Spliced};
use crate::wire::chat::ChatFacts;
use crate::wire::error::ApiError;
use crate::wire::json;

use super::history;

/// Our own extensions of the body, which no upstream knows.
const OURS: [&str; 2] = ["session", "models"];
/// Fields for which an explicit `null` means what leaving them out means; strict upstreams refuse the `null`.
const KNOBS: [&str; 26] = [
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "modalities",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "reasoning_effort",
    "response_format",
    "seed",
    "service_tier",
    "stop",
    "store",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
];
/// Further fields that mean something in chats alone: a provider's file that sets one means its chats.
const OF_CHATS: [&str; 17] = [
    "chat_template_kwargs",
    "enable_thinking",
    "include_reasoning",
    "min_p",
    "plugins",
    "prompt_mode",
    "reasoning",
    "reasoning_format",
    "repetition_penalty",
    "response_mime_type",
    "safe_prompt",
    "thinking",
    "top_a",
    "top_k",
    "verbosity",
    "web_search_options",
    "stream_options",
];
/// The names of the output cap; the first wins.
const CAPS: [&str; 2] = ["max_completion_tokens", "max_tokens"];
/// What neither a file nor an upstream's complaint may take out of a request.
const ESSENTIAL: [&str; 3] = ["model", "messages", "input"];

/// What is sent to one model instead of what the client wrote.
#[derive(Clone, Copy, Default)]
pub struct Amended<'a> {
    /// Another value of `messages`.
    pub messages: Option<&'a [u8]>,
    /// Tokens that the model's window leaves for the answer.
    pub answer_room: Option<u64>,
    /// Fields that this upstream has refused before.
    pub drops: &'a [String],
}

/// The body of a chat request for one model of one provider.
///
/// `facts` were read from `body`, and `amended` is what is sent instead of some of it.
pub fn adapt<'b>(
    body: &'b Body,
    facts: &ChatFacts,
    provider: &Provider,
    model: &Model,
    amended: Amended<'b>,
) -> Result<Spliced<'b>, ApiError> {
    let quirks = &provider.quirks;
    let mut edits = Edits::default();
    edits.set("model", json::quoted(&model.id));
    edits.set("stream", if facts.stream { b"true".as_slice() } else { b"false" });
    stream_options(body, facts, quirks, &mut edits);
    body.names()
        .filter(|name| OURS.contains(name) || (KNOBS.contains(name) && body.given(name).is_none()))
        .for_each(|name| edits.remove(name));
    tools(body, facts, &mut edits);
    if body.given("response_format").is_some_and(|raw| json::member(raw, "type") == Some(b"\"text\"")) {
        edits.remove("response_format");
    }
    let most = model.max_output.into_iter().chain(amended.answer_room).min();
    token_cap(body, facts, quirks, most, &mut edits);
    if let Some(raw) = amended.messages.or(body.raw("messages")) {
        match history::adapted(raw, &facts.shape, quirks)? {
            Some(messages) => edits.set("messages", messages),
            None => {
                if let Some(messages) = amended.messages {
                    edits.set("messages", messages);
                }
            }
        }
    }
    drop_fields(quirks.drop_params.iter().chain(&model.drop_params), &mut edits);
    quirks.rename_params.iter().for_each(|(from, to)| edits.rename(from, to));
    // What one model refuses, its provider's file does not put back.
    let taken = |(name, _): &&(String, Value)| !model.drop_params.contains(name);
    for (name, value) in quirks.default_params.iter().filter(taken) {
        // A default cap must not stand beside the client's own, whatever that is called.
        if facts.max_output.is_none() || !CAPS.contains(&name.as_str()) {
            edits.add(name, raw_json(value));
        }
    }
    let forced = quirks.force_params.iter().filter(taken);
    forced.for_each(|(name, value)| edits.set(name, raw_json(value)));
    drop_fields(amended.drops, &mut edits);
    Ok(body.in_pieces(&edits))
}

/// The body of an embeddings request for one model of one provider.
pub fn adapt_embeddings<'b>(
    body: &'b Body,
    provider: &Provider,
    model: &Model,
    remembered_drops: &[String],
) -> Spliced<'b> {
    let quirks = &provider.quirks;
    let mut edits = Edits::default();
    edits.set("model", json::quoted(&model.id));
    // Vectors never come as a stream.
    let unwanted = |name: &&str| OURS.contains(name) || ["stream", "stream_options"].contains(name);
    body.names().filter(unwanted).for_each(|name| edits.remove(name));
    for name in ["dimensions", "encoding_format", "user"] {
        if body.given(name).is_none() {
            edits.remove(name);
        }
    }
    drop_fields(quirks.drop_params.iter().chain(&model.drop_params), &mut edits);
    quirks.rename_params.iter().for_each(|(from, to)| edits.rename(from, to));
    let taken = |(name, _): &&(String, Value)| is_for_embeddings(name) && !model.drop_params.contains(name);
    let defaults = quirks.default_params.iter().filter(taken);
    defaults.for_each(|(name, value)| edits.add(name, raw_json(value)));
    let forced = quirks.force_params.iter().filter(taken);
    forced.for_each(|(name, value)| edits.set(name, raw_json(value)));
    drop_fields(remembered_drops, &mut edits);
    body.in_pieces(&edits)
}

/// Whether a field that a provider's file sets has a meaning for embeddings, too. Strict upstreams refuse any other.
pub fn is_for_embeddings(name: &str) -> bool {
    name == "user" || !(KNOBS.contains(&name) || OF_CHATS.contains(&name))
}

fn raw_json(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn drop_fields<'a>(names: impl IntoIterator<Item = &'a String>, edits: &mut Edits<'a>) {
    for name in names.into_iter().filter(|name| !ESSENTIAL.contains(&name.as_str())) {
        edits.remove(name);
    }
}

/// Asks for usage in streams, where that is understood; other options of the client's stay.
fn stream_options(body: &Body, facts: &ChatFacts, quirks: &Quirks, edits: &mut Edits<'_>) {
    if !facts.stream || !quirks.stream_usage {
        edits.remove("stream_options");
        return;
    }
    if facts.include_usage {
        return;
    }
    let options = match body.given("stream_options").and_then(|raw| Body::parse(raw.to_vec()).ok()) {
        Some(given) => {
            let mut inner = Edits::default();
            inner.set("include_usage", b"true".as_slice());
            given.spliced(&inner)
        }
        None => b"{\"include_usage\":true}".to_vec(),
    };
    edits.set("stream_options", options);
}

/// An empty list of tools, and what makes no sense without tools, is left out.
fn tools(body: &Body, facts: &ChatFacts, edits: &mut Edits<'_>) {
    for name in ["tools", "functions"] {
        if json::is_blank(body.raw(name)) {
            edits.remove(name);
        }
    }
    if !facts.tools {
        for name in ["tool_choice", "function_call", "parallel_tool_calls"] {
            edits.remove(name);
        }
    } else if body.raw("tool_choice") == Some(b"\"any\"") {
        edits.set("tool_choice", b"\"required\"".as_slice());
    }
}

/// Exactly one cap leaves, in whole digits, under the name that this upstream wants, and no higher than the model goes or has room for.
fn token_cap(body: &Body, facts: &ChatFacts, quirks: &Quirks, most: Option<u64>, edits: &mut Edits<'_>) {
    // The names that the client gave a real cap under; 0 is none.
    let mut given =
        CAPS.into_iter().filter(|name| body.given(name).and_then(json::whole).is_some_and(|cap| cap > 0));
    let spelled = given.next();
    let (Some(cap), Some(spelled)) = (facts.max_output, spelled) else {
        CAPS.iter().for_each(|name| edits.remove(*name));
        return;
    };
    let cap = cap.min(most.unwrap_or(u64::MAX)).to_string();
    CAPS.iter().filter(|name| **name != spelled).for_each(|name| edits.remove(*name));
    if body.raw(spelled) != Some(cap.as_bytes()) {
        edits.set(spelled, cap.into_bytes());
    }
    if let Some(wanted) = &quirks.max_tokens_field {
        edits.rename(spelled, wanted.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalog::fixture;
    use crate::catalog::provider::ToolIds;
    use crate::catalog::slots::Slots;

    fn provider(quirks: Quirks) -> Provider {
        let model = json!({"id": "@cf/meta/llama", "maxOutput": 4_096, "dropParams": ["top_k"]});
        let file = json!({"id": "p", "label": "P", "models": [model]});
        Provider { quirks, ..fixture::provider(file, &mut Slots::default()) }
    }

    fn model() -> Model {
        provider(Quirks::default()).models.remove(0)
    }

    const MESSAGES: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

    /// An upstream that understands `stream_options`.
    fn plain() -> Quirks {
        Quirks { stream_usage: true, ..Quirks::default() }
    }

    fn sent(fields: &str, quirks: Quirks, remembered: &[&str]) -> String {
        let body = Body::parse(format!("{{{MESSAGES}{fields}}}").into_bytes()).expect("valid JSON");
        let facts = ChatFacts::read(&body, 500).expect(fields);
        let remembered: Vec<String> = remembered.iter().map(|name| (*name).to_owned()).collect();
        let out = adapt(
            &body,
            &facts,
            &provider(quirks),
            &model(),
            Amended { drops: &remembered, ..Amended::default() },
        )
        .expect("it can be adapted")
        .into_bytes();
        Body::parse(out.clone()).expect("still valid JSON");
        String::from_utf8(out).expect("UTF-8")
    }

    /// What is sent beside the messages, before model and stream are added at the end.
    fn check(fields: &str, quirks: Quirks, expected: &str) {
        let expected = format!(r#"{{{MESSAGES}{expected}}}"#);
        assert_eq!(sent(fields, quirks, &[]), expected, "{fields}");
    }

    const END: &str = r#","model":"@cf/meta/llama","stream":false"#;

    #[test]
    fn b13_only_what_must_differ_does() {
        check("", plain(), END);
        check(
            r#", "model" : "auto","stream":false,"seed": 9007199254740993,"x":{"a":1.0e2},"session":"s","models":["a"]"#,
            plain(),
            r#", "model" : "@cf/meta/llama","stream":false,"seed": 9007199254740993,"x":{"a":1.0e2}"#,
        );
        check(
            r#","stop":null,"temperature":null,"unknown":null,"top_k":5"#,
            plain(),
            &format!(r#","unknown":null{END}"#),
        );
        check(r#","response_format":{"type":"text"}"#, plain(), END);
        let json_mode = r#","response_format":{"type":"json_object"}"#;
        check(json_mode, plain(), &format!("{json_mode}{END}"));
    }

    #[test]
    fn b6_usage_is_asked_for_where_it_is_understood() {
        let stream = r#","model":"@cf/meta/llama","stream":true"#;
        let asked = format!(r#"{stream},"stream_options":{{"include_usage":true}}"#);
        check(stream, plain(), &asked);
        check(&asked, plain(), &asked);
        check(&format!(r#"{stream},"stream_options":null"#), plain(), &asked);
        check(
            &format!(r#"{stream},"stream_options":{{"include_usage":false,"include_obfuscation":false}}"#),
            plain(),
            &format!(r#"{stream},"stream_options":{{"include_usage":true,"include_obfuscation":false}}"#),
        );
        // SSE-25: never where it is refused, by file or by experience.
        check(&asked, Quirks::default(), stream);
        assert_eq!(sent(stream, plain(), &["stream_options"]), format!("{{{MESSAGES}{stream}}}"));
        // SSE-15: without a stream the options are refused upstream, and `stream` is always said.
        check(r#","stream_options":{"include_usage":true}"#, plain(), END);
    }

    #[test]
    fn tool_12_empty_tools_are_left_out() {
        for fields in [
            r#","tools":[],"tool_choice":"auto","parallel_tool_calls":false"#,
            r#","tools":null,"tool_choice":null"#,
            r#","functions":[],"function_call":"none","tool_choice":"none""#,
        ] {
            check(fields, plain(), END);
        }
        let tools = r#","tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":98765432109876543210}}}],"parallel_tool_calls":false"#;
        check(tools, plain(), &format!("{tools}{END}"));
        check(
            &format!(r#"{tools},"tool_choice":"any""#),
            plain(),
            &format!(r#"{tools},"tool_choice":"required"{END}"#),
        );
    }

    #[test]
    fn req_06_one_cap_leaves_under_the_name_that_is_wanted() {
        let named = |name: &str| Quirks { max_tokens_field: Some(name.into()), ..plain() };
        let both = r#","max_tokens":64,"max_completion_tokens":32"#;
        check(both, plain(), &format!(r#","max_completion_tokens":32{END}"#));
        check(both, named("max_tokens"), &format!(r#","max_tokens":32{END}"#));
        check(
            r#","max_tokens":64"#,
            named("max_completion_tokens"),
            &format!(r#","max_completion_tokens":64{END}"#),
        );
        check(r#","max_tokens":64"#, named("max_tokens"), &format!(r#","max_tokens":64{END}"#));
        check(r#","max_tokens":64"#, named("max_output"), &format!(r#","max_output":64{END}"#));
        check(r#","max_tokens":64,"max_completion_tokens":0"#, plain(), &format!(r#","max_tokens":64{END}"#));
        check(r#","max_tokens":0"#, plain(), END);
        check(r#","max_tokens":999999"#, plain(), &format!(r#","max_tokens":4096{END}"#));
    }

    #[test]
    fn req_13_caps_are_whole_on_the_wire() {
        check(r#","max_tokens":1e3"#, plain(), &format!(r#","max_tokens":1000{END}"#));
        check(r#","max_tokens":256.0"#, plain(), &format!(r#","max_tokens":256{END}"#));
    }

    #[test]
    fn req_04_files_and_experience_drop_rename_and_set_fields() {
        let quirks = Quirks {
            drop_params: vec!["logit_bias".into(), "messages".into()],
            rename_params: vec![("seed".into(), "random_seed".into())],
            default_params: vec![
                ("max_tokens".into(), json!(256)),
                ("random_seed".into(), json!(1)),
                ("d".into(), json!([1])),
            ],
            force_params: vec![("parallel".into(), json!(false))],
            ..plain()
        };
        check(
            r#","logit_bias":{"1":2},"seed":7,"max_completion_tokens":9,"parallel":true"#,
            quirks.clone(),
            r#","random_seed":7,"max_completion_tokens":9,"parallel":false,"model":"@cf/meta/llama","stream":false,"d":[1]"#,
        );
        check(
            "",
            quirks.clone(),
            &format!(r#"{END},"max_tokens":256,"random_seed":1,"d":[1],"parallel":false"#),
        );
        assert_eq!(
            sent(r#","seed":7,"store":true"#, quirks, &["random_seed", "store", "d", "messages", "model"]),
            format!(r#"{{{MESSAGES}{END},"max_tokens":256,"parallel":false}}"#)
        );
    }

    #[test]
    fn what_one_model_refuses_is_not_put_back() {
        // `top_k` is what the model of these tests refuses.
        let own = |value: serde_json::Value| vec![("top_k".to_owned(), value)];
        check(r#","top_k":5"#, Quirks { default_params: own(json!(40)), ..plain() }, END);
        check(r#","top_k":5"#, Quirks { force_params: own(json!(40)), ..plain() }, END);
    }

    #[test]
    fn req_01_messages_are_adapted_too() {
        let body = Body::parse(br#"{"messages":[{"role":"developer","content":"d"}]}"#.to_vec())
            .expect("valid JSON");
        let facts = ChatFacts::read(&body, 500).expect("fine");
        let out = adapt(&body, &facts, &provider(plain()), &model(), Amended::default())
            .expect("it can be adapted")
            .into_bytes();
        let expected = format!(r#"{{"messages":[{{"role":"system","content":"d"}}]{END}}}"#);
        assert_eq!(String::from_utf8(out).expect("UTF-8"), expected);
    }

    #[test]
    fn whatever_is_accepted_leaves_well_formed() {
        let good = r#"{"model":"m","max_tokens":1e1,"tools":[],"stop":null,"session":"","messages":[{"role":"developer","content":["d"]},{"role":"user","content":[{"text":"t"},{"type":"text","text":"u"}],"x":1},{"role":"assistant","content":"","tool_calls":[{"id":"call_12","function":{"name":"f","arguments":{"a":1}}},{"function":{"name":"g"}}]},{"role":"tool","tool_call_id":"call_12","content":null},{"role":"tool","content":"y"}]}"#;
        let strict = Quirks {
            drop_message_fields: vec!["x".into(), "name".into()],
            flatten_content: true,
            tool_ids: ToolIds::Alnum9,
            null_content_refused: true,
            ..Quirks::default()
        };
        let mut accepted = 0;
        for seed in 0..10_000 {
            let bytes = crate::wire::hostile::damaged(good, &mut crate::base::rng::Rng::seeded(seed));
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let Ok(body) = Body::parse(bytes) else { continue };
            let Ok(facts) = ChatFacts::read(&body, 500) else { continue };
            accepted += 1;
            for quirks in [plain(), strict.clone()] {
                let out = adapt(&body, &facts, &provider(quirks), &model(), Amended::default())
                    .expect("it can be adapted")
                    .into_bytes();
                let sent = Body::parse(out).unwrap_or_else(|e| panic!("seed {seed}: {}\n{text}", e.message));
                let again = ChatFacts::read(&sent, 500);
                let again = again.unwrap_or_else(|e| panic!("seed {seed}: {}\n{text}", e.message));
                assert!(!again.shape.untidy && !again.shape.developer, "seed {seed}: {text}");
                assert_eq!(again.messages, facts.messages, "seed {seed}: {text}");
            }
        }
        assert!(accepted > 300, "{accepted}");
    }

    #[test]
    fn a_file_sets_what_embeddings_know() {
        let set = |pairs: &[(&str, serde_json::Value)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect::<Vec<_>>()
        };
        let quirks = Quirks {
            drop_params: vec!["user".into()],
            rename_params: vec![("dimensions".into(), "size".into())],
            default_params: set(&[
                ("max_tokens", json!(9)),
                ("truncate", json!("END")),
                ("kind", json!("doc")),
            ]),
            force_params: set(&[("temperature", json!(0)), ("encoding_format", json!("float"))]),
            ..Quirks::default()
        };
        let text = r#"{"input":"a","model":"e","user":"u","dimensions":4,"kind":"query","encoding_format":"base64"}"#;
        let body = Body::parse(text.as_bytes().to_vec()).expect("valid JSON");
        let out = |drops: &[String]| {
            let out = adapt_embeddings(&body, &provider(quirks.clone()), &model(), drops);
            String::from_utf8(out.into_bytes()).expect("UTF-8")
        };
        assert_eq!(
            out(&[]),
            r#"{"input":"a","model":"@cf/meta/llama","size":4,"kind":"query","encoding_format":"float","truncate":"END"}"#
        );
        assert!(!out(&["truncate".to_owned()]).contains("truncate"));
    }

    #[test]
    fn embeddings_are_sent_as_they_came_without_what_is_ours() {
        for input in [r#""a""#, "[101,2023]", "[[101],[2023,7]]"] {
            let fields =
                format!(r#"{{"input":{input},"model":"e","dimensions":null,"session":"s","stream":true}}"#);
            let body = Body::parse(fields.into_bytes()).expect("valid JSON");
            let out = adapt_embeddings(&body, &provider(Quirks::default()), &model(), &[]);
            let out = String::from_utf8(out.into_bytes()).expect("UTF-8");
            assert_eq!(out, format!(r#"{{"input":{input},"model":"@cf/meta/llama"}}"#));
        }
    }
}
