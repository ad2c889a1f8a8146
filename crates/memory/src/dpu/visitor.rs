//! One process at the thread of its domain: requests out of its ring, answers into the other.

use super::carrier::{AskEnded, Carrier};
use farmem_dpu::{Asker, PageId};
use farmem_io::dpu::{Answers, Requests};
use farmem_paging::Cause;
use farmem_wire::soda::{Answer, Dest, Ended, RECORD_MAX, Request, Span};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests of one process under way at once.
const OUTSTANDING_MAX: usize = 1024;

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
    /// What it waits for, by the carrier's tickets.
    pending: BTreeMap<u64, (Span, Option<Dest>)>,
    /// Answers that its ring has no room for.
    unsent: VecDeque<Vec<u8>>,
    /// It wrote nonsense, and is to be sent away.
    gone: Arc<AtomicBool>,
    record: Vec<u8>,
    buf: Vec<u8>,
}

impl Visitor {
    pub(super) fn new(asker: Asker, (requests, answers): (Requests, Answers), gone: Arc<AtomicBool>) -> Self {
        Self {
            asker,
            requests,
            answers,
            regions: BTreeMap::new(),
            pending: BTreeMap::new(),
            unsent: VecDeque::new(),
            gone,
            record: Vec::new(),
            buf: vec![0; RECORD_MAX.next_multiple_of(8)],
        }
    }

    pub(super) const fn asker(&self) -> Asker {
        self.asker
    }

    /// Nothing of it is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// True when the carrier's ticket is a request of this process.
    pub(super) fn waits_for(&self, ticket: u64) -> bool {
        self.pending.contains_key(&ticket)
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
        self.send_unsent();
        let mut taken = 0;
        while taken < batch
            && self.unsent.is_empty()
            && self.pending.len() < OUTSTANDING_MAX
            && !self.is_gone()
        {
            let mut buf = std::mem::take(&mut self.buf);
            match self.requests.pop(&mut buf) {
                Ok(Some(len)) => {
                    taken += 1;
                    match Request::parse(&buf[..len]) {
                        Ok(request) => self.take(carrier, request),
                        Err(_) => self.send_away(),
                    }
                }
                Ok(None) => {
                    self.buf = buf;
                    break;
                }
                Err(_) => self.send_away(),
            }
            self.buf = buf;
        }
        if taken > 0 {
            self.requests.release();
        }
        taken
    }

    fn take(&mut self, carrier: &mut Carrier<'_>, request: Request<'_>) {
        let (Request::Read { span, .. } | Request::Write { span, .. }) = request;
        let page_len = carrier.memory().page_len() as u64;
        let end = span.offset + u64::from(span.size); // 2^48 and 2^20 at most
        let open = self.regions.get(&span.region).copied();
        // One page has its bytes.
        let open = open.filter(|open| end <= open.bytes && span.offset / page_len == (end - 1) / page_len);
        let Some(RegionAt { object, granted, .. }) = open else {
            let write = matches!(request, Request::Write { .. });
            return self.push(Answer { span, write, ended: Ended::Refused, data: &[] });
        };
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
        };
        self.pending.insert(ticket, (span, dest));
    }

    /// Answers a request that ended; `true` when it failed in a way that far memory did not decide: the client may be no member of the rack any more.
    pub(super) fn answer(&mut self, carrier: &mut Carrier<'_>, ended: AskEnded) {
        let (span, dest) = self.pending.remove(&ended.ticket).expect("it waits for this");
        let write = dest.is_none();
        let how = match &ended.result {
            Ok(()) => Ended::Done,
            Err(failed) => match failed.cause {
                Cause::Lost => Ended::Lost,
                Cause::Refused => Ended::Refused,
                _ => Ended::Failed,
            },
        };
        if how != Ended::Done || write {
            carrier.finish(ended, |_| {});
            return self.push(Answer { span, write, ended: how, data: &[] });
        }
        carrier.finish(ended, |bytes| match dest {
            Some(Dest::Write { addr, .. }) if self.answers.put(addr, bytes) => {
                self.push(Answer { span, write, ended: how, data: &[] });
            }
            Some(Dest::Send) => self.push(Answer { span, write, ended: how, data: bytes }),
            // What it registered has no such bytes.
            _ => self.push(Answer { span, write, ended: Ended::Refused, data: &[] }),
        });
    }

    fn push(&mut self, answer: Answer<'_>) {
        self.record.clear();
        answer.emit(&mut self.record);
        if !self.unsent.is_empty() {
            return self.unsent.push_back(self.record.clone());
        }
        match self.answers.push(&self.record) {
            Ok(true) => {}
            Ok(false) => self.unsent.push_back(self.record.clone()),
            Err(_) => self.send_away(),
        }
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
            || self.is_gone()
            || self.pending.len() >= OUTSTANDING_MAX
            || !self.unsent.is_empty()
    }

    /// The process need not wake the DPU.
    pub(super) fn stays_awake(&self) {
        self.requests.stays_awake();
    }
}
