//! The comparison: lane n of the answer is set when `addr - bases[n] < lens[n]`, unsigned and modulo 2^64.

use super::{Chunk, LANES};

/// A way to compare; having the value means that the machine has it.
pub(crate) trait Lanes: Copy {
    fn holding(self, chunk: &Chunk, addr: u64) -> u32;

    /// Where the window of `len` bytes at `addr` begins; `None` when no range of these holds all of it.
    #[inline(always)]
    fn place(self, chunk: &Chunk, addr: u64, len: usize) -> Option<u64> {
        let holding = self.holding(chunk, addr);
        if holding == 0 {
            return None;
        }
        // Of a sorted table without overlaps at most one lane answers. The mask keeps a lane's number below eight for the compiler.
        let lane = holding.trailing_zeros() as usize % LANES;
        let rest = chunk.lens[lane] - (addr - chunk.bases[lane]);
        (rest >= len as u64).then(|| addr.wrapping_add(chunk.deltas[lane]))
    }
}

/// One after the other, in plain Rust.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Portable;

impl Lanes for Portable {
    #[inline(always)]
    fn holding(self, chunk: &Chunk, addr: u64) -> u32 {
        let mut holding = 0;
        for lane in 0..LANES {
            let inside = addr.wrapping_sub(chunk.bases[lane]) < chunk.lens[lane];
            holding |= u32::from(inside) << lane;
        }
        holding
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Chunk, LANES, Lanes};
    use std::arch::x86_64::{
        __m256i, __m512i, _mm_cvtsi128_si64, _mm256_castsi256_pd, _mm256_cmpgt_epi64, _mm256_loadu_si256,
        _mm256_movemask_pd, _mm256_set1_epi64x, _mm256_sub_epi64, _mm256_xor_si256, _mm512_add_epi64,
        _mm512_castsi512_si128, _mm512_cmplt_epu64_mask, _mm512_loadu_si512, _mm512_mask_cmple_epu64_mask,
        _mm512_maskz_compress_epi64, _mm512_set1_epi64, _mm512_sub_epi64,
    };

    /// Four at once.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Avx2(());

    impl Avx2 {
        pub(crate) fn new() -> Option<Self> {
            is_x86_feature_detected!("avx2").then_some(Self(()))
        }
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        fn holding(self, chunk: &Chunk, addr: u64) -> u32 {
            // SAFETY: a value of this type is only made where the machine has AVX2.
            unsafe { holding_avx2(chunk, addr) }
        }
    }

    /// AVX2 compares signed only: both sides are shifted by 2^63 first, which keeps their order.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn holding_avx2(chunk: &Chunk, addr: u64) -> u32 {
        let bias = _mm256_set1_epi64x(i64::MIN);
        let addr = _mm256_set1_epi64x(addr.cast_signed());
        let four = |column: &[u64; LANES], half: usize| -> __m256i {
            let part: &[u64; 4] = column[half * 4..].first_chunk().expect("a half of eight");
            // SAFETY: 32 bytes of the column, at any alignment.
            unsafe { _mm256_loadu_si256(part.as_ptr().cast()) }
        };
        let mut holding = 0;
        for half in 0..2 {
            let distance = _mm256_sub_epi64(addr, four(&chunk.bases, half));
            let below = _mm256_cmpgt_epi64(
                _mm256_xor_si256(four(&chunk.lens, half), bias),
                _mm256_xor_si256(distance, bias),
            );
            holding |= _mm256_movemask_pd(_mm256_castsi256_pd(below)).cast_unsigned() << (half * 4);
        }
        holding
    }

    /// Eight at once.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Avx512(());

    impl Avx512 {
        pub(crate) fn new() -> Option<Self> {
            is_x86_feature_detected!("avx512f").then_some(Self(()))
        }
    }

    impl Lanes for Avx512 {
        #[inline(always)]
        fn holding(self, chunk: &Chunk, addr: u64) -> u32 {
            // SAFETY: a value of this type is only made where the machine has AVX-512F.
            unsafe { holding_avx512(chunk, addr) }
        }

        #[inline(always)]
        fn place(self, chunk: &Chunk, addr: u64, len: usize) -> Option<u64> {
            // SAFETY: as above.
            unsafe { place_avx512(chunk, addr, len) }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn holding_avx512(chunk: &Chunk, addr: u64) -> u32 {
        let distance = _mm512_sub_epi64(_mm512_set1_epi64(addr.cast_signed()), column(&chunk.bases));
        u32::from(_mm512_cmplt_epu64_mask(distance, column(&chunk.lens)))
    }

    /// First and last byte are compared in all lanes, and the answer is squeezed out of the lane that holds them: no lane has a number.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn place_avx512(chunk: &Chunk, addr: u64, len: usize) -> Option<u64> {
        let (addr, lens) = (_mm512_set1_epi64(addr.cast_signed()), column(&chunk.lens));
        let distance = _mm512_sub_epi64(addr, column(&chunk.bases));
        // A distance below a length leaves room for the window: no range is that long.
        let behind = _mm512_add_epi64(distance, _mm512_set1_epi64((len as u64).cast_signed()));
        let inside = _mm512_mask_cmple_epu64_mask(_mm512_cmplt_epu64_mask(distance, lens), behind, lens);
        let places = _mm512_maskz_compress_epi64(inside, _mm512_add_epi64(addr, column(&chunk.deltas)));
        let place = _mm_cvtsi128_si64(_mm512_castsi512_si128(places)).cast_unsigned();
        (inside != 0).then_some(place)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn column(column: &[u64; LANES]) -> __m512i {
        // SAFETY: 64 bytes, at any alignment.
        unsafe { _mm512_loadu_si512(column.as_ptr().cast()) }
    }
}
