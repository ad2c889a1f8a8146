//! Recalls: the host gives pages up, and acknowledges once the memory node has the written bytes (PROTOCOL
//! 12.20, 12.21).
//!
//! ```text
//!   owner                switch                 node
//!     |  <--- recall s ----|                      |
//!   write-protect, unmap |                      |
//!     |---- write-back g, ack s ----------------->|  the bytes are there, and only now
//!     |                    |<------ ack s --------|  the switch learns that the owner is done
//!     |  <--- ack g ------------------------------|
//! ```
//!
//! If an acknowledgement overtook a write-back, the next host would fetch old bytes.

use super::{Action, Agent, Cached, Outcome, Writing, give_up_shared};
use alloc::vec::Vec;
use farmem_wire::message::{Access, Page, Recall, RecallAck, Region, Seq, WriteBack, WriteBackAck};

/// The terms of a recall: pages handed out before `seq` are given up; with `keep` they stay Shared; a host
/// requested only `wanted`.
struct Terms {
    seq: Seq,
    keep: bool,
    wanted: Option<Page>,
}

impl Agent {
    /// Gives up the region's pages that were handed out before `recall.seq`. Each page's local state decides
    /// what to do, never the switch's view of it.
    pub(super) fn recall(&mut self, recall: &Recall, out: &mut Vec<Action>) -> Outcome {
        let &Recall { region, seq, keep, wanted } = recall;
        let known = self.pending_acks.iter().any(|pending_acks| pending_acks.region == region);
        if !known && self.pending_acks.len() == self.bounds.pending_acks {
            return Outcome::Full;
        }
        let (from, to) = (region.base(), region.last());
        self.raise_min_seqs(from, to, seq);
        let first = out.len();
        let wanted = wanted.map(|index| region.page(index));
        let false_invalidations = self.give_up(from, to, &Terms { seq, keep, wanted }, out);
        let ack = RecallAck { region, seq, false_invalidations };
        if !self.is_writing_in(&ack) {
            out.push(Action::RecallAck(ack));
            return Outcome::Done;
        }
        self.defer_ack(ack);
        self.write_frozen(first, out);
        Outcome::Done
    }

    /// Gives up everything handed out before `seq`. Every open or later request needs a newer answer
    /// (PROTOCOL 12.36).
    pub(super) fn flush(&mut self, seq: Seq, out: &mut Vec<Action>) -> Outcome {
        self.min_seq = self.min_seq.max(seq);
        self.raise_min_seqs(Page::FIRST, Page::LAST, seq);
        self.give_up_all(seq, out)
    }

    /// Gives up all pages because other hosts may write from here on; parts in flight must not be installed.
    /// Waiting threads fault again under new ids. Written pages go back for as long as the node accepts them
    /// (PROTOCOL 12.35).
    pub(super) fn lease_ended(&mut self, out: &mut Vec<Action>) -> Outcome {
        let requests = core::mem::take(&mut self.requests);
        self.frames -= requests.keys().filter(|page| !self.cached.contains_key(page)).count();
        let outcome = self.give_up_all(Seq(u64::MAX), out);
        out.extend(requests.keys().map(|&page| Action::Wake(page)));
        outcome
    }

    /// Returns true while a page handed out before `seq` is cached or in write-back.
    #[must_use]
    pub fn holds_before(&self, seq: Seq) -> bool {
        let writing = self.writing.values().any(|writing| writing.grant < seq);
        writing || self.cached.values().any(|cached| cached.grant < seq)
    }

    fn give_up_all(&mut self, seq: Seq, out: &mut Vec<Action>) -> Outcome {
        let first = out.len();
        self.give_up(Page::FIRST, Page::LAST, &Terms { seq, keep: false, wanted: None }, out);
        self.write_frozen(first, out);
        Outcome::Done
    }

    /// Begins the write-backs of the pages that the actions from `first` on write-protect.
    fn write_frozen(&self, first: usize, out: &mut Vec<Action>) {
        for index in first..out.len() {
            if let Action::WriteProtect(page) = out[index] {
                let grant = self.writing[&page].grant;
                out.push(self.write_back(page, grant));
            }
        }
    }

    /// Voids every message that was sent to requests for these pages before `seq`.
    fn raise_min_seqs(&mut self, from: Page, to: Page, seq: Seq) {
        for (_, request) in self.requests.range_mut(from..=to) {
            request.min_seq = request.min_seq.max(seq);
            request.partial = request.partial.filter(|partial| partial.seq >= seq);
            request.granted = request.granted.filter(|&granted| granted >= seq);
        }
    }

    /// Unmaps the pages, or takes their write access. Returns the number of false invalidations: pages that
    /// no host requested.
    fn give_up(&mut self, from: Page, to: Page, terms: &Terms, out: &mut Vec<Action>) -> u16 {
        let &Terms { seq, keep, wanted } = terms;
        let Self { cached, requests, writing, frames, .. } = self;
        let mut false_invalidations: u16 = 0;
        let mut give_up = |page: Page, cached: &mut Cached| {
            let shared = cached.access == Access::Shared;
            if cached.grant >= seq || shared && keep {
                return false;
            }
            if wanted.is_some_and(|wanted| wanted != page) {
                false_invalidations = false_invalidations.saturating_add(1);
            }
            if shared {
                let freed = give_up_shared(writing, page, out);
                // A thread that waits to write the page keeps its frame.
                *frames -= if requests.contains_key(&page) { 0 } else { freed };
                return true;
            }
            writing.insert(page, Writing { grant: cached.grant, next_access: None });
            out.push(Action::WriteProtect(page));
            if !keep {
                out.push(Action::Unmap(page));
            }
            cached.access = Access::Shared;
            !keep
        };
        cached.extract_if(from..=to, |&page, cached| give_up(page, cached)).for_each(drop);
        false_invalidations
    }

    /// Records an acknowledgement to send. A later recall of a region replaces an earlier one.
    fn defer_ack(&mut self, ack: RecallAck) {
        match self.pending_acks.iter_mut().find(|pending_acks| pending_acks.region == ack.region) {
            Some(pending_acks) => {
                pending_acks.seq = pending_acks.seq.max(ack.seq);
                pending_acks.false_invalidations =
                    pending_acks.false_invalidations.saturating_add(ack.false_invalidations);
            }
            None => self.pending_acks.push(ack),
        }
    }

    /// Handles the end of a write-back: sends the acknowledgements that waited for it, unless the node has
    /// sent them.
    pub(super) fn send_pending_acks(&mut self, ended: &WriteBackAck, out: &mut Vec<Action>) {
        if let Some(ack) = ended.ack {
            self.pending_acks
                .retain(|pending_acks| (pending_acks.region, pending_acks.seq) != (ack.region, ack.seq));
        }
        let writing = &self.writing;
        self.pending_acks.retain(|pending_acks| {
            let waits = is_writing_in(writing, pending_acks.region);
            if !waits {
                out.push(Action::RecallAck(*pending_acks));
            }
            waits
        });
    }

    /// Returns a page's write-back, with the acknowledgement that is due if the region has no other
    /// write-back in flight.
    pub(super) fn write_back(&self, page: Page, grant: Seq) -> Action {
        let alone = |pending_acks: &&RecallAck| {
            let mut writing = self.writing.range(pending_acks.region.base()..=pending_acks.region.last());
            writing.next().is_some_and(|(&first, _)| first == page) && writing.next().is_none()
        };
        let ack = self.pending_acks.iter().filter(alone).max_by_key(|pending_acks| pending_acks.seq).copied();
        Action::WriteBack(WriteBack { page, grant, ack })
    }

    pub(super) fn is_writing_in(&self, pending_acks: &RecallAck) -> bool {
        is_writing_in(&self.writing, pending_acks.region)
    }
}

fn is_writing_in(writing: &alloc::collections::BTreeMap<Page, Writing>, region: Region) -> bool {
    writing.range(region.base()..=region.last()).next().is_some()
}
