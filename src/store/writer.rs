//! The writer thread: collects rows, fetches state, and decides when to write. It owns the database; nobody else
//! touches the file.
//!
//! State is looked at every ten seconds and rows go out once a minute or when many have come, both in one
//! transaction when they fall together. When nothing changed, nothing is written. A write that fails is tried again at
//! growing distances; meanwhile state waits in memory, and rows up to a bound.
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rusqlite::Connection;

use super::db::{self, Db, Failure, Lasting, StateChanges};
use super::row::Row;
use super::{Extent, History, Shared, StateSource, Trouble};
use crate::base::clock;

/// When the writer writes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// What a kill may cost of the counters.
    pub state_every: Duration,
    /// What a kill may cost of the rows.
    pub rows_every: Duration,
    /// Between attempts on a disk that cannot be written: from the first, doubling to the last.
    pub retry_first: Duration,
    pub retry_max: Duration,
    /// How long a write waits for somebody else's transaction (a backup, a shell) before it counts as failed.
    pub busy: Duration,
}

impl Pace {
    pub const USUAL: Pace = Pace {
        state_every: Duration::from_secs(10),
        rows_every: Duration::from_secs(60),
        retry_first: Duration::from_secs(1),
        retry_max: Duration::from_secs(300),
        busy: Duration::from_secs(10),
    };
}

/// Rows go out earlier when this many have come.
pub const ROWS_BATCH: usize = 500;
/// Rows that wait for the disk; beyond that they are dropped and counted.
pub const ROWS_HELD_MAX: usize = 4_000;
/// How often rows are looked at that are too old or too many.
const FORGET_EVERY: Duration = Duration::from_secs(3_600);
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
}

/// What the writer is told.
pub enum Message {
    /// Enough rows for a batch are waiting.
    Batch,
    Source(StateSource),
    SaveNow,
    Forget(Vec<String>),
    Recent {
        limit: usize,
        reply: Sender<Vec<Row>>,
    },
    Close,
}

pub struct Writer {
    path: PathBuf,
    history: History,
    pace: Pace,
    shared: Arc<Shared>,
    /// Held, never used: it keeps the data folder ours.
    lock: Option<Connection>,
    /// `None` while it cannot be opened.
    db: Option<Db>,
    source: Option<StateSource>,
    /// State that has to be written, with what failed to be written before.
    state: StateChanges,
    /// The file is new: all state has to be written, not only what changes.
    needs_everything: bool,
    /// Somebody waits for the state to be on the disk.
    urgent: bool,
    state_due: Instant,
    forget_due: Instant,
    retry: Option<Retry>,
    damage: Option<String>,
}

#[derive(Clone, Copy)]
struct Retry {
    at: Instant,
    wait: Duration,
}

impl Writer {
    pub fn new(
        path: PathBuf,
        history: History,
        pace: Pace,
        shared: Arc<Shared>,
        lock: Option<Connection>,
    ) -> Writer {
        let now = clock::instant();
        Writer {
            path,
            history,
            pace,
            shared,
            lock,
            db: None,
            source: None,
            state: StateChanges::new(),
            needs_everything: false,
            urgent: false,
            state_due: now + pace.state_every,
            // Not in the first minute, when everything else starts too.
            forget_due: now + pace.rows_every,
            retry: None,
            damage: None,
        }
    }

    /// Opens the database and reads what was saved. A damaged one is set aside and a new one begun.
    pub fn open(&mut self) -> BTreeMap<String, String> {
        match self.open_and_read() {
            Ok(state) => state,
            Err(error) => {
                self.failed(&error);
                if self.db.is_none() && error.trouble() == Trouble::Damaged {
                    self.reopen();
                }
                BTreeMap::new()
            }
        }
    }

    fn open_and_read(&mut self) -> Result<BTreeMap<String, String>, Failure> {
        let left_open = db::left_open(&self.path);
        let opened = Db::open(&self.path, self.pace.busy)?;
        if left_open && std::fs::metadata(&self.path).is_ok_and(|file| file.len() <= CHECK_BYTES_MAX) {
            opened.check()?;
        }
        let state = opened.state()?;
        self.db = Some(opened);
        Ok(state)
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
                    self.retry_later(Trouble::Disk, "the writer failed and begins anew".into());
                }
            }
        }
        let message = "the writer failed twice, nothing is saved any more; restart the gateway";
        *self.shared.trouble.lock() = Some((Trouble::WriterGone, message.into()));
    }

    fn work(&mut self, inbox: &Receiver<Message>) {
        loop {
            match inbox.recv_deadline(self.next_turn()) {
                Ok(Message::Source(source)) => self.source = Some(source),
                Ok(Message::SaveNow) => {
                    self.state_due = clock::instant();
                    self.urgent = true;
                }
                Ok(Message::Forget(keys)) => self.state.extend(keys.into_iter().map(|key| (key, None))),
                Ok(Message::Recent { limit, reply }) => {
                    let _ = reply.send(self.recent(limit));
                }
                Ok(Message::Close) | Err(RecvTimeoutError::Disconnected) => return self.close(),
                Ok(Message::Batch) | Err(RecvTimeoutError::Timeout) => {}
            }
            self.turn();
        }
    }

    /// When there is something to do, if nobody says anything before. Rows are looked at together with the state.
    fn next_turn(&self) -> Instant {
        let due = self.state_due.min(self.forget_due);
        // Nothing but the wait for the next attempt ends while the disk cannot be written.
        self.retry.map_or(due, |retry| retry.at)
    }

    /// Does what is due.
    fn turn(&mut self) {
        let now = clock::instant();
        if self.retry.is_some_and(|retry| now < retry.at) {
            return;
        }
        let state_now = self.state_due <= now || self.retry.is_some();
        // Rows whose time would come before the next look go along with this one.
        let horizon = now + self.pace.state_every;
        let rows_now = {
            let waiting = self.shared.waiting.lock();
            let old = waiting.since.is_some_and(|since| since + self.pace.rows_every <= horizon);
            waiting.rows.len() >= ROWS_BATCH || (old && state_now)
        };
        if rows_now || state_now {
            self.fetch_state();
            self.state_due = now + self.pace.state_every;
            self.write(rows_now);
        }
        if self.forget_due <= now {
            self.forget_due = now + if self.forget_rows() { Duration::from_secs(1) } else { FORGET_EVERY };
        }
    }

    fn fetch_state(&mut self) {
        let extent = if self.needs_everything { Extent::Everything } else { Extent::Changes };
        if let Some(source) = &mut self.source {
            self.state.extend(source(extent));
            self.needs_everything = false;
        }
    }

    /// Writes the state that waits, and the rows if it is their turn.
    fn write(&mut self, with_rows: bool) {
        if self.db.is_none() && !self.reopen() {
            return;
        }
        let Some(db) = &mut self.db else { return };
        let taken =
            if with_rows { std::mem::take(&mut *self.shared.waiting.lock()) } else { Waiting::default() };
        // After a failure an empty transaction shows whether the database can be written again.
        if taken.rows.is_empty() && self.state.is_empty() && self.retry.is_none() {
            return;
        }
        let count = taken.rows.len() as u64;
        let lasting = if count > 0 || self.urgent { Lasting::PowerCut } else { Lasting::Kill };
        match db.write(&self.state, &taken.rows, lasting) {
            Ok(()) => {
                self.state.clear();
                self.urgent = false;
                self.shared.rows_written.fetch_add(count, Ordering::Relaxed);
                self.shared.writes.fetch_add(1, Ordering::Relaxed);
                self.recovered();
            }
            Err(error) => {
                self.put_back(taken);
                self.failed(&error);
            }
        }
    }

    /// Puts rows that could not be written before those that came meanwhile; the oldest of too many are dropped.
    fn put_back(&self, mut taken: Waiting) {
        let mut waiting = self.shared.waiting.lock();
        taken.rows.append(&mut waiting.rows);
        let excess = taken.rows.len().saturating_sub(ROWS_HELD_MAX);
        taken.rows.drain(..excess);
        self.shared.rows_dropped.fetch_add(excess as u64, Ordering::Relaxed);
        taken.since = taken.since.or(waiting.since);
        *waiting = taken;
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
            let _ = db::prepare_folder(folder);
        }
        match Db::open(&self.path, self.pace.busy) {
            Ok(opened) => {
                self.db = Some(opened);
                self.needs_everything = true;
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
            match db::set_aside(&self.path, clock::now().wall_ms) {
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

    /// True when more rows are to be removed.
    fn forget_rows(&mut self) -> bool {
        let wall_ms = clock::now().wall_ms;
        let Some(db) = &mut self.db else { return false };
        if wall_ms < EARLIEST_MS {
            return false;
        }
        let oldest_ms = wall_ms.saturating_sub(self.history.days.saturating_mul(DAY_MS));
        match db.forget(oldest_ms, self.history.bytes) {
            Ok(more) => more,
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    fn close(&mut self) {
        self.urgent = true;
        self.fetch_state();
        self.write(true);
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
        Writer::new(path, History::default(), pace, Arc::default(), None)
    }

    /// Lets everything be due.
    fn turn(writer: &mut Writer) {
        writer.state_due = Instant::now();
        writer.pace.rows_every = Duration::ZERO;
        writer.turn();
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
        assert!(writer.open().is_empty());
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
        let taken =
            Waiting { rows: (0..ROWS_HELD_MAX as u64).map(sample).collect(), since: Some(Instant::now()) };
        writer.put_back(taken);
        assert_eq!(waiting(&writer), ROWS_HELD_MAX);
        assert_eq!(writer.shared.rows_dropped.load(Ordering::Relaxed), 7);
        let waiting = writer.shared.waiting.lock();
        assert_eq!((waiting.rows.front(), waiting.rows.back()), (Some(&sample(7)), Some(&sample(106))));
    }

    #[test]
    fn a_failure_without_anything_to_write_passes() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder);
        writer.open();
        writer.retry_later(Trouble::Disk, "a cable was loose".into());
        writer.state_due = Instant::now() + Duration::from_secs(10);
        writer.turn();
        assert!(trouble(&writer).is_none() && writer.next_turn() > Instant::now() + Duration::from_secs(5));
    }

    #[test]
    fn rows_wait_for_their_minute_and_go_with_the_state() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder);
        writer.open();
        hand_in(&writer, 0..2);
        writer.state_due = Instant::now();
        writer.turn();
        assert_eq!(waiting(&writer), 2, "too early");
        writer.shared.waiting.lock().since = Instant::now().checked_sub(Duration::from_secs(51));
        writer.turn();
        assert_eq!(waiting(&writer), 2, "not on their own");
        writer.state_due = Instant::now();
        writer.turn();
        assert_eq!(waiting(&writer), 0);
        hand_in(&writer, 0..ROWS_BATCH as u64);
        writer.turn();
        assert_eq!(waiting(&writer), 0, "a batch goes at once");
    }

    #[test]
    fn damage_met_while_running_starts_a_new_file_with_all_state() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder);
        writer.open();
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
        writer.open();
        writer.source = Some(Box::new(|_| StateChanges::new()));
        let before = std::fs::metadata(folder.path().join("freeway.db-wal")).expect("a log").len();
        (0..100).for_each(|_| turn(&mut writer));
        let after = std::fs::metadata(folder.path().join("freeway.db-wal")).expect("a log").len();
        assert_eq!((writer.shared.writes.load(Ordering::Relaxed), after), (0, before));
    }
}
