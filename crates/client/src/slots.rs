//! A client's state of each pending operation, found by ticket in constant time.

use farmem_host::Op;
use farmem_transport::rc::Work;
use farmem_wire::VirtAddr;
use slab::Slab;

/// The kind of an operation's memory access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touch {
    Read,
    /// A READ by key instead of by address.
    Keyed,
    Write,
    Atomic,
    Traverse,
}

/// The part of an operation that explains its failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) addr: VirtAddr,
    pub(crate) len: u64,
    pub(crate) touch: Touch,
}

impl Meta {
    #[inline]
    pub(crate) fn of(op: &Op) -> Self {
        let (addr, len, touch) = match op {
            Op::Read { addr, buf } | Op::RegionRead { addr, buf } => (*addr, buf.len(), Touch::Read),
            Op::ReadTo { addr, to } => (*addr, to.len(), Touch::Read),
            Op::Gather { addrs, buf } => {
                (addrs.first().copied().unwrap_or(VirtAddr(0)), buf.len(), Touch::Read)
            }
            Op::WriteFrom { addr, from } => (*addr, from.len(), Touch::Write),
            Op::Write { addr, buf } | Op::RegionWrite { addr, buf } => (*addr, buf.len(), Touch::Write),
            Op::CompareSwap { addr, .. } | Op::FetchAdd { addr, .. } => (*addr, 8, Touch::Atomic),
            Op::Through { work, .. } => {
                let touch = match work {
                    Work::Read { .. } | Work::ReadTo { .. } | Work::Gather { .. } => Touch::Read,
                    Work::KeyedRead { .. } => Touch::Keyed,
                    Work::Write { .. } | Work::WriteFrom { .. } => Touch::Write,
                    Work::CmpSwap { .. } | Work::FetchAdd { .. } => Touch::Atomic,
                };
                return Self { addr: work.addr(), len: work.span(), touch };
            }
            Op::Traverse { program, cur_ptr, .. } => (*cur_ptr, program.window_len(), Touch::Traverse),
        };
        Self { addr, len: len as u64, touch }
    }
}

/// The ticket and operation of a slot.
#[derive(Debug)]
struct Slot {
    ticket: u64,
    meta: Meta,
}

/// The slots. A ticket contains a counter above its slot's number, so no ticket is used twice.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Slab<Slot>,
    counter: u64,
}

const SLOT_BITS: u32 = 24;
const SLOTS_MAX: usize = 1 << SLOT_BITS;

impl Slots {
    #[inline]
    pub(crate) fn take(&mut self, meta: Meta) -> u64 {
        self.counter += 1;
        let slot = self.slots.vacant_entry();
        let ticket = ticket(self.counter, slot.key());
        slot.insert(Slot { ticket, meta });
        ticket
    }

    #[inline]
    pub(crate) fn holds(&self, ticket: u64) -> bool {
        self.slots.get(place(ticket)).is_some_and(|slot| slot.ticket == ticket)
    }

    /// Returns true if no operation is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    #[inline]
    pub(crate) fn give_back(&mut self, ticket: u64) -> Meta {
        assert!(self.holds(ticket), "an operation ends once");
        self.slots.remove(place(ticket)).meta
    }
}

/// Returns the ticket of operation number `count` in slot `place`.
pub(crate) fn ticket(count: u64, place: usize) -> u64 {
    assert!(place < SLOTS_MAX, "queues bound what is outstanding far below this");
    count << SLOT_BITS | place as u64
}

/// Returns the slot's number of a ticket.
pub(crate) fn place(ticket: u64) -> usize {
    usize::try_from(ticket & (SLOTS_MAX as u64 - 1)).unwrap_or(usize::MAX)
}
