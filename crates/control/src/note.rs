//! Notes of the control plane for its observer.

use crate::record::Role;
use farmem_wire::Status;

/// An event that serves as trace line, metric and coverage mark.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Note {
    /// A frame was dropped because it was not an expected answer.
    Dropped(DropReason),
    /// A batch was sent again.
    Retransmitted(Role),
    /// A role did not answer for long. No change waits for it any more.
    Silent(Role),
    /// A silent role answered.
    Back(Role),
    /// A role refused an update.
    Refused(Role, Status),
    /// A role refused a required update or missed too much, and must rejoin.
    MustRejoin(Role),
    /// A change was rolled back.
    TakenBack,
    /// A request was restarted because a role it needs joined meanwhile.
    BegunAnew,
    /// A request waits for another request about the same object.
    Waits,
    /// The lease of this host surely ended, or the host left.
    Fenced(u16),
    /// A host was not heard of for the length of its rack lease and is removed from the rack.
    Lapsed(u16),
    /// A node was swept, wholly or for a region.
    Swept,
    /// A migration entered its next step.
    Advanced,
    /// A migration was abandoned.
    GivenUp,
    /// A region is free again.
    ResetEnded,
    /// The listing of the directory is complete.
    Listed,
    /// A line cannot be kept: changes are refused from now on.
    Stalled,
    /// The switch refused an image.
    SoftRefused,
    /// Lines are kept again.
    KeepsAgain,
    /// The log was rewritten in its shortest form.
    Shortened,
    /// A load or a save of a node ended.
    FileEnded,
    /// A non-durable allocation was freed because its domain has no user.
    Reclaimed,
    /// So many joins of the last minute did not prove their addresses (PROTOCOL 8.76).
    Unproven(u64),
    /// A domain without users and without resources was removed.
    DomainGone(u32),
}

/// The reason for which a frame was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// The frame is from a port that gets no updates.
    Port,
    /// The frame or its message is invalid.
    Malformed,
    /// The frame is for another endpoint, or has another key.
    Endpoint,
    /// The message is no answer to updates.
    Kind,
    /// The answer is to a batch that is not outstanding: late, repeated, or of an earlier join.
    Stale,
    /// The log does not accept the answer now. The batch is sent again, and answered again.
    NotKept,
}
