//! Hostile bytes at the first hop and at index switches: valid frames with some bytes changed, cut or added,
//! from every port.
//!
//! For any input (PROTOCOL 6.1): no panic, one note for each frame, all invariants hold, and every emitted
//! frame parses. Only frames of switches are led on, and only frames of hosts go up.

extern crate std;

use super::*;
use farmem_machine::Rng;
use farmem_wire::KeyedFrame;
use farmem_wire::message::PairBuf;

const CASES: u32 = 60_000;
const SEED: u64 = 0xfab_71c;

/// Returns valid frames of every kind, as hosts and switches send them.
fn corpus() -> Vec<Vec<u8>> {
    let pad = 55_u64.to_le_bytes();
    let one = request(4, &pad, false);
    let mut pairs = PairBuf::default();
    let look_ups = batches::look_ups(&[55, 5_000, 60, u64::MAX], ROOT, false, &mut pairs);
    let mut corpus = Vec::from([frame(SESSION_1_10, &one), frame(SESSION_1_10, &look_ups)]);
    for message in [&one, &look_ups] {
        for (server, at) in
            [(None, ROOT.0), (Some(1), BASE_1 + 0x300), (Some(2), BASE_2 + 0x300), (Some(9), 0)]
        {
            let header = led_header(message);
            let led = match message.body {
                Body::Traverse(traverse) => LeadBody::One(Traverse { cur_ptr: VirtAddr(at), ..traverse }),
                Body::Batch(batch) => LeadBody::Batch(batch),
                _ => panic!("look-ups"),
            };
            let lead = Lead { header, root: ROOT, server: server.map(NodeId), switches: 3, led };
            let mut bytes = Vec::new();
            lead.emit(&mut bytes);
            corpus.push(datagram(HOME, &bytes));
        }
        corpus.push(frame(HOME, &Message { header: led_header(message), ..*message }));
    }
    for (at, passed) in [(ROOT.0, 0), (BASE_1 + 0x300, 1), (BASE_1 + 0x700, 2), (BASE_2, 15)] {
        corpus.push(keyed::led(at, &keyed::header(55, passed)));
    }
    corpus.push(keyed::read(keyed::OVER.to_node, 7, keyed::reth(55, 0)));
    corpus
}

fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = corpus[rng.below(u32::try_from(corpus.len()).unwrap()) as usize].clone();
    for _ in 0..rng.below(4) {
        let len = u32::try_from(bytes.len()).unwrap();
        match rng.below(6) {
            0 if len > 13 => bytes.truncate(13 + rng.below(len - 13) as usize),
            1 => bytes.extend(core::iter::repeat_n(rng.next_u32().to_le_bytes()[0], rng.below(5) as usize)),
            _ if len > 0 => bytes[rng.below(len) as usize] = rng.next_u32().to_le_bytes()[0],
            _ => {}
        }
    }
    bytes
}

#[test]
fn no_frame_breaks_a_switch_of_a_fat_tree() {
    let mut rng = Rng::from_number(SEED);
    let corpus = corpus();
    let mut scenes = [keyed::first_hop(), core(), pod(), edge()];
    let ports = [RACK, CORE, POD, EDGE, HOST_1, NODE_1].map(|peer| peer.port);
    let strangers = [Port::index(9), Port::CONTROL, Port::UNKNOWN];
    let (mut led, mut keyed_on, mut apart) = (0, 0, 0);
    for case in 0..CASES {
        let bytes = mutated(&corpus, &mut rng);
        let port = match rng.below(8) {
            0 => strangers[rng.below(3) as usize],
            _ => ports[rng.below(6) as usize],
        };
        let mut out = scenes[rng.below(4) as usize].deliver(port, &bytes);
        let Some(Out::Note(note)) = out.pop() else { panic!("case {case}: no note") };
        for out in &out {
            let Out::Send(_, frame) = out else { panic!("case {case}: {out:?}") };
            assert!(
                KeyedFrame::parse(frame).is_ok() || Packet::parse(frame).is_ok(),
                "case {case}: {frame:?}"
            );
        }
        match note {
            Note::RoutedUp { .. } | Note::KeyedUp { .. } => assert_eq!(port, HOST_1.port, "case {case}"),
            Note::BatchSplit { parts } => {
                assert_eq!(out.len(), usize::from(parts), "case {case}");
                apart += 1;
            }
            Note::RoutedDown { .. } | Note::RoutedOut { .. } | Note::RoutedBack => led += 1,
            Note::KeyedDown { .. } | Note::KeyedOut { .. } | Note::KeyedBack => keyed_on += 1,
            Note::Dropped(_) => assert!(out.is_empty(), "case {case}"),
            _ => {}
        }
        if matches!(
            note,
            Note::BatchSplit { .. }
                | Note::RoutedDown { .. }
                | Note::KeyedDown { .. }
                | Note::KeyedOut { .. }
        ) {
            assert!(port.is_switch() && port != strangers[0], "case {case}: {note:?} for {port:?}");
        }
    }
    assert!(led > 2_000 && keyed_on > 1_000 && apart > 200, "{led} led, {keyed_on} keyed, {apart} apart");
}
