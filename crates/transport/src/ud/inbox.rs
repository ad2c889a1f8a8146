//! The receiving end of the control plane's table updates: batches in order, each applied once, an older one answered again.
use farmem_wire::Status;

/// The order of batches.
#[derive(Debug, Default)]
pub struct Inbox {}

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

#[expect(unused_variables, clippy::unimplemented, reason = "being written")]
impl Inbox {
    /// What to do with batch `seq`. The first is 1.
    pub fn turn(&self, seq: u64) -> Turn { unimplemented!() }
    /// Batch `seq` was applied up to `refused`, or wholly when the status is `Ok`.
    pub fn applied(&mut self, seq: u64, status: Status, refused: u16) { unimplemented!() }
}
