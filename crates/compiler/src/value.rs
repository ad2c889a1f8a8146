//! Abstract values of registers and stack slots: number or pointer, and into which area.
//!
//! In the translated program, a pointer is the number of bytes from the beginning of its area; for the stack,
//! from its top. So pointer arithmetic is plain arithmetic, joins need no code, and no host address can
//! escape.

use crate::bpf::{CUR_PTR, SCRATCH, STACK, WINDOW};
use crate::error::Unsupported;
use crate::live::Registers;
use farmem_traversal::{AluOp, Area, Reg, SPILL_LEN, Size, Width};

/// The abstract value of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// Uninitialized on some path.
    Unset,
    /// A number.
    Number(Fact),
    /// A location in an area; `zeros` low bits are known to be zero.
    Pointer { area: Area, at: Offset, zeros: u32 },
    /// A word of a local array at an index: some of its possible words are pointers, some are numbers.
    Element,
    /// Different kinds on different paths.
    Mixed,
}

/// The known part of a pointer: bytes from the beginning of its area; for the stack, from its top.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offset {
    /// A value that is the same on every path.
    Is(i64),
    /// The present value of the register, plus a constant: an access needs no separate addition.
    Sum(Reg, i64),
    /// Only the register that holds the pointer has the value.
    Any,
}

/// The known part of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fact {
    /// The bits that may be set, the largest possible value, and whether 0 is excluded.
    Within {
        may: u64,
        most: u64,
        not_zero: bool,
    },
    Is(u64),
}

impl Value {
    pub(crate) const ANY: Self = Self::Number(Fact::ANY);
    /// NULL, which points nowhere. No location in an area is NULL, though the first byte of an area has the
    /// number 0.
    pub(crate) const NULL: Self = Self::Number(Fact::Is(0));

    /// Creates a pointer to a location that is the same on every path.
    pub(crate) const fn place(area: Area, at: i64) -> Self {
        Self::Pointer { area, at: Offset::Is(at), zeros: at.trailing_zeros() }
    }

    /// Joins the values of two paths.
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (Self::Number(a), Self::Number(b)) => Self::Number(a.join(b)),
            (Self::Pointer { area: a, zeros, .. }, Self::Pointer { area: b, zeros: other, .. }) if a == b => {
                Self::Pointer { area: a, at: Offset::Any, zeros: zeros.min(other) }
            }
            (Self::Element, Self::Number(_)) | (Self::Number(_), Self::Element) => Self::Element,
            (Self::Unset, Self::Number(_) | Self::Element)
            | (Self::Number(_) | Self::Element, Self::Unset) => Self::Unset,
            _ => Self::Mixed,
        }
    }

    /// Returns whether both are numbers, or pointers into one area.
    fn has_same_kind(self, other: Self) -> bool {
        match (self, other) {
            (Self::Pointer { area: a, .. }, Self::Pointer { area: b, .. }) => a == b,
            (
                Self::Unset | Self::Number(_) | Self::Element,
                Self::Unset | Self::Number(_) | Self::Element,
            ) => true,
            (a, b) => a == b,
        }
    }

    /// Returns the value as a number.
    pub(crate) const fn number(self) -> Result<Fact, Unsupported> {
        match self {
            Self::Number(fact) => Ok(fact),
            // An author that computes with the element claims it is a number, which is right within the
            // array.
            Self::Element => Ok(Fact::ANY),
            Self::Unset => Err(Unsupported::Unset),
            Self::Mixed => Err(Unsupported::MixedPointer),
            Self::Pointer { area, .. } => Err(Unsupported::PointerArithmetic(area)),
        }
    }

    /// Returns the value as data that may leave the iteration: written to the scratch pad or returned.
    pub(crate) const fn data(self) -> Result<Fact, Unsupported> {
        match self {
            Self::Pointer { area, .. } => Err(Unsupported::PointerEscapes(area)),
            other => other.number(),
        }
    }
}

impl Fact {
    pub(crate) const ANY: Self = Self::below(u64::MAX);
    pub(crate) const NOT_ZERO: Self = Self::Within { may: u64::MAX, most: u64::MAX, not_zero: true };

    /// Creates a number of at most this size.
    pub(crate) const fn below(most: u64) -> Self {
        Self::Within { may: ones(most), most, not_zero: false }
    }

    /// Creates a number of this width.
    pub(crate) const fn of(size: Size) -> Self {
        Self::below(u64::MAX >> (64 - 8 * size.bytes()))
    }

    /// Creates a number of these bits, and of at most this size.
    fn within(may: u64, most: u64) -> Self {
        Self::Within { may: may & ones(most), most: most.min(may), not_zero: false }
    }

    /// Returns the negated number.
    pub(crate) const fn negated(self) -> Self {
        match self {
            Self::Is(value) => Self::Is(value.wrapping_neg()),
            Self::Within { may, not_zero, .. } => {
                Self::Within { may: multiples(may), most: u64::MAX, not_zero }
            }
        }
    }

    fn join(self, other: Self) -> Self {
        Self::Within {
            may: self.may() | other.may(),
            most: self.most().max(other.most()),
            not_zero: self.is_not_zero() && other.is_not_zero(),
        }
    }

    /// Returns the bits that may be set.
    pub(crate) const fn may(self) -> u64 {
        match self {
            Self::Within { may, .. } => may,
            Self::Is(value) => value,
        }
    }

    /// Returns the largest possible value.
    pub(crate) const fn most(self) -> u64 {
        match self {
            Self::Within { most, .. } => most,
            Self::Is(value) => value,
        }
    }

    pub(crate) const fn is_not_zero(self) -> bool {
        match self {
            Self::Within { not_zero, .. } => not_zero,
            Self::Is(value) => value != 0,
        }
    }

    /// Returns the number truncated to 32 bits.
    pub(crate) fn low(self) -> Self {
        match self {
            Self::Is(value) => Self::Is(value & LOW),
            Self::Within { may, most, .. } if most <= LOW => Self::within(may, most),
            Self::Within { may, .. } => Self::within(may & LOW, LOW),
        }
    }

    /// Computes the result of an operation on two numbers. Most operations give no information; this is for
    /// indexes, which are masked, scaled and added.
    pub(crate) fn after(op: AluOp, width: Width, left: Self, right: Self) -> Self {
        let (left, right, bits) = match width {
            Width::W64 => (left, right, 64),
            Width::W32 => (left.low(), right.low(), 32),
        };
        let shift = |by: u64| u32::try_from(by % bits).expect("less than 64");
        let fact = match (op, right) {
            (AluOp::And, _) => Self::within(left.may() & right.may(), left.most().min(right.most())),
            (AluOp::Or | AluOp::Xor, _) => Self::within(left.may() | right.may(), u64::MAX),
            (AluOp::Add, _) => match left.most().checked_add(right.most()) {
                Some(most) => Self::within(multiples(left.may() | right.may()), most),
                None => Self::within(multiples(left.may() | right.may()), u64::MAX),
            },
            (AluOp::Mul, Self::Is(by)) => match left.most().checked_mul(by) {
                Some(most) => Self::within(multiples(left.may()) & multiples(by), most),
                None => Self::ANY,
            },
            (AluOp::Shl, Self::Is(by)) if left.most() <= u64::MAX >> shift(by) => {
                Self::within(left.may() << shift(by), left.most() << shift(by))
            }
            (AluOp::Shr, Self::Is(by)) => Self::within(left.may() >> shift(by), left.most() >> shift(by)),
            (AluOp::Div, Self::Is(by)) => Self::below(left.most().checked_div(by).unwrap_or(0)),
            (AluOp::Mod, Self::Is(by)) if by > 0 => Self::below(left.most().min(by - 1)),
            _ => Self::ANY,
        };
        match width {
            Width::W64 => fact,
            Width::W32 => fact.low(),
        }
    }
}

/// The low half of a word.
const LOW: u64 = 0xffff_ffff;

/// Returns all bits of the numbers up to this one.
const fn ones(most: u64) -> u64 {
    match most.checked_ilog2() {
        Some(bit) => u64::MAX >> (63 - bit),
        None => 0,
    }
}

/// Returns all bits from the lowest one of these on.
const fn multiples(of: u64) -> u64 {
    if of == 0 { 0 } else { u64::MAX << of.trailing_zeros() }
}

const SLOTS: usize = SPILL_LEN / 8;

/// The abstract registers and stack slots at one point of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AbstractState {
    registers: [Value; Reg::ALL.len()],
    slots: [Value; SLOTS],
}

impl AbstractState {
    /// Returns the state at a function's entry.
    pub(crate) fn at_entry() -> Self {
        let mut state = Self { registers: [Value::Unset; Reg::ALL.len()], slots: [Value::Unset; SLOTS] };
        state.set(WINDOW, Value::place(Area::Window, 0));
        state.set(SCRATCH, Value::place(Area::Scratch, 0));
        state.set(STACK, Value::place(Area::Spill, 0));
        state.set(CUR_PTR, Value::ANY);
        state
    }

    pub(crate) const fn get(&self, reg: Reg) -> Value {
        self.registers[reg as usize]
    }

    /// Writes a register. Pointers that depend on its old value become independent of it.
    pub(crate) fn set(&mut self, reg: Reg, value: Value) {
        self.registers[reg as usize] = value;
        for value in self.registers.iter_mut().chain(&mut self.slots) {
            if let Value::Pointer { at: at @ Offset::Sum(..), .. } = value
                && matches!(at, Offset::Sum(index, _) if *index == reg)
            {
                *at = Offset::Any;
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

    /// Returns whether both states have pointers into the same areas, in the registers of `live` and in all
    /// slots: the same instructions then work for both.
    pub(crate) fn has_same_kind(&self, other: &Self, live: Registers) -> bool {
        let registers = Reg::ALL.into_iter().filter(|&reg| live.has(reg));
        registers.map(|reg| (self.get(reg), other.get(reg))).all(|(a, b)| a.has_same_kind(b))
            && self.slots.iter().zip(&other.slots).all(|(a, b)| a.has_same_kind(*b))
    }

    /// Returns the result of a load from byte `at` of the spill area.
    pub(crate) fn load(&self, at: usize, size: Size) -> Result<Value, Unsupported> {
        if at.is_multiple_of(8) && size == Size::B8 {
            return Ok(self.slots[at / 8]);
        }
        for slot in &self.slots[touched(at, size)] {
            match slot {
                Value::Pointer { area, .. } => return Err(Unsupported::PointerArithmetic(*area)),
                Value::Mixed => return Err(Unsupported::MixedPointer),
                Value::Unset | Value::Number(_) | Value::Element => {}
            }
        }
        Ok(Value::Number(Fact::of(size)))
    }

    /// Returns the result of an indexed load from one of the words of an array. Offset of the array and the
    /// index may be unknown.
    pub(crate) fn load_anywhere(&self, array: Option<(i64, Fact)>, size: Size) -> Value {
        let number = Value::Number(Fact::of(size));
        let is_pointer = |value: &Value| matches!(value, Value::Pointer { .. } | Value::Element);
        if size != Size::B8 || !self.slots.iter().any(is_pointer) {
            return number;
        }
        let words = array.and_then(|(start, index)| self.words(start, index));
        let Some(mut words) = words.map(<[Value]>::iter) else { return Value::Element };
        let Some(first) = words.next() else { return number };
        match words.fold(*first, |all, word| all.join(*word)) {
            Value::Pointer { area, zeros, .. } => Value::Pointer { area, at: Offset::Any, zeros },
            Value::Number(_) | Value::Unset => number,
            Value::Mixed | Value::Element => Value::Element,
        }
    }

    /// Returns the slots of an array of whole words at this byte of the spill area, as far as the index may
    /// lead.
    fn words(&self, start: i64, index: Fact) -> Option<&[Value]> {
        let start = usize::try_from(start).ok().filter(|start| start.is_multiple_of(8))?;
        if !index.may().is_multiple_of(8) {
            return None;
        }
        let end = usize::try_from(index.most() / 8).ok()?.checked_add(start / 8 + 1)?;
        self.slots.get(start / 8..end)
    }

    /// Stores to byte `at` of the spill area.
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

    /// Stores a number at an indexed location. A program that stays within its arrays overwrites no pointers.
    /// In one that does not, pointers are numbers within the spill area, and the engine checks the accesses.
    pub(crate) fn store_anywhere(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot, Value::Unset | Value::Number(_) | Value::Element) {
                *slot = Value::ANY;
            }
        }
    }
}

/// Returns the slots that an access overlaps.
const fn touched(at: usize, size: Size) -> core::ops::Range<usize> {
    at / 8..(at + size.bytes()).div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW_8: Value = Value::place(Area::Window, 8);
    const SCRATCH_8: Value = Value::place(Area::Scratch, 8);

    #[test]
    fn a_join_knows_what_both_know() {
        let is = |value| Value::Number(Fact::Is(value));
        let within = |may, most, not_zero| Value::Number(Fact::Within { may, most, not_zero });
        let somewhere = |zeros| Value::Pointer { area: Area::Window, at: Offset::Any, zeros };
        for (a, b, both) in [
            (is(1), is(1), is(1)),
            (is(1), is(2), within(3, 2, true)),
            (is(1), is(0), within(1, 1, false)),
            (WINDOW_8, Value::place(Area::Window, 16), somewhere(3)),
            (WINDOW_8, Value::place(Area::Window, 36), somewhere(2)),
            (WINDOW_8, somewhere(1), somewhere(1)),
            (is(1), Value::Element, Value::Element),
            (WINDOW_8, Value::Element, Value::Mixed),
            (WINDOW_8, SCRATCH_8, Value::Mixed),
            (WINDOW_8, is(0), Value::Mixed),
            (WINDOW_8, Value::Unset, Value::Mixed),
            (is(3), Value::Unset, Value::Unset),
        ] {
            assert_eq!(a.join(b), both, "{a:?} and {b:?}");
            assert_eq!(b.join(a), both, "{b:?} and {a:?}");
        }
    }

    /// A number that is not zero in 64 bits may be zero in its low 32.
    #[test]
    fn the_low_half_of_a_number() {
        assert_eq!(Fact::Is(0x5_0000_0007).low(), Fact::Is(7));
        assert_eq!(Fact::NOT_ZERO.low(), Fact::of(Size::B4));
        assert_eq!(Fact::below(5).low(), Fact::below(5));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// The abstract result holds for the concrete one, for any two numbers that match their abstractions.
        #[test]
        fn facts_hold_for_what_is_computed(
            op in prop::sample::select(&OPERATIONS), narrow in any::<bool>(), constant in any::<bool>(),
            (a, a_more) in (number(), number()), (b, b_more) in (number(), number()),
        ) {
            let width = if narrow { Width::W32 } else { Width::W64 };
            let know = |value, more, exactly| if exactly { Fact::Is(value) } else { Fact::Is(value).join(Fact::Is(more)) };
            let fact = Fact::after(op, width, know(a, a_more, false), know(b, b_more, constant));
            let result = compute(op, width, a, b);
            prop_assert!(result & !fact.may() == 0 && result <= fact.most(), "{result:#x} is not {fact:x?}");
            prop_assert!(result != 0 || !fact.is_not_zero());
        }
    }

    fn compute(op: AluOp, width: Width, a: u64, b: u64) -> u64 {
        let (a, b, bits) = if width == Width::W32 { (a & LOW, b & LOW, 32) } else { (a, b, 64) };
        let result = match op {
            AluOp::Add => a.wrapping_add(b),
            AluOp::Mul => a.wrapping_mul(b),
            AluOp::Div => a.checked_div(b).unwrap_or(0),
            AluOp::Mod => a.checked_rem(b).unwrap_or(a),
            AluOp::And => a & b,
            AluOp::Or => a | b,
            AluOp::Xor => a ^ b,
            AluOp::Shl => a << (b % bits),
            AluOp::Shr => a >> (b % bits),
            AluOp::Sub | AluOp::Mov | AluOp::Sar => panic!("nothing is said of {op:?}"),
        };
        if width == Width::W32 { result & LOW } else { result }
    }

    const OPERATIONS: [AluOp; 9] = [
        AluOp::Add,
        AluOp::Mul,
        AluOp::Div,
        AluOp::Mod,
        AluOp::And,
        AluOp::Or,
        AluOp::Xor,
        AluOp::Shl,
        AluOp::Shr,
    ];

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![
            0..70_u64,
            any::<u64>(),
            any::<u32>().prop_map(u64::from),
            (0..64_u32).prop_map(|bit| 1 << bit)
        ]
    }

    /// An array of pointers into one area yields such a pointer, as far as its index leads; any other array
    /// yields an unknown value.
    #[test]
    fn what_an_array_of_pointers_gives() {
        let mut state = AbstractState::at_entry();
        for (slot, value) in
            [WINDOW_8, Value::place(Area::Window, 20), SCRATCH_8, Value::ANY].into_iter().enumerate()
        {
            state.store(slot * 8, Size::B8, value).expect("a whole slot");
        }
        let load = |start, index| state.load_anywhere(Some((start, index)), Size::B8);
        let within = |may, most| Fact::Within { may, most, not_zero: false };
        assert_eq!(load(0, within(8, 8)), Value::Pointer { area: Area::Window, at: Offset::Any, zeros: 2 });
        assert_eq!(load(24, within(8, 8)), Value::ANY, "a number, and what nothing was written to");
        for (start, index) in
            [(0, within(24, 16)), (0, within(9, 9)), (4, within(8, 8)), (8, Fact::ANY), (-8, within(8, 8))]
        {
            assert_eq!(load(start, index), Value::Element, "{start} {index:?}");
        }
        assert_eq!(
            state.load_anywhere(None, Size::B4),
            Value::Number(Fact::of(Size::B4)),
            "no pointer is half a word"
        );
        assert_eq!(AbstractState::at_entry().load_anywhere(None, Size::B8), Value::ANY);
    }

    /// An indexed store invalidates the knowledge about a slot that it may have overwritten.
    #[test]
    fn a_store_by_index_may_hit_any_number() {
        let mut state = AbstractState::at_entry();
        state.store(8, Size::B8, Value::Number(Fact::Is(4))).expect("a number");
        state.store_anywhere();
        assert_eq!((state.load(8, Size::B8), state.load(24, Size::B8)), (Ok(Value::ANY), Ok(Value::ANY)));
    }

    /// A pointer defined as another register plus 8 loses this definition when that register is written, also
    /// in a spilled copy.
    #[test]
    fn a_sum_ends_with_its_register() {
        let sum = Value::Pointer { area: Area::Window, at: Offset::Sum(Reg::R4, 8), zeros: 3 };
        let lost = Value::Pointer { area: Area::Window, at: Offset::Any, zeros: 3 };
        let mut state = AbstractState::at_entry();
        state.set(Reg::R5, sum);
        state.store(0, Size::B8, sum).expect("a whole slot");
        state.set(Reg::R6, Value::ANY);
        assert_eq!((state.get(Reg::R5), state.load(0, Size::B8)), (sum, Ok(sum)));
        state.set(Reg::R4, sum);
        assert_eq!((state.get(Reg::R4), state.get(Reg::R5), state.load(0, Size::B8)), (lost, lost, Ok(lost)));
    }

    /// A pointer is spilled as a whole or not at all.
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
