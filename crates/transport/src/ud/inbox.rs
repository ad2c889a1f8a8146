//! The receiving end of the control plane's table updates: batches in order, each applied once, the last one answered again.
//!
//! Key type: [`Inbox`]. It keeps the order, not the tables: applying is the role's.

use farmem_wire::Status;

/// The order of batches (PROTOCOL 5.9, 5.10).
#[derive(Debug, Default)]
pub struct Inbox {
    /// The last batch that was applied, 0 before the first, and its answer.
    last: u64,
    status: Status,
    refused: u16,
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
}

impl Inbox {
    /// What to do with batch `seq`. The first is 1.
    #[must_use]
    pub fn turn(&self, seq: u64) -> Turn {
        if self.last.checked_add(1) == Some(seq) {
            Turn::Apply
        } else if seq == self.last && seq > 0 {
            Turn::Again(self.status, self.refused)
        } else {
            Turn::Ignore
        }
    }

    /// Batch `seq` was applied up to `refused`, or wholly when the status is `Ok`.
    ///
    /// # Panics
    /// When [`Inbox::turn`] did not say [`Turn::Apply`].
    pub fn applied(&mut self, seq: u64, status: Status, refused: u16) {
        assert_eq!(self.turn(seq), Turn::Apply, "batches are applied in order");
        *self = Self { last: seq, status, refused };
    }
}
