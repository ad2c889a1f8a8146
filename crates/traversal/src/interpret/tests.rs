use super::*;
use alloc::format;
use alloc::vec;

const MAX: u64 = u64::MAX;
const MIN: u64 = 1 << 63;
const LOW: u64 = 0xffff_ffff;

/// Runs `line` with r2 = a and r3 = b; returns r2.
fn compute(line: &str, a: u64, b: u64) -> u64 {
    let text = format!(
        ".window 16\n.scratch 8\nld8 r2, window[0]\nld8 r3, window[8]\n{line}\nst8 scratch[0], r2\nret"
    );
    let program = Program::assemble(&text).unwrap_or_else(|error| panic!("{line}: {error}"));
    let window = [a.to_le_bytes(), b.to_le_bytes()].concat();
    let mut scratch = [0; 8];
    assert_eq!(program.step(&window, &mut VirtAddr(0), &mut scratch), Step::Return);
    u64::from_le_bytes(scratch)
}

/// PROTOCOL 10.5, operation by operation. Each row is checked with a register operand, and with an immediate when it fits.
#[test]
fn arithmetic() {
    let rows: [(&str, u64, u64, u64); 62] = [
        ("add", 1, 2, 3),
        ("add", MAX, 1, 0),
        ("add32", LOW, 1, 0),
        ("add32", 0x5_0000_0001, 0x7_0000_0002, 3),
        ("sub", 1, 2, MAX),
        ("sub32", 1, 2, LOW),
        ("mul", 1 << 32, 1 << 32, 0),
        ("mul", MAX, MAX, 1),
        ("mul32", 0x1_0001_0000, 0x10000, 0),
        ("mul32", LOW, LOW, 1),
        ("div", 7, 2, 3),
        ("div", 7, 0, 0),
        ("div", MAX, MAX, 1),
        ("div", MIN, MAX, 0),
        ("div32", 0x9_0000_0007, 0x9_0000_0002, 3),
        ("div32", 0x9_0000_0007, 0x9_0000_0000, 0),
        ("mod", 7, 4, 3),
        ("mod", 7, 0, 7),
        ("mod", MAX, 0, MAX),
        ("mod32", 0x9_0000_0007, 4, 3),
        ("mod32", 0x9_0000_0007, 0x1_0000_0000, 7),
        ("and", 0b1100, 0b1010, 0b1000),
        ("and", MAX, MAX, MAX),
        ("and32", MAX, MAX, LOW),
        ("or", 0b1100, 0b1010, 0b1110),
        ("or", MIN, 1, MIN + 1),
        ("or32", MIN, 1, 1),
        ("xor", 0b1100, 0b1010, 0b0110),
        ("xor", MAX, 1, MAX - 1),
        ("xor32", MAX, 1, LOW - 1),
        ("shl", 1, 63, MIN),
        ("shl", 1, 64, 1),
        ("shl", 1, 65, 2),
        ("shl", 1, MAX, MIN),
        ("shl32", 1, 31, 1 << 31),
        ("shl32", 1, 32, 1),
        ("shl32", 3, 31, 1 << 31),
        ("shr", MIN, 63, 1),
        ("shr", MIN, 64, MIN),
        ("shr", MIN, 0, MIN),
        ("shr32", MAX, 31, 1),
        ("shr32", MAX, 32, LOW),
        ("shr32", 0x8_0000_0000, 3, 0),
        ("sar", MIN, 63, MAX),
        ("sar", MIN, 64, MIN),
        ("sar", MIN >> 1, 62, 1),
        ("sar32", 1 << 31, 31, LOW),
        ("sar32", 1 << 31, 32, 1 << 31),
        ("sar32", MIN, 1, 0),
        ("mov", 5, MAX, MAX),
        ("mov", 5, 6, 6),
        ("mov32", MAX, MAX, LOW),
        ("mov32", MAX, MIN, 0),
        ("neg", 1, 0, MAX),
        ("neg", 0, 0, 0),
        ("neg", MIN, 0, MIN),
        ("neg32", 1, 0, LOW),
        ("neg32", 0x1_0000_0000, 0, 0),
        ("not", 0, 0, MAX),
        ("not", LOW, 0, MAX << 32),
        ("not32", 0, 0, LOW),
        ("not32", MAX, 0, 0),
    ];
    for (op, a, b, expected) in rows {
        if op.starts_with("neg") || op.starts_with("not") {
            assert_eq!(compute(&format!("{op} r2"), a, b), expected, "{op} {a:#x}");
            continue;
        }
        assert_eq!(compute(&format!("{op} r2, r3"), a, b), expected, "{op} {a:#x}, {b:#x}");
        if let Ok(imm) = i32::try_from(b.cast_signed()) {
            assert_eq!(compute(&format!("{op} r2, {imm}"), a, 0), expected, "{op} {a:#x}, {imm}");
        }
    }
}

#[test]
fn immediates_are_sign_extended() {
    assert_eq!(compute("mov r2, -1", 0, 0), MAX);
    assert_eq!(compute("mov r2, -0x8000_0000", 0, 0), 0xffff_ffff_8000_0000);
    assert_eq!(compute("mov32 r2, -1", MAX, 0), LOW);
    assert_eq!(compute("lddw r2, 0x8877665544332211", 0, 0), 0x8877_6655_4433_2211);
    assert_eq!(compute("st8 spill[0], -2\nld8 r2, spill[0]", 0, 0), MAX - 1);
    assert_eq!(compute("st4 spill[0], -2\nld8 r2, spill[0]", 0, 0), LOW - 1);
}

/// PROTOCOL 10.8. For each pair of operands, the conditions that hold; all others must not.
#[test]
fn conditions() {
    let rows: [(u64, u64, &[&str]); 8] = [
        (5, 5, &["eq", "le", "ge", "set", "sle", "sge"]),
        (0, 0, &["eq", "le", "ge", "sle", "sge"]),
        (4, 3, &["ne", "gt", "ge", "sgt", "sge"]),
        (3, 4, &["ne", "lt", "le", "slt", "sle"]),
        (MAX, 1, &["ne", "gt", "ge", "set", "slt", "sle"]),
        (1, MAX, &["ne", "lt", "le", "set", "sgt", "sge"]),
        (MIN, MIN - 1, &["ne", "gt", "ge", "slt", "sle"]),
        (0x1_0000_0000, 0, &["ne", "gt", "ge", "sgt", "sge"]),
    ];
    for (a, b, holding) in rows {
        check_conditions("", a, b, holding);
    }
    let rows32: [(u64, u64, &[&str]); 5] = [
        (0x7_0000_0005, 0x9_0000_0005, &["eq", "le", "ge", "set", "sle", "sge"]),
        (0x1_0000_0000, 0, &["eq", "le", "ge", "sle", "sge"]),
        (0x8000_0000, 1, &["ne", "gt", "ge", "slt", "sle"]),
        (LOW, MAX << 32 | 1, &["ne", "gt", "ge", "set", "slt", "sle"]),
        (0x5_0000_0001, 0x4_0000_0002, &["ne", "lt", "le", "slt", "sle"]),
    ];
    for (a, b, holding) in rows32 {
        check_conditions("32", a, b, holding);
    }
}

fn check_conditions(width: &str, a: u64, b: u64, holding: &[&str]) {
    for (_, cond) in Cond::NAMES {
        let expected = u64::from(holding.contains(&cond));
        let run = |right: &str| {
            let line = format!(
                "j{cond}{width} r2, {right}, yes\nmov r2, 0\njmp out\nyes: mov r2, 1\nout: mov r4, 0"
            );
            compute(&line, a, b)
        };
        assert_eq!(run("r3"), expected, "{a:#x} {cond}{width} {b:#x}");
        if let Ok(imm) = i32::try_from(b.cast_signed()) {
            assert_eq!(run(&format!("{imm}")), expected, "{a:#x} {cond}{width} {imm}");
        }
    }
}

/// PROTOCOL 10.7: little-endian, zero-extended, of 1, 2, 4 and 8 bytes; a store leaves the other bytes
/// unchanged.
#[test]
fn loads_and_stores() {
    let a = 0xf8f7_f6f5_f4f3_f2f1;
    for (size, mask) in [(1, 0xff), (2, 0xffff), (4, LOW), (8, MAX)] {
        assert_eq!(compute(&format!("ld{size} r2, window[0]"), a, 0), a & mask, "ld{size}");
        assert_eq!(
            compute(&format!("mov r4, 0\nld{size} r2, window[r4]"), a, 0),
            a & mask,
            "indexed ld{size}"
        );
        let store = format!("st8 spill[0], -1\nst{size} spill[0], r2\nld8 r2, spill[0]");
        assert_eq!(compute(&store, a, 0), a & mask | !mask, "st{size}");
        let store = format!("mov r4, 9\nst8 spill[8], -1\nst{size} spill[r4 - 1], r2\nld8 r2, spill[r4 - 1]");
        assert_eq!(compute(&store, a, 0), a & mask | !mask, "indexed st{size}");
    }
    assert_eq!(compute("ld8 r2, window[1]", a, 0), a >> 8, "accesses need no alignment");
}

/// PROTOCOL 10.2: r1 is cur_ptr, everything else and the spill area are zero, in every iteration anew.
#[test]
fn an_iteration_starts_from_zero() {
    let mut text = alloc::string::String::from(".scratch 88\n");
    for reg in Reg::ALL {
        text += &format!("st8 scratch[{}], {reg}\n", reg.number() * 8);
    }
    text += "ld8 r3, spill[120]\njeq r3, 0, clean\nret\nclean: st8 spill[120], -1\n";
    for reg in Reg::ALL {
        text += &format!("mov {reg}, -1\n");
    }
    text += "mov r1, 4096\nnext r1";
    let program = Program::assemble(&text).expect("assembles");
    let (mut cur_ptr, mut scratch) = (VirtAddr(77), vec![0xee; 88]);
    for entry in [77_u64, 4096, 4096] {
        assert_eq!(program.step(&[0], &mut cur_ptr, &mut scratch), Step::Next);
        let mut expected = vec![0; 88];
        expected[8..16].copy_from_slice(&entry.to_le_bytes());
        assert_eq!(scratch, expected);
        assert_eq!(cur_ptr, VirtAddr(4096));
    }
}

/// PROTOCOL 10.13: an indexed access that does not lie wholly inside is a fault, wherever the index points.
#[test]
fn an_indexed_access_outside_is_a_fault() {
    for (area, len) in [("window", 32_u64), ("scratch", 24), ("spill", 128)] {
        for size in [1_u64, 2, 4, 8] {
            for access in ["ld", "st"] {
                if (area, access) == ("window", "st") {
                    continue;
                }
                for (index, offset, inside) in [
                    (0, 0, true),
                    (len - size, 0, true),
                    (len - size + 1, 0, false),
                    (len, 0, false),
                    (MAX, 0, false),
                    (MAX, 1, true),
                    (MAX - 7, 8, true),
                    (0, -1, false),
                    (1, -1, true),
                    (MIN, 0, false),
                    (len, i64::from(i16::MAX), false),
                    (u64::from(i16::MIN.unsigned_abs()), i64::from(i16::MIN), true),
                    (1 << 32, 0, false),
                ] {
                    let place = format!("{area}[r2 + {offset}]");
                    let line = if access == "ld" { format!("r3, {place}") } else { format!("{place}, r3") };
                    let text = format!(
                        ".window 32\n.scratch 24\nlddw r2, {index}\nst8 scratch[0], 7\n{access}{size} {line}\nnext r2"
                    );
                    let program = Program::assemble(&text).expect("assembles");
                    let (mut cur_ptr, mut scratch) = (VirtAddr(5), [0; 24]);
                    let step = program.step(&[0; 32], &mut cur_ptr, &mut scratch);
                    let expected = if inside { Step::Next } else { Step::Fault };
                    assert_eq!(step, expected, "{access}{size} {place}, r2 = {index:#x}");
                    if !inside {
                        assert_eq!(cur_ptr, VirtAddr(5), "a fault leaves cur_ptr");
                        assert_eq!(scratch[0], 7, "a fault leaves what was stored before it");
                    }
                }
            }
        }
    }
}

/// Returns a memory with a list whose node at address n holds n + 1; nodes from `end` on are missing.
fn counting(end: u64) -> impl FnMut(VirtAddr, &mut [u8]) -> Result<(), VirtAddr> {
    move |addr, window| {
        if addr.0 >= end {
            return Err(addr);
        }
        window.copy_from_slice(&(addr.0 + 1).to_le_bytes());
        Ok(())
    }
}

/// Returns a program that counts in the scratch pad, and returns at the node whose successor is 10.
fn counter() -> Program {
    let text = ".scratch 8\nld8 r2, scratch[0]\nadd r2, 1\nst8 scratch[0], r2\nld8 r1, window[0]\njeq r1, 10, end\nnext r1\nend: ret";
    Program::assemble(text).expect("assembles")
}

fn state(cur_ptr: u64, count: u64) -> State {
    State { cur_ptr: VirtAddr(cur_ptr), scratch: count.to_le_bytes().into() }
}

/// PROTOCOL 10.14: each executed iteration counts, including the returning one.
#[test]
fn iterations_are_counted() {
    let mut state_0 = state(0, 0);
    let outcome = run(&counter(), &mut counting(100), &mut state_0, 1000);
    assert_eq!(outcome, Outcome { iterations: 10, end: End::Return });
    assert_eq!(state_0, state(9, 10), "cur_ptr is the last node, not the next");

    let mut exact = state(0, 0);
    assert_eq!(run(&counter(), &mut counting(100), &mut exact, 10).end, End::Return);
}

/// PULSE 3: a traversal stopped at its limit is continued from its state, and ends as if it had not been stopped.
#[test]
fn a_limit_stops_and_the_state_continues() {
    let mut stopped = state(0, 0);
    for (limit, expected) in [(0, 0), (1, 1), (4, 5), (4, 9)] {
        let outcome = run(&counter(), &mut counting(100), &mut stopped, limit);
        assert_eq!(outcome, Outcome { iterations: limit, end: End::IterationLimit });
        assert_eq!(stopped, state(expected, expected));
    }
    let outcome = run(&counter(), &mut counting(100), &mut stopped, 4);
    assert_eq!(outcome, Outcome { iterations: 1, end: End::Return });
    assert_eq!(stopped, state(9, 10));
}

/// PULSE 5: the pointer leads to another memory node. The other node begins with the load that failed.
#[test]
fn a_failed_fetch_leaves_the_state_for_another_node() {
    let mut moved = state(0, 0);
    let outcome = run(&counter(), &mut counting(6), &mut moved, 1000);
    assert_eq!(outcome, Outcome { iterations: 6, end: End::Fetch(VirtAddr(6)) });
    assert_eq!(moved, state(6, 6));
    let outcome = run(&counter(), &mut counting(100), &mut moved, 1000);
    assert_eq!(outcome, Outcome { iterations: 4, end: End::Return });
    assert_eq!(moved, state(9, 10));
}

#[test]
fn a_faulting_iteration_counts_and_ends_the_run() {
    let program =
        Program::assemble(".window 8\nld8 r2, window[0]\nld1 r3, window[r2]\nnext r2").expect("assembles");
    let mut faulty = State { cur_ptr: VirtAddr(3), scratch: vec![] };
    let outcome = run(&program, &mut counting(100), &mut faulty, 1000);
    assert_eq!(outcome, Outcome { iterations: 5, end: End::Fault });
    assert_eq!(faulty.cur_ptr, VirtAddr(7), "the node whose content was the bad index");
}

#[test]
#[should_panic(expected = "the scratch pad is the program's")]
fn a_wrong_scratch_pad_is_the_callers_mistake() {
    counter().step(&[0; 8], &mut VirtAddr(0), &mut [0; 7]);
}

#[test]
#[should_panic(expected = "the window is the program's")]
fn a_wrong_window_is_the_callers_mistake() {
    counter().step(&[0; 9], &mut VirtAddr(0), &mut [0; 8]);
}

/// PROTOCOL 10.22: unsigned, of every size, with all 64 bits of the key; the first of equal elements is found.
#[test]
fn arrays_are_searched() {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let search = |line: &str, window: &[u8], key: u64| {
        let text = format!(".window {}\n.scratch 8\n{line}\nst8 scratch[0], r2\nret", window.len());
        let program = Program::assemble(&text).unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut scratch = [0; 8];
        assert_eq!(program.step(window, &mut VirtAddr(key), &mut scratch), Step::Return);
        u64::from_le_bytes(scratch)
    };
    let keys = words(&[3, 5, 5, MIN, MAX]);
    for (key, rank, found) in
        [(0, 0, 5), (3, 1, 0), (4, 1, 5), (5, 3, 1), (MIN - 1, 3, 5), (MIN, 4, 3), (MAX, 5, 4)]
    {
        assert_eq!(search("rank8 r2, window[0], 5, r1", &keys, key), rank, "{key:#x}");
        assert_eq!(search("match8 r2, window[0], 5, r1", &keys, key), found, "{key:#x}");
    }
    assert_eq!(search("match8 r2, window[8], 1, r1", &keys, 3), 1, "not in this part");
    let bytes = [9, 0xff, 1, 0xff, 0x80];
    assert_eq!(search("rank1 r2, window[0], 5, r1", &bytes, 0x80), 3, "elements are unsigned");
    assert_eq!(search("rank1 r2, window[1], 3, r1", &bytes, 0x1_0000_0000), 3, "the key is not cut");
    assert_eq!(search("match1 r2, window[0], 5, r1", &bytes, 0xff), 1);
    assert_eq!(search("match1 r2, window[0], 5, r1", &bytes, 0x1ff), 5, "the key is not cut");
    assert_eq!(search("match2 r2, window[1], 2, r1", &bytes, 0x80ff), 1, "no alignment is needed");
    assert_eq!(search("rank4 r2, window[1], 1, r1", &bytes, 0x80ff_01ff), 1);
}

const COUNT_UP: &str = ".stores\n.window 16\nld8 r2, window[0]\nadd r2, 1\nst8 window[0], r2\n\
                        ld8 r3, window[0]\njne r3, r2, bad\nld8 r2, window[8]\njeq r2, 0, end\nnext r2\n\
                        bad: st1 scratch[r2], 0\nend: ret";

/// PROTOCOL 10.10: an iteration sees its own stores. The memory gets the window at its end, and only if it
/// changed.
#[test]
fn a_window_that_was_stored_to_is_taken_back() {
    let program = Program::assemble(COUNT_UP).expect("assembles");
    let mut memory = [[7_u64, 1], [8, 2], [9, 0]];
    let mut log = vec![];
    let mut serve = |addr: VirtAddr, access: WindowAccess<'_>| {
        let node = &mut memory[usize::try_from(addr.0).expect("small")];
        match access {
            WindowAccess::Load(window) => {
                window[..8].copy_from_slice(&node[0].to_le_bytes());
                window[8..].copy_from_slice(&node[1].to_le_bytes());
            }
            WindowAccess::Store(window) => {
                log.push(addr.0);
                node[0] = u64::from_le_bytes(*window.first_chunk().expect("16 bytes"));
            }
        }
        Ok::<(), ()>(())
    };
    let mut state = State { cur_ptr: VirtAddr(0), scratch: vec![] };
    let outcome = run_storing(&program, &mut serve, &mut state, 9);
    assert_eq!((outcome.end, outcome.iterations), (End::Return, 3));
    assert_eq!((memory, log), ([[8, 1], [9, 2], [10, 0]], vec![0, 1, 2]));
}

/// PROTOCOL 10.13: the stores of a faulting iteration are discarded; an unchanged window is not stored
/// either.
#[test]
fn a_fault_stores_nothing() {
    let program =
        Program::assemble(".stores\n.window 8\nst1 window[0], 1\nld1 r2, window[r1]\nret").expect("good");
    for (at, end, stored) in [(7, End::Return, 1), (8, End::Fault, 0)] {
        let mut stores = 0;
        let mut serve = |_: VirtAddr, access: WindowAccess<'_>| {
            stores += u32::from(matches!(access, WindowAccess::Store([1, 0, 0, 0, 0, 0, 0, 0])));
            Ok::<(), ()>(())
        };
        let mut state = State { cur_ptr: VirtAddr(at), scratch: vec![] };
        assert_eq!(run_storing(&program, &mut serve, &mut state, 1).end, end);
        assert_eq!(stores, stored);
    }
    let same = Program::assemble(".stores\n.window 8\nst1 window[0], 0\nret").expect("good");
    let mut serve = |_: VirtAddr, access: WindowAccess<'_>| {
        assert!(matches!(access, WindowAccess::Load(_)), "nothing changed");
        Ok::<(), ()>(())
    };
    assert_eq!(run_storing(&same, &mut serve, &mut State::default(), 1).end, End::Return);
}

/// A read-only window cannot take a store.
#[test]
#[should_panic(expected = "needs a window of its own")]
fn a_storing_program_does_not_run_on_a_lent_window() {
    let program = Program::assemble(".stores\n.window 8\nret").expect("good");
    program.step(&[0; 8], &mut VirtAddr(0), &mut []);
}

/// A processor that mispredicts a bounds check continues with the masked index, which is inside the area for
/// any index. A valid index is unchanged.
#[test]
fn a_guess_at_a_bound_stays_inside() {
    for last in [0, 1, 7, 255, 4031] {
        let edges = [
            0,
            1,
            last,
            last + 1,
            last + 8,
            1 << 20,
            1 << 62,
            1 << 63,
            (1 << 63) + last,
            u64::MAX - last,
            u64::MAX,
        ];
        for start in edges {
            let expected = if start <= last { start } else { 0 };
            assert_eq!(inside(start, last), expected, "{start:#x} of {last:#x}");
        }
    }
}
