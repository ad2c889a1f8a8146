//! Processes that go while something of them may still be written, and the next process at the DPU (PROTOCOL
//! 17.21, 17.22).

use super::dpu::{DPU, client, rack, written};
use super::dpu_hostile::{ask, guest, guest_with_rings, hear};
use super::rig::TestRack;
use farmem::{Client, NodeId, serve};
use farmem_link::dpu::DpuSocket;
use farmem_wire::soda::{Answer, Ended, Request, Span};
use std::thread;

/// The factor of all words.
const SEED: u64 = 3;
/// Connections of a process that waits until the DPU lets it open an allocation.
const TRIES: usize = 500;

fn open(base: u64, write: bool) -> String {
    format!(r#"{{"open":{{"region":1,"base":{base},"write":{write}}}}}"#)
}

/// A host in one generation of it.
type Life = (u16, u16);

/// Returns the hosts of the rack, each with those that it acts for.
fn hosts(rack: &TestRack) -> Vec<(Life, Vec<Life>)> {
    let hosts = serve::overview(&rack.config).unwrap().hosts;
    hosts.into_iter().map(|host| ((host.host, host.generation), host.acts_for)).collect()
}

/// Opens an allocation by a new connection. Returns the connection if the DPU lets it.
fn opens(rack: &TestRack, client: &Client, base: u64) -> Option<DpuSocket> {
    let talk = guest(rack, client);
    talk.say(open(base, true).as_bytes(), None).unwrap();
    // A DPU whose host has left the rack dismisses its processes.
    let (said, _) = talk.hear().ok().flatten()?;
    String::from_utf8(said).unwrap().contains("done").then_some(talk)
}

/// The DPU of a process that writes is killed. The process runs on, writes directly, and another DPU starts.
/// The new DPU keeps the allocation from others until the host of the process has left the rack. Previously it
/// knew of no such process, and let another write beside it. The process itself may open the allocation again.
#[test]
fn a_restarted_dpu_keeps_what_an_earlier_process_has_open_from_others() {
    let mut rack = rack("udp", DPU);
    let (mut earlier, other) = (client(&rack, "served"), client(&rack, "served"));
    let vma = written(&mut earlier, SEED);
    let first = guest(&rack, &earlier);
    assert!(ask(&first, &open(vma.base.0, true), None).contains("done"));
    rack.kill("dpu");
    earlier.write(vma.base, b"straight").unwrap();
    rack.begin("dpu");

    let second = guest(&rack, &other);
    for write in [true, false] {
        let said = ask(&second, &open(vma.base.0, write), None);
        assert!(said.contains("unavailable") && said.contains("earlier DPU"), "{said}");
    }
    let again = guest(&rack, &earlier);
    assert!(ask(&again, &open(vma.base.0, true), None).contains("done"), "its own");
    drop(again);
    let said = ask(&second, &open(vma.base.0, true), None);
    assert!(said.contains("unavailable") || said.contains("conflict"), "it writes directly still: {said}");
    let life = earlier.life();
    drop(earlier);
    assert!(hosts(&rack).iter().all(|(host, _)| *host != life), "its host has left");
    let opened = (0..TRIES).find_map(|_| opens(&rack, &other, vma.base.0));
    assert!(opened.is_some());
}

/// A write fails, because its memory node stands still, and the process ends. The memory node may still carry
/// the write out. The DPU fences its own host before another process opens the allocation.
/// Previously another could open it at once.
#[test]
fn a_failed_write_of_a_killed_process_has_the_dpu_fenced() {
    let rack = rack("udp", DPU);
    let (mut killed, other) = (client(&rack, "served"), client(&rack, "served"));
    let vma = killed.allocate_on(1 << 16, NodeId(1)).unwrap();
    let (talk, mut rings) = guest_with_rings(&rack, &killed);
    assert!(ask(&talk, &open(vma.base.0, true), None).contains("done"));
    let acting = hosts(&rack).into_iter().find(|(_, acts_for)| acts_for.contains(&killed.life()));
    let (dpu, _) = acting.expect("the DPU acts for the process");
    rack.send("node1", "STOP");
    let mut record = Vec::new();
    Request::Write { span: Span { region: 1, offset: 0, size: 4 }, data: b"late" }.emit(&mut record);
    assert!(rings.push(&record).unwrap());
    rings.publish();
    let mut buf = vec![0; 1 << 12];
    let len = loop {
        match rings.pop(&mut buf).unwrap() {
            Some(len) => break len,
            None => thread::yield_now(),
        }
    };
    assert_eq!(Answer::parse(&buf[..len]).unwrap().ended, Ended::Failed);
    rack.send("node1", "CONT");
    // What a killed process leaves: its socket is closed.
    drop(talk);
    drop(rings);
    let opened = (0..TRIES).find_map(|_| opens(&rack, &other, vma.base.0)).expect("it opens");
    assert!(hosts(&rack).iter().all(|(host, _)| *host != dpu), "the DPU's host has left the rack first");
    drop(opened);
}

/// A DPU dismisses a process, which continues with direct writes and is killed. A node may still execute its last
/// write, and the DPU does not know of it. The host of the process leaves the rack before another process opens the
/// allocation. Previously another could open it at once (PROTOCOL 17.17).
#[test]
fn a_dismissed_process_that_was_killed_is_fenced() {
    let rack = rack("udp", DPU);
    let (mut killed, other) = (client(&rack, "served"), client(&rack, "served"));
    let vma = written(&mut killed, SEED);
    let (talk, mut rings) = guest_with_rings(&rack, &killed);
    assert!(ask(&talk, &open(vma.base.0, true), None).contains("done"));
    assert!(rings.push(b"nonsense").unwrap());
    rings.publish();
    assert_eq!(hear(&talk), r#"{"farewell":{"settled":true}}"#);
    killed.write(vma.base, b"straight").unwrap();
    let life = killed.life();
    // What a killed process leaves: its socket is closed, and it did not say that it has finished.
    drop(talk);
    drop(rings);
    let opened = (0..TRIES).find_map(|_| opens(&rack, &other, vma.base.0)).expect("it opens");
    assert!(
        hosts(&rack).iter().all(|(host, _)| *host != life),
        "the host of the process has left the rack first"
    );
    drop(opened);
}
