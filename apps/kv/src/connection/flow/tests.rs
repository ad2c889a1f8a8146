//! An exhaustive exploration of one connection: every script of requests, over a plain socket and over TLS, in every
//! order of actions of client, network and server.
//!
//! The model has the effects (bytes that move, replies that wait); the real [`Flow`] takes every decision. A state
//! without a scheduled turn, which no event of the system will wake, must have no work for which there is room.

use super::*;
use std::collections::BTreeSet;

/// Units of replies that may wait before the next request is executed.
const BOUND: u8 = 1;
/// Units that the socket's buffer takes while the client reads nothing.
const WINDOW: u8 = 1;
/// Steps of a turn.
const STEPS: usize = 2;
/// Requests that one read returns at most.
const CHUNK: usize = 2;
/// Units that TLS takes while the socket takes none.
const TLS_BUFFER: u8 = 1;

/// A request, by its effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Request {
    /// A reply of one unit.
    Short,
    /// A reply that is larger than the bound.
    Long,
    /// A wait for a key, whose reply has one unit.
    Blocking,
    /// A password whose time has not come.
    Password,
    /// The client's last request: nothing behind it is executed.
    Quit,
}

use Request::{Blocking, Long, Password, Quit, Short};

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Model {
    flow: Flow,
    is_tls: bool,
    /// Requests that the client has not sent, the next one last.
    script: Vec<Request>,
    /// The client has closed its side.
    is_closed: bool,
    /// Requests in the system's buffer, the next one last.
    socket: Vec<Request>,
    /// Requests that were read and not executed, the next one last.
    input: Vec<Request>,
    /// Units of replies in the connection's buffer, in the TLS layer, and in the socket's buffer.
    out: u8,
    tls: u8,
    sent: u8,
    /// The last write found the socket's buffer full: room in it is an event.
    is_write_armed: bool,
    /// An event of the system waits for the server.
    has_event: bool,
    /// The server will give the connection a turn without an event.
    is_scheduled: bool,
    /// The look-ahead of this turn was done; the requests are executed in the next turn.
    is_due: bool,
    /// The connection is closed.
    is_gone: bool,
}

impl Model {
    fn new(script: Vec<Request>, is_tls: bool) -> Self {
        Self {
            flow: Flow { readable: true, ..Flow::default() },
            is_tls,
            script,
            is_closed: false,
            socket: Vec::new(),
            input: Vec::new(),
            out: 0,
            tls: 0,
            sent: 0,
            is_write_armed: false,
            has_event: false,
            is_scheduled: true,
            is_due: false,
            is_gone: false,
        }
    }

    fn flow(&self) -> Flow {
        let has_output = self.out + self.tls > 0;
        Flow { has_output, over_bound: self.out > BOUND, ..self.flow }
    }

    /// Returns the states after one action of the client, of the network, of another client, or of the server.
    fn next(&self) -> Vec<Self> {
        let mut next = Vec::new();
        let mut act = |can: bool, act: &dyn Fn(&mut Self)| {
            if can {
                let mut state = self.clone();
                act(&mut state);
                next.push(state);
            }
        };
        let is_open = !self.is_gone;
        act(is_open && !self.is_closed && !self.script.is_empty(), &|state| {
            let request = state.script.pop().expect("the script has one");
            state.socket.insert(0, request);
            state.has_event = true;
        });
        act(is_open && !self.is_closed, &|state| (state.is_closed, state.has_event) = (true, true));
        act(self.sent > 0, &|state| {
            state.sent -= 1;
            state.has_event |= std::mem::take(&mut state.is_write_armed);
        });
        // Another client makes the key, or the clock lets passwords of this address through.
        act(is_open && self.flow.waits_for_key, &|state| {
            state.flow.waits_for_key = false;
            state.out += 1;
            state.is_scheduled = true;
        });
        act(is_open && self.flow.held, &|state| (state.flow.held, state.is_scheduled) = (false, true));
        let has_turn = is_open && (self.has_event || self.is_scheduled);
        act(has_turn && !self.is_due, &Self::look_ahead);
        act(has_turn, &Self::turn);
        next
    }

    fn take_event(&mut self) {
        if std::mem::take(&mut self.has_event) {
            self.flow.closing |= self.is_closed;
            self.flow.readable = true;
        }
    }

    /// Reads, and leaves the execution to the server's next turn, because far values are in flight.
    fn look_ahead(&mut self) {
        self.take_event();
        let may_read = self.flow().step() == Step::Read && self.input.is_empty();
        if may_read && !self.socket.is_empty() {
            self.read();
        }
        (self.is_due, self.is_scheduled) = (true, true);
    }

    fn read(&mut self) {
        let len = self.socket.len().min(CHUNK);
        for _ in 0..len {
            let request = self.socket.pop().expect("the socket has one");
            self.input.insert(0, request);
        }
        // TLS may have more in its own buffer, and the end of the stream is behind the data.
        self.flow.readable = len == CHUNK || self.flow.closing || self.is_tls;
        self.flow.unread = true;
    }

    fn execute(&mut self) {
        self.flow.unread = false;
        while let Some(request) = self.input.pop() {
            match request {
                Short => self.out += 1,
                Long => self.out += BOUND + 1,
                Blocking => self.flow.waits_for_key = true,
                // The second look at it finds it let through.
                Password => {
                    self.flow.held = true;
                    self.input.push(Short);
                }
                Quit => {
                    self.out += 1;
                    self.flow.ends = true;
                    self.input.clear();
                }
            }
            if self.out > BOUND || self.flow.waits_for_key || self.flow.held {
                self.flow.unread = !self.input.is_empty();
                return;
            }
        }
    }

    fn turn(&mut self) {
        self.take_event();
        (self.is_scheduled, self.is_due) = (false, false);
        for _ in 0..STEPS {
            match self.flow().step() {
                Step::Wait => break,
                Step::Abandon => (self.flow.waits_for_key, self.flow.ends) = (false, true),
                Step::Execute => self.execute(),
                Step::Read if self.socket.is_empty() && self.is_closed => self.flow.at_end = true,
                Step::Read if self.socket.is_empty() => self.flow.readable = false,
                Step::Read => {
                    self.read();
                    self.execute();
                }
            }
        }
        self.send();
        match self.flow().outcome() {
            Outcome::Wait => {}
            Outcome::Again => self.is_scheduled = true,
            Outcome::Close => self.is_gone = true,
        }
    }

    fn send(&mut self) {
        loop {
            let room = WINDOW - self.sent;
            self.is_write_armed |= room == 0 && self.out + self.tls > 0;
            if self.is_tls {
                let flushed = self.tls.min(room);
                (self.tls, self.sent) = (self.tls - flushed, self.sent + flushed);
                let taken = self.out.min(TLS_BUFFER - self.tls);
                (self.tls, self.out) = (self.tls + taken, self.out - taken);
                if flushed + taken == 0 {
                    return;
                }
            } else {
                let taken = self.out.min(room);
                (self.out, self.sent) = (self.out - taken, self.sent + taken);
                if taken == 0 {
                    return;
                }
            }
        }
    }

    /// Returns the fault of this state, if it has one.
    fn fault(&self) -> Option<&'static str> {
        if self.is_gone {
            let is_lost = self.out + self.tls > 0;
            return is_lost.then_some("closed before its replies were sent");
        }
        if self.has_event || self.is_scheduled {
            return None;
        }
        let may_execute = !self.flow.ends && !self.flow.waits_for_key && !self.flow.held && self.out <= BOUND;
        if may_execute && !self.input.is_empty() {
            return Some("a request that was read waits for nothing");
        }
        if may_execute && !self.socket.is_empty() {
            return Some("a request in the socket waits for nothing");
        }
        if self.out + self.tls > 0 && !self.is_write_armed {
            return Some("replies wait, and room for them is no event");
        }
        if self.is_closed && self.flow.waits_for_key {
            return Some("a client that is gone waits for a key");
        }
        let is_done = self.flow.ends || (self.is_closed && may_execute);
        (is_done && self.out + self.tls == 0).then_some("a connection that is done stays open")
    }
}

/// Returns all scripts of up to `len` requests.
fn scripts(len: usize) -> Vec<Vec<Request>> {
    let mut all = vec![Vec::new()];
    for from in 0..len {
        let longer: Vec<_> = all.iter().filter(|script| script.len() == from).cloned().collect();
        for script in longer {
            all.extend([Short, Long, Blocking, Password, Quit].map(|next| [&script[..], &[next]].concat()));
        }
    }
    all
}

/// In every reachable state, work with room has a turn or an event ahead. No turn is repeated without effect. Replies
/// are sent before the connection closes.
#[test]
fn no_state_with_work_and_room_waits() {
    let mut states = 0;
    for (script, is_tls) in
        scripts(4).into_iter().flat_map(|script| [(script.clone(), false), (script, true)])
    {
        let first = Model::new(script, is_tls);
        let (mut known, mut open) = (BTreeSet::from([first.clone()]), vec![first]);
        while let Some(state) = open.pop() {
            assert_eq!(state.fault(), None, "{state:?}");
            if state.is_scheduled && !state.has_event && !state.is_due && !state.is_gone {
                let mut after = state.clone();
                after.turn();
                assert_ne!(after, state, "a turn without effect is repeated");
            }
            open.extend(state.next().into_iter().filter(|next| known.insert(next.clone())));
        }
        states += known.len();
    }
    assert!(states > 50_000, "{states} states");
}
