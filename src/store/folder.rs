//! The data folder and the files in it: made and closed to others, owned by one process, and moved aside when they are
//! damaged.
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use super::db::Failure;
use crate::base::calendar;

/// Damaged databases that are kept for a look.
const SET_ASIDE_MAX: usize = 3;

/// Makes the data folder, or closes an existing one to others.
pub fn prepare_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Takes the lock that makes the data folder ours; it is held for as long as the connection lives. Fails as busy when
/// another process has it. The database in it is never written and stays empty.
pub fn lock(path: &Path) -> Result<Connection, Failure> {
    let _ = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::ZERO)?;
    connection.execute_batch("PRAGMA journal_mode=MEMORY; BEGIN EXCLUSIVE")?;
    Ok(connection)
}

/// The files that belong to a database.
fn files_of(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    })
}

/// Whether the last process left without folding in its write-ahead log.
pub fn left_open(path: &Path) -> bool {
    let [_, wal, _] = files_of(path);
    fs::metadata(wal).is_ok_and(|wal| wal.len() > 0)
}

/// What the name of a damaged file ends with, before the time.
const ASIDE: &str = ".damaged-";
/// Most names that are tried before an older file is overwritten.
const SAME_SECOND_MAX: u64 = 10;

/// Moves a damaged database out of the way, under names that tell when; only the newest of several are kept. Tells the
/// new name.
pub fn set_aside(path: &Path, wall_ms: u64) -> io::Result<PathBuf> {
    let named = |file: &Path, stamp: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(format!("{ASIDE}{stamp}"));
        PathBuf::from(name)
    };
    // What was moved aside within the same second keeps its name.
    let stamps = (0..SAME_SECOND_MAX).map(|later| calendar::stamp(wall_ms + later * 1000));
    let free = |stamp: &String| files_of(path).iter().all(|file| !named(file, stamp).exists());
    let stamp = stamps.into_iter().find(free).unwrap_or_else(|| calendar::stamp(wall_ms));
    let aside = |file: &Path| named(file, &stamp);
    for file in files_of(path) {
        match fs::rename(&file, aside(&file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // A failure leaves a file too many, which hurts nobody.
    let _ = remove_old_aside(path);
    Ok(aside(path))
}

fn remove_old_aside(path: &Path) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let mut aside: Vec<(String, PathBuf)> = fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let (of, stamp) = file.rsplit_once(ASIDE)?;
            of.starts_with(name).then(|| (stamp.to_owned(), entry.path()))
        })
        .collect();
    aside.sort_unstable();
    let mut stamps: Vec<&str> = aside.iter().map(|(stamp, _)| stamp.as_str()).collect();
    stamps.dedup();
    let kept = stamps.len().saturating_sub(SET_ASIDE_MAX);
    for (_, file) in aside.iter().filter(|(stamp, _)| stamps[..kept].contains(&stamp.as_str())) {
        fs::remove_file(file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_aside_in_the_same_second_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("freeway.db");
        let aside = ["first", "second"].map(|text| {
            fs::write(&path, text).expect("written");
            set_aside(&path, 1_796_000_000_000).expect("moved")
        });
        assert_eq!(aside.map(|file| fs::read_to_string(file).expect("kept")), ["first", "second"]);
    }

    #[test]
    fn only_the_newest_damaged_files_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("freeway.db");
        for day in 0..6 {
            for file in files_of(&path) {
                fs::write(file, "nonsense").expect("written");
            }
            set_aside(&path, 1_796_000_000_000 + day * 86_400_000).expect("moved");
            assert!(!path.exists());
        }
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .expect("read")
            .map(|entry| entry.expect("read").file_name().into_string().expect("text"))
            .collect();
        left.sort_unstable();
        assert_eq!(left.len(), SET_ASIDE_MAX * 3);
        let fourth = calendar::stamp(1_796_000_000_000 + 3 * 86_400_000);
        assert!(left[0].ends_with(&fourth), "{left:?} from {fourth} on");
    }
}
