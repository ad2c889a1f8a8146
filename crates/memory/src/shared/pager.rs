//! The host role of a shared space: faults, recalls and evictions, one at a time.
//!
//! Key type: [`Pager`]. The pager does not sleep and knows no thread: the
//! [`SharedPager`](super::shared_pager::SharedPager) decides which thread runs it, and where that thread
//! sleeps. Another thread renews the lease over HTTP, so no thread waits for that here.
//!
//! The page cache ([`farmem_paging::Cache`]) decides which pages are fetched, deactivated and evicted. The
//! agent decides how a page may be used. [`Paged`] connects the two. This module passes the cache's requests
//! to the agent, and results to threads of this process.

use super::ShareStats;
use super::lease::say;
use super::poisoned::Poisoned;
use super::shared_pager::{PagerRequest, lock};
use farmem_client::Error;
use farmem_client::host_parts::SILENCE_MAX;
use farmem_host::agent::Outcome;
use farmem_host::caching::{CacheDone, CacheNote, CacheRequest, CachingHost, Trigger};
use farmem_host::paged::{Notice, PageRequest, Paged};
use farmem_link::{Driver, Link, Wait};
use farmem_machine::{Duration, Instant};
use farmem_uffd::Mapped;
use farmem_wire::message::{PAGE_LEN, Page};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration as StdDuration;

/// A notice from the pager to the thread that calls the control plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ControlNotice {
    /// The pager has executed an order.
    Flushed(u64),
    /// Requests for a page get no answer.
    Stuck(Page),
    /// The lease expired before a renewal.
    LeaseEnded,
}

/// Polling interval of a pager that has lost its rack.
const LOOK_EVERY: StdDuration = StdDuration::from_millis(20);
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// Counters of the role's notes.
#[derive(Default)]
struct Notes {
    retries: AtomicU64,
    busy: AtomicU64,
}

impl Notes {
    fn hear(&self, note: CacheNote) {
        let counted = match note {
            CacheNote::Page(Trigger::Retry | Trigger::RetryWriteBack, Outcome::Done) => &self.retries,
            CacheNote::Page(Trigger::Refusal, Outcome::Busy) => &self.busy,
            _ => return,
        };
        counted.fetch_add(1, Ordering::Relaxed);
    }
}

/// A flush in progress.
struct WritingBack {
    /// Pages whose bytes, as of the start of the flush, are not yet at the memory nodes.
    left: BTreeSet<Page>,
    /// Time of the last progress.
    since: Instant,
    done: Option<Sender<Result<(), Error>>>,
}

/// The caller's step after a [`Pager::turn`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Run another turn at once.
    Look,
    /// Sleep at the link, at most for this time.
    Sleep(Duration),
    /// The link has failed: wait until a thread leaves a request.
    Wait(StdDuration),
    /// End: the pager was told to end, and everything is written back or cannot be.
    End {
        /// True if all changed pages are written back.
        all_written: bool,
    },
}

/// The pager.
pub(super) struct Pager<W: Mapped, L: Link> {
    driver: Driver<CachingHost<Paged<W>>, L>,
    tell: Sender<ControlNotice>,
    notices: Vec<CacheDone>,
    /// Timeout of a request. The role's timer for an unanswered request is at least half of this, and no
    /// sleep is longer than that. Otherwise a request of another thread during a sleep could set a timer that
    /// the sleeping thread misses.
    timeout: Duration,
    /// Silence of the rack after which a thread that waits for a page gets a SIGBUS. A dead host delays other
    /// hosts for a shorter time: a lease and an eighth, in which the switch answers that they must wait.
    silence_max: Duration,
    notes: Arc<Notes>,
    requests: VecDeque<PagerRequest>,
    /// Start times of the threads' waits for pages; bounded as the requests are.
    since: BTreeMap<Page, Instant>,
    /// Number of received frames at the last check, and the time of the last increase.
    heard: (u64, Instant),
    poisoned: Poisoned,
    flushes: Vec<WritingBack>,
    stats: ShareStats,
    failed: Arc<Mutex<Option<String>>>,
    dead: bool,
    ending: bool,
}

impl<W: Mapped, L: Link> Pager<W, L> {
    /// Creates the pager of a host that has joined.
    pub(super) fn new(
        mut driver: Driver<CachingHost<Paged<W>>, L>,
        (timeout, silence_max): (Duration, Duration),
        tell: Sender<ControlNotice>,
        failed: Arc<Mutex<Option<String>>>,
    ) -> Self {
        let notes = Arc::new(Notes::default());
        let heard = Arc::clone(&notes);
        driver.watch_notes(move |_, note| heard.hear(note));
        Self {
            driver,
            tell,
            notices: Vec::new(),
            timeout,
            silence_max,
            notes,
            requests: VecDeque::new(),
            since: BTreeMap::new(),
            heard: (0, Instant::ZERO),
            poisoned: Poisoned::default(),
            flushes: Vec::new(),
            stats: ShareStats::default(),
            failed,
            dead: false,
            ending: false,
        }
    }

    /// Returns the queue of requests, which [`Pager::begin`] or [`Pager::turn`] executes.
    pub(super) const fn requests(&mut self) -> &mut VecDeque<PagerRequest> {
        &mut self.requests
    }

    /// Executes the queued requests as far as a thread waits for them, and puts the frames to send into
    /// `parcel`. The next turn does the rest; the answer starts it at the latest.
    pub(super) fn begin(&mut self, parcel: &mut L::Parcel) {
        self.do_asked();
        if !self.dead {
            self.driver.flush_into(parcel);
        }
    }

    fn do_asked(&mut self) {
        while let Some(ask) = self.requests.pop_front() {
            self.ask(ask);
        }
    }

    /// Executes queued requests and background work.
    fn work(&mut self) {
        self.do_asked();
        // Requests for which a thread waits must leave first.
        self.flush();
        let now = self.driver.clock().now();
        self.poisoned.unpoison(now, self.driver.machine_mut().pages_mut().memory_mut());
        if self.dead {
            // These notices need no report, because the waiting threads got their SIGBUS.
            let notices = self.paged_mut().take_notices();
            self.paged_mut().recycle_notices(notices);
            return self.end_flushes();
        }
        self.paged_mut().turn();
        self.serve_wants();
        self.flush();
        self.tell();
        self.look_back(now);
        self.listen(now);
    }

    /// Fails the space if a thread waits for a page and no frame has arrived for a long time. Then the switch
    /// or its path is dead. The thread gets a SIGBUS, so its wait is bounded.
    fn listen(&mut self, now: Instant) {
        let Some(oldest) = self.since.values().min().copied() else { return };
        let frames = self.driver.link().counters().frames_in;
        if frames != self.heard.0 {
            self.heard = (frames, now);
        }
        if now.since(oldest.max(self.heard.1)) < self.silence_max {
            return;
        }
        let (page, seconds) = (self.since.keys().next(), self.silence_max.as_nanos() / 1_000_000_000);
        let addr = page.map_or(0, |page| page.addr().0);
        self.fail(format!(
            "no answer from the switch for {seconds} s, while a thread waits for the page at {addr:#x}: the switch is dead or unreachable"
        ));
    }

    /// Receives frames, and executes queued requests. Arrived pages are installed when this method returns.
    pub(super) fn turn(&mut self) -> Next {
        if !self.dead {
            let Self { driver, notices, .. } = self;
            let turned = driver.turn(Wait::No, &mut |done, _| notices.push(done));
            if let Err(error) = turned {
                self.fail(format!("the link to the rack failed: {error}"));
            }
        }
        self.work();
        if self.ending && self.flushes.is_empty() {
            let all_sent = self.paged().behind().next().is_none();
            return Next::End { all_written: !self.dead && all_sent };
        }
        if self.dead {
            return Next::Wait(LOOK_EVERY);
        }
        let most = SLEEP_MAX.min(Duration::from_nanos(self.timeout.as_nanos() / 2));
        self.driver.may_sleep(most).map_or(Next::Look, Next::Sleep)
    }

    /// Executes queued requests, and receives frames if any have arrived. Returns false for a link at which
    /// only its sleeper notices frames. Arriving frames wake no sleeper until [`Pager::rest`].
    pub(super) fn look(&mut self) -> bool {
        let arrived = if self.dead { None } else { self.driver.link_mut().glance() };
        if arrived == Some(true) || !self.requests.is_empty() {
            self.turn();
        }
        arrived.is_some()
    }

    /// Makes later requests wake the sleeper of the link.
    pub(super) fn rest(&mut self) {
        loop {
            self.do_asked();
            if self.dead || self.driver.link_mut().may_sleep() {
                return self.flush();
            }
            self.turn();
        }
    }

    fn flush(&mut self) {
        if !self.dead
            && let Err(error) = self.driver.flush()
        {
            self.fail(format!("the link to the rack failed: {error}"));
        }
    }

    fn submit(&mut self, ask: CacheRequest) {
        let Self { driver, notices, .. } = self;
        driver.submit(ask, &mut |done, _| notices.push(done));
    }

    fn paged(&self) -> &Paged<W> {
        self.driver.machine().pages()
    }

    fn paged_mut(&mut self) -> &mut Paged<W> {
        self.driver.machine_mut().pages_mut()
    }

    fn tell(&mut self) {
        for done in self.notices.drain(..) {
            let notice = match done {
                CacheDone::Flushed { order } => ControlNotice::Flushed(order),
                CacheDone::Stuck { page } => ControlNotice::Stuck(page),
                CacheDone::LeaseEnded => {
                    self.stats.lapses += 1;
                    // The pager absorbs the pages that the watcher unmapped, before the next lease.
                    self.driver.machine_mut().pages_mut().memory_mut().absorb();
                    ControlNotice::LeaseEnded
                }
                // No other request is submitted from here, and rejections are handled by the submitter.
                CacheDone::Host(_) | CacheDone::FaultRejected { .. } | CacheDone::EvictionRejected { .. } => {
                    continue;
                }
            };
            // The thread has ended if the space ends.
            let _ended = self.tell.send(notice);
        }
    }

    fn ask(&mut self, ask: PagerRequest) {
        match ask {
            PagerRequest::Fault(page, access) => {
                self.paged_mut().fault(page, access);
                self.serve_wants();
            }
            PagerRequest::Lease(_) | PagerRequest::GiveUp(_) if self.dead => {}
            PagerRequest::Lease(until) => self.submit(CacheRequest::Lease { until }),
            PagerRequest::GiveUp(order) => self.submit(CacheRequest::Flush { order }),
            PagerRequest::Fail(reason) => self.fail(reason),
            PagerRequest::WriteBack(done) => self.begin_flush(Some(done)),
            PagerRequest::Stats(answer) => {
                // The requesting thread may have ended.
                let _gone = answer.send(self.stats());
            }
            PagerRequest::End => {
                self.begin_flush(None);
                self.ending = true;
            }
        }
    }

    /// Passes the cache's requests to the agent, and the agent's rejections to the cache.
    fn serve_wants(&mut self) {
        while let Some(request) = self.paged_mut().next_request() {
            let ask = match request {
                PageRequest::Fetch(page, access) => {
                    if self.paged().is_awaited(page) {
                        let now = self.driver.clock().now();
                        self.since.entry(page).or_insert(now);
                    }
                    CacheRequest::Fault(page, access)
                }
                PageRequest::GiveUp(page) => CacheRequest::Evict(page),
            };
            let first = self.notices.len();
            self.submit(ask);
            for at in first..self.notices.len() {
                match self.notices[at] {
                    CacheDone::FaultRejected { page, reason: Outcome::Full } => {
                        self.paged_mut().fault_rejected(page)
                    }
                    CacheDone::FaultRejected { page, reason } => {
                        let addr = page.addr();
                        return self.fail(format!("the page at {addr} cannot be requested: {reason:?}"));
                    }
                    CacheDone::EvictionRejected { page, .. } => self.paged_mut().eviction_rejected(page),
                    _ => {}
                }
            }
        }
    }

    /// Starts to write back all changed pages.
    fn begin_flush(&mut self, done: Option<Sender<Result<(), Error>>>) {
        let left = self.paged().behind().collect();
        let since = self.driver.clock().now();
        self.flushes.push(WritingBack { left, since, done });
        self.paged_mut().flush();
        self.serve_wants();
    }

    fn end_flushes(&mut self) {
        for flush in mem::take(&mut self.flushes) {
            flush.answer(Err(Error::Unreachable { what: "the rack, which this space has lost".into() }));
        }
    }

    /// Handles what happened to pages: updates wait times, poisons refused pages, and ends flushes.
    fn look_back(&mut self, now: Instant) {
        let happened = self.paged_mut().take_notices();
        for &happened in &happened {
            match happened {
                Notice::Trigger(page) => self.end_wait(page, now),
                Notice::Refused(page, reason) => {
                    self.end_wait(page, now);
                    self.stats.lost += 1;
                    self.poisoned.add(page, reason, now);
                }
                Notice::Settled(page) => {
                    for flush in &mut self.flushes {
                        if flush.left.remove(&page) {
                            flush.since = now;
                        }
                    }
                }
            }
        }
        self.paged_mut().recycle_notices(happened);
        for flush in self.flushes.extract_if(.., |flush| flush.has_ended(now)) {
            let result = match flush.left.len() {
                0 => Ok(()),
                pages => {
                    let what = format!("the memory nodes, to which {pages} pages must be written");
                    Err(Error::Unreachable { what })
                }
            };
            flush.answer(result);
        }
    }

    fn end_wait(&mut self, page: Page, now: Instant) {
        if let Some(since) = self.since.remove(&page) {
            self.stats.waited_ns += now.since(since).as_nanos();
        }
    }

    /// Fails the space. From here on the program may use no page, because other hosts may write them.
    fn fail(&mut self, reason: String) {
        if mem::replace(&mut self.dead, true) {
            return;
        }
        say(&format!("far memory is lost, and every access ends in SIGBUS: {reason}"));
        lock(&self.failed).get_or_insert(reason);
        self.paged_mut().abandon();
        self.since.clear();
    }

    fn stats(&self) -> ShareStats {
        let (cache, page) = (self.paged().cache().stats(), PAGE_LEN as u64);
        let counters = self.driver.link().counters();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShareStats {
            faults: cache.faults,
            fetches: cache.pages_fetched,
            ahead: cache.ahead,
            upgrades: cache.upgrades,
            reactivated: cache.reactivated,
            evictions: cache.evictions,
            invalidations: cache.revoked,
            false_invalidations: self.driver.machine().false_invalidations(),
            write_backs: cache.write_backs,
            bytes_fetched: cache.pages_fetched * page,
            bytes_written_back: cache.pages_written_back * page,
            bytes_here_max: cache.frames_max * page,
            retries: count(&self.notes.retries),
            busy: count(&self.notes.busy),
            packets_out: counters.frames_out,
            packets_in: counters.frames_in,
            ..self.stats
        }
    }
}

impl WritingBack {
    /// Returns true if all pages are written back, or no progress was made for a long time.
    fn has_ended(&self, now: Instant) -> bool {
        self.left.is_empty() || now.since(self.since) >= SILENCE_MAX
    }

    fn answer(self, result: Result<(), Error>) {
        if let Some(done) = self.done {
            // The requesting thread may have ended.
            let _gone = done.send(result);
        }
    }
}
