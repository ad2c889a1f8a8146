//! Slots: places for pages in far memory, each with its number of owners. Pure.
//!
//! Key type: [`Slots`]. A fork adds an owner to each slot; an owner that writes to its page takes another
//! slot. Adjacent pages get adjacent slots, so that one READ or WRITE carries many. A page asks for the slot
//! behind its neighbour's; if that is taken, it gets its position in an empty group.

use crate::Key;
use alloc::vec::Vec;
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;

/// The number of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Slot(pub(crate) u32);

/// The location of a slot's latest bytes while its write-back is pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Location {
    /// In far memory.
    Far,
    /// In the program that maps this page, read-only.
    Page(Key),
    /// In this place of the pool, or in flight from there.
    Pool(u32),
}

#[derive(Clone, Copy, Debug)]
struct Record {
    owners: u32,
    /// True while a WRITE to the slot is in flight.
    sent: bool,
    location: Location,
}

/// Consecutive slots in one allocation.
#[derive(Clone, Copy, Debug)]
struct Extent {
    first: u32,
    count: u32,
    base: VirtAddr,
}

/// Slots of a group: pages of one aligned group are put together.
pub(super) const GROUP: u32 = 64;

/// All slots.
#[derive(Debug, Default)]
pub(super) struct Slots {
    extents: Vec<Extent>,
    records: Vec<Record>,
    /// A bit for each free slot, by group.
    free: Vec<u64>,
    free_count: u32,
    /// Groups that were empty when they were added here; some are in use again.
    empty: Vec<u32>,
    /// Group at which the search for any free slot continues.
    cursor: usize,
}

impl Slots {
    /// Adds an allocation of far memory for `groups` groups.
    ///
    /// # Panics
    ///
    /// If there are more slots than numbers.
    pub(super) fn extend(&mut self, base: VirtAddr, groups: u32) {
        let first = u32::try_from(self.records.len()).expect("checked below");
        let count = groups.checked_mul(GROUP).expect("an allocation of less than 16 TiB");
        assert!(first.checked_add(count).is_some_and(|end| end < u32::MAX), "far memory of less than 16 TiB");
        self.extents.push(Extent { first, count, base });
        self.records.resize(
            self.records.len() + count as usize,
            Record { owners: 0, sent: false, location: Location::Far },
        );
        let groups_before = first / GROUP;
        self.free.resize(self.free.len() + groups as usize, u64::MAX);
        self.free_count += count;
        self.empty.extend((groups_before..groups_before + groups).rev());
    }

    /// Returns the addresses of the allocations.
    pub(super) fn bases(&self) -> impl Iterator<Item = VirtAddr> {
        self.extents.iter().map(|extent| extent.base)
    }

    /// Returns the number of free slots.
    pub(super) const fn free(&self) -> u32 {
        self.free_count
    }

    /// Returns the number of all slots.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Allocates a slot for `page`, with one owner: `near`, the slot next to a neighbour's, if it is free.
    /// Returns `None` if all are taken.
    pub(super) fn take(&mut self, page: u64, near: Option<Slot>) -> Option<Slot> {
        let slot =
            near.filter(|&slot| self.is_free(slot)).or_else(|| self.in_empty(page)).or_else(|| self.any())?;
        let (group, bit) = (slot.0 / GROUP, slot.0 % GROUP);
        assert!(self.is_free(slot), "{slot:?} is free");
        self.free[group as usize] &= !(1 << bit);
        self.free_count -= 1;
        self.records[slot.0 as usize] = Record { owners: 1, sent: false, location: Location::Far };
        Some(slot)
    }

    /// Adds an owner.
    pub(super) fn share(&mut self, slot: Slot) {
        self.record(slot).owners += 1;
    }

    /// Removes an owner. A slot without owners is free once no WRITE to it is in flight.
    pub(super) fn leave(&mut self, slot: Slot) {
        let record = self.record(slot);
        assert!(record.owners > 0, "{slot:?} is owned");
        record.owners -= 1;
        self.free_if_unused(slot);
    }

    /// Records that a WRITE to the slot begins. At most one is in flight.
    pub(super) fn send(&mut self, slot: Slot) {
        let record = self.record(slot);
        assert!(!record.sent, "one WRITE to {slot:?} at a time");
        record.sent = true;
    }

    /// Returns true if a WRITE to the slot is in flight, or one got no answer.
    pub(super) fn is_sent(&self, slot: Slot) -> bool {
        self.records[slot.0 as usize].sent
    }

    /// Records that a WRITE to the slot has ended.
    pub(super) fn sent(&mut self, slot: Slot) {
        let record = self.record(slot);
        assert!(record.sent, "a WRITE to {slot:?} was under way");
        record.sent = false;
        self.free_if_unused(slot);
    }

    fn free_if_unused(&mut self, slot: Slot) {
        let record = self.record(slot);
        if record.owners > 0 || record.sent {
            return;
        }
        record.location = Location::Far;
        assert!(!self.is_free(slot), "{slot:?} was taken");
        let group = slot.0 / GROUP;
        self.free[group as usize] |= 1 << (slot.0 % GROUP);
        self.free_count += 1;
        if self.free[group as usize] == u64::MAX {
            self.empty.push(group);
        }
    }

    /// Returns all slots that have an owner.
    pub(super) fn all(&self) -> impl Iterator<Item = Slot> {
        (0..).map(Slot).zip(&self.records).filter(|(_, record)| record.owners > 0).map(|(slot, _)| slot)
    }

    /// Returns the number of owners.
    pub(super) fn owners(&self, slot: Slot) -> u32 {
        self.records[slot.0 as usize].owners
    }

    /// Returns the location of the slot's latest bytes.
    pub(super) fn location(&self, slot: Slot) -> Location {
        self.records[slot.0 as usize].location
    }

    pub(super) fn set_location(&mut self, slot: Slot, location: Location) {
        self.record(slot).location = location;
    }

    /// Returns the slot's address in far memory.
    pub(super) fn addr(&self, slot: Slot) -> VirtAddr {
        let extent = self.extent(slot);
        VirtAddr(extent.base.0 + u64::from(slot.0 - extent.first) * PAGE_LEN as u64)
    }

    /// Returns the slot behind this one in far memory.
    pub(super) fn behind(&self, slot: Slot) -> Option<Slot> {
        let extent = self.extent(slot);
        (slot.0 + 1 - extent.first < extent.count).then_some(Slot(slot.0 + 1))
    }

    /// Returns the slot before this one in far memory.
    pub(super) fn before(&self, slot: Slot) -> Option<Slot> {
        (slot.0 > self.extent(slot).first).then(|| Slot(slot.0 - 1))
    }

    /// Returns the slot's page number in far memory; adjacent slots have consecutive numbers.
    pub(super) fn far(&self, slot: Slot) -> u64 {
        // Allocations are not adjacent.
        u64::from(slot.0) + self.extents_until(slot) as u64
    }

    fn extent(&self, slot: Slot) -> Extent {
        self.extents[self.extents_until(slot) - 1]
    }

    fn extents_until(&self, slot: Slot) -> usize {
        self.extents.partition_point(|extent| extent.first <= slot.0)
    }

    fn record(&mut self, slot: Slot) -> &mut Record {
        &mut self.records[slot.0 as usize]
    }

    fn is_free(&self, slot: Slot) -> bool {
        self.free[(slot.0 / GROUP) as usize] & (1 << (slot.0 % GROUP)) != 0
    }

    fn in_empty(&mut self, page: u64) -> Option<Slot> {
        let place = u32::try_from(page % u64::from(GROUP)).expect("below GROUP");
        while let Some(group) = self.empty.pop() {
            if self.free[group as usize] == u64::MAX {
                return Some(Slot(group * GROUP + place));
            }
        }
        None
    }

    fn any(&mut self) -> Option<Slot> {
        if self.free_count == 0 {
            return None;
        }
        loop {
            let bits = self.free[self.cursor];
            if bits != 0 {
                let group = u32::try_from(self.cursor).expect("as many as fit a slot's number");
                return Some(Slot(group * GROUP + bits.trailing_zeros()));
            }
            self.cursor = (self.cursor + 1) % self.free.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    fn slots() -> Slots {
        let mut slots = Slots::default();
        slots.extend(VirtAddr(1 << 20), 2);
        slots.extend(VirtAddr(1 << 30), 1);
        slots
    }

    /// Pages that come in sequence, in either direction, are adjacent in far memory; unrelated pages lie in
    /// other groups.
    #[test]
    fn neighbours_lie_together() {
        let mut slots = slots();
        let first = slots.take(130, None).unwrap();
        let behind = slots.behind(first).unwrap();
        assert_eq!(slots.take(131, Some(behind)), Some(behind));
        let before = slots.before(first).unwrap();
        assert_eq!(slots.take(129, Some(before)), Some(before));
        assert_eq!(slots.addr(behind).0, slots.addr(first).0 + PAGE_LEN as u64);
        let stranger = slots.take(7, None).unwrap();
        assert_ne!(stranger.0 / GROUP, first.0 / GROUP);
    }

    /// A run ends at the end of its allocation.
    #[test]
    fn allocations_are_apart() {
        let slots = slots();
        assert_eq!(slots.behind(Slot(127)), None);
        assert_eq!(slots.before(Slot(128)), None);
        assert_eq!(slots.addr(Slot(128)), VirtAddr(1 << 30));
        assert_eq!(slots.far(Slot(127)) + 2, slots.far(Slot(128)));
        assert_eq!(slots.far(Slot(126)) + 1, slots.far(Slot(127)));
    }

    /// A slot without an owner is not reused while a WRITE to it is in flight: the WRITE could land late.
    #[test]
    fn a_slot_waits_for_its_writes() {
        let mut slots = slots();
        let slot = slots.take(1, None).unwrap();
        slots.send(slot);
        slots.leave(slot);
        assert_eq!(slots.free() as usize, slots.len() - 1);
        slots.sent(slot);
        assert_eq!(slots.free() as usize, slots.len());
    }

    proptest! {
        /// No slot is allocated twice, all slots can be allocated, and the owner counts match a model.
        #[test]
        fn as_a_map(acts in proptest::collection::vec((0_u64..300, 0_u8..4), 0..400)) {
            let mut slots = slots();
            let mut plain: BTreeMap<u32, u32> = BTreeMap::new();
            for (page, act) in acts {
                let some = plain.keys().copied().nth(usize::try_from(page).unwrap() % plain.len().max(1)).map(Slot);
                match (act, some) {
                    (0, Some(slot)) => {
                        slots.share(slot);
                        *plain.get_mut(&slot.0).unwrap() += 1;
                    }
                    (1, Some(slot)) => {
                        slots.leave(slot);
                        *plain.get_mut(&slot.0).unwrap() -= 1;
                        plain.retain(|_, owners| *owners > 0);
                    }
                    _ => {
                        let near = some.and_then(|slot| slots.behind(slot));
                        let taken = slots.take(page, near);
                        prop_assert_eq!(taken.is_some(), plain.len() < 192);
                        if let Some(slot) = taken {
                            prop_assert!(plain.insert(slot.0, 1).is_none());
                        }
                    }
                }
                prop_assert_eq!(slots.free() as usize + plain.len(), slots.len());
                for (&slot, &owners) in &plain {
                    prop_assert_eq!(slots.owners(Slot(slot)), owners);
                }
            }
        }
    }
}
