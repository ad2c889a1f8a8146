//! Sorted sets: members and their scores.

use super::collections::{Operation, check_result, random_count, random_indexes, scan_of};
use super::{Args, CommandResult, Context, count, float, integer, is};
use crate::failure::Failure;
use crate::store::{ELEMENT, Kind, Ranked, Value};
use farmem_protocols::resp::{Protocol, Writer, double};

pub(super) fn read<'a>(context: &'a mut Context<'_>, key: &[u8]) -> Result<Option<&'a Ranked>, Failure> {
    let db = context.db();
    Ok(context.store.collection(db, key, Some(Kind::Sorted))?.map(|value| match value {
        Value::Sorted(sorted) => sorted,
        _ => unreachable!("the kind was asked for"),
    }))
}

pub(super) fn change<R>(
    context: &mut Context<'_>,
    key: &[u8],
    make: bool,
    change: impl FnOnce(&mut Ranked) -> (R, bool),
) -> Result<Option<R>, Failure> {
    let db = context.db();
    context.store.change(db, key, Kind::Sorted, make, |value| match value {
        Value::Sorted(sorted) => change(sorted),
        _ => unreachable!("the kind was asked for"),
    })
}

/// The options of `ZADD`.
#[derive(Clone, Copy, Default)]
struct AddOptions {
    only_new: bool,
    only_old: bool,
    greater: bool,
    less: bool,
    changed: bool,
    increment: bool,
}

fn add_options(args: Args<'_>) -> Result<(AddOptions, usize), Failure> {
    let mut options = AddOptions::default();
    let mut at = 2;
    while let Some(&word) = args.get(at) {
        let flag = match () {
            () if is(word, "NX") => &mut options.only_new,
            () if is(word, "XX") => &mut options.only_old,
            () if is(word, "GT") => &mut options.greater,
            () if is(word, "LT") => &mut options.less,
            () if is(word, "CH") => &mut options.changed,
            () if is(word, "INCR") => &mut options.increment,
            () => break,
        };
        *flag = true;
        at += 1;
    }
    let pairs = args.len() - at;
    if pairs == 0 || !pairs.is_multiple_of(2) {
        return Err(Failure::SYNTAX);
    }
    if options.only_new && options.only_old {
        return Err(Failure::text("ERR XX and NX options at the same time are not compatible"));
    }
    if [options.greater, options.less, options.only_new].iter().filter(|&&on| on).count() > 1 {
        return Err(Failure::text("ERR GT, LT, and/or NX options at the same time are not compatible"));
    }
    if options.increment && pairs > 2 {
        return Err(Failure::text("ERR INCR option supports a single increment-element pair"));
    }
    Ok((options, at))
}

/// The numbers of new members and of changed scores, and the score of the last member; `None` if the options left it
/// as it was.
type AddOutcome = (i64, i64, Result<Option<f64>, Failure>);

fn add(sorted: &mut Ranked, pairs: &[(f64, &[u8])], options: AddOptions) -> AddOutcome {
    let (mut new, mut other, mut last) = (0, 0, None);
    for &(score, member) in pairs {
        let old = sorted.score(member);
        last = None;
        if old.map_or(options.only_old, |_| options.only_new) {
            continue;
        }
        let score = if options.increment { old.unwrap_or(0.0) + score } else { score };
        if score.is_nan() {
            return (new, other, Err(Failure::text("ERR resulting score is not a number (NaN)")));
        }
        if old.is_some_and(|old| (options.greater && score <= old) || (options.less && score >= old)) {
            continue;
        }
        sorted.insert(score, member);
        last = Some(score);
        match old {
            None => new += 1,
            Some(old) if old != score => other += 1,
            Some(_) => {}
        }
    }
    (new, other, Ok(last))
}

fn add_to(
    context: &mut Context<'_>,
    args: Args<'_>,
    options: AddOptions,
    from: usize,
    out: &mut Writer<'_>,
) -> CommandResult {
    let mut pairs = Vec::new();
    for pair in args[from..].chunks(2) {
        pairs.push((float(pair[0]).ok_or(Failure::NOT_FLOAT)?, pair[1]));
    }
    let added = change(context, args[1], !options.only_old, |sorted| {
        let (new, other, last) = add(sorted, &pairs, options);
        ((new, other, last), new + other > 0)
    })?;
    let (new, other, last) = added.unwrap_or((0, 0, Ok(None)));
    match (options.increment, last?) {
        (true, Some(score)) => out.double(score),
        (true, None) => out.null(),
        (false, _) => out.integer(if options.changed { new + other } else { new }),
    }
    Ok(())
}

pub(super) fn zadd(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let (options, from) = add_options(args)?;
    add_to(context, args, options, from, out)
}

pub(super) fn zincrby(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    add_to(context, args, AddOptions { increment: true, ..AddOptions::default() }, 2, out)
}

pub(super) fn zrem(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let removed = change(context, args[1], false, |sorted| {
        let removed = args[2..].iter().filter(|member| sorted.remove(member).is_some()).count();
        (removed, removed > 0)
    })?;
    out.integer(count(removed.unwrap_or(0)));
    Ok(())
}

pub(super) fn zcard(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    out.integer(count(read(context, args[1])?.map_or(0, Ranked::len)));
    Ok(())
}

fn score_or_null(score: Option<f64>, out: &mut Writer<'_>) {
    match score {
        Some(score) => out.double(score),
        None => out.null(),
    }
}

pub(super) fn zscore(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    score_or_null(read(context, args[1])?.and_then(|sorted| sorted.score(args[2])), out);
    Ok(())
}

pub(super) fn zmscore(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let sorted = read(context, args[1])?;
    out.array(args.len() - 2);
    args[2..].iter().for_each(|member| score_or_null(sorted.and_then(|sorted| sorted.score(member)), out));
    Ok(())
}

pub(super) fn rank(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    backwards: bool,
) -> CommandResult {
    let sorted = read(context, args[1])?;
    match sorted.and_then(|sorted| Some((sorted.rank(args[2])?, sorted.len()))) {
        Some((rank, len)) => out.integer(count(if backwards { len - 1 - rank } else { rank })),
        None => out.null(),
    }
    Ok(())
}

pub(super) fn pop(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    highest: bool,
) -> CommandResult {
    let wanted = match args {
        [_, _] => None,
        [_, _, arg] => {
            let wanted = integer(arg).ok().and_then(|wanted| usize::try_from(wanted).ok());
            Some(wanted.ok_or(Failure::text("ERR value is out of range, must be positive"))?)
        }
        _ => return Err(Failure::SYNTAX),
    };
    let popped = change(context, args[1], false, |sorted| {
        let popped = take_some(sorted, highest, wanted.unwrap_or(1));
        let changed = !popped.is_empty();
        (popped, changed)
    })?;
    let popped = popped.unwrap_or_default();
    let nested = wanted.is_some() && out.protocol() == Protocol::Resp3;
    out.array(popped.len() * if nested { 1 } else { 2 });
    for (score, member) in popped {
        if nested {
            out.array(2);
        }
        out.bulk(&member);
        out.double(score);
    }
    Ok(())
}

pub(super) fn take_some(sorted: &mut Ranked, highest: bool, wanted: usize) -> ScoredMembers {
    let owned = |(score, member): (f64, &[u8])| (score, member.to_vec());
    let some: ScoredMembers = if highest {
        sorted.iter().rev().take(wanted).map(owned).collect()
    } else {
        sorted.iter().take(wanted).map(owned).collect()
    };
    some.iter().for_each(|(_, member)| sorted.forget(member));
    some
}

/// Removed members with their scores.
type ScoredMembers = Vec<(f64, Vec<u8>)>;

/// Pops the members with the lowest or the highest scores; `None` without such a key.
pub(super) fn take_lowest(
    context: &mut Context<'_>,
    key: &[u8],
    low: bool,
    wanted: usize,
) -> Result<Option<ScoredMembers>, Failure> {
    change(context, key, false, |sorted| (take_some(sorted, !low, wanted), true))
}

pub(super) fn zrandmember(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let with_scores = match args.get(3) {
        None => false,
        Some(word) if is(word, "WITHSCORES") && args.len() == 4 => true,
        Some(_) => return Err(Failure::SYNTAX),
    };
    let wanted = random_count(args.get(2), with_scores)?;
    let len = read(context, args[1])?.map_or(0, Ranked::len);
    let chosen = random_indexes(&mut context.store.rng, len, wanted.unwrap_or(1))?;
    let sorted = read(context, args[1])?;
    let pair = |at: usize| sorted.and_then(|sorted| sorted.nth(at)).expect("it is below the length");
    if wanted.is_none() {
        match chosen.first() {
            Some(&at) => out.bulk(pair(at).0),
            None => out.null(),
        }
        return Ok(());
    }
    let chosen: Vec<(f64, &[u8])> = chosen.into_iter().map(|at| (pair(at).1, pair(at).0)).collect();
    members(&chosen, with_scores, out);
    Ok(())
}

/// Writes members of a sorted set, with their scores if the request wants them.
pub(super) fn members(some: &[(f64, &[u8])], with_scores: bool, out: &mut Writer<'_>) {
    let nested = with_scores && out.protocol() == Protocol::Resp3;
    out.array(some.len() * if with_scores && !nested { 2 } else { 1 });
    for (score, member) in some {
        if nested {
            out.array(2);
        }
        out.bulk(member);
        if with_scores {
            out.double(*score);
        }
    }
}

pub(super) fn zscan(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    super::keys::cursor(args[2])?;
    let sorted = read(context, args[1])?;
    scan_of(args, out, sorted.map_or(0, Ranked::len), |at| {
        let (member, score) = sorted.and_then(|sorted| sorted.nth(at)).expect("it is below the length");
        (member, [member.to_vec(), double(score).into_bytes()].into())
    })
}

/// The arguments of `ZUNION`, `ZINTER`, `ZDIFF` and the commands that store them.
struct CombineRequest<'a> {
    keys: &'a [&'a [u8]],
    weights: Vec<f64>,
    join: fn(f64, f64) -> f64,
    with_scores: bool,
}

fn combine_options<'a>(
    context: &mut Context<'_>,
    args: Args<'a>,
    command: &str,
    operation: Operation,
    stores: bool,
) -> Result<CombineRequest<'a>, Failure> {
    let keys = usize::try_from(integer(args[0])?).unwrap_or(0);
    if keys == 0 {
        return Err(Failure::said(format!("ERR at least 1 input key is needed for '{command}' command")));
    }
    let names = args.get(1..1 + keys).ok_or(Failure::SYNTAX)?;
    let db = context.db();
    for key in names {
        if !matches!(context.store.kind(db, key), None | Some(Kind::Set | Kind::Sorted)) {
            return Err(Failure::WrongType);
        }
    }
    let zero_without_infinity = |a: f64, b: f64| if (a + b).is_nan() { 0.0 } else { a + b };
    let mut combine = CombineRequest {
        keys: names,
        weights: vec![1.0; keys],
        join: zero_without_infinity,
        with_scores: false,
    };
    let mut rest = &args[1 + keys..];
    while let Some((word, more)) = rest.split_first() {
        rest = if is(word, "WEIGHTS") && more.len() >= keys && operation != Operation::Difference {
            for (weight, arg) in combine.weights.iter_mut().zip(more) {
                *weight = float(arg).ok_or(Failure::text("ERR weight value is not a float"))?;
            }
            &more[keys..]
        } else if is(word, "AGGREGATE") && !more.is_empty() && operation != Operation::Difference {
            combine.join = match () {
                () if is(more[0], "SUM") => combine.join,
                () if is(more[0], "MIN") => f64::min,
                () if is(more[0], "MAX") => f64::max,
                () => return Err(Failure::SYNTAX),
            };
            &more[1..]
        } else if is(word, "WITHSCORES") && !stores {
            combine.with_scores = true;
            more
        } else {
            return Err(Failure::SYNTAX);
        };
    }
    Ok(combine)
}

/// Returns the members of a set or a sorted set. The members of a set have the score 1.
fn scored(context: &mut Context<'_>, key: &[u8]) -> Result<Ranked, Failure> {
    let db = context.db();
    let mut ranked = Ranked::default();
    match context.store.collection(db, key, None)? {
        None => {}
        Some(Value::Sorted(sorted)) => ranked = sorted.clone(),
        Some(Value::Set(set)) => set.iter().for_each(|member| ranked.put(1.0, member)),
        Some(_) => return Err(Failure::WrongType),
    }
    Ok(ranked)
}

fn combined(
    context: &mut Context<'_>,
    combine: &CombineRequest<'_>,
    operation: Operation,
) -> Result<Ranked, Failure> {
    let mut result: Option<Ranked> = None;
    for (key, weight) in combine.keys.iter().zip(&combine.weights) {
        let next = scored(context, key)?;
        let weighted = |score: f64| if (score * weight).is_nan() { 0.0 } else { score * weight };
        let Some(sum) = result.take() else {
            let mut first = Ranked::default();
            next.iter().for_each(|(score, member)| first.put(weighted(score), member));
            check_result(context, bytes_of(&first))?;
            result = Some(first);
            continue;
        };
        let mut joined = Ranked::default();
        for (score, member) in sum.iter() {
            match (next.score(member), operation) {
                (Some(_), Operation::Difference) | (None, Operation::Intersection) => {}
                (None, _) => joined.put(score, member),
                (Some(other), _) => joined.put((combine.join)(score, weighted(other)), member),
            }
        }
        if operation == Operation::Union {
            let new = next.iter().filter(|(_, member)| sum.score(member).is_none());
            new.for_each(|(score, member)| joined.put(weighted(score), member));
            check_result(context, bytes_of(&joined))?;
        }
        result = Some(joined);
    }
    Ok(result.unwrap_or_default())
}

pub(super) fn answer(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    (command, operation): (&str, Operation),
) -> CommandResult {
    let combine = combine_options(context, &args[1..], command, operation, false)?;
    let result = combined(context, &combine, operation)?;
    members(&result.iter().collect::<Vec<_>>(), combine.with_scores, out);
    Ok(())
}

pub(super) fn store(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    (command, operation): (&str, Operation),
) -> CommandResult {
    let combine = combine_options(context, &args[2..], command, operation, true)?;
    let result = combined(context, &combine, operation)?;
    out.integer(count(result.len()));
    put(context, args[1], result)
}

/// Returns about the bytes that a sorted set takes in local memory.
fn bytes_of(sorted: &Ranked) -> usize {
    sorted.iter().map(|(_, member)| 2 * (member.len() + 16) + ELEMENT).sum()
}

/// Stores a sorted set in place of the key's value. An empty one removes the key.
pub(super) fn put(context: &mut Context<'_>, key: &[u8], sorted: Ranked) -> CommandResult {
    let db = context.db();
    if sorted.len() > 0 {
        context.store.check_makes(key, bytes_of(&sorted))?;
    }
    context.store.remove(db, key);
    if sorted.len() > 0 {
        change(context, key, true, |into| {
            *into = sorted;
            ((), true)
        })?;
    }
    Ok(())
}

pub(super) fn zintercard(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let keys = usize::try_from(integer(args[1])?).unwrap_or(0);
    let rest = args.get(2usize.saturating_add(keys)..).unwrap_or(&[]);
    let named = &args[1..args.len() - rest.len()];
    let combine = combine_options(context, named, "zintercard", Operation::Intersection, false)?;
    let limit = match rest {
        [] => 0,
        [word, limit] if is(word, "LIMIT") => {
            let limit = integer(limit).ok().and_then(|limit| usize::try_from(limit).ok());
            limit.ok_or(Failure::text("ERR LIMIT can't be negative"))?
        }
        _ => return Err(Failure::SYNTAX),
    };
    let len = combined(context, &combine, Operation::Intersection)?.len();
    out.integer(count(if limit == 0 { len } else { len.min(limit) }));
    Ok(())
}
