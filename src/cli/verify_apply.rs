//! What `freeway provider verify` suggests to write into a provider's file, and how it is written: by changing those places
//! alone, whole or not at all.
//!
//! A model goes only when every key that asked was told that there is none, while others of the same provider answered. A
//! limit, a time-out or a fault of the moment takes nothing away, and what was not asked stays.
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::provider::prepare_folder;
use super::verify::{Evidence, declared, drifts};
use crate::base::{calendar, clock};
use crate::catalog::discovery::{self, DiscoveredModel};
use crate::catalog::load::Snapshot;
use crate::catalog::provider::{Metric, Model, ModelSource, Provider, Standing};
use crate::catalog::splice::Document;
use crate::catalog::{boxfile, bundled, json as file_json};

/// Most new models that are suggested at once.
const NEW_MAX: usize = 12;

/// What could be written into the file.
#[derive(Debug, Default)]
pub struct Suggestion {
    new: Vec<DiscoveredModel>,
    gone: Vec<String>,
    limits: Vec<(Metric, f64)>,
    /// Where the ids of the list stand.
    models_path: Option<&'static str>,
    /// There is no list.
    no_list: bool,
}

/// What was written.
#[derive(Debug)]
pub struct Applied {
    pub file: PathBuf,
    pub changes: Vec<String>,
}

impl Suggestion {
    /// What was heard comes to.
    pub fn of(provider: &Provider, evidence: &Evidence, validated: bool) -> Suggestion {
        let mut suggestion = Suggestion::default();
        let declares = |id: &str| declared_models(provider).any(|model| *model.id == *id);
        suggestion.no_list = no_list(evidence) && declared_models(provider).next().is_some();
        suggestion.models_path = evidence.healthy().find_map(|probe| probe.list_path);
        for found in evidence.healthy().flat_map(|probe| &probe.discovered) {
            let known = declares(&found.id) || suggestion.new.iter().any(|new| new.id == found.id);
            let free =
                discovery::standing(provider.billing, found.free, provider.allow_paid) == Standing::Free;
            // One that did not answer is better left to the list.
            let answers = !validated || evidence.tries(&found.id).any(|tried| tried.status == "ok");
            if !known && free && answers && suggestion.new.len() < NEW_MAX {
                suggestion.new.push(found.clone());
            }
        }
        suggestion.gone = declared_models(provider)
            .map(|model| model.id.to_string())
            .filter(|id| is_gone(id, evidence))
            .collect();
        let differs = |(metric, told): &(&Metric, &f64)| {
            declared(provider, **metric).is_none_or(|said| drifts(said, **told))
        };
        suggestion.limits =
            evidence.observed.iter().filter(differs).map(|(metric, told)| (*metric, *told)).collect();
        suggestion
    }

    /// Members that the file could have, and models that it could do without.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut edits = Map::new();
        if !self.new.is_empty() {
            edits.insert("models".into(), self.new.iter().map(as_item).collect());
        }
        if !self.gone.is_empty() {
            edits.insert("removeModels".into(), json!(self.gone));
        }
        if !self.limits.is_empty() {
            let limits = self.limits.iter().map(|(metric, told)| (metric.name().to_owned(), json!(told)));
            edits.insert("limits".into(), Value::Object(limits.collect()));
            edits.insert("limitsSource".into(), "observed".into());
        }
        if let Some(path) = self.models_path {
            edits.insert("modelsPath".into(), path.into());
        }
        if self.no_list {
            edits.insert("modelsEndpoint".into(), Value::Null);
        }
        edits
    }

    /// Writes it into the provider's file. A built-in file is copied to the owner's folder first.
    ///
    /// # Errors
    /// Why the file stays as it is.
    pub fn write(&self, snapshot: &Snapshot, provider: &Provider, verified: bool) -> Result<Applied, String> {
        let (name, own) = snapshot.file_of(&provider.id).ok_or("its file is not known")?;
        let file = snapshot.paths.providers.join(name);
        let built_in = bundled::files().into_iter().find(|bundled| bundled.file == name);
        let built_in = built_in.as_ref().map(|bundled| &*bundled.text);
        let before = own.or(built_in).ok_or("its file is not known")?;
        let mut document = Document::new(before).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut changes = self.edit(&mut document)?;
        if verified && (!changes.is_empty() || own.is_some()) {
            let today = calendar::date(clock::now().wall_ms);
            if provider.verified_on.as_deref() != Some(&today) {
                document.set(&["verifiedOn"], &json!(today))?;
                changes.push(format!("verifiedOn = {today}"));
            }
        }
        if changes.is_empty() {
            return Ok(Applied { file, changes });
        }
        self.check(before, document.text())?;
        let failed = |error: std::io::Error| format!("{} cannot be written: {error}", file.display());
        if own.is_some() {
            let now = std::fs::read_to_string(&file).map_err(failed)?;
            if now != before {
                return Err(format!(
                    "{} was changed meanwhile; nothing was written, run this again",
                    file.display()
                ));
            }
            boxfile::replace(&file, document.text().as_bytes()).map_err(failed)?;
        } else {
            prepare_folder(&snapshot.paths).map_err(failed)?;
            std::fs::write(&file, document.text()).map_err(failed)?;
        }
        Ok(Applied { file, changes })
    }

    fn edit(&self, document: &mut Document) -> Result<Vec<String>, String> {
        let mut changes = Vec::new();
        let current = file_json::parse(document.text())?;
        for id in &self.gone {
            if document.remove("models", |item| item["id"].as_str() == Some(id))? {
                changes.push(format!("removed the model {id}"));
            }
        }
        for found in &self.new {
            document.push("models", &as_item(found))?;
            changes.push(format!("added the model {}", found.id));
        }
        for (metric, told) in &self.limits {
            let name = metric.name();
            // A limit may say more than its number.
            let is_object = current["limits"][name].is_object();
            let path: &[&str] = if is_object { &["limits", name, "max"] } else { &["limits", name] };
            document.set(path, &json!(told))?;
            changes.push(format!("limits.{name} = {told}"));
        }
        if !self.limits.is_empty() {
            document.set(&["limitsSource"], &json!("observed"))?;
        }
        if let Some(path) = self.models_path {
            document.set(&["modelsPath"], &json!(path))?;
            changes.push(format!("modelsPath = {path}"));
        }
        if self.no_list {
            document.set(&["modelsEndpoint"], &Value::Null)?;
            changes.push("modelsEndpoint = null".to_owned());
        }
        Ok(changes)
    }

    /// A last look before anything is written: what was not to be changed is the same.
    fn check(&self, before: &str, after: &str) -> Result<(), String> {
        const TOUCHED: [&str; 6] =
            ["models", "limits", "limitsSource", "modelsPath", "modelsEndpoint", "verifiedOn"];
        let (before, after) = (file_json::parse(before)?, file_json::parse(after)?);
        let items = |file: &Value| file["models"].as_array().cloned().unwrap_or_default();
        let gone = |item: &&Value| self.gone.iter().any(|id| item["id"].as_str() == Some(id));
        let (old, new) = (items(&before), items(&after));
        let kept: Vec<&Value> = old.iter().filter(|item| !gone(item)).collect();
        let models = new.len() == kept.len() + self.new.len() && kept.iter().zip(&new).all(|(a, b)| *a == b);
        let members = before.as_object().into_iter().flatten();
        let rest = members.filter(|(name, _)| !TOUCHED.contains(&name.as_str()));
        if models && rest.into_iter().all(|(name, value)| after[name] == *value) {
            return Ok(());
        }
        Err("the file is written in a way that cannot be changed safely; make the edits by hand".into())
    }
}

fn declared_models(provider: &Provider) -> impl Iterator<Item = &Model> {
    provider.models.iter().filter(|model| model.source == ModelSource::Declared)
}

fn as_item(found: &DiscoveredModel) -> Value {
    json!({"id": found.id, "context": found.context, "caps": found.caps})
}

/// Whether a model does not exist: every key that asked was told so, and others of the provider were heard.
fn is_gone(id: &str, evidence: &Evidence) -> bool {
    let mut tries = evidence.tries(id).peekable();
    let denied = tries.peek().is_some() && tries.all(|tried| tried.status == "unknown-model");
    let mut others = evidence.probes.iter().flat_map(|probe| &probe.models);
    denied && others.any(|tried| tried.id != id && tried.status == "ok")
}

/// Whether everybody who asked for a model list was told that there is none.
fn no_list(evidence: &Evidence) -> bool {
    !evidence.probes.is_empty()
        && evidence.probes.iter().all(|probe| matches!(probe.list_status, Some(404 | 405 | 410 | 501)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::testing::{Ran, Request, Site, Upstream};
    use super::super::{DONE, FAILED};
    use super::*;

    fn list(ids: &[&str]) -> String {
        json!({"data": ids.iter().map(|id| json!({"id": id})).collect::<Vec<_>>()}).to_string()
    }

    /// An upstream with this list, whose models answer by their id.
    fn upstream(
        ids: &'static [&'static str],
        status: impl Fn(&str, &str) -> u16 + Send + 'static,
    ) -> Upstream {
        Upstream::start(move |Request { path, key, body }| match path.as_str() {
            "/v1/models" => (200, String::new(), list(ids)),
            _ => (status(&key, body["model"].as_str().unwrap_or_default()), String::new(), "{}".into()),
        })
    }

    /// A site whose file has comments, a layout of its own, and these models.
    fn site(upstream: &Upstream, keys: &str, models: &[&str]) -> Site {
        let base = serde_json::from_str::<Value>(&upstream.file("acme")).expect("JSON")["baseUrl"].clone();
        let models: Vec<String> =
            models.iter().map(|id| format!("    {{ \"id\": \"{id}\" }}, // {id}\n")).collect();
        let mut site = Site::empty();
        site.process.insert("ACME_KEY".into(), keys.into());
        site.write(
            "providers/acme.json",
            &format!(
                "{{\n  // Ours.\n  \"id\": \"acme\", \"baseUrl\": {base},\n  \"auth\": {{ \"envKeys\": [\"ACME_KEY\"] }},\n  \
                 \"limits\": {{ \"rpm\": 30, \"tpd\": {{ \"max\": 5, \"window\": \"rolling\" }} }}, /* by the docs */\n  \
                 \"models\": [\n{}  ],\n}}\n",
                models.concat()
            ),
        );
        site
    }

    fn verify(site: &Site) -> Ran {
        site.run(&["provider", "verify", "acme", "--validate", "--apply", "--json"])
    }

    fn ids(site: &Site) -> Vec<String> {
        let file = file_json::parse(&site.read("providers/acme.json")).expect("it is still good");
        let ids = file["models"].as_array().expect("a list").iter();
        ids.map(|model| model["id"].as_str().expect("an id").to_owned()).collect()
    }

    #[test]
    fn d_only_what_is_suggested_changes_and_then_there_is_nothing_left() {
        let upstream =
            Upstream::start(|Request { path, body, .. }| match (path.as_str(), body["model"].as_str()) {
                ("/v1/models", _) => (
                    200,
                    "x-ratelimit-limit-requests-minute: 60\r\nx-ratelimit-limit-tokens-day: 9000\r\n".into(),
                    list(&["kept", "new-code", "broken"]),
                ),
                (_, Some("old")) => (404, String::new(), "{}".into()),
                (_, Some("broken")) => (500, String::new(), "{}".into()),
                _ => (200, String::new(), "{}".into()),
            });
        let site = site(&upstream, "k", &["old", "kept"]);
        let before = site.read("providers/acme.json");
        let found = verify(&site).json();
        assert_eq!(found["suggestion"]["removeModels"], json!(["old"]), "{found}");
        assert_eq!(found["applied"]["changes"].as_array().map(Vec::len), Some(5), "{found}");
        let today = calendar::date(clock::now().wall_ms);
        let expected = before
            .replace("\"rpm\": 30", "\"rpm\": 60")
            .replace("\"max\": 5", "\"max\": 9000")
            .replace("    { \"id\": \"old\" }, // old\n", "")
            .replace(
                "// kept\n  ],\n",
                &format!(
                    "// kept\n    {{ \"id\": \"new-code\", \"context\": null, \"caps\": [\"chat\", \"code\"] }},\n  ],\n  \
                     \"limitsSource\": \"observed\",\n  \"verifiedOn\": \"{today}\",\n"
                ),
            );
        assert_eq!(site.read("providers/acme.json"), expected);
        let again = verify(&site).json();
        assert_eq!((&again["verdict"], &again["suggestion"]), (&json!("PASS"), &json!({})), "{again}");
        assert_eq!(site.read("providers/acme.json"), expected);
    }

    #[test]
    fn d_nothing_goes_but_what_all_were_told_is_not_there() {
        let check = |status: u16, stays: bool| {
            let upstream = upstream(&[], move |_, model| if model == "doubtful" { status } else { 200 });
            let site = site(&upstream, "k", &["doubtful", "good"]);
            let ran = verify(&site);
            assert_eq!(ids(&site).contains(&"doubtful".to_owned()), stays, "{status}: {}", ran.out);
        };
        for (status, stays) in [
            (404, false),
            (410, false),
            (429, true),
            (500, true),
            (503, true),
            (403, true),
            (400, true),
            (401, true),
        ] {
            check(status, stays);
        }
        // Another key has it.
        let upstream_of_two =
            upstream(&[], |key, model| if (key, model) == ("k1", "theirs") { 404 } else { 200 });
        let two = site(&upstream_of_two, "k1,k2", &["theirs", "good"]);
        verify(&two);
        assert_eq!(ids(&two), ["theirs", "good"]);
        // Nobody is there: it is the address that is wrong.
        let nobody = upstream(&[], |_, _| 404);
        let site = site(&nobody, "k", &["one", "two"]);
        let ran = verify(&site);
        assert_eq!((ran.status, ids(&site).len()), (FAILED, 2), "{}", ran.out);
        assert!(ran.out.contains("paths.chat"), "{}", ran.out);
    }

    #[test]
    fn d_what_was_not_asked_stays() {
        let many: Vec<String> = (0..90).map(|n| format!("m{n}")).collect();
        let names: Vec<&str> = many.iter().map(String::as_str).collect();
        let upstream = upstream(&[], |_, model| if model == "m0" { 200 } else { 404 });
        let site = site(&upstream, "k", &names);
        verify(&site);
        let left = ids(&site);
        assert_eq!((left.len(), left[0].as_str(), left[1].as_str()), (11, "m0", "m80"), "{left:?}");
    }

    #[test]
    fn a_list_elsewhere_or_nowhere_is_put_right() {
        let elsewhere = Upstream::start(|Request { path, .. }| match path.as_str() {
            "/v1/models" => (200, String::new(), json!({"models": [{"name": "known"}]}).to_string()),
            _ => (200, String::new(), "{}".into()),
        });
        let nowhere = Upstream::start(|Request { path, .. }| match path.as_str() {
            "/v1/models" => (404, String::new(), "{}".into()),
            _ => (200, String::new(), "{}".into()),
        });
        for (upstream, member, value) in
            [(elsewhere, "modelsPath", json!("models[].name")), (nowhere, "modelsEndpoint", Value::Null)]
        {
            let site = site(&upstream, "k", &["known"]);
            let ran = site.run(&["provider", "verify", "acme", "--apply", "--json"]);
            assert_eq!((ran.status, &ran.json()["suggestion"][member]), (FAILED, &value), "{}", ran.out);
            let ran = site.run(&["provider", "verify", "acme", "--json"]);
            assert_eq!((ran.status, &ran.json()["suggestion"]), (DONE, &json!({})), "{}", ran.out);
        }
    }

    #[test]
    fn a_built_in_file_is_copied_before_it_is_changed() {
        let upstream = upstream(&["local-chat"], |_, _| 200);
        let mut site = Site::empty();
        let file: Value = serde_json::from_str(&upstream.file("x")).expect("JSON");
        let host = file["baseUrl"].as_str().expect("an address").trim_end_matches("/v1").to_owned();
        site.process.insert("OLLAMA_HOST".into(), host);
        let ran = site.run(&["provider", "verify", "ollama", "--apply"]);
        assert_eq!(ran.status, DONE, "{}", ran.out);
        assert!(site.read("providers/ollama.json").contains("\"local-chat\""));
        let listed = site.run(&["provider", "list", "--json"]).json();
        assert_eq!(
            listed["providers"].as_array().map(Vec::len),
            Some(bundled::files().len()),
            "the others are still there"
        );
    }

    #[test]
    fn a_file_that_changed_meanwhile_is_left_alone() {
        let place: Arc<Mutex<Option<PathBuf>>> = Arc::default();
        let theirs = Arc::clone(&place);
        let upstream = Upstream::start(move |_| {
            if let Some(path) = theirs.lock().expect("no panic").as_ref() {
                let text = std::fs::read_to_string(path).expect("it is there");
                std::fs::write(path, text + "// mine\n").expect("written");
            }
            (200, String::new(), list(&["known", "new"]))
        });
        let site = site(&upstream, "k", &["known"]);
        let before = site.read("providers/acme.json");
        *place.lock().expect("no panic") = Some(site.folder.path().join("providers/acme.json"));
        let ran = site.run(&["provider", "verify", "acme", "--apply"]);
        assert!(ran.status == FAILED && ran.out.contains("changed meanwhile"), "{}", ran.out);
        assert_eq!(site.read("providers/acme.json"), before + "// mine\n");
    }
}
