//! The memory node role: it holds bytes of far memory, serves one-sided verbs, and runs traversals beside the data.
//!
//! [`MemNode`] is a [`farmem_machine::Machine`] over a [`Store`]. Three kinds of peer speak to it, each in its own way:
//!
//! - **Control**, in datagrams of updates: what is here (ranges), which domain may use it (grants), which roles there are (peers, connections).
//! - **Hosts**, on reliable connections: READ, WRITE, CMP_SWAP, FETCH_ADD, direct and checked here (MIND 4.2).
//! - **The switch**, in datagrams: region reads and writes for diagnosis, and traversals (PULSE 4.2, 5), which are answered
//!   straight to the host or sent back to the switch when the next pointer is elsewhere.
//!
//! The node believes no claim: a datagram counts by its port and key, a verb by its connection, key and grants. It knows no other
//! node, but for the time in which pages move to or from it, and no directory. docs/protocol/07-the-memory-node.md says all of this as rules.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod answers;
mod files;
mod moves;
mod newcomers;
mod node;
mod note;
mod outliers;
pub mod page_states;
mod pages;
mod peers;
mod programs;
mod regions;
mod requests;
mod spans;
mod store;
mod trial;
mod updates;
mod workspaces;

pub use answers::ANSWERS_OPEN_MAX;
pub use files::{FILE_PART, FileAsk, FileCame, FileDone, FileWant, Out, TASKS_KEPT, TASKS_MAX};
pub use moves::{MOVE_LEN_MAX, MOVES_MAX, PUSHED_MAX};
pub use newcomers::NEW_PROGRAMS;
pub use node::{Budget, Config, MemNode};
pub use note::{Counted, DropReason, Note, Stats};
pub use pages::PARTIAL_MAX;
pub use programs::{Compile, Interpreted, Logic, PROGRAMS_MAX};
pub use requests::{DEDUP_DEPTH, DEDUP_HOSTS_MAX, DEDUP_ROOM, region_read_len_max};
pub use store::{Store, VecStore, WORD_LEN};
pub use trial::Trial;
pub use workspaces::{BURST, ITERATIONS_PER_TURN, ITERATIONS_PER_VISIT_MAX, WAITING_MAX, WORKSPACES};

#[cfg(test)]
mod tests;
