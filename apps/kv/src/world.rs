//! What all clients share, beside the data: settings, counts, who watches which key, the append log.

use crate::acl::Acl;
use crate::command::{Settings, SlowLog};
use crate::durable::Durable;
use crate::failure::Failure;
use crate::guesses::Guesses;
use crate::session::Session;
use crate::store::{Name, Store};
use crate::waiting::Waiting;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What was counted.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) commands: u64,
    pub(crate) errors: u64,
    pub(crate) connections: u64,
    pub(crate) refused: u64,
    /// Clients that were cut off because they did not read.
    pub(crate) cut_off: u64,
    /// Wrong passwords.
    pub(crate) wrong_passwords: u64,
    /// Passwords that were not looked at before others of their address were a while ago.
    pub(crate) held_passwords: u64,
    /// Clients that were let go because they did not end their TLS handshake.
    pub(crate) late_handshakes: u64,
}

/// A client, as `CLIENT LIST` shows it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) address: String,
    pub(crate) name: String,
    pub(crate) db: u8,
    pub(crate) since: Instant,
    pub(crate) resp: u8,
    pub(crate) user: String,
    /// The number of its connection.
    pub(crate) number: usize,
}

/// What all clients share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) acl: Acl,
    /// Commands that took long.
    pub(crate) slow: SlowLog,
    pub(crate) stats: Counts,
    pub(crate) clients: BTreeMap<u64, Shown>,
    /// Clients that are to go.
    pub(crate) kill: BTreeSet<u64>,
    /// Where wrong passwords came from.
    pub(crate) guesses: Guesses,
    /// Clients that wait for a key.
    pub(crate) waiting: Waiting,
    watchers: BTreeMap<(u8, Name), Vec<u64>>,
    /// Clients of whose watched keys one was changed.
    changed_for: BTreeSet<u64>,
    /// Why no command may change anything now.
    pub(crate) no_writes: Option<String>,
    pub(crate) durable: Durable,
    pub(crate) started: Instant,
    pub(crate) ends: bool,
    /// The port, for `INFO`.
    pub(crate) port: u16,
    pub(crate) active_expiry: bool,
    /// What memcached's clients have asked for.
    pub(crate) memcached: crate::memcached::Counts,
    /// When all keys of memcached's clients go, in milliseconds since 1970: `flush_all` with a time.
    pub(crate) flush_at: Option<i64>,
    /// Threads that read and write, and connections that several of them have read and sent to at once.
    pub(crate) io_threads: usize,
    pub(crate) io_reads: u64,
    pub(crate) io_writes: u64,
    /// Times that the server has looked what there is to do.
    pub(crate) turns: u64,
    /// Bytes of buffers of connections.
    pub(crate) buffers: usize,
    /// Resident bytes of this process, as measured last, without the memory of memory nodes in it.
    pub(crate) resident: usize,
    /// Those of them that nothing accounts for: the program, its stacks, what an allocator has beside.
    pub(crate) other: usize,
}

impl World {
    pub(crate) fn new(mut settings: Settings, durable: Durable) -> Self {
        let acl = Acl::new(settings.password.take().as_deref());
        Self {
            acl,
            settings,
            stats: Counts::default(),
            clients: BTreeMap::new(),
            kill: BTreeSet::new(),
            guesses: Guesses::default(),
            waiting: Waiting::default(),
            slow: SlowLog::default(),
            watchers: BTreeMap::new(),
            changed_for: BTreeSet::new(),
            no_writes: None,
            durable,
            started: now(),
            ends: false,
            port: 0,
            active_expiry: true,
            memcached: crate::memcached::Counts::default(),
            flush_at: None,
            io_threads: 1,
            io_reads: 0,
            io_writes: 0,
            turns: 0,
            buffers: 0,
            resident: 0,
            other: 0,
        }
    }

    /// Looks again what a client's user may do, when that has changed; false when there is no such user any more.
    pub(crate) fn is_current(&self, session: &mut Session) -> bool {
        if session.users_version == self.acl.version {
            return true;
        }
        let Some(user) = self.acl.user(&session.user) else {
            session.authenticated = false;
            return false;
        };
        (session.rights, session.users_version) = (std::sync::Arc::clone(user), self.acl.version);
        true
    }

    /// Clients of users that are gone are to go.
    pub(crate) fn drop_sessions_of_no_user(&mut self) {
        let gone = self.clients.iter().filter(|(_, shown)| self.acl.user(&shown.user).is_none());
        self.kill.extend(gone.map(|(id, _)| *id));
    }

    /// Carries out a `flush_all` whose time has come. One that the log has no room for waits.
    pub(crate) fn settle_flush(&mut self, store: &mut Store) {
        if self.flush_at.is_none_or(|at| at > store.now()) || self.durable.reserve(64).is_err() {
            return;
        }
        self.flush_at = None;
        store.clear(0);
        self.log_request(0, [&b"FLUSHDB"[..]].into_iter());
        self.durable.end_frame(store.now());
        self.tell_watchers(store);
    }

    /// The append log gets a request that changed something.
    pub(crate) fn log_request<'a>(&mut self, db: u8, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        self.durable.append(db, args);
    }

    pub(crate) fn watch(&mut self, store: &mut Store, session: &mut Session, db: u8, name: Name) {
        if session.watches.insert((db, name)) {
            self.watchers.entry((db, name)).or_default().push(session.id);
        }
        store.set_watching(true);
    }

    pub(crate) fn unwatch(&mut self, store: &mut Store, session: &mut Session) {
        for key in std::mem::take(&mut session.watches) {
            if let Some(ids) = self.watchers.get_mut(&key) {
                ids.retain(|&id| id != session.id);
                if ids.is_empty() {
                    self.watchers.remove(&key);
                }
            }
        }
        self.changed_for.remove(&session.id);
        self.follow_changes(store);
    }

    /// The store tells of changes while anybody wants to know.
    pub(crate) fn follow_changes(&self, store: &mut Store) {
        store.set_watching(!self.watchers.is_empty() || self.waiting.len() > 0);
    }

    /// Tells watchers, and clients that wait, of the keys that were changed.
    pub(crate) fn tell_watchers(&mut self, store: &mut Store) {
        if self.watchers.is_empty() && self.waiting.len() == 0 {
            return;
        }
        for key in store.take_touched() {
            self.waiting.note(key);
            self.changed_for.extend(self.watchers.get(&key).into_iter().flatten());
        }
    }

    /// True when a key that the client watches was changed.
    pub(crate) fn was_changed(&self, session: &Session) -> bool {
        self.changed_for.contains(&session.id)
    }

    /// The reason why nothing may be changed, for those who ask.
    pub(crate) fn refuse_writes(&mut self, why: Option<&Failure>) {
        self.no_writes = why.map(|failure| failure.reply().to_owned());
    }
}

/// This moment, for what is told of the server's age.
pub(crate) fn now() -> Instant {
    Instant::now()
}
