//! The thread that keeps the host's lease: it asks the control plane by HTTP, which may take long, and hands what it hears to the pager.
//!
//! A page that is cached may be used for as long as the lease lasts, counted from when it was asked for, so that the control plane never
//! believes it to be over sooner than this host does (PROTOCOL 12.35).

use super::desk::{Ask, Inbox, lock};
use super::join::start;
use super::pager::Told;
use crate::Error;
use crate::client::wrong_answer;
use crate::config::RackConfig;
use crate::rack::SILENCE_MAX;
use crate::serve::api_client;
use farmem_control::api::{ErrorCode, Request, Response};
use farmem_io::{ApiClient, Clock};
use farmem_machine::{Duration, Instant};
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration as StdDuration;

/// Time between two questions when the control plane has said "not yet".
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// A host that holds a lease.
pub(super) struct Landlord {
    api: ApiClient,
    clock: Clock,
    inbox: Arc<Inbox>,
    host: u16,
    generation: u16,
    /// The newest order that was obeyed, and the newest that was handed on.
    flushed: u64,
    ordered: u64,
    lease: Duration,
    /// When the latest lease ends.
    until: Instant,
    objects: Objects,
}

/// The named objects that a host has open, by number.
pub(super) type Objects = Arc<Mutex<BTreeSet<u64>>>;

impl Landlord {
    /// Waits for the first lease.
    pub(super) fn begin(
        config: &RackConfig,
        (host, generation): (u16, u16),
        clock: Clock,
        inbox: &Arc<Inbox>,
        objects: Objects,
    ) -> Result<Self, Error> {
        let (api, inbox) = (api_client(config)?, Arc::clone(inbox));
        let (flushed, ordered, lease) = (0, 0, Duration::ZERO);
        let until = Instant::ZERO;
        let mut landlord =
            Self { api, clock, inbox, host, generation, flushed, ordered, lease, until, objects };
        let begun = clock.now();
        while !landlord.renew().or_else(later)? {
            // Who has nothing has given everything up.
            landlord.flushed = landlord.ordered;
            if clock.now().since(begun) >= SILENCE_MAX.times(2) {
                return Err(Error::Unreachable { what: "the switch: no host may share memory yet".into() });
            }
            std::thread::sleep(std(ASK_AGAIN));
        }
        landlord.flushed = landlord.ordered;
        Ok(landlord)
    }

    /// Time between two renewals: one may be lost, and there is time for another.
    const fn pause(&self) -> Duration {
        Duration::from_nanos(self.lease.as_nanos() / 3)
    }

    /// Renews the lease on a thread of its own until nobody is left to tell it anything.
    pub(super) fn start(mut self, told: Receiver<Told>) -> Result<JoinHandle<()>, Error> {
        start("farmem-lease", move || self.run(&told))
    }

    fn run(&mut self, told: &Receiver<Told>) {
        let mut leased_last = self.clock.now();
        let mut wait = self.pause();
        loop {
            match told.recv_timeout(std(wait)) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(Told::Stuck(page)) => {
                    // Asked again when it is told again.
                    let _later = self.api.ask(&Request::Recover { host: self.host, page: page.addr().0 });
                    continue;
                }
                Ok(Told::Flushed(order)) => self.flushed = self.flushed.max(order),
                Ok(Told::LeaseEnded) | Err(RecvTimeoutError::Timeout) => {}
            }
            let why = match self.renew() {
                Ok(true) => {
                    leased_last = self.clock.now();
                    wait = self.pause();
                    continue;
                }
                Ok(false) => "the control plane gives none".to_owned(),
                Err(error) => match later(error) {
                    Ok(_) => "the control plane cannot give one".to_owned(),
                    Err(error @ Error::Api { .. }) => error.to_string(),
                    // The rack has ended this life of the host.
                    Err(error) => return self.inbox.put([Ask::Fail(format!("the lease ended: {error}"))]),
                },
            };
            if self.clock.now().since(leased_last) >= self.lease.max(SILENCE_MAX).times(2) {
                return self.inbox.put([Ask::Fail(format!("the lease ended: {why}"))]);
            }
            wait = ASK_AGAIN;
        }
    }

    /// Asks once; true when there is a lease.
    fn renew(&mut self) -> Result<bool, Error> {
        let asked = self.clock.now();
        let Self { host, generation, flushed, .. } = *self;
        let Response::Lease { lease_ms, flush } =
            self.api.ask(&Request::Renew { host, generation, flushed })?
        else {
            return Err(wrong_answer("renew"));
        };
        if flush > self.ordered {
            self.ordered = flush;
            self.inbox.put([Ask::GiveUp(flush)]);
        }
        let leased = lease_ms > 0;
        if leased {
            if asked >= self.until {
                self.hold_again()?;
            }
            self.lease = Duration::from_millis(lease_ms);
            self.until = asked + self.lease;
            self.inbox.put([Ask::Lease(self.until)]);
        }
        Ok(leased)
    }
}

impl Landlord {
    /// Between two leases the control plane may have closed what this host has open. An object that was freed since would be found under
    /// another's addresses: then nothing can be had any more (PROTOCOL 8.34).
    fn hold_again(&mut self) -> Result<(), Error> {
        let objects = lock(&self.objects).clone();
        for object in objects {
            self.api.ask(&Request::HoldObject { host: self.host, object })?;
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
