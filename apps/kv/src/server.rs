//! The server: its ports and connections, and the thread that has the data and executes commands.
//!
//! Key type: [`Server`]. One epoll (`mio`) waits for all connections. A turn reads from each connection that
//! has something and executes its requests. Then it writes the append log, syncs it if replies wait for that,
//! and sends the replies. A clock does the rest between turns: expiry, room, snapshots, and clients that do
//! not read.

mod chores;
mod spread;

use crate::clock::Clock;
use crate::connection::{CHUNK, ClientKind, Connection, Outcome};
use crate::durable::Phase;
use crate::failure::Failure;
use crate::io_threads::{Connections, IoThreads};
use crate::operator::{KvError, say};
use crate::saving;
use crate::session::Session;
use crate::store::Store;
use crate::stream::Stream;
use crate::world::{ClientInfo, World};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::io::{self, ErrorKind, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Connections that may wait to be accepted, if the system allows as many (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
const WAKE_TOKEN: Token = Token(usize::MAX);
/// The first token of a port.
const PORTS_FROM: usize = usize::MAX - 8;
/// Events of a turn at most.
const EVENTS: usize = 1024;
/// Interval of the periodic work.
const TICK: Duration = Duration::from_millis(100);

/// A port, and the protocol of its clients.
#[derive(Debug)]
struct Port {
    listener: TcpListener,
    kind: ClientKind,
    tls: Option<Arc<rustls::ServerConfig>>,
    /// A client may wait to be accepted.
    accepts: bool,
}

/// The address and the protocol of a port.
#[derive(Clone, Debug)]
pub(crate) struct PortPlan {
    pub(crate) address: SocketAddr,
    pub(crate) kind: ClientKind,
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    ports: Vec<Port>,
    poll: Poll,
    stop: Stop,
}

/// A handle that ends a server from another thread.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stop {
    /// Makes the server write all executed changes, and end.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::Release);
        // The server looks at every tick, too.
        let _it_looks_anyway = self.waker.wake();
    }
}

impl Server {
    /// Listens on addresses.
    pub(crate) fn listen(at: &[PortPlan]) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut ports = Vec::new();
        for (number, plan) in at.iter().enumerate() {
            let (address, kind, tls) = (plan.address, plan.kind, plan.tls.clone());
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
            let mut listener = TcpListener::bind(address).map_err(named)?;
            // `mio` lets 128 clients wait. The system would drop some of more simultaneous ones, which retry a second
            // later.
            rustix::net::listen(&listener, BACKLOG)?;
            poll.registry().register(&mut listener, Token(PORTS_FROM + number), Interest::READABLE)?;
            ports.push(Port { listener, kind, tls, accepts: true });
        }
        let waker = Arc::new(Waker::new(poll.registry(), WAKE_TOKEN)?);
        Ok(Self { ports, poll, stop: Stop { asked: Arc::default(), waker } })
    }

    /// Returns the address of the first port, with the number that the system chose.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.ports[0].listener.local_addr()
    }

    /// Returns the address of the port for these clients.
    pub(crate) fn address_of(&self, kind: ClientKind, tls: bool) -> io::Result<Option<SocketAddr>> {
        let port = self.ports.iter().find(|port| port.kind == kind && port.tls.is_some() == tls);
        port.map(|port| port.listener.local_addr()).transpose()
    }

    /// Returns a handle that ends the server.
    #[must_use]
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    pub(crate) fn serve(
        self,
        store: &mut Store,
        world: &mut World,
        io_threads: IoThreads,
    ) -> Result<(), KvError> {
        world.io_threads = io_threads.len();
        world.port = self.address().map_err(KvError::Listen)?.port();
        let mut turns = EventLoop {
            poll: self.poll,
            ports: self.ports,
            connections: Connections::default(),
            io_threads,
            ready: Vec::new(),
            due: Vec::new(),
            chunk: vec![0; CHUNK],
            next_id: 0,
            last_tick: Instant::now(),
            told: None,
            clock: Clock::new(store.now()),
            settled_at: 0,
            has_expired: false,
        };
        world.measure(store);
        let mut events = Events::with_capacity(EVENTS);
        let mut has_failed = false;
        loop {
            while !world.ends && !self.stop.asked.load(Ordering::Acquire) {
                turns.turn(store, world, &mut events).map_err(KvError::Poll)?;
            }
            match shut_down(store, world) {
                // The data would be lost. The operator may make room, and stop the server once more.
                Err(error) if !has_failed => {
                    has_failed = true;
                    say(&format!(
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

/// Writes the log. Saves the data if there is no log and snapshots are on.
fn shut_down(store: &mut Store, world: &mut World) -> Result<(), KvError> {
    let Some(dir) = world.durable.dir().map(std::path::Path::to_owned) else { return Ok(()) };
    let failed = |error| KvError::Save { dir: dir.clone(), error };
    world.durable.close().map_err(failed)?;
    if !world.durable.has_log() && world.durable.unsaved > 0 && !world.ends {
        saving::save_now(store, &mut world.durable).map_err(failed)?;
    }
    Ok(())
}

struct EventLoop {
    poll: Poll,
    ports: Vec<Port>,
    connections: Connections,
    io_threads: IoThreads,
    /// Connections that have something to do in this turn.
    ready: Vec<usize>,
    /// Connections of the last turn whose far values were then in flight, sorted. The server first requests the far
    /// values of newer connections, then serves these.
    due: Vec<usize>,
    chunk: Vec<u8>,
    next_id: u64,
    last_tick: Instant,
    /// The last message about far memory that cannot be compacted. Each is logged once.
    told: Option<String>,
    clock: Clock,
    /// Bytes that were accounted for when the limit was looked at last.
    settled_at: usize,
    /// Many of the keys in the last slice of the sweep had expired.
    has_expired: bool,
}

impl EventLoop {
    fn turn(&mut self, store: &mut Store, world: &mut World, events: &mut Events) -> io::Result<()> {
        let busy = !self.ready.is_empty()
            || !self.due.is_empty()
            || self.has_expired
            || store.has_chores()
            || world.durable.saving.as_ref().is_some_and(|saving| saving.phase() == Phase::Writing);
        let mut left = TICK.saturating_sub(self.last_tick.elapsed());
        if let Some(end) = world.waiting.next_end() {
            // The system counts in milliseconds. A shorter time would end too early again and again.
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
        for number in 0..self.ports.len() {
            if self.ports[number].accepts {
                self.accept(number, world, now);
            }
        }
        world.waiting.end_expired(now);
        let mut ready = std::mem::take(&mut self.ready);
        let mut again = Vec::new();
        let due = std::mem::take(&mut self.due);
        // Bytes that have come for these connections since are read when they are served.
        ready.retain(|number| due.binary_search(number).is_err());
        if self.io_threads.helps(ready.len()) {
            self.read_by_all(&ready, store, world, now);
        }
        if store.has_far() && world.settings.read_ahead {
            self.read_ahead(&ready, !due.is_empty(), store, world, now);
        }
        if store.waits_for_ahead() {
            // The connections of the last turn are served while these READs are under way.
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
        let sent =
            if self.io_threads.helps(ready.len()) { self.send_by_all(&ready, world) } else { Vec::new() };
        for (number, outcome) in sent {
            self.was_sent(number, outcome, world, now, &mut again, store);
        }
        for &number in &ready {
            self.send(number, world, now, &mut again, store);
        }
        self.bound_buffers(store, world);
        self.settled_at = world.settle(store);
        again.sort_unstable();
        again.dedup();
        self.ready = again;
        self.save_a_step(store, world);
        if self.has_expired {
            self.expire(store, world);
        }
        if self.last_tick.elapsed() >= TICK {
            self.tick(store, world, now);
            self.last_tick = Instant::now();
        }
        Ok(())
    }

    fn note(&mut self, event: &Event, _: &World) {
        match event.token() {
            WAKE_TOKEN => {}
            Token(number) if number >= PORTS_FROM => self.ports[number - PORTS_FROM].accepts = true,
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

    fn accept(&mut self, port: usize, world: &mut World, now: Instant) {
        loop {
            match self.ports[port].listener.accept() {
                Ok((stream, peer)) => self.open(stream, peer, port, world, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.ports[port].accepts = false;
                    return;
                }
                // There is no descriptor, or the peer is gone. The next tick tries again.
                Err(_) => return,
            }
        }
    }

    fn open(
        &mut self,
        mut stream: TcpStream,
        peer: SocketAddr,
        port: usize,
        world: &mut World,
        now: Instant,
    ) {
        world.stats.connections += 1;
        // A TLS connection takes much memory before its client is known. Other clients keep half of the room.
        let is_tls = self.ports[port].tls.is_some();
        let no_room = is_tls && world.buffers > world.settings.buffers_max / 2;
        if no_room || self.connections.len() >= world.settings.clients_max {
            world.stats.refused += 1;
            // A TLS client would not understand a reply yet.
            if !is_tls {
                let _it_may_be_gone = stream.write(self.ports[port].kind.full());
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
        let stream = match &self.ports[port].tls {
            None => Stream::plain(stream),
            Some(config) => match Stream::tls(stream, config) {
                Ok(stream) => stream,
                Err(error) => return say(&format!("no TLS with {peer}: {error}")),
            },
        };
        self.next_id += 1;
        let session = Session::new(self.next_id, peer.to_string(), peer.into(), world.acl.default_user());
        let user = session.user.clone();
        let shown = ClientInfo {
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
        let mut connection = Connection::new(stream, self.ports[port].kind, session, now);
        connection.count(world);
        self.connections.insert(connection);
        self.ready.push(number);
    }

    /// Reads the far values that this turn's requests need, of all connections at once.
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
        // Many clients in one turn may send, and be sent, more than is left free.
        if world.has_grown(store, self.settled_at) {
            self.settled_at = world.settle(store);
        }
        match outcome {
            Outcome::Wait => {}
            Outcome::Again => again.push(number),
            Outcome::Close => self.remove(number, store, world),
        }
    }

    /// Delivers replies to clients whose wait for a key has ended. Their next requests are executed in the
    /// next turn.
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

    /// Writes this turn's changes to the log before any client learns of them. If that fails, no client does.
    fn settle_log(&mut self, ready: &[usize], world: &mut World) {
        let flushed = world.durable.flush();
        for &number in ready {
            let Some(connection) = self.connections.get_mut(number) else { continue };
            if std::mem::take(&mut connection.wrote) && flushed.is_err() {
                // Nothing more of this client is executed: its next reply would be taken for the lost one.
                connection.fail();
                world.kill.insert(connection.session.id);
            }
        }
        if let Err(error) = flushed {
            let failure = Failure::said(format!("MISCONF Errors writing to the AOF file: {error}"));
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
        let outcome = connection.send(world.out_pause(), world.kept());
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

    /// Disconnects the clients with the largest buffers, while all buffers together exceed their bound.
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
            say(&format!("the snapshot failed: {error}"));
        }
    }

    fn tick(&mut self, store: &mut Store, world: &mut World, now: Instant) {
        self.ports.iter_mut().for_each(|port| port.accepts = true);
        world.settle_flush(store);
        world.measure_rate(store, now);
        self.disconnect_overdue(store, world, now);
        self.expire(store, world);
        chores::watch_far_memory(store);
        world.measure(store);
        let told = store.tidy().err().map(|failure| failure.reply().to_owned());
        if told != self.told
            && let Some(text) = &told
        {
            say(text);
        }
        self.told = told;
        chores::begin_saves(store, world);
    }

    /// Removes a slice of the keys that have expired.
    fn expire(&mut self, store: &mut Store, world: &World) {
        self.has_expired = world.active_expiry && store.expire_slice();
    }

    fn disconnect_overdue(&mut self, store: &mut Store, world: &mut World, now: Instant) {
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
            // A delayed password of a client that is gone is dropped.
            let left = connection.session.is_held() && connection.closing;
            if cut_off || left || kill.contains(&connection.session.id) || silent(connection) {
                gone.push(number);
            }
        }
        gone.into_iter().for_each(|number| self.remove(number, store, world));
    }

    /// Sends replies that were written and not sent, before the end.
    fn send_last(&mut self, world: &World) {
        for (_, connection) in self.connections.iter_mut() {
            connection.send(world.out_pause(), 0);
            let _it_may_be_gone = connection.leave(&mut self.chunk);
        }
    }
}
