//! The encoded form: a header of 8 bytes and slots of 8 bytes, little-endian throughout (PROTOCOL 10.3 to
//! 10.9).
//!
//! Opcode numbers are those of BPF (RFC 9669) where BPF has the instruction. Decoding checks each slot for
//! errors of its own, so that each program has exactly one encoding. The verifier checks the program as a
//! whole.

use crate::SLOTS_MAX;
use crate::isa::{AluOp, Area, Cond, Insn, MemOperand, Operand, Reg, Search, SearchOp, Size, UnaryOp, Width};
use crate::verify::{Header, Rejection, VerifyError};
use alloc::vec;
use alloc::vec::Vec;

/// The version of the instruction set and its encoding.
pub const VERSION: u8 = 1;
/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Bytes of a slot.
pub const SLOT_LEN: usize = 8;
/// Bytes of the longest program.
pub const ENCODED_LEN_MAX: usize = HEADER_LEN + SLOTS_MAX * SLOT_LEN;

const _: () =
    assert!(ENCODED_LEN_MAX <= farmem_wire::message::CODE_LEN_MAX, "every program fits a traversal message");

/// Opcode bits: class in 0..3, the rest by class.
mod field {
    pub(super) const CLASS: u8 = 0x07;
    pub(super) const LDX: u8 = 1;
    pub(super) const ST: u8 = 2;
    pub(super) const STX: u8 = 3;
    pub(super) const ALU32: u8 = 4;
    pub(super) const JMP: u8 = 5;
    pub(super) const JMP32: u8 = 6;
    pub(super) const ALU64: u8 = 7;

    /// ALU and jumps: the second operand is a register.
    pub(super) const BY_REG: u8 = 0x08;
    /// ALU and jumps: the operation.
    pub(super) const OP: u8 = 0xf0;

    /// Loads and stores: the access size.
    pub(super) const SIZE: u8 = 0x18;
    /// Loads and stores: the area.
    pub(super) const AREA: u8 = 0x60;
    /// Loads and stores: a register is added to the offset.
    pub(super) const INDEXED: u8 = 0x80;
    /// Class [`LDX`]: an area number without an area, for a search of an array in the window.
    pub(super) const SEARCH: u8 = 0x60;
    /// A search: MATCH, else RANK.
    pub(super) const MATCH: u8 = 0x80;

    pub(super) const LDDW: u8 = 0x18;
    pub(super) const JA: u8 = 0x05;
    pub(super) const RETURN: u8 = 0x95;
    pub(super) const NEXT: u8 = 0xe5;

    pub(super) const NEG: u8 = 0x80;
    pub(super) const NOT: u8 = 0xe0;

    /// Header: the program stores to the window.
    pub(super) const STORES: u8 = 1;
}

/// The fields of one slot.
#[derive(Clone, Copy, Default)]
struct RawInsn {
    opcode: u8,
    dst: u8,
    src: u8,
    offset: i16,
    imm: i32,
}

impl RawInsn {
    fn read(bytes: &[u8; SLOT_LEN]) -> Self {
        let [opcode, regs, o0, o1, i0, i1, i2, i3] = *bytes;
        Self {
            opcode,
            dst: regs & 0x0f,
            src: regs >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            imm: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    fn write(self, out: &mut Vec<u8>) {
        out.push(self.opcode);
        out.push(self.dst | self.src << 4);
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.imm.to_le_bytes());
    }

    fn dst(self) -> Result<Reg, Rejection> {
        Reg::from_number(self.dst).ok_or(Rejection::Register(self.dst))
    }

    fn src(self) -> Result<Reg, Rejection> {
        Reg::from_number(self.src).ok_or(Rejection::Register(self.src))
    }

    /// Returns the second operand; checks that the unused operand field is zero.
    fn operand(self) -> Result<Operand, Rejection> {
        if self.opcode & field::BY_REG == 0 {
            self.no_src()?;
            Ok(Operand::Imm(self.imm))
        } else {
            self.no_imm()?;
            Ok(Operand::Reg(self.src()?))
        }
    }

    fn no_dst(self) -> Result<(), Rejection> {
        if self.dst == 0 { Ok(()) } else { Err(Rejection::Reserved("dst")) }
    }

    fn no_src(self) -> Result<(), Rejection> {
        if self.src == 0 { Ok(()) } else { Err(Rejection::Reserved("src")) }
    }

    fn no_offset(self) -> Result<(), Rejection> {
        if self.offset == 0 { Ok(()) } else { Err(Rejection::Reserved("offset")) }
    }

    fn no_imm(self) -> Result<(), Rejection> {
        if self.imm == 0 { Ok(()) } else { Err(Rejection::Reserved("imm")) }
    }
}

/// Encodes verified instructions.
///
/// # Panics
/// If a target or count does not fit its field, which the verifier excludes.
pub(crate) fn encode(header: &Header, insns: &[Insn]) -> Vec<u8> {
    let starts = slot_starts(insns);
    let slots = starts[insns.len()];
    let mut out = Vec::with_capacity(HEADER_LEN + usize::from(slots) * SLOT_LEN);
    out.push(VERSION);
    out.push(if header.stores { field::STORES } else { 0 });
    for field in [header.window_len, header.scratch_len, slots] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    for (number, insn) in insns.iter().enumerate() {
        let offset = insn.target().map_or(0, |target| {
            let distance = starts[usize::from(target)] - starts[number] - 1;
            i16::try_from(distance).expect("verified: at most 512 slots")
        });
        encode_insn(insn, offset, &mut out);
    }
    out
}

/// Returns the first slot of each instruction, and the number of slots.
fn slot_starts(insns: &[Insn]) -> Vec<u16> {
    let mut starts = Vec::with_capacity(insns.len() + 1);
    let mut at = 0;
    for insn in insns {
        starts.push(field_u16(at));
        at += insn.slots();
    }
    starts.push(field_u16(at));
    starts
}

fn field_u16(value: usize) -> u16 {
    u16::try_from(value).expect("verified: slots up to 512")
}

fn encode_insn(insn: &Insn, jump: i16, out: &mut Vec<u8>) {
    let slot = match *insn {
        Insn::Alu { width, op, dst, src } => with_operand(alu_class(width) | alu_bits(op), dst, src),
        Insn::Unary { width, op, dst } => {
            let bits = match op {
                UnaryOp::Neg => field::NEG,
                UnaryOp::Not => field::NOT,
            };
            RawInsn { opcode: alu_class(width) | bits, dst: dst.number(), ..RawInsn::default() }
        }
        Insn::Imm64 { dst, imm } => {
            let (low, high) = halves(imm);
            RawInsn { opcode: field::LDDW, dst: dst.number(), imm: low, ..RawInsn::default() }.write(out);
            RawInsn { imm: high, ..RawInsn::default() }
        }
        Insn::Load { size, dst, from } => RawInsn {
            opcode: field::LDX | access_bits(size, from),
            dst: dst.number(),
            src: from.index.map_or(0, Reg::number),
            offset: from.offset,
            imm: 0,
        },
        Insn::Store { size, to, src } => {
            let (class, src, imm) = match src {
                Operand::Reg(reg) => (field::STX, reg.number(), 0),
                Operand::Imm(imm) => (field::ST, 0, imm),
            };
            let opcode = class | access_bits(size, to);
            RawInsn { opcode, dst: to.index.map_or(0, Reg::number), src, offset: to.offset, imm }
        }
        Insn::Search { dst, search } => {
            let bits = match search.op {
                SearchOp::Rank => 0,
                SearchOp::Match => field::MATCH,
            };
            RawInsn {
                opcode: field::LDX | field::SEARCH | bits | size_bits(search.size),
                dst: dst.number(),
                src: search.key.number(),
                offset: search.offset,
                imm: i32::from(search.count),
            }
        }
        Insn::Jump { .. } => RawInsn { opcode: field::JA, offset: jump, ..RawInsn::default() },
        Insn::Branch { width, cond, left, right, .. } => {
            let class = match width {
                Width::W64 => field::JMP,
                Width::W32 => field::JMP32,
            };
            RawInsn { offset: jump, ..with_operand(class | cond_bits(cond), left, right) }
        }
        Insn::Next { ptr } => RawInsn { opcode: field::NEXT, dst: ptr.number(), ..RawInsn::default() },
        Insn::Return => RawInsn { opcode: field::RETURN, ..RawInsn::default() },
    };
    slot.write(out);
}

const fn with_operand(opcode: u8, dst: Reg, src: Operand) -> RawInsn {
    let (by_reg, src, imm) = match src {
        Operand::Reg(reg) => (field::BY_REG, reg.number(), 0),
        Operand::Imm(imm) => (0, 0, imm),
    };
    RawInsn { opcode: opcode | by_reg, dst: dst.number(), src, offset: 0, imm }
}

/// Decodes header and slots, each slot separately. Targets are translated to instruction numbers.
pub(crate) fn decode(bytes: &[u8]) -> Result<(Header, Vec<Insn>), VerifyError> {
    let Some((header, code)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(VerifyError::Length { expected: HEADER_LEN, have: bytes.len() });
    };
    let [version, flags, w0, w1, s0, s1, n0, n1] = *header;
    if version != VERSION {
        return Err(VerifyError::Version(version));
    }
    if flags & !field::STORES != 0 {
        return Err(VerifyError::Flags(flags));
    }
    let slots = usize::from(u16::from_le_bytes([n0, n1]));
    if slots > SLOTS_MAX {
        return Err(VerifyError::TooLong { slots });
    }
    let (code, rest) = code.as_chunks::<SLOT_LEN>();
    if code.len() != slots || !rest.is_empty() {
        return Err(VerifyError::Length { expected: HEADER_LEN + slots * SLOT_LEN, have: bytes.len() });
    }
    let header = Header {
        window_len: u16::from_le_bytes([w0, w1]),
        scratch_len: u16::from_le_bytes([s0, s1]),
        stores: flags & field::STORES != 0,
    };
    Ok((header, decode_slots(code)?))
}

fn decode_slots(code: &[[u8; SLOT_LEN]]) -> Result<Vec<Insn>, VerifyError> {
    let numbers = instruction_numbers(code);
    let mut insns = Vec::with_capacity(code.len());
    let mut slots = code.iter().map(RawInsn::read).enumerate();
    while let Some((at, slot)) = slots.next() {
        let refuse = |why| VerifyError::At { slot: at, why };
        let insn = if slot.opcode == field::LDDW {
            let (_, second) = slots.next().ok_or_else(|| refuse(Rejection::HalfConstant))?;
            decode_constant(slot, second).map_err(refuse)?
        } else {
            decode_slot(slot, at, &numbers).map_err(refuse)?
        };
        insns.push(insn);
    }
    Ok(insns)
}

/// Returns the number of the instruction that starts at each slot; `None` for the second half of a constant.
fn instruction_numbers(code: &[[u8; SLOT_LEN]]) -> Vec<Option<u16>> {
    let mut numbers = vec![None; code.len()];
    let (mut at, mut number) = (0, 0);
    while let Some(entry) = numbers.get_mut(at) {
        *entry = Some(number);
        number += 1;
        at += if code[at][0] == field::LDDW { 2 } else { 1 };
    }
    numbers
}

fn decode_constant(first: RawInsn, second: RawInsn) -> Result<Insn, Rejection> {
    first.no_src()?;
    first.no_offset()?;
    if second.opcode != 0 {
        return Err(Rejection::HalfConstant);
    }
    second.no_dst()?;
    second.no_src()?;
    second.no_offset()?;
    Ok(Insn::Imm64 { dst: first.dst()?, imm: whole(first.imm, second.imm) })
}

fn decode_slot(slot: RawInsn, at: usize, numbers: &[Option<u16>]) -> Result<Insn, Rejection> {
    match slot.opcode & field::CLASS {
        field::LDX if slot.opcode & field::AREA == field::SEARCH => decode_search(slot),
        field::LDX => decode_load(slot),
        field::ST | field::STX => decode_store(slot),
        field::ALU64 => decode_alu(slot, Width::W64),
        field::ALU32 => decode_alu(slot, Width::W32),
        field::JMP if slot.opcode == field::RETURN => {
            slot.no_dst()?;
            slot.no_src()?;
            slot.no_offset()?;
            slot.no_imm()?;
            Ok(Insn::Return)
        }
        field::JMP if slot.opcode == field::NEXT => {
            slot.no_src()?;
            slot.no_offset()?;
            slot.no_imm()?;
            Ok(Insn::Next { ptr: slot.dst()? })
        }
        field::JMP if slot.opcode == field::JA => {
            slot.no_dst()?;
            slot.no_src()?;
            slot.no_imm()?;
            Ok(Insn::Jump { target: target(slot, at, numbers)? })
        }
        field::JMP => decode_branch(slot, Width::W64, at, numbers),
        field::JMP32 => decode_branch(slot, Width::W32, at, numbers),
        _ => Err(Rejection::Opcode(slot.opcode)),
    }
}

fn decode_alu(slot: RawInsn, width: Width) -> Result<Insn, Rejection> {
    let unary = match slot.opcode & field::OP {
        field::NEG => Some(UnaryOp::Neg),
        field::NOT => Some(UnaryOp::Not),
        _ => None,
    };
    if let Some(op) = unary {
        if slot.opcode & field::BY_REG != 0 {
            return Err(Rejection::Opcode(slot.opcode));
        }
        slot.no_src()?;
        slot.no_offset()?;
        slot.no_imm()?;
        return Ok(Insn::Unary { width, op, dst: slot.dst()? });
    }
    let op = alu_from_bits(slot.opcode & field::OP).ok_or(Rejection::Opcode(slot.opcode))?;
    slot.no_offset()?;
    Ok(Insn::Alu { width, op, dst: slot.dst()?, src: slot.operand()? })
}

fn decode_branch(slot: RawInsn, width: Width, at: usize, numbers: &[Option<u16>]) -> Result<Insn, Rejection> {
    let cond = cond_from_bits(slot.opcode & field::OP).ok_or(Rejection::Opcode(slot.opcode))?;
    let (left, right) = (slot.dst()?, slot.operand()?);
    Ok(Insn::Branch { width, cond, left, right, target: target(slot, at, numbers)? })
}

fn decode_load(slot: RawInsn) -> Result<Insn, Rejection> {
    let area = area_from_bits(slot.opcode).ok_or(Rejection::Opcode(slot.opcode))?;
    slot.no_imm()?;
    let index = if slot.opcode & field::INDEXED == 0 {
        slot.no_src()?;
        None
    } else {
        Some(slot.src()?)
    };
    let from = MemOperand { area, index, offset: slot.offset };
    Ok(Insn::Load { size: size_from_bits(slot.opcode), dst: slot.dst()?, from })
}

fn decode_search(slot: RawInsn) -> Result<Insn, Rejection> {
    let op = if slot.opcode & field::MATCH == 0 { SearchOp::Rank } else { SearchOp::Match };
    let count = u8::try_from(slot.imm).map_err(|_| Rejection::SearchCount(slot.imm.cast_unsigned()))?;
    let search =
        Search { op, size: size_from_bits(slot.opcode), offset: slot.offset, count, key: slot.src()? };
    Ok(Insn::Search { dst: slot.dst()?, search })
}

fn decode_store(slot: RawInsn) -> Result<Insn, Rejection> {
    let area = area_from_bits(slot.opcode).ok_or(Rejection::Opcode(slot.opcode))?;
    let index = if slot.opcode & field::INDEXED == 0 {
        slot.no_dst()?;
        None
    } else {
        Some(slot.dst()?)
    };
    let src = if slot.opcode & field::CLASS == field::ST {
        slot.no_src()?;
        Operand::Imm(slot.imm)
    } else {
        slot.no_imm()?;
        Operand::Reg(slot.src()?)
    };
    Ok(Insn::Store {
        size: size_from_bits(slot.opcode),
        to: MemOperand { area, index, offset: slot.offset },
        src,
    })
}

/// Returns the target of a jump at slot `at`.
fn target(slot: RawInsn, at: usize, numbers: &[Option<u16>]) -> Result<u16, Rejection> {
    let ahead = usize::try_from(slot.offset).map_err(|_| Rejection::Backward)?;
    let entry = numbers.get(at + 1 + ahead).ok_or(Rejection::TargetOutside)?;
    entry.ok_or(Rejection::TargetInConstant)
}

const fn alu_class(width: Width) -> u8 {
    match width {
        Width::W64 => field::ALU64,
        Width::W32 => field::ALU32,
    }
}

const ALU_OPS: [(u8, AluOp); 12] = [
    (0x00, AluOp::Add),
    (0x10, AluOp::Sub),
    (0x20, AluOp::Mul),
    (0x30, AluOp::Div),
    (0x40, AluOp::Or),
    (0x50, AluOp::And),
    (0x60, AluOp::Shl),
    (0x70, AluOp::Shr),
    (0x90, AluOp::Mod),
    (0xa0, AluOp::Xor),
    (0xb0, AluOp::Mov),
    (0xc0, AluOp::Sar),
];

fn alu_bits(op: AluOp) -> u8 {
    ALU_OPS.iter().find(|(_, known)| *known == op).expect("the table has every operation").0
}

fn alu_from_bits(bits: u8) -> Option<AluOp> {
    ALU_OPS.iter().find(|(known, _)| *known == bits).map(|(_, op)| *op)
}

const CONDS: [(u8, Cond); 11] = [
    (0x10, Cond::Eq),
    (0x20, Cond::Gt),
    (0x30, Cond::Ge),
    (0x40, Cond::Set),
    (0x50, Cond::Ne),
    (0x60, Cond::Sgt),
    (0x70, Cond::Sge),
    (0xa0, Cond::Lt),
    (0xb0, Cond::Le),
    (0xc0, Cond::Slt),
    (0xd0, Cond::Sle),
];

fn cond_bits(cond: Cond) -> u8 {
    CONDS.iter().find(|(_, known)| *known == cond).expect("the table has every condition").0
}

fn cond_from_bits(bits: u8) -> Option<Cond> {
    CONDS.iter().find(|(known, _)| *known == bits).map(|(_, cond)| *cond)
}

const fn size_bits(size: Size) -> u8 {
    match size {
        Size::B4 => 0x00,
        Size::B2 => 0x08,
        Size::B1 => 0x10,
        Size::B8 => 0x18,
    }
}

const fn access_bits(size: Size, place: MemOperand) -> u8 {
    let area = match place.area {
        Area::Window => 0x00,
        Area::Scratch => 0x20,
        Area::Spill => 0x40,
    };
    size_bits(size) | area | if place.index.is_some() { field::INDEXED } else { 0 }
}

const fn size_from_bits(opcode: u8) -> Size {
    match opcode & field::SIZE {
        0x00 => Size::B4,
        0x08 => Size::B2,
        0x10 => Size::B1,
        _ => Size::B8,
    }
}

const fn area_from_bits(opcode: u8) -> Option<Area> {
    match opcode & field::AREA {
        0x00 => Some(Area::Window),
        0x20 => Some(Area::Scratch),
        0x40 => Some(Area::Spill),
        _ => None,
    }
}

/// Returns the low and the high half of a constant, for its two slots.
fn halves(imm: u64) -> (i32, i32) {
    let [b0, b1, b2, b3, b4, b5, b6, b7] = imm.to_le_bytes();
    (i32::from_le_bytes([b0, b1, b2, b3]), i32::from_le_bytes([b4, b5, b6, b7]))
}

fn whole(low: i32, high: i32) -> u64 {
    u64::from(high.cast_unsigned()) << 32 | u64::from(low.cast_unsigned())
}

#[cfg(test)]
mod tests;
