//! Rows of requests, newest first, a page at a time.
use std::cmp::Reverse;

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::analytics::Filter;
use super::db::{CACHE_MASK, CACHE_SHIFT, ROW_SELECT, read_row, row_id};
use super::reader::Seen;
use super::row::{Row, RowCache, RowKind, RowOutcome};

/// Most rows of one page.
pub const PAGE_MAX: usize = 500;

/// Which rows are asked for.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// At most [`PAGE_MAX`].
    pub limit: usize,
    /// Only rows before the one with this id.
    pub before: Option<i64>,
    pub names: Filter,
    pub kind: Option<RowKind>,
    pub outcome: Option<RowOutcome>,
    /// `Some(None)` is without a cache.
    pub cache: Option<Option<RowCache>>,
    /// `error.code`.
    pub error: Option<String>,
    /// When the requests ended, in milliseconds since 1970, the end excluded.
    pub from_ms: Option<u64>,
    pub to_ms: Option<u64>,
}

/// One page.
#[derive(Debug)]
pub struct Page {
    /// With their ids, newest first.
    pub rows: Vec<(i64, Row)>,
    /// Whether there are older ones.
    pub more: bool,
}

impl Ask {
    fn takes(&self, id: i64, row: &Row) -> bool {
        let (from, to) = self.ids();
        (from..to).contains(&id)
            && self.names.takes(row.model.as_deref(), row.key.as_deref(), row.client.as_deref())
            && self.kind.is_none_or(|kind| kind == row.kind)
            && self.outcome.is_none_or(|outcome| outcome == row.outcome)
            && self.cache.is_none_or(|cache| cache == row.cache)
            && self.error.as_ref().is_none_or(|error| Some(error) == row.error.as_ref())
    }

    /// The ids that rows may have, the end excluded.
    fn ids(&self) -> (i64, i64) {
        let from = self.from_ms.map_or(i64::MIN, row_id);
        let to = self.to_ms.map_or(i64::MAX, row_id);
        (from, self.before.map_or(to, |before| before.min(to)))
    }

    /// The condition of SQL that says the same as [`Ask::takes`].
    fn condition(&self) -> (String, Vec<Value>) {
        let (from, to) = self.ids();
        let mut sql = String::from("r.id >= ?1 AND r.id < ?2");
        let mut values = vec![Value::from(from), Value::from(to)];
        let mut and = |condition: &str, value: Value| {
            values.push(value);
            sql += &format!(" AND {}", condition.replace('?', &format!("?{}", values.len())));
        };
        let names = &self.names;
        for (column, name) in [("model", &names.model), ("key", &names.key), ("client", &names.client)] {
            match name.as_deref() {
                Some("") => and(&format!("? AND r.{column} IS NULL"), Value::from(1)),
                Some(name) => {
                    and(
                        &format!("r.{column} = (SELECT id FROM name WHERE text = ?)"),
                        name.to_owned().into(),
                    );
                }
                None => {}
            }
        }
        match names.provider.as_deref() {
            Some("") => and("? AND r.model IS NULL", Value::from(1)),
            Some(provider) => and(
                "r.model IN (SELECT id FROM name WHERE text >= ? || '/' AND text < ? || '0')",
                provider.to_owned().into(),
            ),
            None => {}
        }
        if let Some(kind) = self.kind {
            and("r.kind = ?", kind.code().into());
        }
        if let Some(outcome) = self.outcome {
            and("r.outcome = ?", outcome.code().into());
        }
        if let Some(cache) = self.cache {
            let bits = format!("(r.flags >> {CACHE_SHIFT} & {CACHE_MASK}) = ?");
            and(&bits, RowCache::code(cache).into());
        }
        if let Some(error) = &self.error {
            and("r.error = ?", error.clone().into());
        }
        (sql, values)
    }
}

/// The newest rows of those that are asked for.
pub fn page(seen: &Seen, ask: &Ask) -> Result<Page, rusqlite::Error> {
    // One more tells whether there are more.
    let wanted = ask.limit.clamp(1, PAGE_MAX) + 1;
    let waiting = seen.waiting.iter().rev().filter(|(id, row)| ask.takes(*id, row));
    let mut rows: Vec<(i64, Row)> = waiting.take(wanted).cloned().collect();
    if let Some(connection) = &seen.connection {
        // After a clock was set back, what waits is not the newest.
        rows.extend(stored(connection, ask, wanted)?);
        rows.sort_by_key(|(id, _)| Reverse(*id));
        rows.truncate(wanted);
    }
    let more = rows.len() == wanted;
    rows.truncate(wanted - 1);
    Ok(Page { rows, more })
}

fn stored(connection: &Connection, ask: &Ask, wanted: usize) -> Result<Vec<(i64, Row)>, rusqlite::Error> {
    let (condition, values) = ask.condition();
    let sql = format!("{ROW_SELECT} WHERE {condition} ORDER BY r.id DESC LIMIT {wanted}");
    let mut select = connection.prepare(&sql)?;
    let rows = select.query_map(params_from_iter(values), |row| Ok((row.get(0)?, read_row(row)?)))?;
    rows.collect()
}
