//! Fuzz target: bytes from a hostile peer as a program. Fed by the fuzzer, and by seeded bytes in
//! `hostile.rs`.

use farmem_traversal::{End, Program, SCRATCH_LEN_MAX, State, WindowAccess, run_storing};
use farmem_wire::VirtAddr;

/// Decodes `data` as a program. A valid one must convert to its other forms and back, and must run without a
/// panic on windows and a scratch pad made of the same bytes. Returns whether it is valid.
pub(crate) fn traversal_verify_run(data: &[u8]) -> bool {
    let Ok(program) = Program::decode(data) else { return false };
    assert_eq!(program.encoded(), data, "a program has one encoding");
    let text = program.disassemble();
    let again = Program::assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again, program, "{text}");

    assert!(program.scratch_len() <= SCRATCH_LEN_MAX);
    let scratch = data.iter().copied().cycle().take(program.scratch_len()).collect();
    let mut state = State { cur_ptr: VirtAddr(u64::from(data[0])), scratch };
    let mut bytes = data.to_vec();
    let mut memory = |addr: VirtAddr, access: WindowAccess<'_>| {
        // Every third pointer leads nowhere; the others to these bytes, at an offset that the pointer
        // chooses.
        if addr.0 % 3 == 2 {
            return Err(addr);
        }
        let start = usize::try_from(addr.0 % data.len() as u64).expect("less than a length");
        let places = (0..bytes.len()).cycle().skip(start);
        match access {
            WindowAccess::Load(window) => window.iter_mut().zip(places).for_each(|(to, at)| *to = bytes[at]),
            WindowAccess::Store(window) => {
                assert!(program.stores(), "only what declares it stores");
                window.iter().zip(places).for_each(|(from, at)| bytes[at] = *from);
            }
        }
        Ok(())
    };
    let outcome = run_storing(&program, &mut memory, &mut state, 64);
    assert_eq!(state.scratch.len(), program.scratch_len());
    match outcome.end {
        End::IterationLimit => assert_eq!(outcome.iterations, 64),
        End::Return | End::Fault => assert!((1..=64).contains(&outcome.iterations)),
        End::Fetch(addr) => assert_eq!(addr, state.cur_ptr, "the pointer that could not be loaded"),
    }
    true
}
