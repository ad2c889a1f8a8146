//! A warm node's traversals do not allocate, also if there are more of them than workspaces.

use farmem_machine::{Action, Event, Instant, Machine as _, Outbox, Port};
use farmem_memnode::{Budget, Config, MemNode, Note, VecStore, WORKSPACES};
use farmem_transport::ud::{self, Endpoint, Peer, RoleEndpoints};
use farmem_traversal::Program;
use farmem_wire::message::{Kind, Traverse, Update, Updates};
use farmem_wire::{
    Body, Domain, Gid, Header, HostId, Message, Perm, Pmtu, Psn, Qkey, Qpn, RequestId, Status, VirtAddr,
};

const HOME: Endpoint = Endpoint { qpn: Qpn::new(100), qkey: Qkey(1) };
const CONTROL: Peer = Peer { port: Port::CONTROL, endpoint: Endpoint { qpn: Qpn::new(102), qkey: Qkey(3) } };
const BASE: VirtAddr = VirtAddr(0x1_0000);
const LEN: u64 = 0x1000;

fn frame(message: &Message<'_>) -> Vec<u8> {
    let mut out = Outbox::<(), ()>::new();
    let mut bytes = Vec::new();
    ud::send(&mut out, Peer { port: Port::SWITCH, endpoint: HOME }, Qpn::new(9), Psn::new(0), message);
    out.drain(|action| {
        if let Action::Send { frame, .. } = action {
            bytes.extend_from_slice(frame);
        }
    });
    bytes
}

fn tables() -> Vec<u8> {
    let (gid, qpn, qkey) = (Gid([0; 16]), Qpn::new(200), Qkey(4));
    let updates = [Port::SWITCH, Port::host(1)].map(|port| Update::Peer { port: port.0, gid, qpn, qkey });
    let memory = [
        Update::Range { base: BASE, len: LEN, offset: 0 },
        Update::Protect { domain: Domain(1), base: BASE, len: LEN, perm: Perm::Read, vma_log2: 64 },
    ];
    let mut bytes = Vec::new();
    updates.iter().chain(&memory).for_each(|update| update.emit(&mut bytes));
    let updates = Updates::request(1, 4, &bytes).expect("a batch that fits");
    frame(&Message { header: Header::request(RequestId(0), 0), body: Body::Update(updates) })
}

/// Returns a traversal that stays at a null node for `limit` iterations, or leaves at once through the
/// switch.
fn traversal(program: &Program, cur_ptr: VirtAddr, limit: u32, counter: u32) -> Vec<u8> {
    let (hash, code) = (program.hash(), program.encoded());
    let state = Traverse { program: hash, cur_ptr, iterations: 0, limit, scratch: &[0; 64], code };
    let request = Header::request(RequestId::new(HostId(1), 0, counter), 8);
    let header = Header { domain: Domain(1), origin: HostId(1), ..request };
    frame(&Message { header, body: Body::Traverse(state) })
}

#[test]
fn a_warm_node_does_not_allocate() {
    let config = Config {
        home: RoleEndpoints { endpoint: HOME, control: CONTROL },
        pmtu: Pmtu::B1024,
        budget: Budget::default(),
    };
    let mut node = MemNode::new(config, VecStore::new(0x1000));
    let mut outbox = Outbox::new();
    node.handle(Instant::ZERO, Event::Frame { port: Port::CONTROL, bytes: &tables() }, &mut outbox);
    outbox.drain(|_| {});

    let stay =
        Program::assemble(".scratch 64\n ld8 r2, window[0]\n add r1, r2\n next r1").expect("it assembles");
    let elsewhere = VirtAddr(0x100_0000);
    let batch: Vec<Vec<u8>> = (0..)
        .zip([(BASE, 1), (BASE, 300), (BASE, 1000), (elsewhere, 1)].iter().cycle().take(3 * WORKSPACES))
        .map(|(counter, &(cur_ptr, limit))| traversal(&stay, cur_ptr, limit, counter))
        .collect();
    let (answered, left) = (Note::Answered(Kind::Traverse, Status::IterationLimit), Note::Continued);
    let mut round = |times: usize| {
        let mut counts = (0, 0);
        for _ in 0..times {
            for bytes in &batch {
                node.handle(Instant::ZERO, Event::Frame { port: Port::SWITCH, bytes }, &mut outbox);
            }
            while node.next_wake().is_some() {
                node.handle(Instant::ZERO, Event::Wake, &mut outbox);
            }
            outbox.drain(|action| match action {
                Action::Note(note) if note == answered => counts.0 += 1,
                Action::Note(note) if note == left => counts.1 += 1,
                _ => {}
            });
        }
        counts
    };
    let all = (batch.len() / 4 * 3, batch.len() / 4);
    assert_eq!(round(1), all, "one round to warm up");
    let mut counts = (0, 0);
    let heap = allocation_counter::measure(|| counts = round(10));
    assert_eq!(counts, (10 * all.0, 10 * all.1));
    assert_eq!(heap.count_total, 0, "{heap:?}");
}
