use super::*;
use alloc::vec;

fn emitted(bth: &Bth, pad: u8) -> Vec<u8> {
    let mut out = vec![];
    bth.emit(pad, &mut out);
    out
}

fn sample() -> Bth {
    Bth {
        opcode: Opcode::WriteOnly,
        solicited: true,
        dest_qp: Qpn::new(0x12_3456),
        ack_req: true,
        psn: Psn::new(0xab_cdef),
    }
}

/// The diagram of PROTOCOL 2.2, byte by byte.
#[test]
fn fields_stand_where_the_protocol_says() {
    let bytes = [0x0a, 0x80 | 0x40 | 3 << 4, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef];
    assert_eq!(emitted(&sample(), 3), bytes);
    assert_eq!(Bth::parse(&bytes), Ok((sample(), 3)));
}

/// PROTOCOL 2.3: these opcodes and no other.
#[test]
fn each_opcode_has_its_number_and_all_others_are_refused() {
    let spoken: Vec<u8> = (0x00..=0x14).chain([0x64, 0x65, 0xcc]).collect();
    for bits in 0..=u8::MAX {
        let mut bytes = emitted(&sample(), 0);
        bytes[0] = bits;
        match Opcode::from_bits(bits) {
            Some(opcode) => {
                assert_eq!(opcode as u8, bits);
                assert_eq!(Bth::parse(&bytes).map(|(bth, _)| bth.opcode), Ok(opcode));
            }
            None => {
                let unknown = WireError::Unknown { what: "BTH.OpCode", value: u64::from(bits) };
                assert_eq!(Bth::parse(&bytes), Err(unknown));
            }
        }
        assert_eq!(Opcode::from_bits(bits).is_some(), spoken.contains(&bits), "{bits:#04x}");
    }
}

#[test]
fn only_0d_to_12_are_responses_and_only_64_and_65_are_datagrams() {
    for opcode in (0..=u8::MAX).filter_map(Opcode::from_bits) {
        assert_eq!(opcode.is_rc_response(), (0x0d..=0x12).contains(&(opcode as u8)), "{opcode:?}");
        assert_eq!(opcode.is_ud(), (0x60..0x80).contains(&(opcode as u8)), "{opcode:?}");
    }
}

#[test]
fn every_shorter_header_is_refused() {
    let bytes = emitted(&sample(), 0);
    for have in 0..LEN {
        assert_eq!(Bth::parse(&bytes[..have]), Err(WireError::Short { what: "BTH", need: LEN, have }));
    }
}

/// Flips each bit of the header: the header is refused, ignores the bit, or shows it (PROTOCOL 2.2).
#[test]
fn each_flipped_bit_is_refused_ignored_or_read() {
    let whole = emitted(&sample(), 0);
    for bit in 0..LEN * 8 {
        let (byte, mask) = (bit / 8, 0x80 >> (bit % 8));
        let mut bytes = whole.clone();
        bytes[byte] ^= mask;
        let result = Bth::parse(&bytes);
        match (byte, mask) {
            (1, 0x10..) => assert!(result.is_ok(), "SE, M and PadCnt have no wrong value"),
            (1, tver) => {
                assert_eq!(result, Err(WireError::Unknown { what: "BTH.TVer", value: u64::from(tver) }));
            }
            (2 | 3, _) => {
                assert!(matches!(result, Err(WireError::Unknown { what: "BTH.P_Key", .. })), "bit {bit}");
            }
            (4, _) => assert_eq!(result, Ok((sample(), 0)), "the network may change byte 4"),
            (8, 0x01..=0x40) => assert_eq!(result, Err(WireError::Reserved { what: "BTH.reserved7" })),
            (0, _) => assert_ne!(result, Ok((sample(), 0))),
            _ => assert!(result.is_ok_and(|read| read != (sample(), 0)), "bit {bit} is read"),
        }
    }
}

#[test]
fn hardware_and_soft_roce_differ_in_migreq_and_neither_is_refused() {
    let mut bytes = emitted(&sample(), 0);
    assert_eq!(bytes[1] & MIG_REQ, MIG_REQ, "we send what hardware sends");
    bytes[1] &= !MIG_REQ;
    assert_eq!(Bth::parse(&bytes), Ok((sample(), 0)));
}

#[test]
fn a_view_rewrites_only_what_it_is_told_to() {
    let mut frame = emitted(&sample(), 2);
    frame.extend([1, 2, 3, 4]);
    let mut view = View::new_checked(&mut frame).unwrap();
    view.set_dest_qp(Qpn::new(0xff_fffe));
    view.set_psn(Psn::new(1));
    view.after_mut()[3] = 9;
    assert_eq!((view.dest_qp().get(), view.psn().get(), view.after()), (0xff_fffe, 1, &[1, 2, 3, 9][..]));
    let expected = Bth { dest_qp: Qpn::new(0xff_fffe), psn: Psn::new(1), ..sample() };
    assert_eq!(Bth::parse(&frame), Ok((expected, 2)));
}

#[test]
#[should_panic(expected = "a pad has at most 3 bytes")]
fn a_longer_pad_is_a_broken_invariant() {
    let _ = emitted(&sample(), 4);
}
