//! Concurrent threads of a blade, each with its own list of visits.

use farmem_wire::message::Access;

/// A core that runs one thread.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) host: u16,
    /// Indexes of its visits in the workload.
    visits: Vec<u32>,
    next: usize,
    /// Time until which it is busy.
    pub(super) clock: u64,
    pub(super) waits: Option<Wait>,
    /// Pages with pending stores, under partial store order.
    pub(super) stores: Vec<u32>,
    /// True if its end is recorded.
    pub(super) ended: bool,
}

/// The reason for which a core waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// For the page of its next visit.
    Page(u32, Access),
    /// For a store to the page of its next visit.
    Store(u32),
    /// For any of its stores.
    Room,
}

impl Core {
    pub(super) fn new(host: u16, visits: Vec<u32>) -> Self {
        let ended = visits.is_empty();
        Self { host, visits, next: 0, clock: 0, waits: None, stores: Vec::new(), ended }
    }

    /// Returns the index of the next visit.
    pub(super) fn next(&self) -> Option<u32> {
        self.visits.get(self.next).copied()
    }

    /// Records that the next visit is made.
    pub(super) const fn advance(&mut self) {
        self.next += 1;
    }

    /// Returns true if the core has no more visits or stores.
    pub(super) fn is_through(&self) -> bool {
        self.next == self.visits.len() && self.stores.is_empty()
    }
}
