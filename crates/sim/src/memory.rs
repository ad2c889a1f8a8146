//! Plain memory behind a responder: the second implementer of `transport::Memory`, and the model that
//! checkers compare with.

use farmem_transport::{Access, AccessError, Memory};
use farmem_wire::{Domain, Perm, VirtAddr};

/// A range of bytes of one domain, whose last part is read-only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelMemory {
    domain: Domain,
    base: VirtAddr,
    bytes: Vec<u8>,
    writable: usize,
}

impl ModelMemory {
    /// Returns `len` zero bytes at `base`, of which the first `writable` are writable.
    ///
    /// # Panics
    ///
    /// If `writable` exceeds `len`.
    #[must_use]
    pub fn new(domain: Domain, base: VirtAddr, len: usize, writable: usize) -> Self {
        assert!(writable <= len, "only what is there can be written");
        Self { domain, base, bytes: vec![0; len], writable }
    }

    /// Returns all bytes, from the base on.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn span(&self, addr: VirtAddr, len: usize) -> std::ops::Range<usize> {
        let start = usize::try_from(addr.0 - self.base.0).expect("checked: inside");
        start..start + len
    }

    fn word(&mut self, addr: VirtAddr) -> (u64, &mut [u8]) {
        let span = self.span(addr, 8);
        let bytes = &mut self.bytes[span];
        let old = u64::from_le_bytes((&*bytes).try_into().expect("eight bytes"));
        (old, bytes)
    }
}

impl Memory for ModelMemory {
    fn check(&self, access: &Access) -> Result<(), AccessError> {
        let Some(start) = access.addr.0.checked_sub(self.base.0).filter(|&at| at < self.bytes.len() as u64)
        else {
            return Err(AccessError::NotMapped);
        };
        if access.domain != self.domain {
            return Err(AccessError::NoPermission);
        }
        let Some(end) =
            start.checked_add(u64::from(access.len)).filter(|&end| end <= self.bytes.len() as u64)
        else {
            return Err(AccessError::OutOfBounds);
        };
        if access.perm == Perm::ReadWrite && end > self.writable as u64 {
            return Err(AccessError::NoPermission);
        }
        Ok(())
    }

    fn read(&self, addr: VirtAddr, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[self.span(addr, len as usize)]);
    }

    fn load(&self, addr: VirtAddr, window: &mut [u8]) {
        window.copy_from_slice(&self.bytes[self.span(addr, window.len())]);
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) {
        let span = self.span(addr, data.len());
        self.bytes[span].copy_from_slice(data);
    }

    fn cmp_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> u64 {
        let (old, bytes) = self.word(addr);
        if old == compare {
            bytes.copy_from_slice(&swap.to_le_bytes());
        }
        old
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> u64 {
        let (old, bytes) = self.word(addr);
        bytes.copy_from_slice(&old.wrapping_add(add).to_le_bytes());
        old
    }
}

#[cfg(test)]
mod tests {
    use super::ModelMemory;
    use farmem_transport::{Access, AccessError, Memory};
    use farmem_wire::{Domain, Perm, VirtAddr};

    const BASE: u64 = 0x1000;

    /// Each refusal has its own reason, and the range edges are exact.
    #[test]
    fn refusals_are_typed() {
        let memory = ModelMemory::new(Domain(7), VirtAddr(BASE), 64, 32);
        let ask = |domain, addr, len, perm| {
            memory.check(&Access { domain: Domain(domain), addr: VirtAddr(addr), len, perm })
        };
        assert_eq!(ask(7, BASE, 64, Perm::Read), Ok(()));
        assert_eq!(ask(7, BASE, 32, Perm::ReadWrite), Ok(()));
        assert_eq!(ask(7, BASE, 33, Perm::ReadWrite), Err(AccessError::NoPermission));
        assert_eq!(ask(8, BASE, 1, Perm::Read), Err(AccessError::NoPermission));
        assert_eq!(ask(7, BASE - 1, 1, Perm::Read), Err(AccessError::NotMapped));
        assert_eq!(ask(7, BASE + 64, 0, Perm::Read), Err(AccessError::NotMapped));
        assert_eq!(ask(7, BASE + 63, 2, Perm::Read), Err(AccessError::OutOfBounds));
        assert_eq!(ask(7, BASE + 63, u32::MAX, Perm::Read), Err(AccessError::OutOfBounds));
    }

    /// Atomics work on little-endian words and return the old value.
    #[test]
    fn atomics_answer_the_old_value() {
        let mut memory = ModelMemory::new(Domain(7), VirtAddr(BASE), 64, 64);
        assert_eq!(memory.fetch_add(VirtAddr(BASE + 8), 5), 0);
        assert_eq!(memory.cmp_swap(VirtAddr(BASE + 8), 4, 9), 5);
        assert_eq!(memory.cmp_swap(VirtAddr(BASE + 8), 5, u64::MAX), 5);
        assert_eq!(memory.fetch_add(VirtAddr(BASE + 8), 2), u64::MAX);
        assert_eq!(memory.bytes()[8..16], [1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
