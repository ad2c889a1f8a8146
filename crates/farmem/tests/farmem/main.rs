//! Clients, structures and prefetching together.

mod embedded;
#[expect(dead_code, reason = "other tests have a DPU that is a process")]
#[path = "../map_program/mod.rs"]
mod map_program;
mod prefetch;
mod tasks;
mod tree_worlds;
