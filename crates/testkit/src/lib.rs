//! Fixtures for tests of several crates: far memory that counts and interrupts, signals to processes, network namespaces.
//!
//! Only dev-dependencies name this crate.

mod beside;
mod hooked;
mod namespaces;
mod signals;

pub use beside::Beside;
pub use hooked::{Hooked, ended};
pub use namespaces::Namespaces;
pub use signals::signal;
