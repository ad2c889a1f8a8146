//! How a heap is destroyed, beside programs that open it at the same moment.
//!
//! Key: [`Heap::shut`]. Who destroys a heap *closes* it first: the word of the epoch says so, with its slot and generation. Then it looks at the members' words again, and if it is alone it says
//! that the heap *is destroyed*. Only after that is anything freed. All three are compare-and-swaps of one word, the epoch's, so nothing that is said there is lost:
//!
//! - *Who joins* takes a slot, and then reads the word. Closed, it opens the heap again, and reads anew; destroyed, it gives the slot back. It is a member when it has read an open one. If
//!   that was before the heap was closed, its slot was taken before the second look, which finds it. If it was later, somebody has opened the heap since, and then the closer's last
//!   compare-and-swap fails: the word that it compares has its slot and generation, which are never closed by twice. So no program has a heap open that is destroyed.
//! - *What moves the epoch on* compares with the word as it read it. An open one: then the heap was not closed since, or the compare-and-swap fails. A closed one: who moves the epoch on is a
//!   member, or was, and the heap is open in the next epoch, as if it had been opened again first. Opening and closing keep the epoch. So none goes back, and none is lost.
//! - *Who makes a heap* writes a first epoch where 0 is. No closed word is 0: a maker that comes late does not open a heap that was destroyed.
//! - *A closer that dies*, or to whom far memory does not answer, leaves a closed word. It means nothing to members, and the next one that joins, or moves the epoch on, takes it away.
//! - *A closer that was evicted* finds its own word gone, or the heap opened: others were there, to evict it, and who joined after it had closed has opened.

use super::Heap;
use super::epoch::EpochWord;
use super::layout::epoch_at;
use super::member::{JOIN_TRIES, Member};
use farmem_client::{Error, FarMemory};

impl Member {
    /// Closes the heap, in the epoch in which it is; the word that says so.
    fn close(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<EpochWord, Error> {
        for _ in 0..JOIN_TRIES {
            let seen = self.standing(memory)?.word;
            let closing = seen.closing(self.slot, self.generation());
            match memory.compare_swap(epoch_at(self.root.base), seen.word(), closing.word()) {
                Ok(was) if was == seen.word() => return Ok(closing),
                Ok(_) => {}
                Err(error) => {
                    // It may have been carried out.
                    let _may_stay_closed = self.reopen(memory, closing);
                    return Err(error);
                }
            }
        }
        Err(Error::Contended { what: "the epoch of the heap".into(), tries: JOIN_TRIES })
    }

    /// Opens a heap that is closed by this word, unless it was opened or destroyed meanwhile; what the word was.
    pub(super) fn reopen(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        closing: EpochWord,
    ) -> Result<u64, Error> {
        let open = EpochWord::open(closing.epoch());
        memory.compare_swap(epoch_at(self.root.base), closing.word(), open.word())
    }

    /// Says that the heap which it has closed is destroyed; false when others have opened it.
    fn end(&self, memory: &mut (impl FarMemory + ?Sized), closing: EpochWord) -> Result<bool, Error> {
        let destroyed = closing.destroyed().word();
        match memory.compare_swap(epoch_at(self.root.base), closing.word(), destroyed) {
            Ok(was) => Ok(was == closing.word()),
            // It may have been carried out, and the next answer tells.
            Err(error) => match self.reopen(memory, closing) {
                Ok(was) if was == destroyed => Ok(true),
                _ => Err(error),
            },
        }
    }
}

impl Heap {
    /// Lets no program open the heap from now on, if this one is alone in it; its rows are read then.
    ///
    /// # Errors
    /// [`Error::Locked`] when another program has it open; [`Error`] when far memory does not answer. Then it is open as before: at once, or, where far memory did not take that, when the next
    /// program opens it. Only where the answer to the very last word is lost, and no further one comes, it may be destroyed and not freed.
    pub(super) fn shut(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.alone(memory)?;
        let closing = self.member.close(memory)?;
        let ended = self.shut_closed(memory, closing);
        if ended.is_err() {
            // Its last word may have been carried out without an answer: only it writes this one.
            return match self.member.reopen(memory, closing) {
                Ok(was) if was == closing.destroyed().word() => Ok(()),
                _ => ended,
            };
        }
        ended
    }

    fn shut_closed(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        closing: EpochWord,
    ) -> Result<(), Error> {
        self.look_for_others(memory)?;
        self.read_rows(memory)?;
        if self.member.end(memory, closing)? {
            return Ok(());
        }
        Err(self.held_by("a program that has opened it meanwhile".into()))
    }
}

#[cfg(test)]
mod tests;
