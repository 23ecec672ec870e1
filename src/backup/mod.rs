//! Backups of what cannot be rebuilt, and the way back: packed beside the running gateway, sealed, put where they are
//! safe, the newest few kept. When they are made is not decided here.
//!
//! A backup holds the small private files of the data folder and a copy of the database with counters, benches, learned
//! figures, roll-ups and, where the owner wants it, conversations. What can be fetched or made anew stays out.
pub mod archive;
mod pack;
pub mod record;
pub mod target;
mod unpack;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::base::calendar;
use crate::base::rng::fill_random;
use crate::base::text::Secret;
use crate::catalog::boxfile;
use crate::catalog::env::{Paths, read_bounded};
use crate::catalog::load::{BACKUP_KEY_VARIABLE, backup_key_problem};
use crate::catalog::settings::BackupSettings;
use crate::store::Store;
use crate::upstream::client::Client;
use archive::Fault;
use pack::About;
pub use pack::is_empty;
use record::{Failed, Record};
use target::Target;
pub use unpack::is_unfinished;

/// Holds the recovery key that `freeway backup --init` made, in the data folder. It is in no backup.
pub const KEY_FILE: &str = "backup.key";
const KEY_BYTES_MAX: u64 = 4_096;
/// What a recovery key is made of: 32 characters of which none is easily mistaken for another.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const RECOVERY_LETTERS: usize = 40;
const GROUP_LETTERS: usize = 5;

/// What a running gateway knows of its backups.
#[derive(Debug)]
pub struct Keeper {
    pub record: Mutex<Record>,
    /// One is being made.
    pub running: AtomicBool,
    /// How the data folder looked when its content was last backed up or found to be unchanged.
    pub seen: Mutex<Option<Looks>>,
}

impl Keeper {
    /// With what earlier runs left in the data folder.
    pub fn new(data: &Path) -> Keeper {
        let record = Mutex::new(Record::read(data));
        Keeper { record, running: AtomicBool::new(false), seen: Mutex::default() }
    }
}

/// How a data folder looks, by what costs nothing to know: writes of the database since the start, length and time of the
/// small files.
pub type Looks = (u64, Vec<Option<(u64, SystemTime)>>);

/// How it looks now.
pub fn looks(data: &Path, store: &Store) -> Looks {
    let look = |name: &&str| {
        let about = std::fs::metadata(data.join(name)).ok()?;
        Some((about.len(), about.modified().ok()?))
    };
    (store.health().writes, pack::FILES.iter().map(look).collect())
}

/// Where backups go, and under what key.
#[derive(Debug)]
pub struct Plan {
    pub target: Target,
    pub key: Secret,
    pub keep: usize,
    pub sessions: bool,
}

/// Where the key comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFrom {
    Variable,
    File,
}

impl KeyFrom {
    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            KeyFrom::Variable => "variable",
            KeyFrom::File => "file",
        }
    }
}

/// The key of backups, and where it comes from.
pub fn key(variable: Option<&Secret>, data: &Path) -> Result<(Secret, KeyFrom), String> {
    if let Some(key) = variable {
        return backup_key_problem(key.expose()).map_or(Ok((key.clone(), KeyFrom::Variable)), Err);
    }
    let text =
        read_bounded(&data.join(KEY_FILE), KEY_BYTES_MAX).map_err(|error| format!("{KEY_FILE} {error}"))?;
    let key = text.as_deref().map(str::trim).filter(|key| backup_key_problem(key).is_none());
    key.map(|key| (Secret::new(key), KeyFrom::File)).ok_or_else(|| {
        format!(
            "there is no key for backups; set {BACKUP_KEY_VARIABLE}, or let `freeway backup --init` make one"
        )
    })
}

/// Makes a recovery key and keeps it in the data folder.
pub fn make_key(data: &Path) -> Result<Secret, String> {
    let path = data.join(KEY_FILE);
    if path.exists() {
        return Err(format!(
            "there is a recovery key already, in {}; it was shown when it was made. To make another one, move that file away: \
             older backups open with the old key only",
            path.display()
        ));
    }
    let mut bytes = [0; RECOVERY_LETTERS];
    fill_random(&mut bytes);
    let letters: Vec<char> = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect();
    let groups: Vec<String> = letters.chunks(GROUP_LETTERS).map(|group| group.iter().collect()).collect();
    let key = groups.join("-");
    boxfile::write_private(&path, format!("{key}\n").as_bytes())
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Secret::new(key))
}

impl Plan {
    /// What the settings come to. `None` when no target is set.
    pub fn new(
        settings: &BackupSettings,
        variable: Option<&Secret>,
        paths: &Paths,
    ) -> Option<Result<Plan, String>> {
        let text = settings.target.as_ref()?;
        let plan = || {
            let target = Target::new(text, &paths.root, &paths.data)?;
            let (key, _) = key(variable, &paths.data)?;
            Ok(Plan { target, key, keep: settings.keep, sessions: settings.sessions })
        };
        Some(plan())
    }
}

/// Whether a backup is made although nothing changed since the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Asked,
    Changed,
}

/// A backup to be made of a data folder whose store is open.
pub struct Making<'a> {
    pub paths: &'a Paths,
    pub client: &'a Client,
    pub store: &'a Store,
    pub when: When,
    pub now_ms: u64,
}

impl Making<'_> {
    /// Makes it, and notes in the record what came of it; false when there was nothing new to back up.
    pub fn make(&self, plan: Result<Plan, String>, record: Record) -> (Record, Result<bool, String>) {
        let mut record = match &plan {
            Ok(plan) => record.of_target(&plan.target.shown()),
            Err(_) => record,
        };
        let made = plan.and_then(|plan| self.put(&plan, &mut record));
        record.failed = made.as_ref().err().map(|error| Failed { at: self.now_ms, error: error.clone() });
        record.looked_ms = made.is_ok().then_some(self.now_ms);
        record.write(&self.paths.data);
        (record, made)
    }

    fn put(&self, plan: &Plan, record: &mut Record) -> Result<bool, String> {
        if !self.store.flush() {
            let trouble = self.store.health().trouble;
            let why = trouble.map_or("it takes too long".into(), |(_, message)| message);
            return Err(format!("the latest state cannot be written: {why}"));
        }
        let version = env!("CARGO_PKG_VERSION").into();
        let about = About { version, created_ms: self.now_ms, sessions: plan.sessions };
        let place = plan.target.packing_place(&self.paths.data)?;
        let packed = pack::pack(&self.paths.data, &about, plan.key.expose(), place)?;
        if self.when == When::Changed && record.digest.as_deref() == Some(packed.digest.as_str()) {
            return Ok(false);
        }
        let digest = packed.digest.clone();
        record.kept = plan.target.take(
            self.client,
            packed,
            &record.kept,
            (plan.key.expose(), plan.keep),
            self.now_ms,
        )?;
        record.digest = Some(digest);
        Ok(true)
    }
}

/// What was restored.
#[derive(Debug)]
pub struct Restored {
    /// When the backup was made, in milliseconds since 1970.
    pub made_ms: u64,
    pub sessions: bool,
    /// Where that lies which was there before.
    pub aside: Option<PathBuf>,
}

impl Restored {
    /// Of what, for people.
    pub fn date(&self) -> String {
        let stamp = calendar::stamp(self.made_ms);
        format!("{} {}:{} UTC", calendar::date(self.made_ms), &stamp[9..11], &stamp[11..13])
    }
}

/// Puts the content of an archive into a data folder that is claimed. What is wrong with the archive is found before
/// anything is touched.
pub fn restore(from: impl Read, key: &str, data: &Path, now_ms: u64) -> Result<Restored, Fault> {
    let staged = unpack::unpack(from, key, data)?;
    let (made_ms, sessions) = (staged.about.created_ms, staged.about.sessions);
    let aside = staged.place(now_ms)?;
    Ok(Restored { made_ms, sessions, aside })
}

/// Puts the database of an archive into a data folder that has lost its own, and nothing else.
pub fn restore_database(from: impl Read, key: &str, data: &Path) -> Result<Restored, Fault> {
    let staged = unpack::unpack(from, key, data)?;
    let (made_ms, sessions) = (staged.about.created_ms, staged.about.sessions);
    staged.place_database()?;
    Ok(Restored { made_ms, sessions, aside: None })
}

/// Goes on with a restoration that a power cut ended, where there is one; the data folder has to be claimed.
pub fn finish_restoring(data: &Path) -> std::io::Result<()> {
    unpack::finish(data).map(drop)
}
