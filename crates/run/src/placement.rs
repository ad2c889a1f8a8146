//! The placement policy: whether the pager runs on the CPU of the faulting thread.
//!
//! Key type: [`Placement`].
//!
//! A wake-up on the same CPU costs a fraction of a wake-up across CPUs. The faulting thread sleeps while the
//! pager serves its fault, and the pager sleeps until the next fault, so one CPU suffices for both. The kernel
//! nevertheless spreads them over idle CPUs, except when the pager is bound to the CPU of the faulting thread
//! and has the idle scheduling class: a CPU that runs only threads of that class counts as idle, so the kernel
//! wakes the faulting thread there. The program's own affinity never changes.
//!
//! The policy measures both placements by the median time between successive faults of one thread, and keeps
//! the shorter one. Programs with several faulting threads, and programs that compute between faults, are
//! served where the kernel places the pager.

use super::CpuPlacement;

/// Faults in a window. Each window gives one median.
const WINDOW: usize = 64;
/// Faults by another thread than the previous one, after which a window counts as one of several threads.
const OTHERS_MAX: u32 = 8;
/// Intervals above this length contain computation, not only the service of a fault.
const PAUSE_NS: u64 = 1_000_000;
/// Pauses in one window after which the pager leaves the CPU: the program computes, or the pager has no CPU.
const PAUSES_MAX: u32 = 64;
/// Largest median for which a trial can pay off.
const DENSE_NS: u32 = 150_000;
/// Windows that are measured before a trial, for the comparison.
const MEASURED: u32 = 4;
/// Windows of a trial. The first ones include the move of the pager.
const TRIAL: u32 = 6;
/// Slow faults in a row after which the pager looks up the CPU of the thread again.
const APART: u32 = 3;
/// Faults between two look-ups of a thread's CPU.
const FOLLOW_EVERY: u32 = 16;
/// Windows in a row without a gain after which the pager leaves the CPU of the faulting thread.
const SLOW_MAX: u32 = 8;
/// Windows until the pager measures the other placement again.
const KEPT_MAX: u32 = 1024;
/// Windows without a trial after the first failure; doubled after each further one, up to `FAILURES_MAX` times.
const SKIP: u32 = 16;
const FAILURES_MAX: u32 = 10;

/// A thread that faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ThreadId {
    /// Key of its process.
    pub(super) process: u32,
    /// Its number in its own PID namespace, which may be another one than the pager's.
    pub(super) own: u32,
}

/// A change of placement that the pager carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PlacementChange {
    /// The placement stays as it is.
    Stay,
    /// Move to the CPU of this thread, and to the idle class.
    Join(ThreadId),
    /// Look up the CPU of this thread again: it may have moved.
    Follow(ThreadId),
    /// Return to the placement by the kernel.
    Leave,
}

/// The state of the policy.
#[derive(Debug)]
pub(super) struct Placement {
    how: CpuPlacement,
    /// True while the pager shares the CPU of the faulting thread.
    beside: bool,
    intervals: [u32; WINDOW],
    filled: usize,
    /// Time and thread of the latest fault.
    last: Option<(u64, ThreadId)>,
    /// Changes of the faulting thread in this window.
    others: u32,
    /// Pauses in this window.
    pauses: u32,
    /// Least median in the present placement.
    best: u32,
    /// Least median in the placement by the kernel.
    free: u32,
    /// Windows measured in the present placement.
    measured: u32,
    /// Windows in a row without a gain.
    slow: u32,
    /// Slow faults in a row. The kernel has probably moved the thread.
    apart: u32,
    /// Faults since the CPU of the thread was looked up.
    followed: u32,
    /// Windows until the next trial may begin.
    skip: u32,
    /// Failed trials in a row.
    failures: u32,
}

impl Placement {
    pub(super) const fn new(how: CpuPlacement) -> Self {
        Self {
            how,
            beside: false,
            intervals: [0; WINDOW],
            filled: 0,
            last: None,
            others: 0,
            pauses: 0,
            best: u32::MAX,
            free: u32::MAX,
            measured: 0,
            slow: 0,
            apart: 0,
            followed: 0,
            skip: 0,
            failures: 0,
        }
    }

    pub(super) const fn is_enabled(&self) -> bool {
        !matches!(self.how, CpuPlacement::Free)
    }

    /// Records a fault of `thread` at time `now`, in nanoseconds.
    pub(super) fn fault(&mut self, now: u64, thread: ThreadId) -> PlacementChange {
        let Some((before, previous)) = self.last.replace((now, thread)) else { return PlacementChange::Stay };
        if self.how == CpuPlacement::Beside && !self.beside {
            self.beside = true;
            return PlacementChange::Join(thread);
        }
        if previous != thread {
            self.others += 1;
            if self.others > OTHERS_MAX && self.how == CpuPlacement::Auto {
                self.clear_window();
                return if self.beside { self.fail() } else { self.start_measuring() };
            }
            return PlacementChange::Stay;
        }
        let interval = now.saturating_sub(before);
        if interval > PAUSE_NS {
            self.pauses += u32::from(self.beside);
            return if self.pauses > PAUSES_MAX && self.how == CpuPlacement::Auto {
                self.fail()
            } else {
                PlacementChange::Stay
            };
        }
        self.intervals[self.filled] = u32::try_from(interval).expect("a pause is short");
        self.filled += 1;
        if self.filled < WINDOW {
            return if self.beside { self.follow(interval, thread) } else { PlacementChange::Stay };
        }
        let (_, &mut median, _) = self.intervals.select_nth_unstable(WINDOW / 2);
        self.clear_window();
        if self.beside { self.measured_beside(median) } else { self.measured_free(median, thread) }
    }

    /// Records that other threads kept the pager from its CPU.
    pub(super) fn starved(&mut self) -> PlacementChange {
        if self.beside { self.fail() } else { PlacementChange::Stay }
    }

    fn measured_free(&mut self, median: u32, thread: ThreadId) -> PlacementChange {
        if self.skip > 0 {
            self.skip -= 1;
            return PlacementChange::Stay;
        }
        if median > DENSE_NS {
            return self.start_measuring();
        }
        self.best = self.best.min(median);
        self.measured += 1;
        if self.measured < MEASURED {
            return PlacementChange::Stay;
        }
        self.free = self.best;
        self.beside = true;
        self.start_measuring();
        PlacementChange::Join(thread)
    }

    fn measured_beside(&mut self, median: u32) -> PlacementChange {
        self.best = self.best.min(median);
        if self.how == CpuPlacement::Beside {
            return PlacementChange::Stay;
        }
        self.measured += 1;
        let gains = |median: u32| u64::from(median) * 8 <= u64::from(self.free) * 7;
        if self.measured < TRIAL {
            return PlacementChange::Stay;
        }
        if self.measured == TRIAL {
            return if gains(self.best) { PlacementChange::Stay } else { self.fail() };
        }
        self.failures = 0;
        self.slow = if gains(median) { 0 } else { self.slow + 1 };
        if self.slow == SLOW_MAX {
            return self.fail();
        }
        if self.measured == KEPT_MAX {
            self.beside = false;
            self.start_measuring();
            return PlacementChange::Leave;
        }
        // A program whose faults have become more expensive is compared with its own recent windows.
        self.best += self.best / 64 + 1;
        PlacementChange::Stay
    }

    /// Finds out whether the kernel has moved the thread to another CPU: its faults are slow then.
    fn follow(&mut self, interval: u64, thread: ThreadId) -> PlacementChange {
        self.followed += 1;
        self.apart = if interval * 2 > u64::from(self.best) * 3 { self.apart + 1 } else { 0 };
        if self.apart < APART || self.followed < FOLLOW_EVERY {
            return PlacementChange::Stay;
        }
        (self.apart, self.followed) = (0, 0);
        PlacementChange::Follow(thread)
    }

    /// Gives up a trial before it began: no CPU is idle, so the kernel does not spread the threads either.
    pub(super) fn postpone(&mut self) {
        (self.beside, self.skip) = (false, SKIP);
        self.start_measuring();
    }

    /// Gives the placement up for good: this process may not have it.
    pub(super) fn disable(&mut self) {
        (self.how, self.beside) = (CpuPlacement::Free, false);
    }

    /// Ends a placement that does not pay off; the next trial comes later each time.
    fn fail(&mut self) -> PlacementChange {
        self.clear_window();
        if self.how == CpuPlacement::Beside {
            self.beside = false;
            return PlacementChange::Leave;
        }
        self.skip = SKIP << self.failures;
        self.failures = (self.failures + 1).min(FAILURES_MAX);
        self.beside = false;
        self.start_measuring();
        PlacementChange::Leave
    }

    const fn start_measuring(&mut self) -> PlacementChange {
        (self.best, self.measured, self.slow) = (u32::MAX, 0, 0);
        PlacementChange::Stay
    }

    const fn clear_window(&mut self) {
        (self.filled, self.others, self.pauses) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose faults take `free` nanoseconds in the kernel's placement and `beside` on one CPU.
    struct Program {
        placement: Placement,
        now: u64,
        free: u64,
        beside: u64,
        /// Threads that fault in turn.
        threads: u32,
        faults: u64,
        /// Faults served on the CPU of the faulting thread.
        faults_beside: u64,
        moves: u64,
    }

    impl Program {
        fn new(free: u64, beside: u64, threads: u32) -> Self {
            let placement = Placement::new(CpuPlacement::Auto);
            Self { placement, now: 0, free, beside, threads, faults: 0, faults_beside: 0, moves: 0 }
        }

        fn run(&mut self, faults: u64) {
            for _ in 0..faults {
                let thread = u32::try_from(self.faults % u64::from(self.threads)).unwrap();
                self.faults += 1;
                self.faults_beside += u64::from(self.placement.beside);
                self.now += if self.placement.beside { self.beside } else { self.free };
                match self.placement.fault(self.now, ThreadId { process: 1, own: thread }) {
                    PlacementChange::Join(of) => {
                        assert_eq!(of.own, thread);
                        self.moves += 1;
                    }
                    PlacementChange::Leave => self.moves += 1,
                    PlacementChange::Follow(_) | PlacementChange::Stay => {}
                }
            }
        }
    }

    /// The faster placement is found within 300 faults and kept, except while the other one is measured.
    #[test]
    fn the_faster_placement_is_kept() {
        let mut program = Program::new(20_000, 11_000, 1);
        program.run(300);
        assert_eq!(program.moves, 1);
        program.run(200_000);
        assert!(program.faults_beside * 100 > program.faults * 98, "{} faults", program.faults_beside);
        assert!(program.moves < 10, "{} moves", program.moves);
    }

    /// Where one CPU is not faster, trials become rare.
    #[test]
    fn a_slower_placement_is_left() {
        for beside in [40_000, 20_000, 18_000] {
            let mut program = Program::new(20_000, beside, 1);
            program.run(1_000_000);
            assert!(program.faults_beside * 100 < program.faults, "{} faults", program.faults_beside);
        }
    }

    /// A program with several faulting threads, or with computation between faults, is left to the kernel.
    #[test]
    fn threads_and_computation_are_left_alone() {
        let mut program = Program::new(20_000, 11_000, 2);
        program.run(100_000);
        assert_eq!(program.moves, 0);
        let mut program = Program::new(u64::from(DENSE_NS) + 1, 11_000, 1);
        program.run(100_000);
        assert_eq!(program.moves, 0);
        let mut program = Program::new(PAUSE_NS + 1, 11_000, 1);
        program.run(100_000);
        assert_eq!(program.moves, 0);
    }

    /// A program that begins to compute between its faults is left soon.
    #[test]
    fn pauses_end_it() {
        let mut program = Program::new(20_000, 11_000, 1);
        program.run(1_000);
        assert!(program.placement.beside);
        program.beside = PAUSE_NS + 1;
        program.run(u64::from(PAUSES_MAX) + 1);
        assert!(!program.placement.beside);
    }

    /// A second faulting thread ends the placement within one window.
    #[test]
    fn a_second_thread_ends_it() {
        let mut program = Program::new(20_000, 11_000, 1);
        program.run(1_000);
        assert!(program.placement.beside);
        program.threads = 2;
        program.run(16);
        assert!(!program.placement.beside);
    }

    /// A faulting thread that moved to another CPU is looked up after a few slow faults, and not too often.
    #[test]
    fn slow_faults_make_the_pager_follow() {
        let mut program = Program::new(20_000, 11_000, 1);
        program.run(1_000);
        let mut follows = Vec::new();
        for n in 0..WINDOW * 2 {
            program.now += 20_000;
            let thread = ThreadId { process: 1, own: 0 };
            if program.placement.fault(program.now, thread) == PlacementChange::Follow(thread) {
                follows.push(n);
            }
        }
        assert!(follows[0] < APART as usize + 1, "{follows:?}");
        assert!(follows.windows(2).all(|two| two[1] - two[0] >= FOLLOW_EVERY as usize), "{follows:?}");
    }

    /// A user who asks for it has the pager beside the faulting thread from the second fault on.
    #[test]
    fn the_placement_can_be_chosen() {
        let mut program = Program::new(20_000, 40_000, 2);
        program.placement = Placement::new(CpuPlacement::Beside);
        program.run(10_000);
        assert_eq!((program.moves, program.faults_beside), (1, 9_998));
        assert!(!Placement::new(CpuPlacement::Free).is_enabled());
    }

    /// A trial that is postponed counts as no failure.
    #[test]
    fn a_postponed_trial_comes_back() {
        let mut program = Program::new(20_000, 11_000, 1);
        while !program.placement.beside {
            program.run(1);
        }
        program.placement.postpone();
        assert!(!program.placement.beside);
        program.run(u64::from(SKIP + MEASURED + 1) * WINDOW as u64);
        assert!(program.placement.beside);
        assert_eq!(program.placement.failures, 0);
    }

    /// A pager that other threads keep from the CPU leaves at once, and tries again later each time.
    #[test]
    fn a_starved_pager_leaves() {
        let mut program = Program::new(20_000, 11_000, 1);
        let mut before = 0;
        for _ in 0..4 {
            program.faults_beside = 0;
            let from = program.faults;
            while !program.placement.beside {
                program.run(1);
            }
            assert!(program.faults - from > before);
            before = program.faults - from;
            assert_eq!(program.placement.starved(), PlacementChange::Leave);
            assert!(!program.placement.beside);
        }
        assert_eq!(program.placement.starved(), PlacementChange::Stay);
    }
}
