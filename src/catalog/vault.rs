//! `data/keys.json`: provider keys that were pasted or imported, sealed. Each entry is encrypted by AES-256-GCM under a
//! key that the box alone has, or under a passphrase, and is bound to its provider and its id, so that none can be moved
//! to another place.
//!
//! What cannot be opened is told and kept as it is: a passphrase that is missing today may be back tomorrow.
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::pbkdf2;
use serde::{Deserialize, Serialize};

use super::check::is_visible;
use super::env::read_bounded;
use super::pool::Fingerprints;
use super::{Issue, IssueLevel, boxfile};
use crate::base::base64;
use crate::base::rng::fill_random;
use crate::base::text::Secret;

/// The name of the file in the data folder.
pub const FILE: &str = "keys.json";
/// The variable that holds a passphrase.
pub const PASSPHRASE_VARIABLE: &str = "FREEWAY_SECRET";
/// Shortest passphrase that is taken.
const PASSPHRASE_MIN: usize = 12;
const FILE_MAX_BYTES: u64 = 8 << 20;
/// Most pasted keys, all providers together.
const KEYS_MAX: usize = 1_000;
/// Longest key that is taken, in bytes: some services use signed tokens.
pub const KEY_MAX: usize = 4_096;
/// Longest label, in bytes.
const LABEL_MAX: usize = 100;
const VERSION: u32 = 1;
/// Rounds of PBKDF2 with which passphrases are made into keys; more than enough time on a small machine.
const ROUNDS: u32 = 200_000;
/// A file that asks for more is no file of ours.
const ROUNDS_MAX: u32 = 10_000_000;

/// Held while the file is read and written again, so that no change of this process is lost; no request takes it.
/// [`STRETCHED`] is taken within it.
static CHANGING: Mutex<()> = Mutex::new(());

/// A pasted key that could be opened.
#[derive(Clone, Debug)]
pub struct PastedKey {
    /// Its fingerprint, by which it is known everywhere.
    pub id: String,
    pub provider: String,
    pub secret: Secret,
    pub label: Option<String>,
    /// Milliseconds since 1970.
    pub added_ms: u64,
}

/// Everything that was pasted.
#[derive(Debug, Default)]
pub struct Vault {
    pub keys: Vec<PastedKey>,
    /// Ids and providers of entries that cannot be opened.
    pub unreadable: Vec<(String, String)>,
    /// Why nothing can be added, if so.
    pub problem: Option<String>,
    /// Whether the file is there and cannot be read as a whole, so that none of its keys is known.
    pub is_lost: bool,
    pub issues: Vec<Issue>,
}

impl Vault {
    /// The keys of one provider, in the order in which they were added.
    pub fn of<'v>(&'v self, provider: &'v str) -> impl Iterator<Item = &'v PastedKey> {
        self.keys.iter().filter(move |key| key.provider == provider)
    }
}

/// What can seal and open entries.
pub struct Sealer<'a> {
    pub data: &'a Path,
    pub fingerprints: &'a Fingerprints,
    /// The value of [`PASSPHRASE_VARIABLE`].
    pub passphrase: Option<&'a str>,
}

/// Of which key to forget.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// All keys of the provider.
    All,
    Id(&'a str),
    /// The one that looks like this; refused when it is not the only one.
    Mask(&'a str),
}

/// A key to be added.
#[derive(Clone, Debug)]
pub struct NewKey {
    pub provider: String,
    pub secret: Secret,
    pub label: Option<String>,
}

/// What became of a key that was to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    pub id: String,
    /// It was there before.
    pub known: bool,
}

/// The file as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    passphrase: Option<Stretch>,
    keys: Vec<Entry>,
}

/// How the passphrase is made into a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stretch {
    salt: String,
    rounds: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    id: String,
    provider: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(default, rename = "addedAt")]
    added_ms: u64,
    by: By,
    nonce: String,
    sealed: String,
}

/// Under what an entry is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum By {
    /// The secret of the box, which lies beside it.
    File,
    Passphrase,
}

impl Sealer<'_> {
    fn path(&self) -> PathBuf {
        self.data.join(FILE)
    }

    /// Opens everything that can be opened.
    pub fn read(&self) -> Vault {
        let mut vault = Vault::default();
        match self.read_file() {
            Ok(None) => {}
            Ok(Some(file)) => {
                let keys = self.keys(file.passphrase.as_ref());
                for entry in file.keys {
                    match keys.open(&entry) {
                        Some(secret) => vault.keys.push(pasted(&entry, secret)),
                        None => vault.unreadable.push((entry.id, entry.provider)),
                    }
                }
            }
            Err(problem) => {
                vault.issues.push(issue(IssueLevel::Error, problem.clone()));
                vault.problem = Some(problem);
                vault.is_lost = true;
            }
        }
        let unreadable = vault.unreadable.len();
        if unreadable > 0 {
            let providers: Vec<&str> =
                vault.unreadable.iter().map(|(_, provider)| provider.as_str()).collect();
            vault.issues.push(issue(
                IssueLevel::Error,
                format!(
                    "{unreadable} pasted keys cannot be opened ({}): they were sealed under another box.key or {PASSPHRASE_VARIABLE}, or have been changed; they are kept, put the old one back or paste the keys again",
                    providers.join(", ")
                ),
            ));
        }
        if vault.problem.is_none() {
            vault.problem = self.sealing_problem();
        }
        vault
    }

    /// Under what the next key is sealed: its word in the API.
    pub fn sealed_by(&self) -> &'static str {
        if self.passphrase.is_some() { "passphrase" } else { "file" }
    }

    /// Why nothing can be sealed.
    fn sealing_problem(&self) -> Option<String> {
        match self.passphrase {
            Some(passphrase) if passphrase.len() < PASSPHRASE_MIN => {
                Some(format!("{PASSPHRASE_VARIABLE} is shorter than {PASSPHRASE_MIN} characters"))
            }
            Some(_) => None,
            None if !self.fingerprints.are_lasting() => Some(
                "box.key cannot be used, so a key that is sealed now could not be opened tomorrow".into(),
            ),
            None => None,
        }
    }

    fn read_file(&self) -> Result<Option<File>, String> {
        let text =
            read_bounded(&self.path(), FILE_MAX_BYTES).map_err(|error| format!("cannot be read: {error}"))?;
        let Some(text) = text else { return Ok(None) };
        let file: File = serde_json::from_str(&text)
            .map_err(|error| format!("is no file of sealed keys ({error}); mend it or move it away"))?;
        match file.version {
            VERSION => Ok(Some(file)),
            other => Err(format!("is of version {other}, and this program knows {VERSION} only")),
        }
    }

    /// The keys that open and seal, given how this file stretches its passphrase.
    fn keys(&self, stretch: Option<&Stretch>) -> Keys {
        let by_passphrase = self.passphrase.zip(stretch).and_then(|(text, stretch)| stretched(text, stretch));
        Keys { by_file: aead_key(&self.fingerprints.sealing_key()), by_passphrase }
    }

    /// Adds keys; of each, in order, how it is known now.
    ///
    /// # Errors
    /// Says what is wrong with a key, or why nothing can be written. Nothing is added then.
    pub fn add(&self, new: &[NewKey], now_ms: u64) -> Result<Vec<Added>, String> {
        new.iter().try_for_each(check)?;
        self.sealing_problem().map_or(Ok(()), Err)?;
        let _changing = CHANGING.lock();
        let mut file = self.read_file().map_err(|error| format!("{FILE} {error}"))?.unwrap_or_else(empty);
        let mut added = Vec::with_capacity(new.len());
        let mut fresh: Vec<PastedKey> = Vec::new();
        for key in new {
            let id = self.fingerprints.of(&key.provider, key.secret.expose());
            let stands = |known: &str, provider: &str| known == id && provider == key.provider;
            let known = file.keys.iter().any(|entry| stands(&entry.id, &entry.provider))
                || fresh.iter().any(|other| stands(&other.id, &other.provider));
            added.push(Added { id: id.clone(), known });
            if !known {
                let NewKey { provider, secret, label } = key.clone();
                fresh.push(PastedKey { id, provider, secret, label, added_ms: now_ms });
            }
        }
        if file.keys.len() + fresh.len() > KEYS_MAX {
            return Err(format!("there would be more than {KEYS_MAX} pasted keys; remove some first"));
        }
        if !fresh.is_empty() {
            self.write(&mut file, fresh)?;
        }
        Ok(added)
    }

    /// Removes keys of a provider; how many there were.
    ///
    /// # Errors
    /// When a mask fits several keys, or when the file cannot be read or written.
    pub fn remove(&self, provider: &str, which: Which<'_>) -> Result<usize, String> {
        let _changing = CHANGING.lock();
        let Some(mut file) = self.read_file().map_err(|error| format!("{FILE} {error}"))? else {
            return Ok(0);
        };
        let keys = self.keys(file.passphrase.as_ref());
        let fits = |entry: &Entry| {
            entry.provider == provider
                && match which {
                    Which::All => true,
                    Which::Id(id) => entry.id == id,
                    Which::Mask(mask) => keys.open(entry).is_some_and(|secret| secret.masked() == mask),
                }
        };
        let count = file.keys.iter().filter(|entry| fits(entry)).count();
        if count > 1 && matches!(which, Which::Mask(_)) {
            return Err(format!("{count} keys look like this; name the one by its keyId"));
        }
        if count > 0 {
            file.keys.retain(|entry| !fits(entry));
            self.write(&mut file, Vec::new())?;
        }
        Ok(count)
    }

    /// Seals anew what can be opened and is not sealed as the next key would be, because a passphrase was set since.
    ///
    /// # Errors
    /// Says what could not be written.
    pub fn reseal(&self) -> Result<(), String> {
        let _changing = CHANGING.lock();
        let Ok(Some(mut file)) = self.read_file() else { return Ok(()) };
        let keys = self.keys(file.passphrase.as_ref());
        let stale = file.keys.iter().any(|entry| entry.by != self.by() && keys.open(entry).is_some());
        if stale && self.sealing_problem().is_none() { self.write(&mut file, Vec::new()) } else { Ok(()) }
    }

    fn by(&self) -> By {
        if self.passphrase.is_some() { By::Passphrase } else { By::File }
    }

    /// Writes the file with `fresh` at its end. What can be opened is sealed anew, the rest stays as it is.
    fn write(&self, file: &mut File, fresh: Vec<PastedKey>) -> Result<(), String> {
        let old = self.keys(file.passphrase.as_ref());
        let by = self.by();
        if by == By::Passphrase && old.by_passphrase.is_none() {
            // Entries under another passphrase go by the old salt, which must stay for them.
            file.passphrase.get_or_insert_with(new_stretch);
        }
        let new = self.keys(file.passphrase.as_ref());
        for entry in &mut file.keys {
            if let Some(secret) = old.open(entry) {
                *entry = new.seal(&pasted(entry, secret), by).ok_or("a key cannot be sealed")?;
            }
        }
        for key in &fresh {
            file.keys.push(new.seal(key, by).ok_or("a key cannot be sealed")?);
        }
        let text = serde_json::to_string_pretty(file).map_err(|error| error.to_string())?;
        boxfile::write_private(&self.path(), text.as_bytes())
            .map_err(|error| format!("{}: {error}", self.path().display()))
    }
}

/// What opens and seals.
struct Keys {
    by_file: LessSafeKey,
    by_passphrase: Option<LessSafeKey>,
}

impl Keys {
    fn of(&self, by: By) -> Option<&LessSafeKey> {
        match by {
            By::File => Some(&self.by_file),
            By::Passphrase => self.by_passphrase.as_ref(),
        }
    }

    fn open(&self, entry: &Entry) -> Option<Secret> {
        let nonce: [u8; 12] = decoded(&entry.nonce)?.try_into().ok()?;
        let mut sealed = decoded(&entry.sealed)?;
        let bound = Aad::from(bound_to(&entry.provider, &entry.id));
        let key = self.of(entry.by)?;
        let plain = key.open_in_place(Nonce::assume_unique_for_key(nonce), bound, &mut sealed).ok()?;
        std::str::from_utf8(plain).ok().filter(|text| is_visible(text)).map(Secret::new)
    }

    fn seal(&self, key: &PastedKey, by: By) -> Option<Entry> {
        let mut nonce = [0; 12];
        fill_random(&mut nonce);
        let mut sealed = key.secret.expose().as_bytes().to_vec();
        let bound = Aad::from(bound_to(&key.provider, &key.id));
        // A random nonce is as good as unique for the few thousand times that one key ever seals.
        let unique = Nonce::assume_unique_for_key(nonce);
        self.of(by)?.seal_in_place_append_tag(unique, bound, &mut sealed).ok()?;
        Some(Entry {
            id: key.id.clone(),
            provider: key.provider.clone(),
            label: key.label.clone(),
            added_ms: key.added_ms,
            by,
            nonce: encoded(&nonce),
            sealed: encoded(&sealed),
        })
    }
}

/// What an entry is bound to. Neither half can hold the separator.
fn bound_to(provider: &str, id: &str) -> Vec<u8> {
    [provider.as_bytes(), b"\0", id.as_bytes()].concat()
}

fn pasted(entry: &Entry, secret: Secret) -> PastedKey {
    PastedKey {
        id: entry.id.clone(),
        provider: entry.provider.clone(),
        secret,
        label: entry.label.clone(),
        added_ms: entry.added_ms,
    }
}

/// Whether a key can be taken.
fn check(key: &NewKey) -> Result<(), String> {
    let text = key.secret.expose();
    if !is_visible(text) || text.contains(',') {
        return Err(
            "the key holds a space, a comma or a character that no header can carry; copy it again".into()
        );
    }
    if text.len() > KEY_MAX {
        return Err(format!("the key is longer than {KEY_MAX} characters; is it a key?"));
    }
    match &key.label {
        Some(label) if label.len() > LABEL_MAX || label.contains(char::is_control) => {
            Err(format!("the label must be one line of at most {LABEL_MAX} bytes"))
        }
        _ => Ok(()),
    }
}

fn issue(level: IssueLevel, message: String) -> Issue {
    Issue { file: FILE.into(), provider: None, level, message }
}

fn empty() -> File {
    File { version: VERSION, passphrase: None, keys: Vec::new() }
}

fn new_stretch() -> Stretch {
    let mut salt = [0; 16];
    fill_random(&mut salt);
    Stretch { salt: encoded(&salt), rounds: ROUNDS }
}

/// The last passphrase and what became of it: it takes a moment, and every load asks again.
static STRETCHED: Mutex<Option<(Secret, Stretch, [u8; 32])>> = Mutex::new(None);

fn stretched(passphrase: &str, stretch: &Stretch) -> Option<LessSafeKey> {
    let rounds = NonZeroU32::new(stretch.rounds).filter(|rounds| rounds.get() <= ROUNDS_MAX)?;
    let salt = decoded(&stretch.salt)?;
    let mut last = STRETCHED.lock();
    let known = last.as_ref().filter(|(text, how, _)| text.expose() == passphrase && how == stretch);
    if let Some((.., key)) = known {
        return Some(aead_key(key));
    }
    let mut key = [0; 32];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, &salt, passphrase.as_bytes(), &mut key);
    *last = Some((Secret::new(passphrase), stretch.clone(), key));
    Some(aead_key(&key))
}

fn aead_key(bytes: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).expect("32 bytes are a key of AES-256"))
}

fn encoded(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    base64::encode(bytes, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    base64::decode(text.as_bytes(), &mut bytes).then_some(bytes)
}

/// The passphrase among the variables, if one is set.
pub fn passphrase(variables: &BTreeMap<String, String>) -> Option<&str> {
    variables.get(PASSPHRASE_VARIABLE).map(|text| text.trim()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const KEY: &str = "sk-test-0123456789abcdef";

    struct Box {
        folder: tempfile::TempDir,
        fingerprints: Fingerprints,
    }

    impl Box {
        fn new() -> Box {
            let folder = tempfile::tempdir().expect("a folder");
            Box { fingerprints: boxfile::fingerprints(folder.path()).0, folder }
        }

        fn sealer<'b>(&'b self, passphrase: Option<&'b str>) -> Sealer<'b> {
            Sealer { data: self.folder.path(), fingerprints: &self.fingerprints, passphrase }
        }

        fn text(&self) -> String {
            fs::read_to_string(self.folder.path().join(FILE)).expect("the file")
        }

        fn write(&self, text: &str) {
            fs::write(self.folder.path().join(FILE), text).expect("written");
        }
    }

    fn new_key(provider: &str, key: &str) -> NewKey {
        NewKey { provider: provider.into(), secret: Secret::new(key), label: None }
    }

    fn secrets(vault: &Vault) -> Vec<(&str, &str)> {
        vault.keys.iter().map(|key| (key.provider.as_str(), key.secret.expose())).collect()
    }

    #[test]
    fn a5_keys_are_sealed_and_survive_a_restart() {
        let site = Box::new();
        let added = site.sealer(None).add(&[new_key("groq", KEY), new_key("acme", KEY)], 5).expect("added");
        assert!(added.iter().all(|added| !added.known) && added[0].id != added[1].id);
        assert!(!site.text().contains(KEY) && !site.text().contains(&KEY[8..]));
        let mode = fs::metadata(site.folder.path().join(FILE)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = boxfile::fingerprints(site.folder.path()).0;
        let sealer = Sealer { fingerprints: &again, ..site.sealer(None) };
        let vault = sealer.read();
        assert_eq!(secrets(&vault), [("groq", KEY), ("acme", KEY)]);
        assert!(vault.issues.is_empty() && vault.problem.is_none() && vault.keys[0].added_ms == 5);
        let known = sealer.add(&[new_key("groq", KEY)], 6).expect("nothing to do");
        assert_eq!(known, [Added { id: added[0].id.clone(), known: true }]);
    }

    #[test]
    fn a5_entries_that_were_changed_are_told_and_kept() {
        let site = Box::new();
        site.sealer(None).add(&[new_key("groq", KEY), new_key("acme", "other-key-1")], 5).expect("added");
        // An entry that is moved to another provider does not open there.
        site.write(&site.text().replace("\"groq\"", "\"evil\""));
        let vault = site.sealer(None).read();
        assert_eq!(secrets(&vault), [("acme", "other-key-1")]);
        assert!(vault.issues[0].message.contains("(evil)"), "{:?}", vault.issues);
        site.sealer(None).add(&[new_key("acme", "third-key-2")], 6).expect("added");
        site.write(&site.text().replace("\"evil\"", "\"groq\""));
        assert_eq!(secrets(&site.sealer(None).read()).len(), 3, "nothing was lost");
    }

    #[test]
    fn another_box_cannot_open_them_and_loses_nothing() {
        let site = Box::new();
        site.sealer(None).add(&[new_key("groq", KEY)], 5).expect("added");
        let before = site.text();
        let other = Fingerprints::new(&[9; 32]);
        let sealer = Sealer { fingerprints: &other, ..site.sealer(None) };
        assert_eq!((sealer.read().keys.len(), sealer.read().unreadable.len()), (0, 1));
        sealer.add(&[new_key("acme", "other-key-1")], 6).expect("added");
        let id = site.sealer(None).read();
        assert_eq!(secrets(&id), [("groq", KEY)]);
        assert!(
            site.text().contains(
                before.split("\"sealed\": ").nth(1).expect("a seal").split('"').nth(1).expect("text")
            )
        );
        for broken in ["{", r#"{"version": 2, "keys": []}"#] {
            site.write(broken);
            assert!(site.sealer(None).read().problem.is_some());
            assert!(site.sealer(None).add(&[new_key("groq", KEY)], 7).is_err());
            assert!(site.sealer(None).remove("groq", Which::All).is_err());
            assert_eq!(site.text(), broken);
        }
    }

    #[test]
    fn a_passphrase_seals_what_a_file_had_sealed() {
        let site = Box::new();
        site.sealer(None).add(&[new_key("groq", KEY)], 5).expect("added");
        let with = site.sealer(Some("correct horse battery"));
        with.reseal().expect("written");
        assert!(site.text().contains("\"passphrase\"") && !site.text().contains("\"by\": \"file\""));
        assert_eq!(secrets(&with.read()), [("groq", KEY)]);
        with.add(&[new_key("acme", "other-key-1")], 6).expect("added");
        for other in [None, Some("another passphrase")] {
            let vault = site.sealer(other).read();
            assert_eq!((vault.keys.len(), vault.unreadable.len()), (0, 2), "{other:?}");
        }
        assert_eq!(with.read().keys.len(), 2);
        assert!(site.sealer(Some("short")).add(&[new_key("acme", "third-key-1")], 7).is_err());
    }

    #[test]
    fn a5_one_key_is_removed_at_a_time() {
        let site = Box::new();
        let sealer = site.sealer(None);
        let twins = ["sk-a-11111111-zzzz", "sk-a-22222222-zzzz"];
        let added =
            sealer.add(&[new_key("groq", twins[0]), new_key("groq", twins[1]), new_key("acme", KEY)], 5);
        let added = added.expect("added");
        let mask = Secret::new(twins[0]).masked();
        assert_eq!(mask, Secret::new(twins[1]).masked());
        assert!(sealer.remove("groq", Which::Mask(&mask)).is_err_and(|error| error.contains("keyId")));
        assert_eq!(sealer.remove("acme", Which::Id(&added[0].id)), Ok(0), "of another provider");
        assert_eq!(sealer.remove("groq", Which::Id(&added[0].id)), Ok(1));
        assert_eq!(sealer.remove("groq", Which::Mask(&mask)), Ok(1));
        assert_eq!(sealer.remove("groq", Which::All), Ok(0));
        assert_eq!(secrets(&sealer.read()), [("acme", KEY)]);
        assert_eq!(sealer.remove("acme", Which::All), Ok(1));
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_told() {
        let site = Box::new();
        for bad in ["", "two words", "tab\there", "a,b", "schl\u{fc}ssel", &"x".repeat(KEY_MAX + 1)] {
            let error = site.sealer(None).add(&[new_key("groq", bad)], 5).expect_err("it is no key");
            assert!(bad.is_empty() || !error.contains(bad), "{error}");
        }
        assert!(site.sealer(None).read().keys.is_empty());
        let lost = Fingerprints::fleeting();
        let sealer = Sealer { fingerprints: &lost, ..site.sealer(None) };
        assert!(sealer.add(&[new_key("groq", KEY)], 5).is_err_and(|error| error.contains("box.key")));
    }
}
