//! The switch role: it routes what it can allow, and answers what it cannot.
//!
//! [`Switch`] is the role. Between a host and the memory nodes it takes the domain from the session a request came over,
//! checks protection ([`Protection`], MIND 4.2), translates ([`Translation`], MIND 4.1) and forwards; a traversal that left its
//! node comes back and is routed on (PULSE 5). Its tables are changed by the control plane and by nobody else; so is its soft state
//! ([`Soft`]), which comes as one image and changes at once.
//!
//! It keeps no state per request, executes nothing, and forwards no RC packets: those go directly between host and node.
//!
//! Rules: docs/protocol/06-the-switch.md.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod answer;
mod budgets;
pub mod directory;
mod further_down;
mod note;
mod orders;
mod pages;
pub mod protect;
mod soft;
mod switch;
mod tables;
#[cfg(test)]
mod tests;
pub mod translate;

pub use budgets::{Budgets, Occupancy, TableError, Usage};
pub use note::{Note, Reason};
pub use protect::{Denial, Protection};
pub use soft::Soft;
pub use switch::{REGION_BYTES_MAX, Switch};
pub use translate::Translation;
