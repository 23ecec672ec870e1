//! Conversations on the disk. What of one came since the last write is one part: a compressed text of whole messages.
//! Images lie apart, once each by their content, however many conversations hold them.
use std::io::Read as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder};
use memchr::memmem;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Extent;
use super::db::Failure;
use crate::base::clock::Now;
use crate::catalog::client_key::Principal;
use crate::context::thread::Thread;

/// The tables, made by a migration of the database.
pub const SCHEMA: &str = "
    CREATE TABLE session (
        number INTEGER PRIMARY KEY, owner TEXT, id TEXT NOT NULL,
        created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL,
        messages INTEGER NOT NULL, tokens INTEGER NOT NULL, bytes INTEGER NOT NULL
    ) STRICT;
    -- id = number of the session times 2^24, plus the place of the part's first message: the parts of a session lie
    -- together and in order.
    CREATE TABLE session_part (id INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
    CREATE TABLE image (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, data BLOB NOT NULL) STRICT;
    -- Which part holds which image; an image that none holds goes.
    CREATE TABLE image_use (image INTEGER NOT NULL, part INTEGER NOT NULL, PRIMARY KEY (image, part)) STRICT, WITHOUT ROWID;
    CREATE INDEX image_use_part ON image_use (part);
";

/// Places of messages in one session.
const PLACES: i64 = 1 << 24;
/// Data URLs from this length on are images of their own.
const IMAGE_BYTES_MIN: usize = 4_096;
/// What one part or image may unpack to; more is damage.
const UNPACKED_BYTES_MAX: u64 = 512 << 20;

/// What is known of a stored conversation without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// Given once and never again.
    pub number: u64,
    pub owner: Option<Principal>,
    pub id: Arc<str>,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    pub updated_ms: u64,
    pub messages: usize,
    /// By our own count.
    pub tokens: u64,
    /// Length of its text.
    pub bytes: usize,
}

/// A conversation that was read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub thread: Thread,
    /// Where each part ends, in messages.
    pub parts: Vec<usize>,
}

/// What became of a conversation since the last write.
#[derive(Clone, Debug)]
pub enum SessionChange {
    /// From message `from` on, with which a part begins, it is another one.
    Changed {
        row: SessionRow,
        from: usize,
        thread: Arc<Thread>,
    },
    Removed(u64),
}

/// Where the writer gets conversations from. Called on the writer's thread.
pub trait SessionSource: Send {
    /// Since when something waits, and whether it is enough for a write of its own.
    fn waiting(&self) -> (Option<Instant>, bool);
    /// Lets go what is kept long enough.
    fn forget(&self, now: Now);
    /// What changed.
    fn take(&self, extent: Extent, now: Now) -> Vec<SessionChange>;
    /// Whether what was taken last is on the disk now.
    fn written(&self, well: bool);
}

/// Every conversation, the one that was changed last at the end.
pub fn rows(connection: &Connection) -> Result<Vec<SessionRow>, Failure> {
    let mut statement = connection.prepare(
        "SELECT number, owner, id, created_ms, updated_ms, messages, tokens, bytes FROM session ORDER BY updated_ms, number",
    )?;
    let amount =
        |row: &rusqlite::Row<'_>, column: usize| row.get::<_, i64>(column).map(|number| number.max(0) as u64);
    let rows = statement.query_map([], |row| {
        Ok(SessionRow {
            number: amount(row, 0)?,
            owner: row.get::<_, Option<String>>(1)?.as_deref().and_then(Principal::parse),
            id: Arc::from(row.get::<_, String>(2)?),
            created_ms: amount(row, 3)?,
            updated_ms: amount(row, 4)?,
            messages: amount(row, 5)? as usize,
            tokens: amount(row, 6)?,
            bytes: amount(row, 7)? as usize,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The length of the text of all of them.
pub fn text_bytes(connection: &Connection) -> Result<u64, Failure> {
    let bytes: i64 =
        connection.query_row("SELECT ifnull(sum(bytes), 0) FROM session", [], |row| row.get(0))?;
    Ok(bytes.max(0) as u64)
}

/// Reads a conversation; `None` when there is none of that number.
pub fn read(connection: &Connection, number: u64) -> Result<Option<Stored>, Failure> {
    let mut parts =
        connection.prepare("SELECT data FROM session_part WHERE id BETWEEN ?1 AND ?2 ORDER BY id")?;
    let mut image = connection.prepare("SELECT data FROM image WHERE hash = ?1")?;
    let ids = ids(number, 0);
    let mut rows = parts.query([ids.start, ids.end - 1])?;
    let mut stored = Stored::default();
    while let Some(row) = rows.next()? {
        let part = unpack(row.get_ref(0)?.as_blob().unwrap_or_default())?;
        let (head, text) = Head::split(&part)?;
        let mut list = Vec::with_capacity(text.len() + 2);
        list.push(b'[');
        let mut copied = 0;
        for (at, hash) in &head.images {
            list.extend_from_slice(text.get(copied..*at).ok_or_else(damaged)?);
            let found: Option<Vec<u8>> = image.query_row([from_hex(hash)], |row| row.get(0)).optional()?;
            list.extend_from_slice(&unpack(&found.ok_or_else(damaged)?)?);
            copied = *at;
        }
        list.extend_from_slice(text.get(copied..).ok_or_else(damaged)?);
        list.push(b']');
        let read = Thread::read_at(&list, &head.created_ms).map_err(|_| damaged())?;
        stored.thread.extend(&read, 0..read.len());
        stored.parts.push(stored.thread.len());
    }
    stored.thread.shrink();
    Ok((!stored.parts.is_empty()).then_some(stored))
}

/// Writes what changed.
pub fn write(transaction: &Transaction<'_>, changes: &[SessionChange]) -> Result<(), Failure> {
    let mut orphans = Vec::new();
    for change in changes {
        match change {
            SessionChange::Removed(number) => {
                orphans.extend(remove_parts(transaction, ids(*number, 0))?);
                transaction.execute("DELETE FROM session WHERE number = ?1", [*number as i64])?;
            }
            SessionChange::Changed { row, from, thread } => {
                orphans.extend(remove_parts(transaction, ids(row.number, *from))?);
                write_row(transaction, row)?;
                if *from < thread.len() {
                    write_part(transaction, ids(row.number, *from).start, thread, *from..thread.len())?;
                }
            }
        }
    }
    let mut remove = transaction.prepare(
        "DELETE FROM image WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM image_use WHERE image = ?1)",
    )?;
    for image in orphans {
        remove.execute([image])?;
    }
    Ok(())
}

fn write_row(transaction: &Transaction<'_>, row: &SessionRow) -> Result<(), Failure> {
    transaction.execute(
        "INSERT INTO session VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT DO UPDATE SET updated_ms = excluded.updated_ms, messages = excluded.messages,
         tokens = excluded.tokens, bytes = excluded.bytes",
        params![
            row.number as i64,
            row.owner.map(|owner| owner.to_string()),
            row.id,
            row.created_ms as i64,
            row.updated_ms as i64,
            row.messages as i64,
            row.tokens as i64,
            row.bytes as i64,
        ],
    )?;
    Ok(())
}

/// Removes parts, and gives the images that they held.
fn remove_parts(transaction: &Transaction<'_>, ids: Range<i64>) -> Result<Vec<i64>, Failure> {
    let bounds = [ids.start, ids.end - 1];
    let mut used =
        transaction.prepare("SELECT DISTINCT image FROM image_use WHERE part BETWEEN ?1 AND ?2")?;
    let images = used.query_map(bounds, |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
    if !images.is_empty() {
        transaction.execute("DELETE FROM image_use WHERE part BETWEEN ?1 AND ?2", bounds)?;
    }
    transaction.prepare("DELETE FROM session_part WHERE id BETWEEN ?1 AND ?2")?.execute(bounds)?;
    Ok(images)
}

fn write_part(
    transaction: &Transaction<'_>,
    id: i64,
    thread: &Thread,
    range: Range<usize>,
) -> Result<(), Failure> {
    let text = thread.text(range.clone());
    let mut head = Head {
        created_ms: thread.marks()[range].iter().map(|mark| mark.created_ms).collect(),
        images: Vec::new(),
    };
    let mut rest = Vec::with_capacity(text.len());
    let mut copied = 0;
    for image in images(text) {
        rest.extend_from_slice(&text[copied..image.start]);
        copied = image.end;
        let hash = Sha256::digest(&text[image.clone()]);
        head.images.push((rest.len(), crate::base::text::hex(&hash)));
        let known = "SELECT id FROM image WHERE hash = ?1";
        let known = transaction.query_row(known, [&hash[..]], |row| row.get::<_, i64>(0)).optional()?;
        let image = match known {
            Some(id) => id,
            None => {
                transaction.execute(
                    "INSERT INTO image (hash, data) VALUES (?1, ?2)",
                    params![&hash[..], pack(&text[image])],
                )?;
                transaction.last_insert_rowid()
            }
        };
        transaction.execute("INSERT OR IGNORE INTO image_use VALUES (?1, ?2)", [image, id])?;
    }
    rest.extend_from_slice(&text[copied..]);
    let data = pack(&head.join(&rest));
    transaction.prepare("INSERT INTO session_part VALUES (?1, ?2)")?.execute(params![id, data])?;
    Ok(())
}

/// The ids of the parts of a session that begin with that message or a later one.
fn ids(number: u64, from: usize) -> Range<i64> {
    let first = (number as i64).saturating_mul(PLACES);
    first + (from as i64).min(PLACES - 1)..first + PLACES
}

/// What stands before the text of a part, in a line of its own.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// Of each message.
    created_ms: Vec<u64>,
    /// Images that were cut out of the text: where, and the hash in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    images: Vec<(usize, String)>,
}

impl Head {
    fn join(&self, text: &[u8]) -> Vec<u8> {
        let mut part = serde_json::to_vec(self).expect("numbers and texts become JSON");
        part.push(b'\n');
        part.extend_from_slice(text);
        part
    }

    fn split(part: &[u8]) -> Result<(Head, &[u8]), Failure> {
        let end = memchr::memchr(b'\n', part).ok_or_else(damaged)?;
        let head = serde_json::from_slice(&part[..end]).map_err(|_| damaged())?;
        Ok((head, &part[end + 1..]))
    }
}

/// Where the long data URLs stand in JSON text, without their quotes.
pub fn images(text: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut end = 0;
    for quote in memmem::find_iter(text, b"\"data:") {
        // An escaped quote stands within a string.
        if quote < end || quote.checked_sub(1).is_some_and(|before| text[before] == b'\\') {
            continue;
        }
        let start = quote + 1;
        let Some(length) = memchr::memchr2(b'"', b'\\', &text[start..]) else { break };
        end = start + length;
        if length >= IMAGE_BYTES_MIN && text[end] == b'"' {
            found.push(start..end);
        }
    }
    found
}

fn pack(text: &[u8]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(text.len() / 2 + 64);
    // Reading from memory and writing to memory cannot fail.
    let _ = DeflateEncoder::new(text, Compression::default()).read_to_end(&mut packed);
    packed
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::with_capacity(packed.len().saturating_mul(3));
    DeflateDecoder::new(packed).take(UNPACKED_BYTES_MAX).read_to_end(&mut text).map_err(|_| damaged())?;
    Ok(text)
}

fn from_hex(hash: &str) -> Vec<u8> {
    let digit = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    hash.as_bytes().chunks(2).filter_map(digit).collect()
}

fn damaged() -> Failure {
    Failure::Damaged("a stored conversation cannot be read".into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::base::rng::Rng;
    use crate::store::db::{Db, read_session};
    use std::time::Duration;

    const BUSY: Duration = Duration::from_secs(5);

    fn message(text: &str) -> Vec<u8> {
        [br#"{"role":"user","content":""#, text.as_bytes(), b"\"}"].concat()
    }

    fn image(letter: &str) -> Vec<u8> {
        let url = format!("data:image/png;base64,{}", letter.repeat(IMAGE_BYTES_MIN));
        format!(r#"{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}"#)
            .into_bytes()
    }

    fn row(number: u64, thread: &Thread) -> SessionRow {
        SessionRow {
            number,
            owner: Principal::parse("00000000000000ff").filter(|_| number % 2 == 0),
            id: format!("s{number}").into(),
            created_ms: 5,
            updated_ms: 10 + number,
            messages: thread.len(),
            tokens: thread.tokens(),
            bytes: thread.bytes(),
        }
    }

    /// One store of conversations, and what it should hold.
    struct Disk {
        folder: tempfile::TempDir,
        db: Db,
        kept: BTreeMap<u64, (Thread, Vec<usize>)>,
    }

    impl Disk {
        fn new() -> Disk {
            let folder = tempfile::tempdir().expect("a folder");
            let db = Db::open(&folder.path().join("freeway.db"), BUSY).expect("opened");
            Disk { folder, db, kept: BTreeMap::new() }
        }

        /// Makes of a conversation its first `from` messages and these, and writes it.
        fn write(&mut self, number: u64, keep: usize, fresh: &[Vec<u8>]) {
            let (thread, parts) = self.kept.entry(number).or_default();
            thread.truncate(keep);
            fresh.iter().for_each(|raw| thread.push(raw, 1_000 + thread.len() as u64));
            let from = parts.iter().rev().copied().find(|end| *end <= keep).unwrap_or(0);
            parts.retain(|end| *end <= from);
            parts.push(thread.len());
            let change =
                SessionChange::Changed { row: row(number, thread), from, thread: Arc::new(thread.clone()) };
            self.db.write(&BTreeMap::new(), [], &[change]).expect("written");
        }

        fn remove(&mut self, number: u64) {
            self.kept.remove(&number);
            self.db.write(&BTreeMap::new(), [], &[SessionChange::Removed(number)]).expect("written");
        }

        #[track_caller]
        fn check(&self, images: usize) {
            let path = self.folder.path().join("freeway.db");
            let rows = self.db.sessions().expect("read");
            let expected: Vec<SessionRow> =
                self.kept.iter().map(|(number, (thread, _))| row(*number, thread)).collect();
            assert_eq!(rows, expected);
            for (number, (thread, parts)) in &self.kept {
                let stored = read_session(&path, *number, BUSY).expect("read").expect("it is there");
                assert_eq!((&stored.thread, &stored.parts), (thread, parts), "session {number}");
            }
            assert_eq!(self.db.count("image"), images);
        }
    }

    #[test]
    fn w13_conversations_come_back_as_they_were() {
        let mut disk = Disk::new();
        let odd =
            br#"{ "content" : "h\u0069 \"data:", "role":"user","zz":[1e2, 9007199254740993] }"#.to_vec();
        disk.write(1, 0, &[odd, message("two"), image("a"), message("漢字 😀")]);
        disk.write(2, 0, &[message("other"), image("a")]);
        disk.check(1);
        disk.write(1, 4, &[message("five")]);
        disk.check(1);
        // What is changed in the middle of a part begins a part of its own.
        disk.write(1, 2, &[message("three")]);
        disk.check(1);
        disk.write(1, 0, &[message("anew"), image("b")]);
        disk.check(2);
        disk.remove(2);
        disk.check(1);
        disk.remove(1);
        disk.remove(77);
        disk.check(0);
        assert!(read_session(&disk.folder.path().join("freeway.db"), 1, BUSY).expect("read").is_none());
    }

    #[test]
    fn any_changes_leave_what_they_say() {
        for seed in 0..20 {
            let mut rng = Rng::seeded(seed);
            let mut disk = Disk::new();
            for _ in 0..25 {
                let number = 1 + rng.below(3) as u64;
                let length = disk.kept.get(&number).map_or(0, |(thread, _)| thread.len());
                if rng.below(8) == 0 {
                    disk.remove(number);
                    continue;
                }
                let keep = if rng.below(2) == 0 { length } else { rng.below(length + 1) };
                let fresh: Vec<Vec<u8>> = (0..1 + rng.below(3))
                    .map(|_| match rng.below(4) {
                        0 => image(["a", "b", "c"][rng.below(3)]),
                        n => message(&"text ".repeat(n * 40)),
                    })
                    .collect();
                disk.write(number, keep, &fresh);
            }
            let mut images = std::collections::BTreeSet::new();
            for (thread, _) in disk.kept.values() {
                let texts =
                    (0..thread.len()).map(|at| thread.message(at)).filter(|raw| raw.len() > IMAGE_BYTES_MIN);
                images.extend(
                    texts.filter(|raw| raw.windows(5).any(|part| part == b"data:")).map(<[u8]>::to_vec),
                );
            }
            disk.check(images.len());
        }
    }

    #[test]
    fn images_are_long_data_urls_and_nothing_else() {
        let long = "A".repeat(IMAGE_BYTES_MIN);
        let check = |text: String, expected: usize| {
            assert_eq!(images(text.as_bytes()).len(), expected, "{:.60}", text)
        };
        check(format!(r#"{{"url":"data:image/png;base64,{long}"}}"#), 1);
        check(format!(r#"{{"url":"data:a{long}","b":"data:b{long}"}}"#), 2);
        check(r#"{"url":"data:image/png;base64,AAAA"}"#.into(), 0);
        check(format!(r#"{{"content":"he said \"data:{long}\""}}"#), 0);
        check(format!(r#"{{"content":"data:{long}\n"}}"#), 0);
        check(format!(r#"{{"content":"data:{long}"#), 0);
        check("".into(), 0);
    }

    #[test]
    fn a_damaged_part_is_told() {
        let mut disk = Disk::new();
        disk.write(1, 0, &[message("a"), image("a")]);
        disk.db.run("DELETE FROM image");
        let path = disk.folder.path().join("freeway.db");
        assert!(matches!(read_session(&path, 1, BUSY), Err(Failure::Damaged(_))));
        disk.db.run("UPDATE session_part SET data = x'00ff00'");
        assert!(matches!(read_session(&path, 1, BUSY), Err(Failure::Damaged(_))));
    }
}
