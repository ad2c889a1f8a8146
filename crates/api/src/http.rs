//! The control plane's HTTP/JSON API: the server that people and programs ask, and the client that farmem's own processes use.
//!
//! The API has up to three doors ([`ApiDoors`]): a Unix socket for the machine that it runs on, TLS 1.3 for others, and HTTP in clear where a
//! rack's description asks for that. A client ([`ApiClient`]) goes by one of them ([`ApiDoor`]), and shows the token to the rack alone.
//!
//! `POST /v1/NAME` with the fields of a request as a JSON object; `GET /v1/overview`; `GET /v1/health`. Everything but health wants
//! `Authorization: Bearer TOKEN`. Every refusal is an [`ApiError`]: a code, a message, a remedy. The server only carries requests to the
//! control plane's own thread and answers back; it decides nothing.

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

/// Largest body of a request but one, in bytes. The longest real one is far below a kilobyte.
const BODY_MAX: usize = 64 << 10;

/// Largest body of the request that brings an image, which is in it in base64, with a row for each section.
const SOFT_BODY_MAX: usize = 12 << 20;

/// The header field with the keys of what a request is about, as hexadecimal digits with commas between (PROTOCOL 8.67).
const KEYS_FIELD: &str = "farmem-keys";

/// The header field with the build of farmem that asks (PROTOCOL 8.71).
const BUILD_FIELD: &str = "farmem-build";

/// The header field with the proof of the address that a join names: `pending`, or a cookie (PROTOCOL 8.74).
const ADDRESS_FIELD: &str = "farmem-address";

/// The value of [`ADDRESS_FIELD`] before the cookie has arrived.
const PENDING: &str = "pending";

/// Largest head of a request, in bytes. It is looked at when more is read, so somewhat longer ones may pass.
const HEAD_MAX: usize = 16 << 10;

/// How long an idle connection stays in the client's hands. The server keeps it longer ([`Limits::head`]), so that it does not close
/// what a request is about to use.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The HTTP status of a refusal.
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
