//! Programs from a hostile peer: no bytes make the verifier or the interpreter panic, and an accepted program
//! runs and ends.
//!
//! A fuzz target uses this function too; here it gets seeded bytes, so that every test run covers a part.

use farmem_traversal::Program;

#[path = "targets/traversal_verify_run.rs"]
mod traversal_verify_run;
use traversal_verify_run::traversal_verify_run;

#[path = "generator/bytes.rs"]
mod bytes;
use bytes::{Chance, PROGRAMS, damaged, likely};

#[test]
fn bytes_without_any_order_are_refused() {
    let mut chance = Chance(1);
    for _ in 0..100_000 {
        let len = chance.below(64);
        let bytes: Vec<u8> = (0..len).map(|_| chance.byte()).collect();
        assert!(!traversal_verify_run(&bytes), "a valid program by chance: {bytes:02x?}");
    }
}

/// Damaged or manipulated programs: one to four bytes changed, cut or added.
#[test]
fn damaged_programs_are_refused_or_run() {
    let mut chance = Chance(2);
    let mut accepted = 0;
    let rounds = 10_000;
    for text in PROGRAMS {
        let good = Program::assemble(text).expect("assembles").encoded().to_vec();
        for _ in 0..rounds {
            accepted += usize::from(traversal_verify_run(&damaged(&mut chance, &good)));
        }
    }
    assert!(
        accepted > rounds / 10,
        "only {accepted} damaged programs got past the verifier: nothing was tried"
    );
    assert!(accepted < PROGRAMS.len() * rounds, "the verifier refuses nothing");
}

/// Long programs of slots that are each likely to be valid, as from a fuzzer that knows the format.
#[test]
fn programs_of_likely_slots_are_refused_or_run() {
    let mut chance = Chance(3);
    let mut accepted = 0;
    for round in 0..20_000 {
        let slots = 1 + chance.below(if round % 100 == 0 { 511 } else { 12 });
        let bytes = likely(&mut chance, slots);
        accepted += usize::from(traversal_verify_run(&bytes));
    }
    assert!(accepted > 1_000, "only {accepted} programs got past the verifier");
}
