//! Touches of single pages in an order that no read-ahead predicts.

use crate::Samples;
use farmem::PAGE_LEN;
use farmem::window::Memory;
use std::time::Instant;

/// Reads a byte of every `stride`th page, in an order without neighbours, and times each.
pub(crate) fn touch(memory: Memory<'_>, stride: usize, times: &mut Samples) {
    let count = memory.len() / (stride * PAGE_LEN);
    let mut byte = [0];
    for n in 0..count {
        let at = scattered(n, count) * stride * PAGE_LEN;
        let begin = Instant::now();
        memory.read(at, &mut byte);
        times.record(begin.elapsed());
    }
}

/// Returns the `n`th of `count` positions, each once, far from the one before.
pub(crate) const fn scattered(n: usize, count: usize) -> usize {
    // Odd, so without a common divisor with a power of two.
    n * 389 % count
}
