//! `freeway clients`: the keys that apps present.
use std::ffi::OsString;

use lexopt::prelude::*;
use serde_json::{Map, Value, json};

use super::{DONE, Failure, World, command, issue_lines};
use crate::base::calendar;
use crate::base::clock;
use crate::catalog::client_key::{ClientKey, ClientLimits, ClientRules};
use crate::catalog::clients;
use crate::catalog::load::Snapshot;
use crate::http::sock;

/// What `freeway clients --help` says.
pub const HELP: &str = "\
usage: freeway clients new NAME [--models LIST] [--strategy NAME] [--no-cache] [--limit NAME=N]... [--json]
       freeway clients list [--json]
       freeway clients revoke NAME|ID [--json]

  new     make a key for an app; it is shown this once
  list    all keys: those made here, and those of the configuration and of FREEWAY_KEYS
  revoke  from now on the key opens nothing

  --models LIST     the only model strings that it may use, separated by commas (`groq/*` is all of groq)
  --strategy NAME   its order of candidates, where a request names none
  --no-cache        it is never answered from a cache
  --limit NAME=N    rpm, tpm, rpd or concurrency
  --json            tell it as JSON

  A gateway that runs takes up the change at once.

examples:
  freeway clients new phone
  freeway clients new editor --models fast,groq/* --limit rpm=30
  freeway clients revoke phone";

/// Runs the command.
pub fn run(args: &[OsString], world: &mut World<'_>) -> Result<u8, Failure> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut words: Vec<String> = Vec::new();
    let (mut rules, mut limits, mut json) = (Map::new(), Map::new(), false);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => {
                world.say(HELP);
                return Ok(DONE);
            }
            Long("json") => json = true,
            Long("models") => {
                let list = parser.value()?.string()?;
                let models: Vec<&str> =
                    list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
                rules.insert("models".into(), json!(models));
            }
            Long("strategy") => drop(rules.insert("strategy".into(), parser.value()?.string()?.into())),
            Long("no-cache") => drop(rules.insert("cache".into(), false.into())),
            Long("limit") => {
                let (name, most) = limit(&parser.value()?.string()?)?;
                limits.insert(name, most);
            }
            Value(word) => words.push(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if !limits.is_empty() {
        rules.insert("limits".into(), limits.into());
    }
    match words.as_slice() {
        ["new", name] => make(name, &rules, json, world),
        ["new"] => Err(Failure::Usage("give the new key a name, such as the app's".into())),
        _ if !rules.is_empty() => Err(Failure::Usage("rules are given to `clients new`".into())),
        ["list"] => list(json, world),
        ["revoke", which] => revoke(which, json, world),
        ["revoke"] => Err(Failure::Usage("say which key, by its name or its id".into())),
        [] => Err(Failure::Usage("say what to do: new, list or revoke".into())),
        [other, ..] => Err(Failure::Usage(format!(
            "`{other}` is none of new, list and revoke, or has too many words behind it"
        ))),
    }
}

fn limit(text: &str) -> Result<(String, Value), Failure> {
    let pair = text.split_once('=').and_then(|(name, n)| Some((name.to_owned(), n.parse::<u64>().ok()?)));
    let (name, n) = pair.ok_or_else(|| Failure::Usage(format!("--limit {text}: must be such as rpm=30")))?;
    Ok((name, n.into()))
}

fn loaded(world: &World<'_>) -> Result<Snapshot, Failure> {
    world
        .load(&world.paths())
        .map_err(|issues| Failure::Failed(format!("the configuration has faults:\n{}", issue_lines(&issues))))
}

fn make(name: &str, rules: &Map<String, Value>, json: bool, world: &mut World<'_>) -> Result<u8, Failure> {
    let rules = ClientRules::read("", rules).map_err(Failure::Usage)?;
    let data = world.paths().data;
    let turn = command::turn(&data);
    let (key, made) = clients::add(&data, name, rules, clock::now().wall_ms).map_err(Failure::Failed)?;
    drop(turn);
    command::read_again(&data);
    if json {
        world.say_json(&json!({"ok": true, "client": made.to_json(), "key": key}));
        return Ok(DONE);
    }
    world.say(format!(
        "{key}\n\nThis is the key of `{}`, shown this once. Type it into the app as its API key.",
        made.name
    ));
    Ok(DONE)
}

fn list(json: bool, world: &mut World<'_>) -> Result<u8, Failure> {
    let settings = loaded(world)?.settings;
    // A list that lacks what cannot be read would say that nobody is kept out.
    if settings.keys_lost {
        let (_, faults) = clients::read(&world.paths().data);
        return Err(Failure::Failed(issue_lines(&faults)));
    }
    let keys = settings.keys;
    if json {
        let all: Vec<Value> = keys.iter().map(|key| key.to_json()).collect();
        world.say_json(&json!({"clients": all, "open": all.is_empty()}));
        return Ok(DONE);
    }
    if keys.is_empty() {
        world.say("There is no client key: every app of this machine may call, no other machine can.\n`freeway clients new NAME` makes one.");
    }
    for key in keys {
        world.say(line(&key));
    }
    Ok(DONE)
}

fn line(key: &ClientKey) -> String {
    let made = key.created_ms.map(|ms| format!(", made {}", calendar::date(ms))).unwrap_or_default();
    format!("{:<24} {}  {}{made}{}", key.name, key.principal(), key.source.name(), rules(&key.rules))
}

/// What a key may not do, behind a comma.
fn rules(rules: &ClientRules) -> String {
    let ClientLimits { rpm, tpm, rpd, concurrency } = rules.limits;
    let limits = [("rpm", rpm), ("tpm", tpm), ("rpd", rpd), ("concurrency", concurrency)];
    let limits = limits.iter().filter_map(|(name, most)| Some(format!(", {name}={}", (*most)?)));
    let mut text = match rules.models.as_slice() {
        [] => String::new(),
        models => format!(", only {}", models.join(" ")),
    };
    text.extend(rules.strategy.map(|strategy| format!(", order {}", strategy.name())));
    text.extend((rules.cache == Some(false)).then_some(", no cache"));
    text.extend(limits);
    text
}

fn revoke(which: &str, json: bool, world: &mut World<'_>) -> Result<u8, Failure> {
    let paths = world.paths();
    // A key that leaked must go, whatever else is amiss: with a configuration that refuses, the file alone says.
    if let Ok(snapshot) = world.load(&paths) {
        clients::may_revoke(&snapshot.settings, which).map_err(Failure::Failed)?;
    }
    let turn = sock::lock_folder(&paths.data);
    let revoked = clients::revoke(&paths.data, which).map_err(Failure::Failed)?;
    drop(turn);
    let Some(revoked) = revoked else {
        return Err(Failure::Failed(format!(
            "there is no key `{which}`; `freeway clients list` shows all of them"
        )));
    };
    command::read_again(&paths.data);
    let (id, name) = (revoked.principal().to_string(), &revoked.name);
    if json {
        world.say_json(&json!({"ok": true, "id": id, "name": name}));
    } else {
        world.say(format!("revoked `{name}` ({id})"));
    }
    Ok(DONE)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Site;
    use serde_json::json;

    #[test]
    fn keys_are_made_listed_and_revoked() {
        let site = Site::empty();
        let made = site
            .run(&["clients", "new", "phone", "--models", "fast, groq/*", "--limit", "rpm=5", "--json"])
            .json();
        let key = made["key"].as_str().expect("a key").to_owned();
        assert!(key.starts_with("fw-") && !site.read("data/clients.json").contains(&key));
        assert_eq!(made["client"]["models"], json!(["fast", "groq/*"]));
        let text = site.run(&["clients", "new", "desk"]).out;
        assert!(text.starts_with("fw-") && text.contains("shown this once"), "{text}");
        let listed = site.run(&["clients", "list", "--json"]).json();
        assert_eq!(
            (&listed["clients"][0]["name"], &listed["clients"][0]["limits"]["rpm"]),
            (&json!("phone"), &json!(5))
        );
        assert_eq!((&listed["clients"][1]["source"], &listed["open"]), (&json!("clients"), &json!(false)));
        assert!(site.run(&["clients", "list"]).out.contains("desk"));
        site.run(&["clients", "new", "all", "--strategy", "fastest", "--no-cache", "--limit", "tpm=900"]);
        let lines = site.run(&["clients", "list"]).out;
        assert!(lines.contains(", only fast groq/*, rpm=5\n"), "{lines}");
        assert!(lines.contains(", order fastest, no cache, tpm=900\n"), "{lines}");
        site.run(&["clients", "revoke", "all"]);
        assert_eq!(site.run(&["clients", "revoke", "phone", "--json"]).json()["name"], "phone");
        let id = listed["clients"][1]["id"].as_str().expect("an id");
        assert_eq!(site.run(&["clients", "revoke", id]).status, 0);
        assert_eq!(site.run(&["clients", "list", "--json"]).json()["open"], true);
    }

    #[test]
    fn what_cannot_be_done_is_told() {
        let mut site = Site::empty();
        for words in [
            &["clients"][..],
            &["clients", "new"],
            &["clients", "revoke"],
            &["clients", "drop", "x"],
            &["clients", "new", "a", "--limit", "rpm"],
            &["clients", "new", "a", "--limit", "rps=1"],
            &["clients", "new", "a", "--strategy", "x"],
            &["clients", "list", "--models", "x"],
        ] {
            assert_eq!(site.run(words).status, 2, "{words:?}");
        }
        assert_eq!(site.run(&["clients", "revoke", "nobody"]).status, 1);
        site.run(&["clients", "new", "only"]);
        assert!(site.run(&["clients", "new", "only"]).err.contains("is taken"));
        site.process.insert("FREEWAY_HOST".into(), "0.0.0.0".into());
        let last = site.run(&["clients", "revoke", "only"]);
        assert!(last.status == 1 && last.err.contains("make another one first"), "{}", last.err);
        site.process.insert("FREEWAY_KEYS".into(), "fw-from-the-environment".into());
        let kept = site.run(&["clients", "revoke", "key-1"]);
        assert!(kept.status == 1 && kept.err.contains("FREEWAY_KEYS"), "{}", kept.err);
        assert_eq!(site.run(&["clients", "revoke", "only"]).status, 0);
    }
}
