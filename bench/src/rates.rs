//! How fast one core does something, in several ways that take turns.
//!
//! Everything is counted against CPU time of the calling thread, so that what others of this machine take does not count; their traffic
//! to memory still slows every way down. So each round measures all ways once, and a ratio is that of two ways in the same round.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// One way, and how fast it was in each round, in millions a second.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Rates {
    /// Of the way.
    pub(crate) name: &'static str,
    /// Rates by round.
    pub(crate) millions_per_s: Vec<f64>,
}

impl Rates {
    /// The middle of the rounds.
    pub(crate) fn p50(&self) -> f64 {
        middle(self.millions_per_s.clone())
    }

    /// How many times as fast as `other`: the middle of what the rounds say, each of both ways under the same load.
    pub(crate) fn times(&self, other: &Self) -> f64 {
        let pairs = self.millions_per_s.iter().zip(&other.millions_per_s);
        middle(pairs.map(|(ours, theirs)| ours / theirs).collect())
    }
}

/// The middle of some numbers; not a number when there are none.
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

/// What one measurement did, and in what CPU time.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) units: u64,
    pub(crate) time: Duration,
}

type Measure<'a, S> = dyn FnMut(&mut S, &mut Chance) -> Measured + 'a;

/// A way under its name, to be measured once a round on a subject that all ways share.
pub(crate) struct Variant<'a, S> {
    pub(crate) name: &'static str,
    measure: Box<Measure<'a, S>>,
}

impl<'a, S> Variant<'a, S> {
    pub(crate) fn new(name: &'static str, measure: impl FnMut(&mut S, &mut Chance) -> Measured + 'a) -> Self {
        Self { name, measure: Box::new(measure) }
    }
}

/// Measures all ways in turn, after a round that warms up.
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

/// CPU time of this thread.
pub(crate) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("a clock that began at 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ratio is taken round by round: one that the machine disturbed changes both sides, and the middle does not see it.
    #[test]
    fn ratios_are_of_the_same_round() {
        let rates = |rates: [f64; 3]| Rates { name: "", millions_per_s: rates.to_vec() };
        let (fast, slow) = (rates([40.0, 4.0, 42.0]), rates([10.0, 1.0, 10.0]));
        assert_eq!((fast.times(&slow), fast.p50(), slow.p50()), (4.0, 40.0, 10.0));
        assert!(rates([1.0; 3]).times(&Rates { name: "", millions_per_s: vec![] }).is_nan());
    }

    /// Each way is measured once a round, in turns, and the first round does not count.
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
