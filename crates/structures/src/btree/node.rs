//! The encoding of a tree node. The programs `btree_*.pulse` and `series_window.pulse` use the same offsets.

use farmem_client::Error;
use farmem_wire::VirtAddr;

/// Bytes of a node: the largest load window.
pub const NODE_LEN: usize = 256;
/// Largest number of keys in a node; an inner node has one child more.
pub const KEYS_MAX: usize = 15;
/// Marks unused positions; not a valid key.
pub(crate) const UNUSED: u64 = u64::MAX;

const KEYS: usize = 8;
pub(crate) const SLOTS: usize = 128;
/// The slot of a leaf that links to the next one.
const LINK: usize = KEYS_MAX;

/// A node. Slot i of a leaf is the value of key i. Child i of an inner node holds the keys from key i - 1 on
/// and below key i.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    pub(crate) leaf: bool,
    pub(crate) keys: Vec<u64>,
    /// As many as keys in a leaf, one more in an inner node.
    pub(crate) slots: Vec<u64>,
    /// The next leaf, 0 at the end.
    pub(crate) link: u64,
}

impl Node {
    pub(crate) fn leaf(pairs: &[(u64, u64)], link: u64) -> Self {
        let (keys, slots) = pairs.iter().copied().unzip();
        Self { leaf: true, keys, slots, link }
    }

    pub(crate) const fn inner(keys: Vec<u64>, children: Vec<u64>) -> Self {
        Self { leaf: false, keys, slots: children, link: 0 }
    }

    /// Returns the number of keys not greater than `key`: the index of the child that holds `key`.
    pub(crate) fn rank(&self, key: u64) -> usize {
        self.keys.partition_point(|&k| k <= key)
    }

    /// Inserts a key with its slot: a leaf's value, or an inner node's child to the right of the key.
    pub(crate) fn insert(&mut self, key: u64, slot: u64) {
        let rank = self.rank(key);
        self.keys.insert(rank, key);
        self.slots.insert(if self.leaf { rank } else { rank + 1 }, slot);
    }

    /// Splits a node that has one key too many. Returns the separator key and the right half. The caller
    /// links the leaf.
    ///
    /// If the new key is the last, the left node stays full: keys inserted in ascending order fill their
    /// leaves.
    pub(crate) fn split(&mut self, ordered: bool) -> (u64, Self) {
        let at = if ordered { self.keys.len() - 1 } else { self.keys.len() / 2 };
        if self.leaf {
            let (keys, slots) = (self.keys.split_off(at), self.slots.split_off(at));
            return (keys[0], Self { leaf: true, keys, slots, link: self.link });
        }
        let keys = self.keys.split_off(at + 1);
        let children = self.slots.split_off(at + 1);
        let between = self.keys.pop().expect("a node that is cut is full");
        (between, Self::inner(keys, children))
    }

    pub(crate) fn emit(&self) -> [u8; NODE_LEN] {
        assert!(self.keys.len() <= KEYS_MAX, "a node has at most {KEYS_MAX} keys");
        assert_eq!(self.slots.len(), self.keys.len() + usize::from(!self.leaf), "a slot for each");
        let mut bytes = [0; NODE_LEN];
        bytes[0] = u8::from(self.leaf);
        bytes[KEYS..SLOTS].fill(0xff); // unused keys
        for (n, key) in self.keys.iter().enumerate() {
            bytes[KEYS + 8 * n..KEYS + 8 * n + 8].copy_from_slice(&key.to_le_bytes());
        }
        for (n, slot) in self.slots.iter().enumerate() {
            bytes[SLOTS + 8 * n..SLOTS + 8 * n + 8].copy_from_slice(&slot.to_le_bytes());
        }
        if self.leaf {
            bytes[SLOTS + 8 * LINK..].copy_from_slice(&self.link.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; NODE_LEN], addr: VirtAddr) -> Result<Self, Error> {
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the range has 8 bytes"));
        let keys: Vec<u64> = (0..KEYS_MAX).map(|n| word(KEYS + 8 * n)).take_while(|&k| k != UNUSED).collect();
        let leaf = word(0) == 1;
        if word(0) > 1 || !keys.is_sorted_by(|a, b| a < b) {
            return Err(Error::Broken { addr, what: "a B+tree's node" });
        }
        let slots = (0..keys.len() + usize::from(!leaf)).map(|n| word(SLOTS + 8 * n)).collect();
        Ok(Self { leaf, keys, slots, link: if leaf { word(SLOTS + 8 * LINK) } else { 0 } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: VirtAddr = VirtAddr(0x1000);

    #[test]
    fn what_is_emitted_is_parsed() {
        let full: Vec<(u64, u64)> = (0..15).map(|n| (n * 3, u64::MAX - n)).collect();
        let nodes = [
            Node::leaf(&[], 0),
            Node::leaf(&full, 7),
            Node::inner(vec![], vec![4096]),
            Node::inner((1..16).collect(), (100..116).collect()),
        ];
        for node in nodes {
            assert_eq!(Node::parse(&node.emit(), AT).unwrap(), node);
        }
    }

    #[test]
    fn other_bytes_are_no_node() {
        let mut bytes = Node::leaf(&[(5, 0), (9, 0)], 0).emit();
        bytes[KEYS] = 10;
        assert!(matches!(Node::parse(&bytes, AT), Err(Error::Broken { addr: AT, .. })), "keys descend");
        let mut bytes = Node::leaf(&[], 0).emit();
        bytes[0] = 2;
        assert!(matches!(Node::parse(&bytes, AT), Err(Error::Broken { .. })), "neither leaf nor inner node");
    }

    /// A split in the middle leaves room in both halves. A split after ascending inserts leaves the left half
    /// full.
    #[test]
    fn a_cut_keeps_every_key_once() {
        for (ordered, left_keys) in [(false, 8), (true, 15)] {
            let pairs: Vec<(u64, u64)> = (0..16).map(|n| (n, n)).collect();
            let mut leaf = Node { leaf: true, ..Node::leaf(&pairs, 9) };
            let (between, right) = leaf.split(ordered);
            assert_eq!((leaf.keys.len(), between, right.link), (left_keys, left_keys as u64, 9));
            assert_eq!([leaf.keys, right.keys].concat(), (0..16).collect::<Vec<u64>>());

            let mut inner = Node::inner((1..17).collect(), (0..17).collect());
            let (between, right) = inner.split(ordered);
            assert_eq!(
                [inner.slots.as_slice(), right.slots.as_slice()].concat(),
                (0..17).collect::<Vec<u64>>()
            );
            assert_eq!(
                [inner.keys.as_slice(), &[between], right.keys.as_slice()].concat(),
                (1..17).collect::<Vec<u64>>()
            );
            assert_eq!((inner.slots.len(), right.slots.len()), (inner.keys.len() + 1, right.keys.len() + 1));
        }
    }
}
