//! The table of the API server's connections, and which one is evicted when there are too many.
//!
//! A connection is *unauthenticated* until a whole request with the token has come over it. A new connection evicts the oldest unauthenticated
//! one when the table is full, so clients without the token cannot keep out clients that have it. An authenticated connection keeps its
//! entry until it ends.

use super::connections::Limits;
use super::stream::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The connections of one server.
#[derive(Debug)]
pub(super) struct ConnTable {
    limits: Limits,
    entries: Mutex<Entries>,
    /// An entry became free. Only the accepting tasks wait for it, one for each door.
    freed: Notify,
}

#[derive(Default, Debug)]
struct Entries {
    /// The id of the next connection: ids grow, so the smallest is the oldest.
    next: u64,
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    authenticated: BTreeSet<u64>,
}

#[derive(Debug)]
struct Unauthenticated {
    source: Source,
    eviction: Arc<Eviction>,
}

/// Is notified once, when the connection is evicted.
pub(super) type Eviction = Notify;

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

    /// Enters a connection from `source`, and evicts another if it must. Waits only while every entry is of an authenticated connection.
    pub(super) async fn enter(self: &Arc<Self>, source: Source) -> (ConnGuard, Arc<Eviction>) {
        loop {
            if let Some(entered) = self.try_enter(source) {
                return entered;
            }
            self.freed.notified().await;
        }
    }

    fn try_enter(self: &Arc<Self>, source: Source) -> Option<(ConnGuard, Arc<Eviction>)> {
        let Limits { connections_max, unauthenticated_per_source_max, .. } = self.limits;
        let mut entries = self.lock();
        let is_full = entries.unauthenticated.len() + entries.authenticated.len() >= connections_max;
        let mut of_source = entries.unauthenticated.iter().filter(|(_, entry)| entry.source == source);
        let oldest_of_source = of_source.next().map(|(&id, _)| id);
        let is_source_full = 1 + of_source.count() >= unauthenticated_per_source_max;
        let evicted = match oldest_of_source {
            Some(oldest) if is_source_full => Some(oldest),
            _ if is_full => Some(*entries.unauthenticated.first_key_value()?.0),
            _ => None,
        };
        if let Some(entry) = evicted.and_then(|id| entries.unauthenticated.remove(&id)) {
            entry.eviction.notify_one();
        }
        let id = entries.next;
        entries.next += 1;
        let eviction = Arc::new(Eviction::new());
        entries.unauthenticated.insert(id, Unauthenticated { source, eviction: Arc::clone(&eviction) });
        Some((ConnGuard(Arc::new(Entry { id, table: Arc::clone(self) })), eviction))
    }

    /// A panic leaves nothing half written: no step between two changes of the table can fail.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnGuard {
    /// A whole request with the token has come: the connection is never evicted from now on.
    pub(super) fn mark_authenticated(&self) {
        let mut entries = self.0.table.lock();
        if entries.unauthenticated.remove(&self.0.id).is_some() {
            entries.authenticated.insert(self.0.id);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut entries = self.table.lock();
        let was_unauthenticated = entries.unauthenticated.remove(&self.id).is_some();
        // An evicted connection has no entry: the new connection has it.
        if entries.authenticated.remove(&self.id) || was_unauthenticated {
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
        held[0].0.mark_authenticated();
        held.push(table.try_enter(from(4)).unwrap());
        held.push(table.try_enter(from(5)).unwrap());
        let evicted: Vec<bool> = held.iter().map(|(_, eviction)| is_evicted(eviction)).collect();
        assert_eq!(evicted, [false, true, true, false, false]);
    }

    /// Every entry is authenticated: none is evicted, and a new connection waits until one ends. The end of an evicted connection frees nothing,
    /// and a request that it completes too late does not authenticate it.
    #[test]
    fn authenticated_connections_keep_their_entries() {
        let table = table(2, 2);
        let evicted = table.try_enter(from(1)).unwrap();
        let held: Vec<(ConnGuard, Arc<Eviction>)> =
            (0..2).map(|_| table.try_enter(from(2)).unwrap()).collect();
        evicted.0.mark_authenticated();
        held.iter().for_each(|(guard, _)| guard.mark_authenticated());
        assert!(table.try_enter(from(3)).is_none());
        drop(evicted);
        assert!(table.try_enter(from(3)).is_none());
        drop(held);
        drop(table.try_enter(from(3)).expect("the table is empty"));
        let entries = table.lock();
        assert_eq!((entries.authenticated.len(), entries.unauthenticated.len()), (0, 0));
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

    /// Those that come over the Unix socket have a bound together, and evict none that came over the network.
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
