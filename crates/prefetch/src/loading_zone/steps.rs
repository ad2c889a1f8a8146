//! The reads and writes of a loading zone's producer and consumers on its words.
//!
//! ```text
//!   words 0..8      identity (checked when it is mapped)
//!   8, 9            head: the oldest item that may be there; tail: the next item that will be
//!   16..            descriptors, eight words each: claim, meta, version, hash of the key, place, and three words of a short item
//!                   the index: four words for each descriptor, in buckets of eight
//!                   data: keys and values of longer items
//! ```
//!
//! Items have unique numbers from 1 on. Item n has the descriptor n modulo their count, and its *claim* is the number
//! and a state. A claim word is never data, so one compare-and-swap decides which thread gets an item:
//!
//! ```text
//!   producer                          consumer
//!   fields, bytes                     claim == n PRODUCED?          (acquire)
//!   claim = n PRODUCED  (release)     fields, bytes -> buffer
//!                                     claim: n PRODUCED -> n TAKEN  (acquire, release)
//!   claim != n PRODUCED? (acquire)
//!   the place is used again
//! ```
//!
//! After a successful exchange, the consumer has read before any other claim, so before a reuse of the place. After a
//! failed one, its bytes are arbitrary and dropped. `tests/zone_loom.rs` compiles this file against loom's atomics.

use super::atomic::{AtomicU64, Ordering};
use super::item::Item;
use super::mix::hash_bytes;
use super::ring::{WORD, load_at, store_at};
use std::collections::VecDeque;

/// Words before the descriptors.
pub(crate) const HEADER_WORDS: usize = 16;
/// Words of a descriptor: a line.
pub(crate) const DESC_WORDS: usize = 8;
/// Words of the index for each descriptor.
pub(crate) const INDEX_WORDS: usize = 4;
/// Words of a bucket of the index: a line.
const BUCKET: usize = 8;
/// Maximum length of a key in bytes: 16 bits.
pub const KEY_MAX: usize = 0xffff;
/// Maximum length of a value in bytes: 31 bits (PD3 6.2).
pub const VALUE_MAX: usize = 0x7fff_ffff;
const HEAD: usize = 8;
const TAIL: usize = 9;
pub(crate) const CLAIM: usize = 0;
const META: usize = 1;
const VERSION: usize = 2;
const HASH: usize = 3;
const PLACE: usize = 4;
const SHORT: usize = 5;
/// Words of key and value for which a descriptor has room.
const SHORT_WORDS: usize = DESC_WORDS - SHORT;

/// States of an item, below its number in the claim. Only the first can change.
const PRODUCED: u64 = 0;
const TAKEN: u64 = 1;
/// A consumer found that the version is not good.
const STALE: u64 = 2;
/// The producer gave the item up.
const OLD: u64 = 3;
const STATE_BITS: u32 = 2;
/// Bits of an item's number in the index; below them are the same bits of the key's hash.
const NUMBER_BITS: u32 = 48;
pub(crate) const TAG_BITS: u32 = 16;
pub(crate) const TAG: u64 = (1 << TAG_BITS) - 1;
/// Upper bound of item numbers: a producer that finds a larger one does not use the zone.
const NUMBER_MAX: u64 = 1 << 60;

/// Number of oldest items that are checked, to find whether consumers have passed them.
const OVERTAKEN: u64 = 64;
/// Maximum number of claimed items whose places are freed together.
const CLEANED: u64 = 32;

/// Sizes and secret of a zone; both ends know them before they touch a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Number of descriptors, a power of two from 2 on.
    pub(crate) items: usize,
    /// Words of data, a power of two.
    pub(crate) data: usize,
    /// The secret of the keys' hashes.
    pub(crate) secret: u64,
}

impl Shape {
    /// Returns the number of words of the whole zone.
    #[inline]
    pub(crate) const fn words(&self) -> usize {
        HEADER_WORDS + self.items * (DESC_WORDS + INDEX_WORDS) + self.data
    }

    #[inline]
    pub(crate) fn desc<'z>(&self, zone: &'z [AtomicU64], number: u64) -> &'z [AtomicU64] {
        &zone[HEADER_WORDS + masked(number, self.items) * DESC_WORDS..][..DESC_WORDS]
    }

    /// Returns the two buckets for an item with this hash: the second one is for a full first one.
    #[inline]
    pub(crate) fn buckets<'z>(&self, zone: &'z [AtomicU64], hash: u64) -> [&'z [AtomicU64]; 2] {
        let buckets = self.items * INDEX_WORDS / BUCKET;
        let from = HEADER_WORDS + self.items * DESC_WORDS;
        let home = hash >> TAG_BITS;
        [home, home ^ 1].map(|bucket| &zone[from + masked(bucket, buckets) * BUCKET..][..BUCKET])
    }

    #[inline]
    fn data<'z>(&self, zone: &'z [AtomicU64]) -> &'z [AtomicU64] {
        &zone[self.words() - self.data..self.words()]
    }
}

/// Returns `n` modulo a power of two.
#[inline]
fn masked(n: u64, end: usize) -> usize {
    debug_assert!(end.is_power_of_two());
    #[expect(clippy::cast_possible_truncation, reason = "masked by the length of a slice")]
    let place = (n & (end as u64 - 1)) as usize;
    place
}

const fn claim(number: u64, state: u64) -> u64 {
    number << STATE_BITS | state
}

/// The description of an item, without its version.
#[derive(Clone, Copy)]
struct Meta {
    id: u16,
    key_len: usize,
    size: usize,
}

impl Meta {
    const fn word(self) -> u64 {
        (self.id as u64) << 48 | (self.key_len as u64) << 32 | (self.size as u64) << 1
    }

    #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
    const fn of(word: u64) -> Self {
        Self {
            id: (word >> 48) as u16,
            key_len: (word >> 32 & 0xffff) as usize,
            size: (word as u32 >> 1) as usize,
        }
    }

    const fn words(self) -> usize {
        self.key_len.div_ceil(WORD) + self.size.div_ceil(WORD)
    }
}

/// Words of an item's key and value: in its descriptor, or in the data, from `at` on with wrap-around.
struct Body<'z> {
    words: &'z [AtomicU64],
    at: u64,
}

impl<'z> Body<'z> {
    #[inline]
    fn of(shape: &Shape, zone: &'z [AtomicU64], desc: &'z [AtomicU64], words: usize, place: u64) -> Self {
        if words <= SHORT_WORDS {
            // The last four words, because the length must be a power of two. The first is not used.
            Self { words: &desc[SHORT - 1..], at: 1 }
        } else {
            Self { words: shape.data(zone), at: place }
        }
    }

    /// Returns the start of the value, behind the key.
    #[inline]
    const fn behind(&self, key_len: usize) -> u64 {
        self.at.wrapping_add(key_len.div_ceil(WORD) as u64)
    }

    #[inline]
    fn has_key(&self, key: &[u8]) -> bool {
        let word = |n: usize| {
            let at = masked(self.at.wrapping_add(n as u64), self.words.len());
            self.words[at].load(Ordering::Relaxed)
        };
        // Whole words are compared, because most keys have eight bytes.
        let (whole, rest) = key.as_chunks::<WORD>();
        whole.iter().enumerate().all(|(n, wanted)| word(n) == u64::from_le_bytes(*wanted))
            && (rest.is_empty() || word(whole.len()).to_le_bytes()[..rest.len()] == *rest)
    }
}

/// The result of putting an item into a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placed {
    /// Readers find the item once the producer publishes.
    There,
    /// No room: consumers have not reached the oldest items yet. The producer may try again.
    Full,
    /// Never fits: no key, a key or value too long, or more than the whole zone.
    Misfit,
}

/// The fate of an item whose place is free again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// A consumer has the item.
    Taken,
    /// A consumer found that the version is not good.
    Stale,
    /// The producer gave the item up for newer ones, or dropped all.
    Old,
    /// The claim is invalid: a consumer is broken.
    Spoilt,
}

/// Fates of all items so far. The producer determines a fate when it needs the place.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ZoneCounts {
    /// Items put into the zone.
    pub put: u64,
    /// Items taken by a consumer.
    pub taken: u64,
    /// Items whose version was not good: wasted.
    pub stale: u64,
    /// Items given up by the producer for newer ones: wasted.
    pub old: u64,
    /// Items with an invalid claim: a consumer is broken.
    pub spoilt: u64,
    /// Refused puts for lack of room.
    pub full: u64,
}

/// The error for a zone that no producer can have left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// The producer's end.
#[derive(Debug)]
pub(crate) struct Producer {
    shape: Shape,
    head: u64,
    tail: u64,
    published: u64,
    /// Start of the oldest item's data, and of the next item's. Both only grow.
    data_head: u64,
    data_tail: u64,
    /// Data words and tag of each item from head to tail, which consumers cannot change.
    items: VecDeque<(u64, u64)>,
    /// Number of items refused since the last claim of a consumer was seen.
    refused: u64,
    counts: ZoneCounts,
}

impl Producer {
    /// Attaches to a zone: no earlier item can be taken any more, and no earlier number is reused, published or not.
    pub(crate) fn attach(shape: Shape, zone: &[AtomicU64]) -> Result<Self, Broken> {
        let mut tail = zone[TAIL].load(Ordering::Acquire).max(1);
        for n in 0..shape.items as u64 {
            // A consumer that is about to take the item finds another claim.
            let claim = shape.desc(zone, n)[CLAIM].fetch_or(OLD, Ordering::AcqRel);
            tail = tail.max((claim >> STATE_BITS) + 1);
        }
        if tail >= NUMBER_MAX {
            return Err(Broken);
        }
        zone[HEAD].store(tail, Ordering::Release);
        zone[TAIL].store(tail, Ordering::Release);
        Ok(Self {
            shape,
            head: tail,
            tail,
            published: tail,
            data_head: 0,
            data_tail: 0,
            items: VecDeque::new(),
            refused: 0,
            counts: ZoneCounts::default(),
        })
    }

    pub(crate) const fn counts(&self) -> ZoneCounts {
        self.counts
    }

    pub(crate) const fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the number of the next item.
    pub(crate) const fn next(&self) -> u64 {
        self.tail
    }

    /// Puts an item. Consumers that scan find it after [`Producer::publish`]. `gone` gets items with free places.
    pub(crate) fn put(
        &mut self,
        zone: &[AtomicU64],
        item: &Item<'_>,
        gone: &mut dyn FnMut(u64, Fate),
    ) -> Placed {
        let Item { tag, id, key, version, .. } = *item;
        let meta = Meta { id, key_len: key.len(), size: item.size() };
        if !(1..=KEY_MAX).contains(&key.len()) || meta.size > VALUE_MAX || !item.is_right() {
            return Placed::Misfit;
        }
        let words = meta.words();
        let need = if words <= SHORT_WORDS { 0 } else { words as u64 };
        if need > self.shape.data as u64 {
            return Placed::Misfit;
        }
        if !self.make_room(zone, need, gone) {
            self.refused += 1;
            self.counts.full += 1;
            return Placed::Full;
        }
        let (number, place) = (self.tail, self.data_tail);
        let hash = hash_bytes(self.shape.secret, key);
        let desc = self.shape.desc(zone, number);
        for (at, value) in [(META, meta.word()), (VERSION, version), (HASH, hash), (PLACE, place)] {
            desc[at].store(value, Ordering::Relaxed);
        }
        let body = Body::of(&self.shape, zone, desc, words, place);
        store_at(body.words, body.at, key);
        item.store_value(body.words, body.behind(key.len()));
        desc[CLAIM].store(claim(number, PRODUCED), Ordering::Release);
        self.enter(zone, number, hash);
        self.tail += 1;
        self.data_tail = place.wrapping_add(need);
        self.items.push_back((need, tag));
        self.counts.put += 1;
        Placed::There
    }

    /// Makes the items visible to consumers that scan.
    pub(crate) fn publish(&mut self, zone: &[AtomicU64]) {
        if self.published != self.tail {
            zone[TAIL].store(self.tail, Ordering::Release);
            self.published = self.tail;
        }
    }

    /// Frees the places of the oldest items, up to the first that is not claimed, and counts their fates.
    pub(crate) fn clean(&mut self, zone: &[AtomicU64], gone: &mut dyn FnMut(u64, Fate)) {
        self.clean_some(zone, u64::MAX, gone);
    }

    /// Gives up all items that no consumer has claimed, and frees all places.
    pub(crate) fn empty(&mut self, zone: &[AtomicU64], gone: &mut dyn FnMut(u64, Fate)) {
        while self.head != self.tail {
            self.take_back_oldest(zone, gone);
        }
        zone[HEAD].store(self.head, Ordering::Release);
    }

    /// Returns the number of items whose place is not free yet.
    pub(crate) const fn len(&self) -> u64 {
        self.tail - self.head
    }

    /// Makes room for one item with `need` words of data; gives up the oldest ones if they are dead.
    fn make_room(&mut self, zone: &[AtomicU64], need: u64, gone: &mut dyn FnMut(u64, Fate)) -> bool {
        let (items, data) = (self.shape.items as u64, self.shape.data as u64);
        while self.len() >= items || self.data_tail.wrapping_sub(self.data_head) + need > data {
            if self.clean_some(zone, CLEANED, gone) {
                continue;
            }
            if !self.oldest_is_dead(zone) {
                return false;
            }
            self.take_back_oldest(zone, gone);
            zone[HEAD].store(self.head, Ordering::Release);
        }
        true
    }

    /// Frees the places of the oldest claimed items, at most `most`. Returns true if there was one.
    fn clean_some(&mut self, zone: &[AtomicU64], most: u64, gone: &mut dyn FnMut(u64, Fate)) -> bool {
        let before = self.head;
        while self.head != self.tail && self.head - before < most {
            let found = self.shape.desc(zone, self.head)[CLAIM].load(Ordering::Acquire);
            if found == claim(self.head, PRODUCED) {
                break;
            }
            self.free_oldest(found, gone);
        }
        if self.head == before {
            return false;
        }
        self.refused = 0;
        zone[HEAD].store(self.head, Ordering::Release);
        true
    }

    /// Gives the oldest item up, if no consumer has claimed it, and frees its place.
    fn take_back_oldest(&mut self, zone: &[AtomicU64], gone: &mut dyn FnMut(u64, Fate)) {
        let old = claim(self.head, OLD);
        // A consumer that has claimed the item meanwhile keeps it.
        let found = self.shape.desc(zone, self.head)[CLAIM].swap(old, Ordering::AcqRel);
        self.free_oldest(if found == claim(self.head, PRODUCED) { old } else { found }, gone);
    }

    /// Frees the place of the oldest item, whose claim is `found`.
    fn free_oldest(&mut self, found: u64, gone: &mut dyn FnMut(u64, Fate)) {
        let (count, fate) = match found ^ claim(self.head, PRODUCED) {
            TAKEN => (&mut self.counts.taken, Fate::Taken),
            STALE => (&mut self.counts.stale, Fate::Stale),
            OLD => (&mut self.counts.old, Fate::Old),
            _ => (&mut self.counts.spoilt, Fate::Spoilt),
        };
        *count += 1;
        self.head += 1;
        let (len, tag) = self.items.pop_front().expect("one for each number");
        self.data_head = self.data_head.wrapping_add(len);
        gone(tag, fate);
    }

    /// Returns true if consumers have passed the oldest item, or a whole zone was refused (PROTOCOL 18.22).
    fn oldest_is_dead(&self, zone: &[AtomicU64]) -> bool {
        if self.refused >= self.len() {
            return true;
        }
        let looked = self.len().min(OVERTAKEN);
        let claimed = (self.head..self.head + looked).filter(|&n| !self.is_free(zone, n)).count() as u64;
        claimed * 2 >= looked
    }

    /// Returns true while an item can be taken.
    fn is_free(&self, zone: &[AtomicU64], number: u64) -> bool {
        self.shape.desc(zone, number)[CLAIM].load(Ordering::Relaxed) == claim(number, PRODUCED)
    }

    /// Makes this item unclaimable, if no consumer has it.
    fn give_up(&self, zone: &[AtomicU64], number: u64) {
        let word = &self.shape.desc(zone, number)[CLAIM];
        let (from, to) = (claim(number, PRODUCED), claim(number, OLD));
        // A consumer that has claimed the item meanwhile keeps it.
        let _either = word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Enters an item into the index, over a freed item, else a claimed one, else the oldest, which is given up.
    fn enter(&self, zone: &[AtomicU64], number: u64, hash: u64) {
        let [home, beside] = self.shape.buckets(zone, hash);
        let both = || home.iter().chain(beside);
        let number_of = |word: &AtomicU64| number_in(word.load(Ordering::Relaxed), self.head);
        let gone = |word: &&AtomicU64| number_of(word) >= self.tail;
        let claimed = |word: &&AtomicU64| !self.is_free(zone, number_of(word));
        let place = both().find(gone).or_else(|| both().find(claimed)).unwrap_or_else(|| {
            let oldest = both().min_by_key(|word| number_of(word)).expect("sixteen of them");
            self.give_up(zone, number_of(oldest));
            oldest
        });
        place.store(number << TAG_BITS | hash & TAG, Ordering::Relaxed);
    }
}

/// Returns the number of an index entry, which has 48 bits of it: the first from `head` on.
const fn number_in(entry: u64, head: u64) -> u64 {
    let mask = (1 << NUMBER_BITS) - 1;
    head.wrapping_add((entry >> TAG_BITS).wrapping_sub(head) & mask)
}

/// How a consumer finds its item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// By the index: a bucket, then the items in its entries.
    Index,
    /// From head to tail (PD3, figure 9).
    Scan,
}

/// Counts of a consumer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// Items taken.
    pub taken: u64,
    /// Calls that found nothing to take.
    pub missed: u64,
    /// Items with a version that was not good.
    pub stale: u64,
    /// Items that another consumer claimed during the copy.
    pub beaten: u64,
}

/// A consumer's end, which writes only claims.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) shape: Shape,
    pub(crate) finding: Finding,
    pub(crate) found: Found,
}

/// A key to look for, and the test of its version.
struct KeyQuery<'k, F> {
    key: &'k [u8],
    hash: u64,
    good: F,
}

impl Consumer {
    pub(crate) fn new(shape: Shape, finding: Finding) -> Self {
        Self { shape, finding, found: Found::default() }
    }

    /// Takes the item of a key with a good version into `buf`. Returns its length; see `ZoneReader`.
    pub(crate) fn check_and_return(
        &mut self,
        zone: &[AtomicU64],
        key: &[u8],
        good: impl FnMut(u64) -> bool,
        buf: &mut Vec<u8>,
    ) -> Option<usize> {
        let mut wanted = KeyQuery { key, hash: hash_bytes(self.shape.secret, key), good };
        let size = match self.finding {
            Finding::Index => self.by_index(zone, &mut wanted, buf),
            Finding::Scan => self.by_scan(zone, &mut wanted, buf),
        };
        match size {
            Some(size) => {
                buf.truncate(size);
                self.found.taken += 1;
            }
            None => self.found.missed += 1,
        }
        size
    }

    fn by_scan(
        &mut self,
        zone: &[AtomicU64],
        wanted: &mut KeyQuery<'_, impl FnMut(u64) -> bool>,
        buf: &mut Vec<u8>,
    ) -> Option<usize> {
        // A local head: no consumer writes to the zone's (PD3 7.2).
        let head = zone[HEAD].load(Ordering::Acquire);
        let tail = zone[TAIL].load(Ordering::Acquire);
        // The tail is younger than the head, and a producer may write anything.
        let count = tail.wrapping_sub(head).min(self.shape.items as u64);
        let first = tail.wrapping_sub(count);
        (0..count).find_map(|n| self.take(zone, first.wrapping_add(n), wanted, buf))
    }

    fn by_index(
        &mut self,
        zone: &[AtomicU64],
        wanted: &mut KeyQuery<'_, impl FnMut(u64) -> bool>,
        buf: &mut Vec<u8>,
    ) -> Option<usize> {
        let head = zone[HEAD].load(Ordering::Acquire);
        for bucket in self.shape.buckets(zone, wanted.hash) {
            let is_like = |word: &AtomicU64| (word.load(Ordering::Relaxed) ^ wanted.hash) & TAG == 0;
            // All entries of a line are compared before any item is read: no branch predictor can guess the entry.
            let mut like = bucket.iter().rev().fold(0_u32, |like, word| like << 1 | u32::from(is_like(word)));
            while like != 0 {
                let entry = bucket[like.trailing_zeros() as usize].load(Ordering::Relaxed);
                // Several items may have this key: those that are not good become stale, and any other is right.
                if let Some(size) = self.take(zone, number_in(entry, head), wanted, buf) {
                    return Some(size);
                }
                like &= like - 1;
            }
        }
        None
    }

    /// Takes this item, if it matches and no other consumer gets it: copy, then claim (PD3, figure 9).
    fn take(
        &mut self,
        zone: &[AtomicU64],
        number: u64,
        wanted: &mut KeyQuery<'_, impl FnMut(u64) -> bool>,
        buf: &mut Vec<u8>,
    ) -> Option<usize> {
        let desc = self.shape.desc(zone, number);
        let free = claim(number, PRODUCED);
        if desc[CLAIM].load(Ordering::Acquire) != free || desc[HASH].load(Ordering::Relaxed) != wanted.hash {
            return None;
        }
        // From here on any bytes may have been read: the exchange below decides.
        let meta = Meta::of(desc[META].load(Ordering::Relaxed));
        let words = meta.words();
        if meta.key_len != wanted.key.len() || words > self.shape.data.max(SHORT_WORDS) {
            return None;
        }
        let body = Body::of(&self.shape, zone, desc, words, desc[PLACE].load(Ordering::Relaxed));
        if !body.has_key(wanted.key) {
            return None;
        }
        if !(wanted.good)(desc[VERSION].load(Ordering::Relaxed)) {
            let stale = claim(number, STALE);
            let done = desc[CLAIM].compare_exchange(free, stale, Ordering::AcqRel, Ordering::Relaxed);
            self.found.stale += u64::from(done.is_ok());
            return None;
        }
        if buf.len() < meta.size {
            buf.resize(meta.size, 0);
        }
        load_at(body.words, body.behind(meta.key_len), &mut buf[..meta.size]);
        let taken = claim(number, TAKEN);
        let done = desc[CLAIM].compare_exchange(free, taken, Ordering::AcqRel, Ordering::Relaxed);
        self.found.beaten += u64::from(done.is_err());
        done.is_ok().then_some(meta.size)
    }
}
