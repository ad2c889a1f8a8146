//! The memory interface through which the agent controls cached pages.
//!
//! Key type: [`Pages`], with two implementers: mapped memory under userfaultfd, and plain maps in simulated worlds. The agent
//! alone decides the state of each page. An implementer carries out the calls in order and keeps no protocol state.
//!
//! ```text
//!            install Shared          write_protect
//!   Invalid ---------------> Shared <------------- Modified
//!      ^                       |  \                  ^
//!      |  discard, or          |   `-----------------'   install Modified: the bytes are
//!      `--- unmap ... release -'                         the same, only the access grows
//! ```

use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::message::{Access, PAGE_LEN, Page};

/// Pages that the program accesses by plain loads and stores, and that the host's agent controls by calls.
///
/// No call fails: if the system refuses one, the implementer's invariant is broken. When a call returns, its
/// effect holds for every thread of the program.
pub trait Pages {
    /// Fills the page with `bytes`, maps it with `access`, and wakes the threads that wait for it.
    ///
    /// A page that is already Shared is only ever installed as Modified, with unchanged bytes, so the
    /// implementer need not copy them. The agent never installs a page whose bytes are still kept after
    /// [`Pages::unmap`]. The implementer always sets the access as given, whatever protection the kernel kept
    /// from before.
    fn install(&mut self, page: Page, bytes: &[u8; PAGE_LEN], access: Access);

    /// Takes write access from a Modified page; the program may still read it. After the call the bytes do
    /// not change: no store is pending, not even in a store buffer, and a thread that writes faults.
    fn write_protect(&mut self, page: Page);

    /// Appends the bytes at `range` of a page that is Shared, write-protected, or unmapped and not yet
    /// released.
    ///
    /// # Panics
    ///
    /// If the range leaves the page.
    fn read(&self, page: Page, range: Range<usize>, out: &mut Vec<u8>);

    /// Unmaps the page: the next access of any thread faults. The bytes are kept until [`Pages::release`].
    ///
    /// A Modified page is write-protected first, or both at once ([`Pages::write_protect_and_unmap`]).
    fn unmap(&mut self, page: Page);

    /// Write-protects and unmaps a page. An implementer may use one system call if that suffices to stop all
    /// stores.
    fn write_protect_and_unmap(&mut self, page: Page) {
        self.write_protect(page);
        self.unmap(page);
    }

    /// Frees the bytes of an unmapped page.
    fn release(&mut self, page: Page);

    /// Unmaps and releases a page that needs no write-back. An implementer may use a cheaper single call.
    fn discard(&mut self, page: Page) {
        self.unmap(page);
        self.release(page);
    }

    /// Wakes the threads that wait for the page; the access they want is available.
    fn wake(&mut self, page: Page);

    /// Marks an Invalid page as failed: its latest bytes died with the host that had it Modified, or the
    /// domain may not access it. Every access, also one that waits now, ends in an error (SIGBUS).
    /// [`Pages::install`] makes the page valid again.
    fn poison(&mut self, page: Page);

    /// Marks a page as failed like [`Pages::poison`], because the domain lacks the access right or the
    /// address is not allocated.
    fn refuse(&mut self, page: Page) {
        self.poison(page);
    }

    /// Marks a page as clean: the node has the bytes of a page that was write-protected and stays Shared.
    fn clean(&mut self, page: Page) {
        let _ = page;
    }
}

/// Control of a program's mappings beyond the protocol's needs: a cache deactivates pages, maps them again,
/// and ends poison.
///
/// Implementers: a window of this process, a window whose programs are other processes, and plain maps in
/// simulated worlds.
pub trait Mapped: Pages {
    /// Maps a page that has a frame with `access`, and wakes the threads that wait for it.
    ///
    /// # Panics
    ///
    /// If the page has no frame.
    fn remap(&mut self, page: Page, access: Access);

    /// Clears the page's poison: the next access faults and waits for the pager. Has no effect on any other
    /// page.
    fn unpoison(&mut self, page: Page);

    /// Accounts for the pages that the lease watchdog unmapped, if any, before the next lease begins.
    /// Afterwards the program can reach no page.
    fn absorb(&mut self);
}
