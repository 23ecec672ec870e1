//! `freeway provider verify`: the file, the variables, every key, the models, the limits, and what to write down.
use serde_json::{Map, Value, json};

use super::provider::{client, load_all};
use super::{DONE, FAILED, Failure, World, issue_line};
use crate::base::text::closest;
use crate::catalog::load::Snapshot;
use crate::catalog::provider::{ModelSource, Provider};
use crate::catalog::{Issue, IssueLevel};
use crate::route::health::KeyHealth;
use crate::upstream::client::Client;
use crate::upstream::examine::{Examined, Extent, Lab};

/// What `--validate` may ask: a check must not itself run into a limit.
const VALIDATION: Extent = Extent { models_max: 80, at_once: 2 };
/// Most new models that are suggested.
const SUGGESTED_MAX: usize = 12;

/// Everything found out.
#[derive(Default)]
struct Report {
    problems: Vec<String>,
    warnings: Vec<String>,
    probes: Vec<Examined>,
}

impl Report {
    /// Each problem is told once, however many keys have it.
    fn problem(&mut self, text: String) {
        if !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    fn warn(&mut self, text: String) {
        if !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }
}

/// Runs `freeway provider verify`; with `validate` each model is asked, too.
pub fn run(id: &str, validate: bool, json: bool, world: &mut World<'_>) -> Result<u8, Failure> {
    let paths = world.paths();
    let mut report = Report::default();
    let snapshot = match load_all(&paths, world) {
        Ok(snapshot) => Some(snapshot),
        Err(Failure::Failed(message) | Failure::Usage(message)) => {
            report.problem(message);
            None
        }
    };
    let provider = snapshot.as_ref().and_then(|snapshot| check_file(id, snapshot, &mut report));
    if let (Some(provider), Some(snapshot)) = (provider, &snapshot) {
        if let Some(error) = provider.config_error() {
            report.problem(error);
        } else {
            match client(&paths, world) {
                Ok(client) => check_live(&client, snapshot, provider, validate, &mut report),
                Err(Failure::Failed(message) | Failure::Usage(message)) => report.problem(message),
            }
            judge(provider, validate, &mut report);
        }
    }
    let suggestion = provider.map(|provider| suggest(provider, &report)).unwrap_or_default();
    if json {
        world.say_json(&as_json(id, &report, &suggestion));
    } else {
        tell(id, provider, &report, &suggestion, world);
    }
    Ok(if report.problems.is_empty() { DONE } else { FAILED })
}

/// An id that nobody has, with the one that was meant.
pub(super) fn unknown_id(id: &str, snapshot: &Snapshot) -> String {
    let ids = || snapshot.catalog.providers.iter().map(|provider| &*provider.id);
    let hint = closest(id, ids()).map(|near| format!("did you mean `{near}`?"));
    let hint = hint.unwrap_or_else(|| format!("`freeway provider new {id}` makes one"));
    format!("there is no provider `{id}`; {hint}")
}

fn check_file<'s>(id: &str, snapshot: &'s Snapshot, report: &mut Report) -> Option<&'s Provider> {
    let file = format!("{id}.json");
    let own = |issue: &&Issue| issue.provider.as_deref() == Some(id) || issue.file == file;
    let mut has_errors = false;
    for issue in snapshot.issues.iter().filter(own) {
        match issue.level {
            IssueLevel::Error => {
                has_errors = true;
                report.problem(issue_line(issue));
            }
            IssueLevel::Warning => report.warn(issue_line(issue)),
        }
    }
    let provider = snapshot.catalog.providers.iter().find(|provider| *provider.id == *id);
    match provider {
        None if !has_errors => report.problem(unknown_id(id, snapshot)),
        Some(provider) if !provider.enabled => report.warn("the file switches this provider off".into()),
        _ => {}
    }
    provider
}

fn check_live(
    client: &Client,
    snapshot: &Snapshot,
    provider: &Provider,
    validate: bool,
    report: &mut Report,
) {
    for key in &provider.keys {
        let lab = Lab { client, redactor: &snapshot.redactor, provider, key };
        let mut probe = lab.ask();
        if validate {
            lab.try_models(&mut probe, VALIDATION);
        }
        report.probes.push(probe);
    }
}

/// Turns what was found out into problems and warnings.
fn judge(provider: &Provider, validate: bool, report: &mut Report) {
    let probes = std::mem::take(&mut report.probes);
    for probe in &probes {
        let who = format!("key {} ({})", probe.masked, probe.source);
        match probe.health {
            KeyHealth::Healthy if probe.errors.is_empty() => {}
            KeyHealth::Healthy => report.problem(format!("discovery: {}", probe.errors.join("; "))),
            // It may be a good key at a bad moment.
            KeyHealth::Limited => {
                report.warn(format!("{who} is rate-limited just now: {}", probe.errors.join("; ")))
            }
            health => report.problem(format!("{who} is {}: {}", health.name(), probe.errors.join("; "))),
        }
        for model in &probe.models {
            match model.status {
                "ok" => {}
                "undiscovered" if model.discovered || probe.discovered.is_empty() => {}
                "undiscovered" => {
                    report.warn(format!("models: `{}` is not in the provider's list", model.id))
                }
                _ if validate => {
                    let error = model.error.as_deref().unwrap_or_default();
                    report.warn(format!("models: `{}` did not answer ({}): {error}", model.id, model.status));
                }
                _ => {}
            }
        }
        for (metric, observed) in &probe.observed {
            let declared = provider.limits.max.get(metric).map(|limit| limit.amount);
            if declared.is_none_or(|declared| (declared - observed).abs() > 0.05 * declared.max(*observed)) {
                let said = declared.map_or("null".to_owned(), |declared| declared.to_string());
                report.warn(format!(
                    "limits.{}: the file says {said}, the provider tells {observed}",
                    metric.name()
                ));
            }
        }
    }
    report.probes = probes;
}

/// Members that the file could have: new models and told limits.
fn suggest(provider: &Provider, report: &Report) -> Map<String, Value> {
    let mut edits = Map::new();
    let Some(probe) = report.probes.iter().find(|probe| probe.health == KeyHealth::Healthy) else {
        return edits;
    };
    let declared = |id: &str| {
        provider.models.iter().any(|model| model.source == ModelSource::Declared && *model.id == *id)
    };
    let new: Vec<Value> = probe
        .discovered
        .iter()
        .filter(|found| !declared(&found.id))
        .take(SUGGESTED_MAX)
        .map(|found| json!({"id": found.id, "context": found.context, "caps": found.caps}))
        .collect();
    if !new.is_empty() {
        edits.insert("models".into(), new.into());
    }
    if !probe.observed.is_empty() {
        let limits: Map<String, Value> =
            probe.observed.iter().map(|(metric, amount)| (metric.name().to_owned(), json!(amount))).collect();
        edits.insert("limits".into(), limits.into());
        edits.insert("limitsSource".into(), "observed".into());
    }
    edits
}

fn as_json(id: &str, report: &Report, suggestion: &Map<String, Value>) -> Value {
    let probes: Vec<Value> = report.probes.iter().map(Examined::to_json).collect();
    json!({
        "id": id,
        "verdict": verdict(report),
        "problems": report.problems,
        "warnings": report.warnings,
        "probe": probes.first(),
        "probes": probes,
        "suggestion": suggestion,
    })
}

fn verdict(report: &Report) -> &'static str {
    if report.problems.is_empty() { "PASS" } else { "FAIL" }
}

fn tell(
    id: &str,
    provider: Option<&Provider>,
    report: &Report,
    suggestion: &Map<String, Value>,
    world: &mut World<'_>,
) {
    if let Some(provider) = provider {
        world.say(format!("{id}: {} at {}", provider.label, provider.base_url));
    }
    for probe in &report.probes {
        let found = match probe.discovered.len() {
            0 => String::new(),
            n => format!(", {n} models listed"),
        };
        let who = format!("key {} ({})", probe.masked, probe.source);
        world.say(format!("  {who}: {} in {} ms{found}", probe.health.name(), probe.took_ms));
        for model in probe.models.iter().filter(|model| model.status != "undiscovered") {
            world.say(format!("    {}: {}", model.id, model.status));
        }
    }
    for problem in &report.problems {
        world.say(format!("problem: {problem}"));
    }
    for warning in &report.warnings {
        world.say(format!("warning: {warning}"));
    }
    if !suggestion.is_empty() {
        let text = serde_json::to_string_pretty(suggestion).unwrap_or_default();
        world.say(format!("worth writing into the file:\n{text}"));
    }
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    world.say(format!(
        "{}: {}, {}",
        verdict(report),
        count(report.problems.len(), "problem"),
        count(report.warnings.len(), "warning")
    ));
}

#[cfg(test)]
mod tests {
    use super::super::USAGE;
    use super::super::testing::{Site, Upstream};
    use super::*;

    fn models() -> String {
        json!({"data": [{"id": "known"}, {"id": "new-code"}, {"id": "text-embed"}, {"id": "whisper-1"}]})
            .to_string()
    }

    fn site(upstream: &Upstream, key: &str) -> Site {
        let mut site = Site::empty();
        site.process.insert("ACME_KEY".into(), key.into());
        site.write("providers/acme.json", &upstream.file("acme"));
        site
    }

    #[test]
    fn a_sound_provider_passes() {
        let headers = "x-ratelimit-limit-requests-minute: 60\r\n".to_owned();
        let upstream = Upstream::start(move |_| (200, headers.clone(), models()));
        let site = site(&upstream, "test-key-0001");
        let ran = site.run(&["provider", "verify", "acme"]);
        assert_eq!(ran.status, DONE, "{}", ran.out);
        assert!(
            ran.out.contains("healthy") && ran.out.ends_with("PASS: 0 problems, 1 warning\n"),
            "{}",
            ran.out
        );
        assert!(ran.out.contains("limits.rpm: the file says null, the provider tells 60"), "{}", ran.out);
        let found = site.run(&["provider", "verify", "--json", "acme"]).json();
        assert_eq!(
            (found["verdict"].as_str(), found["probe"]["auth"].as_str()),
            (Some("PASS"), Some("healthy"))
        );
        assert_eq!(found["probe"]["discovered"], json!(["known", "new-code", "text-embed"]));
        assert_eq!(
            found["suggestion"]["models"][0],
            json!({"id": "new-code", "context": null, "caps": ["chat", "code"]})
        );
        assert_eq!(found["probe"]["observedLimits"], json!({"rpm": 60.0}));
        assert!(!found.to_string().contains("test-key-0001"));
    }

    #[test]
    fn d_every_key_is_tried() {
        let upstream = Upstream::start(|request| match request.key.as_str() {
            "test-key-good" => (200, String::new(), models()),
            "test-key-busy" => (429, String::new(), "{}".into()),
            key => {
                (401, String::new(), json!({"error": {"message": format!("no such key: {key}")}}).to_string())
            }
        });
        let site = site(&upstream, "test-key-good,test-key-dead,test-key-busy");
        let ran = site.run(&["provider", "verify", "acme", "--json"]);
        let found = ran.json();
        let auth: Vec<&str> =
            found["probes"].as_array().expect("a list").iter().filter_map(|p| p["auth"].as_str()).collect();
        assert_eq!((ran.status, auth), (FAILED, vec!["healthy", "invalid", "limited"]));
        let problems = found["problems"].as_array().expect("a list");
        assert!(
            problems.len() == 1
                && problems[0].as_str().is_some_and(|p| p.contains("invalid: 401: no such key")),
            "{problems:?}"
        );
        assert_eq!(found["warnings"].as_array().map(Vec::len), Some(1));
        assert!(!ran.out.contains("test-key-dead"), "{}", ran.out);
    }

    #[test]
    fn validation_asks_each_model() {
        let upstream = Upstream::start(|request| match (request.path.as_str(), &request.body) {
            ("/v1/models", _) => (200, String::new(), models()),
            ("/v1/embeddings", body) if body["input"] == "ping" => (200, String::new(), "{}".into()),
            (_, body) if body["model"] == "known" => (429, String::new(), "{}".into()),
            (_, body) if body["max_tokens"].as_u64() > Some(2) => {
                (404, String::new(), r#"{"error": "gone"}"#.into())
            }
            _ => (500, String::new(), "{}".into()),
        });
        let site = site(&upstream, "test-key-0001");
        let ran = site.run(&["provider", "verify", "acme", "--validate", "--json"]);
        let found = ran.json();
        let tried: Vec<(&str, &str)> = found["probe"]["models"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|model| (model["id"].as_str().expect("an id"), model["status"].as_str().expect("a status")))
            .collect();
        assert_eq!(tried, [("known", "rate-limited"), ("new-code", "unknown-model"), ("text-embed", "ok")]);
        // A bad moment is no verdict, and no file was touched.
        assert_eq!((ran.status, found["verdict"].as_str()), (DONE, Some("PASS")));
        assert_eq!(site.read("providers/acme.json"), upstream.file("acme"));
    }

    #[test]
    fn d_json_is_printed_whatever_is_wrong() {
        let mut site = Site::empty();
        site.write("providers/bad.json", "{ \"id\": ");
        site.write(
            "providers/nokey.json",
            r#"{"id": "nokey", "baseUrl": "https://x.example", "auth": {"envKeys": ["NO_KEY"]}}"#,
        );
        site.write(
            "providers/down.json",
            r#"{"id": "down", "baseUrl": "http://127.0.0.1:1", "auth": {"type": "none"}}"#,
        );
        let check = |site: &Site, id: &str, expected: &str| {
            let ran = site.run(&["provider", "verify", id, "--json"]);
            let found = ran.json();
            assert_eq!(
                (ran.status, found["verdict"].as_str(), found["id"].as_str()),
                (FAILED, Some("FAIL"), Some(id))
            );
            assert!(found["problems"].to_string().contains(expected), "{id}: {found}");
        };
        check(&site, "nope", "there is no provider `nope`");
        check(&site, "bad", "bad.json: line 1");
        check(&site, "nokey", "no API key found (set NO_KEY)");
        check(&site, "down", "is unreachable");
        assert!(site.run(&["provider", "verify", "nope", "--json"]).json()["probe"].is_null());
        site.process.insert("PORT".into(), "x".into());
        check(&site, "down", "PORT: must be a whole number");
        let ran = site.run(&["provider", "verify", "--json"]);
        assert_eq!((ran.status, ran.json()["ok"].as_bool()), (USAGE, Some(false)));
    }

    #[test]
    fn a_key_is_tried_even_where_no_list_is() {
        let upstream = Upstream::start(|request| match request.path.as_str() {
            "/v1/chat/completions" => (403, String::new(), r#"{"detail": "not here"}"#.into()),
            _ => (500, String::new(), "{}".into()),
        });
        let site = site(&upstream, "test-key-0001");
        let file = upstream.file("acme").replace("\"auth\"", "\"modelsEndpoint\": null, \"auth\"");
        site.write("providers/acme.json", &file);
        let found = site.run(&["provider", "verify", "acme", "--json"]).json();
        assert_eq!(found["probe"]["auth"].as_str(), Some("forbidden"));
        assert!(
            found["problems"][0].as_str().is_some_and(|problem| problem.ends_with("403: not here")),
            "{found}"
        );
    }

    #[test]
    fn a_list_of_another_shape_is_a_problem() {
        let upstream = Upstream::start(|_| (200, String::new(), "<html>welcome</html>".into()));
        let found = site(&upstream, "test-key-0001").run(&["provider", "verify", "acme", "--json"]).json();
        assert_eq!(found["problems"], json!(["discovery: the model list is no JSON"]));
    }
}
