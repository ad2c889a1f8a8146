//! Threads of a blade that run at once, each with its own list of visits.

use farmem_wire::message::Access;

/// One of them.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) host: u16,
    /// Places of its visits in the workload.
    visits: Vec<u32>,
    next: usize,
    /// Until when it is at work.
    pub(super) clock: u64,
    pub(super) waits: Option<Wait>,
    /// Pages that stores wait for, where they need not be waited for.
    pub(super) stores: Vec<u32>,
    /// It has nothing more to do, and that is noted.
    pub(super) ended: bool,
}

/// What it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// The page of its next visit.
    Page(u32, Access),
    /// The page of its next visit has a store before it.
    Store(u32),
    /// Any of its stores.
    Room,
}

impl Core {
    pub(super) fn new(host: u16, visits: Vec<u32>) -> Self {
        let ended = visits.is_empty();
        Self { host, visits, next: 0, clock: 0, waits: None, stores: Vec::new(), ended }
    }

    /// The place of the next visit.
    pub(super) fn next(&self) -> Option<u32> {
        self.visits.get(self.next).copied()
    }

    /// The next visit is made.
    pub(super) const fn advance(&mut self) {
        self.next += 1;
    }

    /// True when it has nothing more to do.
    pub(super) fn is_through(&self) -> bool {
        self.next == self.visits.len() && self.stores.is_empty()
    }
}
