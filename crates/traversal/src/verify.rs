//! The verifier (PROTOCOL 10.12): what makes a list of instructions a program, and the reasons why it is none.
//!
//! Jumps go forward only, so one pass in order suffices: each instruction is looked at once, and the longest path is
//! found once, from the end. Reading a register or a spill byte that nothing was written to is allowed: both start at
//! zero in every iteration, so there is nothing to leak.

use crate::isa::{Area, Insn, SCRATCH_LEN_MAX, SLOTS_MAX, SPILL_LEN, WINDOW_LEN_MAX};
use alloc::vec;
use core::fmt;

/// Why bytes or instructions are not a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerifyError {
    /// There are not as many bytes as the header says, or not even a header.
    Length {
        /// Bytes the header announces.
        expected: usize,
        /// Bytes there are.
        have: usize,
    },
    /// The program is in another version of the instruction set.
    Version(u8),
    /// The header has a flag that this version does not know.
    Flags(u8),
    /// The load window is not of 1 to 256 bytes.
    WindowLen(usize),
    /// The scratch pad is of more than 256 bytes.
    ScratchLen(usize),
    /// There is no instruction.
    Empty,
    /// There are more than 512 slots.
    TooLong {
        /// Slots there are.
        slots: usize,
    },
    /// An instruction is refused.
    At {
        /// Its slot, from 0.
        slot: usize,
        /// Why.
        why: Refusal,
    },
}

/// Why one instruction is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No instruction has this opcode.
    Opcode(u8),
    /// There is no register of this number.
    Register(u8),
    /// The field means nothing in this instruction and is not zero.
    Reserved(&'static str),
    /// The second slot of a 64-bit constant is missing or is an instruction.
    HalfConstant,
    /// It jumps back, or to itself. Only `next` starts again from the top (PULSE 4.1).
    Backward,
    /// It jumps behind the last instruction.
    TargetOutside,
    /// It jumps to the second slot of a 64-bit constant.
    TargetInConstant,
    /// It is the last instruction and neither `next` nor `ret`.
    FallsOff,
    /// It touches bytes outside its area.
    Outside {
        /// The area.
        area: Area,
        /// First byte.
        offset: i16,
        /// Bytes.
        size: usize,
        /// Bytes of the area.
        len: usize,
    },
    /// It stores to the load window.
    WindowStore,
    /// It stores to far memory: the opcodes are reserved.
    FarStore,
}

/// Checks instructions against the areas' lengths; answers the instructions on the longest path.
pub(crate) fn verify(window_len: usize, scratch_len: usize, insns: &[Insn]) -> Result<u16, VerifyError> {
    if !(1..=WINDOW_LEN_MAX).contains(&window_len) {
        return Err(VerifyError::WindowLen(window_len));
    }
    if scratch_len > SCRATCH_LEN_MAX {
        return Err(VerifyError::ScratchLen(scratch_len));
    }
    let Some((last, _)) = insns.split_last() else {
        return Err(VerifyError::Empty);
    };
    let slots = insns.iter().map(Insn::slots).sum();
    if slots > SLOTS_MAX {
        return Err(VerifyError::TooLong { slots });
    }
    let len_of = |area| match area {
        Area::Window => window_len,
        Area::Scratch => scratch_len,
        Area::Spill => SPILL_LEN,
    };
    let mut slot = 0;
    for (number, insn) in insns.iter().enumerate() {
        check(insn, number, insns.len(), len_of).map_err(|why| VerifyError::At { slot, why })?;
        slot += insn.slots();
    }
    if !last.is_terminal() {
        return Err(VerifyError::At { slot: slot - last.slots(), why: Refusal::FallsOff });
    }
    Ok(longest_path(insns))
}

fn check(insn: &Insn, number: usize, count: usize, len_of: impl Fn(Area) -> usize) -> Result<(), Refusal> {
    if let Some(target) = insn.target() {
        let target = usize::from(target);
        if target <= number {
            return Err(Refusal::Backward);
        }
        if target >= count {
            return Err(Refusal::TargetOutside);
        }
    }
    let Some((size, place)) = insn.access() else { return Ok(()) };
    if place.area == Area::Window && matches!(insn, Insn::Store { .. }) {
        return Err(Refusal::WindowStore);
    }
    let (size, len) = (size.bytes(), len_of(place.area));
    let inside = match usize::try_from(place.offset) {
        Ok(offset) => offset + size <= len,
        Err(_) => false,
    };
    if place.index.is_none() && !inside {
        return Err(Refusal::Outside { area: place.area, offset: place.offset, size, len });
    }
    Ok(())
}

/// Instructions on the longest path from the first to a terminal one. Targets lie ahead, so one pass from the end does.
fn longest_path(insns: &[Insn]) -> u16 {
    let mut from = vec![0_u16; insns.len() + 1];
    for (number, insn) in insns.iter().enumerate().rev() {
        let behind =
            if insn.is_terminal() || matches!(insn, Insn::Jump { .. }) { 0 } else { from[number + 1] };
        let jumped = insn.target().map_or(0, |target| from[usize::from(target)]);
        from[number] = 1 + behind.max(jumped);
    }
    from[0]
}

/// The bytes of the window that constant loads reach: what the one LOAD must bring (PULSE 4.1).
pub(crate) fn window_reach(insns: &[Insn]) -> usize {
    let loads = insns.iter().filter_map(Insn::access);
    let constant = loads.filter(|(_, place)| place.area == Area::Window && place.index.is_none());
    constant.map(|(size, place)| usize::try_from(place.offset).unwrap_or(0) + size.bytes()).max().unwrap_or(0)
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length { expected, have } => {
                write!(f, "the program needs {expected} bytes, {have} are there")
            }
            Self::Version(version) => write!(f, "version {version} of the instruction set is not known"),
            Self::Flags(flags) => write!(f, "the header's flags {flags:#04x} are not known"),
            Self::WindowLen(len) => {
                write!(f, "a load window of {len} bytes is not possible, only 1 to {WINDOW_LEN_MAX}")
            }
            Self::ScratchLen(len) => {
                write!(f, "a scratch pad of {len} bytes is not possible, only up to {SCRATCH_LEN_MAX}")
            }
            Self::Empty => f.write_str("the program has no instruction"),
            Self::TooLong { slots } => write!(f, "the program has {slots} slots, {SLOTS_MAX} are possible"),
            Self::At { slot, why } => write!(f, "slot {slot}: {why}"),
        }
    }
}

impl core::error::Error for VerifyError {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Opcode(opcode) => write!(f, "no instruction has the opcode {opcode:#04x}"),
            Self::Register(number) => write!(f, "there is no register {number}, only r0 to r10"),
            Self::Reserved(name) => write!(f, "the field {name} is reserved here and must be zero"),
            Self::HalfConstant => f.write_str("the second slot of the 64-bit constant is missing"),
            Self::Backward => f.write_str("jumps go forward only; `next` starts the next iteration"),
            Self::TargetOutside => f.write_str("the jump leaves the program"),
            Self::TargetInConstant => f.write_str("the jump leads into a 64-bit constant"),
            Self::FallsOff => f.write_str("the last instruction must be `next` or `ret`"),
            Self::Outside { area, offset, size, len } => {
                write!(f, "{size} bytes at {offset} leave the {}, which has {len}", area.describe())
            }
            Self::WindowStore => f.write_str("the window is read-only"),
            Self::FarStore => {
                f.write_str("stores need a program that declares them: not in this version of the ISA")
            }
        }
    }
}

impl Area {
    const fn describe(self) -> &'static str {
        match self {
            Self::Window => "load window",
            Self::Scratch => "scratch pad",
            Self::Spill => "spill area",
        }
    }
}

#[cfg(test)]
mod tests;
