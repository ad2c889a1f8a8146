//! Far memory with many operations under way: what a run of tasks works on.

use crate::client::Client;
use crate::error::Error;
use crate::far_memory::FarMemory;
use crate::operation::{Completed, Ticket};
use crate::policy::Site;
use farmem_host::{Op, Traversed};
use std::collections::VecDeque;

/// Far memory that keeps many operations under way. A [`Client`] is one, over the rack; a host that caches pages is another.
pub trait Concurrent: FarMemory {
    /// Starts an operation. Its ticket is one of [`Ticket::at`], with a place that no other operation under way has.
    ///
    /// # Errors
    /// [`Error::TooLong`] for more than one message carries; [`Error::System`] when the link failed.
    fn submit(&mut self, op: Op) -> Result<Ticket, Error>;

    /// The next operation that ends; waits for it. `None` when nothing is outstanding.
    ///
    /// # Errors
    /// [`Error::System`] when the link failed.
    fn next_completed(&mut self) -> Result<Option<Completed>, Error>;

    /// The next operation that has ended already.
    fn poll_ended(&mut self) -> Option<Completed>;

    /// Hears of a traversal that ended.
    fn count(&mut self, site: Site, end: &Traversed) {
        let _not_counted = (site, end);
    }

    /// Ends that were put aside before the run.
    fn take_ready(&mut self) -> VecDeque<Completed> {
        VecDeque::new()
    }

    /// Puts ends aside that are not of the run.
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
