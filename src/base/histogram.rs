//! Histograms of durations with buckets that widen with the value, so that a few bytes tell a percentile to within a
//! few per cent. Sums are kept beside them, so averages are exact. Pure.
use super::varint::{push_number, take_number};

/// Buckets per doubling are two to the power of this.
const SUB_BITS: u32 = 4;
/// Largest deviation of a percentile from the value that stands at its rank: half a bucket.
pub const ERROR_MAX: f64 = 1.0 / (2 << SUB_BITS) as f64;
/// Values are cut to this: eighteen hours in milliseconds, longer than anything that is timed here.
const VALUE_MAX: u64 = (1 << 26) - 1;
const BUCKETS: usize = bucket_of(VALUE_MAX) + 1;

/// Below 32 each value has a bucket of its own; from there on each doubling has sixteen.
const fn bucket_of(value: u64) -> usize {
    let octave = (63 - (value | 1).leading_zeros() + 1).saturating_sub(SUB_BITS + 1);
    ((octave as usize) << SUB_BITS) + (value >> octave) as usize
}

/// The middle of a bucket.
const fn middle_of(bucket: usize) -> u64 {
    let octave = (bucket >> SUB_BITS).saturating_sub(1);
    let first = ((bucket - (octave << SUB_BITS)) as u64) << octave;
    first + ((1 << octave) - 1) / 2
}

/// How often which duration was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Up to the last bucket that was ever used.
    counts: Vec<u64>,
    count: u64,
    sum: u64,
}

/// What a [`Histogram`] holds, as pairs of bucket and count: the form in which it is stored, and added to others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sparse {
    pairs: Vec<(usize, u64)>,
    sum: u64,
}

impl Histogram {
    /// Counts one value.
    pub fn add(&mut self, value: u64) {
        self.count_in(bucket_of(value.min(VALUE_MAX)), 1);
        self.sum = self.sum.saturating_add(value);
    }

    /// Adds another one.
    pub fn add_sparse(&mut self, other: &Sparse) {
        for (bucket, count) in &other.pairs {
            self.count_in(*bucket, *count);
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Adds another one.
    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in other.used() {
            self.count_in(bucket, count);
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    fn count_in(&mut self, bucket: usize, count: u64) {
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += count;
        self.count += count;
    }

    fn used(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }

    /// The average, exact; `None` when nothing was counted.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// The value at rank `⌊(n − 1) · share⌋`, off by at most [`ERROR_MAX`]; `None` when nothing was counted.
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let rank = (self.count.checked_sub(1)? as f64 * share.clamp(0.0, 1.0)) as u64;
        let mut before = 0;
        let found = self.used().find(|(_, count)| {
            before += count;
            before > rank
        });
        found.map(|(bucket, _)| middle_of(bucket))
    }

    /// The stored form: the sum, then for each bucket in use its distance from the one before and its count, all as
    /// [varints](super::varint). Empty when nothing was counted.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.count == 0 {
            return out;
        }
        push_number(&mut out, self.sum);
        let mut last = 0;
        for (bucket, count) in self.used() {
            push_number(&mut out, (bucket - last) as u64);
            push_number(&mut out, count);
            last = bucket;
        }
        out
    }
}

impl Sparse {
    /// Reads the stored form over what was there. What makes no sense, as in a damaged file, is left out.
    pub fn decode(&mut self, mut bytes: &[u8]) {
        self.pairs.clear();
        self.sum = take_number(&mut bytes).unwrap_or(0);
        let mut bucket = 0_usize;
        while let (Some(step), Some(count)) = (take_number(&mut bytes), take_number(&mut bytes)) {
            bucket = bucket.saturating_add(usize::try_from(step).unwrap_or(usize::MAX));
            if bucket >= BUCKETS || count > u64::from(u32::MAX) {
                return;
            }
            self.pairs.push((bucket, count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.add(*value));
        histogram
    }

    #[test]
    fn every_value_is_near_the_middle_of_its_bucket() {
        let mut last = 0;
        for value in (0..100_000).chain((100_000..VALUE_MAX).step_by(997)).chain([VALUE_MAX]) {
            let bucket = bucket_of(value);
            assert!(bucket == last || bucket == last + 1 || value >= 100_000, "{value}");
            assert!(bucket >= last && bucket < BUCKETS, "{value}");
            let off = middle_of(bucket).abs_diff(value) as f64;
            assert!(off <= value as f64 * ERROR_MAX, "{value} is told as {}", middle_of(bucket));
            last = bucket;
        }
        assert_eq!(of(&[u64::MAX]).percentile(0.5), Some(middle_of(BUCKETS - 1)));
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let check = |values: &[u64], share: f64, expected: Option<u64>| {
            assert_eq!(of(values).percentile(share), expected, "{values:?} at {share}");
        };
        check(&[], 0.5, None);
        check(&[7], 0.0, Some(7));
        check(&[7], 0.95, Some(7));
        check(&[3, 1, 2], 0.5, Some(2));
        check(&[1, 2, 3, 4], 0.5, Some(2));
        check(&[1, 2, 3, 4], 1.0, Some(4));
        let mut rng = Rng::seeded(7);
        for size in [1, 2, 10, 100, 5_000] {
            let mut values: Vec<u64> = (0..size).map(|_| 1 << (rng.next_u64() % 18)).collect();
            values.iter_mut().for_each(|value| *value += rng.next_u64() % *value);
            let histogram = of(&values);
            values.sort_unstable();
            for share in [0.0, 0.5, 0.95, 1.0] {
                let exact = values[((size - 1) as f64 * share) as usize];
                let told = histogram.percentile(share).expect("not empty");
                assert!(told.abs_diff(exact) as f64 <= exact as f64 * ERROR_MAX, "{told} for {exact}");
            }
            let mean = values.iter().sum::<u64>() as f64 / size as f64;
            assert!(histogram.mean().is_some_and(|told| (told - mean).abs() < 1e-6));
        }
    }

    #[test]
    fn the_stored_form_adds_up() {
        let mut rng = Rng::seeded(9);
        let values: Vec<u64> = (0..500).map(|_| rng.next_u64() % 60_000).collect();
        let (one, two) = values.split_at(200);
        let mut sum = Histogram::default();
        let mut sparse = Sparse::default();
        for part in [one, two, &[]] {
            sparse.decode(&of(part).encode());
            sum.add_sparse(&sparse);
        }
        assert_eq!(sum, of(&values));
        let mut merged = of(one);
        merged.merge(&of(two));
        assert_eq!(merged, sum);
        assert!(of(&[812]).encode().len() <= 5, "a single value takes next to nothing");
    }

    #[test]
    fn damaged_bytes_do_no_harm() {
        let mut rng = Rng::seeded(11);
        for length in 0..200 {
            let noise: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
            let (mut sparse, mut histogram) = (Sparse::default(), Histogram::default());
            sparse.decode(&noise);
            histogram.add_sparse(&sparse);
            assert!(histogram.counts.len() <= BUCKETS);
        }
    }
}
