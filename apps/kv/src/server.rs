//! The server: connections, one thread that has the data and carries commands out, and what is done beside them.
//!
//! Key type: [`Server`]. One epoll (`mio`) waits for all connections. In a turn each one that has something is read and its requests are carried out; then the append log is
//! written, and put on the disk where replies wait for that; and only then are replies sent. Between turns a clock does the rest: keys that have ended, room, snapshots,
//! clients that do not read.

use crate::connection::{CHUNK, Connection, Goes};
use crate::durable::Durable;
use crate::session::Session;
use crate::store::Store;
use crate::world::{Shown, World};
use crate::{KvError, resident, saving};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;
use std::io::{self, ErrorKind, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Connections that may wait to be taken, as far as the system allows (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
const BACKLOG_TOKEN: Token = Token(usize::MAX);
const WAKE_TOKEN: Token = Token(usize::MAX - 1);
/// Events of a turn at most.
const EVENTS: usize = 1024;
/// How often what is beside commands is done.
const TICK: Duration = Duration::from_millis(100);
/// What a process takes without data, where it cannot be measured.
const PROCESS_BYTES: usize = 8 << 20;
/// Keys whose end is looked at in a round, and rounds of a tick in any case while a quarter of them has ended; then as many as there is time for.
const EXPIRE_SAMPLES: usize = 20;
const EXPIRE_ROUNDS: usize = 32;
const EXPIRE_TIME: Duration = Duration::from_millis(20);

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    poll: Poll,
    stop: Stop,
}

/// Ends a server from another thread.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stop {
    /// The server writes what it has carried out, and ends.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::Release);
        // It looks by itself every tick.
        let _it_looks_anyway = self.waker.wake();
    }
}

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    /// The system's.
    pub fn listen(at: SocketAddr) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(at)?;
        // `mio` lets 128 wait: of more that come at once the system would drop some, which try again a second later.
        rustix::net::listen(&listener, BACKLOG)?;
        poll.registry().register(&mut listener, BACKLOG_TOKEN, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE_TOKEN)?);
        Ok(Self { listener, poll, stop: Stop { asked: Arc::default(), waker } })
    }

    /// Where it listens: with the port that the system chose.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// How it is ended.
    #[must_use]
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    pub(crate) fn serve(self, store: &mut Store, world: &mut World, measured: bool) -> Result<(), KvError> {
        world.port = self.address().map_err(KvError::Listen)?.port();
        let mut turns = Turns {
            poll: self.poll,
            listener: self.listener,
            connections: Slab::new(),
            ready: Vec::new(),
            chunk: vec![0; CHUNK],
            next_id: 0,
            accepts: true,
            last_tick: Instant::now(),
            told: None,
            clock: Clock::new(store.now()),
            measured,
        };
        let mut events = Events::with_capacity(EVENTS);
        let mut has_failed = false;
        loop {
            while !world.ends && !self.stop.asked.load(Ordering::Acquire) {
                turns.turn(store, world, &mut events).map_err(KvError::Poll)?;
            }
            match shut_down(store, world) {
                // The data would be gone: whoever stops it may make room, and ask once more.
                Err(error) if !has_failed => {
                    has_failed = true;
                    crate::say(&format!(
                        "{error}; it serves on: make room, or stop it once more and lose what is not saved"
                    ));
                    world.ends = false;
                    self.stop.asked.store(false, Ordering::Release);
                }
                ended => {
                    turns.send_last(world);
                    store.free_far();
                    return ended;
                }
            }
        }
    }
}

/// Everything that was carried out is written; data without a log is saved, where it is saved at all.
fn shut_down(store: &mut Store, world: &mut World) -> Result<(), KvError> {
    let Some(dir) = world.durable.dir().map(std::path::Path::to_owned) else { return Ok(()) };
    let failed = |error| KvError::Save { dir: dir.clone(), error };
    world.durable.close().map_err(failed)?;
    if !world.durable.has_log() && world.durable.unsaved > 0 && !world.ends {
        saving::save_now(store, &mut world.durable).map_err(failed)?;
    }
    Ok(())
}

struct Turns {
    poll: Poll,
    listener: TcpListener,
    connections: Slab<Connection>,
    /// Connections that have something to do in this turn.
    ready: Vec<usize>,
    chunk: Vec<u8>,
    next_id: u64,
    accepts: bool,
    last_tick: Instant,
    /// What was said last of far memory that cannot be compacted: it is said once.
    told: Option<String>,
    clock: Clock,
    /// Resident memory says what this process takes: the memory nodes are others.
    measured: bool,
}

impl Turns {
    fn turn(&mut self, store: &mut Store, world: &mut World, events: &mut Events) -> io::Result<()> {
        let busy = !self.ready.is_empty()
            || world
                .durable
                .saving
                .as_ref()
                .is_some_and(|saving| saving.stands() == crate::durable::Stands::Writes);
        let left = TICK.saturating_sub(self.last_tick.elapsed());
        match self.poll.poll(events, Some(if busy { Duration::ZERO } else { left })) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        let now = Instant::now();
        store.set_now(self.clock.now());
        for event in events.iter() {
            self.note(event, world);
        }
        if self.accepts {
            self.accept(world, now);
        }
        let ready = std::mem::take(&mut self.ready);
        let mut again = Vec::new();
        if store.has_far() {
            self.read_ahead(&ready, store, world, now);
        }
        for &number in &ready {
            self.serve(number, store, world, now, &mut again);
        }
        store.forget_ahead();
        self.settle_log(&ready, world);
        for &number in &ready {
            self.send(number, world, now, &mut again, store);
        }
        self.bound_buffers(store, world);
        store.memory.overhead = world.other + world.buffers;
        store.settle();
        again.sort_unstable();
        again.dedup();
        self.ready = again;
        self.save_a_step(store, world);
        if self.last_tick.elapsed() >= TICK {
            self.tick(store, world, now);
            self.last_tick = Instant::now();
        }
        Ok(())
    }

    fn note(&mut self, event: &Event, _: &World) {
        match event.token() {
            BACKLOG_TOKEN => self.accepts = true,
            WAKE_TOKEN => {}
            Token(number) => {
                let Some(connection) = self.connections.get_mut(number) else { return };
                connection.closing |= event.is_read_closed();
                connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                if !self.ready.contains(&number) || self.ready.len() > 64 {
                    self.ready.push(number);
                }
            }
        }
    }

    fn accept(&mut self, world: &mut World, now: Instant) {
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => self.welcome(stream, peer, world, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.accepts = false;
                    return;
                }
                // No descriptors, or the peer is gone: the next tick tries again.
                Err(_) => return,
            }
        }
    }

    fn welcome(&mut self, mut stream: TcpStream, peer: SocketAddr, world: &mut World, now: Instant) {
        world.stats.connections += 1;
        if self.connections.len() >= world.settings.clients_max {
            world.stats.refused += 1;
            let _it_may_be_gone = stream.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        let _only_slower = stream.set_nodelay(true);
        let entry = self.connections.vacant_entry();
        let number = entry.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(number), interest).is_err() {
            return;
        }
        self.next_id += 1;
        let session = Session::new(self.next_id, peer.to_string(), world.settings.password.is_none());
        let shown = Shown { address: peer.to_string(), name: String::new(), db: 0, since: now, resp: 2 };
        world.clients.insert(session.id, shown);
        entry.insert(Connection::new(stream, session, now));
        self.ready.push(number);
    }

    /// Far values that this turn's requests ask for, of all connections, are read at once.
    fn read_ahead(&mut self, ready: &[usize], store: &mut Store, world: &mut World, now: Instant) {
        for &number in ready {
            let Some(connection) = self.connections.get_mut(number) else { continue };
            connection.look_ahead(store, world, &mut self.chunk, now);
            connection.count(world);
        }
        store.fetch_wanted();
    }

    fn serve(
        &mut self,
        number: usize,
        store: &mut Store,
        world: &mut World,
        now: Instant,
        again: &mut Vec<usize>,
    ) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let goes = connection.serve(store, world, &mut self.chunk, now);
        connection.count(world);
        match goes {
            Goes::On => {}
            Goes::Again => again.push(number),
            Goes::Away => self.remove(number, store, world),
        }
    }

    /// What this turn changed is in the log before anybody hears of it. When it cannot be, nobody does.
    fn settle_log(&mut self, ready: &[usize], world: &mut World) {
        let flushed = world.durable.flush();
        for &number in ready {
            let Some(connection) = self.connections.get_mut(number) else { continue };
            if std::mem::take(&mut connection.wrote) && flushed.is_err() {
                // Nothing else it has sent is carried out: its next reply would be taken for the lost one.
                connection.fail();
                world.kill.insert(connection.session.id);
            }
        }
        if let Err(error) = flushed {
            let failure =
                crate::failure::Failure::said(format!("MISCONF Errors writing to the AOF file: {error}"));
            world.refuse_writes(Some(&failure));
        }
    }

    fn send(
        &mut self,
        number: usize,
        world: &mut World,
        now: Instant,
        again: &mut Vec<usize>,
        store: &mut Store,
    ) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let goes = connection.send(world);
        connection.count(world);
        if connection.reads_too_little(world, now) {
            world.stats.cut_off += 1;
            return self.remove(number, store, world);
        }
        match goes {
            Goes::On => {}
            Goes::Again => again.push(number),
            Goes::Away => self.remove(number, store, world),
        }
    }

    /// Cuts off the clients that most is kept for, while all of them have more than they may.
    fn bound_buffers(&mut self, store: &mut Store, world: &mut World) {
        while world.buffers > world.settings.buffers_max {
            let most = self.connections.iter().max_by_key(|(_, connection)| connection.counted);
            let Some((number, _)) = most.filter(|(_, connection)| connection.counted > 0) else { return };
            world.stats.cut_off += 1;
            self.remove(number, store, world);
        }
    }

    fn remove(&mut self, number: usize, store: &mut Store, world: &mut World) {
        let mut connection = self.connections.remove(number);
        world.buffers -= connection.counted;
        world.unwatch(store, &mut connection.session);
        world.clients.remove(&connection.session.id);
        let _it_may_be_gone = connection.leave(&mut self.chunk);
        let _closing_does_it_too = self.poll.registry().deregister(&mut connection.stream);
    }

    fn save_a_step(&mut self, store: &mut Store, world: &mut World) {
        if let Some(Err(error)) = saving::go_on(store, &mut world.durable, false) {
            crate::say(&format!("the snapshot failed: {error}"));
        }
    }

    fn tick(&mut self, store: &mut Store, world: &mut World, now: Instant) {
        self.accepts = true;
        self.drop_those_who_must_go(store, world, now);
        if world.active_expiry {
            expire(store);
        }
        let accounted = store.here_bytes();
        world.resident = resident::bytes().unwrap_or(0);
        // The memory of memory nodes in this process cannot be told from its own: what is counted stands for it.
        if !self.measured {
            world.resident = PROCESS_BYTES + accounted + world.buffers;
        }
        world.other = world.resident.saturating_sub(accounted + world.buffers);
        let told = store.tidy().err().map(|failure| failure.reply().to_owned());
        if told != self.told
            && let Some(text) = &told
        {
            crate::say(text);
        }
        self.told = told;
        begin_saves(store, world);
    }

    fn drop_those_who_must_go(&mut self, store: &mut Store, world: &mut World, now: Instant) {
        let timeout = world.settings.timeout;
        let kill = std::mem::take(&mut world.kill);
        let silent = |connection: &Connection| {
            timeout > 0 && now.duration_since(connection.last_heard).as_secs() >= timeout
        };
        let mut gone = Vec::new();
        for (number, connection) in &mut self.connections {
            let cut_off = connection.reads_too_little(world, now);
            world.stats.cut_off += u64::from(cut_off);
            if cut_off || kill.contains(&connection.session.id) || silent(connection) {
                gone.push(number);
            }
        }
        gone.into_iter().for_each(|number| self.remove(number, store, world));
    }

    /// Replies that were written and not sent, before the end.
    fn send_last(&mut self, world: &World) {
        for (_, connection) in &mut self.connections {
            connection.send(world);
            let _it_may_be_gone = connection.leave(&mut self.chunk);
        }
    }
}

fn expire(store: &mut Store) {
    let begun = Instant::now();
    for db in 0..u8::try_from(crate::store::SPACES).expect("few") {
        // As long as many have ended, but not for more of a tick than clients notice.
        for round in 0.. {
            let has_few = store.expire_some(db, EXPIRE_SAMPLES) <= 25;
            if has_few || (round >= EXPIRE_ROUNDS && begun.elapsed() >= EXPIRE_TIME) {
                break;
            }
        }
    }
}

/// Seconds after a snapshot that failed before the next one begins by itself.
const RETRY_SECONDS: i64 = 5;

/// A snapshot begins when enough has changed for long enough, or the log has grown to many times its beginning.
fn begin_saves(store: &mut Store, world: &mut World) {
    const LOG_LEN_MIN: u64 = 256 << 20;
    let durable: &Durable = &world.durable;
    let since_failed = (store.now() / 1000).saturating_sub(durable.failed_at);
    if durable.saving.is_some() || durable.dir().is_none() || since_failed < RETRY_SECONDS {
        return;
    }
    let age = u64::try_from(store.now() / 1000 - durable.last_save).unwrap_or(0);
    let by_time = !durable.has_log()
        && world.settings.save.iter().any(|&(seconds, changes)| age >= seconds && durable.unsaved >= changes);
    let by_len = durable.log_len() > LOG_LEN_MIN.max(2 * store.data_bytes() as u64);
    if (by_time || by_len)
        && let Err(error) = saving::begin(store, &mut world.durable)
    {
        world.durable.give_up_saving(error.to_string(), store.now());
        crate::say(&format!("no snapshot can begin: {error}"));
    }
}

/// Milliseconds since 1970 that do not go back: from the start of the server on they go as time does, whatever becomes of the system's clock. A change that is logged later is
/// carried out later, also at the next start.
#[derive(Debug)]
struct Clock {
    /// What the system's clock said when time was `from`.
    wall: i64,
    from: i64,
}

impl Clock {
    /// A clock that begins at the system's time, or at `least` where that is later.
    fn new(least: i64) -> Self {
        Self { wall: wall_clock().max(least), from: since_boot() }
    }

    fn now(&self) -> i64 {
        self.wall + since_boot() - self.from
    }
}

fn since_boot() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// Milliseconds since 1970.
pub(crate) fn wall_clock() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}
