//! Hostile bytes: random frames and valid ones with a few bytes changed, cut or added, from every port.
//!
//! For any input (PROTOCOL 6.1): no panic, one note per frame, all invariants hold, every emitted frame
//! parses, and the tables change only by an update that the control plane sent with the right key.
//! `FARMEM_FUZZ_CASES` sets the number of frames (default 200,000).

extern crate std;

use super::*;
use farmem_machine::Rng;

const CASES: u64 = 200_000;
/// Frames until the rack is rebuilt.
const RACK_CASES: u64 = 20_000;
const SEED: u64 = 0x5317_c4ed;

#[test]
fn no_frame_breaks_the_switch() {
    let cases =
        std::env::var("FARMEM_FUZZ_CASES").ok().map_or(CASES, |n| n.parse().expect("a number of frames"));
    let mut rng = Rng::from_number(SEED);
    let mut scene = Scene::rack();
    let corpus = corpus();
    let mut tables = scene.switch.tables.clone();
    let (mut sent, mut updated) = (0, 0);
    for case in 0..cases {
        // Mutated grants pile up, and each case visits all of them.
        if case % RACK_CASES == 0 || scene.switch.halted().is_some() {
            scene = Scene::rack();
            tables = scene.switch.tables.clone();
        }
        let bytes = mutated(&corpus, scene.seq + 1, &mut rng);
        let port = any_port(&mut rng);
        let out = scene.deliver(port, &bytes);
        let Some(Out::Note(note)) = out.last() else { panic!("case {case}: no note: {out:?}") };
        match note {
            Note::Updated { seq } | Note::UpdateRefused { seq, .. } => {
                assert_eq!(port, Port::CONTROL, "case {case}");
                assert_eq!(*seq, scene.seq + 1, "case {case}");
                scene.seq += 1;
                updated += 1;
                tables = scene.switch.tables.clone();
            }
            _ => assert!(scene.switch.tables == tables, "case {case}: {note:?} changed the tables"),
        }
        sent += understood(case, note, &out);
    }
    // A fuzzer whose frames all fail the first check finds nothing.
    assert!(sent > cases / 20 && updated > cases / 1_000, "{sent} frames sent, {updated} batches applied");
}

/// Checks all outputs of one frame; returns the number of frames sent.
fn understood(case: u64, note: &Note, out: &[Out]) -> u64 {
    let mut sent = 0;
    for out in &out[..out.len() - 1] {
        match out {
            Out::Send(_, bytes) => {
                sent += 1;
                let packet = Packet::parse(bytes).expect("the switch emits frames that parse");
                let message = Message::parse(packet.payload).expect("and messages that parse");
                let routed = matches!(note, Note::Forwarded { .. } | Note::Continued { .. });
                assert_eq!(message.header.response, !routed, "case {case}: {note:?}");
            }
            Out::Peer(_) => {
                assert!(matches!(note, Note::Updated { .. } | Note::UpdateRefused { .. }), "case {case}")
            }
            Out::Note(second) => panic!("case {case}: {second:?} and {note:?}"),
        }
    }
    let expected = u64::from(!matches!(note, Note::Dropped(_) | Note::UpdateChanged { .. }));
    assert_eq!(sent, expected, "case {case}: {note:?}");
    sent
}

/// Returns receivers and payloads of valid frames of every kind.
fn corpus() -> Vec<(Endpoint, Vec<u8>)> {
    let mut corpus = Vec::new();
    for receiver in [SESSION_1_10, SESSION_2_10, SESSION_1_20, HOME] {
        let host = if receiver == SESSION_2_10 { 2 } else { 1 };
        for message in [
            read(host, BASE_1, 64),
            read(host, BASE_2 + VMA_LEN - 4, 4),
            write(host, BASE_1 + 0x40, b"some bytes to write"),
            traverse(host, BASE_1, 3),
            traverse(host, BASE_2, 255),
        ] {
            let header = Header { domain: Domain(10), origin: HostId(host), ..message.header };
            corpus.push((receiver, payload(&Message { header, ..message })));
        }
    }
    corpus
}

/// Returns a small random batch: mostly valid, in and around the rack's addresses.
fn random_batch(seq: u64, rng: &mut Rng) -> Vec<u8> {
    let mut updates = Vec::new();
    for _ in 0..=rng.below(3) {
        let base = [BASE_1, BASE_2][rng.below(2) as usize] + u64::from(rng.below(32)) * 0x1000;
        let len = u64::from(1 + rng.below(16)) * 0x1000;
        let perm = [Perm::None, Perm::Read, Perm::ReadWrite, Perm::ReadWrite][rng.below(4) as usize];
        let [_, _, high, low] = rng.next_u32().to_be_bytes();
        updates.push(match rng.below(8) {
            0 => translate(base, 12, u16::from(low & 3)),
            1 => Update::Untranslate { base: VirtAddr(base), size_log2: 12 },
            2 => add([NODE_1, NODE_2, HOST_1, HOST_2][usize::from(low & 3)]),
            3 => {
                session([SESSION_1_10, SESSION_1_20][usize::from(low & 1)], 1, u32::from(high & 1) * 10 + 10)
            }
            _ => protect(u32::from(low & 1) * 10 + 10, base, len, perm),
        });
    }
    batch(seq, &updates)
}

fn mutated(corpus: &[(Endpoint, Vec<u8>)], seq: u64, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = match rng.below(16) {
        0 => (0..rng.below(200)).map(|_| rng.next_u32().to_be_bytes()[0]).collect(),
        1 | 2 => random_batch(seq, rng),
        _ => {
            let (receiver, payload) =
                &corpus[rng.below(u32::try_from(corpus.len()).expect("small")) as usize];
            let mut payload = payload.clone();
            if rng.chance(1, 2) {
                mutate(&mut payload, rng);
            }
            datagram(*receiver, &payload)
        }
    };
    if rng.chance(1, 3) {
        mutate(&mut bytes, rng);
    }
    bytes
}

/// Changes up to four bytes or bits, or cuts the end off, or adds to it.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..=rng.below(4) {
        let Some(len) = u32::try_from(bytes.len()).ok().filter(|&len| len > 0) else { return };
        let at = rng.below(len) as usize;
        match rng.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_slice(&rng.next_u32().to_be_bytes()),
            2 | 3 => bytes[at] = rng.next_u32().to_be_bytes()[0],
            4 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            _ => bytes[at] ^= 1 << rng.below(8),
        }
    }
}

fn any_port(rng: &mut Rng) -> Port {
    let known = [HOST_1.port, HOST_1.port, HOST_2.port, NODE_1.port, NODE_2.port, Port::CONTROL];
    match rng.below(12) {
        0 => [Port::UNKNOWN, Port::SWITCH, Port(rng.next_u32())][rng.below(3) as usize],
        _ => known[rng.below(6) as usize],
    }
}
