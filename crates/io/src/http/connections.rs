//! TCP connections of the API server: how many there are, and how long each may take to say what it wants.
//!
//! Anybody who reaches the port can connect, with or without the token. So nothing here waits for a peer without a limit: not for the
//! head of a request, not between two requests, not for a body, not until an answer is taken in; and no number of connections takes more
//! than its share of memory and file descriptors.

use super::{BODY_MAX, refusal, status_of};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use farmem_control::api::{ApiError, ErrorCode};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// How much patience the server has, and with how many at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest time for the head of a request, counted from the connection or from the answer before: also how long one may be idle.
    pub head: Duration,
    /// Longest time for a body, from its head on.
    pub body: Duration,
    /// Longest time in which a client takes in nothing of an answer. The system counts it, coarsely.
    pub answer: Duration,
    /// Connections at once, at least 1. Further ones wait until one ends.
    pub connections_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let patience = Duration::from_secs(20);
        Self { head: patience, body: patience, answer: patience, connections_max: 256 }
    }
}

/// Wait after the system gave no connection: it has no descriptors or memory left, and will not have at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that are read and thrown away behind the last answer. What a client still sends is not worth more.
const LEFTOVER_MAX: usize = 1 << 20;

/// Serves `app` to whoever connects, for ever.
pub(super) async fn serve(listener: TcpListener, app: Router, limits: Limits) {
    let room = Arc::new(Semaphore::new(limits.connections_max));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let app = app.clone();
                tokio::spawn(async move {
                    connection(stream, app, limits).await;
                    drop(place);
                });
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn connection(stream: TcpStream, app: Router, limits: Limits) {
    // Short answers do too: whoever asks again and again and reads nothing fills the connection, and would keep its place for ever.
    if SockRef::from(&stream).set_tcp_user_timeout(Some(limits.answer)).is_err() {
        return; // it is gone already
    }
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head);
    let mut connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    let ended = (&mut connection).await;
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner();
    // An idle connection just ends: an answer to nothing would be taken for the answer to the next request.
    if ended.is_err_and(|error| error.is_timeout()) && !parts.read_buf.is_empty() {
        let text = too_slow_head(limits.head);
        // Whoever does not read it within the limit has it all the same.
        drop(timeout(limits.body, stream.write_all(text.as_bytes())).await);
    }
    drop(timeout(limits.body, close(&mut stream)).await);
}

/// Closes so that the last answer is read: the system throws it away, on both sides, when what the client still sends finds nobody.
async fn close(stream: &mut TcpStream) {
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

/// Takes in the body of a request, whole, within the limits.
pub(super) async fn body_of(headers: &HeaderMap, body: Body, limits: Limits) -> Result<Vec<u8>, ApiError> {
    let too_long = |why: String| {
        let message = format!("the body cannot be read: {why}");
        refusal(ErrorCode::BadRequest, message, format!("send at most {BODY_MAX} bytes"))
    };
    // Before the first byte of it is read: a caller that announces too much may never send it, and would be waited for.
    let announced = headers.get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
    if let Some(len) = announced.filter(|&len| len > BODY_MAX as u64) {
        return Err(too_long(format!("{len} bytes are announced")));
    }
    match timeout(limits.body, to_bytes(body, BODY_MAX)).await {
        Ok(Ok(body)) => Ok(body.into()),
        Ok(Err(why)) => Err(too_long(why.to_string())),
        Err(_) => Err(too_slow("body", limits.body)),
    }
}

fn too_slow(what: &str, limit: Duration) -> ApiError {
    let message = format!("the {what} of the request was not there after {limit:?}");
    refusal(ErrorCode::TooSlow, message, "send each request as a whole, then read the answer")
}

/// The answer to a head that did not come: there is no request yet that the library could answer.
fn too_slow_head(limit: Duration) -> String {
    let error = too_slow("head", limit);
    let body = serde_json::to_string(&error).expect("the API's types have only strings for keys");
    let head = format!("HTTP/1.1 {} Request Timeout\r\nconnection: close", status_of(error.code));
    format!("{head}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}
