//! The control API: requests of people, programs and roles to the control plane, as JSON.
//!
//! `POST /v1/NAME` has the fields of a request as its body; the answer has the fields of the response, or an
//! [`ApiError`]. Addresses (`gid`) are text: `127.0.0.11` or an IPv6 address. Sizes are bytes. Numbers of
//! ports, queue pairs and keys are decimal.
//!
//! Key type: [`Call`], a request with a typed answer. [`Request`] and [`Response`] are the enums of all of
//! them, which travel and which the control plane dispatches.

mod answers;
mod base64_bytes;
mod calls;
mod defaults;
mod usage;

pub use answers::*;
pub use base64_bytes::Base64;
pub use calls::*;
pub use usage::*;

use alloc::string::String;
use serde::{Deserialize, Serialize};

/// A request with a typed answer. [`Request`] is one too, for callers that forward requests.
pub trait Call: Into<Request> {
    /// The type of the answer. The conversion fails for a [`Response`] to another request.
    type Answer: TryFrom<Response>;
}

impl Call for Request {
    type Answer = Response;
}

/// Defines the answers: the variant, whose name in snake case is in the field `is`, and the type.
macro_rules! answers {
    ($($variant:ident($answer:ty),)*) => {
        /// Any answer.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(tag = "is", rename_all = "snake_case")]
        pub enum Response {
            $(#[doc = concat!("[`", stringify!($answer), "`]")] $variant($answer),)*
            /// Success without data: `()`.
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

/// The value of `flushed` in [`Renew`] by which a host declares that it holds nothing and requests nothing
/// any more.
pub const GIVEN_UP: u64 = u64::MAX;

/// The error of a refused request: a code for programs, a message and a remedy for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApiError {
    /// The code for programs; values are frozen.
    pub code: ErrorCode,
    /// The description of the error.
    pub message: String,
    /// The recommended action.
    pub remedy: String,
}

/// The kinds of errors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// A field is invalid or missing.
    BadRequest,
    /// There is no such request.
    UnknownRequest,
    /// There is no such node, host, domain, connection, vma or object.
    NotFound,
    /// The name or address is in use by something else.
    Conflict,
    /// The domain is not the owner.
    NotOwner,
    /// No node has that much contiguous memory free.
    OutOfMemory,
    /// A table of the switch or a node is full; nothing changed.
    TableFull,
    /// A required role has not joined, or does not answer.
    Unavailable,
    /// The request did not arrive completely in time.
    TooSlow,
    /// The caller did not present the rack's token.
    Unauthorized,
    /// The log does not accept the change now; the message states the result.
    Storage,
    /// The address of a join is not proven yet; a cookie was sent there.
    Unproven,
}
