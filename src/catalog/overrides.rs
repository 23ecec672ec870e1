//! `data/overrides.json`: what the owner changed in the page or by the API, over what the files say. Provider files are
//! never rewritten. The format is ours alone, so it is read strictly: one slip refuses all of it, and says where. Pure
//! but for [`read_file`] and [`write_file`].
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::config::cycle_from;
use super::env::read_bounded;
use super::fields::{Fields, Findings, shown};
use super::provider::{Caps, Limits, Metric, Model, Provider};
use super::settings::{Profile, Settings, Strategy};
use super::spec_model::{TOKENS_MAX, read_caps, read_limits};
use super::unified::{self, Regroup};
use super::{Issue, IssueLevel, boxfile, json};

/// Below the data folder.
pub const FILE: &str = "overrides.json";
/// Largest file, and largest document that is taken.
pub const BYTES_MAX: usize = 1 << 20;

/// Everything overridden.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// As it stands in the file, for people.
    document: Map<String, Value>,
    providers: BTreeMap<String, ProviderOverride>,
    /// By reference.
    models: BTreeMap<String, ModelOverride>,
    profiles: BTreeMap<String, Profile>,
    /// `Some(None)`: no profile is to be active, whatever the configuration says.
    active_profile: Option<Option<String>>,
    aliases: BTreeMap<String, String>,
    /// Which models share a name.
    pub regroup: Regroup,
}

/// What is overridden of one provider.
#[derive(Clone, Debug, Default)]
struct ProviderOverride {
    enabled: Option<bool>,
    priority: Option<f64>,
    limits: LimitsOverride,
}

/// What is overridden of one model.
#[derive(Clone, Debug, Default)]
struct ModelOverride {
    enabled: Option<bool>,
    priority: Option<f64>,
    caps: Option<Caps>,
    context: Option<u64>,
    max_output: Option<u64>,
    limits: LimitsOverride,
}

/// Limits that are set, and those that are lifted.
#[derive(Clone, Debug, Default)]
struct LimitsOverride {
    set: Limits,
    lifted: Vec<Metric>,
}

impl LimitsOverride {
    fn read(fields: &Fields<'_>) -> LimitsOverride {
        let set = read_limits(fields);
        let members = fields.value("limits").and_then(Value::as_object);
        let is_lifted = |metric: &Metric| {
            members.and_then(|members| members.get(metric.name())).is_some_and(Value::is_null)
        };
        LimitsOverride { set, lifted: Metric::ALL.into_iter().filter(is_lifted).collect() }
    }

    fn apply(&self, limits: &mut Limits) {
        limits.max.retain(|metric, _| !self.lifted.contains(metric));
        limits.max.extend(self.set.max.iter().map(|(metric, limit)| (*metric, *limit)));
        if self.set.credits_per_request.is_some() {
            limits.credits_per_request = self.set.credits_per_request;
        }
    }
}

/// Sections whose members are objects by name.
pub const SECTIONS: [&str; 6] = ["providers", "models", "profiles", "aliases", "merges", "splits"];
/// The one member that is no section.
pub const ACTIVE_PROFILE: &str = "activeProfile";

impl Overrides {
    /// Reads a document.
    ///
    /// # Errors
    /// Everything that is wrong with it, each as `place: what`.
    pub fn read(document: Map<String, Value>) -> Result<Overrides, Vec<String>> {
        let findings = RefCell::new(Findings::new(FILE));
        let fields = Fields::new(&document, String::new(), &findings);
        let mut read = Overrides {
            providers: entries(&fields, "providers", &findings, |fields| ProviderOverride {
                enabled: fields.flag("enabled"),
                priority: fields.number("priority"),
                limits: LimitsOverride::read(fields),
            }),
            models: entries(&fields, "models", &findings, read_model),
            profiles: entries(&fields, "profiles", &findings, read_profile),
            active_profile: read_active(&fields),
            aliases: read_aliases(&fields),
            regroup: read_regroup(&fields),
            document: Map::new(),
        };
        for reference in read.models.keys().filter(|reference| !reference.contains('/')) {
            fields.error("models", format!("`{reference}` is no reference; write provider/model"));
        }
        fields.finish();
        drop(fields);
        let faults: Vec<String> =
            findings.into_inner().issues.into_iter().map(|issue| issue.message).collect();
        if !faults.is_empty() {
            return Err(faults);
        }
        read.document = document;
        read.document.retain(|_, section| !is_empty(section));
        Ok(read)
    }

    /// The document, without empty sections.
    pub fn document(&self) -> &Map<String, Value> {
        &self.document
    }

    /// What is overridden of one entry, for the views; `null` when nothing is.
    pub fn entry(&self, section: &str, name: &str) -> Value {
        self.document.get(section).and_then(|section| section.get(name)).cloned().unwrap_or_default()
    }

    /// Whether a profile or an alias was made here.
    pub fn has(&self, section: &str, name: &str) -> bool {
        !self.entry(section, name).is_null()
    }

    /// What would be wrong with the configured names under these overrides: names that lead back to themselves, or an active
    /// profile that nobody made. As `place: what`.
    pub fn conflict(&self, configured: &Names) -> Option<String> {
        let mut merged = configured.clone();
        self.apply_names(&mut merged);
        if let Some(name) = merged.active_profile.as_deref().filter(|_| self.active_profile.is_some()) {
            if !merged.profiles.keys().any(|known| known.eq_ignore_ascii_case(name)) {
                return Some(format!("{ACTIVE_PROFILE}: `{name}` is no profile; make it first"));
            }
        }
        let mut next: BTreeMap<String, Vec<String>> = BTreeMap::new();
        next.extend(
            merged.profiles.iter().map(|(name, profile)| (name.to_lowercase(), profile.models.clone())),
        );
        next.extend(merged.aliases.iter().map(|(name, target)| (name.to_lowercase(), vec![target.clone()])));
        let cycle = next.keys().find_map(|start| Some((start, cycle_from(start, &next)?)));
        cycle.map(|(start, way)| {
            format!(
                "aliases: {start} leads back to itself ({} -> {start}); point it at a model",
                way.join(" -> ")
            )
        })
    }

    /// Puts the overrides over what the files say; tells those that meet nothing.
    pub fn apply(&self, providers: &mut [Provider], settings: &mut Settings) -> Vec<Issue> {
        let mut unmet = Vec::new();
        for (id, over) in &self.providers {
            match providers.iter_mut().find(|provider| *provider.id == **id) {
                Some(provider) => over.apply(provider),
                None => {
                    unmet.push(format!("providers.{id}: there is no such provider, so this does nothing"))
                }
            }
        }
        for (reference, over) in &self.models {
            match find_model(providers, reference) {
                Some(model) => over.apply(model),
                None => unmet
                    .push(format!("models.{reference}: there is no such model now, so this does nothing")),
            }
        }
        let mut names = Names::of(settings);
        self.apply_names(&mut names);
        names.put(settings);
        let issue =
            |message| Issue { file: FILE.into(), provider: None, level: IssueLevel::Warning, message };
        unmet.into_iter().map(issue).collect()
    }

    fn apply_names(&self, names: &mut Names) {
        for (name, profile) in &self.profiles {
            names.profiles.retain(|known, _| !known.eq_ignore_ascii_case(name));
            names.profiles.insert(name.clone(), profile.clone());
        }
        for (name, target) in &self.aliases {
            names.aliases.retain(|known, _| !known.eq_ignore_ascii_case(name));
            names.aliases.insert(name.clone(), target.clone());
        }
        if let Some(active) = &self.active_profile {
            names.active_profile.clone_from(active);
        }
    }
}

/// The settings that are names.
#[derive(Clone, Debug)]
pub struct Names {
    pub profiles: BTreeMap<String, Profile>,
    pub aliases: BTreeMap<String, String>,
    pub active_profile: Option<String>,
}

impl Names {
    /// Those of these settings.
    pub fn of(settings: &Settings) -> Names {
        Names {
            profiles: settings.profiles.clone(),
            aliases: settings.aliases.clone(),
            active_profile: settings.active_profile.clone(),
        }
    }

    /// Has these settings name them, and nothing else.
    pub fn put(self, settings: &mut Settings) {
        (settings.profiles, settings.aliases) = (self.profiles, self.aliases);
        settings.active_profile = self.active_profile;
    }
}

impl ProviderOverride {
    fn apply(&self, provider: &mut Provider) {
        provider.enabled = self.enabled.unwrap_or(provider.enabled);
        provider.priority = self.priority.unwrap_or(provider.priority);
        self.limits.apply(&mut provider.limits);
    }
}

impl ModelOverride {
    fn apply(&self, model: &mut Model) {
        model.enabled = self.enabled.unwrap_or(model.enabled);
        model.priority = self.priority.unwrap_or(model.priority);
        model.caps = self.caps.unwrap_or(model.caps);
        model.context = self.context.or(model.context);
        model.max_output = self.max_output.or(model.max_output);
        self.limits.apply(&mut model.limits);
    }
}

fn find_model<'p>(providers: &'p mut [Provider], reference: &str) -> Option<&'p mut Model> {
    let (id, model) = reference.split_once('/')?;
    let provider = providers.iter_mut().find(|provider| *provider.id == *id)?;
    provider.models.iter_mut().find(|known| *known.id == *model)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// The entries of a section, each read by `read`.
fn entries<'a, T>(
    fields: &Fields<'a>,
    section: &'static str,
    findings: &'a RefCell<Findings>,
    read: impl Fn(&Fields<'_>) -> T,
) -> BTreeMap<String, T> {
    let mut all = BTreeMap::new();
    for (name, value) in fields.members(section).into_iter().flatten() {
        match value {
            Value::Object(members) => {
                let entry = Fields::new(members, format!("{section}.{name}."), findings);
                all.insert(name.clone(), read(&entry));
                entry.finish();
            }
            other => fields
                .error(&format!("{section}.{name}"), format!("must be an object (it is {})", shown(other))),
        }
    }
    all
}

fn read_model(fields: &Fields<'_>) -> ModelOverride {
    ModelOverride {
        enabled: fields.flag("enabled"),
        priority: fields.number("priority"),
        caps: fields.value("caps").is_some().then(|| read_caps(fields)),
        context: fields.count("context", TOKENS_MAX),
        max_output: fields.count("maxOutput", TOKENS_MAX),
        limits: LimitsOverride::read(fields),
    }
}

fn read_profile(fields: &Fields<'_>) -> Profile {
    let models = fields.texts("models");
    if models.is_empty() {
        fields.error("models", "must name at least one model");
    }
    Profile { models, strategy: fields.word("strategy", &Strategy::NAMES) }
}

fn read_active(fields: &Fields<'_>) -> Option<Option<String>> {
    match fields.raw(ACTIVE_PROFILE)? {
        Value::Null => Some(None),
        _ => fields.owned(ACTIVE_PROFILE).map(Some),
    }
}

fn read_aliases(fields: &Fields<'_>) -> BTreeMap<String, String> {
    let mut aliases = BTreeMap::new();
    for (name, value) in fields.members("aliases").into_iter().flatten() {
        match value.as_str().map(str::trim).filter(|target| !target.is_empty()) {
            Some(target) if !name.trim().is_empty() => {
                drop(aliases.insert(name.trim().to_owned(), target.to_owned()))
            }
            _ => fields.error(
                &format!("aliases.{name}"),
                format!("must be a model string (it is {})", shown(value)),
            ),
        }
    }
    aliases
}

fn read_regroup(fields: &Fields<'_>) -> Regroup {
    let mut regroup = Regroup::default();
    for (name, value) in fields.members("merges").into_iter().flatten() {
        let at = format!("merges.{name}");
        if unified::slug(name) != *name {
            fields.error(&at, "the name must be lower-case letters, digits, dots and single dashes");
        }
        let members = fields.texts_of(&at, value);
        if members.is_empty() {
            fields.error(&at, "must name at least one provider/model");
        }
        for member in members {
            regroup.merges.insert(member, name.clone());
        }
    }
    regroup.splits = fields.texts("splits").into_iter().collect::<BTreeSet<String>>();
    regroup
}

/// Reads the file of a data folder; nothing is overridden where there is none.
///
/// # Errors
/// What is wrong with it.
pub fn read_file(data: &Path) -> Result<Overrides, Vec<String>> {
    let text = read_bounded(&data.join(FILE), BYTES_MAX as u64)
        .map_err(|error| vec![format!("cannot be read: {error}")])?;
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(Overrides::default()) };
    match json::parse(&text) {
        Ok(Value::Object(document)) => Overrides::read(document),
        Ok(_) => Err(vec!["must be an object".into()]),
        Err(error) => Err(vec![error]),
    }
}

/// Writes the file: whole or not at all, for its owner only.
pub fn write_file(data: &Path, overrides: &Overrides) -> std::io::Result<()> {
    let text = serde_json::to_string_pretty(overrides.document()).map_err(std::io::Error::other)?;
    boxfile::write_private(&data.join(FILE), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::catalog;
    use super::*;

    fn read(document: Value) -> Result<Overrides, Vec<String>> {
        Overrides::read(document.as_object().cloned().expect("an object"))
    }

    #[test]
    fn a_slip_refuses_all_of_it_and_says_where() {
        let check = |document: Value, expected: &str| {
            let faults = read(document.clone()).err().unwrap_or_default().join("\n");
            assert!(faults.contains(expected), "{document}: {faults}");
        };
        check(json!({"provider": {}}), "provider: unknown field, not used; did you mean `providers`?");
        check(
            json!({"providers": {"a": {"priority": "x"}}}),
            "providers.a.priority: must be a number (it is \"x\")",
        );
        check(json!({"providers": {"a": {"enable": true}}}), "providers.a.enable: unknown field");
        check(json!({"providers": {"a": true}}), "providers.a: must be an object (it is true)");
        check(json!({"providers": []}), "providers: must be an object");
        check(
            json!({"providers": {"a": {"limits": {"rpm": 0}}}}),
            "providers.a.limits.rpm: must be a number above 0",
        );
        check(json!({"models": {"a/m": {"caps": ["chat", "fly"]}}}), "models.a/m.caps: `fly` is not known");
        check(json!({"models": {"m": {"enabled": true}}}), "models: `m` is no reference");
        check(json!({"models": {"a/m": {"context": -1}}}), "models.a/m.context: must be a whole number");
        check(json!({"profiles": {"p": {"models": []}}}), "profiles.p.models: must name at least one");
        check(
            json!({"profiles": {"p": {"models": ["a"], "strategy": "x"}}}),
            "profiles.p.strategy: must be one of",
        );
        check(json!({"aliases": {"a": ""}}), "aliases.a: must be a model string");
        check(json!({"merges": {"Big One": ["a/m"]}}), "merges.Big One: the name must be lower-case");
        check(json!({"merges": {"big": []}}), "merges.big: must name at least one");
        check(json!({"splits": "a/m"}), "splits: must be a list");
        check(json!({"activeProfile": 3}), "activeProfile: must be a text");
    }

    #[test]
    fn they_lie_over_what_the_files_say() {
        let mut catalog = catalog(&[
            json!({"id": "a", "priority": 10, "limits": {"rpm": 30, "rpd": 100}, "models": [{"id": "m", "context": 8000}, {"id": "n/x"}]}),
            json!({"id": "b", "models": [{"id": "m"}]}),
        ]);
        let mut settings = Settings::default();
        let over = read(json!({
            "providers": {"a": {"enabled": false, "priority": 1.5, "limits": {"rpm": 5, "rpd": null, "tpm": {"max": 9, "window": "calendar"}}}, "gone": {"enabled": true}},
            "models": {"a/m": {"caps": ["chat", "vision"], "context": 32000, "priority": 3}, "a/n/x": {"enabled": false}, "b/gone": {}},
            "profiles": {"work": {"models": ["b/m"]}}, "activeProfile": "work", "aliases": {"quick": "b/m"},
        }))
        .expect("a sound document");
        let issues = over.apply(&mut catalog.providers, &mut settings);
        let a = &catalog.providers[0];
        assert_eq!((a.enabled, a.priority), (false, 1.5));
        let limits: Vec<(&str, f64)> =
            a.limits.max.iter().map(|(metric, limit)| (metric.name(), limit.amount)).collect();
        assert_eq!(limits, [("rpm", 5.0), ("tpm", 9.0)]);
        assert_eq!((a.models[0].context, a.models[0].priority), (Some(32_000), 3.0));
        assert!(a.models[0].caps.has(Caps::VISION) && !a.models[1].enabled);
        assert!(catalog.providers[1].enabled && catalog.providers[1].models[0].enabled);
        assert_eq!(settings.active_profile.as_deref(), Some("work"));
        assert_eq!(settings.aliases["quick"], "b/m");
        let unmet: Vec<&str> = issues.iter().map(|issue| issue.message.as_str()).collect();
        assert_eq!(unmet.len(), 2);
        assert!(
            unmet[0].starts_with("providers.gone:") && unmet[1].starts_with("models.b/gone:"),
            "{unmet:?}"
        );
    }

    #[test]
    fn names_must_lead_somewhere() {
        let settings =
            Settings { aliases: [("fast".to_owned(), "quick".to_owned())].into(), ..Settings::default() };
        let conflict =
            |document: Value| read(document).expect("a sound document").conflict(&Names::of(&settings));
        assert_eq!(conflict(json!({"aliases": {"quick": "a/m"}})), None);
        assert!(
            conflict(json!({"aliases": {"QUICK": "Fast"}}))
                .is_some_and(|what| what.contains("leads back to itself"))
        );
        assert!(
            conflict(json!({"activeProfile": "nope"})).is_some_and(|what| what.contains("is no profile"))
        );
        assert_eq!(conflict(json!({"activeProfile": null})), None);
    }

    #[test]
    fn the_file_is_private_and_a_bad_one_is_told() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        assert!(read_file(folder.path()).is_ok_and(|none| none.document().is_empty()));
        let over = read(json!({"providers": {"a": {"enabled": false}}, "aliases": {}})).expect("sound");
        write_file(folder.path(), &over).expect("written");
        let path = folder.path().join(FILE);
        assert_eq!(std::fs::metadata(&path).expect("it exists").permissions().mode() & 0o777, 0o600);
        let again = read_file(folder.path()).expect("it reads back");
        assert_eq!(Value::Object(again.document().clone()), json!({"providers": {"a": {"enabled": false}}}));
        assert_eq!((again.has("providers", "a"), again.has("providers", "b")), (true, false));
        for bad in ["{", "[]", "{\"providers\": 3}"] {
            std::fs::write(&path, bad).expect("written");
            assert!(read_file(folder.path()).is_err(), "{bad}");
        }
    }
}
