//! The host view: the keys that the host holds, so that the DPU can predict which requests will miss (PD3
//! 5.2).
//!
//! Key types: [`HostView`], which the prefetcher queries and updates; [`KeySet`], the pure one that the
//! simulator uses. The fast one is a bucketised cuckoo set (`crates/prefetch`); a differential test holds both
//! equal. The rules for adding and removing keys are the prefetcher's (PD3, tables 1 and 2).

use alloc::collections::BTreeSet;
use core::hash::Hasher as _;
use siphasher::sip::SipHasher13;

/// A key's id in the view: the key itself if it has eight bytes, otherwise a keyed hash of it. Two keys with
/// one id cost time, never a wrong value: a prefetched item carries its whole key, which is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyId(pub u64);

/// The secret of key ids, so that a client cannot choose keys with one id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeySecret(pub [u64; 2]);

impl KeySecret {
    /// Returns the id of a key, which is the same in each process that has the secret.
    #[must_use]
    pub fn id(self, key: &[u8]) -> KeyId {
        if let Ok(key) = key.try_into() {
            return KeyId(u64::from_le_bytes(key));
        }
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        hasher.write(key);
        KeyId(hasher.finish())
    }

    /// Returns a hash of a key for tables. Without the secret nothing allows a client to choose many
    /// colliding keys. This is a mixer and no cipher.
    pub(crate) const fn spread(self, key: KeyId) -> u64 {
        mixed(mixed(key.0 ^ self.0[0]) ^ self.0[1])
    }
}

/// Returns a number whose low bits depend on all bits of `number`, for tables whose length is a power of two.
/// The multiplier is the golden ratio's (Knuth, TAOCP 6.4).
pub(crate) const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number ^ (number >> 32)
}

/// The set of keys that the host holds (PD3 5.2: "keys of the data items in the host cache").
pub trait HostView {
    /// Stores in `held` for each key whether the host holds it; both slices have one length (PD3, figure 5: a
    /// batch at a time).
    ///
    /// # Panics
    ///
    /// If `held` has another length.
    fn contains(&self, keys: &[KeyId], held: &mut [bool]);

    /// Adds a key. Returns false without effect if there is no room: then a request for the key is prefetched
    /// although the host has it.
    fn insert(&mut self, key: KeyId) -> bool;

    /// Removes a key. Returns false if the view did not have it.
    fn remove(&mut self, key: KeyId) -> bool;

    /// Removes all keys, after a restart of the host.
    fn clear(&mut self);

    /// Returns the number of keys.
    fn len(&self) -> usize;

    /// Returns true if the view has no key.
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
    /// Returns an empty view of at most `keys_max` keys.
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

    /// A full view refuses a new key; a key that is present needs no room; a removal makes room.
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

    /// A key of eight bytes is its own id; the ids of others depend on the secret.
    #[test]
    fn ids_of_keys_depend_on_the_secret() {
        let (one, other) = (KeySecret([1, 2]), KeySecret([1, 3]));
        assert_eq!(one.id(&7_u64.to_le_bytes()), KeyId(7));
        assert_eq!(one.id(b"user:1"), one.id(b"user:1"));
        assert_ne!(one.id(b"user:1"), other.id(b"user:1"));
        assert_ne!(one.id(b"user:1"), one.id(b"user:2"));
    }
}
