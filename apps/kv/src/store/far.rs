//! The far memory of the log, in chunks.
//!
//! Key type: [`Far`]. An operation waits for a memory node for [`PATIENCE`] at most, and then fails while it is
//! still under way. Operations on allocations of that node fail at once from then on, so that a silent node
//! does not hold all clients up. A READ that nothing waits for finds out when an allocation answers again
//! ([`health`]).

mod health;

pub(crate) use health::is_withheld;

use super::place::CHUNK;
use farmem::{Client, Completed, Error, Op, Ticket, VirtAddr, Vma};
use health::{Fault, Health};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Chunks of one allocation.
const TOGETHER: usize = 64;
/// Free chunks that only compaction takes. A log full of dead records needs some room to make room.
const RESERVE: usize = 2;
/// Bytes of a buffer that is kept for the next READ.
const KEPT_MAX: usize = 16 << 10;
/// Longest wait for a memory node, and for an answer of the control plane: all clients wait meanwhile.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// Number of allocations that are probed together while one has a fault.
const PROBES_MAX: usize = 32;
/// Allocations that are tried for a chunk when nodes do not answer.
const TRIES: usize = 3;

/// A READ that is under way, or its error.
#[derive(Debug)]
pub(crate) struct PendingRead {
    /// The base of the allocation.
    slab: u64,
    begun: Result<Ticket, Error>,
}

/// An allocation of far memory.
#[derive(Default, Debug)]
struct Slab {
    /// Chunks in use.
    used: usize,
    /// The fault of the last operation.
    fault: Option<Fault>,
}

/// The memory of a rack, as one client has it.
#[derive(Debug)]
pub(crate) struct Far {
    client: Client,
    free: Vec<VirtAddr>,
    /// The last request for memory failed.
    pub(crate) is_short: bool,
    /// The reserve may be used: compaction frees more than it takes.
    uses_reserve: bool,
    /// A buffer for the next WRITE of a chunk.
    chunk: Vec<u8>,
    /// A buffer for the next READ of a whole chunk. New memory for each would cost more than the READ.
    read: Vec<u8>,
    slabs: BTreeMap<u64, Slab>,
    /// Allocations to free, one in a turn, because the server waits for each request to the control plane.
    unwanted: Vec<u64>,
    pub(crate) health: Health,
    /// READs that have ended and whose bytes no command has taken yet.
    landed: Vec<Completed>,
    /// READs that have not ended.
    pub(crate) under_way: usize,
    /// READs so far.
    pub(crate) reads: u64,
    /// READs that had not ended when a command needed them.
    pub(crate) waited: u64,
    /// Rounds of READs: those that were under way together count once.
    pub(crate) rounds: u64,
    /// WRITEs so far.
    pub(crate) writes: u64,
    /// Bytes of all READs and WRITEs.
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
            unwanted: Vec::new(),
            health: Health::new(),
            landed: Vec::new(),
            under_way: 0,
            reads: 0,
            waited: 0,
            rounds: 0,
            writes: 0,
            bytes: 0,
        }
    }

    /// Writes a chunk, and returns its address.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<VirtAddr, Error> {
        let mut last = None;
        for _ in 0..TRIES {
            let at = self.room()?;
            let written = self.write(at, bytes);
            self.note(slab_of(at), written.as_ref().err());
            match written {
                Ok(()) => {
                    self.slabs.get_mut(&slab_of(at)).expect("chunks are of an allocation").used += 1;
                    self.writes += 1;
                    self.bytes += bytes.len() as u64;
                    return Ok(at);
                }
                // The node may be gone, so its free chunks are not used.
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
        let done = self.wait(ticket, slab_of(addr))?;
        self.chunk = done.buf;
        done.result.map(drop)
    }

    /// Uses no more chunks of an allocation. Frees it if it is empty.
    fn abandon(&mut self, slab: u64) {
        self.free.retain(|free| slab_of(*free) != slab);
        if self.slabs.get(&slab).is_some_and(|slab| slab.used == 0) {
            self.slabs.remove(&slab);
            self.unwanted.push(slab);
        }
    }

    /// Sets whether the next WRITEs may use the reserve.
    pub(crate) const fn use_reserve(&mut self, may: bool) {
        self.uses_reserve = may;
    }

    /// Frees all allocations.
    pub(crate) fn free_all(&mut self) {
        self.free.clear();
        let unwanted = std::mem::take(&mut self.unwanted);
        for slab in std::mem::take(&mut self.slabs).into_keys().chain(unwanted) {
            let _gone_with_its_node = self.client.free(VirtAddr(slab));
        }
    }

    /// Frees the allocations of an earlier process in this client's domain, which no other process uses.
    /// Returns how many there were.
    ///
    /// # Errors
    ///
    /// The error of the control plane.
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

    /// Frees a chunk.
    pub(crate) fn give_back(&mut self, at: VirtAddr) {
        let slab = slab_of(at);
        let known = self.slabs.get_mut(&slab).expect("chunks are of an allocation");
        known.used -= 1;
        let (is_empty, has_fault) = (known.used == 0, known.fault.is_some());
        if !has_fault {
            self.free.push(at);
        }
        // One empty allocation is kept, because data that come and go would allocate each time.
        if is_empty && (has_fault || self.free.len() >= 2 * TOGETHER) {
            self.abandon(slab);
        }
    }

    /// Reads `len` bytes with one READ.
    pub(crate) fn read(&mut self, at: VirtAddr, len: usize) -> Result<Vec<u8>, Error> {
        self.read_all(&[(at, len)]).pop().expect("one was asked for")
    }

    /// Reads a chunk, and waits for it.
    pub(crate) fn read_chunk(&mut self, addr: VirtAddr, len: usize) -> Result<Vec<u8>, Error> {
        self.check(slab_of(addr))?;
        let mut buf = std::mem::take(&mut self.read);
        buf.resize(len, 0);
        let ticket = self.client.submit(Op::Read { addr, buf })?;
        self.reads += 1;
        self.rounds += 1;
        let done = self.wait(ticket, slab_of(addr))?;
        self.note(slab_of(addr), done.result.as_ref().err());
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

    /// Takes back the buffer of [`Far::read_chunk`].
    pub(crate) fn keep_chunk(&mut self, buf: Vec<u8>) {
        self.read = buf;
    }

    /// Reads several ranges at once, and returns the results in order.
    pub(crate) fn read_all(&mut self, ranges: &[(VirtAddr, usize)]) -> Vec<Result<Vec<u8>, Error>> {
        self.begin(ranges).into_iter().map(|pending| self.end(pending)).collect()
    }

    /// Begins to read several ranges. [`Far::end`] returns the result of each.
    pub(crate) fn begin(&mut self, ranges: &[(VirtAddr, usize)]) -> Vec<PendingRead> {
        let begin = |&(addr, len): &(VirtAddr, usize)| {
            let slab = slab_of(addr);
            let begun = self.check(slab).and_then(|()| {
                let buf = self.client.buffer(len);
                self.client.submit(Op::Read { addr, buf })
            });
            PendingRead { slab, begun }
        };
        let begun: Vec<PendingRead> = ranges.iter().map(begin).collect();
        let begun_well = begun.iter().filter(|pending| pending.begun.is_ok()).count();
        self.under_way += begun_well;
        self.reads += begun_well as u64;
        self.rounds += u64::from(!ranges.is_empty());
        // The READs leave now, and not when a command waits for them.
        self.take_in();
        begun
    }

    /// Returns the result of a READ, and waits for it if it has not ended.
    pub(crate) fn end(&mut self, pending: PendingRead) -> Result<Vec<u8>, Error> {
        let ticket = pending.begun?;
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
                self.wait(ticket, pending.slab)?
            }
        };
        self.note(pending.slab, done.result.as_ref().err());
        done.result?;
        self.bytes += done.buf.len() as u64;
        Ok(done.buf)
    }

    /// Waits for an operation on an allocation, unless its node has been silent since the operation began. An
    /// operation that has not ended in time goes on as a probe of the allocation.
    fn wait(&mut self, ticket: Ticket, slab: u64) -> Result<Completed, Error> {
        let silent = match self.check(slab) {
            Err(silent) => silent,
            Ok(()) => match self.client.wait_for(ticket, PATIENCE)? {
                Some(done) => return Ok(done),
                None => self.note_silence(slab),
            },
        };
        self.health.goes_on(ticket, slab);
        Err(silent)
    }

    /// Receives arrived frames, and sends waiting ones.
    fn take_in(&mut self) {
        // A READ reports the failure of its link.
        while let Ok(Some(done)) = self.client.poll() {
            if let Some(slab) = self.health.probed(done.ticket) {
                self.note(slab, done.result.as_ref().err());
                self.recycle(done.buf);
                continue;
            }
            self.landed.push(done);
            self.under_way = self.under_way.saturating_sub(1);
        }
    }

    /// Takes back a buffer of a READ.
    pub(crate) fn recycle(&mut self, buf: Vec<u8>) {
        // The client keeps some buffers, and long ones would take much of local memory.
        if buf.capacity() <= KEPT_MAX {
            self.client.recycle(buf);
        }
    }

    /// Returns the bytes that are allocated.
    pub(crate) fn allocated(&self) -> usize {
        self.slabs.len() * TOGETHER * CHUNK
    }

    fn room(&mut self) -> Result<VirtAddr, Error> {
        if self.free.len() <= RESERVE {
            let allocated = self.allocate();
            self.is_short = allocated.is_err();
            match allocated {
                Ok(vma) => {
                    self.slabs.insert(vma.base.0, Slab::default());
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

    /// Refuses an operation on an allocation that does not answer.
    fn check(&self, slab: u64) -> Result<(), Error> {
        match self.slabs.get(&slab).and_then(|slab| slab.fault.as_ref()) {
            Some(Fault::Silent(what)) => Err(Error::Unreachable { what: what.clone() }),
            Some(Fault::Lost) | None => Ok(()),
        }
    }

    /// Notes how an operation on an allocation ended.
    fn note(&mut self, slab: u64, error: Option<&Error>) {
        self.health.errors += u64::from(error.is_some());
        let Some(known) = self.slabs.get_mut(&slab) else { return };
        let fault = match error {
            None => None,
            Some(Error::MemoryLost { .. }) => Some(Fault::Lost),
            Some(Error::Unreachable { what }) => Some(Fault::Silent(what.clone())),
            // The next operation may succeed.
            Some(_) => return,
        };
        let kind = |fault: &Option<Fault>| fault.as_ref().map(std::mem::discriminant);
        if kind(&fault) == kind(&known.fault) {
            return;
        }
        let bytes = known.used * CHUNK;
        let (changed, what) = match &fault {
            Some(Fault::Lost) => {
                self.health.lost_bytes += bytes as u64;
                (&mut self.health.lost, error)
            }
            Some(Fault::Silent(_)) => (&mut self.health.silent, error),
            None => (&mut self.health.back, None),
        };
        changed.bytes += bytes;
        if let Some(error) = what {
            changed.error = error.to_string();
        }
        known.fault = fault;
    }

    /// Notes that the memory node of an allocation did not answer in time, for all allocations on that node. Returns
    /// the error.
    fn note_silence(&mut self, slab: u64) -> Error {
        let name = |far: &Self, slab: u64| far.client.name_of_node_at(VirtAddr(slab));
        let node = name(self, slab);
        let what =
            node.as_ref().map_or_else(|| "far memory".to_owned(), |node| format!("memory node {node}"));
        let error = Error::Unreachable { what };
        let same: Vec<u64> =
            self.slabs.keys().copied().filter(|&other| other == slab || name(self, other) == node).collect();
        for same in same {
            self.note(same, Some(&error));
            self.abandon(same);
        }
        error
    }

    /// Returns the bytes stored in allocations whose last operation got no answer.
    pub(crate) fn silent_bytes(&self) -> usize {
        let silent = self.slabs.values().filter(|slab| matches!(slab.fault, Some(Fault::Silent(_))));
        silent.map(|slab| slab.used * CHUNK).sum()
    }

    /// Reads a word of one allocation, and of many while one has a fault; nothing waits for the answers.
    pub(crate) fn probe(&mut self) {
        self.take_in();
        let has_fault = self.slabs.values().any(|slab| slab.fault.is_some());
        let most = if has_fault { PROBES_MAX } else { 1 };
        let from = self.health.probed + 1;
        let next = self.slabs.range(from..).chain(self.slabs.range(..from));
        let next = next.filter(|(base, slab)| {
            let is_under_way = self.health.probes.values().any(|probed| probed == *base);
            // Lost memory stays lost.
            slab.used > 0 && slab.fault != Some(Fault::Lost) && !is_under_way
        });
        let next: Vec<u64> =
            next.map(|(&base, _)| base).take(most - self.health.probes.len().min(most)).collect();
        for base in next {
            self.health.probed = base;
            let buf = self.client.buffer(size_of::<u64>());
            match self.client.submit(Op::Read { addr: VirtAddr(base), buf }) {
                Ok(ticket) => _ = self.health.probes.insert(ticket, base),
                Err(error) => self.note(base, Some(&error)),
            }
        }
        self.take_in();
    }

    /// Asks the control plane for memory, unless it did not answer a moment ago.
    fn allocate(&mut self) -> Result<Vma, Error> {
        if self.health.is_paused() {
            return Err(Error::Unreachable { what: self.health.refusal.clone() });
        }
        let begun = Instant::now();
        let allocated = loop {
            let allocated = self.client.allocate((TOGETHER * CHUNK) as u64);
            match &allocated {
                Err(error) if !is_withheld(error) && self.has_unwanted() => self.free_one(),
                _ => break allocated,
            }
        };
        self.health.note_answer(begun, allocated.as_ref().err());
        allocated
    }

    /// Returns whether an allocation must be freed, and the control plane may be asked.
    pub(crate) fn has_unwanted(&self) -> bool {
        !self.unwanted.is_empty() && !self.health.is_paused()
    }

    /// Frees one unused allocation.
    pub(crate) fn free_one(&mut self) {
        if !self.has_unwanted() {
            return;
        }
        let Some(slab) = self.unwanted.pop() else { return };
        let begun = Instant::now();
        // An allocation whose free is refused was lost with its node.
        let freed = self.client.free(VirtAddr(slab));
        self.health.note_answer(begun, freed.as_ref().err());
        if self.health.is_paused() {
            self.unwanted.push(slab);
        }
    }
}

/// Returns the allocation of a chunk. Allocations lie at multiples of their length.
fn slab_of(at: VirtAddr) -> u64 {
    at.0 & !((TOGETHER * CHUNK) as u64 - 1)
}
