//! Renewal of the leases of all hosts of this process's clients (PROTOCOL 8.61), on one thread, which ends
//! with the last client.
//!
//! Key type: [`Renewal`], the lease of one client's host, renewed until its drop. A client's own thread
//! cannot do this, because it may compute for hours between two operations. The thread sends a request every
//! quarter of the host's lease, as the control plane states it. A failed request is repeated after [`AGAIN`].

use crate::config::RackConfig;
use crate::error::Error;
use crate::link::api_client;
use farmem_api::ApiCallError;
use farmem_control::api::{ErrorCode, Overview, Stay};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{process, thread};

/// Number of requests per lease.
const OFTEN: u32 = 4;

/// Time from a failed request to the next one.
const AGAIN: Duration = Duration::from_secs(1);

/// The wait of a host that needs no request. Its lease never expires, or the rack does not know this
/// generation and the host has not joined again. No process runs longer.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Maximum time to wait for an answer. Hosts of other racks wait meanwhile, at most for one such answer per
/// rack.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// A host of this process, whose lease is renewed until this value is dropped.
#[derive(Debug)]
pub(crate) struct Renewal {
    number: u64,
    gone: FencedGeneration,
}

/// The generation of a host that the rack has fenced; [`NOT_FENCED`] if it has not.
type FencedGeneration = Arc<AtomicU32>;

/// A value larger than every generation.
const NOT_FENCED: u32 = u32::MAX;

/// The hosts of this process.
#[derive(Debug)]
struct Hosts {
    rows: BTreeMap<u64, RenewedHost>,
    next: u64,
    /// The process whose thread renews the leases. A forked process has no such thread.
    served_by: Option<u32>,
}

#[derive(Debug)]
struct RenewedHost {
    config: Box<RackConfig>,
    host: u16,
    generation: u16,
    due: Instant,
    gone: FencedGeneration,
}

static HOSTS: Mutex<Hosts> = Mutex::new(Hosts { rows: BTreeMap::new(), next: 0, served_by: None });

static CHANGED: Condvar = Condvar::new();

impl Renewal {
    /// Renews the lease of the host from now on.
    ///
    /// # Errors
    /// [`Error::System`] if the system cannot start a thread.
    pub(crate) fn begin(config: &RackConfig, host: u16, generation: u16) -> Result<Self, Error> {
        let mut hosts = locked();
        if hosts.served_by.is_some_and(|process| process != process::id()) {
            hosts.rows.clear(); // the rows belong to the parent process
            hosts.served_by = None;
        }
        let gone = FencedGeneration::new(NOT_FENCED.into());
        let number = hosts.begin(config, host, generation, FencedGeneration::clone(&gone), Instant::now());
        if hosts.served_by.is_some() {
            CHANGED.notify_all();
            return Ok(Self { number, gone });
        }
        let started = thread::Builder::new().name("farmem-stays".into()).spawn(renew_all);
        match started {
            Ok(_detached) => {
                hosts.served_by = Some(process::id());
                Ok(Self { number, gone })
            }
            Err(source) => {
                hosts.rows.remove(&number);
                Err(Error::System { what: "cannot start the thread farmem-stays".into(), source })
            }
        }
    }

    /// Records that the host joined again.
    pub(crate) fn joined_again(&self, generation: u16) {
        if let Some(row) = locked().rows.get_mut(&self.number) {
            row.joined(generation, Instant::now());
            CHANGED.notify_all();
        }
    }

    /// Returns true if the rack has reported that it does not have this generation of the host any more.
    pub(crate) fn is_gone(&self, generation: u16) -> bool {
        self.gone.load(Ordering::Relaxed) == u32::from(generation)
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RenewalOutcome {
    /// The lease was renewed; the next request is due after this time.
    Stays(Duration),
    /// The lease was renewed, and never expires in this rack.
    Always,
    /// The rack does not have this generation of the host.
    Never,
    /// The request failed.
    Failed,
    /// The control plane did not answer.
    Unanswered,
}

impl Hosts {
    /// Adds a host and returns its number. Its first request is due at once: only the answer contains the
    /// length of the lease, because this machine's rack.toml may be out of date.
    fn begin(
        &mut self,
        config: &RackConfig,
        host: u16,
        generation: u16,
        gone: FencedGeneration,
        due: Instant,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        self.rows
            .insert(number, RenewedHost { config: Box::new(config.clone()), host, generation, due, gone });
        number
    }

    /// Returns the host whose request is due next.
    fn next(&self) -> Option<(u64, Instant)> {
        self.rows.iter().min_by_key(|(_, row)| row.due).map(|(&number, row)| (number, row.due))
    }

    /// Records the outcome of a request for this generation of a host.
    fn answered(&mut self, number: u64, generation: u16, asked: RenewalOutcome, now: Instant) {
        let Some(row) = self.rows.get_mut(&number) else { return };
        row.answered(generation, asked, now);
        if asked != RenewalOutcome::Unanswered {
            return;
        }
        // Requests for other hosts of this rack would fail as well, one after the other, and delay hosts of
        // other racks.
        let control = row.config.control.clone();
        let of_rack = |row: &&mut RenewedHost| {
            (row.config.control.address, &row.config.control.state) == (control.address, &control.state)
        };
        for row in self.rows.values_mut().filter(of_rack) {
            row.due = row.due.max(now + AGAIN);
        }
    }
}

impl RenewedHost {
    /// Records that the host joined again; its new generation is renewed from now on.
    fn joined(&mut self, generation: u16, now: Instant) {
        self.generation = generation;
        self.due = now;
    }

    /// Records the outcome of a request for this generation. If the rack does not know the generation, the
    /// host stays in the list. The host may be about to join again, or the answer may belong to an earlier
    /// generation. The client learns of the fence by its next operation.
    fn answered(&mut self, generation: u16, asked: RenewalOutcome, now: Instant) {
        self.due = now
            + match asked {
                RenewalOutcome::Stays(after) => after,
                RenewalOutcome::Always if self.generation == generation => NEVER,
                RenewalOutcome::Never if self.generation == generation => {
                    self.gone.store(generation.into(), Ordering::Relaxed);
                    NEVER
                }
                RenewalOutcome::Always
                | RenewalOutcome::Never
                | RenewalOutcome::Failed
                | RenewalOutcome::Unanswered => AGAIN,
            };
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        locked().rows.remove(&self.number);
        CHANGED.notify_all();
    }
}

/// Locks the list of hosts. No code panics while it holds the lock, so a poisoned lock has valid content.
fn locked() -> MutexGuard<'static, Hosts> {
    HOSTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn period(lease_ms: u64) -> Duration {
    Duration::from_millis(lease_ms) / OFTEN
}

/// Renews all leases, until there are no hosts.
fn renew_all() {
    let mut hosts = locked();
    loop {
        let Some((number, due)) = hosts.next() else {
            hosts.served_by = None;
            return;
        };
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            let waited = CHANGED.wait_timeout(hosts, wait);
            hosts = waited.unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        let row = &hosts.rows[&number];
        let config = row.config.clone();
        let call = Stay { host: row.host, generation: row.generation };
        drop(hosts);
        let asked = ask(&config, call.clone());
        hosts = locked();
        hosts.answered(number, call.generation, asked, Instant::now());
    }
}

/// Renews the lease of one host. Each request uses its own connection: the control plane's connections are
/// limited, so an idle host must not hold one.
fn ask(config: &RackConfig, call: Stay) -> RenewalOutcome {
    let Ok(api) = api_client(config) else { return RenewalOutcome::Failed };
    let mut api = api.with_timeout(ANSWER_TIME_MAX);
    let (host, generation) = (call.host, call.generation);
    match api.call(call) {
        // A length of 0 means that leases of this rack never expire.
        Ok(lease) if lease.lease_ms == 0 => RenewalOutcome::Always,
        Ok(lease) => RenewalOutcome::Stays(period(lease.lease_ms).max(Duration::from_millis(1))),
        // The host was fenced, or is joining again now.
        Err(ApiCallError::Refused(error))
            if matches!(error.code, ErrorCode::NotFound | ErrorCode::Conflict) =>
        {
            RenewalOutcome::Never
        }
        // Another user's host has the number now, or this user's key of the host is lost.
        Err(ApiCallError::Refused(error)) if error.code == ErrorCode::NotOwner => match api.call(Overview {})
        {
            Ok(seen) if !seen.hosts.iter().any(|at| (at.host, at.generation) == (host, generation)) => {
                RenewalOutcome::Never
            }
            _ => RenewalOutcome::Failed,
        },
        Err(ApiCallError::Unreachable { .. } | ApiCallError::Untrusted { .. }) => RenewalOutcome::Unanswered,
        Err(_) => RenewalOutcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACK: &str = r#"
        name = "rack-1"
        transport = "udp"
        [control]
        address = "127.71.0.1"
        http = "127.0.0.1:7471"
        state = "rack-state"
        [switch]
        address = "127.71.0.2"
        [[node]]
        name = "node1"
        address = "127.71.0.11"
        memory = "1 MiB"
        [hosts]
        first = "127.71.1.1"
        count = 3
    "#;

    fn row(config: &RackConfig, due: Instant) -> RenewedHost {
        RenewedHost {
            config: Box::new(config.clone()),
            host: 3,
            generation: 1,
            due,
            gone: FencedGeneration::new(NOT_FENCED.into()),
        }
    }

    /// A request for an earlier generation crosses the join of the next one, and is refused. Its answer
    /// arrives before the client has read the answer to the join. The next generation is renewed
    /// nevertheless, at once. The same holds if the join was read before the refusal.
    #[test]
    fn a_refusal_of_the_earlier_life_ends_no_later_one() {
        let now = Instant::now();
        let config = RackConfig::parse(RACK, "rack.toml".as_ref()).unwrap();
        let mut refused_first = row(&config, now);
        refused_first.answered(1, RenewalOutcome::Never, now);
        assert!(refused_first.due > now + NEVER / 2, "no request for a life that is over");
        let gone = |row: &RenewedHost| row.gone.load(Ordering::Relaxed);
        assert_eq!(gone(&refused_first), 1, "its client is told");
        refused_first.joined(2, now);
        assert_eq!((refused_first.generation, refused_first.due), (2, now));
        let mut joined_first = row(&config, now);
        joined_first.joined(2, now);
        joined_first.answered(1, RenewalOutcome::Never, now);
        assert_eq!((joined_first.generation, joined_first.due), (2, now + AGAIN));
        assert_eq!(gone(&joined_first), NOT_FENCED, "nothing is wrong with the life that it has");
        joined_first.answered(2, RenewalOutcome::Stays(AGAIN * 15), now);
        assert_eq!(joined_first.due, now + AGAIN * 15);
    }

    /// A host whose lease never expires sends no more requests, and does not count as fenced.
    #[test]
    fn a_host_without_a_lease_limit_is_not_gone() {
        let now = Instant::now();
        let mut stays = row(&RackConfig::parse(RACK, "rack.toml".as_ref()).unwrap(), now);
        stays.answered(1, RenewalOutcome::Always, now);
        assert!(stays.due > now + NEVER / 2);
        assert_eq!(stays.gone.load(Ordering::Relaxed), NOT_FENCED);
    }

    /// This machine's rack.toml sets a lease of a day, but the control plane's a lease of a minute. The first
    /// request returns the latter.
    #[test]
    fn how_long_a_lease_is_the_control_plane_says() {
        let now = Instant::now();
        let day = RACK.replace("state =", "host_lease_ms = 86400000\n        state =");
        let config = RackConfig::parse(&day, "rack.toml".as_ref()).unwrap();
        let mut hosts = Hosts { rows: BTreeMap::new(), next: 0, served_by: None };
        let number = hosts.begin(&config, 3, 1, FencedGeneration::new(NOT_FENCED.into()), now);
        assert_eq!(hosts.next(), Some((number, now)));
        hosts.answered(number, 1, RenewalOutcome::Stays(period(60_000)), now);
        assert_eq!(hosts.next(), Some((number, now + Duration::from_secs(15))));
    }

    /// A process has a hundred hosts in a rack whose control plane never answers, and one host in another
    /// rack. This host is renewed in time: it waits for one missing answer, not for a hundred.
    #[test]
    fn a_rack_that_does_not_answer_keeps_no_other_rack_s_host_from_its_renewal() {
        let begun = Instant::now();
        let silent = RackConfig::parse(RACK, "rack.toml".as_ref()).unwrap();
        let well = RackConfig::parse(RACK, "other/rack.toml".as_ref()).unwrap();
        let due = begun + period(60_000);
        let mut hosts = Hosts { rows: BTreeMap::new(), next: 0, served_by: None };
        hosts.rows.extend((0..100).map(|number| (number, row(&silent, begun))));
        hosts.rows.insert(100, row(&well, due));
        let mut now = begun;
        loop {
            let (number, at) = hosts.next().unwrap();
            now = now.max(at);
            if number == 100 {
                break;
            }
            now += ANSWER_TIME_MAX;
            hosts.answered(number, 1, RenewalOutcome::Unanswered, now);
        }
        assert!(now <= due + ANSWER_TIME_MAX, "{:?} late", now - due);
        // The silent control plane answers again, and all its hosts are renewed at once.
        hosts.answered(100, 1, RenewalOutcome::Stays(period(60_000)), now);
        for _ in 0..100 {
            let (number, at) = hosts.next().unwrap();
            assert!(number < 100 && at <= now + AGAIN);
            hosts.answered(number, 1, RenewalOutcome::Stays(period(60_000)), now.max(at));
        }
    }
}
