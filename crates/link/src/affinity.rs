//! Which CPU a thread runs on.
//!
//! A hand-over between two threads costs three to four times less when both run on one CPU, so that is how roles of one
//! machine are placed unless told otherwise (docs/decisions, "same-CPU placement").

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::io;

/// Binds the calling thread to `cpu`; threads it starts later inherit that.
///
/// # Errors
/// `InvalidInput` when there is no such CPU, or this process may not run on it (`taskset`, a container's CPU set).
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    // Beyond this the set would panic.
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no CPU {cpu}")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// The CPU the calling thread runs on at this moment.
///
/// # Errors
/// None on Linux, whose `getcpu` cannot fail.
pub fn current_cpu() -> io::Result<usize> {
    Ok(sched_getcpu())
}

/// The CPUs the calling thread may run on, ascending.
///
/// # Errors
/// When the system cannot tell.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// CPUs of this machine that are in use, whatever this thread may run on.
pub fn cpus_online() -> usize {
    // SAFETY: it takes a number, and touches no memory of ours.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pinned thread is where it was put, and may go nowhere else; a CPU that is not there is refused.
    #[test]
    fn a_pinned_thread_stays() {
        std::thread::spawn(|| {
            let cpu = allowed_cpus().unwrap().into_iter().next_back().unwrap();
            pin_to_cpu(cpu).unwrap();
            assert_eq!(current_cpu().unwrap(), cpu);
            assert_eq!(allowed_cpus().unwrap(), [cpu]);
            assert_eq!(pin_to_cpu(CpuSet::MAX_CPU).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(pin_to_cpu(CpuSet::MAX_CPU - 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        })
        .join()
        .unwrap();
    }
}
