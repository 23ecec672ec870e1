//! Answers on the disk: one file that only grows at its end, so that each byte is written once and a memory card is
//! spared. A database would write it twice, and its index many times more.
//!
//! A body knows where it lies, in memory or in the file, and whoever holds it can read it without asking anybody. One that
//! nobody holds any more is dead, and the file is written anew without the dead when they are the larger part. Every
//! record has a checksum of its own: what a power cut or a worn card has damaged is left out, and costs nothing else.
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;

use flate2::Crc;
use parking_lot::Mutex;

use crate::base::clock;

/// How the file begins; the digit counts up with the format.
const MAGIC: &[u8; 8] = b"fwshelf1";
/// How a record begins. UTF-8 never has these bytes, so no text of an answer looks like it.
const MARK: [u8; 4] = [0xff, 0xfe, b'F', b'R'];
/// Mark, checksum of the head, checksum of the body, length of the body, length of the facts, kind, nothing, key.
const HEAD_BYTES: usize = 52;
/// Facts longer than this are not written.
const FACTS_BYTES_MAX: usize = 4_096;
/// What is read of a record at first: enough for its head and nearly all facts.
const LOOK_BYTES: usize = 512;
/// Records are written in pieces of about this size.
const WRITE_BYTES: usize = 256 * 1024;
/// How much is looked through at once for the next record after a damaged one.
const SEEK_BYTES: usize = 64 * 1024;
/// A smaller file is not worth being written anew.
const TIDY_BYTES_MIN: u64 = 1 << 20;
/// Records read back at most.
const ITEMS_MAX: usize = 2_000_000;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole answer.
    Answer = 1,
    /// What a question means, as a vector.
    Vector = 2,
}

/// One thing on the shelf.
#[derive(Clone, Debug)]
pub struct Item {
    pub kind: Kind,
    pub key: [u8; 32],
    /// What its owner has to know of it, as its owner writes it.
    pub facts: Vec<u8>,
    pub body: Arc<Body>,
}

impl Item {
    /// About what it takes in memory while its body is there.
    pub fn weight(&self) -> usize {
        self.body.size() + self.facts.len() + HEAD_BYTES
    }
}

/// Bytes, wherever they lie.
#[derive(Debug)]
pub struct Body {
    bytes: u32,
    place: Mutex<Place>,
}

#[derive(Clone, Debug)]
enum Place {
    Memory(Arc<[u8]>),
    /// In a file, in the record that begins at `at`.
    File {
        file: Arc<File>,
        at: u64,
        facts_bytes: u16,
        crc: u32,
    },
    Nowhere,
}

impl Body {
    /// A body in memory.
    pub fn new(bytes: Arc<[u8]>) -> Arc<Body> {
        Arc::new(Body { bytes: bytes.len() as u32, place: Mutex::new(Place::Memory(bytes)) })
    }

    /// How long it is.
    pub fn size(&self) -> usize {
        self.bytes as usize
    }

    /// Its bytes; `None` when they were lost. What lies in the file is nearly always in the system's memory, too.
    pub fn read(&self) -> Option<Arc<[u8]>> {
        let place = self.place.lock().clone();
        match place {
            Place::Memory(bytes) => Some(bytes),
            Place::Nowhere => None,
            Place::File { file, at, facts_bytes, crc } => {
                let mut bytes = vec![0; self.size()];
                let from = at + HEAD_BYTES as u64 + u64::from(facts_bytes);
                let good = file.read_exact_at(&mut bytes, from).is_ok() && crc_of(&[&bytes]) == crc;
                good.then(|| bytes.into())
            }
        }
    }

    /// Lets go of bytes that can be written nowhere.
    pub fn lose(&self) {
        *self.place.lock() = Place::Nowhere;
    }
}

fn crc_of(parts: &[&[u8]]) -> u32 {
    let mut crc = Crc::new();
    parts.iter().for_each(|part| crc.update(part));
    crc.sum()
}

/// Items on their way to the shelf. Beyond the first bound they are written early; beyond the second the oldest are
/// lost, because the disk does not take them and memory is not for keeping them all.
const BATCH_BYTES: usize = 1 << 20;
const HELD_BYTES_MAX: usize = 8 << 20;

/// Items that wait for the writer.
#[derive(Debug, Default)]
pub struct Unshelved {
    items: VecDeque<Item>,
    bytes: usize,
    since: Option<Instant>,
}

impl Unshelved {
    /// Adds one; true when it is time to write.
    pub fn push(&mut self, item: Item) -> bool {
        let before = self.bytes;
        self.bytes += item.weight();
        self.items.push_back(item);
        self.since.get_or_insert_with(clock::instant);
        self.lose_excess();
        before < BATCH_BYTES && self.bytes >= BATCH_BYTES
    }

    /// Whether so much waits that it should be written now.
    pub fn is_large(&self) -> bool {
        self.bytes >= BATCH_BYTES
    }

    /// When the first of them came.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }

    /// All of them, oldest first.
    pub fn items(&mut self) -> &[Item] {
        self.items.make_contiguous()
    }

    /// Puts back what could not be written.
    pub fn put_back(&mut self, taken: Unshelved) {
        for item in taken.items.into_iter().rev() {
            self.bytes += item.weight();
            self.items.push_front(item);
        }
        self.since = taken.since.or(self.since);
        self.lose_excess();
    }

    fn lose_excess(&mut self) {
        while self.bytes > HELD_BYTES_MAX {
            let Some(oldest) = self.items.pop_front() else { break };
            self.bytes -= oldest.weight();
            oldest.body.lose();
        }
    }
}

/// Takes what earlier runs left on the shelf.
pub type Unpack = Box<dyn FnOnce(Vec<Item>) + Send>;

/// The head of a record.
#[derive(Clone, Copy)]
struct Head {
    kind: Kind,
    key: [u8; 32],
    body_bytes: u32,
    body_crc: u32,
    facts_bytes: u16,
}

impl Head {
    fn write(&self, facts: &[u8]) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&MARK);
        head[8..12].copy_from_slice(&self.body_crc.to_le_bytes());
        head[12..16].copy_from_slice(&self.body_bytes.to_le_bytes());
        head[16..18].copy_from_slice(&self.facts_bytes.to_le_bytes());
        head[18] = self.kind as u8;
        head[20..].copy_from_slice(&self.key);
        let crc = crc_of(&[&head[8..], facts]);
        head[4..8].copy_from_slice(&crc.to_le_bytes());
        head
    }

    /// The head and the facts at the front of `bytes`; `None` when they are damaged, cut off, or of another version.
    fn read(bytes: &[u8]) -> Option<(Head, &[u8])> {
        let head = bytes.get(..HEAD_BYTES)?;
        let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let facts_bytes = u16::from_le_bytes(head.get(16..18)?.try_into().ok()?);
        let facts = bytes.get(HEAD_BYTES..HEAD_BYTES + usize::from(facts_bytes))?;
        let kind = match head.get(18)? {
            1 => Kind::Answer,
            2 => Kind::Vector,
            _ => return None,
        };
        let good = head.starts_with(&MARK) && number(4)? == crc_of(&[head.get(8..)?, facts]);
        let key = head.get(20..)?.try_into().ok()?;
        good.then_some((
            Head { kind, key, body_bytes: number(12)?, body_crc: number(8)?, facts_bytes },
            facts,
        ))
    }

    fn record_bytes(&self) -> u64 {
        HEAD_BYTES as u64 + u64::from(self.facts_bytes) + u64::from(self.body_bytes)
    }
}

/// The file, as its one writer has it.
#[derive(Debug)]
pub struct Shelf {
    path: PathBuf,
    /// `None` until it is needed.
    open: Option<Open>,
    /// What the file held when it was opened, until somebody asks.
    found: Vec<Item>,
}

#[derive(Debug)]
struct Open {
    file: Arc<File>,
    /// Where the next record goes.
    end: u64,
    /// Every body in the file, those that nobody holds any more among them.
    bodies: Vec<Weak<Body>>,
}

impl Shelf {
    /// A shelf at `path`, which is not looked at before it is needed.
    pub fn new(path: PathBuf) -> Shelf {
        Shelf { path, open: None, found: Vec::new() }
    }

    /// What earlier runs left, oldest first. Given once: what is not held on to is dead.
    pub fn take_found(&mut self) -> io::Result<Vec<Item>> {
        self.opened()?;
        Ok(std::mem::take(&mut self.found))
    }

    /// Appends items. Those that were written lie in the file from then on, and no longer in memory.
    pub fn append(&mut self, items: &[Item]) -> io::Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        let open = self.opened()?;
        let mut run = Run::new(Arc::clone(&open.file), open.end);
        let written = items.iter().try_for_each(|item| {
            // One that nobody holds any more, or that was lost, need not be written.
            let held = Arc::strong_count(&item.body) > 1 && item.facts.len() <= FACTS_BYTES_MAX;
            item.body.read().filter(|_| held).map_or(Ok(()), |bytes| run.add(item, &bytes))
        });
        let written = written.and_then(|()| run.flush());
        // What was written before a failure is there.
        open.end = run.end;
        open.bodies.append(&mut run.written);
        written
    }

    /// Writes the file anew without the dead if they are the larger part of it.
    pub fn tidy(&mut self) -> io::Result<()> {
        let fresh_path = self.path.with_extension("new");
        let Some(open) = &mut self.open else { return Ok(()) };
        open.bodies.retain(|body| body.strong_count() > 0);
        let live: u64 = open.bodies.iter().filter_map(Weak::upgrade).map(|body| body.size() as u64).sum();
        if open.end < TIDY_BYTES_MIN || live * 2 > open.end {
            return Ok(());
        }
        // Bodies may lie in one that could not take its place. It is gone only when they are.
        let _ = fs::remove_file(&fresh_path);
        let file = create(&fresh_path)?;
        let mut run = Run::new(Arc::clone(&file), MAGIC.len() as u64);
        for body in open.bodies.iter().filter_map(Weak::upgrade) {
            let place = body.place.lock().clone();
            let Place::File { file, at, .. } = place else { continue };
            // What has become unreadable is found to be so by whoever asks for it.
            let Some((head, facts)) = read_head(&file, at) else { continue };
            let Some(bytes) = body.read() else { continue };
            run.add(&Item { kind: head.kind, key: head.key, facts, body }, &bytes)?;
        }
        run.flush()?;
        // Before the name is there, the content must be.
        file.sync_data()?;
        fs::rename(&fresh_path, &self.path)?;
        *open = Open { file, end: run.end, bodies: run.written };
        Ok(())
    }

    /// Forgets everything. Who still reads from the old file may do so.
    pub fn clear(&mut self) -> io::Result<()> {
        (self.open, self.found) = (None, Vec::new());
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn opened(&mut self) -> io::Result<&mut Open> {
        if self.open.is_none() {
            let (open, found) = match OpenOptions::new().read(true).write(true).open(&self.path) {
                Ok(file) => scan(Arc::new(file))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => (None, Vec::new()),
                Err(error) => return Err(error),
            };
            self.found = found;
            self.open = match open {
                Some(open) => Some(open),
                None => {
                    let file = create(&self.path)?;
                    Some(Open { file, end: MAGIC.len() as u64, bodies: Vec::new() })
                }
            };
        }
        Ok(self.open.as_mut().expect("it was opened just now"))
    }
}

/// A new file with nothing in it, for its owner only.
fn create(path: &PathBuf) -> io::Result<Arc<File>> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all_at(MAGIC, 0)?;
    Ok(Arc::new(file))
}

/// Records on their way into a file.
struct Run {
    file: Arc<File>,
    /// Where the buffer goes.
    end: u64,
    buffer: Vec<u8>,
    /// Bodies of the buffer, and where they will lie.
    waiting: Vec<(Arc<Body>, Place)>,
    written: Vec<Weak<Body>>,
}

impl Run {
    fn new(file: Arc<File>, end: u64) -> Run {
        Run { file, end, buffer: Vec::new(), waiting: Vec::new(), written: Vec::new() }
    }

    fn add(&mut self, item: &Item, bytes: &[u8]) -> io::Result<()> {
        let Item { kind, key, facts, body } = item;
        let crc = crc_of(&[bytes]);
        let facts_bytes = facts.len() as u16;
        let head =
            Head { kind: *kind, key: *key, body_bytes: bytes.len() as u32, body_crc: crc, facts_bytes };
        let at = self.end + self.buffer.len() as u64;
        for part in [&head.write(facts)[..], facts, bytes] {
            self.buffer.extend_from_slice(part);
        }
        let file = Arc::clone(&self.file);
        self.waiting.push((Arc::clone(body), Place::File { file, at, facts_bytes, crc }));
        if self.buffer.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        // At a place and not at the end: what an earlier failure left half written is written over.
        self.file.write_all_at(&self.buffer, self.end)?;
        self.end += self.buffer.len() as u64;
        self.buffer.clear();
        for (body, place) in self.waiting.drain(..) {
            *body.place.lock() = place;
            self.written.push(Arc::downgrade(&body));
        }
        Ok(())
    }
}

/// Finds all good records of a file, and what they are; `None` when it is none of ours.
fn scan(file: Arc<File>) -> io::Result<(Option<Open>, Vec<Item>)> {
    let length = file.metadata()?.len();
    let mut magic = [0; MAGIC.len()];
    if file.read_exact_at(&mut magic, 0).is_err() || magic != *MAGIC {
        return Ok((None, Vec::new()));
    }
    let (mut at, mut end) = (MAGIC.len() as u64, MAGIC.len() as u64);
    let mut found = Vec::new();
    while at < length && found.len() < ITEMS_MAX {
        let whole = read_head(&file, at).filter(|(head, _)| at + head.record_bytes() <= length);
        let Some((head, facts)) = whole else {
            match next_mark(&file, at + 1)? {
                Some(next) => at = next,
                None => break,
            }
            continue;
        };
        let place =
            Place::File { file: Arc::clone(&file), at, facts_bytes: head.facts_bytes, crc: head.body_crc };
        let body = Arc::new(Body { bytes: head.body_bytes, place: Mutex::new(place) });
        found.push(Item { kind: head.kind, key: head.key, facts, body });
        at += head.record_bytes();
        end = at;
    }
    let bodies = found.iter().map(|item| Arc::downgrade(&item.body)).collect();
    Ok((Some(Open { file, end, bodies }), found))
}

fn read_head(file: &File, at: u64) -> Option<(Head, Vec<u8>)> {
    let mut look = [0; LOOK_BYTES];
    let seen = read_some(file, &mut look, at).ok()?;
    if let Some((head, facts)) = Head::read(look.get(..seen)?) {
        return Some((head, facts.to_vec()));
    }
    let mut long = vec![0; HEAD_BYTES + FACTS_BYTES_MAX];
    let seen = read_some(file, &mut long, at).ok().filter(|_| look.starts_with(&MARK))?;
    Head::read(long.get(..seen)?).map(|(head, facts)| (head, facts.to_vec()))
}

/// Reads what there is.
fn read_some(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut seen = 0;
    while let Some(rest) = buffer.get_mut(seen..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + seen as u64) {
            Ok(0) => break,
            Ok(count) => seen += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(seen)
}

/// Where the next record may begin, from `at` on.
fn next_mark(file: &File, mut at: u64) -> io::Result<Option<u64>> {
    let mut window = vec![0; SEEK_BYTES];
    loop {
        let seen = read_some(file, &mut window, at)?;
        let bytes = window.get(..seen).unwrap_or_default();
        if let Some(found) = memchr::memmem::find(bytes, &MARK) {
            return Ok(Some(at + found as u64));
        }
        if seen < SEEK_BYTES {
            return Ok(None);
        }
        at += (seen - MARK.len() + 1) as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn item(number: u32, bytes: usize) -> Item {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        let body = Body::new(vec![number as u8; bytes].into());
        Item { kind: Kind::Answer, key, facts: format!("facts {number}").into_bytes(), body }
    }

    fn shelf(folder: &tempfile::TempDir) -> Shelf {
        Shelf::new(folder.path().join("answers"))
    }

    fn numbers(items: &[Item]) -> Vec<u32> {
        items.iter().map(|item| u32::from_le_bytes(item.key[..4].try_into().expect("four"))).collect()
    }

    fn is_in_memory(body: &Body) -> bool {
        matches!(*body.place.lock(), Place::Memory(_))
    }

    #[test]
    fn what_is_put_there_is_found_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let items = [item(1, 10), item(2, 0), item(3, 700_000), item(4, 10)];
        let held: Vec<_> = items.iter().map(|item| Arc::clone(&item.body)).collect();
        let mut first = shelf(&folder);
        assert!(first.take_found().expect("opened").is_empty());
        first.append(&items[..2]).expect("written");
        first.append(&items[2..]).expect("written");
        assert!(held.iter().all(|body| !is_in_memory(body)), "the bytes are no longer in memory");
        assert_eq!(held[2].read().expect("read").len(), 700_000);
        let mode = fs::metadata(folder.path().join("answers")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut second = shelf(&folder);
        let found = second.take_found().expect("read");
        assert_eq!(numbers(&found), [1, 2, 3, 4]);
        assert_eq!((found[0].facts.as_slice(), found[0].kind), (&b"facts 1"[..], Kind::Answer));
        assert_eq!(found[3].body.read().expect("read"), vec![4; 10].into());
        assert!(second.take_found().expect("open").is_empty(), "given once");
    }

    #[test]
    fn what_nobody_holds_any_more_is_not_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let (kept, dropped, lost) = (item(1, 5), item(2, 5), item(3, 5));
        let held = [Arc::clone(&kept.body), Arc::clone(&lost.body)];
        lost.body.lose();
        shelf(&folder).append(&[kept, dropped, lost]).expect("written");
        assert_eq!(numbers(&shelf(&folder).take_found().expect("read")), [1]);
        assert_eq!((held[0].read().map(|bytes| bytes.len()), held[1].read()), (Some(5), None));
    }

    #[test]
    fn what_was_damaged_is_left_out_and_costs_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("answers");
        let items: Vec<Item> = (1..=5).map(|number| item(number, 100)).collect();
        let _held: Vec<_> = items.iter().map(|item| Arc::clone(&item.body)).collect();
        shelf(&folder).append(&items).expect("written");
        let good = fs::read(&path).expect("read");
        let record = (good.len() - MAGIC.len()) / 5;
        let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            fs::write(&path, bytes).expect("written");
            let found = shelf(&folder).take_found().expect("read");
            (numbers(&found), found.iter().filter(|item| item.body.read().is_none()).count())
        };
        let start_of = |number: usize| MAGIC.len() + (number - 1) * record;
        assert_eq!(damaged(&|bytes| bytes[start_of(2)] ^= 1), (vec![1, 3, 4, 5], 0));
        assert_eq!(damaged(&|bytes| bytes[start_of(2) + 13] ^= 1), (vec![1, 3, 4, 5], 0), "its length");
        assert_eq!(damaged(&|bytes| bytes[start_of(2) + 55] ^= 1), (vec![1, 3, 4, 5], 0), "its facts");
        assert_eq!(damaged(&|bytes| bytes[start_of(2) + 100] ^= 1), (vec![1, 2, 3, 4, 5], 1), "its body");
        assert_eq!(damaged(&|bytes| bytes.truncate(start_of(5) + 60)), (vec![1, 2, 3, 4], 0));
        assert_eq!(damaged(&|bytes| bytes.truncate(start_of(5) + 3)), (vec![1, 2, 3, 4], 0));
        assert_eq!(damaged(&|bytes| bytes[0] ^= 1), (vec![], 0), "none of ours");
        assert_eq!(damaged(&|bytes| bytes.clear()), (vec![], 0));
    }

    #[test]
    fn a_torn_end_is_written_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("answers");
        let items = [item(1, 50), item(2, 50), item(3, 9)];
        let _held: Vec<_> = items.iter().map(|item| Arc::clone(&item.body)).collect();
        shelf(&folder).append(&items[..2]).expect("written");
        let bytes = fs::read(&path).expect("read");
        fs::write(&path, &bytes[..bytes.len() - 7]).expect("written");
        shelf(&folder).append(&items[2..]).expect("written");
        assert_eq!(numbers(&shelf(&folder).take_found().expect("read")), [1, 3]);
    }

    #[test]
    fn the_dead_are_left_behind_when_they_are_the_larger_part() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("answers");
        let size = || fs::metadata(&path).expect("there").len();
        let mut shelf = shelf(&folder);
        let mut held: Vec<Arc<Body>> = Vec::new();
        for number in 0..30 {
            let item = item(number, 100_000);
            held.push(Arc::clone(&item.body));
            shelf.append(&[item]).expect("written");
        }
        held.drain(..5);
        shelf.tidy().expect("looked at");
        assert!(size() > 3_000_000, "most of them live");
        held.drain(..15);
        shelf.tidy().expect("written anew");
        assert!(size() < 1_100_000);
        for (number, body) in held.iter().enumerate() {
            assert_eq!(body.read().expect("it was moved"), vec![number as u8 + 20; 100_000].into());
        }
        let last = item(99, 3);
        let _held = Arc::clone(&last.body);
        shelf.append(&[last]).expect("written");
        let mut after: Vec<u32> = (20..30).collect();
        after.push(99);
        assert_eq!(numbers(&Shelf::new(path.clone()).take_found().expect("read")), after);
        assert!(!path.with_extension("new").exists());
    }

    #[test]
    fn everything_can_be_forgotten_while_somebody_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut shelf = shelf(&folder);
        let first = item(1, 20);
        let body = Arc::clone(&first.body);
        shelf.append(&[first]).expect("written");
        shelf.clear().expect("removed");
        assert_eq!(body.read().map(|bytes| bytes.len()), Some(20));
        let second = item(2, 20);
        let _held = Arc::clone(&second.body);
        shelf.append(&[second]).expect("written");
        assert_eq!(numbers(&Shelf::new(folder.path().join("answers")).take_found().expect("read")), [2]);
    }
}
