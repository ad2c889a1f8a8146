//! One host writes an object, or many read it, or many share it (PROTOCOL 8.53 to 8.58), whatever is cut off
//! and restarted meanwhile. A request to remove a host names its incarnation (8.9).

use crate::rack::{Rack, restored};
use farmem_control::api::*;
use farmem_control::{LEASE, PAGE};
use farmem_machine::{Duration, Port};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

use OpenMode::{Read, Shared, Write};

const MIB: u64 = 1 << 20;
const NODE: Port = Port::node(1);

/// Creates a node, three hosts with a connection each, and an object of a page that no host has open.
fn rack(seed: u64) -> (Rack, u64) {
    let (rack, object, _) = connected(seed);
    (rack, object)
}

/// Creates the same rack, and returns the queue pair at the node of each host.
fn connected(seed: u64) -> (Rack, u64, BTreeMap<u16, BTreeSet<u32>>) {
    let mut pairs = BTreeMap::new();
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let domain = rack.domain("graphs");
    for host in 1..=3 {
        rack.join_host(host);
        let made = rack.call(Connect::new(host.into(), 1, domain)).unwrap();
        pairs.insert(host.into(), BTreeSet::from([made.peer_qpn]));
    }
    let made = OpenObject { create: true, mode: Write, ..OpenObject::new(1, domain, "graph".into()) };
    let object = rack.call(made).unwrap().object;
    rack.call(ResizeObject { host: 1, object, length: PAGE }).unwrap();
    rack.call(DropObject { host: 1, object }).unwrap();
    (rack, object, pairs)
}

fn hold(host: u16, object: u64, mode: OpenMode) -> HoldObject {
    HoldObject { mode, ..HoldObject::new(host, object) }
}

fn said(error: &ApiError) -> String {
    format!("{} {}", error.message, error.remedy)
}

/// One host has the object in one mode and another asks for a mode. If it is refused, the first host closes
/// the object and the second one gets what it asked for.
#[test]
fn one_writes_or_many_read_or_many_share() {
    for (n, (has, asks, may)) in [
        (Shared, Shared, true),
        (Read, Read, true),
        (Write, Write, false),
        (Shared, Read, false),
        (Shared, Write, false),
        (Read, Shared, false),
        (Read, Write, false),
        (Write, Shared, false),
        (Write, Read, false),
    ]
    .into_iter()
    .enumerate()
    {
        let (mut rack, object) = rack(200 + n as u64);
        rack.call(hold(1, object, has)).unwrap();
        if may {
            rack.call(hold(2, object, asks)).unwrap();
        } else {
            rack.restart();
            rack.settle();
            let error = rack.refused(hold(2, object, asks));
            assert_eq!(error.code, ErrorCode::Conflict);
            let how = format!("open {has} at host 1 (h1, generation 1), so not {asks}");
            assert!(error.message.contains(&how), "{error:?}");
            let remedy = format!("`leave` with port {} and generation 1", Port::host(1).0);
            assert!(error.remedy.contains(&remedy), "{error:?}");
        }
        rack.call(DropObject { host: 1, object }).unwrap();
        rack.call(hold(2, object, asks)).unwrap();
        rack.check_log();
    }
}

/// A host asks for another mode than it has: it gets the wider one when it is alone, and never leaves or
/// enters the shared mode.
#[test]
fn a_host_is_no_obstacle_to_itself() {
    let (mut rack, object) = rack(220);
    rack.call(hold(1, object, Read)).unwrap();
    rack.call(hold(2, object, Read)).unwrap();
    let error = rack.refused(hold(1, object, Write));
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("host 2 (h2"), "{error:?}");
    rack.call(DropObject { host: 2, object }).unwrap();
    rack.call(hold(1, object, Write)).unwrap();
    rack.call(hold(1, object, Read)).unwrap();
    assert_eq!(rack.refused(hold(2, object, Read)).code, ErrorCode::Conflict, "it keeps what it has");
    let error = rack.refused(hold(1, object, Shared));
    assert!(said(&error).contains("drop_object"), "{error:?}");
    rack.call(DropObject { host: 1, object }).unwrap();
    rack.call(hold(1, object, Shared)).unwrap();
    for mode in [Read, Write] {
        let error = rack.refused(hold(1, object, mode));
        assert_eq!(error.code, ErrorCode::Conflict);
        assert!(error.message.contains("host 1 has object"), "{error:?}");
    }
    rack.call(DropObject { host: 1, object }).unwrap();
    for host in 1..=3 {
        rack.call(hold(host, object, Read)).unwrap();
    }
    let error = rack.refused(ResizeObject { host: 2, object, length: 2 * PAGE });
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(said(&error).contains("open it to write"), "{error:?}");
    rack.call(ResizeObject { host: 2, object, length: PAGE }).expect("that is its length");
    rack.check_log();
}

/// The writer is removed from the rack while the node with the object's memory, or the switch, cannot be
/// reached and may still let the writer write. No host gets the object, not even the writer's next
/// incarnation or after a restart of the control plane, until that role was told, or has restarted.
#[test]
fn a_writer_that_is_gone_is_kept_out_first() {
    let cases = [(NODE, "node 1 (n1)", 3), (Port::SWITCH, "the switch", 2)];
    for ((cut, title, pairs), starts_again) in
        cases.into_iter().flat_map(|case| [(case, false), (case, true)])
    {
        let (mut rack, object) = rack(230);
        rack.call(OpenSession { host: 1, domain: 1 }).unwrap();
        rack.call(hold(1, object, Write)).unwrap();
        rack.cut.insert(cut);
        let leave = Leave { port: Port::host(1).0, generation: Some(1) };
        rack.call(leave).expect("a leave does without an answer");
        assert_eq!(rack.tables(NODE).queue_pairs.len(), pairs);
        assert_eq!(rack.tables(Port::SWITCH).sessions.len(), 3 - pairs);
        rack.join_host(1);
        rack.restart();
        for (host, mode) in [(2, Write), (3, Read), (1, Write), (2, Shared)] {
            let error = rack.refused(hold(host, object, mode));
            assert_eq!(error.code, ErrorCode::Unavailable, "{error:?}");
            assert!(
                error.message.contains("host 1 had object") && error.message.contains(title),
                "{error:?}"
            );
        }
        rack.check_log();
        rack.cut.clear();
        match (starts_again, cut) {
            (true, NODE) => _ = rack.join_node(1, MIB),
            (true, _) => _ = rack.join_switch().unwrap(),
            _ => {}
        }
        rack.settle();
        rack.call(hold(2, object, Write)).unwrap();
        let left = if starts_again && cut == NODE { 0 } else { 2 };
        assert_eq!(rack.tables(NODE).queue_pairs.len(), left);
        assert!(rack.tables(Port::SWITCH).sessions.is_empty());
        rack.check_log();
    }
}

/// A lock has no memory. A host that takes it from a stuck host waits while any node with memory of the
/// domain, or the switch, may still let the stuck host write, but not for a node that has only memory of
/// others (PROTOCOL 8.57). The holder and its incarnation are shown (8.58).
#[test]
fn a_lock_is_for_all_memory_of_its_domain() {
    let cases = [
        (NODE, "node 1 (n1)", true),
        (Port::node(2), "node 2 (n2)", true),
        (Port::node(3), "", false),
        (Port::SWITCH, "the switch", true),
    ];
    for (cut, title, is_in_the_way) in cases {
        let (mut rack, _) = rack(235);
        let domain = rack.domain("graphs");
        for (node, owner) in [(2, domain), (3, rack.domain("others"))] {
            rack.join_node(node, MIB);
            rack.call(Allocate { domain: owner, size: PAGE, node: Some(node.into()), durable: false })
                .unwrap();
            rack.call(Connect::new(1, node.into(), domain)).unwrap();
        }
        rack.call(OpenSession { host: 1, domain }).unwrap();
        let show = || ShowObject { domain, name: "writer".into() };
        assert_eq!(rack.refused(show()).code, ErrorCode::NotFound);
        let lock =
            |host| OpenObject { create: true, mode: Write, ..OpenObject::new(host, domain, "writer".into()) };
        let made = rack.call(lock(1)).unwrap();
        assert_eq!((made.length, made.base), (0, 0), "it takes no memory");
        let shown = rack.call(show()).unwrap();
        assert_eq!((shown.object, shown.mode), (made.object, Write));
        let holders: Vec<_> = shown.hosts.iter().map(|host| (host.host, host.generation)).collect();
        assert_eq!(holders, [(1, 1)]);
        assert_eq!(rack.refused(lock(2)).code, ErrorCode::Conflict);

        rack.cut.insert(cut);
        rack.call(Leave { port: Port::host(1).0, generation: Some(1) })
            .expect("a leave does without an answer");
        assert_eq!(rack.call(show()).unwrap().hosts, []);
        rack.restart();
        if is_in_the_way {
            let error = rack.refused(lock(2));
            assert_eq!(error.code, ErrorCode::Unavailable, "{error:?}");
            assert!(error.message.contains(title), "{error:?}");
            rack.cut.clear();
            rack.settle();
        }
        rack.call(lock(2)).unwrap();
        rack.check_log();
    }
}

/// A lease that lapses closes shared objects, and nothing else: writes and reads over connections need no
/// lease.
#[test]
fn a_lapse_closes_what_is_shared_only() {
    let (mut rack, object) = rack(240);
    let domain = rack.domain("graphs");
    let shared =
        rack.call(OpenObject { create: true, ..OpenObject::new(1, domain, "space".into()) }).unwrap();
    rack.call(hold(1, object, Write)).unwrap();
    let renew = Renew { host: 1, generation: 1, flushed: 0, qkey: 0 };
    assert!(rack.call(renew).unwrap().lease_ms > 0);
    rack.pass(LEASE.times(4));
    let drop = |object| DropObject { host: 1, object };
    assert_eq!(rack.refused(drop(shared.object)).code, ErrorCode::NotFound, "it has to be held again");
    assert_eq!(rack.refused(hold(2, object, Write)).code, ErrorCode::Conflict);
    rack.call(drop(object)).expect("it has that open");
    rack.check_log();
}

/// `leave` removes the named incarnation, or none. The port of a node has no generation.
#[test]
fn a_fence_spares_the_next_incarnation() {
    let (mut rack, object) = rack(250);
    rack.call(hold(1, object, Write)).unwrap();
    let leave = |port: Port, generation| Leave { port: port.0, generation };
    let host = Port::host(1);
    assert_eq!(rack.join_host(1), (1, 2), "it has started again");
    rack.call(hold(1, object, Write)).unwrap();
    for wrong in [0, 1, 3] {
        let error = rack.refused(leave(host, Some(wrong)));
        assert_eq!(error.code, ErrorCode::NotFound);
        assert!(error.message.contains(&format!("host 1 (h1) is in generation 2, not {wrong}")), "{error:?}");
    }
    rack.call(DropObject { host: 1, object }).expect("it has it open still");
    let error = rack.refused(leave(NODE, Some(1)));
    assert_eq!(error.code, ErrorCode::BadRequest);
    assert!(said(&error).contains("leave `generation` out"), "{error:?}");
    // A join of the next incarnation that was requested first is waited for.
    let joins = rack.ask(JoinHost::new("h1".into(), "127.0.0.101".into()));
    let leaves = rack.ask(leave(host, Some(2)));
    rack.wait(joins).unwrap();
    assert_eq!(rack.wait(leaves).unwrap_err().code, ErrorCode::NotFound);
    rack.call(leave(host, Some(3))).unwrap();
    assert_eq!(rack.refused(leave(host, Some(3))).code, ErrorCode::NotFound, "it has left");
}

/// A log of an earlier version has no modes: every object is shared. Shared objects are still written without
/// a mode.
#[test]
fn a_log_without_modes_is_read_as_shared() {
    let (mut rack, object) = rack(260);
    rack.call(hold(1, object, Shared)).unwrap();
    let line = rack.log.last().unwrap().clone();
    let vma = rack.vmas()[0].base;
    let old = format!(
        r#"{{"Object":{{"object":{object},"row":{{"domain":1,"name":"graph","length":4096,"base":{vma},"hosts":[1]}}}}}}"#
    );
    assert_eq!(line, old);
    rack.control = restored(&rack.config, 1, &rack.log);
    rack.call(hold(2, object, Shared)).unwrap();
    assert_eq!(rack.refused(hold(3, object, Write)).code, ErrorCode::Conflict);
}

#[derive(Clone, Debug)]
enum Step {
    Hold(u16, OpenMode),
    Drop(u16),
    Connect(u16),
    Again(u16),
    Leave(u16),
    Cut,
    Heal,
    NodeAgain,
    Pass(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let host = 1_u16..4;
    let mode = prop_oneof![1 => Just(Shared), 1 => Just(Read), 3 => Just(Write)];
    prop_oneof![
        8 => (host.clone(), mode).prop_map(|(host, mode)| Step::Hold(host, mode)),
        3 => host.clone().prop_map(Step::Drop),
        3 => host.clone().prop_map(Step::Connect),
        2 => host.clone().prop_map(Step::Again),
        2 => host.prop_map(Step::Leave),
        2 => Just(Step::Cut),
        3 => Just(Step::Heal),
        1 => Just(Step::NodeAgain),
        2 => (0_u64..20_000).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ]
}

/// The test's own view of the hosts.
#[derive(Default)]
struct HostsView {
    /// Queue pairs at the node, of each host's present incarnation.
    pairs: BTreeMap<u16, BTreeSet<u32>>,
    /// The mode in which each host has the object.
    modes: BTreeMap<u16, OpenMode>,
    /// Queue pairs of incarnations that ended while they had the object to write.
    writers_gone: BTreeSet<u32>,
}

impl HostsView {
    fn ends(&mut self, host: u16) {
        let pairs = self.pairs.remove(&host).unwrap_or_default();
        if self.modes.remove(&host) == Some(Write) {
            self.writers_gone.extend(pairs);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A host that gets the object has no forbidden host beside it, and the node has no queue pair left of an
    /// incarnation that had the object to write when it ended: whatever that still sends, it changes nothing.
    /// Hosts come and go, and the node and the control plane are cut off or restart.
    #[test]
    fn nobody_writes_beside_a_host_that_was_given_the_object(
        steps in prop::collection::vec(step(), 1..40),
        seed in any::<u64>(),
    ) {
        let (mut rack, object, pairs) = connected(seed);
        let mut known = HostsView { pairs, ..HostsView::default() };
        for step in steps {
            match step {
                Step::Hold(host, mode) => {
                    if rack.call(hold(host, object, mode)).is_err() {
                        continue;
                    }
                    let has = match (known.modes.get(&host), mode) {
                        (Some(Write), Read) => Write,
                        _ => mode,
                    };
                    known.modes.insert(host, has);
                    let others = known.modes.iter().filter(|(other, _)| **other != host);
                    for (other, its) in others {
                        prop_assert!(*its == has && has != Write, "host {host} {has}, host {other} {its}");
                    }
                    let pairs: BTreeSet<u32> = rack.tables(NODE).queue_pairs.keys().copied().collect();
                    prop_assert!(pairs.is_disjoint(&known.writers_gone), "host {host} was given it {has}");
                }
                Step::Drop(host) => {
                    let has = known.modes.remove(&host).is_some();
                    prop_assert_eq!(rack.call(DropObject { host, object }).is_ok(), has);
                }
                Step::Connect(host) => {
                    if let Ok(made) = rack.call(Connect::new(host, 1, 1)) {
                        known.pairs.entry(host).or_default().insert(made.peer_qpn);
                    }
                }
                Step::Again(host) => {
                    rack.join_host(u8::try_from(host).unwrap());
                    known.ends(host);
                }
                Step::Leave(host) => {
                    if rack.call(Leave::new(Port::host(host).0)).is_ok() {
                        known.ends(host);
                    }
                }
                Step::Cut => _ = rack.cut.insert(NODE),
                Step::Heal => {
                    rack.cut.clear();
                    rack.settle();
                }
                Step::NodeAgain => {
                    rack.cut.clear();
                    rack.join_node(1, MIB);
                }
                Step::Pass(millis) => rack.pass(Duration::from_millis(millis)),
                Step::Restart => rack.restart(),
            }
        }
        rack.check_log();
        rack.cut.clear();
        rack.settle();
        rack.pass(Duration::from_secs(60));
        let alone = known.modes.is_empty();
        if alone {
            rack.join_host(1);
            prop_assert!(rack.call(hold(1, object, Write)).is_ok(), "a departed host keeps no host out for ever");
        }
    }
}
