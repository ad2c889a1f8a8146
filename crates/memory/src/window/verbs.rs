//! The paths of a window's READs and WRITEs: directly to memory nodes, or through a DPU's cache.

use super::dpu_path::DpuPath;
use super::parts::{Ended, Name};
use super::through::Through;
use farmem_client::{Client, Error, Op};
use farmem_dpu_server::Foresight;
use farmem_wire::VirtAddr;

/// The executor of READs and WRITEs.
#[derive(Debug)]
pub(super) enum Verbs<'a> {
    Direct(&'a mut Client),
    Through(Box<Through<'a>>),
    DpuProcess(Box<DpuPath<'a>>),
}

impl Verbs<'_> {
    pub(super) const fn client(&mut self) -> &mut Client {
        match self {
            Self::Direct(client) => client,
            Self::Through(through) => through.client(),
            Self::DpuProcess(beside) => beside.client(),
        }
    }

    /// Passes the prefetch policy for a part of the window, given as offset and length, to the DPU, if there
    /// is one.
    pub(super) fn advise(&mut self, part: (u64, u64), policy: Foresight) {
        match self {
            Self::Direct(_) => {}
            Self::Through(through) => through.advise(part, policy),
            Self::DpuProcess(beside) => beside.advise(part, policy),
        }
    }

    /// Returns the number of hints that the DPU is known to have refused.
    pub(super) const fn refused(&self) -> u64 {
        match self {
            Self::Direct(_) => 0,
            Self::Through(through) => through.refused(),
            Self::DpuProcess(beside) => beside.refused(),
        }
    }

    /// Starts to read `len` bytes.
    pub(super) fn fetch(&mut self, addr: VirtAddr, len: usize) -> Result<Name, Error> {
        match self {
            Self::DpuProcess(beside) if beside.is_placed() => {
                Ok(Name::Dpu(beside.submit_placed(addr, len, false)))
            }
            _ => {
                let buf = self.client().buffer(len);
                self.submit(Op::Read { addr, buf })
            }
        }
    }

    /// Starts to write `len` bytes of the window; `read` appends them to its argument.
    pub(super) fn write_back(
        &mut self,
        addr: VirtAddr,
        len: usize,
        read: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Name, Error> {
        match self {
            Self::DpuProcess(beside) if beside.is_placed() => {
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
            Self::DpuProcess(beside) => Ok(Name::Dpu(beside.submit(op))),
        }
    }

    /// Sends all started operations: a DPU in another process gets all of them in one batch.
    pub(super) fn leave(&mut self) {
        if let Self::DpuProcess(beside) = self {
            beside.send();
        }
    }

    /// Returns the next completion as [`Client::poll`] does.
    pub(super) fn poll(&mut self) -> Result<Option<Ended>, Error> {
        match self {
            Self::Direct(client) => Ok(client.poll()?.map(Ended::from)),
            Self::Through(through) => through.poll(),
            Self::DpuProcess(beside) => beside.poll(),
        }
    }

    /// Returns the next completion as [`Client::poll_ended`] does.
    pub(super) fn poll_ended(&mut self) -> Option<Ended> {
        match self {
            Self::Direct(client) => client.poll_ended().map(Ended::from),
            Self::Through(through) => through.poll_ended(),
            Self::DpuProcess(beside) => beside.poll_ended(),
        }
    }

    /// Waits for the next completion as [`Client::next_completed`] does.
    pub(super) fn next_completed(&mut self) -> Result<Option<Ended>, Error> {
        match self {
            Self::Direct(client) => Ok(client.next_completed()?.map(Ended::from)),
            Self::Through(through) => through.next_completed(),
            Self::DpuProcess(beside) => beside.next_completed(),
        }
    }

    /// Ends the use of the path: waits for prefetches, for which no page waits, and tells a DPU that no write is in
    /// flight. Returns completions of other operations of the client.
    pub(super) fn settle(&mut self) -> Vec<Ended> {
        match self {
            Self::Direct(_) => Vec::new(),
            Self::DpuProcess(beside) => {
                beside.finish();
                Vec::new()
            }
            Self::Through(through) => through.settle(),
        }
    }
}
