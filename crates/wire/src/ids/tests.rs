use super::*;
use alloc::format;
use alloc::vec::Vec;
use proptest::prelude::*;

const HALF: u32 = 1 << 23;

/// PROTOCOL 2.11, around the wrap.
#[test]
fn psns_wrap_at_2_to_the_24() {
    let last = Psn::new(Psn::MAX);
    assert_eq!(last.plus(1), Psn::new(0));
    assert_eq!(Psn::new(0).minus(1), last);
    assert_eq!(Psn::new(0).distance(last), 1);
    assert_eq!(last.distance(Psn::new(0)), -1);
    assert_eq!(Psn::new(HALF - 1).distance(Psn::new(0)), 8_388_607);
    assert_eq!(Psn::new(HALF).distance(Psn::new(0)), -8_388_608, "half the circle away counts as earlier");
    assert_eq!(Psn::new(0xff00_0001), Psn::new(1), "24 bits are kept");
}

proptest! {
    #[test]
    fn psn_arithmetic_is_modulo_2_to_the_24(psn: u32, n: u32) {
        let p = Psn::new(psn);
        prop_assert_eq!(u64::from(p.plus(n).get()), (u64::from(p.get()) + u64::from(n)) % (1 << 24));
        prop_assert_eq!(p.plus(n).minus(n), p);
        prop_assert_eq!(p.minus(n).plus(n), p);
    }

    #[test]
    fn distance_undoes_plus_and_minus_within_half_the_circle(psn: u32, n in 0..HALF) {
        let p = Psn::new(psn);
        prop_assert_eq!(p.plus(n).distance(p), i32::try_from(n).unwrap());
        prop_assert_eq!(p.minus(n).distance(p), -i32::try_from(n).unwrap());
    }

    #[test]
    fn distance_is_antisymmetric_but_for_the_opposite_point(a: u32, b: u32) {
        let (a, b) = (Psn::new(a), Psn::new(b));
        let there = a.distance(b);
        prop_assert!((-8_388_608..8_388_608).contains(&there));
        if there != -8_388_608 {
            prop_assert_eq!(b.distance(a), -there);
        }
    }

    #[test]
    fn an_ipv4_address_comes_back_from_its_gid(octets: [u8; 4], other: [u8; 16]) {
        prop_assert_eq!(Gid::from_v4(octets).as_v4(), Some(octets));
        if other[..12] != [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
            prop_assert_eq!(Gid(other).as_v4(), None);
        }
    }

    #[test]
    fn a_request_id_knows_its_host(host: u16, generation: u16, counter: u32) {
        let id = RequestId::new(HostId(host), generation, counter);
        prop_assert_eq!(id.host(), HostId(host));
        prop_assert_eq!(format!("{id:?}"), format!("r{host}.{generation}.{counter}"));
    }
}

/// PROTOCOL 2.11: a READ of no bytes takes one PSN as well.
#[test]
fn a_message_takes_a_packet_per_pmtu_and_at_least_one() {
    let cases = [(0, 1), (1, 1), (1024, 1), (1025, 2), (4096, 4), (1 << 31, 1 << 21), (u32::MAX, 1 << 22)];
    for (len, packets) in cases {
        assert_eq!(Pmtu::B1024.packets(len), packets, "{len} bytes");
    }
}

#[test]
fn only_five_path_mtus_exist() {
    let sizes: Vec<usize> = (0..=8192).filter(|&n| Pmtu::from_bytes(n).is_some()).collect();
    assert_eq!(sizes, [256, 512, 1024, 2048, 4096]);
    assert!(sizes.into_iter().all(|n| Pmtu::from_bytes(n).unwrap().bytes() == n));
}

#[test]
fn more_permission_includes_less() {
    let classes = [Perm::None, Perm::Read, Perm::ReadWrite];
    for (n, class) in classes.into_iter().enumerate() {
        for (m, wanted) in classes.into_iter().enumerate() {
            assert_eq!(class.allows(wanted), n >= m, "{class:?} for {wanted:?}");
        }
        assert_eq!(Perm::from_bits(class as u8), Some(class));
    }
    assert!((3..=u8::MAX).all(|bits| Perm::from_bits(bits).is_none()));
}

#[test]
fn addresses_do_not_wrap() {
    assert_eq!(VirtAddr(u64::MAX - 1).checked_add(1), Some(VirtAddr(u64::MAX)));
    assert_eq!(VirtAddr(u64::MAX).checked_add(1), None);
    assert!(VirtAddr::NULL.is_null() && !VirtAddr(1).is_null());
}
