//! The break-even of caching in the DPU (SODA III-A): equations 1 to 3, with latency, from times measured
//! during operation.

use farmem_machine::Duration;

/// Weight of a new sample in a [`Line`]: the sums cover about the latest thousand samples.
const WEIGHT: f64 = 1.0 / 1024.0;

/// The time of a transfer as a function of its size: latency and bandwidth of a link, by least squares over
/// the latest samples.
///
/// SODA's model has bandwidths alone (equation 1); with a latency it holds for short transfers too.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Line {
    /// Decaying sums of 1, bytes, nanoseconds, their squares and products.
    n: f64,
    s: f64,
    t: f64,
    ss: f64,
    st: f64,
}

impl Line {
    /// Records the time of a transfer of `bytes` that was alone on the link.
    pub fn record(&mut self, bytes: u32, took: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a transfer are far below 2^52")]
        let (s, t) = (f64::from(bytes), took.as_nanos() as f64);
        for (sum, sample) in [
            (&mut self.n, 1.0),
            (&mut self.s, s),
            (&mut self.t, t),
            (&mut self.ss, s * s),
            (&mut self.st, s * t),
        ] {
            *sum = *sum * (1.0 - WEIGHT) + sample;
        }
    }

    /// Returns the latency in nanoseconds, and the nanoseconds per byte; `None` before the first sample. If
    /// all transfers had about one size, their time counts as bandwidth alone, as in SODA's equation 1.
    #[must_use]
    pub fn fit(&self) -> Option<(f64, f64)> {
        if self.n <= 0.0 || self.s <= 0.0 {
            return None;
        }
        let spread = self.n * self.ss - self.s * self.s;
        // Relative to the square of the mean: sizes that differ by less than a thousandth are one size.
        let slope = (self.n * self.st - self.s * self.t) / spread;
        let latency = (self.t - slope * self.s) / self.n;
        let differ = spread > self.s * self.s * 1e-6;
        if differ && slope >= 0.0 && latency >= 0.0 {
            Some((latency, slope))
        } else {
            Some((0.0, self.t / self.s))
        }
    }

    /// Returns the nanoseconds of a transfer of `bytes` (equation 1, with latency).
    #[must_use]
    pub fn time(&self, bytes: u32) -> Option<f64> {
        self.fit().map(|(latency, each)| latency + each * f64::from(bytes))
    }

    /// Returns the bandwidth in bytes per second.
    #[must_use]
    pub fn bandwidth(&self) -> Option<f64> {
        self.fit().filter(|(_, each)| *each > 0.0).map(|(_, each)| 1e9 / each)
    }
}

/// Returns the hit rate above which dynamic caching pays for requests of `bytes` (equation 3): `T_intra /
/// T_net`, which is `B_net / B_intra` without latencies.
///
/// A request takes `T = T_net` without a cache, and `T_intra + (1 - h) * T_net` with one (equations 1 and 2).
/// Returns `None` while either time is unknown.
#[must_use]
pub fn break_even(network: &Line, intra: &Line, bytes: u32) -> Option<f64> {
    let network = network.time(bytes).filter(|&time| time > 0.0)?;
    Some(intra.time(bytes)? / network)
}

/// The budget of background traffic: the total traffic stays within a share of the requested bytes.
///
/// Requested bytes would have moved without a cache. A bound of `cap` 1,024ths holds at every moment,
/// whatever programs do: a prefetch begins only if the bound holds even if none of its bytes is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    cap: Option<u32>,
    asked: u64,
    moved: u64,
}

impl Budget {
    /// Returns a budget of `cap` 1,024ths of the requested bytes; `None` sets no bound.
    #[must_use]
    pub const fn new(cap: Option<u32>) -> Self {
        Self { cap, asked: 0, moved: 0 }
    }

    /// Counts bytes requested by a process, wherever they come from.
    pub const fn asked(&mut self, bytes: u64) {
        self.asked += bytes;
    }

    /// Counts bytes fetched from far memory for a waiting process, or reserved for it.
    pub const fn moved(&mut self, bytes: u64) {
        self.moved += bytes;
    }

    /// Returns bytes that were not needed or did not arrive.
    pub const fn give_back(&mut self, bytes: u64) {
        self.moved -= bytes;
    }

    /// Takes bytes for a prefetch, if the budget allows it.
    pub fn take(&mut self, bytes: u64) -> bool {
        let fits = self.cap.is_none_or(|cap| {
            u128::from(self.moved + bytes) * 1024 <= u128::from(self.asked) * u128::from(cap)
        });
        if fits {
            self.moved += bytes;
        }
        fits
    }

    /// Returns the bytes requested, and the bytes moved.
    #[must_use]
    pub const fn so_far(&self) -> (u64, u64) {
        (self.asked, self.moved)
    }
}

/// Number of requests after which the prefetch decision is reviewed.
pub const EPOCH: u32 = 1024;
/// Margin above the break-even for switching prefetching on again, so that it does not oscillate.
const MARGIN: f64 = 1.0 / 16.0;

/// The prefetch switch, controlled by the hit rate of the latest epoch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PrefetchSwitch {
    on: bool,
    requests: u32,
    hits: u32,
    /// The hit rate of the last complete epoch.
    rate: Option<f64>,
}

impl Default for PrefetchSwitch {
    fn default() -> Self {
        Self { on: true, requests: 0, hits: 0, rate: None }
    }
}

impl PrefetchSwitch {
    /// Records a request, and whether a prefetching cache has or would have had it.
    pub fn request(&mut self, hit: bool, break_even: Option<f64>) {
        self.requests += 1;
        self.hits += u32::from(hit);
        if self.requests < EPOCH {
            return;
        }
        let rate = f64::from(self.hits) / f64::from(self.requests);
        (self.requests, self.hits, self.rate) = (0, 0, Some(rate));
        if let Some(needed) = break_even {
            self.on = rate > if self.on { needed } else { needed + MARGIN };
        }
    }

    /// Returns true if prefetches may begin.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(latency: u64, nanos_a_kib: u64) -> Line {
        let mut line = Line::default();
        for round in 0..4096_u32 {
            let kib = 1 + round % 64;
            line.record(kib << 10, Duration::from_nanos(latency + nanos_a_kib * u64::from(kib)));
        }
        line
    }

    fn about(found: Option<f64>, expected: f64) {
        let found = found.expect("there are samples");
        assert!((found - expected).abs() <= expected.abs() * 1e-6 + 1e-6, "{found} is not {expected}");
    }

    /// SODA's own numbers: at a ratio of 1:2 caching pays from 50 % of hits on, at 1:3 from 33 % (III-A).
    #[test]
    fn the_papers_break_evens() {
        let network = line(0, 200);
        about(break_even(&network, &line(0, 100), 64 << 10), 0.5);
        about(break_even(&network, &line(0, 200).scaled(3.0), 64 << 10), 1.0 / 3.0);
        assert_eq!(break_even(&network, &Line::default(), 4096), None, "nothing is known of one link");
    }

    impl Line {
        /// Returns the same link, `by` times as fast.
        fn scaled(self, by: f64) -> Self {
            Self { t: self.t / by, st: self.st / by, ..self }
        }
    }

    /// Samples of many sizes give latency and bandwidth; samples of one size give only its time.
    #[test]
    fn a_link_is_a_line() {
        let link = line(3_000, 80);
        about(link.fit().map(|(latency, _)| latency), 3_000.0);
        about(link.bandwidth(), 1024.0 * 1e9 / 80.0);
        about(link.time(65_536), 3_000.0 + 80.0 * 64.0);
        let mut one = Line::default();
        one.record(4096, Duration::from_micros(10));
        one.record(4096, Duration::from_micros(10));
        about(one.time(4096), 10_000.0);
    }

    /// The traffic stays within the share at every step, even if every prefetch is useless.
    #[test]
    fn useless_prefetches_stay_within_the_budget() {
        let mut budget = Budget::new(Some(1075)); // 1.05
        let mut begun = 0;
        for _ in 0..10_000 {
            budget.asked(65_536);
            budget.moved(65_536);
            begun += u64::from(budget.take(1 << 20));
            let (asked, moved) = budget.so_far();
            assert!(moved * 1024 <= asked * 1075, "{moved} of {asked}");
        }
        assert_eq!(begun, (10_000 * 65_536 * 51 / 1024) >> 20, "all that the budget allows is used");
        let mut free = Budget::new(None);
        assert!(free.take(1 << 40));
    }

    /// Prefetching switches off below the break-even and on above the margin, not between them.
    #[test]
    fn it_goes_off_and_comes_back_by_the_hit_rate() {
        let mut switched = PrefetchSwitch::default();
        let epoch = |switched: &mut PrefetchSwitch, hits: u32| {
            for request in 0..EPOCH {
                switched.request(request < hits, Some(0.5));
            }
            switched.is_on()
        };
        assert!(epoch(&mut switched, 600));
        assert!(!epoch(&mut switched, 500));
        assert!(!epoch(&mut switched, 540), "not yet: within the margin");
        assert!(epoch(&mut switched, 600));
        assert!(epoch(&mut switched, 540), "still");
        for _ in 0..EPOCH {
            switched.request(false, None);
        }
        assert!(switched.is_on(), "nothing is known of the links");
    }
}
