//! Connections of the API server at all its endpoints: their number, and the time that each may take for a
//! request.
//!
//! Any process that reaches the port can connect, with or without the token. So every wait for a peer has a
//! limit: for a request's head or body, between two requests, and until the client accepts an answer. And no
//! number of connections takes more than its share of memory and file descriptors.

use super::conn_table::{ConnTable, Eviction, Limits};
use super::filtered::FilteredStream;
use super::stream::{Incoming, Listener, Stream};
use super::{HEAD_MAX, refusal, status_of};
use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Router};
use farmem_control::api::{ApiError, ErrorCode};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Maximum time for an evicted connection to write its last answer.
const LAST_ANSWER: Duration = Duration::from_secs(2);
/// Pause after a failed accept: the system has no free descriptors or memory, and will not have them at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of header fields that the library accepts.
const FIELDS_MAX: usize = 100;
/// Maximum number of bytes that are read and discarded after the last answer.
const LEFTOVER_MAX: usize = 1 << 20;

/// Serves `app` on every connection of all listeners without end. The listeners share the limits.
pub(super) async fn serve(listeners: Vec<Listener>, app: Router, limits: Limits) {
    let table = Arc::new(ConnTable::new(limits));
    let mut doors = JoinSet::new();
    for listener in listeners {
        doors.spawn(serve_door(listener, Arc::clone(&table), app.clone(), limits));
    }
    doors.join_all().await;
}

async fn serve_door(listener: Listener, table: Arc<ConnTable>, app: Router, limits: Limits) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                // A client whose connection is closed here sends its request again (PROTOCOL 8.52).
                let Some((guard, eviction)) = table.enter(from).await else { continue };
                let app = app.clone().layer(Extension(guard.clone()));
                tokio::spawn(async move {
                    connection(stream, app, eviction, limits).await;
                    drop(guard);
                });
                // The runtime reads a request that has arrived before the next connection is added. So
                // clients with the token that connect at the same time do not evict each other.
                tokio::task::yield_now().await;
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn connection(mut incoming: Incoming, app: Router, eviction: Arc<Eviction>, limits: Limits) {
    // Short answers are limited as well: a client that sends many requests and reads no answer would fill the
    // connection, and keep its entry.
    if !incoming.bound_answers(limits.answer) {
        return; // the connection is closed
    }
    // A client that is in the TLS handshake can receive no message, so its connection is just closed.
    let mut stream = tokio::select! {
        biased;
        () = eviction.notified() => return,
        ready = timeout(limits.head, incoming.ready()) => match ready {
            Ok(Ok(stream)) => stream,
            Ok(Err(_)) | Err(_) => return,
        },
    };
    loop {
        let (back, ended) = serve_requests(stream, app.clone(), &eviction, limits).await;
        stream = back;
        let last_words = match ended {
            Ended::Evicted => return evict(&mut stream),
            // A client that has sent a request meanwhile is told that it was not executed. One that has not
            // finds its connection closed before its next request.
            Ended::Closed { unread } if unread || stream.has_unread() => return evict(&mut stream),
            Ended::Closed { .. } => return,
            // A request has arrived just after the timeout. The server answers it, because a closed
            // connection would leave it without an answer.
            Ended::Idle if stream.has_unread() => continue,
            Ended::Done | Ended::Idle => None,
            Ended::Refused(status, error) => Some(raw_answer(status, &error)),
        };
        let close = async {
            if let Some(text) = last_words {
                // The time is limited, because the client may not read.
                drop(timeout(limits.body, stream.write_all(text.as_bytes())).await);
            }
            drop(timeout(limits.body, close(&mut stream)).await);
        };
        tokio::select! {
            biased;
            () = eviction.notified() => {}
            () = close => {}
        }
        return;
    }
}

/// The reason why the HTTP library has ended a connection.
enum Ended {
    /// All requests were answered.
    Done,
    /// No request arrived in time.
    Idle,
    /// The received bytes are not a request. The server must still send this status and error.
    Refused(u16, ApiError),
    /// The table evicted the connection before it had answered a request.
    Evicted,
    /// The table evicted the connection between two requests, of which the second may have arrived in part.
    Closed { unread: bool },
}

/// Answers requests until the connection has no more of them.
async fn serve_requests(stream: Stream, app: Router, eviction: &Eviction, limits: Limits) -> (Stream, Ended) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head).max_header_size(HEAD_MAX);
    // A client that closes its sending side after a request gets its answer (PROTOCOL 8.1).
    http.half_close(true);
    let mut connection =
        http.serve_connection(TokioIo::new(FilteredStream::new(stream)), TowerToHyperService::new(app));
    let ended = tokio::select! {
        biased;
        () = eviction.notified() => None,
        ended = &mut connection => Some(ended),
    };
    if ended.is_none() && eviction.is_gentle() {
        Pin::new(&mut connection).graceful_shutdown();
        // A client that does not read its answer in time does not get the rest.
        drop(timeout(LAST_ANSWER, &mut connection).await);
    }
    let parts = connection.into_parts();
    let (stream, dropped) = parts.io.into_inner().into_parts();
    let ended = match (ended, dropped) {
        (None, _) if eviction.is_gentle() => Ended::Closed { unread: !parts.read_buf.is_empty() },
        (None, _) => Ended::Evicted,
        (Some(_), Some(status)) => Ended::Refused(status, unreadable(status)),
        (Some(Ok(())), None) => Ended::Done,
        // An idle connection is closed without an answer, because the client would take it for the answer to
        // its next request.
        (Some(Err(error)), None) if error.is_timeout() && parts.read_buf.is_empty() => Ended::Idle,
        (Some(Err(error)), None) if error.is_timeout() => {
            Ended::Refused(status_of(ErrorCode::TooSlow), too_slow("head", limits.head))
        }
        (Some(Err(error)), None) if error.is_parse() || error.is_incomplete_message() => {
            Ended::Refused(status_of(ErrorCode::BadRequest), unreadable(400))
        }
        (Some(Err(_)), None) => Ended::Done,
    };
    (stream, ended)
}

/// Sends the reason for the end of a connection, as far as possible without waiting.
fn evict(stream: &mut Stream) {
    let message = "the server has no room for this connection: too many are open, and no whole request with the token was here on this one that is not answered";
    let remedy = "connect again, and send the request with the token at once";
    let error = refusal(ErrorCode::Unavailable, message, remedy);
    // The server has executed no request of this connection, so the error is true for any request in flight.
    stream.end_with(raw_answer(status_of(error.code), &error).as_bytes(), LEFTOVER_MAX);
}

/// Closes a connection so that the client can read the last answer. If the client's remaining bytes were not
/// read, the systems on both sides would discard the answer.
async fn close(stream: &mut Stream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut left = LEFTOVER_MAX;
    let mut bytes = [0; 4096];
    while let Ok(len) = stream.read(&mut bytes).await {
        left = left.saturating_sub(len);
        if len == 0 || left == 0 {
            return;
        }
    }
}

/// Returns true if the head announces a body.
pub(super) fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|len| len != "0")
}

/// Reads the body of a request, of at most `most` bytes and within the limits.
pub(super) async fn body_of(
    headers: &HeaderMap,
    body: Body,
    most: usize,
    limits: Limits,
) -> Result<Vec<u8>, ApiError> {
    let too_long = |why: String| {
        let message = format!("the body cannot be read: {why}");
        let remedy = format!("send at most {most} bytes, and all that the head of the request announces");
        refusal(ErrorCode::BadRequest, message, remedy)
    };
    // The check comes before the first byte, because a caller that announces too much may never send it, and
    // the server would wait.
    let announced = headers.get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
    if let Some(len) = announced.filter(|&len| len > most as u64) {
        return Err(too_long(format!("{len} bytes are announced")));
    }
    match timeout(limits.body, to_bytes(body, most)).await {
        Ok(Ok(body)) => Ok(body.into()),
        Ok(Err(why)) => Err(too_long(why.to_string())),
        Err(_) => Err(too_slow("body", limits.body)),
    }
}

fn too_slow(what: &str, limit: Duration) -> ApiError {
    let message = format!("the {what} of the request did not arrive within {limit:?}");
    refusal(ErrorCode::TooSlow, message, "send each request as a whole, then read the answer")
}

/// Returns the error for a request that the library cannot read. The library provides only a status.
fn unreadable(status: u16) -> ApiError {
    let (message, remedy) = match status {
        414 => (
            "the path of the request is too long".into(),
            "the paths are /v1/NAME, /v1/overview and /v1/health".into(),
        ),
        431 => (
            "the head of the request is too long, or has too many fields".to_owned(),
            format!("send at most {HEAD_MAX} bytes and {FIELDS_MAX} header fields before the body"),
        ),
        _ => (
            "the head of the request is not valid HTTP/1.1, or is incomplete".to_owned(),
            "send a complete request of HTTP/1.1 (RFC 9112), as `curl --http1.1` does".to_owned(),
        ),
    };
    refusal(ErrorCode::BadRequest, message, remedy)
}

/// Returns an answer in text, without the library, because there is no request that it could answer.
fn raw_answer(status: u16, error: &ApiError) -> String {
    let body = serde_json::to_string(error).expect("the API's types have only strings for keys");
    let status = StatusCode::from_u16(status).expect("the statuses are valid ones");
    let head = format!("HTTP/1.1 {status}\r\nconnection: close");
    format!("{head}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}
