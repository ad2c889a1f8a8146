//! The receiving end of the control plane's table updates: batches in order, each applied once, the last one answered again.
//!
//! Key type: [`Inbox`]. It keeps the order, not the tables: the role applies the updates.

use alloc::vec::Vec;
use farmem_machine::Halt;
use farmem_wire::Status;
use farmem_wire::message::Updates;

/// The order of batches (PROTOCOL 5.9 to 5.11).
#[derive(Clone, Debug, Default)]
pub struct Inbox {
    /// The last batch that was applied, 0 before the first, with its updates as they came, at most [`Updates::BYTES_MAX`] bytes; and its answer.
    last: u64,
    updates: Vec<u8>,
    status: Status,
    refused: u16,
    halt: Option<Halt>,
}

/// What to do with a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is the next one: apply it, then [`Inbox::applied`], then answer.
    Apply,
    /// It is the last one again: answer this.
    Again(Status, u16),
    /// Older or ahead: no answer.
    Ignore,
    /// The last one's number with other updates: two senders have the control plane's keys, and what was applied need not be its own. No answer:
    /// the role has stopped ([`Inbox::halted`]).
    Halt,
}

impl Inbox {
    /// What to do with a batch. The first is number 1.
    pub fn turn(&mut self, batch: &Updates<'_>) -> Turn {
        if self.halt.is_some() {
            Turn::Halt
        } else if self.last.checked_add(1) == Some(batch.seq) {
            Turn::Apply
        } else if batch.seq != self.last || batch.seq == 0 {
            Turn::Ignore
        } else if batch.bytes() == self.updates {
            Turn::Again(self.status, self.refused)
        } else {
            self.halt = Some(Halt::BatchChanged { seq: batch.seq });
            Turn::Halt
        }
    }

    /// The batch was applied up to `refused`, or wholly when the status is `Ok`.
    ///
    /// # Panics
    /// When [`Inbox::turn`] did not say [`Turn::Apply`].
    pub fn applied(&mut self, batch: &Updates<'_>, status: Status, refused: u16) {
        assert_eq!(self.turn(batch), Turn::Apply, "batches are applied in order");
        self.last = batch.seq;
        self.updates.clear();
        self.updates.extend_from_slice(batch.bytes());
        (self.status, self.refused) = (status, refused);
    }

    /// Why the role has stopped for good, once it has (PROTOCOL 5.11).
    #[must_use]
    pub const fn halted(&self) -> Option<Halt> {
        self.halt
    }
}
