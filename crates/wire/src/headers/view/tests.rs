use super::*;
use crate::headers::{self, DMA_LEN_MAX, Nak};
use alloc::vec::Vec;
use proptest::prelude::*;

/// PROTOCOL 2.4, byte by byte: every field of every header has its own value here.
#[test]
fn fields_stand_where_the_protocol_says() {
    let bytes: [u8; 32] = core::array::from_fn(|n| u8::try_from(n).unwrap());
    let reth = Reth::new_checked(&bytes).unwrap();
    assert_eq!(
        (reth.va().0, reth.rkey().0, reth.dma_len()),
        (0x0001_0203_0405_0607, 0x0809_0a0b, 0x0c0d_0e0f)
    );
    let atomic = AtomicEth::new_checked(&bytes).unwrap();
    assert_eq!((atomic.va().0, atomic.rkey().0), (0x0001_0203_0405_0607, 0x0809_0a0b));
    assert_eq!((atomic.swap_or_add(), atomic.compare()), (0x0c0d_0e0f_1011_1213, 0x1415_1617_1819_1a1b));
    let aeth = Aeth::new_checked(&bytes).unwrap();
    assert_eq!((aeth.syndrome(), aeth.msn().get()), (Ok(Syndrome::Ack), 0x01_0203));
    let mut bytes = bytes;
    bytes[4] = 0;
    let deth = Deth::new_checked(&bytes).unwrap();
    assert_eq!((deth.qkey().0, deth.src_qp().get()), (0x0001_0203, 0x05_0607));
}

#[test]
fn every_shorter_header_is_refused() {
    let bytes = [0; 28];
    for have in 0..28 {
        let short = |what, need| Err(WireError::Short { what, need, have });
        assert_eq!(
            Reth::new_checked(&bytes[..have]).map(drop),
            if have < 16 { short("RETH", 16) } else { Ok(()) }
        );
        assert_eq!(AtomicEth::new_checked(&bytes[..have]).map(drop), short("AtomicETH", 28));
        assert_eq!(
            Aeth::new_checked(&bytes[..have]).map(drop),
            if have < 4 { short("AETH", 4) } else { Ok(()) }
        );
        assert_eq!(
            Deth::new_checked(&bytes[..have]).map(drop),
            if have < 8 { short("DETH", 8) } else { Ok(()) }
        );
    }
}

/// PROTOCOL 2.4: a message has at most 2^31 bytes.
#[test]
fn a_longer_dma_length_is_refused() {
    let mut view = Reth([0; 16]);
    for (dma_len, good) in [(0, true), (DMA_LEN_MAX, true), (DMA_LEN_MAX + 1, false), (u32::MAX, false)] {
        view.set_dma_len(dma_len);
        assert_eq!(Reth::new_checked(view.0).is_ok(), good, "{dma_len:#x}");
    }
}

/// PROTOCOL 2.4.
#[test]
fn each_bit_of_the_reserved_byte_of_a_deth_is_refused() {
    for bit in 0..8 {
        let mut bytes = [0; 8];
        bytes[4] = 1 << bit;
        assert_eq!(Deth::new_checked(bytes).map(drop), Err(WireError::Reserved { what: "DETH.reserved8" }));
    }
}

/// PROTOCOL 2.5, all 256 syndromes.
#[test]
fn each_syndrome_is_an_ack_an_rnr_a_nak_or_refused() {
    for bits in 0..=u8::MAX {
        let expected = match bits {
            0x00..=0x1f => Ok(Syndrome::Ack),
            0x20..=0x3f => Ok(Syndrome::Rnr(bits - 0x20)),
            0x60 => Ok(Syndrome::Nak(Nak::PsnSequence)),
            0x61 => Ok(Syndrome::Nak(Nak::InvalidRequest)),
            0x62 => Ok(Syndrome::Nak(Nak::RemoteAccess)),
            0x63 => Ok(Syndrome::Nak(Nak::RemoteOperational)),
            _ => Err(WireError::Unknown { what: "AETH.Syndrome", value: u64::from(bits) }),
        };
        assert_eq!(Aeth::new_checked([bits, 0, 0, 0]).unwrap().syndrome(), expected);
        if let Ok(syndrome) = expected {
            let sent = if syndrome == Syndrome::Ack { 0x1f } else { bits };
            assert_eq!(syndrome.bits(), sent, "{bits:#04x}");
        }
    }
}

#[test]
#[should_panic(expected = "2^31 bytes")]
fn emitting_a_longer_dma_length_is_a_broken_invariant() {
    headers::Reth { va: VirtAddr(0), rkey: Rkey(0), dma_len: DMA_LEN_MAX + 1 }.emit(&mut Vec::new());
}

fn emitted(emit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    emit(&mut out);
    out
}

proptest! {
    /// View and value read the same from any bytes, and refuse the same.
    #[test]
    fn view_and_value_agree(bytes in any::<[u8; 28]>()) {
        use crate::reader::Reader;
        let reader = || Reader::new("test", &bytes);
        let reth = Reth::new_checked(&bytes).map(|v| (v.va(), v.rkey(), v.dma_len()));
        prop_assert_eq!(headers::Reth::read(&mut reader()).map(|h| (h.va, h.rkey, h.dma_len)), reth);
        let atomic = AtomicEth::new_checked(&bytes).map(|v| (v.va(), v.rkey(), v.swap_or_add(), v.compare()));
        let value = headers::AtomicEth::read(&mut reader()).map(|h| (h.va, h.rkey, h.swap_or_add, h.compare));
        prop_assert_eq!(value, atomic);
        let aeth = Aeth::new_checked(&bytes).and_then(|v| Ok((v.syndrome()?, v.msn())));
        prop_assert_eq!(headers::Aeth::read(&mut reader()).map(|h| (h.syndrome, h.msn)), aeth);
        let deth = Deth::new_checked(&bytes).map(|v| (v.qkey(), v.src_qp()));
        prop_assert_eq!(headers::Deth::read(&mut reader()).map(|h| (h.qkey, h.src_qp)), deth);
    }

    /// A rewriting switch: every field set in place gives the bytes of the value with these fields, and touches no other.
    #[test]
    fn setting_every_field_gives_the_emitted_bytes(
        mut bytes in any::<[u8; 32]>(), va: u64, rkey: u32, dma_len in 0..=DMA_LEN_MAX, swap_or_add: u64, compare: u64, small: u32,
    ) {
        let (va, rkey, behind) = (VirtAddr(va), Rkey(rkey), bytes);
        bytes[12] = 0;
        let mut view = Reth::new_checked(&mut bytes[..]).unwrap();
        view.set_va(va);
        view.set_rkey(rkey);
        view.set_dma_len(dma_len);
        prop_assert_eq!(&bytes[..16], emitted(|out| headers::Reth { va, rkey, dma_len }.emit(out)));
        let mut view = AtomicEth::new_checked(&mut bytes[..]).unwrap();
        view.set_va(va);
        view.set_rkey(rkey);
        view.set_swap_or_add(swap_or_add);
        view.set_compare(compare);
        prop_assert_eq!(&bytes[..28], emitted(|out| headers::AtomicEth { va, rkey, swap_or_add, compare }.emit(out)));
        prop_assert_eq!(&bytes[28..], &behind[28..]);
        let (syndrome, msn) = (Syndrome::Rnr(small.to_be_bytes()[0] & 0x1f), Psn::new(small));
        let mut view = Aeth::new_checked(&mut bytes[..]).unwrap();
        view.set_syndrome(syndrome);
        view.set_msn(msn);
        prop_assert_eq!(&bytes[..4], emitted(|out| headers::Aeth { syndrome, msn }.emit(out)));
        let (qkey, src_qp) = (Qkey(rkey.0), Qpn::new(small));
        bytes[4] = 0;
        let mut view = Deth::new_checked(&mut bytes[..]).unwrap();
        view.set_qkey(qkey);
        view.set_src_qp(src_qp);
        prop_assert_eq!(&bytes[..8], emitted(|out| headers::Deth { qkey, src_qp }.emit(out)));
    }
}
