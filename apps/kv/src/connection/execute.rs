//! The loop that executes a connection's requests, for both protocols.
//!
//! Key function: [`execute_input`]. The loop needs no socket: tests and fuzzers pass bytes
//! ([`crate::Offline`]).

use super::{ClientKind, out_pause, reply_room};
use crate::command::{Args, Context, carry_out, has_password, want};
use crate::memcached;
use crate::session::Session;
use crate::store::Store;
use crate::waiting;
use crate::world::World;
use farmem_resp::{Limits, Parsed, Protocol, Requests, Writer};
use smallvec::SmallVec;

/// The parser of a connection.
#[derive(Debug)]
pub(crate) enum Parser {
    Redis(Requests),
    Memcached(memcached::Reader),
}

impl Parser {
    /// Returns a parser that has read nothing.
    pub(crate) fn new(kind: ClientKind) -> Self {
        match kind {
            ClientKind::Redis => Self::Redis(Requests::new()),
            ClientKind::Memcached => Self::Memcached(memcached::Reader::default()),
        }
    }

    /// Returns the bytes that the parser keeps besides the input. The positions of many short words take more
    /// than the words.
    pub(super) fn bytes(&self) -> usize {
        match self {
            // Twice: the execution of a request has a list of its words, too.
            Self::Redis(requests) => 2 * requests.bytes(),
            Self::Memcached(_) => 0,
        }
    }

    /// Appends the error reply by which a connection ends.
    pub(super) fn refuse(&self, text: &str, protocol: Protocol, out: &mut Vec<u8>) {
        match self {
            Self::Redis(_) => Writer::new(out, protocol).error(text),
            Self::Memcached(_) => memcached::refuse_text(text, out),
        }
    }

    /// Notes the values that the requests at the start of `input` read, until `most` bytes are wanted.
    /// Executes nothing.
    pub(super) fn want_all(&self, input: &[u8], (db, most): (u8, usize), store: &mut Store, world: &World) {
        if matches!(self, Self::Memcached(_)) {
            return memcached::want_all(store, input, world.settings.word_len_max, most);
        }
        let (mut requests, mut at) = (Requests::new(), 0);
        while let Parsed::Whole { len } = requests.parse(&input[at..], &limits(world, true)) {
            let words: SmallVec<[&[u8]; 8]> = requests.words(&input[at..]).collect();
            at += len;
            if !words.is_empty() && !want(store, db, &words) || store.wanted_bytes() > most {
                return;
            }
        }
    }
}

/// The result of executing a connection's bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Executed {
    /// Bytes of the requests that are done.
    pub(crate) len: usize,
    /// Requests that are done.
    pub(crate) requests: usize,
    /// The connection reads nothing more.
    pub(crate) ends: bool,
    /// The least length of the next request; 0 if unknown.
    pub(crate) least: usize,
    /// Requests are left that have to wait: for room in the replies, for a key, or for a password's delay.
    pub(crate) paused: bool,
}

/// The first item of the input.
enum Step {
    /// Not a whole request yet.
    More { least: usize },
    /// `len` bytes are done.
    Done { len: usize, is_request: bool },
    /// A password that has to wait. Nothing of it is done.
    Held,
    /// Not a request. The error reply is written.
    Broken,
}

/// Executes the requests at the start of `bytes`, while the replies in `out` stay within their bound; the
/// first `sent` bytes of `out` are sent.
pub(crate) fn execute_input(
    session: &mut Session,
    parser: &mut Parser,
    (store, world): (&mut Store, &mut World),
    bytes: &[u8],
    (out, sent): (&mut Vec<u8>, usize),
    wrote: &mut bool,
) -> Executed {
    let mut executed = Executed::default();
    loop {
        let rest = &bytes[executed.len..];
        let step = match parser {
            Parser::Redis(requests) => next(session, requests, (store, world), rest, out, wrote),
            Parser::Memcached(reader) => next_of_memcached(session, reader, (store, world), rest, out, wrote),
        };
        match step {
            Step::More { least } => return Executed { least, ..executed },
            Step::Held => {
                if let Parser::Redis(requests) = parser {
                    requests.forget();
                }
                return Executed { paused: true, ..executed };
            }
            Step::Broken => return Executed { len: bytes.len(), ends: true, ..executed },
            Step::Done { len, is_request } => {
                executed.len += len;
                executed.requests += usize::from(is_request);
            }
        }
        if session.ends {
            return Executed { len: bytes.len(), ends: true, ..executed };
        }
        if out.len() - sent > out_pause(world) || session.waiting_bytes.is_some() || session.is_held() {
            // The next request may be long in coming, so the positions of this one's words are not kept.
            if let Parser::Redis(requests) = parser {
                requests.forget();
            }
            return Executed { paused: executed.len < bytes.len(), ..executed };
        }
    }
}

fn next(
    session: &mut Session,
    requests: &mut Requests,
    (store, world): (&mut Store, &mut World),
    bytes: &[u8],
    out: &mut Vec<u8>,
    wrote: &mut bool,
) -> Step {
    match requests.parse(bytes, &limits(world, session.authenticated)) {
        Parsed::More { least } => Step::More { least },
        Parsed::Broken(fault) => {
            Writer::new(out, session.protocol).error(&format!("ERR Protocol error: {fault}"));
            Step::Broken
        }
        Parsed::Whole { len } => {
            let is_request = !requests.is_empty();
            if is_request {
                let words: SmallVec<[&[u8]; 8]> = requests.words(bytes).collect();
                if is_held(session, world, || has_password(&words)) {
                    return Step::Held;
                }
                request(session, (store, world), &words, out, wrote);
            }
            Step::Done { len, is_request }
        }
    }
}

fn next_of_memcached(
    session: &mut Session,
    reader: &mut memcached::Reader,
    (store, world): (&mut Store, &mut World),
    bytes: &[u8],
    out: &mut Vec<u8>,
    wrote: &mut bool,
) -> Step {
    let all = world.settings.word_len_max;
    let value_len_max =
        if session.authenticated { all } else { Limits::REDIS.unauthenticated().word_len_max };
    match reader.next(bytes, value_len_max) {
        memcached::Next::More { least } => Step::More { least },
        memcached::Next::Passed { len } => Step::Done { len, is_request: false },
        memcached::Next::Broken(text) => {
            memcached::refuse_text(text, out);
            Step::Broken
        }
        memcached::Next::Binary { operation, opaque } => {
            memcached::refuse_binary(operation, opaque, out);
            Step::Broken
        }
        memcached::Next::Whole { line, block, len } => {
            let is_authenticated = session.authenticated;
            if is_held(session, world, || !is_authenticated && matches!(block, memcached::Block::Is(_))) {
                return Step::Held;
            }
            let before = store.dirty;
            let mut context = Context { store, session, world, instead: None };
            memcached::carry_out(&mut context, line, block, out);
            settle(store, world, before, wrote);
            Step::Done { len, is_request: true }
        }
    }
}

/// Returns whether a request that may have a password has to wait, because wrong passwords recently came from
/// the client's address.
fn is_held(session: &mut Session, world: &mut World, has_password: impl FnOnce() -> bool) -> bool {
    if world.guesses.is_empty() || !has_password() {
        return false;
    }
    session.held_until = world.guesses.closed_until(session.origin, crate::world::now());
    world.stats.held_passwords += u64::from(session.held_until.is_some());
    session.held_until.is_some()
}

/// Returns the limits of a request.
fn limits(world: &World, authenticated: bool) -> Limits {
    let all = Limits {
        word_len_max: world.settings.word_len_max,
        request_len_max: world.settings.request_len_max,
        ..Limits::REDIS
    };
    if authenticated { all } else { all.unauthenticated() }
}

/// Executes one request of a client.
fn request(
    session: &mut Session,
    (store, world): (&mut Store, &mut World),
    args: Args<'_>,
    out: &mut Vec<u8>,
    wrote: &mut bool,
) {
    let before = store.dirty;
    let protocol = session.protocol;
    let len_max = out.len() + reply_room(world);
    let mut context = Context { store, session, world, instead: None };
    carry_out(&mut context, args, &mut Writer::bounded(out, protocol, len_max));
    if let Some(wait) = session.waits.take() {
        world.waiting.add(store, session, args, wait);
        world.follow_changes(store);
    }
    settle(store, world, before, wrote);
}

/// Ends the log frame of a request's changes, and tells watchers and waiting clients.
fn settle(store: &mut Store, world: &mut World, before: u64, wrote: &mut bool) {
    if store.dirty != before {
        *wrote = true;
        world.durable.end_frame(store.now());
        world.tell_watchers(store);
        waiting::serve(store, world);
    }
}
