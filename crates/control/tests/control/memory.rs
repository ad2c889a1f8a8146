//! Allocation, free and grants (MIND 4.1, 4.2; PROTOCOL 8.10 to 8.13).

use crate::rack::{Rack, grant};
use farmem_control::api::{Allocate, ErrorCode, Free, PermName, VmaInfo};
use farmem_machine::Port;
use farmem_wire::Perm;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn perms(rack: &Rack, domain: u32, addr: u64) -> (Perm, Perm) {
    let node = Port::node(1);
    (rack.peers[&Port::SWITCH].may(domain, addr), rack.peers[&node].may(domain, addr))
}

fn rack_of_one() -> (Rack, u32, u32) {
    let mut rack = Rack::new(20);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let (owner, other) = (rack.domain("owner"), rack.domain("other"));
    (rack, owner, other)
}

/// The owner grants a part, widens the permission, and revokes the middle. Switch and node agree after each
/// answer.
#[test]
fn a_part_of_a_vma_is_lent_and_taken_back() {
    let (mut rack, owner, other) = rack_of_one();
    let vma = rack.allocate(owner, 16384);
    let at = |rack: &Rack, block: u64| perms(rack, other, vma.base + block * 4096);
    let both = |perm| (perm, perm);

    rack.call(grant(&vma, 4096, 8192, other, PermName::Read)).unwrap();
    assert_eq!(
        [0, 1, 2, 3].map(|i| at(&rack, i)),
        [Perm::None, Perm::Read, Perm::Read, Perm::None].map(both)
    );
    rack.call(grant(&vma, 8192, 8192, other, PermName::ReadWrite)).unwrap();
    assert_eq!(
        [0, 1, 2, 3].map(|i| at(&rack, i)),
        [Perm::None, Perm::Read, Perm::ReadWrite, Perm::ReadWrite].map(both)
    );
    rack.call(grant(&vma, 8192, 4096, other, PermName::None)).unwrap();
    assert_eq!(
        [0, 1, 2, 3].map(|i| at(&rack, i)),
        [Perm::None, Perm::Read, Perm::None, Perm::ReadWrite].map(both)
    );
    // An unchanged permission needs no update.
    let batches = rack.peers[&Port::SWITCH].batches;
    rack.call(grant(&vma, 4096, 4096, other, PermName::Read)).unwrap();
    assert_eq!(rack.peers[&Port::SWITCH].batches, batches);
    rack.check_log();
    rack.check_tables(Port::SWITCH);

    rack.call(Free { domain: owner, base: vma.base, id: vma.id }).unwrap();
    assert!(rack.tables(Port::SWITCH).perms.is_empty() && rack.tables(Port::node(1)).perms.is_empty());
    assert_eq!(rack.vmas(), []);
    rack.check_log();
}

/// Freed memory is allocated to another domain, cleared. The old owner cannot reach it.
#[test]
fn a_freed_place_is_used_again_by_another_domain() {
    let (mut rack, owner, other) = rack_of_one();
    let vma = rack.allocate(owner, MIB);
    assert_eq!(
        rack.refused(Allocate { domain: other, size: 1, node: None, durable: false }).code,
        ErrorCode::OutOfMemory
    );
    rack.call(Free { domain: owner, base: vma.base, id: vma.id }).unwrap();
    let again = rack.allocate(other, MIB);
    assert_eq!(again.base, vma.base);
    assert_eq!(perms(&rack, owner, vma.base), (Perm::None, Perm::None));
    assert_eq!(perms(&rack, other, vma.base), (Perm::ReadWrite, Perm::ReadWrite));
}

/// A free without an answer is requested again after it was carried out, when the same domain has the
/// addresses anew: as large as before, inside a larger vma, or in pieces. The repeated request is answered as
/// already done, and frees nothing (PROTOCOL 8.47).
#[test]
fn a_repeated_free_never_meets_a_later_allocation() {
    let (mut rack, owner, other) = rack_of_one();
    for (size, later, by) in
        [(4096, 4096, owner), (4096, 65_536, owner), (65_536, 4096, owner), (8192, 8192, other)]
    {
        let vma = rack.allocate(owner, size);
        let free = Free { domain: owner, base: vma.base, id: vma.id };
        rack.call(free.clone()).unwrap();
        let next = rack.allocate(by, later);
        assert_eq!(next.base, vma.base, "the lowest free place");
        assert!(next.id > vma.id, "numbers are not used again");
        let error = rack.refused(free.clone());
        assert_eq!(error.code, ErrorCode::NotFound);
        assert!(error.message.contains(&format!("allocation {}", next.id)), "{}", error.message);
        rack.restart();
        assert_eq!(rack.refused(free).code, ErrorCode::NotFound);
        assert_eq!(rack.vmas(), std::slice::from_ref(&next), "which stays");
        rack.check_log();
        rack.call(Free { domain: by, base: next.base, id: next.id }).unwrap();
    }
    assert_eq!(rack.vmas(), []);
}

/// Two small vmas freed beside each other are room for one big one.
#[test]
fn freed_neighbours_become_one_piece() {
    let (mut rack, owner, _) = rack_of_one();
    let quarters: Vec<VmaInfo> = (0..4).map(|_| rack.allocate(owner, MIB / 4)).collect();
    for vma in &quarters[..2] {
        rack.call(Free { domain: owner, base: vma.base, id: vma.id }).unwrap();
    }
    assert_eq!(rack.allocate(owner, MIB / 2).base, quarters[0].base);
}

/// Two requests about one vma at the same moment take turns. Two about different vmas do not wait for each
/// other.
#[test]
fn requests_about_one_vma_take_turns() {
    let (mut rack, owner, other) = rack_of_one();
    let (one, two) = (rack.allocate(owner, 4096), rack.allocate(owner, 4096));
    let lend = rack.ask(grant(&one, 0, 4096, other, PermName::Read));
    let free = rack.ask(Free { domain: owner, base: one.base, id: one.id });
    let late = rack.ask(grant(&one, 0, 4096, other, PermName::ReadWrite));
    let apart = rack.ask(grant(&two, 0, 4096, other, PermName::Read));
    assert_eq!(rack.noted(farmem_control::Note::Waits), 2);
    rack.wait(lend).unwrap();
    assert!(rack.answer(free).is_none() && rack.answer(late).is_none());
    rack.wait(apart).unwrap();
    rack.wait(free).unwrap();
    assert_eq!(rack.wait(late).unwrap_err().code, ErrorCode::NotFound);
    rack.settle();
    rack.check_tables(Port::SWITCH);
    rack.check_tables(Port::node(1));
}

/// The least allocated node gets the next vma, and among equals the first. One node can be requested by
/// number.
#[test]
fn the_least_allocated_node_is_next() {
    let mut rack = Rack::new(21);
    for number in 1..=3 {
        rack.join_node(number, MIB);
    }
    let domain = rack.domain("web");
    let nodes: Vec<u16> = [4096, 8192, 4096, 4096, 4096].map(|size| rack.allocate(domain, size).node).into();
    assert_eq!(nodes, [1, 2, 3, 1, 3]);
    assert_eq!(rack.call(Allocate { domain, size: 4096, node: Some(2), durable: false }).unwrap().node, 2);
}

/// The rack's memory as one bit for each page. A vma is a run of pages.
#[derive(Default)]
struct Bitmap(std::collections::BTreeMap<u64, u32>);

impl Bitmap {
    fn take(&mut self, vma: &VmaInfo) -> Result<(), TestCaseError> {
        prop_assert!(
            vma.size.is_power_of_two() && vma.size >= 4096 && vma.base.is_multiple_of(vma.size),
            "{:?}",
            vma
        );
        for page in (vma.base..vma.base + vma.size).step_by(4096) {
            prop_assert_eq!(self.0.insert(page, vma.domain), None, "page {:#x} is handed out twice", page);
        }
        Ok(())
    }

    fn give(&mut self, vma: &VmaInfo) {
        self.0.retain(|page, _| !(vma.base..vma.base + vma.size).contains(page));
    }

    /// Returns true if some node has `size` aligned bytes with no page taken.
    fn has(&self, nodes: &[(u64, u64)], size: u64) -> bool {
        let free = |base: u64| (base..base + size).step_by(4096).all(|page| !self.0.contains_key(&page));
        nodes.iter().any(|&(base, capacity)| (0..capacity / size).any(|i| free(base + i * size)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Domains never share a page, every vma is inside its node, and memory is refused only when no node has
    /// it in one piece (PROTOCOL 8.10).
    #[test]
    fn a_bitmap_agrees(steps in prop::collection::vec((1u64..40_000, 0u32..3, any::<prop::sample::Index>(), prop::bool::weighted(0.4)), 1..120)) {
        let mut rack = Rack::new(22);
        let nodes: Vec<(u64, u64)> = [16u64, 24, 10].iter().zip(1u8..).map(|(pages, number)| {
            let node = rack.join_node(number, pages * 4096);
            let range = rack.tables(Port::node(node)).ranges.keys().next().copied();
            range.expect("a node has a range")
        }).collect();
        let domains = ["a", "b", "c"].map(|name| rack.domain(name));
        let mut live: Vec<VmaInfo> = Vec::new();
        let mut bitmap = Bitmap::default();
        for (size, domain, which, free) in steps {
            if free && !live.is_empty() {
                let vma = live.swap_remove(which.index(live.len()));
                rack.call(Free { domain: vma.domain, base: vma.base, id: vma.id }).unwrap();
                bitmap.give(&vma);
                continue;
            }
            let needed = size.max(4096).next_power_of_two();
            match rack.call(Allocate { domain: domains[domain as usize], size, node: None, durable: false }) {
                Ok(vma) => {
                    let (base, capacity) = nodes[usize::from(vma.node) - 1];
                    prop_assert!(vma.base >= base && vma.base + vma.size <= base + capacity);
                    prop_assert_eq!(vma.size, needed);
                    bitmap.take(&vma)?;
                    live.push(vma);
                }
                Err(error) => {
                    prop_assert_eq!(error.code, ErrorCode::OutOfMemory);
                    prop_assert!(!bitmap.has(&nodes, needed), "{} bytes were free", needed);
                }
            }
        }
        rack.check_log();
    }

    /// MIND figure 7: with the least allocated node first, Jain's index of the bytes per node stays near 1.
    /// Each node is behind the fullest by at most the largest vma, which makes it so.
    #[test]
    fn allocation_is_balanced(sizes in prop::collection::vec(1u64..65_536, 64..160), nodes in 2u8..7) {
        let mut rack = Rack::new(23);
        for number in 1..=nodes {
            rack.join_node(number, 64 * MIB);
        }
        let domain = rack.domain("web");
        let mut bytes = vec![0u64; usize::from(nodes)];
        let mut largest = 0;
        for size in sizes {
            let vma = rack.allocate(domain, size);
            bytes[usize::from(vma.node) - 1] += vma.size;
            largest = largest.max(vma.size);
            let (low, high) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
            prop_assert!(high - low <= largest, "{:?}", bytes);
        }
        let (sum, squares) = bytes.iter().fold((0u128, 0u128), |(s, q), &b| (s + u128::from(b), q + u128::from(b).pow(2)));
        // Jain = sum^2 / (n * squares) >= 0.95, in whole numbers.
        prop_assert!(100 * sum * sum >= 95 * u128::from(nodes) * squares, "{:?}", bytes);
    }
}
