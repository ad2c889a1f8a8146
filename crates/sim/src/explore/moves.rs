//! The possible next events.

use super::message::{Message, access, host, page, region};
use farmem_wire::HostId;
use farmem_wire::message::{Access, Page, Region};
use std::fmt;

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Move {
    /// A message arrives.
    Deliver(Message),
    /// A message arrives, and stays in flight to arrive once more.
    DeliverCopy(Message),
    /// A write-back passes the switch.
    Pass(Message),
    /// A message is lost.
    Lose(Message),
    /// A thread needs a page.
    Fault(HostId, Page, Access),
    /// A host evicts a page.
    Evict(HostId, Page),
    /// The timer of a request fires.
    Retry(HostId, Page),
    /// The timer of a write-back fires.
    RetryWriteBack(HostId, Page),
    /// A traversal starts.
    Visit(Page),
    /// The timer of a traversal fires.
    RetryVisit(Page),
    /// The timer of a reset fires.
    Repeat(Region),
    /// The control plane sweeps the node.
    Sweep(Region),
    /// A host dies.
    Crash(HostId),
    /// A dead host's lease ends.
    Fence(HostId),
    /// The switch crashes and restarts without a directory.
    Restart,
    /// A reset is requested.
    Reset(Region),
    /// A region is split.
    Split(Region),
    /// Both regions are merged.
    Merge,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Deliver(message) => write!(f, "{message}"),
            Self::DeliverCopy(message) => write!(f, "{message} (and once more later)"),
            Self::Pass(message) => write!(f, "{message} (goes by the switch)"),
            Self::Lose(message) => write!(f, "lost: {message}"),
            Self::Fault(id, at, want) => write!(f, "{} faults on {} {}", host(id), page(at), access(want)),
            Self::Evict(id, at) => write!(f, "{} evicts {}", host(id), page(at)),
            Self::Retry(id, at) => write!(f, "{} asks again for {}", host(id), page(at)),
            Self::RetryWriteBack(id, at) => write!(f, "{} writes back {} again", host(id), page(at)),
            Self::Visit(at) => write!(f, "a traversal sets out for {}", page(at)),
            Self::RetryVisit(at) => write!(f, "the traversal sets out for {} again", page(at)),
            Self::Repeat(of) => write!(f, "control has {} recalled again", region(of)),
            Self::Sweep(of) => write!(f, "control sweeps {}", region(of)),
            Self::Crash(id) => write!(f, "{} dies", host(id)),
            Self::Fence(id) => write!(f, "{} is fenced", host(id)),
            Self::Restart => f.write_str("the switch is started again, its directory empty"),
            Self::Reset(of) => write!(f, "a reset of {} is asked for", region(of)),
            Self::Split(of) => write!(f, "{} is split", region(of)),
            Self::Merge => f.write_str("the regions are merged"),
        }
    }
}
