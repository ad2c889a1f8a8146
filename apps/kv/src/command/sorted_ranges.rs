//! Ranges of sorted sets by rank, by score and by text.

use super::sorted::{change, members, put, read};
use super::strings::range_of;
use super::{Args, CommandResult, Context, count, float, integer, is};
use crate::failure::Failure;
use crate::store::Ranked;
use farmem_protocols::resp::Writer;
use std::ops::Range;

/// A bound of a range of scores.
#[derive(Clone, Copy)]
struct ScoreBound {
    score: f64,
    exclusive: bool,
}

fn score_end(arg: &[u8]) -> Result<ScoreBound, Failure> {
    let (text, exclusive) = match arg.strip_prefix(b"(") {
        Some(text) => (text, true),
        None => (arg, false),
    };
    let score = float(text).ok_or(Failure::text("ERR min or max is not a float"))?;
    Ok(ScoreBound { score, exclusive })
}

/// Returns the ranks of the members between two scores.
fn by_score(sorted: &Ranked, min: ScoreBound, max: ScoreBound) -> Range<usize> {
    let first = sorted.count_while(|(score, _)| score < min.score || (min.exclusive && score == min.score));
    let end = sorted.count_while(|(score, _)| score < max.score || (!max.exclusive && score == max.score));
    first..end.max(first)
}

/// A bound of a range of texts.
#[derive(Clone, Copy)]
enum TextBound<'a> {
    Least,
    Most,
    At { text: &'a [u8], exclusive: bool },
}

fn text_end(arg: &[u8]) -> Result<TextBound<'_>, Failure> {
    match arg {
        b"-" => Ok(TextBound::Least),
        b"+" => Ok(TextBound::Most),
        [b'[', text @ ..] => Ok(TextBound::At { text, exclusive: false }),
        [b'(', text @ ..] => Ok(TextBound::At { text, exclusive: true }),
        _ => Err(Failure::text("ERR min or max not valid string range item")),
    }
}

fn by_text(sorted: &Ranked, min: TextBound<'_>, max: TextBound<'_>) -> Range<usize> {
    let below = |end: TextBound<'_>, inclusive: bool| {
        sorted.count_while(|(_, member)| match end {
            TextBound::Least => false,
            TextBound::Most => true,
            TextBound::At { text, .. } => member < text || (inclusive && member == text),
        })
    };
    let exclusive = |end: TextBound<'_>| matches!(end, TextBound::At { exclusive: true, .. });
    let first = below(min, exclusive(min));
    first..below(max, !exclusive(max)).max(first)
}

/// The unit of a range's bounds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Rank,
    Score,
    Text,
}

/// The arguments of `ZRANGE` and of the older commands for ranges.
struct RangeQuery<'a> {
    by: By,
    backwards: bool,
    limit: Option<(i64, i64)>,
    with_scores: bool,
    ends: (&'a [u8], &'a [u8]),
}

/// Returns the ranks of a range, after `LIMIT`, in the order of the set.
fn ranks(sorted: &Ranked, query: &RangeQuery<'_>) -> Result<Range<usize>, Failure> {
    let (min, max) =
        if query.backwards && query.by != By::Rank { (query.ends.1, query.ends.0) } else { query.ends };
    let range = match query.by {
        By::Rank => {
            let range = range_of(integer(min)?, integer(max)?, sorted.len());
            if query.backwards && !range.is_empty() {
                sorted.len() - range.end..sorted.len() - range.start
            } else {
                range
            }
        }
        By::Score => by_score(sorted, score_end(min)?, score_end(max)?),
        By::Text => by_text(sorted, text_end(min)?, text_end(max)?),
    };
    let Some((offset, most)) = query.limit else { return Ok(range) };
    let Ok(offset) = usize::try_from(offset) else { return Ok(0..0) };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let left = range.len().saturating_sub(offset);
    let len = left.min(most);
    Ok(if query.backwards {
        let end = range.end - offset.min(range.len());
        end - len..end
    } else {
        let start = range.start + offset.min(range.len());
        start..start + len
    })
}

fn found<'a>(sorted: &'a Ranked, query: &RangeQuery<'_>) -> Result<Vec<(f64, &'a [u8])>, Failure> {
    let range = ranks(sorted, query)?;
    let mut found = if range.is_empty() { Vec::new() } else { sorted.range(range.start, range.len()) };
    if query.backwards {
        found.reverse();
    }
    Ok(found)
}

/// Parses the options behind the bounds.
fn options<'a>(
    args: Args<'_>,
    ends: (&'a [u8], &'a [u8]),
    by: Option<By>,
    scores: bool,
) -> Result<RangeQuery<'a>, Failure> {
    let mut query =
        RangeQuery { by: by.unwrap_or(By::Rank), backwards: false, limit: None, with_scores: false, ends };
    let mut at = 0;
    while let Some(word) = args.get(at) {
        at += 1;
        match () {
            () if is(word, "WITHSCORES") && scores => query.with_scores = true,
            () if is(word, "LIMIT") && args.len() >= at + 2 => {
                query.limit = Some((integer(args[at])?, integer(args[at + 1])?));
                at += 2;
            }
            () if is(word, "BYSCORE") && by.is_none() => query.by = By::Score,
            () if is(word, "BYLEX") && by.is_none() => query.by = By::Text,
            () if is(word, "REV") && by.is_none() => query.backwards = true,
            () => return Err(Failure::SYNTAX),
        }
    }
    if query.limit.is_some() && query.by == By::Rank {
        return Err(Failure::text(
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
        ));
    }
    if query.with_scores && query.by == By::Text {
        return Err(Failure::text("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
    }
    Ok(query)
}

/// Executes `ZRANGE`, or one of the older commands for ranges, which name the unit of the bounds and the direction.
pub(super) fn range(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    by: Option<By>,
    backwards: bool,
) -> CommandResult {
    let mut query = options(&args[4..], (args[2], args[3]), by, by != Some(By::Text))?;
    query.backwards |= backwards;
    let none = Ranked::default();
    // Wrong bounds are an error also without such a key.
    ranks(&none, &query)?;
    let sorted = read(context, args[1])?.unwrap_or(&none);
    members(&found(sorted, &query)?, query.with_scores, out);
    Ok(())
}

pub(super) fn zrangestore(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let query = options(&args[5..], (args[3], args[4]), None, false)?;
    ranks(&Ranked::default(), &query)?;
    let none = Ranked::default();
    let sorted = read(context, args[2])?.unwrap_or(&none);
    let mut kept = Ranked::default();
    found(sorted, &query)?.into_iter().for_each(|(score, member)| kept.put(score, member));
    out.integer(count(kept.len()));
    put(context, args[1], kept)
}

pub(super) fn counted(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    by: By,
) -> CommandResult {
    let query = options(&[], (args[2], args[3]), Some(by), false)?;
    let none = Ranked::default();
    ranks(&none, &query)?;
    out.integer(count(ranks(read(context, args[1])?.unwrap_or(&none), &query)?.len()));
    Ok(())
}

pub(super) fn removed(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    by: By,
) -> CommandResult {
    let query = options(&[], (args[2], args[3]), Some(by), false)?;
    ranks(&Ranked::default(), &query)?;
    let removed = change(context, args[1], false, |sorted| {
        let range = ranks(sorted, &query).unwrap_or(0..0);
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
