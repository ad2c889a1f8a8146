//! The text protocol: `get`, `set` and their kin.

use super::reply::{BAD_LINE, Done, Refused, VERSION, digits, line};
use super::stats;
use super::stored::{change, ends, put, set_end};
use crate::command::Context;
use crate::command::execute::admits;
use crate::command::server::log_in_as;
use crate::store::NewExpiry;
use crate::store::item::Head;
use farmem_protocols::memcached::{Block, KEY_LEN_MAX, Words, short, signed, unsigned};

const ERROR: Refused = Refused::Line("ERROR");
const BAD: Refused = Refused::Line(BAD_LINE);
const TOO_LARGE: Refused = Refused::Line("SERVER_ERROR object too large for cache");

/// How a storage command combines a value with the old one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
}

/// The outcome of a storage command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The value was stored under this number.
    Is(u64),
    /// The item has another number.
    Exists,
    NotFound,
    NotStored,
}

/// A value to be stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storing<'a> {
    pub(super) key: &'a [u8],
    pub(super) mode: Mode,
    pub(super) flags: u32,
    pub(super) marks: u8,
    pub(super) ends: NewExpiry,
    /// The number that the item must have.
    pub(super) cas: Option<u64>,
    /// A value with a smaller number is stored, too, and marked as stale.
    pub(super) may_be_stale: bool,
}

pub(super) fn execute(
    context: &mut Context<'_>,
    words: &Words<'_>,
    block: Block<'_>,
    out: &mut Vec<u8>,
) -> Done {
    match words[0] {
        b"get" | b"bget" => get(context, &words[1..], false, None, out),
        b"gets" => get(context, &words[1..], true, None, out),
        b"gat" => get_and_touch(context, words, false, out),
        b"gats" => get_and_touch(context, words, true, out),
        b"set" => store(context, words, Mode::Set, block, out),
        b"cas" => store(context, words, Mode::Set, block, out),
        b"add" => store(context, words, Mode::Add, block, out),
        b"replace" => store(context, words, Mode::Replace, block, out),
        b"append" => store(context, words, Mode::Append, block, out),
        b"prepend" => store(context, words, Mode::Prepend, block, out),
        b"incr" => arithmetic(context, words, true, out),
        b"decr" => arithmetic(context, words, false, out),
        b"touch" => touch(context, words, out),
        b"delete" => delete(context, words, out),
        b"flush_all" => flush_all(context, words, out),
        b"version" => {
            line(out, &format!("VERSION {VERSION}"));
            Ok(())
        }
        b"verbosity" => verbosity(words, out),
        b"stats" => stats::stats(context, &words[1..], out),
        b"quit" => {
            context.session.ends = true;
            Ok(())
        }
        b"lru" | b"lru_crawler" | b"slabs" | b"watch" | b"shutdown" | b"cache_memlimit" | b"extstore"
        | b"refresh_certs" => Err(Refused::Line(
            "CLIENT_ERROR this command is about memcached's own memory and is not here; see INFO at the port for Redis clients",
        )),
        _ => {
            // A browser sent this: the text of a web page follows.
            context.session.ends = words.last().is_some_and(|last| last.starts_with(b"HTTP/"));
            Err(ERROR)
        }
    }
}

/// Logs a client in. As in memcached, that is a `set` of any key whose value is a user's name and password.
pub(super) fn log_in(
    context: &mut Context<'_>,
    words: &Words<'_>,
    block: Block<'_>,
    out: &mut Vec<u8>,
) -> Done {
    match (words[0], block) {
        (b"quit", _) => context.session.ends = true,
        (b"set", Block::Is(data)) => {
            let mut said = data.splitn(2, |&byte| byte == b' ');
            let (Some(user), Some(password)) = (said.next(), said.next()) else {
                return Err(Refused::Line("CLIENT_ERROR bad authentication token format"));
            };
            if log_in_as(context, user, password).is_err() {
                return Err(Refused::Line("CLIENT_ERROR authentication failure"));
            }
            line(out, "STORED");
        }
        _ => return Err(Refused::Line("CLIENT_ERROR unauthenticated")),
    }
    Ok(())
}

fn get(
    context: &mut Context<'_>,
    keys: &[&[u8]],
    with_cas: bool,
    ends: Option<NewExpiry>,
    out: &mut Vec<u8>,
) -> Done {
    if keys.is_empty() {
        return Err(ERROR);
    }
    if keys.iter().any(|key| key.len() > KEY_LEN_MAX) {
        return Err(BAD);
    }
    let db = context.db();
    for key in keys {
        admits(context, if ends.is_some() { b"getex" } else { b"get" }, key)?;
    }
    let most = out.len() + context.world.reply_room();
    for (at, key) in keys.iter().enumerate() {
        // The first value that has to be waited for is read together with as many of the following ones as
        // one round takes.
        if context.store.would_wait(db, key) {
            let _no_more_at_once = keys[at..].iter().all(|key| context.store.want(db, key));
            context.store.fetch_wanted();
        }
        let Some(item) = context.store.item(db, key, true)? else {
            context.world.memcached.missed(ends.is_some());
            continue;
        };
        out.extend_from_slice(b"VALUE ");
        out.extend_from_slice(key);
        out.push(b' ');
        digits(out, item.head.flags.into());
        out.push(b' ');
        digits(out, item.data.len() as u64);
        if with_cas {
            out.push(b' ');
            digits(out, item.head.cas);
        }
        out.extend_from_slice(b"\r\n");
        if out.len() + item.data.len() > most {
            return Err(Refused::Line(
                "SERVER_ERROR out of memory writing get response: ask for fewer keys at once",
            ));
        }
        out.extend_from_slice(item.data);
        out.extend_from_slice(b"\r\n");
        context.world.memcached.hit(ends.is_some());
        if let Some(ends) = ends {
            set_end(context, key, ends)?;
        }
    }
    out.extend_from_slice(b"END\r\n");
    Ok(())
}

fn get_and_touch(context: &mut Context<'_>, words: &Words<'_>, with_cas: bool, out: &mut Vec<u8>) -> Done {
    let Some(exptime) = words.get(1) else { return Err(ERROR) };
    let exptime = signed(exptime).ok_or(Refused::Line("CLIENT_ERROR invalid exptime argument"))?;
    let ends = ends(context, exptime);
    // Without a key the reply is `END` alone.
    if words.len() == 2 {
        line(out, "END");
        return Ok(());
    }
    get(context, &words[2..], with_cas, Some(ends), out)
}

fn store(
    context: &mut Context<'_>,
    words: &Words<'_>,
    mode: Mode,
    block: Block<'_>,
    out: &mut Vec<u8>,
) -> Done {
    let has_cas = words[0] == b"cas";
    let least = if has_cas { 6 } else { 5 };
    if words.len() != least && words.len() != least + 1 {
        return Err(ERROR);
    }
    let key = words[1];
    if key.len() > KEY_LEN_MAX {
        return Err(BAD);
    }
    let (Some(flags), Some(exptime)) = (short(words[2]), signed(words[3])) else { return Err(BAD) };
    let cas = if has_cas { Some(unsigned(words[5]).ok_or(BAD)?) } else { None };
    let ends = ends(context, exptime);
    context.world.memcached.sets += 1;
    let data = match block {
        Block::Is(data) => data,
        Block::None => return Err(BAD),
        Block::NoLineEnd => return Err(Refused::Line("CLIENT_ERROR bad data chunk")),
        Block::TooLong => {
            // The old item would be taken for the one that could not be stored.
            if mode == Mode::Set && !has_cas {
                admits(context, b"set", key)?;
                change(context, &[b"DEL", key])?;
            }
            return Err(TOO_LARGE);
        }
    };
    let storing = Storing { key, mode, flags, marks: 0, ends, cas, may_be_stale: false };
    let said = match put_in(context, &storing, data)? {
        Outcome::Is(_) => "STORED",
        Outcome::Exists => "EXISTS",
        Outcome::NotFound => "NOT_FOUND",
        Outcome::NotStored => "NOT_STORED",
    };
    line(out, said);
    Ok(())
}

/// Stores a value according to its mode.
pub(super) fn put_in(
    context: &mut Context<'_>,
    storing: &Storing<'_>,
    data: &[u8],
) -> Result<Outcome, Refused> {
    let &Storing { key, mode, flags, marks, ends, cas, may_be_stale } = storing;
    admits(context, b"set", key)?;
    let db = context.db();
    let joins = matches!(mode, Mode::Append | Mode::Prepend);
    if mode == Mode::Set && cas.is_none() {
        return Ok(Outcome::Is(put(context, key, (flags, marks), ends, data)?));
    }
    if context.store.kind(db, key).is_none() {
        // The number is compared with the item's.
        let asks_for_number = cas.is_some() && matches!(mode, Mode::Set | Mode::Replace);
        return match mode {
            _ if asks_for_number => {
                context.world.memcached.cas_misses += 1;
                Ok(Outcome::NotFound)
            }
            Mode::Add => Ok(Outcome::Is(put(context, key, (flags, marks), ends, data)?)),
            _ => Ok(Outcome::NotStored),
        };
    }
    if mode == Mode::Add {
        return Ok(Outcome::NotStored);
    }
    // A collection has no number, and nothing can be appended to it.
    if mode == Mode::Replace && cas.is_none() {
        return Ok(Outcome::Is(put(context, key, (flags, marks), ends, data)?));
    }
    let limit = context.world.settings.word_len_max;
    let Some(old) = context.store.item(db, key, false)? else { return Ok(Outcome::NotStored) };
    let kept = old.kept();
    let (mut marks, mut ends, mut flags) = (marks, ends, flags);
    match cas {
        // Zero is not a number of a change.
        Some(0) if joins => {}
        Some(0) => return Ok(not_this_one(context)),
        Some(cas) if cas == old.head.cas => context.world.memcached.cas_hits += 1,
        Some(cas) if may_be_stale && !joins && cas < old.head.cas => {
            marks |= Head::STALE | old.head.marks & Head::TOKEN_SENT;
            ends = kept;
        }
        Some(_) => return Ok(not_this_one(context)),
        None => {}
    }
    if !joins {
        return Ok(Outcome::Is(put(context, key, (flags, marks), ends, data)?));
    }
    (flags, marks, ends) = (old.head.flags, old.head.marks & Head::BINARY_KEY, kept);
    if old.data.len() + data.len() > limit {
        return Ok(Outcome::NotStored);
    }
    let whole = if mode == Mode::Append { [old.data, data].concat() } else { [data, old.data].concat() };
    Ok(Outcome::Is(put(context, key, (flags, marks), ends, &whole)?))
}

fn not_this_one(context: &mut Context<'_>) -> Outcome {
    context.world.memcached.cas_others += 1;
    Outcome::Exists
}

/// The outcome of an addition.
pub(super) enum Added {
    NotFound,
    /// The item has another number than the request names.
    Exists,
    /// The new value, and the number of the change.
    Is(u64, u64),
}

pub(super) const NOT_NUMERIC: Refused =
    Refused::Line("CLIENT_ERROR cannot increment or decrement non-numeric value");

/// Adds to a number, or subtracts from it. As in memcached, a result that is shorter keeps the length, with
/// spaces behind it.
pub(super) fn add(
    context: &mut Context<'_>,
    key: &[u8],
    up: bool,
    by: u64,
    cas: Option<u64>,
) -> Result<Added, Refused> {
    admits(context, b"incrby", key)?;
    let db = context.db();
    let Some(old) = context.store.item(db, key, false)? else {
        context.world.memcached.added(up, false);
        return Ok(Added::NotFound);
    };
    if old.data.is_empty() {
        return Err(NOT_NUMERIC);
    }
    if cas.is_some_and(|cas| cas != 0 && cas != old.head.cas) {
        return Ok(Added::Exists);
    }
    let value = unsigned(old.data).ok_or(NOT_NUMERIC)?;
    let value = if up { value.wrapping_add(by) } else { value.saturating_sub(by) };
    let (len, Head { flags, marks, .. }, fetched, kept) = (old.data.len(), old.head, old.fetched, old.kept());
    let mut text = Vec::with_capacity(len.max(20));
    digits(&mut text, value);
    // A value that is written in place keeps its marks.
    let marks = if text.len() <= len {
        text.resize(len, b' ');
        marks | if fetched { Head::FETCHED } else { 0 }
    } else {
        marks & Head::BINARY_KEY
    };
    let cas = put(context, key, (flags, marks), kept, &text)?;
    context.world.memcached.added(up, true);
    Ok(Added::Is(value, cas))
}

fn arithmetic(context: &mut Context<'_>, words: &Words<'_>, up: bool, out: &mut Vec<u8>) -> Done {
    if !matches!(words.len(), 3 | 4) {
        return Err(ERROR);
    }
    if words[1].len() > KEY_LEN_MAX {
        return Err(BAD);
    }
    let by = unsigned(words[2]).ok_or(Refused::Line("CLIENT_ERROR invalid numeric delta argument"))?;
    match add(context, words[1], up, by, None)? {
        Added::Is(value, _) => {
            digits(out, value);
            out.extend_from_slice(b"\r\n");
        }
        Added::NotFound => line(out, "NOT_FOUND"),
        Added::Exists => unreachable!("no number was asked for"),
    }
    Ok(())
}

fn touch(context: &mut Context<'_>, words: &Words<'_>, out: &mut Vec<u8>) -> Done {
    if !matches!(words.len(), 3 | 4) {
        return Err(ERROR);
    }
    if words[1].len() > KEY_LEN_MAX {
        return Err(BAD);
    }
    let exptime = signed(words[2]).ok_or(Refused::Line("CLIENT_ERROR invalid exptime argument"))?;
    let (db, ends) = (context.db(), ends(context, exptime));
    admits(context, b"expire", words[1])?;
    let is_there = context.store.kind(db, words[1]).is_some();
    context.world.memcached.touched(is_there);
    if is_there {
        context.store.note_fetched(db, words[1]);
        set_end(context, words[1], ends)?;
    }
    line(out, if is_there { "TOUCHED" } else { "NOT_FOUND" });
    Ok(())
}

fn delete(context: &mut Context<'_>, words: &Words<'_>, out: &mut Vec<u8>) -> Done {
    let right = match words.as_slice() {
        [_] | [_, _, _, _, ..] if words.len() != 4 => return Err(ERROR),
        [_, _] => true,
        [_, _, word] => *word == b"0" || *word == b"noreply",
        [_, _, hold, word] => *hold == b"0" && *word == b"noreply",
        _ => false,
    };
    if !right {
        return Err(Refused::Line("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"));
    }
    if words[1].len() > KEY_LEN_MAX {
        return Err(BAD);
    }
    let said = if remove(context, words[1])? { "DELETED" } else { "NOT_FOUND" };
    line(out, said);
    Ok(())
}

/// Deletes a key. Returns whether it existed.
pub(super) fn remove(context: &mut Context<'_>, key: &[u8]) -> Result<bool, Refused> {
    admits(context, b"del", key)?;
    let db = context.db();
    let is_there = context.store.kind(db, key).is_some();
    context.world.memcached.deleted(is_there);
    if is_there {
        change(context, &[b"DEL", key])?;
    }
    Ok(is_there)
}

fn flush_all(context: &mut Context<'_>, words: &Words<'_>, out: &mut Vec<u8>) -> Done {
    let said = match words.as_slice() {
        [_] => None,
        [_, word] | [_, word, _] if *word == b"noreply" => None,
        [_, word] | [_, word, _] => Some(*word),
        _ => return Err(ERROR),
    };
    let exptime =
        said.map_or(Some(0), signed).ok_or(Refused::Line("CLIENT_ERROR invalid exptime argument"))?;
    admits(context, b"flushdb", b"")?;
    context.world.memcached.flushes += 1;
    context.world.flush_at = None;
    match ends(context, exptime) {
        NewExpiry::At(at) if exptime > 0 => context.world.flush_at = Some(at),
        _ => change(context, &[b"FLUSHDB"])?,
    }
    line(out, "OK");
    Ok(())
}

/// Accepts `verbosity`, of which there is one level.
fn verbosity(words: &Words<'_>, out: &mut Vec<u8>) -> Done {
    if !matches!(words.len(), 2 | 3) {
        return Err(ERROR);
    }
    short(words[1]).ok_or(BAD)?;
    line(out, "OK");
    Ok(())
}
