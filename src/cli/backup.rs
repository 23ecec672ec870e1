//! `freeway backup`: makes a backup now, by the gateway that runs or without one, and makes the recovery key.
use std::ffi::OsString;

use lexopt::prelude::*;
use serde_json::{Value, json};

use super::command;
use super::{DONE, Failure, World, issue_line, issue_lines};
use crate::backup::record::Record;
use crate::backup::{self, Making, Plan, When};
use crate::base::clock;
use crate::catalog::env::{self, Paths};
use crate::catalog::load;
use crate::catalog::settings::Settings;
use crate::http::backups::{made, size, told};
use crate::rescue;
use crate::store::{self, OpenError, Store};
use crate::upstream::client::{Client, ClientConfig};

/// What `freeway backup --help` says.
pub const HELP: &str = "\
usage: freeway backup [--json]
       freeway backup --init [--json]

  Backs up what cannot be rebuilt: pasted provider keys, client keys, overrides, counters, benches, what was learned,
  and the sums of the past; conversations where backup.sessions is true. Sealed, so that it can lie anywhere.
  Not in it, because they are yours: .env, freeway.config.json, providers/.

  It goes to backup.target: a folder outside the data folder, or a URL below which files can be PUT. The last
  backup.keep (7) stay. A running gateway does this by itself every day on which something changed.

  --init   make a recovery key, show it this once, and keep it in the data folder for the daily backups;
           or set FREEWAY_BACKUP_KEY to a text of your own, 16 characters or more
  --json   tell it as JSON

examples:
  freeway backup --init
  FREEWAY_BACKUP_TARGET=/mnt/usb/freeway freeway backup
  freeway restore --latest";

/// Runs the command.
pub fn run(args: &[OsString], world: &mut World<'_>) -> Result<u8, Failure> {
    let mut parser = lexopt::Parser::from_args(args);
    let (mut json, mut init) = (false, false);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => {
                world.say(HELP);
                return Ok(DONE);
            }
            Long("json") => json = true,
            Long("init") => init = true,
            other => return Err(other.unexpected().into()),
        }
    }
    let paths = world.paths();
    let known = Known::read(world, &paths)?;
    if init { make_key(&known, &paths, json, world) } else { back_up(&known, &paths, json, world) }
}

/// What the settings and variables say about backups.
pub struct Known {
    pub variables: env::Variables,
    pub settings: Settings,
}

impl Known {
    pub fn read(world: &World<'_>, paths: &Paths) -> Result<Known, Failure> {
        let variables = env::variables(&world.process, &paths.env_file);
        let settings = load::settings(&paths.config, &variables).map_err(|issues| {
            Failure::Failed(format!("the configuration has faults:\n{}", issue_lines(&issues)))
        })?;
        Ok(Known { variables, settings })
    }

    pub fn plan(&self, paths: &Paths) -> Option<Result<Plan, String>> {
        Plan::new(&self.settings.backup, load::backup_key(&self.variables).as_ref(), paths)
    }

    pub fn client(&self) -> Result<Client, Failure> {
        Client::new(ClientConfig::from_variables(&self.variables)).map_err(Failure::Failed)
    }
}

fn make_key(known: &Known, paths: &Paths, json: bool, world: &mut World<'_>) -> Result<u8, Failure> {
    if load::backup_key(&known.variables).is_some() {
        let message =
            "FREEWAY_BACKUP_KEY is set, and backups are sealed with it; a recovery key would not be used";
        return Err(Failure::Failed(message.into()));
    }
    let key = backup::make_key(&paths.data).map_err(Failure::Failed)?;
    let target = &known.settings.backup.target;
    if json {
        world.say_json(&json!({"ok": true, "key": key.expose(), "on": target.is_some()}));
        return Ok(DONE);
    }
    world.say(format!("{}\n", key.expose()));
    world.say(
        "This is the recovery key, shown this once. Write it down and keep it away from this box: without it no backup can\n\
         be opened on another one. To restore, set FREEWAY_BACKUP_KEY to it and run `freeway restore --latest`.",
    );
    world.say(match target {
        Some(_) => "\nBackups are made daily from now on; `freeway backup` makes one at once.",
        None => "\nBackups are off until backup.target (FREEWAY_BACKUP_TARGET) names a folder outside the data folder, or a URL.",
    });
    Ok(DONE)
}

fn back_up(known: &Known, paths: &Paths, json: bool, world: &mut World<'_>) -> Result<u8, Failure> {
    if backup::is_empty(&paths.data) {
        let message = format!("there is nothing to back up in {} yet", paths.data.display());
        return Err(Failure::Failed(message));
    }
    // As `serve` would: an empty database in the place of a damaged one is nothing to back up.
    let rescue = |lost| rescue::rescue(&world.process, paths, lost, &|| ());
    let opened = match Store::open_or_rescue(&paths.data, &rescue) {
        Ok(opened) => opened,
        Err(OpenError::Locked(_)) => return by_gateway(paths, json, world),
    };
    for issue in &opened.issues {
        world.complain(format!("freeway: {}", issue_line(issue)));
    }
    let plan = known.plan(paths).ok_or_else(no_target)?;
    let making = Making {
        paths,
        client: &known.client()?,
        store: &opened.store,
        when: When::Asked,
        now_ms: clock::now().wall_ms,
    };
    let (record, result) = making.make(plan, Record::read(&paths.data));
    opened.store.close();
    result.map_err(Failure::Failed)?;
    if json {
        world.say_json(&made(&record))
    } else {
        world.say(told(&record))
    }
    Ok(DONE)
}

/// The setting that is missing.
pub fn no_target() -> Failure {
    Failure::Failed(
        "backup.target is not set; set it to a folder outside the data folder, or to a URL (FREEWAY_BACKUP_TARGET)".into(),
    )
}

fn by_gateway(paths: &Paths, json: bool, world: &mut World<'_>) -> Result<u8, Failure> {
    // A target that was set a moment ago counts.
    command::read_again(&paths.data);
    let answer = match command::ask(&paths.data, "POST", "/api/backup") {
        Some(answer) => answer.map_err(Failure::Failed)?,
        None => {
            // It may be another command, which is done in a moment.
            store::claim(&paths.data).map_err(Failure::Failed)?;
            return Err(Failure::Failed("the data folder was in use by another command; try again".into()));
        }
    };
    if json {
        world.say_json(&answer);
        return Ok(DONE);
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let size = size(answer["backup"]["bytes"].as_u64().unwrap_or_default());
    let (target, name) = (text(&answer["target"]), text(&answer["backup"]["name"]));
    world.say(format!("backed up to {target}: {name} ({size})"));
    Ok(DONE)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Site;

    #[test]
    fn a_recovery_key_is_made_once_and_shown_once() {
        let site = Site::empty();
        let made = site.run(&["backup", "--init", "--json"]).json();
        let key = made["key"].as_str().expect("a key").to_owned();
        assert!(key.len() >= 40 && made["on"] == false, "{made}");
        assert_eq!(site.read("data/backup.key").trim(), key);
        let again = site.run(&["backup", "--init"]);
        assert!(again.status == 1 && !again.err.contains(&key), "{}", again.err);
        let mut other = Site::empty();
        other.process.insert("FREEWAY_BACKUP_KEY".into(), "a key of my own choice".into());
        assert!(other.run(&["backup", "--init"]).err.contains("FREEWAY_BACKUP_KEY is set"));
    }

    #[test]
    fn what_is_missing_is_told() {
        let mut site = Site::empty();
        assert!(site.run(&["backup"]).err.contains("nothing to back up"));
        site.run(&["clients", "new", "phone"]);
        assert!(site.run(&["backup"]).err.contains("backup.target is not set"));
        let check = |site: &Site, expected: &str| {
            let ran = site.run(&["backup"]);
            assert!(ran.status == 1 && ran.err.contains(expected), "{}", ran.err);
        };
        site.process.insert("FREEWAY_BACKUP_TARGET".into(), "kept".into());
        check(&site, "there is no key for backups");
        site.process.insert("FREEWAY_BACKUP_KEY".into(), "short".into());
        check(&site, "shorter than 16");
        site.process.insert("FREEWAY_BACKUP_KEY".into(), "long enough for a key".into());
        site.process.insert("FREEWAY_BACKUP_TARGET".into(), "data/backups".into());
        check(&site, "in the data folder");
        site.process.insert("FREEWAY_BACKUP_TARGET".into(), "none/such/folder".into());
        check(&site, "mount the disk");
        assert_eq!(site.run(&["backup", "now"]).status, 2);
    }
}
