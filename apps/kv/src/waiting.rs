//! Clients that wait for a key: `BLPOP` and its kin.
//!
//! Key type: [`Waiting`]. Clients are served key by key, in the order of their requests: after the command or
//! transaction that made the key, and before the next one (`command/ready.rs`). Replies stay here until the
//! server hands them to their connections.

use crate::session::{Session, Wait};
use crate::store::{Kind, Name, Store};
use farmem_protocols::resp::Writer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// A client that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) session: Session,
    pub(crate) request: Vec<Vec<u8>>,
    keys: Vec<(u8, Name)>,
    until: Option<Instant>,
}

/// The clients that wait for one key, in the order of their requests.
#[derive(Debug)]
struct Queue {
    key: Vec<u8>,
    clients: VecDeque<u64>,
    /// The key is in [`Waiting::ready`].
    is_ready: bool,
}

/// Bytes that a key takes in the tables, besides its text.
const KEY_BYTES: usize = size_of::<Queue>() + 128;

/// All clients that wait, and replies for those whose wait has ended.
#[derive(Default, Debug)]
pub(crate) struct Waiting {
    clients: BTreeMap<u64, Waiter>,
    queues: BTreeMap<(u8, Name), Queue>,
    ends: BTreeSet<(Instant, u64)>,
    /// Keys that changed and that clients wait for.
    ready: VecDeque<(u8, Name)>,
    served: Vec<(u64, Vec<u8>)>,
    /// Bytes of the replies in `served`.
    pub(crate) served_bytes: usize,
}

/// A changed key that clients wait for.
pub(crate) struct ReadyKey {
    pub(crate) db: u8,
    pub(crate) key: Vec<u8>,
    /// Numbers of the clients, in the order in which they began to wait.
    pub(crate) clients: VecDeque<u64>,
}

impl Waiting {
    /// Returns how many clients wait.
    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Returns how many clients wait with a timeout.
    pub(crate) fn len_with_end(&self) -> usize {
        self.ends.len()
    }

    /// Returns the request of a waiting client.
    pub(crate) fn request(&self, id: u64) -> Option<&[Vec<u8>]> {
        self.clients.get(&id).map(|waiter| waiter.request.as_slice())
    }

    /// Returns whether a client waits.
    pub(crate) fn waits(&self, id: u64) -> bool {
        self.clients.contains_key(&id)
    }

    /// Returns the keys that clients wait for, with their databases.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &(u8, Name)> {
        self.queues.keys()
    }

    /// Returns the time of the first timeout.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// Adds a client. The bytes of its request and of its keys count among the session's.
    pub(crate) fn add(&mut self, store: &Store, session: &mut Session, args: &[&[u8]], wait: Wait) {
        let id = session.id;
        let request: Vec<Vec<u8>> = args.iter().map(|arg| arg.to_vec()).collect();
        let of_words: usize = request.iter().map(|arg| arg.len() + size_of::<Vec<u8>>()).sum();
        let of_keys: usize = wait.keys.iter().map(|key| 2 * key.len() + KEY_BYTES).sum();
        session.waiting_bytes = Some(of_words + of_keys);
        let keys: Vec<(u8, Name)> = wait.keys.iter().map(|key| (session.db, store.name(key))).collect();
        for (&name, key) in keys.iter().zip(wait.keys) {
            let queue = self.queues.entry(name).or_insert_with(|| Queue {
                key,
                clients: VecDeque::new(),
                is_ready: false,
            });
            // A request may name a key twice; then the client is already the last of the queue.
            if queue.clients.back() != Some(&id) {
                queue.clients.push_back(id);
            }
        }
        self.ends.extend(wait.until.map(|until| (until, id)));
        let waiter = Waiter { session: session.stand_in(), request, keys, until: wait.until };
        self.clients.insert(id, waiter);
    }

    /// Removes a client, and returns whether it waited.
    pub(crate) fn forget(&mut self, id: u64) -> bool {
        let Some(waiter) = self.clients.remove(&id) else { return false };
        for name in &waiter.keys {
            if let Some(queue) = self.queues.get_mut(name) {
                queue.clients.retain(|other| *other != id);
                if queue.clients.is_empty() {
                    self.queues.remove(name);
                }
            }
        }
        if let Some(until) = waiter.until {
            self.ends.remove(&(until, id));
        }
        true
    }

    /// Returns whether a client waits for a value of this kind. Otherwise running its request again is useless.
    pub(crate) fn wants(&self, id: u64, kind: Kind) -> bool {
        let wanted = |waiter: &Waiter| {
            let of_sorted_sets =
                waiter.request[0].get(1).is_some_and(|letter| letter.eq_ignore_ascii_case(&b'z'));
            kind == if of_sorted_sets { Kind::Sorted } else { Kind::List }
        };
        self.clients.get(&id).is_some_and(wanted)
    }

    /// Notes that a key changed.
    pub(crate) fn note(&mut self, name: (u8, Name)) {
        if let Some(queue) = self.queues.get_mut(&name)
            && !std::mem::replace(&mut queue.is_ready, true)
        {
            self.ready.push_back(name);
        }
    }

    /// Ends a client's wait with an error, or as a timeout does. Returns whether the client waited.
    pub(crate) fn unblock(&mut self, id: u64, with_error: bool) -> bool {
        let Some(waiter) = self.clients.get(&id) else { return false };
        let mut reply = Vec::new();
        let mut out = Writer::new(&mut reply, waiter.session.protocol);
        if with_error {
            out.error("UNBLOCKED client unblocked via CLIENT UNBLOCK");
        } else {
            out.null_array();
        }
        self.forget(id);
        self.keep(id, reply);
        true
    }

    /// Keeps a reply until the server hands it to the connection.
    pub(crate) fn keep(&mut self, id: u64, reply: Vec<u8>) {
        self.served_bytes += reply.len();
        self.served.push((id, reply));
    }

    /// Ends the waits whose timeout has passed, with an empty reply.
    pub(crate) fn end_expired(&mut self, now: Instant) {
        while let Some(&(end, id)) = self.ends.first().filter(|(end, _)| *end <= now) {
            if !self.unblock(id, false) {
                self.ends.remove(&(end, id));
            }
        }
    }

    /// Takes the next key that changed, with the clients that wait for it.
    pub(crate) fn take_ready(&mut self) -> Option<ReadyKey> {
        loop {
            let name = self.ready.pop_front()?;
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.is_ready = false;
                let (key, clients) = (queue.key.clone(), queue.clients.clone());
                return Some(ReadyKey { db: name.0, key, clients });
            }
        }
    }

    /// Takes the session and the request of a client, to execute the request again. [`Waiting::put_back`] follows.
    pub(crate) fn take(&mut self, id: u64) -> Option<Waiter> {
        self.clients.remove(&id)
    }

    /// Lets a client wait on.
    pub(crate) fn put_back(&mut self, id: u64, waiter: Waiter) {
        self.clients.insert(id, waiter);
    }

    /// Takes the replies for clients whose wait has ended.
    pub(crate) fn take_served(&mut self) -> Vec<(u64, Vec<u8>)> {
        self.served_bytes = 0;
        std::mem::take(&mut self.served)
    }
}
