//! Bounded splitting: sizes of the regions that the switch's directory tracks (MIND 4.3.1, 5).
//!
//! A directory entry covers a region, a power of two of pages. Large regions need few entries and invalidate
//! pages that no host asked for; small ones need many entries and do not. In each epoch the switch reports
//! how many pages were falsely invalidated in each region. [`Splitting::epoch`] orders the regions above the
//! threshold to be split and the quiet ones to be merged, so that the directory fits into its slots. The key
//! types are [`Splitting`], [`Region`] and [`Order`].
//!
//! An order may be refused: the directory refuses it while the region is in a transition, and nothing changes
//! here before [`Splitting::carried_out`] reports that it was done. A refused order comes again in the next
//! epoch if it still applies.

use crate::addresses::PAGE;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use farmem_machine::Duration;
use farmem_wire::message::{REGION_ORDER_FIRST, REGION_ORDER_MAX};

/// The smallest region: a page.
pub const REGION_MIN: u64 = PAGE;

/// The largest region in bytes, MIND's block of M pages.
pub const REGION_MAX: u64 = PAGE << REGION_ORDER_MAX;

/// Size in bytes of a region when it is first touched (MIND 5.2: a favourable trade-off for the paper's
/// programs).
pub const REGION_INITIAL: u64 = PAGE << REGION_ORDER_FIRST;

/// Length of an epoch (MIND 7.3: longer ones cost little, shorter ones see too few invalidations).
pub const EPOCH: Duration = Duration::from_millis(100);

/// Number of entries that the switch has room for (MIND 7.2).
pub const SLOTS: usize = 30_000;

/// Percentage of the slots that may be used after an epoch (MIND 5.2).
pub const SLOT_USE_MAX: usize = 95;

/// Number of epochs for which a region is not merged after a split: log2 M, the number of accesses for which
/// the paper takes it to be stable.
const HOLD_EPOCHS: u64 = (REGION_MAX / REGION_MIN).ilog2() as u64;

/// The denominator of `c`.
const C_ONE: u64 = 1 << 10;

/// Minimum of c: a block's share of false invalidations is then never above this many times the average.
const C_MIN: u64 = C_ONE / 64;

/// Maximum of c.
const C_MAX: u64 = C_ONE * 1024;

/// A region of the address space with an entry in the directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Region {
    /// First address, a multiple of the size.
    pub base: u64,
    /// Size in bytes, a power of two from [`REGION_MIN`] to [`REGION_MAX`].
    pub size: u64,
}

impl Region {
    /// Returns true if `addr` is in the region.
    #[must_use]
    pub const fn contains(&self, addr: u64) -> bool {
        addr & !(self.size - 1) == self.base
    }

    /// Returns the region of `size` bytes that `addr` is in.
    #[must_use]
    pub const fn around(addr: u64, size: u64) -> Self {
        Self { base: addr & !(size - 1), size }
    }

    /// Returns the two halves, or `None` for a page.
    #[must_use]
    pub const fn halves(&self) -> Option<(Self, Self)> {
        if self.size == REGION_MIN {
            return None;
        }
        let size = self.size / 2;
        Some((Self { base: self.base, size }, Self { base: self.base + size, size }))
    }

    /// Returns the region of twice the size around this one, or `None` if it would be too large.
    #[must_use]
    pub const fn parent(&self) -> Option<Self> {
        if self.size == REGION_MAX { None } else { Some(Self::around(self.base, self.size * 2)) }
    }

    const fn overlaps(&self, other: &Self) -> bool {
        // If two powers of two overlap, one contains the other.
        self.contains(other.base) || other.contains(self.base)
    }
}

/// A change that the directory is asked to make.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Order {
    /// Split this region into its two halves.
    Split(Region),
    /// Merge the two halves of this region.
    Merge(Region),
}

/// Need of an access to an address without an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// This region has an entry already.
    Known(Region),
    /// This region gets an entry in a free slot.
    New(Region),
    /// There is no free slot: this region, the one with the fewest false invalidations, has to be reset and
    /// [forgotten](Splitting::forget).
    Evict(Region),
}

/// State of a region.
#[derive(Clone, Copy, Debug)]
struct RegionState {
    size: u64,
    /// False invalidations in the last epoch.
    count: u64,
    /// The epoch from which on the region may be merged.
    held_until: u64,
}

/// t = total / share, as a fraction: the average of the false invalidations of all blocks, divided by c (MIND
/// 5.2, equation 1).
#[derive(Clone, Copy, Debug)]
struct Threshold {
    total: u128,
    share: u128,
}

impl Threshold {
    const fn is_exceeded_by(&self, count: u64) -> bool {
        count as u128 * self.share > self.total
    }
}

/// The sizes of all regions of the directory, and the threshold.
#[derive(Clone, Debug)]
pub struct Splitting {
    /// Regions by first address. They do not overlap.
    regions: BTreeMap<u64, RegionState>,
    slots: usize,
    initial: u64,
    /// c of equation 1, in parts of [`C_ONE`].
    c: u64,
    epoch: u64,
    /// The orders of the last epoch.
    ordered: Vec<Order>,
}

impl Splitting {
    /// Creates a directory of `slots` entries whose regions begin with `initial` bytes.
    ///
    /// # Panics
    ///
    /// If there is no slot, or `initial` is not a power of two from [`REGION_MIN`] to [`REGION_MAX`].
    #[must_use]
    pub fn new(slots: usize, initial: u64) -> Self {
        assert!(slots > 0, "a directory has slots");
        assert!(
            initial.is_power_of_two() && (REGION_MIN..=REGION_MAX).contains(&initial),
            "a region has {REGION_MIN} to {REGION_MAX} bytes, a power of two, not {initial}"
        );
        Self { regions: BTreeMap::new(), slots, initial, c: C_ONE, epoch: 0, ordered: Vec::new() }
    }

    /// Returns the region that `addr` is in, if it has an entry.
    #[must_use]
    pub fn region_of(&self, addr: u64) -> Option<Region> {
        let (&base, known) = self.regions.range(..=addr).next_back()?;
        Some(Region { base, size: known.size }).filter(|region| region.contains(addr))
    }

    /// Returns what an access to `addr` needs. All slots are used before a region is evicted: the limit of 95
    /// % applies at the end of an epoch.
    pub fn admit(&mut self, addr: u64) -> Admission {
        if let Some(region) = self.region_of(addr) {
            return Admission::Known(region);
        }
        if self.regions.len() == self.slots {
            return Admission::Evict(self.quietest().expect("all slots are used, so there is a region"));
        }
        let mut region = Region::around(addr, self.initial);
        while self.overlaps_any(region) {
            // A page without an entry overlaps no region, so this loop ends.
            region = Region::around(addr, region.size / 2);
        }
        self.put(region, 0, 0);
        Admission::New(region)
    }

    /// Frees the slot of `region`, whose entry was removed. Returns false if there was no entry.
    pub fn forget(&mut self, region: Region) -> bool {
        let known = self.regions.get(&region.base).is_some_and(|known| known.size == region.size);
        if known {
            self.regions.remove(&region.base);
        }
        known
    }

    /// Ends an epoch. `counts` gives the number of falsely invalidated pages by the base of their region.
    /// Regions that are not named had none, and a base that is no region's is ignored because the region was
    /// split or forgotten meanwhile.
    ///
    /// Splits come first, beginning with the most false invalidations. Regions are merged only into those for
    /// which `in_one_vma` is true: a user of one vma must not be able to hold up the users of the next
    /// (PROTOCOL 12.52).
    pub fn epoch(
        &mut self,
        counts: impl IntoIterator<Item = (u64, u64)>,
        in_one_vma: impl Fn(Region) -> bool,
    ) -> Vec<Order> {
        self.epoch += 1;
        self.regions.values_mut().for_each(|known| known.count = 0);
        for (base, count) in counts {
            if let Some(known) = self.regions.get_mut(&base) {
                known.count = known.count.saturating_add(count);
            }
        }
        let t = self.equation_1();
        let mut orders = self.splits(t);
        let wanted = orders.len();
        orders.truncate(self.goal().saturating_sub(self.regions.len()));
        let splits = orders.len();
        orders.extend(self.merges(t, self.regions.len() + splits, in_one_vma));
        self.adjust(self.regions.len() + wanted);
        self.ordered.clone_from(&orders);
        orders
    }

    /// Records that the directory did what was ordered. Returns false, and changes nothing, if the regions
    /// are not there.
    pub fn carried_out(&mut self, order: Order) -> bool {
        let (gone, come) = match order {
            Order::Split(region) => match region.halves() {
                Some((low, high)) => ([Some(region), None], [Some(low), Some(high)]),
                None => return false,
            },
            Order::Merge(region) => match region.halves() {
                Some((low, high)) => ([Some(low), Some(high)], [Some(region), None]),
                None => return false,
            },
        };
        let is_there =
            |region: &Region| self.regions.get(&region.base).is_some_and(|k| k.size == region.size);
        if !gone.iter().flatten().all(is_there) {
            return false;
        }
        let held_until = if matches!(order, Order::Split(_)) { self.epoch + HOLD_EPOCHS } else { 0 };
        gone.into_iter().flatten().for_each(|region| _ = self.forget(region));
        come.into_iter().flatten().for_each(|region| self.put(region, 0, held_until));
        true
    }

    /// Adopts the directory's present regions, ascending. An order that is visible in them counts as carried
    /// out, and all other regions came and went for other reasons. Returns how many splits and merges were
    /// carried out.
    pub fn sync(&mut self, listed: impl IntoIterator<Item = Region>) -> (u64, u64) {
        let listed: BTreeMap<u64, u64> =
            listed.into_iter().map(|region| (region.base, region.size)).collect();
        let is_there = |region: Region| listed.get(&region.base) == Some(&region.size);
        let (mut splits, mut merges) = (0, 0);
        for order in core::mem::take(&mut self.ordered) {
            let (so, counter) = match order {
                Order::Split(region) => {
                    let halves = region.halves();
                    (halves.is_some_and(|(low, high)| is_there(low) || is_there(high)), &mut splits)
                }
                Order::Merge(region) => (is_there(region), &mut merges),
            };
            *counter += u64::from(so && self.carried_out(order));
        }
        self.regions.retain(|&base, known| is_there(Region { base, size: known.size }));
        for (&base, &size) in &listed {
            if self.regions.len() < self.slots && !self.regions.contains_key(&base) {
                self.put(Region { base, size }, 0, 0);
            }
        }
        (splits, merges)
    }

    /// Takes out the region with the fewest false invalidations, to be reset. It is
    /// [forgotten](Splitting::forget) at once.
    pub fn take_quietest(&mut self) -> Option<Region> {
        let region = self.quietest()?;
        self.forget(region);
        Some(region)
    }

    /// Returns the number of entries in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.regions.len()
    }

    /// Iterates over all regions, ascending.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        self.regions.iter().map(|(&base, known)| Region { base, size: known.size })
    }

    /// Returns the threshold of equation 1 for the counts of the last epoch, rounded down.
    #[must_use]
    pub fn threshold(&self) -> u64 {
        let t = self.equation_1();
        u64::try_from(t.total / t.share).unwrap_or(u64::MAX)
    }

    /// Checks every invariant. Called after each simulated step.
    ///
    /// # Panics
    ///
    /// If one does not hold.
    pub fn check(&self) {
        assert!(self.regions.len() <= self.slots, "every region has a slot");
        let mut end = 0;
        for Region { base, size } in self.regions() {
            assert!(size.is_power_of_two() && (REGION_MIN..=REGION_MAX).contains(&size), "region sizes");
            assert!(base % size == 0 && base >= end, "regions are aligned and do not overlap");
            end = base + size;
        }
        assert!((C_MIN..=C_MAX).contains(&self.c), "c stays in its bounds");
    }

    fn put(&mut self, region: Region, count: u64, held_until: u64) {
        self.regions.insert(region.base, RegionState { size: region.size, count, held_until });
    }

    fn overlaps_any(&self, region: Region) -> bool {
        let before = self.regions.range(..=region.base).next_back();
        let after = self.regions.range(region.base..).next();
        before.into_iter().chain(after).any(|(&base, k)| region.overlaps(&Region { base, size: k.size }))
    }

    /// Returns how many entries may be in use after an epoch.
    fn goal(&self) -> usize {
        (self.slots * SLOT_USE_MAX / 100).max(1)
    }

    fn quietest(&self) -> Option<Region> {
        let of = |(&base, known): (&u64, &RegionState)| (known.count, Region { base, size: known.size });
        self.regions.iter().map(of).min().map(|(_, region)| region)
    }

    /// Returns the false invalidations of all regions.
    fn total(&self) -> u128 {
        self.regions.values().map(|known| u128::from(known.count)).sum()
    }

    /// Returns N of equation 1: blocks of [`REGION_MAX`] bytes that have a region.
    fn blocks(&self) -> u128 {
        let mut last = None;
        let mut blocks = 0;
        for base in self.regions.keys() {
            let block = Some(base / REGION_MAX);
            blocks += u128::from(block != last);
            last = block;
        }
        blocks
    }

    /// Computes equation 1 for the counts of this epoch.
    fn equation_1(&self) -> Threshold {
        Threshold {
            total: self.total() * u128::from(C_ONE),
            share: u128::from(self.c) * self.blocks().max(1),
        }
    }

    /// Returns the regions above the threshold, the highest counts first.
    fn splits(&self, t: Threshold) -> Vec<Order> {
        let mut wanted: Vec<(Reverse<u64>, Region)> = (self.regions.iter())
            .filter(|(_, known)| t.is_exceeded_by(known.count) && known.size > REGION_MIN)
            .map(|(&base, known)| (Reverse(known.count), Region { base, size: known.size }))
            .collect();
        wanted.sort_unstable();
        wanted.into_iter().map(|(_, region)| Order::Split(region)).collect()
    }

    /// Returns pairs that are quiet together: at most a quarter of the threshold, since the merged region
    /// will have more than the sum. If `used` entries are too many, pairs that are not quiet follow, the
    /// quietest first, as many as bring the number down to the goal.
    fn merges(&self, t: Threshold, used: usize, in_one_vma: impl Fn(Region) -> bool) -> Vec<Order> {
        let mut pairs: Vec<(u64, bool, Region)> = Vec::new();
        for (&base, known) in &self.regions {
            let region = Region { base, size: known.size };
            let Some(parent) = region.parent().filter(|parent| parent.base == base) else { continue };
            let Some(other) = self.regions.get(&(base + region.size)) else { continue };
            let splits = t.is_exceeded_by(known.count) || t.is_exceeded_by(other.count);
            if other.size != known.size || splits || !in_one_vma(parent) {
                continue;
            }
            let count = known.count.saturating_add(other.count);
            let held = known.held_until.max(other.held_until) > self.epoch;
            pairs.push((count, !held && !t.is_exceeded_by(count.saturating_mul(4)), parent));
        }
        pairs.sort_unstable();
        let mut excess = used.saturating_sub(self.goal());
        let mut orders = Vec::new();
        for (_, quiet, parent) in pairs {
            if quiet || excess > 0 {
                excess = excess.saturating_sub(1);
                orders.push(Order::Merge(parent));
            }
        }
        orders
    }

    /// Moves c so that the number of regions meets the goal, by at most a factor of two in an epoch.
    fn adjust(&mut self, wanted: usize) {
        let fit = u128::from(self.c) * self.goal() as u128 / (wanted.max(1) as u128);
        let fit = u64::try_from(fit).unwrap_or(C_MAX);
        self.c = fit.clamp(self.c / 2, self.c * 2).clamp(C_MIN, C_MAX);
    }
}

#[cfg(test)]
mod tests;
