//! The comparison of 64-bit keys by a switch with 32-bit arithmetic and match tables, as a checked model
//! (Fat-B+Tree III-A, figure 3).
//!
//! A property test compares it with `key > pivot`; [`crate::NodeSet`] compares by it.

/// The results of the arithmetic units for a key and a pivot: the input of the match table, and the four bits
/// that its actions choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compared {
    /// `sub[63:32]`: the pivot's high half less the key's.
    pub sub_high: u32,
    /// `xor[31]`: the top bits of the low halves differ.
    pub xor_31: bool,
    /// `xor[63]`: the top bits of the high halves differ.
    pub xor_63: bool,
    /// `key[63]`.
    pub key_63: bool,
    /// `key[31]`.
    pub key_31: bool,
    /// `sub[63]`: the top bit of `sub_high`.
    pub sub_63: bool,
    /// `sub[31]`: the top bit of the pivot's low half less the key's.
    pub sub_31: bool,
}

impl Compared {
    /// Computes the first phase: four operations on 32 bits.
    #[must_use]
    pub const fn of(key: u64, pivot: u64) -> Self {
        let ((key_high, key_low), (pivot_high, pivot_low)) = (halves(key), halves(pivot));
        let sub_high = pivot_high.wrapping_sub(key_high);
        let sub_low = pivot_low.wrapping_sub(key_low);
        Self {
            sub_high,
            xor_31: top(pivot_low ^ key_low),
            xor_63: top(pivot_high ^ key_high),
            key_63: top(key_high),
            key_31: top(key_low),
            sub_63: top(sub_high),
            sub_31: top(sub_low),
        }
    }

    /// Returns the matching entry (1 to 4) of the match table: the second phase.
    #[must_use]
    pub const fn entry(&self) -> u8 {
        match (self.sub_high, self.xor_31, self.xor_63) {
            (0, false, _) => 1,
            (0, true, _) => 2,
            (_, _, false) => 3,
            (_, _, true) => 4,
        }
    }

    /// Returns the bit that the entry's action assigns: the key is greater than the pivot.
    #[must_use]
    pub const fn result(&self) -> bool {
        match self.entry() {
            // The high halves are equal, and so are the top bits of the low ones: the sign of the difference
            // decides.
            1 => self.sub_31,
            2 => self.key_31,
            3 => self.sub_63,
            _ => self.key_63,
        }
    }
}

/// Compares `key > pivot` as a switch does.
#[must_use]
pub const fn greater(key: u64, pivot: u64) -> bool {
    Compared::of(key, pivot).result()
}

#[expect(clippy::cast_possible_truncation, reason = "each half has 32 bits")]
const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

const fn top(half: u32) -> bool {
    half >> 31 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of III-A.
    #[test]
    fn the_worked_example() {
        let compared = Compared::of(0x59A4_7375_82A7_75AB, 0xDDAE_E776_4589_DB15);
        assert_eq!(compared.sub_high, 0x840A_7401);
        assert_eq!((compared.xor_31, compared.xor_63), (true, true));
        assert_eq!(compared.entry(), 4);
        assert!(!compared.key_63);
        assert!(!compared.result());
    }

    /// Generates halves around the edges of a 32-bit comparison.
    fn half() -> impl Strategy<Value = u32> {
        prop_oneof![
            any::<u32>(),
            (0..4_u32),
            (0..4_u32).prop_map(|n| u32::MAX - n),
            (0..8_u32).prop_map(|n| (1 << 31) - 4 + n)
        ]
    }

    /// Generates pairs that are often equal in one half or adjacent.
    fn pair() -> impl Strategy<Value = (u64, u64)> {
        let word = (half(), half()).prop_map(|(high, low)| u64::from(high) << 32 | u64::from(low));
        (word, half(), half(), 0..6_u8).prop_map(|(a, high, low, kind)| {
            let b = match kind {
                0 => a,
                1 => a.wrapping_add(1),
                2 => a.wrapping_sub(1),
                3 => a & !0xffff_ffff | u64::from(low),
                4 => a & 0xffff_ffff | u64::from(high) << 32,
                _ => u64::from(high) << 32 | u64::from(low),
            };
            (a, b)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn it_is_a_plain_comparison((key, pivot) in pair()) {
            prop_assert_eq!(greater(key, pivot), key > pivot);
            prop_assert_eq!(greater(pivot, key), pivot > key);
        }
    }

    /// Every pair of 256 words around the places where a half wraps.
    #[test]
    fn it_is_a_plain_comparison_at_every_edge() {
        let halves: std::vec::Vec<u64> =
            [0, 1, 2, 0x7fff_fffe, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, 0xffff_ffff].into();
        let words = || halves.iter().flat_map(|high| halves.iter().map(move |low| high << 32 | low));
        let mut entries = [0_u32; 5];
        for (key, pivot) in words().flat_map(|key| words().map(move |pivot| (key, pivot))) {
            assert_eq!(greater(key, pivot), key > pivot, "{key:#x} {pivot:#x}");
            entries[usize::from(Compared::of(key, pivot).entry())] += 1;
        }
        assert!(entries[1..].iter().all(|&count| count > 100), "every entry was used: {entries:?}");
    }
}
