//! CPU time of the threads at work, beside the time that passes.
//!
//! Key type: [`CpuMeter`], which knows the processes at work. A party that spins has a CPU for itself, one that sleeps has little of it: times
//! that pass do not tell the two apart.

use crate::to_f64;
use farmem_io::raw::cpu_time_of_children;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{read_dir, read_to_string};
use std::time::Duration;

/// Runs it on a thread that ends with it, and with it the CPU that it was bound to.
pub(crate) fn on_its_own<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    let ended = std::thread::scope(|threads| threads.spawn(run).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The processes whose threads are at work.
#[derive(Clone, Default, Debug)]
pub struct CpuMeter {
    own: bool,
    children: bool,
    others: Vec<u32>,
}

impl CpuMeter {
    /// All threads of this process.
    #[must_use]
    pub const fn own() -> Self {
        Self { own: true, children: false, others: Vec::new() }
    }

    /// All threads of this process and of `others`, which live until the last reading.
    #[must_use]
    pub fn with(others: impl IntoIterator<Item = u32>) -> Self {
        Self { others: others.into_iter().collect(), ..Self::own() }
    }

    /// All threads of one other process, which lives until the last reading.
    #[must_use]
    pub fn of(process: u32) -> Self {
        Self { own: false, ..Self::with([process]) }
    }

    /// Children of this process that have ended, and theirs, from start to end.
    #[must_use]
    pub const fn children() -> Self {
        Self { own: false, children: true, others: Vec::new() }
    }

    /// These, and children that have ended.
    #[must_use]
    pub fn and_children(self) -> Self {
        Self { children: true, ..self }
    }

    /// Begins to count.
    #[must_use]
    pub fn begin(&self) -> CpuSpan<'_> {
        CpuSpan { meter: self, begin: self.read() }
    }

    /// What all of them have had so far; `None` when one does not let itself be seen.
    fn read(&self) -> Option<Duration> {
        let own = if self.own { own() } else { Duration::ZERO };
        let children = if self.children { cpu_time_of_children() } else { Duration::ZERO };
        self.others.iter().try_fold(own + children, |sum, &process| Some(sum + of_process(process)?))
    }
}

fn own() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("a clock that began at 0")
}

/// What the threads that the process has now have had; the system counts it in nanoseconds, up to the last time that a thread slept.
fn of_process(process: u32) -> Option<Duration> {
    let threads = read_dir(format!("/proc/{process}/task")).ok()?;
    threads.flatten().try_fold(Duration::ZERO, |sum, thread| {
        let stat = read_to_string(thread.path().join("schedstat")).ok()?;
        Some(sum + Duration::from_nanos(stat.split(' ').next()?.parse().ok()?))
    })
}

/// From a moment on.
#[derive(Debug)]
pub struct CpuSpan<'m> {
    meter: &'m CpuMeter,
    begin: Option<Duration>,
}

impl CpuSpan<'_> {
    /// The CPU time since it began; `None` when it cannot be known.
    #[must_use]
    pub fn end(self) -> Option<Duration> {
        Some(self.meter.read()?.saturating_sub(self.begin?))
    }
}

/// CPU time that operations took, all together.
#[derive(Clone, Copy, Default, Debug)]
pub struct CpuTime {
    time: Duration,
    operations: u64,
    /// A part of it is not known.
    is_unknown: bool,
}

impl CpuTime {
    /// Adds what `operations` took.
    pub fn add(&mut self, time: Option<Duration>, operations: u64) {
        self.time += time.unwrap_or_default();
        self.operations += operations;
        self.is_unknown |= time.is_none();
    }

    /// Adds another's.
    pub fn add_all(&mut self, other: &Self) {
        self.add((!other.is_unknown).then_some(other.time), other.operations);
    }

    /// Nanoseconds of an average operation; `None` when nothing was counted, or not all is known.
    #[must_use]
    pub fn per_operation(&self) -> Option<f64> {
        let nanos = to_f64(u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX));
        (self.operations > 0 && !self.is_unknown).then(|| nanos / to_f64(self.operations))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_io::cpu_time_of_thread;
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    /// Works until this thread has had a millisecond.
    fn work() {
        let begin = cpu_time_of_thread();
        while (cpu_time_of_thread() - begin).as_nanos() < 1_000_000 {}
    }

    /// What other threads of this process work counts; what they sleep does not.
    #[test]
    fn all_threads_count_while_they_work() {
        let meter = CpuMeter::own();
        let span = meter.begin();
        std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(work))));
        assert!(span.end().unwrap() >= Duration::from_millis(3));
    }

    /// Another process counts while it lives, and as a child when it has ended; one that is gone is not taken for one that did nothing.
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
