//! Lowering of BPF operations to instructions of the ISA: one pass over the blocks with abstract values.
//!
//! Memory operands become accesses to window, scratch pad and spill area: constant if every path agrees on
//! the location, else indexed and checked at run time (PROTOCOL 10.13). Results become RETURN or NEXT_ITER.

use crate::bpf::{CUR_PTR, Numbered, Op, RESULT, Refused, SCRATCH, STACK, WINDOW};
use crate::elf::Sizes;
use crate::error::Unsupported;
use crate::graph::{Block, End};
use crate::live::{Registers, live};
use crate::value::{AbstractState, Fact, Offset, Value};
use farmem_traversal::{
    AluOp, Area, Cond, Insn, MemOperand, Operand, Reg, SCRATCH_LEN_MAX, SEARCH_COUNT_MAX, SPILL_LEN, Search,
    SearchOp, Size, UnaryOp, WINDOW_LEN_MAX, Width,
};

/// A target of control flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A copy of a block, by its number.
    Block(usize),
    /// RETURN.
    Return,
    /// NEXT_ITER at r0.
    Next,
}

/// The end of a lowered block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Terminator {
    Goto(Target),
    Branch { width: Width, cond: Cond, left: Reg, right: Operand, taken: Target, fall: Target },
}

/// A lowered block, with the slots of its instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Code {
    pub(crate) insns: Vec<(Insn, usize)>,
    pub(crate) terminator: Terminator,
    /// The slot of the block's end.
    pub(crate) last: usize,
}

/// The extent of the accesses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Reach {
    /// Bytes of the node up to the last constant access.
    window: usize,
    /// Bytes of the scratch pad up to the last constant access.
    scratch: usize,
    /// True if the node is accessed by index.
    window_indexed: bool,
}

impl Reach {
    /// Returns the load window (PULSE 4.1): the extent of constant loads or an indexed node, or 1 byte.
    pub(crate) fn window_len(&self, sizes: Option<Sizes>) -> usize {
        let declared = sizes.filter(|_| self.window_indexed).map_or(1, |sizes| sizes.window);
        self.window.max(declared)
    }

    /// Returns the scratch pad: the declared size, or the extent of accesses if none is declared.
    pub(crate) fn scratch_len(&self, sizes: Option<Sizes>) -> usize {
        sizes.map_or(self.scratch, |sizes| sizes.scratch)
    }
}

/// The lowered blocks, the entry first; an order in which all edges lead ahead; the extent of the accesses.
type Lowered = (Vec<Code>, Vec<usize>, Reach);

/// Lowers the blocks of `order`, in which all edges lead ahead.
///
/// clang may merge two accesses: `which ? win->key : sp->key` becomes one through a pointer that leads to the
/// node on one path and to the scratch pad on the other. Blocks are then lowered once per kind of path.
pub(crate) fn lower(
    ops: &[Numbered],
    blocks: &[Block],
    order: &[usize],
    sizes: Option<Sizes>,
) -> Result<Lowered, Refused> {
    let joined = pass(ops, blocks, order, sizes, None);
    match joined {
        Err((_, Unsupported::MixedPointer)) => {
            let live = live(ops, blocks, order);
            pass(ops, blocks, order, sizes, Some(&live)).or(joined)
        }
        _ => joined,
    }
}

/// Most copies of blocks; more would make a program far too long.
const COPIES_MAX: usize = 2048;

fn pass(
    ops: &[Numbered],
    blocks: &[Block],
    order: &[usize],
    sizes: Option<Sizes>,
    split_by: Option<&[Registers]>,
) -> Result<Lowered, Refused> {
    let states = vec![Vec::new(); blocks.len()];
    let mut pass = Pass { blocks, sizes, split_by, reach: Reach::default(), states, copies: 0 };
    pass.enter(0, &AbstractState::at_entry()).map_err(|why| (0, why))?;
    let (mut codes, mut places) = (Vec::new(), Vec::new());
    for &number in order {
        let block = &blocks[number];
        // A block that only returns was resolved on its incoming edges.
        for (copy, mut state) in core::mem::take(&mut pass.states[number]) {
            let mut insns = Vec::new();
            for numbered in &ops[block.body.clone()] {
                pass.operation(numbered.op, &mut state, |insn| insns.push((insn, numbered.slot)))
                    .map_err(|why| (numbered.slot, why))?;
            }
            let terminator = pass.terminator(block.end, state).map_err(|why| (block.last, why))?;
            places.push(copy);
            codes.push((copy, Code { insns, terminator, last: block.last }));
        }
    }
    codes.sort_unstable_by_key(|(copy, _)| *copy);
    Ok((codes.into_iter().map(|(_, code)| code).collect(), places, pass.reach))
}

struct Pass<'a> {
    blocks: &'a [Block],
    sizes: Option<Sizes>,
    /// The live registers of each block, if paths with pointers into different areas are kept split_by.
    split_by: Option<&'a [Registers]>,
    reach: Reach,
    /// The abstract state at the start of each copy of a block, joined over the edges; and the copy's number.
    states: Vec<Vec<(usize, AbstractState)>>,
    /// Number of copies so far.
    copies: usize,
}

impl Pass<'_> {
    fn operation(
        &mut self,
        op: Op,
        state: &mut AbstractState,
        mut emit: impl FnMut(Insn),
    ) -> Result<(), Unsupported> {
        if written(op) == Some(STACK) {
            return Err(Unsupported::Malformed("r10 is written to"));
        }
        match op {
            Op::Alu { width, op, dst, src } => {
                let value = alu(state, width, op, dst, src)?;
                state.set(dst, value);
                let is_nothing = width == Width::W64 && op == AluOp::Mov && src == Operand::Reg(dst);
                if !is_nothing {
                    emit(Insn::Alu { width, op, dst, src });
                }
            }
            Op::Neg { width, dst } => {
                state.get(dst).number()?;
                state.set(dst, Value::ANY);
                emit(Insn::Unary { width, op: UnaryOp::Neg, dst });
            }
            Op::Constant { dst, value } => {
                state.set(dst, Value::Number(Fact::Is(value)));
                emit(Insn::Imm64 { dst, imm: value });
            }
            Op::Extend { width, bits, dst, src } => {
                state.get(src).number()?;
                state.set(dst, Value::ANY);
                emit(Insn::Alu { width, op: AluOp::Mov, dst, src: Operand::Reg(src) });
                extend(width, bits, dst, emit);
            }
            Op::Load { size, signed, dst, base, offset } => {
                let from = self.place(state.get(base), base, offset, size)?;
                let value = match from {
                    MemOperand { area: Area::Spill, index: None, offset } => {
                        state.load(usize::try_from(offset).expect("inside the area"), size)?
                    }
                    MemOperand { area: Area::Spill, .. } => {
                        state.load_anywhere(array(state, base, offset), size)
                    }
                    _ => Value::Number(Fact::of(size)),
                };
                state.set(dst, if signed { Value::ANY } else { value });
                emit(Insn::Load { size, dst, from });
                if signed {
                    extend(Width::W64, u8::try_from(size.bytes() * 8).expect("at most 32"), dst, emit);
                }
            }
            Op::Store { size, base, offset, src } => {
                let to = self.store(state, size, base, offset, src)?;
                emit(Insn::Store { size, to, src: constant_operand(state, src) });
            }
            Op::Swap { size, dst } => {
                state.get(dst).number()?;
                state.set(dst, Value::Number(Fact::of(size)));
                swap(size, dst, emit);
            }
            Op::Search { op, size } => {
                let search = self.search(state, op, size)?;
                state.set(RESULT, Value::Number(Fact::below(u64::from(search.count))));
                for gone in [WINDOW, SCRATCH, CUR_PTR, Reg::R4, Reg::R5] {
                    state.set(gone, Value::Unset);
                }
                emit(Insn::Search { dst: RESULT, search });
            }
            Op::Goto { .. } | Op::Branch { .. } | Op::Exit => unreachable!("these end blocks"),
        }
        Ok(())
    }

    /// Returns the search of a call: array and key.
    fn search(&mut self, state: &AbstractState, op: SearchOp, size: Size) -> Result<Search, Unsupported> {
        let Value::Pointer { area: Area::Window, at: Offset::Is(start), .. } = state.get(WINDOW) else {
            return Err(Unsupported::SearchPlace);
        };
        let Value::Number(Fact::Is(count)) = state.get(SCRATCH) else { return Err(Unsupported::SearchCount) };
        let count = usize::try_from(count).ok().filter(|count| (1..=SEARCH_COUNT_MAX).contains(count));
        let count = count.ok_or(Unsupported::SearchCount)?;
        state.get(CUR_PTR).number()?;
        let offset = self.constant(Area::Window, start, count * size.bytes())?;
        let count = u8::try_from(count).expect("at most 64");
        Ok(Search { op, size, offset, count, key: CUR_PTR })
    }

    fn store(
        &mut self,
        state: &mut AbstractState,
        size: Size,
        base: Reg,
        offset: i16,
        src: Operand,
    ) -> Result<MemOperand, Unsupported> {
        let value = operand(state, src);
        let to = self.place(state.get(base), base, offset, size)?;
        match to {
            MemOperand { area: Area::Window, .. } if !self.sizes.is_some_and(|sizes| sizes.stores) => {
                return Err(Unsupported::WindowStore);
            }
            MemOperand { area: Area::Spill, index: None, offset } => {
                state.store(usize::try_from(offset).expect("inside the area"), size, value)?;
            }
            MemOperand { area: Area::Spill, .. } => {
                if matches!(value, Value::Pointer { .. }) {
                    return Err(Unsupported::PointerArray);
                }
                value.data()?;
                state.store_anywhere();
            }
            MemOperand { area: Area::Window | Area::Scratch, .. } => {
                value.data()?;
            }
        }
        Ok(to)
    }

    /// Returns the memory operand of an access.
    fn place(&mut self, base: Value, reg: Reg, offset: i16, size: Size) -> Result<MemOperand, Unsupported> {
        let (area, at) = match base {
            Value::Pointer { area, at, .. } => (area, at),
            Value::Number(_) => return Err(Unsupported::FarAccess),
            Value::Element => return Err(Unsupported::PointerArray),
            Value::Mixed => return Err(Unsupported::MixedPointer),
            Value::Unset => return Err(Unsupported::Unset),
        };
        let (index, offset) = match at {
            Offset::Is(at) => {
                let start = at.saturating_add(i64::from(offset));
                (None, self.constant(area, start, size.bytes())?)
            }
            Offset::Sum(index, more) => {
                match more.checked_add(i64::from(offset)).and_then(|sum| i16::try_from(sum).ok()) {
                    Some(sum) => (Some(index), self.indexed(area, sum)?),
                    None => (Some(reg), self.indexed(area, offset)?),
                }
            }
            Offset::Any => (Some(reg), self.indexed(area, offset)?),
        };
        Ok(MemOperand { area, index, offset })
    }

    /// Checks and records a constant access.
    fn constant(&mut self, area: Area, start: i64, size: usize) -> Result<i16, Unsupported> {
        let bytes = i64::try_from(size).expect("at most 512");
        let outside = |len| Unsupported::Outside { area, offset: start, len };
        let offset = match area {
            Area::Spill => {
                let spill = i64::try_from(SPILL_LEN).expect("128");
                if start.saturating_add(bytes) > 0 {
                    return Err(Unsupported::Malformed("an access above the stack"));
                }
                if start < -spill {
                    return Err(Unsupported::Stack { bytes: start.saturating_neg() });
                }
                start + spill
            }
            Area::Window | Area::Scratch => start,
        };
        let from = usize::try_from(offset).map_err(|_| outside(self.len(area)))?;
        let end = from.saturating_add(size);
        match area {
            Area::Window if end > WINDOW_LEN_MAX => {
                return Err(Unsupported::WindowTooLarge { last: start.saturating_add(bytes - 1) });
            }
            Area::Window => self.reach.window = self.reach.window.max(end),
            Area::Scratch if end > self.len(area) => return Err(outside(self.len(area))),
            Area::Scratch => self.reach.scratch = self.reach.scratch.max(end),
            Area::Spill => {}
        }
        Ok(i16::try_from(offset).expect("at most 256"))
    }

    /// Returns the declared length of an area; without a declaration, the maximum.
    fn len(&self, area: Area) -> usize {
        match area {
            Area::Window => self.sizes.map_or(WINDOW_LEN_MAX, |sizes| sizes.window),
            Area::Scratch => self.sizes.map_or(SCRATCH_LEN_MAX, |sizes| sizes.scratch),
            Area::Spill => SPILL_LEN,
        }
    }

    /// Returns the offset of an indexed access. Registers count from the area's start, or the stack's top.
    fn indexed(&mut self, area: Area, offset: i16) -> Result<i16, Unsupported> {
        match area {
            Area::Spill => {
                let top = i16::try_from(SPILL_LEN).expect("128");
                offset.checked_add(top).ok_or(Unsupported::Malformed("an access above the stack"))
            }
            Area::Window | Area::Scratch if self.sizes.is_none() => Err(Unsupported::UnknownSize(area)),
            Area::Window => {
                self.reach.window_indexed = true;
                Ok(offset)
            }
            Area::Scratch => Ok(offset),
        }
    }

    fn terminator(&mut self, end: End, mut state: AbstractState) -> Result<Terminator, Unsupported> {
        match end {
            End::Goto(to) => Ok(Terminator::Goto(self.edge(to, state)?)),
            End::Branch { width, cond, left, right, taken, fall } => {
                compare(&state, width, cond, left, right)?;
                if let Some(jumps) = decided(&state, width, cond, left, right) {
                    return Ok(Terminator::Goto(self.edge(if jumps { taken } else { fall }, state)?));
                }
                let mut jumped = state.clone();
                learn(&mut jumped, &mut state, width, cond, left, right);
                let (taken, fall) = (self.edge(taken, jumped)?, self.edge(fall, state)?);
                Ok(Terminator::Branch { width, cond, left, right, taken, fall })
            }
            End::Exit => match state.get(RESULT).data()? {
                Fact::Is(0) => Ok(Terminator::Goto(Target::Return)),
                fact if fact.is_not_zero() => Ok(Terminator::Goto(Target::Next)),
                _ => Ok(Terminator::Branch {
                    width: Width::W64,
                    cond: Cond::Eq,
                    left: RESULT,
                    right: Operand::Imm(0),
                    taken: Target::Return,
                    fall: Target::Next,
                }),
            },
            End::Nowhere => Err(Unsupported::FallsOff),
        }
    }

    /// Follows an edge to a block, or ends right here if the block only returns and r0 is known.
    fn edge(&mut self, to: usize, state: AbstractState) -> Result<Target, Unsupported> {
        let block = &self.blocks[to];
        if block.body.is_empty()
            && block.end == End::Exit
            && let Terminator::Goto(target) = self.terminator(End::Exit, state.clone())?
        {
            return Ok(target);
        }
        self.enter(to, &state).map(Target::Block)
    }

    /// Returns the copy of a block for the abstract state at its entry.
    fn enter(&mut self, to: usize, state: &AbstractState) -> Result<usize, Unsupported> {
        let fits =
            |known: &AbstractState| self.split_by.is_none_or(|live| known.has_same_kind(state, live[to]));
        if let Some((copy, known)) = self.states[to].iter_mut().find(|(_, known)| fits(known)) {
            known.join(state);
            return Ok(*copy);
        }
        if self.split_by.is_some() && self.copies == COPIES_MAX {
            return Err(Unsupported::MixedPointer);
        }
        let copy = self.copies;
        self.copies += 1;
        self.states[to].push((copy, state.clone()));
        Ok(copy)
    }
}

/// Returns the register that an operation writes.
const fn written(op: Op) -> Option<Reg> {
    match op {
        Op::Alu { dst, .. }
        | Op::Neg { dst, .. }
        | Op::Constant { dst, .. }
        | Op::Extend { dst, .. }
        | Op::Swap { dst, .. }
        | Op::Load { dst, .. } => Some(dst),
        Op::Search { .. } => Some(RESULT),
        Op::Store { .. } | Op::Goto { .. } | Op::Branch { .. } | Op::Exit => None,
    }
}

fn operand(state: &AbstractState, operand: Operand) -> Value {
    match operand {
        Operand::Reg(reg) => state.get(reg),
        Operand::Imm(imm) => Value::Number(Fact::Is(i64::from(imm).cast_unsigned())),
    }
}

/// Computes the abstract result of an operation.
fn alu(state: &AbstractState, width: Width, op: AluOp, dst: Reg, src: Operand) -> Result<Value, Unsupported> {
    let right = operand(state, src);
    match (op, width) {
        (AluOp::Mov, Width::W64) => return Ok(right),
        (AluOp::Mov, Width::W32) => return Ok(Value::Number(right.number()?.low())),
        _ => {}
    }
    let left = state.get(dst);
    match (op, width, left, right) {
        (AluOp::Add, Width::W64, Value::Pointer { area, at, zeros }, Value::Number(by)) => {
            let index = if let Operand::Reg(index) = src { Some(index) } else { None };
            Ok(moved(area, at, zeros, by, index))
        }
        (AluOp::Add, Width::W64, Value::Number(by), Value::Pointer { area, at, zeros }) => {
            Ok(moved(area, at, zeros, by, None))
        }
        // clang uses `or` as an addition if it knows the alignment.
        (AluOp::Or, Width::W64, Value::Pointer { area, at, zeros }, Value::Number(by))
            if by.may().checked_shr(zeros).unwrap_or(0) == 0 =>
        {
            let index = if let Operand::Reg(index) = src { Some(index) } else { None };
            Ok(moved(area, at, zeros, by, index))
        }
        (AluOp::Or, Width::W64, Value::Number(by), Value::Pointer { area, at, zeros })
            if by.may().checked_shr(zeros).unwrap_or(0) == 0 =>
        {
            Ok(moved(area, at, zeros, by, None))
        }
        (AluOp::Sub, Width::W64, Value::Pointer { area, at, zeros }, Value::Number(by)) => {
            Ok(moved(area, at, zeros, by.negated(), None))
        }
        (AluOp::Sub, Width::W64, Value::Pointer { area, .. }, Value::Pointer { area: other, .. })
            if area == other =>
        {
            Ok(Value::ANY)
        }
        (AluOp::Add | AluOp::Sub, Width::W64, Value::Element, _) => right.number().map(|_| Value::Element),
        (AluOp::Add, Width::W64, _, Value::Element) => left.number().map(|_| Value::Element),
        _ => Ok(Value::Number(Fact::after(op, width, left.number()?, right.number()?))),
    }
}

/// Returns a pointer after an addition; `index` is the register with the addend, if it keeps its value.
fn moved(area: Area, at: Offset, zeros: u32, by: Fact, index: Option<Reg>) -> Value {
    let at = match (at, by, index) {
        (Offset::Is(at), Fact::Within { .. }, Some(index)) => Offset::Sum(index, at),
        (Offset::Is(at), Fact::Is(by), _) => match at.checked_add(by.cast_signed()) {
            Some(at) => return Value::place(area, at),
            None => Offset::Any,
        },
        (Offset::Sum(index, more), Fact::Is(by), _) => {
            more.checked_add(by.cast_signed()).map_or(Offset::Any, |more| Offset::Sum(index, more))
        }
        _ => Offset::Any,
    };
    Value::Pointer { area, at, zeros: zeros.min(by.may().trailing_zeros()) }
}

/// Returns a local array's start in the spill area and the abstract index in bytes, for a load of a word.
fn array(state: &AbstractState, base: Reg, offset: i16) -> Option<(i64, Fact)> {
    let Value::Pointer { at: Offset::Sum(index, more), .. } = state.get(base) else { return None };
    let index = state.get(index).number().ok()?;
    let top = i64::try_from(SPILL_LEN).expect("128");
    Some((more.checked_add(i64::from(offset))?.checked_add(top)?, index))
}

/// Returns a register's known constant as an immediate, if a store can have it.
fn constant_operand(state: &AbstractState, src: Operand) -> Operand {
    match operand(state, src) {
        Value::Number(Fact::Is(value)) => i32::try_from(value.cast_signed()).map_or(src, Operand::Imm),
        _ => src,
    }
}

/// Reverses the low bytes of `dst` and clears the others, by exchanging halves, then halves of halves. Uses the
/// top of the stack, whose value in the translated program is 0, and restores it.
fn swap(size: Size, dst: Reg, mut emit: impl FnMut(Insn)) {
    let width = if size == Size::B8 { Width::W64 } else { Width::W32 };
    let alu = |op, dst, src| Insn::Alu { width, op, dst, src };
    if size == Size::B2 {
        // The two bytes twice, and the middle two of them.
        for (op, by) in [(AluOp::And, 0xffff), (AluOp::Mul, 0x1_0001), (AluOp::Shr, 8), (AluOp::And, 0xffff)]
        {
            emit(alu(op, dst, Operand::Imm(by)));
        }
        return;
    }
    let steps: &[(i32, u64)] = match size {
        Size::B8 => &[(8, 0x00ff_00ff_00ff_00ff), (16, 0x0000_ffff_0000_ffff), (32, 0xffff_ffff)],
        _ => &[(8, 0x00ff_00ff), (16, 0xffff)],
    };
    for &(by, mask) in steps {
        emit(match i32::try_from(mask) {
            Ok(mask) => alu(AluOp::Mov, STACK, Operand::Imm(mask)),
            Err(_) => Insn::Imm64 { dst: STACK, imm: mask },
        });
        emit(alu(AluOp::And, STACK, Operand::Reg(dst)));
        emit(alu(AluOp::Xor, dst, Operand::Reg(STACK)));
        emit(alu(AluOp::Shr, dst, Operand::Imm(by)));
        emit(alu(AluOp::Shl, STACK, Operand::Imm(by)));
        emit(alu(AluOp::Or, dst, Operand::Reg(STACK)));
    }
    emit(alu(AluOp::Mov, STACK, Operand::Imm(0)));
}

/// Sign-extends the low bits of `dst`.
fn extend(width: Width, bits: u8, dst: Reg, mut emit: impl FnMut(Insn)) {
    let all = match width {
        Width::W64 => 64,
        Width::W32 => 32,
    };
    let src = Operand::Imm(all - i32::from(bits));
    emit(Insn::Alu { width, op: AluOp::Shl, dst, src });
    emit(Insn::Alu { width, op: AluOp::Sar, dst, src });
}

/// Checks a comparison: numbers with numbers, or pointers into one area for equality.
fn compare(
    state: &AbstractState,
    width: Width,
    cond: Cond,
    left: Reg,
    right: Operand,
) -> Result<(), Unsupported> {
    let (left, right) = (state.get(left), operand(state, right));
    if let (Value::Pointer { area: a, .. }, Value::Pointer { area: b, .. }) = (left, right)
        && a == b
        && width == Width::W64
        && matches!(cond, Cond::Eq | Cond::Ne)
    {
        return Ok(());
    }
    if width == Width::W64 && is_null_check(cond, left, right) {
        return Ok(());
    }
    left.number()?;
    right.number()?;
    Ok(())
}

/// Returns whether a pointer is compared with NULL.
fn is_null_check(cond: Cond, left: Value, right: Value) -> bool {
    matches!(cond, Cond::Eq | Cond::Ne)
        && matches!(
            (left, right),
            (Value::Pointer { .. }, Value::NULL) | (Value::NULL, Value::Pointer { .. })
        )
}

/// Returns whether a branch is taken, if known: a pointer into an area is never NULL.
fn decided(state: &AbstractState, width: Width, cond: Cond, left: Reg, right: Operand) -> Option<bool> {
    let equal = match (state.get(left), operand(state, right)) {
        (left, right) if width == Width::W64 && is_null_check(cond, left, right) => false,
        (Value::Number(Fact::Is(left)), Value::Number(Fact::Is(right))) => match width {
            Width::W64 => left == right,
            Width::W32 => Fact::Is(left).low() == Fact::Is(right).low(),
        },
        _ => return None,
    };
    match cond {
        Cond::Eq => Some(equal),
        Cond::Ne => Some(!equal),
        _ => None,
    }
}

/// Refines the abstract register on both sides of a comparison with a constant.
fn learn(
    jumped: &mut AbstractState,
    fallen: &mut AbstractState,
    width: Width,
    cond: Cond,
    left: Reg,
    right: Operand,
) {
    let (Operand::Imm(imm), Width::W64) = (right, width) else { return };
    let (equal, other) = match cond {
        Cond::Eq => (jumped, fallen),
        Cond::Ne => (fallen, jumped),
        _ => return,
    };
    equal.set(left, Value::Number(Fact::Is(i64::from(imm).cast_unsigned())));
    if imm == 0 {
        other.set(left, Value::Number(Fact::NOT_ZERO));
    }
}
