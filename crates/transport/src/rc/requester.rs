//! The requester half of a reliable connection: sends requests in order, and completes each exactly once.
//!
//! Key type: [`Requester`]. The state is a list of posted requests and three positions in one sequence of
//! packets:
//!
//! ```text
//!        acknowledged      sent, not acknowledged     to send (again)      to send        posted
//!   ────────────────────┬─────────────────────────┬───────────────────┬───────────────┬──────────
//!                      una                       next                sent            posted
//! ```
//!
//! Going back sets `next = una`. The position of a packet determines its contents, so there is no state per
//! packet. The control plane chooses PSNs, keys and peers.

use super::job::{self, Job};
use super::rnr;
use super::{
    ACK_REQ_EVERY, Arrivals, Completion, DropReason, Failure, Note, RESPONDER_DEPTH, RequesterConfig,
    WINDOW_MAX, Work,
};
use alloc::collections::VecDeque;
use farmem_machine::{Instant, NoLender, Outbox, Port};
use farmem_wire::{Extension, Nak, Opcode, Packet, Syndrome};

/// The requester half of one connection.
#[derive(Debug)]
pub struct Requester {
    config: RequesterConfig,
    /// Most PSNs of one READ request.
    segment_packets: u32,
    /// Most packets between acknowledgement requests.
    ack_every: u64,
    /// Requests that are posted and not complete, oldest first. `una` is a packet of the front one.
    jobs: VecDeque<Job>,
    /// Number of requests, at the tail, of which nothing was sent yet.
    unsent: usize,
    /// Index of the request that `next` is a packet of; `jobs.len()` if there is nothing to send.
    cursor: usize,
    una: u64,
    next: u64,
    sent: u64,
    posted: u64,
    /// READ requests and atomics between `una` and `next`.
    responses_due: u32,
    /// Implied NAKs are ignored until `una` reaches this position (PROTOCOL 4.10).
    recovered_at: u64,
    /// The position of the last NAK 0x60 (PROTOCOL 4.12).
    nak_at: Option<u64>,
    /// The end of the RNR wait if there is one, otherwise of the time without progress.
    timer: Option<Instant>,
    rnr_wait: bool,
    retries: u32,
    rnr_retries: u32,
    completions: VecDeque<Completion>,
    broken: bool,
}

impl Requester {
    /// Creates a connection with nothing outstanding.
    ///
    /// # Panics
    /// If `window_psns` is not in 1..=[`WINDOW_MAX`], `depth` not in 1..=[`RESPONDER_DEPTH`], or `timeout` is
    /// zero.
    #[must_use]
    pub fn new(config: RequesterConfig) -> Self {
        assert!((1..=WINDOW_MAX).contains(&config.window_psns), "a window of 1 to {WINDOW_MAX} PSNs");
        assert!((1..=RESPONDER_DEPTH).contains(&config.depth), "a depth of 1 to {RESPONDER_DEPTH}");
        assert!(config.timeout.as_nanos() > 0, "a timeout that lets time pass");
        Self {
            segment_packets: job::segment_packets(&config),
            ack_every: u64::from((config.window_psns / 2).clamp(1, ACK_REQ_EVERY)),
            config,
            jobs: VecDeque::new(),
            unsent: 0,
            cursor: 0,
            una: 0,
            next: 0,
            sent: 0,
            posted: 0,
            responses_due: 0,
            recovered_at: 0,
            nak_at: None,
            timer: None,
            rnr_wait: false,
            retries: 0,
            rnr_retries: 0,
            completions: VecDeque::new(),
            broken: false,
        }
    }

    /// Queues a request under `id`. [`Requester::pump`] sends it.
    ///
    /// A request that no packet can carry (longer than 2^31 bytes, or beyond the address space) fails at once
    /// and leaves the connection intact. On a broken connection every request fails at once with
    /// [`Failure::Flushed`].
    ///
    /// # Errors
    /// The request, if `queue_max` requests wait already, or too many completions were not taken.
    pub fn post(&mut self, id: u64, work: Work) -> Result<(), Work> {
        let bound = self.config.queue_max.saturating_add(self.config.window_psns as usize);
        if self.unsent >= self.config.queue_max || self.jobs.len() + self.completions.len() >= bound {
            return Err(work);
        }
        let refusal =
            if self.broken { Some(Failure::Flushed) } else { job::refusal(&work, self.config.pmtu) };
        if let Some(failure) = refusal {
            self.completions.push_back(job::finish(id, work, Err(failure)));
            return Ok(());
        }
        let job = Job::new(id, work, self.posted, &self.config);
        self.posted = job.end();
        self.unsent += 1;
        self.jobs.push_back(job);
        Ok(())
    }

    /// Sends as many packets as the window allows.
    pub fn pump<O, N: From<Note>>(&mut self, now: Instant, out: &mut Outbox<O, N>) {
        if self.broken || self.rnr_wait {
            return;
        }
        while self.send_next(out) {}
        if !self.broken && self.timer.is_none() && self.next > self.una {
            self.timer = Some(now + self.config.timeout);
        }
    }

    /// Handles a response packet (destination QPN already matched), then pumps.
    pub fn on_packet<O, N: From<Note>>(
        &mut self,
        now: Instant,
        port: Port,
        packet: &Packet<'_>,
        out: &mut Outbox<O, N>,
    ) {
        self.on_packet_among(now, port, packet, &mut Arrivals::new(&NoLender), out);
    }

    /// Handles a response packet that arrived together with others, as [`Requester::on_packet`]. Payloads for
    /// a sink are copied when `arrivals` is dropped.
    pub fn on_packet_among<'p, O, N: From<Note>>(
        &mut self,
        now: Instant,
        port: Port,
        packet: &Packet<'p>,
        arrivals: &mut Arrivals<'p>,
        out: &mut Outbox<O, N>,
    ) {
        let taken = self.take(now, port, packet, arrivals, out);
        if let Err(reason) = taken {
            out.note(Note::Dropped(reason).into());
        }
        self.pump(now, out);
    }

    /// Checks the timer; if it has expired, retransmits or fails the connection.
    pub fn on_wake<O, N: From<Note>>(&mut self, now: Instant, out: &mut Outbox<O, N>) {
        if self.timer.is_none_or(|at| at > now) {
            return;
        }
        self.timer = None;
        if self.rnr_wait {
            self.rnr_wait = false;
        } else if self.retries == self.config.retries_max {
            self.fail(Failure::RetriesExceeded, out);
        } else {
            self.retries += 1;
            self.go_back();
            out.note(Note::TimedOut.into());
        }
        self.pump(now, out);
    }

    /// Returns how many times in a row the outstanding requests were sent again without an answer.
    #[must_use]
    pub const fn retries(&self) -> u32 {
        self.retries
    }

    /// Breaks the connection as after the last retry: its peer is known to have forgotten it.
    pub fn give_up<O, N: From<Note>>(&mut self, out: &mut Outbox<O, N>) {
        if !self.broken {
            self.fail(Failure::RetriesExceeded, out);
        }
    }

    /// Returns the time at which [`Requester::on_wake`] is due.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        self.timer
    }

    /// Breaks the connection: every posted request completes with [`Failure::Flushed`]. For an owner that
    /// sets up a new connection.
    pub fn abandon<O, N: From<Note>>(&mut self, out: &mut Outbox<O, N>) {
        if !self.broken {
            self.fail(Failure::Flushed, out);
        }
    }

    /// Takes the next completion, oldest first.
    pub fn pop_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Returns the number of requests that are posted and not complete.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.jobs.len()
    }

    /// Returns the requests that are posted and not complete, oldest first.
    pub fn works(&self) -> impl Iterator<Item = &Work> {
        self.jobs.iter().map(|job| &job.work)
    }

    /// Returns the number of PSNs that are posted and not acknowledged.
    #[must_use]
    pub const fn load(&self) -> u64 {
        self.posted - self.una
    }

    /// Returns true if a READ of `len` bytes would be sent at once: no request waits, and the window has
    /// room.
    #[must_use]
    pub fn has_room_for(&self, len: u64) -> bool {
        let packets = len.div_ceil(self.config.pmtu.bytes() as u64).max(1);
        let requests = packets.div_ceil(u64::from(self.segment_packets));
        self.next == self.posted
            && !self.rnr_wait
            && self.load() + packets <= u64::from(self.config.window_psns)
            && u64::from(self.responses_due) + requests <= u64::from(self.config.depth)
    }

    /// Returns true if packets can carry this request. A request that fails this test completes at once when
    /// posted.
    #[must_use]
    pub fn carries(&self, work: &Work) -> bool {
        job::refusal(work, self.config.pmtu).is_none()
    }

    /// Returns true if the connection is in error; further requests are flushed.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Asserts every invariant.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        if self.broken {
            assert!(self.jobs.is_empty() && self.timer.is_none(), "a broken connection has flushed all");
            return;
        }
        assert!(
            self.una <= self.next && self.next <= self.sent && self.sent <= self.posted,
            "places in order"
        );
        assert!(self.sent - self.una <= u64::from(self.config.window_psns), "the window holds");
        assert!(self.responses_due <= self.config.depth, "the depth holds");
        assert!(self.unsent <= self.jobs.len() && self.unsent <= self.config.queue_max);
        assert_eq!(
            self.timer.is_some(),
            self.rnr_wait || self.next > self.una,
            "a timer while something is out"
        );
        assert!(self.retries <= self.config.retries_max && self.rnr_retries <= self.config.rnr_retries_max);
        let mut at = self.jobs.front().map_or(self.posted, |job| job.first);
        assert!(at <= self.una && (self.jobs.is_empty() || self.una < self.jobs[0].end()));
        for (index, job) in self.jobs.iter().enumerate() {
            assert_eq!(job.first, at, "no gap between requests");
            at = job.end();
            if index == self.cursor {
                assert!(job.first <= self.next && self.next < at, "the cursor is where `next` is");
            }
            let never_sent = index >= self.jobs.len() - self.unsent;
            assert_eq!(never_sent, job.first >= self.sent, "unsent requests are those beyond `sent`");
        }
        assert_eq!(at, self.posted);
        assert!(self.cursor < self.jobs.len() || self.next == self.posted);
    }
}

/// Sending.
impl Requester {
    /// Sends one packet. Returns false if there is none, or if window, depth or an earlier READ forbid it.
    fn send_next<O, N: From<Note>>(&mut self, out: &mut Outbox<O, N>) -> bool {
        let Some(job) = self.jobs.get(self.cursor) else { return false };
        let index = job.index_of(self.next);
        let mut index_end = job.request_end(index, self.segment_packets);
        let room = u64::from(self.config.window_psns) - (self.next - self.una);
        if u64::from(index_end - index) > room {
            return false;
        }
        if job.is_from() {
            let most = u32::try_from(room).expect("a window").min(job::PACKETS_MAX);
            index_end = index.saturating_add(most).min(job.packets);
        }
        let end = job.first + u64::from(index_end);
        if job.needs_response() && self.responses_due == self.config.depth {
            return false;
        }
        if index == 0 && job.writes() && self.responses_due > 0 {
            // A repeated READ must not see the effects of later requests (PROTOCOL 4.16).
            if self.jobs.range(..self.cursor).any(|earlier| job.must_follow(earlier)) {
                return false;
            }
        }
        let asks = |end: u64| job.needs_response() || end == job.end() || end.is_multiple_of(self.ack_every);
        if !job.is_from() {
            job.emit(index, index_end, asks(end), &self.config, out);
        } else if !job.emit_from((index, index_end), asks, &self.config, out) {
            // The node has no packet of the request, or too few. Later packets would be out of sequence.
            self.fail(Failure::Flushed, out);
            return false;
        }
        if job.needs_response() {
            self.responses_due += 1;
        }
        if job.first == self.sent {
            self.unsent -= 1;
        }
        if end == job.end() {
            self.cursor += 1;
        }
        self.next = end;
        self.sent = self.sent.max(end);
        true
    }

    /// Goes back to `una` and restarts the timer.
    fn go_back(&mut self) {
        self.next = self.una;
        self.cursor = 0;
        self.responses_due = 0;
        self.recovered_at = self.sent;
        self.timer = None;
    }
}

/// Responses.
impl Requester {
    fn take<'p, O, N: From<Note>>(
        &mut self,
        now: Instant,
        port: Port,
        packet: &Packet<'p>,
        arrivals: &mut Arrivals<'p>,
        out: &mut Outbox<O, N>,
    ) -> Result<(), DropReason> {
        if port != self.config.port {
            return Err(DropReason::WrongPort);
        }
        if self.broken {
            return Err(DropReason::Broken);
        }
        let ahead = packet.bth.psn.distance(job::psn_of(&self.config, self.una));
        let ahead = u64::try_from(ahead).map_err(|_| DropReason::Unexpected)?;
        let seq = self.una + ahead;
        if seq >= self.sent {
            return Err(DropReason::Unexpected);
        }
        match (packet.bth.opcode, packet.ext) {
            (Opcode::Acknowledge, Extension::Aeth(aeth)) => self.take_ack(now, seq, aeth.syndrome, out),
            (Opcode::AtomicAck, Extension::AtomicAck(aeth, original)) => {
                self.take_atomic(now, seq, aeth.syndrome, original, out)
            }
            (opcode, _) if opcode.is_rc_response() => self.take_read(now, seq, packet, arrivals, out),
            _ => Err(DropReason::Opcode),
        }
    }

    /// Handles an ACKNOWLEDGE: PROTOCOL 4.9 (ACK), 4.12 (NAK 0x60), 4.13 (RNR), 4.15 (NAKs that break the
    /// connection).
    fn take_ack<O, N: From<Note>>(
        &mut self,
        now: Instant,
        seq: u64,
        syndrome: Syndrome,
        out: &mut Outbox<O, N>,
    ) -> Result<(), DropReason> {
        let acknowledged = if syndrome == Syndrome::Ack { seq + 1 } else { seq };
        if !self.acknowledge(now, acknowledged) {
            return self.implied_nak(out);
        }
        match syndrome {
            Syndrome::Ack => {}
            Syndrome::Rnr(_) | Syndrome::Nak(Nak::PsnSequence) if self.rnr_wait => {
                return Err(DropReason::Unexpected);
            }
            Syndrome::Rnr(_) if self.rnr_retries == self.config.rnr_retries_max => {
                self.fail(Failure::RnrRetriesExceeded, out);
            }
            Syndrome::Rnr(code) => {
                self.go_back();
                self.rnr_wait = true;
                self.rnr_retries += 1;
                self.retries = 0;
                self.timer = Some(now + rnr::wait(code));
                out.note(Note::RnrWait.into());
            }
            Syndrome::Nak(Nak::PsnSequence) if self.nak_at == Some(seq) => {
                return Err(DropReason::Unexpected);
            }
            Syndrome::Nak(Nak::PsnSequence) => {
                self.nak_at = Some(seq);
                self.go_back();
                out.note(Note::WentBack.into());
            }
            Syndrome::Nak(Nak::InvalidRequest) => self.fail(Failure::InvalidRequest, out),
            Syndrome::Nak(Nak::RemoteAccess) => self.fail(Failure::RemoteAccess, out),
            Syndrome::Nak(Nak::RemoteOperational) => self.fail(Failure::RemoteOperational, out),
        }
        Ok(())
    }

    fn take_atomic<O, N: From<Note>>(
        &mut self,
        now: Instant,
        seq: u64,
        syndrome: Syndrome,
        original: u64,
        out: &mut Outbox<O, N>,
    ) -> Result<(), DropReason> {
        let job = self.job_at(seq);
        if syndrome != Syndrome::Ack || !matches!(job.work, Work::CmpSwap { .. } | Work::FetchAdd { .. }) {
            return Err(DropReason::Misshapen);
        }
        if !self.acknowledge(now, seq) {
            return self.implied_nak(out);
        }
        self.responded(now, seq + 1, original);
        Ok(())
    }

    /// Handles a READ response (PROTOCOL 4.11). A response restarted in the middle may say FIRST and ONLY, or
    /// MIDDLE and LAST.
    fn take_read<'p, O, N: From<Note>>(
        &mut self,
        now: Instant,
        seq: u64,
        packet: &Packet<'p>,
        arrivals: &mut Arrivals<'p>,
        out: &mut Outbox<O, N>,
    ) -> Result<(), DropReason> {
        let job = self.job_at(seq);
        let index = job.index_of(seq);
        let index_end = job.request_end(index, self.segment_packets);
        let (offset, len) = job.span(index, &self.config);
        let last_of_request =
            matches!(packet.bth.opcode, Opcode::ReadResponseLast | Opcode::ReadResponseOnly);
        let positive = match packet.ext {
            Extension::Aeth(aeth) => aeth.syndrome == Syndrome::Ack,
            _ => true,
        };
        let shapely = packet.payload.len() == len && last_of_request == (index + 1 == index_end) && positive;
        if !shapely || !job.reads() {
            return Err(DropReason::Misshapen);
        }
        let request_end = job.first + u64::from(index_end);
        if !self.acknowledge(now, seq) {
            return self.implied_nak(out);
        }
        match self.jobs.front_mut().map(|job| &mut job.work) {
            Some(Work::Read { buf, .. } | Work::KeyedRead { buf, .. } | Work::Gather { buf, .. }) => {
                buf[offset..offset + len].copy_from_slice(packet.payload);
            }
            Some(Work::ReadTo { to, .. }) => arrivals.add(to, offset, packet.payload),
            _ => {}
        }
        if seq + 1 == request_end {
            self.responded(now, request_end, 0);
        } else {
            self.advance(now, seq + 1, 0);
        }
        Ok(())
    }

    /// Returns the request of packet `seq`, which is sent and not acknowledged.
    fn job_at(&self, seq: u64) -> &Job {
        self.jobs.iter().find(|job| seq < job.end()).expect("what was sent was posted")
    }

    /// Acknowledges WRITE packets before `to`. Returns false at a READ or atomic, which only its own response
    /// completes (PROTOCOL 4.9).
    fn acknowledge(&mut self, now: Instant, to: u64) -> bool {
        while self.una < to {
            let job = self.jobs.front().expect("what was sent was posted");
            if job.needs_response() {
                return false;
            }
            let to = job.end().min(to);
            self.advance(now, to, 0);
        }
        true
    }

    /// Handles an answer that overtook the response to the request at `una` (PROTOCOL 4.10). Repeats the
    /// requests once per window; otherwise each stray response would retransmit a whole window.
    fn implied_nak<O, N: From<Note>>(&mut self, out: &mut Outbox<O, N>) -> Result<(), DropReason> {
        if self.rnr_wait || self.una < self.recovered_at {
            return Err(DropReason::Unexpected);
        }
        self.go_back();
        out.note(Note::ImpliedNak.into());
        Ok(())
    }

    /// Completes the READ request or atomic that ends before `end`.
    fn responded(&mut self, now: Instant, end: u64, value: u64) {
        // A request that is to be retransmitted is not counted.
        if end <= self.next {
            self.responses_due -= 1;
        }
        self.advance(now, end, value);
    }

    /// Advances `una` to `to` within the front request.
    fn advance(&mut self, now: Instant, to: u64, value: u64) {
        debug_assert!(self.una < to && to <= self.sent);
        self.una = to;
        self.next = self.next.max(to);
        self.retries = 0;
        self.rnr_retries = 0;
        self.rnr_wait = false;
        self.timer = (self.next > to).then(|| now + self.config.timeout);
        if self.jobs.front().is_some_and(|job| job.end() == to)
            && let Some(job) = self.jobs.pop_front()
        {
            self.cursor = self.cursor.saturating_sub(1);
            self.completions.push_back(job.finish(Ok(value)));
        }
    }

    /// Fails the request at `una` and breaks the connection; later requests are flushed (PROTOCOL 4.15).
    fn fail<O, N: From<Note>>(&mut self, failure: Failure, out: &mut Outbox<O, N>) {
        self.broken = true;
        self.timer = None;
        self.rnr_wait = false;
        self.unsent = 0;
        self.cursor = 0;
        let mut result = failure;
        for job in self.jobs.drain(..) {
            self.completions.push_back(job.finish(Err(result)));
            result = Failure::Flushed;
        }
        out.note(Note::Broken(failure).into());
    }
}
