//! Machine code and interpreter do the same, to the byte: on every instruction, on the programs of testdata, on random programs.

#[path = "../../traversal/tests/generator/mod.rs"]
mod generator;

use farmem_engine::{Compiled, Executor, IN_FLIGHT_MAX, Jit, Miss, Range, Ranges, Search, Visit};
use farmem_traversal::{
    AluOp, Area, Cond, End, Insn, Operand, Outcome, Place, Program, Reg, SCRATCH_LEN_MAX, SearchOp, Size,
    State, Step, UnaryOp, Width, run,
};
use farmem_wire::VirtAddr;
use generator::{memory, program, storing_program};
use proptest::prelude::*;
use std::sync::Arc;

fn compiled(program: &Program) -> Arc<Compiled> {
    Jit::new(1).unwrap().compile(program).unwrap()
}

/// Runs one iteration both ways and answers how it ended.
fn agree(compiled: &Compiled, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
    let program = compiled.program();
    let (mut our_ptr, mut ours) = (*cur_ptr, scratch.to_vec());
    let expected = program.step(window, cur_ptr, scratch);
    let step = compiled.step(window, &mut our_ptr, &mut ours);
    assert_eq!((step, our_ptr), (expected, *cur_ptr), "{program}");
    assert_eq!(ours, scratch, "{program}");
    step
}

/// As [`agree`], with a window of its own for each.
fn agree_storing(compiled: &Compiled, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
    let program = compiled.program();
    let (mut our_ptr, mut ours, mut our_window) = (*cur_ptr, scratch.to_vec(), window.to_vec());
    let expected = program.step_storing(window, cur_ptr, scratch);
    let step = compiled.step_storing(&mut our_window, &mut our_ptr, &mut ours);
    assert_eq!((step, our_ptr), (expected, *cur_ptr), "{program}");
    assert_eq!((ours, our_window), (scratch.to_vec(), window.to_vec()), "{program}");
    step
}

/// Numbers where wrapping, signs, masks and lengths show.
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

/// Each of `middle`s instructions computes on r2 and r3, which are words 0 and 1 of the window, and leaves its result in r2. It is run
/// for all pairs of edges.
fn on_all_edges(middles: impl IntoIterator<Item = Vec<Insn>>) {
    let word = |area, number: i16| Place { area, index: None, offset: number * 8 };
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
            let place = Place { area, index, offset };
            let mark = Operand::Imm(-0x1234_5678);
            let mut insns = Vec::new();
            if area != Area::Window {
                insns.push(Insn::Store { size, to: place, src: mark });
                insns.push(Insn::Store { size, to: place, src: Operand::Reg(Reg::R1) });
            }
            insns.push(Insn::Load { size, dst: Reg::R4, from: place });
            let whole = Place { area: Area::Scratch, index: None, offset: 24 };
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

/// PROTOCOL 10.10: every size, constant and indexed, inside, at the edges and far outside; what was stored is there for the next load.
#[test]
fn every_store_to_the_window() {
    let mut jit = Jit::new(1).unwrap();
    let (mut inside, mut faults) = (0, 0);
    for (size, number) in [(Size::B1, 1), (Size::B2, 2), (Size::B4, 4), (Size::B8, 8)] {
        for (index, offset) in
            [(None, 0), (None, 13), (Some(Reg::R1), 0), (Some(Reg::R1), -9), (Some(Reg::R1), 21)]
        {
            let to = Place { area: Area::Window, index, offset };
            let whole = Place { area: Area::Scratch, index: None, offset: 0 };
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

/// PROTOCOL 10.22: RANK and MATCH over elements of every size, as many as there may be, for keys that are there, beside them, and larger than
/// any element. The array lies anywhere, also unaligned.
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
                // Few different bytes, so that keys are met; among them those with the top bit set.
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

/// An area too short for any access of that size: the check can only fail, and what stands behind it is never reached.
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

/// Bytes by offset, and a range table of ranges that are not where they seem.
struct Bytes(Vec<u8>);

impl Bytes {
    fn window(&self, offset: u64, len: usize) -> &[u8] {
        let start = usize::try_from(offset).expect("small");
        &self.0[start..start + len]
    }
}

fn interpret(
    program: &Program,
    ranges: &Ranges,
    memory: &Bytes,
    state: &mut State,
    limit: u32,
) -> Outcome<Miss> {
    let mut fetch = |addr: VirtAddr, window: &mut [u8]| {
        let offset = ranges.translate(addr.0, window.len())?;
        window.copy_from_slice(memory.window(offset, window.len()));
        Ok(())
    };
    run(program, &mut fetch, state, limit)
}

const TESTDATA: [&str; 4] = [
    include_str!("../../../testdata/programs/hash_find.pulse"),
    include_str!("../../../testdata/programs/list_sum.pulse"),
    include_str!("../../../testdata/programs/lower_bound.pulse"),
    include_str!("../../../testdata/programs/btree_find.pulse"),
];

/// Programs from testdata over memory whose words point into itself, into the gap, and nowhere: 200 visits of all four programs at
/// once, with limits from none to many, in every number of workspaces and every way to search ranges. Each visit must end as the
/// interpreter ends it, alone.
#[test]
fn visits_of_different_programs_do_not_meet() {
    let ranges = [(0x1000, 0x2000, 0x2000), (0x4000, 0x2000, 0)];
    let ranges = ranges.map(|(base, len, offset)| Range { base, len, offset });
    let ranges = Ranges::new(&ranges).unwrap();
    let mut chance = 7_u64;
    let mut below = |end: u16| {
        chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        u16::try_from(chance >> 33 & 0xffff).unwrap() % end
    };
    let words = (0..0x800).flat_map(|_| {
        u64::from([0, 1, 0x1000 + below(0x5000), below(3)][usize::from(below(4))]).to_le_bytes()
    });
    let memory = Bytes(words.collect());
    let mut jit = Jit::new(TESTDATA.len()).unwrap();
    let programs = TESTDATA.map(|text| jit.compile(&Program::assemble(text).unwrap()).unwrap());
    let starts: Vec<_> = (0..200)
        .map(|number| {
            let program = &programs[number % programs.len()];
            let scratch = (0..program.program().scratch_len()).map(|_| u8::from(below(3) == 1)).collect();
            // Some begin in the last words of a range, where no window ends inside.
            let at = if below(8) == 0 { 0x3000 - 8 } else { 0x1000 + below(0x5000) / 8 * 8 };
            let state = State { cur_ptr: VirtAddr(u64::from(at)), scratch };
            (program, state, u32::from(below(12)))
        })
        .collect();
    let expected: Vec<_> = starts
        .iter()
        .map(|(program, state, limit)| {
            let mut state = state.clone();
            (interpret(program.program(), &ranges, &memory, &mut state, *limit), state)
        })
        .collect();
    for (in_flight, search) in
        (1..=IN_FLIGHT_MAX).flat_map(|n| Search::all().into_iter().map(move |s| (n, s)))
    {
        let mut states: Vec<_> = starts.iter().map(|(_, state, _)| state.clone()).collect();
        let mut outcomes = vec![None; starts.len()];
        let visits = starts.iter().zip(&mut states).map(|((program, _, limit), state)| Visit {
            program,
            ranges: &ranges,
            cur_ptr: &mut state.cur_ptr,
            scratch: &mut state.scratch,
            limit: *limit,
        });
        Executor::with_search(in_flight, search).run(&memory.0, visits, |number, outcome| {
            assert!(outcomes[number].replace(outcome).is_none(), "a visit ends once");
        });
        for (number, (expected, outcome)) in expected.iter().zip(outcomes.iter().zip(states)).enumerate() {
            assert_eq!((&Some(expected.0), &expected.1), (outcome.0, &outcome.1), "visit {number}");
        }
    }
    let ended = |end| expected.iter().filter(|(outcome, _)| outcome.end == end).count();
    let ends = [End::Return, End::IterationLimit, End::Fetch(Miss::Elsewhere), End::Fetch(Miss::Straddles)];
    for end in ends {
        assert!(ended(end) > 3, "{end:?} was hardly tried");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Random valid programs, three iterations each, so that what one leaves behind would be seen by the next.
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

    /// The same with programs that store, and the windows they leave.
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

    /// Random valid programs in the executor, each with visits of its own beside those of the others.
    #[test]
    fn random_programs_in_flight(
        programs in proptest::collection::vec(program(), 1..4),
        bytes in memory(4096),
        pads in memory(SCRATCH_LEN_MAX),
        starts in proptest::collection::vec((any::<prop::sample::Index>(), 0..4096_u64, 0..6_u32), 1..80),
        in_flight in 1..=IN_FLIGHT_MAX,
    ) {
        let mut jit = Jit::new(4).unwrap();
        let programs: Vec<_> = programs.iter().map(|program| jit.compile(program).unwrap()).collect();
        let memory = Bytes(bytes);
        let ranges = Ranges::new(&[Range { base: 0, len: 4096, offset: 0 }]).unwrap();
        let state = |program: &Compiled, start| {
            State { cur_ptr: VirtAddr(start), scratch: pads[..program.program().scratch_len()].to_vec() }
        };
        let starts: Vec<_> =
            starts.iter().map(|(which, start, limit)| (which.get(&programs), *start, *limit)).collect();
        let mut states: Vec<_> = starts.iter().map(|(program, start, _)| state(program, *start)).collect();
        let mut outcomes = vec![None; starts.len()];
        let visits = starts.iter().zip(&mut states).map(|((program, _, limit), state)| Visit {
            program,
            ranges: &ranges,
            cur_ptr: &mut state.cur_ptr,
            scratch: &mut state.scratch,
            limit: *limit,
        });
        Executor::new(in_flight).run(&memory.0, visits, |number, outcome| outcomes[number] = Some(outcome));
        for (((program, start, limit), ours), outcome) in starts.iter().zip(&states).zip(outcomes) {
            let mut theirs = state(program, *start);
            let expected = interpret(program.program(), &ranges, &memory, &mut theirs, *limit);
            prop_assert_eq!((outcome, ours), (Some(expected), &theirs), "{}", program.program());
        }
    }
}

/// The executor reads where tables lead without asking again, so it takes none that leads elsewhere.
#[test]
#[should_panic(expected = "a range table does not leave the memory")]
fn a_table_must_not_leave_the_memory() {
    let program = compiled(&Program::assemble(".window 8\n ld8 r1, window[0]\n next r1").unwrap());
    let ranges = Ranges::new(&[Range { base: 0, len: 64, offset: 1 }]).unwrap();
    let mut cur_ptr = VirtAddr(0);
    let visit =
        Visit { program: &program, ranges: &ranges, cur_ptr: &mut cur_ptr, scratch: &mut [], limit: 9 };
    Executor::default().run(&[0; 64], [visit], |_, _| {});
}
