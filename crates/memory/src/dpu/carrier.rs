//! Carries out what a [`Dpu`] says, with one client: READs, WRITEs, copies out of slots and static memory.
//!
//! Key types: [`Memory`], what all carriers of a DPU share: its decisions, its slots, its static memory; [`Carrier`], one for each client, so one for each domain.
//! A request belongs to the carrier that took it, and so does what is to be done for it: an action that another carrier is told is put into that one's inbox.
//! The decisions are locked while they are asked for and never while bytes move.

use farmem_client::{Client, Completed, Error, Op, Ticket};
use farmem_dpu::{Action, Asker, Config, Dpu, Object, PageId, Policy, Read, Slot, Stats, Write};
use farmem_io::{Clock, Waker};
use farmem_machine::{Instant, Rng};
use farmem_paging::Cause;
use farmem_wire::VirtAddr;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What the carriers of one DPU share.
pub(crate) struct Memory {
    dpu: Mutex<Dpu>,
    page_len: usize,
    entry_len: usize,
    /// Each is made when something first comes into it.
    slots: Vec<RwLock<Vec<u8>>>,
    /// Static memory, by page.
    fixed: RwLock<BTreeMap<PageId, Arc<[u8]>>>,
    objects: RwLock<BTreeMap<u32, Extent>>,
    carriers: RwLock<Vec<Arc<Inbox>>>,
    /// Which carrier asks in whose name.
    askers: RwLock<BTreeMap<Asker, usize>>,
    clock: Clock,
}

/// Where an object is in far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) base: VirtAddr,
    pub(crate) bytes: u64,
}

/// What others found for a carrier to do.
#[derive(Default)]
struct Inbox {
    actions: Mutex<Vec<Action>>,
    /// Ends its wait; `None` of one that never waits for others.
    waker: Option<Waker>,
}

/// A request that a carrier took.
#[derive(Debug)]
struct Asked {
    addr: VirtAddr,
    /// Where it begins in its page, and its bytes.
    offset: usize,
    len: usize,
    /// The bytes of a write; of a read a buffer, or none yet.
    buf: Vec<u8>,
    error: Option<Error>,
}

/// What a verb of the client is for.
#[derive(Clone, Copy, Debug)]
enum Transfer {
    Demand { ticket: u64 },
    Load { slot: Slot, within: u32 },
    Fix { first: PageId },
    Write { ticket: u64 },
}

/// Where the bytes of a read that went well are.
#[derive(Debug)]
enum Source {
    Buffer,
    Slot { slot: Slot, at: Range<usize> },
    Fixed { page: Arc<[u8]>, at: Range<usize> },
}

/// A request ended. [`Carrier::finish`] or [`Carrier::collect`] takes it.
#[derive(Debug)]
pub(crate) struct AskEnded {
    pub(crate) ticket: u64,
    pub(crate) result: Result<(), Failed>,
    buf: Vec<u8>,
    source: Source,
}

impl AskEnded {
    /// It failed, and not because far memory said so.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.result, Err(Failed { cause: Cause::Failed, .. }))
    }
}

/// Why a request failed: for the protocol of rings, and for people.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) cause: Cause,
    /// What the client said; `None` when it was not asked.
    pub(crate) error: Option<Error>,
}

/// Tickets of a carrier have its number above so many bits.
const TICKET_BITS: u32 = 48;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Decisions panic only when an invariant is broken, and then this process ends; actions are values.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

macro_rules! read {
    ($lock:expr) => {
        $lock.read().unwrap_or_else(PoisonError::into_inner)
    };
}

macro_rules! write {
    ($lock:expr) => {
        $lock.write().unwrap_or_else(PoisonError::into_inner)
    };
}

impl Memory {
    /// The memory of a DPU that knows no object. `rng` chooses what is evicted.
    pub(crate) fn new(config: Config, rng: Rng) -> Arc<Self> {
        let page_len = config.page_len.get() as usize;
        Arc::new(Self {
            dpu: Mutex::new(Dpu::new(config, rng)),
            page_len,
            entry_len: page_len * config.table.entry_pages as usize,
            slots: (0..config.table.slots.get()).map(|_| RwLock::default()).collect(),
            fixed: RwLock::default(),
            objects: RwLock::default(),
            carriers: RwLock::default(),
            askers: RwLock::default(),
            clock: Clock::start(),
        })
    }

    /// The time, by the clock that transfers are measured with.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Bytes of a page.
    pub(crate) const fn page_len(&self) -> usize {
        self.page_len
    }

    /// What the DPU did so far.
    pub(crate) fn stats(&self) -> Stats {
        *lock(&self.dpu).stats()
    }

    /// An object is there, under a number that none had before.
    pub(crate) fn open(&self, number: u32, extent: Extent, writer: Option<Asker>, policy: Box<dyn Policy>) {
        write!(self.objects).insert(number, extent);
        lock(&self.dpu).open(number, Object { bytes: extent.bytes, writer, policy });
    }

    /// An object is closed: nothing of it is cached any more.
    pub(crate) fn close(&self, number: u32) {
        lock(&self.dpu).close(number);
        let pages = PageId { object: number, page: 0 }..=PageId { object: number, page: u64::MAX };
        // Copies that are under way have the page.
        let mut fixed = write!(self.fixed);
        let gone: Vec<PageId> = fixed.range(pages).map(|(&page, _)| page).collect();
        for page in gone {
            fixed.remove(&page);
        }
    }

    /// Another policy says from now on what is prefetched of the object.
    pub(crate) fn set_policy(&self, number: u32, policy: Box<dyn Policy>) -> bool {
        lock(&self.dpu).set_policy(number, policy)
    }

    /// Another policy says from now on what is prefetched of these bytes of the object; false as [`Dpu::advise`] says. Pages count that have one of them.
    pub(crate) fn advise(&self, number: u32, bytes: Range<u64>, policy: Box<dyn Policy>) -> bool {
        let len = self.page_len as u64;
        lock(&self.dpu).advise(number, bytes.start / len..bytes.end.div_ceil(len), policy)
    }

    /// Pages of an object that are in static memory.
    pub(crate) fn fixed_pages(&self, number: u32, pages: Range<u64>) -> u64 {
        let range = PageId { object: number, page: pages.start }..PageId { object: number, page: pages.end };
        read!(self.fixed).range(range).count() as u64
    }

    /// From now on requests of this process are the carrier's.
    pub(crate) fn belongs(&self, asker: Asker, carrier: usize) {
        write!(self.askers).insert(asker, carrier);
    }

    fn extent(&self, object: u32) -> Extent {
        read!(self.objects)[&object]
    }

    /// Bytes of a page: an object's last one may be shorter.
    pub(crate) fn len_of(&self, page: PageId) -> usize {
        let bytes = self.extent(page.object).bytes;
        let start = page.page.saturating_mul(self.page_len as u64);
        usize::try_from(bytes.saturating_sub(start)).map_or(self.page_len, |left| left.min(self.page_len))
    }

    fn addr(&self, page: PageId, offset: usize) -> VirtAddr {
        VirtAddr(self.extent(page.object).base.0 + page.page * self.page_len as u64 + offset as u64)
    }

    fn slot(&self, slot: Slot) -> &RwLock<Vec<u8>> {
        &self.slots[slot.0 as usize]
    }

    /// Bytes go into a slot.
    fn put(&self, slot: Slot, at: usize, bytes: &[u8]) {
        let mut slot = write!(self.slot(slot));
        slot.resize(self.entry_len, 0);
        slot[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl core::fmt::Debug for Memory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Memory").field("page_len", &self.page_len).finish_non_exhaustive()
    }
}

/// One client's requests of a DPU.
#[derive(Debug)]
pub(crate) struct Carrier<'a> {
    pub(crate) client: &'a mut Client,
    memory: Arc<Memory>,
    number: usize,
    next: u64,
    asked: BTreeMap<u64, Asked>,
    /// What the client has under way, and what the DPU calls it.
    under_way: Vec<(Ticket, u64, Transfer)>,
    /// Verbs that the client did not take.
    refused: Vec<(u64, Transfer, Error)>,
    actions: Vec<Action>,
    ended: VecDeque<AskEnded>,
}

impl<'a> Carrier<'a> {
    /// One carrier more of this memory. `waker` ends the wait of the client's link, where other carriers may find something for this one to do.
    pub(crate) fn new(client: &'a mut Client, memory: Arc<Memory>, waker: Option<Waker>) -> Self {
        let mut carriers = write!(memory.carriers);
        let number = carriers.len();
        carriers.push(Arc::new(Inbox { actions: Mutex::default(), waker }));
        drop(carriers);
        Self {
            client,
            memory,
            number,
            next: 0,
            asked: BTreeMap::new(),
            under_way: Vec::new(),
            refused: Vec::new(),
            actions: Vec::new(),
            ended: VecDeque::new(),
        }
    }

    /// Its number, for [`Memory::belongs`].
    pub(crate) const fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// A process reads `len` bytes of a page. `buf` has so many, or none: then one is taken when it is needed.
    pub(crate) fn read(
        &mut self,
        asker: Asker,
        page: PageId,
        at: Range<usize>,
        granted: bool,
        buf: Vec<u8>,
    ) -> u64 {
        let (ticket, bytes) = self.take(page, &at, buf);
        let read = Read { ticket, asker, page, bytes, granted };
        lock(&self.memory.dpu).read(self.memory.clock.now(), read, &mut self.actions);
        self.carry_out();
        ticket
    }

    /// A process writes bytes of a page, from `offset` on.
    pub(crate) fn write(&mut self, asker: Asker, page: PageId, offset: usize, buf: Vec<u8>) -> u64 {
        let whole = buf.len() == self.memory.len_of(page);
        let (ticket, bytes) = self.take(page, &(offset..offset + buf.len()), buf);
        let write = Write { ticket, asker, page, bytes, whole };
        lock(&self.memory.dpu).write(write, &mut self.actions);
        self.carry_out();
        ticket
    }

    /// Keeps pages in static memory; false when that cannot be ([`Dpu::fix`]).
    pub(crate) fn fix(&mut self, asker: Asker, object: u32, pages: Range<u64>) -> bool {
        let fixed = lock(&self.memory.dpu).fix(asker, object, pages, &mut self.actions);
        self.carry_out();
        fixed
    }

    fn take(&mut self, page: PageId, at: &Range<usize>, buf: Vec<u8>) -> (u64, u32) {
        self.next += 1;
        let ticket = (self.number as u64) << TICKET_BITS | self.next;
        let (addr, len) = (self.memory.addr(page, at.start), at.len());
        self.asked.insert(ticket, Asked { addr, offset: at.start, len, buf, error: None });
        (ticket, u32::try_from(len).expect("a part of a page"))
    }

    /// Takes what the client ended; gives back what is not this carrier's.
    pub(crate) fn took(&mut self, completed: Completed) -> Option<Completed> {
        let at = self.under_way.iter().position(|(ticket, ..)| *ticket == completed.ticket);
        let Some(at) = at else { return Some(completed) };
        let (_, op, transfer) = self.under_way.swap_remove(at);
        self.end(op, transfer, completed.result.map(|_| ()), completed.buf);
        self.carry_out();
        None
    }

    /// True while the client carries something out for the DPU.
    pub(crate) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Does what other carriers found for this one to do.
    pub(crate) fn look_into_inbox(&mut self) {
        let inbox = Arc::clone(&read!(self.memory.carriers)[self.number]);
        self.actions.append(&mut lock(&inbox.actions));
        self.carry_out();
    }

    /// The next request that ended.
    pub(crate) fn next_ended(&mut self) -> Option<AskEnded> {
        self.ended.pop_front()
    }

    /// Shows the bytes of a read that went well to `each`, where they are, and is done with the request. `has` says when the process has them, where that is
    /// not as soon as they are copied.
    pub(crate) fn finish(&mut self, ended: AskEnded, has: Option<Instant>, each: impl FnOnce(&[u8])) {
        let AskEnded { ticket, buf, source, .. } = ended;
        match source {
            Source::Buffer => each(&buf),
            Source::Slot { slot, at } => {
                let bytes = u32::try_from(at.len()).expect("a part of a page");
                each(&read!(self.memory.slot(slot))[at]);
                let now = has.unwrap_or_else(|| self.memory.now());
                lock(&self.memory.dpu).copied(now, ticket, bytes);
            }
            Source::Fixed { page, at } => each(&page[at]),
        }
        self.client.recycle(buf);
    }

    /// As [`Carrier::finish`]: the request's buffer, with the bytes of a read that went well.
    pub(crate) fn collect(&mut self, mut ended: AskEnded, len: usize) -> Vec<u8> {
        let mut buf = std::mem::take(&mut ended.buf);
        if let (Source::Buffer, _) | (_, Err(_)) = (&ended.source, &ended.result) {
            return buf;
        }
        buf.resize(len, 0);
        self.finish(ended, None, |bytes| buf.copy_from_slice(bytes));
        buf
    }

    fn carry_out(&mut self) {
        loop {
            let mut next = 0;
            while let Some(&action) = self.actions.get(next) {
                self.act(action);
                next += 1;
            }
            self.actions.clear();
            let Some((op, transfer, error)) = self.refused.pop() else { return };
            self.end(op, transfer, Err(error), Vec::new());
        }
    }

    /// Whose it is to carry an action out.
    fn carrier_of(&self, action: Action) -> usize {
        match action {
            Action::Load { asker, .. } | Action::Fix { asker, .. } => read!(self.memory.askers)[&asker],
            Action::Copy { ticket, .. }
            | Action::CopyFixed { ticket, .. }
            | Action::Read { ticket, .. }
            | Action::Write { ticket, .. }
            | Action::Put { ticket, .. }
            | Action::Answer { ticket, .. } => {
                usize::try_from(ticket >> TICKET_BITS).expect("a number of a carrier")
            }
        }
    }

    fn act(&mut self, action: Action) {
        let carrier = self.carrier_of(action);
        if carrier != self.number {
            let inbox = Arc::clone(&read!(self.memory.carriers)[carrier]);
            lock(&inbox.actions).push(action);
            if let Some(waker) = &inbox.waker {
                waker.wake();
            }
            return;
        }
        match action {
            Action::Read { op, ticket } => {
                let asked = self.asked.get_mut(&ticket).expect("the request is under way");
                let (addr, len, mut buf) = (asked.addr, asked.len, std::mem::take(&mut asked.buf));
                if buf.is_empty() {
                    buf = self.client.buffer(len);
                }
                self.verb(op, Op::Read { addr, buf }, Transfer::Demand { ticket });
            }
            Action::Load { op, first, count, slot, within, .. } => {
                let read = self.read_of(first, count);
                self.verb(op, read, Transfer::Load { slot, within });
            }
            Action::Fix { op, first, count, .. } => {
                let read = self.read_of(first, count);
                self.verb(op, read, Transfer::Fix { first });
            }
            Action::Write { op, ticket } => {
                let asked = self.asked.get_mut(&ticket).expect("the request is under way");
                let write = Op::Write { addr: asked.addr, buf: std::mem::take(&mut asked.buf) };
                self.verb(op, write, Transfer::Write { ticket });
            }
            Action::Copy { ticket, slot, within } => {
                let asked = &self.asked[&ticket];
                let from = within as usize * self.memory.page_len + asked.offset;
                self.ask_ended(ticket, Source::Slot { slot, at: from..from + asked.len }, Ok(()));
            }
            Action::CopyFixed { ticket, page } => {
                let asked = &self.asked[&ticket];
                let at = asked.offset..asked.offset + asked.len;
                let bytes = Arc::clone(&read!(self.memory.fixed)[&page]);
                self.ask_ended(ticket, Source::Fixed { page: bytes, at }, Ok(()));
            }
            Action::Put { ticket, slot, within } => {
                let asked = &self.asked[&ticket];
                self.memory.put(slot, within as usize * self.memory.page_len + asked.offset, &asked.buf);
                lock(&self.memory.dpu).stored(ticket);
            }
            Action::Answer { ticket, ended } => self.ask_ended(ticket, Source::Buffer, ended),
        }
    }

    fn read_of(&mut self, first: PageId, count: u32) -> Op {
        let pages = first.page..first.page + u64::from(count);
        let len = pages.map(|page| self.memory.len_of(PageId { page, ..first })).sum();
        Op::Read { addr: self.memory.addr(first, 0), buf: self.client.buffer(len) }
    }

    fn verb(&mut self, op: u64, verb: Op, transfer: Transfer) {
        match self.client.submit(verb) {
            Ok(ticket) => self.under_way.push((ticket, op, transfer)),
            Err(error) => self.refused.push((op, transfer, error)),
        }
    }

    /// A verb ended; `buf` is its buffer.
    fn end(&mut self, op: u64, transfer: Transfer, result: Result<(), Error>, buf: Vec<u8>) {
        let cause = match &result {
            Ok(()) => Ok(()),
            Err(Error::MemoryLost { .. }) => Err(Cause::Lost),
            Err(_) => Err(Cause::Failed),
        };
        let is_write = matches!(transfer, Transfer::Write { .. });
        match transfer {
            Transfer::Demand { ticket } | Transfer::Write { ticket } => {
                let asked = self.asked.get_mut(&ticket).expect("the request is under way");
                (asked.buf, asked.error) = (buf, result.err());
            }
            Transfer::Load { slot, within } => {
                if cause.is_ok() {
                    self.memory.put(slot, within as usize * self.memory.page_len, &buf);
                }
                self.client.recycle(buf);
            }
            Transfer::Fix { first } => {
                if cause.is_ok() {
                    let pages = (first.page..).zip(buf.chunks(self.memory.page_len));
                    let pages = pages.map(|(page, bytes)| (PageId { page, ..first }, Arc::from(bytes)));
                    write!(self.memory.fixed).extend(pages);
                }
                self.client.recycle(buf);
            }
        }
        let now = self.memory.clock.now();
        let mut dpu = lock(&self.memory.dpu);
        if is_write {
            dpu.written(now, op, cause, &mut self.actions);
        } else {
            dpu.fetched(now, op, cause, &mut self.actions);
        }
    }

    fn ask_ended(&mut self, ticket: u64, source: Source, ended: Result<(), Cause>) {
        let Asked { buf, error, .. } = self.asked.remove(&ticket).expect("a request ends once");
        let result = ended.map_err(|cause| Failed { cause, error });
        self.ended.push_back(AskEnded { ticket, result, buf, source });
    }
}
