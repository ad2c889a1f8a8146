//! Lists.

use super::strings::range_of;
use super::{Args, CommandResult, Context, count, integer, is};
use crate::failure::Failure;
use crate::store::{ELEMENT, Kind, Text, Value};
use farmem_protocols::resp::Writer;
use std::collections::VecDeque;

type List = VecDeque<Text>;

fn read<'a>(context: &'a mut Context<'_>, key: &[u8]) -> Result<Option<&'a List>, Failure> {
    let db = context.db();
    Ok(context.store.collection(db, key, Some(Kind::List))?.map(|value| match value {
        Value::List(list) => list,
        _ => unreachable!("the kind was asked for"),
    }))
}

fn change<R>(
    context: &mut Context<'_>,
    key: &[u8],
    make: bool,
    change: impl FnOnce(&mut List) -> (R, bool),
) -> Result<Option<R>, Failure> {
    let db = context.db();
    context.store.change(db, key, Kind::List, make, |value| match value {
        Value::List(list) => change(list),
        _ => unreachable!("the kind was asked for"),
    })
}

pub(super) fn push(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    left: bool,
    make: bool,
) -> CommandResult {
    let len = change(context, args[1], make, |list| {
        for element in &args[2..] {
            if left {
                list.push_front((*element).into());
            } else {
                list.push_back((*element).into());
            }
        }
        (list.len(), true)
    })?;
    out.integer(count(len.unwrap_or(0)));
    Ok(())
}

pub(super) fn pop(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    left: bool,
) -> CommandResult {
    let wanted = match args.get(2) {
        Some(_) if args.len() > 3 => {
            let name = if left { "lpop" } else { "rpop" };
            return Err(Failure::said(format!("ERR wrong number of arguments for '{name}' command")));
        }
        Some(arg) => {
            let wanted = integer(arg).ok().and_then(|wanted| usize::try_from(wanted).ok());
            Some(wanted.ok_or(Failure::text("ERR value is out of range, must be positive"))?)
        }
        None => None,
    };
    let popped = change(context, args[1], false, |list| {
        let some = take_some(list, left, wanted.unwrap_or(1));
        let changed = !some.is_empty();
        (some, changed)
    })?;
    match (popped, wanted) {
        (None, None) => out.null(),
        (None, Some(_)) => out.null_array(),
        (Some(some), None) => out.bulk(&some[0]),
        (Some(some), Some(_)) => texts(&some, out),
    }
    Ok(())
}

fn take_some(list: &mut List, left: bool, wanted: usize) -> Vec<Text> {
    let len = wanted.min(list.len());
    (0..len).filter_map(|_| if left { list.pop_front() } else { list.pop_back() }).collect()
}

fn texts(some: &[Text], out: &mut Writer<'_>) {
    out.array(some.len());
    some.iter().for_each(|text| out.bulk(text));
}

pub(super) fn side(arg: &[u8]) -> Result<bool, Failure> {
    match () {
        () if is(arg, "LEFT") => Ok(true),
        () if is(arg, "RIGHT") => Ok(false),
        () => Err(Failure::SYNTAX),
    }
}

/// Pops elements from one end of a list; `None` without such a key.
pub(super) fn take_first(
    context: &mut Context<'_>,
    key: &[u8],
    left: bool,
    wanted: usize,
) -> Result<Option<Vec<Text>>, Failure> {
    change(context, key, false, |list| (take_some(list, left, wanted), true))
}

pub(super) fn llen(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.integer(count(read(context, args[1])?.map_or(0, VecDeque::len)));
    Ok(())
}

/// Returns the position that an index names. A negative index counts from the end.
fn place(index: i64, len: usize) -> Option<usize> {
    let at = if index < 0 { index + count(len) } else { index };
    usize::try_from(at).ok().filter(|&at| at < len)
}

pub(super) fn lindex(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let Some(list) = read(context, args[1])? else {
        out.null();
        return Ok(());
    };
    match place(integer(args[2])?, list.len()) {
        Some(at) => out.bulk(&list[at]),
        None => out.null(),
    }
    Ok(())
}

pub(super) fn lset(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    if read(context, args[1])?.is_none() {
        return Err(Failure::NO_KEY);
    }
    let index = integer(args[2])?;
    let set = change(context, args[1], false, |list| {
        let at = place(index, list.len());
        if let Some(at) = at {
            list[at] = args[3].into();
        }
        (at.is_some(), at.is_some())
    })?;
    if set != Some(true) {
        return Err(Failure::OUT_OF_RANGE);
    }
    out.simple("OK");
    Ok(())
}

pub(super) fn lrange(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let (first, last) = (integer(args[2])?, integer(args[3])?);
    let Some(list) = read(context, args[1])? else {
        out.array(0);
        return Ok(());
    };
    let range = range_of(first, last, list.len());
    out.array(range.len());
    list.range(range).for_each(|element| out.bulk(element));
    Ok(())
}

pub(super) fn ltrim(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let (first, last) = (integer(args[2])?, integer(args[3])?);
    change(context, args[1], false, |list| {
        let range = range_of(first, last, list.len());
        list.truncate(range.end);
        list.drain(..range.start.min(list.len()));
        // As in Redis, this fails the EXEC of a client that watches the list also if all elements stay.
        ((), true)
    })?;
    out.simple("OK");
    Ok(())
}

pub(super) fn lrem(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let wanted = integer(args[2])?;
    let removed = change(context, args[1], false, |list| {
        let most = if wanted == 0 {
            usize::MAX
        } else {
            usize::try_from(wanted.unsigned_abs()).unwrap_or(usize::MAX)
        };
        let mut removed = 0;
        let mut keep = |element: &Text| {
            let goes = removed < most && **element == *args[3];
            removed += usize::from(goes);
            !goes
        };
        if wanted < 0 {
            let mut kept: List = std::mem::take(list).into_iter().rev().filter(&mut keep).collect();
            kept.make_contiguous().reverse();
            *list = kept;
        } else {
            list.retain(&mut keep);
        }
        (removed, removed > 0)
    })?;
    out.integer(count(removed.unwrap_or(0)));
    Ok(())
}

pub(super) fn linsert(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let behind = match () {
        () if is(args[2], "BEFORE") => 0,
        () if is(args[2], "AFTER") => 1,
        () => return Err(Failure::SYNTAX),
    };
    let len = change(context, args[1], false, |list| {
        match list.iter().position(|element| **element == *args[3]) {
            Some(at) => {
                list.insert(at + behind, args[4].into());
                (count(list.len()), true)
            }
            None => (-1, false),
        }
    })?;
    out.integer(len.unwrap_or(0));
    Ok(())
}

pub(super) fn move_between(
    context: &mut Context<'_>,
    keys: (&[u8], &[u8]),
    from_left: bool,
    to_left: bool,
    out: &mut Writer<'_>,
) -> CommandResult {
    let (from, to) = keys;
    // The kind of the other key is checked before anything changes.
    if read(context, from)?.is_none() {
        out.null();
        return Ok(());
    }
    if read(context, to)?.is_none() {
        context.store.check_makes(to, 0)?;
    }
    // The bound of the other list is checked before the element moves.
    let end = read(context, from)?.and_then(|list| if from_left { list.front() } else { list.back() });
    let grows = end.map_or(0, |element| element.len()) + ELEMENT;
    if from != to {
        context.store.incoming = grows;
        context.store.check_grows(context.session.db, to)?;
        context.store.incoming = 0;
    }
    let moved = change(context, from, false, |list| {
        let moved = if from_left { list.pop_front() } else { list.pop_back() };
        // A list of one element must not become empty in between, or its key would go.
        if from == to
            && let Some(element) = &moved
        {
            if to_left {
                list.push_front(element.clone());
            } else {
                list.push_back(element.clone());
            }
        }
        (moved, true)
    })?;
    let Some(element) = moved.flatten() else {
        out.null();
        return Ok(());
    };
    if from != to {
        context.store.incoming = grows;
        change(context, to, true, |list| {
            if to_left {
                list.push_front(element.clone());
            } else {
                list.push_back(element.clone());
            }
            ((), true)
        })?;
    }
    out.bulk(&element);
    Ok(())
}

pub(super) fn lmove(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let (from_left, to_left) = (side(args[3])?, side(args[4])?);
    move_between(context, (args[1], args[2]), from_left, to_left, out)
}

/// The options of `LPOS`.
struct PosOptions {
    rank: i64,
    wanted: Option<usize>,
    compared_max: usize,
}

fn pos_options(args: Args<'_>) -> Result<PosOptions, Failure> {
    let mut options = PosOptions { rank: 1, wanted: None, compared_max: 0 };
    for pair in args.chunks(2) {
        let [word, value] = *pair else { return Err(Failure::SYNTAX) };
        let number = integer(value);
        let size = |what| {
            number.clone().ok().and_then(|n| usize::try_from(n).ok()).ok_or_else(|| Failure::text(what))
        };
        if is(word, "RANK") {
            options.rank = number?;
            if options.rank == 0 {
                return Err(Failure::text(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list",
                ));
            }
        } else if is(word, "COUNT") {
            options.wanted = Some(size("ERR COUNT can't be negative")?);
        } else if is(word, "MAXLEN") {
            options.compared_max = size("ERR MAXLEN can't be negative")?;
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    Ok(options)
}

pub(super) fn lpos(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let PosOptions { rank, wanted, compared_max } = pos_options(&args[3..])?;
    let none = List::new();
    let list = read(context, args[1])?.unwrap_or(&none);
    let compared = if compared_max == 0 { usize::MAX } else { compared_max };
    let most = wanted.map_or(1, |wanted| if wanted == 0 { usize::MAX } else { wanted });
    let skipped = usize::try_from(rank.unsigned_abs()).unwrap_or(usize::MAX) - 1;
    let is_it = |&(_, element): &(usize, &Text)| **element == *args[2];
    let at = |(at, _): (usize, &Text)| at;
    let found: Vec<usize> = if rank > 0 {
        list.iter().enumerate().take(compared).filter(is_it).skip(skipped).take(most).map(at).collect()
    } else {
        list.iter().enumerate().rev().take(compared).filter(is_it).skip(skipped).take(most).map(at).collect()
    };
    match (wanted, found.first()) {
        (Some(_), _) => {
            out.array(found.len());
            found.into_iter().for_each(|at| out.integer(count(at)));
        }
        (None, Some(&at)) => out.integer(count(at)),
        (None, None) => out.null(),
    }
    Ok(())
}
