use super::*;
use crate::{Nak, Psn, Qkey, Qpn, Rkey, Syndrome, VirtAddr};
use alloc::vec;
use proptest::prelude::*;

/// PROTOCOL 2.3 as a table: number, bytes of extension headers, payload allowed.
const OPCODES: [(u8, usize, bool); 24] = [
    (0x00, 0, true),
    (0x01, 0, true),
    (0x02, 0, true),
    (0x03, 4, true),
    (0x04, 0, true),
    (0x05, 4, true),
    (0x06, 16, true),
    (0x07, 0, true),
    (0x08, 0, true),
    (0x09, 4, true),
    (0x0a, 16, true),
    (0x0b, 20, true),
    (0x0c, 16, false),
    (0x0d, 4, true),
    (0x0e, 0, true),
    (0x0f, 4, true),
    (0x10, 4, true),
    (0x11, 4, false),
    (0x12, 12, false),
    (0x13, 28, false),
    (0x14, 28, false),
    (0x64, 8, true),
    (0x65, 12, true),
    (0xcc, 16, true),
];

const RETH: Reth = Reth { va: VirtAddr(0x1000), rkey: Rkey(7), dma_len: 64 };
const AETH: Aeth = Aeth { syndrome: Syndrome::Ack, msn: Psn::new(3) };
const DETH: Deth = Deth { qkey: Qkey(0x8001_0000), src_qp: Qpn::new(0x12) };
const EXTENSIONS: [Extension; 9] = [
    Extension::None,
    Extension::Imm(5),
    Extension::Reth(RETH),
    Extension::RethImm(RETH, 5),
    Extension::AtomicEth(AtomicEth { va: VirtAddr(8), rkey: Rkey(7), swap_or_add: 1, compare: 2 }),
    Extension::Aeth(AETH),
    Extension::AtomicAck(AETH, 9),
    Extension::Deth(DETH),
    Extension::DethImm(DETH, 5),
];

fn every_opcode() -> impl Iterator<Item = (Opcode, usize, bool)> {
    OPCODES.into_iter().map(|(bits, ext_len, payload)| (Opcode::from_bits(bits).unwrap(), ext_len, payload))
}

fn packet(opcode: Opcode, payload: &[u8]) -> Packet<'_> {
    let ext = EXTENSIONS.into_iter().find(|ext| ext.fits(opcode)).expect("each opcode has its extension");
    Packet { bth: Bth::new(opcode, Qpn::new(0x11), Psn::new(1)), ext, payload }
}

fn emitted(packet: &Packet<'_>) -> Vec<u8> {
    let mut out = vec![];
    packet.emit(&mut out);
    out
}

#[test]
fn each_opcode_has_exactly_one_extension_of_the_right_length() {
    assert_eq!((0..=u8::MAX).filter_map(Opcode::from_bits).count(), OPCODES.len());
    for (opcode, ext_len, _) in every_opcode() {
        assert_eq!(EXTENSIONS.iter().filter(|ext| ext.fits(opcode)).count(), 1, "{opcode:?}");
        let frame = emitted(&packet(opcode, &[]));
        assert_eq!(frame.len(), bth::LEN + ext_len, "{opcode:?}");
        assert_eq!(Packet::parse(&frame), Ok(packet(opcode, &[])));
    }
}

/// PROTOCOL 2.3.
#[test]
fn every_truncation_of_the_headers_is_refused() {
    for (opcode, ..) in every_opcode() {
        let frame = emitted(&packet(opcode, &[]));
        for have in 0..frame.len() {
            let result = Packet::parse(&frame[..have]);
            assert!(matches!(result, Err(WireError::Short { .. })), "{opcode:?} of {have} bytes: {result:?}");
        }
    }
}

/// PROTOCOL 2.6: 0 to 3 pad bytes, so that payload and pad are a multiple of 4.
#[test]
fn each_payload_length_is_padded_and_comes_back() {
    let bytes: Vec<u8> = (1..=9).collect();
    for (opcode, ext_len, has_payload) in every_opcode().filter(|&(_, _, has_payload)| has_payload) {
        for len in 0..=bytes.len() {
            let packet = packet(opcode, &bytes[..len]);
            let frame = emitted(&packet);
            assert_eq!(frame.len(), bth::LEN + ext_len + len.next_multiple_of(4));
            assert_eq!(usize::from(frame[1] >> 4 & 3), len.next_multiple_of(4) - len);
            assert_eq!(Packet::parse(&frame), Ok(packet), "{opcode:?} {has_payload}");
        }
    }
}

/// PROTOCOL 2.3.
#[test]
fn a_payload_where_none_belongs_is_refused() {
    for (opcode, _, _) in every_opcode().filter(|&(_, _, has_payload)| !has_payload) {
        let mut frame = emitted(&packet(opcode, &[]));
        frame.extend([0; 4]);
        let long = |have| Err(WireError::Long { what: "payload of this opcode", most: 0, have });
        for pad in 0..4 {
            frame[1] = frame[1] & !0x30 | pad << 4;
            assert_eq!(Packet::parse(&frame), long(4 - usize::from(pad)), "{opcode:?}");
        }
    }
}

/// PROTOCOL 2.6.
#[test]
fn a_pad_that_does_not_fit_is_refused() {
    let frame = emitted(&packet(Opcode::SendOnly, &[1, 2, 3, 4]));
    for len in 1..8 {
        let mut frame = frame.clone();
        frame.resize(bth::LEN + len, 0);
        assert_eq!(Packet::parse(&frame).is_ok(), len == 4, "{len} bytes of payload and no pad");
    }
    let mut no_room = emitted(&packet(Opcode::SendOnly, &[]));
    no_room[1] |= 0x20;
    assert_eq!(Packet::parse(&no_room), Err(WireError::Short { what: "pad", need: 2, have: 0 }));
}

/// PROTOCOL 2.6.
#[test]
fn each_bit_of_the_pad_is_reserved() {
    let frame = emitted(&packet(Opcode::SendOnly, &[0xff]));
    for bit in 0..24 {
        let mut frame = frame.clone();
        frame[bth::LEN + 1 + bit / 8] |= 1 << (bit % 8);
        assert_eq!(Packet::parse(&frame), Err(WireError::Reserved { what: "pad" }), "bit {bit}");
    }
}

#[test]
fn a_frame_may_stand_behind_others() {
    let mut out = vec![0xee; 3];
    packet(Opcode::WriteOnly, b"abc").emit(&mut out);
    assert_eq!(out[..3], [0xee; 3]);
    assert_eq!(Packet::parse(&out[3..]), Ok(packet(Opcode::WriteOnly, b"abc")));
}

#[test]
#[should_panic(expected = "ReadRequest does not carry")]
fn the_wrong_extension_is_a_broken_invariant() {
    let _ = emitted(&Packet { ext: Extension::None, ..packet(Opcode::ReadRequest, &[]) });
}

#[test]
#[should_panic(expected = "Acknowledge has no payload")]
fn a_payload_where_none_belongs_is_a_broken_invariant() {
    let _ = emitted(&packet(Opcode::Acknowledge, &[1]));
}

#[test]
#[should_panic(expected = "the length it was announced with")]
fn a_payload_of_another_length_than_announced_is_a_broken_invariant() {
    let Packet { bth, ext, .. } = packet(Opcode::SendOnly, &[]);
    Packet::emit_with(&bth, &ext, 4, &mut vec![], |out| out.push(1));
}

proptest! {
    /// Parsing a frame as a datagram and as a packet agree, also for frames that are cut off or corrupt at
    /// any offset.
    #[test]
    fn a_datagram_is_the_packet_that_it_is(
        payload in prop::collection::vec(any::<u8>(), 0..40), keep in 0..80_usize, at in 0..40_usize, flip: u8,
    ) {
        let mut frame = emitted(&packet(Opcode::UdSendOnly, &payload));
        let flipped = at.min(frame.len() - 1);
        for flip in [0, flip] {
            frame[flipped] ^= flip;
            for frame in [&frame[..], &frame[..keep.min(frame.len())]] {
                let asked = Packet::parse(frame).map(|packet| (packet.bth.dest_qp, packet.ext, packet.payload));
                let read = Datagram::parse(frame).map(|read| (read.dest_qp, Extension::Deth(read.deth), read.payload));
                if Datagram::is(frame) {
                    prop_assert_eq!(read, asked);
                } else {
                    prop_assert!(read.is_err());
                }
            }
        }
    }
}

fn aeth() -> impl Strategy<Value = Aeth> {
    use Nak::{InvalidRequest, PsnSequence, RemoteAccess, RemoteOperational};
    let nak = prop::sample::select(vec![PsnSequence, InvalidRequest, RemoteAccess, RemoteOperational]);
    let syndrome =
        prop_oneof![Just(Syndrome::Ack), (0..32_u8).prop_map(Syndrome::Rnr), nak.prop_map(Syndrome::Nak)];
    (syndrome, any::<u32>()).prop_map(|(syndrome, msn)| Aeth { syndrome, msn: Psn::new(msn) })
}

fn extension(opcode: Opcode) -> BoxedStrategy<Extension> {
    let reth = (any::<u64>(), any::<u32>(), 0..=crate::headers::DMA_LEN_MAX)
        .prop_map(|(va, rkey, dma_len)| Reth { va: VirtAddr(va), rkey: Rkey(rkey), dma_len });
    let deth = any::<(u32, u32)>().prop_map(|(qkey, qpn)| Deth { qkey: Qkey(qkey), src_qp: Qpn::new(qpn) });
    let imm = any::<u32>();
    match EXTENSIONS.into_iter().find(|ext| ext.fits(opcode)).unwrap() {
        Extension::None => Just(Extension::None).boxed(),
        Extension::Imm(_) => imm.prop_map(Extension::Imm).boxed(),
        Extension::Reth(_) => reth.prop_map(Extension::Reth).boxed(),
        Extension::RethImm(..) => (reth, imm).prop_map(|(reth, imm)| Extension::RethImm(reth, imm)).boxed(),
        Extension::AtomicEth(_) => any::<(u64, u32, u64, u64)>()
            .prop_map(|(va, rkey, swap_or_add, compare)| {
                Extension::AtomicEth(AtomicEth { va: VirtAddr(va), rkey: Rkey(rkey), swap_or_add, compare })
            })
            .boxed(),
        Extension::Aeth(_) => aeth().prop_map(Extension::Aeth).boxed(),
        Extension::AtomicAck(..) => {
            (aeth(), any::<u64>()).prop_map(|(aeth, old)| Extension::AtomicAck(aeth, old)).boxed()
        }
        Extension::Deth(_) => deth.prop_map(Extension::Deth).boxed(),
        Extension::DethImm(..) => (deth, imm).prop_map(|(deth, imm)| Extension::DethImm(deth, imm)).boxed(),
    }
}

fn headers() -> impl Strategy<Value = (Bth, Extension)> {
    let opcode = prop::sample::select(every_opcode().map(|(opcode, ..)| opcode).collect::<Vec<_>>());
    opcode.prop_flat_map(|opcode| {
        let bth = any::<(bool, u32, bool, u32)>().prop_map(move |(solicited, qpn, ack_req, psn)| Bth {
            opcode,
            solicited,
            dest_qp: Qpn::new(qpn),
            ack_req,
            psn: Psn::new(psn),
        });
        (bth, extension(opcode))
    })
}

/// Bytes with a valid BTH in front, so that most of them are parsed further.
fn likely_frame() -> impl Strategy<Value = Vec<u8>> {
    (prop::collection::vec(any::<u8>(), 12..80), 0..OPCODES.len()).prop_map(|(mut frame, opcode)| {
        (frame[0], frame[1]) = (OPCODES[opcode].0, frame[1] & 0xf0);
        (frame[2], frame[3], frame[8]) = (0xff, 0xff, frame[8] & 0x80);
        frame
    })
}

proptest! {
    #[test]
    fn parse_undoes_emit((bth, ext) in headers(), payload in prop::collection::vec(any::<u8>(), 0..300)) {
        let payload = if has_payload(bth.opcode) { &payload[..] } else { &[] };
        let packet = Packet { bth, ext, payload };
        let frame = emitted(&packet);
        prop_assert_eq!(Packet::parse(&frame), Ok(packet));
    }

    /// Whatever parses emits the same bytes, except for MigReq, the congestion byte and an ACK's credits.
    #[test]
    fn emit_undoes_parse(frame in likely_frame()) {
        if let Ok(packet) = Packet::parse(&frame) {
            let mut expected = frame.clone();
            expected[1] |= 0x40;
            expected[4] = 0;
            if let Extension::Aeth(aeth) | Extension::AtomicAck(aeth, _) = packet.ext {
                expected[12] = aeth.syndrome.bits();
            }
            prop_assert_eq!(emitted(&packet), expected);
        }
    }

    #[test]
    fn no_bytes_make_parse_panic(frame in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = Packet::parse(&frame);
    }
}
