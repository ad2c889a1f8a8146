//! The verifier (PROTOCOL 10.12): the conditions under which instructions are a program, and the reasons for
//! a refusal.
//!
//! Jumps go only forward, so one pass in order suffices: each instruction is checked once, and the longest
//! path is computed in one pass from the end. Reading an unwritten register or spill byte is allowed: both
//! are zero at the start of every iteration, so nothing can leak.

use crate::isa::{
    Area, Insn, SCRATCH_LEN_MAX, SEARCH_COUNT_MAX, SLOTS_MAX, SPILL_LEN, Search, WINDOW_LEN_MAX,
};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// The reason why bytes or instructions are not a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerifyError {
    /// The number of bytes differs from the header's, or there is no header.
    Length {
        /// Bytes that the header announces.
        expected: usize,
        /// Bytes that are present.
        have: usize,
    },
    /// The version of the instruction set is unknown.
    Version(u8),
    /// The header has an unknown flag.
    Flags(u8),
    /// The load window does not have 1 to 256 bytes.
    WindowLen(usize),
    /// The scratch pad has more than [`SCRATCH_LEN_MAX`] bytes.
    ScratchLen(usize),
    /// There is no instruction.
    Empty,
    /// There are more than 512 slots.
    TooLong {
        /// Number of slots.
        slots: usize,
    },
    /// An instruction is refused.
    At {
        /// Slot of the instruction, from 0.
        slot: usize,
        /// Reason of the refusal.
        why: Rejection,
    },
}

/// The reason why one instruction is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// No instruction has this opcode.
    Opcode(u8),
    /// No register has this number.
    Register(u8),
    /// The field has no meaning in this instruction and is not zero.
    Reserved(&'static str),
    /// The second slot of a 64-bit constant is missing or is an instruction.
    HalfConstant,
    /// The instruction jumps back, or to itself. Only `next` starts again from the top (PULSE 4.1).
    Backward,
    /// The instruction jumps behind the last one.
    TargetOutside,
    /// The instruction jumps to the second slot of a 64-bit constant.
    TargetInConstant,
    /// The last instruction is neither `next` nor `ret`.
    FallsOff,
    /// The instruction accesses bytes outside its area.
    Outside {
        /// The area.
        area: Area,
        /// Offset of the first byte.
        offset: i16,
        /// Length of the access.
        size: usize,
        /// Length of the area.
        len: usize,
    },
    /// The instruction stores to the load window, and the program does not declare that it stores.
    WindowStore,
    /// The instruction searches no element, or more than 64.
    SearchCount(u32),
}

/// The fields of a program's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) window_len: u16,
    pub(crate) scratch_len: u16,
    /// True if the program stores to the window.
    pub(crate) stores: bool,
}

impl Header {
    /// Creates a header; refuses lengths that fit no field. The verifier refuses the rest.
    pub(crate) fn new(window_len: usize, scratch_len: usize, stores: bool) -> Result<Self, VerifyError> {
        Ok(Self {
            window_len: u16::try_from(window_len).map_err(|_| VerifyError::WindowLen(window_len))?,
            scratch_len: u16::try_from(scratch_len).map_err(|_| VerifyError::ScratchLen(scratch_len))?,
            stores,
        })
    }
}

/// Checks instructions against the areas' lengths; returns the instructions on the longest path.
pub(crate) fn verify(header: &Header, insns: &[Insn]) -> Result<u16, VerifyError> {
    let (window_len, scratch_len) = (usize::from(header.window_len), usize::from(header.scratch_len));
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
        check(insn, number, insns.len(), header.stores, len_of)
            .map_err(|why| VerifyError::At { slot, why })?;
        slot += insn.slots();
    }
    if !last.is_terminal() {
        return Err(VerifyError::At { slot: slot - last.slots(), why: Rejection::FallsOff });
    }
    Ok(longest_path(insns))
}

fn check(
    insn: &Insn,
    number: usize,
    count: usize,
    stores: bool,
    len_of: impl Fn(Area) -> usize,
) -> Result<(), Rejection> {
    if let Some(target) = insn.target() {
        let target = usize::from(target);
        if target <= number {
            return Err(Rejection::Backward);
        }
        if target >= count {
            return Err(Rejection::TargetOutside);
        }
    }
    if let Insn::Search { search, .. } = insn {
        return check_search(search, len_of(Area::Window));
    }
    let Some((size, place)) = insn.access() else { return Ok(()) };
    if place.area == Area::Window && matches!(insn, Insn::Store { .. }) && !stores {
        return Err(Rejection::WindowStore);
    }
    if place.index.is_some() {
        return Ok(());
    }
    lies_inside(place.area, place.offset, size.bytes(), len_of(place.area))
}

fn check_search(search: &Search, window_len: usize) -> Result<(), Rejection> {
    if !(1..=SEARCH_COUNT_MAX).contains(&usize::from(search.count)) {
        return Err(Rejection::SearchCount(u32::from(search.count)));
    }
    lies_inside(Area::Window, search.offset, search.len(), window_len)
}

fn lies_inside(area: Area, offset: i16, size: usize, len: usize) -> Result<(), Rejection> {
    let inside = usize::try_from(offset).is_ok_and(|offset| offset + size <= len);
    if inside { Ok(()) } else { Err(Rejection::Outside { area, offset, size, len }) }
}

/// Returns the number of instructions on the longest path from the first to a terminal one.
fn longest_path(insns: &[Insn]) -> u16 {
    longest_from(insns)[0]
}

/// Returns the longest path from each instruction on, and 0 behind the last. Targets lie ahead, so one pass
/// from the end suffices.
fn longest_from(insns: &[Insn]) -> Vec<u16> {
    let mut from = vec![0_u16; insns.len() + 1];
    for (number, insn) in insns.iter().enumerate().rev() {
        let next = successors(number, insn).into_iter().flatten().map(|next| from[next]).max();
        from[number] = insn.weight().saturating_add(next.unwrap_or(0));
    }
    from
}

/// Returns the successors of an instruction: the next one, its target, both, or none.
fn successors(number: usize, insn: &Insn) -> [Option<usize>; 2] {
    let ends = insn.is_terminal() || matches!(insn, Insn::Jump { .. });
    [(!ends).then_some(number + 1), insn.target().map(usize::from)]
}

/// Returns the instructions of a longest path, by number.
pub(crate) fn on_longest_path(insns: &[Insn]) -> Vec<usize> {
    let from = longest_from(insns);
    let mut path = Vec::new();
    let mut at = Some(0);
    while let Some(number) = at {
        path.push(number);
        at = successors(number, &insns[number]).into_iter().flatten().max_by_key(|&next| from[next]);
    }
    path
}

/// Returns the bytes of the window that constant accesses reach: the length of the LOAD (PULSE 4.1).
pub(crate) fn window_reach(insns: &[Insn]) -> usize {
    let reach = |insn: &Insn| match insn {
        Insn::Search { search, .. } => usize::try_from(search.offset).unwrap_or(0) + search.len(),
        _ => match insn.access() {
            Some((size, place)) if place.area == Area::Window && place.index.is_none() => {
                usize::try_from(place.offset).unwrap_or(0) + size.bytes()
            }
            _ => 0,
        },
    };
    insns.iter().map(reach).max().unwrap_or(0)
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

impl fmt::Display for Rejection {
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
            Self::WindowStore => {
                f.write_str("the window is read-only in a program that does not declare `.stores`")
            }
            Self::SearchCount(count) => {
                write!(f, "{count} elements cannot be searched, only 1 to {SEARCH_COUNT_MAX}")
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
