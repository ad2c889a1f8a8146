//! Readers and writers of big-endian fields.

use crate::WireError;
use alloc::vec::Vec;

/// A cursor over untrusted bytes.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    what: &'static str,
    whole: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, whole: bytes.len(), rest: bytes }
    }

    /// Creates a cursor over `rest`, behind the part of `whole` that was read already.
    #[inline(always)]
    pub(crate) fn behind(what: &'static str, whole: &'a [u8], rest: &'a [u8]) -> Self {
        Self { what, whole: whole.len(), rest }
    }

    #[inline]
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let Some((head, rest)) = self.rest.split_at_checked(n) else { return Err(self.short(n)) };
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.fixed().copied()
    }

    /// Takes a fixed part; [`be16`] and the other functions read its fields in place.
    #[inline]
    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<&'a [u8; N], WireError> {
        let Some((head, rest)) = self.rest.split_first_chunk() else { return Err(self.short(N)) };
        self.rest = rest;
        Ok(head)
    }

    #[cold]
    fn short(&self, n: usize) -> WireError {
        let need = (self.whole - self.rest.len()).saturating_add(n);
        WireError::Short { what: self.what, need, have: self.whole }
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Reads `N` bytes that must be zero.
    #[inline]
    pub(crate) fn zero<const N: usize>(&mut self, what: &'static str) -> Result<(), WireError> {
        if self.array()? == [0; N] { Ok(()) } else { Err(WireError::Reserved { what }) }
    }

    #[inline]
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }

    /// Checks that no bytes remain.
    #[inline]
    pub(crate) fn end(self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(WireError::Long { what: self.what, most: self.whole - self.rest.len(), have: self.whole })
    }
}

/// Returns the big-endian number at `at` of a fixed part. If `at` is a constant, the compiler removes the
/// bounds check.
#[inline(always)]
pub(crate) fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes(field(bytes, at))
}

/// Returns the big-endian number at `at`, as [`be16`].
#[inline(always)]
pub(crate) fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes(field(bytes, at))
}

/// Returns the big-endian number at `at`, as [`be16`].
#[inline(always)]
pub(crate) fn be64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from_be_bytes(field(bytes, at))
}

/// Returns the `M` bytes at `at`.
#[inline(always)]
pub(crate) fn field<const N: usize, const M: usize>(bytes: &[u8; N], at: usize) -> [u8; M] {
    *bytes[at..].first_chunk().expect("a field is inside of its fixed part")
}

/// Appends big-endian fields.
pub(crate) trait Put {
    fn put_u8(&mut self, v: u8);
    fn put_u16(&mut self, v: u16);
    fn put_u32(&mut self, v: u32);
    fn put_u64(&mut self, v: u64);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, v: u8) {
        self.push(v);
    }
    fn put_u16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_be_bytes());
    }
    fn put_u32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_be_bytes());
    }
    fn put_u64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_be_bytes());
    }
}
