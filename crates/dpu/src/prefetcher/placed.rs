//! Items in the zone. Items leave the zone nearly in the order of arrival, because the zone frees its places in that
//! order (PROTOCOL 18.18).

use crate::view::KeyId;
use alloc::collections::VecDeque;

/// Items placed and not left, by number.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// From item `first` on: the key, and whether this item added it to the view. `None` for an item that
    /// left before an older one.
    items: VecDeque<Option<(KeyId, bool)>>,
    first: u64,
    /// Number of items that have not left.
    here: u64,
}

impl Placed {
    /// Adds an item and returns its number, which is unique.
    pub(super) fn push(&mut self, key: KeyId, on_account: bool) -> u64 {
        self.items.push_back(Some((key, on_account)));
        self.here += 1;
        self.first + (self.items.len() as u64 - 1)
    }

    pub(super) fn get(&self, item: u64) -> Option<(KeyId, bool)> {
        *self.items.get(self.at(item)?)?
    }

    /// Removes an item. Returns `None` if there is no such item.
    pub(super) fn remove(&mut self, item: u64) -> Option<(KeyId, bool)> {
        let at = self.at(item)?;
        let one = self.items.get_mut(at)?.take()?;
        self.here -= 1;
        self.drop_gone();
        Some(one)
    }

    /// Removes all items; their numbers are not reused.
    pub(super) fn clear(&mut self) {
        self.first += self.items.len() as u64;
        self.items.clear();
        self.here = 0;
    }

    pub(super) const fn len(&self) -> u64 {
        self.here
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.here == 0
    }

    fn at(&self, item: u64) -> Option<usize> {
        usize::try_from(item.checked_sub(self.first)?).ok()
    }

    fn drop_gone(&mut self) {
        while self.items.pop_front_if(|item| item.is_none()).is_some() {
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Placed;
    use crate::view::KeyId;

    /// Items leave in any order, each once. Numbers continue after a restart, and memory is freed once all
    /// older items have left.
    #[test]
    fn items_leave_once_and_numbers_go_on() {
        let mut placed = Placed::default();
        let items: [u64; 4] = core::array::from_fn(|n| placed.push(KeyId(n as u64 * 10), n == 1));
        assert_eq!(items, [0, 1, 2, 3]);
        assert_eq!(placed.remove(1), Some((KeyId(10), true)));
        assert_eq!(placed.remove(1), None);
        assert_eq!((placed.len(), placed.items.len(), placed.get(2)), (3, 4, Some((KeyId(20), false))));
        assert_eq!(placed.remove(0), Some((KeyId(0), false)));
        assert_eq!((placed.len(), placed.items.len(), placed.get(1)), (2, 2, None));
        placed.clear();
        assert!(placed.is_empty());
        assert_eq!((placed.remove(3), placed.remove(9)), (None, None));
        assert_eq!(placed.push(KeyId(7), false), 4);
    }
}
