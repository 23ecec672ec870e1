//! State that is safe from a kill but not worth a write to the card yet: a small file in the memory file system, which
//! outlives the process and not the power. The database follows once a minute; a restart reads both.
//!
//! Every write to a disk costs a whole block of 4 KiB. One every ten seconds would be 34 MiB a day.
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::StateChanges;
use crate::base::text::hex;

/// Where Linux keeps files in memory.
pub const MEMORY_FOLDER: &str = "/dev/shm";

/// A longer file is not ours.
const JOURNAL_BYTES_MAX: u64 = 8 << 20;

/// Brings saved state up to what a journal says.
pub fn replay(changes: &StateChanges, state: &mut BTreeMap<String, String>) {
    for (key, value) in changes {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}

/// The file of one database.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Who owns the database: a file of somebody else is not believed.
    owner: u32,
    used: bool,
}

impl Journal {
    /// The journal of the database at `database` with this identity; `None` when there is no folder for it.
    pub fn open(folder: &Path, database: &Path, identity: &str) -> Option<Journal> {
        let owner = fs::metadata(database).ok()?.uid();
        let place = fs::canonicalize(database).ok()?;
        let mut hash = Sha256::new();
        hash.update(identity);
        hash.update(place.as_os_str().as_encoded_bytes());
        let name = format!("freeway-{}", &hex(&hash.finalize())[..32]);
        folder.is_dir().then(|| Journal { path: folder.join(name), owner, used: true })
    }

    /// What a process that was killed left here; nothing when the file is not ours or makes no sense.
    pub fn read(&self) -> StateChanges {
        self.bytes().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        let found = fs::symlink_metadata(&self.path).ok()?;
        if !found.is_file() || found.uid() != self.owner || found.len() > JOURNAL_BYTES_MAX {
            return None;
        }
        let mut bytes = Vec::new();
        fs::File::open(&self.path).ok()?.take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Replaces the file, whole or not at all.
    pub fn write(&mut self, changes: &StateChanges) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        // One that is left over, or that somebody else put there, must not be written to.
        let _ = fs::remove_file(&fresh);
        let bytes = serde_json::to_vec(changes)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&bytes)?;
        fs::rename(&fresh, &self.path)?;
        self.used = true;
        Ok(())
    }

    /// Removes the file, because the database has it all.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.used) {
            // It is not there, or not ours: neither is worth a word.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn changes() -> StateChanges {
        StateChanges::from([("meter:a".to_owned(), Some("{}".to_owned())), ("bench:b".to_owned(), None)])
    }

    fn journal(folder: &tempfile::TempDir, identity: &str) -> Journal {
        let database = folder.path().join("freeway.db");
        fs::write(&database, "").expect("written");
        Journal::open(folder.path(), &database, identity).expect("the folder is there")
    }

    #[test]
    fn another_process_reads_what_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut first = journal(&folder, "one");
        first.write(&StateChanges::new()).expect("written");
        first.write(&changes()).expect("replaced");
        assert_eq!(fs::metadata(&first.path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(journal(&folder, "one").read(), changes());
        assert_eq!(journal(&folder, "two").read(), StateChanges::new(), "of another database");
        journal(&folder, "one").clear();
        assert_eq!(first.read(), StateChanges::new());
    }

    #[test]
    fn what_is_not_ours_is_not_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = journal(&folder, "one");
        let foreign = folder.path().join("foreign");
        fs::write(&foreign, serde_json::to_vec(&changes()).expect("plain")).expect("written");
        symlink(&foreign, &journal.path).expect("linked");
        assert_eq!(journal.read(), StateChanges::new());
        fs::remove_file(&journal.path).expect("removed");
        fs::write(&journal.path, r#"{"meter:a":7"#).expect("written");
        assert_eq!(journal.read(), StateChanges::new());
        let other = Journal { owner: journal.owner + 1, ..journal };
        fs::write(&other.path, serde_json::to_vec(&changes()).expect("plain")).expect("written");
        assert_eq!(other.read(), StateChanges::new());
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut journal = journal(&folder, "one");
        let precious = folder.path().join("precious");
        fs::write(&precious, "precious").expect("written");
        symlink(&precious, journal.path.with_extension("new")).expect("linked");
        symlink(&precious, &journal.path).expect("linked");
        journal.write(&changes()).expect("written");
        assert_eq!(fs::read_to_string(&precious).expect("read"), "precious");
        assert_eq!(journal.read(), changes());
    }

    #[test]
    fn without_a_memory_folder_there_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Journal::open(&folder.path().join("none"), folder.path(), "one").is_none());
    }
}
