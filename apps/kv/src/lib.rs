//! A server for Redis and memcached clients whose data may be larger than memory (PD3 8, after Garnet).
//!
//! A bounded part of the strings, hashes, lists, sets and sorted sets is in local memory, and the rest in far
//! memory. Key functions: [`run`], the command `farmem kv`; [`Kv::start`], the same in a program.
//! `docs/kv.md` lists what differs from Redis.
//!
//! ```text
//!   connections -- requests --> commands --> index --> log: tail here | chunks in far memory
//!   (one epoll)                          \-> append log, before replies are sent
//! ```

mod acl;
mod activity;
mod args;
mod clock;
mod command;
mod connection;
mod durable;
mod failure;
mod glob;
mod guesses;
mod io_threads;
mod kv;
mod memcached;
mod offline;
mod operator;
mod recovery;
mod resident;
mod saving;
mod server;
mod session;
mod settings;
mod slowlog;
mod statistics;
mod store;
mod stream;
mod tls;
mod waiting;
mod world;

pub use args::{Args, FsyncPolicy};
pub use kv::{Kv, run};
pub use offline::{Exchange, MemoryUse, Offline};
pub use operator::KvError;
pub use server::{Server, Stop};
pub use tls::AuthClients;
