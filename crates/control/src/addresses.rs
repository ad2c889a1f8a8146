//! Sizes and free ranges of far-memory addresses.

use farmem_wire::message::PAGE_LEN;

/// The smallest vma, and the granularity of a node's memory.
pub const PAGE: u64 = PAGE_LEN as u64;

/// The end of a rack's address space: the limit of a user process on x86-64 and arm64.
pub const VA_END: u64 = 1 << 47;

/// Maximum number of bytes that move at once: while they are pushed no host can use them, and retrying hosts
/// must not give up before the end.
pub const MIGRATE_LEN_MAX: u64 = 64 << 20;

/// Returns the first fit: the lowest multiple of `size` from `start` on where `size` bytes are free and end
/// by `end`.
///
/// `taken` are the ranges in use, ascending by first byte, as (first byte, length); they may overlap. `size`
/// is a power of two. Free neighbours need no coalescing, because everything between the taken ranges is
/// free.
pub(crate) fn first_fit(
    taken: impl Iterator<Item = (u64, u64)>,
    start: u64,
    end: u64,
    size: u64,
) -> Option<u64> {
    let mut candidate = start.checked_next_multiple_of(size)?;
    for (base, len) in taken {
        if candidate.checked_add(size)? <= base {
            break;
        }
        candidate = candidate.max(base.checked_add(len)?.checked_next_multiple_of(size)?);
    }
    (candidate.checked_add(size)? <= end).then_some(candidate)
}

/// Returns the size of the vma for `size` bytes: a power of two, at least a page. `None` if there is no such
/// power of two.
pub(crate) fn vma_size(size: u64) -> Option<u64> {
    size.max(PAGE).checked_next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn the_first_gap_that_is_big_enough_once_aligned_is_taken() {
        let taken = [(0, 1), (3, 1), (8, 4)];
        let fit = |size, end| first_fit(taken.iter().copied(), 0, end, size);
        assert_eq!(fit(1, 64), Some(1));
        assert_eq!(fit(2, 64), Some(4), "2..4 is aligned, but 3 is taken");
        assert_eq!(fit(4, 64), Some(4));
        assert_eq!(fit(8, 64), Some(16));
        assert_eq!(fit(8, 23), None);
    }

    #[test]
    fn the_end_of_the_address_space_is_not_wrapped_around() {
        assert_eq!(first_fit([(0, u64::MAX)].into_iter(), 0, u64::MAX, 2), None);
        assert_eq!(first_fit(core::iter::empty(), u64::MAX, u64::MAX, 4), None);
        assert_eq!(vma_size(u64::MAX), None);
        assert_eq!(vma_size(1), Some(PAGE));
        assert_eq!(vma_size(4097), Some(8192));
    }

    proptest! {
        /// First fit finds the same place as a search of a plain bitmap, through any sequence of allocations
        /// and frees.
        #[test]
        fn first_fit_is_what_a_bitmap_finds(end in 1u64..200, steps in prop::collection::vec((0u32..6, any::<prop::sample::Index>(), any::<bool>()), 1..80)) {
            let mut bitmap = alloc::vec![false; usize::try_from(end).unwrap()];
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (log2, which, free) in steps {
                if free && !taken.is_empty() {
                    let (base, len) = taken.remove(which.index(taken.len()));
                    (base..base + len).for_each(|i| bitmap[usize::try_from(i).unwrap()] = false);
                    continue;
                }
                let size = 1u64 << log2;
                let block = |base: u64| usize::try_from(base).unwrap()..usize::try_from(base + size).unwrap();
                let model = (0..end).step_by(1 << log2).find(|&base| base + size <= end && !bitmap[block(base)].contains(&true));
                prop_assert_eq!(first_fit(taken.iter().copied(), 0, end, size), model);
                if let Some(base) = model {
                    bitmap[block(base)].fill(true);
                    taken.push((base, size));
                    taken.sort_unstable();
                }
            }
        }
    }
}
