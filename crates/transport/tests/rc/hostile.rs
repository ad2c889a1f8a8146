//! Random and damaged packets at both halves: no panic, and no byte changes without a valid request.
//!
//! Panic contract under test: no packet that `Packet::parse` accepts makes a half panic or break its
//! invariants (PROTOCOL 4.1 to 4.28). The crate `wire` tests frames that do not parse.

use crate::support::{
    HOST, Host, ModelMemory, NODE, NODE_QPN, Node, Sent, numbered, requester_config, responder_config, va,
};
use farmem_machine::{Port, Rng};
use farmem_transport::rc::{Failure, Note, RequesterConfig, ResponderConfig, Work};
use farmem_wire::{Bth, Opcode, Packet, Psn, Rkey};

const PACKETS_PER_SEED: usize = 400;
const SEEDS: u64 = 400;

fn byte(rng: &mut Rng) -> u8 {
    rng.next_u32().to_le_bytes()[0]
}

/// Returns the packets of a well-behaved requester, for random requests at the first 1024 bytes.
fn requests(rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut host = Host::new(requester_config());
    let works = (0..8).map(|_| {
        let addr = va(u64::from(rng.below(64)) * 8);
        let len = rng.below(500) as usize;
        match rng.below(4) {
            0 => Work::Read { addr, buf: vec![0; len] },
            1 => Work::FetchAdd { addr, add: 1 },
            _ => Work::Write { addr, buf: vec![byte(rng); len] },
        }
    });
    host.post(works.collect::<Vec<_>>()).frames
}

/// Returns a frame with some bytes changed and the same length; mostly in the headers.
fn damaged(rng: &mut Rng, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for _ in 0..=rng.below(3) {
        let within = if rng.chance(3, 4) { frame.len().min(28) } else { frame.len() };
        let at = rng.below(u32::try_from(within).expect("short")) as usize;
        frame[at] = byte(rng);
    }
    if rng.chance(1, 8) {
        frame.truncate(frame.len().saturating_sub(4 * rng.below(20) as usize));
    }
    frame
}

/// Returns a frame of random bytes behind a base header that passes the first checks.
fn random(rng: &mut Rng, near: u32) -> Vec<u8> {
    let opcode = (0..).find_map(|_| Opcode::from_bits(byte(rng) & 0x1f)).expect("most are known");
    let psn = Psn::new(near).plus(rng.below(40)).minus(20);
    let mut frame = Vec::new();
    Bth { ack_req: rng.chance(1, 2), ..Bth::new(opcode, NODE_QPN, psn) }.emit(0, &mut frame);
    let len = [0, 4, 12, 16, 28, 256, 272, 284][rng.below(8) as usize];
    frame.extend((0..len).map(|_| byte(rng)));
    frame
}

/// Returns true if the connection is in error. The test then continues with a new one, as after the last good
/// packet.
fn broke(sent: &Sent) -> bool {
    sent.notes.iter().any(|note| matches!(note, Note::Refused(_) | Note::InvalidRequest))
}

/// Damaged and invented requests at a responder whose domain may write only the first half of its memory. The
/// second half never changes. The first half changes only by packets whose payload was written, or by an
/// atomic. PROTOCOL 4.5, 4.18, 4.25, 4.27.
#[test]
fn a_responder_survives_anything() {
    let mut executed = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng::from_number(seed);
        let mut node = Node::new(responder_config(), ModelMemory::numbered(4096));
        node.memory.writable = 2048;
        let good = requests(&mut rng);
        let mut turn = 0;
        for _ in 0..PACKETS_PER_SEED {
            let frame = match rng.below(8) {
                0..5 => {
                    turn += 1;
                    good[turn - 1].clone()
                }
                5 => random(&mut rng, 100 + u32::try_from(turn).expect("short")),
                _ => damaged(&mut rng, &good[turn]),
            };
            let Ok(packet) = Packet::parse(&frame) else { continue };
            let port = if rng.chance(1, 20) { Port::UNKNOWN } else { HOST };
            let (before, changes) = (node.memory.bytes.clone(), node.memory.changes);
            if broke(&node.take_from(port, &packet)) || turn == good.len() {
                node.reconnect(responder_config());
                turn = 0;
            }
            let word = matches!(packet.bth.opcode, Opcode::FetchAdd | Opcode::CmpSwap);
            let changed = before.iter().zip(&node.memory.bytes).filter(|(a, b)| a != b).count();
            assert!(changed <= if word { 8 } else { packet.payload.len() }, "seed {seed}: {packet:?}");
            assert!(node.memory.changes - changes <= 1 && (port == HOST || changed == 0));
            executed += node.memory.changes - changes;
            if rng.chance(1, 4) {
                node.flush();
            }
        }
        assert_eq!(node.memory.bytes[2048..], numbered(2048, 2048), "seed {seed}");
    }
    assert!(executed > 10_000, "the test reaches execution: {executed}");
}

/// Damaged and invented requests with a wrong key: no byte changes. PROTOCOL 4.25.
#[test]
fn without_the_key_no_byte_changes() {
    for seed in 0..SEEDS {
        let mut rng = Rng::from_number(seed);
        let config = ResponderConfig { rkey: Rkey(0x0bad_0bad), ..responder_config() };
        let mut node = Node::new(config, ModelMemory::numbered(4096));
        let good = requests(&mut rng);
        for i in 0..PACKETS_PER_SEED {
            let frame = if rng.chance(1, 3) {
                random(&mut rng, 100)
            } else {
                damaged(&mut rng, &good[i % good.len()])
            };
            if Packet::parse(&frame).is_ok_and(|packet| broke(&node.take_from(HOST, &packet))) {
                node.reconnect(config);
            }
        }
        assert_eq!(node.memory.changes, 0, "seed {seed}");
    }
}

/// Damaged and invented answers at a requester. Results may be wrong, because a peer can always lie. The
/// requester never panics, never writes outside a buffer, keeps its invariants, and completes every request
/// exactly once. PROTOCOL 4.9 to 4.15, 4.17.
#[test]
fn a_requester_survives_anything() {
    let mut broken = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng::from_number(seed);
        let mut host = Host::new(RequesterConfig { window_psns: 32, ..requester_config() });
        let mut node = Node::new(responder_config(), ModelMemory::numbered(4096));
        let mut answers = vec![node.read(100, 0, 1).frames.remove(0)];
        let mut ended = vec![0; PACKETS_PER_SEED];
        let mut posted = 0;
        for i in 0..PACKETS_PER_SEED {
            if rng.chance(1, 4) {
                let addr = va(u64::from(rng.below(64)) * 8);
                let work = match rng.below(3) {
                    0 => Work::Read { addr, buf: vec![0; rng.below(2000) as usize] },
                    1 => Work::Write { addr, buf: vec![1; rng.below(2000) as usize] },
                    _ => Work::CmpSwap { addr, compare: 0, swap: 1 },
                };
                if host.requester.post(posted, work).is_ok() {
                    posted += 1;
                }
            }
            let frame = match rng.below(3) {
                0 => random(&mut rng, 100 + u32::try_from(i).expect("short")),
                1 => damaged(&mut rng, &answers[i % answers.len()]),
                _ => answers[i % answers.len()].clone(),
            };
            let Ok(packet) = Packet::parse(&frame) else { continue };
            let sent = host.take_from(NODE, &packet);
            for frame in &sent.frames {
                answers.extend(node.take_from(HOST, &Packet::parse(frame).expect("readable")).frames);
                answers.extend(node.flush().frames);
            }
            if host.requester.next_wake().is_some() && rng.chance(1, 10) {
                host.wake();
            }
            for (id, result) in host.results() {
                ended[usize::try_from(id).expect("short")] += 1;
                broken += usize::from(result == Err(Failure::Flushed));
            }
        }
        while host.requester.next_wake().is_some() {
            host.wake();
        }
        for (id, _) in host.results() {
            ended[usize::try_from(id).expect("short")] += 1;
        }
        let posted = usize::try_from(posted).expect("short");
        assert!(ended[..posted].iter().all(|&n| n == 1), "seed {seed}: {ended:?}");
    }
    assert!(broken > 0, "some connections are taken down by lies");
}
