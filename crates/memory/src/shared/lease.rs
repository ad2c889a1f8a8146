//! The thread that keeps the host's lease: it requests the control plane by HTTP, and hands what it hears to the pager.
//!
//! A page that is cached may be used for as long as the lease lasts, counted from when it was asked for, so that the control plane never
//! believes it to be over sooner than this host does (PROTOCOL 12.35). Where the end stands in the [`Lease`], a watcher takes the pages by itself
//! when neither this thread nor the pager runs.
//!
//! This thread does nothing but renewals: another thread requests the control plane for all else, over another connection. It waits for an answer no
//! longer than three eighths of a lease: then there is time to ask once more, over a new connection. Between renewals it has none: the control plane takes only so many, and
//! a host that does nothing is to hold none of them.

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

/// Time between two questions when the control plane has said "not yet".
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// A life of a host, as the control plane knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) host: u16,
    pub(super) generation: u16,
    /// The key of its endpoint. It shows that the host itself says what it has flushed.
    pub(super) qkey: u32,
}

/// A host that holds a lease.
pub(super) struct LeaseKeeper {
    api: ApiClient,
    clock: Clock,
    inbox: Arc<Inbox>,
    life: Life,
    /// The newest order that was obeyed, and the newest that was handed on.
    flushed: u64,
    ordered: u64,
    /// How long a lease is.
    length: Duration,
    /// How long the rack may give no lease before this process fails; at least two leases.
    patience: Duration,
    /// When the use of the latest lease ends.
    until: Instant,
    /// The pager has given everything up that it had under that; at first it has nothing.
    given_up: bool,
    watched: Arc<Lease>,
    /// Takes pages whose requests get no answer to the control plane.
    stuck: SyncSender<Page>,
    objects: Objects,
}

/// One part in so many of a lease is not used: in that time, and an eighth of a lease more until others may write, the pages are taken.
const TAKE_SHARE: u64 = 8;

/// Pages that wait to be asked for again; of more, the pager tells again.
const STUCK_MAX: usize = 64;

/// The named objects that a host has open, by number.
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
            api: api_client(config)?.patient(std::time::Duration::ZERO),
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
            stuck: recoverer(api_client(config)?.patient(std::time::Duration::ZERO), life.host)?,
            objects,
        };
        let begun = clock.now();
        while !lease_keeper.renew().or_else(later)? {
            // A host that holds nothing has given everything up.
            lease_keeper.flushed = lease_keeper.ordered;
            if clock.now().since(begun) >= lease_keeper.patience.max(SILENCE_MAX.times(2)) {
                return Err(Error::Unreachable { what: "the switch: no host may share memory yet".into() });
            }
            std::thread::sleep(std(ASK_AGAIN));
        }
        lease_keeper.flushed = lease_keeper.ordered;
        lease_keeper.api =
            api_client(config)?.impatient(std(Duration::from_nanos(lease_keeper.length.as_nanos() / 8 * 3)));
        Ok(lease_keeper)
    }

    /// Time between two renewals: one may be lost, and there is time for another.
    const fn pause(&self) -> Duration {
        Duration::from_nanos(self.length.as_nanos() / 3)
    }

    /// Renews the lease on a thread of its own until the last sender of `told` is gone.
    pub(super) fn start(mut self, told: Receiver<ControlNotice>) -> Result<JoinHandle<()>, Error> {
        start("farmem-lease", move || self.run(&told))
    }

    fn run(&mut self, told: &Receiver<ControlNotice>) {
        let mut leased_last = self.clock.now();
        let mut why = "this process did not run, so it asked for no other lease in time".to_owned();
        // A notice puts a renewal forward, never off.
        let mut due = leased_last + self.pause();
        loop {
            match told.recv_timeout(std(due.since(self.clock.now()))) {
                Err(RecvTimeoutError::Disconnected) => return,
                // One too many is told again.
                Ok(ControlNotice::Stuck(page)) => _ = self.stuck.try_send(page),
                Ok(ControlNotice::Flushed(order)) => {
                    self.flushed = self.flushed.max(order);
                    due = self.clock.now();
                }
                Ok(ControlNotice::LeaseEnded) => {
                    self.given_up = true;
                    let silent = self.clock.now().since(leased_last).as_nanos() / 1_000_000;
                    say(&format!(
                        "the lease of host {} ended; it was last renewed {silent} ms ago: {why}. What was written here and had not reached \
                         the memory nodes may be lost: a touch of such a page ends in SIGBUS",
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
                    self.api.hang_up();
                    "this process did not run, so it asked for no other lease in time".clone_into(&mut why);
                    due = leased_last + self.pause();
                    continue;
                }
                Ok(false) => "the control plane gives none".to_owned(),
                Err(error) => match later(error) {
                    Ok(_) => "the control plane cannot give one".to_owned(),
                    // None of these is an answer of the rack: the key file may be mended, and another process that has the port may go.
                    Err(error @ (Error::Api { .. } | Error::Keys { .. } | Error::Untrusted { .. })) => {
                        error.to_string()
                    }
                    // The rack has ended this life of the host.
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

    /// Asks once; true when there is a lease.
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
            // The watcher may have been faster: then this is no longer the lease that the pages are under.
            if !self.watched.extend(&self.clock, until) {
                return Ok(false);
            }
        } else {
            // Between two leases others may have written. The next one begins when no page of the last one is left here.
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

/// Starts the thread that has regions reset (PROTOCOL 12.33). It ends when the last sender of pages is gone.
fn recoverer(mut api: ApiClient, host: u16) -> Result<SyncSender<Page>, Error> {
    let (tell, told) = sync_channel::<Page>(STUCK_MAX);
    start("farmem-recover", move || {
        for page in told {
            // A later report of the page requests again.
            let _later = api.call(Recover { host, page: page.addr().0 });
        }
    })?;
    Ok(tell)
}

/// Says why programs get a SIGBUS, on standard error: they cannot be told otherwise.
pub(super) fn say(why: &str) {
    eprintln!("farmem: shared memory: {why}");
}

impl LeaseKeeper {
    /// Between two leases the control plane may have closed what this host has open. An object that was freed since would be found under
    /// another's addresses: then nothing can be had any more (PROTOCOL 8.34).
    fn hold_again(&mut self) -> Result<(), Error> {
        let objects = lock(&self.objects).clone();
        for object in objects {
            self.api.call(HoldObject::new(self.life.host, object))?;
        }
        Ok(())
    }
}

/// A refusal that passes by itself counts as no lease yet.
fn later(error: Error) -> Result<bool, Error> {
    match error.code() {
        Some(ErrorCode::Unavailable | ErrorCode::Storage | ErrorCode::TooSlow) => Ok(false),
        _ => Err(error),
    }
}

const fn std(duration: Duration) -> StdDuration {
    StdDuration::from_nanos(duration.as_nanos())
}
