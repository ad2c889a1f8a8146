//! A request, from the user's id to the response, as a task.

use crate::objects::{OBJECT_LEN, compose, title};
use crate::{State, key};
use farmem::hash_table::{HashTable, VALUE_LEN, Value};
use farmem::ycsb::{Operation, Operations};
use farmem::{Completed, Error, Exchange, FarMemory, Next, Op, Task, VirtAddr};
use std::cell::RefCell;
use std::rc::Rc;

/// What the table says of a user: where the object is, whose it is, and which.
pub(crate) fn entry(place: VirtAddr, user: u64, version: u64) -> Value {
    let mut value = [0; VALUE_LEN];
    for (into, word) in value.chunks_exact_mut(8).zip([place.0, user, version]) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    value
}

/// Where the object of an entry is.
fn place_of(value: &Value) -> VirtAddr {
    VirtAddr(u64::from_le_bytes(value[..8].try_into().expect("the range has 8 bytes")))
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
        let (user, step) = match self.operations.next()? {
            Operation::Read { record } => (record, Step::Look),
            Operation::Update { record } | Operation::Insert { record } => (record, Step::Wait),
            Operation::Scan { record, .. } => (record, Step::Look),
        };
        let update = step == Step::Wait;
        Some(Request {
            state: Rc::clone(&self.state),
            user,
            update,
            step,
            number: 0,
            least: 0,
            version: 0,
            place: VirtAddr(0),
        })
    }
}

/// What a request does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// A read: look the user up.
    Look,
    /// A read: fetch the object.
    Fetch,
    /// A read: respond.
    Respond,
    /// An update: wait for the turn.
    Wait,
    /// An update: write the new object, and look the user up.
    Compose,
    /// An update: put the new object in the old one's place.
    Replace,
    /// An update: it is done.
    Settle,
}

/// A request under way.
pub struct Request {
    state: Rc<RefCell<State>>,
    user: u64,
    update: bool,
    step: Step,
    /// Of all requests, which one.
    number: u64,
    /// A read: the oldest version that it may see.
    least: u64,
    /// An update: the version it writes, and where.
    version: u64,
    place: VirtAddr,
}

impl core::fmt::Debug for Request {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Request").field("user", &self.user).field("step", &self.step).finish_non_exhaustive()
    }
}

impl Request {
    /// What sort of request it is.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        if self.update { "update" } else { "read" }
    }

    fn users_place(&self) -> usize {
        usize::try_from(self.user).expect("there is memory for every user")
    }

    fn look(&mut self, exchange: &mut Exchange) -> Next {
        let mut state = self.state.borrow_mut();
        self.number = state.objects.begin();
        self.least = state.users[self.users_place()].settled;
        let scratch = exchange.buffer();
        exchange.need(state.table.find_op(key(self.user), scratch));
        self.step = Step::Fetch;
        Next::Need
    }

    fn fetch(&mut self, exchange: &mut Exchange) -> Result<Next, Error> {
        let completed = exchange.one();
        let found = HashTable::found(&completed);
        completed.result?;
        exchange.recycle(completed.buf);
        let Some(value) = found else { return Ok(self.wrong()) };
        let mut buf = exchange.buffer();
        buf.resize(OBJECT_LEN, 0);
        exchange.need(Op::Read { addr: place_of(&value), buf });
        self.step = Step::Respond;
        Ok(Next::Need)
    }

    fn respond(&mut self, exchange: &mut Exchange) -> Result<Next, Error> {
        let completed = exchange.one();
        completed.result?;
        let object = completed.buf;
        let mut response = exchange.buffer();
        let mut state = self.state.borrow_mut();
        state.responder.respond(&object, &mut response);
        state.responses += 1;
        state.response_bytes += response.len() as u64;
        if state.check && !self.is_right(&state, &object, &response) {
            state.wrong += 1;
        }
        state.objects.end(self.number);
        drop(state);
        exchange.recycle(response);
        exchange.recycle(object);
        Ok(Next::Done)
    }

    /// A whole object of this user, no older than what was settled when the request began, no newer than what was begun until now; and a
    /// response from which the user gets it back.
    fn is_right(&self, state: &State, object: &[u8], response: &[u8]) -> bool {
        let (user, version) = title(object);
        let newest = state.users[self.users_place()].begun;
        let mut whole = Vec::new();
        compose(user, version, &mut whole);
        user == self.user
            && (self.least..=newest).contains(&version)
            && object == whole
            && state.responder.open(response, OBJECT_LEN).is_some_and(|opened| opened == object)
    }

    fn compose(&mut self, exchange: &mut Exchange) -> Next {
        let mut state = self.state.borrow_mut();
        let Some(place) = state.objects.take(self.user) else {
            // Too many replaced objects may still be looked at: when nobody is under way, none is.
            return Next::Alone;
        };
        let me = self.users_place();
        state.users[me].begun += 1;
        self.version = state.users[me].begun;
        self.place = place;
        self.number = state.objects.begin();
        let scratch = exchange.buffer();
        exchange.need(state.table.find_op(key(self.user), scratch));
        let mut object = exchange.buffer();
        compose(self.user, self.version, &mut object);
        exchange.need(Op::Write { addr: place, buf: object });
        self.step = Step::Replace;
        Next::Need
    }

    fn replace(&mut self, exchange: &mut Exchange) -> Result<Next, Error> {
        let (looked, written) = (end(exchange.take())?, end(exchange.take())?);
        let Some(old) = HashTable::found(&looked) else { return Ok(self.wrong()) };
        let value = entry(self.place, self.user, self.version);
        let replace = HashTable::replace_op(&looked, &value, written.buf).expect("it has just been found");
        exchange.recycle(looked.buf);
        exchange.need(replace);
        self.place = place_of(&old); // what is to be retired
        self.step = Step::Settle;
        Ok(Next::Need)
    }

    fn settle(&self, exchange: &mut Exchange) -> Result<Next, Error> {
        exchange.one().result?;
        let mut state = self.state.borrow_mut();
        state.users[self.users_place()].settled = self.version;
        state.objects.end(self.number);
        state.objects.retire(self.place);
        Ok(Next::Done)
    }

    /// A user that there is was not found.
    fn wrong(&self) -> Next {
        let mut state = self.state.borrow_mut();
        state.wrong += 1;
        state.objects.end(self.number);
        Next::Done
    }
}

/// The end of an operation that must not fail.
fn end(completed: Option<Completed>) -> Result<Completed, Error> {
    let completed = completed.expect("two operations were needed");
    match completed.result {
        Ok(answer) => Ok(Completed { result: Ok(answer), ..completed }),
        Err(error) => Err(error),
    }
}

impl Task for Request {
    fn next(&mut self, exchange: &mut Exchange) -> Result<Next, Error> {
        match self.step {
            Step::Look => Ok(self.look(exchange)),
            Step::Fetch => self.fetch(exchange),
            Step::Respond => self.respond(exchange),
            Step::Wait => {
                self.step = Step::Compose;
                Ok(Next::Turn(self.user))
            }
            Step::Compose => Ok(self.compose(exchange)),
            Step::Replace => self.replace(exchange),
            Step::Settle => self.settle(exchange),
        }
    }

    fn alone(&mut self, _: &mut dyn FarMemory) -> Result<(), Error> {
        self.state.borrow_mut().objects.reclaim();
        Ok(())
    }
}
