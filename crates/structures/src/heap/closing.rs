//! Destruction of a heap, beside programs that open it at the same moment.
//!
//! Key function: [`Heap::shut`]. The destroying program first *closes* the heap: it writes its slot and
//! generation into the epoch word. Then it reads the members' words again, and if no other member is present
//! it marks the heap *destroyed*. Only then is memory freed. All three steps are compare-and-swaps of one
//! word, the epoch word, so none is lost:
//!
//! - A *joining program* takes a slot and then reads the epoch word. If the heap is closed, the program
//!   reopens it and reads again. If the heap is destroyed, the program gives the slot back. A program that
//!   has read an open word is a member. If that read came before the close, the slot was taken before the
//!   closer's second look, which finds it. If it came later, some program has reopened the heap, and the
//!   closer's last compare-and-swap fails: its expected word holds the closer's slot and generation, which
//!   never close twice. So no program has a destroyed heap open.
//! - An *epoch advance* compares with the word as it was read. With an open word, either the heap was not
//!   closed since, or the compare-and-swap fails. With a closed word, the advancing program is or was a
//!   member. The heap is open in the next epoch, as if it had been reopened first. Opening and closing keep
//!   the epoch, so no epoch goes back or is lost.
//! - A *creating program* writes a first epoch over 0. No closed word is 0, so a late creator does not reopen
//!   a destroyed heap.
//! - A *closer that dies*, or that receives no reply, leaves a closed word. Members ignore it, and the next
//!   program that joins or advances the epoch removes it.
//! - An *evicted closer* finds its word gone or the heap reopened: the evicting members were present, and
//!   programs that joined after the close have reopened the heap.

use super::Heap;
use super::epoch::EpochWord;
use super::layout::epoch_at;
use super::member::{JOIN_TRIES, Member};
use farmem_client::{Error, FarMemory};

impl Member {
    /// Closes the heap in its present epoch. Returns the word that it wrote.
    fn close(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<EpochWord, Error> {
        for _ in 0..JOIN_TRIES {
            let seen = self.standing(memory)?.word;
            let closing = seen.closing(self.slot, self.generation());
            match memory.compare_swap(epoch_at(self.root.base), seen.word(), closing.word()) {
                Ok(was) if was == seen.word() => return Ok(closing),
                Ok(_) => {}
                Err(error) => {
                    // The write may have been executed.
                    let _may_stay_closed = self.reopen(memory, closing);
                    return Err(error);
                }
            }
        }
        Err(Error::Contended { what: "the epoch of the heap".into(), tries: JOIN_TRIES })
    }

    /// Reopens a heap that this word closed, unless it was reopened or destroyed meanwhile. Returns the
    /// previous word.
    pub(super) fn reopen(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        closing: EpochWord,
    ) -> Result<u64, Error> {
        let open = EpochWord::open(closing.epoch());
        memory.compare_swap(epoch_at(self.root.base), closing.word(), open.word())
    }

    /// Marks the heap that this member closed as destroyed. Returns false when others have reopened it.
    fn end(&self, memory: &mut (impl FarMemory + ?Sized), closing: EpochWord) -> Result<bool, Error> {
        let destroyed = closing.destroyed().word();
        match memory.compare_swap(epoch_at(self.root.base), closing.word(), destroyed) {
            Ok(was) => Ok(was == closing.word()),
            // The write may have been executed; the next reply tells.
            Err(error) => match self.reopen(memory, closing) {
                Ok(was) if was == destroyed => Ok(true),
                _ => Err(error),
            },
        }
    }
}

impl Heap {
    /// Prevents all programs from opening the heap from now on, if this one is the only member, and reads its
    /// rows.
    ///
    /// # Errors
    /// [`Error::Locked`] when another program has the heap open; [`Error`] when far memory does not answer.
    /// The heap is then open as before: at once, or when the next program opens it. If only the reply to the
    /// very last write is lost, and no further reply comes, the heap may be destroyed and not freed.
    pub(super) fn shut(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.check_exclusive(memory)?;
        let closing = self.member.close(memory)?;
        let ended = self.shut_closed(memory, closing);
        if ended.is_err() {
            // The last write may have been executed without a reply. Only this member writes this word.
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
        self.check_no_other_program(memory)?;
        self.read_rows(memory)?;
        if self.member.end(memory, closing)? {
            return Ok(());
        }
        Err(self.held_by("a program that has opened it meanwhile".into()))
    }
}

#[cfg(test)]
mod tests;
