//! Far memory with many pending operations, on which a run of tasks works.

use crate::client::Client;
use crate::error::Error;
use crate::far_memory::FarMemory;
use crate::operation::{Completed, Ticket};
use crate::policy::Site;
use farmem_host::{Op, Traversed};
use std::collections::VecDeque;

/// Far memory that keeps many operations in flight. A [`Client`] implements it over the rack; so does a host
/// that caches pages.
pub trait Concurrent: FarMemory {
    /// Starts an operation. Its ticket comes from [`Ticket::at`], with a place that no other pending
    /// operation has.
    ///
    /// # Errors
    /// [`Error::TooLong`] if the operation does not fit one message; [`Error::System`] if the link failed.
    fn submit(&mut self, op: Op) -> Result<Ticket, Error>;

    /// Waits for the next completed operation and returns it; `None` if no operation is pending.
    ///
    /// # Errors
    /// [`Error::System`] if the link failed.
    fn next_completed(&mut self) -> Result<Option<Completed>, Error>;

    /// Returns the next operation that has already completed, if any.
    fn poll_ended(&mut self) -> Option<Completed>;

    /// Counts a traversal that ended.
    fn count(&mut self, site: Site, end: &Traversed) {
        let _not_counted = (site, end);
    }

    /// Takes the completions that arrived before the run.
    fn take_ready(&mut self) -> VecDeque<Completed> {
        VecDeque::new()
    }

    /// Returns completions that do not belong to the run.
    fn put_ready(&mut self, ready: VecDeque<Completed>) {
        drop(ready);
    }
}

impl Concurrent for Client {
    fn submit(&mut self, op: Op) -> Result<Ticket, Error> {
        Self::submit(self, op)
    }

    fn next_completed(&mut self) -> Result<Option<Completed>, Error> {
        Self::next_completed(self)
    }

    fn poll_ended(&mut self) -> Option<Completed> {
        Self::poll_ended(self)
    }

    fn count(&mut self, site: Site, end: &Traversed) {
        Self::count(self, site, end);
    }

    fn take_ready(&mut self) -> VecDeque<Completed> {
        Self::take_ready(self)
    }

    fn put_ready(&mut self, ready: VecDeque<Completed>) {
        Self::put_ready(self, ready);
    }
}
