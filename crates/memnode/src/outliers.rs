//! Addresses that are not where the node's range has them: they moved here from another node, or from here to one (MIND 4.1).
//!
//! Key type: [`Outliers`], beside the ranges of [`crate::regions::Regions`]. It knows where an outlier's bytes lie and whether they may be
//! used; it knows no grants. What it says of an address counts before what the range says; an address of the range whose bytes an outlier
//! has is nowhere.

use alloc::collections::BTreeMap;
use farmem_wire::Status;

/// What becomes of an outlier's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MoveState {
    /// They are here, at the outlier's place.
    Here,
    /// They are pushed here, and not here yet.
    Arriving,
    /// They are pushed from here, and may not be used any more.
    Leaving,
    /// They are at another node. The bytes of their place are still as they left, unless something else was put there.
    Away,
}

/// Addresses and where their bytes lie in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outlier {
    pub(crate) base: u64,
    pub(crate) len: u64,
    /// None: away, and the bytes are gone.
    pub(crate) offset: Option<u64>,
    pub(crate) state: MoveState,
}

impl Outlier {
    /// True when accesses may use the addresses later on, here or elsewhere, but not now.
    pub(crate) const fn is_moving(&self) -> bool {
        matches!(self.state, MoveState::Arriving | MoveState::Leaving)
    }
}

/// The outliers of a node.
#[derive(Debug)]
pub(crate) struct Outliers {
    most: usize,
    /// By first address; no two share one.
    rows: BTreeMap<u64, Outlier>,
    /// Length and first address by first byte in the store, of all that are not away; no two share a byte.
    places: BTreeMap<u64, (u64, u64)>,
}

impl Outliers {
    /// None, of at most `most`.
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, rows: BTreeMap::new(), places: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The outlier that holds the address.
    pub(crate) fn find(&self, addr: u64) -> Option<&Outlier> {
        let (_, row) = self.rows.range(..=addr).next_back()?;
        (addr - row.base < row.len).then_some(row)
    }

    /// The outlier of exactly these addresses; none when nothing is said of any of them.
    ///
    /// # Errors
    /// `Malformed` when something is said of some of them, or of more.
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

    /// Puts an outlier there, in the place of what was said of exactly these addresses.
    ///
    /// # Errors
    /// `Malformed` when another one has some of its addresses or, unless it is away, of its bytes; `TableFull`.
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
            // What left these bytes before cannot be looked up there any more.
            let lost = |row: &&mut Outlier| {
                row.state == MoveState::Away
                    && row.offset.is_some_and(|at| at < offset + new.len && offset < at + row.len)
            };
            self.rows.values_mut().filter(lost).for_each(|row| row.offset = None);
        }
        self.rows.insert(new.base, new);
        Ok(())
    }

    /// Nothing is said of these addresses any more; answers what was.
    ///
    /// # Errors
    /// `Malformed` when something is said of some of them, or of more.
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

    /// As far around an address of the range `base..base + len`, whose bytes begin at `offset`, as nothing is said of addresses and nothing
    /// else has their bytes: first address and end. None when that is not so at the address itself.
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

    /// Asserts that no address and no byte is said to be twice, and the bound.
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
