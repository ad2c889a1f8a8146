//! The instruction set (PULSE 4.1, Table 2; PROTOCOL 10.5 to 10.9): the computations of one iteration, as
//! values.
//!
//! [`Insn`] is the decoded form. The verifier checks it, the interpreter runs it, the disassembler prints it,
//! and a compiler to machine code translates it. Its jump targets count instructions; those of the encoding
//! count slots. An `Insn` alone is not trusted: only in a [`Program`](crate::Program) do targets lie ahead
//! and constant accesses inside their areas.

/// Most slots of 8 bytes of a program behind its header; `lddw` takes two, every other instruction one.
pub const SLOTS_MAX: usize = 512;
/// The largest load window, in bytes: the one LOAD of an iteration (PULSE 4.1).
pub const WINDOW_LEN_MAX: usize = 256;
/// The largest scratch pad, in bytes.
pub const SCRATCH_LEN_MAX: usize = farmem_wire::message::SCRATCH_LEN_MAX;
/// Bytes of the spill area, zero at the start of each iteration.
pub const SPILL_LEN: usize = 128;
/// Most elements of an array that RANK and MATCH search: their comparisons fit a mask of 64 bits.
pub const SEARCH_COUNT_MAX: usize = 64;
/// Bytes of a memory line, the unit of prefetch and cost.
pub const LINE_LEN: usize = 64;

/// A register of 64 bits. All are zero when an iteration starts, except [`Reg::ENTRY`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the names say it all")]
#[repr(u8)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

impl Reg {
    /// Every register, by number.
    pub const ALL: [Self; 11] = [
        Self::R0,
        Self::R1,
        Self::R2,
        Self::R3,
        Self::R4,
        Self::R5,
        Self::R6,
        Self::R7,
        Self::R8,
        Self::R9,
        Self::R10,
    ];
    /// The register that holds `cur_ptr` when an iteration starts.
    pub const ENTRY: Self = Self::R1;

    /// Returns the register with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns the number, 0 to 10.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// The width of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// All 64 bits.
    W64,
    /// The low 32 bits. A result is zero-extended.
    W32,
}

/// Bytes of one access to an area. Data is little-endian; a load zero-extends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Size {
    /// 1 byte.
    B1,
    /// 2 bytes.
    B2,
    /// 4 bytes.
    B4,
    /// 8 bytes.
    B8,
}

impl Size {
    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::B1 => 1,
            Self::B2 => 2,
            Self::B4 => 4,
            Self::B8 => 8,
        }
    }
}

/// A memory area of a program. There are no others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Area {
    /// The window that the LOAD at `cur_ptr` filled. Only a program that declares it may store here. Its
    /// stores become part of far memory when the iteration ends.
    Window,
    /// The traversal's state: kept over iterations, carried between nodes, returned at the end.
    Scratch,
    /// [`SPILL_LEN`] bytes for values without a register; zero at the start of each iteration.
    Spill,
}

/// A location in an area.
///
/// Without an index the verifier proves the access inside. With an index the address is the register plus the
/// offset modulo 2^64, and an access outside the area is a fault of the traversal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemOperand {
    /// The area.
    pub area: Area,
    /// The register that is added to the offset.
    pub index: Option<Reg>,
    /// Bytes from the start of the area, or from the index.
    pub offset: i16,
}

/// The second operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A constant, sign-extended to the operation's width.
    Imm(i32),
}

/// An operation on two values, `dst = dst op src`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AluOp {
    /// Sum, wrapping.
    Add,
    /// Difference, wrapping.
    Sub,
    /// Product, wrapping.
    Mul,
    /// Unsigned quotient; x / 0 = 0.
    Div,
    /// Unsigned remainder; x % 0 = x.
    Mod,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Left shift, by the count modulo the width.
    Shl,
    /// Right shift bringing in zeros, by the count modulo the width.
    Shr,
    /// Right shift bringing in copies of the sign bit, by the count modulo the width.
    Sar,
    /// `src` itself.
    Mov,
}

/// An operation on one value, `dst = op dst`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnaryOp {
    /// Two's complement.
    Neg,
    /// Bitwise complement.
    Not,
}

/// The operation of a search.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SearchOp {
    /// RANK: the number of elements that are not greater than the key.
    Rank,
    /// MATCH: the index of the first element that equals the key, from 0; the number of elements if there is
    /// none.
    Match,
}

/// A search of an array in the window. Elements are unsigned, and the key is compared with all its 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Search {
    /// The operation.
    pub op: SearchOp,
    /// Bytes of an element.
    pub size: Size,
    /// Offset in the window of the first element; the verifier proves all elements inside.
    pub offset: i16,
    /// Number of elements, 1 to [`SEARCH_COUNT_MAX`].
    pub count: u8,
    /// Register with the key.
    pub key: Reg,
}

impl Search {
    /// Returns the bytes of all elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.size.bytes() * self.count as usize
    }

    /// Returns true if there is no element, which the verifier refuses.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The condition of a branch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cond {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less, unsigned.
    Lt,
    /// Less or equal, unsigned.
    Le,
    /// Greater, unsigned.
    Gt,
    /// Greater or equal, unsigned.
    Ge,
    /// A bit is set in both.
    Set,
    /// Less, signed.
    Slt,
    /// Less or equal, signed.
    Sle,
    /// Greater, signed.
    Sgt,
    /// Greater or equal, signed.
    Sge,
}

/// One decoded instruction. Targets are instruction numbers, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Insn {
    /// `dst = dst op src`.
    Alu {
        /// Width of the operation.
        width: Width,
        /// The operation.
        op: AluOp,
        /// First operand and result.
        dst: Reg,
        /// Second operand.
        src: Operand,
    },
    /// `dst = op dst`.
    Unary {
        /// Width of the operation.
        width: Width,
        /// The operation.
        op: UnaryOp,
        /// Operand and result.
        dst: Reg,
    },
    /// `dst = imm`, all 64 bits; takes two slots.
    Imm64 {
        /// Result.
        dst: Reg,
        /// The constant.
        imm: u64,
    },
    /// `dst = place`.
    Load {
        /// Bytes read.
        size: Size,
        /// Result, zero-extended.
        dst: Reg,
        /// Source.
        from: MemOperand,
    },
    /// `place = src`: the low bytes of `src`, an immediate sign-extended to 64 bits first.
    Store {
        /// Bytes written.
        size: Size,
        /// Destination; in the window only if the program declares that it stores.
        to: MemOperand,
        /// Value to store.
        src: Operand,
    },
    /// `dst = search`: one search of an array in the window. Optional: an accelerator may refuse programs
    /// that have it.
    Search {
        /// Result.
        dst: Reg,
        /// The search.
        search: Search,
    },
    /// Continues at `target`.
    Jump {
        /// An instruction further down.
        target: u16,
    },
    /// Continues at `target` if `left cond right`, else behind.
    Branch {
        /// Width of the comparison.
        width: Width,
        /// The condition.
        cond: Cond,
        /// First operand.
        left: Reg,
        /// Second operand.
        right: Operand,
        /// An instruction further down.
        target: u16,
    },
    /// NEXT_ITER: ends the iteration; the traversal continues at the address in `ptr`.
    Next {
        /// Register with the next `cur_ptr`.
        ptr: Reg,
    },
    /// RETURN: ends the traversal.
    Return,
}

impl Insn {
    /// Returns the number of 8-byte slots in the encoding.
    #[must_use]
    pub const fn slots(&self) -> usize {
        match self {
            Self::Imm64 { .. } => 2,
            _ => 1,
        }
    }

    /// Returns the number of instructions that this one counts as in time estimates: a search counts one per
    /// 16 bytes.
    #[must_use]
    pub fn weight(&self) -> u16 {
        match self {
            Self::Search { search, .. } => search.len().div_ceil(16).try_into().unwrap_or(u16::MAX),
            _ => 1,
        }
    }

    /// Returns true for the two instructions that end an iteration.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        matches!(self, Self::Next { .. } | Self::Return)
    }

    /// Returns the target of a jump.
    #[must_use]
    pub const fn target(&self) -> Option<u16> {
        match *self {
            Self::Jump { target } | Self::Branch { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Returns the access: size and location.
    #[must_use]
    pub const fn access(&self) -> Option<(Size, MemOperand)> {
        match *self {
            Self::Load { size, from, .. } => Some((size, from)),
            Self::Store { size, to, .. } => Some((size, to)),
            _ => None,
        }
    }
}
