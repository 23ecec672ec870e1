//! Rows, roll-ups and views against each other: whatever was written, rolled up or removed, and whatever the clock did,
//! a view tells what the rows tell.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::analytics::{self, Filter, Report};
use super::db::{Db, Keep, StateChanges};
use super::figures::{Figures, Sample, Totals};
use super::page::{Ask, page};
use super::reader::{NoView, Reader, Seen};
use super::rollup::HOUR_MS;
use super::row::{Row, RowCache, RowKind, RowOutcome, RowRefit, sample};
use super::span::{Range, Span};
use super::{Shared, analytics::provider_of};
use crate::base::rng::Rng;

const DAY_MS: u64 = 24 * HOUR_MS;
/// 2026-12-01 10:30 UTC.
const NOW_MS: u64 = 1_796_121_000_000;

/// A database, what waits beside it, and the way of views to both.
struct World {
    folder: tempfile::TempDir,
    db: Db,
    shared: Arc<Shared>,
    reader: Reader,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("freeway.db");
        let db = Db::open(&path, Duration::from_millis(50)).expect("it opens");
        db.hurry();
        let shared = Arc::new(Shared::default());
        let reader = Reader::new(&path, Arc::clone(&shared));
        World { folder, db, shared, reader }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("freeway.db")
    }

    fn write(&mut self, rows: &[Row]) {
        self.db.write(&StateChanges::new(), rows, &[]).expect("written");
    }

    fn wait(&self, rows: &[Row]) {
        self.shared.waiting.lock().rows.extend(rows.iter().cloned());
    }

    /// Tidies until nothing is left to do.
    fn tidy(&mut self, keep: &Keep) {
        for _ in 0..10_000 {
            if !self.db.tidy(keep).expect("tidied") {
                return;
            }
        }
        panic!("tidying does not end");
    }

    fn view<T>(&self, look: impl Fn(&Seen) -> Result<T, rusqlite::Error>) -> T {
        self.reader.view(look).expect("a view")
    }

    fn report(&self, span: &Span, filter: &Filter) -> Report {
        self.view(|seen| analytics::report(seen, span, filter))
    }

    /// All rows, as pages tell them, with their ids.
    fn rows(&self) -> Vec<(i64, Row)> {
        let (mut all, mut before) = (Vec::new(), None);
        loop {
            let ask = Ask { limit: 97, before, ..Ask::default() };
            let found = self.view(|seen| page(seen, &ask));
            before = found.rows.last().map(|(id, _)| *id);
            all.extend(found.rows);
            if !found.more {
                return all;
            }
        }
    }

    fn file_bytes(&self) -> u64 {
        std::fs::metadata(self.path()).expect("there").len()
    }
}

/// Everything is kept.
fn keep_all() -> Keep {
    Keep { now_ms: NOW_MS, oldest_row_ms: 0, bytes_max: u64::MAX }
}

fn any_row(rng: &mut Rng, ended_ms: u64) -> Row {
    let model = ["acme/big-2:free", "acme/small", "groq/meta/llama"][rng.below(3)];
    let provider = provider_of(model);
    let outcome = RowOutcome::ALL[[0, 0, 0, 1, 2][rng.below(5)]];
    let failed = outcome == RowOutcome::Error;
    Row {
        ended_ms,
        kind: RowKind::ALL[rng.below(2)],
        outcome,
        model: (rng.below(9) > 0).then(|| model.into()),
        key: (rng.below(9) > 0).then(|| format!("{provider}:0{}", rng.below(2)).into()),
        client: (rng.below(3) > 0).then(|| format!("client-{}", rng.below(3)).into()),
        prompt_tokens: rng.next_u64() % 5_000,
        output_tokens: rng.next_u64() % 900,
        latency_ms: 1 << rng.below(17),
        first_ms: (rng.below(2) > 0).then(|| rng.next_u64() % 4_000),
        cache: if rng.below(4) == 0 { RowCache::by_code(rng.below(3) as i64) } else { None },
        refit: RowRefit::by_code(rng.below(9) as i64),
        attempts: rng.below(4) as u32,
        error: failed.then(|| format!("code_{}", rng.below(3))),
        ..sample(rng.next_u64() % 1_000)
    }
}

/// The same as [`analytics::report`], the simplest way.
fn recomputed(rows: &[(i64, Row)], span: &Span, filter: &Filter) -> BTreeMap<String, Figures> {
    let mut groups: BTreeMap<String, Figures> = BTreeMap::new();
    for (_, row) in rows {
        let Some(bucket) = span.bucket_of((row.ended_ms / HOUR_MS) as i64) else { continue };
        if !filter.takes(row.model.as_deref(), row.key.as_deref(), row.client.as_deref()) {
            continue;
        }
        let of = |kind: &str, name: Option<&str>| format!("{kind} {}", name.unwrap_or("-"));
        let mut names = vec![
            format!("time {bucket}"),
            of("provider", row.model.as_deref().map(provider_of)),
            of("model", row.model.as_deref()),
            of("key", row.key.as_deref()),
            of("client", row.client.as_deref()),
            of("kind", Some(row.kind.name())),
        ];
        let error = row.error.as_deref().filter(|_| row.outcome == RowOutcome::Error);
        names.extend(error.map(|error| of("error", Some(error))));
        for name in names {
            groups.entry(name).or_default().count(&Sample::from(row));
        }
    }
    groups
}

/// A report in the form of [`recomputed`]; of errors only their number is known.
fn told(report: &Report) -> BTreeMap<String, Figures> {
    let mut groups = BTreeMap::new();
    for (bucket, figures) in report.timeline.iter().enumerate().filter(|(_, found)| found.totals.requests > 0)
    {
        groups.insert(format!("time {bucket}"), figures.clone());
    }
    let lists = [
        ("provider", &report.providers),
        ("model", &report.models),
        ("key", &report.keys),
        ("client", &report.clients),
    ];
    for (kind, list) in lists {
        for (name, figures) in list {
            groups.insert(format!("{kind} {}", name.as_deref().unwrap_or("-")), figures.clone());
        }
    }
    groups.extend(report.kinds.iter().map(|(kind, found)| (format!("kind {}", kind.name()), found.clone())));
    groups
}

#[track_caller]
fn agree(world: &World, span: &Span, filter: &Filter) {
    let report = world.report(span, filter);
    let mut expected = recomputed(&world.rows(), span, filter);
    let errors: BTreeMap<String, u64> = expected
        .iter()
        .filter_map(|(name, found)| Some((name.strip_prefix("error ")?.to_owned(), found.totals.requests)))
        .collect();
    expected.retain(|name, _| !name.starts_with("error "));
    let told_errors: BTreeMap<String, u64> = report
        .errors
        .iter()
        .map(|(code, requests)| (code.as_deref().unwrap_or("-").to_owned(), *requests))
        .collect();
    assert_eq!(told_errors, errors, "{filter:?}");
    assert_eq!(told(&report), expected, "{filter:?}");
}

#[test]
fn views_tell_what_rows_tell_whatever_the_clock_does() {
    for seed in 0..12 {
        let mut rng = Rng::seeded(seed);
        let mut world = World::new();
        let mut clock_ms = NOW_MS - 3 * DAY_MS;
        let mut written = 0;
        for _ in 0..40 {
            let rows: Vec<Row> = (0..rng.below(30))
                .map(|_| {
                    clock_ms += rng.next_u64() % 900_000;
                    // Some end a moment before those that were handed in already.
                    let ended_ms = clock_ms - rng.next_u64() % 5_000;
                    any_row(&mut rng, ended_ms)
                })
                .collect();
            world.write(&rows);
            written += rows.len();
            match rng.below(6) {
                0 => world.tidy(&Keep { now_ms: clock_ms, ..keep_all() }),
                1 => clock_ms = NOW_MS - 3 * DAY_MS + rng.next_u64() % DAY_MS,
                _ => {}
            }
        }
        let waiting: Vec<Row> = (0..20).map(|_| any_row(&mut rng, clock_ms)).collect();
        world.wait(&waiting);
        let rows = world.rows();
        assert_eq!(rows.len(), written + waiting.len(), "each row is on one page");
        assert!(rows.is_sorted_by(|newer, older| newer.0 > older.0));
        let mut sum = Totals::default();
        rows.iter().for_each(|(_, row)| sum.add(&Totals::of(&Sample::from(row))));
        let all = world.view(analytics::all_time);
        assert_eq!((all.totals, all.since_ms), (sum, rows.iter().map(|(_, row)| row.ended_ms).min()));
        let some = |text: &str| Some(text.to_owned());
        for filter in [
            Filter::default(),
            Filter { provider: some("acme"), ..Filter::default() },
            Filter { provider: some(""), ..Filter::default() },
            Filter { model: some("groq/meta/llama"), client: some("client-1"), ..Filter::default() },
            Filter { key: some("acme:01"), ..Filter::default() },
            Filter { client: some(""), ..Filter::default() },
            Filter { client: some("nobody has this"), ..Filter::default() },
        ] {
            for (range, offset_minutes) in [(Range::Day, 0), (Range::Week, 0), (Range::Month, 330)] {
                agree(&world, &Span::new(range, clock_ms.max(NOW_MS), offset_minutes), &filter);
            }
        }
    }
}

#[test]
fn pages_hold_what_their_filters_take() {
    let mut rng = Rng::seeded(3);
    let mut world = World::new();
    let rows: Vec<Row> = (0..300).map(|n| any_row(&mut rng, NOW_MS + n * 1_000)).collect();
    world.write(&rows[..250]);
    world.wait(&rows[250..]);
    let all = world.rows();
    let some = |text: &str| Some(text.to_owned());
    let names = |names: Filter| Ask { names, ..Ask::default() };
    let asks = [
        names(Filter { provider: some("acme"), ..Filter::default() }),
        names(Filter { provider: some("acm"), ..Filter::default() }),
        names(Filter { provider: some(""), ..Filter::default() }),
        names(Filter { model: some("acme/small"), key: some("acme:00"), ..Filter::default() }),
        names(Filter { client: some(""), ..Filter::default() }),
        names(Filter { client: some("client-2"), ..Filter::default() }),
        Ask { kind: Some(RowKind::Embeddings), ..Ask::default() },
        Ask { outcome: Some(RowOutcome::Canceled), ..Ask::default() },
        Ask { cache: Some(None), ..Ask::default() },
        Ask { cache: Some(Some(RowCache::Semantic)), ..Ask::default() },
        Ask { error: some("code_1"), outcome: Some(RowOutcome::Error), ..Ask::default() },
        Ask { error: some("'; DROP TABLE request; --"), ..Ask::default() },
        Ask { from_ms: Some(NOW_MS + 100_000), to_ms: Some(NOW_MS + 270_000), ..Ask::default() },
    ];
    let in_time = |ask: &Ask, row: &Row| {
        ask.from_ms.is_none_or(|from| row.ended_ms >= from) && ask.to_ms.is_none_or(|to| row.ended_ms < to)
    };
    for ask in asks {
        let ask = Ask { limit: 500, ..ask };
        let expected: Vec<_> = all
            .iter()
            .filter(|(_, row)| {
                in_time(&ask, row)
                    && ask.names.takes(row.model.as_deref(), row.key.as_deref(), row.client.as_deref())
                    && ask.kind.is_none_or(|kind| kind == row.kind)
                    && ask.outcome.is_none_or(|outcome| outcome == row.outcome)
                    && ask.cache.is_none_or(|cache| cache == row.cache)
                    && ask.error.as_ref().is_none_or(|error| Some(error) == row.error.as_ref())
            })
            .cloned()
            .collect();
        let found = world.view(|seen| page(seen, &ask));
        assert_eq!((found.rows, found.more), (expected, false), "{ask:?}");
    }
}

#[test]
fn many_rows_of_one_hour_are_rolled_up_before_it_ends() {
    let mut world = World::new();
    let mut rng = Rng::seeded(5);
    let rows: Vec<Row> = (0..5_200).map(|n| any_row(&mut rng, NOW_MS + n / 4)).collect();
    let keep = Keep { now_ms: NOW_MS + 2_000, ..keep_all() };
    world.write(&rows[..4_900]);
    assert!(!world.db.untidy(&keep).expect("read"), "nothing is due yet");
    world.write(&rows[4_900..]);
    assert!(world.db.untidy(&keep).expect("read"));
    world.tidy(&keep);
    assert!(!world.db.untidy(&keep).expect("read"));
    let span = Span::new(Range::Day, keep.now_ms, 0);
    agree(&world, &span, &Filter::default());
    let read_by_itself: i64 = world.view(|seen| {
        let connection = seen.connection.as_ref().expect("readable");
        connection.query_row(
            "SELECT count(*) FROM request WHERE id >= (SELECT next_id FROM rolled)",
            [],
            |row| row.get(0),
        )
    });
    assert!(read_by_itself < 5_000, "{read_by_itself}");
}

#[test]
fn sums_outlive_the_rows() {
    let mut world = World::new();
    let mut rng = Rng::seeded(6);
    let rows: Vec<Row> = (0..2_000).map(|n| any_row(&mut rng, NOW_MS - 6 * DAY_MS + n * 250_000)).collect();
    world.write(&rows);
    world.tidy(&keep_all());
    let span = Span::new(Range::Week, NOW_MS, 0);
    let before = told(&world.report(&span, &Filter::default()));
    let all_before = world.view(analytics::all_time);
    world.tidy(&Keep { oldest_row_ms: NOW_MS - DAY_MS, ..keep_all() });
    let left = world.rows();
    assert!(left.iter().all(|(_, row)| row.ended_ms >= NOW_MS - DAY_MS) && left.len() > 200);
    assert_eq!(told(&world.report(&span, &Filter::default())), before);
    assert_eq!(world.view(analytics::all_time), all_before);
    // More than a year later the sums of single hours go, too, but not the sum of all.
    world.tidy(&Keep { now_ms: NOW_MS + 450 * DAY_MS, oldest_row_ms: NOW_MS + 360 * DAY_MS, ..keep_all() });
    assert!(world.rows().is_empty());
    assert!(told(&world.report(&span, &Filter::default())).is_empty());
    assert_eq!(world.view(analytics::all_time), all_before);
}

/// Issue "retention by MiB": the file never grows beyond its bound, because freed pages are used again.
#[test]
fn the_file_stays_within_its_bound() {
    let mut world = World::new();
    let mut rng = Rng::seeded(8);
    let bytes_max = 4 << 20;
    let (mut largest, mut ended) = (0, Vec::new());
    for batch in 0..150_u64 {
        let start_ms = NOW_MS + batch * 2 * HOUR_MS;
        let rows: Vec<Row> = (0..300).map(|n| any_row(&mut rng, start_ms + n * 20_000)).collect();
        world.write(&rows);
        ended.extend(rows.iter().map(|row| row.ended_ms));
        let keep = Keep { now_ms: start_ms + 2 * HOUR_MS, oldest_row_ms: 0, bytes_max };
        if world.db.untidy(&keep).expect("read") {
            world.tidy(&keep);
        }
        largest = largest.max(world.file_bytes());
    }
    assert!(largest <= bytes_max, "{largest}");
    let left = world.rows();
    assert!((10_000..40_000).contains(&left.len()), "{} of {}", left.len(), ended.len());
    assert!(left.iter().map(|(_, row)| row.ended_ms).eq(ended.iter().rev().take(left.len()).copied()));
    let week = Span::new(Range::Week, NOW_MS + 300 * HOUR_MS, 0);
    let inside = |ended_ms: &&u64| week.bucket_of((**ended_ms / HOUR_MS) as i64).is_some();
    let expected = ended.iter().filter(inside).count() as u64;
    let told = world.report(&week, &Filter::default()).summary().totals.requests;
    assert_eq!(told, expected, "the sums of the last week are all there");
}

#[test]
fn a_file_that_is_allowed_less_gives_room_back() {
    let mut world = World::new();
    let mut rng = Rng::seeded(10);
    for batch in 0..20_u64 {
        let start_ms = NOW_MS - 20 * DAY_MS + batch * DAY_MS;
        let rows: Vec<Row> = (0..1_000).map(|n| any_row(&mut rng, start_ms + n * 60_000)).collect();
        world.write(&rows);
    }
    let generous = Keep { bytes_max: 64 << 20, ..keep_all() };
    world.tidy(&generous);
    world.db.compact(&generous).expect("nothing to do");
    let before = world.file_bytes();
    let less = Keep { bytes_max: 1 << 20, ..generous };
    assert!(before > less.bytes_max, "{before}");
    world.tidy(&less);
    world.db.compact(&less).expect("compacted");
    assert!(world.file_bytes() <= less.bytes_max, "{}", world.file_bytes());
    let newest = world.rows().first().map(|(_, row)| row.ended_ms);
    assert_eq!(newest, Some(NOW_MS - DAY_MS + 999 * 60_000));
}

#[test]
fn names_that_anybody_can_make_up_are_bounded() {
    let mut world = World::new();
    let rows: Vec<Row> = (0..33_500)
        .map(|n| Row { route: format!("list:{n}").into(), ended_ms: NOW_MS + n, ..sample(0) })
        .collect();
    rows.chunks(5_000).for_each(|chunk| world.write(chunk));
    let late = Row { model: Some("fresh/model".into()), route: "list:late".into(), ..rows[0].clone() };
    world.write(&[Row { ended_ms: NOW_MS + 40_000, ..late }]);
    let names: i64 = world.view(|seen| {
        let connection = seen.connection.as_ref().expect("readable");
        connection.query_row("SELECT count(*) FROM name", [], |row| row.get(0))
    });
    assert!(names < 40_000, "{names}");
    let newest = world.rows().swap_remove(0).1;
    assert_eq!((&*newest.route, newest.model.as_deref()), ("(other)", Some("fresh/model")));
}

#[test]
fn a_view_counts_rows_on_their_way_once() {
    let mut world = World::new();
    let mut rng = Rng::seeded(12);
    let rows: Vec<Row> = (0..4_000).map(|n| any_row(&mut rng, NOW_MS + n)).collect();
    let span = Span::new(Range::Day, NOW_MS + 5_000, 0);
    std::thread::scope(|scope| {
        let (reader, shared) = (&world.reader, &world.shared);
        let (rows, db) = (&rows, &mut world.db);
        let writing = scope.spawn(move || {
            for chunk in rows.chunks(40) {
                shared.waiting.lock().rows.extend(chunk.iter().cloned());
                let taken = {
                    let mut waiting = shared.waiting.lock();
                    waiting.writing = true;
                    std::mem::take(&mut waiting.rows)
                };
                db.write(&StateChanges::new(), &taken, &[]).expect("written");
                shared.wrote();
            }
        });
        let mut last = 0;
        while !writing.is_finished() {
            let look = |seen: &Seen| analytics::report(seen, &span, &Filter::default());
            if let Ok(report) = reader.view(look) {
                let requests = report.summary().totals.requests;
                assert!(requests % 40 == 0 && requests >= last, "{requests} after {last}");
                last = requests;
            }
        }
    });
    assert_eq!(world.report(&span, &Filter::default()).summary().totals.requests, 4_000);
}

#[test]
fn views_are_few_at_once_and_short() {
    let world = World::new();
    let slow = |seen: &Seen| {
        let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";
        seen.connection.as_ref().expect("readable").query_row(endless, [], |row| row.get::<_, i64>(0))
    };
    let found = std::thread::scope(|scope| {
        let views: Vec<_> = (0..40).map(|_| scope.spawn(|| world.reader.view(slow))).collect();
        views.into_iter().map(|view| view.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert!(found.iter().all(Result::is_err), "{found:?}");
    let too_long = found.iter().filter(|view| **view == Err(NoView::TooLong)).count();
    assert!((2..=6).contains(&too_long), "{too_long} ran into the end, the others were turned away");
    assert_eq!(world.view(analytics::all_time).totals, Totals::default(), "and then it is free again");
}

#[test]
fn without_a_database_views_tell_what_is_in_memory() {
    let world = World::new();
    world.wait(&[sample(1), sample(2)]);
    let elsewhere = Reader::new(&world.folder.path().join("nowhere.db"), Arc::clone(&world.shared));
    let all = elsewhere.view(analytics::all_time).expect("a view");
    assert_eq!(all.totals.requests, 2);
    std::fs::write(world.folder.path().join("noise.db"), [0x5a; 9_000]).expect("written");
    let noise = Reader::new(&world.folder.path().join("noise.db"), Arc::clone(&world.shared));
    assert_eq!(noise.view(analytics::all_time).expect("a view").totals.requests, 2);
}
