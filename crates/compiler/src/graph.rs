//! The control-flow graph of a function, and an order in which every jump leads ahead.
//!
//! clang lays blocks out in any order, with backward jumps even without loops. So the blocks are reordered: a
//! graph without cycles has a reverse post-order, in which all edges lead forward (PULSE 4.1). A cycle is a
//! loop that was not unrolled, and is refused.

use crate::bpf::{Numbered, Op, Refused};
use crate::error::Unsupported;
use farmem_traversal::{Cond, Operand, Reg, Width};
use std::collections::BTreeMap;
use std::ops::Range;

/// A basic block: operations in sequence, and its successors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    /// Positions of the operations, without the one that ends the block.
    pub(crate) body: Range<usize>,
    /// The slot for errors about the end.
    pub(crate) last: usize,
    pub(crate) end: End,
}

/// The end of a block, with numbers of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Goto(usize),
    Branch {
        width: Width,
        cond: Cond,
        left: Reg,
        right: Operand,
        taken: usize,
        fall: usize,
    },
    Exit,
    /// Behind the last operation: refused if reachable.
    Nowhere,
}

/// An edge that closes a cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cycle {
    pub(crate) from: usize,
}

/// Returns the blocks of a function; the first is the entry.
pub(crate) fn blocks(ops: &[Numbered]) -> Vec<Block> {
    let mut starts = BTreeMap::from([(0, 0)]);
    for (at, numbered) in ops.iter().enumerate() {
        match numbered.op {
            Op::Goto { target } | Op::Branch { target, .. } => {
                starts.insert(target, 0);
                starts.insert(at + 1, 0);
            }
            Op::Exit => {
                starts.insert(at + 1, 0);
            }
            _ => {}
        }
    }
    starts.remove(&ops.len());
    for (number, block) in starts.values_mut().enumerate() {
        *block = number;
    }
    let ends = starts.keys().copied().skip(1).chain([ops.len()]);
    let number = |at: usize| starts.get(&at).copied();
    starts.keys().zip(ends).map(|(&start, end)| block(ops, start..end, number)).collect()
}

fn block(ops: &[Numbered], range: Range<usize>, number: impl Fn(usize) -> Option<usize>) -> Block {
    let last = &ops[range.end - 1];
    let behind = number(range.end);
    let to = |target| number(target).expect("targets begin blocks");
    let (end, has_own) = match last.op {
        Op::Goto { target } => (End::Goto(to(target)), true),
        Op::Branch { width, cond, left, right, target } => match behind {
            Some(fall) => (End::Branch { width, cond, left, right, taken: to(target), fall }, true),
            None => (End::Nowhere, true),
        },
        Op::Exit => (End::Exit, true),
        _ => (behind.map_or(End::Nowhere, End::Goto), false),
    };
    let body = range.start..range.end - usize::from(has_own);
    Block { body, last: last.slot, end }
}

impl End {
    /// Returns the successors: the taken one, then the fall-through.
    pub(crate) const fn successors(self) -> [Option<usize>; 2] {
        match self {
            Self::Goto(to) => [None, Some(to)],
            Self::Branch { taken, fall, .. } => [Some(taken), Some(fall)],
            Self::Exit | Self::Nowhere => [None, None],
        }
    }
}

/// Returns the blocks that the entry reaches, in reverse post-order.
///
/// # Errors
/// A loop, or a reachable end of the code.
pub(crate) fn ordered(blocks: &[Block]) -> Result<Vec<usize>, Refused> {
    let order = reverse_post_order(blocks.len(), |block| blocks[block].end.successors());
    let order = order.map_err(|cycle| (blocks[cycle.from].last, Unsupported::Loop))?;
    match order.iter().find(|&&block| blocks[block].end == End::Nowhere) {
        Some(&block) => Err((blocks[block].last, Unsupported::FallsOff)),
        None => Ok(order),
    }
}

/// Returns the nodes that node 0 reaches, each before its successors. The second successor of a node follows
/// as soon as possible.
pub(crate) fn reverse_post_order(
    count: usize,
    successors: impl Fn(usize) -> [Option<usize>; 2],
) -> Result<Vec<usize>, Cycle> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; count];
    let mut done = Vec::with_capacity(count);
    // An explicit stack, because code from a file may nest as deep as it is long. Each entry has the
    // successors still to visit.
    let mut path = Vec::new();
    let mut enter = Some(0);
    loop {
        if let Some(node) = enter.take() {
            marks[node] = Mark::Open;
            let [first, second] = successors(node);
            path.push((node, [second, first]));
        }
        let Some((node, left)) = path.last_mut() else { break };
        let node = *node;
        match left.iter_mut().rev().find_map(Option::take) {
            Some(to) if marks[to] == Mark::New => enter = Some(to),
            Some(to) if marks[to] == Mark::Open => return Err(Cycle { from: node }),
            Some(_) => {}
            None => {
                marks[node] = Mark::Done;
                done.push(node);
                path.pop();
            }
        }
    }
    done.reverse();
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(edges: &[[Option<usize>; 2]]) -> Result<Vec<usize>, Cycle> {
        reverse_post_order(edges.len(), |node| edges[node])
    }

    #[test]
    fn a_diamond_keeps_the_fall_through_beside_its_branch() {
        let edges = [[Some(2), Some(1)], [None, Some(3)], [None, Some(3)], [None, None]];
        assert_eq!(order(&edges), Ok(vec![0, 1, 2, 3]));
    }

    /// clang places a shared tail before the block that jumps to it.
    #[test]
    fn a_jump_back_without_a_loop_becomes_one_ahead() {
        let edges = [[Some(2), Some(1)], [None, None], [None, Some(1)]];
        assert_eq!(order(&edges), Ok(vec![0, 2, 1]));
    }

    #[test]
    fn cycles_are_found_wherever_they_close() {
        assert_eq!(order(&[[None, Some(0)]]), Err(Cycle { from: 0 }));
        let edges = [[None, Some(1)], [Some(3), Some(2)], [None, Some(1)], [None, None]];
        assert_eq!(order(&edges), Err(Cycle { from: 2 }));
    }

    #[test]
    fn what_is_not_reached_is_left_out() {
        assert_eq!(order(&[[None, Some(2)], [None, Some(0)], [None, None]]), Ok(vec![0, 2]));
    }

    /// Deeper than any call stack.
    #[test]
    fn a_million_blocks_in_a_row() {
        let count = 1_000_000;
        let order = reverse_post_order(count, |node| [None, (node + 1 < count).then_some(node + 1)]);
        assert_eq!(order.map(|order| order.len()), Ok(count));
    }
}
