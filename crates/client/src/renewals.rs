//! Says for all clients of this process that their hosts are there (PROTOCOL 8.61), on one thread of its own, which ends with the last of them.
//!
//! Key type: [`Renewal`], one client's; it ends when that is dropped. A client may compute for hours between two operations, so its own thread cannot
//! do it. A quarter of a host's lease goes by between two requests; one that fails is made again after [`AGAIN`].

use crate::Error;
use crate::config::RackConfig;
use crate::link::api_client;
use farmem_control::api::{ErrorCode, Overview, Stay};
use farmem_io::ApiCallError;
use std::collections::BTreeMap;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Requests in the length of a host's lease.
const OFTEN: u32 = 4;
/// Time after a request that failed until the next one.
const AGAIN: Duration = Duration::from_secs(1);
/// Time after which a host is renewed that the rack does not know in this life, unless it joins again before: it is not.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// Longest wait for an answer: other racks' hosts wait meanwhile.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// A host of this process, which is said to be there until this is dropped.
#[derive(Debug)]
pub(crate) struct Renewal {
    number: u64,
    gone: Gone,
}

/// The generation of a host that the rack has taken out; [`NOT_GONE`] as long as it has not.
type Gone = Arc<AtomicU32>;

/// More than any generation.
const NOT_GONE: u32 = u32::MAX;

/// The hosts of this process.
#[derive(Debug)]
struct Hosts {
    rows: BTreeMap<u64, Row>,
    next: u64,
    /// The process whose thread renews them: one that was forked off has none.
    served_by: Option<u32>,
}

#[derive(Debug)]
struct Row {
    config: Box<RackConfig>,
    host: u16,
    generation: u16,
    due: Instant,
    gone: Gone,
}

static HOSTS: Mutex<Hosts> = Mutex::new(Hosts { rows: BTreeMap::new(), next: 0, served_by: None });
static CHANGED: Condvar = Condvar::new();

impl Renewal {
    /// Renews the lease of the host from now on.
    ///
    /// # Errors
    /// [`Error::System`] when the system starts no thread.
    pub(crate) fn begin(config: &RackConfig, (host, generation): (u16, u16)) -> Result<Self, Error> {
        let mut hosts = locked();
        if hosts.served_by.is_some_and(|process| process != process::id()) {
            hosts.rows.clear(); // those of the process that this one was forked from
            hosts.served_by = None;
        }
        let number = hosts.next;
        hosts.next += 1;
        let due = Instant::now() + period(config.control.host_lease.as_nanos() / 1_000_000);
        let gone = Gone::new(NOT_GONE.into());
        let row = Row { config: Box::new(config.clone()), host, generation, due, gone: Gone::clone(&gone) };
        hosts.rows.insert(number, row);
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

    /// The host joined again.
    pub(crate) fn joined_again(&self, generation: u16) {
        if let Some(row) = locked().rows.get_mut(&self.number) {
            row.joined(generation, Instant::now());
            CHANGED.notify_all();
        }
    }

    /// Whether the rack has said that it does not have this generation of the host any more.
    pub(crate) fn is_gone(&self, generation: u16) -> bool {
        self.gone.load(Ordering::Relaxed) == u32::from(generation)
    }
}

impl Row {
    /// Its host joined again: that life is renewed from now on.
    fn joined(&mut self, generation: u16, now: Instant) {
        self.generation = generation;
        self.due = now;
    }

    /// What came of a request for this generation: the time until the next one, or that the rack has no such life of the host. The row stays then:
    /// the host may be about to join again, and what it asked for may have been answered before. Its client finds out by its next operation.
    fn answered(&mut self, generation: u16, after: Option<Duration>, now: Instant) {
        self.due = now
            + match after {
                Some(after) => after,
                None if self.generation != generation => AGAIN,
                None => {
                    self.gone.store(generation.into(), Ordering::Relaxed);
                    NEVER
                }
            };
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        locked().rows.remove(&self.number);
        CHANGED.notify_all();
    }
}

/// No code panics while it holds it; what is in it holds all the same.
fn locked() -> MutexGuard<'static, Hosts> {
    HOSTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn period(lease_ms: u64) -> Duration {
    Duration::from_millis(lease_ms) / OFTEN
}

/// Until there are no hosts.
fn renew_all() {
    let mut hosts = locked();
    loop {
        let next = hosts.rows.iter().min_by_key(|(_, row)| row.due).map(|(&number, row)| (number, row.due));
        let Some((number, due)) = next else {
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
        let after = ask(&config, call.clone());
        hosts = locked();
        if let Some(row) = hosts.rows.get_mut(&number) {
            row.answered(call.generation, after, Instant::now());
        }
    }
}

/// Says that one host is there; answers when to say it again, if it is. Over a connection of its own each time: the control plane has only so many, and
/// hosts that do nothing hold none of them.
fn ask(config: &RackConfig, call: Stay) -> Option<Duration> {
    let Ok(api) = api_client(config) else { return Some(AGAIN) };
    let mut api = api.impatient(ANSWER_TIME_MAX);
    let (host, generation) = (call.host, call.generation);
    match api.call(call) {
        // Without a length hosts of this rack stay for good.
        Ok(lease) => (lease.lease_ms > 0).then(|| period(lease.lease_ms).max(Duration::from_millis(1))),
        // It was taken out of the rack, or joins again just now.
        Err(ApiCallError::Refused(error))
            if matches!(error.code, ErrorCode::NotFound | ErrorCode::Conflict) =>
        {
            None
        }
        // Another user's host has the number by now, or this user's key of it is lost.
        Err(ApiCallError::Refused(error)) if error.code == ErrorCode::NotOwner => match api.call(Overview {})
        {
            Ok(seen) if !seen.hosts.iter().any(|at| (at.host, at.generation) == (host, generation)) => None,
            _ => Some(AGAIN),
        },
        Err(_) => Some(AGAIN),
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

    /// A request for the earlier life crosses the join of the next one: it is refused, and that answer comes before the client has read the answer to its join.
    /// The next life is renewed all the same, and at once. So is one whose join was read before the refusal.
    #[test]
    fn a_refusal_of_the_earlier_life_ends_no_later_one() {
        let now = Instant::now();
        let config = RackConfig::parse(RACK, "rack.toml".as_ref()).unwrap();
        let row = || Row {
            config: Box::new(config.clone()),
            host: 3,
            generation: 1,
            due: now,
            gone: Gone::new(NOT_GONE.into()),
        };
        let mut refused_first = row();
        refused_first.answered(1, None, now);
        assert!(refused_first.due > now + NEVER / 2, "nobody asks for a life that is over");
        let gone = |row: &Row| row.gone.load(Ordering::Relaxed);
        assert_eq!(gone(&refused_first), 1, "its client is told");
        refused_first.joined(2, now);
        assert_eq!((refused_first.generation, refused_first.due), (2, now));
        let mut joined_first = row();
        joined_first.joined(2, now);
        joined_first.answered(1, None, now);
        assert_eq!((joined_first.generation, joined_first.due), (2, now + AGAIN));
        assert_eq!(gone(&joined_first), NOT_GONE, "nothing is wrong with the life that it has");
        joined_first.answered(2, Some(AGAIN * 15), now);
        assert_eq!(joined_first.due, now + AGAIN * 15);
    }
}
