//! Small private files in the data folder: the box's own secret, and how a file is written whole or not at all.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::pool::Fingerprints;
use super::{Issue, IssueLevel};
use crate::base::rng::fill_random;

/// Holds 32 random bytes that name the provider keys of this box.
pub const SECRET_FILE: &str = "box.key";

/// Reads the box's secret, or makes it. Where neither works the names hold for this process only, which is told.
pub fn fingerprints(data: &Path) -> (Fingerprints, Option<Issue>) {
    let path = data.join(SECRET_FILE);
    match existing(&path) {
        Ok(secret) => return (Fingerprints::new(&secret), None),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return fallback(&error),
        Err(_) => {}
    }
    let mut secret = [0; 32];
    fill_random(&mut secret);
    match write_private(&path, &secret) {
        Ok(()) => (Fingerprints::new(&secret), None),
        Err(error) => fallback(&error),
    }
}

/// The names for a look without traces: the box's secret if there is one, nothing written.
pub fn fingerprints_if_any(data: &Path) -> Fingerprints {
    existing(&data.join(SECRET_FILE))
        .map_or_else(|_| Fingerprints::fleeting(), |secret| Fingerprints::new(&secret))
}

fn existing(path: &Path) -> io::Result<[u8; 32]> {
    let mut secret = [0; 32];
    let mut file = File::open(path)?;
    file.read_exact(&mut secret)?;
    Ok(secret)
}

fn fallback(error: &io::Error) -> (Fingerprints, Option<Issue>) {
    let issue = Issue {
        file: SECRET_FILE.into(),
        provider: None,
        level: IssueLevel::Warning,
        message: format!("cannot be used ({error}); counters of provider keys will not survive a restart"),
    };
    (Fingerprints::fleeting(), Some(issue))
}

/// Makes the data folder, open to its owner only.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made,
    }
}

/// Writes a file that only its owner may read: under another name first, then renamed, so that a crash leaves the old
/// file or the new one.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    make_folder(path.parent().unwrap_or(Path::new(".")))?;
    write_whole(path, bytes, 0o600)
}

/// Replaces a file of the owner's own in the same way. Who may read it stays as it was, and a link stays a link.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let mode = fs::metadata(&path)?.permissions().mode();
    write_whole(&path, bytes, mode & 0o777)
}

fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let temporary = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let written = file
        .write_all(bytes)
        // What the process's mask takes away comes back.
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(mode)))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c3_the_box_secret_survives_a_restart() {
        let root = tempfile::tempdir().expect("a folder");
        let data = root.path().join("data");
        let (first, issue) = fingerprints(&data);
        assert!(issue.is_none());
        let (second, _) = fingerprints(&data);
        assert_eq!(first.of("acme", "k"), second.of("acme", "k"));
        assert_eq!(first.of("acme", "k"), fingerprints_if_any(&data).of("acme", "k"));
        let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        assert_eq!((mode(&data), mode(&data.join(SECRET_FILE))), (0o700, 0o600));
    }

    #[test]
    fn a_broken_secret_is_told_and_kept() {
        let root = tempfile::tempdir().expect("a folder");
        fs::write(root.path().join(SECRET_FILE), "short").expect("written");
        assert!(fingerprints(root.path()).1.is_some());
        assert_eq!(fs::read(root.path().join(SECRET_FILE)).expect("the file"), b"short");
    }
}
