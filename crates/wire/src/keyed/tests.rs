use super::*;
use crate::headers::view;
use crate::{Psn, Qpn, VirtAddr};
use alloc::vec;
use proptest::prelude::*;

const RETH: Reth = Reth { va: VirtAddr(0x0102_0304_0506_0708), rkey: Rkey(0), dma_len: 256 };
const KEYED: KeyedHeader = KeyedHeader {
    key: 0x1112_1314_1516_1718,
    domain: Domain(0x2122_2324),
    node: NodeId(0x3132),
    hops: KeyedHeader::HOPS_MAX,
    rkey: Rkey(0x4142_4344),
    node_qpn: Qpn::new(0x51_5253),
};

fn read(reth: Reth) -> [u8; KeyedFrame::READ_LEN] {
    let mut out = vec![];
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::ReadRequest, Qpn::new(0x11), Psn::new(0x22)) };
    Packet { bth, ext: Extension::Reth(reth), payload: &[] }.emit(&mut out);
    out.try_into().expect("28 bytes")
}

fn framed(reth: Reth, keyed: &KeyedHeader) -> Vec<u8> {
    let mut out = vec![];
    KeyedFrame::emit(&read(reth), keyed, &mut out);
    out
}

/// PROTOCOL 15.11, byte by byte.
#[test]
fn the_fields_stand_where_the_protocol_says() {
    let frame = framed(RETH, &KEYED);
    assert_eq!(frame[..28], read(RETH));
    assert_eq!(
        frame[28..],
        [
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 15, 0, 0x41,
            0x42, 0x43, 0x44, 0, 0x51, 0x52, 0x53
        ]
    );
    let found = KeyedFrame::parse(&frame).unwrap();
    assert_eq!((found.read, found.reth, found.keyed), (&read(RETH), RETH, KEYED));
    assert_eq!((found.bth.dest_qp.get(), found.bth.psn.get(), found.bth.ack_req), (0x11, 0x22, true));
}

/// An endpoint does not parse a frame with a header as a READ, and a switch does not parse a READ as a frame
/// with a header.
#[test]
fn a_frame_is_one_or_the_other() {
    let (plain, with) = (read(RETH), framed(RETH, &KEYED));
    assert!(KeyedFrame::is(&with) && !KeyedFrame::is(&plain));
    let long = WireError::Long { what: "payload of this opcode", most: 0, have: 24 };
    assert_eq!(Packet::parse(&with).unwrap_err(), long);
    assert_eq!(
        KeyedFrame::parse(&plain).unwrap_err(),
        WireError::Short { what: "keyed READ", need: 36, have: 28 }
    );
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let good = framed(RETH, &KEYED);
    let unknown = |what, value| WireError::Unknown { what, value };
    let with = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        KeyedFrame::parse(&frame).map(drop).unwrap_err()
    };
    assert_eq!(with(0, 0x0a), unknown("opcode of a keyed READ", 0x0a));
    assert_eq!(with(1, 1), unknown("BTH.TVer", 1));
    assert_eq!(with(23, 9), unknown("RETH.rkey of a keyed READ", 9));
    assert_eq!(with(42, 16), unknown("keyed.hops", 16));
    assert_eq!(with(43, 1), WireError::Reserved { what: "keyed.reserved" });
    assert_eq!(with(48, 1), unknown("keyed.node_qpn", 0x151_5253));
    let empty = framed(Reth { dma_len: 0, ..RETH }, &KEYED);
    assert_eq!(KeyedFrame::parse(&empty).unwrap_err(), unknown("RETH.DMALen of a keyed READ", 0));
    for have in 0..good.len() {
        assert!(KeyedFrame::parse(&good[..have]).is_err(), "{have} bytes are too few");
    }
    let longer = [&good[..], &[0]].concat();
    assert_eq!(
        KeyedFrame::parse(&longer).unwrap_err(),
        WireError::Long { what: "keyed READ", most: 52, have: 53 }
    );
}

fn any_keyed() -> impl Strategy<Value = KeyedHeader> {
    (any::<u64>(), any::<u32>(), any::<u16>(), 0..=KeyedHeader::HOPS_MAX, any::<u32>(), 0..=Qpn::MAX)
        .prop_map(|(key, domain, node, hops, rkey, qpn)| KeyedHeader {
            key,
            domain: Domain(domain),
            node: NodeId(node),
            hops,
            rkey: Rkey(rkey),
            node_qpn: Qpn::new(qpn),
        })
}

proptest! {
    /// Every emitted header parses to the same value, with extreme numbers too. A switch that rewrites the
    /// RETH leaves the header unchanged.
    #[test]
    fn a_header_comes_back_as_it_was_put_in(keyed in any_keyed(), va: u64, to: u64, dma_len in 1..=1u32 << 31) {
        let frame = framed(Reth { va: VirtAddr(va), rkey: Rkey(0), dma_len }, &keyed);
        let found = KeyedFrame::parse(&frame).unwrap();
        prop_assert_eq!(found.keyed, keyed);
        prop_assert_eq!(found.reth, Reth { va: VirtAddr(va), rkey: Rkey(0), dma_len });
        let mut read = *found.read;
        view::Reth::new_checked(&mut read[bth::LEN..]).unwrap().set_va(VirtAddr(to));
        let mut on = vec![];
        KeyedFrame::emit(&read, &found.keyed, &mut on);
        let moved = KeyedFrame::parse(&on).unwrap();
        prop_assert_eq!((moved.keyed, moved.reth.va, moved.bth), (keyed, VirtAddr(to), found.bth));
    }

    /// Arbitrary bytes cause no panic, and a frame that parses emits the same bytes.
    #[test]
    fn any_bytes_are_refused_or_come_back(mut frame in proptest::collection::vec(any::<u8>(), 0..70), shape: bool) {
        if shape && frame.len() >= 28 {
            frame[..28].copy_from_slice(&read(RETH));
        }
        if let Ok(found) = KeyedFrame::parse(&frame) {
            let mut again = vec![];
            KeyedFrame::emit(found.read, &found.keyed, &mut again);
            prop_assert!(again == frame && KeyedFrame::is(&frame));
        }
    }
}
