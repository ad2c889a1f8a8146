//! Traversals under way: a workspace for each, and the turn in which they wait for memory together (PULSE 4.2).
//!
//! A memory pipeline and a logic pipeline are, on one core, the two halves of a hop: [`Workspace::fetch`] translates, checks and asks
//! the caches for the window; [`Workspace::compute`] runs the program on it. Between the two halves of one traversal stand the hops of
//! all the others, so that up to [`WORKSPACES`] lines of memory are on their way at once. The caches are asked for the windows of half
//! of the workspaces together: a core follows many requests at once when little stands between them. A workspace holds no window: until
//! it is computed on, it is in the cache, and the program reads it where it lies. A program that stores gets a copy.
//!
//! Nothing here knows of frames; [`Workspaces::turn`] hands out what ended, and how.

use crate::programs::{Known, Logic, Shared};
use crate::regions::{Regions, Span};
use crate::store::Store;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use farmem_transport::{Access, Refusal};
use farmem_traversal::{End, Step, WINDOW_LEN_MAX};
use farmem_wire::message::Traverse;
use farmem_wire::{Header, Perm, VirtAddr};

/// Iterations a traversal may do at one node before it must go back to its host, whatever its own limit says.
///
/// At about 100 ns an iteration this is less than half a millisecond. PULSE's workloads need 25 to 227 in all (PULSE 6, table 3).
pub const ITERATIONS_PER_VISIT_MAX: u32 = 4096;

/// Traversals whose hops are interleaved, unless [`crate::Budget::workspaces`] says otherwise.
///
/// A core of today has about 16 lines of memory on their way at once: twice as many keep it busy, more bring nothing.
pub const WORKSPACES: usize = 32;

/// Traversals that wait for a workspace. One more is answered with `Busy`.
pub const WAITING_MAX: usize = 1024;

/// Iterations that a traversal does before those that wait for a workspace get their turn.
pub const ITERATIONS_PER_TURN: usize = 128;

/// Why the next pointer's window cannot be loaded here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// No range of this node holds the pointer.
    Elsewhere,
    /// The pointer is here, and the window may not be read, or not be stored to by a program that stores.
    Refused(Refusal),
}

/// One traversal at this node: its state, the request it came in, and where its next window lies.
#[derive(Debug)]
pub(crate) struct Workspace<L> {
    known: Shared<L>,
    header: Header,
    cur_ptr: VirtAddr,
    /// On all nodes so far.
    iterations: u32,
    limit: u32,
    /// Iterations it may still do in this visit.
    left: u32,
    /// The code came with the request, so it goes along.
    with_code: bool,
    /// Of the program's length, in memory of its own: between small pads no large one's room lies.
    scratch: Vec<u8>,
    /// Where the last window was allowed. Good for one turn: the tables do not change in it.
    span: Span,
    /// Where in the store the window lies that was fetched.
    offset: u64,
}

impl<L: Logic> Workspace<L> {
    /// A traversal as it arrived, whose scratch pad is not longer than the program's; `scratch` is any buffer.
    fn new(known: &Shared<L>, header: &Header, request: &Traverse<'_>, mut scratch: Vec<u8>) -> Self {
        let len = known.program.scratch_len();
        scratch.clear();
        scratch.reserve_exact(len);
        scratch.extend_from_slice(request.scratch);
        // The zeros that were not sent (PROTOCOL 7.24).
        scratch.resize(len, 0);
        let left = request.limit.saturating_sub(request.iterations).min(ITERATIONS_PER_VISIT_MAX);
        Self {
            known: Shared::clone(known),
            header: *header,
            cur_ptr: request.cur_ptr,
            iterations: request.iterations,
            limit: request.limit,
            left,
            with_code: !request.code.is_empty(),
            scratch,
            span: Span::default(),
            offset: 0,
        }
    }

    /// True when the program stores.
    pub(crate) fn stores(&self) -> bool {
        self.known.program.stores()
    }

    /// The request's header.
    pub(crate) const fn header(&self) -> &Header {
        &self.header
    }

    /// The traversal as it stands, without code.
    pub(crate) fn traverse(&self) -> Traverse<'_> {
        let program = &self.known.program;
        Traverse {
            program: program.hash(),
            cur_ptr: self.cur_ptr,
            iterations: self.iterations,
            limit: self.limit,
            scratch: Traverse::without_zeros(&self.scratch),
            code: &[],
        }
    }

    /// The code that came with the request.
    pub(crate) fn code(&self) -> &[u8] {
        if self.with_code { self.known.program.encoded() } else { &[] }
    }

    /// The memory pipeline's half of a hop: translation and protection. Answers why there is no next hop.
    fn fetch(&mut self, regions: &Regions) -> Option<End<Stop>> {
        if self.left == 0 {
            return Some(End::IterationLimit);
        }
        let len = self.window_len();
        self.offset = match self.span.place(self.cur_ptr, len) {
            Some(offset) => offset,
            None => match self.locate(regions, len) {
                Ok(offset) => offset,
                Err(stop) => return Some(End::Fetch(stop)),
            },
        };
        None
    }

    /// A word to the caches: the window that was fetched will be computed on soon.
    fn ask<S: Store>(&self, store: &S) {
        store.prefetch(self.offset, self.window_len());
    }

    /// The slow way to a place: both tables are asked, and what they say of the bytes around is kept.
    fn locate(&mut self, regions: &Regions, len: u32) -> Result<u64, Stop> {
        let (domain, addr) = (self.header.domain, self.cur_ptr);
        let perm = if self.known.program.stores() { Perm::ReadWrite } else { Perm::Read };
        match regions.check_access(&Access { domain, addr, len, perm }) {
            Ok(()) => {
                self.span = regions.span(domain, addr, perm);
                Ok(regions.offset(addr, len as usize))
            }
            Err(Refusal::NotMapped) if !regions.is_local(addr) => Err(Stop::Elsewhere),
            Err(refusal) => Err(Stop::Refused(refusal)),
        }
    }

    /// The logic pipeline's half: the program runs.
    fn compute<S: Store>(&mut self, store: &mut S) -> Option<End<Stop>> {
        let len = self.window_len();
        let Known { program, logic } = &*self.known;
        let scratch = self.scratch.as_mut_slice();
        let step = if program.stores() {
            compute_storing(logic, store, self.offset, len, &mut self.cur_ptr, scratch)
        } else {
            logic.step(store.window(self.offset, len), &mut self.cur_ptr, scratch)
        };
        self.iterations = self.iterations.saturating_add(1);
        self.left -= 1;
        match step {
            Step::Next => None,
            Step::Return => Some(End::Return),
            Step::Fault => Some(End::Fault),
        }
    }

    fn window_len(&self) -> u32 {
        u32::try_from(self.known.program.window_len()).expect("a window has at most 256 bytes")
    }
}

/// An iteration that may store: on a copy of the window, of which the store gets what was changed.
fn compute_storing<L: Logic, S: Store>(
    logic: &L,
    store: &mut S,
    offset: u64,
    len: u32,
    cur_ptr: &mut VirtAddr,
    scratch: &mut [u8],
) -> Step {
    let mut before = [0; WINDOW_LEN_MAX];
    let before = &mut before[..len as usize];
    before.copy_from_slice(store.window(offset, len));
    let mut after = [0; WINDOW_LEN_MAX];
    let after = &mut after[..len as usize];
    after.copy_from_slice(before);
    let step = logic.step_storing(after, cur_ptr, scratch);
    if step != Step::Fault {
        write_back(store, offset, before, after);
    }
    step
}

/// STORE: what an iteration changed becomes part of the store, from the first byte to the last one in one write, so that a local reader
/// sees each word as it was before or as it is afterwards. What others wrote it does not touch: nobody writes within an iteration.
fn write_back<S: Store>(store: &mut S, offset: u64, before: &[u8], after: &[u8]) {
    let differ = |(a, b): (&u8, &u8)| a != b;
    let Some(first) = before.iter().zip(after).position(differ) else { return };
    let last = before.iter().zip(after).rposition(differ).expect("one differs");
    store.write(offset + first as u64, &after[first..=last]);
}

/// The traversals that are under way at a node.
#[derive(Debug)]
pub(crate) struct Workspaces<L> {
    /// Those whose hops are interleaved; all of them when none waits.
    busy: Vec<Workspace<L>>,
    /// Those that wait for one of them to end or to have had its turn.
    waiting: VecDeque<Workspace<L>>,
    /// Busy ones at most.
    count: usize,
    /// Scratch pads of those that ended, for those that come: no more than there were traversals at once.
    spare: Vec<Vec<u8>>,
}

impl<L: Logic> Workspaces<L> {
    /// `count` of them; no traversal is under way.
    pub(crate) fn new(count: usize) -> Self {
        assert!(count > 0, "a node without workspaces runs nothing");
        Self { busy: Vec::with_capacity(count), waiting: VecDeque::new(), count, spare: Vec::new() }
    }

    /// True when there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.busy.is_empty()
    }

    /// True when not one more can be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Takes a traversal as it arrived; the next turn runs it. False, and nothing is taken, when its scratch pad is longer than the
    /// program's (PROTOCOL 7.24).
    ///
    /// # Panics
    /// When [`Workspaces::is_full`].
    pub(crate) fn take(&mut self, known: &Shared<L>, header: &Header, request: &Traverse<'_>) -> bool {
        assert!(!self.is_full(), "a traversal that is taken has a place to wait");
        if request.scratch.len() > known.program.scratch_len() {
            return false;
        }
        let workspace = Workspace::new(known, header, request, self.spare.pop().unwrap_or_default());
        if self.busy.len() < self.count {
            self.busy.push(workspace);
        } else {
            self.waiting.push_back(workspace);
        }
        true
    }

    /// Runs all traversals, one hop each after the other, until they have ended or the turn is over. `ended` gets each one that ends
    /// and why. Answers the iterations done.
    pub(crate) fn turn<S: Store>(
        &mut self,
        regions: &Regions,
        store: &mut S,
        mut ended: impl FnMut(&Workspace<L>, End<Stop>),
    ) -> u64 {
        let (mut iterations, mut at) = (0, 0);
        while let Some(workspace) = self.busy.get_mut(at) {
            // An update may have come since the last turn: what was allowed then is asked for again (PROTOCOL 7.15).
            workspace.span = Span::default();
            at += match workspace.fetch(regions) {
                None => 1,
                Some(end) => self.end(at, end, regions, &mut ended),
            };
        }
        self.busy.iter().for_each(|workspace| workspace.ask(store));
        // The lines of one half travel while the other half computes.
        let group = self.count.div_ceil(2);
        // After so many iterations of all traversals the node listens again.
        while !self.busy.is_empty() && iterations < self.count * ITERATIONS_PER_TURN {
            at = 0;
            while at < self.busy.len() {
                let first = at;
                while at < first + group
                    && let Some(workspace) = self.busy.get_mut(at)
                {
                    iterations += 1;
                    let end = workspace.compute(store).or_else(|| workspace.fetch(regions));
                    at += match end {
                        None => 1,
                        Some(end) => self.end(at, end, regions, &mut ended),
                    };
                }
                self.busy[first..at].iter().for_each(|workspace| workspace.ask(store));
            }
        }
        self.rotate();
        iterations as u64
    }

    /// Asserts the bounds.
    pub(crate) fn check(&self) {
        assert!(self.busy.len() <= self.count, "more traversals than workspaces");
        assert!(self.waiting.len() <= WAITING_MAX, "more traversals wait than the bound");
        assert!(self.spare.len() <= WAITING_MAX + self.count, "more scratch pads than traversals at once");
        assert!(
            self.waiting.is_empty() || self.busy.len() == self.count,
            "one waits beside a free workspace"
        );
    }

    /// The traversal in this workspace is over. Its place goes to the first that waits and can be fetched for; answers how far the
    /// round goes on: 1 behind it, 0 when another one of this round stands there now.
    fn end(
        &mut self,
        at: usize,
        end: End<Stop>,
        regions: &Regions,
        ended: &mut impl FnMut(&Workspace<L>, End<Stop>),
    ) -> usize {
        ended(&self.busy[at], end);
        while let Some(mut next) = self.waiting.pop_front() {
            next.span = Span::default();
            match next.fetch(regions) {
                None => {
                    let over = mem::replace(&mut self.busy[at], next);
                    self.spare.push(over.scratch);
                    return 1;
                }
                Some(end) => {
                    ended(&next, end);
                    self.spare.push(next.scratch);
                }
            }
        }
        self.spare.push(self.busy.swap_remove(at).scratch);
        0
    }

    /// The turn is over: those that have had it make room for those that wait, and wait behind them.
    fn rotate(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        self.waiting.extend(self.busy.drain(..));
        let next = self.waiting.len().min(self.count);
        self.busy.extend(self.waiting.drain(..next));
    }
}
