//! Hosts that block a reset: they renew their leases, and do not give back recalled pages (PROTOCOL 12.51).
//!
//! Each time the switch repeats its recall, it reports the hosts it asked. A host that is asked for one reset
//! during [`LEASES_MAX`] leases gets no renewal any more, so its lease ends and it is fenced as a dead one.
//! The time counts while the memory nodes of the region answer: a host must not acknowledge before they have
//! accepted its write-backs (PROTOCOL 12.21).
//!
//! None of this is in the log: after a restart, of the control plane or the switch, the time starts over.

use crate::coherence::Coherence;
use crate::coherence::waits::{Awaited, PresenceQuestion};
use crate::messages::Actions;
use crate::note::{DropReason, Note};
use crate::rack::Rack;
use crate::record::Role;
use alloc::collections::BTreeSet;
use farmem_machine::Duration;
use farmem_wire::HostId;
use farmem_wire::message::{DirectoryBody, HostSet, Region, Seq};

/// Number of leases for which a host may block a reset.
const LEASES_MAX: u64 = 2;

/// Number of consecutive questions that a node may leave unanswered.
const UNANSWERED_MAX: u64 = 4;

/// A number that no move has: a node answers that it does not know it, and so proves that it is alive.
const NO_MOVE: u64 = 0;

impl Coherence {
    /// Handles the report that the switch has asked these hosts again to give a region up.
    pub(super) fn awaiting(
        &mut self,
        rack: &mut Rack,
        region: Region,
        seq: Seq,
        hosts: HostSet,
        out: &mut Actions,
    ) {
        let is_asked_about = self.wanted.keys().any(|page| region.contains(*page));
        if seq.epoch() != rack.state.epoch || !is_asked_about {
            return out.note(Note::Dropped(DropReason::Stale));
        }
        let (now, nodes) = (rack.now, self.nodes_of(rack, region));
        let fresh = Awaited { region, seq, hosts, since: now };
        let known = self.stalls.resets.get(&region.base()).copied();
        let known = known.filter(|known| (known.region, known.seq) == (region, seq));
        let since = known.filter(|_| self.are_there(rack, &nodes)).map_or(now, |known| known.since);
        self.stalls.resets.insert(region.base(), Awaited { since, ..fresh });
        self.ask_whether_there(rack, &nodes, out);
    }

    /// Records that the node answered any question.
    pub(super) fn is_there(&mut self, rack: &mut Rack, node: u16) {
        if let Some(asked) = self.stalls.nodes.get_mut(&node) {
            asked.answered = rack.now;
        }
    }

    /// Returns a region that the host has not given back for too long, despite repeated recalls: the host
    /// gets no renewal.
    pub(super) fn held_up_by(&self, rack: &Rack, host: u16) -> Option<(Region, Duration)> {
        let most = rack.config.lease.times(LEASES_MAX);
        let held = self.stalls.resets.values().filter(|reset| reset.hosts.contains(HostId(host)));
        held.map(|reset| (reset.region, rack.now.since(reset.since))).find(|(_, span)| *span >= most)
    }

    /// Returns true if none of the nodes has left the last questions unanswered.
    fn are_there(&self, rack: &Rack, nodes: &BTreeSet<u16>) -> bool {
        let patience = rack.config.timeout.times(UNANSWERED_MAX);
        let answers = |node: &u16| {
            let asked = self.stalls.nodes.get(node);
            asked.is_some_and(|asked| rack.now.since(asked.answered) <= patience)
        };
        nodes.iter().all(answers)
    }

    fn ask_whether_there(&mut self, rack: &mut Rack, nodes: &BTreeSet<u16>, out: &mut Actions) {
        let (now, again) = (rack.now, rack.config.timeout);
        for &node in nodes {
            let known = self.stalls.nodes.get(&node).copied();
            if known.is_none_or(|known| now.since(known.asked) >= again) {
                let answered = known.map_or(now, |known| known.answered);
                self.stalls.nodes.insert(node, PresenceQuestion { asked: now, answered });
                self.tell(rack, Role::Node(node), DirectoryBody::Moving(NO_MOVE), out);
            }
        }
    }
}
