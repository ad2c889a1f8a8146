//! The match-action entries of a switch for allocations: its real tables, filled as by the control plane.

use super::MATCH_ACTION_RULES_MAX;
use farmem_switch::{Protection, Translation};
use farmem_wire::{Domain, NodeId, Perm, VirtAddr};

/// The switch's address tables.
#[derive(Debug)]
pub struct Tables {
    translation: Translation,
    protection: Protection,
}

impl Tables {
    /// Returns tables with `nodes`: the number, first address, and length of each.
    ///
    /// # Panics
    ///
    /// If a node's first address is not a multiple of its length, rounded up to a power of two.
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

    /// Grants a domain read and write access to a vma. Returns false if there is no room for the entries.
    pub fn allocate(&mut self, domain: u32, base: u64, size: u64) -> bool {
        self.protection.set(Domain(domain), VirtAddr(base), size, Perm::ReadWrite).is_ok()
    }

    /// Returns the number of entries in use.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.translation.usage().used + self.protection.usage().used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighbouring vmas of one domain share an entry if they are buddies; those of another domain do not.
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
