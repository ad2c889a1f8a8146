//! Destruction of a heap beside programs that open it: every order of three programs in a model, and every
//! order of two programs with far memory, including death and lost replies.

use super::super::epoch::{Word, may_advance};
use super::super::{Clock, HeapOptions};
use super::*;
use farmem_client::{Client, NodeId, Rack, VirtAddr, forward_far_memory};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Programs in the model.
const PROGRAMS: usize = 3;
/// Number of times each program joins.
const JOINS_MAX: [u16; PROGRAMS] = [2, 2, 1];
/// The last epoch that the model visits.
const EPOCH_MAX: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ProgramState {
    Out,
    /// Read the epoch word and is about to take a slot.
    Joining(EpochWord),
    /// Has a slot and is about to read the epoch word.
    Checking,
    /// Saw a closed heap and is about to reopen it.
    Opening(EpochWord),
    In,
    /// Saw that all members stand in this epoch.
    Advancing(EpochWord),
    /// Is about to close the heap.
    Closing(EpochWord),
    /// Has closed the heap and reads the words of all, in any order.
    Looking(EpochWord, [bool; PROGRAMS]),
    /// Found no other member.
    Ending(EpochWord),
    /// Has destroyed the heap.
    Ended,
    /// Learned that the heap is gone.
    Informed,
}

/// The steps that the programs take. A false field omits a step, to show that the model detects its absence.
#[derive(Clone, Copy)]
struct Rules {
    looks_after_joining: bool,
    looks_after_closing: bool,
    closes_by_name: bool,
}

const RULES: Rules = Rules { looks_after_joining: true, looks_after_closing: true, closes_by_name: true };

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct World {
    word: EpochWord,
    slots: [u64; PROGRAMS],
    doing: [ProgramState; PROGRAMS],
}

impl World {
    fn start() -> Self {
        let mut slots = [0; PROGRAMS];
        slots[0] = Word::default().joined(1).0;
        let mut doing = [ProgramState::Out; PROGRAMS];
        doing[0] = ProgramState::In;
        Self { word: EpochWord::open(1), slots, doing }
    }

    fn slot(&self, program: usize) -> Word {
        Word(self.slots[program])
    }

    fn with(&self, program: usize, next: ProgramState, change: impl FnOnce(&mut Self)) -> Self {
        let mut world = self.clone();
        world.doing[program] = next;
        change(&mut world);
        world
    }

    /// Replaces the word if it has this value.
    fn swap(&mut self, was: EpochWord, next: EpochWord) -> bool {
        let is_it = self.word == was;
        if is_it {
            self.word = next;
        }
        is_it
    }

    fn steps(&self, program: usize, rules: Rules) -> Vec<Self> {
        let (word, own) = (self.word, self.slot(program));
        let leaves = |world: &mut Self| world.slots[program] = own.left().0;
        let one = |next: ProgramState| vec![self.with(program, next, |_| {})];
        match self.doing[program] {
            ProgramState::Ended | ProgramState::Informed => Vec::new(),
            ProgramState::Out if word.is_destroyed() => one(ProgramState::Informed),
            ProgramState::Out if own.generation() >= JOINS_MAX[program] => Vec::new(),
            ProgramState::Out => one(ProgramState::Joining(word)),
            ProgramState::Joining(seen) => {
                let next = if rules.looks_after_joining { ProgramState::Checking } else { ProgramState::In };
                let joins = |world: &mut Self| world.slots[program] = own.joined(seen.epoch()).0;
                vec![self.with(program, next, joins)]
            }
            ProgramState::Checking if word.is_destroyed() => {
                vec![self.with(program, ProgramState::Informed, leaves)]
            }
            ProgramState::Checking if own.is_free() => one(ProgramState::Out),
            ProgramState::Checking if !word.is_open() => one(ProgramState::Opening(word)),
            ProgramState::Checking if word.epoch() == own.epoch() => one(ProgramState::In),
            ProgramState::Checking => vec![self.moved(program, ProgramState::Checking)],
            ProgramState::Opening(seen) => vec![self.with(program, ProgramState::Checking, |world| {
                world.swap(seen, EpochWord::open(seen.epoch()));
            })],
            ProgramState::In => self.member(program),
            ProgramState::Advancing(seen) => vec![self.with(program, ProgramState::In, |world| {
                world.swap(seen, EpochWord::open(seen.epoch() + 1));
            })],
            ProgramState::Closing(seen) => {
                let (slot, generation) =
                    if rules.closes_by_name { (program, own.generation()) } else { (0, 0) };
                let closing = seen.closing(slot, generation);
                let mut world = self.clone();
                world.doing[program] = match (world.swap(seen, closing), rules.looks_after_closing) {
                    (false, _) => ProgramState::In,
                    (true, true) => ProgramState::Looking(closing, [false; PROGRAMS]),
                    (true, false) => ProgramState::Ending(closing),
                };
                vec![world]
            }
            ProgramState::Looking(closing, seen) => self.look(program, closing, seen),
            ProgramState::Ending(closing) => {
                let mut world = self.clone();
                let ends = world.swap(closing, closing.destroyed());
                world.doing[program] = if ends { ProgramState::Ended } else { ProgramState::In };
                vec![world]
            }
        }
    }

    fn moved(&self, program: usize, next: ProgramState) -> Self {
        // Leaving out the beat reduces the number of worlds.
        let moved = self.slot(program).moved(self.word.epoch()).0 & !0xffff;
        self.with(program, next, |world| world.slots[program] = moved)
    }

    fn member(&self, program: usize) -> Vec<Self> {
        let (word, own) = (self.word, self.slot(program));
        // The next renewal reports the eviction; the program has done nothing since the last one.
        if own.is_free() {
            return vec![self.with(program, ProgramState::Out, |_| {})];
        }
        if word.is_destroyed() {
            return vec![self.with(program, ProgramState::Informed, |_| {})];
        }
        let mut worlds = vec![
            self.with(program, ProgramState::Out, |world| world.slots[program] = own.left().0),
            self.with(program, ProgramState::Closing(word), |_| {}),
        ];
        let words: Vec<Word> = self.slots.iter().map(|&word| Word(word)).collect();
        if own.epoch() != word.epoch() {
            worlds.push(self.moved(program, ProgramState::In));
        } else if word.epoch() < EPOCH_MAX && may_advance(word.epoch(), &words) {
            worlds.push(self.with(program, ProgramState::Advancing(word), |_| {}));
        }
        // Other programs paused for three leases, in any state.
        for other in (0..PROGRAMS).filter(|&other| other != program && !self.slot(other).is_free()) {
            let left = self.slot(other).left().0;
            worlds.push(self.with(program, ProgramState::In, |world| world.slots[other] = left));
        }
        worlds
    }

    fn look(&self, program: usize, closing: EpochWord, seen: [bool; PROGRAMS]) -> Vec<Self> {
        if seen == [true; PROGRAMS] {
            return vec![self.with(program, ProgramState::Ending(closing), |_| {})];
        }
        let unseen = (0..PROGRAMS).filter(|&other| !seen[other]);
        let look = |other: usize| {
            if self.slot(other).is_free() == (other == program) {
                // Another member is present, or this one was evicted.
                return self.with(program, ProgramState::In, |world| {
                    world.swap(closing, EpochWord::open(closing.epoch()));
                });
            }
            let mut seen = seen;
            seen[other] = true;
            self.with(program, ProgramState::Looking(closing, seen), |_| {})
        };
        unseen.map(look).collect()
    }

    /// Returns true when a program has the heap open and was not evicted.
    fn is_member(&self, program: usize) -> bool {
        let outside = matches!(
            self.doing[program],
            ProgramState::Out
                | ProgramState::Joining(_)
                | ProgramState::Checking
                | ProgramState::Opening(_)
                | ProgramState::Ended
                | ProgramState::Informed
        );
        !outside && !self.slot(program).is_free()
    }

    /// Returns true when the invariants hold.
    fn is_right(&self) -> bool {
        let ended = self.doing.iter().filter(|&&doing| doing == ProgramState::Ended).count();
        let members = (0..PROGRAMS).filter(|&program| self.is_member(program)).count();
        if self.word.is_destroyed() { ended == 1 && members == 0 } else { ended == 0 }
    }

    /// Returns true when `program` can join while all others stand still.
    fn lets_in(&self, program: usize) -> bool {
        let mut world = self.clone();
        for _ in 0..8 {
            if world.doing[program] == ProgramState::In {
                return true;
            }
            match world.steps(program, RULES).pop() {
                Some(next) => world = next,
                None => break,
            }
        }
        false
    }
}

/// Explores all worlds. Returns them, and the first that violates an invariant.
fn explore(rules: Rules) -> (BTreeSet<World>, Option<World>) {
    let mut seen = BTreeSet::from([World::start()]);
    let mut open = vec![World::start()];
    while let Some(world) = open.pop() {
        for next in (0..PROGRAMS).flat_map(|program| world.steps(program, rules)) {
            if !next.is_right() || next.word.epoch() < world.word.epoch() {
                return (seen, Some(next));
            }
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    (seen, None)
}

/// No program has a destroyed heap open, exactly one program destroys it, and no epoch is lost. Until then
/// every newcomer can join, wherever others died.
#[test]
fn no_member_has_a_destroyed_heap_open() {
    let (worlds, wrong) = explore(RULES);
    assert_eq!(wrong, None);
    assert!(worlds.len() > 100_000, "{} worlds", worlds.len());
    assert!(worlds.iter().any(|world| world.word.is_destroyed()));
    for world in worlds.iter().filter(|world| !world.word.is_destroyed()) {
        for (program, joins_max) in JOINS_MAX.into_iter().enumerate() {
            let may_join = world.slot(program).generation() < joins_max;
            let comes = world.doing[program] == ProgramState::Out && may_join;
            assert!(!comes || world.lets_in(program), "{program} in {world:?}");
        }
    }
}

/// Without either look, and with a closed word that does not name its closer, the model finds a violation.
#[test]
fn each_look_is_needed() {
    assert!(explore(Rules { looks_after_joining: false, ..RULES }).1.is_some());
    assert!(explore(Rules { looks_after_closing: false, ..RULES }).1.is_some());
    assert!(explore(Rules { closes_by_name: false, ..RULES }).1.is_some());
}

#[test]
fn the_word_of_the_epoch_has_its_parts() {
    let open = EpochWord::open(u32::MAX);
    let closing = open.closing(63, u16::MAX);
    assert_eq!((open.word(), open.epoch(), closing.epoch()), (u64::from(u32::MAX), u32::MAX, u32::MAX));
    assert!(open.is_open() && !open.is_destroyed());
    assert!(!closing.is_open() && !closing.is_destroyed());
    assert!(closing.destroyed().is_destroyed() && !closing.destroyed().is_open());
    assert_ne!(closing, open.closing(62, u16::MAX));
    assert_ne!(closing, open.closing(63, 0));
    assert_eq!(closing.closing(1, 2), open.closing(1, 2), "closing a closed heap has no further effect");
    for good in [open, closing, closing.destroyed()] {
        assert_eq!(EpochWord::parse(good.word()), Some(good));
    }
    for bad in [0, 1 << 32 | 1, closing.word() & !0xffff_ffff, closing.word() | closing.destroyed().word()] {
        assert_eq!(EpochWord::parse(bad), None, "{bad:#x}");
    }
}

/// The fate of a verb.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VerbFault {
    Answered,
    /// The verb is executed, but its reply is lost.
    Unanswered,
    /// The verb is lost before execution.
    Lost,
}

/// A client's far memory in which a test decides the fate of each verb. Destroying and joining use no
/// traversals, so a traversal would be READs here.
struct FaultyMemory<'a> {
    client: &'a mut Client,
    act: &'a mut dyn FnMut(u32) -> VerbFault,
    verbs: u32,
}

impl<'a> FaultyMemory<'a> {
    fn new(client: &'a mut Client, act: &'a mut dyn FnMut(u32) -> VerbFault) -> Self {
        Self { client, act, verbs: 0 }
    }

    fn carry_out<T>(&mut self, verb: impl FnOnce(&mut Client) -> Result<T, Error>) -> Result<T, Error> {
        self.verbs += 1;
        let fate = (self.act)(self.verbs);
        let unheard = Error::Unreachable { what: "memory that a test took away".into() };
        match fate {
            VerbFault::Answered => verb(self.client),
            VerbFault::Unanswered => verb(self.client).and(Err(unheard)),
            VerbFault::Lost => Err(unheard),
        }
    }
}

impl FarMemory for FaultyMemory<'_> {
    forward_far_memory!(client: allocate, allocate_on, free, nodes, scratch_len_max);

    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        self.carry_out(|client| client.read(addr, into))
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        self.carry_out(|client| client.write(addr, data))
    }

    fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        self.carry_out(|client| client.compare_swap(addr, compare, swap))
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error> {
        self.carry_out(|client| client.fetch_add(addr, add))
    }
}

const LEASE: Duration = Duration::from_secs(10);

/// A rack with a heap, and a clock that stands still until a test moves it.
struct Site {
    rack: Rack,
    seconds: Arc<AtomicU64>,
}

impl Site {
    fn new() -> Self {
        Self { rack: Rack::embedded_with(1, 16 << 20).unwrap(), seconds: Arc::default() }
    }

    fn options(&self) -> HeapOptions {
        let seconds = Arc::clone(&self.seconds);
        let clock = Clock::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)));
        HeapOptions { lease: LEASE, clock }
    }

    fn program(&self, creates: bool) -> (Client, Heap) {
        let mut client = self.rack.client("closing").unwrap();
        let open = if creates { Heap::create } else { Heap::open };
        let heap = open(&mut client, "heap", self.options()).unwrap();
        (client, heap)
    }

    /// Works in the heap as a further program, if there is a heap, and returns the result of opening it.
    /// Freed room is recovered, so the epoch advances.
    fn works(&self) -> Result<(), Error> {
        let mut client = self.rack.client("closing").unwrap();
        let mut heap = Heap::open(&mut client, "heap", self.options())?;
        let record = heap.put_on(&mut client, NodeId(1), 9, b"a record").unwrap();
        assert_eq!(heap.read(&mut client, record).unwrap().1, b"a record");
        heap.free(&mut client, record).unwrap();
        for _ in 0..8 {
            self.seconds.fetch_add(9, Ordering::Relaxed);
            heap.reclaim(&mut client).unwrap();
        }
        assert_eq!(heap.waiting(), 0);
        heap.close(&mut client)
    }
}

fn is_missing(result: &Result<(), Error>) -> bool {
    matches!(result, Err(error @ Error::Missing { .. }) if error.to_string().contains("destroyed"))
}

/// A program opens the heap before any verb of the destroying program. The opener keeps the heap open, and
/// the destroyer fails.
#[test]
fn opening_a_heap_during_its_destruction_keeps_it() {
    let mut verbs = 0;
    for at in 1.. {
        let site = Site::new();
        let (mut client, mut heap) = site.program(true);
        let mut opened = None;
        let mut act = |verb| {
            if verb == at {
                opened = Some(site.program(false));
            }
            VerbFault::Answered
        };
        let shut = heap.shut(&mut FaultyMemory::new(&mut client, &mut act));
        let Some((mut other, mut its)) = opened else {
            shut.unwrap();
            assert!(is_missing(&site.works()), "it is destroyed");
            break;
        };
        assert!(matches!(shut, Err(Error::Locked { .. })), "before verb {at}: {shut:?}");
        its.put_on(&mut other, NodeId(1), 9, b"its").unwrap();
        heap.close(&mut client).unwrap();
        site.works().unwrap();
        its.destroy(&mut other).unwrap();
        verbs = at;
    }
    // At least two looks of two READs each, the rows, and two compare-and-swaps.
    assert!(verbs >= 5, "{verbs} verbs");
}

/// A program destroys the heap before any verb of a program that opens it. One of the two succeeds; the other
/// fails and leaves the root unchanged.
#[test]
fn opening_a_heap_that_is_destroyed_meanwhile_fails() {
    let (mut kept, mut told) = (0, 0);
    for at in 1.. {
        let site = Site::new();
        let (mut client, mut heap) = site.program(true);
        let (mut other, mut its) = site.program(false);
        its.leave(&mut other).unwrap();
        let base = heap.base;
        let (mut shut, mut root) = (None, vec![0; 1024]);
        let mut act = |verb| {
            if verb == at {
                shut = Some(heap.shut(&mut client));
                client.read(base, &mut root).unwrap();
            }
            VerbFault::Answered
        };
        let joined = its.keep(&mut FaultyMemory::new(&mut other, &mut act));
        let mut now = vec![0; 1024];
        match (shut, joined) {
            (None, joined) => {
                joined.unwrap();
                break;
            }
            (Some(Err(Error::Locked { .. })), Ok(())) => {
                heap.close(&mut client).unwrap();
                site.works().unwrap();
                kept += 1;
            }
            (Some(Ok(())), joined) => {
                assert!(is_missing(&joined), "{joined:?}");
                client.read(base, &mut now).unwrap();
                // The slot may have been taken and is free again.
                let left = |bytes: &[u8]| {
                    crate::words(bytes).into_iter().filter(|&word| !Word(word).is_free()).count()
                };
                assert!(left(&now) <= left(&root), "it has left");
                assert!(is_missing(&its.keep(&mut other)) && is_missing(&site.works()));
                told += 1;
            }
            other => panic!("before verb {at}: {other:?}"),
        }
    }
    assert!(kept >= 1 && told >= 2, "{kept} kept, {told} told");
}

/// Far memory executes a verb of the destroying program without a reply, or drops one verb, or all later
/// ones, as for a dead program. A program that received an error has destroyed nothing, and others continue
/// with the heap. The only exception is the very last word, whose reply may be lost.
#[test]
fn a_program_that_cannot_destroy_a_heap_leaves_it() {
    let fates = |at: u32| -> [Box<dyn Fn(u32) -> VerbFault>; 5] {
        [
            Box::new(move |verb| if verb == at { VerbFault::Unanswered } else { VerbFault::Answered }),
            Box::new(move |verb| if verb == at { VerbFault::Lost } else { VerbFault::Answered }),
            Box::new(move |verb| if verb >= at { VerbFault::Lost } else { VerbFault::Answered }),
            Box::new(move |verb| match verb.cmp(&at) {
                core::cmp::Ordering::Less => VerbFault::Answered,
                core::cmp::Ordering::Equal => VerbFault::Unanswered,
                core::cmp::Ordering::Greater => VerbFault::Lost,
            }),
            Box::new(move |verb| match verb.wrapping_sub(at) {
                0 => VerbFault::Unanswered,
                1 => VerbFault::Lost,
                _ => VerbFault::Answered,
            }),
        ]
    };
    let verbs = {
        let site = Site::new();
        let (mut client, mut heap) = site.program(true);
        let mut act = |_| VerbFault::Answered;
        let mut memory = FaultyMemory::new(&mut client, &mut act);
        heap.shut(&mut memory).unwrap();
        memory.verbs
    };
    for at in 1..=verbs {
        for (which, fate) in fates(at).iter().enumerate() {
            let site = Site::new();
            let (mut client, mut heap) = site.program(true);
            let mut act = |verb| fate(verb);
            let shut = heap.shut(&mut FaultyMemory::new(&mut client, &mut act));
            // The program is gone, whatever the result. Only its effects remain.
            drop((heap, client));
            let works = site.works();
            let unheard = at == verbs && which == 3;
            match shut {
                Ok(()) => {
                    assert!(is_missing(&works) && at == verbs && matches!(which, 0 | 4), "{at}, {which}")
                }
                Err(Error::Unreachable { .. }) if unheard => assert!(is_missing(&works)),
                Err(Error::Unreachable { .. }) => works.unwrap(),
                other => panic!("{at}, {which}: {other:?}"),
            }
        }
    }
}
