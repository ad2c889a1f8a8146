//! The meta protocol: `mg`, `ms`, `md`, `ma`, `me`, `mn`.

use super::flags::{Flags, too_many};
use super::reply::{BAD_LINE, Done, Refused, digits, line};
use super::stored::{ends, put, set_end, write};
use super::text::{Added, Mode, NOT_NUMERIC, Outcome, Storing, add, put_in, remove};
use crate::command::Context;
use crate::command::execute::{admits, may};
use crate::failure::Failure;
use crate::store::NewExpiry;
use crate::store::item::{Head, Item};
use farmem_protocols::memcached::{Block, KEY_LEN_MAX, Words};
use std::io::Write as _;
use std::ops::Range;

const BAD: Refused = Refused::Line(BAD_LINE);
const LONG_OPAQUE: Refused = Refused::Line("CLIENT_ERROR opaque token too long");
const BAD_FLAGS: Refused = Refused::Line("CLIENT_ERROR invalid or duplicate flag");
const LONG: Refused = Refused::Line("CLIENT_ERROR options flags too long");

pub(super) fn execute(
    context: &mut Context<'_>,
    words: &Words<'_>,
    block: Block<'_>,
    out: &mut Vec<u8>,
) -> Done {
    let (what, rest) = (words[0][1], &words[1..]);
    match what {
        b'n' => line(out, "MN"),
        b'g' | b's' | b'd' | b'a' | b'e' if rest.is_empty() => {
            return Err(if what == b'e' { BAD } else { Refused::Line("ERROR") });
        }
        b'g' | b's' | b'd' | b'a' | b'e' if rest[0].len() > KEY_LEN_MAX => return Err(BAD),
        b'g' => return get(context, rest, out),
        b's' => return set(context, rest, block, out),
        b'd' => return delete(context, rest, out),
        b'a' => return arithmetic(context, rest, out),
        b'e' => return look(context, rest, out),
        _ => return Err(Refused::Line("ERROR")),
    }
    Ok(())
}

/// Returns the seconds that are left of an item, with the one that has begun; -1 for an item that does not
/// expire.
fn say_ttl(end: Option<i64>, now: i64, out: &mut Vec<u8>) {
    match end {
        None => out.extend_from_slice(b"-1"),
        Some(end) => digits(out, seconds_left(end, now)),
    }
}

fn seconds_left(end: i64, now: i64) -> u64 {
    u64::try_from((end - now + 999) / 1000).unwrap_or(0)
}

/// Appends the parts of the request that each reply repeats: the opaque word and the key.
fn repeat(flags: &Flags<'_>, out: &mut Vec<u8>) {
    for word in flags.words {
        echo(flags, word, flags.binary, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a word that the reply repeats, or the key. Appends nothing for any other flag.
fn echo(flags: &Flags<'_>, word: &[u8], was_binary: bool, out: &mut Vec<u8>) {
    match word[0] {
        b'O' => {
            out.push(b' ');
            out.extend_from_slice(word);
        }
        b'k' => {
            out.extend_from_slice(b" k");
            flags.say_key(was_binary, out);
        }
        _ => {}
    }
}

/// The work that is left when the reply to an `mg` is written.
#[derive(Default)]
struct After {
    ttl: Option<NewExpiry>,
    /// The client must write the item again.
    won: Option<Won>,
}

/// An item to store once more, with the mark that a client writes it again.
struct Won {
    head: Head,
    data: Vec<u8>,
    /// The position of that mark in the reply.
    said: Range<usize>,
}

fn get(context: &mut Context<'_>, words: &[&[u8]], out: &mut Vec<u8>) -> Done {
    if too_many(words.len()) {
        return Err(Refused::Line("CLIENT_ERROR options flags are too long"));
    }
    let flags = Flags::read(words[0], &words[1..]).map_err(Refused::Line)?;
    if flags.has_long_opaque() {
        // The lookup would count as a use.
        let looks_first = [b'N', b'T', b'R', b'l', b'h'].iter().any(|letter| flags.has(*letter));
        if !looks_first && !flags.no_update {
            let db = context.db();
            context.store.note_fetched(db, &flags.key);
        }
        return Err(LONG_OPAQUE);
    }
    let touches = flags.ttl.is_some();
    admits(context, if touches || flags.vivify.is_some() { b"getex" } else { b"get" }, &flags.key)?;
    let (db, from) = (context.db(), out.len());
    let mut made = false;
    if let (Some(exptime), None) = (flags.vivify, context.store.kind(db, &flags.key)) {
        admits(context, b"set", &flags.key)?;
        let marks = if flags.binary { Head::BINARY_KEY } else { 0 };
        let ends = ends(context, exptime);
        put(context, &flags.key, (0, marks), ends, b"")?;
        made = true;
    }
    let ttl = flags.ttl.map(|ttl| ends(context, ttl));
    let (now, most) = (context.store.now(), from + context.world.reply_room());
    let may_win = may(context, b"set", &flags.key);
    let Some(item) = context.store.item(db, &flags.key, !flags.no_update)? else {
        context.world.memcached.missed(touches);
        if !flags.quiet {
            out.extend_from_slice(b"EN");
            repeat(&flags, out);
        }
        return Ok(());
    };
    let kept = item.kept();
    let after = answer(&flags, &item, ttl, (made, may_win, now), out);
    if flags.value {
        if out.len() + item.data.len() > most {
            return Err(Refused::Line("SERVER_ERROR out of memory writing get response"));
        }
        out.extend_from_slice(item.data);
        out.extend_from_slice(b"\r\n");
    }
    context.world.memcached.hit(touches);
    if let Some(Won { head, data, said }) = after.won {
        // The number stays, because the client writes the item by it.
        match write(context, &flags.key, head, kept, &data) {
            // If the mark cannot be stored, it is not reported: the client has the value, and another client may get
            // the mark later.
            Err(_) if !made => drop(out.drain(said)),
            done => done?,
        }
    }
    after.ttl.map_or(Ok(()), |ttl| set_end(context, &flags.key, ttl)).map_err(Refused::Store)
}

/// Appends the reply to an `mg` that found an item.
fn answer(
    flags: &Flags<'_>,
    item: &Item<'_>,
    ttl: Option<NewExpiry>,
    (made, may_win, now): (bool, bool, i64),
    out: &mut Vec<u8>,
) -> After {
    if flags.value {
        out.extend_from_slice(b"VA ");
        digits(out, item.data.len() as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    let (mut end, mut after, mut won) = (item.end, After::default(), made);
    for word in flags.words {
        match word[0] {
            b'T' => {
                after.ttl = ttl;
                end = match ttl {
                    Some(NewExpiry::At(end)) => Some(end),
                    _ => None,
                };
            }
            b'R' => {
                let least = flags.recache.unwrap_or(0);
                let left = end.map(|end| seconds_left(end, now));
                let is_short = left.is_some_and(|left| u64::try_from(least).is_ok_and(|least| left < least));
                won |= !made && !item.head.has(Head::TOKEN_SENT) && is_short;
            }
            _ => say(flags, item, end, now, word, out),
        }
    }
    let sent = item.head.has(Head::TOKEN_SENT);
    if sent {
        out.extend_from_slice(b" Z");
    }
    if item.head.has(Head::STALE) {
        out.extend_from_slice(b" X");
        won |= !sent;
    }
    if won && may_win {
        let said = out.len()..out.len() + 2;
        out.extend_from_slice(b" W");
        let fetched = if item.fetched || !flags.no_update { Head::FETCHED } else { 0 };
        let marks = item.head.marks | Head::TOKEN_SENT | fetched;
        after.won = Some(Won { head: Head { marks, ..item.head }, data: item.data.to_vec(), said });
    }
    out.extend_from_slice(b"\r\n");
    after
}

/// Appends the value for one flag.
fn say(flags: &Flags<'_>, item: &Item<'_>, end: Option<i64>, now: i64, word: &[u8], out: &mut Vec<u8>) {
    let number = |out: &mut Vec<u8>, number: u64| {
        out.extend_from_slice(&[b' ', word[0]]);
        digits(out, number);
    };
    match word[0] {
        b's' => number(out, item.data.len() as u64),
        b'c' => number(out, item.head.cas),
        b'f' => number(out, item.head.flags.into()),
        b'l' => number(out, item.idle.into()),
        b'h' => number(out, item.fetched.into()),
        b't' => {
            out.extend_from_slice(b" t");
            say_ttl(end, now, out);
        }
        _ => echo(flags, word, item.head.has(Head::BINARY_KEY), out),
    }
}

fn set(context: &mut Context<'_>, words: &[&[u8]], block: Block<'_>, out: &mut Vec<u8>) -> Done {
    if words.len() == 1 {
        return Err(BAD);
    }
    if too_many(words.len()) {
        return Err(LONG);
    }
    if block == Block::None {
        return Err(BAD);
    }
    let flags = Flags::read(words[0], &words[2..]).map_err(Refused::Line)?;
    if flags.has_long_opaque() {
        return Err(LONG_OPAQUE);
    }
    let mode = match flags.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        Some(_) => return Err(Refused::Line("CLIENT_ERROR invalid mode for ms M token")),
    };
    context.world.memcached.sets += 1;
    let data = match block {
        Block::Is(data) => data,
        Block::NoLineEnd => return Err(Refused::Line("CLIENT_ERROR bad data chunk")),
        Block::TooLong | Block::None => {
            // The old item would be taken for the one that could not be stored.
            remove(context, &flags.key)?;
            return Err(Refused::Line("SERVER_ERROR object too large for cache"));
        }
    };
    let storing = Storing {
        key: &flags.key,
        mode,
        flags: flags.client_flags,
        marks: if flags.binary { Head::BINARY_KEY } else { 0 },
        ends: ends(context, flags.ttl.unwrap_or(0)),
        cas: flags.cas,
        may_be_stale: flags.stale,
    };
    let (said, cas) = match put_in(context, &storing, data)? {
        Outcome::Is(_) if flags.quiet => return Ok(()),
        Outcome::Is(cas) => ("HD", cas),
        Outcome::Exists => ("EX", 0),
        Outcome::NotFound => ("NF", 0),
        Outcome::NotStored => ("NS", 0),
    };
    out.extend_from_slice(said.as_bytes());
    for word in flags.words {
        match word[0] {
            b'c' => {
                out.extend_from_slice(b" c");
                digits(out, cas);
            }
            _ => echo(&flags, word, flags.binary, out),
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

fn delete(context: &mut Context<'_>, words: &[&[u8]], out: &mut Vec<u8>) -> Done {
    if too_many(words.len()) {
        return Err(LONG);
    }
    let flags = Flags::read(words[0], &words[1..]).map_err(|_| BAD_FLAGS)?;
    if flags.has_long_opaque() {
        return Err(LONG_OPAQUE);
    }
    admits(context, b"del", &flags.key)?;
    let db = context.db();
    let said = if context.store.kind(db, &flags.key).is_none() {
        context.world.memcached.deleted(false);
        "NF"
    } else if !may_delete(context, &flags)? {
        context.world.memcached.deleted(false);
        "EX"
    } else {
        if flags.stale {
            mark_stale(context, &flags)?;
        } else {
            remove(context, &flags.key)?;
        }
        if flags.quiet {
            return Ok(());
        }
        "HD"
    };
    out.extend_from_slice(said.as_bytes());
    repeat(&flags, out);
    Ok(())
}

/// Returns whether the item has the number that the request names, if it names one.
fn may_delete(context: &mut Context<'_>, flags: &Flags<'_>) -> Result<bool, Refused> {
    let (Some(cas), db) = (flags.cas, context.db()) else { return Ok(true) };
    Ok(context.store.item(db, &flags.key, false)?.is_some_and(|item| item.head.cas == cas))
}

/// Keeps an item and marks it as stale. The next client that requests it must write it again.
fn mark_stale(context: &mut Context<'_>, flags: &Flags<'_>) -> Result<(), Refused> {
    let db = context.db();
    let Some(item) = context.store.item(db, &flags.key, false)? else { return Ok(()) };
    let fetched = if item.fetched { Head::FETCHED } else { 0 };
    let marks = (item.head.marks | Head::STALE | fetched) & !Head::TOKEN_SENT;
    let (client_flags, data, kept) = (item.head.flags, item.data.to_vec(), item.kept());
    let ends = flags.ttl.map_or(kept, |ttl| ends(context, ttl));
    put(context, &flags.key, (client_flags, marks), ends, &data)?;
    Ok(())
}

fn arithmetic(context: &mut Context<'_>, words: &[&[u8]], out: &mut Vec<u8>) -> Done {
    if too_many(words.len()) {
        return Err(LONG);
    }
    let flags = Flags::read(words[0], &words[1..]).map_err(|_| BAD_FLAGS)?;
    let up = match flags.mode {
        None | Some(b'I' | b'+') => true,
        Some(b'D' | b'-') => false,
        Some(_) => return Err(Refused::Line("CLIENT_ERROR invalid mode for ma M token")),
    };
    if flags.has_long_opaque() {
        return Err(LONG_OPAQUE);
    }
    let (value, cas, made) = match added(context, &flags, up)? {
        Sum::Is { value, cas, made } => (value, cas, made),
        Sum::Not(said) => {
            out.extend_from_slice(said.as_bytes());
            repeat(&flags, out);
            return Ok(());
        }
    };
    let (db, now, from) = (context.db(), context.store.now(), out.len());
    let mut text = Vec::new();
    digits(&mut text, value);
    if flags.value {
        out.extend_from_slice(b"VA ");
        digits(out, text.len() as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    for word in flags.words {
        match word[0] {
            b'c' => {
                out.extend_from_slice(b" c");
                digits(out, cas);
            }
            b't' => {
                out.extend_from_slice(b" t");
                let end = context.store.end(db, &flags.key).flatten();
                say_ttl(end, now, out);
            }
            b'T' => {
                let ends = ends(context, flags.ttl.unwrap_or(0));
                set_end(context, &flags.key, ends)?;
            }
            b'N' if made => {
                let ends = ends(context, flags.vivify.unwrap_or(0));
                set_end(context, &flags.key, ends)?;
            }
            _ => echo(&flags, word, flags.binary, out),
        }
    }
    out.extend_from_slice(b"\r\n");
    if flags.value {
        out.extend_from_slice(&text);
        out.extend_from_slice(b"\r\n");
    }
    if flags.quiet && !made {
        out.truncate(from);
    }
    Ok(())
}

/// The outcome of an `ma`.
enum Sum {
    Is { value: u64, cas: u64, made: bool },
    Not(&'static str),
}

fn added(context: &mut Context<'_>, flags: &Flags<'_>, up: bool) -> Result<Sum, Refused> {
    match add(context, &flags.key, up, flags.delta, flags.cas) {
        Ok(Added::Is(value, cas)) => Ok(Sum::Is { value, cas, made: false }),
        Ok(Added::Exists) => Ok(Sum::Not("EX")),
        Ok(Added::NotFound) if flags.vivify.is_some() => {
            admits(context, b"set", &flags.key)?;
            let (mut text, marks) = (Vec::new(), if flags.binary { Head::BINARY_KEY } else { 0 });
            digits(&mut text, flags.initial);
            let cas = put(context, &flags.key, (0, marks), NewExpiry::Never, &text)?;
            Ok(Sum::Is { value: flags.initial, cas, made: true })
        }
        Ok(Added::NotFound) => Ok(Sum::Not("NF")),
        // A collection is not a number.
        Err(Refused::Store(Failure::WrongType)) => Err(NOT_NUMERIC),
        Err(refused) => Err(refused),
    }
}

/// Answers `me`, which shows the state of an item to find a fault.
fn look(context: &mut Context<'_>, words: &[&[u8]], out: &mut Vec<u8>) -> Done {
    let flags: &[&[u8]] = match words.get(1) {
        Some(word) if *word == b"b" => &words[1..2],
        _ => &[],
    };
    let flags = Flags::read(words[0], flags).map_err(|_| BAD)?;
    admits(context, b"get", &flags.key)?;
    let (db, now) = (context.db(), context.store.now());
    let Some(item) = context.store.item(db, &flags.key, false)? else {
        line(out, "EN");
        return Ok(());
    };
    out.extend_from_slice(b"ME ");
    flags.say_key(item.head.has(Head::BINARY_KEY), out);
    out.extend_from_slice(b" exp=");
    say_ttl(item.end, now, out);
    let said = write!(
        out,
        " la={} cas={} fetch={} cls=1 size={}\r\n",
        item.idle,
        item.head.cas,
        if item.fetched { "yes" } else { "no" },
        item.data.len() + flags.key.len()
    );
    said.expect("a buffer takes what is written");
    Ok(())
}
