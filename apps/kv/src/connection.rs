//! One connection: its bytes, requests and replies.

use crate::command::{Args, Context, carry_out};
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
    out: Vec<u8>,
    /// Bytes of `out` that are sent.
    sent: usize,
    /// The stream may have more to read.
    pub(crate) readable: bool,
    /// Since when much waits for the client.
    waits_since: Option<Instant>,
    pub(crate) last_heard: Instant,
    /// The client has closed its side.
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
            out: Vec::new(),
            sent: 0,
            readable: true,
            waits_since: None,
            last_heard: now,
            at_end: false,
            wrote: false,
            ends: false,
        }
    }

    /// Bytes of its buffers.
    pub(crate) fn bytes(&self) -> usize {
        self.input.capacity() + self.out.capacity()
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
                    self.readable = len == chunk.len();
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

    fn keep(&mut self, world: &World, bytes: &[u8]) {
        if bytes.is_empty() || self.ends {
            return;
        }
        let grows = (self.input.len() + bytes.len()).saturating_sub(self.input.capacity());
        let is_long = self.input.len() + bytes.len() > INPUT_MIN;
        if grows > 0 && is_long && world.buffers + self.input.capacity() + grows > world.settings.buffers_max
        {
            self.refuse("ERR this server has no room for more of this request: all connections' buffers are full; send it again, or start the server with a larger --local");
            return;
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
        let mut at = 0;
        loop {
            let all = Limits {
                word_len_max: world.settings.word_len_max,
                request_len_max: world.settings.request_len_max,
                ..Limits::REDIS
            };
            let limits = if self.session.authenticated { all } else { all.unauthenticated() };
            match self.requests.parse(&bytes[at..], &limits) {
                Parsed::More { .. } => return at,
                Parsed::Broken(fault) => {
                    self.refuse(&format!("ERR Protocol error: {fault}"));
                    return bytes.len();
                }
                Parsed::Whole { len } => {
                    if !self.requests.is_empty() {
                        let words: SmallVec<[&[u8]; 8]> = self.requests.words(&bytes[at..]).collect();
                        request(&mut self.session, store, world, &words, &mut self.out, &mut self.wrote);
                    }
                    at += len;
                    if self.session.ends {
                        self.ends = true;
                        return bytes.len();
                    }
                    if self.waiting() > out_pause(world) {
                        return at;
                    }
                }
            }
        }
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

    /// Nothing of this turn's replies is sent: what they acknowledge is not on the disk.
    pub(crate) fn take_replies_back(&mut self) {
        self.out.truncate(self.sent);
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
    let mut context = Context { store, session, world, instead: None };
    carry_out(&mut context, args, &mut Writer::new(out, protocol));
    if store.dirty != before {
        *wrote = true;
        world.durable.end_frame(store.now());
        world.tell_watchers(store);
    }
}
