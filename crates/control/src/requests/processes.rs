//! Processes of the rack and their memory system calls: the calling process, and what a call means for vmas,
//! switch and nodes (PROTOCOL 8.27 to 8.31).

use crate::api::{ApiError, ErrorCode, Mmap, ProcessExit, ProcessStart, Returned};
use crate::decision::{Decided, Decision};
use crate::errors::{bound, error, not_found};
use crate::rack::Rack;
use crate::record::{ChangeKind, Remap, Role};
use crate::state::State;
use crate::syscalls::{Allocator, Call, Edit, Errno, Plan, Space};
use alloc::format;
use alloc::vec::Vec;

impl Rack {
    pub(crate) fn process_start(&self, domain: u32, heap: u64) -> Decided<ProcessStart> {
        self.domain_known(domain)?;
        let most = self.config.bounds.processes_max;
        if self.state.processes.len() + self.in_flight(|what| matches!(what, ChangeKind::Remap(_))) >= most {
            return Err(bound("processes", most));
        }
        let process = self.state.next_process;
        let plan = match self.state.spaces.get(&domain) {
            Some(_) => Space::begin(0, &self.allocator()),
            None => Space::begin(heap, &self.allocator()),
        };
        if plan.more() > self.room_of(domain) {
            return Err(self.over_its_limit(domain, plan.more()));
        }
        if plan.answer.is_err() {
            let message = format!("no memory node has {heap} bytes for a heap in one piece");
            return Err(error(ErrorCode::OutOfMemory, message, "start with less heap, or add a memory node"));
        }
        self.remap(domain, Some(process), None, plan)
    }

    pub(crate) fn process_exit(&self, process: u32) -> Decided<ProcessExit> {
        let domain = self.domain_of(process)?;
        let last = self.state.processes.values().filter(|&&of| of == domain).count() == 1;
        let space = self.state.spaces.get(&domain).filter(|_| last);
        let plan = space.map_or_else(|| Space::begin(0, &self.allocator()), Space::end);
        self.remap(domain, None, Some(process), plan)
    }

    pub(crate) fn memory_call(&self, process: u32, call: &Call) -> Decided<Mmap> {
        let domain = self.domain_of(process)?;
        let Some(space) = self.state.spaces.get(&domain) else { unreachable!("a process has its space") };
        let mut plan = space.call(call, &self.allocator());
        if plan.more() > self.room_of(domain) {
            plan = Plan::nothing(Err(Errno::NoMemory));
        }
        let new = plan.edits.iter().filter(|edit| matches!(edit, Edit::Reserve { .. })).count();
        let most = self.config.bounds.vmas_max;
        if new > 0 && self.state.vmas.len() + new > most {
            return Err(bound("vmas", most));
        }
        if plan.edits.is_empty() {
            return Ok(Decision::Reply(Returned { value: plan.value() }));
        }
        self.remap(domain, None, None, plan)
    }

    fn remap<A>(
        &self,
        domain: u32,
        starts: Option<u32>,
        ends: Option<u32>,
        plan: Plan,
    ) -> Result<Decision<A>, ApiError> {
        let value = plan.value();
        let what = ChangeKind::Remap(Remap { domain, edits: plan.edits, value, starts, ends });
        for role in self.state.concerned(&what) {
            match role {
                Role::Switch => self.switch_answers()?,
                Role::Node(node) if !what.tolerates(role) => self.node_answers(node)?,
                Role::Node(_) | Role::Index(_) => {}
            }
        }
        Ok(Decision::Begin(what))
    }

    fn domain_of(&self, process: u32) -> Result<u32, ApiError> {
        self.state.processes.get(&process).copied().ok_or_else(|| {
            let remedy = "start it with `process_start`; its answer has the number";
            not_found(format!("there is no process {process}"), remedy)
        })
    }

    fn allocator(&self) -> Answering<'_> {
        Answering(&self.state)
    }
}

/// The memory of the nodes that answer.
struct Answering<'a>(&'a State);

impl Allocator for Answering<'_> {
    fn fit(&self, size: u64) -> Option<u64> {
        let mut nodes: Vec<u16> = self.0.ready_nodes().collect();
        // MIND 4.1: the least allocated node comes first. The sort is stable, so that among equals the lowest
        // number comes first.
        nodes.sort_by_cached_key(|&node| self.0.allocated(node, true));
        nodes.iter().find_map(|&node| self.0.place(node, size))
    }

    fn is_free(&self, base: u64, size: u64) -> bool {
        let Some(end) = base.checked_add(size) else { return false };
        let Some(node) = self.0.node_at(base) else { return false };
        let before = self.0.vmas.range(..end).next_back();
        self.0.ready_nodes().any(|ready| ready == node)
            && self.0.node_at(end - 1) == Some(node)
            && before.is_none_or(|(at, vma)| at + vma.size <= base)
            && self.0.used(node).iter().all(|&(at, len)| at + len <= base || end <= at)
    }
}
