//! The placement of threads on CPUs.
//!
//! A hand-over between two threads costs three to four times less if both run on one CPU. So this is the
//! default placement of roles on one machine (docs/decisions, "same-CPU placement").

use procfs_core::process::{Schedstat, Stat};
use procfs_core::{FromRead as _, LoadAverage};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use std::io;
use std::time::Duration;

/// Binds the calling thread to `cpu`; threads that it starts later inherit the binding.
///
/// # Errors
/// `InvalidInput` if the CPU does not exist, or this process may not run on it (`taskset`, a container's CPU
/// set).
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    // A larger number would make the set panic.
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no CPU {cpu}")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the CPUs on which the calling thread may run, in ascending order.
///
/// # Errors
/// The system's error.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Returns the number of the calling thread.
#[must_use]
pub fn thread_id() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Allows a thread of this process to run on these CPUs.
///
/// # Errors
/// The system's error if the thread has ended, or if the process may not run on the CPUs.
pub fn allow_thread(thread: u32, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw);
    Ok(sched_setaffinity(Some(thread.ok_or(io::ErrorKind::InvalidInput)?), &set)?)
}

/// Puts the calling thread into the idle scheduling class (SCHED_IDLE), which a process without privileges
/// cannot leave. Threads that this thread starts have the normal class.
///
/// # Errors
/// The kernel's error, for example if a filter of system calls refuses the change.
pub fn enter_idle_class() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    let class = libc::SCHED_IDLE | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the call reads `parameters`, and changes the calling thread's class only.
    match unsafe { libc::sched_setscheduler(0, class, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the CPU on which a thread of any process of this user ran last; `None` if the thread has ended.
#[must_use]
pub fn cpu_of(thread: u32) -> Option<usize> {
    let stat = Stat::from_file(format!("/proc/{thread}/stat")).ok()?;
    usize::try_from(stat.processor?).ok()
}

/// The CPU time of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuTime {
    /// Time on a CPU.
    pub used: Duration,
    /// Time ready to run, without a CPU. The kernel adds a wait when it ends.
    pub waited: Duration,
    /// True while the thread is ready to run, on a CPU or not.
    pub ready: bool,
}

/// Returns the CPU time of a thread of this process; `None` if the thread has ended, or if the kernel does
/// not count.
#[must_use]
pub fn cpu_time_of(thread: u32) -> Option<CpuTime> {
    let times = Schedstat::from_file(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let stat = Stat::from_file(format!("/proc/self/task/{thread}/stat")).ok()?;
    let (used, waited) =
        (Duration::from_nanos(times.sum_exec_runtime), Duration::from_nanos(times.run_delay));
    // An existing thread has had a CPU at least once. A kernel without these counters reports zero.
    (times.pcount > 0).then_some(CpuTime { used, waited, ready: stat.state == 'R' })
}

/// Returns true if fewer threads are ready to run than this machine has CPUs, including the calling thread.
/// Returns false if the number is unknown.
#[must_use]
pub fn has_idle_cpu() -> bool {
    let runnable = LoadAverage::from_file("/proc/loadavg").map(|load| load.cur);
    runnable.is_ok_and(|runnable| (runnable as usize) < cpus_online())
}

/// Returns the number of CPUs of this machine that are online, whatever this thread's affinity.
pub fn cpus_online() -> usize {
    // SAFETY: the call takes a number, and accesses no memory of this process.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::sched_getcpu;

    /// Checks the CPU of a thread whatever its name: a name of 15 bytes may end within a character.
    #[test]
    fn the_cpu_of_a_thread_is_found() {
        std::thread::spawn(|| {
            let cpu = allowed_cpus().unwrap()[0];
            pin_to_cpu(cpu).unwrap();
            for name in [c"plain", c"a) b) 3", c"\xd0\xbf\xd1"] {
                rustix::thread::set_name(name).unwrap();
                assert_eq!(cpu_of(thread_id()), Some(cpu), "{name:?}");
            }
        })
        .join()
        .unwrap();
        assert_eq!(cpu_of(u32::MAX), None);
    }

    /// Checks that a thread is moved by another one, and that the kernel counts its delays.
    #[test]
    fn another_thread_is_moved_and_counted() {
        let cpus = allowed_cpus().unwrap();
        allow_thread(thread_id(), &cpus[..1]).unwrap();
        assert_eq!(allowed_cpus().unwrap(), cpus[..1]);
        assert!(allow_thread(thread_id(), &[]).is_err());
        allow_thread(thread_id(), &cpus).unwrap();
        assert!(cpu_time_of(thread_id()).is_some_and(|time| time.ready));
        assert_eq!(cpu_time_of(u32::MAX), None);
    }

    /// A pinned thread runs on its CPU and may run on no other; a CPU that does not exist is refused.
    #[test]
    fn a_pinned_thread_stays() {
        std::thread::spawn(|| {
            let cpu = allowed_cpus().unwrap().into_iter().next_back().unwrap();
            pin_to_cpu(cpu).unwrap();
            assert_eq!(sched_getcpu(), cpu);
            assert_eq!(allowed_cpus().unwrap(), [cpu]);
            assert_eq!(pin_to_cpu(CpuSet::MAX_CPU).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(pin_to_cpu(CpuSet::MAX_CPU - 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        })
        .join()
        .unwrap();
    }
}
