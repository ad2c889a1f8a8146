//! The endpoints of the API: a Unix socket, and TLS. Also an attacker that binds the control plane's port
//! during a restart, to receive the token.

use super::super::tls::provider;
use super::{TOKEN, VMA};
use crate::{ApiCall, ApiCallError, ApiClient, ApiDoor, ApiDoors, ApiLimits, ApiServer, Authority, CaCert};
use farmem_control::api::{Allocate, ApiError, Leave, Overview, Response};
use farmem_link::Waker;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, ServerConnection};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ANY_PORT: SocketAddr = SocketAddr::new(HERE, 0);

/// A server with a Unix socket and TLS, and its state directory.
struct Rack {
    state: TempDir,
    server: ApiServer,
    calls: Receiver<ApiCall>,
}

impl Rack {
    fn start(limits: ApiLimits) -> Self {
        let state = tempfile::tempdir().unwrap();
        let identity = Authority::load_or_create(state.path()).unwrap().identity(HERE).unwrap();
        let unix = Some(state.path().join("api.sock"));
        let doors = ApiDoors { unix, tls: Some((ANY_PORT, identity)), plain: None };
        let (server, calls) = ApiServer::start_with(doors, TOKEN, limits, Waker::new(|| {})).unwrap();
        Self { state, server, calls }
    }

    fn ca(&self) -> CaCert {
        CaCert::from_pem(Authority::load_or_create(self.state.path()).unwrap().pem()).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.state.path().join("api.sock")
    }

    fn tls(&self) -> ApiDoor {
        ApiDoor::Tls(self.server.tls_address().unwrap(), self.ca())
    }
}

/// Sends one request over a connection of any kind; returns all received bytes.
fn raw(mut stream: impl std::io::Read + std::io::Write, text: &str) -> String {
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the result of a client in a thread of its own, for this answer of the control plane.
fn answered<T: Send>(
    asked: impl FnOnce() -> T + Send,
    calls: &Receiver<ApiCall>,
    answer: Result<Response, ApiError>,
) -> T {
    std::thread::scope(|scope| {
        let client = scope.spawn(asked);
        calls.recv_timeout(Duration::from_secs(60)).expect("the request came").answer(answer);
        client.join().unwrap()
    })
}

const HEALTH: &str = "GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// Each endpoint answers a request, and the next one over the same connection.
#[test]
fn each_door_leads_to_the_control_plane() {
    let rack = Rack::start(ApiLimits::default());
    for door in [ApiDoor::Unix(rack.socket()), rack.tls()] {
        let mut client = ApiClient::new(door.clone(), TOKEN);
        for _ in 0..2 {
            let asked = || client.call(Allocate { domain: 3, size: 4096, node: None, durable: false });
            assert_eq!(answered(asked, &rack.calls, Ok(VMA.into())).unwrap(), VMA, "{door}");
        }
        let mut stranger = ApiClient::new(door, "a guess");
        assert!(matches!(stranger.call(Overview {}), Err(ApiCallError::Refused(_))));
        assert!(rack.calls.try_recv().is_err());
    }
}

/// An eavesdropper between client and control plane records all bytes of a TLS connection. Neither direction
/// contains readable parts of the token, the requests, their answers or their heads. Over plain HTTP, the
/// same recording contains all of them.
#[test]
fn nothing_of_a_request_is_on_the_wire_in_clear() {
    let rack = Rack::start(ApiLimits::default());
    let seen = |door: &dyn Fn(SocketAddr) -> ApiDoor, server: SocketAddr, calls: &Receiver<ApiCall>| {
        let way = OnTheWay::to(server);
        let mut client = ApiClient::new(door(way.address), TOKEN);
        for _ in 0..2 {
            let asked = || client.call(Allocate { domain: 3, size: 4096, node: None, durable: false });
            assert_eq!(answered(asked, calls, Ok(VMA.into())).unwrap(), VMA);
        }
        drop(client);
        way.saw()
    };
    let answer = serde_json::to_string(&Response::from(VMA)).unwrap();
    let readable = [TOKEN, "Bearer", "POST", "allocate", "4096", "HTTP/1.1", "application/json", &answer];
    let has = |wire: &[u8], part: &str| wire.windows(part.len()).any(|window| window == part.as_bytes());
    let wire = seen(&|at| ApiDoor::Tls(at, rack.ca()), rack.server.tls_address().unwrap(), &rack.calls);
    assert!(wire.len() > 1000, "two requests and their answers: {} bytes", wire.len());
    for part in readable {
        assert!(!has(&wire, part), "{part} is on the wire");
    }
    let doors = ApiDoors { plain: Some(ANY_PORT), ..ApiDoors::default() };
    let (server, calls) = ApiServer::start(doors, TOKEN, Waker::new(|| {})).unwrap();
    let wire = seen(&ApiDoor::Plain, server.address(), &calls);
    for part in readable {
        assert!(has(&wire, part), "the test would have seen {part}: {}", String::from_utf8_lossy(&wire));
    }
}

/// A proxy of one connection that records the bytes of both directions.
struct OnTheWay {
    address: SocketAddr,
    thread: JoinHandle<Vec<u8>>,
}

impl OnTheWay {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            let server = TcpStream::connect(server).unwrap();
            let carry = |mut from: TcpStream, mut to: TcpStream| {
                let (mut seen, mut part) = (Vec::new(), [0; 4096]);
                while let Ok(len @ 1..) = from.read(&mut part) {
                    seen.extend_from_slice(&part[..len]);
                    if to.write_all(&part[..len]).is_err() {
                        break;
                    }
                }
                drop(to.shutdown(Shutdown::Write));
                seen
            };
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let answers = std::thread::spawn(move || carry(back.0, back.1));
            let mut seen = carry(client, server);
            seen.extend(answers.join().unwrap());
            seen
        });
        Self { address, thread }
    }

    /// Returns all recorded bytes, after the client has disconnected.
    fn saw(self) -> Vec<u8> {
        self.thread.join().unwrap()
    }
}

/// A killed server leaves its socket, and the next one replaces it; a server that ends removes it. A path
/// that is too long for a socket's address works nevertheless.
#[test]
fn the_unix_socket_comes_and_goes_with_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("d".repeat(120));
    fs::create_dir(&deep).unwrap();
    for state in [folder.path(), &deep] {
        let path = state.join("api.sock");
        let start = || {
            let doors = ApiDoors { unix: Some(path.clone()), ..ApiDoors::default() };
            ApiServer::start(doors, TOKEN, Waker::new(|| {})).unwrap()
        };
        let first = start();
        let second = start();
        std::mem::forget(first.0);
        let mut client = ApiClient::new(ApiDoor::Unix(path.clone()), TOKEN);
        let done = answered(|| client.call(Leave::new(1)), &second.1, Ok(Response::Done {}));
        done.expect("the second server answers");
        drop(second);
        assert!(!path.exists());
        let mut client = ApiClient::new(ApiDoor::Unix(path.clone()), TOKEN);
        let Err(ApiCallError::Unreachable { url, .. }) = client.call(Overview {}) else { panic!("answered") };
        assert_eq!(url, format!("unix:{}", path.display()));
    }
}

/// A suspended control plane accepts no connections, and the queue of its socket is full. The next client
/// gives up after its timeout, as over TCP. Otherwise the thread that renews the leases of other racks' hosts
/// would wait as well.
#[test]
fn nobody_waits_for_ever_before_a_unix_socket() {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let address = SocketAddrUnix::new(&path).unwrap();
    let socket = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let stopped = socket(SocketFlags::CLOEXEC);
    bind(&stopped, &address).unwrap();
    listen(&stopped, 0).unwrap();
    let waits = || {
        let one = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        connect(&one, &address).ok().map(|()| one)
    };
    let waiting: Vec<_> = std::iter::from_fn(waits).collect();
    assert!(!waiting.is_empty());
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut client = ApiClient::new(ApiDoor::Unix(path), TOKEN).with_timeout(Duration::from_millis(100));
        drop(say.send(client.call(Overview {})));
    });
    let called = said.recv_timeout(Duration::from_secs(30)).expect("it gives up");
    assert!(matches!(called, Err(ApiCallError::Unreachable { .. })), "{called:?}");
}

/// A client reads the complete overview of a rack whose tables are all full: 65,536 domains and as many
/// allocations.
#[test]
fn a_full_rack_can_be_looked_at() {
    use farmem_control::api::{DomainUse, LossCounts, ProofCounts, RackUsage, Usage, VmaUse};
    let rack = Rack::start(ApiLimits::default());
    let domain = |domain: u32| DomainUse {
        domain,
        name: format!("{domain:064}"),
        hosts: vec![],
        idle_left_ms: Some(60_000),
        processes: 0,
        vmas: 1,
        bytes: 4096,
        durable_bytes: 4096,
        objects: 0,
        granted: 0,
        lost: 0,
    };
    let vma = |n: u32| VmaUse {
        id: n.into(),
        base: (1 << 40) + u64::from(n) * 4096,
        size: 4096,
        domain: n,
        durable: true,
        granted_to: vec![n, n],
    };
    let full = RackUsage {
        hosts: vec![],
        domains: (0..65_536).map(domain).collect(),
        vmas: (0..65_536).map(vma).collect(),
        processes: vec![],
        builds: vec![],
        losses: LossCounts::default(),
        proofs: ProofCounts::default(),
    };
    let mut client = ApiClient::new(ApiDoor::Unix(rack.socket()), TOKEN);
    let seen = answered(|| client.call(Usage {}), &rack.calls, Ok(full.clone().into())).unwrap();
    assert_eq!(seen, full);
}

/// The bytes that an attacker on the port receives until the client gives up: of TCP, and inside TLS.
struct Thief {
    address: SocketAddr,
    thread: JoinHandle<(Vec<u8>, Vec<u8>)>,
}

impl Thief {
    /// Accepts one connection, with TLS if the attacker has a certificate.
    fn waits(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let (mut wire, mut text) = (vec![0; 1 << 16], Vec::new());
            let Some(config) = tls else {
                // The attacker behaves like a server, but the received bytes do not contain the token.
                let len = stream.read(&mut wire).unwrap();
                wire.truncate(len);
                drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
                return (wire, text);
            };
            let mut tls = ServerConnection::new(config).unwrap();
            while tls.complete_io(&mut stream).is_ok_and(|(read, _)| read > 0) {
                drop(tls.reader().read_to_end(&mut text));
            }
            drop(tls.reader().read_to_end(&mut text));
            (Vec::new(), text)
        });
        Self { address, thread }
    }

    /// Checks that a client which knows the authority of `rack` connects, and disconnects without sending the
    /// token.
    fn hears_nothing_of(self, rack: &Rack) {
        let mut client = ApiClient::new(ApiDoor::Tls(self.address, rack.ca()), TOKEN);
        let called = client.call(Overview {});
        let Err(ApiCallError::Untrusted { url, .. }) = called else { panic!("{called:?}") };
        assert_eq!(url, format!("https://{}", self.address));
        let (wire, text) = self.thread.join().unwrap();
        assert_eq!(String::from_utf8_lossy(&text), "", "TLS was agreed on");
        let known = |part: &[u8]| wire.windows(part.len()).any(|window| window == part);
        assert!(!known(TOKEN.as_bytes()) && !known(b"Bearer"), "{}", String::from_utf8_lossy(&wire));
    }
}

/// A server that presents these certificates, and signs with this key.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl ResolvesServerCert for Shows {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

fn shows(cert: CertificateDer<'static>, key: &PrivateKeyDer<'static>) -> Arc<ServerConfig> {
    let key = CertifiedKey::new(vec![cert], any_supported_type(key).unwrap());
    let config =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_no_client_auth().with_cert_resolver(Arc::new(Shows(Arc::new(key)))))
}

/// Creates a certificate for this address by an authority, and its key, as that authority would.
fn certificate_of(authority: &Path) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let issuer_key =
        rcgen::KeyPair::from_pem(&fs::read_to_string(authority.join("ca.key")).unwrap()).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "farmem rack");
    let issuer = rcgen::Issuer::new(params, issuer_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new([HERE.to_string()]).unwrap();
    let cert = params.signed_by(&key, &issuer).unwrap();
    (cert.der().clone(), PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap())
}

/// The attacker speaks plain HTTP and receives only a TLS greeting.
#[test]
fn a_thief_without_tls_hears_nothing_of() {
    let rack = Rack::start(ApiLimits::default());
    Thief::waits(None).hears_nothing_of(&rack);
}

/// The attacker has a certificate for the right address, of an authority with the same name that is not the
/// rack's.
#[test]
fn a_thief_with_another_authority_hears_nothing_of() {
    let rack = Rack::start(ApiLimits::default());
    let other = tempfile::tempdir().unwrap();
    Authority::load_or_create(other.path()).unwrap();
    let (cert, key) = certificate_of(other.path());
    Thief::waits(Some(shows(cert, &key))).hears_nothing_of(&rack);
}

/// The attacker presents a certificate of the rack, which is public, without its key. With the key, the same
/// client is accepted.
#[test]
fn a_thief_with_another_key_hears_nothing_of() {
    let rack = Rack::start(ApiLimits::default());
    let (cert, key) = certificate_of(rack.state.path());
    let other = rcgen::KeyPair::generate().unwrap();
    let other = PrivateKeyDer::from_pem_slice(other.serialize_pem().as_bytes()).unwrap();
    Thief::waits(Some(shows(cert.clone(), &other))).hears_nothing_of(&rack);

    let owner = Thief::waits(Some(shows(cert, &key)));
    let mut client = ApiClient::new(ApiDoor::Tls(owner.address, rack.ca()), TOKEN)
        .with_timeout(Duration::from_millis(500));
    assert!(client.call(Overview {}).is_err(), "it answers nothing");
    drop(client);
    let (_, text) = owner.thread.join().unwrap();
    assert!(String::from_utf8_lossy(&text).contains(TOKEN), "the test would have seen the token");
}

/// A certificate of the rack's own authority for another address is refused as well.
#[test]
fn a_certificate_is_for_one_address() {
    let rack = Rack::start(ApiLimits::default());
    let elsewhere = IpAddr::from([127, 0, 0, 9]);
    let identity = Authority::load_or_create(rack.state.path()).unwrap().identity(elsewhere).unwrap();
    let doors = ApiDoors { tls: Some((ANY_PORT, identity)), ..ApiDoors::default() };
    let (server, calls) = ApiServer::start(doors, TOKEN, Waker::new(|| {})).unwrap();
    let mut client = ApiClient::new(ApiDoor::Tls(server.tls_address().unwrap(), rack.ca()), TOKEN);
    let called = client.call(Overview {});
    assert!(matches!(called, Err(ApiCallError::Untrusted { .. })), "{called:?}");
    assert!(calls.try_recv().is_err());
}

/// Only this user can access the authority's files. After their creation they do not change; damaged ones are
/// named.
#[test]
fn the_authority_is_kept() {
    let state = tempfile::tempdir().unwrap();
    let first = Authority::load_or_create(state.path()).unwrap().pem().to_owned();
    assert_eq!(Authority::load_or_create(state.path()).unwrap().pem(), first);
    for file in ["ca.key", "ca.pem"] {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(state.path().join(file)).unwrap().permissions().mode() & 0o777, 0o600);
        let kept = fs::read(state.path().join(file)).unwrap();
        fs::write(state.path().join(file), "nonsense").unwrap();
        let error = Authority::load_or_create(state.path()).unwrap_err().to_string();
        assert!(error.contains(file), "{error}");
        fs::write(state.path().join(file), kept).unwrap();
    }
    assert_eq!(CaCert::from_pem(&first).unwrap().fingerprint().len(), 64);
    assert!(CaCert::from_pem("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_err());
}

/// The creation of the authority was interrupted between its files, or one of them was restored from another
/// backup. A certificate that does not match the key is named, because no machine would trust it. If two
/// processes create the authority at the same time, one of them does it.
#[test]
fn an_authority_is_of_one_piece() {
    let (state, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [&state, &other] {
        Authority::load_or_create(folder.path()).unwrap();
    }
    fs::copy(other.path().join("ca.key"), state.path().join("ca.key")).unwrap();
    let error = Authority::load_or_create(state.path()).unwrap_err().to_string();
    assert!(error.contains("ca.pem") && error.contains("ca.key"), "{error}");
    fs::write(state.path().join("ca.key"), "").unwrap();
    let error = Authority::load_or_create(state.path()).unwrap_err().to_string();
    assert!(error.contains("ca.pem"), "{error}");

    for _ in 0..20 {
        let state = tempfile::tempdir().unwrap();
        let pems: Vec<String> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| Authority::load_or_create(state.path()).unwrap().pem().to_owned()))
                .collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        assert!(pems.iter().all(|pem| *pem == pems[0]));
    }
}

/// More handshakes than the server accepts connections stop after any number of bytes. These connections are
/// evicted, or closed after the timeout, and a client with the token is served meanwhile.
#[test]
fn tls_that_stands_still_keeps_nobody_out() {
    let few = ApiLimits { connections_max: 3, unauthenticated_per_source_max: 3, ..ApiLimits::default() };
    let rack = Rack::start(few);
    let hello = [0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc, 3, 3];
    let mut still: Vec<TcpStream> = (0..20)
        .map(|n| {
            let mut stream = TcpStream::connect(rack.server.tls_address().unwrap()).unwrap();
            stream.write_all(&hello[..n % hello.len()]).unwrap();
            stream
        })
        .collect();
    let mut client = ApiClient::new(rack.tls(), TOKEN);
    let asked = || client.call(Allocate { domain: 3, size: 4096, node: None, durable: false });
    assert_eq!(answered(asked, &rack.calls, Ok(VMA.into())).unwrap(), VMA);
    let mut first = still.swap_remove(0);
    assert_eq!(first.read(&mut [0; 64]).unwrap_or(0), 0, "the oldest was evicted");

    let soon = Duration::from_millis(150);
    let impatient = Rack::start(ApiLimits { head: soon, ..few });
    let mut stream = TcpStream::connect(impatient.server.tls_address().unwrap()).unwrap();
    assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0, "its time was over");
}

/// The Unix socket has the limits of TCP. Silent connections are evicted with a message. Connections whose
/// head arrives byte by byte are closed, and so are those of clients that do not read.
#[test]
fn the_unix_socket_has_the_same_bounds() {
    let soon = Duration::from_millis(150);
    let limits = ApiLimits {
        head: soon,
        body: soon,
        answer: soon,
        connections_max: 3,
        unauthenticated_per_source_max: 3,
        per_source_max: 3,
    };
    let patient = Rack::start(ApiLimits { head: Duration::from_secs(60), ..limits });
    let silent: Vec<UnixStream> = (0..4).map(|_| UnixStream::connect(patient.socket()).unwrap()).collect();
    assert!(raw(UnixStream::connect(patient.socket()).unwrap(), HEALTH).starts_with("HTTP/1.1 200"));
    let mut told = String::new();
    (&silent[0]).read_to_string(&mut told).unwrap();
    assert!(told.contains("no room for this connection"), "{told}");

    let rack = Rack::start(limits);
    let slow =
        raw(UnixStream::connect(rack.socket()).unwrap(), "GET /v1/health HTTP/1.1\r\nHost: x\r\nX-Long: ");
    assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
    let mut deaf = UnixStream::connect(rack.socket()).unwrap();
    deaf.set_write_timeout(Some(soon)).unwrap();
    let questions = "GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000);
    while deaf.write_all(questions.as_bytes()).is_ok() {}
    deaf.set_write_timeout(None).unwrap();
    // The write blocks until the server closes the connection, because the server reads nothing.
    while deaf.write_all(b"x").is_ok() {}
    assert!(raw(UnixStream::connect(rack.socket()).unwrap(), HEALTH).starts_with("HTTP/1.1 200"));
}
