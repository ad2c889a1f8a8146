//! Which addresses of a process are in use, and for what. Pure.
//!
//! Key type: [`Spans`]. Neighbours of one kind are one span, so a heap that grows piece by piece stays one entry.

use std::collections::BTreeMap;
use std::ops::Range;

/// What addresses are used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Far memory, of which the program may do this; a fork's child has its bytes, or nothing there that may be touched. The program was
    /// promised that it may fill it, unless it asked for no promise.
    Far { protection: u64, inherited: bool, reserved: bool },
    /// Something else that the program mapped there: not ours any more.
    Elsewhere,
    /// Its bytes have moved, and the process is about to unmap it: a thread that touches it waits until then, for its SIGSEGV.
    Moved,
}

impl Kind {
    /// Whether each of its pages may come to need room in far memory, as the program was promised.
    pub(super) const fn is_promised(self) -> bool {
        match self {
            Self::Far { protection, reserved, .. } => reserved && protection & WRITE != 0,
            Self::Elsewhere | Self::Moved => false,
        }
    }

    /// What a fork's child has in the place of memory that it does not have from its parent; `None` where it has that.
    pub(super) const fn instead(self) -> Option<Self> {
        match self {
            Self::Far { inherited: false, reserved, .. } => {
                Some(Self::Far { protection: 0, inherited: false, reserved })
            }
            _ => None,
        }
    }

    /// Far memory with these rights; anything else as it is.
    pub(super) const fn with_protection(self, protection: u64) -> Self {
        match self {
            Self::Far { inherited, reserved, .. } => Self::Far { protection, inherited, reserved },
            other => other,
        }
    }

    /// Far memory that children have, or do not have; anything else as it is.
    pub(super) const fn with_inherited(self, inherited: bool) -> Self {
        match self {
            Self::Far { protection, reserved, .. } => Self::Far { protection, inherited, reserved },
            other => other,
        }
    }

    /// What the program may do there, as `mprotect` has it.
    pub(super) const fn protection(self) -> Option<u64> {
        match self {
            Self::Far { protection, .. } => Some(protection),
            Self::Moved => Some(0),
            Self::Elsewhere => None,
        }
    }
}

/// PROT_WRITE
const WRITE: u64 = 2;

/// Pages in use. Those that are in no span are free.
#[derive(Clone, Debug)]
pub(super) struct Spans {
    whole: Range<u64>,
    /// The page from which free pages are looked for first. Those before it are for programs that choose their addresses.
    begin: u64,
    /// By their first page: the page behind them, and what they are.
    spans: BTreeMap<u64, (u64, Kind)>,
    /// The first free page from `begin` on, or the page behind the last: where a search begins, however many spans follow each other.
    free_from: u64,
    /// Pages that are promised.
    promised: u64,
}

impl Spans {
    /// None of `whole` in use; free pages are looked for from `begin` on first.
    pub(super) const fn new(whole: Range<u64>, begin: u64) -> Self {
        Self { whole, begin, spans: BTreeMap::new(), free_from: begin, promised: 0 }
    }

    /// The first of `count` free pages that lie together.
    pub(super) fn gap(&self, count: u64) -> Option<u64> {
        self.aligned_gap(count, |page| page)
    }

    /// The first of `count` free pages that lie together and begin where they may: `align` answers the first such page that is not before
    /// the one that it is given.
    pub(super) fn aligned_gap(&self, count: u64, align: impl Fn(u64) -> u64) -> Option<u64> {
        let search = |from| self.aligned_gap_from(from, count, &align);
        search(self.free_from).or_else(|| search(self.whole.start))
    }

    fn aligned_gap_from(&self, from: u64, count: u64, align: impl Fn(u64) -> u64) -> Option<u64> {
        let mut at = align(from);
        for (&start, &(end, _)) in self.spans.range(from..) {
            if start >= at && start - at >= count {
                return Some(at);
            }
            at = at.max(align(end));
        }
        (self.whole.end.checked_sub(at)? >= count).then_some(at)
    }

    /// Whether all of the pages are ours and free.
    pub(super) fn is_free(&self, pages: Range<u64>) -> bool {
        self.whole.start <= pages.start && pages.end <= self.whole.end && self.within(pages).next().is_none()
    }

    /// Pages that may come to need room in far memory, as was promised.
    pub(super) const fn promised(&self) -> u64 {
        self.promised
    }

    /// What the pages are used for from now on: `None` for nothing.
    pub(super) fn set(&mut self, pages: Range<u64>, kind: Option<Kind>) {
        assert!(pages.start < pages.end && self.whole.start <= pages.start && pages.end <= self.whole.end);
        let before = self.within(pages.clone()).filter(|(_, kind)| kind.is_promised());
        let before: u64 = before.map(|(span, _)| span.end - span.start).sum();
        let after = if kind.is_some_and(Kind::is_promised) { pages.end - pages.start } else { 0 };
        self.promised = self.promised - before + after;
        self.cut(pages.start);
        self.cut(pages.end);
        while let Some((&start, _)) = self.spans.range(pages.clone()).next() {
            self.spans.remove(&start);
        }
        let Some(kind) = kind else {
            if pages.end > self.begin {
                self.free_from = self.free_from.min(pages.start.max(self.begin));
            }
            return;
        };
        let Range { mut start, mut end } = pages;
        if let Some((&before, &(behind, of))) = self.spans.range(..start).next_back()
            && behind == start
            && of == kind
        {
            start = before;
        }
        if let Some(&(behind, of)) = self.spans.get(&end)
            && of == kind
        {
            self.spans.remove(&end);
            end = behind;
        }
        self.spans.insert(start, (end, kind));
        while let Some((span, _)) = self.at(self.free_from) {
            self.free_from = span.end;
        }
    }

    /// The span that a page is in.
    pub(super) fn at(&self, page: u64) -> Option<(Range<u64>, Kind)> {
        let (&start, &(end, kind)) = self.spans.range(..=page).next_back()?;
        (page < end).then_some((start..end, kind))
    }

    /// What of `pages` is in use, cut to it.
    pub(super) fn within(&self, pages: Range<u64>) -> impl Iterator<Item = (Range<u64>, Kind)> {
        let first = self.at(pages.start).map_or(pages.start, |(span, _)| span.start);
        self.spans
            .range(first..pages.end)
            .map(move |(&start, &(end, kind))| (start.max(pages.start)..end.min(pages.end), kind))
    }

    /// All of it.
    pub(super) fn all(&self) -> impl Iterator<Item = (Range<u64>, Kind)> {
        self.spans.iter().map(|(&start, &(end, kind))| (start..end, kind))
    }

    /// Lets a span end at `page`, if one reaches over it.
    fn cut(&mut self, page: u64) {
        if let Some((&start, &(end, kind))) = self.spans.range(..page).next_back()
            && page < end
        {
            self.spans.insert(start, (page, kind));
            self.spans.insert(page, (end, kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: u64 = 24;

    fn n(page: u64) -> usize {
        usize::try_from(page).unwrap()
    }

    fn kind(n: u64) -> Option<Kind> {
        match n {
            0 => None,
            1 => Some(Kind::Elsewhere),
            protection => Some(Kind::Far { protection, inherited: true, reserved: true }),
        }
    }

    proptest! {
        /// Every answer is that of a plain list of pages; neighbours of one kind are one span.
        #[test]
        fn as_a_list_of_pages(
            sets in proptest::collection::vec((0..PAGES, 1..PAGES, 0_u64..4), 0..40),
            want in 1..PAGES,
            begin in 0..PAGES,
        ) {
            let mut spans = Spans::new(0..PAGES, begin);
            let mut plain = vec![None; n(PAGES)];
            for (start, count, what) in sets {
                let end = (start + count).min(PAGES);
                spans.set(start..end, kind(what));
                plain[n(start)..n(end)].fill(kind(what));
            }
            for page in 0..PAGES {
                prop_assert_eq!(spans.at(page).map(|(_, kind)| kind), plain[n(page)]);
            }
            let runs = plain.chunk_by(|a, b| a == b).filter(|run| run[0].is_some()).count();
            prop_assert_eq!(spans.all().count(), runs);
            let free = |start: u64| plain[n(start)..n(start + want)].iter().all(Option::is_none);
            let first = |step: u64| {
                let mut all = (0..=PAGES - want).filter(|&start| start % step == 0 && free(start));
                let behind = all.clone().find(|&start| start >= begin);
                behind.or_else(|| all.next())
            };
            prop_assert_eq!(spans.gap(want), first(1));
            let fourth = spans.aligned_gap(want, |page| page.next_multiple_of(4));
            prop_assert_eq!(fourth, first(4));
            for start in 0..=PAGES - want {
                prop_assert_eq!(spans.is_free(start..start + want), free(start));
            }
            prop_assert!(!spans.is_free(PAGES - want..PAGES + 1));
            let promised = plain.iter().filter(|kind| kind.is_some_and(Kind::is_promised)).count();
            prop_assert_eq!(spans.promised(), promised as u64);
            let some = want / 2..want;
            let used: u64 = spans.within(some.clone()).map(|(span, _)| span.end - span.start).sum();
            let plain_used = plain[n(some.start)..n(some.end)].iter().flatten().count();
            prop_assert_eq!(used, plain_used as u64);
        }
    }
}
