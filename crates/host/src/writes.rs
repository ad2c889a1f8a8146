//! The writes in flight. None falls further behind the newest than memory nodes remember.

use alloc::collections::VecDeque;

/// Maximum number of region writes and storing traversals, counted from the oldest outstanding one, including
/// ended ones.
///
/// A memory node remembers the answers of this many writes of a host, so each outstanding write can be
/// repeated and answered. A write further behind would be dropped, because it may have been executed
/// (PROTOCOL 5.6, 11.7).
pub const REGION_WRITES_MAX: usize = 1024;

/// The writes from the oldest outstanding one on, in the order of their ids.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// The number of the front write.
    first: u64,
    /// True for each write that is outstanding. The front one always is.
    rows: VecDeque<bool>,
}

impl Writes {
    /// Adds the next write and returns its number. Returns `None` if the oldest outstanding write would fall
    /// too far behind.
    pub(crate) fn begin(&mut self) -> Option<u64> {
        if self.rows.len() >= REGION_WRITES_MAX {
            return None;
        }
        self.rows.push_back(true);
        Some(self.first + self.rows.len() as u64 - 1)
    }

    /// Ends a write, whatever its result.
    ///
    /// # Panics
    ///
    /// If the write is not outstanding.
    pub(crate) fn end(&mut self, number: u64) {
        let row = number.checked_sub(self.first).and_then(|row| usize::try_from(row).ok());
        let row = row.and_then(|row| self.rows.get_mut(row)).expect("a write under way has a row");
        assert!(core::mem::take(row), "a write ends once");
        while self.rows.front() == Some(&false) {
            self.rows.pop_front();
            self.first += 1;
        }
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.rows.iter().filter(|&&outstanding| outstanding).count()
    }

    pub(crate) fn check(&self) {
        assert!(self.rows.len() <= REGION_WRITES_MAX, "a write fell behind");
        assert!(self.rows.front() != Some(&false), "the front row is outstanding");
    }
}
