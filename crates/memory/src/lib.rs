//! Far memory by plain loads and stores: a window onto one allocation, and spaces that many hosts share
//! coherently.
//!
//! Key types: [`window::with_window`], for one program and one allocation; [`SharedSpace`], for many hosts
//! (MIND 4.3). A window may access far memory through the host's DPU ([`window::AccessPath`], SODA III).

mod shared;
pub mod window;

pub use shared::{ShareOptions, ShareStats, SharedSpace, fault_source, process, worker};
