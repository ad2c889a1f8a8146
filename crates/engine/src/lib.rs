//! Runs traversals fast (PULSE 4.2): programs compiled to machine code, many traversals in flight on one core.
//!
//! [`Jit`] compiles a verified [`Program`](farmem_traversal::Program) once; [`Compiled::step`] does what
//! [`Program::step`](farmem_traversal::Program::step) does, to the byte. [`Executor`] takes a batch of [`Visit`]s and keeps a number
//! of them in flight: while one waits for its line of memory, others compute. It translates pointers with [`Ranges`], and whoever owns
//! the bytes lends them.
//!
//! [`yardstick`] measures all of this, beside the rate at which the same core reads lines.
//!
//! The crate knows no node, no message and no permission: what a domain may read here is what its `Ranges` hold.

mod executor;
mod jit;
mod ranges;
pub mod yardstick;

pub use executor::{Executor, IN_FLIGHT_DEFAULT, IN_FLIGHT_MAX, Visit};
pub use jit::{Compiled, Jit, JitError};
pub use ranges::{Miss, Range, RangeError, Ranges, Search};
