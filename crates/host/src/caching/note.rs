//! What a caching host counts.

use crate::agent::Outcome;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheNote {
    /// At the host.
    Host(crate::Note),
    /// At the agent: what came, and what it was to it.
    Page(Trigger, Outcome),
    /// A recall was put off for a fresh page.
    PutOff,
    /// A page message that could not be read, from a port that sends none, or for others.
    NotForUs,
    /// A fault outside of all ranges, or a range that overlaps one or is one too many.
    OutOfRange,
}

/// What came to the agent.
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
