//! The database file: its schema, its migrations, what is read from it and written to it, and what to do when it is
//! damaged. Used by one thread at a time; when to write is the writer's business.
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::Type;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Statement, Transaction, TransactionBehavior, params,
};

use super::Trouble;
use super::figures::Sample;
use super::names::{Known, Names};
use super::rollup::{self, Cell, HOUR_MS, RolledRow};
use super::row::{ROWS_PER_MS, RequestId, Row, RowCache, RowKind, RowOutcome, RowRefit};
use super::schema::migrate;
use super::sessions::{self, SessionChange, SessionRow, Stored};
use crate::base::text::fresh_id;

/// Small pages: what changes every ten seconds is one or two of them, and each is written whole.
const PAGE_BYTES: u32 = 1_024;
const PAGE_BYTES_U64: u64 = PAGE_BYTES as u64;
/// The write-ahead log is folded into the database when it has this many pages, and cut to this size then.
const WAL_PAGES: u32 = 1_000;
/// Memory for cached pages.
const CACHE_KIB: u32 = 512;

/// SQLite's file access for one process: it keeps the index of the write-ahead log in memory. As a mapped file that
/// index would go to the disk twice a minute and cost more than what it indexes. The price: other programs cannot open
/// the database while the gateway runs.
pub const VFS: &str = "unix-excl";

/// A row that ended up to this long before its predecessor in the database is put right behind it; one from further
/// back comes from a clock that was set back.
const DISORDER_MAX_MS: i64 = 60_000;

/// What `flags` is made of: two bits, then the number of a cache (two bits) and that of a rung.
pub const FLAG_STREAM: i64 = 1;
pub const FLAG_ESTIMATED: i64 = 2;
pub const CACHE_SHIFT: u32 = 2;
const REFIT_SHIFT: u32 = 4;
pub const CACHE_MASK: i64 = 3;

/// Entries of saved state that are read back, and the longest of them.
const STATE_ENTRIES_MAX: i64 = 65_536;
const STATE_BYTES_MAX: i64 = 65_536;
/// Rows rolled up or removed in one transaction, and hours of roll-ups removed.
const STEP_ROWS: usize = 2_000;
const STEP_HOURS: i64 = 24;
/// Rows of the current hour that views read one by one; more are rolled up early.
const OUTSIDE_MAX: usize = 5_000;
/// How long roll-ups are kept, so that a month can be compared with that of a year ago.
const ROLLUPS_KEPT_MS: u64 = 400 * 24 * HOUR_MS;
/// What is kept when room is short: rows of a day, roll-ups of the week and a day that the page shows by the hour.
const ROWS_KEPT_MS: u64 = 24 * HOUR_MS;
const ROLLUPS_KEPT_HOURS: i64 = 8 * 24;

/// An open database.
#[derive(Debug)]
pub struct Db {
    connection: Connection,
    rows: Rows,
}

/// What is remembered of the rows in it.
#[derive(Debug, Default)]
struct Rows {
    names: Known,
    last_row_id: i64,
    /// Rows before this id are in the roll-ups.
    rolled_to: i64,
    /// The first row that is not.
    first_outside: Option<i64>,
    /// Rows that came since the last roll-up.
    outside: usize,
}

/// Why something cannot be read or written.
#[derive(Debug)]
pub enum Failure {
    Sqlite(rusqlite::Error),
    /// A look at every page found this.
    Damaged(String),
    /// Its schema is from a later version of this program.
    Newer,
}

impl Failure {
    /// What it means for the owner.
    pub fn trouble(&self) -> Trouble {
        let code = match self {
            Failure::Sqlite(error) => error.sqlite_error_code(),
            Failure::Damaged(_) => return Trouble::Damaged,
            Failure::Newer => return Trouble::Newer,
        };
        match code {
            Some(ErrorCode::DiskFull) => Trouble::DiskFull,
            Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                Trouble::ReadOnly
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Trouble::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Trouble::Damaged,
            _ => Trouble::Disk,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Sqlite(error) => error.fmt(f),
            Failure::Damaged(found) => f.write_str(found),
            Failure::Newer => f.write_str("it was made by a newer version of this program"),
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Failure {
        Failure::Sqlite(error)
    }
}

/// How much history is kept, at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    pub now_ms: u64,
    /// Rows that ended before are too old.
    pub oldest_row_ms: u64,
    /// What the database may take on the disk.
    pub bytes_max: u64,
}

impl Keep {
    /// The hour that is not over yet.
    fn hour(&self) -> i64 {
        (self.now_ms / HOUR_MS) as i64
    }

    /// Roll-ups before are too old. They never go before their rows.
    fn oldest_hour(&self) -> i64 {
        (self.oldest_row_ms.min(self.now_ms.saturating_sub(ROLLUPS_KEPT_MS)) / HOUR_MS) as i64
    }

    /// What may be in use: the write-ahead log lies beside the file, and what is to be removed comes first.
    fn used_bytes_max(&self) -> u64 {
        self.bytes_max - self.bytes_max / 8
    }
}

/// Saved state: entries to be replaced, and with `None` removed.
pub type StateChanges = BTreeMap<String, Option<String>>;

impl Db {
    /// Opens or makes the database, readable by its owner only, and brings its schema up to date. Its writes wait up to
    /// `busy` for somebody else's.
    pub fn open(path: &Path, busy: Duration) -> Result<Db, Failure> {
        // SQLite gives its other files the permissions of this one. If it cannot be made, opening says why.
        let _ = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let _ = fs::set_permissions(path, Permissions::from_mode(0o600));
        let mut connection = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), VFS)?;
        connection.busy_timeout(busy)?;
        let fresh = fs::metadata(path).is_ok_and(|file| file.len() == 0);
        // Nobody misses an empty database, and waiting for a card to take one would double the time to start.
        let until_made = if fresh { "OFF" } else { "FULL" };
        connection.execute_batch(&format!(
            "PRAGMA page_size={PAGE_BYTES};
             PRAGMA synchronous={until_made};
             PRAGMA journal_mode=WAL;
             PRAGMA wal_autocheckpoint={WAL_PAGES};
             PRAGMA journal_size_limit={};
             PRAGMA cache_size=-{CACHE_KIB};
             PRAGMA temp_store=MEMORY;
             PRAGMA cell_size_check=ON;
             PRAGMA trusted_schema=OFF;",
            WAL_PAGES * PAGE_BYTES
        ))?;
        migrate(&mut connection)?;
        connection.execute_batch("PRAGMA synchronous=FULL")?;
        let last_row_id =
            connection.query_row("SELECT id FROM request ORDER BY id DESC LIMIT 1", [], |row| row.get(0));
        let rows = Rows {
            last_row_id: last_row_id.optional()?.unwrap_or(0),
            rolled_to: rollup::next_id(&connection)?,
            first_outside: rollup::first_outside(&connection)?,
            ..Rows::default()
        };
        Ok(Db { connection, rows })
    }

    /// Looks at every page; fails when one is damaged.
    pub fn check(&self) -> Result<(), Failure> {
        let verdict: String = self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if verdict == "ok" {
            return Ok(());
        }
        Err(Failure::Damaged(verdict))
    }

    /// Which database this is, as random text.
    pub fn identity(&self) -> Result<String, Failure> {
        identity_of(&self.connection)
    }

    /// Makes it another database.
    pub fn renew_identity(&self) -> Result<(), Failure> {
        self.connection.execute("DELETE FROM identity", [])?;
        self.connection.execute("INSERT INTO identity VALUES (?1)", [fresh_id("")])?;
        Ok(())
    }

    /// Everything that was saved.
    pub fn state(&self) -> Result<BTreeMap<String, String>, Failure> {
        state_of(&self.connection)
    }

    /// Writes all of it in one transaction.
    pub fn write<'r>(
        &mut self,
        state: &StateChanges,
        rows: impl IntoIterator<Item = &'r Row>,
        sessions: &[SessionChange],
    ) -> Result<(), Failure> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        write_state(&transaction, state)?;
        let mut inserter = Inserter::new(&transaction, &self.rows)?;
        for row in rows {
            inserter.insert(row)?;
        }
        let inserted = inserter.done(&transaction)?;
        sessions::write(&transaction, sessions)?;
        transaction.commit()?;
        // Only now: what was rolled back must not be remembered.
        let rows = &mut self.rows;
        rows.names.learn(inserted.fresh_names);
        (rows.last_row_id, rows.first_outside) = (inserted.last_row_id, inserted.first_outside);
        rows.outside += inserted.outside;
        Ok(())
    }

    /// Every stored conversation.
    pub fn sessions(&self) -> Result<Vec<SessionRow>, Failure> {
        sessions::rows(&self.connection)
    }

    /// The last rows, newest first.
    pub fn recent(&self, limit: usize) -> Result<Vec<Row>, Failure> {
        let mut statement = self.connection.prepare(&format!("{ROW_SELECT} ORDER BY r.id DESC LIMIT ?1"))?;
        let rows = statement.query_map([limit as i64], read_row)?.collect::<Result<_, _>>()?;
        Ok(rows)
    }

    /// Whether [`Db::tidy`] has something to do that should not wait.
    pub fn untidy(&self, keep: &Keep) -> Result<bool, Failure> {
        let due = self.rows.first_outside.is_some_and(|first| first < rollup::first_id_of(keep.hour()));
        Ok(due || self.rows.outside >= OUTSIDE_MAX || self.crowded(keep)?)
    }

    /// Does a small part of what has to be done about old rows: takes those of past hours into the roll-ups, removes
    /// what is too old or too much. True when there is more to do.
    pub fn tidy(&mut self, keep: &Keep) -> Result<bool, Failure> {
        Ok(self.roll_up(keep)? || self.forget(keep)?)
    }

    fn roll_up(&mut self, keep: &Keep) -> Result<bool, Failure> {
        // So many rows of the hour that is not over would slow down every view.
        let many = self.rows.outside >= OUTSIDE_MAX;
        let before_id = if many { i64::MAX } else { rollup::first_id_of(keep.hour()) };
        if !many && self.rows.first_outside.is_none_or(|first| first >= before_id) {
            return Ok(false);
        }
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut names = Names::new(&transaction, &self.rows.names)?;
        let taken = rollup::roll_up(&transaction, &mut names, before_id, STEP_ROWS)?;
        let fresh_names = names.done();
        transaction.commit()?;
        let rows = &mut self.rows;
        rows.names.learn(fresh_names);
        rows.rolled_to = rollup::next_id(&self.connection)?;
        rows.first_outside = rollup::first_outside(&self.connection)?;
        rows.outside = rows.outside.saturating_sub(taken);
        Ok(taken == STEP_ROWS)
    }

    fn forget(&mut self, keep: &Keep) -> Result<bool, Failure> {
        let crowded = self.crowded(keep)?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut removed = forget_rows(&transaction, keep.oldest_row_ms)?
            | rollup::forget(&transaction, keep.oldest_hour(), STEP_HOURS)?;
        if crowded && !removed {
            // Rows go as long as there is more than a day of them, then roll-ups, then rows again.
            removed = forget_rows(&transaction, keep.now_ms.saturating_sub(ROWS_KEPT_MS))?
                || rollup::forget(&transaction, keep.hour() - ROLLUPS_KEPT_HOURS, STEP_HOURS)?
                || forget_rows(&transaction, u64::MAX)?;
        }
        transaction.commit()?;
        Ok(removed)
    }

    /// Gives room back to the file system when the file is larger than it may be although its content is not: because
    /// the owner allows it less than before. In daily use freed pages are simply used again.
    pub fn compact(&mut self, keep: &Keep) -> Result<(), Failure> {
        let file_bytes = self.pages("page_count")? * PAGE_BYTES_U64;
        if file_bytes <= keep.bytes_max + sessions::text_bytes(&self.connection)? || self.crowded(keep)? {
            return Ok(());
        }
        // A copy of what is left would not always fit into memory.
        self.connection.execute_batch("PRAGMA temp_store=FILE; VACUUM")?;
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(self.connection.execute_batch("PRAGMA temp_store=MEMORY")?)
    }

    /// Whether history takes more room than it may. Conversations have a bound of their own, and take less room than
    /// their text is long.
    fn crowded(&self, keep: &Keep) -> Result<bool, Failure> {
        let used_bytes =
            self.pages("page_count")?.saturating_sub(self.pages("freelist_count")?) * PAGE_BYTES_U64;
        let allowed = keep.used_bytes_max();
        Ok(used_bytes > allowed && used_bytes > allowed + sessions::text_bytes(&self.connection)?)
    }

    fn pages(&self, name: &str) -> Result<u64, Failure> {
        let pages: i64 = self.connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))?;
        Ok(pages.max(0) as u64)
    }

    /// Folds the write-ahead log into the database and closes it.
    pub fn close(self) -> Result<(), Failure> {
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        self.connection.close().map_err(|(_, error)| error.into())
    }
}

#[cfg(test)]
impl Db {
    /// Lets a test write often without waiting for the disk.
    pub fn hurry(&self) {
        self.connection.execute_batch("PRAGMA synchronous=OFF").expect("a plain setting");
    }

    /// Rows of a table.
    pub fn count(&self, table: &str) -> usize {
        let count = self.connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0));
        count.map(|count: i64| count as usize).expect("a table")
    }

    /// Does something to the file that the program never does.
    pub fn run(&self, sql: &str) {
        self.connection.execute_batch(sql).expect("good SQL");
    }

    /// Makes the disk look full at this many pages.
    pub fn limit_pages(&self, pages: u32) {
        self.connection.execute_batch(&format!("PRAGMA max_page_count={pages}")).expect("a plain setting");
    }
}

fn identity_of(connection: &Connection) -> Result<String, Failure> {
    Ok(connection.query_row("SELECT id FROM identity", [], |row| row.get(0))?)
}

fn state_of(connection: &Connection) -> Result<BTreeMap<String, String>, Failure> {
    let mut statement =
        connection.prepare("SELECT key, value FROM state WHERE length(value) <= ?1 ORDER BY key LIMIT ?2")?;
    let entries = statement
        .query_map([STATE_BYTES_MAX, STATE_ENTRIES_MAX], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    Ok(entries)
}

/// Reads which database this is and what was saved in it, while nobody owns it. Nothing is written.
pub fn read_state(path: &Path) -> Result<(String, BTreeMap<String, String>), Failure> {
    let connection = Connection::open_with_flags_and_vfs(path, OpenFlags::SQLITE_OPEN_READ_ONLY, VFS)?;
    Ok((identity_of(&connection)?, state_of(&connection)?))
}

/// Reads a conversation over a connection of its own, which waits neither for the writer nor for what it is writing.
pub fn read_session(path: &Path, number: u64, busy: Duration) -> Result<Option<Stored>, Failure> {
    let connection = Connection::open_with_flags_and_vfs(path, OpenFlags::SQLITE_OPEN_READ_ONLY, VFS)?;
    connection.busy_timeout(busy)?;
    sessions::read(&connection, number)
}

/// Removes the oldest rows of those that ended before and are in the roll-ups; true when there were any.
fn forget_rows(transaction: &Transaction<'_>, before_ms: u64) -> Result<bool, Failure> {
    let before_id = row_id(before_ms).min(rollup::next_id(transaction)?);
    let deleted = transaction.execute(
        "DELETE FROM request WHERE id IN (SELECT id FROM request WHERE id < ?1 ORDER BY id LIMIT ?2)",
        params![before_id, STEP_ROWS as i64],
    )?;
    Ok(deleted > 0)
}

fn write_state(transaction: &Transaction<'_>, state: &StateChanges) -> Result<(), Failure> {
    if state.is_empty() {
        return Ok(());
    }
    let mut put = transaction.prepare(
        "INSERT INTO state (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
    )?;
    let mut remove = transaction.prepare("DELETE FROM state WHERE key = ?1")?;
    for (key, value) in state {
        match value {
            Some(value) => put.execute([key, value])?,
            None => remove.execute([key])?,
        };
    }
    Ok(())
}

/// The first id of rows that ended then.
pub fn row_id(ended_ms: u64) -> i64 {
    i64::try_from(ended_ms).unwrap_or(i64::MAX).min(i64::MAX / ROWS_PER_MS) * ROWS_PER_MS
}

/// The statements of one batch of rows, prepared once.
struct Inserter<'t> {
    row: Statement<'t>,
    names: Names<'t>,
    last_row_id: i64,
    /// Rows before this id are rolled up already.
    rolled_to: i64,
    /// Rows that came too late for that, from before a clock was set back.
    late: Vec<RolledRow>,
    /// The first and the number of those that did not.
    first_outside: Option<i64>,
    outside: usize,
}

impl<'t> Inserter<'t> {
    fn new(transaction: &'t Transaction<'_>, db: &'t Rows) -> Result<Inserter<'t>, Failure> {
        Ok(Inserter {
            row: transaction.prepare(
                "INSERT OR IGNORE INTO request VALUES
                 (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
            )?,
            names: Names::new(transaction, &db.names)?,
            last_row_id: db.last_row_id,
            rolled_to: db.rolled_to,
            late: Vec::new(),
            first_outside: db.first_outside,
            outside: 0,
        })
    }

    fn insert(&mut self, row: &Row) -> Result<(), Failure> {
        let mut id = next_row_id(self.last_row_id, row.ended_ms);
        let route = self.names.number_of_any(&row.route)?;
        let mut number =
            |name: &Option<Arc<str>>| name.as_ref().map(|name| self.names.number(name)).transpose();
        let (model, key, client) = (number(&row.model)?, number(&row.key)?, number(&row.client)?);
        let trail = (!row.trail.is_empty()).then_some(row.trail.as_str());
        // The id is taken only when the clock was set back to where rows lie already: then the next free one does.
        for _ in 0..ROWS_PER_MS {
            let inserted = self.row.execute(params![
                id,
                row.kind.code(),
                row.outcome.code(),
                row.status,
                flags_of(row),
                route,
                model,
                key,
                client,
                number_of(row.prompt_tokens),
                number_of(row.output_tokens),
                number_of(row.latency_ms),
                row.first_ms.map(number_of),
                row.attempts,
                row.requested,
                row.error,
                trail,
                row.id.as_deref().map(RequestId::packed),
                number_of(row.saved_nano_usd),
            ])?;
            if inserted == 1 {
                break;
            }
            id += 1;
        }
        self.last_row_id = id;
        if id >= self.rolled_to {
            self.outside += 1;
            self.first_outside = Some(self.first_outside.map_or(id, |first| first.min(id)));
            return Ok(());
        }
        let [model, key, client] = [model, key, client].map(Option::unwrap_or_default);
        let cell = Cell { hour: rollup::hour_of(id), model, key, client, kind: row.kind };
        self.late.push(RolledRow { id, cell, sample: Sample::from(row), error: row.error.clone() });
        Ok(())
    }

    /// Adds late rows to the roll-ups.
    fn done(mut self, transaction: &Transaction<'_>) -> Result<Inserted, Failure> {
        if !self.late.is_empty() {
            rollup::add(transaction, &mut self.names, &self.late)?;
        }
        Ok(Inserted {
            fresh_names: self.names.done(),
            last_row_id: self.last_row_id,
            first_outside: self.first_outside,
            outside: self.outside,
        })
    }
}

/// What to remember of rows once their transaction is through.
struct Inserted {
    fresh_names: HashMap<Arc<str>, i64>,
    last_row_id: i64,
    first_outside: Option<i64>,
    outside: usize,
}

/// The id of a row that ended then and comes after the row `last`.
pub fn next_row_id(last: i64, ended_ms: u64) -> i64 {
    let own = row_id(ended_ms);
    let late = (0..=DISORDER_MAX_MS * ROWS_PER_MS).contains(&(last - own));
    if late { last + 1 } else { own }
}

fn flags_of(row: &Row) -> i64 {
    i64::from(row.stream) * FLAG_STREAM
        + i64::from(row.estimated) * FLAG_ESTIMATED
        + (RowCache::code(row.cache) << CACHE_SHIFT)
        + (RowRefit::code(row.refit) << REFIT_SHIFT)
}

/// The cache in a row's flags.
pub fn cache_of(flags: i64) -> Option<RowCache> {
    RowCache::by_code(flags >> CACHE_SHIFT & CACHE_MASK)
}

/// The rung in a row's flags.
pub fn refit_of(flags: i64) -> Option<RowRefit> {
    RowRefit::by_code(flags >> REFIT_SHIFT)
}

/// The number as the database has it.
pub fn number_of(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// All columns of a row, its names as texts.
pub const ROW_SELECT: &str = "
    SELECT r.id, r.kind, r.outcome, r.status, r.flags, n.text, m.text, k.text, c.text, r.prompt_tokens,
           r.output_tokens, r.latency_ms, r.first_ms, r.attempts, r.requested, r.error, r.trail, r.request_id,
           r.saved_nano_usd
    FROM request r
    LEFT JOIN name n ON n.id = r.route LEFT JOIN name m ON m.id = r.model
    LEFT JOIN name k ON k.id = r.key LEFT JOIN name c ON c.id = r.client";

/// Reads a row of [`ROW_SELECT`].
pub fn read_row(row: &rusqlite::Row<'_>) -> Result<Row, rusqlite::Error> {
    let amount = |column: usize| row.get::<_, i64>(column).map(|number| number.max(0) as u64);
    let name = |column: usize| Ok::<_, rusqlite::Error>(row.get::<_, Option<String>>(column)?.map(Arc::from));
    let unknown = |column: usize| rusqlite::Error::InvalidColumnType(column, "code".into(), Type::Integer);
    let flags: i64 = row.get(4)?;
    Ok(Row {
        ended_ms: amount(0)? / ROWS_PER_MS as u64,
        id: RequestId::unpacked(row.get_ref(17)?),
        kind: RowKind::by_code(row.get(1)?).ok_or_else(|| unknown(1))?,
        outcome: RowOutcome::by_code(row.get(2)?).ok_or_else(|| unknown(2))?,
        status: row.get(3)?,
        stream: flags & FLAG_STREAM != 0,
        estimated: flags & FLAG_ESTIMATED != 0,
        route: name(5)?.unwrap_or_else(|| "".into()),
        model: name(6)?,
        key: name(7)?,
        client: name(8)?,
        prompt_tokens: amount(9)?,
        output_tokens: amount(10)?,
        saved_nano_usd: amount(18)?,
        latency_ms: amount(11)?,
        first_ms: row.get::<_, Option<i64>>(12)?.map(|ms| ms.max(0) as u64),
        attempts: row.get(13)?,
        cache: cache_of(flags),
        refit: refit_of(flags),
        requested: row.get(14)?,
        error: row.get(15)?,
        trail: row.get::<_, Option<String>>(16)?.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::row::sample;

    const BUSY: Duration = Duration::from_millis(50);

    fn open(folder: &tempfile::TempDir) -> Db {
        Db::open(&folder.path().join("freeway.db"), BUSY).expect("a fresh database opens")
    }

    #[test]
    fn rows_come_back_as_they_were_newest_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut db = open(&folder);
        let sparse = Row {
            requested: None,
            model: None,
            key: None,
            client: None,
            first_ms: None,
            error: None,
            trail: String::new(),
            kind: RowKind::Chat,
            outcome: RowOutcome::Canceled,
            ..sample(4)
        };
        let rows = [sample(1), sample(2), sample(3), sparse];
        db.write(&StateChanges::new(), &rows[..2], &[]).expect("written");
        db.close().expect("closed");
        let mut db = open(&folder);
        db.write(&StateChanges::new(), &rows[2..], &[]).expect("written");
        let mut expected = rows.to_vec();
        expected.reverse();
        assert_eq!(db.recent(9).expect("read"), expected);
        assert_eq!(db.recent(2).expect("read"), expected[..2]);
    }

    #[test]
    fn rows_keep_their_order_and_their_time_whatever_the_clock_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut db = open(&folder);
        let at = |ended_ms: u64| Row { ended_ms, ..sample(0) };
        let start = 1_796_000_000_000;
        // In one millisecond, a little late, after a step back of a day, and at the same time again.
        let times = [start, start, start, start - 900, start - 86_400_000, start - 86_400_000, start];
        for time in times {
            db.write(&StateChanges::new(), [&at(time)], &[]).expect("written");
        }
        let mut kept: Vec<u64> = db.recent(9).expect("read").iter().map(|row| row.ended_ms).collect();
        kept.reverse();
        assert_eq!(kept, [start - 86_400_000, start - 86_400_000, start, start, start, start, start]);
        // More rows in one millisecond than it has numbers for.
        let burst: Vec<Row> = (0..200).map(|_| at(start + 5_000)).collect();
        db.write(&StateChanges::new(), &burst, &[]).expect("written");
        assert_eq!(db.recent(1_000).expect("read").len(), times.len() + burst.len());
        for _ in 0..4 {
            db.write(&StateChanges::new(), [&at(u64::MAX)], &[]).expect("even an absurd time is written");
        }
    }

    #[test]
    fn a_write_that_fails_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut db = open(&folder);
        db.limit_pages(12);
        let state = StateChanges::from([("a".to_owned(), Some("1".to_owned()))]);
        let many: Vec<Row> = (0..2_000).map(sample).collect();
        let failure = db.write(&state, &many, &[]).expect_err("the disk is full");
        assert_eq!(failure.trouble(), Trouble::DiskFull);
        assert!(db.recent(9).expect("read").is_empty());
        assert!(db.state().expect("read").is_empty());
        db.limit_pages(100_000);
        db.write(&state, &many, &[]).expect("written");
        assert_eq!(db.recent(3_000).expect("read").len(), 2_000);
        assert_eq!(db.recent(1).expect("read")[0].route.as_ref(), "alias:fast", "names were not lost");
    }

    #[test]
    fn state_is_replaced_and_removed_by_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut db = open(&folder);
        let change = |key: &str, value: Option<&str>| (key.to_owned(), value.map(str::to_owned));
        db.write(&StateChanges::from([change("a", Some("1")), change("b", Some("2"))]), [], &[])
            .expect("written");
        db.write(
            &StateChanges::from([change("a", Some("3")), change("b", None), change("c", None)]),
            [],
            &[],
        )
        .expect("written");
        assert_eq!(db.state().expect("read"), BTreeMap::from([("a".to_owned(), "3".to_owned())]));
    }

    #[test]
    fn old_rows_go_and_the_oldest_when_there_are_too_many() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut db = open(&folder);
        let rows: Vec<Row> = (0..5_000).map(sample).collect();
        db.write(&StateChanges::new(), &rows, &[]).expect("written");
        let keep =
            Keep { now_ms: rows[4_999].ended_ms, oldest_row_ms: rows[100].ended_ms, bytes_max: u64::MAX };
        let tidy = |db: &mut Db, keep: &Keep| {
            for _ in 0..100 {
                if !db.tidy(keep).expect("tidied") {
                    return;
                }
            }
            panic!("it does not end");
        };
        tidy(&mut db, &keep);
        let kept = db.recent(10_000).expect("read");
        assert_eq!((kept.len(), kept.last()), (4_900, Some(&rows[100])));
        tidy(&mut db, &Keep { oldest_row_ms: 0, bytes_max: 200_000, ..keep });
        let kept = db.recent(10_000).expect("read");
        assert!((1..4_000).contains(&kept.len()) && kept.first() == rows.last(), "{}", kept.len());
    }

    #[test]
    fn a_database_of_a_later_version_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = open(&folder);
        db.connection.pragma_update(None, "user_version", 99).expect("a plain setting");
        db.close().expect("closed");
        let failure = Db::open(&folder.path().join("freeway.db"), BUSY).expect_err("it is newer");
        assert_eq!(failure.trouble(), Trouble::Newer);
    }
}
