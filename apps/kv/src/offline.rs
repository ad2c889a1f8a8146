//! The server without a network: any bytes in, their replies out.
//!
//! Key type: [`Offline`]. It is for tests that try what a connection may send: commands, their store and their far memory are the server's own.

use crate::connection::{Reading, Speaks, carry_out_of};
use crate::durable::Durable;
use crate::guesses::Origin;
use crate::session::Session;
use crate::store::{Far, Store};
use crate::world::World;
use crate::{Args, KvError};
use farmem::Rack;

/// Milliseconds since 1970 at which commands are carried out.
const NOW: i64 = 1_800_000_000_000;

/// A server with its data and a rack, in the thread that made it.
#[derive(Debug)]
pub struct Offline {
    store: Store,
    args: Args,
    _rack: Rack,
}

/// What came of a connection's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Requests that were carried out.
    pub requests: usize,
    /// Their replies, and behind them why the connection ends, if it was told so.
    pub replies: Vec<u8>,
    /// The connection ends: by `QUIT` and its like, or because of bytes that are no request.
    pub ends: bool,
    /// Bytes at the end that are no whole request.
    pub left: usize,
}

/// What the server holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holds {
    /// Keys, of all databases.
    pub keys: usize,
    /// Bytes of records that are wanted, here and far.
    pub records: usize,
    /// Bytes of collections in use.
    pub collections: usize,
    /// Bytes of local memory, all of it.
    pub here: usize,
}

impl Offline {
    /// A server as `args` describe it, with a rack in this process and nothing on the disk; commands that chance decides repeat.
    ///
    /// # Errors
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

    /// Carries out what a new connection sends, in pieces of `piece` bytes.
    ///
    /// # Errors
    /// [`KvError`]: settings that do not go together.
    ///
    /// # Panics
    /// When `piece` is 0.
    pub fn talk(&mut self, bytes: &[u8], piece: usize) -> Result<Told, KvError> {
        self.converse(bytes, piece, Speaks::Redis)
    }

    fn converse(&mut self, bytes: &[u8], piece: usize, speaks: Speaks) -> Result<Told, KvError> {
        let mut reading = Reading::new(speaks);
        let mut world = World::new(self.args.settings()?, Durable::none());
        self.store.memory.data_max = usize::try_from(self.args.maxmemory).unwrap_or(usize::MAX);
        self.store.memory.policy = self.args.policy();
        self.store.set_now(NOW);
        let mut session = Session::new(1, "offline".into(), Origin::Nobody, world.acl.default_user());
        // Nobody else makes the key that it would wait for.
        session.patience = crate::session::Patience::None;
        let (mut input, mut replies) = (Vec::new(), Vec::new());
        let mut told = Told { requests: 0, replies: Vec::new(), ends: false, left: 0 };
        for piece in bytes.chunks(piece) {
            input.extend_from_slice(piece);
            while !told.ends {
                let (mut wrote, data) = (false, (&mut self.store, &mut world));
                let replies_and_sent = (&mut replies, 0);
                let carried =
                    carry_out_of(&mut session, &mut reading, data, &input, replies_and_sent, &mut wrote);
                input.drain(..carried.len);
                told.requests += carried.requests;
                told.ends = carried.ends;
                self.store.settle();
                // What a client is sent leaves the buffer.
                told.replies.append(&mut replies);
                if carried.len == 0 {
                    break;
                }
            }
        }
        world.unwatch(&mut self.store, &mut session);
        told.left = input.len();
        Ok(told)
    }

    /// Carries out what a new client of memcached sends, in pieces of `piece` bytes.
    ///
    /// # Errors
    /// [`KvError`]: settings that do not go together.
    ///
    /// # Panics
    /// When `piece` is 0.
    pub fn talk_memcached(&mut self, bytes: &[u8], piece: usize) -> Result<Told, KvError> {
        self.converse(bytes, piece, Speaks::Memcached)
    }

    /// What the server holds now.
    #[must_use]
    pub fn holds(&self) -> Holds {
        let databases = 0..u8::try_from(crate::store::SPACES).expect("few databases");
        Holds {
            keys: databases.map(|db| self.store.len(db)).sum(),
            records: self.store.log_ref().live(),
            collections: self.store.live_bytes(),
            here: self.store.here_bytes(),
        }
    }
}
