//! How a window's READs and WRITEs go: straight to memory nodes, or by way of a DPU's cache.

use super::beside::Beside;
use super::through::Through;
use farmem_client::{Answer, Client, Completed, Error, Op, Ticket};
use farmem_dpu_server::Foresight;
use farmem_wire::VirtAddr;

/// Names an operation of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Name {
    /// An operation of the client.
    Client(Ticket),
    /// One that goes by way of the DPU.
    Dpu(u64),
}

/// An operation that ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) name: Name,
    pub(super) result: Result<Answer, Error>,
    pub(super) buf: Vec<u8>,
    /// Its bytes are in the window's file, and not in `buf`.
    pub(super) placed: bool,
}

impl From<Completed> for Ended {
    fn from(Completed { ticket, result, buf }: Completed) -> Self {
        Self { name: Name::Client(ticket), result, buf, placed: false }
    }
}

/// Carries out READs and WRITEs.
#[derive(Debug)]
pub(super) enum Verbs<'a> {
    Direct(&'a mut Client),
    Through(Box<Through<'a>>),
    Beside(Box<Beside<'a>>),
}

impl Verbs<'_> {
    pub(super) const fn client(&mut self) -> &mut Client {
        match self {
            Self::Direct(client) => client,
            Self::Through(through) => through.client(),
            Self::Beside(beside) => beside.client(),
        }
    }

    /// Tells the DPU, where there is one, how a part of the window is prefetched: its first byte, and how many.
    pub(super) fn advise(&mut self, part: (u64, u64), policy: Foresight) {
        match self {
            Self::Direct(_) => {}
            Self::Through(through) => through.advise(part, policy),
            Self::Beside(beside) => beside.advise(part, policy),
        }
    }

    /// Advice that the DPU did not take, as far as it has said.
    pub(super) const fn refused(&self) -> u64 {
        match self {
            Self::Direct(_) => 0,
            Self::Through(through) => through.refused(),
            Self::Beside(beside) => beside.refused(),
        }
    }

    /// Begins to read `len` bytes.
    pub(super) fn fetch(&mut self, addr: VirtAddr, len: usize) -> Result<Name, Error> {
        match self {
            Self::Beside(beside) if beside.is_placed() => {
                Ok(Name::Dpu(beside.submit_placed(addr, len, false)))
            }
            _ => {
                let buf = self.client().buffer(len);
                self.submit(Op::Read { addr, buf })
            }
        }
    }

    /// Begins to write `len` bytes of the window; `read` appends them to what it is given.
    pub(super) fn write_back(
        &mut self,
        addr: VirtAddr,
        len: usize,
        read: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Name, Error> {
        match self {
            Self::Beside(beside) if beside.is_placed() => {
                Ok(Name::Dpu(beside.submit_placed(addr, len, true)))
            }
            _ => {
                let mut buf = self.client().buffer(0);
                read(&mut buf);
                self.submit(Op::Write { addr, buf })
            }
        }
    }

    fn submit(&mut self, op: Op) -> Result<Name, Error> {
        match self {
            Self::Direct(client) => client.submit(op).map(Name::Client),
            Self::Through(through) => Ok(Name::Dpu(through.submit(op))),
            Self::Beside(beside) => Ok(Name::Dpu(beside.submit(op))),
        }
    }

    /// Sends all that was begun: a DPU beside the host is told of all of it at once.
    pub(super) fn leave(&mut self) {
        if let Self::Beside(beside) = self {
            beside.send();
        }
    }

    /// As [`Client::poll`].
    pub(super) fn poll(&mut self) -> Result<Option<Ended>, Error> {
        match self {
            Self::Direct(client) => Ok(client.poll()?.map(Ended::from)),
            Self::Through(through) => through.poll(),
            Self::Beside(beside) => beside.poll(),
        }
    }

    /// As [`Client::poll_ended`].
    pub(super) fn poll_ended(&mut self) -> Option<Ended> {
        match self {
            Self::Direct(client) => client.poll_ended().map(Ended::from),
            Self::Through(through) => through.poll_ended(),
            Self::Beside(beside) => beside.poll_ended(),
        }
    }

    /// As [`Client::next_completed`].
    pub(super) fn next_completed(&mut self) -> Result<Option<Ended>, Error> {
        match self {
            Self::Direct(client) => Ok(client.next_completed()?.map(Ended::from)),
            Self::Through(through) => through.next_completed(),
            Self::Beside(beside) => beside.next_completed(),
        }
    }

    /// Waits for what no page waits for: what is prefetched. Ends of other operations of the client are handed over.
    pub(super) fn settle(&mut self) -> Vec<Ended> {
        match self {
            Self::Direct(_) | Self::Beside(_) => Vec::new(),
            Self::Through(through) => through.settle(),
        }
    }
}
