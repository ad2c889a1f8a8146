//! The host view: which keys the host holds, so that the DPU knows what a request will miss (PD3 5.2).
//!
//! Key types: [`HostView`], which the prefetcher asks and tells; [`KeySet`], the pure one that the simulator uses. The fast one is a bucketised cuckoo set
//! (`crates/io`); a differential test holds both equal.
//!
//! What it does not do: say when a key is added or removed. The prefetcher has those rules (PD3, tables 1 and 2).

use alloc::collections::BTreeSet;
use core::hash::Hasher as _;
use siphasher::sip::SipHasher13;

/// A key as the view keeps it: the key itself where it has eight bytes, else a keyed hash of it. Two keys with one id cost speed, never a wrong value: what is
/// prefetched carries its whole key, and that is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyId(pub u64);

/// What makes ids of keys that have not eight bytes, so that a client who does not know it cannot choose keys with one id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeySecret(pub [u64; 2]);

impl KeySecret {
    /// The id of a key: the same in each process that has the secret.
    #[must_use]
    pub fn id(self, key: &[u8]) -> KeyId {
        if let Ok(key) = key.try_into() {
            return KeyId(u64::from_le_bytes(key));
        }
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        hasher.write(key);
        KeyId(hasher.finish())
    }

    /// A number of a key for tables: who does not know the secret cannot choose many keys that fall together. It is a mixer and no cipher.
    pub(crate) const fn spread(self, key: KeyId) -> u64 {
        mixed(mixed(key.0 ^ self.0[0]) ^ self.0[1])
    }
}

/// A number whose low bits depend on all bits of another: for tables whose length is a power of two. The multiplier is the golden ratio's (Knuth, TAOCP 6.4).
pub(crate) const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number ^ (number >> 32)
}

/// The set of keys that the host holds (PD3 5.2: "keys of the data items in the host cache").
pub trait HostView {
    /// Says of each key whether the host holds it; `held` is as long as `keys` (PD3, figure 5: a batch at a time).
    ///
    /// # Panics
    /// When `held` has another length.
    fn contains(&self, keys: &[KeyId], held: &mut [bool]);

    /// The host holds this key from now on. False, and nothing changed, when there is no room: then a request for it is prefetched though the host has it.
    fn insert(&mut self, key: KeyId) -> bool;

    /// The host does not hold this key any more. False when it was not there.
    fn remove(&mut self, key: KeyId) -> bool;

    /// Forgets all keys: the host started again.
    fn clear(&mut self);

    /// Keys in it.
    fn len(&self) -> usize;

    /// True when no key is in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The pure host view.
#[derive(Clone, Debug)]
pub struct KeySet {
    keys: BTreeSet<KeyId>,
    keys_max: usize,
}

impl KeySet {
    /// An empty view of at most so many keys.
    #[must_use]
    pub const fn new(keys_max: usize) -> Self {
        Self { keys: BTreeSet::new(), keys_max }
    }
}

impl HostView for KeySet {
    fn contains(&self, keys: &[KeyId], held: &mut [bool]) {
        assert_eq!(keys.len(), held.len(), "an answer for each key");
        for (key, held) in keys.iter().zip(held) {
            *held = self.keys.contains(key);
        }
    }

    fn insert(&mut self, key: KeyId) -> bool {
        if self.keys.len() >= self.keys_max && !self.keys.contains(&key) {
            return false;
        }
        self.keys.insert(key);
        true
    }

    fn remove(&mut self, key: KeyId) -> bool {
        self.keys.remove(&key)
    }

    fn clear(&mut self) {
        self.keys.clear();
    }

    fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{HostView, KeyId, KeySecret, KeySet};

    /// A full view refuses a new key and says so; one that is there already costs no room; after a removal there is room again.
    #[test]
    fn a_full_view_refuses() {
        let mut view = KeySet::new(2);
        assert!(view.insert(KeyId(1)));
        assert!(view.insert(KeyId(2)));
        assert!(!view.insert(KeyId(3)));
        assert!(view.insert(KeyId(2)));
        let mut held = [false; 3];
        view.contains(&[KeyId(1), KeyId(2), KeyId(3)], &mut held);
        assert_eq!(held, [true, true, false]);
        assert!(view.remove(KeyId(1)));
        assert!(!view.remove(KeyId(1)));
        assert!(view.insert(KeyId(3)));
        assert_eq!(view.len(), 2);
        view.clear();
        assert!(view.is_empty());
    }

    /// A key of eight bytes is its own id; others have one that depends on the secret.
    #[test]
    fn ids_of_keys_depend_on_the_secret() {
        let (one, other) = (KeySecret([1, 2]), KeySecret([1, 3]));
        assert_eq!(one.id(&7_u64.to_le_bytes()), KeyId(7));
        assert_eq!(one.id(b"user:1"), one.id(b"user:1"));
        assert_ne!(one.id(b"user:1"), other.id(b"user:1"));
        assert_ne!(one.id(b"user:1"), one.id(b"user:2"));
    }
}
