//! What far memory must hold, by the word: the model that every answer of a rack is compared with.
//!
//! Memory is cut into *slots* that only one operation touches at a time, so most words have one right value. Where an operation
//! failed without saying whether it was executed (PROTOCOL 9.5), a word has several, until a later write settles it. A node that crashes loses
//! what it held: nothing of it is read or written any more until its owner accepts that, and only then its words are zero (PROTOCOL 9.19). Memory
//! moves from node to node; of what is on its way when one of the two crashes, it is not said whether it was lost: it is as it was, or refused.

use farmem_machine::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// What a slot was filled with; 0 is all zeros.
pub(crate) type Version = u64;

/// A slot: consecutive bytes of one vma.
#[derive(Clone, Debug)]
struct Slot {
    /// What may be there, word by word.
    allowed: BTreeSet<Version>,
    /// What may have been there before it was lost: an answer to what began before that may still tell of it.
    was: BTreeSet<Version>,
    /// An operation is under way.
    busy: bool,
    /// Part of a list: not to be written.
    pinned: bool,
}

/// Whether a piece of memory went with a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// It did not, or its owner has accepted that.
    None,
    /// It did: whatever begins now is refused.
    Sure,
    /// It was on its way when a node crashed, or its owner is accepting the loss: it is refused, or it is there.
    Perhaps,
}

/// Where a piece of memory is, which moves as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    /// The node that has it; while it moves, the one that it leaves.
    pub(crate) node: u16,
    /// The node that an operator asked it to move to, until the answer is there.
    pub(crate) to: Option<u16>,
    /// Moves that were asked for.
    pub(crate) moves: u32,
    /// When the last one ended.
    settled: Option<Instant>,
    /// How often a node lost its memory that had this, or may have had it.
    pub(crate) losses: u32,
    pub(crate) loss: Loss,
    /// The owner is accepting the loss, until the answer is there.
    pub(crate) accepting: bool,
    /// When the last loss was accepted.
    accepted: Option<Instant>,
}

impl Home {
    pub(crate) const fn at(node: u16) -> Self {
        let (loss, accepting, accepted) = (Loss::None, false, None);
        Self { node, to: None, moves: 0, settled: None, losses: 0, loss, accepting, accepted }
    }

    /// The owner asks to have it back as it is.
    pub(crate) const fn accept(&mut self) {
        self.loss = Loss::Perhaps;
        self.accepting = true;
    }

    /// The answer is there; `losses` as they were when it was asked for.
    pub(crate) fn accepted(&mut self, well: bool, losses: u32, now: Instant) {
        self.accepting = false;
        self.accepted = Some(now);
        if well && self.losses == losses {
            self.loss = Loss::None;
        }
    }

    /// True when something that began then may be refused because it is lost.
    pub(crate) fn lost_since(&self, since: Instant) -> bool {
        self.loss != Loss::None || self.accepted.is_some_and(|accepted| accepted >= since)
    }

    /// An operator asks for it to be moved.
    pub(crate) const fn leave(&mut self, to: u16) {
        self.to = Some(to);
        self.moves += 1;
    }

    /// It is where it was to go, or stays where it was.
    pub(crate) fn settle(&mut self, moved: bool, now: Instant) {
        let to = self.to.take().expect("it was asked to move");
        self.settled = Some(now);
        if moved {
            self.node = to;
        }
    }

    /// True when the node has it, or may.
    pub(crate) fn may_be_at(&self, node: u16) -> bool {
        self.node == node || self.to == Some(node)
    }

    /// True when it was on its way at some time since.
    pub(crate) fn moved_since(&self, since: Instant) -> bool {
        self.to.is_some() || self.settled.is_some_and(|settled| settled >= since)
    }

    /// A node lost its memory; true when this was in it for sure.
    fn lost(&mut self) -> bool {
        self.losses += 1;
        // An acceptance that is under way may be carried out behind this loss, and before it.
        let surely = (self.to.is_none() || self.loss == Loss::Sure) && !self.accepting;
        self.loss = if surely { Loss::Sure } else { Loss::Perhaps };
        self.to.is_none()
    }
}

/// One allocation.
#[derive(Clone, Debug)]
pub(crate) struct Vma {
    /// Which allocation it is: others have had its addresses.
    pub(crate) number: u64,
    /// And as the control plane has it (PROTOCOL 8.47).
    pub(crate) id: u64,
    pub(crate) size: u64,
    /// The node whose addresses it has.
    pub(crate) node: u16,
    pub(crate) domain: u32,
    /// The client that asked for it.
    pub(crate) owner: usize,
    pub(crate) slot_len: usize,
    /// May be read by the other domain: the answer to the grant is there, and the owner does not take it back.
    pub(crate) lent: bool,
    /// Is being freed, lent or taken back.
    pub(crate) changing: bool,
    /// Bytes that move together; none when it stays where it is.
    pub(crate) piece_len: Option<u64>,
    homes: Vec<Home>,
    slots: Vec<Slot>,
}

impl Vma {
    /// Zeroed memory on a node.
    pub(crate) fn new(number: u64, size: u64, node: u16, domain: u32, owner: usize, slot_len: usize) -> Self {
        let (allowed, was) = (BTreeSet::from([0]), BTreeSet::new());
        let slot = Slot { allowed, was, busy: false, pinned: false };
        let slots = vec![slot; usize::try_from(size).expect("a small rack") / slot_len];
        let homes = vec![Home::at(node)];
        let (lent, changing, piece_len) = (false, false, None);
        Self { number, id: 0, size, node, domain, owner, slot_len, lent, changing, piece_len, homes, slots }
    }

    /// The same memory, which moves in pieces of so many bytes.
    pub(crate) fn in_pieces(mut self, piece_len: u64) -> Self {
        assert!(self.slot_len as u64 <= piece_len && piece_len <= self.size, "no slot is in two pieces");
        self.piece_len = Some(piece_len);
        self.homes = vec![self.homes[0]; usize::try_from(self.size / piece_len).expect("a small rack")];
        self
    }

    /// Its node may have lost it before the program heard of it.
    pub(crate) fn lost_perhaps(&mut self) {
        self.homes.iter_mut().for_each(|home| home.loss = Loss::Perhaps);
    }

    /// Pieces, each by its first byte from the vma's on.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, &Home)> {
        let len = self.piece_len.unwrap_or(self.size);
        self.homes.iter().enumerate().map(move |(index, home)| (index as u64 * len, home))
    }

    fn piece(&self, offset: u64) -> usize {
        usize::try_from(offset / self.piece_len.unwrap_or(self.size)).expect("a small rack")
    }

    pub(crate) fn home(&self, offset: u64) -> &Home {
        &self.homes[self.piece(offset)]
    }

    pub(crate) fn home_mut(&mut self, offset: u64) -> &mut Home {
        let piece = self.piece(offset);
        &mut self.homes[piece]
    }

    /// True when nothing is under way in it and no list is in it.
    pub(crate) fn is_idle(&self) -> bool {
        !self.changing && self.slots.iter().all(|slot| !slot.busy && !slot.pinned)
    }

    pub(crate) const fn slots(&self) -> usize {
        self.slots.len()
    }
}

/// A place in the model: the first byte of a vma, and which of its slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SlotId {
    pub(crate) base: u64,
    pub(crate) slot: usize,
}

/// All of far memory.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) vmas: BTreeMap<u64, Vma>,
    /// Contents that are not made from their version: nodes of lists.
    special: BTreeMap<Version, Vec<u64>>,
    last_version: Version,
}

impl Model {
    /// A vma was allocated: zeroed.
    pub(crate) fn add(&mut self, base: u64, vma: Vma) {
        let end = base + vma.size;
        assert!(
            self.vmas.range(..end).next_back().is_none_or(|(&other, vma)| other + vma.size <= base),
            "vma {base:#x} lies over another"
        );
        self.vmas.insert(base, vma);
    }

    /// A version that was never used, and the bytes it stands for.
    pub(crate) fn fresh(&mut self, len: usize) -> (Version, Vec<u8>) {
        self.last_version += 1;
        (self.last_version, self.bytes(self.last_version, len))
    }

    /// A version whose first words are these, the rest zero.
    pub(crate) fn fresh_special(&mut self, words: Vec<u64>) -> Version {
        self.last_version += 1;
        self.special.insert(self.last_version, words);
        self.last_version
    }

    /// The bytes of a version.
    pub(crate) fn bytes(&self, version: Version, len: usize) -> Vec<u8> {
        (0..len / 8).flat_map(|i| self.word(version, i).to_le_bytes()).collect()
    }

    /// Address and length of a slot.
    pub(crate) fn span(&self, place: SlotId) -> (u64, usize) {
        let slot_len = self.vmas[&place.base].slot_len;
        (place.base + (place.slot * slot_len) as u64, slot_len)
    }

    /// Where a slot is.
    pub(crate) fn home(&self, place: SlotId) -> &Home {
        let vma = &self.vmas[&place.base];
        vma.home((place.slot * vma.slot_len) as u64)
    }

    pub(crate) fn is_free(&self, place: SlotId) -> bool {
        let vma = &self.vmas[&place.base];
        !vma.changing && !vma.slots[place.slot].busy
    }

    pub(crate) fn is_pinned(&self, place: SlotId) -> bool {
        self.vmas[&place.base].slots[place.slot].pinned
    }

    pub(crate) fn pin(&mut self, place: SlotId, pinned: bool) {
        self.slot(place).pinned = pinned;
    }

    /// An operation on the slot begins.
    pub(crate) fn take(&mut self, place: SlotId) {
        let slot = self.slot(place);
        assert!(!slot.busy, "one operation at a time, at {place:?}");
        slot.busy = true;
    }

    /// It ended without a write.
    pub(crate) fn release(&mut self, place: SlotId) {
        self.slot(place).busy = false;
    }

    /// From here on the slot may hold `version` too.
    pub(crate) fn may_hold(&mut self, place: SlotId, version: Version) {
        self.slot(place).allowed.insert(version);
    }

    /// A write ended well, and nothing was lost meanwhile: the slot holds `version` and nothing else.
    pub(crate) fn holds(&mut self, place: SlotId, version: Version) {
        self.slot(place).allowed = BTreeSet::from([version]);
    }

    /// A write was surely not executed, nor will it be.
    pub(crate) fn cannot_hold(&mut self, place: SlotId, version: Version) {
        self.slot(place).allowed.remove(&version);
    }

    /// The node lost its memory. `still` are the versions whose write may yet come.
    pub(crate) fn node_lost(&mut self, node: u16, still: &BTreeMap<SlotId, Version>) {
        for (&base, vma) in &mut self.vmas {
            let lost: Vec<Option<bool>> =
                vma.homes.iter_mut().map(|home| home.may_be_at(node).then(|| home.lost())).collect();
            let accepting: Vec<bool> = vma.homes.iter().map(|home| home.accepting).collect();
            for slot in 0..vma.slots.len() {
                let piece = vma.piece((slot * vma.slot_len) as u64);
                let Some(surely) = lost[piece] else { continue };
                let state = &mut vma.slots[slot];
                if !state.busy {
                    state.was.clear();
                }
                state.was.extend(&state.allowed);
                if surely {
                    state.allowed.clear();
                }
                state.allowed.extend(accepting[piece].then_some(0));
                // Executed when the loss is accepted, if it is repeated so long.
                state.allowed.extend(still.get(&SlotId { base, slot }));
            }
        }
    }

    /// The owner accepts what was lost of the vma from `offset` on: it may be zeros from now on.
    pub(crate) fn accept(&mut self, base: u64, offset: u64) {
        let Some(vma) = self.vmas.get_mut(&base) else { return };
        let piece = vma.piece(offset);
        for slot in 0..vma.slots.len() {
            if vma.piece((slot * vma.slot_len) as u64) == piece {
                vma.slots[slot].allowed.insert(0);
            }
        }
        vma.homes[piece].accept();
    }

    /// Checks what was read from a slot by what began before it was lost: nothing but what was there then, or what was accepted since.
    pub(crate) fn check_before(&self, place: SlotId, bytes: &[u8]) -> Result<(), String> {
        let slot = &self.vmas[&place.base].slots[place.slot];
        self.check_versions(place, bytes, &slot.was.union(&slot.allowed).copied().collect())
    }

    /// Checks what was read from a slot.
    pub(crate) fn check(&self, place: SlotId, bytes: &[u8]) -> Result<(), String> {
        if self.home(place).loss == Loss::Sure {
            return Err(format!("{:#x} was lost, and that was not told", self.span(place).0));
        }
        self.check_versions(place, bytes, &self.vmas[&place.base].slots[place.slot].allowed)
    }

    fn check_versions(&self, place: SlotId, bytes: &[u8], allowed: &BTreeSet<Version>) -> Result<(), String> {
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            if !allowed.iter().any(|&version| self.word(version, i) == word) {
                let addr = self.span(place).0 + i as u64 * 8;
                return Err(format!("{addr:#x} holds {word:#x}, but no version of {allowed:?} does"));
            }
        }
        Ok(())
    }

    fn word(&self, version: Version, i: usize) -> u64 {
        match (version, self.special.get(&version)) {
            (0, _) => 0,
            (_, Some(words)) => words.get(i).copied().unwrap_or(0),
            _ => mix(version.wrapping_mul(0x1_0000).wrapping_add(i as u64)),
        }
    }

    fn slot(&mut self, place: SlotId) -> &mut Slot {
        let vma = self.vmas.get_mut(&place.base).expect("a vma in use is not freed");
        &mut vma.slots[place.slot]
    }
}

/// A word that all hosts count up: atomics must linearise.
///
/// All additions are of one, so no two may find the same value; one that began after `n` had ended finds at least `n`; and none
/// finds as much as had begun.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) addr: u64,
    /// The node whose address that is.
    pub(crate) range_node: u16,
    pub(crate) home: Home,
    /// Additions that ended well.
    ended: u64,
    /// Additions that began.
    begun: u64,
    found: BTreeSet<u64>,
    /// It is not said whether it was lost: no value is wrong from then on.
    lost_perhaps: bool,
}

impl Counter {
    pub(crate) const fn new(addr: u64, node: u16) -> Self {
        let (range_node, home) = (node, Home::at(node));
        Self { addr, range_node, home, ended: 0, begun: 0, found: BTreeSet::new(), lost_perhaps: false }
    }

    /// Additions that ended well so far: what a later one must find at the least.
    pub(crate) const fn floor(&self) -> u64 {
        self.ended
    }

    /// An addition begins, or a swap that may become one.
    pub(crate) const fn begin(&mut self) {
        self.begun += 1;
    }

    /// A swap found something else and added nothing.
    pub(crate) const fn missed(&mut self) {
        self.begun -= 1;
    }

    /// An addition found `old`.
    pub(crate) fn added(&mut self, old: u64, floor: u64) -> Result<(), String> {
        self.is_there()?;
        self.ended += 1;
        if !self.found.insert(old) && !self.lost_perhaps {
            return Err(format!("two additions to {:#x} found {old}", self.addr));
        }
        self.seen(old, floor, self.begun - 1)
    }

    /// It is not lost: what began since the last loss found it.
    pub(crate) fn is_there(&self) -> Result<(), String> {
        if self.home.loss == Loss::Sure {
            return Err(format!("{:#x} was lost, and that was not told", self.addr));
        }
        Ok(())
    }

    /// Something read `value` that began when `floor` had ended, and `begun` others could have been before it.
    pub(crate) fn seen(&self, value: u64, floor: u64, begun: u64) -> Result<(), String> {
        if self.lost_perhaps || (floor..=begun).contains(&value) {
            return Ok(());
        }
        Err(format!("{:#x} held {value}, but {floor} had ended and {begun} had begun", self.addr))
    }

    /// The value at the end: at least what ended, at most what began.
    pub(crate) fn check_end(&self, value: u64) -> Result<(), String> {
        self.is_there()?;
        self.seen(value, self.ended, self.begun)
    }

    /// Its node lost its memory, and every addition under way with it.
    pub(crate) fn lost(&mut self) {
        let lost_perhaps = !self.home.lost() || self.lost_perhaps;
        *self = Self { home: self.home, lost_perhaps, ..Self::new(self.addr, self.range_node) };
    }
}

/// Spreads a number over 64 bits (splitmix64).
const fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Counter, Model, SlotId, Vma};
    use std::collections::BTreeMap;

    const PLACE: SlotId = SlotId { base: 0x1000, slot: 1 };

    fn model() -> Model {
        let mut model = Model::default();
        model.add(0x1000, Vma::new(1, 4096, 1, 1, 0, 64));
        model
    }

    /// A write of unknown end leaves two right values for each word, a good one only its own.
    #[test]
    fn an_unsure_write_leaves_two_values() {
        let mut model = model();
        assert_eq!(model.span(PLACE), (0x1040, 64));
        let (one, bytes) = model.fresh(64);
        assert!(model.check(PLACE, &bytes).is_err());
        model.may_hold(PLACE, one);
        let half = [&bytes[..32], &[0; 32]].concat();
        assert_eq!((model.check(PLACE, &bytes), model.check(PLACE, &half)), (Ok(()), Ok(())));
        model.holds(PLACE, one);
        assert!(model.check(PLACE, &half).is_err() && model.check(PLACE, &[0; 64]).is_err());
        let (two, _) = model.fresh(64);
        model.node_lost(1, &BTreeMap::from([(PLACE, two)]));
        assert!(model.check(PLACE, &bytes).is_err());
        assert!(model.check(PLACE, &[0; 64]).is_err(), "zeros are no answer");
        model.accept(PLACE.base, 64);
        assert!(model.check(PLACE, &bytes).is_err());
        assert_eq!(model.check(PLACE, &[0; 64]), Ok(()));
    }

    /// What began before the loss may tell of what was there, and of nothing else: not of zeros.
    #[test]
    fn an_answer_from_before_a_loss_is_no_zeros() {
        let mut model = model();
        let (one, bytes) = model.fresh(64);
        model.holds(PLACE, one);
        model.node_lost(1, &BTreeMap::new());
        assert_eq!(model.check_before(PLACE, &bytes), Ok(()));
        assert!(model.check_before(PLACE, &[0; 64]).is_err());
    }

    /// A doubled addition, a lost one and one that goes back in time are found.
    #[test]
    fn additions_linearise() {
        let mut counter = Counter::new(0x1000, 1);
        (0..3).for_each(|_| counter.begin());
        assert_eq!(counter.added(0, 0), Ok(()));
        assert!(counter.added(0, 0).is_err(), "found twice");
        assert!(counter.added(3, 0).is_err(), "one more than had begun before it");
        counter.begin();
        assert!(counter.added(1, 2).is_err(), "two had ended before it began");
        assert!(counter.check_end(2).is_err() && counter.check_end(5).is_err());
        assert_eq!(counter.check_end(4), Ok(()));
    }

    /// Two vmas never share a byte.
    #[test]
    #[should_panic(expected = "lies over another")]
    fn overlapping_vmas_are_found() {
        model().add(0x1800, Vma::new(1, 4096, 1, 2, 0, 64));
    }
}
