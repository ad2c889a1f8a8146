//! Many traversals in flight on one core (PULSE 4.2): fetch and logic decoupled.
//!
//! A traversal alternates between waiting for its next window and computing on it for a few nanoseconds. The executor keeps a
//! workspace for each of up to [`IN_FLIGHT_MAX`] traversals and goes round: at each it runs the iteration on the window that was asked
//! for a round ago, translates the pointer that came out and asks for its lines. One that ends makes room for the next visit at once, so
//! there are always as many requests as workspaces.
//!
//! A core looks a few hundred instructions ahead of what it waits for, and asks memory for the lines it finds there. So the fewer
//! instructions a turn has, the more requests are under way: whatever can be known when a visit is admitted is found out then, and what
//! ends a visit stands outside of the loop.

use crate::jit::{Code, Compiled, Exit};
#[cfg(target_arch = "x86_64")]
use crate::ranges::{Avx2, Avx512};
use crate::ranges::{Lanes, Miss, Ranges, Search, Way};
use farmem_traversal::{End, LINE_LEN, Outcome};
use farmem_wire::VirtAddr;
use std::ptr;

/// Workspaces at most.
pub const IN_FLIGHT_MAX: usize = 64;
/// Workspaces unless somebody knows better. A core has 10 to 16 requests to memory at once; half as many visits again keep them busy, and more of
/// them push each other's lines out of the nearest cache.
pub const IN_FLIGHT_DEFAULT: usize = 24;

/// One traversal's stay: what goes in, and where its state is left.
#[derive(Debug)]
pub struct Visit<'a> {
    /// What it computes.
    pub program: &'a Compiled,
    /// What it may read.
    pub ranges: &'a Ranges,
    /// The pointer to load first; in the end, that of the last iteration, or the one that could not be loaded.
    pub cur_ptr: &'a mut VirtAddr,
    /// Of the program's length.
    pub scratch: &'a mut [u8],
    /// Iterations at most.
    pub limit: u32,
}

/// Runs visits, many at once.
#[derive(Clone, Copy, Debug)]
pub struct Executor {
    in_flight: usize,
    search: Search,
}

impl Default for Executor {
    fn default() -> Self {
        Self::new(IN_FLIGHT_DEFAULT)
    }
}

impl Executor {
    /// An executor of `in_flight` workspaces. One is possible: each visit then waits for the one before.
    ///
    /// # Panics
    /// When `in_flight` is 0 or more than [`IN_FLIGHT_MAX`].
    #[must_use]
    pub fn new(in_flight: usize) -> Self {
        Self::with_search(in_flight, Search::best())
    }

    /// As [`Self::new`], with another way to search range tables than the machine's best.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn with_search(in_flight: usize, search: Search) -> Self {
        assert!((1..=IN_FLIGHT_MAX).contains(&in_flight), "1 to {IN_FLIGHT_MAX} workspaces, not {in_flight}");
        Self { in_flight, search }
    }

    /// Runs all `visits` over `memory`, the bytes that offsets of range tables lead to, each to where [`farmem_traversal::run`] would
    /// bring it. They are taken one by one, as workspaces become free.
    ///
    /// `done` is called once for each, as it ends, with its place in the order of `visits`: visits may overtake each other. Nothing is
    /// allocated, and nothing copied: an iteration reads the lines that the prefetch brought. So nobody writes meanwhile; who has other
    /// writers lends a copy.
    ///
    /// # Panics
    /// When a scratch pad does not have its program's length, a range table leads out of `memory`, or a program stores: windows are lent
    /// where they lie.
    pub fn run<'a>(
        &self,
        memory: &[u8],
        visits: impl IntoIterator<Item = Visit<'a>>,
        done: impl FnMut(usize, Outcome<Miss>),
    ) {
        let visits = visits.into_iter().enumerate();
        let (kinds, last) = ([Kind::FREE; IN_FLIGHT_MAX], 0);
        match self.search.0 {
            Way::Portable(lanes) => Round { lanes, memory, kinds, last, visits, done }.run(self.in_flight),
            #[cfg(target_arch = "x86_64")]
            Way::Avx2(lanes) => {
                // SAFETY: a value of `Avx2` is only made where the machine has it.
                unsafe { run_avx2(Round { lanes, memory, kinds, last, visits, done }, self.in_flight) };
            }
            #[cfg(target_arch = "x86_64")]
            Way::Avx512(lanes) => {
                // SAFETY: a value of `Avx512` is only made where the machine has it.
                unsafe { run_avx512(Round { lanes, memory, kinds, last, visits, done }, self.in_flight) };
            }
        }
    }
}

/// The whole round is compiled with the machine's instructions, or each comparison would be a call.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1")]
fn run_avx2<'a>(
    mut round: Round<
        '_,
        'a,
        Avx2,
        impl Iterator<Item = (usize, Visit<'a>)>,
        impl FnMut(usize, Outcome<Miss>),
    >,
    in_flight: usize,
) {
    round.run(in_flight);
}

/// As [`run_avx2`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,bmi1")]
fn run_avx512<'a>(
    mut round: Round<
        '_,
        'a,
        Avx512,
        impl Iterator<Item = (usize, Visit<'a>)>,
        impl FnMut(usize, Outcome<Miss>),
    >,
    in_flight: usize,
) {
    round.run(in_flight);
}

/// PULSE's workspace, without the data: that lies in the nearest cache, where the prefetch has brought it. This is the part that
/// every turn needs, half a line of memory: the more of that cache workspaces take, the more lines are lost from it before their turn.
/// What visits have in common is a [`Kind`], the rest is in [`Owner`].
#[repr(C, align(32))]
#[derive(Clone, Copy)]
struct Workspace {
    /// The window that was asked for, by its place in the memory.
    window: usize,
    /// As many bytes as the program's scratch pad has, which was checked when the visit was admitted; borrowed by the visit alone.
    scratch: *mut u8,
    cur_ptr: u64,
    /// Iterations left; the one whose window was asked for counts.
    left: u32,
    /// The number of its kind.
    kind: u32,
}

impl Workspace {
    const FREE: Self = Self { window: 0, scratch: ptr::null_mut(), cur_ptr: 0, left: 0, kind: 0 };
}

/// What visits of one program and one range table have in common.
#[derive(Clone, Copy)]
struct Kind<'a> {
    code: Code,
    window_len: usize,
    /// They lead nowhere but into the memory, which was checked when the first of the visits was admitted.
    ranges: &'a Ranges,
    /// Workspaces of this kind; without one it is free.
    workspaces: usize,
}

impl Kind<'_> {
    const FREE: Self = {
        static NOTHING: Ranges = Ranges::EMPTY;
        Self { code: idle, window_len: 0, ranges: &NOTHING, workspaces: 0 }
    };
}

impl<'a> Kind<'a> {
    /// Code belongs to one program that is alive, a range table to one place in memory.
    #[inline(always)]
    fn is_of(&self, program: &Compiled, ranges: &'a Ranges) -> bool {
        ptr::fn_addr_eq(self.code, program.code()) && ptr::eq(self.ranges, ranges)
    }
}

/// The code of a kind that is free: it is not run.
unsafe extern "C" fn idle(_: *const u8, _: *mut u8, cur_ptr: u64) -> Exit {
    Exit { cur_ptr, how: Exit::FAULT }
}

/// Whose workspace it is: needed when a visit begins and ends.
struct Owner<'a> {
    number: usize,
    limit: u32,
    cur_ptr: Option<&'a mut VirtAddr>,
}

impl Owner<'_> {
    const NOBODY: Self = Self { number: 0, limit: 0, cur_ptr: None };
}

struct Round<'m, 'a, L, V, D> {
    lanes: L,
    memory: &'m [u8],
    kinds: [Kind<'a>; IN_FLIGHT_MAX],
    /// The kind of the visit that was admitted last.
    last: usize,
    visits: V,
    done: D,
}

impl<'a, L, V, D> Round<'_, 'a, L, V, D>
where
    L: Lanes,
    V: Iterator<Item = (usize, Visit<'a>)>,
    D: FnMut(usize, Outcome<Miss>),
{
    #[inline(always)]
    fn run(&mut self, in_flight: usize) {
        let mut workspaces = [Workspace::FREE; IN_FLIGHT_MAX];
        let mut owners = [const { Owner::<'a>::NOBODY }; IN_FLIGHT_MAX];
        let mut busy = 0;
        while busy < in_flight && self.admit(&mut workspaces[busy], &mut owners[busy]) {
            busy += 1;
        }
        while busy > 0 {
            let mut at = 0;
            while let Some(ended) = self.go_round(&mut workspaces[at..busy]) {
                at += ended.at;
                if self.replace(&mut workspaces[at], &mut owners[at], ended.end) {
                    at += 1;
                } else {
                    // The one that comes here did not have its turn.
                    busy -= 1;
                    workspaces.swap(at, busy);
                    owners.swap(at, busy);
                }
            }
        }
    }

    /// A turn for each, until a visit is over.
    #[inline(always)]
    fn go_round(&self, workspaces: &mut [Workspace]) -> Option<Ended> {
        for (at, workspace) in workspaces.iter_mut().enumerate() {
            if let Err(end) = self.turn(workspace) {
                return Some(Ended { at, end });
            }
        }
        None
    }

    /// Logic on the window that was asked for, then the translation of the next. An error says why the visit is over.
    #[inline(always)]
    fn turn(&self, workspace: &mut Workspace) -> Result<(), End<Miss>> {
        let kind = &self.kinds[workspace.kind as usize % IN_FLIGHT_MAX];
        // SAFETY: `fetch` has found the place with a range table that does not leave the memory.
        let window = unsafe { self.memory.as_ptr().add(workspace.window) };
        // SAFETY: the window has the program's length, as `fetch` checked, and the memory is borrowed as long as the executor runs; so has
        // the scratch pad, as `admit` checked, and the visit borrows it alone, for `'a`. So does it the code's owner.
        let exit = unsafe { (kind.code)(window, workspace.scratch, workspace.cur_ptr) };
        workspace.left -= 1;
        match exit.how {
            Exit::NEXT => {
                workspace.cur_ptr = exit.cur_ptr;
                self.fetch(workspace, kind)
            }
            Exit::RETURN => Err(End::Return),
            _ => Err(End::Fault),
        }
    }

    /// Translation and check, and the request for the window. An error says why the visit is over.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "an offset into memory that is mapped")]
    fn fetch(&self, workspace: &mut Workspace, kind: &Kind<'a>) -> Result<(), End<Miss>> {
        if workspace.left == 0 {
            return Err(End::IterationLimit);
        }
        let found = kind.ranges.find(self.lanes, workspace.cur_ptr, kind.window_len);
        workspace.window = found.map_err(End::Fetch)? as usize;
        prefetch(self.memory.as_ptr().wrapping_add(workspace.window), kind.window_len);
        Ok(())
    }

    /// Ends a visit and admits the next. Not inlined: the registers belong to the loop that calls it.
    #[inline(never)]
    fn replace(&mut self, workspace: &mut Workspace, owner: &mut Owner<'a>, end: End<Miss>) -> bool {
        self.end(workspace, owner, end);
        self.admit(workspace, owner)
    }

    /// Gives the workspace to the next visit that gets as far as waiting for a window. False when there is none.
    #[inline(always)]
    fn admit(&mut self, workspace: &mut Workspace, owner: &mut Owner<'a>) -> bool {
        while let Some((number, visit)) = self.visits.next() {
            let Visit { program, ranges, cur_ptr, scratch, limit } = visit;
            let shape = program.shape();
            assert!(!shape.stores, "a window that is lent is not stored to");
            assert_eq!(scratch.len(), usize::from(shape.scratch_len), "the scratch pad is the program's");
            let kind = self.kind(program, ranges);
            self.kinds[kind].workspaces += 1;
            *workspace = Workspace {
                window: 0,
                scratch: scratch.as_mut_ptr(),
                cur_ptr: cur_ptr.0,
                left: limit,
                kind: u32::try_from(kind).expect("below 64"),
            };
            *owner = Owner { number, limit, cur_ptr: Some(cur_ptr) };
            match self.fetch(workspace, &self.kinds[kind]) {
                Ok(()) => return true,
                Err(end) => self.end(workspace, owner, end),
            }
        }
        false
    }

    /// The number of the kind of visits of `program` by `ranges`: mostly that of the visit before.
    #[inline(always)]
    fn kind(&mut self, program: &'a Compiled, ranges: &'a Ranges) -> usize {
        let known = &self.kinds[self.last];
        if !(known.workspaces > 0 && known.is_of(program, ranges)) {
            self.last = self.new_kind(program, ranges);
        }
        self.last
    }

    #[cold]
    fn new_kind(&mut self, program: &'a Compiled, ranges: &'a Ranges) -> usize {
        let in_use = |kind: &Kind<'a>| kind.workspaces > 0;
        let place = self.kinds.iter().position(|kind| in_use(kind) && kind.is_of(program, ranges));
        place.unwrap_or_else(|| {
            assert!(ranges.end() <= self.memory.len() as u64, "a range table does not leave the memory");
            let free = self.kinds.iter().position(|kind| !in_use(kind));
            let free = free.expect("one of the workspaces is free, and no kind is there without one");
            let window_len = usize::from(program.shape().window_len);
            self.kinds[free] = Kind { code: program.code(), window_len, ranges, workspaces: 0 };
            free
        })
    }

    /// Leaves the state where the visit came from, and says that it is over.
    #[inline(always)]
    fn end(&mut self, workspace: &Workspace, owner: &mut Owner<'a>, end: End<Miss>) {
        self.kinds[workspace.kind as usize % IN_FLIGHT_MAX].workspaces -= 1;
        if let Some(cur_ptr) = owner.cur_ptr.take() {
            cur_ptr.0 = workspace.cur_ptr;
        }
        (self.done)(owner.number, Outcome { iterations: owner.limit - workspace.left, end });
    }
}

/// A visit that is over: whose workspace, and why.
struct Ended {
    at: usize,
    end: End<Miss>,
}

/// Asks the processor for the lines of a window, to the nearest cache. Where it cannot be asked, nothing happens.
#[inline(always)]
fn prefetch(window: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};
        let mut line = window;
        loop {
            // SAFETY: a prefetch reads nothing, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_NTA>(line.cast()) };
            line = line.wrapping_add(LINE_LEN - line.addr() % LINE_LEN);
            if line.addr().wrapping_sub(window.addr()) >= len {
                break;
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _cannot_be_asked = (window, len, LINE_LEN);
}
