//! Requests of Redis clients, as the ordered key-value service reads them: the parser of `apps/orderedkv`, which imports nothing.

use crate::Run;

#[path = "../../apps/orderedkv/src/resp.rs"]
#[expect(dead_code, unreachable_pub, reason = "the service uses what is not fuzzed here")]
mod service;

use service::{ARG_LEN_MAX, ARGS_MAX, Parsed, REQUEST_LEN_MAX, parse};

/// Reads `data` as what a connection has sent, and again as it comes in pieces.
///
/// # Panics
/// When a request is out of bounds or has other bytes than were sent, or when pieces say something else than the whole.
pub fn resp_parse(data: &[u8], run: &mut Run) {
    run.cases += 1;
    let mut rest = data;
    loop {
        let parsed = parse(rest);
        match &parsed {
            Parsed::More => run.mark("more"),
            Parsed::Broken(what) => run.mark(what),
            Parsed::Request { args, len } => {
                run.mark(if rest[0] == b'*' { "array" } else { "words" });
                assert!(
                    (1..=rest.len()).contains(len) && *len <= REQUEST_LEN_MAX,
                    "a request is among its bytes"
                );
                assert!(
                    args.len() <= ARGS_MAX && args.iter().all(|arg| arg.len() <= ARG_LEN_MAX),
                    "its words are bounded"
                );
                let sent: usize = args.iter().map(|arg| arg.len()).sum();
                assert!(sent <= *len, "no byte is in two words");
                if rest[0] == b'*' {
                    let again = emitted(args);
                    assert!(again.len() <= *len, "lengths may have zeros in front, and no more");
                    assert_eq!(parse(&again), Parsed::Request { args: args.clone(), len: again.len() });
                }
            }
        }
        pieces(rest, &parsed);
        let Parsed::Request { len, .. } = parsed else { return };
        rest = &rest[len..];
    }
}

/// Of the bytes in front of its end a request is not read, and nothing that is broken becomes whole by more bytes.
fn pieces(bytes: &[u8], whole: &Parsed<'_>) {
    let end = match whole {
        Parsed::Request { len, .. } => *len,
        Parsed::More | Parsed::Broken(_) => bytes.len(),
    };
    // All of a short one, some of a long one.
    for at in (0..end).step_by(1 + end / 64) {
        match (parse(&bytes[..at]), whole) {
            (Parsed::More, _) => {}
            (Parsed::Broken(early), Parsed::Broken(late)) => {
                assert_eq!(early, *late, "it is broken for one reason")
            }
            (early, _) => panic!("{early:?} of a part of {whole:?}"),
        }
    }
}

/// Words as a client sends them.
fn emitted(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend_from_slice(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}
