//! Reports on programs that fetch the same pages again and again, with the limit that would prevent it.

use crate::args::Run;
use crate::output;
use farmem_run::PagerStats;

/// Returns the value of `--local` that would have prevented thrashing, in whole MiB. The value covers private
/// and shared memory together.
pub(super) fn local_wanted(args: &Run, stats: &PagerStats) -> Option<u64> {
    let private = stats.local_wanted?;
    let both = match (&args.share, args.share_local) {
        (None, _) => private,
        (Some(_), Some(shared)) => private + shared,
        (Some(_), None) => 2 * private,
    };
    Some(both.next_multiple_of(1 << 20))
}

/// The time of a report on thrashing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tense {
    /// While the program runs.
    Present,
    /// At its end.
    Past,
}

/// Prints one line about thrashing, with the limit that would prevent it. No line if it does not thrash, or if no
/// limit near the present one would help.
pub(super) fn report(args: &Run, stats: &PagerStats, tense: Tense) {
    let Some(wanted) = local_wanted(args, stats) else { return };
    let again = output::count(stats.refaults);
    let (verb, kept) = match tense {
        Tense::Present => ("thrashes", "keep"),
        Tense::Past => ("thrashed", "have kept"),
    };
    output::note(&format!(
        "farmem: the program {verb}: {again} pages were fetched again soon after they had gone. `--local {}MiB` would {kept} about three of four of them",
        wanted >> 20
    ));
}
