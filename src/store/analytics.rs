//! Analytics: what happened over a span of time, as sums and percentiles by time, provider, model, key, client and kind.
//! Added up from roll-ups, from rows that are not rolled up yet, and from rows that wait for the disk; each request is in
//! exactly one of them.
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rusqlite::Connection;

use super::figures::{Figures, Sample, Totals};
use super::reader::Seen;
use super::rollup::{self, Cell, RolledRow};
use super::row::{RowKind, RowOutcome};
use super::span::Span;

/// Groups of one kind that are told apart; all further ones are one.
const GROUPS_MAX: usize = 2_048;
/// The number and the name of those further ones.
const OTHERS: i64 = i64::MIN;
const OTHERS_NAME: &str = "(other)";

/// Which requests are looked at. An empty text stands for requests that have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub provider: Option<String>,
    /// `provider/model`.
    pub model: Option<String>,
    pub key: Option<String>,
    pub client: Option<String>,
}

impl Filter {
    /// Whether a request with these names is looked at.
    pub fn takes(&self, model: Option<&str>, key: Option<&str>, client: Option<&str>) -> bool {
        self.takes_model(model) && fits(&self.key, key) && fits(&self.client, client)
    }

    fn takes_model(&self, model: Option<&str>) -> bool {
        fits(&self.provider, model.map(provider_of)) && fits(&self.model, model)
    }
}

fn fits(wanted: &Option<String>, name: Option<&str>) -> bool {
    wanted.as_deref().is_none_or(|wanted| wanted == name.unwrap_or_default())
}

/// The provider of `provider/model`.
pub fn provider_of(reference: &str) -> &str {
    reference.split_once('/').map_or(reference, |(provider, _)| provider)
}

/// Figures of a group; a group without a name is that of requests that have none.
pub type Group = (Option<Arc<str>>, Figures);

/// What happened over a span. Groups come with the most requests first, then by name; none is left out.
#[derive(Debug)]
pub struct Report {
    /// One for each bucket of the span.
    pub timeline: Vec<Figures>,
    pub providers: Vec<Group>,
    pub models: Vec<Group>,
    pub keys: Vec<Group>,
    pub clients: Vec<Group>,
    pub kinds: Vec<(RowKind, Figures)>,
    /// Failed requests by error code.
    pub errors: Vec<(Option<Arc<str>>, u64)>,
}

impl Report {
    /// All together.
    pub fn summary(&self) -> Figures {
        let mut summary = Figures::default();
        self.timeline.iter().for_each(|figures| summary.merge(figures));
        summary
    }
}

/// What happened over a span to the requests that the filter takes.
pub fn report(seen: &Seen, span: &Span, filter: &Filter) -> Result<Report, rusqlite::Error> {
    let names = Names::new(seen.connection.as_ref());
    let mut tally = Tally::new(span, filter, &names);
    let (from_hour, to_hour) = span.hours();
    if let Some(connection) = &seen.connection {
        rollup::read_cells(connection, from_hour, to_hour, |cell, stored| {
            tally.add(cell, |figures| stored.add_to(figures));
        })?;
        read_errors(connection, from_hour, to_hour, |cell, code, requests| tally.fail(cell, code, requests))?;
        let ids = (rollup::first_id_of(from_hour), rollup::first_id_of(to_hour));
        rollup::read_outside(connection, ids, |row| {
            let code = row.error.as_deref().map_or(0, |code| names.number(code));
            tally.count(&row, code);
        })?;
    }
    for (id, row) in &seen.waiting {
        let number = |name: &Option<Arc<str>>| name.as_deref().map_or(0, |name| names.number(name));
        let (model, key, client) = (number(&row.model), number(&row.key), number(&row.client));
        let cell = Cell { hour: rollup::hour_of(*id), model, key, client, kind: row.kind };
        let code = row.error.as_deref().map_or(0, |code| names.number(code));
        tally.count(&RolledRow { id: *id, cell, sample: Sample::from(row), error: None }, code);
    }
    Ok(tally.report())
}

fn read_errors(
    connection: &Connection,
    from_hour: i64,
    to_hour: i64,
    mut see: impl FnMut(Cell, i64, u64),
) -> Result<(), rusqlite::Error> {
    let mut select = connection.prepare("SELECT * FROM hourly_error WHERE hour >= ?1 AND hour < ?2")?;
    let mut rows = select.query([from_hour, to_hour])?;
    while let Some(row) = rows.next()? {
        // They are not told apart by kind.
        let kind = RowKind::Chat;
        let cell =
            Cell { hour: row.get(0)?, model: row.get(1)?, key: row.get(2)?, client: row.get(3)?, kind };
        see(cell, row.get(4)?, row.get::<_, i64>(5)?.max(0) as u64);
    }
    Ok(())
}

/// Sums in the making, by numbers of names.
struct Tally<'a> {
    span: &'a Span,
    filter: &'a Filter,
    names: &'a Names<'a>,
    /// What was found out about a combination of names.
    taken: HashMap<(i64, i64, i64), bool>,
    timeline: Vec<Figures>,
    models: HashMap<i64, Figures>,
    keys: HashMap<i64, Figures>,
    clients: HashMap<i64, Figures>,
    kinds: BTreeMap<RowKind, Figures>,
    errors: HashMap<i64, u64>,
}

impl<'a> Tally<'a> {
    fn new(span: &'a Span, filter: &'a Filter, names: &'a Names<'a>) -> Tally<'a> {
        Tally {
            span,
            filter,
            names,
            taken: HashMap::new(),
            timeline: vec![Figures::default(); span.buckets()],
            models: HashMap::new(),
            keys: HashMap::new(),
            clients: HashMap::new(),
            kinds: BTreeMap::new(),
            errors: HashMap::new(),
        }
    }

    /// Adds figures wherever requests of the cell belong.
    fn add(&mut self, cell: Cell, add: impl Fn(&mut Figures)) {
        let Some(bucket) = self.bucket_of(cell) else { return };
        add(&mut self.timeline[bucket]);
        add(group(&mut self.models, cell.model));
        add(group(&mut self.keys, cell.key));
        add(group(&mut self.clients, cell.client));
        add(self.kinds.entry(cell.kind).or_default());
    }

    /// Counts one request; `code` is the number of its error's name.
    fn count(&mut self, row: &RolledRow, code: i64) {
        self.add(row.cell, |figures| figures.count(&row.sample));
        if row.sample.outcome == RowOutcome::Error {
            self.fail(row.cell, code, 1);
        }
    }

    fn fail(&mut self, cell: Cell, code: i64, requests: u64) {
        if self.bucket_of(cell).is_some() {
            let known = self.errors.len() < GROUPS_MAX || self.errors.contains_key(&code);
            *self.errors.entry(if known { code } else { OTHERS }).or_default() += requests;
        }
    }

    /// The bucket of the cell, if it is looked at.
    fn bucket_of(&mut self, cell: Cell) -> Option<usize> {
        let bucket = self.span.bucket_of(cell.hour)?;
        if *self.filter == Filter::default() {
            return Some(bucket);
        }
        let text = |number: i64| self.names.text(number);
        let takes = || {
            let (model, key, client) = (text(cell.model), text(cell.key), text(cell.client));
            self.filter.takes(model.as_deref(), key.as_deref(), client.as_deref())
        };
        let names = (cell.model, cell.key, cell.client);
        match self.taken.get(&names) {
            Some(taken) => taken.then_some(bucket),
            None => {
                let taken = takes();
                if self.taken.len() < GROUPS_MAX {
                    self.taken.insert(names, taken);
                }
                taken.then_some(bucket)
            }
        }
    }

    fn report(self) -> Report {
        let named = |groups: HashMap<i64, Figures>| {
            ranked(groups.into_iter().map(|(number, figures)| (self.names.text(number), figures)))
        };
        let models = named(self.models);
        let mut providers: BTreeMap<Option<Arc<str>>, Figures> = BTreeMap::new();
        for (model, figures) in &models {
            providers
                .entry(model.as_deref().map(|model| provider_of(model).into()))
                .or_default()
                .merge(figures);
        }
        let mut errors: Vec<_> =
            self.errors.into_iter().map(|(code, requests)| (self.names.text(code), requests)).collect();
        errors.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Report {
            timeline: self.timeline,
            providers: ranked(providers),
            models,
            keys: named(self.keys),
            clients: named(self.clients),
            kinds: self.kinds.into_iter().collect(),
            errors,
        }
    }
}

fn group(groups: &mut HashMap<i64, Figures>, number: i64) -> &mut Figures {
    let known = groups.len() < GROUPS_MAX || groups.contains_key(&number);
    groups.entry(if known { number } else { OTHERS }).or_default()
}

fn ranked(groups: impl IntoIterator<Item = Group>) -> Vec<Group> {
    let mut groups: Vec<Group> = groups.into_iter().collect();
    groups.sort_by(|a, b| b.1.totals.requests.cmp(&a.1.totals.requests).then_with(|| a.0.cmp(&b.0)));
    groups
}

/// Names by their numbers, looked up once each. Names that only rows in memory have get numbers below zero.
struct Names<'c> {
    connection: Option<&'c Connection>,
    texts: RefCell<HashMap<i64, Option<Arc<str>>>>,
    numbers: RefCell<HashMap<Arc<str>, i64>>,
}

impl<'c> Names<'c> {
    fn new(connection: Option<&'c Connection>) -> Names<'c> {
        let texts = HashMap::from([(0, None), (OTHERS, Some(OTHERS_NAME.into()))]);
        Names { connection, texts: RefCell::new(texts), numbers: RefCell::default() }
    }

    /// The name of a number.
    fn text(&self, number: i64) -> Option<Arc<str>> {
        let mut texts = self.texts.borrow_mut();
        let look_up = || {
            let sql = "SELECT text FROM name WHERE id = ?1";
            self.connection?.query_row(sql, [number], |row| row.get::<_, String>(0)).ok().map(Arc::from)
        };
        texts.entry(number).or_insert_with(look_up).clone()
    }

    /// The number of a name.
    fn number(&self, text: &str) -> i64 {
        if let Some(number) = self.numbers.borrow().get(text) {
            return *number;
        }
        let look_up = || {
            let sql = "SELECT id FROM name WHERE text = ?1";
            self.connection?.query_row(sql, [text], |row| row.get(0)).ok()
        };
        let text: Arc<str> = text.into();
        let number = look_up().unwrap_or_else(|| -1 - self.numbers.borrow().len() as i64);
        self.texts.borrow_mut().insert(number, Some(Arc::clone(&text)));
        self.numbers.borrow_mut().insert(text, number);
        number
    }
}

/// Sums over all requests that there ever were, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllTime {
    /// Milliseconds since 1970; `None` before the first request.
    pub since_ms: Option<u64>,
    pub totals: Totals,
}

/// Sums over all runs.
pub fn all_time(seen: &Seen) -> Result<AllTime, rusqlite::Error> {
    let mut all = AllTime::default();
    let mut oldest_ms: Option<u64> = None;
    let mut see = |ended_ms: u64| oldest_ms = Some(oldest_ms.map_or(ended_ms, |oldest| oldest.min(ended_ms)));
    if let Some(connection) = &seen.connection {
        (all.since_ms, all.totals) = rollup::all_time(connection)?;
        rollup::read_outside(connection, (i64::MIN, i64::MAX), |row| {
            all.totals.add(&Totals::of(&row.sample));
            see(rollup::ended_ms(row.id));
        })?;
    }
    for (_, row) in &seen.waiting {
        all.totals.add(&Totals::of(&Sample::from(row)));
        see(row.ended_ms);
    }
    all.since_ms = all.since_ms.into_iter().chain(oldest_ms).min();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_take_exact_names_and_the_lack_of_one() {
        let filter = |field: fn(&mut Filter) -> &mut Option<String>, wanted: &str| {
            let mut filter = Filter::default();
            *field(&mut filter) = Some(wanted.into());
            filter
        };
        let row = (Some("groq/meta/llama"), Some("groq:0a"), Some("laptop"));
        let check = |filter: Filter, of_row: bool, of_nobody: bool| {
            let found = (filter.takes(row.0, row.1, row.2), filter.takes(None, None, None));
            assert_eq!(found, (of_row, of_nobody), "{filter:?}");
        };
        check(Filter::default(), true, true);
        check(filter(|filter| &mut filter.provider, "groq"), true, false);
        check(filter(|filter| &mut filter.provider, "gro"), false, false);
        check(filter(|filter| &mut filter.provider, ""), false, true);
        check(filter(|filter| &mut filter.model, "groq/meta/llama"), true, false);
        check(filter(|filter| &mut filter.model, "meta/llama"), false, false);
        check(filter(|filter| &mut filter.key, "groq:0a"), true, false);
        check(filter(|filter| &mut filter.client, "phone"), false, false);
        check(filter(|filter| &mut filter.client, ""), false, true);
    }
}
