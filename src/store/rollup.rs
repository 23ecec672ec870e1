//! Roll-ups: requests of an hour with one model, key and client, added up in one cell, so that a view over months reads
//! thousands of cells and not a million rows, and outlives the rows.
//!
//! A row is either in the roll-ups or still to be read by itself: [`next_id`] is the border, and both sides of it change
//! in one transaction. So a view that adds cells and rows counts each request once, at any moment and after any end.
use std::collections::BTreeMap;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row as Record, Transaction, params, params_from_iter};

use super::db::{FLAG_ESTIMATED, FLAG_STREAM, Failure, cache_of, number_of, refit_of};
use super::figures::{Figures, Sample, TOTALS, Totals};
use super::names::Names;
use super::row::{ROWS_PER_MS, RowKind, RowOutcome};
use crate::base::histogram::Sparse;
use crate::base::varint::{push_number, take_number};

pub const HOUR_MS: u64 = 3_600_000;

/// Ids of the rows of one hour.
const IDS_PER_HOUR: i64 = ROWS_PER_MS * HOUR_MS as i64;

/// Where a request is counted: names by their numbers, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Since 1970.
    pub hour: i64,
    pub model: i64,
    pub key: i64,
    pub client: i64,
    pub kind: RowKind,
}

/// The hour of a row.
pub fn hour_of(row_id: i64) -> i64 {
    row_id.div_euclid(IDS_PER_HOUR)
}

/// When the request of a row ended, in milliseconds since 1970.
pub fn ended_ms(row_id: i64) -> u64 {
    (row_id / ROWS_PER_MS).max(0) as u64
}

/// The first id that a row of this hour may have.
pub fn first_id_of(hour: i64) -> i64 {
    hour.saturating_mul(IDS_PER_HOUR)
}

/// A row as far as roll-ups need it.
#[derive(Clone, Debug, PartialEq)]
pub struct RolledRow {
    pub id: i64,
    pub cell: Cell,
    pub sample: Sample,
    pub error: Option<String>,
}

/// Columns of `request` for [`read_row`].
pub const ROW_COLUMNS: &str = "id, kind, outcome, flags, model, key, client, prompt_tokens, output_tokens, \
                               latency_ms, first_ms, attempts, saved_nano_usd, error";

/// Reads [`ROW_COLUMNS`].
pub fn read_row(row: &Record<'_>) -> Result<RolledRow, rusqlite::Error> {
    let amount = |column: usize| row.get::<_, i64>(column).map(|number| number.max(0) as u64);
    let name = |column: usize| row.get::<_, Option<i64>>(column).map(Option::unwrap_or_default);
    let unknown = |column: usize| rusqlite::Error::InvalidColumnType(column, "code".into(), Type::Integer);
    let (id, flags): (i64, i64) = (row.get(0)?, row.get(3)?);
    let kind = RowKind::by_code(row.get(1)?).ok_or_else(|| unknown(1))?;
    let cell = Cell { hour: hour_of(id), model: name(4)?, key: name(5)?, client: name(6)?, kind };
    let sample = Sample {
        kind,
        outcome: RowOutcome::by_code(row.get(2)?).ok_or_else(|| unknown(2))?,
        stream: flags & FLAG_STREAM != 0,
        estimated: flags & FLAG_ESTIMATED != 0,
        cache: cache_of(flags),
        refit: refit_of(flags),
        prompt_tokens: amount(7)?,
        output_tokens: amount(8)?,
        latency_ms: amount(9)?,
        first_ms: row.get::<_, Option<i64>>(10)?.map(|ms| ms.max(0) as u64),
        attempts: row.get(11)?,
        saved_nano_usd: amount(12)?,
    };
    Ok(RolledRow { id, cell, sample, error: row.get(13)? })
}

/// Rows before this id are in the roll-ups; all others are not.
pub fn next_id(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.query_row("SELECT next_id FROM rolled", [], |row| row.get(0))
}

/// The first row that is not in the roll-ups.
pub fn first_outside(connection: &Connection) -> Result<Option<i64>, rusqlite::Error> {
    let sql = "SELECT id FROM request WHERE id >= (SELECT next_id FROM rolled) ORDER BY id LIMIT 1";
    connection.query_row(sql, [], |row| row.get(0)).optional()
}

/// Since when requests were ever rolled up, and the sum of them.
pub fn all_time(connection: &Connection) -> Result<(Option<u64>, Totals), rusqlite::Error> {
    let sql = format!("SELECT since_ms, {} FROM rolled", Totals::COLUMNS.join(", "));
    connection.query_row(&sql, [], |row| {
        let since: Option<i64> = row.get(0)?;
        Ok((since.map(|ms| ms.max(0) as u64), read_totals(row, 1)?))
    })
}

/// Reads [`Totals::COLUMNS`] from a column on.
pub fn read_totals(row: &Record<'_>, first: usize) -> Result<Totals, rusqlite::Error> {
    let mut numbers = [0; TOTALS];
    for (place, number) in numbers.iter_mut().enumerate() {
        *number = row.get::<_, i64>(first + place)?.max(0) as u64;
    }
    Ok(Totals::of_numbers(numbers))
}

/// Takes up to `rows_max` rows before `before_id` into the roll-ups; tells how many.
pub fn roll_up(
    transaction: &Transaction<'_>,
    names: &mut Names<'_>,
    before_id: i64,
    rows_max: usize,
) -> Result<usize, Failure> {
    let mut select = transaction.prepare(&format!(
        "SELECT {ROW_COLUMNS} FROM request
         WHERE id >= (SELECT next_id FROM rolled) AND id < ?1 ORDER BY id LIMIT ?2"
    ))?;
    let rows = select
        .query_map(params![before_id, rows_max as i64], read_row)?
        .collect::<Result<Vec<RolledRow>, _>>()?;
    let Some(last) = rows.last() else { return Ok(0) };
    add(transaction, names, &rows)?;
    transaction.execute("UPDATE rolled SET next_id = ?1", [last.id + 1])?;
    Ok(rows.len())
}

/// Adds rows to the roll-ups; those before the border belong there from the start.
pub fn add(transaction: &Transaction<'_>, names: &mut Names<'_>, rows: &[RolledRow]) -> Result<(), Failure> {
    let mut cells: BTreeMap<Cell, Figures> = BTreeMap::new();
    let mut errors: BTreeMap<[i64; 5], i64> = BTreeMap::new();
    let mut totals = Totals::default();
    for row in rows {
        totals.add(&Totals::of(&row.sample));
        cells.entry(row.cell).or_default().count(&row.sample);
        if row.sample.outcome == RowOutcome::Error {
            let code = match &row.error {
                Some(code) => names.number_of_any(code)?,
                None => 0,
            };
            let Cell { hour, model, key, client, .. } = row.cell;
            *errors.entry([hour, model, key, client, code]).or_default() += 1;
        }
    }
    write_cells(transaction, cells)?;
    let mut add_errors = transaction.prepare(
        "INSERT INTO hourly_error VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO UPDATE SET requests = requests + excluded.requests",
    )?;
    for (place, requests) in errors {
        add_errors.execute(params_from_iter(place.into_iter().chain([requests])))?;
    }
    let first_ms = rows.iter().map(|row| row.id / ROWS_PER_MS).min();
    add_all_time(transaction, first_ms, &totals)
}

fn add_all_time(
    transaction: &Transaction<'_>,
    first_ms: Option<i64>,
    totals: &Totals,
) -> Result<(), Failure> {
    let sums: Vec<String> = Totals::COLUMNS
        .iter()
        .enumerate()
        .map(|(n, column)| format!("{column} = {column} + ?{}", n + 2))
        .collect();
    let sql = format!("UPDATE rolled SET since_ms = min(ifnull(since_ms, ?1), ?1), {}", sums.join(", "));
    let numbers = totals.numbers().map(number_of);
    transaction.execute(&sql, params_from_iter(first_ms.into_iter().chain(numbers)))?;
    Ok(())
}

/// Adds to the cells that are there.
fn write_cells(transaction: &Transaction<'_>, mut cells: BTreeMap<Cell, Figures>) -> Result<(), Failure> {
    let mut hours: Vec<i64> = cells.keys().map(|cell| cell.hour).collect();
    hours.dedup();
    let mut put = transaction.prepare("INSERT OR REPLACE INTO hourly VALUES (?1, ?2)")?;
    for hour in hours {
        read_cells(transaction, hour, hour + 1, |cell, there| {
            there.add_to(cells.entry(cell).or_default());
        })?;
        let of_hour =
            |hour| Cell { hour, model: i64::MIN, key: i64::MIN, client: i64::MIN, kind: RowKind::Chat };
        let mut packed = Vec::new();
        for (cell, figures) in cells.range(of_hour(hour)..of_hour(hour + 1)) {
            pack(cell, figures, &mut packed);
        }
        put.execute(params![hour, packed])?;
    }
    Ok(())
}

/// Appends a cell: its names, its kind, its sums, and its histograms, each behind its length.
fn pack(cell: &Cell, figures: &Figures, out: &mut Vec<u8>) {
    let place = [cell.model, cell.key, cell.client, cell.kind.code()].map(|number| number.max(0) as u64);
    place.into_iter().chain(figures.totals.numbers()).for_each(|number| push_number(out, number));
    for histogram in [&figures.latency, &figures.first_token] {
        let bytes = histogram.encode();
        push_number(out, bytes.len() as u64);
        out.extend_from_slice(&bytes);
    }
}

/// Takes a cell off the front; `None` at the end, and at what makes no sense, as in a damaged file.
fn unpack(hour: i64, bytes: &mut &[u8], stored: &mut Stored) -> Option<Cell> {
    let mut number = || i64::try_from(take_number(bytes)?).ok();
    let (model, key, client) = (number()?, number()?, number()?);
    let cell = Cell { hour, model, key, client, kind: RowKind::by_code(number()?)? };
    let mut numbers = [0; TOTALS];
    for number in &mut numbers {
        *number = take_number(bytes)?;
    }
    stored.totals = Totals::of_numbers(numbers);
    for histogram in [&mut stored.latency, &mut stored.first_token] {
        let length = usize::try_from(take_number(bytes)?).ok()?;
        let (encoded, rest) = bytes.split_at_checked(length)?;
        histogram.decode(encoded);
        *bytes = rest;
    }
    Some(cell)
}

/// A stored cell.
#[derive(Debug, Default)]
pub struct Stored {
    pub totals: Totals,
    pub latency: Sparse,
    pub first_token: Sparse,
}

impl Stored {
    /// Adds the cell to other figures.
    pub fn add_to(&self, figures: &mut Figures) {
        figures.totals.add(&self.totals);
        figures.latency.add_sparse(&self.latency);
        figures.first_token.add_sparse(&self.first_token);
    }
}

/// Shows every cell from one hour up to another, in the order of time.
pub fn read_cells(
    connection: &Connection,
    from_hour: i64,
    to_hour: i64,
    mut see: impl FnMut(Cell, &Stored),
) -> Result<(), rusqlite::Error> {
    let mut select = connection.prepare("SELECT hour, cells FROM hourly WHERE hour >= ?1 AND hour < ?2")?;
    let mut rows = select.query([from_hour, to_hour])?;
    // One for all: its buffers are used again and again.
    let mut stored = Stored::default();
    while let Some(row) = rows.next()? {
        let (hour, mut packed) = (row.get(0)?, row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?);
        while let Some(cell) = unpack(hour, &mut packed, &mut stored) {
            see(cell, &stored);
        }
    }
    Ok(())
}

/// Shows every row that is not in the roll-ups and has an id from one up to another, oldest first.
pub fn read_outside(
    connection: &Connection,
    (from_id, to_id): (i64, i64),
    mut see: impl FnMut(RolledRow),
) -> Result<(), rusqlite::Error> {
    let from_id = from_id.max(next_id(connection)?);
    let sql = format!("SELECT {ROW_COLUMNS} FROM request WHERE id >= ?1 AND id < ?2 ORDER BY id");
    let mut select = connection.prepare(&sql)?;
    let mut rows = select.query([from_id, to_id])?;
    while let Some(row) = rows.next()? {
        see(read_row(row)?);
    }
    Ok(())
}

/// Removes the cells of the oldest `hours_max` hours of those before `before_hour`; true when there were any.
pub fn forget(transaction: &Transaction<'_>, before_hour: i64, hours_max: i64) -> Result<bool, Failure> {
    let Some(oldest) = oldest_hour(transaction)? else { return Ok(false) };
    let end = before_hour.min(oldest.saturating_add(hours_max));
    if oldest >= end {
        return Ok(false);
    }
    transaction.execute("DELETE FROM hourly WHERE hour < ?1", [end])?;
    transaction.execute("DELETE FROM hourly_error WHERE hour < ?1", [end])?;
    Ok(true)
}

/// The first hour that has a cell.
pub fn oldest_hour(connection: &Connection) -> Result<Option<i64>, rusqlite::Error> {
    connection.query_row("SELECT min(hour) FROM hourly", [], |row| row.get(0))
}
