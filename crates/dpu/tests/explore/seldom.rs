//! How often things happened that seldom happen: what was tried says something only where they did.

/// What happened on the way to some state, or on several.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seldom {
    pub(crate) hits: u64,
    pub(crate) late: u64,
    pub(crate) puts: u64,
    pub(crate) failed: u64,
    pub(crate) wasted: u64,
    pub(crate) behind: u64,
    /// What the other domain's thread did while this one stood.
    pub(crate) meanwhile: u64,
}

impl Seldom {
    pub(crate) fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.late += other.late;
        self.puts += other.puts;
        self.failed += other.failed;
        self.wasted += other.wasted;
        self.behind += other.behind;
        self.meanwhile += other.meanwhile;
    }
}
