//! `data/clients.json`: the client keys that `freeway init` made, as hashes. The keys themselves are shown once and
//! kept nowhere.
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::check::parse_sha256;
use super::env::read_bounded;
use super::settings::ClientKey;
use super::{Issue, IssueLevel, boxfile, json as file_json};
use crate::base::rng::fill_random;
use crate::base::text::hex;

const FILE: &str = "clients.json";
const FILE_MAX_BYTES: u64 = 1 << 20;
/// Bytes of randomness in a key.
const KEY_BYTES: usize = 24;

/// Who owns what a request leaves behind: the first eight bytes of the SHA-256 of the key that it presented. Neither a
/// name, which may change, nor anything that a key could be found from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(u64);

impl Principal {
    /// Of the key with this SHA-256.
    pub fn of(sha256: &[u8; 32]) -> Principal {
        Principal(sha256.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

/// Sixteen hexadecimal digits.
impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

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
        let name = entry.get("name").and_then(Value::as_str);
        let sha256 = entry.get("sha256").and_then(Value::as_str).and_then(parse_sha256);
        match (name, sha256) {
            (Some(name), Some(sha256)) => keys.push(ClientKey { name: name.into(), sha256 }),
            _ => issues
                .push(issue(format!("clients[{i}]: must have a name and a sha256 of 64 hexadecimal digits"))),
        }
    }
    (keys, issues)
}

/// Makes a key, stores its hash and returns the key. The error says what could not be written.
pub fn add(data: &Path, name: &str) -> Result<String, String> {
    let (keys, issues) = read(data);
    if let Some(issue) = issues.first() {
        return Err(format!("{}: {}", issue.file, issue.message));
    }
    let mut bytes = [0; KEY_BYTES];
    fill_random(&mut bytes);
    let key = format!("fw-{}", hex(&bytes));
    let mut entries: Vec<Value> =
        keys.iter().map(|known| json!({"name": known.name, "sha256": hex(&known.sha256)})).collect();
    entries.push(json!({"name": name, "sha256": hex(&Sha256::digest(&key))}));
    let text = serde_json::to_string_pretty(&json!({"clients": entries})).unwrap_or_default();
    boxfile::write_private(&path(data), text.as_bytes())
        .map_err(|error| format!("{}: {error}", path(data).display()))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_once_and_kept_as_a_hash() {
        let root = tempfile::tempdir().expect("a folder");
        let data = root.path().join("data");
        let first = add(&data, "phone").expect("a key");
        let second = add(&data, "desk").expect("a key");
        assert!(first.starts_with("fw-") && first.len() == 3 + 2 * KEY_BYTES && first != second);
        let text = std::fs::read_to_string(path(&data)).expect("the file");
        assert!(!text.contains(&first) && !text.contains(&second));
        let (keys, issues) = read(&data);
        assert!(issues.is_empty());
        assert_eq!(keys.iter().map(|key| &*key.name).collect::<Vec<_>>(), ["phone", "desk"]);
        assert_eq!(keys[0].sha256, <[u8; 32]>::from(Sha256::digest(&first)));
    }

    #[test]
    fn a_principal_is_the_start_of_the_hash() {
        let sha256: [u8; 32] = Sha256::digest("fw-a").into();
        assert_eq!(Principal::of(&sha256).to_string(), hex(&sha256)[..16]);
    }

    #[test]
    fn a_bad_file_is_told_and_not_overwritten() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::write(path(root.path()), "{ broken").expect("written");
        assert_eq!(read(root.path()).1.len(), 1);
        assert!(add(root.path(), "x").is_err());
        assert_eq!(std::fs::read_to_string(path(root.path())).expect("the file"), "{ broken");
    }
}
