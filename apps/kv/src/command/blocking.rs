//! Blocking commands, and `LMPOP` and `ZMPOP`, which share their code.

use super::lists::{move_between, side, take_first};
use super::sorted::take_lowest;
use super::{Args, CommandResult, Context, float, integer, is};
use crate::failure::Failure;
use crate::session::{Patience, Wait};
use farmem_protocols::resp::Writer;
use std::time::{Duration, Instant};

/// The longest timeout that Redis accepts, in seconds.
const SECONDS_MAX: f64 = 9_223_372_036_854_775.0;

/// Parses a timeout; `None` for none.
fn timeout(arg: &[u8]) -> Result<Option<Duration>, Failure> {
    let seconds = float(arg).ok_or(Failure::text("ERR timeout is not a float or out of range"))?;
    if seconds < 0.0 {
        return Err(Failure::text("ERR timeout is negative"));
    }
    if seconds > SECONDS_MAX {
        return Err(Failure::text("ERR timeout is out of range"));
    }
    Ok((seconds > 0.0).then(|| Duration::from_secs_f64(seconds).max(Duration::from_millis(1))))
}

/// Lets the client wait for one of these keys, or replies that there is none if it may not wait.
fn wait_or_reply(
    context: &mut Context<'_>,
    keys: &[&[u8]],
    timeout: Option<Duration>,
    out: &mut Writer<'_>,
    null: fn(&mut Writer<'_>),
) {
    match context.session.patience {
        // A time that the clock cannot reach counts as no timeout.
        Patience::Waits => {
            context.session.waits = Some(Wait {
                keys: keys.iter().map(|key| key.to_vec()).collect(),
                until: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            });
        }
        Patience::None => null(out),
        Patience::Served => {}
    }
}

/// Returns the keys to examine: all of them, or for a waiting client the one that became ready.
fn ready_keys<'a>(context: &Context<'_>, keys: &'a [&'a [u8]]) -> Vec<&'a [u8]> {
    let is_ready = |key: &&&[u8]| match (context.session.patience, &context.session.ready_key) {
        (Patience::Served, Some(ready)) => **key == ready.as_slice(),
        _ => true,
    };
    keys.iter().filter(is_ready).copied().collect()
}

/// Treats a key of another kind as absent for a client that waits already.
fn none_if_waiting<T>(
    context: &Context<'_>,
    found: Result<Option<T>, Failure>,
) -> Result<Option<T>, Failure> {
    match found {
        Err(Failure::WrongType) if context.session.patience == Patience::Served => Ok(None),
        other => other,
    }
}

/// Sets the request that the append log gets in place of the blocking one.
fn log_instead(context: &mut Context<'_>, words: &[&[u8]]) {
    context.logged_request = Some(words.iter().map(|word| word.to_vec()).collect());
}

pub(super) fn pop(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    left: bool,
) -> CommandResult {
    let (keys, last) = (&args[1..args.len() - 1], args[args.len() - 1]);
    let timeout = timeout(last)?;
    for key in ready_keys(context, keys) {
        let found = take_first(context, key, left, 1);
        if let Some(some) = none_if_waiting(context, found)? {
            log_instead(context, &[if left { b"LPOP" } else { b"RPOP" }, key]);
            out.array(2);
            out.bulk(key);
            out.bulk(&some[0]);
            return Ok(());
        }
    }
    wait_or_reply(context, keys, timeout, out, |out| out.null_array());
    Ok(())
}

fn move_or_wait(
    context: &mut Context<'_>,
    (from, to): (&[u8], &[u8]),
    (from_left, to_left): (bool, bool),
    timeout: Option<Duration>,
    out: &mut Writer<'_>,
) -> CommandResult {
    let db = context.db();
    let found = context.store.collection(db, from, Some(crate::store::Kind::List)).map(|list| list.map(drop));
    if none_if_waiting(context, found)?.is_none() {
        wait_or_reply(context, &[from], timeout, out, |out| out.null());
        return Ok(());
    }
    let side = |left| if left { &b"LEFT"[..] } else { b"RIGHT" };
    log_instead(context, &[b"LMOVE", from, to, side(from_left), side(to_left)]);
    move_between(context, (from, to), from_left, to_left, out)
}

pub(super) fn blmove(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let sides = (side(args[3])?, side(args[4])?);
    let timeout = timeout(args[5])?;
    move_or_wait(context, (args[1], args[2]), sides, timeout, out)
}

pub(super) fn brpoplpush(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let timeout = timeout(args[3])?;
    move_or_wait(context, (args[1], args[2]), (false, true), timeout, out)
}

/// The arguments of `LMPOP`, `ZMPOP` and their blocking forms.
struct PopRequest<'a> {
    keys: &'a [&'a [u8]],
    front: bool,
    wanted: usize,
}

fn pop_request<'a>(
    args: &'a [&'a [u8]],
    which: fn(&[u8]) -> Result<bool, Failure>,
) -> Result<PopRequest<'a>, Failure> {
    let size = |arg: &[u8], what| {
        let size = integer(arg).ok().and_then(|size| usize::try_from(size).ok()).filter(|&size| size > 0);
        size.ok_or_else(|| Failure::text(what))
    };
    let keys = size(args[0], "ERR numkeys should be greater than 0")?;
    let (Some(names), Some(rest)) = (args.get(1..1 + keys), args.get(1 + keys..)) else {
        return Err(Failure::SYNTAX);
    };
    let (front, wanted) = match rest {
        [end] => (which(end)?, 1),
        [end, word, wanted] if is(word, "COUNT") => {
            (which(end)?, size(wanted, "ERR count should be greater than 0")?)
        }
        _ => return Err(Failure::SYNTAX),
    };
    Ok(PopRequest { keys: names, front, wanted })
}

pub(super) fn blmpop(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let timeout = timeout(args[1])?;
    let pop_request = pop_request(&args[2..], side)?;
    if !pop_elements(context, &pop_request, out)? {
        wait_or_reply(context, pop_request.keys, timeout, out, |out| out.null_array());
    }
    Ok(())
}

pub(super) fn lmpop(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let pop_request = pop_request(&args[1..], side)?;
    if !pop_elements(context, &pop_request, out)? {
        out.null_array();
    }
    Ok(())
}

fn pop_elements(
    context: &mut Context<'_>,
    pop_request: &PopRequest<'_>,
    out: &mut Writer<'_>,
) -> Result<bool, Failure> {
    for key in ready_keys(context, pop_request.keys) {
        let found = take_first(context, key, pop_request.front, pop_request.wanted);
        let Some(some) = none_if_waiting(context, found)? else { continue };
        let name: &[u8] = if pop_request.front { b"LPOP" } else { b"RPOP" };
        log_instead(context, &[name, key, some.len().to_string().as_bytes()]);
        out.array(2);
        out.bulk(key);
        out.array(some.len());
        some.iter().for_each(|text| out.bulk(text));
        return Ok(true);
    }
    Ok(false)
}

fn lowest(arg: &[u8]) -> Result<bool, Failure> {
    match () {
        () if is(arg, "MIN") => Ok(true),
        () if is(arg, "MAX") => Ok(false),
        () => Err(Failure::SYNTAX),
    }
}

pub(super) fn pop_member(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    low: bool,
) -> CommandResult {
    let (keys, last) = (&args[1..args.len() - 1], args[args.len() - 1]);
    let timeout = timeout(last)?;
    for key in ready_keys(context, keys) {
        let found = take_lowest(context, key, low, 1);
        if let Some(some) = none_if_waiting(context, found)? {
            let (score, member) = &some[0];
            // The length does not depend on the member, so the log has reserved enough.
            log_instead(context, &[if low { b"ZPOPMIN" } else { b"ZPOPMAX" }, key]);
            out.array(3);
            out.bulk(key);
            out.bulk(member);
            out.double(*score);
            return Ok(());
        }
    }
    wait_or_reply(context, keys, timeout, out, |out| out.null_array());
    Ok(())
}

fn pop_members(
    context: &mut Context<'_>,
    pop_request: &PopRequest<'_>,
    out: &mut Writer<'_>,
) -> Result<bool, Failure> {
    for key in ready_keys(context, pop_request.keys) {
        let found = take_lowest(context, key, pop_request.front, pop_request.wanted);
        let Some(some) = none_if_waiting(context, found)? else { continue };
        let name: &[u8] = if pop_request.front { b"ZPOPMIN" } else { b"ZPOPMAX" };
        log_instead(context, &[name, key, some.len().to_string().as_bytes()]);
        out.array(2);
        out.bulk(key);
        out.array(some.len());
        for (score, member) in &some {
            out.array(2);
            out.bulk(member);
            out.double(*score);
        }
        return Ok(true);
    }
    Ok(false)
}

pub(super) fn bzmpop(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let timeout = timeout(args[1])?;
    let pop_request = pop_request(&args[2..], lowest)?;
    if !pop_members(context, &pop_request, out)? {
        wait_or_reply(context, pop_request.keys, timeout, out, |out| out.null_array());
    }
    Ok(())
}

pub(super) fn zmpop(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let pop_request = pop_request(&args[1..], lowest)?;
    if !pop_members(context, &pop_request, out)? {
        out.null_array();
    }
    Ok(())
}
