//! What a run of a target did and reached.

use std::collections::BTreeSet;
use std::fmt::Debug;

/// Counts and, when asked for, marks of one run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Cases so far: frames given to a role, or inputs given to a parser.
    pub cases: u64,
    marks: Option<BTreeSet<String>>,
}

impl Run {
    /// A run that only counts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A run that also collects marks, which takes time.
    #[must_use]
    pub fn marking() -> Self {
        Self { cases: 0, marks: Some(BTreeSet::new()) }
    }

    /// What was reached: the notes of the role, without their numbers.
    #[must_use]
    pub fn marks(&self) -> BTreeSet<String> {
        self.marks.clone().unwrap_or_default()
    }

    /// Something was reached.
    pub(crate) fn mark(&mut self, note: impl Debug) {
        if let Some(marks) = &mut self.marks {
            let text = format!("{note:?}");
            let name = text.split(" {").next().unwrap_or_default();
            marks.insert(name.replace(|c: char| c.is_ascii_digit(), ""));
        }
    }
}
