//! The memory under a simulated host's cache: plain maps that check the agent's use of [`Pages`].

use super::word_checker::WORDS;
use farmem_host::agent::Pages;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A resident page.
#[derive(Debug)]
struct Frame {
    bytes: Box<[u8; PAGE_LEN]>,
    /// The program's access; `None` once the page is unmapped.
    access: Option<Access>,
}

/// All pages of a host.
#[derive(Debug, Default)]
pub(super) struct Memory {
    frames: BTreeMap<Page, Frame>,
    poisoned: BTreeSet<Page>,
    /// Pages whose threads should retry.
    woken: Vec<Page>,
}

impl Memory {
    /// Returns the program's present access to the page.
    pub(super) fn access(&self, page: Page) -> Option<Access> {
        self.frames.get(&page).and_then(|frame| frame.access)
    }

    pub(super) fn is_poisoned(&self, page: Page) -> bool {
        self.poisoned.contains(&page)
    }

    /// Takes the pages that were installed, poisoned or woken since the last call.
    pub(super) fn take_woken(&mut self) -> Vec<Page> {
        std::mem::take(&mut self.woken)
    }

    /// Returns the program's view of a page.
    ///
    /// # Panics
    ///
    /// If the page is not readable: the program would have faulted.
    pub(super) fn words(&self, page: Page) -> [u64; WORDS] {
        let frame =
            self.frames.get(&page).filter(|frame| frame.access.is_some()).expect("a page that may be read");
        std::array::from_fn(|word| {
            let bytes = &frame.bytes[word * 8..][..8];
            u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
        })
    }

    /// Returns the pages that the program may access, by number.
    pub(super) fn usable(&self) -> impl Iterator<Item = (Page, Access)> {
        self.frames.iter().filter_map(|(&page, frame)| Some((page, frame.access?)))
    }

    /// Clears the error of a page once its owner has noticed it.
    pub(super) fn forgive(&mut self, page: Page) {
        self.poisoned.remove(&page);
    }

    /// Makes a store of the program.
    ///
    /// # Panics
    ///
    /// If the page is not writable.
    pub(super) fn store(&mut self, page: Page, word: usize, value: u64) {
        let frame = self.frames.get_mut(&page).filter(|frame| frame.access == Some(Access::Modified));
        let frame = frame.expect("a page that may be written");
        frame.bytes[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }

    fn frame(&mut self, page: Page) -> &mut Frame {
        self.frames.get_mut(&page).expect("the agent knows which pages have bytes")
    }
}

impl Pages for Memory {
    fn install(&mut self, page: Page, bytes: &[u8; PAGE_LEN], access: Access) {
        match self.frames.get_mut(&page) {
            Some(frame) => {
                assert_eq!(
                    (frame.access, access),
                    (Some(Access::Shared), Access::Modified),
                    "a growing access"
                );
                assert!(*frame.bytes == *bytes, "{page:?} grows to Modified with the bytes it has");
                frame.access = Some(access);
            }
            None => {
                self.frames.insert(page, Frame { bytes: Box::new(*bytes), access: Some(access) });
            }
        }
        self.poisoned.remove(&page);
        self.woken.push(page);
    }

    fn write_protect(&mut self, page: Page) {
        let frame = self.frame(page);
        assert_eq!(frame.access, Some(Access::Modified), "{page:?} can be written until now");
        frame.access = Some(Access::Shared);
    }

    fn read(&self, page: Page, range: Range<usize>, out: &mut Vec<u8>) {
        let frame = self.frames.get(&page).expect("the agent knows which pages have bytes");
        assert_ne!(frame.access, Some(Access::Modified), "{page:?} does not change while it is read");
        out.extend_from_slice(&frame.bytes[range]);
    }

    fn unmap(&mut self, page: Page) {
        let frame = self.frame(page);
        assert_eq!(frame.access, Some(Access::Shared), "{page:?} is write-protected before it is unmapped");
        frame.access = None;
    }

    fn release(&mut self, page: Page) {
        let frame = self.frames.remove(&page).expect("bytes are released once");
        assert_eq!(frame.access, None, "{page:?} is unmapped before its bytes go");
    }

    fn wake(&mut self, page: Page) {
        self.woken.push(page);
    }

    fn poison(&mut self, page: Page) {
        assert_eq!(self.access(page), None, "{page:?} is not the program's");
        self.poisoned.insert(page);
        self.woken.push(page);
    }
}
