//! A singly linked list of 64-bit values in far memory (PULSE, table 1: `std::list` and its kin).
//!
//! [`List::find`] and [`List::sum`] are one traversal each and run where [`List::set_policy`] says. The host
//! pushes and pops.
//!
//! # Concurrent readers
//!
//! PULSE leaves synchronisation to the host (PULSE 2.3): one writer at a time, by agreement or with
//! [`List::lock`]. An element is complete before the one word that links it is written, and a popped element
//! stays unchanged until [`List::reclaim`]. A reader beside a writer therefore
//!
//! - never meets a broken pointer or half an element, and never sees an element twice or a value that was not in the list;
//! - sees each element that is stable during the traversal;
//! - may or may not see an element that is pushed or popped meanwhile. The start of the traversal decides:
//!   lists change only in front, where the traversal begins, so the reader sees the list of one moment.

use crate::arena::{Arena, Layout};
use crate::assembled;
use farmem_client::{Dispatched, Error, FarMemory, LockWord, Policy, TraversalStop, Vma};
use farmem_traversal::Program;
use farmem_wire::VirtAddr;

/// Bytes of an element: its value and the address of the next.
pub const NODE_LEN: usize = 16;
/// The program for sum and count, in text form.
pub const SUM_PROGRAM: &str = include_str!("../../../testdata/programs/list_sum.pulse");
/// The program that finds a value, in text form.
pub const FIND_PROGRAM: &str = include_str!("../../../testdata/programs/list_find.pulse");

/// Iteration bound of a traversal: a longer one is in a cycle.
const ELEMENTS_MAX: u32 = 1 << 28;
/// Offset of the link in an element.
const NEXT: u64 = 8;
/// Offset of the lock word, after the head.
const LOCK: u64 = NODE_LEN as u64;

/// Sum and count of a list's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    /// The sum, modulo 2^64.
    pub sum: u64,
    /// The number of values.
    pub count: u64,
}

/// A program's handle of a list; other programs open the list at [`List::address`].
#[derive(Debug)]
pub struct List {
    /// A sentinel node with value 0.
    head: VirtAddr,
    arena: Arena,
    /// The memory node of a partitioned list.
    home: usize,
    sum: Program,
    find: Program,
    policy: Policy,
    lock: LockWord,
}

impl List {
    /// Creates an empty list.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for it.
    pub fn create(memory: &mut (impl FarMemory + ?Sized), layout: Layout) -> Result<Self, Error> {
        let Vma { base, .. } = memory.allocate(LOCK + 8)?; // zeroed: an empty list, free
        Ok(Self::open(memory, base, layout))
    }

    /// Opens the list at `address`. `layout` places the elements that this handle pushes.
    #[must_use]
    pub fn open(memory: &(impl FarMemory + ?Sized), address: VirtAddr, layout: Layout) -> Self {
        let arena = Arena::new(memory, layout, NODE_LEN);
        Self {
            home: arena.home_of(memory, address),
            head: address,
            arena,
            sum: assembled(SUM_PROGRAM),
            find: assembled(FIND_PROGRAM),
            policy: Policy::default(),
            lock: LockWord::new(VirtAddr(address.0 + LOCK)),
        }
    }

    /// Frees the head and the elements that this handle pushed.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        memory.free(self.head)?;
        self.arena.destroy(memory)
    }

    /// Returns the address at which other programs open the list and traversals start.
    #[must_use]
    pub const fn address(&self) -> VirtAddr {
        self.head
    }

    /// Sets where this handle's traversals run.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Inserts `value` at the front.
    ///
    /// # Errors
    /// [`Error`] when far memory has no room or does not answer.
    pub fn push_front(&mut self, memory: &mut (impl FarMemory + ?Sized), value: u64) -> Result<(), Error> {
        let (_, first) = read_node(memory, self.head)?;
        let fresh = self.arena.take(memory, self.home)?;
        memory.write(fresh, &[value.to_le_bytes(), first.to_le_bytes()].concat())?;
        memory.write(self.link(), &fresh.0.to_le_bytes())
    }

    /// Removes and returns the front value; `None` when the list is empty.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn pop_front(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<Option<u64>, Error> {
        let (_, first) = read_node(memory, self.head)?;
        if first == 0 {
            return Ok(None);
        }
        let (value, second) = read_node(memory, VirtAddr(first))?;
        memory.write(self.link(), &second.to_le_bytes())?;
        self.arena.retire(VirtAddr(first));
        Ok(Some(value))
    }

    /// Makes the memory of popped elements available for reuse. No traversal that began before the last
    /// [`List::pop_front`] may still run anywhere. Such a traversal could follow a reused element.
    pub fn reclaim(&mut self) {
        self.arena.reclaim();
    }

    /// Returns the lock that every writer takes.
    pub const fn lock(&mut self) -> &mut LockWord {
        &mut self.lock
    }

    /// Returns the position of the first element with `value`, counted from 0.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn find(&self, memory: &mut (impl FarMemory + ?Sized), value: u64) -> Result<Option<u64>, Error> {
        let scratch = [self.head.0, value, 0].map(u64::to_le_bytes).concat();
        let done = self.dispatch(memory, &self.find, scratch)?;
        // The first iteration visits the sentinel.
        let place = u64::from(done.end.iterations).saturating_sub(2);
        Ok((word(&done.scratch, 16) == 1).then_some(place))
    }

    /// Returns sum and count of all values.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn sum(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<Sum, Error> {
        let done = self.dispatch(memory, &self.sum, vec![0; self.sum.scratch_len()])?;
        Ok(Sum { sum: word(&done.scratch, 0), count: word(&done.scratch, 8).saturating_sub(1) })
    }

    fn dispatch(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        program: &Program,
        scratch: Vec<u8>,
    ) -> Result<Dispatched, Error> {
        let done = memory.dispatch(program, self.head, scratch, ELEMENTS_MAX, &self.policy)?;
        if !done.end.returned {
            return Err(Error::Traversal { addr: done.end.cur_ptr, reason: TraversalStop::Stalled });
        }
        Ok(done)
    }

    const fn link(&self) -> VirtAddr {
        VirtAddr(self.head.0 + NEXT)
    }
}

/// Reads value and link.
fn read_node(memory: &mut (impl FarMemory + ?Sized), addr: VirtAddr) -> Result<(u64, u64), Error> {
    let mut bytes = [0; NODE_LEN];
    memory.read(addr, &mut bytes)?;
    Ok((word(&bytes, 0), word(&bytes, 8)))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the range has 8 bytes"))
}
