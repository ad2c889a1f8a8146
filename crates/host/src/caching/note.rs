//! Events that a caching host counts.

use crate::agent::Outcome;

/// A counted event of a caching host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheNote {
    /// A note of the host role.
    Host(crate::Note),
    /// An event of the agent and its outcome.
    Page(Trigger, Outcome),
    /// A recall was deferred for a fresh page.
    Deferred,
    /// A page message was unreadable, came from a port that sends none, or is for another host.
    NotForUs,
    /// A fault was outside of all ranges, or a range overlaps another or exceeds the limit.
    OutOfRange,
}

/// The kind of an agent event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(missing_docs, reason = "named as the agent's events")]
pub enum Trigger {
    Fault,
    Evict,
    Data,
    Grant,
    Recall,
    WriteBackAck,
    Refusal,
    Retry,
    RetryWriteBack,
    Flush,
    LeaseEnded,
}
