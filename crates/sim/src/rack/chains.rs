//! Traversals that store: each adds one to several counters, on several memory nodes, and returns the values
//! found there.
//!
//! All programs also increment these counters with atomics. No two additions may find the same value, whether
//! by atomic or traversal. So the check detects a traversal that executed twice somewhere, or not at all, or
//! whose addition was not atomic (PROTOCOL 7.35, 7.36).

use super::Rack;
use super::tasks::{Operation, Path, Stop, Task};
use crate::checker::Counter;
use farmem_host::{Answer, Done, Failure, Op};
use farmem_traversal::Program;
use farmem_wire::{Status, VirtAddr};

/// Maximum number of counters that one traversal visits, repeats included.
const STOPS_MAX: usize = 12;
/// Offsets in the scratch pad of the addresses, and of the found values. The first word holds the number of
/// bytes done in each.
const ADDRS: usize = 8;
const FOUND: usize = ADDRS + 8 * (STOPS_MAX + 1);
const SCRATCH_LEN: usize = FOUND + 8 * STOPS_MAX;

/// The path is in the scratch pad, so no program needs to build a list.
const ADD_ALONG: &str = "
    ld8 r2, scratch[0]
    ld8 r3, window[0]
    st8 scratch[r2 + FOUND], r3
    add r3, 1
    st8 window[0], r3
    add r2, 8
    st8 scratch[0], r2
    ld8 r4, scratch[r2 + ADDRS]
    jeq r4, 0, end
    next r4
end:
    ret
";

/// Returns the program that adds along its path.
pub(super) fn program() -> Program {
    let names = format!(".def ADDRS {ADDRS}\n.def FOUND {FOUND}\n.scratch {SCRATCH_LEN}\n.stores\n");
    Program::assemble(&(names + ADD_ALONG)).expect("a program")
}

impl Rack {
    /// Starts a traversal along some counters of the program's domain.
    pub(super) fn start_adding(&mut self, index: usize) {
        if !self.clients[index].has_session() {
            return;
        }
        let each = self.counters.len() / super::DOMAINS;
        let first = self.clients[index].domain * each;
        let len = 1 + self.rng.below(u32::try_from(STOPS_MAX).expect("few"));
        let way: Vec<Stop> = (0..len)
            .map(|_| {
                let counter = first + self.rng.below(u32::try_from(each).expect("few")) as usize;
                let (floor, losses) = (self.counters[counter].floor(), self.counters[counter].home.losses);
                self.counters[counter].begin();
                Stop { counter, floor, losses }
            })
            .collect();
        let mut scratch = vec![0; SCRATCH_LEN];
        for (stop, word) in way.iter().zip(scratch[ADDRS..].chunks_exact_mut(8)) {
            word.copy_from_slice(&self.counters[stop.counter].addr.to_le_bytes());
        }
        let cur_ptr = VirtAddr(self.counters[way[0].counter].addr);
        let limit = if self.rng.chance(1, 4) { 1 + self.rng.below(len) } else { 1000 };
        let task = Task::new(index, self.world.now(), Operation::Add { way, limit });
        self.submit(task, Op::Traverse { program: self.adding.clone(), cur_ptr, scratch, limit });
    }

    /// Judges the end of an adding traversal: reported additions happened exactly once, and unreported ones
    /// did not happen. Without an answer the rest is unknown.
    pub(super) fn added(&mut self, task: &Task, way: &[Stop], limit: u32, done: &Done) -> Result<(), String> {
        let word = |at: usize| {
            let bytes = done.buf.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).ok_or("the scratch pad was cut")
        };
        let stops = usize::try_from(word(0)? / 8).unwrap_or(usize::MAX);
        if stops > way.len() {
            return Err(format!("{stops} stops on a way of {}", way.len()));
        }
        for (number, stop) in way.iter().enumerate() {
            let counter = &mut self.counters[stop.counter];
            // An answer of memory that was lost meanwhile says nothing about the new memory.
            if stop.losses != counter.home.losses {
                continue;
            }
            if number < stops {
                counter.added(word(FOUND + 8 * number)?, stop.floor)?;
            } else if done.result != Err(Failure::NoAnswer) {
                counter.missed();
            }
        }
        match done.result {
            Ok(Answer::Traversed(end)) => {
                let len = u32::try_from(way.len()).expect("few");
                let right = end.returned == (len <= limit) && end.iterations == limit.min(len);
                let counted = u32::try_from(stops) == Ok(end.iterations);
                if right && counted { Ok(()) } else { Err("it ended elsewhere".to_owned()) }
            }
            Ok(other) => Err(format!("a traversal answers {other:?}")),
            Err(Failure::Refused { status: Status::Lost, addr }) => self.stopped_at_loss(task, addr),
            Err(failure) => self.may_fail(task, Path::Switch, None, failure),
        }
    }

    /// Returns the number of additions to a counter that operations in flight may still make.
    pub(super) fn additions_under_way(&self, counter: usize) -> u64 {
        let ways = self.tasks.values().filter_map(|task| match &task.what {
            Operation::Add { way, .. } => Some(way),
            _ => None,
        });
        let atomics = self.tasks.values().filter(|task| task.still_counts() == Some(counter)).count() as u64;
        atomics + ways.flatten().filter(|stop| stop.counter == counter).count() as u64
    }

    /// Resets the counters of a node, which begin at zero when their loss is accepted. Operations in flight
    /// may still execute: an atomic that its host keeps until there is a connection, and a traversal. The
    /// other nodes on its path remember its execution (PROTOCOL 9.8).
    pub(super) fn counters_lost(&mut self, node: u16) {
        for number in 0..self.counters.len() {
            if self.counters[number].home.may_be_at(node) {
                let under_way = self.additions_under_way(number);
                let counter: &mut Counter = &mut self.counters[number];
                counter.lost();
                (0..under_way).for_each(|_| counter.begin());
            }
        }
    }
}
