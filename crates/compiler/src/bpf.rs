//! Decoder of BPF instructions (RFC 9669) into operations over the registers of the iterator ISA.
//!
//! Most operations are the same on both sides, bit for bit: arithmetic, shifts modulo the width, x / 0 = 0,
//! zero-extension. The registers differ. A BPF function gets the node in r1, the scratch pad in r2, `cur_ptr`
//! in r3 and a stack in r10. An iteration of the ISA starts with `cur_ptr` in r1 and zeros elsewhere
//! (PROTOCOL 10.2). So r1 and r3 are exchanged.

use crate::elf::IN_SECTION;
use crate::error::Unsupported;
use farmem_traversal::{AluOp, Cond, Operand, Reg, SearchOp, Size, Width};
use std::collections::BTreeMap;

/// The registers of the ISA with a function's arguments, and with the top of its stack.
pub(crate) const WINDOW: Reg = Reg::R3;
pub(crate) const SCRATCH: Reg = Reg::R2;
pub(crate) const CUR_PTR: Reg = Reg::ENTRY;
pub(crate) const STACK: Reg = Reg::R10;
/// The register of a function's result: 0 for RETURN, else the pointer of NEXT_ITER.
pub(crate) const RESULT: Reg = Reg::R0;

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Alu {
        width: Width,
        op: AluOp,
        dst: Reg,
        src: Operand,
    },
    Neg {
        width: Width,
        dst: Reg,
    },
    Constant {
        dst: Reg,
        value: u64,
    },
    /// `dst` = the low bits of `src`, sign-extended to `width`.
    Extend {
        width: Width,
        bits: u8,
        dst: Reg,
        src: Reg,
    },
    /// `dst` = its low bytes in reverse order.
    Swap {
        size: Size,
        dst: Reg,
    },
    Load {
        size: Size,
        signed: bool,
        dst: Reg,
        base: Reg,
        offset: i16,
    },
    Store {
        size: Size,
        base: Reg,
        offset: i16,
        src: Operand,
    },
    /// A call of RANK or MATCH: [`RESULT`] = the result for the array at [`WINDOW`], with the number of
    /// elements in [`SCRATCH`] and the key in [`CUR_PTR`]. As any call, it clobbers the argument registers.
    Search {
        op: SearchOp,
        size: Size,
    },
    /// A jump; targets are positions in the list of operations.
    Goto {
        target: usize,
    },
    Branch {
        width: Width,
        cond: Cond,
        left: Reg,
        right: Operand,
        target: usize,
    },
    Exit,
}

/// An operation and the number of its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Numbered {
    pub(crate) op: Op,
    pub(crate) slot: usize,
}

/// A refusal and the number of the slot.
pub(crate) type Refused = (usize, Unsupported);

struct RawInsn {
    opcode: u8,
    dst: u8,
    src: u8,
    offset: i16,
    imm: i32,
}

impl RawInsn {
    fn read(bytes: &[u8; 8]) -> Self {
        let [opcode, registers, o0, o1, i0, i1, i2, i3] = *bytes;
        Self {
            opcode,
            dst: registers & 0x0f,
            src: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            imm: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    fn dst(&self) -> Result<Reg, Unsupported> {
        register(self.dst)
    }

    fn src(&self) -> Result<Reg, Unsupported> {
        register(self.src)
    }

    fn operand(&self) -> Result<Operand, Unsupported> {
        if self.opcode & BY_REG == 0 { Ok(Operand::Imm(self.imm)) } else { Ok(Operand::Reg(self.src()?)) }
    }

    fn size(&self) -> Size {
        match self.opcode & 0x18 {
            0x00 => Size::B4,
            0x08 => Size::B2,
            0x10 => Size::B1,
            _ => Size::B8,
        }
    }
}

const BY_REG: u8 = 0x08;
const LDDW: u8 = 0x18;
const CALL: u8 = 0x85;
const CALL_REG: u8 = 0x8d;
const EXIT: u8 = 0x95;
const GOTO: u8 = 0x05;
const GOTO_LONG: u8 = 0x06;

fn register(number: u8) -> Result<Reg, Unsupported> {
    let reg = Reg::from_number(number).ok_or(Unsupported::Malformed("a register above r10"))?;
    Ok(match reg {
        Reg::R1 => WINDOW,
        Reg::R3 => CUR_PTR,
        other => other,
    })
}

/// Decodes a function. `references` has the names that slots refer to.
pub(crate) fn decode(
    code: &[[u8; 8]],
    references: &BTreeMap<usize, String>,
) -> Result<Vec<Numbered>, Refused> {
    let positions = positions(code);
    let mut ops = Vec::with_capacity(code.len());
    let mut slots = code.iter().map(RawInsn::read).enumerate();
    while let Some((at, slot)) = slots.next() {
        let refuse = |why| (at, why);
        let op = if slot.opcode == LDDW {
            let (_, second) =
                slots.next().ok_or_else(|| refuse(Unsupported::Malformed("half a constant")))?;
            constant(&slot, &second, references.get(&at)).map_err(refuse)?
        } else {
            operation(&slot, at, &positions, references.get(&at)).map_err(refuse)?
        };
        ops.push(Numbered { op, slot: at });
    }
    Ok(ops)
}

/// Returns the position of the operation that begins at each slot; `None` for the second half of a constant.
fn positions(code: &[[u8; 8]]) -> Vec<Option<usize>> {
    let mut positions = vec![None; code.len()];
    let (mut at, mut position) = (0, 0);
    while let Some(entry) = positions.get_mut(at) {
        *entry = Some(position);
        position += 1;
        at += if code[at][0] == LDDW { 2 } else { 1 };
    }
    positions
}

fn constant(first: &RawInsn, second: &RawInsn, reference: Option<&String>) -> Result<Op, Unsupported> {
    match reference {
        Some(name) if name == IN_TEXT => {
            return Err(Unsupported::Call("a function through a pointer".into()));
        }
        Some(name) => {
            return Err(match name.strip_prefix(IN_SECTION) {
                Some(section) => Unsupported::Table(section.to_owned()),
                None => Unsupported::Global(name.clone()),
            });
        }
        None => {}
    }
    if first.src != 0 {
        return Err(Unsupported::Global("of a BPF map".into()));
    }
    if second.opcode != 0 {
        return Err(Unsupported::Malformed("half a constant"));
    }
    let value = u64::from(first.imm.cast_unsigned()) | u64::from(second.imm.cast_unsigned()) << 32;
    Ok(Op::Constant { dst: first.dst()?, value })
}

fn operation(
    slot: &RawInsn,
    at: usize,
    positions: &[Option<usize>],
    reference: Option<&String>,
) -> Result<Op, Unsupported> {
    let goto = |distance: i64| {
        let target = i64::try_from(at).ok().and_then(|at| usize::try_from(at + 1 + distance).ok());
        let position = target.and_then(|target| positions.get(target).copied());
        position.ok_or(Unsupported::FallsOff)?.ok_or(Unsupported::Malformed("a jump into a constant"))
    };
    match (slot.opcode, slot.opcode & 0x07) {
        (CALL, _) => search(slot, reference).ok_or_else(|| Unsupported::Call(callee(slot, reference))),
        (CALL_REG, _) => Err(Unsupported::Call("a function through a pointer".into())),
        (EXIT, _) => Ok(Op::Exit),
        (GOTO, _) => Ok(Op::Goto { target: goto(i64::from(slot.offset))? }),
        (GOTO_LONG, _) => Ok(Op::Goto { target: goto(i64::from(slot.imm))? }),
        (_, 1) => load(slot),
        (_, 2 | 3) => store(slot),
        (_, 4) => alu(slot, Width::W32),
        (_, 7) => alu(slot, Width::W64),
        (_, class @ (5 | 6)) => {
            let width = if class == 5 { Width::W64 } else { Width::W32 };
            let cond = condition(slot.opcode).ok_or(Unsupported::Opcode(slot.opcode))?;
            let target = goto(i64::from(slot.offset))?;
            Ok(Op::Branch { width, cond, left: slot.dst()?, right: slot.operand()?, target })
        }
        _ => Err(Unsupported::Opcode(slot.opcode)),
    }
}

/// The call numbers of RANK and MATCH in cpp/include/farmem/iterator.h, without the element size.
const RANK: i32 = 0x4661_0000;
const MATCH: i32 = 0x4661_0100;

fn search(slot: &RawInsn, reference: Option<&String>) -> Option<Op> {
    if reference.is_some() || slot.src != 0 {
        return None;
    }
    let sizes = [(1, Size::B1), (2, Size::B2), (4, Size::B4), (8, Size::B8)];
    let called = |base: i32| sizes.iter().find(|(bytes, _)| slot.imm == base + bytes).map(|(_, size)| *size);
    let rank = called(RANK).map(|size| Op::Search { op: SearchOp::Rank, size });
    rank.or_else(|| called(MATCH).map(|size| Op::Search { op: SearchOp::Match, size }))
}

/// The name of an unnamed function in a reference ([`crate::elf`]).
const IN_TEXT: &str = "in section .text";

fn callee(slot: &RawInsn, reference: Option<&String>) -> String {
    match reference {
        Some(name) if name != IN_TEXT => name.clone(),
        _ if slot.src == 0 && slot.imm >= 0 => format!("the kernel's function {}", slot.imm),
        _ => "a function that was not inlined".into(),
    }
}

fn load(slot: &RawInsn) -> Result<Op, Unsupported> {
    let signed = match slot.opcode & 0xe0 {
        0x60 => false,
        0x80 if slot.size() != Size::B8 => true,
        _ => return Err(Unsupported::Opcode(slot.opcode)),
    };
    Ok(Op::Load { size: slot.size(), signed, dst: slot.dst()?, base: slot.src()?, offset: slot.offset })
}

fn store(slot: &RawInsn) -> Result<Op, Unsupported> {
    let src = match (slot.opcode & 0xe0, slot.opcode & 0x07) {
        (0x60, 2) => Operand::Imm(slot.imm),
        (0x60, _) => Operand::Reg(slot.src()?),
        (0xc0, 3) => return Err(Unsupported::Atomic),
        _ => return Err(Unsupported::Opcode(slot.opcode)),
    };
    Ok(Op::Store { size: slot.size(), base: slot.dst()?, offset: slot.offset, src })
}

fn alu(slot: &RawInsn, width: Width) -> Result<Op, Unsupported> {
    let dst = slot.dst()?;
    let op = match slot.opcode & 0xf0 {
        0x00 => AluOp::Add,
        0x10 => AluOp::Sub,
        0x20 => AluOp::Mul,
        0x30 => AluOp::Div,
        0x40 => AluOp::Or,
        0x50 => AluOp::And,
        0x60 => AluOp::Shl,
        0x70 => AluOp::Shr,
        0x80 if slot.opcode & BY_REG == 0 => return Ok(Op::Neg { width, dst }),
        0x90 => AluOp::Mod,
        0xa0 => AluOp::Xor,
        0xb0 => AluOp::Mov,
        0xc0 => AluOp::Sar,
        0xd0 => return byte_order(slot, width, dst),
        _ => return Err(Unsupported::Opcode(slot.opcode)),
    };
    match (op, slot.offset) {
        (_, 0) => Ok(Op::Alu { width, op, dst, src: slot.operand()? }),
        (AluOp::Div | AluOp::Mod, 1) => Err(Unsupported::SignedDivision),
        (AluOp::Mov, bits @ (8 | 16 | 32)) if slot.opcode & BY_REG != 0 => {
            let bits = u8::try_from(bits).expect("8, 16 or 32");
            Ok(Op::Extend { width, bits, dst, src: slot.src()? })
        }
        _ => Err(Unsupported::Malformed("an offset in an operation that has none")),
    }
}

/// Decodes a byte order operation: `le` keeps the low bits; all others reverse bytes.
fn byte_order(slot: &RawInsn, width: Width, dst: Reg) -> Result<Op, Unsupported> {
    let size = match slot.imm {
        16 => Size::B2,
        32 => Size::B4,
        64 => Size::B8,
        _ => return Err(Unsupported::Malformed("a byte order of no width")),
    };
    if width == Width::W64 || slot.opcode & BY_REG != 0 {
        return Ok(Op::Swap { size, dst });
    }
    Ok(match size {
        Size::B2 => Op::Alu { width: Width::W64, op: AluOp::And, dst, src: Operand::Imm(0xffff) },
        Size::B4 => Op::Alu { width: Width::W32, op: AluOp::Mov, dst, src: Operand::Reg(dst) },
        _ => Op::Alu { width: Width::W64, op: AluOp::Mov, dst, src: Operand::Reg(dst) },
    })
}

fn condition(opcode: u8) -> Option<Cond> {
    Some(match opcode & 0xf0 {
        0x10 => Cond::Eq,
        0x20 => Cond::Gt,
        0x30 => Cond::Ge,
        0x40 => Cond::Set,
        0x50 => Cond::Ne,
        0x60 => Cond::Sgt,
        0x70 => Cond::Sge,
        0xa0 => Cond::Lt,
        0xb0 => Cond::Le,
        0xc0 => Cond::Slt,
        0xd0 => Cond::Sle,
        _ => return None,
    })
}
