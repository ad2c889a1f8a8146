//! Protection: the access of a domain to an address, as power-of-two entries (MIND 4.2).
//!
//! [`Protection`] maps (domain, vma) to a permission class. A TCAM entry matches a power of two of bytes,
//! aligned to its size. So a range is split into such entries, and equal *buddies* (the two halves of a
//! bigger entry) are merged. The table is always *canonical*: per domain, the fewest entries with the same
//! meaning (PROTOCOL 6.22). Protection is independent of nodes.
//!
//! Entries of an update can be counted before it is made. Let a *run* be a longest stretch of one domain's
//! addresses with one class. A canonical table holds for each run its largest aligned blocks, which depend on
//! the run alone. An update makes one run (or, with `None`, a gap) and cuts at most two entries at its ends.
//! The blocks of a cut entry's rest are new. All other entries of a shortened run stay, since two aligned
//! blocks are nested or disjoint.

use crate::{TableError, Usage};
use alloc::collections::BTreeMap;
use core::ops::Range;
use farmem_wire::{Domain, Perm, Status, VirtAddr};

/// The protection table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Protection {
    entries: BTreeMap<Key, Grant>,
    budget: usize,
}

/// The reason why an access is denied.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Denial {
    /// No entry of the domain holds the first byte.
    NotMapped,
    /// An entry of the range allows less.
    NoPermission,
    /// The access starts inside the granted range and exceeds it, or exceeds the address space.
    OutOfBounds,
}

impl From<Denial> for Status {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::NotMapped => Self::NotMapped,
            Denial::NoPermission => Self::NoPermission,
            Denial::OutOfBounds => Self::OutOfBounds,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    domain: Domain,
    base: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Grant {
    size_log2: u8,
    perm: Perm,
}

/// An entry with its bounds. The last byte of the address space is never granted, so `end` does not overflow.
#[derive(Clone, Copy, Debug)]
struct Entry {
    base: u64,
    end: u64,
    perm: Perm,
}

impl Protection {
    /// Creates an empty table for at most `budget` entries.
    #[must_use]
    pub const fn new(budget: usize) -> Self {
        Self { entries: BTreeMap::new(), budget }
    }

    /// Checks whether `domain` has the access `perm` to all `len` bytes from `addr`. An access of no bytes is
    /// checked as one of one byte.
    ///
    /// # Errors
    /// The [`Denial`] at the lowest address that has one.
    pub fn check(&self, domain: Domain, addr: VirtAddr, len: u32, perm: Perm) -> Result<(), Denial> {
        let mut entry = self.holding(domain, addr.0).ok_or(Denial::NotMapped)?;
        let end = addr.0.checked_add(u64::from(len));
        loop {
            if !entry.perm.allows(perm) {
                return Err(Denial::NoPermission);
            }
            if end.is_some_and(|end| end <= entry.end) {
                return Ok(());
            }
            entry = self.starting_at(domain, entry.end).ok_or(Denial::OutOfBounds)?;
        }
    }

    /// Returns how many of `len` bytes from `base` the domain may access in any way.
    #[must_use]
    pub fn granted(&self, domain: Domain, base: VirtAddr, len: u64) -> u64 {
        let end = base.0.saturating_add(len);
        let before = self.holding(domain, base.0).map_or(base.0, |entry| entry.base);
        let keys = Key { domain, base: before }..Key { domain, base: end.max(before) };
        let entries = self.entries.range(keys).map(|(key, grant)| Entry::new(key.base, *grant));
        entries.map(|entry| entry.end.min(end) - entry.base.max(base.0)).sum()
    }

    /// Sets the permission of `domain` on `len` bytes from `base`; replaces earlier permissions, and `None`
    /// revokes them.
    ///
    /// # Errors
    /// [`TableError::Malformed`] for domain 0, an empty range, or one that holds the last byte of the address
    /// space; [`TableError::Full`] if the table would exceed its budget. After an error the table is
    /// unchanged.
    pub fn set(&mut self, domain: Domain, base: VirtAddr, len: u64, perm: Perm) -> Result<(), TableError> {
        let end = base.0.checked_add(len).ok_or(TableError::Malformed)?;
        if len == 0 || domain == Domain(0) {
            return Err(TableError::Malformed);
        }
        let plan = self.plan(domain, base.0..end, perm);
        let touched = Key { domain, base: plan.touched.start }..Key { domain, base: plan.touched.end };
        let removed = self.entries.range(touched.clone()).count();
        let added: usize = plan.runs.iter().map(|(run, _)| blocks(run.clone()).count()).sum();
        if self.entries.len() - removed + added > self.budget {
            return Err(TableError::Full);
        }
        self.entries.extract_if(touched, |_, _| true).for_each(drop);
        for (run, perm) in plan.runs {
            for (base, size_log2) in blocks(run) {
                self.entries.insert(Key { domain, base }, Grant { size_log2, perm });
            }
        }
        Ok(())
    }

    /// Returns every entry as (domain, first address, log2 of its bytes, class): by domain, then by address.
    pub fn iter(&self) -> impl Iterator<Item = (Domain, VirtAddr, u8, Perm)> {
        self.entries.iter().map(|(key, grant)| (key.domain, VirtAddr(key.base), grant.size_log2, grant.perm))
    }

    /// Returns the occupancy of the table.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage { used: self.entries.len(), budget: self.budget }
    }

    /// Asserts every invariant: aligned, disjoint, canonical, within budget.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn assert_invariants(&self) {
        assert!(self.entries.len() <= self.budget, "protection within its budget");
        let mut previous: Option<(Domain, u64)> = None;
        for (key, grant) in &self.entries {
            let Key { domain, base } = *key;
            assert!(domain != Domain(0), "domain 0 is granted nothing");
            assert!(grant.perm != Perm::None, "no entry says nothing");
            assert!(grant.size_log2 <= 63, "an entry covers at most half the space");
            let size = 1 << grant.size_log2;
            assert_eq!(base & (size - 1), 0, "an entry is aligned to its size");
            let end = base.checked_add(size).expect("the last byte of the space is never granted");
            assert!(previous.is_none_or(|(d, e)| d != domain || e <= base), "entries do not overlap");
            let buddy = self.entries.get(&Key { domain, base: base ^ size });
            assert!(buddy != Some(grant), "equal buddies are coalesced");
            previous = Some((domain, end));
        }
    }

    /// Computes the changes of the table that give `domain` the permission `perm` on `range`.
    fn plan(&self, domain: Domain, range: Range<u64>, perm: Perm) -> Plan {
        let mut middle = range.clone();
        let (mut left, mut right) =
            ((range.start..range.start, Perm::None), (range.end..range.end, Perm::None));
        match self.holding(domain, range.start) {
            Some(cut) if cut.perm == perm => middle.start = cut.base,
            Some(cut) => left = (cut.base..range.start, cut.perm),
            None => {}
        }
        match self.holding(domain, range.end - 1) {
            Some(cut) if cut.perm == perm => middle.end = cut.end,
            Some(cut) => right = (range.end..cut.end, cut.perm),
            None => {}
        }
        let touched = if perm == Perm::None {
            let touched = left.0.start..right.0.end;
            middle.end = middle.start;
            touched
        } else {
            self.grow(domain, &mut middle, perm);
            left.0.start.min(middle.start)..right.0.end.max(middle.end)
        };
        Plan { touched, runs: [left, (middle, perm), right] }
    }

    /// Extends `run` over adjacent entries with the same permission. A run has at most 126 blocks, so this
    /// takes few steps.
    fn grow(&self, domain: Domain, run: &mut Range<u64>, perm: Perm) {
        // The entry below ends at the run: a longer one would have been cut by it, or be part of it.
        while let Some(below) = run.start.checked_sub(1).and_then(|last| self.holding(domain, last))
            && below.perm == perm
        {
            run.start = below.base;
        }
        while let Some(above) = self.starting_at(domain, run.end)
            && above.perm == perm
        {
            run.end = above.end;
        }
    }

    /// Returns the entry that holds `addr`.
    fn holding(&self, domain: Domain, addr: u64) -> Option<Entry> {
        let first = Key { domain, base: 0 };
        let (key, grant) = self.entries.range(first..=Key { domain, base: addr }).next_back()?;
        let entry = Entry::new(key.base, *grant);
        (addr < entry.end).then_some(entry)
    }

    /// Returns the entry whose first byte is `base`.
    fn starting_at(&self, domain: Domain, base: u64) -> Option<Entry> {
        self.entries.get(&Key { domain, base }).map(|grant| Entry::new(base, *grant))
    }
}

impl Entry {
    const fn new(base: u64, grant: Grant) -> Self {
        Self { base, end: base + (1 << grant.size_log2), perm: grant.perm }
    }
}

/// A planned update: all entries in `touched` are removed, the blocks of the runs are added. An empty run has
/// no blocks.
struct Plan {
    touched: Range<u64>,
    runs: [(Range<u64>, Perm); 3],
}

/// Returns the fewest aligned powers of two that cover `run`, as (base, log2 of the size), in order: at most
/// `2 * log2(len)` for `len` of 2 or more. (MIND 4.2 says `log2(len)`, which holds for a range aligned at one
/// end.)
pub fn blocks(run: Range<u64>) -> impl Iterator<Item = (u64, u8)> {
    let mut base = run.start;
    core::iter::from_fn(move || {
        let fits = run.end.checked_sub(base)?.checked_ilog2()?;
        // Address 0 is a multiple of everything: it has 64 trailing zeros.
        let size_log2 = base.trailing_zeros().min(fits);
        let block = base;
        base += 1 << size_log2;
        #[expect(clippy::cast_possible_truncation, reason = "a logarithm of a u64 is below 64")]
        let size_log2 = size_log2 as u8;
        Some((block, size_log2))
    })
}

#[cfg(test)]
mod tests;
