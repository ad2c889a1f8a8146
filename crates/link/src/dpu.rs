//! Shared-memory rings between a process and its host's DPU (SODA III, IV-B; PROTOCOL 17).
//!
//! Key types: [`ProcessEnd`] at the process; [`Requests`] and [`Answers`] at the DPU. Both share one piece of
//! memory: a ring of requests, a ring of answers, and *registered memory*. The DPU writes requested bytes to
//! the registered memory.
//!
//! A process can register other memory as well, such as the pages of its window ([`Registered`]). A
//! [`DpuSocket`] also connects both. Over this socket the process passes the memory and opens regions, and
//! each end notices the end of the other.
//!
//! [`SubmissionSender`] and [`Submissions`] are a ring into which all threads of a program write (PD3).
//!
//! As with rings between roles, a peer that writes invalid data only loses its rings: each end copies and
//! checks data before use. The memory's size is sealed, so neither end can shrink it.

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
