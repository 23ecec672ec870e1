//! The tables of the database, as numbered migrations.
use rusqlite::{Connection, TransactionBehavior};

use super::db::Failure;
use super::sessions;
use crate::base::text::fresh_id;

/// The version at which the database stands when all migrations have run.
pub const VERSION: usize = MIGRATIONS.len();

/// Numbered migrations: the database stands at version n when the first n have run.
const MIGRATIONS: [&str; 3] = [
    "
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
    ",
    sessions::SCHEMA,
    "
    -- The x-request-id: the twelve random bytes of one of ours, or the text that a client chose.
    ALTER TABLE request ADD COLUMN request_id ANY;
    ALTER TABLE request ADD COLUMN saved_nano_usd INTEGER NOT NULL DEFAULT 0;
    -- What was asked in an hour (counted from 1970) with each model, key and client, as src/store/rollup.rs packs it.
    -- A view over months reads all of it: as a table of its own it took ten times as long.
    CREATE TABLE hourly (hour INTEGER PRIMARY KEY, cells BLOB NOT NULL) STRICT;
    -- Failed requests of an hour by error code.
    CREATE TABLE hourly_error (
        hour INTEGER NOT NULL, model INTEGER NOT NULL, key INTEGER NOT NULL, client INTEGER NOT NULL,
        code INTEGER NOT NULL, requests INTEGER NOT NULL,
        PRIMARY KEY (hour, model, key, client, code)
    ) STRICT, WITHOUT ROWID;
    -- One row: requests before this id are in the roll-ups, and the sum of all that ever were, which does not shrink
    -- when they go.
    CREATE TABLE rolled (
        next_id INTEGER NOT NULL, since_ms INTEGER,
        requests INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, canceled INTEGER NOT NULL DEFAULT 0,
        cached_exact INTEGER NOT NULL DEFAULT 0, cached_semantic INTEGER NOT NULL DEFAULT 0,
        streamed INTEGER NOT NULL DEFAULT 0, estimated INTEGER NOT NULL DEFAULT 0,
        refit INTEGER NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0,
        tokens_in INTEGER NOT NULL DEFAULT 0, tokens_out INTEGER NOT NULL DEFAULT 0,
        saved_nano_usd INTEGER NOT NULL DEFAULT 0, total_ms INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    INSERT INTO rolled (next_id) VALUES (0);
    ",
];

/// Brings the tables up to date.
pub fn migrate(connection: &mut Connection) -> Result<(), Failure> {
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
