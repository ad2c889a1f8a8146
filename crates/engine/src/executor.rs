//! Many traversals in flight on one core (PULSE 4.2): fetch and logic decoupled.
//!
//! A traversal alternates between waiting for its next window and computing on it for a few nanoseconds. The executor keeps a
//! workspace for each of up to [`IN_FLIGHT_MAX`] traversals and goes round: at each it runs the iteration on the window that was asked
//! for a round ago and translates the pointer that came out. Behind a group of them it asks for their lines, one request behind the
//! other: a core follows many requests to memory at once when little stands between them, and few when each stands behind an
//! iteration. One that ends makes room for the next visit at once, so there are always as many requests as workspaces.

use crate::jit::{Code, Compiled, Exit};
#[cfg(target_arch = "x86_64")]
use crate::ranges::{Avx2, Avx512};
use crate::ranges::{Lanes, Miss, Ranges, Search, Way};
use farmem_traversal::{End, LINE_LEN, Outcome};
use farmem_wire::VirtAddr;
use std::{array, ptr, slice};

/// Workspaces at most.
pub const IN_FLIGHT_MAX: usize = 64;
/// Workspaces unless somebody knows better. A core has 10 to 16 requests to memory at once; twice as many visits keep them busy.
pub const IN_FLIGHT_DEFAULT: usize = 32;

/// The bytes that offsets of a range table lead to.
///
/// They are lent where they lie: an iteration reads the lines that the prefetch brought, and nothing is copied. So nobody may write
/// while the memory is borrowed; who has other writers lends a copy.
pub trait Memory {
    /// The `len` bytes from `offset` on. The executor asks for nothing that a range table does not hold, and panics when it gets
    /// another number of bytes.
    ///
    /// # Panics
    /// When they leave the memory.
    fn window(&self, offset: u64, len: usize) -> &[u8];

    /// Asks for the lines of a window, and does not wait for them.
    #[inline(always)]
    fn prefetch(&self, window: &[u8]) {
        prefetch(window);
    }
}

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

    /// Runs all `visits`, each to where [`farmem_traversal::run`] would bring it. They are taken one by one, as workspaces become free.
    ///
    /// `done` is called once for each, as it ends, with its place in the order of `visits`: visits may overtake each other. Nothing is
    /// allocated.
    ///
    /// # Panics
    /// When a scratch pad does not have its program's length, or a program stores: the executor lends windows where they lie.
    pub fn run<'a, M: Memory>(
        &self,
        memory: &M,
        visits: impl IntoIterator<Item = Visit<'a>>,
        done: impl FnMut(usize, Outcome<Miss>),
    ) {
        let visits = visits.into_iter().enumerate();
        match self.search.0 {
            Way::Portable(lanes) => Round { lanes, memory, visits, done }.run(self.in_flight),
            #[cfg(target_arch = "x86_64")]
            Way::Avx2(lanes) => {
                // SAFETY: a value of `Avx2` is only made where the machine has it.
                unsafe { run_avx2(Round { lanes, memory, visits, done }, self.in_flight) };
            }
            #[cfg(target_arch = "x86_64")]
            Way::Avx512(lanes) => {
                // SAFETY: a value of `Avx512` is only made where the machine has it.
                unsafe { run_avx512(Round { lanes, memory, visits, done }, self.in_flight) };
            }
        }
    }
}

/// The whole round is compiled with the machine's instructions, or each comparison would be a call.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1")]
fn run_avx2<'a, M: Memory>(
    mut round: Round<'_, Avx2, M, impl Iterator<Item = (usize, Visit<'a>)>, impl FnMut(usize, Outcome<Miss>)>,
    in_flight: usize,
) {
    round.run(in_flight);
}

/// As [`run_avx2`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,bmi1")]
fn run_avx512<'a, M: Memory>(
    mut round: Round<
        '_,
        Avx512,
        M,
        impl Iterator<Item = (usize, Visit<'a>)>,
        impl FnMut(usize, Outcome<Miss>),
    >,
    in_flight: usize,
) {
    round.run(in_flight);
}

/// PULSE's workspace, without the data: that lies in the nearest cache, where the prefetch has brought it. This is the part that
/// every turn needs, one line of memory; the rest is in [`Owner`].
#[repr(align(64))]
struct Workspace<'a> {
    code: Code,
    /// Of the program's length, which was checked when the visit was admitted.
    scratch: &'a mut [u8],
    ranges: &'a Ranges,
    cur_ptr: u64,
    /// The window that was asked for.
    window: *const u8,
    window_len: u32,
    /// Iterations left; the one whose window was asked for counts.
    left: u32,
}

impl Workspace<'_> {
    fn free() -> Self {
        static NOTHING: Ranges = Ranges::EMPTY;
        let (scratch, ranges) = (&mut [][..], &NOTHING);
        Self { code: idle, scratch, ranges, cur_ptr: 0, window: ptr::null(), window_len: 0, left: 0 }
    }
}

/// The code of a workspace that is free: it is not run.
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

struct Round<'m, L, M, V, D> {
    lanes: L,
    memory: &'m M,
    visits: V,
    done: D,
}

impl<'a, L, M, V, D> Round<'_, L, M, V, D>
where
    L: Lanes,
    M: Memory,
    V: Iterator<Item = (usize, Visit<'a>)>,
    D: FnMut(usize, Outcome<Miss>),
{
    #[inline(always)]
    fn run(&mut self, in_flight: usize) {
        let mut workspaces: [_; IN_FLIGHT_MAX] = array::from_fn(|_| Workspace::<'a>::free());
        let mut owners = [const { Owner::<'a>::NOBODY }; IN_FLIGHT_MAX];
        // Half of them: the lines of one half travel while the other half computes.
        let group = in_flight.div_ceil(2);
        let mut busy = 0;
        while busy < in_flight && self.admit(&mut workspaces[busy], &mut owners[busy]) {
            busy += 1;
        }
        self.ask(&workspaces[..busy]);
        let mut first = 0;
        while busy > 0 {
            let mut at = first;
            while at < busy.min(first + group) {
                if let Err(end) = self.turn(&mut workspaces[at])
                    && !self.replace(&mut workspaces[at], &mut owners[at], end)
                {
                    busy -= 1;
                    workspaces.swap(at, busy);
                    owners.swap(at, busy);
                    // The one that came here may be of this group, too, and did not have its turn.
                    continue;
                }
                at += 1;
            }
            self.ask(&workspaces[first..at]);
            first = if at < busy { at } else { 0 };
        }
    }

    /// Asks for the windows of `workspaces`, one request behind the other.
    #[inline(always)]
    fn ask(&self, workspaces: &[Workspace<'a>]) {
        for workspace in workspaces {
            // SAFETY: `fetch` has set both, from a window that the memory lends as long as it is borrowed here.
            let window = unsafe { slice::from_raw_parts(workspace.window, workspace.window_len as usize) };
            self.memory.prefetch(window);
        }
    }

    /// Logic on the window that was asked for, then the translation of the next. An error says why the visit is over.
    #[inline(always)]
    fn turn(&self, workspace: &mut Workspace<'a>) -> Result<(), End<Miss>> {
        let scratch = workspace.scratch.as_mut_ptr();
        // SAFETY: the window is lent as long as the memory is borrowed here and has the program's length, as `fetch` checked; so has
        // the scratch pad, as `admit` checked, and the workspace borrows it alone. The visit borrowed the code's owner for `'a`, too.
        let exit = unsafe { (workspace.code)(workspace.window, scratch, workspace.cur_ptr) };
        workspace.left -= 1;
        match exit.how {
            Exit::NEXT => {
                workspace.cur_ptr = exit.cur_ptr;
                self.fetch(workspace)
            }
            Exit::RETURN => Err(End::Return),
            _ => Err(End::Fault),
        }
    }

    /// Translation and check. An error says why the visit is over.
    #[inline(always)]
    fn fetch(&self, workspace: &mut Workspace<'a>) -> Result<(), End<Miss>> {
        if workspace.left == 0 {
            return Err(End::IterationLimit);
        }
        let len = workspace.window_len as usize;
        let offset = workspace.ranges.find(self.lanes, workspace.cur_ptr, len).map_err(End::Fetch)?;
        let window = self.memory.window(offset, len);
        assert_eq!(window.len(), len, "a memory lends what it was asked for");
        workspace.window = window.as_ptr();
        Ok(())
    }

    /// Ends a visit and admits the next. Not inlined: the registers belong to the loop that calls it.
    #[inline(never)]
    fn replace(&mut self, workspace: &mut Workspace<'a>, owner: &mut Owner<'a>, end: End<Miss>) -> bool {
        self.end(workspace, owner, end);
        self.admit(workspace, owner)
    }

    /// Gives the workspace to the next visit that gets as far as waiting for a window. False when there is none.
    fn admit(&mut self, workspace: &mut Workspace<'a>, owner: &mut Owner<'a>) -> bool {
        while let Some((number, visit)) = self.visits.next() {
            let program = visit.program.program();
            assert!(!program.stores(), "a window that is lent is not stored to");
            assert_eq!(visit.scratch.len(), program.scratch_len(), "the scratch pad is the program's");
            let (cur_ptr, window) = (visit.cur_ptr.0, ptr::null());
            let window_len = u32::try_from(program.window_len()).expect("at most 256");
            let Visit { ranges, scratch, limit, .. } = visit;
            let code = visit.program.code();
            *workspace = Workspace { code, scratch, ranges, cur_ptr, window, window_len, left: limit };
            *owner = Owner { number, limit, cur_ptr: Some(visit.cur_ptr) };
            match self.fetch(workspace) {
                Ok(()) => return true,
                Err(end) => self.end(workspace, owner, end),
            }
        }
        false
    }

    /// Leaves the state where the visit came from, and says that it is over.
    fn end(&mut self, workspace: &Workspace<'a>, owner: &mut Owner<'a>, end: End<Miss>) {
        if let Some(cur_ptr) = owner.cur_ptr.take() {
            cur_ptr.0 = workspace.cur_ptr;
        }
        (self.done)(owner.number, Outcome { iterations: owner.limit - workspace.left, end });
    }
}

/// Asks the processor for the lines of a window, to the nearest cache. Where it cannot be asked, nothing happens.
#[inline(always)]
fn prefetch(window: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};
        let last = window.as_ptr().wrapping_add(window.len().saturating_sub(1));
        let mut line = window.as_ptr();
        loop {
            // SAFETY: a prefetch reads nothing, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_NTA>(line.cast()) };
            line = line.wrapping_add(LINE_LEN - line.addr() % LINE_LEN);
            if line > last {
                break;
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _cannot_be_asked = window;
}
