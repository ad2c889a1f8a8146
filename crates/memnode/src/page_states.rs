//! The state of pages that hosts cache: which write-backs are void, and which bytes here are not the latest.
//!
//! Key type: [`PageStates`]. Page requests, traversals and one-sided verbs check it before they read or write
//! pages. A page has two numbers. Its *min_seq* is the smallest grant whose write-back still counts. Its
//! *lent* number is the largest grant for writing. While *lent* is not below *min_seq*, the page is lent, and
//! its bytes here may be old.
//!
//! *Lost* bytes are neither read nor written before their owner accepts the loss. Two kinds of bytes are
//! lost: pages whose latest bytes were lost with a host, and bytes of an earlier incarnation of the node. The
//! control plane reports the second kind as whole ranges.
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

/// The result of a check whether a page may be read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// The bytes here are the latest.
    Latest,
    /// A host may have later bytes, and must write them back first.
    Lent,
    /// The latest bytes were lost with a host, or with an earlier incarnation of the node.
    Lost,
}

/// The answer to a host that is granted a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GrantReply {
    /// The page's bytes.
    Bytes,
    /// The notice that the bytes are lost.
    Loss,
    /// No answer yet: an earlier write-back has not arrived.
    Nothing,
}

/// The state of one page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageRecord {
    min_seq: Seq,
    lent: Seq,
    holder: HostId,
    lost: bool,
    /// True if the page was handed out since it was last cleared.
    coherent: bool,
}

impl Default for PageRecord {
    /// Returns the record of a page that was never handed out. No grant has the number 0, so the page is not
    /// lent.
    fn default() -> Self {
        Self { min_seq: Seq(1), lent: Seq(0), holder: HostId(0), lost: false, coherent: false }
    }
}

impl PageRecord {
    /// Returns the minimum valid grant number: write-backs of smaller grants are void.
    #[must_use]
    pub const fn min_seq(&self) -> Seq {
        self.min_seq
    }

    /// Returns the largest number under which the page was granted for writing, with its host, if the host
    /// may have later bytes.
    #[must_use]
    pub fn lent(&self) -> Option<(Seq, HostId)> {
        (self.lent >= self.min_seq).then_some((self.lent, self.holder))
    }

    /// Returns whether the page may be read.
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

/// The records of a node's pages. A page that no host ever had has no record, so there are never more records
/// than pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PageStates {
    records: BTreeMap<Page, PageRecord>,
    /// Numbers of pages that were lost with an earlier incarnation of the node. A vma of many GiB is one
    /// range.
    lost: RangeSet<u64>,
}

/// Returns the numbers of the pages from the first to the last.
const fn numbers(first: Page, last: Page) -> Range<u64> {
    first.number()..last.number() + 1
}

impl PageStates {
    /// Returns the record of the page.
    #[must_use]
    pub fn record(&self, page: Page) -> PageRecord {
        self.records.get(&page).copied().unwrap_or_default()
    }

    /// Returns the records of all pages that a host ever had, by number.
    pub fn iter(&self) -> impl Iterator<Item = (Page, &PageRecord)> {
        self.records.iter().map(|(&page, record)| (page, record))
    }

    /// Grants a page to a host, as the switch requests (PROTOCOL 12.26). The page is lent before its bytes
    /// leave.
    #[must_use]
    pub fn read(&mut self, read: &Read) -> GrantReply {
        let record = self.records.entry(read.page).or_default();
        if read.behind && record.lent().is_some() {
            return GrantReply::Nothing;
        }
        record.coherent = true;
        if read.clean {
            record.raise_min_seq(read.seq);
        }
        if record.lost || self.lost.contains(&read.page.number()) {
            return GrantReply::Loss;
        }
        if read.access == Access::Modified && read.seq > record.lent {
            (record.lent, record.holder) = (read.seq, read.host);
        }
        GrantReply::Bytes
    }

    /// Decides whether a write-back counts (PROTOCOL 12.27). Each write-back is acknowledged either way.
    ///
    /// The present rights of the host's domain do not matter: the page was granted for writing, and writes
    /// made under that grant must not be lost.
    #[must_use]
    pub fn write_back(&mut self, page: Page, host: HostId, grant: Seq) -> bool {
        let Some(record) = self.records.get_mut(&page) else { return false };
        // No host got a larger number than `lent`. A host that claims one must not void the write-backs of
        // others.
        let counts = grant >= record.min_seq && grant <= record.lent && host == record.holder;
        if counts {
            // Only a write-back of the latest grant ends the loan: only then is min_seq above `lent`.
            record.min_seq = grant.next();
        }
        counts
    }

    /// Records the switch's notice that no host has, or will write back, the page from before `seq` (PROTOCOL
    /// 12.29).
    pub fn clean(&mut self, page: Page, seq: Seq) {
        self.records.entry(page).or_default().raise_min_seq(seq);
    }

    /// Returns whether accesses past the caches may read the page (PROTOCOL 12.28).
    #[must_use]
    pub fn verdict(&self, page: Page) -> Verdict {
        if self.lost.contains(&page.number()) {
            return Verdict::Lost;
        }
        self.records.get(&page).map_or(Verdict::Latest, PageRecord::verdict)
    }

    /// Checks whether accesses past the caches may use the pages from `first` to `last` (PROTOCOL 7.43,
    /// 12.28, 12.46).
    ///
    /// # Errors
    /// [`AccessError::Lost`] takes precedence; then [`AccessError::Coherent`] for a write to granted pages,
    /// and [`AccessError::Lent`] for a read.
    pub fn check(&self, first: Page, last: Page, perm: Perm) -> Result<(), AccessError> {
        // Most nodes never lent a page and started once.
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

    /// Returns the run of pages around `page` for which [`PageStates::check`] has the same result. A page
    /// that was handed out or is lost is a run of its own.
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

    /// Marks pages as lost with an earlier incarnation of the node (PROTOCOL 7.42).
    pub fn lose(&mut self, first: Page, last: Page) {
        self.lost.insert(numbers(first, last));
    }

    /// Returns true if each page from the first to the last was lost with an earlier incarnation, and not
    /// cleared or accepted since.
    #[must_use]
    pub fn is_lost(&self, first: Page, last: Page) -> bool {
        self.lost.gaps(&numbers(first, last)).next().is_none()
    }

    /// Returns true if the bytes here are the latest ones of each page from the first to the last.
    #[must_use]
    pub fn is_latest(&self, first: Page, last: Page) -> bool {
        self.check(first, last, Perm::Read).is_ok()
    }

    /// Returns the pages that were lost with an earlier incarnation of the node: the first and the last of
    /// each range, ascending.
    pub fn lost(&self) -> impl Iterator<Item = (Page, Page)> {
        self.lost.iter().map(|lost| (Page::numbered(lost.start), Page::numbered(lost.end - 1)))
    }

    /// Sweeps a region: pages that a fenced host still had become lost, and earlier write-backs become void
    /// (PROTOCOL 12.30). Returns the number of lost pages.
    pub fn sweep(&mut self, region: Region, seq: Seq, fenced: HostSet) -> usize {
        self.sweep_pages(region.base(), region.last(), seq, fenced)
    }

    /// Sweeps the pages from the first to the last. Skips a page that was granted since `seq`: for it, the
    /// sweep is late.
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

    /// Starts a new life of these pages: earlier grants become void (PROTOCOL 12.44).
    pub fn renew(&mut self, first: Page, last: Page) {
        for (_, record) in self.records.range_mut(first..=last) {
            record.raise_min_seq(record.lent.next());
            record.lost = false;
            record.coherent = false;
        }
        self.lost.remove(numbers(first, last));
    }

    /// Returns the state of the page, for the node that it moves to.
    #[must_use]
    pub fn state(&self, page: Page) -> PageState {
        let PageRecord { min_seq, lent, holder, lost, coherent } = self.record(page);
        // The other node did not lose the page itself, and learns the state page by page.
        let lost = lost || self.lost.contains(&page.number());
        PageState { min_seq, lent, holder, lost, coherent }
    }

    /// Stores a page that moved here, with its state.
    pub fn put(&mut self, page: Page, state: PageState) {
        let PageState { min_seq, lent, holder, lost, coherent } = state;
        let record = PageRecord { min_seq, lent, holder, lost, coherent };
        if record == PageRecord::default() {
            self.records.remove(&page);
        } else {
            self.records.insert(page, record);
        }
    }

    /// Forgets the pages from the first to the last, which are not here any more.
    pub fn forget(&mut self, first: Page, last: Page) {
        self.records.retain(|&page, _| page < first || page > last);
        self.lost.remove(numbers(first, last));
    }

    /// Accepts the bytes of lost pages as they are here, for good (PROTOCOL 7.44, 12.31).
    pub fn accept_loss(&mut self, first: Page, last: Page) {
        self.records.range_mut(first..=last).for_each(|(_, record)| record.lost = false);
        self.lost.remove(numbers(first, last));
    }
}
