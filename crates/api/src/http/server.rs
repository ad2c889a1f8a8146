//! The server, on a thread of its own, because the library is async and the rest of this process is not.

use super::conn_table::ConnGuard;
use super::conn_table::Limits;
use super::connections::{self, body_of, has_body};
use super::stream::Listener;
use super::tls::Identity;
use super::{
    ADDRESS_FIELD, BODY_MAX, BUILD_FIELD, KEYS_FIELD, PENDING, SOFT_BODY_MAX, json, refusal, status_of,
};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response as HttpResponse};
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use ctutils::CtEq as _;
use farmem_control::api::{ApiError, ErrorCode, Request, Response};
use farmem_control::keys::{Credentials, KEYS_SHOWN_MAX};
use farmem_control::{AddressProof, BUILD_LEN_MAX, is_build};
use farmem_link::{OpenError, Waker};
use serde_json::{Map, Value};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;

/// A request that waits for the control plane's thread.
#[derive(Debug)]
pub struct ApiCall {
    /// The request.
    pub request: Request,
    /// The credentials of the request.
    pub shown: Credentials,
    reply: oneshot::Sender<Result<Response, ApiError>>,
}

impl ApiCall {
    /// Answers the request. A caller that has disconnected meanwhile is no fault.
    pub fn answer(self, result: Result<Response, ApiError>) {
        // The send fails only if the caller waits no more.
        drop(self.reply.send(result));
    }
}

/// The endpoints of the API.
#[derive(Clone, Default, Debug)]
pub struct ApiDoors {
    /// A Unix socket, in a directory that other users cannot access and that no other server uses.
    pub unix: Option<PathBuf>,
    /// TLS 1.3 over TCP, with the credentials by which the server proves that it is the rack's.
    pub tls: Option<(SocketAddr, Identity)>,
    /// Plain HTTP over TCP: any machine on the path can read the token.
    pub plain: Option<SocketAddr>,
}

impl From<SocketAddr> for ApiDoors {
    fn from(address: SocketAddr) -> Self {
        Self { plain: Some(address), ..Self::default() }
    }
}

/// The tokens that the server accepts.
#[derive(Clone, Debug)]
pub struct ApiTokens {
    /// The rack's token, which permits to join, to create domains, and to use objects whose keys the caller
    /// shows.
    pub rack: Arc<str>,
    /// The operator's token, which permits all requests; `None` if there is no operator.
    pub operator: Option<Arc<str>>,
}

impl From<&str> for ApiTokens {
    fn from(token: &str) -> Self {
        Self { rack: token.into(), operator: None }
    }
}

/// A running server. A drop closes its endpoints.
pub struct ApiServer {
    /// Path of the Unix socket, which the drop removes.
    unix: Option<PathBuf>,
    tls: Option<SocketAddr>,
    plain: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unix, tls, plain, .. } = self;
        f.debug_struct("ApiServer")
            .field("unix", unix)
            .field("tls", tls)
            .field("plain", plain)
            .finish_non_exhaustive()
    }
}

/// A function that creates a listener within the runtime, which the registration of a socket requires.
type Register = Box<dyn FnOnce() -> io::Result<Listener> + Send>;

impl ApiServer {
    /// Serves at `doors`, with default limits. Each request with one of `tokens` goes to the receiver, and
    /// `waker` is called.
    ///
    /// # Errors
    /// [`OpenError`] if an endpoint is in use, or its address is not an address of this machine.
    pub fn start(
        doors: impl Into<ApiDoors>,
        tokens: impl Into<ApiTokens>,
        waker: Waker,
    ) -> Result<(Self, Receiver<ApiCall>), OpenError> {
        Self::start_with(doors, tokens, Limits::default(), waker)
    }

    /// Serves as [`ApiServer::start`] does, with other limits.
    ///
    /// # Errors
    /// The errors of [`ApiServer::start`].
    pub fn start_with(
        doors: impl Into<ApiDoors>,
        tokens: impl Into<ApiTokens>,
        limits: Limits,
        waker: Waker,
    ) -> Result<(Self, Receiver<ApiCall>), OpenError> {
        let ApiDoors { unix, tls, plain } = doors.into();
        let mut registers: Vec<Register> = Vec::new();
        let plain = plain.map(|address| {
            let (listener, address) = listen(address)?;
            registers.push(Box::new(|| TcpListener::from_std(listener).map(Listener::Plain)));
            Ok::<_, OpenError>(address)
        });
        let plain = plain.transpose()?;
        let tls = tls.map(|(address, identity)| {
            let (listener, address) = listen(address)?;
            let acceptor = identity.acceptor();
            let tls = |listener| Listener::Tls(listener, acceptor);
            registers.push(Box::new(|| TcpListener::from_std(listener).map(tls)));
            Ok::<_, OpenError>(address)
        });
        let tls = tls.transpose()?;
        if let Some(path) = &unix {
            let cannot = || OpenError::system(format!("serve at {}", path.display()));
            let listener = super::unix::listen(path).map_err(cannot())?;
            listener.set_nonblocking(true).map_err(cannot())?;
            registers.push(Box::new(|| UnixListener::from_std(listener).map(Listener::Unix)));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(OpenError::system("start the HTTP server"))?;
        let (calls, receiver) = channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let app = router(Shared { tokens: tokens.into(), calls, limits, waker });
        let serve = move || {
            runtime.block_on(async move {
                let listeners: io::Result<Vec<Listener>> =
                    registers.into_iter().map(|register| register()).collect();
                let Ok(listeners) = listeners else { return };
                let until = async {
                    // Both a message and a drop mean stop.
                    drop(stopped.await);
                };
                tokio::select! {
                    () = connections::serve(listeners, app, limits) => {}
                    () = until => {}
                }
            });
        };
        let thread = std::thread::Builder::new()
            .name("farmem-http".into())
            .spawn(serve)
            .map_err(OpenError::system("start the HTTP server's thread"))?;
        Ok((Self { unix, tls, plain, stop: Some(stop), thread: Some(thread) }, receiver))
    }

    /// Returns the address of the plain HTTP server.
    ///
    /// # Panics
    /// Panics if the server has no such endpoint.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.plain.expect("it was asked to serve plain HTTP")
    }

    /// Returns the address of the TLS server, if there is one.
    #[must_use]
    pub const fn tls_address(&self) -> Option<SocketAddr> {
        self.tls
    }
}

fn listen(address: SocketAddr) -> Result<(std::net::TcpListener, SocketAddr), OpenError> {
    let listener = std::net::TcpListener::bind(address).map_err(|e| bind_error(address, e))?;
    listener.set_nonblocking(true).map_err(OpenError::system("listen without blocking"))?;
    let address = listener.local_addr().map_err(OpenError::system("read the listening address"))?;
    Ok((listener, address))
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the server was already printed on stderr.
            drop(thread.join());
        }
        if let Some(path) = &self.unix {
            // A client that finds no socket knows that no server runs; the next server removes leftovers.
            drop(std::fs::remove_file(path));
        }
    }
}

#[derive(Clone)]
struct Shared {
    tokens: ApiTokens,
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

/// Handles a request of the API, by the name in its path.
async fn named(
    State(shared): State<Shared>,
    Extension(guard): Extension<ConnGuard>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> HttpResponse {
    let shown = match authorise(&shared.tokens, &headers).and_then(|operator| keys_of(&headers, operator)) {
        Ok(shown) => shown,
        Err(error) => return answer(Err(error)),
    };
    let most = if uri.path() == "/v1/soft_load" { SOFT_BODY_MAX } else { BODY_MAX };
    let body = match body_of(&headers, body, most, shared.limits).await {
        Ok(body) => body,
        Err(error) => return answer(Err(error)),
    };
    guard.begin_request(shown.keys.first().copied());
    let name = uri.path().strip_prefix("/v1/").filter(|name| Request::NAMES.contains(name));
    let result = match name.map(|name| parse(name, &body)) {
        None => Err(unknown(&method, &uri)),
        Some(Ok(request)) => ask(&shared, request, shown).await,
        Some(Err(error)) => Err(error),
    };
    let mut response = answer(result);
    if guard.end_request() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn ask(shared: &Shared, request: Request, shown: Credentials) -> Result<Response, ApiError> {
    let (reply, answer) = oneshot::channel();
    let gone = || {
        refusal(ErrorCode::Unavailable, "the control plane is stopping", "repeat the request when it runs")
    };
    shared.calls.send(ApiCall { request, shown, reply }).map_err(|_| gone())?;
    shared.waker.wake();
    answer.await.unwrap_or_else(|_| Err(gone()))
}

/// Parses a request from one of [`Request::NAMES`] and the fields in the body.
pub(super) fn parse(name: &str, body: &[u8]) -> Result<Request, ApiError> {
    let remedy = format!("docs/protocol/08-the-control-plane.md, 8.51, lists the fields of {name}");
    let bad = |message: String| refusal(ErrorCode::BadRequest, message, remedy.clone());
    let mut fields: Map<String, Value> = if body.trim_ascii().is_empty() {
        Map::new()
    } else {
        json::object(body).map_err(|e| bad(format!("the body is not a JSON object: {e}")))?
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

/// Checks the token; returns true for the operator's.
fn authorise(tokens: &ApiTokens, headers: &HeaderMap) -> Result<bool, ApiError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let shown = values.next().and_then(|value| value.to_str().ok());
    if values.next().is_some() {
        // A proxy before the server may have checked another one.
        let message = "the header \"Authorization\" appears more than once";
        return Err(refusal(ErrorCode::BadRequest, message, "send it once, with the token"));
    }
    let shown = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    // The comparison takes constant time, so its duration does not reveal where the tokens differ.
    let is_shown = |token: &str| token.as_bytes().ct_eq(shown.as_bytes()).to_bool();
    let operator = tokens.operator.as_deref().is_some_and(is_shown);
    if is_shown(&tokens.rack) | operator {
        return Ok(operator);
    }
    let remedy = "send the header \"Authorization: Bearer TOKEN\"; the token is in the file `token` of the control plane's state directory";
    Err(refusal(ErrorCode::Unauthorized, "the rack's token is missing or wrong", remedy))
}

/// Returns the credentials in a request's head.
fn keys_of(headers: &HeaderMap, operator: bool) -> Result<Credentials, ApiError> {
    let mut keys = Vec::new();
    for field in headers.get_all(KEYS_FIELD) {
        let text = field.to_str().map_err(|_| no_keys("bytes that are not text"))?;
        for key in text.split(',').map(str::trim).filter(|key| !key.is_empty()) {
            if keys.len() == KEYS_SHOWN_MAX {
                return Err(no_keys("too many of them"));
            }
            keys.push(key.parse().map_err(|_| no_keys("text that is no key"))?);
        }
    }
    Ok(Credentials { keys, operator, build: build_of(headers)?, address: address_proof(headers)? })
}

/// Returns the proof of the caller's address in a request's head.
fn address_proof(headers: &HeaderMap) -> Result<AddressProof, ApiError> {
    let Some(field) = headers.get(ADDRESS_FIELD) else { return Ok(AddressProof::Unsupported) };
    let text = field.to_str().unwrap_or_default();
    if text == PENDING {
        return Ok(AddressProof::Pending);
    }
    text.parse().map(AddressProof::Cookie).map_err(|expected| {
        let message = format!("the header \"Farmem-Address\" is wrong: {expected}, or \"{PENDING}\"");
        let remedy = "send the cookie that arrived at the address, as hexadecimal digits";
        refusal(ErrorCode::BadRequest, message, remedy)
    })
}

/// Returns the caller's build in a request's head.
fn build_of(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(field) = headers.get(BUILD_FIELD) else { return Ok(None) };
    match field.to_str().ok().filter(|text| is_build(text)) {
        Some(build) => Ok(Some(build.into())),
        None => {
            let remedy =
                format!("leave it out, or send at most {BUILD_LEN_MAX} letters, digits or any of \".+_-\"");
            Err(refusal(ErrorCode::BadRequest, "the header \"Farmem-Build\" is no build's name", remedy))
        }
    }
}

/// Returns the error for malformed keys. The message does not contain them, because the text may be a key
/// with a typing error.
fn no_keys(what: &str) -> ApiError {
    let message = format!("the header \"Farmem-Keys\" has {what}");
    let remedy =
        format!("send at most {KEYS_SHOWN_MAX} keys, each of 32 hexadecimal digits, with commas between");
    refusal(ErrorCode::BadRequest, message, remedy)
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
