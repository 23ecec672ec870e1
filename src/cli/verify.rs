//! `freeway provider verify`: the file, the variables, every key, the models, the limits, and what to write down. What may
//! be written stands in [`super::verify_apply`].
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::provider::{client, load_all};
use super::verify_apply::{Applied, Suggestion};
use super::{DONE, FAILED, Failure, World, command, issue_line};
use crate::base::text::closest;
use crate::catalog::load::Snapshot;
use crate::catalog::provider::{Auth, LimitsScope, Metric, Model, ModelSource, Provider};
use crate::catalog::{IssueLevel, splice};
use crate::route::health::KeyHealth;
use crate::upstream::client::Client;
use crate::upstream::examine::{Examined, Extent, Lab, Tried};

/// What `--validate` may ask: a check must not itself run into a limit.
const VALIDATION: Extent = Extent { models_max: 80, at_once: 2, time: Duration::from_secs(120) };
/// Limits that differ by less are the same.
const DRIFT: f64 = 0.05;

/// What is asked for.
pub struct Wish<'a> {
    pub id: &'a str,
    /// Each model is asked, too.
    pub validate: bool,
    /// What is suggested is written.
    pub apply: bool,
    pub json: bool,
}

/// What a line of the report means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Good,
    Problem,
    Warning,
    /// Worth doing.
    Hint,
}

impl Mark {
    const fn sign(self) -> &'static str {
        match self {
            Mark::Good => "\u{2713}",
            Mark::Problem => "\u{2717}",
            Mark::Warning => "!",
            Mark::Hint => "+",
        }
    }
}

/// What is said, step by step.
#[derive(Default)]
struct Report {
    steps: Vec<(&'static str, Vec<(Mark, String)>)>,
}

/// What the provider was heard to say.
#[derive(Default)]
pub struct Evidence {
    /// One of each key.
    pub probes: Vec<Examined>,
    /// Limits that it tells, the same to all who were told.
    pub observed: BTreeMap<Metric, f64>,
}

impl Report {
    fn step(&mut self, title: &'static str) {
        self.steps.push((title, Vec::new()));
    }

    /// Each thing is told once, however many keys have it.
    fn add(&mut self, mark: Mark, text: impl Into<String>) {
        let line = (mark, text.into());
        let known = self.steps.iter().any(|(_, lines)| lines.contains(&line));
        if let Some((_, lines)) = self.steps.last_mut().filter(|_| !known) {
            lines.push(line);
        }
    }

    fn all(&self, mark: Mark) -> Vec<&str> {
        let lines = self.steps.iter().flat_map(|(_, lines)| lines);
        lines.filter(|(known, _)| *known == mark).map(|(_, text)| text.as_str()).collect()
    }

    fn passes(&self) -> bool {
        self.all(Mark::Problem).is_empty()
    }
}

impl Evidence {
    /// Probes of keys that were let in.
    pub fn healthy(&self) -> impl Iterator<Item = &Examined> {
        self.probes.iter().filter(|probe| probe.health == KeyHealth::Healthy)
    }

    /// What each key heard of a model, of those that asked it.
    pub fn tries<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Tried> {
        let tried = self.probes.iter().flat_map(|probe| &probe.models);
        tried.filter(move |tried| tried.id == id && tried.was_asked())
    }
}

/// Runs `freeway provider verify`.
pub fn run(wish: &Wish<'_>, world: &mut World<'_>) -> Result<u8, Failure> {
    let paths = world.paths();
    let mut report = Report::default();
    report.step("file");
    let snapshot = match load_all(&paths, world) {
        Ok(snapshot) => Some(snapshot),
        Err(Failure::Failed(message) | Failure::Usage(message)) => {
            report.add(Mark::Problem, message);
            None
        }
    };
    let provider = snapshot.as_ref().and_then(|snapshot| check_file(wish.id, snapshot, &mut report));
    let (mut evidence, mut suggestion, mut applied) = (Evidence::default(), Suggestion::default(), None);
    if let (Some(provider), Some(snapshot)) = (provider, &snapshot) {
        check_environment(provider, &mut report);
        if report.passes() || provider.config_error().is_none() {
            match client(&paths, world) {
                Ok(client) => evidence.probes = ask(&client, snapshot, provider, wish.validate),
                Err(Failure::Failed(message) | Failure::Usage(message)) => report.add(Mark::Problem, message),
            }
            tell_keys(provider, &evidence, &mut report);
            tell_models(provider, wish.validate, &evidence, &mut report);
            // Who was not let in heard nothing.
            let verified = evidence.healthy().next().is_some();
            if verified {
                tell_limits(provider, &mut evidence, &mut report);
            }
            suggestion = Suggestion::of(provider, &evidence, wish.validate);
            if verified || !suggestion.to_json().is_empty() {
                tell_suggestion(&suggestion, &mut report);
            }
            if wish.apply {
                let written = suggestion.write(snapshot, provider, verified);
                command::read_again(&snapshot.paths.data);
                applied = tell_applied(written, &mut report);
            }
        }
    }
    if wish.json {
        world.say_json(&as_json(wish.id, &report, &evidence, &suggestion, applied.as_ref()));
    } else {
        tell(&report, world);
    }
    Ok(if report.passes() { DONE } else { FAILED })
}

/// An id that nobody has, with the one that was meant.
pub(super) fn unknown_id(id: &str, snapshot: &Snapshot) -> String {
    let ids = || snapshot.catalog.providers.iter().map(|provider| &*provider.id);
    let hint = closest(id, ids()).map(|near| format!("did you mean `{near}`?"));
    let hint = hint.unwrap_or_else(|| format!("`freeway provider new {id}` makes one"));
    format!("there is no provider `{id}`; {hint}")
}

fn check_file<'s>(id: &str, snapshot: &'s Snapshot, report: &mut Report) -> Option<&'s Provider> {
    let provider = snapshot.catalog.providers.iter().find(|provider| *provider.id == *id);
    let file = snapshot.file_of(id);
    let name = file.map_or_else(|| format!("{id}.json"), |(name, _)| name.to_owned());
    match file {
        Some((name, Some(_))) => report.add(Mark::Good, format!("providers/{name} parses")),
        Some((name, None)) => report.add(Mark::Good, format!("{name} is built in, and parses")),
        None => {}
    }
    let own =
        snapshot.issues.iter().filter(|issue| issue.provider.as_deref() == Some(id) || issue.file == name);
    for issue in own {
        let mark = if issue.level == IssueLevel::Error { Mark::Problem } else { Mark::Warning };
        report.add(mark, issue_line(issue));
    }
    match provider {
        None if report.passes() => report.add(Mark::Problem, unknown_id(id, snapshot)),
        Some(provider) if !provider.enabled => {
            report.add(Mark::Warning, "the file switches this provider off");
        }
        _ => {}
    }
    provider
}

fn check_environment(provider: &Provider, report: &mut Report) {
    report.step("environment");
    if let Some(error) = provider.config_error() {
        return report.add(Mark::Problem, error);
    }
    report.add(Mark::Good, format!("baseUrl resolves to {}", provider.base_url));
    let keys: Vec<String> =
        provider.keys.iter().map(|key| format!("{} ({})", key.masked, key.source)).collect();
    let text = match (&provider.auth, keys.len()) {
        (Auth::None, _) => "no key is needed".to_owned(),
        (_, 1) => format!("1 key in the pool: {}", keys[0]),
        (_, count) => format!("{count} keys in the pool: {}", keys.join(", ")),
    };
    report.add(Mark::Good, text);
}

/// Asks with every key of the pool.
fn ask(client: &Client, snapshot: &Snapshot, provider: &Provider, validate: bool) -> Vec<Examined> {
    let lab = |key| Lab { client, redactor: &snapshot.redactor, provider, key };
    let mut probes: Vec<Examined> = provider.keys.iter().map(|key| lab(key).ask()).collect();
    if !validate {
        return probes;
    }
    let usable = |probe: &Examined| probe.reachable == Some(true) && !probe.health.is_actionable();
    // The first key asks everything, the others what it could not get, and something that it could.
    let mut first: Option<(Vec<Model>, Vec<Tried>)> = None;
    for (key, probe) in provider.keys.iter().zip(&mut probes).filter(|(_, probe)| usable(probe)) {
        match &first {
            None => {
                lab(key).try_models(probe, VALIDATION);
                first = Some((lab(key).askable(probe), probe.models.clone()));
            }
            Some((models, tried)) => {
                lab(key).try_all(&second_look(models, tried), probe, VALIDATION);
            }
        }
    }
    probes
}

/// What another key is to ask: models that did not answer the first one, and one that did.
fn second_look(models: &[Model], tried: &[Tried]) -> Vec<Model> {
    let good = tried.iter().find(|tried| tried.status == "ok");
    let bad = tried.iter().filter(|tried| tried.was_asked() && tried.status != "ok");
    let ids: Vec<&str> = good.into_iter().chain(bad).map(|tried| tried.id.as_str()).collect();
    models.iter().filter(|model| ids.contains(&&*model.id)).cloned().collect()
}

fn tell_keys(provider: &Provider, evidence: &Evidence, report: &mut Report) {
    report.step("live probe");
    let many = evidence.probes.len() > 1;
    for probe in &evidence.probes {
        let name = match provider.auth {
            Auth::None => "the provider".to_owned(),
            _ => format!("key {} ({})", probe.masked, probe.source),
        };
        let who = if many { format!("{name}: ") } else { String::new() };
        let errors = probe.errors.join("; ");
        match probe.health {
            KeyHealth::Healthy => {
                report.add(Mark::Good, format!("{who}auth accepted ({}ms)", probe.took_ms));
                if !probe.errors.is_empty() {
                    report.add(Mark::Problem, format!("discovery: {errors}"));
                }
            }
            // It may be a good key at a bad moment.
            KeyHealth::Limited => {
                report.add(Mark::Warning, format!("{name} is rate-limited just now: {errors}"))
            }
            health => report.add(Mark::Problem, format!("{name} is {}: {errors}", health.name())),
        }
        let mut asked = probe.models.iter().filter(|tried| tried.was_asked()).peekable();
        if asked.peek().is_some() && asked.all(|tried| tried.status == "forbidden") {
            report.add(
                Mark::Problem,
                format!("{name} is refused by every model, although it may see the list"),
            );
        }
    }
    let counts = evidence.healthy().map(|probe| probe.discovered.len());
    match (provider.models_endpoint.as_deref(), counts.max().filter(|count| *count > 0)) {
        (Some(path), Some(count)) => {
            let from = &provider.models_path;
            let plural = if count == 1 { "" } else { "s" };
            report
                .add(Mark::Good, format!("discovery found {count} model{plural} via {path} \u{2192} {from}"));
        }
        (None, _) => report.add(Mark::Good, "discovery is switched off: modelsEndpoint is null"),
        (Some(_), None) => {}
    }
}

fn tell_models(provider: &Provider, validate: bool, evidence: &Evidence, report: &mut Report) {
    let listed: Vec<&str> =
        evidence.healthy().flat_map(|probe| &probe.discovered).map(|found| found.id.as_str()).collect();
    let declared = provider.models.iter().filter(|model| model.source == ModelSource::Declared);
    for model in declared.filter(|model| !listed.is_empty() && !listed.contains(&&*model.id)) {
        report.add(Mark::Warning, format!("models: `{}` is not in the provider's list", model.id));
    }
    if !validate {
        return;
    }
    let mut best: Vec<&Tried> = Vec::new();
    for tried in evidence.probes.iter().flat_map(|probe| &probe.models).filter(|tried| tried.was_asked()) {
        match best.iter_mut().find(|known| known.id == tried.id) {
            Some(known) if known.status != "ok" && tried.status == "ok" => *known = tried,
            Some(_) => {}
            None => best.push(tried),
        }
    }
    let answered = best.iter().filter(|tried| tried.status == "ok").count();
    if !best.is_empty() {
        report.add(Mark::Good, format!("{answered} of {} models answered", best.len()));
    }
    let unasked =
        provider.models.iter().filter(|model| !best.iter().any(|tried| *tried.id == *model.id)).count();
    if unasked > 0 && !best.is_empty() {
        let most = VALIDATION.models_max;
        report.add(Mark::Hint, format!("{unasked} more were not asked; at most {most} are, in two minutes"));
    }
    for tried in best.iter().filter(|tried| tried.status != "ok") {
        let error = tried.error.as_deref().unwrap_or_default();
        report
            .add(Mark::Warning, format!("models: `{}` did not answer ({}): {error}", tried.id, tried.status));
    }
    if best.len() > 1 && best.iter().all(|tried| tried.status == "unknown-model") {
        report.add(Mark::Problem, "no model is there at all: look at baseUrl and paths.chat");
    }
}

fn tell_limits(provider: &Provider, evidence: &mut Evidence, report: &mut Report) {
    report.step("limits");
    let told = told_limits(provider, evidence);
    evidence.observed =
        told.iter().filter(|(_, all)| all.len() == 1).map(|(metric, all)| (*metric, all[0])).collect();
    if told.is_empty() {
        return report.add(Mark::Good, "response headers tell none");
    }
    let observed = &evidence.observed;
    if !observed.is_empty() {
        let all: Vec<String> =
            observed.iter().map(|(metric, amount)| format!("{}={amount}", metric.name())).collect();
        report.add(Mark::Good, format!("observed from response headers: {}", all.join(", ")));
    }
    for (metric, amount) in observed.iter().map(|(metric, amount)| (*metric, *amount)) {
        let name = metric.name();
        match declared(provider, metric) {
            None => report.add(
                Mark::Hint,
                format!("{name}: file says null, provider reports {amount} \u{2014} consider recording it"),
            ),
            Some(said) if drifts(said, amount) => report.add(
                Mark::Warning,
                format!("limits.{name}: the file says {said}, the provider tells {amount}"),
            ),
            Some(_) => {}
        }
    }
    for (metric, all) in told.iter().filter(|(_, all)| all.len() > 1) {
        let all: Vec<String> = all.iter().map(f64::to_string).collect();
        let (name, all) = (metric.name(), all.join(", "));
        report.add(
            Mark::Hint,
            format!("{name}: keys or models are told different limits ({all}); none is suggested"),
        );
    }
}

/// Every amount that was told of a limit. Where limits are those of a model, what a model's answer tells is its own.
fn told_limits(provider: &Provider, evidence: &Evidence) -> BTreeMap<Metric, Vec<f64>> {
    let mut told: BTreeMap<Metric, Vec<f64>> = BTreeMap::new();
    for probe in evidence.healthy() {
        let of_models = probe.models.iter().flat_map(|tried| &tried.observed);
        let of_models = of_models.filter(|_| provider.limits_scope != LimitsScope::Model);
        for (metric, amount) in
            probe.observed.iter().chain(of_models.map(|(metric, amount)| (metric, amount)))
        {
            let all = told.entry(*metric).or_default();
            if !all.contains(amount) {
                all.push(*amount);
            }
        }
    }
    told
}

/// The limit that a provider's file has.
pub fn declared(provider: &Provider, metric: Metric) -> Option<f64> {
    provider.limits.max.get(&metric).map(|limit| limit.amount)
}

/// Whether two limits are not the same any more.
pub fn drifts(said: f64, told: f64) -> bool {
    (said - told).abs() > DRIFT * said.max(told)
}

fn tell_suggestion(suggestion: &Suggestion, report: &mut Report) {
    report.step("suggested edits");
    let edits = suggestion.to_json();
    if edits.is_empty() {
        report.add(Mark::Good, "none");
    }
    for (name, value) in edits {
        report.add(Mark::Hint, format!("\"{name}\": {}", splice::inline(&value)));
    }
}

fn tell_applied(written: Result<Applied, String>, report: &mut Report) -> Option<Applied> {
    report.step("applied");
    match &written {
        Ok(applied) if applied.changes.is_empty() => report.add(Mark::Good, "nothing had to be changed"),
        Ok(applied) => {
            report.add(Mark::Good, format!("wrote {}", applied.file.display()));
            for change in &applied.changes {
                report.add(Mark::Good, change.clone());
            }
        }
        Err(error) => report.add(Mark::Problem, error.clone()),
    }
    written.ok()
}

fn as_json(
    id: &str,
    report: &Report,
    evidence: &Evidence,
    suggestion: &Suggestion,
    applied: Option<&Applied>,
) -> Value {
    let probes: Vec<Value> = evidence.probes.iter().map(Examined::to_json).collect();
    let suggestion: Map<String, Value> = suggestion.to_json();
    json!({
        "id": id,
        "verdict": verdict(report),
        "problems": report.all(Mark::Problem),
        "warnings": report.all(Mark::Warning),
        "probe": probes.first(),
        "probes": probes,
        "suggestion": suggestion,
        "applied": applied.map(|applied| json!({"file": applied.file, "changes": applied.changes})),
    })
}

fn verdict(report: &Report) -> &'static str {
    if report.passes() { "PASS" } else { "FAIL" }
}

fn tell(report: &Report, world: &mut World<'_>) {
    for (number, (title, lines)) in (1..).zip(&report.steps) {
        world.say(format!("{number}. {title}"));
        for (mark, text) in lines {
            world.say(format!("  {} {text}", mark.sign()));
        }
    }
    let count = |mark, word: &str| {
        let n = report.all(mark).len();
        format!("{n} {word}{}", if n == 1 { "" } else { "s" })
    };
    let (problems, warnings) = (count(Mark::Problem, "problem"), count(Mark::Warning, "warning"));
    world.say(format!("\n{} \u{2014} {problems}, {warnings}", verdict(report)));
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
        assert!(ran.out.ends_with("\nPASS \u{2014} 0 problems, 0 warnings\n"), "{}", ran.out);
        assert!(ran.out.contains("  + rpm: file says null, provider reports 60"), "{}", ran.out);
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
