//! One process at the thread of its domain: requests out of its ring, answers into the other.

use super::answering::{Answering, lock};
use super::carrier::{AskEnded, Carrier};
use super::complete::{From, Job, Stage};
use super::intra::Intra;
use super::landed::{Landed, Place};
use super::mailbox::Reply;
use super::messages::Carried;
use super::threads::{ThreadRequest, Threads};
use farmem_client::{Landing, Stretch};
use farmem_dpu::{Asker, PageId};
use farmem_link::dpu::{Answers, Registered, Requests, Submissions};
use farmem_machine::{Duration, Instant};
use farmem_paging::Cause;
use farmem_wire::soda::{Answer, Dest, Ended, RECORD_MAX, Request, Span};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Requests of one process that are under way or on the link, and answers that it did not take, at once.
const OUTSTANDING_MAX: usize = 1024;
/// Bytes of them, but for the last one's: each takes a buffer.
pub(super) const OUTSTANDING_BYTES: usize = 64 << 20;

/// How a process is served.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// No request is taken while others are under way.
    pub(super) blocking: bool,
    /// The link to it, where that is not as it is.
    pub(super) intra: Option<Arc<Intra>>,
    /// Other threads complete its reads of so many bytes or more, where many requests are under way; `None` where there are none.
    pub(super) staged: Option<u32>,
    /// How long its ring of answers may be full: a process that takes no answer in that time is sent away.
    pub(super) patience: Duration,
}

/// Requests under way, a new one included, from which on other threads complete them: of fewer each would only be held up by the way there (SODA IV-B).
pub(super) const MANY_MIN: usize = 2;
/// Memory files that a process may register beside what it shares for its rings.
pub(super) const REGISTERED_MAX: usize = 16;
/// The key of the memory that it shares for its rings.
const SHARED: u32 = 1;

/// A region that a process has open.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionAt {
    pub(super) object: u32,
    pub(super) bytes: u64,
    /// The process's domain owns it: what is cached of it is the process's to read.
    pub(super) granted: bool,
}

/// A process.
#[derive(Debug)]
pub(super) struct DpuClient {
    asker: Asker,
    requests: Requests,
    /// Answers to the process; shared with the threads that complete its requests.
    answering: Arc<Mutex<Answering>>,
    pub(super) regions: BTreeMap<u16, RegionAt>,
    registered: BTreeMap<u32, Arc<Registered>>,
    /// Its pending requests, by the carrier's tickets.
    pending: BTreeMap<u64, Pending>,
    /// Bytes of these.
    bytes: usize,
    /// Requests that another thread completes, and their bytes.
    passed: (usize, usize),
    /// Requests, and answers, that are on the link, and when they arrive.
    asked: VecDeque<(Instant, Vec<u8>)>,
    said: VecDeque<(Instant, Vec<u8>)>,
    /// Bytes of the records on the link.
    kept: usize,
    /// Regions that it closes, and the reply for when nothing of them is under way.
    closing: Vec<(u16, Reply)>,
    /// Regions of which a write has failed: far memory may carry it out later.
    unsure: BTreeSet<u16>,
    /// Requests of its threads, through a ring of theirs.
    threads: Option<Threads>,
    /// Counts for requests of its ring.
    carried: Carried,
    terms: Terms,
    /// Set when it wrote invalid data, and is to be sent away.
    gone: Arc<AtomicBool>,
    buf: Vec<u8>,
}

/// A request of its ring that is under way.
#[derive(Debug)]
struct Pending {
    span: Span,
    /// Where a read's bytes go; `None` of a write.
    dest: Option<Dest>,
    /// For a read that is answered by WRITE: its place, where there is one. Far memory's answer goes there from the very packets.
    landed: Option<Arc<Landed>>,
    /// Times that its bytes were moved or copied when it was taken.
    taken: Carried,
}

impl DpuClient {
    pub(super) fn new(
        asker: Asker,
        (requests, answers): (Requests, Answers),
        gone: Arc<AtomicBool>,
        terms: Terms,
    ) -> Self {
        Self {
            asker,
            requests,
            answering: Arc::new(Mutex::new(Answering::new(answers, Arc::clone(&gone)))),
            regions: BTreeMap::new(),
            registered: BTreeMap::new(),
            pending: BTreeMap::new(),
            bytes: 0,
            passed: (0, 0),
            asked: VecDeque::new(),
            said: VecDeque::new(),
            kept: 0,
            closing: Vec::new(),
            unsure: BTreeSet::new(),
            threads: None,
            carried: Carried::NOTHING,
            terms,
            gone,
            buf: vec![0; RECORD_MAX.next_multiple_of(8)],
        }
    }

    /// Serves it so from now on.
    #[cfg(test)]
    pub(super) fn set_terms(&mut self, terms: Terms) {
        self.terms = terms;
    }

    pub(super) const fn asker(&self) -> Asker {
        self.asker
    }

    /// Registers memory of the process by a key; false when that key is taken, or there are too many.
    pub(super) fn register(&mut self, rkey: u32, memory: Registered) -> bool {
        let fits =
            rkey > SHARED && self.registered.len() < REGISTERED_MAX && !self.registered.contains_key(&rkey);
        if fits {
            self.registered.insert(rkey, Arc::new(memory));
        }
        fits
    }

    /// Its threads ask through this ring from now on; false when they do through another one, or its link has a profile, which that ring does not.
    pub(super) fn hear_threads(&mut self, submissions: Submissions) -> bool {
        let may = self.threads.is_none() && self.terms.intra.is_none();
        if may {
            self.threads = Some(Threads::new(submissions));
        }
        may
    }

    /// Counts for its requests, those of its threads included.
    pub(super) fn carried(&self) -> Carried {
        let of_threads = self.threads.as_ref().map_or(Carried::NOTHING, |threads| threads.carried);
        let calls = self.registered.values().map(|memory| memory.calls()).sum();
        Carried { calls, ..self.carried.and(of_threads) }
    }

    /// Closes a region of the process: nothing more is taken that is asked of it, and `done` is told when nothing of it is under way; of one with a write that may be carried out
    /// later, that it cannot be closed.
    pub(super) fn close(&mut self, region: u16, done: Reply) {
        self.regions.remove(&region);
        self.closing.push((region, done));
        self.close_idle();
    }

    /// Says which regions are closed, and which cannot be.
    fn close_idle(&mut self) {
        let Self { closing, pending, threads, passed, unsure, .. } = self;
        // Which regions others complete is not kept: that takes no time to speak of.
        let is_busy = |region: u16| {
            passed.0 > 0
                || pending.values().any(|pending| pending.span.region == region)
                || threads.as_ref().is_some_and(|threads| threads.is_busy(region))
        };
        closing
            .extract_if(.., |(region, _)| !is_busy(*region))
            .for_each(|(region, done)| done.say(!unsure.contains(&region)));
    }

    /// All of its writes are known to have been carried out, or that they never will be.
    pub(super) fn is_settled(&self) -> bool {
        self.unsure.is_empty()
    }

    /// Something of it is under way that no other thread completes.
    #[cfg(test)]
    pub(super) fn waits_for_carrier(&self) -> bool {
        self.under_way() > self.passed.0
    }

    /// Reads of its ring that are under way and answered by WRITE, and where their bytes go.
    #[cfg(test)]
    pub(super) fn landings(&self) -> Vec<(Span, Arc<Landed>)> {
        self.pending.values().filter_map(|pending| Some((pending.span, pending.landed.clone()?))).collect()
    }

    /// Nothing of it is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way() == 0
    }

    fn under_way(&self) -> usize {
        let of_threads = self.threads.as_ref().map_or(0, |threads| threads.pending.len());
        self.pending.len() + self.passed.0 + of_threads
    }

    /// True when the carrier's ticket is a request of this process.
    pub(super) fn waits_for(&self, ticket: u64) -> bool {
        let of_threads = |threads: &Threads| threads.pending.contains_key(&ticket);
        self.pending.contains_key(&ticket) || self.threads.as_ref().is_some_and(of_threads)
    }

    /// Has the process sent away.
    pub(super) fn send_away(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Takes up to `batch` requests, and has them carried out; says how many there were.
    pub(super) fn take_requests(&mut self, carrier: &mut Carrier<'_>, batch: u32) -> u32 {
        self.requests.beat();
        self.arrive(carrier);
        lock(&self.answering).send_unsent(carrier.memory().now(), self.terms.patience);
        let mut taken = 0;
        if self.terms.blocking && !self.is_idle() {
            return taken;
        }
        while taken < batch && self.has_room() {
            let mut buf = std::mem::take(&mut self.buf);
            let popped = self.requests.pop(&mut buf);
            match popped {
                Ok(Some(len)) => {
                    taken += 1;
                    self.came(carrier, &buf[..len]);
                }
                Ok(None) => {}
                Err(_) => self.send_away(),
            }
            self.buf = buf;
            if popped == Ok(None) {
                break;
            }
        }
        if taken > 0 {
            self.requests.release();
        }
        taken + self.take_of_threads(carrier, batch)
    }

    /// Takes up to `batch` requests of its threads.
    fn take_of_threads(&mut self, carrier: &mut Carrier<'_>, batch: u32) -> u32 {
        let Some(mut threads) = self.threads.take() else { return 0 };
        let page_len = carrier.memory().page_len() as u64;
        let mut taken = 0;
        while taken < batch && self.has_room() && threads.pending.len() < OUTSTANDING_MAX {
            let next = threads.next(self.buf.len());
            let Ok(Some(record)) = next else {
                if next.is_err() {
                    self.send_away();
                }
                break;
            };
            taken += 1;
            let wanted = threads.take(record, &self.regions, page_len, &lock(&self.answering).answers);
            let (ticket, asked) = match wanted {
                Err(_) => {
                    self.send_away();
                    break;
                }
                Ok(ThreadRequest::Nothing) => continue,
                Ok(ThreadRequest::Read { page, bytes, granted, asked }) => {
                    let landing = Landed::new(Place::Shared(asked.data_at()), &self.answering, false);
                    (carrier.read_to(self.asker, page, bytes, granted, landing), asked)
                }
                Ok(ThreadRequest::Write { page, offset, asked }) => {
                    let mut buf = carrier.client.buffer(asked.size as usize);
                    threads.bring(record, &mut buf);
                    (carrier.write(self.asker, page, offset, buf), asked)
                }
            };
            self.bytes += asked.size as usize;
            threads.pending.insert(ticket, asked);
        }
        if taken > 0 {
            threads.submissions.release();
        }
        self.threads = Some(threads);
        taken
    }

    /// More requests may be taken.
    fn has_room(&self) -> bool {
        let many = self.under_way() + self.asked.len() + self.said.len();
        let line = lock(&self.answering);
        let fits = many < OUTSTANDING_MAX && self.bytes + self.kept + line.kept() < OUTSTANDING_BYTES;
        fits && line.is_sent() && !self.is_gone()
    }

    /// Bytes of its requests, and of what is kept for it.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.bytes + self.kept + lock(&self.answering).kept()
    }

    /// A record is in the ring: over a link with a profile it arrives later.
    fn came(&mut self, carrier: &mut Carrier<'_>, record: &[u8]) {
        match &self.terms.intra {
            None => self.parse(carrier, record),
            Some(intra) => {
                let due = intra.reach_dpu(carrier.memory().now(), record.len());
                self.kept += record.len();
                self.asked.push_back((due, record.to_vec()));
            }
        }
    }

    fn parse(&mut self, carrier: &mut Carrier<'_>, record: &[u8]) {
        match Request::parse(record) {
            Ok(request) => self.take(carrier, request),
            Err(_) => self.send_away(),
        }
    }

    /// Takes requests that were on the emulated link and have arrived by now.
    fn arrive(&mut self, carrier: &mut Carrier<'_>) {
        if !self.holds() {
            return;
        }
        let now = carrier.memory().now();
        while let Some((_, record)) = self.asked.pop_front_if(|(due, _)| *due <= now) {
            self.kept -= record.len();
            self.parse(carrier, &record);
        }
        while let Some((_, record)) = self.said.pop_front_if(|(due, _)| *due <= now) {
            self.kept -= record.len();
            lock(&self.answering).send(record);
        }
    }

    /// Something is on the link.
    pub(super) fn holds(&self) -> bool {
        !self.asked.is_empty() || !self.said.is_empty()
    }

    fn take(&mut self, carrier: &mut Carrier<'_>, request: Request<'_>) {
        let (Request::Read { span, .. } | Request::Write { span, .. } | Request::WriteFrom { span, .. }) =
            request;
        let page_len = carrier.memory().page_len() as u64;
        let end = span.offset + u64::from(span.size); // 2^48 and 2^20 at most
        let open = self.regions.get(&span.region).copied();
        // One page has its bytes.
        let open = open.filter(|open| end <= open.bytes && span.offset / page_len == (end - 1) / page_len);
        let write = !matches!(request, Request::Read { .. });
        let refused = Answer { span, write, ended: Ended::Refused, data: &[] };
        let Some(RegionAt { object, granted, .. }) = open else { return self.push(refused) };
        let page = PageId { object, page: span.offset / page_len };
        let offset = usize::try_from(span.offset % page_len).expect("in a page");
        let (mut landed, mut taken) = (None, Carried::NOTHING);
        let (ticket, dest) = match request {
            // Its ring would never have room for the answer.
            Request::Read { dest: Dest::Send, .. }
                if !lock(&self.answering).answers.fits(Answer::record_len(span.size as usize)) =>
            {
                return self.push(refused);
            }
            Request::Read { dest, .. } => {
                let at = offset..offset + span.size as usize;
                let place = match dest {
                    Dest::Write { addr, rkey } => self.place(rkey.0, addr),
                    Dest::Send => None,
                };
                landed = place.map(|place| Landed::new(place, &self.answering, self.is_staged(span.size)));
                let ticket = if let Some(landed) = &landed {
                    carrier.read_to(self.asker, page, at, granted, Arc::clone(landed) as Arc<dyn Landing>)
                } else {
                    carrier.read(self.asker, page, at, granted, Vec::new())
                };
                (ticket, Some(dest))
            }
            Request::Write { data, .. } => {
                let mut buf = carrier.client.buffer(0);
                buf.extend_from_slice(data);
                // Out of the ring, and then to where it is sent from.
                taken = Carried { moves: 1, copies: 1, ..taken };
                (carrier.write(self.asker, page, offset, buf), None)
            }
            Request::WriteFrom { addr, rkey, .. } => {
                let len = span.size as usize;
                let memory = self.registered.get(&rkey.0).filter(|memory| memory.holds(addr, len));
                let Some(memory) = memory else { return self.push(refused) };
                let from = Arc::new(From(Arc::clone(memory), addr));
                taken.moves = 1;
                (carrier.write_from(self.asker, page, offset, Stretch::new(from, len)), None)
            }
        };
        self.bytes += span.size as usize;
        self.pending.insert(ticket, Pending { span, dest, landed, taken });
    }

    /// Another thread completes a read of so many bytes that is taken now: it is long, and many requests are under way.
    fn is_staged(&self, bytes: u32) -> bool {
        self.terms.staged.is_some_and(|least| bytes >= least) && self.under_way() + 1 >= MANY_MIN
    }

    /// Answers a request that ended.
    pub(super) fn answer(&mut self, carrier: &mut Carrier<'_>, ended: AskEnded, stage: Option<&mut Stage>) {
        self.answer_one(carrier, ended, stage);
        self.close_idle();
    }

    /// A thread of the stage has completed one of its requests, of so many bytes.
    pub(super) fn completed(&mut self, bytes: usize) {
        self.passed = (self.passed.0 - 1, self.passed.1 - bytes);
        self.bytes -= bytes;
        self.close_idle();
    }

    /// True while it waits for the stage before it goes on, or goes.
    pub(super) fn awaits_stage(&self) -> bool {
        self.passed.0 > 0
            && (self.terms.blocking || !self.closing.is_empty() || !self.has_room() || self.is_gone())
    }

    fn answer_one(&mut self, carrier: &mut Carrier<'_>, ended: AskEnded, stage: Option<&mut Stage>) {
        if let Some(threads) = &mut self.threads
            && let Some(asked) = threads.pending.remove(&ended.ticket)
        {
            self.bytes -= asked.size as usize;
            let (how, copies) = (how_ended(&ended), ended.copies());
            if asked.is_write() && how == Ended::Failed {
                self.unsure.insert(asked.region);
            }
            let mut is_said = false;
            carrier.finish(ended, None, |data| {
                if how == Ended::Done {
                    threads.answer(&lock(&self.answering).answers, asked, how, data, copies);
                    is_said = true;
                }
            });
            if !is_said {
                threads.answer(&lock(&self.answering).answers, asked, how, &[], copies);
            }
            return;
        }
        let Pending { span, dest, mut landed, taken } =
            self.pending.remove(&ended.ticket).expect("it waits for this");
        let is_send = matches!(dest, Some(Dest::Send));
        let done = Carried {
            requests: 1,
            moves: u64::from(dest.is_some() && ended.result.is_ok()),
            // An answer with data is put together before it goes into the ring.
            copies: ended.copies() + u64::from(is_send && ended.result.is_ok()),
            ..Carried::NOTHING
        };
        self.carried = self.carried.and(taken).and(done);
        if let Some(stage) = stage
            && ended.result.is_ok()
            && let Some(landed) = landed.take_if(|landed| landed.is_for_others(ended.has_landed()))
        {
            self.passed = (self.passed.0 + 1, self.passed.1 + span.size as usize);
            self.carried.passed += 1;
            return stage.pass(Job { asker: self.asker, span, moving: carrier.moving(ended), landed });
        }
        self.bytes -= span.size as usize;
        let write = dest.is_none();
        let how = how_ended(&ended);
        if write && how == Ended::Failed {
            self.unsure.insert(span.region);
        }
        let done = how == Ended::Done && !write;
        let due = self.terms.intra.as_ref().map(|intra| {
            let data = if done { span.size as usize } else { 0 };
            intra.reach_host(carrier.memory().now(), Answer::LEN + data)
        });
        if !done {
            if let Some(landed) = landed {
                landed.let_go();
            }
            carrier.finish(ended, None, |_| {});
            return self.say(due, Answer { span, write, ended: how, data: &[] });
        }
        carrier.finish(ended, due, |bytes| {
            if is_send {
                return self.say(due, Answer { span, write, ended: how, data: bytes });
            }
            // Its registered memory has no such bytes, or it registered none.
            let is_put = landed.is_some_and(|landed| landed.complete(bytes));
            let ended = if is_put { how } else { Ended::Refused };
            self.say(due, Answer { span, write, ended, data: &[] });
        });
    }

    /// Answers, at once or when the link has carried it.
    fn say(&mut self, due: Option<Instant>, answer: Answer<'_>) {
        let Some(due) = due else { return self.push(answer) };
        let mut record = Vec::new();
        answer.emit(&mut record);
        self.kept += record.len();
        self.said.push_back((due, record));
    }

    /// Where bytes of it go; `None` when it registered no such memory.
    fn place(&self, rkey: u32, addr: u64) -> Option<Place> {
        if rkey == SHARED {
            return Some(Place::Shared(addr));
        }
        self.registered.get(&rkey).map(|memory| Place::Registered(Arc::clone(memory), addr))
    }

    fn push(&self, answer: Answer<'_>) {
        lock(&self.answering).push(answer);
    }

    /// Lets the process see its answers.
    pub(super) fn publish(&self) {
        lock(&self.answering).publish();
    }

    /// From here on the process wakes the DPU; false when there is something to do for it.
    pub(super) fn may_sleep(&self) -> bool {
        self.requests.may_sleep()
            && self.threads.as_ref().is_none_or(|threads| threads.submissions.may_sleep())
            || !self.has_room()
            || self.terms.blocking && !self.is_idle()
    }

    /// The process need not wake the DPU.
    pub(super) fn stays_awake(&self) {
        self.requests.stays_awake();
        if let Some(threads) = &self.threads {
            threads.submissions.stays_awake();
        }
    }
}

/// How a request ended, as the process is told.
fn how_ended(ended: &AskEnded) -> Ended {
    match &ended.result {
        Ok(()) => Ended::Done,
        Err(failed) => match failed.cause {
            Cause::Lost => Ended::Lost,
            Cause::Refused => Ended::Refused,
            _ => Ended::Failed,
        },
    }
}
