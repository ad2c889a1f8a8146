//! Hosts that carry out the WRITEs of others (PROTOCOL 8.59): the control plane lists them, and keeps the
//! objects that a departed host had open to write from others until no host acts for it.

use crate::rack::Rack;
use farmem_control::api::*;
use farmem_control::{ACTS_MAX, Control, PAGE, Record};
use farmem_machine::{Port, Rng};

const MIB: u64 = 1 << 20;

/// Creates three hosts, and an object of a page that no host has open.
fn rack(seed: u64) -> (Rack, u64) {
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let domain = rack.domain("graphs");
    for host in 1..=3 {
        rack.join_host(host);
        rack.call(Connect::new(host.into(), 1, domain)).unwrap();
    }
    let made =
        OpenObject { create: true, mode: OpenMode::Write, ..OpenObject::new(1, domain, "graph".into()) };
    let object = rack.call(made).unwrap().object;
    rack.call(ResizeObject { host: 1, object, length: PAGE }).unwrap();
    (rack, object)
}

/// Host 2 in generation 1, for host 1 in generation 1.
const ACTS: ActFor = ActFor { host: 2, generation: 1, of_host: 1, of_generation: 1, begins: true };
const ENDS: ActFor = ActFor { begins: false, ..ACTS };

fn leave(host: u16) -> Leave {
    Leave { port: Port::host(host).0, generation: Some(1) }
}

fn write(host: u16, object: u64) -> HoldObject {
    HoldObject { mode: OpenMode::Write, ..HoldObject::new(host, object) }
}

/// Returns for which hosts each host acts, as the overview says.
fn acting(rack: &mut Rack) -> Vec<(u16, Vec<(u16, u16)>)> {
    let hosts = rack.call(Overview {}).unwrap().hosts;
    hosts.into_iter().map(|row| (row.host, row.acts_for)).filter(|(_, of)| !of.is_empty()).collect()
}

/// A repeated start of acting counts once, and is in the log. Acting ends when that is requested, and with
/// the acting host, but not with the host for which it acts.
#[test]
fn acting_hosts_are_listed() {
    let (mut rack, _) = rack(500);
    assert_eq!(acting(&mut rack), []);
    rack.call(ACTS).unwrap();
    rack.call(ACTS).expect("it acts already");
    rack.call(ActFor { of_host: 3, ..ACTS }).unwrap();
    rack.restart();
    assert_eq!(acting(&mut rack), [(2, vec![(1, 1), (3, 1)])]);
    rack.check_log();
    rack.call(ActFor { of_host: 3, ..ENDS }).unwrap();
    rack.call(ActFor { of_host: 3, ..ENDS }).expect("it does not act any more");
    rack.call(leave(1)).unwrap();
    assert_eq!(acting(&mut rack), [(2, vec![(1, 1)])], "what it asked for may be under way");
    rack.join_host(1);
    rack.call(ActFor { of_generation: 2, ..ACTS }).unwrap();
    assert_eq!(acting(&mut rack), [(2, vec![(1, 1), (1, 2)])]);
    rack.call(leave(2)).unwrap();
    assert_eq!(acting(&mut rack), []);
    assert_eq!(rack.join_host(2), (2, 2));
    assert_eq!(acting(&mut rack), []);
    rack.check_log();
}

/// A host cannot begin to act for an incarnation that has ended, for itself, or for more incarnations than
/// the limit.
#[test]
fn impossible_reports_of_acting_hosts_are_refused() {
    let (mut rack, _) = rack(510);
    assert_eq!(rack.refused(ActFor { of_host: 2, ..ACTS }).code, ErrorCode::BadRequest);
    rack.call(leave(1)).unwrap();
    for (gone, named) in [
        (ACTS, "host 1 in generation 1"),
        (ActFor { of_host: 9, ..ACTS }, "host 9"),
        (ActFor { host: 9, of_host: 3, ..ACTS }, "host 9"),
        (ActFor { generation: 2, of_host: 3, ..ACTS }, "host 2 in generation 2"),
    ] {
        let error = rack.refused(gone);
        assert_eq!(error.code, ErrorCode::NotFound);
        assert!(error.message.contains(named), "{error:?}");
    }
    for generation in 2..2 + u16::try_from(ACTS_MAX).unwrap() {
        assert_eq!(rack.join_host(1), (1, generation));
        rack.call(ActFor { of_generation: generation, ..ACTS }).unwrap();
    }
    assert_eq!(rack.refused(ActFor { of_host: 3, ..ACTS }).code, ErrorCode::TableFull);
    assert_eq!(acting(&mut rack)[0].1.len(), ACTS_MAX);
}

/// A host that writes an object is removed from the rack, and its DPU may still carry out its requests. No
/// host gets the object, even after a restart of the control plane, until the DPU reports that nothing is in
/// flight, or is removed as well and the node has been told.
#[test]
fn written_objects_stay_reserved_while_a_host_acts_for_the_writer() {
    for is_fenced in [false, true] {
        let (mut rack, object) = rack(520);
        rack.call(ACTS).unwrap();
        rack.call(leave(1)).unwrap();
        rack.settle();
        let log = rack.log.clone();
        for _ in 0..2 {
            let error = rack.refused(write(3, object));
            assert_eq!(error.code, ErrorCode::Unavailable);
            assert!(error.message.contains(r#"host "h2""#), "{error:?}");
            rack.restart();
        }
        rack.check_log();
        assert!(log.iter().all(|line| rack.log.contains(line)));
        if is_fenced {
            rack.cut.insert(Port::node(1));
            rack.call(leave(2)).expect("a leave does without an answer");
            let error = rack.refused(write(3, object));
            assert_eq!(error.code, ErrorCode::Unavailable);
            assert!(error.message.contains("node 1 (n1)"), "{error:?}");
            rack.check_log();
            rack.cut.clear();
            rack.settle();
        } else {
            rack.call(ENDS).unwrap();
        }
        rack.call(write(3, object)).unwrap();
        rack.check_log();
    }
}

/// A log in which a host begins to act twice is refused.
#[test]
fn a_log_that_does_not_fit_is_refused() {
    let (mut rack, _) = rack(530);
    rack.call(ACTS).unwrap();
    let line = rack.log.last().unwrap().clone();
    assert!(line.contains("Acts"), "{line}");
    let again = |log: &[String]| {
        let lines = log.iter().map(|line| serde_json::from_str::<Record>(line).unwrap());
        Control::restore(rack.config.clone(), Rng::from_number(1), lines).map(drop)
    };
    again(&rack.log).expect("it is whole");
    assert!(again(&[rack.log.clone(), vec![line]].concat()).is_err());
}
