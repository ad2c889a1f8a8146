use super::*;
use crate::Program;
use crate::isa::{AluOp, Cond, MemOperand, Operand, Reg, SearchOp, Size, Width};
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

const MOVE: Insn = Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: Reg::R2, src: Operand::Imm(1) };

fn place(area: Area, offset: i16) -> MemOperand {
    MemOperand { area, index: None, offset }
}

fn load(size: Size, area: Area, offset: i16) -> Insn {
    Insn::Load { size, dst: Reg::R0, from: place(area, offset) }
}

/// Verifies these instructions and a `ret`, with a window of 24 bytes and a scratch pad of 16.
fn verdict(insns: &[Insn]) -> Result<(), VerifyError> {
    let mut insns = insns.to_vec();
    insns.push(Insn::Return);
    Program::from_instructions(24, 16, insns).map(|_| ())
}

fn at(slot: usize, why: Rejection) -> Result<(), VerifyError> {
    Err(VerifyError::At { slot, why })
}

/// PROTOCOL 10.12: a constant access lies inside its area, to the last byte.
#[test]
fn constant_accesses_lie_inside() {
    for (area, len) in [(Area::Window, 24), (Area::Scratch, 16), (Area::Spill, 128)] {
        for size in Size::ALL {
            let bytes = size.bytes();
            let last = i16::try_from(len - bytes).expect("small");
            assert_eq!(verdict(&[load(size, area, last)]), Ok(()), "{area} {size:?}");
            for offset in [last + 1, i16::MAX, -1, i16::MIN] {
                let why = Rejection::Outside { area, offset, size: bytes, len };
                assert_eq!(verdict(&[load(size, area, offset)]), at(0, why), "{area} {size:?} {offset}");
            }
        }
    }
    let store =
        |offset| Insn::Store { size: Size::B8, to: place(Area::Scratch, offset), src: Operand::Imm(0) };
    assert_eq!(verdict(&[store(8)]), Ok(()));
    let why = Rejection::Outside { area: Area::Scratch, offset: 9, size: 8, len: 16 };
    assert_eq!(verdict(&[MOVE, store(9)]), at(1, why));
}

/// An indexed access is checked when it runs: no offset is refused here.
#[test]
fn indexed_accesses_are_left_to_the_run() {
    for offset in [i16::MIN, -1, 0, 500, i16::MAX] {
        let from = MemOperand { area: Area::Window, index: Some(Reg::R3), offset };
        assert_eq!(verdict(&[Insn::Load { size: Size::B8, dst: Reg::R0, from }]), Ok(()));
    }
}

/// PROTOCOL 10.10: only a program that declares it stores to the window, and a constant store must lie inside
/// as a load.
#[test]
fn the_window_is_read_only_unless_declared() {
    let storing =
        |insn| Program::storing_from_instructions(24, 16, Vec::from([insn, Insn::Return])).map(|_| ());
    for (index, offset) in [(None, 0), (None, 23), (Some(Reg::R3), 0), (Some(Reg::R3), -9)] {
        let to = MemOperand { area: Area::Window, index, offset };
        let store = Insn::Store { size: Size::B1, to, src: Operand::Reg(Reg::R0) };
        assert_eq!(verdict(&[MOVE, store]), at(1, Rejection::WindowStore));
        assert_eq!(storing(store), Ok(()));
    }
    let outside = Insn::Store { size: Size::B2, to: place(Area::Window, 23), src: Operand::Imm(0) };
    let why = Rejection::Outside { area: Area::Window, offset: 23, size: 2, len: 24 };
    assert_eq!(storing(outside), at(0, why));
}

/// PROTOCOL 10.22: an array that is searched has 1 to 64 elements, all in the window.
#[test]
fn arrays_lie_in_the_window() {
    let search = |size, offset, count| {
        let search = Search { op: SearchOp::Rank, size, offset, count, key: Reg::R1 };
        verdict(&[Insn::Search { dst: Reg::R0, search }])
    };
    for (size, offset, count) in [(Size::B8, 0, 3), (Size::B8, 16, 1), (Size::B1, 0, 24), (Size::B4, 3, 5)] {
        assert_eq!(search(size, offset, count), Ok(()), "{size:?} {offset} {count}");
    }
    let outside = |offset, size| at(0, Rejection::Outside { area: Area::Window, offset, size, len: 24 });
    assert_eq!(search(Size::B8, 1, 3), outside(1, 24));
    assert_eq!(search(Size::B8, -8, 1), outside(-8, 8));
    assert_eq!(search(Size::B1, 0, 25), outside(0, 25));
    assert_eq!(search(Size::B8, i16::MAX, 64), outside(i16::MAX, 512));
    for count in [0, 65, 255] {
        assert_eq!(search(Size::B1, 0, count), at(0, Rejection::SearchCount(count.into())));
    }
}

#[test]
fn decoded_targets_are_checked_too() {
    let branch = |target| Insn::Branch {
        width: Width::W64,
        cond: Cond::Eq,
        left: Reg::R0,
        right: Operand::Imm(0),
        target,
    };
    assert_eq!(verdict(&[MOVE, branch(2)]), Ok(()));
    assert_eq!(verdict(&[MOVE, branch(1)]), at(1, Rejection::Backward), "to itself");
    assert_eq!(verdict(&[MOVE, Insn::Jump { target: 0 }]), at(1, Rejection::Backward));
    assert_eq!(verdict(&[MOVE, branch(3)]), at(1, Rejection::TargetOutside));
    assert_eq!(verdict(&[Insn::Jump { target: u16::MAX }]), at(0, Rejection::TargetOutside));
}

/// A refusal names the slot, not the instruction: a 64-bit constant before it counts twice.
#[test]
fn a_refusal_names_the_slot() {
    let constant = Insn::Imm64 { dst: Reg::R0, imm: 0 };
    assert_eq!(verdict(&[constant, constant, Insn::Jump { target: 9 }]), at(4, Rejection::TargetOutside));
}

#[test]
fn a_program_ends_with_a_terminal_instruction() {
    let falls = |insns: &[Insn]| Program::from_instructions(1, 0, insns.to_vec()).map(|_| ());
    assert_eq!(falls(&[MOVE]), at(0, Rejection::FallsOff));
    let constant = Insn::Imm64 { dst: Reg::R0, imm: 0 };
    assert_eq!(falls(&[Insn::Return, constant]), at(1, Rejection::FallsOff));
    assert_eq!(falls(&[Insn::Next { ptr: Reg::R1 }]), Ok(()));
    assert_eq!(falls(&[]), Err(VerifyError::Empty));
}

#[test]
fn sizes_are_bounded() {
    let sizes =
        |window, scratch| Program::from_instructions(window, scratch, Vec::from([Insn::Return])).map(|_| ());
    assert_eq!(sizes(1, 0), Ok(()));
    assert_eq!(sizes(256, SCRATCH_LEN_MAX), Ok(()));
    assert_eq!(sizes(0, 0), Err(VerifyError::WindowLen(0)));
    assert_eq!(sizes(257, 0), Err(VerifyError::WindowLen(257)));
    assert_eq!(sizes(1, SCRATCH_LEN_MAX + 1), Err(VerifyError::ScratchLen(SCRATCH_LEN_MAX + 1)));
    assert_eq!(sizes(usize::MAX, usize::MAX), Err(VerifyError::WindowLen(usize::MAX)));
}

/// 512 slots, the last of them `ret`; a constant counts two.
#[test]
fn length_is_bounded_in_slots() {
    assert_eq!(verdict(&[MOVE; 511]), Ok(()));
    assert_eq!(verdict(&[MOVE; 512]), Err(VerifyError::TooLong { slots: 513 }));
    let constant = Insn::Imm64 { dst: Reg::R0, imm: 0 };
    let mut insns = Vec::from([constant; 255]);
    insns.push(MOVE);
    assert_eq!(verdict(&insns), Ok(()));
    insns.push(MOVE);
    assert_eq!(verdict(&insns), Err(VerifyError::TooLong { slots: 513 }));
}

/// N of PULSE 4.1 is the longest path, not the number of instructions and not the shortest path.
#[test]
fn the_longest_path_is_counted() {
    for (text, expected) in [
        ("ret", 1),
        ("lddw r2, 1\nret", 2),
        ("jeq r2, 0, a\nadd r2, 1\nadd r2, 1\na: ret", 4),
        ("jeq r2, 0, a\nret\na: add r2, 1\nadd r2, 1\nret", 4),
        (".window 256\nrank8 r2, window[8], 15, r1\nret", 9),
        (".window 256\nmatch1 r2, window[8], 15, r1\nret", 2),
        ("jmp a\nadd r2, 1\nadd r2, 1\nadd r2, 1\na: ret", 2),
        ("jeq r2, 0, a\nadd r2, 1\njmp b\na: add r2, 2\nadd r2, 3\nadd r2, 4\nb: next r2", 5),
    ] {
        let program = Program::assemble(text).expect(text);
        assert_eq!(program.longest_path(), expected, "{text}");
        let path: Vec<_> = program.on_longest_path().collect();
        assert_eq!(path.iter().map(|(_, insn)| insn.weight()).sum::<u16>(), expected, "{text}");
        assert!(path[0].0 == 0 && path.last().expect("not empty").1.is_terminal(), "{text}");
        assert!(path.is_sorted_by(|a, b| a.0 < b.0), "{text}: jumps lead ahead");
    }
}

#[test]
fn the_window_counts_in_lines() {
    for (len, lines) in [(1, 1), (64, 1), (65, 2), (128, 2), (129, 3), (256, 4)] {
        let program = Program::assemble(&format!(".window {len}\nret")).expect("assembles");
        assert_eq!((program.window_len(), program.lines()), (len, lines));
    }
}

/// The messages for the author of a refused program.
#[test]
fn refusals_say_what_is_wrong() {
    for (error, text) in [
        (
            VerifyError::At {
                slot: 3,
                why: Rejection::Outside { area: Area::Window, offset: 60, size: 8, len: 64 },
            },
            "slot 3: 8 bytes at 60 leave the load window, which has 64",
        ),
        (
            VerifyError::At { slot: 0, why: Rejection::WindowStore },
            "slot 0: the window is read-only in a program that does not declare `.stores`",
        ),
        (
            VerifyError::At { slot: 0, why: Rejection::SearchCount(65) },
            "slot 0: 65 elements cannot be searched, only 1 to 64",
        ),
        (VerifyError::TooLong { slots: 600 }, "the program has 600 slots, 512 are possible"),
        (VerifyError::WindowLen(0), "a load window of 0 bytes is not possible, only 1 to 256"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}
