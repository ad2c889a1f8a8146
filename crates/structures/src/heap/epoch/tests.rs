//! The epoch rules, explored exhaustively: members join, read, free, move and advance in every order, and
//! read words one by one.

use super::*;
use std::collections::BTreeSet;

/// Members in the model: one reads, one frees, one advances the epoch.
const MEMBERS: usize = 3;
/// The last epoch that the model visits.
const EPOCH_MAX: u32 = 5;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ProgramState {
    Out,
    /// Read the epoch and is about to take a slot.
    Joining(u32),
    /// Has a slot and compares the epoch with its own.
    Checking,
    Idle,
    /// Read the epoch and is about to move there.
    Moving(u32),
    /// Reads the words of all in any order, then advances the epoch.
    Reading {
        epoch: u32,
        seen: [Option<u64>; MEMBERS],
    },
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct World {
    epoch: u32,
    words: [u64; MEMBERS],
    doing: [ProgramState; MEMBERS],
    /// True while the reader has a pointer to the record.
    holds: bool,
    /// The stamp of the record, once freed.
    freed: Option<u32>,
    reused: bool,
}

impl World {
    fn next(&self, to_reuse: u32) -> Vec<Self> {
        (0..MEMBERS).flat_map(|member| self.steps(member, to_reuse)).collect()
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut world = self.clone();
        change(&mut world);
        world
    }

    fn steps(&self, member: usize, to_reuse: u32) -> Vec<Self> {
        let word = Word(self.words[member]);
        let doing = |next: ProgramState| move |world: &mut Self| world.doing[member] = next;
        let moved = |epoch: u32, next: ProgramState| {
            move |world: &mut Self| {
                // Only changes of the beat matter: leaving it out reduces the number of worlds.
                world.words[member] = word.moved(epoch).0 & !0xffff;
                world.doing[member] = next;
            }
        };
        match self.doing[member] {
            ProgramState::Out => vec![self.with(doing(ProgramState::Joining(self.epoch)))],
            ProgramState::Joining(epoch) => vec![self.with(|world| {
                world.words[member] = word.joined(epoch).0;
                world.doing[member] = ProgramState::Checking;
            })],
            ProgramState::Checking if self.epoch == word.epoch() => {
                vec![self.with(doing(ProgramState::Idle))]
            }
            ProgramState::Checking => vec![self.with(moved(self.epoch, ProgramState::Checking))],
            ProgramState::Idle => self.idle(member, to_reuse),
            ProgramState::Moving(epoch) => vec![self.with(moved(epoch, ProgramState::Idle))],
            ProgramState::Reading { epoch, seen } => self.reading(member, epoch, seen),
        }
    }

    fn idle(&self, member: usize, to_reuse: u32) -> Vec<Self> {
        let own = Word(self.words[member]).epoch();
        let mut worlds = Vec::new();
        let is_reader = member == 0;
        if !(is_reader && self.holds) && self.epoch != own {
            worlds.push(self.with(|world| world.doing[member] = ProgramState::Moving(world.epoch)));
        }
        if self.epoch < EPOCH_MAX && self.epoch == own {
            let reading = ProgramState::Reading { epoch: own, seen: [None; MEMBERS] };
            worlds.push(self.with(|world| world.doing[member] = reading));
        }
        match (is_reader, self.holds, self.freed) {
            // The reader reads the pointer to the record, and drops it at some time.
            (true, false, None) => worlds.push(self.with(|world| world.holds = true)),
            (true, true, _) => worlds.push(self.with(|world| world.holds = false)),
            (false, _, None) if member == 1 => {
                worlds.push(self.with(|world| world.freed = Some(own + to_reuse)));
            }
            // The owner of the record reuses it, judging by the epoch in which it stands.
            (false, _, Some(stamp)) if own >= stamp => worlds.push(self.with(|world| world.reused = true)),
            _ => {}
        }
        worlds
    }

    fn reading(&self, member: usize, epoch: u32, seen: [Option<u64>; MEMBERS]) -> Vec<Self> {
        let mut worlds: Vec<Self> = (0..MEMBERS)
            .filter(|&other| seen[other].is_none())
            .map(|other| {
                let mut seen = seen;
                seen[other] = Some(self.words[other]);
                self.with(|world| world.doing[member] = ProgramState::Reading { epoch, seen })
            })
            .collect();
        if let [Some(a), Some(b), Some(c)] = seen {
            worlds.push(self.with(|world| {
                let advances = may_advance(epoch, &[Word(a), Word(b), Word(c)]) && world.epoch == epoch;
                world.epoch += u32::from(advances);
                world.doing[member] = ProgramState::Idle;
            }));
        }
        worlds
    }
}

/// Explores all worlds. Returns their number, whether the record was reused while the reader had a pointer to
/// it, and whether it was reused at all.
fn explore(to_reuse: u32) -> (usize, bool, bool) {
    let start = World {
        epoch: 1,
        words: [0, Word::default().joined(1).0, Word::default().joined(1).0],
        doing: [ProgramState::Out, ProgramState::Idle, ProgramState::Idle],
        holds: false,
        freed: None,
        reused: false,
    };
    let mut seen = BTreeSet::from([start.clone()]);
    let mut open = vec![start];
    let (mut wrong, mut reused) = (false, false);
    while let Some(world) = open.pop() {
        reused |= world.reused;
        wrong |= world.reused && world.holds;
        if wrong {
            break;
        }
        if world.reused {
            continue;
        }
        for next in world.next(to_reuse) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    (seen.len(), wrong, reused)
}

/// No member holds a pointer to reused memory, and freed memory is reused.
#[test]
fn reused_memory_is_held_by_no_member() {
    let (worlds, wrong, reused) = explore(EPOCHS_TO_REUSE);
    assert!(!wrong);
    assert!(reused && worlds > 10_000, "{worlds} worlds");
}

/// With fewer epochs the model finds an error: the freeing member may stand one epoch behind.
#[test]
fn two_epochs_are_too_few() {
    assert!(explore(EPOCHS_TO_REUSE - 1).1);
}

#[test]
fn a_word_has_its_parts() {
    let word = Word::default().joined(7);
    assert_eq!((word.generation(), word.epoch(), word.is_free()), (1, 7, false));
    let moved = word.moved(u32::MAX);
    assert_eq!((moved.generation(), moved.epoch()), (1, u32::MAX));
    assert_ne!(moved.moved(u32::MAX), moved, "each change is seen");
    let last = Word(u64::MAX).moved(3);
    assert_eq!((last.generation(), last.epoch()), (u16::MAX, 3), "a beat that goes round stays in its place");
    assert_eq!(moved.left().joined(2).generation(), 2);
    assert!(moved.left().is_free());
    assert!(!may_advance(u32::MAX, &[]), "the last epoch stays");
    assert_eq!(stamp(u32::MAX - 1), u32::MAX, "what is freed then is never used again");
}

/// A member that is silent for three leases is evicted by a member that observes often enough.
#[test]
fn the_silent_are_evicted() {
    let at = |seconds| Duration::from_secs(seconds);
    let (lease, word) = (at(10), Word::default().joined(4));
    let mut watch = Watch::begin(word, at(100));
    assert!(!watch.look(word, at(129), at(129), lease));
    assert!(watch.look(word, at(130), at(131), lease));
    assert!(!watch.look(word.moved(4), at(131), at(131), lease), "it is there");
    assert!(!watch.look(word.moved(4), at(160), at(160), lease));
    assert!(
        !watch.look(word.moved(4), at(999), at(999), lease),
        "too long ago: the same word may be a later one"
    );
    assert!(watch.look(word.moved(4), at(1030), at(1030), lease));
}
