//! `data/clients.json`: the client keys that were made here, as hashes. A key itself is shown once and kept nowhere.
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::check::parse_sha256;
use super::client_key::{ClientKey, ClientRules, ClientSource, check_name};
use super::env::read_bounded;
use super::settings::Settings;
use super::{Issue, IssueLevel, boxfile, json as file_json};
use crate::base::rng::fill_random;
use crate::base::text::hex;

/// The name of the file in the data folder.
pub const FILE: &str = "clients.json";
const FILE_MAX_BYTES: u64 = 1 << 20;
/// Bytes of randomness in a key.
const KEY_BYTES: usize = 24;
/// Most keys in the file.
const CLIENTS_MAX: usize = 500;

/// Held while the file is read and written again, so that no change of this process is lost.
static CHANGING: Mutex<()> = Mutex::new(());

fn path(data: &Path) -> PathBuf {
    data.join(FILE)
}

/// The keys of the file; none when there is no file.
pub fn read(data: &Path) -> (Vec<ClientKey>, Vec<Issue>) {
    let issue =
        |message: String| Issue { file: FILE.into(), provider: None, level: IssueLevel::Error, message };
    let text = match read_bounded(&path(data), FILE_MAX_BYTES) {
        Ok(Some(text)) => text,
        Ok(None) => return (Vec::new(), Vec::new()),
        Err(error) => return (Vec::new(), vec![issue(format!("cannot be read: {error}"))]),
    };
    let value = match file_json::parse(&text) {
        Ok(value) => value,
        Err(error) => return (Vec::new(), vec![issue(error)]),
    };
    let Some(entries) = value.get("clients").and_then(Value::as_array) else {
        return (Vec::new(), vec![issue("clients: must be a list".into())]);
    };
    let (mut keys, mut issues) = (Vec::new(), Vec::new());
    for (i, entry) in entries.iter().enumerate() {
        match read_entry(&format!("clients[{i}]"), entry) {
            Ok(key) => keys.push(key),
            Err(error) => issues.push(issue(error)),
        }
    }
    (keys, issues)
}

fn read_entry(at: &str, entry: &Value) -> Result<ClientKey, String> {
    let nothing = Map::new();
    let map = entry.as_object().unwrap_or(&nothing);
    let text = |name: &str| map.get(name).and_then(Value::as_str);
    let (Some(name), Some(sha256)) = (text("name"), text("sha256").and_then(parse_sha256)) else {
        return Err(format!("{at}: must have a name and a sha256 of 64 hexadecimal digits"));
    };
    Ok(ClientKey {
        name: name.into(),
        sha256,
        source: ClientSource::File,
        created_ms: map.get("createdAt").and_then(Value::as_u64),
        rules: ClientRules::read(&format!("{at}."), map)?,
    })
}

fn write(data: &Path, keys: &[ClientKey]) -> Result<(), String> {
    let entry = |key: &ClientKey| {
        let mut entry = json!({"name": key.name, "sha256": hex(&key.sha256), "createdAt": key.created_ms});
        key.rules.write_into(&mut entry);
        entry
    };
    let entries: Vec<Value> = keys.iter().map(entry).collect();
    let text = serde_json::to_string_pretty(&json!({"clients": entries})).unwrap_or_default();
    boxfile::write_private(&path(data), text.as_bytes())
        .map_err(|error| format!("{}: {error}", path(data).display()))
}

/// The keys of a file that is fit to be written again: one with faults is left as it is.
fn read_to_change(data: &Path) -> Result<Vec<ClientKey>, String> {
    let (keys, issues) = read(data);
    match issues.first() {
        Some(issue) => Err(format!("{}: {}; mend it or move it away first", issue.file, issue.message)),
        None => Ok(keys),
    }
}

/// Makes a key and stores its hash; the key itself, for the one time that it is shown, and how it is known.
///
/// # Errors
/// Says what is wrong with the name, or what could not be written.
pub fn add(data: &Path, name: &str, rules: ClientRules, now_ms: u64) -> Result<(String, ClientKey), String> {
    let name = check_name(name).map_err(|error| format!("name: {error}"))?;
    let _changing = CHANGING.lock();
    let mut keys = read_to_change(data)?;
    if keys.iter().any(|known| *known.name == *name) {
        return Err(format!("name: `{name}` is taken; choose another one, or revoke that key first"));
    }
    if keys.len() >= CLIENTS_MAX {
        return Err(format!("name: there are {CLIENTS_MAX} keys already; revoke one first"));
    }
    let mut bytes = [0; KEY_BYTES];
    fill_random(&mut bytes);
    let key = format!("fw-{}", hex(&bytes));
    let made = ClientKey {
        name: name.into(),
        sha256: Sha256::digest(&key).into(),
        source: ClientSource::File,
        created_ms: Some(now_ms),
        rules,
    };
    keys.push(made.clone());
    write(data, &keys)?;
    Ok((key, made))
}

/// Takes a key out by its id or its name; `None` when there is no such key in the file.
///
/// # Errors
/// Says what could not be read or written.
pub fn revoke(data: &Path, id_or_name: &str) -> Result<Option<ClientKey>, String> {
    let _changing = CHANGING.lock();
    let mut keys = read_to_change(data)?;
    let named = |key: &ClientKey| *key.name == *id_or_name;
    let found = keys.iter().position(|key| key.principal().to_string() == id_or_name);
    let Some(at) = found.or_else(|| keys.iter().position(named)) else { return Ok(None) };
    let revoked = keys.remove(at);
    write(data, &keys)?;
    Ok(Some(revoked))
}

/// Whether a key can be revoked in the file.
///
/// # Errors
/// Where else, or what to do first.
pub fn may_revoke(settings: &Settings, which: &str) -> Result<(), String> {
    let found = settings.keys.iter().find(|key| key.principal().to_string() == which);
    let found = found.or_else(|| settings.keys.iter().find(|key| *key.name == *which));
    match found.map(|key| key.source) {
        Some(ClientSource::Config) => {
            Err(format!("the key `{which}` stands in the configuration, under `keys`; take it out there"))
        }
        Some(ClientSource::Variable) => {
            Err(format!("the key `{which}` stands in FREEWAY_KEYS; take it out there"))
        }
        Some(ClientSource::File) if settings.keys.len() == 1 && settings.needs_keys() => Err(format!(
            "`{which}` is the last key of a gateway that other machines can reach; make another one first"
        )),
        Some(ClientSource::File) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_plain(data: &Path, name: &str) -> Result<String, String> {
        add(data, name, ClientRules::default(), 1).map(|(key, _)| key)
    }

    #[test]
    fn a_key_is_shown_once_and_kept_as_a_hash() {
        let root = tempfile::tempdir().expect("a folder");
        let data = root.path().join("data");
        let first = add_plain(&data, "phone").expect("a key");
        let second = add_plain(&data, "desk").expect("a key");
        assert!(first.starts_with("fw-") && first.len() == 3 + 2 * KEY_BYTES && first != second);
        let text = std::fs::read_to_string(path(&data)).expect("the file");
        assert!(!text.contains(&first) && !text.contains(&second));
        let (keys, issues) = read(&data);
        assert!(issues.is_empty());
        assert_eq!(keys.iter().map(|key| &*key.name).collect::<Vec<_>>(), ["phone", "desk"]);
        assert_eq!(keys[0].sha256, <[u8; 32]>::from(Sha256::digest(&first)));
        assert!(add_plain(&data, "phone").is_err_and(|error| error.contains("is taken")));
        assert!(add_plain(&data, " ").is_err());
    }

    #[test]
    fn keys_keep_their_rules_and_are_revoked_by_id_or_name() {
        let root = tempfile::tempdir().expect("a folder");
        let rules = ClientRules { models: vec!["fast".into()], cache: Some(false), ..ClientRules::default() };
        let (_, made) = add(root.path(), "phone", rules, 5).expect("a key");
        add_plain(root.path(), "desk").expect("a key");
        assert_eq!(read(root.path()).0[0], made);
        assert_eq!(revoke(root.path(), "nobody"), Ok(None));
        let revoked = revoke(root.path(), &made.principal().to_string()).expect("written");
        assert_eq!(revoked.map(|key| key.name), Some("phone".into()));
        assert!(revoke(root.path(), "desk").expect("written").is_some());
        assert!(read(root.path()).0.is_empty());
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read() {
        let root = tempfile::tempdir().expect("a folder");
        let hash = "ab".repeat(32);
        std::fs::write(
            path(root.path()),
            format!(r#"{{"clients": [{{"name": "old", "sha256": "{hash}"}}]}}"#),
        )
        .expect("written");
        let (keys, issues) = read(root.path());
        assert!(issues.is_empty() && keys[0].created_ms.is_none() && keys[0].rules == ClientRules::default());
    }

    #[test]
    fn a_bad_file_is_told_and_not_overwritten() {
        let root = tempfile::tempdir().expect("a folder");
        for bad in ["{ broken", r#"{"clients": [{"name": "x"}]}"#] {
            std::fs::write(path(root.path()), bad).expect("written");
            assert_eq!(read(root.path()).1.len(), 1);
            assert!(add_plain(root.path(), "x").is_err() && revoke(root.path(), "x").is_err());
            assert_eq!(std::fs::read_to_string(path(root.path())).expect("the file"), bad);
        }
    }
}
