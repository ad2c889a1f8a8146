//! The library of a rack's users: the rack's description, the processes of its roles, and clients with verbs,
//! traversals and tasks.
//!
//! Key types: [`Rack`], created by [`Rack::embedded`] or opened from its description ([`RackConfig`]);
//! [`Client`], a program's access to one domain; [`FarMemory`], the interface of structures; [`task`],
//! concurrent operations; [`serve`], the roles as processes.
//!
//! The modules form layers, from the bottom up. A module uses only modules of lower layers:
//!
//! 1. Plain values: `error`, `policy`, `slots`, `operation`, `answers`, `allocations`, `window`, `opened`,
//!    `host_settings`; and [`config`], the description.
//! 2. Communication with the roles: `control_rpc` and `link` for running ones, `embedded` for those within
//!    this process, `path` for both; `renewals`, `manage` and `migrate`.
//! 3. [`FarMemory`], and [`Client`], which implements it.
//! 4. Features on top of clients: [`dispatch`], `named`, `look_up`, `lock`, [`iterator`], [`task`].
//! 5. [`Rack`], which creates clients; [`serve`]; `config::reach`, which tests a rack; and [`host_parts`].
//!
//! The roles make the decisions; this crate carries their actions to a link and to the control plane's API,
//! and back. Crates that implement a host of their own (windows, shared spaces, the pager of programs) use
//! [`host_parts`].

mod allocations;
mod answers;
mod client;
pub mod config;
mod control_rpc;
pub mod dispatch;
mod embedded;
mod error;
mod far_memory;
pub mod host_parts;
mod host_settings;
pub mod iterator;
mod link;
mod lock;
mod look_up;
pub mod manage;
mod migrate;
mod named;
mod opened;
mod operation;
mod path;
mod policy;
mod rack;
mod renewals;
pub mod serve;
mod slots;
pub mod task;
mod window;

pub use client::{Client, Through, ThroughMemory};
pub use config::{
    DpuCaching, DpuForward, DpuSection, Execution, IndexConfig, Placement, Prefetch, RackConfig, Transport,
    Waiting,
};
pub use error::{Error, TraversalStop};
pub use far_memory::FarMemory;
pub use farmem_control::api;
pub use farmem_host::{Answer, Op, REGION_DATA_MAX, Traversed};
pub use farmem_link::{Clock, LinkProfile, ProfileError, allocator, doctor, signals};
pub use farmem_machine::{Lender, Loan, Rng};
pub use farmem_transport::rc::{PayloadSink, PayloadSource, SinkPart, SourcePart, Work as Verb};
pub use farmem_traversal::Program;
pub use farmem_wire::message::PAGE_LEN;
pub use farmem_wire::{NodeId, UDP_PORT, VirtAddr};
pub use host_settings::{ClientOptions, home_of};
pub use link::BUILD;
pub use lock::LockWord;
pub use look_up::{Lines, LookUp, LookedUp};
pub use migrate::{Moved, migrate};
pub use named::{Named, NamedLock, OpenNamed};
pub use operation::{Completed, MESSAGE_MAX, Ticket, Traversal, Vma};
pub use policy::{Dispatched, Policy, Profile, Site};
pub use rack::Rack;
pub use task::{Next, OpQueue, Task, TaskStats};
