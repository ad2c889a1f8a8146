//! What a program that runs on far memory and its pager have in common: where far memory is, what they say to each other, and the
//! userfaultfd that one opens and the other serves.
//!
//! Two sides use it: the preload library (`crates/preload`), inside of the program, and the pager (`crates/run`, by the mechanism in
//! `crates/uffd`). It is small, as all that it needs is loaded into every process of a run.
//!
//! Key types: [`call::Hello`] and [`call::Call`], the words of both; [`place`], the addresses; [`advised`], what `madvise` comes to;
//! [`userfaultfd::Userfaultfd`] and [`message::Message`], the system's calls and reports with their results.

mod advice;
pub mod call;
pub mod message;
pub mod place;
pub mod userfaultfd;

pub use advice::{Advised, advised, advised_shared};
