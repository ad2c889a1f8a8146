//! The switch role: routes requests that it allows, and answers those that it refuses.
//!
//! [`Switch`] is the role. Between hosts and memory nodes it takes the domain from a request's session,
//! checks protection ([`Protection`], MIND 4.2), translates ([`Translation`], MIND 4.1) and forwards. A
//! traversal that leaves its node returns to the switch and is routed again (PULSE 5). Only the control plane
//! changes its tables and its soft state ([`Soft`]), which arrives as one image and changes at once.
//!
//! A switch of a FatTree is the same role with other tables. It has no sessions, accepts traversals of trees
//! from other switches, and leads them on with its part of the index (Fat-B+Tree IV-A).
//!
//! The switch keeps no state per request and executes none. Packets of reliable connections go directly
//! between host and node, except for relayed connections. A READ of a relayed connection may have a key in
//! place of its address ([`keyed`], Fat-B+Tree III-D).
//!
//! Rules: docs/protocol/06-the-switch.md, docs/protocol/15-through-the-switch.md,
//! docs/protocol/16-fat-tree.md.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod answer;
mod budgets;
mod connections;
pub mod directory;
mod index_start;
pub mod keyed;
mod leading;
mod note;
mod orders;
mod outdated;
mod pages;
pub mod protect;
mod relay;
mod soft;
mod switch;
mod tables;
#[cfg(test)]
mod tests;
pub mod translate;
mod vmas;

pub use budgets::{Budgets, Occupancy, TableError, Usage};
pub use note::{Note, Reason};
pub use protect::{Denial, Protection};
pub use soft::Soft;
pub use switch::{REGION_BYTES_MAX, Switch};
pub use translate::Translation;
