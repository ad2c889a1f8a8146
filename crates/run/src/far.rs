//! Far memory as the pager's pages reach it: READs and WRITEs under way, why they failed, and what was lost.
//!
//! A node that was started again has lost the bytes that it had; those that are here are not lost (PROTOCOL 9.19). A page that was far and is lost is a
//! SIGBUS for the program that touches it, and the reason for the end of [`Pager::serve`]. All others go on. What is written back is a page's latest
//! bytes, whatever was lost: its old ones are accepted as lost first. Nobody else reads this memory, and a pager that dies in between takes its
//! programs along.

use super::Pager;
use farmem_client::{Client, Completed, Error, Ticket};
use farmem_control::api::ErrorCode;
use farmem_host::Op;
use farmem_paging::{Cause, Op as Number, Outcome};
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;

/// What an operation under way is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Fetch { op: Number, first: u64 },
    WriteBack { op: Number, addr: VirtAddr, len: u64 },
}

/// The client, and what is to be known of what it was asked.
#[derive(Debug)]
pub(super) struct Far {
    pub(super) client: Client,
    pub(super) under_way: Vec<(Ticket, Purpose)>,
    /// Operations that the client did not take.
    refused: Vec<Purpose>,
    /// What the READ brought that has ended, and its first page.
    pub(super) arrived: (u64, Vec<u8>),
    /// Why the latest operation failed, and why bytes were lost.
    why: Option<Error>,
    why_lost: Option<Error>,
    /// Why the rack gives no more far memory.
    pub(super) no_more: Option<Error>,
    pub(super) failed: Option<Error>,
    /// Bytes that a program wanted and that are lost; everything else goes on.
    pub(super) lost: Option<Error>,
    pub(super) pages_lost: u64,
}

impl Far {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            under_way: Vec::with_capacity(1024),
            refused: Vec::new(),
            arrived: (0, Vec::new()),
            why: None,
            why_lost: None,
            no_more: None,
            failed: None,
            lost: None,
            pages_lost: 0,
        }
    }

    pub(super) fn submit(&mut self, operation: Op, purpose: Purpose) {
        match self.client.submit(operation) {
            Ok(ticket) => self.under_way.push((ticket, purpose)),
            Err(error) => {
                self.why = Some(error);
                self.refused.push(purpose);
            }
        }
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// A program is told that it cannot have a page: so is who reads what came of the run.
    pub(super) fn told(&mut self, why: Cause) {
        match why {
            Cause::Lost => {
                self.pages_lost += 1;
                if let Some(error) = self.why_lost.take() {
                    self.lost.get_or_insert(error);
                }
            }
            Cause::Failed => self.give_up(),
            Cause::Refused => unreachable!("the right to use private memory is not asked for"),
            Cause::Full => {
                if self.failed.is_none() && self.lost.is_none() {
                    let full = || Error::Full { what: "far memory".into() };
                    let why = self.no_more.take();
                    let why = why.filter(|error| error.code() != Some(ErrorCode::OutOfMemory));
                    self.fail(why.unwrap_or_else(full));
                }
            }
        }
    }

    /// Far memory takes and gives nothing any more.
    fn give_up(&mut self) {
        let rack = || Error::Unreachable { what: "the rack".into() };
        let error = self.why.take();
        self.failed.get_or_insert_with(|| error.unwrap_or_else(rack));
    }

    /// What came of an operation.
    fn outcome(&mut self, result: Result<(), Error>, purpose: Purpose) -> Outcome {
        let Err(error) = result else { return Outcome::Done };
        let is_lost = matches!(error, Error::MemoryLost { .. });
        match purpose {
            Purpose::Fetch { .. } if is_lost => {
                self.why_lost = Some(error);
                Outcome::Lost
            }
            // Its pages are written wholly: what was there before may be lost.
            Purpose::WriteBack { addr, len, .. }
                if is_lost && self.client.accept_lost(addr, len).is_err() =>
            {
                self.why = Some(error);
                Outcome::Lost
            }
            _ => {
                self.why = Some(error);
                Outcome::Failed
            }
        }
    }
}

impl Pager {
    /// Waits for one operation, and takes the ends of all that have ended then.
    pub(super) fn wait(&mut self) {
        match self.far.client.next_completed() {
            Ok(Some(completed)) => self.ended(completed),
            Ok(None) => {}
            Err(error) => self.link_lost(error),
        }
        self.take_ends();
    }

    /// Takes the ends of all that has ended.
    pub(super) fn take_ends(&mut self) {
        while let Some(completed) = self.far.client.poll_ended() {
            self.ended(completed);
        }
    }

    pub(super) fn ended(&mut self, completed: Completed) {
        let Completed { ticket, result, buf } = completed;
        let Some(at) = self.far.under_way.iter().position(|(of, _)| *of == ticket) else {
            return; // the client's own
        };
        let (_, purpose) = self.far.under_way.swap_remove(at);
        let outcome = self.far.outcome(result.map(|_| ()), purpose);
        if let Purpose::Fetch { first, .. } = purpose {
            self.far.arrived = (first, buf);
            self.end(purpose, outcome);
            let (_, buf) = std::mem::take(&mut self.far.arrived);
            self.far.client.recycle(buf);
        } else {
            self.far.client.recycle(buf);
            self.end(purpose, outcome);
        }
        self.carried_out();
    }

    fn end(&mut self, purpose: Purpose, outcome: Outcome) {
        let (private, mut outside) = self.parts();
        match purpose {
            Purpose::Fetch { op, .. } => private.fetched(op, outcome, &mut outside),
            Purpose::WriteBack { op, .. } => private.written_back(op, outcome, &mut outside),
        }
    }

    /// To be called when pages were seen to: what the client did not take has failed.
    pub(super) fn carried_out(&mut self) {
        while let Some(refused) = self.far.refused.pop() {
            self.end(refused, Outcome::Failed);
        }
        if self.private.cache().has_failed() {
            self.far.give_up();
        }
    }

    pub(super) fn link_lost(&mut self, error: Error) {
        self.far.fail(error);
        self.far.under_way.clear();
        let (private, mut outside) = self.parts();
        private.abandon(&mut outside);
        self.carried_out();
    }

    /// The name of the memory node that has this address of far memory, as far as the pager knows: for who tells people which one failed.
    #[must_use]
    pub fn name_of_node_at(&self, addr: VirtAddr) -> Option<String> {
        self.far.client.name_of_node_at(addr)
    }

    /// The pages are zeros from now on, wherever they were. What the program sees of them is the caller's to discard.
    pub(super) fn forget(&mut self, key: u32, pages: std::ops::Range<u64>) {
        loop {
            let (private, mut outside) = self.parts();
            if private.forget(key, pages.clone(), &mut outside) {
                return;
            }
            // Others need bytes of theirs, and there is no place for them before others are written back.
            if self.far.under_way.is_empty() {
                self.private_turn();
            }
            if self.far.under_way.is_empty() {
                self.far.told(Cause::Full);
                let (private, mut outside) = self.parts();
                return private.give_up(key, pages, &mut outside);
            }
            self.wait();
        }
    }

    pub(super) fn private_turn(&mut self) {
        let (private, mut outside) = self.parts();
        private.turn(&mut outside);
        self.carried_out();
    }
}

/// Bytes of so many pages.
pub(super) const fn bytes(pages: u64) -> u64 {
    pages * PAGE_LEN as u64
}
