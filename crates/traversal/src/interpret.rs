//! The interpreter: one iteration over a loaded window, and the loop of load and iteration (PROTOCOL 10.1,
//! 10.14).
//!
//! The interpreter is the reference for compiled programs. It does not allocate and does not panic on a
//! verified program, whatever window and scratch pad contain. An iteration ends without a counter, because
//! jumps go forward.

use crate::Program;
use crate::isa::{
    AluOp, Area, Cond, Insn, MemOperand, Operand, Reg, SPILL_LEN, Search, SearchOp, Size, UnaryOp,
    WINDOW_LEN_MAX, Width,
};
use alloc::vec::Vec;
use farmem_wire::VirtAddr;

/// The state of a traversal beside its program: sufficient to continue it on another machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// The pointer whose window the next iteration loads; at the end, the pointer of the last iteration.
    pub cur_ptr: VirtAddr,
    /// The scratch pad, of the program's length.
    pub scratch: Vec<u8>,
}

/// The end of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// NEXT_ITER: `cur_ptr` is the pointer to load next.
    Next,
    /// RETURN: the traversal is over, and the scratch pad is its result.
    Return,
    /// An indexed access left its area. `cur_ptr` is unchanged, and the scratch pad has the program's writes.
    /// Stores to the window are discarded.
    Fault,
}

/// A program accessed bytes of its window that are not accessible (PROTOCOL 10.23). `cur_ptr` is unchanged,
/// and the scratch pad has the writes of the instructions before. Stores to the window are discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behind;

/// The reason why [`run`] stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End<E> {
    /// RETURN: the traversal is over.
    Return,
    /// The limit is reached; the state continues the traversal (PULSE 3).
    IterationLimit,
    /// An indexed access left its area: the traversal is over.
    Fault,
    /// The window at `cur_ptr` could not be loaded; the state continues the traversal elsewhere.
    Fetch(E),
}

/// The result of [`run`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome<E> {
    /// Number of executed iterations, including the last and a faulting one.
    pub iterations: u32,
    /// Reason of the end.
    pub end: End<E>,
}

/// Runs up to `limit` iterations, loading each window through `fetch(cur_ptr, window)`.
///
/// If a fetch fails, the state is that of the iteration before, so that the traversal can continue where the
/// memory is.
///
/// # Panics
/// If the scratch pad in `state` does not have the program's length, or the program stores: use
/// [`run_storing`].
pub fn run<E>(
    program: &Program,
    fetch: &mut impl FnMut(VirtAddr, &mut [u8]) -> Result<(), E>,
    state: &mut State,
    limit: u32,
) -> Outcome<E> {
    assert!(!program.stores(), "a program that stores needs somewhere to store");
    let mut memory = |addr: VirtAddr, access: WindowAccess<'_>| match access {
        WindowAccess::Load(window) => fetch(addr, window),
        WindowAccess::Store(_) => unreachable!("the program does not store"),
    };
    run_storing(program, &mut memory, state, limit)
}

/// An iteration's access to the memory.
#[derive(PartialEq, Eq, Debug)]
pub enum WindowAccess<'a> {
    /// LOAD: fill the window. The window of a storing program must be writable too.
    Load(&'a mut [u8]),
    /// STORE: the window after an iteration that changed it. It was loaded from the same address, and the
    /// store must succeed.
    Store(&'a [u8]),
}

/// Runs a program that may store, as [`run`]. `memory` loads the window at an address, and stores it after an
/// iteration that changed it.
///
/// # Panics
/// If the scratch pad in `state` does not have the program's length.
pub fn run_storing<E>(
    program: &Program,
    memory: &mut impl FnMut(VirtAddr, WindowAccess<'_>) -> Result<(), E>,
    state: &mut State,
    limit: u32,
) -> Outcome<E> {
    let mut before = [0; WINDOW_LEN_MAX];
    let mut buffer = [0; WINDOW_LEN_MAX];
    let window = &mut buffer[..program.window_len()];
    for iterations in 0..limit {
        let at = state.cur_ptr;
        if let Err(why) = memory(at, WindowAccess::Load(window)) {
            return Outcome { iterations, end: End::Fetch(why) };
        }
        let before = &mut before[..if program.stores() { window.len() } else { 0 }];
        before.copy_from_slice(&window[..before.len()]);
        let step = program.step_storing(window, &mut state.cur_ptr, &mut state.scratch);
        if step != Step::Fault
            && *before != window[..before.len()]
            && let Err(why) = memory(at, WindowAccess::Store(window))
        {
            return Outcome { iterations: iterations + 1, end: End::Fetch(why) };
        }
        let end = match step {
            Step::Next => continue,
            Step::Return => End::Return,
            Step::Fault => End::Fault,
        };
        return Outcome { iterations: iterations + 1, end };
    }
    Outcome { iterations: limit, end: End::IterationLimit }
}

impl Program {
    /// Runs one iteration over the loaded window.
    ///
    /// # Panics
    /// If `window` or `scratch` does not have the program's lengths, or the program stores.
    pub fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        assert!(!self.0.stores, "a program that stores needs a window of its own");
        self.iterate_whole(Window::Lent(window), cur_ptr, scratch)
    }

    /// Runs one iteration of a program that may store, as [`Self::step`]. `window` is a copy; the caller
    /// writes it back as a whole, unless the iteration faulted (PROTOCOL 10.10).
    ///
    /// # Panics
    /// If `window` or `scratch` does not have the program's lengths.
    pub fn step_storing(&self, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        self.iterate_whole(Window::Own(window), cur_ptr, scratch)
    }

    /// Runs one iteration over the accessible beginning of a window, as [`Self::step`].
    ///
    /// # Errors
    /// [`Behind`], at the first instruction that loads or searches a byte behind it.
    ///
    /// # Panics
    /// If `window` is longer than the program's, or `scratch` does not have the program's length, or the
    /// program stores.
    pub fn step_cut(
        &self,
        window: &[u8],
        cur_ptr: &mut VirtAddr,
        scratch: &mut [u8],
    ) -> Result<Step, Behind> {
        assert!(!self.0.stores, "a program that stores needs a window of its own");
        self.iterate_cut(window, cur_ptr, scratch).1
    }

    /// Runs one iteration of a storing program over the accessible beginning of a window, as
    /// [`Self::step_storing`]. The caller writes back no more than that.
    ///
    /// # Errors
    /// [`Behind`], at the first instruction that loads, searches or stores to a byte behind it.
    ///
    /// # Panics
    /// If `window` is longer than the program's, or `scratch` does not have the program's length.
    pub fn step_storing_cut(
        &self,
        window: &mut [u8],
        cur_ptr: &mut VirtAddr,
        scratch: &mut [u8],
    ) -> Result<Step, Behind> {
        let (after, step) = self.iterate_cut(window, cur_ptr, scratch);
        window.copy_from_slice(&after[..window.len()]);
        step
    }

    /// Fills the window with zeros behind the accessible bytes, for speculative accesses of the processor
    /// (docs/decisions/2026-11-25-guesses.md). No program reads them.
    fn iterate_cut(
        &self,
        there: &[u8],
        cur_ptr: &mut VirtAddr,
        scratch: &mut [u8],
    ) -> ([u8; WINDOW_LEN_MAX], Result<Step, Behind>) {
        let mut padded = [0; WINDOW_LEN_MAX];
        let window = &mut padded[..self.0.window_len];
        window[..there.len()].copy_from_slice(there);
        let step = self.iterate::<true>(Window::Own(window), there.len(), cur_ptr, scratch);
        (padded, step)
    }

    #[inline]
    fn iterate_whole(&self, window: Window<'_>, cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        match self.iterate::<false>(window, self.0.window_len, cur_ptr, scratch) {
            Ok(step) => step,
            Err(Behind) => unreachable!("all of the window is there"),
        }
    }

    /// Runs an iteration; if `CUT`, only `there` bytes of the window are accessible.
    #[inline]
    fn iterate<const CUT: bool>(
        &self,
        window: Window<'_>,
        there: usize,
        cur_ptr: &mut VirtAddr,
        scratch: &mut [u8],
    ) -> Result<Step, Behind> {
        assert_eq!(window.bytes().len(), self.0.window_len, "the window is the program's");
        assert_eq!(scratch.len(), self.0.scratch_len, "the scratch pad is the program's");
        let mut regs = [0; Reg::ALL.len()];
        regs[Reg::ENTRY as usize] = cur_ptr.0;
        let mut areas = Areas { window, scratch, spill: [0; SPILL_LEN] };
        let mut number = 0;
        loop {
            let insn = &self.0.insns[number];
            number += 1;
            if CUT && areas.is_behind(insn, &regs, there) {
                return Err(Behind);
            }
            match *insn {
                Insn::Alu { width, op, dst, src } => {
                    let (a, b) = (regs[dst as usize], value(&regs, src));
                    regs[dst as usize] = match width {
                        Width::W64 => alu64(op, a, b),
                        Width::W32 => u64::from(alu32(op, low(a), low(b))),
                    };
                }
                Insn::Unary { width, op, dst } => {
                    let a = match op {
                        UnaryOp::Neg => regs[dst as usize].wrapping_neg(),
                        UnaryOp::Not => !regs[dst as usize],
                    };
                    regs[dst as usize] = match width {
                        Width::W64 => a,
                        Width::W32 => u64::from(low(a)),
                    };
                }
                Insn::Imm64 { dst, imm } => regs[dst as usize] = imm,
                Insn::Load { size, dst, from } => match areas.load(size, from, &regs) {
                    Some(loaded) => regs[dst as usize] = loaded,
                    None => return Ok(Step::Fault),
                },
                Insn::Store { size, to, src } => {
                    if areas.store(size, to, &regs, value(&regs, src)).is_none() {
                        return Ok(Step::Fault);
                    }
                }
                Insn::Search { dst, search } => {
                    regs[dst as usize] = areas.search(search, regs[search.key as usize]);
                }
                Insn::Jump { target } => number = usize::from(target),
                Insn::Branch { width, cond, left, right, target } => {
                    let (a, b) = (regs[left as usize], value(&regs, right));
                    let taken = match width {
                        Width::W64 => holds(cond, a, b, a.cast_signed(), b.cast_signed()),
                        Width::W32 => {
                            let (a, b) = (low(a), low(b));
                            holds(cond, a, b, a.cast_signed(), b.cast_signed())
                        }
                    };
                    if taken {
                        number = usize::from(target);
                    }
                }
                Insn::Next { ptr } => {
                    *cur_ptr = VirtAddr(regs[ptr as usize]);
                    return Ok(Step::Next);
                }
                Insn::Return => return Ok(Step::Return),
            }
        }
    }
}

type Regs = [u64; Reg::ALL.len()];

#[inline]
fn value(regs: &Regs, operand: Operand) -> u64 {
    match operand {
        Operand::Reg(reg) => regs[reg as usize],
        Operand::Imm(imm) => i64::from(imm).cast_unsigned(),
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low half is what is meant")]
const fn low(value: u64) -> u32 {
    value as u32
}

#[inline]
fn alu64(op: AluOp, a: u64, b: u64) -> u64 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::And => a & b,
        AluOp::Or => a | b,
        AluOp::Xor => a ^ b,
        AluOp::Shl => a << (b & 63),
        AluOp::Shr => a >> (b & 63),
        AluOp::Sar => (a.cast_signed() >> (b & 63)).cast_unsigned(),
        AluOp::Mov => b,
    }
}

#[inline]
fn alu32(op: AluOp, a: u32, b: u32) -> u32 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::And => a & b,
        AluOp::Or => a | b,
        AluOp::Xor => a ^ b,
        AluOp::Shl => a << (b & 31),
        AluOp::Shr => a >> (b & 31),
        AluOp::Sar => (a.cast_signed() >> (b & 31)).cast_unsigned(),
        AluOp::Mov => b,
    }
}

/// Returns whether the condition holds, for operands given both unsigned and signed.
#[inline]
fn holds<U, S>(cond: Cond, a: U, b: U, signed_a: S, signed_b: S) -> bool
where
    U: Copy + Ord + core::ops::BitAnd<Output = U> + Default,
    S: Copy + Ord,
{
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Set => a & b != U::default(),
        Cond::Slt => signed_a < signed_b,
        Cond::Sle => signed_a <= signed_b,
        Cond::Sgt => signed_a > signed_b,
        Cond::Sge => signed_a >= signed_b,
    }
}

/// The window: borrowed in place, or a copy that may be stored to.
enum Window<'a> {
    Lent(&'a [u8]),
    Own(&'a mut [u8]),
}

impl Window<'_> {
    #[inline]
    const fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Own(bytes) => bytes,
        }
    }
}

/// The memory of one iteration.
struct Areas<'a> {
    window: Window<'a>,
    scratch: &'a mut [u8],
    spill: [u8; SPILL_LEN],
}

impl Areas<'_> {
    /// Returns true if an instruction accesses the window beyond its first `there` bytes. An access beyond
    /// the window itself is a fault instead.
    fn is_behind(&self, insn: &Insn, regs: &Regs, there: usize) -> bool {
        let len = self.window.bytes().len();
        let end = match insn {
            Insn::Search { search, .. } => {
                usize::try_from(search.offset).ok().map(|start| start + search.len())
            }
            _ => insn
                .access()
                .filter(|(_, place)| place.area == Area::Window)
                .and_then(|(size, place)| Some(start(place, regs, len, size)? + size.bytes())),
        };
        end.is_some_and(|end| end > there)
    }

    /// Loads a value; `None` if an indexed access leaves its area. The verifier has proved all other
    /// accesses.
    #[inline]
    fn load(&self, size: Size, from: MemOperand, regs: &Regs) -> Option<u64> {
        let area = match from.area {
            Area::Window => self.window.bytes(),
            Area::Scratch => &*self.scratch,
            Area::Spill => &self.spill,
        };
        let rest = area.get(start(from, regs, area.len(), size)?..)?;
        Some(match size {
            Size::B1 => u64::from(*rest.first()?),
            Size::B2 => u64::from(u16::from_le_bytes(*rest.first_chunk()?)),
            Size::B4 => u64::from(u32::from_le_bytes(*rest.first_chunk()?)),
            Size::B8 => u64::from_le_bytes(*rest.first_chunk()?),
        })
    }

    /// Stores a value; `None` if an indexed access leaves its area, and then nothing is written.
    #[inline]
    fn store(&mut self, size: Size, to: MemOperand, regs: &Regs, value: u64) -> Option<()> {
        let area = match to.area {
            Area::Window => match &mut self.window {
                Window::Own(bytes) => &mut **bytes,
                Window::Lent(_) => unreachable!("verified: only a program that declares it stores here"),
            },
            Area::Scratch => &mut *self.scratch,
            Area::Spill => &mut self.spill,
        };
        let rest = area.get_mut(start(to, regs, area.len(), size)?..)?;
        let bytes = value.to_le_bytes();
        match size {
            Size::B1 => *rest.first_mut()? = bytes[0],
            Size::B2 => *rest.first_chunk_mut()? = [bytes[0], bytes[1]],
            Size::B4 => *rest.first_chunk_mut()? = [bytes[0], bytes[1], bytes[2], bytes[3]],
            Size::B8 => *rest.first_chunk_mut()? = bytes,
        }
        Some(())
    }

    /// Runs a search; the verifier has proved that the array is inside.
    fn search(&self, search: Search, key: u64) -> u64 {
        let start = usize::try_from(search.offset).expect("verified: inside the window");
        let array = &self.window.bytes()[start..start + search.len()];
        let elements = array.chunks_exact(search.size.bytes());
        let mut elements = elements.map(|bytes| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
        let found = match search.op {
            SearchOp::Rank => elements.filter(|&element| element <= key).count(),
            SearchOp::Match => {
                elements.position(|element| element == key).unwrap_or_else(|| search.count.into())
            }
        };
        found as u64
    }
}

/// Returns the offset of an access in its area of `len` bytes. `None` if an indexed access leaves it.
#[inline]
fn start(place: MemOperand, regs: &Regs, len: usize, size: Size) -> Option<usize> {
    let offset = i64::from(place.offset);
    let Some(index) = place.index else { return usize::try_from(offset).ok() };
    let start = regs[index as usize].wrapping_add_signed(offset);
    let last = len.checked_sub(size.bytes())? as u64;
    if start > last {
        return None;
    }
    usize::try_from(inside(start, last)).ok()
}

/// Returns `start` if it is at most `last`, else 0. There is no branch, so a processor that mispredicts the
/// bounds check still reads inside the area (docs/decisions/2026-11-25-guesses.md). `last` is below 2^63.
#[inline]
fn inside(start: u64, last: u64) -> u64 {
    // After the check, the compiler knows that the mask has no effect, and would remove it.
    let start = core::hint::black_box(start);
    let outside = (start | last.wrapping_sub(start)).cast_signed() >> 63;
    start & !outside.cast_unsigned()
}

#[cfg(test)]
mod tests;
