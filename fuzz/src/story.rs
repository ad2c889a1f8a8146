//! Results of a run of a target.

use std::collections::BTreeSet;
use std::fmt::Debug;

/// Counts of a run and, on request, its marks.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Number of cases so far: frames for a role, or inputs for a parser.
    pub cases: u64,
    marks: Option<BTreeSet<String>>,
}

impl Run {
    /// Returns a run that only counts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a run that also collects marks, which takes time.
    #[must_use]
    pub fn marking() -> Self {
        Self { cases: 0, marks: Some(BTreeSet::new()) }
    }

    /// Returns the reached marks: the names of the role's notes, without numbers.
    #[must_use]
    pub fn marks(&self) -> BTreeSet<String> {
        self.marks.clone().unwrap_or_default()
    }

    /// Records a reached mark.
    pub(crate) fn mark(&mut self, note: impl Debug) {
        if let Some(marks) = &mut self.marks {
            let text = format!("{note:?}");
            let name = text.split(" {").next().unwrap_or_default();
            marks.insert(name.replace(|c: char| c.is_ascii_digit(), ""));
        }
    }
}
