//! What an instruction of a compiled program takes when nothing is waited for.

use super::table::cpu_time;
use super::{Chance, Measured};
use crate::{Compiled, Jit};
use farmem_traversal::{Program, Step};
use farmem_wire::VirtAddr;
use std::fmt::Write as _;
use std::sync::Arc;

/// Iterations per measurement.
const ITERATIONS: u64 = 200_000;
/// Times that the loads, the arithmetic, the branch and the store stand in the program.
const TURNS: usize = 20;

/// A program without a loop to hide in: every instruction runs in every iteration, and most wait for the one before.
pub(super) fn straight_line() -> (Arc<Compiled>, u64) {
    let mut text = String::from(".window 256\n.scratch 8\n");
    for turn in 0..TURNS {
        let word = turn % 32 * 8;
        let lines = [
            &format!("ld8 r2, window[{word}]"),
            "ld8 r3, scratch[0]",
            "add r3, r2",
            "xor r3, r1",
            &format!("jeq r2, {}, on{turn}", -1 - i32::try_from(turn).expect("few")),
            &format!("on{turn}: st8 scratch[0], r3"),
        ];
        for line in lines {
            writeln!(text, "{line}").expect("a string takes what it gets");
        }
    }
    text.push_str("next r1\n");
    let program = Program::assemble(&text).expect("assembles");
    let compiled = Jit::new(1).expect("a compiler").compile(&program).expect("compiles");
    (compiled, 6 * TURNS as u64 + 1)
}

/// The program over and over, on a window that stays in the nearest cache: instructions.
pub(super) fn instructions((compiled, count): &(Arc<Compiled>, u64), chance: &mut Chance) -> Measured {
    let window: Vec<u8> = (0..256).map(|_| chance.below(256) as u8).collect();
    let (mut cur_ptr, mut scratch) = (VirtAddr(1), [0; 8]);
    let start = cpu_time();
    for _ in 0..ITERATIONS {
        assert_eq!(compiled.step(&window, &mut cur_ptr, &mut scratch), Step::Next);
    }
    Measured { units: ITERATIONS * count, time: cpu_time() - start }
}
