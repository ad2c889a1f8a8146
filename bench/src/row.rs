//! The form of every benchmark: rows with stable ids.

use crate::{Machine, to_f64};
use serde::Serialize;

/// What a benchmark prints.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Its name: `farmem bench NAME`.
    pub bench: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// The profile of its racks' links, `none` when they are used as they are.
    pub link: String,
    /// By how many nanoseconds the frames of this process's paced links left later than their profile wants, on average: what the figures have
    /// from this machine's timers and load beside it. `None` where no frame was held back.
    pub link_late: Option<f64>,
    /// Its figures.
    pub rows: Vec<Row>,
}

/// The mean lateness of the frames that this process's links held back so far, in nanoseconds; `None` when there were none.
#[must_use]
pub fn link_late() -> Option<f64> {
    let (frames, late) = farmem_io::held_back();
    (frames > 0).then(|| to_f64(late) / to_f64(frames))
}

/// One figure. Ids are stable and listed in docs/results.md.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub id: String,
    /// The figure; `None` when it could not be measured here, and then `why` says why.
    pub value: Option<f64>,
    /// What it counts: `ns`, `1/s`, or a word for something that is counted.
    pub unit: &'static str,
    /// What it is compared with, measured in the same run.
    pub baseline: Option<f64>,
    /// `value / baseline`.
    pub ratio: Option<f64>,
    /// The median of what is behind it.
    pub p50: Option<f64>,
    /// The 99th percentile; of a rate, its slow end.
    pub p99: Option<f64>,
    /// CPU time of an operation in nanoseconds, of all threads at work together; `None` of what is counted and not timed, or where their
    /// threads cannot be seen.
    pub cpu: Option<f64>,
    /// Measurements behind it.
    pub n: u64,
    /// Why there is no figure, or what must be known to read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Row {
    /// A figure without a distribution behind it, such as a count.
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

    /// A figure that could not be measured here.
    #[must_use]
    pub fn absent(id: impl Into<String>, unit: &'static str, why: impl Into<String>) -> Self {
        Self { value: None, why: Some(why.into()), ..Self::figure(id, unit, 0.0, 0) }
    }

    /// The same figure, with the CPU time of an operation.
    #[must_use]
    pub fn with_cpu(self, cpu: Option<f64>) -> Self {
        Self { cpu, ..self }
    }

    /// The same figure beside what it is compared with.
    #[must_use]
    pub fn beside(self, baseline: Option<f64>) -> Self {
        let ratio = self.value.zip(baseline).map(|(value, baseline)| value / baseline);
        Self { baseline, ratio, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ratio is there when both of its sides are, and only then.
    #[test]
    fn a_ratio_needs_both_sides() {
        let row = Row::figure("a.b", "ns", 30.0, 4);
        assert_eq!(row.clone().beside(Some(10.0)).ratio, Some(3.0));
        assert_eq!(row.beside(None).ratio, None);
        assert_eq!(Row::absent("a.c", "ns", "no clock").beside(Some(1.0)).ratio, None);
    }
}
