//! The time of a compiled program's instruction without memory waits.

use super::{Chance, Measured, Subject, cpu_time};
use farmem_memnode::{Compile as _, Logic as _};
use farmem_traversal::{Program, Step};
use farmem_wire::VirtAddr;
use std::hint::black_box;

/// Iterations per measurement.
const ITERATIONS: u64 = 200_000;
/// Keys per node.
const KEYS: u64 = 15;

/// Runs one step of the B+tree's program repeatedly on a cached inner node, each time for another key. The
/// unit is instructions on the longest path, by which the model counts (PULSE 4.1). The program branches on
/// its data, as programs do.
pub(super) fn instructions(_: &mut Subject, chance: &mut Chance) -> Measured {
    let program = Program::assemble(super::lookups::BTREE_FIND).expect("assembles");
    let logic = farmem_link::Compiler::jit_at_once().compile(&program);
    let mut node = [0; 256];
    for (n, word) in (0..).zip(node.as_chunks_mut::<8>().0) {
        *word = (n * u64::from(n > 0)).to_le_bytes();
    }
    let wanted: Vec<_> = (0..ITERATIONS).map(|_| chance.below(KEYS + 1)).collect();
    let mut scratch = vec![0; program.scratch_len()];
    let mut cur_ptr = VirtAddr(1);
    let start = cpu_time();
    for key in wanted {
        scratch[..8].copy_from_slice(&key.to_le_bytes());
        let step = logic.step(&node, &mut cur_ptr, &mut scratch);
        assert_eq!(step, Step::Next, "an inner node has children");
    }
    let time = cpu_time() - start;
    black_box(scratch);
    Measured { units: ITERATIONS * u64::from(program.longest_path()), time }
}
