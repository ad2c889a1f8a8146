//! Operations on contiguous pages in the same state, with one system call: the chunks of a buffer.

use super::{Mapping, State, Window, mapping};
use farmem_host::agent::Pages as _;
use farmem_wire::message::{Access, PAGE_LEN, Page};

impl Window {
    /// Serves pages as [`Window::remap`] does, with one call if all were unmapped together or all are read-only.
    ///
    /// # Panics
    /// Panics if one of them is not cached.
    pub fn remap_run(&self, first: Page, count: usize, access: Access) {
        let pages = self.run(first, count);
        let is = |of: State| pages.clone().all(|index| self.state(index) == of);
        let (kept, read) = (is(State::Unmapped), is(State::ReadOnly) && access == Access::Modified);
        if count > 1 && self.lease.is_none() && (kept || read) {
            pages.clone().for_each(|index| _ = self.swap(index, State::shown(access)));
            let (start, len) = (self.place(pages.start), count * PAGE_LEN);
            let done = if kept {
                // SAFETY: pages of the registered view; their frames hold their bytes.
                unsafe { self.uffd.map(start, len, mapping(access)) }.is_ok()
            } else {
                // SAFETY: pages of the registered view, changed by their owner.
                unsafe { self.uffd.protect(start, len, Mapping::Writable) }.is_ok()
            };
            if done {
                return self.woken(pages);
            }
        }
        // One by one, because the kernel may have unmapped some of them.
        pages.for_each(|index| self.remap(self.page(index), access));
    }

    /// Unmaps pages from the program. Their frames stay.
    ///
    /// # Panics
    /// Panics if one of them is not cached.
    pub fn unmap_run(&self, first: Page, count: usize) {
        let pages = self.run(first, count);
        let mut mapped = false;
        for index in pages.clone() {
            let was = self.swap(index, State::Unmapped);
            assert!(was.has_frame(), "{:?} is cached", self.page(index));
            mapped |= was != State::Unmapped;
        }
        if mapped {
            self.views.unmap_from_program(pages.start * PAGE_LEN, pages.len() * PAGE_LEN);
        }
    }

    /// Frees the frames of pages, mapped by the program or not.
    ///
    /// # Panics
    /// Panics if one of them is not cached.
    pub fn discard_run(&self, first: Page, count: usize) {
        let pages = self.run(first, count);
        for index in pages.clone() {
            assert!(self.swap(index, State::Gone).has_frame(), "{:?} is cached", self.page(index));
        }
        self.punch(pages); // also unmaps them from all processes
    }

    /// Appends the bytes of cached pages that no thread writes.
    ///
    /// # Panics
    /// Panics if one of them is not cached, or is writable.
    pub fn read_run(&self, first: Page, count: usize, out: &mut Vec<u8>) {
        let pages = self.run(first, count);
        if self.lease.is_some() {
            return pages.for_each(|index| self.read(self.page(index), 0..PAGE_LEN, out));
        }
        let frozen = |index| matches!(self.state(index), State::ReadOnly | State::Unmapped);
        assert!(pages.clone().all(frozen), "{count} pages from {first:?} are here, and frozen");
        self.views.read(pages.start * PAGE_LEN, pages.len() * PAGE_LEN, out);
    }

    /// Makes each touch of the pages end in SIGBUS, and wakes the threads that wait for them.
    ///
    /// # Panics
    /// Panics if one of them is cached.
    pub fn poison_run(&self, first: Page, count: usize) {
        let mut pages = self;
        self.run(first, count).for_each(|index| pages.poison(self.page(index)));
    }

    /// Wakes the threads that wait for one of the pages.
    ///
    /// # Panics
    /// Panics if one of them is not in the window.
    pub fn wake_run(&self, first: Page, count: usize) {
        let mut pages = self;
        self.run(first, count).for_each(|index| pages.wake(self.page(index)));
    }
}
