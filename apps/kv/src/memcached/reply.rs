//! Replies of memcached's text and meta protocols.

use crate::failure::Failure;

/// The version of memcached with the same replies. Clients select their requests by it.
pub(super) const VERSION: &str = "1.6.18";
/// The reply to a line whose words are not a request of its command.
pub(super) const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
/// Bytes of a reply without a value, at most.
const ERROR_LEN_MAX: usize = 1024;

/// The reason why a request fails.
#[derive(Debug)]
pub(super) enum Refused {
    /// The request is wrong. The text is the whole reply.
    Line(&'static str),
    /// The store refuses the request.
    Store(Failure),
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Store(failure)
    }
}

pub(super) type Done = Result<(), Refused>;

/// Appends a line.
pub(super) fn line(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a number's digits.
pub(super) fn digits(out: &mut Vec<u8>, mut number: u64) {
    let mut text = [0; 20];
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + u8::try_from(number % 10).expect("a digit");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[at..]);
}

pub(super) fn refuse(out: &mut Vec<u8>, refused: &Refused) {
    match refused {
        Refused::Line(text) => line(out, text),
        Refused::Store(failure) => {
            let text = failure.reply();
            // The error class that clients look for, and the reason.
            let kind = if text.starts_with("OOM") { "out of memory storing object: " } else { "" };
            let mut said = format!("SERVER_ERROR {kind}{text}").replace(['\r', '\n'], " ");
            said.truncate(said.floor_char_boundary(ERROR_LEN_MAX));
            line(out, &said);
        }
    }
}

/// Appends the line by which a connection ends.
pub(crate) fn refuse_text(text: &str, out: &mut Vec<u8>) {
    let is_memcached = ["CLIENT_ERROR", "SERVER_ERROR", "ERROR"].iter().any(|kind| text.starts_with(kind));
    line(out, &if is_memcached { text.to_owned() } else { format!("SERVER_ERROR {text}") });
}

/// Appends the refusal of a binary request, in the binary protocol.
pub(crate) fn refuse_binary(operation: u8, opaque: [u8; 4], out: &mut Vec<u8>) {
    const WHY: &[u8] = b"the binary protocol is not here: use memcached's text or meta protocol";
    const UNKNOWN_COMMAND: u16 = 0x81;
    out.extend_from_slice(&[0x81, operation, 0, 0, 0, 0]);
    out.extend_from_slice(&UNKNOWN_COMMAND.to_be_bytes());
    out.extend_from_slice(&u32::try_from(WHY.len()).expect("a line").to_be_bytes());
    out.extend_from_slice(&opaque);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(WHY);
}
