//! Programs from a hostile peer: no bytes make the verifier or the interpreter panic, and what is accepted runs and ends.
//!
//! The same function is a fuzz target; here it is fed with seeded bytes, so that every test run covers some of it.

use farmem_traversal::Program;

#[path = "targets/traversal_verify_run.rs"]
mod traversal_verify_run;
use traversal_verify_run::traversal_verify_run;

const PROGRAMS: [&str; 8] = [
    include_str!("../../../testdata/programs/hash_find.pulse"),
    include_str!("../../../testdata/programs/list_sum.pulse"),
    include_str!("../../../testdata/programs/lower_bound.pulse"),
    include_str!("../../../testdata/programs/btree_find.pulse"),
    include_str!("../../../testdata/programs/btree_scan.pulse"),
    include_str!("../../../testdata/programs/btree_aggregate.pulse"),
    include_str!("../../../testdata/programs/series_window.pulse"),
    include_str!("../../../testdata/programs/list_find.pulse"),
];

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("less than a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

#[test]
fn bytes_without_any_order_are_refused() {
    let mut chance = Chance(1);
    for _ in 0..100_000 {
        let len = chance.below(64);
        let bytes: Vec<u8> = (0..len).map(|_| chance.byte()).collect();
        assert!(!traversal_verify_run(&bytes), "a valid program by chance: {bytes:02x?}");
    }
}

/// Programs that were damaged on the way, or made to look good: one to four bytes changed, cut or stretched.
#[test]
fn damaged_programs_are_refused_or_run() {
    let mut chance = Chance(2);
    let mut accepted = 0;
    let rounds = 10_000;
    for text in PROGRAMS {
        let good = Program::assemble(text).expect("assembles").encoded().to_vec();
        for _ in 0..rounds {
            let mut bytes = good.clone();
            for _ in 0..=chance.below(4) {
                let at = chance.below(bytes.len());
                bytes[at] =
                    if chance.below(2) == 0 { chance.byte() } else { bytes[at] ^ 1 << chance.below(8) };
            }
            match chance.below(20) {
                0 => bytes.truncate(chance.below(good.len())),
                1 => bytes.push(chance.byte()),
                _ => {}
            }
            accepted += usize::from(traversal_verify_run(&bytes));
        }
    }
    assert!(
        accepted > rounds / 10,
        "only {accepted} damaged programs got past the verifier: nothing was tried"
    );
    assert!(accepted < PROGRAMS.len() * rounds, "the verifier refuses nothing");
}

/// Long programs of slots that are each likely to be good: what a fuzzer that knows the format would send.
#[test]
fn programs_of_likely_slots_are_refused_or_run() {
    let mut chance = Chance(3);
    let mut accepted = 0;
    for round in 0..20_000 {
        let slots = 1 + chance.below(if round % 100 == 0 { 511 } else { 12 });
        let mut bytes = vec![1, chance.byte() & 1, 0, 1, 0, 1];
        bytes.extend_from_slice(&u16::try_from(slots).expect("few").to_le_bytes());
        for left in (0..slots).rev() {
            bytes.extend_from_slice(&likely_slot(&mut chance, left));
        }
        accepted += usize::from(traversal_verify_run(&bytes));
    }
    assert!(accepted > 1_000, "only {accepted} programs got past the verifier");
}

fn likely_slot(chance: &mut Chance, left: usize) -> [u8; 8] {
    const ALU: [u8; 14] = [0x0, 0x1, 0x2, 0x3, 0x4, 0x5, 0x6, 0x7, 0x8, 0x9, 0xa, 0xb, 0xc, 0xe];
    const CONDS: [u8; 11] = [0x1, 0x2, 0x3, 0x4, 0x5, 0x6, 0x7, 0xa, 0xb, 0xc, 0xd];
    let (dst, src) = (chance.byte() % 11, chance.byte() % 11);
    let (offset, imm) = (chance.byte() % 128, chance.byte());
    if left == 0 {
        return if chance.below(2) == 0 {
            [0x95, 0, 0, 0, 0, 0, 0, 0]
        } else {
            [0xe5, dst, 0, 0, 0, 0, 0, 0]
        };
    }
    match chance.below(8) {
        0 => [0x07 | ALU[chance.below(8)] << 4, dst, 0, 0, imm, 0, 0, 0],
        1 => [0x0c | ALU[chance.below(14)] << 4, dst | src << 4, 0, 0, 0, 0, 0, 0],
        2 => {
            let ahead = u8::try_from(chance.below(left.min(200))).expect("bounded");
            [0x0d | CONDS[chance.below(11)] << 4, dst | src << 4, ahead, 0, 0, 0, 0, 0]
        }
        3 => [0x01 | chance.byte() & 0x38, dst, offset, 0, 0, 0, 0, 0],
        6 => [0x61 | chance.byte() & 0x98, dst | src << 4, offset, 0, 1 + imm % 16, 0, 0, 0],
        7 => [0x03 | chance.byte() & 0x98, src << 4, offset, 0, 0, 0, 0, 0],
        4 => [0x81 | chance.byte() & 0x58, dst | src << 4, offset, 0, 0, 0, 0, 0],
        _ => [0x23 | chance.byte() & 0x18, src << 4, offset, 0, 0, 0, 0, 0],
    }
}
