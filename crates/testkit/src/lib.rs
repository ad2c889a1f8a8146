//! Fixtures for tests of several crates: far memory that counts and interrupts, signals to processes, network namespaces.
//!
//! Only dev-dependencies name this crate.

mod hooked;
mod namespaces;
mod observed_memory;
mod signals;

pub use hooked::{Hooked, ended};
pub use namespaces::Namespaces;
pub use observed_memory::ObservedMemory;
pub use signals::signal;
