//! What a memory node knows of pages that hosts cache: which write-backs are late, and which bytes here are not the latest.
//!
//! Key type: [`PageGate`], asked by all that reads or writes the node's pages: page requests, traversals and one-sided verbs alike. It
//! keeps two numbers of a page. Its *floor* is the smallest grant whose write-back still counts; *lent* is the largest number
//! under which it was handed out to be written. The page is lent, its bytes here perhaps old, while lent is not below the floor.
//!
//! Bytes that are *lost* are neither read nor written before somebody accepts that: those of a page whose latest ones died with a host, and
//! those that were here in an earlier incarnation of the node, which no page knows of and the control plane tells as whole ranges.
//!
//! Rules: PROTOCOL 12.26 to 12.31, 7.42 to 7.44.

#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use core::ops::Range;
use farmem_transport::Refusal;
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
pub struct Gate {
    floor: Seq,
    lent: Seq,
    holder: HostId,
    lost: bool,
    /// It was handed out since it was last cleared.
    coherent: bool,
}

impl Default for Gate {
    /// A page that was never handed out. No grant has the number 0, so it is not lent.
    fn default() -> Self {
        Self { floor: Seq(1), lent: Seq(0), holder: HostId(0), lost: false, coherent: false }
    }
}

impl Gate {
    /// Write-backs of smaller grants are late.
    #[must_use]
    pub const fn floor(&self) -> Seq {
        self.floor
    }

    /// The largest number under which it was handed out to be written, and to whom, when a host may have later bytes.
    #[must_use]
    pub fn lent(&self) -> Option<(Seq, HostId)> {
        (self.lent >= self.floor).then_some((self.lent, self.holder))
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

    fn raise_floor(&mut self, seq: Seq) {
        self.floor = self.floor.max(seq);
    }
}

/// The gates of a node's pages. Those that no host ever had take no room; there are never more than the node has pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PageGate {
    gates: BTreeMap<Page, Gate>,
    /// Numbers of pages that were lost with an earlier incarnation of the node. A vma of many GiB is one range, not a gate for each page.
    lost: RangeSet<u64>,
}

/// The numbers of the pages from the first to the last.
const fn numbers(first: Page, last: Page) -> Range<u64> {
    first.number()..last.number() + 1
}

impl PageGate {
    /// What is known of the page.
    #[must_use]
    pub fn gate(&self, page: Page) -> Gate {
        self.gates.get(&page).copied().unwrap_or_default()
    }

    /// All that a host ever had, by number.
    pub fn iter(&self) -> impl Iterator<Item = (Page, &Gate)> {
        self.gates.iter().map(|(&page, gate)| (page, gate))
    }

    /// The switch has the page sent to a host (PROTOCOL 12.26). It is lent before the bytes leave.
    #[must_use]
    pub fn read(&mut self, read: &Read) -> Handed {
        let gate = self.gates.entry(read.page).or_default();
        if read.behind && gate.lent().is_some() {
            return Handed::Nothing;
        }
        gate.coherent = true;
        if read.clean {
            gate.raise_floor(read.seq);
        }
        if gate.lost || self.lost.contains(&read.page.number()) {
            return Handed::Loss;
        }
        if read.access == Access::Modified && read.seq > gate.lent {
            (gate.lent, gate.holder) = (read.seq, read.host);
        }
        Handed::Bytes
    }

    /// A host writes the page back (PROTOCOL 12.27). True when the bytes count; it is acknowledged either way.
    ///
    /// What its domain may do by now is not asked: it was handed the page to be written, and what it wrote while it might is not lost.
    #[must_use]
    pub fn write_back(&mut self, page: Page, host: HostId, grant: Seq) -> bool {
        let Some(gate) = self.gates.get_mut(&page) else { return false };
        // Nobody was handed a larger number than lent; one who claims it shall not close the gate to all others.
        let counts = grant >= gate.floor && grant <= gate.lent && host == gate.holder;
        if counts {
            // Only a write-back of the latest grant takes the mark away: floor is above lent then, and not before.
            gate.floor = grant.next();
        }
        counts
    }

    /// The switch says that no host has, or will write back, the page from before `seq` (PROTOCOL 12.29).
    pub fn clean(&mut self, page: Page, seq: Seq) {
        self.gates.entry(page).or_default().raise_floor(seq);
    }

    /// What the page may be read for by those who do not cache it (PROTOCOL 12.28).
    #[must_use]
    pub fn verdict(&self, page: Page) -> Verdict {
        if self.lost.contains(&page.number()) {
            return Verdict::Lost;
        }
        self.gates.get(&page).map_or(Verdict::Latest, Gate::verdict)
    }

    /// Whether bytes from the first of these pages to the last may be used by those who do not cache them (PROTOCOL 7.43, 12.28, 12.46).
    ///
    /// # Errors
    /// [`Refusal::Lost`], whatever else is so of these pages; then [`Refusal::Coherent`] to who would write what hosts were handed out, and
    /// [`Refusal::Lent`] to who would read it.
    pub fn check(&self, first: Page, last: Page, perm: Perm) -> Result<(), Refusal> {
        // Most nodes never lent a page, and started once.
        if self.gates.is_empty() && self.lost.is_empty() {
            return Ok(());
        }
        let gates = self.gates.range(first..=last);
        if self.lost.overlaps(&numbers(first, last)) || gates.clone().any(|(_, gate)| gate.lost) {
            return Err(Refusal::Lost);
        }
        for (&page, gate) in gates {
            if perm == Perm::ReadWrite && gate.coherent {
                return Err(Refusal::Coherent);
            }
            if perm != Perm::ReadWrite && gate.verdict() == Verdict::Lent {
                return Err(Refusal::Lent(page));
            }
        }
        Ok(())
    }

    /// The pages around this one of which [`PageGate::check`] says the same: it alone when it was ever handed out or is lost, else as far as
    /// none was and none is.
    #[must_use]
    pub fn alike(&self, page: Page) -> (Page, Page) {
        let before = self.gates.range(..=page).next_back().map(|(&before, _)| before);
        if before == Some(page) || self.lost.contains(&page.number()) {
            return (page, page);
        }
        let after = self.gates.range(page..).next().map(|(&after, _)| after);
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
        for (_, gate) in self.gates.range_mut(first..=last) {
            let died = |(lent, holder): (Seq, HostId)| lent < seq && fenced.contains(holder);
            if gate.lent().is_some_and(died) && !gate.lost {
                gate.lost = true;
                lost += 1;
            }
            gate.raise_floor(seq);
        }
        lost
    }

    /// These pages begin a new life: what hosts had of them before is nobody's any more (PROTOCOL 12.44).
    pub fn renew(&mut self, first: Page, last: Page) {
        for (_, gate) in self.gates.range_mut(first..=last) {
            gate.raise_floor(gate.lent.next());
            gate.lost = false;
            gate.coherent = false;
        }
        self.lost.remove(numbers(first, last));
    }

    /// All that is known of the page, for the node that it moves to.
    #[must_use]
    pub fn state(&self, page: Page) -> PageState {
        let Gate { floor, lent, holder, lost, coherent } = self.gate(page);
        // The node that it moves to has not lost it, and is told page by page.
        let lost = lost || self.lost.contains(&page.number());
        PageState { floor, lent, holder, lost, coherent }
    }

    /// The page moved here, with what was known of it.
    pub fn put(&mut self, page: Page, state: PageState) {
        let PageState { floor, lent, holder, lost, coherent } = state;
        let gate = Gate { floor, lent, holder, lost, coherent };
        if gate == Gate::default() {
            self.gates.remove(&page);
        } else {
            self.gates.insert(page, gate);
        }
    }

    /// The pages from the first to the last are not here any more.
    pub fn forget(&mut self, first: Page, last: Page) {
        self.gates.retain(|&page, _| page < first || page > last);
        self.lost.remove(numbers(first, last));
    }

    /// Somebody takes the bytes of lost pages, from the first to the last, as they are here, for good (PROTOCOL 7.44, 12.31).
    pub fn accept_loss(&mut self, first: Page, last: Page) {
        self.gates.range_mut(first..=last).for_each(|(_, gate)| gate.lost = false);
        self.lost.remove(numbers(first, last));
    }
}
