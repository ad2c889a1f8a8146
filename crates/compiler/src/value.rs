//! What is known of a register or a stack slot without running the program: number or pointer, and into what.
//!
//! In the program that comes out a pointer is the number of bytes from the beginning of its area, of the stack from its top. So
//! pointer arithmetic is arithmetic, joins need no code, and there is no host address that could escape.

use crate::bpf::{CUR_PTR, SCRATCH, STACK, WINDOW};
use crate::error::Unsupported;
use crate::live::Registers;
use farmem_traversal::{Area, Reg, SPILL_LEN, Size};

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// Nothing was written to it on some path.
    Unset,
    /// A number.
    Number(Fact),
    /// A place in an area.
    Pointer { area: Area, at: At },
    /// Different kinds on different paths.
    Mixed,
}

/// What is known of a pointer: bytes from the beginning of its area, of the stack from its top.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    /// The same on every path.
    Is(i64),
    /// What the register holds now, and a constant: an access needs no sum of its own.
    Sum(Reg, i64),
    /// The register that holds the pointer knows.
    Any,
}

/// What is known of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fact {
    Any,
    NotZero,
    Is(u64),
}

impl Value {
    pub(crate) const ANY: Self = Self::Number(Fact::Any);

    /// What holds on both of two paths.
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (Self::Number(a), Self::Number(b)) => Self::Number(a.join(b)),
            (Self::Pointer { area: a, .. }, Self::Pointer { area: b, .. }) if a == b => {
                Self::Pointer { area: a, at: At::Any }
            }
            (Self::Unset, Self::Number(_)) | (Self::Number(_), Self::Unset) => Self::Unset,
            _ => Self::Mixed,
        }
    }

    /// Whether both are numbers, or pointers into one area.
    fn is_of_a_kind(self, other: Self) -> bool {
        match (self, other) {
            (Self::Pointer { area: a, .. }, Self::Pointer { area: b, .. }) => a == b,
            (Self::Unset | Self::Number(_), Self::Unset | Self::Number(_)) => true,
            (a, b) => a == b,
        }
    }

    /// It as a number.
    pub(crate) const fn number(self) -> Result<Fact, Unsupported> {
        match self {
            Self::Number(fact) => Ok(fact),
            Self::Unset => Err(Unsupported::Unset),
            Self::Mixed => Err(Unsupported::MixedPointer),
            Self::Pointer { area, .. } => Err(Unsupported::PointerArithmetic(area)),
        }
    }

    /// It as what may leave the iteration: written to the scratch pad or returned.
    pub(crate) const fn data(self) -> Result<Fact, Unsupported> {
        match self {
            Self::Pointer { area, .. } => Err(Unsupported::PointerEscapes(area)),
            other => other.number(),
        }
    }
}

impl Fact {
    fn join(self, other: Self) -> Self {
        if self.is_not_zero() && other.is_not_zero() { Self::NotZero } else { Self::Any }
    }

    pub(crate) const fn is_not_zero(self) -> bool {
        match self {
            Self::Any | Self::Is(0) => false,
            Self::NotZero | Self::Is(_) => true,
        }
    }

    /// The same, as a number of 32 bits.
    pub(crate) const fn low(self) -> Self {
        match self {
            Self::Is(value) => Self::Is(value & 0xffff_ffff),
            _ => Self::Any,
        }
    }
}

const SLOTS: usize = SPILL_LEN / 8;

/// All registers and stack slots at one point of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AbstractState {
    registers: [Value; Reg::ALL.len()],
    slots: [Value; SLOTS],
}

impl AbstractState {
    /// The state at a function's entry.
    pub(crate) fn at_entry() -> Self {
        let mut state = Self { registers: [Value::Unset; Reg::ALL.len()], slots: [Value::Unset; SLOTS] };
        state.set(WINDOW, Value::Pointer { area: Area::Window, at: At::Is(0) });
        state.set(SCRATCH, Value::Pointer { area: Area::Scratch, at: At::Is(0) });
        state.set(STACK, Value::Pointer { area: Area::Spill, at: At::Is(0) });
        state.set(CUR_PTR, Value::ANY);
        state
    }

    pub(crate) const fn get(&self, reg: Reg) -> Value {
        self.registers[reg as usize]
    }

    /// Writes a register. Pointers that were known by what it held are known by themselves from here on.
    pub(crate) fn set(&mut self, reg: Reg, value: Value) {
        self.registers[reg as usize] = value;
        for value in self.registers.iter_mut().chain(&mut self.slots) {
            if let Value::Pointer { at: at @ At::Sum(..), .. } = value
                && matches!(at, At::Sum(index, _) if *index == reg)
            {
                *at = At::Any;
            }
        }
    }

    pub(crate) fn join(&mut self, other: &Self) {
        let mine = self.registers.iter_mut().chain(&mut self.slots);
        let others = other.registers.iter().chain(&other.slots);
        for (mine, other) in mine.zip(others) {
            *mine = mine.join(*other);
        }
    }

    /// Whether both have pointers into the same areas, in the registers of `live` and in all slots: the same instructions do for them then.
    pub(crate) fn is_of_a_kind(&self, other: &Self, live: Registers) -> bool {
        let registers = Reg::ALL.into_iter().filter(|&reg| live.has(reg));
        registers.map(|reg| (self.get(reg), other.get(reg))).all(|(a, b)| a.is_of_a_kind(b))
            && self.slots.iter().zip(&other.slots).all(|(a, b)| a.is_of_a_kind(*b))
    }

    /// What a load from byte `at` of the spill area brings.
    pub(crate) fn load(&self, at: usize, size: Size) -> Result<Value, Unsupported> {
        if at.is_multiple_of(8) && size == Size::B8 {
            return Ok(self.slots[at / 8]);
        }
        for slot in &self.slots[touched(at, size)] {
            match slot {
                Value::Pointer { area, .. } => return Err(Unsupported::PointerArithmetic(*area)),
                Value::Mixed => return Err(Unsupported::MixedPointer),
                Value::Unset | Value::Number(_) => {}
            }
        }
        Ok(Value::ANY)
    }

    /// A store to byte `at` of the spill area.
    pub(crate) fn store(&mut self, at: usize, size: Size, value: Value) -> Result<(), Unsupported> {
        if at.is_multiple_of(8) && size == Size::B8 {
            self.slots[at / 8] = value;
            return Ok(());
        }
        if value != Value::Unset {
            value.data()?;
        }
        self.slots[touched(at, size)].fill(Value::ANY);
        Ok(())
    }

    /// Stores a number at a place that an index names. A program that stays within its arrays hits no pointers; in one that
    /// does not, pointers are numbers within the spill area like all others, and the run checks what they lead to.
    pub(crate) fn store_anywhere(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot, Value::Unset | Value::Number(_)) {
                *slot = Value::ANY;
            }
        }
    }
}

/// The slots that an access reaches into.
const fn touched(at: usize, size: Size) -> core::ops::Range<usize> {
    at / 8..(at + size.bytes()).div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_8: Value = Value::Pointer { area: Area::Window, at: At::Is(8) };
    const SCRATCH_8: Value = Value::Pointer { area: Area::Scratch, at: At::Is(8) };

    #[test]
    fn a_join_knows_what_both_know() {
        let is = |value| Value::Number(Fact::Is(value));
        let window = |at: Option<i64>| Value::Pointer { area: Area::Window, at: at.map_or(At::Any, At::Is) };
        for (a, b, both) in [
            (is(1), is(1), is(1)),
            (is(1), is(2), Value::Number(Fact::NotZero)),
            (is(1), is(0), Value::ANY),
            (window(Some(8)), window(Some(16)), window(None)),
            (window(Some(8)), window(None), window(None)),
            (WINDOW_8, SCRATCH_8, Value::Mixed),
            (WINDOW_8, is(0), Value::Mixed),
            (WINDOW_8, Value::Unset, Value::Mixed),
            (is(3), Value::Unset, Value::Unset),
        ] {
            assert_eq!(a.join(b), both, "{a:?} and {b:?}");
            assert_eq!(b.join(a), both, "{b:?} and {a:?}");
        }
    }

    /// A number known in 64 bits may be zero in its low 32.
    #[test]
    fn the_low_half_of_a_number() {
        assert_eq!(Fact::Is(0x5_0000_0007).low(), Fact::Is(7));
        assert_eq!(Fact::NotZero.low(), Fact::Any);
    }

    /// What was known of a slot ends with a store by index, which may have hit it.
    #[test]
    fn a_store_by_index_may_hit_any_number() {
        let mut state = AbstractState::at_entry();
        state.store(8, Size::B8, Value::Number(Fact::Is(4))).expect("a number");
        state.store_anywhere();
        assert_eq!((state.load(8, Size::B8), state.load(24, Size::B8)), (Ok(Value::ANY), Ok(Value::ANY)));
    }

    /// A pointer that is another register plus 8 stops being so when that register is written, also where it was spilled to.
    #[test]
    fn a_sum_ends_with_its_register() {
        let sum = Value::Pointer { area: Area::Window, at: At::Sum(Reg::R4, 8) };
        let lost = Value::Pointer { area: Area::Window, at: At::Any };
        let mut state = AbstractState::at_entry();
        state.set(Reg::R5, sum);
        state.store(0, Size::B8, sum).expect("a whole slot");
        state.set(Reg::R6, Value::ANY);
        assert_eq!((state.get(Reg::R5), state.load(0, Size::B8)), (sum, Ok(sum)));
        state.set(Reg::R4, sum);
        assert_eq!((state.get(Reg::R4), state.get(Reg::R5), state.load(0, Size::B8)), (lost, lost, Ok(lost)));
    }

    /// A pointer goes through the stack whole or not at all.
    #[test]
    fn spilled_pointers_come_back() {
        let mut state = AbstractState::at_entry();
        assert_eq!(state.store(16, Size::B8, WINDOW_8), Ok(()));
        assert_eq!(state.load(16, Size::B8), Ok(WINDOW_8));
        assert_eq!(state.load(16, Size::B4), Err(Unsupported::PointerArithmetic(Area::Window)));
        assert_eq!(
            state.load(12, Size::B8),
            Err(Unsupported::PointerArithmetic(Area::Window)),
            "its first half"
        );
        assert_eq!(state.store(20, Size::B8, WINDOW_8), Err(Unsupported::PointerEscapes(Area::Window)));
        state.store_anywhere();
        assert_eq!(state.load(16, Size::B8), Ok(WINDOW_8));
        assert_eq!(state.store(20, Size::B2, Value::ANY), Ok(()));
        assert_eq!(state.load(16, Size::B8), Ok(Value::ANY), "written over");
    }
}
