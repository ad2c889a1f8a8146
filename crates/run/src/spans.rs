//! The use of a process's addresses. Pure.
//!
//! Key type: [`Spans`]. Neighbours of one kind are one span, so a heap that grows piece by piece stays one
//! entry.

use std::collections::BTreeMap;
use std::ops::Range;

/// The use of a range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Far memory with these access rights. A fork's child inherits its bytes, or gets the addresses without
    /// access. With `reserved`, room in far memory is committed for every writable page.
    Far { protection: u64, inherited: bool, reserved: bool },
    /// Something else that the program mapped there; the pager does not manage it.
    Elsewhere,
    /// An old range whose bytes have moved, and which the process is about to unmap. A thread that accesses it
    /// waits until then, and gets SIGSEGV.
    Moved,
}

impl Kind {
    /// Returns true when room in far memory is committed for each page.
    pub(super) const fn is_promised(self) -> bool {
        match self {
            Self::Far { protection, reserved, .. } => reserved && protection & WRITE != 0,
            Self::Elsewhere | Self::Moved => false,
        }
    }

    /// Returns the kind that a fork's child gets for memory that it does not inherit; `None` for inherited
    /// memory.
    pub(super) const fn instead(self) -> Option<Self> {
        match self {
            Self::Far { inherited: false, reserved, .. } => {
                Some(Self::Far { protection: 0, inherited: false, reserved })
            }
            _ => None,
        }
    }

    /// Returns far memory with these rights, or another kind unchanged.
    pub(super) const fn with_protection(self, protection: u64) -> Self {
        match self {
            Self::Far { inherited, reserved, .. } => Self::Far { protection, inherited, reserved },
            other => other,
        }
    }

    /// Returns far memory with this inheritance, or another kind unchanged.
    pub(super) const fn with_inherited(self, inherited: bool) -> Self {
        match self {
            Self::Far { protection, reserved, .. } => Self::Far { protection, inherited, reserved },
            other => other,
        }
    }

    /// Returns the access rights, as in `mprotect`.
    pub(super) const fn protection(self) -> Option<u64> {
        match self {
            Self::Far { protection, .. } => Some(protection),
            Self::Moved => Some(0),
            Self::Elsewhere => None,
        }
    }
}

/// The `PROT_WRITE` bit of access rights.
const WRITE: u64 = 2;

/// The pages in use. A page in no span is free.
#[derive(Clone, Debug)]
pub(super) struct Spans {
    whole: Range<u64>,
    /// The page where searches for free pages start. Pages before it are for programs that choose addresses.
    begin: u64,
    /// Spans by their first page: the page behind the span, and its kind.
    spans: BTreeMap<u64, (u64, Kind)>,
    /// The first free page from `begin` on, or the page behind the last one. Searches start here, past any
    /// number of spans.
    free_from: u64,
    /// Number of committed pages.
    promised: u64,
}

impl Spans {
    /// Creates an empty set for the pages of `whole`; searches for free pages start at `begin`.
    pub(super) const fn new(whole: Range<u64>, begin: u64) -> Self {
        Self { whole, begin, spans: BTreeMap::new(), free_from: begin, promised: 0 }
    }

    /// Returns the first page of a run of `count` free pages.
    pub(super) fn gap(&self, count: u64) -> Option<u64> {
        self.aligned_gap(count, |page| page)
    }

    /// Returns the first page of an aligned run of `count` free pages. `align` returns the first allowed page
    /// at or after its argument.
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

    /// Returns true when the pages are all in far memory and free.
    pub(super) fn is_free(&self, pages: Range<u64>) -> bool {
        self.whole.start <= pages.start && pages.end <= self.whole.end && self.within(pages).next().is_none()
    }

    /// Returns the number of pages with committed room in far memory.
    pub(super) const fn promised(&self) -> u64 {
        self.promised
    }

    /// Sets the use of the pages; `None` frees them.
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

    /// Returns the span that contains a page.
    pub(super) fn at(&self, page: u64) -> Option<(Range<u64>, Kind)> {
        let (&start, &(end, kind)) = self.spans.range(..=page).next_back()?;
        (page < end).then_some((start..end, kind))
    }

    /// Returns the spans within `pages`, cut to that range.
    pub(super) fn within(&self, pages: Range<u64>) -> impl Iterator<Item = (Range<u64>, Kind)> {
        let first = self.at(pages.start).map_or(pages.start, |(span, _)| span.start);
        self.spans
            .range(first..pages.end)
            .map(move |(&start, &(end, kind))| (start.max(pages.start)..end.min(pages.end), kind))
    }

    /// Returns all spans.
    pub(super) fn all(&self) -> impl Iterator<Item = (Range<u64>, Kind)> {
        self.spans.iter().map(|(&start, &(end, kind))| (start..end, kind))
    }

    /// Splits a span that contains `page` in its middle at `page`.
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
        /// Every result equals that of a plain list of pages; neighbours of one kind are one span.
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
