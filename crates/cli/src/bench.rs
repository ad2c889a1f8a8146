//! `farmem bench`: the list of benchmarks, and how their tables look. The form itself is farmem-bench's.

mod mind;
mod net;
mod pulse;

pub(crate) use mind::run as mind;
pub(crate) use net::run as net;
pub(crate) use pulse::run as pulse;

use crate::End;
use crate::output::{self, Report};
use farmem_bench::{Results, Row};

/// Prints what was measured; `wrong` answers are a violation.
fn print(results: &Results, wrong: u64, json: bool) -> End {
    output::print(results, json);
    if wrong > 0 {
        output::note(&format!("farmem: {} answers were wrong", output::count(wrong)));
        return End::Violation;
    }
    End::Fine
}

fn cells(row: &Row) -> Vec<String> {
    let show = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |f| in_unit(f, row.unit));
    vec![
        row.id.clone(),
        show(row.value),
        show(row.baseline),
        row.ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}")),
        show(row.p99),
        output::count(row.n),
    ]
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
        let rows: Vec<_> = self.rows.iter().map(cells).collect();
        let mut text = format!(
            "bench {}: {}\n{}value: median; ratio: value / baseline, both from this run\n",
            self.bench,
            self.machine,
            output::table(&["id", "value", "baseline", "ratio", "p99", "n"], &rows)
        );
        for row in &self.rows {
            match (&row.why, row.value) {
                (Some(why), None) => text += &format!("{} was not measured: {why}\n", row.id),
                (Some(why), Some(_)) => text += &format!("{}: {why}\n", row.id),
                (None, _) => {}
            }
        }
        text
    }
}
