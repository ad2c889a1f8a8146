//! Loom's atomics for rings and zones: `crate::word_copy` copies several words at once, but here one at a
//! time.

pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

pub(crate) fn store_words(words: &[AtomicU64], bytes: &[[u8; 8]]) {
    for (word, chunk) in words.iter().zip(bytes) {
        word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
}

pub(crate) fn load_words(words: &[AtomicU64], bytes: &mut [[u8; 8]]) {
    for (word, chunk) in words.iter().zip(bytes) {
        *chunk = word.load(Ordering::Relaxed).to_le_bytes();
    }
}
