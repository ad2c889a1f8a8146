//! Traversals at the node: the model runs each one again with its own bytes and rules, and both results must
//! be equal.
//!
//! A node may run a traversal later than it receives the frame. The tables and bytes at the time of the run
//! count.

use super::{Model, pages};
use crate::frames::{ReceivedFrame, each, sent};
use farmem_machine::Port;
use farmem_memnode::ITERATIONS_PER_VISIT_MAX;
use farmem_transport::ud;
use farmem_traversal::{Behind, Program, State, Step};
use farmem_wire::message::Traverse;
use farmem_wire::{Body, Domain, Header, Message, Perm, ProgramHash, Status, VirtAddr};

/// Received traversal.
#[derive(Debug)]
pub(super) struct Walk {
    header: Header,
    program: ProgramHash,
    cur_ptr: VirtAddr,
    iterations: u32,
    limit: u32,
    scratch: Vec<u8>,
    code: Vec<u8>,
    /// Endpoint of the host when the traversal arrived.
    origin: Option<ud::Endpoint>,
    /// True when the traversal declares stores and starts outside the ranges, so the node may drop it.
    may_be_dropped: bool,
}

impl Walk {
    fn state(&self) -> Traverse<'_> {
        let Self { program, cur_ptr, iterations, limit, .. } = *self;
        Traverse { program, cur_ptr, iterations, limit, scratch: &self.scratch, code: &[] }
    }
}

impl Model {
    pub(in crate::memnode) fn begin_walk(&mut self, header: &Header, state: &Traverse<'_>) {
        if let Ok(program) = Program::decode(state.code) {
            self.programs.insert(program.hash(), program);
        }
        let Traverse { program, cur_ptr, iterations, limit, .. } = *state;
        let (scratch, code) = (state.scratch.to_vec(), state.code.to_vec());
        let origin = self.peers.get(&Port::host(header.origin.0)).copied();
        let may_be_dropped = program.stores() && !self.is_local(cur_ptr);
        self.walks.push(Walk {
            header: *header,
            program,
            cur_ptr,
            iterations,
            limit,
            scratch,
            code,
            origin,
            may_be_dropped,
        });
    }

    /// Checks that each ended or forwarded traversal matches the model, exactly once.
    pub(in crate::memnode) fn walked(&mut self, ends: &[ReceivedFrame]) {
        for (port, frame) in ends {
            let (endpoint, message) = sent(frame);
            let to = ud::Peer { port: *port, endpoint };
            for message in each(&message) {
                self.walk_ended(to, &message);
            }
        }
    }

    fn walk_ended(&mut self, to: ud::Peer, message: &Message<'_>) {
        let same =
            |walk: &Walk| walk.header.request == message.header.request && self.ends_so(walk, to, message);
        let Some(at) = self.walks.iter().position(same) else {
            panic!("{message:?} to {to:?} is no end of {:?}", self.walks)
        };
        self.walks.remove(at);
    }

    /// Checks the open traversals when the node has nothing more to run. An open traversal must be one that
    /// the node could not even forward.
    pub(in crate::memnode) fn all_walked(&mut self) {
        let gone = |port| !self.peers.contains_key(&port);
        for walk in &self.walks {
            let lost = gone(Port::SWITCH) || gone(Port::host(walk.header.origin.0));
            assert!(lost || walk.may_be_dropped, "{walk:?} is answered or goes on");
        }
        self.walks.clear();
    }

    /// Returns true when the node may send this message about the traversal to `to`.
    fn ends_so(&self, walk: &Walk, to: ud::Peer, message: &Message<'_>) -> bool {
        let Body::Traverse(state) = message.body else { return false };
        let Header { status, response, .. } = message.header;
        let knows = |port: Port| self.peers.get(&port) == Some(&to.endpoint);
        let host = Port::host(walk.header.origin.0);
        let answered = response && to.port == host && (knows(host) || walk.origin == Some(to.endpoint));
        let went_on = message.header == walk.header && to.port == Port::SWITCH && knows(Port::SWITCH);
        if matches!(status, Status::UnknownProgram | Status::BadProgram | Status::Malformed | Status::Busy) {
            return answered && state == walk.state();
        }
        let Some(program) = self.programs.get(&walk.program) else { return false };
        if program.scratch_len() < walk.scratch.len() {
            return false;
        }
        let (iterations, end, reached) = self.walk_again(walk, program);
        let iterations = walk.iterations.saturating_add(iterations);
        let there = Traverse {
            cur_ptr: reached.cur_ptr,
            iterations,
            scratch: Traverse::without_zeros(&reached.scratch),
            ..walk.state()
        };
        let in_place = Traverse { code: &[], ..state } == there;
        let right = match end {
            EndReason::Return => status == Status::Ok,
            EndReason::Limit => status == Status::IterationLimit,
            EndReason::Fault => status == Status::ProgramFault,
            EndReason::PastWindow => status == Status::OutOfBounds,
            EndReason::NotReadable => {
                let window = pages(reached.cur_ptr, program.window_len() as u64);
                matches!(status, Status::NotMapped | Status::NoPermission)
                    || status == Status::Lost && window.into_iter().any(|page| self.is_lost(page))
            }
            EndReason::Elsewhere if walk.header.hops == 0 => status == Status::HopLimit,
            EndReason::Elsewhere => {
                let with_code = state.code.is_empty() || state.code == walk.code;
                return went_on && in_place && with_code;
            }
        };
        answered && right && in_place
    }

    /// Runs the traversal on the model's bytes. Returns the number of iterations, the reason of the end, and
    /// the state.
    fn walk_again(&self, walk: &Walk, program: &Program) -> (u32, EndReason, State) {
        // Trailing zeros may be missing (PROTOCOL 7.24).
        let mut scratch = walk.scratch.clone();
        scratch.resize(program.scratch_len(), 0);
        let mut state = State { cur_ptr: walk.cur_ptr, scratch };
        let left = walk.limit.saturating_sub(walk.iterations).min(ITERATIONS_PER_VISIT_MAX);
        for iterations in 0..left {
            let addr = state.cur_ptr;
            let there = self.there(walk.header.domain, addr, program.window_len() as u64);
            if there == 0 && !self.is_local(addr) {
                return (iterations, EndReason::Elsewhere, state);
            }
            if there == 0 || pages(addr, there).any(|page| self.is_lost(page)) {
                return (iterations, EndReason::NotReadable, state);
            }
            let window = self.slice(addr, there);
            let end = match program.step_cut(window, &mut state.cur_ptr, &mut state.scratch) {
                Ok(Step::Next) => continue,
                Ok(Step::Return) => EndReason::Return,
                Ok(Step::Fault) => EndReason::Fault,
                Err(Behind) => EndReason::PastWindow,
            };
            return (iterations + 1, end, state);
        }
        (left, EndReason::Limit, state)
    }

    /// Returns the number of accessible bytes of a window (PROTOCOL 7.50). Every grant in this target permits
    /// reads.
    fn there(&self, domain: Domain, addr: VirtAddr, len: u64) -> u64 {
        let is_granted = |len: &u64| self.is_granted(domain, addr, *len, Perm::Read);
        (1..=len).rev().find(is_granted).unwrap_or(0)
    }
}

/// Reason for the end of a traversal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndReason {
    Return,
    Limit,
    Fault,
    /// The program accessed its window past the end of the memory.
    PastWindow,
    /// The pointer lies at this node, and the domain may not read it.
    NotReadable,
    Elsewhere,
}
