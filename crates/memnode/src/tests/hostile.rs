//! Hostile input: frames of every kind, whole, broken, repeated and misdirected, from every port (PROTOCOL
//! 7.4).
//!
//! Each frame is valid, or has a few wrong bits or bytes, or is noise. After each frame the store is compared
//! with a [`Model`] that applies only valid and authorised requests, and the node's invariants are checked.
//! `FARMEM_FUZZ_CASES` sets the number of frames.

extern crate std;

mod model;

use super::*;
use alloc::collections::BTreeMap;
use alloc::collections::VecDeque;
use farmem_machine::Rng;
use farmem_traversal::Program;
use farmem_wire::message::Traverse;
use farmem_wire::{AtomicEth, Nak, Reth, Syndrome};
use model::{Model, Tally};

/// Frames for one node before a new one replaces it.
const CASES_PER_NODE: u32 = 2_000;
const CASES_DEFAULT: u32 = 200_000;
/// Valid frames kept for repetition.
const KEPT_MAX: usize = 32;

const PMTU: usize = 256;
const PAIRS: [(u32, HostId, Domain, Rkey); 3] =
    [(0x100, HOST, ALICE, Rkey(0x11)), (0x101, OTHER_HOST, BOB, Rkey(0x22)), (0x102, HOST, BOB, Rkey(0x33))];

/// A source of frames. It follows the connections' PSNs, so that many frames are in sequence.
struct Source {
    rng: Rng,
    counter: u32,
    psns: BTreeMap<u32, u32>,
    broken: Option<usize>,
    pending: VecDeque<(Port, Vec<u8>)>,
    kept: VecDeque<(Port, Vec<u8>)>,
    program: Program,
}

impl Source {
    fn new(seed: u64) -> Self {
        let program = Program::assemble(
            ".scratch 16\n ld8 r2, window[0]\n ld8 r3, scratch[0]\n ld8 r4, window[8]\n jeq r2, r3, end\n next r4\n end: ret",
        );
        Self {
            rng: Rng::from_number(seed),
            counter: 0,
            psns: BTreeMap::new(),
            broken: None,
            pending: VecDeque::new(),
            kept: VecDeque::new(),
            program: program.unwrap(),
        }
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.below(u32::try_from(of.len()).unwrap()) as usize]
    }

    fn addr(&mut self) -> VirtAddr {
        let word =
            addr((u64::from(self.rng.below(0x410)) * 8) & 0xfff | self.pick(&[0, 0x1000, 0x2000, 0x3ff0]));
        if self.rng.chance(1, 4) { VirtAddr(word.0 + u64::from(self.rng.below(8))) } else { word }
    }

    fn data(&mut self, most: u32) -> Vec<u8> {
        (0..1 + self.rng.below(most)).map(|_| self.rng.next_u32().to_le_bytes()[0]).collect()
    }

    /// Returns the next frame and its port, as an honest rack would send it.
    fn honest(&mut self, seq: u64) -> (Port, Vec<u8>) {
        if let Some(next) = self.pending.pop_front() {
            return next;
        }
        if let Some(pair) = self.broken.take() {
            let update = self.open(pair);
            return (Port::CONTROL, batch(seq, &[update]));
        }
        match self.rng.below(20) {
            0..=1 => (Port::CONTROL, self.updates(seq)),
            2..=8 => (Port::SWITCH, self.request()),
            _ => self.verb(),
        }
    }

    fn open(&mut self, pair: usize) -> Update {
        let (qpn, host, domain, rkey) = PAIRS[pair];
        let psn = self.rng.next_u32() & Psn::MAX;
        self.psns.insert(qpn, psn);
        let peer_qpn = Qpn::new(qpn + 0x800);
        let (qpn, peer_port) = (Qpn::new(qpn), Port::host(host.0).0);
        let expected_psn = Psn::new(psn);
        Update::QueuePair { qpn, peer_qpn, peer_port, expected_psn, rkey, domain, pmtu: Pmtu::B256 }
    }

    fn updates(&mut self, seq: u64) -> Vec<u8> {
        let (base, domain) = (self.addr(), self.pick(&[ALICE, BOB]));
        let len = 1 + u64::from(self.rng.below(0x200));
        let perm = self.pick(&[Perm::None, Perm::Read, Perm::ReadWrite, Perm::ReadWrite, Perm::ReadWrite]);
        let far = VirtAddr(BASE.0 + 0x10_0000 * u64::from(self.rng.below(3)));
        let pair = self.rng.below(3) as usize;
        let first = match self.rng.below(12) {
            0 => Update::Range { base: far, len: LEN, offset: OFFSET },
            1 if self.rng.chance(1, 8) => Update::RangeGone { base: far, len: LEN },
            2 => peer(Port::host(OTHER_HOST.0), 4),
            3 if self.rng.chance(1, 8) => Update::PeerGone { port: Port::host(OTHER_HOST.0).0 },
            4 => self.open(pair),
            5..=6 => Update::Clear { base, len },
            7 if self.rng.chance(1, 2) => Update::AcceptLost { base: addr(0), len: LEN },
            7 => Update::Lose { base: addr(0x1000 * u64::from(self.rng.below(4))), len: 0x1000 },
            _ => Update::Protect { domain, base, len, perm, vma_log2: 64 },
        };
        // Grants that restore what earlier updates revoked.
        let domain = self.pick(&[ALICE, BOB]);
        let base = addr(if domain == ALICE { 0 } else { 0x2000 });
        let again = Update::Protect { domain, base, len: 0x1000, perm: Perm::ReadWrite, vma_log2: 64 };
        batch(seq, &[first, again])
    }

    fn request(&mut self) -> Vec<u8> {
        self.counter += 1;
        let host = self.pick(&[HOST, HOST, OTHER_HOST]);
        let request = RequestId::new(host, 1, self.counter);
        let domain = self.pick(&[ALICE, BOB]);
        let header = Header { domain, origin: host, ..Header::request(request, 3) };
        let (addr, data) = (self.addr(), self.data(64));
        let scratch = self.data(16);
        let program = self.program.clone();
        let body = match self.rng.below(4) {
            0..=1 => Body::RegionWrite { addr, len: u32::try_from(data.len()).unwrap(), data: &data },
            2 => Body::RegionRead { addr, len: 1 + self.rng.below(1100), data: &[] },
            _ => Body::Traverse(Traverse {
                program: program.hash(),
                cur_ptr: addr,
                iterations: 0,
                limit: self.rng.below(64),
                scratch: if self.rng.chance(7, 8) { &[1; 16] } else { &scratch },
                code: if self.rng.chance(1, 2) { program.encoded() } else { &[] },
            }),
        };
        datagram(&Message { header, body })
    }

    /// Returns a request on one of the connections; the other packets of a long WRITE come later.
    fn verb(&mut self) -> (Port, Vec<u8>) {
        let (qpn, host, domain, rkey) = self.pick(&PAIRS);
        let psn = self.psns.get(&qpn).copied().unwrap_or(0);
        let va = if self.rng.chance(7, 8) {
            let own = if domain == ALICE { 0 } else { 0x2000 };
            addr(own + u64::from(self.rng.below(0x80)) * 8)
        } else {
            self.addr()
        };
        let whole = self.data(600);
        let reth = Extension::Reth(Reth { va, rkey, dma_len: u32::try_from(whole.len()).unwrap() });
        let (swap_or_add, compare) = (self.rng.next_u64(), 0);
        let atomic = Extension::AtomicEth(AtomicEth { va, rkey, swap_or_add, compare });
        let port = Port::host(host.0);
        let mut first = match self.rng.below(5) {
            0 => vec![(Opcode::ReadRequest, reth, &[][..])],
            1 => vec![(Opcode::FetchAdd, atomic, &[][..])],
            2 => vec![(Opcode::CmpSwap, atomic, &[][..])],
            _ if whole.len() <= PMTU => vec![(Opcode::WriteOnly, reth, &whole[..])],
            _ => {
                let chunks: Vec<&[u8]> = whole.chunks(PMTU).collect();
                let last = chunks.len() - 1;
                let opcode = |i| if i == last { Opcode::WriteLast } else { Opcode::WriteMiddle };
                let rest = (1..=last).map(|i| (opcode(i), Extension::None, chunks[i]));
                core::iter::once((Opcode::WriteFirst, reth, chunks[0])).chain(rest).collect()
            }
        };
        for (i, (opcode, ext, payload)) in (0..).zip(first.drain(..)) {
            let bth = Bth { ack_req: true, ..Bth::new(opcode, Qpn::new(qpn), Psn::new(psn).plus(i)) };
            let mut frame = vec![];
            Packet { bth, ext, payload }.emit(&mut frame);
            self.pending.push_back((port, frame));
        }
        self.pending.pop_front().expect("at least one packet")
    }

    /// Returns the frame as it arrives: mostly unchanged, else broken, repeated, misdirected or replaced by
    /// noise.
    fn arriving(&mut self, seq: u64) -> (Port, Vec<u8>) {
        let (mut port, mut frame) = self.honest(seq);
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((port, frame.clone()));
        match self.rng.below(16) {
            0..=8 => {}
            9 => {
                let index = self.rng.below(u32::try_from(self.kept.len()).unwrap()) as usize;
                (port, frame) = self.kept[index].clone();
            }
            10 => {
                let strangers =
                    [Port::CONTROL, Port::SWITCH, Port::host(3), Port::host(4), Port::node(1), Port::UNKNOWN];
                port = self.pick(&strangers);
            }
            11 => frame = self.data(120),
            _ => (0..=self.rng.below(2)).for_each(|_| self.damage(&mut frame)),
        }
        (port, frame)
    }

    fn damage(&mut self, frame: &mut Vec<u8>) {
        if frame.is_empty() {
            return;
        }
        let at = self.rng.below(u32::try_from(frame.len()).unwrap()) as usize;
        match self.rng.below(5) {
            0..=1 => frame[at] ^= 1 << self.rng.below(8),
            2 => frame[at] = self.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            3 => frame.truncate(at),
            _ => frame.extend(self.data(12)),
        }
    }

    /// Learns the PSN that a connection expects from the answers.
    fn listen(&mut self, sent: &[(Port, Vec<u8>)]) {
        for (_, frame) in sent {
            let packet = Packet::parse(frame).unwrap();
            let qpn = packet.bth.dest_qp.get().wrapping_sub(0x800);
            let Some(pair) = PAIRS.iter().position(|p| p.0 == qpn) else { continue };
            let psn = packet.bth.psn;
            let next = match packet.ext {
                Extension::Aeth(aeth) => match aeth.syndrome {
                    Syndrome::Nak(Nak::PsnSequence) => psn,
                    Syndrome::Nak(_) => {
                        self.broken = Some(pair);
                        psn
                    }
                    _ => psn.plus(1),
                },
                _ => psn.plus(1),
            };
            self.psns.insert(qpn, next.get());
        }
    }
}

/// Runs a node for this many frames, or until a batch is repeated with other bytes, which stops a node
/// (PROTOCOL 5.11). Returns the number of frames. Panics with the seed and the number of the frame that broke
/// the node.
fn under_fire(seed: u64, cases: u32) -> (Tally, u32) {
    let mut source = Source::new(seed);
    let (mut bench, mut model) = (Bench::empty(Budget::default()), Model::new());
    let opening = [
        peer(Port::SWITCH, 1),
        peer(Port::host(HOST.0), 3),
        peer(Port::host(OTHER_HOST.0), 4),
        Update::Range { base: BASE, len: LEN, offset: OFFSET },
        Update::Protect { domain: ALICE, base: addr(0), len: 0x1000, perm: Perm::ReadWrite, vma_log2: 64 },
        Update::Protect { domain: BOB, base: addr(0x2000), len: 0x1000, perm: Perm::ReadWrite, vma_log2: 64 },
    ];
    let mut frames = vec![(Port::CONTROL, batch(1, &opening))];
    let pairs: Vec<Update> = (0..PAIRS.len()).map(|pair| source.open(pair)).collect();
    frames.push((Port::CONTROL, batch(2, &pairs)));
    for case in 0..cases {
        let (port, frame) = match frames.get(case as usize) {
            Some(frame) => frame.clone(),
            None => source.arriving(model.next_seq()),
        };
        bench.notes.clear();
        let attempt = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
            bench.hear(port, &frame);
            model.judge(&bench, port, &frame);
        }));
        if let Err(panic) = attempt {
            std::eprintln!("seed {seed}, case {case}: {port:?} sent {frame:02x?}");
            std::panic::resume_unwind(panic);
        }
        source.listen(&bench.sent);
        if bench.node.halted().is_some() {
            return (model.tally, case + 1);
        }
    }
    (model.tally, cases)
}

/// No frame stops the node, and no byte of the store changes without a valid, authorised request (PROTOCOL
/// 7.4).
#[test]
fn no_frame_does_what_it_may_not() {
    let cases =
        std::env::var("FARMEM_FUZZ_CASES").map_or(CASES_DEFAULT, |n| n.parse().expect("a number of cases"));
    let mut sum = Tally::default();
    let (mut seed, mut left) = (0, cases);
    while left > 0 {
        let (tally, lived) = under_fire(seed, left.min(CASES_PER_NODE));
        sum.add(&tally);
        seed += 1;
        left -= lived;
    }
    std::eprintln!("{cases} frames: {sum:?}");
    let least = cases / 1_000;
    assert!(sum.counts().iter().all(|&count| count >= least), "a kind of change hardly happened: {sum:?}");
}
