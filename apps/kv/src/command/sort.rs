//! `SORT` and `SORT_RO`: the elements of a list, a set or a sorted set in the order of numbers or texts, their own or
//! those of other keys.
//!
//! Texts are compared byte by byte, with any locale. The values of `BY` and `GET` are read from far memory in
//! batches.

use super::{Args, CommandResult, Context, count, float, integer, is};
use crate::failure::Failure;
use crate::store::{ELEMENT, Kind, Store, Text, Value};
use farmem_protocols::resp::Writer;
use std::cmp::Ordering;
use std::collections::VecDeque;

/// The elements whose values are read together.
const TOGETHER: usize = 256;

/// The options of `SORT`.
struct Options<'a> {
    by: Option<&'a [u8]>,
    /// Whether the elements keep their order, because the pattern of `BY` names no key.
    as_is: bool,
    gets: Vec<&'a [u8]>,
    limit: (i64, i64),
    descends: bool,
    by_text: bool,
    store: Option<&'a [u8]>,
}

/// The weight by which an element is ordered.
enum Weight {
    Number(f64),
    /// The text of another key; `None` without such a key.
    Text(Option<Text>),
    /// The element itself.
    Own,
}

fn options<'a>(context: &Context<'_>, args: Args<'a>, may_store: bool) -> Result<Options<'a>, Failure> {
    let mut options = Options {
        by: None,
        as_is: false,
        gets: Vec::new(),
        limit: (0, -1),
        descends: false,
        by_text: false,
        store: None,
    };
    // The keys that a pattern names are known only when they are looked up.
    let reads_all = context.session.rights.reads_all_keys();
    let denied = |what: &str| {
        Failure::said(format!("ERR {what} option of SORT denied due to insufficient ACL permissions"))
    };
    let mut rest = &args[2..];
    while let Some((word, behind)) = rest.split_first() {
        rest = match behind {
            _ if is(word, "ASC") || is(word, "DESC") => {
                options.descends = is(word, "DESC");
                behind
            }
            _ if is(word, "ALPHA") => {
                options.by_text = true;
                behind
            }
            [from, len, behind @ ..] if is(word, "LIMIT") => {
                options.limit = (integer(from)?, integer(len)?);
                behind
            }
            [key, behind @ ..] if is(word, "STORE") && may_store => {
                options.store = Some(key);
                behind
            }
            [pattern, behind @ ..] if is(word, "BY") => {
                (options.by, options.as_is) = (Some(*pattern), options.as_is || !pattern.contains(&b'*'));
                if pattern.contains(&b'*') && !reads_all {
                    return Err(denied("BY"));
                }
                behind
            }
            [pattern, behind @ ..] if is(word, "GET") => {
                if !reads_all {
                    return Err(denied("GET"));
                }
                options.gets.push(pattern);
                behind
            }
            _ => return Err(Failure::SYNTAX),
        };
    }
    Ok(options)
}

/// Puts an element in place of a pattern's first `*`. Returns the key and, behind an arrow, the field of its hash.
fn named<'a>(pattern: &'a [u8], element: &[u8]) -> Option<(Vec<u8>, Option<&'a [u8]>)> {
    let star = pattern.iter().position(|&byte| byte == b'*')?;
    let (front, behind) = (&pattern[..star], &pattern[star + 1..]);
    let arrow = behind.windows(2).position(|pair| pair == b"->").filter(|&at| at + 2 < behind.len());
    let (end, field) = arrow.map_or((behind, None), |at| (&behind[..at], Some(&behind[at + 2..])));
    Some(([front, element, end].concat(), field))
}

/// Returns the value of a pattern for an element: the element itself, a string, or a field of a hash.
fn look_up(store: &mut Store, db: u8, pattern: &[u8], element: &[u8]) -> Result<Option<Text>, Failure> {
    if pattern == b"#" {
        return Ok(Some(element.into()));
    }
    let Some((key, field)) = named(pattern, element) else { return Ok(None) };
    match (store.kind(db, &key), field) {
        (Some(Kind::String), None) => Ok(store.string(db, &key)?.map(Into::into)),
        (Some(Kind::Hash), Some(field)) => Ok(match store.collection(db, &key, Some(Kind::Hash))? {
            Some(Value::Hash(hash)) => hash.get(field).cloned(),
            _ => None,
        }),
        _ => Ok(None),
    }
}

/// Passes the values of all patterns for each element to `take`, in order. Far values are read together.
fn look_up_all(
    store: &mut Store,
    db: u8,
    patterns: &[&[u8]],
    elements: &[Text],
    mut take: impl FnMut(Option<Text>) -> CommandResult,
) -> CommandResult {
    for some in elements.chunks(TOGETHER) {
        let keys = some.iter().flat_map(|element| patterns.iter().map(move |pattern| (pattern, element)));
        let mut keys = keys.filter_map(|(pattern, element)| named(pattern, element));
        while let Some((key, _)) = keys.next()
            && store.want(db, &key)
        {}
        store.fetch_wanted();
        for element in some {
            for pattern in patterns {
                take(look_up(store, db, pattern, element)?)?;
            }
        }
    }
    Ok(())
}

/// Returns the elements of a key in its own order.
fn elements(context: &mut Context<'_>, key: &[u8]) -> Result<(Vec<Text>, bool), Failure> {
    let db = context.db();
    let bytes = context.store.collection(db, key, None)?.map_or(0, Value::bytes);
    // Each element is in memory twice, with its weight.
    context.store.give_way(2 * bytes);
    Ok(match context.store.collection(db, key, None)? {
        None => (Vec::new(), false),
        Some(Value::List(list)) => (list.iter().cloned().collect(), false),
        Some(Value::Set(set)) => (set.iter().cloned().collect(), true),
        Some(Value::Sorted(sorted)) => (sorted.iter().map(|(_, member)| member.into()).collect(), false),
        Some(Value::Hash(_)) => return Err(Failure::WrongType),
    })
}

/// Parses a whole text as `strtod` does. An empty text is 0.
fn number(text: &[u8]) -> Result<f64, Failure> {
    let text = text.trim_ascii_start();
    let number = if text.is_empty() { Some(0.0) } else { float(text) };
    number.ok_or(Failure::text("ERR One or more scores can't be converted into double"))
}

/// Returns the range of elements that `LIMIT` selects, with Redis's rules.
fn range(len: usize, (from, count): (i64, i64)) -> std::ops::Range<usize> {
    let from = usize::try_from(from.max(0)).unwrap_or(usize::MAX).min(len);
    let count = usize::try_from(count).unwrap_or(len).min(len);
    from..(from + count).min(len)
}

pub(super) fn sort_with(
    context: &mut Context<'_>,
    args: Args<'_>,
    out: &mut Writer<'_>,
    may_store: bool,
) -> CommandResult {
    let mut options = options(context, args, may_store)?;
    let (mut elements, is_set) = elements(context, args[1])?;
    // A set has no order, so it is sorted to store the same list wherever the log is executed.
    if options.as_is && is_set && options.store.is_some() {
        (options.as_is, options.by, options.by_text) = (false, None, true);
    }
    if options.as_is {
        if options.descends && !is_set {
            elements.reverse();
        }
    } else {
        elements = ordered(context, &options, elements)?;
    }
    let range = range(elements.len(), options.limit);
    let told = &elements[range];
    match options.store {
        Some(key) => store(context, key, &options.gets, told, out),
        None => tell(context, &options.gets, told, out),
    }
}

fn ordered(
    context: &mut Context<'_>,
    options: &Options<'_>,
    elements: Vec<Text>,
) -> Result<Vec<Text>, Failure> {
    let (db, most) = (context.db(), context.world.settings.reply_len_max());
    let mut weights = Vec::with_capacity(elements.len());
    match (options.by, options.by_text) {
        (None, true) => weights.extend(elements.iter().map(|_| Weight::Own)),
        (None, false) => {
            for element in &elements {
                weights.push(Weight::Number(number(element)?));
            }
        }
        (Some(pattern), by_text) => {
            let mut bytes = 0;
            look_up_all(context.store, db, &[pattern], &elements, |text| {
                weights.push(if by_text {
                    bytes += text.as_ref().map_or(0, |text| text.len() + ELEMENT);
                    if bytes > most {
                        return Err(Failure::said(format!(
                            "ERR there is no room for the texts to sort by: they may have {most} bytes together"
                        )));
                    }
                    Weight::Text(text)
                } else {
                    Weight::Number(text.map_or(Ok(0.0), |text| number(&text))?)
                });
                Ok(())
            })?;
        }
    }
    let mut pairs: Vec<(Weight, Text)> = weights.into_iter().zip(elements).collect();
    pairs.sort_by(|(one, a), (other, b)| {
        let order = match (one, other) {
            (Weight::Number(one), Weight::Number(other)) => {
                one.partial_cmp(other).unwrap_or(Ordering::Equal).then_with(|| a.cmp(b))
            }
            (Weight::Text(one), Weight::Text(other)) => one.cmp(other),
            _ => a.cmp(b),
        };
        if options.descends { order.reverse() } else { order }
    });
    Ok(pairs.into_iter().map(|(_, element)| element).collect())
}

fn tell(context: &mut Context<'_>, gets: &[&[u8]], told: &[Text], out: &mut Writer<'_>) -> CommandResult {
    if gets.is_empty() {
        out.array(told.len());
        told.iter().for_each(|element| out.bulk(element));
        return Ok(());
    }
    out.array(told.len() * gets.len());
    let db = context.db();
    look_up_all(context.store, db, gets, told, |text| {
        match text {
            Some(text) => out.bulk(&text),
            None => out.null(),
        }
        Ok(())
    })
}

/// Stores the reply as a list in place of the key's value. An empty reply removes the key.
fn store(
    context: &mut Context<'_>,
    key: &[u8],
    gets: &[&[u8]],
    told: &[Text],
    out: &mut Writer<'_>,
) -> CommandResult {
    let (db, most) = (context.db(), context.store.memory.local);
    let mut list: VecDeque<Text> = VecDeque::new();
    if gets.is_empty() {
        list.extend(told.iter().cloned());
    } else {
        let mut bytes = 0;
        look_up_all(context.store, db, gets, told, |text| {
            let text = text.unwrap_or_default();
            bytes += text.len() + ELEMENT;
            list.push_back(text);
            // The list exceeds the bound of a collection already.
            if bytes > most / 4 {
                Err(Failure::text("OOM the list would take more than a quarter of --local"))
            } else {
                Ok(())
            }
        })?;
    }
    let len = list.len();
    if len > 0 {
        context.store.check_makes(key, list.iter().map(|element| element.len() + ELEMENT).sum())?;
    }
    context.store.remove(db, key);
    if len > 0 {
        context.store.change(db, key, Kind::List, true, |value| match value {
            Value::List(into) => {
                *into = list;
                ((), true)
            }
            _ => unreachable!("the kind was asked for"),
        })?;
    }
    out.integer(count(len));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pattern names a key, or a field of a hash; without `*` it names nothing, and an arrow without a field is
    /// part of the key.
    #[test]
    fn patterns_name_keys() {
        let name = |pattern: &'static str| {
            named(pattern.as_bytes(), b"7").map(|(key, field)| (String::from_utf8(key).unwrap(), field))
        };
        assert_eq!(name("weight_*"), Some(("weight_7".into(), None)));
        assert_eq!(name("*_*"), Some(("7_*".into(), None)));
        assert_eq!(name("h_*_x->f->g"), Some(("h_7_x".into(), Some(&b"f->g"[..]))));
        assert_eq!(name("h_*->"), Some(("h_7->".into(), None)));
        assert_eq!(name("a->*"), Some(("a->7".into(), None)));
        assert_eq!(name("nothing"), None);
    }

    #[test]
    fn a_limit_is_cut_to_what_there_is() {
        for (limit, expected) in [
            ((0, -1), 0..5),
            ((2, 2), 2..4),
            ((4, 10), 4..5),
            ((9, 1), 5..5),
            ((-3, 2), 0..2),
            ((1, 0), 1..1),
            ((i64::MAX, i64::MAX), 5..5),
            ((1, -7), 1..5),
        ] {
            assert_eq!(range(5, limit), expected, "{limit:?}");
        }
        assert_eq!(range(0, (0, -1)), 0..0);
    }
}
