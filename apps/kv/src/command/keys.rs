//! Commands about keys of any kind.

use super::{Args, CommandResult, Context, count, integer, is};
use crate::failure::Failure;
use crate::glob::glob;
use crate::store::{Kind, SPACES, Value};
use farmem_protocols::resp::Writer;

pub(super) fn del(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let mut removed = 0;
    for key in &args[1..] {
        removed += i64::from(context.store.remove(db, key));
    }
    out.integer(removed);
    Ok(())
}

pub(super) fn exists(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let is_there = |key: &&&[u8]| context.store.without_use(db, key, |store| store.kind(db, key)).is_some();
    out.integer(count(args[1..].iter().filter(is_there).count()));
    Ok(())
}

pub(super) fn touch(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    out.integer(count(args[1..].iter().filter(|key| context.store.kind(db, key).is_some()).count()));
    Ok(())
}

pub(super) fn kind(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let kind = context.store.without_use(db, args[1], |store| store.kind(db, args[1]));
    out.simple(kind.map_or("none", Kind::name));
    Ok(())
}

/// Executes `EXPIRE`, `PEXPIRE`, `EXPIREAT` and `PEXPIREAT`: the number has this unit in milliseconds, and counts
/// from now or from 1970.
pub(super) fn expire_in(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    unit: i64,
    from_now: bool,
) -> CommandResult {
    let db = context.db();
    let name = String::from_utf8_lossy(args[0]).to_ascii_lowercase();
    let invalid = || Failure::said(format!("ERR invalid expire time in '{name}' command"));
    let base = if from_now { context.store.now() } else { 0 };
    let number = integer(args[2])?;
    let [mut new, mut old, mut later, mut earlier] = [false; 4];
    for option in &args[3..] {
        match () {
            () if is(option, "NX") => new = true,
            () if is(option, "XX") => old = true,
            () if is(option, "GT") => later = true,
            () if is(option, "LT") => earlier = true,
            () => {
                return Err(Failure::said(format!(
                    "ERR Unsupported option {}",
                    String::from_utf8_lossy(option)
                )));
            }
        }
    }
    if new && (old || later || earlier) {
        return Err(Failure::text("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    if later && earlier {
        return Err(Failure::text("ERR GT and LT options at the same time are not compatible"));
    }
    let end = number.checked_mul(unit).and_then(|ms| ms.checked_add(base)).ok_or_else(invalid)?;
    let Some(current) = context.store.end(db, args[1]) else {
        out.integer(0);
        return Ok(());
    };
    let may = match current {
        Some(current) => !new && (!later || end > current) && (!earlier || end < current),
        // A key without a TTL counts as one with an infinite TTL.
        None => !old && !later,
    };
    if may {
        context.store.set_end(db, args[1], Some(end))?;
    }
    out.integer(i64::from(may));
    Ok(())
}

fn time_left(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    say: fn(i64, i64) -> i64,
) -> CommandResult {
    let (db, now) = (context.db(), context.store.now());
    out.integer(match context.store.without_use(db, args[1], |store| store.end(db, args[1])) {
        None => -2,
        Some(None) => -1,
        Some(Some(end)) => say(end, now),
    });
    Ok(())
}

pub(super) fn ttl(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    time_left(context, args, out, |end, now| (end - now).saturating_add(500) / 1000)
}

pub(super) fn pttl(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    time_left(context, args, out, |end, now| end - now)
}

pub(super) fn expiretime(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    time_left(context, args, out, |end, _| end.saturating_add(500) / 1000)
}

pub(super) fn pexpiretime(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    time_left(context, args, out, |end, _| end)
}

pub(super) fn persist(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let ends = context.store.end(db, args[1]).flatten().is_some();
    out.integer(i64::from(ends && context.store.set_end(db, args[1], None)?));
    Ok(())
}

/// The options of `SCAN`, `HSCAN`, `SSCAN` and `ZSCAN`.
pub(super) struct ScanOptions<'a> {
    pub(super) pattern: Option<&'a [u8]>,
    pub(super) count: usize,
    pub(super) kind: Option<&'a [u8]>,
}

pub(super) fn cursor(arg: &[u8]) -> Result<u64, Failure> {
    let text = std::str::from_utf8(arg).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or(Failure::text("ERR invalid cursor"))
}

pub(super) fn scan_options<'a>(args: &[&'a [u8]], with_kind: bool) -> Result<ScanOptions<'a>, Failure> {
    let mut options = ScanOptions { pattern: None, count: 10, kind: None };
    for pair in args.chunks(2) {
        let [word, value] = *pair else { return Err(Failure::SYNTAX) };
        if is(word, "MATCH") {
            options.pattern = Some(value);
        } else if is(word, "COUNT") {
            let count = integer(value)?;
            options.count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(Failure::SYNTAX)?;
        } else if is(word, "TYPE") && with_kind {
            options.kind = Some(value);
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    Ok(options)
}

/// The keys that one call reads at most, because their records may be far.
const SCANNED_MAX: usize = 10_000;

/// Writes the cursor and the elements of a scan.
pub(super) fn scanned<T: AsRef<[u8]>>(next: u64, found: &[T], out: &mut Writer<'_>) {
    out.array(2);
    out.bulk(next.to_string().as_bytes());
    out.array(found.len());
    found.iter().for_each(|element| out.bulk(element.as_ref()));
}

pub(super) fn scan(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let from = cursor(args[1])?;
    let options = scan_options(&args[2..], true)?;
    let kinds = [Kind::String, Kind::List, Kind::Set, Kind::Sorted, Kind::Hash];
    let kind = options.kind.map(|name| kinds.into_iter().find(|kind| is(name, kind.name())));
    let (next, mut keys) = context.store.scan(db, from, options.count.min(SCANNED_MAX), kind.flatten())?;
    if kind == Some(None) {
        keys.clear();
    }
    keys.retain(|key| options.pattern.is_none_or(|pattern| glob(pattern, key)));
    scanned(next, &keys, out);
    Ok(())
}

pub(super) fn keys(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let (mut keys, mut bytes, mut cursor) = (Vec::new(), 0, 0);
    loop {
        let (next, mut some) = context.store.scan(db, cursor, SCANNED_MAX, None)?;
        some.retain(|key| glob(args[1], key));
        bytes += some.iter().map(|key| key.len() + size_of::<Vec<u8>>()).sum::<usize>();
        if bytes > context.world.settings.reply_len_max() {
            return Err(Failure::text("ERR there are too many such keys for one reply: use SCAN"));
        }
        keys.append(&mut some);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    out.array(keys.len());
    keys.iter().for_each(|key| out.bulk(key));
    Ok(())
}

pub(super) fn randomkey(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    match context.store.random_key(db)? {
        Some(key) => out.bulk(&key),
        None => out.null(),
    }
    Ok(())
}

pub(super) fn dbsize(context: &mut Context<'_>, _: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    out.integer(count(context.store.len(db)));
    Ok(())
}

fn flush_options(args: Args<'_>) -> CommandResult {
    match args {
        [_] => Ok(()),
        [_, how] if is(how, "SYNC") || is(how, "ASYNC") => Ok(()),
        _ => Err(Failure::SYNTAX),
    }
}

pub(super) fn flushdb(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    flush_options(args)?;
    let db = context.db();
    context.world.clear(context.store, db);
    out.simple("OK");
    Ok(())
}

pub(super) fn flushall(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    flush_options(args)?;
    (0..database_count()).for_each(|db| context.world.clear(context.store, db));
    out.simple("OK");
    Ok(())
}

pub(super) fn database_count() -> u8 {
    u8::try_from(SPACES).expect("few databases")
}

/// Copies a value to another key. Returns whether the value exists.
fn copy_to(context: &mut Context<'_>, from: (u8, &[u8]), to: (u8, &[u8])) -> Result<bool, Failure> {
    let Some((kind, bytes, end)) = context.store.dump(from.0, from.1)? else { return Ok(false) };
    context.store.restore(to.0, to.1, kind, &bytes, end)?;
    Ok(true)
}

fn rename_to(context: &mut Context<'_>, args: Args<'_>, only_new: bool) -> Result<bool, Failure> {
    let db = context.db();
    if context.store.kind(db, args[1]).is_none() {
        return Err(Failure::NO_KEY);
    }
    if only_new && context.store.kind(db, args[2]).is_some() {
        return Ok(false);
    }
    if args[1] != args[2] {
        copy_to(context, (db, args[1]), (db, args[2]))?;
        context.store.remove(db, args[1]);
    }
    Ok(true)
}

pub(super) fn rename(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    rename_to(context, args, false)?;
    out.simple("OK");
    Ok(())
}

pub(super) fn renamenx(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.integer(i64::from(rename_to(context, args, true)?));
    Ok(())
}

pub(super) fn database(arg: &[u8]) -> Result<u8, Failure> {
    let number = integer(arg)?;
    u8::try_from(number)
        .ok()
        .filter(|&db| db < database_count())
        .ok_or(Failure::text("ERR DB index is out of range"))
}

pub(super) fn copy(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = context.db();
    let (mut to, mut replace, mut at) = (db, false, 3);
    while let Some(word) = args.get(at) {
        match args.get(at + 1) {
            _ if is(word, "REPLACE") => replace = true,
            Some(number) if is(word, "DB") => {
                to = database(number)?;
                at += 1;
            }
            _ => return Err(Failure::SYNTAX),
        }
        at += 1;
    }
    if (db, args[1]) == (to, args[2]) {
        return Err(Failure::text("ERR source and destination objects are the same"));
    }
    let free = replace || context.store.kind(to, args[2]).is_none();
    out.integer(i64::from(free && copy_to(context, (db, args[1]), (to, args[2]))?));
    Ok(())
}

pub(super) fn move_to(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let (db, to) = (context.db(), database(args[2])?);
    if db == to {
        return Err(Failure::text("ERR source and destination objects are the same"));
    }
    let moved = context.store.kind(to, args[1]).is_none() && copy_to(context, (db, args[1]), (to, args[1]))?;
    if moved {
        context.store.remove(db, args[1]);
    }
    out.integer(i64::from(moved));
    Ok(())
}

pub(super) fn swapdb(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let db = |arg: &[u8], which: &'static str| {
        integer(arg).map_err(|_| Failure::text(which)).and_then(|_| database(arg))
    };
    let (one, other) =
        (db(args[1], "ERR invalid first DB index")?, db(args[2], "ERR invalid second DB index")?);
    context.world.drop_expired_watched(context.store, [one, other]);
    context.world.swap(context.store, one, other)?;
    out.simple("OK");
    Ok(())
}

pub(super) fn object(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let (what, key, db) = (args[1], args[2], context.db());
    // OBJECT does not count as a use of the key.
    let Some((idle, frequency)) = context.store.last_use(db, key) else {
        out.null();
        return Ok(());
    };
    let is_lfu = context.store.memory.policy.is_lfu();
    match () {
        () if is(what, "ENCODING") => {
            let name = encoding(context, key)?;
            out.bulk(name.as_bytes());
        }
        () if is(what, "REFCOUNT") => out.integer(1),
        () if is(what, "IDLETIME") && is_lfu => {
            return Err(Failure::text(
                "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
        () if is(what, "IDLETIME") => out.integer(idle.into()),
        () if is_lfu => out.integer(frequency.into()),
        () => {
            return Err(Failure::text(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
    }
    Ok(())
}

/// Returns the encoding that Redis 7.0 would use for the value.
fn encoding(context: &mut Context<'_>, key: &[u8]) -> Result<&'static str, Failure> {
    let db = context.db();
    if context.store.kind(db, key) == Some(Kind::String) {
        let value = context.store.string(db, key)?.unwrap_or(&[]);
        return Ok(match value.len() {
            _ if integer(value).is_ok() => "int",
            0..=44 => "embstr",
            _ => "raw",
        });
    }
    let Some(value) = context.store.collection(db, key, None)? else { return Err(Failure::NO_KEY) };
    let limit = |name| context.world.settings.encoding_limit(name);
    let few = |name| value.len() <= limit(name);
    let (in_hash, in_sorted) = (limit("hash-max-listpack-value"), limit("zset-max-listpack-value"));
    Ok(match value {
        Value::List(_) => "quicklist",
        Value::Set(set)
            if few("set-max-intset-entries") && set.iter().all(|member| integer(member).is_ok()) =>
        {
            "intset"
        }
        Value::Set(_) => "hashtable",
        Value::Hash(hash)
            if few("hash-max-listpack-entries")
                && hash.iter().all(|(field, value)| field.len().max(value.len()) <= in_hash) =>
        {
            "listpack"
        }
        Value::Hash(_) => "hashtable",
        Value::Sorted(sorted)
            if few("zset-max-listpack-entries")
                && sorted.iter().all(|(_, member)| member.len() <= in_sorted) =>
        {
            "listpack"
        }
        Value::Sorted(_) => "skiplist",
    })
}
