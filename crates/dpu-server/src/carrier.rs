//! Execution of a [`Dpu`]'s actions with one client: READs, WRITEs, and copies out of slots and static memory.
//!
//! Key types: [`Memory`], the state that all carriers of a DPU share; [`Carrier`], one per client and so one per
//! domain. A request belongs to the carrier that accepted it. An action for another carrier goes to the inbox of that
//! carrier. If that carrier has left, its requester has left too, and the action fails. The lock of the decisions is
//! never held while bytes move.

mod moving;
mod request;

pub use moving::Moving;
pub use request::{AskEnded, Failed};

use farmem_client::{Client, Completed, Error, Op, PayloadSink, SinkPart, SourcePart, Ticket};
use farmem_dpu::{Action, Asker, Config, Dpu, Object, PageId, Policy, Read, Slot, Stats, Write};
use farmem_link::{Clock, Waker};
use farmem_machine::{Instant, Rng};
use farmem_paging::Cause;
use farmem_wire::VirtAddr;
use moving::Source;
use request::{PendingRequest, SlotAt};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// State that the carriers of one DPU share.
pub struct Memory {
    dpu: Mutex<Dpu>,
    page_len: usize,
    entry_len: usize,
    /// The bytes of each slot; empty until the first bytes arrive.
    slots: Vec<RwLock<Vec<u8>>>,
    /// Static memory, by page.
    fixed: RwLock<BTreeMap<PageId, Arc<[u8]>>>,
    objects: RwLock<BTreeMap<u32, Extent>>,
    carriers: RwLock<Carriers>,
    clock: Clock,
}

/// The location of an object in far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The first byte.
    pub base: VirtAddr,
    /// The length.
    pub bytes: u64,
}

/// The active carriers, by number.
#[derive(Default)]
struct Carriers {
    inboxes: BTreeMap<u64, Inbox>,
    /// Number of carriers created so far.
    count: u64,
}

/// Actions for a carrier that other carriers found.
struct Inbox {
    actions: Mutex<Vec<Action>>,
    /// Ends the wait of this carrier; `None` for a carrier that never waits for others.
    waker: Option<Waker>,
}

/// The purpose of a client's verb.
#[derive(Clone, Copy, Debug)]
enum Transfer {
    Demand { ticket: u64 },
    Load,
    Fix { first: PageId },
    Write { ticket: u64 },
}

/// Number of bits below the carrier's number in a ticket.
const TICKET_BITS: u32 = 48;

/// Locks the actions. A thread that panicked with the lock left them consistent.
fn lock(actions: &Mutex<Vec<Action>>) -> MutexGuard<'_, Vec<Action>> {
    actions.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Creates the memory of a DPU without objects. `rng` selects the evicted entries.
    pub fn new(config: Config, rng: Rng) -> Arc<Self> {
        let page_len = config.page_len.get() as usize;
        Arc::new(Self {
            dpu: Mutex::new(Dpu::new(config, rng)),
            page_len,
            entry_len: page_len * config.table.entry_pages as usize,
            slots: (0..config.table.slots.get()).map(|_| RwLock::default()).collect(),
            fixed: RwLock::default(),
            objects: RwLock::default(),
            carriers: RwLock::default(),
            clock: Clock::start(),
        })
    }

    /// Locks the decisions.
    ///
    /// # Panics
    /// Panics if a thread panicked with this lock: an invariant is broken, and further decisions could return wrong
    /// bytes.
    fn decisions(&self) -> MutexGuard<'_, Dpu> {
        self.dpu
            .lock()
            .expect("a thread of the DPU panicked while it decided, and no other may go on from there")
    }

    /// Returns the time of the clock that measures transfers.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the length of a page in bytes.
    pub const fn page_len(&self) -> usize {
        self.page_len
    }

    /// Returns the counts of the DPU so far.
    pub fn stats(&self) -> Stats {
        *self.decisions().stats()
    }

    /// Opens an object under a number that no earlier object had.
    pub fn open(&self, number: u32, extent: Extent, writer: Option<Asker>, policy: Box<dyn Policy>) {
        write!(self.objects).insert(number, extent);
        self.decisions().open(number, Object { bytes: extent.bytes, writer, policy });
    }

    /// Closes an object: drops its cached pages and refuses its pages in static memory.
    pub fn close(&self, number: u32) {
        let mut dpu = self.decisions();
        dpu.close(number);
        write!(self.objects).remove(&number);
        let pages = PageId { object: number, page: 0 }..=PageId { object: number, page: u64::MAX };
        // Copies in progress hold a reference to their page.
        let mut fixed = write!(self.fixed);
        let gone: Vec<PageId> = fixed.range(pages).map(|(&page, _)| page).collect();
        for page in gone {
            fixed.remove(&page);
        }
    }

    /// Sets the prefetch policy of an object. Returns false as [`Dpu::set_policy`] does.
    pub fn set_policy(&self, number: u32, policy: Box<dyn Policy>) -> bool {
        self.decisions().set_policy(number, policy)
    }

    /// Sets the prefetch policy of all pages that contain one of `bytes`. Returns false as [`Dpu::advise`] does.
    pub fn advise(&self, number: u32, bytes: Range<u64>, policy: Box<dyn Policy>) -> bool {
        let len = self.page_len as u64;
        self.decisions().advise(number, bytes.start / len..bytes.end.div_ceil(len), policy)
    }

    /// Returns the number of the object's pages in static memory.
    pub fn fixed_pages(&self, number: u32, pages: Range<u64>) -> u64 {
        let range = PageId { object: number, page: pages.start }..PageId { object: number, page: pages.end };
        read!(self.fixed).range(range).count() as u64
    }

    /// Returns the location of an object; `None` if the object is closed, and then all its requests are refused.
    fn extent(&self, object: u32) -> Option<Extent> {
        read!(self.objects).get(&object).copied()
    }

    /// Returns the length of a page in bytes. The last page of an object may be shorter.
    pub fn len_of(&self, page: PageId) -> usize {
        let bytes = self.extent(page.object).map_or(0, |extent| extent.bytes);
        let start = page.page.saturating_mul(self.page_len as u64);
        usize::try_from(bytes.saturating_sub(start)).map_or(self.page_len, |left| left.min(self.page_len))
    }

    fn addr(&self, page: PageId, offset: usize) -> Option<VirtAddr> {
        let Extent { base, .. } = self.extent(page.object)?;
        Some(VirtAddr(base.0 + page.page * self.page_len as u64 + offset as u64))
    }

    fn slot(&self, slot: Slot) -> &RwLock<Vec<u8>> {
        &self.slots[slot.0 as usize]
    }

    /// Writes bytes into a slot.
    fn put(&self, slot: Slot, mut at: usize, pieces: &[&[u8]]) {
        let mut slot = write!(self.slot(slot));
        slot.resize(self.entry_len, 0);
        for bytes in pieces {
            slot[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
    }
}

/// The requests of one client to a DPU.
#[derive(Debug)]
pub struct Carrier<'a> {
    /// The client.
    pub client: &'a mut Client,
    memory: Arc<Memory>,
    number: u64,
    next: u64,
    asked: BTreeMap<u64, PendingRequest>,
    /// Verbs in flight at the client, with the DPU's operation numbers.
    under_way: Vec<(Ticket, u64, Transfer)>,
    /// Verbs that the client refused.
    refused: Vec<(u64, Transfer, Error)>,
    actions: Vec<Action>,
    ended: VecDeque<AskEnded>,
}

impl<'a> Carrier<'a> {
    /// Adds a carrier to this memory. `waker` ends the wait of the client's link when its inbox gets an action.
    pub fn new(client: &'a mut Client, memory: Arc<Memory>, waker: Option<Waker>) -> Self {
        let mut carriers = write!(memory.carriers);
        let number = carriers.count;
        carriers.count += 1;
        carriers.inboxes.insert(number, Inbox { actions: Mutex::default(), waker });
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

    /// Returns the memory that all carriers share.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Starts a read of the bytes `at` of a page. If `buf` is empty, the carrier allocates a buffer when necessary.
    pub fn read(&mut self, asker: Asker, page: PageId, at: Range<usize>, granted: bool, buf: Vec<u8>) -> u64 {
        self.begin_read((asker, granted), page, &at, buf, None)
    }

    /// Starts a read as [`Carrier::read`] does, but an answer of far memory goes from the packets to `landing`.
    pub fn read_to(
        &mut self,
        asker: Asker,
        page: PageId,
        at: Range<usize>,
        granted: bool,
        landing: Arc<dyn PayloadSink>,
    ) -> u64 {
        self.begin_read((asker, granted), page, &at, Vec::new(), Some(landing))
    }

    fn begin_read(
        &mut self,
        (asker, granted): (Asker, bool),
        page: PageId,
        at: &Range<usize>,
        buf: Vec<u8>,
        landing: Option<Arc<dyn PayloadSink>>,
    ) -> u64 {
        let (ticket, bytes) = self.take(page, at, buf, landing);
        let read = Read { ticket, asker, page, bytes, granted };
        self.memory.decisions().read(self.memory.clock.now(), read, &mut self.actions);
        self.carry_out();
        ticket
    }

    /// Starts a write of bytes of a page, from `offset` on.
    pub fn write(&mut self, asker: Asker, page: PageId, offset: usize, buf: Vec<u8>) -> u64 {
        self.begin_write(asker, page, offset..offset + buf.len(), (buf, None))
    }

    /// Starts a write as [`Carrier::write`] does, but takes the bytes from `from` when they are sent. The bytes must
    /// stay there until the request has ended.
    pub fn write_from(&mut self, asker: Asker, page: PageId, offset: usize, from: SourcePart) -> u64 {
        self.begin_write(asker, page, offset..offset + from.len(), (Vec::new(), Some(from)))
    }

    fn begin_write(
        &mut self,
        asker: Asker,
        page: PageId,
        at: Range<usize>,
        (buf, from): (Vec<u8>, Option<SourcePart>),
    ) -> u64 {
        let whole = at.len() == self.memory.len_of(page);
        let (ticket, bytes) = self.take(page, &at, buf, None);
        let asked = self.asked.get_mut(&ticket).expect("it was put in");
        (asked.write, asked.from) = (true, from);
        let write = Write { ticket, asker, page, bytes, whole };
        self.memory.decisions().write(write, &mut self.actions);
        self.carry_out();
        ticket
    }

    /// Keeps pages in static memory. Returns false if that is not possible ([`Dpu::fix`]).
    pub fn fix(&mut self, asker: Asker, object: u32, pages: Range<u64>) -> bool {
        let fixed = self.memory.decisions().fix(asker, object, pages, &mut self.actions);
        self.carry_out();
        fixed
    }

    fn take(
        &mut self,
        page: PageId,
        at: &Range<usize>,
        buf: Vec<u8>,
        landing: Option<Arc<dyn PayloadSink>>,
    ) -> (u64, u32) {
        self.next += 1;
        let ticket = self.number << TICKET_BITS | self.next;
        let addr = self.memory.addr(page, at.start).unwrap_or(VirtAddr::NULL);
        self.asked.insert(ticket, PendingRequest::new(addr, at, buf, landing));
        (ticket, u32::try_from(at.len()).expect("a part of a page"))
    }

    /// Accepts a completion of the client. Returns the completion if it belongs to another user of the client.
    pub fn took(&mut self, completed: Completed) -> Option<Completed> {
        let at = self.under_way.iter().position(|(ticket, ..)| *ticket == completed.ticket);
        let Some(at) = at else { return Some(completed) };
        let (_, op, transfer) = self.under_way.swap_remove(at);
        self.end(op, transfer, completed.result.map(|_| ()), completed.buf);
        self.carry_out();
        None
    }

    /// Returns true while the client executes a verb for the DPU.
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Executes the actions that other carriers found for this one.
    pub fn look_into_inbox(&mut self) {
        let carriers = read!(self.memory.carriers);
        self.actions.append(&mut lock(&carriers.inboxes[&self.number].actions));
        drop(carriers);
        self.carry_out();
    }

    /// Returns the next request that ended.
    pub fn next_ended(&mut self) -> Option<AskEnded> {
        self.ended.pop_front()
    }

    /// Passes the bytes of a successful read to `each`, and ends the request as [`Moving::finish`] does.
    pub fn finish(&mut self, ended: AskEnded, has: Option<Instant>, each: impl FnOnce(&[u8])) {
        let buf = self.moving(ended).finish(has, each);
        self.client.recycle(buf);
    }

    /// Returns the bytes of a successful read, for another thread. Pass the buffer to [`Client::recycle`] afterwards.
    pub fn moving(&self, AskEnded { ticket, buf, source, .. }: AskEnded) -> Moving {
        Moving { ticket, buf, source, memory: Arc::clone(&self.memory) }
    }

    /// Ends a request as [`Carrier::finish`] does. Returns its buffer, with the bytes if the read was successful.
    pub fn collect(&mut self, mut ended: AskEnded, len: usize) -> Vec<u8> {
        let mut buf = std::mem::take(&mut ended.buf);
        if let (Source::Buffer, _) | (_, Err(_)) = (&ended.source, &ended.result) {
            return buf;
        }
        buf.resize(len, 0);
        self.finish(ended, None, |bytes| buf.copy_from_slice(bytes));
        buf
    }

    /// Ends this carrier while others continue with the same decisions: all its pending and queued actions fail.
    pub fn leave(&mut self) {
        if std::thread::panicking() {
            // The current panic may have broken the decisions.
            return;
        }
        let inbox = write!(self.memory.carriers).inboxes.remove(&self.number);
        let told = inbox.map(|inbox| inbox.actions.into_inner().unwrap_or_else(PoisonError::into_inner));
        self.actions.extend(told.into_iter().flatten());
        for ended in std::mem::take(&mut self.ended) {
            if let Source::Slot { .. } = ended.source {
                self.memory.decisions().dropped(ended.ticket);
            }
        }
        let refused = std::mem::take(&mut self.refused).into_iter().map(|(op, transfer, _)| (op, transfer));
        let under_way =
            std::mem::take(&mut self.under_way).into_iter().map(|(_, op, transfer)| (op, transfer));
        let now = self.memory.now();
        for (op, transfer) in refused.chain(under_way) {
            let mut dpu = self.memory.decisions();
            if matches!(transfer, Transfer::Write { .. }) {
                dpu.written(now, op, Err(Cause::Failed), &mut self.actions);
            } else {
                dpu.fetched(now, op, Err(Cause::Failed), &mut self.actions);
            }
        }
        while let Some(action) = self.actions.pop() {
            self.hand_on(action);
        }
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

    /// Returns the carrier of an action. A load, and a read into static memory, belongs to this carrier.
    const fn carrier_of(&self, action: Action) -> u64 {
        match action {
            Action::Load { .. } | Action::Fix { .. } => self.number,
            Action::Copy { ticket, .. }
            | Action::CopyFixed { ticket, .. }
            | Action::Read { ticket, .. }
            | Action::Write { ticket, .. }
            | Action::Put { ticket, .. }
            | Action::Answer { ticket, .. } => ticket >> TICKET_BITS,
        }
    }

    /// Puts an action into another carrier's inbox.
    fn hand_on(&mut self, action: Action) {
        let carriers = read!(self.memory.carriers);
        if let Some(inbox) = carriers.inboxes.get(&self.carrier_of(action)) {
            lock(&inbox.actions).push(action);
            if let Some(waker) = &inbox.waker {
                waker.wake();
            }
            return;
        }
        drop(carriers);
        self.abandon(action);
    }

    /// Fails an action whose carrier and requester have left.
    fn abandon(&mut self, action: Action) {
        let now = self.memory.now();
        let mut dpu = self.memory.decisions();
        match action {
            Action::Copy { ticket, .. } => dpu.dropped(ticket),
            Action::Read { op, .. } | Action::Load { op, .. } | Action::Fix { op, .. } => {
                dpu.fetched(now, op, Err(Cause::Failed), &mut self.actions);
            }
            Action::Write { op, .. } => dpu.written(now, op, Err(Cause::Failed), &mut self.actions),
            Action::Put { .. } => unreachable!("whose WRITE ended is told to put its bytes"),
            Action::CopyFixed { .. } | Action::Answer { .. } => {}
        }
    }

    fn act(&mut self, action: Action) {
        if self.carrier_of(action) != self.number {
            return self.hand_on(action);
        }
        match action {
            Action::Read { op, ticket } => {
                let asked = self.asked.get_mut(&ticket).expect("the request is under way");
                let (addr, len, mut buf) = (asked.addr, asked.len, std::mem::take(&mut asked.buf));
                let read = if let Some(landing) = &asked.landing {
                    Op::ReadTo { addr, to: SinkPart::new(Arc::clone(landing), len) }
                } else {
                    if buf.is_empty() {
                        buf = self.client.buffer(len);
                    }
                    Op::Read { addr, buf }
                };
                self.verb(op, read, Transfer::Demand { ticket });
            }
            Action::Load { op, first, count, slot, within, .. } => match self.extent_of(first, count) {
                Some((addr, len)) => {
                    let at = within as usize * self.memory.page_len;
                    let landing = SlotAt { memory: Arc::clone(&self.memory), slot, at };
                    let to = SinkPart::new(Arc::new(landing), len);
                    self.verb(op, Op::ReadTo { addr, to }, Transfer::Load);
                }
                None => self.abandon(action),
            },
            Action::Fix { op, first, count, .. } => match self.extent_of(first, count) {
                Some((addr, len)) => {
                    let buf = self.client.buffer(len);
                    self.verb(op, Op::Read { addr, buf }, Transfer::Fix { first });
                }
                None => self.abandon(action),
            },
            Action::Write { op, ticket } => {
                let asked = self.asked.get_mut(&ticket).expect("the request is under way");
                let (addr, from) = (asked.addr, asked.from.clone());
                let write = match from {
                    Some(from) => Op::WriteFrom { addr, from },
                    None => Op::Write { addr, buf: std::mem::take(&mut asked.buf) },
                };
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
                let asked = self.asked.get_mut(&ticket).expect("the request is under way");
                let at = within as usize * self.memory.page_len + asked.offset;
                let are_there = self.memory.store(slot, at, asked);
                asked.put += 1;
                let now = self.memory.now();
                self.memory.decisions().stored(now, ticket, are_there, &mut self.actions);
            }
            Action::Answer { ticket, ended } => self.ask_ended(ticket, Source::Buffer, ended),
        }
    }

    /// Returns the location of `count` pages; `None` if the object is closed.
    fn extent_of(&self, first: PageId, count: u32) -> Option<(VirtAddr, usize)> {
        let addr = self.memory.addr(first, 0)?;
        let pages = first.page..first.page + u64::from(count);
        Some((addr, pages.map(|page| self.memory.len_of(PageId { page, ..first })).sum()))
    }

    fn verb(&mut self, op: u64, verb: Op, transfer: Transfer) {
        match self.client.submit(verb) {
            Ok(ticket) => self.under_way.push((ticket, op, transfer)),
            Err(error) => self.refused.push((op, transfer, error)),
        }
    }

    /// Ends a verb; `buf` is its buffer.
    fn end(&mut self, op: u64, transfer: Transfer, result: Result<(), Error>, buf: Vec<u8>) {
        let cause = match &result {
            Ok(()) => Ok(()),
            Err(Error::MemoryLost { .. }) => Err(Cause::Lost),
            Err(_) => Err(Cause::Failed),
        };
        let mut to_fix = Vec::new();
        match transfer {
            Transfer::Demand { ticket } | Transfer::Write { ticket } => {
                let asked = self.asked.get_mut(&ticket).expect("the request is under way");
                asked.landed = asked.landing.is_some() && result.is_ok();
                (asked.buf, asked.error) = (buf, result.err());
            }
            // The slot has its bytes.
            Transfer::Load => {}
            Transfer::Fix { first } => {
                if cause.is_ok() {
                    let pages = (first.page..).zip(buf.chunks(self.memory.page_len));
                    to_fix.extend(
                        pages.map(|(page, bytes)| (PageId { page, ..first }, Arc::<[u8]>::from(bytes))),
                    );
                }
                self.client.recycle(buf);
            }
        }
        let now = self.memory.clock.now();
        let mut dpu = self.memory.decisions();
        if matches!(transfer, Transfer::Write { .. }) {
            return dpu.written(now, op, cause, &mut self.actions);
        }
        dpu.fetched(now, op, cause, &mut self.actions);
        // The object may have been closed meanwhile. This lock excludes closes and copies until the pages are there.
        to_fix.retain(|(page, _)| dpu.is_fixed(*page));
        if !to_fix.is_empty() {
            write!(self.memory.fixed).extend(to_fix);
        }
    }

    fn ask_ended(&mut self, ticket: u64, source: Source, ended: Result<(), Cause>) {
        let PendingRequest { buf, error, put, landed, write, .. } =
            self.asked.remove(&ticket).expect("a request ends once");
        let source = match source {
            Source::Buffer if landed && ended.is_ok() => Source::ReadDelivery,
            source => source,
        };
        let result = ended.map_err(|cause| Failed { cause, error });
        self.ended.push_back(AskEnded { ticket, result, buf, source, write, put });
    }
}

#[cfg(test)]
mod tests;
