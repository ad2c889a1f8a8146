//! The client: one request, one answer, blocking. A patient one asks again while the control plane, or a role that it needs, does not answer.

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

/// Longest wait for an answer. A request may wait for table updates that are retransmitted for some seconds.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest answer, in bytes: twice what `usage` says of a rack in which all tables are full.
const ANSWER_LEN_MAX: u64 = 64 << 20;

/// Where a control plane is asked, and how it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ApiDoor {
    /// A Unix socket in the state directory, which other users cannot look into.
    Unix(PathBuf),
    /// TLS 1.3. The server has to prove that the rack's authority vouches for this address.
    Tls(SocketAddr, CaCert),
    /// HTTP in clear: any process that has the port is told the token.
    Plain(SocketAddr),
}

/// As it stands in messages.
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

/// Asks a control plane.
#[derive(Debug)]
pub struct ApiClient {
    agent: ureq::Agent,
    door: ApiDoor,
    url: String,
    token: String,
    keys: Option<Arc<KeyFile>>,
    build: Option<&'static str>,
    /// The proof of the address that it joins with.
    address: AddressProof,
    /// Longest wait for an answer.
    most: Duration,
    /// How long it asks again while nothing answers, or a role that the control plane needs does not.
    patience: Duration,
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiCallError {
    /// The control plane refused.
    #[error("{}", .0.message)]
    Refused(ApiError),
    /// Nothing answers there.
    #[error("no control plane answers at {url}: {why}")]
    Unreachable {
        /// Where it was asked.
        url: String,
        /// The system's error.
        why: String,
        /// The request may have been sent, and carried out.
        sent: bool,
    },
    /// Something answers that did not prove to be the rack's control plane: it was not told the token.
    #[error("what answers at {url} is not this rack's control plane ({why}): it was not shown the token")]
    Untrusted {
        /// Where it was asked.
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
    /// Something answers that is not a control plane of this version.
    #[error("what answers at {url} is not a control plane of this version: {why}")]
    Foreign {
        /// Where it was asked.
        url: String,
        /// The reason.
        why: String,
    },
}

impl ApiCallError {
    /// True when the request may be made again: it was not carried out, or does no harm when it is carried out twice; and what kept it from an answer can pass.
    fn may_pass(&self, request: &Request) -> bool {
        match self {
            Self::Unreachable { sent, .. } => !sent || may_repeat(request),
            Self::Refused(error) => error.code == ErrorCode::Unavailable && waits_for_roles(request),
            Self::Untrusted { .. } | Self::Keys { .. } | Self::Foreign { .. } => false,
        }
    }
}

/// True when it makes no difference whether the request is carried out once or twice, one directly after the other, but for what ends with its host anyway.
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

/// True for what a program needs to begin or to go on, and so waits for a role that does not answer. Of the others the caller is told: it asked about that role,
/// or about what another host has to end first.
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

/// The waits between the tries of one request.
struct Retry {
    patience: Duration,
    clock: Clock,
    pause: Duration,
    is_said: bool,
}

/// The first pause between two tries; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Retry {
    fn new(patience: Duration) -> Self {
        Self { patience, clock: Clock::start(), pause: PAUSE_MIN, is_said: false }
    }

    /// Waits until the next try; false when patience is over.
    fn wait(&mut self, error: &ApiCallError) -> bool {
        let waited = Duration::from_nanos(self.clock.now().as_nanos());
        let Some(left) = self.patience.checked_sub(waited).filter(|left| !left.is_zero()) else {
            return false;
        };
        if waited >= PAUSE_MAX && !self.is_said {
            self.is_said = true;
            let left = left.as_secs();
            // stderr may be closed.
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
    /// A client of the control plane behind `door`.
    #[must_use]
    pub fn new(door: impl Into<ApiDoor>, token: &str) -> Self {
        Self::within(door.into(), token, ANSWER_TIME_MAX)
    }

    /// One that shows the keys which are in a file, as far as a request wants them, and keeps those there that it is told. The file need not be
    /// there yet; all clients of the same user share it.
    #[must_use]
    pub fn with_keys(mut self, file: &Path) -> Self {
        self.keys = Some(KeyFile::of(file));
        self
    }

    /// One that says which build of farmem asks.
    #[must_use]
    pub const fn of_build(mut self, build: &'static str) -> Self {
        self.build = Some(build);
        self
    }

    /// One that gives an answer up after `most`, asks over a new connection then, and has no patience: for what must not wait behind one that broke.
    #[must_use]
    pub fn impatient(self, most: Duration) -> Self {
        let (keys, build) = (self.keys, self.build);
        Self { keys, build, ..Self::within(self.door, &self.token, most) }
    }

    /// One that asks again for so long while no control plane answers, or a role that it needs does not. After a second standard error says what is waited for.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Shows this proof of its address with each request from now on.
    pub const fn show_address(&mut self, proof: AddressProof) {
        self.address = proof;
    }

    /// Ends the idle connection that it has kept, so that the next question makes a new one: for a client that asks now and then. The control plane
    /// has only so many.
    pub fn hang_up(&mut self) {
        self.agent = agent(&self.door, self.most);
    }

    fn within(door: ApiDoor, token: &str, most: Duration) -> Self {
        let url = match &door {
            ApiDoor::Unix(_) => "http://127.0.0.1".into(), // no code looks at the address
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

    /// Sends a request and waits for the answer. While the control plane is away, the client retries until its patience ends.
    ///
    /// # Errors
    /// [`ApiCallError`].
    pub fn call<C: Call>(&mut self, call: C) -> Result<C::Answer, ApiCallError> {
        let request = call.into();
        let mut retry = Retry::new(self.patience);
        loop {
            match self.call_now(request.clone()) {
                Err(error) if error.may_pass(&request) && retry.wait(&error) => {}
                Err(error) => return Err(error),
                Ok(response) => return self.answer_to(&request, response),
            }
        }
    }

    /// Asks once.
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
            .map_err(|_| self.foreign(format!("its answer is not one to {}", request.name())))
    }

    /// One request and its answer.
    fn ask(&self, request: &Request) -> Result<Response, ApiCallError> {
        let (name, body) = (request.name(), fields(request));
        let url = format!("{}/v1/{name}", self.url);
        let unreachable = |e: ureq::Error| {
            let (url, why, sent) = (self.door.to_string(), e.to_string(), !is_of_connecting(&e));
            if is_of_tls(&e) {
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

/// An HTTP agent for one door, which waits for an answer no longer than `most`.
fn agent(door: &ApiDoor, most: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None) // a rack is reached directly; a proxy in the environment is for the world outside
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

/// True of what failed before anything of a request was sent.
fn is_of_connecting(error: &ureq::Error) -> bool {
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

/// True of what TLS itself refused.
fn is_of_tls(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
        ureq::Error::Io(io) => io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
        _ => false,
    }
}

/// A request's fields, without its name.
fn fields(request: &Request) -> Value {
    let mut value = serde_json::to_value(request).expect("the API's types have only strings for keys");
    value.as_object_mut().expect("a request is an object").remove("op");
    value
}
