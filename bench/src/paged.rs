//! A host that caches pages of far memory and runs all traversals locally: the cache-based system that PULSE
//! compares with (PULSE 6).
//!
//! Key type: [`Paged`], which implements far memory, so that the same structures and programs run on it. Which
//! pages are evicted and written back, and when, decides the page cache of farmem's own pagers ([`Cache`]):
//! pages come one by one, without prefetching. An access faults as a processor does, at a page table in this
//! process. Fetches of pages that one access spans go out together. Calls of [`FarMemory`] wait for each fetch,
//! like a faulting thread; [`Concurrent`] calls overlap their fetches.
//!
//! Only one host may use the memory at a time: others see changes only after they are written back
//! ([`Paged::flush`]).

mod access;
mod resident;

use crate::native::Native;
use access::{Access, Blocked, place};
use farmem::dispatch::run_over_reads;
use farmem::task::{Concurrent, carry_out};
use farmem::{
    Answer, Client, Completed, Dispatched, Error, FarMemory, Op, PAGE_LEN, Policy, Program, Site, Ticket,
    VirtAddr, forward_far_memory,
};
use farmem_paging::{Action, Ahead, Cache, Config, Key, Layout, Outcome, Source};
use farmem_wire::message::Page;
use resident::PageTable;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};

/// Pages written back by one WRITE at most.
const WRITE_BACK_PAGES: usize = 16;
/// Write-backs in flight at most.
const WRITE_BACKS_MAX: usize = 64;
/// One page of this many is inactive: evicted next, unless an access reactivates it.
const INACTIVE_PART: usize = 8;

/// All of far memory, each page at its address.
struct AllFar;

impl Layout for AllFar {
    fn source(&self, key: Key) -> Source {
        Source::Far(key.page)
    }

    fn home(&self, key: Key) -> Option<u64> {
        Some(key.page)
    }
}

/// The counters of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageCounts {
    /// Pages fetched.
    pub fetched: u64,
    /// Pages written back.
    pub written_back: u64,
}

/// An operation that waits for pages.
#[derive(Debug)]
struct Job {
    ticket: Ticket,
    access: Access,
}

/// A READ or WRITE of the cache.
#[derive(Clone, Copy, Debug)]
enum Transfer {
    Fetch(farmem_paging::Op),
    WriteBack(farmem_paging::Op),
}

/// Far memory through a cache of pages.
pub struct Paged {
    client: Client,
    cache: Cache,
    capacity: usize,
    pages: PageTable,
    native: Native,
    /// READs and WRITEs in flight.
    transfers: BTreeMap<Ticket, Transfer>,
    /// The bytes of fetches that have ended and are not installed yet.
    arrived: BTreeMap<farmem_paging::Op, Vec<u8>>,
    /// The errors of fetches that failed.
    refused: BTreeMap<Page, Error>,
    /// Actions of the cache that are not carried out yet.
    actions: VecDeque<Action>,
    /// Jobs by the page at which they faulted.
    faulted: BTreeMap<Page, Vec<usize>>,
    /// Jobs by slot. A job keeps its slot until its completion is taken; `None` after its end.
    jobs: Slab<Option<Job>>,
    submitted: u64,
    /// Jobs that wait for pages.
    waiting: usize,
    /// Completions not yet taken, with their slots.
    ended: VecDeque<(usize, Completed)>,
    failed: Option<Error>,
}

impl core::fmt::Debug for Paged {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Paged").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

const fn key(page: Page) -> Key {
    Key { space: 0, page: page.number() }
}

impl Paged {
    /// Creates an empty cache of `bytes` in front of the far memory of `client`, which has nothing
    /// outstanding. The cache holds at least two pages.
    #[must_use]
    pub fn new(client: Client, bytes: u64) -> Self {
        let frames = usize::try_from(bytes / PAGE_LEN as u64).expect("pages of this machine").max(2);
        let cache = Cache::new(Config {
            frames,
            inactive_max: (frames / INACTIVE_PART).max(1),
            inactive_apart: false,
            run_max: 1,
            batch_max: WRITE_BACK_PAGES,
            writing_max: WRITE_BACKS_MAX,
            tries_max: 1,
            ahead: Ahead::None,
            stream_writes: false,
        });
        Self {
            client,
            cache,
            capacity: frames,
            pages: PageTable::default(),
            native: Native::new(),
            transfers: BTreeMap::new(),
            arrived: BTreeMap::new(),
            refused: BTreeMap::new(),
            actions: VecDeque::new(),
            faulted: BTreeMap::new(),
            jobs: Slab::new(),
            submitted: 0,
            waiting: 0,
            ended: VecDeque::new(),
            failed: None,
        }
    }

    /// Returns the capacity in pages.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the client. Modified pages that were not flushed are lost.
    #[must_use]
    pub fn into_client(self) -> Client {
        self.client
    }

    /// Returns the counters so far.
    #[must_use]
    pub const fn counts(&self) -> PageCounts {
        let stats = self.cache.stats();
        PageCounts { fetched: stats.pages_fetched, written_back: stats.pages_written_back }
    }

    /// Writes back all modified pages, so that others see them. The pages stay.
    ///
    /// # Errors
    /// [`Error`] when far memory refuses a write.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.decide(Cache::flush)?;
        while !self.cache.is_quiet() && self.failed.is_none() {
            self.turn()?;
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Runs an access to its end, waiting at each fault.
    fn carry_out(&mut self, op: Op) -> Result<Access, Error> {
        let mut access = Access::of(op, &self.native);
        loop {
            match access.advance(&mut self.pages) {
                Ok(()) => return Ok(access),
                Err(Blocked::Pages { first, write, .. }) => self.fault_now(first, write)?,
                Err(Blocked::Never(error)) => return Err(error),
            }
        }
    }

    /// Waits until the page is mapped with the right that the access needs.
    fn fault_now(&mut self, page: Page, write: bool) -> Result<(), Error> {
        self.refused.remove(&page); // an earlier fault's
        self.fault(page, write)?;
        loop {
            let is_mapped =
                if write { self.pages.get_mut(page).is_some() } else { self.pages.get(page).is_some() };
            if let Some(error) = self.refused.remove(&page).or_else(|| self.failed.take()) {
                return Err(error);
            }
            if is_mapped {
                return Ok(());
            }
            self.turn()?;
        }
    }

    /// Reports a fault to the cache and carries out what the cache decides.
    fn fault(&mut self, page: Page, write: bool) -> Result<(), Error> {
        self.decide(|cache, layout, out| {
            cache.fault(key(page), write, layout, out);
            cache.turn(layout, out);
        })
    }

    /// Lets the cache decide, and carries out its actions in order. Jobs that continue meanwhile may fault: the
    /// actions for them come last.
    fn decide(&mut self, event: impl FnOnce(&mut Cache, &AllFar, &mut Vec<Action>)) -> Result<(), Error> {
        let mut out = Vec::new();
        event(&mut self.cache, &AllFar, &mut out);
        let is_busy = !self.actions.is_empty();
        self.actions.extend(out);
        // An outer call carries them out.
        while let Some(&action) = self.actions.front().filter(|_| !is_busy) {
            self.act(action)?;
            self.actions.pop_front();
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), Error> {
        let run = |first: Key, count: u32| (first.page..first.page + u64::from(count)).map(Page::numbered);
        match action {
            Action::Fetch { op, first, .. } => {
                let buf = self.client.buffer(PAGE_LEN);
                let ticket = self.client.submit(Op::Read { addr: Page::numbered(first.page).addr(), buf })?;
                self.transfers.insert(ticket, Transfer::Fetch(op));
            }
            Action::WriteBack { op } => {
                let (mut buf, mut first) = (self.client.buffer(0), None);
                for page in self.cache.pages_of(op).map(|key| Page::numbered(key.page)) {
                    first.get_or_insert(page);
                    buf.extend_from_slice(self.pages.bytes(page));
                }
                let addr = first.expect("a write-back has pages").addr();
                let ticket = self.client.submit(Op::Write { addr, buf })?;
                self.transfers.insert(ticket, Transfer::WriteBack(op));
            }
            Action::Install { op, first, access, .. } => {
                let bytes = self.arrived.remove(&op).expect("the fetch has ended");
                self.pages.install(Page::numbered(first.page), bytes, access);
                self.wake(Page::numbered(first.page))?;
            }
            Action::Map { key, access } => {
                self.pages.set(Page::numbered(key.page), Some(access));
                self.wake(Page::numbered(key.page))?;
            }
            Action::Allow { first, count } => {
                for page in run(first, count) {
                    self.pages.set(page, Some(farmem_wire::message::Access::Modified));
                    self.wake(page)?;
                }
            }
            Action::Deactivate { first, count } => {
                run(first, count).for_each(|page| self.pages.set(page, None));
            }
            Action::Discard { key } => {
                if let Some(bytes) = self.pages.remove(Page::numbered(key.page)) {
                    self.client.recycle(bytes);
                }
            }
            Action::Wake { key } => self.wake(Page::numbered(key.page))?,
            Action::Poison { key, .. } => self.poison(Page::numbered(key.page)),
            Action::Zeros { .. } | Action::Copy { .. } | Action::Keep { .. } => {
                unreachable!("all pages are in far memory: {action:?}")
            }
        }
        Ok(())
    }

    /// Continues the jobs that wait for a page.
    fn wake(&mut self, page: Page) -> Result<(), Error> {
        let jobs = self.faulted.remove(&page).unwrap_or_default();
        jobs.into_iter().try_for_each(|job| self.go_on(job))
    }

    /// Ends the jobs that wait for a page that cannot be fetched; one gets the cause. Without jobs a call waits,
    /// and takes the cause itself.
    fn poison(&mut self, page: Page) {
        let jobs = self.faulted.remove(&page).unwrap_or_default();
        if jobs.is_empty() {
            let error = self.failed.take().unwrap_or(Error::Interrupted);
            self.refused.entry(page).or_insert(error);
            return;
        }
        let mut error = self.refused.remove(&page).or_else(|| self.failed.take());
        for job in jobs {
            self.end(job, Some(error.take().unwrap_or(Error::Interrupted)));
        }
    }

    /// Continues a job as far as possible.
    fn go_on(&mut self, slot: usize) -> Result<(), Error> {
        let job = self.jobs[slot].as_mut().expect("a job that waits for a page is there");
        match job.access.advance(&mut self.pages) {
            Ok(()) => self.end(slot, None),
            Err(Blocked::Never(error)) => self.end(slot, Some(error)),
            Err(Blocked::Pages { first, last, write }) => {
                self.faulted.entry(first).or_default().push(slot);
                self.fault(first, write)?;
                // The following pages that the access needs are fetched along with the first.
                for page in (first.number() + 1..=last.number()).map(Page::numbered) {
                    if self.pages.get(page).is_none() {
                        self.fault(page, write)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, slot: usize, error: Option<Error>) {
        let Job { ticket, access } = self.jobs[slot].take().expect("a job ends once");
        self.waiting -= 1;
        let (answer, buf) = access.into_answer();
        let result = error.map_or(Ok(answer), Err);
        self.ended.push_back((slot, Completed { ticket, result, buf }));
    }

    /// Waits until a READ or WRITE of the cache ends, and processes all that have ended.
    fn turn(&mut self) -> Result<(), Error> {
        if self.transfers.is_empty() {
            return self.decide(Cache::turn);
        }
        let completed = self.client.next_completed()?.expect("a transfer is in flight");
        self.landed(completed)?;
        while let Some(completed) = self.client.poll_ended() {
            self.landed(completed)?;
        }
        Ok(())
    }

    fn landed(&mut self, Completed { ticket, result, buf }: Completed) -> Result<(), Error> {
        match (self.transfers.remove(&ticket).expect("a transfer of the cache"), result) {
            (Transfer::Fetch(op), Ok(_)) => {
                self.arrived.insert(op, buf);
                self.decide(|cache, layout, out| cache.fetched(op, Outcome::Done, layout, out))?;
                // Nothing installs a page that was removed meanwhile.
                self.arrived.remove(&op);
                Ok(())
            }
            (Transfer::Fetch(op), Err(error)) => {
                if let Some(key) = self.cache.pages_of(op).next() {
                    self.refused.insert(Page::numbered(key.page), error);
                }
                self.client.recycle(buf);
                self.decide(|cache, layout, out| cache.fetched(op, Outcome::Refused, layout, out))
            }
            (Transfer::WriteBack(op), result) => {
                self.client.recycle(buf);
                let outcome = if result.is_ok() { Outcome::Done } else { Outcome::Failed };
                if let Err(error) = result {
                    // The owner of the change is no longer known: the next call reports the loss.
                    self.failed.get_or_insert(error);
                }
                self.decide(|cache, layout, out| cache.written_back(op, outcome, layout, out))
            }
        }
    }
}

impl FarMemory for Paged {
    forward_far_memory!(client: allocate, allocate_on, nodes, buffer, recycle);

    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        // The fast path: all bytes in one cached page, without allocation.
        let (page, at) = place(addr);
        if let Some(bytes) = self.pages.get(page).and_then(|bytes| bytes.get(at..at + into.len())) {
            into.copy_from_slice(bytes);
            return Ok(());
        }
        let buf = self.client.buffer(into.len());
        let (_, buf) = self.carry_out(Op::Read { addr, buf })?.into_answer();
        into.copy_from_slice(&buf);
        self.client.recycle(buf);
        Ok(())
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        let mut buf = self.client.buffer(0);
        buf.extend_from_slice(data);
        let (_, buf) = self.carry_out(Op::Write { addr, buf })?.into_answer();
        self.client.recycle(buf);
        Ok(())
    }

    fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        Ok(self.carry_out(Op::CompareSwap { addr, compare, swap })?.old())
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error> {
        Ok(self.carry_out(Op::FetchAdd { addr, add })?.old())
    }

    fn dispatch(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
        _everything_runs_here: &Policy,
    ) -> Result<Dispatched, Error> {
        if program.stores() {
            return run_over_reads(self, program, start, scratch, limit);
        }
        let op = Op::Traverse { program: program.clone(), cur_ptr: start, scratch, limit };
        match self.carry_out(op)?.into_answer() {
            (Answer::Traversed(end), scratch) => Ok(Dispatched { site: Site::Host, end, scratch }),
            (other @ Answer::Done { .. }, _) => unreachable!("a traversal does not answer {other:?}"),
        }
    }

    /// Frees memory and empties the cache: a later allocation at the same address has other bytes.
    fn free(&mut self, base: VirtAddr) -> Result<(), Error> {
        self.flush()?;
        self.cache.remove_space(0);
        self.pages.clear();
        self.client.free(base)
    }
}

impl Concurrent for Paged {
    /// Runs a traversal locally, whatever its policy, as far as its pages are cached.
    fn submit(&mut self, op: Op) -> Result<Ticket, Error> {
        let slot = self.jobs.insert(None);
        self.submitted += 1;
        let ticket = Ticket::at(self.submitted, slot);
        match op {
            // A storing traversal runs alone, so that its stores do not interleave with others on the same
            // page.
            Op::Traverse { program, cur_ptr, scratch, limit } if program.stores() => {
                let op = Op::Traverse { program, cur_ptr, scratch, limit };
                let completed = carry_out(self, op, &Policy::Host);
                self.ended.push_back((slot, Completed { ticket, ..completed }));
            }
            op => {
                self.waiting += 1;
                self.jobs[slot] = Some(Job { ticket, access: Access::of(op, &self.native) });
                self.go_on(slot)?;
            }
        }
        Ok(ticket)
    }

    fn next_completed(&mut self) -> Result<Option<Completed>, Error> {
        while self.ended.is_empty() && self.waiting > 0 {
            self.turn()?;
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(self.poll_ended()),
        }
    }

    fn poll_ended(&mut self) -> Option<Completed> {
        let (slot, completed) = self.ended.pop_front()?;
        self.jobs.remove(slot);
        Some(completed)
    }
}
