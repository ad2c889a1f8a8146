//! Processes and their memory system calls: their results, what switch and nodes are told, and failures of a
//! role meanwhile (PROTOCOL 8.27 to 8.31). `src/syscalls/tests.rs` tests the effect of each call on the pages
//! beside a model of Linux.

use crate::rack::peer::Budget;
use crate::rack::{Rack, grant, text};
use farmem_control::api::*;
use farmem_control::{Note, PAGE, Role};
use farmem_machine::{Duration, Port};
use farmem_wire::Perm;

const MIB: u64 = 1 << 20;
const NODE: Port = Port::node(1);
const ENOMEM: i64 = -12;
const EINVAL: i64 = -22;

/// Creates a rack with two nodes and a process in a domain of its own.
fn rack_with_process(seed: u64) -> (Rack, u32, u32) {
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.join_node(2, MIB);
    let domain = rack.domain("program");
    let (process, heap) = start(&mut rack, domain, 0);
    assert_eq!(heap, 0);
    (rack, domain, process)
}

fn start(rack: &mut Rack, domain: u32, heap: u64) -> (u32, u64) {
    let ProcessInfo { process, heap } = rack.call(ProcessStart { domain, heap }).unwrap();
    (process, heap)
}

fn returned(rack: &mut Rack, call: impl Call<Answer = Returned>) -> i64 {
    rack.call(call).unwrap().value
}

const fn mmap(process: u32, len: u64, prot: u32) -> Mmap {
    Mmap { process, addr: 0, len, prot, flags: 0x22 }
}

fn map(rack: &mut Rack, process: u32, pages: u64) -> u64 {
    u64::try_from(returned(rack, mmap(process, pages * PAGE, 3))).expect("there is room")
}

fn tables_agree(rack: &Rack) {
    rack.check_log();
    for &port in rack.peers.keys() {
        rack.check_tables(port);
    }
}

/// Returns the owner's permission for each page of a range, at switch and node alike.
fn perms(rack: &Rack, domain: u32, base: u64, pages: u64) -> Vec<Perm> {
    let node = rack.peers.iter().find(|(port, peer)| {
        port.as_node().is_some() && peer.tables.ranges.keys().any(|&(at, len)| base - at < len && base >= at)
    });
    let (_, node) = node.expect("a node has it");
    let at = |page: u64| base + page * PAGE;
    let all: Vec<Perm> = (0..pages).map(|page| node.may(domain, at(page))).collect();
    let switch = &rack.peers[&Port::SWITCH];
    assert_eq!(all, (0..pages).map(|page| switch.may(domain, at(page))).collect::<Vec<_>>());
    all
}

/// A process maps, protects, unmaps a part, and ends: the roles know its permissions page by page, and in the
/// end none.
#[test]
fn a_process_from_start_to_end() {
    let (mut rack, domain, process) = rack_with_process(80);
    let base = map(&mut rack, process, 5);
    let (none, read, write) = (Perm::None, Perm::Read, Perm::ReadWrite);
    assert_eq!(perms(&rack, domain, base, 8), [write, write, write, write, write, none, none, none]);
    assert_eq!(rack.vmas()[0].size, 8 * PAGE, "a power of two");
    let protect = Mprotect { process, addr: base + PAGE, len: 2 * PAGE, prot: 1 };
    assert_eq!(returned(&mut rack, protect), 0);
    let unmap = |page: u64, pages: u64| Munmap { process, addr: base + page * PAGE, len: pages * PAGE };
    assert_eq!(returned(&mut rack, unmap(3, 1)), 0);
    assert_eq!(perms(&rack, domain, base, 6), [write, read, read, none, write, none]);
    tables_agree(&rack);
    rack.restart();
    rack.settle();
    tables_agree(&rack);
    for (page, pages) in [(0, 3), (4, 4)] {
        assert_eq!(returned(&mut rack, unmap(page, pages)), 0);
    }
    assert_eq!(rack.vmas(), [], "a vma goes with its last page");
    map(&mut rack, process, 1);
    rack.call(ProcessExit { process }).unwrap();
    assert_eq!(rack.vmas(), []);
    assert!(rack.tables(Port::SWITCH).perms.is_empty() && rack.tables(NODE).perms.is_empty());
    tables_agree(&rack);
    assert_eq!(rack.refused(mmap(process, PAGE, 3)).code, ErrorCode::NotFound);
}

/// The heap grows and shrinks in place. A request beyond its limit leaves it as it is, and the system call
/// then returns its present end.
#[test]
fn a_heap_moves() {
    let (mut rack, _, _) = rack_with_process(81);
    let domain = rack.domain("heap");
    let (process, heap) = start(&mut rack, domain, 3 * PAGE);
    let mut brk = |addr: u64| u64::try_from(returned(&mut rack, Brk { process, addr })).unwrap();
    assert_eq!(brk(0), heap);
    assert_eq!(brk(heap + 100), heap + 100);
    assert_eq!(brk(heap + 4 * PAGE), heap + 4 * PAGE, "what was asked for, rounded up to a power of two");
    assert_eq!(brk(heap + 4 * PAGE + 1), heap + 4 * PAGE);
    assert_eq!(brk(heap + PAGE), heap + PAGE);
    let (none, write) = (Perm::None, Perm::ReadWrite);
    assert_eq!(perms(&rack, domain, heap, 4), [write, none, none, none]);
    tables_agree(&rack);
}

/// Processes of one domain, on whatever hosts, have one address space, which lasts as long as one of them.
/// Other domains see nothing of it.
#[test]
fn a_domain_is_an_address_space() {
    let (mut rack, domain, first) = rack_with_process(82);
    let base = map(&mut rack, first, 2);
    let (second, _) = start(&mut rack, domain, 0);
    let fixed = Mmap { process: second, addr: base, len: PAGE, prot: 3, flags: 0x10_0022 };
    assert_eq!(returned(&mut rack, fixed), -17, "the first one's page is the second one's");
    rack.call(ProcessExit { process: first }).unwrap();
    assert_eq!(perms(&rack, domain, base, 2), [Perm::ReadWrite; 2]);
    let stranger_domain = rack.domain("stranger");
    let (stranger, _) = start(&mut rack, stranger_domain, 0);
    let taken = Mmap { process: stranger, addr: base, len: PAGE, prot: 3, flags: 0x32 };
    assert_eq!(returned(&mut rack, taken), ENOMEM);
    rack.call(ProcessExit { process: second }).unwrap();
    assert_eq!(rack.vmas(), []);
    tables_agree(&rack);
}

/// A call that fails returns Linux's number, and nothing changes. A request that the API cannot carry out is
/// an error of the API.
#[test]
fn refusals_have_numbers() {
    let (mut rack, domain, process) = rack_with_process(83);
    let base = map(&mut rack, process, 4);
    let rows = rack.control.compact();
    for (request, value) in [
        (Request::from(mmap(process, 0, 3)), EINVAL),
        (mmap(process, PAGE, 4).into(), -13),
        (mmap(process, 2 * MIB, 3).into(), ENOMEM),
        (mmap(process, u64::MAX, 3).into(), ENOMEM),
        (Mmap { process, addr: base, len: PAGE, prot: 3, flags: 0x10_0022 }.into(), -17),
        (Mmap { process, addr: base + 1, len: PAGE, prot: 3, flags: 0x32 }.into(), EINVAL),
        (Munmap { process, addr: base + 1, len: PAGE }.into(), EINVAL),
        (Munmap { process, addr: base + 64 * PAGE, len: PAGE }.into(), 0),
        (Mprotect { process, addr: base + 4 * PAGE, len: PAGE, prot: 1 }.into(), ENOMEM),
        (Brk { process, addr: base }.into(), 0),
    ] {
        let answer = rack.call(request.clone()).unwrap();
        assert_eq!(answer, Returned { value }.into(), "{request:?}");
        assert_eq!(rack.control.compact(), rows, "{request:?}");
    }
    let id = rack.vmas()[0].id;
    assert_eq!(rack.refused(Free { domain, base, id }).code, ErrorCode::Conflict);
    assert_eq!(rack.refused(mmap(process + 1, PAGE, 3)).code, ErrorCode::NotFound);
    assert_eq!(rack.refused(ProcessStart { domain: 77, heap: 0 }).code, ErrorCode::NotFound);
    let much = ProcessStart { domain: rack.domain("much"), heap: 4 * MIB };
    assert_eq!(rack.refused(much).code, ErrorCode::OutOfMemory);
    rack.peers.get_mut(&Port::SWITCH).unwrap().budget = Budget { perms: 16, ..Budget::default() };
    assert_eq!(rack.refused(mmap(process, PAGE, 3)).code, ErrorCode::TableFull);
    assert_eq!(rack.vmas().len(), 1);
    rack.peers.get_mut(&Port::SWITCH).unwrap().budget = Budget::default();
    tables_agree(&rack);
}

/// A mapping replaced in place is zeroed. Another domain's grant to it stays unchanged.
#[test]
fn a_fixed_mapping_replaces_pages() {
    let (mut rack, domain, process) = rack_with_process(84);
    let other = rack.domain("other");
    let base = map(&mut rack, process, 4);
    let vma = VmaInfo { id: 0, base, size: 4 * PAGE, node: 1, domain };
    rack.call(grant(&vma, 0, PAGE, other, PermName::Read)).unwrap();
    let node = rack.vmas()[0].node;
    let clears = |rack: &Rack| {
        let applied = &rack.peers[&Port::node(node)].applied;
        applied.iter().filter(|update| matches!(update, farmem_wire::message::Update::Clear { .. })).count()
    };
    let before = clears(&rack);
    let replace = Mmap { process, addr: base + PAGE, len: 2 * PAGE, prot: 1, flags: 0x32 };
    assert_eq!(returned(&mut rack, replace), i64::try_from(base + PAGE).unwrap());
    assert_eq!(clears(&rack), before + 1);
    let (read, write) = (Perm::Read, Perm::ReadWrite);
    assert_eq!(perms(&rack, domain, base, 4), [write, read, read, write]);
    assert_eq!(rack.peers[&Port::SWITCH].may(other, base), Perm::Read);
    assert_eq!(returned(&mut rack, Munmap { process, addr: base, len: 4 * PAGE }), 0);
    assert_eq!(rack.peers[&Port::SWITCH].may(other, base), Perm::None, "grants go with the vma");
    tables_agree(&rack);
}

/// A role rejoins while a call is in flight, and the control plane crashes meanwhile: the call goes on, or
/// never took place.
#[test]
fn calls_outlive_joins_and_restarts() {
    let (mut rack, domain, process) = rack_with_process(85);
    let base = map(&mut rack, process, 4);
    let joins = [
        (NODE, Request::from(JoinNode::new("n1".into(), text(11), MIB))),
        (Port::SWITCH, JoinSwitch { gid: text(2) }.into()),
    ];
    for (cut, join) in joins {
        for request in [
            Request::from(mmap(process, PAGE, 3)),
            Mprotect { process, addr: base, len: PAGE, prot: 1 }.into(),
            Munmap { process, addr: base, len: PAGE }.into(),
            Mmap { process, addr: base, len: PAGE, prot: 3, flags: 0x32 }.into(),
        ] {
            rack.cut.insert(cut);
            let ticket = rack.ask(request);
            rack.pass(Duration::from_millis(20));
            rack.cut.clear();
            let join = rack.ask(join.clone());
            rack.wait(join).unwrap();
            assert!(matches!(rack.wait(ticket), Ok(Response::Returned(Returned { value: 0.. }))));
            rack.settle();
            tables_agree(&rack);
        }
    }
    rack.cut.insert(NODE);
    rack.ask(Munmap { process, addr: base, len: PAGE });
    rack.pass(Duration::from_millis(20));
    rack.restart();
    rack.cut.clear();
    rack.settle();
    assert_eq!(perms(&rack, domain, base, 2), [Perm::None, Perm::ReadWrite], "what was being given back is");
    let vmas = rack.vmas().len();
    rack.ask(mmap(process, 64 * PAGE, 3));
    rack.restart();
    rack.settle();
    assert_eq!(rack.vmas().len(), vmas, "no caller was told of it");
    assert_eq!(rack.noted(Note::MustRejoin(Role::Switch)), 0);
    tables_agree(&rack);
}

/// Jain's index is 1 when the nodes have the same, and one half when one of two has everything (MIND 7.2).
#[test]
fn the_balance_is_jains_index() {
    let (mut rack, _, process) = rack_with_process(86);
    let balance = |rack: &mut Rack| rack.call(Overview {}).unwrap().balance_ppm;
    assert_eq!(balance(&mut rack), 1_000_000);
    map(&mut rack, process, 4);
    assert_eq!(balance(&mut rack), 500_000);
    map(&mut rack, process, 4);
    assert_eq!(balance(&mut rack), 1_000_000);
    map(&mut rack, process, 8);
    // 12 and 4 pages: 16^2 / (2 * (144 + 16)).
    assert_eq!(balance(&mut rack), 800_000);
}
