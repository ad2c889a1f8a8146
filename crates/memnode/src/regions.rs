//! The range table and the grants: which bytes of far memory are here, and the access of each domain.
//!
//! [`Regions`] is the node's local translation and protection metadata of PULSE 4.2 and 5. It has two
//! independent tables: *ranges* map addresses to offsets in the store, *grants* give domains access. An
//! access needs both. [`View`] combines them with the store to the [`Memory`] that responders and traversals
//! use.

use crate::outliers::{MoveState, Outlier, Outliers};
use crate::page_states::PageStates;
use crate::store::{Store, WORD_LEN};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::Cell;
use farmem_transport::{Access, AccessError, Memory};
use farmem_wire::message::{PAGE_LEN, Page};
use farmem_wire::{Domain, Perm, Status, VirtAddr};

/// Bytes that one domain may read, or read and write, and that are contiguous in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) offset: u64,
}

/// A run of addresses that is contiguous in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    base: u64,
    len: u64,
    offset: u64,
}

/// The bytes `base..end` of one domain, in one vma, with one permission class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Grant {
    base: u64,
    end: u64,
    perm: Perm,
    /// Log2 of the size of the vma; equal for neighbours in the same vma.
    vma_log2: u8,
}

impl Grant {
    /// Returns true if both grants are in one vma, which has a power-of-two size and alignment.
    fn is_of_vma(&self, other: &Self) -> bool {
        let above = (self.base ^ other.base).checked_shr(self.vma_log2.into()).unwrap_or(0);
        self.vma_log2 == other.vma_log2 && above == 0
    }

    /// Returns true if an access may continue from this grant into the next one (PROTOCOL 7.45).
    fn goes_on_in(&self, next: &Self) -> bool {
        self.end == next.base && self.is_of_vma(next)
    }
}

/// The range table and the grants of a node.
#[derive(Debug)]
pub(crate) struct Regions {
    store_len: u64,
    ranges_max: usize,
    grants_max: usize,
    /// Ranges by base; no two share an address or a byte of the store.
    ranges: Vec<Range>,
    /// Grants by domain, then by base. Neighbours that touch differ in class or vma; `Perm::None` and empty
    /// lists are not stored.
    grants: BTreeMap<Domain, Vec<Grant>>,
    /// Number of grants of all domains.
    grant_count: usize,
    /// Addresses that are not where their range maps them.
    outliers: Outliers,
    /// States of pages that hosts cache.
    page_states: PageStates,
    /// Changes with each change of the tables.
    version: u64,
}

impl Regions {
    /// Creates empty tables over a store of `store_len` bytes.
    pub(crate) fn new(store_len: u64, ranges_max: usize, grants_max: usize, outliers_max: usize) -> Self {
        Self {
            store_len,
            ranges_max,
            grants_max,
            ranges: Vec::new(),
            grants: BTreeMap::new(),
            grant_count: 0,
            outliers: Outliers::new(outliers_max),
            page_states: PageStates::default(),
            version: 0,
        }
    }

    /// Returns the version of the tables. While it is unchanged, earlier check results stay valid.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// Returns the states of pages that hosts cache.
    pub(crate) const fn page_states(&self) -> &PageStates {
        &self.page_states
    }

    /// Returns the states of pages that hosts cache, mutably.
    pub(crate) fn page_states_mut(&mut self) -> &mut PageStates {
        self.version += 1;
        &mut self.page_states
    }

    /// Maps `base..base + len` to the store's bytes from `offset` on (PROTOCOL 7.8). Adding the same range
    /// again is no error.
    pub(crate) fn add_range(&mut self, base: VirtAddr, len: u64, offset: u64) -> Result<(), Status> {
        self.version += 1;
        let new = Range { base: base.0, len, offset };
        if self.ranges.contains(&new) {
            return Ok(());
        }
        // A word that is aligned as an address must be aligned in the store too: the mapped store's atomics
        // require this.
        let aligned = base.0.is_multiple_of(WORD_LEN) && offset.is_multiple_of(WORD_LEN);
        if base.is_null() || !aligned || len == 0 || base.checked_add(len).is_none() {
            return Err(Status::Malformed);
        }
        if offset.checked_add(len).is_none_or(|end| end > self.store_len) {
            return Err(Status::OutOfBounds);
        }
        // A second address for a byte would bypass the grants of the first.
        let meets = |r: &Range| overlap(r.base, r.len, base.0, len) || overlap(r.offset, r.len, offset, len);
        if self.ranges.iter().any(meets) {
            return Err(Status::Malformed);
        }
        if self.ranges.len() >= self.ranges_max {
            return Err(Status::TableFull);
        }
        let at = self.ranges.partition_point(|r| r.base < base.0);
        self.ranges.insert(at, new);
        Ok(())
    }

    /// Removes a range with exactly these bounds (PROTOCOL 7.9). Removing an unknown range is no error.
    pub(crate) fn remove_range(&mut self, base: VirtAddr, len: u64) -> Result<(), Status> {
        self.version += 1;
        if let Some(at) = self.ranges.iter().position(|r| r.base == base.0 && r.len == len) {
            self.ranges.remove(at);
            return Ok(());
        }
        let partly_here = self.ranges.iter().any(|r| overlap(r.base, r.len, base.0, len));
        if partly_here { Err(Status::Malformed) } else { Ok(()) }
    }

    /// Sets the permission of `domain` on `base..base + len`, a part of a vma of this size, to exactly `perm`
    /// (PROTOCOL 7.10).
    pub(crate) fn protect(
        &mut self,
        domain: Domain,
        base: VirtAddr,
        len: u64,
        perm: Perm,
        vma_log2: u8,
    ) -> Result<(), Status> {
        self.version += 1;
        let Some(end) = base.checked_add(len).filter(|_| len > 0 && domain != Domain(0)) else {
            return Err(Status::Malformed);
        };
        let mid = Grant { base: base.0, end: end.0, perm, vma_log2 };
        let old = self.grants.get(&domain).map_or(&[][..], Vec::as_slice);
        // The grants that overlap or touch the span. At most one remainder of them stays on each side.
        let (first, last) =
            (old.partition_point(|g| g.end < mid.base), old.partition_point(|g| g.base <= mid.end));
        let met = &old[first..last];
        let left = met.first().filter(|g| g.base < mid.base).map(|g| Grant { end: mid.base, ..*g });
        let right = met.last().filter(|g| g.end > mid.end).map(|g| Grant { base: mid.end, ..*g });
        let new = merged([left, Some(mid), right]);
        let count = self.grant_count - met.len() + new.len();
        if count > self.grants_max {
            return Err(Status::TableFull);
        }
        let list = self.grants.entry(domain).or_default();
        list.splice(first..last, new);
        if list.is_empty() {
            self.grants.remove(&domain);
        }
        self.grant_count = count;
        Ok(())
    }

    /// Sets the bytes to zero, wherever they are in the store (PROTOCOL 7.11). Does nothing unless all of
    /// them are here.
    pub(crate) fn clear<S: Store>(&self, base: VirtAddr, len: u64, store: &mut S) -> Result<(), Status> {
        let Some(end) = base.checked_add(len) else { return Err(Status::Malformed) };
        self.locate(base).ok_or(Status::NotMapped)?;
        for pass in [Pass::Check, Pass::Discard] {
            let mut at = base.0;
            while at < end.0 {
                let range = self.locate(VirtAddr(at)).ok_or(Status::OutOfBounds)?;
                let skip = at - range.base;
                let part = (range.len - skip).min(end.0 - at);
                if pass == Pass::Discard {
                    store.discard(range.offset + skip, part);
                }
                at += part;
            }
        }
        Ok(())
    }

    /// Returns true if the address is in a range of this node, is moving here, or is moving away.
    pub(crate) fn is_local(&self, addr: VirtAddr) -> bool {
        self.locate(addr).is_some() || self.is_moving(addr)
    }

    /// Returns true if the address is moving to or from another node.
    pub(crate) fn is_moving(&self, addr: VirtAddr) -> bool {
        self.moving(addr.0).is_some()
    }

    fn moving(&self, addr: u64) -> Option<Range> {
        let &Outlier { base, len, offset, .. } = self.outliers.find(addr).filter(|row| row.is_moving())?;
        Some(Range { base, len, offset: offset? })
    }

    /// Returns true if all of these bytes are in one range of this node, at the range's own offsets.
    pub(crate) fn is_whole(&self, base: VirtAddr, len: u64) -> bool {
        self.locate(base).is_some_and(|range| range.len - (base.0 - range.base) >= len)
    }

    /// Returns true if the whole page is in one range of this node.
    pub(crate) fn is_page_local(&self, page: Page) -> bool {
        self.is_whole(page.addr(), PAGE_LEN as u64)
    }

    /// Checks whether `access` is allowed; the error has the reason (PROTOCOL 7.14).
    pub(crate) fn check_access(&self, access: &Access) -> Result<(), AccessError> {
        let addr = access.addr.0;
        if access.len == 0 {
            // Such an access touches no byte; IBA 9.7.4 requires no check of address and key.
            return Ok(());
        }
        let here = self.locate(access.addr);
        let range = here.or_else(|| self.moving(addr)).ok_or(AccessError::NotMapped)?;
        let grants = self.grants.get(&access.domain).map_or(&[][..], Vec::as_slice);
        let first = grants.partition_point(|g| g.end <= addr);
        let mut rest = grants[first..].iter();
        let grant = rest.next().filter(|g| g.base <= addr).ok_or(AccessError::NotMapped)?;
        if !grant.perm.allows(access.perm) {
            return Err(AccessError::NoPermission);
        }
        let end = addr.checked_add(u64::from(access.len)).ok_or(AccessError::OutOfBounds)?;
        if end - range.base > range.len {
            // The bytes behind are moving: the access is checked again afterwards.
            if here.is_none() || self.moving(range.base + range.len).is_some() {
                return Err(AccessError::Moving);
            }
            // Also if the next address is here in another range: its bytes are elsewhere in the store.
            return Err(AccessError::OutOfBounds);
        }
        let mut covered = grant;
        while covered.end < end {
            // At the border of another vma the access leaves its own, whatever the grants.
            let next = rest.next().filter(|next| covered.goes_on_in(next)).ok_or(AccessError::OutOfBounds)?;
            if !next.perm.allows(access.perm) {
                return Err(AccessError::NoPermission);
            }
            covered = next;
        }
        if here.is_none() {
            return Err(AccessError::Moving);
        }
        self.page_states.check(Page::of(access.addr), Page::of(VirtAddr(end - 1)), access.perm)
    }

    /// Returns how many bytes of an access that was refused with `OutOfBounds` come before the end of its
    /// range, of its vma, and of the touching grants of any class. At least one.
    pub(crate) fn reach(&self, access: &Access) -> u32 {
        let addr = access.addr.0;
        let range = self.locate(access.addr).expect("its first byte is here");
        let grants = self.grants.get(&access.domain).map_or(&[][..], Vec::as_slice);
        let mut rest = grants[grants.partition_point(|g| g.end <= addr)..].iter();
        let mut covered = rest.next().expect("its first byte is granted");
        while let Some(next) = rest.next().filter(|next| covered.goes_on_in(next)) {
            covered = next;
        }
        let end = covered.end.min(range.base + range.len);
        u32::try_from(end - addr).unwrap_or(u32::MAX).min(access.len)
    }

    /// Returns the run of bytes around `addr` within one range and one grant that gives `domain` this access;
    /// none if there is none at `addr`.
    pub(crate) fn span(&self, domain: Domain, addr: VirtAddr, perm: Perm) -> Span {
        let grants = self.grants.get(&domain).map_or(&[][..], Vec::as_slice);
        let grant = grants[grants.partition_point(|g| g.end <= addr.0)..].first();
        let grant = grant.filter(|g| g.base <= addr.0 && g.perm.allows(perm));
        let (Some(range), Some(grant)) = (self.locate(addr), grant) else { return Span::default() };
        let (first, last) = self.page_states.alike(Page::of(addr));
        let base = range.base.max(grant.base).max(first.addr().0);
        let end = (range.base + range.len).min(grant.end).min(last.addr().0.saturating_add(PAGE_LEN as u64));
        Span { base, len: end - base, offset: range.offset + (base - range.base) }
    }

    /// Marks addresses as arriving at this offset of the store (PROTOCOL 7.37).
    pub(crate) fn arrive(&mut self, base: VirtAddr, len: u64, offset: u64) -> Result<(), Status> {
        self.version += 1;
        self.fits(base, len, offset)?;
        match self.outliers.exactly(base.0, len)?.map(|row| row.state) {
            Some(MoveState::Present | MoveState::Leaving) => return Err(Status::Malformed),
            None | Some(MoveState::Arriving | MoveState::Away) => {}
        }
        self.outliers.put(Outlier { base: base.0, len, offset: Some(offset), state: MoveState::Arriving })
    }

    /// Marks addresses as leaving; returns their offset in the store (PROTOCOL 7.38).
    pub(crate) fn leave(&mut self, base: VirtAddr, len: u64) -> Result<u64, Status> {
        self.version += 1;
        let known = self.outliers.exactly(base.0, len)?;
        let offset = match known.map(|row| (row.state, row.offset)) {
            Some((MoveState::Present | MoveState::Leaving, Some(offset))) => offset,
            Some(_) => return Err(Status::Malformed),
            None => {
                let whole = |range: &Range| range.len - (base.0 - range.base) >= len;
                let range = self.locate(base).ok_or(Status::NotMapped)?;
                if !whole(&range) {
                    return Err(Status::OutOfBounds);
                }
                range.offset + (base.0 - range.base)
            }
        };
        self.outliers.put(Outlier { base: base.0, len, offset: Some(offset), state: MoveState::Leaving })?;
        Ok(offset)
    }

    /// Maps addresses to this offset of the store (PROTOCOL 7.39).
    pub(crate) fn map_at(&mut self, base: VirtAddr, len: u64, offset: u64) -> Result<(), Status> {
        self.version += 1;
        self.fits(base, len, offset)?;
        self.outliers.put(Outlier { base: base.0, len, offset: Some(offset), state: MoveState::Present })
    }

    /// Marks addresses as being at another node.
    pub(crate) fn mark_away(&mut self, base: VirtAddr, len: u64) -> Result<(), Status> {
        self.version += 1;
        let known = self.outliers.exactly(base.0, len)?;
        let left = known.filter(|row| matches!(row.state, MoveState::Leaving | MoveState::Away));
        let offset = left.and_then(|row| row.offset);
        self.outliers.put(Outlier { base: base.0, len, offset, state: MoveState::Away })?;
        self.forget_pages(base, len);
        Ok(())
    }

    /// Removes the outlier of these addresses: the range maps them again. The states of their pages stay if
    /// their offset does not change.
    pub(crate) fn unplace(&mut self, base: VirtAddr, len: u64) -> Result<(), Status> {
        self.version += 1;
        let known = self.outliers.take(base.0, len)?;
        let place = known.filter(|row| row.state != MoveState::Away).and_then(|row| row.offset);
        let home = self.locate(base).map(|range| range.offset + (base.0 - range.base));
        if known.is_some() && (place.is_none() || place != home) {
            self.forget_pages(base, len);
        }
        Ok(())
    }

    fn forget_pages(&mut self, base: VirtAddr, len: u64) {
        self.page_states_mut().forget(Page::of(base), Page::of(VirtAddr(base.0 + (len - 1))));
    }

    fn fits(&self, base: VirtAddr, len: u64, offset: u64) -> Result<(), Status> {
        let whole = base.checked_add(len).is_some() && !base.is_null();
        if !whole || !offset.is_multiple_of(WORD_LEN) {
            return Err(Status::Malformed);
        }
        let end = offset.checked_add(len).filter(|&end| end <= self.store_len);
        end.map(|_| ()).ok_or(Status::OutOfBounds)
    }

    /// Asserts that all tables are in order and within their budgets.
    pub(crate) fn check(&self) {
        assert!(self.ranges.len() <= self.ranges_max, "more ranges than the budget");
        for (i, range) in self.ranges.iter().enumerate() {
            assert!(range.len > 0 && range.base > 0, "{range:?} is empty or holds address 0");
            assert!(range.base.checked_add(range.len).is_some(), "{range:?} leaves the address space");
            assert!(range.offset + range.len <= self.store_len, "{range:?} leaves the store");
            for later in &self.ranges[i + 1..] {
                assert!(range.base + range.len <= later.base, "{range:?} and {later:?} are out of order");
                assert!(
                    !overlap(range.offset, range.len, later.offset, later.len),
                    "{range:?} meets {later:?}"
                );
            }
        }
        let mut count = 0;
        for (domain, grants) in &self.grants {
            assert!(*domain != Domain(0), "domain 0 is granted nothing");
            assert!(!grants.is_empty(), "{domain:?} has an empty list");
            count += grants.len();
            assert!(
                grants.iter().all(|g| g.base < g.end && g.perm != Perm::None),
                "{domain:?} has an empty grant"
            );
            for pair in grants.windows(2) {
                let (a, b) = (pair[0], pair[1]);
                assert!(
                    a.end < b.base || a.end == b.base && (a.perm != b.perm || !a.is_of_vma(&b)),
                    "{a:?} and {b:?} should be one"
                );
            }
        }
        self.outliers.check(self.store_len);
        assert_eq!(count, self.grant_count, "the count of grants is right");
        assert!(count <= self.grants_max, "more grants than the budget");
    }

    fn locate(&self, addr: VirtAddr) -> Option<Range> {
        // The common case.
        if self.outliers.is_empty() {
            return self.home(addr);
        }
        if let Some(row) = self.outliers.find(addr.0) {
            let offset = row.offset.filter(|_| row.state == MoveState::Present)?;
            return Some(Range { base: row.base, len: row.len, offset });
        }
        let Range { base, len, offset } = self.home(addr)?;
        let (first, end) = self.outliers.clear_around(base, len, offset, addr.0)?;
        Some(Range { base: first, len: end - first, offset: offset + (first - base) })
    }

    /// Returns the range that holds the address.
    fn home(&self, addr: VirtAddr) -> Option<Range> {
        let after = self.ranges.partition_point(|r| r.base <= addr.0);
        self.ranges[..after].last().filter(|r| addr.0 - r.base < r.len).copied()
    }

    /// Returns the place of bytes that left with these addresses, as they left.
    fn left(&self, addr: VirtAddr) -> Option<Range> {
        let left = |row: &&Outlier| matches!(row.state, MoveState::Leaving | MoveState::Away);
        let &Outlier { base, len, offset, .. } = self.outliers.find(addr.0).filter(left)?;
        Some(Range { base, len, offset: offset? })
    }

    /// Returns true if a READ that was executed before may be answered again from bytes that left since
    /// (PROTOCOL 4.21).
    fn may_read_left(&self, access: &Access) -> bool {
        let addr = access.addr;
        let inside = |range: Range| range.len - (addr.0 - range.base) >= u64::from(access.len);
        let grants = self.grants.get(&access.domain).map_or(&[][..], Vec::as_slice);
        let grant = grants[grants.partition_point(|g| g.end <= addr.0)..].first();
        let allowed = |grant: &Grant| {
            grant.base <= addr.0
                && grant.end - addr.0 >= u64::from(access.len)
                && grant.perm.allows(access.perm)
        };
        access.perm == Perm::Read && self.left(addr).is_some_and(inside) && grant.is_some_and(allowed)
    }

    /// Returns the offset in the store of a checked access.
    pub(crate) fn offset(&self, addr: VirtAddr, len: usize) -> u64 {
        let range = self.locate(addr).or_else(|| self.left(addr));
        let range = range.expect("an access that was checked is in a range");
        let skip = addr.0 - range.base;
        assert!(len as u64 <= range.len - skip, "an access that was checked stays in its range");
        range.offset + skip
    }
}

/// The store seen through the tables, for one event.
#[derive(Debug)]
pub(crate) struct View<'a, S> {
    pub(crate) regions: &'a Regions,
    pub(crate) store: &'a mut S,
    /// The last page that a check found to be lent.
    pub(crate) lent: Cell<Option<Page>>,
}

impl<'a, S> View<'a, S> {
    pub(crate) const fn new(regions: &'a Regions, store: &'a mut S) -> Self {
        Self { regions, store, lent: Cell::new(None) }
    }
}

impl<S: Store> Memory for View<'_, S> {
    fn check(&self, access: &Access) -> Result<(), AccessError> {
        let allowed = self.regions.check_access(access);
        if let Err(AccessError::Lent(page)) = allowed {
            self.lent.set(Some(page));
        }
        allowed
    }

    fn check_again(&self, access: &Access) -> Result<(), AccessError> {
        match self.check(access) {
            Err(_) if self.regions.may_read_left(access) => Ok(()),
            allowed => allowed,
        }
    }

    fn read(&self, addr: VirtAddr, len: u32, out: &mut Vec<u8>) {
        if len > 0 {
            self.store.read(self.regions.offset(addr, len as usize), len, out);
        }
    }

    fn load(&self, addr: VirtAddr, window: &mut [u8]) {
        if !window.is_empty() {
            self.store.load(self.regions.offset(addr, window.len()), window);
        }
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) {
        if !data.is_empty() {
            self.store.write(self.regions.offset(addr, data.len()), data);
        }
    }

    fn cmp_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> u64 {
        self.store.cmp_swap(self.regions.offset(addr, 8), compare, swap)
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> u64 {
        self.store.fetch_add(self.regions.offset(addr, 8), add)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Check,
    Discard,
}

/// Returns the grants of `pieces`, which are in order; touching equal ones are merged.
fn merged(pieces: [Option<Grant>; 3]) -> Vec<Grant> {
    let mut out: Vec<Grant> = Vec::with_capacity(pieces.len());
    for piece in pieces.into_iter().flatten().filter(|g| g.perm != Perm::None) {
        match out.last_mut() {
            Some(before) if before.goes_on_in(&piece) && before.perm == piece.perm => before.end = piece.end,
            _ => out.push(piece),
        }
    }
    out
}

fn overlap(a: u64, a_len: u64, b: u64, b_len: u64) -> bool {
    a < b.saturating_add(b_len) && b < a.saturating_add(a_len)
}

#[cfg(test)]
mod tests;
