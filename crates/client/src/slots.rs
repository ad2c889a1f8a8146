//! What a client remembers of each operation under way, found by ticket in constant time.

use farmem_host::Op;
use farmem_wire::VirtAddr;

/// How an operation touches memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touch {
    Read,
    Write,
    Atomic,
    Traverse,
}

/// What goes over a connection, but for address and buffer: enough to ask it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Read,
    Write,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// Enough of an operation to explain its failure, and to ask it again somewhere else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) addr: VirtAddr,
    pub(crate) len: u64,
    pub(crate) touch: Touch,
    /// None of what goes through the switch.
    pub(crate) verb: Option<Verb>,
    /// Times it was asked again where its bytes had moved.
    pub(crate) moves: u8,
    /// The nodes of its first and of its last byte, as it was sent.
    pub(crate) ways: [Option<u16>; 2],
    /// What was known then of where memory is: the client's count of it.
    pub(crate) known: u64,
    /// It was asked again where it had been refused.
    pub(crate) insisted: bool,
    /// Why a node refused it, as far as the control plane knows.
    pub(crate) refused: Option<Refused>,
}

/// What a NAK does not say, and where an allocation is tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// These of its bytes were lost with an earlier incarnation of their node.
    Lost { base: u64, len: u64 },
    /// It leaves the allocation.
    OutOfBounds,
}

impl Meta {
    pub(crate) fn of(op: &Op) -> Self {
        let (addr, len, touch) = match op {
            Op::Read { addr, buf } | Op::RegionRead { addr, buf } => (*addr, buf.len(), Touch::Read),
            Op::Write { addr, buf } | Op::RegionWrite { addr, buf } => (*addr, buf.len(), Touch::Write),
            Op::CompareSwap { addr, .. } | Op::FetchAdd { addr, .. } => (*addr, 8, Touch::Atomic),
            Op::Traverse { program, cur_ptr, .. } => (*cur_ptr, program.window_len(), Touch::Traverse),
        };
        let verb = match *op {
            Op::Read { .. } => Some(Verb::Read),
            Op::Write { .. } => Some(Verb::Write),
            Op::CompareSwap { compare, swap, .. } => Some(Verb::CompareSwap { compare, swap }),
            Op::FetchAdd { add, .. } => Some(Verb::FetchAdd { add }),
            Op::RegionRead { .. } | Op::RegionWrite { .. } | Op::Traverse { .. } => None,
        };
        let (len, ways) = (len as u64, [None; 2]);
        Self { addr, len, touch, verb, moves: 0, ways, known: 0, insisted: false, refused: None }
    }
}

/// A slot's ticket and operation; the ticket is 0 while the slot is free.
#[derive(Debug)]
struct Slot {
    ticket: u64,
    meta: Meta,
}

/// The slots. A ticket is a counter above its slot's number, so that none is used twice.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    counter: u64,
}

const SLOT_BITS: u32 = 24;
const SLOTS_MAX: usize = 1 << SLOT_BITS;

impl Slots {
    pub(crate) fn take(&mut self, meta: Meta) -> u64 {
        self.counter += 1;
        let place = self.free.pop().unwrap_or(self.slots.len());
        let ticket = ticket(self.counter, place);
        if place == self.slots.len() {
            self.slots.push(Slot { ticket, meta });
        } else {
            self.slots[place] = Slot { ticket, meta };
        }
        ticket
    }

    pub(crate) fn holds(&self, ticket: u64) -> bool {
        self.slots.get(place(ticket)).is_some_and(|slot| slot.ticket == ticket)
    }

    /// What is remembered of an operation under way.
    pub(crate) fn meta_mut(&mut self, ticket: u64) -> &mut Meta {
        assert!(self.holds(ticket), "an operation under way has its slot");
        &mut self.slots[place(ticket)].meta
    }

    pub(crate) fn give_back(&mut self, ticket: u64) -> Meta {
        assert!(self.holds(ticket), "an operation ends once");
        let place = place(ticket);
        self.slots[place].ticket = 0;
        self.free.push(place);
        self.slots[place].meta
    }
}

/// The ticket of the operation number `count` in slot `place`.
pub(crate) fn ticket(count: u64, place: usize) -> u64 {
    assert!(place < SLOTS_MAX, "queues bound what is outstanding far below this");
    count << SLOT_BITS | place as u64
}

/// The number of the slot of a ticket.
pub(crate) fn place(ticket: u64) -> usize {
    usize::try_from(ticket & (SLOTS_MAX as u64 - 1)).unwrap_or(usize::MAX)
}
