//! Pages whose bytes another process puts into the window's file, and takes out of it: the DPU beside a host (PROTOCOL 17.15).
//!
//! So no byte of them is copied here: a page that came is mapped where it lies, and one that goes is read from there.

use super::Window;
use crate::state::mapping;
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::io;
use std::os::fd::OwnedFd;

impl Window {
    /// The file behind its pages: the window's byte `n` is the file's byte `n`. It cannot be cut or made longer.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.views.file().try_clone_to_owned()
    }

    /// True when the file has bytes of all these pages.
    ///
    /// # Panics
    /// When they leave the window.
    #[must_use]
    pub fn is_placed(&self, first: Page, count: usize) -> bool {
        let pages = self.run(first, count);
        self.views.has(pages.start * PAGE_LEN, pages.len() * PAGE_LEN)
    }

    /// Puts bytes into the file, of pages that are on their way. No thread sees them before [`Window::install_placed`].
    ///
    /// # Panics
    /// When they leave the window.
    pub fn put_placed(&self, addr: VirtAddr, bytes: &[u8]) {
        self.views.write(self.offset_of(addr, bytes.len()), bytes);
    }

    /// Appends what the file has of pages that are cached, as it is at this moment.
    ///
    /// # Panics
    /// When they leave the window.
    pub fn read_placed(&self, addr: VirtAddr, len: usize, out: &mut Vec<u8>) {
        self.views.read(self.offset_of(addr, len), len, out);
    }

    /// As [`Window::install_run`], of pages whose bytes are in the file.
    ///
    /// # Panics
    /// When they leave the window, one of them is cached or not in the file, they are more than the limit allows, or the window is under a lease.
    pub fn install_placed(&self, first: Page, count: usize, access: Access) {
        assert!(self.lease.is_none(), "pages under a lease are put into the file here");
        let pages = self.take_frames(first, count, access);
        // SAFETY: pages of the registered view; the file has their bytes.
        let mapped =
            unsafe { self.uffd.map_all(self.place(pages.start), pages.len() * PAGE_LEN, mapping(access)) };
        mapped.unwrap_or_else(|errno| panic!("pages that were put into the file cannot be mapped: {errno}"));
        self.woken(pages);
    }

    /// Discards the file's contents for pages that are not cached: they did not come after all.
    ///
    /// # Panics
    /// When they leave the window.
    pub fn clear_placed(&self, first: Page, count: usize) {
        for index in self.run(first, count) {
            if !self.state(index).has_frame() {
                self.views.punch(index * PAGE_LEN, PAGE_LEN);
            }
        }
    }

    /// Where bytes of far memory are in the file.
    fn offset_of(&self, addr: VirtAddr, len: usize) -> usize {
        let offset = addr.0.checked_sub(self.base.0).and_then(|offset| usize::try_from(offset).ok());
        let inside =
            offset.filter(|offset| offset.checked_add(len).is_some_and(|end| end <= self.views.len()));
        inside.unwrap_or_else(|| panic!("{len} bytes at {addr} leave the window"))
    }
}
