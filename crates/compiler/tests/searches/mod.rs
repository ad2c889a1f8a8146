//! The semantics of the searches in testdata/iterators/signed_search.c, in plain numbers; and cases for them.

use proptest::prelude::*;

/// Numbers of a node.
pub(super) const NUMBERS: usize = 13;

/// A type of numbers or keys, in the order of the iterators and of their results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Type {
    pub(super) name: &'static str,
    pub(super) bytes: u32,
    is_signed: bool,
}

const fn of(name: &'static str, bytes: u32, is_signed: bool) -> Type {
    Type { name, bytes, is_signed }
}

pub(super) const TYPES: [Type; 8] = [
    of("i8", 1, true),
    of("i16", 2, true),
    of("i32", 4, true),
    of("i64", 8, true),
    of("u8", 1, false),
    of("u16", 2, false),
    of("u32", 4, false),
    of("u64", 8, false),
];

impl Type {
    /// Returns the value of the low bytes of `bits`.
    const fn value(self, bits: u64) -> i128 {
        let unused = 64 - 8 * self.bytes;
        if self.is_signed {
            ((bits << unused).cast_signed() >> unused) as i128
        } else {
            (bits << unused >> unused) as i128
        }
    }

    /// Applies the integer promotions of C: a type smaller than int becomes int.
    const fn promoted(self) -> Self {
        if self.bytes < 4 { of("", 4, true) } else { self }
    }
}

/// Applies C's usual arithmetic conversions: the larger type; of two types of one size, the unsigned one.
const fn common(a: Type, b: Type) -> Type {
    let (a, b) = (a.promoted(), b.promoted());
    if a.bytes > b.bytes || (a.bytes == b.bytes && !a.is_signed) { a } else { b }
}

/// One search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Case {
    /// Index of the numbers' type.
    pub(super) numbers: usize,
    /// Bits of the numbers; their type uses the low ones.
    pub(super) bits: [u64; NUMBERS],
    pub(super) key: u64,
}

impl Case {
    /// Returns the node as in memory, padded with zeros to 13 words.
    pub(super) fn node(&self) -> Vec<u8> {
        let bytes = TYPES[self.numbers].bytes as usize;
        let mut node: Vec<u8> =
            self.bits.iter().flat_map(|bits| bits.to_le_bytes()[..bytes].to_vec()).collect();
        node.resize(8 * NUMBERS, 0);
        node
    }

    /// Returns the scratch pad before the search.
    pub(super) fn scratch(&self) -> Vec<u8> {
        [&self.key.to_le_bytes()[..], &[0; 128]].concat()
    }

    /// Returns the scratch pad behind the key, after the search: eight ranks, eight matches.
    pub(super) fn expected(&self) -> Vec<u8> {
        let of = TYPES[self.numbers];
        let ranks = TYPES.map(|key| self.count(|number, key| number <= key, of, key).len());
        let matches = TYPES
            .map(|key| self.count(|number, key| number == key, of, key).first().copied().unwrap_or(NUMBERS));
        ranks.into_iter().chain(matches).flat_map(|found| (found as u64).to_le_bytes()).collect()
    }

    /// Returns the indices for which `holds` is true.
    fn count(&self, holds: fn(i128, i128) -> bool, of: Type, key: Type) -> Vec<usize> {
        let into = common(of, key);
        let value = |from: Type, bits| {
            let value = from.value(bits);
            if into.is_signed { value } else { value.rem_euclid(1 << (8 * into.bytes)) }
        };
        let at = value(key, self.key);
        (0..NUMBERS).filter(|&place| holds(value(of, self.bits[place]), at)).collect()
    }
}

/// Generates numbers at and near the ends of every type, and arbitrary ones.
fn number() -> impl Strategy<Value = u64> {
    let end = prop::sample::select(vec![0_u64, 1 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 63]);
    let near = (end, any::<bool>(), 0..6_u64).prop_map(|(end, negative, by)| {
        (if negative { end.wrapping_neg() } else { end }).wrapping_add(by).wrapping_sub(3)
    });
    prop_oneof![4 => near, 1 => any::<u64>()]
}

/// Generates any search; its key is often one of the numbers.
pub(super) fn case() -> impl Strategy<Value = Case> {
    (0..TYPES.len(), prop::array::uniform13(number()), number(), prop::option::of(0..NUMBERS)).prop_map(
        |(numbers, bits, key, hit)| Case { numbers, bits, key: hit.map_or(key, |place| bits[place]) },
    )
}
