//! The range table (PULSE 4.2, memory pipeline): from an address to the byte of the store that holds it, eight ranges at a time.
//!
//! A table is built whole and not changed. It says yes or no and where; who asks why it was no looks into tables of his own.

mod lanes;

#[cfg(target_arch = "x86_64")]
pub(crate) use lanes::{Avx2, Avx512};
pub(crate) use lanes::{Lanes, Portable};
use std::fmt;

/// Ranges that are compared at once.
const LANES: usize = 8;
/// Bytes of a range: with a window's behind them they are still a word's.
const LEN_MAX: u64 = 1 << 63;

/// Addresses `base..base + len`, whose bytes lie in the store from `offset` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First address.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// Where the first byte lies in the store.
    pub offset: u64,
}

/// Why ranges are not a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeError {
    /// The range leaves the address space or the offsets, has no bytes, or more than 2^63.
    Bounds(Range),
    /// Two ranges hold an address, or the first begins behind the second.
    Order(Range, Range),
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bounds(range) => write!(f, "{range:?} is empty, or too long for the 64 bits of an address"),
            Self::Order(a, b) => write!(f, "{a:?} does not lie before {b:?}"),
        }
    }
}

impl std::error::Error for RangeError {}

/// Why a window has no place in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss {
    /// No range holds its first byte.
    Elsewhere,
    /// A range holds its first byte, but not all the others.
    Straddles,
}

/// Eight ranges as columns. A lane without a range has length 0, which no distance is below.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Chunk {
    bases: [u64; LANES],
    lens: [u64; LANES],
    /// What is added to an address to give its offset, modulo 2^64.
    deltas: [u64; LANES],
}

impl Chunk {
    const EMPTY: Self = Self { bases: [0; LANES], lens: [0; LANES], deltas: [0; LANES] };
}

/// A range table, in order of addresses.
#[derive(Clone, Debug)]
pub struct Ranges {
    /// The first eight ranges: all there are, for most.
    first: Chunk,
    /// The others.
    more: Vec<Chunk>,
    /// The first address of each chunk of `more`.
    firsts: Vec<u64>,
    /// No offset that it answers is behind this.
    end: u64,
}

impl Default for Ranges {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Ranges {
    /// The table that holds nothing.
    pub const EMPTY: Self = Self { first: Chunk::EMPTY, more: Vec::new(), firsts: Vec::new(), end: 0 };

    /// A table of ranges that are given in order of their addresses and hold none twice.
    ///
    /// # Errors
    /// [`RangeError`] with the first that is wrong.
    pub fn new(ranges: &[Range]) -> Result<Self, RangeError> {
        for range in ranges {
            let fits = |start: u64| start.checked_add(range.len).is_some();
            if range.len == 0 || range.len > LEN_MAX || !fits(range.base) || !fits(range.offset) {
                return Err(RangeError::Bounds(*range));
            }
        }
        for pair in ranges.windows(2) {
            if pair[0].base + pair[0].len > pair[1].base {
                return Err(RangeError::Order(pair[0], pair[1]));
            }
        }
        let chunk = |part: &[Range]| {
            let mut chunk = Chunk::EMPTY;
            for (lane, range) in part.iter().enumerate() {
                chunk.bases[lane] = range.base;
                chunk.lens[lane] = range.len;
                chunk.deltas[lane] = range.offset.wrapping_sub(range.base);
            }
            chunk
        };
        let mut chunks = ranges.chunks(LANES).map(chunk);
        let first = chunks.next().unwrap_or(Chunk::EMPTY);
        let more: Vec<_> = chunks.collect();
        let firsts = more.iter().map(|chunk| chunk.bases[0]).collect();
        let end = ranges.iter().map(|range| range.offset + range.len).max().unwrap_or(0);
        Ok(Self { first, more, firsts, end })
    }

    /// Where in the store the window of `len` bytes at `addr` begins.
    ///
    /// # Errors
    /// [`Miss`] when not all of it is in one range.
    pub fn translate(&self, addr: u64, len: usize) -> Result<u64, Miss> {
        Search::best().translate(self, addr, len)
    }

    /// Behind the last byte that an answer leads to.
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    /// As [`Self::translate`], with the comparison in `lanes`.
    #[inline(always)]
    pub(crate) fn find(&self, lanes: impl Lanes, addr: u64, len: usize) -> Result<u64, Miss> {
        match lanes.place(&self.first, addr, len) {
            Some(offset) => Ok(offset),
            None => self.find_behind(lanes, addr, len),
        }
    }

    /// Among the others, or why not.
    #[cold]
    fn find_behind(&self, lanes: impl Lanes, addr: u64, len: usize) -> Result<u64, Miss> {
        let other = self.other(addr);
        let straddles =
            [Some(&self.first), other].into_iter().flatten().any(|chunk| lanes.holding(chunk, addr) != 0);
        let why = if straddles { Miss::Straddles } else { Miss::Elsewhere };
        other.and_then(|chunk| lanes.place(chunk, addr, len)).ok_or(why)
    }

    /// The eight ranges, behind the first eight, among which an address is if it is anywhere.
    fn other(&self, addr: u64) -> Option<&Chunk> {
        let behind = self.firsts.partition_point(|first| *first <= addr);
        self.more.get(behind.checked_sub(1)?)
    }
}

/// How eight ranges are compared: what this machine can do is found out when the program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Search(pub(crate) Way);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Search {
    /// The widest that this machine has.
    #[must_use]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(lanes) = Avx512::new() {
                return Self(Way::Avx512(lanes));
            }
            if let Some(lanes) = Avx2::new() {
                return Self(Way::Avx2(lanes));
            }
        }
        Self(Way::Portable(Portable))
    }

    /// All that this machine has, the plain one first: for tests and measurements.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self(Way::Portable(Portable))];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Avx2::new().map(|lanes| Self(Way::Avx2(lanes))));
            all.extend(Avx512::new().map(|lanes| Self(Way::Avx512(lanes))));
        }
        all
    }

    /// As [`Ranges::translate`], compared this way.
    ///
    /// # Errors
    /// [`Miss`] when not all of the window is in one range.
    pub fn translate(self, ranges: &Ranges, addr: u64, len: usize) -> Result<u64, Miss> {
        match self.0 {
            Way::Portable(lanes) => ranges.find(lanes, addr, len),
            #[cfg(target_arch = "x86_64")]
            Way::Avx2(lanes) => ranges.find(lanes, addr, len),
            #[cfg(target_arch = "x86_64")]
            Way::Avx512(lanes) => ranges.find(lanes, addr, len),
        }
    }
}

#[cfg(test)]
mod tests;
