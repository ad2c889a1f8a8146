//! Far memory in chunks: what the log keeps there.

use super::place::CHUNK;
use farmem::{Client, Completed, Error, Op, Ticket, VirtAddr};
use std::collections::BTreeMap;

/// Chunks of one allocation.
const TOGETHER: usize = 64;
/// Places that only compaction takes: a log that is full of dead records needs some room to make room.
const RESERVE: usize = 2;
/// Bytes of a buffer that is kept for the next READ.
const KEPT_MAX: usize = 16 << 10;
/// Allocations that are tried for a chunk when nodes do not answer.
const TRIES: usize = 3;

/// A READ that is under way, or why it is not.
pub(crate) type Reading = Result<Ticket, Error>;

/// A rack's memory, as one client has it.
#[derive(Debug)]
pub(crate) struct Far {
    client: Client,
    free: Vec<VirtAddr>,
    /// There was no more memory to be had when it was asked for last.
    pub(crate) is_short: bool,
    /// The last places may be taken: compaction gives back more than it takes.
    uses_reserve: bool,
    /// A buffer of a chunk, for the next WRITE.
    chunk: Vec<u8>,
    /// The same for the next READ of a whole one: new memory for each would cost more than the READ.
    read: Vec<u8>,
    /// Chunks in use of each allocation.
    slabs: BTreeMap<u64, usize>,
    /// READs that have ended and that nobody has asked for yet.
    landed: Vec<Completed>,
    /// READs that were begun and have not ended.
    pub(crate) under_way: usize,
    /// READs so far.
    pub(crate) reads: u64,
    /// READs that were not here yet when they were asked for.
    pub(crate) waited: u64,
    /// Times that READs went out: those that were under way together count once.
    pub(crate) rounds: u64,
    /// WRITEs so far.
    pub(crate) writes: u64,
    /// Bytes that both carried.
    pub(crate) bytes: u64,
}

impl Far {
    pub(crate) const fn new(client: Client) -> Self {
        Self {
            client,
            free: Vec::new(),
            is_short: false,
            uses_reserve: false,
            chunk: Vec::new(),
            read: Vec::new(),
            slabs: BTreeMap::new(),
            landed: Vec::new(),
            under_way: 0,
            reads: 0,
            waited: 0,
            rounds: 0,
            writes: 0,
            bytes: 0,
        }
    }

    /// Writes a chunk's bytes to where there is room; answers where.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<VirtAddr, Error> {
        let mut last = None;
        for _ in 0..TRIES {
            let at = self.room()?;
            match self.write(at, bytes) {
                Ok(()) => {
                    *self.slabs.get_mut(&slab_of(at)).expect("chunks are of an allocation") += 1;
                    self.writes += 1;
                    self.bytes += bytes.len() as u64;
                    return Ok(at);
                }
                // The node may be gone: what is free there is of no use.
                Err(error) => {
                    self.free.push(at);
                    self.abandon(slab_of(at));
                    last = Some(error);
                }
            }
        }
        Err(last.expect("it was tried"))
    }

    fn write(&mut self, addr: VirtAddr, bytes: &[u8]) -> Result<(), Error> {
        let mut buf = std::mem::take(&mut self.chunk);
        buf.clear();
        buf.extend_from_slice(bytes);
        let ticket = self.client.submit(Op::Write { addr, buf })?;
        let done = self.client.wait(ticket)?;
        self.chunk = done.buf;
        done.result.map(drop)
    }

    /// Nothing more is put into an allocation; one that nothing is in goes.
    fn abandon(&mut self, slab: u64) {
        self.free.retain(|free| slab_of(*free) != slab);
        if self.slabs.get(&slab) == Some(&0) {
            self.slabs.remove(&slab);
            let _gone_with_its_node = self.client.free(VirtAddr(slab));
        }
    }

    /// Whether what is put from now on may take the last places.
    pub(crate) const fn use_reserve(&mut self, may: bool) {
        self.uses_reserve = may;
    }

    /// All allocations go: nothing of this server is far any more.
    pub(crate) fn free_all(&mut self) {
        self.free.clear();
        for slab in std::mem::take(&mut self.slabs).into_keys() {
            let _gone_with_its_node = self.client.free(VirtAddr(slab));
        }
    }

    /// Frees what a process before this one had in this client's domain, which is its own; how many allocations.
    ///
    /// # Errors
    /// What the control plane says.
    pub(crate) fn free_earlier(&mut self, domain: &str) -> Result<usize, Error> {
        let overview = self.client.overview()?;
        let number = overview.domains.iter().find(|(_, name)| name == domain).map(|(number, _)| *number);
        let earlier: Vec<u64> =
            overview.vmas.iter().filter(|vma| Some(vma.domain) == number).map(|vma| vma.base).collect();
        for base in &earlier {
            self.client.free(VirtAddr(*base))?;
        }
        Ok(earlier.len())
    }

    /// A chunk's place is free again.
    pub(crate) fn give_back(&mut self, at: VirtAddr) {
        let slab = slab_of(at);
        let used = self.slabs.get_mut(&slab).expect("chunks are of an allocation");
        *used -= 1;
        self.free.push(at);
        // One empty allocation is kept: data that comes and goes would allocate each time.
        if *used == 0 && self.free.len() >= 2 * TOGETHER {
            self.abandon(slab);
        }
    }

    /// Reads `len` bytes in one READ.
    pub(crate) fn read(&mut self, at: VirtAddr, len: usize) -> Result<Vec<u8>, Error> {
        self.read_all(&[(at, len)]).pop().expect("one was asked for")
    }

    /// Reads a chunk, and waits for it.
    pub(crate) fn read_chunk(&mut self, addr: VirtAddr, len: usize) -> Result<Vec<u8>, Error> {
        let mut buf = std::mem::take(&mut self.read);
        buf.resize(len, 0);
        let ticket = self.client.submit(Op::Read { addr, buf })?;
        self.reads += 1;
        self.rounds += 1;
        let done = self.client.wait(ticket)?;
        match done.result {
            Ok(_) => {
                self.bytes += len as u64;
                Ok(done.buf)
            }
            Err(error) => {
                self.read = done.buf;
                Err(error)
            }
        }
    }

    /// Takes the buffer of a chunk that was read, for the next one.
    pub(crate) fn keep_chunk(&mut self, buf: Vec<u8>) {
        self.read = buf;
    }

    /// Reads several ranges, all under way at once; what came of each, in turn.
    pub(crate) fn read_all(&mut self, ranges: &[(VirtAddr, usize)]) -> Vec<Result<Vec<u8>, Error>> {
        self.begin(ranges).into_iter().map(|reading| self.end(reading)).collect()
    }

    /// Begins to read several ranges; [`Far::end`] has what comes of each.
    pub(crate) fn begin(&mut self, ranges: &[(VirtAddr, usize)]) -> Vec<Reading> {
        let begun = ranges.iter().map(|&(addr, len)| {
            let buf = self.client.buffer(len);
            self.client.submit(Op::Read { addr, buf })
        });
        let begun: Vec<Reading> = begun.collect();
        let begun_well = begun.iter().filter(|reading| reading.is_ok()).count();
        self.under_way += begun_well;
        self.reads += begun_well as u64;
        self.rounds += u64::from(!ranges.is_empty());
        // They leave now, and not when they are waited for.
        self.take_in();
        begun
    }

    /// What came of a READ; waits for it when it is not here yet.
    pub(crate) fn end(&mut self, reading: Reading) -> Result<Vec<u8>, Error> {
        let ticket = reading?;
        let here = |far: &Self| far.landed.iter().position(|done| done.ticket == ticket);
        let at = here(self).or_else(|| {
            self.take_in();
            here(self)
        });
        let done = match at {
            Some(at) => self.landed.swap_remove(at),
            None => {
                self.waited += 1;
                self.under_way = self.under_way.saturating_sub(1);
                self.client.wait(ticket)?
            }
        };
        done.result?;
        self.bytes += done.buf.len() as u64;
        Ok(done.buf)
    }

    /// Takes in what has come, and sends what is to be sent.
    fn take_in(&mut self) {
        // A link that failed is told to whoever waits for a READ.
        while let Ok(Some(done)) = self.client.poll() {
            self.landed.push(done);
            self.under_way = self.under_way.saturating_sub(1);
        }
    }

    /// A buffer that [`Far::read`] gave out is used again.
    pub(crate) fn recycle(&mut self, buf: Vec<u8>) {
        // The client keeps some: long ones would take much of local memory.
        if buf.capacity() <= KEPT_MAX {
            self.client.recycle(buf);
        }
    }

    /// Bytes that are allocated.
    pub(crate) fn allocated(&self) -> usize {
        self.slabs.len() * TOGETHER * CHUNK
    }

    fn room(&mut self) -> Result<VirtAddr, Error> {
        if self.free.len() <= RESERVE {
            let allocated = self.client.allocate((TOGETHER * CHUNK) as u64);
            self.is_short = allocated.is_err();
            match allocated {
                Ok(vma) => {
                    self.slabs.insert(vma.base.0, 0);
                    let places =
                        (0..TOGETHER).rev().map(|number| VirtAddr(vma.base.0 + (number * CHUNK) as u64));
                    self.free.splice(0..0, places);
                }
                Err(error) if !self.uses_reserve || self.free.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(self.free.pop().expect("there is one, or there was an error"))
    }
}

/// The allocation that a chunk is of: allocations lie at multiples of their length.
fn slab_of(at: VirtAddr) -> u64 {
    at.0 & !((TOGETHER * CHUNK) as u64 - 1)
}
