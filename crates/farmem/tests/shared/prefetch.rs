//! Preventive prefetching between threads of a program, on a rack of real processes.

use super::dpu::client;
use super::rig::{DOMAIN, TestRack};
use farmem::prefetch::parse::records::{Header, Records, Request};
use farmem::prefetch::tap::tap;
use farmem::prefetch::{
    Change, Config, Copy, Driver, FLOORS, HostKeys, KeySecret, KeysConfig, Reporter, SharedZone, Taker,
    ZoneSize,
};
use farmem::{PageStore, Rng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const SECRET: KeySecret = KeySecret([17, 4791]);

/// The page server: threads take pages while the driver fetches them and a writer replaces some. No page is
/// torn or older than the last change acknowledged before the request.
#[test]
fn threads_take_whole_pages_beside_a_writer() {
    const PAGES: u64 = 64;
    const EACH: u64 = 1_500;
    let rack = TestRack::start("shm", 2);
    let mut client = client(&rack, DOMAIN);
    let store = PageStore::create(&mut client, PAGES).unwrap();
    let fill = |page: u64, version: u64, bytes: &mut [u8]| {
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&(page << 32 | version).to_le_bytes());
        }
    };
    store.load(&mut client, 1, |page, bytes| fill(page, 1, bytes)).unwrap();
    let (tap, watch) = tap(1 << 20, SECRET);
    let beside = Reporter::new(tap.clone(), SECRET, FLOORS, Change(1));
    let (zone, reader) = SharedZone::make(ZoneSize { items: 128, data: 1 << 20 }).unwrap();
    let view = HostKeys::new(KeysConfig::new(1_000)).unwrap();
    let config = Config { keeps: false, ..Config::DEFAULT };
    let done = AtomicU64::new(0);
    let latest: Vec<AtomicU64> = (0..PAGES).map(|_| 1.into()).collect();
    let order = Ordering::SeqCst;
    let taken = thread::scope(|threads| {
        let (rack, store, tap, latest, done) = (&rack, &store, &tap, &latest, &done);
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let (beside, reader) = (beside.clone(), reader.clone());
                threads.spawn(move || {
                    let mut client = self::client(rack, DOMAIN);
                    let mut taker = Taker::new(&reader, &beside);
                    let connection = tap.connection(Box::new(Records::pages())).unwrap();
                    let (mut rng, mut page_bytes) = (Rng::from_number(seed), Vec::new());
                    // On a busy machine the driver may pause: the loop continues until a page was taken,
                    // within a bound.
                    for asked in 0..100 * EACH {
                        if asked >= EACH && taker.found().taken > 0 {
                            break;
                        }
                        let page = u64::from(rng.below(u32::try_from(PAGES).unwrap()));
                        let key = page.to_be_bytes();
                        let header = Header { request: Request::Read, key_len: 8, value_len: 0 }.emit();
                        let position = connection.received(&[&header[..], &key].concat());
                        thread::yield_now();
                        let least = latest[usize::try_from(page).unwrap()].load(order);
                        if taker.take(&key, &mut page_bytes).is_none() {
                            beside.asks(&key);
                            let found = store.read(&mut client, page, &mut page_bytes).unwrap();
                            beside.reads(&key, found.is_some());
                        }
                        let word = u64::from_le_bytes(page_bytes[..8].try_into().unwrap());
                        assert_eq!((page_bytes.len(), word >> 32), (4096, page));
                        assert!(page_bytes.chunks_exact(8).all(|one| one == word.to_le_bytes()), "torn");
                        assert!(word & 0xffff_ffff >= least, "page {page} is {word:x}, older than {least}");
                        tap.executed(position);
                    }
                    done.fetch_add(1, order);
                    taker.found().taken
                })
            })
            .collect();
        let beside = &beside;
        threads.spawn(move || {
            let mut writer = self::client(rack, DOMAIN);
            let (mut rng, mut bytes) = (Rng::from_number(9), vec![0; 4096]);
            while done.load(order) < 2 {
                let page = u64::from(rng.below(u32::try_from(PAGES).unwrap()));
                let change = beside.change(&page.to_be_bytes(), Copy::Dropped);
                fill(page, change.0, &mut bytes);
                store.write(&mut writer, page, change.0, &bytes).unwrap();
                beside.acknowledged(change);
                latest[usize::try_from(page).unwrap()].store(change.0, order);
                thread::sleep(Duration::from_micros(50));
            }
        });
        threads.spawn(move || {
            let parts = (watch, beside, Change(1));
            let mut driver =
                Driver::new(config, view, parts, self::client(rack, DOMAIN), store.clone(), zone).unwrap();
            while done.load(order) < 2 {
                if !driver.turn().unwrap() {
                    thread::yield_now();
                }
            }
        });
        readers.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
    });
    assert!(taken > 0, "no page was taken from the zone");
}
