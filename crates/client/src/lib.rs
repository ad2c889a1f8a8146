//! A rack as a program on one machine uses it: its description, the processes of its roles, and clients with verbs, traversals and tasks.
//!
//! Key types: [`Rack`], made by [`Rack::embedded`] or opened from its description ([`RackConfig`]); [`Client`], one program's access in one
//! domain; [`FarMemory`], what structures ask of far memory; [`task`], many operations side by side; [`serve`], the roles as processes.
//!
//! The roles decide; this crate carries their actions to a link, to the control plane's API, and back. Code that makes a host of its own
//! (windows, shared spaces, the pager of programs) finds what it needs in [`host_parts`].

mod allocations;
mod client;
pub mod config;
mod control_rpc;
pub mod dispatch;
mod embedded;
mod error;
mod far_memory;
pub mod host_parts;
pub mod iterator;
mod link;
mod lock;
mod look_up;
pub mod manage;
mod migrate;
mod named;
mod path;
mod rack;
mod renewals;
pub mod serve;
mod slots;
pub mod task;

pub use client::{Client, Completed, MESSAGE_MAX, Through, ThroughMemory, Ticket, Traversal, Vma};
pub use config::{
    DpuCaching, DpuForward, DpuSection, Execution, IndexConfig, Placement, Prefetch, RackConfig, Transport,
    Waiting,
};
pub use dispatch::{Dispatched, Policy, Profile, Site};
pub use error::{Error, TraversalStop};
pub use far_memory::FarMemory;
pub use farmem_control::api;
pub use farmem_host::{Answer, Op, REGION_DATA_MAX, Traversed};
pub use farmem_link::{Clock, LinkProfile, ProfileError, allocator, doctor, signals};
pub use farmem_machine::{Lender, Loan, Rng};
pub use farmem_transport::rc::{Landing, Origin, Spot, Stretch, Work as Verb};
pub use farmem_traversal::Program;
pub use farmem_wire::message::PAGE_LEN;
pub use farmem_wire::{NodeId, UDP_PORT, VirtAddr};
pub use link::BUILD;
pub use lock::LockWord;
pub use look_up::{Lines, LookUp, LookedUp};
pub use migrate::{Moved, migrate};
pub use named::{Named, NamedLock, OpenNamed};
pub use rack::{ClientOptions, Rack, home_of};
pub use task::{Next, OpQueue, Task, TaskStats};
