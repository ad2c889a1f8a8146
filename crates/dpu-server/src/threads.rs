//! The DPU's end of the memory API (PD3 6.1; PROTOCOL 18.23): one ring of requests of all threads of a process, and
//! an answer slot for each request.
//!
//! Key type: [`Threads`], a part of a [`DpuClient`](super::dpu_client::DpuClient). The process's end is
//! [`super::api`].

use super::dpu_client::RegionAt;
use super::messages::Carried;
use farmem_dpu::PageId;
use farmem_link::dpu::{Answers, Broken, Submissions, Submitted};
use farmem_wire::pd3::{Front, Head, Id, RegionRange, Request};
use farmem_wire::soda::Ended;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes in front of a request: the address of its answer slot.
pub(super) const AT_LEN: usize = 8;
/// Bytes of an answer in front of its data: a head of six bytes, and a mark.
pub(super) const HEAD_LEN: usize = 8;
/// Bytes of a record's front; the data of a write follows.
const FRONT_LEN: usize = AT_LEN + Request::LEN;
/// The mark of a complete answer.
const THERE: u8 = 1;

/// A thread's pending request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingAnswer {
    at: u64,
    id: Id,
    pub(super) region: u16,
    pub(super) size: u32,
    write: bool,
}

impl PendingAnswer {
    pub(super) const fn is_write(&self) -> bool {
        self.write
    }

    /// Returns the address of the answer's data.
    pub(super) const fn data_at(&self) -> u64 {
        self.at + HEAD_LEN as u64
    }
}

/// Requests of a process's threads.
#[derive(Debug)]
pub(super) struct Threads {
    pub(super) submissions: Submissions,
    /// Pending requests, by the carrier's tickets.
    pub(super) pending: BTreeMap<u64, PendingAnswer>,
    /// Counts for the threads' requests.
    pub(super) carried: Carried,
}

/// The request in a record.
pub(super) enum ThreadRequest {
    Read {
        page: PageId,
        bytes: Range<usize>,
        granted: bool,
        asked: PendingAnswer,
    },
    Write {
        page: PageId,
        offset: usize,
        asked: PendingAnswer,
    },
    /// The request was refused and answered.
    Nothing,
}

/// An invalid record. Its process is disconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Nonsense;

impl Threads {
    pub(super) const fn new(submissions: Submissions) -> Self {
        Self { submissions, pending: BTreeMap::new(), carried: Carried::NOTHING }
    }

    /// Returns the next record, of at most `most` bytes. The record stays in the ring: the data of a write goes from
    /// there straight to the send buffer ([`Threads::bring`]).
    pub(super) fn next(&mut self, most: usize) -> Result<Option<Submitted>, Broken> {
        self.submissions.next(most)
    }

    /// Copies the data of a write to the send buffer. No other copy precedes the frames (PD3 6.1, where the DMA
    /// engine does this).
    pub(super) fn bring(&mut self, record: Submitted, into: &mut [u8]) {
        self.carried.moves += 1;
        self.submissions.copy(record, FRONT_LEN, into);
    }

    /// Returns true if a request on this region is pending.
    pub(super) fn is_busy(&self, region: u16) -> bool {
        self.pending.values().any(|asked| asked.region == region)
    }

    /// Takes the next request. A request that cannot be executed is answered at once.
    pub(super) fn take(
        &mut self,
        record: Submitted,
        regions: &BTreeMap<u16, RegionAt>,
        page_len: u64,
        answers: &Answers,
    ) -> Result<ThreadRequest, Nonsense> {
        let mut front = [0; FRONT_LEN];
        let front = &mut front[..record.len().min(FRONT_LEN)];
        self.submissions.copy(record, 0, front);
        let (at, front) = front.split_first_chunk::<AT_LEN>().ok_or(Nonsense)?;
        let at = u64::from_be_bytes(*at);
        let front = Front::parse(front).map_err(|_| Nonsense)?;
        if AT_LEN + front.request_len() != record.len() {
            return Err(Nonsense);
        }
        let (id, place, write) = match front {
            Front::Read { id, place } => (id, Some(place), false),
            Front::Write { id, place } => (id, Some(place), true),
            Front::Prefetch { id, .. } => (id, None, false),
        };
        let answer = match place {
            Some(place) if !write => HEAD_LEN + place.size as usize,
            _ => HEAD_LEN,
        };
        if !answers.has_place(at, answer) {
            return Err(Nonsense);
        }
        let Some((place, page, granted)) = place.and_then(|place| page_of(place, regions, page_len)) else {
            self.say(answers, at, Head::Failed { id, why: Ended::Refused });
            return Ok(ThreadRequest::Nothing);
        };
        let offset = usize::try_from(u64::from(place.offset) % page_len).expect("in a page");
        let asked = PendingAnswer { at, id, region: place.region, size: place.size, write };
        Ok(if write {
            ThreadRequest::Write { page, offset, asked }
        } else {
            ThreadRequest::Read { page, bytes: offset..offset + place.size as usize, granted, asked }
        })
    }

    /// Answers a request. `data` has the bytes of a read, which go straight to the answer slot; it is empty if they
    /// are there already. `copies` is the number of further copies within the DPU.
    pub(super) fn answer(
        &mut self,
        answers: &Answers,
        asked: PendingAnswer,
        how: Ended,
        data: &[u8],
        copies: u64,
    ) {
        let data_at = asked.data_at();
        let PendingAnswer { at, id, size, write, .. } = asked;
        self.carried.copies += copies;
        let head = match (how, write) {
            (Ended::Done, true) => Head::Written { id, size },
            (Ended::Done, false) => {
                self.carried.moves += 1;
                let put = answers.put(data_at, data);
                debug_assert!(put, "its place was looked at when it came");
                Head::Read { id, size }
            }
            (why, _) => Head::Failed { id, why },
        };
        self.say(answers, at, head);
    }

    fn say(&mut self, answers: &Answers, at: u64, head: Head) {
        self.carried.requests += 1;
        let [a, b, c, d, e, f] = head.emit();
        let there = answers.put_last(at, u64::from_le_bytes([a, b, c, d, e, f, THERE, 0]));
        debug_assert!(there, "its place was looked at when it came");
    }
}

/// Returns the page that contains all bytes of a place.
fn page_of(
    place: RegionRange,
    regions: &BTreeMap<u16, RegionAt>,
    page_len: u64,
) -> Option<(RegionRange, PageId, bool)> {
    let (first, end) = (u64::from(place.offset), u64::from(place.offset) + u64::from(place.size));
    let open = regions.get(&place.region)?;
    let fits = end <= open.bytes && first / page_len == (end - 1) / page_len;
    fits.then(|| (place, PageId { object: open.object, page: first / page_len }, open.granted))
}

/// Returns the head of an answer; `None` while there is no answer.
pub(super) fn head_of(word: u64) -> Option<Result<Head, farmem_wire::WireError>> {
    let [a, b, c, d, e, f, there, _] = word.to_le_bytes();
    (there == THERE).then(|| Head::parse([a, b, c, d, e, f]))
}
