//! Resets: all hosts give a region up, what a dead host had of it is marked lost, and it begins anew (MIND 4.4).
//!
//! One mechanism serves a transaction that does not get on, a host that died, a switch that was started again, and a directory slot
//! that is needed for something else:
//!
//! ```text
//!   control                     switch            hosts            nodes
//!      |------ reset, who lives ->|---- recall s --->|                |
//!      |------ repeat ----------->|---- recall s --->|-- write back ->|
//!      |                          |<--- ack s -------|                |
//!      |<----- report s ----------|                  |                |
//!      |------ sweep s, who is fenced ------------------------------->|
//!      |<------------------------------------------------- swept -----|
//!      |------ end s ------------>|  the region is Invalid
//! ```
//!
//! Key type: [`Reset`], one region's. A host that does not answer is fenced first: the switch lets nothing of it pass any more,
//! and counts its acknowledgement as given.
//!
//! Rules: PROTOCOL 12.32 to 12.36.

#[cfg(test)]
mod tests;

use farmem_wire::message::{HostSet, Region, Seq};

/// What happens to a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Begin, or begin anew: the switch was started again, or a host was fenced that was asked.
    Begin,
    /// The switch: no live host has anything of the region from before this number.
    Report(Seq),
    /// One of the region's memory nodes is swept under this number.
    Swept(Seq),
    /// The timer.
    Timer,
}

/// What a reset has others do. Orders reach their role once and in order, as all table updates do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// To the switch: take the region back from all hosts that live.
    Reset(Region),
    /// To the switch: ask those again who did not answer.
    Repeat(Region),
    /// To each of the region's memory nodes: what these hosts had is lost, and what they sent before this number comes too late.
    Sweep(Region, Seq, HostSet),
    /// To the switch: the nodes are swept; the region is free.
    End(Region, Seq),
}

/// How far a reset is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// Hosts have still to give the region up.
    Recalling,
    /// Nodes have still to be swept under this number: so many.
    Sweeping(Seq, u16),
    /// It is over.
    Ended(Seq),
}

/// The reset of one region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reset {
    region: Region,
    /// Memory nodes that have pages of it.
    nodes: u16,
    stage: Stage,
}

impl Reset {
    /// A reset that is to begin, of a region with pages on this many memory nodes.
    #[must_use]
    pub const fn new(region: Region, nodes: u16) -> Self {
        Self { region, nodes, stage: Stage::Recalling }
    }

    /// Its region.
    #[must_use]
    pub const fn region(&self) -> Region {
        self.region
    }

    /// How far it is.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// Takes one event; answers what is to be done. `fenced` are the hosts that are fenced now.
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
            // The switch began anew meanwhile: what is swept is not enough.
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
