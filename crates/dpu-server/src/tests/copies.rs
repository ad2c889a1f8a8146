//! Tests of the counts of moves and copies: requests of a program's threads (PROTOCOL 18.28), and of a window (SODA
//! IV-B).

use super::{Ended, PAGE, Registered, memory_file, place, record, span, with_bench, with_threads};
use crate::messages::Carried;
use crate::threads::head_of;
use farmem_wire::Rkey;
use farmem_wire::pd3::{Head, Id, Request};
use farmem_wire::soda::{self, Dest};
use std::os::unix::fs::FileExt as _;

/// Threads read and write pages one after the other. Each request's bytes are moved once. Uncached reads and writes
/// are not copied. A hit counts the copy into the cache, and a write to a cached page counts the copy into its slot.
#[test]
fn only_cached_bytes_are_copied() {
    with_threads(|bench, carrier, sender| {
        let (mut n, mut carried, mut hits) = (0, Carried::NOTHING, 0);
        // The byte that fills each page; at first the page's number.
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
            let now = bench.dpu_client.carried();
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

/// A window reads pages and writes them back. Each page's bytes are moved once, between the link's buffer and the
/// window's file. A page is copied only if it was read ahead into the cache (PROTOCOL 17.20).
#[test]
fn pages_of_a_window_are_moved_once_and_not_copied() {
    with_bench(|bench, carrier| {
        let (memory, page) = (memory_file(32 * PAGE as usize), u64::from(PAGE));
        let registered = Registered::of(memory.try_clone().unwrap().into(), 1 << 20).unwrap();
        assert!(bench.dpu_client.register(2, registered));
        let (mut carried, mut calls) = (Carried::NOTHING, Vec::new());
        let mut ask = |bench: &mut super::Bench, carrier: &mut super::Carrier<'_>, request| {
            let hits = carrier.memory().stats().hits;
            assert!(matches!(bench.ask(carrier, &[request])[..], [(.., Ended::Done, _)]), "{request:?}");
            let now = bench.dpu_client.carried();
            assert_eq!((now.requests, now.moves), (carried.requests + 1, carried.moves + 1));
            calls.push(now.calls - carried.calls);
            let copied = now.copies - carried.copies;
            carried = now;
            (copied, carrier.memory().stats().hits - hits)
        };
        // Pages of a granted allocation are never cached: each comes from far memory.
        bench.dpu_client.regions.get_mut(&2).unwrap().granted = false;
        for at in 0..16 {
            let dest = Dest::Write { addr: at * page, rkey: Rkey(2) };
            let read = soda::Request::Read { span: span(2, at * page, PAGE), dest };
            assert_eq!(ask(bench, carrier, read), (0, 0), "page {at}");
        }
        let mut bytes = vec![0; 16 * PAGE as usize];
        memory.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.chunks(PAGE as usize).zip(0..).all(|(page, at)| page.iter().all(|&byte| byte == at)));
        for at in 0..16 {
            let from =
                soda::Request::WriteFrom { span: span(1, at * page, PAGE), addr: at * page, rkey: Rkey(2) };
            assert_eq!(ask(bench, carrier, from), (0, 0), "page {at}");
        }
        // Behind the rings, where a window has no pages.
        let behind = soda::Request::Read {
            span: span(1, 3 * page, PAGE),
            dest: Dest::Write { addr: 64, rkey: Rkey(1) },
        };
        assert_eq!(ask(bench, carrier, behind), (0, 0));
        let mut behind = [0; PAGE as usize];
        bench.process.take(64, &mut behind);
        assert_eq!(behind, [3; PAGE as usize]);
        bench.dpu_client.regions.get_mut(&2).unwrap().granted = true;
        let mut all = 0;
        for at in (0..16).cycle().take(48) {
            let dest = Dest::Write { addr: (16 + at) * page, rkey: Rkey(2) };
            let read = soda::Request::Read { span: span(2, at * page, PAGE), dest };
            let (copied, hits) = ask(bench, carrier, read);
            assert_eq!(copied, hits, "page {at}");
            all += hits;
        }
        assert!(all > 0, "pages of a sequence are read ahead");
        let by_call = [vec![1; 32], vec![0], vec![1; 48]].concat();
        assert_eq!(calls, by_call, "one call of the system each, and none behind the rings");
        memory.read_exact_at(&mut bytes, 16 * page).unwrap();
        assert!(bytes.chunks(PAGE as usize).zip(0..).all(|(page, at)| page.iter().all(|&byte| byte == at)));
    });
}
