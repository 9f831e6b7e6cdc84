//! The only home of randomness: a small seeded generator, and fresh seeds.

/// SplitMix64 (Steele, Lea, Flood 2014): fast, seeded, the same on every machine.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers depend on the seed alone.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }
    /// A generator with a seed of the operating system's.
    pub fn fresh() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place where randomness comes in")]
        Self(rand::random())
    }
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `bound`, evenly spread; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
    /// A number in `[0, 1)`.
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}
