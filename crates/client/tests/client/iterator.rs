//! Iterators over a rack in one process: a program in text form that reads, one that stores, limits and their
//! state, and errors.

use farmem_client::iterator::{Code, Cursor, Executed, FarIterator, Scratch};
use farmem_client::{Client, Error, FarMemory, NodeId, Policy, Program, Rack, TraversalStop, VirtAddr};

const LIST_ADD: &str = include_str!("../../../../testdata/programs/list_add.pulse");
const LIST_SUM: &str = include_str!("../../../../testdata/programs/list_sum.pulse");

/// Adds to every value of a list and returns the number of values.
#[derive(Debug)]
struct Add {
    head: VirtAddr,
    add: u64,
}

impl FarIterator for Add {
    type Output = u64;

    fn next(&self) -> Code<'_> {
        Code::Text(LIST_ADD)
    }

    fn init(&self, scratch: &mut Scratch) -> VirtAddr {
        scratch.set_word(0, self.add);
        self.head
    }

    fn end(&self, _last: VirtAddr, scratch: &Scratch) -> u64 {
        scratch.word(8)
    }
}

/// Sum, count and the last node of a list, by a shared program.
#[derive(Debug)]
struct Sum<'a> {
    head: VirtAddr,
    program: &'a Program,
}

impl FarIterator for Sum<'_> {
    type Output = (u64, u64, VirtAddr);

    fn next(&self) -> Code<'_> {
        Code::Program(self.program)
    }

    fn init(&self, _scratch: &mut Scratch) -> VirtAddr {
        self.head
    }

    fn end(&self, last: VirtAddr, scratch: &Scratch) -> Self::Output {
        (scratch.word(0), scratch.word(8), last)
    }
}

/// Builds a list of 1 to `len` whose nodes alternate between the memory nodes.
fn list(client: &mut Client, len: u64, nodes: u16) -> (VirtAddr, VirtAddr) {
    let rooms: Vec<u64> =
        (1..=nodes).map(|node| client.allocate_on(16 * len, NodeId(node)).unwrap().base.0).collect();
    let at = |n: u64| rooms[usize::try_from(n % u64::from(nodes)).unwrap()] + 16 * n;
    for n in 0..len {
        let next = if n + 1 < len { at(n + 1) } else { 0 };
        client.write(VirtAddr(at(n)), &[(n + 1).to_le_bytes(), next.to_le_bytes()].concat()).unwrap();
    }
    (VirtAddr(at(0)), VirtAddr(at(len - 1)))
}

/// Runs an iterator to its end in pieces. Returns the result and the iterations of each piece.
fn in_pieces<I: FarIterator>(
    cursor: Cursor<I>,
    memory: &mut impl FarMemory,
    limit: u32,
) -> Result<(I::Output, Vec<u64>), Error> {
    let (mut cursor, mut pieces) = (cursor, Vec::new());
    loop {
        match cursor.execute(memory, limit)? {
            Executed::Ended(output) => return Ok((output, pieces)),
            Executed::Paused(rest) => {
                pieces.push(rest.iterations());
                cursor = rest;
            }
        }
    }
}

/// At every site and with every cut, an iterator yields the same result and continues exactly where it
/// stopped (PULSE 3).
#[test]
fn an_iterator_reads_a_list_on_three_nodes() {
    let rack = Rack::embedded_with(3, 1 << 20).unwrap();
    let mut client = rack.client("lists").unwrap();
    let (head, last) = list(&mut client, 25, 3);
    let program = Program::assemble(LIST_SUM).unwrap();
    for policy in [Policy::default(), Policy::Offload, Policy::Host] {
        for (limit, stops) in [(1000, vec![]), (10, vec![10, 20]), (24, vec![24]), (25, vec![])] {
            let cursor = Cursor::new(Sum { head, program: &program }).unwrap().with_policy(policy);
            let (sum, pieces) = in_pieces(cursor, &mut client, limit).unwrap();
            assert_eq!((sum, pieces), ((325, 25, last), stops), "{policy:?} {limit}");
        }
    }
}

/// An iterator that stores changes every node once, also in pieces, and runs at the memory nodes only.
#[test]
fn an_iterator_adds_along_a_list_on_three_nodes() {
    let rack = Rack::embedded_with(3, 1 << 20).unwrap();
    let mut client = rack.client("lists").unwrap();
    let (head, last) = list(&mut client, 25, 3);
    let program = Program::assemble(LIST_SUM).unwrap();
    let sum = |client: &mut Client| {
        let cursor = Cursor::new(Sum { head, program: &program }).unwrap();
        in_pieces(cursor, client, 1000).unwrap().0
    };
    for (limit, times) in [(1000, 1), (7, 2), (1, 3)] {
        let (count, _) = in_pieces(Cursor::new(Add { head, add: 100 }).unwrap(), &mut client, limit).unwrap();
        assert_eq!(count, 25, "limit {limit}");
        assert_eq!(sum(&mut client), (325 + times * 2500, 25, last), "limit {limit}");
    }
    let at_host = Cursor::new(Add { head, add: 100 }).unwrap().with_policy(Policy::Host);
    let refused = at_host.execute(&mut client, 1000).unwrap_err();
    let reason = TraversalStop::StoresAtHost;
    assert!(matches!(refused, Error::Traversal { addr, reason: why } if addr == head && why == reason));
    assert_eq!(sum(&mut client).0, 325 + 3 * 2500);
}

/// Another domain may read the list but not write it. Reading succeeds; adding fails with the node that it
/// would have written.
#[test]
fn adding_needs_leave_to_write() {
    let rack = Rack::embedded_with(1, 1 << 20).unwrap();
    let mut owner = rack.client("owner").unwrap();
    let mut guest = rack.client("guest").unwrap();
    let (head, last) = list(&mut owner, 5, 1);
    owner.grant(head, 80, "guest", farmem_client::api::PermName::Read).unwrap();
    let program = Program::assemble(LIST_SUM).unwrap();
    let cursor = Cursor::new(Sum { head, program: &program }).unwrap().with_policy(Policy::Offload);
    assert_eq!(in_pieces(cursor, &mut guest, 100).unwrap().0, (15, 5, last));
    let refused = Cursor::new(Add { head, add: 1 }).unwrap().execute(&mut guest, 100).unwrap_err();
    let reason = TraversalStop::NoPermission;
    assert!(matches!(refused, Error::Traversal { addr, reason: why } if addr == head && why == reason));
    let cursor = Cursor::new(Sum { head, program: &program }).unwrap();
    assert_eq!(in_pieces(cursor, &mut owner, 100).unwrap().0.0, 15, "nothing was added");
}

/// Invalid code is refused when the cursor is created, with its position.
#[test]
fn code_is_verified_before_anything_runs() {
    let refused = Code::Text(" mov r1, 1\n st8 window[0], r1\n ret").program().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the iterator's text: line 2, column 2: the window is read-only in a program that does not declare `.stores`"
    );
    let refused = Code::Encoded(&[1, 0, 8]).program().unwrap_err();
    assert_eq!(refused.to_string(), "the iterator's code: the program needs 8 bytes, 3 are there");
}
