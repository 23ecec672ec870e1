//! What a model string means: pins, aliases, exact ids, strategies, unified names, profiles, lists, and near misses.
//! Pure; made once for a catalog.
//!
//! The first rule that applies wins:
//! 1. `auto` and its synonyms, or nothing: every model of the right kind (or the active profile);
//! 2. `provider/*`, `provider/model`, `provider/part` behind the id of a known provider: never anything else;
//! 3. an alias of the configuration;
//! 4. an alias of a provider file;
//! 5. an exact model id, at whoever has it;
//! 6. `auto:<strategy>`, then `auto:<profile>`;
//! 7. a unified name: the same weights at several providers, and nothing beside them;
//! 8. a profile;
//! 9. `provider:model`, like rule 2;
//! 10. a part of an id or of `provider/id`.
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

use super::provider::{Caps, Standing};
use super::settings::{Profile, Settings, Strategy};
use super::unified::{self, Regroup, Unified};
use super::{Catalog, ModelIx};
use crate::base::text::{edit_distance, truncate};
use crate::wire::chat::MODELS_MAX;

/// What is asked of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Chat,
    Embed,
}

impl Kind {
    /// The capability without which a model is of another kind.
    pub const fn cap(self) -> Caps {
        match self {
            Kind::Chat => Caps::CHAT,
            Kind::Embed => Caps::EMBED,
        }
    }
}

/// How a model string was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Auto,
    /// One exact model.
    Pin,
    /// Any model of one provider, or those of it that a part of a name fits.
    PinProvider,
    Alias,
    Exact,
    Fuzzy,
    Unified,
    Profile,
    List,
    Unmatched,
}

/// What a model string meant.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolution {
    /// For `x-freeway-route`, such as `alias:fast`.
    pub route: String,
    /// In natural order: lowest priority numbers first, last resorts at the end, ties by reference. Models that are
    /// switched off or lack a key are among them, so that the answer can say why they did not serve. Empty for an
    /// unmatched string, and for `auto` or `provider/*` where there is nothing at all.
    pub models: Vec<ModelIx>,
    pub how: How,
    /// Set by the string itself.
    pub strategy: Option<Strategy>,
    /// Whether `models` is to be tried in this very order.
    pub keep_order: bool,
    /// References that an unmatched string may have meant, best first.
    pub suggestions: Vec<String>,
}

impl Resolution {
    /// Of a model string that means nothing, or nothing to this client.
    pub fn unmatched(text: &str, suggestions: Vec<String>) -> Resolution {
        Resolution {
            route: format!("unmatched:{}", truncate(text, SHOWN_MAX)),
            models: Vec::new(),
            how: How::Unmatched,
            strategy: None,
            keep_order: false,
            suggestions,
        }
    }
}

/// The index over one catalog.
#[derive(Debug, Default)]
pub struct Names {
    /// Every model in natural order.
    entries: Vec<Entry>,
    by_id: HashMap<Box<str>, Vec<usize>>,
    by_alias: HashMap<Box<str>, Vec<usize>>,
    /// Sorted by name.
    unified: Vec<Unified>,
    /// What `auto` means by itself, worked out once: nearly all requests ask for it, and it names every model.
    everything: [OnceLock<Resolution>; 2],
}

#[derive(Debug)]
struct Entry {
    at: ModelIx,
    /// `provider/id` in lower case, and where the id begins in it.
    lower: Box<str>,
    id_from: usize,
    caps: Caps,
    last_resort: bool,
    standing: Standing,
}

impl Entry {
    fn lower_id(&self) -> &str {
        &self.lower[self.id_from..]
    }
}

pub const AUTO: [&str; 5] = ["", "auto", "freeway", "any", "default"];
/// Aliases and profiles that name each other deeper than this lead nowhere.
const DEPTH_MAX: usize = 16;
/// Most model strings looked at for one request: profiles may hold profiles.
const STEPS_MAX: usize = 1_000;
/// Longest part of a model string that is repeated to the client.
const SHOWN_MAX: usize = 256;
pub const SUGGESTIONS_MAX: usize = 5;
/// Most ids whose exact likeness to a string is computed.
const MEASURED_MAX: usize = 64;
/// Below this likeness a suggestion is noise.
const LIKENESS_MIN: f64 = 0.2;

impl Names {
    /// Indexes a catalog.
    pub fn new(catalog: &Catalog) -> Names {
        Names::regrouped(catalog, &Regroup::default())
    }

    /// Indexes a catalog whose unified names the owner corrected.
    pub fn regrouped(catalog: &Catalog, regroup: &Regroup) -> Names {
        let mut entries: Vec<Entry> = catalog.all().map(|at| entry(catalog, at)).collect();
        entries.sort_by(|a, b| {
            let key =
                |e: &Entry| (e.last_resort, catalog.provider(e.at).priority, catalog.model(e.at).priority);
            let ((a_last, a_provider, a_model), (b_last, b_provider, b_model)) = (key(a), key(b));
            let order =
                a_last.cmp(&b_last).then(a_provider.total_cmp(&b_provider)).then(a_model.total_cmp(&b_model));
            order.then_with(|| catalog.model(a.at).reference.cmp(&catalog.model(b.at).reference))
        });
        let mut names = Names { entries, ..Names::default() };
        for (i, entry) in names.entries.iter().enumerate() {
            let model = catalog.model(entry.at);
            names.by_id.entry((&*model.id).into()).or_default().push(i);
            for alias in &model.aliases {
                let found = names.by_alias.entry(alias.to_lowercase().into()).or_default();
                if found.last() != Some(&i) {
                    found.push(i);
                }
            }
        }
        names.unified = unified::groups(catalog, regroup, names.entries.iter().map(|entry| entry.at));
        names
    }

    /// The groups that have a name of their own.
    pub fn unified(&self) -> &[Unified] {
        &self.unified
    }

    /// Every model in natural order.
    pub fn order(&self) -> impl Iterator<Item = ModelIx> {
        self.entries.iter().map(|entry| entry.at)
    }

    /// What a model string means; an empty one is `auto`.
    pub fn resolve(&self, catalog: &Catalog, settings: &Settings, asked: &str, kind: Kind) -> Resolution {
        Search { names: self, catalog, settings, kind, steps: Cell::new(0) }.one(asked, 0)
    }

    /// What an explicit list of model strings means.
    pub fn resolve_list(
        &self,
        catalog: &Catalog,
        settings: &Settings,
        asked: &[String],
        kind: Kind,
    ) -> Resolution {
        Search { names: self, catalog, settings, kind, steps: Cell::new(0) }.list(asked)
    }
}

fn entry(catalog: &Catalog, at: ModelIx) -> Entry {
    let (provider, model) = (catalog.provider(at), catalog.model(at));
    let prefix = provider.id.to_lowercase();
    Entry {
        at,
        id_from: prefix.len() + 1,
        lower: format!("{prefix}/{}", model.id.to_lowercase()).into(),
        caps: model.caps,
        last_resort: provider.last_resort,
        standing: model.standing,
    }
}

/// One look-up.
struct Search<'a> {
    names: &'a Names,
    catalog: &'a Catalog,
    settings: &'a Settings,
    kind: Kind,
    /// Model strings looked at so far.
    steps: Cell<usize>,
}

impl Search<'_> {
    fn one(&self, text: &str, depth: usize) -> Resolution {
        let text = text.trim();
        let lower = text.to_lowercase();
        self.steps.set(self.steps.get() + 1);
        if depth > DEPTH_MAX || self.steps.get() > STEPS_MAX {
            return self.unmatched(text);
        }
        if AUTO.contains(&lower.as_str()) {
            return self.auto(depth);
        }
        if let Some((provider, model)) = self.split_provider(text, '/') {
            return self.pin(text, provider, model);
        }
        if let Some(target) = self.configured_alias(text, &lower) {
            let inner = self.one(target, depth + 1);
            if inner.how == How::Unmatched {
                return inner;
            }
            let route = format!("alias:{}->{target}", truncate(text, SHOWN_MAX));
            return Resolution { route, how: How::Alias, ..inner };
        }
        let carriers = self.names.by_alias.get(lower.as_str()).map_or(&[][..], Vec::as_slice);
        let alias = |found| {
            self.set(format!("alias:{}", truncate(text, SHOWN_MAX)), How::Alias, self.to_models(found))
        };
        let right = self.of_kind(carriers);
        if !right.is_empty() {
            return alias(right);
        }
        if let Some(found) = self.names.by_id.get(text) {
            // When nobody of the right kind has it, the answer is to be "wrong kind", not "no such model".
            let right = self.of_kind(found);
            let models = self.to_models(if right.is_empty() { found.clone() } else { right });
            return self.set(format!("model:{text}"), How::Exact, models);
        }
        if !carriers.is_empty() {
            return alias(carriers.to_vec());
        }
        self.less_exact(text, &lower, depth)
    }

    /// Rules 6 to 10.
    fn less_exact(&self, text: &str, lower: &str, depth: usize) -> Resolution {
        if let Some(suffix) = lower.strip_prefix("auto:").map(str::trim) {
            if let Some(strategy) = strategy_of(suffix) {
                let all = self.everything();
                let route = format!("auto:{}", strategy.name());
                return Resolution { strategy: Some(strategy), ..self.set(route, How::Auto, all) };
            }
            if let Some((name, profile)) = self.profile(suffix) {
                return self.of_profile(name, profile, depth);
            }
        }
        let slug = unified::slug(text);
        let group = self.names.unified.binary_search_by(|group| group.name.as_str().cmp(&slug));
        if let Some(group) = group.ok().map(|i| &self.names.unified[i]) {
            let models: Vec<ModelIx> =
                group.members.iter().copied().filter(|at| self.is_right(*at)).collect();
            if !models.is_empty() {
                return self.set(format!("unified:{}", group.name), How::Unified, models);
            }
        }
        if let Some((name, profile)) = self.profile(lower) {
            return self.of_profile(name, profile, depth);
        }
        if let Some((provider, model)) = self.split_provider(text, ':') {
            return self.pin(text, provider, model);
        }
        let found = self.containing(lower, |_| true);
        if found.is_empty() {
            return self.unmatched(text);
        }
        self.set(format!("fuzzy:{text}"), How::Fuzzy, found)
    }

    fn auto(&self, depth: usize) -> Resolution {
        let active =
            self.settings.active_profile.as_deref().and_then(|name| self.profile(&name.to_lowercase()));
        // A profile that holds `auto` means everything by it, not itself.
        if let Some((name, profile)) = active.filter(|_| depth == 0) {
            return Resolution {
                route: "auto".into(),
                how: How::Auto,
                ..self.of_profile(name, profile, depth)
            };
        }
        let known = &self.names.everything[usize::from(self.kind == Kind::Embed)];
        known.get_or_init(|| self.set("auto".into(), How::Auto, self.everything())).clone()
    }

    /// Every model of the right kind but those that serve only by name.
    fn everything(&self) -> Vec<ModelIx> {
        let wanted = |entry: &&Entry| entry.caps.has(self.kind.cap()) && entry.standing != Standing::Unpriced;
        let mut models = Vec::with_capacity(self.names.entries.len());
        models.extend(self.names.entries.iter().filter(wanted).map(|entry| entry.at));
        models
    }

    fn pin(&self, text: &str, provider: u16, model: &str) -> Resolution {
        let shown = truncate(text, SHOWN_MAX);
        let of_provider = |entry: &Entry| entry.at.provider == provider;
        if model == "*" {
            let models = self.everything().into_iter().filter(|at| at.provider == provider).collect();
            let id = &self.catalog.providers[usize::from(provider)].id;
            return self.set(format!("pin:{id}/*"), How::PinProvider, models);
        }
        let lower = model.to_lowercase();
        let exact = self
            .names
            .by_id
            .get(model)
            .into_iter()
            .flatten()
            .map(|i| &self.names.entries[*i])
            .find(|e| of_provider(e));
        if let Some(entry) = exact {
            return self.set(format!("pin:{shown}"), How::Pin, vec![entry.at]);
        }
        // Meant for one model, though others may hold its name too.
        let same = self.names.entries.iter().find(|entry| of_provider(entry) && entry.lower_id() == lower);
        if let Some(entry) = same {
            return self.set(format!("pin-fuzzy:{shown}"), How::Pin, vec![entry.at]);
        }
        let found = self.containing(&lower, of_provider);
        if found.is_empty() {
            return Resolution { route: format!("pin:{shown}"), ..self.unmatched(text) };
        }
        self.set(format!("pin-fuzzy:{shown}"), How::PinProvider, found)
    }

    /// Models whose id, or whose `provider/id`, holds the needle; the right kind if there is one, else the wrong one.
    fn containing(&self, needle: &str, among: impl Fn(&Entry) -> bool) -> Vec<ModelIx> {
        // A slash or a single letter is a part of nearly everything and means nothing.
        if needle.len() < 2 || !needle.chars().any(char::is_alphanumeric) || needle.len() > SHOWN_MAX {
            return Vec::new();
        }
        let finder = memchr::memmem::Finder::new(needle);
        let fits = |entry: &&Entry| among(entry) && finder.find(entry.lower.as_bytes()).is_some();
        let found: Vec<&Entry> = self.names.entries.iter().filter(fits).collect();
        let right: Vec<ModelIx> =
            found.iter().filter(|e| e.caps.has(self.kind.cap())).map(|entry| entry.at).collect();
        if right.is_empty() { found.iter().map(|entry| entry.at).collect() } else { right }
    }

    fn of_profile(&self, name: &str, profile: &Profile, depth: usize) -> Resolution {
        let models = self.each(profile.models.iter().map(|text| self.one(text, depth + 1)));
        if models.is_empty() {
            return Resolution { route: format!("profile:{name}"), ..self.unmatched(name) };
        }
        Resolution {
            route: format!("profile:{name}"),
            models,
            how: How::Profile,
            strategy: profile.strategy,
            // Without a strategy of its own a profile is its order.
            keep_order: profile.strategy.is_none(),
            suggestions: Vec::new(),
        }
    }

    fn list(&self, asked: &[String]) -> Resolution {
        let models = self.each(asked.iter().take(MODELS_MAX).map(|text| self.one(text, 1)));
        let route = format!("list:{}", asked.len().min(MODELS_MAX));
        if models.is_empty() {
            let first = asked.first().map_or("", String::as_str);
            return Resolution { route, ..self.unmatched(first) };
        }
        Resolution {
            route,
            models,
            how: How::List,
            strategy: None,
            keep_order: true,
            suggestions: Vec::new(),
        }
    }

    /// The models of several resolutions in their order, each once.
    fn each(&self, resolutions: impl Iterator<Item = Resolution>) -> Vec<ModelIx> {
        let mut seen = BTreeSet::new();
        resolutions.flat_map(|resolution| resolution.models).filter(|at| seen.insert(*at)).collect()
    }

    /// A resolution to a set of models, under the two rules that hold for sets.
    fn set(&self, route: String, how: How, mut models: Vec<ModelIx>) -> Resolution {
        if !matches!(how, How::Auto | How::Pin | How::PinProvider) {
            self.drop_last_resorts(&mut models);
        }
        if self.kind == Kind::Embed {
            self.keep_one_vector_space(&mut models);
        }
        Resolution { route, models, how, strategy: None, keep_order: false, suggestions: Vec::new() }
    }

    /// Last resorts are reached from `auto` and profiles, or when nobody else has the model.
    fn drop_last_resorts(&self, models: &mut Vec<ModelIx>) {
        let last = |at: &ModelIx| self.catalog.provider(*at).last_resort;
        if models.iter().any(|at| !last(at)) {
            models.retain(|at| !last(at));
        }
    }

    /// Vectors of different models cannot be compared, so failing over between them would be silent damage: only the
    /// best usable model stays, at every provider that has the same weights.
    fn keep_one_vector_space(&self, models: &mut Vec<ModelIx>) {
        let usable = |at: &&ModelIx| {
            let provider = self.catalog.provider(**at);
            provider.enabled && provider.configured() && self.catalog.model(**at).enabled
        };
        let Some(chosen) = models.iter().find(usable).copied() else { return };
        let group = self.names.unified.iter().find(|group| group.members.contains(&chosen));
        models.retain(|at| *at == chosen || group.is_some_and(|group| group.members.contains(at)));
    }

    fn unmatched(&self, text: &str) -> Resolution {
        Resolution::unmatched(text, self.suggestions(text))
    }

    /// A known provider before the first separator, and what stands behind it.
    fn split_provider<'t>(&self, text: &'t str, separator: char) -> Option<(u16, &'t str)> {
        let (id, model) = text.split_once(separator)?;
        let position = self.catalog.providers.iter().position(|provider| *provider.id == *id)?;
        Some((u16::try_from(position).ok()?, model.trim()))
    }

    fn configured_alias(&self, text: &str, lower: &str) -> Option<&str> {
        let aliases = &self.settings.aliases;
        aliases.get(text).or_else(|| aliases.get(lower)).map(String::as_str)
    }

    fn profile(&self, lower: &str) -> Option<(&str, &Profile)> {
        let found = self.settings.profiles.iter().find(|(name, _)| name.to_lowercase() == lower);
        found.map(|(name, profile)| (name.as_str(), profile))
    }

    fn is_right(&self, at: ModelIx) -> bool {
        self.catalog.model(at).caps.has(self.kind.cap())
    }

    fn of_kind(&self, found: &[usize]) -> Vec<usize> {
        found.iter().copied().filter(|i| self.names.entries[*i].caps.has(self.kind.cap())).collect()
    }

    fn to_models(&self, found: Vec<usize>) -> Vec<ModelIx> {
        found.into_iter().map(|i| self.names.entries[i].at).collect()
    }

    /// The references most like a string. A cheap upper bound is computed for all, the exact likeness only as long as
    /// it can still win.
    fn suggestions(&self, text: &str) -> Vec<String> {
        let given = truncate(text, SHOWN_MAX).to_lowercase();
        // Behind a known provider the id is what may be wrong.
        let given = match self.split_provider(text, '/') {
            Some((_, model)) if !model.is_empty() => truncate(model, SHOWN_MAX).to_lowercase(),
            _ => given,
        };
        let counts = letter_counts(&given);
        let mut bounds: Vec<(f64, &Entry)> = self
            .names
            .entries
            .iter()
            .map(|entry| (likeness_bound(&given, &counts, entry.lower_id()), entry))
            .filter(|(bound, _)| *bound > LIKENESS_MIN)
            .collect();
        bounds.sort_by(|a, b| b.0.total_cmp(&a.0));
        bounds.truncate(MEASURED_MAX);
        let mut best: Vec<(f64, &str)> = Vec::new();
        for (bound, entry) in bounds {
            if best.len() == SUGGESTIONS_MAX && best.last().is_some_and(|(least, _)| bound <= *least) {
                break;
            }
            let score = likeness(&given, entry.lower_id());
            if score > LIKENESS_MIN {
                best.push((score, &self.catalog.model(entry.at).reference));
                best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
                best.truncate(SUGGESTIONS_MAX);
            }
        }
        best.into_iter().map(|(_, reference)| reference.to_owned()).collect()
    }
}

/// The strategy behind `auto:`, by its name or by a word that people use for it.
fn strategy_of(suffix: &str) -> Option<Strategy> {
    match suffix {
        "fast" | "speed" => Some(Strategy::Fastest),
        other => Strategy::by_name(other),
    }
}

/// 1 for the same text, else the share that need not be edited, and at least 0.9 when one text holds the other.
fn likeness(given: &str, id: &str) -> f64 {
    let longest = given.chars().count().max(id.chars().count()).max(1);
    let kept = 1.0 - edit_distance(given, id) as f64 / longest as f64;
    let holds = !given.is_empty() && (id.contains(given) || given.contains(id));
    if holds { kept.max(0.9) } else { kept }
}

/// How often each kind of byte stands in a text.
fn letter_counts(text: &str) -> [u16; 64] {
    let mut counts = [0u16; 64];
    for b in text.bytes() {
        counts[usize::from(b & 63)] += 1;
    }
    counts
}

/// An upper bound of [`likeness`]: letters that one text lacks have to be edited.
fn likeness_bound(given: &str, counts: &[u16; 64], id: &str) -> f64 {
    if id.contains(given) || given.contains(id) {
        return 1.0;
    }
    let mut left = *counts;
    let mut common = 0usize;
    for b in id.bytes() {
        let count = &mut left[usize::from(b & 63)];
        if *count > 0 {
            *count -= 1;
            common += 1;
        }
    }
    // Bytes against characters: with other scripts the bound is only looser.
    let longest = given.chars().count().max(id.chars().count()).max(1);
    (common as f64 / longest as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::super::config;
    use super::super::fixture::catalog;
    use super::*;
    use serde_json::json;

    fn world() -> Catalog {
        catalog(&[
            json!({"id": "groq", "priority": 15, "models": [
                {"id": "llama-3.3-70b-versatile", "label": "Llama 3.3 70B", "alias": ["fast", "big"], "priority": 10},
                {"id": "openai/gpt-oss-120b", "caps": ["chat", "tools"]},
            ]}),
            json!({"id": "cerebras", "priority": 15, "models": [
                {"id": "llama-3.3-70b", "label": "llama-3.3 70b (free)", "alias": ["Fast"], "priority": 10},
                {"id": "gpt-oss-120b", "label": "GPT-OSS 120B"},
            ]}),
            json!({"id": "mistral", "priority": 10, "models": [
                {"id": "mistral-small-latest", "alias": ["fast"]},
                {"id": "mistral-embed", "alias": ["embed"], "caps": ["embed"]},
                {"id": "constructor"},
            ]}),
            json!({"id": "google-ai", "priority": 25, "models": [
                {"id": "text-embedding-004", "alias": ["embed"], "caps": ["embed"]},
            ]}),
            json!({"id": "cf", "priority": 20, "models": [
                {"id": "@cf/meta/llama-3.1-8b-instruct", "enabled": false},
                {"id": "acme/big-2:free"},
                {"id": "模型-7b"},
            ]}),
            json!({"id": "ollama", "priority": 1, "lastResort": true, "auth": {"type": "none"}, "models": [
                {"id": "qwen3", "alias": ["fast", "home"]},
            ]}),
        ])
    }

    fn settings() -> Settings {
        let text = r#"{
            "aliases": {"quick": "fast", "mine": "groq/llama-3.3-70b-versatile", "gone": "no-such-model-anywhere", "best": "work"},
            "profiles": {"Work": ["cf/模型-7b", "groq/*", "nowhere-to-be-found"], "rr": {"models": ["fast"], "strategy": "round-robin"}}
        }"#;
        config::read("test", text, &Default::default()).expect("valid").settings
    }

    /// Resolves, and gives the route and the references.
    fn ask(asked: &[&str], kind: Kind) -> (Resolution, Vec<String>) {
        let (catalog, settings) = (world(), settings());
        let names = Names::new(&catalog);
        let found = match asked {
            [only] => names.resolve(&catalog, &settings, only, kind),
            list => {
                let list: Vec<String> = list.iter().map(|text| text.to_string()).collect();
                names.resolve_list(&catalog, &settings, &list, kind)
            }
        };
        let references = found.models.iter().map(|at| catalog.model(*at).reference.to_string()).collect();
        (found, references)
    }

    fn check(text: &str, route: &str, how: How, references: &[&str]) {
        let (found, got) = ask(&[text], Kind::Chat);
        assert_eq!((found.route.as_str(), found.how), (route, how), "{text}");
        assert_eq!(got, references, "{text}");
    }

    #[test]
    fn a_list_of_one_is_a_list() {
        let (found, got) = {
            let (catalog, settings) = (world(), settings());
            let list = ["groq/llama-3.3-70b-versatile".to_owned()];
            let found = Names::new(&catalog).resolve_list(&catalog, &settings, &list, Kind::Chat);
            let first = found.models.first().map(|at| catalog.model(*at).reference.to_string());
            (found, first)
        };
        assert_eq!((found.route.as_str(), found.how), ("list:1", How::List));
        assert_eq!(got.as_deref(), Some("groq/llama-3.3-70b-versatile"));
    }

    #[test]
    fn auto_is_everything_of_the_kind_in_natural_order() {
        let all = [
            "mistral/constructor",
            "mistral/mistral-small-latest",
            "cerebras/llama-3.3-70b",
            "groq/llama-3.3-70b-versatile",
            "cerebras/gpt-oss-120b",
            "groq/openai/gpt-oss-120b",
            "cf/@cf/meta/llama-3.1-8b-instruct",
            "cf/acme/big-2:free",
            "cf/模型-7b",
            "ollama/qwen3",
        ];
        for text in ["", "auto", "  AUTO ", "freeway", "any", "default"] {
            check(text, "auto", How::Auto, &all);
        }
        let (found, got) = ask(&["auto:fastest"], Kind::Chat);
        assert_eq!(
            (found.route.as_str(), found.strategy, got.len()),
            ("auto:fastest", Some(Strategy::Fastest), all.len())
        );
        assert_eq!(ask(&["auto:Speed"], Kind::Chat).0.strategy, Some(Strategy::Fastest));
        assert_eq!(ask(&["auto:nonsense"], Kind::Chat).0.how, How::Unmatched);
    }

    #[test]
    fn http_09_pins_are_split_at_the_first_separator() {
        check(
            "cf/@cf/meta/llama-3.1-8b-instruct",
            "pin:cf/@cf/meta/llama-3.1-8b-instruct",
            How::Pin,
            &["cf/@cf/meta/llama-3.1-8b-instruct"],
        );
        check("cf/acme/big-2:free", "pin:cf/acme/big-2:free", How::Pin, &["cf/acme/big-2:free"]);
        check("cf/模型-7b", "pin:cf/模型-7b", How::Pin, &["cf/模型-7b"]);
        check("acme/big-2:free", "model:acme/big-2:free", How::Exact, &["cf/acme/big-2:free"]);
        check(
            "groq/LLAMA-3.3-70b-Versatile",
            "pin-fuzzy:groq/LLAMA-3.3-70b-Versatile",
            How::Pin,
            &["groq/llama-3.3-70b-versatile"],
        );
        check(
            "groq:openai/gpt-oss-120b",
            "pin:groq:openai/gpt-oss-120b",
            How::Pin,
            &["groq/openai/gpt-oss-120b"],
        );
        check(
            "groq/*",
            "pin:groq/*",
            How::PinProvider,
            &["groq/llama-3.3-70b-versatile", "groq/openai/gpt-oss-120b"],
        );
        check("groq/oss", "pin-fuzzy:groq/oss", How::PinProvider, &["groq/openai/gpt-oss-120b"]);
        check("google-ai/*", "pin:google-ai/*", How::PinProvider, &[]);
    }

    #[test]
    fn b18_a_pin_to_nothing_matches_nothing() {
        for text in [
            "groq/",
            "groq/ ",
            "groq//",
            "groq/-",
            "groq/nope",
            "groq:",
            "Groq/llama-3.3-70b-versatile/x",
            "/",
            "-",
            "a",
        ] {
            let (found, got) = ask(&[text], Kind::Chat);
            assert_eq!((found.how, got.len()), (How::Unmatched, 0), "{text}: {}", found.route);
        }
        // The wrong kind is found, so that the answer can say so; it lacks the capability.
        check("mistral/mistral-embed", "pin:mistral/mistral-embed", How::Pin, &["mistral/mistral-embed"]);
        check("mistral-embed", "model:mistral-embed", How::Exact, &["mistral/mistral-embed"]);
        let both = ["mistral/mistral-embed", "google-ai/text-embedding-004"];
        check("embed", "alias:embed", How::Alias, &both);
        assert_eq!(ask(&["home"], Kind::Embed).1, ["ollama/qwen3"]);
    }

    #[test]
    fn b18_embeddings_stay_in_one_vector_space() {
        for text in ["auto", "embed"] {
            assert_eq!(ask(&[text], Kind::Embed).1, ["mistral/mistral-embed"], "{text}");
        }
        let (_, got) = ask(&["mistral-embed", "text-embedding-004"], Kind::Embed);
        assert_eq!(
            got,
            ["mistral/mistral-embed", "google-ai/text-embedding-004"],
            "an explicit list opts in"
        );
    }

    #[test]
    fn aliases_of_the_configuration_come_before_those_of_files() {
        check(
            "quick",
            "alias:quick->fast",
            How::Alias,
            &["mistral/mistral-small-latest", "cerebras/llama-3.3-70b", "groq/llama-3.3-70b-versatile"],
        );
        check(
            "FAST",
            "alias:FAST",
            How::Alias,
            &["mistral/mistral-small-latest", "cerebras/llama-3.3-70b", "groq/llama-3.3-70b-versatile"],
        );
        check(
            "mine",
            "alias:mine->groq/llama-3.3-70b-versatile",
            How::Alias,
            &["groq/llama-3.3-70b-versatile"],
        );
        check(
            "Mine",
            "alias:Mine->groq/llama-3.3-70b-versatile",
            How::Alias,
            &["groq/llama-3.3-70b-versatile"],
        );
        check("home", "alias:home", How::Alias, &["ollama/qwen3"]);
        assert_eq!(ask(&["gone"], Kind::Chat).0.how, How::Unmatched);
    }

    #[test]
    fn a7_names_of_javascript_are_names_like_any_other() {
        check("constructor", "model:constructor", How::Exact, &["mistral/constructor"]);
        for text in ["__proto__", "toString", "hasOwnProperty"] {
            assert_eq!(ask(&[text], Kind::Chat).0.how, How::Unmatched, "{text}");
        }
    }

    #[test]
    fn a7_names_that_lead_in_circles_end() {
        let catalog = world();
        let mut settings = settings();
        settings.aliases = [("x", "y"), ("y", "x")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        let models = vec!["p".to_owned(); 8];
        settings.profiles = [("p".to_owned(), Profile { models, strategy: None })].into();
        let names = Names::new(&catalog);
        for text in ["x", "p", "auto:p"] {
            assert_eq!(names.resolve(&catalog, &settings, text, Kind::Chat).how, How::Unmatched, "{text}");
        }
    }

    #[test]
    fn exact_ids_come_before_unified_names() {
        check("llama-3.3-70b", "model:llama-3.3-70b", How::Exact, &["cerebras/llama-3.3-70b"]);
        check("openai/gpt-oss-120b", "model:openai/gpt-oss-120b", How::Exact, &["groq/openai/gpt-oss-120b"]);
        check(
            "Llama 3.3 70B",
            "unified:llama-3.3-70b",
            How::Unified,
            &["cerebras/llama-3.3-70b", "groq/llama-3.3-70b-versatile"],
        );
        check(
            "GPT OSS 120b",
            "unified:gpt-oss-120b",
            How::Unified,
            &["cerebras/gpt-oss-120b", "groq/openai/gpt-oss-120b"],
        );
    }

    #[test]
    fn profiles_and_lists_keep_their_order() {
        let (found, got) = ask(&["work"], Kind::Chat);
        assert_eq!((found.route.as_str(), found.keep_order), ("profile:Work", true));
        assert_eq!(got, ["cf/模型-7b", "groq/llama-3.3-70b-versatile", "groq/openai/gpt-oss-120b"]);
        let (found, _) = ask(&["rr"], Kind::Chat);
        assert_eq!((found.strategy, found.keep_order), (Some(Strategy::RoundRobin), false));
        let (found, got) = ask(&["groq/oss", "fast", "groq/oss", "nowhere-to-be-found"], Kind::Chat);
        assert_eq!((found.route.as_str(), found.how, found.keep_order), ("list:4", How::List, true));
        assert_eq!(got[..2], ["groq/openai/gpt-oss-120b", "mistral/mistral-small-latest"]);
        check(
            "best",
            "alias:best->work",
            How::Alias,
            &["cf/模型-7b", "groq/llama-3.3-70b-versatile", "groq/openai/gpt-oss-120b"],
        );
    }

    #[test]
    fn an_active_profile_is_auto() {
        let (catalog, mut settings) = (world(), settings());
        settings.active_profile = Some("work".into());
        let found = Names::new(&catalog).resolve(&catalog, &settings, "", Kind::Chat);
        assert_eq!((found.route.as_str(), found.how, found.models.len()), ("auto", How::Auto, 3));
    }

    #[test]
    fn a_part_of_a_name_finds_what_holds_it() {
        check("llama-3.1-8b", "fuzzy:llama-3.1-8b", How::Fuzzy, &["cf/@cf/meta/llama-3.1-8b-instruct"]);
        check("SMALL-latest", "fuzzy:SMALL-latest", How::Fuzzy, &["mistral/mistral-small-latest"]);
    }

    #[test]
    fn an_unmatched_name_gets_suggestions() {
        let (found, _) = ask(&["lllama-3.3-70b-versatile"], Kind::Chat);
        assert_eq!(found.route, "unmatched:lllama-3.3-70b-versatile");
        assert_eq!(found.suggestions[0], "groq/llama-3.3-70b-versatile");
        let (found, _) = ask(&["mistral/mistal-small-latest"], Kind::Chat);
        assert_eq!(
            (found.route.as_str(), found.suggestions[0].as_str()),
            ("pin:mistral/mistal-small-latest", "mistral/mistral-small-latest")
        );
        let (found, _) = ask(&[&"x".repeat(100_000)], Kind::Chat);
        assert!(found.route.len() < 300 && found.suggestions.len() <= SUGGESTIONS_MAX);
    }

    #[test]
    fn the_bound_never_hides_a_better_suggestion() {
        for (given, id) in [
            ("lama", "llama-3"),
            ("gpt-oss", "gpt-oss-120b"),
            ("模型", "模型-7b"),
            ("abc", "xyz"),
            ("a-b-c", "c-b-a"),
        ] {
            let bound = likeness_bound(given, &letter_counts(given), id);
            assert!(bound >= likeness(given, id), "{given} {id}: {bound}");
        }
    }

    #[test]
    fn models_of_unknown_price_serve_only_by_name() {
        let mut catalog = world();
        let at = catalog
            .all()
            .find(|at| &*catalog.model(*at).reference == "groq/openai/gpt-oss-120b")
            .expect("it is there");
        catalog.providers[usize::from(at.provider)].models[usize::from(at.model)].standing =
            Standing::Unpriced;
        let (names, settings) = (Names::new(&catalog), settings());
        let found = |text: &str| names.resolve(&catalog, &settings, text, Kind::Chat).models.contains(&at);
        assert!(!found("auto") && !found("groq/*"));
        assert!(found("groq/openai/gpt-oss-120b") && found("openai/gpt-oss-120b"));
    }
}
