//! The decision what a connection does next.
//!
//! Key type: [`Flow`], the part of a connection's state that decides. A connection gets its next [`Step`] before each
//! step of a turn, and its [`Outcome`] when the turn has sent what the socket takes. One rule serves both, so work
//! that stopped for lack of room resumes when there is room. The tests explore every state that a client can cause.

/// The state that decides what a connection does next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Flow {
    /// Bytes that were read may contain a whole request.
    pub(super) unread: bool,
    /// The stream may have more to read.
    pub(super) readable: bool,
    /// The client closed its side. The bytes that it sent before are still in the stream.
    pub(super) closing: bool,
    /// The end of the client's stream was read.
    pub(super) at_end: bool,
    /// The server executes nothing more of this client.
    pub(super) ends: bool,
    /// A blocking command waits for a key.
    pub(super) waits_for_key: bool,
    /// Too many wrong passwords came from the client's address.
    pub(super) held: bool,
    /// Replies wait for the client.
    pub(super) has_output: bool,
    /// More replies wait for the client than the bound allows.
    pub(super) over_bound: bool,
}

/// One step of a connection's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing can be done before an event.
    Wait,
    /// Execute the requests that were read.
    Execute,
    /// Read from the stream.
    Read,
    /// End the wait for a key: the client is gone.
    Abandon,
}

/// How a connection continues after its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The connection waits for an event: its socket, a key, or the clock.
    Wait,
    /// There is more to do: the connection gets a turn without an event.
    Again,
    /// The connection closes.
    Close,
}

impl Flow {
    /// Returns the next step of this turn.
    pub(super) const fn step(self) -> Step {
        if self.ends {
            Step::Wait
        } else if self.waits_for_key {
            if self.closing { Step::Abandon } else { Step::Wait }
        } else if self.held || self.over_bound {
            Step::Wait
        } else if self.unread {
            Step::Execute
        } else if self.readable && !self.at_end {
            Step::Read
        } else {
            Step::Wait
        }
    }

    /// Returns how the connection continues, after the socket took as many replies as it takes now.
    pub(super) const fn outcome(self) -> Outcome {
        match self.step() {
            Step::Execute | Step::Read | Step::Abandon => Outcome::Again,
            Step::Wait if (self.ends || self.at_end) && !self.has_output => Outcome::Close,
            Step::Wait => Outcome::Wait,
        }
    }
}

#[cfg(test)]
mod tests;
