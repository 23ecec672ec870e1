//! What outlives the process: counters, benches and request rows in one SQLite file, written by one thread.
//!
//! A kill costs at most ten seconds of counters and a minute of rows, a power cut a minute of both; neither damages
//! anything. The counters between two writes lie in the memory file system, where a kill does not reach.
//!
//! Requests hand in rows and never wait: the list of those not written yet is bounded, and when it is full rows are
//! dropped and counted. State is not handed in but fetched by the writer, so it cannot be dropped. When the disk is
//! full, read-only or damaged the gateway goes on from memory, and [`Store::health`] says so.
pub mod analytics;
pub mod copy;
mod db;
pub mod figures;
mod folder;
pub mod glance;
#[cfg(test)]
mod history_tests;
mod journal;
mod names;
pub mod page;
mod reader;
mod rollup;
pub mod row;
mod schema;
pub mod sessions;
pub mod shelf;
pub mod span;
pub mod state;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use parking_lot::{Condvar, Mutex};

use crate::base::clock;
use crate::catalog::settings::HistorySettings;
use crate::catalog::{Issue, IssueLevel};
pub use db::StateChanges;
use figures::{Sample, Totals};
use journal::MEMORY_FOLDER;
use reader::Reader;
pub use reader::{NoView, Seen};
pub use row::{Row, RowCache, RowKind, RowOutcome, RowRefit};
use sessions::{SessionRow, SessionSource, Stored};
use shelf::{Unpack, Unshelved};
use writer::{Message, Pace, ROWS_BATCH, ROWS_HELD_MAX, Waiting, Writer};

/// The database, in the data folder.
pub const DATABASE: &str = "freeway.db";
/// Kept answers.
const SHELF: &str = "answers.log";
/// An empty database whose lock is held for as long as the process lives; the operating system frees it with the
/// process, however that ends.
const LOCK: &str = "freeway.lock";

/// Messages on their way to the writer.
const MESSAGES_MAX: usize = 64;
/// How long a reader waits for the writer, which may be waiting for the disk.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long somebody waits for everything to be written.
const FLUSH_MAX: Duration = Duration::from_secs(20);

/// How much history is kept. The default holds until the settings are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    pub days: u64,
    pub bytes: u64,
}

impl Default for History {
    fn default() -> History {
        History { days: 90, bytes: 256 << 20 }
    }
}

impl From<HistorySettings> for History {
    fn from(settings: HistorySettings) -> History {
        History { days: settings.days, bytes: settings.mib << 20 }
    }
}

/// Why the data folder cannot be used, so that the gateway must not start.
#[derive(Debug)]
pub enum OpenError {
    /// Another process owns the folder.
    Locked(PathBuf),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Locked(folder) => write!(
                f,
                "another gateway is using the data folder {}; stop it, or set FREEWAY_DATA to another folder",
                folder.display()
            ),
        }
    }
}

impl std::error::Error for OpenError {}

/// What keeps the store from writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    DiskFull,
    ReadOnly,
    /// Somebody else holds a lock on the database.
    Busy,
    /// The file was damaged. It is set aside and a new one begun, so this passes.
    Damaged,
    /// The file was written by a newer version of this program, and is left alone.
    Newer,
    /// Any other failure of the disk or of SQLite.
    Disk,
    /// The writer thread failed twice; nothing is saved any more. The process should be restarted.
    WriterGone,
}

impl Trouble {
    /// Its word for `/readyz`.
    pub const fn code(self) -> &'static str {
        match self {
            Trouble::DiskFull => "disk_full",
            Trouble::ReadOnly => "disk_read_only",
            Trouble::Busy => "database_busy",
            Trouble::Damaged => "database_damaged",
            Trouble::Newer => "database_newer",
            Trouble::Disk => "disk_error",
            Trouble::WriterGone => "writer_gone",
        }
    }

    /// What the owner can do.
    pub const fn hint(self) -> &'static str {
        match self {
            Trouble::DiskFull => "free some space; saving resumes by itself",
            Trouble::ReadOnly => {
                "make the data folder writable for the user that runs the gateway; saving resumes by itself"
            }
            Trouble::Busy => "end the program that holds a lock on freeway.db; saving resumes by itself",
            Trouble::Damaged => "nothing to do: it was set aside and a new one begun",
            Trouble::Newer => "install that version again, or move freeway.db away",
            Trouble::Disk => "look at the system log for disk errors; saving is tried again and again",
            Trouble::WriterGone => "restart the gateway",
        }
    }
}

/// How the store is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// What keeps it from writing now, and a sentence for the owner.
    pub trouble: Option<(Trouble, String)>,
    /// Rows that were never written, since the start.
    pub rows_dropped: u64,
    /// Rows and transactions written since the start.
    pub rows_written: u64,
    pub writes: u64,
}

/// Shared between the writer and everybody else.
#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Told whenever rows have arrived in the database, or came back from it.
    arrived: Condvar,
    history: Mutex<History>,
    unshelved: Mutex<Unshelved>,
    trouble: Mutex<Option<(Trouble, String)>>,
    rows_dropped: AtomicU64,
    rows_written: AtomicU64,
    writes: AtomicU64,
}

impl Shared {
    /// Rows are no longer on their way.
    fn wrote(&self) {
        let mut waiting = self.waiting.lock();
        waiting.writing = false;
        waiting.written += 1;
        drop(waiting);
        self.arrived.notify_all();
    }
}

/// How much of the state the writer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What changed since the last time.
    Changes,
    /// All of it, because the file is new.
    Everything,
}

/// Where the writer gets state from. Called on the writer's thread about every ten seconds; it should take the lock on
/// live state only briefly, and return nothing when nothing changed.
pub type StateSource = Box<dyn FnMut(Extent) -> StateChanges + Send>;

/// The handle on the writer.
#[derive(Debug)]
pub struct Store {
    messages: Sender<Message>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    path: PathBuf,
    busy: Duration,
    reader: Reader,
}

/// What of a data folder is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// There is no database: the folder is new, or everything is gone.
    Everything,
    /// The database was damaged and has been set aside.
    Database,
}

/// Puts back what was lost before the store goes on without it; what to tell about it, if it did. Called while the
/// folder is ours and nothing of it is open.
pub type Rescue<'r> = &'r dyn Fn(Lost) -> Option<Issue>;

/// The right to a data folder, held until it is dropped.
#[derive(Debug)]
pub struct Claim(#[expect(dead_code, reason = "held, never used")] rusqlite::Connection);

/// Claims a data folder for something else than a store.
pub fn claim(folder: &Path) -> Result<Claim, String> {
    folder::lock(&folder.join(LOCK)).map(Claim).map_err(|error| match error.trouble() {
        Trouble::Busy => OpenError::Locked(folder.to_owned()).to_string(),
        _ => format!("the data folder {} cannot be used: {error}", folder.display()),
    })
}

/// Gives a claim back without leaving a trace.
pub fn unclaim(claim: Claim, folder: &Path) {
    drop(claim);
    // At worst an empty file stays.
    let _ = std::fs::remove_file(folder.join(LOCK));
}

/// Whether a data folder holds no database.
pub fn is_new(folder: &Path) -> bool {
    !folder.join(DATABASE).exists()
}

/// A store as it was found.
#[derive(Debug)]
pub struct Opened {
    pub store: Store,
    /// What was saved, for [`state::restore`].
    pub state: BTreeMap<String, String>,
    /// Conversations that were saved, without their text.
    pub sessions: Vec<SessionRow>,
    /// What went wrong and was got over.
    pub issues: Vec<Issue>,
}

impl Store {
    /// Opens the data folder and starts the writer. A disk that cannot be used is an issue and not an error: then the
    /// store begins empty, and tries again by itself. Only a folder that another process owns is an error.
    pub fn open(folder: &Path) -> Result<Opened, OpenError> {
        Store::open_or_rescue(folder, &|_| None)
    }

    /// [`Store::open`], where what was lost may come from elsewhere.
    pub fn open_or_rescue(folder: &Path, rescue: Rescue<'_>) -> Result<Opened, OpenError> {
        Store::open_at(folder, Path::new(MEMORY_FOLDER), Pace::USUAL, rescue)
    }

    fn open_at(folder: &Path, memory: &Path, pace: Pace, rescue: Rescue<'_>) -> Result<Opened, OpenError> {
        let mut issues = Vec::new();
        let mut rescued = Vec::new();
        let mut note = |level, message: String| {
            issues.push(Issue { file: DATABASE.into(), provider: None, level, message });
        };
        if let Err(error) = folder::prepare_folder(folder) {
            note(IssueLevel::Error, format!("the data folder {} cannot be used: {error}", folder.display()));
        }
        let lock = match folder::lock(&folder.join(LOCK)) {
            Ok(lock) => Some(lock),
            Err(error) if error.trouble() == Trouble::Busy => {
                return Err(OpenError::Locked(folder.to_owned()));
            }
            // A folder that cannot be written cannot be owned either.
            Err(_) => None,
        };
        if is_new(folder) && lock.is_some() {
            rescued.extend(rescue(Lost::Everything));
        }
        let path = folder.join(DATABASE);
        let shared = Arc::new(Shared::default());
        let reader = Reader::new(&path, Arc::clone(&shared));
        let mut writer = Writer::new(path.clone(), memory.to_owned(), pace, Arc::clone(&shared), lock);
        let state = writer.open(&mut || {
            let before = rescued.len();
            rescued.extend(rescue(Lost::Database));
            rescued.len() > before
        });
        let sessions = writer.session_rows();
        if let Some(found) = writer.take_damage() {
            note(IssueLevel::Warning, found);
        }
        if let Some((_, message)) = shared.trouble.lock().as_ref() {
            note(IssueLevel::Error, message.clone());
        }
        issues.extend(rescued);
        let (messages, inbox) = bounded(MESSAGES_MAX);
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer.run(&inbox))
            .expect("the operating system starts a thread at start-up");
        let thread = Mutex::new(Some(thread));
        let store = Store { messages, shared, thread, path, busy: pace.busy, reader };
        Ok(Opened { store, state, sessions, issues })
    }

    /// Tells where the writer gets the state that it saves. Until then it saves rows only.
    pub fn save_from(&self, source: StateSource) {
        // A writer that is gone is told by its health.
        let _ = self.messages.send(Message::Source(source));
    }

    /// Tells where the writer gets conversations from.
    pub fn save_sessions_from(&self, source: Box<dyn SessionSource>) {
        // A writer that is gone is told by its health.
        let _ = self.messages.send(Message::Sessions(source));
    }

    /// Much text waits for the disk. Does not wait.
    pub fn much_waits(&self) {
        // When the channel is full, the writer has reasons enough to look.
        let _ = self.messages.try_send(Message::Batch);
    }

    /// Reads a conversation from the disk, on the thread that asks; `None` when it is not there. The error is for the
    /// owner.
    pub fn session(&self, number: u64) -> Result<Option<Stored>, String> {
        db::read_session(&self.path, number, self.busy).map_err(|error| error.to_string())
    }

    /// Hands in a row. Never waits; a row that finds the list full is dropped and counted.
    pub fn row(&self, row: Row) {
        let row = row.bounded();
        let batch = {
            let mut waiting = self.shared.waiting.lock();
            if waiting.rows.len() >= ROWS_HELD_MAX {
                self.shared.rows_dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            waiting.totals.add(&Totals::of(&Sample::from(&row)));
            waiting.since.get_or_insert_with(clock::instant);
            waiting.rows.push_back(row);
            waiting.rows.len() == ROWS_BATCH
        };
        if batch {
            // When the channel is full, the writer has reasons enough to look.
            let _ = self.messages.try_send(Message::Batch);
        }
    }

    /// Hands in something for the shelf. Never waits; what the disk does not take in time is lost.
    pub fn shelve(&self, item: shelf::Item) {
        let batch = self.shared.unshelved.lock().push(item);
        if batch {
            let _ = self.messages.try_send(Message::Batch);
        }
    }

    /// Has `unpack` called once, on the writer's thread, with what earlier runs left on the shelf; false when the writer
    /// has too much to do to be asked.
    pub fn unpack_shelf(&self, unpack: Unpack) -> bool {
        self.messages.try_send(Message::Unpack(unpack)).is_ok()
    }

    /// Empties the shelf.
    pub fn clear_shelf(&self) {
        // A writer that is gone is told by its health.
        let _ = self.messages.send(Message::ClearShelf);
    }

    /// Brings state to the disk now instead of within a minute, for what an administrator changed. Does not wait.
    pub fn save_soon(&self) {
        let _ = self.messages.try_send(Message::SaveNow);
    }

    /// Brings everything that waits to the disk now, and waits for that; false when it did not come to it in time.
    pub fn flush(&self) -> bool {
        let (reply, answer) = bounded(1);
        self.messages.send_timeout(Message::Flush(reply), FLUSH_MAX).is_ok()
            && answer.recv_timeout(FLUSH_MAX) == Ok(true)
    }

    /// How much history is kept from now on.
    pub fn keep(&self, history: History) {
        let before = std::mem::replace(&mut *self.shared.history.lock(), history);
        if before != history {
            // When the channel is full, the next look at old rows is an hour away at most.
            let _ = self.messages.try_send(Message::Tidy);
        }
    }

    /// Removes entries of saved state that [`state::restore`] had no use for.
    pub fn forget(&self, keys: Vec<String>) {
        if !keys.is_empty() {
            let _ = self.messages.try_send(Message::Forget(keys));
        }
    }

    /// The last rows, newest first, those included that are not written yet. Empty when the writer does not answer.
    pub fn recent(&self, limit: usize) -> Vec<Row> {
        let (reply, answer) = bounded(1);
        match self.messages.send_timeout(Message::Recent { limit, reply }, READ_TIMEOUT) {
            Ok(()) => answer.recv_timeout(READ_TIMEOUT).unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// Lets `look` see everything that was kept, rows included that are not written yet. Waits for a moment when others
    /// look, and does not let anybody look for long.
    pub fn view<T>(&self, look: impl Fn(&Seen) -> Result<T, rusqlite::Error>) -> Result<T, NoView> {
        self.reader.view(look)
    }

    /// How the store is doing.
    pub fn health(&self) -> Health {
        Health {
            trouble: self.shared.trouble.lock().clone(),
            rows_dropped: self.shared.rows_dropped.load(Ordering::Relaxed),
            rows_written: self.shared.rows_written.load(Ordering::Relaxed),
            writes: self.shared.writes.load(Ordering::Relaxed),
        }
    }

    /// Writes what is left, folds the log into the database, gives the folder back. Later calls do nothing.
    pub fn close(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = self.messages.send(Message::Close);
            // A panic of the writer was counted and told when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::row::sample;
    use std::time::Instant;

    use super::*;
    use crate::base::rng::Rng;

    const QUICK: Pace = Pace {
        state_every: Duration::from_millis(20),
        disk_every: Duration::from_millis(40),
        retry_first: Duration::from_millis(10),
        retry_max: Duration::from_millis(50),
        busy: Duration::from_millis(100),
    };

    fn open(folder: &Path) -> Opened {
        // Without a memory folder state goes to the disk every time.
        Store::open_at(folder, Path::new("/nowhere"), QUICK, &|_| None).expect("nobody else has the folder")
    }

    /// Waits for what the writer does on its own thread.
    fn eventually(what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "{what} did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn entry(key: &str, value: &str) -> StateChanges {
        StateChanges::from([(key.to_owned(), Some(value.to_owned()))])
    }

    /// A folder with ten rows and one entry of state, closed as it should be.
    fn used_folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let opened = open(folder.path());
        opened.store.save_from(Box::new(|_| entry("meter:key/acme:0a", "{}")));
        (0..10).for_each(|number| opened.store.row(sample(number)));
        opened.store.close();
        folder
    }

    #[test]
    fn rows_and_state_are_there_after_a_restart() {
        let folder = used_folder();
        let opened = open(folder.path());
        assert_eq!(opened.issues, []);
        assert_eq!(opened.state, BTreeMap::from([("meter:key/acme:0a".to_owned(), "{}".to_owned())]));
        let rows = opened.store.recent(100);
        assert_eq!((rows.len(), rows.first()), (10, Some(&sample(9))));
        opened.store.forget(vec!["meter:key/acme:0a".into()]);
        opened.store.close();
        assert!(open(folder.path()).state.is_empty());
    }

    #[test]
    fn what_was_written_survives_a_kill() {
        let folder = tempfile::tempdir().expect("a folder");
        let opened = open(folder.path());
        opened.store.save_from(Box::new(|_| entry("meter:key/acme:0a", "{}")));
        opened.store.row(sample(1));
        eventually("the first write", || opened.store.health().rows_written == 1);
        // The files as a kill leaves them: the log not folded in.
        let copy = tempfile::tempdir().expect("a folder");
        for file in fs::read_dir(folder.path()).expect("read").flatten() {
            fs::copy(file.path(), copy.path().join(file.file_name())).expect("copied");
        }
        assert!(folder::left_open(&copy.path().join(DATABASE)));
        let found = open(copy.path());
        assert_eq!((found.state.len(), found.store.recent(9).len(), found.issues.len()), (1, 1, 0));
    }

    #[test]
    fn a_clean_end_leaves_one_file() {
        let folder = used_folder();
        assert!(!folder::left_open(&folder.path().join(DATABASE)));
        assert_eq!(fs::metadata(folder.path().join(LOCK)).expect("there").len(), 0);
    }

    #[test]
    fn a_data_folder_has_one_owner() {
        let folder = used_folder();
        let first = open(folder.path());
        let second = Store::open_at(folder.path(), Path::new("/nowhere"), QUICK, &|_| None);
        assert!(matches!(&second, Err(OpenError::Locked(_))));
        assert!(second.expect_err("locked").to_string().contains("FREEWAY_DATA"));
        assert_eq!(first.store.recent(100).len(), 10, "the owner is not disturbed");
        drop(first);
        assert_eq!(open(folder.path()).store.recent(100).len(), 10);
    }

    #[test]
    fn only_the_owner_can_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("deep/data");
        fs::create_dir_all(&data).expect("made");
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).expect("set");
        let opened = open(&data);
        opened.store.row(sample(1));
        eventually("the first write", || opened.store.health().rows_written == 1);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&data), 0o700);
        for file in fs::read_dir(&data).expect("read").flatten() {
            assert_eq!(mode(&file.path()), 0o600, "{:?}", file.file_name());
        }
    }

    /// Case OPS-04: whatever a power cut left, the next start serves.
    #[test]
    fn ops_04_damaged_files_are_set_aside_and_the_store_goes_on() {
        type Damage = fn(&Path);
        let damages: [(&str, Damage); 5] = [
            ("cut to 100 bytes", |path| {
                fs::OpenOptions::new()
                    .write(true)
                    .open(path)
                    .and_then(|file| file.set_len(100))
                    .expect("cut");
            }),
            ("a text", |path| {
                fs::write(path, "this is no database at all, but a rather long text ".repeat(99))
                    .expect("written")
            }),
            ("noise in every page but the first", |path| {
                let mut bytes = fs::read(path).expect("read");
                let mut rng = Rng::seeded(1);
                bytes[1_024..].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
                fs::write(path, bytes).expect("written");
            }),
            ("noise in page 2", |path| {
                let mut bytes = fs::read(path).expect("read");
                let mut rng = Rng::seeded(2);
                bytes[1_024..2_048].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
                fs::write(path, bytes).expect("written");
            }),
            ("noise in the schema", |path| {
                let mut bytes = fs::read(path).expect("read");
                let mut rng = Rng::seeded(3);
                bytes[100..1_024].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
                fs::write(path, bytes).expect("written");
            }),
        ];
        for (what, damage) in damages {
            let folder = used_folder();
            damage(&folder.path().join(DATABASE));
            let opened = open(folder.path());
            opened.store.save_from(Box::new(|_| entry("meter:key/acme:0a", "{}")));
            opened.store.row(sample(77));
            eventually(what, || opened.store.health().rows_written == 1);
            assert_eq!(opened.store.health().trouble, None, "{what}");
            opened.store.close();
            let names: Vec<String> = fs::read_dir(folder.path())
                .expect("read")
                .map(|file| file.expect("read").file_name().into_string().expect("text"))
                .collect();
            assert!(names.iter().any(|name| name.starts_with("freeway.db.damaged-2")), "{what}: {names:?}");
            assert!(
                opened.issues.iter().any(|issue| issue.message.contains("damaged")),
                "{what}: {:?}",
                opened.issues
            );
            let again = open(folder.path());
            assert_eq!((again.store.recent(9).len(), again.state.len()), (1, 1), "{what}");
        }
    }

    #[test]
    fn ops_04_a_damaged_log_costs_only_what_is_in_it() {
        let folder = used_folder();
        fs::write(folder.path().join("freeway.db-wal"), [0x5a; 5_000]).expect("written");
        let opened = open(folder.path());
        assert_eq!((opened.store.recent(100).len(), opened.state.len()), (10, 1));
    }

    #[test]
    fn ops_04_without_a_usable_folder_the_store_serves_from_memory_and_heals() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        fs::write(&data, "a file where the folder should be").expect("written");
        let opened = open(&data);
        assert!(opened.issues.iter().any(|issue| issue.level == IssueLevel::Error));
        opened.store.save_from(Box::new(|extent| match extent {
            Extent::Everything => entry("meter:key/acme:0a", "all"),
            Extent::Changes => StateChanges::new(),
        }));
        opened.store.row(sample(1));
        eventually("the trouble", || {
            opened.store.health().trouble.is_some_and(|(what, _)| what == Trouble::ReadOnly)
        });
        assert_eq!(opened.store.recent(9), [sample(1)]);
        fs::remove_file(&data).expect("removed");
        eventually("the first write", || opened.store.health().rows_written == 1);
        assert_eq!(opened.store.health().trouble, None);
        opened.store.close();
        assert_eq!(open(&data).state.len(), 1, "all state was written");
    }

    /// Case OPS-02: somebody else's transaction delays nobody but the writer, and nothing is lost.
    #[test]
    fn ops_02_a_foreign_lock_shows_and_loses_nothing() {
        let folder = used_folder();
        let opened = open(folder.path());
        let foreign = rusqlite::Connection::open(folder.path().join(DATABASE)).expect("opened");
        foreign.execute_batch("BEGIN IMMEDIATE").expect("locked");
        let started = Instant::now();
        (10..30).for_each(|number| opened.store.row(sample(number)));
        assert!(started.elapsed() < Duration::from_secs(1), "handing in a row does not wait");
        eventually("the trouble", || {
            opened.store.health().trouble.is_some_and(|(what, _)| what == Trouble::Busy)
        });
        foreign.execute_batch("ROLLBACK").expect("unlocked");
        eventually("the rows", || opened.store.health().rows_written == 20);
        assert_eq!(opened.store.health().trouble, None);
        assert_eq!(opened.store.recent(100).len(), 30, "none lost, none twice");
    }

    #[test]
    fn a_full_list_drops_rows_and_counts_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let opened = open(folder.path());
        let (hold, held) = bounded::<()>(0);
        let (entered, busy) = bounded::<()>(1);
        opened.store.save_from(Box::new(move |_| {
            // The writer is busy for as long as the test wants.
            let _ = entered.try_send(());
            let _ = held.recv_timeout(Duration::from_secs(20));
            StateChanges::new()
        }));
        busy.recv_timeout(Duration::from_secs(20)).expect("the writer fetches state");
        let sent = ROWS_HELD_MAX as u64 + 500;
        (0..sent).for_each(|number| opened.store.row(sample(number)));
        assert_eq!(opened.store.health().rows_dropped, 500);
        drop(hold);
        eventually("the rest", || opened.store.health().rows_written == ROWS_HELD_MAX as u64);
    }

    #[test]
    fn a_writer_that_fails_goes_on_once_and_then_says_that_it_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let opened = open(folder.path());
        opened.store.save_from(Box::new(|_| panic!("a fault in the source of state, on purpose")));
        eventually("the end", || {
            opened.store.health().trouble.is_some_and(|(what, _)| what == Trouble::WriterGone)
        });
        opened.store.row(sample(1));
        assert!(opened.store.recent(1).is_empty());
        opened.store.close();
    }
}
