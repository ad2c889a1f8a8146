//! The receiver of the control plane's table updates: applies batches in order, each once, and repeats the
//! last response.
//!
//! Key type: [`Inbox`]. It tracks the order only; the role applies the updates.

use alloc::vec::Vec;
use farmem_machine::Halt;
use farmem_wire::Status;
use farmem_wire::message::Updates;

/// The order of batches (PROTOCOL 5.9 to 5.11).
#[derive(Clone, Debug, Default)]
pub struct Inbox {
    /// Number of the last applied batch, 0 before the first; its updates as received, at most
    /// [`Updates::BYTES_MAX`] bytes; and its response.
    last: u64,
    updates: Vec<u8>,
    status: Status,
    refused: u16,
    halt: Option<Halt>,
}

/// The receiver's action for a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchAction {
    /// The batch is the next one. Apply it, call [`Inbox::applied`], then respond.
    Apply,
    /// The batch is the last one again. Repeat this response.
    Again(Status, u16),
    /// The batch is older or ahead. Send no response.
    Ignore,
    /// The batch has the last number and other updates: two senders have the control plane's keys, so the
    /// applied batch may be forged. Send no response: the role has stopped ([`Inbox::halted`]).
    Halt,
}

impl Inbox {
    /// Decides about a batch. The first batch has number 1.
    pub fn decide(&mut self, batch: &Updates<'_>) -> BatchAction {
        if self.halt.is_some() {
            BatchAction::Halt
        } else if self.last.checked_add(1) == Some(batch.seq) {
            BatchAction::Apply
        } else if batch.seq != self.last || batch.seq == 0 {
            BatchAction::Ignore
        } else if batch.bytes() == self.updates {
            BatchAction::Again(self.status, self.refused)
        } else {
            self.halt = Some(Halt::BatchChanged { seq: batch.seq });
            BatchAction::Halt
        }
    }

    /// Records that the batch was applied up to `refused`, or completely if the status is `Ok`.
    ///
    /// # Panics
    /// If [`Inbox::decide`] did not return [`BatchAction::Apply`].
    pub fn applied(&mut self, batch: &Updates<'_>, status: Status, refused: u16) {
        assert_eq!(self.decide(batch), BatchAction::Apply, "batches are applied in order");
        self.last = batch.seq;
        self.updates.clear();
        self.updates.extend_from_slice(batch.bytes());
        (self.status, self.refused) = (status, refused);
    }

    /// Returns the reason why the role has stopped for good, if it has (PROTOCOL 5.11).
    #[must_use]
    pub const fn halted(&self) -> Option<Halt> {
        self.halt
    }
}
