//! The writer thread: collects rows, fetches state, and decides when to write. It owns the database; nobody else
//! touches the file.
//!
//! State is looked at every ten seconds and put where a kill cannot reach it (the journal). Once a minute, or when many
//! rows have come, state and rows go to the disk in one transaction. When nothing changed, nothing is written. A write
//! that fails is tried again at growing distances; meanwhile state waits in memory, and rows up to a bound.
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rusqlite::Connection;

use super::db::{Db, Failure, Keep, StateChanges};
use super::figures::Totals;
use super::folder;
use super::journal::{self, Journal};
use super::row::Row;
use super::sessions::{SessionChange, SessionRow, SessionSource};
use super::shelf::{Shelf, Unpack, Unshelved};
use super::{Extent, History, SHELF, Shared, StateSource, Trouble};
use crate::base::clock;

/// When the writer writes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// What a kill may cost of the counters.
    pub state_every: Duration,
    /// What a kill may cost of the rows, and a power cut of the counters.
    pub disk_every: Duration,
    /// Between attempts on a disk that cannot be written: from the first, doubling to the last.
    pub retry_first: Duration,
    pub retry_max: Duration,
    /// How long a write waits for somebody else's transaction (a backup, a shell) before it counts as failed.
    pub busy: Duration,
}

impl Pace {
    /// As the gateway runs; tests are quicker.
    pub const USUAL: Pace = Pace {
        state_every: Duration::from_secs(10),
        disk_every: Duration::from_secs(60),
        retry_first: Duration::from_secs(1),
        retry_max: Duration::from_secs(300),
        busy: Duration::from_secs(10),
    };
}

/// Rows go out earlier when this many have come.
pub const ROWS_BATCH: usize = 500;
/// State goes out earlier when this many entries wait.
const STATE_BATCH: usize = 1_000;
/// Rows that wait for the disk; beyond that they are dropped and counted.
pub const ROWS_HELD_MAX: usize = 4_000;
/// How often old rows are looked at when nothing happens, and between two parts of that work: what else the writer has
/// to do is not kept waiting.
const TIDY_EVERY: Duration = Duration::from_secs(3_600);
const TIDY_PAUSE: Duration = Duration::from_millis(100);
/// A damaged database up to this size is found at the start; a larger one would take too long to look through, and is
/// found when the damage is met.
const CHECK_BYTES_MAX: u64 = 16 << 20;
/// Rows told at once.
const RECENT_MAX: usize = 1_000;
/// A clock before this is unset, and says nothing about the age of rows.
const EARLIEST_MS: u64 = crate::quota::zone::EARLIEST_WALL_MS;

const DAY_MS: u64 = 24 * 3_600_000;

/// Rows on their way to the writer. They lie in a list that it looks at in its own time: a message for each would cost
/// every request a wake-up of the writer's thread.
#[derive(Debug, Default)]
pub struct Waiting {
    pub rows: VecDeque<Row>,
    /// When the first of them came.
    pub since: Option<Instant>,
    /// Rows are on their way to the database and stand in neither.
    pub writing: bool,
    /// How often that has ended.
    pub written: u64,
    /// All rows since the start.
    pub totals: Totals,
}

/// What the writer is told.
pub enum Message {
    /// Enough rows for a batch are waiting.
    Batch,
    /// Old rows are to be looked at now.
    Tidy,
    Source(StateSource),
    Sessions(Box<dyn SessionSource>),
    SaveNow,
    /// Everything is to be written now; whether it was.
    Flush(Sender<bool>),
    Forget(Vec<String>),
    Unpack(Unpack),
    ClearShelf,
    Recent {
        limit: usize,
        reply: Sender<Vec<Row>>,
    },
    Close,
}

/// The thread's own state.
pub struct Writer {
    path: PathBuf,
    memory_folder: PathBuf,
    pace: Pace,
    shared: Arc<Shared>,
    /// Held, never used: it keeps the data folder ours.
    lock: Option<Connection>,
    /// `None` while it cannot be opened.
    db: Option<Db>,
    shelf: Shelf,
    /// After a failure it is left alone until then.
    shelf_rests: Option<Instant>,
    /// `None` while there is no place for it; then state goes to the disk every time.
    journal: Option<Journal>,
    source: Option<StateSource>,
    sessions: Option<Box<dyn SessionSource>>,
    /// The file is new, and has none of the conversations.
    needs_sessions: bool,
    /// State that the disk does not have yet, and since when.
    state: StateChanges,
    state_since: Option<Instant>,
    /// The file is new: all state has to be written, not only what changes.
    needs_everything: bool,
    /// An administrator changed something, which goes to the disk at once.
    urgent: bool,
    state_due: Instant,
    tidy_due: Instant,
    retry: Option<Retry>,
    damage: Option<String>,
}

#[derive(Clone, Copy)]
struct Retry {
    at: Instant,
    wait: Duration,
}

impl Writer {
    /// A writer that has opened nothing yet.
    pub fn new(
        path: PathBuf,
        memory_folder: PathBuf,
        pace: Pace,
        shared: Arc<Shared>,
        lock: Option<Connection>,
    ) -> Writer {
        let now = clock::instant();
        Writer {
            shelf: Shelf::new(path.with_file_name(SHELF)),
            shelf_rests: None,
            path,
            memory_folder,
            pace,
            shared,
            lock,
            db: None,
            journal: None,
            source: None,
            sessions: None,
            needs_sessions: false,
            state: StateChanges::new(),
            state_since: None,
            needs_everything: false,
            urgent: false,
            state_due: now + pace.state_every,
            // Not in the first minute, when everything else starts too.
            tidy_due: now + pace.disk_every,
            retry: None,
            damage: None,
        }
    }

    /// Opens the database and reads what was saved. A damaged one is set aside; `rescue` may put another in its place
    /// and says whether it did, else a new one is begun.
    pub fn open(&mut self, rescue: &mut dyn FnMut() -> bool) -> BTreeMap<String, String> {
        let error = match self.open_and_read() {
            Ok(state) => return state,
            Err(error) => error,
        };
        self.failed(&error);
        if self.db.is_none() && error.trouble() == Trouble::Damaged {
            let is_away = !self.path.exists();
            if is_away && rescue() {
                if let Ok(state) = self.open_and_read() {
                    self.recovered();
                    return state;
                }
            }
            self.reopen();
        }
        BTreeMap::new()
    }

    fn open_and_read(&mut self) -> Result<BTreeMap<String, String>, Failure> {
        let left_open = folder::left_open(&self.path);
        let opened = Db::open(&self.path, self.pace.busy)?;
        if left_open && std::fs::metadata(&self.path).is_ok_and(|file| file.len() <= CHECK_BYTES_MAX) {
            opened.check()?;
        }
        let mut state = opened.state()?;
        self.use_db(opened)?;
        // What a killed process could not bring to the disk any more goes there with the next write.
        self.state = self.journal.as_ref().map(Journal::read).unwrap_or_default();
        self.state_since = (!self.state.is_empty()).then(clock::instant);
        journal::replay(&self.state, &mut state);
        Ok(state)
    }

    fn use_db(&mut self, opened: Db) -> Result<(), Failure> {
        self.journal = Journal::open(&self.memory_folder, &self.path, &opened.identity()?);
        self.db = Some(opened);
        Ok(())
    }

    /// The conversations that the database has.
    pub fn session_rows(&self) -> Vec<SessionRow> {
        // A database that cannot be read tells so at the next write.
        self.db.as_ref().and_then(|db| db.sessions().ok()).unwrap_or_default()
    }

    /// What was damaged when the store was opened, if anything.
    pub fn take_damage(&mut self) -> Option<String> {
        self.damage.take()
    }

    /// The life of the thread. A panic is survived once; after a second one the store says that it is gone.
    pub fn run(mut self, inbox: &Receiver<Message>) {
        for _ in 0..2 {
            match catch_unwind(AssertUnwindSafe(|| self.work(inbox))) {
                Ok(()) => return,
                // The connection may be in the middle of something; a fresh one is not.
                Err(_) => {
                    self.db = None;
                    self.shared.wrote();
                    self.retry_later(Trouble::Disk, "the writer failed and begins anew".into());
                }
            }
        }
        let message = "the writer failed twice, nothing is saved any more; restart the gateway";
        *self.shared.trouble.lock() = Some((Trouble::WriterGone, message.into()));
    }

    fn work(&mut self, inbox: &Receiver<Message>) {
        loop {
            match inbox.recv_deadline(self.next_due()) {
                Ok(Message::Source(source)) => self.source = Some(source),
                Ok(Message::Sessions(source)) => self.sessions = Some(source),
                Ok(Message::Tidy) => self.tidy_due = clock::instant(),
                Ok(Message::SaveNow) => {
                    self.state_due = clock::instant();
                    self.urgent = true;
                }
                Ok(Message::Flush(reply)) => {
                    self.fetch_state();
                    self.write();
                    // Whoever asked may have lost patience.
                    let _ = reply.send(self.retry.is_none());
                }
                Ok(Message::Forget(keys)) => {
                    self.state_since.get_or_insert_with(clock::instant);
                    self.state.extend(keys.into_iter().map(|key| (key, None)));
                }
                // A shelf that cannot be read is as good as empty.
                Ok(Message::Unpack(unpack)) => unpack(self.shelf.take_found().unwrap_or_default()),
                Ok(Message::ClearShelf) => self.clear_shelf(),
                Ok(Message::Recent { limit, reply }) => {
                    let _ = reply.send(self.recent(limit));
                }
                Ok(Message::Close) | Err(RecvTimeoutError::Disconnected) => return self.close(),
                Ok(Message::Batch) | Err(RecvTimeoutError::Timeout) => {}
            }
            self.do_what_is_due();
        }
    }

    /// When there is something to do, if nobody says anything before. Rows are looked at together with the state.
    fn next_due(&self) -> Instant {
        let due = self.state_due.min(self.tidy_due);
        // Nothing but the wait for the next attempt ends while the disk cannot be written.
        self.retry.map_or(due, |retry| retry.at)
    }

    /// Looks at state and rows if it is time, and writes what has to be written.
    fn do_what_is_due(&mut self) {
        let now = clock::instant();
        if self.retry.is_some_and(|retry| now < retry.at) {
            return;
        }
        let look = self.state_due <= now || self.retry.is_some();
        if self.shelf_due(now) {
            self.shelve();
        }
        let batch = self.shared.waiting.lock().rows.len() >= ROWS_BATCH || self.sessions_waiting().1;
        if look || batch {
            self.state_due = now + self.pace.state_every;
            let changed = self.fetch_state();
            if batch || self.disk_due(now) {
                self.write();
            } else if changed {
                self.keep_from_kill();
            }
        }
        if self.tidy_due <= now {
            self.tidy_due = now + if self.tidy() { TIDY_PAUSE } else { TIDY_EVERY };
        }
    }

    /// Whether the disk has to have now what waits for it: because it would be too old at the next look, or somebody
    /// waits, or the disk failed, or nothing else keeps it from a kill.
    fn disk_due(&self, now: Instant) -> bool {
        let next_look = now + self.pace.state_every;
        let too_old =
            |since: Option<Instant>| since.is_some_and(|since| since + self.pace.disk_every <= next_look);
        self.urgent
            || self.retry.is_some()
            || too_old(self.state_since)
            || too_old(self.shared.waiting.lock().since)
            || too_old(self.sessions_waiting().0)
            || (self.journal.is_none() && !self.state.is_empty())
            || self.state.len() >= STATE_BATCH
    }

    fn sessions_waiting(&self) -> (Option<Instant>, bool) {
        self.sessions.as_ref().map_or((None, false), |source| source.waiting())
    }

    /// What became of conversations; whether it was written has to be told.
    fn take_sessions(&mut self) -> Vec<SessionChange> {
        let extent = if self.needs_sessions { Extent::Everything } else { Extent::Changes };
        self.sessions.as_ref().map(|source| source.take(extent, clock::now())).unwrap_or_default()
    }

    /// Answers go to the disk at the pace of the rows.
    fn shelf_due(&self, now: Instant) -> bool {
        let unshelved = self.shared.unshelved.lock();
        let next_look = now + self.pace.state_every;
        let rests = self.shelf_rests.is_some_and(|until| now < until);
        let is_large = unshelved.is_large();
        let is_old = unshelved.since().is_some_and(|since| since + self.pace.disk_every <= next_look);
        !rests && (is_large || is_old)
    }

    /// Puts the answers that wait on the shelf, if there are any. When that fails they wait on: nobody is worse off but a restart.
    fn shelve(&mut self) {
        let mut taken = std::mem::take(&mut *self.shared.unshelved.lock());
        match self.shelf.append(taken.items()) {
            // A file that cannot be written anew is only larger than it need be.
            Ok(()) => drop(self.shelf.tidy()),
            Err(error) => {
                log::warn!("{SHELF}: answers could not be written: {error}");
                self.shelf_rests = Some(clock::instant() + self.pace.disk_every);
                self.shared.unshelved.lock().put_back(taken);
            }
        }
    }

    fn clear_shelf(&mut self) {
        *self.shared.unshelved.lock() = Unshelved::default();
        if let Err(error) = self.shelf.clear() {
            log::warn!("{SHELF}: cannot be removed: {error}");
        }
    }

    /// Fetches what changed; true when something did.
    fn fetch_state(&mut self) -> bool {
        let Some(source) = &mut self.source else { return false };
        let changes = source(if self.needs_everything { Extent::Everything } else { Extent::Changes });
        self.needs_everything = false;
        let changed = !changes.is_empty();
        if changed {
            self.state_since.get_or_insert_with(clock::instant);
            self.state.extend(changes);
        }
        changed
    }

    /// Puts the state that the disk does not have where it outlives the process.
    fn keep_from_kill(&mut self) {
        let kept = self.journal.as_mut().map(|journal| journal.write(&self.state));
        if let Some(Err(_)) = kept {
            // The memory is full or the folder closed to us: then the disk has to do.
            self.journal = None;
            self.write();
        }
    }

    /// Brings the state and the rows that wait to the disk.
    fn write(&mut self) {
        if self.db.is_none() && !self.reopen() {
            return;
        }
        let sessions = self.take_sessions();
        let Some(db) = &mut self.db else { return };
        let (rows, since) = {
            let mut waiting = self.shared.waiting.lock();
            // After a failure an empty transaction shows whether the database can be written again.
            let nothing = waiting.rows.is_empty() && self.state.is_empty() && sessions.is_empty();
            if nothing && self.retry.is_none() {
                return;
            }
            waiting.writing = true;
            (std::mem::take(&mut waiting.rows), waiting.since.take())
        };
        let written = db.write(&self.state, &rows, &sessions);
        if let Some(source) = &self.sessions {
            source.written(written.is_ok());
        }
        match written {
            Ok(()) => {
                self.shared.wrote();
                self.needs_sessions = false;
                self.state.clear();
                self.state_since = None;
                self.urgent = false;
                if let Some(journal) = &mut self.journal {
                    journal.clear();
                }
                self.shared.rows_written.fetch_add(rows.len() as u64, Ordering::Relaxed);
                self.shared.writes.fetch_add(1, Ordering::Relaxed);
                self.recovered();
                self.tidy_soon();
            }
            Err(error) => {
                self.put_back(rows, since);
                self.shared.wrote();
                if let Some(journal) = &mut self.journal {
                    // What comes of it does not matter: the disk is tried again anyway.
                    let _ = journal.write(&self.state);
                }
                self.failed(&error);
            }
        }
    }

    /// Puts rows that could not be written before those that came meanwhile; the oldest of too many are dropped.
    fn put_back(&self, mut rows: VecDeque<Row>, since: Option<Instant>) {
        let mut waiting = self.shared.waiting.lock();
        rows.append(&mut waiting.rows);
        let excess = rows.len().saturating_sub(ROWS_HELD_MAX);
        rows.drain(..excess);
        self.shared.rows_dropped.fetch_add(excess as u64, Ordering::Relaxed);
        waiting.since = since.or(waiting.since);
        waiting.rows = rows;
    }

    fn recovered(&mut self) {
        if self.retry.take().is_some() {
            *self.shared.trouble.lock() = None;
        }
    }

    /// Opens the database again; true when it is open.
    fn reopen(&mut self) -> bool {
        if let Some(folder) = self.path.parent() {
            // Whatever is wrong with the folder, opening says it.
            let _ = folder::prepare_folder(folder);
        }
        match Db::open(&self.path, self.pace.busy).and_then(|opened| self.use_db(opened)) {
            Ok(()) => {
                self.needs_everything = true;
                self.needs_sessions = true;
                self.fetch_state();
                self.recovered();
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    /// Remembers an error, moves a damaged file away, and plans the next attempt.
    fn failed(&mut self, error: &Failure) {
        let trouble = error.trouble();
        let mut message = format!("freeway.db: {error}; {}", trouble.hint());
        if trouble == Trouble::Damaged {
            self.db = None;
            if let Some(mut journal) = self.journal.take() {
                journal.clear();
            }
            match folder::set_aside(&self.path, clock::now().wall_ms) {
                Ok(aside) => {
                    message =
                        format!("freeway.db was damaged ({error}) and was moved to {}", aside.display());
                    self.damage = Some(message.clone());
                }
                Err(denied) => message = format!("{message}, but it cannot be moved away: {denied}"),
            }
        }
        self.retry_later(trouble, message);
    }

    fn retry_later(&mut self, trouble: Trouble, message: String) {
        let wait =
            self.retry.map_or(self.pace.retry_first, |retry| (retry.wait * 2).min(self.pace.retry_max));
        self.retry = Some(Retry { at: clock::instant() + wait, wait });
        *self.shared.trouble.lock() = Some((trouble, message));
    }

    fn recent(&self, limit: usize) -> Vec<Row> {
        let limit = limit.min(RECENT_MAX);
        let mut rows: Vec<Row> = self.shared.waiting.lock().rows.iter().rev().take(limit).cloned().collect();
        if let (Some(db), true) = (&self.db, rows.len() < limit) {
            // A database that cannot be read tells so at the next write.
            rows.extend(db.recent(limit - rows.len()).unwrap_or_default());
        }
        rows
    }

    /// How much history is kept as of now; `None` while the clock is not set.
    fn keep(&self) -> Option<Keep> {
        let now_ms = clock::now().wall_ms;
        let History { days, bytes } = *self.shared.history.lock();
        let oldest_row_ms = now_ms.saturating_sub(days.saturating_mul(DAY_MS));
        (now_ms >= EARLIEST_MS).then_some(Keep { now_ms, oldest_row_ms, bytes_max: bytes })
    }

    /// Lets old rows be looked at now when there is reason to.
    fn tidy_soon(&mut self) {
        let (Some(db), Some(keep)) = (&self.db, self.keep()) else { return };
        // A database that cannot be read tells so at the next write.
        if db.untidy(&keep).unwrap_or(false) {
            self.tidy_due = clock::instant();
        }
    }

    /// Does a part of what is to be done about old rows; true when there is more.
    fn tidy(&mut self) -> bool {
        if let Some(source) = &self.sessions {
            source.forget(clock::now());
        }
        let (Some(keep), Some(db)) = (self.keep(), &mut self.db) else { return false };
        let more =
            db.tidy(&keep).and_then(|more| if more { Ok(more) } else { db.compact(&keep).map(|()| more) });
        match more {
            Ok(more) => more,
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    fn close(&mut self) {
        self.fetch_state();
        self.write();
        self.shelve();
        if let Some(Err(error)) = self.db.take().map(Db::close) {
            self.failed(&error);
        }
        self.lock = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::row::sample;

    fn writer(folder: &tempfile::TempDir) -> Writer {
        let pace = Pace { retry_first: Duration::ZERO, retry_max: Duration::ZERO, ..Pace::USUAL };
        let path = folder.path().join("freeway.db");
        Writer::new(path, folder.path().join("memory"), pace, Arc::default(), None)
    }

    /// Lets everything be due.
    fn turn(writer: &mut Writer) {
        writer.state_due = clock::instant();
        writer.pace.disk_every = Duration::ZERO;
        writer.do_what_is_due();
    }

    fn hand_in(writer: &Writer, numbers: std::ops::Range<u64>) {
        let mut waiting = writer.shared.waiting.lock();
        waiting.since.get_or_insert_with(Instant::now);
        waiting.rows.extend(numbers.map(sample));
    }

    fn waiting(writer: &Writer) -> usize {
        writer.shared.waiting.lock().rows.len()
    }

    fn trouble(writer: &Writer) -> Option<Trouble> {
        writer.shared.trouble.lock().as_ref().map(|(trouble, _)| *trouble)
    }

    #[test]
    fn a_full_disk_loses_neither_state_nor_rows_and_recovers() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder);
        assert!(writer.open(&mut || false).is_empty());
        writer.db.as_ref().expect("open").limit_pages(10);
        writer.source =
            Some(Box::new(|_| StateChanges::from([("meter:key/a".to_owned(), Some("x".repeat(40_000)))])));
        hand_in(&writer, 0..3);
        turn(&mut writer);
        assert_eq!(trouble(&writer), Some(Trouble::DiskFull));
        assert_eq!((waiting(&writer), writer.state.len()), (3, 1));
        assert_eq!(writer.recent(9).len(), 3, "what waits is shown");
        turn(&mut writer);
        assert_eq!(trouble(&writer), Some(Trouble::DiskFull));
        writer.db.as_ref().expect("open").limit_pages(1_000_000);
        turn(&mut writer);
        assert_eq!((trouble(&writer), waiting(&writer), writer.state.len()), (None, 0, 0));
        assert_eq!(writer.recent(9).len(), 3);
    }

    #[test]
    fn attempts_on_a_bad_disk_grow_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder);
        writer.pace = Pace::USUAL;
        let waits: Vec<u64> = (0..12)
            .map(|_| {
                writer.retry_later(Trouble::Disk, String::new());
                writer.retry.expect("just set").wait.as_secs()
            })
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    }

    #[test]
    fn rows_that_wait_are_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let writer = writer(&folder);
        hand_in(&writer, 100..107);
        writer.put_back((0..ROWS_HELD_MAX as u64).map(sample).collect(), Some(clock::instant()));
        assert_eq!(waiting(&writer), ROWS_HELD_MAX);
        assert_eq!(writer.shared.rows_dropped.load(Ordering::Relaxed), 7);
        let waiting = writer.shared.waiting.lock();
        assert_eq!((waiting.rows.front(), waiting.rows.back()), (Some(&sample(7)), Some(&sample(106))));
    }

    #[test]
    fn a_failure_without_anything_to_write_passes() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder);
        writer.open(&mut || false);
        writer.retry_later(Trouble::Disk, "a cable was loose".into());
        writer.state_due = clock::instant() + Duration::from_secs(10);
        writer.do_what_is_due();
        assert!(trouble(&writer).is_none() && writer.next_due() > clock::instant() + Duration::from_secs(5));
    }

    #[test]
    fn what_changed_is_kept_from_a_kill_at_once_and_goes_to_the_disk_once_a_minute() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("memory")).expect("made");
        let mut writer = writer(&folder);
        writer.open(&mut || false);
        writer.source =
            Some(Box::new(|_| StateChanges::from([("meter:key/a".to_owned(), Some("1".to_owned()))])));
        hand_in(&writer, 0..2);
        let look = |writer: &mut Writer| {
            writer.state_due = clock::instant();
            writer.do_what_is_due();
        };
        look(&mut writer);
        assert_eq!(writer.shared.writes.load(Ordering::Relaxed), 0, "too early for the disk");
        assert_eq!(writer.journal.as_ref().expect("a journal").read().len(), 1, "but not lost by a kill");
        let long_ago = clock::instant().checked_sub(Duration::from_secs(51));
        writer.state_since = long_ago;
        writer.do_what_is_due();
        assert_eq!(writer.shared.writes.load(Ordering::Relaxed), 0, "only when it is time to look");
        look(&mut writer);
        assert_eq!((waiting(&writer), writer.shared.writes.load(Ordering::Relaxed)), (0, 1));
        assert!(writer.journal.as_ref().expect("a journal").read().is_empty(), "the disk has it");
        hand_in(&writer, 0..ROWS_BATCH as u64);
        writer.do_what_is_due();
        assert_eq!(
            (waiting(&writer), writer.shared.writes.load(Ordering::Relaxed)),
            (0, 2),
            "a batch goes at once"
        );
        look(&mut writer);
        writer.urgent = true;
        look(&mut writer);
        assert_eq!(writer.shared.writes.load(Ordering::Relaxed), 3, "an administrator does not wait");
    }

    #[test]
    fn a_killed_process_leaves_its_last_state_to_the_next() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("memory")).expect("made");
        let change = |key: &str, value: Option<&str>| (key.to_owned(), value.map(str::to_owned));
        let mut writer = writer(&folder);
        writer.open(&mut || false);
        writer.state = StateChanges::from([change("a", Some("old")), change("b", Some("old"))]);
        writer.write();
        writer.source =
            Some(Box::new(move |_| StateChanges::from([change("a", Some("new")), change("b", None)])));
        writer.state_due = clock::instant();
        writer.do_what_is_due();
        drop(writer);
        let mut next = self::writer(&folder);
        assert_eq!(next.open(&mut || false), BTreeMap::from([("a".to_owned(), "new".to_owned())]));
        next.close();
        assert_eq!(
            self::writer(&folder).open(&mut || false),
            BTreeMap::from([("a".to_owned(), "new".to_owned())]),
            "on the disk now"
        );
        assert_eq!(
            std::fs::read_dir(folder.path().join("memory")).expect("read").count(),
            0,
            "and nothing is left"
        );
    }

    #[test]
    fn damage_met_while_running_starts_a_new_file_with_all_state() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder);
        writer.open(&mut || false);
        let (asked, asks) = crossbeam_channel::unbounded();
        writer.source = Some(Box::new(move |extent| {
            asked.send(extent).expect("the test listens");
            StateChanges::from([("meter:key/a".to_owned(), Some("1".to_owned()))])
        }));
        turn(&mut writer);
        writer.failed(&Failure::Damaged("page 3 is nonsense".into()));
        assert_eq!(trouble(&writer), Some(Trouble::Damaged));
        turn(&mut writer);
        assert_eq!(trouble(&writer), None);
        assert_eq!(Vec::from_iter(asks.try_iter()), [Extent::Changes, Extent::Changes, Extent::Everything]);
        assert_eq!(writer.db.as_ref().expect("open").state().expect("readable").len(), 1);
    }

    #[test]
    fn nothing_changed_means_nothing_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder);
        writer.open(&mut || false);
        writer.source = Some(Box::new(|_| StateChanges::new()));
        let before = std::fs::metadata(folder.path().join("freeway.db-wal")).expect("a log").len();
        (0..100).for_each(|_| turn(&mut writer));
        let after = std::fs::metadata(folder.path().join("freeway.db-wal")).expect("a log").len();
        assert_eq!((writer.shared.writes.load(Ordering::Relaxed), after), (0, before));
    }
}
