//! Measures the instructions of index lookups at the switch role, with batches of lookups in a known or
//! unknown tree.
//!
//! ```text
//! valgrind --tool=callgrind indexed_batch index 100
//! ```
//!
//! The difference of two runs of different lengths excludes the start; a batch has [`PAIRS`] lookups. The
//! tree has the paper's extent: 600 ranges and three sets of 3,600 nodes (Fat-B+Tree V-B), with uniformly
//! distributed keys.

use farmem_index::{Child, Range, SECTION_KIND, SetNode, TreeSection};
use farmem_machine::{Action, Event, Instant, Machine as _, Outbox, Port, Rng};
use farmem_switch::{Budgets, Note, Switch};
use farmem_transport::image::{Image, SectionKey};
use farmem_transport::ud::{self, Endpoint, Peer, RoleEndpoints};
use farmem_wire::message::{
    Batch, ImageId, Load, Pair, PairBuf, SOFT_PART_MAX, SoftBody, SoftMessage, Update, Updates,
};
use farmem_wire::{
    Body, Domain, Gid, Header, HostId, Message, NodeId, Perm, ProgramHash, Psn, Qkey, Qpn, RequestId, Status,
    VirtAddr,
};

const HOME: Endpoint = Endpoint { qpn: Qpn::new(100), qkey: Qkey(1) };
const SESSION: Endpoint = Endpoint { qpn: Qpn::new(101), qkey: Qkey(2) };
const CONTROL: Peer = Peer { port: Port::CONTROL, endpoint: Endpoint { qpn: Qpn::new(102), qkey: Qkey(3) } };
const DOMAIN: Domain = Domain(1);
const HOST: HostId = HostId(1);
const PROGRAM: ProgramHash = ProgramHash([6; 16]);
/// First address of the one node's memory.
const BASE: u64 = 1 << 40;
const ROOT: VirtAddr = VirtAddr(BASE + 0x100);
/// Lookups of a batch.
const PAIRS: u32 = 32;
/// Batches that are sent in turn.
const BATCHES: u32 = 256;

const RANGES: u64 = 600;
const NODES: u64 = 3_600;
const CHILDREN: u64 = 14;
const SETS: u8 = 3;

fn main() {
    let mut args = std::env::args().skip(1);
    let (what, times) = (args.next(), args.next().and_then(|times| times.parse().ok()));
    let (Some(what @ ("index" | "root")), Some(times)) = (what.as_deref(), times) else {
        panic!("indexed_batch index|root BATCHES");
    };
    let mut switch = Switch::new(RoleEndpoints { endpoint: HOME, control: CONTROL }, Budgets::default());
    let mut outbox = Outbox::new();
    let mut indexed = 0;
    let mut handle = |port, bytes: &[u8]| {
        switch.handle(Instant::ZERO, Event::Frame { port, bytes }, &mut outbox);
        outbox.drain(|action| {
            indexed += usize::from(matches!(action, Action::Note(Note::Indexed { .. })));
        });
    };
    handle(Port::CONTROL, &tables());
    if what == "index" {
        load(&image()).iter().for_each(|frame| handle(Port::CONTROL, frame));
    }
    let batches = batches();
    for batch in batches.iter().cycle().take(times) {
        handle(Port::host(HOST.0), batch);
    }
    assert_eq!(indexed, if what == "index" { times } else { 0 });
}

/// Returns a frame to `receiver` with this payload.
fn frame(receiver: Endpoint, len: usize, emit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Outbox::<(), ()>::new();
    let mut bytes = Vec::new();
    let peer = Peer { port: Port::SWITCH, endpoint: receiver };
    ud::send_bytes(&mut out, peer, Qpn::new(9), Psn::new(0), len, emit);
    out.drain(|action| {
        if let Action::Send { frame, .. } = action {
            bytes.extend_from_slice(frame);
        }
    });
    bytes
}

/// Returns the updates for one session, and one memory node with all addresses.
fn tables() -> Vec<u8> {
    let (gid, qpn, qkey) = (Gid([0; 16]), Qpn::new(200), Qkey(4));
    let (base, size_log2) = (VirtAddr(BASE), 40);
    let updates = [
        Update::Session { qpn: SESSION.qpn, qkey: SESSION.qkey, host: HOST, generation: 0, domain: DOMAIN },
        Update::Peer { port: Port::host(HOST.0).0, gid, qpn, qkey },
        Update::Peer { port: Port::node(0).0, gid, qpn, qkey },
        Update::Translate { base, size_log2, node: NodeId(0) },
        Update::Protect { domain: DOMAIN, base, len: 1 << 32, perm: Perm::ReadWrite, vma_log2: 64 },
    ];
    let mut bytes = Vec::new();
    updates.iter().for_each(|update| update.emit(&mut bytes));
    let updates = Updates::request(1, 5, &bytes).expect("a batch that fits");
    let message = Message { header: Header::request(RequestId(0), 0), body: Body::Update(updates) };
    frame(HOME, message.len(), |bytes| message.emit(bytes))
}

/// Returns the tree: each layer has as many nodes as fit a set, spread over all keys.
fn image() -> Image {
    // Node `n` of set `set`; the nodes of each set begin at an address of their own.
    let at = |set: u8, n: u64| VirtAddr(ROOT.0 + 0x100 + (u64::from(set) << 28) + n * 0x100);
    let child = |set: u8, n: u64| Child { addr: at(set, n), level: SETS - set };
    let width = |set: u8| u64::MAX / (RANGES * CHILDREN.pow(set.into()));
    let last = |n: u64| if n + 1 == RANGES { u64::MAX } else { (n + 1) * width(0) - 1 };
    let ranges = (0..RANGES).map(|n| Range { first: n * width(0), last: last(n), child: child(0, n) });
    let node = |set: u8, n: u64| SetNode {
        addr: at(set, n),
        pivots: (1..CHILDREN).map(|i| n * width(set) + i * width(set + 1)).collect(),
        children: (0..CHILDREN).map(|i| child(set + 1, n * CHILDREN + i)).collect(),
    };
    let sets = (0..SETS).map(|set| {
        let there = RANGES * CHILDREN.pow(set.into());
        let taken = there.min(NODES);
        (0..taken).map(|n| node(set, n * (there / taken))).collect()
    });
    let section =
        TreeSection { root: ROOT, programs: vec![PROGRAM], ranges: ranges.collect(), sets: sets.collect() };
    let key = SectionKey { domain: DOMAIN, kind: SECTION_KIND, id: ROOT.0 };
    Image::of(&[(key, &section.emit())]).expect("an image that fits")
}

/// Returns the messages that make an image active.
fn load(image: &Image) -> Vec<Vec<u8>> {
    let said = |body| {
        let message = SoftMessage { token: RequestId::new(HostId(0), 1, 1), body };
        frame(HOME, message.len(), |bytes| message.emit(bytes))
    };
    let (epoch, len) = (1, image.len());
    let parts = image.bytes().chunks(SOFT_PART_MAX).zip((0..).step_by(SOFT_PART_MAX));
    let mut frames: Vec<Vec<u8>> =
        parts.map(|(bytes, offset)| said(SoftBody::Load(Load { epoch, len, offset, bytes }))).collect();
    frames.push(said(SoftBody::Flip(ImageId { epoch, len, digest: image.digest() })));
    frames
}

/// Returns batches of lookups of random keys.
fn batches() -> Vec<Vec<u8>> {
    let mut rng = Rng::from_number(13);
    let mut batch = |number: u32| {
        let header =
            Header { origin: HOST, ..Header::request(RequestId::new(HOST, 0, 1 + number * PAIRS), 8) };
        let mut pairs = PairBuf::default();
        for n in 0..PAIRS {
            let scratch = &rng.next_u64().to_le_bytes();
            let counter = header.request.counter() + n;
            let (status, cur_ptr) = (Status::Ok, ROOT);
            pairs.push(&Pair { counter, status, cur_ptr, iterations: 0, limit: 1024, scratch });
        }
        let body = Body::Batch(Batch::of(&header, PROGRAM, &[], &pairs));
        let message = Message { header, body };
        frame(SESSION, message.len(), |bytes| message.emit(bytes))
    };
    (0..BATCHES).map(&mut batch).collect()
}
