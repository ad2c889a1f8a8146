//! The recent list (SODA IV-C): the pages requested last.

use crate::PageId;
use alloc::vec::Vec;

/// Length of a recent list (SODA IV-C).
pub const RECENT_LEN: usize = 128;

/// A ring of the latest [`RECENT_LEN`] pages that processes requested. Each request replaces the oldest one.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    /// Up to [`RECENT_LEN`] pages; once full, `next` is the oldest one.
    pages: Vec<PageId>,
    next: usize,
}

impl Recent {
    /// Adds a page at the head.
    pub fn push(&mut self, page: PageId) {
        match self.pages.get_mut(self.next) {
            Some(oldest) => *oldest = page,
            None => self.pages.push(page),
        }
        self.next = (self.next + 1) % RECENT_LEN;
    }

    /// Returns the pages, the latest first.
    pub fn latest(&self) -> impl Iterator<Item = PageId> + '_ {
        let (new, old) = self.pages.split_at(self.next.min(self.pages.len()));
        new.iter().rev().chain(old.iter().rev()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// The list is a queue of the latest 128 pages, also when it is full, and just before.
    #[test]
    fn only_the_latest_are_left() {
        let mut recent = Recent::default();
        let mut plain = VecDeque::new();
        assert_eq!(recent.latest().count(), 0);
        for page in 0..3 * RECENT_LEN as u64 + 5 {
            let page = PageId { object: (page % 3) as u32, page: page * 7 };
            recent.push(page);
            plain.push_front(page);
            plain.truncate(RECENT_LEN);
            assert!(recent.latest().eq(plain.iter().copied()), "after {page:?}");
        }
    }
}
