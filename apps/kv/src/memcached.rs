//! memcached's text and meta protocols on a port of their own, over the keys of database 0 (memcached's
//! `doc/protocol.txt`; replies are those of 1.6.18).
//!
//! Key function: [`carry_out`], one request. A change runs as a command of the table
//! ([`crate::command::run`]), so room, eviction, append log and transactions are the same for both protocols.
//! The binary protocol is refused with a message; memcached itself deprecates it.
//!
//! `docs/decisions/2026-11-25-memcached.md` says why no library does this.

mod flags;
mod meta;
mod number;
mod request;
mod stats;
mod stored;
mod text;

pub(crate) use request::{Block, Next, Reader};
pub(crate) use stats::Counts;
pub(crate) use stored::item;

use crate::command::Context;
use crate::failure::Failure;
use crate::store::Store;
use number::{short, signed};
use request::words;

/// The version whose replies these are. Clients choose by it what they send.
const VERSION: &str = "1.6.18";
/// The reply to a line whose words are not a request of its command.
const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
/// Bytes of a reply without a value, at most.
const ERROR_LEN_MAX: usize = 1024;

/// The reason why a request fails.
#[derive(Debug)]
enum Refused {
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

type Done = Result<(), Refused>;

/// Appends a line.
fn line(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a number's digits.
fn digits(out: &mut Vec<u8>, mut number: u64) {
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

fn refuse(out: &mut Vec<u8>, refused: &Refused) {
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

/// Executes one request, and appends its reply if it has one.
pub(crate) fn carry_out(context: &mut Context<'_>, request: &[u8], block: Block<'_>, out: &mut Vec<u8>) {
    context.world.stats.commands += 1;
    context.world.settle_flush(context.store);
    let words = words(request);
    let from = out.len();
    let (done, silent) = match *words.as_slice() {
        [] => (Err(Refused::Line("ERROR")), false),
        [name, ..] if name.len() < 2 => (Err(Refused::Line("ERROR")), false),
        _ if !context.session.authenticated => (text::log_in(context, &words, block, out), false),
        [name, ..] if name.len() == 2 && name[0] == b'm' => {
            (meta::carry_out(context, &words, block, out), false)
        }
        [name, .., last] => {
            let silent = last == b"noreply" && !matches!(name, b"get" | b"gets" | b"gat" | b"gats");
            (text::carry_out(context, &words, block, out), silent)
        }
        [_] => (text::carry_out(context, &words, block, out), false),
    };
    if let Err(refused) = done {
        out.truncate(from);
        refuse(out, &refused);
        context.world.stats.errors += 1;
    }
    if silent {
        out.truncate(from);
    }
}

/// Appends the line by which a connection ends.
pub(crate) fn refuse_text(text: &str, out: &mut Vec<u8>) {
    let is_memcached = ["CLIENT_ERROR", "SERVER_ERROR", "ERROR"].iter().any(|kind| text.starts_with(kind));
    line(out, &if is_memcached { text.to_owned() } else { format!("SERVER_ERROR {text}") });
}

/// Notes the values that these bytes ask for, until `most` bytes are wanted.
pub(crate) fn want_all(store: &mut Store, bytes: &[u8], value_len_max: usize, most: usize) {
    let (mut reader, mut at) = (Reader::default(), 0);
    while let Next::Whole { line, len, .. } = reader.next(&bytes[at..], value_len_max) {
        at += len;
        let words = words(line);
        let keys = match words.first() {
            Some(&(b"get" | b"gets")) => &words[1..],
            Some(&(b"gat" | b"gats")) => words.get(2..).unwrap_or(&[]),
            Some(&(b"mg" | b"ma" | b"incr" | b"decr" | b"append" | b"prepend")) => {
                words.get(1..2).unwrap_or(&[])
            }
            Some(&(b"set" | b"ms" | b"add" | b"replace" | b"cas" | b"md" | b"delete" | b"touch")) => {
                words.get(1..2).unwrap_or(&[]).iter().for_each(|key| store.want_entry(0, key));
                &[]
            }
            _ => &[],
        };
        if !keys.iter().all(|key| store.want(0, key)) || store.wanted_bytes() > most {
            return;
        }
    }
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

/// Parses a signed number of 32 bits, as times are.
fn seconds(word: &[u8]) -> Option<i32> {
    signed(word)
}

/// Parses a client's flags.
fn client_flags(word: &[u8]) -> Option<u32> {
    short(word)
}
