//! The translation against BPF itself: a plain interpreter of BPF over real addresses runs random functions,
//! and the interpreter runs their translations. Both end alike, with the same pointer and the same scratch
//! pad.

use crate::elf::{Iterator, Sizes};
use crate::{bpf, translate};
use farmem_traversal::{Program, Step};
use farmem_wire::VirtAddr;
use model::{End, Machine};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;

mod generate;
mod model;

/// The sizes for the random functions.
const SIZES: Sizes = Sizes { window: 128, scratch: 64, stores: false };

fn iterator(code: &[[u8; 8]], sizes: Option<Sizes>) -> Iterator<'_> {
    let section = object::SectionIndex(1);
    Iterator { name: "random".into(), code, references: BTreeMap::new(), sizes, section, start: 0 }
}

fn program(code: &[[u8; 8]]) -> Program {
    let translated = translate(&iterator(code, Some(SIZES))).unwrap_or_else(|why| panic!("refused: {why:?}"));
    let insns: Vec<_> = translated.insns.into_iter().map(|(insn, _)| insn).collect();
    Program::from_instructions(translated.window_len, translated.scratch_len, insns).expect("it verifies")
}

/// Well-formed functions are never refused, and keep their meaning.
#[test]
fn random_functions_mean_what_they_mean_in_bpf() {
    let mut ends = BTreeMap::new();
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 3_000, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &[7; 32]),
    );
    let inputs = (generate::function(), prop::collection::vec(any::<u8>(), SIZES.window), any::<u64>());
    let ends_of = std::cell::RefCell::new(&mut ends);
    runner
        .run(&inputs, |(function, window, cur_ptr)| {
            let code = function.code();
            let program = program(&code);
            let before: Vec<u8> = (0_u8..).map(|n| n.wrapping_mul(37)).take(SIZES.scratch).collect();

            let mut machine = Machine::new(&window, &before, cur_ptr);
            let expected = machine.run(&code);
            let mut scratch = before.clone();
            let mut ptr = VirtAddr(cur_ptr);
            let step = program.step(&window[..program.window_len()], &mut ptr, &mut scratch);

            *ends_of.borrow_mut().entry(format!("{step:?}")).or_insert(0) += 1;
            match expected {
                // C does not define an access outside an area; the ISA ends there, without another effect.
                End::Outside => prop_assert_eq!(step, Step::Fault),
                End::Returned(0) => prop_assert_eq!((step, ptr.0), (Step::Return, cur_ptr)),
                End::Returned(next) => prop_assert_eq!((step, ptr.0), (Step::Next, next)),
            }
            prop_assert_eq!(scratch, machine.scratch());
            Ok(())
        })
        .unwrap_or_else(|why| panic!("{why}"));
    // All three ends occur often.
    assert!(ends.len() == 3 && ends.values().all(|&count| count >= 100), "{ends:?}");
}

proptest! {
    #![proptest_config(Config { cases: 2_000, failure_persistence: None, ..Config::default() })]

    /// Any bytes are refused or translated, and the result passes or fails verification: no panic, no endless
    /// loop.
    #[test]
    fn any_bytes_are_dealt_with(code in prop::collection::vec(any::<[u8; 8]>(), 1..60), sizes in any::<bool>()) {
        check(&code, sizes);
    }

    /// Nearly valid code: one slot of a valid function is changed.
    #[test]
    fn spoilt_functions_are_dealt_with(function in generate::function(), at in any::<prop::sample::Index>(), byte in 0..8_usize, value in any::<u8>()) {
        let mut code = function.code();
        let len = code.len();
        code[at.index(len)][byte] = value;
        check(&code, true);
    }
}

fn check(code: &[[u8; 8]], sizes: bool) {
    let Ok(translated) = translate(&iterator(code, sizes.then_some(SIZES))) else { return };
    let insns: Vec<_> = translated.insns.into_iter().map(|(insn, _)| insn).collect();
    if let Ok(program) = Program::from_instructions(translated.window_len, translated.scratch_len, insns) {
        let mut scratch = vec![1; program.scratch_len()];
        program.step(&vec![2; program.window_len()], &mut VirtAddr(3), &mut scratch);
    }
}

/// Each refusal of a single instruction, by number; tests/refused.rs has the C sources.
#[test]
fn instructions_that_are_not_ours() {
    use crate::Unsupported;
    let exit = [0x95, 0, 0, 0, 0, 0, 0, 0];
    for (slot, why) in [
        ([0x85, 0, 0, 0, 7, 0, 0, 0], Unsupported::Call("the kernel's function 7".into())),
        (
            [0x85, 0x10, 0, 0, 0xff, 0xff, 0xff, 0xff],
            Unsupported::Call("a function that was not inlined".into()),
        ),
        ([0x8d, 0, 0, 0, 0, 0, 0, 0], Unsupported::Call("a function through a pointer".into())),
        ([0x3f, 0x43, 1, 0, 0, 0, 0, 0], Unsupported::SignedDivision),
        ([0xdb, 0x12, 0, 0, 0, 0, 0, 0], Unsupported::Atomic),
        ([0xdc, 0x03, 0, 0, 24, 0, 0, 0], Unsupported::Malformed("a byte order of no width")),
        ([0xbf, 0x1b, 0, 0, 0, 0, 0, 0], Unsupported::Malformed("a register above r10")),
        ([0xbf, 0x1a, 0, 0, 0, 0, 0, 0], Unsupported::Malformed("r10 is written to")),
        ([0x20, 0, 0, 0, 0, 0, 0, 0], Unsupported::Opcode(0x20)),
        ([0xe5, 0, 0, 0, 0, 0, 0, 0], Unsupported::Opcode(0xe5)),
        ([0x05, 0, 9, 0, 0, 0, 0, 0], Unsupported::FallsOff),
        ([0x05, 0, 0xff, 0xff, 0, 0, 0, 0], Unsupported::Loop),
        ([0xbf, 0x40, 0, 0, 0, 0, 0, 0], Unsupported::Unset),
    ] {
        let code = [slot, exit];
        let refused = translate(&iterator(&code, None)).err();
        let place = usize::from(why == Unsupported::Unset);
        assert_eq!(refused, Some((place, why)), "{slot:02x?}");
    }
}

/// Instructions of clang-19 with -mcpu=v4: sign-extending loads and moves, long jumps.
#[test]
fn sign_extension_and_long_jumps_of_v4() {
    let code = [
        [0x91, 0x14, 0, 0, 0, 0, 0, 0],  // r4 = *(s8 *)(r1 + 0)
        [0x06, 0, 0, 0, 1, 0, 0, 0],     // gotol +1
        [0xb7, 0x04, 0, 0, 0, 0, 0, 0],  // r4 = 0
        [0x7b, 0x42, 0, 0, 0, 0, 0, 0],  // *(u64 *)(r2 + 0) = r4
        [0x71, 0x15, 1, 0, 0, 0, 0, 0],  // r5 = *(u8 *)(r1 + 1)
        [0xbf, 0x55, 8, 0, 0, 0, 0, 0],  // r5 = (s8)r5
        [0x7b, 0x52, 8, 0, 0, 0, 0, 0],  // *(u64 *)(r2 + 8) = r5
        [0xbc, 0x55, 8, 0, 0, 0, 0, 0],  // w5 = (s8)w5
        [0x7b, 0x52, 16, 0, 0, 0, 0, 0], // *(u64 *)(r2 + 16) = r5
        [0xb7, 0, 0, 0, 0, 0, 0, 0],     // r0 = 0
        [0x95, 0, 0, 0, 0, 0, 0, 0],     // exit
    ];
    let program = program(&code);
    let mut scratch = vec![0; program.scratch_len()];
    assert_eq!(program.step(&[0xfe, 0x80], &mut VirtAddr(1), &mut scratch), Step::Return);
    let word = |at: usize| u64::from_le_bytes(scratch[at..at + 8].try_into().expect("8 bytes")).cast_signed();
    assert_eq!((word(0), word(8), word(16)), (-2, -128, 0xffff_ff80));
}

/// A comparison of 32 bits gives no information about the other 32: a pointer whose low half is zero is
/// valid.
#[test]
fn half_a_pointer_is_not_the_pointer() {
    let code = [
        [0x79, 0x10, 0, 0, 0, 0, 0, 0], // r0 = *(u64 *)(r1 + 0)
        [0x16, 0, 1, 0, 0, 0, 0, 0],    // if w0 == 0 goto +1
        [0xb7, 0, 0, 0, 8, 0, 0, 0],    // r0 = 8
        [0x95, 0, 0, 0, 0, 0, 0, 0],    // exit
    ];
    for (pointer, step, next) in
        [(0, Step::Return, 1), (5_u64 << 32, Step::Next, 5 << 32), (7, Step::Next, 8)]
    {
        let mut ptr = VirtAddr(1);
        assert_eq!(program(&code).step(&pointer.to_le_bytes(), &mut ptr, &mut [0; 64]), step);
        assert_eq!(ptr.0, next);
    }
}

/// A move of 32 bits takes the low half of a constant: here 0, so RETURN.
#[test]
fn half_a_constant_is_not_the_constant() {
    let code = [
        [0x18, 0x04, 0, 0, 0, 0, 0, 0], // r4 = 1 << 32
        [0, 0, 0, 0, 1, 0, 0, 0],
        [0xbc, 0x40, 0, 0, 0, 0, 0, 0], // w0 = w4
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(program(&code).step(&[0], &mut VirtAddr(1), &mut [0; 64]), Step::Return);
}

/// A register-indexed load of the node, with and without a bound in the object.
#[test]
fn an_index_needs_a_size() {
    let code = [
        [0x79, 0x24, 0, 0, 0, 0, 0, 0],  // r4 = *(u64 *)(r2 + 0)
        [0x0f, 0x41, 0, 0, 0, 0, 0, 0],  // r1 += r4
        [0x79, 0x10, 16, 0, 0, 0, 0, 0], // r0 = *(u64 *)(r1 + 16)
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    let refused = translate(&iterator(&code, None)).err();
    assert_eq!(refused, Some((2, crate::Unsupported::UnknownSize(farmem_traversal::Area::Window))));
    let program = program(&code);
    assert_eq!(program.window_len(), SIZES.window);
    // The access includes the sum: load, load, compare, next, return.
    assert_eq!(program.instructions().len(), 5);
    let mut window = [0; 128];
    window[120] = 9;
    for (index, step) in [
        (104_u64, Step::Next),
        (105, Step::Fault),
        (u64::MAX - 15, Step::Return),
        (u64::MAX - 16, Step::Fault),
    ] {
        let mut scratch = [0; 64];
        scratch[..8].copy_from_slice(&index.to_le_bytes());
        assert_eq!(program.step(&window, &mut VirtAddr(1), &mut scratch), step, "{index}");
    }
}

/// Decoding is one pass, and knows every slot by its number.
#[test]
fn constants_take_two_slots() {
    let code = [
        [0x18, 0, 0, 0, 0x78, 0x56, 0x34, 0x12], // r0 = 0x9abcdef0_12345678
        [0, 0, 0, 0, 0xf0, 0xde, 0xbc, 0x9a],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    let ops = bpf::decode(&code, &BTreeMap::new()).expect("a function");
    assert_eq!((ops.len(), ops[1].slot), (2, 2));
    let mut ptr = VirtAddr(1);
    assert_eq!(program(&code).step(&[0], &mut ptr, &mut [0; 64]), Step::Next);
    assert_eq!(ptr.0, 0x9abc_def0_1234_5678);
    let named = BTreeMap::from([(0, "weights".to_owned())]);
    assert_eq!(bpf::decode(&code, &named), Err((0, crate::Unsupported::Global("weights".into()))));
    assert_eq!(
        bpf::decode(&code[..1], &BTreeMap::new()),
        Err((0, crate::Unsupported::Malformed("half a constant")))
    );
}
