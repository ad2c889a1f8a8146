//! The lock word of a structure: it admits one writer, and shows whether a write happened meanwhile.
//!
//! Key type: [`LockWord`]. The word is even while the structure is free and odd while a client holds the
//! lock. Each acquisition and each release adds one, so the word is also the structure's version. Both use
//! compare-and-swap, which is atomic with respect to every other access (PROTOCOL 7.16). PULSE leaves
//! synchronization to the host (PULSE 2.3), so memory nodes do not read this word.

use crate::error::Error;
use crate::far_memory::FarMemory;
use farmem_wire::VirtAddr;

/// A program's handle of a lock word in far memory; structures return it from their `lock()`.
#[derive(Debug)]
pub struct LockWord {
    at: VirtAddr,
    /// The word's value while this handle holds the lock.
    held: Option<u64>,
}

impl LockWord {
    /// Creates a handle of the word at `at`, which does not hold the lock.
    #[must_use]
    pub const fn new(at: VirtAddr) -> Self {
        Self { at, held: None }
    }

    /// Acquires the lock if it is free; returns false if a client holds it. This method does not wait: the
    /// caller decides how long to wait.
    ///
    /// # Errors
    /// [`Error`] if far memory does not answer.
    ///
    /// # Panics
    /// Panics if this handle already holds the lock.
    pub fn try_lock(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<bool, Error> {
        assert!(self.held.is_none(), "the lock is held by this handle already");
        let word = self.version(memory)?;
        if word % 2 == 1 {
            return Ok(false);
        }
        let taken = memory.compare_swap(self.at, word, word + 1)? == word;
        self.held = taken.then_some(word + 1);
        Ok(taken)
    }

    /// Releases the lock. Returns false if the lock was broken meanwhile ([`LockWord::break_lock`]), so that
    /// other clients may have written.
    ///
    /// # Errors
    /// [`Error`] if far memory does not answer. This handle then still holds the lock, and the caller can
    /// repeat the call.
    ///
    /// # Panics
    /// Panics if this handle does not hold the lock.
    pub fn unlock(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<bool, Error> {
        let held = self.held.expect("only the holder of the lock gives it back");
        let intact = memory.compare_swap(self.at, held, held.wrapping_add(1))? == held;
        self.held = None;
        Ok(intact)
    }

    /// Releases a lock whose holder is known to be dead. `seen` is the odd word that the holder left. Returns
    /// false if the word has changed meanwhile.
    ///
    /// # Errors
    /// [`Error`] if far memory does not answer.
    pub fn break_lock(&mut self, memory: &mut (impl FarMemory + ?Sized), seen: u64) -> Result<bool, Error> {
        Ok(seen % 2 == 1 && memory.compare_swap(self.at, seen, seen.wrapping_add(1))? == seen)
    }

    /// Returns the word. If two calls return the same even word, no holder of the lock wrote between them.
    ///
    /// # Errors
    /// [`Error`] if far memory does not answer.
    pub fn version(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<u64, Error> {
        let mut word = [0; 8];
        memory.read(self.at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}
