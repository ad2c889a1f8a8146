//! The server without a network, for tests that feed a connection arbitrary bytes.
//!
//! Key type: [`Offline`]. Commands, store and far memory are those of the server.

use crate::args::Args;
use crate::connection::{ClientKind, Parser, execute_input};
use crate::durable::Durable;
use crate::guesses::GuessSource;
use crate::operator::KvError;
use crate::session::{Patience, Session};
use crate::store::{Far, Store};
use crate::world::World;
use farmem::Rack;

/// The time at which commands run, in milliseconds since 1970.
const NOW: i64 = 1_800_000_000_000;

/// A server with its data and a rack, in the calling thread.
#[derive(Debug)]
pub struct Offline {
    store: Store,
    args: Args,
    _rack: Rack,
}

/// The result of a connection's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// Requests that were executed.
    pub requests: usize,
    /// The replies, and the message by which the connection ends, if there is one.
    pub replies: Vec<u8>,
    /// The connection ends: by `QUIT` and its like, or because of bytes that are not a request.
    pub ends: bool,
    /// Bytes at the end that are not a whole request.
    pub left: usize,
}

/// The memory that the server holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    /// Keys of all databases.
    pub keys: usize,
    /// Bytes of live records, local and far.
    pub records: usize,
    /// Bytes of collections in use.
    pub collections: usize,
    /// Bytes of local memory.
    pub here: usize,
}

impl Offline {
    /// Starts a server with the settings of `args`, a rack in this process, and no files. Random decisions
    /// repeat.
    ///
    /// # Errors
    ///
    /// [`KvError`]: settings that do not go together, or no memory for the rack.
    pub fn new(args: &Args) -> Result<Self, KvError> {
        args.settings()?;
        let rack = Rack::embedded_with(args.nodes, (args.far / u64::from(args.nodes)) & !4095)?;
        let client = rack.client(&args.domain)?;
        let local = usize::try_from(args.local)
            .map_err(|_| KvError::Settings("--local is more than an address has".into()))?;
        let store = Store::new(Far::new(client), local, (1, 2), 7);
        Ok(Self { store, args: args.clone(), _rack: rack })
    }

    /// Executes the bytes of a new Redis connection, which arrive in pieces of `piece` bytes.
    ///
    /// # Errors
    ///
    /// [`KvError`]: settings that do not go together.
    ///
    /// # Panics
    /// When `piece` is 0.
    pub fn talk(&mut self, bytes: &[u8], piece: usize) -> Result<Exchange, KvError> {
        self.converse(bytes, piece, ClientKind::Redis)
    }

    fn converse(&mut self, bytes: &[u8], piece: usize, kind: ClientKind) -> Result<Exchange, KvError> {
        let mut parser = Parser::new(kind);
        let mut world = World::new(self.args.settings()?, Durable::none());
        self.store.memory.data_max = usize::try_from(self.args.maxmemory).unwrap_or(usize::MAX);
        self.store.memory.policy = self.args.policy();
        self.store.set_now(NOW);
        let mut session = Session::new(1, "offline".into(), GuessSource::Server, world.acl.default_user());
        // No other client makes the key that this one would wait for.
        session.patience = Patience::None;
        let (mut input, mut replies) = (Vec::new(), Vec::new());
        let mut told = Exchange { requests: 0, replies: Vec::new(), ends: false, left: 0 };
        for piece in bytes.chunks(piece) {
            input.extend_from_slice(piece);
            while !told.ends {
                // As in a turn of the server with far values: the requests that are parsed ahead are those that are
                // executed.
                if session.authenticated && !session.queues() {
                    parser.look_ahead(&input, &session, usize::MAX, (&mut self.store, &world));
                    self.store.fetch_wanted();
                }
                let (mut wrote, data) = (false, (&mut self.store, &mut world));
                let replies_and_sent = (&mut replies, 0);
                let executed =
                    execute_input(&mut session, &mut parser, data, &input, replies_and_sent, &mut wrote);
                input.drain(..executed.len);
                told.requests += executed.requests;
                told.ends = executed.ends;
                self.store.forget_ahead(true);
                self.store.settle();
                // Replies that are sent leave the buffer.
                told.replies.append(&mut replies);
                if executed.len == 0 {
                    break;
                }
            }
        }
        while self.store.is_reclaiming() {
            self.store.settle();
        }
        world.unwatch(&mut self.store, &mut session);
        told.left = input.len();
        Ok(told)
    }

    /// Executes the bytes of a new memcached connection, which arrive in pieces of `piece` bytes.
    ///
    /// # Errors
    ///
    /// [`KvError`]: settings that do not go together.
    ///
    /// # Panics
    /// When `piece` is 0.
    pub fn talk_memcached(&mut self, bytes: &[u8], piece: usize) -> Result<Exchange, KvError> {
        self.converse(bytes, piece, ClientKind::Memcached)
    }

    /// Returns the memory that the server holds now.
    #[must_use]
    pub fn memory_use(&self) -> MemoryUse {
        MemoryUse {
            keys: self.store.key_count(),
            records: self.store.log_ref().live(),
            collections: self.store.live_bytes(),
            here: self.store.here_bytes(),
        }
    }
}
