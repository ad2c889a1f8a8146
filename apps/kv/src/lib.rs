//! A server for clients of Redis and memcached whose data may be larger than memory (PD3 8, after Garnet): strings, hashes, lists, sets and sorted sets, of which a bounded part is in this
//! machine's memory and the rest in far memory.
//!
//! Key calls: [`run`], the command `farmem kv`; [`Kv::start`], the same in a program. What Redis has and this has not is in `docs/kv.md`.
//!
//! ```text
//!   connections -- requests --> commands --> index --> log: tail here | chunks in far memory
//!   (one epoll)                          \-> append log, before replies are sent
//! ```

mod acl;
mod args;
mod clock;
mod command;
mod connection;
mod durable;
mod failure;
mod guesses;
mod io_threads;
mod memcached;
mod offline;
mod resident;
mod saving;
mod server;
mod session;
mod store;
mod stream;
mod tls;
mod waiting;
mod world;

pub use args::{Args, FsyncPolicy, run};
pub use offline::{Holds, Offline, Told};
pub use server::{Server, Stop};
pub use tls::AuthClients;

use connection::Speaks;
use durable::Durable;
use farmem::Rack;
use io_threads::Crew;
use std::io;
use std::path::PathBuf;
use store::{Far, Store};
use world::World;

/// Why there is no server, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The port cannot be had.
    #[error("cannot listen: {0}; choose another --port or --bind")]
    Listen(#[source] io::Error),
    /// The system does not say which connections have something.
    #[error("cannot wait for connections: {0}")]
    Poll(#[source] io::Error),
    /// Far memory does not answer.
    #[error(transparent)]
    Far(#[from] farmem::Error),
    /// The directory cannot be used.
    #[error("{}: {error}", dir.display())]
    Dir {
        /// Which.
        dir: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// What the directory has is damaged, or is more than there is room for.
    #[error("{0}")]
    Load(String),
    /// The last state could not be written.
    #[error("the data could not be saved to {}: {error}", dir.display())]
    Save {
        /// Where.
        dir: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// Settings that do not go together.
    #[error("{0}")]
    Settings(String),
}

/// A server with its data, in the thread that made it.
#[derive(Debug)]
pub struct Kv {
    store: Store,
    world: World,
    server: Server,
    crew: Crew,
    measured: bool,
}

impl Kv {
    /// Opens a rack, reads what was saved, and listens.
    ///
    /// # Errors
    /// [`KvError`]: no such rack, a port in use, a damaged file.
    pub fn start(args: &Args) -> Result<Self, KvError> {
        let settings = args.settings()?;
        let rack = match &args.rack {
            Some(file) => Rack::open(file)?,
            None => Rack::embedded_with(args.nodes, (args.far / u64::from(args.nodes)) & !4095)?,
        };
        let server = Server::listen(&args.doors()?).map_err(KvError::Listen)?;
        let local = usize::try_from(args.local)
            .map_err(|_| KvError::Settings("--local is more than an address has".into()))?;
        let durable = match &args.dir {
            Some(dir) => Durable::open(dir, args.appendonly, args.sync())
                .map_err(|error| KvError::Dir { dir: dir.clone(), error })?,
            None => Durable::none(),
        };
        let system = |error| KvError::Settings(format!("no chance from /dev/urandom: {error}"));
        let far = match durable.domain(&args.domain) {
            None => Far::new(rack.client(&args.domain)?),
            Some(Err(error)) => {
                return Err(KvError::Dir { dir: args.dir.clone().unwrap_or_default(), error });
            }
            // All that is in this domain is of a process before this one, which has ended: nobody else has the directory.
            Some(Ok(domain)) => {
                let mut far = Far::new(rack.client(&domain)?);
                let freed = far.free_earlier(&domain)?;
                if freed > 0 {
                    say(&format!("far memory of an earlier process was freed: {freed} allocations"));
                }
                far
            }
        };
        let secret = (durable::chance().map_err(system)?, durable::chance().map_err(system)?);
        let mut store = Store::new(far, local, secret, durable::chance().map_err(system)?);
        store.memory.data_max = usize::try_from(args.maxmemory).unwrap_or(usize::MAX);
        store.memory.policy = args.policy();
        let mut world = World::new(settings, durable);
        if let Some(file) = &args.aclfile {
            world.acl.use_file(file).map_err(|why| KvError::Settings(format!("--aclfile: {why}")))?;
        }
        // What is in the log was taken once: whoever reads it has no smaller bounds.
        let bounds = std::mem::replace(&mut world.settings.word_len_max, usize::MAX);
        let loaded =
            durable::load(&mut store, &mut world).map_err(|error| KvError::Load(error.to_string()))?;
        world.settings.word_len_max = bounds;
        world.durable.last_save = clock::wall_clock() / 1000;
        if let Some((bytes, file)) = &loaded.torn {
            say(&format!(
                "the log ended in the middle of a request: {bytes} bytes were cut off, and are in {file}; they were not acknowledged as on the disk"
            ));
        }
        if world.durable.dir().is_some() {
            say(&format!(
                "{} keys of a snapshot and {} requests of the log were read",
                loaded.keys, loaded.requests
            ));
        }
        store.set_now(clock::wall_clock().max(loaded.last));
        let crew =
            Crew::new(args.threads()).map_err(|error| KvError::Settings(format!("--io-threads: {error}")))?;
        Ok(Self { store, world, server, crew, measured: args.rack.is_some() })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<std::net::SocketAddr> {
        self.server.address()
    }

    /// Where it listens for memcached's clients, if it does.
    ///
    /// # Errors
    /// The system's.
    pub fn memcached_address(&self) -> io::Result<Option<std::net::SocketAddr>> {
        self.server.address_of(Speaks::Memcached, false)
    }

    /// Where it listens for memcached's clients over TLS, if it does.
    ///
    /// # Errors
    /// The system's.
    pub fn memcached_tls_address(&self) -> io::Result<Option<std::net::SocketAddr>> {
        self.server.address_of(Speaks::Memcached, true)
    }

    /// Where it listens for clients over TLS, if it does.
    ///
    /// # Errors
    /// The system's.
    pub fn tls_address(&self) -> io::Result<Option<std::net::SocketAddr>> {
        self.server.address_of(Speaks::Redis, true)
    }

    /// How it is ended.
    #[must_use]
    pub fn stopper(&self) -> Stop {
        self.server.stopper()
    }

    /// Serves until it is ended.
    ///
    /// # Errors
    /// [`KvError`] when connections cannot be waited for, or the end cannot be written.
    pub fn serve(mut self) -> Result<(), KvError> {
        self.server.serve(&mut self.store, &mut self.world, self.crew, self.measured)
    }
}

/// Says something to whoever runs the server.
#[expect(clippy::print_stderr, reason = "a server says what happens to it")]
pub(crate) fn say(text: &str) {
    eprintln!("farmem kv: {text}");
}
