//! The state that all clients share, besides the data: settings, counts, watched keys, and the append log.

use crate::acl::Acl;
use crate::activity::Activity;
use crate::durable::{Durable, chance};
use crate::failure::Failure;
use crate::guesses::Guesses;
use crate::memcached::counts::Counts as MemcachedCounts;
use crate::resident::{GROWTH_SHARE, Meter, PROCESS_BYTES, TRIM_SHARE, resident_bytes};
use crate::session::Session;
use crate::settings::Settings;
use crate::slowlog::SlowLog;
use crate::statistics::Statistics;
use crate::store::{Name, Store};
use crate::waiting::Waiting;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of replies above which a client's next request waits, when buffers are scarce.
pub(crate) const OUT_PAUSE_MIN: usize = 16 << 10;
/// Bytes of an empty buffer that are kept for the next request, unless buffers are scarce.
pub(crate) const KEPT: usize = 64 << 10;

/// The bytes that connections received and sent, and the calls that read and wrote them.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Traffic {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

impl Traffic {
    /// Counts a call that read `len` bytes.
    pub(crate) const fn read(&mut self, len: usize) {
        self.reads += 1;
        self.input += len as u64;
    }

    /// Counts a call that wrote `len` bytes.
    pub(crate) const fn wrote(&mut self, len: usize) {
        self.writes += 1;
        self.output += len as u64;
    }

    /// Adds counts of another thread.
    pub(crate) const fn add(&mut self, other: Self) {
        self.input += other.input;
        self.output += other.output;
        self.reads += other.reads;
        self.writes += other.writes;
    }
}

/// The rate of commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    since: Instant,
    commands: u64,
    pub(crate) per_second: u64,
}

impl Rate {
    /// Measures again, if the last time was a second ago.
    fn measure(&mut self, commands: u64, now: Instant) {
        let millis = u64::try_from(now.duration_since(self.since).as_millis()).unwrap_or(u64::MAX);
        if millis >= 1000 {
            self.per_second = commands.saturating_sub(self.commands) * 1000 / millis;
            (self.since, self.commands) = (now, commands);
        }
    }
}

/// Counts since the start.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) commands: u64,
    pub(crate) errors: u64,
    pub(crate) connections: u64,
    pub(crate) refused: u64,
    /// Clients that were disconnected because they did not read their replies.
    pub(crate) cut_off: u64,
    /// Wrong passwords.
    pub(crate) wrong_passwords: u64,
    /// Passwords that the server delayed, because wrong ones came from the same address.
    pub(crate) held_passwords: u64,
    /// Clients that were disconnected because their TLS handshake took too long.
    pub(crate) late_handshakes: u64,
    pub(crate) traffic: Traffic,
}

/// A client, as `CLIENT LIST` shows it.
#[derive(Clone, Debug)]
pub(crate) struct ClientInfo {
    pub(crate) address: String,
    pub(crate) local_address: String,
    /// The descriptor of its socket.
    pub(crate) descriptor: i32,
    pub(crate) name: String,
    pub(crate) since: Instant,
    pub(crate) user: String,
    pub(crate) activity: Arc<Activity>,
    /// The number of the client's connection.
    pub(crate) number: usize,
}

/// The state that all clients share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) acl: Acl,
    /// Commands that took long.
    pub(crate) slow: SlowLog,
    pub(crate) stats: Counts,
    pub(crate) statistics: Statistics,
    pub(crate) clients: BTreeMap<u64, ClientInfo>,
    /// Clients that the server disconnects at the next tick.
    pub(crate) kill: BTreeSet<u64>,
    /// Addresses that sent wrong passwords.
    pub(crate) guesses: Guesses,
    /// Clients that wait for a key.
    pub(crate) waiting: Waiting,
    watchers: BTreeMap<(u8, Name), Vec<u64>>,
    /// Clients of which a watched key changed.
    changed_for: BTreeSet<u64>,
    /// The reason why commands that write are refused.
    pub(crate) no_writes: Option<String>,
    pub(crate) durable: Durable,
    pub(crate) started: Instant,
    /// The random name of this process.
    pub(crate) run_id: String,
    pub(crate) rate: Rate,
    /// The most bytes of data so far.
    pub(crate) peak: usize,
    pub(crate) ends: bool,
    /// The port, for `INFO`.
    pub(crate) port: u16,
    pub(crate) active_expiry: bool,
    /// Counts of memcached commands.
    pub(crate) memcached: MemcachedCounts,
    /// The time at which all keys of database 0 go, in milliseconds since 1970: `flush_all` with a delay.
    pub(crate) flush_at: Option<i64>,
    /// The number of I/O threads.
    pub(crate) io_threads: usize,
    pub(crate) io_reads: u64,
    pub(crate) io_writes: u64,
    /// Turns of the server's loop.
    pub(crate) turns: u64,
    /// Bytes of all connections' buffers.
    pub(crate) buffers: usize,
    /// Resident bytes of this process at the last measurement, without those of memory nodes in the process.
    pub(crate) resident: usize,
    pub(crate) meter: Meter,
    /// Resident bytes that nothing accounts for: code, stacks, and what the allocator keeps.
    pub(crate) other: usize,
}

impl World {
    pub(crate) fn new(mut settings: Settings, durable: Durable) -> Self {
        let acl = Acl::new(settings.password.take().as_deref());
        Self {
            acl,
            settings,
            stats: Counts::default(),
            statistics: Statistics::default(),
            clients: BTreeMap::new(),
            kill: BTreeSet::new(),
            guesses: Guesses::default(),
            waiting: Waiting::default(),
            slow: SlowLog::default(),
            watchers: BTreeMap::new(),
            changed_for: BTreeSet::new(),
            no_writes: None,
            durable,
            started: Instant::now(),
            run_id: run_id(),
            rate: Rate { since: Instant::now(), commands: 0, per_second: 0 },
            peak: 0,
            ends: false,
            port: 0,
            active_expiry: true,
            memcached: MemcachedCounts::default(),
            flush_at: None,
            io_threads: 1,
            io_reads: 0,
            io_writes: 0,
            turns: 0,
            buffers: 0,
            resident: 0,
            meter: Meter::default(),
            other: 0,
        }
    }

    /// Notes the amount of data, if it is the largest so far.
    pub(crate) fn note_peak(&mut self, store: &Store) {
        self.peak = self.peak.max(store.data_bytes());
    }

    /// Measures the rate of the last second for `INFO`.
    pub(crate) fn measure_rate(&mut self, store: &Store, now: Instant) {
        self.note_peak(store);
        self.rate.measure(self.stats.commands, now);
    }

    /// Updates a session's rights if the users have changed. Returns false if the session's user is gone.
    pub(crate) fn is_current(&self, session: &mut Session) -> bool {
        if session.users_version == self.acl.version {
            return true;
        }
        let Some(user) = self.acl.user(&session.user) else {
            session.authenticated = false;
            return false;
        };
        (session.rights, session.users_version) = (Arc::clone(user), self.acl.version);
        true
    }

    /// Disconnects the clients whose user is gone.
    pub(crate) fn drop_sessions_of_no_user(&mut self) {
        let gone = self.clients.iter().filter(|(_, shown)| self.acl.user(&shown.user).is_none());
        let gone: Vec<u64> = gone.map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.end_client(id));
    }

    /// Ends a client: it leaves the list and waits for no key from now on; the next turn closes its connection.
    pub(crate) fn end_client(&mut self, id: u64) {
        self.clients.remove(&id);
        self.waiting.forget(id);
        self.kill.insert(id);
    }

    /// Returns whether a key that the client watches was changed.
    pub(crate) fn watches_changed(&self, id: u64) -> bool {
        self.changed_for.contains(&id)
    }

    /// Executes a `flush_all` whose time has come, when the append log has room for it.
    pub(crate) fn settle_flush(&mut self, store: &mut Store) {
        if self.flush_at.is_none_or(|at| at > store.now()) || self.durable.reserve(64).is_err() {
            return;
        }
        self.flush_at = None;
        self.clear(store, 0);
        self.log_request(0, [&b"FLUSHDB"[..]].into_iter());
        self.durable.end_frame(store.now());
        self.tell_watchers(store);
    }

    /// Removes all keys of a database, and notes those that a client watches.
    pub(crate) fn clear(&self, store: &mut Store, db: u8) {
        self.touch_known(store, &[db]);
        store.clear(db);
    }

    /// Exchanges two databases, and notes the keys that a client watches or waits for.
    pub(crate) fn swap(&self, store: &mut Store, one: u8, other: u8) -> Result<(), Failure> {
        self.touch_known(store, &[one, other]);
        store.swap(one, other)
    }

    /// Notes those keys that exist in one of these databases, and that a client watches or waits for in one of them.
    fn touch_known(&self, store: &mut Store, dbs: &[u8]) {
        let known = self.watchers.keys().chain(self.waiting.keys());
        for &(db, name) in known.filter(|(db, _)| dbs.contains(db)) {
            if dbs.iter().any(|&db| store.has(db, name)) {
                store.note_touched(db, name);
            }
        }
    }

    /// Appends a request that changed something to the append log.
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

    /// Makes the store report changed keys while a client watches or waits.
    pub(crate) fn follow_changes(&self, store: &mut Store) {
        store.set_watching(!self.watchers.is_empty() || self.waiting.len() > 0);
    }

    /// Tells watchers and waiting clients of the keys that changed.
    pub(crate) fn tell_watchers(&mut self, store: &mut Store) {
        if self.watchers.is_empty() && self.waiting.len() == 0 {
            return;
        }
        for key in store.take_touched() {
            self.waiting.note(key);
            self.changed_for.extend(self.watchers.get(&key).into_iter().flatten());
        }
    }

    /// Removes those watched keys of two databases that have expired, because exchanging them changes nothing for a
    /// client that watches one.
    pub(crate) fn drop_expired_watched(&self, store: &mut Store, dbs: [u8; 2]) {
        for &(_, name) in self.watchers.keys().filter(|(db, _)| dbs.contains(db)) {
            dbs.into_iter().for_each(|db| store.drop_expired(db, name));
        }
    }

    /// Returns whether a key that the client watches has changed.
    pub(crate) fn was_changed(&self, session: &Session) -> bool {
        self.changed_for.contains(&session.id)
    }

    /// Refuses commands that write, for this reason.
    pub(crate) fn refuse_writes(&mut self, why: Option<&Failure>) {
        self.no_writes = why.map(|failure| failure.reply().to_owned());
    }

    /// Returns the bytes of local memory that are accounted for.
    pub(crate) fn accounted(&self, store: &Store) -> usize {
        store.here_bytes() + self.buffers + self.durable.buffered()
    }

    /// Returns whether the accounted bytes have grown so much since `before` that the limit must be checked.
    pub(crate) fn has_grown(&self, store: &Store, before: usize) -> bool {
        self.accounted(store) > before + store.memory.local / GROWTH_SHARE
    }

    /// Keeps local memory within the limit. Returns the accounted bytes then.
    pub(crate) fn settle(&mut self, store: &mut Store) -> usize {
        if self.meter.measures && self.has_grown(store, self.meter.accounted) {
            self.measure(store);
        }
        store.memory.overhead = self.other + self.buffers + self.durable.buffered();
        store.settle();
        self.accounted(store)
    }

    /// Measures the memory of this process, and the part that is not accounted for. If that part has grown, the
    /// allocator returns freed memory.
    pub(crate) fn measure(&mut self, store: &Store) {
        let accounted = self.accounted(store);
        self.measure_beside(accounted);
        if self.other > self.meter.trimmed + store.memory.local / TRIM_SHARE
            && farmem::allocator::return_free_blocks()
        {
            self.measure_beside(accounted);
            self.meter.trimmed = self.other;
        }
        self.meter.trimmed = self.meter.trimmed.min(self.other);
        self.meter.accounted = accounted;
    }

    fn measure_beside(&mut self, accounted: usize) {
        let measured = if self.meter.measures { resident_bytes().ok() } else { None };
        self.resident = measured.unwrap_or(PROCESS_BYTES + accounted);
        self.other = self.resident.saturating_sub(accounted);
    }

    /// Returns the bytes of an empty buffer that a connection keeps.
    pub(crate) const fn kept(&self) -> usize {
        if self.buffers > self.settings.buffers_max / 4 { 0 } else { KEPT }
    }

    /// Returns the bytes of replies above which a client's next request waits.
    pub(crate) const fn out_pause(&self) -> usize {
        let most = self.settings.buffers_max;
        if self.buffers > most / 2 { OUT_PAUSE_MIN } else { self.settings.output_pause }
    }

    /// Returns the bytes that one more reply may have. The replies of a client, and all buffers together, have a
    /// bound.
    pub(crate) fn reply_room(&self) -> usize {
        let left = self.settings.buffers_max.saturating_sub(self.buffers).max(OUT_PAUSE_MIN);
        self.settings.reply_len_max().min(left)
    }
}

/// Returns forty random digits.
fn run_id() -> String {
    let part = |_| format!("{:016x}", chance().unwrap_or(0));
    let mut digits: String = (0..3).map(part).collect();
    digits.truncate(40);
    digits
}
