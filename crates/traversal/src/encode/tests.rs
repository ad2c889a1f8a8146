use crate::{Program, Rejection, VerifyError};
use alloc::format;
use alloc::vec::Vec;

/// Every form of instruction and its slot (PROTOCOL 10.5 to 10.9), written down by hand: a changed number breaks
/// every program that was ever stored.
const SLOTS: [(&str, &[u8]); 86] = [
    ("add r1, r2", &[0x0f, 0x21, 0, 0, 0, 0, 0, 0]),
    ("add r10, 7", &[0x07, 0x0a, 0, 0, 7, 0, 0, 0]),
    ("add32 r1, r2", &[0x0c, 0x21, 0, 0, 0, 0, 0, 0]),
    ("add32 r1, -2", &[0x04, 0x01, 0, 0, 0xfe, 0xff, 0xff, 0xff]),
    ("sub r0, r10", &[0x1f, 0xa0, 0, 0, 0, 0, 0, 0]),
    ("sub r0, 1", &[0x17, 0, 0, 0, 1, 0, 0, 0]),
    ("mul r0, 1", &[0x27, 0, 0, 0, 1, 0, 0, 0]),
    ("div r0, 1", &[0x37, 0, 0, 0, 1, 0, 0, 0]),
    ("or r0, 1", &[0x47, 0, 0, 0, 1, 0, 0, 0]),
    ("and r0, 1", &[0x57, 0, 0, 0, 1, 0, 0, 0]),
    ("shl r0, 1", &[0x67, 0, 0, 0, 1, 0, 0, 0]),
    ("shr r0, 1", &[0x77, 0, 0, 0, 1, 0, 0, 0]),
    ("mod r0, 1", &[0x97, 0, 0, 0, 1, 0, 0, 0]),
    ("xor r0, 1", &[0xa7, 0, 0, 0, 1, 0, 0, 0]),
    ("mov r0, 1", &[0xb7, 0, 0, 0, 1, 0, 0, 0]),
    ("sar r0, 1", &[0xc7, 0, 0, 0, 1, 0, 0, 0]),
    ("mov32 r3, 0xffff_ffff", &[0xb4, 0x03, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    ("neg r4", &[0x87, 0x04, 0, 0, 0, 0, 0, 0]),
    ("neg32 r4", &[0x84, 0x04, 0, 0, 0, 0, 0, 0]),
    ("not r4", &[0xe7, 0x04, 0, 0, 0, 0, 0, 0]),
    ("not32 r4", &[0xe4, 0x04, 0, 0, 0, 0, 0, 0]),
    (
        "lddw r5, 0x8877665544332211",
        &[0x18, 0x05, 0, 0, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0x55, 0x66, 0x77, 0x88],
    ),
    ("lddw r5, -1", &[0x18, 0x05, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    ("ld4 r1, window[2]", &[0x01, 0x01, 2, 0, 0, 0, 0, 0]),
    ("ld2 r1, window[2]", &[0x09, 0x01, 2, 0, 0, 0, 0, 0]),
    ("ld1 r1, window[255]", &[0x11, 0x01, 255, 0, 0, 0, 0, 0]),
    ("ld8 r1, window[248]", &[0x19, 0x01, 248, 0, 0, 0, 0, 0]),
    ("ld4 r1, scratch[0]", &[0x21, 0x01, 0, 0, 0, 0, 0, 0]),
    ("ld2 r1, scratch[0]", &[0x29, 0x01, 0, 0, 0, 0, 0, 0]),
    ("ld1 r1, scratch[0]", &[0x31, 0x01, 0, 0, 0, 0, 0, 0]),
    ("ld8 r1, scratch[0]", &[0x39, 0x01, 0, 0, 0, 0, 0, 0]),
    ("ld4 r1, spill[0]", &[0x41, 0x01, 0, 0, 0, 0, 0, 0]),
    ("ld2 r1, spill[0]", &[0x49, 0x01, 0, 0, 0, 0, 0, 0]),
    ("ld1 r1, spill[0]", &[0x51, 0x01, 0, 0, 0, 0, 0, 0]),
    ("ld8 r1, spill[120]", &[0x59, 0x01, 120, 0, 0, 0, 0, 0]),
    ("ld8 r1, window[r2]", &[0x99, 0x21, 0, 0, 0, 0, 0, 0]),
    ("ld8 r1, window[r0 - 8]", &[0x99, 0x01, 0xf8, 0xff, 0, 0, 0, 0]),
    ("ld8 r1, scratch[r2 + 0x102]", &[0xb9, 0x21, 2, 1, 0, 0, 0, 0]),
    ("ld8 r1, spill[r2 + 1]", &[0xd9, 0x21, 1, 0, 0, 0, 0, 0]),
    ("st4 scratch[8], -1", &[0x22, 0, 8, 0, 0xff, 0xff, 0xff, 0xff]),
    ("st2 scratch[8], 5", &[0x2a, 0, 8, 0, 5, 0, 0, 0]),
    ("st1 scratch[8], 5", &[0x32, 0, 8, 0, 5, 0, 0, 0]),
    ("st8 scratch[8], 5", &[0x3a, 0, 8, 0, 5, 0, 0, 0]),
    ("st8 spill[8], 5", &[0x5a, 0, 8, 0, 5, 0, 0, 0]),
    ("st8 scratch[r3 + 8], 5", &[0xba, 0x03, 8, 0, 5, 0, 0, 0]),
    ("st4 scratch[8], r9", &[0x23, 0x90, 8, 0, 0, 0, 0, 0]),
    ("st8 spill[r3 - 1], r9", &[0xdb, 0x93, 0xff, 0xff, 0, 0, 0, 0]),
    ("st4 window[8], -1", &[0x02, 0, 8, 0, 0xff, 0xff, 0xff, 0xff]),
    ("st8 window[r3 - 1], r9", &[0x9b, 0x93, 0xff, 0xff, 0, 0, 0, 0]),
    ("rank8 r2, window[8], 15, r3", &[0x79, 0x32, 8, 0, 15, 0, 0, 0]),
    ("rank4 r2, window[8], 1, r3", &[0x61, 0x32, 8, 0, 1, 0, 0, 0]),
    ("rank2 r2, window[8], 1, r3", &[0x69, 0x32, 8, 0, 1, 0, 0, 0]),
    ("rank1 r2, window[8], 64, r3", &[0x71, 0x32, 8, 0, 64, 0, 0, 0]),
    ("match8 r0, window[0], 32, r10", &[0xf9, 0xa0, 0, 0, 32, 0, 0, 0]),
    ("match1 r0, window[0], 32, r10", &[0xf1, 0xa0, 0, 0, 32, 0, 0, 0]),
    ("jmp end", &[0x05, 0, 1, 0, 0, 0, 0, 0]),
    ("jeq r1, r2, end", &[0x1d, 0x21, 1, 0, 0, 0, 0, 0]),
    ("jeq r1, 3, end", &[0x15, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jgt r1, 3, end", &[0x25, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jge r1, 3, end", &[0x35, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jset r1, 3, end", &[0x45, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jne r1, 3, end", &[0x55, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jsgt r1, 3, end", &[0x65, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jsge r1, 3, end", &[0x75, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jlt r1, 3, end", &[0xa5, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jle r1, 3, end", &[0xb5, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jslt r1, 3, end", &[0xc5, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jsle r1, 3, end", &[0xd5, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jeq32 r1, r2, end", &[0x1e, 0x21, 1, 0, 0, 0, 0, 0]),
    ("jgt32 r1, 3, end", &[0x26, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jge32 r1, 3, end", &[0x36, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jset32 r1, 3, end", &[0x46, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jne32 r1, 3, end", &[0x56, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jsgt32 r1, 3, end", &[0x66, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jsge32 r1, 3, end", &[0x76, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jlt32 r1, 3, end", &[0xa6, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jle32 r1, 3, end", &[0xb6, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jslt32 r1, 3, end", &[0xc6, 0x01, 1, 0, 3, 0, 0, 0]),
    ("jsle32 r1, 3, end", &[0xd6, 0x01, 1, 0, 3, 0, 0, 0]),
    ("next r7", &[0xe5, 0x07, 0, 0, 0, 0, 0, 0]),
    ("ret", &[0x95, 0, 0, 0, 0, 0, 0, 0]),
    ("mul32 r1, r2", &[0x2c, 0x21, 0, 0, 0, 0, 0, 0]),
    ("div32 r1, r2", &[0x3c, 0x21, 0, 0, 0, 0, 0, 0]),
    ("mod32 r1, r2", &[0x9c, 0x21, 0, 0, 0, 0, 0, 0]),
    ("sar32 r1, r2", &[0xcc, 0x21, 0, 0, 0, 0, 0, 0]),
    ("mov r1, r2", &[0xbf, 0x21, 0, 0, 0, 0, 0, 0]),
];

#[test]
fn every_instruction_has_its_slot() {
    for (line, expected) in SLOTS {
        let text = format!(".window 256\n.scratch 256\n.stores\n{line}\nmov r0, 0\nend: ret\n");
        let program = Program::assemble(&text).expect(line);
        let slots = &program.encoded()[super::HEADER_LEN..];
        assert_eq!(&slots[..expected.len()], expected, "{line}");
        assert_eq!(Program::decode(program.encoded()).as_ref(), Ok(&program), "{line}");
    }
}

/// PROTOCOL 10.3: version, flags, window, scratch pad, slots; little-endian.
#[test]
fn the_header_has_its_bytes() {
    let program = Program::assemble(".window 256\n.scratch 56\nlddw r1, 1\nret").expect("assembles");
    assert_eq!(program.encoded()[..8], [1, 0, 0x00, 0x01, 56, 0, 3, 0]);
    assert_eq!(program.encoded().len(), 8 + 3 * 8);
}

/// PROTOCOL 10.17. The digest is the one of Python's hashlib for the same bytes; its last bit is the flag's.
#[test]
fn the_name_is_the_first_half_of_the_digest() {
    let program = Program::assemble("ret").expect("assembles");
    assert_eq!(program.encoded(), [1, 0, 1, 0, 0, 0, 1, 0, 0x95, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(program.hash().0, DIGEST);
}

const DIGEST: [u8; 16] =
    [0xac, 0x32, 0xa4, 0x57, 0x2b, 0x0a, 0xa9, 0x5c, 0x12, 0xde, 0x38, 0x9e, 0xb9, 0x62, 0xfa, 0x70];

const RETURN: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// Returns a program of these slots and a `ret`, with the largest areas.
fn program(slots: &[[u8; 8]]) -> Vec<u8> {
    let count = u16::try_from(slots.len() + 1).expect("few");
    let mut bytes = Vec::from([1, 0, 0, 1, 0, 1]);
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend(slots.iter().flatten());
    bytes.extend(RETURN);
    bytes
}

fn refusal(slots: &[[u8; 8]]) -> Result<(), VerifyError> {
    Program::decode(&program(slots)).map(|_| ())
}

/// Returns the slot, and the second one that `lddw` needs.
fn with_second(slot: &[u8; 8]) -> Vec<[u8; 8]> {
    if slot[0] == 0x18 { Vec::from([*slot, [0; 8]]) } else { Vec::from([*slot]) }
}

/// PROTOCOL 10.4: a field that an instruction does not use is zero, so that a program has one encoding and
/// one name.
#[test]
fn unused_fields_must_be_zero() {
    let cases: [(&str, [u8; 8], &str); 17] = [
        ("alu by register has no imm", [0x0f, 0x21, 0, 0, 1, 0, 0, 0], "imm"),
        ("alu by immediate has no src", [0x07, 0x21, 0, 0, 1, 0, 0, 0], "src"),
        ("alu has no offset", [0x07, 0x01, 1, 0, 1, 0, 0, 0], "offset"),
        ("neg has no src", [0x87, 0x11, 0, 0, 0, 0, 0, 0], "src"),
        ("neg has no imm", [0x87, 0x01, 0, 0, 0, 0, 0, 1], "imm"),
        ("neg has no offset", [0x87, 0x01, 0, 1, 0, 0, 0, 0], "offset"),
        ("load has no imm", [0x19, 0x01, 0, 0, 1, 0, 0, 0], "imm"),
        ("constant load has no src", [0x19, 0x21, 0, 0, 0, 0, 0, 0], "src"),
        ("constant store has no dst", [0x3b, 0x21, 0, 0, 0, 0, 0, 0], "dst"),
        ("store by register has no imm", [0x3b, 0x20, 0, 0, 1, 0, 0, 0], "imm"),
        ("store of a constant has no src", [0x3a, 0x20, 0, 0, 1, 0, 0, 0], "src"),
        ("jmp has no dst", [0x05, 0x01, 0, 0, 0, 0, 0, 0], "dst"),
        ("jmp has no imm", [0x05, 0, 0, 0, 1, 0, 0, 0], "imm"),
        ("branch by register has no imm", [0x1d, 0x21, 0, 0, 1, 0, 0, 0], "imm"),
        ("next has no src", [0xe5, 0x21, 0, 0, 0, 0, 0, 0], "src"),
        ("ret has no dst", [0x95, 0x01, 0, 0, 0, 0, 0, 0], "dst"),
        ("ret has no offset", [0x95, 0, 1, 0, 0, 0, 0, 0], "offset"),
    ];
    for (what, slot, field) in cases {
        assert_eq!(
            refusal(&[slot]),
            Err(VerifyError::At { slot: 0, why: Rejection::Reserved(field) }),
            "{what}"
        );
    }
    let first = [0x18, 0x01, 0, 0, 0, 0, 0, 0];
    for (second, field) in [
        ([0, 1, 0, 0, 0, 0, 0, 0], "dst"),
        ([0, 0x10, 0, 0, 0, 0, 0, 0], "src"),
        ([0, 0, 1, 0, 0, 0, 0, 0], "offset"),
    ] {
        let why = Rejection::Reserved(field);
        assert_eq!(refusal(&[first, second]), Err(VerifyError::At { slot: 0, why }), "second slot's {field}");
    }
}

#[test]
fn registers_end_at_ten() {
    for (slot, number) in [
        ([0x07, 0x0b, 0, 0, 0, 0, 0, 0], 11),
        ([0x0f, 0xf0, 0, 0, 0, 0, 0, 0], 15),
        ([0x99, 0xb0, 0, 0, 0, 0, 0, 0], 11),
        ([0xe5, 0x0c, 0, 0, 0, 0, 0, 0], 12),
        ([0x18, 0x0d, 0, 0, 0, 0, 0, 0], 13),
    ] {
        assert_eq!(
            refusal(&with_second(&slot)),
            Err(VerifyError::At { slot: 0, why: Rejection::Register(number) })
        );
    }
}

/// Counts the valid ones of the 256 opcodes; decoding refuses every other one by number.
#[test]
fn opcodes_that_mean_nothing_are_refused() {
    let mut known = 0;
    for opcode in 0..=u8::MAX {
        match refusal(&with_second(&[opcode, 0, 0, 0, 0, 0, 0, 0])) {
            Ok(()) => known += 1,
            Err(VerifyError::At { slot: 0, why: Rejection::WindowStore }) => {
                assert!(matches!(opcode & 0x67, 2 | 3))
            }
            Err(VerifyError::At { slot: 0, why: Rejection::SearchCount(0) }) => {
                assert!(matches!(opcode & 0x67, 0x61))
            }
            Err(error) => {
                assert_eq!(error, VerifyError::At { slot: 0, why: Rejection::Opcode(opcode) });
            }
        }
    }
    // 2 widths x (12 operations x 2 operands + 2), 2 widths x 11 conditions x 2 operands, 3 areas x 4 sizes x 2 loads,
    // 2 areas x 4 sizes x 2 x 2 stores, and lddw, jmp, next, ret.
    assert_eq!(known, 2 * 26 + 44 + 24 + 32 + 4);
}

/// PROTOCOL 10.10, 10.17: the flag is in the header and in the last bit of the name; without it a store is
/// refused.
#[test]
fn stores_to_the_window_are_declared() {
    let store = [0x1b, 0x20, 0, 0, 0, 0, 0, 0];
    assert_eq!(refusal(&[store]), Err(VerifyError::At { slot: 0, why: Rejection::WindowStore }));
    let mut bytes = program(&[store]);
    bytes[1] = 1;
    let storing = Program::decode(&bytes).expect("declared");
    assert!(storing.stores() && storing.hash().stores());
    assert_eq!(storing.encoded(), bytes);
    for text in ["ret", "mov r1, 1\nret", "mov r1, 2\nret", "mov r1, 3\nret"] {
        let (plain, storing) = (Program::assemble(text), Program::assemble(&format!(".stores\n{text}")));
        let (plain, storing) = (plain.expect(text), storing.expect(text));
        assert_ne!(plain, storing);
        assert_eq!((plain.hash().stores(), storing.hash().stores()), (false, true), "{text}");
    }
}

/// The number of elements is at most a byte's worth, and is not taken modulo anything.
#[test]
fn an_array_has_no_more_elements_than_its_slot_says() {
    for imm in [0_i32, 65, 256, 257, -1, i32::MAX, i32::MIN] {
        let [a, b, c, d] = imm.to_le_bytes();
        let refused = refusal(&[[0x79, 0x21, 0, 0, a, b, c, d]]);
        let why = Rejection::SearchCount(imm.cast_unsigned());
        assert_eq!(refused, Err(VerifyError::At { slot: 0, why }), "{imm}");
    }
}

#[test]
fn a_constant_needs_both_slots() {
    let lddw = [0x18, 0x01, 0, 0, 1, 0, 0, 0];
    let half = |slot| Err(VerifyError::At { slot, why: Rejection::HalfConstant });
    assert_eq!(refusal(&[lddw]), half(0), "an instruction in the second slot");
    let mut cut = program(&[lddw]);
    cut.truncate(16);
    cut[6] = 1;
    assert_eq!(Program::decode(&cut).map(|_| ()), half(0), "no second slot");
    assert_eq!(refusal(&[lddw, [0; 8]]), Ok(()));
}

/// PROTOCOL 10.8: forward, inside, and to an instruction.
#[test]
fn jumps_lead_forward_to_an_instruction() {
    let jump = |offset: i16| {
        let [low, high] = offset.to_le_bytes();
        [0x05, 0, low, high, 0, 0, 0, 0]
    };
    let lddw = [0x18, 0x01, 0, 0, 1, 0, 0, 0];
    let at = |slot, why| Err(VerifyError::At { slot, why });
    assert_eq!(refusal(&[jump(0)]), Ok(()), "to the next one is forward");
    assert_eq!(refusal(&[jump(-1)]), at(0, Rejection::Backward), "to itself");
    assert_eq!(refusal(&[RETURN, jump(-2)]), at(1, Rejection::Backward));
    assert_eq!(refusal(&[jump(i16::MIN)]), at(0, Rejection::Backward));
    assert_eq!(refusal(&[jump(1)]), at(0, Rejection::TargetOutside));
    assert_eq!(refusal(&[jump(i16::MAX)]), at(0, Rejection::TargetOutside));
    assert_eq!(refusal(&[jump(1), lddw, [0; 8]]), at(0, Rejection::TargetInConstant));
    assert_eq!(refusal(&[jump(2), lddw, [0; 8]]), Ok(()));
}

#[test]
fn the_header_is_checked() {
    let good = program(&[]);
    assert!(Program::decode(&good).is_ok());
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Program::decode(&bytes).map(|_| ())
    };
    assert_eq!(with(0, 0), Err(VerifyError::Version(0)));
    assert_eq!(with(0, 2), Err(VerifyError::Version(2)));
    assert_eq!(with(1, 1), Ok(()), "it may store and does not");
    assert_eq!(with(1, 2), Err(VerifyError::Flags(2)));
    assert_eq!(with(1, 0x81), Err(VerifyError::Flags(0x81)));
    assert_eq!(with(2, 1), Err(VerifyError::WindowLen(257)));
    assert_eq!(with(3, 0), Err(VerifyError::WindowLen(0)));
    assert_eq!(with(5, 16), Err(VerifyError::ScratchLen(4096)));
    assert_eq!(with(6, 0), Err(VerifyError::Length { expected: 8, have: 16 }));
    assert_eq!(with(6, 2), Err(VerifyError::Length { expected: 24, have: 16 }));
    assert_eq!(with(7, 2), Err(VerifyError::TooLong { slots: 513 }));
    for len in 0..good.len() {
        assert!(matches!(Program::decode(&good[..len]), Err(VerifyError::Length { .. })), "{len} bytes");
    }
    let trailing = [&good[..], &[0]].concat();
    assert_eq!(Program::decode(&trailing).map(|_| ()), Err(VerifyError::Length { expected: 16, have: 17 }));
    assert_eq!(Program::decode(&[1, 0, 1, 0, 0, 0, 0, 0]).map(|_| ()), Err(VerifyError::Empty));
}
