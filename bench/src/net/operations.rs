//! Measured operations, and their bytes on the wire.

use farmem::hash_table::{HashTable, Key, Spread, VALUE_LEN};
use farmem::{Client, Error, NodeId, Vma};

/// Measured operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Read64,
    Read4k,
    Write64,
    Write4k,
    CompareSwap,
    FetchAdd,
    Traverse1,
}

/// All operations, in the order of the table.
pub(super) const ALL: [Operation; 7] = [
    Operation::Read64,
    Operation::Read4k,
    Operation::Write64,
    Operation::Write4k,
    Operation::CompareSwap,
    Operation::FetchAdd,
    Operation::Traverse1,
];

/// Length of BTH and ICRC, which every packet has.
const BARE: usize = 12 + 4;
/// Length of a RETH.
const RETH: usize = 16;
/// Length of an AETH.
const AETH: usize = 4;
/// Length of a traversal of the hash table: DETH, message header, traversal and scratch pad.
const TRAVERSAL: usize = 8 + 24 + 40 + 56;

impl Operation {
    /// Returns the operation's part of the row id.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Read64 => "read64",
            Self::Read4k => "read4k",
            Self::Write64 => "write64",
            Self::Write4k => "write4k",
            Self::CompareSwap => "cas",
            Self::FetchAdd => "fadd",
            Self::Traverse1 => "traverse1",
        }
    }

    /// Returns the lengths of the request's and the answer's UDP payload, in bytes (docs/protocol.md,
    /// sections 2 and 3).
    pub(super) const fn sizes(self) -> (usize, usize) {
        match self {
            Self::Read64 => (BARE + RETH, BARE + AETH + 64),
            Self::Read4k => (BARE + RETH, BARE + AETH + 4096),
            Self::Write64 => (BARE + RETH + 64, BARE + AETH),
            Self::Write4k => (BARE + RETH + 4096, BARE + AETH),
            Self::CompareSwap | Self::FetchAdd => (BARE + 28, BARE + AETH + 8),
            Self::Traverse1 => (BARE + TRAVERSAL, BARE + TRAVERSAL),
        }
    }

    /// Returns true for the path host, switch, node, host. The other path is host, node, host.
    pub(super) const fn is_triangle(self) -> bool {
        matches!(self, Self::Traverse1)
    }
}

/// Far memory of the measurement: a buffer, and a hash table with one entry, which a traversal finds in one
/// iteration on one node.
pub(super) struct Fixture {
    vma: Vma,
    table: HashTable,
    key: Key,
    page: Vec<u8>,
}

impl Fixture {
    /// Allocates the buffer and the table, and uses every path once.
    pub(super) fn new(client: &mut Client) -> Result<Self, Error> {
        let node = client.nodes().first().map_or(1, |n| n.node);
        let vma = client.allocate_on(1 << 20, NodeId(node))?;
        let mut table = HashTable::create(client, 1, 1, Spread::Partitioned)?;
        let key = Key::of(b"the one");
        table.insert(client, key, &[7; VALUE_LEN])?;
        let mut bed = Self { vma, table, key, page: vec![0; 4096] };
        for operation in ALL {
            bed.once(client, operation)?;
        }
        Ok(bed)
    }

    /// Performs an operation once, and checks everything that is free of cost.
    pub(super) fn once(&mut self, client: &mut Client, operation: Operation) -> Result<(), Error> {
        let base = self.vma.base;
        match operation {
            Operation::Read64 => client.read(base, &mut self.page[..64]),
            Operation::Read4k => client.read(base, &mut self.page),
            Operation::Write64 => client.write(base, &self.page[..64]),
            Operation::Write4k => client.write(base, &self.page),
            Operation::CompareSwap => client.compare_swap(base, 0, 0).map(drop),
            Operation::FetchAdd => client.fetch_add(base, 1).map(drop),
            Operation::Traverse1 => {
                let found = self.table.find(client, self.key)?;
                assert_eq!(found, Some([7; VALUE_LEN]), "the one entry is found");
                Ok(())
            }
        }
    }

    /// Returns the buffer.
    pub(super) const fn vma(&self) -> Vma {
        self.vma
    }
}
