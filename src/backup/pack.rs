//! What a backup holds, as one stream: a short description, the small files of the data folder, the copy of the
//! database; packed, then sealed. Each entry is its name with a length of one byte, its length in eight, and its bytes; an empty
//! name ends them.
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use ring::digest;
use serde::{Deserialize, Serialize};

use super::archive::{Head, Sealing};
use super::target::hint;
use crate::base::text::hex;
use crate::catalog::{boxfile, clients, overrides, vault};
use crate::store::copy::{self, Talk};
use crate::store::{self, DATABASE};

/// Small files of the data folder that cannot be made anew: the box's secret, pasted keys, client keys, overrides.
pub const FILES: [&str; 4] = [boxfile::SECRET_FILE, vault::FILE, clients::FILE, overrides::FILE];
/// A small file that is larger than this is something else.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Describes the archive.
pub const ABOUT: &str = "about.json";
const COPY_BYTES: usize = 64 * 1024;

/// What an archive says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Of the program that made it.
    pub version: String,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// Whether it holds conversations.
    pub sessions: bool,
}

/// An archive that was made and has not found its place yet. It is removed when dropped.
#[derive(Debug)]
pub struct Packed {
    path: PathBuf,
    pub bytes: u64,
    /// Of what is in it; equal contents have equal ones, whenever they were packed.
    pub digest: String,
}

impl Packed {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name for good, whole or not at all.
    pub fn place(self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        sync_folder(to)
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        // It is not there any more when it found its place.
        let _ = fs::remove_file(&self.path);
    }
}

/// A file that is removed when dropped.
struct Passing(PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Packs the data folder of a running store into a file of the folder `place`.
pub fn pack(data: &Path, about: &About, key: &str, place: &Path) -> Result<Packed, String> {
    // One name for all times: what a kill left behind is written over.
    let database = Passing(data.join(".backup.db"));
    let _ = fs::remove_file(&database.0);
    create(&database.0).map_err(|error| format!("{}: {error}", database.0.display()))?;
    let talk = if about.sessions { Talk::With } else { Talk::Without };
    copy::copy(&data.join(DATABASE), &database.0, talk)
        .map_err(|error| format!("the database cannot be copied: {error}; {}", error.trouble().hint()))?;
    let path = place.join(".freeway-backup.tmp");
    let _ = fs::remove_file(&path);
    let mut packed = Packed { path, bytes: 0, digest: String::new() };
    write(data, about, key, &database.0, &packed.path)
        .map(|(bytes, digest)| (packed.bytes, packed.digest) = (bytes, digest))
        .map_err(|error| format!("{}: {error}{}", packed.path.display(), hint(&error)))?;
    Ok(packed)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Writes the archive of these files and of this database; its length, and the digest of its content.
pub(super) fn write(
    data: &Path,
    about: &About,
    key: &str,
    database: &Path,
    to: &Path,
) -> io::Result<(u64, String)> {
    let file = create(to)?;
    let head = Head { schema: copy::schema_version(), created_ms: about.created_ms };
    let sealing = Sealing::new(BufWriter::new(&file), head, key)?;
    let mut out = Entries {
        out: DeflateEncoder::new(sealing, Compression::default()),
        digest: digest::Context::new(&digest::SHA256),
    };
    let description = serde_json::to_vec(about)?;
    // Its date is no content.
    out.out.write_all(&entry_head(ABOUT, description.len() as u64))?;
    out.out.write_all(&description)?;
    out.add(u8::from(about.sessions).to_string().as_bytes(), false)?;
    for name in FILES {
        match File::open(data.join(name)) {
            Ok(small) if small.metadata()?.len() > FILE_BYTES_MAX => {
                return Err(io::Error::other(format!("{name} is too large to be what it should be")));
            }
            Ok(small) => out.entry(name, small)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    out.entry(DATABASE, File::open(database)?)?;
    out.add(&[0], true)?;
    let digest = hex(out.digest.finish().as_ref());
    out.out.finish()?.finish()?.flush()?;
    file.sync_all()?;
    Ok((file.metadata()?.len(), digest))
}

/// Entries on their way into an archive.
struct Entries<W: Write> {
    out: W,
    digest: digest::Context,
}

impl<W: Write> Entries<W> {
    /// Adds to the digest, and where `kept` to the archive.
    fn add(&mut self, bytes: &[u8], kept: bool) -> io::Result<()> {
        self.digest.update(bytes);
        if kept { self.out.write_all(bytes) } else { Ok(()) }
    }

    fn entry(&mut self, name: &str, file: File) -> io::Result<()> {
        let length = file.metadata()?.len();
        self.add(&entry_head(name, length), true)?;
        let mut from = file.take(length);
        let mut piece = vec![0; COPY_BYTES];
        let mut copied = 0;
        loop {
            let count = from.read(&mut piece)?;
            if count == 0 {
                break;
            }
            copied += count as u64;
            self.add(&piece[..count], true)?;
        }
        if copied != length {
            return Err(io::Error::other(format!("{name} was changed while it was read; try again")));
        }
        Ok(())
    }
}

fn entry_head(name: &str, length: u64) -> Vec<u8> {
    let mut head = vec![u8::try_from(name.len()).expect("our own names are short")];
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(&length.to_be_bytes());
    head
}

/// Makes the name of a file in a folder lasting.
pub fn sync_folder(file: &Path) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    // Some file systems, such as shares of other machines, cannot; then it is as lasting as they make it.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Whether there is nothing in a data folder that would be lost.
pub fn is_empty(data: &Path) -> bool {
    store::is_new(data) && FILES.iter().all(|name| !data.join(name).exists())
}
