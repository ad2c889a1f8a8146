//! Sets.

use super::collections::{Operation, check_result, random_count, random_indexes, scan_of};
use super::{Args, CommandResult, Context, count, integer, is};
use crate::failure::Failure;
use crate::store::{ELEMENT, Kind, Text, Value};
use farmem_protocols::resp::Writer;
use indexmap::IndexSet;

type Set = IndexSet<Text>;

fn read<'a>(context: &'a mut Context<'_>, key: &[u8]) -> Result<Option<&'a Set>, Failure> {
    let db = context.db();
    Ok(context.store.collection(db, key, Some(Kind::Set))?.map(|value| match value {
        Value::Set(set) => set,
        _ => unreachable!("the kind was asked for"),
    }))
}

fn change<R>(
    context: &mut Context<'_>,
    key: &[u8],
    make: bool,
    change: impl FnOnce(&mut Set) -> (R, bool),
) -> Result<Option<R>, Failure> {
    let db = context.db();
    context.store.change(db, key, Kind::Set, make, |value| match value {
        Value::Set(set) => change(set),
        _ => unreachable!("the kind was asked for"),
    })
}

pub(super) fn sadd(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let added = change(context, args[1], true, |set| {
        let added = args[2..].iter().filter(|member| set.insert((**member).into())).count();
        (added, added > 0)
    })?;
    out.integer(count(added.unwrap_or(0)));
    Ok(())
}

pub(super) fn srem(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let removed = change(context, args[1], false, |set| {
        let removed = args[2..].iter().filter(|member| set.swap_remove(**member)).count();
        (removed, removed > 0)
    })?;
    out.integer(count(removed.unwrap_or(0)));
    Ok(())
}

pub(super) fn scard(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.integer(count(read(context, args[1])?.map_or(0, IndexSet::len)));
    Ok(())
}

pub(super) fn sismember(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.integer(i64::from(read(context, args[1])?.is_some_and(|set| set.contains(args[2]))));
    Ok(())
}

pub(super) fn smismember(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let set = read(context, args[1])?;
    out.array(args.len() - 2);
    for member in &args[2..] {
        out.integer(i64::from(set.is_some_and(|set| set.contains(*member))));
    }
    Ok(())
}

pub(super) fn smembers(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let set = read(context, args[1])?;
    out.set(set.map_or(0, IndexSet::len));
    set.into_iter().flatten().for_each(|member| out.bulk(member));
    Ok(())
}

pub(super) fn smove(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let is_member = match read(context, args[1])? {
        Some(set) => set.contains(args[3]),
        None => {
            out.integer(0);
            return Ok(());
        }
    };
    if read(context, args[2])?.is_none() {
        context.store.check_makes(args[2], args[3].len() + ELEMENT)?;
    }
    if is_member && args[1] != args[2] {
        change(context, args[1], false, |set| ((), set.swap_remove(args[3])))?;
        change(context, args[2], true, |set| ((), set.insert(args[3].into())))?;
    }
    out.integer(i64::from(is_member));
    Ok(())
}

pub(super) fn srandmember(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    if args.len() > 3 {
        return Err(Failure::SYNTAX);
    }
    let wanted = random_count(args.get(2), false)?;
    let len = read(context, args[1])?.map_or(0, IndexSet::len);
    let chosen = random_indexes(&mut context.store.rng, len, wanted.unwrap_or(1))?;
    let set = read(context, args[1])?;
    let member = |at: usize| set.and_then(|set| set.get_index(at)).expect("it is below the length");
    if wanted.is_none() {
        match chosen.first() {
            Some(&at) => out.bulk(member(at)),
            None => out.null(),
        }
        return Ok(());
    }
    out.array(chosen.len());
    chosen.into_iter().for_each(|at| out.bulk(member(at)));
    Ok(())
}

pub(super) fn spop(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let wanted = match args {
        [_, _] => None,
        [_, _, arg] => {
            let wanted = integer(arg).ok().filter(|&wanted| wanted >= 0);
            Some(wanted.ok_or(Failure::text("ERR value is out of range, must be positive"))?)
        }
        _ => return Err(Failure::SYNTAX),
    };
    let len = read(context, args[1])?.map_or(0, IndexSet::len);
    let mut chosen = random_indexes(&mut context.store.rng, len, wanted.unwrap_or(1))?;
    // The log gets the chosen members, so room for them is reserved before they go.
    if let Some(set) = read(context, args[1])? {
        let bytes: usize =
            chosen.iter().filter_map(|&at| set.get_index(at)).map(|member| member.len() + 4).sum();
        context.world.durable.reserve(args[1].len() + 8 + bytes).map_err(Failure::said)?;
    }
    // From the last one on, because removing a member renumbers those behind it.
    chosen.sort_unstable_by(|a, b| b.cmp(a));
    let popped = change(context, args[1], false, |set| {
        let popped: Vec<Text> = chosen.iter().filter_map(|&at| set.swap_remove_index(at)).collect();
        let changed = !popped.is_empty();
        (popped, changed)
    })?;
    let popped = popped.unwrap_or_default();
    if !popped.is_empty() {
        let members = popped.iter().map(|member| member.to_vec());
        context.logged_request =
            Some([b"SREM".to_vec(), args[1].to_vec()].into_iter().chain(members).collect());
    }
    match (wanted, popped.first()) {
        (Some(_), _) => {
            out.set(popped.len());
            popped.iter().for_each(|member| out.bulk(member));
        }
        (None, Some(member)) => out.bulk(member),
        (None, None) => out.null(),
    }
    Ok(())
}

fn combined(context: &mut Context<'_>, keys: Args<'_>, operation: Operation) -> Result<Set, Failure> {
    // The kinds of all keys are checked, also if the result is known before.
    let (mut result, mut bytes): (Option<Set>, usize) = (None, 0);
    for key in keys {
        let next = read(context, key)?;
        match (&mut result, operation) {
            (None, _) => {
                bytes = next.map_or(0, |set| set.iter().map(|member| member.len() + ELEMENT).sum());
                result = Some(next.cloned().unwrap_or_default());
            }
            (Some(result), Operation::Union) => {
                for member in next.into_iter().flatten() {
                    if result.insert(member.clone()) {
                        bytes += member.len() + ELEMENT;
                    }
                }
                check_result(context, bytes)?;
            }
            (Some(result), Operation::Intersection) => {
                result.retain(|member| next.is_some_and(|set| set.contains(member)))
            }
            (Some(result), Operation::Difference) => {
                result.retain(|member| next.is_none_or(|set| !set.contains(member)))
            }
        }
    }
    Ok(result.unwrap_or_default())
}

pub(super) fn answer(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    operation: Operation,
) -> CommandResult {
    let set = combined(context, &args[1..], operation)?;
    out.set(set.len());
    set.iter().for_each(|member| out.bulk(member));
    Ok(())
}

pub(super) fn store(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    operation: Operation,
) -> CommandResult {
    let db = context.db();
    let set = combined(context, &args[2..], operation)?;
    if !set.is_empty() {
        context.store.check_makes(args[1], set.iter().map(|member| member.len() + ELEMENT).sum())?;
    }
    context.store.remove(db, args[1]);
    out.integer(count(set.len()));
    if !set.is_empty() {
        change(context, args[1], true, |into| {
            *into = set;
            ((), true)
        })?;
    }
    Ok(())
}

pub(super) fn sintercard(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let keys = integer(args[1]).ok().and_then(|keys| usize::try_from(keys).ok()).filter(|&keys| keys > 0);
    let keys = keys.ok_or(Failure::text("ERR numkeys should be greater than 0"))?;
    let Some(names) = args.get(2..2 + keys) else {
        return Err(Failure::text("ERR Number of keys can't be greater than number of args"));
    };
    let limit = match &args[2 + keys..] {
        [] => 0,
        [word, limit] if is(word, "LIMIT") => {
            let limit = integer(limit).ok().and_then(|limit| usize::try_from(limit).ok());
            limit.ok_or(Failure::text("ERR LIMIT can't be negative"))?
        }
        _ => return Err(Failure::SYNTAX),
    };
    let len = combined(context, names, Operation::Intersection)?.len();
    out.integer(count(if limit == 0 { len } else { len.min(limit) }));
    Ok(())
}

pub(super) fn sscan(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    super::keys::cursor(args[2])?;
    let set = read(context, args[1])?;
    scan_of(args, out, set.map_or(0, IndexSet::len), |at| {
        let member = set.and_then(|set| set.get_index(at)).expect("it is below the length");
        (member, [member.to_vec()].into())
    })
}
