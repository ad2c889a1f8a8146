//! The loop that executes a connection's requests, for both protocols.
//!
//! Key function: [`execute_input`]. The loop needs no socket: tests and fuzzers pass bytes
//! ([`crate::Offline`]).

use crate::command::execute::{execute, want};
use crate::command::server::has_password;
use crate::command::{Args, handlers, ready};
use crate::memcached::{execute as memcached, reply};
use crate::session::Session;
use crate::store::Store;
use crate::world::World;
use farmem_protocols::memcached::{Block, Parsed as ParsedMemcached, Requests as MemcachedRequests};
use farmem_protocols::resp::{Limits, Parsed, Protocol, Requests, Writer};
use smallvec::SmallVec;
use std::time::Instant;

/// The protocol of a port's clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientKind {
    Redis,
    Memcached,
}

impl ClientKind {
    /// Returns the reply for a client that is one too many.
    pub(crate) const fn full(self) -> &'static [u8] {
        match self {
            Self::Redis => b"-ERR max number of clients reached\r\n",
            Self::Memcached => b"ERROR Too many open connections\r\n",
        }
    }
}

/// The parser of a connection.
#[derive(Debug)]
pub(crate) enum Parser {
    Redis(Requests),
    Memcached(MemcachedRequests),
}

impl Parser {
    /// Returns a parser that has read nothing.
    pub(crate) fn new(kind: ClientKind) -> Self {
        match kind {
            ClientKind::Redis => Self::Redis(Requests::new()),
            ClientKind::Memcached => Self::Memcached(MemcachedRequests::default()),
        }
    }

    /// Returns the bytes that the parser keeps besides the input. The positions of many short words take more
    /// than the words.
    pub(super) fn bytes(&self) -> usize {
        match self {
            // Twice: the execution of a request has a list of its words, too.
            Self::Redis(requests) => 2 * requests.bytes(),
            Self::Memcached(requests) => requests.bytes(),
        }
    }

    /// Appends the error reply by which a connection ends.
    pub(super) fn refuse(&self, text: &str, protocol: Protocol, out: &mut Vec<u8>) {
        match self {
            Self::Redis(_) => Writer::new(out, protocol).error(text),
            Self::Memcached(_) => reply::refuse_text(text, out),
        }
    }

    /// Notes the values that the requests at the start of `input` read, until `most` bytes are wanted.
    /// Executes nothing. [`execute_input`] does not parse these requests again.
    pub(crate) fn look_ahead(
        &mut self,
        input: &[u8],
        session: &Session,
        most: usize,
        (store, world): (&mut Store, &World),
    ) {
        let limits = limits(world, session.authenticated);
        loop {
            let goes_on = match self {
                Self::Redis(requests) => {
                    let Some(from) = requests.parse_ahead(input, &limits) else { return };
                    let words: SmallVec<[&[u8]; 8]> = requests.words(&input[from..]).collect();
                    words.is_empty() || want(store, session.db, &words)
                }
                Self::Memcached(requests) => {
                    let Some(from) = requests.parse_ahead(input, limits.word_len_max) else { return };
                    memcached::want(store, &requests.words(&input[from..]))
                }
            };
            if !goes_on || store.wanted_bytes() > most {
                return;
            }
        }
    }

    /// Forgets the positions of words that nothing needs, because the next request may be long in coming.
    fn rest(&mut self) {
        if let Self::Redis(requests) = self
            && !requests.has_ahead()
        {
            requests.forget();
        }
    }

    /// Forgets the request that was parsed last and not executed, and those after it.
    fn forget(&mut self) {
        match self {
            Self::Redis(requests) => requests.forget(),
            Self::Memcached(requests) => *requests = MemcachedRequests::default(),
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
            Parser::Memcached(requests) => {
                next_of_memcached(session, requests, (store, world), rest, out, wrote)
            }
        };
        match step {
            Step::More { least } => return Executed { least, ..executed },
            Step::Held => {
                parser.forget();
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
        if out.len() - sent > world.out_pause() || session.waiting_bytes.is_some() || session.is_held() {
            parser.rest();
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
    requests: &mut MemcachedRequests,
    (store, world): (&mut Store, &mut World),
    bytes: &[u8],
    out: &mut Vec<u8>,
    wrote: &mut bool,
) -> Step {
    match requests.parse(bytes, limits(world, session.authenticated).word_len_max) {
        ParsedMemcached::More { least } => Step::More { least },
        ParsedMemcached::Passed { len } => Step::Done { len, is_request: false },
        ParsedMemcached::Broken(text) => {
            reply::refuse_text(text, out);
            Step::Broken
        }
        ParsedMemcached::Binary { operation, opaque } => {
            reply::refuse_binary(operation, opaque, out);
            Step::Broken
        }
        ParsedMemcached::Whole { len } => {
            let (words, block) = (requests.words(bytes), requests.block(bytes));
            let is_authenticated = session.authenticated;
            if is_held(session, world, || !is_authenticated && matches!(block, Block::Is(_))) {
                return Step::Held;
            }
            let before = store.dirty;
            memcached::execute(&mut handlers::context(store, session, world), &words, block, out);
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
    session.held_until = world.guesses.closed_until(session.origin, Instant::now());
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
    let len_max = out.len() + world.reply_room();
    let mut context = handlers::context(store, session, world);
    execute(&mut context, args, &mut Writer::bounded(out, protocol, len_max));
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
        ready::serve(store, world);
    }
}
