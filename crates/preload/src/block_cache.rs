//! A cache of freed large blocks, as in libc. Without it, a program that allocates and frees blocks of one
//! length would map, fault and unmap each time.
//!
//! Key type: [`BlockCache`].
//!
//! As in libc (`M_MMAP_THRESHOLD`), the first free of a length unmaps the block and raises the threshold to
//! that length. Later blocks up to the threshold are cached, together at most twice the threshold
//! (`M_TRIM_THRESHOLD`). The oldest block is evicted first.

/// Maximum length of a cached block, also libc's largest threshold (`DEFAULT_MMAP_THRESHOLD_MAX`).
const LEN_MAX: usize = 32 << 20;
/// Maximum number of cached blocks.
const COUNT_MAX: usize = 64;
/// A cached block is reused when its excess length is at most the requested length divided by this.
const SPARE: usize = 4;

/// An unused mapping.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Block {
    /// Address of the first byte.
    pub(crate) start: usize,
    /// Length in bytes, whole pages.
    pub(crate) len: usize,
}

/// The cached blocks, the oldest first.
#[derive(Debug)]
pub(crate) struct BlockCache {
    blocks: [Block; COUNT_MAX],
    count: usize,
    bytes: usize,
    threshold: usize,
}

impl BlockCache {
    pub(crate) const fn new() -> Self {
        Self { blocks: [Block { start: 0, len: 0 }; COUNT_MAX], count: 0, bytes: 0, threshold: 0 }
    }

    /// Adds a freed block. Blocks to unmap go to `give_back`: that block itself, or older ones.
    pub(crate) fn put(&mut self, block: Block, mut give_back: impl FnMut(Block)) {
        if block.len > self.threshold {
            if block.len <= LEN_MAX {
                self.threshold = block.len;
            }
            return give_back(block);
        }
        while self.count == COUNT_MAX || self.bytes + block.len > 2 * self.threshold {
            give_back(self.remove(0));
        }
        self.blocks[self.count] = block;
        self.count += 1;
        self.bytes += block.len;
    }

    /// Removes and returns the smallest cached block that has `len` bytes and not many more.
    pub(crate) fn take(&mut self, len: usize) -> Option<Block> {
        let fits = |block: &Block| block.len >= len && block.len - len <= len / SPARE;
        let all = self.blocks[..self.count].iter().enumerate();
        let (place, _) = all.filter(|(_, block)| fits(block)).min_by_key(|(_, block)| block.len)?;
        Some(self.remove(place))
    }

    fn remove(&mut self, place: usize) -> Block {
        let block = self.blocks[place];
        self.blocks.copy_within(place + 1..self.count, place);
        self.count -= 1;
        self.bytes -= block.len;
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    fn put(cache: &mut BlockCache, start: usize, len: usize) -> Vec<usize> {
        let mut gone = Vec::new();
        cache.put(Block { start, len }, |block| gone.push(block.start));
        gone
    }

    #[test]
    fn a_length_is_cached_from_its_second_free_on() {
        let mut cache = BlockCache::new();
        assert_eq!(put(&mut cache, 1, MIB), [1]);
        assert_eq!(put(&mut cache, 2, MIB), []);
        assert_eq!(cache.take(MIB + 1), None);
        assert_eq!(cache.take(MIB), Some(Block { start: 2, len: MIB }));
        assert_eq!(cache.take(MIB), None);
        // Shorter blocks are cached at once, and do not serve requests for much shorter ones.
        assert_eq!(put(&mut cache, 3, MIB / 2), []);
        assert_eq!(cache.take(MIB / 4), None);
        assert_eq!(cache.take(MIB / 2 - MIB / 16), Some(Block { start: 3, len: MIB / 2 }));
    }

    #[test]
    fn the_cache_has_a_bound_and_evicts_the_oldest() {
        let mut cache = BlockCache::new();
        assert_eq!(put(&mut cache, 1, LEN_MAX + 1), [1]);
        assert_eq!(put(&mut cache, 2, LEN_MAX + 1), [2], "too large for the cache");
        assert_eq!(put(&mut cache, 3, MIB), [3]);
        assert_eq!(put(&mut cache, 4, MIB), []);
        assert_eq!(put(&mut cache, 5, MIB), []);
        assert_eq!(put(&mut cache, 6, MIB), [4]);
        for start in 0..COUNT_MAX {
            put(&mut cache, 100 + start, MIB / 256);
        }
        assert_eq!((cache.count, cache.blocks[0].start), (COUNT_MAX, 100));
    }

    proptest! {
        /// Each block is in one place at any time: cached, in use, or given back. The bounds hold.
        #[test]
        fn no_block_is_in_two_places(steps in prop::collection::vec((any::<bool>(), 1_usize..40), 1..400)) {
            let mut cache = BlockCache::new();
            let (mut in_use, mut next): (Vec<Block>, usize) = (Vec::new(), 0);
            for (allocates, pages) in steps {
                let len = pages * 256 * 1024;
                if allocates || in_use.is_empty() {
                    let block = cache.take(len).unwrap_or_else(|| {
                        next += 1;
                        Block { start: next, len }
                    });
                    prop_assert!(block.len >= len && block.len <= len + len / SPARE);
                    prop_assert!(!in_use.iter().any(|other| other.start == block.start));
                    in_use.push(block);
                } else {
                    let block = in_use.swap_remove(pages % in_use.len());
                    let mut gone = Vec::new();
                    cache.put(block, |block| gone.push(block));
                    prop_assert!(gone.iter().all(|gone| !in_use.contains(gone)));
                }
                let here = &cache.blocks[..cache.count];
                prop_assert!(here.iter().all(|block| !in_use.contains(block)));
                prop_assert_eq!(here.iter().map(|block| block.len).sum::<usize>(), cache.bytes);
                prop_assert!(cache.bytes <= 2 * cache.threshold && cache.threshold <= LEN_MAX);
            }
        }
    }
}
