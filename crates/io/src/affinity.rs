//! Which CPU a thread runs on.
//!
//! A hand-over between two threads costs three to four times less when both run on one CPU, so that is how roles of one
//! machine are placed unless told otherwise (docs/decisions, "same-CPU placement").

use std::io;
use std::mem;

/// Binds the calling thread to `cpu`; threads it starts later inherit that.
///
/// # Errors
/// `InvalidInput` when there is no such CPU, or this process may not run on it (`taskset`, a container's CPU set).
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    let set = cpu_set(&[cpu])?;
    // SAFETY: `set` is a whole cpu_set_t that outlives the call, and its size is given; 0 is the calling thread.
    let done = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The CPU the calling thread runs on at this moment.
///
/// # Errors
/// When the system cannot tell.
pub fn current_cpu() -> io::Result<usize> {
    // SAFETY: sched_getcpu takes nothing and touches no memory of ours.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).map_err(|_| io::Error::last_os_error())
}

/// The CPUs the calling thread may run on, ascending.
///
/// # Errors
/// When the system cannot tell.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let mut set = cpu_set(&[])?;
    // SAFETY: `set` is a whole cpu_set_t that outlives the call, and its size is given; 0 is the calling thread.
    let done = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((0..CPUS_MAX).filter(|&cpu| is_in(cpu, &set)).collect())
}

/// CPUs a `cpu_set_t` has room for.
const CPUS_MAX: usize = libc::CPU_SETSIZE as usize;

fn is_in(cpu: usize, set: &libc::cpu_set_t) -> bool {
    // SAFETY: `cpu` is below CPU_SETSIZE, by the only caller's range.
    unsafe { libc::CPU_ISSET(cpu, set) }
}

fn cpu_set(cpus: &[usize]) -> io::Result<libc::cpu_set_t> {
    // SAFETY: a cpu_set_t is an array of integers; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for &cpu in cpus {
        if cpu >= CPUS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no CPU {cpu}")));
        }
        // SAFETY: `cpu` is below CPU_SETSIZE, checked above.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    Ok(set)
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
            assert_eq!(pin_to_cpu(CPUS_MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(pin_to_cpu(CPUS_MAX - 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        })
        .join()
        .unwrap();
    }
}
