//! Fuzz target: bytes from a hostile peer as a program, compiled. Machine code and interpreter must do the same, to the byte.
//!
//! Fed by the fuzzer, and by seeded bytes in `hostile.rs`.

use farmem_engine::{Executor, Jit, Memory, Range, Ranges, Visit};
use farmem_traversal::{End, Program, Step, run};
use farmem_traversal::{Outcome, State};
use farmem_wire::VirtAddr;
use std::sync::Arc;

/// Iterations of each way to run it.
const LIMIT: u32 = 16;

/// Decodes `data` as a program. When it is one, it is compiled and run beside the interpreter: iteration by iteration on windows
/// made of the same bytes, then whole, in an executor, over a memory that is these bytes. Answers whether it is one.
pub(crate) fn traversal_jit(data: &[u8]) -> bool {
    let Ok(program) = Program::decode(data) else { return false };
    let mut jit = Jit::new(1).expect("there is a compiler for this machine");
    let compiled = jit.compile(&program).expect("a verified program compiles");
    let again = jit.compile(&program).expect("it is kept");
    assert!(Arc::ptr_eq(&compiled, &again), "one compile per program");

    let scratch: Vec<u8> = data.iter().copied().cycle().take(program.scratch_len()).collect();
    let (mut ours, mut theirs) = (scratch.clone(), scratch.clone());
    let (mut our_ptr, mut their_ptr) = (VirtAddr(u64::from(data[0])), VirtAddr(u64::from(data[0])));
    for _ in 0..LIMIT {
        let start = usize::try_from(our_ptr.0 % data.len() as u64).expect("less than a length");
        let window: Vec<u8> =
            data.iter().copied().cycle().skip(start).take(program.window_len()).collect();
        let step = compiled.step(&window, &mut our_ptr, &mut ours);
        let expected = program.step(&window, &mut their_ptr, &mut theirs);
        assert_eq!((step, our_ptr), (expected, their_ptr), "{program}");
        assert_eq!(ours, theirs, "{program}");
        if step != Step::Next {
            break;
        }
    }

    let memory = Bytes(data);
    let ranges = Ranges::new(&[Range { base: 0, len: data.len() as u64, offset: 0 }]).expect("one range");
    let mut fetch = |addr: VirtAddr, window: &mut [u8]| {
        let offset = ranges.translate(addr.0, window.len())?;
        window.copy_from_slice(memory.window(offset, window.len()));
        Ok(())
    };
    let mut state = State { cur_ptr: VirtAddr(0), scratch: scratch.clone() };
    let expected = run(&program, &mut fetch, &mut state, LIMIT);
    let (mut ours, mut our_ptr) = (scratch, VirtAddr(0));
    let visit = Visit {
        program: &compiled,
        ranges: &ranges,
        cur_ptr: &mut our_ptr,
        scratch: &mut ours,
        limit: LIMIT,
    };
    let mut outcome = Outcome { iterations: 0, end: End::Fault };
    Executor::default().run(&memory, [visit], |_, ended| outcome = ended);
    assert_eq!((outcome, our_ptr), (expected, state.cur_ptr), "{program}");
    assert_eq!(ours, state.scratch, "{program}");
    true
}

/// A memory that is these bytes.
struct Bytes<'a>(&'a [u8]);

impl Memory for Bytes<'_> {
    fn window(&self, offset: u64, len: usize) -> &[u8] {
        let start = usize::try_from(offset).expect("small");
        &self.0[start..start + len]
    }
}
