//! Which pages of an address space are mapped, and how.

use super::Prot;
use crate::allocate::PAGE;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Disjoint areas of whole pages, by first byte; neighbours of one protection are one area.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Pages(BTreeMap<u64, (u64, Prot)>);

impl Pages {
    /// Maps `base..end` with this protection, or unmaps it, whatever was there.
    pub(super) fn set(&mut self, base: u64, end: u64, prot: Option<Prot>) {
        self.cut_at(base);
        self.cut_at(end);
        let inside: Vec<u64> = self.0.range(base..end).map(|(&at, _)| at).collect();
        for at in inside {
            self.0.remove(&at);
        }
        if let Some(prot) = prot.filter(|_| base < end) {
            self.0.insert(base, (end, prot));
        }
        self.join_at(end);
        self.join_at(base);
    }

    /// What is mapped in `base..end`: first byte, end, protection; ascending.
    pub(super) fn parts(&self, base: u64, end: u64) -> impl Iterator<Item = (u64, u64, Prot)> + '_ {
        let before = self.0.range(..=base).next_back().map(|(&at, _)| at);
        let cut = move |(&at, &(to, prot)): (&u64, &(u64, Prot))| (at.max(base), to.min(end), prot);
        self.0.range(before.unwrap_or(base)..end.max(base)).map(cut).filter(|(from, to, _)| from < to)
    }

    /// The first address from `base` on that is not mapped, at most `end`.
    pub(super) fn mapped_until(&self, base: u64, end: u64) -> u64 {
        self.parts(base, end).fold(base, |at, (from, to, _)| if from == at { to } else { at })
    }

    /// Areas.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_sound(&self) -> bool {
        let mut last: Option<(u64, Prot)> = None;
        self.0.iter().all(|(&base, &(end, prot))| {
            let apart = last.is_none_or(|(to, of)| to < base || (to == base && of != prot));
            last = Some((end, prot));
            apart && base < end && base.is_multiple_of(PAGE) && end.is_multiple_of(PAGE)
        })
    }

    /// No area has `at` in its midst.
    fn cut_at(&mut self, at: u64) {
        if let Some((_, (end, prot))) = self.0.range_mut(..at).next_back()
            && *end > at
        {
            let (rest, prot) = (core::mem::replace(end, at), *prot);
            self.0.insert(at, (rest, prot));
        }
    }

    /// The areas that touch at `at` are one, when they are alike.
    fn join_at(&mut self, at: u64) {
        let Some(&(end, prot)) = self.0.get(&at) else { return };
        if let Some((_, (to, of))) = self.0.range_mut(..at).next_back()
            && *to == at
            && *of == prot
        {
            *to = end;
            self.0.remove(&at);
        }
    }
}
