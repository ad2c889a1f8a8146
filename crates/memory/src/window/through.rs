//! A window's READs and WRITEs by way of a DPU's cache, which is in this process: what a process finds behind the rings of a DPU, without the rings.
//!
//! The DPU decides ([`farmem_dpu::Dpu`]); this carries out what it says, with the window's client. The window is the one process, and the allocation the one
//! object, which the window alone writes.

use super::verbs::{Ended, Name};
use farmem_client::{Answer, Client, Error, Op, Ticket, Vma};
use farmem_dpu::{Action, Asker, Config, Dpu, Evidence, Object, PageId, Read, Slot, Stats, Write};
use farmem_io::Clock;
use farmem_machine::Rng;
use farmem_paging::Cause;
use farmem_wire::VirtAddr;
use std::collections::{BTreeMap, VecDeque};
use std::mem;

const OBJECT: u32 = 1;
const WINDOW: Asker = Asker(0);

/// An operation of the window.
#[derive(Debug)]
struct Request {
    /// Its bytes. Not here while a verb of the client has them: then the request has one part.
    buf: Vec<u8>,
    parts: usize,
    left: usize,
    result: Result<Answer, Error>,
}

/// What a request wants of one page of the DPU.
#[derive(Clone, Copy, Debug)]
struct Part {
    request: u64,
    /// Where its bytes are in the request's buffer, and in the page.
    at: usize,
    offset: usize,
    len: usize,
    page: u64,
}

/// What a verb of the client is for.
#[derive(Clone, Copy, Debug)]
enum Transfer {
    Demand { part: u64 },
    Load { slot: Slot, within: u32 },
    Write { part: u64 },
}

/// The way through the DPU.
#[derive(Debug)]
pub(super) struct Through<'a> {
    client: &'a mut Client,
    dpu: Dpu,
    clock: Clock,
    base: VirtAddr,
    bytes: usize,
    page_len: usize,
    entry_len: usize,
    /// Each is made when something first comes into it.
    slots: Vec<Vec<u8>>,
    requests: BTreeMap<u64, Request>,
    parts: BTreeMap<u64, Part>,
    next: u64,
    /// What the client has under way, and what the DPU calls it.
    under_way: Vec<(Ticket, u64, Transfer)>,
    /// Verbs that the client did not take.
    refused: Vec<(u64, Transfer, Error)>,
    ended: VecDeque<Ended>,
    actions: Vec<Action>,
}

impl<'a> Through<'a> {
    pub(super) fn new(client: &'a mut Client, vma: &Vma, config: Config) -> Self {
        // What is evicted need not be a secret: the window is alone. So the traffic of a program is the same each time.
        let mut dpu = Dpu::new(config, Rng::from_number(0));
        dpu.open(OBJECT, Object { bytes: vma.size, writer: Some(WINDOW), policy: Box::new(Evidence) });
        let page_len = config.page_len.get() as usize;
        Self {
            client,
            dpu,
            clock: Clock::start(),
            base: vma.base,
            bytes: usize::try_from(vma.size).expect("a window's bytes have addresses here"),
            page_len,
            entry_len: page_len * config.table.entry_pages as usize,
            slots: vec![Vec::new(); config.table.slots.get() as usize],
            requests: BTreeMap::new(),
            parts: BTreeMap::new(),
            next: 0,
            under_way: Vec::new(),
            refused: Vec::new(),
            ended: VecDeque::new(),
            actions: Vec::new(),
        }
    }

    pub(super) const fn client(&mut self) -> &mut Client {
        self.client
    }

    pub(super) const fn stats(&self) -> &Stats {
        self.dpu.stats()
    }

    /// Begins a READ or WRITE of the window; nothing else comes from there.
    pub(super) fn submit(&mut self, op: Op) -> u64 {
        let (addr, buf, write) = match op {
            Op::Read { addr, buf } => (addr, buf, false),
            Op::Write { addr, buf } => (addr, buf, true),
            other => unreachable!("a window reads and writes: {other:?}"),
        };
        let request = self.number();
        let start = usize::try_from(addr.0 - self.base.0).expect("a page of the window");
        let end = start + buf.len();
        let mut parts = Vec::new();
        let mut from = start;
        while from < end {
            let page = from / self.page_len;
            let to = end.min((page + 1) * self.page_len);
            let offset = from - page * self.page_len;
            let part = Part { request, at: from - start, offset, len: to - from, page: page as u64 };
            parts.push((self.number(), part));
            from = to;
        }
        let answer = Ok(Answer::Done { old: 0 });
        self.requests.insert(request, Request { buf, parts: parts.len(), left: parts.len(), result: answer });
        self.parts.extend(parts.iter().copied());
        for (ticket, part) in parts {
            let page = PageId { object: OBJECT, page: part.page };
            let bytes = u32::try_from(part.len).expect("a part of a page");
            if write {
                let whole = part.len == self.len_of(part.page);
                let write = Write { ticket, asker: WINDOW, page, bytes, whole };
                self.dpu.write(write, &mut self.actions);
            } else {
                let read = Read { ticket, asker: WINDOW, page, bytes, granted: true };
                self.dpu.read(self.clock.now(), read, &mut self.actions);
            }
        }
        self.carry_out();
        request
    }

    pub(super) fn poll(&mut self) -> Result<Option<Ended>, Error> {
        if self.ended.is_empty()
            && let Some(completed) = self.client.poll()?
        {
            self.took(completed.into());
        }
        Ok(self.ended.pop_front())
    }

    pub(super) fn poll_ended(&mut self) -> Option<Ended> {
        while self.ended.is_empty() {
            let completed = self.client.poll_ended()?;
            self.took(completed.into());
        }
        self.ended.pop_front()
    }

    pub(super) fn next_completed(&mut self) -> Result<Option<Ended>, Error> {
        while self.ended.is_empty() {
            let Some(completed) = self.client.next_completed()? else { break };
            self.took(completed.into());
        }
        Ok(self.ended.pop_front())
    }

    pub(super) fn settle(&mut self) -> Vec<Ended> {
        while !self.under_way.is_empty() {
            match self.client.next_completed() {
                Ok(Some(completed)) => self.took(completed.into()),
                // Without a link nothing comes any more, and nothing that came would be used.
                Ok(None) | Err(_) => break,
            }
        }
        self.ended.drain(..).collect()
    }

    const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Bytes of a page: the allocation's last one may be shorter.
    fn len_of(&self, page: u64) -> usize {
        let start = usize::try_from(page).expect("a page of the window") * self.page_len;
        self.page_len.min(self.bytes - start)
    }

    fn addr(&self, page: u64, offset: usize) -> VirtAddr {
        VirtAddr(self.base.0 + page * self.page_len as u64 + offset as u64)
    }

    /// Takes what the client ended: a verb of this, or another's.
    fn took(&mut self, ended: Ended) {
        let at = self.under_way.iter().position(|(ticket, ..)| Name::Client(*ticket) == ended.name);
        let Some(at) = at else { return self.ended.push_back(ended) };
        let (_, op, transfer) = self.under_way.swap_remove(at);
        self.end(op, transfer, ended.result.map(|_| ()), ended.buf);
        self.carry_out();
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

    fn act(&mut self, action: Action) {
        match action {
            Action::Read { op, ticket } => {
                let part = self.parts[&ticket];
                let buf = self.bytes_for(part);
                let read = Op::Read { addr: self.addr(part.page, part.offset), buf };
                self.verb(op, read, Transfer::Demand { part: ticket });
            }
            Action::Load { op, first, count, slot, within, .. } => {
                let len = (first.page..first.page + u64::from(count)).map(|page| self.len_of(page)).sum();
                let buf = self.client.buffer(len);
                let read = Op::Read { addr: self.addr(first.page, 0), buf };
                self.verb(op, read, Transfer::Load { slot, within });
            }
            Action::Write { op, ticket } => {
                let part = self.parts[&ticket];
                let mut buf = self.bytes_for(part);
                let request = &self.requests[&part.request];
                if request.parts > 1 {
                    buf.copy_from_slice(&request.buf[part.at..part.at + part.len]);
                }
                let write = Op::Write { addr: self.addr(part.page, part.offset), buf };
                self.verb(op, write, Transfer::Write { part: ticket });
            }
            Action::Copy { ticket, slot, within } => {
                let part = self.parts[&ticket];
                let from = within as usize * self.page_len + part.offset;
                let request = self.requests.get_mut(&part.request).expect("its parts are under way");
                let bytes = &self.slots[slot.0 as usize][from..from + part.len];
                request.buf[part.at..part.at + part.len].copy_from_slice(bytes);
                let len = u32::try_from(part.len).expect("a part of a page");
                self.dpu.copied(self.clock.now(), ticket, len);
                self.part_ended(ticket, Ok(()));
            }
            Action::Put { ticket, slot, within } => {
                let part = self.parts[&ticket];
                let to = within as usize * self.page_len + part.offset;
                let slot = &mut self.slots[slot.0 as usize];
                slot.resize(self.entry_len, 0);
                let bytes = &self.requests[&part.request].buf[part.at..part.at + part.len];
                slot[to..to + part.len].copy_from_slice(bytes);
            }
            Action::Answer { ticket, ended } => self.part_ended(ticket, ended),
            Action::CopyFixed { .. } | Action::Fix { .. } => unreachable!("what is written is not fixed"),
        }
    }

    /// The buffer of a verb for a part: the request's own where there is no other part.
    fn bytes_for(&mut self, part: Part) -> Vec<u8> {
        let request = self.requests.get_mut(&part.request).expect("its parts are under way");
        if request.parts == 1 { mem::take(&mut request.buf) } else { self.client.buffer(part.len) }
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
        let now = self.clock.now();
        match transfer {
            Transfer::Demand { part } | Transfer::Write { part } => {
                let is_read = matches!(transfer, Transfer::Demand { .. });
                self.give_back(part, buf, is_read && cause.is_ok());
                if let Err(error) = result {
                    let request = self.parts[&part].request;
                    self.requests.get_mut(&request).expect("its parts are under way").result = Err(error);
                }
                if is_read {
                    self.dpu.fetched(now, op, cause, &mut self.actions);
                } else {
                    self.dpu.written(now, op, cause, &mut self.actions);
                }
            }
            Transfer::Load { slot, within } => {
                if cause.is_ok() {
                    let bytes = &mut self.slots[slot.0 as usize];
                    bytes.resize(self.entry_len, 0);
                    let to = within as usize * self.page_len;
                    bytes[to..to + buf.len()].copy_from_slice(&buf);
                }
                self.client.recycle(buf);
                self.dpu.fetched(now, op, cause, &mut self.actions);
            }
        }
    }

    /// The buffer of a part's verb: the request's, or a copy of a part of it.
    fn give_back(&mut self, part: u64, buf: Vec<u8>, came: bool) {
        let Part { request, at, len, .. } = self.parts[&part];
        let request = self.requests.get_mut(&request).expect("its parts are under way");
        if request.parts == 1 {
            request.buf = buf;
            return;
        }
        if came {
            request.buf[at..at + len].copy_from_slice(&buf);
        }
        self.client.recycle(buf);
    }

    fn part_ended(&mut self, ticket: u64, ended: Result<(), Cause>) {
        let part = self.parts.remove(&ticket).expect("a part ends once");
        let request = self.requests.get_mut(&part.request).expect("its parts are under way");
        assert!(ended.is_ok() || request.result.is_err(), "a part that failed says why");
        request.left -= 1;
        if request.left == 0 {
            let Request { buf, result, .. } = self.requests.remove(&part.request).expect("it was there");
            self.ended.push_back(Ended { name: Name::Dpu(part.request), result, buf });
        }
    }
}
