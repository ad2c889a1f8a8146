//! CPU time of the working threads, as a complement to elapsed time.
//!
//! Key type: [`CpuMeter`], which knows the measured processes. A spinning process has a CPU for itself, and a
//! sleeping one uses little. Elapsed time does not tell the two apart.

use crate::raw::cpu_time_of_children;
use crate::to_f64;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{read_dir, read_to_string};
use std::time::Duration;

/// Runs `run` on a new thread. The thread ends with its result, and with the thread its CPU binding.
pub(crate) fn on_its_own<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    let ended = std::thread::scope(|threads| threads.spawn(run).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The set of processes to measure.
#[derive(Clone, Default, Debug)]
pub struct CpuMeter {
    own: bool,
    children: bool,
    others: Vec<u32>,
}

impl CpuMeter {
    /// Measures all threads of this process.
    #[must_use]
    pub const fn own() -> Self {
        Self { own: true, children: false, others: Vec::new() }
    }

    /// Measures all threads of this process and of `others`, which live until the last reading.
    #[must_use]
    pub fn with(others: impl IntoIterator<Item = u32>) -> Self {
        Self { others: others.into_iter().collect(), ..Self::own() }
    }

    /// Measures all threads of one other process, which lives until the last reading.
    #[must_use]
    pub fn of(process: u32) -> Self {
        Self { own: false, ..Self::with([process]) }
    }

    /// Measures ended children of this process and their descendants, from start to end.
    #[must_use]
    pub const fn children() -> Self {
        Self { own: false, children: true, others: Vec::new() }
    }

    /// Adds ended children to the measured processes.
    #[must_use]
    pub fn and_children(self) -> Self {
        Self { children: true, ..self }
    }

    /// Starts a measurement.
    #[must_use]
    pub fn begin(&self) -> CpuSpan<'_> {
        CpuSpan { meter: self, begin: self.read() }
    }

    /// Returns the CPU time of all processes so far; `None` when one is unreadable.
    fn read(&self) -> Option<Duration> {
        let own = if self.own { own() } else { Duration::ZERO };
        let children = if self.children { cpu_time_of_children() } else { Duration::ZERO };
        self.others.iter().try_fold(own + children, |sum, &process| Some(sum + of_process(process)?))
    }
}

fn own() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("a clock that began at 0")
}

/// Returns the CPU time of a process's present threads, in nanoseconds, up to each thread's last sleep.
fn of_process(process: u32) -> Option<Duration> {
    let threads = read_dir(format!("/proc/{process}/task")).ok()?;
    threads.flatten().try_fold(Duration::ZERO, |sum, thread| {
        let stat = read_to_string(thread.path().join("schedstat")).ok()?;
        Some(sum + Duration::from_nanos(stat.split(' ').next()?.parse().ok()?))
    })
}

/// A running measurement.
#[derive(Debug)]
pub struct CpuSpan<'m> {
    meter: &'m CpuMeter,
    begin: Option<Duration>,
}

impl CpuSpan<'_> {
    /// Returns the CPU time since the start; `None` when a part is unknown.
    #[must_use]
    pub fn end(self) -> Option<Duration> {
        Some(self.meter.read()?.saturating_sub(self.begin?))
    }
}

/// Total CPU time of a number of operations.
#[derive(Clone, Copy, Default, Debug)]
pub struct CpuTime {
    time: Duration,
    operations: u64,
    /// True when a part is unknown.
    is_unknown: bool,
}

impl CpuTime {
    /// Adds the time of `operations`.
    pub fn add(&mut self, time: Option<Duration>, operations: u64) {
        self.time += time.unwrap_or_default();
        self.operations += operations;
        self.is_unknown |= time.is_none();
    }

    /// Adds another total.
    pub fn add_all(&mut self, other: &Self) {
        self.add((!other.is_unknown).then_some(other.time), other.operations);
    }

    /// Returns the nanoseconds per operation; `None` when nothing was counted or a part is unknown.
    #[must_use]
    pub fn per_operation(&self) -> Option<f64> {
        let nanos = to_f64(u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX));
        (self.operations > 0 && !self.is_unknown).then(|| nanos / to_f64(self.operations))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_link::cpu_time_of_thread;
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    /// Works until this thread has used a millisecond.
    fn work() {
        let begin = cpu_time_of_thread();
        while (cpu_time_of_thread() - begin).as_nanos() < 1_000_000 {}
    }

    /// Work of other threads in this process counts; their sleep does not.
    #[test]
    fn all_threads_count_while_they_work() {
        let meter = CpuMeter::own();
        let span = meter.begin();
        std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(work))));
        assert!(span.end().unwrap() >= Duration::from_millis(3));
    }

    /// Another process counts while it lives, and as a child after its end. A process that is gone is
    /// unknown, not zero.
    #[test]
    fn other_processes_count() {
        let mut busy = Command::new("sh");
        busy.args(["-c", "n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done; echo done; read word"]);
        let mut child = busy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (one, ended) = (CpuMeter::of(child.id()), CpuMeter::children());
        let (of_it, of_children) = (one.begin(), ended.begin());
        child.stdout.take().unwrap().read_exact(&mut [0; 5]).unwrap();
        assert!(of_it.end().unwrap() > Duration::ZERO);
        writeln!(child.stdin.take().unwrap()).unwrap();
        let gone = one.begin();
        child.wait().unwrap();
        assert!(of_children.end().unwrap() > Duration::ZERO);
        assert_eq!(gone.end(), None);
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let mut time = CpuTime::default();
        assert_eq!(time.per_operation(), None);
        time.add(Some(Duration::from_nanos(300)), 2);
        assert_eq!(time.per_operation(), Some(150.0));
        let mut all = time;
        all.add_all(&time);
        assert_eq!(all.per_operation(), Some(150.0));
        time.add(None, 1);
        assert_eq!(time.per_operation(), None);
        all.add_all(&time);
        assert_eq!(all.per_operation(), None);
    }
}
