//! One client's connection: its input, requests and replies.

mod execute;
mod flow;

pub(crate) use execute::{ClientKind, Parser, execute_input};
pub(crate) use flow::Outcome;

use crate::session::{Replies, Session};
use crate::store::Store;
use crate::stream::Stream;
use crate::world::{KEPT, Traffic, World};
use flow::{Flow, Step};
use std::io::{self, ErrorKind};
use std::time::Instant;

/// Bytes of one read.
pub(crate) const CHUNK: usize = 64 << 10;
/// Steps of one connection in a turn, each with one read at most. Then other connections have their turn.
const STEPS_A_TURN: usize = 8;
/// Bytes of an incomplete request that are always kept.
const INPUT_MIN: usize = 16 << 10;

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) session: Session,
    parser: Parser,
    /// Bytes that were read and not executed.
    input: Vec<u8>,
    /// The least length of the first request in `input`.
    least: usize,
    /// The input may have a whole request: no parser looked at it yet, or its execution had to wait. Half a
    /// request is no reason for another turn.
    unread: bool,
    traffic: Traffic,
    /// Bytes of both buffers, as `World::buffers` counts them.
    pub(crate) counted: usize,
    out: Vec<u8>,
    /// Bytes of `out` that were sent.
    sent: usize,
    /// The stream may have more to read.
    pub(crate) readable: bool,
    /// The time since which many replies wait for the client.
    waits_since: Option<Instant>,
    pub(crate) last_heard: Instant,
    /// The time of the connection's start.
    since: Instant,
    /// The system reported that the client closed its side. The end of the stream follows the unread bytes.
    pub(crate) closing: bool,
    /// The end of the stream was read.
    at_end: bool,
    /// A request of this turn changed data.
    pub(crate) wrote: bool,
    /// The server reads nothing more, and closes the connection when the replies are sent.
    ends: bool,
}

impl Connection {
    pub(crate) fn new(stream: Stream, kind: ClientKind, session: Session, now: Instant) -> Self {
        Self {
            stream,
            session,
            parser: Parser::new(kind),
            input: Vec::new(),
            least: 0,
            unread: false,
            traffic: Traffic::default(),
            counted: 0,
            out: Vec::new(),
            sent: 0,
            readable: true,
            waits_since: None,
            last_heard: now,
            since: now,
            closing: false,
            at_end: false,
            wrote: false,
            ends: false,
        }
    }

    /// Updates the bytes of this connection's buffers in `World::buffers`.
    pub(crate) fn count(&mut self, world: &mut World) {
        let bytes = self.input.capacity() + self.out.capacity() + self.beside() + self.stream.bytes();
        world.stats.traffic.add(std::mem::take(&mut self.traffic));
        world.buffers = world.buffers - self.counted + bytes;
        self.counted = bytes;
        let input = (self.input.len(), self.input.capacity());
        self.session.activity.set_buffers(input, (self.waiting(), self.out.capacity()), bytes);
    }

    /// Returns the bytes that the session and the parser keep.
    fn beside(&self) -> usize {
        self.session.bytes() + self.parser.bytes()
    }

    /// Returns whether a read may have left bytes in the stream.
    const fn has_more(&self, was_full: bool) -> bool {
        was_full || self.closing || self.stream.reads_in_parts()
    }

    /// Returns the state that decides what the connection does next, while more than `pause` bytes of replies keep it
    /// from executing.
    fn flow(&self, pause: usize) -> Flow {
        Flow {
            unread: self.unread,
            readable: self.readable,
            closing: self.closing,
            at_end: self.at_end,
            ends: self.ends,
            waits_for_key: self.session.waiting_bytes.is_some(),
            held: self.session.is_held(),
            has_output: self.waiting() > 0 || self.stream.has_output(),
            over_bound: self.waiting() > pause,
        }
    }

    /// Lets a client's requests continue if the delay for wrong passwords has passed. Returns whether it has.
    pub(crate) fn release(&mut self, now: Instant) -> bool {
        let is_over = self.session.held_until.is_some_and(|until| until <= now);
        if is_over {
            self.session.held_until = None;
        }
        is_over
    }

    /// Returns whether the TLS handshake takes longer than `seconds`; 0 is no limit.
    pub(crate) fn shakes_too_long(&self, now: Instant, seconds: u64) -> bool {
        seconds > 0 && self.stream.is_handshaking() && now.duration_since(self.since).as_secs() >= seconds
    }

    /// Ends the client's wait for a key with this reply.
    pub(crate) fn deliver(&mut self, reply: &[u8]) {
        self.session.waiting_bytes = None;
        match self.session.replies {
            Replies::Off => {}
            Replies::Skip => self.session.replies = Replies::On,
            Replies::On | Replies::SkipNext => self.out.extend_from_slice(reply),
        }
        self.wrote = true;
    }

    /// Returns the bytes of replies that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Reads and executes the client's requests while there is room for the replies. [`Connection::send`] decides how
    /// the connection continues.
    pub(crate) fn serve(
        &mut self,
        store: &mut Store,
        world: &mut World,
        chunk: &mut [u8],
        now: Instant,
    ) -> Outcome {
        if world.kill.contains(&self.session.id) && !self.ends {
            return Outcome::Close;
        }
        for _ in 0..STEPS_A_TURN {
            match self.flow(world.out_pause()).step() {
                Step::Wait => break,
                Step::Abandon => {
                    world.waiting.forget(self.session.id);
                    self.session.waiting_bytes = None;
                    self.ends = true;
                }
                Step::Execute => self.execute_buffered(store, world),
                Step::Read => match self.stream.read(chunk) {
                    Ok(0) => self.at_end = true,
                    Ok(len) => {
                        self.traffic.read(len);
                        self.last_heard = now;
                        // A read that is shorter than its buffer has emptied the socket.
                        self.readable = self.has_more(len == chunk.len());
                        self.take(store, world, &chunk[..len]);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return Outcome::Close,
                },
            }
        }
        Outcome::Wait
    }

    /// Returns whether the stream may have bytes, and there is room for them.
    pub(crate) fn wants_to_read(&self) -> bool {
        self.flow(0).step() == Step::Read && self.input.is_empty()
    }

    /// Returns whether replies wait to be sent.
    pub(crate) const fn wants_to_send(&self) -> bool {
        !self.out.is_empty()
    }

    /// Reads up to `most` bytes from the client. Executes nothing.
    pub(crate) fn read_in(&mut self, chunk: &mut [u8], most: usize, now: Instant) -> Outcome {
        while self.input.len() < most && self.readable {
            let len = chunk.len().min(most - self.input.len());
            match self.stream.read(&mut chunk[..len]) {
                // Requests that arrived before the end are executed first; then the end is read again.
                Ok(0) => {
                    self.at_end = self.input.is_empty();
                    break;
                }
                Ok(read) => {
                    self.traffic.read(read);
                    self.last_heard = now;
                    self.readable = self.has_more(read == len);
                    self.input.extend_from_slice(&chunk[..read]);
                    self.unread = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                // There may be more, which the next turn reads.
                Err(error) if error.kind() == ErrorKind::Interrupted => break,
                Err(_) => return Outcome::Close,
            }
        }
        Outcome::Wait
    }

    /// Reads from the client, and notes the values that its requests will read. Executes nothing. A turn
    /// begins with this when values are far.
    pub(crate) fn look_ahead(
        &mut self,
        store: &mut Store,
        world: &mut World,
        chunk: &mut [u8],
        now: Instant,
    ) {
        let step = self.flow(world.out_pause()).step();
        if !matches!(step, Step::Execute | Step::Read)
            || !self.session.authenticated
            || self.session.queues()
            || self.input.len() > chunk.len()
        {
            return;
        }
        if self.input.is_empty() && step == Step::Read {
            // `serve` sees an error or the end again.
            if let Ok(len @ 1..) = self.stream.read(chunk) {
                self.traffic.read(len);
                self.last_heard = now;
                self.readable = self.has_more(len == chunk.len());
                self.keep(store, world, &chunk[..len]);
                self.unread = true;
            }
        }
        // A later turn executes the requests whose replies would exceed the bound.
        let most = store.wanted_bytes() + world.out_pause() - self.waiting();
        self.parser.look_ahead(&self.input, &self.session, most, (store, world));
    }

    /// Executes the requests of the input buffer, until replies or the client keep the next one waiting.
    fn execute_buffered(&mut self, store: &mut Store, world: &mut World) {
        let input = std::mem::take(&mut self.input);
        let done = self.execute_bytes(store, world, &input);
        self.input = input;
        self.input.drain(..done);
        if self.input.capacity() > KEPT && self.input.len() < self.input.capacity() / 4 {
            self.input.shrink_to(self.input.len().max(KEPT));
        }
        if self.input.is_empty() && self.input.capacity() > world.kept() {
            self.input = Vec::new();
        }
    }

    /// Executes new bytes in place, if no bytes wait before them.
    fn take(&mut self, store: &mut Store, world: &mut World, bytes: &[u8]) {
        if self.input.is_empty() {
            let done = self.execute_bytes(store, world, bytes);
            self.keep(store, world, &bytes[done..]);
        } else {
            self.keep(store, world, bytes);
            self.execute_buffered(store, world);
        }
    }

    fn keep(&mut self, store: &mut Store, world: &mut World, bytes: &[u8]) {
        if bytes.is_empty() || self.ends {
            return;
        }
        let (len, capacity) = (self.input.len() + bytes.len(), self.input.capacity());
        let (others, most) = (world.buffers - self.counted, world.settings.buffers_max);
        let beside = others + self.out.capacity() + self.beside();
        let has_room = |to: usize| beside + to <= most;
        if len > INPUT_MIN && !has_room(len.max(capacity)) {
            world.stats.cut_off += 1;
            self.refuse("ERR this server has no room for more of this request: all connections' buffers are full; send it again, or start the server with a larger --local");
            return;
        }
        if len > capacity {
            // The buffer doubles, but grows little beyond what the request needs and never beyond the bound
            // of all buffers. Memory that is reserved and not filled would count as used.
            let step = CHUNK.max(most / 32);
            let to = len.max(self.least.max(len + len / 4).min(2 * capacity).min(len + step));
            let to = if has_room(to) { to } else { len };
            // Both copies exist until the bytes are moved.
            store.give_way(to);
            self.input.reserve_exact(to - self.input.len());
        }
        self.input.extend_from_slice(bytes);
    }

    /// Ends the connection with this error.
    fn refuse(&mut self, text: &str) {
        self.parser.refuse(text, self.session.protocol, &mut self.out);
        self.ends = true;
    }

    /// Executes the requests at the start of `bytes`, and returns their length.
    fn execute_bytes(&mut self, store: &mut Store, world: &mut World, bytes: &[u8]) -> usize {
        let Self { session, parser, out, sent, wrote, .. } = self;
        let executed = execute_input(session, parser, (store, world), bytes, (out, *sent), wrote);
        self.ends |= executed.ends;
        (self.least, self.unread) = (executed.least, executed.paused);
        executed.len
    }

    /// Sends as many replies as the socket takes, and returns how the connection continues. While more than `pause`
    /// bytes of replies wait, no request is executed. An empty buffer of up to `kept` bytes is kept.
    pub(crate) fn send(&mut self, pause: usize, kept: usize) -> Outcome {
        match self.stream.flush() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return Outcome::Close,
        }
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Outcome::Close,
                Ok(len) => {
                    self.traffic.wrote(len);
                    self.sent += len;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Outcome::Close,
            }
        }
        if self.sent == self.out.len() {
            self.sent = 0;
            self.out.clear();
            if self.out.capacity() > kept {
                self.out = Vec::new();
            }
        } else if self.sent > self.out.len() / 2 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        self.flow(pause).outcome()
    }

    /// Frees the empty buffers of a client that was idle for a while.
    pub(crate) fn rest(&mut self, now: Instant) {
        const WHILE: u64 = 1;
        if now.duration_since(self.last_heard).as_secs() >= WHILE {
            if self.input.is_empty() {
                self.input = Vec::new();
            }
            if self.out.is_empty() {
                self.out = Vec::new();
            }
        }
    }

    /// Returns whether the client must be disconnected, because too many replies wait, or wait for too long.
    pub(crate) fn reads_too_little(&mut self, world: &World, now: Instant) -> bool {
        let ((soft, seconds), hard) = (world.settings.output_soft, world.settings.output_max);
        let waiting = self.waiting();
        self.waits_since = if soft > 0 && waiting > soft { self.waits_since.or(Some(now)) } else { None };
        let too_long = self.waits_since.is_some_and(|since| now.duration_since(since).as_secs() >= seconds);
        (hard > 0 && waiting > hard) || too_long
    }

    /// Drops this turn's replies, because the changes that they acknowledge are not on the disk. The
    /// connection ends and executes nothing more.
    pub(crate) fn fail(&mut self) {
        self.out.truncate(self.sent);
        (self.input, self.unread) = (Vec::new(), false);
        self.session.ends = true;
        self.ends = true;
    }

    /// Closes the connection so that its last reply arrives. A socket that closes with unread bytes would
    /// discard the reply.
    pub(crate) fn leave(&mut self, chunk: &mut [u8]) -> io::Result<()> {
        self.stream.shut_down()?;
        for _ in 0..STEPS_A_TURN {
            if self.stream.read(chunk)? == 0 {
                break;
            }
        }
        Ok(())
    }
}
