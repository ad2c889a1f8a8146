//! A running benchmark: some take minutes, so results are reported as they come.

use crate::Row;
use crate::plan::is_wanted;

/// A progress report of a benchmark.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The next measurement begins.
    Begins(&'a str),
    /// A figure that will be among the results.
    Measured(&'a Row),
}

/// The outcome of a benchmark.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// The figures.
    pub rows: Vec<Row>,
    /// Number of wrong answers.
    pub wrong: u64,
}

/// A collector that reports an outcome as it grows.
pub(crate) struct Sheet<'a> {
    only: &'a str,
    tell: &'a mut dyn FnMut(Progress<'_>),
    outcome: Outcome,
}

impl<'a> Sheet<'a> {
    /// Creates an empty sheet for rows whose ids begin with one of the comma-separated prefixes in `only`.
    pub(crate) fn new(only: &'a str, tell: &'a mut dyn FnMut(Progress<'_>)) -> Self {
        Self { only, tell, outcome: Outcome::default() }
    }

    /// Reports the next measurement.
    pub(crate) fn begins(&mut self, what: &str) {
        (self.tell)(Progress::Begins(what));
    }

    /// Adds the selected ones of these rows.
    pub(crate) fn add(&mut self, rows: impl IntoIterator<Item = Row>) {
        for row in rows.into_iter().filter(|row| is_wanted(self.only, &row.id)) {
            (self.tell)(Progress::Measured(&row));
            self.outcome.rows.push(row);
        }
    }

    /// Counts wrong answers.
    pub(crate) const fn add_wrong(&mut self, count: u64) {
        self.outcome.wrong += count;
    }

    /// Returns the rows so far.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.outcome.rows
    }

    /// Returns the outcome.
    pub(crate) fn end(self) -> Outcome {
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reports match the results, in the same order.
    #[test]
    fn what_is_wanted_is_told_as_it_comes() {
        let mut told = Vec::new();
        let mut tell = |what: Progress<'_>| {
            told.push(match what {
                Progress::Begins(what) => what.to_owned(),
                Progress::Measured(row) => row.id.clone(),
            });
        };
        let mut sheet = Sheet::new("a.", &mut tell);
        let row = |id: &str| Row::figure(id, "ns", 1.0, 1);
        sheet.begins("first");
        sheet.add([row("a.1"), row("b.1")]);
        sheet.begins("second");
        sheet.add([row("a.2")]);
        sheet.add_wrong(3);
        let outcome = sheet.end();
        assert_eq!(told, ["first", "a.1", "second", "a.2"]);
        assert_eq!(outcome, Outcome { rows: vec![row("a.1"), row("a.2")], wrong: 3 });
    }
}
