//! The watcher: keeps its own books of every call and knows what must never happen.
use std::collections::BTreeMap;

use freeway::base::clock::Now;
use freeway::catalog::provider::{LimitsScope, Metric, Provider};
use freeway::catalog::{Catalog, ModelIx};
use freeway::quota::Scope;
use freeway::route::failover::Attempt;
use freeway::route::live::Live;

use super::world::{DAY_MS, MINUTE_MS};

/// One call as the upstream's books have it.
#[derive(Clone, Copy, Debug)]
struct Booked {
    id: u64,
    at_ms: u64,
    tokens: u64,
    in_flight: bool,
}

/// Whose books: provider, key (or none for the account), model (or none for all).
type Book = (u16, Option<usize>, Option<u16>);

#[derive(Default)]
pub struct Watch {
    books: BTreeMap<Book, Vec<Booked>>,
    next_id: u64,
    pub calls: u64,
}

/// The books that a call is entered in, with the limits that were told for each.
fn books<'c>(catalog: &'c Catalog, at: ModelIx, key: usize) -> Vec<(Book, Vec<(Metric, f64)>)> {
    let (provider, model) = (catalog.provider(at), catalog.model(at));
    let own = Some(at.model);
    let (whole, single) = match provider.limits_scope {
        LimitsScope::Key => ((at.provider, Some(key), None), (at.provider, Some(key), own)),
        LimitsScope::Model => ((at.provider, Some(key), own), (at.provider, Some(key), own)),
        LimitsScope::Account => ((at.provider, None, None), (at.provider, None, own)),
    };
    let told = |limits: &'c freeway::catalog::provider::Limits| {
        limits.max.iter().map(|(metric, limit)| (*metric, limit.amount)).collect::<Vec<_>>()
    };
    let mut all = vec![(whole, told(&provider.limits))];
    match single == whole {
        true => all[0].1.extend(told(&model.limits)),
        false => all.push((single, told(&model.limits))),
    }
    all
}

/// Every scope that may keep a call from being made.
pub fn scopes(provider: &Provider, at: ModelIx, key: usize) -> [Scope; 6] {
    let (key, model) = (&provider.keys[key], provider.models[usize::from(at.model)].slot);
    [
        Scope::Provider(provider.slot),
        Scope::Model(model),
        Scope::Key(key.slot),
        Scope::KeyModel(key.slot, model),
        Scope::Account(key.account),
        Scope::AccountModel(key.account, model),
    ]
}

impl Watch {
    /// A call is made: nobody on a bench, no limit that was told is overdrawn.
    pub fn call(&mut self, catalog: &Catalog, live: &Live, attempt: &Attempt, prompt: u64, now: Now) -> u64 {
        let provider = catalog.provider(attempt.at);
        let name = &catalog.model(attempt.at).reference;
        if let Some(bench) = live.benches.blocking(&scopes(provider, attempt.at, attempt.key), now) {
            panic!("{name} with key {} sits on a bench: {bench:?}", attempt.key);
        }
        self.calls += 1;
        self.next_id += 1;
        for (book, told) in books(catalog, attempt.at, attempt.key) {
            let entries = self.books.entry(book).or_default();
            entries.retain(|entry| entry.in_flight || entry.at_ms + DAY_MS > now.wall_ms);
            entries.push(Booked { id: self.next_id, at_ms: now.wall_ms, tokens: prompt, in_flight: true });
            for (metric, limit) in told {
                let used = used(entries, metric, now);
                assert!(used <= limit, "{name}: {used} of {limit} {} used in {book:?}", metric.name());
            }
        }
        self.next_id
    }

    /// A call ended: with so many tokens in all, or without ever having arrived.
    pub fn ended(&mut self, catalog: &Catalog, at: ModelIx, key: usize, id: u64, tokens: Option<u64>) {
        for (book, _) in books(catalog, at, key) {
            let entries = self.books.entry(book).or_default();
            match tokens {
                Some(tokens) => {
                    let entry = entries.iter_mut().find(|entry| entry.id == id).expect("it was booked");
                    (entry.in_flight, entry.tokens) = (false, tokens);
                }
                None => entries.retain(|entry| entry.id != id),
            }
        }
    }

    /// Whether a candidate is so far from every limit that it must be taken, whatever the rounding: nothing in flight,
    /// and with `prompt` and a long answer on top still below half of each limit.
    pub fn is_clear(&self, catalog: &Catalog, at: ModelIx, key: usize, prompt: u64, now: Now) -> bool {
        books(catalog, at, key).into_iter().all(|(book, told)| {
            let Some(entries) = self.books.get(&book) else {
                return told
                    .iter()
                    .all(|(metric, limit)| *metric != Metric::Tpm || *limit >= (prompt + 4_000) as f64);
            };
            let calm = entries.iter().all(|entry| !entry.in_flight);
            calm && told.iter().all(|(metric, limit)| match metric {
                Metric::Tpm => {
                    let recent = within(entries, now, 2 * MINUTE_MS).map(|entry| entry.tokens).sum::<u64>();
                    (recent + prompt + 4_000) as f64 <= *limit
                }
                Metric::Rpm => (within(entries, now, 2 * MINUTE_MS).count() + 1) as f64 <= *limit,
                Metric::Rpd => (entries.len() + 1) as f64 <= *limit,
                _ => true,
            })
        })
    }
}

fn within(entries: &[Booked], now: Now, span_ms: u64) -> impl Iterator<Item = &Booked> {
    entries.iter().filter(move |entry| entry.at_ms + span_ms > now.wall_ms)
}

/// What an upstream counts, at its strictest: to the millisecond, and by its own day.
fn used(entries: &[Booked], metric: Metric, now: Now) -> f64 {
    let count = match metric {
        Metric::Rpm => within(entries, now, MINUTE_MS).count() as u64,
        Metric::Rpd => {
            entries.iter().filter(|entry| entry.at_ms / DAY_MS == now.wall_ms / DAY_MS).count() as u64
        }
        Metric::Tpm => {
            // What came before may overshoot by an answer longer than expected; this prompt must have had room, or
            // have been alone.
            let recent: Vec<&Booked> = within(entries, now, MINUTE_MS).collect();
            recent.iter().map(|entry| entry.tokens).sum()
        }
        Metric::Concurrency => entries.iter().filter(|entry| entry.in_flight).count() as u64,
        other => panic!("no book is kept of {}", other.name()),
    };
    count as f64
}
