//! The dispatch engine: where a traversal runs (PULSE 4.1).
//!
//! [`Client::dispatch`] takes a program to the memory when one iteration computes for at most eta times as long as its load
//! takes, and otherwise runs the same program here, over one-sided READs. Results are the same either way; [`Dispatched`] says
//! where it ran, and what it took. Request ids, timers and sending again are the host role's.

pub use crate::far_memory::run_over_reads;
pub use crate::policy::{Dispatched, Policy, Profile, Site, Tally};

use crate::client::Client;
use crate::error::Error;
use farmem_host::{Answer, Op};
use farmem_traversal::Program;
use farmem_wire::VirtAddr;

impl Client {
    /// Runs `program` from `start` on for at most `limit` iterations, where `policy` says.
    ///
    /// # Errors
    /// Either way: [`Error::Traversal`] with the pointer it stopped at, [`Error::ScratchLen`], or [`Error::Unreachable`]. At the
    /// host, a program that wants bytes of its window behind the end of the allocation is [`TraversalStop::OutOfBounds`] as it is at a memory node.
    pub fn dispatch(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
        policy: &Policy,
    ) -> Result<Dispatched, Error> {
        let dispatched = match policy.verdict(program) {
            Site::MemoryNodes => self.offload(program, start, scratch, limit, policy)?,
            Site::Host => run_over_reads(self, program, start, scratch, limit)?,
        };
        self.count(dispatched.site, &dispatched.end);
        Ok(dispatched)
    }

    fn offload(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
        policy: &Policy,
    ) -> Result<Dispatched, Error> {
        let op = Op::Traverse { program: program.clone(), cur_ptr: start, scratch, limit };
        let ticket = self.submit(op)?;
        let completed = self.wait(ticket)?;
        match (completed.result, policy) {
            (Ok(Answer::Traversed(end)), _) => {
                Ok(Dispatched { site: Site::MemoryNodes, end, scratch: completed.buf })
            }
            (Ok(other @ Answer::Done { .. }), _) => unreachable!("a traversal does not answer {other:?}"),
            (Err(Error::Traversal { reason, .. }), Policy::Auto(_)) if reason.is_of_size() => {
                run_over_reads(self, program, start, completed.buf, limit)
            }
            (Err(error), _) => Err(error),
        }
    }
}
