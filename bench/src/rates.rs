//! The rate of an operation on one core, in several alternating variants.
//!
//! Rates use the calling thread's CPU time, so other programs' CPU use does not count. Their memory traffic
//! still slows every variant. Each round therefore measures all variants once, and a ratio compares two
//! variants in the same round.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A variant and its rate in each round, in millions per second.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Rates {
    /// The variant's name.
    pub(crate) name: &'static str,
    /// Rates by round.
    pub(crate) millions_per_s: Vec<f64>,
}

impl Rates {
    /// Returns the median of the rounds.
    pub(crate) fn p50(&self) -> f64 {
        middle(self.millions_per_s.clone())
    }

    /// Returns the speed relative to `other`: the median of the rounds' ratios, each under the same load.
    pub(crate) fn times(&self, other: &Self) -> f64 {
        let pairs = self.millions_per_s.iter().zip(&other.millions_per_s);
        middle(pairs.map(|(ours, theirs)| ours / theirs).collect())
    }
}

/// Returns the median of some numbers; NaN when there are none.
fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// SplitMix64.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    #[inline(always)]
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let product = u128::from(z ^ z >> 31) * u128::from(end);
        u64::try_from(product >> 64).expect("the upper half of 128 bits")
    }
}

/// The units and the CPU time of one measurement.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) units: u64,
    pub(crate) time: Duration,
}

type Measure<'a, S> = dyn FnMut(&mut S, &mut Chance) -> Measured + 'a;

/// A named variant, measured once per round on a subject that all variants share.
pub(crate) struct Variant<'a, S> {
    pub(crate) name: &'static str,
    measure: Box<Measure<'a, S>>,
}

impl<'a, S> Variant<'a, S> {
    pub(crate) fn new(name: &'static str, measure: impl FnMut(&mut S, &mut Chance) -> Measured + 'a) -> Self {
        Self { name, measure: Box::new(measure) }
    }
}

/// Measures all variants in alternation, after a warm-up round.
pub(crate) fn measure<S>(subject: &mut S, mut ways: Vec<Variant<'_, S>>, rounds: usize) -> Vec<Rates> {
    let mut rates: Vec<_> =
        ways.iter().map(|way| Rates { name: way.name, millions_per_s: Vec::new() }).collect();
    let mut chance = Chance(0x5eed);
    for round in 0..=rounds {
        for (way, rates) in ways.iter_mut().zip(&mut rates) {
            let Measured { units, time } = (way.measure)(subject, &mut chance);
            if round > 0 {
                rates.millions_per_s.push(units as f64 / time.as_secs_f64() / 1e6);
            }
        }
    }
    rates
}

/// Returns the CPU time of this thread.
pub(crate) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("a clock that began at 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ratios are taken round by round: a disturbed round changes both sides, and the median does not show
    /// it.
    #[test]
    fn ratios_are_of_the_same_round() {
        let rates = |rates: [f64; 3]| Rates { name: "", millions_per_s: rates.to_vec() };
        let (fast, slow) = (rates([40.0, 4.0, 42.0]), rates([10.0, 1.0, 10.0]));
        assert_eq!((fast.times(&slow), fast.p50(), slow.p50()), (4.0, 40.0, 10.0));
        assert!(rates([1.0; 3]).times(&Rates { name: "", millions_per_s: vec![] }).is_nan());
    }

    /// Each variant is measured once per round, in alternation, and the first round does not count.
    #[test]
    fn ways_take_turns() {
        let way = |name: &'static str| {
            Variant::new(name, move |told: &mut Vec<&str>, _: &mut Chance| {
                told.push(name);
                Measured { units: 3_000_000, time: Duration::from_secs(1) }
            })
        };
        let mut told = Vec::new();
        let rates = measure(&mut told, vec![way("a"), way("b")], 2);
        assert_eq!(told, ["a", "b", "a", "b", "a", "b"]);
        assert!(rates.iter().all(|rates| rates.millions_per_s == [3.0; 2]), "{rates:?}");
    }
}
