//! What of a benchmark is to be measured.

/// How much is measured.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// A short run, on less data or memory.
    pub quick: bool,
    /// Only rows whose ids begin with this, or with one of these that have commas between them.
    pub only: String,
}

impl Plan {
    /// True when some row below `prefix` is wanted.
    pub(crate) fn wants(&self, prefix: &str) -> bool {
        self.only.split(',').any(|only| prefix.starts_with(only) || only.starts_with(prefix))
    }

    /// True when the row of this id is wanted.
    pub(crate) fn has(&self, id: &str) -> bool {
        is_wanted(&self.only, id)
    }
}

/// True when an id begins with one of the prefixes that have commas between them.
pub(crate) fn is_wanted(only: &str, id: &str) -> bool {
    only.split(',').any(|only| id.starts_with(only))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wanted lies below a prefix, or a prefix below it.
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
