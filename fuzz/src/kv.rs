//! Fuzz targets of `farmem kv`: arbitrary bytes of a connection, and a server with its store and far memory.

use crate::Run;
use clap::Parser as _;
use farmem_kv::{Args, Exchange, KvError, Offline};
use std::cell::RefCell;

/// Arguments of the server. The minimum of local memory lets short inputs reach the limits.
const WORDS: [&str; 7] = ["kv", "--local", "16MiB", "--far", "64MiB", "--nodes", "1"];
/// Local memory, in bytes.
const LOCAL: usize = 16 << 20;
/// Maximum length of a reply of this server, in bytes: a quarter of local memory. An input has a few hundred
/// requests.
const REPLY_MAX: usize = LOCAL / 4;
/// Maximum length of all replies to an input, in bytes. More replies prove nothing further and take long.
const REPLIES_MAX: usize = 64 << 20;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

thread_local! {
    static SERVER: RefCell<Option<Offline>> = const { RefCell::new(None) };
}

/// Runs `data` as the bytes of a Redis connection. The first byte selects the length of the pieces.
///
/// # Panics
/// Panics when a request has no reply, several replies or an invalid one. Also panics when the server exceeds
/// its memory limit, or stores anything after its keys were dropped.
pub fn kv_commands(data: &[u8], run: &mut Run) {
    let Some((server, told, data)) = talk(data, run, Offline::talk) else { return };
    assert!(told.replies.len() <= (told.requests + 1) * (REPLY_MAX + 64), "replies are bounded");
    let (mut rest, mut replies) = (told.replies.as_slice(), 0);
    while !rest.is_empty() {
        let (first, len) = reply(rest).expect("a reply is whole and well-formed");
        if let Some(text) = first {
            run.mark(text);
        }
        rest = &rest[len..];
        replies += 1;
        if told.replies.len() > REPLIES_MAX {
            break;
        }
    }
    if rest.is_empty() {
        let broken = usize::from(told.ends && replies == told.requests + 1);
        assert_eq!(replies, told.requests + broken, "each request has one reply");
    }
    words(data, run);
    finish(server);
}

/// Runs `data` as the bytes of a memcached connection. The first byte selects the length of the pieces.
///
/// # Panics
/// Panics when a reply is invalid or too long. Also panics when the server exceeds its memory limit, or
/// stores anything after its keys were dropped.
pub fn kv_memcached(data: &[u8], run: &mut Run) {
    let Some((server, told, data)) = talk(data, run, Offline::talk_memcached) else { return };
    assert!(told.replies.len() <= (told.requests + 1) * (REPLY_MAX + 1024), "replies are bounded");
    let ends = [&b"\r\n"[..], b"use memcached's text or meta protocol"];
    assert!(
        told.replies.is_empty() || ends.iter().any(|end| told.replies.ends_with(end)),
        "replies are whole"
    );
    // A line of a value may look like any reply. Only lines outside values are checked exactly.
    if let Some(line) = told.replies.split(|&byte| byte == b'\n').next()
        && let Some(first) = line.split(|byte| byte.is_ascii_whitespace()).next()
        && let Ok(word) = std::str::from_utf8(first)
        && word.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
    {
        run.mark(word);
    }
    words(data, run);
    finish(server);
}

/// Function that executes the bytes of a connection, in pieces of a given length.
type RunConnection = fn(&mut Offline, &[u8], usize) -> Result<Exchange, KvError>;

/// Executes an input on the server and returns the server, its replies, and the input after the first byte.
/// The first byte selects the length of the pieces.
fn talk<'a>(data: &'a [u8], run: &mut Run, talk: RunConnection) -> Option<(Offline, Exchange, &'a [u8])> {
    run.cases += 1;
    let (&pieces, data) = data.split_first()?;
    // A server that broke a promise is not used again.
    let server = SERVER.with_borrow_mut(Option::take);
    let mut server = server
        .unwrap_or_else(|| Offline::new(&Line::parse_from(WORDS).args).expect("the settings are right"));
    let piece = if pieces < 128 { data.len().max(1) } else { usize::from(pieces - 127) };
    let told = talk(&mut server, data, piece).expect("the settings are right");
    Some((server, told, data))
}

/// Checks that the server's memory is bounded, and empty after `FLUSHALL`.
fn finish(mut server: Offline) {
    let holds = server.memory_use();
    assert!(holds.here <= LOCAL, "{holds:?}");
    server.talk(b"FLUSHALL\r\n", usize::MAX).expect("the settings are right");
    let holds = server.memory_use();
    assert_eq!((holds.keys, holds.records, holds.collections), (0, 0, 0), "nothing of what went is kept");
    SERVER.set(Some(server));
}

/// Parses the reply at the start of `bytes`. Returns the kind of an error reply, and the length of the reply.
fn reply(bytes: &[u8]) -> Option<(Option<&str>, usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let text = std::str::from_utf8(&bytes[1..end]).ok();
    let (mut at, number) = (end + 2, text.and_then(|text| text.parse::<i64>().ok()));
    let elements = match bytes[0] {
        b'+' | b',' | b'(' | b'#' => 0,
        b'_' => return (end == 1).then_some((None, at)),
        b'-' => return Some((text?.split(' ').next(), at)),
        b':' => return number.map(|_| (None, at)),
        b'$' | b'=' => {
            let Ok(len) = usize::try_from(number?) else { return (number? == -1).then_some((None, at)) };
            return (bytes.get(at + len..at + len + 2)? == b"\r\n").then_some((None, at + len + 2));
        }
        b'*' | b'~' | b'>' => number?.max(0),
        b'%' => 2 * number?,
        _ => return None,
    };
    for _ in 0..elements {
        at += reply(&bytes[at..])?.1;
    }
    Some((None, at))
}

/// Marks the first word of each line, which shows the commands that the input contains.
fn words(data: &[u8], run: &mut Run) {
    for line in data.split(|&byte| byte == b'\n') {
        let word = line.split(|&byte| byte == b' ').next().unwrap_or_default();
        if let Ok(word) = std::str::from_utf8(word)
            && word.len() > 2
        {
            run.mark(word);
        }
    }
}
