//! What the control plane tells its observer.

use crate::record::Role;
use farmem_wire::Status;

/// What happened: trace line, metric and coverage mark in one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Note {
    /// A frame was not an answer this waits for.
    Dropped(DropReason),
    /// A batch was sent again.
    Retransmitted(Role),
    /// A role did not answer for long; no change waits for it any more.
    Silent(Role),
    /// A silent role answered.
    Back(Role),
    /// A role refused an update.
    Refused(Role, Status),
    /// A role refused what it must know, or missed too much: it must join again.
    Gone(Role),
    /// A change was taken back.
    TakenBack,
    /// A request is begun anew: a role it needs joined meanwhile.
    BegunAnew,
    /// A request waits for another that is about the same thing.
    Waits,
    /// The lease of this host surely ended, or it left.
    Fenced(u16),
    /// A host was not heard of for the length of its lease in the rack: it is taken out.
    Lapsed(u16),
    /// A node was swept, wholly or of a region.
    Swept,
    /// A migration goes on with its next step.
    Advanced,
    /// A migration is given up.
    GivenUp,
    /// A region is free again.
    ResetEnded,
    /// The directory was listed to its end.
    Listed,
    /// A line cannot be kept: changes are refused from now on.
    Stalled,
    /// The switch refused an image.
    SoftRefused,
    /// Lines are kept again.
    KeepsAgain,
    /// The log was written anew, as short as it can be.
    Shortened,
    /// A load or a save of a node is over.
    FileEnded,
    /// An allocation that was not to stay is freed: its domain has no user.
    Reclaimed,
    /// A domain without users and without anything of its own is gone.
    DomainGone(u32),
}

/// Why a frame was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// From a port that gets no updates.
    Port,
    /// Not a valid frame or message.
    Malformed,
    /// Not to this endpoint, or with another key.
    Endpoint,
    /// A message, but no answer to updates.
    Kind,
    /// An answer to a batch that is not outstanding: late, repeated, or of an earlier join.
    Stale,
    /// An answer that the log does not take now: the batch is sent again, and answered again.
    NotKept,
}
