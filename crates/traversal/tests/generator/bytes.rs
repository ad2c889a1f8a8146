//! Programs as bytes, valid and invalid, generated from a seed: input of a hostile peer. Included by the
//! tests of other crates.

use farmem_traversal::SCRATCH_LEN_MAX;

/// The programs of testdata.
pub(crate) const PROGRAMS: [&str; 10] = [
    include_str!("../../../../testdata/programs/hash_find.pulse"),
    include_str!("../../../../testdata/programs/list_sum.pulse"),
    include_str!("../../../../testdata/programs/lower_bound.pulse"),
    include_str!("../../../../testdata/programs/btree_find.pulse"),
    include_str!("../../../../testdata/programs/btree_scan.pulse"),
    include_str!("../../../../testdata/programs/btree_aggregate.pulse"),
    include_str!("../../../../testdata/programs/series_window.pulse"),
    include_str!("../../../../testdata/programs/list_find.pulse"),
    include_str!("../../../../testdata/programs/list_add.pulse"),
    include_str!("../../../../testdata/programs/btree_find_rank.pulse"),
];

/// SplitMix64.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("less than a usize")
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// Returns a damaged or manipulated program: one to four bytes changed, cut or added.
pub(crate) fn damaged(chance: &mut Chance, good: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=chance.below(4) {
        let at = chance.below(bytes.len());
        bytes[at] = if chance.below(2) == 0 { chance.byte() } else { bytes[at] ^ 1 << chance.below(8) };
    }
    match chance.below(20) {
        0 => bytes.truncate(chance.below(good.len())),
        1 => bytes.push(chance.byte()),
        _ => {}
    }
    bytes
}

/// Returns a program of slots that are each likely to be valid. Half of them declare that they store; one in
/// four has the largest scratch pad, the others 256 bytes.
pub(crate) fn likely(chance: &mut Chance, slots: usize) -> Vec<u8> {
    let large = chance.below(4) == 0;
    let scratch_len = if large { SCRATCH_LEN_MAX } else { 256 };
    let mut bytes = vec![1, chance.byte() & 1, 0, 1];
    bytes.extend_from_slice(&u16::try_from(scratch_len).expect("bounded").to_le_bytes());
    bytes.extend_from_slice(&u16::try_from(slots).expect("few").to_le_bytes());
    for left in (0..slots).rev() {
        bytes.extend_from_slice(&likely_slot(chance, left, large));
    }
    bytes
}

fn likely_slot(chance: &mut Chance, left: usize, large: bool) -> [u8; 8] {
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
        _ => {
            let far = if large { chance.byte() % 16 } else { 0 };
            [0x23 | chance.byte() & 0x18, src << 4, offset, far, 0, 0, 0, 0]
        }
    }
}
