//! Strings.

use super::{Args, CommandResult, Context, count, integer, is};
use crate::failure::Failure;
use crate::store::NewExpiry;
use farmem_protocols::resp::Writer;

pub(super) fn get(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    bulk_or_null(context.store.string(db, args[1])?, out);
    Ok(())
}

fn bulk_or_null(value: Option<&[u8]>, out: &mut Writer<'_>) {
    match value {
        Some(value) => out.bulk(value),
        None => out.null(),
    }
}

/// The options of `SET`.
#[derive(Default)]
struct SetOptions {
    ends: Option<NewExpiry>,
    only_new: bool,
    only_old: bool,
    get: bool,
}

/// Parses the time of `EX`, `PX`, `EXAT` or `PXAT`; in milliseconds since 1970.
pub(super) fn end_at(context: &Context<'_>, unit: &[u8], arg: &[u8], command: &str) -> Result<i64, Failure> {
    let invalid = || Failure::said(format!("ERR invalid expire time in '{command}' command"));
    let number = integer(arg)?;
    if number <= 0 {
        return Err(invalid());
    }
    let (factor, base) = if is(unit, "EX") {
        (1000, context.store.now())
    } else if is(unit, "PX") {
        (1, context.store.now())
    } else if is(unit, "EXAT") {
        (1000, 0)
    } else {
        (1, 0)
    };
    number.checked_mul(factor).and_then(|ms| ms.checked_add(base)).ok_or_else(invalid)
}

fn set_options(context: &Context<'_>, args: Args<'_>) -> Result<SetOptions, Failure> {
    let mut options = SetOptions::default();
    let mut at = 3;
    while let Some(&word) = args.get(at) {
        let timed = ["EX", "PX", "EXAT", "PXAT"].iter().any(|unit| is(word, unit));
        if is(word, "NX") && !options.only_old {
            options.only_new = true;
        } else if is(word, "XX") && !options.only_new {
            options.only_old = true;
        } else if is(word, "GET") {
            options.get = true;
        } else if is(word, "KEEPTTL") && options.ends.is_none() {
            options.ends = Some(NewExpiry::Keep);
        } else if timed && options.ends.is_none() && args.len() > at + 1 {
            options.ends = Some(NewExpiry::At(end_at(context, word, args[at + 1], "set")?));
            at += 1;
        } else {
            return Err(Failure::SYNTAX);
        }
        at += 1;
    }
    Ok(options)
}

pub(super) fn set(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    if args.len() == 3 {
        context.store.set(db, args[1], args[2], NewExpiry::Never)?;
        out.simple("OK");
        return Ok(());
    }
    let options = set_options(context, args)?;
    if options.get {
        bulk_or_null(context.store.string(db, args[1])?, out);
    }
    if options.only_new || options.only_old {
        let is_there = context.store.kind(db, args[1]).is_some();
        if is_there == options.only_new {
            if !options.get {
                out.null();
            }
            return Ok(());
        }
    }
    put(context, args[1], args[2], options.ends.unwrap_or(NewExpiry::Never))?;
    if !options.get {
        out.simple("OK");
    }
    Ok(())
}

/// Sets a string. If its expiry time has passed already, the key is removed.
fn put(context: &mut Context<'_>, key: &[u8], value: &[u8], ends: NewExpiry) -> CommandResult {
    let db = context.db();
    match ends {
        NewExpiry::At(end) if end <= context.store.now() => {
            context.store.remove(db, key);
        }
        ends => context.store.set(db, key, value, ends)?,
    }
    Ok(())
}

pub(super) fn setnx(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let is_new = context.store.kind(db, args[1]).is_none();
    if is_new {
        context.store.set(db, args[1], args[2], NewExpiry::Never)?;
    }
    out.integer(i64::from(is_new));
    Ok(())
}

pub(super) fn setex(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let end = end_at(context, b"EX", args[2], "setex")?;
    put(context, args[1], args[3], NewExpiry::At(end))?;
    out.simple("OK");
    Ok(())
}

pub(super) fn psetex(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let end = end_at(context, b"PX", args[2], "psetex")?;
    put(context, args[1], args[3], NewExpiry::At(end))?;
    out.simple("OK");
    Ok(())
}

pub(super) fn getset(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    bulk_or_null(context.store.string(db, args[1])?, out);
    context.store.set(db, args[1], args[2], NewExpiry::Never)
}

pub(super) fn getdel(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    bulk_or_null(context.store.string(db, args[1])?, out);
    context.store.remove(db, args[1]);
    Ok(())
}

pub(super) fn getex(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let end = match args.get(2..).unwrap_or(&[]) {
        [] => None,
        [word] if is(word, "PERSIST") => Some(None),
        [unit, time] if ["EX", "PX", "EXAT", "PXAT"].iter().any(|known| is(unit, known)) => {
            Some(Some(end_at(context, unit, time, "getex")?))
        }
        _ => return Err(Failure::SYNTAX),
    };
    let value = context.store.string(db, args[1])?;
    let is_there = value.is_some();
    bulk_or_null(value, out);
    if let (true, Some(end)) = (is_there, end) {
        let had = context.store.end(db, args[1]).flatten();
        if end.is_some() || had.is_some() {
            context.store.set_end(db, args[1], end)?;
        }
    }
    Ok(())
}

pub(super) fn mget(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    out.array(args.len() - 1);
    for (at, &key) in args.iter().enumerate().skip(1) {
        // Far values behind this one are read in the same round trip.
        if context.store.would_wait(db, key) {
            let _no_more_at_once = args[at..].iter().all(|key| context.store.want(db, key));
            context.store.fetch_wanted();
        }
        match context.store.string(db, key) {
            Ok(value) => bulk_or_null(value, out),
            Err(Failure::WrongType) => out.null(),
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// Keys and their values.
type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

fn pairs<'a>(args: Args<'a>, command: &str) -> Result<Pairs<'a>, Failure> {
    if args.len().is_multiple_of(2) {
        return Err(Failure::said(format!("ERR wrong number of arguments for '{command}' command")));
    }
    Ok(args[1..].chunks(2).map(|pair| (pair[0], pair[1])).collect())
}

pub(super) fn mset(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    context.store.set_all(db, &pairs(args, "mset")?)?;
    out.simple("OK");
    Ok(())
}

pub(super) fn msetnx(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let pairs = pairs(args, "msetnx")?;
    let is_new = pairs.iter().all(|(key, _)| context.store.kind(db, key).is_none());
    if is_new {
        context.store.set_all(db, &pairs)?;
    }
    out.integer(i64::from(is_new));
    Ok(())
}

pub(super) fn strlen(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    out.integer(count(context.store.string(db, args[1])?.map_or(0, <[u8]>::len)));
    Ok(())
}

/// Refuses a string that is longer than `proto-max-bulk-len`.
fn check_len(context: &Context<'_>, len: usize) -> CommandResult {
    if len > context.world.settings.word_len_max {
        return Err(Failure::text("ERR string exceeds maximum allowed size (proto-max-bulk-len)"));
    }
    Ok(())
}

pub(super) fn append(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let old = context.store.string(db, args[1])?;
    let is_new = old.is_none();
    let mut value = old.map_or_else(Vec::new, <[u8]>::to_vec);
    value.extend_from_slice(args[2]);
    check_len(context, value.len())?;
    // A string that was appended to once grows again, as a rule.
    let room = if is_new { value.len() } else { 2 * value.len() };
    context.store.set_with_room(db, args[1], &value, room, NewExpiry::Keep)?;
    out.integer(count(value.len()));
    Ok(())
}

pub(super) fn setrange(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let offset =
        usize::try_from(integer(args[2])?).map_err(|_| Failure::text("ERR offset is out of range"))?;
    let old = context.store.string(db, args[1])?;
    let mut value = old.map_or_else(Vec::new, <[u8]>::to_vec);
    if args[3].is_empty() {
        out.integer(count(value.len()));
        return Ok(());
    }
    let end = offset.checked_add(args[3].len()).ok_or(Failure::text("ERR offset is out of range"))?;
    check_len(context, end)?;
    if value.len() < end {
        value.resize(end, 0);
    }
    value[offset..end].copy_from_slice(args[3]);
    context.store.set_with_room(db, args[1], &value, value.len(), NewExpiry::Keep)?;
    out.integer(count(value.len()));
    Ok(())
}

/// Returns the positions between two indexes. A negative index counts from the end.
pub(super) fn range_of(first: i64, last: i64, len: usize) -> std::ops::Range<usize> {
    let len = count(len);
    let from_front = |at: i64| if at < 0 { (at + len).max(0) } else { at };
    let (first, last) = (from_front(first), if last < 0 { last + len } else { last.min(len - 1) });
    if first > last || first >= len {
        return 0..0;
    }
    let index = |at: i64| usize::try_from(at).expect("it is between 0 and the length");
    index(first)..index(last + 1)
}

pub(super) fn getrange(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let (first, last) = (integer(args[2])?, integer(args[3])?);
    let value = context.store.string(db, args[1])?.unwrap_or(&[]);
    let (len, both) = (count(value.len()), first < 0 && last < 0 && first > last);
    // Redis replaces an end before the first byte by the first byte.
    let last = if last < 0 { (last.saturating_add(len)).max(0) } else { last };
    let range = if both || value.is_empty() { 0..0 } else { range_of(first.max(-len), last, value.len()) };
    out.bulk(&value[range]);
    Ok(())
}
