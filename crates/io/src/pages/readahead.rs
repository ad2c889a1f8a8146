//! What to fetch beside the page that faulted.
//!
//! Key type: [`ReadAhead`]. Policies only propose: pages that are cached already, and those beyond the window, are left out by
//! whoever asks.

use std::ops::Range;

/// Proposes pages by their number in the window.
pub trait ReadAhead: Send {
    /// Pages to fetch now that a thread waits for `page`; they contain it.
    fn propose(&mut self, page: u64) -> Range<u64>;
}

/// The group of `pages` pages that the page lies in, aligned; 1 fetches the page alone.
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    /// Pages of a group, at least 1.
    pub pages: u64,
}

impl Default for Groups {
    fn default() -> Self {
        Self { pages: 1 }
    }
}

impl ReadAhead for Groups {
    fn propose(&mut self, page: u64) -> Range<u64> {
        let size = self.pages.max(1);
        let start = page - page % size;
        start..start.saturating_add(size)
    }
}

/// Streams: a fault at the page where the last proposal ended doubles what is fetched, up to a bound; any other fetches one page.
///
/// A fault elsewhere forgets nothing: as many streams as [`STREAMS`] are followed at once.
#[derive(Clone, Debug)]
pub struct Streams {
    /// Pages proposed at most, at least 1.
    pages_max: u64,
    streams: [Stream; STREAMS],
    /// The stream that is forgotten next.
    oldest: usize,
}

/// Streams followed at once.
pub const STREAMS: usize = 8;

#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    /// Where the stream goes on; 0 when there is none.
    next: u64,
    pages: u64,
}

impl Streams {
    /// Proposes at most `pages_max` pages.
    #[must_use]
    pub fn new(pages_max: u64) -> Self {
        Self { pages_max: pages_max.max(1), streams: [Stream::default(); STREAMS], oldest: 0 }
    }
}

impl ReadAhead for Streams {
    fn propose(&mut self, page: u64) -> Range<u64> {
        let known = self.streams.iter().position(|s| s.pages > 0 && s.next == page);
        let (at, pages) = match known {
            Some(at) => (at, self.streams[at].pages.saturating_mul(2).min(self.pages_max)),
            None => (self.oldest, 1),
        };
        if known.is_none() {
            self.oldest = (self.oldest + 1) % STREAMS;
        }
        let end = page.saturating_add(pages);
        self.streams[at] = Stream { next: end, pages };
        page..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_aligned_and_has_the_page() {
        let mut four = Groups { pages: 4 };
        assert_eq!([0, 3, 4, 9].map(|page| four.propose(page)), [0..4, 0..4, 4..8, 8..12]);
        assert_eq!(Groups { pages: 0 }.propose(7), 7..8);
        assert_eq!(Groups::default().propose(7), 7..8);
    }

    /// Two streams side by side grow as if they were alone, and jumps fetch single pages.
    #[test]
    fn streams_double_and_jumps_do_not() {
        let mut policy = Streams::new(8);
        let mut lens = Vec::new();
        let (mut a, mut b) = (10, 1000);
        for _ in 0..5 {
            let (ahead, other) = (policy.propose(a), policy.propose(b));
            assert_eq!((ahead.start, other.start), (a, b));
            assert_eq!(ahead.end - a, other.end - b);
            lens.push(ahead.end - a);
            (a, b) = (ahead.end, other.end);
        }
        assert_eq!(lens, [1, 2, 4, 8, 8]);
        for jump in [777, 555, 333] {
            assert_eq!(policy.propose(jump), jump..jump + 1);
        }
    }

    /// A stream that is not followed for longer than others are begun is forgotten.
    #[test]
    fn old_streams_are_forgotten() {
        let mut policy = Streams::new(8);
        assert_eq!(policy.propose(5), 5..6);
        for jump in 0..STREAMS as u64 {
            policy.propose(100 * (jump + 1));
        }
        assert_eq!(policy.propose(6), 6..7);
    }
}
