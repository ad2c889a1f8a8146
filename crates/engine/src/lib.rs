//! Programs as machine code (PULSE 4.2, logic pipeline).
//!
//! [`Jit`] compiles a verified [`Program`](farmem_traversal::Program) once; [`Compiled::step`] does what
//! [`Program::step`](farmem_traversal::Program::step) does, to the byte.
//!
//! The crate knows no node, no message and no address: what a program may read is the window that its caller lends.

mod jit;

pub use jit::{Compiled, Jit, JitError};
