//! Pages, the directory's regions, and the sequence numbers that order their events (PROTOCOL 12.1 to 12.4).

use crate::reader::{Put as _, Reader};
use crate::{HostId, VirtAddr, WireError};
use alloc::vec::Vec;
use core::fmt;

/// Bytes of a page: the unit of caching, fetching and writing back (MIND 4.3.1).
pub const PAGE_LEN: usize = 1 << PAGE_SHIFT;

/// Bits of an address below its page's number.
pub const PAGE_SHIFT: u32 = 12;

/// The largest region has 2^`REGION_ORDER_MAX` pages: 2 MiB (MIND 4.3.1).
pub const REGION_ORDER_MAX: u8 = 9;

/// A new region has 2^`REGION_ORDER_FIRST` pages: 16 KiB (MIND 5.2, 7.3).
pub const REGION_ORDER_FIRST: u8 = 2;

/// Number of hosts that can cache pages: those with numbers below this.
pub const CACHING_HOSTS_MAX: u16 = 256;

/// A page of far memory: its address divided by [`PAGE_LEN`]. Below 2^52.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Page(u64);

impl Page {
    /// The page of address 0.
    pub const FIRST: Self = Self(0);
    /// The page of the last address.
    pub const LAST: Self = Self(u64::MAX >> PAGE_SHIFT);

    /// Returns the page behind this one; for the last page, itself.
    #[must_use]
    pub const fn next(self) -> Self {
        if self.0 == Self::LAST.0 { self } else { Self(self.0 + 1) }
    }

    /// Returns the page before this one; for the first page, itself.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Returns the page that holds the byte at `addr`.
    #[must_use]
    pub const fn of(addr: VirtAddr) -> Self {
        Self(addr.0 >> PAGE_SHIFT)
    }

    /// Returns the address of the page's first byte.
    #[must_use]
    pub const fn addr(self) -> VirtAddr {
        VirtAddr(self.0 << PAGE_SHIFT)
    }

    /// Returns the number of the page.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Returns the page with this number, or the last page if the number is too large.
    #[must_use]
    pub const fn numbered(number: u64) -> Self {
        if number > Self::LAST.0 { Self::LAST } else { Self(number) }
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {:#x}", self.addr().0)
    }
}

/// A host's access to a page that it caches (MIND 2.2). An uncached page is Invalid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Access {
    /// The host may read; other hosts may too.
    Shared = 1,
    /// The host may read and write; no other host may do either.
    Modified = 2,
}

/// A sequence number in the history of a region. A decision carries the number at its time; larger numbers
/// are later. The number grows when the right to write changes hands and when a page is granted for writing
/// (PROTOCOL 12.4). Never wraps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// Returns the number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the first number of an epoch: above all numbers that a switch can reach in earlier epochs
    /// (PROTOCOL 12.36).
    #[must_use]
    pub const fn of_epoch(epoch: u64) -> Self {
        Self(epoch << EPOCH_SHIFT)
    }

    /// Returns the epoch of the switch that issued this number.
    #[must_use]
    pub const fn epoch(self) -> u64 {
        self.0 >> EPOCH_SHIFT
    }
}

/// Bits of a number below its epoch. 2^40 numbers last for 2 months if one region changes hands 200,000 times
/// a second.
const EPOCH_SHIFT: u32 = 40;

/// The id of a page request among those of its host: 16 bits of the host's generation, 48 of a counter. Never
/// reused.
///
/// A [`crate::RequestId`] has a counter of 32 bits, which a host with 100,000 faults a second exhausts in
/// half a day.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FetchId(pub u64);

impl FetchId {
    const COUNTER_BITS: u32 = 48;

    /// Returns the first id of this generation of a host.
    #[must_use]
    pub const fn first(generation: u16) -> Self {
        Self((generation as u64) << Self::COUNTER_BITS)
    }

    /// Returns the id after this one; none after the last of its generation.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        let next = Self(self.0.wrapping_add(1));
        if next.0 & ((1 << Self::COUNTER_BITS) - 1) == 0 { None } else { Some(next) }
    }

    /// Returns the host's generation.
    #[must_use]
    pub const fn generation(self) -> u16 {
        (self.0 >> Self::COUNTER_BITS) as u16
    }
}

/// The pages of one directory entry (MIND 4.3.1): 2^order pages, aligned to their number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region {
    base: Page,
    order: u8,
}

impl Region {
    /// Returns the region of 2^`order` pages from `base` on. None if the order is above [`REGION_ORDER_MAX`]
    /// or the base is not aligned.
    #[must_use]
    pub const fn new(base: Page, order: u8) -> Option<Self> {
        if order > REGION_ORDER_MAX || base.0 & ((1 << order) - 1) != 0 {
            return None;
        }
        Some(Self { base, order })
    }

    /// Returns the region of 2^`order` pages that holds `page`.
    ///
    /// # Panics
    /// If the order is above [`REGION_ORDER_MAX`].
    #[must_use]
    pub const fn around(page: Page, order: u8) -> Self {
        assert!(order <= REGION_ORDER_MAX, "a region has at most 2 MiB");
        Self { base: Page(page.0 >> order << order), order }
    }

    /// Returns the first page.
    #[must_use]
    pub const fn base(self) -> Page {
        self.base
    }

    /// Returns log2 of the number of pages.
    #[must_use]
    pub const fn order(self) -> u8 {
        self.order
    }

    /// Returns the number of pages.
    #[must_use]
    pub const fn len(self) -> u64 {
        1 << self.order
    }

    /// Returns false: a region is never empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        false
    }

    /// Returns the last page.
    #[must_use]
    pub const fn last(self) -> Page {
        Page(self.base.0 + self.len() - 1)
    }

    /// Returns true if the region holds the page.
    #[must_use]
    pub const fn contains(self, page: Page) -> bool {
        page.0 >> self.order == self.base.0 >> self.order
    }

    /// Returns the pages, in order.
    pub fn pages(self) -> impl Iterator<Item = Page> {
        (self.base.0..=self.last().0).map(Page)
    }

    /// Returns the page at this index.
    ///
    /// # Panics
    /// If the region has no such page.
    #[must_use]
    pub const fn page(self, index: u16) -> Page {
        assert!((index as u64) < self.len(), "a region has a page of that index");
        Page(self.base.0 + index as u64)
    }

    /// Returns the index of the page in the region.
    ///
    /// # Panics
    /// If the page is not in the region.
    #[must_use]
    pub const fn index(self, page: Page) -> u16 {
        assert!(self.contains(page), "the page is in the region");
        #[expect(clippy::cast_possible_truncation, reason = "below 2^9")]
        let index = (page.0 - self.base.0) as u16;
        index
    }

    /// Returns the lower and the upper half; none for a single page.
    #[must_use]
    pub const fn halves(self) -> Option<(Self, Self)> {
        let Some(order) = self.order.checked_sub(1) else { return None };
        let upper = Page(self.base.0 + (1 << order));
        Some((Self { base: self.base, order }, Self { base: upper, order }))
    }

    /// Returns the region that this one is half of; none for the largest.
    #[must_use]
    pub const fn parent(self) -> Option<Self> {
        if self.order == REGION_ORDER_MAX { None } else { Some(Self::around(self.base, self.order + 1)) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {:#x}+{:#x}", self.base.addr().0, self.len() << PAGE_SHIFT)
    }
}

/// A set of hosts with numbers below [`CACHING_HOSTS_MAX`]: the sharers of a region, or the hosts with an
/// outstanding answer. One bit per host; the lowest bit of the first word is host 0's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostSet([u64; Self::WORDS]);

impl HostSet {
    const WORDS: usize = CACHING_HOSTS_MAX as usize / 64;

    /// Bytes of a set in a message.
    pub const LEN: usize = Self::WORDS * 8;

    /// No host.
    pub const EMPTY: Self = Self([0; Self::WORDS]);

    /// Creates a set from its bits.
    #[must_use]
    pub const fn from_words(words: [u64; Self::WORDS]) -> Self {
        Self(words)
    }

    /// Creates a set of one host.
    ///
    /// # Panics
    /// If the host's number is [`CACHING_HOSTS_MAX`] or more.
    #[must_use]
    pub const fn only(host: HostId) -> Self {
        Self::EMPTY.with(host)
    }

    /// Returns the set with `host` added.
    ///
    /// # Panics
    /// If the host's number is [`CACHING_HOSTS_MAX`] or more.
    #[must_use]
    pub const fn with(mut self, host: HostId) -> Self {
        assert!(host.0 < CACHING_HOSTS_MAX, "a host that takes part has a small number");
        self.0[host.0 as usize / 64] |= 1 << (host.0 % 64);
        self
    }

    /// Returns the set with `host` removed.
    ///
    /// # Panics
    /// If the host's number is [`CACHING_HOSTS_MAX`] or more.
    #[must_use]
    pub const fn without(mut self, host: HostId) -> Self {
        assert!(host.0 < CACHING_HOSTS_MAX, "a host that takes part has a small number");
        self.0[host.0 as usize / 64] &= !(1 << (host.0 % 64));
        self
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Returns true if the set has the host.
    #[must_use]
    pub const fn contains(self, host: HostId) -> bool {
        host.0 < CACHING_HOSTS_MAX && self.0[host.0 as usize / 64] >> (host.0 % 64) & 1 == 1
    }

    /// Returns true if the set has no host.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns the hosts, by number.
    pub fn iter(self) -> impl Iterator<Item = HostId> {
        (0..).zip(self.0).flat_map(|(at, mut word)| {
            core::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                #[expect(clippy::cast_possible_truncation, reason = "below 64")]
                let bit = bit as u16;
                Some(HostId(at * 64 + bit))
            })
        })
    }

    /// Reads a set of a message.
    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut words = [0; Self::WORDS];
        for word in &mut words {
            *word = r.u64()?;
        }
        Ok(Self(words))
    }

    /// Appends the set to a message.
    pub(super) fn put(self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|&word| out.put_u64(word));
    }
}

impl fmt::Debug for HostSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|host| host.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u64) -> Page {
        Page::of(VirtAddr(number << PAGE_SHIFT))
    }

    #[test]
    fn a_region_is_aligned_and_bounded() {
        assert!(Region::new(page(8), 3).is_some());
        assert!(Region::new(page(4), 3).is_none(), "not at a multiple of its length");
        assert!(Region::new(page(0), REGION_ORDER_MAX).is_some());
        assert!(Region::new(page(0), REGION_ORDER_MAX + 1).is_none(), "longer than 2 MiB");
        let top = Region::around(page((1 << 52) - 1), REGION_ORDER_MAX);
        assert_eq!(top.last(), page((1 << 52) - 1), "the last region ends with the address space");
    }

    #[test]
    fn halves_make_the_region_again() {
        let region = Region::new(page(8), 2).unwrap();
        let (low, high) = region.halves().unwrap();
        assert_eq!((low.base(), low.last()), (page(8), page(9)));
        assert_eq!((high.base(), high.last()), (page(10), page(11)));
        assert_eq!((low.parent(), high.parent()), (Some(region), Some(region)));
        for index in 0..4 {
            assert_eq!(region.index(region.page(index)), index);
            assert_eq!(low.contains(region.page(index)), index < 2);
        }
        assert!(!region.contains(page(7)) && !region.contains(page(12)));
        assert_eq!(Region::new(page(8), 0).unwrap().halves(), None);
        assert_eq!(Region::new(page(0), REGION_ORDER_MAX).unwrap().parent(), None);
    }

    #[test]
    fn a_set_holds_exactly_what_was_put_in() {
        let all = [4, 63, 64, 191, 255].map(HostId);
        let set = all.iter().fold(HostSet::only(HostId(1)), |set, &host| set.with(host)).without(HostId(1));
        assert_eq!(set.iter().collect::<Vec<_>>(), all);
        assert_eq!(set.len(), 5);
        assert!((0..300).map(HostId).all(|host| set.contains(host) == all.contains(&host)));
        assert_eq!(set.union(HostSet::only(HostId(128))).len(), 6);
        assert!(all.iter().fold(set, |set, &host| set.without(host)).is_empty());
        let mut bytes = Vec::new();
        set.put(&mut bytes);
        assert_eq!(bytes.len(), HostSet::LEN);
        assert_eq!(HostSet::take(&mut Reader::new("set", &bytes)), Ok(set));
    }

    #[test]
    fn ids_of_a_generation_end() {
        let first = FetchId::first(7);
        assert_eq!(first.next(), Some(FetchId(first.0 + 1)));
        let last = FetchId(FetchId::first(8).0 - 1);
        assert_eq!((last.generation(), last.next()), (7, None));
    }
}
