//! Resets. All hosts give up a region, the pages that a dead host had of it are marked lost, and the region
//! begins anew (MIND 4.4).
//!
//! One mechanism serves a stuck transaction, a host that died, a restarted switch, and a directory slot that
//! is needed for another region:
//!
//! ```text
//! control                     switch            hosts            nodes
//!    |------ reset, live hosts -->|---- recall s --->|                |
//!    |------ repeat ------------->|---- recall s --->|-- write back ->|
//!    |                            |<--- ack s -------|                |
//!    |<----- report s ------------|                  |                |
//!    |------ sweep s, fenced hosts --------------------------------->|
//!    |<-------------------------------------------------- swept -----|
//!    |------ end s -------------->|  the region is Invalid
//! ```
//!
//! The key type is [`Reset`], for one region. A host that does not answer is fenced first: the switch drops
//! everything it sends and counts its acknowledgement as given.
//!
//! Rules: PROTOCOL 12.32 to 12.36.

#[cfg(test)]
mod tests;

use farmem_wire::message::{HostSet, Region, Seq};

/// Input of a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Begin, or begin anew because the switch restarted or a host that was asked has been fenced.
    Begin,
    /// From the switch: no live host has anything of the region from before this number.
    Report(Seq),
    /// One of the region's memory nodes is swept under this number.
    Swept(Seq),
    /// The timer fired.
    Timer,
}

/// Instruction of a reset to others. Orders reach their role once and in order, as all table updates do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// To the switch: take the region back from all live hosts.
    Reset(Region),
    /// To the switch: repeat the request to the hosts that did not answer.
    Repeat(Region),
    /// To each of the region's memory nodes: mark what these hosts had as lost, and drop what they sent
    /// before this number.
    Sweep(Region, Seq, HostSet),
    /// To the switch: the nodes are swept, and the region is free.
    End(Region, Seq),
}

/// Progress of a reset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// Hosts have still to give up the region.
    Recalling,
    /// This many nodes have still to be swept under this number.
    Sweeping(Seq, u16),
    /// The reset is over.
    Ended(Seq),
}

/// The reset of one region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reset {
    region: Region,
    /// Number of memory nodes that have pages of the region.
    nodes: u16,
    stage: Stage,
}

impl Reset {
    /// Creates a reset of a region with pages on this many memory nodes.
    #[must_use]
    pub const fn new(region: Region, nodes: u16) -> Self {
        Self { region, nodes, stage: Stage::Recalling }
    }

    /// Returns the region.
    #[must_use]
    pub const fn region(&self) -> Region {
        self.region
    }

    /// Returns the progress of the reset.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// Handles one event and returns the order that follows. `fenced` is the set of hosts that are fenced
    /// now.
    #[must_use]
    pub fn step(&mut self, event: Event, fenced: HostSet) -> Option<Order> {
        let region = self.region;
        match (self.stage, event) {
            (_, Event::Begin) => {
                self.stage = Stage::Recalling;
                Some(Order::Reset(region))
            }
            (Stage::Recalling, Event::Timer) => Some(Order::Repeat(region)),
            (Stage::Recalling, Event::Report(seq)) => Some(self.sweep(seq, fenced)),
            // The switch began anew meanwhile, so the sweep under the older number is not enough.
            (Stage::Sweeping(old, _), Event::Report(seq)) if seq > old => Some(self.sweep(seq, fenced)),
            (Stage::Sweeping(seq, left), Event::Swept(swept)) if swept == seq => {
                self.stage = if left > 1 { Stage::Sweeping(seq, left - 1) } else { Stage::Ended(seq) };
                (left <= 1).then_some(Order::End(region, seq))
            }
            _ => None,
        }
    }

    fn sweep(&mut self, seq: Seq, fenced: HostSet) -> Order {
        self.stage = Stage::Sweeping(seq, self.nodes);
        Order::Sweep(self.region, seq, fenced)
    }
}
