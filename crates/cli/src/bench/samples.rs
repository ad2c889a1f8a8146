//! Measurements: times in interleaved rounds, so that a machine that changes speed changes both sides.

use super::Row;
use hdrhistogram::Histogram;
use std::time::Instant;

/// Times of one kind of operation, in nanoseconds.
pub(crate) struct Samples(Histogram<u64>);

impl Samples {
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_max(60_000_000_000, 3).expect("a minute with three digits is in range"))
    }

    /// Times one operation and records it.
    pub(crate) fn time<E>(&mut self, operation: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let begin = Instant::now();
        operation()?;
        self.record(begin);
        Ok(())
    }

    /// Times one operation and records it when it answers true.
    pub(crate) fn time_if<E>(&mut self, operation: impl FnOnce() -> Result<bool, E>) -> Result<(), E> {
        let begin = Instant::now();
        if operation()? {
            self.record(begin);
        }
        Ok(())
    }

    /// Times `batch` operations together and records their mean: for operations too short for the clock.
    pub(crate) fn time_batch<E>(
        &mut self,
        batch: u32,
        operation: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let begin = Instant::now();
        operation()?;
        // Tenths of a nanosecond are lost; the operations take tens of nanoseconds and more.
        let each = begin.elapsed().as_nanos() / u128::from(batch.max(1));
        self.0.saturating_record(u64::try_from(each).unwrap_or(u64::MAX));
        Ok(())
    }

    fn record(&mut self, begin: Instant) {
        self.0.saturating_record(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    fn quantile(&self, q: f64) -> f64 {
        to_f64(self.0.value_at_quantile(q))
    }

    /// The row of these times beside those of the baseline.
    pub(crate) fn row(&self, id: &str, baseline: Option<&Self>) -> Row {
        let value = self.quantile(0.5);
        let baseline = baseline.map(|b| b.quantile(0.5));
        Row {
            id: id.to_owned(),
            value: Some(value),
            unit: "ns",
            baseline,
            ratio: baseline.map(|b| value / b),
            p50: Some(value),
            p99: Some(self.quantile(0.99)),
            n: self.0.len(),
            why: None,
        }
    }
}

/// The row of a rate, measured in rounds: the median round beside the median round of the baseline.
pub(crate) fn rate_row(id: &str, rounds: &mut [f64], baseline: &mut [f64], n: u64) -> Row {
    let value = median(rounds);
    let baseline = (!baseline.is_empty()).then(|| median(baseline));
    let ratio = baseline.map(|b| value / b);
    // The 99th percentile of a rate is its slow end: with few rounds, the slowest.
    let slowest = rounds.first().copied();
    Row {
        id: id.to_owned(),
        value: Some(value),
        unit: "1/s",
        baseline,
        ratio,
        p50: Some(value),
        p99: slowest,
        n,
        why: None,
    }
}

/// The median; sorts.
fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(clippy::cast_precision_loss, reason = "times and counts for people, far below 2^52")]
pub(crate) fn to_f64(n: u64) -> f64 {
    n as f64
}
