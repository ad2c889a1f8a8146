//! The lock word of a structure: it admits one writer, and shows whether anything was written meanwhile.
//!
//! Key type: [`LockWord`]. The word is even while the structure is free and odd while a client holds it. Taking and giving back each
//! add one, so it is the structure's version as well. Both happen by compare-and-swap, which is atomic against every other access
//! (PROTOCOL 7.16). PULSE leaves synchronisation to the host (PULSE 2.3): nothing at a memory node looks at this word.

use crate::error::Error;
use crate::far_memory::FarMemory;
use farmem_wire::VirtAddr;

/// A program's hold of a lock word in far memory; structures have it as their `lock()`.
#[derive(Debug)]
pub struct LockWord {
    at: VirtAddr,
    /// The word's value while this handle holds the lock.
    held: Option<u64>,
}

impl LockWord {
    /// The word at `at`; not held by this handle.
    #[must_use]
    pub const fn new(at: VirtAddr) -> Self {
        Self { at, held: None }
    }

    /// Takes the lock if it is free; false when a client holds it. It does not wait: the caller decides how long to wait.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    ///
    /// # Panics
    /// When this handle holds the lock already.
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

    /// Gives the lock back; false when it was broken meanwhile ([`LockWord::break_lock`]), so that others may have written.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer; the lock then counts as held, and this can be called again.
    ///
    /// # Panics
    /// When this handle does not hold the lock.
    pub fn unlock(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<bool, Error> {
        let held = self.held.expect("only the holder of the lock gives it back");
        let intact = memory.compare_swap(self.at, held, held.wrapping_add(1))? == held;
        self.held = None;
        Ok(intact)
    }

    /// Frees a lock whose holder is known to be gone. `seen` is the odd word that the holder left; false when it changed meanwhile.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn break_lock(&mut self, memory: &mut (impl FarMemory + ?Sized), seen: u64) -> Result<bool, Error> {
        Ok(seen % 2 == 1 && memory.compare_swap(self.at, seen, seen.wrapping_add(1))? == seen)
    }

    /// The word. What was read between two equal even answers was not written by a holder of the lock meanwhile.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn version(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<u64, Error> {
        let mut word = [0; 8];
        memory.read(self.at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}
