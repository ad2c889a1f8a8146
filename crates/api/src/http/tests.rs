//! The server with a client over loopback TCP, and a replacement for the control plane's thread that gives
//! the test's answers.

mod doors;
mod eviction;
mod fields;
mod refusals;

use super::{ApiCall, ApiCallError, ApiClient, ApiServer, BODY_MAX, Limits, server};
use farmem_control::api::{Allocate, CreateDomain, DomainInfo, ErrorCode, Overview, Response, VmaInfo};
use farmem_link::{OpenError, Waker};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::Receiver;
use std::time::Duration;

const TOKEN: &str = "a token";
const VMA: VmaInfo = VmaInfo { id: 7, base: 4096, size: 4096, node: 1, domain: 3 };

fn start() -> (ApiServer, Receiver<ApiCall>) {
    ApiServer::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), TOKEN, Waker::new(|| {})).unwrap()
}

/// Starts a server with short timeouts and few connections.
fn start_impatient() -> (ApiServer, Receiver<ApiCall>) {
    let patience = Duration::from_millis(150);
    let limits = Limits {
        head: patience,
        body: patience,
        answer: patience,
        connections_max: 3,
        unauthenticated_per_source_max: 3,
        per_source_max: 3,
    };
    start_within(limits, Waker::new(|| {}))
}

fn start_within(limits: Limits, waker: Waker) -> (ApiServer, Receiver<ApiCall>) {
    ApiServer::start_with(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), TOKEN, limits, waker).unwrap()
}

/// Sends single bytes slowly until the server answers or disconnects; returns its answer.
fn dribble(server: &ApiServer, begin: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(begin.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut answer = Vec::new();
    loop {
        // After the server has disconnected, the write may fail; its answer is readable in any case.
        let _sent = stream.write(b"x");
        match stream.read_to_end(&mut answer) {
            Ok(_) => return String::from_utf8(answer).unwrap(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&answer)),
        }
    }
}

fn serves(server: &ApiServer) -> bool {
    raw(server, "GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200")
}

/// Sends a raw HTTP request that no valid client sends. Returns status line and body.
fn raw(server: &ApiServer, text: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A request reaches the control plane's thread as a value, and so does its answer the client.
#[test]
fn a_request_and_its_answer_survive_the_way() {
    let (server, calls) = start();
    let control = std::thread::spawn(move || {
        let call = calls.recv().unwrap();
        assert_eq!(call.request, Allocate { domain: 3, size: 4096, node: None, durable: false }.into());
        call.answer(Ok(VMA.into()));
    });
    let mut client = ApiClient::new(server.address(), TOKEN);
    let answer = client.call(Allocate { domain: 3, size: 4096, node: None, durable: false }).unwrap();
    assert_eq!(answer, VMA);
    control.join().unwrap();
}

/// The answer to another request, as another version might send it, is not returned as this request's.
#[test]
fn the_answer_to_another_request_is_refused() {
    let (server, calls) = start();
    let control = std::thread::spawn(move || calls.recv().unwrap().answer(Ok(VMA.into())));
    let mut client = ApiClient::new(server.address(), TOKEN);
    let error = client.call(CreateDomain { name: "d".into() }).unwrap_err();
    assert!(matches!(error, ApiCallError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("create_domain"), "{error}");
    control.join().unwrap();
}

/// Without the token no request reaches the control plane.
#[test]
fn the_token_is_wanted() {
    let (server, calls) = start();
    let mut client = ApiClient::new(server.address(), "a guess");
    let Err(ApiCallError::Refused(error)) = client.call(Overview {}) else { panic!("let in") };
    assert_eq!(error.code, ErrorCode::Unauthorized);
    assert!(calls.try_recv().is_err());
}

/// Health needs no token; other paths and methods are refused with the list of valid ones.
#[test]
fn paths_and_methods() {
    let (server, _calls) = start();
    let get =
        |path: &str| raw(&server, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    assert!(get("/v1/health").starts_with("HTTP/1.1 200"));
    for path in ["/", "/v1/allocate", "/v2/overview"] {
        let answer = get(path);
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        assert!(answer.contains("join_node"), "{path}: {answer}");
        assert!(answer.contains(&format!("there is no request GET {path}\"")), "{path}: {answer}");
    }
}

/// Each invalid body is refused with its fault.
#[test]
fn wrong_bodies_are_named() {
    let cases: [(&str, &[u8], &str); 11] = [
        ("free", b"{\"domain\": 1, \"base\": 2, \"id\": 3, \"domain\": 4}", "\"domain\" appears twice"),
        (
            "soft_clear",
            b"{\"domain\": 1, \"sections\": [{\"kind\": 1, \"id\": 1, \"id\": 2}]}",
            "\"id\" appears twice",
        ),
        ("allocate", b"{", "EOF"),
        ("allocate", b"[1]", "JSON object"),
        ("allocate", b"{\"domain\": 1}", "size"),
        ("allocate", b"{\"domain\": -1, \"size\": 1}", "-1"),
        ("allocate", b"{\"domain\": 1, \"size\": 1, \"colour\": 2}", "colour"),
        ("free", b"{\"op\": \"leave\", \"port\": 1}", "op"),
        ("overview", b"{\"colour\": 2}", "colour"),
        ("overview", b"anything", "JSON object"),
        ("overview", b"[]", "JSON object"),
    ];
    for (name, body, expected) in cases {
        let error = server::parse(name, body).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadRequest);
        assert!(error.message.contains(expected), "{:?} does not name {expected:?}", error.message);
    }
    for body in [&b""[..], b" ", b"{}"] {
        assert_eq!(server::parse("overview", body), Ok(Overview {}.into()));
    }
}

/// A proxy before the server could read these requests differently. In a first or a later request, lines end
/// with a bare LF, or there are two `Authorization` headers. A bare LF within a body is part of the body.
#[test]
fn ambiguous_requests_are_refused() {
    let (server, calls) = start();
    let token = format!("Authorization: Bearer {TOKEN}");
    let bare = ["GET /v1/health HTTP/1.1\nHost: x\r\n\r\n", "GET /v1/health HTTP/1.1\r\nHost: x\n\n"];
    for text in bare
        .map(str::to_owned)
        .into_iter()
        .chain([format!("POST /v1/overview HTTP/1.1\r\nHost: x\r\n{token}\nContent-Length: 2\r\n\r\n{{}}")])
    {
        let answer = raw(&server, &text);
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("\"bad_request\""),
            "{text:?}: {answer}"
        );
    }
    for two in
        [format!("{token}\r\nAuthorization: Bearer other"), format!("Authorization: Bearer other\r\n{token}")]
    {
        let answer = raw(
            &server,
            &format!("GET /v1/overview HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{two}\r\n\r\n"),
        );
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("more than once"), "{answer}");
    }
    assert!(calls.try_recv().is_err(), "nothing reached the control plane");
    let control = std::thread::spawn(move || calls.recv().unwrap().answer(Ok(Response::Done {})));
    let body = "{\n\n}";
    let head = format!(
        "POST /v1/overview HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let answer = raw(&server, &format!("{head}{body}"));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    control.join().unwrap();
}

/// Eight processes of one user request a domain that does not exist, all at the same time. One of them
/// creates it, and the others open it with that one's key. Before the fix, the concurrent requests were
/// refused.
#[test]
fn one_of_many_makes_a_domain_and_the_others_open_it() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let (server, calls) = start();
    let control = std::thread::spawn(move || {
        let key: farmem_control::keys::Key = format!("{:032x}", 77).parse().unwrap();
        let mut made = false;
        for call in calls {
            let is_shown = call.shown.keys.contains(&key);
            let refused = super::refusal(ErrorCode::NotOwner, "the key was not shown", "show it");
            let answer = DomainInfo { domain: 5, key: Some(key) };
            let result = if made && !is_shown { Err(refused) } else { Ok(answer.into()) };
            made = true;
            call.answer(result);
        }
    });
    let address = server.address();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = ApiClient::new(address, TOKEN).with_keys(&keys);
                let made = client.call(CreateDomain { name: "new".into() });
                assert_eq!(made.map(|domain| domain.domain).map_err(|error| error.to_string()), Ok(5));
            });
        }
    });
    drop(server);
    control.join().unwrap();
}

/// A body beyond the limit is refused: at its announcement, before any of it arrives; or without an
/// announcement, once too much has arrived.
#[test]
fn an_oversized_body_is_refused() {
    let (server, calls) = start();
    let post = |more: &str| {
        let head = format!("Host: x\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n");
        raw(&server, &format!("POST /v1/allocate HTTP/1.1\r\n{head}{more}"))
    };
    let announced = post("Content-Length: 70000\r\n\r\n");
    assert!(
        announced.starts_with("HTTP/1.1 400") && announced.contains("70000 bytes are announced"),
        "{announced}"
    );
    let chunk = format!("{:x}\r\n{}\r\n", BODY_MAX + 1, " ".repeat(BODY_MAX + 1));
    let chunked = post(&format!("Transfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"));
    assert!(chunked.starts_with("HTTP/1.1 400") && chunked.contains("send at most 65536 bytes"), "{chunked}");
    assert!(calls.try_recv().is_err(), "nothing reached the control plane");
}

/// If a client sends a head or a body byte by byte, the server reports the timeout, disconnects, and
/// continues to serve.
#[test]
fn a_client_that_dribbles_is_cut_off() {
    let (server, calls) = start_impatient();
    let head = dribble(&server, "GET /v1/health HTTP/1.1\r\nHost: x\r\nX-Long: ");
    assert!(head.starts_with("HTTP/1.1 408 ") && head.contains("too_slow"), "{head}");
    assert!(serves(&server));
    let begin = format!(
        "POST /v1/allocate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 60000\r\n\r\n"
    );
    let body = dribble(&server, &begin);
    assert!(body.starts_with("HTTP/1.1 408 ") && body.contains("too_slow"), "{body}");
    assert!(serves(&server));
    assert!(calls.try_recv().is_err(), "half a request reached the control plane");
}

/// A silent connection ends without an answer, before or after a request, because the client would take the
/// answer for that to its next request.
#[test]
fn idle_connections_end() {
    let (server, _calls) = start_impatient();
    let mut silent = TcpStream::connect(server.address()).unwrap();
    let mut answer = String::new();
    assert_eq!(silent.read_to_string(&mut answer).unwrap(), 0);
    let answer = raw(&server, "GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
}

/// With more connections than the server accepts, the silent ones end, and the others are served.
#[test]
fn silent_connections_do_not_keep_others_out() {
    let (server, _calls) = start_impatient();
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    assert!(serves(&server));
    drop(silent);
}

/// Clients without the token that send many requests and never read fill their connections and lose them; the
/// others are served.
#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let (server, _calls) = start_impatient();
    let deaf: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            let questions = "GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000);
            while stream.write_all(questions.as_bytes()).is_ok() {}
            stream
        })
        .collect();
    let mut other = TcpStream::connect(server.address()).unwrap();
    other.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    other.write_all(b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).expect("a place became free");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(deaf);
}

/// A caller that is still sending can read a refusal that comes before the end of its request, because the
/// server reads the rest. Otherwise the system would answer the rest with a reset, which such a client would
/// see instead of the refusal.
#[test]
fn an_early_refusal_outlives_the_rest_of_the_request() {
    let (server, _calls) = start();
    for announced in [2000, 100_000] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let head = format!("POST /v1/overview HTTP/1.1\r\nHost: x\r\nContent-Length: {announced}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut first = [0; 1];
        stream.read_exact(&mut first).unwrap();
        for _ in 0..2 {
            stream.write_all(&[b' '; 1000]).expect("the server takes the rest");
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("no reset");
        assert!(answer.starts_with("TTP/1.1 401"), "{answer}");
    }
}

/// A client with the token sends bytes after its last request. The server reads them, and its answer arrives
/// completely.
#[test]
fn an_answer_outlives_bytes_behind_the_last_request() {
    let (server, calls) = start();
    let control = std::thread::spawn(move || calls.recv().unwrap().answer(Ok(Response::Done {})));
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let head = format!("Host: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n");
    stream.write_all(format!("GET /v1/overview HTTP/1.1\r\n{head}\r\n").as_bytes()).unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    for _ in 0..100 {
        stream.write_all(&[b' '; 1000]).expect("the server takes them");
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("no reset");
    assert!(answer.starts_with("TTP/1.1 200") && answer.ends_with("{\"is\":\"done\"}"), "{answer}");
    control.join().unwrap();
}

/// A second server on the same port reports which process uses it; a port without a server is reported as
/// well.
#[test]
fn a_taken_port_and_an_empty_one() {
    let (server, _calls) = start();
    let taken = ApiServer::start(server.address(), TOKEN, Waker::new(|| {}));
    assert!(matches!(taken, Err(OpenError::InUse { .. })));
    let address = server.address();
    drop(server);
    let mut client = ApiClient::new(address, TOKEN);
    assert!(matches!(client.call(Overview {}), Err(ApiCallError::Unreachable { .. })));
}
