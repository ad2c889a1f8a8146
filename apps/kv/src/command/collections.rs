//! Code that hashes, sets and sorted sets share: scans and random elements.

use super::keys::{cursor, scan_options, scanned};
use super::{Args, CommandResult, Context, integer};
use crate::failure::Failure;
use crate::glob::glob;
use farmem::Rng;
use farmem_protocols::resp::Writer;
use std::collections::BTreeSet;

/// How sets are combined into one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Union,
    Intersection,
    Difference,
}

/// Refuses a result of this many bytes that is computed from several collections, because the whole result is in
/// local memory beside them.
pub(super) fn check_result(context: &Context<'_>, bytes: usize) -> CommandResult {
    const SHARE: usize = 4;
    let most = context.store.memory.local / SHARE;
    if bytes <= most {
        return Ok(());
    }
    Err(Failure::said(format!(
        "OOM the result would take more than {most} bytes of local memory, a {SHARE}th of --local; ask for fewer keys at once, or start with a larger --local"
    )))
}

/// Executes `HSCAN`, `SSCAN` and `ZSCAN`. The scan goes from the last element to the first, and the cursor is the
/// number of remaining elements. Removing an element moves the last one into its place. The moved element was
/// returned already, or its new place is still to come, so the scan returns every element that stays.
pub(super) fn scan_of<'a>(
    args: Args<'_>,
    out: &mut Writer<'_>,
    len: usize,
    element: impl Fn(usize) -> (&'a [u8], Vec<Vec<u8>>),
) -> CommandResult {
    let from = cursor(args[2])?;
    let options = scan_options(&args[3..], false)?;
    let top = if from == 0 { len } else { usize::try_from(from).unwrap_or(usize::MAX).min(len) };
    let bottom = top.saturating_sub(options.count);
    let mut found = Vec::new();
    for at in (bottom..top).rev() {
        let (name, texts) = element(at);
        if options.pattern.is_none_or(|pattern| glob(pattern, name)) {
            found.extend(texts);
        }
    }
    scanned(bottom as u64, &found, out);
    Ok(())
}

/// Parses the count of `SRANDMEMBER`, `HRANDFIELD` and `ZRANDMEMBER`, with Redis's bounds.
pub(super) fn random_count(arg: Option<&&[u8]>, in_pairs: bool) -> Result<Option<i64>, Failure> {
    let Some(wanted) = arg.map(|arg| integer(arg)).transpose()? else { return Ok(None) };
    if wanted == i64::MIN {
        return Err(Failure::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    if in_pairs && wanted.unsigned_abs() > i64::MAX.unsigned_abs() / 2 {
        return Err(Failure::text("ERR value is out of range"));
    }
    Ok(Some(wanted))
}

/// Returns random numbers below `len`: at most `wanted` different ones, or exactly `-wanted` ones with repetitions if
/// it is negative.
pub(super) fn random_indexes(rng: &mut Rng, len: usize, wanted: i64) -> Result<Vec<usize>, Failure> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let any = |rng: &mut Rng| usize::try_from(rng.next_u64() % len as u64).expect("below a length");
    let size = usize::try_from(wanted.unsigned_abs()).unwrap_or(usize::MAX);
    if wanted < 0 {
        const REPEATED_MAX: usize = 1 << 20;
        if size > REPEATED_MAX {
            return Err(Failure::text(
                "ERR value is out of range, at most 1048576 elements come in one reply",
            ));
        }
        return Ok((0..size).map(|_| any(rng)).collect());
    }
    if size >= len {
        return Ok((0..len).collect());
    }
    if size * 3 > len {
        // More than a third is wanted: shuffle all.
        let mut all: Vec<usize> = (0..len).collect();
        for at in 0..size {
            let other = at + any(rng) % (len - at);
            all.swap(at, other);
        }
        all.truncate(size);
        return Ok(all);
    }
    let mut chosen = BTreeSet::new();
    while chosen.len() < size {
        chosen.insert(any(rng));
    }
    Ok(chosen.into_iter().collect())
}
