//! What of a benchmark is to be measured.

/// How much is measured.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// A short run, on less data or memory.
    pub quick: bool,
    /// Only rows whose ids begin with this.
    pub only: String,
}

impl Plan {
    /// True when some row below `prefix` is wanted.
    pub(crate) fn wants(&self, prefix: &str) -> bool {
        prefix.starts_with(&self.only) || self.only.starts_with(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wanted lies below a prefix, or a prefix below it.
    #[test]
    fn a_prefix_is_wanted_from_either_side() {
        let plan = Plan { only: "fat.e2e".into(), ..Plan::default() };
        assert!(plan.wants("fat.") && plan.wants("fat.e2e.scale.") && !plan.wants("fat.load."));
        assert!(Plan::default().wants("fat."), "all, when nothing is said");
    }
}
