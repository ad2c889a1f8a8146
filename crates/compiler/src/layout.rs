//! Block layout: from blocks to the list of instructions. Dead computations are removed, every jump leads
//! ahead, and few jumps remain.

use crate::bpf::RESULT;
use crate::graph::reverse_post_order;
use crate::lower::{Code, Target, Terminator};
use farmem_traversal::{Cond, Insn, Operand, Reg};

/// Lays out the blocks. The first is the entry, and `order` has all reachable ones, each before its
/// successors.
///
/// Returns the instructions, each with its slot.
pub(crate) fn lay_out(mut codes: Vec<Code>, order: &[usize]) -> Vec<(Insn, usize)> {
    // Each iteration removes something, so the loop ends.
    while thread(&mut codes) | remove_unread(&mut codes, order) {}
    let order = reverse_post_order(codes.len(), |block| successors(codes[block].terminator));
    emit(&codes, &order.expect("a part of a graph without cycles"))
}

fn successors(terminator: Terminator) -> [Option<usize>; 2] {
    let block = |target| match target {
        Target::Block(block) => Some(block),
        Target::Return | Target::Next => None,
    };
    match terminator {
        Terminator::Goto(to) => [None, block(to)],
        Terminator::Branch { taken, fall, .. } => [block(taken), block(fall)],
    }
}

/// Threads edges past empty blocks. Returns true if something changed.
fn thread(codes: &mut [Code]) -> bool {
    let mut changed = false;
    for block in 0..codes.len() {
        let terminator = match codes[block].terminator {
            Terminator::Goto(to) => Terminator::Goto(past_empty(codes, to)),
            Terminator::Branch { width, cond, left, right, taken, fall } => {
                let (taken, fall) = (past_empty(codes, taken), past_empty(codes, fall));
                if taken == fall {
                    Terminator::Goto(fall)
                } else {
                    Terminator::Branch { width, cond, left, right, taken, fall }
                }
            }
        };
        changed |= terminator != codes[block].terminator;
        codes[block].terminator = terminator;
    }
    changed
}

fn past_empty(codes: &[Code], mut target: Target) -> Target {
    while let Target::Block(block) = target
        && let Code { insns, terminator: Terminator::Goto(to), .. } = &codes[block]
        && insns.is_empty()
    {
        target = *to;
    }
    target
}

/// A set of registers, one bit each.
type Set = u16;

const fn bit(reg: Reg) -> Set {
    1 << reg.number()
}

const fn operand_bit(operand: Operand) -> Set {
    match operand {
        Operand::Reg(reg) => bit(reg),
        Operand::Imm(_) => 0,
    }
}

/// Removes computations and constant loads with unread results. Returns true if something changed.
fn remove_unread(codes: &mut [Code], order: &[usize]) -> bool {
    let mut live_in = vec![0; codes.len()];
    let mut changed = false;
    for &block in order.iter().rev() {
        let read_at = |target| match target {
            Target::Block(block) => live_in[block],
            Target::Return => 0,
            Target::Next => bit(RESULT),
        };
        let code = &mut codes[block];
        let mut live = match code.terminator {
            Terminator::Goto(to) => read_at(to),
            Terminator::Branch { left, right, taken, fall, .. } => {
                bit(left) | operand_bit(right) | read_at(taken) | read_at(fall)
            }
        };
        let before = code.insns.len();
        let mut kept: Vec<_> =
            code.insns.iter().rev().filter(|(insn, _)| keep(insn, &mut live)).copied().collect();
        kept.reverse();
        changed |= kept.len() < before;
        code.insns = kept;
        live_in[block] = live;
    }
    changed
}

/// Returns whether an instruction is needed, given the registers read behind it in `live`; updates `live` to
/// those read before it.
fn keep(insn: &Insn, live: &mut Set) -> bool {
    let (writes, reads, acts) = match *insn {
        Insn::Alu { op: farmem_traversal::AluOp::Mov, dst, src, .. } => (bit(dst), operand_bit(src), false),
        Insn::Alu { dst, src, .. } => (bit(dst), bit(dst) | operand_bit(src), false),
        Insn::Unary { dst, .. } => (bit(dst), bit(dst), false),
        Insn::Imm64 { dst, .. } => (bit(dst), 0, false),
        // An indexed load may fault, which is an effect.
        Insn::Load { dst, from, .. } => (bit(dst), from.index.map_or(0, bit), from.index.is_some()),
        Insn::Store { to, src, .. } => (0, to.index.map_or(0, bit) | operand_bit(src), true),
        Insn::Search { dst, search } => (bit(dst), bit(search.key), false),
        Insn::Jump { .. } | Insn::Branch { .. } | Insn::Next { .. } | Insn::Return => {
            unreachable!("blocks are straight; these come when they are laid out")
        }
    };
    if !acts && writes & *live == 0 {
        return false;
    }
    *live = *live & !writes | reads;
    true
}

/// Emits the blocks in order and resolves the jumps.
fn emit(codes: &[Code], order: &[usize]) -> Vec<(Insn, usize)> {
    let mut out = Vec::new();
    let mut starts = vec![0; codes.len()];
    let mut jumps = Vec::new();
    for (place, &block) in order.iter().enumerate() {
        let code = &codes[block];
        let next = order.get(place + 1).map(|&block| Target::Block(block));
        starts[block] = out.len();
        out.extend_from_slice(&code.insns);
        let rest = match code.terminator {
            Terminator::Goto(to) => to,
            Terminator::Branch { width, cond, left, right, taken, fall } => {
                let (cond, taken, fall) = arrange(cond, taken, fall, next);
                jumps.push((out.len(), taken));
                out.push((Insn::Branch { width, cond, left, right, target: 0 }, code.last));
                fall
            }
        };
        if Some(rest) == next {
            continue;
        }
        if matches!(rest, Target::Block(_)) {
            jumps.push((out.len(), rest));
        }
        out.push((plain(rest), code.last));
    }
    for (at, target) in jumps {
        let to = match target {
            Target::Block(block) => starts[block],
            ending => ending_behind(&mut out, at, plain(ending)),
        };
        // A program with more instructions than fit a target is too long anyway, and refused for that.
        let to = u16::try_from(to).unwrap_or(u16::MAX);
        match &mut out[at].0 {
            Insn::Branch { target, .. } | Insn::Jump { target } => *target = to,
            _ => unreachable!("only jumps were noted down"),
        }
    }
    out
}

/// Returns the instruction that reaches a target unconditionally.
const fn plain(target: Target) -> Insn {
    match target {
        Target::Block(_) => Insn::Jump { target: 0 },
        Target::Return => Insn::Return,
        Target::Next => Insn::Next { ptr: RESULT },
    }
}

/// Returns the first equal ending behind an instruction; appends one if there is none.
fn ending_behind(out: &mut Vec<(Insn, usize)>, at: usize, ending: Insn) -> usize {
    let found = out[at..].iter().position(|(insn, _)| *insn == ending);
    found.map_or_else(
        || {
            let slot = out[at].1;
            out.push((ending, slot));
            out.len() - 1
        },
        |ahead| at + ahead,
    )
}

/// Inverts a branch if that saves a jump: the fall-through is best the next block, else an ending.
fn arrange(cond: Cond, taken: Target, fall: Target, next: Option<Target>) -> (Cond, Target, Target) {
    let cost = |target| match target {
        to if Some(to) == next => 0,
        Target::Return | Target::Next => 1,
        Target::Block(_) => 2,
    };
    match inverse(cond) {
        Some(inverse) if cost(taken) < cost(fall) => (inverse, fall, taken),
        _ => (cond, taken, fall),
    }
}

const fn inverse(cond: Cond) -> Option<Cond> {
    Some(match cond {
        Cond::Eq => Cond::Ne,
        Cond::Ne => Cond::Eq,
        Cond::Lt => Cond::Ge,
        Cond::Ge => Cond::Lt,
        Cond::Le => Cond::Gt,
        Cond::Gt => Cond::Le,
        Cond::Slt => Cond::Sge,
        Cond::Sge => Cond::Slt,
        Cond::Sle => Cond::Sgt,
        Cond::Sgt => Cond::Sle,
        Cond::Set => return None,
    })
}
