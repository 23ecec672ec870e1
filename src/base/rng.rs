//! Randomness: a small seeded generator for decisions, and the operating system's source for secrets and ids.
use ring::rand::{SecureRandom, SystemRandom};

/// A SplitMix64 generator: small, fast, good enough for tie-breaks and sampling, useless for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same sequence.
    pub const fn seeded(seed: u64) -> Rng {
        Rng(seed)
    }

    /// A generator seeded by the operating system.
    pub fn from_os() -> Rng {
        let mut seed = [0; 8];
        fill_random(&mut seed);
        Rng(u64::from_le_bytes(seed))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; zero when `bound` is zero.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize }
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Fills `out` with bytes fit for secrets.
pub fn fill_random(out: &mut [u8]) {
    SystemRandom::new().fill(out).expect("the operating system's random source answers");
}
