//! The control plane's HTTP/JSON API: the server for people and programs, and the client of farmem's own
//! processes.
//!
//! The API has up to three endpoints ([`ApiDoors`]): a Unix socket for its own machine, TLS 1.3 for others,
//! and plain HTTP if configured. A client ([`ApiClient`]) uses one of them ([`ApiDoor`]), and shows the token
//! only to the rack.
//!
//! A request is `POST /v1/NAME` with its fields as a JSON object, `GET /v1/overview`, or `GET /v1/health`.
//! All except health require `Authorization: Bearer TOKEN`. Every refusal is an [`ApiError`]: a code, a
//! message, a remedy. The server has no policy: the server passes requests to the control plane's thread, and
//! returns the answers.

mod client;
mod conn_table;
mod connections;
mod filtered;
mod json;
mod key_file;
mod line_ends;
mod server;
mod stream;
mod tls;
mod unix;

pub use client::{ApiCallError, ApiClient, ApiDoor};
pub use conn_table::Limits;
pub use server::{ApiCall, ApiDoors, ApiServer, ApiTokens};
pub use tls::{Authority, CaCert, Identity, read_ca};

use farmem_control::api::{ApiError, ErrorCode};
use std::time::Duration;

/// Maximum length in bytes of a request's body, with one exception. The longest real one is far below a
/// kilobyte.
const BODY_MAX: usize = 64 << 10;

/// Maximum length in bytes of the body of a request with an image, which contains the image in base64, with a
/// row for each section.
const SOFT_BODY_MAX: usize = 12 << 20;

/// The header field with the keys of a request's objects, as hexadecimal digits separated by commas (PROTOCOL
/// 8.67).
const KEYS_FIELD: &str = "farmem-keys";

/// The header field with the caller's build of farmem (PROTOCOL 8.71).
const BUILD_FIELD: &str = "farmem-build";

/// The header field with the proof of the address in a join: `pending`, or a cookie (PROTOCOL 8.74).
const ADDRESS_FIELD: &str = "farmem-address";

/// The value of [`ADDRESS_FIELD`] before the cookie has arrived.
const PENDING: &str = "pending";

/// Maximum length of a request's head, in bytes. The library checks it when it reads more, so somewhat longer
/// heads may pass.
const HEAD_MAX: usize = 16 << 10;

/// Time after which the client closes an idle connection. The server's time is longer ([`Limits::head`]), so
/// that the server does not close a connection that a request is about to use.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Returns the HTTP status of a refusal.
const fn status_of(code: ErrorCode) -> u16 {
    match code {
        ErrorCode::BadRequest => 400,
        ErrorCode::Unauthorized => 401,
        ErrorCode::NotOwner => 403,
        ErrorCode::UnknownRequest | ErrorCode::NotFound => 404,
        ErrorCode::TooSlow => 408,
        ErrorCode::Conflict => 409,
        ErrorCode::OutOfMemory | ErrorCode::TableFull => 507,
        ErrorCode::Unproven => 428,
        ErrorCode::Unavailable => 503,
        ErrorCode::Storage => 500,
    }
}

fn refusal(code: ErrorCode, message: impl Into<String>, remedy: impl Into<String>) -> ApiError {
    ApiError { code, message: message.into(), remedy: remedy.into() }
}

#[cfg(test)]
mod tests;
