//! The rack in a simulated world: virtual time, a faulty network, checkers, scripts.
//!
//! One seed is one world: the same seed and the same plan give the same events in the same order, and so the same digest. The
//! roles are the ones that run over sockets; only their environment is simulated, and all faults happen at that edge.
//!
//! - [`network`] carries sealed packets and loses, duplicates, reorders and damages them as a [`Plan`] says.
//! - [`pair`] is one requester and one responder, for millions of operations.
//! - [`pages`] has several hosts load and store on the same pages, through their caches and the switch's directory.
//! - [`paging`] is the page cache of one program, and of programs that fork, beside a memory that fails.
//! - [`pd3`] is the DPU prefetcher of a host, with clients, a mirror and a memory node.
//! - [`world`] is a whole rack whose machines crash and restart; its hosts run any [`HostMachine`]. [`rack`] runs random programs on it.
//! - [`explore`] visits every state that the coherence protocol can reach in a small rack.
//! - [`script`] plays a rack by hand, one packet at a time, from a file that tells a story.
//! - [`trace`] reads memory traces of real programs; [`replay`] plays them over racks with the latencies of MIND's paper.
//!
//! Nothing here reads a clock, starts a thread or asks the system for random numbers.
#![forbid(unsafe_code)]

pub mod campaign;
mod checker;
pub mod coverage;
mod describe;
mod digest;
pub mod explore;
mod host_machine;
mod journal;
mod memory;
pub mod network;
pub mod pages;
pub mod paging;
pub mod pair;
pub mod pd3;
mod plan;
pub mod rack;
pub mod replay;
pub mod script;
mod sim_node;
pub mod trace;
pub mod world;

pub use campaign::{Campaign, Failure, Outcome, Report, Verdict};
pub use digest::Digest;
pub use host_machine::HostMachine;
pub use journal::Journal;
pub use memory::ModelMemory;
pub use network::Network;
pub use plan::Plan;
pub use sim_node::RoleId;
pub use world::{Layout, World};
