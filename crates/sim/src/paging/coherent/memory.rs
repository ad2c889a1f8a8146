//! The memory under the cache, as programs see it.
//!
//! Key type: [`Memory`].

use farmem_host::agent::{Mapped, Pages};
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// The memory under the cache, as programs see it.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) frames: BTreeMap<Page, (u64, Option<Access>)>,
    pub(super) poisoned: BTreeSet<Page>,
    pub(super) woken: VecDeque<Page>,
}

impl Memory {
    pub(super) fn frame(&mut self, page: Page) -> &mut (u64, Option<Access>) {
        self.frames.get_mut(&page).expect("a page that is here")
    }
}

impl Pages for Memory {
    fn install(&mut self, page: Page, bytes: &[u8; PAGE_LEN], access: Access) {
        let value = u64::from_le_bytes(*bytes.first_chunk().expect("a page has eight bytes"));
        assert_eq!(self.frames.insert(page, (value, Some(access))), None, "{page:?} was not here");
        self.poisoned.remove(&page);
        self.woken.push_back(page);
    }

    fn write_protect(&mut self, page: Page) {
        let access = &mut self.frame(page).1;
        *access = access.map(|_| Access::Shared);
    }

    fn read(&self, page: Page, _: Range<usize>, out: &mut Vec<u8>) {
        let (value, access) = self.frames[&page];
        assert!(access < Some(Access::Modified), "{page:?} does not change while it is read");
        out.extend_from_slice(&value.to_le_bytes());
    }

    fn unmap(&mut self, page: Page) {
        self.frame(page).1 = None;
    }

    fn release(&mut self, page: Page) {
        assert_eq!(self.frames.remove(&page).map(|(_, access)| access), Some(None), "{page:?} was unmapped");
    }

    fn discard(&mut self, page: Page) {
        assert!(self.frames.remove(&page).is_some(), "{page:?} is here");
    }

    fn wake(&mut self, page: Page) {
        self.woken.push_back(page);
    }

    fn poison(&mut self, page: Page) {
        assert!(!self.frames.contains_key(&page), "{page:?} is not here");
        self.poisoned.insert(page);
        self.woken.push_back(page);
    }
}

impl Mapped for Memory {
    fn remap(&mut self, page: Page, access: Access) {
        self.frame(page).1 = Some(access);
        self.woken.push_back(page);
    }

    fn unpoison(&mut self, page: Page) {
        self.poisoned.remove(&page);
    }

    fn absorb(&mut self) {}
}
