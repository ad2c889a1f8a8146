//! Traversals in progress: a workspace for each, and the turn in which they wait for memory together (PULSE
//! 4.2).
//!
//! PULSE's memory pipeline and logic pipeline are, on one core, the two halves of a hop. [`Workspace::fetch`]
//! translates, checks and prefetches the window; [`Workspace::compute`] runs the program on it. Between the
//! halves of one traversal run the hops of all others, so that up to [`WORKSPACES`] cache lines are in flight
//! at once. The windows of a burst of workspaces are prefetched together: a core tracks many loads at once if
//! few instructions separate them. A workspace holds no copy of its window. The program reads the window in
//! place; only a storing program gets a copy.
//!
//! This file knows no frames; [`Workspaces::turn`] hands out the traversals that ended, with the reason.

use crate::programs::{CachedProgram, Logic, Shared};
use crate::regions::Regions;
use crate::spans::{SetId, Spans};
use crate::store::Store;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farmem_transport::{Access, AccessError};
use farmem_traversal::{Behind, End, Step, WINDOW_LEN_MAX};
use farmem_wire::message::{Kind, Traverse};
use farmem_wire::{Header, Perm, VirtAddr};

/// Most iterations of a traversal in one visit, whatever its own limit. After them the traversal returns to
/// its host.
///
/// At about 100 ns an iteration this takes less than half a millisecond. PULSE's workloads need 25 to 227
/// iterations in all (PULSE 6, table 3).
pub const ITERATIONS_PER_VISIT_MAX: u32 = 4096;

/// Number of traversals whose hops are interleaved; the default of [`crate::Budget::workspaces`].
///
/// A current core has about 16 cache lines in flight at once. Twice as many workspaces keep it busy; more do
/// not help.
pub const WORKSPACES: usize = 32;

/// Number of workspaces whose windows are prefetched together; the default of [`crate::Budget::burst`]. While
/// the lines of one half are in flight, the other half computes.
pub const BURST: usize = WORKSPACES / 2;

/// Most traversals that wait for a workspace. One more is answered with `Busy`.
pub const WAITING_MAX: usize = 1024;

/// Iterations of a traversal before waiting ones get their turn.
pub const ITERATIONS_PER_TURN: usize = 128;

/// The reason why the next pointer's window cannot be loaded here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// No range of this node holds the pointer.
    Elsewhere,
    /// The pointer is here, but the domain may not read the window, or a storing program may not write it.
    Refused(AccessError),
}

/// The form in which a traversal arrived, and is answered: alone, or with others of its batch (PROTOCOL
/// 7.48). It continues to other nodes alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// In a message of its own.
    Single,
    /// As a pair of a batch.
    InBatch,
}

impl Delivery {
    /// Returns the kind of the message.
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::Single => Kind::Traverse,
            Self::InBatch => Kind::Batch,
        }
    }
}

/// A traversal at this node: its state, its request, and the location of its next window.
#[derive(Debug)]
pub(crate) struct Workspace<L> {
    known: Shared<L>,
    /// Offset in the store of the fetched window.
    offset: u64,
    cur_ptr: VirtAddr,
    /// Iterations on all nodes so far.
    iterations: u32,
    /// Remaining iterations of this visit.
    left: u32,
    window_len: u32,
    /// Accessible bytes of the fetched window: all of them, unless the domain's memory ends within it
    /// (PROTOCOL 7.50).
    there: u32,
    limit: u32,
    spans: SetId,
    /// True if the program stores.
    stores: bool,
    /// True if the code came with the request; then it is forwarded too.
    with_code: bool,
    delivery: Delivery,
    /// The scratch pad, of the program's length, in an allocation of its own that the next traversal reuses.
    /// So small pads are close together in memory.
    scratch: Vec<u8>,
    header: Header,
}

impl<L: Logic> Workspace<L> {
    /// Creates an empty workspace, for [`Workspace::begin`].
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

    /// Starts a traversal whose scratch pad is not longer than the program's.
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
        // The zeros that the sender omitted (PROTOCOL 7.24).
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

    /// Resizes the scratch pad, which had another length before.
    #[cold]
    fn make_room(&mut self, len: usize) {
        self.scratch.clear();
        self.scratch.reserve_exact(len);
        self.scratch.resize(len, 0);
    }

    /// Returns true if the program stores.
    pub(crate) fn stores(&self) -> bool {
        self.stores
    }

    /// Returns the form in which the traversal arrived.
    pub(crate) const fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Returns the request's header.
    pub(crate) const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the present state of the traversal, without code.
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

    /// Returns the code that came with the request.
    pub(crate) fn code(&self) -> &[u8] {
        if self.with_code { self.known.program.encoded() } else { &[] }
    }

    /// Returns the access that the program needs to its windows.
    fn perm(&self) -> Perm {
        if self.stores { Perm::ReadWrite } else { Perm::Read }
    }

    /// Does the first fetch of a turn. An update may have come since the last turn, so everything is checked
    /// again (PROTOCOL 7.15).
    #[inline]
    fn enter(&mut self, regions: &Regions, spans: &mut Spans) -> Result<(), End<Stop>> {
        self.spans = spans.set(self.header.domain, self.perm());
        self.there = self.window_len;
        if self.fetch(spans) { Ok(()) } else { self.locate(regions, spans) }
    }

    /// Does the memory pipeline's half of a hop: translation and protection. Returns false on a miss;
    /// [`Workspace::locate`] then finds the window or the reason why there is none.
    #[inline]
    fn fetch(&mut self, spans: &Spans) -> bool {
        let place = spans.place(self.spans, self.cur_ptr, self.window_len);
        let Some(offset) = place.filter(|_| self.left > 0) else { return false };
        self.offset = offset;
        true
    }

    /// Prefetches the fetched window, which will soon be computed on.
    #[inline]
    fn ask<S: Store>(&self, store: &S) {
        store.prefetch(self.offset, self.there);
    }

    /// Finds the window in both tables and caches the span around it. The error is the reason why there is no
    /// next hop.
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

    /// Fetches a window in which the domain's memory ends. The bytes before the end are this hop's window;
    /// the bytes behind are not read.
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

    /// Does the logic pipeline's half: runs the program.
    #[inline]
    fn compute<S: Store>(&mut self, store: &mut S) -> Result<Step, Behind> {
        if self.there < self.window_len {
            return self.compute_cut(store);
        }
        let CachedProgram { logic, .. } = &*self.known;
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

    /// Runs the program over a cut window with the interpreter. Cut windows occur once per end of an
    /// allocation, and compiled code that checks each access would be slower everywhere else.
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

/// Runs an iteration that may store, on a copy of the window. Changes are then written to the store.
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

/// Writes the changes of an iteration (STORE) to the store, from the first changed byte to the last, in one
/// write. So a local reader sees each word either old or new. Other bytes keep their values: no other program
/// writes within an iteration.
fn write_back<S: Store>(store: &mut S, offset: u64, before: &[u8], after: &[u8]) {
    let differ = |(a, b): (&u8, &u8)| a != b;
    let Some(first) = before.iter().zip(after).position(differ) else { return };
    let last = before.iter().zip(after).rposition(differ).expect("one differs");
    store.write(offset + first as u64, &after[first..=last]);
}

/// The traversals in progress at a node.
#[derive(Debug)]
pub(crate) struct Workspaces<L> {
    /// As many workspaces as there ever were traversals at once. The contents of free ones are meaningless.
    all: Vec<Workspace<L>>,
    /// Indices of free workspaces.
    free: Vec<usize>,
    /// Traversals whose hops are interleaved; all of them if none waits.
    busy: Vec<usize>,
    /// Traversals that wait for a busy one to end or to finish its turn.
    waiting: VecDeque<usize>,
    /// Most busy workspaces.
    count: usize,
    /// Number of workspaces whose windows are prefetched together.
    burst: usize,
    spans: Spans,
}

impl<L: Logic> Workspaces<L> {
    /// Creates `count` workspaces whose windows are prefetched `burst` at a time.
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

    /// Returns true if no traversal is in progress.
    pub(crate) fn is_empty(&self) -> bool {
        self.busy.is_empty()
    }

    /// Returns true if no further traversal can be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Takes a traversal; the next turn runs it. Returns false, and takes nothing, if its scratch pad is
    /// longer than the program's (PROTOCOL 7.24).
    ///
    /// # Panics
    /// If [`Workspaces::is_full`].
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

    /// Releases an evicted program in all free workspaces. Traversals that run it keep it until they end.
    pub(crate) fn release_program(&mut self, newest: &Shared<L>) {
        self.free.iter().for_each(|&number| self.all[number].known = Shared::clone(newest));
    }

    /// Runs all traversals, one hop each in turn, until they have ended or the turn is over. Calls `ended`
    /// for each one that ends, with the reason. Returns the number of iterations.
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
        // After this many iterations of all traversals the node handles events again.
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
                // The lines of this burst are in flight while the other workspaces compute.
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

    /// Ends the traversal in this workspace and gives its place to the first waiting one that can be fetched.
    /// Returns where the round continues: 1 for the next place, 0 if this place now holds another traversal
    /// of this round.
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

    /// Ends a traversal that had no hop in this turn, as [`Workspaces::end`].
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

    /// Ends a waiting traversal whose window cannot be fetched.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, number: usize, end: End<Stop>, ended: &mut impl FnMut(&Workspace<L>, End<Stop>)) {
        ended(&self.all[number], end);
        self.free.push(number);
    }

    /// Ends the turn: traversals that had it make room for waiting ones, and wait behind them.
    fn rotate(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        self.waiting.extend(self.busy.drain(..));
        let next = self.waiting.len().min(self.count);
        self.busy.extend(self.waiting.drain(..next));
    }
}
