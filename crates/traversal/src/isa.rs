//! The instruction set (PULSE 4.1, Table 2; PROTOCOL 10.5 to 10.9): what one iteration may compute, as values.
//!
//! [`Insn`] is the decoded form: what the verifier checks, the interpreter runs, the disassembler prints and a compiler
//! to machine code translates. Its jump targets count instructions; the encoding's count slots. An `Insn` alone is not
//! trusted: only a [`Program`](crate::Program) says that targets lie ahead and constant accesses inside.

/// Slots of 8 bytes a program may have behind its header; `lddw` takes two, every other instruction one.
pub const SLOTS_MAX: usize = 512;
/// The largest load window, in bytes: the one LOAD of an iteration (PULSE 4.1).
pub const WINDOW_LEN_MAX: usize = 256;
/// The largest scratch pad, in bytes.
pub const SCRATCH_LEN_MAX: usize = farmem_wire::message::SCRATCH_LEN_MAX;
/// Bytes of the spill area, zero at the start of each iteration.
pub const SPILL_LEN: usize = 128;
/// Elements of the longest array that RANK and MATCH search: the comparisons of one make a mask of 64 bits.
pub const SEARCH_COUNT_MAX: usize = 64;
/// Bytes of a memory line: what the load window is counted in for prefetch and cost.
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

    /// The register with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its number, 0 to 10.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// How many bits an operation works on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// All 64.
    W64,
    /// The low 32. What is written to a register is zero-extended.
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
    /// In bytes.
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

/// The memory a program sees. There is no other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Area {
    /// What the LOAD at `cur_ptr` brought. Only a program that declares it may store here; what it stores becomes part of far memory
    /// when the iteration ends.
    Window,
    /// The traversal's state: kept over iterations, carried between nodes, given back at the end.
    Scratch,
    /// [`SPILL_LEN`] bytes for values that found no register; zero at the start of each iteration.
    Spill,
}

/// A place in an area.
///
/// Without an index the verifier proves the access inside. With one the address is the register plus the offset
/// modulo 2^64, and leaving the area is a fault of the traversal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemOperand {
    /// Which area.
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

/// What is asked of an array in the window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SearchOp {
    /// RANK: how many elements are not greater than the key.
    Rank,
    /// MATCH: the number of the first element that equals the key, from 0; the number of elements when there is none.
    Match,
}

/// An array in the window, and what is asked of it. Elements are unsigned, and the key is compared with all its 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Search {
    /// The question.
    pub op: SearchOp,
    /// Bytes of an element.
    pub size: Size,
    /// Where in the window the first element lies; the verifier proves all of them inside.
    pub offset: i16,
    /// Elements, 1 to [`SEARCH_COUNT_MAX`].
    pub count: u8,
    /// What is looked for.
    pub key: Reg,
}

impl Search {
    /// Bytes of all elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.size.bytes() * self.count as usize
    }

    /// True when there is no element, which the verifier refuses.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// What a branch asks of its two operands.
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
        /// Bits it works on.
        width: Width,
        /// What it computes.
        op: AluOp,
        /// First operand and result.
        dst: Reg,
        /// Second operand.
        src: Operand,
    },
    /// `dst = op dst`.
    Unary {
        /// Bits it works on.
        width: Width,
        /// What it computes.
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
        /// Where.
        from: MemOperand,
    },
    /// `place = src`: the low bytes of `src`, an immediate sign-extended to 64 bits first.
    Store {
        /// Bytes written.
        size: Size,
        /// Where; in the window only when the program declares that it stores.
        to: MemOperand,
        /// What.
        src: Operand,
    },
    /// `dst = search`: an array of the window at one stroke. Optional: an accelerator may refuse programs that have it.
    Search {
        /// Result.
        dst: Reg,
        /// The array and the question.
        search: Search,
    },
    /// Goes on at `target`.
    Jump {
        /// An instruction further down.
        target: u16,
    },
    /// Goes on at `target` when `left cond right`, else behind.
    Branch {
        /// Bits compared.
        width: Width,
        /// The question.
        cond: Cond,
        /// First operand.
        left: Reg,
        /// Second operand.
        right: Operand,
        /// An instruction further down.
        target: u16,
    },
    /// NEXT_ITER: ends the iteration; the traversal goes on at the address in `ptr`.
    Next {
        /// Becomes `cur_ptr`.
        ptr: Reg,
    },
    /// RETURN: ends the traversal.
    Return,
}

impl Insn {
    /// Slots of 8 bytes it takes in the encoding.
    #[must_use]
    pub const fn slots(&self) -> usize {
        match self {
            Self::Imm64 { .. } => 2,
            _ => 1,
        }
    }

    /// How many instructions it counts as, where time is estimated: a search is one for each 16 bytes.
    #[must_use]
    pub fn weight(&self) -> u16 {
        match self {
            Self::Search { search, .. } => search.len().div_ceil(16).try_into().unwrap_or(u16::MAX),
            _ => 1,
        }
    }

    /// True for the two instructions that end an iteration.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        matches!(self, Self::Next { .. } | Self::Return)
    }

    /// The instruction it may jump to.
    #[must_use]
    pub const fn target(&self) -> Option<u16> {
        match *self {
            Self::Jump { target } | Self::Branch { target, .. } => Some(target),
            _ => None,
        }
    }

    /// The access it makes: bytes and where.
    #[must_use]
    pub const fn access(&self) -> Option<(Size, MemOperand)> {
        match *self {
            Self::Load { size, from, .. } => Some((size, from)),
            Self::Store { size, to, .. } => Some((size, to)),
            _ => None,
        }
    }
}
