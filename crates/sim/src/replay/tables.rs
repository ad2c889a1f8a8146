//! The match-action entries of a switch for what is allocated: its real tables, filled as the control plane fills them.

use super::MATCH_ACTION_RULES_MAX;
use farmem_switch::{Protection, Translation};
use farmem_wire::{Domain, NodeId, Perm, VirtAddr};

/// The switch's tables of addresses.
#[derive(Debug)]
pub struct Tables {
    translation: Translation,
    protection: Protection,
}

impl Tables {
    /// Tables that know `nodes`: each its number, first address, and bytes.
    ///
    /// # Panics
    /// When a node does not begin at a multiple of its bytes, rounded up to a power of two.
    #[must_use]
    pub fn new(nodes: &[(u16, u64, u64)]) -> Self {
        let mut translation = Translation::new(MATCH_ACTION_RULES_MAX);
        for &(node, base, capacity) in nodes {
            let size_log2 = u8::try_from(capacity.next_power_of_two().ilog2()).expect("below 64");
            let known = translation.insert(VirtAddr(base), size_log2, NodeId(node));
            known.expect("a node's range is aligned to its size");
        }
        Self { translation, protection: Protection::new(MATCH_ACTION_RULES_MAX) }
    }

    /// A domain may read and write a vma from here on; false when there is no room for what that takes.
    pub fn allocate(&mut self, domain: u32, base: u64, size: u64) -> bool {
        self.protection.set(Domain(domain), VirtAddr(base), size, Perm::ReadWrite).is_ok()
    }

    /// Entries in use.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.translation.usage().used + self.protection.usage().used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighbours of one domain share an entry when their halves meet; those of another do not.
    #[test]
    fn neighbours_share_entries() {
        let mut tables = Tables::new(&[(1, 1 << 30, 1 << 30), (2, 2 << 30, 1 << 30)]);
        let counts = [(1, 0), (1, 4096), (1, 8192), (2, 12288)].map(|(domain, offset)| {
            assert!(tables.allocate(domain, (1 << 30) + offset, 4096));
            tables.entries()
        });
        assert_eq!(counts, [3, 3, 4, 5]);
    }
}
