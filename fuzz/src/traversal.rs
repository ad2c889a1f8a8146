//! A program from a hostile peer: the target of `crates/traversal`, which its own tests feed too.

use crate::Run;

#[path = "../../crates/traversal/tests/targets/traversal_verify_run.rs"]
mod target;

/// Decodes `data` as a program, verifies it and runs it.
///
/// # Panics
/// When the verifier lets through what the interpreter cannot run, or a program has two encodings.
pub fn traversal_verify_run(data: &[u8], run: &mut Run) {
    run.cases += 1;
    run.mark(if target::traversal_verify_run(data) { "accepted" } else { "refused" });
}
