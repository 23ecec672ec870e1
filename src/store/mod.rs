//! What outlives the process: counters, benches and request rows in one SQLite file, written by one thread.
//!
//! Requests hand in rows and never wait: the channel is bounded, and when it is full rows are dropped and counted.
//! State is not sent but fetched by the writer, so it cannot be dropped. When the disk is full, read-only or damaged
//! the gateway goes on from memory, and [`Store::health`] says so.
mod db;
pub mod row;
pub mod state;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, TrySendError, bounded};
use parking_lot::Mutex;

use crate::catalog::{Issue, IssueLevel};
pub use db::StateChanges;
pub use row::{Row, RowKind, RowOutcome};
use writer::{Message, Writer};

const DATABASE: &str = "freeway.db";
/// An empty database whose lock is held for as long as the process lives; the operating system frees it with the
/// process, however that ends.
const LOCK: &str = "freeway.lock";

/// Messages on their way to the writer: rows of a few seconds at a rate that no small box reaches.
const CHANNEL_MAX: usize = 4_096;
/// How long a reader waits for the writer, which may be waiting for the disk.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// How much history is kept.
#[derive(Clone, Copy, Debug)]
pub struct History {
    pub days: u64,
    pub bytes: u64,
}

impl Default for History {
    fn default() -> History {
        History { days: 90, bytes: 256 << 20 }
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
    const fn hint(self) -> &'static str {
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

/// Counters and trouble, shared between the writer and everybody who asks.
#[derive(Debug, Default)]
struct Shared {
    trouble: Mutex<Option<(Trouble, String)>>,
    rows_dropped: AtomicU64,
    rows_written: AtomicU64,
    writes: AtomicU64,
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
}

/// A store as it was found.
#[derive(Debug)]
pub struct Opened {
    pub store: Store,
    /// What was saved, for [`state::restore`].
    pub state: BTreeMap<String, String>,
    /// What went wrong and was got over.
    pub issues: Vec<Issue>,
}

impl Store {
    /// Opens the data folder and starts the writer. A disk that cannot be used is an issue and not an error: then the
    /// store begins empty, and tries again by itself. Only a folder that another process owns is an error.
    pub fn open(folder: &Path, history: History) -> Result<Opened, OpenError> {
        let mut issues = Vec::new();
        let mut note = |level, message: String| {
            issues.push(Issue { file: DATABASE.into(), provider: None, level, message });
        };
        if let Err(error) = db::prepare_folder(folder) {
            note(IssueLevel::Error, format!("the data folder {} cannot be used: {error}", folder.display()));
        }
        let lock = match db::lock(&folder.join(LOCK)) {
            Ok(lock) => Some(lock),
            Err(error) if error.trouble() == Trouble::Busy => {
                return Err(OpenError::Locked(folder.to_owned()));
            }
            // A folder that cannot be written cannot be owned either.
            Err(_) => None,
        };
        let path = folder.join(DATABASE);
        let shared = Arc::new(Shared::default());
        let mut writer = Writer::new(path, history, Arc::clone(&shared), lock);
        let state = writer.open();
        if let Some(found) = writer.take_damage() {
            note(IssueLevel::Warning, found);
        }
        if let Some((_, message)) = shared.trouble.lock().as_ref() {
            note(IssueLevel::Error, message.clone());
        }
        let (messages, inbox) = bounded(CHANNEL_MAX);
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer.run(&inbox))
            .expect("the operating system starts a thread at start-up");
        let store = Store { messages, shared, thread: Mutex::new(Some(thread)) };
        Ok(Opened { store, state, issues })
    }

    /// Tells where the writer gets the state that it saves. Until then it saves rows only.
    pub fn save_from(&self, source: StateSource) {
        // A writer that is gone is told by its health.
        let _ = self.messages.send(Message::Source(source));
    }

    /// Hands in a row. Never waits; a row that finds the channel full is dropped and counted.
    pub fn row(&self, row: Row) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.messages.try_send(Message::Row(Box::new(row.bounded())))
        {
            self.shared.rows_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Saves state now instead of at the next turn, for what an administrator changed. Does not wait.
    pub fn save_soon(&self) {
        let _ = self.messages.try_send(Message::SaveNow);
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
