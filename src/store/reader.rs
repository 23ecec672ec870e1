//! Reading beside the writer: views of the owner, each on a connection of its own that cannot write, a few at a time,
//! and never for long. The writer and its checkpoints are not held up.
//!
//! What a view sees is exact: the database as of one moment, and the rows that were not in it then.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::Shared;
use super::db::{VFS, next_row_id};
use super::figures::Totals;
use super::row::Row;
use crate::base::clock;

/// Views that run at once.
const RUNNING_MAX: usize = 2;
/// Views that wait for their turn; a page asks for a few at once.
const QUEUE_MAX: usize = 16;
/// How long a view waits for its turn, and for rows on their way to a slow disk.
const TURN_MAX: Duration = Duration::from_secs(2);
/// How long a view may read.
const READ_MAX: Duration = Duration::from_secs(2);
/// Steps of SQLite's machine between two looks at the clock, well under a millisecond.
const STEPS_PER_LOOK: i32 = 10_000;
/// How often a view begins anew because rows arrived while it began.
const BEGIN_MAX: usize = 8;
/// Memory for pages of one view. It reads most of them once.
const CACHE_KIB: u32 = 256;

/// Why there is no view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoView {
    /// Too many others run, or the disk is too slow just now.
    Busy,
    /// It read for longer than it may.
    TooLong,
}

/// The way to views.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    shared: Arc<Shared>,
    turns: Mutex<Turns>,
    /// Told when a view has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Turns {
    running: usize,
    queued: usize,
}

/// The place of a running view; dropping it gives the place to the next.
struct Place<'r>(&'r Reader);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.turns.lock().running -= 1;
        self.0.ended.notify_one();
    }
}

/// Everything that there was at one moment.
pub struct Seen {
    /// In a transaction; `None` while the database cannot be read, and then only what is in memory can be told.
    pub connection: Option<Connection>,
    /// Rows that are not in the database yet, oldest first, with the ids that they will have.
    pub waiting: Vec<(i64, Row)>,
    /// All requests since the start.
    pub since_start: Totals,
}

impl Reader {
    pub fn new(path: &Path, shared: Arc<Shared>) -> Reader {
        Reader { path: path.to_owned(), shared, turns: Mutex::default(), ended: Condvar::new() }
    }

    /// Lets `look` see everything there is. It runs a second time, without the database, when that cannot be read.
    pub fn view<T>(&self, look: impl Fn(&Seen) -> Result<T, rusqlite::Error>) -> Result<T, NoView> {
        let turn_ends = clock::instant() + TURN_MAX;
        let _place = self.take_turn(turn_ends)?;
        let mut seen = self.see(turn_ends)?;
        if let Some(connection) = &seen.connection {
            let ends = clock::instant() + READ_MAX;
            let late = move || clock::instant() > ends;
            // A connection without it only reads for longer.
            let _ = connection.progress_handler(STEPS_PER_LOOK, Some(late));
        }
        match look(&seen) {
            Ok(told) => return Ok(told),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
                return Err(NoView::TooLong);
            }
            Err(error) => log::warn!("freeway.db cannot be read for a view: {error}"),
        }
        seen.connection = None;
        look(&seen).map_err(|_| NoView::Busy)
    }

    fn take_turn(&self, ends: Instant) -> Result<Place<'_>, NoView> {
        let mut turns = self.turns.lock();
        if turns.running >= RUNNING_MAX {
            if turns.queued >= QUEUE_MAX {
                return Err(NoView::Busy);
            }
            turns.queued += 1;
            let full = |turns: &mut Turns| turns.running >= RUNNING_MAX;
            let waited =
                self.ended.wait_while_for(&mut turns, full, ends.saturating_duration_since(clock::instant()));
            turns.queued -= 1;
            if waited.timed_out() && turns.running >= RUNNING_MAX {
                return Err(NoView::Busy);
            }
        }
        turns.running += 1;
        Ok(Place(self))
    }

    /// The database and the rows beside it at one moment: no row arrived between the one look and the other.
    fn see(&self, ends: Instant) -> Result<Seen, NoView> {
        let Ok(connection) = self.open() else {
            return Ok(self.shared.waiting.lock().seen(None, 0));
        };
        for _ in 0..BEGIN_MAX {
            let written = {
                let mut waiting = self.shared.waiting.lock();
                while waiting.writing {
                    if self.shared.arrived.wait_until(&mut waiting, ends).timed_out() {
                        return Err(NoView::Busy);
                    }
                }
                waiting.written
            };
            let Ok(last_id) = begin(&connection) else {
                return Ok(self.shared.waiting.lock().seen(None, 0));
            };
            {
                let waiting = self.shared.waiting.lock();
                if !waiting.writing && waiting.written == written {
                    return Ok(waiting.seen(Some(connection), last_id));
                }
            }
            if connection.execute_batch("ROLLBACK").is_err() {
                break;
            }
        }
        Err(NoView::Busy)
    }

    fn open(&self) -> Result<Connection, rusqlite::Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags_and_vfs(&self.path, flags, VFS)?;
        connection.execute_batch(&format!(
            "PRAGMA cache_size=-{CACHE_KIB}; PRAGMA temp_store=MEMORY; PRAGMA trusted_schema=OFF;"
        ))?;
        Ok(connection)
    }
}

/// Begins to see the database as it is now; the last row's id.
fn begin(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.execute_batch("BEGIN")?;
    connection.query_row("SELECT coalesce(max(id), 0) FROM request", [], |row| row.get(0))
}

fn is_taken(connection: Option<&Connection>, id: i64) -> bool {
    let taken = |connection: &Connection| {
        connection.query_row("SELECT 1 FROM request WHERE id = ?1", [id], |_| Ok(())).is_ok()
    };
    connection.is_some_and(taken)
}

impl super::writer::Waiting {
    fn seen(&self, connection: Option<Connection>, last_id: i64) -> Seen {
        let mut last = last_id;
        let mut waiting: Vec<(i64, Row)> = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let mut id = next_row_id(last, row.ended_ms);
            // Only a clock that was set back leads to where rows lie already.
            while id <= last_id && is_taken(connection.as_ref(), id) {
                id += 1;
            }
            last = id;
            waiting.push((id, row.clone()));
        }
        waiting.sort_by_key(|(id, _)| *id);
        Seen { connection, waiting, since_start: self.totals }
    }
}
