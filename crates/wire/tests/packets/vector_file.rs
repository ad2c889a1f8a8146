//! Packets as text: the format of testdata/vectors, which scripts/check-scapy describes.

use farmem_wire::message::{Batch, Pair, Traverse, Update, Updates};
use farmem_wire::{
    Body, Extension, Gid, KeyedFrame, KeyedHeader, Message, Opcode, Packet, Psn, Qkey, Qpn, Reth, UDP_PORT,
    icrc,
};
use std::fmt::Write as _;

/// Name and value of a field, in the spelling of the files.
pub(crate) type Field = (String, String);

/// One packet of a vector file.
pub(crate) struct Vector {
    /// Line at which the bytes start.
    pub(crate) line: usize,
    /// Fields that a decoder must find.
    pub(crate) fields: Vec<Field>,
    /// `ok`, `masked`, or the reason of the refusal.
    pub(crate) verdict: String,
    /// IP header to ICRC.
    pub(crate) bytes: Vec<u8>,
}

/// Reads the packets of a vector file.
pub(crate) fn read(text: &str) -> Vec<Vector> {
    let (mut vectors, mut fields, mut digits, mut line) = (vec![], vec![], String::new(), 0);
    for (at, row) in text.lines().chain([""]).enumerate() {
        if let Some(field) = row.strip_prefix("#:") {
            let (name, value) = field.trim().split_once(' ').expect("a name and a value");
            fields.push((name.to_owned(), value.to_owned()));
        } else if !row.is_empty() && !row.starts_with('#') {
            line = if digits.is_empty() { at + 1 } else { line };
            digits.push_str(row);
        } else if row.is_empty() && !digits.is_empty() {
            let (last, verdict) = fields.pop().expect("fields in front of the bytes");
            assert_eq!(last, "verdict", "the verdict is the last field");
            let bytes = unhex(&std::mem::take(&mut digits));
            vectors.push(Vector { line, fields: std::mem::take(&mut fields), verdict, bytes });
        }
    }
    vectors
}

/// Formats a packet for a vector file.
pub(crate) fn write(fields: &[Field], bytes: &[u8]) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        writeln!(text, "#: {name} {value}").expect("memory");
    }
    writeln!(text, "#: verdict ok\n{}\n", hex(bytes)).expect("memory");
    text
}

/// Removes the IP and UDP headers. Returns their route, and the frame with its ICRC.
pub(crate) fn open(bytes: &[u8]) -> (icrc::Route, &[u8]) {
    let be16 = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let v4 = |at: usize| Gid::from_v4(bytes[at..at + 4].try_into().expect("4 bytes"));
    let v6 = |at: usize| Gid(bytes[at..at + 16].try_into().expect("16 bytes"));
    let (src, dst, ip_id, udp) = match bytes[0] >> 4 {
        4 => {
            assert_eq!((bytes[0], be16(6), bytes[9]), (0x45, 0x4000, 17), "IHL 5, don't fragment, UDP");
            assert_eq!(usize::from(be16(2)), bytes.len());
            (v4(12), v4(16), be16(4), 20)
        }
        6 => {
            assert_eq!((usize::from(be16(4)) + 40, bytes[6]), (bytes.len(), 17));
            (v6(8), v6(24), 0, 40)
        }
        version => panic!("IP version {version}"),
    };
    assert_eq!(be16(udp + 2), UDP_PORT);
    assert_eq!(usize::from(be16(udp + 4)), bytes.len() - udp);
    (icrc::Route { src, dst, src_port: be16(udp), ip_id }, &bytes[udp + 8..])
}

/// Puts IP and UDP headers in front of a frame with its ICRC. Omits the checksums, which no receiver here
/// sees.
pub(crate) fn wrap(route: &icrc::Route, packet: &[u8]) -> Vec<u8> {
    let len16 = |len: usize| u16::try_from(len).expect("a short packet").to_be_bytes();
    let mut bytes = vec![];
    if let (Some(src), Some(dst)) = (route.src.as_v4(), route.dst.as_v4()) {
        bytes.extend([0x45, 0]);
        bytes.extend(len16(20 + 8 + packet.len()));
        bytes.extend(route.ip_id.to_be_bytes());
        bytes.extend([0x40, 0, 64, 17, 0, 0]);
        bytes.extend(src);
        bytes.extend(dst);
    } else {
        bytes.extend([0x60, 0, 0, 0]);
        bytes.extend(len16(8 + packet.len()));
        bytes.extend([17, 64]);
        bytes.extend(route.src.0);
        bytes.extend(route.dst.0);
    }
    bytes.extend(route.src_port.to_be_bytes());
    bytes.extend(UDP_PORT.to_be_bytes());
    bytes.extend(len16(8 + packet.len()));
    bytes.extend([0, 0]);
    bytes.extend(packet);
    bytes
}

/// Returns every field of a packet that can be read, in the order of the files.
pub(crate) fn fields(route: &icrc::Route, frame: &[u8], packet: &Packet<'_>) -> Vec<Field> {
    let mut out = List(vec![]);
    out.add("ip.src", format!("{:?}", route.src));
    out.add("ip.dst", format!("{:?}", route.dst));
    if route.src.as_v4().is_some() {
        out.add("ip.id", route.ip_id.to_string());
    }
    out.add("udp.src_port", route.src_port.to_string());
    let bth = &packet.bth;
    out.add("bth.opcode", format!("{:#04x}", bth.opcode as u8));
    out.add("bth.solicited", u8::from(bth.solicited).to_string());
    out.qpn("bth.dest_qp", bth.dest_qp);
    out.add("bth.ack_req", u8::from(bth.ack_req).to_string());
    out.psn("bth.psn", bth.psn);
    // The value of an ACK has no credits, but the files list them; so this byte is read from the frame.
    let syndrome = frame.get(farmem_wire::bth::LEN).copied().unwrap_or_default();
    match packet.ext {
        Extension::None => {}
        Extension::Imm(imm) => out.imm(imm),
        Extension::Reth(reth) => out.reth(&reth),
        Extension::RethImm(reth, imm) => {
            out.reth(&reth);
            out.imm(imm);
        }
        Extension::AtomicEth(atomic) => {
            out.wide("atomic.va", atomic.va.0);
            out.word("atomic.rkey", atomic.rkey.0);
            out.wide("atomic.swap_or_add", atomic.swap_or_add);
            out.wide("atomic.compare", atomic.compare);
        }
        Extension::Aeth(aeth) => out.aeth(syndrome, aeth.msn),
        Extension::AtomicAck(aeth, original) => {
            out.aeth(syndrome, aeth.msn);
            out.wide("atomic_ack.original", original);
        }
        Extension::Deth(deth) => {
            out.word("deth.qkey", deth.qkey.0);
            out.qpn("deth.src_qp", deth.src_qp);
        }
        Extension::DethImm(deth, imm) => {
            out.word("deth.qkey", deth.qkey.0);
            out.qpn("deth.src_qp", deth.src_qp);
            out.imm(imm);
        }
    }
    if let Ok(KeyedFrame { keyed, .. }) = KeyedFrame::parse(frame) {
        let KeyedHeader { key, domain, node, hops, rkey, node_qpn } = keyed;
        out.wide("keyed.key", key);
        out.add("keyed.domain", domain.0.to_string());
        out.add("keyed.node", node.0.to_string());
        out.add("keyed.hops", hops.to_string());
        out.word("keyed.rkey", rkey.0);
        out.qpn("keyed.node_qpn", node_qpn);
    }
    out.add("payload", dashed(packet.payload));
    if let Some(message) = message(packet) {
        out.message(&message.expect("a UD payload that starts with 1 is a message"));
    }
    out.0
}

/// Parses the message in a packet. In these files, a UDP payload that starts with the version is a message.
pub(crate) fn message<'a>(packet: &Packet<'a>) -> Option<Result<Message<'a>, farmem_wire::WireError>> {
    let version = packet.payload.first().copied()?;
    let farmem = packet.bth.opcode == Opcode::UdSendOnly && (1..=2).contains(&version);
    farmem.then(|| Message::parse(packet.payload))
}

struct List(Vec<Field>);

impl List {
    fn add(&mut self, name: &str, value: String) {
        self.0.push((name.to_owned(), value));
    }
    fn wide(&mut self, name: &str, value: u64) {
        self.add(name, format!("{value:#018x}"));
    }
    fn word(&mut self, name: &str, value: u32) {
        self.add(name, format!("{value:#010x}"));
    }
    fn qpn(&mut self, name: &str, qpn: Qpn) {
        self.add(name, format!("{:#08x}", qpn.get()));
    }
    fn psn(&mut self, name: &str, psn: Psn) {
        self.add(name, format!("{:#08x}", psn.get()));
    }
    fn imm(&mut self, imm: u32) {
        self.word("imm", imm);
    }
    fn reth(&mut self, reth: &Reth) {
        self.wide("reth.va", reth.va.0);
        self.word("reth.rkey", reth.rkey.0);
        self.add("reth.dma_len", reth.dma_len.to_string());
    }
    fn aeth(&mut self, syndrome: u8, msn: Psn) {
        self.add("aeth.syndrome", format!("{syndrome:#04x}"));
        self.psn("aeth.msn", msn);
    }

    fn message(&mut self, message: &Message<'_>) {
        let header = &message.header;
        self.add("message.kind", format!("{:#04x}", message.body.kind() as u8));
        self.add("message.status", (header.status as u8).to_string());
        self.add("message.response", u8::from(header.response).to_string());
        self.add("message.domain", header.domain.0.to_string());
        self.wide("message.request", header.request.0);
        self.add("message.origin", header.origin.0.to_string());
        self.add("message.hops", header.hops.to_string());
        match &message.body {
            Body::RegionRead { addr, len, data } | Body::RegionWrite { addr, len, data } => {
                self.wide("region.addr", addr.0);
                self.add("region.len", len.to_string());
                self.add("region.data", dashed(data));
            }
            Body::Traverse(traverse) => self.traverse(traverse),
            Body::Batch(batch) => self.batch(batch),
            Body::Update(updates) => self.updates(updates),
        }
    }

    fn traverse(&mut self, traverse: &Traverse<'_>) {
        self.add("traverse.program", hex(&traverse.program.0));
        self.wide("traverse.cur_ptr", traverse.cur_ptr.0);
        self.add("traverse.iterations", traverse.iterations.to_string());
        self.add("traverse.limit", traverse.limit.to_string());
        self.add("traverse.scratch", dashed(traverse.scratch));
        self.add("traverse.code", dashed(traverse.code));
    }

    fn batch(&mut self, batch: &Batch<'_>) {
        self.add("batch.program", hex(&batch.program().0));
        self.add("batch.code", dashed(batch.code()));
        for pair in batch.pairs() {
            let Pair { counter, status, cur_ptr, iterations, limit, scratch } = pair;
            let (status, at) = (status as u8, cur_ptr.0);
            self.add("pair", format!("{counter} {status} {at:#x} {iterations} {limit} {}", dashed(scratch)));
        }
    }

    fn updates(&mut self, updates: &Updates<'_>) {
        self.add("updates.seq", updates.seq.to_string());
        self.add("updates.refused", updates.refused.to_string());
        for update in updates.iter() {
            let numbers: Vec<String> = numbers(update).into_iter().map(|n| format!("{n:#x}")).collect();
            let (tag, rest) = numbers.split_first().expect("a tag");
            let tag = u8::from_str_radix(&tag[2..], 16).expect("a small number");
            self.add("update", format!("{tag} {}", rest.join(" ")));
        }
    }
}

/// Returns the tag and fields of an update.
fn numbers(update: Update) -> Vec<u128> {
    let q = |qpn: Qpn| u128::from(qpn.get());
    match update {
        Update::Peer { port, gid, qpn, qkey } => {
            vec![1, port.into(), u128::from_be_bytes(gid.0), q(qpn), qkey.0.into()]
        }
        Update::PeerGone { port } => vec![2, port.into()],
        Update::Translate { base, size_log2, node } => {
            vec![3, base.0.into(), size_log2.into(), node.0.into()]
        }
        Update::Untranslate { base, size_log2 } => vec![4, base.0.into(), size_log2.into()],
        Update::Protect { domain, base, len, perm, vma_log2 } => {
            vec![5, domain.0.into(), base.0.into(), len.into(), (perm as u8).into(), vma_log2.into()]
        }
        Update::Session { qpn, qkey, host, generation, domain } => {
            vec![6, q(qpn), qkey.0.into(), host.0.into(), generation.into(), domain.0.into()]
        }
        Update::SessionGone { qpn } => vec![7, q(qpn)],
        Update::Range { base, len, offset } => vec![8, base.0.into(), len.into(), offset.into()],
        Update::RangeGone { base, len } => vec![9, base.0.into(), len.into()],
        Update::Clear { base, len } => vec![10, base.0.into(), len.into()],
        Update::QueuePair { qpn, peer_qpn, peer_port, expected_psn, rkey, domain, pmtu } => vec![
            11,
            q(qpn),
            q(peer_qpn),
            peer_port.into(),
            expected_psn.get().into(),
            rkey.0.into(),
            domain.0.into(),
            (pmtu as u16).into(),
        ],
        Update::QueuePairGone { qpn } => vec![12, q(qpn)],
        Update::Directory { newest } => vec![13, newest.0.into()],
        Update::Live { host, generation } => vec![14, host.0.into(), generation.into()],
        Update::Fence { host } => vec![15, host.0.into()],
        Update::AcceptLost { base, len } => vec![16, base.0.into(), len.into()],
        Update::Arrive { base, size_log2, offset, number, port, gid, qpn, qkey } => {
            let place = [17, base.0.into(), size_log2.into(), offset.into(), number.into()];
            place.into_iter().chain(end(port, gid, qpn, qkey)).collect()
        }
        Update::Leave { base, size_log2, number, port, gid, qpn, qkey } => {
            let place = [18, base.0.into(), size_log2.into(), number.into()];
            place.into_iter().chain(end(port, gid, qpn, qkey)).collect()
        }
        Update::Place { base, size_log2, offset } => {
            vec![19, base.0.into(), size_log2.into(), offset.into()]
        }
        Update::Away { base, size_log2 } => vec![20, base.0.into(), size_log2.into()],
        Update::Unplace { base, size_log2 } => vec![21, base.0.into(), size_log2.into()],
        Update::Drain { base, size_log2 } => vec![22, base.0.into(), size_log2.into()],
        Update::Lose { base, len } => vec![23, base.0.into(), len.into()],
        Update::Connection(of) => vec![
            24,
            q(of.to_node),
            q(of.to_host),
            of.host.0.into(),
            q(of.host_qpn),
            of.node.0.into(),
            q(of.node_qpn),
            of.rkey.0.into(),
            of.domain.0.into(),
            (of.pmtu as u16).into(),
            of.root.0.into(),
        ],
        Update::ConnectionGone { to_node } => vec![25, q(to_node)],
        Update::Anew { host } => vec![26, host.0.into()],
    }
}

fn end(port: u32, gid: Gid, qpn: Qpn, qkey: Qkey) -> [u128; 4] {
    [port.into(), u128::from_be_bytes(gid.0), qpn.get().into(), qkey.0.into()]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn dashed(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".to_owned() } else { hex(bytes) }
}

fn unhex(digits: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(pair).collect()
}
