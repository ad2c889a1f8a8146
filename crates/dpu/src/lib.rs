//! The DPU beside a host (SODA): caches far memory for the host's processes, prefetches, and decides when that pays.
//! Pure.
//!
//! Key type: [`Dpu`]. The driver reports requests of processes and ends of transfers, and the DPU returns actions
//! ([`Action`]), in order. Like the page cache ([`farmem_paging`]), the DPU sees no byte, no process and no network:
//! the driver copies bytes, and reads memory nodes through its host role.
//!
//! ```text
//!   process -- read a page --> in the static cache? ---------------------------> copied from there
//!                              in the cache table, or on its way there? -------> copied from its slot
//!                              else: READ, from the node straight to the process;  prefetch: its neighbours come into a slot
//!           -- write a page -> WRITE at the node; what is cached of the page is not good before the node has it
//! ```
//!
//! **Why no page is stale.** An object has one writer, or any number of readers (SODA III: "we restrict SODA writable
//! mappings to single clients only"), and all of a writer's requests come through one DPU. So every write to an
//! object that is cached here goes through here. A page is served only while it is valid: its bytes arrived, no write
//! is in flight, and every later write was put into the slot too.
//!
//! Driver: the carrier (`crates/dpu-server`, `carrier.rs`). A window in its own process (`crates/memory`,
//! `window/through.rs`) has one object and no static memory. The DPU's own process opens and closes objects of many
//! processes, fixes ranges, and takes policies.
//!
//! The DPU does not retry (the page cache of the asking process does), does not know addresses, and does not wait.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod accesses;
pub mod break_even;
pub mod changes;
mod dpu;
mod fixed;
mod leap;
pub mod parse;
mod policy;
pub mod prefetcher;
pub mod reassembly;
mod recent;
mod requests;
pub mod table;
pub mod view;

pub use dpu::{ADVISED_MAX, Dpu};
pub use leap::Leap;
pub use policy::{Evidence, Neighbours, Nothing, PageAccess, Policy};
pub use recent::{RECENT_LEN, Recent};
pub use requests::{Action, Asker, Caching, Config, Object, Read, Stats, Write};
pub use table::{Slot, TableConfig};

/// A page of an object in far memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId {
    /// The object, by the driver's number.
    pub object: u32,
    /// The page's number in the object, from 0.
    pub page: u64,
}

/// An entry of the cache table: a run of neighbouring pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryId {
    /// The object.
    pub object: u32,
    /// The entry's number in the object, from 0.
    pub entry: u64,
}
