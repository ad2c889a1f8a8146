//! Programs that stay, come again or ask for too much at the DPU that prefetches for them: what it has of each ends with it, and what it promised is given back.

use super::ahead::{map_of, of_programs};
use super::dpu::{DPU, client, rack};
use super::dpu_hostile::{ask, guest, hear};
use super::rig::DOMAIN;
use crate::map_program::{SECRET, ZONE, await_it, options};
use farmem::prefetch::tap::Known;
use farmem::prefetch::{AtDpu, Change};
use farmem_io::dpu::zone::make_zone;
use farmem_io::dpu::{Talk, make_submissions};
use std::os::fd::AsFd as _;

const RING: usize = 1 << 16;

/// A program drops its hold of the DPU, or comes again to one that it gave up, while its threads have ends of rings and takers: the DPU keeps nothing of the old stay. Before, it kept thread, host and zone until
/// the last of those ends went. (PROTOCOL 19.15)
#[test]
fn what_threads_have_still_keeps_nothing_at_the_dpu() {
    let rack = rack("shm", DPU);
    let mut client = client(&rack, DOMAIN);
    let map = map_of(&mut client);
    let nothing = of_programs(&rack);
    let dpu = AtDpu::connect(&client, &map.form(), (SECRET, Change(1)), options()).unwrap();
    let connection = dpu.tap().connection_of(Known::HashMap).unwrap();
    let mut held = vec![(dpu.beside(), dpu.taker(), connection)];
    let with_one = of_programs(&rack);
    assert_eq!(with_one.0, 1);
    let next = dpu.again(&client).unwrap();
    assert!(!dpu.is_served() && next.is_served());
    held.push((next.beside(), next.taker(), next.tap().connection_of(Known::HashMap).unwrap()));
    await_it("the old stay is over", || of_programs(&rack) == with_one);
    drop(next);
    await_it("both are", || of_programs(&rack) == nothing);
    for (beside, taker, connection) in &mut held {
        connection.received(b"nobody hears");
        assert!(!beside.is_heard() && taker.take(b"a key", &mut Vec::new()).is_none());
    }
}

/// The DPU stands still, and the program says nothing: it finds that out by asking. Before, only what it said looked. (PROTOCOL 19.18)
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

/// Hands over all three parts.
fn hand_over(talk: &Talk) {
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
}

fn prefetch(structure: &serde_json::Value, keys: u64) -> String {
    let config = serde_json::json!({
        "batch_keys_max": 8, "batch_bytes_max": 1024, "flying_keys_max": 64, "recent_keys": 64, "keeps": true,
    });
    let how = serde_json::json!({"secret": [1, 2], "keys": keys, "config": config});
    serde_json::json!({"prefetch": {"structure": structure, "how": how, "through": 1}}).to_string()
}

/// A process asks for as much as a program may have, from a form that is none, again and again by one socket: each is refused for its form, and the last one, with a right one, is served. Before, each try was
/// charged for good, until the DPU had "promised" all memory of the machine. What was handed over stays where a part is missing.
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
    assert!(said.contains("without beside"), "{said}");
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

/// The control plane stands still, so the thread that is to prefetch cannot join the rack, and the process is told to try again. It does, by the same socket, and is served when the control plane goes on; what
/// becomes of the first thread is nobody's answer, and costs nobody its stay. Before, the process was refused for ever.
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
