//! The text form of a program, which assembles to the same bytes (PROTOCOL 10.20).

use crate::Program;
use crate::isa::{AluOp, Area, Cond, Insn, MemOperand, Operand, Reg, Search, SearchOp, Size, UnaryOp, Width};
use alloc::collections::BTreeSet;
use alloc::string::String;
use core::fmt::{self, Write};

impl Program {
    /// Returns the text form. A label is `L` and the number of the instruction.
    #[must_use]
    pub fn disassemble(&self) -> String {
        let mut text = String::new();
        write!(text, "{self}").expect("a string takes everything");
        text
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, ".window {}", self.window_len())?;
        writeln!(f, ".scratch {}", self.scratch_len())?;
        if self.stores() {
            writeln!(f, ".stores")?;
        }
        let targets: BTreeSet<_> =
            self.instructions().filter_map(|insn| insn.target()).map(usize::from).collect();
        for (number, insn) in self.instructions().enumerate() {
            if targets.contains(&number) {
                writeln!(f, "L{number}:")?;
            }
            writeln!(f, "    {insn}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Alu { width, op, dst, src } => write!(f, "{op}{width} {dst}, {src}"),
            Self::Unary { width, op, dst } => write!(f, "{op}{width} {dst}"),
            Self::Imm64 { dst, imm } => write!(f, "lddw {dst}, {imm:#x}"),
            Self::Load { size, dst, from } => write!(f, "ld{} {dst}, {from}", size.bytes()),
            Self::Store { size, to, src } => write!(f, "st{} {to}, {src}", size.bytes()),
            Self::Search { dst, search: Search { op, size, offset, count, key } } => {
                write!(f, "{op}{} {dst}, window[{offset}], {count}, {key}", size.bytes())
            }
            Self::Jump { target } => write!(f, "jmp L{target}"),
            Self::Branch { width, cond, left, right, target } => {
                write!(f, "j{cond}{width} {left}, {right}, L{target}")
            }
            Self::Next { ptr } => write!(f, "next {ptr}"),
            Self::Return => f.write_str("ret"),
        }
    }
}

impl fmt::Display for MemOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { area, index, offset } = *self;
        match index {
            None => write!(f, "{area}[{offset}]"),
            Some(reg) if offset == 0 => write!(f, "{area}[{reg}]"),
            Some(reg) if offset < 0 => write!(f, "{area}[{reg} - {}]", offset.unsigned_abs()),
            Some(reg) => write!(f, "{area}[{reg} + {offset}]"),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reg(reg) => reg.fmt(f),
            Self::Imm(imm) => imm.fmt(f),
        }
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.number())
    }
}

/// The suffix of a mnemonic.
impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::W64 => "",
            Self::W32 => "32",
        })
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Window => "window",
            Self::Scratch => "scratch",
            Self::Spill => "spill",
        })
    }
}

impl AluOp {
    /// Every operation with its mnemonic.
    pub(crate) const NAMES: [(Self, &'static str); 12] = [
        (Self::Add, "add"),
        (Self::Sub, "sub"),
        (Self::Mul, "mul"),
        (Self::Div, "div"),
        (Self::Mod, "mod"),
        (Self::And, "and"),
        (Self::Or, "or"),
        (Self::Xor, "xor"),
        (Self::Shl, "shl"),
        (Self::Shr, "shr"),
        (Self::Sar, "sar"),
        (Self::Mov, "mov"),
    ];
}

impl UnaryOp {
    /// Every operation with its mnemonic.
    pub(crate) const NAMES: [(Self, &'static str); 2] = [(Self::Neg, "neg"), (Self::Not, "not")];
}

impl Cond {
    /// Every condition with its mnemonic, which follows the `j`.
    pub(crate) const NAMES: [(Self, &'static str); 11] = [
        (Self::Eq, "eq"),
        (Self::Ne, "ne"),
        (Self::Lt, "lt"),
        (Self::Le, "le"),
        (Self::Gt, "gt"),
        (Self::Ge, "ge"),
        (Self::Set, "set"),
        (Self::Slt, "slt"),
        (Self::Sle, "sle"),
        (Self::Sgt, "sgt"),
        (Self::Sge, "sge"),
    ];
}

impl SearchOp {
    /// Every search operation with its mnemonic; the element size follows.
    pub(crate) const NAMES: [(Self, &'static str); 2] = [(Self::Rank, "rank"), (Self::Match, "match")];
}

impl Size {
    /// Every size.
    pub(crate) const ALL: [Self; 4] = [Self::B1, Self::B2, Self::B4, Self::B8];
}

impl fmt::Display for AluOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(f, *self, &Self::NAMES)
    }
}

impl fmt::Display for UnaryOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(f, *self, &Self::NAMES)
    }
}

impl fmt::Display for SearchOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(f, *self, &Self::NAMES)
    }
}

impl fmt::Display for Cond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(f, *self, &Self::NAMES)
    }
}

fn write_name<T: PartialEq>(f: &mut fmt::Formatter<'_>, wanted: T, names: &[(T, &str)]) -> fmt::Result {
    let (_, name) = names.iter().find(|(known, _)| *known == wanted).expect("the table has every variant");
    f.write_str(name)
}
