//! Addresses outside the node's range mapping: they moved here from another node, or from here to one (MIND
//! 4.1).
//!
//! Key type: [`Outliers`], beside the ranges of [`crate::regions::Regions`]. An outlier has an offset in the
//! store and a state that says whether the addresses may be used; grants are separate. An outlier takes
//! precedence over the range. An address of the range whose bytes an outlier uses maps nowhere.

use alloc::collections::BTreeMap;
use farmem_wire::Status;

/// The state of an outlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MoveState {
    /// The addresses are here, at the outlier's offset.
    Present,
    /// The addresses are being pushed here, and may not be used yet.
    Arriving,
    /// The addresses are being pushed from here, and may not be used any more.
    Leaving,
    /// The addresses are at another node. Their old bytes stay in the store until other bytes replace them.
    Away,
}

/// A run of addresses with its offset in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outlier {
    pub(crate) base: u64,
    pub(crate) len: u64,
    /// None: the addresses are away, and their bytes were replaced.
    pub(crate) offset: Option<u64>,
    pub(crate) state: MoveState,
}

impl Outlier {
    /// Returns true if the addresses may not be used now, but later, here or elsewhere.
    pub(crate) const fn is_moving(&self) -> bool {
        matches!(self.state, MoveState::Arriving | MoveState::Leaving)
    }
}

/// The outliers of a node.
#[derive(Debug)]
pub(crate) struct Outliers {
    most: usize,
    /// Outliers by first address; no two share an address.
    rows: BTreeMap<u64, Outlier>,
    /// Length and first address by offset in the store, of all outliers that are not away; no two share a
    /// byte.
    places: BTreeMap<u64, (u64, u64)>,
}

impl Outliers {
    /// Creates an empty table of at most `most` outliers.
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, rows: BTreeMap::new(), places: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the outlier that holds the address.
    pub(crate) fn find(&self, addr: u64) -> Option<&Outlier> {
        let (_, row) = self.rows.range(..=addr).next_back()?;
        (addr - row.base < row.len).then_some(row)
    }

    /// Returns the outlier of exactly these addresses; none if no outlier overlaps them.
    ///
    /// # Errors
    /// `Malformed` if an outlier overlaps only some of them, or has more.
    pub(crate) fn exactly(&self, base: u64, len: u64) -> Result<Option<Outlier>, Status> {
        match self.rows.get(&base).filter(|row| row.len == len) {
            Some(row) => Ok(Some(*row)),
            None if self.meets(base, len) => Err(Status::Malformed),
            None => Ok(None),
        }
    }

    fn meets(&self, base: u64, len: u64) -> bool {
        let before = self.rows.range(..base + len).next_back();
        before.is_some_and(|(_, row)| row.base + row.len > base)
    }

    /// Adds an outlier, or replaces the one with exactly these addresses.
    ///
    /// # Errors
    /// `Malformed` if another outlier has some of the addresses or, unless it is away, some of the bytes;
    /// `TableFull`.
    pub(crate) fn put(&mut self, new: Outlier) -> Result<(), Status> {
        let known = self.exactly(new.base, new.len)?;
        if known.is_none() && self.rows.len() >= self.most {
            return Err(Status::TableFull);
        }
        let offset = new.offset.filter(|_| new.state != MoveState::Away);
        if let Some(offset) = offset {
            let before = self.places.range(..offset + new.len).next_back();
            let other = before.filter(|&(&at, &(len, base))| at + len > offset && base != new.base);
            if other.is_some() {
                return Err(Status::Malformed);
            }
        }
        self.drop_place(known);
        if let Some(offset) = offset {
            self.places.insert(offset, (new.len, new.base));
            // The old bytes of an outlier that is away are replaced.
            let lost = |row: &&mut Outlier| {
                row.state == MoveState::Away
                    && row.offset.is_some_and(|at| at < offset + new.len && offset < at + row.len)
            };
            self.rows.values_mut().filter(lost).for_each(|row| row.offset = None);
        }
        self.rows.insert(new.base, new);
        Ok(())
    }

    /// Removes and returns the outlier of exactly these addresses.
    ///
    /// # Errors
    /// `Malformed` if an outlier overlaps only some of them, or has more.
    pub(crate) fn take(&mut self, base: u64, len: u64) -> Result<Option<Outlier>, Status> {
        let known = self.exactly(base, len)?;
        self.drop_place(known);
        if known.is_some() {
            self.rows.remove(&base);
        }
        Ok(known)
    }

    fn drop_place(&mut self, known: Option<Outlier>) {
        if let Some(Outlier { offset: Some(offset), state, .. }) = known
            && state != MoveState::Away
        {
            self.places.remove(&offset);
        }
    }

    /// Returns the run around `addr` in the range `base..base + len` (bytes from `offset` on) without
    /// outliers, in addresses and in bytes: first address and end. None if an outlier covers the address
    /// itself.
    pub(crate) fn clear_around(&self, base: u64, len: u64, offset: u64, addr: u64) -> Option<(u64, u64)> {
        let at = offset + (addr - base);
        let end_of = |(_, row): (&u64, &Outlier)| row.base + row.len;
        let last = self.rows.range(..=addr).next_back().map_or(base, end_of);
        let next = self.rows.range(addr..).next().map_or(base + len, |(&next, _)| next);
        let last_place = self.places.range(..=at).next_back().map_or(offset, |(&from, &(len, _))| from + len);
        let next_place = self.places.range(at..).next().map_or(offset + len, |(&from, _)| from);
        if last > addr || last_place > at || next <= addr || next_place <= at {
            return None;
        }
        let first = last.max(base).max(base + last_place.max(offset) - offset);
        let end = next.min(base + len).min(base + next_place.min(offset + len) - offset);
        Some((first, end))
    }

    /// Asserts the bound, and that outliers share no address and no byte.
    pub(crate) fn check(&self, store_len: u64) {
        assert!(self.rows.len() <= self.most, "more outliers than the budget");
        let mut end = 0;
        for row in self.rows.values() {
            assert!(row.base >= end && row.len > 0, "{row:?} is in order");
            end = row.base + row.len;
            assert!(row.offset.is_none_or(|at| at + row.len <= store_len), "{row:?} is in the store");
            let place = row.offset.filter(|_| row.state != MoveState::Away);
            assert!(place.is_some() || row.state == MoveState::Away, "{row:?} has a place");
            let listed = place.is_none_or(|at| self.places.get(&at) == Some(&(row.len, row.base)));
            assert!(listed, "{row:?} is found by its place");
        }
        let mut end = 0;
        for (&at, &(len, base)) in &self.places {
            assert!(at >= end, "places are in order");
            end = at + len;
            assert!(
                self.rows.get(&base).is_some_and(|row| row.offset == Some(at)),
                "a place has its outlier"
            );
        }
    }
}
