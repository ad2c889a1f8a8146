//! Shared-memory rings between a process and the DPU beside its host (SODA III, IV-B; PROTOCOL 17).
//!
//! Key types: [`ProcessEnd`] at the process; [`Requests`] and [`Answers`] at the DPU. The two share one piece of memory: a ring of requests, a ring of answers, and
//! *registered memory*, to which the DPU writes what a process asked for. What a process has elsewhere it may register
//! as well ([`Registered`]): the pages of its window. A [`DpuSocket`] is their socket, over which the memory is handed over, regions
//! are opened, and the end of either is noticed.
//!
//! [`SubmissionSender`] and [`Submissions`] are a ring into which all threads of a program write (PD3).
//!
//! As over rings between roles, a peer that writes nonsense loses its rings and nothing else happens: everything is copied out and checked
//! before use. The memory's size is sealed, so that no end can take it from under the other.

pub mod beat;
mod pair;
mod registered;
pub mod shared;
mod socket;
mod submission;
#[cfg(test)]
mod tests;

pub use pair::{Answers, Broken, PairSize, ProcessEnd, Requests, make_pair};
pub use registered::Registered;
pub use socket::{Bell, DpuSocket, Listener, MESSAGE_MAX, Other, ready};
pub use submission::{SubmissionSender, Submissions, Submitted, make_submissions};
