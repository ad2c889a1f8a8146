//! [`FarMemory`] for a client: its verbs, with several reads or writes in flight.

use crate::client::Client;
use crate::error::Error;
use crate::far_memory::FarMemory;
use crate::operation::Vma;
use crate::policy::{Dispatched, Policy};
use farmem_control::api::NodeInfo;
use farmem_host::Op;
use farmem_traversal::Program;
use farmem_wire::{NodeId, VirtAddr};
use std::collections::VecDeque;

/// Maximum number of writes of [`FarMemory::write_many`] in flight.
const WRITES_MAX: usize = 8;

/// Maximum number of READs of [`FarMemory::read_many`] in flight: as many as a connection has.
const READS_MAX: usize = 16;

impl FarMemory for Client {
    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        Self::read(self, addr, into)
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        Self::write(self, addr, data)
    }

    fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        Self::compare_swap(self, addr, compare, swap)
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error> {
        Self::fetch_add(self, addr, add)
    }

    fn dispatch(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
        policy: &Policy,
    ) -> Result<Dispatched, Error> {
        Self::dispatch(self, program, start, scratch, limit, policy)
    }

    fn allocate(&mut self, size: u64) -> Result<Vma, Error> {
        Self::allocate(self, size)
    }

    fn allocate_on(&mut self, size: u64, node: NodeId) -> Result<Vma, Error> {
        Self::allocate_on(self, size, node)
    }

    fn free(&mut self, base: VirtAddr) -> Result<(), Error> {
        Self::free(self, base)
    }

    fn nodes(&self) -> &[NodeInfo] {
        Self::nodes(self)
    }

    fn scratch_len_max(&self) -> usize {
        Self::scratch_len_max(self)
    }

    fn write_many(&mut self, writes: &[(VirtAddr, &[u8])]) -> Result<(), Error> {
        let mut under_way = VecDeque::with_capacity(WRITES_MAX);
        let mut failed = None;
        for (addr, data) in writes {
            if under_way.len() == WRITES_MAX
                && let Some(ticket) = under_way.pop_front()
            {
                failed = end_of_write(self, ticket)?.or(failed);
            }
            if failed.is_some() {
                break;
            }
            let mut buf = Self::buffer(self, 0);
            buf.extend_from_slice(data);
            under_way.push_back(self.submit(Op::Write { addr: *addr, buf })?);
        }
        for ticket in under_way {
            failed = end_of_write(self, ticket)?.or(failed);
        }
        failed.map_or(Ok(()), Err)
    }

    fn read_many(&mut self, reads: &mut [(VirtAddr, &mut [u8])]) -> Result<(), Error> {
        let mut failed = None;
        for together in reads.chunks_mut(READS_MAX) {
            let mut tickets = Vec::with_capacity(together.len());
            for (addr, into) in together.iter() {
                let buf = Self::buffer(self, into.len());
                tickets.push(self.submit(Op::Read { addr: *addr, buf })?);
            }
            for (ticket, (_, into)) in tickets.into_iter().zip(together) {
                let completed = self.wait(ticket)?;
                match completed.result {
                    Ok(_) => into.copy_from_slice(&completed.buf),
                    Err(error) => failed = Some(error),
                }
                Self::recycle(self, completed.buf);
            }
            if failed.is_some() {
                break;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn buffer(&mut self, len: usize) -> Vec<u8> {
        Self::buffer(self, len)
    }

    fn recycle(&mut self, buf: Vec<u8>) {
        Self::recycle(self, buf);
    }
}

/// Waits for a write, and returns its error, if any.
fn end_of_write(client: &mut Client, ticket: crate::Ticket) -> Result<Option<Error>, Error> {
    let completed = client.wait(ticket)?;
    client.recycle(completed.buf);
    Ok(completed.result.err())
}
