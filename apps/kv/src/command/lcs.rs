//! `LCS`: the longest common subsequence of two strings.

use super::{Args, CommandResult, Context, count, integer, is};
use crate::failure::Failure;
use farmem_protocols::resp::Writer;

/// The cells of the table at most. A cell has four bytes, and the table is outside of all bounds on buffers.
const PLACES_MAX: usize = 4 << 20;

/// The options of `LCS`.
#[derive(Default)]
struct Options {
    len: bool,
    ranges: bool,
    least: usize,
    with_len: bool,
}

/// A common stretch: its end in both strings, and its length.
struct Match {
    a_end: usize,
    b_end: usize,
    len: usize,
}

fn options(args: Args<'_>) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut rest = args;
    while let Some((word, more)) = rest.split_first() {
        rest = more;
        match () {
            () if is(word, "LEN") => options.len = true,
            () if is(word, "IDX") => options.ranges = true,
            () if is(word, "WITHMATCHLEN") => options.with_len = true,
            () if is(word, "MINMATCHLEN") && !more.is_empty() => {
                options.least = usize::try_from(integer(more[0])?).unwrap_or(0);
                rest = &more[1..];
            }
            () => return Err(Failure::SYNTAX),
        }
    }
    if options.len && options.ranges {
        return Err(Failure::text("ERR If you want both the length and indexes, please just use IDX."));
    }
    Ok(options)
}

fn read(context: &mut Context<'_>, key: &[u8]) -> Result<Vec<u8>, Failure> {
    let db = context.db();
    match context.store.string(db, key) {
        Ok(value) => Ok(value.map_or_else(Vec::new, <[u8]>::to_vec)),
        Err(Failure::WrongType) => Err(Failure::text("ERR The specified keys must contain string values")),
        Err(failure) => Err(failure),
    }
}

pub(super) fn lcs(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let (a, b) = (read(context, args[1])?, read(context, args[2])?);
    let options = options(&args[3..])?;
    let most = PLACES_MAX.min(context.store.memory.local / 64);
    if (a.len() + 1).checked_mul(b.len() + 1).is_none_or(|places| places > most) {
        return Err(Failure::said(format!(
            "ERR Insufficient memory, transient memory for LCS exceeds {} bytes: the product of both lengths is too large",
            4 * most
        )));
    }
    let (common, matches) = common(&a, &b);
    if options.len {
        out.integer(count(common.len()));
    } else if !options.ranges {
        out.bulk(&common);
    } else {
        let told: Vec<&Match> = matches.iter().filter(|found| found.len >= options.least).collect();
        out.map(2);
        out.bulk(b"matches");
        out.array(told.len());
        for found in told {
            out.array(if options.with_len { 3 } else { 2 });
            for end in [found.a_end, found.b_end] {
                out.array(2);
                out.integer(count(end + 1 - found.len));
                out.integer(count(end));
            }
            if options.with_len {
                out.integer(count(found.len));
            }
        }
        out.bulk(b"len");
        out.integer(count(common.len()));
    }
    Ok(())
}

/// Returns the subsequence and its stretches from the last to the first. Of several longest ones Redis's choice counts.
fn common(a: &[u8], b: &[u8]) -> (Vec<u8>, Vec<Match>) {
    let width = b.len() + 1;
    let mut table = vec![0_u32; (a.len() + 1) * width];
    for (row, one) in a.iter().enumerate() {
        for (column, other) in b.iter().enumerate() {
            let at = (row + 1) * width + column + 1;
            table[at] =
                if one == other { table[at - width - 1] + 1 } else { table[at - width].max(table[at - 1]) };
        }
    }
    let (mut row, mut column) = (a.len(), b.len());
    let (mut found, mut matches): (Vec<u8>, Vec<Match>) = (Vec::new(), Vec::new());
    let mut goes_on = false;
    while row > 0 && column > 0 {
        if a[row - 1] == b[column - 1] {
            found.push(a[row - 1]);
            match matches.last_mut().filter(|_| goes_on) {
                Some(last) => last.len += 1,
                None => matches.push(Match { a_end: row - 1, b_end: column - 1, len: 1 }),
            }
            (row, column, goes_on) = (row - 1, column - 1, true);
        } else {
            let (up, left) = (table[(row - 1) * width + column], table[row * width + column - 1]);
            if up > left {
                row -= 1;
            } else {
                column -= 1;
            }
            goes_on = false;
        }
    }
    found.reverse();
    (found, matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_common_subsequence_is_found() {
        let (text, matches) = common(b"ohmytext", b"mynewtext");
        assert_eq!(text, b"mytext");
        let ranges: Vec<_> = matches.iter().map(|found| (found.a_end, found.b_end, found.len)).collect();
        assert_eq!(ranges, [(7, 8, 4), (3, 1, 2)]);
        assert_eq!(common(b"", b"x").0, b"");
    }
}
