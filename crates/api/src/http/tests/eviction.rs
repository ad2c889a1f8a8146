//! Many connections at once: those that are served, and those that are evicted (PROTOCOL 8.52).

use super::{TOKEN, start_within};
use crate::http::{ApiCall, ApiClient, Limits};
use farmem_control::api::{DomainInfo, Leave, Request, Response};
use farmem_link::Waker;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Returns limits without effective timeouts, so that every connection that ends was evicted.
fn patient() -> Limits {
    let hour = Duration::from_secs(3600);
    Limits { head: hour, body: hour, answer: hour, ..Limits::default() }
}

/// Answers every request that reaches the control plane until the server ends, and counts them.
fn answering(calls: Receiver<ApiCall>) -> JoinHandle<usize> {
    std::thread::spawn(move || calls.into_iter().map(|call| call.answer(Ok(Response::Done {}))).count())
}

/// Connects and sends `text`. A read fails after a minute without bytes.
fn connected(to: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

/// Returns all bytes until the server closes.
fn heard(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap_or_else(|e| panic!("{e} after {answer:?}"));
    answer
}

fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut stream = stream;
    matches!(stream.read(&mut [0; 1]), Err(e) if e.kind() == ErrorKind::WouldBlock)
}

/// More unauthenticated connections of one address than the table has entries send nothing, or half a request
/// with the token. The server answers a later client, and an earlier one over its old connection. The newest
/// unauthenticated connections stay, as many as one address may have. The server tells the others why they
/// end.
#[test]
fn idle_connections_do_not_keep_clients_out() {
    let limits = patient();
    let (server, calls) = start_within(limits, Waker::new(|| {}));
    let control = answering(calls);
    let head = format!("POST /v1/leave HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n");
    let whole = format!("{head}Content-Length: 10\r\n\r\n{{\"port\":1}}");
    let mut old = connected(server.address(), &whole);
    let mut answer = [0; 512];
    let len = old.read(&mut answer).unwrap();
    assert!(answer[..len].starts_with(b"HTTP/1.1 200"));

    let half = format!("{head}Content-Length: 10\r\n\r\n{{\"port\"");
    let count = 385;
    let said = |n: usize| if n.is_multiple_of(2) { "" } else { half.as_str() };
    let idle: Vec<TcpStream> = (0..count).map(|n| connected(server.address(), said(n))).collect();
    let mut client = ApiClient::new(server.address(), TOKEN);
    client.call(Leave::new(1)).unwrap();
    old.write_all(whole.as_bytes()).unwrap();
    let len = old.read(&mut answer).unwrap();
    assert!(answer[..len].starts_with(b"HTTP/1.1 200"));

    let stay = limits.unauthenticated_per_source_max - 1; // the client had one of these entries before its request
    let mut idle = idle.into_iter();
    for (n, connection) in idle.by_ref().take(count - stay).enumerate() {
        let told = heard(connection);
        assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("\"unavailable\""), "{n}: {told:?}");
    }
    assert_eq!(idle.filter(is_open).count(), stay);
    drop((client, old, server));
    assert_eq!(control.join().unwrap(), 3);
}

/// Clients with the token have all connections. Each has sent one request, and half of them have sent half of
/// a second one. A later client is answered nevertheless, and the longest idle connections are evicted for
/// it. Their later requests are not executed. Their clients get an error with this reason, or a closed
/// connection.
#[test]
fn clients_with_the_token_keep_nobody_out() {
    let limits = Limits { per_source_max: patient().connections_max, ..patient() };
    let (server, calls) = start_within(limits, Waker::new(|| {}));
    let control = answering(calls);
    let ask = format!("GET /v1/overview HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    let mut answer = [0; 512];
    let mut idle: Vec<TcpStream> = Vec::new();
    for n in 0..limits.connections_max {
        let mut stream = connected(server.address(), &ask);
        let len = stream.read(&mut answer).unwrap();
        assert!(answer[..len].starts_with(b"HTTP/1.1 200"), "{n}");
        if n % 2 == 0 {
            stream.write_all(b"GET /v1/over").unwrap();
        }
        idle.push(stream);
    }
    let mut clients: Vec<ApiClient> = (0..3)
        .map(|_| ApiClient::new(server.address(), TOKEN).with_timeout(Duration::from_secs(20)))
        .collect();
    clients.iter_mut().for_each(|client| client.call(Leave::new(1)).expect("a client comes in"));
    for (n, stream) in idle.drain(..3).enumerate() {
        let told = heard(stream);
        assert_eq!(told.is_empty(), n % 2 == 1, "{n}: {told:?}");
        assert!(told.is_empty() || told.starts_with("HTTP/1.1 503 ") && told.contains("\"unavailable\""));
    }
    assert!(idle.iter().all(is_open));
    drop((clients, idle, server));
    assert_eq!(control.join().unwrap(), limits.connections_max + 3);
}

/// All connections wait for answers, and have already sent their next requests. A new client is admitted with
/// the first answer: that connection ends with it, although it has sent another request.
#[test]
fn busy_clients_make_room_one_by_one() {
    let limits = Limits { connections_max: 4, ..patient() };
    let (server, calls) = start_within(limits, Waker::new(|| {}));
    let ask = format!("GET /v1/overview HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    let busy: Vec<TcpStream> = (0..4).map(|_| connected(server.address(), &ask.repeat(9))).collect();
    let mut under_way: Vec<ApiCall> = (0..4).map(|_| calls.recv().unwrap()).collect();
    let leave = format!(
        "POST /v1/leave HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 10\r\n\r\n{{\"port\":1}}"
    );
    let mut comes = connected(server.address(), &leave);
    for answered in 0.. {
        assert!(answered < 36, "all that the others ask is answered first");
        // The server may not have seen the new connection yet when it sends the first answers.
        let call = under_way.pop().unwrap_or_else(|| calls.recv().unwrap());
        let is_leave = matches!(call.request, Request::Leave(_));
        call.answer(Ok(Response::Done {}));
        if is_leave {
            break;
        }
    }
    let mut answer = [0; 512];
    let len = comes.read(&mut answer).unwrap();
    assert!(answer[..len].starts_with(b"HTTP/1.1 200"));
    drop((busy, server));
}

/// A hundred clients with the token connect and send requests while the server's thread is suspended. These
/// clients exceed the limit of unauthenticated connections per address. The server answers all of them,
/// because it reads their requests before it would evict them.
#[test]
fn a_hundred_clients_at_once_do_not_evict_each_other() {
    let (go_on, wait) = channel::<()>();
    let (say_held, held) = channel();
    let gate = Mutex::new((Some(wait), say_held));
    // The server's thread calls the waker with the first request, and is suspended until all have connected.
    let waker = Waker::new(move || {
        let (wait, say_held) = &mut *gate.lock().unwrap();
        if let Some(wait) = wait.take() {
            say_held.send(()).unwrap();
            wait.recv().unwrap();
        }
    });
    let (server, calls) = start_within(patient(), waker);
    let control = answering(calls);
    let ask = format!(
        "GET /v1/overview HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    );
    let mut clients = vec![connected(server.address(), &ask)];
    held.recv().unwrap();
    clients.extend((0..100).map(|_| connected(server.address(), &ask)));
    go_on.send(()).unwrap();
    for (n, client) in clients.into_iter().enumerate() {
        let answer = heard(client);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{n}: {answer:?}");
    }
    drop(server);
    assert_eq!(control.join().unwrap(), 101);
}

/// A client sends its requests and closes its sending side. The server answers each request once and in
/// order, even if it sees the close before the control plane has answered (PROTOCOL 8.1).
#[test]
fn a_half_closed_client_is_answered() {
    let (server, calls) = start_within(patient(), Waker::new(|| {}));
    let control = std::thread::spawn(move || {
        for (number, call) in (0..).zip(calls) {
            call.answer(Ok(DomainInfo { domain: number, key: None }.into()));
        }
    });
    let ask = format!("GET /v1/overview HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    let mut first = 0;
    for count in [1; 20].into_iter().chain([20, 3]) {
        let stream = connected(server.address(), &ask.repeat(count));
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = heard(stream);
        let numbers: Vec<usize> = answer
            .split("\"domain\":")
            .skip(1)
            .map(|rest| rest.split('}').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(numbers, (first..first + count).collect::<Vec<_>>(), "{answer:?}");
        first += count;
    }
    drop(server);
    control.join().unwrap();
}
