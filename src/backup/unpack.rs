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
