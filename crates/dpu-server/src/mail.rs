//! Notices of other threads to the door of a DPU, which waits for none of them and answers a process when it has heard.

use super::clerk::Open;
use super::words::{Carried, Said};
use farmem_client::api::VmaInfo;
use farmem_link::WakeAt;
use farmem_link::dpu::Bell;
use farmem_prefetch::Prefetched;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// A process's request that is answered later. The process asks nothing else until then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Question {
    pub(super) guest: u32,
    /// Which of the process's.
    pub(super) number: u64,
}

/// A notice to the door.
#[derive(Debug)]
pub(super) enum Came {
    /// By the clerk: the allocation that is to be opened, or what the process is told.
    Found { open: Open, found: Result<VmaInfo, Said> },
    /// By the thread of the domain: it is done, or cannot be.
    Done(bool),
    /// By the same: what was done for requests of the process's threads.
    Carried(Carried),
    /// By a thread that prefetches: where it is woken, or what the process is told.
    Prefetches(Result<WakeAt, Said>),
    /// By the same: what it did.
    Prefetched(Box<Prefetched>),
    /// By a thread that mirrors, or is to: what the process is told, and what all that is mirrored for it takes then.
    Mirrors { said: Said, bytes: u64 },
}

/// Where the door is told things.
#[derive(Clone, Debug)]
pub(super) struct Mail {
    pub(super) to: Sender<(Question, Came)>,
    pub(super) bell: Arc<Bell>,
}

impl Mail {
    pub(super) fn say(&self, question: Question, came: Came) {
        // A door that has gone asks nothing.
        let _gone = self.to.send((question, came));
        self.bell.ring();
    }

    /// An answer to this question, for the thread of a domain.
    pub(super) fn reply(&self, question: Question) -> Reply {
        Reply { mail: self.clone(), question }
    }
}

/// The answer that the thread of a domain owes the door.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    mail: Mail,
    question: Question,
}

impl Reply {
    pub(super) fn say(self, is_done: bool) {
        self.mail.say(self.question, Came::Done(is_done));
    }

    pub(super) fn say_prefetched(self, prefetched: Prefetched) {
        self.mail.say(self.question, Came::Prefetched(Box::new(prefetched)));
    }

    pub(super) fn say_mirrors(self, said: Said, bytes: u64) {
        self.mail.say(self.question, Came::Mirrors { said, bytes });
    }

    pub(super) fn say_carried(self, carried: Carried) {
        self.mail.say(self.question, Came::Carried(carried));
    }
}
