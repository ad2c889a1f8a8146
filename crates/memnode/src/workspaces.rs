//! Traversals under way: a workspace for each, and the turn in which they wait for memory together (PULSE 4.2).
//!
//! A memory pipeline and a logic pipeline are, on one core, the two halves of a hop: [`Workspace::fetch`] translates, checks and asks
//! the caches for the window; [`Workspace::compute`] runs the program on it. Between the two halves of one traversal stand the hops of
//! all the others, so that up to [`WORKSPACES`] lines of memory are on their way at once. The caches are asked for the windows of a burst
//! of workspaces together: a core follows many requests at once when little stands between them. A workspace holds no window: until
//! it is computed on, it is in the cache, and the program reads it where it lies. A program that stores gets a copy.
//!
//! Nothing here knows of frames; [`Workspaces::turn`] hands out what ended, and how.

use crate::programs::{Known, Logic, Shared};
use crate::regions::Regions;
use crate::spans::{SetId, Spans};
use crate::store::Store;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farmem_transport::{Access, AccessError};
use farmem_traversal::{Behind, End, Step, WINDOW_LEN_MAX};
use farmem_wire::message::{Kind, Traverse};
use farmem_wire::{Header, Perm, VirtAddr};

/// Iterations a traversal may do at one node before it must go back to its host, whatever its own limit says.
///
/// At about 100 ns an iteration this is less than half a millisecond. PULSE's workloads need 25 to 227 in all (PULSE 6, table 3).
pub const ITERATIONS_PER_VISIT_MAX: u32 = 4096;

/// Traversals whose hops are interleaved, unless [`crate::Budget::workspaces`] says otherwise.
///
/// A core of today has about 16 lines of memory on their way at once: twice as many keep it busy, more bring nothing.
pub const WORKSPACES: usize = 32;

/// Workspaces whose windows are asked for together, unless [`crate::Budget::burst`] says otherwise: while the lines of one half of them
/// travel, the other half computes.
pub const BURST: usize = WORKSPACES / 2;

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
    Refused(AccessError),
}

/// How a traversal came, and so how it is answered: by itself, or with others of its batch (PROTOCOL 7.48). It goes on by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// In a message of its own.
    Single,
    /// As a pair.
    InBatch,
}

impl Delivery {
    /// Of the message.
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::Single => Kind::Traverse,
            Self::InBatch => Kind::Batch,
        }
    }
}

/// One traversal at this node: its state, the request it came in, and where its next window lies.
#[derive(Debug)]
pub(crate) struct Workspace<L> {
    known: Shared<L>,
    /// Where in the store the window lies that was fetched.
    offset: u64,
    cur_ptr: VirtAddr,
    /// On all nodes so far.
    iterations: u32,
    /// Iterations it may still do in this visit.
    left: u32,
    window_len: u32,
    /// Bytes that are there of the window that was fetched: all of them, unless what the domain may use ends in it (PROTOCOL 7.50).
    there: u32,
    limit: u32,
    spans: SetId,
    /// The program stores.
    stores: bool,
    /// The code came with the request, so it goes along.
    with_code: bool,
    delivery: Delivery,
    /// Of the program's length, in memory of its own: between small pads no large one's room lies. It stays for the next traversal.
    scratch: Vec<u8>,
    header: Header,
}

impl<L: Logic> Workspace<L> {
    /// Empty, until [`Workspace::begin`].
    fn new(known: &Shared<L>, header: &Header) -> Self {
        Self {
            known: Shared::clone(known),
            offset: 0,
            cur_ptr: VirtAddr(0),
            iterations: 0,
            left: 0,
            window_len: 0,
            there: 0,
            limit: 0,
            spans: SetId::default(),
            stores: false,
            with_code: false,
            delivery: Delivery::Single,
            scratch: Vec::new(),
            header: *header,
        }
    }

    /// A traversal as it arrived, whose scratch pad is not longer than the program's.
    #[inline]
    fn begin(&mut self, known: &Shared<L>, header: &Header, request: &Traverse<'_>, delivery: Delivery) {
        if !Shared::ptr_eq(&self.known, known) {
            self.known = Shared::clone(known);
        }
        let program = &known.program;
        let len = program.scratch_len();
        if self.scratch.len() != len {
            self.make_room(len);
        }
        let (sent, zeros) = self.scratch.split_at_mut(request.scratch.len());
        sent.copy_from_slice(request.scratch);
        // The zeros that were not sent (PROTOCOL 7.24).
        if !zeros.is_empty() {
            zeros.fill(0);
        }
        self.left = request.limit.saturating_sub(request.iterations).min(ITERATIONS_PER_VISIT_MAX);
        self.window_len = u32::try_from(program.window_len()).expect("a window has at most 256 bytes");
        self.there = self.window_len;
        self.stores = program.stores();
        self.header = *header;
        self.cur_ptr = request.cur_ptr;
        self.iterations = request.iterations;
        self.limit = request.limit;
        self.with_code = !request.code.is_empty();
        self.delivery = delivery;
    }

    /// Of the traversal before, the scratch pad had another length.
    #[cold]
    fn make_room(&mut self, len: usize) {
        self.scratch.clear();
        self.scratch.reserve_exact(len);
        self.scratch.resize(len, 0);
    }

    /// True when the program stores.
    pub(crate) fn stores(&self) -> bool {
        self.stores
    }

    /// How it came.
    pub(crate) const fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// The request's header.
    pub(crate) const fn header(&self) -> &Header {
        &self.header
    }

    /// The traversal as it stands, without code.
    pub(crate) fn traverse(&self) -> Traverse<'_> {
        Traverse {
            program: self.known.program.hash(),
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

    /// What it does with its windows.
    fn perm(&self) -> Perm {
        if self.stores { Perm::ReadWrite } else { Perm::Read }
    }

    /// The first fetch of a turn, after an update may have come: what was allowed then is asked for again (PROTOCOL 7.15).
    #[inline]
    fn enter(&mut self, regions: &Regions, spans: &mut Spans) -> Result<(), End<Stop>> {
        self.spans = spans.set(self.header.domain, self.perm());
        self.there = self.window_len;
        if self.fetch(spans) { Ok(()) } else { self.locate(regions, spans) }
    }

    /// The memory pipeline's half of a hop: translation and protection. False when it takes [`Workspace::locate`] to say where the window
    /// is, or why there is none.
    #[inline]
    fn fetch(&mut self, spans: &Spans) -> bool {
        let place = spans.place(self.spans, self.cur_ptr, self.window_len);
        let Some(offset) = place.filter(|_| self.left > 0) else { return false };
        self.offset = offset;
        true
    }

    /// A word to the caches: the window that was fetched will be computed on soon.
    #[inline]
    fn ask<S: Store>(&self, store: &S) {
        store.prefetch(self.offset, self.there);
    }

    /// The slow way to a place: both tables are asked, and what they say of the bytes around is kept. Answers why there is no next hop.
    #[cold]
    fn locate(&mut self, regions: &Regions, spans: &mut Spans) -> Result<(), End<Stop>> {
        if self.left == 0 {
            return Err(End::IterationLimit);
        }
        let (domain, addr, len) = (self.header.domain, self.cur_ptr, self.window_len);
        let access = Access { domain, addr, len, perm: self.perm() };
        match regions.check_access(&access) {
            Ok(()) => {
                spans.learn(self.spans, addr, regions);
                self.offset = regions.offset(addr, len as usize);
                Ok(())
            }
            Err(AccessError::OutOfBounds) => self.locate_cut(&access, regions),
            Err(AccessError::NotMapped) if !regions.is_local(addr) => Err(End::Fetch(Stop::Elsewhere)),
            Err(refusal) => Err(End::Fetch(Stop::Refused(refusal))),
        }
    }

    /// What the domain may use ends in the window: the bytes before that are the window of this hop, and what is behind is not looked at.
    #[cold]
    fn locate_cut(&mut self, access: &Access, regions: &Regions) -> Result<(), End<Stop>> {
        let len = regions.reach(access);
        match regions.check_access(&Access { len, ..*access }) {
            Ok(()) => {
                (self.there, self.offset) = (len, regions.offset(access.addr, len as usize));
                Ok(())
            }
            Err(refusal) => Err(End::Fetch(Stop::Refused(refusal))),
        }
    }

    /// The logic pipeline's half: the program runs.
    #[inline]
    fn compute<S: Store>(&mut self, store: &mut S) -> Result<Step, Behind> {
        if self.there < self.window_len {
            return self.compute_cut(store);
        }
        let Known { logic, .. } = &*self.known;
        let scratch = self.scratch.as_mut_slice();
        let step = if self.stores {
            let step = |after: &mut [u8]| Ok(logic.step_storing(after, &mut self.cur_ptr, scratch));
            store_what(store, self.offset, self.window_len, step)?
        } else {
            logic.step(store.window(self.offset, self.window_len), &mut self.cur_ptr, scratch)
        };
        self.count();
        Ok(step)
    }

    /// The same over a window that is cut, by the interpreter: there is one such place for each end of an allocation, and code that asked at each
    /// access what is there would be slower everywhere else.
    #[cold]
    fn compute_cut<S: Store>(&mut self, store: &mut S) -> Result<Step, Behind> {
        let len = core::mem::replace(&mut self.there, self.window_len);
        let (program, scratch) = (&self.known.program, self.scratch.as_mut_slice());
        let step = if self.stores {
            let step = |after: &mut [u8]| program.step_storing_cut(after, &mut self.cur_ptr, scratch);
            store_what(store, self.offset, len, step)
        } else {
            program.step_cut(store.window(self.offset, len), &mut self.cur_ptr, scratch)
        };
        self.count();
        step
    }

    #[inline]
    fn count(&mut self) {
        self.iterations = self.iterations.saturating_add(1);
        self.left -= 1;
    }
}

/// An iteration that may store: on a copy of the window, of which the store gets what was changed.
#[inline]
fn store_what<S: Store>(
    store: &mut S,
    offset: u64,
    len: u32,
    iteration: impl FnOnce(&mut [u8]) -> Result<Step, Behind>,
) -> Result<Step, Behind> {
    let mut before = [0; WINDOW_LEN_MAX];
    let before = &mut before[..len as usize];
    before.copy_from_slice(store.window(offset, len));
    let mut after = [0; WINDOW_LEN_MAX];
    let after = &mut after[..len as usize];
    after.copy_from_slice(before);
    let step = iteration(after)?;
    if step != Step::Fault {
        write_back(store, offset, before, after);
    }
    Ok(step)
}

/// STORE: what an iteration changed becomes part of the store, from the first byte to the last one in one write, so that a local reader
/// sees each word as it was before or as it is afterwards. What others wrote it does not touch: no other program writes within an iteration.
fn write_back<S: Store>(store: &mut S, offset: u64, before: &[u8], after: &[u8]) {
    let differ = |(a, b): (&u8, &u8)| a != b;
    let Some(first) = before.iter().zip(after).position(differ) else { return };
    let last = before.iter().zip(after).rposition(differ).expect("one differs");
    store.write(offset + first as u64, &after[first..=last]);
}

/// The traversals that are under way at a node.
#[derive(Debug)]
pub(crate) struct Workspaces<L> {
    /// As many as there ever were traversals at once. What is found in those that are free is of no meaning.
    all: Vec<Workspace<L>>,
    /// Numbers of the free ones.
    free: Vec<usize>,
    /// Those whose hops are interleaved; all of them when none waits.
    busy: Vec<usize>,
    /// Those that wait for one of them to end or to have had its turn.
    waiting: VecDeque<usize>,
    /// Busy ones at most.
    count: usize,
    /// Those whose windows are asked for together.
    burst: usize,
    spans: Spans,
}

impl<L: Logic> Workspaces<L> {
    /// `count` of them, whose windows are asked for `burst` at a time; no traversal is under way.
    pub(crate) fn new(count: usize, burst: usize) -> Self {
        assert!(count > 0, "a node without workspaces runs nothing");
        assert!(burst > 0, "a window that is not asked for is waited for");
        Self {
            all: Vec::new(),
            free: Vec::new(),
            busy: Vec::with_capacity(count),
            waiting: VecDeque::new(),
            count,
            burst,
            spans: Spans::default(),
        }
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
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        known: &Shared<L>,
        header: &Header,
        request: &Traverse<'_>,
        delivery: Delivery,
    ) -> bool {
        assert!(!self.is_full(), "a traversal that is taken has a place to wait");
        if request.scratch.len() > known.program.scratch_len() {
            return false;
        }
        let number = self.free.pop().unwrap_or_else(|| self.one_more(known, header));
        self.all[number].begin(known, header, request, delivery);
        if self.busy.len() < self.count {
            self.busy.push(number);
        } else {
            self.waiting.push_back(number);
        }
        true
    }

    #[cold]
    fn one_more(&mut self, known: &Shared<L>, header: &Header) -> usize {
        self.all.push(Workspace::new(known, header));
        self.all.len() - 1
    }

    /// A program was forgotten. What ran it is kept by those that still run it, until their workspaces are used again, and by no free one.
    pub(crate) fn let_go(&mut self, newest: &Shared<L>) {
        self.free.iter().for_each(|&number| self.all[number].known = Shared::clone(newest));
    }

    /// Runs all traversals, one hop each after the other, until they have ended or the turn is over. `ended` gets each one that ends
    /// and why. Answers the iterations done.
    pub(crate) fn turn<S: Store>(
        &mut self,
        regions: &Regions,
        store: &mut S,
        mut ended: impl FnMut(&Workspace<L>, End<Stop>),
    ) -> u64 {
        self.spans.renew(regions);
        let (mut iterations, mut at) = (0, 0);
        while let Some(&number) = self.busy.get(at) {
            at += match self.all[number].enter(regions, &mut self.spans) {
                Ok(()) => 1,
                Err(end) => self.end_before(at, end, regions, &mut ended),
            };
        }
        self.busy.iter().for_each(|&number| self.all[number].ask(store));
        // After so many iterations of all traversals the node listens again.
        while !self.busy.is_empty() && iterations < self.count * ITERATIONS_PER_TURN {
            at = 0;
            while at < self.busy.len() {
                let first = at;
                while at < first + self.burst
                    && let Some(&number) = self.busy.get(at)
                {
                    iterations += 1;
                    let workspace = &mut self.all[number];
                    let step = workspace.compute(store);
                    if step == Ok(Step::Next) && workspace.fetch(&self.spans) {
                        at += 1;
                        continue;
                    }
                    let next = match step {
                        Ok(Step::Next) => workspace.locate(regions, &mut self.spans),
                        Ok(Step::Return) => Err(End::Return),
                        Ok(Step::Fault) => Err(End::Fault),
                        Err(Behind) => Err(End::Fetch(Stop::Refused(AccessError::OutOfBounds))),
                    };
                    at += match next {
                        Ok(()) => 1,
                        Err(end) => self.end(at, end, regions, &mut ended),
                    };
                }
                // The lines of this burst travel while the others are computed on.
                self.busy[first..at].iter().for_each(|&number| self.all[number].ask(store));
            }
        }
        self.rotate();
        iterations as u64
    }

    /// Asserts the bounds.
    pub(crate) fn check(&self) {
        assert!(self.busy.len() <= self.count, "more traversals than workspaces");
        assert!(self.waiting.len() <= WAITING_MAX, "more traversals wait than the bound");
        assert!(self.all.len() <= WAITING_MAX + self.count, "more workspaces than traversals at once");
        let used = self.free.len() + self.busy.len() + self.waiting.len();
        assert_eq!(used, self.all.len(), "a workspace is free, busy or waits");
        assert!(
            self.waiting.is_empty() || self.busy.len() == self.count,
            "one waits beside a free workspace"
        );
    }

    /// The traversal in this workspace is over. Its place goes to the first that waits and can be fetched for; answers how far the
    /// round goes on: 1 behind it, 0 when another one of this round stands there now.
    #[inline(always)]
    fn end(
        &mut self,
        at: usize,
        end: End<Stop>,
        regions: &Regions,
        ended: &mut impl FnMut(&Workspace<L>, End<Stop>),
    ) -> usize {
        let over = self.busy[at];
        ended(&self.all[over], end);
        self.free.push(over);
        while let Some(next) = self.waiting.pop_front() {
            match self.all[next].enter(regions, &mut self.spans) {
                Ok(()) => {
                    self.busy[at] = next;
                    return 1;
                }
                Err(end) => self.refuse(next, end, ended),
            }
        }
        self.busy.swap_remove(at);
        0
    }

    /// As [`Workspaces::end`] of one that had no hop in this turn.
    #[cold]
    #[inline(never)]
    fn end_before(
        &mut self,
        at: usize,
        end: End<Stop>,
        regions: &Regions,
        ended: &mut impl FnMut(&Workspace<L>, End<Stop>),
    ) -> usize {
        self.end(at, end, regions, ended)
    }

    /// One that waited cannot be fetched for.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, number: usize, end: End<Stop>, ended: &mut impl FnMut(&Workspace<L>, End<Stop>)) {
        ended(&self.all[number], end);
        self.free.push(number);
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
