//! The warm switch's hot path does not allocate: requests, continuations and refusals.

use farmem_index::{Child, Range, SECTION_KIND, SetNode, TreeSection};
use farmem_machine::{Event, Instant, Machine as _, Outbox, Port};
use farmem_switch::{Budgets, Note, Switch};
use farmem_transport::image::{Image, SectionKey};
use farmem_transport::ud::{self, Endpoint, Peer, RoleEndpoints};
use farmem_wire::message::{
    Batch, ImageId, Load, Pair, PairBuf, SoftBody, SoftMessage, Traverse, Update, Updates,
};
use farmem_wire::{
    Body, Domain, Gid, Header, HostId, Message, NodeId, Perm, ProgramHash, Psn, Qkey, Qpn, RequestId, Status,
    VirtAddr,
};

const HOME: Endpoint = Endpoint { qpn: Qpn::new(100), qkey: Qkey(1) };
const SESSION: Endpoint = Endpoint { qpn: Qpn::new(101), qkey: Qkey(2) };
const CONTROL: Peer = Peer { port: Port::CONTROL, endpoint: Endpoint { qpn: Qpn::new(102), qkey: Qkey(3) } };

/// Returns a frame to `receiver` with `message`.
fn frame(receiver: Endpoint, message: &Message<'_>) -> Vec<u8> {
    framed(receiver, |out, peer| ud::send(out, peer, Qpn::new(9), Psn::new(0), message))
}

/// Returns the frame that `send` sends to `receiver`.
fn framed(receiver: Endpoint, send: impl FnOnce(&mut Outbox<(), ()>, Peer)) -> Vec<u8> {
    let mut out = Outbox::<(), ()>::new();
    let mut bytes = Vec::new();
    send(&mut out, Peer { port: Port::SWITCH, endpoint: receiver });
    out.drain(|action| {
        if let farmem_machine::Action::Send { frame, .. } = action {
            bytes.extend_from_slice(frame);
        }
    });
    bytes
}

fn tables() -> Vec<u8> {
    let (gid, qpn, qkey) = (Gid([0; 16]), Qpn::new(200), Qkey(4));
    let mut updates = Vec::from([
        Update::Session {
            qpn: SESSION.qpn,
            qkey: SESSION.qkey,
            host: HostId(1),
            generation: 0,
            domain: Domain(1),
        },
        Update::Peer { port: Port::host(1).0, gid, qpn, qkey },
    ]);
    for node in 0..4 {
        let base = VirtAddr(u64::from(node + 1) << 40);
        updates.push(Update::Peer { port: Port::node(node).0, gid, qpn, qkey });
        updates.push(Update::Translate { base, size_log2: 40, node: NodeId(node) });
        updates.push(Update::Protect {
            domain: Domain(1),
            base,
            len: 0x7000,
            perm: Perm::ReadWrite,
            vma_log2: 64,
        });
    }
    let mut bytes = Vec::new();
    updates.iter().for_each(|update| update.emit(&mut bytes));
    let count = u16::try_from(updates.len()).expect("a short batch");
    let updates = Updates::request(1, count, &bytes).expect("a batch that fits");
    frame(HOME, &Message { header: Header::request(RequestId(0), 0), body: Body::Update(updates) })
}

fn traversal(cur_ptr: u64) -> Message<'static> {
    let state = Traverse {
        program: ProgramHash([6; 16]),
        cur_ptr: VirtAddr(cur_ptr),
        iterations: 0,
        limit: 100,
        scratch: &[0; 256],
        code: &[0; 512],
    };
    let header = Header {
        domain: Domain(1),
        origin: HostId(1),
        ..Header::request(RequestId::new(HostId(1), 0, 1), 8)
    };
    Message { header, body: Body::Traverse(state) }
}

/// Returns a batch of lookups that begin at one root.
fn batch(root: u64) -> Vec<u8> {
    let mut pairs = PairBuf::default();
    let header = traversal(root).header;
    for counter in 1..=32 {
        let (status, cur_ptr, scratch) = (Status::Ok, VirtAddr(root), &[0; 8][..]);
        pairs.push(&Pair { counter, status, cur_ptr, iterations: 0, limit: 100, scratch });
    }
    let body = Body::Batch(Batch::of(&header, ProgramHash([6; 16]), &[0; 512], &pairs));
    frame(SESSION, &Message { header, body })
}

/// Returns the messages for an image by which lookups from node 2 begin at node 1.
fn image() -> [Vec<u8>; 2] {
    let (root, child) = (VirtAddr(3 << 40), |at: u64| Child { addr: VirtAddr((2 << 40) + at), level: 0 });
    let section = TreeSection {
        root,
        programs: vec![ProgramHash([6; 16])],
        ranges: vec![Range { first: 0, last: u64::MAX, child: child(0) }],
        sets: vec![vec![SetNode {
            addr: child(0).addr,
            pivots: vec![5],
            children: vec![child(256), child(512)],
        }]],
    };
    let key = SectionKey { domain: Domain(1), kind: SECTION_KIND, id: root.0 };
    let image = Image::of(&[(key, &section.emit())]).expect("a short image");
    let (epoch, len) = (1, image.len());
    let load = SoftBody::Load(Load { epoch, len, offset: 0, bytes: image.bytes() });
    let flip = SoftBody::Flip(ImageId { epoch, len, digest: image.digest() });
    [load, flip].map(|body| {
        let message = SoftMessage { token: RequestId::new(HostId(0), 1, 1), body };
        framed(HOME, |out, peer| {
            ud::send_bytes(out, peer, Qpn::new(9), Psn::new(0), message.len(), |bytes| message.emit(bytes));
        })
    })
}

#[test]
fn a_warm_switch_does_not_allocate() {
    let mut switch = Switch::new(RoleEndpoints { endpoint: HOME, control: CONTROL }, Budgets::default());
    let mut outbox = Outbox::new();
    switch.handle(Instant::ZERO, Event::Frame { port: Port::CONTROL, bytes: &tables() }, &mut outbox);
    outbox.drain(|_| {});

    for bytes in image() {
        switch.handle(Instant::ZERO, Event::Frame { port: Port::CONTROL, bytes: &bytes }, &mut outbox);
        outbox.drain(|_| {});
    }
    let at = |node: u64, offset: u64| ((node + 1) << 40) + offset;
    let cases = [
        (Port::host(1), frame(SESSION, &traversal(at(3, 0x6fff))), Note::Forwarded { node: NodeId(3) }),
        (Port::node(3), frame(HOME, &traversal(at(0, 8))), Note::Continued { node: NodeId(0) }),
        (Port::node(0), frame(HOME, &traversal(at(0, 0x7000))), Note::Refused(Status::NotMapped)),
        // Lookups of a known tree, alone and in a batch.
        (Port::host(1), frame(SESSION, &traversal(at(2, 0))), Note::Indexed { node: NodeId(1) }),
        (Port::host(1), batch(at(2, 0)), Note::Indexed { node: NodeId(1) }),
    ];
    let mut round = |times: u64| {
        let mut right = 0;
        for _ in 0..times {
            for (port, bytes, expected) in &cases {
                switch.handle(Instant::ZERO, Event::Frame { port: *port, bytes }, &mut outbox);
                outbox.drain(|action| {
                    right +=
                        u64::from(matches!(action, farmem_machine::Action::Note(note) if note == *expected));
                });
            }
        }
        right
    };
    assert_eq!(round(1), 5, "one round to warm up");
    let mut right = 0;
    let heap = allocation_counter::measure(|| right = round(1_000));
    assert_eq!(right, 5_000);
    assert_eq!(heap.count_total, 0, "{heap:?}");
}
