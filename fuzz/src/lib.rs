//! Fuzz targets as plain functions: each accepts any bytes and panics when a promise is broken.
//!
//! Each target has three sources of inputs. cargo-fuzz uses the wrappers in `fuzz_targets`. Plain `cargo
//! test` (`tests/replay.rs`) uses the committed corpus, and seeded random mutations of it. A new target needs
//! a function, a line in [`TARGETS`], a folder in `corpus`, and a wrapper with its `[[bin]]`.
//!
//! The targets named `*_events` decode their bytes as a sequence of events (`input::Input`): frames, time,
//! and requests of the tested role's own user. The frames come from all roles around the tested role. Some
//! frames are correct, and others are damaged, repeated or sent from the wrong port. A plain model states the
//! allowed effects of each event.

mod control;
mod frames;
mod host;
mod input;
mod kv;
mod memnode;
mod parsers;
mod pd3;
mod resp;
mod story;
mod switch;
mod traversal;
mod wire;

pub use control::control_events;
pub use host::host_events;
pub use kv::{kv_commands, kv_memcached};
pub use memnode::memnode_events;
pub use parsers::{parse_http, parse_memcached, parse_records, parse_resp};
pub use pd3::pd3_parse;
pub use resp::resp_parse;
pub use story::Run;
pub use switch::switch_events;
pub use traversal::traversal_verify_run;
pub use wire::wire_parse;

/// Fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target, its corpus folder and its wrapper.
    pub name: &'static str,
    /// Function that runs one input.
    pub feed: fn(&[u8], &mut Run),
    /// Number of cases that a plain `cargo test` generates: frames for a role, or inputs for a parser.
    pub cases: u64,
    /// Minimum number of marks ([`Run::marks`]) that the committed corpus reaches.
    pub marks: usize,
}

/// Every target that `tests/replay.rs` runs.
pub const TARGETS: &[Target] = &[
    Target { name: "wire_parse", feed: wire_parse, cases: 200_000, marks: 0 },
    Target { name: "traversal_verify_run", feed: traversal_verify_run, cases: 50_000, marks: 1 },
    Target { name: "resp_parse", feed: resp_parse, cases: 100_000, marks: 11 },
    Target { name: "kv_commands", feed: kv_commands, cases: 20_000, marks: 150 },
    Target { name: "kv_memcached", feed: kv_memcached, cases: 20_000, marks: 25 },
    Target { name: "parse_resp", feed: parse_resp, cases: 100_000, marks: 10 },
    Target { name: "parse_memcached", feed: parse_memcached, cases: 100_000, marks: 8 },
    Target { name: "parse_http", feed: parse_http, cases: 100_000, marks: 10 },
    Target { name: "parse_records", feed: parse_records, cases: 100_000, marks: 10 },
    Target { name: "pd3_parse", feed: pd3_parse, cases: 200_000, marks: 14 },
    Target { name: "switch_events", feed: switch_events, cases: 400_000, marks: 38 },
    Target { name: "memnode_events", feed: memnode_events, cases: 400_000, marks: 45 },
    Target { name: "host_events", feed: host_events, cases: 400_000, marks: 25 },
    Target { name: "control_events", feed: control_events, cases: 100_000, marks: 35 },
];

// A memory node remembers the answers to as many writes of a host as the host may have open (PROTOCOL 5.6).
// The two roles do not depend on each other. Only this crate depends on both.
const _: () = assert!(farmem_host::REGION_WRITES_MAX <= farmem_memnode::DEDUP_DEPTH);
