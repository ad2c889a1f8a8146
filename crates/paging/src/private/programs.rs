//! What private memory is in, and what is done to it.
//!
//! Key type: [`Programs`].

use crate::{Cause, Key, Op};
use alloc::vec::Vec;
use core::ops::Range;
use farmem_wire::VirtAddr;
use farmem_wire::message::Access;

/// A place in the pool.
pub type Place = u32;

/// What came of asking for far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocated {
    /// It is here.
    At(VirtAddr),
    /// There is not that much.
    Refused,
    /// It is not known.
    Failed,
}

/// Where a page's bytes are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// In the pool.
    Pool(Place),
    /// In a program, which does not write to them.
    Program(Key),
}

/// What the pages are in: programs, the pool, far memory. A program that is gone, or that has something else where its pages were, is no failure.
pub trait Programs {
    /// The pages around one that are used alike, with it; `None` when it is not far memory (any more).
    fn around(&self, key: Key) -> Option<Range<u64>>;
    /// The page is to stay in its program.
    fn stays(&self, key: Key) -> bool;

    /// The system alone serves the pages from here on: those that are there may be used, and who touches another has a page of zeros, unseen. False when
    /// it does not, and they are watched as before.
    fn unwatch(&mut self, space: u32, pages: Range<u64>) -> bool;
    /// Takes that back: when it returns, no page comes there but by this. False when the system refuses, and it goes on.
    fn watch(&mut self, space: u32, pages: Range<u64>) -> bool;
    /// The pages among these that are there, in runs and in order. They are watched.
    fn populated(&mut self, space: u32, pages: Range<u64>) -> Vec<Range<u64>>;

    /// No store reaches the pages unseen from here on.
    fn write_protect(&mut self, space: u32, pages: Range<u64>);
    /// Copies pages' bytes from their program to the pool, to the places from this one on.
    fn save(&mut self, space: u32, pages: Range<u64>, first: Place);
    /// All bytes there are zeros.
    fn is_zero(&self, place: Place) -> bool;
    /// Takes pages from their program.
    fn discard(&mut self, space: u32, pages: Range<u64>);

    /// Gives a program a page of zeros each, to be written; answers how many of the first it has.
    fn zeros(&mut self, space: u32, pages: Range<u64>) -> u64;
    /// Gives a program pages that this fetch brought; answers how many of the first it has.
    fn install(&mut self, op: Op, space: u32, pages: Range<u64>, access: Access) -> u64;
    /// Gives a program a page that is elsewhere here; false when it did not take it.
    fn copy(&mut self, key: Key, from: From, access: Access) -> bool;
    /// Gives a program its page back from the pool. What it does not take stays with it, for its next touch.
    fn restore(&mut self, key: Key, place: Place, access: Access);
    /// A page that the program has may be used so.
    fn map(&mut self, key: Key, access: Access);
    /// Pages that the program has to be read may be written.
    fn allow(&mut self, space: u32, pages: Range<u64>);
    /// A page that the program has, and does not write to, is at another of its addresses from now on.
    fn relocate(&mut self, key: Key, to: Key, access: Access);
    /// The threads that wait for one of the pages look again.
    fn wake(&mut self, space: u32, pages: Range<u64>);
    /// The page cannot be had.
    fn poison(&mut self, key: Key, why: Cause);

    /// Gets pages from far memory: [`Private::fetched`](super::Private::fetched) tells what came of it.
    fn fetch(&mut self, op: Op, first: Key, addr: VirtAddr, count: u32);
    /// Writes pages to far memory, side by side: [`Private::written_back`](super::Private::written_back) tells what came of it.
    fn write_back(&mut self, op: Op, addr: VirtAddr, pages: &[From]);
    /// More far memory may be asked for.
    fn may_allocate(&self) -> bool;
    /// Asks for far memory.
    fn allocate(&mut self, bytes: u64) -> Allocated;
}
