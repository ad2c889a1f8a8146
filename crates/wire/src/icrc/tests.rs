use super::*;
use crate::{Bth, Extension, Opcode, Packet, Psn, Qpn, Reth, Rkey, VirtAddr};
use alloc::vec;
use proptest::prelude::*;

const V4: Route =
    Route { src: Gid::from_v4([10, 0, 0, 1]), dst: Gid::from_v4([10, 0, 0, 2]), src_port: 0xc001, ip_id: 0 };

fn route() -> impl Strategy<Value = Route> {
    let gid = prop_oneof![any::<[u8; 4]>().prop_map(Gid::from_v4), any::<[u8; 16]>().prop_map(Gid)];
    (gid.clone(), gid, any::<u16>(), any::<u16>()).prop_map(|(src, dst, src_port, ip_id)| Route {
        src,
        dst,
        src_port,
        ip_id,
    })
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), bth::LEN..600)
}

/// Returns the covered bytes in full, in the order of the annex: a slow reference for `compute` and `patch`.
fn covered(route: &Route, frame: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xff; 8];
    let udp_len = u16::try_from(frame.len() + 12).unwrap();
    if let Some((src, dst)) = route.as_v4() {
        bytes.extend([0x45, 0xff]);
        bytes.extend((udp_len + 20).to_be_bytes());
        bytes.extend(route.ip_id.to_be_bytes());
        bytes.extend([0x40, 0x00, 0xff, 17, 0xff, 0xff]);
        bytes.extend(src);
        bytes.extend(dst);
    } else {
        bytes.extend([0x6f, 0xff, 0xff, 0xff]);
        bytes.extend(udp_len.to_be_bytes());
        bytes.extend([17, 0xff]);
        bytes.extend(route.src.0);
        bytes.extend(route.dst.0);
    }
    bytes.extend(route.src_port.to_be_bytes());
    bytes.extend(4791_u16.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0xff, 0xff]);
    let bth = bytes.len();
    bytes.extend(frame);
    bytes[bth + 4] = 0xff;
    bytes
}

fn sealed(route: &Route, frame: &[u8]) -> Vec<u8> {
    let mut packet = frame.to_vec();
    seal(route, &mut packet, 0);
    packet
}

/// scapy 2.8 computed this ICRC; testdata/vectors has many more of its packets.
#[test]
fn a_read_request_has_the_icrc_that_scapy_gives_it() {
    let mut packet = vec![];
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::ReadRequest, Qpn::new(0x11), Psn::new(0x00ab_cdef)) };
    let reth = Reth { va: VirtAddr(0x0123_4567_89ab_cdef), rkey: Rkey(0xdead_beef), dma_len: 64 };
    Packet { bth, ext: Extension::Reth(reth), payload: &[] }.emit(&mut packet);
    seal(&V4, &mut packet, 0);
    assert_eq!(packet[28..], [0x99, 0x2b, 0x39, 0x01]);
    assert_eq!(check(&V4, &packet), Ok(&packet[..28]));
}

/// A frame may lie behind others in its buffer.
#[test]
fn only_the_bytes_from_the_frames_start_are_sealed() {
    let frame = [7; 20];
    let mut packet = vec![0xee; 5];
    packet.extend(frame);
    seal(&V4, &mut packet, 5);
    assert_eq!(packet[5..], sealed(&V4, &frame));
}

#[test]
fn lengths_that_hold_no_frame_are_refused() {
    for have in 0..bth::LEN + LEN {
        assert_eq!(
            check(&V4, &vec![0; have]),
            Err(WireError::Short { what: "packet with ICRC", need: 16, have }),
            "{have} bytes"
        );
    }
    let longest = sealed(&V4, &vec![3; FRAME_LEN_MAX]);
    assert_eq!(check(&V4, &longest).map(<[u8]>::len), Ok(FRAME_LEN_MAX));
    let mut too_long = longest;
    too_long.push(0);
    let have = too_long.len();
    assert_eq!(
        check_any_id(&V4, &too_long),
        Err(WireError::Long { what: "packet with ICRC", most: FRAME_LEN_MAX + LEN, have })
    );
}

/// The network may set congestion marks (PROTOCOL 2.7). Any other flipped bit makes the ICRC wrong.
#[test]
fn every_flipped_bit_but_the_congestion_byte_is_seen() {
    let packet = sealed(&V4, &(0..40).collect::<Vec<u8>>());
    for bit in 0..packet.len() * 8 {
        let mut wrong = packet.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        let seen = check(&V4, &wrong) == Err(WireError::Icrc);
        assert_eq!(seen, bit / 8 != 4, "bit {bit}");
        // 2^-16 of all errors look like another identification; none of these does.
        assert_eq!(check_any_id(&V4, &wrong).is_err(), bit / 8 != 4, "bit {bit}");
    }
}

/// Soft-RoCE takes identifications from the kernel's counter, and a UDP socket does not show them (PROTOCOL
/// 2.10). The test covers all of them.
#[test]
fn the_senders_ip_id_is_solved_for() {
    let frame = [0x5a; 64];
    for ip_id in 0..=u16::MAX {
        let packet = sealed(&Route { ip_id, ..V4 }, &frame);
        assert_eq!(check_any_id(&V4, &packet), Ok((&frame[..], ip_id)));
    }
}

/// The remaining check has strength 2^-16 (PROTOCOL 2.10). Of 20,000 corruptions outside the identification,
/// 0.3 are expected to pass.
#[test]
fn solving_for_the_id_does_not_let_corruption_through() {
    let mut passed = 0;
    for n in 0..20_000_u32 {
        let mut packet = sealed(&Route { ip_id: 0x1234, ..V4 }, &[0x5a; 64]);
        let noise = n.wrapping_mul(0x9e37_79b9) | 1;
        let at = 12 + (n as usize % 48);
        for (byte, noise) in packet[at..at + 4].iter_mut().zip(noise.to_le_bytes()) {
            *byte ^= noise;
        }
        passed += u32::from(check_any_id(&V4, &packet).is_ok());
    }
    assert!(passed <= 3, "{passed} corrupted packets passed");
}

#[test]
fn over_ipv6_there_is_no_id_to_solve_for() {
    let route = Route { dst: Gid([0xfe; 16]), ..V4 };
    let packet = sealed(&route, &[1; 32]);
    assert_eq!(check_any_id(&Route { ip_id: 99, ..route }, &packet), Ok((&packet[..32], 99)));
    assert_eq!(check_any_id(&Route { src_port: 1, ..route }, &packet), Err(WireError::Icrc));
}

#[test]
#[should_panic(expected = "a rewrite keeps the length")]
fn a_patch_that_changes_the_length_is_a_broken_invariant() {
    let _ = patch(0, 0, &[1, 2], &[1]);
}

#[test]
fn shifting_there_and_back_changes_nothing() {
    for n in 0..=u16::MAX {
        let there = SHIFT.times(0x1234_5678, n);
        assert_eq!(UNSHIFT.times(there, n), 0x1234_5678, "{n} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn compute_is_the_crc_of_the_covered_bytes(route in route(), frame in frame()) {
        prop_assert_eq!(compute(&route, &frame), crc32fast::hash(&covered(&route, &frame)));
    }

    #[test]
    fn check_undoes_seal(route in route(), frame in frame()) {
        let packet = sealed(&route, &frame);
        prop_assert_eq!(check(&route, &packet), Ok(&frame[..]));
    }

    /// The switch's operation (PROTOCOL 2.8): change one run of bytes and patch the ICRC without reading the
    /// rest.
    #[test]
    fn a_patched_icrc_equals_a_full_one(
        route in route(),
        frame in frame(),
        at in any::<prop::sample::Index>(),
        span in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let before = covered(&route, &frame);
        let start = at.index(before.len());
        let end = (start + span.len()).min(before.len());
        let mut after = before.clone();
        after[start..end].copy_from_slice(&span[..end - start]);
        let patched = patch(crc32fast::hash(&before), before.len() - end, &before[start..end], &after[start..end]);
        prop_assert_eq!(patched, crc32fast::hash(&after));
    }

    #[test]
    fn any_route_and_length_gives_the_id_back(route in route(), frame in frame(), tried in any::<u16>()) {
        let packet = sealed(&route, &frame);
        let id = if route.as_v4().is_some() { route.ip_id } else { tried };
        prop_assert_eq!(check_any_id(&Route { ip_id: tried, ..route }, &packet), Ok((&frame[..], id)));
    }

    #[test]
    fn no_bytes_make_check_panic(route in route(), packet in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = check(&route, &packet);
        let _ = check_any_id(&route, &packet);
    }
}
