//! What people, programs and roles ask of the control plane, in the form that travels as JSON.
//!
//! `POST /v1/NAME` with the fields of a request as its body; the answer is the fields of the response, or an [`ApiError`].
//! Addresses (`gid`) are text: `127.0.0.11` or an IPv6 address. Sizes are bytes. Numbers of ports, queue pairs and keys are decimal.
//!
//! Key type: [`Call`], a request that knows the type of its answer. [`Request`] and [`Response`] are any of them: what travels, and what
//! the control plane dispatches over.

mod answers;
mod base64_bytes;
mod calls;
mod usage;
mod usual;

pub use answers::*;
pub use base64_bytes::Base64;
pub use calls::*;
pub use usage::*;

use alloc::string::String;
use serde::{Deserialize, Serialize};

/// A request, and the type of its answer. [`Request`] is one too: for callers that pass on what others ask.
pub trait Call: Into<Request> {
    /// What answers it. It does not come out of a [`Response`] to another request.
    type Answer: TryFrom<Response>;
}

impl Call for Request {
    type Answer = Response;
}

/// The answers: the variant, whose name in snake case is in the field `is`, and the type.
macro_rules! answers {
    ($($variant:ident($answer:ty),)*) => {
        /// Any answer.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(tag = "is", rename_all = "snake_case")]
        pub enum Response {
            $(#[doc = concat!("[`", stringify!($answer), "`]")] $variant($answer),)*
            /// Done, nothing to tell: `()`.
            Done {},
        }

        $(impl From<$answer> for Response {
            fn from(answer: $answer) -> Self {
                Self::$variant(answer)
            }
        }

        impl TryFrom<Response> for $answer {
            type Error = Response;

            fn try_from(response: Response) -> Result<Self, Response> {
                if let Response::$variant(answer) = response { Ok(answer) } else { Err(response) }
            }
        })*
    };
}

answers! {
    NodeJoined(NodeJoined),
    HostJoined(HostJoined),
    IndexJoined(IndexJoined),
    Joined(SwitchJoined),
    Session(SessionInfo),
    Connection(ConnectionInfo),
    Vma(VmaInfo),
    Located(LocatedVma),
    Overview(RackOverview),
    Usage(RackUsage),
    Process(ProcessInfo),
    Returned(Returned),
    Lease(LeaseInfo),
    Object(ObjectInfo),
    ObjectShown(ObjectShown),
    FileLooked(FileLooked),
    ObjectListed(ObjectListed),
    ObjectsListed(ObjectsListed),
    Domain(DomainInfo),
    SoftLoaded(SoftLoaded),
    SoftShown(SoftShown),
    SoftSection(SoftSection),
    SoftCounted(SoftCounted),
}

impl From<()> for Response {
    fn from((): ()) -> Self {
        Self::Done {}
    }
}

impl TryFrom<Response> for () {
    type Error = Response;

    fn try_from(response: Response) -> Result<Self, Response> {
        if response == (Response::Done {}) { Ok(()) } else { Err(response) }
    }
}

/// Says with [`Renew`] that a host holds nothing any more, and asks for nothing any more.
pub const GIVEN_UP: u64 = u64::MAX;

/// Why a request was refused: a code for programs, a message and a remedy for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApiError {
    /// For programs; frozen.
    pub code: ErrorCode,
    /// What was wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// The kinds of refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// A field has a value that means nothing, or is missing.
    BadRequest,
    /// No such request.
    UnknownRequest,
    /// No such node, host, domain, connection, vma or object.
    NotFound,
    /// The name or address is taken by something else.
    Conflict,
    /// The domain does not own it.
    NotOwner,
    /// No node has that much memory free in one piece.
    OutOfMemory,
    /// A table of the switch or a node is full; nothing was changed.
    TableFull,
    /// A role that is needed has not joined, or does not answer.
    Unavailable,
    /// The request did not arrive as a whole in the time there is for it.
    TooSlow,
    /// The caller did not show the rack's token.
    Unauthorized,
    /// The log does not take the change now; the message says what becomes of it.
    Storage,
}
