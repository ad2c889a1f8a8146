//! The form of every benchmark: rows with stable ids.

use crate::Machine;
use serde::Serialize;

/// The output of a benchmark.
#[derive(Debug, Serialize)]
pub struct Results {
    /// The benchmark's name: `farmem bench NAME`.
    pub bench: &'static str,
    /// The machine of the run.
    pub machine: Machine,
    /// The profile of the racks' links; `none` for unmodified links.
    pub link: String,
    /// Average lateness, in nanoseconds, of the frames on this process's paced links: the share of the
    /// figures due to this machine's timers and load. `None` where no frame was paced.
    pub link_late: Option<f64>,
    /// The figures.
    pub rows: Vec<Row>,
}

/// Returns the mean lateness of the frames that this process's links have paced so far, in nanoseconds;
/// `None` when there were none.
#[must_use]
pub fn link_late() -> Option<f64> {
    let (frames, late) = farmem_link::held_back();
    (frames > 0).then(|| to_f64(late) / to_f64(frames))
}

/// One figure. Ids are stable and listed in docs/results/.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The row's id.
    pub id: String,
    /// The figure; `None` when it could not be measured here, for the reason in `why`.
    pub value: Option<f64>,
    /// The unit: `ns`, `1/s`, or a word for counted things.
    pub unit: &'static str,
    /// The baseline, measured in the same run.
    pub baseline: Option<f64>,
    /// `value / baseline`.
    pub ratio: Option<f64>,
    /// The median of the measurements.
    pub p50: Option<f64>,
    /// The 99th percentile; of a rate, its slow end.
    pub p99: Option<f64>,
    /// CPU time per operation in nanoseconds, of all working threads together; `None` for counted figures, or
    /// where the threads are not visible.
    pub cpu: Option<f64>,
    /// Number of measurements.
    pub n: u64,
    /// The reason why there is no figure, or a remark needed to read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Row {
    /// Creates a figure without a distribution, such as a count.
    #[must_use]
    pub fn figure(id: impl Into<String>, unit: &'static str, value: f64, n: u64) -> Self {
        Self {
            id: id.into(),
            value: Some(value),
            unit,
            baseline: None,
            ratio: None,
            p50: None,
            p99: None,
            cpu: None,
            n,
            why: None,
        }
    }

    /// Creates a row without a figure, with the reason.
    #[must_use]
    pub fn absent(id: impl Into<String>, unit: &'static str, why: impl Into<String>) -> Self {
        Self { value: None, why: Some(why.into()), ..Self::figure(id, unit, 0.0, 0) }
    }

    /// Sets the CPU time per operation.
    #[must_use]
    pub fn with_cpu(self, cpu: Option<f64>) -> Self {
        Self { cpu, ..self }
    }

    /// Sets the baseline and the ratio.
    #[must_use]
    pub fn beside(self, baseline: Option<f64>) -> Self {
        let ratio = self.value.zip(baseline).map(|(value, baseline)| value / baseline);
        Self { baseline, ratio, ..self }
    }
}

/// Converts a count to a figure.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "times and counts for people, far below 2^52")]
pub fn to_f64(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ratio exists exactly when both of its sides do.
    #[test]
    fn a_ratio_needs_both_sides() {
        let row = Row::figure("a.b", "ns", 30.0, 4);
        assert_eq!(row.clone().beside(Some(10.0)).ratio, Some(3.0));
        assert_eq!(row.beside(None).ratio, None);
        assert_eq!(Row::absent("a.c", "ns", "no clock").beside(Some(1.0)).ratio, None);
    }
}
