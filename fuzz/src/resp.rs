//! Fuzz target of Redis requests, as `crates/protocols` reads them.

use crate::Run;
use farmem_protocols::resp::{Limits, Parsed, Requests};

/// Limits of the parser, small enough for short inputs to reach them.
const LIMITS: Limits = Limits {
    words_max: 1_024,
    word_len_max: (64 << 10) + 512,
    request_len_max: 1 << 20,
    line_len_max: 4 << 10,
};

/// Parses `data` as the bytes of a connection, whole and in pieces.
///
/// # Panics
/// Panics when a request exceeds the limits or has other bytes than the input, or when pieces produce another
/// result than the whole.
pub fn resp_parse(data: &[u8], run: &mut Run) {
    run.cases += 1;
    let mut rest = data;
    loop {
        let mut requests = Requests::new();
        let parsed = requests.parse(rest, &LIMITS);
        match &parsed {
            Parsed::More { least } => {
                run.mark("more");
                assert!(*least > rest.len(), "what is there is not enough");
                assert!(*least <= LIMITS.request_len_max, "no more is waited for than a request has");
            }
            Parsed::Broken(what) => run.mark(what),
            Parsed::Whole { len } => {
                let is_array = rest[0] == b'*';
                run.mark(if is_array { "array" } else { "words" });
                assert!(
                    (1..=rest.len()).contains(len) && *len <= LIMITS.request_len_max,
                    "a request is among its bytes"
                );
                let words = requests.words(rest);
                assert!(
                    words.len() <= LIMITS.words_max
                        && words.clone().all(|word| word.len() <= LIMITS.word_len_max),
                    "its words are bounded"
                );
                let sent: usize = words.clone().map(<[u8]>::len).sum();
                assert!(sent <= *len, "no byte is in two words");
                let again = emitted(words.clone());
                assert!(!is_array || again.len() <= *len, "an array is not longer than it was");
                if again.len() <= LIMITS.request_len_max {
                    let mut second = Requests::new();
                    assert_eq!(second.parse(&again, &LIMITS), Parsed::Whole { len: again.len() });
                    assert!(second.words(&again).eq(words), "what is sent again is read again");
                }
            }
        }
        pieces(rest, &parsed, &requests);
        let Parsed::Whole { len, .. } = parsed else { return };
        rest = &rest[len..];
    }
}

/// Checks every prefix of a request. An incomplete prefix yields no request, and a broken prefix stays
/// broken. A request read in pieces has the same words.
fn pieces(bytes: &[u8], whole: &Parsed, read: &Requests) {
    let end = match whole {
        Parsed::Whole { len } => *len,
        Parsed::More { .. } | Parsed::Broken(_) => bytes.len(),
    };
    let mut requests = Requests::new();
    // Covers every prefix of a short request, and some prefixes of a long one.
    for at in (0..end).step_by(1 + end / 64) {
        match (requests.parse(&bytes[..at], &LIMITS), whole) {
            (Parsed::More { .. }, _) => {}
            (Parsed::Broken(early), Parsed::Broken(late)) => {
                assert_eq!(early, *late, "it is broken for one reason");
                return;
            }
            (early, _) => panic!("{early:?} of a part of {whole:?}"),
        }
    }
    assert_eq!(requests.parse(bytes, &LIMITS), *whole, "pieces say what the whole says");
    assert!(requests.words(bytes).eq(read.words(bytes)), "and have the same words");
}

/// Returns the bytes of a request with these words, as a client sends them.
fn emitted<'a>(words: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}
