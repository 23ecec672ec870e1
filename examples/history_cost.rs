//! What 90 days of history cost: `cargo run --release --example history_cost`.
//!
//! One request in ten seconds over 90 days, by 6 providers with 4 models each, 2 keys a provider and 5 clients, is written
//! through the store as the gateway writes it. Then every view of the page is asked for: each range, with each filter, and
//! pages of rows. Each is printed with its time, and the size of the file.
use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use freeway::base::rng::Rng;
use freeway::store::analytics::{self, Filter};
use freeway::store::page::{self, Ask};
use freeway::store::span::{Range, Span};
use freeway::store::{Row, RowCache, RowKind, RowOutcome, Store};

const DAYS: u64 = 90;
const EVERY_MS: u64 = 10_000;
const DAY_MS: u64 = 86_400_000;
/// Rows that are handed over before the store is waited for; it drops what it cannot hold.
const ROWS_AT_ONCE: usize = 2_000;
/// Rows of past hours are summed up in the background, with pauses.
const SETTLE_MAX: Duration = Duration::from_secs(600);
/// How often each view is asked for; the fastest counts, which is that of a quiet moment.
const ROUNDS: usize = 3;

fn row(rng: &mut Rng, ended_ms: u64, number: u64) -> Row {
    let (provider, failed) = (rng.below(6), rng.below(20) == 0);
    let model = format!("provider-{provider}/model-{}", rng.below(4));
    Row {
        ended_ms,
        id: Some(format!("req_{number:024x}").into()),
        kind: if rng.below(8) == 0 { RowKind::Embeddings } else { RowKind::Chat },
        outcome: if failed { RowOutcome::Error } else { RowOutcome::Success },
        status: if failed { 502 } else { 200 },
        stream: rng.below(2) == 0,
        requested: (rng.below(2) == 0).then(|| "auto".into()),
        route: "auto".into(),
        model: Some(model.as_str().into()),
        key: Some(format!("provider-{provider}:{:08x}", rng.below(2)).into()),
        client: Some(format!("client-{}", rng.below(5)).into()),
        prompt_tokens: rng.below(4_000) as u64,
        output_tokens: rng.below(900) as u64,
        estimated: false,
        saved_nano_usd: rng.below(1_000_000) as u64,
        latency_ms: 200 + rng.below(8_000) as u64,
        first_ms: Some(100 + rng.below(2_000) as u64),
        attempts: 1 + u32::from(failed),
        cache: (rng.below(10) == 0).then_some(RowCache::Exact),
        refit: None,
        error: failed.then(|| "all_attempts_failed".into()),
        trail: if failed { format!("{model}:429") } else { String::new() },
    }
}

/// Tells how long each view takes; the slowest in milliseconds, and what it was.
fn slowest(store: &Store, now_ms: u64) -> (f64, String) {
    let filters = [
        ("everything", Filter::default()),
        ("one provider", Filter { provider: Some("provider-1".into()), ..Filter::default() }),
        ("one model", Filter { model: Some("provider-1/model-2".into()), ..Filter::default() }),
        ("one key", Filter { key: Some("provider-1:00000001".into()), ..Filter::default() }),
        ("one client", Filter { client: Some("client-3".into()), ..Filter::default() }),
    ];
    let mut worst = (0.0, String::new());
    let mut note = |name: String, look: &dyn Fn() -> bool| {
        let took = (0..ROUNDS).map(|_| {
            let began = Instant::now();
            assert!(look(), "{name} is not told");
            began.elapsed().as_secs_f64() * 1e3
        });
        let ms = took.fold(f64::INFINITY, f64::min);
        println!("{ms:8.1} ms  {name}");
        if ms > worst.0 {
            worst = (ms, name);
        }
    };
    for (of, filter) in &filters {
        for range in Range::ALL {
            let span = Span::new(range, now_ms, 60);
            note(format!("{} of {of}", range.name()), &|| {
                store.view(|seen| analytics::report(seen, &span, filter)).is_ok()
            });
        }
        for (end, before_ms) in [("newest", now_ms), ("oldest", now_ms - (DAYS - 1) * DAY_MS)] {
            let ask = Ask {
                limit: page::PAGE_MAX,
                names: filter.clone(),
                to_ms: Some(before_ms),
                ..Ask::default()
            };
            note(format!("{end} rows of {of}"), &|| store.view(|seen| page::page(seen, &ask)).is_ok());
        }
    }
    note("all time".into(), &|| store.view(analytics::all_time).is_ok());
    worst
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("freeway-history-{}", std::process::id()));
    let store = Store::open(&folder)?.store;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
    let (mut rng, count) = (Rng::seeded(7), DAYS * DAY_MS / EVERY_MS);
    for number in 0..count {
        store.row(row(&mut rng, now_ms - (count - number) * EVERY_MS, number));
        if number as usize % ROWS_AT_ONCE == ROWS_AT_ONCE - 1 && !store.flush() {
            return Err("the store does not write".into());
        }
    }
    store.flush();
    // The file does not change any more once all past hours are summed up.
    let file_bytes = || -> u64 {
        let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum()
    };
    let (began, mut last) = (Instant::now(), 0);
    while file_bytes() != last && began.elapsed() < SETTLE_MAX {
        last = file_bytes();
        std::thread::sleep(Duration::from_secs(3));
    }
    let dropped = store.health().rows_dropped;
    let (ms, name) = slowest(&store, now_ms);
    println!("history_view_ms {ms:.1}\nhistory_file_mib {:.1}", file_bytes() as f64 / f64::from(1 << 20));
    println!("{count} rows, {dropped} dropped; the slowest view is {name}");
    drop(store);
    std::fs::remove_dir_all(&folder)?;
    if dropped > 0 { Err("rows were dropped".into()) } else { Ok(()) }
}
