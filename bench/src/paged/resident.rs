//! The resident pages of a cache: their bytes, and the rights with which accesses find them.

use farmem_wire::message::{Access, Page};
use hashbrown::HashMap;

/// A resident page.
#[derive(Debug)]
struct Resident {
    bytes: Vec<u8>,
    /// The right of accesses; `None` for an inactive page, at which an access faults.
    access: Option<Access>,
}

/// The resident pages, in place of a processor's page table and the memory behind it.
#[derive(Debug, Default)]
pub(super) struct PageTable(HashMap<Page, Resident>);

impl PageTable {
    /// Returns the page's bytes if an access finds them.
    pub(super) fn get(&self, page: Page) -> Option<&[u8]> {
        self.0.get(&page).filter(|resident| resident.access.is_some()).map(|resident| &*resident.bytes)
    }

    /// Returns the page's bytes for modification if an access may write there.
    pub(super) fn get_mut(&mut self, page: Page) -> Option<&mut [u8]> {
        let resident = self.0.get_mut(&page).filter(|resident| resident.access == Some(Access::Modified));
        resident.map(|resident| &mut *resident.bytes)
    }

    /// Returns the bytes of a resident page, active or not.
    ///
    /// # Panics
    /// Panics when the page is not resident.
    pub(super) fn bytes(&self, page: Page) -> &[u8] {
        &self.0.get(&page).expect("a resident page").bytes
    }

    /// Adds a page.
    pub(super) fn install(&mut self, page: Page, bytes: Vec<u8>, access: Access) {
        let before = self.0.insert(page, Resident { bytes, access: Some(access) });
        assert!(before.is_none(), "{page:?} is here already");
    }

    /// Sets the right of accesses to a resident page.
    pub(super) fn set(&mut self, page: Page, access: Option<Access>) {
        self.0.get_mut(&page).expect("a resident page").access = access;
    }

    /// Removes a page and returns its bytes.
    pub(super) fn remove(&mut self, page: Page) -> Option<Vec<u8>> {
        self.0.remove(&page).map(|resident| resident.bytes)
    }

    /// Removes all pages.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
