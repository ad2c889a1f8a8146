//! Processes that leave: their regions stay open until no write of theirs can be executed any more (PROTOCOL 17.17,
//! 17.21).

use super::super::control_rpc::{ControlRequest, Outcome};
use super::super::domain_thread::Order;
use super::super::journal::Life;
use super::super::messages::{self, ClientMessage, DpuMessage};
use super::super::prefetching::Prefetching;
use super::{Door, Session, say};
use farmem_client::api::ActFor;
use farmem_dpu::Asker;
use farmem_link::dpu::DpuSocket;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A process that left or was disconnected. Its regions stay open while one of its operations is in flight, and then
/// until it closes its socket: a process that still runs goes straight to the memory nodes, and this DPU would not
/// know of its writes (PROTOCOL 17.17).
pub(super) struct Leaving {
    pub(super) asker: Asker,
    pub(super) domain: u32,
    /// The DPU's host that executed its writes.
    dpu: Life,
    /// The process's own host, by which it writes directly after it was disconnected.
    process: Life,
    /// True if the process has an allocation open for writing.
    writes: bool,
    /// True if the process ran when it was disconnected, so it may write directly.
    is_dismissed: bool,
    /// True if the process has said that it has no write in flight.
    is_finished: bool,
    /// The socket on which the process, if it runs, receives the farewell.
    talk: DpuSocket,
    /// True if no write of it may be executed later; `None` while an operation of it is in flight.
    settled: Option<bool>,
}

impl Leaving {
    pub(super) fn farewell(&mut self, settled: bool) {
        if self.is_in_flight() {
            self.is_dismissed = self.talk.is_open();
            // A process that left by itself does not listen.
            let _gone = say(&self.talk, &DpuMessage::Farewell { settled });
            self.talk.fall_silent();
            self.settled = Some(settled);
        }
    }

    pub(super) const fn is_in_flight(&self) -> bool {
        self.settled.is_none()
    }

    /// Returns true if its regions will close without its help: operations in flight end, and the DPU's host leaves
    /// the rack.
    pub(super) fn is_waited_for(&self) -> bool {
        self.is_in_flight()
            || !self.talk.is_open() && (self.settled == Some(false) || self.writes && self.is_dismissed)
    }

    /// Returns true if no operation of it is in flight, and it has closed its socket.
    fn is_gone(&self) -> bool {
        !self.is_in_flight() && !self.talk.is_open()
    }

    /// Returns the hosts that leave the rack before its regions close. The DPU's host executed its writes. Its own
    /// host executes those that it sent directly: a process that was killed in the middle of one did not say that
    /// it has finished.
    fn fences(&mut self) -> impl Iterator<Item = Life> + use<> {
        while let Ok(Some((said, _))) = messages::hear::<ClientMessage>(&self.talk) {
            self.is_finished |= said == ClientMessage::Finished {};
        }
        let is_unsettled = self.settled == Some(false);
        let may_write = self.writes && !self.is_finished && (self.is_dismissed || is_unsettled);
        is_unsettled.then_some(self.dpu).into_iter().chain(may_write.then_some(self.process))
    }
}

/// The hosts that write, for which this DPU acts until nothing of them is under way (PROTOCOL 8.59). A host may have
/// several processes, or connections, at the DPU.
#[derive(Debug, Default)]
pub(super) struct Acts(BTreeMap<Asker, ActFor>);

impl Acts {
    pub(super) fn begin(&mut self, asker: Asker, act: ActFor) {
        self.0.insert(asker, act);
    }

    /// Handles that no operation of a process is in flight. Returns the notice that the DPU no longer acts for the
    /// process's host. If a write of the host may be executed later, the DPU acts for it until the DPU's own host
    /// is fenced.
    fn settled(&mut self, asker: Asker, settled: bool) -> Option<ActFor> {
        let acted = self.0.remove(&asker)?;
        if settled {
            let is_last = !self.0.values().any(|others| *others == acted);
            return is_last.then_some(ActFor { begins: false, ..acted });
        }
        self.0.insert(asker, acted);
        None
    }

    /// Ends acting for a process: the DPU's host is fenced, or no write of the process is pending.
    fn closed(&mut self, asker: Asker) {
        self.0.remove(&asker);
    }
}

/// The progress of a request to fence a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fence {
    Requested,
    Done,
}

impl Door {
    /// Removes a session, and tells the domain's thread.
    pub(super) fn leave(&mut self, number: u32) {
        let Some(session) = self.sessions.remove(&number) else { return };
        let Session { talk, domain, dpu, life: process, is_finished, prefetching, .. } = session;
        self.aheads.extend(prefetching.map(Prefetching::let_go));
        let asker = Asker(number);
        let lane = self.lanes.iter().find(|lane| lane.domain == domain);
        let (writes, is_dismissed) = (self.journal.writes(asker), false);
        let settled = None;
        let leaving =
            Leaving { asker, domain, dpu, process, writes, is_dismissed, is_finished, talk, settled };
        self.leaving.push(leaving);
        // An ended thread is joined, and everything that it owned is released.
        let _told = lane.is_some_and(|lane| lane.tell(Order::Go(asker)));
    }

    /// Sends the farewell to a process that left and has no operation in flight.
    pub(super) fn settle(&mut self, asker: Asker, settled: bool) {
        let all = self.leaving.iter_mut().filter(|leaving| leaving.asker == asker);
        all.for_each(|leaving| leaving.farewell(settled));
        if let Some(ended) = self.acts.settled(asker, settled) {
            // A control thread that has ended has panicked and printed its message.
            let _gone = self.control_requests.send(ControlRequest::Ended(ended));
        }
    }

    /// Closes the regions of processes that have closed their sockets and have no operation in flight. If a write of
    /// such a process may be executed later, the host that sent the write leaves the rack first: the DPU's, or the
    /// process's own. So a killed process fences no other host.
    pub(super) fn close_gone(&mut self) {
        let Self { leaving, fences, control_requests, .. } = self;
        let closes = leaving.extract_if(.., |leaving| {
            // All fences are requested, also where one is missing.
            leaving.is_gone()
                && leaving.fences().fold(true, |done, life| match fences.entry(life) {
                    Entry::Occupied(fence) => *fence.get() == Fence::Done && done,
                    Entry::Vacant(fence) => {
                        fence.insert(Fence::Requested);
                        // A control thread that has ended has panicked and printed its message.
                        let _gone = control_requests.send(ControlRequest::Fence(life));
                        false
                    }
                })
        });
        for Leaving { asker, .. } in closes.collect::<Vec<_>>() {
            self.objects.close(&self.ground.memory, asker);
            self.journal.gone(asker);
            self.acts.closed(asker);
        }
        let Self { leaving, fences, .. } = self;
        fences.retain(|life, _| leaving.iter().any(|leaving| [leaving.dpu, leaving.process].contains(life)));
    }

    /// Handles reports of the control plane. If hosts of this DPU were fenced, their threads end. If processes of
    /// earlier DPUs left the rack, the journal forgets them.
    pub(super) fn hear_outcomes(&mut self) {
        while let Ok(outcome) = self.outcomes.try_recv() {
            match outcome {
                Outcome::Fenced(life) => {
                    self.fences.entry(life).and_modify(|fence| *fence = Fence::Done);
                    for lane in self.lanes.iter().filter(|lane| lane.life == life) {
                        let _ended = lane.tell(Order::Doubt);
                    }
                }
                // An opening that cannot be removed from the file is kept from others for longer, and harms nothing.
                Outcome::Pruned(gone) => drop(self.journal.prune(&gone)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host has two connections at the DPU, and a write of the first has failed. When the second one is done, the
    /// DPU still acts for the host: a node may carry out the failed write later, until the DPU's host has left the
    /// rack. Previously the control plane heard that the act had ended.
    #[test]
    fn an_act_with_a_failed_write_does_not_end() {
        let act = ActFor { host: 9, generation: 1, of_host: 3, of_generation: 1, begins: true };
        let (failed, second, third) = (Asker(1), Asker(2), Asker(3));
        let mut acts = Acts::default();
        acts.begin(failed, act.clone());
        acts.begin(second, act.clone());
        assert_eq!(acts.settled(failed, false), None);
        assert_eq!(acts.settled(second, true), None);
        acts.closed(failed);
        acts.begin(second, act.clone());
        acts.begin(third, act.clone());
        assert_eq!(acts.settled(second, true), None, "the third writes");
        assert_eq!(acts.settled(third, true), Some(ActFor { begins: false, ..act }));
        assert_eq!(acts.settled(third, true), None, "it is said once");
    }
}
