//! The time that a view looks at, in hours or days. Pure.
use super::rollup::HOUR_MS;

const HOURS_PER_DAY: i64 = 24;
const MINUTE_MS: i64 = 60_000;

/// How far a view looks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    Day,
    Week,
    Month,
    Quarter,
}

impl Range {
    pub const ALL: [Range; 4] = [Range::Day, Range::Week, Range::Month, Range::Quarter];

    /// Its word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Range::Day => "24h",
            Range::Week => "7d",
            Range::Month => "30d",
            Range::Quarter => "90d",
        }
    }

    const fn days(self) -> i64 {
        match self {
            Range::Day => 1,
            Range::Week => 7,
            Range::Month => 30,
            Range::Quarter => 90,
        }
    }

    /// Whether it is shown by the day; shorter ones are by the hour.
    pub const fn by_day(self) -> bool {
        matches!(self, Range::Month | Range::Quarter)
    }
}

/// A range that ends now, cut into buckets; the last of them is not over yet.
///
/// Roll-ups know hours of UTC. Where clocks differ from it by half an hour, an hour belongs to the day that it begins
/// in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Number of the first bucket: hours or local days since 1970.
    first: i64,
    buckets: usize,
    hours_per_bucket: i64,
    offset_ms: i64,
}

impl Span {
    /// The span of a range that ends at `now_ms`, for people `offset_minutes` east of UTC.
    pub fn new(range: Range, now_ms: u64, offset_minutes: i64) -> Span {
        let (hours_per_bucket, offset_ms, buckets) = match range.by_day() {
            true => (HOURS_PER_DAY, offset_minutes * MINUTE_MS, range.days()),
            false => (1, 0, range.days() * HOURS_PER_DAY),
        };
        let mut span = Span { first: 0, buckets: buckets as usize, hours_per_bucket, offset_ms };
        span.first = span.number_of((now_ms / HOUR_MS) as i64) - buckets + 1;
        span
    }

    fn bucket_ms(&self) -> i64 {
        self.hours_per_bucket * HOUR_MS as i64
    }

    fn number_of(&self, hour: i64) -> i64 {
        (hour * HOUR_MS as i64 + self.offset_ms).div_euclid(self.bucket_ms())
    }

    /// How many buckets it has.
    pub const fn buckets(&self) -> usize {
        self.buckets
    }

    /// When a bucket begins, in milliseconds since 1970.
    pub fn start_ms(&self, bucket: usize) -> u64 {
        ((self.first + bucket as i64) * self.bucket_ms() - self.offset_ms).max(0) as u64
    }

    /// The bucket of an hour, if it is one of these.
    pub fn bucket_of(&self, hour: i64) -> Option<usize> {
        let bucket = usize::try_from(self.number_of(hour) - self.first).ok()?;
        (bucket < self.buckets).then_some(bucket)
    }

    /// The hours of all buckets, the end excluded.
    pub fn hours(&self) -> (i64, i64) {
        let first_from = |bucket: usize| self.start_ms(bucket).div_ceil(HOUR_MS) as i64;
        (first_from(0), first_from(self.buckets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-30 10:30 UTC.
    const NOW_MS: u64 = 1_796_034_600_000;

    #[test]
    fn spans_end_with_the_bucket_of_now() {
        let check = |range: Range, offset_minutes: i64, buckets: usize, first_ms: u64, last_ms: u64| {
            let span = Span::new(range, NOW_MS, offset_minutes);
            let found = (span.buckets(), span.start_ms(0), span.start_ms(buckets - 1));
            assert_eq!(found, (buckets, first_ms, last_ms), "{range:?} {offset_minutes}");
        };
        let hour = NOW_MS / HOUR_MS * HOUR_MS;
        let day = NOW_MS / (24 * HOUR_MS) * 24 * HOUR_MS;
        check(Range::Day, 120, 24, hour - 23 * HOUR_MS, hour);
        check(Range::Week, 0, 168, hour - 167 * HOUR_MS, hour);
        check(Range::Month, 0, 30, day - 29 * 24 * HOUR_MS, day);
        check(Range::Quarter, 120, 90, day - (89 * 24 + 2) * HOUR_MS, day - 2 * HOUR_MS);
        // At 10:30 UTC it is tomorrow already in Kiritimati, and still today in Honolulu.
        check(Range::Month, 14 * 60, 30, day - (28 * 24 + 14) * HOUR_MS, day + 10 * HOUR_MS);
        check(Range::Month, -10 * 60, 30, day - (29 * 24 - 10) * HOUR_MS, day + 10 * HOUR_MS);
    }

    #[test]
    fn every_hour_has_one_bucket() {
        for offset_minutes in [-720, -210, -60, 0, 330, 345, 840] {
            for range in Range::ALL {
                let span = Span::new(range, NOW_MS, offset_minutes);
                let (from, to) = span.hours();
                let mut counts = vec![0_i64; span.buckets()];
                for hour in from..to {
                    counts[span.bucket_of(hour).expect("inside")] += 1;
                }
                let each = if range.by_day() { 24 } else { 1 };
                assert!(counts.iter().all(|count| *count == each), "{range:?} {offset_minutes} {counts:?}");
                assert_eq!((span.bucket_of(from - 1), span.bucket_of(to)), (None, None));
                assert!((from..to).contains(&((NOW_MS / HOUR_MS) as i64)));
            }
        }
    }
}
