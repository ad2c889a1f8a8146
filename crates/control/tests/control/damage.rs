//! Hostile frames and damaged logs: nothing makes the control plane panic, and invalid input does not change
//! it.

use crate::rack::{Rack, grant, text};
use farmem_control::api::{Allocate, Connect, JoinHost, JoinIndex, OpenSession, PermName, Tier};
use farmem_control::{Control, DropReason, Note, Record};
use farmem_machine::{Event, Machine, Outbox, Port, Rng};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// Creates a rack with a bit of everything, and a request in flight.
fn busy_rack(seed: u64) -> Rack {
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.join_node(2, MIB);
    rack.join_host(1);
    let (one, two) = (rack.domain("one"), rack.domain("two"));
    let vma = rack.allocate(one, 8192);
    rack.call(grant(&vma, 1024, 2048, two, PermName::Read)).unwrap();
    rack.call(OpenSession { host: 1, domain: one }).unwrap();
    rack.call(Connect::new(1, 1, two)).unwrap();
    rack.ask(Allocate { domain: two, size: 100, node: Some(2), durable: false });
    rack.ask(JoinHost::new("h2".into(), text(102)));
    rack
}

/// An answer only counts from the role that was asked, at its port, to the control plane's endpoint, with its
/// key, about the outstanding batch.
#[test]
fn a_good_answer_from_the_wrong_place_is_dropped() {
    let mut rack = busy_rack(70);
    let node = Port::node(2);
    let (_, batch) = rack.take_wires().into_iter().find(|(port, _)| *port == node).expect("a batch");
    let good = rack.peers.get_mut(&node).unwrap().hear(&batch).unwrap();
    let flipped = |byte: usize| {
        let mut frame = good.clone();
        frame[byte] ^= 1;
        frame
    };
    let cases = [
        (Port::UNKNOWN, good.clone(), DropReason::Port),
        (Port::host(1), good.clone(), DropReason::Port),
        (Port::node(3), good.clone(), DropReason::Stale),
        (Port::SWITCH, good.clone(), DropReason::Stale),
        (node, flipped(7), DropReason::Endpoint),  // BTH.DestQP
        (node, flipped(15), DropReason::Endpoint), // DETH.Q_Key
        (node, batch, DropReason::Endpoint),
        (node, flipped(20), DropReason::Malformed), // version
        (node, flipped(23), DropReason::Kind),      // response flag
        (node, flipped(29), DropReason::Stale),     // generation
        (node, flipped(51), DropReason::Stale),     // seq
        (node, good[..good.len() - 1].to_vec(), DropReason::Malformed),
        (node, Vec::new(), DropReason::Malformed),
    ];
    let rows = rack.control.compact();
    for (port, frame, reason) in cases {
        let before = rack.noted(Note::Dropped(reason));
        rack.event(Event::Frame { port, bytes: &frame });
        assert_eq!(rack.noted(Note::Dropped(reason)), before + 1, "{port:?} {reason:?}");
    }
    assert_eq!(rack.control.compact(), rows);
    rack.event(Event::Frame { port: node, bytes: &good });
    assert_ne!(rack.control.compact(), rows, "the answer itself counts");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Random bytes and mutated answers are dropped or, if still a valid answer, accepted. There is no panic,
    /// and every invariant holds.
    #[test]
    fn frames_do_not_kill(frames in prop::collection::vec((0usize..5, prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), prop::collection::vec(any::<u8>(), 0..80), any::<bool>()), 1..40)) {
        let mut rack = busy_rack(71);
        let ports = [Port::SWITCH, Port::node(1), Port::node(2), Port::host(1), Port::UNKNOWN];
        let batches = rack.take_wires();
        let answers: Vec<Vec<u8>> = batches.iter().filter_map(|(port, batch)| rack.peers.get_mut(port)?.hear(batch)).collect();
        for (port, flips, noise, random) in frames {
            let mut bytes = if random { noise } else { answers[port % answers.len()].clone() };
            for (at, value) in flips {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
            }
            rack.event(Event::Frame { port: ports[port], bytes: &bytes });
        }
        rack.check_log();
    }

    /// Lines of a log are lost, doubled, swapped, or have a number changed. The log is refused with the line
    /// named, or leads to a sound state.
    #[test]
    fn a_damaged_log_does_not_kill(edits in prop::collection::vec((0u8..4, any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u64..70_000), 1..4), compact in any::<bool>()) {
        let rack = busy_rack(72);
        let mut lines = if compact {
            rack.control.compact().iter().map(|record| serde_json::to_string(record).unwrap()).collect()
        } else {
            rack.log.clone()
        };
        for (kind, left, right, place, value) in edits {
            let (left, right) = (left.index(lines.len()), right.index(lines.len()));
            match kind {
                0 => drop(lines.remove(left)),
                1 => lines.insert(right, lines[left].clone()),
                2 => lines.swap(left, right),
                _ => lines[left] = with_number(&lines[left], place, value),
            }
            prop_assume!(!lines.is_empty());
        }
        let records: Vec<Record> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let count = records.len();
        match Control::restore(rack.config.clone(), Rng::from_number(1), records) {
            Err(error) => prop_assert!(error.line <= count && !error.to_string().is_empty()),
            Ok(mut control) => {
                control.check();
                control.handle(rack.now, Event::Wake, &mut Outbox::new());
                control.check();
            }
        }
    }
}

/// Each number of each line is replaced by those at the edges of its type and of what a port accepts. The log
/// is refused, or leads to a sound state.
#[test]
fn each_number_of_a_log_may_be_wrong() {
    const EDGES: [u64; 9] = [0, 0x7ff, 0x800, 0xefff, 0xf000, 0xffff, 0xff_ffff, u32::MAX as u64, u64::MAX];
    let mut rack = busy_rack(73);
    let core = JoinIndex { name: "core".into(), gid: text(30), tier: Tier::Core, below: vec!["n1".into()] };
    rack.call(core).unwrap();
    let rows: Vec<String> =
        rack.control.compact().iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    let mut refused = 0;
    for lines in [rows, rack.log.clone()] {
        let sound: Vec<Record> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        for (at, line) in lines.iter().enumerate() {
            for place in numbers(line) {
                for edge in EDGES {
                    let mut records = sound.clone();
                    let Ok(record) = serde_json::from_str(&replaced(line, place, edge)) else { continue };
                    records[at] = record;
                    let restored = Control::restore(rack.config.clone(), Rng::from_number(1), records);
                    refused += usize::from(restored.is_err());
                    if let Ok(mut control) = restored {
                        control.handle(rack.now, Event::Wake, &mut Outbox::new());
                        control.check();
                    }
                }
            }
        }
    }
    assert!(refused > 100, "{refused} wrong numbers were seen");
}

/// Returns the line with one of its numbers replaced.
fn with_number(line: &str, place: prop::sample::Index, value: u64) -> String {
    let numbers = numbers(line);
    if numbers.is_empty() { line.into() } else { replaced(line, numbers[place.index(numbers.len())], value) }
}

/// Returns where the numbers of a line begin and end.
fn numbers(line: &str) -> Vec<(usize, usize)> {
    let bytes = line.as_bytes();
    let starts =
        (0..bytes.len()).filter(|&i| bytes[i].is_ascii_digit() && (i == 0 || !bytes[i - 1].is_ascii_digit()));
    starts
        .map(|start| (start, start + bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count()))
        .collect()
}

fn replaced(line: &str, (start, end): (usize, usize), value: u64) -> String {
    format!("{}{value}{}", &line[..start], &line[end..])
}
