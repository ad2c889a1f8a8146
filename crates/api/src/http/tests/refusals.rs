//! Every refusal has the API's form, even for bytes that are not a request (PROTOCOL 8.52).

use super::{TOKEN, start};
use crate::http::{ApiServer, HEAD_MAX};
use farmem_control::api::{ApiError, ErrorCode};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

/// Sends `text`, and closes the sending side if `ends`; returns all received bytes.
fn told(server: &ApiServer, text: &[u8], ends: bool) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(text).unwrap();
    if ends {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the status and the error of an answer, after a check that its body is JSON of the announced
/// length.
fn refusal(answer: &str) -> (u16, ApiError) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP: {answer:?}"));
    assert!(head.contains("content-type: application/json"), "{answer}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
    let error: ApiError = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
    assert!(!error.message.is_empty() && !error.remedy.is_empty(), "{answer}");
    (head["HTTP/1.1 ".len()..][..3].parse().unwrap(), error)
}

/// Bytes that the HTTP library refuses by itself, or would not answer: each refusal has a code, a message and
/// a remedy.
#[test]
fn bytes_that_are_no_request_are_refused_in_json() {
    let (server, _calls) = start();
    let head = format!("GET /v1/overview HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n");
    let fields: String = (0..200).map(|n| format!("X-{n}: 1\r\n")).collect();
    let long = "x".repeat(4 * HEAD_MAX);
    let cases: [(&str, String, u16, &str); 9] = [
        ("no HTTP at all", "\0\x01\x02\r\n\r\n".into(), 400, "head"),
        ("no such version", "GET / HTTP/7.0\r\n\r\n".into(), 400, "HTTP/1.1"),
        ("a field without a name", format!("{head}: 1\r\n\r\n"), 400, "head"),
        ("a length that is none", format!("{head}Content-Length: few\r\n\r\n"), 400, "head"),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 400, "HTTP/1.1"),
        ("a long path", format!("GET /{long} HTTP/1.1\r\n\r\n"), 431, "too long"),
        ("a long field", format!("{head}X: {long}\r\n\r\n"), 431, "too long"),
        ("many fields", format!("{head}{fields}\r\n"), 431, "fields"),
        ("half a head", head.clone(), 400, "incomplete"),
    ];
    for (what, text, status, word) in cases {
        let (is, error) = refusal(&told(&server, text.as_bytes(), true));
        assert_eq!((is, error.code), (status, ErrorCode::BadRequest), "{what}: {error:?}");
        assert!(error.message.contains(word), "{what}: {error:?}");
    }
}

/// A valid request is followed by bytes that are not HTTP: the server sends the answer first, then the
/// refusal.
#[test]
fn a_refusal_comes_behind_the_answers_before_it() {
    let (server, _calls) = start();
    let answer = told(&server, b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n\x01\r\n\r\n", false);
    let (first, second) = answer.split_once("ok\n").expect("the first request is answered");
    assert!(first.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(refusal(second).0, 400);
}

/// The requests have a body where none is allowed, a body shorter than announced, or a path that is not text.
#[test]
fn wrong_bodies_and_paths_are_refused_in_json() {
    let (server, calls) = start();
    let cases: [(&str, &str, &str, u16, &str); 6] = [
        ("GET", "/v1/overview", "Content-Length: 8\r\n\r\nanything", 400, "JSON object"),
        ("GET", "/v1/overview", "Content-Length: 8\r\n\r\n{\"a\": 1}", 400, "there are no fields"),
        ("GET", "/v1/health", "Content-Length: 2\r\n\r\n{}", 400, "no body"),
        ("POST", "/v1/leave", "Content-Length: 20\r\n\r\n{\"port\"", 400, "body"),
        ("POST", "/v1/%ff", "\r\n", 404, "/v1/%ff"),
        ("POST", "/v1/fly", "\r\n", 404, "POST /v1/fly"),
    ];
    for (method, path, rest, status, word) in cases {
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n{rest}"
        );
        let (is, error) = refusal(&told(&server, text.as_bytes(), true));
        assert_eq!(is, status, "{path}: {error:?}");
        assert!(error.message.contains(word), "{path}: {error:?}");
    }
    assert!(calls.try_recv().is_err(), "nothing reached the control plane");
}
