//! A host with a page cache sees the same far memory as one without: compared with a plain array, through
//! small caches, on a rack in this process.

use farmem::hash_table::{Key, Spread};
use farmem::task::{Concurrent as _, carry_out, run_tasks};
use farmem::{
    Client, Error, FarMemory as _, HashTable, Next, Op, OpQueue, PAGE_LEN, Policy, Rack, Task, VirtAddr,
};
use farmem_bench::Paged;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGES: usize = 6;
const LEN: usize = PAGES * PAGE_LEN;

/// Far memory of a few pages on two memory nodes.
struct Fixture {
    client: Client,
    /// The pages, alternating between the memory nodes.
    pages: [VirtAddr; 2],
}

impl Fixture {
    fn new() -> Self {
        let rack = Rack::embedded_with(2, 1 << 20).unwrap();
        let mut client = rack.client("paged").unwrap();
        let nodes: Vec<_> = client.nodes().iter().map(|n| farmem::NodeId(n.node)).collect();
        let pages = [0, 1].map(|n| client.allocate_on(LEN as u64, nodes[n]).unwrap().base);
        Self { client, pages }
    }

    fn addr(&self, at: usize) -> VirtAddr {
        VirtAddr(self.pages[at / LEN].0 + (at % LEN) as u64)
    }

    /// Returns all bytes, bypassing the cache.
    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 2 * LEN];
        for (n, half) in bytes.chunks_mut(LEN).enumerate() {
            self.client.read(self.pages[n], half).unwrap();
        }
        bytes
    }
}

#[derive(Clone, Debug)]
enum Request {
    Read { at: usize, len: usize },
    Write { at: usize, bytes: Vec<u8> },
    Swap { at: usize, compare: u64, swap: u64 },
    Add { at: usize, add: u64 },
    Flush,
}

fn ask() -> impl Strategy<Value = Request> {
    let at = (0..2_usize, 0..LEN).prop_map(|(half, at)| half * LEN + at);
    let word = (0..2_usize, 0..LEN / 8).prop_map(|(half, word)| half * LEN + word * 8);
    let len = prop_oneof![0..40_usize, 4000..9000_usize];
    prop_oneof![
        (at.clone(), len.clone()).prop_map(|(at, len)| Request::Read { at, len: len.min(LEN - at % LEN) }),
        (at, len, any::<u8>()).prop_map(|(at, len, byte)| {
            Request::Write { at, bytes: vec![byte; len.min(LEN - at % LEN)] }
        }),
        (word.clone(), 0..3_u64, 0..3_u64).prop_map(|(at, compare, swap)| Request::Swap {
            at,
            compare,
            swap
        }),
        (word, 0..3_u64).prop_map(|(at, add)| Request::Add { at, add }),
        Just(Request::Flush),
    ]
}

fn word(bytes: &mut [u8], at: usize) -> &mut [u8; 8] {
    bytes[at..].first_chunk_mut().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Sequential operations through a cache of one or a few pages: each answer matches the array, and so do
    /// the bytes in far memory after a flush.
    #[test]
    fn a_cache_is_an_array(capacity in 1..5_usize, asks in prop::collection::vec(ask(), 1..60)) {
        let mut bed = Fixture::new();
        let mut model = vec![0_u8; 2 * LEN];
        let addrs = bed.pages;
        let addr = |at: usize| VirtAddr(addrs[at / LEN].0 + (at % LEN) as u64);
        let mut paged = Paged::new(bed.client, (capacity * PAGE_LEN) as u64);
        for ask in asks {
            match ask {
                Request::Read { at, len } => {
                    let mut bytes = vec![0xee; len];
                    paged.read(addr(at), &mut bytes).unwrap();
                    prop_assert_eq!(&bytes[..], &model[at..at + len]);
                }
                Request::Write { at, bytes } => {
                    paged.write(addr(at), &bytes).unwrap();
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Request::Swap { at, compare, swap } => {
                    let old = u64::from_le_bytes(*word(&mut model, at));
                    prop_assert_eq!(paged.compare_swap(addr(at), compare, swap).unwrap(), old);
                    if old == compare {
                        *word(&mut model, at) = swap.to_le_bytes();
                    }
                }
                Request::Add { at, add } => {
                    let old = u64::from_le_bytes(*word(&mut model, at));
                    prop_assert_eq!(paged.fetch_add(addr(at), add).unwrap(), old);
                    *word(&mut model, at) = old.wrapping_add(add).to_le_bytes();
                }
                Request::Flush => paged.flush().unwrap(),
            }
        }
        paged.flush().unwrap();
        bed.client = paged.into_client();
        prop_assert_eq!(bed.bytes(), model);
    }

    /// Many independent operations at once: additions to words, and reads across pages of constant bytes.
    /// Each completes once, and the words have the sums.
    #[test]
    fn overlapped_accesses_end_once_each(capacity in 1..5_usize, adds in prop::collection::vec((0..LEN / 8, 1..9_u64), 1..80)) {
        let mut bed = Fixture::new();
        let pattern: Vec<u8> = (0..LEN).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let (words, still) = (bed.pages[0], bed.pages[1]);
        bed.client.write(still, &pattern).unwrap();
        let mut paged = Paged::new(bed.client, (capacity * PAGE_LEN) as u64);
        let (mut model, mut reads) = (vec![0_u64; LEN / 8], BTreeMap::new());
        let mut outstanding = 0;
        for (n, &(at, add)) in adds.iter().enumerate() {
            model[at] += add;
            paged.submit(Op::FetchAdd { addr: VirtAddr(words.0 + at as u64 * 8), add }).unwrap();
            let from = n * 307 % (LEN - 9000);
            let buf = vec![0; 9000];
            reads.insert(paged.submit(Op::Read { addr: VirtAddr(still.0 + from as u64), buf }).unwrap(), from);
            outstanding += 2;
        }
        while let Some(completed) = paged.next_completed().unwrap() {
            outstanding -= 1;
            completed.result.unwrap();
            if let Some(from) = reads.remove(&completed.ticket) {
                prop_assert_eq!(&completed.buf[..], &pattern[from..from + 9000]);
            }
        }
        prop_assert_eq!((outstanding, reads.len()), (0, 0));
        paged.flush().unwrap();
        bed.client = paged.into_client();
        let bytes = bed.bytes();
        let words: Vec<u64> = bytes[..LEN].chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        prop_assert_eq!(words, model);
    }
}

/// Look-ups through a cache and by traversals at the memory nodes agree, for existing and missing keys.
#[test]
fn structures_are_the_same_through_it() {
    let rack = Rack::embedded_with(2, 4 << 20).unwrap();
    let mut client = rack.client("paged").unwrap();
    let mut table = HashTable::create(&mut client, 2000, 100, Spread::Scattered).unwrap();
    let entries = (0..2000_u64).map(|n| (Key::of(&n.to_le_bytes()), [n.to_le_bytes()[0]; 40]));
    table.load(&mut client, entries, &mut |_, _| {}).unwrap();
    let mut keys: Vec<Key> = (0..2500_u64).map(|n| Key::of(&n.to_le_bytes())).collect();
    keys.reverse();
    let expected: Vec<_> = keys.iter().map(|key| table.find(&mut client, *key).unwrap()).collect();
    assert_eq!(expected.iter().flatten().count(), 2000);
    let mut paged = Paged::new(client, 4 * PAGE_LEN as u64);
    for (key, expected) in keys.iter().zip(&expected) {
        let completed = carry_out(&mut paged, table.find_op(*key, Vec::new()), &Policy::Host);
        assert_eq!(HashTable::found(&completed), *expected);
    }
    let mut tickets = BTreeMap::new();
    for (n, key) in keys.iter().enumerate() {
        tickets.insert(paged.submit(table.find_op(*key, Vec::new())).unwrap(), n);
    }
    while let Some(completed) = paged.next_completed().unwrap() {
        let n = tickets.remove(&completed.ticket).expect("each ends once");
        assert_eq!(HashTable::found(&completed), expected[n]);
    }
    assert!(tickets.is_empty());
    assert_eq!(paged.counts().written_back, 0, "nothing was changed");
}

/// A look-up as a task, and its result.
struct Find<'t> {
    table: &'t HashTable,
    number: u64,
    found: Option<bool>,
}

impl Task for Find<'_> {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        if let Some(completed) = queue.take() {
            let value = HashTable::found(&completed);
            self.found = Some(value == Some([self.number.to_le_bytes()[0]; 40]));
            return Ok(Next::Done);
        }
        let buf = queue.buffer();
        queue.need(self.table.find_op(Key::of(&self.number.to_le_bytes()), buf));
        Ok(Next::Need)
    }
}

/// Many parallel tasks through a cache that always holds some of their pages, so that some end while others
/// are submitted: each gets its own completion. (Previously a slot was reused before its completion was
/// taken.)
#[test]
fn tasks_get_their_own_ends() {
    let rack = Rack::embedded_with(2, 4 << 20).unwrap();
    let mut client = rack.client("paged").unwrap();
    let mut table = HashTable::create(&mut client, 2000, 100, Spread::Scattered).unwrap();
    let entries = (0..2000_u64).map(|n| (Key::of(&n.to_le_bytes()), [n.to_le_bytes()[0]; 40]));
    table.load(&mut client, entries, &mut |_, _| {}).unwrap();
    for capacity in [1, 4, 30] {
        let mut paged = Paged::new(client, capacity * PAGE_LEN as u64);
        let tasks = (0..3000).map(|n| Find { table: &table, number: n * 7 % 2000, found: None });
        let mut right = 0;
        run_tasks(&mut paged, tasks, 8, &Policy::Offload, |task, _| {
            right += u32::from(task.found == Some(true))
        })
        .unwrap();
        assert_eq!(right, 3000, "through {capacity} pages");
        client = paged.into_client();
    }
}

/// Addresses outside the address space fail as without a cache, and the cache keeps working.
#[test]
fn errors_come_through() {
    let mut bed = Fixture::new();
    let (first, behind) = (bed.addr(0), VirtAddr(bed.pages[0].0 ^ 1 << 60));
    let mut paged = Paged::new(bed.client, 2 * PAGE_LEN as u64);
    assert!(matches!(paged.read(behind, &mut [0; 8]), Err(Error::NotMapped { .. })));
    assert!(matches!(paged.fetch_add(VirtAddr(first.0 + 1), 1), Err(Error::Misaligned { .. })));
    let ticket = paged.submit(Op::Read { addr: behind, buf: vec![0; 8] }).unwrap();
    let completed = paged.next_completed().unwrap().unwrap();
    assert_eq!(completed.ticket, ticket);
    assert!(completed.result.is_err());
    assert!(paged.next_completed().unwrap().is_none());
    paged.write(first, b"still here").unwrap();
    paged.flush().unwrap();
    bed.client = paged.into_client();
    assert_eq!(bed.bytes()[..10], *b"still here");
}
