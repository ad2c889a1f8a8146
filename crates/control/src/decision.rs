//! The decision about a request: an immediate answer, or a change to begin (PROTOCOL 8.10 to 8.14).

use crate::api;
use crate::api::ApiError;
use crate::record::{ChangeKind, Line, Role};
use crate::soft::sections::SoftRequest;
use alloc::string::String;

/// The decision about a request.
pub(crate) enum Decision<A> {
    /// Answer.
    Reply(A),
    /// Keep this line, then answer.
    Keep(Line, A),
    /// Begin this change. The answer comes with its end.
    Begin(ChangeKind),
    /// Answer when this switch has reported on its image.
    Soft(Role, SoftRequest),
    /// Answer when this node has looked at this file.
    Look { node: u16, file: String },
}

/// The decision about a request of this type, or why it is refused.
pub(crate) type Decided<C> = Result<Decision<<C as api::Call>::Answer>, ApiError>;
