//! API errors: the wrong values, and the remedy.

use crate::api::{ApiError, ErrorCode};
use alloc::format;
use alloc::string::String;

pub(crate) fn error(code: ErrorCode, message: impl Into<String>, remedy: impl Into<String>) -> ApiError {
    ApiError { code, message: message.into(), remedy: remedy.into() }
}

pub(crate) fn bad(message: impl Into<String>, remedy: impl Into<String>) -> ApiError {
    error(ErrorCode::BadRequest, message, remedy)
}

pub(crate) fn not_found(message: impl Into<String>, remedy: impl Into<String>) -> ApiError {
    error(ErrorCode::NotFound, message, remedy)
}

/// The command that lists nodes and allocations; a program calls `overview`.
pub(crate) const LISTED: &str = "`farmem migrate --rack RACK.TOML` lists the nodes and allocations there are";

/// Returns the error for a full table of the control plane.
pub(crate) fn bound(what: &str, most: impl core::fmt::Display) -> ApiError {
    error(
        ErrorCode::TableFull,
        format!("the control plane keeps at most {most} {what}, and has that many"),
        format!("give back {what} no longer in use, or start the control plane with a higher bound"),
    )
}
