//! Look-ups of a table by a prefetcher: many in flight, each one traversal.

use super::node::{BODY, Contents, Node, pad, unpair};
use super::{CHAIN_MAX, Key, Table};
use crate::heap::{Decoded, Heap, HeapOptions, decode};
use farmem_client::{Answer, Client, Completed, Error, LookUp, LookedUp, Op};
use farmem_wire::VirtAddr;

/// A table and its heap, for look-ups in advance of the values' consumers. The heap is pinned while look-ups
/// are in flight, as for any reader.
#[derive(Debug)]
pub struct TableLookUp {
    table: Table,
    heap: Heap,
}

impl TableLookUp {
    /// Creates look-ups from a table and the heap in which it was opened.
    #[must_use]
    pub const fn new(table: Table, heap: Heap) -> Self {
        Self { table, heap }
    }

    /// Opens the table that another process described, as a member of the heap like any program (PROTOCOL
    /// 19.15).
    pub(crate) fn open(client: &mut Client, heap: &str, table: &str) -> Result<Self, Error> {
        let mut heap = Heap::open(client, heap, HeapOptions::default())?;
        match Table::open(client, &mut heap, table) {
            Ok(table) => Ok(Self { table, heap }),
            Err(error) => {
                // The first error is returned, not this one.
                let _silent = heap.leave(client);
                Err(error)
            }
        }
    }
}

impl LookUp for TableLookUp {
    fn begin(&mut self, client: &mut Client) -> Result<(), Error> {
        self.heap.pin(client)
    }

    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op> {
        let (cur_ptr, _, scratch) = self.table.start(&Key::new(key).ok()?, scratch);
        Some(Op::Traverse { program: self.table.program.clone(), cur_ptr, scratch, limit: CHAIN_MAX })
    }

    fn place(&self, key: &[u8]) -> Option<usize> {
        Key::new(key).ok().map(|_| 0)
    }

    /// Leaves a key to [`Table::get`] if another key with the same 128 bits of hash comes before it in the
    /// chain.
    fn looked_up(&self, _: usize, key: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp {
        let pad = &completed.buf;
        let returned = matches!(&completed.result, Ok(Answer::Traversed(end)) if end.returned);
        if !returned || pad.len() < pad::LINES {
            return LookedUp::Elsewhere;
        }
        let word = |at: usize| u64::from_le_bytes(pad[at..at + 8].try_into().expect("8 bytes"));
        if word(pad::FOUND) != 1 {
            return LookedUp::Absent;
        }
        let content = match Node::parse(&pad[pad::NODE..pad::LINES], VirtAddr(word(pad::AT))) {
            Ok(Node { held: Contents::Whole(content), .. }) => content,
            Ok(_) => match decode(&pad[pad::LINES..]) {
                Decoded::Whole { kind: BODY, content } => content,
                _ => return LookedUp::Elsewhere,
            },
            Err(_) => return LookedUp::Elsewhere,
        };
        match unpair(&content, VirtAddr(word(pad::AT))) {
            Ok((found, value)) if found == key => {
                into.extend_from_slice(value);
                LookedUp::Value
            }
            _ => LookedUp::Elsewhere,
        }
    }

    fn end(&mut self, client: &mut Client) -> Result<(), Error> {
        let still = self.heap.confirm_membership(client);
        self.heap.unpin();
        still
    }

    fn leave(&mut self, client: &mut Client) -> Result<(), Error> {
        self.heap.leave(client)
    }
}
