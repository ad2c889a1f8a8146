//! Tests of carriers that share a memory: one ends while others continue, and objects close while requests on them
//! are pending.

use super::*;
use farmem_client::{PayloadSource, Rack};
use farmem_dpu::{Caching, PageAccess, TableConfig};
use farmem_paging::Prefetch;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u32 = 4096;
const ENTRY_PAGES: u32 = 4;
const PAGES: u64 = 16;
const OBJECT: u32 = 1;
const FIXED_MAX: u64 = 4;

/// A policy that proposes the entry of each requested page.
#[derive(Debug)]
struct Own;

impl Prefetch<PageAccess<'_>> for Own {
    type Proposal = Range<u64>;

    fn propose(&mut self, access: &PageAccess<'_>) -> Range<u64> {
        access.page.page..access.page.page + 1
    }
}

/// A policy with a broken invariant.
#[derive(Debug)]
struct Broken;

impl Prefetch<PageAccess<'_>> for Broken {
    type Proposal = Range<u64>;

    fn propose(&mut self, access: &PageAccess<'_>) -> Range<u64> {
        panic!("{:?} is never asked for", access.page)
    }
}

/// Creates a memory with `slots` slots, one READ ahead at a time, and a read-only object. Each page of the object has
/// its number in all bytes.
fn memory(client: &mut Client, slots: u32, policy: Box<dyn Policy>) -> Arc<Memory> {
    let number = |number| NonZeroU32::new(number).unwrap();
    let table = TableConfig { slots: number(slots), entry_pages: ENTRY_PAGES };
    let config = Config {
        page_len: number(PAGE),
        table,
        prefetches_max: 1,
        fixed_pages_max: FIXED_MAX,
        ..Config::new(Caching::Dynamic)
    };
    let memory = Memory::new(config, Rng::from_number(1));
    let vma = client.allocate(PAGES * u64::from(PAGE)).unwrap();
    let bytes: Vec<u8> =
        (0..PAGES).flat_map(|page| vec![u8::try_from(page).unwrap(); PAGE as usize]).collect();
    client.write(vma.base, &bytes).unwrap();
    memory.open(OBJECT, Extent { base: vma.base, bytes: bytes.len() as u64 }, None, policy);
    memory
}

fn with_two(slots: u32, story: impl FnOnce(&Arc<Memory>, Carrier<'_>, Carrier<'_>)) {
    let rack = Rack::embedded_with(1, 1 << 20).unwrap();
    let (mut one, mut other) = (rack.client("dpu").unwrap(), rack.client("dpu").unwrap());
    let memory = memory(&mut one, slots, Box::new(Own));
    let carrier = |client| Carrier::new(client, Arc::clone(&memory), None);
    let (one, other) = (carrier(&mut one), carrier(&mut other));
    story(&memory, one, other);
    memory.decisions().check();
    assert!(read!(memory.carriers).inboxes.is_empty());
}

fn end(mut carrier: Carrier<'_>) {
    carrier.leave();
}

fn read(carrier: &mut Carrier<'_>, page: u64) -> u64 {
    let asker = Asker(u32::try_from(carrier.number).unwrap());
    carrier.read(asker, PageId { object: OBJECT, page }, 0..PAGE as usize, true, Vec::new())
}

/// Executes all pending work of a carrier. Returns the tickets and bytes of the reads that ended.
fn serve(carrier: &mut Carrier<'_>) -> Vec<(u64, u8)> {
    let mut brought = Vec::new();
    loop {
        carrier.look_into_inbox();
        let completed = carrier.client.next_completed().unwrap();
        let is_done = completed.is_none();
        completed.into_iter().for_each(|completed| assert!(carrier.took(completed).is_none()));
        while let Some(ended) = carrier.next_ended() {
            let ticket = ended.ticket;
            assert!(ended.result.is_ok(), "{ended:?}");
            let bytes = carrier.collect(ended, PAGE as usize);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one page's");
            brought.push((ticket, bytes[0]));
        }
        if is_done {
            return brought;
        }
    }
}

/// The thread of a domain ends with three pending READs: one ahead, one into static memory, and one of a process. The
/// other domain's thread reads the awaited page again, static memory has room again, and pages are still read ahead.
#[test]
fn pending_transfers_of_an_ended_carrier_fail() {
    with_two(4, |memory, mut one, mut other| {
        assert!(one.fix(Asker(0), OBJECT, 12..16));
        read(&mut one, 0);
        let waits = read(&mut other, 1);
        assert_eq!((memory.stats().late, memory.stats().background), (1, 7 * u64::from(PAGE)));
        end(one);
        assert_eq!(serve(&mut other), [(waits, 1)]);
        assert!(other.fix(Asker(1), OBJECT, 12..16), "nothing is there, and nothing comes");
        let next = read(&mut other, 8);
        assert_eq!(memory.stats().background, (7 + 4 + 3) * u64::from(PAGE), "entry 2 is read ahead");
        assert_eq!(serve(&mut other), [(next, 8)]);
        assert_eq!(memory.fixed_pages(OBJECT, 0..PAGES), 4);
        let hit = read(&mut other, 9);
        assert_eq!(serve(&mut other), [(hit, 9)]);
        assert_eq!(memory.stats().hits, 1);
        end(other);
    });
}

/// With one slot, an entry is read ahead only while no copy from the slot is pending. A carrier ends with a pending
/// copy, or before it is told to copy. The slot is free again.
#[test]
fn an_ended_carrier_pins_no_slot() {
    with_two(1, |memory, mut one, mut other| {
        read(&mut one, 0);
        serve(&mut one);
        read(&mut one, 1);
        assert_eq!(memory.stats().hits, 1);
        read(&mut other, 4);
        assert_eq!(memory.stats().background, 3 * u64::from(PAGE), "the slot is pinned");
        end(one);
        serve(&mut other);
        read(&mut other, 5);
        assert_eq!(
            memory.stats().background,
            (3 + 2) * u64::from(PAGE),
            "entry 1 without what was asked for"
        );
        serve(&mut other);
        end(other);
    });
    with_two(1, |memory, mut one, mut other| {
        read(&mut other, 0);
        read(&mut one, 1);
        assert_eq!(memory.stats().late, 1);
        end(one);
        serve(&mut other);
        read(&mut other, 4);
        assert_eq!(memory.stats().background, (3 + 3) * u64::from(PAGE), "the slot is no more pinned");
        serve(&mut other);
        end(other);
    });
}

/// A process fills static memory and leaves before the bytes arrive. The bytes are not kept; otherwise they would
/// occupy static memory for ever.
#[test]
fn static_memory_keeps_nothing_of_an_object_that_was_closed() {
    with_two(4, |memory, mut one, other| {
        end(other);
        let extent = read!(memory.objects)[&OBJECT];
        for object in OBJECT..OBJECT + 3 {
            assert!(one.fix(Asker(0), object, 0..FIXED_MAX), "object {object}");
            memory.close(object);
            assert_eq!(serve(&mut one), []);
            assert!(read!(memory.fixed).is_empty(), "object {object}");
            memory.open(object + 1, extent, None, Box::new(Own));
        }
        assert!(one.fix(Asker(0), OBJECT + 3, 0..FIXED_MAX));
        serve(&mut one);
        assert_eq!(memory.fixed_pages(OBJECT + 3, 0..PAGES), FIXED_MAX);
        assert_eq!(read!(memory.objects).len(), 1, "closed objects are forgotten");
        end(one);
    });
}

/// A thread that panics with the decisions locked leaves them in an unknown state, so no other thread uses them.
#[test]
fn no_thread_decides_after_a_panic() {
    let rack = Rack::embedded_with(1, 1 << 20).unwrap();
    let (mut one, mut other) = (rack.client("dpu").unwrap(), rack.client("dpu").unwrap());
    let memory = memory(&mut one, 4, Box::new(Broken));
    let extent = read!(memory.objects)[&OBJECT];
    memory.open(OBJECT + 1, extent, None, Box::new(Own));
    let mut one = Carrier::new(&mut one, Arc::clone(&memory), None);
    let panicked = catch_unwind(AssertUnwindSafe(|| read(&mut one, 0)));
    assert!(panicked.is_err());
    let mut other = Carrier::new(&mut other, Arc::clone(&memory), None);
    let page = PageId { object: OBJECT + 1, page: 0 };
    let read = catch_unwind(AssertUnwindSafe(|| other.read(Asker(1), page, 0..8, true, Vec::new())));
    assert!(read.is_err(), "it was answered");
}

/// A page of a process, with the number of takes. From the `most`-th take on, its bytes are not available.
#[derive(Debug)]
struct ProcessPage {
    byte: u8,
    takes: AtomicU64,
    most: u64,
}

impl PayloadSource for ProcessPage {
    fn fill(&self, _: u64, pieces: &mut [&mut [u8]]) -> bool {
        pieces.iter_mut().for_each(|piece| piece.fill(self.byte));
        self.takes.fetch_add(1, Ordering::Relaxed) < self.most
    }
}

/// A page is written back without a buffer: its bytes are taken once, into the packet. If the cache keeps the page,
/// they are taken once more, into its slot. If the second take fails, the page is not served from the cache.
#[test]
fn a_page_is_written_back_without_a_buffer() {
    let rack = Rack::embedded_with(1, 1 << 20).unwrap();
    let mut client = rack.client("dpu").unwrap();
    let memory = memory(&mut client, 4, Box::new(Own));
    let (base, bytes) = (read!(memory.objects)[&OBJECT].base, PAGES * u64::from(PAGE));
    let written = OBJECT + 1;
    memory.open(written, Extent { base, bytes }, Some(Asker(0)), Box::new(Own));
    let mut carrier = Carrier::new(&mut client, Arc::clone(&memory), None);
    let page = |page| PageId { object: written, page };
    let write = |carrier: &mut Carrier<'_>, at: u64, byte: u8, most: u64| {
        let there = Arc::new(ProcessPage { byte, takes: AtomicU64::new(0), most });
        let from = SourcePart::new(Arc::clone(&there) as Arc<dyn PayloadSource>, PAGE as usize);
        let ticket = carrier.write_from(Asker(0), page(at), 0, from);
        while let Some(completed) = carrier.client.next_completed().unwrap() {
            assert!(completed.buf.is_empty(), "there is no buffer");
            assert!(carrier.took(completed).is_none());
        }
        let ended = carrier.next_ended().unwrap();
        assert!(ended.ticket == ticket && ended.result.is_ok(), "{ended:?}");
        carrier.finish(ended, None, |_| {});
        there.takes.load(Ordering::Relaxed)
    };
    let read = |carrier: &mut Carrier<'_>, at: u64| {
        carrier.read(Asker(0), page(at), 0..PAGE as usize, true, Vec::new());
        serve(carrier)[0].1
    };
    assert_eq!(write(&mut carrier, 8, 100, 9), 1, "no slot keeps it");
    assert_eq!(read(&mut carrier, 8), 100);
    // The page's entry was read ahead.
    assert_eq!(read(&mut carrier, 9), 9);
    let hits = memory.stats().hits;
    assert_eq!(write(&mut carrier, 9, 101, 9), 2, "the cache keeps it");
    assert_eq!(read(&mut carrier, 9), 101);
    assert_eq!(memory.stats().hits, hits + 1);
    assert_eq!(write(&mut carrier, 9, 102, 1), 2, "the second time it was not to be had");
    assert_eq!(read(&mut carrier, 9), 102, "from far memory");
    assert_eq!(memory.stats().hits, hits + 1);
    end(carrier);
}
