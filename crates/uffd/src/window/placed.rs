//! Pages whose bytes another process writes to and reads from the window's file: the DPU beside a host (PROTOCOL
//! 17.15).
//!
//! No byte of them is copied here: an arrived page is mapped from the file, and an evicted page is read from the
//! file.

use super::Window;
use crate::state::mapping;
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::io;
use std::os::fd::OwnedFd;

impl Window {
    /// Returns the file behind the pages: the window's byte `n` is the file's byte `n`. Its length is sealed.
    ///
    /// # Errors
    /// The system's error if no descriptors are left.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.views.file().try_clone_to_owned()
    }

    /// Returns true if the file has bytes of all these pages.
    ///
    /// # Panics
    /// Panics if they leave the window.
    #[must_use]
    pub fn is_placed(&self, first: Page, count: usize) -> bool {
        let pages = self.run(first, count);
        self.views.has(pages.start * PAGE_LEN, pages.len() * PAGE_LEN)
    }

    /// Writes bytes of pages in flight to the file. No thread sees them before [`Window::install_placed`].
    ///
    /// # Panics
    /// Panics if they leave the window.
    pub fn put_placed(&self, addr: VirtAddr, bytes: &[u8]) {
        self.views.write(self.offset_of(addr, bytes.len()), bytes);
    }

    /// Appends the file's present bytes of cached pages.
    ///
    /// # Panics
    /// Panics if they leave the window.
    pub fn read_placed(&self, addr: VirtAddr, len: usize, out: &mut Vec<u8>) {
        self.views.read(self.offset_of(addr, len), len, out);
    }

    /// Installs pages as [`Window::install_run`] does; the file has their bytes.
    ///
    /// # Panics
    /// Panics if they leave the window, one of them is cached or not in the file, the limit is exceeded, or the
    /// window has a lease.
    pub fn install_placed(&self, first: Page, count: usize, access: Access) {
        assert!(self.lease.is_none(), "pages under a lease are put into the file here");
        let pages = self.take_frames(first, count, access);
        // SAFETY: pages of the registered view; the file has their bytes.
        let mapped =
            unsafe { self.uffd.map_all(self.place(pages.start), pages.len() * PAGE_LEN, mapping(access)) };
        mapped.unwrap_or_else(|errno| panic!("pages that were put into the file cannot be mapped: {errno}"));
        self.woken(pages);
    }

    /// Frees the file's bytes of pages that are not cached, because their fetch failed.
    ///
    /// # Panics
    /// Panics if they leave the window.
    pub fn clear_placed(&self, first: Page, count: usize) {
        for index in self.run(first, count) {
            if !self.state(index).has_frame() {
                self.views.punch(index * PAGE_LEN, PAGE_LEN);
            }
        }
    }

    /// Returns the file offset of bytes of far memory.
    fn offset_of(&self, addr: VirtAddr, len: usize) -> usize {
        let offset = addr.0.checked_sub(self.base.0).and_then(|offset| usize::try_from(offset).ok());
        let inside =
            offset.filter(|offset| offset.checked_add(len).is_some_and(|end| end <= self.views.len()));
        inside.unwrap_or_else(|| panic!("{len} bytes at {addr} leave the window"))
    }
}
