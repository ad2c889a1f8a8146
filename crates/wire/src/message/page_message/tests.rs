use super::*;
use crate::message::{PAGE_LEN, REGION_ORDER_MAX};
use alloc::vec;
use proptest::prelude::*;

static BYTES: [u8; PAGE_LEN] = [0x5a; PAGE_LEN];

fn page_of() -> impl Strategy<Value = Page> {
    any::<u64>().prop_map(|addr| Page::of(VirtAddr(addr)))
}

fn access() -> impl Strategy<Value = Access> {
    prop::sample::select(vec![Access::Shared, Access::Modified])
}

fn part_of() -> impl Strategy<Value = Part> {
    (0..5_u32, any::<u8>()).prop_map(|(log2, index)| Part { index: index % (1 << log2), count: 1 << log2 })
}

fn ack_around(page: Page) -> impl Strategy<Value = RecallAck> {
    (0..=REGION_ORDER_MAX, any::<(u64, u16)>()).prop_map(move |(order, (seq, false_invalidations))| {
        RecallAck { region: Region::around(page, order), seq: Seq(seq), false_invalidations }
    })
}

fn written_pages() -> impl Strategy<Value = (Page, Option<RecallAck>)> {
    page_of().prop_flat_map(|page| (Just(page), prop::option::of(ack_around(page))))
}

fn bodies() -> impl Strategy<Value = PageBody<'static>> {
    let id = || any::<u64>().prop_map(FetchId);
    let seq = || any::<u64>().prop_map(Seq);
    let flags = any::<[bool; 3]>;
    prop_oneof![
        (page_of(), access(), id()).prop_map(|(page, access, id)| PageBody::Get(Get { page, access, id })),
        (page_of(), access(), id(), seq(), any::<[bool; 4]>()).prop_map(
            |(page, access, id, seq, [clean, behind, granted, done_due])| {
                let host = HostId(9);
                PageBody::Read(Read { page, access, host, id, seq, clean, behind, granted, done_due })
            }
        ),
        (page_of(), access(), id(), seq(), flags(), part_of()).prop_map(
            |(page, access, id, seq, [granted, done_due, lost], part)| {
                let bytes = if lost { &[][..] } else { &BYTES[part.range()] };
                PageBody::Data(Data { page, access, id, seq, granted, done_due, lost, part }, bytes)
            }
        ),
        (page_of(), id(), seq()).prop_map(|(page, id, seq)| PageBody::Grant(Grant { page, id, seq })),
        (page_of(), seq()).prop_map(|(page, seq)| PageBody::Done(Done { page, seq })),
        (
            page_of(),
            0..=REGION_ORDER_MAX,
            seq(),
            any::<([u64; 4], bool)>(),
            any::<prop::option::Probability>()
        )
            .prop_map(|(page, order, seq, (to, keep), _)| {
                let region = Region::around(page, order);
                let wanted = keep.then(|| region.index(page));
                PageBody::Recall(HostSet::from_words(to), Recall { region, seq, keep, wanted })
            }),
        page_of().prop_flat_map(ack_around).prop_map(PageBody::RecallAck),
        (written_pages(), seq(), part_of()).prop_map(|((page, ack), grant, part)| {
            PageBody::WriteBack(WriteBack { page, grant, ack }, part, &BYTES[part.range()])
        }),
        (written_pages(), seq()).prop_map(|((page, ack), grant)| PageBody::WriteBackAck(WriteBackAck {
            page,
            grant,
            ack
        })),
        (page_of(), id(), 0..15_u8).prop_map(|(page, id, status)| {
            PageBody::Refusal(Refusal { page, id, status: Status::from_bits(status).unwrap() })
        }),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(body in bodies(), domain: u32) {
        let message = PageMessage { domain: Domain(domain), origin: HostId(9), body };
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        prop_assert_eq!(bytes.len(), message.len());
        prop_assert!(PageMessage::is(&bytes));
        prop_assert_eq!(PageMessage::parse(&bytes), Ok(message));
    }

    /// With one bit flipped or cut, the bytes parse as another message with the same encoding, or not at all.
    #[test]
    fn what_is_read_is_written(body in bodies(), at: prop::sample::Index, bit in 0..8, cut: prop::sample::Index) {
        let message = PageMessage { domain: Domain(7), origin: HostId(9), body };
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        prop_assert!(PageMessage::parse(&bytes[..cut.index(bytes.len())]).is_err(), "cut short");
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        if let Ok(other) = PageMessage::parse(&bytes) {
            let mut again = Vec::new();
            other.emit(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in FIRST_KIND..=LAST_KIND) {
        let mut bytes = bytes;
        let _ = PageMessage::parse(&bytes);
        if let [version, place, ..] = &mut bytes[..] {
            (*version, *place) = (VERSION, kind);
            let _ = PageMessage::parse(&bytes);
        }
    }
}

/// Offsets of the hosts of a Recall: four words, the lowest bit of the first is host 0's (PROTOCOL 12.37).
#[test]
fn a_recall_has_its_hosts_in_four_words() {
    let region = Region::around(Page::of(VirtAddr(0x10_0000)), 2);
    let hosts = [1, 63, 64, 130, 255].map(HostId).into_iter().fold(HostSet::EMPTY, HostSet::with);
    let recall = Recall { region, seq: Seq(11), keep: true, wanted: Some(2) };
    let message = PageMessage { domain: Domain(7), origin: HostId(9), body: PageBody::Recall(hosts, recall) };
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    let words = [0x10_0000, 11, 1 << 63 | 2, 1, 4, 1 << 63].map(u64::to_be_bytes).concat();
    assert_eq!(bytes[Header::LEN..], [&words[..], &[0, 2, 2, 1]].concat());
}

/// A page in one datagram fits an Ethernet of 4200 bytes: IP, UDP, BTH, DETH, header, body, page, ICRC.
#[test]
fn a_whole_page_fits_one_datagram() {
    let write_back = WriteBack { page: Page::of(VirtAddr(0x1000)), grant: Seq(1), ack: None };
    let body = PageBody::WriteBack(write_back, Part::WHOLE, &BYTES);
    let message = PageMessage { domain: Domain(1), origin: HostId(1), body };
    assert_eq!(20 + 8 + crate::bth::LEN + crate::Deth::LEN + message.len() + 4, 4200);
}

/// The parts cover a page exactly, whatever the path MTU.
#[test]
fn parts_cover_a_page_once() {
    for bytes in [256, 512, 1024, 2048, 4096] {
        let mut end = 0;
        for part in Part::all(bytes) {
            assert_eq!(part.range().start, end);
            assert_eq!(part.range().len(), bytes);
            end = part.range().end;
        }
        assert_eq!(end, PAGE_LEN);
    }
}
