//! Copies between bytes and words that another process may write concurrently.
//!
//! Readers check everything that they read in this way, and rely only on this: each byte is one that a writer
//! stored there. So copies of 16 bytes at a time are valid. Such copies take about half as long as copies by
//! words, for 4 KiB out of a loading zone (`pd3.zone.hit.page`). The rest is copied by words, and so is
//! everything on processors other than x86-64.
//!
//! The functions here impose no order: writers publish an index or a state after the bytes. Loom models one
//! word at a time. So no test covers partially visible copies of 16 bytes; the readers' checks do.

use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = 8;
/// Number of words of a cache line, the unit of a copy.
const LINE: usize = 8;

/// Stores the bytes into words.
///
/// # Panics
/// Panics if there are fewer words than chunks.
#[inline]
pub(crate) fn store_words(words: &[AtomicU64], bytes: &[[u8; WORD]]) {
    let words = &words[..bytes.len()];
    let lines = bytes.len() / LINE * LINE;
    #[cfg(target_arch = "x86_64")]
    {
        let to = words.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: both are `lines` words long, and atomic words may be written through a shared reference.
        unsafe { move_lines(bytes.as_ptr().cast(), to, lines * WORD) };
    }
    let moved = if cfg!(target_arch = "x86_64") { lines } else { 0 };
    for (word, chunk) in words[moved..].iter().zip(&bytes[moved..]) {
        word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
}

/// Fills bytes from words.
///
/// # Panics
/// Panics if there are fewer words than chunks.
#[inline]
pub(crate) fn load_words(words: &[AtomicU64], bytes: &mut [[u8; WORD]]) {
    let words = &words[..bytes.len()];
    let lines = bytes.len() / LINE * LINE;
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: both are `lines` words long, and the bytes are this call's alone.
        unsafe { move_lines(words.as_ptr().cast(), bytes.as_mut_ptr().cast(), lines * WORD) };
    }
    let moved = if cfg!(target_arch = "x86_64") { lines } else { 0 };
    for (word, chunk) in words[moved..].iter().zip(&mut bytes[moved..]) {
        *chunk = word.load(Ordering::Relaxed).to_le_bytes();
    }
}

/// Copies `len` bytes, a multiple of 64.
///
/// The code is assembly. Rust does not allow a plain copy of memory with concurrent writers, and the compiler
/// copies atomic words one by one.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes, which must not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn move_lines(from: *const u8, to: *mut u8, len: usize) {
    debug_assert!(len.is_multiple_of(LINE * WORD));
    if len == 0 {
        return;
    }
    // Both pointers start at their ends: the index counts up to zero, which also ends the loop.
    let (from, to) = (from.wrapping_add(len), to.wrapping_add(len));
    // SAFETY: the caller's guarantee; the registers are named.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{from} + {at}]",
            "movups {b}, [{from} + {at} + 16]",
            "movups {c}, [{from} + {at} + 32]",
            "movups {d}, [{from} + {at} + 48]",
            "movups [{to} + {at}], {a}",
            "movups [{to} + {at} + 16], {b}",
            "movups [{to} + {at} + 32], {c}",
            "movups [{to} + {at} + 48], {d}",
            "add {at}, 64",
            "jne 2b",
            from = in(reg) from,
            to = in(reg) to,
            at = inout(reg) len.wrapping_neg() => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{load_words, store_words};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// For every length up to some lines, and every offset, stored bytes are read back, and no neighbouring
    /// byte changes.
    #[test]
    fn words_come_back_and_no_others_change() {
        let count = 40;
        for first in 0..9 {
            for len in 0..=count - first - 1 {
                let words: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(u64::MAX)).collect();
                let bytes: Vec<[u8; 8]> =
                    (1..=len as u64).map(|n| (n * 0x0102_0304_0506_0708).to_le_bytes()).collect();
                store_words(&words[first..], &bytes);
                for (at, word) in words.iter().enumerate() {
                    let stored = at.checked_sub(first).and_then(|at| bytes.get(at));
                    let expected = stored.map_or(u64::MAX, |chunk| u64::from_le_bytes(*chunk));
                    assert_eq!(
                        word.load(Ordering::Relaxed),
                        expected,
                        "{len} words from {first} on: word {at}"
                    );
                }
                let mut back = vec![[9; 8]; len + 2];
                load_words(&words[first..], &mut back[1..=len]);
                assert_eq!((back[0], &back[1..=len], back[len + 1]), ([9; 8], &bytes[..], [9; 8]));
            }
        }
    }

    #[test]
    #[should_panic(expected = "range end index 3 out of range for slice of length 2")]
    fn more_than_there_is_is_a_broken_promise() {
        store_words(&[AtomicU64::new(0), AtomicU64::new(0)], &[[1; 8]; 3]);
    }
}
