//! Texts that many rows share, kept once and named by number. The table is bounded: once it is full, what clients can
//! make up is no longer told apart.
use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Statement, Transaction};

use super::db::Failure;

/// Names in the database, about 4 MiB. Those of models, keys and clients come from the configuration and are few;
/// those of routes and error codes may come from clients and upstreams.
const NAMES_MAX: i64 = 32_768;
/// What stands for a name for which there is no room.
const OTHER: &str = "(other)";
/// Names kept in memory with their numbers.
const CACHED_MAX: usize = 4_096;

/// Numbers of names that were looked up before.
#[derive(Debug, Default)]
pub struct Known(HashMap<Arc<str>, i64>);

impl Known {
    /// Remembers names once the transaction that may have made them is through: a number that was rolled back must not
    /// be remembered.
    pub fn learn(&mut self, fresh: HashMap<Arc<str>, i64>) {
        if self.0.len() + fresh.len() > CACHED_MAX {
            self.0.clear();
        }
        self.0.extend(fresh.into_iter().take(CACHED_MAX));
    }
}

/// Names within one transaction, which may add some.
pub struct Names<'t> {
    insert: Statement<'t>,
    look_up: Statement<'t>,
    known: &'t Known,
    fresh: HashMap<Arc<str>, i64>,
    full: bool,
}

impl<'t> Names<'t> {
    /// Prepares what is needed.
    pub fn new(transaction: &'t Transaction<'_>, known: &'t Known) -> Result<Names<'t>, Failure> {
        Ok(Names {
            insert: transaction.prepare("INSERT OR IGNORE INTO name (text) VALUES (?1)")?,
            look_up: transaction.prepare("SELECT id FROM name WHERE text = ?1")?,
            known,
            fresh: HashMap::new(),
            full: count(transaction)? >= NAMES_MAX,
        })
    }

    /// The number of a name that the configuration made.
    pub fn number(&mut self, name: &Arc<str>) -> Result<i64, Failure> {
        if let Some(id) = self.remembered(name) {
            return Ok(id);
        }
        self.insert.execute([name.as_ref()])?;
        let id = self.look_up.query_row([name.as_ref()], |row| row.get(0))?;
        self.fresh.insert(Arc::clone(name), id);
        Ok(id)
    }

    /// The number of a name that may come from anywhere; that of a stand-in when there are too many.
    pub fn number_of_any(&mut self, name: &str) -> Result<i64, Failure> {
        if let Some(id) = self.remembered(name) {
            return Ok(id);
        }
        if !self.full {
            return self.number(&name.into());
        }
        let known = self.look_up.query_row([name], |row| row.get(0)).optional()?;
        known.map_or_else(|| self.number(&OTHER.into()), Ok)
    }

    fn remembered(&self, name: &str) -> Option<i64> {
        self.known.0.get(name).or_else(|| self.fresh.get(name)).copied()
    }

    /// What to remember once the transaction is through.
    pub fn done(self) -> HashMap<Arc<str>, i64> {
        self.fresh
    }
}

/// Names are never removed, so the last number is their count.
fn count(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.query_row("SELECT coalesce(max(id), 0) FROM name", [], |row| row.get(0))
}
