//! `freeway restore`: puts a backup into a data folder that nobody uses.
use std::ffi::OsString;

use lexopt::prelude::*;
use serde_json::json;

use super::backup::{Known, no_target};
use super::{DONE, Failure, World};
use crate::backup::target::{self, Source};
use crate::backup::{self, Restored};
use crate::base::clock;
use crate::catalog::env::Paths;
use crate::catalog::load;
use crate::store;

/// What `freeway restore --help` says.
pub const HELP: &str = "\
usage: freeway restore FILE|URL [--force] [--json]
       freeway restore --latest [--force] [--json]

  Puts a backup into the data folder. The gateway must not be running. FREEWAY_BACKUP_KEY has to hold the key, or the
  recovery key, with which the backup was made. What is wrong with it is told, and changes nothing.

  --latest   the newest backup at backup.target
  --force    also where the data folder holds something, which is set aside within it
  --json     tell it as JSON

  On an empty data folder `freeway serve` does this by itself when backup.target and the key are set.

examples:
  freeway restore --latest
  FREEWAY_BACKUP_KEY=... freeway restore /mnt/usb/freeway/freeway-20261130T031500Z.backup";

/// Runs the command.
pub fn run(args: &[OsString], world: &mut World<'_>) -> Result<u8, Failure> {
    let mut parser = lexopt::Parser::from_args(args);
    let (mut json, mut force, mut latest, mut place) = (false, false, false, None);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => {
                world.say(HELP);
                return Ok(DONE);
            }
            Long("json") => json = true,
            Long("force") => force = true,
            Long("latest") => latest = true,
            Value(word) if place.is_none() => place = Some(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    if place.is_some() == latest {
        let message = "name the backup to restore, a file or a URL, or say --latest";
        return Err(Failure::Usage(message.into()));
    }
    let paths = world.paths();
    let known = Known::read(world, &paths)?;
    if !force && !backup::is_empty(&paths.data) {
        let message = format!(
            "the data folder {} holds something already; with --force it is set aside",
            paths.data.display()
        );
        return Err(Failure::Failed(message));
    }
    let (key, _) =
        backup::key(load::backup_key(&known.variables).as_ref(), &paths.data).map_err(Failure::Failed)?;
    let client = known.client()?;
    let (name, source) = match place {
        Some(place) => {
            let file = if target::is_url(&place) { place.clone() } else { path_of(&place, world) };
            (target::shown(&place), target::open(&client, &file).map_err(Failure::Failed)?)
        }
        None => newest(&known, &paths)?,
    };
    let restored = into(&paths, source, key.expose(), &name).map_err(Failure::Failed)?;
    tell(&restored, &name, json, world);
    Ok(DONE)
}

/// A file is named as seen from where the command runs.
fn path_of(place: &str, world: &World<'_>) -> String {
    world.current.join(place).to_string_lossy().into_owned()
}

fn newest(known: &Known, paths: &Paths) -> Result<(String, Source), Failure> {
    let target = target::Target::new(
        known.settings.backup.target.as_deref().ok_or_else(no_target)?,
        &paths.root,
        &paths.data,
    )
    .map_err(Failure::Failed)?;
    let client = known.client()?;
    let names = target.names(&client).map_err(Failure::Failed)?;
    let name = names.first().ok_or_else(|| {
        Failure::Failed(format!("there is no backup in {}; name one: a file or a URL", target.shown()))
    })?;
    let source = target.open(&client, name).map_err(Failure::Failed)?;
    Ok((format!("{}/{name}", target.shown()), source))
}

/// Restores, and leaves no trace where that comes to nothing.
fn into(paths: &Paths, source: Source, key: &str, name: &str) -> Result<Restored, String> {
    let data = &paths.data;
    let was_there = data.exists();
    crate::catalog::boxfile::make_folder(data).map_err(|error| format!("{}: {error}", data.display()))?;
    let claim = store::claim(data)?;
    let restored = backup::restore(source, key, data, clock::now().wall_ms);
    if restored.is_err() && !was_there {
        store::unclaim(claim, data);
        // At worst an empty folder stays.
        let _ = std::fs::remove_dir(data);
    }
    restored.map_err(|fault| format!("{name}: {fault}; nothing was changed"))
}

fn tell(restored: &Restored, name: &str, json: bool, world: &mut World<'_>) {
    let aside = restored.aside.as_ref().map(|folder| folder.display().to_string());
    if json {
        world.say_json(&json!({
            "ok": true,
            "restored": name,
            "madeAt": restored.made_ms,
            "sessions": restored.sessions,
            "aside": aside,
        }));
        return;
    }
    world.say(format!("restored {name} of {}", restored.date()));
    if let Some(aside) = aside {
        world.say(format!("what was there before lies in {aside}"));
    }
    world.say("Start the gateway: `freeway serve`.");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::super::testing::Site;

    const KEY: &str = "correct horse battery";

    /// A site with a client key, and a backup of it in `kept`.
    fn backed_up() -> (Site, String) {
        let mut site = Site::empty();
        site.process.insert("FREEWAY_BACKUP_TARGET".into(), "kept".into());
        site.process.insert("FREEWAY_BACKUP_KEY".into(), KEY.into());
        site.run(&["clients", "new", "phone"]);
        let made = site.run(&["backup", "--json"]);
        assert_eq!(made.status, 0, "{}{}", made.out, made.err);
        let name = made.json()["backup"]["name"].as_str().expect("a name").to_owned();
        (site, format!("kept/{name}"))
    }

    /// Every file below a folder with its bytes.
    fn everything(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(folder).expect("read").flatten() {
            if entry.path().is_dir() {
                found.extend(everything(&entry.path()));
            } else {
                let bytes = std::fs::read(entry.path()).expect("read");
                found.insert(entry.path().display().to_string(), bytes);
            }
        }
        found
    }

    #[test]
    fn what_was_backed_up_comes_back_on_an_empty_folder_and_with_force() {
        let (site, file) = backed_up();
        let clients = site.read("data/clients.json");
        let refused = site.run(&["restore", &file]);
        assert!(refused.status == 1 && refused.err.contains("--force"), "{}", refused.err);
        site.run(&["clients", "revoke", "phone"]);
        let restored = site.run(&["restore", "--latest", "--force", "--json"]).json();
        assert_eq!(site.read("data/clients.json"), clients);
        let aside = restored["aside"].as_str().expect("a folder");
        assert!(
            Path::new(aside).join("clients.json").exists() && Path::new(aside).join("freeway.db").exists()
        );
        std::fs::remove_dir_all(site.folder.path().join("data")).expect("removed");
        let restored = site.run(&["restore", &file]);
        assert!(restored.status == 0 && restored.out.contains("restored kept/freeway-2"), "{}", restored.out);
        assert_eq!(site.read("data/clients.json"), clients);
    }

    #[test]
    fn what_cannot_be_restored_is_told_apart_and_changes_nothing() {
        let (mut site, file) = backed_up();
        let archive = std::fs::read(site.folder.path().join(&file)).expect("read");
        let mut newer = archive.clone();
        newer[11] = 99;
        site.write("cut", "");
        std::fs::write(site.folder.path().join("cut"), &archive[..archive.len() - 9]).expect("written");
        std::fs::write(site.folder.path().join("newer"), newer).expect("written");
        site.write("text", "this is no backup but a letter");
        let data = site.folder.path().join("data");
        for with_data in [true, false] {
            if !with_data {
                std::fs::remove_dir_all(&data).expect("removed");
            }
            let before = everything(site.folder.path());
            let check = |site: &Site, name: &str, expected: &str| {
                let ran = site.run(&["restore", name, "--force"]);
                assert!(ran.status == 1 && ran.err.contains(expected), "{name}: {}", ran.err);
                assert!(everything(site.folder.path()) == before, "{name} changed something");
                assert_eq!(data.exists(), with_data, "{name}");
            };
            check(&site, "cut", "cut short");
            check(&site, "newer", "newer version");
            check(&site, "text", "no backup of Freeway");
            check(&site, "absent", "No such file");
            check(&site, "kept", "is a folder");
            site.process.insert("FREEWAY_BACKUP_KEY".into(), "quite another key".into());
            check(&site, &file, "the key does not open it");
            site.process.insert("FREEWAY_BACKUP_KEY".into(), KEY.into());
        }
        for words in [&["restore"][..], &["restore", "a", "b"], &["restore", "a", "--latest"]] {
            assert_eq!(site.run(words).status, 2, "{words:?}");
        }
    }
}
