//! The size of the explored world.

use super::{OBJECT, OTHER};
use farmem_dpu::PageId;

/// The limits of an exploration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) pages: u64,
    pub(crate) entry_pages: u32,
    /// Number of processes; the first one does all writes.
    pub(crate) askers: u32,
    pub(crate) reads: u32,
    pub(crate) writes: u32,
    /// Number of writes that cover a part of a page.
    pub(crate) parts: u32,
    pub(crate) failures: u32,
    /// Pages of another domain's object, numbered from `pages` on, and reads of them.
    pub(crate) other_pages: u64,
    pub(crate) other_reads: u32,
    /// True if other threads of the writing process run while one waits before it puts bytes into the slot.
    pub(crate) threads: bool,
}

impl Bounds {
    pub(crate) fn is_other(&self, page: u64) -> bool {
        page >= self.pages
    }

    pub(crate) fn id_of(&self, page: u64) -> PageId {
        if self.is_other(page) {
            PageId { object: OTHER, page: page - self.pages }
        } else {
            PageId { object: OBJECT, page }
        }
    }

    pub(crate) fn page_of(&self, id: PageId) -> u64 {
        if id.object == OTHER { self.pages + id.page } else { id.page }
    }
}
