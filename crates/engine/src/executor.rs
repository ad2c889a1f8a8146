//! Many traversals in flight on one core (PULSE 4.2): fetch and logic decoupled.
//!
//! A traversal alternates between waiting for its next window and computing on it for a few nanoseconds. The executor keeps a
//! workspace for each of up to [`IN_FLIGHT_MAX`] traversals and goes round: at each it runs the iteration on the window that was asked
//! for a round ago, translates the pointer that came out and asks for its lines. One that ends makes room for the next visit at once, so
//! there are always as many requests as workspaces.
//!
//! A core looks a few hundred instructions ahead of what it waits for, and asks memory for the lines it finds there. So the fewer
//! instructions a turn has, the more requests are under way: whatever can be known when a visit is admitted is found out then. And as long
//! as all visits are of one program and one range table, which is mostly so, what they have in common stays in registers.

use crate::jit::{Code, Compiled, Exit};
#[cfg(target_arch = "x86_64")]
use crate::ranges::{Avx2, Avx512};
use crate::ranges::{Lanes, Miss, Ranges, Search, Way};
use farmem_traversal::{End, LINE_LEN, Outcome};
use farmem_wire::VirtAddr;
use std::hint::cold_path;
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
        match self.search.0 {
            Way::Portable(lanes) => Round { lanes, memory, first: None, visits, done }.run(self.in_flight),
            #[cfg(target_arch = "x86_64")]
            Way::Avx2(lanes) => {
                // SAFETY: a value of `Avx2` is only made where the machine has it.
                unsafe { run_avx2(Round { lanes, memory, first: None, visits, done }, self.in_flight) };
            }
            #[cfg(target_arch = "x86_64")]
            Way::Avx512(lanes) => {
                // SAFETY: a value of `Avx512` is only made where the machine has it.
                unsafe { run_avx512(Round { lanes, memory, first: None, visits, done }, self.in_flight) };
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

/// PULSE's workspace, without the data: that lies in the nearest cache, where the prefetch has brought it. It is one line of memory: the
/// more of that cache workspaces take, the more lines are lost from it before their turn.
#[repr(C, align(64))]
struct Workspace<'a> {
    /// The window that was asked for, by its place in the memory.
    window: usize,
    /// As many bytes as the program's scratch pad has, which was checked when the visit was admitted; borrowed by the visit alone.
    scratch: *mut u8,
    cur_ptr: u64,
    /// Iterations left; the one whose window was asked for counts.
    left: u32,
    limit: u32,
    /// The visit's place in the order of visits.
    number: usize,
    /// Nobody's before the first visit.
    owner: Option<Owner<'a>>,
}

/// What a visit borrows.
struct Owner<'a> {
    program: &'a Compiled,
    ranges: &'a Ranges,
    /// Where the pointer is left in the end.
    cur_ptr: &'a mut VirtAddr,
}

const _: () = assert!(size_of::<Workspace<'_>>() == LINE_LEN);

impl<'a> Workspace<'a> {
    const FREE: Self =
        Self { window: 0, scratch: ptr::null_mut(), cur_ptr: 0, left: 0, limit: 0, number: 0, owner: None };

    #[inline(always)]
    fn kind(&self) -> Kind<'a> {
        let owner = self.owner.as_ref().expect("a workspace that is busy is somebody's");
        Kind::new(owner.program, owner.ranges)
    }
}

/// What visits of one program and one range table have in common.
#[derive(Clone, Copy)]
struct Kind<'a> {
    program: &'a Compiled,
    ranges: &'a Ranges,
    code: Code,
    window_len: usize,
}

impl<'a> Kind<'a> {
    #[inline(always)]
    fn new(program: &'a Compiled, ranges: &'a Ranges) -> Self {
        Self { program, ranges, code: program.code(), window_len: usize::from(program.shape().window_len) }
    }

    /// By their places: equal ones that lie elsewhere count as different.
    #[inline(always)]
    fn is_of(&self, program: &Compiled, ranges: &Ranges) -> bool {
        ptr::eq(self.program, program) && ptr::eq(self.ranges, ranges)
    }
}

/// All workspaces. The first `busy` ones have a visit; of these, those from `at` on have not had their turn in this round.
struct Flight<'a> {
    workspaces: [Workspace<'a>; IN_FLIGHT_MAX],
    busy: usize,
    at: usize,
}

impl<'a> Flight<'a> {
    /// The kind of all visits, if they are of one.
    #[inline(always)]
    fn kind(&self) -> Option<Kind<'a>> {
        let mut kinds = self.workspaces[..self.busy].iter().map(Workspace::kind);
        let first = kinds.next()?;
        kinds.all(|kind| first.is_of(kind.program, kind.ranges)).then_some(first)
    }

    /// Takes the workspace out that had its turn last. The one that comes to its place did not have its own.
    fn vacate(&mut self) {
        self.at -= 1;
        self.busy -= 1;
        self.workspaces.swap(self.at, self.busy);
    }
}

/// Who comes to a workspace whose visit is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A visit of the same kind as all.
    Alike,
    /// A visit whose kind was not looked at, or is another.
    Any,
    /// Nobody is left.
    Nobody,
}

struct Round<'m, 'a, L, V, D> {
    lanes: L,
    memory: &'m [u8],
    /// Comes before the others.
    first: Option<(usize, Visit<'a>)>,
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
        let workspaces = [const { Workspace::FREE }; IN_FLIGHT_MAX];
        let mut flight = Flight { workspaces, busy: 0, at: 0 };
        while flight.busy < in_flight && self.admit(&mut flight.workspaces[flight.busy]) == Next::Any {
            flight.busy += 1;
        }
        while flight.busy > 0 {
            match flight.kind() {
                Some(kind) => while self.go_round(&mut flight, Some(&kind)) == Next::Alike {},
                None => {
                    self.go_round(&mut flight, None);
                }
            }
        }
    }

    /// A turn for each that has not had it in this round. It stops behind one that nobody came to, and where all were of one kind, behind
    /// one to which another came. Answers who came last.
    #[inline(always)]
    fn go_round(&mut self, flight: &mut Flight<'a>, all: Option<&Kind<'a>>) -> Next {
        let mut turns = flight.workspaces[flight.at..flight.busy].iter_mut();
        let mut next = Next::Alike;
        for workspace in &mut turns {
            let kind = all.copied().unwrap_or_else(|| workspace.kind());
            if let Err(end) = self.turn(workspace, &kind) {
                self.end(workspace, end);
                next = match all {
                    Some(all) => self.admit_alike(workspace, all),
                    None => self.admit(workspace),
                };
                if next == Next::Nobody || all.is_some() && next == Next::Any {
                    break;
                }
            }
        }
        flight.at = flight.busy - turns.len();
        if next == Next::Nobody {
            flight.vacate();
        }
        if flight.at == flight.busy {
            flight.at = 0;
        }
        next
    }

    /// Logic on the window that was asked for, then the translation of the next. An error says why the visit is over.
    #[inline(always)]
    fn turn(&self, workspace: &mut Workspace<'a>, kind: &Kind<'a>) -> Result<(), End<Miss>> {
        // SAFETY: `fetch` has found the place with a range table that does not leave the memory.
        let window = unsafe { self.memory.as_ptr().add(workspace.window) };
        // SAFETY: the window has the program's length, as `fetch` checked, and the memory is borrowed as long as the executor runs; so has
        // the scratch pad, as `seat` checked, and the visit borrows it alone, for `'a`. So does it the code's owner. The program does not
        // store, as `admit` checked of this kind.
        let exit = unsafe { (kind.code)(window, workspace.scratch, workspace.cur_ptr) };
        workspace.left -= 1;
        workspace.cur_ptr = exit.cur_ptr;
        match exit.how {
            Exit::NEXT => self.fetch(workspace, kind),
            Exit::RETURN => Err(End::Return),
            _ => {
                cold_path();
                Err(End::Fault)
            }
        }
    }

    /// Translation and check, and the request for the window. An error says why the visit is over.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "an offset into memory that is mapped")]
    fn fetch(&self, workspace: &mut Workspace<'a>, kind: &Kind<'a>) -> Result<(), End<Miss>> {
        if workspace.left == 0 {
            cold_path();
            return Err(End::IterationLimit);
        }
        match kind.ranges.find(self.lanes, workspace.cur_ptr, kind.window_len) {
            Ok(offset) => {
                workspace.window = offset as usize;
                prefetch(self.memory.as_ptr().wrapping_add(workspace.window), kind.window_len);
                Ok(())
            }
            Err(miss) => {
                cold_path();
                Err(End::Fetch(miss))
            }
        }
    }

    /// As [`Self::admit`], quickly when the visit is of the same kind as `all`, for which it was checked before.
    #[inline(always)]
    fn admit_alike(&mut self, workspace: &mut Workspace<'a>, all: &Kind<'a>) -> Next {
        let Some((number, visit)) = self.visits.next() else { return Next::Nobody };
        if !all.is_of(visit.program, visit.ranges) {
            cold_path();
            self.first = Some((number, visit));
            return self.admit(workspace);
        }
        match self.seat(workspace, number, visit, all) {
            Ok(()) => Next::Alike,
            Err(end) => {
                cold_path();
                self.end(workspace, end);
                self.admit(workspace)
            }
        }
    }

    /// Gives the workspace to the next visit that gets as far as waiting for a window. Not inlined: the registers belong to the loop that
    /// calls it.
    #[inline(never)]
    fn admit(&mut self, workspace: &mut Workspace<'a>) -> Next {
        while let Some((number, visit)) = self.first.take().or_else(|| self.visits.next()) {
            assert!(!visit.program.shape().stores, "a window that is lent is not stored to");
            let inside = visit.ranges.end() <= self.memory.len() as u64;
            assert!(inside, "a range table does not leave the memory");
            let kind = Kind::new(visit.program, visit.ranges);
            match self.seat(workspace, number, visit, &kind) {
                Ok(()) => return Next::Any,
                Err(end) => self.end(workspace, end),
            }
        }
        Next::Nobody
    }

    /// Puts a visit of a kind into a workspace, and asks for its first window. An error says why it is over at once.
    #[inline(always)]
    fn seat(
        &self,
        workspace: &mut Workspace<'a>,
        number: usize,
        visit: Visit<'a>,
        kind: &Kind<'a>,
    ) -> Result<(), End<Miss>> {
        let Visit { program, ranges, cur_ptr, scratch, limit } = visit;
        assert_eq!(
            scratch.len(),
            usize::from(program.shape().scratch_len),
            "the scratch pad is the program's"
        );
        *workspace = Workspace {
            window: 0,
            scratch: scratch.as_mut_ptr(),
            cur_ptr: cur_ptr.0,
            left: limit,
            limit,
            number,
            owner: Some(Owner { program, ranges, cur_ptr }),
        };
        self.fetch(workspace, kind)
    }

    /// Leaves the state where the visit came from, and says that it is over.
    #[inline(always)]
    fn end(&mut self, workspace: &mut Workspace<'a>, end: End<Miss>) {
        if let Some(owner) = &mut workspace.owner {
            owner.cur_ptr.0 = workspace.cur_ptr;
        }
        (self.done)(workspace.number, Outcome { iterations: workspace.limit - workspace.left, end });
    }
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
