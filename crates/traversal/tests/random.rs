//! Random valid programs: the three forms are equivalent, and the interpreter agrees with an independent
//! implementation of the document.

mod generator;
mod model;

use farmem_traversal::{Behind, Program, Step};
use farmem_wire::VirtAddr;
use generator::{memory, program, storing_program};
use model::{Ending, Model};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// PROTOCOL 10.3 to 10.9, back and forth.
    #[test]
    fn bytes_give_the_program_back(program in prop_oneof![program(), storing_program()]) {
        let decoded = Program::decode(program.encoded());
        prop_assert_eq!(decoded.as_ref(), Ok(&program));
        let decoded = decoded.expect("checked");
        prop_assert_eq!(decoded.hash(), program.hash());
        prop_assert_eq!(decoded.longest_path(), program.longest_path());
        prop_assert_eq!(decoded.stores(), program.stores());
        prop_assert_eq!(program.hash().stores(), program.stores(), "the name says so");
        prop_assert!(decoded.instructions().eq(program.instructions()));
    }

    /// PROTOCOL 10.20.
    #[test]
    fn text_gives_the_program_back(program in prop_oneof![program(), storing_program()]) {
        let text = program.disassemble();
        let assembled = Program::assemble(&text);
        prop_assert_eq!(assembled.as_ref(), Ok(&program), "{}", text);
    }

    /// PROTOCOL 10.1 to 10.13. Three iterations, so that a later one would see leftovers of an earlier one.
    #[test]
    fn the_interpreter_does_what_the_document_says(
        (program, windows, scratch) in prop_oneof![program(), storing_program()].prop_flat_map(|program| {
            let windows = proptest::collection::vec(memory(program.window_len()), 3);
            let scratch = memory(program.scratch_len());
            (Just(program), windows, scratch)
        }),
        start in any::<u64>(),
    ) {
        let (mut cur_ptr, mut scratch) = (VirtAddr(start), scratch);
        let mut expected_scratch = scratch.clone();
        for mut window in windows {
            let before = cur_ptr;
            let mut model = Model::new(program.encoded(), &window, &mut expected_scratch, before.0);
            let ending = model.run();
            prop_assert!(model.executed <= u32::from(program.longest_path()), "longer than the longest path");

            let stored = model.window.clone();

            let lent = window.clone();
            let step = program.step_storing(&mut window, &mut cur_ptr, &mut scratch);
            prop_assert_eq!(&window, &stored, "{}", program);
            prop_assert!(program.stores() || window == lent, "nothing else stores");
            let (expected, expected_ptr) = match ending {
                Ending::Next(next) => (Step::Next, VirtAddr(next)),
                Ending::Return => (Step::Return, before),
                Ending::Fault => (Step::Fault, before),
                Ending::Behind => panic!("all of the window is there"),
            };
            prop_assert_eq!((step, cur_ptr), (expected, expected_ptr), "{}", program);
            prop_assert_eq!(&scratch, &expected_scratch, "{}", program);
        }
    }

    /// PROTOCOL 10.23: any number of bytes of the window is accessible, from none to all.
    #[test]
    fn a_window_that_is_cut_ends_where_the_document_says(
        (program, window, scratch) in prop_oneof![program(), storing_program()].prop_flat_map(|program| {
            let (window, scratch) = (memory(program.window_len()), memory(program.scratch_len()));
            (Just(program), window, scratch)
        }),
        start in prop_oneof![any::<u64>(), 0..300_u64],
    ) {
        for there in 0..=window.len() {
            let mut expected_scratch = scratch.clone();
            let mut model = Model::new(program.encoded(), &window, &mut expected_scratch, start).cut(there);
            let expected = match model.run() {
                Ending::Next(next) => (Ok(Step::Next), VirtAddr(next)),
                Ending::Return => (Ok(Step::Return), VirtAddr(start)),
                Ending::Fault => (Ok(Step::Fault), VirtAddr(start)),
                Ending::Behind => (Err(Behind), VirtAddr(start)),
            };
            let stored = model.window.clone();
            prop_assert_eq!(&stored[there..], &window[there..], "nothing is stored behind");

            let (mut cur_ptr, mut ours, mut cut) = (VirtAddr(start), scratch.clone(), window[..there].to_vec());
            let step = program.step_storing_cut(&mut cut, &mut cur_ptr, &mut ours);
            prop_assert_eq!((step, cur_ptr), expected, "{} of {}: {}", there, window.len(), program);
            prop_assert_eq!(&cut, &stored[..there], "{}", program);
            prop_assert_eq!(&ours, &expected_scratch, "{}", program);
            if !program.stores() {
                let (mut cur_ptr, mut ours) = (VirtAddr(start), scratch.clone());
                let step = program.step_cut(&window[..there], &mut cur_ptr, &mut ours);
                prop_assert_eq!((step, cur_ptr), expected, "{}", program);
                prop_assert_eq!(&ours, &expected_scratch, "{}", program);
            }
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(program) = Program::decode(&bytes) {
            prop_assert_eq!(program.encoded(), &bytes[..]);
        }
    }

    #[test]
    fn no_text_makes_the_assembler_panic(text in "(\\PC|[ \nr0-9a-d\\[\\],:;+*.-]|ld8|st4|jeq|next|window|ret|\\.def){0,60}") {
        if let Err(error) = Program::assemble(&text) {
            let line = text.lines().nth(error.line - 1).unwrap_or("");
            prop_assert!(error.column <= line.chars().count() + 1, "{} in {:?}", error, text);
        }
    }
}
