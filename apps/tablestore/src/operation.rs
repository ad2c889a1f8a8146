//! Scans and inserts, as tasks.

use crate::model::Moment;
use crate::values::{VALUE_LEN, compose};
use crate::{State, Store};
use farmem::btree::{BTree, RecordScan};
use farmem::{Error, FarMemory, Next, Op, OpQueue, Task, VirtAddr};
use farmem_workload::ycsb::{self, hash};
use std::cell::RefCell;
use std::rc::Rc;

/// The operations of a workload, in order.
#[derive(Clone)]
pub struct Operations {
    state: Rc<RefCell<State>>,
    operations: ycsb::Operations,
}

impl core::fmt::Debug for Operations {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Operations").field("operations", &self.operations).finish_non_exhaustive()
    }
}

impl Operations {
    pub(crate) const fn new(state: Rc<RefCell<State>>, operations: ycsb::Operations) -> Self {
        Self { state, operations }
    }
}

impl Store {
    /// Returns a scan of the first `most` records whose key is at least `from`.
    #[must_use]
    pub fn scan(&self, from: u64, most: usize) -> Operation {
        Operation { state: Rc::clone(&self.0), request: Request::Scan(Scan::new(from, most)) }
    }

    /// Returns an insert of a record under `key`; the value is derived from the key.
    #[must_use]
    pub fn insert(&self, key: u64) -> Operation {
        Operation { state: Rc::clone(&self.0), request: Request::Insert(Insert::new(key)) }
    }
}

impl Iterator for Operations {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        let operation = self.operations.next()?;
        let key = hash(operation.record());
        let request = match operation {
            ycsb::Operation::Scan { len, .. } => Request::Scan(Scan::new(key, index(len))),
            ycsb::Operation::Read { .. } => Request::Scan(Scan::new(key, 1)),
            ycsb::Operation::Insert { .. }
            | ycsb::Operation::Update { .. }
            | ycsb::Operation::ReadModifyWrite { .. } => Request::Insert(Insert::new(key)),
        };
        Some(Operation { state: Rc::clone(&self.state), request })
    }
}

/// A running operation.
pub struct Operation {
    state: Rc<RefCell<State>>,
    request: Request,
}

enum Request {
    Scan(Scan),
    Insert(Insert),
}

impl core::fmt::Debug for Operation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Operation").field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Operation {
    /// Returns the kind of the operation.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.request {
            Request::Scan(_) => "scan",
            Request::Insert(_) => "insert",
        }
    }

    /// Returns the keys that a scan has found, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<u64> {
        match &self.request {
            Request::Scan(Scan { under_way: Some((_, scan)), .. }) => {
                scan.pairs().iter().map(|pair| pair.0).collect()
            }
            Request::Scan(_) | Request::Insert(_) => Vec::new(),
        }
    }
}

impl Task for Operation {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        let mut state = self.state.borrow_mut();
        match &mut self.request {
            Request::Scan(scan) => scan.next(&mut state, queue),
            Request::Insert(insert) => insert.next(&mut state, queue),
        }
    }

    fn alone(&mut self, memory: &mut dyn FarMemory) -> Result<(), Error> {
        let Request::Insert(Insert { key, place, .. }) = self.request else { return Ok(()) };
        let mut state = self.state.borrow_mut();
        state.cuts += 1;
        state.tree.insert(memory, key, place.0)?;
        Ok(())
    }
}

/// A scan, with its start time.
struct Scan {
    from: u64,
    most: usize,
    under_way: Option<(Moment, RecordScan)>,
}

impl Scan {
    const fn new(from: u64, most: usize) -> Self {
        Self { from, most, under_way: None }
    }

    fn next(&mut self, state: &mut State, queue: &mut OpQueue) -> Result<Next, Error> {
        let begin = || (state.model.now(), state.records.scan(self.from.., self.most));
        let (began, scan) = self.under_way.get_or_insert_with(begin);
        let next = scan.next(queue)?;
        if next == Next::Done && state.check && !is_right(self.from, self.most, *began, scan, state) {
            state.wrong += 1;
        }
        Ok(next)
    }
}

fn is_right(from: u64, most: usize, began: Moment, scan: &RecordScan, state: &State) -> bool {
    let mut value = Vec::with_capacity(VALUE_LEN);
    state.model.allows(from, most, began, scan.pairs().iter().map(|pair| pair.0))
        && scan.iter().all(|(key, got)| {
            value.clear();
            compose(key, &mut value);
            value == got
        })
}

/// The key of the one lock that every insert takes.
const WRITERS: u64 = 0;

/// The next step of an insert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Wait for the lock.
    Wait,
    /// Write the value, and look for the leaf.
    Look,
    /// Read the leaf.
    Fetch,
    /// Write the leaf, or split it.
    Put {
        /// The leaf's address.
        leaf: VirtAddr,
    },
    /// The insert is done.
    Settle,
}

struct Insert {
    key: u64,
    place: VirtAddr,
    step: Step,
}

impl Insert {
    const fn new(key: u64) -> Self {
        Self { key, place: VirtAddr(0), step: Step::Wait }
    }

    fn next(&mut self, state: &mut State, queue: &mut OpQueue) -> Result<Next, Error> {
        match self.step {
            Step::Wait => {
                self.step = Step::Look;
                return Ok(Next::Turn(WRITERS));
            }
            Step::Look => {
                state.model.begin(self.key);
                self.place = state.values.take()?;
                let scratch = queue.buffer();
                queue.need(state.tree.find_op(self.key, scratch));
                let mut value = queue.buffer();
                compose(self.key, &mut value);
                queue.need(Op::Write { addr: self.place, buf: value });
                self.step = Step::Fetch;
            }
            Step::Fetch => {
                let both = queue.take().zip(queue.take());
                let (looked, written) = both.expect("two operations were needed");
                written.result?;
                let leaf = BTree::leaf_found(&looked);
                looked.result?;
                let leaf = leaf.expect("a traversal that did not fail has an end");
                queue.recycle(written.buf);
                queue.need(BTree::leaf_op(leaf, looked.buf));
                self.step = Step::Put { leaf };
            }
            Step::Put { leaf } => return self.put(state, leaf, queue),
            Step::Settle => {
                if let Some(written) = queue.take() {
                    written.result?; // nothing was under way when the leaf was cut
                }
                state.model.settle(self.key);
                return Ok(Next::Done);
            }
        }
        Ok(Next::Need)
    }

    fn put(&mut self, state: &State, leaf: VirtAddr, queue: &mut OpQueue) -> Result<Next, Error> {
        let read = queue.one();
        read.result?;
        let buf = queue.buffer();
        let put = state.tree.put_op(leaf, &read.buf, (self.key, self.place.0), buf)?;
        queue.recycle(read.buf);
        self.step = Step::Settle;
        Ok(match put {
            Some(op) => {
                queue.need(op);
                Next::Need
            }
            None => Next::Alone,
        })
    }
}

fn index(n: u32) -> usize {
    usize::try_from(n).expect("farmem runs on 64-bit machines")
}
