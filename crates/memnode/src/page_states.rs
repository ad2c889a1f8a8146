//! What a memory node knows of pages that hosts cache: which write-backs are late, and which bytes here are not the latest.
//!
//! Key type: [`PageStates`], asked by all that reads or writes the node's pages: page requests, traversals and one-sided verbs alike. It
//! keeps two numbers of a page. Its *min_seq* is the smallest grant whose write-back still counts; *lent* is the largest number
//! under which it was handed out to be written. The page is lent, its bytes here perhaps old, while lent is not below min_seq.
//!
//! Bytes that are *lost* are neither read nor written before their owner accepts that: those of a page whose latest ones died with a host, and
//! those that were here in an earlier incarnation of the node, which no page knows of and the control plane tells as whole ranges.
//!
//! Rules: PROTOCOL 12.26 to 12.31, 7.42 to 7.44.

#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use core::ops::Range;
use farmem_transport::AccessError;
use farmem_wire::message::{Access, HostSet, Page, PageState, Read, Region, Seq};
use farmem_wire::{HostId, Perm};
use rangemap::RangeSet;

/// What a page may be read for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// The bytes here are the latest.
    Latest,
    /// A host may have later ones: it must write them back first.
    Lent,
    /// The latest bytes died with a host, or with an earlier incarnation of the node.
    Lost,
}

/// What a host that is handed a page gets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Handed {
    /// Its bytes.
    Bytes,
    /// The word that they are lost.
    Loss,
    /// Nothing yet: the write-back that went before has not come.
    Nothing,
}

/// What is known of one page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageRecord {
    min_seq: Seq,
    lent: Seq,
    holder: HostId,
    lost: bool,
    /// It was handed out since it was last cleared.
    coherent: bool,
}

impl Default for PageRecord {
    /// A page that was never handed out. No grant has the number 0, so it is not lent.
    fn default() -> Self {
        Self { min_seq: Seq(1), lent: Seq(0), holder: HostId(0), lost: false, coherent: false }
    }
}

impl PageRecord {
    /// Write-backs of smaller grants are late.
    #[must_use]
    pub const fn min_seq(&self) -> Seq {
        self.min_seq
    }

    /// The largest number under which it was handed out to be written, and to whom, when a host may have later bytes.
    #[must_use]
    pub fn lent(&self) -> Option<(Seq, HostId)> {
        (self.lent >= self.min_seq).then_some((self.lent, self.holder))
    }

    /// What the page may be read for.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (self.lost, self.lent()) {
            (true, _) => Verdict::Lost,
            (_, Some(_)) => Verdict::Lent,
            _ => Verdict::Latest,
        }
    }

    fn raise_min_seq(&mut self, seq: Seq) {
        self.min_seq = self.min_seq.max(seq);
    }
}

/// The records of a node's pages. Those that no host ever had take no room; there are never more than the node has pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PageStates {
    records: BTreeMap<Page, PageRecord>,
    /// Numbers of pages that were lost with an earlier incarnation of the node. A vma of many GiB is one range, not a record for each page.
    lost: RangeSet<u64>,
}

/// The numbers of the pages from the first to the last.
const fn numbers(first: Page, last: Page) -> Range<u64> {
    first.number()..last.number() + 1
}

impl PageStates {
    /// What is known of the page.
    #[must_use]
    pub fn record(&self, page: Page) -> PageRecord {
        self.records.get(&page).copied().unwrap_or_default()
    }

    /// All that a host ever had, by number.
    pub fn iter(&self) -> impl Iterator<Item = (Page, &PageRecord)> {
        self.records.iter().map(|(&page, record)| (page, record))
    }

    /// The switch has the page sent to a host (PROTOCOL 12.26). It is lent before the bytes leave.
    #[must_use]
    pub fn read(&mut self, read: &Read) -> Handed {
        let record = self.records.entry(read.page).or_default();
        if read.behind && record.lent().is_some() {
            return Handed::Nothing;
        }
        record.coherent = true;
        if read.clean {
            record.raise_min_seq(read.seq);
        }
        if record.lost || self.lost.contains(&read.page.number()) {
            return Handed::Loss;
        }
        if read.access == Access::Modified && read.seq > record.lent {
            (record.lent, record.holder) = (read.seq, read.host);
        }
        Handed::Bytes
    }

    /// A host writes the page back (PROTOCOL 12.27). True when the bytes count; it is acknowledged either way.
    ///
    /// What its domain may do by now is not asked: it was handed the page to be written, and what it wrote while it might is not lost.
    #[must_use]
    pub fn write_back(&mut self, page: Page, host: HostId, grant: Seq) -> bool {
        let Some(record) = self.records.get_mut(&page) else { return false };
        // No host was handed a larger number than lent; a host that claims one must not void the write-backs of others.
        let counts = grant >= record.min_seq && grant <= record.lent && host == record.holder;
        if counts {
            // Only a write-back of the latest grant takes the mark away: min_seq is above lent then, and not before.
            record.min_seq = grant.next();
        }
        counts
    }

    /// The switch says that no host has, or will write back, the page from before `seq` (PROTOCOL 12.29).
    pub fn clean(&mut self, page: Page, seq: Seq) {
        self.records.entry(page).or_default().raise_min_seq(seq);
    }

    /// What the page may be read for by accesses past the caches (PROTOCOL 12.28).
    #[must_use]
    pub fn verdict(&self, page: Page) -> Verdict {
        if self.lost.contains(&page.number()) {
            return Verdict::Lost;
        }
        self.records.get(&page).map_or(Verdict::Latest, PageRecord::verdict)
    }

    /// Whether bytes from the first of these pages to the last may be used by accesses past the caches (PROTOCOL 7.43, 12.28, 12.46).
    ///
    /// # Errors
    /// [`AccessError::Lost`], whatever else is so of these pages; then [`AccessError::Coherent`] for a write to what hosts were handed out, and
    /// [`AccessError::Lent`] for a read of it.
    pub fn check(&self, first: Page, last: Page, perm: Perm) -> Result<(), AccessError> {
        // Most nodes never lent a page, and started once.
        if self.records.is_empty() && self.lost.is_empty() {
            return Ok(());
        }
        let records = self.records.range(first..=last);
        if self.lost.overlaps(&numbers(first, last)) || records.clone().any(|(_, record)| record.lost) {
            return Err(AccessError::Lost);
        }
        for (&page, record) in records {
            if perm == Perm::ReadWrite && record.coherent {
                return Err(AccessError::Coherent);
            }
            if perm != Perm::ReadWrite && record.verdict() == Verdict::Lent {
                return Err(AccessError::Lent(page));
            }
        }
        Ok(())
    }

    /// The pages around this one of which [`PageStates::check`] says the same: it alone when it was ever handed out or is lost, else as far as
    /// none was and none is.
    #[must_use]
    pub fn alike(&self, page: Page) -> (Page, Page) {
        let before = self.records.range(..=page).next_back().map(|(&before, _)| before);
        if before == Some(page) || self.lost.contains(&page.number()) {
            return (page, page);
        }
        let after = self.records.range(page..).next().map(|(&after, _)| after);
        let (first, last) =
            (before.map_or(Page::FIRST, Page::next), after.map_or(Page::LAST, Page::previous));
        if self.lost.is_empty() {
            return (first, last);
        }
        let before = self.lost.overlapping(numbers(first, page)).next_back().map(|lost| lost.end);
        let after = self.lost.overlapping(numbers(page, last)).next().map(|lost| lost.start);
        (before.map_or(first, Page::numbered), after.map_or(last, |after| Page::numbered(after).previous()))
    }

    /// What was written to these pages was lost with an earlier incarnation of the node (PROTOCOL 7.42).
    pub fn lose(&mut self, first: Page, last: Page) {
        self.lost.insert(numbers(first, last));
    }

    /// True when each page from the first to the last was lost with an earlier incarnation of the node, and not cleared or accepted since.
    #[must_use]
    pub fn is_lost(&self, first: Page, last: Page) -> bool {
        self.lost.gaps(&numbers(first, last)).next().is_none()
    }

    /// True when the bytes here are the latest ones of each page from the first to the last.
    #[must_use]
    pub fn is_latest(&self, first: Page, last: Page) -> bool {
        self.check(first, last, Perm::Read).is_ok()
    }

    /// The pages that were lost with an earlier incarnation of the node: the first and the last of each range, ascending.
    pub fn lost(&self) -> impl Iterator<Item = (Page, Page)> {
        self.lost.iter().map(|lost| (Page::numbered(lost.start), Page::numbered(lost.end - 1)))
    }

    /// No live host has anything of the region from before `seq`: what a fenced one still had is lost, and what it sent comes too late
    /// (PROTOCOL 12.30). Answers how many pages were lost.
    pub fn sweep(&mut self, region: Region, seq: Seq, fenced: HostSet) -> usize {
        self.sweep_pages(region.base(), region.last(), seq, fenced)
    }

    /// The same of all pages from the first to the last. A page that was handed out since `seq` is not meant: the sweep is late.
    pub fn sweep_pages(&mut self, first: Page, last: Page, seq: Seq, fenced: HostSet) -> usize {
        let mut lost = 0;
        for (_, record) in self.records.range_mut(first..=last) {
            let died = |(lent, holder): (Seq, HostId)| lent < seq && fenced.contains(holder);
            if record.lent().is_some_and(died) && !record.lost {
                record.lost = true;
                lost += 1;
            }
            record.raise_min_seq(seq);
        }
        lost
    }

    /// These pages begin a new life: what hosts had of them before counts no more (PROTOCOL 12.44).
    pub fn renew(&mut self, first: Page, last: Page) {
        for (_, record) in self.records.range_mut(first..=last) {
            record.raise_min_seq(record.lent.next());
            record.lost = false;
            record.coherent = false;
        }
        self.lost.remove(numbers(first, last));
    }

    /// All that is known of the page, for the node that it moves to.
    #[must_use]
    pub fn state(&self, page: Page) -> PageState {
        let PageRecord { min_seq, lent, holder, lost, coherent } = self.record(page);
        // The node that it moves to has not lost it, and is told page by page.
        let lost = lost || self.lost.contains(&page.number());
        PageState { min_seq, lent, holder, lost, coherent }
    }

    /// The page moved here, with what was known of it.
    pub fn put(&mut self, page: Page, state: PageState) {
        let PageState { min_seq, lent, holder, lost, coherent } = state;
        let record = PageRecord { min_seq, lent, holder, lost, coherent };
        if record == PageRecord::default() {
            self.records.remove(&page);
        } else {
            self.records.insert(page, record);
        }
    }

    /// The pages from the first to the last are not here any more.
    pub fn forget(&mut self, first: Page, last: Page) {
        self.records.retain(|&page, _| page < first || page > last);
        self.lost.remove(numbers(first, last));
    }

    /// The owner takes the bytes of lost pages, from the first to the last, as they are here, for good (PROTOCOL 7.44, 12.31).
    pub fn accept_loss(&mut self, first: Page, last: Page) {
        self.records.range_mut(first..=last).for_each(|(_, record)| record.lost = false);
        self.lost.remove(numbers(first, last));
    }
}
