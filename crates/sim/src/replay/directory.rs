//! The directory: its slots, and the sizes of the regions in them.

use super::{Outcome, Regions, Workload};
use farmem_control::reset::{self, Order as ResetOrder, Reset};
use farmem_control::splitting::{self, Admission, Order, Splitting};
use farmem_machine::Duration;
use farmem_switch::directory::{self, Action, Event, Phase, Slots};
use farmem_wire::VirtAddr;
use farmem_wire::message::{HostSet, PAGE_LEN, Page, Region, Seq};
use std::collections::BTreeMap;

#[derive(Debug)]
pub(super) struct Directory {
    slots: Slots,
    sizes: Sizes,
    /// Regions being reset because their slots are needed.
    resets: BTreeMap<Page, Reset>,
    live: HostSet,
}

#[derive(Debug)]
enum Sizes {
    Bounded(Splitting),
    Fixed(u8),
}

impl Directory {
    pub(super) fn new(regions: Regions, workload: &Workload, live: HostSet) -> Self {
        let (slots, sizes) = match regions {
            Regions::Bounded { slots, initial, .. } => {
                (slots, Sizes::Bounded(Splitting::new(slots, fitting(initial, slots, workload))))
            }
            Regions::Fixed { order } => (workload.pages(), Sizes::Fixed(order)),
        };
        Self { slots: Slots::new(slots, Seq(0)), sizes, resets: BTreeMap::new(), live }
    }

    pub(super) fn used(&self) -> usize {
        self.slots.used()
    }

    /// Ensures that the page has an entry. Returns false while there is none: the request must be repeated.
    /// `out` receives the actions of a reset.
    pub(super) fn admit(&mut self, page: Page, outcome: &mut Outcome, out: &mut Vec<Action>) -> bool {
        if self.slots.lookup(page).is_some() {
            return true;
        }
        let admission = match &mut self.sizes {
            Sizes::Fixed(order) => {
                let added = self.slots.add(Region::around(page, *order));
                assert!(added.is_ok(), "every page could have a slot");
                return true;
            }
            // One reset at a time: the next would choose the same region.
            Sizes::Bounded(_) if !self.resets.is_empty() => return false,
            Sizes::Bounded(splitting) => splitting.admit(page.addr().0),
        };
        match admission {
            Admission::New(region) => {
                let added = self.slots.add(wire(region));
                assert!(added.is_ok(), "the control plane knows which slots are free");
                true
            }
            Admission::Evict(region) => {
                outcome.resets += 1;
                self.reset(wire(region), reset::Event::Begin, out);
                false
            }
            Admission::Known(region) => unreachable!("{region:?} has an entry, then"),
        }
    }

    /// Runs one step of the page's entry. Returns the entry's previous phase, or `None` if the event was
    /// stale.
    pub(super) fn step(&mut self, page: Page, event: Event, out: &mut Vec<Action>) -> Option<Phase> {
        let (region, entry) = self.slots.lookup(page)?;
        match entry.step(region, event, out) {
            directory::Outcome::Stepped(phase, _) => Some(phase),
            _ => None,
        }
    }

    /// Runs one step of a reset. Returns the sweep that it orders.
    pub(super) fn reset(
        &mut self,
        region: Region,
        event: reset::Event,
        out: &mut Vec<Action>,
    ) -> Option<(Region, Seq)> {
        let reset = self.resets.entry(region.base()).or_insert_with(|| Reset::new(region, 1));
        match reset.step(event, HostSet::EMPTY)? {
            ResetOrder::Reset(region) => {
                self.step(region.base(), Event::Reset(self.live), out);
            }
            ResetOrder::Repeat(region) => {
                self.step(region.base(), Event::Repeat, out);
            }
            ResetOrder::Sweep(region, seq, _) => return Some((region, seq)),
            ResetOrder::End(region, seq) => {
                self.step(region.base(), Event::Swept(seq), out);
                self.resets.remove(&region.base());
                self.slots.remove(region).expect("a region that was reset is free");
                if let Sizes::Bounded(splitting) = &mut self.sizes {
                    assert!(splitting.forget(control(region)), "the control plane knows the region");
                }
            }
        }
        None
    }

    /// Ends an epoch: regions are split and merged.
    pub(super) fn epoch(&mut self, now: Duration, outcome: &mut Outcome) {
        outcome.slots.push((now, self.slots.used()));
        let Self { slots, sizes: Sizes::Bounded(splitting), .. } = self else { return };
        let regions: Vec<splitting::Region> = splitting.regions().collect();
        let counts = regions.iter().filter_map(|region| {
            let (_, entry) = slots.lookup(wire(*region).base())?;
            Some((region.base, u64::from(entry.take_false_invalidations())))
        });
        let counts: Vec<(u64, u64)> = counts.collect();
        // A recording's addresses are one vma.
        for order in splitting.epoch(counts, |_| true) {
            let done = match order {
                Order::Split(region) => slots.split(wire(region)).is_ok(),
                Order::Merge(region) => slots.merge(wire(region)).is_ok(),
            };
            if done {
                assert!(splitting.carried_out(order), "the control plane knows the regions");
                match order {
                    Order::Split(_) => outcome.splits += 1,
                    Order::Merge(_) => outcome.merges += 1,
                }
            }
        }
    }
}

/// Returns the initial region length at which all allocated memory has an entry.
fn fitting(initial: u64, slots: usize, workload: &Workload) -> u64 {
    let mut size = initial;
    let fits = |size: u64| {
        let order = u8::try_from((size / PAGE_LEN as u64).ilog2()).expect("a small number");
        workload.regions(order) <= slots * splitting::SLOT_USE_MAX / 100
    };
    while size < splitting::REGION_MAX && !fits(size) {
        size *= 2;
    }
    size
}

fn wire(region: splitting::Region) -> Region {
    let order = (region.size / PAGE_LEN as u64).ilog2();
    let order = u8::try_from(order).expect("a small number");
    Region::new(Page::of(VirtAddr(region.base)), order).expect("regions are the same here and there")
}

fn control(region: Region) -> splitting::Region {
    splitting::Region { base: region.base().addr().0, size: region.len() * PAGE_LEN as u64 }
}
