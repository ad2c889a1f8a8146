//! Facts about the kernel's userfaultfd, on which the page cache depends.
//!
//! Each test states one fact. On a kernel that differs, the test of the fact fails, and not a test of the page cache.
//! If this process lacks a privilege for a test, the test prints a line to stderr and passes.

mod events;
mod kernel_access;
mod pages;
mod privileges;
mod processes;
mod rig;
