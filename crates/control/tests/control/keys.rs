//! Keys that each request requires (PROTOCOL 8.66 to 8.70): a stranger with the rack's token and keys of its
//! own is refused everything that is not its own.

use crate::rack::{Rack, config, grant, text};
use farmem_control::Config;
use farmem_control::api::*;
use farmem_control::keys::{Credentials, KEYS_SHOWN_MAX, Key, RING_MAX, Ring, Secret};
use farmem_machine::Port;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

/// A rack of an owner with a host, a node, switches and a domain with memory, an object and a process in it,
/// and of a stranger with a host, a node and a domain.
struct Doors {
    rack: Rack,
    owner: Ring,
    stranger: Ring,
    domain: u32,
    strange: u32,
    vma: VmaInfo,
    object: u64,
    process: u32,
}

/// Asks with the keys of a ring, which learns from the answer.
fn ask<C: Call + Clone>(rack: &mut Rack, ring: &mut Ring, call: C) -> Result<C::Answer, ApiError>
where
    Response: From<C::Answer>,
    C::Answer: Clone,
{
    let request: Request = call.clone().into();
    rack.shown = Credentials { keys: ring.show(&request), ..Credentials::default() };
    let answer = rack.call(call)?;
    ring.learn(&request, &answer.clone().into());
    ring.using(&request);
    Ok(answer)
}

fn edge(name: &str, octet: u8) -> JoinIndex {
    JoinIndex { name: name.into(), gid: text(octet), tier: Tier::Edge, below: vec!["n1".into()] }
}

fn join_host(number: u8) -> JoinHost {
    JoinHost::new(format!("h{number}"), text(100 + number))
}

fn join_node(number: u8) -> JoinNode {
    JoinNode::new(format!("n{number}"), text(10 + number), MIB)
}

impl Doors {
    fn new() -> Self {
        let mut rack = Rack::with(80, Config { secret: Some(Secret::new(&[7; 32])), ..config() });
        let (mut owner, mut stranger) = (Ring::default(), Ring::default());
        ask(&mut rack, &mut owner, JoinSwitch { gid: text(2) }).unwrap();
        ask(&mut rack, &mut owner, join_node(1)).unwrap();
        ask(&mut rack, &mut owner, edge("edge1", 31)).unwrap();
        ask(&mut rack, &mut owner, join_host(1)).unwrap();
        ask(&mut rack, &mut stranger, join_node(2)).unwrap();
        ask(&mut rack, &mut stranger, join_host(2)).unwrap();
        let domain = ask(&mut rack, &mut owner, CreateDomain { name: "mine".into() }).unwrap().domain;
        let strange = ask(&mut rack, &mut stranger, CreateDomain { name: "other".into() }).unwrap().domain;
        ask(&mut rack, &mut owner, OpenSession { host: 1, domain }).unwrap();
        let vma =
            ask(&mut rack, &mut owner, Allocate { domain, size: MIB / 4, node: Some(1), durable: false })
                .unwrap();
        let open = OpenObject { create: true, ..OpenObject::new(1, domain, "object".into()) };
        let object = ask(&mut rack, &mut owner, open).unwrap().object;
        ask(&mut rack, &mut owner, ResizeObject { host: 1, object, length: 4096 }).unwrap();
        let process = ask(&mut rack, &mut owner, ProcessStart { domain, heap: 0 }).unwrap().process;
        Self { rack, owner, stranger, domain, strange, vma, object, process }
    }

    /// Returns one of each request, about the owner's resources. If two keys are required, there are also
    /// requests with the stranger's own resource for either.
    fn requests(&self) -> Vec<Request> {
        let &Self { domain, strange, ref vma, object, process, .. } = self;
        let (addr, section) = (vma.base, SoftSection { kind: 1, id: 0x1000, bytes: Base64(vec![0; 8]) });
        let card = CardMemory { domain, base: 1 << 40, rkey: 7, queue_pairs: vec![40] };
        let node9 = JoinNode { qpn: Some(30), qkey: Some(9), card: Some(card), ..join_node(9) };
        let act = |host, of_host, begins| ActFor { host, generation: 1, of_host, of_generation: 1, begins };
        let load = |host, domain| SoftLoad { host, domain, sections: vec![section.clone()], switch: None };
        let flags = Mmap { process, addr: 0, len: 4096, prot: 3, flags: 0 };
        vec![
            JoinSwitch { gid: text(3) }.into(),
            join_node(1).into(),
            node9.into(),
            edge("edge1", 31).into(),
            join_host(1).into(),
            Leave { port: Port::host(1).0, generation: Some(1) }.into(),
            Leave::new(Port::node(1).0).into(),
            Leave::new(Port::index(1).0).into(),
            act(1, 2, true).into(),
            act(2, 1, true).into(),
            act(1, 2, false).into(),
            CreateDomain { name: "mine".into() }.into(),
            OpenSession { host: 1, domain: strange }.into(),
            OpenSession { host: 2, domain }.into(),
            Connect::new(1, 1, strange).into(),
            Connect::new(2, 1, domain).into(),
            Disconnect { host: 1, qpn: 99 }.into(),
            Allocate { domain, size: 4096, node: None, durable: false }.into(),
            Free { domain, base: addr, id: vma.id }.into(),
            grant(vma, 0, 4096, strange, PermName::Read).into(),
            ProcessStart { domain, heap: 0 }.into(),
            ProcessExit { process }.into(),
            flags.into(),
            Munmap { process, addr, len: 4096 }.into(),
            Mprotect { process, addr, len: 4096, prot: 1 }.into(),
            Brk { process, addr: 0 }.into(),
            Renew { host: 1, generation: 1, flushed: 0, qkey: 0 }.into(),
            Recover { host: 1, page: addr }.into(),
            Stay { host: 1, generation: 1 }.into(),
            AcceptLost { domain, base: addr, len: 4096 }.into(),
            OpenObject::new(1, strange, "object".into()).into(),
            OpenObject::new(2, domain, "object".into()).into(),
            HoldObject::new(1, object).into(),
            HoldObject::new(2, object).into(),
            ResizeObject { host: 1, object, length: 4000 }.into(),
            ResizeObject { host: 2, object, length: 4000 }.into(),
            UnlinkObject { domain, name: "object".into() }.into(),
            DropObject { host: 1, object }.into(),
            ShowObject { domain, name: "object".into() }.into(),
            LoadObject::new(1, object, 1, "file".into(), 4096).into(),
            LoadObject::new(2, object, 1, "file".into(), 4096).into(),
            SaveObject { host: 1, object }.into(),
            SaveObject { host: 2, object }.into(),
            ListObjects { domain: Some(domain) }.into(),
            ListObjects { domain: None }.into(),
            Migrate { domain: Some(domain), base: addr, len: 4096, node: 2 }.into(),
            Migrate { domain: None, base: addr, len: 4096, node: 2 }.into(),
            load(1, strange).into(),
            load(2, domain).into(),
            SoftClear { domain, sections: Vec::new(), switch: None }.into(),
            SoftRead { domain, kind: 1, id: 0x1000, switch: None }.into(),
            SoftCounts { domain, kind: 1, id: 0x1000, switch: None }.into(),
        ]
    }

    /// Returns true if the request with these keys is refused for lack of a key.
    fn is_refused(&mut self, request: &Request, keys: Vec<Key>) -> bool {
        self.answer(request, Credentials { keys, ..Credentials::default() })
    }

    fn answer(&mut self, request: &Request, shown: Credentials) -> bool {
        self.rack.shown = shown;
        let ticket = self.rack.ask(request.clone());
        // An admitted request may wait for a role. A refused one does not.
        let refused = matches!(self.rack.answer(ticket), Some(Err(error)) if error.code == ErrorCode::NotOwner
            && (error.message.contains("requires the key of") || error.message.contains("is for the operator")));
        self.rack.settle();
        refused
    }
}

/// All requests without an owner, about the state of the rack.
const FOR_ALL: [&str; 5] = ["overview", "usage", "locate", "soft_show", "look_file"];

/// Each request about the owner's resources is refused to a stranger, whatever keys of its own it shows, and
/// without any key. It is admitted with the owner's keys, and for the operator. The result of the admitted
/// request does not matter here.
#[test]
fn a_stranger_is_refused_each_request() {
    let requests = Doors::new().requests();
    let named: BTreeSet<&str> = requests.iter().map(Request::name).chain(FOR_ALL).collect();
    assert_eq!(named, Request::NAMES.iter().copied().collect(), "all of them are here");
    for request in &requests {
        let mut doors = Doors::new();
        let strange: Vec<Key> = every_key(&doors.stranger);
        assert!(doors.is_refused(request, Vec::new()), "{request:?} without keys");
        assert!(doors.is_refused(request, strange.clone()), "{request:?} to a stranger");
        let mut both = every_key(&doors.owner);
        both.extend(strange);
        let is_all = matches!(request, Request::ListObjects(ListObjects { domain: None }));
        assert_eq!(doors.is_refused(request, both), is_all, "{request:?} to its owner");
        let mut doors = Doors::new();
        let operator = Credentials { operator: true, ..Credentials::default() };
        assert!(!doors.answer(request, operator), "{request:?} to the operator");
    }
}

/// Returns all keys of a ring, each by a request that requires it.
fn every_key(ring: &Ring) -> Vec<Key> {
    let text = ring.to_text();
    text.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

/// A ring shows the keys that its owner's requests require: no request of the owner with the ring is refused.
#[test]
fn a_ring_shows_what_is_wanted() {
    for request in Doors::new().requests() {
        let mut doors = Doors::new();
        let mut ring = doors.owner.clone();
        ring.merge(&doors.stranger);
        let keys = ring.show(&request);
        let is_all = matches!(request, Request::ListObjects(ListObjects { domain: None }));
        assert_eq!(doors.is_refused(&request, keys), is_all, "{request:?}");
    }
}

/// A request that requires two keys is refused with only one of them.
#[test]
fn both_keys_are_wanted() {
    let doors = Doors::new();
    let (domain, strange) = (doors.domain, doors.strange);
    let pairs = [(1, strange), (2, domain)];
    for (host, domain) in pairs {
        for request in [OpenSession { host, domain }.into(), Connect::new(host, 1, domain).into()] {
            let mut doors = Doors::new();
            for ring in [doors.owner.clone(), doors.stranger.clone()] {
                assert!(doors.is_refused(&request, every_key(&ring)), "{request:?}");
            }
        }
    }
}

/// A host leaves, and another one gets its number and name. The key of the earlier one gives no access to the
/// later. A host, node or switch that rejoins keeps its key, so that a lost answer locks no member out.
#[test]
fn a_key_is_of_one_stay() {
    let mut doors = Doors::new();
    let before = doors.owner.clone();
    ask(&mut doors.rack, &mut doors.owner, join_host(1)).unwrap();
    ask(&mut doors.rack, &mut doors.owner, join_node(1)).unwrap();
    ask(&mut doors.rack, &mut doors.owner, edge("edge1", 31)).unwrap();
    assert_eq!(doors.owner.to_text(), before.to_text(), "the same keys");

    ask(&mut doors.rack, &mut doors.owner, Leave::new(Port::host(1).0)).unwrap();
    let joined = ask(&mut doors.rack, &mut doors.stranger, join_host(1)).unwrap();
    assert_eq!(joined.host, 1);
    let renew: Request = Renew { host: 1, generation: joined.generation, flushed: 0, qkey: 0 }.into();
    assert!(doors.is_refused(&renew, every_key(&before)));
    assert!(!doors.is_refused(&renew, every_key(&doors.stranger)));
    assert!(doors.is_refused(&join_host(1).into(), every_key(&before)), "nor does the name");
}

/// A control plane that restarts from its log has the same keys.
#[test]
fn keys_outlive_a_restart() {
    let mut doors = Doors::new();
    doors.rack.restart();
    let allocate: Request = Allocate { domain: doors.domain, size: 4096, node: None, durable: false }.into();
    let (owner, stranger) = (every_key(&doors.owner), every_key(&doors.stranger));
    assert!(doors.is_refused(&allocate, stranger));
    assert!(!doors.is_refused(&allocate, owner));
    let join: Request = join_host(1).into();
    assert!(!doors.is_refused(&join, every_key(&doors.owner)));
}

/// The switch restarts, and its join is rolled back because the control plane restarts as well. The rack has
/// no switch then. A stranger that asks to be the switch, through which every request would go, is still
/// refused. The switch itself comes back.
#[test]
fn no_stranger_takes_the_place_of_a_switch_that_is_not_there() {
    let mut doors = Doors::new();
    for _ in 0..2 {
        doors.rack.shown = Credentials { keys: every_key(&doors.owner), ..Credentials::default() };
        doors.rack.ask(JoinSwitch { gid: text(2) });
        doors.rack.restart();
        doors.rack.settle();
        assert!(!doors.rack.call(Overview {}).unwrap().switch, "its join was taken back");
        doors.rack.check_log();
        let join: Request = JoinSwitch { gid: text(3) }.into();
        assert!(doors.is_refused(&join, every_key(&doors.stranger)));
    }
    ask(&mut doors.rack, &mut doors.owner, JoinSwitch { gid: text(2) }).unwrap();
    assert!(doors.rack.call(Overview {}).unwrap().switch);
}

/// A host's request for a connection waits for its node, which rejoins, so the request is restarted.
/// Meanwhile the host leaves, and a stranger's host gets its number. The connection is not made for that
/// host, whose key was not shown.
#[test]
fn a_request_begun_anew_shows_its_key_again() {
    let mut doors = Doors::new();
    let connect: Request = Connect::new(1, 1, doors.domain).into();
    doors.rack.shown = Credentials { keys: every_key(&doors.owner), ..Credentials::default() };
    let ticket = doors.rack.ask(connect);
    doors.rack.ask(join_node(1));
    let leave = doors.rack.ask(Leave::new(Port::host(1).0));
    doors.rack.ask(join_node(1));
    doors.rack.wait(leave).unwrap();
    doors.rack.shown = Credentials { keys: every_key(&doors.stranger), ..Credentials::default() };
    doors.rack.ask(JoinHost::new("other".into(), text(150)));
    let answer = doors.rack.wait(ticket);
    doors.rack.settle();
    let hosts = doors.rack.call(Overview {}).unwrap().hosts;
    assert_eq!(hosts.iter().find(|host| host.host == 1).map(|host| &*host.name), Some("other"));
    assert_eq!(answer.unwrap_err().code, ErrorCode::NotOwner);
    doors.rack.check_log();
}

/// A user's programs have made as many domains as a ring has keys, and one program uses the first of them
/// again and again. The key of that domain is not evicted, even if another process has the ring in an order
/// of its own.
#[test]
fn a_key_in_use_does_not_go() {
    let line = |domain: usize| format!("domain {domain} d{domain} {domain:032x}\n");
    let text: String = (1..=RING_MAX).map(line).collect();
    let mut ring = Ring::from_text(&text).unwrap();
    let told = |ring: &mut Ring, domain: usize| {
        let key = Some(format!("{domain:032x}").parse().unwrap());
        let answer = DomainInfo { domain: domain.try_into().unwrap(), key }.into();
        ring.learn(&CreateDomain { name: format!("d{domain}") }.into(), &answer)
    };
    let shows = |ring: &Ring, domain: u32| ring.show(&Allocate::new(domain, 1).into()).len();
    let mut other = ring.clone();
    assert!(told(&mut ring, 1), "it is among the newest, which the file is to say");
    assert!(!told(&mut ring, 1), "it is already");
    other.merge(&ring);
    for ring in [&mut ring, &mut other] {
        assert!(told(ring, RING_MAX + 1));
        assert_eq!([shows(ring, 1), shows(ring, 2), shows(ring, 3)], [1, 0, 1]);
    }
    let mut small = Ring::from_text(&[line(1), line(2)].concat()).unwrap();
    assert!(!told(&mut small, 1), "a ring with room is not written anew");
}

fn domain_line(domain: usize) -> String {
    format!("domain {domain} d{domain} {domain:032x}\n")
}

/// Learns the answer of a host that joins with this number and key.
fn told_of_host(ring: &mut Ring, name: &str, host: u16, key: u32) {
    let home = Endpoint { port: 1, gid: text(1), qpn: 2, qkey: 3 };
    let (key, generation) = (Some(format!("{key:032x}").parse().unwrap()), 1);
    let answer = HostJoined { host, generation, home, nodes: vec![], cards: vec![], key };
    ring.learn(&JoinHost::new(name.into(), text(101)).into(), &answer.into());
}

/// A host runs for weeks, and its user's other programs make more domains meanwhile than a ring has keys. The
/// host renews with its own key all the while, even when the file no longer has it, and finds it there after
/// a restart: no domain evicts a host.
#[test]
fn no_number_of_domains_takes_the_key_of_a_host_that_runs() {
    let stay = Request::from(Stay { host: 64, generation: 1 });
    let mut host = Ring::default();
    told_of_host(&mut host, "h", 64, 7);
    let full: String = (1..=RING_MAX).map(domain_line).collect();
    host.merge(&Ring::from_text(&full).unwrap());
    assert_eq!(host.show(&stay).len(), 1, "its file has it no more");

    let mut file = Ring::from_text(&host.to_text()).unwrap();
    let key = Some(format!("{:032x}", RING_MAX + 1).parse().unwrap());
    let domain = u32::try_from(RING_MAX + 1).unwrap();
    file.learn(&CreateDomain { name: "one-more".into() }.into(), &DomainInfo { domain, key }.into());
    assert_eq!(file.show(&stay).len(), 1, "a domain went");
    assert_eq!(file.show(&Allocate::new(domain, 1).into()).len(), 1);
    assert_eq!(file.to_text().lines().count(), RING_MAX);
}

/// The keys of two racks are in one file: a host of one rack runs, and a program joins the other and is told
/// a key for the same number and name. The host goes on showing its own key, and so does a domain's user.
#[test]
fn a_key_of_another_rack_takes_nobody_s_place() {
    let (mut here, mut there) = (Ring::default(), Ring::default());
    for (ring, key) in [(&mut here, 7), (&mut there, 8)] {
        told_of_host(ring, "h", 64, key);
        let key = Some(format!("{:032x}", key + 10).parse().unwrap());
        ring.learn(&CreateDomain { name: "d".into() }.into(), &DomainInfo { domain: 1, key }.into());
    }
    here.merge(&Ring::from_text(&there.to_text()).unwrap());
    for (request, keys) in [
        (Stay { host: 64, generation: 1 }.into(), [7, 8]),
        (CreateDomain { name: "d".into() }.into(), [17, 18]),
        (Request::from(Allocate::new(1, 1)), [17, 18]),
    ] {
        let shown: Vec<String> = here.show(&request).iter().map(ToString::to_string).collect();
        assert_eq!(shown, keys.map(|key| format!("{key:032x}")), "{request:?}");
    }
    assert_eq!(here.show(&OpenSession { host: 64, domain: 1 }.into()).len(), 4);
}

/// A ring is full of domains that are gone, except for one with data that are kept. When the ring is told
/// which domains exist it forgets the others, but not those created since.
#[test]
fn the_keys_of_domains_that_are_gone_make_room() {
    let text: String = (1..=RING_MAX).map(domain_line).collect();
    let mut ring = Ring::from_text(&text).unwrap();
    assert!(ring.is_full());
    let before = ring.clone();
    let key = Some(format!("{:032x}", 99_999).parse().unwrap());
    ring.learn(&CreateDomain { name: "new".into() }.into(), &DomainInfo { domain: 99_999, key }.into());
    assert_eq!(ring.forget_gone(&before, &BTreeSet::from([2, 70_000])), RING_MAX - 2);
    let domains = [2, 3, 99_999].map(|domain| ring.show(&Allocate::new(domain, 1).into()).len());
    assert_eq!((domains, ring.is_full()), ([1, 0, 1], false));
}

/// Each number of a key file is replaced by those at the edges of its type, and its lines are cut, doubled
/// and swapped. The file is refused with a line that it has, or is a ring that comes back from its text and
/// shows no more keys than a request accepts.
#[test]
fn each_number_of_a_key_file_may_be_wrong() {
    let numbers =
        ["", "-1", "0", "65535", "65536", "4294967295", "4294967296", "18446744073709551616", "0x1"];
    let key = "0123456789abcdef0123456789abcdef";
    let text = format!(
        "switch 0 - {key}\nnode 1 n1 {key}\nindex 2047 core {key}\nhost 64 h {key}\ndomain 4294967295 d {key}\n"
    );
    let lines: Vec<&str> = text.lines().collect();
    let mut refused = 0;
    let mut look = |text: &str| match Ring::from_text(text) {
        Err(line) => {
            assert!((1..=text.lines().count()).contains(&line), "{line} of {text:?}");
            refused += 1;
        }
        Ok(ring) => {
            assert_eq!(Ring::from_text(&ring.to_text()), Ok(ring.clone()));
            let mut merged = ring.clone();
            told_of_host(&mut merged, "h", 64, 7);
            merged.merge(&ring);
            for request in [
                Request::from(OpenSession { host: 64, domain: u32::MAX }),
                Stay { host: u16::MAX, generation: 1 }.into(),
                join_host(1).into(),
                ProcessExit { process: 1 }.into(),
            ] {
                assert!(ring.show(&request).len() <= 16 && merged.show(&request).len() <= 16);
            }
            let own = format!("{:032x}", 7).parse().unwrap();
            assert!(merged.show(&Stay { host: 64, generation: 1 }.into()).contains(&own), "its own");
        }
    };
    for (at, line) in lines.iter().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        for place in [1, 3] {
            for number in numbers {
                let mut words = words.clone();
                words[place] = number;
                let mut lines = lines.clone();
                let line = words.join(" ");
                lines[at] = &line;
                look(&lines.join("\n"));
            }
        }
        for other in 0..lines.len() {
            let mut swapped = lines.clone();
            swapped.swap(at, other);
            look(&swapped.join("\n"));
            let mut doubled = lines.clone();
            (0..20).for_each(|_| doubled.insert(at, lines[other]));
            look(&doubled.join("\r\n"));
        }
    }
    (0..=text.len()).for_each(|cut| look(&text[..cut]));
    assert!(refused > 100, "{refused} damaged files were seen");
    let more: String = (0..=RING_MAX).map(domain_line).collect();
    assert_eq!(Ring::from_text(&more), Err(RING_MAX + 1));
}

/// Members name their build when they join, and one rejoins with another. `usage` lists the builds, also
/// after a restart from the log, without those of members that have left (PROTOCOL 8.71).
#[test]
fn builds_are_told_apart() {
    let mut rack = Rack::with(81, Config { build: Some("1.0+a".into()), ..config() });
    let join = |rack: &mut Rack, call: Request, build: Option<&str>| {
        rack.shown = Credentials { build: build.map(Into::into), ..Credentials::default() };
        let ticket = rack.ask(call);
        rack.wait(ticket).unwrap();
        rack.settle();
    };
    join(&mut rack, JoinSwitch { gid: text(2) }.into(), Some("1.0+a"));
    join(&mut rack, join_node(1).into(), Some("1.0+b"));
    join(&mut rack, join_node(2).into(), None);
    join(&mut rack, edge("edge1", 31).into(), Some("1.0+b"));
    join(&mut rack, join_host(1).into(), Some("1.0+b"));
    join(&mut rack, join_host(2).into(), Some("no build"));
    let builds = |rack: &mut Rack| -> Vec<(String, Vec<String>)> {
        let told = rack.call(Usage {}).unwrap().builds;
        told.into_iter().map(|its| (its.build, its.members)).collect()
    };
    let expect = |a: &[&str], b: &[&str]| -> Vec<(String, Vec<String>)> {
        let row = |build: &str, members: &[&str]| {
            (build.to_owned(), members.iter().map(|&member| member.to_owned()).collect())
        };
        [row("1.0+a", a), row("1.0+b", b)].into()
    };
    let first = expect(&["control plane", "switch"], &["memory node n1", "index switch edge1", "host h1"]);
    assert_eq!(builds(&mut rack), first);
    rack.check_log();
    rack.restart();
    assert_eq!(builds(&mut rack), first);
    join(&mut rack, join_node(1).into(), Some("1.0+a"));
    join(&mut rack, Leave::new(Port::host(1).0).into(), None);
    let then = expect(&["control plane", "switch", "memory node n1"], &["index switch edge1"]);
    assert_eq!(builds(&mut rack), then);
    rack.check_log();
}

/// A program uses twice as many domains as a request shows keys, in turn, and addresses its resources in each
/// by a process's or an object's number, which do not name the domain. No request is refused: the ring knows
/// the domain from the answers that created them, and shows that key alone.
#[test]
fn more_domains_than_keys_are_used_in_turn() {
    let mut doors = Doors::new();
    let mut own = Vec::new();
    for number in 0..2 * KEYS_SHOWN_MAX {
        let (rack, ring) = (&mut doors.rack, &mut doors.owner);
        let domain = ask(rack, ring, CreateDomain { name: format!("d{number}") }).unwrap().domain;
        let process = ask(rack, ring, ProcessStart { domain, heap: 0 }).unwrap().process;
        let open = OpenObject { create: true, ..OpenObject::new(1, domain, format!("object{number}")) };
        let object = ask(rack, ring, open).unwrap().object;
        own.push((process, object));
    }
    for &(process, object) in &own {
        for request in [Brk { process, addr: 0 }.into(), HoldObject::new(1, object).into()] {
            let keys = doors.owner.show(&request);
            assert!(!doors.is_refused(&request, keys), "{request:?}");
        }
        let keys = doors.owner.show(&ProcessExit { process }.into());
        assert_eq!(keys.len(), 1, "only the keys of the request are shown");
        ask(&mut doors.rack, &mut doors.owner, ProcessExit { process }).unwrap();
    }
}
