//! A request, from the user's id to the response, as a task.

use crate::objects::{OBJECT_LEN, compose, index, is_composed, title};
use crate::{OPENED, State, key};
use farmem::hash_table::{HashTable, VALUE_LEN, Value};
use farmem::{Error, FarMemory, Next, Op, OpQueue, Task, VirtAddr};
use farmem_workload::ycsb::{Operation, Operations};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

/// Encodes a user's entry in the table: the object, and the user's own number.
pub(crate) fn entry(object: u64, user: u64) -> Value {
    let mut value = [0; VALUE_LEN];
    for (into, word) in value.chunks_exact_mut(8).zip([object, user]) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    value
}

/// Decodes the object and the user of an entry.
fn of_entry(value: &Value) -> [u64; 2] {
    let words = value.as_chunks().0;
    [0, 1].map(|n| u64::from_le_bytes(words[n]))
}

/// The requests of a workload, in order.
#[derive(Clone)]
pub struct Requests {
    state: Rc<RefCell<State>>,
    operations: Operations,
}

impl core::fmt::Debug for Requests {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Requests").field("operations", &self.operations).finish_non_exhaustive()
    }
}

impl Requests {
    pub(crate) const fn new(state: Rc<RefCell<State>>, operations: Operations) -> Self {
        Self { state, operations }
    }
}

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let operation = self.operations.next()?;
        let update = matches!(
            operation,
            Operation::Update { .. } | Operation::Insert { .. } | Operation::ReadModifyWrite { .. }
        );
        Some(Request {
            state: Rc::clone(&self.state),
            user: operation.record(),
            update,
            step: Step::Look,
            number: 0,
            object: 0,
            version: 0,
            place: VirtAddr(0),
        })
    }
}

/// The next step of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Look up the user.
    Look,
    /// Decode the object's number.
    Found,
    /// A read: make the response.
    Respond,
    /// An update with its lock: write the new version.
    Compose,
    /// An update: finish.
    Settle,
}

/// A running request.
pub struct Request {
    state: Rc<RefCell<State>>,
    user: u64,
    update: bool,
    step: Step,
    /// The sequence number of a read.
    number: u64,
    object: u64,
    /// For a read, the oldest valid version; for an update, the version it writes.
    version: u64,
    /// For an update, the place it writes to.
    place: VirtAddr,
}

impl core::fmt::Debug for Request {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Request").field("user", &self.user).field("step", &self.step).finish_non_exhaustive()
    }
}

impl Request {
    /// Returns the kind of the request.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        if self.update { "update" } else { "read" }
    }

    fn look(&mut self, queue: &mut OpQueue) -> Next {
        let mut state = self.state.borrow_mut();
        if !self.update {
            self.number = state.objects.begin();
        }
        let scratch = queue.buffer();
        queue.need(state.table.find_op(key(self.user), scratch));
        self.step = Step::Found;
        Next::Need
    }

    fn found(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        let completed = queue.one();
        let found = HashTable::found(&completed).map(|value| of_entry(&value));
        completed.result?;
        queue.recycle(completed.buf);
        let known = self.state.borrow().known.len() as u64;
        let Some([object, user]) = found.filter(|[object, _]| *object < known) else {
            return Ok(self.wrong());
        };
        if user != self.user {
            return Ok(self.wrong());
        }
        self.object = object;
        if self.update {
            self.step = Step::Compose;
            return Ok(Next::Turn(object));
        }
        let known = self.state.borrow().known[index(object)];
        self.version = known.settled;
        let mut buf = queue.buffer();
        buf.resize(OBJECT_LEN, 0);
        queue.need(Op::Read { addr: known.place, buf });
        self.step = Step::Respond;
        Ok(Next::Need)
    }

    fn respond(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        let completed = queue.one();
        completed.result?;
        let object = completed.buf;
        let mut response = queue.buffer();
        let mut state = self.state.borrow_mut();
        let begin = Instant::now();
        state.responder.respond(&object, &mut response);
        state.responding += begin.elapsed();
        state.responses += 1;
        state.response_bytes += response.len() as u64;
        if state.check && !self.is_right(&state, &object, &response) {
            state.wrong += 1;
        }
        state.objects.end(self.number);
        drop(state);
        queue.recycle(response);
        queue.recycle(object);
        Ok(Next::Done)
    }

    /// Checks that the object is whole, and between the version settled at the request's start and the newest
    /// begun until now. Also checks for some requests that the user can decrypt the response.
    fn is_right(&self, state: &State, object: &[u8], response: &[u8]) -> bool {
        let (number, version) = title(object);
        let newest = state.known[index(self.object)].begun;
        number == self.object
            && (self.version..=newest).contains(&version)
            && is_composed(object, number, version)
            && (state.responses % OPENED != 1
                || state.responder.open(response, OBJECT_LEN).is_some_and(|opened| opened == object))
    }

    fn compose(&mut self, queue: &mut OpQueue) -> Next {
        let mut state = self.state.borrow_mut();
        let Some(place) = state.objects.take(self.object) else {
            // Requests in flight may still hold too many replaced objects; without requests in flight, none
            // does.
            return Next::Alone;
        };
        let known = &mut state.known[index(self.object)];
        known.begun += 1;
        (self.version, self.place) = (known.begun, place);
        let mut object = queue.buffer();
        compose(self.object, self.version, &mut object);
        queue.need(Op::Write { addr: place, buf: object });
        self.step = Step::Settle;
        Next::Need
    }

    fn settle(&self, queue: &mut OpQueue) -> Result<Next, Error> {
        let completed = queue.one();
        completed.result?;
        queue.recycle(completed.buf);
        let mut state = self.state.borrow_mut();
        let known = &mut state.known[index(self.object)];
        known.settled = self.version;
        let old = core::mem::replace(&mut known.place, self.place);
        state.objects.retire(old);
        Ok(Next::Done)
    }

    /// Records a wrong answer: an existing user was not found.
    fn wrong(&self) -> Next {
        let mut state = self.state.borrow_mut();
        state.wrong += 1;
        if !self.update {
            state.objects.end(self.number);
        }
        Next::Done
    }
}

impl Task for Request {
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error> {
        match self.step {
            Step::Look => Ok(self.look(queue)),
            Step::Found => self.found(queue),
            Step::Respond => self.respond(queue),
            Step::Compose => Ok(self.compose(queue)),
            Step::Settle => self.settle(queue),
        }
    }

    fn alone(&mut self, _: &mut dyn FarMemory) -> Result<(), Error> {
        self.state.borrow_mut().objects.reclaim();
        Ok(())
    }
}
