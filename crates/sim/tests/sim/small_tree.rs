//! A small B-link tree as bytes in a node's memory, and the tables selected from it.

use farmem_index::blink::{NODE_LEN, Node, Tag};
use farmem_index::{TreeNode, TreeView};
use farmem_machine::Rng;
use farmem_wire::VirtAddr;

/// Number of keys of the tree: 0, 3, 6 and so on, each with its successor as value.
pub(crate) const KEYS: u64 = 256;
/// Children of a node, and keys of a leaf: four levels.
const FILL: usize = 4;

/// Returns the nodes of the tree, the root first.
pub(crate) fn tree(base: u64) -> Vec<(VirtAddr, Node)> {
    let mut places = (1..).map(|n| base + n * NODE_LEN as u64);
    let root = places.next().expect("endless");
    let mut level: Vec<(u64, u64)> = (0..KEYS).map(|n| (3 * n, 3 * n + 1)).collect();
    let mut nodes = Vec::new();
    for height in 0.. {
        let chunks: Vec<&[(u64, u64)]> = level.chunks(FILL).collect();
        let alone = chunks.len() == 1;
        let at: Vec<u64> =
            chunks.iter().map(|_| if alone { root } else { places.next().expect("endless") }).collect();
        let first = |n: usize| if n == 0 { 0 } else { chunks[n][0].0 };
        let mut above = Vec::new();
        for (n, entries) in chunks.iter().enumerate() {
            let is_last = n + 1 == chunks.len();
            let (right, last) = if is_last { (0, u64::MAX) } else { (at[n + 1], first(n + 1) - 1) };
            let mut entries = entries.to_vec();
            if height > 0 {
                entries[0].0 = first(n);
            }
            above.push((first(n), at[n]));
            let (level, first, right) = (height, first(n), VirtAddr(right));
            let node = Node { level, right, first, last, entries, ..Node::root(Tag::new(7)) };
            nodes.push((VirtAddr(at[n]), node));
        }
        if alone {
            break;
        }
        level = above;
    }
    nodes.reverse();
    nodes
}

/// Returns the input of a selection: each inner node with a random number of accesses.
pub(crate) fn view(nodes: &[(VirtAddr, Node)], rng: &mut Rng) -> TreeView {
    let inner = nodes.iter().filter(|(_, node)| node.level > 0).map(|(at, node)| {
        let pivots = node.entries[1..].iter().map(|(first, _)| *first).collect();
        let children = node.entries.iter().map(|(_, child)| VirtAddr(*child)).collect();
        (*at, TreeNode { level: node.level, pivots, children, accesses: rng.below(1_000).into() })
    });
    TreeView::new(nodes[0].0, inner.collect()).expect("a tree")
}
