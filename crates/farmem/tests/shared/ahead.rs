//! Preventive prefetching by a DPU process (PD3): the program's threads hand over received requests and take
//! items from the zone. Each answer is right, even if the DPU or another program beside it fails.

use super::dpu::{DPU, client, rack};
use super::rig::{self, DOMAIN, TestChannel as Test, TestRack};
use crate::map_program::{
    self, InHeap, Items, KEYS, MapProgram, SECRET, ZONE, await_it, options, record, settle, table_of,
};
use farmem::form::Form;
use farmem::hash_table::{Key, Spread};
use farmem::heap::Record;
use farmem::prefetch::parse::records::{Records, Request};
use farmem::prefetch::tap::{ParserKind, tap};
use farmem::prefetch::{
    AtDpu, AtDpuOptions, Change, Config, Driver, FLOORS, HostKeys, KeysConfig, Prefetched, Reporter,
    SharedZone, Taker,
};
use farmem::{Client, Error, FlatMap, HashTable, PageStore, Rack, Rng, SharedSpace, serve};
use farmem_link::Stop;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Creates a map of the program.
pub(super) fn map_of(client: &mut Client) -> FlatMap {
    map_program::map_of(client, [5, 6])
}

/// Every read is of an item that the program lacks and drops after use, and the DPU gets time. All items come
/// out of the zone, none is fetched twice or in vain, and the program's own client sends no packet (PROTOCOL
/// 19.15).
#[test]
fn what_requests_need_is_there_and_the_program_reads_nothing() {
    for transport in ["shm", "udp"] {
        let rack = rack(transport, DPU);
        let mut client = client(&rack, DOMAIN);
        let map = map_of(&mut client);
        let config = Config { keeps: false, ..Config::DEFAULT };
        let dpu =
            AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), AtDpuOptions { config, ..options() })
                .unwrap();
        let (tap, mut taker) = (dpu.tap(), dpu.taker());
        let connection = tap.connection_of(ParserKind::HashMap).unwrap();
        let before = client.packets();
        let (mut rng, mut into, mut taken) = (Rng::from_number(3), Vec::new(), 0);
        for round in 1..=40 {
            let first = u64::from(rng.below(KEYS / 2 - 32));
            let keys = first..first + 32;
            let piece: Vec<u8> =
                keys.clone().flat_map(|key| record(Request::Read, &key.to_le_bytes(), &[])).collect();
            let position = connection.received(&piece);
            settle(&dpu, round);
            for key in keys {
                assert!(taker.take(&key.to_le_bytes(), &mut into).is_some(), "key {key} in round {round}");
                assert_eq!(into, (key + 1).to_le_bytes());
                taken += 1;
            }
            tap.executed(position);
            // Taken entries are cleaned before they are requested again.
            settle(&dpu, round);
        }
        assert_eq!(client.packets(), before, "the program reads nothing");
        let Prefetched { account, stats, seen, .. } = dpu.prefetched().unwrap();
        let counts = (account.wanted, account.used, account.late, account.wasted, account.missed());
        assert_eq!(counts, (taken, taken, 0, 0, 0), "{account:?}");
        assert_eq!((stats.reads, stats.messages), (taken, 40));
        assert_eq!((seen.pieces, seen.lost_bytes, tap.unseen()), (40, 0, (0, 0)));
    }
}

/// The page server's pages, some never written and some nonexistent, by the DPU process.
#[test]
fn pages_come_by_the_process() {
    let rack = rack("shm", DPU);
    let mut client = client(&rack, DOMAIN);
    let store = PageStore::create(&mut client, 60).unwrap();
    let page_of = |page: u64| (page..page + 512).flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
    for page in (0..60).filter(|page| page % 10 != 0) {
        store.write(&mut client, page, 1 + page, &page_of(page)).unwrap();
    }
    let dpu = AtDpu::connect(&client, &store.form(), (SECRET, Change(61)), options()).unwrap();
    let connection = dpu.tap().connection_of(ParserKind::Pages).unwrap();
    let piece: Vec<u8> =
        (40..70_u64).flat_map(|page| record(Request::Read, &page.to_be_bytes(), &[])).collect();
    connection.received(&piece);
    settle(&dpu, 1);
    let (mut taker, mut into) = (dpu.taker(), Vec::new());
    for page in 40..70_u64 {
        let is_there = page < 60 && page % 10 != 0;
        assert_eq!(taker.take(&page.to_be_bytes(), &mut into), is_there.then_some(4096), "{page}");
        assert!(!is_there || into == page_of(page), "{page}");
    }
    drop((taker, connection, dpu));
    // A program cannot pass its own parser to the process.
    let map = map_of(&mut client);
    let dpu = AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options()).unwrap();
    assert!(dpu.tap().connection(Box::new(Records::pages())).is_none());
    assert_eq!(dpu.tap().unseen(), (0, 1));
}

/// Items of a chained hash table whose chains cross nodes, and some missing ones.
#[test]
fn chained_items_come_by_the_process() {
    let rack = rack("shm", DPU);
    let mut client = client(&rack, DOMAIN);
    let mut table = HashTable::create(&mut client, 100, 16, Spread::Scattered).unwrap();
    let item_of = |key: u64| [key; 4].map(u64::to_le_bytes).concat();
    let value_of = |key: u64| Change(1 + key).onto(&item_of(key)).try_into().unwrap();
    for key in (0..100_u64).filter(|key| key % 10 != 0) {
        table.insert(&mut client, Key::of(&key.to_le_bytes()), &value_of(key)).unwrap();
    }
    let dpu = AtDpu::connect(&client, &table.form(), (SECRET, Change(101)), options()).unwrap();
    let connection = dpu.tap().connection_of(ParserKind::HashMap).unwrap();
    let piece: Vec<u8> =
        (40..110_u64).flat_map(|key| record(Request::Read, &key.to_le_bytes(), &[])).collect();
    connection.received(&piece);
    settle(&dpu, 1);
    let (mut taker, mut into) = (dpu.taker(), Vec::new());
    for key in 40..110_u64 {
        let is_there = key < 100 && key % 10 != 0;
        assert_eq!(taker.take(&key.to_le_bytes(), &mut into), is_there.then_some(32), "{key}");
        assert!(!is_there || into == item_of(key), "{key}");
    }
}

/// A program reads, writes, removes, evicts and drops beside a DPU that works at random moments. No stale
/// item is ever taken, and many items are taken, of a map and of a table in a heap.
#[test]
fn nothing_stale_is_taken_beside_a_process() {
    for (transport, seed) in [("shm", 1), ("udp", 2)] {
        let rack = rack(transport, DPU);
        take_much(&rack, seed, map_of);
        take_much(&rack, seed, |client| table_of(client, "items"));
    }
}

fn take_much<I: Items>(rack: &TestRack, seed: u64, make: impl Fn(&mut Client) -> I) {
    let mut client = client(rack, DOMAIN);
    let items = make(&mut client);
    let dpu = AtDpu::connect(&client, &items.form(), (SECRET, Change(1)), options()).unwrap();
    let mut program = MapProgram::at(&dpu, client, items, seed);
    for round in 0..1500_u64 {
        program.batch(8, |program| {
            if round % 4 == 0 {
                settle(&dpu, program.pieces);
            }
        });
    }
    assert!(dpu.is_served());
    assert!(program.taken > 1000, "{} of {} requests", program.taken, program.count);
}

/// Equal requests through a thread of the program and through the process give the same counts of fetched,
/// used and missed items, for a map and for a table in a heap.
#[test]
fn thread_and_process_have_one_account() {
    let rack = rack("shm", DPU);
    one_account(&rack, "map", map_of);
    one_account(&rack, "table", |client| table_of(client, "items"));
}

fn one_account<I: Items>(rack: &TestRack, name: &str, make: impl Fn(&mut Client) -> I) {
    let run = |way: &str| -> (Prefetched, (u64, u64)) {
        let domain = format!("{name}-{way}");
        let mut client = client(rack, &domain);
        let items = make(&mut client);
        let mut other = self::client(rack, &domain);
        if way == "process" {
            let dpu = AtDpu::connect(&client, &items.form(), (SECRET, Change(1)), options()).unwrap();
            let mut program = MapProgram::at(&dpu, other, items, 11);
            for _ in 0..150 {
                program.batch(16, |program| {
                    settle(&dpu, program.pieces);
                });
            }
            let pieces = program.pieces;
            return (settle(&dpu, pieces), (program.taken, program.asked));
        }
        let (tap, watch) = tap(1 << 20, SECRET);
        let beside = Reporter::new(tap.clone(), SECRET, FLOORS, Change(1));
        let (zone, reader) = SharedZone::make(ZONE).unwrap();
        let taker = Taker::new(&reader, &beside);
        let view = HostKeys::new(KeysConfig::new(1000)).unwrap();
        let parts = (watch, &beside, Change(1));
        let form = serde_json::to_value(items.form()).unwrap();
        let look_up = farmem::form::look_up(&form, &mut other).unwrap();
        let mut driver = Driver::new(Config::DEFAULT, view, parts, other, look_up, zone).unwrap();
        let mut program = MapProgram::new(client, items, 11, (tap, beside, taker));
        for _ in 0..150 {
            program.batch(16, |_| driver.settle().unwrap());
        }
        driver.settle().unwrap();
        (driver.prefetched(), (program.taken, program.asked))
    };
    let (near, counts) = run("thread");
    let (far, its_counts) = run("process");
    assert_eq!(near, far, "{name}");
    assert_eq!(counts, its_counts);
    assert!(near.account.used > 500 && counts.0 == near.account.used, "{near:?}, {counts:?}");
}

/// The DPU is a member of a program's heap while it reads the program's table. When the program goes, the DPU
/// leaves the heap. Nothing waits for a lease, and the heap can be destroyed. A request for a missing table
/// leaves no membership either.
#[test]
fn a_heap_is_left_with_the_program() {
    let rack = rack("shm", DPU);
    let mut client = client(&rack, DOMAIN);
    let InHeap { mut heap, table } = table_of(&mut client, "items");
    let form = table.form(&heap);
    let dpu = AtDpu::connect(&client, &form, (SECRET, Change(1)), options()).unwrap();
    let (connection, mut taker) = (dpu.tap().connection_of(ParserKind::HashMap).unwrap(), dpu.taker());
    connection.received(&record(Request::Read, &7_u64.to_le_bytes(), &[]));
    settle(&dpu, 1);
    let mut into = Vec::new();
    assert!(taker.take(&7_u64.to_le_bytes(), &mut into).is_some() && into == 8_u64.to_le_bytes());
    assert!(matches!(heap.check_exclusive(&mut client), Err(Error::Locked { .. })), "the DPU has it open");
    drop(dpu);
    await_it("the DPU has left it", || heap.check_exclusive(&mut client).is_ok());
    for (heap, table, why) in [("none", "items", "heap called"), ("items", "none", "structure called")] {
        let form = Form::Table { heap: heap.into(), table: table.into() };
        match AtDpu::connect(&client, &form, (SECRET, Change(1)), options()) {
            Err(Error::Refused(refused)) => assert!(refused.message.contains(why), "{refused:?}"),
            went => panic!("{went:?}"),
        }
    }
    // Names resolve in the program's own domain.
    let stranger = self::client(&rack, "strangers");
    let refused = AtDpu::connect(&stranger, &form, (SECRET, Change(1)), options()).unwrap_err();
    assert!(refused.to_string().contains("heap called"), "{refused}");
    heap.check_exclusive(&mut client).unwrap();
    table.destroy(&mut client, &mut heap).unwrap();
    heap.destroy(&mut client).unwrap();
}

/// A DPU that is stopped in order, as by `farmem down`, leaves the heap of the table that it read. Previously
/// the heap saw a dead member.
#[test]
fn a_dpu_that_is_stopped_has_left_the_heap() {
    let rack = TestRack::start_with("shm", 2, DPU);
    let mut client = client(&rack, DOMAIN);
    let InHeap { mut heap, table } = table_of(&mut client, "items");
    let (stop, (begun, has_begun)) = (Stop::new(), mpsc::channel());
    thread::scope(|scope| {
        let role = scope.spawn(|| {
            let mut begun = || begun.send(()).unwrap();
            let serving = serve::Serving::new(&stop, &mut begun);
            farmem::dpu::serve_with(&rack.config, serving, farmem::form::look_up)
        });
        has_begun.recv().unwrap();
        let dpu = AtDpu::connect(&client, &table.form(&heap), (SECRET, Change(1)), options()).unwrap();
        let connection = dpu.tap().connection_of(ParserKind::HashMap).unwrap();
        connection.received(&record(Request::Read, &7_u64.to_le_bytes(), &[]));
        assert_eq!(settle(&dpu, 1).account.wanted, 1);
        assert!(
            matches!(heap.check_exclusive(&mut client), Err(Error::Locked { .. })),
            "the DPU has it open"
        );
        stop.set();
        role.join().unwrap().unwrap();
        heap.check_exclusive(&mut client).unwrap();
    });
    table.destroy(&mut client, &mut heap).unwrap();
    heap.destroy(&mut client).unwrap();
}

/// The DPU is killed or stopped in the middle. The program notices, takes nothing more from the zone, and
/// reads by itself; each answer is right. A DPU that resumes is ignored. When a new DPU has started, the
/// program moves there and its changes continue (PROTOCOL 19.18).
#[test]
fn a_dpu_that_dies_costs_speed_only() {
    for signal in ["KILL", "STOP"] {
        let mut rack = rack("shm", DPU);
        let mut client = client(&rack, DOMAIN);
        let map = map_of(&mut client);
        let dpu = AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options()).unwrap();
        let mut program = MapProgram::at(&dpu, client, map, 21);
        for _ in 0..50 {
            program.batch(8, |program| {
                settle(&dpu, program.pieces);
            });
        }
        assert!(program.taken > 50);
        // The zone holds items at that moment.
        program.batch(8, |program| {
            settle(&dpu, program.pieces);
            rack.send("dpu", signal);
        });
        let since = Instant::now();
        while dpu.is_served() {
            program.batch(8, |_| ());
            assert!(since.elapsed() < Duration::from_secs(20), "it is noticed");
        }
        let taken = program.taken;
        if signal == "STOP" {
            rack.send("dpu", "CONT");
        }
        for _ in 0..100 {
            program.batch(8, |_| ());
        }
        assert_eq!(program.taken, taken, "nothing is taken from a DPU that was given up");
        assert!(!program.tap.is_watched() && !program.beside.is_heard());
        let next = if signal == "STOP" {
            dpu.again(&program.client).unwrap()
        } else {
            rack.kill("dpu");
            rack.begin("dpu");
            dpu.again(&program.client).unwrap()
        };
        drop(dpu);
        program.goes_to(&next);
        for _ in 0..50 {
            program.batch(8, |program| {
                settle(&next, program.pieces);
            });
        }
        assert!(program.taken > taken + 50, "{signal}: {} then, {taken} before", program.taken);
    }
}

/// The DPU's hosts are removed from the rack. The DPU learns of it when a fetch fails, and dismisses the
/// program, which continues alone and may connect again. Previously the DPU kept the program, and its zone
/// stayed empty for ever.
#[test]
fn a_fenced_dpu_sends_its_programs_away() {
    let rack = rack("shm", DPU);
    let mut client = client(&rack, DOMAIN);
    let map = map_of(&mut client);
    let dpu = AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options()).unwrap();
    let mut program = MapProgram::at(&dpu, client, map, 31);
    for _ in 0..20 {
        program.batch(8, |program| {
            settle(&dpu, program.pieces);
        });
    }
    let (own, _) = program.client.life();
    let hosts = serve::overview(&rack.config).unwrap().hosts;
    for host in hosts.iter().filter(|host| host.host != own) {
        program.client.fence(host.host, host.generation).unwrap();
    }
    let since = Instant::now();
    while dpu.is_served() {
        program.batch(8, |_| ());
        assert!(since.elapsed() < Duration::from_secs(20), "it is noticed");
    }
    let taken = program.taken;
    let next = dpu.again(&program.client).unwrap();
    program.goes_to(&next);
    for _ in 0..20 {
        program.batch(8, |program| {
            settle(&next, program.pieces);
        });
    }
    assert!(program.taken > taken + 20);
}

/// Returns the resources that a DPU process holds for programs: prefetching threads, and shared memory files.
pub(super) fn of_programs(rack: &TestRack) -> (usize, usize) {
    let process = format!("/proc/{}", rack.pid("dpu"));
    let threads = std::fs::read_dir(format!("{process}/task")).unwrap();
    let names =
        threads.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).ok());
    let maps = std::fs::read_to_string(format!("{process}/maps")).unwrap();
    (names.filter(|name| name.starts_with("dpu ahead")).count(), maps.matches("farmem-dpu").count())
}

/// Runs in its own process: connects to the DPU, reports it, and waits to be killed.
pub(crate) fn prefetched_for(_: &SharedSpace, _: &[u64], test: &mut Test) -> u64 {
    let mut client = Rack::running(rig::config()).client(DOMAIN).unwrap();
    let map = map_of(&mut client);
    let dpu = AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options()).unwrap();
    let mut program = MapProgram::at(&dpu, client, map, 5);
    for _ in 0..20 {
        program.batch(8, |program| {
            settle(&dpu, program.pieces);
        });
    }
    assert!(program.taken > 20);
    test.say("prefetched for");
    loop {
        program.batch(8, |_| ());
    }
}

/// A program is killed while the DPU prefetches for it. The DPU then has neither a thread nor memory for it,
/// and serves others. The number of programs is bounded, and slots of ended programs are reused.
#[test]
fn a_program_that_dies_leaves_nothing_at_the_dpu() {
    let rack = rack("shm", DPU);
    let mut client = client(&rack, DOMAIN);
    let nothing = of_programs(&rack);
    assert_eq!(nothing.0, 0);
    let mut program = rack.run("prefetched for", &[]);
    program.await_word("prefetched for");
    let with_it = of_programs(&rack);
    assert!(with_it.0 == 1 && with_it.1 >= nothing.1 + 3, "{with_it:?} after {nothing:?}");
    program.kill();
    await_it("all of it is gone", || of_programs(&rack) == nothing);
    let map = map_of(&mut client);
    let come = || AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options());
    let all: Vec<AtDpu> = (0..12).map(|_| come().unwrap()).collect();
    drop(all);
    await_it("all of them are gone", || of_programs(&rack) == nothing);
    assert!(come().is_ok());
}

/// Each invalid form and each invalid value is refused by name, and nothing is left of the attempt.
#[test]
fn what_cannot_be_prefetched_from_is_refused() {
    let rack = rack("shm", DPU);
    let mut client = client(&rack, DOMAIN);
    let map = map_of(&mut client);
    let good = serde_json::to_value(map.form()).unwrap();
    let with = |at: &str, value: serde_json::Value| {
        let mut form = good.clone();
        *form.pointer_mut(at).expect("a value of the form") = value;
        form
    };
    let table = HashTable::create(&mut client, 100, 64, Spread::Scattered).unwrap();
    let of_table = serde_json::to_value(table.form()).unwrap();
    let chained = |at: &str, value: serde_json::Value| {
        let mut form = of_table.clone();
        *form["hash_table"].pointer_mut(at).expect("a value of the form") = value;
        form
    };
    let huge = serde_json::json!(u64::MAX);
    for (form, why) in [
        (serde_json::json!({"tree": {}}), "unknown variant `tree`"),
        (serde_json::json!(7), "invalid type"),
        (with("/flat_map/shards", serde_json::json!([])), "number of shards"),
        (with("/flat_map/shards/0/node", serde_json::json!(99)), "memory node 99"),
        (with("/flat_map/shards/1/base", huge.clone()), "leave all memory"),
        (with("/flat_map/shards/1/size", serde_json::json!(4096)), "shard 1 has a size"),
        (with("/flat_map/homes", serde_json::json!(0)), "homes is 0"),
        (with("/flat_map/homes", huge.clone()), "homes is 18446744073709551615"),
        (with("/flat_map/value_len", serde_json::json!(0)), "value_len is 0"),
        (with("/flat_map/value_len", huge), "value_len is"),
        (with("/flat_map/secret", serde_json::json!([1])), "secret"),
        (serde_json::json!({"page_store": {"shards": [], "pages": 0}}), "pages is 0"),
        (chained("/shards", serde_json::json!([])), "number of shards"),
        (chained("/shards/0/node", serde_json::json!(99)), "memory node 99"),
        (chained("/shards/1/base", serde_json::json!(u64::MAX)), "leave all memory"),
        (chained("/shards/1/size", serde_json::json!(64)), "shard 1 has a size"),
        (chained("/buckets", serde_json::json!(0)), "buckets is 0"),
        (chained("/buckets", serde_json::json!(1_u64 << 51)), "buckets is 2251799813685248"),
        (chained("/buckets", serde_json::json!(48)), "must be a power of two"),
        (chained("/buckets", serde_json::json!(1_u64 << 50)), "shard 0 has a size"),
    ] {
        match AtDpu::connect(&client, &form, (SECRET, Change(1)), options()) {
            Err(Error::Refused(refused)) => {
                assert!(refused.message.contains(why) || why == "secret", "{form}: {refused:?}");
            }
            went => panic!("{form}: {went:?}"),
        }
    }
    let config = Config { flying_keys_max: u32::MAX, ..Config::DEFAULT };
    for (options, why) in [
        (AtDpuOptions { config, ..options() }, "flying_keys_max"),
        (AtDpuOptions { keys: 0, ..options() }, "keys is 0"),
    ] {
        let refused = AtDpu::connect(&client, &good, (SECRET, Change(1)), options).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    // Records in far memory are the program's statements, too.
    let InHeap { mut heap, table } = table_of(&mut client, "items");
    let at = heap.root(&mut client, "items", *b"farmemTB").unwrap();
    let (kind, good_record) = heap.read(&mut client, Record { at, len: 8 }).unwrap();
    let said = Record { at, len: u32::try_from(good_record.len()).unwrap() };
    let forged = [&(1_u64 << 63).to_le_bytes(), &good_record[8..]].concat();
    heap.write(&mut client, said, kind, &forged).unwrap();
    let refused = AtDpu::connect(&client, &table.form(&heap), (SECRET, Change(1)), options()).unwrap_err();
    assert!(refused.to_string().contains("9223372036854775808 buckets"), "{refused}");
    heap.write(&mut client, said, kind, &good_record).unwrap();
    let of_table = AtDpu::connect(&client, &table.form(&heap), (SECRET, Change(1)), options()).unwrap();
    let connection = of_table.tap().connection_of(ParserKind::HashMap).unwrap();
    connection.received(&record(Request::Read, &7_u64.to_le_bytes(), &[]));
    assert_eq!(settle(&of_table, 1).account.wanted, 1);
    drop((connection, of_table));
    await_it("nothing is left", || of_programs(&rack).0 == 0);
    // A form that states a wrong place finds nothing and harms no other program.
    let away = with("/flat_map/shards/0/base", serde_json::json!(1_u64 << 60));
    let lost = AtDpu::connect(&client, &away, (SECRET, Change(1)), options()).unwrap();
    let dpu = AtDpu::connect(&client, &good, (SECRET, Change(1)), options()).unwrap();
    for at in [&lost, &dpu] {
        let connection = at.tap().connection_of(ParserKind::HashMap).unwrap();
        let piece: Vec<u8> =
            (0..60_u64).flat_map(|key| record(Request::Read, &key.to_le_bytes(), &[])).collect();
        connection.received(&piece);
    }
    let all = settle(&dpu, 1);
    assert_eq!((all.account.wanted, all.account.wasted), (60, 0), "{all:?}");
    settle(&lost, 1);
    // As many programs as the bound allows.
    let come = || AtDpu::connect(&client, &good, (SECRET, Change(1)), options());
    let more: Vec<AtDpu> = (2..16).map(|_| come().unwrap()).collect();
    let refused = come().unwrap_err();
    assert!(refused.to_string().contains("16 programs"), "{refused}");
    drop(more);
    await_it("they are gone", || of_programs(&rack).0 == 2);
    assert!(come().is_ok());
}
