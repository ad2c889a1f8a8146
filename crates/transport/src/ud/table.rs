//! A table of outstanding requests with constant-time lookup by id.
//!
//! Key type: [`Table`]. The ids are the owner's own and count up one by one, so their low bits spread over
//! the table without a hash, and a peer cannot choose them. A value does not move until it is removed.

use alloc::vec::Vec;
use farmem_wire::RequestId;

/// Ends a chain.
const NONE: u32 = u32::MAX;
/// Chains of the smallest table, a power of two.
const CHAINS_MIN: usize = 16;

/// Values by request id.
#[derive(Debug)]
pub(super) struct Table<V> {
    /// The first slot of each chain, by the low bits of the counter. The number of chains is a power of two,
    /// at least the number of values.
    chains: Vec<u32>,
    slots: Vec<Slot<V>>,
    /// The first slot in the chain of free slots.
    free: u32,
    len: usize,
}

#[derive(Debug)]
struct Slot<V> {
    request: RequestId,
    next: u32,
    value: Option<V>,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { chains: Vec::new(), slots: Vec::new(), free: NONE, len: 0 }
    }
}

impl<V> Table<V> {
    /// Returns the number of values.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Inserts a value. Returns false and drops the value if the id is taken.
    #[inline]
    pub(super) fn insert(&mut self, request: RequestId, value: V) -> bool {
        if self.find(request).is_some() {
            return false;
        }
        if self.len == self.chains.len() {
            self.grow();
        }
        let chain = self.chain(request);
        let slot = Slot { request, next: self.chains[chain], value: Some(value) };
        let at = self.free;
        if let Some(free) = self.slots.get_mut(at as usize) {
            self.free = free.next;
            *free = slot;
            self.chains[chain] = at;
        } else {
            let at = u32::try_from(self.slots.len()).expect("far fewer requests than that are outstanding");
            self.slots.push(slot);
            self.chains[chain] = at;
        }
        self.len += 1;
        true
    }

    /// Returns the value of this id.
    #[inline]
    pub(super) fn get(&self, request: RequestId) -> Option<&V> {
        self.slots[self.find(request)?].value.as_ref()
    }

    /// Returns the value of this id, mutably.
    #[inline]
    pub(super) fn get_mut(&mut self, request: RequestId) -> Option<&mut V> {
        let at = self.find(request)?;
        self.slots[at].value.as_mut()
    }

    /// Removes the value of this id.
    #[inline]
    pub(super) fn remove(&mut self, request: RequestId) -> Option<V> {
        if self.chains.is_empty() {
            return None;
        }
        let chain = self.chain(request);
        let (mut before, mut at) = (NONE, self.chains[chain]);
        while let Some(slot) = self.slots.get(at as usize) {
            if slot.request == request {
                break;
            }
            (before, at) = (at, slot.next);
        }
        let slot = self.slots.get_mut(at as usize)?;
        let (value, next) = (slot.value.take(), slot.next);
        slot.next = self.free;
        self.free = at;
        match self.slots.get_mut(before as usize) {
            Some(before) => before.next = next,
            None => self.chains[chain] = next,
        }
        self.len -= 1;
        value
    }

    /// Returns the lowest id. Scans all values.
    pub(super) fn lowest(&self) -> Option<RequestId> {
        self.used().map(|(request, _)| request).min()
    }

    /// Returns all ids and values, in no order.
    pub(super) fn used(&self) -> impl Iterator<Item = (RequestId, &V)> {
        self.slots.iter().filter_map(|slot| Some((slot.request, slot.value.as_ref()?)))
    }

    #[inline]
    fn find(&self, request: RequestId) -> Option<usize> {
        let mut at = *self.chains.get(self.chain(request))?;
        loop {
            let slot = self.slots.get(at as usize)?;
            if slot.request == request {
                return Some(at as usize);
            }
            at = slot.next;
        }
    }

    /// Returns the chain of an id; meaningless while there are no chains.
    #[inline]
    fn chain(&self, request: RequestId) -> usize {
        request.counter() as usize & self.chains.len().wrapping_sub(1)
    }

    /// Doubles the number of chains.
    #[cold]
    fn grow(&mut self) {
        let count = (self.chains.len() * 2).max(CHAINS_MIN);
        self.chains.clear();
        self.chains.resize(count, NONE);
        for at in 0..self.slots.len() {
            let chain = self.chain(self.slots[at].request);
            let slot = &mut self.slots[at];
            assert!(slot.value.is_some(), "a table that grows is full");
            slot.next = self.chains[chain];
            self.chains[chain] = u32::try_from(at).expect("slots have numbers of 32 bits");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use farmem_wire::HostId;
    use proptest::prelude::*;

    proptest! {
        /// The table behaves as a map, for ids that share chains and for ids of other generations.
        #[test]
        fn it_equals_a_map(acts in prop::collection::vec((any::<bool>(), 0..3_u16, 0..200_u32), 1..400)) {
            let (mut table, mut map) = (Table::default(), BTreeMap::new());
            for (n, (insert, generation, counter)) in acts.into_iter().enumerate() {
                let request = RequestId::new(HostId(1), generation, counter * 7);
                if insert {
                    let is_new = !map.contains_key(&request);
                    map.entry(request).or_insert(n);
                    prop_assert_eq!(table.insert(request, n), is_new);
                } else {
                    prop_assert_eq!(table.remove(request), map.remove(&request));
                }
                prop_assert_eq!(table.get(request), map.get(&request));
                prop_assert_eq!(table.get_mut(request), map.get_mut(&request));
                prop_assert_eq!((table.len(), table.lowest()), (map.len(), map.keys().next().copied()));
                let mut used: Vec<_> = table.used().map(|(request, n)| (request, *n)).collect();
                used.sort_unstable();
                prop_assert!(used.into_iter().eq(map.iter().map(|(request, n)| (*request, *n))));
                prop_assert!(table.slots.len() <= table.chains.len(), "slots are used again");
            }
        }
    }
}
