//! Randomness as a value: a seeded generator that a role owns.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// A seeded random generator (ChaCha8: repeatable from its seed, and as unpredictable as the seed).
///
/// The driver seeds the generator of keys, QPNs and start PSNs from the operating system; a simulated world
/// seeds its own from one number.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// Creates a generator that is as secret as `seed`.
    #[must_use]
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(ChaCha8Rng::from_seed(seed))
    }

    /// Creates a generator for simulations and tests: repeatable and predictable.
    #[must_use]
    pub fn from_number(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns the next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound`, uniform to within 2^-32.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "no number is below zero");
        let wide = u64::from(self.next_u32()) * u64::from(bound);
        (wide >> 32) as u32
    }

    /// Returns true with probability `numerator / denominator`.
    ///
    /// # Panics
    /// If `denominator` is zero.
    pub fn chance(&mut self, numerator: u32, denominator: u32) -> bool {
        self.below(denominator) < numerator
    }
}
