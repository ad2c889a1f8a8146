//! The buffers in which pages arrive, part by part.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;
use farmem_wire::message::{PAGE_LEN, Page, Part};

/// The buffers of pages in flight, one per request. Buffers are reused.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    used: BTreeMap<Page, Box<[u8; PAGE_LEN]>>,
    free: Vec<Box<[u8; PAGE_LEN]>>,
}

impl Buffers {
    pub(super) fn keep(&mut self, page: Page, part: Part, bytes: &[u8]) {
        let free = &mut self.free;
        let fresh = || free.pop().unwrap_or_else(|| Box::new([0; PAGE_LEN]));
        self.used.entry(page).or_insert_with(fresh)[part.range()].copy_from_slice(bytes);
    }

    pub(super) fn take(&mut self, page: Page) -> Box<[u8; PAGE_LEN]> {
        self.used.remove(&page).expect("a page is installed when all its parts were kept")
    }

    pub(super) fn give_back(&mut self, buffer: Box<[u8; PAGE_LEN]>) {
        self.free.push(buffer);
    }

    pub(super) fn forget(&mut self, page: Page) {
        self.free.extend(self.used.remove(&page));
    }

    pub(super) fn forget_all(&mut self) {
        self.free.extend(mem::take(&mut self.used).into_values());
    }
}
