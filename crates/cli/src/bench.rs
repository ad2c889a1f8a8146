//! `farmem bench`: the form every benchmark has, and the list of benchmarks.

mod machine;
mod net;
mod samples;

pub(crate) use net::run as net;

use crate::output::{self, Report};
use machine::Machine;
use serde::Serialize;

/// What a benchmark prints.
#[derive(Serialize)]
pub(crate) struct Results {
    bench: &'static str,
    machine: Machine,
    rows: Vec<Row>,
}

/// One figure. Ids are stable and listed in docs/results.md.
#[derive(Serialize)]
pub(crate) struct Row {
    id: String,
    /// The figure; `None` when it could not be measured here, and then `why` says why.
    value: Option<f64>,
    unit: &'static str,
    /// What it is compared with, measured in the same run.
    baseline: Option<f64>,
    /// `value / baseline`.
    ratio: Option<f64>,
    p50: Option<f64>,
    p99: Option<f64>,
    /// Measurements behind it.
    n: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Row {
    /// A figure that could not be measured here.
    pub(crate) fn absent(id: impl Into<String>, unit: &'static str, why: impl Into<String>) -> Self {
        let none = None;
        Self {
            id: id.into(),
            value: none,
            unit,
            baseline: none,
            ratio: none,
            p50: none,
            p99: none,
            n: 0,
            why: Some(why.into()),
        }
    }

    fn cells(&self) -> Vec<String> {
        let show = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |f| in_unit(f, self.unit));
        vec![
            self.id.clone(),
            show(self.value),
            show(self.baseline),
            self.ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}")),
            show(self.p99),
            output::count(self.n),
        ]
    }
}

fn in_unit(figure: f64, unit: &str) -> String {
    match unit {
        "ns" => output::time(figure),
        "1/s" => output::rate(figure),
        _ => format!("{figure:.2} {unit}"),
    }
}

impl Report for Results {
    fn text(&self) -> String {
        let rows: Vec<_> = self.rows.iter().map(Row::cells).collect();
        let mut text = format!(
            "bench {}: {}\n{}value: median; ratio: value / baseline, both from this run\n",
            self.bench,
            self.machine,
            output::table(&["id", "value", "baseline", "ratio", "p99", "n"], &rows)
        );
        for row in &self.rows {
            if let Some(why) = &row.why {
                text += &format!("{} was not measured: {why}\n", row.id);
            }
        }
        text
    }
}
