//! The server: a thread of its own, because the library is async and nothing else here is.

use super::conn_table::ConnGuard;
use super::connections::{self, Limits, body_of, has_body};
use super::{BODY_MAX, SOFT_BODY_MAX, refusal, status_of};
use crate::{OpenError, Waker};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response as HttpResponse};
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use ctutils::CtEq as _;
use farmem_control::api::{ApiError, ErrorCode, Request, Response};
use serde_json::{Map, Value};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// One request, waiting for the control plane's thread.
#[derive(Debug)]
pub struct ApiCall {
    /// What is asked.
    pub request: Request,
    reply: oneshot::Sender<Result<Response, ApiError>>,
}

impl ApiCall {
    /// Answers it. An asker that hung up meanwhile is fine.
    pub fn answer(self, result: Result<Response, ApiError>) {
        // The only failure is that the asker waits no more.
        drop(self.reply.send(result));
    }
}

/// A running server. Dropping it closes the port.
pub struct ApiServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Listens at `address`, with the usual limits. Each request that shows `token` goes into the receiver, and `waker` is called.
    ///
    /// # Errors
    /// [`OpenError`] when the port is taken or not ours.
    pub fn start(
        address: SocketAddr,
        token: &str,
        waker: Waker,
    ) -> Result<(Self, Receiver<ApiCall>), OpenError> {
        Self::start_with(address, token, Limits::default(), waker)
    }

    /// As [`ApiServer::start`], with other limits.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn start_with(
        address: SocketAddr,
        token: &str,
        limits: Limits,
        waker: Waker,
    ) -> Result<(Self, Receiver<ApiCall>), OpenError> {
        let listener = std::net::TcpListener::bind(address).map_err(|e| bind_error(address, e))?;
        listener.set_nonblocking(true).map_err(OpenError::system("listen without blocking"))?;
        let address = listener.local_addr().map_err(OpenError::system("read the listening address"))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(OpenError::system("start the HTTP server"))?;
        let (calls, receiver) = channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let app = router(Shared { token: token.into(), calls, limits, waker });
        let serve = move || {
            runtime.block_on(async move {
                // Inside the runtime, because registering a socket needs it.
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                let until = async {
                    // Set or dropped, both mean stop.
                    drop(stopped.await);
                };
                tokio::select! {
                    () = connections::serve(listener, app, limits) => {}
                    () = until => {}
                }
            });
        };
        let thread = std::thread::Builder::new()
            .name("farmem-http".into())
            .spawn(serve)
            .map_err(OpenError::system("start the HTTP server's thread"))?;
        Ok((Self { address, stop: Some(stop), thread: Some(thread) }, receiver))
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A server that panicked has said so on stderr already.
            drop(thread.join());
        }
    }
}

#[derive(Clone)]
struct Shared {
    token: Arc<str>,
    calls: Sender<ApiCall>,
    limits: Limits,
    waker: Waker,
}

fn router(shared: Shared) -> Router {
    let no_method = |method: Method, uri: Uri| async move { answer(Err(unknown(&method, &uri))) };
    Router::new()
        .route("/v1/health", get(health))
        .route("/v1/overview", get(named).post(named))
        .route("/v1/{name}", post(named))
        .fallback(any(no_method))
        .method_not_allowed_fallback(no_method)
        .with_state(shared)
}

async fn health(headers: HeaderMap) -> HttpResponse {
    if has_body(&headers) {
        return answer(Err(refusal(ErrorCode::BadRequest, "health takes no body", "send none")));
    }
    "ok\n".into_response()
}

/// A request of the API, by the name in its path.
async fn named(
    State(shared): State<Shared>,
    Extension(guard): Extension<ConnGuard>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> HttpResponse {
    if let Err(error) = authorise(&shared.token, &headers) {
        return answer(Err(error));
    }
    let most = if uri.path() == "/v1/soft_load" { SOFT_BODY_MAX } else { BODY_MAX };
    let body = match body_of(&headers, body, most, shared.limits).await {
        Ok(body) => body,
        Err(error) => return answer(Err(error)),
    };
    guard.mark_authenticated();
    let Some(name) = uri.path().strip_prefix("/v1/").filter(|name| Request::NAMES.contains(name)) else {
        return answer(Err(unknown(&method, &uri)));
    };
    match parse(name, &body) {
        Ok(request) => answer(ask(&shared, request).await),
        Err(error) => answer(Err(error)),
    }
}

async fn ask(shared: &Shared, request: Request) -> Result<Response, ApiError> {
    let (reply, answer) = oneshot::channel();
    let gone = || refusal(ErrorCode::Unavailable, "the control plane is stopping", "ask again when it runs");
    shared.calls.send(ApiCall { request, reply }).map_err(|_| gone())?;
    shared.waker.wake();
    answer.await.unwrap_or_else(|_| Err(gone()))
}

/// The fields of the body and one of [`Request::NAMES`] make the request.
pub(super) fn parse(name: &str, body: &[u8]) -> Result<Request, ApiError> {
    let remedy = format!("docs/protocol/08-the-control-plane.md, 8.51, lists the fields of {name}");
    let bad = |message: String| refusal(ErrorCode::BadRequest, message, remedy.clone());
    let mut fields: Map<String, Value> = if body.trim_ascii().is_empty() {
        Map::new()
    } else {
        serde_json::from_slice(body).map_err(|e| bad(format!("the body is not a JSON object: {e}")))?
    };
    if fields.insert("op".into(), name.into()).is_some() {
        return Err(bad("the field \"op\" is not for the body: the path names the request".into()));
    }
    serde_json::from_value(Value::Object(fields)).map_err(|e| bad(format!("{name}: {e}")))
}

fn unknown(method: &Method, uri: &Uri) -> ApiError {
    let names = Request::NAMES.join(", ");
    let remedy = format!("POST /v1/NAME with one of: {names}; or GET /v1/overview, /v1/health");
    refusal(ErrorCode::UnknownRequest, format!("there is no request {method} {}", uri.path()), remedy)
}

fn authorise(token: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    // The time it takes does not tell where they differ.
    if token.as_bytes().ct_eq(shown.as_bytes()).to_bool() {
        return Ok(());
    }
    let remedy = "send the header \"Authorization: Bearer TOKEN\"; the token is in the file `token` of the control plane's state directory";
    Err(refusal(ErrorCode::Unauthorized, "the rack's token is missing or wrong", remedy))
}

fn answer(result: Result<Response, ApiError>) -> HttpResponse {
    let (status, body) = match &result {
        Ok(response) => (200, serde_json::to_vec(response)),
        Err(error) => (status_of(error.code), serde_json::to_vec(error)),
    };
    let body = body.expect("the API's types have only strings for keys");
    let status = StatusCode::from_u16(status).expect("the table holds valid statuses");
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn bind_error(address: SocketAddr, error: io::Error) -> OpenError {
    match error.kind() {
        io::ErrorKind::AddrInUse => OpenError::InUse { address: address.to_string() },
        io::ErrorKind::AddrNotAvailable => OpenError::NotHere { address: address.to_string() },
        io::ErrorKind::PermissionDenied => OpenError::NotPermitted {
            doing: format!("listen on {address}"),
            remedy: "choose a port of 1024 or above".into(),
        },
        _ => OpenError::System { doing: format!("listen on {address}"), source: error },
    }
}
