//! A restarted memory node has lost what it held: the addresses concerned, the callers told, and what ends the
//! loss (PROTOCOL 8.44 to 8.46).

use crate::rack::{Rack, restored};
use farmem_control::api::*;
use farmem_control::{Note, PAGE};
use farmem_machine::Port;
use farmem_wire::VirtAddr;
use farmem_wire::message::Update;

const MIB: u64 = 1 << 20;
const ONE: Port = Port::node(1);
const TWO: Port = Port::node(2);

fn rack_of_two(seed: u64) -> (Rack, u32) {
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.join_node(2, MIB);
    let owner = rack.domain("owner");
    (rack, owner)
}

fn allocate_on(rack: &mut Rack, domain: u32, pages: u64, node: u16) -> VmaInfo {
    rack.call(Allocate { domain, size: pages * PAGE, node: Some(node), durable: false }).unwrap()
}

fn lost_of(rack: &mut Rack, vma: &VmaInfo) -> Vec<LostInfo> {
    rack.call(Locate { addr: vma.base }).unwrap().lost
}

/// Returns the ranges that a node was told are lost in its present incarnation: first byte and bytes.
fn told(rack: &Rack, port: Port) -> Vec<(u64, u64)> {
    let lose = |update: &Update| match *update {
        Update::Lose { base, len } => Some((base.0, len)),
        _ => None,
    };
    rack.peers[&port].applied.iter().filter_map(lose).collect()
}

fn accept(vma: &VmaInfo, page: u64, pages: u64) -> AcceptLost {
    AcceptLost { domain: vma.domain, base: vma.base + page * PAGE, len: pages * PAGE }
}

/// There are two vmas on one node and one on another. The first node restarts: its two are lost, it is told
/// so before it knows the switch, and a caller that locates them is told. The other node's vma is not lost.
#[test]
fn a_restarted_node_loses_its_memory() {
    let (mut rack, owner) = rack_of_two(70);
    let (here, too) = (allocate_on(&mut rack, owner, 4, 1), allocate_on(&mut rack, owner, 1, 1));
    let there = allocate_on(&mut rack, owner, 4, 2);
    assert_eq!(lost_of(&mut rack, &here), []);

    rack.join_node(1, MIB);
    let whole = |vma: &VmaInfo| LostInfo { base: vma.base, len: vma.size };
    assert_eq!(lost_of(&mut rack, &here), [whole(&here)]);
    assert_eq!(lost_of(&mut rack, &too), [whole(&too)]);
    assert_eq!(lost_of(&mut rack, &there), []);
    assert_eq!(told(&rack, ONE), [(here.base, here.size), (too.base, too.size)]);
    assert_eq!(told(&rack, TWO), []);
    rack.check_log();

    rack.restart();
    assert_eq!(lost_of(&mut rack, &here), [whole(&here)], "it stands in the log");
    let rows = restored(&rack.config, 1, &rack.log).compact();
    assert!(rows.iter().any(|row| format!("{row:?}").contains("Lost")), "and in the rows that replace it");
}

/// The owner accepts two pages in the middle: they are no longer lost, but in the node's next incarnation
/// they are again, with all the others.
#[test]
fn an_accepted_loss_is_forgotten() {
    let (mut rack, owner) = rack_of_two(71);
    let other = rack.domain("other");
    let vma = allocate_on(&mut rack, owner, 8, 1);
    rack.join_node(1, MIB);
    let foreign = AcceptLost { domain: other, base: vma.base, len: PAGE };
    assert_eq!(rack.refused(foreign).code, ErrorCode::NotOwner);
    rack.call(accept(&vma, 2, 2)).unwrap();
    let rests = [(0, 2), (4, 4)];
    let rests = rests.map(|(at, pages)| LostInfo { base: vma.base + at * PAGE, len: pages * PAGE });
    assert_eq!(lost_of(&mut rack, &vma), rests);
    let last = *rack.peers[&ONE].applied.last().unwrap();
    assert_eq!(last, Update::AcceptLost { base: VirtAddr(vma.base + 2 * PAGE), len: 2 * PAGE });
    rack.check_log();

    rack.join_node(1, MIB);
    assert_eq!(told(&rack, ONE), [(vma.base, vma.size)]);
    rack.call(accept(&vma, 0, 8)).unwrap();
    assert_eq!(lost_of(&mut rack, &vma), []);
    rack.check_log();
}

/// Pages that moved away from the node are not lost with it, and pages that moved to it are, whatever node
/// their addresses belong to. Lost pages may move.
#[test]
fn migrated_bytes_are_lost_with_their_present_node() {
    let (mut rack, owner) = rack_of_two(72);
    let (one, two) = (allocate_on(&mut rack, owner, 8, 1), allocate_on(&mut rack, owner, 8, 2));
    let to = |base: u64, node| Migrate { domain: None, base, len: 2 * PAGE, node };
    rack.call(to(one.base + 2 * PAGE, 2)).unwrap();
    rack.call(to(two.base, 1)).unwrap();
    rack.join_node(1, MIB);
    let part = |vma: &VmaInfo, at, pages| LostInfo { base: vma.base + at * PAGE, len: pages * PAGE };
    assert_eq!(lost_of(&mut rack, &one), [part(&one, 0, 2), part(&one, 4, 4)]);
    assert_eq!(lost_of(&mut rack, &two), [part(&two, 0, 2)]);
    let all = [(one.base, 2 * PAGE), (one.base + 4 * PAGE, 4 * PAGE), (two.base, 2 * PAGE)];
    assert_eq!(told(&rack, ONE), all);

    // Lost bytes move to the other node, and stay lost there, also in its next incarnation.
    rack.call(to(one.base, 2)).unwrap();
    assert_eq!(lost_of(&mut rack, &one), [part(&one, 0, 2), part(&one, 4, 4)]);
    rack.join_node(2, MIB);
    assert_eq!(told(&rack, TWO)[..2], [(one.base, 2 * PAGE), (one.base + 2 * PAGE, 2 * PAGE)]);
    assert_eq!(lost_of(&mut rack, &one), [part(&one, 0, 8)]);
    rack.check_log();
}

/// A freed vma has no owner: the next owner of its addresses has lost nothing. Nor has the owner of memory
/// that is allocated while the node joins.
#[test]
fn a_new_allocation_is_not_lost() {
    let (mut rack, owner) = rack_of_two(73);
    let old = allocate_on(&mut rack, owner, 4, 1);
    rack.join_node(1, MIB);
    rack.call(Free { domain: owner, base: old.base, id: old.id }).unwrap();
    let new = allocate_on(&mut rack, owner, 4, 1);
    assert_eq!(new.base, old.base);
    assert_eq!(lost_of(&mut rack, &new), []);
    assert!(!rack.peers[&ONE].lost.contains(&(new.base / PAGE)), "it was cleared");

    // The node hears nothing of an allocation, and restarts.
    rack.cut.insert(ONE);
    let ticket = rack.ask(Allocate { domain: owner, size: PAGE, node: Some(1), durable: false });
    rack.cut.clear();
    rack.take_wires();
    rack.join_node(1, MIB);
    let young = VmaInfo::try_from(rack.wait(ticket).unwrap()).unwrap();
    rack.settle();
    assert_eq!(lost_of(&mut rack, &young), []);
    assert!(rack.peers[&ONE].kept.contains(&(young.base / PAGE)));
    assert_eq!(told(&rack, ONE), [(new.base, new.size)]);
    rack.check_log();
}

/// The mapped part of an address space is lost. A later mapping is new memory.
#[test]
fn of_an_address_space_what_is_mapped_is_lost() {
    let (mut rack, owner) = rack_of_two(74);
    let process = rack.call(ProcessStart { domain: owner, heap: 0 }).unwrap().process;
    let map = |addr: u64, pages: u64, flags| Mmap { process, addr, len: pages * PAGE, prot: 3, flags };
    let value = rack.call(map(0, 5, 0x22)).unwrap().value;
    let base = u64::try_from(value).unwrap();
    rack.join_node(1, MIB);
    let vma = rack.vmas().into_iter().find(|vma| vma.base == base).expect("one vma of eight pages");
    assert_eq!((vma.size, vma.node), (8 * PAGE, 1));
    assert_eq!(lost_of(&mut rack, &vma), [LostInfo { base, len: 5 * PAGE }]);

    // Map one page more and one of the lost pages anew, and give one back.
    rack.call(map(base + 5 * PAGE, 1, 0x32)).unwrap();
    rack.call(map(base + PAGE, 1, 0x32)).unwrap();
    rack.call(Munmap { process, addr: base + 4 * PAGE, len: PAGE }).unwrap();
    let left = [LostInfo { base, len: PAGE }, LostInfo { base: base + 2 * PAGE, len: 2 * PAGE }];
    assert_eq!(lost_of(&mut rack, &vma), left);
    let lost: Vec<u64> = rack.peers[&ONE].lost.iter().map(|page| page - base / PAGE).collect();
    assert_eq!(lost, [0, 2, 3, 4], "freed pages need no acceptance");
    rack.check_log();
    rack.call(ProcessExit { process }).unwrap();
    rack.check_log();
}

/// An owner accepts a loss while the node restarts once more. The owner has not heard of this second loss:
/// the request is refused, not carried out behind the join.
#[test]
fn a_loss_that_comes_meanwhile_is_not_accepted_with_the_one_before() {
    let (mut rack, owner) = rack_of_two(75);
    let vma = allocate_on(&mut rack, owner, 4, 1);
    rack.join_node(1, MIB);
    rack.call(accept(&vma, 0, 4)).unwrap();
    rack.cut.insert(ONE);
    let ticket = rack.ask(accept(&vma, 0, 4));
    rack.cut.clear();
    rack.take_wires();
    rack.join_node(1, MIB);
    let refused = rack.wait(ticket).expect_err("the node lost its memory anew");
    assert_eq!(refused.code, ErrorCode::Unavailable);
    assert_eq!(rack.noted(Note::BegunAnew), 0);
    assert_eq!(lost_of(&mut rack, &vma), [LostInfo { base: vma.base, len: vma.size }]);
    rack.check_log();
}

/// A part of the vma is at a node that does not answer: no role can tell yet what is lost of it, so nothing
/// is accepted.
#[test]
fn a_loss_is_not_accepted_at_a_node_that_does_not_answer() {
    let (mut rack, owner) = rack_of_two(77);
    let vma = allocate_on(&mut rack, owner, 4, 1);
    rack.call(Migrate { domain: None, base: vma.base, len: PAGE, node: 2 }).unwrap();
    rack.cut.insert(TWO);
    let error = rack.refused(accept(&vma, 0, 1));
    assert_eq!(error.code, ErrorCode::Unavailable, "it falls silent");
    let error = rack.refused(accept(&vma, 0, 1));
    assert_eq!(error.code, ErrorCode::Unavailable, "it is silent");
    rack.cut.clear();
    rack.join_node(2, MIB);
    assert_eq!(lost_of(&mut rack, &vma), [LostInfo { base: vma.base, len: PAGE }]);
    rack.call(accept(&vma, 0, 1)).unwrap();
    assert_eq!(lost_of(&mut rack, &vma), []);
    rack.check_log();
}

/// Scattered accepted pages make as many ranges as the control plane has room for, and no more.
#[test]
fn ranges_of_lost_addresses_have_a_bound() {
    let mut config = crate::rack::config();
    config.bounds.lost_max = 3;
    let mut rack = Rack::with(76, config);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let owner = rack.domain("owner");
    let vma = allocate_on(&mut rack, owner, 16, 1);
    rack.join_node(1, MIB);
    for page in [2, 4] {
        rack.call(accept(&vma, page, 1)).unwrap();
    }
    let error = rack.refused(accept(&vma, 6, 1));
    assert!(error.message.contains("3 ranges of lost addresses"), "{}", error.message);
    rack.call(accept(&vma, 5, 1)).unwrap();
    rack.call(accept(&vma, 0, 16)).unwrap();
    assert_eq!(lost_of(&mut rack, &vma), []);
}
