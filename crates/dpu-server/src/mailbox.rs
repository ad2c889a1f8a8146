//! Notices of other threads to the door of a DPU, which waits for none of them and answers a process when it has heard.

use super::control_rpc::Open;
use super::journal::Holding;
use super::messages::{Carried, DpuMessage};
use farmem_client::api::VmaInfo;
use farmem_link::WakeAt;
use farmem_link::dpu::Bell;
use farmem_prefetch::Prefetched;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// A process's request that is answered later. The process asks nothing else until then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Question {
    pub(super) session: u32,
    /// Which of the process's.
    pub(super) number: u64,
}

/// A notice to the door.
#[derive(Debug)]
pub(super) enum Notice {
    /// By the control thread: the allocation that is to be opened, or what the process is told.
    Found { open: Open, found: Result<VmaInfo, DpuMessage> },
    /// By the control thread: what processes of an earlier DPU had open and have closed, or what the process is told.
    Released { open: Open, vma: VmaInfo, released: Result<Vec<Holding>, DpuMessage> },
    /// By the thread of the domain: it is done, or cannot be.
    Done(bool),
    /// By the same: what was done for requests of the process's threads.
    Carried(Carried),
    /// By a thread that prefetches: where it is woken, or what the process is told.
    Prefetches(Result<WakeAt, DpuMessage>),
    /// By the same: what it did.
    Prefetched(Box<Prefetched>),
    /// By a thread that mirrors, or is to: what the process is told, and what all that is mirrored for it takes then.
    Mirrors { said: DpuMessage, bytes: u64 },
}

/// Where the door is told things.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    pub(super) to: Sender<(Question, Notice)>,
    pub(super) bell: Arc<Bell>,
}

impl Mailbox {
    pub(super) fn say(&self, question: Question, came: Notice) {
        // A door that has gone asks nothing.
        let _gone = self.to.send((question, came));
        self.bell.ring();
    }

    /// An answer to this question, for the thread of a domain.
    pub(super) fn reply(&self, question: Question) -> Reply {
        Reply { mailbox: self.clone(), question }
    }
}

/// The answer that the thread of a domain owes the door.
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
