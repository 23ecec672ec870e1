//! Where backups go: a folder outside the data folder, or the address of a web server that takes files by PUT. Names tell
//! the date; only the newest stay.
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::archive::{Fault, Opening};
use super::pack::Packed;
use super::record::Kept;
use crate::base::text::{Secret, percent_decode};
use crate::base::{base64, calendar};
use crate::upstream::client::{Client, Reply, ReplyBody};
use crate::upstream::deliver::{Act, Delivery};

/// What stands before and behind the date in a name.
const START: &str = "freeway-";
const END: &str = ".backup";
/// At a web server this file names what is kept there, since nothing can be listed: a name and a length in each line,
/// oldest first.
const LIST: &str = "freeway-backups.txt";
/// Longest wait for a whole file to be taken or given, and for a small thing.
const FILE_MAX: Duration = Duration::from_secs(900);
const WORD_MAX: Duration = Duration::from_secs(30);
/// As much of an answer as is read.
const ANSWER_BYTES_MAX: usize = 1_024;
const LIST_BYTES_MAX: usize = 256 * 1_024;

/// A place for backups.
#[derive(Clone, Debug)]
pub enum Target {
    Folder(PathBuf),
    Web(Web),
}

/// A web address, its credentials apart.
#[derive(Clone, Debug)]
pub struct Web {
    base: String,
    /// With its question mark. It may hold a credential, and is not shown.
    query: String,
    authorization: Option<Secret>,
}

/// A backup, to be read from its beginning.
pub enum Source {
    File(File),
    Web(Box<ReplyBody>),
}

impl Read for Source {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::File(file) => file.read(into),
            Source::Web(body) => body.read(into).map_err(|fault| io::Error::other(fault.message)),
        }
    }
}

impl Target {
    /// Understands the setting; a relative folder is one below `root`.
    pub fn new(text: &str, root: &Path, data: &Path) -> Result<Target, String> {
        if is_url(text) {
            return Web::new(text).map(Target::Web);
        }
        if text.contains("://") {
            return Err(format!("backup.target: {text} is neither a folder nor an http:// or https:// URL"));
        }
        let folder = root.join(text);
        // As far as they exist: a folder that is only reached by a link counts as well.
        let real = |path: &Path| {
            let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let known = whole.ancestors().find_map(|part| Some((part, fs::canonicalize(part).ok()?)));
            known.map_or(whole.clone(), |(part, real)| real.join(whole.strip_prefix(part).unwrap_or(&whole)))
        };
        if real(&folder).starts_with(real(data)) {
            return Err(format!(
                "backup.target: {} lies in the data folder, with which it would be lost; name another place",
                folder.display()
            ));
        }
        Ok(Target::Folder(folder))
    }

    /// How it may be shown.
    pub fn shown(&self) -> String {
        match self {
            Target::Folder(folder) => folder.display().to_string(),
            Target::Web(web) => web.base.clone(),
        }
    }

    /// The folder in which an archive for it is packed.
    pub fn packing_place<'p>(&'p self, data: &'p Path) -> Result<&'p Path, String> {
        let Target::Folder(folder) = self else { return Ok(data) };
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if !folder.is_dir() => {
                let hint = match error.kind() {
                    // Its parent is not made: it may be a disk that is not mounted.
                    io::ErrorKind::NotFound => "; make it, or mount the disk that it is on",
                    _ => hint(&error),
                };
                Err(format!("backup.target: the folder {} cannot be made: {error}{hint}", folder.display()))
            }
            _ => Ok(folder),
        }
    }

    /// Takes in an archive under a name that tells `at_ms`, and removes what is too much; what is there then, oldest
    /// first. `known` is what was put there before, as far as that is remembered. What is sealed under another key than
    /// `key` stays: after a mishap with keys it may be the only good one.
    pub fn take(
        &self,
        client: &Client,
        packed: Packed,
        known: &[Kept],
        (key, keep): (&str, usize),
        at_ms: u64,
    ) -> Result<Vec<Kept>, String> {
        let mut kept = match self {
            Target::Folder(folder) => {
                list(folder).map_err(|error| format!("{}: {error}", folder.display()))?
            }
            // Some servers take files and give none.
            Target::Web(web) => web.list(client).unwrap_or_else(|_| known.to_vec()),
        };
        let (name, at) = next_name(&kept, at_ms);
        let bytes = packed.bytes;
        match self {
            Target::Folder(folder) => packed
                .place(&folder.join(&name))
                .map_err(|error| format!("{}: {error}", folder.join(&name).display()))?,
            Target::Web(web) => web.put_archive(client, &name, packed.path(), bytes)?,
        }
        kept.push(Kept { name, at, bytes });
        let excess = kept.len().saturating_sub(keep.max(1));
        let (foreign, old): (Vec<Kept>, Vec<Kept>) =
            kept.drain(..excess).partition(|old| self.is_foreign(client, &old.name, key));
        for Kept { name, .. } in &foreign {
            log::warn!("the old backup {name} is sealed under another key and stays; remove it yourself");
        }
        kept.splice(..0, foreign);
        if let Target::Web(web) = self {
            // Before anything goes: a name too few is better than one too many.
            web.put_list(client, &kept)?;
        }
        for old in old {
            let removed = match self {
                Target::Folder(folder) => {
                    fs::remove_file(folder.join(&old.name)).map_err(|error| error.to_string())
                }
                Target::Web(web) => web.delete(client, &old.name),
            };
            if let Err(error) = removed {
                log::warn!("the old backup {} cannot be removed: {error}; remove it yourself", old.name);
            }
        }
        Ok(kept)
    }

    /// Whether a backup is known to be sealed under another key.
    fn is_foreign(&self, client: &Client, name: &str, key: &str) -> bool {
        let opened = self.open(client, name).map(|source| Opening::new(source, key, u16::MAX));
        matches!(opened, Ok(Err(Fault::WrongKey)))
    }

    /// The names of the backups there, the newest first.
    pub fn names(&self, client: &Client) -> Result<Vec<String>, String> {
        let kept = match self {
            Target::Folder(folder) => match list(folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                listed => listed.map_err(|error| format!("{}: {error}", folder.display()))?,
            },
            Target::Web(web) => web.list(client)?,
        };
        Ok(kept.into_iter().rev().map(|kept| kept.name).collect())
    }

    /// Opens one of [`Target::names`].
    pub fn open(&self, client: &Client, name: &str) -> Result<Source, String> {
        match self {
            Target::Folder(folder) => open_file(&folder.join(name)),
            Target::Web(web) => {
                web.get(client, &web.url(name), FILE_MAX).map(|body| Source::Web(Box::new(body)))
            }
        }
    }
}

/// What to do about a folder that cannot be written.
pub fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; let the user that runs the gateway write there (under systemd by `ReadWritePaths=` too, see docs/OPERATING.md)"
        }
        io::ErrorKind::StorageFull => "; free some space there, or set backup.keep lower",
        _ => "",
    }
}

/// Whether a text names a web address.
pub fn is_url(text: &str) -> bool {
    let start = text.get(..8).unwrap_or(text).to_ascii_lowercase();
    start.starts_with("http://") || start.starts_with("https://")
}

/// A file or an address as it may be shown.
pub fn shown(place: &str) -> String {
    match is_url(place).then(|| Web::new(place)) {
        Some(Ok(web)) => web.base,
        _ => place.to_owned(),
    }
}

/// Opens a backup by its file or its full address.
pub fn open(client: &Client, place: &str) -> Result<Source, String> {
    if !is_url(place) {
        return open_file(Path::new(place));
    }
    let web = Web::new(place)?;
    let url = format!("{}{}", web.base, web.query);
    web.get(client, &url, FILE_MAX).map(|body| Source::Web(Box::new(body)))
}

fn open_file(path: &Path) -> Result<Source, String> {
    let told = |error: io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(told)?;
    if file.metadata().map_err(told)?.is_dir() {
        return Err(format!("{} is a folder; name a file in it", path.display()));
    }
    Ok(Source::File(file))
}

impl Web {
    fn new(text: &str) -> Result<Web, String> {
        let text = text.split('#').next().unwrap_or_default();
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, host) =
            authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        if host.is_empty() {
            return Err("backup.target: the URL names no host".into());
        }
        let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
        let authorization = user.map(|user| {
            let plain = percent_decode(user).unwrap_or(user.into());
            let mut value = b"Basic ".to_vec();
            base64::encode(plain.as_bytes(), &mut value);
            Secret::new(String::from_utf8_lossy(&value).into_owned())
        });
        let base = format!("{}://{host}{}", scheme.to_ascii_lowercase(), path.trim_end_matches('/'));
        Ok(Web { base, query: query.to_owned(), authorization })
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{name}{}", self.base, self.query)
    }

    fn deliver(&self, client: &Client, url: &str, act: Act<'_>, within: Duration) -> Result<Reply, String> {
        let delivery = Delivery { url, authorization: self.authorization.as_ref(), within };
        client.deliver(&delivery, act).map_err(|fault| format!("{}: {}", self.base, fault.message))
    }

    fn put_archive(&self, client: &Client, name: &str, archive: &Path, bytes: u64) -> Result<(), String> {
        let mut file = File::open(archive).map_err(|error| format!("{}: {error}", archive.display()))?;
        self.put(client, name, &mut file, bytes, FILE_MAX)
    }

    fn put_list(&self, client: &Client, kept: &[Kept]) -> Result<(), String> {
        let text: String = kept.iter().map(|kept| format!("{} {}\n", kept.name, kept.bytes)).collect();
        self.put(client, LIST, &mut text.as_bytes(), text.len() as u64, WORD_MAX)
    }

    fn put(
        &self,
        client: &Client,
        name: &str,
        content: &mut dyn Read,
        bytes: u64,
        within: Duration,
    ) -> Result<(), String> {
        let reply = self.deliver(client, &self.url(name), Act::Put(content, bytes), within)?;
        self.done(reply, name)
    }

    fn delete(&self, client: &Client, name: &str) -> Result<(), String> {
        let reply = self.deliver(client, &self.url(name), Act::Delete, WORD_MAX)?;
        // It may have been removed by hand.
        if reply.status == 404 { Ok(()) } else { self.done(reply, name) }
    }

    fn done(&self, mut reply: Reply, name: &str) -> Result<(), String> {
        let _rest = reply.body.read_some(ANSWER_BYTES_MAX);
        match reply.status {
            200..=299 => Ok(()),
            status => Err(format!("{}/{name} answered {status}", self.base)),
        }
    }

    fn get(&self, client: &Client, url: &str, within: Duration) -> Result<ReplyBody, String> {
        let reply = self.deliver(client, url, Act::Get, within)?;
        match reply.status {
            200 => Ok(reply.body),
            status => Err(format!("{} answered {status}", url.split('?').next().unwrap_or_default())),
        }
    }

    /// What is kept there, oldest first; nothing when there never was a backup.
    fn list(&self, client: &Client) -> Result<Vec<Kept>, String> {
        let mut reply = self.deliver(client, &self.url(LIST), Act::Get, WORD_MAX)?;
        match reply.status {
            200 => {}
            404 | 410 => return Ok(Vec::new()),
            status => return Err(format!("{}/{LIST} answered {status}", self.base)),
        }
        let text = reply
            .body
            .read_all(LIST_BYTES_MAX)
            .map_err(|fault| format!("{}: {}", self.base, fault.message))?;
        let one = |line: &str| {
            let (name, bytes) = line.split_once(' ')?;
            Some(Kept { name: name.to_owned(), at: at_of(name)?, bytes: bytes.parse().ok()? })
        };
        let kept: Option<Vec<Kept>> = String::from_utf8_lossy(&text).lines().map(one).collect();
        kept.ok_or_else(|| {
            format!("{}/{LIST} is no list of backups; name one yourself: `freeway restore URL`", self.base)
        })
    }
}

/// When a backup of this name was made; `None` for the name of something else.
fn at_of(name: &str) -> Option<u64> {
    calendar::of_stamp(name.strip_prefix(START)?.strip_suffix(END)?)
}

/// The backups in a folder, oldest first. What has another name is somebody else's.
fn list(folder: &Path) -> io::Result<Vec<Kept>> {
    let entries = fs::read_dir(folder)?.flatten();
    let mut kept: Vec<Kept> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(Kept { at: at_of(&name)?, name, bytes: entry.metadata().ok()?.len() })
        })
        .collect();
    kept.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(kept)
}

/// A name later than all others, also after the clock was set back: else the new one would go as the oldest.
fn next_name(kept: &[Kept], now_ms: u64) -> (String, u64) {
    let newest = kept.iter().map(|kept| kept.at).max();
    let at = newest.map_or(now_ms, |newest| now_ms.max(newest + 1_000));
    (format!("{START}{}{END}", calendar::stamp(at)), at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_understood_or_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (root, data) = (folder.path(), folder.path().join("data"));
        fs::create_dir(&data).expect("made");
        std::os::unix::fs::symlink(&data, root.join("link")).expect("linked");
        let shown = |text: &str| Target::new(text, root, &data).map(|target| target.shown());
        assert_eq!(shown("/mnt/usb"), Ok("/mnt/usb".into()));
        assert_eq!(shown("kept"), Ok(root.join("kept").display().to_string()));
        assert_eq!(shown("https://me:pass@nas.example/b/?sig=1"), Ok("https://nas.example/b".into()));
        for inside in ["data", "data/backups", "./data/../data/x/y", "link/backups"] {
            assert!(shown(inside).is_err_and(|error| error.contains("data folder")), "{inside}");
        }
        for wrong in ["ftp://nas.example/", "https:///x", "http://me@"] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn credentials_stand_in_a_header_and_nowhere_else() {
        let web = Web::new("HTTPS://me:p%40ss@nas.example:8443/b/?sig=1#top").expect("a URL");
        assert_eq!(web.url("x"), "https://nas.example:8443/b/x?sig=1");
        assert_eq!(web.authorization.expect("a credential").expose(), "Basic bWU6cEBzcw==");
        assert_eq!(Web::new("http://nas").expect("a URL").url("x"), "http://nas/x");
    }

    #[test]
    fn names_grow_whatever_the_clock_does() {
        let kept = |at: u64| Kept { name: format!("{START}{}{END}", calendar::stamp(at)), at, bytes: 1 };
        let now = 1_796_022_909_000;
        assert_eq!(next_name(&[], now), ("freeway-20261130T071509Z.backup".into(), now));
        assert_eq!(next_name(&[kept(now)], now).1, now + 1_000);
        let (name, _) = next_name(&[kept(now), kept(now + 5_000)], 86_400_000);
        assert!(name > kept(now + 5_000).name, "{name}");
        assert_eq!(at_of(&name), Some(now + 6_000));
        assert_eq!(at_of(LIST), None);
    }
}
