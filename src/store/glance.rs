//! A look at a data folder that leaves no trace: whether a gateway owns it, and what the last one saved in it.
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::db::{self, Failure};
use super::journal::{self, Journal, MEMORY_FOLDER};
use super::{DATABASE, LOCK, Trouble};

/// Whether a process owns the folder now.
pub fn is_owned(folder: &Path) -> bool {
    let look = || -> Result<(), Failure> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(folder.join(LOCK), flags)?;
        connection.busy_timeout(Duration::ZERO)?;
        // Its owner lets nobody read, and there is nothing to be read.
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
        Ok(())
    };
    look().is_err_and(|failure| failure.trouble() == Trouble::Busy)
}

/// What the last gateway of a folder that nobody owns left for the next one; nothing when there was none.
///
/// # Errors
/// What is wrong with the database.
pub fn saved_state(folder: &Path) -> Result<BTreeMap<String, String>, String> {
    let path = folder.join(DATABASE);
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let (identity, mut state) =
        db::read_state(&path).map_err(|failure| format!("{}: {failure}", path.display()))?;
    if let Some(journal) = Journal::open(Path::new(MEMORY_FOLDER), &path, &identity) {
        journal::replay(&journal.read(), &mut state);
    }
    Ok(state)
}

/// Whether counters have a place that outlives the process and costs no write to the disk.
pub fn has_memory_folder() -> bool {
    Path::new(MEMORY_FOLDER).is_dir()
}

/// What the database weighs with everything that belongs to it, in bytes.
pub fn database_bytes(folder: &Path) -> u64 {
    let size = |name: String| std::fs::metadata(folder.join(name)).map_or(0, |file| file.len());
    ["", "-wal", "-shm"].map(|suffix| size(format!("{DATABASE}{suffix}"))).into_iter().sum()
}

#[cfg(test)]
mod tests {
    use super::super::folder;
    use super::*;

    #[test]
    fn an_owner_is_seen_and_not_disturbed() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!is_owned(folder.path()), "there is not even a lock");
        assert!(std::fs::read_dir(folder.path()).expect("it is there").next().is_none(), "and none is made");
        let lock = folder::lock(&folder.path().join(LOCK)).expect("nobody has it");
        assert!(is_owned(folder.path()));
        drop(lock);
        assert!(!is_owned(folder.path()));
        let lock = folder::lock(&folder.path().join(LOCK));
        assert!(lock.is_ok(), "a look leaves no lock behind");
    }

    #[test]
    fn without_a_database_nothing_was_saved() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(saved_state(folder.path()), Ok(BTreeMap::new()));
        std::fs::write(folder.path().join(DATABASE), "this is no database, however long it may be")
            .expect("written");
        assert!(saved_state(folder.path()).is_err_and(|error| error.contains("freeway.db")));
    }
}
