//! Measured times in interleaved rounds, so that a change of the machine's speed affects both sides.

use crate::{CpuMeter, CpuTime, Row, to_f64};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Times of one kind of operation, in nanoseconds, and the CPU time that they took.
#[derive(Clone, Debug)]
pub struct Samples {
    times: Histogram<u64>,
    cpu: CpuTime,
}

impl Default for Samples {
    fn default() -> Self {
        Self::new()
    }
}

impl Samples {
    /// Creates an empty set of samples.
    #[must_use]
    pub fn new() -> Self {
        let times =
            Histogram::new_with_max(60_000_000_000, 3).expect("a minute with three digits is in range");
        Self { times, cpu: CpuTime::default() }
    }

    /// Times one operation and records it.
    ///
    /// # Errors
    /// The operation's error; the time is then not recorded.
    pub fn time<E>(&mut self, operation: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let begin = Instant::now();
        operation()?;
        self.record(begin.elapsed());
        Ok(())
    }

    /// Times one operation and records the time when the operation returns true.
    ///
    /// # Errors
    /// The operation's error; the time is then not recorded.
    pub fn time_if<E>(&mut self, operation: impl FnOnce() -> Result<bool, E>) -> Result<(), E> {
        let begin = Instant::now();
        if operation()? {
            self.record(begin.elapsed());
        }
        Ok(())
    }

    /// Times `batch` operations together and records their mean, for operations too short for the clock. The
    /// CPU time is that of this process.
    ///
    /// # Errors
    /// The operations' error; the time is then not recorded.
    pub fn time_batch<E>(&mut self, batch: u32, operation: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let own = CpuMeter::own();
        let cpu = own.begin();
        let begin = Instant::now();
        operation()?;
        let time = begin.elapsed();
        self.spent(cpu.end(), batch.into());
        // Tenths of a nanosecond are lost; the operations take tens of nanoseconds and more.
        self.record(time / batch.max(1));
        Ok(())
    }

    /// Records an externally measured time.
    pub fn record(&mut self, time: Duration) {
        self.times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the CPU time of `operations` of these.
    pub fn spent(&mut self, cpu: Option<Duration>, operations: u64) {
        self.cpu.add(cpu, operations);
    }

    /// Adds another set of samples.
    pub fn add(&mut self, other: &Self) {
        self.times.add(&other.times).expect("both have the same range");
        self.cpu.add_all(&other.cpu);
    }

    /// Returns the CPU time per operation in nanoseconds, if it was counted.
    #[must_use]
    pub fn cpu(&self) -> Option<f64> {
        self.cpu.per_operation()
    }

    /// Returns the number of recorded times.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.times.len()
    }

    /// Returns true when no time was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Returns the time that a share `q` of all does not exceed.
    #[must_use]
    pub fn quantile(&self, q: f64) -> f64 {
        to_f64(self.times.value_at_quantile(q))
    }

    /// Returns the median, to a thousandth.
    #[must_use]
    pub fn median(&self) -> Duration {
        Duration::from_nanos(self.times.value_at_quantile(0.5))
    }

    /// Returns the row of these times, compared with the baseline's.
    #[must_use]
    pub fn row(&self, id: &str, baseline: Option<&Self>) -> Row {
        let median = self.quantile(0.5);
        let row = Row {
            p50: Some(median),
            p99: Some(self.quantile(0.99)),
            ..Row::figure(id, "ns", median, self.times.len())
        };
        row.with_cpu(self.cpu()).beside(baseline.map(|b| b.quantile(0.5)))
    }
}

/// Returns the row of a rate measured in rounds: the median round compared with the baseline's median round.
/// Sorts both.
#[must_use]
pub fn rate_row(id: &str, rounds: &mut [f64], baseline: &mut [f64], n: u64) -> Row {
    let value = median(rounds);
    let baseline = (!baseline.is_empty()).then(|| median(baseline));
    // The 99th percentile of a rate is its slow end: with few rounds, the slowest.
    let slowest = rounds.first().copied();
    Row { p50: Some(value), p99: slowest, ..Row::figure(id, "1/s", value, n) }.beside(baseline)
}

/// Sorts the figures and returns the median.
pub(crate) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
