//! Model lists fetched from providers: reading them, guessing what a model can do, the free-only rule, and how they are
//! merged into a provider. The fetching is done elsewhere. Pure.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::provider::*;
use super::slots::Slots;
use super::spec_model::{MODELS_MAX, is_model_id};
use crate::base::clock::Now;
use crate::base::text::truncate;

/// Priority of a discovered model: behind the declared ones, which stand at 50 unless their file says otherwise.
const DISCOVERED_PRIORITY: f64 = 100.0;
/// Most models taken from one list.
const LISTED_MAX: usize = 1_000;
const LABEL_MAX: usize = 120;

/// All fetched lists, by provider id. This is also the format of the disk cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Discovered {
    pub lists: BTreeMap<String, DiscoveredList>,
}

/// One fetched list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiscoveredList {
    /// Milliseconds since 1970.
    pub fetched_wall_ms: u64,
    /// The base address that was asked: a list of another address is not used.
    pub base_url: String,
    pub models: Vec<DiscoveredModel>,
}

/// One entry of a model list, as far as it is understood.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiscoveredModel {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u64>,
    /// Names of [`Caps`].
    pub caps: Vec<String>,
    /// Whether it is free, when the list tells prices or the id is marked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<bool>,
}

/// Where the ids stand in a list: a dot path in which `name[]` and `[]` go through an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    Each,
}

/// Deepest path that makes sense.
const STEPS_MAX: usize = 16;

impl IdPath {
    /// Reads a path such as `data[].id`, `[].id` or `result.models[].name`.
    pub fn parse(text: &str) -> Result<IdPath, String> {
        let mut steps = Vec::new();
        for part in text.trim().split('.') {
            let bare = part.trim_end_matches("[]");
            let arrays = (part.len() - bare.len()) / 2;
            if bare.contains(['[', ']']) || (bare.is_empty() && arrays == 0) {
                return Err(format!("`{part}` is no step of a path such as data[].id or [].id"));
            }
            if !bare.is_empty() {
                steps.push(Step::Member(bare.into()));
            }
            steps.extend(std::iter::repeat_n(Step::Each, arrays));
        }
        if steps.len() > STEPS_MAX {
            return Err(format!("has more than {STEPS_MAX} steps"));
        }
        Ok(IdPath { steps })
    }

    /// Every id with the object that it stands in, which may tell more of the model.
    fn find<'v>(&self, body: &'v Value) -> Vec<(&'v str, &'v Value)> {
        let mut level: Vec<(&Value, &Value)> = vec![(body, body)];
        for step in &self.steps {
            level = match step {
                Step::Member(name) => {
                    level.into_iter().filter_map(|(value, _)| Some((value.get(name)?, value))).collect()
                }
                Step::Each => level
                    .into_iter()
                    .flat_map(|(value, _)| value.as_array().into_iter().flatten().map(|item| (item, item)))
                    .collect(),
            };
        }
        level.into_iter().filter_map(|(value, parent)| Some((value.as_str()?, parent))).collect()
    }
}

/// Reads a model list. The error says what came instead, without quoting it at length.
pub fn parse_models(provider: &Provider, body: &[u8]) -> Result<Vec<DiscoveredModel>, String> {
    let body: Value = serde_json::from_slice(body).map_err(|_| "the model list is no JSON".to_owned())?;
    let path = IdPath::parse(&provider.models_path)?;
    let mut models: Vec<DiscoveredModel> = Vec::new();
    for (id, entry) in path.find(&body) {
        // Google writes `models/gemini-…` in its list and takes both forms.
        let id = id.strip_prefix("models/").unwrap_or(id);
        if !is_model_id(id) || models.len() == LISTED_MAX || models.iter().any(|known| known.id == id) {
            continue;
        }
        let Some(caps) = guess_caps(id, entry) else { continue };
        models.push(DiscoveredModel {
            id: id.to_owned(),
            label: ["name", "display_name", "displayName"]
                .iter()
                .find_map(|name| entry.get(*name)?.as_str())
                .filter(|label| !label.is_empty() && *label != id && !label.starts_with("models/"))
                .map(|label| truncate(label, LABEL_MAX).to_owned()),
            context: first_count(entry, &CONTEXT_NAMES),
            max_output: first_count(entry, &OUTPUT_NAMES),
            caps: caps.names().map(str::to_owned).collect(),
            free: is_free(id, entry),
        });
    }
    if models.is_empty() && path.find(&body).is_empty() {
        return Err(format!("no ids under {}; set modelsPath to where they stand", provider.models_path));
    }
    Ok(models)
}

const CONTEXT_NAMES: [&str; 8] = [
    "context_length",
    "context_window",
    "max_context_length",
    "max_model_len",
    "max_input_tokens",
    "inputTokenLimit",
    "contextLength",
    "top_provider.context_length",
];
const OUTPUT_NAMES: [&str; 5] = [
    "max_completion_tokens",
    "max_output_tokens",
    "max_output_length",
    "outputTokenLimit",
    "top_provider.max_completion_tokens",
];
/// Beyond this a number is no window but a mistake.
const TOKENS_MAX: u64 = 100_000_000;

fn first_count(entry: &Value, names: &[&str]) -> Option<u64> {
    let at = |name: &str| name.split('.').try_fold(entry, |value, step| value.get(step));
    // Some write a number as text, and zero where another field tells it.
    let count = |value: &Value| value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
    names.iter().filter_map(|name| count(at(name)?)).find(|n| (1..=TOKENS_MAX).contains(n))
}

/// Words in an id that mean that it neither chats nor embeds text.
const OTHER_KINDS: [&str; 20] = [
    "ocr",
    "tts",
    "transcribe",
    "voxtral",
    "whisper",
    "moderation",
    "rerank",
    "reranker",
    "guard",
    "shield",
    "image",
    "imagen",
    "flux",
    "diffusion",
    "veo",
    "lyria",
    "audio",
    "speech",
    "dall-e",
    "sora",
];
const CODE_WORDS: [&str; 5] = ["code", "coder", "codestral", "devstral", "fim"];
const REASONING_WORDS: [&str; 8] =
    ["magistral", "reason", "reasoning", "think", "thinking", "r1", "qwq", "reasoner"];
const VISION_WORDS: [&str; 4] = ["vl", "vision", "pixtral", "llava"];

/// What a model can do, by its id and by what the list says of it; `None` when it is for something else.
pub fn guess_caps(id: &str, entry: &Value) -> Option<Caps> {
    let lower = id.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).collect();
    let has = |list: &[&str]| {
        list.iter().any(|word| words.contains(word) || (word.contains('-') && lower.contains(*word)))
    };
    let kind = entry.get("type").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    let outputs = modalities(entry, "output");
    if lower.contains("embed") || kind == "embedding" || kind == "embeddings" || words.contains(&"bge") {
        return Some(Caps::EMBED);
    }
    let chat_flag = entry.pointer("/capabilities/completion_chat").and_then(Value::as_bool);
    let other_kind =
        ["image", "audio", "video", "moderation", "rerank", "transcribe"].contains(&kind.as_str());
    if has(&OTHER_KINDS)
        || lower.contains("guard")
        || lower.contains("shield")
        || other_kind
        || chat_flag == Some(false)
    {
        return None;
    }
    if !outputs.is_empty() && !outputs.contains(&"text") {
        return None;
    }
    let mut caps = Caps::CHAT;
    let mut add = |holds: bool, cap: Caps| {
        if holds {
            caps = caps.with(cap);
        }
    };
    add(has(&CODE_WORDS), Caps::CODE);
    let params = entry.get("supported_parameters").or_else(|| entry.get("supported_features"));
    let params: Vec<&str> =
        params.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let flag = |pointer: &str| entry.pointer(pointer).and_then(Value::as_bool) == Some(true);
    add(has(&REASONING_WORDS) || params.iter().any(|p| p.contains("reasoning")), Caps::REASONING);
    add(params.contains(&"tools") || flag("/capabilities/function_calling"), Caps::TOOLS);
    let json = ["response_format", "structured_outputs", "json_mode"];
    add(params.iter().any(|param| json.contains(param)), Caps::JSON);
    let sees = modalities(entry, "input").contains(&"image") || flag("/capabilities/vision");
    add(sees || has(&VISION_WORDS), Caps::VISION);
    Some(caps)
}

/// The modalities of one direction, as OpenRouter (`architecture.input_modalities`) and GitHub
/// (`supported_input_modalities`) write them.
fn modalities<'v>(entry: &'v Value, direction: &str) -> Vec<&'v str> {
    let nested = entry.pointer(&format!("/architecture/{direction}_modalities"));
    let list = nested
        .or_else(|| entry.get(format!("supported_{direction}_modalities")))
        .or_else(|| entry.get(format!("{direction}_modalities")));
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether a model costs nothing: by the mark in its id, else by its prices. `None` when nothing tells.
fn is_free(id: &str, entry: &Value) -> Option<bool> {
    if has_free_mark(id) {
        return Some(true);
    }
    let pricing = entry.get("pricing").filter(|pricing| pricing.is_object())?;
    let prices: Vec<f64> = ["prompt", "completion", "input", "output", "request", "base", "hourly"]
        .iter()
        .filter_map(|name| {
            let price = pricing.get(*name)?;
            price.as_f64().or_else(|| price.as_str()?.trim().parse().ok())
        })
        .collect();
    // A negative price is OpenRouter's word for "depends on the model that serves".
    (!prices.is_empty()).then(|| prices.iter().all(|price| *price == 0.0))
}

/// `:free` or `-free` at the end of an id, in any case.
pub fn has_free_mark(id: &str) -> bool {
    let lower = id.to_ascii_lowercase();
    lower.ends_with(":free") || lower.ends_with("-free")
}

/// What the free-only rule says of a discovered model.
pub fn standing(billing: Billing, free: Option<bool>, allow_paid: bool) -> Standing {
    match (billing, free) {
        _ if allow_paid => Standing::Free,
        (Billing::Paid, _) | (Billing::Mixed, Some(false)) => Standing::Paid,
        (Billing::Mixed, None) => Standing::Unpriced,
        (Billing::Mixed, Some(true)) | (Billing::Free | Billing::FreeTier, _) => Standing::Free,
    }
}

/// Whether a provider is asked for its models at all.
pub fn asks(provider: &Provider) -> bool {
    provider.enabled && provider.configured() && provider.models_endpoint.is_some()
}

/// Whether a provider's list is to be fetched: never fetched, of another address, or older than `ttl_ms`. A list from
/// the future, which a clock that stepped back leaves behind, counts as old.
pub fn is_due(provider: &Provider, discovered: &Discovered, ttl_ms: u64, now: Now) -> bool {
    if !asks(provider) {
        return false;
    }
    let fresh = |list: &DiscoveredList| {
        let age_ms = now.wall_ms.checked_sub(list.fetched_wall_ms);
        list.base_url == provider.base_url && age_ms.is_some_and(|age_ms| age_ms < ttl_ms)
    };
    !discovered.lists.get(&*provider.id).is_some_and(fresh)
}

/// Adds what was discovered to a provider: new ids behind the declared ones, and windows that the file leaves open.
pub fn merge(provider: &mut Provider, list: &DiscoveredList, slots: &mut Slots) {
    if provider.models_endpoint.is_none() || list.base_url != provider.base_url {
        return;
    }
    for found in &list.models {
        if let Some(known) = provider.models.iter_mut().find(|model| *model.id == found.id) {
            known.context = known.context.or(found.context);
            known.max_output = known.max_output.or(found.max_output);
            // A promotion may end while the file still names the model.
            if found.free == Some(false)
                && standing(provider.billing, found.free, provider.allow_paid) == Standing::Paid
            {
                known.enabled = false;
                known.standing = Standing::Paid;
            }
            continue;
        }
        if provider.models.len() >= MODELS_MAX {
            break;
        }
        let slot = slots.intern(&format!("model/{}/{}", provider.id, found.id));
        let model = model(provider, found, slot);
        provider.models.push(model);
    }
}

/// A model that a provider's list names.
pub fn model(provider: &Provider, found: &DiscoveredModel, slot: Slot) -> Model {
    let caps = found.caps.iter().filter_map(|name| Caps::by_name(name)).fold(Caps::default(), Caps::with);
    let standing = standing(provider.billing, found.free, provider.allow_paid);
    Model {
        slot,
        id: found.id.as_str().into(),
        reference: format!("{}/{}", provider.id, found.id).into(),
        label: found.label.clone().unwrap_or_else(|| found.id.clone()),
        aliases: Vec::new(),
        context: found.context,
        max_output: found.max_output,
        caps: if caps == Caps::default() { Caps::CHAT } else { caps },
        priority: DISCOVERED_PRIORITY,
        enabled: standing != Standing::Paid,
        limits: Limits::default(),
        drop_params: Vec::new(),
        credits: None,
        tier: None,
        rank: None,
        paid_equivalent: None,
        source: ModelSource::Discovered,
        dimensions: None,
        standing,
    }
}

/// Where the ids of model lists usually stand.
const USUAL_PATHS: [&str; 11] = [
    "data[].id",
    "[].id",
    "models[].id",
    "models[].name",
    "result[].id",
    "result[].name",
    "result.models[].name",
    "data[].name",
    "[].name",
    "models[]",
    "[]",
];

/// The usual path under which a list that its file does not understand has ids.
pub fn path_of(body: &[u8]) -> Option<&'static str> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let finds = |path: &&&str| {
        IdPath::parse(path).is_ok_and(|path| path.find(&body).iter().any(|(id, _)| is_model_id(id)))
    };
    USUAL_PATHS.iter().find(finds).copied()
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use serde_json::json;

    fn provider(changes: Value) -> Provider {
        let mut file = json!({"id": "acme", "models": [{"id": "known", "alias": ["fast"], "priority": 5}]});
        for (name, value) in changes.as_object().expect("an object") {
            file[name] = value.clone();
        }
        fixture::provider(file, &mut Slots::default())
    }

    fn ids(provider: &Provider, body: Value) -> Vec<String> {
        let models = parse_models(provider, body.to_string().as_bytes()).expect("a list");
        models.into_iter().map(|model| model.id).collect()
    }

    #[test]
    fn ids_are_found_where_the_file_says() {
        let check = |path: &str, body: Value| {
            assert_eq!(
                ids(&provider(json!({"modelsPath": path})), body.clone()),
                ["a", "b/c:free"],
                "{path} {body}"
            );
        };
        check(
            "data[].id",
            json!({"data": [{"id": "a"}, {"id": "b/c:free"}, {"id": "a"}, {"id": ""}, {"id": 7}, {}]}),
        );
        check("[].id", json!([{"id": "a"}, {"id": "b/c:free"}]));
        check("models[].name", json!({"models": [{"name": "models/a"}, {"name": "b/c:free"}]}));
        check(
            "result[].models[].name",
            json!({"result": [{"models": [{"name": "a"}]}, {"models": [{"name": "b/c:free"}]}]}),
        );
        check("ids[]", json!({"ids": ["a", "b/c:free", null]}));
        for bad in ["", ".", "data[0].id", "data[", "a..b"] {
            assert!(IdPath::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_without_ids_is_an_error() {
        let acme = provider(json!({}));
        assert!(parse_models(&acme, b"<html>").is_err());
        assert!(parse_models(&acme, br#"{"error": "no"}"#).expect_err("no ids").contains("set modelsPath"));
        assert_eq!(parse_models(&acme, br#"{"data": [{"id": "whisper-1"}]}"#), Ok(Vec::new()));
    }

    #[test]
    fn windows_are_found_wherever_a_list_tells_them() {
        let window = |entry: Value| first_count(&entry, &CONTEXT_NAMES);
        assert_eq!(window(json!({"context_length": 8_192, "context_window": 4_096})), Some(8_192));
        assert_eq!(window(json!({"context_length": 0, "context_window": 4_096})), Some(4_096));
        assert_eq!(window(json!({"context_length": null, "max_model_len": "32768"})), Some(32_768));
        assert_eq!(window(json!({"top_provider": {"context_length": 4_096}})), Some(4_096));
        for nothing in [json!({"context_length": -5}), json!({"context_length": "8k"}), json!({})] {
            assert_eq!(window(nothing.clone()), None, "{nothing}");
        }
    }

    #[test]
    fn capabilities_are_guessed_from_ids_and_metadata() {
        let check = |id: &str, entry: Value, expected: Option<&[&str]>| {
            let names = guess_caps(id, &entry).map(|caps| caps.names().collect::<Vec<_>>());
            assert_eq!(names.as_deref(), expected, "{id} {entry}");
        };
        let none = || json!({});
        check("llama-3.3-70b", none(), Some(&["chat"]));
        check("text-embedding-004", none(), Some(&["embed"]));
        check("@cf/baai/bge-m3", none(), Some(&["embed"]));
        check("qwen3-coder:free", none(), Some(&["chat", "code"]));
        check("codestral-2508", none(), Some(&["chat", "code"]));
        check("deepseek-r1", none(), Some(&["chat", "reasoning"]));
        check("kimi-k2-thinking", none(), Some(&["chat", "reasoning"]));
        check("qwen-vl-max", none(), Some(&["chat", "vision"]));
        for other in [
            "whisper-large-v3",
            "mistral-ocr-latest",
            "llama-guard-4",
            "shieldgemma",
            "flux.1-dev",
            "playai-tts",
        ] {
            check(other, none(), None);
        }
        check("x", json!({"type": "embedding"}), Some(&["embed"]));
        check("x", json!({"type": "image"}), None);
        check("x", json!({"capabilities": {"completion_chat": false}}), None);
        check(
            "x",
            json!({"capabilities": {"completion_chat": true, "function_calling": true, "vision": true}}),
            Some(&["chat", "tools", "vision"]),
        );
        check(
            "x",
            json!({"architecture": {"input_modalities": ["text", "image"], "output_modalities": ["text"]}}),
            Some(&["chat", "vision"]),
        );
        check("x", json!({"architecture": {"output_modalities": ["image"]}}), None);
        check(
            "x",
            json!({"supported_parameters": ["tools", "response_format", "reasoning"]}),
            Some(&["chat", "tools", "json", "reasoning"]),
        );
    }

    #[test]
    fn metadata_tells_windows_and_prices() {
        let entry = json!({"id": "a", "name": "Model A", "context_length": 131072, "pricing": {"prompt": "0", "completion": "0.0"},
            "top_provider": {"max_completion_tokens": 4096}});
        let body = json!({"data": [entry, {"id": "b", "pricing": {"input": 0.1, "output": 0}}, {"id": "c-Free"}, {"id": "d", "context_window": -5}]});
        let models = parse_models(&provider(json!({})), body.to_string().as_bytes()).expect("a list");
        assert_eq!(
            (models[0].label.as_deref(), models[0].context, models[0].max_output),
            (Some("Model A"), Some(131_072), Some(4096))
        );
        let free: Vec<Option<bool>> = models.iter().map(|model| model.free).collect();
        assert_eq!(free, [Some(true), Some(false), Some(true), None]);
        assert_eq!(models[3].context, None);
    }

    #[test]
    fn only_what_is_free_routes() {
        use Standing::{Free, Paid, Unpriced};
        let check = |billing, expected: [Standing; 3]| {
            let found = [Some(true), None, Some(false)].map(|free| standing(billing, free, false));
            assert_eq!(found, expected, "{billing:?}");
        };
        check(Billing::Free, [Free, Free, Free]);
        check(Billing::FreeTier, [Free, Free, Free]);
        check(Billing::Mixed, [Free, Unpriced, Paid]);
        check(Billing::Paid, [Paid, Paid, Paid]);
        assert_eq!(standing(Billing::Paid, Some(false), true), Free);
    }

    #[test]
    fn a_list_is_fetched_when_it_is_old_or_of_another_address() {
        let acme = provider(json!({}));
        let list =
            DiscoveredList { fetched_wall_ms: 1_000, base_url: acme.base_url.clone(), models: Vec::new() };
        let mut discovered = Discovered::default();
        let due = |discovered: &Discovered, wall_ms| is_due(&acme, discovered, 500, Now::at(0, wall_ms));
        assert!(due(&discovered, 1_000));
        discovered.lists.insert("acme".into(), list.clone());
        assert!(!due(&discovered, 1_499) && due(&discovered, 1_500) && due(&discovered, 999));
        discovered
            .lists
            .insert("acme".into(), DiscoveredList { base_url: "https://old.example".into(), ..list });
        assert!(due(&discovered, 1_001));
        let off = provider(json!({"modelsEndpoint": null}));
        assert!(!is_due(&off, &Discovered::default(), 500, Now::at(0, 0)));
    }

    #[test]
    fn a_declared_model_that_turned_paid_is_switched_off() {
        let found =
            |id: &str| DiscoveredModel { id: id.into(), free: Some(false), ..DiscoveredModel::default() };
        for (billing, allow_paid, expected) in
            [("mixed", false, false), ("mixed", true, true), ("freeTier", false, true), ("paid", true, true)]
        {
            let mut acme = provider(json!({"billing": billing, "allowPaid": allow_paid}));
            let list = DiscoveredList {
                fetched_wall_ms: 0,
                base_url: acme.base_url.clone(),
                models: vec![found("known")],
            };
            merge(&mut acme, &list, &mut Slots::default());
            assert_eq!(acme.models[0].enabled, expected, "{billing} {allow_paid}");
        }
    }

    #[test]
    fn w3_what_is_discovered_can_be_routed() {
        let mut acme = provider(json!({"billing": "mixed"}));
        let found = |id: &str, free| DiscoveredModel {
            id: id.into(),
            free,
            context: Some(9),
            ..DiscoveredModel::default()
        };
        let mut list = DiscoveredList {
            fetched_wall_ms: 0,
            base_url: acme.base_url.clone(),
            models: vec![
                found("known", None),
                found("new:free", Some(true)),
                found("dear", Some(false)),
                found("dark", None),
            ],
        };
        merge(&mut acme, &list, &mut Slots::default());
        let shown: Vec<_> =
            acme.models.iter().map(|m| (&*m.id, m.source, m.enabled, m.priority, m.context)).collect();
        let (declared, discovered) = (ModelSource::Declared, ModelSource::Discovered);
        assert_eq!(
            shown,
            [
                ("known", declared, true, 5.0, Some(9)),
                ("new:free", discovered, true, 100.0, Some(9)),
                ("dear", discovered, false, 100.0, Some(9)),
                ("dark", discovered, true, 100.0, Some(9)),
            ]
        );
        assert_eq!(acme.models[3].standing, Standing::Unpriced);
        // A list of another address says nothing of this one.
        list.base_url = "https://elsewhere.example".into();
        list.models.push(found("foreign", Some(true)));
        merge(&mut acme, &list, &mut Slots::default());
        assert_eq!(acme.models.len(), 4);
    }
}
