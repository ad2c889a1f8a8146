//! The server: connections, one thread that has the data and carries commands out, and what is done beside them.
//!
//! Key type: [`Server`]. One epoll (`mio`) waits for all connections. In a turn each one that has something is read and its requests are carried out; then the append log is
//! written, and put on the disk where replies wait for that; and only then are replies sent. Between turns a clock does the rest: keys that have ended, room, snapshots,
//! clients that do not read.

mod chores;
mod spread;

use crate::clock::Clock;
use crate::connection::{CHUNK, Connection, Outcome, Speaks, kept, out_pause};
use crate::io_threads::{Connections, Crew};
use crate::session::Session;
use crate::store::Store;
use crate::stream::Stream;
use crate::world::{Shown, World};
use crate::{KvError, resident, saving};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::io::{self, ErrorKind, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Connections that may wait to be taken, as far as the system allows (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
const WAKE_TOKEN: Token = Token(usize::MAX);
/// Tokens from here on are doors.
const DOORS_FROM: usize = usize::MAX - 8;
/// Events of a turn at most.
const EVENTS: usize = 1024;
/// How often what is beside commands is done.
const TICK: Duration = Duration::from_millis(100);
/// The part of local memory by which what is here may grow before the process is measured again.
const GROWTH_SHARE: usize = 128;
/// What a process takes without data, where it cannot be measured.
const PROCESS_BYTES: usize = 8 << 20;

/// A port at which clients come, and what they speak.
#[derive(Debug)]
struct Door {
    listener: TcpListener,
    speaks: Speaks,
    tls: Option<Arc<rustls::ServerConfig>>,
    /// Somebody may stand there.
    accepts: bool,
}

/// Where clients are to come.
#[derive(Clone, Debug)]
pub(crate) struct DoorPlan {
    pub(crate) address: SocketAddr,
    pub(crate) speaks: Speaks,
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    doors: Vec<Door>,
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
    /// Listens at addresses.
    pub(crate) fn listen(at: &[DoorPlan]) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut doors = Vec::new();
        for (number, plan) in at.iter().enumerate() {
            let (address, speaks, tls) = (plan.address, plan.speaks, plan.tls.clone());
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
            let mut listener = TcpListener::bind(address).map_err(named)?;
            // `mio` lets 128 wait: of more that come at once the system would drop some, which try again a second later.
            rustix::net::listen(&listener, BACKLOG)?;
            poll.registry().register(&mut listener, Token(DOORS_FROM + number), Interest::READABLE)?;
            doors.push(Door { listener, speaks, tls, accepts: true });
        }
        let waker = Arc::new(Waker::new(poll.registry(), WAKE_TOKEN)?);
        Ok(Self { doors, poll, stop: Stop { asked: Arc::default(), waker } })
    }

    /// Where it listens: with the port that the system chose.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.doors[0].listener.local_addr()
    }

    /// Where it listens for these clients.
    pub(crate) fn address_of(&self, speaks: Speaks, tls: bool) -> io::Result<Option<SocketAddr>> {
        let door = self.doors.iter().find(|door| door.speaks == speaks && door.tls.is_some() == tls);
        door.map(|door| door.listener.local_addr()).transpose()
    }

    /// How it is ended.
    #[must_use]
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    pub(crate) fn serve(
        self,
        store: &mut Store,
        world: &mut World,
        crew: Crew,
        measured: bool,
    ) -> Result<(), KvError> {
        world.io_threads = crew.len();
        world.port = self.address().map_err(KvError::Listen)?.port();
        let mut turns = Turns {
            poll: self.poll,
            doors: self.doors,
            connections: Connections::default(),
            crew,
            ready: Vec::new(),
            due: Vec::new(),
            chunk: vec![0; CHUNK],
            next_id: 0,
            last_tick: Instant::now(),
            told: None,
            clock: Clock::new(store.now()),
            measured,
            measured_at: 0,
            settled_at: 0,
        };
        turns.measure(store, world);
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

/// Bytes of local memory that are known of.
fn accounted(store: &Store, world: &World) -> usize {
    store.here_bytes() + world.buffers + world.durable.buffered()
}

struct Turns {
    poll: Poll,
    doors: Vec<Door>,
    connections: Connections,
    crew: Crew,
    /// Connections that have something to do in this turn.
    ready: Vec<usize>,
    /// Connections that were looked at in the turn before, and whose far values are under way: they are served behind the look at those that have come since. In order.
    due: Vec<usize>,
    chunk: Vec<u8>,
    next_id: u64,
    last_tick: Instant,
    /// What was said last of far memory that cannot be compacted: it is said once.
    told: Option<String>,
    clock: Clock,
    /// Resident memory says what this process takes: the memory nodes are others.
    measured: bool,
    /// Bytes that were accounted for when it was measured last, and when the limit was looked at.
    measured_at: usize,
    settled_at: usize,
}

impl Turns {
    fn turn(&mut self, store: &mut Store, world: &mut World, events: &mut Events) -> io::Result<()> {
        let busy = !self.ready.is_empty()
            || !self.due.is_empty()
            || world
                .durable
                .saving
                .as_ref()
                .is_some_and(|saving| saving.stands() == crate::durable::Stands::Writes);
        let mut left = TICK.saturating_sub(self.last_tick.elapsed());
        if let Some(end) = world.waiting.next_end() {
            // The system counts in milliseconds, and would come back too early again and again.
            left = left.min(end.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        }
        match self.poll.poll(events, Some(if busy { Duration::ZERO } else { left })) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        let now = Instant::now();
        world.turns += 1;
        store.set_now(self.clock.now());
        for event in events.iter() {
            self.note(event, world);
        }
        for number in 0..self.doors.len() {
            if self.doors[number].accepts {
                self.accept(number, world, now);
            }
        }
        world.waiting.end_those_before(now);
        let mut ready = std::mem::take(&mut self.ready);
        let mut again = Vec::new();
        let due = std::mem::take(&mut self.due);
        // What has come for them since is read when they are served.
        ready.retain(|number| due.binary_search(number).is_err());
        if self.crew.helps(ready.len()) {
            self.read_by_all(&ready, store, world, now);
        }
        if store.has_far() && world.settings.read_ahead {
            self.read_ahead(&ready, !due.is_empty(), store, world, now);
        }
        if store.waits_for_ahead() {
            // Those of the turn before are served while these READs are under way.
            self.due = std::mem::replace(&mut ready, due);
            self.due.sort_unstable();
            self.due.dedup();
        } else {
            ready.splice(0..0, due);
        }
        for &number in &ready {
            self.serve(number, store, world, now, &mut again);
        }
        store.forget_ahead(self.due.is_empty());
        self.deliver(world, &mut ready, &mut again);
        world.follow_changes(store);
        self.settle_log(&ready, world);
        let sent = if self.crew.helps(ready.len()) { self.send_by_all(&ready, world) } else { Vec::new() };
        for (number, outcome) in sent {
            self.was_sent(number, outcome, world, now, &mut again, store);
        }
        for &number in &ready {
            self.send(number, world, now, &mut again, store);
        }
        self.bound_buffers(store, world);
        self.settle(store, world);
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
            WAKE_TOKEN => {}
            Token(number) if number >= DOORS_FROM => self.doors[number - DOORS_FROM].accepts = true,
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

    fn accept(&mut self, door: usize, world: &mut World, now: Instant) {
        loop {
            match self.doors[door].listener.accept() {
                Ok((stream, peer)) => self.welcome(stream, peer, door, world, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.doors[door].accepts = false;
                    return;
                }
                // No descriptors, or the peer is gone: the next tick tries again.
                Err(_) => return,
            }
        }
    }

    fn welcome(
        &mut self,
        mut stream: TcpStream,
        peer: SocketAddr,
        door: usize,
        world: &mut World,
        now: Instant,
    ) {
        world.stats.connections += 1;
        // Those over TLS take much before anybody knows who they are: others keep half of the room.
        let is_tls = self.doors[door].tls.is_some();
        let no_room = is_tls && world.buffers > world.settings.buffers_max / 2;
        if no_room || self.connections.len() >= world.settings.clients_max {
            world.stats.refused += 1;
            // Over TLS there is nothing that it would understand yet.
            if !is_tls {
                let _it_may_be_gone = stream.write(self.doors[door].speaks.full());
            }
            return;
        }
        let _only_slower = stream.set_nodelay(true);
        let number = self.connections.vacant();
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(number), interest).is_err() {
            return;
        }
        let (local, descriptor) = (stream.local_addr().ok(), stream.as_raw_fd());
        let stream = match &self.doors[door].tls {
            None => Stream::plain(stream),
            Some(config) => match Stream::tls(stream, config) {
                Ok(stream) => stream,
                Err(error) => return crate::say(&format!("no TLS with {peer}: {error}")),
            },
        };
        self.next_id += 1;
        let session = Session::new(self.next_id, peer.to_string(), peer.into(), world.acl.default_user());
        let user = session.user.clone();
        let shown = Shown {
            address: peer.to_string(),
            local_address: local.map_or_else(String::new, |address| address.to_string()),
            descriptor,
            name: String::new(),
            since: now,
            user,
            activity: Arc::clone(&session.activity),
            number,
        };
        world.clients.insert(session.id, shown);
        let mut connection = Connection::new(stream, self.doors[door].speaks, session, now);
        connection.count(world);
        self.connections.insert(connection);
        self.ready.push(number);
    }

    /// Far values that this turn's requests ask for, of all connections, are read at once.
    fn read_ahead(
        &mut self,
        ready: &[usize],
        early: bool,
        store: &mut Store,
        world: &mut World,
        now: Instant,
    ) {
        for &number in ready {
            let Some(connection) = self.connections.get_mut(number) else { continue };
            connection.look_ahead(store, world, &mut self.chunk, now);
            connection.count(world);
        }
        if early { store.fetch_wanted_early() } else { store.fetch_wanted() }
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
        let outcome = connection.serve(store, world, &mut self.chunk, now);
        connection.count(world);
        // Many clients in one turn may bring, and be sent, more than is left free.
        if accounted(store, world) > self.settled_at + store.memory.local / GROWTH_SHARE {
            self.settle(store, world);
        }
        match outcome {
            Outcome::Wait => {}
            Outcome::Again => again.push(number),
            Outcome::Close => self.remove(number, store, world),
        }
    }

    /// Clients that have waited get what they waited for, and what else they have sent is carried out.
    fn deliver(&mut self, world: &mut World, ready: &mut Vec<usize>, again: &mut Vec<usize>) {
        for (id, reply) in world.waiting.take_served() {
            let number = world.clients.get(&id).map(|shown| shown.number);
            let connection = number.and_then(|number| Some((number, self.connections.get_mut(number)?)));
            let Some((number, connection)) = connection.filter(|(_, known)| known.session.id == id) else {
                continue;
            };
            connection.deliver(&reply);
            connection.count(world);
            if !ready.contains(&number) {
                ready.push(number);
            }
            again.push(number);
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
        let outcome = connection.send(out_pause(world), kept(world));
        self.was_sent(number, outcome, world, now, again, store);
    }

    fn was_sent(
        &mut self,
        number: usize,
        outcome: Outcome,
        world: &mut World,
        now: Instant,
        again: &mut Vec<usize>,
        store: &mut Store,
    ) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        connection.count(world);
        if connection.reads_too_little(world, now) {
            world.stats.cut_off += 1;
            return self.remove(number, store, world);
        }
        match outcome {
            Outcome::Wait => {}
            Outcome::Again => again.push(number),
            Outcome::Close => self.remove(number, store, world),
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
        let Some(mut connection) = self.connections.remove(number) else { return };
        world.buffers -= connection.counted;
        world.waiting.forget(connection.session.id);
        world.unwatch(store, &mut connection.session);
        world.clients.remove(&connection.session.id);
        let _it_may_be_gone = connection.leave(&mut self.chunk);
        let _closing_does_it_too = self.poll.registry().deregister(&mut connection.stream.socket);
    }

    fn save_a_step(&mut self, store: &mut Store, world: &mut World) {
        if let Some(Err(error)) = saving::go_on(store, &mut world.durable, false) {
            crate::say(&format!("the snapshot failed: {error}"));
        }
    }

    fn tick(&mut self, store: &mut Store, world: &mut World, now: Instant) {
        self.doors.iter_mut().for_each(|door| door.accepts = true);
        world.settle_flush(store);
        world.measure_rate(store, now);
        self.drop_those_who_must_go(store, world, now);
        if world.active_expiry {
            chores::expire(store);
        }
        self.measure(store, world);
        let told = store.tidy().err().map(|failure| failure.reply().to_owned());
        if told != self.told
            && let Some(text) = &told
        {
            crate::say(text);
        }
        self.told = told;
        chores::begin_saves(store, world);
    }

    /// Keeps what is here within the limit.
    fn settle(&mut self, store: &mut Store, world: &mut World) {
        let grown = accounted(store, world) > self.measured_at + store.memory.local / GROWTH_SHARE;
        if self.measured && grown {
            self.measure(store, world);
        }
        store.memory.overhead = world.other + world.buffers + world.durable.buffered();
        store.settle();
        self.settled_at = accounted(store, world);
    }

    /// What this process takes, and what of it nothing accounts for.
    fn measure(&mut self, store: &Store, world: &mut World) {
        let accounted = accounted(store, world);
        // The memory of memory nodes in this process cannot be told from its own: what is counted stands for it.
        world.resident =
            if self.measured { resident::bytes().unwrap_or(0) } else { PROCESS_BYTES + accounted };
        world.other = world.resident.saturating_sub(accounted);
        self.measured_at = accounted;
    }

    fn drop_those_who_must_go(&mut self, store: &mut Store, world: &mut World, now: Instant) {
        let timeout = world.settings.timeout;
        let kill = std::mem::take(&mut world.kill);
        let handshake = world.settings.tls_handshake;
        let silent = |connection: &Connection| {
            timeout > 0
                && connection.session.waiting_bytes.is_none()
                && now.duration_since(connection.last_heard).as_secs() >= timeout
        };
        world.guesses.forget(now);
        let mut gone = Vec::new();
        for (number, connection) in self.connections.iter_mut() {
            connection.rest(now);
            if connection.release(now) {
                self.ready.push(number);
            }
            connection.count(world);
            if connection.shakes_too_long(now, handshake) {
                world.stats.late_handshakes += 1;
                gone.push(number);
                continue;
            }
            let cut_off = connection.reads_too_little(world, now);
            world.stats.cut_off += u64::from(cut_off);
            // A password that was put off is not looked at for nobody.
            let left = connection.session.is_held() && connection.closing;
            if cut_off || left || kill.contains(&connection.session.id) || silent(connection) {
                gone.push(number);
            }
        }
        gone.into_iter().for_each(|number| self.remove(number, store, world));
    }

    /// Replies that were written and not sent, before the end.
    fn send_last(&mut self, world: &World) {
        for (_, connection) in self.connections.iter_mut() {
            connection.send(out_pause(world), 0);
            let _it_may_be_gone = connection.leave(&mut self.chunk);
        }
    }
}
