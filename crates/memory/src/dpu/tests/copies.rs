//! How often the DPU moves and copies bytes of requests of a program's threads (PROTOCOL 18.28).

use super::{PAGE, place, record, with_threads};
use crate::dpu::threads::head_of;
use crate::dpu::words::Carried;
use farmem_wire::pd3::{Head, Id, Request};

/// Threads read pages one after the other, and write them: each request's bytes are moved once. Those of reads that far memory answers and of writes to pages that nobody keeps are copied nowhere else;
/// what comes out of the cache was copied into it, and what is written to a page in it is copied there, and each of that is counted.
#[test]
fn bytes_are_copied_only_where_they_are_kept() {
    with_threads(|bench, carrier, sender| {
        let (mut n, mut carried, mut hits) = (0, Carried::NOTHING, 0);
        // What each page has in all its bytes: its number at first.
        let mut truth: [u8; 16] = std::array::from_fn(|page| u8::try_from(page).unwrap());
        let mut ask = |bench: &mut super::Bench, carrier: &mut super::Carrier<'_>, write: bool, page: u32| {
            let (id, place) = (Id::new(n), place(1, page * PAGE, PAGE));
            let data = [100 + u8::try_from(n).unwrap(); PAGE as usize];
            let request =
                if write { Request::Write { id, place, data: &data } } else { Request::Read { id, place } };
            bench.process.set_word(0, 0);
            assert!(sender.push(&record(0, request)).unwrap());
            bench.serve(carrier);
            let head = head_of(bench.process.word(0)).unwrap().unwrap();
            let done = if write { Head::Written { id, size: PAGE } } else { Head::Read { id, size: PAGE } };
            assert_eq!(head, done);
            n += 1;
            let now = bench.visitor.carried();
            assert_eq!((now.requests, now.moves), (u64::from(n), u64::from(n)), "each is moved once");
            let copied = now.copies - carried.copies;
            let hit = carrier.memory().stats().hits - hits;
            (carried, hits) = (now, carrier.memory().stats().hits);
            if write {
                truth[page as usize] = data[0];
            } else {
                assert_eq!(copied, hit, "read {n} of page {page}");
                let mut bytes = [0; PAGE as usize];
                bench.process.take(8, &mut bytes);
                assert!(bytes == [truth[page as usize]; PAGE as usize], "read {n} of page {page}");
            }
            copied
        };
        let first: u64 = (0..4).map(|page| ask(bench, carrier, true, page)).sum();
        assert_eq!(first, 0, "nothing is kept yet");
        let read: u64 = (0..3).flat_map(|_| 0..16).map(|page| ask(bench, carrier, false, page)).sum();
        assert!(read > 0, "pages of a sequence are kept");
        let written: u64 = (0..16).map(|page| ask(bench, carrier, true, page)).sum();
        assert!(written > 0, "so are those that were read last");
        assert!((0..16).map(|page| ask(bench, carrier, false, page)).sum::<u64>() > 0);
    });
}
