//! From an archive back to a data folder. Everything is unpacked, checked and brought up to date beside what is there;
//! only then does it take its place, and what was there before is set aside. A power cut in between is made up for by the
//! next start.
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flate2::read::DeflateDecoder;

use super::archive::{Fault, Head, Opening};
use super::pack::{ABOUT, About, FILE_BYTES_MAX, FILES, sync_folder};
use crate::base::calendar;
use crate::store::{DATABASE, copy};

/// Where things are unpacked, within the data folder.
const STAGING: &str = ".restoring";
/// The list of what was unpacked; as soon as it is there, all of it takes its place.
const READY: &str = "ready";
/// What stands before the date of what was set aside.
const ASIDE: &str = "before-restore-";
/// A larger database is none of ours.
const DATABASE_BYTES_MAX: u64 = 64 << 30;
/// A longer description is none of ours.
const ABOUT_BYTES_MAX: u64 = 64 * 1024;

/// An archive that was unpacked, checked, and has not taken its place yet. What is dropped leaves no trace.
#[derive(Debug)]
pub struct Staged {
    data: PathBuf,
    pub about: About,
    names: Vec<String>,
}

/// Unpacks an archive beside what is in the data folder, which stays as it is.
pub fn unpack(from: impl Read, key: &str, data: &Path) -> Result<Staged, Fault> {
    let (opening, head) = Opening::new(BufReader::new(from), key, copy::schema_version())?;
    let staging = data.join(STAGING);
    remove(&staging)?;
    DirBuilder::new().recursive(true).mode(0o700).create(&staging)?;
    // From here on it removes what is there when something goes wrong.
    let mut staged = Staged {
        data: data.to_owned(),
        about: About { version: String::new(), created_ms: head.created_ms, sessions: false },
        names: Vec::new(),
    };
    staged.take(opening, head, &staging)?;
    Ok(staged)
}

impl Staged {
    fn take<R: Read>(&mut self, opening: Opening<R>, head: Head, staging: &Path) -> Result<(), Fault> {
        let mut entries = DeflateDecoder::new(opening);
        while let Some((name, length)) = next_entry(&mut entries)? {
            let most = match name.as_str() {
                ABOUT => ABOUT_BYTES_MAX,
                DATABASE => DATABASE_BYTES_MAX,
                name if FILES.contains(&name) => FILE_BYTES_MAX,
                // From a later version of the same format: the rest is worth having.
                _ => u64::MAX,
            };
            if length > most || self.names.contains(&name) {
                return Err(Fault::Damaged(format!("{name} makes no sense")));
            }
            let mut content = (&mut entries).take(length);
            if name == ABOUT {
                let mut text = Vec::new();
                content.read_to_end(&mut text)?;
                self.about = serde_json::from_slice(&text)
                    .map_err(|error| Fault::Damaged(format!("{ABOUT}: {error}")))?;
            } else if most == u64::MAX {
                io::copy(&mut content, &mut io::sink())?;
            } else {
                let mut file = private(&staging.join(&name))?;
                if io::copy(&mut content, &mut file)? != length {
                    return Err(Fault::Cut);
                }
                file.sync_all()?;
                self.names.push(name);
            }
        }
        entries.into_inner().expect_end()?;
        if !self.names.iter().any(|name| name == DATABASE) {
            return Err(Fault::Damaged("it holds no database".into()));
        }
        self.about.created_ms = head.created_ms;
        copy::adopt(&staging.join(DATABASE)).map_err(|failure| match failure.trouble() {
            crate::store::Trouble::Newer => Fault::Newer,
            crate::store::Trouble::Damaged => Fault::Damaged(failure.to_string()),
            _ => Fault::Io(io::Error::other(failure.to_string())),
        })
    }

    /// Puts all of it in place. What was there is set aside; the folder of that is told, if there was anything.
    pub fn place(self, wall_ms: u64) -> io::Result<Option<PathBuf>> {
        let staging = self.data.join(STAGING);
        let ready = staging.join(READY);
        let fresh = staging.join("ready.new");
        let aside = format!("{ASIDE}{}", calendar::stamp(wall_ms));
        let mut list = private(&fresh)?;
        list.write_all(format!("{aside}\n{}", self.names.join("\n")).as_bytes())?;
        list.sync_all()?;
        fs::rename(&fresh, &ready)?;
        sync_folder(&ready)?;
        finish(&self.data)
    }

    /// Puts the database alone in place, where there is none.
    pub fn place_database(self) -> io::Result<()> {
        let to = self.data.join(DATABASE);
        fs::rename(self.data.join(STAGING).join(DATABASE), &to)?;
        sync_folder(&to)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What is ready is to take its place, now or at the next start.
        let staging = self.data.join(STAGING);
        if !staging.join(READY).exists() {
            let _ = remove(&staging);
        }
    }
}

/// Whether a power cut ended a restoration whose rest has yet to take its place.
pub fn is_unfinished(data: &Path) -> bool {
    data.join(STAGING).join(READY).exists()
}

/// Puts in place what was ready for it, also after a power cut in the middle; where the rest was set aside, if anything.
pub fn finish(data: &Path) -> io::Result<Option<PathBuf>> {
    let staging = data.join(STAGING);
    let list = match fs::read_to_string(staging.join(READY)) {
        Ok(list) => list,
        Err(_) => {
            remove(&staging)?;
            return Ok(None);
        }
    };
    let mut lines = list.lines();
    let aside = data.join(lines.next().unwrap_or(ASIDE));
    let names: Vec<&str> = lines.collect();
    let journals = ["-wal", "-shm"].map(|end| format!("{DATABASE}{end}"));
    let replaced = FILES.iter().copied().chain([DATABASE]).chain(journals.iter().map(String::as_str));
    for name in replaced {
        let (old, new) = (data.join(name), staging.join(name));
        // One that is not to be found among the new any more is in its place already.
        let is_old = new.exists() || !names.contains(&name);
        if is_old && old.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(&aside)?;
            fs::rename(&old, aside.join(name))?;
        }
        if new.exists() {
            fs::rename(&new, &old)?;
        }
    }
    sync_folder(&data.join(DATABASE))?;
    remove(&staging)?;
    Ok(aside.exists().then_some(aside))
}

fn next_entry(from: &mut impl Read) -> Result<Option<(String, u64)>, Fault> {
    let mut length = [0];
    from.read_exact(&mut length)?;
    if length[0] == 0 {
        return Ok(None);
    }
    let mut name = vec![0; usize::from(length[0])];
    from.read_exact(&mut name)?;
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let name = String::from_utf8(name).map_err(|_| Fault::Damaged("a name makes no sense".into()))?;
    Ok(Some((name, u64::from_be_bytes(length))))
}

fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Removes the staging folder, if it is there.
fn remove(staging: &Path) -> io::Result<()> {
    match fs::remove_dir_all(staging) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::super::pack;
    use super::*;

    const KEY: &str = "correct horse battery";
    const NOW: u64 = 1_796_022_909_000;

    /// A folder with `data/`, and an archive of the files and the database that `change` left.
    fn archive(change: impl FnOnce(&Path)) -> (tempfile::TempDir, Vec<u8>) {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("made");
        fs::write(data.join("clients.json"), "old clients").expect("written");
        copy::adopt(&data.join(DATABASE)).expect("a fresh database");
        change(&data.join(DATABASE));
        let about = About { version: "0".into(), created_ms: NOW, sessions: false };
        let to = folder.path().join("archive");
        pack::write(&data, &about, KEY, &data.join(DATABASE), &to).expect("written");
        let bytes = fs::read(to).expect("read");
        (folder, bytes)
    }

    #[test]
    fn a_database_of_an_earlier_version_is_brought_up_to_date() {
        let (folder, archive) = archive(|database| {
            // As the second version made it.
            let old = Connection::open(database).expect("opened");
            let sql = "DROP TABLE hourly; DROP TABLE hourly_error; DROP TABLE rolled;
                       ALTER TABLE request DROP COLUMN request_id; ALTER TABLE request DROP COLUMN saved_nano_usd;
                       INSERT INTO state VALUES ('meter:key/a', '{}'); PRAGMA user_version=2; PRAGMA journal_mode=DELETE";
            old.execute_batch(sql).expect("changed");
        });
        let to = folder.path().join("new");
        unpack(&archive[..], KEY, &to).expect("it is whole").place(NOW).expect("placed");
        let opened = crate::store::Store::open(&to).expect("nobody else has it");
        assert_eq!((opened.issues.len(), opened.state.len()), (0, 1));
        let newest = Connection::open(to.join(DATABASE)).expect("opened");
        drop(opened);
        let version: u16 = newest.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("read");
        assert_eq!(version, copy::schema_version());
    }

    #[test]
    fn a_power_cut_at_any_moment_leaves_the_old_or_the_new() {
        let (folder, archive) = archive(|_| {});
        // What is moved in which order is not the point: each state in between is one that a power cut may leave.
        for moved in 0..=3 {
            let data = folder.path().join(format!("data-{moved}"));
            fs::create_dir(&data).expect("made");
            for name in ["clients.json", "overrides.json", DATABASE] {
                fs::write(data.join(name), "of before").expect("written");
            }
            let mut staged = unpack(&archive[..], KEY, &data).expect("it is whole");
            let staging = data.join(STAGING);
            let list = format!("{ASIDE}then\n{}", std::mem::take(&mut staged.names).join("\n"));
            fs::write(staging.join(READY), list).expect("written");
            drop(staged);
            assert!(is_unfinished(&data), "what is ready is kept");
            fs::create_dir(data.join(format!("{ASIDE}then"))).expect("made");
            let aside = |name: &str| data.join(format!("{ASIDE}then")).join(name);
            let steps: [(PathBuf, PathBuf); 3] = [
                (data.join("clients.json"), aside("clients.json")),
                (staging.join("clients.json"), data.join("clients.json")),
                (data.join("overrides.json"), aside("overrides.json")),
            ];
            for (from, to) in &steps[..moved] {
                fs::rename(from, to).expect("moved");
            }
            assert_eq!(finish(&data).expect("finished"), Some(data.join(format!("{ASIDE}then"))));
            assert_eq!(fs::read_to_string(data.join("clients.json")).expect("there"), "old clients");
            assert!(!data.join("overrides.json").exists(), "the backup has none");
            for name in ["clients.json", "overrides.json", DATABASE] {
                assert_eq!(fs::read_to_string(aside(name)).expect("kept"), "of before", "{moved}");
            }
            assert!(fs::read(data.join(DATABASE)).expect("there").starts_with(b"SQLite format 3"));
            assert!(!staging.exists() && !is_unfinished(&data));
            assert_eq!(finish(&data).expect("nothing to do"), None);
        }
    }

    #[test]
    fn what_was_unpacked_and_is_not_wanted_leaves_no_trace() {
        let (folder, archive) = archive(|_| {});
        let data = folder.path().join("data");
        drop(unpack(&archive[..], KEY, &data).expect("it is whole"));
        assert!(!data.join(STAGING).exists());
        assert!(matches!(unpack(&archive[..archive.len() - 1], KEY, &data), Err(Fault::Cut)));
        assert!(!data.join(STAGING).exists());
    }
}
