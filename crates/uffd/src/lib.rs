//! Far memory under plain loads and stores by userfaultfd: the mechanism of the page cache.
//!
//! Key types: [`Window`], the addresses and the frames under them; [`serve()`], the loop that passes faults to
//! [`Faults`]; [`Memory`], the program's side. All use [`Userfaultfd`], the kernel's calls with their results. Crate
//! `farmem-paging` has the policy.
//!
//! This crate does not know the network, or which host may hold a page. The host's agent does
//! ([`farmem_host::agent::Pages`] is implemented by `&Window`).

mod doorbell;
mod lease;
mod looking;
mod memory;
mod next;
mod numbers;
pub mod remote;
mod serve;
mod shared_mapping;
mod signal;
mod state;
#[cfg(test)]
mod tests;
mod views;
mod window;

pub use farmem_host::agent::Mapped;
pub use farmem_preload_abi::message::{BATCH, Cause, Fault, Message, Messages, Patience};
pub use farmem_preload_abi::userfaultfd::{Faulting, Features, Mapping, Reach, Stopped, Userfaultfd};
pub use lease::{Lease, Watcher, WatcherProcess, Woken};
pub use memory::Memory;
pub use next::Next;
pub use numbers::{Number, Numbers};
pub use serve::{Faults, Handler, HandlerCpu, Ring, serve, serve_shared};
pub use shared_mapping::SharedMapping;
pub use views::Addressing;
pub use window::{FaultMode, Window, WindowConfig};
