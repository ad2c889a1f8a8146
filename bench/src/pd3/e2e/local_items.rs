//! An application's local items: all of them, or a few that replace each other.
//!
//! Key type: [`LocalItems`]. Partial storage uses sets of four: a hit moves a place to the front of its set, and a
//! new item takes a free place, else the last one. The alternative evicts the least recently used item.

use super::store::Kind;
use lru::LruCache;
use std::num::NonZero;

/// Items per set; a set of the hash map is a line.
const WAYS: usize = 4;
/// The mark of an empty slot; items are below.
const NONE: u64 = u64::MAX;

/// The local items of one application.
#[derive(Debug)]
pub(super) enum LocalItems {
    /// The hash map with all records: an open-addressing table with a power of two of slots, at most half of
    /// them in use.
    Map { slots: Vec<[u64; 2]> },
    /// All pages.
    Pages { bytes: Vec<u8> },
    /// Some records.
    Records { sets: Vec<[[u64; 2]; WAYS]> },
    /// Some pages, with their frames.
    Frames { sets: Vec<[(u64, usize); WAYS]>, bytes: Vec<u8> },
    /// The most recently used items.
    Latest { items: LruCache<u64, Vec<u8>> },
}

/// Returns the start of an item's probe sequence in a table of `places`.
fn place(item: u64, places: usize) -> usize {
    let mixed = u128::from((item + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    usize::try_from((mixed * places as u128) >> 64).expect("a place of the table")
}

fn copied(from: &[u8], into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(from);
}

impl LocalItems {
    /// Creates storage with all items.
    pub(super) fn all(kind: Kind, items: u64) -> Self {
        let count = usize::try_from(items).expect("they fit memory");
        match kind {
            Kind::Hash | Kind::Kv => {
                let mut slots = vec![[NONE, 0]; 2 * count.next_power_of_two()];
                for item in 0..items {
                    let mut at = place(item, slots.len());
                    while slots[at][0] != NONE {
                        at = (at + 1) % slots.len();
                    }
                    let mut value = [0; 8];
                    Kind::fill(item, &mut value);
                    slots[at] = [item, u64::from_le_bytes(value)];
                }
                Self::Map { slots }
            }
            Kind::Pages => {
                let mut bytes = vec![0; count * kind.value_len()];
                let pages = bytes.chunks_exact_mut(kind.value_len());
                (0..).zip(pages).for_each(|(item, page)| Kind::fill(item, page));
                Self::Pages { bytes }
            }
        }
    }

    /// Creates empty storage for at most `items` items.
    pub(super) fn some(kind: Kind, items: usize) -> Self {
        let sets = items.div_ceil(WAYS).max(1);
        match kind {
            Kind::Hash | Kind::Kv => Self::Records { sets: vec![[[NONE, 0]; WAYS]; sets] },
            Kind::Pages => {
                let frames = |set: usize| std::array::from_fn(|way| (NONE, set * WAYS + way));
                let bytes = vec![0; sets * WAYS * kind.value_len()];
                Self::Frames { sets: (0..sets).map(frames).collect(), bytes }
            }
        }
    }

    /// Creates empty storage for at most `items` items, which evicts the least recently used one.
    pub(super) fn latest(items: usize) -> Self {
        Self::Latest { items: LruCache::new(NonZero::new(items).unwrap_or(NonZero::<usize>::MIN)) }
    }

    /// Returns true when an item is local.
    pub(super) fn has(&self, item: u64) -> bool {
        match self {
            Self::Map { .. } | Self::Pages { .. } => true,
            Self::Records { sets } => sets[place(item, sets.len())].iter().any(|[of, _]| *of == item),
            Self::Frames { sets, .. } => sets[place(item, sets.len())].iter().any(|(of, _)| *of == item),
            Self::Latest { items } => items.contains(&item),
        }
    }

    /// Copies an item's value to `answer`. Returns false when the item is not local.
    pub(super) fn get(&mut self, item: u64, answer: &mut Vec<u8>) -> bool {
        let len = Kind::Pages.value_len();
        match self {
            Self::Map { slots } => {
                let mut at = place(item, slots.len());
                while slots[at][0] != item {
                    if slots[at][0] == NONE {
                        return false;
                    }
                    at = (at + 1) % slots.len();
                }
                copied(&slots[at][1].to_le_bytes(), answer);
            }
            Self::Pages { bytes } => {
                let at = usize::try_from(item).expect("a page of memory") * len;
                copied(&bytes[at..at + len], answer);
            }
            Self::Records { sets } => {
                let at = place(item, sets.len());
                let set = &mut sets[at];
                let Some(way) = set.iter().position(|[of, _]| *of == item) else { return false };
                copied(&set[way][1].to_le_bytes(), answer);
                set.swap(way, way.saturating_sub(1));
            }
            Self::Frames { sets, bytes } => {
                let at = place(item, sets.len());
                let set = &mut sets[at];
                let Some(way) = set.iter().position(|(of, _)| *of == item) else { return false };
                let at = set[way].1 * len;
                copied(&bytes[at..at + len], answer);
                set.swap(way, way.saturating_sub(1));
            }
            Self::Latest { items } => {
                let Some(value) = items.get(&item) else { return false };
                copied(value, answer);
            }
        }
        true
    }

    /// Stores an item that is not local. Returns the evicted item.
    ///
    /// # Panics
    /// Panics when all items are local.
    pub(super) fn put(&mut self, item: u64, value: &[u8]) -> Option<u64> {
        let len = Kind::Pages.value_len();
        let evicted = match self {
            Self::Map { .. } | Self::Pages { .. } => unreachable!("all items are here"),
            Self::Records { sets } => {
                let at = place(item, sets.len());
                let value = u64::from_le_bytes(value.try_into().expect("a value's length"));
                let way = sets[at].iter().position(|[of, _]| *of == NONE).unwrap_or(WAYS - 1);
                std::mem::replace(&mut sets[at][way], [item, value])[0]
            }
            Self::Frames { sets, bytes } => {
                let at = place(item, sets.len());
                let way = sets[at].iter().position(|(of, _)| *of == NONE).unwrap_or(WAYS - 1);
                let (of, frame) = &mut sets[at][way];
                bytes[*frame * len..][..len].copy_from_slice(value);
                std::mem::replace(of, item)
            }
            Self::Latest { items } => {
                let is_full = items.len() == items.cap().get();
                let oldest = if is_full { items.pop_lru() } else { None };
                let (evicted, mut room) = oldest.unwrap_or((NONE, Vec::new()));
                copied(value, &mut room);
                items.put(item, room);
                evicted
            }
        };
        (evicted != NONE && evicted != item).then_some(evicted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With full storage all items are found with their values. With partial storage an item stays until four
    /// others of its set were stored, and evictions are reported.
    #[test]
    fn what_is_here_is_found_until_it_is_evicted() {
        let mut answer = Vec::new();
        for kind in Kind::ALL {
            let mut all = LocalItems::all(kind, 100);
            for item in 0..100 {
                assert!(all.get(item, &mut answer) && kind.is_right(&kind.key(item), &answer), "{item}");
            }
            let mut some = LocalItems::some(kind, 8);
            let mut value = vec![0; kind.value_len()];
            let mut evicted = Vec::new();
            for item in 0..100 {
                assert!(!some.has(item) && !some.get(item, &mut answer));
                Kind::fill(item, &mut value);
                evicted.extend(some.put(item, &value));
                assert!(
                    some.has(item) && some.get(item, &mut answer) && kind.is_right(&kind.key(item), &answer),
                    "{item}"
                );
            }
            let here = (0..100).filter(|&item| some.get(item, &mut answer)).count();
            assert_eq!(here + evicted.len(), 100);
            assert_eq!(here, 8, "as many as there is room for");
        }
    }

    /// After a fraction of all items was stored, nearly all of that fraction is local at once.
    #[test]
    fn a_part_of_the_items_is_here_when_it_was_put() {
        for kind in [Kind::Hash, Kind::Pages] {
            for part in [2, 4, 10, 100] {
                let (items, mut value) = (20_000, vec![0; kind.value_len()]);
                let mut some = LocalItems::some(kind, items / part);
                for item in (0..items).step_by(part) {
                    Kind::fill(item as u64, &mut value);
                    let _evicted = some.put(item as u64, &value);
                }
                let here = (0..items).filter(|&item| some.has(item as u64)).count();
                assert!(here * 10 >= items / part * 7, "{here} of {} are here", items / part);
            }
        }
    }

    /// LRU storage evicts the least recently used item, regardless of insertion order.
    #[test]
    fn the_item_used_longest_ago_makes_room() {
        let mut answer = Vec::new();
        for kind in Kind::ALL {
            let mut here = LocalItems::latest(3);
            let mut value = vec![0; kind.value_len()];
            let mut put = |here: &mut LocalItems, item| {
                Kind::fill(item, &mut value);
                here.put(item, &value)
            };
            assert_eq!([1, 2, 3].map(|item| put(&mut here, item)), [None; 3]);
            assert!(here.get(1, &mut answer) && kind.is_right(&kind.key(1), &answer));
            assert_eq!(put(&mut here, 4), Some(2));
            assert!(here.has(3), "a look is no use of it");
            assert_eq!(put(&mut here, 5), Some(3));
            assert!(!here.get(2, &mut answer) && here.get(5, &mut answer));
            assert!(kind.is_right(&kind.key(5), &answer));
        }
    }
}
