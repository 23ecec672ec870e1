//! What analytics count of requests, whether these come from rows, from roll-ups, or from both. Pure.
use super::row::{Row, RowCache, RowKind, RowOutcome, RowRefit};
use crate::base::histogram::Histogram;

/// A request as far as it is counted; the numbers of a [`Row`], without its texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub kind: RowKind,
    pub outcome: RowOutcome,
    pub stream: bool,
    pub estimated: bool,
    pub cache: Option<RowCache>,
    pub refit: Option<RowRefit>,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub saved_nano_usd: u64,
    pub latency_ms: u64,
    pub first_ms: Option<u64>,
    pub attempts: u32,
}

impl From<&Row> for Sample {
    fn from(row: &Row) -> Sample {
        Sample {
            kind: row.kind,
            outcome: row.outcome,
            stream: row.stream,
            estimated: row.estimated,
            cache: row.cache,
            refit: row.refit,
            prompt_tokens: row.prompt_tokens,
            output_tokens: row.output_tokens,
            saved_nano_usd: row.saved_nano_usd,
            latency_ms: row.latency_ms,
            first_ms: row.first_ms,
            attempts: row.attempts,
        }
    }
}

/// Sums over requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub requests: u64,
    pub failed: u64,
    /// The client left.
    pub canceled: u64,
    /// Served from the exact cache, and from the semantic one.
    pub cached_exact: u64,
    pub cached_semantic: u64,
    pub streamed: u64,
    /// With tokens that are our own estimate.
    pub estimated: u64,
    /// Reshaped to fit the model.
    pub refit: u64,
    /// Upstream calls.
    pub attempts: u64,
    pub tokens_in: u64,
    pub tokens_out: u64,
    /// What the answers would have cost elsewhere, in billionths of a dollar.
    pub saved_nano_usd: u64,
    /// Time that all requests took together, in milliseconds.
    pub total_ms: u64,
}

/// How many numbers [`Totals`] are.
pub const TOTALS: usize = 13;

impl Totals {
    /// Columns of the database that hold them, in the order of [`Totals::numbers`].
    pub const COLUMNS: [&'static str; TOTALS] = [
        "requests",
        "failed",
        "canceled",
        "cached_exact",
        "cached_semantic",
        "streamed",
        "estimated",
        "refit",
        "attempts",
        "tokens_in",
        "tokens_out",
        "saved_nano_usd",
        "total_ms",
    ];

    /// All of them.
    pub fn numbers(&self) -> [u64; TOTALS] {
        [
            self.requests,
            self.failed,
            self.canceled,
            self.cached_exact,
            self.cached_semantic,
            self.streamed,
            self.estimated,
            self.refit,
            self.attempts,
            self.tokens_in,
            self.tokens_out,
            self.saved_nano_usd,
            self.total_ms,
        ]
    }

    /// The totals of these numbers.
    pub fn of_numbers(numbers: [u64; TOTALS]) -> Totals {
        let [
            requests,
            failed,
            canceled,
            cached_exact,
            cached_semantic,
            streamed,
            estimated,
            refit,
            attempts,
            tokens_in,
            tokens_out,
            saved_nano_usd,
            total_ms,
        ] = numbers;
        Totals {
            requests,
            failed,
            canceled,
            cached_exact,
            cached_semantic,
            streamed,
            estimated,
            refit,
            attempts,
            tokens_in,
            tokens_out,
            saved_nano_usd,
            total_ms,
        }
    }

    /// Those of one request.
    pub fn of(sample: &Sample) -> Totals {
        let one = u64::from;
        Totals {
            requests: 1,
            failed: one(sample.outcome == RowOutcome::Error),
            canceled: one(sample.outcome == RowOutcome::Canceled),
            cached_exact: one(sample.cache == Some(RowCache::Exact)),
            cached_semantic: one(sample.cache == Some(RowCache::Semantic)),
            streamed: one(sample.stream),
            estimated: one(sample.estimated),
            refit: one(sample.refit.is_some()),
            attempts: u64::from(sample.attempts),
            tokens_in: sample.prompt_tokens,
            tokens_out: sample.output_tokens,
            saved_nano_usd: sample.saved_nano_usd,
            total_ms: sample.latency_ms,
        }
    }

    /// Adds others.
    pub fn add(&mut self, other: &Totals) {
        let mut sums = self.numbers();
        for (sum, number) in sums.iter_mut().zip(other.numbers()) {
            *sum = sum.saturating_add(number);
        }
        *self = Totals::of_numbers(sums);
    }

    /// Requests that got their answer.
    pub fn ok(&self) -> u64 {
        self.requests.saturating_sub(self.failed).saturating_sub(self.canceled)
    }

    /// Requests that a cache answered.
    pub fn cached(&self) -> u64 {
        self.cached_exact + self.cached_semantic
    }

    /// Answers per request that somebody waited for to the end; `None` before the first.
    pub fn success_rate(&self) -> Option<f64> {
        share(self.ok(), self.ok() + self.failed)
    }

    /// Part of the answers that cost nothing, not even quota; `None` before the first.
    pub fn free_share(&self) -> Option<f64> {
        share(self.cached(), self.ok())
    }

    /// In dollars.
    pub fn saved_usd(&self) -> f64 {
        self.saved_nano_usd as f64 / 1e9
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Sums and times of requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    pub totals: Totals,
    /// Of requests that an upstream answered: a failure is not a slow answer, and a cache not a fast one.
    pub latency: Histogram,
    /// To the first token, of those that were streamed.
    pub first_token: Histogram,
}

impl Figures {
    /// Counts a request.
    pub fn count(&mut self, sample: &Sample) {
        self.totals.add(&Totals::of(sample));
        if sample.outcome == RowOutcome::Success && sample.cache.is_none() {
            self.latency.add(sample.latency_ms);
            if let Some(first_ms) = sample.first_ms.filter(|_| sample.stream) {
                self.first_token.add(first_ms);
            }
        }
    }

    /// Adds others.
    pub fn merge(&mut self, other: &Figures) {
        self.totals.add(&other.totals);
        self.latency.merge(&other.latency);
        self.first_token.merge(&other.first_token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::row::sample;

    #[test]
    fn every_request_is_one_of_three() {
        let mut figures = Figures::default();
        let outcomes = [
            RowOutcome::Success,
            RowOutcome::Success,
            RowOutcome::Success,
            RowOutcome::Error,
            RowOutcome::Canceled,
        ];
        for (number, outcome) in outcomes.into_iter().enumerate() {
            let cache = (number == 0).then_some(RowCache::Exact);
            let row = Row { outcome, cache, stream: number == 1, ..sample(number as u64) };
            figures.count(&Sample::from(&row));
        }
        let totals = figures.totals;
        assert_eq!((totals.requests, totals.ok(), totals.failed, totals.canceled), (5, 3, 1, 1));
        assert_eq!((totals.success_rate(), totals.free_share()), (Some(0.75), Some(1.0 / 3.0)));
        assert_eq!(
            (figures.latency.mean(), figures.first_token.mean()),
            (Some(2_345.0), Some(321.0)),
            "neither the cached answer nor the failures are timed"
        );
        let nothing = Totals::default();
        assert_eq!((nothing.success_rate(), nothing.free_share()), (None, None));
    }

    #[test]
    fn numbers_and_columns_are_in_one_order() {
        let numbers: [u64; TOTALS] = std::array::from_fn(|place| place as u64 + 1);
        let totals = Totals::of_numbers(numbers);
        assert_eq!(totals.numbers(), numbers);
        let place = |name: &str| Totals::COLUMNS.iter().position(|column| *column == name).expect("a column");
        assert_eq!(totals.requests, place("requests") as u64 + 1);
        assert_eq!(totals.refit, place("refit") as u64 + 1);
        assert_eq!(totals.total_ms, place("total_ms") as u64 + 1);
        let mut twice = totals;
        twice.add(&totals);
        assert_eq!(twice.numbers(), numbers.map(|number| 2 * number));
    }
}
