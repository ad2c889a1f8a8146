//! Random functions as a C compiler could write them: no loops, but blocks in any order; pointers that are
//! moved, merged, spilled and indexed; numbers of every width.

use proptest::prelude::*;
use proptest::strategy::Union;

/// Registers of numbers; r1 and r2 are constant, r3 is `cur_ptr`. r9 is for pointers within a statement, and
/// a number between statements.
const NUMBERS: [u8; 7] = [0, 3, 4, 5, 6, 7, 8];
const POINTER: u8 = 9;
const WINDOW: u8 = 1;
const SCRATCH: u8 = 2;
const STACK: u8 = 10;
/// Stack slots 0 to 7 are for numbers, the rest for pointers within a statement.
const NUMBER_SLOTS: i16 = 8;

/// A function in blocks. A block leads only to later blocks; in memory they are in another order.
#[derive(Clone, Debug)]
pub(super) struct Function {
    blocks: Vec<Block>,
    /// Sort keys of the blocks except the first: their order in memory.
    places: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Block {
    statements: Vec<Vec<[u8; 8]>>,
    end: End,
}

#[derive(Clone, Debug)]
enum End {
    Exit(Option<i32>),
    Goto(usize),
    /// Condition opcode and registers; distances to two later blocks.
    Branch([u8; 8], usize, usize),
}

fn insn(opcode: u8, dst: u8, src: u8, offset: i16, imm: i32) -> [u8; 8] {
    let ([o0, o1], [i0, i1, i2, i3]) = (offset.to_le_bytes(), imm.to_le_bytes());
    [opcode, dst | src << 4, o0, o1, i0, i1, i2, i3]
}

fn number() -> impl Strategy<Value = u8> {
    prop::sample::select(&NUMBERS)
}

fn imm() -> impl Strategy<Value = i32> {
    prop_oneof![-3..4, 0..129, any::<i32>()]
}

/// Generates the size bits of an opcode, and the bytes.
fn size() -> impl Strategy<Value = (u8, i16)> {
    prop::sample::select(&[(0x00, 4), (0x08, 2), (0x10, 1), (0x18, 8)])
}

fn alu() -> impl Strategy<Value = Vec<[u8; 8]>> {
    let operations =
        prop::sample::select(&[0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0]);
    (operations, prop::sample::select(&[4, 7]), number(), prop::option::of(number()), imm()).prop_map(
        |(operation, class, dst, src, imm)| match (operation, src) {
            (0x80, _) => vec![insn(operation | class, dst, 0, 0, 0)],
            (_, Some(src)) => vec![insn(operation | class | 8, dst, src, 0, 0)],
            (_, None) => vec![insn(operation | class, dst, 0, 0, imm)],
        },
    )
}

/// Generates a byte swap, as in -mcpu=v3 and v4.
fn swap() -> impl Strategy<Value = Vec<[u8; 8]>> {
    (prop::sample::select(&[0xdc, 0xd7]), number(), prop::sample::select(&[16, 32, 64]))
        .prop_map(|(opcode, reg, bits)| vec![insn(opcode, reg, 0, 0, bits)])
}

/// Generates a pointer or NULL, by a condition; then an access through it, or none.
fn pointer_or_null() -> impl Strategy<Value = Vec<[u8; 8]>> {
    (condition(), number(), 0..2_u8, 0..8_i16, any::<bool>()).prop_map(
        |(mut condition, reg, area, word, equal)| {
            let base = if area == 0 { WINDOW } else { SCRATCH };
            condition[2] = 1;
            let mut code = vec![insn(0xbf, POINTER, base, 0, 0), condition, insn(0xb7, POINTER, 0, 0, 0)];
            if equal {
                code.extend([insn(0x15, POINTER, 0, 1, 0), insn(0x79, reg, POINTER, word * 8, 0)]);
            } else {
                code.extend([
                    insn(0x55, POINTER, 0, 1, 0),
                    insn(0x05, 0, 0, 1, 0),
                    insn(0x79, reg, POINTER, word * 8, 0),
                ]);
            }
            code.push(insn(0xb7, POINTER, 0, 0, 0));
            code
        },
    )
}

/// Generates a condition over numbers: an opcode with registers and imm, without a target.
fn condition() -> impl Strategy<Value = [u8; 8]> {
    let conditions =
        prop::sample::select(&[0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0]);
    (conditions, prop::sample::select(&[5, 6]), number(), prop::option::of(number()), imm()).prop_map(
        |(condition, class, left, right, imm)| match right {
            Some(right) => insn(condition | class | 8, left, right, 0, 0),
            None => insn(condition | class, left, 0, 0, imm),
        },
    )
}

/// Returns an offset in an area of this many bytes.
fn offset(len: i16, bytes: i16, at: i16) -> i16 {
    at.rem_euclid(len - bytes + 1)
}

/// Generates a load or store at a constant offset of any area; of the stack only at number slots.
fn access() -> impl Strategy<Value = Vec<[u8; 8]>> {
    (0..5_u8, size(), number(), any::<i16>(), imm()).prop_map(|(what, (bits, bytes), reg, at, imm)| {
        let slot = |at| -128 + offset(NUMBER_SLOTS * 8, bytes, at);
        vec![match what {
            0 => insn(0x61 | bits, reg, WINDOW, offset(128, bytes, at), 0),
            1 => insn(0x61 | bits, reg, SCRATCH, offset(64, bytes, at), 0),
            2 => insn(0x63 | bits, SCRATCH, reg, offset(64, bytes, at), 0),
            3 => insn(0x61 | bits, reg, STACK, slot(at), 0),
            _ if imm % 2 == 0 => insn(0x62 | bits, STACK, 0, slot(at), imm),
            _ => insn(0x63 | bits, STACK, reg, slot(at), 0),
        }]
    })
}

/// Generates an indexed access. The index is masked, mostly to stay inside. The base may have been moved or
/// spilled, or have an addend on one path only.
fn indexed() -> impl Strategy<Value = Vec<[u8; 8]>> {
    let kind = (0..3_u8, size(), number(), number(), 0..5_u8, condition(), any::<bool>());
    (kind, 0..4_i32, 0..33_i16, 8..16_i16).prop_map(|(kind, moved, at, slot)| {
        let (what, (bits, _), index, reg, shape, mut condition, store) = kind;
        let (base, mask, start) = match what {
            0 => (WINDOW, 0x3f, 0),
            1 => (SCRATCH, 0x1f, 0),
            _ => (STACK, 0x1f, -128),
        };
        let (index, reg) = if index == reg { (3, if reg == 3 { 4 } else { reg }) } else { (index, reg) };
        let mut code = vec![insn(0x57, index, 0, 0, mask)];
        if shape == 4 {
            // Sometimes outside the area.
            code.push(insn(0x27, index, 0, 0, 9));
        }
        code.push(insn(0xbf, POINTER, base, 0, 0));
        if moved > 0 {
            code.push(insn(0x07, POINTER, 0, 0, moved));
        }
        match shape {
            0 => {
                // On one path only.
                condition[2] = 1;
                code.push(condition);
                code.push(insn(0x0f, POINTER, index, 0, 0));
            }
            1 => {
                // Through the stack, and the other way around.
                code.push(insn(0x7b, STACK, POINTER, -128 + slot * 8, 0));
                code.push(insn(0x79, POINTER, STACK, -128 + slot * 8, 0));
                code.push(insn(0x0f, POINTER, index, 0, 0));
            }
            2 => {
                // A constant on one path only: the location differs.
                condition[2] = 1;
                code.push(condition);
                code.push(insn(0x07, POINTER, 0, 0, 8));
            }
            // The location is a multiple of 32 and the index is below 32: clang writes `or` for such a sum.
            3 if moved == 0 => code.push(insn(0x4f, POINTER, index, 0, 0)),
            _ => {
                code.push(insn(0x0f, POINTER, index, 0, 0));
                if moved == 2 {
                    // The index changes before it is used.
                    code.push(insn(0x07, index, 0, 0, 5));
                }
            }
        }
        let at = start + at.rem_euclid(24);
        // The pointers' slots are out of reach of indexed stores: 32 + 24 + 3 + 8 bytes from the start of the
        // numbers'.
        code.push(match what {
            0 => insn(0x61 | bits, reg, POINTER, at, 0),
            _ if store => insn(0x63 | bits, POINTER, reg, at, 0),
            _ => insn(0x61 | bits, reg, POINTER, at, 0),
        });
        code.push(insn(0xb7, POINTER, 0, 0, 0));
        code
    })
}

fn statement() -> impl Strategy<Value = Vec<[u8; 8]>> {
    Union::new_weighted(vec![
        (5, alu().boxed()),
        (5, access().boxed()),
        (2, indexed().boxed()),
        (1, swap().boxed()),
        (1, pointer_or_null().boxed()),
    ])
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        1 => prop::option::of(prop_oneof![Just(0), Just(1), any::<i32>()]).prop_map(End::Exit),
        2 => (0..4_usize).prop_map(End::Goto),
        5 => (condition(), 0..4_usize, 0..4_usize).prop_map(|(condition, a, b)| End::Branch(condition, a, b)),
    ]
}

/// Generates any function of up to nine blocks.
pub(super) fn function() -> impl Strategy<Value = Function> {
    let block = (prop::collection::vec(statement(), 0..7), end())
        .prop_map(|(statements, end)| Block { statements, end });
    let blocks = prop::collection::vec(block, 1..10);
    (blocks, prop::collection::vec(any::<u64>(), 10)).prop_map(|(blocks, places)| Function { blocks, places })
}

impl Function {
    /// Returns the instructions.
    pub(super) fn code(&self) -> Vec<[u8; 8]> {
        // The first block initializes every number.
        let set = NUMBERS
            .iter()
            .chain([&POINTER])
            .filter(|&&reg| reg != 3)
            .map(|&reg| insn(0xb7, reg, 0, 0, i32::from(reg) * 11));
        let slots = (0..NUMBER_SLOTS).map(|slot| insn(0x7a, STACK, 0, -128 + slot * 8, i32::from(slot) - 4));
        let mut order: Vec<usize> = (1..self.blocks.len()).collect();
        order.sort_by_key(|&block| self.places[block]);
        order.insert(0, 0);

        let mut code: Vec<_> = set.chain(slots).collect();
        let mut starts = vec![0; self.blocks.len()];
        let mut jumps = Vec::new();
        for &number in &order {
            starts[number] = if number == 0 { 0 } else { code.len() };
            let block = &self.blocks[number];
            code.extend(block.statements.iter().flatten());
            let behind = |distance: usize| number + 1 + distance;
            let is_last = |distance| behind(distance) >= self.blocks.len();
            match block.end {
                End::Goto(to) if !is_last(to) => {
                    jumps.push((code.len(), behind(to)));
                    code.push(insn(0x05, 0, 0, 0, 0));
                }
                End::Branch(condition, taken, fall) if !is_last(taken) && !is_last(fall) => {
                    jumps.push((code.len(), behind(taken)));
                    code.push(condition);
                    jumps.push((code.len(), behind(fall)));
                    code.push(insn(0x05, 0, 0, 0, 0));
                }
                End::Exit(Some(value)) => code.extend([insn(0xb7, 0, 0, 0, value), insn(0x95, 0, 0, 0, 0)]),
                End::Exit(None) | End::Goto(_) | End::Branch(..) => code.push(insn(0x95, 0, 0, 0, 0)),
            }
        }
        for (at, to) in jumps {
            let place = |at: usize| i16::try_from(at).expect("a short function");
            let [o0, o1] = (place(starts[to]) - place(at) - 1).to_le_bytes();
            (code[at][2], code[at][3]) = (o0, o1);
        }
        code
    }
}
