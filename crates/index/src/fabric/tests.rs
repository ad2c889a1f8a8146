//! A tree of four servers in a core, two pods and four edges: every key descends as far as the tables allow,
//! and never past its server.

use super::*;
use crate::{IndexTables, TreeNode, TreeTables};
use alloc::collections::BTreeMap;
use farmem_wire::Domain;

const SERVER: u64 = 1 << 40;
const PROGRAM: ProgramHash = ProgramHash([0x10; 16]);

fn server_of(addr: VirtAddr) -> Option<NodeId> {
    u16::try_from(addr.0 / SERVER).ok().filter(|n| (1..=4).contains(n)).map(NodeId)
}

/// Returns a tree of the keys 0 to `leaves * 10`, ten per leaf, `fan` children per node. Nodes are divided
/// over four servers by key; an inner node is with its first child.
fn tree(leaves: u64, fan: usize) -> (VirtAddr, TreeView) {
    let mut next = [0_u64; 5];
    let mut place = |server: u64| {
        next[usize::try_from(server).unwrap()] += 0x100;
        server * SERVER + next[usize::try_from(server).unwrap()]
    };
    let mut level: Vec<(u64, u64)> = (0..leaves).map(|n| (10 * n, place(1 + n * 4 / leaves))).collect();
    let mut nodes = BTreeMap::new();
    for height in 1.. {
        let mut above = Vec::new();
        for chunk in level.chunks(fan) {
            let at = place(chunk[0].1 / SERVER);
            let pivots = chunk[1..].iter().map(|(first, _)| *first).collect();
            let children = chunk.iter().map(|(_, at)| VirtAddr(*at)).collect();
            nodes.insert(VirtAddr(at), TreeNode { level: height, pivots, children, accesses: 100 });
            above.push((chunk[0].0, at));
        }
        level = above;
        if let [(_, root)] = level[..] {
            return (VirtAddr(root), TreeView::new(VirtAddr(root), nodes).expect("a tree"));
        }
    }
    unreachable!("a level of one node ends it")
}

fn fabric() -> FabricSwitch {
    let edge = |n: u16| FabricSwitch { index: 3 + n, servers: Vec::from([NodeId(n)]), below: Vec::new() };
    let pod = |n: u16| {
        let edges = [2 * n - 1, 2 * n];
        FabricSwitch { index: 1 + n, servers: edges.map(NodeId).to_vec(), below: edges.map(edge).to_vec() }
    };
    FabricSwitch { index: 1, servers: (1..5).map(NodeId).collect(), below: [pod(1), pod(2)].to_vec() }
}

/// Returns the nodes that a key reaches: at the core, its pod and its edge.
fn way(parts: &[(u16, TreeSection)], root: VirtAddr, key: u64) -> [VirtAddr; 3] {
    let tables = |index: u16| {
        let (_, section) = parts.iter().find(|(of, _)| *of == index).expect("each switch has its part");
        let mut tables = IndexTables::default();
        let parsed = TreeTables::parse(&section.emit()).expect("a section");
        tables.put(Domain(1), root.0, parsed).expect("the only tree");
        tables
    };
    let pad = key.to_le_bytes();
    let core = tables(1).start(Domain(1), root, PROGRAM, &pad).expect("it is named").at;
    let NodeId(server) = server_of(core).expect("a server's");
    let below = |index, at| tables(index).below(Domain(1), root, at, &pad).map_or(at, |descent| descent.at);
    let pod = below(2 + (server - 1) / 2, core);
    let edge = below(3 + server, pod);
    [core, pod, edge]
}

#[test]
fn each_key_goes_down_to_its_leaf_at_its_server() {
    let (root, tree) = tree(4 * 256, 4);
    let level = |at: VirtAddr| tree.range_of(at).map_or(0, |range| range.child.level);
    // Five levels of inner nodes: the fat root has one, pod and edge two each.
    let extent = Extent { ranges: 4, sets: 2, nodes: 100 };
    let parts = divide(&tree, (root, &[PROGRAM]), &fabric(), extent, &server_of);
    assert_eq!(parts.iter().map(|(index, _)| *index).max(), Some(7));
    assert_eq!(parts.last().map(|(index, _)| *index), Some(1), "the core's is the last");
    for key in (0..10_240).step_by(7) {
        let [core, pod, edge] = way(&parts, root, key);
        let server = server_of(VirtAddr((1 + key / 2_560) * SERVER));
        assert_eq!([core, pod, edge].map(server_of), [server; 3], "key {key}");
        assert_eq!([core, pod, edge].map(level), [4, 2, 0], "key {key}");
    }
    for (index, part) in parts.iter().filter(|(index, _)| *index > 1) {
        let servers = if *index < 4 { 2 } else { 1 };
        let at: BTreeSet<_> = part.sets.iter().flatten().map(|node| server_of(node.addr)).collect();
        assert_eq!((at.len(), part.ranges.len()), (servers, 1), "switch {index}");
    }
}

/// If data is not divided at nodes' borders, a node with children at two servers is in no switch below the
/// core.
#[test]
fn no_switch_leads_past_a_server() {
    let (root, tree) = tree(1_000, 7);
    for ranges in [1, 7, 40, 600] {
        for nodes in [0, 1, 5, 4_096] {
            let extent = Extent { ranges, sets: 2, nodes };
            let parts = divide(&tree, (root, &[PROGRAM]), &fabric(), extent, &server_of);
            for key in (0..10_000).step_by(13) {
                let way = way(&parts, root, key);
                assert!(way.iter().all(|at| server_of(*at) == server_of(way[0])), "key {key}: {way:?}");
            }
            let sets = parts.iter().flat_map(|(_, part)| &part.sets);
            assert!(sets.into_iter().all(|set| set.len() <= nodes));
        }
    }
}

/// A tree that is a leaf has no inner nodes: the core sends its traversals to the leaf.
#[test]
fn a_leaf_has_nothing_to_divide() {
    let root = VirtAddr(3 * SERVER + 0x100);
    let parts = divide(&TreeView::default(), (root, &[PROGRAM]), &fabric(), Extent::FAT_TREE, &server_of);
    assert_eq!(parts.len(), 7);
    assert_eq!(way(&parts, root, 5), [root; 3]);
}

#[test]
fn an_extent_has_bounds() {
    assert_eq!(Extent::FAT_TREE.fault(), None);
    let fault = |extent: Extent| extent.fault().map(|fault| fault.what);
    let usual = Extent::FAT_TREE;
    assert_eq!(fault(Extent { ranges: 0, ..usual }), Some("ranges of a fat root"));
    assert_eq!(fault(Extent { sets: 9, ..usual }), Some("node sets of a tree"));
    assert_eq!(fault(Extent { nodes: 4_097, ..usual }), Some("nodes of a set"));
}
