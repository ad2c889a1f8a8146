//! Fuzz targets as plain functions: any bytes in, a panic when a promise is broken.
//!
//! Each is fed three times: by cargo-fuzz (the wrappers in `fuzz_targets`), by the committed corpus, and by seeded random
//! mutations of it, the last two under plain `cargo test` (`tests/replay.rs`). A new target takes a function, a line in
//! [`TARGETS`], a folder in `corpus`, and a wrapper with its `[[bin]]`.

mod wire;

pub use wire::wire_parse;

/// A target's name, which is its corpus folder's too, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Every target that `tests/replay.rs` runs.
pub const TARGETS: &[Target] = &[("wire_parse", wire_parse)];
