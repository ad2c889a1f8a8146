//! A host with a page cache: its programs access far memory by loads and stores.
//!
//! Key type: [`CachingHost`], over the memory of `P`. The [`Agent`] decides the state of pages. This module
//! has the frames around the messages, the buffers in which pages arrive, and time: when a request or a
//! write-back is sent again, and how long a fresh page is kept so that the faulting instruction can execute
//! (PROTOCOL 12.24).
//!
//! Cached pages may be used for as long as the host's lease lasts. The driver renews the lease at the control
//! plane and passes it on with [`CacheRequest::Lease`]. When the lease ends, or the host rejoins, all pages
//! are unmapped (PROTOCOL 12.35).

mod buffers;
mod note;
mod requests;
mod retry_timers;

pub use note::{CacheNote, Trigger};
pub use requests::{CacheDone, CacheRequest};

use crate::agent::{self, Action, Agent, Event, Outcome, Pages};
use crate::{Config, Host, HostRequest};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use buffers::Buffers;
use core::mem;
use farmem_machine::{self as machine, Backoff, Duration, Instant, Machine, Outbox, Port, Rng};
use farmem_transport::ud;
use farmem_wire::message::{
    Access, Data, FetchId, PAGE_LEN, Page, PageBody, PageMessage, Part, Recall, RecallAck, Seq, WriteBack,
};
use farmem_wire::{Domain, Extension, HostId, Packet, Psn, VirtAddr};
use retry_timers::{RetryTimer, RetryTimers, Timer};

/// Maximum number of address ranges whose pages are cached.
pub const RANGES_MAX: usize = 1024;
/// Maximum number of deferred recalls. One more is obeyed at once.
pub const DEFERRED_MAX: usize = 64;
/// Maximum number of fresh pages that are remembered.
const FRESH_MAX: usize = 64;
/// Maximum number of doublings of a timer.
const DOUBLINGS_MAX: u32 = 6;

/// Limits and times of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Limits of the agent.
    pub bounds: agent::Bounds,
    /// Time without the page after which a request is sent again; doubles up to 64 times. Also used for
    /// write-backs.
    pub timeout: Duration,
    /// Mean wait before a retry while another host is being served; doubles likewise and is randomized.
    pub backoff: Duration,
    /// Time for which a fresh page is kept.
    pub hold: Duration,
    /// Time for which a request may be open before the host asks for a reset of its region (PROTOCOL 12.33).
    pub patience: Duration,
}

impl Default for CacheConfig {
    /// Returns times for links of some tens of microseconds: 2 ms, 50 us, 30 us, and one second of patience.
    fn default() -> Self {
        Self {
            bounds: agent::Bounds::default(),
            timeout: Duration::from_millis(2),
            backoff: Duration::from_micros(50),
            hold: Duration::from_micros(30),
            patience: Duration::from_secs(1),
        }
    }
}

/// The state of the lease under which cached pages may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lease {
    /// The driver gave no lease; the control plane revokes none either.
    Never,
    Until(Instant),
    Ended,
}

#[derive(Debug)]
struct Range {
    base: u64,
    len: u64,
    domain: Domain,
}

/// The host role with a page cache.
#[derive(Debug)]
pub struct CachingHost<P> {
    host: Host,
    config: CacheConfig,
    agent: Agent,
    pages: P,
    rng: Rng,
    sessions: BTreeMap<Domain, ud::Peer>,
    /// Sorted by address.
    ranges: Vec<Range>,
    buffers: Buffers,
    retry_timers: RetryTimers,
    /// The pages installed last, and the time until which each is kept.
    fresh: VecDeque<(Instant, Page)>,
    deferred: VecDeque<(Instant, Recall)>,
    lease: Lease,
    /// The number of the flush order in progress.
    flush: Option<u64>,
    psn: Psn,
    actions: Vec<Action>,
    bytes: Vec<u8>,
    /// Number of pages unmapped although the recalling host had not requested them.
    false_invalidations: u64,
    inner: Outbox<crate::Out, crate::Note>,
}

type Out = Outbox<CacheDone, CacheNote>;

impl<P: Pages> CachingHost<P> {
    /// Returns a host with an empty cache over `pages`.
    #[must_use]
    pub fn new(config: Config, cache: CacheConfig, pages: P, rng: Rng) -> Self {
        Self {
            host: Host::new(config),
            config: cache,
            agent: Agent::new(cache.bounds, FetchId::first(config.generation)),
            pages,
            rng,
            sessions: BTreeMap::new(),
            ranges: Vec::new(),
            buffers: Buffers::default(),
            retry_timers: RetryTimers::default(),
            fresh: VecDeque::new(),
            deferred: VecDeque::new(),
            lease: Lease::Never,
            flush: None,
            psn: Psn::default(),
            actions: Vec::new(),
            bytes: Vec::new(),
            false_invalidations: 0,
            inner: Outbox::new(),
        }
    }

    /// Returns the host role without the cache.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the coherence agent.
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns the memory under the cache.
    pub const fn pages(&self) -> &P {
        &self.pages
    }

    /// Returns the memory under the cache, for the program that uses it.
    pub const fn pages_mut(&mut self) -> &mut P {
        &mut self.pages
    }

    /// Returns the number of pages unmapped so far that no host had requested. They lie in one region with a
    /// requested page (MIND 4.3.1, false invalidations).
    pub const fn false_invalidations(&self) -> u64 {
        self.false_invalidations
    }

    fn map(&mut self, base: VirtAddr, len: u64, domain: Domain, out: &mut Out) {
        let at = self.ranges.partition_point(|range| range.base < base.0);
        let whole = base.0.is_multiple_of(PAGE_LEN as u64) && len.is_multiple_of(PAGE_LEN as u64) && len > 0;
        let end = base.checked_add(len).filter(|_| whole && self.ranges.len() < RANGES_MAX);
        let after = self.ranges.get(at).is_none_or(|next| end.is_some_and(|end| end.0 <= next.base));
        let before = at.checked_sub(1).is_none_or(|at| self.ranges[at].base + self.ranges[at].len <= base.0);
        if end.is_none() || !after || !before {
            return out.note(CacheNote::OutOfRange);
        }
        self.ranges.insert(at, Range { base: base.0, len, domain });
    }

    /// Returns the session for a page's messages.
    fn session(&self, page: Page) -> Option<ud::Peer> {
        let addr = page.addr().0;
        let after = self.ranges.partition_point(|range| range.base <= addr);
        let range = self.ranges[..after].last().filter(|range| addr - range.base < range.len)?;
        self.sessions.get(&range.domain).copied()
    }

    fn fault(&mut self, now: Instant, page: Page, access: Access, out: &mut Out) {
        if self.session(page).is_none() {
            out.note(CacheNote::OutOfRange);
            return out.local(CacheDone::FaultRejected { page, reason: Outcome::Stale });
        }
        self.step(now, Trigger::Fault, Event::Fault(page, access), &[], out);
    }

    /// Ends the lease: other hosts may write from here on (PROTOCOL 12.35).
    fn end_lease(&mut self, now: Instant, out: &mut Out) {
        self.deferred.clear();
        self.fresh.clear();
        self.retry_timers.stop_all(Timer::Request);
        self.buffers.forget_all();
        self.step(now, Trigger::LeaseEnded, Event::LeaseEnded, &[], out);
    }

    /// Reports a flush order as done once no page from before it is held.
    fn settle_flush(&mut self, out: &mut Out) {
        let Some(order) = self.flush else { return };
        if !self.agent.holds_before(Seq(order)) {
            self.flush = None;
            out.local(CacheDone::Flushed { order });
        }
    }

    /// Handles a page message. The host accepts one only with its own key, from the switch or a memory node.
    fn message(&mut self, now: Instant, port: Port, payload: &[u8], out: &mut Out) {
        let own = self.host.config().id;
        let Ok(message) = PageMessage::parse(payload) else { return out.note(CacheNote::NotForUs) };
        let from_switch = port == Port::SWITCH;
        match message.body {
            PageBody::Data(data, bytes) if !from_switch => {
                self.step(now, Trigger::Data, Event::Data(data), bytes, out);
            }
            PageBody::WriteBackAck(ack) => {
                self.step(now, Trigger::WriteBackAck, Event::WriteBackAck(ack), &[], out);
            }
            PageBody::Grant(grant) if from_switch => {
                self.step(now, Trigger::Grant, Event::Grant(grant), &[], out);
            }
            PageBody::Refusal(refusal) if from_switch => {
                self.step(now, Trigger::Refusal, Event::Refusal(refusal), &[], out);
            }
            PageBody::Recall(hosts, recall) if from_switch && hosts.contains(own) => {
                self.recall(now, recall, out);
            }
            _ => out.note(CacheNote::NotForUs),
        }
    }

    /// Obeys a recall, or defers it if the region has a fresh page.
    fn recall(&mut self, now: Instant, recall: Recall, out: &mut Out) {
        while self.fresh.front().is_some_and(|(until, _)| *until <= now) {
            self.fresh.pop_front();
        }
        let kept =
            self.fresh.iter().filter(|(_, page)| recall.region.contains(*page)).map(|(until, _)| *until);
        match kept.max() {
            Some(until) if self.deferred.len() < DEFERRED_MAX => {
                let at = self.deferred.partition_point(|(at, _)| *at <= until);
                self.deferred.insert(at, (until, recall));
                out.note(CacheNote::Deferred);
            }
            _ => self.step(now, Trigger::Recall, Event::Recall(recall), &[], out),
        }
    }

    /// Runs one step of the agent and carries out its actions. `bytes` holds the part that arrived.
    fn step(&mut self, now: Instant, trigger: Trigger, event: Event, bytes: &[u8], out: &mut Out) {
        let mut actions = mem::take(&mut self.actions);
        let outcome = self.agent.step(event, &mut actions);
        if let Event::Recall(Recall { region, wanted: Some(wanted), .. }) = event {
            let wanted = region.page(wanted);
            let is_false = |action: &&Action| matches!(action, Action::Unmap(page) | Action::Discard(page) if *page != wanted);
            self.false_invalidations += actions.iter().filter(is_false).count() as u64;
        }
        let mut left = &actions[..];
        while let [action, behind @ ..] = left {
            left = match (*action, behind) {
                // A page that arrived whole skips the buffer.
                (Action::Keep(page, _), [Action::Install(same, access), behind @ ..])
                    if page == *same && bytes.len() == PAGE_LEN =>
                {
                    let bytes = bytes.first_chunk().expect("the length was looked at");
                    self.install(now, page, bytes, *access);
                    behind
                }
                (Action::WriteProtect(page), [Action::Unmap(same), behind @ ..]) if page == *same => {
                    self.pages.write_protect_and_unmap(page);
                    behind
                }
                (action, behind) => {
                    self.act(now, action, bytes, out);
                    behind
                }
            };
        }
        actions.clear();
        self.actions = actions;
        match (outcome, event) {
            (Outcome::Busy, Event::Refusal(refusal)) => self.back_off(now, refusal.page),
            (Outcome::Void, Event::Data(Data { page, .. })) => self.back_off(now, page),
            (reason @ (Outcome::Full | Outcome::IdsUsedUp), Event::Fault(page, _)) => {
                out.local(CacheDone::FaultRejected { page, reason });
            }
            (reason @ (Outcome::Full | Outcome::Waits), Event::Evict(page)) => {
                out.local(CacheDone::EvictionRejected { page, reason });
            }
            _ => {}
        }
        out.note(CacheNote::Page(trigger, outcome));
    }

    fn act(&mut self, now: Instant, action: Action, bytes: &[u8], out: &mut Out) {
        match action {
            Action::Keep(page, part) => self.buffers.keep(page, part, bytes),
            Action::Install(page, access) => {
                let buffer = self.buffers.take(page);
                self.install(now, page, &buffer, access);
                self.buffers.give_back(buffer);
            }
            Action::Poison(page) => {
                self.retry_timers.stop(Timer::Request, page);
                self.buffers.forget(page);
                self.pages.poison(page);
            }
            Action::Refuse(page) => {
                self.retry_timers.stop(Timer::Request, page);
                self.buffers.forget(page);
                self.pages.refuse(page);
            }
            Action::Wake(page) => self.pages.wake(page),
            Action::WriteProtect(page) => self.pages.write_protect(page),
            Action::Unmap(page) => self.pages.unmap(page),
            Action::Release(page) => {
                self.retry_timers.stop(Timer::WriteBack, page);
                self.pages.release(page);
            }
            Action::Discard(page) => self.pages.discard(page),
            Action::Clean(page) => {
                self.retry_timers.stop(Timer::WriteBack, page);
                self.pages.clean(page);
            }
            Action::Get(get) => {
                self.retry(now, Timer::Request, get.page);
                if self.lease == Lease::Ended {
                    return;
                }
                self.send(get.page, PageBody::Get(get), out);
            }
            Action::Done(done) => self.send(done.page, PageBody::Done(done), out),
            Action::RecallAck(ack) => self.acknowledge(ack, out),
            Action::WriteBack(write_back) => {
                self.retry(now, Timer::WriteBack, write_back.page);
                self.write_back(write_back, out);
            }
        }
    }

    fn install(&mut self, now: Instant, page: Page, bytes: &[u8; PAGE_LEN], access: Access) {
        self.pages.install(page, bytes, access);
        self.retry_timers.stop(Timer::Request, page);
        if self.fresh.len() == FRESH_MAX {
            self.fresh.pop_front();
        }
        self.fresh.push_back((now + self.config.hold, page));
    }

    fn write_back(&mut self, write_back: WriteBack, out: &mut Out) {
        let mut bytes = mem::take(&mut self.bytes);
        for part in Part::all(self.host.config().pmtu.bytes()) {
            bytes.clear();
            self.pages.read(write_back.page, part.range(), &mut bytes);
            self.send(write_back.page, PageBody::WriteBack(write_back, part, &bytes), out);
        }
        self.bytes = bytes;
    }

    /// Sends the acknowledgement of a recall over any session: the host may reach only some pages of the
    /// region, or none.
    fn acknowledge(&mut self, ack: RecallAck, out: &mut Out) {
        let last = ack.region.last();
        let range = self.ranges.iter().find(|range| {
            let (first, end) = (ack.region.base().addr().0, last.addr().0);
            range.base <= end && range.base + range.len > first
        });
        let domain = range.map(|range| range.domain);
        let session =
            domain.and_then(|domain| self.sessions.get(&domain)).or_else(|| self.sessions.values().next());
        if let Some(&session) = session {
            self.send_to(session, PageBody::RecallAck(ack), out);
        }
    }

    fn send(&mut self, page: Page, body: PageBody<'_>, out: &mut Out) {
        if let Some(session) = self.session(page) {
            self.send_to(session, body, out);
        }
    }

    fn send_to(&mut self, session: ud::Peer, body: PageBody<'_>, out: &mut Out) {
        let message = PageMessage { domain: Domain::default(), origin: HostId::default(), body };
        let own = self.host.config().home.qpn;
        ud::send_bytes(out, session, own, self.psn, message.len(), |bytes| message.emit(bytes));
        self.psn = self.psn.plus(1);
    }

    /// Starts a page's timer, or restarts it with a longer timeout.
    fn retry(&mut self, now: Instant, timer: Timer, page: Page) {
        let before = self.retry_timers.get(timer, page);
        let (tries, since) = before.map_or((0, now), |retry| (retry.tries + 1, retry.since));
        let timeout = Backoff::new(self.config.timeout, DOUBLINGS_MAX);
        let at = now + timeout.jittered_after(tries, &mut self.rng);
        self.retry_timers.set(timer, page, RetryTimer { at, tries, since });
    }

    /// Schedules a retry soon, at a random time, so that hosts that wait for one region do not collide again.
    fn back_off(&mut self, now: Instant, page: Page) {
        let Some(retry) = self.retry_timers.get(Timer::Request, page) else { return };
        let wait =
            Backoff::new(self.config.backoff, DOUBLINGS_MAX).jittered_after(retry.tries, &mut self.rng);
        let at = (now + wait).min(retry.at);
        self.retry_timers.set(Timer::Request, page, RetryTimer { at, ..retry });
    }

    fn wake(&mut self, now: Instant, out: &mut Out) {
        while let Some(&(at, recall)) = self.deferred.front()
            && at <= now
        {
            self.deferred.pop_front();
            self.step(now, Trigger::Recall, Event::Recall(recall), &[], out);
        }
        while let Some((timer, page)) = self.retry_timers.due(now) {
            self.complain(now, timer, page, out);
            let (trigger, event) = match timer {
                Timer::Request => (Trigger::Retry, Event::Retry(page)),
                Timer::WriteBack => (Trigger::RetryWriteBack, Event::RetryWriteBack(page)),
            };
            self.step(now, trigger, event, &[], out);
        }
    }

    /// Reports a request that has had no answer for longer than the patience.
    fn complain(&mut self, now: Instant, timer: Timer, page: Page, out: &mut Out) {
        let patience = self.config.patience;
        let leased = self.lease != Lease::Ended;
        let retry = self.retry_timers.get(timer, page).filter(|_| timer == Timer::Request && leased);
        if let Some(retry) = retry.filter(|retry| now.since(retry.since) >= patience) {
            self.retry_timers.set(timer, page, RetryTimer { since: now, ..retry });
            out.local(CacheDone::Stuck { page });
        }
    }

    /// Returns the payload of a datagram to the host's own endpoint, if it is a page message.
    fn page_payload<'a>(&self, packet: &Packet<'a>) -> Option<&'a [u8]> {
        let home = self.host.config().home;
        match packet.ext {
            Extension::Deth(deth) if packet.bth.dest_qp == home.qpn && deth.qkey == home.qkey => {
                Some(packet.payload).filter(|payload| PageMessage::is(payload))
            }
            _ => None,
        }
    }

    /// Passes an event to the host role and forwards its actions in order.
    fn pass(&mut self, now: Instant, event: machine::Event<'_, HostRequest>, out: &mut Out) {
        self.host.handle(now, event, &mut self.inner);
        self.inner.drain(|action| match action {
            machine::Action::Send { port, frame } => out.send(port, frame),
            machine::Action::Local(local) => out.local(CacheDone::Host(local)),
            machine::Action::Note(note) => out.note(CacheNote::Host(note)),
        });
    }
}

impl<P: Pages> Machine for CachingHost<P> {
    type In = CacheRequest;
    type Out = CacheDone;
    type Note = CacheNote;

    fn handle(&mut self, now: Instant, event: machine::Event<'_, CacheRequest>, out: &mut Out) {
        if let Lease::Until(until) = self.lease
            && until <= now
        {
            self.lease = Lease::Ended;
            self.end_lease(now, out);
            out.local(CacheDone::LeaseEnded);
        }
        match event {
            machine::Event::Frame { port, bytes } => {
                let payload = Packet::parse(bytes).ok().and_then(|packet| self.page_payload(&packet));
                match payload {
                    Some(payload) => self.message(now, port, payload, out),
                    None => self.pass(now, machine::Event::Frame { port, bytes }, out),
                }
            }
            machine::Event::Wake => {
                self.wake(now, out);
                self.pass(now, machine::Event::Wake, out);
            }
            machine::Event::Local(CacheRequest::Host(ask)) => {
                match ask {
                    HostRequest::Session { domain, switch } => _ = self.sessions.insert(domain, switch),
                    // Pages cached in the previous incarnation are no longer valid (PROTOCOL 12.35).
                    HostRequest::Joined { .. } => {
                        self.sessions.clear();
                        self.end_lease(now, out);
                    }
                    _ => {}
                }
                self.pass(now, machine::Event::Local(ask), out);
            }
            machine::Event::Local(CacheRequest::Map { base, len, domain }) => {
                self.map(base, len, domain, out)
            }
            machine::Event::Local(CacheRequest::Fault(page, access)) => self.fault(now, page, access, out),
            machine::Event::Local(CacheRequest::Evict(page)) => {
                self.step(now, Trigger::Evict, Event::Evict(page), &[], out);
            }
            machine::Event::Local(CacheRequest::Lease { until }) => self.lease = Lease::Until(until),
            machine::Event::Local(CacheRequest::Flush { order }) => {
                self.flush = self.flush.max(Some(order));
                self.step(now, Trigger::Flush, Event::Flush(Seq(order)), &[], out);
            }
        }
        self.settle_flush(out);
    }

    fn next_wake(&self) -> Option<Instant> {
        let deferred = self.deferred.front().map(|(at, _)| *at);
        let paced = self.retry_timers.next();
        let lease = if let Lease::Until(until) = self.lease { Some(until) } else { None };
        [deferred, paced, lease, self.host.next_wake()].into_iter().flatten().min()
    }

    fn check(&self) {
        self.host.check();
        self.agent.assert_invariants();
        self.retry_timers.assert_invariants();
        assert!(self.deferred.len() <= DEFERRED_MAX && self.fresh.len() <= FRESH_MAX, "within their bounds");
        for (page, _) in self.agent.requests() {
            assert!(
                self.retry_timers.get(Timer::Request, page).is_some(),
                "{page:?} is asked for again some time"
            );
        }
        for (page, _) in self.agent.writing() {
            assert!(
                self.retry_timers.get(Timer::WriteBack, page).is_some(),
                "{page:?} is written back again some time"
            );
        }
        let under_way = self.agent.requests().count() + self.agent.writing().count();
        assert_eq!(self.retry_timers.count(), under_way, "no timer runs for what has ended");
    }
}
