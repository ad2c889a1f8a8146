//! Behaviour of the system's userfaultfd, row by row, on which the page cache is built.
//!
//! Each test states one fact. A kernel that behaves otherwise fails here, by name, and not somewhere in the page cache. Where this
//! process may not do what a fact is about, the test says so on stderr and passes.

mod events;
mod kernel_access;
mod pages;
mod privileges;
mod processes;
mod rig;
