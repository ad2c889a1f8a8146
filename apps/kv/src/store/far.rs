//! Far memory in chunks: what the log keeps there.

use super::place::CHUNK;
use farmem::{Client, Error, Op, VirtAddr};
use std::collections::BTreeMap;

/// Chunks of one allocation.
const TOGETHER: usize = 64;
/// Allocations that are tried for a chunk when nodes do not answer.
const TRIES: usize = 3;

/// A rack's memory, as one client has it.
#[derive(Debug)]
pub(crate) struct Far {
    client: Client,
    free: Vec<VirtAddr>,
    /// Chunks in use of each allocation.
    slabs: BTreeMap<u64, usize>,
    /// READs so far.
    pub(crate) reads: u64,
    /// Times that READs were waited for: those that were under way together count once.
    pub(crate) rounds: u64,
    /// WRITEs so far.
    pub(crate) writes: u64,
    /// Bytes that both carried.
    pub(crate) bytes: u64,
}

impl Far {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client, free: Vec::new(), slabs: BTreeMap::new(), reads: 0, rounds: 0, writes: 0, bytes: 0 }
    }

    /// Writes a chunk's bytes to where there is room; answers where.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<VirtAddr, Error> {
        let mut last = None;
        for _ in 0..TRIES {
            let at = self.room()?;
            match self.client.write(at, bytes) {
                Ok(()) => {
                    *self.slabs.get_mut(&slab_of(at)).expect("chunks are of an allocation") += 1;
                    self.writes += 1;
                    self.bytes += bytes.len() as u64;
                    return Ok(at);
                }
                // The node may be gone: what is free there is of no use.
                Err(error) => {
                    self.free.retain(|free| slab_of(*free) != slab_of(at));
                    last = Some(error);
                }
            }
        }
        Err(last.expect("it was tried"))
    }

    /// A chunk's place is free again.
    pub(crate) fn give_back(&mut self, at: VirtAddr) {
        let slab = slab_of(at);
        let used = self.slabs.get_mut(&slab).expect("chunks are of an allocation");
        *used -= 1;
        self.free.push(at);
        // One empty allocation is kept: data that comes and goes would allocate each time.
        if *used == 0 && self.free.len() >= 2 * TOGETHER {
            self.free.retain(|free| slab_of(*free) != slab);
            self.slabs.remove(&slab);
            // Memory that went with its node is not there to be freed.
            let _gone_with_its_node = self.client.free(VirtAddr(slab));
        }
    }

    /// Reads `len` bytes in one READ.
    pub(crate) fn read(&mut self, at: VirtAddr, len: usize) -> Result<Vec<u8>, Error> {
        self.read_all(&[(at, len)]).pop().expect("one was asked for")
    }

    /// Reads several ranges, all under way at once; what came of each, in turn.
    pub(crate) fn read_all(&mut self, ranges: &[(VirtAddr, usize)]) -> Vec<Result<Vec<u8>, Error>> {
        let submitted: Vec<_> = ranges
            .iter()
            .map(|&(addr, len)| {
                let buf = self.client.buffer(len);
                self.client.submit(Op::Read { addr, buf })
            })
            .collect();
        self.rounds += u64::from(!ranges.is_empty());
        let ended = submitted.into_iter().map(|ticket| {
            let done = self.client.wait(ticket?)?;
            done.result?;
            self.reads += 1;
            self.bytes += done.buf.len() as u64;
            Ok(done.buf)
        });
        ended.collect()
    }

    /// A buffer that [`Far::read`] gave out is used again.
    pub(crate) fn recycle(&mut self, buf: Vec<u8>) {
        self.client.recycle(buf);
    }

    /// Bytes that are allocated.
    pub(crate) fn allocated(&self) -> usize {
        self.slabs.len() * TOGETHER * CHUNK
    }

    fn room(&mut self) -> Result<VirtAddr, Error> {
        if let Some(at) = self.free.pop() {
            return Ok(at);
        }
        let vma = self.client.allocate((TOGETHER * CHUNK) as u64)?;
        self.slabs.insert(vma.base.0, 0);
        self.free.extend((1..TOGETHER).rev().map(|number| VirtAddr(vma.base.0 + (number * CHUNK) as u64)));
        Ok(vma.base)
    }
}

/// The allocation that a chunk is of: allocations lie at multiples of their length.
fn slab_of(at: VirtAddr) -> u64 {
    at.0 & !((TOGETHER * CHUNK) as u64 - 1)
}
