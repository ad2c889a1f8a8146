//! The layout used by tests: pages in far memory, in order.

use crate::{Key, Layout, Source};

/// The first `.0` pages of each space are in far memory.
pub(crate) struct Far(pub(crate) u64);

/// All pages are in far memory.
pub(crate) const ALL_FAR: Far = Far(u64::MAX);

impl Layout for Far {
    fn source(&self, key: Key) -> Source {
        if key.page < self.0 { Source::Far(key.page) } else { Source::Elsewhere }
    }

    fn home(&self, key: Key) -> Option<u64> {
        Some(key.page)
    }
}
