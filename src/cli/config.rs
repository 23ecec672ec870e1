//! `freeway config`: is everything that the owner wrote understood, and what can be written.
use std::ffi::OsString;

use lexopt::prelude::*;
use serde_json::json;

use super::{DONE, FAILED, Failure, World, issue_json, issue_line, issue_lines};
use crate::catalog::env::Paths;
use crate::catalog::load::Snapshot;
use crate::catalog::names::{How, Kind};
use crate::catalog::{Issue, IssueLevel, config, example, overrides, table};

/// What `freeway config --help` says.
pub const HELP: &str = "\
usage: freeway config check [--json]
       freeway config settings [--json]
       freeway config example [--json]

  check      reads the configuration, .env and all provider files, and says what is wrong and what to do
  settings   prints every setting with its default, its variable and its meaning, as Markdown
  example    prints an example of .env

examples:
  freeway config check
  freeway config check --json | jq .issues
  freeway config example > .env";

/// Runs the command.
pub fn run(args: &[OsString], world: &mut World<'_>) -> Result<u8, Failure> {
    let mut parser = lexopt::Parser::from_args(args);
    let (mut action, mut json) = (None, false);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("json") => json = true,
            Short('h') | Long("help") => {
                world.say(HELP);
                return Ok(DONE);
            }
            Value(word) if action.is_none() => action = Some(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    match action.as_deref() {
        Some("check") => Ok(check(json, world)),
        Some("settings") if json => {
            let row = |row: &table::Row| {
                let default: serde_json::Value = serde_json::from_str(row.default).unwrap_or_default();
                json!({"name": row.name, "default": default, "variables": row.variables, "text": row.text})
            };
            world.say_json(&json!({"settings": table::TABLE.iter().map(row).collect::<Vec<_>>()}));
            Ok(DONE)
        }
        Some("example") if json => {
            world.say_json(&json!({"ok": true, "text": example::env_example()}));
            Ok(DONE)
        }
        Some("settings") => {
            world.say(table::markdown().trim_end());
            Ok(DONE)
        }
        Some("example") => {
            world.say(example::env_example().trim_end());
            Ok(DONE)
        }
        Some(other) => {
            Err(Failure::Usage(format!("config: `{other}` is not known; try check, settings or example")))
        }
        None => Err(Failure::Usage("config: what? Try check, settings or example".into())),
    }
}

fn check(json: bool, world: &mut World<'_>) -> u8 {
    let paths = world.paths();
    match world.load(&paths) {
        Ok(mut snapshot) => {
            let dead = dead_names(&paths, &snapshot);
            snapshot.issues.extend(dead);
            tell(&paths, &snapshot, json, world)
        }
        Err(issues) => {
            if json {
                let issues: Vec<_> = issues.iter().map(issue_json).collect();
                world.say_json(&json!({"ok": false, "issues": issues}));
            } else {
                world.say(issue_lines(&issues));
                world.say("\nThe gateway would not start.");
            }
            FAILED
        }
    }
}

/// Aliases and entries of profiles that mean nothing now. Only warnings: a model list may still bring them.
fn dead_names(paths: &Paths, snapshot: &Snapshot) -> Vec<Issue> {
    let settings = &snapshot.settings;
    let aliases = settings.aliases.iter().map(|(name, target)| ("aliases", name, target));
    let profiles = settings
        .profiles
        .iter()
        .flat_map(|(name, profile)| profile.models.iter().map(move |target| ("profiles", name, target)));
    let mut issues = Vec::new();
    for (section, name, target) in aliases.chain(profiles) {
        let means = |kind| snapshot.names.resolve(&snapshot.catalog, settings, target, kind);
        let found = means(Kind::Chat);
        if found.how != How::Unmatched || means(Kind::Embed).how != How::Unmatched {
            continue;
        }
        let hint =
            found.suggestions.first().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        let file = match snapshot.overrides.has(section, name) {
            true => overrides::FILE.into(),
            false => paths.config.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        };
        issues.push(Issue {
            file,
            provider: None,
            level: IssueLevel::Warning,
            message: format!("{section}.{name}: `{target}` names no model just now{hint}"),
        });
    }
    issues
}

fn tell(paths: &Paths, snapshot: &Snapshot, json: bool, world: &mut World<'_>) -> u8 {
    let refusal = snapshot.settings.bind_problem();
    let errors = snapshot.issues.iter().filter(|issue| issue.level == IssueLevel::Error).count();
    let ok = refusal.is_none() && errors == 0;
    let providers = &snapshot.catalog.providers;
    let ready = providers.iter().filter(|provider| provider.enabled && provider.configured()).count();
    if json {
        world.say_json(&json!({
            "ok": ok,
            "refusal": refusal,
            "issues": snapshot.issues.iter().map(issue_json).collect::<Vec<_>>(),
            "paths": {
                "root": paths.root, "providers": paths.providers, "data": paths.data,
                "config": paths.config, "env": paths.env_file,
            },
            "providers": {"total": providers.len(), "ready": ready},
            "settings": config::to_json(&snapshot.settings),
        }));
        return if ok { DONE } else { FAILED };
    }
    let there = |path: &std::path::Path| if path.exists() { "" } else { " (not there)" };
    world.say(format!("configuration  {}{}", paths.config.display(), there(&paths.config)));
    world.say(format!("variables      {}{}", paths.env_file.display(), there(&paths.env_file)));
    let built_in = match (paths.providers.exists(), paths.providers_named) {
        (true, _) => "",
        (false, false) => " (not there: the built-in files are used)",
        (false, true) => " (not there)",
    };
    world.say(format!("providers      {}{built_in}", paths.providers.display()));
    world.say(format!("data           {}{}", paths.data.display(), there(&paths.data)));
    world.say(format!("listens on     {}:{}", snapshot.settings.host, snapshot.settings.port));
    world.say(format!("client keys    {}", snapshot.settings.keys.len()));
    world.say(format!("ready          {ready} of {} providers", providers.len()));
    for issue in &snapshot.issues {
        world.say(issue_line(issue));
    }
    if let Some(refusal) = &refusal {
        world.say(format!("error: {refusal}"));
    }
    if ready == 0 {
        world.say(
            "hint: no provider has a key yet; `freeway provider list` says what to set and where to get one",
        );
    }
    world.say(if ok { "\nok" } else { "\nnot ok" });
    if ok { DONE } else { FAILED }
}

#[cfg(test)]
mod tests {
    use super::super::USAGE;
    use super::super::testing::Site;

    #[test]
    fn a_good_configuration_is_ok() {
        let site = Site::empty();
        let ran = site.run(&["config", "check"]);
        assert_eq!((ran.status, ran.out.ends_with("\nok\n")), (0, true), "{}", ran.out);
        let ran = site.run(&["config", "--json", "check"]);
        assert_eq!((ran.status, ran.json()["ok"].as_bool()), (0, Some(true)));
        assert!(!site.folder.path().join("data").exists(), "looking leaves no trace");
    }

    #[test]
    fn faults_are_told_with_file_and_field() {
        let site = Site::empty();
        site.write("freeway.config.json", r#"{"maxAttempts": "3"}"#);
        let ran = site.run(&["config", "check"]);
        assert_eq!(ran.status, 1);
        assert!(
            ran.out.contains("error: freeway.config.json: maxAttempts: must be a whole number"),
            "{}",
            ran.out
        );
        let found = site.run(&["config", "check", "--json"]);
        assert_eq!(
            (found.status, found.json()["issues"][0]["file"].as_str()),
            (1, Some("freeway.config.json"))
        );
        site.write("freeway.config.json", r#"{"host": "0.0.0.0"}"#);
        let ran = site.run(&["config", "check"]);
        assert!(ran.status == 1 && ran.out.contains("freeway init --lan"), "{}", ran.out);
    }

    #[test]
    fn a_bad_provider_file_fails_the_check_and_a_warning_does_not() {
        let site = Site::empty();
        site.write(
            "providers/a.json",
            r#"{"id": "a", "baseUrl": "https://a.example", "auth": {"type": "none"}, "hue": 1}"#,
        );
        assert_eq!(site.run(&["config", "check"]).status, 0);
        site.write("providers/b.json", "{");
        let ran = site.run(&["config", "check"]);
        assert!(ran.status == 1 && ran.out.contains("error: b.json: line 1"), "{}", ran.out);
    }

    #[test]
    fn names_that_mean_nothing_are_warnings() {
        let site = Site::empty();
        let text = r#"{"aliases": {"a": "groq/lllama-3.3-70b-versatile", "b": "embed"}, "profiles": {"p": ["fast", "no-such-model-at-all"]}}"#;
        site.write("freeway.config.json", text);
        let ran = site.run(&["config", "check"]);
        let warnings: Vec<&str> = ran.out.lines().filter(|line| line.starts_with("warning")).collect();
        assert_eq!((ran.status, warnings.len()), (0, 2), "{}", ran.out);
        let expected = "aliases.a: `groq/lllama-3.3-70b-versatile` names no model just now; did you mean `groq/llama-3.3-70b-versatile`?";
        assert!(warnings[0].ends_with(expected), "{}", warnings[0]);
    }

    #[test]
    fn what_is_not_understood_is_usage() {
        let site = Site::empty();
        for line in [
            vec!["config"],
            vec!["config", "chekc"],
            vec!["config", "check", "--yaml"],
            vec!["config", "check", "x"],
        ] {
            let ran = site.run(&line);
            assert_eq!(
                (ran.status, ran.err.contains("usage: freeway config check")),
                (USAGE, true),
                "{line:?}"
            );
        }
        let ran = site.run(&["config", "chekc", "--json"]);
        assert_eq!((ran.status, ran.json()["ok"].as_bool()), (USAGE, Some(false)));
        assert!(site.run(&["config", "--help"]).out.contains("examples:"));
        assert!(site.run(&["config", "settings"]).out.contains("| `server.workers` |"));
        assert!(site.run(&["config", "example"]).out.contains("#GROQ_API_KEY="));
    }
}
