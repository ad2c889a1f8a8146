//! The interface to private memory and the actions on it.
//!
//! Key type: [`Programs`].

use crate::{Cause, Key, Op};
use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::VirtAddr;
use farmem_wire::message::Access;

/// The number of a place in the pool.
pub type PoolPlace = u32;

/// The result of a request for far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocated {
    /// The allocation's address.
    At(VirtAddr),
    /// Far memory has not that much.
    Refused,
    /// The result is unknown.
    Failed,
}

/// The location from which a page's bytes are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopySource {
    /// In the pool.
    Pool(PoolPlace),
    /// In a program, which does not write to them.
    Program(Key),
}

/// The memory that holds pages: programs, the pool, far memory. A program that is gone, or that has another
/// mapping in place of its pages, is no failure.
pub trait Programs {
    /// Returns the pages around `key` with the same use, including it; `None` if the page is not far memory
    /// (any more).
    fn around(&self, key: Key) -> Option<Range<u64>>;
    /// Returns true if the page must stay mapped.
    fn stays(&self, key: Key) -> bool;

    /// Lets the kernel alone serve the pages: resident pages stay usable, and a touch of another gets a zero
    /// page without a fault report. Returns false on failure; the pages are still watched then.
    fn unwatch(&mut self, space: u32, pages: Range<u64>) -> bool;
    /// Reverts [`Programs::unwatch`]: after the call every page comes through the pager. Returns false if the
    /// kernel refuses; the pages are still unwatched then.
    fn watch(&mut self, space: u32, pages: Range<u64>) -> bool;
    /// Returns the resident pages among these, in ordered runs. The pages are watched.
    fn populated(&mut self, space: u32, pages: Range<u64>) -> Vec<Range<u64>>;

    /// Write-protects pages: from here on no store reaches them without a fault.
    fn write_protect(&mut self, space: u32, pages: Range<u64>);
    /// Copies pages from their program to the pool, to the places from `first` on.
    fn save(&mut self, space: u32, pages: Range<u64>, first: PoolPlace);
    /// Returns true if all bytes of the place are zeros.
    fn is_zero(&self, place: PoolPlace) -> bool;
    /// Unmaps pages from their program.
    fn discard(&mut self, space: u32, pages: Range<u64>);

    /// Maps a writable zero page for each page. Returns the number of leading pages that were mapped.
    fn zeros(&mut self, space: u32, pages: Range<u64>) -> u64;
    /// Maps pages that this fetch brought. Returns the number of leading pages that were mapped.
    fn install(&mut self, op: Op, space: u32, pages: Range<u64>, access: Access) -> u64;
    /// Maps a copy of a page that is local elsewhere. Returns false if the program did not accept it.
    fn copy(&mut self, key: Key, from: CopySource, access: Access) -> bool;
    /// Maps a page back from the pool. If the program does not accept it, the page stays for its next touch.
    fn restore(&mut self, key: Key, place: PoolPlace, access: Access);
    /// Changes the access of a mapped page.
    fn map(&mut self, key: Key, access: Access);
    /// Makes readable pages writable.
    fn allow(&mut self, space: u32, pages: Range<u64>);
    /// Moves a mapped page, which its program does not write to, to another address.
    fn relocate(&mut self, key: Key, to: Key, access: Access);
    /// Wakes the threads that wait for one of the pages.
    fn wake(&mut self, space: u32, pages: Range<u64>);
    /// Fails the page with this cause.
    fn poison(&mut self, key: Key, cause: Cause);

    /// Fetches pages from far memory. [`Private::fetched`](super::Private::fetched) reports the end.
    fn fetch(&mut self, op: Op, first: Key, addr: VirtAddr, count: u32);
    /// Writes adjacent pages to far memory. [`Private::written_back`](super::Private::written_back) reports
    /// the end.
    fn write_back(&mut self, op: Op, addr: VirtAddr, pages: &[CopySource]);
    /// Returns true if more far memory may be requested.
    fn may_allocate(&self) -> bool;
    /// Requests far memory.
    fn allocate(&mut self, bytes: u64) -> Allocated;
}
