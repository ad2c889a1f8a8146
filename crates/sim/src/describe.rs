//! Descriptions of frames for traces. They omit everything that depends on the seed (keys, queue pairs).

use farmem_wire::message::{
    DirectoryMessage, MoveBody, MoveMessage, PageBody, PageMessage, Pair, SoftBody, SoftMessage,
};
use farmem_wire::{Aeth, Body, Extension, Gid, Message, Opcode, Packet, Psn, Syndrome};
use std::collections::BTreeMap;

/// Formats frames as lines. PSNs are relative to the first one seen between two addresses, so that traces do
/// not depend on the start PSN of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Describer {
    firsts: BTreeMap<(Gid, Gid), Vec<Psn>>,
}

/// Maximum distance of PSNs of the same connection.
const NEAR: u32 = 1 << 20;

impl Describer {
    /// Returns the frame as a line.
    pub(crate) fn frame(&mut self, from: Gid, to: Gid, bytes: &[u8]) -> String {
        match Packet::parse(bytes) {
            Ok(packet) if packet.bth.opcode.is_ud() => datagram(&packet),
            Ok(packet) => self.verb(from, to, &packet),
            Err(error) => format!("no packet: {error}"),
        }
    }

    fn verb(&mut self, from: Gid, to: Gid, packet: &Packet<'_>) -> String {
        let psn = self.relative(from, to, packet.bth.psn);
        let what = match packet.ext {
            Extension::Reth(reth) => format!(" {} len {}", reth.va, reth.dma_len),
            Extension::AtomicEth(atomic) if packet.bth.opcode == Opcode::FetchAdd => {
                format!(" {} add {}", atomic.va, atomic.swap_or_add)
            }
            Extension::AtomicEth(atomic) => {
                format!(" {} {} -> {}", atomic.va, atomic.compare, atomic.swap_or_add)
            }
            Extension::Aeth(Aeth { syndrome, .. }) if packet.bth.opcode == Opcode::Acknowledge => {
                match syndrome {
                    Syndrome::Ack => String::new(),
                    Syndrome::Rnr(_) => " not ready".to_owned(),
                    Syndrome::Nak(nak) => format!(" NAK {nak:?}"),
                }
            }
            Extension::AtomicAck(_, original) => format!(" found {original}"),
            _ => String::new(),
        };
        format!("{:?} psn {psn:+}{what}{}", packet.bth.opcode, payload(packet.payload))
    }

    fn relative(&mut self, from: Gid, to: Gid, psn: Psn) -> i32 {
        let firsts = self.firsts.entry((from.min(to), from.max(to))).or_default();
        let distance = firsts.iter().map(|&first| psn.distance(first)).find(|d| d.unsigned_abs() < NEAR);
        distance.unwrap_or_else(|| {
            firsts.push(psn);
            0
        })
    }
}

fn datagram(packet: &Packet<'_>) -> String {
    let message = match Message::parse(packet.payload) {
        Ok(message) => message,
        Err(error) => return other(packet.payload).unwrap_or_else(|| format!("no message: {error}")),
    };
    let header = &message.header;
    let end = if header.response { format!(" {:?}", header.status) } else { String::new() };
    let whose = if header.domain.0 == 0 { String::new() } else { format!(" domain {}", header.domain.0) };
    let id = header.request;
    match message.body {
        Body::RegionRead { addr, len, data } => {
            format!("RegionRead {id:?}{end}{whose} {addr} len {len}{}", payload(data))
        }
        Body::RegionWrite { addr, len, data } => {
            format!("RegionWrite {id:?}{end}{whose} {addr} len {len}{}", payload(data))
        }
        Body::Traverse(t) => {
            let code = if t.code.is_empty() {
                String::new()
            } else {
                format!(" with {} bytes of code", t.code.len())
            };
            let (hops, done, limit) = (header.hops, t.iterations, t.limit);
            format!("Traverse {id:?}{end}{whose} at {} hops {hops} done {done}/{limit}{code}", t.cur_ptr)
        }
        Body::Batch(batch) => {
            let pairs: Vec<String> = batch.pairs().map(|pair| pair_of(header.response, &pair)).collect();
            let code = if batch.code().is_empty() { "" } else { " with code" };
            format!("Batch {id:?}{end}{whose} hops {}{code}: {}", header.hops, pairs.join(", "))
        }
        Body::Update(updates) if header.response => format!("Update {}{end}", updates.seq),
        Body::Update(updates) => format!("Update {} of {}", updates.seq, updates.iter().count()),
    }
}

fn pair_of(response: bool, pair: &Pair<'_>) -> String {
    let end = if response { format!(" {:?}", pair.status) } else { String::new() };
    format!("{}{end} at {} done {}/{}", pair.counter, pair.cur_ptr, pair.iterations, pair.limit)
}

/// Describes a message about pages, the directory, the image or a move.
fn other(bytes: &[u8]) -> Option<String> {
    if let Ok(message) = DirectoryMessage::parse(bytes) {
        return Some(format!("{:?}", message.body));
    }
    if let Ok(SoftMessage { body, .. }) = SoftMessage::parse(bytes) {
        return Some(match body {
            SoftBody::Load(load) => {
                format!("Load image {} at {}/{}{}", load.epoch, load.offset, load.len, payload(load.bytes))
            }
            SoftBody::Counts(counts) => {
                let (epoch, from, total) = (counts.epoch, counts.from, counts.total);
                format!("Counts of image {epoch} at {from}/{total}{}", payload(counts.counters))
            }
            body => format!("{body:?}"),
        });
    }
    if let Ok(MoveMessage { number, body }) = MoveMessage::parse(bytes) {
        let what = match body {
            MoveBody::Page(page, _, part) => {
                format!("{page:?}{}", part.map_or_else(String::new, |(_, bytes)| payload(bytes)))
            }
            MoveBody::PageAck(page) => format!("taken {page:?}"),
            MoveBody::Record(request, hops, answer) => {
                format!("kept {request:?} hops {hops}{}", payload(answer.unwrap_or_default()))
            }
            MoveBody::RecordAck(request, hops) => format!("told {request:?} hops {hops}"),
        };
        return Some(format!("move {number}: {what}"));
    }
    Some(match PageMessage::parse(bytes).ok()?.body {
        PageBody::Data(data, bytes) => format!("{data:?}{}", payload(bytes)),
        PageBody::WriteBack(write_back, part, bytes) => {
            format!("{write_back:?} {part:?}{}", payload(bytes))
        }
        body => format!("{body:?}"),
    })
}

/// Formats the first bytes: as text if printable, otherwise as hex.
pub(crate) fn payload(bytes: &[u8]) -> String {
    const SHOWN: usize = 20;
    if bytes.is_empty() {
        return String::new();
    }
    let head = &bytes[..bytes.len().min(SHOWN)];
    let more = if bytes.len() > SHOWN { ".." } else { "" };
    if head.iter().all(|b| (0x20..0x7f).contains(b)) {
        return format!(" {:?}{more}", String::from_utf8_lossy(head));
    }
    let hex: String = head.iter().map(|b| format!("{b:02x}")).collect();
    format!(" {hex}{more}")
}

#[cfg(test)]
mod tests {
    use super::Describer;
    use farmem_wire::{Bth, Extension, Gid, Opcode, Packet, Psn, Qpn, Reth, Rkey, VirtAddr};

    /// Equal exchanges give equal lines for any start PSN, and across the wrap.
    #[test]
    fn psns_are_told_from_the_first() {
        let (a, b) = (Gid::from_v4([10, 0, 0, 1]), Gid::from_v4([10, 0, 0, 2]));
        for start in [0, 5, Psn::MAX] {
            let mut describer = Describer::default();
            let mut line = |n| {
                let bth = Bth::new(Opcode::WriteOnly, Qpn::new(start % 99), Psn::new(start).plus(n));
                let reth = Reth { va: VirtAddr(0x1000), rkey: Rkey(start), dma_len: 5 };
                let mut bytes = Vec::new();
                Packet { bth, ext: Extension::Reth(reth), payload: b"hello" }.emit(&mut bytes);
                describer.frame(a, b, &bytes)
            };
            assert_eq!(line(0), "WriteOnly psn +0 0x1000 len 5 \"hello\"");
            assert_eq!(line(3), "WriteOnly psn +3 0x1000 len 5 \"hello\"");
        }
        assert!(Describer::default().frame(a, b, &[1, 2, 3]).starts_with("no packet"));
    }
}
