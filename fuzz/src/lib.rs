//! Fuzz targets as plain functions: any bytes in, a panic when a promise is broken.
//!
//! Each is fed three times: by cargo-fuzz (the wrappers in `fuzz_targets`), by the committed corpus, and by seeded random
//! mutations of it, the last two under plain `cargo test` (`tests/replay.rs`). A new target takes a function, a line in
//! [`TARGETS`], a folder in `corpus`, and a wrapper with its `[[bin]]`.
//!
//! The targets named `*_events` read their bytes as a story (`input::Input`): frames of all roles around one, right ones,
//! damaged ones, repeated ones, ones from the wrong place; time; requests of its own user. Beside the role stands a plain model that
//! says what may come of it.

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

/// A target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is its corpus folder's and its wrapper's too.
    pub name: &'static str,
    /// Its function.
    pub feed: fn(&[u8], &mut Run),
    /// Cases that a plain `cargo test` makes up: frames given to a role, or inputs given to a parser.
    pub cases: u64,
    /// Marks ([`Run::marks`]) that the committed corpus reaches at least.
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

// A memory node remembers the answers of as many writes of a host as the host may have under way (PROTOCOL 5.6). The two roles do not
// know each other; this package knows both.
const _: () = assert!(farmem_host::REGION_WRITES_MAX <= farmem_memnode::DEDUP_DEPTH);
