//! Many traversals in flight on one core (PULSE 4.2): fetch and logic decoupled.
//!
//! A traversal alternates between waiting for its next window and computing on it for a few nanoseconds. The executor keeps a
//! workspace for each of up to [`IN_FLIGHT_MAX`] traversals and goes round: at each it loads the window that was asked for a round
//! ago, runs the iteration, translates the pointer that came out, asks for the lines there, and goes on to the next workspace. One
//! that ends makes room for the next visit at once, so the memory always has as many requests as there are workspaces.

use crate::jit::{Code, Compiled, Exit};
#[cfg(target_arch = "x86_64")]
use crate::ranges::{Avx2, Avx512};
use crate::ranges::{Lanes, Miss, Ranges, Search, Way};
use farmem_traversal::{End, Outcome, WINDOW_LEN_MAX};
use farmem_wire::VirtAddr;

/// Workspaces at most.
pub const IN_FLIGHT_MAX: usize = 64;
/// Workspaces unless somebody knows better. A core has 10 to 16 requests to memory at once; twice as many visits keep them busy.
pub const IN_FLIGHT_DEFAULT: usize = 32;

/// The bytes that offsets of a range table lead to.
pub trait Memory {
    /// Asks for the lines of the `len` bytes from `offset`, and does not wait for them. May do nothing.
    fn prefetch(&self, offset: u64, len: usize);

    /// The bytes from `offset` on, as many as `window` has: copied to it, or lent from where they lie.
    ///
    /// Only bytes that nobody writes while they are lent may be lent; others are copied, so that an iteration sees every byte as it was
    /// at one moment. The executor asks for nothing that a range table does not hold; it panics when the answer has another length.
    ///
    /// # Panics
    /// When they leave the memory.
    fn load<'a>(&'a self, offset: u64, window: &'a mut [u8]) -> &'a [u8];
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
    /// When a scratch pad does not have its program's length.
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

/// PULSE's workspace, without the data: that lies in the nearest cache, where the prefetch has brought it.
struct Workspace<'a> {
    code: Code,
    /// Where the window lies that was asked for.
    offset: u64,
    window_len: usize,
    visit: Visit<'a>,
    number: usize,
    /// Iterations left; the one whose window was asked for counts.
    left: u32,
}

/// What became of a workspace.
enum Turn {
    /// Its next window is asked for.
    Waits,
    /// The visit is over.
    Ended(Outcome<Miss>),
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
        let mut buffer = Buffer([0; WINDOW_LEN_MAX]);
        let mut workspaces = [const { None::<Workspace<'a>> }; IN_FLIGHT_MAX];
        let mut busy = 0;
        while busy < in_flight {
            let Some(workspace) = self.admit() else { break };
            workspaces[busy] = Some(workspace);
            busy += 1;
        }
        while busy > 0 {
            let mut at = 0;
            while at < busy {
                let workspace = workspaces[at].as_mut().expect("the first ones are busy");
                if let Turn::Ended(outcome) = self.turn(workspace, &mut buffer.0) {
                    (self.done)(workspace.number, outcome);
                    workspaces[at] = self.admit();
                    if workspaces[at].is_none() {
                        busy -= 1;
                        workspaces.swap(at, busy);
                        continue;
                    }
                }
                at += 1;
            }
        }
    }

    /// The next visit that gets as far as waiting for a window.
    #[inline(always)]
    fn admit(&mut self) -> Option<Workspace<'a>> {
        loop {
            let (number, visit) = self.visits.next()?;
            let program = visit.program.program();
            assert_eq!(visit.scratch.len(), program.scratch_len(), "the scratch pad is the program's");
            let (window_len, left) = (program.window_len(), visit.limit);
            let code = visit.program.code();
            let mut workspace = Workspace { code, offset: 0, window_len, visit, number, left };
            match self.fetch(&mut workspace) {
                Turn::Waits => return Some(workspace),
                Turn::Ended(outcome) => (self.done)(number, outcome),
            }
        }
    }

    /// Logic on the window that was asked for, then the fetch of the next.
    #[inline(always)]
    fn turn(&mut self, workspace: &mut Workspace<'a>, buffer: &mut [u8; WINDOW_LEN_MAX]) -> Turn {
        let len = workspace.window_len;
        let window = self.memory.load(workspace.offset, &mut buffer[..len]);
        assert_eq!(window.len(), len, "a memory answers what it was asked");
        let visit = &mut workspace.visit;
        // SAFETY: the window has the program's length, by the assertion; so has the scratch pad, which was checked when the visit was
        // admitted and which it borrows alone; it borrows the code's owner, too.
        let exit = unsafe { (workspace.code)(window.as_ptr(), visit.scratch.as_mut_ptr(), visit.cur_ptr.0) };
        workspace.left -= 1;
        let end = match exit.how {
            Exit::NEXT => {
                visit.cur_ptr.0 = exit.cur_ptr;
                return self.fetch(workspace);
            }
            Exit::RETURN => End::Return,
            _ => End::Fault,
        };
        Turn::Ended(workspace.outcome(end))
    }

    /// Translation, check and the request for the lines.
    #[inline(always)]
    fn fetch(&mut self, workspace: &mut Workspace<'a>) -> Turn {
        if workspace.left == 0 {
            return Turn::Ended(workspace.outcome(End::IterationLimit));
        }
        let visit = &workspace.visit;
        match visit.ranges.find(self.lanes, visit.cur_ptr.0, workspace.window_len) {
            Ok(offset) => {
                self.memory.prefetch(offset, workspace.window_len);
                workspace.offset = offset;
                Turn::Waits
            }
            Err(miss) => Turn::Ended(workspace.outcome(End::Fetch(miss))),
        }
    }
}

impl Workspace<'_> {
    const fn outcome(&self, end: End<Miss>) -> Outcome<Miss> {
        Outcome { iterations: self.visit.limit - self.left, end }
    }
}

/// Where windows are copied to: whole lines.
#[repr(align(64))]
struct Buffer([u8; WINDOW_LEN_MAX]);

#[cfg(test)]
mod tests;
