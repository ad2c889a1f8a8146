//! Resources of departed members that would wear out a rack: domains, hosts and memory (PROTOCOL 8.60 to 8.63). Each is released with its user.

use crate::histories::{faults, history_of, step};
use crate::rack::{Rack, config, grant, text};
use farmem_control::api::*;
use farmem_control::{Bounds, Config, Control, HOST_LEASE, Note, PAGE, Record};
use farmem_machine::{Duration, Port, Rng};
use farmem_wire::{Perm, Status};
use proptest::prelude::*;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;
/// For how long hosts and domains stay here.
const STAY: Duration = HOST_LEASE;

/// Creates a rack with a switch and a node of a MiB, in which hosts and domains that are not heard of are removed.
fn rack(seed: u64) -> Rack {
    bounded(seed, Bounds::default())
}

/// Creates such a rack with these bounds.
fn bounded(seed: u64, bounds: Bounds) -> Rack {
    let mut rack = Rack::with(seed, Config { host_lease: Some(STAY), bounds, ..config() });
    // No frame is lost here, and time passes only as a test says.
    rack.dead_after = Duration::from_millis(10);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack
}

/// Returns the names of the present domains.
fn domains(rack: &mut Rack) -> Vec<String> {
    rack.call(Overview {}).unwrap().domains.into_iter().map(|(_, name)| name).collect()
}

/// Each `farmem run` uses a domain, in a rack that has room for four: each run creates one, uses it and leaves. After 1,000 runs the rack is as it
/// was before the first, and no two runs had the same number.
#[test]
fn a_thousand_runs_leave_no_domain() {
    let mut rack = bounded(700, Bounds { domains_max: 4, ..Bounds::default() });
    rack.forgets = true;
    let mut numbers = BTreeSet::new();
    for run in 0..1000 {
        let (host, generation) = rack.join_host(1);
        let domain = rack.domain(&format!("run-{run}"));
        assert!(numbers.insert(domain), "run {run} has the number of an earlier domain");
        rack.call(OpenSession { host, domain }).unwrap();
        rack.call(Connect::new(host, 1, domain)).unwrap();
        rack.call(Leave { port: Port::host(host).0, generation: Some(generation) }).unwrap();
        rack.pass(STAY);
    }
    assert_eq!(domains(&mut rack), Vec::<String>::new());
    assert_eq!(rack.noted(Note::DomainGone(1)), 1);
    rack.check_log();
}

/// A domain may have half a MiB. More is refused with the reason, however it is requested: as an allocation, a heap, `mmap` (which returns ENOMEM),
/// or the length of an object. Memory that is given back may be allocated again. Another domain has its own limit (PROTOCOL 8.72).
#[test]
fn a_domain_has_no_more_than_its_limit() {
    let limit = MIB / 2;
    let mut rack = bounded(705, Bounds { domain_memory_max: limit, ..Bounds::default() });
    let (host, _) = rack.join_host(1);
    let (greedy, other) = (rack.domain("greedy"), rack.domain("other"));
    rack.call(OpenSession { host, domain: greedy }).unwrap();
    let first = rack.call(durable(greedy, limit / 2)).unwrap();
    let process = rack.call(ProcessStart { domain: greedy, heap: 0 }).unwrap().process;
    let map = |len| Mmap { process, addr: 0, len, prot: 3, flags: 0x22 };
    assert!(rack.call(map(limit / 4)).unwrap().value > 0);
    let open = OpenObject { create: true, ..OpenObject::new(host, greedy, "object".into()) };
    let object = rack.call(open).unwrap().object;
    for (refused, what) in [
        (rack.call(durable(greedy, limit / 2)).map(drop), "an allocation"),
        (rack.call(ResizeObject { host, object, length: limit / 2 }).map(drop), "an object"),
    ] {
        let error = refused.expect_err(what);
        assert_eq!(error.code, ErrorCode::OutOfMemory, "{what}: {}", error.message);
        for word in [&format!("{limit} bytes"), &format!("{} are left", limit / 4)] {
            assert!(error.message.contains(word), "{word} in {}", error.message);
        }
        assert!(error.remedy.contains("`domain_memory`"), "{}", error.remedy);
    }
    assert_eq!(rack.call(map(limit / 2)).unwrap().value, -12, "ENOMEM");
    rack.call(Free { domain: greedy, base: first.base, id: first.id }).unwrap();
    rack.call(ResizeObject { host, object, length: limit / 2 }).unwrap();
    let heap = rack.call(ProcessStart { domain: other, heap: limit + PAGE });
    assert_eq!(heap.expect_err("a heap").code, ErrorCode::OutOfMemory);
    rack.call(durable(other, limit / 2)).unwrap();
    rack.check_log();
}

/// A domain stays while a host has a session or a connection in it, or while it has durable resources, however long. Then it is removed at once.
#[test]
fn a_domain_goes_with_its_last_user_and_not_before() {
    let mut rack = rack(710);
    let (host, _) = rack.join_host(1);
    let used = rack.domain("used");
    rack.call(OpenSession { host, domain: used }).unwrap();
    let owner = rack.domain("owner");
    let vma = rack.call(durable(owner, PAGE)).unwrap();
    let reader = rack.domain("reader");
    rack.call(grant(&vma, 0, PAGE, reader, PermName::Read)).unwrap();
    let named = rack.domain("named");
    rack.call(OpenObject { create: true, ..OpenObject::new(host, named, "lock".into()) }).unwrap();
    rack.domain("nothing");
    for _ in 0..5 {
        rack.pass(STAY);
        rack.call(stay(host, 1)).unwrap();
    }
    assert_eq!(domains(&mut rack), ["used", "owner", "reader", "named"]);
    rack.call(grant(&vma, 0, PAGE, reader, PermName::None)).unwrap();
    rack.call(Free { domain: owner, base: vma.base, id: vma.id }).unwrap();
    rack.pass(STAY);
    assert_eq!(domains(&mut rack), ["used", "named"]);
    rack.check_log();
}

/// A client that asks for a domain by its name gets its number and uses it a moment later: the domain is not removed in between. After a removal the
/// number is invalid: a later domain of the same name has another number, and requests with the old number are refused.
#[test]
fn a_late_request_meets_no_later_domain() {
    let mut rack = rack(720);
    let first = rack.domain("web");
    for _ in 0..4 {
        rack.pass(Duration::from_nanos(STAY.as_nanos() / 4 * 3));
        assert_eq!(rack.domain("web"), first);
    }
    rack.pass(STAY);
    let (host, _) = rack.join_host(1);
    let second = rack.domain("web");
    assert!(second > first);
    for request in [
        Request::from(OpenSession { host, domain: first }),
        Connect::new(host, 1, first).into(),
        Allocate { domain: first, size: PAGE, node: None, durable: false }.into(),
        ProcessStart { domain: first, heap: 0 }.into(),
    ] {
        let error = rack.refused(request);
        assert_eq!(error.code, ErrorCode::NotFound);
        assert!(error.message.contains(&format!("domain {first}")), "{error:?}");
    }
    rack.call(OpenSession { host, domain: second }).unwrap();
    rack.check_log();
}

/// After the last number comes 1 again, and numbers in use are skipped. The log records the position, also after compaction.
#[test]
fn numbers_of_domains_go_round() {
    let mut rack = rack(730);
    let kept = rack.domain("kept");
    rack.call(durable(kept, PAGE)).unwrap();
    let mut rows: Vec<String> =
        rack.control.compact().iter().map(|row| serde_json::to_string(row).unwrap()).collect();
    rows.insert(3, format!(r#"{{"NextDomain":{}}}"#, u32::MAX));
    let rows: Vec<Record> = rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
    rack.control = Control::restore(rack.config.clone(), Rng::from_number(1), rows).expect("the rows fit");
    rack.log = rack.control.compact().iter().map(|row| serde_json::to_string(row).unwrap()).collect();
    let mut numbers = Vec::new();
    for name in ["last", "round", "on"] {
        numbers.push(rack.domain(name));
        rack.check_log();
        rack.pass(STAY);
        rack.restart();
    }
    assert_eq!((kept, numbers), (1, vec![u32::MAX, 2, 3]));
}

/// The time since which a domain has no user is not in the log: it starts anew after a restart. A control plane that stood still for hours gives its
/// clients time to ask.
#[test]
fn a_control_plane_that_was_away_takes_nothing_at_once() {
    let mut rack = rack(740);
    let domain = rack.domain("web");
    rack.pass(Duration::from_nanos(STAY.as_nanos() - 1));
    rack.restart();
    rack.pass(Duration::from_nanos(STAY.as_nanos() - 1));
    assert_eq!(rack.domain("web"), domain);
    rack.stand_still(Duration::from_secs(3600));
    assert_eq!(rack.domain("web"), domain);
    rack.pass(STAY);
    rack.pass(STAY);
    assert_eq!(domains(&mut rack), Vec::<String>::new());
    rack.check_log();
}

/// Allocates durable memory.
fn durable(domain: u32, size: u64) -> Allocate {
    Allocate { durable: true, ..Allocate::new(domain, size) }
}

fn stay(host: u16, generation: u16) -> Stay {
    Stay { host, generation }
}

/// Returns the present hosts, with their generations.
fn hosts(rack: &mut Rack) -> Vec<(u16, u16)> {
    rack.call(Overview {}).unwrap().hosts.iter().map(|host| (host.host, host.generation)).collect()
}

/// Longer than a host's lease surely is.
const LEASE_AND_MORE: Duration = Duration::from_nanos(STAY.as_nanos() / 8 * 9 + 1);

/// A client with the token joins under one name after the other and never leaves. It fills the table, and after the length of a lease the table is
/// empty: every number is free for the next host.
#[test]
fn joining_again_and_again_takes_no_host_for_good() {
    let mut rack = bounded(750, Bounds { hosts_max: 8, ..Bounds::default() });
    for life in 1..=3 {
        for number in 1..=8 {
            assert_eq!(rack.join_host(number + 10 * u8::try_from(life).unwrap()), (number.into(), life));
        }
        let error = rack.refused(JoinHost::new("one-more".into(), text(99)));
        assert_eq!(
            (error.code, error.message.contains("8 hosts")),
            (ErrorCode::TableFull, true),
            "{error:?}"
        );
        rack.pass(LEASE_AND_MORE);
        assert_eq!(hosts(&mut rack), []);
    }
    assert_eq!(rack.notes.iter().filter(|note| matches!(note, Note::Lapsed(_))).count(), 24);
    rack.check_log();
}

/// A host that renews its presence stays with all it has, however long. One that does not is removed, and with it go its session at the switch, its
/// connection at the node, and its open objects.
#[test]
fn a_host_that_is_not_heard_of_goes_with_what_it_has() {
    let mut rack = rack(760);
    let ((alive, _), (dead, _)) = (rack.join_host(1), rack.join_host(2));
    let domain = rack.domain("web");
    for host in [alive, dead] {
        rack.call(OpenSession { host, domain }).unwrap();
        rack.call(Connect::new(host, 1, domain)).unwrap();
        rack.call(OpenObject { create: true, ..OpenObject::new(host, domain, "log".into()) }).unwrap();
    }
    for _ in 0..20 {
        rack.pass(Duration::from_nanos(STAY.as_nanos() / 4));
        let lease = rack.call(stay(alive, 1)).unwrap();
        assert_eq!((lease.lease_ms, lease.flush), (60_000, 0));
    }
    assert_eq!(hosts(&mut rack), [(alive, 1)]);
    assert_eq!(rack.tables(Port::SWITCH).sessions.len(), 1);
    assert_eq!(rack.tables(Port::node(1)).queue_pairs.len(), 1);
    let open = rack.call(ShowObject { domain, name: "log".into() }).unwrap().hosts;
    assert_eq!(open.iter().map(|host| host.host).collect::<Vec<_>>(), [alive]);
    assert_eq!(rack.refused(stay(dead, 1)).code, ErrorCode::NotFound);
    assert_eq!(rack.join_host(2), (dead, 2), "its next life has a generation of its own");
    assert_eq!(rack.refused(stay(dead, 1)).code, ErrorCode::Conflict);
    rack.check_log();
    rack.check_tables(Port::SWITCH);
    rack.check_tables(Port::node(1));
}

/// `renew` also renews the presence of a host. A host that caches and dies is first fenced, when its lease has ended, and then removed. Its number is
/// used again.
#[test]
fn a_host_that_caches_renews_both_leases_at_once() {
    let mut rack = rack(770);
    let (host, generation) = rack.join_host(1);
    let renew = Renew { host, generation, flushed: 0, qkey: 0 };
    for _ in 0..60 {
        rack.call(renew.clone()).unwrap();
        rack.pass(Duration::from_secs(5));
    }
    assert_eq!(hosts(&mut rack), [(host, generation)]);
    rack.pass(LEASE_AND_MORE);
    assert_eq!(hosts(&mut rack), []);
    let order: Vec<&Note> =
        rack.notes.iter().filter(|note| matches!(note, Note::Fenced(_) | Note::Lapsed(_))).collect();
    assert_eq!(order, [&Note::Fenced(host), &Note::Lapsed(host)]);
    rack.pass(Duration::from_secs(1));
    assert_eq!(rack.join_host(2), (host, 2));
    rack.check_log();
}

/// Hosts that do not cache have numbers from 256 on, a thousand of them and more. 255 caching hosts have those below, and the next one is told why it
/// cannot join.
#[test]
fn hosts_that_do_not_cache_leave_the_low_numbers_to_those_that_do() {
    let mut rack = rack(780);
    let join = |number: u16, caches| {
        let [high, low] = number.to_be_bytes();
        let gid = format!("127.1.{high}.{low}");
        JoinHost { caches: Some(caches), ..JoinHost::new(format!("host-{gid}"), gid) }
    };
    rack.forgets = true;
    for number in 0..1000 {
        assert_eq!(rack.call(join(number, false)).unwrap().host, 256 + number);
    }
    for number in 1000..1255 {
        assert_eq!(rack.call(join(number, true)).unwrap().host, number - 999);
    }
    let error = rack.refused(join(1255, true));
    assert_eq!(error.code, ErrorCode::TableFull);
    assert!(error.message.contains("255 hosts that cache pages"), "{error:?}");
    assert_eq!(rack.call(join(1255, false)).unwrap().host, 1256);
    let error = rack.refused(Renew { host: 256, generation: 1, flushed: 0, qkey: 0 });
    assert!(
        error.code == ErrorCode::TableFull && error.message.contains("host 256 cannot cache"),
        "{error:?}"
    );
    rack.check_log();
    rack.check_tables(Port::SWITCH);
}

/// One address serves a program that does not cache, then one that does, and so on. The host of its name then has a number of each kind, and the
/// resources of the earlier one are gone when the later one is there, whether it left or died. Pages cached by a host that died keep its number until
/// they are taken back.
#[test]
fn a_host_changes_its_kind_with_its_program() {
    let mut rack = rack(790);
    let domain = rack.domain("web");
    let join = |caches| JoinHost { caches: Some(caches), ..JoinHost::new("host".into(), text(101)) };
    let life = |rack: &mut Rack, caches, expected| {
        let HostJoined { host, generation, .. } = rack.call(join(caches)).unwrap();
        assert_eq!((host, generation), expected);
        rack.call(OpenSession { host, domain }).unwrap();
        rack.call(Connect::new(host, 1, domain)).unwrap();
        assert_eq!(rack.tables(Port::SWITCH).sessions.len(), 1, "that of before is gone");
        assert_eq!(rack.tables(Port::node(1)).queue_pairs.len(), 1);
        assert_eq!(hosts(rack), [expected]);
        rack.check_log();
        rack.check_tables(Port::SWITCH);
    };
    life(&mut rack, false, (256, 1));
    life(&mut rack, true, (1, 1));
    rack.restart();
    life(&mut rack, false, (256, 2));
    life(&mut rack, true, (1, 2));
    rack.call(Renew { host: 1, generation: 2, flushed: 0, qkey: 0 }).unwrap();
    life(&mut rack, false, (1, 3));
}

/// A host rejoins without stating whether it caches, as a client by hand does: it keeps its number, of whichever kind, in the next generation, and
/// also the number that it had when it left. Its cached pages are fenced as those of any host that rejoins, and its lease belongs to the new
/// incarnation.
#[test]
fn joining_again_without_a_word_of_caching_keeps_the_number() {
    let mut rack = rack(795);
    let join = |caches| JoinHost { caches, ..JoinHost::new("host".into(), text(101)) };
    let life = |rack: &mut Rack, caches, expected| {
        let HostJoined { host, generation, .. } = rack.call(join(caches)).unwrap();
        assert_eq!((host, generation), expected, "{caches:?}");
        assert_eq!(hosts(rack), [expected]);
        rack.check_log();
    };
    life(&mut rack, Some(false), (256, 1));
    life(&mut rack, None, (256, 2));
    life(&mut rack, Some(true), (1, 1));
    life(&mut rack, None, (1, 2));
    rack.call(Leave::new(Port::host(1).0)).unwrap();
    life(&mut rack, None, (1, 3));
    rack.call(Renew { host: 1, generation: 3, flushed: 0, qkey: 0 }).unwrap();
    life(&mut rack, None, (1, 4));
    assert_eq!(rack.refused(stay(1, 3)).code, ErrorCode::Conflict);
    rack.call(stay(1, 4)).unwrap();
    rack.pass(LEASE_AND_MORE);
    assert_eq!(hosts(&mut rack), []);
    rack.check_log();
}

/// The end of a lease is not in the log: after a restart, and after a stop of the control plane, each host has a full lease in which to renew.
#[test]
fn no_host_is_fenced_for_a_control_plane_that_was_away() {
    let mut rack = rack(800);
    let (host, generation) = rack.join_host(1);
    rack.pass(STAY);
    rack.restart();
    rack.pass(STAY);
    rack.call(stay(host, generation)).unwrap();
    rack.stand_still(Duration::from_secs(3600));
    rack.call(Overview {}).unwrap();
    rack.pass(STAY);
    rack.call(stay(host, generation)).unwrap();
    assert_eq!(hosts(&mut rack), [(host, generation)]);
    rack.pass(LEASE_AND_MORE);
    assert_eq!(hosts(&mut rack), []);
    rack.check_log();
}

/// A control plane that stands still for a lease, from some moment within one on, gives its hosts and domains time to renew: the end of a lease
/// meanwhile does not count.
#[test]
fn no_host_is_fenced_for_a_stop_that_began_within_its_lease() {
    for before in [1, 10, 30, 50] {
        let mut rack = rack(805);
        let (host, generation) = rack.join_host(1);
        let domain = rack.domain("web");
        rack.pass(Duration::from_secs(before));
        rack.stand_still(STAY);
        rack.call(Overview {}).unwrap();
        rack.call(stay(host, generation)).unwrap();
        assert_eq!(hosts(&mut rack), [(host, generation)], "{before} s");
        assert_eq!(rack.domain("web"), domain, "{before} s");
        rack.pass(LEASE_AND_MORE);
        rack.pass(STAY);
        assert_eq!((hosts(&mut rack), domains(&mut rack)), (vec![], vec![]), "{before} s");
        rack.check_log();
    }
}

/// The switch refuses the updates of memory that is freed. They are repeated from time to time, not as fast as it answers: the log grows by a line or
/// two per interval, and other requests are served.
#[test]
fn a_refused_free_is_not_repeated_at_once() {
    let mut rack = rack(845);
    let domain = rack.domain("web");
    rack.call(Allocate::new(domain, PAGE)).unwrap();
    rack.pass(Duration::from_nanos(STAY.as_nanos() - 1_000_000_000));
    let (lines, end) = (rack.log.len(), rack.now + Duration::from_secs(11));
    let mut steps = 0;
    while rack.now < end {
        rack.peers.get_mut(&Port::SWITCH).unwrap().refuse_next = Some(Status::TableFull);
        assert!(rack.step());
        steps += 1;
        assert!(steps < 10_000, "it is begun again and again");
    }
    let grown = rack.log.len() - lines;
    assert!((2..100).contains(&grown), "{grown} lines");
    rack.peers.get_mut(&Port::SWITCH).unwrap().refuse_next = None;
    until_all_is_gone(&mut rack);
    assert_eq!((rack.vmas(), domains(&mut rack)), (vec![], vec![]));
    rack.check_log();
}

/// Passes the time after which a silent host's domain is being taken back: the host is removed, and then its domain has had no user for long enough.
fn until_all_is_gone(rack: &mut Rack) {
    rack.pass(LEASE_AND_MORE);
    rack.pass(STAY);
    rack.pass(STAY);
}

/// A client allocates durable and non-durable memory, creates an object and takes a lock, and dies. Non-durable memory is free again, for others too.
/// Durable memory keeps its domain until it is freed and unlinked.
#[test]
fn memory_goes_with_its_last_user_unless_it_is_durable() {
    let mut rack = rack(810);
    let (host, _) = rack.join_host(1);
    let domain = rack.domain("web");
    rack.call(OpenSession { host, domain }).unwrap();
    let all = rack.call(Allocate::new(domain, MIB / 2)).unwrap();
    let kept = rack.call(durable(domain, PAGE)).unwrap();
    let object = OpenObject { create: true, ..OpenObject::new(host, domain, "shared".into()) };
    let object = rack.call(object).unwrap().object;
    let object = rack.call(ResizeObject { host, object, length: PAGE }).unwrap();
    rack.call(OpenObject { create: true, ..OpenObject::new(host, domain, "lock".into()) }).unwrap();
    rack.pass(STAY);
    rack.restart();
    rack.call(stay(host, 1)).unwrap();
    assert_eq!(rack.vmas().len(), 3, "its user is there");
    until_all_is_gone(&mut rack);
    let bases: Vec<u64> = rack.vmas().iter().map(|vma| vma.base).collect();
    assert_eq!(bases, [kept.base, object.base]);
    assert_eq!(domains(&mut rack), ["web"]);
    let other = rack.domain("other");
    assert_eq!(rack.call(Allocate::new(other, MIB / 2)).unwrap().base, all.base);
    let late = Free { domain, base: all.base, id: all.id };
    assert_eq!(rack.refused(late).code, ErrorCode::NotFound, "its addresses are another's");
    rack.check_log();
    rack.call(Free { domain, base: kept.base, id: kept.id }).unwrap();
    rack.call(UnlinkObject { domain, name: "shared".into() }).unwrap();
    until_all_is_gone(&mut rack);
    assert_eq!((rack.vmas(), domains(&mut rack)), (vec![], vec![]));
    assert_eq!(rack.noted(Note::Reclaimed), 2);
    rack.check_log();
    rack.check_tables(Port::SWITCH);
    rack.check_tables(Port::node(1));
}

/// A removed domain had granted memory to a present one, which can read it no more: switch and node refuse it before the addresses are allocated
/// anew.
#[test]
fn reads_of_reclaimed_memory_are_refused() {
    let mut rack = rack(820);
    let ((owner_host, _), (host, _)) = (rack.join_host(1), rack.join_host(2));
    let (owner, reader) = (rack.domain("owner"), rack.domain("reader"));
    rack.call(OpenSession { host: owner_host, domain: owner }).unwrap();
    rack.call(OpenSession { host, domain: reader }).unwrap();
    let vma = rack.call(Allocate::new(owner, PAGE)).unwrap();
    rack.call(grant(&vma, 0, PAGE, reader, PermName::Read)).unwrap();
    let may = |rack: &Rack, port| rack.peers[&port].may(reader, vma.base);
    for _ in 0..8 {
        rack.pass(Duration::from_nanos(STAY.as_nanos() / 2));
        rack.call(stay(host, 1)).unwrap();
    }
    assert_eq!((rack.vmas(), domains(&mut rack)), (vec![], vec!["reader".to_string()]));
    assert_eq!([Port::SWITCH, Port::node(1)].map(|port| may(&rack, port)), [Perm::None; 2]);
    rack.check_log();
}

/// A program under `farmem run` is killed together with its pager: its processes end, all its memory comes back, and its domain is removed.
#[test]
fn processes_end_with_the_last_host_of_their_domain() {
    let mut rack = rack(830);
    let (host, _) = rack.join_host(1);
    let domain = rack.domain("run");
    rack.call(OpenSession { host, domain }).unwrap();
    for _ in 0..3 {
        let process = rack.call(ProcessStart { domain, heap: 16 * PAGE }).unwrap().process;
        rack.call(Mmap { process, addr: 0, len: 5 * PAGE, prot: 3, flags: 0x22 }).unwrap();
    }
    until_all_is_gone(&mut rack);
    assert_eq!((rack.vmas(), domains(&mut rack), hosts(&mut rack)), (vec![], vec![], vec![]));
    assert_eq!(rack.call(Overview {}).unwrap().nodes[0].allocated, 0);
    rack.check_log();
    rack.check_tables(Port::node(1));
}

/// The operator moves pages of a program, and the program is killed: its domain is idle for long enough while they are in flight. Its processes end
/// when the pages have arrived and not before, so that no page is allocated anew while it is still pushed, and the log agrees.
#[test]
fn processes_do_not_end_under_pages_that_move() {
    let mut rack = rack(835);
    rack.join_node(2, MIB);
    let domain = rack.domain("run");
    let process = rack.call(ProcessStart { domain, heap: 16 * PAGE }).unwrap().process;
    rack.call(Mmap { process, addr: 0, len: 5 * PAGE, prot: 3, flags: 0x22 }).unwrap();
    let vma = rack.vmas()[0].clone();
    let moment = Duration::from_millis(50);
    rack.pass(Duration::from_nanos(STAY.as_nanos() - moment.as_nanos()));
    rack.peers.get_mut(&Port::node(vma.node)).unwrap().left_to_push = Some(1);
    let ticket = rack.ask(Migrate { domain: None, base: vma.base, len: PAGE, node: 3 - vma.node });
    rack.pass(moment.times(2));
    assert_eq!(rack.answer(ticket), None, "a page is still to be pushed");
    assert_eq!(domains(&mut rack), ["run"]);
    rack.peers.get_mut(&Port::node(vma.node)).unwrap().left_to_push = Some(0);
    let answer = rack.wait(ticket);
    assert!(answer.is_ok(), "{answer:?}");
    rack.check_log();
    until_all_is_gone(&mut rack);
    assert_eq!((rack.vmas(), domains(&mut rack)), (vec![], vec![]));
    assert_eq!(rack.call(Overview {}).unwrap().nodes.iter().map(|node| node.allocated).sum::<u64>(), 0);
    rack.check_log();
    for port in [Port::SWITCH, Port::node(1), Port::node(2)] {
        rack.check_tables(port);
    }
}

/// A node that does not answer keeps no memory: its memory is free when it answers again. A switch that does not answer has to be told first.
#[test]
fn a_blocked_free_is_repeated_later() {
    for port in [Port::node(1), Port::SWITCH] {
        let mut rack = rack(840);
        let domain = rack.domain("web");
        for _ in 0..100 {
            rack.call(Allocate::new(domain, PAGE)).unwrap();
        }
        rack.cut.insert(port);
        until_all_is_gone(&mut rack);
        rack.cut.clear();
        until_all_is_gone(&mut rack);
        assert_eq!((rack.vmas(), domains(&mut rack)), (vec![], vec![]));
        rack.check_log();
        rack.check_tables(Port::node(1));
    }
}

/// Memory in a log from before the durable flag stays, as it was promised.
#[test]
fn memory_of_an_older_log_stays() {
    let mut rack = rack(850);
    let domain = rack.domain("web");
    rack.call(Allocate::new(domain, PAGE)).unwrap();
    let old = |line: &String| line.replace(r#","durable":false"#, "");
    rack.log = rack.log.iter().map(old).collect();
    rack.restart();
    until_all_is_gone(&mut rack);
    assert_eq!((rack.vmas().len(), domains(&mut rack)), (1, vec!["web".to_string()]));
    rack.check_log();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 500, ..ProptestConfig::default() })]

    /// Whatever is requested, lost, doubled and cut off, and whichever members die in between: when no member is heard of any more nothing is left,
    /// in the control plane, at the switch or at the nodes, and the log agrees. (The peers of these tests check that no page is allocated anew before
    /// it is cleared.)
    #[test]
    fn nothing_is_left_of_those_who_are_gone(faults in faults(), steps in prop::collection::vec(step(), 1..60), seed in any::<u64>()) {
        let (mut rack, _) = history_of(Config { host_lease: Some(STAY), ..config() }, faults, &steps, seed);
        for _ in 0..4 {
            until_all_is_gone(&mut rack);
        }
        let RackOverview { nodes, hosts, vmas, domains, .. } = rack.call(Overview {}).unwrap();
        prop_assert_eq!((hosts, vmas, domains), (vec![], vec![], vec![]));
        prop_assert_eq!(nodes.iter().map(|node| node.allocated).sum::<u64>(), 0);
        for row in rack.control.compact() {
            let row = serde_json::to_value(&row).unwrap();
            for kind in ["Session", "Connection", "Space", "Piece", "Lost", "InFlight"] {
                prop_assert!(row.get(kind).is_none(), "{row}");
            }
        }
        rack.check_log();
        for node in nodes {
            rack.check_tables(Port(node.port));
        }
    }
}
