//! One process at the thread of its domain: requests from one ring, answers into the other.

use super::answering::{Answering, lock};
use super::carrier::{AskEnded, Carrier};
use super::complete::{From, Job, Stage};
use super::intra::Intra;
use super::mailbox::Reply;
use super::messages::Carried;
use super::read_delivery::{AnswerTarget, ReadDelivery};
use super::threads::{ThreadRequest, Threads};
use farmem_client::{PayloadSink, SourcePart};
use farmem_dpu::{Asker, PageId};
use farmem_link::dpu::{Answers, Registered, Requests, Submissions};
use farmem_machine::{Duration, Instant};
use farmem_paging::Cause;
use farmem_wire::soda::{Answer, Dest, Ended, RECORD_MAX, Request, Span};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum number of requests of one process that are pending or on the link, plus its unsent answers.
const OUTSTANDING_MAX: usize = 1024;
/// Maximum number of bytes of these requests, not counting the last: each has a buffer.
pub(super) const OUTSTANDING_BYTES: usize = 64 << 20;

/// The terms on which a process is served.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// True if the DPU takes one request at a time.
    pub(super) blocking: bool,
    /// The emulated link to the process; `None` for plain shared memory.
    pub(super) intra: Option<Arc<Intra>>,
    /// Minimum length in bytes of the reads that other threads complete, if several requests are pending; `None`
    /// without such threads.
    pub(super) staged: Option<u32>,
    /// Maximum time that the ring of answers may be full. A process that takes no answer for so long is disconnected.
    pub(super) patience: Duration,
}

/// Minimum number of pending requests, with a new one, for which other threads complete requests. A single request
/// would only be delayed by the hand-over (SODA IV-B).
pub(super) const MANY_MIN: usize = 2;
/// Maximum number of memory files that a process may register in addition to the memory of its rings.
pub(super) const REGISTERED_MAX: usize = 16;
/// The key of the memory that the process shares for its rings.
const SHARED: u32 = 1;

/// A region that a process has open.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionAt {
    pub(super) object: u32,
    pub(super) bytes: u64,
    /// True if the process's domain owns the object, so the process may read its cached pages.
    pub(super) granted: bool,
}

/// A process that the DPU serves.
#[derive(Debug)]
pub(super) struct DpuClient {
    asker: Asker,
    requests: Requests,
    /// Answers to the process, shared with the threads that complete its requests.
    answering: Arc<Mutex<Answering>>,
    pub(super) regions: BTreeMap<u16, RegionAt>,
    registered: BTreeMap<u32, Arc<Registered>>,
    /// The pending requests, by the carrier's tickets.
    pending: BTreeMap<u64, Pending>,
    /// Sum of the bytes of pending requests.
    bytes: usize,
    /// Number and bytes of the requests that another thread completes.
    passed: (usize, usize),
    /// Requests and answers that are on the emulated link, with their arrival times.
    asked: VecDeque<(Instant, Vec<u8>)>,
    said: VecDeque<(Instant, Vec<u8>)>,
    /// Bytes of the records on the link.
    kept: usize,
    /// Regions that the process closes, and the reply that is due when none of their requests is pending.
    closing: Vec<(u16, Reply)>,
    /// Regions with a failed write, which far memory may still execute later.
    unsure: BTreeSet<u16>,
    /// Requests of the process's threads, through a ring of their own.
    threads: Option<Threads>,
    /// Counts for requests of the process's ring.
    carried: Carried,
    terms: Terms,
    /// Set when the process wrote invalid data and must be disconnected.
    gone: Arc<AtomicBool>,
    buf: Vec<u8>,
}

/// A pending request of the process's ring.
#[derive(Debug)]
struct Pending {
    span: Span,
    /// The destination of a read's bytes; `None` for a write.
    dest: Option<Dest>,
    /// The place of a read that is answered by WRITE, if the process registered it. Far memory's answer goes there
    /// straight from the packets.
    landed: Option<Arc<ReadDelivery>>,
    /// Number of moves and copies of the request's bytes when the DPU took it.
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

    /// Changes the terms on which the process is served.
    #[cfg(test)]
    pub(super) fn set_terms(&mut self, terms: Terms) {
        self.terms = terms;
    }

    pub(super) const fn asker(&self) -> Asker {
        self.asker
    }

    /// Registers memory of the process by a key. Returns false if the key is in use or too many memories are
    /// registered.
    pub(super) fn register(&mut self, rkey: u32, memory: Registered) -> bool {
        let fits =
            rkey > SHARED && self.registered.len() < REGISTERED_MAX && !self.registered.contains_key(&rkey);
        if fits {
            self.registered.insert(rkey, Arc::new(memory));
        }
        fits
    }

    /// Accepts requests of the process's threads through this ring. Returns false if they already have one, or if the
    /// link has a profile, which this ring does not support.
    pub(super) fn hear_threads(&mut self, submissions: Submissions) -> bool {
        let may = self.threads.is_none() && self.terms.intra.is_none();
        if may {
            self.threads = Some(Threads::new(submissions));
        }
        may
    }

    /// Returns the counts for requests of the process and its threads.
    pub(super) fn carried(&self) -> Carried {
        let of_threads = self.threads.as_ref().map_or(Carried::NOTHING, |threads| threads.carried);
        let calls = self.registered.values().map(|memory| memory.calls()).sum();
        Carried { calls, ..self.carried.and(of_threads) }
    }

    /// Closes a region of the process: the DPU takes no further requests on it. `done` gets true when none of its
    /// requests is pending, or false if far memory may execute one of its writes later.
    pub(super) fn close(&mut self, region: u16, done: Reply) {
        self.regions.remove(&region);
        self.closing.push((region, done));
        self.close_idle();
    }

    /// Replies for each closing region that has no pending requests.
    fn close_idle(&mut self) {
        let Self { closing, pending, threads, passed, unsure, .. } = self;
        // The regions of requests at other threads are not recorded, because those requests end soon.
        let is_busy = |region: u16| {
            passed.0 > 0
                || pending.values().any(|pending| pending.span.region == region)
                || threads.as_ref().is_some_and(|threads| threads.is_busy(region))
        };
        closing
            .extract_if(.., |(region, _)| !is_busy(*region))
            .for_each(|(region, done)| done.say(!unsure.contains(&region)));
    }

    /// Returns true if each write was either executed or never will be.
    pub(super) fn is_settled(&self) -> bool {
        self.unsure.is_empty()
    }

    /// Returns true if a request is pending that no other thread completes.
    #[cfg(test)]
    pub(super) fn waits_for_carrier(&self) -> bool {
        self.under_way() > self.passed.0
    }

    /// Returns the pending reads of the ring that are answered by WRITE, with the destinations of their bytes.
    #[cfg(test)]
    pub(super) fn landings(&self) -> Vec<(Span, Arc<ReadDelivery>)> {
        self.pending.values().filter_map(|pending| Some((pending.span, pending.landed.clone()?))).collect()
    }

    /// Returns true if no request is pending.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way() == 0
    }

    fn under_way(&self) -> usize {
        let of_threads = self.threads.as_ref().map_or(0, |threads| threads.pending.len());
        self.pending.len() + self.passed.0 + of_threads
    }

    /// Returns true if the carrier's ticket is a request of this process.
    pub(super) fn waits_for(&self, ticket: u64) -> bool {
        let of_threads = |threads: &Threads| threads.pending.contains_key(&ticket);
        self.pending.contains_key(&ticket) || self.threads.as_ref().is_some_and(of_threads)
    }

    /// Marks the process for disconnection.
    pub(super) fn send_away(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Takes up to `batch` requests and starts them. Returns the number of requests.
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

    /// Takes up to `batch` requests of the process's threads.
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
                    let landing =
                        ReadDelivery::new(AnswerTarget::Shared(asked.data_at()), &self.answering, false);
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

    /// Returns true if the DPU may take more requests of the process.
    fn has_room(&self) -> bool {
        let many = self.under_way() + self.asked.len() + self.said.len();
        let line = lock(&self.answering);
        let fits = many < OUTSTANDING_MAX && self.bytes + self.kept + line.kept() < OUTSTANDING_BYTES;
        fits && line.is_sent() && !self.is_gone()
    }

    /// Returns the bytes of the process's requests and of the records that are held for it.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.bytes + self.kept + lock(&self.answering).kept()
    }

    /// Accepts a record from the ring. Over a link with a profile, the record arrives later.
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

    /// Takes the requests and answers that have crossed the emulated link by now.
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

    /// Returns true if a record is on the emulated link.
    pub(super) fn holds(&self) -> bool {
        !self.asked.is_empty() || !self.said.is_empty()
    }

    fn take(&mut self, carrier: &mut Carrier<'_>, request: Request<'_>) {
        let (Request::Read { span, .. } | Request::Write { span, .. } | Request::WriteFrom { span, .. }) =
            request;
        let page_len = carrier.memory().page_len() as u64;
        let end = span.offset + u64::from(span.size); // 2^48 and 2^20 at most
        let open = self.regions.get(&span.region).copied();
        // All bytes are in one page.
        let open = open.filter(|open| end <= open.bytes && span.offset / page_len == (end - 1) / page_len);
        let write = !matches!(request, Request::Read { .. });
        let refused = Answer { span, write, ended: Ended::Refused, data: &[] };
        let Some(RegionAt { object, granted, .. }) = open else { return self.push(refused) };
        let page = PageId { object, page: span.offset / page_len };
        let offset = usize::try_from(span.offset % page_len).expect("in a page");
        let (mut landed, mut taken) = (None, Carried::NOTHING);
        let (ticket, dest) = match request {
            // The ring would never have room for the answer.
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
                landed =
                    place.map(|place| ReadDelivery::new(place, &self.answering, self.is_staged(span.size)));
                let ticket = if let Some(landed) = &landed {
                    carrier.read_to(self.asker, page, at, granted, Arc::clone(landed) as Arc<dyn PayloadSink>)
                } else {
                    carrier.read(self.asker, page, at, granted, Vec::new())
                };
                (ticket, Some(dest))
            }
            Request::Write { data, .. } => {
                let mut buf = carrier.client.buffer(0);
                buf.extend_from_slice(data);
                // One move out of the ring, one copy to the send buffer.
                taken = Carried { moves: 1, copies: 1, ..taken };
                (carrier.write(self.asker, page, offset, buf), None)
            }
            Request::WriteFrom { addr, rkey, .. } => {
                let len = span.size as usize;
                let memory = self.registered.get(&rkey.0).filter(|memory| memory.holds(addr, len));
                let Some(memory) = memory else { return self.push(refused) };
                let from = Arc::new(From(Arc::clone(memory), addr));
                taken.moves = 1;
                (carrier.write_from(self.asker, page, offset, SourcePart::new(from, len)), None)
            }
        };
        self.bytes += span.size as usize;
        self.pending.insert(ticket, Pending { span, dest, landed, taken });
    }

    /// Returns true if another thread completes a read of `bytes` bytes: the read is long, and other requests are
    /// pending.
    fn is_staged(&self, bytes: u32) -> bool {
        self.terms.staged.is_some_and(|least| bytes >= least) && self.under_way() + 1 >= MANY_MIN
    }

    /// Answers a request that ended.
    pub(super) fn answer(&mut self, carrier: &mut Carrier<'_>, ended: AskEnded, stage: Option<&mut Stage>) {
        self.answer_one(carrier, ended, stage);
        self.close_idle();
    }

    /// Accounts for a request of `bytes` bytes that a thread of the stage completed.
    pub(super) fn completed(&mut self, bytes: usize) {
        self.passed = (self.passed.0 - 1, self.passed.1 - bytes);
        self.bytes -= bytes;
        self.close_idle();
    }

    /// Returns true while the process must wait for the stage before it continues or leaves.
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
            // An answer with data is assembled before it enters the ring.
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
            // The registered memory has no such bytes, or the process registered none.
            let is_put = landed.is_some_and(|landed| landed.complete(bytes));
            let ended = if is_put { how } else { Ended::Refused };
            self.say(due, Answer { span, write, ended, data: &[] });
        });
    }

    /// Answers at once, or when the link has carried the answer.
    fn say(&mut self, due: Option<Instant>, answer: Answer<'_>) {
        let Some(due) = due else { return self.push(answer) };
        let mut record = Vec::new();
        answer.emit(&mut record);
        self.kept += record.len();
        self.said.push_back((due, record));
    }

    /// Returns the destination of bytes of the process; `None` if no such memory is registered.
    fn place(&self, rkey: u32, addr: u64) -> Option<AnswerTarget> {
        if rkey == SHARED {
            return Some(AnswerTarget::Shared(addr));
        }
        self.registered.get(&rkey).map(|memory| AnswerTarget::Registered(Arc::clone(memory), addr))
    }

    fn push(&self, answer: Answer<'_>) {
        lock(&self.answering).push(answer);
    }

    /// Makes the answers visible to the process.
    pub(super) fn publish(&self) {
        lock(&self.answering).publish();
    }

    /// Announces that the process must wake the DPU from now on. Returns false if there is work for the DPU.
    pub(super) fn may_sleep(&self) -> bool {
        self.requests.may_sleep()
            && self.threads.as_ref().is_none_or(|threads| threads.submissions.may_sleep())
            || !self.has_room()
            || self.terms.blocking && !self.is_idle()
    }

    /// Announces that the process need not wake the DPU.
    pub(super) fn stays_awake(&self) {
        self.requests.stays_awake();
        if let Some(threads) = &self.threads {
            threads.submissions.stays_awake();
        }
    }
}

/// Returns the result of a request in terms of the ring's protocol.
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
