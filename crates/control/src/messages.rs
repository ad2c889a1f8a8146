//! Requests of the driver, and outputs to it.

use crate::api::{ApiError, Request, Response};
use crate::keys::Credentials;
use crate::note::Note;
use crate::record::Record;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use farmem_machine::Outbox;
use farmem_transport::PeerChange;
use farmem_wire::Gid;

/// A request with its ticket and credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submitted {
    /// The driver's ticket; [`Out::Reply`] returns it exactly once.
    pub ticket: u64,
    /// The request.
    pub request: Request,
    /// The caller's credentials.
    pub shown: Credentials,
}

impl Submitted {
    /// Returns a request without credentials.
    #[must_use]
    pub fn new(ticket: u64, request: Request) -> Self {
        Self { ticket, request, shown: Credentials::default() }
    }
}

/// An output of the control plane to its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// A request was answered.
    Reply {
        /// The request's ticket.
        ticket: u64,
        /// The answer.
        result: Result<Response, ApiError>,
    },
    /// A line to store before any later output is carried out. A driver that cannot store it must stop: no role and no caller knows of it yet. A role with a
    /// log of its own ([`Control::with_log`](crate::Control::with_log)) stores its lines there, and never emits this.
    Persist(Record),
    /// The address of a member, before the first frame to it.
    Peer(PeerChange),
    /// A frame for the address of a member that has not joined yet. It may get lost.
    Challenge {
        /// The address, which may be a bystander's.
        gid: Gid,
        /// The frame, from the BTH to the pad.
        frame: Vec<u8>,
    },
}

/// The error for a log that is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreError {
    /// The line, from 0; the number of lines if all fit but lead to an invalid state.
    pub line: usize,
    /// The violated condition.
    pub what: &'static str,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the log: {}", self.line, self.what)
    }
}

impl core::error::Error for RestoreError {}

/// The outbox of this role.
pub(crate) type Actions = Outbox<Out, Note>;

/// Answers a request.
pub(crate) fn reply(ticket: u64, result: Result<Response, ApiError>, out: &mut Actions) {
    out.local(Out::Reply { ticket, result });
}

/// Bytes at a node, and the names of the domains whose they are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// How many.
    pub bytes: u64,
    /// By number.
    pub domains: Vec<String>,
}
