//! Advice for parts of an object: each page is prefetched by the latest advice for it (PROTOCOL 17.4).

use farmem_dpu::{
    ADVISED_MAX, Action, Asker, Caching, Config, Dpu, Neighbours, Nothing, Object, PageId, Read, TableConfig,
};
use farmem_machine::{Instant, Rng};
use std::num::NonZeroU32;
use std::ops::Range;

const PAGE: u32 = 4096;
const PAGES: u64 = 256;
const ENTRY: u32 = 4;
const OBJECT: u32 = 7;

/// Creates a DPU with one object, for which nothing is prefetched without advice.
fn dpu() -> Dpu {
    let number = |number| NonZeroU32::new(number).unwrap();
    let table = TableConfig { slots: number(128), entry_pages: ENTRY };
    let mut dpu = Dpu::new(
        Config { page_len: number(PAGE), table, prefetches_max: 1000, ..Config::new(Caching::Dynamic) },
        Rng::from_number(1),
    );
    let bytes = PAGES * u64::from(PAGE);
    dpu.open(OBJECT, Object { bytes, writer: None, policy: Box::new(Nothing) });
    dpu
}

/// Returns the first pages of the loads that a request for a page begins.
fn beside(dpu: &mut Dpu, ticket: u64, page: u64) -> Vec<u64> {
    let mut out = Vec::new();
    let page = PageId { object: OBJECT, page };
    dpu.read(Instant::ZERO, Read { ticket, asker: Asker(1), page, bytes: PAGE, granted: true }, &mut out);
    let mut loads = Vec::new();
    for action in out {
        match action {
            Action::Read { op, .. } => dpu.fetched(Instant::ZERO, op, Ok(()), &mut Vec::new()),
            Action::Load { op, first, .. } => {
                loads.push(first.page);
                dpu.fetched(Instant::ZERO, op, Ok(()), &mut Vec::new());
            }
            other => panic!("{other:?} of a page that was never asked for"),
        }
    }
    dpu.check();
    loads
}

/// Pages 64 to 128 are fetched with their neighbours, except for 96 to 100, and all others alone. Advice for
/// the whole object withdraws all of it.
#[test]
fn the_latest_advice_for_a_page_counts() {
    let mut dpu = dpu();
    assert!(dpu.advise(OBJECT, 64..128, Box::new(Neighbours)));
    assert!(dpu.advise(OBJECT, 96..100, Box::new(Nothing)));
    for (ticket, (page, expected)) in
        [(0, [].as_slice()), (64, &[65]), (97, &[]), (101, &[100, 102]), (127, &[124]), (128, &[])]
            .into_iter()
            .enumerate()
    {
        assert_eq!(beside(&mut dpu, ticket as u64, page), expected, "page {page}");
    }
    assert!(dpu.advise(OBJECT, 0..PAGES, Box::new(Neighbours)));
    assert_eq!(beside(&mut dpu, 10, 5), [4, 6]);
    assert_eq!(beside(&mut dpu, 11, 96), [98], "97 was asked for lately");
    assert!(dpu.set_policy(OBJECT, Box::new(Nothing)));
    assert_eq!(beside(&mut dpu, 12, 70), []);
}

/// Invalid pages, unknown objects, and one range beyond the limit are refused without effect; a range that
/// covers others makes room.
#[test]
fn advice_has_a_bound() {
    let mut dpu = dpu();
    let mut advise = |number, pages: Range<u64>| dpu.advise(number, pages, Box::new(Neighbours));
    assert!(!advise(OBJECT, 5..5));
    assert!(!advise(OBJECT, 5..PAGES + 1));
    assert!(!advise(OBJECT + 1, 0..1));
    for range in 0..ADVISED_MAX as u64 {
        assert!(advise(OBJECT, range..range + 1));
        assert!(advise(OBJECT, range..range + 1), "it takes the place of the same range");
    }
    assert!(!advise(OBJECT, 200..201));
    assert!(advise(OBJECT, 0..40));
    assert!(advise(OBJECT, 200..201));
    assert_eq!(beside(&mut dpu, 1, 200), [201]);
    assert_eq!(beside(&mut dpu, 2, 204), []);
}
