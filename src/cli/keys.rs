//! `freeway keys`: the keys of providers, listed, imported and exported. What is imported is sealed in the data folder.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;

use lexopt::prelude::*;
use serde_json::{Value, json};

use super::{DONE, FAILED, Failure, World, command, issue_lines};
use crate::base::clock;
use crate::catalog::boxfile;
use crate::catalog::env::{self, Paths, read_bounded};
use crate::catalog::key_export;
use crate::catalog::key_import::{Choice, Format, Preview, State, TEXT_MAX};
use crate::catalog::load::Snapshot;
use crate::catalog::vault::{NewKey, Sealer, passphrase};
use crate::http::keys::{listing, read, takes_keys};

/// What `freeway keys --help` says.
pub const HELP: &str = "\
usage: freeway keys import FILE [--format env|json|csv] [--preview] [--select LIST] [--provider N=ID]... [--json]
       freeway keys export [--format json|env|csv] [--json]
       freeway keys list [--json]

  import  read provider keys out of a file (`-` is the standard input) and seal them in the data folder;
          without --select all that are new
  export  write all provider keys to the standard output, in plain text
  list    all provider keys, masked, and where each comes from

  --format NAME     the form of the text; a file tells its own
  --preview         only show what is there
  --select LIST     the numbers of the preview to add, separated by commas, or `all`
  --provider N=ID   the provider of number N, where the text does not say
  --json            tell it as JSON

  A gateway that runs takes up the change at once.

examples:
  freeway keys import old/.env --preview
  freeway keys import old/.env --select 0,2 --provider 2=groq
  freeway keys export --format env > keys.env";

/// What the words say.
#[derive(Default)]
struct Args {
    words: Vec<String>,
    format: Option<Format>,
    preview: bool,
    /// `None` inside is `all`.
    select: Option<Option<Vec<usize>>>,
    providers: BTreeMap<usize, String>,
    json: bool,
}

/// Runs the command.
pub fn run(args: &[OsString], world: &mut World<'_>) -> Result<u8, Failure> {
    let Some(args) = parse(args)? else {
        world.say(HELP);
        return Ok(DONE);
    };
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["import", file] => import(file, &args, world),
        ["import"] => Err(Failure::Usage("name the file to read; `-` is the standard input".into())),
        ["export"] => export(&args, world),
        ["list"] => list(&args, world),
        [] => Err(Failure::Usage("say what to do: import, export or list".into())),
        [other, ..] => Err(Failure::Usage(format!(
            "`{other}` is none of import, export and list, or has too many words behind it"
        ))),
    }
}

fn parse(args: &[OsString]) -> Result<Option<Args>, Failure> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut found = Args::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("json") => found.json = true,
            Long("preview") => found.preview = true,
            Long("format") => {
                let name = parser.value()?.string()?;
                let format = Format::by_name(&name);
                found.format = Some(format.ok_or_else(|| {
                    Failure::Usage(format!("--format {name}: is none of env, json and csv"))
                })?);
            }
            Long("select") => found.select = Some(select(&parser.value()?.string()?)?),
            Long("provider") => {
                let pair = parser.value()?.string()?;
                let split = pair
                    .split_once('=')
                    .and_then(|(n, id)| Some((n.trim().parse().ok()?, id.trim().to_owned())));
                let (at, id) = split
                    .ok_or_else(|| Failure::Usage(format!("--provider {pair}: must be such as 2=groq")))?;
                found.providers.insert(at, id);
            }
            Value(word) => found.words.push(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(found))
}

fn select(list: &str) -> Result<Option<Vec<usize>>, Failure> {
    if list.trim() == "all" {
        return Ok(None);
    }
    let places = list.split(',').map(|place| place.trim().parse().ok()).collect::<Option<Vec<usize>>>();
    places.map(Some).ok_or_else(|| {
        Failure::Usage(format!("--select {list}: must be numbers of the preview, such as 0,2"))
    })
}

fn loaded(world: &World<'_>, paths: &Paths) -> Result<Snapshot, Failure> {
    world
        .load(paths)
        .map_err(|issues| Failure::Failed(format!("the configuration has faults:\n{}", issue_lines(&issues))))
}

fn import(file: &str, args: &Args, world: &mut World<'_>) -> Result<u8, Failure> {
    let text = text_of(file, world).map_err(|error| Failure::Failed(format!("{file}: {error}")))?;
    let paths = world.paths();
    let turn = command::turn(&paths.data);
    // The box's secret names and seals keys; it is made here when this runs before the first start.
    let (fingerprints, _) = boxfile::fingerprints(&paths.data);
    let snapshot = loaded(world, &paths)?;
    let preview = read(&snapshot, &text, args.format);
    if args.preview {
        show(&preview, args.json, world);
        return Ok(DONE);
    }
    let choice = Choice { select: args.select.clone().flatten(), providers: args.providers.clone() };
    let chosen = preview.choose(&choice, &|id| takes_keys(&snapshot, id).is_ok());
    let keys: Vec<NewKey> = chosen.keys.iter().map(|(_, key)| key.clone()).collect();
    let variables = env::variables(&world.process, &paths.env_file);
    let sealer =
        Sealer { data: &paths.data, fingerprints: &fingerprints, passphrase: passphrase(&variables) };
    let added = sealer.add(&keys, clock::now().wall_ms).map_err(Failure::Failed)?;
    drop(turn);
    command::read_again(&paths.data);
    // Those that were asked for by number and could not be added are a failure, and so is a text that holds no key.
    let missed = args.select.is_some() && !chosen.skipped.is_empty();
    let status = if missed || preview.entries.is_empty() { FAILED } else { DONE };
    let rows = chosen.keys.iter().zip(&added);
    if args.json {
        let rows: Vec<Value> = rows
            .map(|((at, key), added)| {
                json!({"index": at, "provider": key.provider, "keyId": added.id, "masked": key.secret.masked()})
            })
            .collect();
        let skipped: Vec<Value> =
            chosen.skipped.iter().map(|(at, reason)| json!({"index": at, "reason": reason})).collect();
        world.say_json(&json!({
            "ok": status == DONE, "format": preview.format.name(), "preview": false, "added": rows,
            "skipped": skipped, "faults": preview.faults, "counts": preview.counts(),
        }));
        return Ok(status);
    }
    for ((_, key), _) in rows {
        world.say(format!("added {} to {}", key.secret.masked(), key.provider));
    }
    for (at, reason) in &chosen.skipped {
        world.complain(format!("number {at} was not added: {reason}"));
    }
    for fault in &preview.faults {
        world.complain(fault);
    }
    let left = preview.entries.iter().filter(|entry| entry.state != State::New).count();
    world.say(format!("{} added, {left} others; `--preview` shows them", added.len()));
    Ok(status)
}

fn text_of(file: &str, world: &World<'_>) -> Result<String, String> {
    if file == "-" {
        let mut text = String::new();
        let read = std::io::stdin().take(TEXT_MAX as u64 + 1).read_to_string(&mut text);
        read.map_err(|error| error.to_string())?;
        return if text.len() > TEXT_MAX { Err("is larger than 1 MiB".into()) } else { Ok(text) };
    }
    read_bounded(&world.current.join(file), TEXT_MAX as u64)?.ok_or_else(|| "there is no such file".into())
}

fn show(preview: &Preview, json: bool, world: &mut World<'_>) {
    if json {
        world.say_json(&preview.to_json());
        return;
    }
    for (at, entry) in preview.entries.iter().enumerate() {
        let name = entry.name.as_deref().or(entry.label.as_deref()).unwrap_or("-");
        let provider = entry.provider.as_deref().unwrap_or("?");
        let note = entry.note.as_deref().map(|note| format!("  ({note})")).unwrap_or_default();
        world.say(format!(
            "{at:>3}  {:<9}  {provider:<16}  {name:<28}  {}{note}",
            entry.state.name(),
            entry.secret.masked()
        ));
    }
    for fault in &preview.faults {
        world.complain(fault);
    }
}

fn export(args: &Args, world: &mut World<'_>) -> Result<u8, Failure> {
    let snapshot = loaded(world, &world.paths())?;
    let format = args.format.unwrap_or(Format::Json);
    let text =
        key_export::write(format, &snapshot.catalog, &snapshot.pasted, &|_, _| true, clock::now().wall_ms);
    world.complain(format!("freeway: {}", key_export::WARNING));
    if args.json && format != Format::Json {
        world.say_json(&json!({"ok": true, "format": format.name(), "text": text}));
    } else {
        world.say(text.trim_end());
    }
    Ok(DONE)
}

fn list(args: &Args, world: &mut World<'_>) -> Result<u8, Failure> {
    let snapshot = loaded(world, &world.paths())?;
    let sealed_by = if snapshot.passphrase.is_some() { "passphrase" } else { "file" };
    let all = listing(&snapshot, sealed_by);
    if args.json {
        world.say_json(&all);
        return Ok(DONE);
    }
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let rows = all["keys"].as_array().map_or(&[][..], Vec::as_slice);
    if rows.is_empty() {
        world.say("There is no provider key yet; `freeway provider list` tells where to get one.");
    }
    for row in rows {
        let label = text(row, "label");
        world.say(
            format!(
                "{:<16}  {:<12}  {:<24}  {label}",
                text(row, "provider"),
                text(row, "masked"),
                text(row, "source")
            )
            .trim_end(),
        );
    }
    for issue in &snapshot.issues {
        if issue.file == crate::catalog::vault::FILE {
            world.complain(issue_lines(std::slice::from_ref(issue)));
        }
    }
    Ok(DONE)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Site;
    use serde_json::json;

    const ENV: &str =
        "GROQ_API_KEY=gsk_a0123456789\nGROQ_API_KEY_2=\"gsk_b0123456789\" # two\nACME_KEY=acme-key-1\n";

    #[test]
    fn a_text_without_a_key_is_a_failure() {
        let site = Site::empty();
        for (name, text) in
            [("cut.json", r#"{"groq": "gsk_a0123456789",,}"#), ("empty.env", ""), ("odd.env", "what\n")]
        {
            site.write(name, text);
            let ran = site.run(&["keys", "import", name, "--json"]);
            assert_eq!((ran.status, ran.json()["ok"].as_bool()), (1, Some(false)), "{name}");
            assert_eq!(site.run(&["keys", "import", name]).status, 1, "{name}");
        }
    }

    #[test]
    fn keys_are_previewed_imported_listed_and_exported() {
        let site = Site::empty();
        site.write("old.env", ENV);
        let preview = site.run(&["keys", "import", "old.env", "--preview", "--json"]).json();
        assert_eq!(
            preview["counts"],
            json!({"new": 2, "known": 0, "duplicate": 0, "unknown": 1, "invalid": 0})
        );
        assert!(!site.folder.path().join("data/keys.json").exists(), "nothing is stored yet");
        assert!(site.run(&["keys", "import", "old.env", "--preview"]).out.contains("GROQ_API_KEY_2"));
        let added = site.run(&["keys", "import", "old.env", "--json"]).json();
        assert_eq!(added["added"].as_array().map(Vec::len), Some(2), "{added}");
        let file = site.read("data/keys.json");
        assert!(!file.contains("gsk_a0123456789") && file.contains("groq"), "{file}");
        let again = site.run(&["keys", "import", "old.env", "--preview", "--json"]).json();
        assert_eq!((&again["counts"]["known"], &again["counts"]["new"]), (&json!(2), &json!(0)));
        let listed = site.run(&["keys", "list", "--json"]).json();
        let of_groq: Vec<_> = listed["keys"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(|key| key["provider"] == "groq")
            .collect();
        assert_eq!((of_groq.len(), &of_groq[0]["source"]), (2, &json!("vault")), "{listed}");
        assert!(!listed.to_string().contains("gsk_a0123456789"));
        let named = site.run(&["keys", "import", "old.env", "--select", "2", "--provider", "2=mistral"]);
        assert_eq!(named.status, 0, "{}", named.err);
        for format in ["env", "json", "csv"] {
            let ran = site.run(&["keys", "export", "--format", format]);
            assert!(ran.out.contains("gsk_b0123456789") && ran.out.contains("acme-key-1"), "{}", ran.out);
            assert!(ran.err.contains("plain text"), "{}", ran.err);
        }
    }

    #[test]
    fn what_cannot_be_done_is_told() {
        let site = Site::empty();
        site.write("old.env", ENV);
        for words in [
            &["keys"][..],
            &["keys", "import"],
            &["keys", "drop"],
            &["keys", "import", "old.env", "--format", "xml"],
            &["keys", "import", "old.env", "--select", "one"],
            &["keys", "import", "old.env", "--provider", "groq"],
        ] {
            assert_eq!(site.run(words).status, 2, "{words:?}");
        }
        assert!(site.run(&["keys", "import", "no.env"]).err.contains("no such file"));
        let ran = site.run(&["keys", "import", "old.env", "--select", "2"]);
        assert!(ran.status == 1 && ran.err.contains("name the provider"), "{}", ran.err);
    }
}
