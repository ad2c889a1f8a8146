//! Processes that leave: their regions stay open until no write of theirs can be executed any more (PROTOCOL 17.17,
//! 17.21).

use super::super::control_rpc::ControlRequest;
use super::super::domain_thread::Order;
use super::super::journal::Life;
use super::super::messages::DpuMessage;
use super::super::prefetching::Prefetching;
use super::{Door, Session, say};
use farmem_client::api::ActFor;
use farmem_dpu::Asker;
use farmem_link::dpu::DpuSocket;
use std::collections::btree_map::Entry;

/// A process that left or was disconnected. Its regions stay open while one of its operations is in flight, and then
/// until it closes its socket: a process that still runs goes straight to the memory nodes, and this DPU would not
/// know of its writes (PROTOCOL 17.17).
pub(super) struct Leaving {
    pub(super) asker: Asker,
    pub(super) domain: u32,
    /// The DPU's host that executed its writes.
    dpu: Life,
    /// The socket on which the process, if it runs, receives the farewell.
    talk: DpuSocket,
    /// True if no write of it may be executed later; `None` while an operation of it is in flight.
    settled: Option<bool>,
}

impl Leaving {
    pub(super) fn farewell(&mut self, settled: bool) {
        if self.is_in_flight() {
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
        self.is_in_flight() || self.settled == Some(false) && !self.talk.is_open()
    }

    /// Returns true if no operation of it is in flight, and it has closed its socket.
    fn is_gone(&self) -> bool {
        !self.is_in_flight() && !self.talk.is_open()
    }
}

/// The progress of a request to fence a host of this DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fence {
    Requested,
    Done,
}

impl Door {
    /// Removes a session, and tells the domain's thread.
    pub(super) fn leave(&mut self, number: u32) {
        let Some(session) = self.sessions.remove(&number) else { return };
        let Session { talk, domain, dpu, prefetching, .. } = session;
        self.aheads.extend(prefetching.map(Prefetching::let_go));
        let asker = Asker(number);
        let lane = self.lanes.iter().find(|lane| lane.domain == domain);
        self.leaving.push(Leaving { asker, domain, dpu, talk, settled: None });
        // An ended thread is joined, and everything that it owned is released.
        let _told = lane.is_some_and(|lane| lane.tell(Order::Go(asker)));
    }

    /// Sends the farewell to a process that left and has no operation in flight.
    pub(super) fn settle(&mut self, asker: Asker, settled: bool) {
        let all = self.leaving.iter_mut().filter(|leaving| leaving.asker == asker);
        all.for_each(|leaving| leaving.farewell(settled));
        let Some(acted) = self.acting.remove(&asker) else { return };
        // If a write may be executed later, the DPU acts for the process until its host has left the rack.
        if settled && !self.acting.values().any(|others| *others == acted) {
            // A control thread that has ended has panicked and printed its message.
            let _gone = self.control_requests.send(ControlRequest::Ended(ActFor { begins: false, ..acted }));
        }
    }

    /// Closes the regions of processes that have closed their sockets and have no operation in flight. If a write of
    /// such a process may be executed later, the DPU's own host leaves the rack first. So a killed process fences no
    /// other host.
    pub(super) fn close_gone(&mut self) {
        let Self { leaving, fences, control_requests, .. } = self;
        let closes = leaving.extract_if(.., |leaving| {
            if !leaving.is_gone() || leaving.settled == Some(true) {
                return leaving.is_gone();
            }
            match fences.entry(leaving.dpu) {
                Entry::Occupied(fence) => *fence.get() == Fence::Done,
                Entry::Vacant(fence) => {
                    fence.insert(Fence::Requested);
                    // A control thread that has ended has panicked and printed its message.
                    let _gone = control_requests.send(ControlRequest::Fence(leaving.dpu));
                    false
                }
            }
        });
        for Leaving { asker, .. } in closes.collect::<Vec<_>>() {
            self.objects.close(&self.ground.memory, asker);
            self.journal.gone(asker);
        }
        let Self { leaving, fences, .. } = self;
        fences.retain(|life, _| leaving.iter().any(|leaving| leaving.dpu == *life));
    }

    /// Ends the threads of hosts that the control plane has fenced.
    pub(super) fn hear_of_fences(&mut self) {
        while let Ok(life) = self.fenced.try_recv() {
            self.fences.entry(life).and_modify(|fence| *fence = Fence::Done);
            for lane in self.lanes.iter().filter(|lane| lane.life == life) {
                let _ended = lane.tell(Order::Doubt);
            }
        }
    }
}
