//! A singly linked list of 64-bit values in far memory (PULSE, table 1: `std::list` and its kin).
//!
//! [`List::find`] and [`List::sum`] are one traversal each, run where [`List::set_policy`] says. Pushing and popping are the host's.
//!
//! One writer at a time. A reader beside it sees the list with or without a pushed element, since the element is complete before
//! the one word that links it is written. A popped element's memory is used again: a traversal that stands on it at that time may
//! go on from the new front, and so see elements twice; readers that must not do that take turns with the writer.

use crate::arena::{Arena, Layout};
use crate::{Client, Dispatched, Error, Policy, TraversalStop, Vma};
use farmem_traversal::Program;
use farmem_wire::VirtAddr;

/// Bytes of an element: its value and the address of the next.
pub const NODE_LEN: usize = 16;
/// Sum and count, in its text form.
pub const SUM_PROGRAM: &str = include_str!("../../../testdata/programs/list_sum.pulse");
/// Find, in its text form.
pub const FIND_PROGRAM: &str = include_str!("../../../testdata/programs/list_find.pulse");

/// Iterations after which a traversal is in a cycle.
const ELEMENTS_MAX: u32 = 1 << 28;
/// Of the link in an element.
const NEXT: u64 = 8;

/// Sum and number of a list's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    /// Their sum, modulo 2^64.
    pub sum: u64,
    /// How many there are.
    pub count: u64,
}

/// A program's hold of a list; others open it at [`List::address`].
#[derive(Debug)]
pub struct List {
    /// A node that is no element; its value is 0.
    head: VirtAddr,
    arena: Arena,
    /// The memory node of a partitioned list.
    home: usize,
    sum: Program,
    find: Program,
    policy: Policy,
}

impl List {
    /// An empty list.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for it.
    pub fn create(client: &mut Client, layout: Layout) -> Result<Self, Error> {
        let Vma { base, .. } = client.allocate(NODE_LEN as u64)?; // zeroed: an empty list
        Ok(Self::open(client, base, layout))
    }

    /// The list at `address`. Elements that this handle pushes are laid out as `layout` says.
    #[must_use]
    pub fn open(client: &Client, address: VirtAddr, layout: Layout) -> Self {
        let assemble = |text| {
            Program::assemble(text).expect("the program is part of the crate, and a test assembles it")
        };
        let arena = Arena::new(client, layout, NODE_LEN);
        Self {
            home: arena.home_of(client, address),
            head: address,
            arena,
            sum: assemble(SUM_PROGRAM),
            find: assemble(FIND_PROGRAM),
            policy: Policy::default(),
        }
    }

    /// Frees the head and the elements that this handle pushed.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy(self, client: &mut Client) -> Result<(), Error> {
        client.free(self.head)?;
        self.arena.destroy(client)
    }

    /// Where others open it, and where traversals start.
    #[must_use]
    pub const fn address(&self) -> VirtAddr {
        self.head
    }

    /// Says where this handle's traversals run.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Puts `value` in front.
    ///
    /// # Errors
    /// [`Error`] when far memory has no room or does not answer.
    pub fn push_front(&mut self, client: &mut Client, value: u64) -> Result<(), Error> {
        let (_, first) = read_node(client, self.head)?;
        let fresh = self.arena.take(client, self.home)?;
        client.write(fresh, &[value.to_le_bytes(), first.to_le_bytes()].concat())?;
        client.write(self.link(), &fresh.0.to_le_bytes())
    }

    /// Takes the front value off; `None` when the list is empty.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn pop_front(&mut self, client: &mut Client) -> Result<Option<u64>, Error> {
        let (_, first) = read_node(client, self.head)?;
        if first == 0 {
            return Ok(None);
        }
        let (value, second) = read_node(client, VirtAddr(first))?;
        client.write(self.link(), &second.to_le_bytes())?;
        self.arena.give_back(VirtAddr(first));
        Ok(Some(value))
    }

    /// The place of the first element that has `value`, from 0.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn find(&self, client: &mut Client, value: u64) -> Result<Option<u64>, Error> {
        let scratch = [self.head.0, value, 0].map(u64::to_le_bytes).concat();
        let done = self.dispatch(client, &self.find, scratch)?;
        // The first iteration is at the head, which is no element.
        let place = u64::from(done.end.iterations).saturating_sub(2);
        Ok((word(&done.scratch, 16) == 1).then_some(place))
    }

    /// Sum and number of all values.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn sum(&self, client: &mut Client) -> Result<Sum, Error> {
        let done = self.dispatch(client, &self.sum, vec![0; self.sum.scratch_len()])?;
        Ok(Sum { sum: word(&done.scratch, 0), count: word(&done.scratch, 8).saturating_sub(1) })
    }

    fn dispatch(
        &self,
        client: &mut Client,
        program: &Program,
        scratch: Vec<u8>,
    ) -> Result<Dispatched, Error> {
        let done = client.dispatch(program, self.head, scratch, ELEMENTS_MAX, &self.policy)?;
        if !done.end.returned {
            return Err(Error::Traversal { addr: done.end.cur_ptr, reason: TraversalStop::Stalled });
        }
        Ok(done)
    }

    const fn link(&self) -> VirtAddr {
        VirtAddr(self.head.0 + NEXT)
    }
}

/// Value and link.
fn read_node(client: &mut Client, addr: VirtAddr) -> Result<(u64, u64), Error> {
    let mut bytes = [0; NODE_LEN];
    client.read(addr, &mut bytes)?;
    Ok((word(&bytes, 0), word(&bytes, 8)))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the range has 8 bytes"))
}
