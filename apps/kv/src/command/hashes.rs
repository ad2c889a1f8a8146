//! Hashes.

use super::collections::{random_count, random_indexes, scan_of};
use super::long_double::LongDouble;
use super::{Args, CommandResult, Context, count, integer, is};
use crate::failure::Failure;
use crate::store::{Kind, Text, Value};
use farmem_protocols::resp::{Protocol, Writer};
use indexmap::IndexMap;

type Hash = IndexMap<Text, Text>;

fn read<'a>(context: &'a mut Context<'_>, key: &[u8]) -> Result<Option<&'a Hash>, Failure> {
    let db = context.db();
    Ok(context.store.collection(db, key, Some(Kind::Hash))?.map(|value| match value {
        Value::Hash(hash) => hash,
        _ => unreachable!("the kind was asked for"),
    }))
}

/// Changes a hash. The closure returns whether it did.
fn change<R>(
    context: &mut Context<'_>,
    key: &[u8],
    make: bool,
    change: impl FnOnce(&mut Hash) -> (R, bool),
) -> Result<Option<R>, Failure> {
    let db = context.db();
    context.store.change(db, key, Kind::Hash, make, |value| match value {
        Value::Hash(hash) => change(hash),
        _ => unreachable!("the kind was asked for"),
    })
}

fn put_all(context: &mut Context<'_>, args: Args<'_>) -> Result<i64, Failure> {
    if !args.len().is_multiple_of(2) {
        let name = String::from_utf8_lossy(args[0]).to_ascii_lowercase();
        return Err(Failure::said(format!("ERR wrong number of arguments for '{name}' command")));
    }
    let added = change(context, args[1], true, |hash| {
        let mut added = 0;
        for pair in args[2..].chunks(2) {
            added += i64::from(hash.insert(pair[0].into(), pair[1].into()).is_none());
        }
        (added, true)
    })?;
    Ok(added.unwrap_or(0))
}

pub(super) fn hset(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.integer(put_all(context, args)?);
    Ok(())
}

pub(super) fn hmset(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    put_all(context, args)?;
    out.simple("OK");
    Ok(())
}

pub(super) fn hsetnx(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let set = change(context, args[1], true, |hash| {
        let is_new = !hash.contains_key(args[2]);
        if is_new {
            hash.insert(args[2].into(), args[3].into());
        }
        (is_new, is_new)
    })?;
    out.integer(i64::from(set == Some(true)));
    Ok(())
}

pub(super) fn hget(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    match read(context, args[1])?.and_then(|hash| hash.get(args[2])) {
        Some(value) => out.bulk(value),
        None => out.null(),
    }
    Ok(())
}

pub(super) fn hmget(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let hash = read(context, args[1])?;
    out.array(args.len() - 2);
    for field in &args[2..] {
        match hash.and_then(|hash| hash.get(*field)) {
            Some(value) => out.bulk(value),
            None => out.null(),
        }
    }
    Ok(())
}

pub(super) fn hdel(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let removed = change(context, args[1], false, |hash| {
        let removed = args[2..].iter().filter(|field| hash.swap_remove(**field).is_some()).count();
        (removed, removed > 0)
    })?;
    out.integer(count(removed.unwrap_or(0)));
    Ok(())
}

pub(super) fn hexists(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.integer(i64::from(read(context, args[1])?.is_some_and(|hash| hash.contains_key(args[2]))));
    Ok(())
}

pub(super) fn hlen(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.integer(count(read(context, args[1])?.map_or(0, IndexMap::len)));
    Ok(())
}

pub(super) fn hstrlen(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.integer(count(
        read(context, args[1])?.and_then(|hash| hash.get(args[2])).map_or(0, |value| value.len()),
    ));
    Ok(())
}

pub(super) fn hgetall(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let hash = read(context, args[1])?;
    out.map(hash.map_or(0, IndexMap::len));
    for (field, value) in hash.into_iter().flatten() {
        out.bulk(field);
        out.bulk(value);
    }
    Ok(())
}

pub(super) fn hkeys(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let hash = read(context, args[1])?;
    out.array(hash.map_or(0, IndexMap::len));
    hash.into_iter().flatten().for_each(|(field, _)| out.bulk(field));
    Ok(())
}

pub(super) fn hvals(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let hash = read(context, args[1])?;
    out.array(hash.map_or(0, IndexMap::len));
    hash.into_iter().flatten().for_each(|(_, value)| out.bulk(value));
    Ok(())
}

pub(super) fn hincrby(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let by = integer(args[3])?;
    let sum = change(context, args[1], true, |hash| {
        let old = hash.get(args[2]).map_or(Ok(0), |value| {
            integer(value).map_err(|_| Failure::text("ERR hash value is not an integer"))
        });
        let new = old.and_then(|old| old.checked_add(by).ok_or(Failure::OVERFLOW));
        if let Ok(new) = &new {
            hash.insert(args[2].into(), new.to_string().into_bytes().into());
        }
        let changed = new.is_ok();
        (new, changed)
    })?;
    out.integer(sum.expect("it is made when it is not there")?);
    Ok(())
}

pub(super) fn hincrbyfloat(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let by = LongDouble::parse(args[3]).ok_or(Failure::NOT_FLOAT)?;
    if !by.is_finite() {
        return Err(Failure::text("ERR value is NaN or Infinity"));
    }
    let sum = change(context, args[1], true, |hash| {
        let old = hash.get(args[2]).map(|value| &**value);
        let new = super::numbers::sum(old, by, Failure::text("ERR hash value is not a float"));
        if let Ok(new) = &new {
            hash.insert(args[2].into(), new.as_bytes().into());
        }
        let changed = new.is_ok();
        (new, changed)
    })?;
    out.bulk(sum.expect("it is made when it is not there")?.as_bytes());
    Ok(())
}

pub(super) fn hrandfield(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let with_values = match args.get(3) {
        Some(word) if is(word, "WITHVALUES") && args.len() == 4 => true,
        None => false,
        Some(_) => return Err(Failure::SYNTAX),
    };
    let wanted = random_count(args.get(2), with_values)?;
    let len = read(context, args[1])?.map_or(0, IndexMap::len);
    let chosen = random_indexes(&mut context.store.rng, len, wanted.unwrap_or(1))?;
    let hash = read(context, args[1])?;
    let pair = |at: usize| hash.and_then(|hash| hash.get_index(at)).expect("it is below the length");
    if wanted.is_none() {
        match chosen.first() {
            Some(&at) => out.bulk(pair(at).0),
            None => out.null(),
        }
        return Ok(());
    }
    let flat = with_values && out.protocol() == Protocol::Resp2;
    out.array(chosen.len() * if flat { 2 } else { 1 });
    for at in chosen {
        if with_values && !flat {
            out.array(2);
        }
        out.bulk(pair(at).0);
        if with_values {
            out.bulk(pair(at).1);
        }
    }
    Ok(())
}

pub(super) fn hscan(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    super::keys::cursor(args[2])?;
    let hash = read(context, args[1])?;
    scan_of(args, out, hash.map_or(0, IndexMap::len), |at| {
        let (field, value) = hash.and_then(|hash| hash.get_index(at)).expect("it is below the length");
        (field, [field.to_vec(), value.to_vec()].into())
    })
}
