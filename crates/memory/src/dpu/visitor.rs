//! One process at the thread of its domain: requests out of its ring, answers into the other.

use super::carrier::{AskEnded, Carrier};
use super::intra::Intra;
use super::threads::{Threads, Wanted};
use farmem_dpu::{Asker, PageId};
use farmem_io::dpu::{Answers, Registered, Requests, Submissions};
use farmem_machine::Instant;
use farmem_paging::Cause;
use farmem_wire::soda::{Answer, Dest, Ended, RECORD_MAX, Request, Span};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests of one process under way at once.
const OUTSTANDING_MAX: usize = 1024;
/// Bytes of them, but for the last one's: each takes a buffer.
const OUTSTANDING_BYTES: usize = 64 << 20;

/// How a process is served.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// No request is taken while others are under way.
    pub(super) blocking: bool,
    /// The link to it, where that is not as it is.
    pub(super) intra: Option<Arc<Intra>>,
}

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
pub(super) struct Visitor {
    asker: Asker,
    requests: Requests,
    answers: Answers,
    pub(super) regions: BTreeMap<u16, RegionAt>,
    registered: BTreeMap<u32, Registered>,
    /// What it waits for, by the carrier's tickets.
    pending: BTreeMap<u64, (Span, Option<Dest>)>,
    /// Bytes of these.
    bytes: usize,
    /// Answers that its ring has no room for.
    unsent: VecDeque<Vec<u8>>,
    /// Requests, and answers, that are on the link, and when they arrive.
    asked: VecDeque<(Instant, Vec<u8>)>,
    said: VecDeque<(Instant, Vec<u8>)>,
    /// What its threads ask for through a ring of theirs.
    threads: Option<Threads>,
    terms: Terms,
    /// It wrote nonsense, and is to be sent away.
    gone: Arc<AtomicBool>,
    record: Vec<u8>,
    buf: Vec<u8>,
}

impl Visitor {
    pub(super) fn new(
        asker: Asker,
        (requests, answers): (Requests, Answers),
        gone: Arc<AtomicBool>,
        terms: Terms,
    ) -> Self {
        Self {
            asker,
            requests,
            answers,
            regions: BTreeMap::new(),
            registered: BTreeMap::new(),
            pending: BTreeMap::new(),
            bytes: 0,
            unsent: VecDeque::new(),
            asked: VecDeque::new(),
            said: VecDeque::new(),
            threads: None,
            terms,
            gone,
            record: Vec::new(),
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

    /// It registers memory by a key; false when that key is taken, or there are too many.
    pub(super) fn register(&mut self, rkey: u32, memory: Registered) -> bool {
        let fits =
            rkey > SHARED && self.registered.len() < REGISTERED_MAX && !self.registered.contains_key(&rkey);
        if fits {
            self.registered.insert(rkey, memory);
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

    /// Requests of its threads that were answered, and copies of their bytes.
    pub(super) fn copies(&self) -> (u64, u64) {
        self.threads.as_ref().map_or((0, 0), |threads| (threads.answered, threads.copies))
    }

    /// Nothing of it is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way() == 0
    }

    fn under_way(&self) -> usize {
        self.pending.len() + self.threads.as_ref().map_or(0, |threads| threads.pending.len())
    }

    /// True when the carrier's ticket is a request of this process.
    pub(super) fn waits_for(&self, ticket: u64) -> bool {
        let of_threads = |threads: &Threads| threads.pending.contains_key(&ticket);
        self.pending.contains_key(&ticket) || self.threads.as_ref().is_some_and(of_threads)
    }

    /// It is to be sent away.
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
        self.send_unsent();
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
            let popped = threads.submissions.pop(&mut self.buf);
            let Ok(Some(len)) = popped else {
                if popped.is_err() {
                    self.send_away();
                }
                break;
            };
            taken += 1;
            let (ticket, asked) = match threads.take(&self.buf[..len], &self.regions, page_len, &self.answers)
            {
                Err(_) => {
                    self.send_away();
                    break;
                }
                Ok(Wanted::Nothing) => continue,
                Ok(Wanted::Read { page, bytes, granted, asked }) => {
                    (carrier.read(self.asker, page, bytes, granted, Vec::new()), asked)
                }
                Ok(Wanted::Write { page, offset, data, asked }) => {
                    let mut buf = carrier.client.buffer(0);
                    buf.extend_from_slice(data);
                    threads.copies += 1;
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
        let fits = self.under_way() + self.asked.len() < OUTSTANDING_MAX && self.bytes < OUTSTANDING_BYTES;
        fits && self.unsent.is_empty() && !self.is_gone()
    }

    /// A record is in the ring: over a link with a profile it arrives later.
    fn came(&mut self, carrier: &mut Carrier<'_>, record: &[u8]) {
        match &self.terms.intra {
            None => self.parse(carrier, record),
            Some(intra) => {
                let due = intra.reach_dpu(carrier.memory().now(), record.len());
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

    /// What was on the link and has arrived by now.
    fn arrive(&mut self, carrier: &mut Carrier<'_>) {
        if !self.holds() {
            return;
        }
        let now = carrier.memory().now();
        while let Some((_, record)) = self.asked.pop_front_if(|(due, _)| *due <= now) {
            self.parse(carrier, &record);
        }
        while let Some((_, record)) = self.said.pop_front_if(|(due, _)| *due <= now) {
            self.send(record);
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
        let (ticket, dest) = match request {
            Request::Read { dest, .. } => {
                let at = offset..offset + span.size as usize;
                (carrier.read(self.asker, page, at, granted, Vec::new()), Some(dest))
            }
            Request::Write { data, .. } => {
                let mut buf = carrier.client.buffer(0);
                buf.extend_from_slice(data);
                (carrier.write(self.asker, page, offset, buf), None)
            }
            Request::WriteFrom { addr, rkey, .. } => {
                let mut buf = carrier.client.buffer(span.size as usize);
                let memory = self.registered.get(&rkey.0);
                if !memory.is_some_and(|memory| memory.take(addr, &mut buf)) {
                    carrier.client.recycle(buf);
                    return self.push(refused);
                }
                (carrier.write(self.asker, page, offset, buf), None)
            }
        };
        self.bytes += span.size as usize;
        self.pending.insert(ticket, (span, dest));
    }

    /// Answers a request that ended; `true` when it failed in a way that far memory did not decide: the client may be no member of the rack any more.
    pub(super) fn answer(&mut self, carrier: &mut Carrier<'_>, ended: AskEnded) {
        if let Some(threads) = &mut self.threads
            && let Some(asked) = threads.pending.remove(&ended.ticket)
        {
            self.bytes -= asked.size as usize;
            let how = how_ended(&ended);
            let mut is_said = false;
            carrier.finish(ended, None, |data| {
                if how == Ended::Done {
                    threads.answer(&self.answers, asked, how, data);
                    is_said = true;
                }
            });
            if !is_said {
                threads.answer(&self.answers, asked, how, &[]);
            }
            return;
        }
        let (span, dest) = self.pending.remove(&ended.ticket).expect("it waits for this");
        self.bytes -= span.size as usize;
        let write = dest.is_none();
        let how = how_ended(&ended);
        let done = how == Ended::Done && !write;
        let due = self.terms.intra.as_ref().map(|intra| {
            let data = if done { span.size as usize } else { 0 };
            intra.reach_host(carrier.memory().now(), Answer::LEN + data)
        });
        if !done {
            carrier.finish(ended, None, |_| {});
            return self.say(due, Answer { span, write, ended: how, data: &[] });
        }
        carrier.finish(ended, due, |bytes| match dest {
            Some(Dest::Write { addr, rkey }) if self.put(rkey.0, addr, bytes) => {
                self.say(due, Answer { span, write, ended: how, data: &[] });
            }
            Some(Dest::Send) => self.say(due, Answer { span, write, ended: how, data: bytes }),
            // What it registered has no such bytes.
            _ => self.say(due, Answer { span, write, ended: Ended::Refused, data: &[] }),
        });
    }

    /// Answers, at once or when the link has carried it.
    fn say(&mut self, due: Option<Instant>, answer: Answer<'_>) {
        let Some(due) = due else { return self.push(answer) };
        let mut record = Vec::new();
        answer.emit(&mut record);
        self.said.push_back((due, record));
    }

    fn put(&self, rkey: u32, addr: u64, bytes: &[u8]) -> bool {
        if rkey == SHARED {
            return self.answers.put(addr, bytes);
        }
        self.registered.get(&rkey).is_some_and(|memory| memory.put(addr, bytes))
    }

    fn push(&mut self, answer: Answer<'_>) {
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        answer.emit(&mut record);
        self.record = self.send(record).unwrap_or_default();
    }

    /// Writes an answer into its ring, when there is room for it; gives it back when it is done with it.
    fn send(&mut self, record: Vec<u8>) -> Option<Vec<u8>> {
        if self.unsent.is_empty() {
            match self.answers.push(&record) {
                Ok(true) => return Some(record),
                Ok(false) => {}
                Err(_) => self.send_away(),
            }
        }
        self.unsent.push_back(record);
        None
    }

    fn send_unsent(&mut self) {
        while let Some(record) = self.unsent.front() {
            match self.answers.push(record) {
                Ok(true) => drop(self.unsent.pop_front()),
                Ok(false) => return self.answers.publish(),
                Err(_) => return self.send_away(),
            }
        }
    }

    /// Lets the process see its answers.
    pub(super) fn publish(&mut self) {
        self.answers.publish();
    }

    /// From here on the process wakes the DPU; false when there is something to do for it.
    pub(super) fn may_sleep(&self) -> bool {
        self.requests.may_sleep()
            && self.threads.as_ref().is_none_or(|threads| threads.submissions.may_sleep())
            || self.is_gone()
            || self.under_way() >= OUTSTANDING_MAX
            || self.bytes >= OUTSTANDING_BYTES
            || self.terms.blocking && !self.is_idle()
            || !self.unsent.is_empty()
    }

    /// The process need not wake the DPU.
    pub(super) fn stays_awake(&self) {
        self.requests.stays_awake();
        if let Some(threads) = &self.threads {
            threads.submissions.stays_awake();
        }
    }
}

/// What the process is told of how a request ended.
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
