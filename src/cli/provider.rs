//! `freeway provider`: what there is, a new file, fresh model lists. `verify` has a file of its own.
use std::ffi::OsString;
use std::path::Path;

use lexopt::prelude::*;
use serde_json::{Value, json};

use super::{DONE, FAILED, Failure, World, command, issue_json, issue_line, issue_lines, verify};
use crate::base::{calendar, clock};
use crate::catalog::discovery::DiscoveredList;
use crate::catalog::env::{self, Paths};
use crate::catalog::load::{self, Snapshot, WITH_BUNDLED};
use crate::catalog::provider::{Auth, Provider};
use crate::catalog::splice::inline;
use crate::catalog::{address, bundled, spec};
use crate::upstream::client::{Client, ClientConfig};
use crate::upstream::probe;

/// What `freeway provider --help` says.
pub const HELP: &str = "\
usage: freeway provider list [--json]
       freeway provider new ID [--url URL] [--env NAME] [--auth bearer|header|query|none]
                               [--header NAME] [--query NAME] [--label TEXT] [--force] [--json]
       freeway provider verify ID [--validate] [--apply] [--json]
       freeway provider refresh [ID...] [--json]

  list      every provider, what it lacks, and where to get a key
  new       writes providers/ID.json to fill in
  verify    checks the file, the variables and every key against the provider, and suggests edits;
            --validate also asks each model for a few tokens, --apply writes what is suggested into the file
  refresh   fetches the model lists again

examples:
  freeway provider list
  freeway provider new acme --url https://api.acme.example/v1 --env ACME_API_KEY
  freeway provider verify acme
  freeway provider verify acme --validate --apply
  freeway provider verify acme --json | jq .verdict
  freeway provider refresh groq";

/// What the arguments say.
#[derive(Debug, Default)]
struct Line {
    action: Option<String>,
    ids: Vec<String>,
    json: bool,
    force: bool,
    validate: bool,
    apply: bool,
    url: Option<String>,
    env: Option<String>,
    auth: Option<String>,
    header: Option<String>,
    query: Option<String>,
    label: Option<String>,
}

/// Runs the command.
pub fn run(args: &[OsString], world: &mut World<'_>) -> Result<u8, Failure> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut line = Line::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("json") => line.json = true,
            Long("force") => line.force = true,
            Long("validate") => line.validate = true,
            Long("apply") => line.apply = true,
            Long("url") => line.url = Some(parser.value()?.string()?),
            Long("env") => line.env = Some(parser.value()?.string()?),
            Long("auth") => line.auth = Some(parser.value()?.string()?),
            Long("header") => line.header = Some(parser.value()?.string()?),
            Long("query") => line.query = Some(parser.value()?.string()?),
            Long("label") => line.label = Some(parser.value()?.string()?),
            Short('h') | Long("help") => {
                world.say(HELP);
                return Ok(DONE);
            }
            Value(word) if line.action.is_none() => line.action = Some(word.string()?),
            Value(word) => line.ids.push(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let action = line.action.clone().unwrap_or_default();
    match (action.as_str(), line.ids.as_slice()) {
        ("list", []) => list(&line, world),
        ("new", [id]) => new(id, &line, world),
        ("verify", [id]) => {
            let (validate, apply, json) = (line.validate, line.apply, line.json);
            verify::run(&verify::Wish { id, validate, apply, json }, world)
        }
        ("refresh", ids) => refresh(ids, line.json, world),
        ("list", _) => Err(Failure::Usage("provider list: takes no names".into())),
        ("new" | "verify", _) => Err(Failure::Usage(format!("provider {action}: give one id, such as acme"))),
        ("", _) => Err(Failure::Usage("provider: what? Try list, new, verify or refresh".into())),
        (other, _) => {
            Err(Failure::Usage(format!("provider: `{other}` is not known; try list, new, verify or refresh")))
        }
    }
}

/// Everything configured, or the reasons why not.
pub(super) fn load_all(paths: &Paths, world: &World<'_>) -> Result<Snapshot, Failure> {
    world
        .load(paths)
        .map_err(|issues| Failure::Failed(format!("the configuration has faults:\n{}", issue_lines(&issues))))
}

/// A client for the few calls of a command.
pub(super) fn client(paths: &Paths, world: &World<'_>) -> Result<Client, Failure> {
    let variables = env::variables(&world.process, &paths.env_file);
    Client::new(ClientConfig::from_variables(&variables)).map_err(Failure::Failed)
}

fn list(line: &Line, world: &mut World<'_>) -> Result<u8, Failure> {
    let paths = world.paths();
    let snapshot = load_all(&paths, world)?;
    let mut providers: Vec<&Provider> = snapshot.catalog.providers.iter().collect();
    providers.sort_by(|a, b| a.priority.total_cmp(&b.priority).then_with(|| a.id.cmp(&b.id)));
    if line.json {
        let all: Vec<Value> = providers.iter().map(|provider| as_json(provider)).collect();
        let issues: Vec<Value> = snapshot.issues.iter().map(issue_json).collect();
        world.say_json(&json!({"providers": all, "issues": issues}));
        return Ok(DONE);
    }
    let width = providers.iter().map(|provider| provider.id.len()).max().unwrap_or(0);
    for provider in providers {
        let keys = match (&provider.auth, provider.keys.len()) {
            (Auth::None, _) => "no key needed".to_owned(),
            (_, 1) => "1 key".to_owned(),
            (_, n) => format!("{n} keys"),
        };
        let models = provider.models.len();
        world.say(format!("{:width$}  {:<13} {models:>4} models  {}", provider.id, keys, state(provider)));
    }
    for issue in &snapshot.issues {
        world.say(issue_line(issue));
    }
    Ok(DONE)
}

/// One line of state: ready, or what is missing.
fn state(provider: &Provider) -> String {
    if !provider.enabled {
        return "switched off in its file".into();
    }
    match (provider.config_error(), &provider.signup) {
        (Some(error), Some(place)) if provider.keys.is_empty() => format!("{error}; get one at {place}"),
        (Some(error), _) => error,
        (None, _) if provider.models.is_empty() => {
            "ready, no models yet: run `freeway provider refresh`".into()
        }
        (None, _) if provider.models.iter().all(|model| !model.enabled) => "no model may be used".into(),
        (None, _) => "ready".into(),
    }
}

fn as_json(provider: &Provider) -> Value {
    json!({
        "id": *provider.id,
        "label": provider.label,
        "enabled": provider.enabled,
        "configured": provider.configured(),
        "configError": provider.config_error(),
        "priority": provider.priority,
        "baseUrl": provider.base_url,
        "authType": provider.auth.name(),
        "envKeys": provider.env_keys,
        "keys": provider.keys.iter().map(|key| json!({"id": *key.id, "masked": key.masked, "source": key.source})).collect::<Vec<_>>(),
        "signup": provider.signup,
        "notes": provider.notes,
        "models": provider.models.iter().map(|model| json!({
            "id": *model.id,
            "ref": *model.reference,
            "label": model.label,
            "alias": model.aliases,
            "caps": model.caps.names().collect::<Vec<_>>(),
            "context": model.context,
            "enabled": model.enabled,
            "source": model.source.name(),
        })).collect::<Vec<_>>(),
    })
}

fn new(id: &str, line: &Line, world: &mut World<'_>) -> Result<u8, Failure> {
    if !spec::is_provider_id(id) {
        return Err(Failure::Usage(format!(
            "provider new: `{id}` is no id; use lower-case letters, digits and `-`"
        )));
    }
    let (file, env_name) = new_file(id, line)?;
    let paths = world.paths();
    let path = paths.providers.join(format!("{id}.json"));
    if path.exists() && !line.force {
        return Err(Failure::Failed(format!("{} is there already; --force overwrites it", path.display())));
    }
    if let Some(problem) = taken(id, &path, line.force, &paths, world) {
        return Err(Failure::Failed(problem));
    }
    let failed = |error: std::io::Error| Failure::Failed(format!("{}: {error}", path.display()));
    prepare_folder(&paths).map_err(failed)?;
    std::fs::write(&path, file).map_err(failed)?;
    command::read_again(&paths.data);
    if line.json {
        world.say_json(&json!({"ok": true, "id": id, "file": path, "env": env_name, "next": format!("freeway provider verify {id}")}));
        return Ok(DONE);
    }
    world.say(format!("wrote {}", path.display()));
    if line.url.is_none() {
        world.say("Its baseUrl is made up: put the real one there.");
    }
    if let Some(name) = env_name {
        world.say(format!("Put the key into {} as {name}=...", paths.env_file.display()));
    }
    world.say(format!("Then run: freeway provider verify {id}"));
    Ok(DONE)
}

/// Why a new file for this id would not do what is meant: another file has the id already.
fn taken(id: &str, path: &Path, force: bool, paths: &Paths, world: &World<'_>) -> Option<String> {
    // With a configuration that refuses nothing is known of the others.
    let snapshot = world.load(paths).ok()?;
    match snapshot.file_of(id)? {
        // The file would take its place, with a made-up address and no models.
        (_, None) if !force => Some(format!(
            "{id} is built in already: `freeway provider verify {id} --apply` makes a copy to change; --force replaces it"
        )),
        (file, Some(_)) if path.file_name().is_none_or(|name| *name != *file) => Some(format!(
            "{id} stands in {} already; change that file, or take another id",
            paths.providers.join(file).display()
        )),
        _ => None,
    }
}

/// Makes the folder of provider files where there is none.
pub(super) fn prepare_folder(paths: &Paths) -> std::io::Result<()> {
    let fresh = !paths.providers.exists();
    std::fs::create_dir_all(&paths.providers)?;
    if fresh && !paths.providers_named {
        // Without it the new folder would take the built-in providers away.
        std::fs::write(paths.providers.join(WITH_BUNDLED), MARKER)?;
        std::fs::write(paths.providers.join("_schema.json"), bundled::SCHEMA.unpack())?;
    }
    Ok(())
}

const MARKER: &str = "\
// While this file is here, the providers built into freeway are used beside the files of this folder; a file with the
// same name replaces a built-in one. Without this file only the folder counts.
{}
";

/// The file to write, in the order in which people read it, and the variable that its key goes into.
fn new_file(id: &str, line: &Line) -> Result<(String, Option<String>), Failure> {
    let usage = |message: String| Err(Failure::Usage(format!("provider new: {message}")));
    let kind = line.auth.as_deref().unwrap_or(match (&line.header, &line.query) {
        (Some(_), _) => "header",
        (_, Some(_)) => "query",
        _ => "bearer",
    });
    if !["bearer", "header", "query", "none"].contains(&kind) {
        return usage(format!("--auth must be one of bearer, header, query, none (it is `{kind}`)"));
    }
    let url = line.url.clone().unwrap_or_else(|| format!("https://api.{id}.example/v1"));
    if let Err(error) = address::check_template(&url) {
        return usage(format!("--url {error}"));
    }
    let name = line.env.clone().unwrap_or_else(|| format!("{}_API_KEY", id.replace('-', "_").to_uppercase()));
    let name = if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name };
    if !spec::is_variable_name(&name) {
        return usage(format!("--env must be the name of a variable, such as ACME_API_KEY (it is `{name}`)"));
    }
    let text = |text: &str| inline(&text.into());
    let place = match kind {
        "header" => format!("\"header\": {}, ", text(line.header.as_deref().unwrap_or("x-api-key"))),
        "query" => format!("\"query\": {}, ", text(line.query.as_deref().unwrap_or("key"))),
        _ => String::new(),
    };
    let auth = match kind {
        "none" => "{ \"type\": \"none\" }".to_owned(),
        _ => format!("{{ \"type\": \"{kind}\", {place}\"envKeys\": [{}] }}", text(&name)),
    };
    let members = [
        ("$schema", text("./_schema.json")),
        ("id", text(id)),
        ("label", text(line.label.as_deref().unwrap_or(id))),
        ("baseUrl", text(&url)),
        ("auth", auth),
        ("limits", r#"{ "rpm": null, "rpd": null, "tpm": null, "tpd": null }"#.to_owned()),
        ("limitsSource", text("unverified")),
        ("verifiedOn", text(&calendar::date(clock::now().wall_ms))),
        ("modelsEndpoint", text("/models")),
        ("modelsPath", text("data[].id")),
        ("models", "[]".to_owned()),
    ];
    let lines: Vec<String> = members.iter().map(|(name, value)| format!("  \"{name}\": {value}")).collect();
    Ok((format!("{{\n{}\n}}\n", lines.join(",\n")), (kind != "none").then_some(name)))
}

fn refresh(ids: &[String], json: bool, world: &mut World<'_>) -> Result<u8, Failure> {
    let paths = world.paths();
    let snapshot = load_all(&paths, world)?;
    let known = &snapshot.catalog.providers;
    if let Some(unknown) = ids.iter().find(|id| !known.iter().any(|provider| *provider.id == **id)) {
        return Err(Failure::Failed(verify::unknown_id(unknown, &snapshot)));
    }
    let client = client(&paths, world)?;
    let mut discovered = load::read_discovered(&paths.data);
    let (mut lines, mut lists, mut fetched, mut failed) = (Vec::new(), Vec::new(), 0, 0);
    for provider in known {
        let due = provider.enabled && provider.configured() && provider.models_endpoint.is_some();
        if !(ids.is_empty() && due || ids.iter().any(|id| *provider.id == **id)) {
            continue;
        }
        let id = provider.id.to_string();
        match fetch(&client, provider) {
            Ok((list, took_ms)) => {
                fetched += 1;
                let count = list.models.len();
                lines.push(format!("{id}: {count} models ({took_ms} ms)"));
                lists.push(json!({"id": id, "ok": true, "models": count, "ms": took_ms, "error": null}));
                discovered.lists.insert(id, list);
            }
            Err(error) => {
                failed += 1;
                let error = snapshot.redactor.redact(&error).into_owned();
                lines.push(format!("{id}: {error}"));
                lists.push(json!({"id": id, "ok": false, "models": null, "ms": null, "error": error}));
            }
        }
    }
    if fetched > 0 {
        load::write_discovered(&paths.data, &discovered)
            .map_err(|error| Failure::Failed(format!("{}: {error}", paths.data.display())))?;
        command::read_again(&paths.data);
    }
    if json {
        world.say_json(&json!({"ok": failed == 0, "providers": lists}));
    } else if lines.is_empty() {
        world.say("No provider has a key and a model list yet; see `freeway provider list`.");
    } else {
        world.say(lines.join("\n"));
    }
    Ok(if failed == 0 { DONE } else { FAILED })
}

/// Fetches one list, in the form in which it is kept.
fn fetch(client: &Client, provider: &Provider) -> Result<(DiscoveredList, u64), String> {
    let fetched = probe::fetch_models(client, provider)?;
    let (base_url, fetched_wall_ms) = (provider.base_url.clone(), clock::now().wall_ms);
    Ok((DiscoveredList { fetched_wall_ms, base_url, models: fetched.models }, fetched.took_ms))
}

#[cfg(test)]
mod tests {
    use super::super::USAGE;
    use super::super::testing::{Site, Upstream};
    use super::*;

    #[test]
    fn the_list_says_what_is_missing() {
        let mut site = Site::empty();
        site.process.insert("GROQ_API_KEY".into(), "test-key-groq-1,test-key-groq-2".into());
        let ran = site.run(&["provider", "list"]);
        let line =
            |id: &str| ran.out.lines().find(|line| line.starts_with(&format!("{id} "))).expect(id).to_owned();
        assert_eq!(ran.status, 0);
        assert!(line("groq").contains("2 keys") && line("groq").ends_with("ready"), "{}", line("groq"));
        assert!(
            line("mistral").contains("no API key found (set one of: MISTRAL_API_KEY"),
            "{}",
            line("mistral")
        );
        assert!(
            line("ollama").contains("missing environment variable(s): OLLAMA_HOST"),
            "{}",
            line("ollama")
        );
        assert!(line("cohere").contains("switched off"), "{}", line("cohere"));
        let all = site.run(&["provider", "--json", "list"]).json();
        let groq =
            all["providers"].as_array().expect("a list").iter().find(|p| p["id"] == "groq").expect("groq");
        assert_eq!(
            (groq["configured"].as_bool(), groq["keys"].as_array().map(Vec::len)),
            (Some(true), Some(2))
        );
        assert!(!ran.out.contains("test-key-groq") && !all.to_string().contains("test-key-groq"));
    }

    #[test]
    fn d_a_new_file_is_made_from_words_in_any_order() {
        let check = |line: &[&str], pointer: &str, expected: Value| {
            let site = Site::empty();
            let ran = site.run(&[&["provider"], line].concat());
            assert_eq!(ran.status, 0, "{line:?}: {}", ran.err);
            let file: Value = serde_json::from_str(&site.read("providers/acme-ai.json")).expect("JSON");
            assert_eq!(file.pointer(pointer), Some(&expected), "{line:?}");
            let listed = site.run(&["provider", "list", "--json"]).json();
            assert_eq!(listed["issues"], json!([]), "{line:?}");
            assert!(
                listed["providers"].as_array().is_some_and(|all| all.len() == bundled::files().len() + 1)
            );
        };
        check(&["new", "acme-ai"], "/auth/envKeys/0", json!("ACME_AI_API_KEY"));
        check(
            &["new", "--url", "https://x.example/v1", "acme-ai"],
            "/baseUrl",
            json!("https://x.example/v1"),
        );
        check(&["--env", "K", "new", "--label", "Acme AI", "acme-ai"], "/label", json!("Acme AI"));
        check(&["new", "acme-ai", "--auth=header", "--json"], "/auth/header", json!("x-api-key"));
        check(&["new", "--query", "k", "acme-ai"], "/auth/query", json!("k"));
        check(
            &["new", "acme-ai", "--auth", "none", "--url", "${ACME_HOST}/v1"],
            "/auth",
            json!({"type": "none"}),
        );
    }

    #[test]
    fn d_a_new_file_refuses_what_could_not_work() {
        let site = Site::empty();
        let check = |line: &[&str], expected: &str| {
            let ran = site.run(&[&["provider", "new"], line].concat());
            assert!(
                ran.status == USAGE && ran.err.contains(expected),
                "{line:?}: {} {}",
                ran.status,
                ran.err
            );
            assert!(!site.folder.path().join("providers").exists(), "{line:?}");
        };
        check(&[], "give one id");
        check(&["a", "b"], "give one id");
        check(&["Acme"], "is no id");
        check(&["../x"], "is no id");
        check(&["acme", "--auth", "basic"], "--auth must be one of");
        check(&["acme", "--url", "acme.example"], "--url must begin with https://");
        check(&["acme", "--env", "sk-key"], "--env must be the name of a variable");
        check(&["acme", "--url"], "missing argument");
    }

    #[test]
    fn a_file_is_not_overwritten_unasked() {
        let site = Site::empty();
        site.write("providers/acme.json", "mine");
        let ran = site.run(&["provider", "new", "acme"]);
        assert_eq!((ran.status, site.read("providers/acme.json").as_str()), (FAILED, "mine"));
        assert_eq!(site.run(&["provider", "new", "acme", "--json"]).json()["ok"], json!(false));
        assert_eq!(site.run(&["provider", "new", "acme", "--force"]).status, DONE);
        assert!(site.read("providers/acme.json").contains("\"acme\""));
        assert!(
            !site.folder.path().join("providers").join(WITH_BUNDLED).exists(),
            "the folder was the owner's"
        );
    }

    #[test]
    fn fresh_lists_are_kept_for_the_next_start() {
        let mut site = Site::empty();
        let upstream = Upstream::start(|request| match request.key.as_str() {
            "test-key-good" => {
                (200, String::new(), json!({"data": [{"id": "m/one"}, {"id": "two:free"}]}).to_string())
            }
            key => (401, String::new(), json!({"error": {"message": format!("bad key {key}")}}).to_string()),
        });
        site.process.insert("ACME_KEY".into(), "test-key-bad,test-key-good".into());
        site.write("providers/acme.json", &upstream.file("acme"));
        site.write("providers/off.json", r#"{"id": "off", "baseUrl": "http://127.0.0.1:9", "auth": {"type": "none"}, "modelsEndpoint": null}"#);
        let ran = site.run(&["provider", "refresh", "--json"]);
        assert_eq!(
            (ran.status, ran.json()["providers"][0]["models"].as_u64()),
            (DONE, Some(2)),
            "{}",
            ran.out
        );
        let listed = site.run(&["provider", "list", "--json"]).json();
        assert_eq!(listed["providers"][0]["models"][1]["ref"], json!("acme/m/one"));
        // A provider that fails keeps its list, and its key is not told.
        site.process.insert("ACME_KEY".into(), "test-key-bad".into());
        let ran = site.run(&["provider", "refresh", "acme"]);
        assert!(
            ran.status == FAILED && ran.out.contains("answered 401") && !ran.out.contains("test-key-bad"),
            "{}",
            ran.out
        );
        let listed = site.run(&["provider", "list", "--json"]).json();
        assert_eq!(listed["providers"][0]["models"].as_array().map(Vec::len), Some(3));
        assert_eq!(
            site.run(&["provider", "refresh", "acne"]).err,
            "freeway: there is no provider `acne`; did you mean `acme`?\n"
        );
    }
}
