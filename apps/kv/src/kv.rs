//! The server with its data: how it starts, and how a command or a program runs it.
//!
//! Key type: [`Kv`].

use crate::args::Args;
use crate::connection::ClientKind;
use crate::durable::{Durable, chance};
use crate::io_threads::IoThreads;
use crate::operator::{KvError, say};
use crate::server::{Server, Stop};
use crate::store::{Far, PATIENCE, Store};
use crate::world::World;
use crate::{clock, recovery};
use farmem::{ClientOptions, Rack};
use farmem_workload::Failure;
use std::io;

/// A server with its data, in the thread that made it.
#[derive(Debug)]
pub struct Kv {
    store: Store,
    world: World,
    server: Server,
    io_threads: IoThreads,
}

impl Kv {
    /// Opens a rack, loads the saved data, and listens.
    ///
    /// # Errors
    ///
    /// [`KvError`]: no such rack, a port in use, a damaged file.
    pub fn start(args: &Args) -> Result<Self, KvError> {
        let settings = args.settings()?;
        let rack = match &args.rack {
            Some(file) => Rack::open(file)?,
            None => Rack::embedded_with(args.nodes, (args.far / u64::from(args.nodes)) & !4095)?,
        };
        let server = Server::listen(&args.ports()?).map_err(KvError::Listen)?;
        let local = usize::try_from(args.local)
            .map_err(|_| KvError::Settings("--local is more than an address has".into()))?;
        let durable = match &args.dir {
            Some(dir) => Durable::open(dir, args.appendonly, args.sync())
                .map_err(|error| KvError::Dir { dir: dir.clone(), error })?,
            None => Durable::none(),
        };
        let system = |error| KvError::Settings(format!("no chance from /dev/urandom: {error}"));
        let client = |domain: &str| {
            rack.client_with(domain, ClientOptions { patience: Some(PATIENCE), ..ClientOptions::default() })
        };
        let far = match durable.domain(&args.domain) {
            None => Far::new(client(&args.domain)?),
            Some(Err(error)) => {
                return Err(KvError::Dir { dir: args.dir.clone().unwrap_or_default(), error });
            }
            // All memory of this domain belongs to an earlier process, which has ended: no other process has
            // the directory.
            Some(Ok(domain)) => {
                let mut far = Far::new(client(&domain)?);
                let freed = far.free_earlier(&domain)?;
                if freed > 0 {
                    say(&format!("far memory of an earlier process was freed: {freed} allocations"));
                }
                far
            }
        };
        let secret = (chance().map_err(system)?, chance().map_err(system)?);
        let mut store = Store::new(far, local, secret, chance().map_err(system)?);
        store.memory.data_max = usize::try_from(args.maxmemory).unwrap_or(usize::MAX);
        store.memory.policy = args.policy();
        let mut world = World::new(settings, durable);
        world.meter.measures = args.rack.is_some();
        world.measure(&store);
        if let Some(file) = &args.aclfile {
            world.acl.use_file(file).map_err(|why| KvError::Settings(format!("--aclfile: {why}")))?;
        }
        // Requests in the log were accepted once, so no smaller bound applies to them now.
        let bounds = std::mem::replace(&mut world.settings.word_len_max, usize::MAX);
        let loaded =
            recovery::load(&mut store, &mut world).map_err(|error| KvError::Load(error.to_string()))?;
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
        check_local(&mut store, &mut world)?;
        let io_threads = IoThreads::new(args.threads())
            .map_err(|error| KvError::Settings(format!("--io-threads: {error}")))?;
        Ok(Self { store, world, server, io_threads })
    }

    /// Returns the address of the first port.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn address(&self) -> io::Result<std::net::SocketAddr> {
        self.server.address()
    }

    /// Returns the address of the memcached port, if there is one.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn memcached_address(&self) -> io::Result<Option<std::net::SocketAddr>> {
        self.server.address_of(ClientKind::Memcached, false)
    }

    /// Returns the address of the memcached port over TLS, if there is one.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn memcached_tls_address(&self) -> io::Result<Option<std::net::SocketAddr>> {
        self.server.address_of(ClientKind::Memcached, true)
    }

    /// Returns the address of the Redis port over TLS, if there is one.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn tls_address(&self) -> io::Result<Option<std::net::SocketAddr>> {
        self.server.address_of(ClientKind::Redis, true)
    }

    /// Returns a handle that ends the server.
    #[must_use]
    pub fn stopper(&self) -> Stop {
        self.server.stopper()
    }

    /// Serves until the server is stopped.
    ///
    /// # Errors
    ///
    /// [`KvError`] when the system cannot wait for connections, or the data cannot be written at the end.
    pub fn serve(mut self) -> Result<(), KvError> {
        self.server.serve(&mut self.store, &mut self.world, self.io_threads)
    }
}

/// Bytes that the process takes in addition while it serves: buffers of clients and of READs.
const SERVING: usize = 8 << 20;

/// Refuses a start with less local memory than the process, the index and a short log take, because no write
/// would succeed.
fn check_local(store: &mut Store, world: &mut World) -> Result<(), KvError> {
    world.measure(store);
    world.settle(store);
    if !store.memory.is_full {
        return Ok(());
    }
    let keys = store.key_count();
    Err(KvError::Settings(format!(
        "--local {} is too little: this process takes {} bytes without data, and the index of {keys} keys {}; give it {}MiB at least",
        store.memory.local,
        world.other,
        store.index_bytes(),
        (store.least_local() + SERVING).div_ceil(1 << 20)
    )))
}

/// Serves until a signal or `SHUTDOWN` ends the server.
///
/// # Errors
///
/// [`Failure`] when there is no such rack, the port is in use, or the saved data are damaged.
pub fn run(args: &Args) -> Result<(), Failure> {
    let failed = |error: KvError| match error {
        KvError::Far(error) => error.into(),
        error => Failure::new(error.to_string(), ""),
    };
    // Freed memory goes back to the system, because --local counts all resident memory. The result is false for
    // allocators other than glibc's, whose memory is not returned.
    let _other_allocators_are_left = farmem::allocator::return_large_blocks();
    let kv = Kv::start(args).map_err(failed)?;
    let (stop, address) = (kv.stopper(), kv.address());
    farmem_workload::on_terminate(move || stop.stop())
        .map_err(|error| Failure::new(format!("cannot catch signals: {error}"), ""))?;
    let address = address.map_err(|error| Failure::new(error.to_string(), ""))?;
    say(&format!(
        "ready to accept connections at {address}; at most {} MiB of local memory",
        args.local >> 20
    ));
    kv.serve().map_err(failed)
}
