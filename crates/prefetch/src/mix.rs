//! Hashing of keys with secret words, for tables whose keys come from clients, which must not be able to choose
//! colliding keys. The hash is a mixer, not a cipher.

/// Returns the XOR of both halves of a product.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
pub(crate) const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// The second factor: an odd word without a pattern (the fraction of the golden ratio).
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the hash of bytes under a secret.
#[inline]
pub(crate) fn hash_bytes(secret: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = secret ^ bytes.len() as u64;
    for word in words {
        hash = fold(hash ^ u64::from_le_bytes(*word), ODD ^ secret.rotate_left(17) | 1);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = fold(hash ^ u64::from_le_bytes(last), ODD ^ secret.rotate_left(17) | 1);
    }
    fold(hash ^ secret.rotate_left(32), ODD)
}
