//! Pages that move between memory nodes (PROTOCOL 8.38 to 8.43): what all roles are told, what is given back,
//! and what remains of a failed move.

use crate::rack::peer::{Budget, Outlier};
use crate::rack::{Rack, grant, text};
use farmem_control::api::*;
use farmem_control::{Note, PAGE, Role};
use farmem_machine::{Duration, Port};
use farmem_wire::Perm;

const MIB: u64 = 1 << 20;
const ONE: Port = Port::node(1);
const TWO: Port = Port::node(2);

/// Creates two nodes, and a vma of 16 pages on the first, of which another domain may read a part.
fn rack_of_two(seed: u64) -> (Rack, VmaInfo, u32) {
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.join_node(2, MIB);
    let (owner, other) = (rack.domain("owner"), rack.domain("other"));
    let vma = rack.call(Allocate { domain: owner, size: 16 * PAGE, node: Some(1), durable: false }).unwrap();
    rack.call(grant(&vma, 0, 8 * PAGE, other, PermName::Read)).unwrap();
    (rack, vma, other)
}

fn to(base: u64, pages: u64, node: u16) -> Migrate {
    Migrate { domain: None, base, len: pages * PAGE, node }
}

fn tables_agree(rack: &Rack) {
    rack.check_log();
    for &port in rack.peers.keys() {
        rack.check_tables(port);
    }
}

fn overview(rack: &mut Rack) -> (Vec<MovedInfo>, Vec<u64>, u32) {
    let RackOverview { moved, nodes, balance_ppm, .. } = rack.call(Overview {}).unwrap();
    (moved, nodes.iter().map(|node| node.allocated).collect(), balance_ppm)
}

/// Half of a vma moves to the other node and back. Each time all roles know where it is, bytes count where
/// they are, and a domain with a permission before has it there. The new node serves only when everything is
/// pushed, and the old one forgets it when the switch knows (PROTOCOL 8.39, 8.40, 8.41).
#[test]
fn a_part_of_a_vma_goes_and_comes_home() {
    let (mut rack, vma, other) = rack_of_two(70);
    let (base, log2) = (vma.base + 8 * PAGE, 15);
    let before = [ONE, TWO, Port::SWITCH].map(|port| rack.tables(port).clone());
    for _ in 0..2 {
        rack.call(to(base, 8, 2)).unwrap();
        tables_agree(&rack);
        assert_eq!(rack.tables(ONE).outliers[&(base, log2)], Outlier::Away);
        assert_eq!(rack.tables(TWO).outliers[&(base, log2)], Outlier::Here(0));
        assert_eq!(rack.tables(Port::SWITCH).translations[&(base, log2)], 2);
        assert_eq!(rack.peers[&TWO].may(vma.domain, base), Perm::ReadWrite);
        assert_eq!(rack.peers[&TWO].may(other, vma.base), Perm::Read, "permissions cover the whole vma");
        let moved = MovedInfo { base, size: 8 * PAGE, node: 2 };
        assert_eq!(overview(&mut rack), (vec![moved], vec![8 * PAGE, 8 * PAGE], 1_000_000));
        let located = rack.call(Locate { addr: base + 1 }).unwrap();
        assert_eq!(located, LocatedVma { vma: vma.clone(), moved: vec![moved], lost: vec![] });
        assert_eq!(rack.call(to(base, 8, 2)), Ok(()), "it is there already");

        rack.call(to(base, 8, 1)).unwrap();
        tables_agree(&rack);
        let after = [ONE, TWO, Port::SWITCH].map(|port| rack.tables(port).clone());
        assert_eq!(after, before, "nothing is left of it");
        assert_eq!(overview(&mut rack), (vec![], vec![16 * PAGE, 0], 500_000));
    }
    let named = rack.log.iter().filter(|line| line.contains("\"step\":\"Vacating\"")).count();
    assert_eq!(named, 4, "the step is called in the log as in logs that were written before");
    assert_eq!(rack.noted(Note::Advanced), 12);
    assert_eq!(rack.noted(Note::GivenUp), 0);
}

/// Pages of one vma are at three nodes. Grants and frees reach all of them, and a free leaves nothing behind
/// (PROTOCOL 8.42). Memory that another vma's pages left is used again, and nothing is put over another vma.
#[test]
fn a_vma_in_pieces_is_granted_and_freed_as_a_whole() {
    let (mut rack, vma, other) = rack_of_two(71);
    rack.join_node(3, MIB);
    let before = [ONE, TWO, Port::node(3), Port::SWITCH].map(|port| rack.tables(port).clone());
    for (page, node) in [(0, 2), (1, 3), (2, 2), (9, 3), (1, 2)] {
        assert_eq!(rack.call(to(vma.base + page * PAGE, 1, node)), Ok(()), "page {page}");
        tables_agree(&rack);
    }
    assert_eq!(rack.tables(TWO).outliers.len(), 3);
    assert_eq!(rack.tables(Port::node(3)).outliers.len(), 1);
    rack.call(grant(&vma, 4 * PAGE, 8 * PAGE, other, PermName::ReadWrite)).unwrap();
    for node in 1..=3 {
        assert_eq!(rack.peers[&Port::node(node)].may(other, vma.base + 9 * PAGE), Perm::ReadWrite);
    }
    tables_agree(&rack);
    let placed = rack.allocate(vma.domain, 4 * PAGE);
    assert_eq!(placed.node, 3, "the least allocated");
    rack.call(Free { domain: vma.domain, base: placed.base, id: placed.id }).unwrap();
    rack.call(Free { domain: vma.domain, base: vma.base, id: vma.id }).unwrap();
    tables_agree(&rack);
    for (port, mut before) in [ONE, TWO, Port::node(3), Port::SWITCH].into_iter().zip(before) {
        before.perms.clear();
        assert_eq!(*rack.tables(port), before, "{port:?}");
    }
    assert_eq!(overview(&mut rack), (vec![], vec![0, 0, 0], 1_000_000));
}

/// Memory that was left may be allocated: a full node can receive as much as it gave away, and pages come
/// back to another place when theirs is taken (PROTOCOL 8.43).
#[test]
fn memory_left_by_a_migration_is_used_again() {
    let mut rack = Rack::new(72);
    rack.join_switch().unwrap();
    rack.join_node(1, 4 * PAGE);
    rack.join_node(2, 4 * PAGE);
    let owner = rack.domain("owner");
    let full = |rack: &mut Rack, node| {
        rack.call(Allocate { domain: owner, size: 4 * PAGE, node: Some(node), durable: false }).unwrap()
    };
    let one = full(&mut rack, 1);
    rack.call(to(one.base, 2, 2)).unwrap();
    let error = rack.refused(Allocate { domain: owner, size: 4 * PAGE, node: Some(2), durable: false });
    assert_eq!(error.code, ErrorCode::OutOfMemory, "two pages of it are another's");
    let two = rack.call(Allocate { domain: owner, size: 2 * PAGE, node: Some(2), durable: false }).unwrap();
    // Node 2 is full. Its own pages move to the place of the others.
    rack.call(to(two.base, 2, 1)).unwrap();
    tables_agree(&rack);
    assert_eq!(rack.tables(ONE).outliers[&(two.base, 13)], Outlier::Here(0));
    let error = rack.refused(to(one.base, 2, 1));
    assert_eq!(error.code, ErrorCode::OutOfMemory, "node 1 is full");
    assert_eq!(
        rack.refused(Allocate { domain: owner, size: PAGE, node: Some(1), durable: false }).code,
        ErrorCode::OutOfMemory
    );
    rack.call(Free { domain: owner, base: two.base, id: two.id }).unwrap();
    rack.call(to(one.base, 2, 1)).unwrap();
    tables_agree(&rack);
    assert!(rack.tables(ONE).outliers.is_empty() && rack.tables(TWO).outliers.is_empty());
}

/// A vma that fills the range of its node moves away as a whole, comes home, and is freed elsewhere. The switch has the node's range after each: before, it forgot
/// the range with the part, and a later vma of the node was not found.
#[test]
fn a_whole_range_moves() {
    let mut rack = Rack::new(77);
    rack.join_switch().unwrap();
    rack.join_node(1, 4 * PAGE);
    rack.join_node(2, 4 * PAGE);
    let owner = rack.domain("owner");
    let before = rack.tables(Port::SWITCH).translations.clone();
    for _ in 0..2 {
        let vma =
            rack.call(Allocate { domain: owner, size: 4 * PAGE, node: Some(1), durable: false }).unwrap();
        rack.call(to(vma.base, 4, 2)).unwrap();
        tables_agree(&rack);
        rack.call(to(vma.base, 4, 1)).unwrap();
        assert_eq!(rack.tables(Port::SWITCH).translations, before);
        rack.call(to(vma.base, 4, 2)).unwrap();
        rack.call(Free { domain: owner, base: vma.base, id: vma.id }).unwrap();
        tables_agree(&rack);
        assert_eq!(rack.tables(Port::SWITCH).translations, before);
    }
}

/// An impossible move is refused with the reason, and no role is told anything (PROTOCOL 8.38).
#[test]
fn an_impossible_migration_is_refused() {
    let (mut rack, vma, other) = rack_of_two(73);
    rack.call(to(vma.base + 2 * PAGE, 2, 2)).unwrap();
    let batches: Vec<u64> = rack.peers.values().map(|peer| peer.batches).collect();
    let part = |offset: u64, len: u64| Migrate { domain: None, base: vma.base + offset, len, node: 2 };
    let cases = [
        (part(0, 3 * PAGE), ErrorCode::BadRequest),
        (part(0, 2048), ErrorCode::BadRequest),
        (part(PAGE, 2 * PAGE), ErrorCode::BadRequest),
        (part(0, 32 * PAGE), ErrorCode::BadRequest),
        (part(0, 0), ErrorCode::BadRequest),
        (part(MIB, PAGE), ErrorCode::NotFound),
        (to(vma.base, 1, 9), ErrorCode::NotFound),
        (to(vma.base, 4, 2), ErrorCode::Conflict),
        (to(vma.base + 2 * PAGE, 1, 1), ErrorCode::Conflict),
        (Migrate { domain: Some(other), base: vma.base, len: PAGE, node: 2 }, ErrorCode::NotOwner),
        (Migrate { domain: Some(99), base: vma.base, len: PAGE, node: 2 }, ErrorCode::NotFound),
    ];
    for (request, code) in cases {
        assert_eq!(rack.refused(request.clone()).code, code, "{request:?}");
    }
    assert_eq!(rack.refused(Locate { addr: 1 }).code, ErrorCode::NotFound);
    assert_eq!(rack.peers.values().map(|peer| peer.batches).collect::<Vec<_>>(), batches);
    rack.call(Migrate { domain: Some(vma.domain), base: vma.base, len: PAGE, node: 2 }).unwrap();
    assert_eq!(rack.refused(Leave::new(TWO.0)).code, ErrorCode::Conflict, "it has pages");
}

/// A role without room for a migration refuses it, at whatever step. The state is as before (PROTOCOL 8.15).
#[test]
fn a_full_table_stops_a_migration() {
    let (mut rack, vma, _) = rack_of_two(74);
    let before = [ONE, TWO, Port::SWITCH].map(|port| rack.tables(port).clone());
    for (port, budget) in [
        (Port::SWITCH, Budget { translations: 2, ..Budget::default() }),
        (TWO, Budget { perms: 3, ..Budget::default() }),
        (TWO, Budget { outliers: 0, ..Budget::default() }),
        (ONE, Budget { outliers: 0, ..Budget::default() }),
    ] {
        rack.peers.get_mut(&port).unwrap().budget = budget;
        assert_eq!(rack.refused(to(vma.base, 4, 2)).code, ErrorCode::TableFull, "{port:?}");
        assert_eq!([ONE, TWO, Port::SWITCH].map(|port| rack.tables(port).clone()), before, "{port:?}");
        rack.peers.get_mut(&port).unwrap().budget = Budget::default();
        tables_agree(&rack);
    }
    rack.call(to(vma.base, 4, 2)).unwrap();
}

/// The old node pushes and never ends, or does not answer any more: the migration is abandoned, and the old
/// node goes on. So does the change that waited for the vma (PROTOCOL 8.41).
#[test]
fn a_push_that_does_not_end_is_given_up() {
    let (mut rack, vma, other) = rack_of_two(75);
    let before = [ONE, TWO, Port::SWITCH].map(|port| rack.tables(port).clone());
    for (left, titled) in [(Some(7), "node 2 (n2)"), (None, "node 1 (n1)")] {
        rack.peers.get_mut(&ONE).unwrap().left_to_push = left;
        let migrate = rack.ask(to(vma.base, 4, 2));
        let later = rack.ask(grant(&vma, 0, PAGE, other, PermName::Read));
        let error = rack.wait(migrate).expect_err("nothing comes of it");
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(error.message.contains(titled), "{}", error.message);
        assert_eq!(rack.wait(later), Ok(Response::Done {}));
        rack.settle();
        assert_eq!([ONE, TWO, Port::SWITCH].map(|port| rack.tables(port).clone()), before);
        tables_agree(&rack);
    }
    assert_eq!(rack.noted(Note::GivenUp), 2);
}

/// The control plane crashes at every step, or a role rejoins at every step: the migration is rolled back,
/// restarted or completed, and the log leads to the same state (PROTOCOL 8.25, 8.41).
#[test]
fn a_migration_survives_restarts_of_every_role() {
    for victim in 0..4 {
        let mut ends = [0, 0];
        for steps in 0..40 {
            let (mut rack, vma, _) = rack_of_two(100 + steps);
            let ticket = rack.ask(to(vma.base, 4, 2));
            for _ in 0..steps {
                rack.step();
            }
            let join = |rack: &mut Rack, number: u8| {
                let request = JoinNode::new(format!("n{number}"), text(10 + number), MIB);
                rack.ask(request)
            };
            let joined = match victim {
                0 => {
                    rack.restart();
                    None
                }
                1 => Some(rack.ask(JoinSwitch { gid: text(2) })),
                other => Some(join(&mut rack, other - 1)),
            };
            joined.into_iter().for_each(|joined| assert!(rack.wait(joined).is_ok()));
            rack.settle();
            let answer = rack.wait(ticket);
            rack.pass(Duration::from_secs(5));
            tables_agree(&rack);
            let (moved, allocated, _) = overview(&mut rack);
            assert_eq!(allocated.iter().sum::<u64>(), 16 * PAGE);
            if answer.is_ok() {
                assert_eq!(moved.len(), 1, "it was done, {victim} after {steps}");
            }
            ends[moved.len()] += 1;
        }
        assert!(ends[1] > 0 && (victim > 0 || ends[0] > 0), "{victim}: {ends:?}");
    }
}

/// After a switch restarted nothing is pushed before the old node is swept: it does not know yet what died
/// with a host, and the new node, which may be swept already, would never learn it (PROTOCOL 8.39).
#[test]
fn nothing_is_pushed_before_the_sweep() {
    let (mut rack, vma, _) = rack_of_two(77);
    for (at, port, waits) in [(0, TWO, false), (4 * PAGE, ONE, true)] {
        rack.peers.get_mut(&port).unwrap().sweeps = false;
        rack.join_switch().unwrap();
        let ticket = rack.ask(to(vma.base + at, 4, 2));
        rack.pass(Duration::from_secs(1));
        assert_eq!(rack.answer(ticket).is_none(), waits, "{port:?} is not swept");
        let leaves = |outlier: &Outlier| matches!(outlier, Outlier::Leaving(_));
        assert!(!rack.tables(ONE).outliers.values().any(leaves));
        rack.peers.get_mut(&port).unwrap().sweeps = true;
        assert_eq!(rack.wait(ticket), Ok(Response::Done {}));
        rack.settle();
        tables_agree(&rack);
    }
}

/// The switch falls silent when it is to send elsewhere: the old node waits for it with its pages, and
/// forgets them when the switch is back (PROTOCOL 8.40).
#[test]
fn the_old_node_waits_for_the_switch() {
    let (mut rack, vma, _) = rack_of_two(76);
    let ticket = rack.ask(to(vma.base, 4, 2));
    while rack.noted(Note::Advanced) < 2 {
        assert!(rack.step());
    }
    rack.cut.insert(Port::SWITCH);
    rack.pass(Duration::from_secs(60));
    assert_eq!(rack.noted(Note::Silent(Role::Switch)), 1);
    assert_eq!(rack.answer(ticket), None);
    assert!(matches!(rack.tables(ONE).outliers[&(vma.base, 14)], Outlier::Leaving(_)));
    assert!(matches!(rack.tables(TWO).outliers[&(vma.base, 14)], Outlier::Here(_)));
    rack.cut.clear();
    assert_eq!(rack.wait(ticket), Ok(Response::Done {}));
    rack.settle();
    tables_agree(&rack);
    assert_eq!(rack.tables(ONE).outliers[&(vma.base, 14)], Outlier::Away);
}
