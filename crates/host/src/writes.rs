//! The requests under way that write: none falls further behind the newest one than memory nodes remember.

use alloc::collections::VecDeque;

/// Region writes, and requests of traversals that store, from the oldest outstanding one on, those that have ended meanwhile included.
///
/// A memory node remembers the answers of as many writes of a host, so each that is still outstanding can come again and be
/// answered. One further behind would be dropped there, since it may have been executed (PROTOCOL 5.6, 11.7).
pub const REGION_WRITES_MAX: usize = 1024;

/// The writes from the oldest outstanding one on, in the order of their ids.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// The number of the front one.
    first: u64,
    /// Whether each is outstanding; the front one is.
    rows: VecDeque<bool>,
}

impl Writes {
    /// Takes in the next write; answers its number, or `None` while the oldest outstanding one would fall behind.
    pub(crate) fn begin(&mut self) -> Option<u64> {
        if self.rows.len() >= REGION_WRITES_MAX {
            return None;
        }
        self.rows.push_back(true);
        Some(self.first + self.rows.len() as u64 - 1)
    }

    /// A write ended, whatever came of it.
    ///
    /// # Panics
    /// When it is not outstanding.
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
