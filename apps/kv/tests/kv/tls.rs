//! TLS: redis-cli and redis-py over it, client certificates, and bytes that are not TLS.

use crate::common::{Reply, Service};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Creates an authority, certificates of a server and a client, and one of a stranger, with openssl. Without openssl
/// this returns `None` and prints a line.
fn certificates(dir: &Path) -> Option<()> {
    let run = |args: &[&str]| {
        let said = Command::new("openssl").args(args).current_dir(dir).output().ok()?;
        assert!(said.status.success(), "openssl {args:?}: {}", String::from_utf8_lossy(&said.stderr));
        Some(())
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let new = |name: &str, more: &[&str]| {
        let (key_file, file, subject) = (format!("{name}.key"), format!("{name}.crt"), format!("/CN={name}"));
        let files = ["-keyout", &key_file, "-out", &file, "-subj", &subject, "-days", "2"];
        run(&[&["req", "-x509"], &key[..], &files, more].concat())
    };
    let made = new("ca", &[]);
    if made.is_none() {
        eprintln!("skipped: openssl absent (scripts/setup installs it)");
        return None;
    }
    let of_ca = ["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=CA:FALSE"];
    new("server", &[&of_ca[..], &["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]].concat())?;
    new("client", &of_ca)?;
    new("stranger", &[])
}

fn serve(dir: &Path, local: &str, more: &[&str]) -> Service {
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (certificate, key, authority) = (file("server.crt"), file("server.key"), file("ca.crt"));
    let words = [
        "--far",
        "64MiB",
        "--local",
        local,
        "--tls-port",
        "0",
        "--memcached-tls-port",
        "0",
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &authority,
    ];
    Service::start(&[&words[..], more].concat())
}

fn cli(dir: &Path, service: &Service, who: Option<&str>, args: &[&str]) -> Option<String> {
    let port = service.tls.unwrap().port().to_string();
    let mut command = Command::new("redis-cli");
    command.current_dir(dir).args(["-p", &port, "--tls", "--cacert", "ca.crt"]);
    if let Some(who) = who {
        command.args(["--cert", &format!("{who}.crt"), "--key", &format!("{who}.key")]);
    }
    let said = command.args(args).output();
    let Ok(said) = said else {
        eprintln!("skipped: redis-cli absent (scripts/setup installs it)");
        return None;
    };
    let text = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    if text.contains("Unrecognized option") {
        eprintln!("skipped: this redis-cli has no TLS");
        return None;
    }
    Some(text)
}

/// Only clients with a certificate of the authority are served. Values of all lengths come back whole.
#[test]
fn clients_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = certificates(dir.path()) else { return };
    let service = serve(dir.path(), "64MiB", &[]);
    let say = |who, args: &[&str]| cli(dir.path(), &service, who, args);
    let Some(said) = say(Some("client"), &["SET", "a", "over TLS"]) else { return };
    assert_eq!(said, "OK\n");
    assert_eq!(service.client().says("GET a").text(), "over TLS");
    for who in [None, Some("stranger")] {
        let said = say(who, &["GET", "a"]).unwrap();
        assert!(!said.contains("over TLS") && !said.is_empty(), "{who:?}: {said}");
    }
    let mut plain = service.client();
    for len in [1_usize, 16_383, 16_384, 16_385, 3_000_000] {
        plain.asks(&[b"SET", b"long", &vec![b'x'; len]]);
        let said = say(Some("client"), &["GET", "long"]).unwrap();
        assert_eq!(said.trim_end().len(), len);
    }
    let many: String = (0..5_000).map(|number| format!("SET key:{number} {number}\n")).collect();
    std::fs::write(dir.path().join("many"), many).unwrap();
    let port = service.tls.unwrap().port();
    let piped =
        format!("redis-cli -p {port} --tls --cacert ca.crt --cert client.crt --key client.key --pipe < many");
    let said = Command::new("sh").args(["-c", &piped]).current_dir(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("errors: 0, replies: 5000"), "{said}");
    service.end();
}

/// redis-py over TLS, in its usual modes.
#[test]
fn redis_py_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = certificates(dir.path()) else { return };
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let has = Command::new(&python).args(["-c", "import redis"]).status();
    if !has.is_ok_and(|status| status.success()) {
        eprintln!("skipped: redis-py absent in .venv (scripts/setup installs it)");
        return;
    }
    let service = serve(dir.path(), "64MiB", &["--tls-auth-clients", "no"]);
    let script = format!(
        "import redis\nc = redis.Redis(host='localhost', port={}, ssl=True, ssl_ca_certs='ca.crt')\n\
         p = c.pipeline()\nfor n in range(1000): p.set(f'k{{n}}', 'v' * n)\np.execute()\n\
         assert all(len(v) == n for n, v in enumerate(c.mget([f'k{{n}}' for n in range(1000)])))\nprint('all as expected')",
        service.tls.unwrap().port()
    );
    let said = Command::new(&python).args(["-c", &script]).current_dir(dir.path()).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        "all as expected\n",
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    service.end();
}

/// Python's own memcached client over TLS. With a certificate it is served: text and meta, values of all
/// lengths, and many requests at once. Without one, or without TLS, it gets nothing.
#[test]
fn memcached_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = certificates(dir.path()) else { return };
    if Command::new("python3").args(["-c", "import ssl"]).status().is_err() {
        eprintln!("skipped: python3 absent");
        return;
    }
    let service = serve(dir.path(), "64MiB", &[]);
    let (port, redis) = (service.memcached_tls.unwrap().port(), service.tls.unwrap().port());
    let script = format!(
        r#"
import socket, ssl
def context(name, key):
    new = ssl.create_default_context(cafile=name + '.crt')
    if key: new.load_cert_chain(key + '.crt', key + '.key')
    return new
def connect(name, key, port={port}):
    stream = socket.create_connection(('127.0.0.1', port), timeout=60)
    return context(name, key).wrap_socket(stream, server_hostname='localhost')
client = connect('ca', 'client')
replies = client.makefile('rb')
def asks(request, lines):
    client.sendall(request)
    return b''.join(replies.readline() for _ in range(lines))
assert asks(b'set a 5 0 8\r\nover TLS\r\n', 1) == b'STORED\r\n'
assert asks(b'get a\r\n', 3) == b'VALUE a 5 8\r\nover TLS\r\nEND\r\n'
assert asks(b'mg a v f\r\n', 2) == b'VA 8 f5\r\nover TLS\r\n'
for length in [1, 16383, 16384, 16385, 3000000]:
    value = b'x' * length
    assert asks(b'set long 0 0 %d\r\n%s\r\n' % (length, value), 1) == b'STORED\r\n'
    assert asks(b'get long\r\n', 3) == b'VALUE long 0 %d\r\n%s\r\nEND\r\n' % (length, value)
assert asks(b''.join(b'set key:%d 0 0 4\r\n%04d\r\n' % (n, n) for n in range(5000)), 5000) == b'STORED\r\n' * 5000
for key in [None, 'stranger']:
    try:
        stranger = connect('ca', key)
        stranger.sendall(b'get a\r\n')
        said = stranger.recv(100)
    except OSError:
        said = b''
    assert said == b'', said
try:
    connect('stranger', 'client')
    raise SystemExit('a server of another authority is taken')
except ssl.SSLCertVerificationError:
    pass
both = connect('ca', 'client', {redis})
both.sendall(b'GET a\r\n')
assert both.makefile('rb').readline() == b'$8\r\n'
print('all as expected')
"#
    );
    let said = Command::new("python3").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&said.stderr);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "all as expected\n", "{stderr}");
    let mut plain = TcpStream::connect(service.memcached_tls.unwrap()).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    plain.write_all(b"get a\r\nversion\r\n").unwrap();
    let mut said = Vec::new();
    let _reset = plain.read_to_end(&mut said);
    assert!(!said.windows(4).any(|part| part == b"over" || part == b"1.6."), "{said:?}");
    service.end();
}

/// Silent TLS connections, more than there is room for: those that are too many are refused, and earlier
/// clients stay connected.
#[test]
fn silent_connections_over_tls_push_nobody_out() {
    const MANY: usize = 150;
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = certificates(dir.path()) else { return };
    let service = serve(dir.path(), "16MiB", &[]);
    let mut client = service.client();
    let kept = vec![b'q'; 256 << 10];
    assert_eq!(client.says("MULTI").text(), "OK");
    assert_eq!(client.asks(&[b"SET", b"kept", &kept]).text(), "QUEUED");
    let ports = [service.tls.unwrap(), service.memcached_tls.unwrap()];
    let silent: Vec<TcpStream> =
        (0..MANY).map(|number| TcpStream::connect(ports[number % 2]).unwrap()).collect();
    let mut beside = service.client();
    let counts = |beside: &mut crate::common::Client, section: &str, name: &str| {
        let info = beside.says(&format!("INFO {section}")).text();
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().parse::<usize>().unwrap()
    };
    let all_came = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        counts(&mut beside, "stats", "total_connections_received") == MANY + 2
    });
    assert!(all_came);
    let refused = counts(&mut beside, "stats", "rejected_connections");
    assert!((MANY / 2..MANY).contains(&refused), "{refused}");
    assert_eq!(counts(&mut beside, "clients", "clients_cut_off"), 0);
    assert_eq!(client.says("EXEC").text(), "Array([Simple(\"OK\")])");
    drop(silent);
    service.end();
}

/// A TLS connection that does not end its handshake in time is closed, however slowly it sends. One that has
/// ended it, and plain ones, may stay silent.
#[test]
fn a_handshake_has_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = certificates(dir.path()) else { return };
    let service = serve(dir.path(), "64MiB", &["--tls-auth-clients", "no", "--tls-handshake-timeout", "3"]);
    let mut plain = service.client();
    let mut done = client(dir.path(), &service);
    let mut silent = TcpStream::connect(service.tls.unwrap()).unwrap();
    let mut slow = TcpStream::connect(service.memcached_tls.unwrap()).unwrap();
    // The head of a record of 4 KiB.
    slow.write_all(&[22, 3, 1, 16, 0]).unwrap();
    let late = (0..600).any(|_| {
        // A byte now and then is not a handshake.
        let _it_may_be_gone = slow.write(&[0]);
        std::thread::sleep(Duration::from_millis(50));
        plain.says("INFO stats").text().contains("tls_handshakes_late:2\r")
    });
    assert!(late);
    for stream in [&mut silent, &mut slow] {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // Bytes that the server has not read make the close a reset.
        let _reset = stream.read_to_end(&mut Vec::new());
    }
    done.write_all(b"PING\r\n").unwrap();
    let mut said = [0; 7];
    done.read_exact(&mut said).unwrap();
    assert_eq!(said, *b"+PONG\r\n");
    let settings = plain.says("CONFIG GET tls-handshake-timeout");
    assert_eq!(settings, Reply::Array(vec![Reply::bulk("tls-handshake-timeout"), Reply::bulk("3")]));
    service.end();
}

/// Returns a TLS client after its handshake.
fn client(dir: &Path, service: &Service) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    use rustls::pki_types::pem::PemObject as _;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(dir.join("ca.crt")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.enable_secret_extraction = true;
    let stream = TcpStream::connect(service.tls.unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut tls = rustls::StreamOwned::new(connection, stream);
    tls.write_all(b"PING\r\n").unwrap();
    let mut said = [0; 7];
    tls.read_exact(&mut said).unwrap();
    tls
}

/// Consecutive records without content are valid and contain no request. Other clients are served meanwhile, and a
/// client that sends only such records is disconnected.
#[test]
fn records_without_bytes_have_an_end() {
    use rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
    const MOST: usize = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = certificates(dir.path()) else { return };
    let service = serve(dir.path(), "64MiB", &["--tls-auth-clients", "no"]);
    let mut beside = service.client();
    let (connection, mut socket) = client(dir.path(), &service).into_parts();
    let Some(rustls::SupportedCipherSuite::Tls13(suite)) = connection.negotiated_cipher_suite() else {
        panic!("it speaks TLS 1.3")
    };
    let (mut number, secrets) = connection.dangerous_extract_secrets().unwrap().tx;
    let (rustls::ConnectionTrafficSecrets::Aes128Gcm { key, iv }
    | rustls::ConnectionTrafficSecrets::Aes256Gcm { key, iv }
    | rustls::ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets
    else {
        panic!("a cipher of TLS 1.3")
    };
    let mut encrypter = suite.aead_alg.encrypter(key, iv);
    let mut record = |bytes: &[u8]| {
        let message = OutboundPlainMessage {
            typ: rustls::ContentType::ApplicationData,
            version: rustls::ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(bytes),
        };
        let record = encrypter.encrypt(message, number).unwrap().encode();
        number += 1;
        record
    };
    // Some of them, before a request, are allowed. The reply is a record: 17 bytes longer than its content, behind a
    // head of 5.
    for _ in 0..2 {
        let some: Vec<u8> = (0..30).flat_map(|_| record(b"")).collect();
        socket.write_all(&some).unwrap();
        socket.write_all(&record(b"PING\r\n")).unwrap();
        socket.read_exact(&mut [0; 5 + 7 + 17]).unwrap();
    }
    let mut sent = 0;
    while sent < MOST {
        let empty: Vec<u8> = (0..1_000).flat_map(|_| record(b"")).collect();
        if socket.write_all(&empty).is_err() {
            break;
        }
        sent += empty.len();
        assert_eq!(beside.says("PING").text(), "PONG");
    }
    assert!(sent < MOST, "{sent} bytes of records that say nothing were read");
    assert_eq!(beside.says("CLIENT LIST").text().lines().count(), 1, "it is gone");
    service.end();
}

/// Bytes that are not TLS end their connection and no other. A client that begins a handshake and falls
/// silent harms no other client. Nothing is sent in the clear.
#[test]
fn bytes_that_are_no_tls_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = certificates(dir.path()) else { return };
    let service = serve(dir.path(), "64MiB", &["--tls-auth-clients", "optional"]);
    let connect = || {
        let stream = TcpStream::connect(service.tls.unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    };
    let mut silent = connect();
    silent.write_all(&[22, 3, 1]).unwrap();
    for bytes in
        [&b"PING\r\n"[..], b"*1\r\n$4\r\nPING\r\n", &[0; 64], &[22, 3, 1, 255, 255, 1], &[255; 20_000]]
    {
        let mut stream = connect();
        let _ended_already =
            stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let mut said = Vec::new();
        let _reset = stream.read_to_end(&mut said);
        assert!(!said.windows(4).any(|part| part == b"PONG"), "{said:?}");
    }
    if let Some(said) = cli(dir.path(), &service, None, &["PING"]) {
        assert_eq!(said, "PONG\n", "a certificate is optional");
    }
    service.end();
}
