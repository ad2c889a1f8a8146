//! Hostile programs at a prefetching DPU: ones that stay, reconnect or ask for too much. The DPU's resources
//! for a program end with it, and its promised memory is released.

use super::ahead::{map_of, of_programs};
use super::dpu::{DPU, client, rack};
use super::dpu_hostile::{ask, guest, hear};
use super::rig::{DOMAIN, TestRack};
use crate::map_program::{InHeap, SECRET, ZONE, await_it, options, record, table_of};
use farmem::dpu::AnyLookUp;
use farmem::prefetch::parse::records::Request;
use farmem::prefetch::tap::ParserKind;
use farmem::prefetch::{AtDpu, Change};
use farmem::{Client, Completed, Error, LookUp, LookedUp, Op, serve};
use farmem_link::dpu::{DpuSocket, SubmissionSender, make_submissions};
use farmem_link::{OutsideWaker, Stop, WakeAt};
use farmem_prefetch::loading_zone::make_zone;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc;
use std::thread;

const RING: usize = 1 << 16;

/// A program drops its connection to the DPU, or reconnects to one that it had abandoned, while its threads
/// still hold ring ends and takers. The DPU keeps nothing of the old connection. Previously it kept thread,
/// host and zone until the last of those ends was dropped (PROTOCOL 19.15).
#[test]
fn what_threads_have_still_keeps_nothing_at_the_dpu() {
    let rack = rack("shm", DPU);
    let mut client = client(&rack, DOMAIN);
    let map = map_of(&mut client);
    let nothing = of_programs(&rack);
    let dpu = AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options()).unwrap();
    let connection = dpu.tap().connection_of(ParserKind::HashMap).unwrap();
    let mut held = vec![(dpu.beside(), dpu.taker(), connection)];
    let with_one = of_programs(&rack);
    assert_eq!(with_one.0, 1);
    let next = dpu.again(&client).unwrap();
    assert!(!dpu.is_served() && next.is_served());
    held.push((next.beside(), next.taker(), next.tap().connection_of(ParserKind::HashMap).unwrap()));
    await_it("the old stay is over", || of_programs(&rack) == with_one);
    drop(next);
    await_it("both are", || of_programs(&rack) == nothing);
    for (beside, taker, connection) in &mut held {
        connection.received(b"not heard");
        assert!(!beside.is_heard() && taker.take(b"a key", &mut Vec::new()).is_none());
    }
}

/// The DPU stands still, and the program sends nothing: a query reveals it. Previously only a report from the
/// program revealed it (PROTOCOL 19.18).
#[test]
fn a_program_that_says_nothing_notices_too() {
    for signal in ["KILL", "STOP"] {
        let rack = rack("shm", DPU);
        let mut client = client(&rack, DOMAIN);
        let map = map_of(&mut client);
        let dpu = AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options()).unwrap();
        assert!(dpu.is_served());
        rack.send("dpu", signal);
        await_it("it is noticed", || !dpu.is_served());
        rack.send("dpu", "CONT");
    }
}

/// Hands over all three parts, with one ring as two of them.
fn hand_over(talk: &DpuSocket) -> OwnedFd {
    let ring = make_submissions(RING).unwrap();
    for which in ["tap", "beside"] {
        let said = ask(talk, &format!(r#"{{"{which}":{{"bytes":{RING}}}}}"#), Some(ring.as_fd()));
        assert!(said.contains("done"), "{said}");
    }
    let zone = make_zone(ZONE).unwrap();
    let said = ask(
        talk,
        &serde_json::json!({"zone": {"size": {"items": ZONE.items, "data": ZONE.data}}}).to_string(),
        Some(zone.as_fd()),
    );
    assert!(said.contains("done"), "{said}");
    ring
}

fn prefetch(structure: &serde_json::Value, keys: u64) -> String {
    let config = serde_json::json!({
        "batch_keys_max": 8, "batch_bytes_max": 1024, "flying_keys_max": 64, "recent_keys": 64, "keeps": true,
    });
    let how = serde_json::json!({"secret": [1, 2], "keys": keys, "config": config});
    serde_json::json!({"prefetch": {"structure": structure, "how": how, "through": 1}}).to_string()
}

/// A process requests the maximum with an invalid form, again and again over one socket. Each request is
/// refused for its form, and the last one, with a valid form, is served. Previously each attempt was charged
/// for good, until the DPU had "promised" all memory of the machine. Parts already handed over stay while a
/// part is missing.
#[test]
fn what_cannot_begin_is_not_charged() {
    let rack = rack("shm", DPU);
    let mut client = client(&rack, DOMAIN);
    let form = serde_json::to_value(map_of(&mut client).form()).unwrap();
    let talk = guest(&rack, &client);
    let ring = make_submissions(RING).unwrap();
    let said = ask(&talk, &format!(r#"{{"tap":{{"bytes":{RING}}}}}"#), Some(ring.as_fd()));
    assert!(said.contains("done"), "{said}");
    let said = ask(&talk, &prefetch(&form, 10), None);
    assert!(said.contains("before beside"), "{said}");
    let said = ask(&talk, &format!(r#"{{"tap":{{"bytes":{RING}}}}}"#), Some(ring.as_fd()));
    assert!(said.contains("conflict"), "{said}");
    let talk = guest(&rack, &client);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = memory.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap();
    let keys = 1 << 28;
    for _ in 0..=(kib << 10) / (9 * keys) {
        hand_over(&talk);
        let said = ask(&talk, &prefetch(&"no structure".into(), keys), None);
        assert!(said.contains("unknown variant"), "{said}");
    }
    hand_over(&talk);
    let said = ask(&talk, &prefetch(&form, 1000), None);
    assert!(said.contains("prefetches"), "{said}");
}

/// The control plane stands still, so the prefetching thread cannot join the rack, and the process is told to
/// retry. The process retries over the same socket, and is served when the control plane continues. The first
/// thread's end answers no request and costs no process its connection. Previously the process was refused
/// for ever.
#[test]
fn what_did_not_begin_in_time_is_tried_again() {
    let rack = rack("shm", DPU);
    let mut client = client(&rack, DOMAIN);
    let form = serde_json::to_value(map_of(&mut client).form()).unwrap();
    let talk = guest(&rack, &client);
    hand_over(&talk);
    rack.send("control", "STOP");
    let said = ask(&talk, &prefetch(&form, 1000), None);
    assert!(said.contains("again"), "{said}");
    hand_over(&talk);
    talk.say(prefetch(&form, 1000).as_bytes(), None).unwrap();
    rack.send("control", "CONT");
    let said = hear(&talk);
    assert!(said.contains("prefetches"), "{said}");
    await_it("the first thread has ended", || of_programs(&rack).0 == 1);
    let said = ask(&talk, r#"{"prefetched":{}}"#, None);
    assert!(said.contains("wanted"), "{said}");
}

/// A table that panics when this key is read.
struct Fragile(AnyLookUp);

const UNREADABLE: u64 = 13;

impl LookUp for Fragile {
    fn begin(&mut self, client: &mut Client) -> Result<(), Error> {
        self.0.begin(client)
    }

    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op> {
        assert_ne!(key, UNREADABLE.to_le_bytes(), "this key is wanted by a test that a thread panics of");
        self.0.op(key, scratch)
    }

    fn looked_up(&self, at: usize, key: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp {
        self.0.looked_up(at, key, completed, into)
    }

    fn end(&mut self, client: &mut Client) -> Result<(), Error> {
        self.0.end(client)
    }

    fn leave(&mut self, client: &mut Client) -> Result<(), Error> {
        self.0.leave(client)
    }
}

/// Stops a DPU thread of the test, also when the test fails; otherwise the test would wait for it without
/// end.
struct StopGuard<'a>(&'a Stop);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

fn fragile(form: &serde_json::Value, client: &mut Client) -> Result<AnyLookUp, Error> {
    Ok(Box::new(Fragile(farmem::form::look_up(form, client)?)))
}

/// The thread that prefetches from a table in a heap ends by itself: it panics during a look-up, or its
/// program writes an invalid piece into its ring. The program is dismissed, and the thread has left the heap
/// by then, so no lease needs to expire. Another program is prefetched for all the while (PROTOCOL 19.18).
#[test]
fn whatever_ends_a_thread_leaves_its_heap() {
    let rack = TestRack::start_with("shm", 2, DPU);
    let mut client = client(&rack, DOMAIN);
    let map = map_of(&mut client);
    let InHeap { mut heap, table } = table_of(&mut client, "items");
    let (stop, (begun, has_begun)) = (Stop::new(), mpsc::channel());
    let reads = |key: u64| record(Request::Read, &key.to_le_bytes(), &[]);
    thread::scope(|scope| {
        let role = scope.spawn(|| {
            let mut begun = || begun.send(()).unwrap();
            farmem::dpu::serve_with(&rack.config, serve::Serving::new(&stop, &mut begun), fragile)
        });
        let ends = StopGuard(&stop);
        has_begun.recv().unwrap();
        let other = AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options()).unwrap();
        let of_other = other.tap().connection_of(ParserKind::HashMap).unwrap();
        for round in 0..2 {
            let panics = AtDpu::connect(&client, &table.form(&heap), (SECRET, Change(1)), options()).unwrap();
            let connection = panics.tap().connection_of(ParserKind::HashMap).unwrap();
            connection.received(&reads(UNREADABLE - 1));
            await_it("it prefetches", || panics.prefetched().unwrap().account.wanted == 1);
            assert!(
                matches!(heap.check_exclusive(&mut client), Err(Error::Locked { .. })),
                "the DPU has it open"
            );
            connection.received(&reads(UNREADABLE));
            await_it("it is sent away", || !panics.is_served());
            heap.check_exclusive(&mut client).unwrap();
            let talk = guest(&rack, &client);
            let ring = hand_over(&talk);
            let said = ask(&talk, &prefetch(&serde_json::to_value(table.form(&heap)).unwrap(), 1000), None);
            assert!(said.contains("prefetches"), "{said}");
            assert!(
                matches!(heap.check_exclusive(&mut client), Err(Error::Locked { .. })),
                "the DPU has it open"
            );
            let unheard = WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 3, 5)) };
            let ring = SubmissionSender::of(&ring, RING, OutsideWaker::open(&unheard).unwrap()).unwrap();
            assert!(ring.push_quietly(b"no piece of a connection").unwrap());
            assert!(hear(&talk).contains("farewell"), "it is sent away");
            heap.check_exclusive(&mut client).unwrap();
            of_other.received(&reads(round));
            await_it("the other one is served", || other.prefetched().unwrap().account.wanted == round + 1);
        }
        drop((of_other, other));
        drop(ends);
        role.join().unwrap().unwrap();
    });
    table.destroy(&mut client, &mut heap).unwrap();
    heap.destroy(&mut client).unwrap();
}
