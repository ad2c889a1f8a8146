//! Invalid processes at a DPU, and an invalid DPU: each gets an error that names the fault, and the others
//! continue.

use super::dpu::{DPU, DPU_PAGE, check, client, rack, rack_without_process, reading, run, written};
use super::rig::TestRack;
use farmem::window::{Ahead, WindowOptions, with_window};
use farmem::{Client, Error, NodeId, Rack, serve};
use farmem_link::dpu::{DpuSocket, Listener, PairSize, ProcessEnd, Requests, make_pair};
use farmem_link::{OpenError, OutsideWaker, WakeAt};
use farmem_wire::soda::{Answer, Dest, Ended, Request, Span};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::thread;

/// The factor of all words.
const SEED: u64 = 3;
const PAIR: PairSize = PairSize { requests: 1 << 18, answers: 1 << 16, registered: 1 << 20 };

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn hello(rack: &TestRack, client: &Client, domain: u32, size: PairSize) -> String {
    let (host, generation) = client.life();
    let mark = rack.config.dpu.as_ref().unwrap().mark().unwrap();
    let size = serde_json::to_string(&size).unwrap();
    let life = format!(r#""host":{host},"generation":{generation}"#);
    let life_key = format!(r#""version":"{}","rack":"{mark}","domain":{domain},{life}"#, version());
    format!(r#"{{"hello":{{{life_key},"size":{size}}}}}"#)
}

fn talk(rack: &TestRack) -> DpuSocket {
    DpuSocket::connect(&rack.config.dpu.as_ref().unwrap().socket).unwrap()
}

pub(super) fn hear(talk: &DpuSocket) -> String {
    let (bytes, _) = talk.hear().unwrap().expect("the DPU is there");
    String::from_utf8(bytes).unwrap()
}

/// Sends a request and returns the final reply, skipping `soon`.
pub(super) fn ask(talk: &DpuSocket, what: &str, file: Option<BorrowedFd<'_>>) -> String {
    talk.say(what.as_bytes(), file).unwrap();
    match hear(talk) {
        soon if soon.contains("soon") => hear(talk),
        said => said,
    }
}

/// Connects a process to the DPU.
pub(super) fn guest(rack: &TestRack, client: &Client) -> DpuSocket {
    guest_with_rings(rack, client).0
}

/// Connects a process and returns its rings. The process rings no doorbell: the DPU polls.
pub(super) fn guest_with_rings(rack: &TestRack, client: &Client) -> (DpuSocket, ProcessEnd) {
    let talk = talk(rack);
    let file = make_pair(PAIR).unwrap();
    let said = ask(&talk, &hello(rack, client, client.domain(), PAIR), Some(file.as_fd()));
    assert!(said.contains("welcome"), "{said}");
    let unheard = WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 3, 2)) };
    (talk, ProcessEnd::of(&file, PAIR, OutsideWaker::open(&unheard).unwrap()).unwrap())
}

/// Returns true when a program reads everything through the DPU.
fn is_served(client: &mut Client, vma: &farmem::Vma) -> bool {
    let ahead = WindowOptions { ahead: Ahead::Group(4), ..reading() };
    let ran = run(client, vma, ahead, |memory| check(&memory, SEED));
    ran.is_none_or(|(_, stats)| !stats.dpu_fenced && stats.dpu.is_some_and(|dpu| dpu.reads > 0))
}

/// Two racks of one machine have their DPU at one path, as two with the same name and no `socket` setting do.
/// A window that reached the other rack's DPU would read that rack's memory, with the same domain and
/// addresses. The window is refused, and the error says what to do.
#[test]
fn the_dpu_of_another_rack_is_refused() {
    let (own, other) = (rack("udp", DPU), rack("udp", DPU));
    let mut config = own.config.clone();
    config.dpu.as_mut().unwrap().socket.clone_from(&other.config.dpu.as_ref().unwrap().socket);
    let mut theirs = client(&other, "same");
    written(&mut theirs, SEED + 2);
    let mut client = Rack::running(config).client("same").unwrap();
    let vma = written(&mut client, SEED);
    match with_window(&mut client, &vma, reading(), |_| ()) {
        Err(Error::Refused(refused)) => {
            assert!(refused.message.contains("another rack"), "{refused:?}");
            assert!(refused.remedy.contains("socket ="), "{refused:?}");
        }
        Err(Error::Open(refused @ OpenError::NotPermitted { .. })) => eprintln!("skipped: {refused}"),
        went => panic!("a window by way of another rack's DPU: {went:?}"),
    }
}

/// Invalid messages, files that are no memory, impossible keys and regions, too many of them, and silent
/// processes: each is refused with a message, or makes room. A window beside them is served.
#[test]
fn what_a_hostile_process_says_is_refused() {
    let rack = rack("udp", DPU);
    let mut client = client(&rack, "victim");
    let vma = written(&mut client, SEED);
    let (pair, null) = (make_pair(PAIR).unwrap(), File::open("/dev/null").unwrap());
    let (pipe, _other_end) = std::io::pipe().unwrap();
    let right = hello(&rack, &client, client.domain(), PAIR);
    let smaller = hello(&rack, &client, client.domain(), PairSize { registered: 0, ..PAIR });
    let no_domain = hello(&rack, &client, 4_000_000_000, PAIR);
    let old = right.replace(version(), "0.0.0");
    let foreign = right.replace(&rack.config.dpu.as_ref().unwrap().mark().unwrap(), &"0".repeat(32));
    let (long, none): (String, Option<BorrowedFd<'_>>) = ("x".repeat(1 << 16), None);
    let memory = Some(pair.as_fd());
    for (what, file, why) in [
        ("nonsense", memory, "no message"),
        ("{}", memory, "no message"),
        (r#"{"stats":{}}"#, memory, "before hello"),
        (&long, none, "no message"),
        (&right, none, "without memory"),
        (&right, Some(null.as_fd()), "no memory file"),
        (&right, Some(pipe.as_fd()), "no memory file"),
        (&smaller, memory, "size"),
        (&no_domain, memory, "no domain"),
        (&old, memory, "of farmem"),
        (&foreign, memory, "another rack"),
    ] {
        let said = ask(&talk(&rack), what, file);
        assert!(said.contains("refused") && said.contains(why), "{what:.80}: {said}");
    }
    let guest = guest(&rack, &client);
    let open =
        |region: u32| format!(r#"{{"open":{{"region":{region},"base":{},"write":false}}}}"#, vma.base.0);
    let register = |rkey: u32| format!(r#"{{"register":{{"rkey":{rkey},"most":4096}}}}"#);
    let more = format!(r#"{{"register":{{"rkey":2,"most":{}}}}}"#, u64::MAX);
    for (what, file, why) in [
        (right.clone(), memory, "hello"),
        (format!(r#"{{"open":{{"region":1,"base":{},"write":true}}}}"#, vma.base.0 + 8), none, "first byte"),
        (open(70_000), none, "no message"),
        (r#"{"policy":{"region":9,"policy":"nothing"}}"#.to_owned(), none, "not open"),
        (more, memory, "this machine has"),
        (r#"{"fix":{"region":9,"offset":0,"len":1}}"#.to_owned(), none, "not open"),
        (register(2), none, "without a file"),
        (register(2), Some(null.as_fd()), "no memory file"),
        (register(0), memory, "key 0"),
        (register(1), memory, "key 1"),
    ] {
        let said = ask(&guest, &what, file);
        assert!(said.contains("refused") && said.contains(why), "{what}: {said}");
    }
    let many = |what: &dyn Fn(u32) -> String, file, from: u32, most: usize| {
        let done =
            (from..).map(|n| ask(&guest, &what(n), file)).take_while(|said| said.contains("done")).count();
        assert_eq!(done, most, "{}", what(from));
    };
    many(&register, memory, 2, 16);
    many(&open, none, 1, 1024);
    let fix = format!(r#"{{"fix":{{"region":1,"offset":{},"len":{}}}}}"#, u64::MAX, u64::MAX);
    assert!(ask(&guest, &fix, none).contains("cannot be cached"), "what leaves its region");
    let part = |from: u64, len: u64| {
        let part = format!(r#"{{"policy":{{"region":1,"policy":"nothing","part":[{from},{len}]}}}}"#);
        ask(&guest, &part, none)
    };
    for (from, len) in [(0, 0), (0, u64::MAX), (u64::MAX, 1), (vma.size, 1)] {
        assert!(part(from, len).contains("no advice"), "{len} bytes from {from} on");
    }
    let kept = (0..vma.size / DPU_PAGE).take_while(|page| part(page * DPU_PAGE, 1).contains("done")).count();
    assert_eq!(kept, 64, "parts with advice of their own");
    // Some connect and stay silent, more than may wait; some disconnect in the middle of a message.
    let silent: Vec<DpuSocket> = (0..300).map(|_| talk(&rack)).collect();
    (0..100).for_each(|_| drop(talk(&rack)));
    assert!(is_served(&mut client, &vma));
    drop((silent, guest));
    assert!(is_served(&mut client, &vma));
}

/// A process closes a region, and another may write the allocation. The process opens and closes more regions
/// in total than it may have at once. When no process of a domain is at the DPU for a lease, its client of
/// the domain leaves the rack and returns with the next process.
#[test]
fn unused_connections_end_by_themselves() {
    let rack = rack("udp", DPU);
    let mut client = client(&rack, "served");
    let vma = written(&mut client, SEED);
    let [one, two] = [guest(&rack, &client), guest(&rack, &client)];
    let open = |region: u32, write: bool| {
        format!(r#"{{"open":{{"region":{region},"base":{},"write":{write}}}}}"#, vma.base.0)
    };
    let close = |region: u32| format!(r#"{{"close":{{"region":{region}}}}}"#);
    assert!(ask(&one, &open(1, true), None).contains("done"));
    assert!(ask(&two, &open(1, true), None).contains("is open at this DPU"));
    assert!(ask(&two, &close(1), None).contains("not open"));
    assert!(ask(&one, &close(1), None).contains("done"));
    assert!(ask(&one, &close(1), None).contains("not open"));
    assert!(ask(&two, &open(1, true), None).contains("done"));
    assert!(ask(&two, &close(1), None).contains("done"));
    for region in 0..1030 {
        assert!(ask(&one, &open(region, false), None).contains("done"), "1,024 at once, and one is open");
        assert!(ask(&one, &close(region), None).contains("done"));
    }
    assert!(ask(&two, &open(1, true), None).contains("done"), "nothing is left of them");
    let hosts = || serve::overview(&rack.config).unwrap().hosts.len();
    assert_eq!(hosts(), 2, "the program's client, and the DPU's");
    drop((one, two));
    let looks = (0..1000).take_while(|_| {
        thread::sleep(std::time::Duration::from_millis(20));
        hosts() > 1
    });
    assert!(looks.count() < 1000, "the DPU's client left the rack");
    assert!(is_served(&mut client, &vma));
}

/// A process that writes an allocation is dismissed, and told that nothing of it is in flight. It still runs
/// and may write with direct connections, which bypass the DPU. No other process opens the allocation at this
/// DPU until the first has closed its socket. Previously others could at once (PROTOCOL 17.17).
#[test]
fn what_a_process_that_was_sent_away_has_open_is_kept_from_others() {
    let rack = rack("udp", DPU);
    let mut client = client(&rack, "served");
    let vma = written(&mut client, SEED);
    let (sent_away, mut rings) = guest_with_rings(&rack, &client);
    let other = guest(&rack, &client);
    let open = |write: bool| format!(r#"{{"open":{{"region":1,"base":{},"write":{write}}}}}"#, vma.base.0);
    assert!(ask(&sent_away, &open(true), None).contains("done"));
    assert!(rings.push(b"nonsense").unwrap());
    rings.publish();
    assert_eq!(hear(&sent_away), r#"{"farewell":{"settled":true}}"#);
    assert!(sent_away.hear().unwrap().is_none(), "the DPU says nothing more");
    for write in [true, false, true] {
        let said = ask(&other, &open(write), None);
        assert!(said.contains("conflict") && said.contains("writes it"), "{said}");
    }
    sent_away.say(br#"{"finished":{}}"#, None).unwrap();
    drop(sent_away);
    let said = ask(&other, &open(true), None);
    assert!(said.contains("done"), "{said}");
}

/// A process writes at a memory node that stands still, and the write fails. The DPU then cannot close the
/// region and says so at every request. No other process opens the allocation until this one goes. Previously
/// the second request found the region closed (PROTOCOL 17.4).
#[test]
fn a_region_that_could_not_be_closed_is_open_still() {
    let rack = rack("udp", DPU);
    let mut client = client(&rack, "served");
    let vma = client.allocate_on(1 << 16, NodeId(1)).unwrap();
    let (one, mut rings) = guest_with_rings(&rack, &client);
    let two = guest(&rack, &client);
    let open = format!(r#"{{"open":{{"region":1,"base":{},"write":true}}}}"#, vma.base.0);
    assert!(ask(&one, &open, None).contains("done"));
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
    rack.send("node1", "CONT");
    assert_eq!(Answer::parse(&buf[..len]).unwrap().ended, Ended::Failed);
    for _ in 0..2 {
        let said = ask(&one, r#"{"close":{"region":1}}"#, None);
        assert!(said.contains("unavailable") && said.contains("region 1 failed"), "{said}");
    }
    assert!(ask(&two, &open, None).contains("conflict"), "it is open still");
}

/// A process of a new domain connects while the control plane stands still, so the DPU's client cannot join.
/// The process is told to wait, and processes of a served domain connect meanwhile. When the control plane
/// continues, the first process connects too.
#[test]
fn others_come_in_while_a_client_joins() {
    let rack = rack("udp", DPU);
    let (served, other) = (client(&rack, "served"), client(&rack, "other"));
    drop(guest(&rack, &served));
    rack.send("control", "STOP");
    let (first, file) = (talk(&rack), make_pair(PAIR).unwrap());
    first.say(hello(&rack, &other, other.domain(), PAIR).as_bytes(), Some(file.as_fd())).unwrap();
    assert!(hear(&first).contains("soon"));
    let second = guest(&rack, &served);
    rack.send("control", "CONT");
    let said = hear(&first);
    assert!(said.contains("welcome"), "{said}");
    drop(second);
}

/// A process opens an allocation while the control plane stands still, so the DPU cannot look it up. Others
/// are answered meanwhile; then the first is answered too, and the allocation opens. A process that sends
/// more requests without waiting for its reply is dismissed.
#[test]
fn others_are_answered_while_the_control_plane_is_asked() {
    let rack = rack("udp", DPU);
    let mut client = client(&rack, "served");
    let vma = written(&mut client, SEED);
    let [first, second, hasty] = [guest(&rack, &client), guest(&rack, &client), guest(&rack, &client)];
    let open = format!(r#"{{"open":{{"region":1,"base":{},"write":false}}}}"#, vma.base.0);
    rack.send("control", "STOP");
    for guest in [&first, &hasty] {
        guest.say(open.as_bytes(), None).unwrap();
    }
    let stats = ask(&second, r#"{"stats":{}}"#, None);
    assert!(stats.contains("on_demand"), "{stats}");
    assert!(!first.is_speaking(), "it waits");
    drop(guest(&rack, &client));
    hasty.say(open.as_bytes(), None).unwrap();
    assert_eq!(hear(&hasty), r#"{"farewell":{"settled":true}}"#);
    assert!(hasty.hear().unwrap().is_none(), "it is sent away");
    let refused = hear(&first);
    assert!(refused.contains("unavailable") && refused.contains("control plane"), "{refused}");
    rack.send("control", "CONT");
    assert!(ask(&first, &open, None).contains("done"));
    assert!(is_served(&mut client, &vma));
}

/// Serves in place of a DPU while its process lives, and answers each read twice.
fn answer_twice(listener: &Listener) {
    let talk = loop {
        match listener.accept().unwrap() {
            Some(talk) => break talk,
            None => thread::yield_now(),
        }
    };
    let Some((hello, file)) = talk.hear().unwrap() else { return };
    let hello: serde_json::Value = serde_json::from_slice(&hello).unwrap();
    let size: PairSize = serde_json::from_value(hello["hello"]["size"].clone()).unwrap();
    let (mut requests, mut answers) = Requests::of(&file.unwrap(), size).unwrap();
    let unheard = WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 3, 1)) };
    let welcome = serde_json::json!({"welcome": {
        "host": 999, "generation": 1, "page_len": 16384, "lease_ms": 2000, "wake": unheard,
    }});
    talk.say(welcome.to_string().as_bytes(), None).unwrap();
    let opened = talk.hear().unwrap().unwrap().0;
    assert!(opened.starts_with(br#"{"open"#), "a process that cannot end the DPU registers no pages");
    talk.say(br#"{"done":{}}"#, None).unwrap();
    let mut buf = vec![0; 1 << 20];
    while talk.is_open() {
        requests.beat();
        let Some(len) = requests.pop(&mut buf).unwrap() else {
            thread::yield_now();
            continue;
        };
        requests.release();
        let Request::Read { span, dest: Dest::Write { addr, .. } } = Request::parse(&buf[..len]).unwrap()
        else {
            panic!("the window reads, to memory behind the rings")
        };
        let words = span.offset / 8..(span.offset + u64::from(span.size)) / 8;
        let bytes: Vec<u8> = words.flat_map(|word| (word * SEED).to_le_bytes()).collect();
        assert!(answers.put(addr, &bytes));
        let mut record = Vec::new();
        Answer { span, write: false, ended: Ended::Done, data: &[] }.emit(&mut record);
        assert!(answers.push(&record).unwrap() && answers.push(&record).unwrap());
        answers.publish();
    }
}

/// A DPU that answers a request twice is fenced, and the program reads far memory to the end.
#[test]
fn a_dpu_that_answers_twice_is_fenced() {
    let rack = rack_without_process();
    let mut client = client(&rack, "twice");
    let vma = written(&mut client, SEED);
    let listener = Listener::bind(&rack.config.dpu.as_ref().unwrap().socket).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| answer_twice(&listener));
        let ahead = WindowOptions { ahead: Ahead::Group(4), ..reading() };
        match run(&mut client, &vma, ahead, |memory| check(&memory, SEED)) {
            Some(((), stats)) => assert!(stats.dpu_fenced, "{stats:?}"),
            // No process came: the thread waits.
            None => drop(talk(&rack)),
        }
    });
}
