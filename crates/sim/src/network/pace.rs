//! The timing model of a world: links with a rate, and machines that do one thing at a time.
//!
//! Without a model a role handles events in no time and a link carries any number of packets at once;
//! correctness tests run this way. With a model, a machine takes the next frame when its work is done, its
//! packets leave then, and frames queue for their sender's and their receiver's link. Switches forward at
//! line rate: they take no time, and their links are those of the machines at the other ends.

use super::InFlight;
use crate::sim_node::RoleId;
use farmem_machine::{Duration, Instant};
use farmem_wire::{Gid, icrc};
use std::collections::BTreeMap;

/// Overhead in bytes of a packet on its link: Ethernet with preamble and gap, IPv4, UDP.
const AROUND: u64 = 38 + 20 + 8;

/// The parameters of the timing model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// The rate of a link of a host or a memory node in each direction, in bits per nanosecond (Gbit/s).
    pub link_bits: u64,
    /// The time of a host for a frame.
    pub host: Duration,
    /// The time of a memory node for a frame, without visits.
    pub node: Duration,
    /// The time of a memory node for a visit of a traversal.
    pub visit: Duration,
}

/// The state of machines and links.
#[derive(Debug)]
pub(super) struct Paced {
    pace: Pace,
    /// The time at which each machine has no more work, and each link no more to carry: from the machine, and
    /// to it.
    free: BTreeMap<Gid, Instant>,
    sending: BTreeMap<Gid, Instant>,
    receiving: BTreeMap<Gid, Instant>,
    /// Packets sent in the current event, each with its latency.
    outgoing: Vec<(Duration, InFlight)>,
}

impl Paced {
    pub(super) fn new(pace: Pace) -> Self {
        let (free, sending, receiving) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { pace, free, sending, receiving, outgoing: Vec::new() }
    }

    /// Returns the time at which a machine is done.
    pub(super) fn free_at(&self, machine: Gid) -> Instant {
        self.free.get(&machine).copied().unwrap_or(Instant::ZERO)
    }

    pub(super) fn send(&mut self, way: Duration, in_flight: InFlight) {
        self.outgoing.push((way, in_flight));
    }

    /// Records that a machine has handled an event; its packets leave when the work is done. Returns the due
    /// time of each packet.
    pub(super) fn worked(
        &mut self,
        now: Instant,
        machine: Gid,
        frames: u64,
        visits: u64,
    ) -> Vec<(Instant, InFlight)> {
        let Pace { link_bits, host, node, visit } = self.pace;
        let each = match RoleId::at(machine) {
            Some(RoleId::Host(_)) => host,
            Some(RoleId::Node(_)) => node,
            _ => Duration::ZERO,
        };
        let work = each.as_nanos() * frames + visit.as_nanos() * visits;
        let done = self.free_at(machine).max(now) + Duration::from_nanos(work);
        self.free.insert(machine, done);
        let has_link = |gid| matches!(RoleId::at(gid), Some(RoleId::Host(_) | RoleId::Node(_)));
        let mut leave = Vec::with_capacity(self.outgoing.len());
        for (way, in_flight) in self.outgoing.drain(..) {
            let bytes = (in_flight.packet.len() + icrc::LEN) as u64 + AROUND;
            let wire = Duration::from_nanos(bytes * 8 / link_bits.max(1));
            let mut at = done;
            if has_link(in_flight.from) {
                let link = self.sending.entry(in_flight.from).or_insert(Instant::ZERO);
                at = at.max(*link) + wire;
                *link = at;
            }
            at += way;
            if has_link(in_flight.to) {
                let link = self.receiving.entry(in_flight.to).or_insert(Instant::ZERO);
                at = at.max(*link) + wire;
                *link = at;
            }
            leave.push((at, in_flight));
        }
        leave
    }
}
