//! Compile errors: each has its location in the source and a way out.

use farmem_traversal::{Area, SPILL_LEN, VerifyError, WINDOW_LEN_MAX};
use std::fmt;
use thiserror::Error;

/// The reason why an object gives no program.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CompileError {
    /// The bytes are not a BPF object, or contradict themselves.
    #[error("not a little-endian BPF object: {0}")]
    Object(String),
    /// The object has no function declared with `FARMEM_ITERATOR`.
    #[error("no iterator in this object: declare one with FARMEM_ITERATOR of farmem/iterator.h")]
    NoIterator,
    /// The object has several iterators, and none was selected.
    #[error("several iterators in this object, choose one: {}", .0.join(", "))]
    Several(Vec<String>),
    /// The object has no iterator with the selected name.
    #[error("no iterator {wanted} in this object, only {}", .have.join(", "))]
    Unknown {
        /// The selected name.
        wanted: String,
        /// The iterators of the object.
        have: Vec<String>,
    },
    /// An instruction has no counterpart in the instruction set.
    #[error("{place}: {why}")]
    At {
        /// Location of the instruction.
        place: SourceLocation,
        /// The reason, and what to do.
        why: Unsupported,
    },
    /// The verifier refuses the whole program, most often because it is too long.
    #[error("{name}: {why}{}", hint(.why))]
    Program {
        /// Name of the iterator.
        name: String,
        /// Error of the verifier.
        why: VerifyError,
    },
}

fn hint(why: &VerifyError) -> &'static str {
    match why {
        VerifyError::TooLong { .. } => ": unroll fewer rounds, or take the node in two iterations",
        _ => "",
    }
}

/// A location in the source, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceLocation {
    /// Name of the iterator.
    pub iterator: String,
    /// Number of the BPF instruction, as a disassembler counts.
    pub instruction: usize,
    /// Source file and line, if the object has them (`clang -g`).
    pub line: Option<Line>,
}

/// A line of source.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Line {
    /// Name of the file in the object.
    pub file: String,
    /// Number of the line, from 1.
    pub number: u32,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.number)
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.line {
            Some(line) => write!(f, "{line}: {}", self.iterator),
            None => {
                write!(f, "{}: instruction {} (no line: compile with -g)", self.iterator, self.instruction)
            }
        }
    }
}

/// The reason why one instruction is refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Unsupported {
    /// The control flow has a cycle.
    #[error(
        "the loop is not unrolled: write FARMEM_LOOP(i, rounds), or FARMEM_UNROLL before a loop with FARMEM_ROUND as its first statement; the number of rounds is a constant"
    )]
    Loop,
    /// A call to a function that was not inlined, or to a library.
    #[error(
        "calls {0}: an iterator calls nothing; make it `static inline` (FARMEM_INLINE), or use FARMEM_EQUAL and FARMEM_COPY"
    )]
    Call(String),
    /// A constant table or a global variable.
    #[error(
        "uses the table or variable {0}: only the node, the scratch pad and local variables are in reach; write constants out, or carry them in the scratch pad"
    )]
    Global(String),
    /// A table without a name in the source.
    #[error(
        "uses a table that clang laid out in {0}: a constant array, a string, what a local array begins with, or what a built-in function of bits looks up: only the node, the scratch pad and local variables are in reach; write constants out, or carry them in the scratch pad"
    )]
    Table(String),
    /// Division of signed numbers.
    #[error("signed division: divide uint64_t or uint32_t, or shift")]
    SignedDivision,
    /// A read-modify-write of memory.
    #[error(
        "an atomic operation: nothing else can touch node or scratch pad within an iteration; read and write them plainly"
    )]
    Atomic,
    /// An instruction that a C compiler has no reason to emit.
    #[error("the BPF opcode {0:#04x} is not supported: compile with -mcpu=v3")]
    Opcode(u8),
    /// An invalid register number, jump or constant.
    #[error("malformed BPF: {0}")]
    Malformed(&'static str),
    /// The end of the code is reachable.
    #[error("runs off the end of the function: return FARMEM_NEXT(pointer) or FARMEM_RETURN on every path")]
    FallsOff,
    /// A load or store at a number instead of in one of the three areas.
    #[error(
        "follows a pointer within an iteration: only the node at cur_ptr is loaded; return FARMEM_NEXT(pointer) and read there"
    )]
    FarAccess,
    /// A store to the load window.
    #[error(
        "stores to the node: the window is read-only; declare the iterator with FARMEM_STORING_ITERATOR if it shall change far memory"
    )]
    WindowStore,
    /// The pointer leads to different areas on different paths.
    #[error(
        "the same access reaches the node on one path and the scratch pad or a local variable on another: write it once for each"
    )]
    MixedPointer,
    /// A pointer read from, or written to, an array of local pointers at a variable index.
    #[error(
        "takes a pointer out of a local array, or puts one in, at an index that is data, and not all that may be there leads to one place: choose by `if` or `switch`, or index what the pointers lead to"
    )]
    PointerArray,
    /// The address of the window, the scratch pad or a local variable would become data.
    #[error("takes the address of {} as a value: these are copies without an address in far memory; the node's is cur_ptr", name(*.0))]
    PointerEscapes(Area),
    /// Pointer arithmetic other than adding an offset, or an ordered comparison of pointers.
    #[error("calculates with the address of {}: index into it instead", name(*.0))]
    PointerArithmetic(Area),
    /// An uninitialized value.
    #[error("uses a variable that nothing was written to on some path: give it a value where it is declared")]
    Unset,
    /// A constant access behind the largest window.
    #[error("reads byte {last} of the node: the load window has at most {WINDOW_LEN_MAX} bytes")]
    WindowTooLarge {
        /// The last byte of the access.
        last: i64,
    },
    /// A constant access before the node, or outside the declared scratch pad.
    #[error("accesses byte {offset} of {}, which has {len}", name(*.area))]
    Outside {
        /// The accessed area.
        area: Area,
        /// Offset of the first byte of the access.
        offset: i64,
        /// Length of the area.
        len: usize,
    },
    /// RANK or MATCH of anything but an array of the node.
    #[error(
        "searches something else than an array of the node: FARMEM_FIND_RANK and FARMEM_FIND_MATCH take an array that is a member of *win"
    )]
    SearchPlace,
    /// RANK or MATCH of no element, of more than 64, or of a variable number of elements.
    #[error("searches an array of no element, of more than 64, or of a number that is not constant")]
    SearchCount,
    /// More local variables than fit the spill area.
    #[error(
        "local variables take {bytes} bytes of the stack, {SPILL_LEN} are there: keep large arrays in the scratch pad, or fewer values at once"
    )]
    Stack {
        /// Bytes used from the top of the stack.
        bytes: i64,
    },
    /// An indexed access in an object without the sizes of the structures.
    #[error("indexes {} of unknown size: declare the iterator with FARMEM_ITERATOR", name(*.0))]
    UnknownSize(Area),
}

fn name(area: Area) -> &'static str {
    match area {
        Area::Window => "the node",
        Area::Scratch => "the scratch pad",
        Area::Spill => "a local variable",
    }
}
