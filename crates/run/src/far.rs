//! The pager's access to far memory: outstanding READs and WRITEs, the reasons of failures, and lost pages.
//!
//! A restarted node has lost its bytes; pages that are on this host are not lost (PROTOCOL 9.19). A program
//! that accesses a lost page gets SIGBUS, and [`Pager::serve_program`] returns the reason. All other programs continue.
//! A write-back carries a page's latest bytes, so it first accepts the loss of the old ones. No other client
//! reads this memory, and the programs end with their pager.

use super::Pager;
use farmem_client::{Client, Completed, Error, Ticket};
use farmem_control::api::ErrorCode;
use farmem_host::Op;
use farmem_paging::{Cause, Op as Number, Outcome};
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;

/// The purpose of an outstanding operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Fetch { op: Number, first: u64 },
    WriteBack { op: Number, addr: VirtAddr, len: u64 },
}

/// The client and the pager's outstanding operations.
#[derive(Debug)]
pub(super) struct Far {
    pub(super) client: Client,
    pub(super) under_way: Vec<(Ticket, Purpose)>,
    /// Operations that the client rejected.
    refused: Vec<Purpose>,
    /// First page and bytes of the READ that has just completed.
    pub(super) arrived: (u64, Vec<u8>),
    /// Causes of the latest failure and of the latest loss.
    why: Option<Error>,
    why_lost: Option<Error>,
    /// The rack's reason for its latest refusal of far memory.
    pub(super) no_more: Option<Error>,
    pub(super) failed: Option<Error>,
    /// The first loss of bytes that a program accessed; everything else continues.
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

    /// Records that a program cannot get a page, for the result of the run.
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

    /// Records that far memory is unreachable.
    fn give_up(&mut self) {
        let rack = || Error::Unreachable { what: "the rack".into() };
        let error = self.why.take();
        self.failed.get_or_insert_with(|| error.unwrap_or_else(rack));
    }

    /// Returns the outcome of an operation, and records its error.
    fn outcome(&mut self, result: Result<(), Error>, purpose: Purpose) -> Outcome {
        let Err(error) = result else { return Outcome::Done };
        let is_lost = matches!(error, Error::MemoryLost { .. });
        match purpose {
            Purpose::Fetch { .. } if is_lost => {
                self.why_lost = Some(error);
                Outcome::Lost
            }
            // The operation overwrites its pages entirely, so the loss of their old bytes is harmless.
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
    /// Waits for one operation, and handles all completed ones.
    pub(super) fn wait(&mut self) {
        match self.far.client.next_completed() {
            Ok(Some(completed)) => self.ended(completed),
            Ok(None) => {}
            Err(error) => self.link_lost(error),
        }
        self.take_ends();
    }

    /// Handles all completed operations.
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

    /// Fails the operations that the client rejected. Callers that acted on pages call this function
    /// afterwards.
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

    /// Returns the name of the memory node at an address of far memory, for error messages. `None` if the pager
    /// does not know it.
    #[must_use]
    pub fn name_of_node_at(&self, addr: VirtAddr) -> Option<String> {
        self.far.client.name_of_node_at(addr)
    }

    /// Turns the pages into zeros, wherever their bytes are. The caller discards the program's view of them.
    pub(super) fn forget(&mut self, key: u32, pages: std::ops::Range<u64>) {
        loop {
            let (private, mut outside) = self.parts();
            if private.forget(key, pages.clone(), &mut outside) {
                return;
            }
            // Other pages need these bytes, and a write-back must first make room for the copies.
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

/// Returns the length of so many pages in bytes.
pub(super) const fn bytes(pages: u64) -> u64 {
    pages * PAGE_LEN as u64
}
