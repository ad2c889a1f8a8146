//! The heap of records: against a plain map with several programs, in round trips, and with programs that die
//! at any point.

use farmem_client::{Client, Error, NodeId, Rack, VirtAddr};
use farmem_structures::heap::{
    Clock, Heap, HeapOptions, LOCK_TRIES, READ_TRIES, RECORD_LEN_MAX, Record, UNMARKED_MAX,
};
use farmem_testkit::{Hooked, ended};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

mod heap_destroyed;

const LEASE: Duration = Duration::from_secs(10);
const KIND: u8 = 100;
const NODE: NodeId = NodeId(1);

/// A clock that stands still until a test moves it.
#[derive(Clone, Default)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn options(&self) -> HeapOptions {
        let own = Arc::clone(&self.0);
        let clock = Clock::new(move || Duration::from_secs(own.load(Ordering::Relaxed)));
        HeapOptions { lease: LEASE, clock }
    }

    fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

/// A program: a client with a heap open.
struct Host {
    client: Client,
    heap: Heap,
}

impl Host {
    fn put(&mut self, content: &[u8]) -> Record {
        self.heap.put_on(&mut self.client, NODE, KIND, content).unwrap()
    }

    fn read(&mut self, record: Record) -> Result<Vec<u8>, Error> {
        let (kind, content) = self.heap.read(&mut self.client, record)?;
        assert_eq!(kind, KIND);
        Ok(content)
    }

    fn free(&mut self, record: Record) {
        self.heap.free(&mut self.client, record).unwrap();
    }
}

/// Creates a rack with a heap that `count` programs have open.
fn hosts(nodes: u16, memory: u64, count: usize, time: &Time) -> (Rack, Vec<Host>) {
    let rack = Rack::embedded_with(nodes, memory).unwrap();
    let hosts = (0..count).map(|n| host(&rack, time, n == 0)).collect();
    (rack, hosts)
}

fn host(rack: &Rack, time: &Time, creates: bool) -> Host {
    let mut client = rack.client("heap").unwrap();
    let open = if creates { Heap::create } else { Heap::open };
    let heap = open(&mut client, "the heap", time.options()).unwrap();
    Host { client, heap }
}

fn bytes(len: usize, byte: u8) -> Vec<u8> {
    vec![byte; len]
}

#[derive(Clone, Debug)]
enum Act {
    Put(usize, usize, u8),
    Write(usize, usize, u8),
    Free(usize, usize),
    Read(usize, usize),
    Leave(usize),
    Time(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let len = || prop_oneof![4 => 1..300_usize, 2 => 300..5000_usize, 1 => 5000..=RECORD_LEN_MAX];
    prop_oneof![
        6 => (0..3_usize, len(), any::<u8>()).prop_map(|(host, len, byte)| Act::Put(host, len, byte)),
        2 => (0..3_usize, any::<usize>(), any::<u8>()).prop_map(|(host, n, byte)| Act::Write(host, n, byte)),
        5 => (0..3_usize, any::<usize>()).prop_map(|(host, n)| Act::Free(host, n)),
        3 => (0..3_usize, any::<usize>()).prop_map(|(host, n)| Act::Read(host, n)),
        1 => (0..3_usize).prop_map(Act::Leave),
        1 => (1..50_u64).prop_map(Act::Time),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Every program reads, overwrites and frees the records of all programs. Records never overlap; programs
    /// come and go.
    #[test]
    fn records_are_a_map(nodes in 1..4_u16, acts in vec(act(), 1..150)) {
        let time = Time::default();
        let (rack, mut hosts) = hosts(nodes, 64 << 20, 3, &time);
        let mut model: BTreeMap<u64, (Record, Vec<u8>)> = BTreeMap::new();
        let pick = |model: &BTreeMap<u64, (Record, Vec<u8>)>, n: usize| {
            model.keys().nth(n % model.len().max(1)).copied()
        };
        for act in acts {
            match act {
                Act::Put(at, len, byte) => {
                    let Host { client, heap } = &mut hosts[at];
                    let record = heap.put(client, KIND, &bytes(len, byte)).unwrap();
                    prop_assert!(model.insert(record.at.0, (record, bytes(len, byte))).is_none());
                }
                Act::Write(at, n, byte) => if let Some(key) = pick(&model, n) {
                    let Host { client, heap } = &mut hosts[at];
                    let (record, content) = model.get_mut(&key).unwrap();
                    *content = bytes(1 + usize::from(byte) % content.len(), byte);
                    // The block keeps its size, so the original length fits again.
                    let written = heap.write(client, *record, KIND, content).unwrap();
                    prop_assert_eq!(written.len as usize, content.len());
                }
                Act::Free(at, n) => if let Some(key) = pick(&model, n) {
                    let (record, _) = model.remove(&key).unwrap();
                    hosts[at].free(record);
                }
                Act::Read(at, n) => if let Some(key) = pick(&model, n) {
                    let (record, content) = &model[&key];
                    prop_assert_eq!(&hosts[at].read(*record).unwrap(), content);
                }
                Act::Leave(at) => {
                    let gone = std::mem::replace(&mut hosts[at], host(&rack, &time, false));
                    let Host { mut client, heap } = gone;
                    heap.close(&mut client).unwrap();
                }
                Act::Time(seconds) => time.pass(seconds),
            }
        }
        let mut ends: Vec<(u64, u64)> = model.values().map(|(record, content)| (record.at.0, record.at.0 + content.len() as u64)).collect();
        ends.sort_unstable();
        prop_assert!(ends.windows(2).all(|two| two[0].1 <= two[1].0));
        for (record, content) in model.values() {
            prop_assert_eq!(&hosts[0].read(*record).unwrap(), content);
        }
    }
}

/// The cost of each operation when free blocks are at hand and no other program interferes.
#[test]
fn round_trips() {
    let (_rack, mut hosts) = hosts(1, 64 << 20, 2, &Time::default());
    let mut nothing = || Ok(());
    let mut count = |client: &mut Client, act: &mut dyn FnMut(&mut Hooked<'_>)| {
        let mut memory = Hooked::new(client, &mut nothing);
        act(&mut memory);
        memory.trips
    };
    for len in [1, 224, 4000, 64 << 10, RECORD_LEN_MAX] {
        // Makes a free block available.
        let warm = hosts[0].put(&bytes(len, 0));
        hosts[0].free(warm);
        for _ in 0..4 {
            hosts.iter_mut().for_each(|host| host.heap.reclaim(&mut host.client).unwrap());
        }
        let Host { client, heap } = &mut hosts[0];
        let mut record = None;
        let put = count(client, &mut |memory| record = Some(heap.put(memory, KIND, &bytes(len, 1)).unwrap()));
        assert_eq!(put, 1, "put of {len}");
        let record = record.unwrap();
        assert_eq!(count(client, &mut |memory| drop(heap.read(memory, record).unwrap())), 1, "read of {len}");
        let write = count(client, &mut |memory| {
            heap.write(memory, record, KIND, &bytes(len, 2)).unwrap();
        });
        assert_eq!(write, 4, "write of {len}");
        let unknown = Record { len: 1, ..record };
        let unknown = count(client, &mut |memory| drop(heap.read(memory, unknown).unwrap()));
        assert_eq!(unknown, if len <= 1 { 1 } else { 2 }, "read of {len} without its length");
    }
    let Host { client, heap } = &mut hosts[0];
    // Frees are marked together, also those of others' records: a READ each, then the list's head, the marks
    // and the new head.
    let records: Vec<Record> =
        (0..UNMARKED_MAX).map(|_| heap.put(client, KIND, b"other's").unwrap()).collect();
    let Host { client, heap } = &mut hosts[1];
    let freed = count(client, &mut |memory| {
        records.iter().for_each(|record| heap.free(memory, *record).unwrap());
    });
    // Plus one read of the chunk rows.
    assert_eq!(freed, UNMARKED_MAX as u64 + 4);
}

/// Freed memory is not reused while a program holds an earlier pin, and is reused afterwards. The owner of
/// the chunk reuses it, whichever program freed it.
#[test]
fn a_pin_keeps_what_was_freed() {
    let (_rack, mut hosts) = hosts(1, 64 << 20, 2, &Time::default());
    let len = 60_000; // a chunk of 256 KiB has four
    let first = hosts[0].put(&bytes(len, 1));
    let Host { client, heap } = &mut hosts[1];
    heap.pin(client).unwrap();
    assert_eq!(heap.read(client, first).unwrap().1, bytes(len, 1));
    hosts[0].free(first);
    let mut made: Vec<Record> = (0..40).map(|_| hosts[0].put(&bytes(len, 2))).collect();
    assert!(made.iter().all(|record| record.at != first.at));
    assert_eq!(hosts[1].read(first).unwrap(), bytes(len, 1), "it is as it was");
    hosts[1].heap.unpin();
    for _ in 0..8 {
        // Each program confirms that it holds no older pointers. The heap asks when time passes, which stands
        // still here, and when room is short.
        for host in &mut hosts {
            host.heap.reclaim(&mut host.client).unwrap();
        }
    }
    made.push(hosts[0].put(&bytes(len, 3)));
    assert_eq!(made[40].at, first.at, "it is used again");

    // A record freed by the other program returns to the owner of its chunk.
    hosts[1].free(made[40]);
    for _ in 0..8 {
        for host in &mut hosts {
            host.heap.reclaim(&mut host.client).unwrap();
        }
    }
    assert_eq!(hosts[0].put(&bytes(len, 4)).at, first.at);
}

/// A program dies with a heap open. Nothing is reused until its lease has surely ended, then everything is.
/// Another program inherits its free blocks; its records stay.
#[test]
fn a_program_that_died_stops_nobody() {
    let time = Time::default();
    let (rack, mut two) = hosts(1, 16 << 20, 2, &time);
    let len = 60_000;
    let dead = two.pop().unwrap();
    let Host { mut client, mut heap } = dead;
    let kept = heap.put(&mut client, KIND, &bytes(len, 1)).unwrap();
    let freed: Vec<Record> = (0..3).map(|_| heap.put(&mut client, KIND, &bytes(len, 2)).unwrap()).collect();
    for record in &freed {
        heap.free(&mut client, *record).unwrap();
    }
    heap.reclaim(&mut client).unwrap(); // marks them
    drop((heap, client));

    let living = &mut two[0];
    let first = living.put(&bytes(len, 3));
    living.free(first);
    for _ in 0..8 {
        living.heap.reclaim(&mut living.client).unwrap();
    }
    assert_eq!(living.heap.waiting(), 1, "it may hold a pointer to it");
    for _ in 0..8 {
        time.pass(9);
        living.heap.reclaim(&mut living.client).unwrap();
    }
    assert_eq!(living.heap.waiting(), 0, "its lease has surely ended");
    // The dead program's chunks are taken over before the rack is asked for more.
    let chunks = |client: &mut Client| client.overview().unwrap().vmas.len();
    let before = chunks(&mut living.client);
    let made: BTreeSet<VirtAddr> = (0..7).map(|_| living.put(&bytes(len, 4)).at).collect();
    assert_eq!(made.len(), 7);
    assert_eq!(chunks(&mut living.client), before);
    assert!(freed.iter().all(|record| made.contains(&record.at)), "its freed blocks are used");
    assert!(!made.contains(&kept.at));
    assert_eq!(living.read(kept).unwrap(), bytes(len, 1));
    drop(rack);
}

/// A program that was silent for too long receives an error: its pin is void. Then it continues as a new
/// member.
#[test]
fn an_evicted_program_gets_an_error() {
    let time = Time::default();
    let (_rack, mut hosts) = hosts(1, 16 << 20, 2, &time);
    let kept = hosts[1].put(b"kept");
    let Host { client, heap } = &mut hosts[1];
    heap.pin(client).unwrap();
    for _ in 0..5 {
        time.pass(9);
        let Host { client, heap } = &mut hosts[0];
        heap.reclaim(client).unwrap();
    }
    for _ in 0..2 {
        let told = hosts[1].read(kept).unwrap_err();
        assert!(matches!(told, Error::LeaseExpired { .. }), "{told}");
        assert!(told.to_string().contains("the heap") && told.remedy().contains("pins"), "{told}");
    }
    hosts[1].heap.unpin();
    assert_eq!(hosts[1].read(kept).unwrap(), b"kept");
    // The program that was silent without a pin need not notice.
    for _ in 0..5 {
        time.pass(9);
        let Host { client, heap } = &mut hosts[0];
        heap.reclaim(client).unwrap();
    }
    hosts[1].free(kept);
    hosts[1].put(b"more");
    // A program that was silent and not evicted continues unchanged.
    let Host { client, heap } = &mut hosts[1];
    heap.pin(client).unwrap();
    time.pass(1000);
    assert!(heap.keep(client).is_ok());
    heap.unpin();
}

/// A writer ends at each verb of a write in turn. Readers get the old or the new content, or an error that
/// names the lock's holder. The next writer gets the error too, and takes the lock over once the lease has
/// surely ended.
#[test]
fn a_writer_that_died_is_noticed() {
    let len = 1000;
    let mut locked = 0;
    for verbs in 0..=4 {
        let time = Time::default();
        let (_rack, mut hosts) = hosts(1, 16 << 20, 2, &time);
        let record = hosts[0].put(&bytes(len, 1));
        let Host { client, heap } = &mut hosts[1];
        let mut left = verbs;
        let mut before = || {
            left -= 1;
            if left < 0 { Err(ended()) } else { Ok(()) }
        };
        let written = heap.write(&mut Hooked::new(client, &mut before), record, KIND, &bytes(len, 2));
        assert_eq!(written.is_ok(), verbs == 4);
        match hosts[0].read(record) {
            Ok(content) => assert_eq!(content, bytes(len, if verbs == 4 { 2 } else { 1 })),
            Err(Error::Locked { addr, holder, tries }) => {
                assert!(addr == record.at && tries == READ_TRIES && holder.contains("slot 1.1"), "{holder}");
                locked += 1;
                let Host { client, heap } = &mut hosts[0];
                let refused = heap.write(client, record, KIND, &bytes(len, 3)).unwrap_err();
                assert!(matches!(refused, Error::Locked { tries: LOCK_TRIES, .. }), "{refused}");
            }
            Err(other) => panic!("{other}"),
        }
        let write = |host: &mut Host| host.heap.write(&mut host.client, record, KIND, &bytes(len, 4));
        let mut tries = 0;
        while write(&mut hosts[0]).is_err() {
            tries += 1;
            assert!(tries < 6, "it is taken over in the end");
            time.pass(9);
        }
        assert_eq!(hosts[0].read(record).unwrap(), bytes(len, 4));
        assert_eq!(hosts[1].read(record).unwrap(), bytes(len, 4), "an evicted program reads it, too");
    }
    assert_eq!(locked, 2, "between the lock and the last line");
}

/// Between any two verbs of a writer, a reader gets one of the two contents or an error about the concurrent
/// write.
#[test]
fn a_reader_beside_a_writer() {
    for len in [100, 1000, 64 << 10] {
        let (_rack, mut hosts) = hosts(1, 16 << 20, 2, &Time::default());
        let record = hosts[0].put(&bytes(len, 1));
        let [writer, reader] = hosts.as_mut_slice() else { unreachable!() };
        let (mut read, mut told) = (BTreeSet::new(), 0);
        let mut before = || {
            match reader.read(record) {
                Ok(content) => {
                    assert!(content.iter().all(|byte| *byte == content[0]));
                    read.insert(content[0]);
                }
                Err(Error::Locked { .. }) => told += 1,
                Err(other) => return Err(other),
            }
            Ok(())
        };
        let mut memory = Hooked::new(&mut writer.client, &mut before);
        for byte in 2..5 {
            writer.heap.write(&mut memory, record, KIND, &bytes(len, byte)).unwrap();
        }
        assert!(read.contains(&1) && read.contains(&3) && told > 0);
    }
}

/// Between any two packets of a READ, another program writes the whole record or creates another one in its
/// place: the reader gets one content or an error.
#[test]
fn a_write_between_the_packets_of_a_read() {
    for packet_len in [256, 1024, 4096] {
        let (_rack, mut hosts) = hosts(1, 16 << 20, 2, &Time::default());
        let len = 10_000;
        let record = hosts[0].put(&bytes(len, 0));
        let [writer, reader] = hosts.as_mut_slice() else { unreachable!() };
        let (mut calls, mut byte) = (0, 0);
        // Each time one packet later, so that every gap is covered; finally no write at all.
        let mut read = |at: Option<usize>| {
            let mut left = at;
            let mut before = || {
                calls += 1;
                left = left.and_then(|left| left.checked_sub(1));
                if left == Some(0) {
                    byte += 1;
                    writer.heap.write(&mut writer.client, record, KIND, &bytes(len, byte))?;
                }
                Ok(())
            };
            let mut memory = Hooked::new(&mut reader.client, &mut before);
            memory.packet_len = packet_len;
            let (_, content) = reader.heap.read(&mut memory, record).unwrap();
            let trips = memory.trips;
            assert!(content == bytes(len, byte) || content == bytes(len, byte - 1), "one of the two");
            trips
        };
        let packets = 10_336_usize.div_ceil(packet_len);
        let trips: Vec<u64> = (1..=packets).map(|at| read(Some(at))).collect();
        assert_eq!(trips[0], 1, "before the first packet");
        assert!(trips[1..].iter().all(|&trips| trips == 2), "noticed, and read again: {trips:?}");
        assert_eq!(read(None), 1);
        assert!(calls > packets * packets);
    }
}

/// A full heap reports the error with the number of waiting records; freeing makes room.
#[test]
fn a_full_heap_says_so() {
    let (_rack, mut hosts) = hosts(1, 2 << 20, 1, &Time::default());
    let Host { client, heap } = &mut hosts[0];
    let mut made = Vec::new();
    let full = loop {
        match heap.put(client, KIND, &bytes(9000, 1)) {
            Ok(record) => made.push(record),
            Err(error) => break error,
        }
        assert!(made.len() < 300);
    };
    assert!(made.len() > 100, "{} records", made.len());
    let Error::Full { what } = &full else { panic!("{full}") };
    assert!(
        what.contains("the heap") && what.contains("10240 bytes") && what.contains("memory node 1"),
        "{what}"
    );
    for record in made.drain(..) {
        heap.free(client, record).unwrap();
    }
    for _ in 0..100 {
        made.push(heap.put(client, KIND, &bytes(9000, 1)).unwrap());
    }
}

/// Invalid arguments and invalid records.
#[test]
fn what_is_refused() {
    let (rack, mut hosts) = hosts(1, 16 << 20, 1, &Time::default());
    let Host { client, heap } = &mut hosts[0];
    let refused = |result: Result<Record, Error>| result.unwrap_err().to_string();
    assert!(refused(heap.put(client, KIND, b"")).contains("no bytes"));
    assert!(refused(heap.put(client, KIND, &bytes(RECORD_LEN_MAX + 1, 0))).contains("131080"));
    let record = heap.put(client, KIND, &bytes(300, 0)).unwrap();
    let too_long = heap.write(client, record, KIND, &bytes(5000, 0)).unwrap_err();
    assert!(matches!(too_long, Error::TooLong { len: 5000, max: 472 }), "{too_long}");
    heap.free(client, record).unwrap();
    let twice = heap.free(client, record).unwrap_err();
    assert!(matches!(twice, Error::Broken { addr, .. } if addr == record.at), "{twice}");
    heap.reclaim(client).unwrap();
    assert!(heap.free(client, record).is_err(), "nor when it is marked");
    let nowhere = Record { at: VirtAddr(record.at.0 + 4096), len: 9 };
    assert!(matches!(heap.read(client, nowhere), Err(Error::Broken { .. })));

    let mut other = rack.client("heap").unwrap();
    let exists = Heap::create(&mut other, "the heap", HeapOptions::default()).unwrap_err();
    assert!(matches!(exists, Error::Exists { .. }), "{exists}");
    let missing = Heap::open(&mut other, "another", HeapOptions::default()).unwrap_err();
    assert_eq!(missing.to_string(), "there is no heap called \"another\"");
    other.create_named("no heap", 16 << 10).unwrap();
    let broken = Heap::open(&mut other, "no heap", HeapOptions::default()).unwrap_err();
    assert!(matches!(broken, Error::Broken { .. }), "{broken}");
    let mut foreign = rack.client("another").unwrap();
    assert!(Heap::open(&mut foreign, "the heap", HeapOptions::default()).is_err(), "names are a domain's");
}

/// Named memory without a heap: the first request creates it, all find it, and it is freed when no client has
/// it open.
#[test]
fn memory_has_a_name() {
    let rack = Rack::embedded_with(2, 16 << 20).unwrap();
    let (mut one, mut two) = (rack.client("d").unwrap(), rack.client("d").unwrap());
    let missing = one.open_named("name").unwrap_err();
    assert_eq!(missing.to_string(), "there is no far memory called \"name\"");
    assert!(matches!(one.unlink_named("name"), Err(Error::Missing { .. })));
    let made = one.create_named("name", 8192).unwrap();
    assert_eq!((two.create_named("name", 8192).unwrap(), two.open_named("name").unwrap()), (made, made));
    assert!(matches!(two.create_named("name", 4096), Err(Error::Refused(_))), "of another length");
    one.write(made.base, b"shared").unwrap();
    let mut bytes = [0; 6];
    two.read(made.base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"shared");
    one.unlink_named("name").unwrap();
    assert!(matches!(two.open_named("name"), Err(Error::Missing { .. })));
    let other = two.create_named("name", 8192).unwrap();
    assert_ne!(other.base, made.base, "the first one has it open");
    two.read(made.base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"shared");
    drop(two);
    let again = one.read(made.base, &mut bytes).unwrap_err();
    assert!(matches!(again, Error::NotMapped { .. }), "{again}");
    assert_eq!(one.open_named("name").unwrap(), other);
}

/// Roots: the first program to set a name wins. After a removal the name can refer to another record.
#[test]
fn names_stand_for_records() {
    let (_rack, mut hosts) = hosts(2, 16 << 20, 2, &Time::default());
    let kind = *b"testtest";
    let record = hosts[0].put(b"what it stands for");
    let Host { client, heap } = &mut hosts[0];
    heap.set_root(client, "name", kind, record.at).unwrap();
    let Host { client, heap } = &mut hosts[1];
    assert_eq!(heap.root(client, "name", kind).unwrap(), record.at);
    assert!(matches!(heap.root(client, "name", *b"another "), Err(Error::Broken { .. })));
    assert!(matches!(heap.root(client, "other", kind), Err(Error::Missing { .. })));
    assert!(matches!(heap.set_root(client, "name", kind, VirtAddr(64)), Err(Error::Exists { .. })));
    assert!(matches!(heap.remove_root(client, "other"), Err(Error::Missing { .. })));
    heap.remove_root(client, "name").unwrap();
    assert!(matches!(heap.root(client, "name", kind), Err(Error::Missing { .. })));
    heap.set_root(client, "name", kind, VirtAddr(4096)).unwrap();

    // Another program sets the name between any two verbs of this one: exactly one succeeds.
    for verbs in 0..20 {
        let name = format!("race {verbs}");
        let [one, two] = hosts.as_mut_slice() else { unreachable!() };
        let (mut left, mut won) = (verbs, false);
        let mut before = || {
            left -= 1;
            if left == -1 {
                won = two.heap.set_root(&mut two.client, &name, kind, VirtAddr(64)).is_ok();
            }
            Ok(())
        };
        let mut memory = Hooked::new(&mut one.client, &mut before);
        let ours = one.heap.set_root(&mut memory, &name, kind, VirtAddr(96)).is_ok();
        let stands = one.heap.root(&mut one.client, &name, kind).unwrap();
        assert_eq!(stands, VirtAddr(if won { 64 } else { 96 }), "{verbs}");
        assert!(ours != won);
    }
    let Host { client, heap } = &mut hosts[0];
    let full =
        (0..80).find_map(|n| heap.set_root(client, &format!("n{n}"), kind, VirtAddr(64)).err()).unwrap();
    assert!(matches!(full, Error::Full { .. }), "{full}");
}

/// The last program with a heap open destroys it and frees all its memory.
#[test]
fn a_destroyed_heap_leaves_nothing() {
    let (rack, mut hosts) = hosts(2, 16 << 20, 2, &Time::default());
    for host in &mut hosts {
        host.put(&bytes(100_000, 1));
    }
    let allocated = |client: &mut Client| client.overview().unwrap().vmas.len();
    let Host { mut client, heap } = hosts.remove(0);
    let open = heap.destroy(&mut client).unwrap_err();
    assert!(matches!(open, Error::Locked { .. }), "{open}");
    let Host { client: mut last, heap } = hosts.remove(0);
    assert!(allocated(&mut last) >= 3);
    heap.destroy(&mut last).unwrap();
    assert_eq!(allocated(&mut last), 1, "the root is kept by the first program, which has the object open");
    drop(client);
    assert_eq!(allocated(&mut last), 0);
    assert!(matches!(Heap::open(&mut last, "the heap", HeapOptions::default()), Err(Error::Missing { .. })));
    drop(rack);
}

/// A program dies with the heap open, and no other program works in it. A program that wants to free the heap
/// calls `alone`. The second call, three leases after the first, evicts the dead member. An earlier call or a
/// late first call does not evict. A live member that renews stays. Previously no call evicted, and the heap
/// could never be freed.
#[test]
fn check_exclusive_evicts_silent_programs() {
    let time = Time::default();
    let (_rack, mut hosts) = hosts(1, 16 << 20, 3, &time);
    let [last, died, lives] = hosts.as_mut_slice() else { unreachable!() };
    died.heap.pin(&mut died.client).unwrap();
    time.pass(100);
    let mut look = |seconds: u64, lives: &mut Host| {
        time.pass(seconds);
        lives.heap.keep(&mut lives.client).unwrap();
        match last.heap.check_exclusive(&mut last.client) {
            Err(Error::Locked { holder, .. }) => holder,
            went => format!("{went:?}"),
        }
    };
    assert!(look(0, lives).contains("in slot 1."), "a first look evicts no program");
    assert!(look(15, lives).contains("in slot 1."));
    assert!(look(14, lives).contains("in slot 1."), "29 seconds are no three leases");
    assert!(look(1, lives).contains("in slot 2."), "the one that lives is there still");
    assert!(look(40, lives).contains("in slot 2."), "and however long it is watched");
    let evicted = died.heap.keep(&mut died.client).unwrap_err();
    assert!(matches!(evicted, Error::LeaseExpired { .. }), "{evicted}");
    let Host { mut client, heap } = hosts.pop().unwrap();
    heap.close(&mut client).unwrap();
    let Host { mut client, mut heap } = hosts.swap_remove(0);
    heap.check_exclusive(&mut client).unwrap();
    heap.destroy(&mut client).unwrap();
}
