//! Traversal programs as machine code (PULSE 4.2, logic pipeline).
//!
//! [`Jit`] compiles a verified [`Program`](farmem_traversal::Program) once; [`Compiled::step`] does exactly
//! what [`Program::step`](farmem_traversal::Program::step) does.
//!
//! The crate has no nodes, messages or addresses: a program may read only the window that its caller passes.

mod jit;

pub use jit::{Compiled, Jit, JitError};
