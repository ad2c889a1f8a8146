//! The switch role: it routes what it can allow, and answers what it cannot.
//!
//! [`Switch`] is the role. Between a host and the memory nodes it takes the domain from the session a request came over,
//! checks protection ([`Protection`], MIND 4.2), translates ([`Translation`], MIND 4.1) and forwards; a traversal that left its
//! node comes back and is routed on (PULSE 5). Its tables are changed by the control plane and by nobody else; so is its soft state
//! ([`Soft`]), which comes as one image and changes at once.
//!
//! A switch of a FatTree is the same role with other tables: it has no sessions, takes traversals of trees from other switches, and leads them on by its
//! part of the index (Fat-B+Tree IV-A).
//!
//! It keeps no state per request and executes nothing. Packets of reliable connections go directly between host and node, but for those of connections that
//! were set up through the switch; a READ of these can have a key in the place of its address ([`keyed`], Fat-B+Tree III-D).
//!
//! Rules: docs/protocol/06-the-switch.md, docs/protocol/15-through-the-switch.md, docs/protocol/16-fat-tree.md.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod answer;
mod budgets;
mod connections;
pub mod directory;
mod further_down;
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
