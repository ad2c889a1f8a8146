//! Notices of other threads to the door of a DPU. The door waits for none of them, and answers a process when the
//! notice has come.

use super::control_rpc::Open;
use super::journal::Holding;
use super::messages::{Carried, DpuMessage};
use farmem_client::api::VmaInfo;
use farmem_link::WakeAt;
use farmem_link::dpu::Bell;
use farmem_prefetch::Prefetched;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// A process's request that is answered later. The process sends no other request until then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Question {
    pub(super) session: u32,
    /// The number among the requests of the session.
    pub(super) number: u64,
}

/// A notice to the door.
#[derive(Debug)]
pub(super) enum Notice {
    /// From the control thread: the allocation to open, or the refusal.
    Found { open: Open, found: Result<VmaInfo, DpuMessage> },
    /// From the control thread: the holdings of an earlier DPU's processes that are closed now, or the refusal.
    Released { open: Open, vma: VmaInfo, released: Result<Vec<Holding>, DpuMessage> },
    /// From the domain's thread: true if the order was executed.
    Done(bool),
    /// From the domain's thread: the counts for requests of the process.
    Carried(Carried),
    /// From a prefetching thread: its doorbell, or the refusal.
    Prefetches(Result<WakeAt, DpuMessage>),
    /// From a prefetching thread: its counts.
    Prefetched(Box<Prefetched>),
    /// From a mirroring thread: the answer for the process, and the bytes that its mirror takes from now on.
    Mirrors { said: DpuMessage, bytes: u64 },
}

/// The sending end of the door's notices.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    pub(super) to: Sender<(Question, Notice)>,
    pub(super) bell: Arc<Bell>,
}

impl Mailbox {
    pub(super) fn say(&self, question: Question, came: Notice) {
        // A door that has ended needs no notice.
        let _gone = self.to.send((question, came));
        self.bell.ring();
    }

    /// Returns the reply to this question, for a thread of a domain.
    pub(super) fn reply(&self, question: Question) -> Reply {
        Reply { mailbox: self.clone(), question }
    }
}

/// The reply that a thread owes the door.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    mailbox: Mailbox,
    question: Question,
}

impl Reply {
    pub(super) fn say(self, is_done: bool) {
        self.mailbox.say(self.question, Notice::Done(is_done));
    }

    pub(super) fn say_prefetched(self, prefetched: Prefetched) {
        self.mailbox.say(self.question, Notice::Prefetched(Box::new(prefetched)));
    }

    pub(super) fn say_mirrors(self, said: DpuMessage, bytes: u64) {
        self.mailbox.say(self.question, Notice::Mirrors { said, bytes });
    }

    pub(super) fn say_carried(self, carried: Carried) {
        self.mailbox.say(self.question, Notice::Carried(carried));
    }
}
