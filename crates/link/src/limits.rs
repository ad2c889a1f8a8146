//! Memory limits: this machine's memory, and a process's limit of addresses (RLIMIT_AS, `ulimit -v`). Users
//! set the latter for a program, but it also limits the process that keeps the program's memory.
//!
//! Key type: [`AddressLimit`].

use procfs_core::{FromRead as _, Meminfo};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The limit with which this process was started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressLimit {
    before: Rlimit,
    now: Option<u64>,
}

impl AddressLimit {
    /// Lifts the limit of this process as far as permitted: root without bound, others up to the hard limit.
    /// Returns `None` if there was no limit.
    #[must_use]
    pub fn lift() -> Option<Self> {
        let before = getrlimit(Resource::As);
        before.current?;
        let none = Rlimit { current: None, maximum: None };
        let hard = Rlimit { current: before.maximum, maximum: before.maximum };
        // A refusal leaves the limit unchanged.
        let _ = setrlimit(Resource::As, none).or_else(|_| setrlimit(Resource::As, hard));
        let now = getrlimit(Resource::As).current;
        Some(Self { before, now })
    }

    /// Returns the number of bytes of addresses that this process may still map; `None` if unlimited.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        let pages = fs::read_to_string("/proc/self/statm").ok();
        let pages = pages.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let used = pages.unwrap_or(0) * farmem_wire::message::PAGE_LEN as u64;
        self.now.map(|now| now.saturating_sub(used))
    }

    /// Makes the program that `command` starts run with the limit of this process's start.
    pub fn restore(&self, command: &mut Command) {
        let of = |limit: Option<u64>| limit.unwrap_or(libc::RLIM_INFINITY);
        let before = libc::rlimit { rlim_cur: of(self.before.current), rlim_max: of(self.before.maximum) };
        let restore = move || {
            // SAFETY: the record is complete, and the call is permitted between fork and exec.
            match unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const before) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure only makes that call and allocates nothing.
        unsafe { command.pre_exec(restore) };
    }
}

/// Returns the largest resident set, in bytes, of the processes that this one has waited for, and of their
/// waited-for children.
#[must_use]
pub fn largest_resident_set() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the buffer has the size of one record.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: plain numbers, which the system has written.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024
}

/// Returns the size of this machine's memory in bytes; `None` if unknown.
#[must_use]
pub fn memory_of_machine() -> Option<u64> {
    Some(Meminfo::from_file("/proc/meminfo").ok()?.mem_total)
}
