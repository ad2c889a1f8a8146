//! The table of the API server's connections, and the policy of eviction when there are too many.
//!
//! A connection is *unauthenticated* until it has carried a complete request with the token. A connection is
//! *busy* from a complete request until the answer was passed to it. Connections form *groups*: those of one
//! source with the same first key, or without one.
//!
//! If the table is full, a new connection evicts one of the largest group. Its oldest unauthenticated
//! connection is evicted; if there is none, the authenticated one that has been idle longest. So a client
//! with many connections, with the token or without, loses its own, and a new peer finds an entry. No source
//! may have more than its share of the table. A busy connection is never evicted: it ends with its answer if
//! a new connection waits for its entry.

use super::stream::Source;
use farmem_control::keys::Key;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Limits of the server's times and connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum time for the head of a request, since the connection or the previous answer. The same limit
    /// applies to idle connections and to TLS handshakes.
    pub head: Duration,
    /// Maximum time for a body, since the head.
    pub body: Duration,
    /// Maximum time in which a client accepts no byte of an answer. The system measures it coarsely.
    pub answer: Duration,
    /// Maximum number of connections, at least 1. A further connection evicts one of the largest group, as
    /// the module describes. If every connection is busy, it waits for the first answer.
    pub connections_max: usize,
    /// Maximum number of unauthenticated connections from one address, or over the Unix socket, at least 1. A
    /// further one evicts the oldest of them.
    pub unauthenticated_per_source_max: usize,
    /// Maximum number of connections from one address, or over the Unix socket, at least 1. A further one
    /// evicts one of them; if all are busy, the further one is closed.
    pub per_source_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let patience = Duration::from_secs(20);
        let (connections_max, unauthenticated_per_source_max, per_source_max) = (256, 64, 192);
        Self {
            head: patience,
            body: patience,
            answer: patience,
            connections_max,
            unauthenticated_per_source_max,
            per_source_max,
        }
    }
}

/// Maximum number of evicted authenticated connections that still write their last answers. At the limit, no
/// other authenticated connection is evicted.
const LINGERING_MAX: usize = 64;

/// The connections of one server.
#[derive(Debug)]
pub(super) struct ConnTable {
    limits: Limits,
    entries: Mutex<Entries>,
    /// Signals that an entry is free, or can be evicted now. Only the accepting tasks wait for it, one for
    /// each endpoint.
    freed: Notify,
}

#[derive(Default, Debug)]
struct Entries {
    /// The id of the next connection, and of the next end of a request. Ids increase, so the smallest is the
    /// oldest.
    next: u64,
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    authenticated: BTreeMap<u64, Authenticated>,
    lingering: BTreeSet<u64>,
    /// Number of endpoints at which a connection waits for an entry.
    waiting: usize,
}

#[derive(Debug)]
struct Unauthenticated {
    source: Source,
    eviction: Arc<Eviction>,
}

#[derive(Debug)]
struct Authenticated {
    group: Group,
    /// Time of the last answer; `None` while the connection is busy.
    idle_since: Option<u64>,
    eviction: Arc<Eviction>,
}

/// Connections of one source with the same first key, or without one.
type Group = (Source, Option<Key>);

/// The reason why a new connection has no entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoRoom {
    /// Every connection that could be evicted is busy.
    Busy,
    /// The source has its full share of the table, and all of it is busy.
    OverShare,
}

/// The signal of a connection's eviction.
#[derive(Default, Debug)]
pub(super) struct Eviction {
    evicted: Notify,
    gently: AtomicBool,
}

impl Eviction {
    /// Waits until the connection is evicted, which is notified once.
    pub(super) async fn notified(&self) {
        self.evicted.notified().await;
    }

    /// Returns true if the connection has answered requests: then it writes its remaining answers before it
    /// closes.
    pub(super) fn is_gentle(&self) -> bool {
        self.gently.load(Relaxed)
    }
}

/// A connection's entry. The drop of the last copy frees it.
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

    /// Adds a connection from `source`, and evicts another one if necessary. Waits only while every entry is
    /// busy. Returns `None` if the source has its full share of the table, and all of it is busy.
    pub(super) async fn enter(self: &Arc<Self>, source: Source) -> Option<(ConnGuard, Arc<Eviction>)> {
        match self.try_enter(source) {
            Ok(entered) => return Some(entered),
            Err(NoRoom::OverShare) => return None,
            Err(NoRoom::Busy) => {}
        }
        self.lock().waiting += 1;
        let entered = loop {
            self.freed.notified().await;
            match self.try_enter(source) {
                Ok(entered) => break Some(entered),
                Err(NoRoom::OverShare) => break None,
                Err(NoRoom::Busy) => {}
            }
        };
        self.lock().waiting -= 1;
        entered
    }

    fn try_enter(self: &Arc<Self>, source: Source) -> Result<(ConnGuard, Arc<Eviction>), NoRoom> {
        let mut entries = self.lock();
        entries.make_room(source, &self.limits)?;
        let id = entries.tick();
        let eviction = Arc::new(Eviction::default());
        entries.unauthenticated.insert(id, Unauthenticated { source, eviction: Arc::clone(&eviction) });
        Ok((ConnGuard(Arc::new(Entry { id, table: Arc::clone(self) })), eviction))
    }

    /// Locks the table, even after a panic: no step between two changes of the table can panic.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    const fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Evicts the oldest unauthenticated connection of a source that has one.
    fn evict_unauthenticated(&mut self, source: Source) {
        let oldest = self.unauthenticated.iter().find(|(_, entry)| entry.source == source);
        let id = oldest.map(|(&id, _)| id).expect("the source has one");
        let entry = self.unauthenticated.remove(&id).expect("it was found");
        entry.eviction.evicted.notify_one();
    }

    /// Frees an entry for a connection from `source`, if possible.
    fn make_room(&mut self, source: Source, limits: &Limits) -> Result<(), NoRoom> {
        let unauthenticated = self.unauthenticated.values().filter(|entry| entry.source == source).count();
        let authenticated = self.authenticated.values().filter(|entry| entry.group.0 == source).count();
        let is_over_share = unauthenticated + authenticated >= limits.per_source_max;
        if unauthenticated >= limits.unauthenticated_per_source_max || is_over_share && unauthenticated > 0 {
            self.evict_unauthenticated(source);
            return Ok(());
        }
        if is_over_share {
            return self.evict_idle(|group| group.0 == source).ok_or(NoRoom::OverShare);
        }
        if self.unauthenticated.len() + self.authenticated.len() < limits.connections_max {
            return Ok(());
        }
        for (group, _) in self.groups() {
            let (source, key) = group;
            if key.is_none() && self.unauthenticated.values().any(|entry| entry.source == source) {
                self.evict_unauthenticated(source);
                return Ok(());
            }
            if self.evict_idle(|of| *of == group).is_some() {
                return Ok(());
            }
        }
        Err(NoRoom::Busy)
    }

    /// Returns the groups with their numbers of connections, the largest first.
    fn groups(&self) -> Vec<(Group, usize)> {
        let mut groups: Vec<(Group, usize)> = Vec::new();
        let unauthenticated = self.unauthenticated.values().map(|entry| (entry.source, None));
        for group in unauthenticated.chain(self.authenticated.values().map(|entry| entry.group)) {
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, count)) => *count += 1,
                None => groups.push((group, 1)),
            }
        }
        groups.sort_by_key(|&(_, count)| Reverse(count));
        groups
    }

    /// Evicts the authenticated connection that has been idle longest among these groups. Returns `None` if
    /// none may be evicted now.
    fn evict_idle(&mut self, is_of: impl Fn(&Group) -> bool) -> Option<()> {
        let own = self.authenticated.iter().filter(|(_, entry)| is_of(&entry.group));
        let idle = own.filter_map(|(&id, entry)| Some((entry.idle_since?, id)));
        let (_, id) = idle.min().filter(|_| self.lingering.len() < LINGERING_MAX)?;
        let entry = self.authenticated.remove(&id)?;
        self.lingering.insert(id);
        entry.eviction.gently.store(true, Relaxed);
        entry.eviction.evicted.notify_one();
        Some(())
    }
}

impl ConnGuard {
    /// Records a complete request with the token, whose first key is `key`: the connection is now
    /// authenticated and busy.
    pub(super) fn begin_request(&self, key: Option<Key>) {
        let mut entries = self.0.table.lock();
        let id = self.0.id;
        if let Some(Unauthenticated { source, eviction }) = entries.unauthenticated.remove(&id) {
            entries
                .authenticated
                .insert(id, Authenticated { group: (source, key), idle_since: None, eviction });
        } else if let Some(entry) = entries.authenticated.get_mut(&id) {
            entry.group.1 = key;
            entry.idle_since = None;
        }
    }

    /// Records that the answer was passed to the connection. Returns true if the connection must end with it,
    /// because others wait for an entry.
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
        // An evicted connection has no entry, because the new connection has it.
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

    /// Creates a table with this number of entries, and this limit of unauthenticated connections per
    /// address.
    fn table(connections_max: usize, unauthenticated_per_source_max: usize) -> Arc<ConnTable> {
        let limits = Limits {
            connections_max,
            unauthenticated_per_source_max,
            per_source_max: connections_max,
            ..Limits::default()
        };
        Arc::new(ConnTable::new(limits))
    }

    fn from(last: u8) -> Source {
        Source::Ip(Ipv4Addr::new(127, 0, 0, last).into())
    }

    fn is_evicted(eviction: &Eviction) -> bool {
        let notified = pin!(eviction.notified());
        notified.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// The table is full. Each new connection evicts the oldest unauthenticated one; the authenticated one
    /// stays.
    #[test]
    fn the_oldest_unauthenticated_connection_is_evicted() {
        let table = table(3, 3);
        let mut held: Vec<(ConnGuard, Arc<Eviction>)> =
            (1..=3).map(|n| table.try_enter(from(n)).unwrap()).collect();
        held[0].0.begin_request(None);
        held.push(table.try_enter(from(4)).unwrap());
        held.push(table.try_enter(from(5)).unwrap());
        let evicted: Vec<bool> = held.iter().map(|(_, eviction)| is_evicted(eviction)).collect();
        assert_eq!(evicted, [false, true, true, false, false]);
    }

    /// If every connection is busy, none is evicted, and a new connection waits until one ends. The end of an
    /// evicted connection frees no entry. A request that it completes too late does not authenticate it.
    #[test]
    fn busy_connections_keep_their_entries() {
        let table = table(2, 2);
        let evicted = table.try_enter(from(1)).unwrap();
        let held: Vec<(ConnGuard, Arc<Eviction>)> =
            (0..2).map(|_| table.try_enter(from(2)).unwrap()).collect();
        evicted.0.begin_request(None);
        held.iter().for_each(|(guard, _)| guard.begin_request(None));
        assert!(table.try_enter(from(3)).is_err());
        drop(evicted);
        assert!(table.try_enter(from(3)).is_err());
        drop(held);
        drop(table.try_enter(from(3)).expect("the table is empty"));
        let entries = table.lock();
        assert_eq!((entries.authenticated.len(), entries.unauthenticated.len()), (0, 0));
    }

    /// All connections have answered a request. The idle connection with the oldest answer is evicted gently,
    /// and no busy one; then the next one, and so on. The number of evicted connections that still write is
    /// limited.
    #[test]
    fn the_connection_that_is_idle_for_longest_is_evicted() {
        let most = LINGERING_MAX + 3;
        let table = table(most, most);
        let held: Vec<(ConnGuard, Arc<Eviction>)> =
            (0..most).map(|_| table.try_enter(from(1)).unwrap()).collect();
        held.iter().for_each(|(guard, _)| guard.begin_request(None));
        held.iter().skip(1).rev().for_each(|(guard, _)| assert!(!guard.end_request(), "none waits"));
        let last = most - 1;
        let mut next = vec![table.try_enter(from(2)).unwrap()];
        assert!(held[last].1.is_gentle() && is_evicted(&held[last].1));
        let evicted = |held: &[(ConnGuard, Arc<Eviction>)]| {
            held.iter().filter(|(_, eviction)| eviction.is_gentle()).count()
        };
        assert_eq!(evicted(&held), 1);
        for lingering in 2..=LINGERING_MAX {
            next[lingering - 2].0.begin_request(None);
            next.push(table.try_enter(from(2)).unwrap());
            assert_eq!(evicted(&held), lingering);
        }
        let newest = &next[LINGERING_MAX - 1].0;
        newest.begin_request(None);
        assert!(table.try_enter(from(2)).is_err(), "as many linger as may");
        assert!(!held[0].1.is_gentle(), "a busy one");
        table.lock().waiting = 1;
        assert!(newest.end_request(), "one waits");
        drop(held);
        assert!(table.try_enter(from(2)).is_ok());
    }

    /// One address has its maximum of unauthenticated connections. A further one evicts the oldest of them
    /// although the table has free entries, and none of another address.
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

    /// Connections over the Unix socket share a limit, and evict none of the network's connections.
    #[test]
    fn the_unix_socket_has_a_bound() {
        let table = table(10, 2);
        let other = table.try_enter(from(9)).unwrap();
        let here: Vec<(ConnGuard, Arc<Eviction>)> =
            (0..3).map(|_| table.try_enter(Source::Local).unwrap()).collect();
        let evicted: Vec<bool> = here.iter().map(|(_, eviction)| is_evicted(eviction)).collect();
        assert_eq!(evicted, [true, false, false]);
        assert!(!is_evicted(&other.1));
    }

    fn key(n: u8) -> Option<Key> {
        Some(format!("{n:032x}").parse().unwrap())
    }

    /// A holder of the token has all entries except one, under two keys, and sends requests now and then.
    /// Each new peer gets an entry at once, and keeps it. The holder loses connections of its larger group,
    /// the longest idle first. The earlier connection of another peer, which is idle longest of all, stays.
    #[test]
    fn a_new_peer_takes_an_entry_of_the_largest_group() {
        let table = table(20, 20);
        let first = table.try_enter(from(9)).unwrap();
        first.0.begin_request(key(9));
        first.0.end_request();
        let held: Vec<(ConnGuard, Arc<Eviction>)> =
            (0..19).map(|_| table.try_enter(from(1)).unwrap()).collect();
        for (n, (guard, _)) in held.iter().enumerate() {
            guard.begin_request(key(if n < 6 { 1 } else { 2 }));
            guard.end_request();
        }
        let peers: Vec<(ConnGuard, Arc<Eviction>)> =
            (20..26).map(|n| table.try_enter(from(n)).unwrap()).collect();
        let evicted: Vec<usize> = (0..19).filter(|&n| is_evicted(&held[n].1)).collect();
        assert_eq!(evicted, [6, 7, 8, 9, 10, 11]);
        assert!(!is_evicted(&first.1) && peers.iter().all(|(_, eviction)| !is_evicted(eviction)));
    }

    /// One address has its share of the table, which has free entries. A further connection replaces one of
    /// its own, and is refused while all of them are busy. Other addresses are not affected.
    #[test]
    fn one_address_has_a_share() {
        let limits = Limits { connections_max: 10, per_source_max: 3, ..Limits::default() };
        let table = Arc::new(ConnTable::new(limits));
        let held: Vec<(ConnGuard, Arc<Eviction>)> =
            (0..3).map(|_| table.try_enter(from(1)).unwrap()).collect();
        held.iter().for_each(|(guard, _)| guard.begin_request(None));
        assert_eq!(table.try_enter(from(1)).unwrap_err(), NoRoom::OverShare);
        drop(table.try_enter(from(2)).unwrap());
        held[1].0.end_request();
        let next = table.try_enter(from(1)).unwrap();
        let evicted: Vec<bool> = held.iter().map(|(_, eviction)| is_evicted(eviction)).collect();
        assert_eq!(evicted, [false, true, false]);
        let _last = table.try_enter(from(1)).unwrap();
        assert!(is_evicted(&next.1), "it had asked for nothing yet");
    }
}
