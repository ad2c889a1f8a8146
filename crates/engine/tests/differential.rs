//! Machine code and interpreter agree to the byte: on every instruction, on the programs of testdata, on
//! random programs.

#[path = "../../traversal/tests/generator/bytes.rs"]
#[expect(dead_code, reason = "its programs are used here, its bytes by other tests")]
mod bytes;
#[path = "../../traversal/tests/generator/mod.rs"]
mod generator;

use farmem_engine::{Compiled, Jit};
use farmem_traversal::{
    AluOp, Area, Behind, Cond, Insn, MemOperand, Operand, Program, Reg, SearchOp, Size, Step, UnaryOp, Width,
};
use farmem_wire::VirtAddr;
use generator::{memory, program, storing_program};
use proptest::prelude::*;
use std::sync::Arc;

fn compiled(program: &Program) -> Arc<Compiled> {
    Jit::new(1).unwrap().compile(program).unwrap()
}

/// Runs one iteration both ways and returns its end.
fn agree(compiled: &Compiled, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
    let program = compiled.program();
    let (mut our_ptr, mut ours) = (*cur_ptr, scratch.to_vec());
    let expected = program.step(window, cur_ptr, scratch);
    let step = compiled.step(window, &mut our_ptr, &mut ours);
    assert_eq!((step, our_ptr), (expected, *cur_ptr), "{program}");
    assert_eq!(ours, scratch, "{program}");
    step
}

/// Runs one iteration as [`agree`], with a separate window for each way.
fn agree_storing(compiled: &Compiled, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
    let program = compiled.program();
    let (mut our_ptr, mut ours, mut our_window) = (*cur_ptr, scratch.to_vec(), window.to_vec());
    let expected = program.step_storing(window, cur_ptr, scratch);
    let step = compiled.step_storing(&mut our_window, &mut our_ptr, &mut ours);
    assert_eq!((step, our_ptr), (expected, *cur_ptr), "{program}");
    assert_eq!((ours, our_window), (scratch.to_vec(), window.to_vec()), "{program}");
    step
}

/// Runs one iteration by the interpreter on the first `there` bytes of a window, and as machine code on whole
/// windows with these bytes and various bytes behind. If the interpreter ends the iteration within the
/// window, the code must do the same, whatever is behind, and leave the bytes behind unchanged. Returns
/// whether it ended.
fn agree_cut(compiled: &Compiled, window: &[u8], there: usize, start: u64, scratch: &[u8]) -> bool {
    let program = compiled.program();
    let (mut cut, mut cur_ptr, mut pad) = (window[..there].to_vec(), VirtAddr(start), scratch.to_vec());
    let ended = program.step_storing_cut(&mut cut, &mut cur_ptr, &mut pad);
    if let Err(Behind) = ended {
        assert_eq!(cur_ptr, VirtAddr(start), "{program}");
        assert!(there < window.len(), "a whole window ends by itself: {program}");
        return false;
    }
    for poison in [None, Some(0), Some(0xff), Some(0x5a)] {
        let mut whole = window.to_vec();
        if let Some(poison) = poison {
            whole[there..].fill(poison);
        }
        let behind = whole[there..].to_vec();
        let (mut our_ptr, mut ours) = (VirtAddr(start), scratch.to_vec());
        let step = compiled.step_storing(&mut whole, &mut our_ptr, &mut ours);
        assert_eq!((Ok(step), our_ptr), (ended, cur_ptr), "{there} of {}: {program}", window.len());
        assert_eq!((&ours, &whole[..there], &whole[there..]), (&pad, &cut[..], &behind[..]), "{program}");
    }
    true
}

/// Numbers at the edges of wrapping, signs, masks and lengths.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    7,
    8,
    31,
    32,
    33,
    63,
    64,
    65,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_8000_0000,
    u64::MAX - 1,
    u64::MAX,
];
const CONSTANTS: [i32; 9] = [0, 1, -1, 5, 31, 32, 64, i32::MAX, i32::MIN];
const WIDTHS: [Width; 2] = [Width::W64, Width::W32];

/// Runs each of `middles` for all pairs of edges. Its instructions compute on r2 and r3, which are words 0
/// and 1 of the window, and leave the result in r2.
fn on_all_edges(middles: impl IntoIterator<Item = Vec<Insn>>) {
    let word = |area, number: i16| MemOperand { area, index: None, offset: number * 8 };
    let load = |dst, number| Insn::Load { size: Size::B8, dst, from: word(Area::Window, number) };
    let mut jit = Jit::new(1).unwrap();
    for middle in middles {
        let mut insns = vec![load(Reg::R2, 0), load(Reg::R3, 1)];
        insns.extend(middle);
        let src = Operand::Reg(Reg::R2);
        insns.push(Insn::Store { size: Size::B8, to: word(Area::Scratch, 0), src });
        insns.push(Insn::Next { ptr: Reg::R2 });
        let program = Program::from_instructions(16, 8, insns).unwrap();
        let compiled = jit.compile(&program).unwrap();
        for a in EDGES {
            for b in EDGES {
                let window: Vec<u8> = [a, b].iter().flat_map(|word| word.to_le_bytes()).collect();
                assert_eq!(agree(&compiled, &window, &mut VirtAddr(a ^ b), &mut [0xee; 8]), Step::Next);
            }
        }
    }
}

fn operands() -> impl Iterator<Item = Operand> {
    [Operand::Reg(Reg::R3), Operand::Reg(Reg::R2)].into_iter().chain(CONSTANTS.map(Operand::Imm))
}

/// PROTOCOL 10.5: every operation, width and kind of operand.
#[test]
fn every_alu_instruction() {
    use AluOp::{Add, And, Div, Mod, Mov, Mul, Or, Sar, Shl, Shr, Sub, Xor};
    let ops = [Add, Sub, Mul, Div, Mod, And, Or, Xor, Shl, Shr, Sar, Mov];
    let alu = ops.into_iter().flat_map(|op| WIDTHS.map(|width| (op, width)));
    on_all_edges(
        alu.flat_map(|(op, width)| {
            operands().map(move |src| vec![Insn::Alu { width, op, dst: Reg::R2, src }])
        }),
    );
    let unary = [UnaryOp::Neg, UnaryOp::Not].into_iter().flat_map(|op| WIDTHS.map(|width| (op, width)));
    on_all_edges(unary.map(|(op, width)| vec![Insn::Unary { width, op, dst: Reg::R2 }]));
    on_all_edges(EDGES.map(|imm| vec![Insn::Imm64 { dst: Reg::R2, imm }]));
}

/// PROTOCOL 10.8: every condition, width and kind of operand, taken and not.
#[test]
fn every_branch() {
    use Cond::{Eq, Ge, Gt, Le, Lt, Ne, Set, Sge, Sgt, Sle, Slt};
    let conds = [Eq, Ne, Lt, Le, Gt, Ge, Set, Slt, Sle, Sgt, Sge];
    let branches = conds.into_iter().flat_map(|cond| WIDTHS.map(|width| (cond, width)));
    on_all_edges(branches.flat_map(|(cond, width)| {
        operands().map(move |right| {
            vec![
                Insn::Branch { width, cond, left: Reg::R2, right, target: 5 },
                Insn::Imm64 { dst: Reg::R2, imm: 111 },
                Insn::Jump { target: 6 },
                Insn::Imm64 { dst: Reg::R2, imm: 222 },
            ]
        })
    }));
}

/// PROTOCOL 10.7, 10.13: every size and area, constant and indexed, inside, at the edges and far outside.
#[test]
fn every_access() {
    let mut jit = Jit::new(1).unwrap();
    let sizes = [Size::B1, Size::B2, Size::B4, Size::B8];
    let (mut inside, mut faults) = (0, 0);
    for (size, area) in
        sizes.into_iter().flat_map(|s| [Area::Window, Area::Scratch, Area::Spill].map(|a| (s, a)))
    {
        for (index, offset) in
            [(None, 0), (None, 13), (Some(Reg::R1), 0), (Some(Reg::R1), -9), (Some(Reg::R1), 21)]
        {
            let place = MemOperand { area, index, offset };
            let mark = Operand::Imm(-0x1234_5678);
            let mut insns = Vec::new();
            if area != Area::Window {
                insns.push(Insn::Store { size, to: place, src: mark });
                insns.push(Insn::Store { size, to: place, src: Operand::Reg(Reg::R1) });
            }
            insns.push(Insn::Load { size, dst: Reg::R4, from: place });
            let whole = MemOperand { area: Area::Scratch, index: None, offset: 24 };
            insns.push(Insn::Store { size: Size::B8, to: whole, src: Operand::Reg(Reg::R4) });
            insns.push(Insn::Next { ptr: Reg::R4 });
            let program = Program::from_instructions(29, 32, insns).unwrap();
            let compiled = jit.compile(&program).unwrap();
            let window: Vec<u8> = (100..129).collect();
            for index in (0..160).chain(EDGES).chain((1..12).map(|n: u64| n.wrapping_neg())) {
                let mut scratch: Vec<u8> = (200..232).collect();
                match agree(&compiled, &window, &mut VirtAddr(index), &mut scratch) {
                    Step::Fault => faults += 1,
                    _ => inside += 1,
                }
            }
        }
    }
    assert!(inside > 1_000 && faults > 1_000, "{inside} inside, {faults} faults");
}

/// PROTOCOL 10.10: every size, constant and indexed, inside, at the edges and far outside; a later load sees
/// the store.
#[test]
fn every_store_to_the_window() {
    let mut jit = Jit::new(1).unwrap();
    let (mut inside, mut faults) = (0, 0);
    for (size, number) in [(Size::B1, 1), (Size::B2, 2), (Size::B4, 4), (Size::B8, 8)] {
        for (index, offset) in
            [(None, 0), (None, 13), (Some(Reg::R1), 0), (Some(Reg::R1), -9), (Some(Reg::R1), 21)]
        {
            let to = MemOperand { area: Area::Window, index, offset };
            let whole = MemOperand { area: Area::Scratch, index: None, offset: 0 };
            let insns = vec![
                Insn::Store { size, to, src: Operand::Imm(-0x1234_5678) },
                Insn::Load { size, dst: Reg::R4, from: to },
                Insn::Store { size: Size::B8, to: whole, src: Operand::Reg(Reg::R4) },
                Insn::Store { size, to, src: Operand::Reg(Reg::R1) },
                Insn::Next { ptr: Reg::R4 },
            ];
            let program = Program::storing_from_instructions(29, 8, insns).unwrap();
            let compiled = jit.compile(&program).unwrap();
            for start in (0..40).chain(EDGES).chain((1..12).map(|n: u64| n.wrapping_neg())) {
                let (mut window, mut scratch) = ((100..129).collect::<Vec<u8>>(), [0; 8]);
                match agree_storing(&compiled, &mut window, &mut VirtAddr(start), &mut scratch) {
                    Step::Fault => faults += 1,
                    _ => inside += 1,
                }
                let changed = window.iter().zip(100..).filter(|(a, b)| **a != *b).count();
                assert!(changed <= number, "{changed} bytes changed by a store of {number}");
            }
        }
    }
    assert!(inside > 100 && faults > 100, "{inside} inside, {faults} faults");
}

/// PROTOCOL 10.22: RANK and MATCH over elements of every size and of every number, for present keys, absent
/// keys, and keys larger than any element. The array's alignment is arbitrary.
#[test]
fn every_search() {
    let mut jit = Jit::new(1).unwrap();
    let mut chance = 5_u64;
    let mut found = 0;
    for (size, bytes) in [(Size::B1, 1), (Size::B2, 2), (Size::B4, 4), (Size::B8, 8)] {
        for (op, count) in
            [SearchOp::Rank, SearchOp::Match].into_iter().flat_map(|op| (1..=64_u8).map(move |n| (op, n)))
        {
            let len = usize::from(count) * bytes;
            if len > 253 {
                continue;
            }
            let search = farmem_traversal::Search { op, size, offset: 3, count, key: Reg::R1 };
            let insns = vec![Insn::Search { dst: Reg::R2, search }, Insn::Next { ptr: Reg::R2 }];
            let program = Program::from_instructions(3 + len, 0, insns).unwrap();
            let compiled = jit.compile(&program).unwrap();
            for _ in 0..40 {
                let mut next = || {
                    chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    chance.to_le_bytes()[5]
                };
                // Few different bytes, so that keys match; among them some with the top bit set.
                let window: Vec<u8> =
                    (0..3 + len).map(|_| [0, 1, 0x7f, 0x80, 0xff][usize::from(next() % 5)]).collect();
                let element = usize::from(next() % count);
                let mut key = [0; 8];
                key[..bytes].copy_from_slice(&window[3 + element * bytes..][..bytes]);
                let key = u64::from_le_bytes(key);
                for key in [key, key.wrapping_sub(1), key.wrapping_add(1), key | 1 << 63, !key, 0, u64::MAX] {
                    let mut at = VirtAddr(key);
                    assert_eq!(agree(&compiled, &window, &mut at, &mut []), Step::Next);
                    found += u64::from(op == SearchOp::Match && at.0 < u64::from(count));
                }
            }
        }
    }
    assert!(found > 1_000, "only {found} were found");
}

/// An area too short for any access of that size: the check always fails, and later instructions are
/// unreachable.
#[test]
fn an_access_that_is_never_inside() {
    for area in ["scratch", "window"] {
        let text = format!(
            ".window 3\n.scratch 3\n st1 scratch[0], 9\n jeq r1, 1, on\n ld4 r2, {area}[r1]\n jmp on\n on: ret"
        );
        let compiled = compiled(&Program::assemble(&text).unwrap());
        let run = |start| agree(&compiled, &[0; 3], &mut VirtAddr(start), &mut [0; 3]);
        assert_eq!((run(0), run(1)), (Step::Fault, Step::Return));
    }
}

/// PROTOCOL 10.23: a load, a store and a search at each offset of a window, with each number of accessible
/// bytes. Machine code on the whole window and the interpreter on the accessible part agree if the access is
/// inside. Otherwise the interpreter ends there.
#[test]
fn windows_at_every_distance_from_the_end() {
    let mut jit = Jit::new(1).unwrap();
    let window: Vec<u8> = (100..140).collect();
    let (mut inside, mut behind) = (0, 0);
    let whole = MemOperand { area: Area::Scratch, index: None, offset: 0 };
    for (size, bytes) in [(Size::B1, 1), (Size::B2, 2), (Size::B4, 4), (Size::B8, 8)] {
        for first in 0..=40 - bytes {
            let offset = i16::try_from(first).unwrap();
            for index in [None, Some(Reg::R1)] {
                let place = MemOperand {
                    area: Area::Window,
                    index,
                    offset: if index.is_some() { 0 } else { offset },
                };
                let count = u8::try_from((40 - first) / bytes).unwrap().min(3);
                let search =
                    farmem_traversal::Search { op: SearchOp::Rank, size, offset, count, key: Reg::R1 };
                let accesses = [
                    (Insn::Load { size, dst: Reg::R4, from: place }, bytes),
                    (Insn::Store { size, to: place, src: Operand::Imm(-2) }, bytes),
                    (Insn::Search { dst: Reg::R4, search }, bytes * usize::from(count)),
                ];
                for (access, len) in accesses {
                    let store = Insn::Store { size: Size::B8, to: whole, src: Operand::Reg(Reg::R4) };
                    let insns = vec![access, store, Insn::Next { ptr: Reg::R4 }];
                    let program = Program::storing_from_instructions(40, 8, insns).unwrap();
                    let compiled = jit.compile(&program).unwrap();
                    for there in 0..=40 {
                        let ended = agree_cut(&compiled, &window, there, first as u64, &[0xee; 8]);
                        assert_eq!(ended, first + len <= there, "{there} bytes are there: {program}");
                        *(if ended { &mut inside } else { &mut behind }) += 1;
                    }
                }
            }
        }
    }
    assert!(inside > 10_000 && behind > 10_000, "{inside} inside, {behind} behind");
}

/// The spill area is zero in each iteration, whatever the stack held (PROTOCOL 10.2).
#[test]
fn the_spill_area_starts_at_zero() {
    let text = ".scratch 16\n ld8 r2, spill[120]\n st8 scratch[0], r2\n ld8 r3, spill[0]\n st8 scratch[8], r3\n\
                st8 spill[120], -1\n st8 spill[0], -1\n next r1";
    let compiled = compiled(&Program::assemble(text).unwrap());
    let mut scratch = [0xee; 16];
    for _ in 0..3 {
        assert_eq!(agree(&compiled, &[0], &mut VirtAddr(1), &mut scratch), Step::Next);
        assert_eq!(scratch, [0; 16]);
    }
}

/// The programs of testdata on windows and pads of few different words, so that keys are found, chains end,
/// and every end of an iteration occurs.
#[test]
fn programs_of_testdata() {
    let mut chance = bytes::Chance(7);
    let mut jit = Jit::new(1).unwrap();
    let (mut next, mut returned) = (0, 0);
    for text in bytes::PROGRAMS {
        let compiled = jit.compile(&Program::assemble(text).unwrap()).unwrap();
        let program = compiled.program();
        let mut words = |len: usize| -> Vec<u8> {
            let word = |_| [0, 1, 2, 14, 0x1000, u64::MAX][chance.below(6)].to_le_bytes();
            (0..len.div_ceil(8)).flat_map(word).take(len).collect()
        };
        for _ in 0..500 {
            let (mut window, mut scratch) = (words(program.window_len()), words(program.scratch_len()));
            match agree_storing(&compiled, &mut window, &mut VirtAddr(0x1000), &mut scratch) {
                Step::Next => next += 1,
                Step::Return => returned += 1,
                Step::Fault => {}
            }
        }
    }
    assert!(next > 500 && returned > 500, "{next} went on, {returned} returned");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Random valid programs, three iterations each, so that a later one would see leftovers of an earlier
    /// one.
    #[test]
    fn random_programs(
        (program, windows, scratch) in program().prop_flat_map(|program| {
            let windows = proptest::collection::vec(memory(program.window_len()), 3);
            let scratch = memory(program.scratch_len());
            (Just(program), windows, scratch)
        }),
        starts in proptest::collection::vec(prop_oneof![any::<u64>(), 0..300_u64], 4),
    ) {
        let compiled = compiled(&program);
        for start in starts {
            let (mut cur_ptr, mut scratch) = (VirtAddr(start), scratch.clone());
            for window in &windows {
                agree(&compiled, window, &mut cur_ptr, &mut scratch);
            }
        }
    }

    /// Random programs that store, with their windows.
    #[test]
    fn random_storing_programs(
        (program, windows, scratch) in storing_program().prop_flat_map(|program| {
            let windows = proptest::collection::vec(memory(program.window_len()), 3);
            let scratch = memory(program.scratch_len());
            (Just(program), windows, scratch)
        }),
        starts in proptest::collection::vec(prop_oneof![any::<u64>(), 0..300_u64], 4),
    ) {
        let compiled = compiled(&program);
        for start in starts {
            let (mut cur_ptr, mut scratch) = (VirtAddr(start), scratch.clone());
            for window in &windows {
                agree_storing(&compiled, &mut window.clone(), &mut cur_ptr, &mut scratch);
            }
        }
    }

    /// Random programs, also storing ones, on windows that are cut at every offset.
    #[test]
    fn random_programs_on_windows_that_are_cut(
        (program, window, scratch) in prop_oneof![program(), storing_program()].prop_flat_map(|program| {
            let (window, scratch) = (memory(program.window_len()), memory(program.scratch_len()));
            (Just(program), window, scratch)
        }),
        start in prop_oneof![any::<u64>(), 0..300_u64],
    ) {
        let compiled = compiled(&program);
        for there in 0..=window.len() {
            agree_cut(&compiled, &window, there, start, &scratch);
        }
    }
}
