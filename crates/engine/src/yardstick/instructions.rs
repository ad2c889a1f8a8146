//! What an instruction of a compiled program takes when nothing is waited for.

use super::table::cpu_time;
use super::{Chance, Measured};
use crate::{Compiled, Jit};
use farmem_traversal::{Program, Step};
use farmem_wire::VirtAddr;
use std::hint::black_box;
use std::sync::Arc;

/// Iterations per measurement.
const ITERATIONS: usize = 200_000;
/// Keys of a node.
const KEYS: usize = 15;

/// The B+tree's program: it branches on what it finds, as programs do.
pub(super) fn btree_find() -> Arc<Compiled> {
    let text = include_str!("../../../../testdata/programs/btree_find.pulse");
    let program = Program::assemble(text).expect("assembles");
    Jit::new(1).expect("a compiler").compile(&program).expect("compiles")
}

/// One step of the program over and over, on an inner node that stays in the nearest cache, each for another key: instructions on the
/// longest path, by which the model counts (PULSE 4.1).
pub(super) fn instructions(compiled: &Compiled, chance: &mut Chance) -> Measured {
    let mut node = [0; 256];
    for (n, word) in node.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (n as u64 * u64::from(n > 0)).to_le_bytes();
    }
    let wanted: Vec<_> = (0..ITERATIONS).map(|_| chance.below(KEYS + 1) as u64).collect();
    let mut scratch = vec![0; compiled.program().scratch_len()];
    let mut cur_ptr = VirtAddr(1);
    let start = cpu_time();
    for key in wanted {
        scratch[..8].copy_from_slice(&key.to_le_bytes());
        assert_eq!(
            compiled.step(&node, &mut cur_ptr, &mut scratch),
            Step::Next,
            "an inner node has children"
        );
    }
    let time = cpu_time() - start;
    black_box(scratch);
    Measured { units: ITERATIONS as u64 * u64::from(compiled.program().longest_path()), time }
}
