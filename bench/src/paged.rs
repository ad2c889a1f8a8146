//! A host that caches pages of far memory and runs all traversals locally: the cache-based system that PULSE
//! compares with (PULSE 6).
//!
//! Key type: [`Paged`], which implements far memory, so that the same structures and programs run on it. One
//! READ fetches a missing page. A modified page is written back on eviction, by a WRITE that no job waits
//! for, together with other old pages, as a kernel's reclaim does. Fetches of pages that one access spans go
//! out together. Calls of [`FarMemory`] wait for each fetch, like a faulting thread; [`Concurrent`] calls
//! overlap their fetches.
//!
//! Only one host may use the memory at a time: others see changes only after they are written back
//! ([`Paged::flush`]).

use crate::native::Native;
use crate::page_cache::{Evicted, PAGE_LEN, Page, Pages};
use farmem::dispatch::run_over_reads;
use farmem::task::{Concurrent, carry_out};
use farmem::{
    Answer, Client, Completed, Dispatched, Error, FarMemory, Op, Policy, Program, Site, Ticket, VirtAddr,
    forward_far_memory,
};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};

mod access;

use access::{Access, Blocked};

/// Old dirty pages written back together with an evicted one.
const WRITE_BACK_BATCH: usize = 16;
/// Bound on the write-backs in flight; a further one waits for the first.
const WRITE_BACKS_MAX: usize = 64;

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

/// Far memory through a cache of pages.
pub struct Paged {
    client: Client,
    pages: Pages,
    native: Native,
    /// Fetches in flight.
    fetches: BTreeMap<Ticket, Page>,
    /// Requested pages, with the jobs that wait for them.
    wanted: BTreeMap<Page, Vec<usize>>,
    /// Requested pages without room: all room is taken by pages in flight.
    without_room: VecDeque<Page>,
    write_backs: usize,
    /// Jobs by slot. A job keeps its slot until its completion is taken; `None` after its end.
    jobs: Slab<Option<Job>>,
    submitted: u64,
    /// Jobs that wait for pages.
    waiting: usize,
    /// Completions not yet taken, with their slots.
    ended: VecDeque<(usize, Completed)>,
    counts: PageCounts,
    failed: Option<Error>,
}

impl core::fmt::Debug for Paged {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Paged").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Paged {
    /// Creates an empty cache of `bytes` in front of the far memory of `client`, which has nothing
    /// outstanding.
    ///
    /// # Panics
    /// Panics when `bytes` is less than a page.
    #[must_use]
    pub fn new(client: Client, bytes: u64) -> Self {
        Self {
            client,
            pages: Pages::new(bytes),
            native: Native::new(),
            fetches: BTreeMap::new(),
            wanted: BTreeMap::new(),
            without_room: VecDeque::new(),
            write_backs: 0,
            jobs: Slab::new(),
            submitted: 0,
            waiting: 0,
            ended: VecDeque::new(),
            counts: PageCounts::default(),
            failed: None,
        }
    }

    /// Returns the capacity in pages.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pages.capacity()
    }

    /// Returns the client. Modified pages that were not flushed are lost.
    #[must_use]
    pub fn into_client(self) -> Client {
        self.client
    }

    /// Returns the counters so far.
    #[must_use]
    pub const fn counts(&self) -> PageCounts {
        self.counts
    }

    /// Writes back all modified pages, so that others see them. The pages stay.
    ///
    /// # Errors
    /// [`Error`] when far memory refuses a write.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.write_back_oldest(usize::MAX)?;
        while self.write_backs > 0 {
            self.turn()?;
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Runs an access to its end, waiting for each missing page.
    fn carry_out(&mut self, op: Op) -> Result<Access, Error> {
        let mut access = Access::of(op, &self.native);
        loop {
            match access.advance(&mut self.pages) {
                Ok(()) => return Ok(access),
                Err(Blocked::Pages { first, last: _ }) => self.fetch_now(first)?,
                Err(Blocked::Never(error)) => return Err(error),
            }
        }
    }

    fn fetch_now(&mut self, page: Page) -> Result<(), Error> {
        self.want(page, None)?;
        while self.wanted.contains_key(&page) {
            self.turn()?;
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Continues a job as far as possible.
    fn go_on(&mut self, place: usize) -> Result<(), Error> {
        let job = self.jobs[place].as_mut().expect("a job that waits for a page is there");
        match job.access.advance(&mut self.pages) {
            Ok(()) => self.end(place, None),
            Err(Blocked::Never(error)) => self.end(place, Some(error)),
            Err(Blocked::Pages { first, last }) => {
                self.want(first, Some(place))?;
                // The following pages that the access needs are fetched along with the first.
                for number in first.0 + 1..=last.0 {
                    if self.pages.get(Page(number)).is_none() {
                        self.want(Page(number), None)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, place: usize, error: Option<Error>) {
        let Job { ticket, access } = self.jobs[place].take().expect("a job ends once");
        self.waiting -= 1;
        let (answer, buf) = access.into_answer();
        let result = error.map_or(Ok(answer), Err);
        self.ended.push_back((place, Completed { ticket, result, buf }));
    }

    /// Requests a page, for a job or for none in particular.
    fn want(&mut self, page: Page, job: Option<usize>) -> Result<(), Error> {
        let asked = self.wanted.contains_key(&page);
        self.wanted.entry(page).or_default().extend(job);
        if asked { Ok(()) } else { self.fetch(page) }
    }

    /// Fetches a page when there is room for it.
    fn fetch(&mut self, page: Page) -> Result<(), Error> {
        if self.pages.len() + self.fetches.len() >= self.pages.capacity() && !self.make_room()? {
            self.without_room.push_back(page);
            return Ok(());
        }
        let buf = self.client.buffer(PAGE_LEN);
        let ticket = self.client.submit(Op::Read { addr: page.addr(), buf })?;
        self.fetches.insert(ticket, page);
        Ok(())
    }

    /// Evicts the oldest page. Returns false when there is none.
    fn make_room(&mut self) -> Result<bool, Error> {
        let Some(Evicted { page, dirty }) = self.pages.evict() else { return Ok(false) };
        if let Some(bytes) = dirty {
            // On one connection, a READ of the page sees the earlier WRITE.
            write_back(&mut self.client, page, bytes)?;
            self.counts.written_back += 1;
            self.write_backs += 1;
            self.write_back_oldest(WRITE_BACK_BATCH)?;
        }
        while self.write_backs > WRITE_BACKS_MAX {
            self.turn()?;
        }
        Ok(true)
    }

    /// Writes back the dirty ones among the `most` oldest pages.
    fn write_back_oldest(&mut self, most: usize) -> Result<(), Error> {
        let mut failed = Ok(());
        let (client, mut written) = (&mut self.client, 0);
        self.pages.clean_oldest(most, |page, bytes| {
            if failed.is_ok() {
                failed = write_back(client, page, bytes);
                written += 1;
            }
        });
        self.counts.written_back += written as u64;
        self.write_backs += written;
        failed
    }

    /// Waits until a fetch or write-back ends, and processes it.
    fn turn(&mut self) -> Result<(), Error> {
        let completed =
            self.client.next_completed()?.expect("a fault that waits for a page has requested it");
        self.landed(completed)?;
        while let Some(completed) = self.client.poll_ended() {
            self.landed(completed)?;
        }
        Ok(())
    }

    fn landed(&mut self, completed: Completed) -> Result<(), Error> {
        let Some(page) = self.fetches.remove(&completed.ticket) else {
            self.write_backs -= 1;
            self.client.recycle(completed.buf);
            if let Err(error) = completed.result {
                // The owner of the change is no longer known: the next call reports the loss.
                self.failed.get_or_insert(error);
            }
            return Ok(());
        };
        let jobs = self.wanted.remove(&page).unwrap_or_default();
        match completed.result {
            Ok(_) => {
                self.counts.fetched += 1;
                self.pages.fill(page, &completed.buf);
            }
            Err(error) if jobs.is_empty() => drop(self.failed.get_or_insert(error)),
            Err(error) => {
                // All waiting jobs need this page, so none of them can continue; one gets the cause.
                let mut error = Some(error);
                for &place in &jobs {
                    let why = error.take().unwrap_or(Error::Interrupted);
                    self.end(place, Some(why));
                }
            }
        }
        self.client.recycle(completed.buf);
        for place in jobs {
            if self.jobs.get(place).is_some_and(Option::is_some) {
                self.go_on(place)?;
            }
        }
        // The landed page was used, so it can be evicted.
        match self.without_room.pop_front() {
            Some(page) => self.fetch(page),
            None => Ok(()),
        }
    }
}

fn write_back(client: &mut Client, page: Page, bytes: &[u8]) -> Result<(), Error> {
    let mut buf = client.buffer(0);
    buf.extend_from_slice(bytes);
    client.submit(Op::Write { addr: page.addr(), buf }).map(drop)
}

impl FarMemory for Paged {
    forward_far_memory!(client: allocate, allocate_on, nodes, buffer, recycle);

    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        // The fast path: all bytes in one cached page, without allocation.
        let (page, at) = Page::of(addr);
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
        while self.pages.evict().is_some() {}
        self.client.free(base)
    }
}

impl Concurrent for Paged {
    /// Runs a traversal locally, whatever its policy, as far as its pages are cached.
    fn submit(&mut self, op: Op) -> Result<Ticket, Error> {
        let place = self.jobs.insert(None);
        self.submitted += 1;
        let ticket = Ticket::at(self.submitted, place);
        match op {
            // A storing traversal runs alone, so that its stores do not interleave with others on the same
            // page.
            Op::Traverse { program, cur_ptr, scratch, limit } if program.stores() => {
                let op = Op::Traverse { program, cur_ptr, scratch, limit };
                let completed = carry_out(self, op, &Policy::Host);
                self.ended.push_back((place, Completed { ticket, ..completed }));
            }
            op => {
                self.waiting += 1;
                self.jobs[place] = Some(Job { ticket, access: Access::of(op, &self.native) });
                self.go_on(place)?;
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
        let (place, completed) = self.ended.pop_front()?;
        self.jobs.remove(place);
        Some(completed)
    }
}
