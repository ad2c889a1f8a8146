//! Memory that migration left is allocated again (PROTOCOL 8.43): random allocations, migrations and frees beside a plain model.
//!
//! The model knows nothing of how the control plane places. It reads what the nodes were told, page by page, and says whether a request has to
//! succeed: a block of memory is free on a node that is asked, and a block of addresses is free on any node.

use crate::rack::Rack;
use crate::rack::peer::Outlier;
use farmem_control::PAGE;
use farmem_control::api::*;
use farmem_machine::Port;
use proptest::prelude::*;
use proptest::sample::Index;

const NODES: u16 = 3;
const PAGES: u64 = 8;

/// The owner of each page of a node: none, or the first byte of a vma.
type Map = Vec<Option<u64>>;

/// The addresses and the memory of each node.
struct Model {
    addresses: Vec<Map>,
    memory: Vec<Map>,
}

impl Model {
    /// The vmas as the API describes them, and the nodes' own tables of moved parts.
    fn of(rack: &mut Rack) -> Self {
        let RackOverview { nodes, vmas, .. } = rack.call(Overview {}).unwrap();
        let empty = || vec![vec![None; usize::try_from(PAGES).unwrap()]; usize::from(NODES)];
        let mut model = Self { addresses: empty(), memory: empty() };
        let owner = |vmas: &[VmaInfo], at: u64| {
            vmas.iter().find(|vma| at.wrapping_sub(vma.base) < vma.size).map(|vma| vma.base)
        };
        let page = |base: u64| usize::try_from(base / PAGE).unwrap();
        for (n, node) in nodes.iter().enumerate() {
            let outliers = &rack.tables(Port::node(node.node)).outliers;
            let of = |at: u64| outliers.iter().find(|((base, log2), _)| at.wrapping_sub(*base) < 1 << log2);
            for at in (node.base..node.base + node.capacity).step_by(usize::try_from(PAGE).unwrap()) {
                let Some(vma) = owner(&vmas, at) else { continue };
                model.addresses[n][page(at - node.base)] = Some(vma);
                if of(at).is_none() {
                    model.take(n, page(at - node.base), vma);
                }
            }
            for (&(base, log2), outlier) in outliers {
                let Outlier::Here(offset) = outlier else { continue };
                let vma = owner(&vmas, base).expect("a part is of a vma");
                for skip in 0..(1 << log2) / PAGE {
                    model.take(n, page(offset + skip * PAGE), vma);
                }
            }
            let used = model.memory[n].iter().flatten().count() as u64;
            assert_eq!(used * PAGE, node.allocated, "bytes of {} count where they are", node.name);
        }
        model
    }

    fn take(&mut self, node: usize, page: usize, vma: u64) {
        assert_eq!(self.memory[node][page].replace(vma), None, "no memory is two vmas'");
    }

    /// True when a node of these has an aligned block of so many pages.
    fn has(maps: &[Map], pages: u64) -> bool {
        let pages = usize::try_from(pages).unwrap();
        maps.iter().any(|map| map.chunks_exact(pages).any(|block| block.iter().all(Option::is_none)))
    }

    fn fits(&self, pages: u64, node: Option<u16>) -> bool {
        let asked = match node {
            Some(node) => &self.memory[usize::from(node) - 1..usize::from(node)],
            None => &self.memory,
        };
        Self::has(asked, pages) && Self::has(&self.addresses, pages)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { log2: u32, node: Option<u16> },
    Move { vma: Index, log2: u32, at: Index, node: u16 },
    Free { vma: Index },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0u32..4, prop::option::of(1..=NODES)).prop_map(|(log2, node)| Step::Allocate { log2, node }),
        4 => (any::<Index>(), 0u32..4, any::<Index>(), 1..=NODES)
            .prop_map(|(vma, log2, at, node)| Step::Move { vma, log2, at, node }),
        2 => any::<Index>().prop_map(|vma| Step::Free { vma }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Two nodes are emptied by migration, and the third one is full of what they had. All that is free can be allocated: before, the emptied nodes
/// refused everything, for the addresses of what had left them were taken.
#[test]
fn an_emptied_node_is_filled_again() {
    let mut rack = Rack::new(90);
    rack.join_switch().unwrap();
    for node in 1..=NODES {
        rack.join_node(u8::try_from(node).unwrap(), PAGES * PAGE);
    }
    let owner = rack.domain("owner");
    let half = Allocate { domain: owner, size: PAGES / 2 * PAGE, node: None, durable: false };
    for node in [1, 2] {
        let vma = rack.call(Allocate { node: Some(node), ..half.clone() }).unwrap();
        rack.call(Migrate { domain: None, base: vma.base, len: vma.size, node: 3 }).unwrap();
        // The other half, so that no address of the node is free.
        let other = rack.call(Allocate { node: Some(node), ..half.clone() }).unwrap();
        assert_eq!(other.node, node, "the memory is where it was asked for");
    }
    for node in [1, 2] {
        let vma = rack.call(Allocate { node: Some(node), ..half.clone() }).unwrap();
        assert_eq!(vma.node, node, "the memory is where it was asked for");
        let located = rack.call(Locate { addr: vma.base }).unwrap();
        assert_eq!(located.moved, [MovedInfo { base: vma.base, size: vma.size, node }]);
    }
    rack.refused(half);
    rack.check_log();
    for port in rack.peers.keys().copied().collect::<Vec<_>>() {
        rack.check_tables(port);
    }
    let Model { memory, .. } = Model::of(&mut rack);
    assert!(memory.iter().flatten().all(Option::is_some), "all memory of the rack is used");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whether a request succeeds is what the model says, no memory is two vmas', and when everything is freed each node is whole.
    #[test]
    fn all_free_memory_can_be_allocated(steps in steps()) {
        let mut rack = Rack::new(91);
        rack.join_switch().unwrap();
        for node in 1..=NODES {
            rack.join_node(u8::try_from(node).unwrap(), PAGES * PAGE);
        }
        let owner = rack.domain("owner");
        let mut vmas: Vec<VmaInfo> = Vec::new();
        for step in steps {
            let model = Model::of(&mut rack);
            match step {
                Step::Allocate { log2, node } => {
                    let request = Allocate { domain: owner, size: PAGE << log2, node, durable: false };
                    if model.fits(1 << log2, node) {
                        vmas.push(rack.call(request).unwrap());
                    } else {
                        prop_assert_eq!(rack.refused(request).code, ErrorCode::OutOfMemory);
                    }
                }
                Step::Move { vma, log2, at, node } if !vmas.is_empty() => {
                    let vma = &vmas[vma.index(vmas.len())];
                    let len = vma.size.min(PAGE << log2);
                    let base = vma.base + len * at.index(usize::try_from(vma.size / len).unwrap()) as u64;
                    let room = Model::has(&model.memory[usize::from(node) - 1..usize::from(node)], len / PAGE);
                    match rack.call(Migrate { domain: None, base, len, node }) {
                        Ok(()) => {}
                        // Pages that moved together move together.
                        Err(error) if error.code == ErrorCode::Conflict => {}
                        Err(error) => {
                            prop_assert_eq!(error.code, ErrorCode::OutOfMemory);
                            prop_assert!(!room, "{} pages are free on node {}", len / PAGE, node);
                        }
                    }
                }
                Step::Free { vma } if !vmas.is_empty() => {
                    let vma = vmas.remove(vma.index(vmas.len()));
                    rack.call(Free { domain: owner, base: vma.base, id: vma.id }).unwrap();
                }
                Step::Move { .. } | Step::Free { .. } => {}
            }
            rack.check_log();
        }
        for port in rack.peers.keys().copied().collect::<Vec<_>>() {
            rack.check_tables(port);
        }
        for vma in vmas {
            rack.call(Free { domain: owner, base: vma.base, id: vma.id }).unwrap();
        }
        for node in 1..=NODES {
            let whole = Allocate { domain: owner, size: PAGES * PAGE, node: Some(node), durable: false };
            prop_assert!(rack.call(whole).is_ok(), "node {} is whole", node);
        }
    }
}
