//! The placement of the variants without a DPU, and their local memory.

use super::local_items::LocalItems;
use super::store::Index;
use super::{Bench, DEPTH, SharedState, Variant, VariantCosts};
use farmem::Error;

/// The CPU of the application's thread in a variant without a DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placement {
    /// Its own CPU. The roles share the other one.
    Apart,
    /// The CPU of the roles.
    Together,
}

impl Placement {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Apart => "ran on its own CPU",
            Self::Together => "ran on the CPU of the roles",
        }
    }
}

/// The local memory of the variants without a DPU.
pub(super) struct Baselines {
    /// All items.
    pub(super) all: LocalItems,
    /// A hundredth of the items, of each variant that has sets.
    pub(super) caches: [LocalItems; 4],
    /// The latest items.
    pub(super) latest: LocalItems,
    pub(super) index: Index,
    /// Positions that Leap read ahead.
    pub(super) read_ahead: u64,
}

impl SharedState {
    /// Moves this thread to the CPU of a placement.
    pub(super) fn place(&self, placement: Placement) {
        match placement {
            Placement::Apart => self.to_own_cpu(),
            Placement::Together => self.to_other_cpu(),
        }
    }
}

impl Bench {
    /// Answers all requests by one variant.
    pub(super) fn baseline(
        &mut self,
        baselines: &mut Baselines,
        variant: Variant,
        requests: &[u8],
    ) -> Result<VariantCosts, Error> {
        let Baselines { all, caches: [sync, leap, batched, pipelined], latest, index, read_ahead } =
            baselines;
        match variant {
            Variant::Local => Ok(self.local(all, requests, None)),
            Variant::Sync => self.sync(sync, None, requests),
            Variant::Lru => self.sync(latest, Some(index), requests),
            Variant::Leap => self.leap(leap, requests, read_ahead),
            Variant::Batched => self.read_together(batched, requests, 1),
            Variant::Async => self.read_together(pipelined, requests, DEPTH),
        }
    }

    /// Returns the placement in which a variant answers these requests faster, once its local memory is filled.
    pub(super) fn faster_placement(
        &mut self,
        baselines: &mut Baselines,
        variant: Variant,
        requests: &[u8],
    ) -> Result<Placement, Error> {
        self.ground.place(Placement::Apart);
        self.baseline(baselines, variant, requests)?;
        let apart = self.baseline(baselines, variant, requests)?;
        self.ground.place(Placement::Together);
        let together = self.baseline(baselines, variant, requests)?;
        let faster = if together.wall < apart.wall { Placement::Together } else { Placement::Apart };
        Ok(faster)
    }
}
