//! What of the database goes into a backup, as a database of its own: taken in one read transaction beside the writer,
//! which is not held up, and table by table, so that neither is in memory. And how such a copy becomes the database of
//! another box.
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::db::{Db, Failure, VFS};
use super::schema;
use super::state::SUMMARY;
use crate::base::text::percent_encode;

/// Memory for pages of the copy.
const CACHE_KIB: u32 = 512;
/// How long the copy waits for somebody else's lock.
const BUSY: Duration = Duration::from_secs(10);

/// Whether a copy holds what people said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Talk {
    Without,
    /// Conversations and their summaries.
    With,
}

/// Copies state, roll-ups, and the requests that are not in them yet, to a new database at `to`. What is equal gives
/// equal bytes.
pub fn copy(live: &Path, to: &Path, talk: Talk) -> Result<(), Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(to, flags)?;
    connection.busy_timeout(BUSY)?;
    // It is thrown away when it does not come to its end. What is deleted leaves no bytes behind, so that equal contents
    // are equal files.
    connection.execute_batch(&format!(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-{CACHE_KIB}; PRAGMA temp_store=MEMORY;
         PRAGMA secure_delete=ON;"
    ))?;
    schema::migrate(&mut connection)?;
    let place: String = live.to_string_lossy().split('/').map(percent_encode).collect::<Vec<_>>().join("/");
    connection.execute("ATTACH ?1 AS live", [format!("file:{place}?mode=ro&vfs={VFS}")])?;
    let state = match talk {
        Talk::With => String::new(),
        Talk::Without => format!("WHERE key NOT GLOB '{SUMMARY}*'"),
    };
    let mut script = format!(
        "BEGIN;
         DELETE FROM identity; DELETE FROM rolled;
         INSERT INTO state SELECT * FROM live.state {state} ORDER BY key;
         INSERT INTO name SELECT * FROM live.name;
         INSERT INTO rolled SELECT * FROM live.rolled;
         INSERT INTO hourly SELECT * FROM live.hourly;
         INSERT INTO hourly_error SELECT * FROM live.hourly_error;
         INSERT INTO request SELECT * FROM live.request WHERE id >= (SELECT next_id FROM live.rolled);"
    );
    if talk == Talk::With {
        for table in ["session", "session_part", "image", "image_use"] {
            script += &format!("INSERT INTO {table} SELECT * FROM live.{table};");
        }
    }
    connection.execute_batch(&script)?;
    connection.execute_batch("COMMIT; DETACH live")?;
    connection.close().map_err(|(_, error)| error.into())
}

/// The version of the tables that this program makes.
pub fn schema_version() -> u16 {
    u16::try_from(schema::VERSION).unwrap_or(u16::MAX)
}

/// Makes a copy fit for use: brings its tables up to date, looks at every page, and gives it a name of its own, so that
/// the journal of the database before it is not taken for its own.
pub fn adopt(path: &Path) -> Result<(), Failure> {
    let db = Db::open(path, BUSY)?;
    db.check()?;
    db.renew_identity()?;
    db.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::{Keep, StateChanges};
    use crate::store::row::sample;

    fn entry(key: &str, value: &str) -> (String, Option<String>) {
        (key.to_owned(), Some(value.to_owned()))
    }

    fn filled(folder: &Path) -> Db {
        let mut db = Db::open(&folder.join("with spaces & ?.db"), BUSY).expect("a fresh database opens");
        let state =
            StateChanges::from([entry("meter:key/a", "{}"), entry("summary:s", "they spoke of secrets")]);
        let rows: Vec<_> = (0..50).map(sample).collect();
        db.write(&state, &rows, &[]).expect("written");
        let keep = Keep { now_ms: rows[49].ended_ms + 2 * 3_600_000, oldest_row_ms: 0, bytes_max: u64::MAX };
        while db.tidy(&keep).expect("rolled up") {}
        db.write(&StateChanges::new(), &(50..60).map(sample).collect::<Vec<_>>(), &[]).expect("written");
        db
    }

    #[test]
    fn a_copy_beside_the_writer_holds_what_cannot_be_rebuilt() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = filled(folder.path());
        let (first, second, whole) =
            (folder.path().join("1"), folder.path().join("2"), folder.path().join("3"));
        copy(&folder.path().join("with spaces & ?.db"), &first, Talk::Without).expect("copied");
        copy(&folder.path().join("with spaces & ?.db"), &second, Talk::Without).expect("copied");
        copy(&folder.path().join("with spaces & ?.db"), &whole, Talk::With).expect("copied");
        let bytes = |path: &Path| std::fs::read(path).expect("there");
        assert!(bytes(&first) == bytes(&second), "what is equal gives equal bytes");
        assert!(bytes(&first) != bytes(&whole));
        assert!(!String::from_utf8_lossy(&bytes(&first)).contains("secrets"), "nothing that people said");
        adopt(&first).expect("it is whole");
        let copied = Db::open(&first, BUSY).expect("it opens");
        let keys: Vec<String> = copied.state().expect("read").into_keys().collect();
        assert_eq!(keys, ["meter:key/a"]);
        assert_eq!(copied.count("hourly"), db.count("hourly"));
        assert_eq!(copied.count("request"), db.count("request") - 50, "rows of the roll-ups stay behind");
        assert_ne!(copied.identity().expect("one"), db.identity().expect("one"));
    }
}
