//! The thread that renews the host's lease by HTTP requests to the control plane, and passes the answers to
//! the pager.
//!
//! A cached page may be used until the lease expires. Its time starts when the request is sent, so the
//! control plane never considers it expired earlier than this host does (PROTOCOL 12.35). The end of the
//! lease is in the [`Lease`]. If neither this thread nor the pager runs, a watcher unmaps the pages.
//!
//! This thread only renews the lease; another thread sends all other requests, over another connection. A
//! renewal waits for its answer at most three eighths of a lease, so there is time for a second attempt over
//! a new connection. Between renewals this thread has no connection: the control plane's connections are
//! limited, so an idle host must not hold one.

use super::join::start;
use super::pager::ControlNotice;
use super::shared_pager::{Inbox, PagerRequest, lock};
use farmem_api::ApiClient;
use farmem_client::Error;
use farmem_client::RackConfig;
use farmem_client::host_parts::SILENCE_MAX;
use farmem_client::host_parts::api_client;
use farmem_control::api::{ErrorCode, HoldObject, LeaseInfo, Recover, Renew};
use farmem_link::Clock;
use farmem_machine::{Duration, Instant};
use farmem_uffd::Lease;
use farmem_wire::message::Page;
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration as StdDuration;

/// Interval between two requests while the control plane grants no lease.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// A host in one generation, as the control plane knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) host: u16,
    pub(super) generation: u16,
    /// The key of the host's endpoint, as a proof that the host itself reports its flushes.
    pub(super) qkey: u32,
}

/// The owner of a host's lease.
pub(super) struct LeaseKeeper {
    api: ApiClient,
    clock: Clock,
    inbox: Arc<Inbox>,
    life: Life,
    /// The last order that was executed, and the last order that was passed to the pager.
    flushed: u64,
    ordered: u64,
    /// Duration of a lease.
    length: Duration,
    /// Longest time without a lease before this process fails; at least two leases.
    patience: Duration,
    /// Time at which the pages of the latest lease must be unmapped.
    until: Instant,
    /// True if the pager has given up all pages of the latest lease; initially it has none.
    given_up: bool,
    watched: Arc<Lease>,
    /// Queue of pages whose requests get no answer, for the control plane.
    stuck: SyncSender<Page>,
    objects: Objects,
}

/// The inverse of the fraction of a lease that is not used. In that time, and in a further eighth of a lease
/// before other hosts may write, the pages are unmapped.
const TAKE_SHARE: u64 = 8;

/// Maximum number of queued pages. The pager reports a page again if the queue was full.
const STUCK_MAX: usize = 64;

/// The numbers of the named objects that a host has open.
pub(super) type Objects = Arc<Mutex<BTreeSet<u64>>>;

impl LeaseKeeper {
    /// Waits for the first lease.
    pub(super) fn begin(
        config: &RackConfig,
        life: Life,
        clock: Clock,
        inbox: &Arc<Inbox>,
        watched: Arc<Lease>,
        objects: Objects,
    ) -> Result<Self, Error> {
        let mut lease_keeper = Self {
            api: api_client(config)?.with_patience(std::time::Duration::ZERO),
            clock,
            inbox: Arc::clone(inbox),
            life,
            flushed: 0,
            ordered: 0,
            length: Duration::ZERO,
            patience: config.silence_max(),
            until: Instant::ZERO,
            given_up: true,
            watched,
            stuck: recoverer(api_client(config)?.with_patience(std::time::Duration::ZERO), life.host)?,
            objects,
        };
        let begun = clock.now();
        while !lease_keeper.renew().or_else(later)? {
            // A host without pages has executed every order.
            lease_keeper.flushed = lease_keeper.ordered;
            if clock.now().since(begun) >= lease_keeper.patience.max(SILENCE_MAX.times(2)) {
                return Err(Error::Unreachable { what: "the switch: no host may share memory yet".into() });
            }
            std::thread::sleep(std(ASK_AGAIN));
        }
        lease_keeper.flushed = lease_keeper.ordered;
        lease_keeper.api = api_client(config)?
            .with_timeout(std(Duration::from_nanos(lease_keeper.length.as_nanos() / 8 * 3)));
        Ok(lease_keeper)
    }

    /// Returns the time between two renewals. If one fails, there is time for another.
    const fn pause(&self) -> Duration {
        Duration::from_nanos(self.length.as_nanos() / 3)
    }

    /// Renews the lease on a thread of its own, until the last sender of `told` is dropped.
    pub(super) fn start(mut self, told: Receiver<ControlNotice>) -> Result<JoinHandle<()>, Error> {
        start("farmem-lease", move || self.run(&told))
    }

    fn run(&mut self, told: &Receiver<ControlNotice>) {
        let mut leased_last = self.clock.now();
        let mut why = "this process did not run, so it asked for no other lease in time".to_owned();
        // A notice makes the next renewal earlier, never later.
        let mut due = leased_last + self.pause();
        loop {
            match told.recv_timeout(std(due.since(self.clock.now()))) {
                Err(RecvTimeoutError::Disconnected) => return,
                // If the queue is full, the pager reports the page again.
                Ok(ControlNotice::Stuck(page)) => _ = self.stuck.try_send(page),
                Ok(ControlNotice::Flushed(order)) => {
                    self.flushed = self.flushed.max(order);
                    due = self.clock.now();
                }
                Ok(ControlNotice::LeaseEnded) => {
                    self.given_up = true;
                    let silent = self.clock.now().since(leased_last).as_nanos() / 1_000_000;
                    say(&format!(
                        "the lease of host {} ended; it was last renewed {silent} ms ago: {why}. Writes of this host that had not reached \
                         the memory nodes may be lost: an access to such a page ends in SIGBUS",
                        self.life.host
                    ));
                    due = self.clock.now();
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.clock.now() < due {
                continue;
            }
            why = match self.renew() {
                Ok(true) => {
                    leased_last = self.clock.now();
                    self.api.close_idle();
                    "this process did not run, so it asked for no other lease in time".clone_into(&mut why);
                    due = leased_last + self.pause();
                    continue;
                }
                Ok(false) => "the control plane grants none".to_owned(),
                Err(error) => match later(error) {
                    Ok(_) => "the control plane cannot grant one".to_owned(),
                    // These errors are not the rack's answers: the key file may be repaired, and another
                    // process that uses the port may end.
                    Err(error @ (Error::Api { .. } | Error::Keys { .. } | Error::Untrusted { .. })) => {
                        error.to_string()
                    }
                    // The rack has ended this generation of the host.
                    Err(error) => {
                        return self.inbox.put([PagerRequest::Fail(format!("the lease ended: {error}"))]);
                    }
                },
            };
            if self.clock.now().since(leased_last) >= self.length.times(2).max(self.patience) {
                return self.inbox.put([PagerRequest::Fail(format!("the lease ended: {why}"))]);
            }
            due = self.clock.now() + ASK_AGAIN;
        }
    }

    /// Sends one request; returns true if it granted a lease.
    fn renew(&mut self) -> Result<bool, Error> {
        let asked = self.clock.now();
        let Self { life: Life { host, generation, qkey }, flushed, .. } = *self;
        let LeaseInfo { lease_ms, flush } = self.api.call(Renew { host, generation, flushed, qkey })?;
        if flush > self.ordered {
            self.ordered = flush;
            self.inbox.put([PagerRequest::GiveUp(flush)]);
        }
        if lease_ms == 0 {
            return Ok(false);
        }
        let length = Duration::from_millis(lease_ms);
        let until = asked + Duration::from_nanos(length.as_nanos() / TAKE_SHARE * (TAKE_SHARE - 1));
        if asked < self.until {
            // The watcher may have been faster. Then this lease no longer covers the pages.
            if !self.watched.extend(&self.clock, until) {
                return Ok(false);
            }
        } else {
            // Other hosts may write between two leases. The next lease begins when no page of the last one is
            // left here.
            if !self.given_up {
                self.inbox.put([]);
                return Ok(false);
            }
            self.hold_again()?;
            if !self.watched.begin(&self.clock, until) {
                return Ok(false);
            }
            self.given_up = false;
        }
        (self.length, self.until) = (length, until);
        self.inbox.put([PagerRequest::Lease(until)]);
        Ok(true)
    }
}

/// Starts the thread that requests resets of regions (PROTOCOL 12.33). The thread ends when the last sender
/// of pages is dropped.
fn recoverer(mut api: ApiClient, host: u16) -> Result<SyncSender<Page>, Error> {
    let (tell, told) = sync_channel::<Page>(STUCK_MAX);
    start("farmem-recover", move || {
        for page in told {
            // A later report of the page repeats the request.
            let _later = api.call(Recover { host, page: page.addr().0 });
        }
    })?;
    Ok(tell)
}

/// Prints the reason for a program's SIGBUS on standard error, because a signal carries no text.
pub(super) fn say(why: &str) {
    eprintln!("farmem: shared memory: {why}");
}

impl LeaseKeeper {
    /// Opens all objects again, because the control plane may have closed them between two leases. If one was
    /// freed meanwhile, another object may have its addresses, so this method fails and far memory is lost
    /// (PROTOCOL 8.34).
    fn hold_again(&mut self) -> Result<(), Error> {
        let objects = lock(&self.objects).clone();
        for object in objects {
            self.api.call(HoldObject::new(self.life.host, object))?;
        }
        Ok(())
    }
}

/// Returns false for a temporary refusal, and otherwise the error.
fn later(error: Error) -> Result<bool, Error> {
    match error.code() {
        Some(ErrorCode::Unavailable | ErrorCode::Storage | ErrorCode::TooSlow) => Ok(false),
        _ => Err(error),
    }
}

const fn std(duration: Duration) -> StdDuration {
    StdDuration::from_nanos(duration.as_nanos())
}
