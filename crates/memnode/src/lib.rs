//! The memory node role: holds bytes of far memory, serves one-sided verbs, and runs traversals beside the
//! data.
//!
//! [`MemNode`] is a [`farmem_machine::Machine`] over a [`Store`]. Three kinds of peers communicate with it:
//!
//! - **The control plane** sends updates in datagrams: ranges, grants, peers and connections.
//! - **Hosts** use reliable connections: READ, WRITE, CMP_SWAP and FETCH_ADD go directly to the node, which
//!   checks them (MIND 4.2).
//! - **The switch** forwards datagrams: region reads and writes for diagnosis, and traversals (PULSE 4.2, 5).
//!   The node answers the host directly. If the next pointer is elsewhere, the node sends the traversal back
//!   to the switch.
//!
//! The node trusts no claim: it accepts a datagram by port and key, and a verb by connection, key and grants.
//! The node has no directory, and knows other nodes only while pages move to or from them.
//! docs/protocol/07-the-memory-node.md has the rules.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod answers;
mod files;
mod moves;
mod node;
mod note;
mod outliers;
pub mod page_states;
mod pages;
mod peers;
mod program_limiter;
mod programs;
mod regions;
mod requests;
mod spans;
mod store;
mod trial;
mod updates;
mod workspaces;

pub use answers::ANSWERS_OPEN_MAX;
pub use files::{FILE_PART, FileOp, FileOutcome, FileReply, FileRequest, Out, TASKS_KEPT, TASKS_MAX};
pub use moves::{MOVE_LEN_MAX, MOVES_MAX, PUSHED_MAX};
pub use node::{Budget, Config, MemNode};
pub use note::{DropReason, Note, Stats, WriteBackEffect};
pub use pages::PARTIAL_MAX;
pub use program_limiter::NEW_PROGRAMS;
pub use programs::{Compile, Interpreted, Logic, PROGRAMS_MAX};
pub use requests::{DEDUP_DEPTH, DEDUP_HOSTS_MAX, DEDUP_ROOM, region_read_len_max};
pub use store::{Store, VecStore, WORD_LEN};
pub use trial::Trial;
pub use workspaces::{BURST, ITERATIONS_PER_TURN, ITERATIONS_PER_VISIT_MAX, WAITING_MAX, WORKSPACES};

#[cfg(test)]
mod tests;
