//! Far memory for a rack of ordinary Linux machines.
//!
//! A [`Rack`] is one address space over many memory nodes. A [`Client`] reads, writes and runs traversals in it:
//!
//! ```
//! use farmem::Rack;
//!
//! let rack = Rack::embedded()?; // every role in this process: no sockets, no privileges
//! let mut client = rack.client("example")?;
//! let vma = client.allocate(1 << 20)?;
//! client.write(vma.base, b"far away")?;
//! let mut bytes = [0; 8];
//! client.read(vma.base, &mut bytes)?;
//! assert_eq!(&bytes, b"far away");
//! # Ok::<(), farmem::Error>(())
//! ```
//!
//! A rack of processes supports the same calls: [`Rack::open`] with the `rack.toml` that `farmem up` runs.
//!
//! Programs import this crate, which has no code of its own. Racks and clients come from `crates/client`,
//! windows and shared spaces from `crates/memory`, data structures from `crates/structures`.

pub use farmem_client::{
    Answer, BUILD, Client, ClientOptions, Completed, Dispatched, DpuCaching, DpuForward, DpuSection, Error,
    Execution, FarMemory, Lender, Lines, LinkProfile, Loan, LockWord, LookUp, LookedUp, Moved, Named,
    NamedLock, Next, NodeId, Op, OpQueue, OpenNamed, PAGE_LEN, PayloadSink, Placement, Policy, Prefetch,
    Profile, ProfileError, Program, REGION_DATA_MAX, Rack, RackConfig, Rng, SinkPart, Site, Task, TaskStats,
    Through, Ticket, Transport, Traversal, TraversalStop, Traversed, UDP_PORT, Verb, VirtAddr, Vma, Waiting,
    allocator, api, config, dispatch, doctor, forward_far_memory, home_of, iterator, manage, migrate, serve,
    signals, task,
};
pub use farmem_dpu_server as dpu;
pub use farmem_memory::{ShareOptions, ShareStats, SharedSpace, process, window, worker};
pub use farmem_structures::{
    BLinkTree, BTree, FlatMap, HashTable, Heap, Layout, List, PageStore, RecordTree, Series, Table,
    blink_tree, btree, flat_map, form, hash_table, heap, list, pages, record_tree, series, table,
};

/// Preventive prefetching: what clients of this program ask for is fetched before the program asks (PD3).
pub mod prefetch {
    pub use farmem_dpu_server::{AtDpu, AtDpuOptions};
    pub use farmem_prefetch::*;
}

/// The Rust examples of the README and of the tutorials, run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/tutorials/first-traversal.md")]
struct ExamplesOfPages;
