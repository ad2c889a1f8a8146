//! The selection of what a benchmark measures.

use std::path::PathBuf;

/// The extent of a benchmark run.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// A short run, on less data or memory.
    pub quick: bool,
    /// Comma-separated prefixes: only rows whose ids begin with one of them are measured.
    pub only: String,
    /// The directory of the figures; `None` draws none.
    pub plots: Option<PathBuf>,
    /// Keys of the host view of PD3; `None` is the usual number.
    pub keys: Option<usize>,
}

impl Plan {
    /// Returns true when some row below `prefix` is selected.
    pub(crate) fn wants(&self, prefix: &str) -> bool {
        self.only.split(',').any(|only| prefix.starts_with(only) || only.starts_with(prefix))
    }

    /// Returns true when the row of this id is selected.
    pub(crate) fn has(&self, id: &str) -> bool {
        is_wanted(&self.only, id)
    }
}

/// Returns true when an id begins with one of the comma-separated prefixes.
pub(crate) fn is_wanted(only: &str, id: &str) -> bool {
    only.split(',').any(|only| id.starts_with(only))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A selection may lie below a prefix, or a prefix below a selection.
    #[test]
    fn a_prefix_is_wanted_from_either_side() {
        let plan = Plan { only: "fat.e2e".into(), ..Plan::default() };
        assert!(plan.wants("fat.") && plan.wants("fat.e2e.scale.") && !plan.wants("fat.load."));
        assert!(!plan.has("fat.") && plan.has("fat.e2e.scale"));
        let two = Plan { only: "fat.e2e,fat.load.".into(), ..Plan::default() };
        assert!(two.wants("fat.") && two.wants("fat.load.time") && !two.wants("fat.union."));
        assert!(two.has("fat.load.time") && !two.has("fat.union.x"));
        assert!(Plan::default().wants("fat."), "all, when nothing is said");
    }
}
