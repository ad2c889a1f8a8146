//! Clients that wait for a key: `BLPOP` and its kin.
//!
//! Key type: [`Waiting`]. Whoever came first is served first, key by key, as soon as the command or transaction that made the key is done and before the next one. What is served is kept here until
//! the server hands it to the connection.

use crate::command::{Context, find, report, run_again};
use crate::connection::{OUT_PAUSE_MIN, reply_room};
use crate::session::{Patience, Session};
use crate::store::{Kind, Name, Store};
use crate::world::World;
use farmem_resp::Writer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// What a command wants to wait for.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) keys: Vec<Vec<u8>>,
    /// Until when; `None` for as long as it takes.
    pub(crate) until: Option<Instant>,
}

/// A client that waits.
#[derive(Debug)]
struct Waiter {
    session: Session,
    request: Vec<Vec<u8>>,
    keys: Vec<(u8, Name)>,
    until: Option<Instant>,
}

/// Those who wait for one key, in the order in which they came.
#[derive(Debug)]
struct Queue {
    key: Vec<u8>,
    clients: VecDeque<u64>,
    /// The key is among those that were changed.
    is_ready: bool,
}

/// Bytes that a key which is waited for takes beside its text: places in maps.
const KEY_BYTES: usize = size_of::<Queue>() + 128;

/// Clients that wait, and what those get whose waiting has an end.
#[derive(Default, Debug)]
pub(crate) struct Waiting {
    clients: BTreeMap<u64, Waiter>,
    queues: BTreeMap<(u8, Name), Queue>,
    ends: BTreeSet<(Instant, u64)>,
    /// Keys that were changed and are waited for.
    ready: VecDeque<(u8, Name)>,
    served: Vec<(u64, Vec<u8>)>,
    /// Bytes of what is served.
    served_bytes: usize,
}

impl Waiting {
    /// Clients that wait.
    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// The number of clients that wait until some time at most.
    pub(crate) fn len_with_end(&self) -> usize {
        self.ends.len()
    }

    /// Whether a client waits.
    pub(crate) fn waits(&self, id: u64) -> bool {
        self.clients.contains_key(&id)
    }

    /// When the first of them has waited long enough.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// A client waits. What its request and keys take counts among its own bytes.
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
            // One that names a key twice is its last.
            if queue.clients.back() != Some(&id) {
                queue.clients.push_back(id);
            }
        }
        self.ends.extend(wait.until.map(|until| (until, id)));
        let waiter = Waiter { session: session.stand_in(), request, keys, until: wait.until };
        self.clients.insert(id, waiter);
    }

    /// A client waits no more.
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

    /// Whether a client waits for something of this kind: only then is its request worth carrying out again.
    fn wants(&self, id: u64, kind: Kind) -> bool {
        let wanted = |waiter: &Waiter| {
            let of_sorted_sets =
                waiter.request[0].get(1).is_some_and(|letter| letter.eq_ignore_ascii_case(&b'z'));
            kind == if of_sorted_sets { Kind::Sorted } else { Kind::List }
        };
        self.clients.get(&id).is_some_and(wanted)
    }

    /// A key was changed.
    pub(crate) fn note(&mut self, name: (u8, Name)) {
        if let Some(queue) = self.queues.get_mut(&name)
            && !std::mem::replace(&mut queue.is_ready, true)
        {
            self.ready.push_back(name);
        }
    }

    /// Ends the waiting of a client with an error, or as if its time were over; whether it waited.
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

    /// Keeps what a client gets until the server hands it over.
    fn keep(&mut self, id: u64, reply: Vec<u8>) {
        self.served_bytes += reply.len();
        self.served.push((id, reply));
    }

    /// Those who have waited long enough get nothing.
    pub(crate) fn end_those_before(&mut self, now: Instant) {
        while let Some(&(end, id)) = self.ends.first().filter(|(end, _)| *end <= now) {
            if !self.unblock(id, false) {
                self.ends.remove(&(end, id));
            }
        }
    }

    /// What clients get whose waiting has an end.
    pub(crate) fn take_served(&mut self) -> Vec<(u64, Vec<u8>)> {
        self.served_bytes = 0;
        std::mem::take(&mut self.served)
    }
}

/// Serves those who wait for keys that were changed, until nobody can be served any more: what one of them moves may be what another one waits for.
pub(crate) fn serve(store: &mut Store, world: &mut World) {
    while let Some(name) = world.waiting.ready.pop_front() {
        let Some(queue) = world.waiting.queues.get_mut(&name) else { continue };
        queue.is_ready = false;
        if store.kind(name.0, &queue.key).is_none() {
            continue;
        }
        let (key, ids) = (queue.key.clone(), queue.clients.clone());
        for id in ids {
            let Some(kind) = store.kind(name.0, &key) else { break };
            if world.waiting.wants(id, kind) {
                serve_one(id, &key, store, world);
            }
        }
    }
}

fn serve_one(id: u64, key: &[u8], store: &mut Store, world: &mut World) {
    let Some(mut waiter) = world.waiting.clients.remove(&id) else { return };
    let args: Vec<&[u8]> = waiter.request.iter().map(Vec::as_slice).collect();
    let (before, mut reply) = (store.dirty, Vec::new());
    // Those that are served already have their part.
    let len_max = reply_room(world).saturating_sub(world.waiting.served_bytes).max(OUT_PAUSE_MIN);
    waiter.session.patience = Patience::Served;
    waiter.session.ready_key = Some(key.to_vec());
    let protocol = waiter.session.protocol;
    let mut out = Writer::bounded(&mut reply, protocol, len_max);
    let mut context = Context { store, session: &mut waiter.session, world, instead: None };
    let command = find(args[0]).expect("it was carried out once");
    if let Err(failure) = run_again(&mut context, command, &args, &mut out) {
        out.take_back(0);
        report(&mut context, &failure, &mut out);
    }
    if store.dirty != before {
        world.durable.end_frame(store.now());
        world.tell_watchers(store);
    }
    world.waiting.clients.insert(id, waiter);
    if !reply.is_empty() {
        world.waiting.forget(id);
        world.waiting.keep(id, reply);
    }
}
