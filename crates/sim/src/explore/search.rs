//! The breadth-first search through all reachable worlds, each visited once.
//!
//! Key type: [`Search`]. Memory holds one layer of worlds. For all other worlds it holds a fingerprint and
//! that of the predecessor, which suffices to reconstruct the shortest path to any of them.

use super::canonical::Canonical;
use super::model::{Broken, Rules, World};
use super::moves::Move;
use super::{Config, Finding, Report, Verdict};
use std::mem;

/// Maximum number of steps until a world without further faults comes to rest.
const REST_STEPS_MAX: usize = 80;

/// An open-addressed table of fingerprints, each with its predecessor.
#[derive(Debug)]
struct Visited {
    slots: Vec<(u64, u64)>,
    len: usize,
}

impl Visited {
    fn new() -> Self {
        Self { slots: vec![(0, 0); 1 << 16], len: 0 }
    }

    /// Adds a fingerprint. Returns false if it was present.
    fn insert(&mut self, print: u64, from: u64) -> bool {
        if self.len * 4 >= self.slots.len() * 3 {
            self.grow();
        }
        let at = self.place(print);
        if self.slots[at].0 == print {
            return false;
        }
        self.slots[at] = (print, from);
        self.len += 1;
        true
    }

    fn from(&self, print: u64) -> u64 {
        self.slots[self.place(print)].1
    }

    fn contains(&self, print: u64) -> bool {
        self.slots[self.place(print)].0 == print
    }

    /// Returns the place of the fingerprint, present or not. 0 marks a free slot and is no world's
    /// fingerprint.
    fn place(&self, print: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = (print >> 17) as usize & mask;
        while self.slots[at].0 != 0 && self.slots[at].0 != print {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        let bigger = vec![(0, 0); self.slots.len() * 2];
        let old = mem::replace(&mut self.slots, bigger);
        for (print, from) in old.into_iter().filter(|&(print, _)| print != 0) {
            let at = self.place(print);
            self.slots[at] = (print, from);
        }
    }
}

/// A search in progress.
#[derive(Debug)]
pub(super) struct Search {
    rules: Rules,
    canonical: Canonical,
    visited: Visited,
    /// Worlds from which rest is reached.
    resting: Visited,
    transitions: u64,
    depth: u32,
    rest_steps: usize,
}

impl Search {
    pub(super) fn new(config: Config) -> Self {
        Self {
            rules: Rules::new(config),
            canonical: Canonical::default(),
            visited: Visited::new(),
            resting: Visited::new(),
            transitions: 0,
            depth: 0,
            rest_steps: 0,
        }
    }

    /// Searches until every world was visited, a violation is found, or there are too many worlds.
    pub(super) fn run(mut self, progress: &mut dyn FnMut(u64)) -> Report {
        let first = World::new(&self.rules.config);
        let print = self.print(&first);
        self.visited.insert(print, 0);
        let mut layer = vec![first];
        while !layer.is_empty() {
            if self.visited.len as u64 >= self.rules.config.states_max {
                return self.report(Verdict::TooMany, None);
            }
            match self.layer(layer) {
                Ok(next) => layer = next,
                Err(finding) => {
                    let verdict = if finding.stuck { Verdict::Stuck } else { Verdict::Unsafe };
                    return self.report(verdict, Some(*finding));
                }
            }
            self.depth += u32::from(!layer.is_empty());
            progress(self.visited.len as u64);
        }
        self.report(Verdict::Fine, None)
    }

    fn report(self, verdict: Verdict, finding: Option<Finding>) -> Report {
        Report {
            config: self.rules.config,
            verdict,
            states: self.visited.len as u64,
            transitions: self.transitions,
            depth: self.depth,
            rest_steps: self.rest_steps,
            finding,
        }
    }

    fn print(&mut self, world: &World) -> u64 {
        self.canonical.fingerprint(world, &self.rules.config).max(1)
    }

    /// Returns all unvisited worlds one move after these. Each of these is dropped once expanded, because
    /// layers are large.
    fn layer(&mut self, layer: Vec<World>) -> Result<Vec<World>, Box<Finding>> {
        let mut next = Vec::new();
        let mut moves = Vec::new();
        for world in layer {
            let from = self.print(&world);
            world.moves(&self.rules, &mut moves);
            for &happens in &moves {
                let mut after = world.clone();
                let played = after.play(happens, &mut self.rules);
                if after.net.len() > self.rules.config.flight_max {
                    continue;
                }
                self.transitions += 1;
                played.map_err(|broken| self.finding(from, Some(happens), broken, false))?;
                let print = self.print(&after);
                if !self.visited.insert(print, from) {
                    continue;
                }
                after.check(&self.rules).map_err(|broken| self.finding(print, None, broken, false))?;
                if self.rules.config.live {
                    self.comes_to_rest(&after).map_err(|broken| self.finding(print, None, broken, true))?;
                }
                after.net.shrink_to_fit();
                next.push(after);
            }
        }
        Ok(next)
    }

    /// Checks that the rack comes to rest from here: without losses or new requests, and with timers firing
    /// in turn whenever nothing is in flight.
    fn comes_to_rest(&mut self, world: &World) -> Result<(), Broken> {
        let mut prints = Vec::new();
        let mut world = world.clone();
        let (mut duties, mut turn) = (Vec::new(), 0);
        while prints.len() < REST_STEPS_MAX {
            let print = self.print(&world);
            if self.resting.contains(print) {
                break;
            }
            prints.push(print);
            duties.clear();
            world.duties(&mut duties);
            let happens = if let Some(&message) = world.net.first() {
                Move::Deliver(message)
            } else if let Some(&duty) = duties.first() {
                duty
            } else {
                world.timers(true, &mut duties);
                if duties.is_empty() {
                    break;
                }
                turn += 1;
                duties[turn % duties.len()]
            };
            world.play(happens, &mut self.rules)?;
        }
        if prints.len() == REST_STEPS_MAX {
            return Err(format!("no rest within {REST_STEPS_MAX} steps"));
        }
        self.rest_steps = self.rest_steps.max(prints.len());
        for print in prints {
            self.resting.insert(print, 0);
        }
        Ok(())
    }

    /// Reconstructs the shortest path to the world with this fingerprint, plus one move.
    fn finding(&mut self, to: u64, last: Option<Move>, what: Broken, stuck: bool) -> Box<Finding> {
        let mut prints = vec![to];
        while let Some(&print) = prints.last()
            && self.visited.from(print) != 0
        {
            prints.push(self.visited.from(print));
        }
        let mut world = World::new(&self.rules.config);
        let mut trace = Vec::new();
        let mut moves = Vec::new();
        for &print in prints.iter().rev().skip(1) {
            world.moves(&self.rules, &mut moves);
            let (happens, after) = moves
                .iter()
                .find_map(|&happens| {
                    let mut after = world.clone();
                    let played = after.play(happens, &mut self.rules).is_ok();
                    let there =
                        played && self.canonical.fingerprint(&after, &self.rules.config).max(1) == print;
                    there.then_some((happens, after))
                })
                .expect("the way there was taken before");
            trace.push(happens.to_string());
            world = after;
        }
        trace.extend(last.map(|happens| happens.to_string()));
        Box::new(Finding { what, stuck, trace })
    }
}
