//! Programs from a hostile peer, compiled: machine code does what the interpreter does, and stays in its
//! areas.
//!
//! A case is a program that the verifier accepted, a memory and a request. `FARMEM_FUZZ_CASES` sets their
//! total number, and `FARMEM_FUZZ_SEED` (4791) the first seed; a plain `cargo test` runs a few. The same seed
//! gives the same cases. A campaign: `FARMEM_FUZZ_CASES=10000000 cargo test --release -p farmem-engine --test
//! hostile -- --nocapture`

#[path = "../../traversal/tests/generator/bytes.rs"]
mod bytes;
#[path = "targets/traversal_jit.rs"]
mod traversal_jit;

use bytes::{Chance, PROGRAMS, damaged, likely};
use farmem_traversal::{Insn, Program};
use traversal_jit::traversal_jit;

/// Cases of each program, unless fewer are left.
const REQUESTS: u64 = 200;

#[test]
fn machine_code_does_what_the_interpreter_does() {
    let number = |name| std::env::var(name).ok().map(|value: String| value.parse().expect("a number"));
    let cases = number("FARMEM_FUZZ_CASES").unwrap_or(40_000);
    let mut chance = Chance(number("FARMEM_FUZZ_SEED").unwrap_or(4791));
    let good: Vec<Vec<u8>> =
        PROGRAMS.map(|text| Program::assemble(text).expect("assembles").encoded().to_vec()).into();
    let (mut done, mut programs, mut refused) = (0, 0_u64, 0_u64);
    let (mut storing, mut searching, mut large) = (0_u64, 0_u64, 0_u64);
    while done < cases {
        let bytes = match chance.below(3) {
            0 => {
                let from = &good[chance.below(good.len())];
                damaged(&mut chance, from)
            }
            _ => {
                let most = if chance.below(100) == 0 { 511 } else { 40 };
                let slots = 1 + chance.below(most);
                likely(&mut chance, slots)
            }
        };
        let ran = traversal_jit(&bytes, REQUESTS.min(cases - done));
        done += ran;
        if ran == 0 {
            refused += 1;
            continue;
        }
        programs += 1;
        let program = Program::decode(&bytes).expect("it ran");
        storing += u64::from(program.stores());
        searching += u64::from(program.instructions().any(|insn| matches!(insn, Insn::Search { .. })));
        large += u64::from(program.scratch_len() > 256);
    }
    eprintln!(
        "{done} cases: {programs} programs, {storing} that store, {searching} that search, {large} with more than 256 bytes of \
         scratch pad; {refused} refused"
    );
    for some in [storing, searching, large] {
        assert!(some > programs / 10, "{storing}, {searching} and {large} of {programs}");
    }
}
