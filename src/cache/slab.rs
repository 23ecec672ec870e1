//! Vectors of one length in one flat piece of memory, and the scan through them. A few thousand vectors are read faster
//! than any index over them could be kept. Pure.

/// Rows by which the memory grows, so that it is never twice what the vectors need.
const GROWTH_ROWS: usize = 64;

/// Sums that a dot product keeps apart. They do not wait for each other, and fill the widest registers there are.
const LANES: usize = 16;

/// Shorter vectors tell too little.
pub const DIMENSIONS_MIN: usize = 2;
/// The longest vectors that anybody makes have less than half of this.
pub const DIMENSIONS_MAX: usize = 16_384;

/// Vectors of length one, each with the group that it belongs to.
#[derive(Debug, Default)]
pub struct Slab {
    dimensions: usize,
    numbers: Vec<f32>,
    groups: Vec<u64>,
}

/// A row that is close to what was looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Close {
    pub row: usize,
    /// The cosine.
    pub score: f32,
}

impl Slab {
    /// An empty one for vectors of so many numbers.
    pub fn new(dimensions: usize) -> Slab {
        Slab { dimensions, ..Slab::default() }
    }

    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// How many vectors there are.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The memory that it takes.
    pub fn bytes(&self) -> usize {
        self.numbers.capacity() * size_of::<f32>() + self.groups.capacity() * size_of::<u64>()
    }

    /// Adds a vector of length one as the last row. One of another length is not taken.
    pub fn push(&mut self, group: u64, vector: &[f32]) -> bool {
        if vector.len() != self.dimensions {
            return false;
        }
        if self.groups.len() == self.groups.capacity() {
            self.groups.reserve_exact(GROWTH_ROWS);
            self.numbers.reserve_exact(GROWTH_ROWS * self.dimensions);
        }
        self.numbers.extend_from_slice(vector);
        self.groups.push(group);
        true
    }

    /// The vector of a row.
    pub fn row(&self, row: usize) -> Option<&[f32]> {
        self.numbers.get(row * self.dimensions..(row + 1) * self.dimensions)
    }

    /// Removes a row; the last one takes its place.
    pub fn swap_remove(&mut self, row: usize) {
        let Some(last) = self.len().checked_sub(1).filter(|last| row <= *last) else { return };
        let from = last * self.dimensions;
        self.numbers.copy_within(from.., row * self.dimensions);
        self.numbers.truncate(from);
        self.groups.swap_remove(row);
    }

    /// Up to `most` rows of a group that are at least so close, the closest first.
    pub fn closest(&self, group: u64, vector: &[f32], score_min: f32, most: usize) -> Vec<Close> {
        let mut found: Vec<Close> = Vec::new();
        if vector.len() != self.dimensions {
            return found;
        }
        let rows = self.groups.iter().zip(self.numbers.chunks_exact(self.dimensions.max(1)));
        for (row, (_, numbers)) in rows.enumerate().filter(|(_, (of, _))| **of == group) {
            let score = dot(vector, numbers);
            // What is not a number is not at least anything.
            if score >= score_min {
                let at = found.partition_point(|close| close.score >= score);
                if at < most {
                    found.truncate(most - 1);
                    found.insert(at, Close { row, score });
                }
            }
        }
        found
    }
}

/// The sum of the products of two vectors, which for vectors of length one is their cosine.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_whole, b_whole) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_whole.remainder().iter().zip(b_whole.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0.0_f32; LANES];
    for (a, b) in a_whole.zip(b_whole) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Brings a vector to length one. `None` for one that says nothing: too short or too long, all zeros, all the same, or
/// with a number that is none. It would be close to everything.
pub fn unit(vector: &[f32]) -> Option<Vec<f32>> {
    if !(DIMENSIONS_MIN..=DIMENSIONS_MAX).contains(&vector.len())
        || !vector.iter().all(|number| number.is_finite())
    {
        return None;
    }
    let length = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
    let (least, most) = vector.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), number| {
        (least.min(*number), most.max(*number))
    });
    // In a vector that is the same everywhere but for rounding, the numbers differ by next to nothing.
    if length < 1e-12 || f64::from(most) - f64::from(least) < 1e-6 * length {
        return None;
    }
    Some(vector.iter().map(|number| (f64::from(*number) / length) as f32).collect())
}

/// A vector of length one for the disk, in half the room: its largest number, then 16 bits for each.
pub fn packed(vector: &[f32]) -> Vec<u8> {
    let most = vector.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
    let mut bytes = Vec::with_capacity(4 + 2 * vector.len());
    bytes.extend_from_slice(&most.to_le_bytes());
    let scale = if most > 0.0 { f32::from(i16::MAX) / most } else { 0.0 };
    for number in vector {
        bytes.extend_from_slice(&((number * scale).round() as i16).to_le_bytes());
    }
    bytes
}

/// What [`packed`] made; `None` when it did not.
pub fn unpacked(bytes: &[u8]) -> Option<Vec<f32>> {
    let (most, numbers) = bytes.split_first_chunk::<4>()?;
    let step = f32::from_le_bytes(*most) / f32::from(i16::MAX);
    let number = |pair: &[u8]| Some(f32::from(i16::from_le_bytes(pair.try_into().ok()?)) * step);
    let vector: Option<Vec<f32>> = numbers.chunks(2).map(number).collect();
    unit(&vector?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn some(rng: &mut Rng, dimensions: usize) -> Vec<f32> {
        let vector: Vec<f32> = (0..dimensions).map(|_| rng.unit() as f32 - 0.5).collect();
        unit(&vector).expect("it says something")
    }

    #[test]
    fn dot_products_of_all_lengths_are_right() {
        let mut rng = Rng::seeded(1);
        for dimensions in [2, 3, 15, 16, 17, 31, 384, 1_024, 1_025] {
            let (a, b) = (some(&mut rng, dimensions), some(&mut rng, dimensions));
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-5, "{dimensions}");
            assert!((dot(&a, &a) - 1.0).abs() < 1e-5, "{dimensions}");
        }
    }

    #[test]
    fn the_closest_of_a_group_are_found_in_order() {
        let mut rng = Rng::seeded(2);
        let mut slab = Slab::new(64);
        let wanted = some(&mut rng, 64);
        for row in 0..200_u16 {
            let share = f32::from(row) / 200.0;
            let other = some(&mut rng, 64);
            let mixed: Vec<f32> =
                wanted.iter().zip(&other).map(|(w, o)| w * share + o * (1.0 - share)).collect();
            slab.push(u64::from(row % 2), &unit(&mixed).expect("it says something"));
        }
        let found = slab.closest(1, &wanted, 0.9, 5);
        assert_eq!(found.len(), 5);
        assert!(found.iter().all(|close| close.row % 2 == 1 && close.score >= 0.9));
        assert!(found.is_sorted_by(|a, b| a.score >= b.score));
        let best = (0..200).filter(|row| row % 2 == 1).map(|row| dot(slab.row(row).expect("a row"), &wanted));
        assert_eq!(Some(found[0].score), best.max_by(f32::total_cmp));
        assert_eq!(slab.closest(7, &wanted, 0.0, 5), []);
        assert_eq!(slab.closest(1, &wanted[1..], 0.0, 5), [], "another length");
        assert!(!slab.push(1, &wanted[1..]));
    }

    #[test]
    fn a_row_that_goes_makes_room_for_the_last() {
        let mut slab = Slab::new(2);
        for row in 0..5_u8 {
            slab.push(u64::from(row), &[f32::from(row), 1.0]);
        }
        slab.swap_remove(1);
        slab.swap_remove(3);
        slab.swap_remove(3);
        let rows: Vec<f32> = (0..slab.len()).filter_map(|row| slab.row(row)).map(|row| row[0]).collect();
        assert_eq!((rows, slab.groups.clone()), (vec![0.0, 4.0, 2.0], vec![0, 4, 2]));
        (0..4).for_each(|_| slab.swap_remove(0));
        assert!(slab.is_empty());
    }

    #[test]
    fn memory_is_what_the_vectors_need_and_a_little_room() {
        let mut slab = Slab::new(1_024);
        let vector = some(&mut Rng::seeded(3), 1_024);
        (0..1_000).for_each(|_| assert!(slab.push(0, &vector)));
        let needed = 1_000 * (1_024 * 4 + 8);
        assert!((needed..needed + 64 * (1_024 * 4 + 8)).contains(&slab.bytes()), "{}", slab.bytes());
    }

    #[test]
    fn cache_02_vectors_that_say_nothing_are_none() {
        let none = |vector: &[f32]| assert_eq!(unit(vector), None, "{vector:?}");
        none(&[]);
        none(&[1.0]);
        none(&[0.0; 8]);
        none(&[0.3; 8]);
        none(&[-1.0; 384]);
        none(&[1e-30; 8]);
        none(&[1.0, f32::NAN]);
        none(&[1.0, f32::INFINITY]);
        none(&vec![1.0; DIMENSIONS_MAX + 1]);
        let mut nearly = [0.1_f32; 8];
        nearly[3] += 1e-8;
        none(&nearly);
        assert_eq!(unit(&[3.0, 4.0]), Some(vec![0.6, 0.8]));
        assert_eq!(unit(&[3e30, 3e30, 0.0]), unit(&[1.0, 1.0, 0.0]), "no number is too large");
    }

    #[test]
    fn a_packed_vector_keeps_its_cosines() {
        let mut rng = Rng::seeded(4);
        let (a, b) = (some(&mut rng, 384), some(&mut rng, 384));
        let bytes = packed(&a);
        assert_eq!(bytes.len(), 4 + 2 * 384);
        let again = unpacked(&bytes).expect("as it was packed");
        assert!((dot(&again, &b) - dot(&a, &b)).abs() < 1e-4 && dot(&again, &a) > 0.99999);
        assert_eq!(unpacked(&bytes[..bytes.len() - 1]), None);
        assert_eq!(unpacked(&[]), None);
        assert_eq!(unpacked(&f32::NAN.to_le_bytes().repeat(3)), None);
    }
}
