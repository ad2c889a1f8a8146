//! The memory under the pages a host caches, as the agent uses it.
//!
//! Key type: [`Pages`], with two implementers: mapped memory under userfaultfd, and plain maps in simulated worlds. The agent
//! alone decides which page is in which state; an implementer does as it is told, in order, and keeps no protocol state.
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

/// Pages that a program reaches by plain loads and stores, and this host's agent by calls.
///
/// No call fails: what the system refuses is the implementer's broken invariant. A call returns when what it says is true for every
/// thread of the program.
pub trait Pages {
    /// Gives the page these bytes, lets the program reach it with `access`, and wakes the threads that wait for it.
    ///
    /// A page that is Shared already is only ever installed Modified, and its bytes are those that it has: they need not be
    /// written again. A page whose bytes are still kept after a [`Pages::unmap`] is never installed. The access is always to be
    /// set as given, whatever marks the kernel kept from before.
    fn install(&mut self, page: Page, bytes: &[u8; PAGE_LEN], access: Access);

    /// Takes write access from a Modified page; the program may go on reading it. From here on its bytes do not change: no
    /// store is on its way, not even in a store buffer, and a thread that writes faults.
    fn write_protect(&mut self, page: Page);

    /// Appends the bytes at `range` of a page that is Shared, or write-protected, or unmapped and not yet released.
    ///
    /// # Panics
    /// When the range leaves the page.
    fn read(&self, page: Page, range: Range<usize>, out: &mut Vec<u8>);

    /// Takes the page from the program: the next access of any thread faults. Its bytes are kept until [`Pages::release`]. A
    /// Modified page is always write-protected first, or both at once ([`Pages::write_protect_and_unmap`]).
    fn unmap(&mut self, page: Page);

    /// Write-protects and unmaps a page; in one call of the system where that is enough to stop all stores.
    fn write_protect_and_unmap(&mut self, page: Page) {
        self.write_protect(page);
        self.unmap(page);
    }

    /// Frees the bytes of an unmapped page.
    fn release(&mut self, page: Page);

    /// Unmaps and releases a page that need not be written back; cheaper at once where the system offers it.
    fn discard(&mut self, page: Page) {
        self.unmap(page);
        self.release(page);
    }

    /// Has threads that wait for the page look again: what they wanted of it they may have.
    fn wake(&mut self, page: Page);

    /// An Invalid page cannot be had: its latest bytes died with the host that had it Modified, or the domain may not. From here on
    /// an access ends in an error (SIGBUS), and so do those that wait now. [`Pages::install`] makes the page good again.
    fn poison(&mut self, page: Page);

    /// As [`Pages::poison`], when the domain may not use the page as a thread wanted to, or it is no memory.
    fn refuse(&mut self, page: Page) {
        self.poison(page);
    }

    /// The node has the bytes of a page that was write-protected and stays Shared.
    fn clean(&mut self, page: Page) {
        let _ = page;
    }
}

/// What a cache does to the mappings of a program beside what the protocol wants: it deactivates pages, and lets poison end.
///
/// Implementers: a window of this process, one whose programs are other processes, and plain maps in simulated worlds.
pub trait Mapped: Pages {
    /// Maps a page again that has a frame and is to be used with `access`, and lets the threads that wait for it try again.
    ///
    /// # Panics
    /// When the page has no frame.
    fn remap(&mut self, page: Page, access: Access);

    /// Takes a page's poison back: the next touch waits to be served. Without effect on any other page.
    fn unpoison(&mut self, page: Page);

    /// Takes over what the lease's watcher has taken, if anything: no page is left that the program can reach. Before the next lease begins.
    fn absorb(&mut self);
}
