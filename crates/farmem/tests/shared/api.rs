//! Byte-addressable far memory for a program's threads through a DPU process (PD3 6.1).

use super::dpu::{DPU, client, rack};
use super::rig::DOMAIN;
use farmem::Error;
use farmem::dpu::api::{ApiOptions, Carried, LEN_MAX, MemoryApi, SLOTS};
use farmem::{Client, Rng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const THREADS: u16 = 4;
/// Bytes of each thread's region.
const OWN: u64 = 256 << 10;

fn api(client: &Client) -> MemoryApi {
    MemoryApi::connect(client, ApiOptions { threads: THREADS + 1, ring: 1 << 16 }).unwrap()
}

/// Threads write and read ranges of any length and position, several at once, and each reads what it wrote
/// last. A DPU without a cache moves the bytes of each request once and copies none (PROTOCOL 18.28). Then
/// the memory is freed.
#[test]
fn threads_read_what_they_wrote() {
    for transport in ["shm", "udp"] {
        let rack = rack(transport, &format!("{DPU}caching = \"off\"\n"));
        let mut client = client(&rack, DOMAIN);
        let api = api(&client);
        let region = api.allocate(&mut client, OWN * u64::from(THREADS)).unwrap();
        let asked = AtomicU64::new(0);
        thread::scope(|threads| {
            for number in 0..u64::from(THREADS) {
                let (api, asked) = (&api, &asked);
                threads.spawn(move || {
                    let mut own = api.thread().unwrap();
                    let (mut rng, mut truth) =
                        (Rng::from_number(number), vec![0; usize::try_from(OWN).unwrap()]);
                    let mut buf = vec![0; LEN_MAX];
                    for round in 0..150_u32 {
                        let many = if round % 10 == 0 { 100_000 } else { 600 };
                        let mut range = || {
                            let from =
                                usize::try_from(rng.below(u32::try_from(OWN).unwrap() - many)).unwrap();
                            from..from + 1 + usize::try_from(rng.below(many)).unwrap()
                        };
                        let (written, read) = (range(), range());
                        let fill = u8::try_from(round % 251 + 1).unwrap();
                        truth[written.clone()].fill(fill);
                        let base = number * OWN;
                        let at = base + written.start as u64;
                        let pending = own.write(region, at, &truth[written.clone()]).unwrap();
                        own.wait(pending, &mut []).unwrap();
                        let first = own.read(region, base + read.start as u64, read.len()).unwrap();
                        own.wait(first, &mut buf[..read.len()]).unwrap();
                        assert!(buf[..read.len()] == truth[read.clone()], "thread {number}, round {round}");
                        asked.fetch_add(2, Ordering::Relaxed);
                    }
                    // Several at once, answered in any order.
                    let each: Vec<_> =
                        (0..usize::from(SLOTS) / 2).map(|n| n * 1000..n * 1000 + 900).collect();
                    let pending: Vec<_> = each
                        .iter()
                        .map(|range| {
                            own.read(region, number * OWN + range.start as u64, range.len()).unwrap()
                        })
                        .collect();
                    for (range, pending) in each.iter().zip(pending).rev() {
                        own.wait(pending, &mut buf[..900]).unwrap();
                        assert!(buf[..900] == truth[range.clone()]);
                    }
                });
            }
        });
        let Carried { requests, moves, copies, .. } = api.carried().unwrap();
        assert!(requests >= asked.load(Ordering::Relaxed) + u64::from(THREADS * SLOTS / 2));
        assert_eq!((moves, copies), (requests, 0));
        let mut own = api.thread().unwrap();
        let mut buf = [0; 16];
        assert!(matches!(own.read(region, region.vma.size - 8, 16), Err(Error::OutOfBounds { .. })));
        assert!(matches!(own.read(region, 0, 0), Err(Error::Empty { .. })));
        assert!(matches!(own.read(region, 0, LEN_MAX + 1), Err(Error::TooLong { .. })));
        let pending: Vec<_> = (0..SLOTS).map(|n| own.read(region, u64::from(n), 1).unwrap()).collect();
        assert!(matches!(own.read(region, 0, 1), Err(Error::QueueFull)));
        pending.into_iter().for_each(|pending| own.wait(pending, &mut buf[..1]).unwrap());
        api.deallocate(&mut client, region).unwrap();
        let pending = own.write(region, 0, b"late").unwrap();
        let refused = own.wait(pending, &mut []);
        assert!(matches!(refused, Err(Error::NotMapped { .. })), "{refused:?}");
        // The region is no allocation any more, and a new allocation at its addresses can be opened at the
        // DPU.
        assert!(matches!(client.read(region.vma.base, &mut buf), Err(Error::NotMapped { .. })));
        let next = api.allocate(&mut client, OWN * u64::from(THREADS)).unwrap();
        let pending = own.write(next, 0, b"next").unwrap();
        own.wait(pending, &mut []).unwrap();
    }
}

/// The DPU is killed or stopped while threads have requests in flight. Each thread gets an error, nothing
/// waits for ever, and once the DPU is fenced a client finds all acknowledged bytes.
#[test]
fn a_dpu_that_dies_is_told() {
    for signal in ["KILL", "STOP"] {
        let rack = rack("shm", DPU);
        let mut client = client(&rack, DOMAIN);
        let api = api(&client);
        let region = api.allocate(&mut client, OWN * u64::from(THREADS)).unwrap();
        let mut idle = api.thread().unwrap();
        let acknowledged: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|threads| {
            for (number, acknowledged) in (0_u64..).zip(&acknowledged) {
                let api = &api;
                threads.spawn(move || {
                    let mut own = api.thread().unwrap();
                    for n in 1_u64.. {
                        let pending = match own.write(region, number * OWN + n % 512 * 8, &n.to_le_bytes()) {
                            Ok(pending) => pending,
                            Err(error) => {
                                assert!(matches!(error, Error::Interrupted), "{error}");
                                break;
                            }
                        };
                        match own.wait(pending, &mut []) {
                            Ok(()) => acknowledged.store(n, Ordering::Release),
                            Err(error) => {
                                assert!(matches!(error, Error::Interrupted), "{error}");
                                break;
                            }
                        }
                    }
                });
            }
            while acknowledged.iter().any(|count| count.load(Ordering::Acquire) < 20) {
                thread::yield_now();
            }
            rack.send("dpu", signal);
        });
        assert!(!api.is_served());
        let refused = idle.read(region, 0, 8);
        assert!(
            matches!(refused, Err(Error::Interrupted)),
            "one that asked for nothing is told too: {refused:?}"
        );
        api.fence(&mut client).unwrap();
        for (number, acknowledged) in (0_u64..).zip(&acknowledged) {
            let last = acknowledged.load(Ordering::Acquire);
            let mut word = [0; 8];
            let at = region.vma.base.0 + number * OWN + last % 512 * 8;
            client.read(farmem::VirtAddr(at), &mut word).unwrap();
            assert_eq!(u64::from_le_bytes(word), last, "{signal}: thread {number}");
        }
    }
}
