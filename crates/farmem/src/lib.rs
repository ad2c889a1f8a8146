//! Far memory for a rack of ordinary Linux machines.
//!
//! A [`Rack`] is one address space over many memory nodes. A [`Client`] reads, writes and runs traversals in it:
//!
//! ```
//! use farmem::Rack;
//!
//! let rack = Rack::embedded()?; // every role in this process: no sockets, no privileges
//! let mut client = rack.client("quickstart")?;
//! let vma = client.allocate(1 << 20)?;
//! client.write(vma.base, b"far away")?;
//! let mut bytes = [0; 8];
//! client.read(vma.base, &mut bytes)?;
//! assert_eq!(&bytes, b"far away");
//! # Ok::<(), farmem::Error>(())
//! ```
//!
//! The same calls work on a rack of processes: [`Rack::open`] with the `rack.toml` that `farmem up` runs.

mod allocations;
mod arena;
pub mod btree;
mod client;
pub mod config;
pub mod dispatch;
mod embedded;
mod error;
pub mod hash_table;
pub mod iterator;
pub mod list;
mod lock;
pub mod memory;
mod migrate;
pub mod pager;
mod path;
mod rack;
pub mod series;
pub mod serve;
mod shared;
mod slots;
pub mod task;
pub mod window;
pub mod ycsb;

pub use arena::Layout;
pub use btree::BTree;
pub use client::{Client, Completed, Ticket, Traversal, Vma};
pub use config::{Execution, Placement, Prefetch, RackConfig, Transport, Waiting};
pub use dispatch::{Dispatched, Policy, Profile, Way};
pub use error::{Error, TraversalStop};
pub use farmem_control::api;
pub use farmem_host::{Answer, Op, REGION_DATA_MAX, Traversed};
pub use farmem_io::{doctor, raw};
pub use farmem_machine::Rng;
pub use farmem_traversal::Program;
pub use farmem_wire::{NodeId, UDP_PORT, VirtAddr};
pub use hash_table::HashTable;
pub use list::List;
pub use lock::LockWord;
pub use memory::FarMemory;
pub use migrate::{Moved, migrate};
pub use rack::{ClientOptions, Rack, home_of};
pub use series::Series;
pub use shared::{ShareOptions, ShareStats, SharedSpace, process, worker};
pub use task::{Exchange, Next, Task, Took};
