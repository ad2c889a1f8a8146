//! Far memory by plain loads and stores: a window onto one allocation, and spaces that many hosts share coherently.
//!
//! Key types: [`window::with_window`], for one program and one allocation; [`SharedSpace`], for many hosts (MIND 4.3); [`dpu::serve`], the DPU beside a host as a process
//! (SODA III), which windows go by way of where they say so ([`window::Way`]);
//! [`prefetch`], which fetches what clients' requests will need (PD3).

pub mod dpu;
pub mod prefetch;
mod shared;
pub mod window;

pub use shared::{ShareOptions, ShareStats, SharedSpace, fault_source, process, worker};
