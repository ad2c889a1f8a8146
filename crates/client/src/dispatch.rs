//! The dispatch engine, which decides where a traversal runs (PULSE 4.1).
//!
//! [`Client::dispatch`] offloads a program to the memory nodes if the computation of an iteration takes at
//! most eta times as long as its load. Otherwise the client runs the program at this host, by one-sided
//! READs. The result is the same; [`Dispatched`] tells the site and the costs. The host role handles request
//! ids, timers and retransmission.

pub use crate::far_memory::run_over_reads;
pub use crate::policy::{Dispatched, Policy, Profile, Site, Tally};

use crate::client::Client;
use crate::error::Error;
use farmem_host::{Answer, Op};
use farmem_traversal::Program;
use farmem_wire::VirtAddr;

impl Client {
    /// Runs `program` from `start` for at most `limit` iterations, at the site that `policy` selects.
    ///
    /// # Errors
    /// [`Error::Traversal`] with the pointer at which the program stopped, [`Error::ScratchLen`], or
    /// [`Error::Unreachable`]. If the program accesses its window beyond the end of the allocation, the
    /// reason is [`TraversalStop::OutOfBounds`](crate::TraversalStop::OutOfBounds) at both sites.
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
