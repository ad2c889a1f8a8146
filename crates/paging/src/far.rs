//! The layout that tests have: pages in far memory, in order.

use crate::{Key, Layout, Source};

/// So many pages of each space, from 0 on, are in far memory.
pub(crate) struct Far(pub(crate) u64);

/// All of them.
pub(crate) const ALL_FAR: Far = Far(u64::MAX);

impl Layout for Far {
    fn source(&self, key: Key) -> Source {
        if key.page < self.0 { Source::Far(key.page) } else { Source::Elsewhere }
    }

    fn home(&self, key: Key) -> Option<u64> {
        Some(key.page)
    }
}
