//! One connection: its bytes, requests and replies.

use crate::command::{Args, Context, carry_out, want};
use crate::session::Session;
use crate::store::Store;
use crate::world::World;
use farmem_resp::{Limits, Parsed, Requests, Writer};
use mio::net::TcpStream;
use smallvec::SmallVec;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::time::Instant;

/// Bytes that are read at once.
pub(crate) const CHUNK: usize = 64 << 10;
/// Chunks that one connection is read for in a turn; then others have theirs.
const CHUNKS_A_TURN: usize = 8;
/// Replies that wait for a client, when buffers are scarce: with more, no more of its requests are carried out.
const OUT_PAUSE_MIN: usize = 16 << 10;
/// Bytes of a request that is not whole, which are kept in any case.
const INPUT_MIN: usize = 16 << 10;
/// Bytes of an empty buffer that are kept for the next request.
const KEPT: usize = 16 << 10;

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) session: Session,
    requests: Requests,
    /// What was read and not carried out.
    input: Vec<u8>,
    /// Bytes that the request at its begin has at least.
    least: usize,
    /// Bytes of both buffers, as they count among those of all.
    pub(crate) counted: usize,
    out: Vec<u8>,
    /// Bytes of `out` that are sent.
    sent: usize,
    /// The stream may have more to read.
    pub(crate) readable: bool,
    /// Since when much waits for the client.
    waits_since: Option<Instant>,
    pub(crate) last_heard: Instant,
    /// The system has said that the client closed its side: behind what is there to read is the end.
    pub(crate) closing: bool,
    /// That end was read.
    at_end: bool,
    /// It changed data in this turn.
    pub(crate) wrote: bool,
    /// Nothing is read any more; it ends when its replies are sent.
    ends: bool,
}

/// How a connection goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goes {
    /// It waits for the client.
    On,
    /// There is more to do at once.
    Again,
    /// It ends.
    Away,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, session: Session, now: Instant) -> Self {
        Self {
            stream,
            session,
            requests: Requests::new(),
            input: Vec::new(),
            least: 0,
            counted: 0,
            out: Vec::new(),
            sent: 0,
            readable: true,
            waits_since: None,
            last_heard: now,
            closing: false,
            at_end: false,
            wrote: false,
            ends: false,
        }
    }

    /// The bytes of its buffers count among those of all, as they are now.
    pub(crate) fn count(&mut self, world: &mut World) {
        let bytes = self.input.capacity() + self.out.capacity() + self.queued();
        world.buffers = world.buffers - self.counted + bytes;
        self.counted = bytes;
    }

    /// Bytes of the transaction that it puts together.
    fn queued(&self) -> usize {
        self.session.queue.as_ref().map_or(0, |queue| queue.bytes)
    }

    /// Replies that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Reads what the client sent, and carries it out.
    pub(crate) fn serve(
        &mut self,
        store: &mut Store,
        world: &mut World,
        chunk: &mut [u8],
        now: Instant,
    ) -> Goes {
        if world.kill.contains(&self.session.id) && !self.ends {
            return Goes::Away;
        }
        for _ in 0..CHUNKS_A_TURN {
            if self.ends || self.waiting() > out_pause(world) {
                return Goes::On;
            }
            // What was left when the client did not read.
            if !self.input.is_empty() && !self.carry_out_input(store, world) {
                continue;
            }
            if !self.readable || self.at_end {
                break;
            }
            match self.stream.read(chunk) {
                Ok(0) => self.at_end = true,
                Ok(len) => {
                    self.last_heard = now;
                    // Less than was asked for: that is all there is.
                    self.readable = len == chunk.len() || self.closing;
                    self.take(store, world, &chunk[..len]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Goes::Away,
            }
        }
        if self.at_end {
            return if self.waiting() == 0 { Goes::Away } else { Goes::On };
        }
        if self.readable && !self.ends { Goes::Again } else { Goes::On }
    }

    /// Reads what the client sent, and notes which values its requests ask for; nothing is carried out. For the begin of a turn, when values are far.
    pub(crate) fn look_ahead(
        &mut self,
        store: &mut Store,
        world: &mut World,
        chunk: &mut [u8],
        now: Instant,
    ) {
        let is_paused = self.ends || self.waiting() > out_pause(world);
        if is_paused || !self.session.authenticated || self.session.queues() || self.input.len() > chunk.len()
        {
            return;
        }
        if self.input.is_empty() && self.readable && !self.at_end {
            // What else may come of it is seen again by who serves.
            if let Ok(len @ 1..) = self.stream.read(chunk) {
                self.last_heard = now;
                self.readable = len == chunk.len() || self.closing;
                self.keep(world, &chunk[..len]);
            }
        }
        // Those of whose replies more wait than may are carried out in a later turn.
        let most = store.wanted_bytes() + out_pause(world) - self.waiting();
        let (mut requests, mut at) = (Requests::new(), 0);
        while let Parsed::Whole { len } = requests.parse(&self.input[at..], &limits(world, true)) {
            let words: SmallVec<[&[u8]; 8]> = requests.words(&self.input[at..]).collect();
            at += len;
            if !words.is_empty() && !want(store, self.session.db, &words) || store.wanted_bytes() > most {
                return;
            }
        }
    }

    /// Carries out what is in the input; true when that is all that can be done with it.
    fn carry_out_input(&mut self, store: &mut Store, world: &mut World) -> bool {
        let input = std::mem::take(&mut self.input);
        let done = self.carry_out_of(store, world, &input);
        self.input = input;
        let all = self.waiting() <= out_pause(world);
        self.input.drain(..done);
        if self.input.capacity() > KEPT && self.input.len() < self.input.capacity() / 4 {
            self.input.shrink_to(self.input.len().max(KEPT));
        }
        if self.input.is_empty() {
            self.input = Vec::new();
        }
        all
    }

    /// New bytes: carried out where they are when nothing came before them.
    fn take(&mut self, store: &mut Store, world: &mut World, bytes: &[u8]) {
        if self.input.is_empty() {
            let done = self.carry_out_of(store, world, bytes);
            self.keep(world, &bytes[done..]);
        } else {
            self.keep(world, bytes);
            self.carry_out_input(store, world);
        }
    }

    fn keep(&mut self, world: &mut World, bytes: &[u8]) {
        if bytes.is_empty() || self.ends {
            return;
        }
        let (len, capacity) = (self.input.len() + bytes.len(), self.input.capacity());
        let (others, most) = (world.buffers - self.counted, world.settings.buffers_max);
        let beside = others + self.out.capacity() + self.queued();
        let has_room = |to: usize| beside + to <= most;
        if len > capacity && len > INPUT_MIN && !has_room(len) {
            world.stats.cut_off += 1;
            self.refuse("ERR this server has no room for more of this request: all connections' buffers are full; send it again, or start the server with a larger --local");
            return;
        }
        if len > capacity {
            // To the double, but not far beyond what the request needs, nor beyond what all may have.
            let to = len.max(self.least.max(len + len / 4).min(2 * capacity));
            self.input.reserve_exact(if has_room(to) { to } else { len } - self.input.len());
        }
        self.input.extend_from_slice(bytes);
    }

    /// The connection ends with this reply.
    fn refuse(&mut self, text: &str) {
        Writer::new(&mut self.out, self.session.protocol).error(text);
        self.ends = true;
    }

    /// Carries out the requests that bytes begin with; how many bytes they have.
    fn carry_out_of(&mut self, store: &mut Store, world: &mut World, bytes: &[u8]) -> usize {
        let Self { session, requests, out, sent, wrote, .. } = self;
        let carried = carry_out_all(session, requests, (store, world), bytes, (out, *sent), wrote);
        self.ends |= carried.ends;
        self.least = carried.least;
        carried.len
    }

    /// Sends replies, as many as the client takes.
    pub(crate) fn send(&mut self, world: &World) -> Goes {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Goes::Away,
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // What is sent goes when it is half of it.
                    if self.sent > self.out.len() / 2 {
                        self.out.drain(..self.sent);
                        self.sent = 0;
                    }
                    // Few replies wait, and it has asked for more.
                    if self.waiting() <= out_pause(world)
                        && !self.ends
                        && (self.readable || !self.input.is_empty())
                    {
                        return Goes::Again;
                    }
                    return Goes::On;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Goes::Away,
            }
        }
        self.sent = 0;
        self.out.clear();
        if self.out.capacity() > KEPT {
            self.out = Vec::new();
        }
        if self.ends || self.at_end {
            return Goes::Away;
        }
        // It may have been paused.
        if self.input.is_empty() { Goes::On } else { Goes::Again }
    }

    /// True when so much waits, or for so long, that the client is cut off.
    pub(crate) fn reads_too_little(&mut self, world: &World, now: Instant) -> bool {
        let ((soft, seconds), hard) = (world.settings.output_soft, world.settings.output_max);
        let waiting = self.waiting();
        self.waits_since = if soft > 0 && waiting > soft { self.waits_since.or(Some(now)) } else { None };
        let too_long = self.waits_since.is_some_and(|since| now.duration_since(since).as_secs() >= seconds);
        (hard > 0 && waiting > hard) || too_long
    }

    /// Nothing of this turn's replies is sent: what they acknowledge is not on the disk. The connection ends, and nothing more of what it has sent is carried out.
    pub(crate) fn fail(&mut self) {
        self.out.truncate(self.sent);
        self.input = Vec::new();
        self.session.ends = true;
        self.ends = true;
    }

    /// Ends the connection so that its last reply arrives: a socket that is closed with unread bytes takes it back.
    pub(crate) fn leave(&mut self, chunk: &mut [u8]) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)?;
        for _ in 0..CHUNKS_A_TURN {
            if self.stream.read(chunk)? == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// What was done with the bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// Bytes that are done with.
    pub(crate) len: usize,
    /// Requests among them.
    pub(crate) requests: usize,
    /// Nothing is read any more.
    pub(crate) ends: bool,
    /// Bytes that the request behind them has at least; 0 when that is not known.
    pub(crate) least: usize,
}

/// Carries out the requests that bytes begin with, while the replies that wait are not too many; of those in `out` so many bytes are sent.
pub(crate) fn carry_out_all(
    session: &mut Session,
    requests: &mut Requests,
    (store, world): (&mut Store, &mut World),
    bytes: &[u8],
    (out, sent): (&mut Vec<u8>, usize),
    wrote: &mut bool,
) -> Carried {
    let mut carried = Carried { len: 0, requests: 0, ends: false, least: 0 };
    loop {
        let limits = limits(world, session.authenticated);
        match requests.parse(&bytes[carried.len..], &limits) {
            Parsed::More { least } => return Carried { least, ..carried },
            Parsed::Broken(fault) => {
                Writer::new(out, session.protocol).error(&format!("ERR Protocol error: {fault}"));
                return Carried { len: bytes.len(), ends: true, ..carried };
            }
            Parsed::Whole { len } => {
                if !requests.is_empty() {
                    let words: SmallVec<[&[u8]; 8]> = requests.words(&bytes[carried.len..]).collect();
                    request(session, store, world, &words, out, wrote);
                    carried.requests += 1;
                }
                carried.len += len;
                if session.ends {
                    return Carried { len: bytes.len(), ends: true, ..carried };
                }
                if out.len() - sent > out_pause(world) {
                    return carried;
                }
            }
        }
    }
}

/// What a request may have.
fn limits(world: &World, authenticated: bool) -> Limits {
    let all = Limits {
        word_len_max: world.settings.word_len_max,
        request_len_max: world.settings.request_len_max,
        ..Limits::REDIS
    };
    if authenticated { all } else { all.unauthenticated() }
}

/// Replies that may wait for a client before its next request is carried out.
fn out_pause(world: &World) -> usize {
    let most = world.settings.buffers_max;
    if world.buffers > most / 2 { OUT_PAUSE_MIN } else { world.settings.output_pause }
}

/// Carries out one request of a client.
fn request(
    session: &mut Session,
    store: &mut Store,
    world: &mut World,
    args: Args<'_>,
    out: &mut Vec<u8>,
    wrote: &mut bool,
) {
    let before = store.dirty;
    let protocol = session.protocol;
    // What waits for the client may be as much again: then it is cut off. And all buffers together have a bound.
    let left = world.settings.buffers_max.saturating_sub(world.buffers).max(OUT_PAUSE_MIN);
    let len_max = out.len() + world.settings.reply_len_max().min(left);
    let mut context = Context { store, session, world, instead: None };
    carry_out(&mut context, args, &mut Writer::bounded(out, protocol, len_max));
    if store.dirty != before {
        *wrote = true;
        world.durable.end_frame(store.now());
        world.tell_watchers(store);
    }
}
