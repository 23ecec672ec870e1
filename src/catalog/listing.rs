//! What `/v1/models` lists: every model of every provider, and every name that stands for several. Pure.
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::names::{Kind, Names};
use super::provider::{Caps, Model, Provider};
use super::settings::Settings;
use super::{Catalog, ModelIx};

/// One entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub id: String,
    /// A provider's id, or `freeway` for names that stand for several models.
    pub owned_by: String,
    pub context_length: Option<u64>,
    /// Request fields that every model behind the entry takes, and those for which requests go to a model that does.
    pub supported_parameters: Vec<&'static str>,
    /// Why nobody behind it can be called; `None` when somebody can, whether or not it is on a bench just now.
    pub unavailable_reason: Option<&'static str>,
    /// The `freeway` object.
    pub freeway: Map<String, Value>,
}

impl Listed {
    /// The entry as clients see it; `created_s` is in seconds since 1970.
    pub fn to_json(&self, created_s: u64) -> Value {
        json!({
            "id": self.id,
            "object": "model",
            "created": created_s,
            "owned_by": self.owned_by,
            "context_length": self.context_length,
            "supported_parameters": self.supported_parameters,
            "available": self.unavailable_reason.is_none(),
            "unavailable_reason": self.unavailable_reason,
            "freeway": self.freeway,
        })
    }
}

/// Parameters that upstreams take unless their file drops them.
const COMMON_PARAMETERS: [&str; 12] = [
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "n",
];
const EMBED_PARAMETERS: [&str; 2] = ["dimensions", "encoding_format"];
const TOOL_PARAMETERS: [&str; 3] = ["tools", "tool_choice", "parallel_tool_calls"];
const JSON_PARAMETERS: [&str; 1] = ["response_format"];

/// All entries, without duplicates: models in natural order, then aliases, unified names, profiles and `auto`.
pub fn listing(catalog: &Catalog, names: &Names, settings: &Settings) -> Vec<Listed> {
    let mut list = List { catalog, names, settings, taken: BTreeSet::new(), entries: Vec::new() };
    // A name that means everything else must not be hidden by an alias.
    list.taken.insert("auto".into());
    for at in names.order() {
        list.add_model(at);
    }
    let aliases: BTreeSet<String> = file_aliases(catalog).chain(settings.aliases.keys().cloned()).collect();
    for alias in aliases {
        let mut about = Map::new();
        about.insert("alias".into(), alias.as_str().into());
        about.insert("target".into(), settings.aliases.get(&alias).map(String::as_str).into());
        list.add_name(&alias, about);
    }
    for group in names.unified() {
        let about = json!({"unified": group.name, "label": group.label});
        list.add_name(&group.name, about.as_object().cloned().unwrap_or_default());
    }
    for name in settings.profiles.keys() {
        list.add_name(name, json!({"profile": name}).as_object().cloned().unwrap_or_default());
    }
    list.taken.remove("auto");
    let text = "whichever model can serve the request, with failover";
    list.add_name(
        "auto",
        json!({"alias": "auto", "description": text}).as_object().cloned().unwrap_or_default(),
    );
    list.entries
}

/// Aliases of providers and models that are switched on.
fn file_aliases(catalog: &Catalog) -> impl Iterator<Item = String> {
    let models =
        catalog.providers.iter().filter(|provider| provider.enabled).flat_map(|provider| &provider.models);
    models
        .filter(|model| model.enabled)
        .flat_map(|model| model.aliases.iter().map(|alias| alias.trim().to_owned()))
}

struct List<'a> {
    catalog: &'a Catalog,
    names: &'a Names,
    settings: &'a Settings,
    taken: BTreeSet<String>,
    entries: Vec<Listed>,
}

impl List<'_> {
    fn add_model(&mut self, at: ModelIx) {
        let (provider, model) = (self.catalog.provider(at), self.catalog.model(at));
        if !self.taken.insert(model.reference.to_string()) {
            return;
        }
        let about = json!({
            "provider": *provider.id,
            "providerLabel": provider.label,
            "model": *model.id,
            "label": model.label,
            "aliases": model.aliases,
            "caps": model.caps.names().collect::<Vec<_>>(),
            "context": model.context,
            "maxOutput": model.max_output,
            "enabled": provider.enabled && model.enabled,
            "configured": provider.configured(),
            "source": model.source.name(),
        });
        self.entries.push(Listed {
            id: model.reference.to_string(),
            owned_by: provider.id.to_string(),
            context_length: model.context,
            supported_parameters: parameters(provider, model),
            unavailable_reason: unavailable_reason(provider, model),
            freeway: about.as_object().cloned().unwrap_or_default(),
        });
    }

    /// Adds a name that stands for what it resolves to; names that mean nothing, or something listed, are left out.
    fn add_name(&mut self, name: &str, mut about: Map<String, Value>) {
        if !self.taken.insert(name.to_owned()) {
            return;
        }
        let mut found = self.names.resolve(self.catalog, self.settings, name, Kind::Chat).models;
        let embeds = |at: &ModelIx| self.catalog.model(*at).caps.has(Caps::EMBED);
        if found.iter().all(embeds) {
            found = self.names.resolve(self.catalog, self.settings, name, Kind::Embed).models;
        }
        if found.is_empty() && name != "auto" {
            self.taken.remove(name);
            return;
        }
        let pairs = || found.iter().map(|at| (self.catalog.provider(*at), self.catalog.model(*at)));
        let reasons: Vec<Option<&'static str>> =
            pairs().map(|(provider, model)| unavailable_reason(provider, model)).collect();
        let usable = || pairs().zip(&reasons).filter(|(_, reason)| reason.is_none()).map(|(pair, _)| pair);
        let any_usable = reasons.iter().any(Option::is_none);
        // Requests go to a model that they fit, so the largest window counts.
        let context = |pair: (&Provider, &Model)| pair.1.context;
        let context_length =
            if any_usable { usable().filter_map(context).max() } else { pairs().filter_map(context).max() };
        let sets = |(provider, model): (&Provider, &Model)| parameters(provider, model);
        let supported = if any_usable {
            together(&usable().map(sets).collect::<Vec<_>>())
        } else {
            together(&pairs().map(sets).collect::<Vec<_>>())
        };
        about.insert("virtual".into(), true.into());
        if name != "auto" {
            about.insert(
                "resolvesTo".into(),
                pairs().map(|(_, model)| &*model.reference).collect::<Vec<_>>().into(),
            );
        }
        self.entries.push(Listed {
            id: name.to_owned(),
            owned_by: "freeway".into(),
            context_length,
            supported_parameters: supported,
            unavailable_reason: if any_usable {
                None
            } else {
                // A key is the nearest thing to mend, so that it is told although others are switched off.
                Some(reasons.into_iter().flatten().max().unwrap_or("no_model"))
            },
            freeway: about,
        });
    }
}

/// What a name that stands for several models takes.
fn together(sets: &[Vec<&'static str>]) -> Vec<&'static str> {
    let steering = || TOOL_PARAMETERS.iter().chain(&JSON_PARAMETERS);
    let first = sets.first().map_or(&[][..], Vec::as_slice).iter();
    let shared = first
        .filter(|name| !steering().any(|other| other == *name) && sets.iter().all(|set| set.contains(name)));
    shared.chain(steering().filter(|name| sets.iter().any(|set| set.contains(name)))).copied().collect()
}

/// Why a model cannot be called as things are configured.
fn unavailable_reason(provider: &Provider, model: &Model) -> Option<&'static str> {
    if !provider.enabled || !model.enabled {
        return Some("disabled");
    }
    (!provider.configured()).then_some("no_key")
}

fn parameters(provider: &Provider, model: &Model) -> Vec<&'static str> {
    let dropped = |name: &&str| {
        let same = |dropped: &String| dropped == name;
        provider.quirks.drop_params.iter().any(same) || model.drop_params.iter().any(same)
    };
    let chat = model.caps.has(Caps::CHAT);
    let mut names: Vec<&'static str> = Vec::new();
    let mut add = |holds: bool, list: &[&'static str]| {
        if holds {
            names.extend(list.iter().copied().filter(|name| !dropped(name)));
        }
    };
    add(chat, &COMMON_PARAMETERS);
    add(chat && model.caps.has(Caps::TOOLS), &TOOL_PARAMETERS);
    add(chat && model.caps.has(Caps::JSON), &JSON_PARAMETERS);
    add(chat && model.caps.has(Caps::REASONING), &["reasoning_effort"]);
    add(model.caps.has(Caps::EMBED), &EMBED_PARAMETERS);
    names
}

#[cfg(test)]
mod tests {
    use super::super::config;
    use super::super::fixture::catalog;
    use super::*;

    fn world() -> (Catalog, Settings) {
        let catalog = catalog(&[
            json!({"id": "a", "dropParams": ["seed"], "models": [
                {"id": "big/one:free", "label": "One", "alias": ["fast", "auto"], "context": 8000, "caps": ["chat", "tools"]},
                {"id": "off", "enabled": false},
            ]}),
            json!({"id": "b", "auth": {"type": "bearer", "envKeys": ["UNSET_KEY"]}, "models": [
                {"id": "x", "label": "one (free)", "alias": ["fast", "later"], "context": 128000},
            ]}),
            json!({"id": "e", "models": [{"id": "vec", "alias": ["embed"], "caps": ["embed"], "context": 512}]}),
        ]);
        let text = r#"{"aliases": {"quick": "fast", "dead": "no-such-model-anywhere"}, "profiles": {"work": ["a/*"]}}"#;
        (catalog, config::read("test", text, &Default::default()).expect("valid").settings)
    }

    #[test]
    fn http_15_every_entry_is_whole_and_stands_once() {
        let (catalog, settings) = world();
        let listed = listing(&catalog, &Names::new(&catalog), &settings);
        let ids: Vec<&str> = listed.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(
            ids,
            [
                "a/big/one:free",
                "a/off",
                "b/x",
                "e/vec",
                "embed",
                "fast",
                "later",
                "quick",
                "one",
                "work",
                "auto"
            ]
        );
        for entry in &listed {
            let entry = entry.to_json(1_700_000_000);
            assert_eq!(entry["object"], "model");
            assert!(
                entry["created"].is_u64() && entry["owned_by"].is_string() && entry["available"].is_boolean()
            );
        }
    }

    #[test]
    fn entries_tell_what_they_take_and_whether_they_serve() {
        let (catalog, settings) = world();
        let listed = listing(&catalog, &Names::new(&catalog), &settings);
        let get = |id: &str| listed.iter().find(|entry| entry.id == id).expect(id);
        assert_eq!(get("a/off").unavailable_reason, Some("disabled"));
        assert_eq!(
            (get("b/x").unavailable_reason, get("later").unavailable_reason),
            (Some("no_key"), Some("no_key"))
        );
        assert_eq!((get("fast").unavailable_reason, get("fast").context_length), (None, Some(8000)));
        assert_eq!(get("later").context_length, Some(128_000));
        let one = &get("a/big/one:free").supported_parameters;
        assert!(one.contains(&"tools") && !one.contains(&"seed") && !one.contains(&"response_format"));
        // `auto` sends a request with tools where they are understood, but cannot find out who heeds a seed.
        let auto = &get("auto").supported_parameters;
        assert!(auto.contains(&"tools") && auto.contains(&"n") && !auto.contains(&"seed"), "{auto:?}");
        assert_eq!(get("e/vec").supported_parameters, EMBED_PARAMETERS);
        assert_eq!(get("embed").supported_parameters, EMBED_PARAMETERS);
        assert_eq!(get("quick").freeway["target"], "fast");
        assert_eq!(get("quick").freeway["resolvesTo"], json!(["a/big/one:free", "b/x"]));
        assert_eq!(get("auto").owned_by, "freeway");
    }
}
