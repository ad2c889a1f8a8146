//! The lock word of a tree: who may write, and whether anything was written meanwhile.
//!
//! The word is even while the tree is free and odd while somebody holds it. Taking and giving back each add one, so it is the
//! version of the tree as well. Both happen by compare-and-swap, which is atomic against every other access (PROTOCOL 7.16).

use super::BTree;
use crate::{Client, Error};

/// Of the lock word in the header.
const LOCK: u64 = 16;

impl BTree {
    /// Takes the lock if it is free; false when somebody holds it. Nobody waits in here: how long to wait is the caller's matter.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    ///
    /// # Panics
    /// When this handle holds the lock already.
    pub fn try_lock(&mut self, client: &mut Client) -> Result<bool, Error> {
        assert!(self.held.is_none(), "the lock is held by this handle already");
        let word = self.version(client)?;
        if word % 2 == 1 {
            return Ok(false);
        }
        let taken = client.compare_swap(self.lock_word(), word, word + 1)? == word;
        self.held = taken.then_some(word + 1);
        Ok(taken)
    }

    /// Gives the lock back; false when it was broken meanwhile ([`BTree::break_lock`]), so that others may have written.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer; the lock then counts as held, and this can be called again.
    ///
    /// # Panics
    /// When this handle does not hold the lock.
    pub fn unlock(&mut self, client: &mut Client) -> Result<bool, Error> {
        let held = self.held.expect("only who holds the lock gives it back");
        let intact = client.compare_swap(self.lock_word(), held, held.wrapping_add(1))? == held;
        self.held = None;
        Ok(intact)
    }

    /// Frees a lock whose holder is known to be gone. `seen` is the odd word that the holder left; false when it changed meanwhile.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn break_lock(&mut self, client: &mut Client, seen: u64) -> Result<bool, Error> {
        Ok(seen % 2 == 1 && client.compare_swap(self.lock_word(), seen, seen.wrapping_add(1))? == seen)
    }

    /// The lock word. What was read between two equal even answers was not written by a holder of the lock meanwhile.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn version(&self, client: &mut Client) -> Result<u64, Error> {
        let mut word = [0; 8];
        client.read(self.lock_word(), &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    const fn lock_word(&self) -> farmem_wire::VirtAddr {
        farmem_wire::VirtAddr(self.header.at.0 + LOCK)
    }
}
