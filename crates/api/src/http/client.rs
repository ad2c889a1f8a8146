//! A blocking client: one request, one answer. With patience, the client retries while the control plane or a
//! required role does not answer.

use super::key_file::KeyFile;
use super::tls::{self, CaCert};
use super::unix::UnixConnector;
use super::{ADDRESS_FIELD, BUILD_FIELD, IDLE_MAX, KEYS_FIELD, PENDING};
use farmem_control::AddressProof;
use farmem_control::api::{ApiError, Call, ErrorCode, Overview, Request, Response};
use farmem_link::Clock;
use serde_json::Value;
use std::fmt;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::unversioned::resolver::DefaultResolver;

/// Maximum time to wait for an answer. A request may wait for table updates that are retransmitted for some
/// seconds.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum length of an answer in bytes: twice the answer of `usage` in a rack whose tables are all full.
const ANSWER_LEN_MAX: u64 = 64 << 20;

/// The endpoint of a control plane, and the method of its authentication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ApiDoor {
    /// A Unix socket in the state directory, which other users cannot access.
    Unix(PathBuf),
    /// TLS 1.3. The server must prove that the rack's authority has certified this address.
    Tls(SocketAddr, CaCert),
    /// Plain HTTP: any process that has bound the port receives the token.
    Plain(SocketAddr),
}

/// Displays the endpoint as in messages.
impl fmt::Display for ApiDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tls(address, _) => write!(f, "https://{address}"),
            Self::Plain(address) => write!(f, "http://{address}"),
        }
    }
}

impl From<SocketAddr> for ApiDoor {
    fn from(address: SocketAddr) -> Self {
        Self::Plain(address)
    }
}

/// A client of a control plane.
#[derive(Debug)]
pub struct ApiClient {
    agent: ureq::Agent,
    door: ApiDoor,
    url: String,
    token: String,
    keys: Option<Arc<KeyFile>>,
    build: Option<&'static str>,
    /// The proof of the client's address, for a join.
    address: AddressProof,
    /// Maximum time to wait for an answer.
    most: Duration,
    /// Time during which the client retries while the control plane, or a role that it needs, does not
    /// answer.
    patience: Duration,
}

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiCallError {
    /// The control plane refused the request.
    #[error("{}", .0.message)]
    Refused(ApiError),
    /// No process answers at the endpoint.
    #[error("no control plane answers at {url}: {why}")]
    Unreachable {
        /// The endpoint.
        url: String,
        /// The system's error.
        why: String,
        /// True if the request may have been sent, and executed.
        sent: bool,
    },
    /// The server did not prove that it is the rack's control plane. The client did not show the token.
    #[error("what answers at {url} is not this rack's control plane ({why}): it was not shown the token")]
    Untrusted {
        /// The endpoint.
        url: String,
        /// The proof that failed.
        why: String,
    },
    /// The file with this user's keys cannot be used.
    #[error("the keys of this user cannot be used: {why}")]
    Keys {
        /// The reason.
        why: String,
    },
    /// The server is not a control plane of this version.
    #[error("the server at {url} is not a control plane of this version: {why}")]
    Foreign {
        /// The endpoint.
        url: String,
        /// The reason.
        why: String,
    },
}

impl ApiCallError {
    /// Returns true if the request may be retried: the cause may be temporary, and the request was not
    /// executed or is idempotent.
    fn is_retryable(&self, request: &Request) -> bool {
        match self {
            Self::Unreachable { sent, .. } => !sent || may_repeat(request),
            Self::Refused(error) => error.code == ErrorCode::Unavailable && waits_for_roles(request),
            Self::Untrusted { .. } | Self::Keys { .. } | Self::Foreign { .. } => false,
        }
    }
}

/// Returns true for an idempotent request: two consecutive executions have the effect of one, except for
/// effects that end with the host.
const fn may_repeat(request: &Request) -> bool {
    !matches!(
        request,
        Request::Allocate(_)
            | Request::Free(_)
            | Request::Leave(_)
            | Request::ProcessStart(_)
            | Request::ProcessExit(_)
            | Request::Mmap(_)
            | Request::Munmap(_)
            | Request::Mprotect(_)
            | Request::Brk(_)
            | Request::AcceptLost(_)
            | Request::OpenObject(_)
            | Request::UnlinkObject(_)
            | Request::DropObject(_)
            | Request::SaveObject(_)
            | Request::Migrate(_)
            | Request::SoftLoad(_)
    )
}

/// Returns true for requests that a program needs to start or continue, and which therefore wait for a role
/// that does not answer. For other requests the caller gets the error: the request concerns that role itself,
/// or something that another host must end first.
const fn waits_for_roles(request: &Request) -> bool {
    !matches!(
        request,
        Request::Connect(_)
            | Request::Migrate(_)
            | Request::AcceptLost(_)
            | Request::OpenObject(_)
            | Request::HoldObject(_)
            | Request::ResizeObject(_)
            | Request::LookFile(_)
            | Request::LoadObject(_)
            | Request::SaveObject(_)
            | Request::Renew(_)
            | Request::Recover(_)
            | Request::SoftLoad(_)
            | Request::SoftShow(_)
            | Request::SoftClear(_)
            | Request::SoftRead(_)
            | Request::SoftCounts(_)
    )
}

/// The waits between the attempts of one request.
struct Retry {
    patience: Duration,
    clock: Clock,
    pause: Duration,
    is_said: bool,
}

/// The first pause between two attempts, which doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Retry {
    fn new(patience: Duration) -> Self {
        Self { patience, clock: Clock::start(), pause: PAUSE_MIN, is_said: false }
    }

    /// Waits until the next attempt; returns false if the patience has ended.
    fn wait(&mut self, error: &ApiCallError) -> bool {
        let waited = Duration::from_nanos(self.clock.now().as_nanos());
        let Some(left) = self.patience.checked_sub(waited).filter(|left| !left.is_zero()) else {
            return false;
        };
        if waited >= PAUSE_MAX && !self.is_said {
            self.is_said = true;
            let left = left.as_secs();
            // A closed stderr is no fault.
            drop(writeln!(io::stderr(), "farmem: waiting for the rack, for up to {left} s more: {error}"));
        }
        pause(self.pause.min(left));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

#[expect(clippy::disallowed_methods, reason = "the caller is no driver and has nothing else to do")]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

impl ApiClient {
    /// Creates a client of the control plane at `door`.
    #[must_use]
    pub fn new(door: impl Into<ApiDoor>, token: &str) -> Self {
        Self::within(door.into(), token, ANSWER_TIME_MAX)
    }

    /// Shows the keys in `file` that a request requires, and adds the keys of answers to it. The file need
    /// not exist yet; all clients of the same user share it.
    #[must_use]
    pub fn with_keys(mut self, file: &Path) -> Self {
        self.keys = Some(KeyFile::of(file));
        self
    }

    /// Sets the build that requests report.
    #[must_use]
    pub const fn of_build(mut self, build: &'static str) -> Self {
        self.build = Some(build);
        self
    }

    /// Limits the wait for an answer to `most`, and removes patience. A request after a timeout uses a new
    /// connection. For callers that must not wait for a broken connection.
    #[must_use]
    pub fn with_timeout(self, most: Duration) -> Self {
        let (keys, build) = (self.keys, self.build);
        Self { keys, build, ..Self::within(self.door, &self.token, most) }
    }

    /// Sets the time during which the client retries while the control plane, or a role that it needs, does
    /// not answer. After one second the client prints on standard error what it waits for.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets the proof of the client's address for later requests.
    pub const fn show_address(&mut self, proof: AddressProof) {
        self.address = proof;
    }

    /// Closes the idle connection. Use this method in clients that send requests rarely, because the control
    /// plane's connections are limited.
    pub fn close_idle(&mut self) {
        self.agent = agent(&self.door, self.most);
    }

    fn within(door: ApiDoor, token: &str, most: Duration) -> Self {
        let url = match &door {
            ApiDoor::Unix(_) => "http://127.0.0.1".into(), // no code uses this address
            ApiDoor::Tls(address, _) => format!("https://{address}"),
            ApiDoor::Plain(address) => format!("http://{address}"),
        };
        Self {
            agent: agent(&door, most),
            door,
            url,
            token: token.into(),
            keys: None,
            build: None,
            address: AddressProof::Unsupported,
            most,
            patience: Duration::ZERO,
        }
    }

    /// Sends a request and waits for the answer. While the control plane does not answer, the client retries
    /// until its patience ends.
    ///
    /// # Errors
    /// [`ApiCallError`].
    pub fn call<C: Call>(&mut self, call: C) -> Result<C::Answer, ApiCallError> {
        let request = call.into();
        let mut retry = Retry::new(self.patience);
        loop {
            match self.call_now(request.clone()) {
                Err(error) if error.is_retryable(&request) && retry.wait(&error) => {}
                Err(error) => return Err(error),
                Ok(response) => return self.answer_to(&request, response),
            }
        }
    }

    /// Sends a request once.
    ///
    /// # Errors
    /// [`ApiCallError`].
    pub fn call_now<C: Call>(&mut self, call: C) -> Result<C::Answer, ApiCallError> {
        let request = call.into();
        let unusable = |why| ApiCallError::Keys { why };
        let lock = self.keys.as_ref().map(|keys| keys.lock_for(&request)).transpose().map_err(unusable)?;
        let response = self.ask(&request)?;
        if let Some(keys) = &self.keys {
            let there = || match self.ask(&Overview {}.into()) {
                Ok(Response::Overview(seen)) => {
                    Some(seen.domains.iter().map(|(domain, _)| *domain).collect())
                }
                _ => None,
            };
            keys.learn(&request, &response, lock.flatten(), there).map_err(unusable)?;
        }
        self.answer_to(&request, response)
    }

    fn answer_to<A: TryFrom<Response>>(
        &self,
        request: &Request,
        response: Response,
    ) -> Result<A, ApiCallError> {
        A::try_from(response)
            .map_err(|_| self.foreign(format!("its answer does not belong to {}", request.name())))
    }

    /// Sends one request, and returns its answer.
    fn ask(&self, request: &Request) -> Result<Response, ApiCallError> {
        let (name, body) = (request.name(), fields(request));
        let url = format!("{}/v1/{name}", self.url);
        let unreachable = |e: ureq::Error| {
            let (url, why, sent) = (self.door.to_string(), e.to_string(), !is_connect_error(&e));
            if is_tls_error(&e) {
                ApiCallError::Untrusted { url, why }
            } else {
                ApiCallError::Unreachable { url, why, sent }
            }
        };
        let mut post = self.agent.post(&url).header("Authorization", format!("Bearer {}", self.token));
        if let Some(build) = self.build {
            post = post.header(BUILD_FIELD, build);
        }
        match self.address {
            AddressProof::Unsupported => {}
            AddressProof::Pending => post = post.header(ADDRESS_FIELD, PENDING),
            AddressProof::Cookie(cookie) => post = post.header(ADDRESS_FIELD, cookie.to_string()),
        }
        if let Some(keys) = &self.keys {
            let shown = keys.show(request).map_err(|why| ApiCallError::Keys { why })?;
            if !shown.is_empty() {
                let shown: Vec<String> = shown.iter().map(ToString::to_string).collect();
                post = post.header(KEYS_FIELD, shown.join(","));
            }
        }
        let mut answer = post.send_json(&body).map_err(unreachable)?;
        let good = answer.status().is_success();
        let text = answer.body_mut().with_config().limit(ANSWER_LEN_MAX).read_to_string();
        let text = text.map_err(unreachable)?;
        let unread = |e: serde_json::Error| self.foreign(e.to_string());
        if good {
            return serde_json::from_str(&text).map_err(unread);
        }
        Err(ApiCallError::Refused(serde_json::from_str(&text).map_err(unread)?))
    }

    fn foreign(&self, why: String) -> ApiCallError {
        ApiCallError::Foreign { url: self.door.to_string(), why }
    }
}

/// Returns an HTTP agent for one endpoint, which waits for an answer at most `most`.
fn agent(door: &ApiDoor, most: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None) // no proxy leads to a rack, whatever the environment says
        .max_redirects(0)
        .max_idle_age(IDLE_MAX)
        .timeout_global(Some(most));
    match door {
        ApiDoor::Unix(path) => {
            let connector = UnixConnector(path.clone());
            ureq::Agent::with_parts(config.build(), connector, DefaultResolver::default())
        }
        ApiDoor::Tls(_, ca) => {
            let ca = Certificate::from_der(ca.der()).to_owned();
            let tls = TlsConfig::builder()
                .provider(TlsProvider::Rustls)
                .root_certs(RootCerts::new_with_certs(&[ca]))
                .unversioned_rustls_crypto_provider(tls::provider());
            config.tls_config(tls.build()).build().into()
        }
        ApiDoor::Plain(_) => config.build().into(),
    }
}

/// Returns true if the connection failed before any byte of the request was sent.
fn is_connect_error(error: &ureq::Error) -> bool {
    use io::ErrorKind as Kind;
    match error {
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => true,
        ureq::Error::Timeout(of) => matches!(of, ureq::Timeout::Connect | ureq::Timeout::Resolve),
        ureq::Error::Io(io) => matches!(
            io.kind(),
            Kind::NotFound
                | Kind::ConnectionRefused
                | Kind::HostUnreachable
                | Kind::NetworkUnreachable
                | Kind::AddrNotAvailable
        ),
        _ => false,
    }
}

/// Returns true if TLS itself failed.
fn is_tls_error(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
        ureq::Error::Io(io) => io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
        _ => false,
    }
}

/// Returns a request's fields, without its name.
fn fields(request: &Request) -> Value {
    let mut value = serde_json::to_value(request).expect("the API's types have only strings for keys");
    value.as_object_mut().expect("a request is an object").remove("op");
    value
}
