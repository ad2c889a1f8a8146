//! The table of the API server's connections, and which one is evicted when there are too many.
//!
//! A connection is *unauthenticated* until a whole request with the token has come over it, and *busy* from a whole request until its answer is
//! handed over. When the table is full, a new connection evicts the oldest unauthenticated one, so clients without the token cannot keep out clients that
//! have it; and where there is none, the authenticated one that has asked for nothing for longest, so that neither can clients with the token that keep
//! theirs open. A busy one is never evicted: it ends with its answer, when another waits for its entry.

use super::connections::Limits;
use super::stream::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Authenticated connections that were evicted and still write their last answers. While there are as many, no other one of their kind is evicted.
const LINGERING_MAX: usize = 64;

/// The connections of one server.
#[derive(Debug)]
pub(super) struct ConnTable {
    limits: Limits,
    entries: Mutex<Entries>,
    /// An entry became free, or can be evicted now. Only the accepting tasks wait for it, one for each door.
    freed: Notify,
}

#[derive(Default, Debug)]
struct Entries {
    /// The id of the next connection, and of the next end of a request: ids grow, so the smallest is the oldest.
    next: u64,
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    authenticated: BTreeMap<u64, Authenticated>,
    lingering: BTreeSet<u64>,
    /// Doors at which a connection waits for an entry.
    waiting: usize,
}

#[derive(Debug)]
struct Unauthenticated {
    source: Source,
    eviction: Arc<Eviction>,
}

#[derive(Debug)]
struct Authenticated {
    /// When its last request was answered; `None` while it is busy.
    idle_since: Option<u64>,
    eviction: Arc<Eviction>,
}

/// How a connection hears that it is evicted.
#[derive(Default, Debug)]
pub(super) struct Eviction {
    evicted: Notify,
    gently: AtomicBool,
}

impl Eviction {
    /// Waits until the connection is evicted; that is notified once.
    pub(super) async fn notified(&self) {
        self.evicted.notified().await;
    }

    /// Whether the connection has answered requests: it writes out what it has, and closes.
    pub(super) fn is_gentle(&self) -> bool {
        self.gently.load(Relaxed)
    }
}

/// A connection's entry. Dropping the last copy frees it.
#[derive(Clone, Debug)]
pub(super) struct ConnGuard(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    id: u64,
    table: Arc<ConnTable>,
}

impl ConnTable {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, entries: Mutex::default(), freed: Notify::new() }
    }

    /// Enters a connection from `source`, and evicts another if it must. Waits only while every entry is of a busy connection.
    pub(super) async fn enter(self: &Arc<Self>, source: Source) -> (ConnGuard, Arc<Eviction>) {
        if let Some(entered) = self.try_enter(source) {
            return entered;
        }
        self.lock().waiting += 1;
        let entered = loop {
            self.freed.notified().await;
            if let Some(entered) = self.try_enter(source) {
                break entered;
            }
        };
        self.lock().waiting -= 1;
        entered
    }

    fn try_enter(self: &Arc<Self>, source: Source) -> Option<(ConnGuard, Arc<Eviction>)> {
        let Limits { connections_max, unauthenticated_per_source_max, .. } = self.limits;
        let mut entries = self.lock();
        let is_full = entries.unauthenticated.len() + entries.authenticated.len() >= connections_max;
        let mut of_source = entries.unauthenticated.iter().filter(|(_, entry)| entry.source == source);
        let oldest_of_source = of_source.next().map(|(&id, _)| id);
        let is_source_full = 1 + of_source.count() >= unauthenticated_per_source_max;
        let oldest = entries.unauthenticated.first_key_value().map(|(&id, _)| id);
        match (oldest_of_source, oldest) {
            (Some(id), _) if is_source_full => entries.evict_unauthenticated(id),
            (_, Some(id)) if is_full => entries.evict_unauthenticated(id),
            (_, None) if is_full => entries.evict_idle()?,
            _ => {}
        }
        let id = entries.tick();
        let eviction = Arc::new(Eviction::default());
        entries.unauthenticated.insert(id, Unauthenticated { source, eviction: Arc::clone(&eviction) });
        Some((ConnGuard(Arc::new(Entry { id, table: Arc::clone(self) })), eviction))
    }

    /// A panic leaves nothing half written: no step between two changes of the table can fail.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    const fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn evict_unauthenticated(&mut self, id: u64) {
        let entry = self.unauthenticated.remove(&id).expect("it was found");
        entry.eviction.evicted.notify_one();
    }

    /// The authenticated connection that is idle for longest. `None` when none may be evicted now.
    fn evict_idle(&mut self) -> Option<()> {
        let idle = self.authenticated.iter().filter_map(|(&id, entry)| Some((entry.idle_since?, id)));
        let (_, id) = idle.min().filter(|_| self.lingering.len() < LINGERING_MAX)?;
        let entry = self.authenticated.remove(&id)?;
        self.lingering.insert(id);
        entry.eviction.gently.store(true, Relaxed);
        entry.eviction.evicted.notify_one();
        Some(())
    }
}

impl ConnGuard {
    /// A whole request with the token has come: the connection is authenticated from now on, and busy.
    pub(super) fn begin_request(&self) {
        let mut entries = self.0.table.lock();
        let id = self.0.id;
        if let Some(Unauthenticated { eviction, .. }) = entries.unauthenticated.remove(&id) {
            entries.authenticated.insert(id, Authenticated { idle_since: None, eviction });
        } else if let Some(entry) = entries.authenticated.get_mut(&id) {
            entry.idle_since = None;
        }
    }

    /// Its answer is handed over. True when the connection is to end with it: others wait for an entry.
    pub(super) fn end_request(&self) -> bool {
        let mut entries = self.0.table.lock();
        let now = entries.tick();
        let is_wanted = entries.waiting > 0;
        if let Some(entry) = entries.authenticated.get_mut(&self.0.id) {
            entry.idle_since = Some(now);
        }
        drop(entries);
        if is_wanted {
            self.0.table.freed.notify_one();
        }
        is_wanted
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut entries = self.table.lock();
        let was_unauthenticated = entries.unauthenticated.remove(&self.id).is_some();
        let was_authenticated = entries.authenticated.remove(&self.id).is_some();
        // An evicted connection has no entry: the new connection has it.
        if was_unauthenticated | was_authenticated | entries.lingering.remove(&self.id) {
            drop(entries);
            self.table.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::pin::pin;
    use std::task::{Context, Waker};

    /// A table of so many entries, and so many of them for unauthenticated connections of one address.
    fn table(connections_max: usize, unauthenticated_per_source_max: usize) -> Arc<ConnTable> {
        let limits = Limits { connections_max, unauthenticated_per_source_max, ..Limits::default() };
        Arc::new(ConnTable::new(limits))
    }

    fn from(last: u8) -> Source {
        Source::Ip(Ipv4Addr::new(127, 0, 0, last).into())
    }

    fn is_evicted(eviction: &Eviction) -> bool {
        let notified = pin!(eviction.notified());
        notified.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// The table is full. Each new connection evicts the oldest unauthenticated one; the authenticated one stays.
    #[test]
    fn the_oldest_unauthenticated_connection_is_evicted() {
        let table = table(3, 3);
        let mut held: Vec<(ConnGuard, Arc<Eviction>)> =
            (1..=3).map(|n| table.try_enter(from(n)).unwrap()).collect();
        held[0].0.begin_request();
        held.push(table.try_enter(from(4)).unwrap());
        held.push(table.try_enter(from(5)).unwrap());
        let evicted: Vec<bool> = held.iter().map(|(_, eviction)| is_evicted(eviction)).collect();
        assert_eq!(evicted, [false, true, true, false, false]);
    }

    /// Every entry is of a busy connection: none is evicted, and a new connection waits until one ends. The end of an evicted connection frees nothing,
    /// and a request that it completes too late does not authenticate it.
    #[test]
    fn busy_connections_keep_their_entries() {
        let table = table(2, 2);
        let evicted = table.try_enter(from(1)).unwrap();
        let held: Vec<(ConnGuard, Arc<Eviction>)> =
            (0..2).map(|_| table.try_enter(from(2)).unwrap()).collect();
        evicted.0.begin_request();
        held.iter().for_each(|(guard, _)| guard.begin_request());
        assert!(table.try_enter(from(3)).is_none());
        drop(evicted);
        assert!(table.try_enter(from(3)).is_none());
        drop(held);
        drop(table.try_enter(from(3)).expect("the table is empty"));
        let entries = table.lock();
        assert_eq!((entries.authenticated.len(), entries.unauthenticated.len()), (0, 0));
    }

    /// All have answered a request. The one whose answer is longest ago is evicted, gently, and no busy one; then the next one, and so on, but only while few of them
    /// linger.
    #[test]
    fn the_connection_that_is_idle_for_longest_is_evicted() {
        let most = LINGERING_MAX + 3;
        let table = table(most, most);
        let held: Vec<(ConnGuard, Arc<Eviction>)> =
            (0..most).map(|_| table.try_enter(from(1)).unwrap()).collect();
        held.iter().for_each(|(guard, _)| guard.begin_request());
        held.iter().skip(1).rev().for_each(|(guard, _)| assert!(!guard.end_request(), "none waits"));
        let last = most - 1;
        let mut next = vec![table.try_enter(from(2)).unwrap()];
        assert!(held[last].1.is_gentle() && is_evicted(&held[last].1));
        let evicted = |held: &[(ConnGuard, Arc<Eviction>)]| {
            held.iter().filter(|(_, eviction)| eviction.is_gentle()).count()
        };
        assert_eq!(evicted(&held), 1);
        for lingering in 2..=LINGERING_MAX {
            next[lingering - 2].0.begin_request();
            next.push(table.try_enter(from(2)).unwrap());
            assert_eq!(evicted(&held), lingering);
        }
        let newest = &next[LINGERING_MAX - 1].0;
        newest.begin_request();
        assert!(table.try_enter(from(2)).is_none(), "as many linger as may");
        assert!(!held[0].1.is_gentle(), "a busy one");
        table.lock().waiting = 1;
        assert!(newest.end_request(), "one waits");
        drop(held);
        assert!(table.try_enter(from(2)).is_some());
    }

    /// One address has as many unauthenticated connections as it may: the oldest of them is evicted although the table has room, and none of another
    /// address.
    #[test]
    fn one_address_has_a_bound() {
        let table = table(10, 2);
        let other = table.try_enter(from(9)).unwrap();
        let same: Vec<(ConnGuard, Arc<Eviction>)> =
            (0..5).map(|_| table.try_enter(from(1)).unwrap()).collect();
        let evicted: Vec<bool> = same.iter().map(|(_, eviction)| is_evicted(eviction)).collect();
        assert_eq!(evicted, [true, true, true, false, false]);
        assert!(!is_evicted(&other.1));
    }

    /// Connections over the Unix socket have a bound together, and evict none that came over the network.
    #[test]
    fn the_unix_socket_has_a_bound() {
        let table = table(10, 2);
        let other = table.try_enter(from(9)).unwrap();
        let here: Vec<(ConnGuard, Arc<Eviction>)> =
            (0..3).map(|_| table.try_enter(Source::Here).unwrap()).collect();
        let evicted: Vec<bool> = here.iter().map(|(_, eviction)| is_evicted(eviction)).collect();
        assert_eq!(evicted, [true, false, false]);
        assert!(!is_evicted(&other.1));
    }
}
