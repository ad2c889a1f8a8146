//! The interface between a program that runs on far memory and its pager. Three things are common to both:
//! the addresses of far memory, the protocol, and the userfaultfd, which the program opens and the pager
//! serves.
//!
//! Two crates use it: the preload library (`crates/preload`), inside the program, and the pager
//! (`crates/run`, with the page operations of `crates/uffd`). The crate is small, because every process of a
//! run loads it with its dependencies.
//!
//! Key types: [`call::Hello`] and [`call::Call`], the protocol; [`place`], the addresses; [`advised`], the
//! effect of `madvise`; [`userfaultfd::Userfaultfd`] and [`message::Message`], the system calls and reports
//! of a userfaultfd.

mod advice;
pub mod call;
pub mod message;
mod permission;
pub mod place;
pub mod userfaultfd;

pub use advice::{Advised, advised, advised_shared};

/// Flags of private anonymous mappings that far memory does not support.
pub const NOT_FAR: i32 = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_GROWSDOWN
    | libc::MAP_STACK
    | libc::MAP_HUGETLB
    | LOW;
#[cfg(target_arch = "x86_64")]
const LOW: i32 = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const LOW: i32 = 0;
