//! The database file: its schema, its migrations, what is read from it and written to it, and what to do when it is
//! damaged. Used by one thread at a time; when to write is the writer's business.
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::Type;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Statement, Transaction, TransactionBehavior, params,
};

use super::Trouble;
use super::row::{Row, RowCache, RowKind, RowOutcome, RowRefit};
use super::sessions::{self, SessionChange, SessionRow, Stored};
use crate::base::calendar;
use crate::base::text::fresh_id;

/// Numbered migrations: the database stands at version n when the first n have run.
const MIGRATIONS: [&str; 2] = ["
    -- With a row id, so that a value of a few hundred bytes stays in one page and what came together lies together.
    CREATE TABLE state (key TEXT NOT NULL UNIQUE, value TEXT NOT NULL) STRICT;
    -- One row: which database this is, so that the journal beside it is known to be its own.
    CREATE TABLE identity (id TEXT NOT NULL) STRICT;
    -- Texts that many rows share.
    CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT;
    -- id = end of the request in milliseconds since 1970, times 64, plus a running number: rows lie in the order of
    -- time and need no further index.
    CREATE TABLE request (
        id INTEGER PRIMARY KEY,
        kind INTEGER NOT NULL, outcome INTEGER NOT NULL, status INTEGER NOT NULL, flags INTEGER NOT NULL,
        route INTEGER NOT NULL, model INTEGER, key INTEGER, client INTEGER,
        prompt_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
        latency_ms INTEGER NOT NULL, first_ms INTEGER, attempts INTEGER NOT NULL,
        requested TEXT, error TEXT, trail TEXT
    ) STRICT;
", sessions::SCHEMA];

/// Small pages: what changes every ten seconds is one or two of them, and each is written whole.
const PAGE_BYTES: u32 = 1_024;
/// The write-ahead log is folded into the database when it has this many pages, and cut to this size then.
const WAL_PAGES: u32 = 1_000;
/// Memory for cached pages.
const CACHE_KIB: u32 = 512;

/// SQLite's file access for one process: it keeps the index of the write-ahead log in memory. As a mapped file that
/// index would go to the disk twice a minute and cost more than what it indexes. The price: other programs cannot open
/// the database while the gateway runs.
const VFS: &str = "unix-excl";

/// Rows in one millisecond that keep their time exactly.
const ROWS_PER_MS: i64 = 64;
/// A row that ended up to this long before its predecessor in the database is put right behind it; one from further
/// back comes from a clock that was set back.
const DISORDER_MAX_MS: i64 = 60_000;

/// What `flags` is made of: two bits, then the number of a cache (two bits) and that of a rung.
const FLAG_STREAM: i64 = 1;
const FLAG_ESTIMATED: i64 = 2;
const CACHE_SHIFT: u32 = 2;
const REFIT_SHIFT: u32 = 4;
const CACHE_MASK: i64 = 3;

/// Names kept in memory with their numbers.
const NAMES_CACHED_MAX: usize = 4_096;
/// Entries of saved state that are read back, and the longest of them.
const STATE_ENTRIES_MAX: i64 = 65_536;
const STATE_BYTES_MAX: i64 = 65_536;
/// Damaged databases that are kept for a look.
const SET_ASIDE_MAX: usize = 3;
/// Rows deleted in one transaction.
const DELETE_ROWS: i64 = 2_000;

/// An open database.
#[derive(Debug)]
pub struct Db {
    connection: Connection,
    names: HashMap<Arc<str>, i64>,
    last_row_id: i64,
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
        let last_row_id = last_row_id.optional()?.unwrap_or(0);
        Ok(Db { connection, names: HashMap::new(), last_row_id })
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
        Ok(self.connection.query_row("SELECT id FROM identity", [], |row| row.get(0))?)
    }

    /// Everything that was saved.
    pub fn state(&self) -> Result<BTreeMap<String, String>, Failure> {
        let mut statement = self
            .connection
            .prepare("SELECT key, value FROM state WHERE length(value) <= ?1 ORDER BY key LIMIT ?2")?;
        let entries = statement
            .query_map([STATE_BYTES_MAX, STATE_ENTRIES_MAX], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        Ok(entries)
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
        let mut inserter = Inserter::new(&transaction, &self.names, self.last_row_id)?;
        for row in rows {
            inserter.insert(row)?;
        }
        let (fresh_names, last_row_id) = inserter.done();
        sessions::write(&transaction, sessions)?;
        transaction.commit()?;
        // Only now: a number that was rolled back must not be remembered.
        self.last_row_id = last_row_id;
        if self.names.len() + fresh_names.len() > NAMES_CACHED_MAX {
            self.names.clear();
        }
        self.names.extend(fresh_names.into_iter().take(NAMES_CACHED_MAX));
        Ok(())
    }

    /// Every stored conversation.
    pub fn sessions(&self) -> Result<Vec<SessionRow>, Failure> {
        sessions::rows(&self.connection)
    }

    /// The last rows, newest first.
    pub fn recent(&self, limit: usize) -> Result<Vec<Row>, Failure> {
        let mut statement = self.connection.prepare(
            "SELECT r.id, r.kind, r.outcome, r.status, r.flags, n.text, m.text, k.text, c.text, r.prompt_tokens,
                    r.output_tokens, r.latency_ms, r.first_ms, r.attempts, r.requested, r.error, r.trail
             FROM request r
             LEFT JOIN name n ON n.id = r.route LEFT JOIN name m ON m.id = r.model
             LEFT JOIN name k ON k.id = r.key LEFT JOIN name c ON c.id = r.client
             ORDER BY r.id DESC LIMIT ?1",
        )?;
        let rows = statement.query_map([limit as i64], read_row)?.collect::<Result<_, _>>()?;
        Ok(rows)
    }

    /// Removes some of the rows that are too old or too many; true when there may be more.
    pub fn forget(&mut self, oldest_ms: u64, bytes_max: u64) -> Result<bool, Failure> {
        let pages = |name: &str| -> Result<i64, rusqlite::Error> {
            self.connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
        };
        let used_bytes = (pages("page_count")? - pages("freelist_count")?) * i64::from(PAGE_BYTES);
        // Conversations have a bound of their own. They take less room than their text is long.
        let used_bytes = used_bytes - sessions::text_bytes(&self.connection)?;
        let crowded = used_bytes > i64::try_from(bytes_max).unwrap_or(i64::MAX);
        let oldest_id = if crowded { i64::MAX } else { row_id(oldest_ms) };
        let deleted = self.connection.execute(
            "DELETE FROM request WHERE id IN (SELECT id FROM request WHERE id < ?1 ORDER BY id LIMIT ?2)",
            [oldest_id, DELETE_ROWS],
        )?;
        Ok(deleted as i64 == DELETE_ROWS)
    }

    /// Folds the write-ahead log into the database and closes it.
    pub fn close(self) -> Result<(), Failure> {
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        self.connection.close().map_err(|(_, error)| error.into())
    }
}

#[cfg(test)]
impl Db {
    /// Makes the disk look full at this many pages.
    pub fn limit_pages(&self, pages: u32) {
        self.connection.execute_batch(&format!("PRAGMA max_page_count={pages}")).expect("a plain setting");
    }
}

/// Reads a conversation over a connection of its own, which waits neither for the writer nor for what it is writing.
pub fn read_session(path: &Path, number: u64, busy: Duration) -> Result<Option<Stored>, Failure> {
    let connection = Connection::open_with_flags_and_vfs(path, OpenFlags::SQLITE_OPEN_READ_ONLY, VFS)?;
    connection.busy_timeout(busy)?;
    sessions::read(&connection, number)
}

fn migrate(connection: &mut Connection) -> Result<(), Failure> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let done = usize::try_from(version).unwrap_or(usize::MAX);
    if done > MIGRATIONS.len() {
        return Err(Failure::Newer);
    }
    for (number, sql) in MIGRATIONS.iter().enumerate().skip(done) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
        transaction.execute_batch(sql)?;
        if number == 0 {
            transaction.execute("INSERT INTO identity VALUES (?1)", [fresh_id("")])?;
        }
        transaction.pragma_update(None, "user_version", number as i64 + 1)?;
        transaction.commit()?;
    }
    Ok(())
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

fn row_id(ended_ms: u64) -> i64 {
    i64::try_from(ended_ms).unwrap_or(i64::MAX).min(i64::MAX / ROWS_PER_MS) * ROWS_PER_MS
}

/// The statements of one batch of rows, prepared once.
struct Inserter<'t> {
    row: Statement<'t>,
    new_name: Statement<'t>,
    name: Statement<'t>,
    names: &'t HashMap<Arc<str>, i64>,
    fresh_names: HashMap<Arc<str>, i64>,
    last_row_id: i64,
}

impl<'t> Inserter<'t> {
    fn new(
        transaction: &'t Transaction<'_>,
        names: &'t HashMap<Arc<str>, i64>,
        last_row_id: i64,
    ) -> Result<Inserter<'t>, Failure> {
        Ok(Inserter {
            row: transaction.prepare(
                "INSERT OR IGNORE INTO request VALUES
                 (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
            )?,
            new_name: transaction.prepare("INSERT OR IGNORE INTO name (text) VALUES (?1)")?,
            name: transaction.prepare("SELECT id FROM name WHERE text = ?1")?,
            names,
            fresh_names: HashMap::new(),
            last_row_id,
        })
    }

    fn insert(&mut self, row: &Row) -> Result<(), Failure> {
        let own_id = row_id(row.ended_ms);
        let late = (0..=DISORDER_MAX_MS * ROWS_PER_MS).contains(&(self.last_row_id - own_id));
        let mut id = if late { self.last_row_id + 1 } else { own_id };
        let route = self.number(&row.route)?;
        let mut number = |name: &Option<Arc<str>>| name.as_ref().map(|name| self.number(name)).transpose();
        let (model, key, client) = (number(&row.model)?, number(&row.key)?, number(&row.client)?);
        let flags = i64::from(row.stream) * FLAG_STREAM
            + i64::from(row.estimated) * FLAG_ESTIMATED
            + (RowCache::code(row.cache) << CACHE_SHIFT)
            + (RowRefit::code(row.refit) << REFIT_SHIFT);
        let trail = (!row.trail.is_empty()).then_some(row.trail.as_str());
        // The id is taken only when the clock was set back to where rows lie already: then the next free one does.
        for _ in 0..ROWS_PER_MS {
            let inserted = self.row.execute(params![
                id,
                row.kind.code(),
                row.outcome.code(),
                row.status,
                flags,
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
            ])?;
            if inserted == 1 {
                break;
            }
            id += 1;
        }
        self.last_row_id = id;
        Ok(())
    }

    /// What to remember once the transaction is through: new numbers of names, and the last row's id.
    fn done(self) -> (HashMap<Arc<str>, i64>, i64) {
        (self.fresh_names, self.last_row_id)
    }

    /// The number of a shared text, new or known.
    fn number(&mut self, name: &Arc<str>) -> Result<i64, Failure> {
        if let Some(id) = self.names.get(name).or_else(|| self.fresh_names.get(name)) {
            return Ok(*id);
        }
        self.new_name.execute([name.as_ref()])?;
        let id = self.name.query_row([name.as_ref()], |row| row.get(0))?;
        self.fresh_names.insert(Arc::clone(name), id);
        Ok(id)
    }
}

fn number_of(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

fn read_row(row: &rusqlite::Row<'_>) -> Result<Row, rusqlite::Error> {
    let amount = |column: usize| row.get::<_, i64>(column).map(|number| number.max(0) as u64);
    let name = |column: usize| Ok::<_, rusqlite::Error>(row.get::<_, Option<String>>(column)?.map(Arc::from));
    let unknown = |column: usize| rusqlite::Error::InvalidColumnType(column, "code".into(), Type::Integer);
    let flags: i64 = row.get(4)?;
    Ok(Row {
        ended_ms: amount(0)? / ROWS_PER_MS as u64,
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
        latency_ms: amount(11)?,
        first_ms: row.get::<_, Option<i64>>(12)?.map(|ms| ms.max(0) as u64),
        attempts: row.get(13)?,
        cache: RowCache::by_code(flags >> CACHE_SHIFT & CACHE_MASK),
        refit: RowRefit::by_code(flags >> REFIT_SHIFT),
        requested: row.get(14)?,
        error: row.get(15)?,
        trail: row.get::<_, Option<String>>(16)?.unwrap_or_default(),
    })
}

/// Makes the data folder, or closes an existing one to others.
pub fn prepare_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Takes the lock that makes the data folder ours; it is held for as long as the connection lives. Fails as busy when
/// another process has it. The database in it is never written and stays empty.
pub fn lock(path: &Path) -> Result<Connection, Failure> {
    let _ = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::ZERO)?;
    connection.execute_batch("PRAGMA journal_mode=MEMORY; BEGIN EXCLUSIVE")?;
    Ok(connection)
}

/// The files that belong to a database.
fn files_of(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    })
}

/// Whether the last process left without folding in its write-ahead log.
pub fn left_open(path: &Path) -> bool {
    let [_, wal, _] = files_of(path);
    fs::metadata(wal).is_ok_and(|wal| wal.len() > 0)
}

/// What the name of a damaged file ends with, before the time.
const ASIDE: &str = ".damaged-";
/// Most names that are tried before an older file is overwritten.
const SAME_SECOND_MAX: u64 = 10;

/// Moves a damaged database out of the way, under names that tell when; only the newest of several are kept. Tells the
/// new name.
pub fn set_aside(path: &Path, wall_ms: u64) -> io::Result<PathBuf> {
    let named = |file: &Path, stamp: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(format!("{ASIDE}{stamp}"));
        PathBuf::from(name)
    };
    // What was moved aside within the same second keeps its name.
    let stamps = (0..SAME_SECOND_MAX).map(|later| calendar::stamp(wall_ms + later * 1000));
    let free = |stamp: &String| files_of(path).iter().all(|file| !named(file, stamp).exists());
    let stamp = stamps.into_iter().find(free).unwrap_or_else(|| calendar::stamp(wall_ms));
    let aside = |file: &Path| named(file, &stamp);
    for file in files_of(path) {
        match fs::rename(&file, aside(&file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // A failure leaves a file too many, which hurts nobody.
    let _ = remove_old_aside(path);
    Ok(aside(path))
}

fn remove_old_aside(path: &Path) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let mut aside: Vec<(String, PathBuf)> = fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let (of, stamp) = file.rsplit_once(ASIDE)?;
            of.starts_with(name).then(|| (stamp.to_owned(), entry.path()))
        })
        .collect();
    aside.sort_unstable();
    let mut stamps: Vec<&str> = aside.iter().map(|(stamp, _)| stamp.as_str()).collect();
    stamps.dedup();
    let kept = stamps.len().saturating_sub(SET_ASIDE_MAX);
    for (_, file) in aside.iter().filter(|(stamp, _)| stamps[..kept].contains(&stamp.as_str())) {
        fs::remove_file(file)?;
    }
    Ok(())
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
        let oldest_ms = rows[100].ended_ms;
        assert!(!db.forget(oldest_ms, u64::MAX).expect("removed"));
        let kept = db.recent(10_000).expect("read");
        assert_eq!((kept.len(), kept.last()), (4_900, Some(&rows[100])));
        let mut turns = 0;
        while db.forget(0, 120_000).expect("removed") {
            turns += 1;
            assert!(turns < 10, "it ends");
        }
        let kept = db.recent(10_000).expect("read");
        assert!(kept.len() < 2_000 && kept.first() == rows.last(), "{}", kept.len());
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

    #[test]
    fn what_was_set_aside_in_the_same_second_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("freeway.db");
        let aside = ["first", "second"].map(|text| {
            fs::write(&path, text).expect("written");
            set_aside(&path, 1_796_000_000_000).expect("moved")
        });
        assert_eq!(aside.map(|file| fs::read_to_string(file).expect("kept")), ["first", "second"]);
    }

    #[test]
    fn only_the_newest_damaged_files_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("freeway.db");
        for day in 0..6 {
            for file in files_of(&path) {
                fs::write(file, "nonsense").expect("written");
            }
            set_aside(&path, 1_796_000_000_000 + day * 86_400_000).expect("moved");
            assert!(!path.exists());
        }
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .expect("read")
            .map(|entry| entry.expect("read").file_name().into_string().expect("text"))
            .collect();
        left.sort_unstable();
        assert_eq!(left.len(), SET_ASIDE_MAX * 3);
        let fourth = calendar::stamp(1_796_000_000_000 + 3 * 86_400_000);
        assert!(left[0].ends_with(&fourth), "{left:?} from {fourth} on");
    }
}
