//! Lookups in batches, in every way there is to run them.

use super::structures::{Btree, Hash, Query};
use super::table::{Table, cpu_time};
use super::{Chance, Measured, Variant};
use crate::{Compiled, Executor, IN_FLIGHT_DEFAULT, Jit, Miss, Ranges, Search, Visit};
use farmem_traversal::{End, Outcome, Program, State, Step, run};
use farmem_wire::VirtAddr;
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// Lookups that come in at once.
const BATCH: usize = 512;

/// A way to run lookups.
pub(super) struct Way {
    /// Behind the name of the structure; the reported one has none.
    name: &'static str,
    /// `None`: the interpreter, one at a time.
    in_flight: Option<usize>,
    windows: Windows,
    /// Lookups per measurement, so that each takes about a tenth of a second.
    lookups: usize,
}

#[derive(Clone, Copy)]
enum Windows {
    /// As the engine has them.
    Plain,
    /// Ranges searched one after the other.
    Portable,
    /// Without an executor: the next lookup begins when the one before has its answer.
    OneByOne,
}

const fn way(name: &'static str, in_flight: usize, windows: Windows, lookups: usize) -> Way {
    Way { name, in_flight: Some(in_flight), windows, lookups }
}

impl Way {
    pub(super) const HASH: [Self; 9] = [
        way("", IN_FLIGHT_DEFAULT, Windows::Plain, 400_000),
        way(".portable_ranges", IN_FLIGHT_DEFAULT, Windows::Portable, 400_000),
        way(".k8", 8, Windows::Plain, 400_000),
        way(".k16", 16, Windows::Plain, 400_000),
        way(".k32", 32, Windows::Plain, 400_000),
        way(".k48", 48, Windows::Plain, 400_000),
        way(".k64", 64, Windows::Plain, 400_000),
        way(".one_at_a_time", 1, Windows::OneByOne, 120_000),
        Self { name: ".interpreter", in_flight: None, windows: Windows::Plain, lookups: 120_000 },
    ];
    pub(super) const RANK: [Self; 2] = [
        way("", IN_FLIGHT_DEFAULT, Windows::Plain, 400_000),
        way(".one_at_a_time", 1, Windows::OneByOne, 80_000),
    ];
    pub(super) const BTREE: [Self; 6] = [
        way("", IN_FLIGHT_DEFAULT, Windows::Plain, 400_000),
        way(".portable_ranges", IN_FLIGHT_DEFAULT, Windows::Portable, 400_000),
        way(".k8", 8, Windows::Plain, 400_000),
        way(".k16", 16, Windows::Plain, 400_000),
        way(".one_at_a_time", 1, Windows::OneByOne, 80_000),
        Self { name: ".interpreter", in_flight: None, windows: Windows::Plain, lookups: 60_000 },
    ];
}

/// A structure and its program.
pub(super) struct Lookups<'t> {
    table: &'t Table,
    ranges: Ranges,
    program: Program,
    compiled: Arc<Compiled>,
    make: Box<dyn Fn(&mut Chance) -> Query + 't>,
    /// Words of the scratch pad: the wanted key, whether it was found, its value.
    found: usize,
    value: usize,
    /// Hops are counted, or lookups.
    hops: bool,
    batch: RefCell<Batch>,
}

struct Batch {
    queries: Vec<Query>,
    pads: Vec<Pad>,
    outcomes: Vec<Outcome<Miss>>,
}

/// What a request brings: a pointer and a scratch pad, one line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Pad {
    cur_ptr: VirtAddr,
    scratch: [u8; 56],
}

impl<'t> Lookups<'t> {
    pub(super) fn hash(table: &'t Table, hash: &'t Hash) -> Self {
        let text = include_str!("../../../../testdata/programs/hash_find.pulse");
        let make = |chance: &mut Chance| hash.query(chance);
        Self::new(table, hash.0.ranges(), text, Box::new(make), [0, 2], true)
    }

    pub(super) fn btree(table: &'t Table, btree: &'t Btree) -> Self {
        let text = include_str!("../../../../testdata/programs/btree_find.pulse");
        let make = |chance: &mut Chance| btree.query(chance);
        Self::new(table, btree.layout.ranges(), text, Box::new(make), [1, 2], false)
    }

    /// The same look-ups, by the program that has RANK in the place of four halvings.
    pub(super) fn btree_rank(table: &'t Table, btree: &'t Btree) -> Self {
        let text = include_str!("../../../../testdata/programs/btree_find_rank.pulse");
        let make = |chance: &mut Chance| btree.query(chance);
        Self::new(table, btree.layout.ranges(), text, Box::new(make), [1, 2], false)
    }

    fn new(
        table: &'t Table,
        ranges: Ranges,
        text: &str,
        make: Box<dyn Fn(&mut Chance) -> Query + 't>,
        [found, value]: [usize; 2],
        hops: bool,
    ) -> Self {
        let program = Program::assemble(text).expect("assembles");
        let compiled = Jit::new(1).expect("a compiler").compile(&program).expect("compiles");
        let outcome = Outcome { iterations: 0, end: End::Fault };
        let pad = Pad { cur_ptr: VirtAddr(0), scratch: [0; 56] };
        let batch = Batch { queries: Vec::new(), pads: vec![pad; BATCH], outcomes: vec![outcome; BATCH] };
        let batch = RefCell::new(batch);
        Self { table, ranges, program, compiled, make, found, value, hops, batch }
    }

    pub(super) fn variants<'a>(
        &'a self,
        name: &'a str,
        ways: &'a [Way],
    ) -> impl Iterator<Item = Variant<'a>> + 'a {
        ways.iter().map(move |way| {
            Variant::new(format!("{name}{}", way.name), move |chance| self.measure(way, chance))
        })
    }

    fn measure(&self, way: &Way, chance: &mut Chance) -> Measured {
        let mut batch = self.batch.borrow_mut();
        let mut measured = Measured { units: 0, time: Duration::ZERO };
        for _ in 0..way.lookups / BATCH {
            self.refill(&mut batch, chance);
            let start = cpu_time();
            self.run(way, &mut batch);
            measured.time += cpu_time() - start;
            measured.units += self.check(&batch);
        }
        measured
    }

    fn refill(&self, batch: &mut Batch, chance: &mut Chance) {
        batch.queries.clear();
        for pad in &mut batch.pads {
            let query = (self.make)(chance);
            *pad = Pad { cur_ptr: VirtAddr(query.cur_ptr), scratch: [0; 56] };
            pad.scratch[..8].copy_from_slice(&query.wanted[0].to_le_bytes());
            pad.scratch[8..16].copy_from_slice(&query.wanted[1].to_le_bytes());
            batch.queries.push(query);
        }
    }

    fn run(&self, way: &Way, batch: &mut Batch) {
        let Some(in_flight) = way.in_flight else { return self.interpret(batch) };
        let executor = Executor::new(in_flight);
        match way.windows {
            Windows::Plain => self.execute(&executor, batch),
            Windows::OneByOne => self.one_by_one(batch),
            Windows::Portable => {
                let executor = Executor::with_search(in_flight, Search::all()[0]);
                self.execute(&executor, batch);
            }
        }
    }

    fn execute(&self, executor: &Executor, batch: &mut Batch) {
        let scratch_len = self.program.scratch_len();
        let visits = batch.pads.iter_mut().map(|pad| Visit {
            program: &self.compiled,
            ranges: &self.ranges,
            cur_ptr: &mut pad.cur_ptr,
            scratch: &mut pad.scratch[..scratch_len],
            limit: 4096,
        });
        let outcomes = &mut batch.outcomes;
        executor.run(self.table.bytes(), visits, |number, outcome| outcomes[number] = outcome);
    }

    /// A core runs ahead into the next lookup while it waits for a line, and has two under way after all. So the next one's pointer is
    /// made to depend on the answer before it, as that of a caller who waits for answers does.
    fn one_by_one(&self, batch: &mut Batch) {
        let search = Search::best();
        let len = self.program.window_len();
        let mut answer = 0;
        for (pad, outcome) in batch.pads.iter_mut().zip(&mut batch.outcomes) {
            let scratch = &mut pad.scratch[..self.program.scratch_len()];
            pad.cur_ptr.0 ^= answer & black_box(0);
            *outcome = Outcome { iterations: 0, end: End::IterationLimit };
            while outcome.iterations < 4096 && outcome.end == End::IterationLimit {
                let step = search.translate(&self.ranges, pad.cur_ptr.0, len).map(|offset| {
                    self.compiled.step(
                        &self.table.bytes()[offset as usize..][..len],
                        &mut pad.cur_ptr,
                        scratch,
                    )
                });
                outcome.iterations += 1;
                match step {
                    Ok(Step::Next) => {}
                    Ok(Step::Return) => outcome.end = End::Return,
                    Ok(Step::Fault) => outcome.end = End::Fault,
                    Err(miss) => outcome.end = End::Fetch(miss),
                }
            }
            answer = u64::from_le_bytes(scratch.as_chunks().0[self.value]);
        }
    }

    fn interpret(&self, batch: &mut Batch) {
        let memory = self.table.bytes();
        let mut state = State::default();
        for (pad, outcome) in batch.pads.iter_mut().zip(&mut batch.outcomes) {
            let scratch = &mut pad.scratch[..self.program.scratch_len()];
            state.cur_ptr = pad.cur_ptr;
            state.scratch.clear();
            state.scratch.extend_from_slice(scratch);
            let mut fetch = |addr: VirtAddr, window: &mut [u8]| {
                let offset = self.ranges.translate(addr.0, window.len())?;
                window.copy_from_slice(&memory[offset as usize..][..window.len()]);
                Ok(())
            };
            *outcome = run(&self.program, &mut fetch, &mut state, 4096);
            scratch.copy_from_slice(&state.scratch);
        }
    }

    /// Every answer is checked; answers what to count.
    fn check(&self, batch: &Batch) -> u64 {
        let word = |pad: &Pad, n: usize| u64::from_le_bytes(pad.scratch.as_chunks().0[n]);
        let mut hops = 0;
        for ((query, pad), outcome) in batch.queries.iter().zip(&batch.pads).zip(&batch.outcomes) {
            assert_eq!(
                *outcome,
                Outcome { iterations: query.iterations, end: End::Return },
                "a lookup ended"
            );
            assert_eq!((word(pad, self.found), word(pad, self.value)), (1, query.value), "and found its key");
            hops += u64::from(outcome.iterations);
        }
        if self.hops { hops } else { batch.queries.len() as u64 }
    }
}
