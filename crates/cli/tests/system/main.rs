//! Tests of the command as users run it: with real processes, sockets, signals and files.
//!
//! Every test has its own directory and loopback addresses, so tests can run in parallel and beside other
//! racks.

mod apps;
mod arguments;
mod bench;
mod cards;
mod clients;
mod demo;
mod doctor;
mod doors;
mod fat_tree;
mod faults;
mod firewall;
mod frames;
mod graph;
mod hostile;
mod incarnation;
mod index;
mod install;
mod keyed;
mod kv;
mod large_pads;
mod lifecycle;
mod logging;
#[expect(dead_code, reason = "other tests have tables, and a driver in the program")]
#[path = "../../../farmem/tests/map_program/mod.rs"]
mod map_program;
mod migrate;
mod objects;
mod operate;
mod pages;
mod past_libc;
mod prefetch;
mod process;
mod rack;
mod records;
mod reflection;
mod refusals;
mod run;
mod run_allocators;
mod run_edges;
mod run_fit;
mod run_forks;
mod run_intercept;
mod run_lease;
mod run_nonsense;
mod run_pins;
mod run_placement;
mod run_runtimes;
mod run_shared;
mod run_static;
mod run_users;
mod service;
mod sim;
mod soak;
mod tour;
mod trace;
mod tutorials;
mod wear;
