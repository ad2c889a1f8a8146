//! Liveness: the registers that a block may still read.

use crate::bpf::{CUR_PTR, Numbered, Op, RESULT, SCRATCH, WINDOW};
use crate::graph::{Block, End};
use farmem_traversal::{AluOp, Operand, Reg};

/// A set of registers, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Registers(u16);

impl Registers {
    fn of(registers: &[Reg]) -> Self {
        registers.iter().fold(Self::default(), |set, reg| Self(set.0 | 1 << reg.number()))
    }

    fn and(self, operand: Operand) -> Self {
        match operand {
            Operand::Reg(reg) => Self(self.0 | Self::of(&[reg]).0),
            Operand::Imm(_) => self,
        }
    }

    pub(crate) const fn has(self, reg: Reg) -> bool {
        self.0 >> reg.number() & 1 == 1
    }
}

/// Returns the live-in registers of each block. `order` has the reachable blocks, each before its successors.
pub(crate) fn live(ops: &[Numbered], blocks: &[Block], order: &[usize]) -> Vec<Registers> {
    let mut live = vec![Registers::default(); blocks.len()];
    for &number in order.iter().rev() {
        let block = &blocks[number];
        let behind = block.end.successors().into_iter().flatten();
        let mut now = Registers(behind.fold(0, |set, to| set | live[to].0));
        match block.end {
            End::Branch { left, right, .. } => now.0 |= Registers::of(&[left]).and(right).0,
            End::Exit => now.0 |= Registers::of(&[RESULT]).0,
            End::Goto(_) | End::Nowhere => {}
        }
        for numbered in ops[block.body.clone()].iter().rev() {
            let (writes, reads) = touches(numbered.op);
            now.0 = now.0 & !writes.0 | reads.0;
        }
        live[number] = now;
    }
    live
}

/// Returns the registers that an operation writes, and those that it reads.
fn touches(op: Op) -> (Registers, Registers) {
    let of = Registers::of;
    match op {
        Op::Alu { op: AluOp::Mov, dst, src, .. } => (of(&[dst]), of(&[]).and(src)),
        Op::Alu { dst, src, .. } => (of(&[dst]), of(&[dst]).and(src)),
        Op::Neg { dst, .. } | Op::Swap { dst, .. } => (of(&[dst]), of(&[dst])),
        Op::Constant { dst, .. } => (of(&[dst]), of(&[])),
        Op::Extend { dst, src, .. } => (of(&[dst]), of(&[src])),
        Op::Load { dst, base, .. } => (of(&[dst]), of(&[base])),
        Op::Store { base, src, .. } => (of(&[]), of(&[base]).and(src)),
        Op::Search { .. } => {
            (of(&[RESULT, WINDOW, SCRATCH, CUR_PTR, Reg::R4, Reg::R5]), of(&[WINDOW, SCRATCH, CUR_PTR]))
        }
        Op::Goto { .. } | Op::Branch { .. } | Op::Exit => (of(&[]), of(&[])),
    }
}
