//! The path of a window's READs and WRITEs through the host's DPU (SODA III), over rings in shared memory to
//! another process.
//!
//! Each request keeps its bytes until the DPU confirms that the memory node has them. So no bytes are lost if
//! a DPU dies, hangs or leaves. In this case the window *fences* the DPU: the DPU's host leaves the rack, and
//! no node accepts its requests any more. Then the window's own client sends all pending requests directly to
//! the memory nodes.

mod served;

use super::buffer::Laid;
use super::options::PolicyMaker;
use super::parts::{Ended, Part, Parts};
use farmem_client::api::ErrorCode;
use farmem_client::{Client, Completed, Error, Op, Ticket};
use farmem_dpu::Stats;
use farmem_dpu_server::Foresight;
use farmem_dpu_server::messages::{Carried, finish};
use farmem_link::Clock;
use farmem_link::dpu::{DpuSocket, Other};
use farmem_machine::Duration;
use farmem_uffd::Window;
use farmem_wire::message::{PAGE_LEN, Page};
use farmem_wire::soda::{Answer, Dest, RECORD_MAX, Request, Span};
use farmem_wire::{Rkey, VirtAddr};
use served::{Dpu, LAST, NoDpu, put_away};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write as _};

/// The region of the window's first object; those of the other objects follow.
const REGION: u16 = 1;
/// The key of the registered memory behind the rings.
const RKEY: Rkey = Rkey(1);
/// The key of the window's own pages.
const PAGES: Rkey = Rkey(2);
/// Maximum number of pages in flight from the DPU.
const READING_MAX: usize = 64;
/// Minimum time to wait for pending requests of a process that had the allocation open. The time must be
/// longer than a fenced host needs to notice the fence.
const OPEN_PATIENCE: Duration = Duration::from_secs(15);
/// The longest sleep between two checks that the DPU is alive.
const LOOK: Duration = Duration::from_millis(20);

/// The prefetching and caching that a window requests from the DPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct DpuSettings {
    pub(super) fixed: Option<(u64, u64)>,
    pub(super) foresight: Foresight,
    /// The program's policy, for a DPU within this process.
    pub(super) policy: Option<PolicyMaker>,
}

/// Returns the region of an object.
fn region_of(object: usize) -> u16 {
    u16::try_from(object).expect("a window has a few thousand") + REGION
}

/// Returns the bytes of a part of a page, relative to the region of their object.
fn span_of(part: &Part, page_len: usize) -> Span {
    let offset = part.page * page_len as u64 + part.at.start as u64;
    let size = u32::try_from(part.at.len()).expect("a part of a page");
    Span { region: region_of(part.object), offset, size }
}

/// Returns the address of these bytes in far memory, and their offset in the window.
fn place_of(span: &Span, laid: &Laid) -> (VirtAddr, u64) {
    let extent = &laid.extents()[usize::from(span.region - REGION)];
    (VirtAddr(extent.base.0 + span.offset), extent.at + span.offset)
}

/// Returns the address in the window of the byte at this offset.
fn in_window(window: &Window, at: u64) -> VirtAddr {
    VirtAddr(window.base().0 + at)
}

/// A part of a request that has not completed.
#[derive(Debug)]
struct PendingPart {
    span: Span,
    /// The bytes of a write; for a read, a buffer or nothing.
    buf: Vec<u8>,
    write: bool,
    /// True if the bytes are in the window's file, or will be written there.
    placed: bool,
    with: PartHolder,
}

/// The holder of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PartHolder {
    /// The part waits for free space in the ring or in registered memory.
    Queued,
    /// The DPU has the part. The bytes of a read arrive at this slot of registered memory.
    Dpu(Option<usize>),
    /// The window's own client has the part.
    Client,
}

/// The path through the DPU.
#[derive(Debug)]
pub(super) struct DpuPath<'a> {
    client: &'a mut Client,
    window: &'a Window,
    /// The DPU; `None` after the window has given it up.
    dpu: Option<Dpu>,
    /// The socket of a DPU that was given up, until this window ends. While it is open, a DPU that is alive
    /// withholds from other processes the allocations that the window writes directly.
    given_up: Option<DpuSocket>,
    /// Number and generation of a host that must be fenced before the window sends directly.
    to_fence: Option<(u16, u16)>,
    /// The process that must end before the window sends directly.
    to_end: Option<Other>,
    parts: Parts,
    page_len: usize,
    asked: BTreeMap<u64, PendingPart>,
    /// Parts that wait for free space in the ring or in registered memory.
    waiting: VecDeque<u64>,
    /// Free slots of registered memory.
    places: Vec<usize>,
    /// Parts that the window's own client sends to memory nodes.
    direct: Vec<(Ticket, u64)>,
    /// True if the outcome of a direct write is unknown.
    has_open_write: bool,
    ended: VecDeque<Ended>,
    /// Number of refused hints.
    refused: u64,
    record: Vec<u8>,
    answer: Vec<u8>,
    clock: Clock,
}

impl<'a> DpuPath<'a> {
    /// Connects to the DPU, and opens the allocations there. Waits for pending requests of another process on
    /// them.
    ///
    /// # Errors
    /// [`Error::Refused`] with the DPU's message, [`Error::Open`] if no DPU is running, [`Error::Missing`]
    /// for a rack without DPUs.
    pub(super) fn open(
        client: &'a mut Client,
        laid: &Laid,
        wishes: DpuSettings,
        window: &'a Window,
    ) -> Result<Self, Error> {
        let none =
            || Error::Missing { what: "[dpu] in this rack's description; the window needs a DPU".into() };
        let section = client.dpu().ok_or_else(none)?.clone();
        let host = (client.domain(), client.life());
        let clock = Clock::start();
        let until = clock.now() + OPEN_PATIENCE.max(section.patience);
        let (dpu, page_len) = loop {
            match Dpu::open(&section, host, laid, wishes, window, &clock) {
                Err(NoDpu::Error(error))
                    if error.code() == Some(ErrorCode::Unavailable) && clock.now() < until =>
                {
                    std::thread::sleep(std::time::Duration::from_nanos(LOOK.as_nanos()));
                }
                Ok((dpu, page_len)) => break (Some(dpu), page_len),
                Err(NoDpu::Error(error)) => return Err(error),
                Err(NoDpu::Silent(process)) => {
                    put_away(process)?;
                    break (None, section.page as usize);
                }
            }
        };
        Ok(Self {
            client,
            window,
            dpu,
            given_up: None,
            to_fence: None,
            to_end: None,
            parts: Parts::new(laid.clone(), page_len),
            page_len,
            asked: BTreeMap::new(),
            waiting: VecDeque::new(),
            places: (0..READING_MAX).rev().collect(),
            direct: Vec::new(),
            has_open_write: false,
            ended: VecDeque::new(),
            refused: 0,
            record: Vec::new(),
            answer: vec![0; RECORD_MAX.next_multiple_of(8)],
            clock,
        })
    }

    /// Tells the DPU that no write of this window is in flight, unless one is, or may be executed later.
    pub(super) fn finish(&self) {
        let writes = self.direct.iter().any(|(_, number)| self.asked[number].write);
        let talk = self.dpu.as_ref().map(|dpu| &dpu.talk).or(self.given_up.as_ref());
        if let Some(talk) = talk.filter(|_| !writes && !self.has_open_write) {
            finish(talk);
        }
    }

    pub(super) const fn client(&mut self) -> &mut Client {
        self.client
    }

    /// Returns true if the DPU was given up, and all requests go directly to the memory nodes.
    pub(super) const fn is_direct(&self) -> bool {
        self.dpu.is_none()
    }

    /// Returns true if the DPU reads and writes the window's pages itself.
    pub(super) fn is_placed(&self) -> bool {
        self.dpu.as_ref().is_some_and(|dpu| dpu.process.is_some())
    }

    /// Returns the DPU's counters for all its processes; `None` if the DPU is gone.
    pub(super) fn stats(&mut self) -> Option<Stats> {
        self.dpu.as_mut()?.stats(&mut self.refused)
    }

    /// Returns the DPU's counters for requests of this process; `None` if the DPU is gone.
    pub(super) fn carried(&mut self) -> Option<Carried> {
        self.dpu.as_mut()?.carried(&mut self.refused)
    }

    /// Passes the prefetch policy for a part of the window, given as offset and length, to the DPU.
    pub(super) fn advise(&mut self, part: (u64, u64), policy: Foresight) {
        if let Some(dpu) = &mut self.dpu {
            for (object, first, len) in self.parts.laid().of_objects(part) {
                dpu.advise(region_of(object), (first, len), policy, &mut self.refused);
            }
        }
    }

    /// Returns the number of hints that the DPU is known to have refused.
    pub(super) const fn refused(&self) -> u64 {
        self.refused
    }

    /// Starts a READ or WRITE of the window; there are no other operations.
    pub(super) fn submit(&mut self, op: Op) -> u64 {
        let Self { parts, asked, waiting, page_len, .. } = self;
        parts.begin(op, |number, part, write, buf| {
            let span = span_of(part, *page_len);
            asked.insert(number, PendingPart { span, buf, write, placed: false, with: PartHolder::Queued });
            waiting.push_back(number);
        })
    }

    /// Starts an operation as [`DpuPath::submit`] does, for `len` bytes that are in the window's file, or will
    /// be written there.
    pub(super) fn submit_placed(&mut self, addr: VirtAddr, len: usize, write: bool) -> u64 {
        let Self { parts, asked, waiting, page_len, .. } = self;
        parts.begin_placed(addr, len, write, |number, part| {
            let span = span_of(part, *page_len);
            asked.insert(
                number,
                PendingPart { span, buf: Vec::new(), write, placed: true, with: PartHolder::Queued },
            );
            waiting.push_back(number);
        })
    }

    /// Writes waiting parts into the ring while there is space, or passes them to the client.
    pub(super) fn send(&mut self) {
        while let Some(&number) = self.waiting.front() {
            let asked = self.asked.get_mut(&number).expect("it is under way");
            let Some(dpu) = &mut self.dpu else {
                self.waiting.pop_front();
                self.go_straight(number);
                continue;
            };
            self.record.clear();
            let span = asked.span;
            let (_, addr) = place_of(&span, self.parts.laid());
            let place = if asked.placed && asked.write {
                Request::WriteFrom { span, addr, rkey: PAGES }.emit(&mut self.record);
                None
            } else if asked.placed {
                let dest = Dest::Write { addr, rkey: PAGES };
                Request::Read { span, dest }.emit(&mut self.record);
                None
            } else if asked.write {
                Request::Write { span: asked.span, data: &asked.buf }.emit(&mut self.record);
                None
            } else {
                let Some(&place) = self.places.last() else { break };
                let addr = (place * self.page_len.next_multiple_of(8)) as u64;
                Request::Read { span: asked.span, dest: Dest::Write { addr, rkey: RKEY } }
                    .emit(&mut self.record);
                Some(place)
            };
            match dpu.rings.push(&self.record) {
                Ok(true) => {
                    asked.with = PartHolder::Dpu(place);
                    if place.is_some() {
                        self.places.pop();
                    }
                    self.waiting.pop_front();
                }
                Ok(false) => break,
                Err(_) => self.fence("wrote nonsense into its rings"),
            }
        }
        if let Some(dpu) = &mut self.dpu {
            dpu.rings.publish();
        }
    }

    /// Sends a part to the memory nodes with the window's own client.
    fn go_straight(&mut self, number: u64) {
        if let Err(error) = self.fenced() {
            return self.end(number, Err(error), None);
        }
        let asked = self.asked.get_mut(&number).expect("it is under way");
        if let PartHolder::Dpu(Some(place)) = std::mem::replace(&mut asked.with, PartHolder::Client) {
            self.places.push(place);
        }
        let (addr, at) = place_of(&asked.span, self.parts.laid());
        let len = asked.span.size as usize;
        let buf = if asked.write {
            let mut buf = self.client.buffer(0);
            if asked.placed {
                self.window.read_placed(in_window(self.window, at), len, &mut buf);
            } else {
                buf.extend_from_slice(&asked.buf);
            }
            buf
        } else {
            self.client.buffer(len)
        };
        let op = if asked.write { Op::Write { addr, buf } } else { Op::Read { addr, buf } };
        match self.client.submit(op) {
            Ok(ticket) => self.direct.push((ticket, number)),
            Err(error) => self.end(number, Err(error), None),
        }
    }

    /// Handles the end of a part. `bytes` are those of a successful read, unless its buffer contains them.
    fn end(&mut self, number: u64, result: Result<(), Error>, bytes: Option<Vec<u8>>) {
        let asked = self.asked.remove(&number).expect("it is under way");
        if let PartHolder::Dpu(Some(place)) = asked.with {
            self.places.push(place);
        }
        let (ended, rest) = self.parts.ended(number, result, bytes.unwrap_or(asked.buf));
        self.client.recycle(rest);
        self.ended.extend(ended);
    }

    /// Handles all available answers; returns true if there was one.
    fn take_answers(&mut self) -> bool {
        let mut took = false;
        while let Some(dpu) = &mut self.dpu {
            let len = match dpu.rings.pop(&mut self.answer) {
                Ok(Some(len)) => len,
                Ok(None) => break,
                Err(_) => {
                    self.fence("wrote nonsense into its rings");
                    break;
                }
            };
            took = true;
            let record = std::mem::take(&mut self.answer);
            match Answer::parse(&record[..len]) {
                Ok(answer) => self.take(answer),
                Err(_) => self.fence("sent an invalid answer"),
            }
            self.answer = record;
        }
        if took {
            self.send();
        }
        took
    }

    fn take(&mut self, answer: Answer<'_>) {
        use farmem_wire::soda::Ended as How;
        let is_it = |asked: &PendingPart| asked.span == answer.span && asked.write == answer.write;
        let has_it = |asked: &PendingPart| matches!(asked.with, PartHolder::Dpu(_));
        let found = self.asked.iter().find(|(_, asked)| has_it(asked) && is_it(asked));
        let Some((&number, asked)) = found else {
            return self.fence("answered a request that does not exist");
        };
        match answer.ended {
            How::Done if asked.write => self.end(number, Ok(()), None),
            How::Done if asked.placed => {
                let (_, at) = place_of(&answer.span, self.parts.laid());
                let first = Page::of(in_window(self.window, at));
                if !self.window.is_placed(first, answer.span.size as usize / PAGE_LEN) {
                    return self.fence("reported bytes that it had not written");
                }
                self.end(number, Ok(()), None);
            }
            How::Done => {
                let mut buf = if asked.buf.is_empty() {
                    self.client.buffer(asked.span.size as usize)
                } else {
                    std::mem::take(&mut self.asked.get_mut(&number).expect("it was found").buf)
                };
                let asked = &self.asked[&number];
                match (&self.dpu, asked.with) {
                    (Some(dpu), PartHolder::Dpu(Some(place))) if answer.data.is_empty() => {
                        dpu.rings.take(place * self.page_len.next_multiple_of(8), &mut buf);
                    }
                    _ => buf.copy_from_slice(answer.data),
                }
                self.end(number, Ok(()), Some(buf));
            }
            // The client reports the reason; no byte was changed, and no request is in flight. The same holds
            // for a write to lost memory, which the DPU does not cache.
            How::Refused if !answer.write => self.go_straight(number),
            How::Lost => self.go_straight(number),
            How::Refused => {
                let (addr, _) = place_of(&answer.span, self.parts.laid());
                self.end(number, Err(Error::NoPermission { addr }), None);
            }
            // The write may or may not have been executed.
            How::Failed => {
                let what = "far memory, through the DPU".into();
                self.end(number, Err(Error::Unreachable { what }), None);
            }
        }
    }

    /// Fences the DPU: its host leaves the rack, and pending requests go directly to the memory nodes.
    fn fence(&mut self, why: &str) {
        let Some(Dpu { talk, host, generation, process, .. }) = self.dpu.take() else { return };
        self.given_up = Some(talk);
        // A closed stderr is no fault.
        drop(writeln!(
            io::stderr(),
            "farmem: the DPU {why}; it is fenced, and this window continues without it"
        ));
        self.go_on((Some((host, generation)), process));
    }

    /// Continues without a DPU that has released this window and does not access its pages any more. Other
    /// windows may still use the DPU (PROTOCOL 17.17). If some requests may still be executed, the DPU's host
    /// leaves the rack before the window writes anything newer.
    fn part(&mut self, settled: bool) {
        let Some(Dpu { talk, host, generation, .. }) = self.dpu.take() else { return };
        self.given_up = Some(talk);
        // A closed stderr is no fault.
        drop(writeln!(io::stderr(), "farmem: the DPU has released this window, which continues without it"));
        self.go_on(((!settled).then_some((host, generation)), None));
    }

    /// Sends the parts that the DPU did not complete directly to the memory nodes, after the remaining fence
    /// and kill.
    fn go_on(&mut self, (to_fence, to_end): (Option<(u16, u16)>, Option<Other>)) {
        (self.to_fence, self.to_end) = (to_fence, to_end);
        self.waiting.clear();
        let open = self.asked.iter().filter(|(_, asked)| asked.with != PartHolder::Client);
        let open: Vec<u64> = open.map(|(&number, _)| number).collect();
        open.into_iter().for_each(|number| self.go_straight(number));
    }

    /// Completes the fence: the DPU's host leaves the rack, and a DPU that has the window's pages ends. Until
    /// then the DPU may still execute earlier writes, so the window must neither write newer bytes nor read.
    fn fenced(&mut self) -> Result<(), Error> {
        if let Some(process) = &self.to_end {
            process
                .end(LAST)
                .map_err(|source| Error::System { what: "the DPU does not end".into(), source })?;
            self.to_end = None;
        }
        let Some((host, generation)) = self.to_fence else { return Ok(()) };
        match self.client.fence(host, generation) {
            // The host left by itself, or another of its processes was faster.
            Err(error) if error.code() == Some(ErrorCode::NotFound) => {}
            Err(error) => {
                let what = format!("the control plane, to fence the DPU ({error})");
                return Err(Error::Unreachable { what });
            }
            Ok(()) => {}
        }
        self.to_fence = None;
        Ok(())
    }

    /// Fences a DPU that is gone, or that stops its heartbeat while requests are pending.
    fn look_after(&mut self) {
        let is_asked = self.asked.len() > self.direct.len();
        let Some(dpu) = &mut self.dpu else { return };
        if !dpu.talk.is_open() {
            return match dpu.farewell(&mut self.refused) {
                Some(settled) => self.part(settled),
                None => self.fence("is gone"),
            };
        }
        if dpu.pulse.is_over(dpu.rings.beat(), is_asked, self.clock.now()) {
            self.fence("does not serve");
        }
    }

    fn took(&mut self, completed: Completed) {
        let at = self.direct.iter().position(|(ticket, _)| *ticket == completed.ticket);
        let Some(at) = at else { return self.ended.push_back(completed.into()) };
        let (_, number) = self.direct.swap_remove(at);
        let PendingPart { write, placed, span, .. } = self.asked[&number];
        self.has_open_write |= write && matches!(completed.result, Err(Error::Unreachable { .. }));
        if placed && !write && completed.result.is_ok() {
            let (_, at) = place_of(&span, self.parts.laid());
            self.window.put_placed(in_window(self.window, at), &completed.buf);
        }
        let keeps = !write && !placed;
        let (bytes, rest) = if keeps { (Some(completed.buf), Vec::new()) } else { (None, completed.buf) };
        self.client.recycle(rest);
        self.end(number, completed.result.map(|_| ()), bytes);
    }

    /// Returns the number of answers of the DPU before any request of the window can complete: one wake-up
    /// serves all of them. While parts wait for space, fewer answers may arrive, so the number is 1.
    fn wanted(&self) -> u64 {
        if self.waiting.is_empty() { self.parts.least_left() as u64 } else { 1 }
    }

    pub(super) fn poll(&mut self) -> Result<Option<Ended>, Error> {
        self.take_answers();
        if self.ended.is_empty()
            && !self.direct.is_empty()
            && let Some(completed) = self.client.poll()?
        {
            self.took(completed);
        }
        Ok(self.ended.pop_front())
    }

    pub(super) fn poll_ended(&mut self) -> Option<Ended> {
        self.take_answers();
        while self.ended.is_empty() {
            let completed = self.client.poll_ended()?;
            self.took(completed);
        }
        self.ended.pop_front()
    }

    pub(super) fn next_completed(&mut self) -> Result<Option<Ended>, Error> {
        while self.ended.is_empty() && !self.asked.is_empty() {
            if self.take_answers() {
                continue;
            }
            if self.direct.is_empty() {
                if let Some(dpu) = &self.dpu {
                    dpu.rings.wait(self.wanted(), LOOK);
                }
                if !self.take_answers() {
                    self.look_after();
                }
                continue;
            }
            let by_client = self.direct.len() == self.asked.len();
            let completed = if by_client { self.client.next_completed()? } else { self.client.poll()? };
            match completed {
                Some(completed) => self.took(completed),
                None => self.look_after(),
            }
        }
        Ok(self.ended.pop_front())
    }
}
