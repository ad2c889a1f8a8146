//! Fuzz target: bytes from a hostile peer as a program, compiled. Machine code and interpreter must agree to
//! the byte, and the code must access only its areas.
//!
//! Fed by the fuzzer, and by seeded bytes in `hostile.rs`.

use farmem_engine::{Compiled, Jit};
use farmem_traversal::{End, Outcome, Program, State, Step, WindowAccess, run_storing};
use farmem_wire::VirtAddr;
use std::sync::Arc;

/// Iterations of each run.
const LIMIT: u32 = 12;
/// Bytes of memory, in which addresses wrap. Every fifth address is invalid.
const MEMORY_LEN: usize = 1024;
/// Bytes around the areas that the code must not touch.
const FENCE: usize = 64;

/// Decodes `data` as a program. A valid one is compiled and compared with the interpreter on `requests`
/// requests, each with its own memory, pointer and scratch pad. Returns the number of runs: 0 for an invalid
/// program.
pub(crate) fn traversal_jit(data: &[u8], requests: u64) -> u64 {
    let Ok(program) = Program::decode(data) else { return 0 };
    let mut jit = Jit::new(1).expect("there is a compiler for this machine");
    let compiled = jit.compile(&program).expect("a verified program compiles");
    let again = jit.compile(&program).expect("it is kept");
    assert!(Arc::ptr_eq(&compiled, &again), "one compile per program");
    for request in 0..requests {
        both_ways(&program, &compiled, data, request);
    }
    requests
}

/// Runs one request with the interpreter and with machine code: ends, states and memories must be equal.
fn both_ways(program: &Program, compiled: &Compiled, data: &[u8], request: u64) {
    let mut words = Words(request);
    let memory: Vec<u8> = match request % 4 {
        // The program's own bytes, so that its constants are found.
        0 => data.iter().copied().cycle().skip(8).take(MEMORY_LEN).collect(),
        _ => (0..MEMORY_LEN / 8).flat_map(|_| words.next().to_le_bytes()).collect(),
    };
    let len = program.scratch_len();
    let scratch: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| words.next().to_le_bytes()).take(len).collect();
    let cur_ptr = VirtAddr(words.next());

    let (mut theirs, mut expected) = (memory.clone(), State { cur_ptr, scratch: scratch.clone() });
    let mut serve = |addr: VirtAddr, access: WindowAccess<'_>| {
        let places = places(addr)?;
        match access {
            WindowAccess::Load(window) => window.iter_mut().zip(places).for_each(|(to, at)| *to = theirs[at]),
            WindowAccess::Store(window) => {
                window.iter().zip(places).for_each(|(from, at)| theirs[at] = *from)
            }
        }
        Ok(())
    };
    let outcome = run_storing(program, &mut serve, &mut expected, LIMIT);

    let (mut ours, mut state) = (memory, State { cur_ptr, scratch });
    let got = run_compiled(compiled, &mut ours, &mut state);
    assert_eq!((got, &state), (outcome, &expected), "request {request} of\n{program}");
    assert_eq!(ours, theirs, "request {request} of\n{program}");
}

/// Returns the indices in memory from an address on.
fn places(addr: VirtAddr) -> Result<impl Iterator<Item = usize>, VirtAddr> {
    if addr.0 % 5 == 4 {
        return Err(addr);
    }
    let start = usize::try_from(addr.0 % MEMORY_LEN as u64).expect("less than a length");
    Ok((0..MEMORY_LEN).cycle().skip(start))
}

/// Runs a program as `run_storing`, with machine code between fences.
fn run_compiled(compiled: &Compiled, memory: &mut [u8], state: &mut State) -> Outcome<VirtAddr> {
    let (window_len, scratch_len) = (compiled.program().window_len(), state.scratch.len());
    let mut window = vec![0xc5; FENCE + window_len + FENCE];
    let mut scratch = vec![0xc5; FENCE + scratch_len + FENCE];
    scratch[FENCE..FENCE + scratch_len].copy_from_slice(&state.scratch);
    let mut outcome = Outcome { iterations: 0, end: End::IterationLimit };
    for _ in 0..LIMIT {
        let at = state.cur_ptr;
        let lent = &mut window[FENCE..FENCE + window_len];
        match places(at) {
            Ok(places) => lent.iter_mut().zip(places).for_each(|(to, at)| *to = memory[at]),
            Err(addr) => {
                outcome.end = End::Fetch(addr);
                break;
            }
        }
        let pad = &mut scratch[FENCE..FENCE + scratch_len];
        let step = compiled.step_storing(lent, &mut state.cur_ptr, pad);
        outcome.iterations += 1;
        if compiled.program().stores() && step != Step::Fault {
            let places = places(at).expect("it was loaded from there");
            window[FENCE..FENCE + window_len].iter().zip(places).for_each(|(from, at)| memory[at] = *from);
        }
        match step {
            Step::Next => continue,
            Step::Return => outcome.end = End::Return,
            Step::Fault => outcome.end = End::Fault,
        }
        break;
    }
    for fenced in [&window, &scratch] {
        let (before, behind) = (&fenced[..FENCE], &fenced[fenced.len() - FENCE..]);
        assert!([before, behind].concat().iter().all(|byte| *byte == 0xc5), "machine code left its areas");
    }
    state.scratch.copy_from_slice(&scratch[FENCE..FENCE + scratch_len]);
    outcome
}

/// Generates words for different branches of programs: small ones, edges, any.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let any = self.0 ^ self.0 >> 29;
        match any >> 61 {
            0..=2 => any % 300,
            3 => [u64::MAX, 1 << 63, 0xffff_ffff, 1 << 31][usize::try_from(any % 4).expect("small")],
            4 => (any % 300).wrapping_mul(0x0101_0101_0101_0101),
            _ => any,
        }
    }
}
