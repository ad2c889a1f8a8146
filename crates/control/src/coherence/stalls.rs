//! Hosts that block a reset: they renew their leases, and do not give back recalled pages (PROTOCOL 12.51).
//!
//! Each time the switch repeats its recall, it reports the hosts it asked. A host that is asked for one reset
//! during [`LEASES_MAX`] leases gets no renewal any more, so its lease ends and it is fenced as a dead one.
//! The time counts while the memory nodes of the region answer: a host must not acknowledge before they have
//! accepted its write-backs (PROTOCOL 12.21).
//!
//! None of this is in the log: after a restart, of the control plane or the switch, the time starts over.

use crate::record::Role;
use crate::{Actions, Control, DropReason, Note};
use alloc::collections::{BTreeMap, BTreeSet};
use farmem_machine::{Duration, Instant};
use farmem_wire::HostId;
use farmem_wire::message::{DirectoryBody, HostSet, Page, Region, Seq};

/// Number of leases for which a host may block a reset.
const LEASES_MAX: u64 = 2;
/// Number of consecutive questions that a node may leave unanswered.
const UNANSWERED_MAX: u64 = 4;
/// A number that no move has: a node answers that it does not know it, and so proves that it is alive.
const NO_MOVE: u64 = 0;

/// The state of resets that wait for hosts.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// By the first page of the region; bounded by the resets that the switch is asked about.
    resets: BTreeMap<Page, Awaited>,
    /// Memory nodes with pages of such regions.
    nodes: BTreeMap<u16, PresenceQuestion>,
}

/// A reset that waits for hosts.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    region: Region,
    seq: Seq,
    hosts: HostSet,
    since: Instant,
}

/// The time of the last question to a node, and of its last answer.
#[derive(Clone, Copy, Debug)]
struct PresenceQuestion {
    asked: Instant,
    answered: Instant,
}

impl Stalls {
    /// Forgets resets of the region: it is not being reset any more, or under another number.
    pub(super) fn forget(&mut self, region: Region) {
        let overlaps = |other: Region| region.contains(other.base()) || other.contains(region.base());
        self.resets.retain(|_, awaited| !overlaps(awaited.region));
        if self.resets.is_empty() {
            self.nodes.clear();
        }
    }

    /// Returns the number of resets being timed.
    pub(super) fn len(&self) -> usize {
        self.resets.len()
    }
}

impl Control {
    /// Handles the report that the switch has asked these hosts again to give a region up.
    pub(super) fn awaiting(&mut self, region: Region, seq: Seq, hosts: HostSet, out: &mut Actions) {
        let is_asked_about = self.coherence.wanted.keys().any(|page| region.contains(*page));
        if seq.epoch() != self.state.epoch || !is_asked_about {
            return out.note(Note::Dropped(DropReason::Stale));
        }
        let (now, nodes) = (self.now, self.nodes_of(region));
        let fresh = Awaited { region, seq, hosts, since: now };
        let known = self.coherence.stalls.resets.get(&region.base()).copied();
        let known = known.filter(|known| (known.region, known.seq) == (region, seq));
        let since = known.filter(|_| self.are_there(&nodes)).map_or(now, |known| known.since);
        self.coherence.stalls.resets.insert(region.base(), Awaited { since, ..fresh });
        self.ask_whether_there(&nodes, out);
    }

    /// Records that the node answered any question.
    pub(super) fn is_there(&mut self, node: u16) {
        if let Some(asked) = self.coherence.stalls.nodes.get_mut(&node) {
            asked.answered = self.now;
        }
    }

    /// Returns a region that the host has not given back for too long, despite repeated recalls: the host
    /// gets no renewal.
    pub(super) fn held_up_by(&self, host: u16) -> Option<(Region, Duration)> {
        let most = self.config.lease.times(LEASES_MAX);
        let held = self.coherence.stalls.resets.values().filter(|reset| reset.hosts.contains(HostId(host)));
        held.map(|reset| (reset.region, self.now.since(reset.since))).find(|(_, span)| *span >= most)
    }

    /// Returns true if none of the nodes has left the last questions unanswered.
    fn are_there(&self, nodes: &BTreeSet<u16>) -> bool {
        let patience = self.config.timeout.times(UNANSWERED_MAX);
        let answers = |node: &u16| {
            let asked = self.coherence.stalls.nodes.get(node);
            asked.is_some_and(|asked| self.now.since(asked.answered) <= patience)
        };
        nodes.iter().all(answers)
    }

    fn ask_whether_there(&mut self, nodes: &BTreeSet<u16>, out: &mut Actions) {
        let (now, again) = (self.now, self.config.timeout);
        for &node in nodes {
            let known = self.coherence.stalls.nodes.get(&node).copied();
            if known.is_none_or(|known| now.since(known.asked) >= again) {
                let answered = known.map_or(now, |known| known.answered);
                self.coherence.stalls.nodes.insert(node, PresenceQuestion { asked: now, answered });
                self.tell(Role::Node(node), DirectoryBody::Moving(NO_MOVE), out);
            }
        }
    }
}
