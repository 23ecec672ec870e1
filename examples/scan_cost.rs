//! What the semantic cache's scan costs: `cargo run --release --example scan_cost`.
//!
//! All vectors of one scope are compared with a question, at 5,000 and 50,000 vectors of 1,024 numbers; beside it the same
//! bytes are read once, which is the least that any scan could take. Both take turns; the medians are compared.
use std::hint::black_box;
use std::time::Instant;

use freeway::base::rng::Rng;
use freeway::cache::slab::{Slab, unit};

const DIMENSIONS: usize = 1_024;
const ROUNDS: usize = 31;
/// Sums kept apart while reading, so that reading waits for the memory alone.
const LANES: usize = 16;

fn some(rng: &mut Rng) -> Vec<f32> {
    let vector: Vec<f32> = (0..DIMENSIONS).map(|_| rng.unit() as f32 - 0.5).collect();
    unit(&vector).expect("random numbers say something")
}

/// Reads every number of the slab, row by row.
fn read_once(slab: &Slab) -> [f32; LANES] {
    let mut sums = [0.0; LANES];
    for row in (0..slab.len()).filter_map(|row| slab.row(row)) {
        for numbers in row.chunks_exact(LANES) {
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
    }
    sums
}

fn median_us(mut taken: Vec<f64>) -> f64 {
    taken.sort_by(f64::total_cmp);
    taken[taken.len() / 2]
}

fn main() {
    let mut rng = Rng::seeded(1);
    for count in [5_000, 50_000] {
        let mut slab = Slab::new(DIMENSIONS);
        (0..count).for_each(|_| assert!(slab.push(7, &some(&mut rng))));
        let question = some(&mut rng);
        let (mut scans, mut reads) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let began = Instant::now();
            black_box(read_once(black_box(&slab)));
            reads.push(began.elapsed().as_secs_f64() * 1e6);
            let began = Instant::now();
            black_box(slab.closest(7, black_box(&question), 0.92, 16));
            scans.push(began.elapsed().as_secs_f64() * 1e6);
        }
        let (scan, read) = (median_us(scans), median_us(reads));
        let computed = count * (DIMENSIONS * size_of::<f32>() + size_of::<u64>());
        println!("scan_us {count} {scan:.1}");
        println!("scan_ratio {count} {:.3}", scan / read);
        println!("scan_memory_ratio {count} {:.4}", slab.bytes() as f64 / computed as f64);
    }
}
