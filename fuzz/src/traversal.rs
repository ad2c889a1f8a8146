//! Fuzz target of a program from a hostile peer. The function is shared with the tests of `crates/traversal`.

use crate::Run;

#[path = "../../crates/traversal/tests/targets/traversal_verify_run.rs"]
mod target;

/// Decodes `data` as a program, verifies it and runs it.
///
/// # Panics
/// Panics when the verifier accepts a program that the interpreter cannot run, or when a program has two
/// encodings.
pub fn traversal_verify_run(data: &[u8], run: &mut Run) {
    run.cases += 1;
    run.mark(if target::traversal_verify_run(data) { "accepted" } else { "refused" });
}
