//! Ranges of sorted sets by rank, by score and by text.

use super::sorted::{change, members, put, read};
use super::strings::range_of;
use super::{Args, Context, Done, count, float, integer, is};
use crate::failure::Failure;
use crate::store::Ranked;
use farmem_resp::Writer;
use std::ops::Range;

/// A bound of a range of scores.
#[derive(Clone, Copy)]
struct ScoreEnd {
    score: f64,
    exclusive: bool,
}

fn score_end(arg: &[u8]) -> Result<ScoreEnd, Failure> {
    let (text, exclusive) = match arg.strip_prefix(b"(") {
        Some(text) => (text, true),
        None => (arg, false),
    };
    let score = float(text).ok_or(Failure::text("ERR min or max is not a float"))?;
    Ok(ScoreEnd { score, exclusive })
}

/// Returns the ranks of the members between two scores.
fn by_score(sorted: &Ranked, min: ScoreEnd, max: ScoreEnd) -> Range<usize> {
    let first = sorted.count_while(|(score, _)| score < min.score || (min.exclusive && score == min.score));
    let end = sorted.count_while(|(score, _)| score < max.score || (!max.exclusive && score == max.score));
    first..end.max(first)
}

/// A bound of a range of texts.
#[derive(Clone, Copy)]
enum TextEnd<'a> {
    Least,
    Most,
    At { text: &'a [u8], exclusive: bool },
}

fn text_end(arg: &[u8]) -> Result<TextEnd<'_>, Failure> {
    match arg {
        b"-" => Ok(TextEnd::Least),
        b"+" => Ok(TextEnd::Most),
        [b'[', text @ ..] => Ok(TextEnd::At { text, exclusive: false }),
        [b'(', text @ ..] => Ok(TextEnd::At { text, exclusive: true }),
        _ => Err(Failure::text("ERR min or max not valid string range item")),
    }
}

fn by_text(sorted: &Ranked, min: TextEnd<'_>, max: TextEnd<'_>) -> Range<usize> {
    let below = |end: TextEnd<'_>, inclusive: bool| {
        sorted.count_while(|(_, member)| match end {
            TextEnd::Least => false,
            TextEnd::Most => true,
            TextEnd::At { text, .. } => member < text || (inclusive && member == text),
        })
    };
    let exclusive = |end: TextEnd<'_>| matches!(end, TextEnd::At { exclusive: true, .. });
    let first = below(min, exclusive(min));
    first..below(max, !exclusive(max)).max(first)
}

/// The unit of a range's bounds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Text,
}

/// The arguments of `ZRANGE` and of the older commands for ranges.
struct Asked<'a> {
    by: By,
    backwards: bool,
    limit: Option<(i64, i64)>,
    with_scores: bool,
    ends: (&'a [u8], &'a [u8]),
}

/// Returns the ranks of a range, after `LIMIT`, in the order of the set.
fn ranks(sorted: &Ranked, asked: &Asked<'_>) -> Result<Range<usize>, Failure> {
    let (min, max) =
        if asked.backwards && asked.by != By::Rank { (asked.ends.1, asked.ends.0) } else { asked.ends };
    let range = match asked.by {
        By::Rank => {
            let range = range_of(integer(min)?, integer(max)?, sorted.len());
            if asked.backwards && !range.is_empty() {
                sorted.len() - range.end..sorted.len() - range.start
            } else {
                range
            }
        }
        By::Score => by_score(sorted, score_end(min)?, score_end(max)?),
        By::Text => by_text(sorted, text_end(min)?, text_end(max)?),
    };
    let Some((offset, most)) = asked.limit else { return Ok(range) };
    let Ok(offset) = usize::try_from(offset) else { return Ok(0..0) };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let left = range.len().saturating_sub(offset);
    let len = left.min(most);
    Ok(if asked.backwards {
        let end = range.end - offset.min(range.len());
        end - len..end
    } else {
        let start = range.start + offset.min(range.len());
        start..start + len
    })
}

fn found<'a>(sorted: &'a Ranked, asked: &Asked<'_>) -> Result<Vec<(f64, &'a [u8])>, Failure> {
    let range = ranks(sorted, asked)?;
    let mut found = if range.is_empty() { Vec::new() } else { sorted.range(range.start, range.len()) };
    if asked.backwards {
        found.reverse();
    }
    Ok(found)
}

fn answer(context: &mut Context<'_>, key: &[u8], asked: &Asked<'_>, out: &mut Writer<'_>) -> Done {
    let none = Ranked::default();
    // Wrong bounds are an error also without such a key.
    ranks(&none, asked)?;
    let sorted = read(context, key)?.unwrap_or(&none);
    members(&found(sorted, asked)?, asked.with_scores, out);
    Ok(())
}

/// Parses the options behind the bounds.
fn options<'a>(
    args: Args<'_>,
    ends: (&'a [u8], &'a [u8]),
    by: Option<By>,
    scores: bool,
) -> Result<Asked<'a>, Failure> {
    let mut asked =
        Asked { by: by.unwrap_or(By::Rank), backwards: false, limit: None, with_scores: false, ends };
    let mut at = 0;
    while let Some(word) = args.get(at) {
        at += 1;
        match () {
            () if is(word, "WITHSCORES") && scores => asked.with_scores = true,
            () if is(word, "LIMIT") && args.len() >= at + 2 => {
                asked.limit = Some((integer(args[at])?, integer(args[at + 1])?));
                at += 2;
            }
            () if is(word, "BYSCORE") && by.is_none() => asked.by = By::Score,
            () if is(word, "BYLEX") && by.is_none() => asked.by = By::Text,
            () if is(word, "REV") && by.is_none() => asked.backwards = true,
            () => return Err(Failure::SYNTAX),
        }
    }
    if asked.limit.is_some() && asked.by == By::Rank {
        return Err(Failure::text(
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
        ));
    }
    if asked.with_scores && asked.by == By::Text {
        return Err(Failure::text("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
    }
    Ok(asked)
}

pub(super) fn zrange(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    answer(context, args[1], &options(&args[4..], (args[2], args[3]), None, true)?, out)
}

pub(super) fn zrevrange(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    let asked = options(&args[4..], (args[2], args[3]), Some(By::Rank), true)?;
    answer(context, args[1], &Asked { backwards: true, ..asked }, out)
}

pub(super) fn zrangebyscore(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    answer(context, args[1], &options(&args[4..], (args[2], args[3]), Some(By::Score), true)?, out)
}

pub(super) fn zrevrangebyscore(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    let asked = options(&args[4..], (args[2], args[3]), Some(By::Score), true)?;
    answer(context, args[1], &Asked { backwards: true, ..asked }, out)
}

pub(super) fn zrangebylex(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    answer(context, args[1], &options(&args[4..], (args[2], args[3]), Some(By::Text), false)?, out)
}

pub(super) fn zrevrangebylex(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    let asked = options(&args[4..], (args[2], args[3]), Some(By::Text), false)?;
    answer(context, args[1], &Asked { backwards: true, ..asked }, out)
}

pub(super) fn zrangestore(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    let asked = options(&args[5..], (args[3], args[4]), None, false)?;
    ranks(&Ranked::default(), &asked)?;
    let none = Ranked::default();
    let sorted = read(context, args[2])?.unwrap_or(&none);
    let mut kept = Ranked::default();
    found(sorted, &asked)?.into_iter().for_each(|(score, member)| kept.put(score, member));
    out.integer(count(kept.len()));
    put(context, args[1], kept)
}

fn counted(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>, by: By) -> Done {
    let asked = options(&[], (args[2], args[3]), Some(by), false)?;
    let none = Ranked::default();
    ranks(&none, &asked)?;
    out.integer(count(ranks(read(context, args[1])?.unwrap_or(&none), &asked)?.len()));
    Ok(())
}

pub(super) fn zcount(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    counted(context, args, out, By::Score)
}

pub(super) fn zlexcount(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    counted(context, args, out, By::Text)
}

fn removed(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>, by: By) -> Done {
    let asked = options(&[], (args[2], args[3]), Some(by), false)?;
    ranks(&Ranked::default(), &asked)?;
    let removed = change(context, args[1], false, |sorted| {
        let range = ranks(sorted, &asked).unwrap_or(0..0);
        let gone: Vec<Vec<u8>> = if range.is_empty() {
            Vec::new()
        } else {
            sorted.range(range.start, range.len()).into_iter().map(|(_, member)| member.to_vec()).collect()
        };
        gone.iter().for_each(|member| sorted.forget(member));
        (gone.len(), !gone.is_empty())
    })?;
    out.integer(count(removed.unwrap_or(0)));
    Ok(())
}

pub(super) fn zremrangebyrank(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    removed(context, args, out, By::Rank)
}

pub(super) fn zremrangebyscore(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    removed(context, args, out, By::Score)
}

pub(super) fn zremrangebylex(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> Done {
    removed(context, args, out, By::Text)
}
