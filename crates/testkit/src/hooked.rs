//! Far memory that counts round trips and lets a test act before each verb: inspect, act as another program,
//! or end this program there.

use farmem_client::task::Concurrent;
use farmem_client::{Client, Completed, Error, FarMemory, Op, Ticket, VirtAddr, forward_far_memory};

/// A client's far memory.
pub struct Hooked<'a> {
    client: &'a mut Client,
    /// Called before each verb and traversal. If the callback fails, the verb is not executed.
    before: &'a mut dyn FnMut() -> Result<(), Error>,
    /// Round trips so far; operations in flight together count once.
    pub trips: u64,
    /// READs execute in pieces of this many bytes, the last one first, with a call of `before` in between: a
    /// memory node may answer the packets of a READ this way.
    pub packet_len: usize,
}

impl<'a> Hooked<'a> {
    /// Wraps a client's far memory.
    pub fn new(client: &'a mut Client, before: &'a mut dyn FnMut() -> Result<(), Error>) -> Self {
        Self { client, before, trips: 0, packet_len: usize::MAX }
    }

    fn begin(&mut self) -> Result<(), Error> {
        (self.before)()?;
        self.trips += 1;
        Ok(())
    }
}

/// Returns the error of every verb of a program that has ended.
#[must_use]
pub fn ended() -> Error {
    Error::Unreachable { what: "a program that ended".into() }
}

impl FarMemory for Hooked<'_> {
    forward_far_memory!(client: allocate, allocate_on, free, nodes, scratch_len_max);
    forward_far_memory!(client, Self::begin: write, compare_swap, fetch_add, dispatch);

    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        self.begin()?;
        let packet_len = self.packet_len.min(into.len());
        let last = into.len().div_ceil(packet_len) - 1;
        for (number, packet) in into.chunks_mut(packet_len).enumerate().rev() {
            if number < last {
                (self.before)()?;
            }
            self.client.read(VirtAddr(addr.0 + (number * packet_len) as u64), packet)?;
        }
        Ok(())
    }

    fn write_many(&mut self, writes: &[(VirtAddr, &[u8])]) -> Result<(), Error> {
        self.trips += u64::from(!writes.is_empty());
        for (addr, data) in writes {
            (self.before)()?;
            self.client.write(*addr, data)?;
        }
        Ok(())
    }

    fn read_many(&mut self, reads: &mut [(VirtAddr, &mut [u8])]) -> Result<(), Error> {
        self.trips += u64::from(!reads.is_empty());
        for (addr, into) in reads {
            (self.before)()?;
            self.client.read(*addr, into)?;
        }
        Ok(())
    }
}

impl Concurrent for Hooked<'_> {
    fn submit(&mut self, op: Op) -> Result<Ticket, Error> {
        (self.before)()?;
        self.client.submit(op)
    }

    fn next_completed(&mut self) -> Result<Option<Completed>, Error> {
        self.client.next_completed()
    }

    fn poll_ended(&mut self) -> Option<Completed> {
        self.client.poll_ended()
    }
}
