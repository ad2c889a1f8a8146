//! Counts of rare events: an exploration is meaningful only if they happened.

/// The rare events on the way to one or several states.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Rare {
    pub(crate) hits: u64,
    pub(crate) late: u64,
    pub(crate) puts: u64,
    pub(crate) failed: u64,
    pub(crate) wasted: u64,
    pub(crate) behind: u64,
    /// Events of the other domain's thread while this one waited.
    pub(crate) meanwhile: u64,
}

impl Rare {
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
